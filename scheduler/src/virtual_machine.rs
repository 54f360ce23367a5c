//! Detects whether this is a virtual machine. Only there a host can take CPU time away.

use std::fs;
use std::path::Path;

/// Parts of the vendor and product names in the firmware of virtual machines.
const FIRMWARE: [&str; 13] = [
    "QEMU",
    "KVM",
    "VMware",
    "VMW",
    "Virtual Machine",
    "VirtualBox",
    "innotek",
    "Xen",
    "Bochs",
    "Parallels",
    "BHYVE",
    "Google Compute Engine",
    "Apple Virtualization",
];

/// Returns whether the machine whose files are below `root` is virtual.
///
/// The kernel shows it in the CPU's flags (x86), as the hypervisor it talks to (Xen), in the device
/// tree (arm64, powerpc) or in the names in the firmware.
pub fn is_virtual_machine(root: &Path) -> bool {
    has_hypervisor_flag(root)
        || [
            "sys/hypervisor/type",
            "proc/device-tree/hypervisor/compatible",
            "proc/device-tree/ibm,partition-name",
        ]
        .iter()
        .any(|file| root.join(file).exists())
        || read(root, "proc/device-tree/compatible").contains("dummy-virt")
        || is_virtual_firmware(root)
}

/// Returns whether the CPUs (x86) say that they run under a hypervisor.
fn has_hypervisor_flag(root: &Path) -> bool {
    read(root, "proc/cpuinfo")
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// Returns whether the firmware has the names of a virtual machine.
fn is_virtual_firmware(root: &Path) -> bool {
    let names: Vec<_> = ["sys_vendor", "product_name", "bios_vendor"]
        .iter()
        .map(|file| read(root, &format!("sys/class/dmi/id/{file}")))
        .collect();
    // Amazon sells whole machines, too: `metal` in the name tells them.
    let is_whole = names.iter().any(|name| name.contains(".metal"));
    let is_cloud = names.iter().any(|name| name.starts_with("Amazon EC2"));
    let is_known = |name: &String| FIRMWARE.iter().any(|known| name.contains(known));
    !is_whole && (is_cloud || names.iter().any(is_known))
}

/// Returns the content of a file, or nothing if it cannot be read.
fn read(root: &Path, file: &str) -> String {
    // Strings of the device tree end with a zero byte and need not be UTF-8.
    let bytes = fs::read(root.join(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_virtual(file: &str, content: &str) -> bool {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        is_virtual_machine(root.path())
    }

    #[test]
    fn virtual_machines_are_known_by_what_each_architecture_tells() {
        for (file, content) in [
            (
                "proc/cpuinfo",
                "processor\t: 0\nflags\t\t: fpu hypervisor\n",
            ),
            ("sys/hypervisor/type", "xen\n"),
            ("proc/device-tree/hypervisor/compatible", "linux,kvm\0"),
            ("proc/device-tree/compatible", "linux,dummy-virt\0"),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ("sys/class/dmi/id/product_name", "KVM Virtual Machine\n"),
        ] {
            assert!(is_virtual(file, content), "{file}");
        }
    }

    #[test]
    fn whole_machines_are_not_virtual() {
        for (file, content) in [
            (
                "proc/cpuinfo",
                "flags\t\t: fpu vmx\nmodel name: hypervisor\n",
            ),
            ("proc/device-tree/compatible", "raspberrypi,5-model-b\0"),
            ("sys/class/dmi/id/sys_vendor", "Dell Inc.\n"),
            ("sys/class/dmi/id/product_name", "m7g.metal\n"),
        ] {
            assert!(!is_virtual(file, content), "{file}");
        }
    }
}

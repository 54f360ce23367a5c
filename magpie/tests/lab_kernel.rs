//! `magpie lab kernel build` as a user runs it, with the real tools, on a source that is built in
//! a moment: a makefile with the kernel's targets around one file of C. A whole kernel is built by
//! `tests/tests/vm/lab_kernel.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

/// As the kernel's: objects in O, the configuration from KCONFIG_ALLCONFIG. The symbol UNKNOWN does
/// not exist. `count` has a line for each compilation of fair.c.
const MAKEFILE: &str = "\
VERSION = 7
PATCHLEVEL = 2
allnoconfig:
\tgrep -v UNKNOWN $(KCONFIG_ALLCONFIG) > $(O)/.config
bzImage: $(O)/fair.o
\tmkdir -p $(O)/arch/x86/boot $(O)/include/config
\tcp $(O)/fair.o $(O)/arch/x86/boot/bzImage
\techo 7.2.0$(LOCALVERSION) > $(O)/include/config/kernel.release
$(O)/fair.o: kernel/sched/fair.c
\t@echo '  CC      kernel/sched/fair.o'
\tgcc -c -o $@ $<
\techo >> $(O)/count
";

const FAIR: &str = "int one(void)\n{\n\treturn 1;\n}\n\nint two(void)\n{\n\treturn 2;\n}\n";

/// Makes `two()` return `value`.
fn patch(value: &str) -> String {
    format!(
        "--- a/kernel/sched/fair.c\n+++ b/kernel/sched/fair.c\n@@ -5,5 +5,5 @@\n \n int \
         two(void)\n {{\n-\treturn 2;\n+\treturn {value};\n }}\n"
    )
}

/// A source, patches, and a folder of the lab, all temporary.
struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Lab {
        let lab = Lab(tempfile::tempdir().expect("a folder"));
        for (path, text) in [
            ("linux/Makefile", MAKEFILE),
            ("linux/Kconfig", ""),
            ("linux/scripts/kconfig/Makefile", ""),
            ("linux/kernel/sched/fair.c", FAIR),
            ("three.diff", &patch("3")),
            ("broken.diff", &patch("nothing")),
        ] {
            lab.write(path, text);
        }
        lab
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("in a folder")).expect("created");
        fs::write(path, text).expect("written");
    }

    /// `magpie lab ARGUMENTS`.
    fn magpie(&self, arguments: &str) -> Command {
        let mut command = Command::cargo_bin("magpie").expect("cargo builds it for this test");
        command
            .timeout(std::time::Duration::from_secs(300))
            .env("MAGPIE_LAB_DIR", self.path("lab"))
            // The makefile makes no BTF, so no pahole is downloaded for it.
            .env("MAGPIE_PAHOLE", "/bin/false")
            .current_dir(self.0.path())
            .arg("lab")
            .args(arguments.split(' '));
        command
    }

    fn builds(&self, arguments: &str) {
        let command = format!("kernel build linux {arguments}");
        self.magpie(&command).assert().success();
    }

    /// The bytes of a built kernel, which are those of fair.o.
    fn image(&self, name: &str) -> Vec<u8> {
        fs::read(self.path("lab/built-kernels").join(name).join("bzImage")).expect("registered")
    }

    fn kernels(&self) -> String {
        let output = self.magpie("kernels").output().expect("runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// How often fair.c was compiled.
    fn compilations(&self) -> usize {
        let folders = fs::read_dir(self.path("lab/kernel-build")).expect("there");
        let counts = folders
            .flatten()
            .filter_map(|folder| fs::read_to_string(folder.path().join("tiny/count")).ok());
        counts.map(|count| count.lines().count()).sum()
    }
}

#[test]
fn a_patched_kernel_has_a_name_of_its_own_and_only_what_changes_is_compiled() {
    let lab = Lab::new();
    lab.builds("--name plain");
    lab.builds("--name again");
    assert_eq!(lab.compilations(), 1);
    lab.builds("--patch three.diff");
    assert_eq!(lab.compilations(), 2);
    assert_eq!(lab.image("plain"), lab.image("again"));
    assert_ne!(lab.image("plain"), lab.image("linux-three"));
    // Without the patch, its object is no longer valid, though the source's file is older.
    lab.builds("--name plain");
    assert_eq!(lab.compilations(), 3);
    assert_eq!(lab.image("plain"), lab.image("again"));
    let fair = fs::read_to_string(lab.path("linux/kernel/sched/fair.c")).expect("there");
    assert_eq!(fair, FAIR, "the source is not patched");

    let kernels = lab.kernels();
    for line in ["7.2.0-linux-three", "1 patch", "no patches"] {
        assert!(kernels.contains(line), "{kernels}");
    }
    lab.magpie("kernel remove plain").assert().success();
    assert!(!lab.kernels().contains("7.2.0-plain"));
    lab.magpie("run --kernel plain -- true")
        .assert()
        .code(125)
        .stderr(contains(
            "no kernel \"plain\": built are again, linux-three",
        ));
}

#[test]
fn a_source_that_is_removed_leaves_its_kernels_and_is_built_anew() {
    let lab = Lab::new();
    lab.builds("--name it");
    let list = |json: &str| {
        let output = lab.magpie(&format!("kernel list{json}")).output();
        let output = output.expect("runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let text = list("");
    let linux = fs::canonicalize(lab.path("linux")).expect("there");
    for part in ["it ", "no patches", " kB  ", &linux.display().to_string()] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let value: serde_json::Value = serde_json::from_str(&list(" --json -")).expect("JSON");
    let source = &value["sources"][0];
    let name = source["name"].as_str().expect("a name");
    let folder = lab.path("lab/kernel-build").join(name);
    let objects = fs::metadata(folder.join("tiny/fair.o")).expect("compiled");
    assert!(source["bytes"].as_u64() > Some(objects.len()), "{value}");
    assert!(
        value["kernels"][0]["bytes"].as_u64() > Some(objects.len()),
        "{value}"
    );

    let lock = fs::File::open(folder.join("lock")).expect("a lock");
    lock.lock().expect("no build runs");
    lab.magpie(&format!("kernel clean {name}"))
        .assert()
        .failure()
        .stderr(contains("a build uses"));
    drop(lock);
    lab.magpie("kernel clean other")
        .assert()
        .failure()
        .stderr(contains(format!("there are {name}")));
    assert!(folder.is_dir());
    lab.magpie("kernel clean --all").assert().success();
    let left = fs::read_dir(lab.path("lab/kernel-build")).expect("there");
    let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["logs"]);
    assert!(lab.kernels().contains("7.2.0-it"));
    lab.builds("--name again");
    assert_eq!(lab.compilations(), 1, "of the new objects");
    assert_eq!(lab.image("it"), lab.image("again"));
}

#[test]
fn a_build_that_fails_registers_nothing_and_keeps_its_log() {
    let lab = Lab::new();
    lab.builds("--name it");
    let before = lab.image("it");
    lab.magpie("kernel build linux --patch broken.diff --name it")
        .assert()
        .failure()
        .stderr(contains("error: ").and(contains("nothing").and(contains("logs/it.log"))));
    assert_eq!(lab.image("it"), before);
    let log = fs::read_to_string(lab.path("lab/kernel-build/logs/it.log")).expect("a log");
    assert!(log.contains("  CC      kernel/sched/fair.o"), "{log}");
    lab.magpie("kernel build linux --patch broken.diff --name other")
        .assert()
        .failure();
    assert!(!lab.kernels().contains("other"));
}

#[test]
fn a_patch_that_does_not_apply_is_reported_by_file_and_hunk() {
    let lab = Lab::new();
    lab.write("four.diff", &patch("4").replace("return 2", "return 22"));
    lab.magpie("kernel build linux --patch three.diff --patch four.diff")
        .assert()
        .failure()
        .stderr(
            contains("the patch four.diff does not apply")
                .and(contains(
                    "kernel/sched/fair.c: hunk 1 of 1 failed: @@ -5,5 +5,5 @@",
                ))
                .and(contains("1 of 2 patches applied before it")),
        );
    lab.magpie("kernel build linux --patch three.diff --patch three.diff")
        .assert()
        .failure()
        .stderr(contains("the source has this change already"));
    // Of the series, the first patch alone applies.
    lab.builds("--patch three.diff --patch four.diff --first 1 --name one");
}

#[test]
fn a_configuration_that_the_kernel_does_not_accept_is_reported_by_its_line() {
    let lab = Lab::new();
    lab.write("fine.config", "# why\nCONFIG_HZ_1000=y\nCONFIG_HZ_250=n\n");
    lab.builds("--config fine.config --name fast");
    let config = lab.path("lab/built-kernels/fast/config");
    let config = fs::read_to_string(config).expect("registered");
    for line in ["CONFIG_HZ_1000=y", "# CONFIG_HZ_250 is not set"] {
        assert!(config.contains(line), "{config}");
    }
    assert!(config.contains("CONFIG_SCHED_CLASS_EXT=y"), "{config}");
    lab.write("bad.config", "CONFIG_HZ_1000=y\nCONFIG_UNKNOWN=y\n");
    lab.magpie("kernel build linux --config bad.config")
        .assert()
        .failure()
        .stderr(contains("CONFIG_UNKNOWN=y (bad.config:2) became n"));
}

#[test]
fn missing_tools_are_named_with_their_packages_before_anything_begins() {
    let lab = Lab::new();
    let tools = lab.path("tools");
    fs::create_dir(&tools).expect("created");
    for tool in [
        "make", "gcc", "as", "ld", "perl", "bc", "gzip", "tar", "xz", "patch",
    ] {
        let found = which(tool);
        std::os::unix::fs::symlink(found, tools.join(tool)).expect("linked");
    }
    lab.magpie("kernel build linux")
        .env("PATH", &tools)
        .assert()
        .failure()
        .stderr(contains("lacks flex, bison;").and(contains("apt-get install flex bison")));
    assert!(!lab.path("lab/kernel-build").exists());
}

/// The path of a program.
fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("PATH is set");
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| Path::new("/no").join(name))
}

#[test]
fn what_is_no_source_and_no_name_is_refused() {
    let lab = Lab::new();
    lab.write("empty/README", "");
    for (arguments, complaint) in [
        ("/no/such/tree", "no kernel source /no/such/tree"),
        ("empty", "it has no Makefile"),
        ("linux --name 7.2", "is no series"),
        ("linux --patch /no/such.diff", "/no/such.diff"),
        (
            "linux --patch three.diff --first 2",
            "more than the 1 patches",
        ),
    ] {
        lab.magpie(&format!("kernel build {arguments}"))
            .assert()
            .failure()
            .stderr(contains(complaint));
    }
}

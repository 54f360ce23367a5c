//! The energy that the CPU packages have used, from the counters of the kernel's powercap (RAPL).

use std::fs;
use std::path::{Path, PathBuf};

/// A package's counter.
#[derive(Debug)]
struct Zone {
    counter: PathBuf,
    /// The counter begins anew at zero behind this.
    range: u64,
}

/// The counters of all packages that can be read; none in most guests, and without root.
#[derive(Debug)]
pub struct Packages(Vec<Zone>);

impl Packages {
    /// Finds the counters below `root`, which is `/` but in tests.
    pub fn find(root: &Path) -> Self {
        let folder = root.join("sys/class/powercap");
        let zones = fs::read_dir(folder).into_iter().flatten().flatten();
        Self(zones.filter_map(|zone| zone_of(&zone.path())).collect())
    }

    /// The counters now, in microjoules; None if there are none or one cannot be read.
    pub fn read(&self) -> Option<Vec<u64>> {
        let counters = self.0.iter().map(|zone| number(&zone.counter));
        counters
            .collect::<Option<Vec<_>>>()
            .filter(|c| !c.is_empty())
    }

    /// Returns the energy between two readings, in joules. A counter may have begun anew once.
    pub fn joules(&self, before: &[u64], after: &[u64]) -> f64 {
        let pairs = before.iter().zip(after).zip(&self.0);
        let used = pairs.map(|((before, after), zone)| match after >= before {
            true => after - before,
            false => (after + zone.range).saturating_sub(*before),
        });
        used.sum::<u64>() as f64 / 1e6
    }
}

/// Returns a folder's counter if it is that of a whole package. Others would count energy twice: the
/// parts of a package (`intel-rapl:0:0`), the whole system (`psys`), and a second way to the same
/// counter (`intel-rapl-mmio:0`).
fn zone_of(folder: &Path) -> Option<Zone> {
    let is_first_way = folder.file_name()?.to_str()?.starts_with("intel-rapl:");
    let name = fs::read_to_string(folder.join("name")).ok()?;
    if !is_first_way || !name.starts_with("package-") {
        return None;
    }
    let counter = folder.join("energy_uj");
    number(&counter)?;
    Some(Zone {
        counter,
        range: number(&folder.join("max_energy_range_uj"))?,
    })
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder as the kernel has it, with `(zone, name, counter)`.
    fn powercap(zones: &[(&str, &str, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (zone, name, counter) in zones {
            let folder = root.path().join("sys/class/powercap").join(zone);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("name"), format!("{name}\n")).unwrap();
            fs::write(folder.join("energy_uj"), format!("{counter}\n")).unwrap();
            fs::write(folder.join("max_energy_range_uj"), "1000000\n").unwrap();
        }
        root
    }

    #[test]
    fn packages_are_counted_once_and_parts_of_them_not() {
        let root = powercap(&[
            ("intel-rapl:0", "package-0", 10),
            ("intel-rapl:0:0", "core", 5),
            ("intel-rapl:1", "package-1", 20),
            ("intel-rapl:2", "psys", 99),
            ("intel-rapl-mmio:0", "package-0", 10),
        ]);
        let packages = Packages::find(root.path());
        let mut counters = packages.read().unwrap();
        counters.sort_unstable();
        assert_eq!(counters, [10, 20]);
    }

    #[test]
    fn a_counter_that_began_anew_is_continued() {
        let root = powercap(&[("intel-rapl:0", "package-0", 0)]);
        let packages = Packages::find(root.path());
        assert_eq!(packages.joules(&[100_000], &[600_000]), 0.5);
        assert_eq!(packages.joules(&[900_000], &[400_000]), 0.5);
    }

    #[test]
    fn without_counters_there_is_no_energy() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Packages::find(root.path()).read(), None);
    }
}

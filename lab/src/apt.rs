//! Debian packages from private apt roots below the lab's folder: the host's apt stays as it is.
//!
//! A root has its own list of sources, its own indexes and cache. The mirror and the proxies are
//! those of the host's configuration. Packages are downloaded and unpacked into folders, and
//! nothing is installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{files, text};

/// Indexes older than this are fetched again before a package is looked up.
const INDEX_AGE: Duration = Duration::from_secs(24 * 3600);

/// dpkg's list of the packages that are installed on the host.
pub const STATUS: &str = "/var/lib/dpkg/status";

/// Lines of apt's and dpkg's output that an error shows.
const LINES_SHOWN: usize = 8;

/// apt's program that downloads one file.
const DOWNLOADER: &str = "/usr/lib/apt/apt-helper";

/// A private apt root.
#[derive(Debug)]
pub struct Apt {
    root: PathBuf,
    /// Settings of the private root, in the form of apt's option `-o`.
    options: Vec<String>,
}

impl Apt {
    /// Opens the root of that name with these suites of the mirror, and makes it if it is missing.
    /// Dependencies are resolved against the dpkg status file `status`, or as if nothing were
    /// installed.
    pub fn open(name: &str, suites: &[&str], status: Option<&Path>) -> Result<Apt> {
        let root = files::lab_dir()?.join("apt").join(name);
        for folder in ["state/lists/partial", "cache/archives/partial"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let _lock = files::lock(&root.join("sources.lock"))?;
        let sources = sources(&mirror()?, suites);
        let list = root.join("sources.list");
        if fs::read_to_string(&list).ok().as_deref() != Some(&sources) {
            let _ = fs::remove_file(root.join("updated"));
            files::write_atomically(&list, sources.as_bytes())?;
        }
        let empty = root.join("status");
        if !empty.exists() {
            files::write_atomically(&empty, b"")?;
        }
        let status = status.unwrap_or(&empty);
        let options = [
            format!("Dir::State={}", root.join("state").display()),
            format!("Dir::State::status={}", status.display()),
            format!("Dir::Cache={}", root.join("cache").display()),
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=/dev/null".into(),
            "Dir::Etc::preferences=/dev/null".into(),
            "Dir::Etc::preferencesparts=/dev/null".into(),
            "APT::Architecture=amd64".into(),
            "APT::Sandbox::User=".into(),
            "APT::Get::List-Cleanup=false".into(),
            "Acquire::Languages=none".into(),
            "Acquire::Retries=2".into(),
            "Acquire::http::Timeout=30".into(),
            "Acquire::https::Timeout=30".into(),
        ];
        Ok(Apt {
            root,
            options: options.into(),
        })
    }

    /// Runs one of apt's programs on this root.
    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<Output> {
        Command::new(program)
            .args(self.options.iter().flat_map(|option| ["-o", option]))
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C.UTF-8")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .output()
            .with_context(|| {
                format!(
                    "cannot run {program}: the lab takes kernels and packages from Debian and \
                     needs apt; on a host without it use --kernel FILE --config FILE"
                )
            })
    }

    /// Runs one of apt's programs and returns what it prints.
    fn query(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = self.run(program, arguments, &self.root)?;
        ensure!(
            output.status.success(),
            "{program} {} failed:\n{}",
            arguments.join(" "),
            tail(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Fetches the indexes if they are missing or older than a day, with `force` if they are older
    /// than a minute. The minute lets processes that wait for each other here share one update.
    pub fn update(&self, force: bool) -> Result<()> {
        let _lock = files::lock(&self.root.join("update.lock"))?;
        let stamp = self.root.join("updated");
        let age = fs::metadata(&stamp)
            .and_then(|m| m.modified())
            .ok()
            .and_then(|t| t.elapsed().ok());
        let oldest = if force {
            Duration::from_secs(60)
        } else {
            INDEX_AGE
        };
        if age.is_some_and(|age| age < oldest) {
            return Ok(());
        }
        let arguments = ["update", "-q", "--error-on=any"];
        let output = self.run("apt-get", &arguments, &self.root)?;
        ensure!(
            output.status.success(),
            "cannot fetch the package indexes; is the network up and the mirror of this host's apt \
             reachable? apt says:\n{}",
            tail(&output.stderr)
        );
        fs::write(&stamp, "").with_context(|| format!("cannot write {}", stamp.display()))
    }

    /// Returns the names of all packages that start with `prefix`.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self
            .query("apt-cache", &["pkgnames", prefix])?
            .lines()
            .map(str::to_string)
            .collect())
    }

    /// Returns the fields of a package's newest version, or `None` if there is no such package.
    pub fn show(&self, package: &str) -> Result<Option<BTreeMap<String, String>>> {
        let arguments = ["show", "--no-all-versions", package];
        let output = self.run("apt-cache", &arguments, &self.root)?;
        let fields: BTreeMap<_, _> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.split_once(": "))
            .filter(|(key, _)| !key.starts_with(' '))
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        Ok(fields.contains_key("Version").then_some(fields))
    }

    /// Returns the packages that an installation of `package` on this host would bring, `package`
    /// first.
    pub fn missing_with(&self, package: &str) -> Result<Vec<String>> {
        let arguments = ["-s", "--no-install-recommends", "install", package];
        let output = self.run("apt-get", &arguments, &self.root)?;
        ensure!(
            output.status.success(),
            "no Debian package \"{package}\" for this host's release, or it cannot be \
             installed:\n{}",
            tail(&output.stderr)
        );
        let mut packages = vec![package.to_string()];
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let name = line
                .strip_prefix("Inst ")
                .and_then(|rest| rest.split_whitespace().next());
            packages.extend(name.filter(|name| *name != package).map(str::to_string));
        }
        Ok(packages)
    }

    /// Returns the newest version of a package that the mirror has, or `None` if there is no such
    /// package. The version on this host may be newer, by a security update.
    pub fn newest_version(&self, package: &str) -> Result<Option<String>> {
        let table = self.query("apt-cache", &["madison", package])?;
        Ok(newest(&table).map(str::to_string))
    }

    /// Downloads a package (`NAME`, `NAME=VERSION` or `NAME/SUITE`) and unpacks it into `folder`.
    pub fn download_and_unpack(&self, package: &str, folder: &Path) -> Result<()> {
        let work = tempfile::tempdir_in(&self.root).context("cannot create a download folder")?;
        let output = self.run("apt-get", &["download", "-q", package], work.path())?;
        let archive = fs::read_dir(work.path())?
            .flatten()
            .next()
            .map(|entry| entry.path());
        match archive {
            Some(archive) if output.status.success() => unpack(&archive, folder),
            _ => bail!(
                "cannot download {package}; apt says:\n{}",
                tail(&output.stderr)
            ),
        }
    }

    /// Downloads a package (`NAME` or `NAME/SUITE`) with those that it needs beyond the status
    /// file, and unpacks all of them into one folder, as if they were installed there. Packages
    /// that the suite lacks come from the others.
    pub fn unpack_with_dependencies(&self, package: &str, folder: &Path) -> Result<()> {
        let suite = package.split_once('/').map(|(_, suite)| suite);
        let work = tempfile::tempdir_in(&self.root).context("cannot create a folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        for package in self.missing_with(package)? {
            let name = package.split('/').next().unwrap_or(&package);
            let part = work.path().join(name);
            match suite {
                Some(suite) => self
                    .download_and_unpack(&format!("{name}/{suite}"), &part)
                    .or_else(|_| self.download_and_unpack(name, &part))?,
                None => self.download_and_unpack(name, &part)?,
            }
            copy_files(&part, folder)?;
        }
        Ok(())
    }
}

/// Copies what is in one folder into another, links and permissions included.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let copied = Command::new("cp")
        .arg("-a")
        .arg(from.join("."))
        .arg(to)
        .status();
    ensure!(
        copied.context("cannot run cp")?.success(),
        "cannot copy the files of {} to {}",
        from.display(),
        to.display()
    );
    Ok(())
}

/// Returns the version in the first line of the table that `apt-cache madison` prints: the newest.
fn newest(madison: &str) -> Option<&str> {
    madison.lines().next()?.split('|').nth(1).map(str::trim)
}

/// Unpacks an archive into `folder`, in one step: the folder is there with everything, or not at
/// all. A folder that exists is left as it is.
pub fn unpack(archive: &Path, folder: &Path) -> Result<()> {
    let parent = folder
        .parent()
        .context("the folder to unpack into has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let work = tempfile::tempdir_in(parent)
        .with_context(|| format!("cannot create a folder in {}", parent.display()))?;
    let output = Command::new("dpkg-deb")
        .arg("-x")
        .args([archive, work.path()])
        .output()
        .context("cannot run dpkg-deb; the lab needs dpkg to unpack Debian packages")?;
    ensure!(
        output.status.success(),
        "cannot unpack {}: {}",
        archive.display(),
        tail(&output.stderr)
    );
    if !folder.exists() {
        fs::rename(work.path(), folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    Ok(())
}

/// Downloads a file of the mirror's pool and checks it against the hash, if one is given. Returns
/// false if the mirror does not have the file any more.
pub fn download_from_pool(path: &str, sha256: Option<&str>, to: &Path) -> Result<bool> {
    let url = format!("{}/{path}", mirror()?);
    let mut command = Command::new(DOWNLOADER);
    command
        .args([
            "-o",
            "Acquire::Retries=2",
            "-o",
            "Acquire::http::Timeout=30",
        ])
        .args(["-o", "APT::Sandbox::User=", "download-file", &url])
        .arg(to)
        .env("LC_ALL", "C.UTF-8");
    if let Some(sha256) = sha256 {
        command.arg(format!("SHA256:{sha256}"));
    }
    let output = command
        .output()
        .with_context(|| format!("cannot run {DOWNLOADER}"))?;
    if output.status.success() {
        return Ok(true);
    }
    let said = [output.stdout, output.stderr].concat();
    if String::from_utf8_lossy(&said).contains("404") {
        return Ok(false);
    }
    bail!(
        "cannot download {path} from this host's mirror; is the network up? apt says:\n{}",
        tail(&said)
    )
}

/// Returns the base address of a Debian mirror: `MAGPIE_DEBIAN_MIRROR`, or the one that the host's
/// apt uses.
fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var("MAGPIE_DEBIAN_MIRROR") {
        return Ok(mirror.trim_end_matches('/').to_string());
    }
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", format, "Created-By: Packages"])
        .output()
        .context(
            "cannot run apt-get: the lab takes kernels and packages from Debian; without apt use \
             --kernel FILE --config FILE",
        )?;
    let release = host_release();
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (uri, suite, component) = (words.next()?, words.next()?, words.next()?);
        let debian = release.as_ref().is_some_and(|r| r == suite) || suite == "stable";
        (debian && component == "main").then(|| uri.trim_end_matches('/').to_string())
    });
    found.context(
        "this host's apt knows no Debian mirror (it is not Debian, or its sources are unusual): \
         set MAGPIE_DEBIAN_MIRROR to the address of one, or use --kernel FILE --config FILE",
    )
}

/// Returns the code name of the host's Debian release, or `None` on other hosts.
pub fn host_release() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_string())
    };
    if field("ID")? == "debian" {
        field("VERSION_CODENAME")
    } else {
        None
    }
}

/// The text of a `sources.list`.
fn sources(mirror: &str, suites: &[&str]) -> String {
    let keys = ["gpg", "pgp"]
        .map(|end| format!("/usr/share/keyrings/debian-archive-keyring.{end}"))
        .into_iter()
        .find(|path| Path::new(path).exists());
    let options = keys
        .map(|path| format!("[signed-by={path}] "))
        .unwrap_or_default();
    suites
        .iter()
        .map(|suite| format!("deb {options}{mirror} {suite} main\n"))
        .collect()
}

/// The end of what a program printed, for an error.
fn tail(bytes: &[u8]) -> String {
    text::last_lines(&String::from_utf8_lossy(bytes), LINES_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::newest;

    #[test]
    fn the_newest_version_is_one_that_an_archive_has() {
        let table = "linux-perf |  6.1.176-1 | http://mirror/debian bookworm/main amd64 Packages\n\
                     linux-perf |  6.1.170-1 | http://mirror/debian bookworm/main amd64 Packages\n";
        assert_eq!(newest(table), Some("6.1.176-1"));
        assert_eq!(newest(""), None);
    }
}

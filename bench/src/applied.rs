//! Puts a candidate's settings into force in a running kernel before its turn, and takes them back
//! after it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::place::Place;
use crate::setting::Setting;

const SCHED: &str = "/sys/kernel/debug/sched";
const SYSCTL: &str = "/proc/sys";
const FEATURES: &str = "features";

/// Real time that reading or writing a setting may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    path: String,
    /// The file's text before.
    before: String,
    /// The text to write to have the old value back.
    undo: String,
}

/// Writes one setting.
///
/// # Errors
/// If the kernel has no such setting, with those that it has; or if it refuses the value.
fn apply_one(place: &mut dyn Place, setting: &Setting) -> Result<Applied> {
    let applied = match setting.name.as_str() {
        FEATURES => find_feature(place, &setting.value)?,
        name => find_file(place, name)?,
    };
    write(place, &applied.path, &setting.value).with_context(|| {
        format!(
            "Linux {} refuses the value `{}` of the setting `{}`",
            place.kernel(),
            setting.value,
            setting.name
        )
    })?;
    Ok(applied)
}

/// Finds the word of a feature of the kernel's scheduler, in the file of all features.
fn find_feature(place: &mut dyn Place, wanted: &str) -> Result<Applied> {
    let path = format!("{SCHED}/{FEATURES}");
    let before = place.read(&path)?;
    let bare = |word: &str| word.strip_prefix("NO_").unwrap_or(word).to_string();
    let known = before.split_whitespace();
    let Some(undo) = known.clone().find(|word| bare(word) == bare(wanted)) else {
        let known: Vec<String> = known.map(bare).collect();
        bail!(
            "Linux {} has no scheduler feature `{}`; it has {}, each with NO_ in front to switch \
             it off",
            place.kernel(),
            bare(wanted),
            known.join(", ")
        );
    };
    Ok(Applied {
        undo: undo.to_string(),
        before: before.clone(),
        path,
    })
}

/// Finds the file of any other setting, and the value in force.
fn find_file(place: &mut dyn Place, name: &str) -> Result<Applied> {
    let is_sysctl = name.contains('.');
    let path = match is_sysctl {
        true => format!("{SYSCTL}/{}", name.replace('.', "/")),
        false => format!("{SCHED}/{name}"),
    };
    for path in [format!("{path}/enabled"), path] {
        if succeeds(place, &["test", "-f", &path])? {
            let before = place.read(&path)?;
            return Ok(Applied {
                undo: current(&before).to_string(),
                before,
                path,
            });
        }
    }
    let (folder, what) = match is_sysctl {
        true => (format!("{SYSCTL}/kernel"), "sysctl"),
        false => (SCHED.to_string(), "scheduler setting"),
    };
    bail!(
        "Linux {} has no {what} `{name}`; it has {}",
        place.kernel(),
        known(place, &folder, is_sysctl)?
    )
}

/// Lists the writable files of a folder by the names that settings have.
fn known(place: &mut dyn Place, folder: &str, is_sysctl: bool) -> Result<String> {
    // Each CPU has its own files, of which one stands for all.
    let argv = ["find", folder, "-type", "f", "-perm", "-200"].map(String::from);
    let ran = place.run(&argv, LIMIT)?;
    let prefix = if is_sysctl { SYSCTL } else { folder };
    let names: BTreeSet<String> = ran
        .output
        .lines()
        .filter_map(|line| line.strip_prefix(prefix)?.strip_prefix('/'))
        .filter(|name| !is_sysctl || name.contains("sched"))
        .filter(|name| !name.contains("/cpu") || name.contains("/cpu0/"))
        .map(|name| match is_sysctl {
            true => name.replace('/', "."),
            false => name.strip_suffix("/enabled").unwrap_or(name).to_string(),
        })
        .collect();
    Ok(names.into_iter().collect::<Vec<_>>().join(", "))
}

/// Returns the value in force from the text of a file. Some files list all values and put the one
/// in force in parentheses: `full (lazy)`.
fn current(text: &str) -> &str {
    let in_parentheses = text
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(')'));
    in_parentheses.map_or(text, |(value, _)| value).trim()
}

/// Writes a value into a file of the kernel.
fn write(place: &mut dyn Place, path: &str, value: &str) -> Result<()> {
    let argv = ["sh", "-c", "printf '%s\\n' \"$1\" > \"$0\"", path, value].map(String::from);
    let ran = place.run(&argv, LIMIT)?;
    ensure!(
        ran.code == 0,
        "write `{value}` to {path}: {}",
        ran.output.trim()
    );
    Ok(())
}

/// Returns whether a command ends with exit code 0.
fn succeeds(place: &mut dyn Place, argv: &[&str]) -> Result<bool> {
    let argv: Vec<String> = argv.iter().map(|word| word.to_string()).collect();
    Ok(place.run(&argv, LIMIT)?.code == 0)
}

/// Puts all settings into force; none if one fails.
///
/// # Errors
/// If the kernel lacks a setting, with those that it has; or if it refuses a value.
pub fn apply(place: &mut dyn Place, settings: &[Setting]) -> Result<Vec<Applied>> {
    let mut applied = Vec::new();
    for setting in settings {
        match apply_one(place, setting) {
            Ok(one) => applied.push(one),
            Err(error) => {
                restore(place, &applied)?;
                return Err(error);
            }
        }
    }
    Ok(applied)
}

/// Puts the values back that were in force before, the last one first.
///
/// # Errors
/// If a file does not read as before: what is measured after it would be measured wrongly.
pub fn restore(place: &mut dyn Place, applied: &[Applied]) -> Result<()> {
    for one in applied.iter().rev() {
        write(place, &one.path, &one.undo).context("put a setting of the kernel back")?;
    }
    for one in applied {
        let first = applied.iter().find(|other| other.path == one.path);
        let before = first.map_or(&one.before, |first| &first.before);
        let now = place.read(&one.path)?;
        ensure!(
            now == *before,
            "{} was `{}` and is `{}` although it was put back; boot a guest of its own for this \
             setting",
            one.path,
            before.trim(),
            now.trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::place::Ran;
    use crate::setting::parse;

    /// A kernel whose settings are files of a map.
    struct Files(BTreeMap<String, String>);

    impl Files {
        fn new() -> Self {
            let file = |name: &str, text: &str| (format!("{SCHED}/{name}"), text.to_string());
            let mut files = BTreeMap::from([
                file("base_slice_ns", "1400000\n"),
                file("llc_balancing/enabled", "1\n"),
                file("preempt", "full (lazy) \n"),
                file("features", "PLACE_LAG NO_NEXT_BUDDY PREEMPT_SHORT \n"),
            ]);
            files.insert(
                "/proc/sys/kernel/sched_rt_runtime_us".into(),
                "950000\n".into(),
            );
            Self(files)
        }

        fn text(&self, name: &str) -> &str {
            &self.0[&format!("{SCHED}/{name}")]
        }
    }

    impl Place for Files {
        fn machine(&self) -> crate::provenance::Values {
            BTreeMap::new()
        }
        fn kernel(&self) -> String {
            "7.2.13".into()
        }
        fn run(&mut self, argv: &[String], _: Duration) -> Result<Ran> {
            let mut ran = Ran::default();
            let words: Vec<&str> = argv.iter().map(String::as_str).collect();
            match words.as_slice() {
                ["test", "-f", path] => ran.code = i32::from(!self.0.contains_key(*path)),
                ["find", folder, ..] => {
                    let names = self.0.keys().filter(|path| path.starts_with(folder));
                    ran.output = names.map(|path| format!("{path}\n")).collect();
                }
                ["sh", "-c", _, path, value] if path.ends_with(FEATURES) => {
                    let bare = value.trim_start_matches("NO_");
                    let text = &self.0[*path];
                    let words = text.split_whitespace().map(|word| {
                        match word.trim_start_matches("NO_") == bare {
                            true => *value,
                            false => word,
                        }
                    });
                    let text = words.collect::<Vec<_>>().join(" ") + " \n";
                    self.0.insert((*path).into(), text);
                }
                ["sh", "-c", _, path, "lazy"] => {
                    self.0.insert((*path).into(), "full (lazy) \n".into());
                }
                ["sh", "-c", _, path, "full"] => {
                    self.0.insert((*path).into(), "(full) lazy \n".into());
                }
                ["sh", "-c", _, _, "wrong"] => {
                    ran.code = 1;
                    ran.output = "sh: write error: Invalid argument".into();
                }
                ["sh", "-c", _, path, value] => {
                    self.0.insert((*path).into(), format!("{value}\n"));
                }
                _ => bail!("unknown command {argv:?}"),
            }
            Ok(ran)
        }
        fn read(&mut self, path: &str) -> Result<String> {
            self.0
                .get(path)
                .cloned()
                .with_context(|| format!("no {path}"))
        }
        fn start_scheduler(&mut self, _: &[String]) -> Result<()> {
            Ok(())
        }
        fn stop_scheduler(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn settings(text: &str) -> Vec<Setting> {
        parse(text).unwrap().0
    }

    #[test]
    fn settings_are_in_force_until_they_are_restored() {
        let mut kernel = Files::new();
        let before = kernel.0.clone();
        let wanted = settings(
            "base_slice_ns=3000000, llc_balancing=0, preempt=full, features=NO_PREEMPT_SHORT, \
             features=NEXT_BUDDY, base_slice_ns=5, kernel.sched_rt_runtime_us=-1",
        );
        let applied = apply(&mut kernel, &wanted).unwrap();
        assert_eq!(kernel.text("base_slice_ns"), "5\n");
        assert_eq!(kernel.text("llc_balancing/enabled"), "0\n");
        assert_eq!(kernel.text("preempt"), "(full) lazy \n");
        assert_eq!(
            kernel.text("features"),
            "PLACE_LAG NEXT_BUDDY NO_PREEMPT_SHORT \n"
        );
        assert_eq!(kernel.0["/proc/sys/kernel/sched_rt_runtime_us"], "-1\n");
        restore(&mut kernel, &applied).unwrap();
        assert_eq!(kernel.0, before);
    }

    #[test]
    fn a_setting_that_the_kernel_lacks_is_told_with_those_it_has_and_nothing_stays() {
        let mut kernel = Files::new();
        let before = kernel.0.clone();
        let mut error = |text: &str| {
            let error = apply(&mut kernel, &settings(text)).unwrap_err();
            assert_eq!(kernel.0, before, "{text}");
            format!("{error:#}")
        };
        assert_eq!(
            error("base_slice_ns=5,slice=5"),
            "Linux 7.2.13 has no scheduler setting `slice`; it has base_slice_ns, features, \
             llc_balancing, preempt"
        );
        assert!(
            error("features=NO_HRTICK").contains("it has PLACE_LAG, NEXT_BUDDY, PREEMPT_SHORT")
        );
        assert!(error("kernel.x=1").contains("no sysctl `kernel.x`; it has kernel.sched_rt"));
        let refused = error("base_slice_ns=5,llc_balancing=wrong");
        assert!(refused.contains("refuses the value `wrong`") && refused.contains("Invalid"));
    }

    #[test]
    fn a_setting_that_does_not_come_back_is_an_error() {
        let mut kernel = Files::new();
        let mut applied = apply(&mut kernel, &settings("base_slice_ns=5")).unwrap();
        applied[0].undo = "6".into();
        let error = restore(&mut kernel, &applied).unwrap_err().to_string();
        assert!(error.contains("was `1400000` and is `6`"), "{error}");
    }
}

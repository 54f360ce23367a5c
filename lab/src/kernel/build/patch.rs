//! Patches: reads diffs and mailboxes, applies them, and says which hunk of which file failed.
//!
//! A patch applies only where all of its context is found, as with `git am`: `patch` runs without
//! fuzz, but lines may have moved. It works on copies of the files that the patches name, so a
//! patch that fails leaves the source as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use mailparse::{MailHeaderMap, ParsedMail};

/// A patch: one diff file, or one mail of a mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// Name of the file; for a mail, with its subject.
    pub name: String,
    diff: Vec<u8>,
    files: Vec<FileDiff>,
}

/// The changes of a patch to one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct FileDiff {
    /// Path before the patch; `None` if the patch makes the file.
    old: Option<PathBuf>,
    /// Path after the patch; `None` if the patch removes the file.
    new: Option<PathBuf>,
    /// The lines `@@ ... @@` of the hunks.
    hunks: Vec<String>,
}

/// The files that patches change, with their contents after the patches. `None` is a file that the
/// patches remove.
pub type Patched = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Reads the patches of a diff or of a mailbox. Mails without a diff, such as cover letters and
/// replies, are left out. A series whose subjects are numbered comes in the order of the numbers.
///
/// # Errors
/// If the file cannot be read or has no patch.
pub fn read(path: &Path) -> Result<Vec<Patch>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read patch {}", path.display()))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let patches = parse(&name, &bytes)
        .with_context(|| format!("cannot read the patch {}", path.display()))?;
    ensure!(
        !patches.is_empty(),
        "{} has no patch: give a unified diff, or a mailbox as `git format-patch --stdout` and b4 \
         write it",
        path.display()
    );
    Ok(patches)
}

/// Reads a diff, or the mails of a mailbox that have one, sorted by number if all have a number.
fn parse(name: &str, bytes: &[u8]) -> Result<Vec<Patch>> {
    let mails = mails(bytes);
    if mails.is_empty() {
        return Ok(Patch::new(name.to_string(), bytes.to_vec())?
            .into_iter()
            .collect());
    }
    let mut numbered = Vec::new();
    for mail in mails {
        let mail = mailparse::parse_mail(mail).context("a mail is not valid")?;
        let subject = mail.headers.get_first_value("Subject").unwrap_or_default();
        let name = format!("{name}: {subject}");
        if let Some(patch) = Patch::new(name, text_of(&mail)?)? {
            numbered.push((number(&subject), patch));
        }
    }
    if numbered.iter().all(|(number, _)| number.is_some()) {
        numbered.sort_by_key(|(number, _)| *number);
    }
    Ok(numbered.into_iter().map(|(_, patch)| patch).collect())
}

/// The mails of a mailbox, without the lines `From ...` between them; none if it is no mailbox.
fn mails(bytes: &[u8]) -> Vec<&[u8]> {
    let mut starts = Vec::new();
    let mut at = 0;
    let mut is_after_blank = true;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if is_after_blank && line.starts_with(b"From ") {
            starts.push((at, at + line.len()));
        }
        is_after_blank = line.trim_ascii().is_empty();
        at += line.len();
        if starts.is_empty() && !is_after_blank {
            break; // A diff, maybe with a description.
        }
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start);
    starts
        .iter()
        .zip(ends.chain([bytes.len()]))
        .map(|((_, body), end)| &bytes[*body..end])
        .collect()
}

/// The text of a mail; that of its parts one after the other, if it has attachments.
fn text_of(mail: &ParsedMail) -> Result<Vec<u8>> {
    if mail.subparts.is_empty() {
        return mail.get_body_raw().context("a mail cannot be decoded");
    }
    let parts = mail.subparts.iter().map(text_of);
    Ok(parts.collect::<Result<Vec<_>>>()?.concat())
}

/// The 3 of a subject `[PATCH v2 3/16] ...`.
fn number(subject: &str) -> Option<u32> {
    let (tag, _) = subject.strip_prefix('[')?.split_once(']')?;
    let (number, _) = tag.split_whitespace().last()?.split_once('/')?;
    number.parse().ok()
}

impl Patch {
    /// Returns `None` if the text has no diff.
    fn new(name: String, diff: Vec<u8>) -> Result<Option<Patch>> {
        let files = files(&String::from_utf8_lossy(&diff)).with_context(|| name.clone())?;
        Ok((!files.is_empty()).then_some(Patch { name, diff, files }))
    }

    /// The paths that the patch reads or writes.
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().flat_map(|f| f.old.iter().chain(&f.new))
    }
}

/// Returns the changes of a diff, file by file.
fn files(diff: &str) -> Result<Vec<FileDiff>> {
    let mut files: Vec<FileDiff> = Vec::new();
    // Lines that are left in the current hunk, of the old and of the new file.
    let mut left = (0_u32, 0_u32);
    // A file that `diff --git` began, until `---` says its names.
    let mut is_begun = false;
    for line in diff.lines() {
        if left != (0, 0) {
            match line.bytes().next() {
                Some(b'-') => left.0 = left.0.saturating_sub(1),
                Some(b'+') => left.1 = left.1.saturating_sub(1),
                Some(b'\\') => {}
                _ => left = (left.0.saturating_sub(1), left.1.saturating_sub(1)),
            }
        } else if line.starts_with("diff --git ") {
            files.push(FileDiff::default());
            is_begun = true;
        } else if let Some(name) = line.strip_prefix("rename from ").filter(|_| is_begun) {
            last(&mut files)?.old = Some(checked(name)?);
        } else if let Some(name) = line.strip_prefix("rename to ").filter(|_| is_begun) {
            last(&mut files)?.new = Some(checked(name)?);
        } else if line == "GIT binary patch" {
            bail!("it changes a binary file, which `patch` cannot do");
        } else if let Some(name) = line.strip_prefix("--- ") {
            let Some(old) = stripped(name) else { continue };
            if !is_begun {
                files.push(FileDiff::default());
            }
            is_begun = false;
            last(&mut files)?.old = old.map(checked).transpose()?;
        } else if let Some(name) = line.strip_prefix("+++ ") {
            let Some(new) = stripped(name) else { continue };
            last(&mut files)?.new = new.map(checked).transpose()?;
        } else if let Some(counts) = line.strip_prefix("@@ -").and_then(counts)
            && let Some(file) = files.last_mut()
        {
            left = counts;
            file.hunks.push(line.to_string());
        }
    }
    // Drop what is no diff: a line `---` of the prose, or a change of the mode only.
    files.retain(|file| (file.old.is_some() || file.new.is_some()) && is_change(file));
    Ok(files)
}

/// Does it change contents or the name?
fn is_change(file: &FileDiff) -> bool {
    !file.hunks.is_empty() || file.old != file.new
}

fn last(files: &mut [FileDiff]) -> Result<&mut FileDiff> {
    files
        .last_mut()
        .context("a diff begins with +++, before any ---")
}

/// `kernel/sched/fair.c` of `a/kernel/sched/fair.c<TAB>date`; the inner `None` stands for
/// `/dev/null`, the outer one for a name without a folder, which is prose.
fn stripped(name: &str) -> Option<Option<&str>> {
    let name = name.split('\t').next().unwrap_or(name).trim_end();
    if name == "/dev/null" {
        return Some(None);
    }
    let (_, rest) = name.split_once('/')?;
    Some(Some(rest))
}

/// A path of a patch, which must stay inside the source.
fn checked(name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(name);
    let is_inside = path.components().all(|c| matches!(c, Component::Normal(_)));
    ensure!(is_inside, "the path {name} leads out of the source");
    Ok(path)
}

/// The numbers of old and new lines in `12,7 +12,9 @@ function`.
fn counts(text: &str) -> Option<(u32, u32)> {
    let (ranges, _) = text.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let count = |range: &str| match range.split_once(',') {
        Some((_, count)) => count.parse().ok(),
        None => Some(1),
    };
    Some((count(old)?, count(new)?))
}

/// Applies patches, one after the other, to the files of `source`, which stay as they are.
///
/// # Errors
/// With the files and hunks that failed, if a patch does not apply.
pub fn apply(patches: &[Patch], source: &Path, source_name: &str) -> Result<Patched> {
    let paths: BTreeSet<&PathBuf> = patches.iter().flat_map(Patch::paths).collect();
    let stage = tempfile::tempdir().context("cannot create a temporary folder")?;
    for path in &paths {
        let (from, to) = (source.join(path), stage.path().join(path));
        if from.is_file() {
            let folder = to.parent().context("a file has a folder")?;
            fs::create_dir_all(folder)?;
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    for (done, patch) in patches.iter().enumerate() {
        let failures = apply_one(patch, stage.path())?;
        ensure!(
            failures.is_empty(),
            "the patch {} does not apply to {source_name}:\n  {}\n{done} of {} patches applied \
             before it. Rebase it on this source, or build the source that it was made for",
            patch.name,
            failures.join("\n  "),
            patches.len(),
        );
    }
    let content = |path: &PathBuf| {
        let staged = stage.path().join(path);
        let content = staged.is_file().then(|| fs::read(&staged)).transpose();
        let content = content.with_context(|| format!("cannot read {}", staged.display()))?;
        Ok((path.clone(), content))
    };
    paths.into_iter().map(content).collect()
}

/// Applies a patch to the files in `folder`. Returns what failed.
fn apply_one(patch: &Patch, folder: &Path) -> Result<Vec<String>> {
    let lacks = |file: &&FileDiff| file.old.as_ref().is_some_and(|p| !folder.join(p).is_file());
    let missing: Vec<String> = patch
        .files
        .iter()
        .filter(lacks)
        .filter_map(|file| file.old.as_ref())
        .map(|path| format!("{}: the source has no such file", path.display()))
        .collect();
    if !missing.is_empty() {
        return Ok(missing);
    }
    let mut child = Command::new("patch")
        .args(["-p1", "--batch", "--forward", "--fuzz=0"])
        .args(["--no-backup-if-mismatch", "--reject-file=-"])
        .current_dir(folder)
        .env("LC_ALL", "C")
        .env_remove("POSIXLY_CORRECT")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run `patch`; install it with `apt-get install patch`")?;
    let mut input = child.stdin.take().context("patch has an input")?;
    // A patch that is not valid makes `patch` end before it has read everything.
    let diff = patch.diff.clone();
    let writer = std::thread::spawn(move || input.write_all(&diff));
    let output = child.wait_with_output().context("cannot run patch")?;
    let _ = writer.join();
    if output.status.success() {
        return Ok(Vec::new());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let mut failures = failures(&said, &patch.files);
    if failures.is_empty() {
        let errors = String::from_utf8_lossy(&output.stderr);
        failures.push(format!("patch says: {}{}", said.trim(), errors.trim()));
    }
    Ok(failures)
}

/// The files and hunks of which `patch` says that they failed.
fn failures(said: &str, files: &[FileDiff]) -> Vec<String> {
    let mut failures = Vec::new();
    let mut path = "";
    let mut is_applied_before = false;
    for line in said.lines() {
        if let Some(rest) = line.strip_prefix("patching file ") {
            (path, is_applied_before) = (rest.split(" (").next().unwrap_or(rest), false);
        } else if line.starts_with("Reversed (or previously applied) patch detected") {
            is_applied_before = true;
            failures.push(format!("{path}: the source has this change already"));
        } else if let Some(rest) = line.strip_prefix("Hunk #")
            && rest.contains(" FAILED")
            && !is_applied_before
        {
            let number: usize = rest
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(1);
            let path_of = |file: &FileDiff| file.new.clone().or(file.old.clone());
            let file = files.iter().find(|f| path_of(f) == Some(path.into()));
            let hunks = file.map_or(&[][..], |file| &file.hunks);
            let header = hunks.get(number - 1).map_or("", String::as_str);
            let count = hunks.len();
            failures.push(format!("{path}: hunk {number} of {count} failed: {header}"));
        }
    }
    failures
}

#[cfg(test)]
#[path = "patch_tests.rs"]
mod tests;

//! The documentation against the tree: links resolve, every page is reached from the README, the
//! targets and kernels that the README names exist, and code and pages use the glossary's words.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use magpie_lab::{git, kernel};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Words of our own for what has a name in the field, and that name. Code and pages do without
/// them.
const PRIVATE_WORDS: &[(&str, &str)] = &[
    ("cache domain", "LLC"),
    ("hyperthread", "SMT"),
    ("run queue", "runqueue"),
    ("time slice", "slice"),
];

fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    folder.expect("the crate is a folder of the tree").into()
}

/// The text of every tracked file with one of these extensions, by path from the root.
fn sources(extensions: &[&str]) -> BTreeMap<PathBuf, String> {
    let has_extension = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    };
    let files = git::files(&root()).expect("git lists the files");
    files
        .into_iter()
        .filter(|path| has_extension(path))
        // A file that is deleted but not committed is still listed.
        .filter_map(|path| {
            let text = std::fs::read_to_string(root().join(&path)).ok()?;
            Some((path, text))
        })
        .collect()
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("the README is there")
}

/// The targets of a page's links and pictures.
fn links(text: &str) -> impl Iterator<Item = String> {
    Parser::new_ext(text, Options::ENABLE_TABLES).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.to_string())
        }
        _ => None,
    })
}

/// `folder/link` without `.` and `..`.
fn resolve(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for component in folder.join(link).components() {
        match component {
            Component::ParentDir => assert!(path.pop(), "{link} leaves the tree"),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The files that a page links to, and the heading of each link, empty if it names none.
fn local_links(page: &Path, text: &str) -> impl Iterator<Item = (PathBuf, String)> {
    let folder = page.parent().expect("a page is in a folder");
    links(text)
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        .map(move |link| {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let file = match file {
                "" => page.to_path_buf(),
                file => resolve(folder, file),
            };
            (file, heading.to_string())
        })
}

/// The anchors that GitHub makes of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(|h| anchor(&h))),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.collect()
}

#[test]
fn relative_links_resolve() {
    let pages = sources(&["md"]);
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for (file, heading) in local_links(page, text) {
            let target = pages.get(&file).map_or("", String::as_str);
            let has_heading = heading.is_empty() || anchors(target).contains(&heading);
            if !root().join(&file).exists() || !has_heading {
                broken.push(format!("{}: {}#{heading}", page.display(), file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// The chapters of the book, which is no page itself.
const CHAPTERS: &str = "docs/SUMMARY.md";

/// A page of `docs/` is linked from the README itself, one further down from the README of its
/// folder. Each is a chapter of the book.
#[test]
fn every_page_is_linked() {
    let pages = sources(&["md"]);
    let linked_from = |index: &Path| -> BTreeSet<PathBuf> {
        let text = pages.get(index).map_or("", String::as_str);
        local_links(index, text).map(|(file, _)| file).collect()
    };
    let chapters = linked_from(Path::new(CHAPTERS));
    let is_page = |page: &&PathBuf| page.starts_with("docs") && *page != Path::new(CHAPTERS);
    for page in pages.keys().filter(is_page) {
        assert!(
            chapters.contains(page),
            "{CHAPTERS} does not have {}",
            page.display()
        );
        let folder = page.parent().expect("a page is in a folder");
        let is_index = page.ends_with("README.md");
        let index = match folder == Path::new("docs") || is_index {
            true => PathBuf::from("README.md"),
            false => folder.join("README.md"),
        };
        let linked = linked_from(&index);
        assert!(
            linked.contains(page) || (is_index && linked.contains(folder)),
            "{} does not link {}",
            index.display(),
            page.display()
        );
    }
}

#[test]
fn make_targets_of_the_readme_exist() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("a Makefile");
    let targets: BTreeSet<_> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target)
        .collect();
    let readme = readme();
    // As a command and not as a verb: behind a backtick or a prompt.
    let named: BTreeSet<_> = ["`make ", "$ make ", "# make "]
        .iter()
        .flat_map(|start| readme.split(start).skip(1))
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next())
        .collect();
    for target in ["run", "test", "build", "install", "uninstall", "setup"] {
        assert!(named.contains(target), "README does not name make {target}");
    }
    for target in named {
        assert!(
            targets.contains(target),
            "README names make {target}, which the Makefile does not have"
        );
    }
}

/// The README says on which kernels scx_magpie is tested: those of the lock file, all of them.
#[test]
fn kernels_of_the_readme_are_those_that_are_tested() {
    let lock = std::fs::read_to_string(root().join("kernels.lock")).expect("a lock file");
    let locked: Vec<_> = lock
        .split("[[kernel]]")
        .skip(1)
        .filter_map(|entry| entry.split('"').nth(1))
        .collect();
    assert_eq!(locked, kernel::SERIES, "kernels.lock and the lab's series");
    let (last, others) = locked.split_last().expect("a kernel is locked");
    let sentence = format!("tested on {} and {last}", others.join(", "));
    let readme = readme().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        readme.contains(&sentence),
        "README does not say {sentence:?}"
    );
}

/// Whether the `length` bytes at `at` are a word of their own, or one with a plural s.
fn is_word(text: &str, at: usize, length: usize) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let after = text[at + length..].trim_start_matches('s');
    !is_letter(text[..at].chars().next_back()) && !is_letter(after.chars().next())
}

/// Whether a text has a word, or words, in any case, also as plural or joined by underscores.
fn has_word(text: &str, word: &str) -> bool {
    let mut matches = text.match_indices(word);
    matches.any(|(at, found)| is_word(text, at, found.len()))
}

/// A text in lower case, with identifiers as words and each space single.
fn readable(text: &str) -> String {
    let words = text.replace(['_', '-'], " ").to_lowercase();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The terms of the glossary: the first column of its tables.
fn glossary() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/glossary.md")).expect("a glossary");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let terms = rows.filter_map(|row| row.split(" |").next());
    terms
        .filter(|term| *term != "term")
        .flat_map(|terms| terms.split(", ").map(readable).collect::<Vec<_>>())
        .collect()
}

#[test]
fn every_term_of_the_glossary_is_used_and_defined_once() {
    let mut sources = sources(&["rs", "c", "h", "md"]);
    sources.remove(Path::new("docs/glossary.md"));
    let text: String = sources.values().map(|text| readable(text) + "\n").collect();
    let terms = glossary();
    assert!(terms.len() > 60, "terms: {terms:?}");
    for (at, term) in terms.iter().enumerate() {
        assert!(has_word(&text, term), "{term:?} is used nowhere");
        assert!(!terms[..at].contains(term), "{term:?} is defined twice");
    }
}

#[test]
fn the_scheduler_has_no_private_words() {
    let folder = Path::new("scheduler/src/bpf");
    let files = sources(&["c", "h"]);
    for (file, text) in files.iter().filter(|(file, _)| file.starts_with(folder)) {
        let text = readable(text);
        for (private, known) in PRIVATE_WORDS {
            assert!(
                !has_word(&text, &readable(private)),
                "{}: say {known:?}, not {private:?}",
                file.display()
            );
        }
    }
}

//! The book is built from the tree, and each link of its pages leads to a page, or a place on one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use html5gum::{Token, Tokenizer};
use mdbook_driver::MDBook;
use walkdir::WalkDir;

/// The anchors that a page offers to links, and the links of the page.
#[derive(Default)]
struct Page {
    ids: BTreeSet<String>,
    links: BTreeSet<String>,
}

fn parse(html: &str) -> Page {
    let mut page = Page::default();
    for Ok(token) in Tokenizer::new(html) {
        let Token::StartTag(tag) = token else {
            continue;
        };
        for (name, value) in tag.attributes {
            let value = String::from_utf8_lossy(&value).into_owned();
            match &**name {
                b"id" | b"name" => page.ids.insert(value),
                b"href" | b"src" => page.links.insert(value),
                _ => false,
            };
        }
    }
    page
}

/// `folder/link` without `.` and `..`; none if it leaves the book.
fn resolve(folder: &Path, link: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for component in folder.join(link).components() {
        match component {
            Component::ParentDir if !path.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            other => path.push(other),
        }
    }
    Some(path)
}

#[test]
fn each_link_leads_somewhere() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut book = MDBook::load(tree.expect("the crate is a folder of the tree")).expect("a book");
    book.config.build.build_dir = folder.path().into();
    book.build().expect("the book is built");

    let files = WalkDir::new(&folder).into_iter();
    let files = files.map(|file| file.expect("the book can be read").into_path());
    let pages: BTreeMap<PathBuf, Page> = files
        .filter(|file| {
            file.extension()
                .is_some_and(|extension| extension == "html")
        })
        .map(|file| {
            let html = fs::read_to_string(&file).expect("a page");
            let name = file.strip_prefix(&folder).expect("a file of the book");
            (name.into(), parse(&html))
        })
        .collect();
    assert!(pages.contains_key(Path::new("mechanisms/steal.html")));

    let mut followed = 0;
    let mut broken = Vec::new();
    // The page for what is not found names everything from the root of a server.
    for (name, page) in pages.iter().filter(|(name, _)| !name.ends_with("404.html")) {
        let here = name.parent().expect("a page is in a folder");
        for link in page.links.iter().filter(|link| !link.contains(':')) {
            let (file, id) = link.split_once('#').unwrap_or((link, ""));
            let file = match file {
                "" => Some(name.clone()),
                file => resolve(here, file),
            };
            let exists = file.is_some_and(|file| match pages.get(&file) {
                Some(page) => id.is_empty() || page.ids.contains(id),
                None => folder.path().join(file).is_file(),
            });
            followed += 1;
            if !exists {
                broken.push(format!("{}: {link}", name.display()));
            }
        }
    }
    assert!(followed > 100, "only {followed} links");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

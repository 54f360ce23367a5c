//! Sentences of comments and of the README that name other places of the tree, against those
//! places: the order of the BPF side's files, the one file that inserts into queues, the
//! capabilities.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

fn root() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    folder.expect("the crate is a folder of the tree").into()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("a file of the tree")
}

/// The code of each file of the BPF side without comments, by its path below `scheduler/src/bpf/`.
fn bpf_side() -> BTreeMap<String, String> {
    let folder = root().join("scheduler/src/bpf");
    let files = WalkDir::new(&folder).into_iter();
    let files = files.map(|entry| entry.expect("the folder can be read"));
    files
        .filter(|entry| entry.file_type().is_file())
        .map(|entry| {
            let name = entry.path().strip_prefix(&folder).expect("below it");
            let text = fs::read_to_string(entry.path()).expect("a source file");
            (name.to_string_lossy().into_owned(), without_comments(&text))
        })
        .collect()
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_string();
    let rest = parts.filter_map(|part| part.split_once("*/"));
    rest.fold(first, |code, (_, after)| code + after)
}

/// The files that `main.bpf.c` includes, in its order.
fn included() -> Vec<String> {
    let main = read("scheduler/src/bpf/main.bpf.c");
    let lines = main.lines();
    let names = lines.filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    names.map(String::from).collect()
}

/// The list at the top of `main.bpf.c` names the folder `portable/` in place of its files.
#[test]
fn the_list_of_the_bpf_side_is_the_order_of_its_includes() {
    let main = read("scheduler/src/bpf/main.bpf.c");
    let after = main.split_once("Read in this order:\n *\n");
    let list = after.and_then(|(_, rest)| rest.split_once("\n *\n"));
    let (list, _) = list.expect("a list, which ends with an empty line");
    let listed: Vec<&str> = list
        .lines()
        .filter_map(|line| line.trim_start_matches([' ', '*']).split(' ').next())
        .collect();
    let mut files = included();
    for file in &mut files {
        if file.starts_with("portable/") {
            *file = "portable/".into();
        }
    }
    files.dedup();
    assert_eq!(listed, files, "the list and the includes of main.bpf.c");
}

#[test]
fn every_file_of_the_bpf_side_is_included_once() {
    let files = included();
    let once: BTreeSet<&String> = files.iter().collect();
    assert_eq!(once.len(), files.len(), "{files:?}");
    let sources = bpf_side();
    let all: BTreeSet<&String> = sources
        .keys()
        // The portable headers include portable.h themselves.
        .filter(|name| !["main.bpf.c", "portable/portable.h"].contains(&name.as_str()))
        .collect();
    assert_eq!(once, all, "the includes of main.bpf.c and the files");
}

/// Whether a text declares a function that it does not define: a statement that begins in the first
/// column, has arguments, and ends without a body.
fn declares_a_function(code: &str) -> bool {
    let is_start = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if !is_start(line) || line.starts_with("extern ") {
            continue;
        }
        let mut statement = line.to_string();
        while !statement.contains([';', '{']) {
            statement += lines.next().unwrap_or(";");
        }
        let end = statement.find([';', '{']).unwrap_or_default();
        let (head, rest) = statement.split_at(end);
        if rest.starts_with(';') && head.ends_with(')') && !head.contains('=') {
            return true;
        }
    }
    false
}

/// A file can use a later one only through a declaration, since all are one translation unit.
#[test]
fn one_file_of_the_bpf_side_declares_functions_of_later_ones() {
    let sources = bpf_side();
    let mut declaring = sources.iter().filter(|(_, code)| declares_a_function(code));
    let (name, _) = declaring.next().expect("the search needs functions");
    assert_eq!(name, "portable/placement.h");
    assert_eq!(declaring.next().map(|(name, _)| name), None);
    assert!(declares_a_function(
        "\nstatic int later(u32 slot,\n\t\tu32 i);\n"
    ));
}

/// The functions of the kernel that insert into a queue by deadline, and the one function that
/// advertises a queue, are called in `queue/queue.bpf.h` only.
#[test]
fn one_file_inserts_into_queues_and_advertises_them() {
    for (file, code) in bpf_side() {
        for call in [
            "scx_bpf_dsq_insert_vtime(",
            "scx_bpf_dsq_move_vtime(",
            " set_overloaded(",
            "\tset_overloaded(",
        ] {
            let is_definition = file == "queue/overloaded.bpf.h";
            assert!(
                !code.contains(call) || is_definition || file == "queue/queue.bpf.h",
                "{file} calls {}",
                call.trim()
            );
        }
    }
    let queue = &bpf_side()["queue/queue.bpf.h"];
    assert!(queue.contains("scx_bpf_dsq_insert_vtime("), "{queue}");
}

/// The README names the capabilities that the service keeps. A test in a virtual machine runs the
/// scheduler with these alone, and without each of them.
#[test]
fn the_readme_names_the_capabilities_of_the_service() {
    let unit = read("packaging/scx_magpie.service");
    let kept = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .expect("a bounding set");
    let names: Vec<String> = kept
        .split_whitespace()
        .map(|name| format!("`{name}`"))
        .collect();
    let sentence = format!("of its capabilities, {} are enough", names.join(" and "));
    assert!(read("README.md").contains(&sentence), "{sentence}");
}

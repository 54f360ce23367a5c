//! The modules of a crate are in layers: none imports, over any number of others, itself. A circle
//! would make the files in it one unit that is read and changed as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use walkdir::WalkDir;

/// The modules that each module imports. A module's name is its path below `src/`.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The code of each module of a crate, without its unit tests.
fn modules(krate: &str) -> BTreeMap<String, String> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = tree.expect("the crate is a folder of the tree").join(krate);
    let root = root.join("src");
    let mut modules = BTreeMap::new();
    for entry in WalkDir::new(&root) {
        let path = entry.expect("src/ can be read").into_path();
        let name = path.strip_prefix(&root).expect("a file below src/");
        let name = name.to_string_lossy();
        let is_module = |name: &&str| *name != "lib" && !name.ends_with("_tests");
        if let Some(name) = name.strip_suffix(".rs").filter(is_module) {
            let text = fs::read_to_string(&path).expect("a source file");
            let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
            modules.insert(name.to_string(), code.to_string());
        }
    }
    modules
}

/// The paths that the `use` declarations of a module name, without braces.
fn use_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let code = code.replace("\npub use ", "\nuse ");
    for declaration in code.split("\nuse ").skip(1) {
        let Some((tree, _)) = declaration.split_once(';') else {
            continue;
        };
        expand("", &tree.split_whitespace().collect::<String>(), &mut paths);
    }
    paths
}

/// Adds the paths of `a::{b, c::{d, e}}` behind `prefix`.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((start, rest)) = tree.split_once('{') else {
        paths.push(format!("{prefix}{tree}"));
        return;
    };
    let (mut depth, mut begin) = (0, 0);
    for (at, character) in rest.char_indices() {
        match character {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                if begin < at {
                    expand(&format!("{prefix}{start}"), &rest[begin..at], paths);
                }
                begin = at + 1;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// The module that a path names something of, seen from another one; none for another crate.
fn target(from: &str, path: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let parent = from.rsplit_once('/').map_or("", |(parent, _)| parent);
    let (start, rest) = path.split_once("::")?;
    let base = match start {
        "crate" => "",
        "self" => from,
        "super" => parent,
        _ => return None,
    };
    let mut module = base.to_string();
    for name in rest.split("::") {
        let longer = format!("{module}/{name}")
            .trim_start_matches('/')
            .to_string();
        if !modules.contains_key(&longer) {
            break;
        }
        module = longer;
    }
    assert!(!module.is_empty(), "{from}: import {path} from its module");
    Some(module)
}

fn imports(krate: &str) -> Imports {
    let modules = modules(krate);
    let of = |name: &String, code: &String| {
        let paths = use_paths(code);
        let used = paths.iter().filter_map(|path| target(name, path, &modules));
        // A module reaches its children without a `use`.
        let children = modules.keys().filter(|other| {
            let child = other.strip_prefix(name.as_str());
            let child = child.and_then(|rest| rest.strip_prefix('/'));
            child.is_some_and(|child| code.contains(&format!(" {child}::")))
        });
        let mut found: BTreeSet<_> = used.chain(children.cloned()).collect();
        found.remove(name);
        found
    };
    modules.iter().map(|(n, c)| (n.clone(), of(n, c))).collect()
}

/// Checks a crate, of which two imports are known, so that a test that reads none does not pass.
fn assert_layered(krate: &str, known: [(&str, &str); 2]) {
    let mut left = imports(krate);
    for (from, to) in known {
        assert!(left[from].contains(to), "{krate}: {from} imports {to}");
    }
    // Take away the modules that import none of those left, until there is no such module.
    loop {
        let names: BTreeSet<_> = left.keys().cloned().collect();
        left.retain(|_, imported| !imported.is_disjoint(&names));
        if left.len() == names.len() {
            break;
        }
    }
    assert!(left.is_empty(), "{krate}: in or above a circle: {left:#?}");
}

#[test]
fn no_module_of_the_lab_imports_itself_over_others() {
    assert_layered("lab", [("guest", "boot"), ("qemu", "qemu/command_line")]);
}

#[test]
fn no_module_of_the_bench_imports_itself_over_others() {
    assert_layered("bench", [("verdicts", "relation"), ("place", "candidate")]);
}

#[test]
fn no_module_of_the_observer_imports_itself_over_others() {
    assert_layered(
        "observe",
        [("sample", "scheduler"), ("export", "export/http")],
    );
}

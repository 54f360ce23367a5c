//! Every portable header compiles alone, without a warning, with every C compiler that is here: the
//! order in which others include them does not matter, and nothing in them needs the kernel.

use magpie_native::{CC, PORTABLE};
use std::process::Command;

#[test]
fn every_header_stands_alone() {
    let headers: Vec<_> = std::fs::read_dir(PORTABLE)
        .expect("the folder of the portable headers")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "h"))
        .collect();
    assert!(headers.len() >= 4, "{headers:?}");

    for compiler in [CC, "clang-19", "clang", "gcc"] {
        for header in &headers {
            // Included, since a compiler complains of what a main file does not use.
            let mut command = Command::new(compiler);
            command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-include"]);
            let Ok(output) = command.arg(header).args(["-xc", "/dev/null"]).output() else {
                assert_ne!(compiler, CC, "the compiler that built this test is gone");
                continue;
            };
            assert!(
                output.status.success(),
                "{compiler} {}:\n{}",
                header.display(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

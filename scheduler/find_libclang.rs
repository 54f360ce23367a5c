// Part of build.rs, and of the bench, which builds other schedulers: where bindgen finds libclang.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the libclang that came with `clang`, for `LIBCLANG_PATH`.
///
/// Returns nothing if libclang is not in the usual place: bindgen's own search then decides, and
/// says where it looked.
pub fn find_libclang(clang: &Path) -> Option<PathBuf> {
    let output = Command::new(clang)
        .arg("-print-resource-dir")
        .output()
        .ok()?;
    let resources = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());

    // <prefix>/lib/clang/<version>: libclang.so is in <prefix>/lib.
    let folder = resources.ancestors().nth(2)?;
    let holds_libclang = fs::read_dir(folder).ok()?.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libclang") && name.contains(".so") && !name.contains("-cpp")
    });
    holds_libclang.then(|| folder.to_path_buf())
}

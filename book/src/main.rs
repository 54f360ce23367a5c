//! The pages of `docs/` as a book of HTML pages: `docs/SUMMARY.md` has its chapters, `book.toml` its
//! settings. This is mdBook as a library, so that a build needs no program but cargo.

use anyhow::{Context, Result};
use mdbook_driver::MDBook;

fn main() -> Result<()> {
    let book = MDBook::load(".").context("run this in the source tree, which has book.toml")?;
    book.build()?;
    let first_page = book.build_dir_for("html").join("index.html");
    println!("The book is in {}", first_page.display());
    Ok(())
}

//! The tables in a page of Markdown that are made of result files.
//!
//! ```text
//! <!-- table: NAME -->
//! ... what `magpie bench show --docs NAME.json.gz` prints ...
//! <!-- end -->
//! ```

use std::path::Path;

use anyhow::{Context, Result, bail};

const END: &str = "<!-- end -->";

/// The name of the table that is made of a result file: the file's name without its extensions.
pub fn table_name(file: &Path) -> Result<String> {
    let name = file.file_name().map(|name| name.to_string_lossy());
    let name = name.with_context(|| format!("{} has no file name", file.display()))?;
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    Ok(name.strip_suffix(".json").unwrap_or(name).to_string())
}

/// The page with `table` between the markers of this name.
///
/// # Errors
/// If the page does not have the markers exactly once.
pub fn replace_table(page: &str, name: &str, table: &str) -> Result<String> {
    let start = format!("<!-- table: {name} -->\n");
    let Some((before, rest)) = page.split_once(&start) else {
        bail!("the page has no line `{}`", start.trim_end());
    };
    let (old, after) = rest
        .split_once(END)
        .with_context(|| format!("the page has no `{END}` behind `{}`", start.trim_end()))?;
    if after.contains(&start) || old.contains("<!-- table: ") {
        bail!(
            "in the page, `{}` stands twice or `{END}` is missing behind it",
            start.trim_end()
        );
    }
    Ok(format!("{before}{start}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "# A\n<!-- table: a -->\nold\n<!-- end -->\ntext\n<!-- table: b -->\n<!-- end -->\n";

    #[test]
    fn a_table_replaces_the_one_of_its_name_and_nothing_else() {
        let page = replace_table(PAGE, "a", "new\n").unwrap();
        assert_eq!(page, PAGE.replace("old", "new"));
        assert_eq!(replace_table(&page, "a", "new\n").unwrap(), page);
        let page = replace_table(PAGE, "b", "new\n").unwrap();
        assert!(page.ends_with("<!-- table: b -->\nnew\n<!-- end -->\n") && page.contains("old"));
    }

    #[test]
    fn markers_that_are_absent_or_doubled_are_named() {
        let error = |page: &str, name: &str| {
            let error = replace_table(page, name, "").unwrap_err();
            error.to_string()
        };
        assert!(error(PAGE, "c").contains("<!-- table: c -->"));
        assert!(error("<!-- table: a -->\n", "a").contains("<!-- end -->"));
        assert!(error(&PAGE.repeat(2), "a").contains("twice"));
        let unended = "<!-- table: a -->\n<!-- table: b -->\n<!-- end -->\n";
        assert!(error(unended, "a").contains("missing"));
    }

    #[test]
    fn a_table_is_named_after_its_file() {
        for file in ["x/vt2.json.gz", "vt2.json", "vt2"] {
            assert_eq!(table_name(Path::new(file)).unwrap(), "vt2");
        }
    }
}

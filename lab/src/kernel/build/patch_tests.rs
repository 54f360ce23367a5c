//! Tests of reading and applying patches; `patch` itself runs.

use super::*;

const OLD: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";

const DIFF: &str = "\
--- a/kernel/fair.c
+++ b/kernel/fair.c
@@ -1,3 +1,3 @@
-one
+ONE
 two
 three
@@ -7,4 +7,5 @@ static int wake(void)
 seven
 eight
+and a half
 nine
 ten
";

fn source(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("in a folder")).expect("created");
        fs::write(path, text).expect("written");
    }
    folder
}

fn patches(text: &str) -> Vec<Patch> {
    parse("my.diff", text.as_bytes()).expect("valid")
}

fn apply_to(files: &[(&str, &str)], text: &str) -> Result<Patched> {
    apply(&patches(text), source(files).path(), "the source")
}

fn after(patched: &Patched, path: &str) -> Option<String> {
    let bytes = patched[Path::new(path)].clone()?;
    Some(String::from_utf8(bytes).expect("UTF-8"))
}

#[test]
fn a_patch_applies_though_lines_have_moved() {
    let longer = OLD.replace("four", "four\nand more");
    let patched = apply_to(&[("kernel/fair.c", &longer)], DIFF).expect("applies");
    let text = after(&patched, "kernel/fair.c").expect("a file");
    assert!(text.starts_with("ONE\ntwo\n"), "{text}");
    assert!(text.contains("eight\nand a half\nnine\n"), "{text}");
}

#[test]
fn a_hunk_that_fails_is_named_with_its_file() {
    let changed = OLD.replace("eight", "EIGHT");
    let error = apply_to(&[("kernel/fair.c", &changed)], DIFF).expect_err("fails");
    let error = error.to_string();
    assert!(
        error.contains("kernel/fair.c: hunk 2 of 2 failed: @@ -7,4 +7,5 @@ static int wake(void)"),
        "{error}"
    );
    assert!(!error.contains("hunk 1"), "{error}");
}

#[test]
fn a_missing_file_and_a_change_that_is_there_already_are_named() {
    let error = apply_to(&[("kernel/core.c", OLD)], DIFF).expect_err("fails");
    let error = error.to_string();
    assert!(
        error.contains("kernel/fair.c: the source has no such file"),
        "{error}"
    );
    let done = OLD
        .replace("one", "ONE")
        .replace("eight\n", "eight\nand a half\n");
    let error = apply_to(&[("kernel/fair.c", &done)], DIFF).expect_err("fails");
    assert!(
        error.to_string().contains("has this change already"),
        "{error}"
    );
}

#[test]
fn files_are_made_removed_and_renamed() {
    let diff = "\
diff --git a/a/new.c b/a/new.c
new file mode 100644
--- /dev/null
+++ b/a/new.c
@@ -0,0 +1 @@
+int x;
diff --git a/a/gone.c b/a/gone.c
deleted file mode 100644
--- a/a/gone.c
+++ /dev/null
@@ -1 +0,0 @@
-int y;
diff --git a/a/from.c b/b/to.c
similarity index 100%
rename from a/from.c
rename to b/to.c
";
    let files = [("a/gone.c", "int y;\n"), ("a/from.c", "int z;\n")];
    let patched = apply_to(&files, diff).expect("applies");
    assert_eq!(after(&patched, "a/new.c").as_deref(), Some("int x;\n"));
    assert_eq!(after(&patched, "a/gone.c"), None);
    assert_eq!(after(&patched, "a/from.c"), None);
    assert_eq!(after(&patched, "b/to.c").as_deref(), Some("int z;\n"));
}

#[test]
fn a_mailbox_is_read_in_the_order_of_its_numbers_without_its_prose() {
    let mail = |subject: &str, body: &str| {
        format!(
            "From 1234 Mon Sep 17 00:00:00 2001\nFrom: A <a@b.c>\nSubject: {subject}\n\n{body}\n\n"
        )
    };
    let second = DIFF.replace("ONE", "TWO").replace("-one", "-ONE");
    let text = [
        mail("[PATCH 0/2] cover", "A letter.\n\n--- a line\n+++ b line"),
        mail("[PATCH 2/2] second", &second),
        mail("Re: [PATCH 1/2] first", "> --- a/x\n> +++ b/x\nfine"),
        mail(
            "[PATCH 1/2] first",
            &format!("Why.\n---\n f | 2 +-\n\n{DIFF}-- \n2.39"),
        ),
    ]
    .concat();
    let found = patches(&text);
    let names: Vec<&str> = found.iter().map(|patch| patch.name.as_str()).collect();
    assert_eq!(
        names,
        ["my.diff: [PATCH 1/2] first", "my.diff: [PATCH 2/2] second"]
    );
    assert_eq!(found[0].files[0].hunks.len(), 2);
}

#[test]
fn a_mail_in_quoted_printable_is_decoded() {
    let body = DIFF.replace("eight", "ei=67ht");
    let text = format!(
        "From x\nSubject: [PATCH] one\nContent-Transfer-Encoding: quoted-printable\n\n{body}"
    );
    let source = source(&[("kernel/fair.c", OLD)]);
    apply(&patches(&text), source.path(), "the source").expect("applies");
}

#[test]
fn removed_lines_that_look_like_headers_are_no_headers() {
    let diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,1 @@\n--- a/y\n z\n";
    assert_eq!(patches(diff)[0].files.len(), 1);
}

#[test]
fn text_without_a_diff_is_no_patch_and_no_path_leads_out() {
    assert!(patches("hello\n--- a line\n").is_empty());
    let diff = "--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n";
    let error = parse("bad.diff", diff.as_bytes()).expect_err("refused");
    assert!(format!("{error:#}").contains("leads out of the source"));
}

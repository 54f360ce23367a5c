//! Output of programs and guests, made fit for an error message.

/// The last `count` lines that are not blank.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Indents each line after the first below a title.
pub(crate) fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}

#[cfg(test)]
mod tests {
    use super::{indented, last_lines};

    #[test]
    fn the_last_lines_are_kept_without_blank_ones() {
        assert_eq!(last_lines("a\n\nb\n \nc\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
        assert_eq!(indented("a\nb"), "a\n  b");
    }
}

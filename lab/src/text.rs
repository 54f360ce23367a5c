//! Text for people: the parts of long outputs that an error message shows, and hashes.

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

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{hex, indented, last_lines};

    #[test]
    fn texts_are_shortened_indented_and_encoded() {
        assert_eq!(last_lines("a\n\nb\n \nc\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
        assert_eq!(indented("a\nb"), "a\n  b");
        assert_eq!(hex(&[0x0a, 0xff]), "0aff");
    }
}

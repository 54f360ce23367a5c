//! A screen as a picture: what the terminal shows, with its colours, as SVG.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use anstyle_svg::Term;
use ratatui::buffer::Buffer;

/// Returns a buffer as an SVG picture.
pub fn to_svg(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut text = String::new();
    for line in buffer.content.chunks(width) {
        for cells in line.chunk_by(|cell, next| cell.style() == next.style()) {
            // The terminal's own colour, `Reset`, is none here.
            let colour = AnsiColor::try_from(cells[0].fg).ok();
            let style = Style::new()
                .fg_color(colour.map(Into::into))
                .effects(cells[0].modifier.into());
            let symbols: String = cells.iter().map(|cell| cell.symbol()).collect();
            // Writing to a string does not fail.
            let _ = write!(text, "{style}{symbols}{style:#}");
        }
        text.push('\n');
    }
    Term::new().render_svg(&text)
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::{Color, Style};

    use super::*;

    #[test]
    fn text_and_colours_are_in_the_picture() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 2));
        buffer.set_string(0, 0, "all & <some>", Style::new());
        buffer.set_string(2, 1, "hot", Style::new().fg(Color::Red));
        let picture = to_svg(&buffer);
        assert!(picture.starts_with("<svg "), "{picture}");
        assert!(picture.contains("all &amp; &lt;some&gt;"), "{picture}");
        assert!(picture.contains("class=\"fg-red\">hot<"), "{picture}");
    }
}

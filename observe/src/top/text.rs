//! Text on the screen, for the heat map and all else.

use ratatui::buffer::Buffer;
use ratatui::style::Style;

/// Writes a text into the cells from `at` on, in at most `room` columns. Almost all text here is
/// ASCII, a column for each character: to search that for graphemes was most of what drawing cost.
pub fn write(buffer: &mut Buffer, at: (u16, u16), text: &str, room: u16, style: Style) {
    let (x, y) = at;
    if !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        buffer.set_stringn(x, y, text, room.into(), style);
        return;
    }
    let end = buffer.area.right().min(x.saturating_add(room));
    for (x, byte) in (x..end).zip(text.bytes()) {
        buffer[(x, y)].set_char(byte.into()).set_style(style);
    }
}

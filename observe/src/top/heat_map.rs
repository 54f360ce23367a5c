//! The heat map: each CPU where it is in the machine.
//!
//! An LLC is a block. A column of the block is a core, and the SMT siblings of a core stand below
//! each other. The cells are as wide as the map's height allows:
//!
//! ```text
//!   percent, withheld in brackets      N0 L0   87   12  (3)
//!   tenths, withheld with a dash       N0 L0 8 1 .-
//!   tenths alone                       N0 L0 81.
//! ```
//!
//! Tasks have a decimal in the widest cells, and are whole in the others.

use std::collections::BTreeMap;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::text::write;
use crate::topology::Topology;

/// The widths of cells, the widest first.
const WIDTHS: [u16; 3] = [5, 2, 1];

/// The unit of a CPU's heat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A part, which is written as percent or as tenths.
    Part,
    /// A number of tasks.
    Tasks,
}

impl Unit {
    /// Returns a number of at most four characters, if it can.
    fn number(self, heat: f64) -> String {
        match self {
            Unit::Part => format!("{:.0}", 100.0 * heat),
            Unit::Tasks => format!("{heat:.1}"),
        }
    }

    /// Returns one character.
    fn sign(self, heat: f64) -> char {
        match self {
            Unit::Part => tenths(heat),
            Unit::Tasks => tenths(heat / 10.0),
        }
    }
}

/// A map of the machine, ready to be drawn.
pub struct HeatMap<'a> {
    /// Where the CPUs are.
    pub topology: &'a Topology,
    /// The heat of each CPU: a part from 0 to 1, or a number of tasks. One that is missing is not
    /// known.
    pub heat: &'a BTreeMap<usize, f64>,
    /// The unit of the heat.
    pub unit: Unit,
    /// Whether a CPU is preferred.
    pub is_preferred: &'a dyn Fn(usize) -> bool,
    /// Whether colours are used.
    pub has_colours: bool,
}

/// An LLC, as cores of CPUs.
struct Block {
    label: String,
    cores: Vec<Vec<usize>>,
}

impl Block {
    /// Returns the lines that a core takes: one for each of its siblings.
    fn threads(&self) -> u16 {
        self.cores.iter().map(Vec::len).max().unwrap_or(0) as u16
    }

    /// Returns how many cores stand beside each other.
    fn columns(&self, width: u16, cell: u16) -> u16 {
        let room = width.saturating_sub(self.label.len() as u16) / cell;
        room.clamp(1, self.cores.len().max(1) as u16)
    }

    /// Returns the block's width, with a gap behind it, and its height.
    fn size(&self, width: u16, cell: u16) -> (u16, u16) {
        let columns = self.columns(width, cell);
        let rows = (self.cores.len() as u16).div_ceil(columns);
        (
            self.label.len() as u16 + columns * cell + 1,
            rows * self.threads(),
        )
    }
}

impl HeatMap<'_> {
    /// Returns the height that the map takes, at most `most`.
    pub fn height(&self, width: u16, most: u16) -> u16 {
        let blocks = self.blocks();
        let cell = choose_cell(&blocks, width, most);
        place(&blocks, width, cell).1.min(most)
    }

    /// Draws the map. Blocks for which there is no room are left out, and the last line says so.
    pub fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let blocks = self.blocks();
        let cell = choose_cell(&blocks, area.width, area.height);
        let (places, height) = place(&blocks, area.width, cell);
        let is_cut = height > area.height;
        let bottom = area.bottom() - u16::from(is_cut && area.height > 0);
        let mut left_out = 0;
        for (block, (x, y)) in blocks.iter().zip(places) {
            let (_, height) = block.size(area.width, cell);
            if area.y + y + height > bottom {
                left_out += 1;
                continue;
            }
            self.draw_block(block, area, (x, y), cell, buffer);
        }
        if left_out > 0 && area.height > 0 {
            let text = format!("... and {left_out} more LLCs: no room");
            write(buffer, (area.x, bottom), &text, area.width, Style::new());
        }
    }

    /// Draws a block at a place of the map: its label, and a cell for each CPU.
    fn draw_block(
        &self,
        block: &Block,
        area: Rect,
        at: (u16, u16),
        cell: u16,
        buffer: &mut Buffer,
    ) {
        let (x, y) = (area.x + at.0, area.y + at.1);
        let label = block.label.len() as u16;
        let bold = Style::new().add_modifier(Modifier::BOLD);
        write(buffer, (x, y), &block.label, area.width, bold);
        let columns = block.columns(area.width, cell);
        for (index, cpus) in block.cores.iter().enumerate() {
            let (row, column) = (index as u16 / columns, index as u16 % columns);
            for (thread, cpu) in cpus.iter().enumerate() {
                let x = x + label + column * cell;
                let y = y + row * block.threads() + thread as u16;
                let (text, style) = self.cell(*cpu, cell);
                let room = area.right().saturating_sub(x);
                write(buffer, (x, y), &text, room, style);
            }
        }
    }

    /// Returns the LLCs in order of their numbers.
    fn blocks(&self) -> Vec<Block> {
        let llcs = self.topology.llcs();
        let has_nodes = llcs.values().any(|(node, _)| *node > 0);
        let llcs = llcs.into_iter();
        llcs.map(|(llc, (node, cpus))| {
            let mut cores: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for cpu in cpus {
                cores
                    .entry(self.topology.places[&cpu].core)
                    .or_default()
                    .push(cpu);
            }
            let label = match has_nodes {
                true => format!("N{node} L{llc} "),
                false => format!("L{llc} "),
            };
            Block {
                label,
                cores: cores.into_values().collect(),
            }
        })
        .collect()
    }

    /// Returns the text of a cell and its style.
    fn cell(&self, cpu: usize, width: u16) -> (String, Style) {
        let is_preferred = (self.is_preferred)(cpu);
        let heat = self.heat.get(&cpu).copied();
        let text = match (width, heat) {
            (5, None) => "   ?".into(),
            (5, Some(heat)) if is_preferred => format!("{:>4}", self.unit.number(heat)),
            (5, Some(heat)) => format!("{:>4}", format!("({})", self.unit.number(heat))),
            (_, None) => "?".into(),
            (2, Some(heat)) if !is_preferred => format!("{}-", self.unit.sign(heat)),
            (_, Some(heat)) => self.unit.sign(heat).to_string(),
        };
        let style = match (heat, is_preferred) {
            (_, false) => Style::new().add_modifier(Modifier::DIM),
            (Some(heat), true) if self.has_colours => Style::new().fg(colour(heat)),
            _ => Style::new(),
        };
        (text, style)
    }
}

/// Returns the widest cell with which the map has at most `most` lines; the narrowest if none has.
fn choose_cell(blocks: &[Block], width: u16, most: u16) -> u16 {
    let fits = |cell: &u16| place(blocks, width, *cell).1 <= most;
    WIDTHS.into_iter().find(fits).unwrap_or(1)
}

/// Places blocks from left to right and from top to bottom. Returns where each begins, and the
/// height of all.
fn place(blocks: &[Block], width: u16, cell: u16) -> (Vec<(u16, u16)>, u16) {
    let (mut x, mut y, mut row) = (0, 0, 0);
    let mut places = Vec::new();
    for block in blocks {
        let (w, h) = block.size(width, cell);
        // The gap behind the last block of a row needs no room.
        if x > 0 && x + w > width + 1 {
            (x, y, row) = (0, y + row, 0);
        }
        places.push((x, y));
        x += w;
        row = row.max(h);
    }
    (places, y + row)
}

/// Returns one character for a heat: a point for none, a digit for tenths, # for all.
fn tenths(heat: f64) -> char {
    match (10.0 * heat).round() as u32 {
        0 => '.',
        tenth @ 1..=9 => char::from_digit(tenth, 10).unwrap_or('?'),
        _ => '#',
    }
}

/// Returns the colour of a heat: the hotter, the nearer to red.
fn colour(heat: f64) -> Color {
    match heat {
        heat if heat < 0.05 => Color::DarkGray,
        heat if heat < 0.5 => Color::Green,
        heat if heat < 0.85 => Color::Yellow,
        _ => Color::Red,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::screen::to_text;
    use crate::topology::Place;

    /// A machine of LLCs of the same size, each CPU as hot as its number says.
    fn drawn(llcs: usize, cores: usize, nodes: usize, area: Rect) -> String {
        drawn_in(Unit::Part, llcs, cores, nodes, area)
    }

    fn drawn_in(unit: Unit, llcs: usize, cores: usize, nodes: usize, area: Rect) -> String {
        let per_llc = 2 * cores;
        let places = (0..llcs * per_llc).map(|cpu| {
            let llc = cpu / per_llc;
            let place = Place {
                core: cpu / 2,
                llc,
                node: llc * nodes / llcs,
            };
            (cpu, place)
        });
        let topology = Topology {
            online: String::new(),
            places: places.collect(),
        };
        let count = topology.places.len();
        let heat = (0..count).map(|cpu| (cpu, cpu as f64 / (count - 1) as f64));
        let map = HeatMap {
            topology: &topology,
            heat: &heat.collect(),
            unit,
            is_preferred: &|cpu| cpu > 1,
            has_colours: false,
        };
        let mut buffer = Buffer::empty(area);
        assert!(map.height(area.width, area.height) <= area.height);
        map.draw(area, &mut buffer);
        to_text(&buffer)
    }

    #[test]
    fn a_small_machine_has_percent() {
        let text = drawn(2, 2, 2, Rect::new(0, 0, 40, 2));
        assert_eq!(
            text,
            "N0 L0  (0)   29  N1 L1   57   86\n      (14)   43          71  100\n"
        );
    }

    #[test]
    fn tasks_have_a_decimal_where_there_is_room() {
        let text = drawn_in(Unit::Tasks, 2, 2, 2, Rect::new(0, 0, 40, 2));
        assert_eq!(
            text,
            "N0 L0 (0.0) 0.3  N1 L1  0.6  0.9\n      (0.1) 0.4         0.7  1.0\n"
        );
    }

    #[test]
    fn a_large_machine_has_tenths_and_fits_in_eight_lines() {
        let text = drawn(16, 8, 2, Rect::new(0, 0, 80, 8));
        assert!(text.starts_with("N0 L0 "), "{text}");
        assert!(text.contains("N1 L15 "), "{text}");
        assert!(text.contains('#') && text.contains('.'), "{text}");
        assert!(text.lines().count() <= 8, "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn a_wide_llc_wraps_and_what_has_no_room_is_counted() {
        let wide = drawn(1, 96, 1, Rect::new(0, 0, 80, 6));
        let cells = wide
            .chars()
            .filter(|c| c.is_ascii_digit() || "#.".contains(*c));
        // One digit is in the label.
        assert_eq!(cells.count(), 193, "{wide}");
        let cut = drawn(64, 8, 1, Rect::new(0, 0, 80, 4));
        assert!(cut.contains("more LLCs: no room"), "{cut}");
    }
}

//! Screens of recorded sessions, as a terminal shows them.

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::top::moment::tests::{busy_sample, sample};

/// Draws an app on a terminal of this size, and returns what it shows.
fn shown(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(app, frame.area(), frame.buffer_mut()))
        .unwrap();
    to_text(terminal.backend().buffer())
}

fn app(samples: Vec<Sample>) -> App {
    let mut app = App::new(1.0, false);
    samples.into_iter().for_each(|sample| app.push(sample));
    app
}

fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[test]
fn everything_is_on_80_by_24() {
    let text = shown(
        &app((0..9).map(|at| busy_sample(f64::from(at))).collect()),
        80,
        24,
    );
    expect(
        &text,
        &[
            "8 CPUs | 12 tasks run or wait | 00:00:08 UTC",
            "preferred 6 of 8 (direct) | steal time 12.5 % (estimate) | cores 3.2, given 2.8",
            "N0 L0    0   20  N1 L1   40 (60)",
            "busy            35 %",
            "wakeup p99    4.6 us",
            "p50 4.6 us  p90 4.6 us  p99.9 147 us",
            "requeue p99        -",
            "wakeups          100",
            "previous 100  recent 0  core 0",
            "steals           100",
            "sib 0  LLC 100  node 0  remote 0",
            "pushes           100",
            "preemptions      100",
            "/limited                           25.0 %     50 %   5.0 x, 40 % of the time",
            "? keys",
        ],
    );
    assert_eq!(text.lines().count(), 24, "{text}");
}

#[test]
fn without_a_scheduler_the_reason_and_the_cpus_are_shown() {
    let gone = |at: f64| {
        let mut sample = busy_sample(at);
        sample.status = Err("scx_magpie is not running; start it".into());
        sample
    };
    let text = shown(&app(vec![gone(1.0), gone(2.0)]), 80, 24);
    expect(
        &text,
        &[
            "scx_magpie is not running; start it",
            "N1 L1   40   60",
            "no answer",
        ],
    );
}

#[test]
fn the_first_screen_has_no_rates_yet() {
    assert!(shown(&App::new(1.0, false), 80, 24).contains("asking the scheduler"));
    let text = shown(&app(vec![sample(1.0)]), 80, 24);
    expect(&text, &["preferred CPUs are not loaded", "wakeups", "?"]);
}

#[test]
fn no_terminal_is_too_small() {
    let mut app = app(vec![busy_sample(1.0), busy_sample(2.0)]);
    for (width, height) in [(1, 1), (20, 3), (80, 10), (40, 24), (300, 100)] {
        shown(&app, width, height);
    }
    assert!(HELP.iter().all(|line| line.len() < 80), "{HELP:?}");
    app.shows_help = true;
    shown(&app, 10, 5);
    expect(
        &shown(&app, 80, 24),
        &["space", "withheld", "Any key: back"],
    );
}

#[test]
fn colours_are_used_only_where_they_are_wanted() {
    let has_colour = |has_colours: bool| {
        let mut app = app(vec![busy_sample(1.0), busy_sample(2.0)]);
        app.has_colours = has_colours;
        let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
        draw(&app, buffer.area, &mut buffer);
        let mut cells = buffer.content.iter();
        cells.any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(has_colour(true) && !has_colour(false));
}

#[test]
fn numbers_and_paths_stay_short() {
    let numbers = [0.0, 0.25, 12.0, 9_999.0, 12_345.0, 999_400.0, 2_500_000.0];
    let texts = numbers.map(short);
    assert_eq!(texts, ["0", "0.2", "12", "9999", "12k", "999k", "2.5M"]);
    assert_eq!(without_target("magpie_0.1.0_x86_64_linux"), "magpie_0.1.0");
    assert_eq!(without_target("magpie"), "magpie");
    assert_eq!(shorten("/system.slice/a", 10), "...slice/a");
}

#[test]
fn ascii_is_written_as_any_other_text() {
    let area = Rect::new(2, 1, 8, 2);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    for text in ["", "12345678", "too long a text", "a\tb", "gr\u{fc}n"] {
        for (x, room) in [(2, 8), (4, 3), (9, 80)] {
            let (mut found, mut wanted) = (Buffer::empty(area), Buffer::empty(area));
            write(&mut found, (x, 2), text, room, bold);
            wanted.set_stringn(x, 2, text, room.into(), bold);
            assert_eq!(found, wanted, "{text:?} at {x}");
        }
    }
}

//! The screen: from top to bottom what runs, the heat map, rates with sparklines, cgroups, keys.
//!
//! Everything is readable without colour, on 80 columns and 24 lines.

use std::collections::BTreeSet;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Sparkline, Widget};

use super::app::{App, Heat};
use super::heat_map::{self, HeatMap};
use super::moment::Moment;
use super::text::write;
use crate::latency::Histogram;
use crate::sample::Sample;
use crate::scheduler::{Cgroup, Preferred};
use crate::topology::parse_list;

/// Lines below the heat map: the rates with their title, cgroups with theirs, and the last line.
const LINES_BELOW: u16 = 15;

/// Where the columns of the rates begin.
const VALUE: u16 = 12;
const SPARK: u16 = 21;
const DETAIL: u16 = 43;

const HELP: &[&str] = &[
    "q, Esc      quit",
    "space       stand still, and go on",
    "+  -        ask the scheduler more often, less often; replay faster, slower",
    "m           heat map: busy time, tasks that wait, the time that the host took",
    "            (steal time), frequency",
    "left right  one sample back or on, in a replay; Home, End: the first, the last",
    "",
    "A CPU stands at its LLC (L) and node (N), SMT siblings below each other.",
    "87: busy for 87 % of the time. Where room is short: tenths, . none, # all.",
    "0.8: so many tasks waited, on average. Where room is short: 1 to 9, # more.",
    "(87), 8-: withheld; tasks that may run on a preferred CPU do not use it.",
    "previous, recent, core, CPU, beyond: the wakeup step that found an idle CPU.",
    "sibling, LLC, node, remote: how far away the stolen tasks were.",
    "wakeup, requeue p99: 99 % of the tasks that woke, or lost their CPU, ran again",
    "within this time. It is measured while this screen runs; see --no-latency.",
    "",
    "Any key: back",
];

/// A line of the rates.
struct Rate {
    /// Empty on a line that only has more parts of the line above.
    label: &'static str,
    /// The number that is written and drawn as a sparkline; no number if nothing happened.
    value: fn(&Moment) -> f64,
    /// The unit of the number.
    unit: Unit,
    /// The figures beside the sparkline.
    parts: Parts,
}

/// The unit of a line's number.
#[derive(Clone, Copy, PartialEq)]
enum Unit {
    /// Events for each second.
    PerSecond,
    /// A part of the time.
    Part,
    /// A time in nanoseconds.
    Time,
}

/// The parts of a line.
enum Parts {
    /// Names, each with the counters that add up to it.
    Events(&'static [(&'static str, &'static [&'static str])]),
    /// Other percentiles of the same times.
    Percentiles(fn(&Moment) -> &Histogram),
}

/// The percentile that is the number of a line, and those beside the sparkline.
const NUMBER_PERCENTILE: f64 = 0.99;
const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99.9", 0.999)];

const STEALS: [&str; 4] = ["steal_sibling", "steal_llc", "steal_node", "steal_remote"];

const RATES: &[Rate] = &[
    Rate {
        label: "busy",
        value: Moment::average_busy,
        unit: Unit::Part,
        parts: Parts::Events(&[
            ("queued", &["enqueue"]),
            ("renewed", &["keep"]),
            ("idle", &["idle_enter"]),
        ]),
    },
    Rate {
        label: "wakeup p99",
        value: |moment| number(&moment.latency.woken),
        unit: Unit::Time,
        parts: Parts::Percentiles(|moment| &moment.latency.woken),
    },
    Rate {
        label: "requeue p99",
        value: |moment| number(&moment.latency.requeued),
        unit: Unit::Time,
        parts: Parts::Percentiles(|moment| &moment.latency.requeued),
    },
    Rate {
        label: "wakeups",
        value: |moment| moment.rate(&["wake_idle", "wake_waker"]),
        unit: Unit::PerSecond,
        parts: Parts::Events(&[
            ("previous", &["wake_previous"]),
            ("recent", &["wake_recent"]),
            ("core", &["wake_core"]),
        ]),
    },
    Rate {
        label: "",
        value: |_| f64::NAN,
        unit: Unit::PerSecond,
        parts: Parts::Events(&[
            ("CPU", &["wake_cpu"]),
            ("beyond", &["wake_beyond"]),
            ("waker", &["wake_waker"]),
        ]),
    },
    Rate {
        label: "steals",
        value: |moment| moment.rate(&STEALS),
        unit: Unit::PerSecond,
        parts: Parts::Events(&[
            ("sib", &["steal_sibling"]),
            ("LLC", &["steal_llc"]),
            ("node", &["steal_node"]),
            ("remote", &["steal_remote"]),
        ]),
    },
    Rate {
        label: "searches",
        value: |moment| moment.rate(&["steal_attempt"]),
        unit: Unit::PerSecond,
        parts: Parts::Events(&[("not worth it", &["steal_gated"])]),
    },
    Rate {
        label: "pushes",
        value: |moment| moment.rate(&["push"]),
        unit: Unit::PerSecond,
        parts: Parts::Events(&[
            ("kicks", &["kick_idle"]),
            ("balance", &["rotate"]),
            ("spread", &["spread"]),
        ]),
    },
    Rate {
        label: "preemptions",
        value: |moment| moment.rate(&["preempt"]),
        unit: Unit::PerSecond,
        parts: Parts::Events(&[("forks away", &["fork_away"]), ("parked", &["park"])]),
    },
];

/// Returns the number of a line of times; no number if there was no time.
fn number(times: &Histogram) -> f64 {
    times.percentile(NUMBER_PERCENTILE).unwrap_or(f64::NAN)
}

/// Draws the app.
pub fn draw(app: &App, area: Rect, buffer: &mut Buffer) {
    let pen = Pen { app, area };
    if app.shows_help {
        pen.title(0, "magpie top: keys and signs", buffer);
        for (line, text) in HELP.iter().enumerate() {
            pen.text(1, 2 + line as u16, text, Style::new(), buffer);
        }
        return;
    }
    let Some(sample) = &app.sample else {
        return pen.text(
            0,
            0,
            "magpie top: asking the scheduler ...",
            Style::new(),
            buffer,
        );
    };
    pen.head(sample, buffer);
    let line = pen.heat_map(sample, 2, buffer);
    let line = pen.rates(line, buffer);
    pen.cgroups(sample, line, buffer);
    pen.foot(sample, buffer);
}

/// Returns a buffer's text, without spaces at the ends of lines.
pub fn to_text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let lines = buffer.content.chunks(width).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_string() + "\n"
    });
    lines.collect()
}

/// Draws parts of the screen.
struct Pen<'a> {
    app: &'a App,
    area: Rect,
}

impl Pen<'_> {
    /// Writes a text at a place of the screen, as far as there is room.
    fn text(&self, x: u16, y: u16, text: &str, style: Style, buffer: &mut Buffer) {
        if x < self.area.width && y < self.area.height {
            let at = (self.area.x + x, self.area.y + y);
            write(buffer, at, text, self.area.width - x, style);
        }
    }

    /// Writes a line in reverse, which needs no colour.
    fn title(&self, y: u16, text: &str, buffer: &mut Buffer) {
        let width = usize::from(self.area.width);
        let style = Style::new().add_modifier(Modifier::REVERSED);
        self.text(0, y, &format!("{text:<width$}"), style, buffer);
    }

    /// Returns a style of this colour, or a plain one where colours are not used.
    fn coloured(&self, colour: Color) -> Style {
        match self.app.has_colours {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    /// Two lines: what runs where, and what the host takes.
    fn head(&self, sample: &Sample, buffer: &mut Buffer) {
        let name = sample.sched_ext.scheduler.as_deref();
        let name = name.map_or("no scheduler", without_target);
        let count = sample.topology.places.len();
        let runnable = sample.cpu_times.runnable;
        let seconds = sample.at as u64 % 86_400;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        self.title(
            0,
            &format!(
                "{name} | {count} CPUs | {runnable} tasks run or wait | \
                 {hours:02}:{minutes:02}:{seconds:02} UTC"
            ),
            buffer,
        );
        match &sample.status {
            Err(reason) => self.text(0, 1, reason, self.coloured(Color::Red), buffer),
            Ok(status) => {
                let text = match &status.preferred {
                    Some(preferred) => host_sentence(preferred),
                    None => "preferred CPUs are not loaded".into(),
                };
                self.text(0, 1, &text, Style::new(), buffer);
            }
        }
    }

    /// Draws the heat map from line `y` on, and returns the line behind it.
    fn heat_map(&self, sample: &Sample, y: u16, buffer: &mut Buffer) -> u16 {
        let preferred = match &sample.status {
            Ok(status) => status.preferred.as_ref(),
            Err(_) => None,
        };
        let preferred: Option<BTreeSet<usize>> = preferred.map(|one| parse_list(&one.preferred));
        let is_preferred = |cpu: usize| preferred.as_ref().is_none_or(|cpus| cpus.contains(&cpu));
        let nothing = Moment::default();
        let moment = self.app.moments.back().unwrap_or(&nothing);
        let (heat, what) = match self.app.heat {
            Heat::Busy => (&moment.busy, "busy, %"),
            Heat::Waiting => (&moment.waiting, "tasks that waited, on average"),
            Heat::Steal => (&moment.steal, "steal time that the kernel counted, %"),
            Heat::Frequency => (&moment.frequency, "frequency, % of the highest"),
        };
        let unit = match self.app.heat {
            Heat::Waiting => heat_map::Unit::Tasks,
            _ => heat_map::Unit::Part,
        };
        self.title(y, &format!("CPUs: {what} (withheld)"), buffer);
        let map = HeatMap {
            topology: &sample.topology,
            heat,
            unit,
            is_preferred: &is_preferred,
            has_colours: self.app.has_colours,
        };
        let most = self.area.height.saturating_sub(y + 1 + LINES_BELOW).max(1);
        let height = map.height(self.area.width, most);
        let top = self.area.y + y + 1;
        if top + height <= self.area.bottom() {
            map.draw(Rect::new(self.area.x, top, self.area.width, height), buffer);
        }
        y + 1 + height
    }

    /// Draws the rates from line `y` on, and returns the line behind them.
    fn rates(&self, y: u16, buffer: &mut Buffer) -> u16 {
        self.title(y, "each second       now  lately", buffer);
        for (line, rate) in (y + 1..).zip(RATES) {
            self.rate(rate, line, buffer);
        }
        y + 1 + RATES.len() as u16
    }

    /// Says on a line of times why there are none.
    fn missing_times(&self, rate: &Rate) -> Option<&str> {
        let latency = &self.app.sample.as_ref()?.latency;
        let reason = latency.as_ref().err()?;
        (rate.unit == Unit::Time).then_some(reason)
    }

    /// Draws one line of the rates: the label, the number, the sparkline, the parts.
    fn rate(&self, rate: &Rate, y: u16, buffer: &mut Buffer) {
        let Some(moment) = self.app.moments.back() else {
            return self.text(0, y, rate.label, Style::new(), buffer);
        };
        if let Some(reason) = self.missing_times(rate) {
            return self.text(
                0,
                y,
                &format!("{:<12}{reason}", rate.label),
                Style::new(),
                buffer,
            );
        }
        let value = (rate.value)(moment);
        if !rate.label.is_empty() {
            let text = match rate.unit {
                Unit::Part => format!("{:.0} %", 100.0 * value),
                Unit::PerSecond => short(value),
                Unit::Time => short_time(value),
            };
            self.text(0, y, rate.label, Style::new(), buffer);
            self.text(VALUE, y, &format!("{text:>8}"), Style::new(), buffer);
            self.sparkline(rate, y, buffer);
        }
        let parts: Vec<_> = match rate.parts {
            Parts::Events(parts) => parts
                .iter()
                .map(|(name, events)| format!("{name} {}", short(moment.rate(events))))
                .collect(),
            Parts::Percentiles(times) => PERCENTILES
                .iter()
                .filter_map(|(name, part)| {
                    let time = times(moment).percentile(*part)?;
                    Some(format!("{name} {}", short_time(time)))
                })
                .collect(),
        };
        self.text(DETAIL, y, &parts.join("  "), Style::new(), buffer);
    }

    /// Draws the line's number over the last moments. Percent have a fixed scale.
    fn sparkline(&self, rate: &Rate, y: u16, buffer: &mut Buffer) {
        let width = DETAIL - SPARK - 1;
        if y >= self.area.height || DETAIL > self.area.width {
            return;
        }
        let moments = &self.app.moments;
        let recent = moments
            .iter()
            .skip(moments.len().saturating_sub(width.into()));
        let is_part = rate.unit == Unit::Part;
        let scale = if is_part { 1e3 } else { 1.0 };
        let data: Vec<u64> = recent
            .map(|moment| (scale * (rate.value)(moment)) as u64)
            .collect();
        let line = Sparkline::default()
            .data(&data)
            .style(self.coloured(Color::Cyan));
        let line = if is_part { line.max(1_000) } else { line };
        let area = Rect::new(self.area.x + SPARK, self.area.y + y, width, 1);
        line.render(area, buffer);
    }

    /// Draws the cgroups that are throttled, and then those with the largest shares.
    fn cgroups(&self, sample: &Sample, y: u16, buffer: &mut Buffer) {
        let last = self.area.height.saturating_sub(1);
        if y >= last {
            return;
        }
        self.title(
            y,
            "cgroup                              share    limit   throttled",
            buffer,
        );
        let nothing = Moment::default();
        let moment = self.app.moments.back().unwrap_or(&nothing);
        let Ok(status) = &sample.status else {
            return;
        };
        let throttled = |path: &str| moment.throttled.get(path).copied().unwrap_or_default();
        let mut shown: Vec<(&String, &Cgroup, (f64, f64))> = status
            .cgroups
            .iter()
            .map(|(path, one)| (path, one, throttled(path)))
            .filter(|(_, one, _)| one.share_percent > 0.0 || one.limit_percent > 0.0)
            .collect();
        shown.sort_by(|(_, one, (_, part)), (_, other, (_, other_part))| {
            let shares = other.share_percent.total_cmp(&one.share_percent);
            other_part.total_cmp(part).then(shares)
        });
        for (line, (path, one, (times, part))) in (y + 1..last).zip(shown) {
            let limit = match one.limit_percent {
                0.0 => "-".into(),
                percent => format!("{percent:.0} %"),
            };
            let throttled = match times {
                0.0 => String::new(),
                times => format!("{times:>4.1} x, {:.0} % of the time", 100.0 * part),
            };
            let text = format!(
                "{:<32} {:>6.1} % {limit:>8}  {throttled}",
                shorten(path, 32),
                one.share_percent
            );
            let style = match part {
                0.0 => Style::new(),
                _ => self.coloured(Color::Yellow),
            };
            self.text(0, line, &text, style, buffer);
        }
    }

    /// The last line: keys, and how far or how fast the samples come.
    fn foot(&self, sample: &Sample, buffer: &mut Buffer) {
        let place = match self.app.position() {
            Some(position) => position,
            None => format!("every {} s", self.app.interval()),
        };
        let paused = if self.app.is_paused {
            " | stands still"
        } else {
            ""
        };
        let down = if sample.status.is_ok() {
            ""
        } else {
            " | no answer"
        };
        let text = format!("? keys  q quit | {place}{paused}{down}");
        self.title(self.area.height.saturating_sub(1), &text, buffer);
    }
}

/// Says what the host takes, how that is known, and what follows from it.
fn host_sentence(status: &Preferred) -> String {
    let percent = status.steal_percent;
    let steal = match (status.source.as_str(), status.kernel_counts) {
        ("kernel", 0) => "steal time unknown".to_string(),
        ("kernel", _) => format!("steal time {percent:.1} % (kernel)"),
        ("estimate", _) => format!("steal time {percent:.1} % (estimate)"),
        _ => "steal time not measured yet".to_string(),
    };
    let why = match status.mode.as_str() {
        "auto" => &status.governor,
        mode => mode,
    };
    format!(
        "preferred {} of {} ({why}) | {steal} | cores {:.1}, given {:.1}",
        parse_list(&status.preferred).len(),
        parse_list(&status.online).len(),
        status.wanted_cores,
        status.given_cores
    )
}

/// Returns a scheduler's name and version, without the target that it was built for:
/// `magpie_0.1.0_x86_64_unknown_linux_gnu` is `magpie_0.1.0`.
fn without_target(name: &str) -> &str {
    let end = name.match_indices('_').nth(1).map(|(at, _)| at);
    &name[..end.unwrap_or(name.len())]
}

/// Writes a rate in at most five characters.
fn short(rate: f64) -> String {
    match rate {
        rate if rate < 9.95 && rate > 0.0 => format!("{rate:.1}"),
        rate if rate < 9_999.5 => format!("{rate:.0}"),
        rate if rate < 999_500.0 => format!("{:.0}k", rate / 1e3),
        rate => format!("{:.1}M", rate / 1e6),
    }
}

/// Writes a time of nanoseconds in at most six characters; a dash if there was none.
fn short_time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns.is_nan() => return "-".into(),
        ns if ns < 999_500.0 => (ns / 1e3, "us"),
        ns if ns < 999_500_000.0 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = usize::from(value < 9.95);
    format!("{value:.decimals$} {unit}")
}

/// Cuts a path in front, because its end tells more.
fn shorten(path: &str, most: usize) -> String {
    let length = path.chars().count();
    match length > most {
        true => format!(
            "...{}",
            path.chars().skip(length + 3 - most).collect::<String>()
        ),
        false => path.into(),
    }
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;

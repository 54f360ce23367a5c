//! How many CPUs were busy, over the time of a run.
//!
//! A shell beside the command reads `/proc/stat` twenty times a second; it needs no program that a
//! guest does not have. It does so in the warm-up round only, because it uses CPU time itself and
//! the results of that round are dropped. The kernel counts CPU time in hundredths of a second, so
//! points are at least a tenth of a second apart, and a shorter run has no curve.

use anyhow::{Context, Result};
use plotters::prelude::*;

use crate::counters::{CpuTime, cpu_time};
use crate::plot::{Area, COLOURS, draw_legend, draw_svg, failed};
use crate::report::{Occupancy, Report};

const WIDTH: u32 = 960;
const HEIGHT: u32 = 180;
/// More points would be closer than a line is wide.
const MOST_POINTS: usize = 120;
/// In a shorter step, the kernel's rounding shows.
const SHORTEST_S: f64 = 0.1;
/// The unit of /proc/stat: hundredths of a second, on every architecture.
const PER_SECOND: f64 = 100.0;

/// Runs the command and prints the lines of /proc/stat behind its output. The loop that reads them
/// ends with the shell, even if that is killed.
const SCRIPT: &str = r#"exec 3>&1
seen=$(
    (while kill -0 $$ 2>/dev/null; do head -n 1 /proc/stat; sleep 0.05; done) 3>&- &
    "$@" >&3 3>&-
    code=$?
    kill $!
    exit $code
)
code=$?
printf '\n%s\n%s\n%s\n' "$0" "$(grep -c '^cpu[0-9]' /proc/stat)" "$seen"
exit $code"#;

const MARKER: &str = "magpie-occupancy";

/// The command, with the shell that watches it.
pub fn watched(argv: &[String]) -> Vec<String> {
    let shell = ["sh", "-c", SCRIPT, MARKER].map(str::to_string);
    shell.into_iter().chain(argv.iter().cloned()).collect()
}

/// Cuts the lines of /proc/stat off the output of a watched command. Returns no points if there are
/// none, because they only explain a result.
pub fn take(output: &mut String) -> Occupancy {
    let Some(at) = output.rfind(&format!("\n{MARKER}\n")) else {
        return Vec::new();
    };
    let seen = output.split_off(at);
    let mut lines = seen.trim_start().lines().skip(1);
    let cpus = lines.next().and_then(|line| line.parse().ok());
    cpus.map_or(Vec::new(), |cpus| points(lines, cpus))
}

/// Busy CPUs for each step of time, from the lines of /proc/stat.
fn points<'a>(lines: impl Iterator<Item = &'a str>, cpus: f64) -> Occupancy {
    let times: Vec<CpuTime> = lines.filter_map(cpu_time).collect();
    let Some((first, last)) = times.first().zip(times.last()) else {
        return Vec::new();
    };
    let seconds = |time: &CpuTime| (time.total - first.total) / cpus / PER_SECOND;
    let step = (seconds(last) / MOST_POINTS as f64).max(SHORTEST_S);
    let mut points = Vec::new();
    let mut before = first;
    for time in &times {
        if seconds(time) - seconds(before) < step {
            continue;
        }
        let busy = (time.busy - before.busy) / (time.total - before.total);
        points.push((seconds(time), busy * cpus));
        before = time;
    }
    points
}

/// Draws the busy CPUs of one test as SVG, a line of steps per scheduler; None if no run was
/// watched.
pub fn render(report: &Report, test: (&str, &str)) -> Result<Option<String>> {
    let schedulers = report.schedulers();
    let lines: Vec<(usize, &str, &Occupancy)> = schedulers
        .iter()
        .enumerate()
        .filter_map(|(index, name)| Some((index, *name, &report.row(test, name)?.occupancy)))
        .filter(|(_, _, points)| !points.is_empty())
        .collect();
    if lines.is_empty() {
        return Ok(None);
    }
    draw_svg((WIDTH, HEIGHT), |area| draw(&lines, area))
        .map(Some)
        .with_context(|| format!("drawing the busy CPUs of {} {}", test.0, test.1))
}

/// The corners of the line: each point's height holds from the time of the point before to its own.
fn steps(points: &Occupancy) -> Vec<(f64, f64)> {
    let starts = std::iter::once(0.0).chain(points.iter().map(|(end, _)| *end));
    starts
        .zip(points)
        .flat_map(|(start, (end, busy))| [(start, *busy), (*end, *busy)])
        .collect()
}

/// Draws axes, lines and legend. Each line has a scheduler's index, which chooses the colour, its
/// name and its points.
fn draw(lines: &[(usize, &str, &Occupancy)], area: &Area) -> Result<()> {
    let all = || lines.iter().flat_map(|(_, _, points)| points.iter());
    let right = all().map(|(end, _)| *end).fold(0.0, f64::max);
    let top = all().map(|(_, busy)| *busy).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..right, 0.0..top * 1.1)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("busy CPUs")
        .y_labels(5)
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()
        .map_err(failed)?;
    for (index, name, points) in lines {
        let colour = COLOURS[index % COLOURS.len()].stroke_width(2);
        chart
            .draw_series([PathElement::new(steps(points), colour)])
            .map_err(failed)?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
    }
    draw_legend(&mut chart, SeriesLabelPosition::LowerRight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;
    use std::process::Command;

    /// The output of a watched command on four CPUs, of which `busy` CPUs are busy in each 50 ms.
    fn seen(busy: &[f64]) -> String {
        let (mut user, mut idle) = (1000.0, 5000.0);
        let line = |user: f64, idle: f64| format!("cpu  {user} 0 0 {idle} 0 0 0 0 0 0\n");
        let mut text = format!("Time: 1\n\n{MARKER}\n4\n{}", line(user, idle));
        for cpus in busy {
            user += 5.0 * cpus;
            idle += 5.0 * (4.0 - cpus);
            text += &line(user, idle);
        }
        text
    }

    #[test]
    fn busy_cpus_are_told_over_time() {
        let mut output = seen(&[4.0, 4.0, 1.0, 1.0, 0.0]);
        assert_eq!(take(&mut output), [(0.1, 4.0), (0.2, 1.0)]);
        assert_eq!(output, "Time: 1\n");
        assert_eq!(take(&mut output), [], "it is not there any more");
        assert_eq!(take(&mut seen(&[1.0])), [], "too short");
    }

    #[test]
    fn a_long_run_has_no_more_points_than_fit() {
        let points = take(&mut seen(&[2.0; 5000]));
        assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&points.len()));
        assert!(points.iter().all(|(_, busy)| (busy - 2.0).abs() < 1e-9));
    }

    #[test]
    fn watching_changes_neither_output_nor_exit_code() {
        let command = ["sh", "-c", "sleep 0.3; echo \"$1\"; exit 3", "sh", "a  b"];
        let argv = watched(&command.map(str::to_string));
        let output = Command::new(&argv[0]).args(&argv[1..]).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stderr, b"");
        let mut text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().filter_map(cpu_time).count() >= 3, "{text}");
        assert!(!take(&mut text).is_empty(), "{text}");
        assert_eq!(text, "a  b\n");
    }

    #[test]
    fn the_picture_has_a_line_for_each_scheduler_that_was_seen() {
        const TEST: (&str, &str) = ("hackbench", "-g 1");
        let mut report = report_of(&[("eevdf", &[1.0]), ("scx_a", &[1.0])]);
        assert_eq!(render(&report, TEST).unwrap(), None);
        report.results[0].occupancy = vec![(0.1, 4.0), (0.2, 1.0)];
        let svg = render(&report, TEST).unwrap().unwrap();
        assert!(svg.contains("eevdf") && svg.contains("busy CPUs") && !svg.contains("scx_a"));
    }
}

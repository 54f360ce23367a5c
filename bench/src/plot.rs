//! A result file as a picture: bars normalized to the baseline, with the range of the samples.
//!
//! The picture is SVG, because SVG scales, fits into a README and changes line by line. plotters
//! draws, with its SVG backend only, which needs no fonts or libraries on the machine.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;

use crate::file;
use crate::relation::relate;
use crate::report::Report;
use crate::stats::{Average, Better};

/// Width of a group of bars, of 1 from a group to the next; the rest is the gap.
const GROUP_WIDTH: f64 = 0.8;
const WIDTH: u32 = 860;
const HEIGHT: u32 = 420;

/// Light and dark alternate, so that neighbours differ in print and for people who are
/// colour-blind.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(160, 160, 160),
    RGBColor(0, 90, 181),
    RGBColor(245, 175, 90),
    RGBColor(120, 40, 110),
    RGBColor(120, 200, 170),
    RGBColor(90, 90, 60),
];

/// Where a picture is drawn.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws an SVG picture of this width and height.
pub(crate) fn draw_svg(size: (u32, u32), draw: impl FnOnce(&Area) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The drawing library's error as an error of this program.
pub(crate) fn failed(error: DrawingAreaErrorKind<std::io::Error>) -> anyhow::Error {
    anyhow!("{error}")
}

/// Names the series that have a label.
pub(crate) fn draw_legend<'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, C>,
    position: SeriesLabelPosition,
) -> Result<()> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(failed)
}

/// One bar: average and range of the samples, over the baseline's average.
struct Bar {
    scheduler: usize,
    group: usize,
    value: f64,
    low: f64,
    high: f64,
}

/// Draws a report and writes the picture as SVG; `-` is standard output.
///
/// # Errors
/// If the report has no samples to compare, or the file cannot be written.
pub fn write(report: &Report, path: &Path) -> Result<()> {
    let svg = render(report)?;
    file::write(path, &svg).context("write the plot")
}

fn render(report: &Report) -> Result<String> {
    let schedulers = report.schedulers();
    let groups = report.tests();
    let bars = collect_bars(report, &schedulers, &groups);
    if bars.is_empty() {
        bail!("the result file has no samples to draw; a complete run of `magpie bench` has some");
    }
    let draw = |area: &Area| draw_chart(report, &schedulers, &groups, &bars, area);
    draw_svg((WIDTH, HEIGHT), draw).context("drawing the plot")
}

/// A bar for each scheduler and test that has samples.
fn collect_bars(report: &Report, schedulers: &[&str], groups: &[(&str, &str)]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (group, test) in groups.iter().enumerate() {
        for (scheduler, name) in schedulers.iter().enumerate() {
            let Some((base, row)) = report.baseline(*test).zip(report.row(*test, name)) else {
                continue;
            };
            let Some(relation) = relate(base, row) else {
                continue;
            };
            let reference = Average::for_unit(&base.unit).of(&base.samples);
            let range = row.samples.iter().map(|sample| sample / reference);
            bars.push(Bar {
                scheduler,
                group,
                value: relation.normalized,
                low: range.clone().fold(f64::INFINITY, f64::min),
                high: range.fold(0.0, f64::max),
            });
        }
    }
    bars
}

fn draw_chart(
    report: &Report,
    schedulers: &[&str],
    groups: &[(&str, &str)],
    bars: &[Bar],
    area: &Area,
) -> Result<()> {
    let top = bars.iter().map(|bar| bar.high).fold(1.0, f64::max) * 1.25;
    let mut chart = ChartBuilder::on(area)
        .caption(caption(report), ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.5..groups.len() as f64 - 0.5, 0.0..top)
        .map_err(failed)?;
    let label = |position: &f64| {
        let index = position.round();
        match groups.get(index as usize) {
            Some((workload, case)) if (position - index).abs() < 0.01 => {
                format!("{workload} {case}")
            }
            _ => String::new(),
        }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * groups.len() + 1)
        .x_label_formatter(&label)
        .y_desc(direction(report))
        .draw()
        .map_err(failed)?;

    let width = GROUP_WIDTH / schedulers.len() as f64;
    for (scheduler, name) in schedulers.iter().enumerate() {
        let colour = COLOURS[scheduler % COLOURS.len()];
        let own = bars.iter().filter(|bar| bar.scheduler == scheduler);
        let left = |bar: &Bar| bar.group as f64 - GROUP_WIDTH / 2.0 + width * scheduler as f64;
        chart
            .draw_series(own.clone().map(|bar| {
                let corners = [(left(bar), 0.0), (left(bar) + 0.94 * width, bar.value)];
                Rectangle::new(corners, colour.filled())
            }))
            .map_err(failed)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        chart
            .draw_series(own.map(|bar| {
                let middle = left(bar) + 0.47 * width;
                PathElement::new([(middle, bar.low), (middle, bar.high)], BLACK)
            }))
            .map_err(failed)?;
    }
    draw_legend(&mut chart, SeriesLabelPosition::UpperRight)
}

/// The machine and the kernel.
fn caption(report: &Report) -> String {
    let machine = report
        .machine
        .get("machine")
        .unwrap_or(&serde_json::Value::Null);
    let name = machine.get("name").and_then(|name| name.as_str());
    format!("{}, Linux {}", name.unwrap_or("this host"), report.kernel)
}

/// Which bars are better, if that is the same for all.
fn direction(report: &Report) -> String {
    let base = report.baseline_name();
    let has = |better| report.results.iter().any(|row| row.better == better);
    match (has(Better::Lower), has(Better::Higher)) {
        (true, false) => format!("{base} = 1, lower is better"),
        (false, true) => format!("{base} = 1, higher is better"),
        _ => format!("{base} = 1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    #[test]
    fn bars_are_relative_to_the_baseline_with_the_range_of_the_samples() {
        let report = report_of(&[("eevdf", &[2.0, 2.0]), ("scx_magpie", &[1.0, 2.0])]);
        let bars = collect_bars(&report, &report.schedulers(), &report.tests());
        let found: Vec<_> = bars
            .iter()
            .map(|bar| (bar.value, bar.low, bar.high))
            .collect();
        assert_eq!(found, [(1.0, 1.0, 1.0), (0.75, 0.5, 1.0)]);
    }

    #[test]
    fn the_picture_names_schedulers_cases_and_direction() {
        let svg = render(&report_of(&[("eevdf", &[2.0]), ("scx_magpie", &[1.0])])).unwrap();
        for text in [
            "scx_magpie",
            "hackbench -g 1",
            "lower is better",
            "7.2.12-test",
        ] {
            assert!(svg.contains(text), "{text} is not in the picture");
        }
    }

    #[test]
    fn nothing_to_draw_is_said() {
        let error = render(&report_of(&[("eevdf", &[])]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no samples"), "{error}");
    }
}

//! One test as a strip of horizontal bars, all normalized to the baseline's average: a bar per
//! scheduler, the interval of its average, and a dot for each sample.
//!
//! The bars are horizontal, because schedulers' names with their options are long.

use anyhow::{Context, Result};
use plotters::prelude::*;

use crate::plot::{Area, COLOURS, draw_svg, failed};
use crate::relation::relate;
use crate::report::Report;
use crate::stats::{Average, interval};

const WIDTH: u32 = 960;
const BAR_HEIGHT: u32 = 26;
const AXIS_HEIGHT: u32 = 22;
/// Assumed width of a character in pixels, because the SVG backend cannot measure fonts.
const CHARACTER: u32 = 7;

/// One scheduler's bar; everything is a multiple of the baseline's average.
#[derive(Debug, PartialEq)]
struct Bar<'a> {
    scheduler: &'a str,
    colour: RGBColor,
    value: f64,
    interval: Option<(f64, f64)>,
    samples: Vec<f64>,
}

/// Draws one test as SVG; None if no scheduler has samples to compare.
pub fn render(report: &Report, test: (&str, &str)) -> Result<Option<String>> {
    let bars = collect(report, test);
    if bars.is_empty() {
        return Ok(None);
    }
    let height = AXIS_HEIGHT + 8 + BAR_HEIGHT * bars.len() as u32;
    draw_svg((WIDTH, height), |area| draw(&bars, area))
        .map(Some)
        .with_context(|| format!("drawing {} {}", test.0, test.1))
}

/// The bars of all schedulers that did not fail.
fn collect<'a>(report: &'a Report, test: (&str, &str)) -> Vec<Bar<'a>> {
    let schedulers = report.schedulers();
    let bar = |(index, scheduler): (usize, &&'a str)| {
        let base = report.baseline(test)?;
        let row = report.row(test, scheduler)?;
        if row.failed.is_some() {
            return None;
        }
        let average = Average::for_unit(&row.unit);
        let reference = average.of(&base.samples);
        let (low, high) = interval(&row.samples, average).unzip();
        Some(Bar {
            scheduler,
            colour: COLOURS[index % COLOURS.len()],
            value: relate(base, row)?.normalized,
            interval: low.zip(high).map(|(l, h)| (l / reference, h / reference)),
            samples: row
                .samples
                .iter()
                .map(|sample| sample / reference)
                .collect(),
        })
    };
    schedulers.iter().enumerate().filter_map(bar).collect()
}

fn draw(bars: &[Bar], area: &Area) -> Result<()> {
    let names = bars.iter().map(|bar| bar.scheduler.chars().count());
    let longest = names.max().unwrap_or(0) as u32;
    let left = (longest * CHARACTER + 14).clamp(70, WIDTH / 2);
    let samples = bars.iter().flat_map(|bar| bar.samples.iter().copied());
    let top = samples.fold(1.0, f64::max) * 1.04;
    let rows = bars.len() as f64;

    let mut chart = ChartBuilder::on(area)
        .margin_top(4)
        .margin_right(16)
        .margin_bottom(4)
        .x_label_area_size(AXIS_HEIGHT)
        .y_label_area_size(left)
        .build_cartesian_2d(0.0..top, 0.0..rows)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .x_labels(8)
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()
        .map_err(failed)?;
    for (index, bar) in bars.iter().enumerate() {
        let middle = rows - index as f64 - 0.5;
        let corners = [(0.0, middle - 0.34), (bar.value, middle + 0.34)];
        chart
            .draw_series([Rectangle::new(corners, bar.colour.mix(0.75).filled())])
            .map_err(failed)?;
        if let Some((low, high)) = bar.interval {
            let line = |from, to| PathElement::new([from, to], BLACK.stroke_width(2));
            let caps = [low, high].map(|at| line((at, middle - 0.2), (at, middle + 0.2)));
            let across = line((low, middle), (high, middle));
            chart
                .draw_series(caps.into_iter().chain([across]))
                .map_err(failed)?;
        }
        // Each dot is lower than the one of the round before, so that equal samples do not hide
        // each other.
        let rounds = bar.samples.len() as f64;
        let dots = bar.samples.iter().enumerate().flat_map(|(round, sample)| {
            let height = 0.25 - 0.5 * (round as f64 + 0.5) / rounds;
            let at = (*sample, middle + height);
            [
                Circle::new(at, 3, WHITE.mix(0.9).filled()),
                Circle::new(at, 3, BLACK.mix(0.7).stroke_width(1)),
            ]
        });
        chart.draw_series(dots).map_err(failed)?;
        let (_, y) = chart.backend_coord(&(0.0, middle));
        let name = Text::new(bar.scheduler, (4, y - 7), ("sans-serif", 13));
        area.draw(&name).map_err(failed)?;
    }
    let baseline = PathElement::new([(1.0, 0.0), (1.0, rows)], BLACK.mix(0.5));
    chart.draw_series([baseline]).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    const TEST: (&str, &str) = ("hackbench", "-g 1");

    #[test]
    fn bars_intervals_and_dots_are_multiples_of_the_baseline() {
        let report = report_of(&[("eevdf", &[2.0, 2.0]), ("scx_magpie", &[1.0, 2.0])]);
        let bars = collect(&report, TEST);
        assert_eq!(bars[0].interval, Some((1.0, 1.0)));
        assert_eq!((bars[1].value, bars[1].interval), (0.75, Some((0.5, 1.0))));
        assert_eq!(bars[1].samples, [0.5, 1.0]);
    }

    #[test]
    fn every_sample_has_a_dot_and_failed_rows_have_none() {
        let mut report = report_of(&[
            ("eevdf", &[2.0, 2.5, 2.25]),
            ("scx_a", &[1.0, 2.0]),
            ("scx_b", &[1.0]),
        ]);
        report.results[2].failed = Some("stall".into());
        let svg = render(&report, TEST).unwrap().unwrap();
        // A white disc and a ring around it.
        assert_eq!(svg.matches("<circle").count(), 2 * 5);
        assert!(svg.contains("scx_a") && !svg.contains("scx_b"));
        assert_eq!(render(&report_of(&[("eevdf", &[])]), TEST).unwrap(), None);
    }
}

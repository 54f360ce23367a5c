//! The percentiles of one test as curves: a thick one for each scheduler, a faint one for each run.
//!
//! The axis of percentages is logarithmic, because people feel the slowest requests: 90, 99 and
//! 99.9 % are equally far apart. The thick curve is the median of the runs at each percentile that
//! all of them have.

use anyhow::{Context, Result};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::plot::{Area, COLOURS, draw_legend, draw_svg, failed};
use crate::report::{Curve, Report, Row};
use crate::stats::median;
use crate::table::significant;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 300;
/// The largest ratio of two values that a linear axis shows. Above it, only a logarithmic axis
/// tells the small values apart; below, a logarithmic axis might have no power of ten, and so no
/// number, on it.
const MOST_ON_ONE_SCALE: f64 = 30.0;

/// One scheduler's curves. A point is (n, time): one request in n is slower than this time.
#[derive(Debug, PartialEq)]
struct Lines<'a> {
    scheduler: &'a str,
    colour: RGBColor,
    middle: Vec<(f64, f64)>,
    runs: Vec<Vec<(f64, f64)>>,
}

/// Draws one test as SVG; None if no scheduler has percentiles of it.
pub fn render(report: &Report, test: (&str, &str)) -> Result<Option<String>> {
    let lines = collect(report, test);
    let Some(unit) = lines
        .first()
        .and_then(|line| report.row(test, line.scheduler))
        .map(|row| row.unit.as_str())
    else {
        return Ok(None);
    };
    let values = || lines.iter().flat_map(|line| line.runs.iter().flatten());
    let low = values()
        .map(|(_, value)| *value)
        .fold(f64::INFINITY, f64::min);
    let high = values().map(|(_, value)| *value).fold(low, f64::max);
    let draw = |area: &Area| match high / low > MOST_ON_ONE_SCALE {
        true => draw(&lines, unit, (low * 0.8..high * 1.25).log_scale(), area),
        false => draw(&lines, unit, 0.0..high * 1.1, area),
    };
    draw_svg((WIDTH, HEIGHT), draw)
        .map(Some)
        .with_context(|| format!("drawing the percentiles of {} {}", test.0, test.1))
}

/// The curves of all schedulers that have percentiles of a test.
fn collect<'a>(report: &'a Report, test: (&str, &str)) -> Vec<Lines<'a>> {
    let lines = |(index, scheduler): (usize, &&'a str)| {
        let row = report.row(test, scheduler)?;
        let middle = middle(row);
        (row.failed.is_none() && !middle.is_empty()).then(|| Lines {
            scheduler,
            colour: COLOURS[index % COLOURS.len()],
            middle,
            runs: row.curves.iter().map(points).collect(),
        })
    };
    let schedulers = report.schedulers();
    schedulers.iter().enumerate().filter_map(lines).collect()
}

/// The points of a curve that a logarithmic axis can show: not 100 %, and no value of zero.
fn points(curve: &Curve) -> Vec<(f64, f64)> {
    let has_place = |(percent, value): &&(f64, f64)| *percent < 100.0 && *value > 0.0;
    let place = |(percent, value): &(f64, f64)| (100.0 / (100.0 - percent), *value);
    curve.iter().filter(has_place).map(place).collect()
}

/// The median of the runs at each percentile that all of them have.
fn middle(row: &Row) -> Vec<(f64, f64)> {
    let runs: Vec<_> = row.curves.iter().map(points).collect();
    let at = |(place, _): &(f64, f64)| {
        let value = |run: &Vec<(f64, f64)>| run.iter().find(|(p, _)| p == place).map(|(_, v)| *v);
        let values: Option<Vec<f64>> = runs.iter().map(value).collect();
        Some((*place, median(&values?)))
    };
    runs.first()
        .map_or(Vec::new(), |first| first.iter().filter_map(at).collect())
}

fn draw<Y>(lines: &[Lines], unit: &str, y: Y, area: &Area) -> Result<()>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let places = lines.iter().flat_map(|line| line.runs.iter().flatten());
    let right = places.map(|(place, _)| *place).fold(10.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d((2.0..right * 1.05).log_scale(), y)
        .map_err(failed)?;
    // Rounded by hand, because a fixed number of digits would print `90.000 %`.
    let percent = |place: &f64| format!("{} %", (1e5 - 1e5 / place).round() / 1e3);
    chart
        .configure_mesh()
        .x_label_formatter(&percent)
        .y_label_formatter(&|value| significant(*value))
        .x_desc("so many are done within ...")
        .y_desc(unit)
        .label_style(("sans-serif", 12))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()
        .map_err(failed)?;
    for line in lines {
        let colour = line.colour;
        for run in &line.runs {
            chart
                .draw_series([PathElement::new(run.clone(), colour.mix(0.3))])
                .map_err(failed)?;
        }
        let thick = colour.stroke_width(2);
        chart
            .draw_series([PathElement::new(line.middle.clone(), thick)])
            .map_err(failed)?
            .label(line.scheduler)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], thick));
    }
    draw_legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report_of;

    const TEST: (&str, &str) = ("hackbench", "-g 1");

    fn report() -> Report {
        let mut report = report_of(&[("eevdf", &[1.0, 2.0, 3.0]), ("scx_a", &[1.0])]);
        report.results[0].curves = vec![
            vec![(50.0, 1.0), (90.0, 4.0), (99.0, 8.0)],
            vec![(50.0, 2.0), (90.0, 5.0)],
            vec![(50.0, 3.0), (90.0, 9.0), (99.0, 7.0), (100.0, 9.0)],
        ];
        report
    }

    #[test]
    fn the_middle_goes_as_far_as_every_run() {
        let report = report();
        let lines = collect(&report, TEST);
        assert_eq!(lines.len(), 1, "scx_a has no percentiles");
        let near = |(place, value): (f64, f64), expected: (f64, f64)| {
            (place - expected.0).abs() < 1e-9 && value == expected.1
        };
        assert_eq!(lines[0].middle.len(), 2);
        assert!(near(lines[0].middle[0], (2.0, 2.0)) && near(lines[0].middle[1], (10.0, 5.0)));
        assert_eq!(lines[0].runs[2].len(), 3, "100 % has no place");
    }

    #[test]
    fn the_picture_names_schedulers_percentiles_and_unit() {
        let svg = render(&report(), TEST).unwrap().unwrap();
        for text in ["eevdf", "90 %", "so many are done within"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(!svg.contains("scx_a"));
        assert_eq!(
            render(&report_of(&[("eevdf", &[1.0])]), TEST).unwrap(),
            None
        );
    }

    #[test]
    fn the_axis_has_numbers_whether_values_are_near_or_far() {
        let of = |curve: Curve| {
            let mut report = report();
            report.results[0].curves = vec![curve];
            render(&report, TEST).unwrap().unwrap()
        };
        let near = of(vec![(50.0, 3000.0), (99.0, 5100.0)]);
        assert!(near.contains("4000\n</text>"), "{near}");
        let far = of(vec![(50.0, 9.0), (99.0, 900.0)]);
        assert!(far.contains("100.0\n</text>"), "{far}");
    }
}

//! Metrics as data, and their text.
//!
//! `prometheus-client` writes the text: it knows the rules of OpenMetrics for names, units and
//! escapes. Its own metrics are made for a program that counts for itself; here each scrape brings
//! all numbers, so a collector passes them on.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4, which the node exporter and old versions of Prometheus read.
    Prometheus,
}

impl Format {
    /// Returns the name of the format in HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A label's name and value.
pub type Label = (&'static str, String);

/// A number of a counter or a gauge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A counter that counts events.
    Count(u64),
    /// A counter of seconds.
    Seconds(f64),
    /// A gauge.
    Gauge(f64),
}

impl Number {
    fn encode(self, series: &mut MetricEncoder) -> fmt::Result {
        match self {
            Number::Count(count) => series.encode_counter::<NoLabelSet, _, f64>(&count, None),
            Number::Seconds(seconds) => series.encode_counter::<NoLabelSet, _, f64>(&seconds, None),
            // A whole number reads better without a point.
            Number::Gauge(value) if value == f64::from(value as i32) => {
                series.encode_gauge(&(value as i64))
            }
            Number::Gauge(value) => series.encode_gauge(&value),
        }
    }
}

/// A metric with all its series.
#[derive(Clone, Debug)]
pub struct Family {
    /// The name, without the unit and without the `_total` of a counter.
    pub name: String,
    /// Its meaning.
    pub help: String,
    /// The unit, which ends the name.
    pub unit: Option<Unit>,
    /// The labels and the number of each series. All numbers are of one kind.
    pub series: Vec<(Vec<Label>, Number)>,
}

/// Writes families as text. One without series is left out.
pub fn encode(mut families: Vec<Family>, format: Format) -> String {
    families.retain(|family| !family.series.is_empty());
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut output = String::new();
    text::encode(&mut output, &registry).expect("a string takes any text");
    match format {
        Format::OpenMetrics => output,
        Format::Prometheus => to_prometheus(&output),
    }
}

/// Turns OpenMetrics text into Prometheus' older format: there the description of a counter has the
/// `_total` of its samples, and there is neither a unit nor an end mark.
fn to_prometheus(text: &str) -> String {
    let mut counters = Vec::new();
    for line in text.lines() {
        let described = line.strip_prefix("# TYPE ");
        counters.extend(described.and_then(|rest| rest.strip_suffix(" counter")));
    }
    let mut output = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let (mark, kind, name) = (words.next(), words.next(), words.next().unwrap_or_default());
        let rest = words.next().unwrap_or_default();
        match (mark, kind) {
            (Some("#"), Some("UNIT" | "EOF")) => {}
            (Some("#"), Some(kind)) if counters.contains(&name) => {
                output += &format!("# {kind} {name}_total {rest}\n");
            }
            _ => output += &format!("{line}\n"),
        }
    }
    output
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for family in &self.0 {
            let kind = match family.series.first() {
                Some((_, Number::Gauge(_))) => MetricType::Gauge,
                _ => MetricType::Counter,
            };
            let unit = family.unit.as_ref();
            let mut metric = encoder.encode_descriptor(&family.name, &family.help, unit, kind)?;
            for (labels, number) in &family.series {
                match labels.as_slice() {
                    [] => number.encode(&mut metric)?,
                    labels => number.encode(&mut metric.encode_family(&labels)?)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Family> {
        let odd = "/a\\x2d\"b\"\nc".to_string();
        let family = |name: &str, unit, series| Family {
            name: name.into(),
            help: "A help".into(),
            unit,
            series,
        };
        vec![
            family("m_push", None, vec![(vec![], Number::Count(7))]),
            family("m_none", None, vec![]),
            family(
                "m_search",
                Some(Unit::Seconds),
                vec![(vec![], Number::Seconds(0.5))],
            ),
            family(
                "m_share",
                None,
                vec![(vec![("cgroup", odd)], Number::Gauge(0.25))],
            ),
        ]
    }

    #[test]
    fn openmetrics_has_units_escapes_and_an_end() {
        let text = encode(examples(), Format::OpenMetrics);
        assert_eq!(
            text,
            "# HELP m_push A help\n# TYPE m_push counter\nm_push_total 7\n\
             # HELP m_search_seconds A help\n# TYPE m_search_seconds counter\n\
             # UNIT m_search_seconds seconds\nm_search_seconds_total 0.5\n\
             # HELP m_share A help\n# TYPE m_share gauge\n\
             m_share{cgroup=\"/a\\\\x2d\\\"b\\\"\\nc\"} 0.25\n# EOF\n"
        );
        openmetrics_parser::openmetrics::parse_openmetrics(&text).unwrap();
    }

    #[test]
    fn the_older_format_names_counters_as_their_samples() {
        let text = encode(examples(), Format::Prometheus);
        assert!(
            text.starts_with(
                "# HELP m_push_total A help\n# TYPE m_push_total counter\nm_push_total 7\n"
            ),
            "{text}"
        );
        assert!(!text.contains("UNIT") && !text.contains("EOF"), "{text}");
        openmetrics_parser::prometheus::parse_prometheus(&text).unwrap();
    }
}

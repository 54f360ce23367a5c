//! How a row compares with the baseline's row of the same test.

use crate::report::Row;
use crate::stats::{Average, Better, Verdict, direction, judge_p, mann_whitney};

/// One scheduler's result against the baseline's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relation {
    /// Average over the baseline's average.
    pub normalized: f64,
    /// Percent by which it is better; negative is worse.
    pub improvement: f64,
    /// Whether the difference is real.
    pub verdict: Verdict,
    /// The test's p value.
    pub p: f64,
}

impl Relation {
    /// Do most samples of the row lie to one side of the baseline's, and the average to the other?
    /// Tests compare ranks and the percentage averages, so outliers can make them disagree.
    pub fn contradicts(&self, base: &Row, row: &Row) -> bool {
        direction(&base.samples, &row.samples) * (self.normalized - 1.0) < 0.0
    }
}

/// Compares a row with the baseline's row; None if either has no usable samples.
pub fn relate(base: &Row, row: &Row) -> Option<Relation> {
    let average = Average::for_unit(&row.unit);
    let (reference, value) = (average.of(&base.samples), average.of(&row.samples));
    if !reference.is_finite() || !value.is_finite() || reference == 0.0 {
        return None;
    }
    let normalized = value / reference;
    let improvement = match row.better {
        Better::Lower => 100.0 * (1.0 - normalized),
        Better::Higher => 100.0 * (normalized - 1.0),
    };
    let p = mann_whitney(&base.samples, &row.samples);
    let mut relation = Relation {
        normalized,
        improvement,
        verdict: judge_p(&base.samples, &row.samples, p),
        p,
    };
    if relation.verdict == Verdict::Different && relation.contradicts(base, row) {
        relation.verdict = Verdict::Mixed;
    }
    Some(relation)
}

//! The statistics behind every number and every verdict that the bench prints.
//!
//! A benchmark of a scheduler gives a handful of noisy samples. They are not normally distributed:
//! a run that the host preempts is much slower, and no run is much faster. Therefore:
//! - times are averaged by the arithmetic mean, rates ("messages/s") by the **harmonic** mean,
//!   because the mean of rates over equal work is the harmonic one;
//! - noise is shown as the coefficient of variation (sample standard deviation / mean, percent);
//! - whether two schedulers differ is decided by the **Mann-Whitney U test**, which compares ranks
//!   and assumes no distribution. Where it finds no difference, the table says "same".
//!
//! Means, medians and deviations come from `statrs`. Its U test has no exact form for tied samples,
//! and hackbench prints milliseconds, so ties are the normal case here: at five samples a side the
//! normal approximation that it falls back to is not good enough. [`mann_whitney`] therefore counts
//! the permutation distribution itself, ties included, and leaves only large samples to `statrs`.

use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, Median, Statistics};
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

/// Two-sided error probability below which a difference counts as real.
pub const SIGNIFICANCE: f64 = 0.05;

/// Samples of both sides together up to which the permutation distribution is counted exactly.
/// For more, the normal approximation is good to three digits and much cheaper.
const EXACT_LIMIT: usize = 60;

/// Which direction of a metric is an improvement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better (times, latencies, spreads).
    #[default]
    Lower,
    /// More is better (rates).
    Higher,
}

/// How the samples of one metric are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// Arithmetic mean: times and everything that is not a rate.
    Arithmetic,
    /// Harmonic mean: rates.
    Harmonic,
}

impl Average {
    /// The average that fits a unit: harmonic for "something per second", arithmetic otherwise.
    pub fn for_unit(unit: &str) -> Self {
        if unit.ends_with("/s") {
            Self::Harmonic
        } else {
            Self::Arithmetic
        }
    }

    /// The average of `samples`; NaN when there are none. A rate of zero makes the harmonic mean
    /// zero.
    pub fn of(self, samples: &[f64]) -> f64 {
        match self {
            Self::Arithmetic => samples.iter().mean(),
            Self::Harmonic if samples.contains(&0.0) => 0.0,
            Self::Harmonic => samples.iter().harmonic_mean(),
        }
    }
}

/// The middle sample (the mean of the middle two); NaN when there are none.
pub fn median(samples: &[f64]) -> f64 {
    Data::new(samples.to_vec()).median()
}

/// Coefficient of variation in percent: sample standard deviation over mean.
/// Zero for fewer than two samples, which have no deviation.
pub fn variation_percent(samples: &[f64]) -> f64 {
    let mean = samples.iter().mean();
    if samples.len() < 2 || mean == 0.0 {
        return 0.0;
    }
    100.0 * samples.iter().std_dev() / mean.abs()
}

/// An interval that has the average with 95 % confidence; None for fewer than two samples.
///
/// It is a percentile bootstrap: the average of many draws from the samples with replacement,
/// without the highest and the lowest 2.5 %. It assumes no distribution. The draws are the same
/// each time, so that a report is too. From a handful of samples the interval is somewhat too
/// narrow; verdicts therefore come from [`judge`], not from whether two intervals touch.
pub fn interval(samples: &[f64], average: Average) -> Option<(f64, f64)> {
    const DRAWS: usize = 4000;
    if samples.len() < 2 || samples.iter().any(|sample| !sample.is_finite()) {
        return None;
    }
    let mut random = fastrand::Rng::with_seed(95);
    let mut drawn = vec![0.0; samples.len()];
    let mut averages: Vec<f64> = (0..DRAWS)
        .map(|_| {
            drawn.fill_with(|| samples[random.usize(..samples.len())]);
            average.of(&drawn)
        })
        .collect();
    averages.sort_by(f64::total_cmp);
    Some((averages[DRAWS / 40], averages[DRAWS - 1 - DRAWS / 40]))
}

/// The result of the test of two sets of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The test finds a real difference at [`SIGNIFICANCE`].
    Different,
    /// The test finds no difference, and there are enough samples to find one.
    Same,
    /// There are so few samples that even complete separation would be no evidence.
    #[serde(rename = "few")]
    TooFew,
    /// The test finds a difference, but most samples lie to one side and the average to the other:
    /// outliers decide the average, and its percentage would claim the opposite of the real
    /// difference.
    Mixed,
    /// The rounds ended before the row was decided; see `sequential.rs`.
    Undecided,
}

/// Judges whether two sets of samples differ.
pub fn judge(base: &[f64], other: &[f64]) -> Verdict {
    judge_p(base, other, mann_whitney(base, other))
}

/// Judges whether two sets of samples differ whose [`mann_whitney`] is `p`.
pub fn judge_p(base: &[f64], other: &[f64], p: f64) -> Verdict {
    if smallest_p(base.len(), other.len()) >= SIGNIFICANCE {
        Verdict::TooFew
    } else if p < SIGNIFICANCE {
        Verdict::Different
    } else {
        Verdict::Same
    }
}

/// The side to which the samples of `y` lie: positive if `y` has the greater sample in more pairs.
pub fn direction(x: &[f64], y: &[f64]) -> f64 {
    let pairs = x.iter().flat_map(|a| y.iter().map(move |b| (a, b)));
    pairs.fold(0.0, |sum, (a, b)| match a.partial_cmp(b) {
        Some(std::cmp::Ordering::Less) => sum + 1.0,
        Some(std::cmp::Ordering::Greater) => sum - 1.0,
        _ => sum,
    })
}

/// The smallest p value that `n` and `m` samples without ties can have, which is that of both
/// extreme permutations; one if a side is empty.
fn smallest_p(n: usize, m: usize) -> f64 {
    // 2 / C(n + m, n), factor by factor so that it cannot overflow.
    let choices = (1..=n).fold(1.0, |c, i| c * (m + i) as f64 / i as f64);
    (2.0 / choices).min(1.0)
}

/// Two-sided p value of the Mann-Whitney U test: the probability that samples of *one* distribution
/// are ranked at least as unevenly as these. 1 if a side is empty or a sample is not a number.
pub fn mann_whitney(x: &[f64], y: &[f64]) -> f64 {
    if x.is_empty() || y.is_empty() || x.iter().chain(y).any(|s| s.is_nan()) {
        return 1.0;
    }
    if x.len() + y.len() <= EXACT_LIMIT {
        return exact_p(x, y);
    }
    let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
    // If all samples are equal, the approximation is 0/0, which means no difference.
    match mannwhitneyu(x, y, method, Alternative::TwoSided) {
        Ok((_, p)) if p.is_finite() => p,
        _ => 1.0,
    }
}

/// Counts, over all ways to divide the pooled ranks between the two sides, how many give a rank sum
/// at least as far from the expected one as the observed sum is.
fn exact_p(x: &[f64], y: &[f64]) -> f64 {
    let ranks = doubled_ranks(x, y);
    let total: usize = ranks.iter().sum();
    let observed: usize = ranks[..x.len()].iter().sum();

    // ways[k][s]: how many subsets of k ranks add up to s.
    let mut ways = vec![vec![0.0_f64; total + 1]; x.len() + 1];
    ways[0][0] = 1.0;
    for &rank in &ranks {
        for k in (1..=x.len()).rev() {
            let (fewer, more) = ways.split_at_mut(k);
            for sum in rank..=total {
                more[0][sum] += fewer[k - 1][sum - rank];
            }
        }
    }

    // Distances from the mean n * total / N, times N so that they stay integers and compare
    // exactly.
    let mean = x.len() * total;
    let distance = |sum: usize| (sum * ranks.len()).abs_diff(mean);
    let all: f64 = ways[x.len()].iter().sum();
    let extreme: f64 = (0..=total)
        .filter(|&sum| distance(sum) >= distance(observed))
        .map(|sum| ways[x.len()][sum])
        .sum();
    (extreme / all).min(1.0)
}

/// Twice the rank of each sample of `x`, then `y`, in the pooled order. Tied samples share the mean
/// of their ranks, which is a multiple of a half: doubled, it is an integer.
fn doubled_ranks(x: &[f64], y: &[f64]) -> Vec<usize> {
    let pooled: Vec<f64> = x.iter().chain(y).copied().collect();
    pooled
        .iter()
        .map(|sample| {
            let below = pooled.iter().filter(|other| *other < sample).count();
            let tied = pooled.iter().filter(|other| *other == sample).count();
            2 * below + tied + 1
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 5e-5
    }

    /// Samples whose U statistic is `u`, without ties: x beats y in exactly `u` pairs.
    fn samples_with_u(n: usize, m: usize, u: usize) -> (Vec<f64>, Vec<f64>) {
        let y: Vec<f64> = (1..=m).map(|i| i as f64).collect();
        let mut left = u;
        let x = (0..n)
            .map(|i| {
                let beaten = left.min(m);
                left -= beaten;
                beaten as f64 + 0.5 + i as f64 * 1e-3
            })
            .collect();
        (x, y)
    }

    #[test]
    fn averages_match_hand_computed_values() {
        assert!(close(Average::Arithmetic.of(&[1.0, 2.0, 6.0]), 3.0));
        assert!(close(Average::Harmonic.of(&[40.0, 60.0]), 48.0));
        assert_eq!(Average::Harmonic.of(&[40.0, 0.0]), 0.0);
        assert!(close(median(&[5.0, 1.0, 3.0]), 3.0));
        assert!(close(median(&[4.0, 1.0, 3.0, 2.0]), 2.5));
        // Sample deviation of 2,4,4,4,5,5,7,9 is 2.13809, mean 5.
        assert!(close(
            variation_percent(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]),
            42.76180
        ));
        assert_eq!(variation_percent(&[3.0]), 0.0);
    }

    #[test]
    fn unit_decides_the_average() {
        assert_eq!(Average::for_unit("requests/s"), Average::Harmonic);
        assert_eq!(Average::for_unit("s"), Average::Arithmetic);
        assert_eq!(Average::for_unit("us"), Average::Arithmetic);
    }

    #[test]
    fn mann_whitney_matches_the_scipy_manual() {
        // The worked example of scipy.stats.mannwhitneyu: U = 17, exact p = 0.1111.
        let males = [19.0, 22.0, 16.0, 29.0, 24.0];
        let females = [20.0, 11.0, 17.0, 12.0];
        assert!(close(mann_whitney(&males, &females), 0.11111));
    }

    #[test]
    fn mann_whitney_matches_the_published_critical_values() {
        // Largest U that is significant at two-sided 0.05 (Mann & Whitney's table as every textbook
        // prints it), for n, m.
        for (n, m, critical) in [
            (4, 4, 0),
            (5, 5, 2),
            (5, 8, 6),
            (8, 8, 13),
            (10, 10, 23),
            (20, 20, 127),
        ] {
            let (x, y) = samples_with_u(n, m, critical);
            assert!(
                mann_whitney(&x, &y) <= 0.05,
                "U={critical} at {n},{m} must be significant"
            );
            let (x, y) = samples_with_u(n, m, critical + 1);
            assert!(
                mann_whitney(&x, &y) > 0.05,
                "U={} at {n},{m} must not be",
                critical + 1
            );
        }
        // Complete separation of 5 and 5: 2 of the 252 ways.
        let (x, y) = samples_with_u(5, 5, 0);
        assert!(close(mann_whitney(&x, &y), 2.0 / 252.0));
    }

    #[test]
    fn mann_whitney_counts_ties_exactly() {
        // {1,1} against {1,2}: of the 6 deals the rank sums 4 (x3) and 6 (x3) are equally far out.
        assert_eq!(mann_whitney(&[1.0, 1.0], &[1.0, 2.0]), 1.0);
        assert_eq!(mann_whitney(&[3.0; 5], &[3.0; 5]), 1.0);
        // One tie inside a side changes nothing about complete separation.
        assert!(close(
            mann_whitney(&[1.0, 1.0, 2.0, 3.0], &[4.0, 5.0, 5.0, 6.0]),
            2.0 / 70.0
        ));
    }

    #[test]
    fn intervals_hold_the_true_mean_about_as_often_as_they_say() {
        let mut random = fastrand::Rng::with_seed(7);
        let held = |size: usize, random: &mut fastrand::Rng| {
            let inside = |_: &i32| {
                let samples: Vec<f64> = (0..size).map(|_| 10.0 + random.f64()).collect();
                let (low, high) = interval(&samples, Average::Arithmetic).unwrap();
                low <= 10.5 && 10.5 <= high
            };
            (0..200).filter(inside).count()
        };
        // Of 200, 190 should; from few samples it is too narrow.
        let (few, many) = (held(5, &mut random), held(40, &mut random));
        assert!((150..200).contains(&few), "{few}");
        assert!((180..=198).contains(&many), "{many}");
        let samples = [1.0, 2.0, 3.0];
        assert_eq!(
            interval(&samples, Average::Arithmetic),
            interval(&samples, Average::Arithmetic)
        );
        assert_eq!(interval(&[1.0], Average::Arithmetic), None);
        assert_eq!(interval(&[2.0; 4], Average::Harmonic), Some((2.0, 2.0)));
    }

    #[test]
    fn verdicts_know_what_few_samples_can_show() {
        let fast = [1.0, 1.1, 1.2];
        assert_eq!(judge(&fast, &[9.0, 9.1, 9.2]), Verdict::TooFew);
        assert_eq!(
            judge(&[1.0, 1.1, 1.2, 1.3], &[9.0, 9.1, 9.2, 9.3]),
            Verdict::Different
        );
        assert_eq!(
            judge(&[1.0, 3.0, 5.0, 7.0], &[2.0, 4.0, 6.0, 8.0]),
            Verdict::Same
        );
        assert_eq!(judge(&[], &fast), Verdict::TooFew);
    }

    #[test]
    fn large_samples_agree_with_the_exact_count() {
        let x: Vec<f64> = (0..30).map(|i| f64::from(i * 7 % 31)).collect();
        let y: Vec<f64> = (0..30).map(|i| f64::from(i * 7 % 31) + 4.5).collect();
        let exact = exact_p(&x, &y);
        let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
        let (_, normal) = mannwhitneyu(&x, &y, method, Alternative::TwoSided).unwrap();
        assert!(
            (exact - normal).abs() < 3e-3,
            "exact {exact}, normal {normal}"
        );
        let long = [1.0; 40];
        assert_eq!(mann_whitney(&long, &long), 1.0);
    }

    proptest! {
        #[test]
        fn p_is_a_probability_and_symmetric(
            x in prop::collection::vec(0_u8..20, 1..9),
            y in prop::collection::vec(0_u8..20, 1..9),
        ) {
            let x: Vec<f64> = x.into_iter().map(f64::from).collect();
            let y: Vec<f64> = y.into_iter().map(f64::from).collect();
            let p = mann_whitney(&x, &y);
            prop_assert!(p > 0.0 && p <= 1.0);
            prop_assert!((p - mann_whitney(&y, &x)).abs() < 1e-9);
            // Never below what the sample sizes allow; ties can leave one extreme deal without its
            // mirror image, hence the half.
            prop_assert!(p >= smallest_p(x.len(), y.len()) / 2.0 - 1e-12);
        }

        #[test]
        fn p_depends_on_the_order_only(
            x in prop::collection::vec(1_u16..500, 2..8),
            y in prop::collection::vec(1_u16..500, 2..8),
        ) {
            let stretch = |v: &[u16]| v.iter().map(|s| f64::from(*s).powi(3)).collect::<Vec<_>>();
            let plain = |v: &[u16]| v.iter().map(|s| f64::from(*s)).collect::<Vec<_>>();
            prop_assert_eq!(
                mann_whitney(&plain(&x), &plain(&y)),
                mann_whitney(&stretch(&x), &stretch(&y))
            );
        }

        #[test]
        fn means_lie_between_the_extremes_and_harmonic_below_arithmetic(
            samples in prop::collection::vec(0.001_f64..1e6, 1..30),
        ) {
            let (low, high) = samples.iter().fold((f64::MAX, f64::MIN), |(l, h), s| (l.min(*s), h.max(*s)));
            let arithmetic = Average::Arithmetic.of(&samples);
            let harmonic = Average::Harmonic.of(&samples);
            let slack = 1e-9 * high;
            prop_assert!(harmonic <= arithmetic + slack);
            prop_assert!(harmonic >= low - slack && arithmetic <= high + slack);
            let middle = median(&samples);
            prop_assert!(middle >= low && middle <= high);
            prop_assert!(variation_percent(&samples) >= 0.0);
        }
    }
}

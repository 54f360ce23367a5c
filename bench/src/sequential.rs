//! A test that may be looked at after every round: the statistics of `--until-sure`.
//!
//! [`mann_whitney`](crate::stats::mann_whitney) keeps its error rate if the number of rounds is
//! fixed before. A run that looks at p after each round, and stops when p falls below 0.05, calls
//! far more than one of twenty equal pairs different. The test here is *always valid*: whatever the
//! rule by which the rounds end, at most one of twenty equal pairs is ever called different.
//!
//! It is a mixture sequential probability ratio test of the ranks. After n rounds, the order of
//! all 2n samples has a known probability if both sides have the same distribution: each deal of
//! sides to ranks is as likely. It also has a known probability under Lehmann's alternatives, in
//! which one side's distribution function, or its complement, is a power d of the other's. The
//! *evidence* is the ratio of both, averaged over a fixed set of d. It is a martingale with mean 1
//! while the sides are equal, so that it ever reaches 20 with a probability of at most 1/20
//! (Ville's inequality); 1 / (its greatest value so far) is a p value at every moment. Only ranks
//! count, so no distribution is assumed.
//!
//! - I. R. Savage, J. Sethuraman: Stopping time of a rank-order sequential probability ratio test
//!   based on Lehmann alternatives. Annals of Mathematical Statistics 37 (1966), 1154-1160.
//! - H. Robbins: Statistical methods related to the law of the iterated logarithm. Annals of
//!   Mathematical Statistics 41 (1970), 1397-1409. (Mixtures.)
//! - R. Johari, P. Koomen, L. Pekelis, D. Walsh: Always valid inference: continuous monitoring of
//!   A/B tests. Operations Research 70 (2022), 1806-1821.
//!
//! A row is also decided if the difference is known to be *small*: multiplied by 1 + margin, the
//! other side's samples are significantly greater; divided by it, significantly less. These are two
//! one-sided tests of the same kind, and the factors that no test rejects are a confidence sequence
//! of the ratio. A ratio of 1 + margin or more is called same in at most one of twenty rows.
//!
//! Equal samples get their order by lot, because only orders without ties have a known probability.
//! The evidence is the mean over some lots, which is a martingale too, and the lots depend on
//! nothing but the number of the round, so that the same samples give the same verdict.

use crate::stats::{SIGNIFICANCE, Verdict};

/// Logarithms of the powers d of the alternatives: from a difference of the size of the noise to
/// complete separation.
const LOG_POWERS: [f64; 5] = [0.5, 1.0, 1.7, 2.7, 4.0];

/// How many orders of equal samples are drawn.
const LOTS: u64 = 8;

/// Which side is expected to have the greater samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greater {
    First,
    Second,
    Either,
}

/// The question that the test asks of a row, and how sure the answer must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// The share up to which a difference is small, which decides a row too; None if a small
    /// difference decides nothing.
    pub margin: Option<f64>,
    /// The first side's samples are multiplied by this before the sides are compared.
    pub factor: f64,
    /// The probability with which the sides may be called different though they are not.
    pub significance: f64,
}

/// Do the sides differ, or by less than this share?
impl From<f64> for Question {
    fn from(margin: f64) -> Self {
        Self {
            margin: Some(margin),
            factor: 1.0,
            significance: SIGNIFICANCE,
        }
    }
}

impl Question {
    /// On which side of the first side's samples times `factor` are the second side's?
    pub fn side_of(factor: f64, significance: f64) -> Self {
        Self {
            margin: None,
            factor,
            significance,
        }
    }
}

/// The verdict of a row after some rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// [`Verdict::Different`], [`Verdict::Same`], or [`Verdict::Undecided`].
    pub verdict: Verdict,
    /// The always-valid p value of the difference.
    pub p: f64,
    /// The round whose samples decided; None if undecided.
    pub round: Option<usize>,
}

/// The test of one row, round by round.
#[derive(Clone, Debug)]
pub struct Sequential {
    question: Question,
    /// Rounds looked at.
    rounds: usize,
    /// The greatest evidence of a difference so far.
    most: f64,
    /// The other side is known not to be less by the margin.
    is_not_less: bool,
    /// The other side is known not to be greater by the margin.
    is_not_greater: bool,
    verdict: Verdict,
}

impl Sequential {
    /// A test without a sample.
    pub fn new(question: Question) -> Self {
        Self {
            question,
            rounds: 0,
            most: 1.0,
            is_not_less: false,
            is_not_greater: false,
            verdict: Verdict::Undecided,
        }
    }

    /// Looks at the samples of all rounds so far, of which the last is new. Samples of the same
    /// index come from the same round; if a side has more, they are left out. After a decision the
    /// samples change nothing.
    pub fn look(&mut self, base: &[f64], other: &[f64]) -> Decision {
        let rounds = base.len().min(other.len());
        if self.verdict == Verdict::Undecided && rounds > self.rounds {
            self.rounds = rounds;
            self.judge(&base[..rounds], &other[..rounds]);
        }
        self.decision()
    }

    /// The decision so far.
    pub fn decision(&self) -> Decision {
        Decision {
            verdict: self.verdict,
            p: 1.0 / self.most,
            round: (self.verdict != Verdict::Undecided).then_some(self.rounds),
        }
    }

    /// Updates what is known: the difference first, then whether it is small.
    fn judge(&mut self, base: &[f64], other: &[f64]) {
        let Question {
            margin,
            factor,
            significance,
        } = self.question;
        let scaled: Vec<f64> = base.iter().map(|sample| sample * factor).collect();
        self.most = self.most.max(evidence(&scaled, other, Greater::Either));
        if 1.0 / self.most < significance {
            self.verdict = Verdict::Different;
            return;
        }
        let Some(margin) = margin else { return };
        let is_sure = |factor: f64, greater| {
            let scaled: Vec<f64> = other.iter().map(|sample| sample * factor).collect();
            1.0 / evidence(base, &scaled, greater) < SIGNIFICANCE
        };
        let factor = 1.0 + margin;
        self.is_not_less = self.is_not_less || is_sure(factor, Greater::Second);
        self.is_not_greater = self.is_not_greater || is_sure(1.0 / factor, Greater::First);
        if self.is_not_less && self.is_not_greater {
            self.verdict = Verdict::Same;
        }
    }
}

/// Judges all samples of a row as [`Sequential::look`] did round by round.
pub fn decide(base: &[f64], other: &[f64], question: impl Into<Question>) -> Decision {
    let mut test = Sequential::new(question.into());
    for rounds in 1..=base.len().min(other.len()) {
        test.look(&base[..rounds], &other[..rounds]);
    }
    test.decision()
}

/// The probability of the order of the samples under the alternatives, over that under equality.
fn evidence(x: &[f64], y: &[f64], greater: Greater) -> f64 {
    // A sample that is no number has no rank, and says nothing.
    if x.iter().chain(y).any(|sample| sample.is_nan()) {
        return 1.0;
    }
    let mut samples: Vec<(f64, u64, bool)> = Vec::with_capacity(x.len() + y.len());
    let mut sum = 0.0;
    for lot in 0..LOTS {
        samples.clear();
        for (values, is_second) in [(x, false), (y, true)] {
            let drawn = values.iter().enumerate().map(|(round, value)| {
                let seed = (round as u64) << 8 | lot << 1 | u64::from(is_second);
                (*value, scramble(seed), is_second)
            });
            samples.extend(drawn);
        }
        samples.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let order: Vec<bool> = samples.iter().map(|(_, _, second)| *second).collect();
        sum += evidence_of_order(&order, greater);
        if lot == 0 && samples.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return sum;
        }
    }
    sum / LOTS as f64
}

/// The evidence of an order from the least sample to the greatest; true is the second side's.
fn evidence_of_order(order: &[bool], greater: Greater) -> f64 {
    let reversed: Vec<bool> = order.iter().rev().copied().collect();
    let (mut sum, mut alternatives) = (0.0, 0);
    for log_power in LOG_POWERS {
        for sign in [-1.0, 1.0] {
            let power = f64::exp(sign * log_power);
            // With distribution functions F and F^d, the side with a power above one has the
            // greater samples; with their complements, the smaller ones.
            for (order, second_is_greater) in [(order, sign > 0.0), (&reversed, sign < 0.0)] {
                let is_asked = match greater {
                    Greater::First => !second_is_greater,
                    Greater::Second => second_is_greater,
                    Greater::Either => true,
                };
                if is_asked {
                    sum += likelihood_ratio(order, power);
                    alternatives += 1;
                }
            }
        }
    }
    sum / f64::from(alternatives)
}

/// The probability of an order if the distribution functions are F and F^power, over that if both
/// are F: the product of `i * power^(second) / (u + power * v)`, where u and v are how many of the
/// i least samples are the first and the second side's.
fn likelihood_ratio(order: &[bool], power: f64) -> f64 {
    let (mut first, mut second) = (0.0_f64, 0.0_f64);
    let mut ratio = 1.0;
    for is_second in order {
        let factor = match is_second {
            true => {
                second += 1.0;
                power
            }
            false => {
                first += 1.0;
                1.0
            }
        };
        ratio *= factor * (first + second) / (first + power * second);
    }
    ratio
}

/// A number that looks random, the same for the same `seed` (the finalizer of splitmix64).
fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All orders of n samples of each side.
    fn orders(n: usize) -> impl Iterator<Item = Vec<bool>> {
        let all = (0..1_u32 << (2 * n)).filter(move |bits| bits.count_ones() as usize == n);
        all.map(move |bits| (0..2 * n).map(|i| bits >> i & 1 == 1).collect())
    }

    #[test]
    fn the_probabilities_of_all_orders_add_up_to_one() {
        for n in 1..=6 {
            for power in [0.02, 0.5, 1.0, 3.0, 50.0] {
                let ratios: Vec<f64> = orders(n).map(|o| likelihood_ratio(&o, power)).collect();
                let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
                assert!((mean - 1.0).abs() < 1e-9, "{n} {power}: {mean}");
            }
        }
    }

    #[test]
    fn one_of_two_is_greater_with_the_odds_of_the_power() {
        // P(y > x) is d / (1 + d) if F_y = F_x^d; under equality it is 1/2.
        assert!((likelihood_ratio(&[false, true], 3.0) - 1.5).abs() < 1e-12);
        assert!((likelihood_ratio(&[true, false], 3.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn complete_separation_is_decided_after_five_rounds() {
        let low: Vec<f64> = (0..9).map(f64::from).collect();
        let high: Vec<f64> = low.iter().map(|s| s + 100.0).collect();
        for (x, y) in [(&low, &high), (&high, &low)] {
            let decision = decide(x, y, 0.03);
            assert_eq!(
                (decision.verdict, decision.round),
                (Verdict::Different, Some(5))
            );
        }
        // Four rounds can be separated by chance in 2 of 70 cases, and would be looked at first.
        assert_eq!(
            decide(&low[..4], &high[..4], 0.03).verdict,
            Verdict::Undecided
        );
    }

    #[test]
    fn a_factor_moves_the_bar_and_a_small_significance_takes_more_rounds() {
        let low: Vec<f64> = (0..9).map(|i| 100.0 + f64::from(i)).collect();
        let high: Vec<f64> = low.iter().map(|s| s * 1.5).collect();
        let question = Question::side_of(1.2, SIGNIFICANCE);
        for other in [&low, &high] {
            let decision = decide(&low, other, question);
            assert_eq!(
                (decision.verdict, decision.round),
                (Verdict::Different, Some(5))
            );
        }
        let stricter = Question::side_of(1.2, SIGNIFICANCE / 5.0);
        assert!(decide(&low, &high, stricter).round > Some(5));
        // Equal sides are never decided without a margin.
        let equal = Question::side_of(1.0, SIGNIFICANCE);
        assert_eq!(decide(&low, &low, equal).verdict, Verdict::Undecided);
    }

    #[test]
    fn equal_samples_are_the_same_and_nothing_is_undecided() {
        let decision = decide(&[5.0; 9], &[5.0; 9], 0.03);
        assert_eq!((decision.verdict, decision.round), (Verdict::Same, Some(4)));
        assert_eq!(decide(&[], &[1.0], 0.03).verdict, Verdict::Undecided);
        let unusable = decide(&[1.0, f64::NAN], &[2.0, 2.0], 0.03);
        assert_eq!((unusable.verdict, unusable.p), (Verdict::Undecided, 1.0));
    }

    #[test]
    fn samples_after_the_decision_change_nothing() {
        let (mut x, mut y) = (vec![1.0; 5], vec![2.0; 5]);
        let mut test = Sequential::new(0.03.into());
        for rounds in 1..=5 {
            test.look(&x[..rounds], &y[..rounds]);
        }
        let decided = test.decision();
        x.extend([9.0; 20]);
        y.extend([9.0; 20]);
        assert_eq!(test.look(&x, &y), decided);
        assert_eq!(decide(&x, &y, 0.03), decided);
    }

    proptest! {
        #[test]
        fn the_sides_are_alike_and_only_ranks_count(
            x in prop::collection::vec(1_u32..1_000_000, 3..12),
            y in prop::collection::vec(1_u32..1_000_000, 3..12),
        ) {
            let plain = |v: &[u32]| v.iter().map(|s| f64::from(*s)).collect::<Vec<_>>();
            let cubed = |v: &[u32]| v.iter().map(|s| f64::from(*s).powi(3)).collect::<Vec<_>>();
            let mut all = [x.clone(), y.clone()].concat();
            all.sort_unstable();
            prop_assume!(all.windows(2).all(|pair| pair[0] < pair[1]));
            let (x, y) = (x.as_slice(), y.as_slice());
            let either = evidence(&plain(x), &plain(y), Greater::Either);
            prop_assert_eq!(either, evidence(&cubed(x), &cubed(y), Greater::Either));
            if x.len() == y.len() {
                let swapped = evidence(&plain(y), &plain(x), Greater::Either);
                prop_assert!((either / swapped - 1.0).abs() < 1e-9);
                let first = evidence(&plain(x), &plain(y), Greater::First);
                let second = evidence(&plain(y), &plain(x), Greater::Second);
                prop_assert!((first / second - 1.0).abs() < 1e-9);
            }
        }
    }
}

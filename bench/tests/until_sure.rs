//! Does `--until-sure` keep the error rates that it promises, and how many rounds does it save?
//!
//! Samples of known truth, under the kinds of noise that benchmarks have, are judged after each
//! round. The seeds are fixed, so that the figures are the same each time; they are printed.

mod noise;

use magpie_bench::sequential::decide;
use magpie_bench::stats::{Verdict, mann_whitney};
use noise::{KINDS, Noise, coarse, disturbed, quiet};

const MARGIN: f64 = 0.03;
/// Rounds at which a row that is not decided is given up.
const LIMIT: usize = 30;
const TRIALS: usize = 10_000;

/// Shares of the trials.
#[derive(Debug)]
struct Shares {
    different: f64,
    same: f64,
    /// Mean number of rounds until the decision or the limit.
    rounds: f64,
}

fn simulate(noise: Noise, slower: f64, limit: usize, trials: usize, seed: u64) -> Shares {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut draw =
        |factor: f64| -> Vec<f64> { (0..limit).map(|_| noise(&mut random) * factor).collect() };
    let decisions = (0..trials).map(|_| decide(&draw(1.0), &draw(slower), MARGIN));
    let decisions: Vec<_> = decisions.collect();
    let share = |verdict| {
        let called = decisions.iter().filter(|d| d.verdict == verdict);
        called.count() as f64 / trials as f64
    };
    let rounds: usize = decisions.iter().map(|d| d.round.unwrap_or(limit)).sum();
    Shares {
        different: share(Verdict::Different),
        same: share(Verdict::Same),
        rounds: rounds as f64 / trials as f64,
    }
}

#[test]
fn the_same_against_itself_is_called_different_at_most_once_in_twenty() {
    // No row is decided the same here, so that each trial is looked at up to the limit: that is the
    // most that a stopping rule can ask for.
    for (name, noise) in KINDS {
        let mut random = fastrand::Rng::with_seed(1966);
        let draw = |random: &mut fastrand::Rng| -> Vec<f64> {
            (0..LIMIT).map(|_| noise(random)).collect()
        };
        let (mut always_valid, mut naive) = (0, 0);
        for trial in 0..TRIALS {
            let (x, y) = (draw(&mut random), draw(&mut random));
            let decision = decide(&x, &y, 0.0);
            always_valid += usize::from(decision.verdict == Verdict::Different);
            // The U test after each of 4 to 15 rounds, for fewer trials because it is slow.
            if trial < TRIALS / 10 {
                let looks = (4..=LIMIT / 2).any(|n| mann_whitney(&x[..n], &y[..n]) < 0.05);
                naive += usize::from(looks);
            }
        }
        let share = always_valid as f64 / TRIALS as f64;
        println!(
            "A/A, {name} noise, {TRIALS} trials of up to {LIMIT} rounds: {:.2} % called different \
             (the U test after each of 15 rounds: {:.1} %)",
            100.0 * share,
            100.0 * naive as f64 / (TRIALS / 10) as f64
        );
        assert!(share <= 0.05, "{name}: {share}");
    }
}

#[test]
fn a_difference_of_the_margin_is_called_the_same_at_most_once_in_twenty() {
    for (name, noise) in KINDS {
        for ratio in [1.0 + MARGIN, 1.0 / (1.0 + MARGIN)] {
            let shares = simulate(noise, ratio, LIMIT, TRIALS / 5, 1970);
            println!(
                "a difference of the margin ({ratio:.3}), {name} noise: {:.2} % called the same",
                100.0 * shares.same
            );
            assert!(shares.same <= 0.05, "{name}, {ratio}: {shares:?}");
        }
    }
}

#[test]
fn rounds_are_saved_and_differences_are_found() {
    // (noise, ratio, rounds of the U test that find as many, least share of right verdicts)
    for (name, noise, ratio, fixed, least) in [
        ("quiet", quiet as Noise, 1.0, LIMIT, 0.95),
        ("disturbed", disturbed, 1.0, LIMIT, 0.60),
        ("coarse", coarse, 1.0, LIMIT, 0.95),
        ("quiet", quiet, 1.05, 8, 0.98),
        ("coarse", coarse, 1.05, 8, 0.98),
        ("disturbed", disturbed, 1.05, 30, 0.95),
        ("quiet", quiet, 1.10, 5, 0.98),
        ("disturbed", disturbed, 1.10, 15, 0.95),
    ] {
        let trials = TRIALS / 5;
        let shares = simulate(noise, ratio, LIMIT, trials, 1954);
        let right = match ratio == 1.0 {
            true => shares.same,
            false => shares.different,
        };
        let mut random = fastrand::Rng::with_seed(1947);
        let mut draw =
            |factor: f64| -> Vec<f64> { (0..fixed).map(|_| noise(&mut random) * factor).collect() };
        let found = |_: &i32| mann_whitney(&draw(1.0), &draw(ratio)) < 0.05;
        let found = (0..200).filter(found).count() as f64 / 200.0;
        println!(
            "ratio {ratio:.2}, {name} noise: {:.1} % right after {:.1} rounds on average; the U \
             test calls {:.1} % different after a fixed {fixed}",
            100.0 * right,
            shares.rounds,
            100.0 * found
        );
        assert!(right >= least, "{name}, {ratio}: {shares:?}");
        if ratio != 1.10 || name != "quiet" {
            assert!(
                shares.rounds < 0.85 * fixed as f64,
                "{name}, {ratio}: {shares:?}"
            );
        }
    }
}

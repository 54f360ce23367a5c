//! The noise of benchmarks, to draw samples whose true distribution is known.

/// Draws one sample of about 1.
pub type Noise = fn(&mut fastrand::Rng) -> f64;

/// Each kind of noise with its name.
pub const KINDS: [(&str, Noise); 3] = [
    ("quiet", quiet),
    ("disturbed", disturbed),
    ("coarse", coarse),
];

/// Draws from the standard normal distribution (Box and Muller).
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// A quiet machine: 2 % variation.
pub fn quiet(random: &mut fastrand::Rng) -> f64 {
    (0.02 * normal(random)).exp()
}

/// A shared host: one run in five is slow by up to a half, none is fast.
pub fn disturbed(random: &mut fastrand::Rng) -> f64 {
    let slow = match random.u8(..5) {
        0 => 0.5 * random.f64(),
        _ => 0.0,
    };
    quiet(random) * (1.0 + slow)
}

/// A short run whose program prints hundredths: nearly all samples are tied with others.
pub fn coarse(random: &mut fastrand::Rng) -> f64 {
    (quiet(random) * 50.0).round() / 50.0
}

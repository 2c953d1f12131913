//! What the detection of warm-up does to series that have none, and to series that have some.

use tprimat::results::changes;

use super::noise::{Noise, Random, Tails, mean};

/// Mean share that is cut, how often anything is, and the relative bias of the mean step time.
struct Cutting {
    share: f64,
    often: f64,
    bias: f64,
    told: f64,
}

fn cutting(
    trials: usize,
    cut: impl Fn(&[f64]) -> (usize, bool),
    mut series: impl FnMut() -> Vec<f64>,
    truth: Option<f64>,
) -> Cutting {
    let mut sum = Cutting {
        share: 0.0,
        often: 0.0,
        bias: 0.0,
        told: 0.0,
    };
    for _ in 0..trials {
        let times = series();
        let (at, shift) = cut(&times);
        sum.share += at as f64 / times.len() as f64;
        sum.often += f64::from(u8::from(at > 0));
        sum.told += f64::from(u8::from(shift));
        sum.bias += mean(&times[at..]) / truth.unwrap_or_else(|| mean(&times)) - 1.0;
    }
    let n = trials as f64;
    Cutting {
        share: sum.share / n,
        often: sum.often / n,
        bias: sum.bias / n,
        told: sum.told / n,
    }
}

fn ours(times: &[f64]) -> (usize, bool) {
    let found = changes(times, times.len() / 2);
    (found.cut, !found.shifts.is_empty())
}

/// MSER-5 (White, Cobb and Spratt 2000), for comparison: the truncation that minimises the rest's
/// standard error.
fn mser5(times: &[f64]) -> (usize, bool) {
    let batches: Vec<f64> = times.chunks_exact(5).map(mean).collect();
    let error = |rest: &[f64]| {
        let m = mean(rest);
        rest.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (rest.len() as f64).powi(2)
    };
    let best = (0..=batches.len() / 2)
        .min_by(|a, b| error(&batches[*a..]).total_cmp(&error(&batches[*b..])));
    (best.unwrap_or(0) * 5, false)
}

#[test]
fn noise_is_not_shaved_off() {
    const TRIALS: usize = 1000;
    for tails in [Tails::Normal, Tails::Heavy, Tails::Outliers] {
        for phi in [0.0, 0.5, 0.8] {
            for n in [20, 50, 100, 200] {
                let noise = Noise {
                    phi,
                    sd: 0.01,
                    tails,
                };
                let run = |cut: fn(&[f64]) -> (usize, bool)| {
                    let mut random = Random(n as u64);
                    cutting(TRIALS, cut, || noise.steps(n, &mut random), None)
                };
                let (found, mser) = (run(ours), run(mser5));
                println!(
                    "{tails:?} phi {phi} n {n}: cut {:.1} % of runs, {:.2} % of steps, bias {:+.3} %, shift told {:.1} %; MSER-5 cuts {:.1} % of steps, bias {:+.3} %",
                    found.often * 100.0,
                    found.share * 100.0,
                    found.bias * 100.0,
                    found.told * 100.0,
                    mser.share * 100.0,
                    mser.bias * 100.0
                );
                assert!(
                    found.share < 0.015 && found.often < 0.07 && found.told < 0.03,
                    "{tails:?} {phi} {n}"
                );
                // A run has few outliers, and one at its very start counts as warm-up.
                assert!(
                    found.bias.abs()
                        < if tails == Tails::Outliers {
                            0.0015
                        } else {
                            0.0002
                        },
                    "{tails:?} {phi} {n}"
                );
            }
        }
    }
}

/// What a slow start adds to step `i` of `n`, relative to the level.
type Start = fn(f64, f64) -> f64;

#[test]
fn a_slow_start_hardly_moves_the_figure() {
    const TRIALS: usize = 100;
    // Name, shape, and how much bias may be left at 200 and 500 steps, with independent noise.
    let starts: [(&str, Start, f64); 6] = [
        (
            "8 steps of 3 times",
            |i, _| if i < 8.0 { 2.0 } else { 0.0 },
            0.0003,
        ),
        (
            "2 steps of +30 %",
            |i, _| if i < 2.0 { 0.3 } else { 0.0 },
            0.0003,
        ),
        (
            "+20 % falling by e in 20 steps",
            |i, _| 0.2 * (-i / 20.0).exp(),
            0.002,
        ),
        (
            "10 % of the run at +5 %",
            |i, n| if i < 0.1 * n { 0.05 } else { 0.0 },
            0.002,
        ),
        (
            "30 % of the run at +3 %",
            |i, n| if i < 0.3 * n { 0.03 } else { 0.0 },
            0.001,
        ),
        (
            "+6 % falling to 0 over 40 % of the run",
            |i, n| 0.06 * (1.0 - i / (0.4 * n)).max(0.0),
            0.001,
        ),
    ];
    for (name, start, left) in starts {
        for phi in [0.0, 0.5, 0.8] {
            for n in [50, 200, 500] {
                let noise = Noise {
                    phi,
                    sd: 0.01,
                    tails: Tails::Normal,
                };
                let mut random = Random(n as u64 + 9);
                let mut series = || -> Vec<f64> {
                    let steps = noise.steps(n, &mut random);
                    steps
                        .iter()
                        .enumerate()
                        .map(|(i, t)| t + start(i as f64, n as f64))
                        .collect()
                };
                let whole = cutting(TRIALS, |_| (0, false), &mut series, Some(1.0));
                let found = cutting(TRIALS, ours, &mut series, Some(1.0));
                println!(
                    "{name}, phi {phi} n {n}: bias {:+.2} % becomes {:+.2} %",
                    whole.bias * 100.0,
                    found.bias * 100.0
                );
                assert!(
                    found.bias.abs() <= whole.bias.abs() + 0.001,
                    "never worse: {name} {phi} {n}"
                );
                if n >= 200 && phi == 0.0 {
                    assert!(found.bias.abs() < left, "{name} {phi} {n}: {}", found.bias);
                }
            }
        }
    }
}

#[test]
fn a_shift_after_the_middle_is_told_and_not_cut() {
    const TRIALS: usize = 300;
    for (size, phi, least) in [(0.03, 0.0, 0.95), (0.03, 0.5, 0.95), (0.05, 0.8, 0.9)] {
        let noise = Noise {
            phi,
            sd: 0.01,
            tails: Tails::Normal,
        };
        let mut random = Random(5);
        let series = || -> Vec<f64> {
            let steps = noise.steps(400, &mut random);
            steps
                .iter()
                .enumerate()
                .map(|(i, t)| if i < 280 { *t } else { t + size })
                .collect()
        };
        let found = cutting(TRIALS, ours, series, Some(1.0));
        println!(
            "shift of {size} at 70 %, phi {phi}: told {:.0} %, cut {:.1} %",
            found.told * 100.0,
            found.often * 100.0
        );
        assert!(found.told >= least && found.often < 0.03, "{size} {phi}");
    }
}

/// A run of 50 steps of which 5 are warm-up: what people make by default.
#[test]
fn the_larger_a_shift_the_surer_it_is_told() {
    const TRIALS: usize = 300;
    for (n, at) in [(35, 21), (45, 22), (45, 33), (95, 57)] {
        for phi in [0.0, 0.5] {
            let mut before = 0.0;
            for size in [0.0, 0.03, 0.05, 0.1, 0.5, 1.0] {
                let noise = Noise {
                    phi,
                    sd: 0.01,
                    tails: Tails::Normal,
                };
                let mut random = Random(n as u64 + 31);
                let mut found = 0;
                for _ in 0..TRIALS {
                    let steps = noise.steps(n, &mut random);
                    let times: Vec<f64> = steps
                        .iter()
                        .enumerate()
                        .map(|(i, t)| if i < at { *t } else { t + size })
                        .collect();
                    let (cut, shift) = ours(&times);
                    found += usize::from(cut > 0 || shift);
                }
                let share = found as f64 / TRIALS as f64;
                println!(
                    "{n} steps, phi {phi}, {:+.0} % from step {at}: told {:.1} %",
                    size * 100.0,
                    share * 100.0
                );
                if size == 0.0 {
                    assert!(share < 0.03, "{n} {phi}");
                } else {
                    assert!(
                        share >= before - 0.05,
                        "{n} {phi} {size}: a larger one is not harder to see"
                    );
                    before = share;
                }
                if size >= 0.5 {
                    assert!(share > 0.97, "{n} {phi} {size}");
                }
            }
        }
    }
}

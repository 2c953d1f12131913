//! What intervals and verdicts are worth where runs do not vary normally and independently: skewed
//! noise, two modes, a slow run now and then, a machine whose level moves.

use tprimat::{
    figures::LEVEL_SD,
    results::{t_interval, verdicts, welch},
};

use super::noise::Random;

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Normal,
    Skewed,
    /// 30 % of the runs in the slower mode.
    TwoModes,
    /// One run in ten.
    SomeSlow,
    /// Each run remembers the one before: φ.
    Remembering(f64),
}

impl Shape {
    /// Logarithms of `n` runs in order, of mean 0 and standard deviation 1.
    pub fn runs(self, n: usize, random: &mut Random) -> Vec<f64> {
        let mut state = random.normal();
        let mut run = |at: usize| match self {
            Self::Normal => random.normal(),
            Self::Skewed => {
                let e = std::f64::consts::E;
                (random.normal().exp() - e.sqrt()) / ((e - 1.0) * e).sqrt()
            }
            Self::TwoModes => {
                let mode = if random.uniform() < 0.3 {
                    1.526
                } else {
                    -0.654
                };
                (mode + 0.3 * random.normal()) / 1.09f64.sqrt()
            }
            Self::SomeSlow => {
                let slow = if random.uniform() < 0.1 { 9.0 } else { -1.0 };
                (slow + random.normal()) / 10f64.sqrt()
            }
            Self::Remembering(phi) => {
                if at > 0 {
                    state = phi * state + (1.0 - phi * phi).sqrt() * random.normal();
                }
                state
            }
        };
        (0..n).map(&mut run).collect()
    }
}

fn rates(logs: &[f64], sd: f64) -> Vec<f64> {
    logs.iter().map(|log| (-sd * log).exp()).collect()
}

#[test]
fn an_interval_covers_less_where_runs_are_not_normal() {
    const TRIALS: usize = 10_000;
    let shapes = [
        (Shape::Normal, 0.94),
        (Shape::Skewed, 0.78),
        (Shape::TwoModes, 0.77),
        (Shape::SomeSlow, 0.68),
        (Shape::Remembering(0.7), 0.55),
    ];
    for (shape, least) in shapes {
        for n in [2, 3, 4, 5, 9] {
            let mut random = Random(11);
            let covers = |_: &usize| {
                let interval = t_interval(&rates(&shape.runs(n, &mut random), 0.01));
                interval.is_some_and(|[low, high]| low <= 1.0 && 1.0 <= high)
            };
            let share = (0..TRIALS).filter(covers).count() as f64 / TRIALS as f64;
            println!(
                "coverage of a cell's interval, {shape:?}, {n} units: {:.1} %",
                share * 100.0
            );
            assert!(share >= least, "{shape:?} {n}: {share}");
        }
    }
}

/// One machine whose level moves by 1 %, two identical arms: told apart where all runs of one come first,
/// unless the test is as wide as for arms that were not measured in turns.
#[test]
fn arms_that_were_not_measured_in_turns_are_not_told_apart_by_what_moves_the_machine() {
    const TRIALS: usize = 10_000;
    for phi in [0.7, 0.9] {
        for n in [3, 4, 5, 10] {
            let mut random = Random(12);
            let [mut plain, mut wide, mut turns] = [0; 3];
            for _ in 0..TRIALS {
                let runs = rates(&Shape::Remembering(phi).runs(2 * n, &mut random), 0.01);
                let test = welch(&runs[..n], &runs[n..]).unwrap();
                plain += usize::from(verdicts(&[test])[0].significant);
                let test = test.wider(2.0 * LEVEL_SD.powi(2)).unwrap();
                wide += usize::from(verdicts(&[test])[0].significant);
                let every = |from: usize| -> Vec<f64> {
                    runs.iter().skip(from).step_by(2).copied().collect()
                };
                let test = welch(&every(0), &every(1)).unwrap();
                turns += usize::from(verdicts(&[test])[0].significant);
            }
            let [plain, wide, turns] =
                [plain, wide, turns].map(|n| n as f64 / TRIALS as f64 * 100.0);
            println!(
                "phi {phi}, {n} repeats: one after the other {plain:.1} %, wider {wide:.1} %, in turns {turns:.1} %"
            );
            assert!(
                wide <= 5.0 && turns <= 5.0 && plain > 10.0,
                "{phi} {n}: {plain} {wide} {turns}"
            );
        }
    }
}

//! What `build --decide` is worth: error rates of decisions on pairs of runs, and how many runs they
//! take beside a number that is fixed beforehand.

use tprimat::results::{Decision, Sequential, welch};

use super::{noise::Random, shapes::Shape};

const MARGIN: f64 = 0.02;
/// Pairs after which an undecided comparison is given up.
const MOST: usize = 300;

/// The logarithms of the ratios of pairs whose first arm is this much faster, in turns on one machine.
/// Only the first arm has the shape where `other` is another one.
fn pairs(shapes: [Shape; 2], sd: f64, faster: f64, random: &mut Random) -> Vec<f64> {
    let [a, b] = match shapes {
        // One machine moves under both.
        [Shape::Remembering(_), Shape::Remembering(_)] => {
            let runs = shapes[0].runs(2 * MOST, random);
            let every = |from: usize| runs.iter().skip(from).step_by(2).copied().collect();
            [every(0), every(1)]
        }
        shapes => shapes.map(|shape| shape.runs(MOST, random)),
    };
    let both = a.into_iter().zip(b);
    both.map(|(a, b): (f64, f64)| faster + sd * (a - b))
        .collect()
}

/// The first decision, and after how many pairs.
fn decided(logs: &[f64], level: f64) -> (Option<Decision>, usize) {
    for n in 2..=logs.len() {
        let found = Sequential::of(&logs[..n]).and_then(|test| test.decision(MARGIN, level));
        if found.is_some() {
            return (found, n);
        }
    }
    (None, logs.len())
}

fn is_false(decision: Option<Decision>, times_margin: f64) -> bool {
    match decision {
        Some(Decision::Faster) => times_margin <= 0.0,
        Some(Decision::Slower) => times_margin >= 0.0,
        Some(Decision::Same) => times_margin.abs() >= 1.0,
        _ => false,
    }
}

/// A run count that is fixed beforehand and finds a difference of the margin, and a tie, each with this
/// probability: Welch's t, and two one-sided tests of it at 5 %.
fn fixed(sd: f64, power: f64) -> usize {
    const TRIALS: usize = 2000;
    let enough = |n: &usize| {
        let mut random = Random(21);
        let mut arm = |level: f64| -> Vec<f64> {
            let runs = Shape::Normal.runs(*n, &mut random);
            runs.iter().map(|log| (level + sd * log).exp()).collect()
        };
        let margin = MARGIN.ln_1p();
        let [mut apart, mut tie] = [0; 2];
        for _ in 0..TRIALS {
            let test = welch(&arm(margin), &arm(0.0)).unwrap();
            apart += usize::from(test.p < 0.05);
            let [low, high] = welch(&arm(0.0), &arm(0.0)).unwrap().interval(0.9).unwrap();
            tie += usize::from(-low.ln() < margin && high.ln() < margin);
        }
        apart.min(tie) as f64 >= power * TRIALS as f64
    };
    (3..MOST).find(enough).unwrap()
}

fn decisions_are_right(trials: usize) {
    let shapes = [
        ("normal", [Shape::Normal; 2]),
        ("skewed", [Shape::Skewed; 2]),
        ("two modes", [Shape::TwoModes; 2]),
        ("one run in ten slow", [Shape::SomeSlow; 2]),
        ("autocorrelated", [Shape::Remembering(0.7); 2]),
        ("skewed beside normal", [Shape::Skewed, Shape::Normal]),
        ("two modes beside normal", [Shape::TwoModes, Shape::Normal]),
        (
            "one in ten slow beside normal",
            [Shape::SomeSlow, Shape::Normal],
        ),
    ];
    println!("| noise, sd | false decisions at 0 / 1 / 2 / 4 × the margin, % | runs an arm |");
    for (name, shapes) in shapes {
        for sd in [0.003, 0.01, 0.02, 0.03] {
            let of_effect = |times: f64| {
                let mut random = Random(22);
                let [mut wrong, mut runs] = [0; 2];
                for _ in 0..trials {
                    let logs = pairs(shapes, sd, times * MARGIN.ln_1p(), &mut random);
                    let (decision, n) = decided(&logs, 0.05);
                    wrong += usize::from(is_false(decision, times));
                    runs += n;
                }
                let share = wrong as f64 / trials as f64;
                assert!(share <= 0.05, "{name} {sd} {times}: {share}");
                (100.0 * share, runs as f64 / trials as f64)
            };
            let found = [0.0, 1.0, 2.0, 4.0].map(of_effect);
            let all = |of: fn(&(f64, f64)) -> f64| {
                found
                    .iter()
                    .map(|one| format!("{:.1}", of(one)))
                    .collect::<Vec<_>>()
                    .join(" / ")
            };
            println!(
                "| {name}, {:.1} % | {} | {} |",
                100.0 * sd,
                all(|one| one.0),
                all(|one| one.1)
            );
            if name == "normal" && sd >= 0.02 {
                let half = fixed(sd, 0.8) as f64 / 2.0;
                assert!(
                    found[2].1 <= half && found[3].1 <= half,
                    "{sd}: {found:?} {half}"
                );
            }
        }
    }
}

#[test]
fn decisions_on_pairs_are_seldom_false_whenever_one_stops() {
    decisions_are_right(400);
}

/// The table of docs/METRICS.md, "Only as many runs as needed".
#[test]
#[ignore = "takes minutes: make statistics"]
fn decisions_on_ten_thousand_pairs() {
    println!("| sd | fixed runs an arm, 80 % | 90 % |");
    for sd in [0.003, 0.01, 0.02, 0.03] {
        println!(
            "| {:.1} % | {} | {} |",
            100.0 * sd,
            fixed(sd, 0.8),
            fixed(sd, 0.9)
        );
    }
    decisions_are_right(10_000);
}

/// Four arms against one reference whose runs they share, and all are equal: the level is that of the
/// whole table.
#[test]
fn a_table_of_decisions_is_seldom_false_at_all() {
    const TRIALS: usize = 2000;
    let mut random = Random(23);
    let wrong = (0..TRIALS).filter(|_| {
        let arms: Vec<Vec<f64>> = (0..5)
            .map(|_| Shape::Normal.runs(MOST, &mut random))
            .collect();
        let is_wrong = |arm: &Vec<f64>| {
            let logs: Vec<f64> = arm
                .iter()
                .zip(&arms[0])
                .map(|(a, b)| 0.01 * (a - b))
                .collect();
            is_false(decided(&logs, 0.05 / 4.0).0, 0.0)
        };
        arms[1..].iter().any(is_wrong)
    });
    let share = wrong.count() as f64 / TRIALS as f64;
    println!(
        "a false decision in a table of four pairs: {:.1} %",
        100.0 * share
    );
    assert!(share <= 0.05, "{share}");
}

/// Looking after every run is what makes Welch's test wrong; this is why there is another one.
#[test]
fn welchs_test_is_wrong_for_whoever_stops_when_he_likes() {
    const TRIALS: usize = 1000;
    let mut random = Random(24);
    let mut stopped = [0; 2];
    for _ in 0..TRIALS {
        let runs = [0; 2].map(|_| {
            let runs = Shape::Normal.runs(40, &mut random);
            runs.iter()
                .map(|log| (0.01 * log).exp())
                .collect::<Vec<f64>>()
        });
        let looks = |n: usize| welch(&runs[0][..n], &runs[1][..n]).unwrap().p < 0.05;
        stopped[0] += usize::from((3..=40).any(looks));
        let logs: Vec<f64> = runs[0]
            .iter()
            .zip(&runs[1])
            .map(|(a, b)| (a / b).ln())
            .collect();
        let looks = |n: usize| Sequential::of(&logs[..n]).unwrap().p() < 0.05;
        stopped[1] += usize::from((3..=40).any(looks));
    }
    let [fixed, sequential] = stopped.map(|n| n as f64 / TRIALS as f64);
    println!(
        "equal arms told apart at some look of 3 to 40 runs: Welch {:.1} %, sequential {:.1} %",
        100.0 * fixed,
        100.0 * sequential
    );
    assert!(fixed > 0.15 && sequential <= 0.05, "{fixed} {sequential}");
}

/// A gate holds new runs against a baseline of fixed ones: both vary alike, and are not paired.
#[test]
fn runs_that_are_added_beside_a_baseline_are_seldom_told_apart_from_it() {
    const TRIALS: usize = 2000;
    for then in [3, 5, 10] {
        let mut random = Random(25);
        let mut wrong = 0;
        for _ in 0..TRIALS {
            let [now, before] = [40, then].map(|n| Shape::Normal.runs(n, &mut random));
            let p = |n: usize| Sequential::of_arms(&now[..n], &before).unwrap().p();
            wrong += usize::from((3..=40).any(|n| p(n) < 0.05));
        }
        let share = wrong as f64 / TRIALS as f64;
        println!(
            "runs added beside a baseline of {then}: {:.1} %",
            100.0 * share
        );
        assert!(share <= 0.05, "{then}: {share}");
    }
}

/// A machine that slows down evenly makes whichever arm comes second slower, so rounds go to and fro.
#[test]
fn a_machine_that_slows_down_tells_no_equal_arms_apart() {
    const TRIALS: usize = 1000;
    let mut random = Random(26);
    let mut wrong = [0; 2];
    for _ in 0..TRIALS {
        // 1 % from run to run, and noise of half as much.
        let runs = Shape::Normal.runs(2 * 30, &mut random);
        let logs = runs.iter().enumerate();
        let logs: Vec<f64> = logs
            .map(|(at, log)| 0.005 * log - 0.01 * at as f64)
            .collect();
        let pairs = logs.chunks(2).enumerate();
        for (order, wrong) in wrong.iter_mut().enumerate() {
            let turned = |at: usize| if order == 1 && at % 2 == 1 { -1.0 } else { 1.0 };
            let pairs: Vec<f64> = pairs
                .clone()
                .map(|(at, pair)| turned(at) * (pair[0] - pair[1]))
                .collect();
            *wrong += usize::from(is_false(decided(&pairs, 0.05).0, 0.0));
        }
    }
    let [same_order, to_and_fro] = wrong.map(|n| n as f64 / TRIALS as f64);
    println!(
        "equal arms on a machine that slows down: {:.1} % in one order, {:.1} % to and fro",
        100.0 * same_order,
        100.0 * to_and_fro
    );
    assert!(
        to_and_fro <= 0.05 && same_order > 0.05,
        "{same_order} {to_and_fro}"
    );
}

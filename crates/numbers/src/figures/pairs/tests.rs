use proptest::prelude::*;

use super::*;
use crate::figures::{
    Catalogue, CellInput, CellState, CompareSettings, IntervalKind, Statistics, compare,
    stand_ins::{cell, run_of, test_job},
    summarize,
};
use crate::results::{RepeatsPlanned, RunResult};

/// A run: its step time, when it began, in minutes, and what was planned.
#[derive(Clone, Copy, Debug)]
struct Made(f64, f64, RepeatsPlanned);

fn round(round: u64) -> RepeatsPlanned {
    RepeatsPlanned::UntilDecided { round }
}

fn made(name: &str, runs: &[Made]) -> CellInput {
    let stated = serde_json::json!({"global_batch_size": test_job().data.global_batch_size,
        "seq_length": test_job().data.seq_length, "num_gpus": test_job().parallelism.num_gpus,
        "precision": test_job().precision});
    let result = |(n, Made(time, minutes, planned)): (u32, &Made)| {
        let run = RunResult {
            attempt: format!("{name}#{n}"),
            host: "node1".to_owned(),
            started_at: Some(minutes * 60.0),
            ended_at: Some(minutes * 60.0 + 50.0),
            repeats_planned: Some(*planned),
            ..run_of(&test_job(), &[time * 3.0, *time, *time], stated.clone())
        };
        (n, run)
    };
    let runs: Vec<(u32, RunResult)> = (1..).zip(runs).map(result).collect();
    let summary = Box::new(summarize(&runs, &Statistics { warmup_steps: 1 }));
    cell(name, CellState::Ok { summary })
}

const A: &str = "cpu/native/llama/single";
const B: &str = "cpu/tran/llama/single";

fn compared(a: &[Made], b: &[Made]) -> Comparison {
    let cells = [made(B, b), made(A, a)];
    compare(&cells, &CompareSettings::default(), &Catalogue::default())
}

/// Alternating runs of two cells, one pair a round.
fn rounds(ratios: &[(f64, f64)]) -> [Vec<Made>; 2] {
    let of = |which: fn(&(f64, f64)) -> f64, after: f64| -> Vec<Made> {
        let runs = ratios.iter().enumerate();
        runs.map(|(at, pair)| Made(which(pair), 2.0 * at as f64 + after, round(at as u64)))
            .collect()
    };
    [of(|pair| pair.0, 0.0), of(|pair| pair.1, 1.0)]
}

fn pairs_of(a: &[Made], b: &[Made]) -> usize {
    let repeats = |cell: &CellInput| match &cell.state {
        CellState::Ok { summary } => summary.repeats.clone(),
        _ => unreachable!(),
    };
    pairs(&repeats(&made(A, a)), &repeats(&made(B, b))).len()
}

#[test]
fn runs_are_pairs_by_their_round_or_because_they_were_made_in_turns() {
    let number = RepeatsPlanned::Number(3);
    let in_turns = |from: f64| [0.0, 2.0, 4.0].map(|at| Made(1.0, at + from, number));
    assert_eq!(pairs_of(&in_turns(0.0), &in_turns(1.0)), 3);
    assert_eq!(
        pairs_of(&in_turns(0.0), &in_turns(6.0)),
        0,
        "one arm after the other"
    );
    let later = in_turns(1.0).map(|Made(time, at, planned)| Made(time, at + 60.0 * 24.0, planned));
    assert_eq!(pairs_of(&in_turns(0.0)[..1], &later[..1]), 0, "a day apart");
    // The other cell missed a round, and the reference went on with a third one.
    let a = [1, 2, 3, 4].map(|n| Made(1.0, 10.0 * n as f64, round(n)));
    let b = [1, 4].map(|n| Made(1.0, 10.0 * n as f64 + 1.0, round(n)));
    assert_eq!(pairs_of(&a, &b), 2);
    let mixed: Vec<Made> = in_turns(0.0).into_iter().chain(a).collect();
    let others: Vec<Made> = in_turns(1.0).into_iter().chain(b).collect();
    assert_eq!(pairs_of(&mixed, &others), 5);
}

#[test]
fn what_was_added_until_a_decision_is_tested_by_pairs_and_not_flagged() {
    let times = [
        (1.0, 1.1),
        (1.02, 1.13),
        (0.99, 1.088),
        (1.01, 1.112),
        (1.0, 1.101),
    ];
    let [a, b] = rounds(&times);
    let all = compared(&a, &b);
    let [speedup] = &all.speedups[..] else {
        panic!("{:?}", all.speedups)
    };
    let interval = speedup.interval.unwrap();
    assert_eq!((speedup.pairs, speedup.significant), (Some(5), Some(true)));
    assert!(interval.low < speedup.ratio && speedup.ratio < interval.high && interval.low > 1.0);
    assert!(all.rows.iter().all(|row| !row.repeats_added_later));
    let kind = all.rows[0].tokens_per_second_per_gpu.interval;
    assert_eq!(kind, Some(IntervalKind::SequentialT));
    // Runs that the plan settled beforehand are no reason for another test.
    let fixed = |runs: &[Made]| -> Vec<Made> {
        let runs = runs.iter();
        runs.map(|Made(time, at, _)| Made(*time, *at, RepeatsPlanned::Number(5)))
            .collect()
    };
    let fixed = compared(&fixed(&a), &fixed(&b));
    assert_eq!(fixed.speedups[0].pairs, None);
    // Three pairs decide nothing; with a cell of other times there are no pairs at all.
    let code = |all: &Comparison| all.speedups[0].reason.as_ref().unwrap().code.clone();
    assert_eq!(code(&compared(&a[..3], &b[..3])), FEW_PAIRS);
    let elsewhere = [0.0, 1.0, 2.0, 3.0].map(|at| Made(1.1, 500.0 + at, RepeatsPlanned::Number(4)));
    assert_eq!(code(&compared(&a, &elsewhere)), FEW_PAIRS);
}

#[test]
fn a_run_remembers_that_it_was_added_until_a_decision() {
    for (planned, text) in [
        (RepeatsPlanned::Number(3), "3"),
        (round(7), r#"{"round":7}"#),
    ] {
        assert_eq!(serde_json::to_string(&planned).unwrap(), text);
        assert_eq!(
            serde_json::from_str::<RepeatsPlanned>(text).unwrap(),
            planned
        );
    }
}

proptest! {
    /// The table says of each pair what was decided of it, and no interval contradicts its verdict.
    #[test]
    fn the_table_confirms_what_is_decided(
        times in prop::collection::vec((0.9..1.1, 0.9..1.1), 2..9),
        faster in 0.7..1.4,
    ) {
        let times: Vec<(f64, f64)> = times.into_iter().map(|(a, b): (f64, f64)| (a, b * faster)).collect();
        let [a, b] = rounds(&times);
        let all = compared(&a, &b);
        let (found, family) = decided(&all, 0.02);
        prop_assert_eq!((found.len(), family), (1, 1));
        let speedup = &all.speedups[0];
        let significant = match found[0].decision.clone() {
            Ok(Decision::Faster) => Some(speedup.ratio > 1.0),
            Ok(Decision::Slower) => Some(speedup.ratio < 1.0),
            Ok(Decision::Same) => speedup.significant.map(|it| !it),
            _ => None,
        };
        if let Some(agrees) = significant {
            prop_assert!(agrees, "{:?} {:?}", found, speedup);
            prop_assert_eq!(speedup.significant, Some(!matches!(found[0].decision, Ok(Decision::Same))));
        } else {
            prop_assert!(speedup.significant != Some(true), "{:?} {:?}", found, speedup);
        }
        if let (Some(interval), Some(true)) = (speedup.interval, speedup.significant) {
            prop_assert!(interval.low > 1.0 || interval.high < 1.0);
        }
    }
}

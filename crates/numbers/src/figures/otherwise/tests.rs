use super::*;
use crate::figures::{
    Catalogue, CellInput, CompareSettings, Comparison, compare,
    stand_ins::{measured_steps, test_job},
};

const A: &str = "nvd/titan/llama/single";
const B: &str = "nvd/tran/llama/single";

/// Fifty steps, of which the first is warm-up; a repeat differs from the others by 0.1 %, a step by 0.2 %.
fn cell(name: &str, seconds: f64, step_time: impl Fn(usize) -> f64) -> CellInput {
    let of_repeat = |repeat: usize| {
        let level = seconds * (1.0 + 0.001 * repeat as f64);
        let step =
            |at: usize| level * step_time(at) * (1.0 + 0.002 * ((at * 7 + repeat) % 5) as f64);
        (0..50).map(step).collect()
    };
    let repeats: Vec<Vec<f64>> = (0..3).map(of_repeat).collect();
    measured_steps(name, &test_job(), &repeats, None)
}

fn compared(cells: [CellInput; 2]) -> Comparison {
    compare(&cells, &CompareSettings::default(), &Catalogue::default())
}

/// Compares a cell of these step times with one whose steps are all alike, in both orders. The answer: has the
/// pair a verdict, the code of why not, and the codes of other choices of steps that would decide.
fn said(
    seconds: f64,
    step_time: impl Fn(usize) -> f64 + Copy,
) -> (bool, Option<String>, Vec<String>) {
    let of = |is_first: bool| {
        let (odd, calm) = (
            cell(A, seconds, step_time),
            cell(B, 1.02 * seconds, |_| 1.0),
        );
        let comparison = compared(if is_first { [odd, calm] } else { [calm, odd] });
        let speedup = &comparison.speedups[0];
        let code = |reason: &Reason| reason.code.to_string();
        (
            speedup.significant.is_some(),
            speedup.reason.as_ref().map(code),
            speedup.doubts.iter().map(code).collect(),
        )
    };
    assert_eq!(of(true), of(false), "the order of the cells decides");
    of(true)
}

#[test]
fn a_pair_whose_steps_are_all_alike_has_a_verdict_and_no_doubt() {
    assert_eq!(said(2.0, |_| 1.0), (true, None, Vec::new()));
}

/// Also in a run that is too short for its warm-up to be looked for.
#[test]
fn a_step_time_that_doubles_for_good_leaves_no_verdict() {
    for seconds in [2.0, 0.1] {
        let (has_verdict, why, _) = said(seconds, |at| if at < 30 { 1.0 } else { 2.0 });
        assert!(!has_verdict, "steps of {seconds} s");
        assert_eq!(why.as_deref(), Some(LEVEL_SHIFT), "steps of {seconds} s");
    }
}

#[test]
fn a_warm_up_that_was_cut_stands_beside_the_ratio_that_it_turns() {
    let (_, _, doubts) = said(2.0, |at| if at < 20 { 1.3 } else { 1.0 });
    assert_eq!(doubts, ["warm_up_decides"]);
}

#[test]
fn one_long_step_stands_beside_the_ratio_that_it_turns() {
    let (has_verdict, _, doubts) = said(12.0, |at| if at == 10 { 7.5 } else { 1.0 });
    assert!(has_verdict);
    assert_eq!(doubts, ["outliers_decide"]);
}

/// The first cell is 2 % quicker by its timer, which leaves out a tenth of the time that passes.
#[test]
fn time_outside_of_the_steps_stands_beside_the_ratio_that_it_turns() {
    let of = |outside: [Option<f64>; 2]| {
        let mut comparison = compared([cell(A, 2.0, |_| 1.0), cell(B, 2.04, |_| 1.0)]);
        for (row, outside) in comparison.rows.iter_mut().zip(outside) {
            for repeat in &mut row.repeats {
                repeat.clock = outside.map(|outside| Clock {
                    passed_seconds: 98.0 * (1.0 + outside),
                    steps_seconds: 98.0,
                    typical_ratio: Some(1.0 + outside),
                });
            }
        }
        let rows = [&comparison.rows[0], &comparison.rows[1]];
        let speedup = &comparison.speedups[0];
        let rows = match speedup.a == rows[0].cell {
            true => rows,
            false => [rows[1], rows[0]],
        };
        let doubts = doubts(speedup, rows, [0.0; 2]);
        doubts
            .iter()
            .map(|reason| reason.code.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(of([Some(0.1), Some(0.0)]), ["clock_decides"]);
    assert!(of([Some(0.005), Some(0.0)]).is_empty());
    // What passes outside of the other's steps is not known.
    assert!(of([Some(0.1), None]).is_empty());
}

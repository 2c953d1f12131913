mod cells;
mod verdicts;

use crate::results::{CUSUM, Contract};
use proptest::prelude::*;
use serde_json::json;
use tprimat_job::{FailureClass, Job};

use super::*;
use crate::figures::{
    DECLARED, Dropped, RepeatStatus,
    stand_ins::{test_job as job, *},
    texts,
};

impl GateCell {
    /// The reason, and the notes in lines.
    fn words(&self) -> (String, String) {
        (self.reason.text.clone(), texts(&self.notes).join("\n"))
    }
}

const CELL: &str = "nvd/nemo/llama/maximum_performance";

fn input(input: CellInput) -> GateInput {
    GateInput {
        input,
        selected: true,
        key: None,
        impossible: None,
    }
}

fn of_times(name: &str, job: &Job, times: &[f64]) -> GateInput {
    input(measured(name, job, times, None))
}

/// Made from other runs than those that are gated.
fn baseline(cells: &[GateInput]) -> Baseline {
    let mut then = Baseline::of("m", cells);
    for cell in &mut then.cells {
        cell.attempts = cell
            .attempts
            .iter()
            .map(|attempt| format!("then {attempt}"))
            .collect();
    }
    then
}

/// The gate of one cell whose runs took these times then and now.
fn one(then: &[f64], now: &[f64], limit: f64) -> GateCell {
    let report = gate(
        &baseline(&[of_times(CELL, &job(), then)]),
        &[of_times(CELL, &job(), now)],
        limit,
    );
    let [cell] = &report.cells[..] else {
        panic!("{report:?}")
    };
    assert_eq!(report.verdict, cell.verdict);
    cell.clone()
}

const STEADY: [f64; 5] = [1.0, 1.01, 0.99, 1.005, 0.995];

#[test]
fn a_cell_whose_log_confirms_nothing_is_told_to_be_declared() {
    let note = |factor: f64, status| {
        let mut now = of_times(CELL, &job(), &STEADY.map(|t| t * factor));
        if let CellState::Ok { summary } = &mut now.input.state {
            summary.attestation = status;
        }
        let report = gate(&baseline(&[of_times(CELL, &job(), &STEADY)]), &[now], 0.03);
        assert_eq!(report.verdict, GateVerdict::Pass);
        let notes = report.cells[0].notes.iter().map(ToString::to_string);
        notes
            .filter(|note| note.contains("only declared"))
            .collect::<Vec<_>>()
    };
    let declared = "some settings are only declared: the log does not confirm them";
    assert_eq!(note(1.0, AttestationStatus::NotStated), [declared]);
    let less_work = format!(
        "{declared}, so it may be this fast because it did less work; a log that states the batch size would show it"
    );
    assert_eq!(note(0.52, AttestationStatus::NotStated), [less_work]);
    assert!(note(0.52, AttestationStatus::Attested).is_empty());
}

/// Also where enough others have a rate: losses that are no numbers are no matter of luck.
#[test]
fn a_repeat_that_failed_fails_its_cell() {
    let mut now = of_times(CELL, &job(), &STEADY);
    let CellState::Ok { summary } = &mut now.input.state else {
        unreachable!()
    };
    summary.repeats[4].status = RepeatStatus::Failed {
        class: FailureClass::Nan,
        evidence: vec![],
    };
    summary.repeats[4].started_at = None;
    let then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    let cell = gate(&then, &[now], 0.03).cells.remove(0);
    assert_eq!(
        (cell.verdict, &*cell.reason.text),
        (GateVerdict::Fail, "1 repeat failed")
    );
}

#[test]
fn a_gate_against_an_old_baseline_says_how_old_it_is() {
    let mut then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    then.cells[0].measured = Some([1.7e9, 1.7e9 + 600.0]);
    let mut now = of_times(CELL, &job(), &STEADY);
    let at = |now: &mut GateInput, start: f64| {
        let CellState::Ok { summary } = &mut now.input.state else {
            unreachable!()
        };
        for repeat in &mut summary.repeats {
            (repeat.started_at, repeat.ended_at) = (Some(start), Some(start + 60.0));
        }
    };
    at(&mut now, 1.7e9 + 900.0);
    assert!(gate(&then, &[now], 0.03).cells[0].notes.is_empty());
    let mut now = of_times(CELL, &job(), &STEADY);
    at(&mut now, 1.7e9 + 600.0 + 30.0 * 86_400.0);
    let notes = &gate(&then, &[now], 0.03).cells[0].notes;
    assert!(
        notes[0]
            .text
            .starts_with("measured 30 days after the baseline: "),
        "{notes:?}"
    );
}

#[test]
fn what_is_not_there_or_another_workload_is_never_a_pass() {
    let then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    let says = |cells: &[GateInput], words: &str| {
        let report = gate(&then, cells, 0.03);
        assert_eq!(report.verdict, GateVerdict::Fail, "{report:?}");
        assert!(
            report.cells[0].reason.text.contains(words),
            "{words}: {:?}",
            report.cells[0].reason
        );
    };
    says(&[], "missing: the matrix no longer has it");
    let state = |state| input(cell(CELL, state));
    says(
        &[state(CellState::Missing {
            reason: "stale; build first".into(),
        })],
        "missing: stale; build first",
    );
    says(
        &[state(CellState::Failed {
            class: FailureClass::Oom,
            evidence: vec![],
            repeats: 1,
        })],
        "failed: oom",
    );
    says(
        &[state(CellState::Unsupported {
            reason: "no".into(),
        })],
        "unsupported: no",
    );
    let mut batch = job();
    batch.data.global_batch_size = 128;
    says(
        &[of_times(CELL, &batch, &STEADY)],
        "another workload than the baseline's: global_batch_size: 128, not 8",
    );
    // In a comparison of two cells this is allowed and named; a cell that became fp8 is not what it
    // was.
    let fp8 = Job {
        precision: "fp8".into(),
        ..job()
    };
    says(&[of_times(CELL, &fp8, &STEADY)], "precision: fp8, not bf16");
    let mut warm = measured(CELL, &job(), &STEADY, None);
    let CellState::Ok { summary } = &mut warm.state else {
        unreachable!()
    };
    summary.warmup_steps = 9;
    says(&[input(warm)], "warm-up 9, not 1 steps");
    let mut theirs = measured(CELL, &job(), &STEADY, None);
    theirs.imported = vec!["a.log".into()];
    says(&[input(theirs)], "imported now, measured in the baseline");
    let mut contradicted = measured(CELL, &job(), &STEADY, None);
    let CellState::Ok { summary } = &mut contradicted.state else {
        unreachable!()
    };
    summary.repeats[4].status = RepeatStatus::Contradicted {
        fields: vec!["seq_length".into()],
    };
    says(&[input(contradicted)], "contradicted: 1 repeat");
    assert_eq!(
        gate(&baseline(&[]), &[of_times(CELL, &job(), &STEADY)], 0.03).verdict,
        GateVerdict::Inconclusive
    );
}

/// Only where one of the two may still measure steps that the other declares to be warm-up are they
/// not the same workload.
#[test]
fn another_warm_up_is_refused_where_the_steady_state_was_not_looked_for() {
    let of = |warmup: u64, rule: &str| {
        let mut cell = measured(CELL, &job(), &STEADY, None);
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        (summary.warmup_steps, summary.steady_state) = (warmup, rule.to_owned());
        input(cell)
    };
    let gated = |then: (u64, &str), now: (u64, &str)| {
        gate(&baseline(&[of(then.0, then.1)]), &[of(now.0, now.1)], 0.03)
            .cells
            .remove(0)
    };
    for (then, now, words) in [
        ((5, CUSUM), (9, CUSUM), "warm-up 9, not 5 steps"),
        (
            (5, DECLARED),
            (5, CUSUM),
            "steady state detected by CUSUM, there not assessed",
        ),
        (
            (5, CUSUM),
            (5, DECLARED),
            "steady state not assessed, there detected by CUSUM",
        ),
    ] {
        let cell = gated(then, now);
        assert_eq!(
            cell.verdict,
            GateVerdict::Pass,
            "{then:?} {now:?}: {:?}",
            cell.reason
        );
        assert!(
            cell.notes.iter().any(|note| note.text == words),
            "{words}: {:?}",
            cell.notes
        );
    }
    for (then, now) in [
        ((5, DECLARED), (9, DECLARED)),
        ((5, CUSUM), (9, DECLARED)),
        ((5, DECLARED), (9, CUSUM)),
        ((5, "CUSUM, declared"), (9, CUSUM)),
    ] {
        let cell = gated(then, now);
        assert_eq!(
            (cell.verdict, cell.ratio),
            (GateVerdict::Fail, None),
            "{then:?} {now:?}"
        );
        let words = "another workload than the baseline's: warm-up 9, not 5 steps";
        assert!(cell.reason.text.starts_with(words), "{:?}", cell.reason);
    }
    let same = gated((5, CUSUM), (5, CUSUM));
    assert_eq!((same.verdict, same.notes), (GateVerdict::Pass, vec![]));
}

#[test]
fn what_may_differ_is_named() {
    let mut other = Job { seed: 7, ..job() };
    other.data.micro_batch_size = 4;
    other.data.gradient_accumulation_steps = 2;
    let mut now = measured(CELL, &other, &STEADY, None);
    now.environment
        .variables
        .insert("CUDA_LAUNCH_BLOCKING".into(), "1".into());
    let report = gate(
        &baseline(&[of_times(CELL, &job(), &STEADY)]),
        &[input(now)],
        0.03,
    );
    let notes = report.cells[0].words().1;
    for words in [
        "micro_batch_size: 4, not 2",
        "seed: 7",
        "CUDA_LAUNCH_BLOCKING=1: the host waits",
        "environment differs from that of the baseline: ",
    ] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

/// What takes a verdict from a comparison takes the pass from a gate, and what is named there is named here.
#[test]
fn what_one_side_states_is_named_and_may_take_the_pass() {
    let now = || of_times(CELL, &job(), &STEADY);
    let gated = |field: &str, value: &str| {
        let mut then = baseline(&[now()]);
        then.cells[0].contract.declare(field, value.into());
        gate(&then, &[now()], 0.03).cells.remove(0)
    };
    for (field, value) in [("dropout", "0.1"), ("padded_vocab_size", "64")] {
        let cell = gated(field, value);
        let named = format!("only the baseline states {field} ({value})");
        assert_eq!(cell.verdict, GateVerdict::Pass, "{field}");
        assert_eq!(texts(&cell.notes), [named]);
    }
    let cell = gated("lora_rank", "16");
    assert_eq!(cell.verdict, GateVerdict::Inconclusive);
    assert_eq!(cell.reason.text, "the workloads may differ in lora_rank");
    // What neither states may differ as well.
    let mut then = baseline(&[now()]);
    let mut of_now = now();
    then.cells[0]
        .contract
        .0
        .retain(|of| of.field != "precision");
    if let CellState::Ok { summary } = &mut of_now.input.state {
        summary.contract.0.retain(|of| of.field != "precision");
    }
    let cell = gate(&then, &[of_now], 0.03).cells.remove(0);
    assert_eq!(cell.verdict, GateVerdict::Inconclusive);
    assert_eq!(cell.reason.text, "the workloads may differ in precision");
}

#[test]
fn a_file_whose_figures_cannot_be_is_refused() {
    let good = baseline(&[of_times(CELL, &job(), &STEADY)]);
    assert_eq!(good.fault(), None);
    let with = |change: fn(&mut Baseline)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad.fault().unwrap()
    };
    assert!(
        with(|b| b.cells[0].tokens_per_second_per_gpu.values[0] = 0.0).contains("not all positive")
    );
    assert!(
        with(|b| b.cells[0].tokens_per_second_per_gpu.values.clear()).contains("not all positive")
    );
    assert!(with(|b| b.cells[0].tokens_per_second_per_gpu.value *= 2.0).contains("not the mean"));
    assert!(
        with(|b| b.cells[0].tokens_per_second_per_gpu.value = f64::NAN).contains("not the mean")
    );
    assert!(with(|b| b.cells.push(b.cells[0].clone())).contains("twice"));
    let text = serde_json::to_string(&good).unwrap();
    assert_eq!(serde_json::from_str::<Baseline>(&text).unwrap(), good);
    assert!(!text.contains("price") && text.contains(&json!(BASELINE_SCHEMA).to_string()));
}

#[test]
fn what_was_not_measured_anew_passes_and_says_so_and_no_mixture_does() {
    let now = || [of_times(CELL, &job(), &STEADY)];
    let then = Baseline::of("m", &now());
    let gated = |then: &Baseline, now: &[GateInput]| gate(then, now, 0.03).cells.remove(0);
    let same = gated(&then, &now());
    assert_eq!(
        (
            same.verdict,
            same.same_measurements,
            same.p_value,
            same.ci95
        ),
        (GateVerdict::Pass, true, None, None)
    );
    assert!(
        same.reason
            .text
            .starts_with("the same measurements as the baseline: "),
        "{:?}",
        same.reason
    );
    assert!(same.notes.is_empty() && same.ratio == Some(1.0), "{same:?}");
    // One repeat is too few for a test, but it is still the same one.
    let one = || [of_times(CELL, &job(), &STEADY[..1])];
    assert_eq!(
        gated(&Baseline::of("m", &one()), &one()).verdict,
        GateVerdict::Pass
    );
    let fewer = gated(&then, &[of_times(CELL, &job(), &STEADY[..3])]);
    assert!(
        fewer.verdict == GateVerdict::Pass && fewer.reason.text.contains("3 of its 5"),
        "{fewer:?}"
    );
    // Three slow repeats beside five old ones would look like a small slowdown.
    let more = [STEADY.to_vec(), vec![1.3; 3]].concat();
    let mixed = gated(&then, &[of_times(CELL, &job(), &more)]);
    assert_eq!(
        (mixed.verdict, mixed.p_value),
        (GateVerdict::Inconclusive, None)
    );
    assert!(
        mixed
            .reason
            .text
            .starts_with("5 of 8 repeats are the baseline's own"),
        "{:?}",
        mixed.reason
    );
    let mut otherwise = then.clone();
    let estimate = &mut otherwise.cells[0].tokens_per_second_per_gpu;
    estimate.value *= 1.1;
    let of_file = gated(&otherwise, &now());
    assert!(of_file.notes[0].is("evaluated_anew"));
    assert_eq!(of_file.verdict, GateVerdict::Inconclusive, "{of_file:?}");
    // Another workload stays another workload.
    let mut batch = job();
    batch.data.global_batch_size = 128;
    assert_eq!(
        gated(
            &Baseline::of("m", &now()),
            &[of_times(CELL, &batch, &STEADY)]
        )
        .verdict,
        GateVerdict::Fail
    );
}

#[test]
fn hosts_are_units_and_a_baseline_of_them_is_sound() {
    let of_hosts = |times: &[f64], hosts: &[&str]| {
        let mut cell = of_times(CELL, &job(), times);
        let CellState::Ok { summary } = &mut cell.input.state else {
            panic!()
        };
        let estimate = summary.tokens_per_second_per_gpu.as_mut().unwrap();
        let runs: Vec<crate::figures::Run> = estimate
            .values
            .iter()
            .zip(hosts.iter().cycle())
            .map(|(rate, host)| crate::figures::Run {
                rate: *rate,
                host,
                started_at: None,
                ended_at: None,
            })
            .collect();
        *estimate = Estimate::of(&runs).unwrap();
        cell
    };
    let times = [1.0, 1.01, 0.99, 1.005, 0.995, 1.002];
    let slower = times.map(|t| t * 1.045);
    let then = baseline(&[of_hosts(&times, &["a", "b"])]);
    assert_eq!(then.fault(), None);
    let report = gate(&then, &[of_hosts(&slower, &["a", "b"])], 0.03);
    assert_eq!(
        report.cells[0].verdict,
        GateVerdict::Inconclusive,
        "six runs of two hosts are two units"
    );
    assert!(
        report.cells[0]
            .reason
            .text
            .starts_with("2 hosts now and 2 hosts then"),
        "{:?}",
        report.cells[0].reason
    );
    let uneven = baseline(&[of_hosts(&times[..5], &["a", "a", "b"])]);
    assert_eq!(
        uneven.fault(),
        None,
        "a mean of hosts is not the mean of runs"
    );
}

#[test]
fn what_only_one_side_states_passes_nothing() {
    let mut then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    then.cells[0].contract = Contract::default();
    let report = gate(&then, &[of_times(CELL, &job(), &STEADY)], 0.03);
    assert_eq!(report.verdict, GateVerdict::Inconclusive);
    assert!(
        report.cells[0].reason.text.contains("global_batch_size"),
        "{:?}",
        report.cells[0].reason
    );
}

#[test]
fn an_impossible_rate_passes_nothing_and_is_no_baseline() {
    let then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    let why = || Reason::excludes("rate_impossible", "the rate is 0");
    let absurd = || GateInput {
        impossible: Some(why()),
        ..of_times(CELL, &job(), &STEADY)
    };
    assert_eq!(gate(&then, &[absurd()], 0.03).verdict, GateVerdict::Fail);
    assert!(baseline(&[absurd()]).cells.is_empty());
    assert_eq!(absurd().left_out(), Some(why()));
}

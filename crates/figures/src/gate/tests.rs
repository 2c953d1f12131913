use proptest::prelude::*;
use serde_json::json;
use tprimat_job::{FailureClass, Job};
use tprimat_results::{CUSUM, Contract};

use super::*;
use crate::{
    DECLARED, Dropped, NoRate,
    sentences::{each, fault, said},
    stand_ins::{test_job as job, *},
};

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

/// Of other runs than those that are gated.
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
fn slower_fails_as_fast_passes_and_noise_is_inconclusive() {
    let slower = STEADY.map(|t| t * 1.1);
    let failed = one(&STEADY, &slower, 0.03);
    assert_eq!(failed.verdict, GateVerdict::Fail, "{failed:?}");
    assert!(
        said(&failed.reason).starts_with("−9.09 % (95 % CI −10.13 to −8.04 %): ")
            && said(&failed.reason).contains("beyond the limit of −3 %, and significant"),
        "{:?}",
        failed.reason
    );
    assert_eq!(one(&STEADY, &STEADY, 0.03).verdict, GateVerdict::Pass);
    assert_eq!(
        one(&slower, &STEADY, 0.03).verdict,
        GateVerdict::Pass,
        "faster is no regression"
    );
    let noisy = [0.8, 1.3, 1.0, 1.1, 0.9];
    assert_eq!(
        one(&STEADY, &noisy, 0.03).verdict,
        GateVerdict::Inconclusive
    );
    let beyond = one(&STEADY, &noisy.map(|t| t * 1.05), 0.03);
    assert!(
        said(&beyond.reason).contains("not significant; "),
        "{:?}",
        beyond.reason
    );
}

/// What these repeats cannot tell is said as that, with how many could; and a pass below 1 is not
/// silent.
#[test]
fn a_reason_is_true_and_says_what_would_help() {
    let rates = |level: f64| [0.99, 1.0, 1.01, 1.0].map(|of| 1000.0 * level * of);
    let open = of_values(&rates(1.0), &rates(0.98), 0.03);
    assert_eq!(open.verdict, GateVerdict::Inconclusive);
    let words = "−2.00 % (95 % CI −3.37 to −0.61 %): these repeats cannot tell whether it is beyond the limit of −3 %; about 7 repeats now and in the baseline would tell, at this spread";
    assert_eq!(said(&open.reason), words);
    let near = of_values(&rates(1.0), &rates(0.970_01), 0.03);
    assert!(
        said(&near.reason)
            .ends_with("; more than 100 repeats would be needed to tell, at this spread"),
        "{:?}",
        near.reason
    );
    let slower = of_values(&rates(1.0), &rates(0.98), 0.05);
    assert_eq!(slower.verdict, GateVerdict::Pass);
    assert!(
        said(&slower.reason).ends_with(": slower than the baseline, but within the limit of −5 %"),
        "{:?}",
        slower.reason
    );
    let same = of_values(&rates(1.0), &rates(1.0), 0.05);
    assert!(
        said(&same.reason).starts_with("no significant change: ")
            && said(&same.reason).ends_with("; limit −5 %"),
        "{:?}",
        same.reason
    );
}

#[test]
fn a_cell_whose_log_confirms_nothing_is_told_to_be_declared() {
    let note = |factor: f64, status| {
        let mut now = of_times(CELL, &job(), &STEADY.map(|t| t * factor));
        if let CellState::Ok { summary } = &mut now.input.state {
            summary.attestation = status;
        }
        let report = gate(&baseline(&[of_times(CELL, &job(), &STEADY)]), &[now], 0.03);
        assert_eq!(report.verdict, GateVerdict::Pass);
        let notes = report.cells[0].notes.iter().map(said);
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
        said(&notes[0]).starts_with("measured 30 days after the baseline: "),
        "{notes:?}"
    );
}

#[test]
fn few_repeats_give_no_verdict_and_equal_ones_an_exact_one() {
    for (then, now) in [(1, 5), (5, 1), (2, 5), (5, 2), (1, 1)] {
        let cell = one(&STEADY[..then], &STEADY[..now], 0.5);
        assert_eq!(
            (cell.verdict, cell.p_value),
            (GateVerdict::Inconclusive, None)
        );
        assert!(
            said(&cell.reason).contains("needs 3 each") && cell.ratio.is_some(),
            "{:?}",
            cell.reason
        );
    }
    let exact = |factor: f64, limit: f64| one(&[1.0; 3], &[factor; 3], limit).verdict;
    assert_eq!(exact(1.0, 0.0), GateVerdict::Pass);
    assert_eq!(
        exact(1.0 / 0.97, 0.03),
        GateVerdict::Pass,
        "the limit itself is allowed"
    );
    assert_eq!(exact(1.1, 0.03), GateVerdict::Fail);
    assert_eq!(exact(0.9, 0.03), GateVerdict::Pass);
}

#[test]
fn what_is_not_there_or_another_workload_is_never_a_pass() {
    let then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    let says = |cells: &[GateInput], words: &str| {
        let report = gate(&then, cells, 0.03);
        assert_eq!(report.verdict, GateVerdict::Fail, "{report:?}");
        assert!(
            said(&report.cells[0].reason).contains(words),
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
        })],
        "failed (oom)",
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
            each(&cell.notes).iter().any(|note| note == words),
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
        assert!(said(&cell.reason).starts_with(words), "{:?}", cell.reason);
    }
    let same = gated((5, CUSUM), (5, CUSUM));
    assert_eq!((same.verdict, same.notes), (GateVerdict::Pass, vec![]));
}

#[test]
fn only_selected_cells_are_gated_and_new_ones_are_listed() {
    let other = "nvd/fsdp/llama/maximum_performance";
    let then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    let slower = of_times(CELL, &job(), &STEADY.map(|t| t * 1.5));
    let report = gate(
        &then,
        &[
            GateInput {
                selected: false,
                ..slower
            },
            of_times(other, &job(), &STEADY),
        ],
        0.03,
    );
    let verdicts: Vec<_> = report.cells.iter().map(|c| c.verdict).collect();
    assert_eq!(verdicts, [GateVerdict::NotSelected, GateVerdict::New]);
    assert_eq!(
        report.verdict,
        GateVerdict::Inconclusive,
        "nothing was gated"
    );
}

#[test]
fn a_new_cell_says_what_its_rate_leaves_open() {
    let mut new = measured("nvd/fsdp/llama/maximum_performance", &job(), &STEADY, None);
    new.environment
        .variables
        .insert("CUDA_LAUNCH_BLOCKING".into(), "1".into());
    let CellState::Ok { summary } = &mut new.state else {
        panic!("it is measured")
    };
    summary.dropped = vec![Dropped {
        repeat: 1,
        remeasured: 2,
        ..Dropped::default()
    }];
    let report = gate(
        &baseline(&[of_times(CELL, &job(), &STEADY)]),
        &[input(new)],
        0.03,
    );
    let cell = &report.cells[1];
    assert_eq!(
        (cell.verdict, cell.n_now),
        (GateVerdict::New, Some(STEADY.len()))
    );
    let notes = cell.words().1;
    for words in [
        "CUDA_LAUNCH_BLOCKING=1: the host waits",
        "there are measurements that do not count: ",
    ] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

/// Of a cell that the baseline lacks.
fn of_new(state: CellState) -> (GateVerdict, Option<GateCell>) {
    let mut report = gate(
        &baseline(&[of_times(CELL, &job(), &STEADY)]),
        &[
            of_times(CELL, &job(), &STEADY),
            input(cell("a/b/c/d", state)),
        ],
        0.03,
    );
    assert!(
        report.cells.len() <= 2 && report.cells[0].verdict == GateVerdict::Pass,
        "{report:?}"
    );
    (report.verdict, report.cells.drain(..).nth(1))
}

/// With the status of its last repeat, or of all.
fn with_status(status: &RepeatStatus, all: bool) -> CellState {
    let mut cell = measured(CELL, &job(), &STEADY, None);
    let CellState::Ok { summary } = &mut cell.state else {
        unreachable!()
    };
    for repeat in summary.repeats.iter_mut().skip(if all { 0 } else { 4 }) {
        repeat.status = status.clone();
    }
    if all {
        (summary.tokens_per_second_per_gpu, summary.n) = (None, 0);
    }
    cell.state
}

#[test]
fn a_new_cell_that_ran_in_vain_fails_the_gate() {
    let fails = |state: CellState, words: &str| {
        let (verdict, cell) = of_new(state);
        let cell = cell.expect(words);
        assert_eq!(
            (verdict, cell.verdict),
            (GateVerdict::Fail, GateVerdict::Fail),
            "{cell:?}"
        );
        assert!(
            said(&cell.reason).starts_with(words),
            "{words}: {:?}",
            cell.reason
        );
    };
    let evidence = vec!["AssertionError: boom".to_owned()];
    let boom = CellState::Failed {
        class: FailureClass::Unknown,
        evidence: evidence.clone(),
    };
    fails(boom, "failed (unknown): AssertionError: boom");
    fails(
        with_status(
            &RepeatStatus::Failed {
                class: FailureClass::Nan,
                evidence,
            },
            true,
        ),
        "failed: ",
    );
    let contradicted = RepeatStatus::Contradicted {
        fields: vec!["seq_length".into()],
    };
    fails(with_status(&contradicted, true), "contradicted: ");
    fails(
        with_status(&contradicted, false),
        "contradicted: 1 repeat did not run",
    );
    fails(
        with_status(
            &RepeatStatus::Unmeasured {
                reason: NoRate::NoStep,
            },
            true,
        ),
        "unmeasured: ",
    );
}

#[test]
fn a_new_cell_that_was_not_measured_is_listed_with_the_reason() {
    let new = |state: CellState, words: &str| {
        let (verdict, cell) = of_new(state);
        let cell = cell.expect(words);
        assert_eq!(
            (verdict, cell.verdict, cell.now),
            (GateVerdict::Pass, GateVerdict::New, None),
            "{cell:?}"
        );
        assert!(
            said(&cell.reason).starts_with(words),
            "{words}: {:?}",
            cell.reason
        );
    };
    let missing = CellState::Missing {
        reason: "waits for amd".into(),
    };
    new(
        missing,
        "not in the baseline, nor measured: missing: waits for amd",
    );
    let suspect = RepeatStatus::Suspect {
        reason: "another process".into(),
    };
    new(
        with_status(&suspect, true),
        "not in the baseline, nor measured: suspect: ",
    );
    assert_eq!(
        of_new(CellState::Unsupported {
            reason: "no".into()
        }),
        (GateVerdict::Pass, None)
    );
    let failed = RepeatStatus::Failed {
        class: FailureClass::Nan,
        evidence: vec![],
    };
    let beside = of_new(with_status(&failed, false)).1.unwrap();
    assert_eq!(
        (
            beside.verdict,
            beside.now.is_some(),
            &*said(&beside.notes[0])
        ),
        (GateVerdict::New, true, "1 repeat failed")
    );
}

/// A gate of `times` then and now: p-values as they are corrected, and notes.
fn p_values(
    names: &[&str],
    times: impl Fn(&str) -> [f64; 5],
    attempt: impl Fn(&str) -> String,
) -> Vec<GateCell> {
    let of = |factor: f64| -> Vec<GateInput> {
        let cell = |name: &&str| {
            let mut cell = of_times(name, &job(), &times(name).map(|t| t * factor));
            let CellState::Ok { summary } = &mut cell.input.state else {
                unreachable!()
            };
            for repeat in &mut summary.repeats {
                repeat.attempt = format!("{} {}", attempt(name), repeat.repeat);
            }
            cell
        };
        names.iter().map(cell).collect()
    };
    gate(&baseline(&of(1.0)), &of(1.02), 0.03).cells
}

#[test]
fn cells_that_share_their_measurements_are_one_test() {
    let times = |name: &str| {
        if name == "a/b/c/noisy" {
            [1.0, 1.2, 0.9, 1.1, 0.8]
        } else {
            STEADY
        }
    };
    let p = |cells: &[GateCell]| cells.iter().map(|c| c.p_value.unwrap()).collect::<Vec<_>>();
    let alone = p_values(&["a/b/c/x", "a/b/c/noisy"], times, str::to_owned);
    let shared = |name: &str| {
        if name == "a/b/c/noisy" {
            name.to_owned()
        } else {
            "one".to_owned()
        }
    };
    let twins = p_values(&["a/b/c/x", "a/b/c/twin", "a/b/c/noisy"], times, shared);
    assert_eq!(p(&twins), [p(&alone)[0], p(&alone)[0], p(&alone)[1]]);
    assert_eq!(
        each(&twins[1].notes),
        ["shares its measurements with a/b/c/x: one test for both"]
    );
    // Rates that are equal by chance are two tests.
    let others = p_values(
        &["a/b/c/x", "a/b/c/twin", "a/b/c/noisy"],
        times,
        str::to_owned,
    );
    assert!(
        p(&others)[0] > p(&alone)[0] && others[1].notes.is_empty(),
        "{others:?}"
    );
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

#[test]
fn a_file_whose_figures_cannot_be_is_refused() {
    let good = baseline(&[of_times(CELL, &job(), &STEADY)]);
    assert_eq!(good.fault(), None);
    let with = |change: fn(&mut Baseline)| {
        let mut bad = good.clone();
        change(&mut bad);
        fault(&bad.fault().unwrap())
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

/// One cell's report from values alone.
fn of_values(then: &[f64], now: &[f64], limit: f64) -> GateCell {
    let mut cell = GateCell::new("c", GateVerdict::Inconclusive, GateReason::NotInBaseline);
    let Some(test) = Test::of(now, then, Unit::Repeat) else {
        return cell;
    };
    cell.ratio = geometric_mean(now)
        .zip(geometric_mean(then))
        .map(|(a, b)| a / b);
    (cell.ci95, cell.p_value) = (Some(test.ci95), Some(test.p));
    judge(&mut cell, &test, limit, 1);
    cell
}

/// Three rates a share `off` beyond (or, below 0, within) a limit of 3 %, hardly varying.
fn beside_the_limit(off: f64) -> GateCell {
    let rates = |factor: f64| [1.0 - 1e-8, 1.0, 1.0 + 1e-8].map(|r| r * factor);
    of_values(&rates(100.0), &rates(97.0 * (1.0 - off)), 0.03)
}

#[test]
fn no_figure_is_rounded_onto_the_limit_that_it_is_held_against() {
    let beyond = beside_the_limit(2e-5);
    assert_eq!(beyond.verdict, GateVerdict::Fail, "{beyond:?}");
    assert!(
        said(&beyond.reason).starts_with("−3.002 % (95 % CI −3.002 to −3.002 %): beyond the limit"),
        "{:?}",
        beyond.reason
    );
    let within = beside_the_limit(-2e-5);
    assert_eq!(within.verdict, GateVerdict::Pass, "{within:?}");
    assert!(
        said(&within.reason).starts_with(
            "−2.998 % (95 % CI −2.998 to −2.998 %): slower than the baseline, but within"
        ),
        "{:?}",
        within.reason
    );
    assert!(
        said(&beside_the_limit(0.0).reason).starts_with("−3.00 % ("),
        "{:?}",
        beside_the_limit(0.0).reason
    );
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
        said(&same.reason).starts_with("the same measurements as the baseline: "),
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
        fewer.verdict == GateVerdict::Pass && said(&fewer.reason).contains("3 of its 5"),
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
        said(&mixed.reason).starts_with("5 of 8 repeats are the baseline's own"),
        "{:?}",
        mixed.reason
    );
    let mut otherwise = then.clone();
    let estimate = &mut otherwise.cells[0].tokens_per_second_per_gpu;
    estimate.value *= 1.1;
    assert!(said(&gated(&otherwise, &now()).notes[0]).contains("evaluated in another way"));
    // A file of before attempts were named is held against the rates alone.
    let mut old = then;
    old.cells[0].attempts.clear();
    let tested = gated(&old, &now());
    assert!(
        tested.verdict == GateVerdict::Pass
            && tested.p_value.is_some()
            && !tested.same_measurements
    );
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

fn rank(verdict: GateVerdict) -> u8 {
    match verdict {
        GateVerdict::Fail => 0,
        GateVerdict::Inconclusive => 1,
        _ => 2,
    }
}

proptest! {
    #[test]
    fn a_wider_limit_never_makes_it_worse(
        then in prop::collection::vec(0.5f64..2.0, 1..6),
        now in prop::collection::vec(0.5f64..2.0, 1..6),
        a in 0.0f64..0.9,
        b in 0.0f64..0.9,
    ) {
        let (tight, wide) = (a.min(b), a.max(b));
        let (tight, wide) = (of_values(&then, &now, tight), of_values(&then, &now, wide));
        prop_assert!(rank(tight.verdict) <= rank(wide.verdict));
    }

    #[test]
    fn it_passes_only_within_and_fails_only_beyond_the_limit(
        then in prop::collection::vec(0.9f64..1.1, 3..6),
        now in prop::collection::vec(0.9f64..1.1, 3..6),
        limit in 0.0f64..0.2,
    ) {
        let cell = of_values(&then, &now, limit);
        let (ratio, [low, _]) = (cell.ratio.unwrap(), cell.ci95.unwrap());
        match cell.verdict {
            GateVerdict::Pass => prop_assert!(low >= 1.0 - limit - 1e-6 && ratio >= low - 1e-9),
            GateVerdict::Fail => prop_assert!(ratio < 1.0 - limit && cell.p_value.unwrap() < 0.05),
            _ => {}
        }
    }
}

/// Standard normal numbers, always the same ones: splitmix64 and Box–Muller.
struct Normal(u64);

impl Normal {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    fn next(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
    /// Five repeats of a rate, with 1 % of noise.
    fn rates(&mut self, rate: f64) -> Vec<f64> {
        (0..5).map(|_| rate * (0.01 * self.next()).exp()).collect()
    }
}

/// Shares of failures and passes over 2,000 gates of one cell whose rate became `factor` of what it
/// was.
fn shares(factor: f64, limit: f64) -> (f64, f64) {
    let mut random = Normal(1);
    let (mut failed, mut passed) = (0, 0);
    for _ in 0..2000 {
        let (then, now) = (random.rates(100.0), random.rates(100.0 * factor));
        match of_values(&then, &now, limit).verdict {
            GateVerdict::Fail => failed += 1,
            GateVerdict::Pass => passed += 1,
            _ => {}
        }
    }
    (f64::from(failed) / 2000.0, f64::from(passed) / 2000.0)
}

#[test]
fn error_rates_are_those_that_the_definition_promises() {
    let (false_alarms, passed) = shares(1.0, 0.03);
    assert!(
        false_alarms <= 0.05 && passed >= 0.9,
        "no regression: {false_alarms} fail, {passed} pass"
    );
    // With no tolerance at all, an alarm is a one-sided 2.5 %.
    let (false_alarms, _) = shares(1.0, 0.0);
    assert!(
        false_alarms <= 0.035,
        "no regression, no tolerance: {false_alarms} fail"
    );
    let (found, missed) = shares(0.94, 0.03);
    assert!(
        found >= 0.9 && missed <= 0.001,
        "6 % slower: {found} fail, {missed} pass"
    );
    // At the limit itself at most 2.5 % pass.
    let (_, passed) = shares(0.97, 0.03);
    assert!(passed <= 0.035, "at the limit: {passed} pass");
}

#[test]
fn hosts_are_units_and_a_baseline_of_them_is_sound() {
    let of_hosts = |times: &[f64], hosts: &[&str]| {
        let mut cell = of_times(CELL, &job(), times);
        let CellState::Ok { summary } = &mut cell.input.state else {
            panic!()
        };
        let estimate = summary.tokens_per_second_per_gpu.as_mut().unwrap();
        let runs: Vec<crate::Run> = estimate
            .values
            .iter()
            .zip(hosts.iter().cycle())
            .map(|(rate, host)| crate::Run {
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
        said(&report.cells[0].reason).starts_with("2 hosts now and 2 hosts then"),
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
        said(&report.cells[0].reason).contains("global_batch_size"),
        "{:?}",
        report.cells[0].reason
    );
}

#[test]
fn an_impossible_rate_passes_nothing_and_is_no_baseline() {
    let then = baseline(&[of_times(CELL, &job(), &STEADY)]);
    let why = || ImpossibleRate {
        cell: CELL.into(),
        reason: crate::NoFigure::BadRate { rate: 0.0 },
    };
    let absurd = || GateInput {
        impossible: Some(why()),
        ..of_times(CELL, &job(), &STEADY)
    };
    assert_eq!(gate(&then, &[absurd()], 0.03).verdict, GateVerdict::Fail);
    assert!(baseline(&[absurd()]).cells.is_empty());
    assert_eq!(
        absurd().left_out(),
        Some(GateReason::Impossible(Box::new(why())))
    );
}

//! Cells that the baseline lacks, or that were not selected.

use super::*;

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
        "there are runs that do not count: ",
    ] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

/// What the gate says of a cell that the baseline lacks.
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
            cell.reason.text.starts_with(words),
            "{words}: {:?}",
            cell.reason
        );
    };
    let evidence = vec!["AssertionError: boom".to_owned()];
    let boom = CellState::Failed {
        class: FailureClass::Unknown,
        evidence: evidence.clone(),
        repeats: 1,
    };
    fails(boom, "failed: unknown: AssertionError: boom");
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
    fails(with_status(&contradicted, true), "not counted: ");
    fails(
        with_status(&contradicted, false),
        "contradicted: 1 repeat did not run",
    );
    fails(
        with_status(
            &RepeatStatus::Unmeasured {
                reason: Reason::excludes("no_step", "no step"),
            },
            true,
        ),
        "not counted: ",
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
            cell.reason.text.starts_with(words),
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
        "not in the baseline, nor measured: not counted: ",
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
        (beside.verdict, beside.now.is_some(), &*beside.notes[0].text),
        (GateVerdict::New, true, "1 repeat failed")
    );
    let unmeasured = RepeatStatus::Unmeasured {
        reason: Reason::excludes("tokens_not_known", "no tokens"),
    };
    let beside = of_new(with_status(&unmeasured, false)).1.unwrap();
    assert_eq!(
        &*beside.notes[0].text,
        "1 repeat ended with nothing to measure, so not counted"
    );
}

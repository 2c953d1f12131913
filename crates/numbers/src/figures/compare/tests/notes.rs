//! What a comparison says besides its ratios: environments, gaps, cells without figures.

use super::*;

#[test]
fn what_the_cells_ran_in_is_told_and_the_dangerous_also_where_both_have_it() {
    let mut cells = changed("single", |_| {});
    for cell in &mut cells {
        cell.environment
            .variables
            .insert("CUDA_LAUNCH_BLOCKING".into(), "1".into());
        cell.environment
            .variables
            .insert("HF_TOKEN".into(), "hunter2".into());
    }
    cells[1]
        .environment
        .variables
        .insert("OMP_NUM_THREADS".into(), "4".into());
    let all = compare_all(&cells);
    assert!(
        all.rows
            .iter()
            .all(|r| texts(&r.warnings)
                == ["CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel"])
    );
    assert_eq!(
        all.notes
            .iter()
            .filter(|n| n.kind == NoteKind::Dangerous && n.text().contains("CUDA_LAUNCH_BLOCKING=1"))
            .count(),
        2
    );
    let names: Vec<_> = all
        .environment
        .iter()
        .map(|d| (d.cell_a.as_str(), d.name.as_str()))
        .collect();
    assert_eq!(names, [("amd/prim/llama/single", "OMP_NUM_THREADS")]);
    assert!(
        all.notes.iter().any(|n| n.text().contains(
            "environment differs from that of nvd/nemo/llama/single: OMP_NUM_THREADS: 4"
        )),
        "{:?}",
        all.notes
    );
    assert!(!serde_json::to_string(&all).unwrap().contains("hunter2"));
}

#[test]
fn what_only_one_of_two_states_is_said() {
    let cells = [
        with_dropout("cpu/native/llama/single", None),
        with_dropout("cpu/tran/llama/single", Some(0.0)),
    ];
    let all = compare_all(&cells);
    let wanted = "only this cell states dropout (0): it is unknown whether the workloads match";
    assert!(
        all.notes.iter().any(|n| n.text().contains(wanted)),
        "{:?}",
        all.notes
    );
}

#[test]
fn cells_without_figures_are_listed_with_their_reason() {
    let failed = CellState::Failed {
        class: FailureClass::Oom,
        evidence: vec!["CUDA out of memory".into()],
        repeats: 1,
    };
    let comparison = compare_all(&[
        cell("a/b/c/d", failed),
        cell(
            "a/b/c/e",
            CellState::Missing {
                reason: "not run".into(),
            },
        ),
        cell(
            "a/b/c/f",
            CellState::Unsupported {
                reason: "Primus needs AMD".into(),
            },
        ),
        measured("a/b/c/g", &job(), &[], None),
    ]);
    let states: Vec<_> = comparison.absent.iter().map(|r| r.state.name()).collect();
    assert_eq!(states, ["failed", "missing", "unsupported", "unmeasured"]);
    assert_eq!(comparison.absent[0].reason.text, "oom: CUDA out of memory");
    assert!(comparison.rows.is_empty() && comparison.comparable);
}

#[test]
fn repeats_that_do_not_count_are_totalled_over_rows_and_absent_cells_with_their_reason() {
    let run = |times: &[f64]| run_of(&job(), times, json!({"global_batch_size": 8}));
    let of = |name: &str, runs: Vec<RunResult>| {
        let runs: Vec<_> = (1..).zip(runs).collect();
        cell(
            name,
            CellState::Ok {
                summary: Box::new(summarize(&runs, &Statistics { warmup_steps: 1 })),
            },
        )
    };
    let nan = || {
        let mut trace = run(&[3.0, 1.0]).trace;
        trace.anomalies.push(Anomaly {
            kind: "nan_loss".into(),
            detail: "loss is nan".into(),
            step: None,
        });
        let asked = Job {
            train_iters: 2,
            ..job()
        };
        RunResult::from(trace, &asked, facts(RunOutcome::Ok))
    };
    let contradicted = run_of(&job(), &[3.0, 1.0], json!({"global_batch_size": 64}));
    let suspect = || RunResult {
        suspect: Some("it was hot".into()),
        ..run(&[3.0, 1.0])
    };
    let oom = CellState::Failed {
        class: FailureClass::Oom,
        evidence: vec![],
        repeats: 1,
    };
    let all = compare_all(&[
        of(
            "a/b/c/d",
            vec![run(&[3.0, 1.0]), nan(), run(&[3.0]), suspect()],
        ),
        of("a/b/c/e", vec![run(&[3.0])]),
        of("a/b/c/f", vec![nan(), contradicted]),
        cell("a/b/c/g", oom),
        cell(
            "a/b/c/h",
            CellState::Missing {
                reason: "not run".into(),
            },
        ),
        of("a/b/c/i", vec![suspect(), run(&[3.0])]),
    ]);
    assert_eq!(all.uncounted.by_why().map(|(_, count)| count), [3, 1, 2, 3]);
    let row = &all.rows[0];
    assert_eq!(
        (row.n, row.uncounted.by_why().map(|(_, count)| count)),
        (1, [1, 0, 1, 1])
    );
    let notes = [
        "repeat 2 failed (nan): loss is nan",
        "repeat 3 is not counted: the only timed step is within the declared warm-up of 1 step",
        "repeat 4 is not counted: it was hot",
    ];
    for words in notes {
        let is_it = |n: &Note| n.cell.as_deref() == Some("a/b/c/d") && n.text().contains(words);
        assert!(all.notes.iter().any(is_it), "{words}: {:?}", all.notes);
    }
    let absent: Vec<_> = all
        .absent
        .iter()
        .map(|a| (a.state.name(), a.reason.text.clone()))
        .collect();
    assert!(
        absent[0].0 == "unmeasured" && absent[0].1.contains("the only timed step is within"),
        "{absent:?}"
    );
    assert_eq!(
        absent[4],
        (
            "suspect",
            "repeat 1 is not counted: it was hot; the other repeat is not counted either"
                .to_owned()
        )
    );
}

#[test]
fn cells_that_share_no_device_of_one_kind_say_so() {
    let on = |name: &str, kind: &str, devices: &[&str]| {
        let mut cell = measured(name, &job(), &[1.0, 1.1], Some(("cuda", kind)));
        let CellState::Ok { summary } = &mut cell.state else {
            panic!("measured")
        };
        // One of them a repeat.
        for (repeat, device) in summary.repeats.iter_mut().zip(devices) {
            repeat.devices = vec![(*device).to_owned()];
        }
        cell
    };
    let told = |a: (&str, &[&str]), b: (&str, &[&str])| {
        let all = compare_all(&[on("a/b/c/d", a.0, a.1), on("a/b/c/e", b.0, b.1)]);
        all.notes
            .into_iter()
            .map(|n| n.text())
            .filter(|text| text.contains("other devices of the same kind"))
            .collect::<Vec<_>>()
    };
    let (h100, h200) = ("NVIDIA H100 80GB HBM3", "NVIDIA H200");
    let note = "ran on other devices of the same kind than a/b/c/d, so part of a difference may be the devices'";
    assert_eq!(
        told((h100, &["gpu-1", "gpu-1"]), (h100, &["gpu-2", "gpu-2"])),
        [note]
    );
    assert_eq!(
        told((h100, &["gpu-1", "gpu-2"]), (h100, &["gpu-2", "gpu-3"])),
        [""; 0],
        "one is shared"
    );
    assert_eq!(
        told((h100, &["gpu-1", "gpu-1"]), (h100, &["gpu-2"])),
        [""; 0],
        "of one repeat it is not known"
    );
    assert_eq!(
        told((h100, &["gpu-1", "gpu-1"]), (h200, &["gpu-2", "gpu-2"])),
        [""; 0],
        "another kind says so itself"
    );
}

#[test]
fn what_only_the_job_states_is_said() {
    let mut cell = measured("cpu/native/llama/single", &job(), &[1.0], None);
    let note = |cell: &CellInput| {
        let all = compare_all(std::slice::from_ref(cell));
        all.notes
            .into_iter()
            .map(|n| n.text())
            .find(|n| n.ends_with("; the job asked for it"))
    };
    assert!(
        note(&cell)
            .unwrap()
            .starts_with("the log does not confirm architecture, num_layers, hidden_size and 1")
    );
    assert!(
        compare_all(std::slice::from_ref(&cell)).rows[0]
            .declared_only
            .iter()
            .any(|f| f == "optimizer")
    );
    let mut keep = |declared: &[&str]| {
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        for field in &mut summary.contract.0 {
            field.source = if declared.contains(&&*field.field) {
                Source::Declared
            } else {
                Source::Effective
            };
        }
        note(&cell)
    };
    let two = "the log does not confirm optimizer, data; the job asked for it";
    assert_eq!(keep(&["data", "optimizer", "seed"]).as_deref(), Some(two));
    assert_eq!(keep(&["seed"]), None);
}

#[test]
fn mfu_needs_a_known_device() {
    let mfu = |device| {
        compare_all(&[measured("nvd/native/llama/single", &job(), &[1.0], device)]).rows[0]
            .mfu
            .clone()
    };
    assert!(matches!(
        mfu(Some(("cuda", "NVIDIA H100 80GB HBM3"))),
        Figure::Ok { .. }
    ));
    assert!(matches!(mfu(None), Figure::Absent { .. }));
    assert!(
        matches!(mfu(Some(("cpu", "EPYC"))), Figure::Error { reason } if reason.text.contains("ran on a CPU"))
    );
}

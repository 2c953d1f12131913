use std::collections::BTreeSet;

use serde_json::json;
use tprimat_job::{FailureClass, Job, RunOutcome};
use tprimat_logs::Anomaly;
use tprimat_results::{CUSUM, ContractField, RunResult, Source, Tier};

use super::*;
use crate::{
    Note, NoteKind, Statistics, Unit,
    sentences::{each, said},
    stand_ins::{cell, facts, measured, run_of, test_job as job},
    summarize,
};

fn compare_with(cells: &[CellInput], settings: CompareSettings) -> Comparison {
    compare(cells, &settings, &Catalogue::default())
}
fn compare_all(cells: &[CellInput]) -> Comparison {
    compare_with(cells, CompareSettings::default())
}

#[test]
fn a_clear_speedup_is_significant_and_noise_is_not() {
    let comparison = compare_all(&[
        measured("cpu/native/llama/single", &job(), &[1.0, 1.01, 0.99], None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
        measured("cpu/cmd/llama/single", &job(), &[1.0, 1.02, 0.985], None),
    ]);
    assert!(comparison.comparable && comparison.groups.len() == 1);
    let [slow, same] = &comparison.speedups[..] else {
        panic!("{:?}", comparison.speedups)
    };
    assert_eq!(
        (slow.b.as_str(), slow.significant, same.significant),
        ("cpu/native/llama/single", Some(true), Some(false))
    );
    assert!((slow.ratio - 0.5).abs() < 0.01 && slow.interval.unwrap().high < 0.55);
}

#[test]
fn few_repeats_give_no_verdict_and_say_why() {
    let cells = |n: usize| {
        let times = [1.0, 1.01, 0.99];
        [
            measured("cpu/native/llama/single", &job(), &times, None),
            measured("cpu/tran/llama/single", &job(), &times[..n], None),
        ]
    };
    let one = &compare_all(&cells(1)).speedups[0];
    assert_eq!(
        (one.interval, one.significant, one.reason.clone()),
        (None, None, Some(NoVerdict::OneRepeat))
    );
    let two = &compare_all(&cells(2)).speedups[0];
    assert!(
        two.interval.is_some()
            && two.significant.is_none()
            && two.reason
                == Some(NoVerdict::FewUnits {
                    n: 2,
                    unit: Unit::Repeat,
                    least: 3
                })
    );
}

fn big_batch() -> Job {
    let mut job = job();
    job.data.global_batch_size = 128;
    job.data.gradient_accumulation_steps = 64;
    job
}

#[test]
fn different_workloads_are_refused_or_labelled() {
    let cells = [
        measured(
            "nvd/nemo/llama/maximum_performance",
            &job(),
            &[1.0, 1.1, 1.2],
            None,
        ),
        measured(
            "amd/prim/llama/maximum_performance",
            &big_batch(),
            &[1.0, 1.1, 1.2],
            None,
        ),
    ];
    let refused = compare_all(&cells);
    assert!(!refused.comparable && refused.speedups.is_empty() && refused.groups.len() == 2);
    let why: Vec<_> = refused
        .differences
        .iter()
        .filter(|d| d.refused)
        .map(|d| d.field.field.as_str())
        .collect();
    assert_eq!(why, ["global_batch_size"]);
    let forced = compare_with(
        &cells,
        CompareSettings {
            across: vec!["global_batch_size".into()],
            ..Default::default()
        },
    );
    assert!(forced.comparable);
    assert_eq!(
        said(&forced.speedups[0].labels[0]),
        "across global_batch_size: 128, not 8"
    );
    assert!(
        forced
            .notes
            .iter()
            .any(|n| n.text().contains("across global_batch_size")),
        "{:?}",
        forced.notes
    );
}

/// A cell whose trainer states this dropout.
fn with_dropout(name: &str, dropout: Option<f64>) -> CellInput {
    let mut cell = measured(name, &job(), &[1.0, 1.1, 1.2], None);
    let CellState::Ok { summary } = &mut cell.state else {
        unreachable!()
    };
    summary.contract.0.extend(dropout.map(|value| {
        let (field, tier) = ("dropout".into(), Tier::Workload);
        ContractField {
            field,
            tier,
            value: json!(value),
            source: Source::Effective,
        }
        .into()
    }));
    cell
}

#[test]
fn a_value_that_is_not_stated_does_not_join_two_that_differ() {
    let names = [
        "cpu/native/llama/single",
        "cpu/tran/llama/single",
        "cpu/cmd/llama/single",
    ];
    for order in [
        [None, Some(0.1), Some(0.0)],
        [Some(0.1), None, Some(0.0)],
        [Some(0.1), Some(0.0), None],
    ] {
        let cells: Vec<_> = names
            .iter()
            .zip(order)
            .map(|(name, dropout)| with_dropout(name, dropout))
            .collect();
        for baseline in [None, Some(names[0]), Some(names[1]), Some(names[2])] {
            let settings = CompareSettings {
                baseline: baseline.map(str::to_owned),
                ..Default::default()
            };
            let all = compare_with(&cells, settings);
            assert!(
                !all.comparable && all.groups.len() == 2,
                "{order:?} {baseline:?}: {:?}",
                all.groups
            );
            let refused: Vec<_> = all.differences.iter().filter(|d| d.refused).collect();
            assert!(
                matches!(refused[..], [d] if d.field.field == "dropout" && d.field.is_known()),
                "{refused:?}"
            );
            assert!(
                all.notes
                    .iter()
                    .any(|n| n.kind == NoteKind::Refused && n.text().contains("dropout"))
            );
            assert_eq!(all.speedups.len(), 1);
            assert!(all.speedups[0].labels.is_empty());
        }
        let crossed = compare_with(
            &cells,
            CompareSettings {
                across: vec!["dropout".into()],
                ..Default::default()
            },
        );
        assert!(crossed.comparable && crossed.groups.len() == 1);
    }
}

#[test]
fn another_warm_up_is_told_and_gives_no_verdict_unless_asked_for() {
    let mut cells = [
        measured("cpu/native/llama/single", &job(), &[1.0, 1.01, 0.99], None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
    ];
    let set = |cell: &mut CellInput, steps: u64, steady_state: &str| {
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        (summary.warmup_steps, summary.steady_state) = (steps, steady_state.to_owned());
    };
    set(&mut cells[0], 5, "declared");
    set(&mut cells[1], 9, "declared");
    let all = compare_all(&cells);
    let [speedup] = &all.speedups[..] else {
        panic!("{:?}", all.speedups)
    };
    assert_eq!((speedup.significant, speedup.p_value), (None, None));
    assert_eq!(speedup.reason, Some(NoVerdict::OtherWarmUp));
    assert_eq!(
        (each(&speedup.labels), &all.rows[1].labels),
        (vec!["warm-up 9, not 5 steps".to_owned()], &speedup.labels)
    );
    assert!(
        all.notes.iter().any(|n| n
            .text()
            .contains("that drop different warm-up steps get no verdict")),
        "{:?}",
        all.notes
    );
    let asked = compare_with(
        &cells,
        CompareSettings {
            across: vec!["warmup".into()],
            ..Default::default()
        },
    );
    assert_eq!(asked.speedups[0].significant, Some(true));
    assert_eq!(
        each(&asked.speedups[0].labels),
        ["across warm-up 9, not 5 steps"]
    );
    set(&mut cells[1], 5, CUSUM);
    let found = &compare_all(&cells).speedups[0];
    assert_eq!(
        found.significant,
        Some(true),
        "both drop what is declared; one of them was looked at as well"
    );
    assert_eq!(
        each(&found.labels),
        ["steady state detected by CUSUM, there not assessed"]
    );
    set(&mut cells[0], 9, CUSUM);
    let found = &compare_all(&cells).speedups[0];
    assert_eq!(
        (found.significant, &*said(&found.labels[0])),
        (Some(true), "warm-up 5, not 9 steps")
    );
    set(&mut cells[0], 5, "declared");
    set(&mut cells[1], 5, "declared");
    assert_eq!(compare_all(&cells).speedups[0].significant, Some(true));
}

#[test]
fn precision_may_differ_under_maximum_performance_only() {
    let mut fp8 = job();
    fp8.precision = "fp8".into();
    let cells = |strategies: [&str; 2]| {
        [
            measured(
                &format!("nvd/nemo/llama/{}", strategies[0]),
                &job(),
                &[1.0, 1.1, 1.2],
                None,
            ),
            measured(
                &format!("amd/prim/llama/{}", strategies[1]),
                &fp8,
                &[1.0, 1.1, 1.2],
                None,
            ),
        ]
    };
    let open = compare_all(&cells(["maximum_performance"; 2]));
    assert!(open.comparable);
    assert_eq!(each(&open.speedups[0].labels), ["precision: fp8, not bf16"]);
    assert!(
        open.notes
            .iter()
            .any(|n| n.text().contains("precision: fp8, not bf16")),
        "{:?}",
        open.notes
    );
    for strategies in [
        ["identical_config"; 2],
        ["single"; 2],
        ["maximum_performance", "single"],
    ] {
        let refused = compare_all(&cells(strategies));
        assert!(
            !refused.comparable && refused.speedups.is_empty() && refused.groups.len() == 2,
            "{strategies:?}"
        );
        let across = CompareSettings {
            across: vec!["precision".into()],
            ..Default::default()
        };
        let forced = compare_with(&cells(strategies), across);
        assert_eq!(
            each(&forced.speedups[0].labels),
            ["across precision: fp8, not bf16"],
            "{strategies:?}"
        );
    }
    // What runs at one rate is one class.
    fp8.precision = "fp16".into();
    let cells = [
        measured("nvd/nemo/llama/single", &job(), &[1.0, 1.1, 1.2], None),
        measured("amd/prim/llama/single", &fp8, &[1.0, 1.1, 1.2], None),
    ];
    assert_eq!(
        each(&compare_all(&cells).speedups[0].labels),
        ["precision: fp16, not bf16"]
    );
}

/// A change of a job, and the field that it changes.
type Change = (&'static str, fn(&mut Job));

const WORKLOAD: [Change; 17] = [
    ("architecture", |j| j.model.architecture = "mistral".into()),
    ("num_layers", |j| j.model.num_layers += 1),
    ("hidden_size", |j| j.model.hidden_size *= 2),
    ("ffn_hidden_size", |j| j.model.ffn_hidden_size += 1),
    ("num_attention_heads", |j| j.model.num_attention_heads += 1),
    ("num_kv_heads", |j| j.model.num_kv_heads += 7),
    ("head_dim", |j| j.model.head_dim += 1),
    ("vocab_size", |j| j.model.vocab_size += 1),
    ("tie_embeddings", |j| j.model.tie_embeddings ^= true),
    ("qkv_bias", |j| j.model.qkv_bias ^= true),
    ("seq_length", |j| j.data.seq_length *= 2),
    ("global_batch_size", |j| j.data.global_batch_size *= 2),
    ("num_gpus", |j| j.parallelism.num_gpus *= 2),
    ("precision", |j| j.precision = "fp32".into()),
    ("optimizer", |j| j.optimizer.r#type = "muon".into()),
    ("optimizer_state_precision", |j| {
        j.optimizer.state_precision = "bf16".into()
    }),
    ("data", |j| j.model.dataset = Some("c4".into())),
];

const EXECUTION: [Change; 8] = [
    ("compile", |j| j.compile ^= true),
    ("activation_checkpointing", |j| {
        j.activation_checkpointing ^= true
    }),
    ("offload", |j| j.offload ^= true),
    ("micro_batch_size", |j| j.data.micro_batch_size += 1),
    ("tensor_model_parallel_size", |j| {
        j.parallelism.tensor_model_parallel_size = 2
    }),
    ("pipeline_model_parallel_size", |j| {
        j.parallelism.pipeline_model_parallel_size = 2
    }),
    ("data_parallel_size", |j| {
        j.parallelism.data_parallel_size = 9
    }),
    ("sharding", |j| j.parallelism.sharding = "zero3".into()),
];

const CONVERGENCE: [Change; 12] = [
    ("learning_rate", |j| j.optimizer.learning_rate *= 2.0),
    ("min_learning_rate", |j| {
        j.optimizer.min_learning_rate += 1.0
    }),
    ("warmup_steps", |j| j.optimizer.warmup_steps += 1),
    ("weight_decay", |j| j.optimizer.weight_decay += 1.0),
    ("beta1", |j| j.optimizer.beta1 = 0.5),
    ("beta2", |j| j.optimizer.beta2 = 0.5),
    ("eps", |j| j.optimizer.eps = 1e-3),
    ("clip_grad", |j| j.optimizer.clip_grad += 3.0),
    ("init_std", |j| j.initialisation.std = 0.5),
    ("seed", |j| j.seed += 1),
    ("rope_theta", |j| j.model.rope_theta += 1.0),
    ("norm_eps", |j| j.model.norm_eps += 1.0),
];

/// Two cells of a strategy, the second one changed.
fn changed(strategy: &str, change: fn(&mut Job)) -> [CellInput; 2] {
    let mut base = job();
    base.parallelism.sharding = "ddp".into();
    (
        base.model.rope_theta,
        base.model.norm_eps,
        base.initialisation.std,
    ) = (1e4, 1e-5, 0.02);
    let mut other = base.clone();
    change(&mut other);
    [
        measured(
            &format!("nvd/nemo/llama/{strategy}"),
            &base,
            &[1.0, 1.1, 1.2],
            None,
        ),
        measured(
            &format!("amd/prim/llama/{strategy}"),
            &other,
            &[1.0, 1.1, 1.2],
            None,
        ),
    ]
}

#[test]
fn every_field_of_the_workload_refuses_and_every_other_one_is_named() {
    let sentence = |all: &Comparison, field: &str| {
        all.notes
            .iter()
            .any(|n| n.text().contains(&format!("{field}: ")))
    };
    for (field, change) in WORKLOAD {
        for strategy in ["single", "identical_config", "maximum_performance"] {
            let cells = changed(strategy, change);
            let all = compare_all(&cells);
            let may = field == "precision" && strategy == "maximum_performance";
            assert_eq!(
                (all.comparable, all.groups.len()),
                if may { (true, 1) } else { (false, 2) },
                "{field} {strategy}"
            );
            assert!(may || all.speedups.is_empty(), "{field} {strategy}");
            let refused: Vec<_> = all
                .differences
                .iter()
                .filter(|d| d.refused)
                .map(|d| &d.field.field)
                .collect();
            assert!(
                may || refused.iter().any(|f| *f == field),
                "{field} {strategy}: {refused:?}"
            );
            assert!(sentence(&all, field), "{field} {strategy}: {:?}", all.notes);
            let across = refused.into_iter().cloned().collect();
            let forced = compare_with(
                &cells,
                CompareSettings {
                    across,
                    ..Default::default()
                },
            );
            let label = format!("across {field}: ");
            assert!(forced.comparable, "{field} {strategy}");
            assert!(
                may || forced.speedups[0]
                    .labels
                    .iter()
                    .any(|l| said(l).starts_with(&label)),
                "{field} {strategy}"
            );
        }
    }
    for (field, change) in EXECUTION.into_iter().chain(CONVERGENCE) {
        let named = compare_all(&changed("maximum_performance", change));
        assert!(
            named.comparable && named.speedups.len() == 1 && sentence(&named, field),
            "{field}: {:?}",
            named.notes
        );
        let strict = compare_all(&changed("identical_config", change));
        assert!(!strict.comparable && strict.speedups.is_empty(), "{field}");
    }
}

#[test]
fn losses_are_compared_within_one_convergence_only() {
    for (field, change) in CONVERGENCE {
        let cells = changed("single", change);
        let all = compare_all(&cells);
        assert_ne!(all.rows[0].loss_group, all.rows[1].loss_group, "{field}");
        let note =
            format!("losses cannot be compared with those of nvd/nemo/llama/single: {field}: ");
        let is_it = |n: &Note| {
            n.cell.as_deref() == Some("amd/prim/llama/single") && n.text().starts_with(&note)
        };
        assert!(all.notes.iter().any(is_it), "{field}: {:?}", all.notes);
        let across = CompareSettings {
            across: vec![field.into()],
            ..Default::default()
        };
        let forced = compare_with(&cells, across);
        assert_eq!(
            forced.rows[0].loss_group, forced.rows[1].loss_group,
            "{field}"
        );
        assert!(
            forced.rows[1]
                .labels
                .iter()
                .any(|l| said(l).starts_with(&format!("across {field}: "))),
            "{field}"
        );
    }
    for (field, change) in EXECUTION {
        let all = compare_all(&changed("single", change));
        assert_eq!(all.rows[0].loss_group, all.rows[1].loss_group, "{field}");
    }
}

#[test]
fn two_datasets_of_one_name_are_told_apart_by_their_content() {
    let real = |j: &mut Job| j.model.dataset = Some("c4".into());
    let mut cells = changed("single", real);
    cells[0] = CellInput {
        cell: "nvd/nemo/llama/single".into(),
        platform: "nvd".into(),
        ..cells[1].clone()
    };
    let mut pin = |at: usize, digest: &str| {
        cells[at]
            .environment
            .facts
            .insert(tprimat_results::DATASET_DIGEST.into(), digest.into());
        compare_all(&cells)
    };
    pin(0, "aa");
    let same = pin(1, "aa");
    assert_eq!(same.rows[0].loss_group, same.rows[1].loss_group);
    let other = pin(1, "bb");
    assert_ne!(other.rows[0].loss_group, other.rows[1].loss_group);
    assert!(
        other.comparable
            && each(&other.rows[1].labels).contains(&"dataset_digest: bb, not aa".to_owned())
    );
}

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
            .all(|r| each(&r.warnings)
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
    let wanted = "only this cell states dropout (0.0): it is unknown whether the workloads match";
    assert!(
        all.notes.iter().any(|n| n.text().contains(wanted)),
        "{:?}",
        all.notes
    );
}

#[test]
fn strategies_and_models_of_one_matrix_stand_apart_without_a_complaint() {
    let mut qwen = job();
    qwen.model.architecture = "qwen2".into();
    let cells = [
        measured("nvd/nemo/llama/maximum_performance", &job(), &[1.0], None),
        measured("nvd/nemo/llama/identical_config", &job(), &[1.0], None),
        measured("nvd/nemo/qwen/maximum_performance", &qwen, &[1.0], None),
    ];
    let all = compare_all(&cells);
    assert!(all.comparable && all.groups.len() == 3);
    let asked = compare_with(
        &[cells[0].clone(), cells[2].clone()],
        CompareSettings {
            named: true,
            ..Default::default()
        },
    );
    assert!(!asked.comparable);
}

#[test]
fn cells_without_figures_are_listed_with_their_reason() {
    let failed = CellState::Failed {
        class: FailureClass::Oom,
        evidence: vec!["CUDA out of memory".into()],
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
    assert_eq!(
        said(&comparison.absent[0].reason),
        "oom: CUDA out of memory"
    );
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
    assert_eq!(
        (all.failed, all.contradicted, all.suspect, all.unmeasured),
        (3, 1, 2, 3)
    );
    let row = &all.rows[0];
    assert_eq!(
        (
            row.n,
            row.failed,
            row.contradicted,
            row.suspect,
            row.unmeasured
        ),
        (1, 1, 0, 1, 1)
    );
    let notes = [
        "repeat 2 failed (nan): loss is nan",
        "repeat 3 is not counted: the only timed step is within the declared warm-up of 1 step",
        "repeat 4 is not counted: it was hot",
        "1 of 3 repeats",
    ];
    for words in notes {
        let is_it = |n: &Note| n.cell.as_deref() == Some("a/b/c/d") && n.text().contains(words);
        assert!(all.notes.iter().any(is_it), "{words}: {:?}", all.notes);
    }
    let absent: Vec<_> = all
        .absent
        .iter()
        .map(|a| (a.state.name(), said(&a.reason)))
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
fn the_baseline_can_be_named_and_identical_launches_are_noted() {
    let mut cells = [
        measured("cpu/native/llama/single", &job(), &[1.0, 1.1], None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.1], None),
    ];
    cells[1].same_launch_as = Some(cells[0].cell.clone());
    let named = CompareSettings {
        baseline: Some("cpu/tran/llama/single".into()),
        ..Default::default()
    };
    let comparison = compare_with(&cells, named);
    assert_eq!(comparison.speedups[0].b, "cpu/tran/llama/single");
    assert!(
        comparison
            .notes
            .iter()
            .any(|n| n.kind == NoteKind::Same && n.text().contains("the very same bytes"))
    );
    let absent = CompareSettings {
        baseline: Some("x".into()),
        ..Default::default()
    };
    assert!(
        compare_with(&cells, absent)
            .notes
            .iter()
            .any(|n| n.text().contains("has no figures"))
    );
}

#[test]
fn the_same_measurements_are_not_compared_with_themselves() {
    let times = [1.0, 1.01, 0.99];
    let mut cells = [
        measured("cpu/cmd/llama/single", &job(), &times, None),
        measured("cpu/cmd/llama/other", &job(), &times, None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
    ];
    cells[1].same_launch_as = Some(cells[0].cell.clone());
    // Two runs of the same launch: a difference is possible, and noise.
    let apart = compare_all(&cells);
    assert!(apart.speedups[0].interval.is_some() && apart.speedups[0].significant == Some(false));
    let same_note = |all: &Comparison| {
        all.notes
            .iter()
            .find(|n| n.kind == NoteKind::Same)
            .unwrap()
            .text()
    };
    assert!(
        same_note(&apart).contains("any difference between them is noise"),
        "{}",
        same_note(&apart)
    );
    let share = |cells: &mut [CellInput; 3], repeats: usize| {
        let CellState::Ok { summary: first } = cells[0].state.clone() else {
            unreachable!()
        };
        let CellState::Ok { summary } = &mut cells[1].state else {
            unreachable!()
        };
        for (own, theirs) in summary.repeats.iter_mut().zip(&first.repeats).take(repeats) {
            own.attempt.clone_from(&theirs.attempt);
        }
    };
    let none = (None, None, None);
    share(&mut cells, 2);
    let part = compare_all(&cells);
    let found = &part.speedups[0];
    assert_eq!((found.interval, found.significant, found.p_value), none);
    assert_eq!(found.reason, Some(NoVerdict::SomeSameMeasurements { n: 2 }));
    share(&mut cells, 3);
    let all = compare_all(&cells);
    let [same, other] = &all.speedups[..] else {
        panic!("{:?}", all.speedups)
    };
    assert_eq!((same.interval, same.significant, same.p_value), none);
    assert_eq!(same.reason, Some(NoVerdict::SameMeasurements));
    assert!(
        same_note(&all)
            .starts_with("identical to cpu/cmd/llama/single, so both were measured once"),
        "{}",
        same_note(&all)
    );
    // Nor does it count as a comparison that the others are corrected for.
    assert_eq!(
        (other.significant, other.interval.unwrap().confidence),
        (Some(true), 0.95)
    );
    // Against a third cell they are one comparison, which is corrected for once and told alike.
    let third = CompareSettings {
        baseline: Some("cpu/tran/llama/single".into()),
        ..Default::default()
    };
    let twice = compare_with(&cells, third).speedups;
    let [first, second] = &twice[..] else {
        panic!("{twice:?}")
    };
    assert_eq!(
        (first.same_as.as_deref(), second.same_as.as_deref()),
        (None, Some("cpu/cmd/llama/single"))
    );
    assert_eq!(
        (first.interval, first.p_value, first.significant),
        (second.interval, second.p_value, Some(true))
    );
    assert_eq!(
        (second.significant, first.interval.unwrap().confidence),
        (Some(true), 0.95)
    );
    // Without a name nothing is the same.
    for cell in &mut cells[..2] {
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        summary.repeats.iter_mut().for_each(|r| r.attempt.clear());
    }
    assert!(compare_all(&cells).speedups[0].interval.is_some());
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
        Mfu::Ok { .. }
    ));
    assert!(matches!(mfu(None), Mfu::Absent { .. }));
    assert!(
        matches!(mfu(Some(("cpu", "EPYC"))), Mfu::Error { reason } if said(&reason).contains("ran on a CPU"))
    );
}

#[test]
fn hosts_are_the_units_of_a_comparison_and_two_of_them_are_too_few() {
    let set = |cell: &mut CellInput, units: &[f64], unit: Unit| {
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        let estimate = summary.tokens_per_second_per_gpu.as_mut().unwrap();
        (estimate.units, estimate.unit) = (units.to_vec(), unit);
    };
    let times = [1.0, 1.01, 0.99, 1.0];
    let mut cells = [
        measured("cpu/native/llama/single", &job(), &times, None),
        measured(
            "cpu/tran/llama/single",
            &job(),
            &times.map(|t| 2.0 * t),
            None,
        ),
    ];
    set(&mut cells[1], &[500.0, 503.0], Unit::Host);
    let all = compare_all(&cells);
    let two = &all.speedups[0];
    assert_eq!(
        (
            two.n_a,
            two.n_b,
            two.significant,
            two.interval.unwrap().confidence
        ),
        (2, 4, None, 0.95)
    );
    assert_eq!(
        two.reason,
        Some(NoVerdict::FewUnits {
            n: 2,
            unit: Unit::Host,
            least: 3
        })
    );
    let words = "Student's t on logarithms over repeats, Student's t on logarithms over hosts; they hold for the host node1";
    assert!(
        all.notes.iter().any(|n| n.text().contains(words)),
        "{:?}",
        all.notes
    );
    set(&mut cells[1], &[500.0, 503.0, 505.0], Unit::Host);
    assert_eq!(compare_all(&cells).speedups[0].significant, Some(true));
}

#[test]
fn no_interval_of_a_speedup_contradicts_its_verdict() {
    // Each alone would be significant; over the four of them the correction leaves some.
    let times = |t: f64| [t, 1.006 * t, 0.994 * t, 1.002 * t];
    let cells: Vec<CellInput> = ["native", "tran", "cmd", "fsdp", "deep"]
        .iter()
        .zip([1.0, 1.011, 0.989, 1.02, 1.001])
        .map(|(name, t)| measured(&format!("cpu/{name}/llama/single"), &job(), &times(t), None))
        .collect();
    let found = compare_all(&cells).speedups;
    for speedup in &found {
        let RatioInterval {
            low,
            high,
            confidence,
        } = speedup.interval.unwrap();
        assert!(confidence >= 0.95, "{speedup:?}");
        assert_eq!(
            speedup.significant,
            Some(low > 1.0 || high < 1.0),
            "{speedup:?}"
        );
    }
    let verdicts: BTreeSet<_> = found.iter().map(|s| s.significant).collect();
    assert_eq!(
        verdicts.len(),
        2,
        "some are significant, some are not: {found:?}"
    );
    assert!(
        found.iter().any(|s| s.interval.unwrap().confidence > 0.95),
        "four of them are looked at: {found:?}"
    );
}

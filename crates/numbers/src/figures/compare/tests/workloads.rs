//! Which cells may be compared, by what they ran.

use super::*;
use crate::figures::codes::OTHER_WARM_UP;

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
        forced.speedups[0].labels[0].text,
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

/// A script that ignores its batch size prints the same losses whatever a command hands over.
#[test]
fn a_batch_size_that_changes_no_loss_did_not_reach_the_training() {
    let of = |name: &str, job: &Job, source: Source, loss: f64| {
        let steps = vec![vec![1.0; 12]; 2];
        let mut cell = measured_steps(name, job, &steps, None);
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        let fields = summary.contract.0.iter_mut();
        let batch = fields.filter(|field| field.field == "global_batch_size");
        batch.for_each(|field| field.source = source);
        for repeat in &mut summary.repeats {
            repeat.curve.loss[11] = Some(loss);
        }
        cell
    };
    let names = ["cpu/cmd/llama/single@bs=8", "cpu/cmd/llama/single@bs=128"];
    let compared = |source: Source, loss: f64| {
        let cells = [
            of(names[0], &job(), source, 0.5),
            of(names[1], &big_batch(), source, loss),
        ];
        compare_all(&cells)
    };
    let told = compared(Source::Declared, 0.5);
    assert!(told.rows.is_empty() && told.speedups.is_empty());
    for (cell, name) in told.absent.iter().zip(names) {
        assert_eq!((&*cell.cell, cell.state), (name, AbsentState::Contradicted));
        assert!(
            cell.reason
                .text
                .contains("does not reach the training of one")
        );
    }
    // Another last loss; or the trainer itself states its batch.
    assert_eq!(compared(Source::Declared, 0.51).rows.len(), 2);
    assert_eq!(compared(Source::Effective, 0.5).rows.len(), 2);
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
    assert!(speedup.reason.as_ref().unwrap().is(OTHER_WARM_UP));
    assert_eq!(
        (texts(&speedup.labels), &all.rows[1].labels),
        (vec!["warm-up 9, not 5 steps"], &speedup.labels)
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
        texts(&asked.speedups[0].labels),
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
        texts(&found.labels),
        ["steady state detected by CUSUM, there not assessed"]
    );
    set(&mut cells[0], 9, CUSUM);
    let found = &compare_all(&cells).speedups[0];
    assert_eq!(
        (found.significant, &*found.labels[0].text),
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
    assert_eq!(
        texts(&open.speedups[0].labels),
        ["precision: fp8, not bf16"]
    );
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
            texts(&forced.speedups[0].labels),
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
        texts(&compare_all(&cells).speedups[0].labels),
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
                    .any(|l| l.text.starts_with(&label)),
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

/// Two names of models whose shapes nobody states may be two models.
#[test]
fn models_of_two_names_are_one_where_their_shapes_say_so() {
    let named = |shape: bool| {
        let cells = ["nvd/tran/foo/a", "amd/tran/bar/b"];
        let cells = cells.map(|cell| {
            let mut cell = measured(cell, &job(), &[1.0, 1.1, 1.2], None);
            if let (CellState::Ok { summary }, false) = (&mut cell.state, shape) {
                let is_size = |field: &str| ["num_layers", "num_parameters"].contains(&field);
                summary.contract.0.retain(|field| !is_size(&field.field));
            }
            cell
        });
        let settings = CompareSettings {
            named: true,
            ..Default::default()
        };
        compare_with(&cells, settings)
    };
    assert!(named(true).comparable);
    let refused = named(false);
    assert!(!refused.comparable && refused.speedups.is_empty());
    let fields: Vec<&str> = refused
        .differences
        .iter()
        .map(|d| &*d.field.field)
        .collect();
    assert_eq!(fields, ["model"]);
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
                .any(|l| l.text.starts_with(&format!("across {field}: "))),
            "{field}"
        );
    }
    for (field, change) in EXECUTION {
        let all = compare_all(&changed("single", change));
        assert_eq!(all.rows[0].loss_group, all.rows[1].loss_group, "{field}");
    }
}

/// A sweep over a rate asks for its losses; what tells two cells apart that are not of one sweep does not.
#[test]
fn losses_are_compared_over_what_the_matrix_varies() {
    let rate = |job: &mut Job| job.optimizer.learning_rate *= 2.0;
    let mut cells = changed("single", rate);
    for (cell, value) in cells.iter_mut().zip(["1", "2"]) {
        cell.cell = format!("nvd/nemo/llama/single@lr={value}");
        cell.axes = [("lr".to_owned(), value.to_owned())].into();
    }
    let all = compare_all(&cells);
    assert_eq!(all.rows[0].loss_group, all.rows[1].loss_group);
    let is_other = |note: &Note| note.text().starts_with("losses cannot be compared");
    assert!(!all.notes.iter().any(is_other), "{:?}", all.notes);
    // Imports of one name, which no axis tells apart.
    cells.iter_mut().for_each(|cell| cell.axes.clear());
    let all = compare_all(&cells);
    assert_ne!(all.rows[0].loss_group, all.rows[1].loss_group);
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
            .insert(crate::results::DATASET_DIGEST.into(), digest.into());
        compare_all(&cells)
    };
    pin(0, "aa");
    let same = pin(1, "aa");
    assert_eq!(same.rows[0].loss_group, same.rows[1].loss_group);
    let other = pin(1, "bb");
    assert_ne!(other.rows[0].loss_group, other.rows[1].loss_group);
    assert!(
        other.comparable && texts(&other.rows[1].labels).contains(&"dataset_digest: bb, not aa")
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

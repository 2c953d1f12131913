use serde_json::json;

use super::*;

fn effective(name: &str, stated: Value) -> Option<Value> {
    let stated = serde_json::from_value(stated).unwrap();
    setting(name).unwrap().effective(&stated)
}

#[test]
fn a_setting_is_found_flat_grouped_and_under_other_names() {
    assert_eq!(
        effective("seq_length", json!({"sequence_length": "2048"})),
        Some(json!(2048))
    );
    assert_eq!(
        effective("optimizer", json!({"optimizer": {"type": "AdamW"}})),
        Some(json!("adamw"))
    );
    assert_eq!(
        effective("precision", json!({"dtype": "torch.bfloat16"})),
        Some(json!("bf16"))
    );
    assert_eq!(
        effective("num_layers", json!({"model": {"num_layers": 2}})),
        Some(json!(2))
    );
    assert_eq!(effective("dropout", json!({"dropout": null})), None);
    assert_eq!(
        effective(
            "rope_scaling_factor",
            json!({"rope_scaling": {"factor": 8.0}})
        ),
        Some(json!(8.0))
    );
    assert_eq!(
        effective("rope_scaling_factor", json!({"rope_scaling": null})),
        None
    );
}

#[test]
fn daily_words_of_trainers_are_one_word() {
    for (word, plain) in [
        ("bf16-mixed", "bf16"),
        ("torch.bfloat16", "bf16"),
        ("16-mixed", "fp16"),
        ("FusedAdam", "adamw"),
        ("adamw_torch_fused", "adamw"),
        ("synthetic", "random"),
        ("ddp", "none"),
        ("full_shard", "zero3"),
        ("FSDP2", "zero3"),
        ("shard_grad_op", "zero2"),
        ("distributed_optimizer", "zero1"),
    ] {
        assert_eq!(canonical(&word.into()), json!(plain));
    }
}

#[test]
fn what_the_table_does_not_have_is_found_wherever_it_stands() {
    let stated = json!({"freeze_layers": 16, "dtype": "bf16", "optimizer": {"type": "AdamW", "fused": true}, "list": [1],
            "model": {"num_layers": 2, "window_size": 4096}, "nothing": null});
    let found = unlisted(&serde_json::from_value(stated).unwrap());
    let expected = json!({"freeze_layers": 16, "list": [1], "model.window_size": 4096, "optimizer.fused": true});
    assert_eq!(serde_json::to_value(found).unwrap(), expected);
}

/// Words within the name of an argument say nothing: `moe_per_layer_logging` is one of a dense model too.
#[test]
fn arguments_of_a_dump_are_known_by_their_whole_names() {
    let stated = json!({"seed": 1, "arguments": {"seed": 2, "squared_relu": true, "moe_per_layer_logging": false, "trainable": true,
            "overlap_grad_reduce": true, "save": "/a", "metrics.log_freq": 1}});
    let stated = serde_json::from_value(stated).unwrap();
    assert_eq!(
        serde_json::to_value(unlisted(&stated)).unwrap(),
        json!({"squared_relu": true})
    );
    let others =
        json!({"moe_per_layer_logging": false, "trainable": true, "overlap_grad_reduce": true});
    assert_eq!(
        serde_json::to_value(without_meaning(&stated)).unwrap(),
        others
    );
}

#[test]
fn a_job_declares_how_its_positions_are_scaled() {
    let declared = |job: &Job| super::declared(job).remove("rope_scaling_factor");
    let mut job = Job::default();
    assert_eq!(declared(&job), None, "learned positions");
    job.model.rope_theta = 5e5;
    assert_eq!(declared(&job), Some(json!(1.0)));
    job.model.rope_scaling = Some(tprimat_job::RopeScaling {
        factor: 8.0,
        ..Default::default()
    });
    assert_eq!(declared(&job), Some(json!(8.0)));
}

#[test]
fn nothing_is_near_infinity() {
    assert!(!agree(&json!("inf"), &json!(5)));
}

#[test]
fn names_are_unique() {
    let names: std::collections::BTreeSet<_> = fields().collect();
    assert_eq!(names.len(), SETTINGS.len() + 1);
}

#[test]
fn fields_are_known_by_their_own_name_only() {
    assert!(
        ["global_batch_size", "dropout", "precision", "warmup"]
            .into_iter()
            .all(known_field)
    );
    assert!(
        !["global_batchsize", "world_size", "", "Precision"]
            .into_iter()
            .any(known_field)
    );
}

#[test]
fn reals_agree_up_to_single_precision_and_counts_exactly() {
    assert!(agree(&json!(3e-4), &json!(f64::from(3e-4f32))));
    assert!(!agree(&json!(3e-4), &json!(1e-5)) && !agree(&json!(10_000_000), &json!(10_000_001)));
    assert!(
        agree(&json!("nan"), &json!("nan"))
            && agree(&json!("inf"), &json!("inf"))
            && !agree(&json!("nan"), &json!(1))
    );
    assert!(
        agree(&json!(true), &json!(1))
            && agree(&json!("1e-4"), &json!(0.0001))
            && !agree(&json!("a"), &json!("b"))
    );
}

use serde_json::json;
use tprimat_job::Job;
use tprimat_logs::Effective;

use super::*;
pub use crate::results::stand_ins::{test_job as job, trace};

fn attest(trace: &Trace, job: &Job, complete: bool) -> Attestation {
    super::attest(trace, &Claim::of(job), complete)
}

fn contradicted(attestation: &Attestation) -> Vec<&str> {
    attestation
        .contradicted()
        .map(|f| f.field.as_str())
        .collect()
}

/// What Megatron prints of its arguments, after the lines `before`; how `data` is attested and
/// what the contract has.
fn data_of(before: &str, arguments: &str) -> (AttestationStatus, Value) {
    let log = format!(
        "{before}------------------------ arguments ------------------------\n{arguments}  \
             seq_length ...................................... 128\n-------------------- end of arguments \
             ---------------------\n iteration        1/       3 | elapsed time per iteration (ms): 500.0 | lm loss: \
             5.0E+00 |\n"
    );
    let trace = tprimat_logs::parse(&tprimat_logs::LogSection::named("megatron"), log.as_bytes());
    assert!(
        trace.anomalies.iter().all(|a| a.kind != "setting_restated"),
        "{:?}",
        trace.anomalies
    );
    assert_eq!(trace.effective.0.get("seq_length"), Some(&json!(128)));
    let attestation = attest(&trace, &job(), false);
    let status = attestation
        .fields
        .iter()
        .find(|f| f.field == "data")
        .unwrap()
        .status;
    (
        status,
        crate::results::Contract::of(&trace, &Claim::of(&job()))
            .get("data")
            .unwrap()
            .clone(),
    )
}

#[test]
fn synthetic_tokens_in_a_file_are_random_where_the_launcher_says_so() {
    let path = "  data_path ....................................... ['/runs/1/tokens']\n";
    let said = "{\"event\": \"start\", \"trainer\": \"megatron-deepspeed\", \"effective\": {\"data\": \"random\"}}\n";
    assert_eq!(
        data_of(said, path),
        (AttestationStatus::Attested, json!("random"))
    );
    assert_eq!(
        data_of("", path),
        (AttestationStatus::Contradicted, json!("real"))
    );
}

#[test]
fn mock_data_is_no_contradiction_but_another_workload() {
    let mock = "  mock_data ....................................... True\n";
    assert_eq!(
        data_of("", mock),
        (AttestationStatus::Attested, json!("mock"))
    );
}

#[test]
fn a_run_that_states_what_was_asked_is_attested() {
    let stated = json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1, "precision": "bfloat16",
            "learning_rate": f64::from(3e-4f32), "micro_batch_size": 2, "gradient_accumulation_steps": 4, "data_parallel_size": 1});
    let attestation = attest(&trace(stated, Some(1024)), &job(), true);
    assert_eq!(
        (attestation.status, contradicted(&attestation)),
        (AttestationStatus::Attested, vec![])
    );
    let seed = attestation
        .fields
        .iter()
        .find(|f| f.field == "seed")
        .unwrap();
    assert_eq!(
        (seed.status, &seed.effective),
        (AttestationStatus::NotStated, &None)
    );
}

#[test]
fn adam_for_adamw_is_named_and_contradicts_nothing() {
    let of = |word: &str| attest(&trace(json!({ "optimizer": word }), None), &job(), true);
    assert_eq!(contradicted(&of("adam")), Vec::<&str>::new());
    let found = ambiguous_optimizer(&of("adam")).unwrap();
    assert_eq!(found.kind, "optimizer_name");
    for word in ["adamw", "FusedAdam"] {
        assert!(
            ambiguous_optimizer(&of(word)).is_none() && contradicted(&of(word)).is_empty(),
            "{word}"
        );
    }
    assert_eq!(
        (contradicted(&of("sgd")), ambiguous_optimizer(&of("sgd"))),
        (vec!["optimizer"], None)
    );
    let mut coupled = job();
    coupled.optimizer.r#type = "adam".into();
    assert_eq!(
        contradicted(&attest(
            &trace(json!({ "optimizer": "adamw" }), None),
            &coupled,
            true
        )),
        ["optimizer"]
    );
    let contract = crate::results::Contract::of(
        &trace(json!({ "optimizer": "adam" }), None),
        &Claim::of(&job()),
    );
    assert_eq!(contract.get("optimizer"), Some(&json!("adam")));
}

#[test]
fn the_file_said_2048_and_the_run_used_8192() {
    let stated = json!({"global_batch_size": 8, "seq_length": 512, "learning_rate": 1e-5});
    let attestation = attest(&trace(stated, Some(8 * 512)), &job(), true);
    assert_eq!(attestation.status, AttestationStatus::Contradicted);
    assert_eq!(
        contradicted(&attestation),
        ["seq_length", "learning_rate", "tokens_per_step"]
    );
}

#[test]
fn silence_is_not_agreement() {
    assert_eq!(
        attest(&trace(json!({}), None), &job(), true).status,
        AttestationStatus::NotStated
    );
    let no_devices = json!({"global_batch_size": 8, "seq_length": 128});
    assert_eq!(
        attest(&trace(no_devices, None), &job(), true).status,
        AttestationStatus::NotStated
    );
    let printed = attest(&trace(json!({"num_gpus": 1}), Some(1024)), &job(), true);
    assert_eq!(printed.status, AttestationStatus::Attested);
}

/// Nobody claims anything of an imported log, so it is held against itself.
#[test]
fn a_log_that_contradicts_itself_is_not_attested() {
    let stated = json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1});
    let imported = |trace: &Trace| super::attest(trace, &Claim::of_model(None), false);
    assert_eq!(
        imported(&trace(stated.clone(), Some(1024))).status,
        AttestationStatus::Attested
    );
    assert_eq!(
        imported(&trace(stated.clone(), None)).status,
        AttestationStatus::Attested
    );
    let mut one = trace(stated.clone(), Some(1024));
    one.steps[1].tokens = Some(512);
    let found = imported(&one);
    let shown = "8 × 128 = 1024, and step 2 has 512 tokens";
    let told: Vec<_> = found
        .contradicted()
        .map(|f| (&*f.field, f.arithmetic.as_deref()))
        .collect();
    assert_eq!(
        (found.status, told),
        (
            AttestationStatus::Contradicted,
            vec![("tokens_per_step", Some(shown))]
        )
    );
    assert_eq!(
        attest(&one, &job(), false)
            .contradicted()
            .next()
            .unwrap()
            .arithmetic
            .as_deref(),
        Some(shown)
    );
}

#[test]
fn devices_that_are_counted_twice_and_not_alike_are_contradicted() {
    let mut counted = trace(json!({"num_gpus": 8}), None);
    let device = |count| tprimat_logs::DeviceLine {
        r#type: "cuda".into(),
        name: None,
        count: Some(count),
    };
    counted.device = Some(device(8));
    let alone = |trace: &Trace| super::attest(trace, &Claim::of_model(None), false);
    assert_eq!(contradicted(&alone(&counted)), Vec::<&str>::new());
    counted.device = Some(device(4));
    let found = alone(&counted);
    let shown = found.contradicted().next().unwrap();
    assert_eq!(
        (&*shown.field, shown.arithmetic.as_deref()),
        (
            "num_gpus_of_device",
            Some("num_gpus is 8, but the log lists the device 4 times")
        )
    );
}

#[test]
fn what_a_log_states_twice_and_not_alike_is_contradicted() {
    let mut twice = trace(
        json!({"global_batch_size": 8, "seq_length": 128, "world_size": 1}),
        Some(1024),
    );
    let later =
        json!({"global_batch_size": 8, "seq_length": 256, "num_gpus": 2, "precision": "bf16"});
    twice.restated = Effective(serde_json::from_value(later).unwrap());
    let alone = super::attest(&twice, &Claim::of_model(None), false);
    assert_eq!(contradicted(&alone), ["seq_length", "num_gpus"]);
    let told = alone.contradicted().next().unwrap().arithmetic.clone();
    assert_eq!(
        told.as_deref(),
        Some("seq_length is 128 at first, later 256")
    );
    // The first one is what the job asked for; all the same.
    assert_eq!(
        contradicted(&attest(&twice, &job(), false))[..2],
        ["seq_length", "num_gpus"]
    );
    // Another spelling, or what only one of them states, is no contradiction.
    twice
        .effective
        .0
        .insert("precision".into(), json!("torch.bfloat16"));
    twice.restated = Effective(
        [
            ("precision".to_owned(), json!("bf16")),
            ("seed".to_owned(), json!(7)),
        ]
        .into(),
    );
    assert_eq!(
        super::attest(&twice, &Claim::of_model(None), false).status,
        AttestationStatus::Attested
    );
}

/// Names of the Trainer's relatives, beside the setting's own one.
#[test]
fn a_setting_under_a_relatives_name_is_held_against_its_own() {
    let alone = |stated: &serde_json::Value| {
        let all = super::attest(&trace(stated.clone(), None), &Claim::of_model(None), false);
        let told = all.contradicted().next();
        told.map(|field| (field.field.clone(), field.arithmetic.clone().unwrap()))
    };
    for (stated, field, values) in [
        (
            json!({"seq_length": 4096, "max_seq_length": 2048}),
            "seq_length",
            ["4096", "2048"],
        ),
        (
            json!({"micro_batch_size": 2, "per_device_train_batch_size": 4}),
            "micro_batch_size",
            ["2", "4"],
        ),
        (
            json!({"precision": "bf16", "mixed_precision": "fp16"}),
            "precision",
            ["bf16", "fp16"],
        ),
        (
            json!({"mixed_precision": "bf16", "torch_dtype": "torch.float16"}),
            "precision",
            ["bf16", "fp16"],
        ),
        (
            json!({"precision": "fp32", "torch_dtype": "bfloat16"}),
            "precision",
            ["fp32", "bf16"],
        ),
        (
            json!({"num_gpus": 8, "nnodes": 2, "nproc_per_node": 8}),
            "num_gpus",
            ["16", "8"],
        ),
        (
            json!({"num_gpus": 8, "num_nodes": 2, "gpus_per_node": 8}),
            "num_gpus",
            ["16", "8"],
        ),
        (
            json!({"global_batch_size": 32, "micro_batch_size": 5}),
            "micro_batch_size",
            ["32", "MBS 5"],
        ),
        (
            json!({"global_batch_size": 32, "micro_batch_size": 8, "data_parallel_size": 8}),
            "micro_batch_size",
            ["32", "MBS 8 × DP 8"],
        ),
        (
            json!({"num_gpus": 8, "expert_model_parallel_size": 3}),
            "expert_model_parallel_size",
            ["EP 3", "8 devices"],
        ),
        // One sequence of each of 8 ranks makes a batch of 8, not of 24.
        (
            json!({"global_batch_size": 24, "micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_gpus": 8}),
            "batch_product",
            ["1 × 8 × 1", "8"],
        ),
    ] {
        let (contradicted, text) = alone(&stated).unwrap();
        assert_eq!(contradicted, field, "{stated}");
        assert!(values.iter().all(|value| text.contains(value)), "{text}");
    }
    // Weights may be wider than what is multiplied, and `no` mixed precision is none.
    for stated in [
        json!({"precision": "bf16", "torch_dtype": "float32"}),
        json!({"precision": "fp8", "torch_dtype": "bfloat16", "mixed_precision": "fp8"}),
        json!({"precision": "fp32", "mixed_precision": "no", "torch_dtype": "auto"}),
        json!({"max_seq_length": 2048, "per_device_train_batch_size": 4}),
        json!({"num_gpus": 16, "num_nodes": 2, "gpus_per_node": 8}),
        json!({"global_batch_size": 32, "micro_batch_size": 4, "data_parallel_size": 8, "num_gpus": 8}),
        // TP 4 may be what is not stated.
        json!({"global_batch_size": 32, "micro_batch_size": 4, "gradient_accumulation_steps": 4, "num_gpus": 8}),
    ] {
        assert_eq!(alone(&stated), None, "{stated}");
    }
}

#[test]
fn missing_steps_parameters_and_batch_arithmetic_are_contradictions() {
    let mut short = trace(
        json!({"global_batch_size": 8, "micro_batch_size": 2, "data_parallel_size": 2,
            "gradient_accumulation_steps": 4}),
        None,
    );
    short.steps.pop();
    short.num_parameters = Some(7);
    assert_eq!(
        contradicted(&attest(&short, &job(), true)),
        [
            "data_parallel_size",
            "num_parameters",
            "steps_run",
            "batch_product"
        ]
    );
    assert!(
        !contradicted(&attest(&short, &job(), false)).contains(&"steps_run"),
        "a failed run may be short"
    );
}

#[test]
fn steps_may_be_counted_from_0() {
    let mut from_0 = trace(json!({}), None);
    from_0.steps.iter_mut().for_each(|s| s.step -= 1);
    let ran_short =
        |trace: &Trace| contradicted(&attest(trace, &job(), true)).contains(&"steps_run");
    assert!(!ran_short(&from_0));
    // The losses before the first step are no step.
    let mut with_start = trace(json!({}), None);
    let mut start = with_start.steps[0].clone();
    (start.step, start.step_time_seconds) = (0, None);
    with_start.steps.insert(0, start);
    assert!(!ran_short(&with_start));
    // nanoGPT makes step N as well, where N were asked for, and no more.
    with_start.steps[0].step_time_seconds = Some(1.0);
    assert!(!ran_short(&with_start));
    let mut last = with_start.steps[with_start.steps.len() - 1].clone();
    last.step += 1;
    with_start.steps.push(last);
    assert!(ran_short(&with_start));
    from_0.steps.pop();
    assert!(ran_short(&from_0));
}

/// Experts under the label of a dense model, and a dense model under the label of one with experts:
/// by the events of a trainer and by the arguments that Megatron prints. Neither has the FLOPs of
/// its label.
#[test]
fn experts_and_a_dense_model_are_never_taken_for_each_other() {
    use crate::results::{RunFacts, RunResult, stand_ins::mixture};
    let argument = |name: &str, value: &str| format!("  {name} ........ {value}\n");
    let megatron = |experts: &str| {
        argument("num_experts", experts)
            + &argument("moe_router_topk", "8")
            + &argument("moe_ffn_hidden_size", "768")
            + &argument("moe_layer_freq", "1")
            + &argument("seq_length", "4096")
            + " iteration        1/       3 | elapsed time per iteration (ms): 500.0 | lm loss: 5.0E+00 |\n"
    };
    let event = |effective: Value| {
        json!({"event": "start", "trainer": "fsdp2", "effective": effective}).to_string() + "\n"
    };
    let experts = json!({"architecture": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "seq_length": 4096});
    let dense = json!({"architecture": "qwen3", "seq_length": 4096});
    let label = |model: ModelShape| {
        let mut job = job();
        (job.model, job.data.seq_length) = (model, 4096);
        job
    };
    let found = |format: &str, log: &str, model: ModelShape| {
        let trace = tprimat_logs::parse(&tprimat_logs::LogSection::named(format), log.as_bytes());
        let job = label(model);
        let attestation = attest(&trace, &job, false);
        let facts = RunFacts {
            attempt: "a".into(),
            host: "h".into(),
            started_at: None,
            ended_at: None,
            outcome: tprimat_job::RunOutcome::Ok,
        };
        let fields: Vec<String> = (attestation.contradicted())
            .map(|f| f.field.clone())
            .collect();
        let of_model = ["architecture", "num_experts", "num_experts_per_tok"];
        let fields = fields.into_iter().filter(|f| of_model.contains(&&**f));
        let flops = RunResult::of_claim(trace, &Claim::of(&job), facts, false);
        (fields.collect::<Vec<_>>(), flops.workload.flops_per_token)
    };
    let llama = crate::results::stand_ins::llama_8b;
    for (format, log) in [
        ("megatron", megatron("128")),
        ("tprimat", event(experts.clone())),
    ] {
        let (fields, flops) = found(format, &log, llama());
        assert!(fields.contains(&"num_experts".to_owned()), "{fields:?}");
        assert_eq!(flops, None);
        let (fields, flops) = found(format, &log, mixture());
        assert_eq!(fields, [""; 0]);
        assert!(flops.is_some());
    }
    let (fields, _) = found("megatron", &megatron("None"), mixture());
    assert_eq!(fields, ["num_experts"]);
    let (fields, _) = found("tprimat", &event(dense), mixture());
    assert_eq!(fields, ["architecture"]);
    // A dense model, and a log that says so.
    let (fields, flops) = found("megatron", &megatron("None"), llama());
    assert_eq!(fields, [""; 0]);
    assert!(flops.is_some());
}

/// An import whose model nobody claims: the log states its shape and, besides, how many parameters it has.
#[test]
fn a_count_that_is_not_of_the_logs_own_shape_contradicts_it() {
    let shape = json!({"architecture": "llama", "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336,
        "num_attention_heads": 32, "num_kv_heads": 8, "vocab_size": 128_256, "tie_embeddings": false});
    let told = |own: Option<u64>, billions: Option<f64>| {
        let mut log = trace(shape.clone(), None);
        log.num_parameters = own;
        let billions = billions.map(|n| ("parameters_billions".to_owned(), n));
        log.totals.extend(billions);
        let attestation = super::attest(&log, &Claim::of_model(None), false);
        attestation.contradicted().count()
    };
    assert_eq!(told(Some(8_030_261_248), Some(8.03)), 0);
    assert_eq!(told(Some(8_000_000_000), Some(8.0)), 0);
    assert_eq!(told(Some(8_200_000_000), None), 1);
    assert_eq!(told(None, Some(6.74)), 1);
    // The vocabulary as it is padded is one, and a rank has a part of the model at most.
    let of_rank = |shape: &serde_json::Value, count: u64| {
        let mut log = trace(shape.clone(), None);
        log.num_parameters_per_rank = Some(count);
        super::attest(&log, &Claim::of_model(None), false)
            .contradicted()
            .count()
    };
    let mut padded = shape.clone();
    let size = padded.as_object_mut().unwrap().remove("vocab_size");
    padded["padded_vocab_size"] = size.unwrap();
    assert_eq!(of_rank(&padded, 4_015_261_696), 0);
    assert_eq!(of_rank(&padded, 35_276_853_248), 1);
    // Where only TP divides it, that part is known.
    let mut divided = shape.clone();
    divided["tensor_model_parallel_size"] = json!(2);
    divided["pipeline_model_parallel_size"] = json!(1);
    assert_eq!(of_rank(&divided, 4_015_261_696), 0);
    assert_eq!(of_rank(&divided, 335_244_160), 1);
}

#[test]
fn a_padded_vocabulary_explains_its_parameters() {
    let count = crate::results::count_parameters(&job().model).unwrap();
    let mut padded = trace(json!({"padded_vocab_size": 320}), None);
    padded.num_parameters = Some(count + 64 * 64);
    assert_eq!(
        contradicted(&attest(&padded, &job(), true)),
        Vec::<&str>::new()
    );
}

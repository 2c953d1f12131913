//! The NeMo program against a mock that refuses arguments NeMo does not have and records the rest.

use std::{fs, process::Command};

use serde_json::{Value, json};
use tprimat::{
    job::Job,
    logs,
    results::{AttestationStatus, Claim, attest},
};

use super::render::{Stage, cell, ended_well, python};

/// The record of what NeMo was given, and the log.
fn run(job: &Job) -> (Value, String) {
    let (recipe, _) = cell("nvd/nemo");
    let mut stage = Stage::new(recipe, job);
    let record = stage.path("record.json");
    stage
        .set("MOCK_RECORD", record.to_str().unwrap())
        .set("TPRIMAT_DATASET", "/data/c4");
    let mock = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/suite/launchers/mock_nemo.py"
    );
    let program = stage.path("run/recipe/train.py");
    let output = Command::new(python())
        .arg(mock)
        .arg(program)
        .envs(&stage.env)
        .output()
        .unwrap();
    let log = ended_well(&output);
    (
        serde_json::from_slice(&fs::read(record).unwrap()).unwrap(),
        log,
    )
}

/// The log says what the job asked for, and nothing contradicts it.
#[track_caller]
fn attested(job: &Job, log: &str) {
    let trace = logs::parse(&logs::LogSection::named("tprimat"), log.as_bytes());
    let attestation = attest(&trace, &Claim::of(job), true);
    let contradicted: Vec<_> = attestation.contradicted().collect();
    assert!(contradicted.is_empty(), "{contradicted:#?}");
    assert_eq!(attestation.status, AttestationStatus::Attested);
    let unstated = attestation
        .fields
        .iter()
        .filter(|f| f.status == AttestationStatus::NotStated);
    let unstated: Vec<_> = unstated.map(|f| f.field.as_str()).collect();
    // NeMo knows a path, and which dataset lies there it cannot say; a recipe without scaled RoPE
    // has no factor. On how many nodes it runs no trainer is told.
    let silent = [
        "dataset",
        "num_nodes",
        "num_parameters",
        "rope_scaling_factor",
    ];
    assert!(
        unstated.iter().all(|f| silent.contains(f)),
        "not stated: {unstated:?}"
    );
    for step in &trace.steps {
        let (o, s) = (&job.optimizer, step.step as f64);
        let (w, n) = (o.warmup_steps as f64, job.train_iters as f64);
        let cosine = (1.0 + (std::f64::consts::PI * (s - w) / (n - w)).cos()) / 2.0;
        let rate = if s <= w {
            o.learning_rate * s / w
        } else {
            o.min_learning_rate + (o.learning_rate - o.min_learning_rate) * cosine
        };
        let found = step
            .learning_rate
            .unwrap_or_else(|| panic!("step {} has no learning rate", step.step));
        assert!(
            (found - rate).abs() < 1e-12,
            "step {}: {found} instead of {rate}",
            step.step
        );
    }
}

#[test]
fn nemo_gets_every_setting_of_a_job() {
    let (_, job) = cell("nvd/nemo/llama/identical_config");
    let (given, log) = run(&job);
    attested(&job, &log);
    assert!(
        log.contains("Training epoch 0, iteration 0/49"),
        "NeMo's own lines stay in the log"
    );
    let expect = |place: &str, wanted: Value| {
        assert_eq!(given.pointer(place), Some(&wanted), "{place} of {given:#}");
    };
    expect("/trainer/strategy/tensor_model_parallel_size", json!(4));
    expect("/trainer/strategy/context_parallel_size", json!(1));
    expect("/trainer/strategy/sequence_parallel", json!(true));
    expect("/trainer/max_steps", json!(50));
    expect("/trainer/limit_val_batches", json!(0));
    expect("/trainer/plugins/precision", json!("bf16-mixed"));
    expect("/data/class", json!("MockDataModule"));
    expect("/data/tokenizer/vocab_size", json!(128_255));
    expect("/data/num_train_samples", json!(50 * 128));
    expect("/model/config/scale_factor", json!(8.0));
    expect("/model/config/recompute_granularity", Value::Null);
    expect("/optim/config/adam_eps", json!(1e-8));
    expect("/resume", Value::Null);
}

/// The launcher itself, on the second of two nodes, with the mock in place of the interpreter.
#[test]
fn on_several_nodes_nemo_gets_the_devices_of_each() {
    let (recipe, mut job) = cell("nvd/nemo/llama/identical_config");
    job.parallelism.num_nodes = 2;
    let mut stage = Stage::new(recipe, &job);
    let mock = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/suite/launchers/mock_nemo.py"
    );
    let interpreter = format!(
        "#!/bin/bash\nwhile [ \"${{1%.py}}\" = \"$1\" ]; do echo \"$1\" >> \"$TPRIMAT_RUN_DIR/torchrun\"; shift; done\nWORLD_SIZE=8 exec {} {mock} \"$@\"\n",
        python()
    );
    stage.program("interpreter", &interpreter);
    let (interpreter, record) = (stage.path("bin/interpreter"), stage.path("record.json"));
    stage
        .set("TPRIMAT_PYTHON", interpreter.to_str().unwrap())
        .set("MOCK_RECORD", record.to_str().unwrap())
        .set("TPRIMAT_NODE_RANK", "1")
        .set("TPRIMAT_MASTER_ADDR", "first");
    attested(&job, &ended_well(&stage.run(recipe)));
    let given: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    assert_eq!(given["trainer"]["num_nodes"], 2);
    assert_eq!(given["trainer"]["devices"], 4);
    let torchrun = fs::read_to_string(stage.path("run/torchrun")).unwrap();
    for option in [
        "--nnodes\n2\n",
        "--node-rank\n1\n",
        "--nproc-per-node\n4\n",
        "--master-addr\nfirst\n",
    ] {
        assert!(torchrun.contains(option), "{option}: {torchrun}");
    }
}

#[test]
fn unusual_settings_arrive_as_well() {
    let (_, mut job) = cell("nvd/nemo/qwen/identical_config");
    job.precision = "fp8".into();
    job.fp8_hybrid = false;
    job.fp8_param = true;
    job.activation_checkpointing = true;
    job.parallelism.pipeline_model_parallel_size = 2;
    job.parallelism.data_parallel_size = 1;
    job.data.gradient_accumulation_steps = 128;
    job.model.dataset = Some("c4".into());
    job.seed = 7;
    job.train_iters = 12;
    let (given, log) = run(&job);
    attested(&job, &log);
    assert_eq!(given["trainer"]["plugins"]["fp8"], "e4m3");
    assert_eq!(given["trainer"]["plugins"]["fp8_param_gather"], true);
    assert_eq!(given["model"]["config"]["recompute_method"], "uniform");
    assert_eq!(given["data"]["class"], "PreTrainingDataModule");
    assert_eq!(given["data"]["paths"], json!(["/data/c4"]));
}

/// Configurations differ in what they have, and in what can be read of them.
#[test]
fn every_model_is_attested() {
    for (model, of_nemo) in [
        ("llama", "llama31_8b"),
        ("qwen2", "qwen25_7b"),
        ("mistral", "mistral_7b"),
    ] {
        let (_, mut job) = cell("nvd/nemo/llama");
        (job.model.architecture, job.model.nemo_recipe) = (model.into(), Some(of_nemo.into()));
        job.model.rope_scaling = job.model.rope_scaling.filter(|_| model == "llama");
        let (given, log) = run(&job);
        attested(&job, &log);
        let config = &given["model"]["config"];
        assert_eq!(
            config.get("window_size"),
            (model == "mistral").then_some(&Value::Null),
            "{model}"
        );
        for fused in ["apply_rope_fusion", "bias_activation_fusion"] {
            assert_eq!(config[fused], true, "{model}: {fused}");
        }
    }
}

/// Without Transformer Engine NeMo would train with other layers, and not say so.
#[test]
fn layers_without_transformer_engine_are_used_where_they_are_asked_for() {
    let launched = |layers: Option<&str>| {
        let (recipe, mut job) = cell("nvd/nemo/llama/identical_config");
        job.framework
            .extend(layers.map(|layers| ("transformer_impl".to_owned(), json!(layers))));
        let mut stage = Stage::new(recipe, &job);
        stage
            .set(
                "MOCK_RECORD",
                stage.path("record.json").to_str().unwrap().to_owned(),
            )
            .set("MOCK_NO_TE", "1");
        let mock = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/suite/launchers/mock_nemo.py"
        );
        let program = stage.path("run/recipe/train.py");
        let output = Command::new(python())
            .arg(mock)
            .arg(program)
            .envs(&stage.env)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (code, said) = launched(None);
    assert!(
        code == Some(2) && said.contains("frameworks.nemo.transformer_impl: local"),
        "{said}"
    );
    let (code, said) = launched(Some("local"));
    assert!(
        code == Some(0) && said.contains(r#""transformer_impl": "local""#),
        "{said}"
    );
    assert_eq!(launched(Some("locale")).0, Some(2));
}

#[test]
fn what_nobody_reads_ends_the_run() {
    let (recipe, mut job) = cell("nvd/nemo/llama/identical_config");
    job.framework.insert("colour".into(), json!("blue"));
    let mut stage = Stage::new(recipe, &job);
    stage.set(
        "MOCK_RECORD",
        stage.path("record.json").to_str().unwrap().to_owned(),
    );
    let mock = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/suite/launchers/mock_nemo.py"
    );
    let output = Command::new(python())
        .arg(mock)
        .arg(stage.path("run/recipe/train.py"))
        .envs(&stage.env)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).contains("framework.colour"));
}

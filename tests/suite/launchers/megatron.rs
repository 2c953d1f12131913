//! Megatron-LM against a mock of its pretrain_gpt.py that refuses arguments which the real one does
//! not have.

use std::fs;

use serde_json::{Value, json};
use tprimat::{
    job::{Decay, Job},
    logs::{LogSection, Trace, parse},
    recipe::Recipe,
};

use super::render::{FEATURES, Stage, ended_well, python, supported_of};

/// Stands for the interpreter: torchrun's part is left out, and one process runs in place of all
/// ranks.
const INTERPRETER: &str = r#"#!/bin/bash
if [ "$1 $2" = "-m torch.distributed.run" ]; then
  while [ "${1%.py}" = "$1" ]; do shift; done
fi
exec "$REAL_PYTHON" "$@"
"#;

/// Modules of a checkout, as they lie in core 0.16 and before, in 0.17, and from 0.18 on.
const VERSIONS: [(&str, &[(&str, &str)]); 3] = [
    (
        "0.16",
        &[
            (
                "megatron/training/tokenizer/tokenizer.py",
                "class _NullTokenizer:\n    def __init__(self, told):\n        self.vocab_size = told + 1\n",
            ),
            (
                "megatron/legacy/fused_kernels/__init__.py",
                "def load(args):\n    raise TypeError('CUDA_HOME is None')\n",
            ),
            (
                "megatron/training/arguments.py",
                "from megatron.training.tokenizer.tokenizer import _NullTokenizer as NullTokenizer\nfrom megatron.legacy import fused_kernels\ndef load_kernels(args):\n    fused_kernels.load(args)\n",
            ),
        ],
    ),
    (
        "0.17",
        &[
            (
                "megatron/core/tokenizers/text/libraries/null_tokenizer.py",
                "class NullTokenizer:\n    def __init__(self, told):\n        self.vocab_size = told + 1\n",
            ),
            (
                "megatron/training/arguments.py",
                "from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer\ndef load_kernels(args):\n    pass\n",
            ),
        ],
    ),
    (
        "0.18",
        &[
            (
                "megatron/core/tokenizers/text/libraries/null_tokenizer.py",
                "class NullTokenizer:\n    def __init__(self, told):\n        self.vocab_size = told\n",
            ),
            (
                "megatron/training/arguments.py",
                "from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer\ndef load_kernels(args):\n    pass\n",
            ),
        ],
    ),
];

fn plain() -> (&'static Recipe, Job) {
    let (_, recipe, job) = supported_of(&FEATURES)
        .find(|(id, ..)| *id == "nvd/mlm/small/plain")
        .unwrap();
    (recipe, job.clone())
}

fn run(job: &Job, files: &[(&str, &str)]) -> Trace {
    let (recipe, _) = plain();
    let mut stage = Stage::new(recipe, job);
    stage.program("python3", INTERPRETER);
    stage.set(
        "TPRIMAT_PYTHON",
        stage.path("bin/python3").to_str().unwrap().to_owned(),
    );
    let program = [
        ("pretrain_gpt.py", include_str!("mock_megatron.py")),
        ("transformer_engine.py", ""),
    ];
    for (name, text) in files.iter().chain(&program) {
        let path = stage.path("checkout").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let checkout = stage.path("checkout").to_str().unwrap().to_owned();
    stage
        .set("MEGATRON_PATH", checkout)
        .set("REAL_PYTHON", python())
        .set("TPRIMAT_DATASET", "/data/c4");
    parse(
        &LogSection::named("megatron"),
        ended_well(&stage.run(recipe)).as_bytes(),
    )
}

/// Whatever a version's tokenizer adds, the model has the job's vocabulary, and the log says so.
#[test]
fn the_vocabulary_is_the_jobs_in_every_version() {
    let (_, job) = plain();
    for (version, files) in VERSIONS {
        let trace = run(&job, files);
        assert_eq!(
            trace.effective.0.get("vocab_size"),
            Some(&json!(job.model.vocab_size)),
            "{version}"
        );
        assert!(
            trace.anomalies.is_empty(),
            "{version}: {:?}",
            trace.anomalies
        );
    }
}

/// What Megatron-LM prints of its experts is the job's, and a dense model says that it has none.
#[test]
fn experts_are_arguments_that_the_log_confirms() {
    let (recipe, dense) = plain();
    let mut job = dense.clone();
    job.model.architecture = "qwen3_moe".into();
    (job.model.num_experts, job.model.num_experts_per_tok) = (16, 3);
    job.model.moe_intermediate_size = 96;
    job.parallelism.expert_model_parallel_size = 4;
    job.precision = "mxfp8".into();
    assert_eq!(super::render::unsupported(recipe, &json!(job)), None);
    let stated = run(&job, VERSIONS[2].1).effective.0;
    for (name, value) in [
        ("num_experts", 16),
        ("num_experts_per_tok", 3),
        ("moe_intermediate_size", 96),
        ("expert_model_parallel_size", 4),
    ] {
        assert_eq!(stated.get(name), Some(&json!(value)), "{name}");
    }
    assert_eq!(stated.get("precision"), Some(&json!("mxfp8")));
    let stated = run(&dense, VERSIONS[2].1).effective.0;
    assert_eq!(stated.get("num_experts"), Some(&json!(0)));
    assert_eq!(stated.get("num_experts_per_tok"), None);
}

#[test]
fn every_setting_of_a_job_is_an_argument() {
    let (_, mut job) = plain();
    job.precision = "fp8".into();
    job.activation_checkpointing = true;
    job.optimizer.warmup_steps = job.train_iters;
    let stated = run(&job, VERSIONS[0].1).effective.0;
    let (m, o) = (&job.model, &job.optimizer);
    let wanted = json!({
        "num_layers": m.num_layers, "hidden_size": m.hidden_size, "ffn_hidden_size": m.ffn_hidden_size,
        "num_attention_heads": m.num_attention_heads, "head_dim": m.head_dim, "seq_length": job.data.seq_length,
        "micro_batch_size": job.data.micro_batch_size, "global_batch_size": job.data.global_batch_size,
        "train_iters": job.train_iters, "learning_rate": o.learning_rate, "min_learning_rate": o.min_learning_rate,
        "warmup_steps": o.warmup_steps as f64, "weight_decay": o.weight_decay, "clip_grad": o.clip_grad, "seed": job.seed,
        "fp8_recipe": "delayed", "fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max",
        "transformer_impl": "transformer_engine", "init_std": job.initialisation.std,
    });
    for (name, wanted) in wanted.as_object().unwrap() {
        assert_eq!(stated.get(name), Some(wanted), "{name}");
    }
}

/// Its own WSD falls exponentially unless it is told a line.
#[test]
fn a_wsd_schedule_falls_in_a_line() {
    let (recipe, mut job) = plain();
    job.optimizer.lr_decay_style = Decay::Wsd;
    job.optimizer.wsd_decay_steps = 7;
    let stated = run(&job, VERSIONS[0].1).effective.0;
    assert!(stated.contains_key("learning_rate"), "{stated:?}");
    let files = super::render::render(recipe, &job).unwrap();
    let script = String::from_utf8(files[0].bytes.clone()).unwrap();
    let asked = "--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 7";
    assert!(script.contains(asked), "{script}");
}

#[test]
fn layers_without_transformer_engine_are_asked_for_by_name() {
    let (recipe, mut job) = plain();
    job.framework
        .insert("transformer_impl".into(), json!("local"));
    assert_eq!(
        run(&job, VERSIONS[0].1).effective.0.get("transformer_impl"),
        Some(&Value::from("local"))
    );
    job.framework
        .insert("transformer_impl".into(), json!("locale"));
    let error = super::render::render(recipe, &job)
        .expect_err("a misspelt word")
        .to_string();
    assert!(error.contains("transformer_engine or local"), "{error}");
}

//! Megatron-DeepSpeed against a mock of its pretrain_gpt.py that refuses arguments which the real
//! one does not have.

use std::{fs, process::Command};

use serde_json::{Value, json};
use tprimat::{
    job::Job,
    logs::{LogSection, parse},
};

use super::render::{Stage, cell, ended_well, python};

/// Stands for the interpreter: torchrun's part is left out, and one process runs in place of all
/// ranks.
const INTERPRETER: &str = r#"#!/bin/bash
if [ "$1 $2" = "-m torch.distributed.run" ]; then
  while [ "${1%.py}" = "$1" ]; do echo "$1" >> "$TPRIMAT_RUN_DIR/torchrun"; shift; done
fi
exec "$REAL_PYTHON" "$@"
"#;

const ROTARY: &str = "
import torch

class RotaryEmbedding:
    def __init__(self, dim, theta=10000):
        self.inv_freq = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
";

/// How attention splits what its first layer computes: up to commit 6acc370a, and from 676a482c on.
const OLD_SPLIT: &str = "query_layer, key_layer, value_layer = self.split_tensor(mixed_x_layer)\n";
const NEW_SPLIT: &str = "each_hidden_size = mixed_x_layer.shape[-1] // 3\n";

fn stage(job: &Job) -> Stage {
    let (recipe, _) = cell("nvd/mgds");
    let mut stage = Stage::new(recipe, job);
    stage.program("python3", INTERPRETER);
    stage.set(
        "TPRIMAT_PYTHON",
        stage.path("bin/python3").to_str().unwrap().to_owned(),
    );
    let checkout = stage.path("checkout");
    fs::create_dir_all(checkout.join("megatron/model")).unwrap();
    fs::write(
        checkout.join("megatron/model/rotary_pos_embedding.py"),
        ROTARY,
    )
    .unwrap();
    fs::write(checkout.join("megatron/model/transformer.py"), OLD_SPLIT).unwrap();
    fs::write(
        checkout.join("megatron/fused_kernels.py"),
        "def load(args):\n    raise SystemExit('nvcc is looked for')\n",
    )
    .unwrap();
    fs::write(
        checkout.join("pretrain_gpt.py"),
        include_str!("mock_megatron_deepspeed.py"),
    )
    .unwrap();
    stage
        .set("MEGATRON_DEEPSPEED_PATH", checkout.to_str().unwrap())
        .set("REAL_PYTHON", python());
    stage.set("TPRIMAT_DATASET", "/data/c4 (small)");
    stage
}

fn given(stage: &Stage) -> Value {
    let (recipe, _) = cell("nvd/mgds");
    let said = ended_well(&stage.run(recipe));
    serde_json::from_str(said.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {said}"))
}

/// A job small enough that its tokens are written in a moment.
fn small() -> Job {
    let (_, mut job) = cell("nvd/mgds/llama/identical_config");
    (
        job.train_iters,
        job.data.global_batch_size,
        job.data.seq_length,
    ) = (3, 4, 16);
    (
        job.optimizer.warmup_steps,
        job.data.gradient_accumulation_steps,
    ) = (1, 2);
    job
}

#[test]
fn every_setting_of_a_job_is_an_argument() {
    let mut job = small();
    job.model.dataset = Some("c4".into());
    job.activation_checkpointing = true;
    job.optimizer.eps = 1e-12;
    let stage = stage(&job);
    let given = given(&stage);
    let log = ended_well(&stage.run(cell("nvd/mgds").0));
    assert!(
        !log.contains("\"event\""),
        "of a dataset nothing is claimed: {log}"
    );
    let (m, o) = (&job.model, &job.optimizer);
    let wanted = json!({
        "train_iters": 3, "micro_batch_size": 1, "global_batch_size": 4, "seq_length": 16, "seed": 1234,
        "max_position_embeddings": 16, "lr": o.learning_rate, "min_lr": o.min_learning_rate, "lr_warmup_iters": 1,
        "lr_decay_iters": 3, "lr_decay_style": "cosine", "weight_decay": o.weight_decay, "adam_beta1": o.beta1,
        "adam_beta2": o.beta2, "adam_eps": 1e-12, "clip_grad": o.clip_grad, "bf16": true, "zero_stage": 1,
        "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 1, "no_pipeline_parallel": true,
        "checkpoint_activations": true, "checkpoint_num_layers": 1, "num_layers": m.num_layers,
        "hidden_size": m.hidden_size, "ffn_hidden_size": m.ffn_hidden_size, "kv_channels": m.head_dim,
        "num_attention_heads": m.num_attention_heads, "num_key_value_heads": m.num_kv_heads,
        "rotary_position_embeddings_theta": 500_000, "normalization": "rmsnorm", "layernorm_epsilon": m.norm_eps,
        "swiglu": true, "disable_bias_linear": true, "untie_embeddings_and_output_weights": true,
        "init_method_std": 0.02, "data_path": ["/data/c4 (small)"], "tokenizer_type": "NullTokenizer",
        "vocab_size": m.vocab_size - 1, "eval_iters": 0, "log_interval": 1, "hidden_dropout": 0.0,
    });
    for (name, wanted) in wanted.as_object().unwrap() {
        assert_eq!(&given["args"][name], wanted, "{name}");
    }
    let deepspeed = &given["deepspeed"];
    assert_eq!(deepspeed["train_batch_size"], 4);
    assert_eq!(deepspeed["train_micro_batch_size_per_gpu"], 1);
    assert_eq!(deepspeed["gradient_accumulation_steps"], 2);
    assert_eq!(deepspeed["gradient_clipping"], 1.0);
    assert_eq!(deepspeed["zero_optimization"]["stage"], 1);
    assert!(
        given["program"]
            .as_str()
            .unwrap()
            .ends_with("checkout/pretrain_gpt.py"),
        "{given}"
    );
    let torchrun = fs::read_to_string(stage.path("run/torchrun")).unwrap();
    assert!(
        torchrun.contains("--nproc-per-node\n8\n") && torchrun.contains("--master-port\n29511\n"),
        "{torchrun}"
    );
}

/// The nodes share the run's folder, and each needs the tokens there when it starts.
#[test]
fn two_nodes_write_the_same_tokens_once() {
    use std::os::unix::fs::MetadataExt;
    let mut job = small();
    job.parallelism.num_nodes = 2;
    let mut stage = stage(&job);
    let tokens = |stage: &Stage| {
        ["bin", "idx"].map(|kind| {
            fs::metadata(stage.path(&format!("run/tokens.{kind}")))
                .unwrap()
                .ino()
        })
    };
    let mut first = None;
    for rank in ["1", "0"] {
        stage
            .set("TPRIMAT_NODE_RANK", rank)
            .set("TPRIMAT_MASTER_ADDR", "first");
        let given = given(&stage);
        let prefix = stage.path("run/tokens");
        assert_eq!(
            given["args"]["data_path"],
            json!([prefix.to_str().unwrap()])
        );
        let torchrun = fs::read_to_string(stage.path("run/torchrun")).unwrap();
        assert!(
            torchrun.contains(&format!("--node-rank\n{rank}\n"))
                && torchrun.contains("--nproc-per-node\n4\n")
                && torchrun.contains("--master-addr\nfirst\n"),
            "{torchrun}"
        );
        assert_eq!(
            *first.get_or_insert_with(|| tokens(&stage)),
            tokens(&stage),
            "a file that another node reads is never replaced"
        );
    }
}

#[test]
fn a_checkout_that_cannot_split_grouped_heads_is_refused() {
    let (recipe, _) = cell("nvd/mgds");
    let split = |kv_heads: u64| {
        let mut job = small();
        (job.model.num_attention_heads, job.model.num_kv_heads) = (8, kv_heads);
        let stage = stage(&job);
        fs::write(
            stage.path("checkout/megatron/model/transformer.py"),
            NEW_SPLIT,
        )
        .unwrap();
        stage.run(recipe)
    };
    let refused = split(2);
    let said = String::from_utf8_lossy(&refused.stdout);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("8 attention heads with 2 K/V heads") && said.contains("checkout 6acc370a"),
        "{said}"
    );
    ended_well(&split(8));
}

/// transformers has Llama 3's scaled RoPE as its authors published it.
#[test]
fn rope_is_scaled_as_transformers_scales_it() {
    const REFERENCE: &str = "
import json
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
rope = {'rope_type': 'llama3', 'rope_theta': 500000.0, 'factor': 8.0, 'low_freq_factor': 1.0}
rope |= {'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}
config = LlamaConfig(hidden_size=4096, num_attention_heads=32, max_position_embeddings=8192, rope_parameters=rope)
print(json.dumps(ROPE_INIT_FUNCTIONS['llama3'](config, 'cpu')[0].tolist()))
";
    let output = Command::new(python())
        .args(["-c", REFERENCE])
        .output()
        .unwrap();
    let wanted: Vec<f64> =
        serde_json::from_str(ended_well(&output).lines().last().unwrap()).unwrap();
    let numbers =
        |given: &Value| -> Vec<f64> { serde_json::from_value(given["rotary"].clone()).unwrap() };
    let near = |a: &[f64], b: &[f64]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * b)
    };
    let mut job = small();
    let scaled = numbers(&given(&stage(&job)));
    assert!(near(&scaled, &wanted), "{scaled:?}\n{wanted:?}");
    job.model.rope_scaling = None;
    assert!(
        !near(&numbers(&given(&stage(&job))), &wanted),
        "plain RoPE is another one"
    );
}

/// Written here, read back as Megatron's own reader does: sizes, byte offsets, document bounds,
/// tokens.
#[test]
fn synthetic_tokens_are_a_megatron_data_set() {
    const READER: &str = "
import json, struct, sys
import numpy as np
index = open(sys.argv[1] + '.idx', 'rb').read()
assert index[:9] == b'MMIDIDX\\x00\\x00'
version, code, count, bounds = struct.unpack_from('<QBQQ', index, 9)
assert (version, code) == (1, 4), (version, code)
at = 9 + struct.calcsize('<QBQQ')
sizes = np.frombuffer(index, np.int32, count, at)
offsets = np.frombuffer(index, np.int64, count, at + 4 * count)
documents = np.frombuffer(index, np.int64, bounds, at + 12 * count)
assert at + 12 * count + 8 * bounds == len(index)
data = open(sys.argv[1] + '.bin', 'rb').read()
assert offsets[-1] + 4 * sizes[-1] == len(data)
sequences = [np.frombuffer(data, np.int32, s, o).tolist() for s, o in zip(sizes, offsets)]
sys.path.insert(0, sys.argv[2])
from workload import SyntheticTokens
job = json.load(open(sys.argv[3]))
ours = SyntheticTokens(job)
assert sequences[:len(ours)] == [ours[i]['input_ids'].tolist() for i in range(len(ours))]
print(json.dumps({'sequences': len(sequences), 'length': sizes.tolist()[0], 'documents': documents.tolist()}))
";
    let job = small();
    let stage = stage(&job);
    let said = ended_well(&stage.run(cell("nvd/mgds").0));
    let trace = parse(&LogSection::named("megatron"), said.as_bytes());
    assert_eq!(
        trace.effective.0.get("data"),
        Some(&json!("random")),
        "the log says what is in the files: {said}"
    );
    let given: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let prefix = stage.path("run/tokens");
    assert_eq!(
        given["args"]["data_path"],
        json!([prefix.to_str().unwrap()])
    );
    let mut reader = Command::new(python());
    reader
        .args(["-c", READER])
        .arg(&prefix)
        .arg(stage.path("run/recipe"))
        .arg(stage.path("run/job.json"));
    let read: Value = serde_json::from_str(&ended_well(&reader.output().unwrap())).unwrap();
    // One sequence more than the 3 × 4 that are trained on, for the token after the last.
    assert_eq!(
        read,
        json!({ "sequences": 13, "length": 16, "documents": (0..=13).collect::<Vec<_>>() })
    );
}

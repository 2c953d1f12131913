//! The one table of settings: what a job declares, where a trainer states it, and how much hangs on
//! it.
//!
//! Attestation and contract both walk it, so they cannot disagree about a name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tprimat_job::{Decay, Job, ModelShape, Sharding, Task};

use super::unlisted;

/// How much hangs on a setting when two summaries are compared.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The work itself, which decides the throughput: must agree.
    Workload,
    /// How the work is done: may differ, and is then named; under `identical_config` it must agree
    /// too.
    Execution,
    /// What the loss depends on, but not the speed: named; under `identical_config` it must agree
    /// too.
    Convergence,
}

pub(crate) struct Setting {
    pub name: &'static str,
    /// Other names that trainers use.
    aliases: &'static [&'static str],
    pub tier: Tier,
    /// What the job asks for; `None` where it asks for nothing.
    pub declared: fn(&Job) -> Option<Value>,
}

const fn setting(
    tier: Tier,
    name: &'static str,
    aliases: &'static [&'static str],
    declared: fn(&Job) -> Option<Value>,
) -> Setting {
    Setting {
        name,
        aliases,
        tier,
        declared,
    }
}

fn count(n: u64) -> Option<Value> {
    (n > 0).then(|| n.into())
}
fn word(s: &str) -> Option<Value> {
    (!s.is_empty()).then(|| canonical(&s.into()))
}
#[expect(clippy::unnecessary_wraps, reason = "the shape of the table")]
fn flag(b: bool) -> Option<Value> {
    Some(b.into())
}
fn real(x: f64) -> Option<Value> {
    serde_json::Number::from_f64(x).map(Value::Number)
}
fn only_if(condition: bool, value: Option<Value>) -> Option<Value> {
    value.filter(|_| condition)
}

use Tier::{Convergence, Execution, Workload};

pub(crate) const SETTINGS: &[Setting] = &[
    setting(Workload, "architecture", &["model_type"], |j| {
        word(&j.model.architecture)
    }),
    setting(Workload, "num_layers", &[], |j| count(j.model.num_layers)),
    setting(Workload, "hidden_size", &[], |j| count(j.model.hidden_size)),
    setting(Workload, "ffn_hidden_size", &["intermediate_size"], |j| {
        count(j.model.ffn_hidden_size)
    }),
    setting(
        Workload,
        NUM_EXPERTS,
        &[
            "num_local_experts",
            "n_routed_experts",
            "num_routed_experts",
            "num_moe_experts",
            "moe_num_experts",
            "n_experts",
        ],
        |j| count(j.model.num_experts),
    ),
    setting(
        Workload,
        "num_experts_per_tok",
        &["moe_router_topk", "num_experts_per_token"],
        |j| count(j.model.num_experts_per_tok),
    ),
    setting(
        Workload,
        "moe_intermediate_size",
        &["moe_ffn_hidden_size"],
        |j| count(j.model.moe_intermediate_size),
    ),
    setting(
        Workload,
        "shared_expert_intermediate_size",
        &["moe_shared_expert_intermediate_size"],
        |j| count(j.model.shared_expert_intermediate_size),
    ),
    setting(Workload, "first_k_dense_replace", &[], |j| {
        count(j.model.first_k_dense_replace)
    }),
    setting(
        Workload,
        "num_nextn_predict_layers",
        &["mtp_num_layers"],
        |j| count(j.model.num_nextn_predict_layers),
    ),
    setting(Workload, "q_lora_rank", &[], |j| count(j.model.q_lora_rank)),
    setting(Workload, "kv_lora_rank", &[], |j| {
        count(j.model.kv_lora_rank)
    }),
    setting(Workload, "qk_nope_head_dim", &["qk_head_dim"], |j| {
        count(j.model.qk_nope_head_dim)
    }),
    setting(
        Workload,
        "qk_rope_head_dim",
        &["qk_pos_emb_head_dim"],
        |j| count(j.model.qk_rope_head_dim),
    ),
    setting(Workload, "v_head_dim", &[], |j| count(j.model.v_head_dim)),
    setting(Workload, SLIDING_WINDOW, &[], |j| {
        count(j.model.sliding_window)
    }),
    setting(Workload, "sliding_window_pattern", &[], |j| {
        count(j.model.sliding_window_pattern)
    }),
    setting(Workload, "num_attention_heads", &[], |j| {
        count(j.model.num_attention_heads)
    }),
    setting(
        Workload,
        "num_kv_heads",
        &["num_key_value_heads", "num_query_groups"],
        |j| count(j.model.num_kv_heads),
    ),
    setting(Workload, "head_dim", &["kv_channels"], |j| {
        count(j.model.head_dim)
    }),
    setting(Workload, "vocab_size", &[], |j| count(j.model.vocab_size)),
    setting(Workload, "tie_embeddings", &["tie_word_embeddings"], |j| {
        flag(j.model.tie_embeddings)
    }),
    setting(Workload, "qkv_bias", &["add_qkv_bias"], |j| {
        flag(j.model.qkv_bias)
    }),
    // All weights on text as it comes is what a log means that says nothing of it.
    setting(Workload, TASK, &[], |j| match j.task {
        Task::Pretrain => None,
        Task::Sft => word("sft"),
        Task::Lora => word("lora"),
    }),
    setting(Workload, LORA_RANK, &["lora_r"], |j| count(j.lora_rank)),
    setting(Workload, "seq_length", &["sequence_length"], |j| {
        count(j.data.seq_length)
    }),
    setting(Workload, "packing", &[], |_| None),
    setting(Workload, "attention_mask", &["mask"], |_| None),
    setting(Workload, "global_batch_size", &[], |j| {
        count(j.data.global_batch_size)
    }),
    // Where they vary from step to step: the range.
    setting(Workload, TOKENS_PER_STEP, &[], |_| None),
    setting(Workload, "num_gpus", &["world_size"], |j| {
        count(j.parallelism.num_gpus)
    }),
    // Compared by `class`, as optimizer and data are; under `maximum_performance` it may differ,
    // and is named.
    setting(Workload, PRECISION, &["dtype"], |j| word(&j.precision)),
    setting(Workload, "dropout", &[], |_| None),
    setting(
        Workload,
        "optimizer",
        &["optimizer_type", "optimizer.type"],
        |j| word(&j.optimizer.r#type),
    ),
    setting(
        Workload,
        "optimizer_state_precision",
        &["state_precision", "optimizer.state_precision"],
        |j| word(&j.optimizer.state_precision),
    ),
    setting(Workload, "data", &["data_class"], |j| {
        word(if j.model.dataset.is_some() {
            "real"
        } else {
            "random"
        })
    }),
    setting(Execution, "fp8_hybrid", &[], |j| {
        only_if(j.precision == "fp8", flag(j.fp8_hybrid))
    }),
    setting(Execution, "fp8_param", &[], |j| {
        only_if(j.precision == "fp8", flag(j.fp8_param))
    }),
    setting(Execution, "compile", &[], |j| flag(j.compile)),
    setting(Execution, "compile_mode", &[], |j| {
        only_if(j.compile, word(&j.compile_mode))
    }),
    setting(
        Execution,
        "activation_checkpointing",
        &["gradient_checkpointing"],
        |j| flag(j.activation_checkpointing),
    ),
    setting(Execution, "sac_frequency", &[], |j| {
        only_if(j.activation_checkpointing, count(j.sac_frequency))
    }),
    setting(Execution, "offload", &[], |j| flag(j.offload)),
    setting(Execution, "micro_batch_size", &[], |j| {
        count(j.data.micro_batch_size)
    }),
    setting(Execution, "gradient_accumulation_steps", &[], |j| {
        count(j.data.gradient_accumulation_steps)
    }),
    setting(Execution, "tensor_model_parallel_size", &[], |j| {
        count(j.parallelism.tensor_model_parallel_size)
    }),
    setting(Execution, "pipeline_model_parallel_size", &[], |j| {
        count(j.parallelism.pipeline_model_parallel_size)
    }),
    setting(Execution, "context_parallel_size", &[], |j| {
        count(j.parallelism.context_parallel_size)
    }),
    setting(Execution, "data_parallel_size", &[], |j| {
        count(j.parallelism.data_parallel_size)
    }),
    setting(Execution, "expert_model_parallel_size", &[], |j| {
        let degree = j.parallelism.expert_model_parallel_size;
        only_if(degree > 1, count(degree))
    }),
    setting(Execution, "num_nodes", &[], |j| {
        only_if(j.parallelism.num_nodes > 1, count(j.parallelism.num_nodes))
    }),
    setting(Execution, "sharding", &[], |j| {
        word(&j.parallelism.sharding)
    }),
    setting(Execution, "padded_vocab_size", &[], |_| None),
    setting(
        Execution,
        DETERMINISTIC,
        &["deterministic_mode", "full_determinism"],
        |_| None,
    ),
    setting(Convergence, "dataset", &[], |j| {
        j.model.dataset.as_deref().and_then(word)
    }),
    // Two files of one name are seldom of one length; only a trainer that opened it knows.
    setting(Convergence, "dataset_tokens", &[], |_| None),
    // Content, from tprimat.lock: a job holds names only.
    setting(Convergence, DATASET_DIGEST, &[], |_| None),
    setting(Convergence, "tokenizer_name", &[], |j| {
        only_if(
            j.model.dataset.is_some(),
            j.model.tokenizer.as_deref().and_then(word),
        )
    }),
    setting(Convergence, TOKENIZER_DIGEST, &[], |_| None),
    // A command of the user's own may state none.
    setting(Convergence, "learning_rate", &["lr"], |j| {
        only_if(
            j.optimizer.learning_rate > 0.0,
            real(j.optimizer.learning_rate),
        )
    }),
    setting(Convergence, "min_learning_rate", &["min_lr"], |j| {
        real(j.optimizer.min_learning_rate)
    }),
    setting(Convergence, "warmup_steps", &[], |j| {
        real(j.optimizer.warmup_steps as f64)
    }),
    setting(Convergence, "lr_decay_style", &[], |j| {
        only_if(
            j.optimizer.lr_decay_style != Decay::default(),
            serde_json::to_value(j.optimizer.lr_decay_style).ok(),
        )
    }),
    setting(
        Convergence,
        "wsd_decay_steps",
        &["lr_wsd_decay_iters"],
        |j| count(j.optimizer.wsd_decay_steps),
    ),
    setting(Convergence, "weight_decay", &[], |j| {
        real(j.optimizer.weight_decay)
    }),
    setting(Convergence, "beta1", &[], |j| real(j.optimizer.beta1)),
    setting(Convergence, "beta2", &[], |j| real(j.optimizer.beta2)),
    setting(Convergence, "eps", &[], |j| real(j.optimizer.eps)),
    setting(Convergence, "clip_grad", &[], |j| {
        real(j.optimizer.clip_grad)
    }),
    setting(
        Convergence,
        "init_std",
        &["initializer_range", "init_method_std"],
        |j| real(j.initialisation.std),
    ),
    setting(Convergence, "seed", &[], |j| Some(j.seed.into())),
    setting(Convergence, "train_iters", &["max_steps"], |j| {
        count(j.train_iters)
    }),
    setting(Convergence, "rope_theta", &[], |j| {
        only_if(j.model.rope_theta > 0.0, real(j.model.rope_theta))
    }),
    setting(
        Convergence,
        "rope_scaling_factor",
        &["rope_scaling.factor"],
        |j| {
            // Unscaled frequencies are divided by 1.
            only_if(
                j.model.rope_theta > 0.0,
                real(
                    j.model
                        .rope_scaling
                        .as_ref()
                        .map_or(1.0, |scaling| scaling.factor),
                ),
            )
        },
    ),
    setting(Convergence, "norm_eps", &[], |j| {
        only_if(j.model.norm_eps > 0.0, real(j.model.norm_eps))
    }),
];

pub const TOKENS_PER_STEP: &str = "tokens_per_step";
pub const NUM_EXPERTS: &str = "num_experts";
pub const NUM_PARAMETERS: &str = "num_parameters";
pub const SLIDING_WINDOW: &str = "sliding_window";
pub const TASK: &str = "task";
pub const LORA_RANK: &str = "lora_rank";
pub const PRECISION: &str = "precision";
pub const DETERMINISTIC: &str = "deterministic";
pub const DATASET_DIGEST: &str = "dataset_digest";
pub const TOKENIZER_DIGEST: &str = "tokenizer_digest";

/// May two values of this setting be of one [`class`]?
pub fn has_classes(field: &str) -> bool {
    [PRECISION, "optimizer", "data"].contains(&field)
}

/// Values of a setting that are the same work at the same speed: one class. They are compared, and
/// the difference is named.
pub fn class<'a>(field: &str, value: &'a Value) -> Option<(&'a str, Tier)> {
    let text = value.as_str()?;
    match (field, text) {
        // The matrix units of all devices run both at one rate.
        (PRECISION, "bf16" | "fp16") => Some(("16-bit", Execution)),
        // `fp8`, `fp8_hybrid`, `fp8-delayed`, …; MXFP8 multiplies at the same rate, with scales of
        // its own for 32 values each.
        (PRECISION, _) if text.starts_with("fp8") || text.starts_with("mxfp8") => {
            Some(("fp8", Execution))
        }
        // The same states and operations; the weight decay enters at another place.
        ("optimizer", "adam" | "adamw") => Some(("adam", Convergence)),
        // Neither reads a file. Megatron's mock tokens count upwards, so the losses differ, but not
        // the speed.
        ("data", "mock" | "random") => Some(("made up", Convergence)),
        _ => None,
    }
}

/// The policy of warm-up: no setting of a trainer, but it may differ between summaries, and be
/// compared across.
pub const WARMUP: &str = "warmup";

/// Everything that `--across` can name.
pub fn fields() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|s| s.name).chain([WARMUP])
}

/// Is `name` one of [`fields`], or a name by which trainers state something else that cells are kept
/// apart by?
#[must_use]
pub fn known_field(name: &str) -> bool {
    fields().any(|field| field == name) || !is_in_table(name) && unlisted::tier(name).is_some()
}

/// Is it a setting of the table, by whichever of its names?
#[must_use]
pub fn is_in_table(name: &str) -> bool {
    let is_it = |s: &Setting| s.name == name || s.aliases.contains(&name);
    SETTINGS.iter().any(is_it)
}

/// Is it a count or size that most models and tasks have none of?
pub(crate) fn is_further(name: &str) -> bool {
    let further = ModelShape::default().further();
    name == LORA_RANK || further.iter().any(|(further, _)| *further == name)
}

/// Is this one of the names of a setting of the table?
pub(super) fn is_called(setting: &str, name: &str) -> bool {
    let of = SETTINGS.iter().find(|s| s.name == setting);
    of.is_some_and(|s| s.name == name || s.aliases.contains(&name))
}

/// How much hangs on a setting, in the table or not; none where nothing does or nobody knows.
pub(crate) fn tier_of(name: &str) -> Option<Tier> {
    let listed = SETTINGS.iter().find(|s| s.name == name);
    listed.map_or_else(|| unlisted::tier(name), |s| Some(s.tier))
}

impl Setting {
    /// What the trainer states, in canonical spelling.
    pub fn effective(&self, stated: &BTreeMap<String, Value>) -> Option<Value> {
        self.stated(stated).next().map(|(_, value)| value)
    }

    /// Every value that the trainer states, each with the name that it uses.
    pub fn stated<'a>(
        &'a self,
        stated: &'a BTreeMap<String, Value>,
    ) -> impl Iterator<Item = (&'static str, Value)> + 'a {
        let names = std::iter::once(&self.name).chain(self.aliases);
        names.flat_map(move |name| lookup(stated, name).map(move |v| (*name, canonical(v))))
    }

    /// Takes out all that the trainer states of it.
    pub fn forget(&self, stated: &mut BTreeMap<String, Value>) {
        for name in std::iter::once(&self.name).chain(self.aliases) {
            stated.remove(*name);
            for group in GROUPS {
                if let Some(Value::Object(group)) = stated.get_mut(group) {
                    group.remove(*name);
                }
            }
        }
    }
}

/// Groups of settings that a job has.
const GROUPS: [&str; 4] = ["model", "data", "optimizer", "parallelism"];

/// A longer list is data rather than a setting.
const MOST_VALUES: usize = 64;

/// What a trainer states and the table does not have, by name; `a.b` of what stands in a group.
pub fn unlisted(stated: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let is_known = is_in_table;
    let is_scalar = |value: &Value| !(value.is_null() || value.is_object() || value.is_array());
    let is_plain = |value: &Value| match value {
        Value::Array(all) => all.len() <= MOST_VALUES && all.iter().all(is_scalar),
        value => is_scalar(value),
    };
    let mut found = BTreeMap::new();
    for (name, value) in stated {
        match value {
            Value::Object(group) => {
                for (inner, value) in group.iter().filter(|(_, value)| is_plain(value)) {
                    let full = format!("{name}.{inner}");
                    if !(is_known(&full) || (GROUPS.contains(&&**name) && is_known(inner))) {
                        found.insert(full, canonical(value));
                    }
                }
            }
            value if is_plain(value) && !is_known(name) => {
                found.insert(name.clone(), canonical(value));
            }
            _ => {}
        }
    }
    found
}

/// Of these, what is in no contract: what is harmless, and what nobody knows the meaning of.
pub fn without_meaning(stated: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut found = unlisted(stated);
    found.retain(|name, _| tier_of(name).is_none());
    found
}

/// Every name of the settings that a trainer does not state.
pub fn names_not_stated(stated: &BTreeMap<String, Value>) -> impl Iterator<Item = &'static str> {
    SETTINGS
        .iter()
        .filter(|setting| setting.effective(stated).is_none())
        .flat_map(|setting| std::iter::once(&setting.name).chain(setting.aliases))
        .copied()
}

/// `name` at the top or in one of the groups that a job has; `a.b` looks `b` up in `a`.
pub(super) fn lookup<'a>(
    stated: &'a BTreeMap<String, Value>,
    name: &'a str,
) -> impl Iterator<Item = &'a Value> {
    let nested = |group: &str, name: &str| stated.get(group).and_then(|g| g.get(name));
    let grouped = GROUPS.into_iter().filter_map(move |g| nested(g, name));
    let dotted = name
        .split_once('.')
        .and_then(|(group, name)| nested(group, name));
    stated
        .get(name)
        .into_iter()
        .chain(dotted)
        .chain(grouped)
        .filter(|v| !v.is_null() && !v.is_object())
}

/// One spelling for what trainers spell in several ways.
pub(crate) fn canonical(value: &Value) -> Value {
    let Value::String(text) = value else {
        return value.clone();
    };
    let text = text.trim().to_lowercase();
    let text = text.strip_prefix("torch.").unwrap_or(&text);
    match text {
        // `bf16-mixed`, `16-mixed` and `32-true` are Lightning's words.
        "bfloat16" | "bf16-mixed" | "bf16_mixed" => "bf16".into(),
        "float32" | "32-true" => "fp32".into(),
        "float16" | "16-mixed" | "fp16-mixed" | "fp16_mixed" => "fp16".into(),
        // Apex and Transformer Engine call it FusedAdam, and decouple the weight decay unless they
        // are told not to.
        "optim.adamw" | "fusedadam" | "fused_adam" | "fusedadamw" | "fused_adamw"
        | "adamw_torch" | "adamw_torch_fused" => "adamw".into(),
        "synthetic" => "random".into(),
        "true" => true.into(),
        "false" => false.into(),
        _ => match Sharding::named(text) {
            Some(sharding) => sharding.name().into(),
            None => text
                .parse()
                .ok()
                .map_or_else(|| text.into(), |n: u64| n.into()),
        },
    }
}

/// Relative rounding of a single-precision float.
const TOLERANCE: f64 = 1e-6;

/// Do two canonical values say the same? Reals may differ by the rounding of a single-precision
/// float.
pub fn agree(a: &Value, b: &Value) -> bool {
    if a == b {
        return true;
    }
    match (a.as_u64(), b.as_u64(), number(a), number(b)) {
        (Some(a), Some(b), ..) => a == b,
        (_, _, Some(a), Some(b)) => (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()),
        _ => false,
    }
}

/// Does the value say that the setting is not in use?
#[must_use]
pub fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(false) | Value::Null => true,
        Value::String(word) => {
            ["none", "null", "false", "off", "no", "disabled"].contains(&word.as_str())
        }
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Array(all) => all.is_empty(),
        _ => false,
    }
}

/// A value as a number, where it is one; what is not in use is 0, and `inf` and `nan` are words.
fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(n) => n.as_f64(),
        _ if is_off(value) => Some(0.0),
        Value::String(s) => s.parse::<f64>().ok(),
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => None,
    };
    number.filter(|n| n.is_finite())
}

/// A setting's value as tables and sentences show it.
pub fn show(value: Option<&Value>) -> String {
    match value {
        None => "not stated".to_owned(),
        Some(Value::String(s)) => s.clone(),
        // A whole number is one however it was written.
        Some(other) => {
            let text = other.to_string();
            text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
        }
    }
}

#[cfg(test)]
mod tests;

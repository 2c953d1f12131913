//! Argument dumps of Megatron and its relatives (`  key ....... value`) → settings by the job's
//! names.

use serde_json::Value;
use tprimat_words::part;

use super::{
    builder::Builder,
    numbers::{after, finite_number},
};

/// The arguments that say something of a setting.
const KEYS: &[&str] = &[
    "activations_checkpoint_method",
    "adam_beta1",
    "adam_beta2",
    "adam_eps",
    "add_bias_linear",
    "add_qkv_bias",
    "attention_dropout",
    "bf16",
    "checkpoint_activations",
    "clip_grad",
    "context_parallel_size",
    "cpu_offload",
    "data_args_path",
    "data_parallel_size",
    "data_path",
    "decoupled_weight_decay",
    "deterministic_mode",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
    "expert_model_parallel_size",
    "ffn_hidden_size",
    "fp16",
    "fp4",
    "fp8",
    "fp8_amax_compute_algo",
    "fp8_amax_history_len",
    "fp8_param_gather",
    "fp8_recipe",
    "global_batch_size",
    "global_num_gpus",
    "gradient_accumulation_steps",
    "group_query_attention",
    "hidden_dropout",
    "hidden_size",
    "init_method_std",
    "kv_channels",
    "layernorm_epsilon",
    "lr",
    "lr_decay_iters",
    "lr_warmup_fraction",
    "lr_warmup_iters",
    "lr_warmup_samples",
    "micro_batch_size",
    "min_lr",
    "mock_data",
    "model_parallel_size",
    "multi_latent_attention",
    "no_weight_tying",
    "norm",
    "norm_epsilon",
    "num_attention_heads",
    "num_attention_heads_kv",
    "num_experts",
    "num_key_value_heads",
    "num_layers",
    "num_query_groups",
    "optimizer",
    "optimizer_cpu_offload",
    "optimizer_type",
    "per_split_data_args_path",
    "pipe_parallel_size",
    "pipeline_model_parallel_size",
    "pos_emb",
    "position_embedding_type",
    "precision",
    "recompute_granularity",
    "rms_norm_epsilon",
    "rope_scaling_factor",
    "rope_theta",
    "rope_type",
    "rotary_base",
    "rotary_emb_base",
    "rotary_seq_len_interpolation_factor",
    "seed",
    "seq_length",
    "sequence_parallel",
    "tensor_model_parallel_size",
    "tie_embed_logits",
    "tokenizer_type",
    "train_batch_size",
    "train_data_path",
    "train_data_paths",
    "train_iters",
    "train_micro_batch_size_per_gpu",
    "transformer_impl",
    "untie_embeddings_and_output_weights",
    "use_distributed_optimizer",
    "use_precision_aware_optimizer",
    "use_rope_scaling",
    "use_rotary_position_embeddings",
    "vocab_size",
    "weight_decay",
    "world_size",
    "zero_stage",
];

/// Collects a dump; what is stated first counts.
#[derive(Default)]
pub struct Arguments {
    stated: Vec<(&'static str, String)>,
    told: bool,
}

impl Arguments {
    /// `text` has a run of dots that begins at `dots`, behind a space.
    pub fn line(&mut self, text: &str, dots: usize) {
        let Some(name) = part(text, ..dots)
            .rsplit([' ', ':'])
            .find(|word| !word.is_empty())
            .filter(|_| !self.told)
        else {
            return;
        };
        let Ok(at) = KEYS.binary_search(&name) else {
            return;
        };
        let rest = part(text, dots..).trim_start().trim_start_matches('.');
        if rest.starts_with(' ') && !self.stated.iter().any(|(key, _)| *key == KEYS[at]) {
            self.stated.push((KEYS[at], value_of(rest).to_owned()));
        }
    }

    fn is_stated(&self, key: &str) -> bool {
        debug_assert!(
            KEYS.contains(&key),
            "{key} is asked for, and never collected"
        );
        self.stated.iter().any(|(k, _)| *k == key)
    }

    /// A value that is stated and not None.
    fn get(&self, key: &str) -> Option<&str> {
        debug_assert!(
            KEYS.contains(&key),
            "{key} is asked for, and never collected"
        );
        let (_, value) = self.stated.iter().find(|(k, _)| *k == key)?;
        Some(value.as_str()).filter(|v| !matches!(*v, "None" | "none" | "" | "[]"))
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "True" | "true" => Some(true),
            "False" | "false" => Some(false),
            // NeoX states a whole dictionary where a precision is on.
            other => Some(other.starts_with('{') && !other.contains("'enabled': False")),
        }
    }

    fn count(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }

    fn real(&self, key: &str) -> Option<f64> {
        self.get(key)?.parse().ok().filter(|v: &f64| v.is_finite())
    }

    /// Puts what was collected into the settings, once.
    pub fn tell(&mut self, out: &mut Builder) {
        if self.told || self.stated.is_empty() {
            return;
        }
        self.told = true;
        self.counts(out);
        self.model(out);
        self.precision(out);
        self.optimizer(out);
        self.execution(out);
    }

    fn counts(&self, out: &mut Builder) {
        for (name, keys) in [
            (
                "global_batch_size",
                &["global_batch_size", "train_batch_size"][..],
            ),
            (
                "micro_batch_size",
                &["micro_batch_size", "train_micro_batch_size_per_gpu"],
            ),
            (
                "gradient_accumulation_steps",
                &["gradient_accumulation_steps"],
            ),
            ("seq_length", &["seq_length"]),
            ("train_iters", &["train_iters"]),
            ("num_layers", &["num_layers"]),
            ("hidden_size", &["hidden_size"]),
            ("ffn_hidden_size", &["ffn_hidden_size"]),
            ("num_attention_heads", &["num_attention_heads"]),
            ("head_dim", &["kv_channels"]),
            (
                "tensor_model_parallel_size",
                &["tensor_model_parallel_size", "model_parallel_size"],
            ),
            ("context_parallel_size", &["context_parallel_size"]),
            ("data_parallel_size", &["data_parallel_size"]),
            (
                "expert_model_parallel_size",
                &["expert_model_parallel_size"],
            ),
            ("num_experts", &["num_experts"]),
            ("num_gpus", &["world_size", "global_num_gpus"]),
            ("seed", &["seed"]),
        ] {
            if let Some(value) = keys.iter().find_map(|key| self.count(key)) {
                out.set(name, value);
            }
        }
        // A NullTokenizer has as many tokens as it is told, or one more, depending on Megatron's
        // version. The line on the padded vocabulary has its size.
        if self.get("tokenizer_type") != Some("NullTokenizer") {
            put(out, "vocab_size", self.count("vocab_size"));
        }
        let pipeline = self
            .count("pipeline_model_parallel_size")
            .or_else(|| self.count("pipe_parallel_size"));
        // NeoX' 0 is a pipeline that is switched off.
        put(
            out,
            "pipeline_model_parallel_size",
            pipeline.map(|n| n.max(1)),
        );
    }

    fn model(&self, out: &mut Builder) {
        if self.flag("multi_latent_attention") != Some(true) {
            let grouped = match self.flag("group_query_attention") {
                Some(true) => self.count("num_query_groups"),
                Some(false) => self.count("num_attention_heads"),
                None => self
                    .count("num_attention_heads_kv")
                    .or_else(|| self.count("num_key_value_heads")),
            };
            put(out, "num_kv_heads", grouped);
        }
        let untied = self
            .flag("untie_embeddings_and_output_weights")
            .or_else(|| self.flag("no_weight_tying"));
        put(
            out,
            "tie_embeddings",
            untied
                .map(|untied| !untied)
                .or_else(|| self.flag("tie_embed_logits")),
        );
        put(
            out,
            "qkv_bias",
            either(self.flag("add_qkv_bias"), self.flag("add_bias_linear")),
        );
        let epsilon = match self.get("norm") {
            Some("rmsnorm") => self.real("rms_norm_epsilon"),
            _ => self
                .real("norm_epsilon")
                .or_else(|| self.real("layernorm_epsilon")),
        };
        put(out, "norm_eps", epsilon);
        let positions = self
            .get("position_embedding_type")
            .or_else(|| self.get("pos_emb"));
        if matches!(positions, Some("rope" | "rotary"))
            || self.flag("use_rotary_position_embeddings") == Some(true)
        {
            let keys = ["rotary_base", "rotary_emb_base", "rope_theta"];
            put(
                out,
                "rope_theta",
                keys.iter().find_map(|key| self.real(key)),
            );
            put(out, "rope_scaling_factor", self.rope_scaling());
        }
        put(out, "init_std", self.real("init_method_std"));
        let dropouts = self
            .real("hidden_dropout")
            .zip(self.real("attention_dropout"));
        put(
            out,
            "dropout",
            dropouts.map(|(hidden, attention)| hidden.max(attention)),
        );
    }

    /// Llama 3's scaling, 1 where there is none. The factor is printed whether or not it is used.
    fn rope_scaling(&self) -> Option<f64> {
        let is_interpolated = self
            .get("rotary_seq_len_interpolation_factor")
            .is_some_and(|v| v.parse() != Ok(1.0));
        // A type is given where latent attention has a scaling of its own.
        let is_latent =
            self.flag("multi_latent_attention") == Some(true) || self.get("rope_type").is_some();
        if is_interpolated || is_latent {
            return None;
        }
        if self.flag("use_rope_scaling")? {
            self.real("rope_scaling_factor")
        } else {
            Some(1.0)
        }
    }

    fn precision(&self, out: &mut Builder) {
        let fp8 = self.get("fp8").filter(|v| !matches!(*v, "False" | "false"));
        let (bf16, fp16) = (self.flag("bf16"), self.flag("fp16"));
        let precision = match self.get("precision") {
            _ if self.get("fp4").is_some() => Some("fp4"),
            _ if fp8.is_some() => Some("fp8"),
            Some("bfloat16" | "bf16") => Some("bf16"),
            Some("fp16") => Some("fp16"),
            Some("fp32") => Some("fp32"),
            _ if bf16 == Some(true) => Some("bf16"),
            _ if fp16 == Some(true) => Some("fp16"),
            _ if (bf16, fp16) == (Some(false), Some(false)) => Some("fp32"),
            _ => None,
        };
        put(out, "precision", precision);
        if let Some(kind) = fp8 {
            out.set("fp8_hybrid", kind == "hybrid");
            put(out, "fp8_param", self.flag("fp8_param_gather"));
            put(out, "fp8_recipe", self.get("fp8_recipe"));
            put(
                out,
                "fp8_amax_history_len",
                self.count("fp8_amax_history_len"),
            );
            put(
                out,
                "fp8_amax_compute_algo",
                self.get("fp8_amax_compute_algo"),
            );
        }
    }

    fn optimizer(&self, out: &mut Builder) {
        let kind = self
            .get("optimizer")
            .filter(|v| !v.starts_with('{'))
            .or_else(|| self.get("optimizer_type"));
        let kind = kind.map(|kind| match kind.to_lowercase().as_str() {
            // Their Adam is a fused AdamW unless decoupling is switched off.
            "adam" if self.flag("decoupled_weight_decay") != Some(false) => "adamw".to_owned(),
            other => other.to_owned(),
        });
        put(out, "optimizer", kind);
        for (name, key) in [
            ("learning_rate", "lr"),
            ("min_learning_rate", "min_lr"),
            ("weight_decay", "weight_decay"),
            ("clip_grad", "clip_grad"),
            ("beta1", "adam_beta1"),
            ("beta2", "adam_beta2"),
            ("eps", "adam_eps"),
        ] {
            put(out, name, self.real(key));
        }
        // NeoX states these in the optimiser's own dictionary only.
        if let Some(parameters) = self.get("optimizer").filter(|v| v.starts_with('{')) {
            let betas = after(parameters, "'betas': [").and_then(|rest| rest.split_once(','));
            put(
                out,
                "beta1",
                betas.and_then(|(first, _)| finite_number(first)),
            );
            put(
                out,
                "beta2",
                betas.and_then(|(_, second)| finite_number(second)),
            );
            put(
                out,
                "eps",
                after(parameters, "'eps': ").and_then(finite_number),
            );
        }
        let by_samples = self.count("lr_warmup_samples").is_some_and(|n| n > 0);
        let warmup = match self.real("lr_warmup_fraction") {
            Some(fraction) => self.real("lr_decay_iters").map(|iters| fraction * iters),
            None => self.real("lr_warmup_iters").filter(|_| !by_samples),
        };
        put(out, "warmup_steps", warmup);
        let states = (self.get("exp_avg_dtype"), self.get("exp_avg_sq_dtype"));
        if let (Some(first), Some(second)) = states
            && first == second
            // The names of other types are only heeded by the optimiser that is aware of them.
            && (self.flag("use_precision_aware_optimizer") == Some(true) || first.ends_with("float32"))
        {
            out.set(
                "optimizer_state_precision",
                first.trim_start_matches("torch."),
            );
        }
    }

    fn execution(&self, out: &mut Builder) {
        // Here None is a statement: nothing is recomputed.
        let recompute = ["recompute_granularity", "activations_checkpoint_method"];
        let recompute = recompute
            .iter()
            .find(|key| self.is_stated(key))
            .map(|key| self.get(key).is_some());
        put(
            out,
            "activation_checkpointing",
            either(self.flag("checkpoint_activations"), recompute),
        );
        put(
            out,
            "offload",
            either(self.flag("optimizer_cpu_offload"), self.flag("cpu_offload")),
        );
        put(out, "deterministic", self.flag("deterministic_mode"));
        put(
            out,
            "distributed_optimizer",
            self.flag("use_distributed_optimizer"),
        );
        put(out, "zero_stage", self.count("zero_stage"));
        put(out, "transformer_impl", self.get("transformer_impl"));
        if self
            .count("tensor_model_parallel_size")
            .is_some_and(|ranks| ranks > 1)
        {
            put(out, "sequence_parallel", self.flag("sequence_parallel"));
        }
        let paths = [
            "data_path",
            "train_data_path",
            "train_data_paths",
            "data_args_path",
            "per_split_data_args_path",
        ];
        if self.flag("mock_data") == Some(true) {
            out.set("data", "mock");
        } else if paths.iter().any(|key| self.get(key).is_some())
            && !out.trace.effective.0.contains_key("data")
        {
            // A launcher that wrote the files knows what is in them, and said so before.
            out.set("data", "real");
        }
    }
}

fn put(out: &mut Builder, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        out.set(name, value);
    }
}

/// True if one is; false if all that is stated is false.
fn either(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a || b),
        (a, b) => a.or(b),
    }
}

/// NeoX pads a value with dots and says whether it is the default.
fn value_of(rest: &str) -> &str {
    let value = rest.trim();
    match value
        .strip_suffix("updated")
        .or_else(|| value.strip_suffix("default"))
    {
        Some(padded) if padded.ends_with('.') => padded.trim_end_matches('.').trim_end(),
        Some(full) if full.ends_with(['}', ']']) => full,
        _ => value,
    }
}

#[cfg(test)]
mod tests;

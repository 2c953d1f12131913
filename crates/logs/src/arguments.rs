//! Argument dumps of Megatron and its relatives (`  key ....... value`) → settings by the job's
//! names, by the table in `arguments.toml` and the rules here.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::LazyLock,
};

use serde::Deserialize;
use serde_json::Value;
use tprimat_base::words::part;

use super::{
    builder::Builder,
    numbers::{after, finite_number},
    process::Said,
};

/// Setting → the arguments that state it.
type Stated = BTreeMap<String, Vec<String>>;

#[derive(Deserialize)]
struct Table {
    count: Stated,
    number: Stated,
    flag: Stated,
    word: Stated,
    none: Stated,
    rule: Stated,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("arguments.toml")).expect("a table of our own"));

/// The arguments that say something of a setting.
static KNOWN: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let Table {
        count,
        number,
        flag,
        word,
        rule,
        ..
    } = &*TABLE;
    let all = [count, number, flag, word, rule];
    let all = all.into_iter().flat_map(|stated| stated.values().flatten());
    all.map(String::as_str).collect()
});

/// Collects a dump; what is stated first counts.
#[derive(Default)]
pub struct Arguments {
    stated: HashMap<&'static str, String>,
    told: bool,
    /// Lines of steps that came before they were told.
    steps: u64,
}

impl Arguments {
    /// `text` has a run of dots that begins at `dots`, behind a space.
    pub fn line(&mut self, text: &str, dots: usize, out: &mut Builder) {
        let mut words = part(text, ..dots).rsplit([' ', ':']);
        let name = words.find(|word| !word.is_empty());
        let Some(name) = name else { return };
        let rest = part(text, dots..).trim_start().trim_start_matches('.');
        let known = KNOWN.get(name);
        if known.is_none() {
            // Dots stand in other lines as well: a dump has begun with an argument that is known.
            if rest.starts_with(' ') && !self.told && !self.stated.is_empty() {
                out.argument(name, value_of(rest));
            }
            return;
        }
        if let Some(known) = known.filter(|_| rest.starts_with(' ')) {
            if self.told {
                // Behind steps they are those of a process that begins.
                if out.trace.step_lines == self.steps {
                    return;
                }
                *self = Self::default();
            }
            out.begins(Said::Begins);
            let value = || value_of(rest).to_owned();
            self.stated.entry(known).or_insert_with(value);
        }
    }

    fn is_stated(&self, key: &str) -> bool {
        debug_assert!(KNOWN.contains(key), "{key} is never collected");
        self.stated.contains_key(key)
    }

    /// A value that is stated and not None.
    fn get(&self, key: &str) -> Option<&str> {
        debug_assert!(KNOWN.contains(key), "{key} is never collected");
        let value = self.stated.get(key)?.as_str();
        Some(value).filter(|v| !matches!(*v, "None" | "none" | "" | "[]"))
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            "True" | "true" => Some(true),
            "False" | "false" => Some(false),
            // NeoX states a whole dictionary where a precision is on.
            other => Some(other.starts_with('{') && !other.contains("'enabled': False")),
        }
    }

    fn is_on(&self, key: &str) -> bool {
        self.flag(key) == Some(true)
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
        self.steps = out.trace.step_lines;
        tell(&TABLE.count, |key| self.count(key), out);
        self.model(out);
        self.experts(out);
        self.precision(out);
        tell(&TABLE.number, |key| self.real(key), out);
        self.optimizer(out);
        tell(&TABLE.flag, |key| self.flag(key), out);
        tell(&TABLE.word, |key| self.get(key), out);
        // Hosts have one dataset in several folders.
        let path = self.get("data_path").filter(|path| !path.contains(' '));
        let path = path.map(|path| path.trim_matches(['[', ']', '\'']).trim_end_matches('/'));
        let name = path.and_then(|path| path.rsplit('/').next());
        let name = name.filter(|name| !name.is_empty());
        put(out, "data_path", name);
        let is_none = |key: &str| self.is_stated(key) && self.get(key).is_none();
        tell(&TABLE.none, |key| is_none(key).then_some("none"), out);
        self.execution(out);
    }

    fn model(&self, out: &mut Builder) {
        // A NullTokenizer has as many tokens as it is told, or one more, depending on Megatron's
        // version. The line on the padded vocabulary has its size.
        if self.get("tokenizer_type") != Some("NullTokenizer") {
            put(out, "vocab_size", self.count("vocab_size"));
        }
        if !self.is_on("multi_latent_attention") {
            let others = ["num_attention_heads_kv", "num_key_value_heads"];
            let heads = match self.flag("group_query_attention") {
                Some(true) => self.count("num_query_groups"),
                Some(false) => self.count("num_attention_heads"),
                None => others.iter().find_map(|key| self.count(key)),
            };
            put(out, "num_kv_heads", heads);
        } else {
            // Each dump has these; they are of no other attention.
            put(out, "q_lora_rank", self.count("q_lora_rank"));
            put(out, "kv_lora_rank", self.count("kv_lora_rank"));
            put(out, "qk_nope_head_dim", self.count("qk_head_dim"));
            put(out, "qk_rope_head_dim", self.count("qk_pos_emb_head_dim"));
            put(out, "v_head_dim", self.count("v_head_dim"));
        }
        let untied = ["untie_embeddings_and_output_weights", "no_weight_tying"];
        let untied = untied.iter().find_map(|key| self.flag(key));
        let tied = untied.map(|untied| !untied);
        put(
            out,
            "tie_embeddings",
            tied.or_else(|| self.flag("tie_embed_logits")),
        );
        let bias = either(self.flag("add_qkv_bias"), self.flag("add_bias_linear"));
        put(out, "qkv_bias", bias);
        let epsilons: &[&str] = match self.get("norm") {
            Some("rmsnorm") => &["rms_norm_epsilon"],
            _ => &["norm_epsilon", "layernorm_epsilon"],
        };
        put(
            out,
            "norm_eps",
            epsilons.iter().find_map(|key| self.real(key)),
        );
        let positions = ["position_embedding_type", "pos_emb"];
        let positions = positions.iter().find_map(|key| self.get(key));
        let plain = positions.map(|kind| match kind {
            "rotary" => "rope",
            "learned" => "learned_absolute",
            other => other,
        });
        put(out, "position_embedding_type", plain);
        if matches!(positions, Some("rope" | "rotary"))
            || self.is_on("use_rotary_position_embeddings")
        {
            let bases = ["rotary_base", "rotary_emb_base", "rope_theta"];
            put(
                out,
                "rope_theta",
                bases.iter().find_map(|key| self.real(key)),
            );
            put(out, "rope_scaling_factor", self.rope_scaling());
        }
        // `(1023, 0)`: tokens before a token that it attends to besides itself; below 0, all of them.
        let window = self
            .get("window_size")
            .and_then(|pair| pair.strip_prefix('('));
        let before = window.and_then(|pair| pair.split(',').next()?.trim().parse::<u64>().ok());
        put(out, "sliding_window", before.map(|n| n + 1));
        let dropouts = [self.real("hidden_dropout"), self.real("attention_dropout")];
        if let [Some(hidden), Some(attention)] = dropouts {
            out.set("dropout", hidden.max(attention));
        }
        put(out, "hidden_dropout", dropouts[0]);
        put(out, "attention_dropout", dropouts[1]);
    }

    /// Megatron prints what a router would choose of dense models as well, whose `num_experts` is
    /// `None`: they have 0.
    fn experts(&self, out: &mut Builder) {
        let experts = self.count("num_experts").unwrap_or(0);
        if self.is_stated("num_experts") {
            out.set("num_experts", experts);
        }
        if experts <= 1 {
            return;
        }
        put(out, "num_experts_per_tok", self.count("moe_router_topk"));
        let width = self.count("moe_ffn_hidden_size");
        put(
            out,
            "moe_intermediate_size",
            width.or_else(|| self.count("ffn_hidden_size")),
        );
        let shared = self.count("moe_shared_expert_intermediate_size");
        put(out, "shared_expert_intermediate_size", shared);
        // 1, or a list with a 1 for each layer that has experts; a list may be an expression.
        let layers = self.get("moe_layer_freq");
        let is_every =
            |layers: &str| layers == "1" || layers.starts_with(['[', '(']) && !layers.contains('0');
        let some = layers.filter(|layers| !is_every(layers));
        put(out, "moe_layer_freq", some);
        for name in [
            "moe_expert_capacity_factor",
            "moe_router_load_balancing_type",
        ] {
            put(out, name, self.get(name));
        }
    }

    /// Llama 3's scaling, 1 where there is none. The factor is printed whether or not it is used.
    fn rope_scaling(&self) -> Option<f64> {
        let interpolation = self.get("rotary_seq_len_interpolation_factor");
        let is_interpolated = interpolation.is_some_and(|v| v.parse() != Ok(1.0));
        // A type is given where latent attention has a scaling of its own.
        let is_latent = self.is_on("multi_latent_attention") || self.get("rope_type").is_some();
        match self.flag("use_rope_scaling")? {
            _ if is_interpolated || is_latent => None,
            true => self.real("rope_scaling_factor"),
            false => Some(1.0),
        }
    }

    fn precision(&self, out: &mut Builder) {
        let fp8 = self.get("fp8").filter(|v| !matches!(*v, "False" | "false"));
        let precision = match (self.get("precision"), self.flag("bf16"), self.flag("fp16")) {
            _ if self.get("fp4").is_some() => match self.get("fp4_recipe") {
                Some("nvfp4") => Some("nvfp4"),
                _ => Some("fp4"),
            },
            _ if fp8.is_some() && self.get("fp8_recipe") == Some("mxfp8") => Some("mxfp8"),
            _ if fp8.is_some() => Some("fp8"),
            (Some("bfloat16" | "bf16"), ..) => Some("bf16"),
            (Some("fp16"), ..) => Some("fp16"),
            (Some("fp32"), ..) => Some("fp32"),
            (_, Some(true), _) => Some("bf16"),
            (_, _, Some(true)) => Some("fp16"),
            (_, Some(false), Some(false)) => Some("fp32"),
            _ => None,
        };
        put(out, "precision", precision);
        let Some(kind) = fp8 else { return };
        out.set("fp8_hybrid", kind == "hybrid");
        put(out, "fp8_param", self.flag("fp8_param_gather"));
        put(out, "fp8_recipe", self.get("fp8_recipe"));
        let length = self.count("fp8_amax_history_len");
        put(out, "fp8_amax_history_len", length);
        let algorithm = self.get("fp8_amax_compute_algo");
        put(out, "fp8_amax_compute_algo", algorithm);
    }

    fn optimizer(&self, out: &mut Builder) {
        // NeoX states a dictionary in place of the name.
        let stated = self.get("optimizer");
        let dictionary = stated.filter(|v| v.starts_with('{'));
        let name = stated.filter(|v| !v.starts_with('{'));
        let kind = name.or_else(|| self.get("optimizer_type"));
        let kind = kind.map(|kind| match kind.to_lowercase().as_str() {
            // Their Adam is a fused AdamW unless decoupling is switched off.
            "adam" if self.flag("decoupled_weight_decay") != Some(false) => "adamw".to_owned(),
            other => other.to_owned(),
        });
        put(out, "optimizer", kind);
        if let Some(parameters) = dictionary {
            let betas = after(parameters, "'betas': [").and_then(|rest| rest.split_once(','));
            let (first, second) = betas.unwrap_or_default();
            put(out, "beta1", finite_number(first));
            put(out, "beta2", finite_number(second));
            let epsilon = after(parameters, "'eps': ").and_then(finite_number);
            put(out, "eps", epsilon);
        }
        let by_samples = self.count("lr_warmup_samples").is_some_and(|n| n > 0);
        let warmup = match self.real("lr_warmup_fraction") {
            Some(fraction) => self.real("lr_decay_iters").map(|iters| fraction * iters),
            None => self.real("lr_warmup_iters").filter(|_| !by_samples),
        };
        put(out, "warmup_steps", warmup);
        // The names of other types are only heeded by the optimiser that is aware of them.
        let is_heeded =
            |kind: &&str| self.is_on("use_precision_aware_optimizer") || kind.ends_with("float32");
        let names = ["exp_avg_dtype", "exp_avg_sq_dtype"];
        let mut states: Vec<&str> = names
            .into_iter()
            .filter_map(|name| self.get(name).filter(is_heeded))
            .map(|kind| kind.trim_start_matches("torch."))
            .collect();
        states.dedup();
        let states = Some(states.join("/")).filter(|states| !states.is_empty());
        put(out, "optimizer_state_precision", states);
        // Without that optimizer, main weights and gradients are fp32, whatever these arguments say.
        for name in ["main_grads_dtype", "main_params_dtype"] {
            let in_effect = |kind| match is_heeded(&kind) {
                true => kind,
                false => "torch.float32",
            };
            put(out, name, self.get(name).map(in_effect));
        }
    }

    fn execution(&self, out: &mut Builder) {
        let pipeline = ["pipeline_model_parallel_size", "pipe_parallel_size"];
        let pipeline = pipeline.iter().find_map(|key| self.count(key));
        // NeoX' 0 is a pipeline that is switched off.
        put(
            out,
            "pipeline_model_parallel_size",
            pipeline.map(|n| n.max(1)),
        );
        // Here None is a statement: nothing is recomputed.
        let recompute = ["recompute_granularity", "activations_checkpoint_method"];
        let recompute = recompute.iter().find(|key| self.is_stated(key));
        let recompute = recompute.map(|key| self.get(key).is_some());
        let recompute = either(self.flag("checkpoint_activations"), recompute);
        put(out, "activation_checkpointing", recompute);
        let offload = either(self.flag("optimizer_cpu_offload"), self.flag("cpu_offload"));
        put(out, "offload", offload);
        let tensor_ranks = self.count("tensor_model_parallel_size");
        if tensor_ranks.is_some_and(|ranks| ranks > 1) {
            put(out, "sequence_parallel", self.flag("sequence_parallel"));
        }
        let mut data = TABLE.rule["data"].iter();
        if self.is_on("mock_data") {
            out.set("data", "mock");
        } else if data.any(|key| key != "mock_data" && self.get(key).is_some())
            && !out.trace.effective.0.contains_key("data")
        {
            // A launcher that wrote the files knows what is in them, and said so before.
            out.set("data", "real");
        }
    }
}

/// Puts the settings of a table, each as the first of its arguments that has a value states it.
fn tell<T: Into<Value>>(table: &Stated, value: impl Fn(&str) -> Option<T>, out: &mut Builder) {
    for (name, keys) in table {
        put(out, name, keys.iter().find_map(|key| value(key)));
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
    let stripped = value.strip_suffix("updated");
    match stripped.or_else(|| value.strip_suffix("default")) {
        Some(padded) if padded.ends_with('.') => padded.trim_end_matches('.').trim_end(),
        Some(full) if full.ends_with(['}', ']']) => full,
        _ => value,
    }
}

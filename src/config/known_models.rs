//! Shapes of models that config.yaml only names: from the built-in table, or from a Hugging Face
//! config.json.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    layers::{Config, Layer},
    nested,
};
use crate::{
    error::{Problem, did_you_mean},
    job::{ARCHITECTURES, ModelShape, architecture_names},
};

/// An entry of `models.toml`.
#[derive(Debug, Deserialize)]
pub(super) struct KnownModel {
    pub name: String,
    pub names: Vec<String>,
    num_parameters: u64,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test holds the table against it")
    )]
    num_active_parameters: Option<f64>,
    /// Keys of `models.<id>`.
    #[serde(flatten)]
    shape: Map<String, Value>,
}

/// Values of `models.<id>`, by their path below it.
type Shape = Vec<(String, Value)>;

/// Keys without which a model's shape is not known; the others have defaults.
pub const NEEDED_SHAPE: [&str; 6] = [
    "architecture",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "vocab_size",
];

pub(super) fn known_models() -> &'static [KnownModel] {
    static TABLE: LazyLock<Vec<KnownModel>> = LazyLock::new(|| {
        #[derive(Deserialize)]
        struct File {
            model: Vec<KnownModel>,
        }
        let file: File = toml::from_str(include_str!("models.toml")).expect("a test reads it");
        file.model
    });
    &TABLE
}

impl KnownModel {
    fn shape(&self) -> Shape {
        let shape = Value::Object(self.shape.clone());
        let values = nested::leaves(&shape).into_iter();
        values.map(|(path, value)| (path, value.clone())).collect()
    }
}

/// Gives the models of a config what it leaves out and the table knows.
pub(super) fn fill(config: &mut Config) {
    let ids: Vec<String> = config.children("models").map(str::to_owned).collect();
    for id in ids {
        if config.get(&format!("models.{id}.hf_config")).is_some() {
            continue;
        }
        let Some(known) = named(config, &id) else {
            continue;
        };
        let shape = known.shape();
        let lacks = |key: &str| config.get(&format!("models.{id}.{key}")).is_none();
        if !NEEDED_SHAPE.iter().any(|key| lacks(key)) {
            continue;
        }
        if let Some(other) = contradiction(config, &id, known, &shape) {
            config.notes.push(other.clone());
            config.unlike.push((id, other));
            continue;
        }
        complete(config, &id, shape, format!("built in: {}", known.name));
    }
}

/// Gives a model the keys of `shape` that it does not state. `from` says where they come from.
fn complete(config: &mut Config, id: &str, shape: Shape, from: String) {
    let layer = Layer::Model(config.model_sources.len());
    config.model_sources.push(from);
    // Scaling is one thing: a part of it is not completed from elsewhere.
    let is_scaled = config.contains(&format!("models.{id}.rope_scaling"));
    for (key, value) in shape {
        let is_stated = config.is_stated(&format!("models.{id}.{key}"));
        if !(is_stated || key.starts_with("rope_scaling") && is_scaled) {
            let keys: Vec<&str> = ["models", id].into_iter().chain(key.split('.')).collect();
            config.set(&keys, value, layer);
        }
    }
}

impl Config {
    /// The files that models name as their `hf_config`: the model's id, and the path as written.
    #[must_use]
    pub fn hf_configs(&self) -> Vec<(String, String)> {
        let models = self.children("models").map(str::to_owned);
        models
            .filter_map(|id| {
                let path = self.settings.models.get(&id)?.hf_config.clone()?;
                Some((id, path))
            })
            .collect()
    }

    /// Takes from a Hugging Face `config.json` what a model does not state.
    pub fn complete_from_hf(&mut self, id: &str, path: &str, text: &str) -> Result<(), Problem> {
        let shape = self.hf_shape(id, text).map_err(|why| {
            let at = format!("models.{id}.hf_config");
            self.problem_at(&at, format!("{path} {why}"), "this file")
        })?;
        complete(self, id, shape, path.to_owned());
        self.fill_settings();
        Ok(())
    }

    /// What a Hugging Face `config.json` says of the keys that a model does not state; the error
    /// completes "the file …".
    fn hf_shape(&self, id: &str, text: &str) -> Result<Shape, String> {
        let file = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        let mut shape = Vec::new();
        for (key, value) in stated_in_hf(&file)? {
            let path = format!("models.{id}.{key}");
            if self.is_stated(&path) {
                continue;
            }
            if value.is_null() {
                return Err("has no n_positions".to_owned());
            }
            let value = self.leaf(&path).and_then(|leaf| leaf.accept(value));
            let value = value.map_err(|problem| format!("does not fit: {}", problem.message))?;
            shape.push((key, value));
        }
        Ok(shape)
    }
}

/// Keys of `models.<id>`, and what they are called in a config.json. Of the sizes that most models
/// do not have, those are asked that the architecture has.
const HF_KEYS: [(&str, &[&str]); 21] = [
    ("num_layers", &["num_hidden_layers", "n_layer"]),
    ("hidden_size", &["hidden_size", "n_embd"]),
    ("ffn_hidden_size", &["intermediate_size", "n_inner"]),
    ("num_attention_heads", &["num_attention_heads", "n_head"]),
    ("num_kv_heads", &["num_key_value_heads"]),
    ("head_dim", &["head_dim"]),
    ("vocab_size", &["vocab_size"]),
    ("rope_theta", &["rope_theta"]),
    ("norm_eps", &["rms_norm_eps", "layer_norm_epsilon"]),
    (
        "num_experts",
        &["num_experts", "num_local_experts", "n_routed_experts"],
    ),
    (
        "num_experts_per_tok",
        &["num_experts_per_tok", "experts_per_token"],
    ),
    ("moe_intermediate_size", &["moe_intermediate_size"]),
    (
        "shared_expert_intermediate_size",
        &["shared_expert_intermediate_size"],
    ),
    ("first_k_dense_replace", &["first_k_dense_replace"]),
    ("q_lora_rank", &["q_lora_rank"]),
    ("kv_lora_rank", &["kv_lora_rank"]),
    ("qk_nope_head_dim", &["qk_nope_head_dim"]),
    ("qk_rope_head_dim", &["qk_rope_head_dim"]),
    ("v_head_dim", &["v_head_dim"]),
    ("sliding_window", &["sliding_window"]),
    ("sliding_window_pattern", &["sliding_window_pattern"]),
];

/// What transformers takes for granted where a config.json is silent, and the counts depend on it.
const HF_SILENT: [(&str, &str, u64); 3] = [
    ("mistral", "sliding_window", 4096),
    ("gpt_oss", "sliding_window", 128),
    ("gpt_oss", "sliding_window_pattern", 2),
];

/// What a config.json may state that a shape here has only one way.
const HF_FIXED: [(&str, &str, &str); 5] = [
    ("decoder_sparse_step", "1", "every layer has experts"),
    ("mlp_only_layers", "[]", "every layer has experts"),
    (
        "moe_layer_freq",
        "1",
        "every layer behind the dense ones has experts",
    ),
    (
        "output_router_logits",
        "false",
        "the loss has no part of the router's",
    ),
    ("use_sliding_window", "false", "no layer has a window"),
];

const HF_SCALING: [&str; 4] = [
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
];

/// The keys of `models.<id>` that a Hugging Face `config.json` states, or that transformers takes for
/// granted where it does not.
fn stated_in_hf(file: &Value) -> Result<Shape, String> {
    let architecture = file["model_type"].as_str().unwrap_or_default();
    let Some(known) = crate::job::architecture(architecture) else {
        let all = architecture_names();
        let names = ARCHITECTURES.iter().map(|known| known.name);
        let near = did_you_mean(architecture, names).map_or_else(String::new, |near| near + " ");
        return Err(format!(
            "has the model_type {architecture:?}; {near}known are {all}"
        ));
    };
    let is_gpt2 = architecture == "gpt2";
    let mut shape = vec![("architecture".to_owned(), json!(architecture))];
    let mut state = |key: &str, value: Value| shape.push((key.to_owned(), value));
    let further = ModelShape::default().further();
    let is_asked = |key: &str| known.has(key) || !further.iter().any(|(name, _)| *name == key);
    for (key, names) in HF_KEYS.into_iter().filter(|(key, _)| is_asked(key)) {
        let names = match (key, architecture) {
            // All that their layers have are experts, of the one width.
            ("moe_intermediate_size", "mixtral" | "gpt_oss") => &["intermediate_size"],
            _ => names,
        };
        // Here it follows from the two parts of a head.
        let is_derived = key == "head_dim" && known.has_latent_attention();
        let value = match key {
            "shared_expert_intermediate_size" if known.has_latent_attention() => {
                let [shared, width] = ["n_shared_experts", "moe_intermediate_size"];
                json!(file[shared].as_u64().unwrap_or(0) * file[width].as_u64().unwrap_or(0))
            }
            "sliding_window_pattern" if file["layer_types"].is_array() => {
                json!(window_pattern(&file["layer_types"])?)
            }
            _ => {
                let mut stated = names.iter().map(|name| &file[*name]);
                stated
                    .find(|value| value.is_number())
                    .cloned()
                    .unwrap_or_default()
            }
        };
        let is_silent = |(of, silent, _): &&(&str, &str, u64)| {
            *of == architecture && *silent == key && file.get(key).is_none()
        };
        if value.is_number() && !is_derived {
            state(key, value);
        } else if let Some((.., taken)) = HF_SILENT.iter().find(is_silent) {
            state(key, json!(taken));
        } else if known.needs.contains(&key)
            || (key == "head_dim" && (known.has_qk_norm || known.is_gpt_oss))
        {
            return Err(format!("has no {}, which {architecture} needs", names[0]));
        }
    }
    for (key, only, meaning) in HF_FIXED {
        let value = &file[key];
        let is_so = serde_json::from_str(only).is_ok_and(|only: Value| *value == only);
        if !value.is_null() && !is_so {
            return Err(format!(
                "states {key} {value}; here it is {only}: {meaning}"
            ));
        }
    }
    // Transformers 5 writes the rotary settings into one table.
    let rotary = &file["rope_parameters"];
    if !is_gpt2 && !file["rope_theta"].is_number() {
        let theta = Some(&rotary["rope_theta"]).filter(|theta| theta.is_number());
        state("rope_theta", theta.cloned().unwrap_or(json!(10_000.0)));
    }
    if is_gpt2 {
        let hidden = file["n_embd"].as_u64().ok_or("has no n_embd")?;
        if !file["n_inner"].is_number() {
            state("ffn_hidden_size", json!(hidden * 4));
        }
        state("max_position_embeddings", file["n_positions"].clone());
    }
    let is_tied = file["tie_word_embeddings"].as_bool().unwrap_or(is_gpt2);
    state("tie_embeddings", json!(is_tied));
    let is_biased = is_gpt2 || known.is_gpt_oss || architecture.starts_with("qwen2");
    let has_bias = is_biased || file["attention_bias"] == true;
    state("qkv_bias", json!(has_bias));
    let kind = rotary["rope_type"].as_str();
    let scaling = match kind.is_some_and(|kind| kind != "default") {
        true => rotary,
        false => &file["rope_scaling"],
    };
    // YaRN's scaling moves no count, and no trainer here starts these models: it is left to whoever does.
    let is_left_out = known.has_latent_attention() || known.is_gpt_oss;
    let is_scaled = scaling.is_object() && !is_left_out;
    for key in HF_SCALING.into_iter().filter(|_| is_scaled) {
        if !scaling[key].is_number() {
            return Err(format!(
                "scales RoPE in a way that is not known here: it has no {key}"
            ));
        }
        state(&format!("rope_scaling.{key}"), scaling[key].clone());
    }
    Ok(shape)
}

/// Every how many layers one has no window, where the list of all layers' kinds repeats so.
fn window_pattern(layers: &Value) -> Result<u64, String> {
    let kinds = layers.as_array().into_iter().flatten();
    let whole: Vec<bool> = kinds.map(|kind| kind == "full_attention").collect();
    let every = whole.iter().position(|whole| *whole).map_or(0, |at| at + 1);
    let fits = |(at, whole): (usize, &bool)| *whole == (every > 0 && (at + 1) % every == 0);
    match whole.iter().enumerate().all(fits) {
        true => Ok(every as u64),
        false => {
            Err("has layer_types in which layers without a window do not come regularly".into())
        }
    }
}

/// The entry that a model's names mean, if they mean one.
fn named(config: &Config, id: &str) -> Option<&'static KnownModel> {
    let text = |key: &str| {
        config
            .get(&format!("models.{id}.{key}"))
            .and_then(Value::as_str)
    };
    let recipe = text("nemo_recipe").map(|recipe| recipe.split('.').next().unwrap_or(recipe));
    let paths = ["name", "full_name", "tokenizer_path"].map(text);
    let names = paths.into_iter().chain([recipe, Some(id)]);
    names.flatten().find_map(|name| {
        // The Hub's ids have their owner in front.
        let name = name.trim_end_matches('/').rsplit('/').next();
        let plain = plain(name.unwrap_or_default());
        known_models()
            .iter()
            .find(|model| model.names.iter().any(|known| self::plain(known) == plain))
    })
}

/// A name without case, blanks and punctuation, as names are compared.
fn plain(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// A stated key that is not the known model's: then the name says something else, and nothing is
/// filled in.
fn contradiction(config: &Config, id: &str, known: &KnownModel, shape: &Shape) -> Option<Problem> {
    let counted = ("num_parameters".to_owned(), json!(known.num_parameters));
    for (key, value) in shape.iter().chain([&counted]) {
        let path = format!("models.{id}.{key}");
        let Some(stated) = config.get(&path) else {
            continue;
        };
        let (a, b) = (stated.as_f64(), value.as_f64());
        // A count of parameters is rounded in a name.
        let within = if *key == "num_parameters" { 0.02 } else { 1e-9 };
        let agrees = stated == value
            || a.zip(b)
                .is_some_and(|(a, b)| (a - b).abs() <= within * b.abs());
        if !agrees {
            let message = format!(
                "`models.{id}` is named like {}, whose {key} is {value}, not {stated}",
                known.name
            );
            return Some(config.problem_at(
                &path,
                message,
                "nothing is taken from the built-in table of models",
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tprimat_job::{count_active_parameters, count_parameters};

    use super::*;

    #[test]
    fn the_table_has_the_publishers_parameter_counts_and_every_name_once() {
        let mut names = BTreeSet::new();
        for model in known_models() {
            for name in &model.names {
                assert!(names.insert(plain(name)), "{name} names two models");
            }
            let key_of = |key: &str| model.shape.get(key).cloned();
            let mut stated = json!(ModelShape::default());
            for (key, value) in stated.as_object_mut().unwrap() {
                *value = key_of(key).unwrap_or(value.take());
            }
            let mut shape: ModelShape = serde_json::from_value(stated).unwrap();
            if shape.qk_nope_head_dim > 0 {
                shape.head_dim = shape.qk_nope_head_dim + shape.qk_rope_head_dim;
            } else if shape.head_dim == 0 {
                shape.head_dim = shape.hidden_size / shape.num_attention_heads;
            }
            let keys = model.shape.keys().map(|key| format!("models.any.{key}"));
            let any = crate::config::tests::load("models: { any: {} }\n", &[], &[]).unwrap();
            keys.for_each(|key| _ = any.resolve(&key).unwrap());
            assert_eq!(
                count_parameters(&shape),
                Some(model.num_parameters),
                "{}",
                model.name
            );
            let active = count_active_parameters(&shape).unwrap() as f64;
            let stated = model.num_active_parameters.unwrap_or(active);
            assert!((active / stated - 1.0).abs() < 0.02, "{}", model.name);
        }
        assert!(known_models().len() >= 43);
    }

    /// Ids of the Hub, with their owner.
    #[test]
    fn a_model_is_known_by_its_id_on_the_hub() {
        for id in [
            "Qwen/Qwen3-0.6B",
            "Qwen/Qwen3-8B-Base",
            "Qwen/Qwen3-30B-A3B",
            "Qwen/Qwen3-Coder-480B-A35B-Instruct",
            "Qwen/Qwen1.5-MoE-A2.7B",
            "Qwen/Qwen2.5-7B",
            "mistralai/Mixtral-8x7B-v0.1",
            "mistralai/Mistral-7B-v0.1",
            "mistralai/Mistral-Nemo-Base-2407",
            "meta-llama/Llama-3.1-8B",
            "meta-llama/Llama-2-7b-hf",
            "openai-community/gpt2-xl",
            "TinyLlama/TinyLlama-1.1B",
            "deepseek-ai/DeepSeek-V3-Base",
            "deepseek-ai/DeepSeek-V2-Lite",
            "moonshotai/Kimi-K2-Base",
            "openai/gpt-oss-120b",
        ] {
            let text = format!("models: {{ any: {{ name: {id} }} }}\n");
            let config = crate::config::tests::load(&text, &[], &[]).unwrap();
            assert!(named(&config, "any").is_some(), "{id}");
        }
    }

    #[test]
    fn a_hugging_face_config_gives_what_the_file_does_not_state() {
        let text = "models: { q: { hf_config: q/config.json, num_layers: 2 } }\n";
        let of = |json: &str| {
            let mut config = crate::config::tests::load(text, &[], &[]).unwrap();
            assert_eq!(
                config.hf_configs(),
                [("q".to_owned(), "q/config.json".to_owned())]
            );
            config
                .complete_from_hf("q", "q/config.json", json)
                .map(|()| config)
        };
        let file = r#"{ "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
            "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "rms_norm_eps": 1e-6, "rope_theta": 1e6 }"#;
        let config = of(file).unwrap();
        let get = |key: &str| config.get(&format!("models.q.{key}")).unwrap().as_f64();
        assert_eq!(
            (get("num_layers"), get("ffn_hidden_size"), get("norm_eps")),
            (Some(2.0), Some(18944.0), Some(1e-6))
        );
        assert_eq!(config.get("models.q.qkv_bias"), Some(&json!(true)));
        let mixtral = r#"{ "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 64 }"#;
        let config = of(mixtral).unwrap();
        let get = |key: &str| config.get(&format!("models.q.{key}")).unwrap().as_u64();
        let experts = [
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
        ]
        .map(get);
        assert_eq!(experts, [Some(8), Some(2), Some(64)]);
        let gpt_oss = r#"{ "model_type": "gpt_oss", "num_local_experts": 32, "experts_per_token": 4, "intermediate_size": 64, "head_dim": 64,
            "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "rope_scaling": { "rope_type": "yarn", "factor": 32.0 } }"#;
        let config = of(gpt_oss).unwrap();
        let get = |key: &str| config.get(&format!("models.q.{key}")).unwrap().as_u64();
        let windows = [
            "moe_intermediate_size",
            "sliding_window",
            "sliding_window_pattern",
        ]
        .map(get);
        assert_eq!(windows, [Some(64), Some(128), Some(2)]);
        let deepseek = r#"{ "model_type": "deepseek_v3", "n_routed_experts": 256, "n_shared_experts": 2, "num_experts_per_tok": 8,
            "moe_intermediate_size": 64, "first_k_dense_replace": 3, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1, "num_nextn_predict_layers": 1 }"#;
        let config = of(deepseek).unwrap();
        let get = |key: &str| {
            config
                .get(&format!("models.q.{key}"))
                .and_then(Value::as_u64)
        };
        assert_eq!(get("shared_expert_intermediate_size"), Some(128));
        assert_eq!(get("first_k_dense_replace"), Some(3));
        assert_eq!(
            get("num_nextn_predict_layers"),
            Some(0),
            "transformers trains none"
        );
        // What a Mistral does not state is a window of 4096 tokens, and null is none.
        for (stated, window) in [
            ("", 4096),
            (r#", "sliding_window": null"#, 0),
            (r#", "sliding_window": 64"#, 64),
        ] {
            let config = of(&format!(r#"{{ "model_type": "mistral"{stated} }}"#)).unwrap();
            let found = config
                .get("models.q.sliding_window")
                .and_then(Value::as_u64);
            assert_eq!(found, Some(window), "{stated}");
        }
        let config = of(file).unwrap();
        let origin = config
            .effective()
            .find(|(path, ..)| *path == "models.q.hidden_size")
            .unwrap()
            .2;
        assert_eq!(origin.to_string(), "q/config.json");
        // What config.yaml states (here num_layers) is not asked of the file.
        of(&file.replace("28, \"hidden", "1.5, \"hidden")).unwrap();
        for (json, why) in [
            ("[", "is not JSON"),
            (
                "{\"model_type\": \"mamba\"}",
                "has the model_type \"mamba\"",
            ),
            (
                r#"{ "model_type": "qwen3moe" }"#,
                "has the model_type \"qwen3moe\"; did you mean `qwen3_moe`?",
            ),
            (
                r#"{ "model_type": "qwen3" }"#,
                "has no head_dim, which qwen3 needs",
            ),
            (
                r#"{ "model_type": "mixtral", "intermediate_size": 8, "num_experts_per_tok": 2 }"#,
                "has no num_experts, which mixtral needs",
            ),
            (
                r#"{ "model_type": "qwen3_moe", "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
                    "head_dim": 8, "mlp_only_layers": [0] }"#,
                "states mlp_only_layers [0]; here it is []: every layer has experts",
            ),
            (
                r#"{ "model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8 }"#,
                "has no kv_lora_rank, which deepseek_v3 needs",
            ),
            (
                r#"{ "model_type": "qwen2", "use_sliding_window": true }"#,
                "states use_sliding_window true; here it is false: no layer has a window",
            ),
            (
                "{\"model_type\": \"llama\", \"hidden_size\": 1.5}",
                "q/config.json does not fit: `models.q.hidden_size` must be a whole number of at least 1, not 1.5",
            ),
            (
                "{\"model_type\": \"gpt2\", \"n_embd\": 8}",
                "has no n_positions",
            ),
        ] {
            let problem = of(json).unwrap_err();
            assert!(
                problem.message.contains(why)
                    && problem.position() == Some(("config.yaml".into(), 1, 27)),
                "{problem}"
            );
        }
    }
}

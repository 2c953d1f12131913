//! Shapes of models that config.yaml only names: from the built-in table, or from a Hugging Face
//! config.json.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    layers::{Config, Layer},
    nested,
};
use crate::error::Problem;

/// An entry of `models.toml`.
#[derive(Debug, Deserialize)]
pub(super) struct KnownModel {
    pub name: String,
    pub names: Vec<String>,
    num_parameters: u64,
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

/// Keys of `models.<id>`, and what they are called in a config.json: of most models, and of GPT-2.
const HF_KEYS: [(&str, &str, &str); 9] = [
    ("num_layers", "num_hidden_layers", "n_layer"),
    ("hidden_size", "hidden_size", "n_embd"),
    ("ffn_hidden_size", "intermediate_size", "n_inner"),
    ("num_attention_heads", "num_attention_heads", "n_head"),
    ("num_kv_heads", "num_key_value_heads", ""),
    ("head_dim", "head_dim", ""),
    ("vocab_size", "vocab_size", ""),
    ("rope_theta", "rope_theta", ""),
    ("norm_eps", "rms_norm_eps", "layer_norm_epsilon"),
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
    if !["llama", "qwen2", "mistral", "gpt2"].contains(&architecture) {
        return Err(format!(
            "has the model_type {architecture:?}; llama, qwen2, mistral and gpt2 are known"
        ));
    }
    let is_gpt2 = architecture == "gpt2";
    let mut shape = vec![("architecture".to_owned(), json!(architecture))];
    let mut state = |key: &str, value: Value| shape.push((key.to_owned(), value));
    for (key, usual, of_gpt2) in HF_KEYS {
        let stated = [usual, of_gpt2].map(|name| &file[name]);
        if let Some(value) = stated.into_iter().find(|value| value.is_number()) {
            state(key, value.clone());
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
    let has_bias = is_gpt2 || architecture == "qwen2" || file["attention_bias"] == true;
    state("qkv_bias", json!(has_bias));
    let kind = rotary["rope_type"].as_str();
    let scaling = match kind.is_some_and(|kind| kind != "default") {
        true => rotary,
        false => &file["rope_scaling"],
    };
    for key in HF_SCALING.into_iter().filter(|_| scaling.is_object()) {
        if !scaling[key].is_number() {
            return Err(format!(
                "scales RoPE in a way that is not known here: it has no {key}"
            ));
        }
        state(&format!("rope_scaling.{key}"), scaling[key].clone());
    }
    Ok(shape)
}

/// The entry that a model's names mean, if they mean one.
fn named(config: &Config, id: &str) -> Option<&'static KnownModel> {
    let text = |key: &str| {
        config
            .get(&format!("models.{id}.{key}"))
            .and_then(Value::as_str)
    };
    // Behind a folder's or a publisher's name, as on Hugging Face's hub.
    let last = |name: &'static str| -> Option<&str> {
        let name = text(name)?.trim_end_matches('/');
        name.rsplit('/').next()
    };
    let recipe = text("nemo_recipe").map(|recipe| recipe.split('.').next().unwrap_or(recipe));
    let [name, full_name, tokenizer] = ["name", "full_name", "tokenizer_path"].map(last);
    let names = [name, full_name, tokenizer, recipe, Some(id)];
    names.into_iter().flatten().find_map(|name| {
        let plain = plain(name);
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

    use tprimat_job::{ModelShape, count_parameters};

    use super::*;

    #[test]
    fn the_table_has_the_publishers_parameter_counts_and_every_name_once() {
        let mut names = BTreeSet::new();
        for model in known_models() {
            for name in &model.names {
                assert!(names.insert(plain(name)), "{name} names two models");
            }
            let number = |key: &str| model.shape.get(key).and_then(Value::as_u64);
            let whole = |key: &str| number(key).unwrap_or_else(|| panic!("no {key}"));
            let shape = ModelShape {
                architecture: model.shape["architecture"].as_str().unwrap().to_owned(),
                num_layers: whole("num_layers"),
                hidden_size: whole("hidden_size"),
                ffn_hidden_size: whole("ffn_hidden_size"),
                num_attention_heads: whole("num_attention_heads"),
                num_kv_heads: whole("num_kv_heads"),
                head_dim: number("head_dim")
                    .unwrap_or(whole("hidden_size") / whole("num_attention_heads")),
                vocab_size: whole("vocab_size"),
                max_position_embeddings: number("max_position_embeddings").unwrap_or(0),
                tie_embeddings: model.shape["tie_embeddings"].as_bool().unwrap(),
                qkv_bias: model.shape["qkv_bias"].as_bool().unwrap(),
                ..ModelShape::default()
            };
            let keys = model.shape.keys().map(|key| format!("models.any.{key}"));
            let any = crate::config::tests::load("models: { any: {} }\n", &[], &[]).unwrap();
            keys.for_each(|key| _ = any.resolve(&key).unwrap());
            assert_eq!(
                count_parameters(&shape),
                Some(model.num_parameters),
                "{}",
                model.name
            );
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

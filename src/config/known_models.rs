//! Shapes of models that config.yaml only names: from the built-in table, or from a Hugging Face
//! config.json.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    layers::{Config, Layer},
    resolve::Leaf,
};
use crate::error::Problem;

/// An entry of `models.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KnownModel {
    pub name: String,
    pub names: Vec<String>,
    architecture: String,
    num_layers: u64,
    hidden_size: u64,
    ffn_hidden_size: u64,
    num_attention_heads: u64,
    num_kv_heads: u64,
    head_dim: Option<u64>,
    vocab_size: u64,
    max_position_embeddings: Option<u64>,
    rope_theta: Option<u64>,
    rope_factor: Option<u64>,
    norm_eps: f64,
    tie_embeddings: bool,
    qkv_bias: bool,
    num_parameters: u64,
}

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
        #[serde(deny_unknown_fields)]
        struct File {
            model: Vec<KnownModel>,
        }
        let file: File = toml::from_str(include_str!("models.toml")).expect("a test reads it");
        file.model
    });
    &TABLE
}

impl KnownModel {
    /// Its keys of config.yaml.
    fn shape(&self) -> Vec<(&'static str, Value)> {
        let optional = |key, value: Option<u64>| value.map(|value| (key, json!(value)));
        let mut shape = vec![
            ("architecture", json!(self.architecture)),
            ("num_layers", json!(self.num_layers)),
            ("hidden_size", json!(self.hidden_size)),
            ("ffn_hidden_size", json!(self.ffn_hidden_size)),
            ("num_attention_heads", json!(self.num_attention_heads)),
            ("num_kv_heads", json!(self.num_kv_heads)),
            ("vocab_size", json!(self.vocab_size)),
            ("norm_eps", json!(self.norm_eps)),
            ("tie_embeddings", json!(self.tie_embeddings)),
            ("qkv_bias", json!(self.qkv_bias)),
        ];
        shape.extend(optional("head_dim", self.head_dim));
        shape.extend(optional(
            "max_position_embeddings",
            self.max_position_embeddings,
        ));
        shape.extend(optional("rope_theta", self.rope_theta));
        if let Some(factor) = self.rope_factor {
            shape.extend([
                ("rope_scaling.factor", json!(factor)),
                ("rope_scaling.low_freq_factor", json!(1)),
                ("rope_scaling.high_freq_factor", json!(4)),
                ("rope_scaling.original_max_position_embeddings", json!(8192)),
            ]);
        }
        shape
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

/// Does somebody state this key of a model, rather than leave it to a default?
fn is_stated(config: &Config, id: &str, key: &str) -> bool {
    let leaf = config.tree.leaf(&format!("models.{id}.{key}"));
    leaf.is_some_and(|(_, layer)| *layer >= Layer::File)
}

/// Gives a model the keys of `shape` that it does not state. `from` says where they come from.
fn complete(config: &mut Config, id: &str, shape: Vec<(&'static str, Value)>, from: String) {
    let layer = Layer::Model(config.model_sources.len());
    config.model_sources.push(from);
    // Scaling is one thing: a part of it is not completed from elsewhere.
    let is_scaled = config.contains(&format!("models.{id}.rope_scaling"));
    for (key, value) in shape {
        if is_stated(config, id, key) || key.starts_with("rope_scaling") && is_scaled {
            continue;
        }
        let mut keys = vec!["models", id];
        keys.extend(key.split('.'));
        let node = keys
            .iter()
            .try_fold(super::tree::ROOT, |node, key| config.tree.enter(node, key));
        if let Some(node) = node {
            config.tree.set(node, value, layer);
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
        let shape = serde_json::from_str(text)
            .map_err(|error| format!("is not JSON: {error}"))
            .and_then(|file| hf_shape(&file));
        let accepted = shape.and_then(|shape| {
            let is_open = |(key, _): &(&str, Value)| !is_stated(self, id, key);
            let accept = |(key, value): (&'static str, Value)| {
                if value.is_null() {
                    return Err("has no n_positions".to_owned());
                }
                let leaf = Leaf::find(&self.tree, &format!("models.{id}.{key}"));
                let value = leaf.and_then(|leaf| leaf.accept(value));
                Ok((
                    key,
                    value.map_err(|problem| format!("does not fit: {}", problem.message))?,
                ))
            };
            // What config.yaml states is not asked of the file.
            let open = shape.into_iter().filter(is_open);
            open.map(accept).collect::<Result<_, String>>()
        });
        let shape = accepted.map_err(|why| {
            let at = format!("models.{id}.hf_config");
            self.problem_at(&at, format!("{path} {why}"), "this file")
        })?;
        complete(self, id, shape, path.to_owned());
        self.fill_settings();
        Ok(())
    }
}

/// The keys of config.yaml that a Hugging Face `config.json` states; the error completes "the file
/// …".
fn hf_shape(file: &Value) -> Result<Vec<(&'static str, Value)>, String> {
    let architecture = file["model_type"].as_str().unwrap_or_default();
    if !["llama", "qwen2", "mistral", "gpt2"].contains(&architecture) {
        return Err(format!(
            "has the model_type {architecture:?}; llama, qwen2, mistral and gpt2 are known"
        ));
    }
    let is_gpt2 = architecture == "gpt2";
    let mut shape = vec![("architecture", json!(architecture))];
    for (key, names) in [
        ("num_layers", ["num_hidden_layers", "n_layer"]),
        ("hidden_size", ["hidden_size", "n_embd"]),
        ("ffn_hidden_size", ["intermediate_size", "n_inner"]),
        ("num_attention_heads", ["num_attention_heads", "n_head"]),
        ("num_kv_heads", ["num_key_value_heads", ""]),
        ("head_dim", ["head_dim", ""]),
        ("vocab_size", ["vocab_size", ""]),
        ("rope_theta", ["rope_theta", ""]),
        ("norm_eps", ["rms_norm_eps", "layer_norm_epsilon"]),
    ] {
        let stated = names
            .iter()
            .map(|name| &file[*name])
            .find(|value| value.is_number());
        shape.extend(stated.map(|value| (key, value.clone())));
    }
    // Transformers 5 writes the rotary settings into one table.
    let rotary = &file["rope_parameters"];
    if !is_gpt2 && !file["rope_theta"].is_number() {
        let theta = &rotary["rope_theta"];
        // What the file leaves out is what transformers takes for it.
        shape.push((
            "rope_theta",
            if theta.is_number() {
                theta.clone()
            } else {
                json!(10_000.0)
            },
        ));
    }
    if is_gpt2 {
        let hidden = file["n_embd"].as_u64().ok_or("has no n_embd")?;
        if !file["n_inner"].is_number() {
            shape.push(("ffn_hidden_size", json!(hidden * 4)));
        }
        shape.push(("max_position_embeddings", file["n_positions"].clone()));
    }
    // What the file leaves out is what transformers takes for it.
    shape.push((
        "tie_embeddings",
        json!(file["tie_word_embeddings"].as_bool().unwrap_or(is_gpt2)),
    ));
    let has_bias = is_gpt2 || architecture == "qwen2" || file["attention_bias"] == true;
    shape.push(("qkv_bias", json!(has_bias)));
    let is_scaled = rotary["rope_type"]
        .as_str()
        .is_some_and(|kind| kind != "default");
    let scaling = if is_scaled {
        rotary
    } else {
        &file["rope_scaling"]
    };
    if scaling.is_object() {
        for (to, from) in [
            ("rope_scaling.factor", "factor"),
            ("rope_scaling.low_freq_factor", "low_freq_factor"),
            ("rope_scaling.high_freq_factor", "high_freq_factor"),
            (
                "rope_scaling.original_max_position_embeddings",
                "original_max_position_embeddings",
            ),
        ] {
            if !scaling[from].is_number() {
                return Err(format!(
                    "scales RoPE in a way that is not known here: it has no {from}"
                ));
            }
            shape.push((to, scaling[from].clone()));
        }
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
    let tokenizer = text("tokenizer_path").map(|path| {
        path.trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or(path)
    });
    let recipe = text("nemo_recipe").map(|recipe| recipe.split('.').next().unwrap_or(recipe));
    let names = [text("name"), text("full_name"), tokenizer, recipe, Some(id)];
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
fn contradiction(
    config: &Config,
    id: &str,
    known: &KnownModel,
    shape: &[(&str, Value)],
) -> Option<Problem> {
    let counted = ("num_parameters", json!(known.num_parameters));
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
            let shape = ModelShape {
                architecture: model.architecture.clone(),
                num_layers: model.num_layers,
                hidden_size: model.hidden_size,
                ffn_hidden_size: model.ffn_hidden_size,
                num_attention_heads: model.num_attention_heads,
                num_kv_heads: model.num_kv_heads,
                head_dim: model
                    .head_dim
                    .unwrap_or(model.hidden_size / model.num_attention_heads),
                vocab_size: model.vocab_size,
                max_position_embeddings: model.max_position_embeddings.unwrap_or(0),
                tie_embeddings: model.tie_embeddings,
                qkv_bias: model.qkv_bias,
                ..ModelShape::default()
            };
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

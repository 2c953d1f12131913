//! The built-in table of models: the shape of one that config.yaml only names.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use super::layers::{Config, Layer};
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
        shape.extend(optional("max_position_embeddings", self.max_position_embeddings));
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
        let Some(known) = named(config, &id) else { continue };
        let shape = known.shape();
        let lacks = |key: &str| config.get(&format!("models.{id}.{key}")).is_none();
        let needed =
            ["architecture", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size"];
        if !needed.iter().any(|key| lacks(key)) {
            continue;
        }
        if let Some(other) = contradiction(config, &id, known, &shape) {
            config.notes.push(other);
            continue;
        }
        let Some(model) = config.tree.find(&format!("models.{id}")).map(|node| node.path.clone()) else { continue };
        // Scaling is one thing: a part of it is not completed from elsewhere.
        let is_scaled = config.contains(&format!("{model}.rope_scaling"));
        for (key, value) in shape {
            if key.starts_with("rope_scaling") && is_scaled || config.get(&format!("{model}.{key}")).is_some() {
                continue;
            }
            let mut keys = vec!["models", id.as_str()];
            keys.extend(key.split('.'));
            let node = keys.iter().try_fold(super::tree::ROOT, |node, key| config.tree.enter(node, key));
            if let Some(node) = node {
                config.tree.set(node, value, Layer::KnownModel(&known.name));
            }
        }
    }
}

/// The entry that a model's names mean, if they mean one.
fn named(config: &Config, id: &str) -> Option<&'static KnownModel> {
    let text = |key: &str| config.get(&format!("models.{id}.{key}")).and_then(Value::as_str);
    let tokenizer = text("tokenizer_path").map(|path| path.trim_end_matches('/').rsplit('/').next().unwrap_or(path));
    let recipe = text("nemo_recipe").map(|recipe| recipe.split('.').next().unwrap_or(recipe));
    let names = [text("name"), text("full_name"), tokenizer, recipe, Some(id)];
    names.into_iter().flatten().find_map(|name| {
        let plain = plain(name);
        known_models().iter().find(|model| model.names.iter().any(|known| self::plain(known) == plain))
    })
}

/// Without case, blanks and punctuation.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// A stated key that is not the known model's: then the name says something else, and nothing is filled in.
fn contradiction(config: &Config, id: &str, known: &KnownModel, shape: &[(&str, Value)]) -> Option<Problem> {
    let counted = ("num_parameters", json!(known.num_parameters));
    for (key, value) in shape.iter().chain([&counted]) {
        let path = format!("models.{id}.{key}");
        let Some(stated) = config.get(&path) else { continue };
        let (a, b) = (stated.as_f64(), value.as_f64());
        // A count of parameters is rounded in a name.
        let within = if *key == "num_parameters" { 0.02 } else { 1e-9 };
        let agrees = stated == value || a.zip(b).is_some_and(|(a, b)| (a - b).abs() <= within * b.abs());
        if !agrees {
            let message = format!("`models.{id}` is named like {}, whose {key} is {value}, not {stated}", known.name);
            return Some(config.problem_at(&path, message, "nothing is taken from the built-in table of models"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::{ModelShape, shape::count_parameters};

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
                head_dim: model.head_dim.unwrap_or(model.hidden_size / model.num_attention_heads),
                vocab_size: model.vocab_size,
                max_position_embeddings: model.max_position_embeddings.unwrap_or(0),
                tie_embeddings: model.tie_embeddings,
                qkv_bias: model.qkv_bias,
                ..ModelShape::default()
            };
            assert_eq!(count_parameters(&shape), Some(model.num_parameters), "{}", model.name);
        }
    }
}

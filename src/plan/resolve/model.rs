//! The shape of a model, and the files that it reads.

use std::collections::BTreeMap;

use serde_json::Value;

use super::SettingsReader;
use crate::{
    config::{Config, NEEDED_SHAPE},
    job::{ModelShape, RopeScaling, count_parameters},
    plan::DataKind,
};

/// The shape that config.yaml gives a model, for runs that are no cell of a matrix.
#[must_use]
pub fn model_shape(config: &Config, id: &str) -> Option<ModelShape> {
    if !config.children("models").any(|known| known == id) {
        return None;
    }
    let nothing = crate::config::Values::default();
    let mut r = SettingsReader::new(config.view(&nothing, &[]));
    let named = named_files(&mut r, id);
    let shape = model(&mut r, id, &named);
    shape.filter(|_| r.problems.is_empty())
}

pub(super) fn named_files(
    r: &mut SettingsReader,
    model: &str,
) -> BTreeMap<DataKind, (String, String)> {
    let kinds = [DataKind::Dataset, DataKind::Tokenizer];
    kinds
        .into_iter()
        .filter_map(|kind| Some((kind, named_file(r, model, kind)?)))
        .collect()
}

/// What a model's dataset or tokenizer is called, and its path; nothing where the path is not set,
/// or empty.
fn named_file(r: &mut SettingsReader, model: &str, kind: DataKind) -> Option<(String, String)> {
    let at = |what: &str| format!("models.{model}.{}_{what}", kind.name());
    let path = r.string(&at("path")).filter(|path| !path.is_empty())?;
    let stated = r.string(&at("name")).filter(|name| !name.is_empty());
    let Some(name) = stated.or_else(|| kind.name_in(&path)) else {
        r.problem(
            &at("path"),
            format!("`{path}` does not end with a name"),
            &format!("give it a {}_name", kind.name()),
        );
        return None;
    };
    Some((name, path))
}

/// None: the shape is not known, which is one problem and says all that is missing.
pub(super) fn model(
    r: &mut SettingsReader,
    model: &str,
    named: &BTreeMap<DataKind, (String, String)>,
) -> Option<ModelShape> {
    if !is_complete(r, model) {
        return None;
    }
    let at = |key: &str| format!("models.{model}.{key}");
    let heads = r.positive(&at("num_attention_heads"));
    let hidden = r.positive(&at("hidden_size"));
    let head_dim = r.u64(&at("head_dim"));
    if head_dim.is_none() && !hidden.is_multiple_of(heads) {
        let message =
            format!("`{model}`: a hidden size of {hidden} does not divide by {heads} heads");
        r.problem(
            &at("hidden_size"),
            message,
            "hidden_size % num_attention_heads must be 0, or head_dim stated",
        );
    }
    let rope_scaling = r.view.table(&at("rope_scaling"));
    let mut shape = ModelShape {
        architecture: r.word(&at("architecture")).to_lowercase(),
        num_layers: r.positive(&at("num_layers")),
        hidden_size: hidden,
        ffn_hidden_size: r.positive(&at("ffn_hidden_size")),
        num_attention_heads: heads,
        num_kv_heads: r.u64(&at("num_kv_heads")).unwrap_or(heads),
        head_dim: head_dim.unwrap_or(hidden / heads),
        vocab_size: r.positive(&at("vocab_size")),
        max_position_embeddings: r.u64(&at("max_position_embeddings")).unwrap_or(0),
        rope_theta: r.f64(&at("rope_theta")).unwrap_or(0.0),
        rope_scaling: None,
        norm_eps: r.real(&at("norm_eps")),
        tie_embeddings: r.flag(&at("tie_embeddings")),
        qkv_bias: r.flag(&at("qkv_bias")),
        num_parameters: 0,
        dataset: named.get(&DataKind::Dataset).map(|(name, _)| name.clone()),
        tokenizer: named
            .get(&DataKind::Tokenizer)
            .map(|(name, _)| name.clone()),
        nemo_recipe: r
            .string(&at("nemo_recipe"))
            .map(|recipe| recipe.trim_end_matches(".pretrain_recipe").to_owned()),
        primus_config: r.string(&at("primus_config")),
    };
    if !rope_scaling.is_empty() {
        match serde_json::from_value::<RopeScaling>(Value::Object(
            rope_scaling.into_iter().collect(),
        )) {
            Ok(scaling) => shape.rope_scaling = Some(scaling),
            Err(e) => r.problem(
                &at("rope_scaling"),
                format!("rope_scaling of `{model}`: {e}"),
                "here",
            ),
        }
    }
    count(r, model, &mut shape);
    Some(shape)
}

/// Is all stated that a shape needs? If not, one problem says all that is missing.
fn is_complete(r: &mut SettingsReader, model: &str) -> bool {
    let at = |key: &str| format!("models.{model}.{key}");
    let missing: Vec<&str> = NEEDED_SHAPE
        .into_iter()
        .filter(|key| r.view.get(&at(key)).is_none())
        .collect();
    if missing.is_empty() {
        return true;
    }
    if r.view.is_faulty_around(&at("num_layers")) {
        return false;
    }
    let missing = missing.join(", ");
    let problem = match r.view.unlike_built_in(model) {
        Some(unlike) => {
            let mut problem = unlike.clone();
            problem.message = format!("{}, so its {missing} are not known", problem.message);
            problem.help("correct this line, or state the whole shape of a model of your own")
        }
        None => {
            let message = format!("`models.{model}` lacks {missing}");
            let problem = r.view.problem_at(
                &format!("models.{model}"),
                message,
                "its shape is not known",
            );
            problem.help("state them, name a Hugging Face config.json as `hf_config`, or give it the `name` of a model whose shape is built in, as in `name: Llama 3.1 8B`")
        }
    };
    r.push(problem);
    false
}

/// Sets the number of parameters, which must be about the one that is stated.
fn count(r: &mut SettingsReader, model: &str, shape: &mut ModelShape) {
    let at = |key: &str| format!("models.{model}.{key}");
    let tolerance = r.real("validation.num_parameters_tolerance");
    let Some(count) = count_parameters(shape) else {
        r.problem(
            &at("architecture"),
            format!(
                "`{}` is not an architecture tprimat can count",
                shape.architecture
            ),
            "expected llama, qwen2, mistral or gpt2",
        );
        return;
    };
    shape.num_parameters = count;
    if let Some(stated) = r.f64(&at("num_parameters"))
        && (stated - count as f64).abs() > tolerance * count as f64
    {
        r.problem(
            &at("num_parameters"),
            format!("`{model}` is said to have {stated} parameters, its shape has {count}"),
            &format!("more than {} % off", tolerance * 100.0),
        );
    }
}

//! The shape of a model, and the files that it reads.

use std::collections::BTreeMap;

use serde_json::Value;

use super::SettingsReader;
use crate::{
    config::{
        Config, NEEDED_SHAPE,
        schema::{self, Model, Validation},
    },
    error::did_you_mean,
    job::{
        ARCHITECTURES, ModelShape, OTHER, RopeScaling, architecture, architecture_names,
        count_parameters,
    },
    plan::DataKind,
};

/// The shape that config.yaml gives a model, for runs that are no cell of a matrix.
#[must_use]
pub fn model_shape(config: &Config, id: &str) -> Option<ModelShape> {
    if !config.children("models").any(|known| known == id) {
        return None;
    }
    let mut r = SettingsReader::new(config.general());
    let stated: Model = r.entry(id);
    let named = named_files(&mut r, id, &stated);
    let shape = model(&mut r, id, &stated, &named);
    shape.filter(|_| r.problems.is_empty())
}

/// What a model's dataset and tokenizer are called, and their paths; without those whose path is not
/// set, or empty.
pub(super) fn named_files(
    r: &mut SettingsReader,
    model: &str,
    stated: &Model,
) -> BTreeMap<DataKind, (String, String)> {
    let mut named = BTreeMap::new();
    for (kind, path, name) in [
        (
            DataKind::Dataset,
            &stated.dataset_path,
            &stated.dataset_name,
        ),
        (
            DataKind::Tokenizer,
            &stated.tokenizer_path,
            &stated.tokenizer_name,
        ),
    ] {
        let Some(path) = path.clone().filter(|path| !path.is_empty()) else {
            continue;
        };
        let name = name.clone().filter(|name| !name.is_empty());
        match name.or_else(|| kind.name_in(&path)) {
            Some(name) => drop(named.insert(kind, (name, path))),
            None => r.problem(
                &format!("models.{model}.{}_path", kind.name()),
                format!("`{path}` does not end with a name"),
                &format!("give it a {}_name", kind.name()),
            ),
        }
    }
    named
}

/// The model's shape. None where it is not known, which is one problem and says all that is missing.
pub(super) fn model(
    r: &mut SettingsReader,
    model: &str,
    stated: &Model,
    named: &BTreeMap<DataKind, (String, String)>,
) -> Option<ModelShape> {
    let name_of = |kind| named.get(&kind).map(|(name, _)| name.clone());
    if stated.architecture.as_deref() == Some(OTHER) {
        return Some(ModelShape {
            architecture: OTHER.to_owned(),
            num_parameters: stated.num_parameters.unwrap_or(0),
            vocab_size: stated.vocab_size.unwrap_or(0),
            dataset: name_of(DataKind::Dataset),
            tokenizer: name_of(DataKind::Tokenizer),
            ..ModelShape::default()
        });
    }
    let named = stated.architecture.as_deref().map(str::to_lowercase);
    if let Some(name) = named.filter(|name| architecture(name).is_none()) {
        unknown_architecture(r, model, &name);
        return None;
    }
    heads(r, model, stated);
    let (
        Some(architecture),
        Some(layers),
        Some(hidden),
        Some(ffn_hidden),
        Some(heads),
        Some(vocabulary),
    ) = (
        &stated.architecture,
        stated.num_layers,
        stated.hidden_size,
        stated.ffn_hidden_size,
        stated.num_attention_heads,
        stated.vocab_size,
    )
    else {
        incomplete(r, model);
        return None;
    };
    let mut shape = ModelShape {
        architecture: architecture.to_lowercase(),
        num_layers: layers,
        hidden_size: hidden,
        ffn_hidden_size: ffn_hidden,
        num_experts: stated.num_experts.unwrap_or(0),
        num_experts_per_tok: stated.num_experts_per_tok.unwrap_or(0),
        moe_intermediate_size: stated.moe_intermediate_size.unwrap_or(
            if has_one_width(&architecture.to_lowercase()) {
                ffn_hidden
            } else {
                0
            },
        ),
        shared_expert_intermediate_size: stated.shared_expert_intermediate_size,
        first_k_dense_replace: stated.first_k_dense_replace,
        num_nextn_predict_layers: stated.num_nextn_predict_layers,
        num_attention_heads: heads,
        num_kv_heads: stated.num_kv_heads.unwrap_or(heads),
        head_dim: match stated
            .qk_nope_head_dim
            .saturating_add(stated.qk_rope_head_dim)
        {
            0 => stated.head_dim.unwrap_or(hidden / heads),
            parts => parts,
        },
        q_lora_rank: stated.q_lora_rank,
        kv_lora_rank: stated.kv_lora_rank,
        qk_nope_head_dim: stated.qk_nope_head_dim,
        qk_rope_head_dim: stated.qk_rope_head_dim,
        v_head_dim: stated.v_head_dim,
        sliding_window: stated.sliding_window,
        sliding_window_pattern: stated.sliding_window_pattern,
        vocab_size: vocabulary,
        max_position_embeddings: stated.max_position_embeddings.unwrap_or(0),
        rope_theta: stated.rope_theta.unwrap_or(0.0),
        rope_scaling: rope_scaling(r, model, stated),
        norm_eps: stated.norm_eps,
        tie_embeddings: stated.tie_embeddings,
        qkv_bias: stated.qkv_bias,
        num_parameters: 0,
        dataset: name_of(DataKind::Dataset),
        tokenizer: name_of(DataKind::Tokenizer),
        nemo_recipe: stated
            .nemo_recipe
            .as_ref()
            .map(|recipe| recipe.trim_end_matches(".pretrain_recipe").to_owned()),
        primus_config: stated.primus_config.clone(),
    };
    if further(r, model, &shape) {
        count(r, model, stated.num_parameters, &mut shape);
    }
    Some(shape)
}

/// Whether the heads share what they are to share, as far as both sizes are stated.
fn heads(r: &mut SettingsReader, model: &str, stated: &Model) {
    let Some(heads) = stated.num_attention_heads.filter(|heads| *heads > 0) else {
        return;
    };
    let has_width = stated.head_dim.is_some() || stated.qk_nope_head_dim > 0;
    if let Some(hidden) = stated.hidden_size
        && !has_width
        && !hidden.is_multiple_of(heads)
    {
        r.problem(
            &format!("models.{model}.hidden_size"),
            format!("`{model}`: a hidden size of {hidden} does not divide by {heads} heads"),
            "hidden_size % num_attention_heads must be 0, or head_dim stated",
        );
    }
    if let Some(kv_heads) = stated.num_kv_heads
        && (kv_heads == 0 || heads % kv_heads != 0)
    {
        r.problem(
            &format!("models.{model}.num_kv_heads"),
            format!("`{model}`: {heads} heads cannot share {kv_heads} key-value heads"),
            "heads % KV heads must be 0",
        );
    }
}

/// An unknown name may be a slip or that of a successor, so all that are known are told.
fn unknown_architecture(r: &mut SettingsReader, model: &str, name: &str) {
    let problem = r.view.problem_at(
        &format!("models.{model}.architecture"),
        format!("`{name}` is not an architecture tprimat can count"),
        "not known",
    );
    let known = ARCHITECTURES.iter().map(|known| known.name);
    let near = did_you_mean(name, known).map_or_else(String::new, |near| near + " ");
    let names = architecture_names();
    r.push(problem.help(format!(
        "{near}expected {names}, or {OTHER}, for a model of which only the trainer knows the shape"
    )));
}

/// Whether the shape states what its architecture needs and nothing that it does not have; what is
/// wrong is one problem.
fn further(r: &mut SettingsReader, model: &str, shape: &ModelShape) -> bool {
    let name = &shape.architecture;
    let Some(known) = architecture(name) else {
        return false;
    };
    let stated = shape.further();
    let lacks = |(key, n): &&(&str, u64)| *n == 0 && known.needs.contains(key);
    let is_foreign = |(key, n): &&(&str, u64)| *n > 0 && !known.has(key);
    let (key, message, help) = if let Some((key, n)) = stated.iter().find(is_foreign) {
        let others = ARCHITECTURES.iter().filter(|other| other.has(key));
        let others: Vec<&str> = others.map(|other| other.name).collect();
        (
            *key,
            format!("`{model}` is a {name}, which has no {key}, and states {key} {n}"),
            format!("leave it out; {} may have it", others.join(", ")),
        )
    } else if stated.iter().any(|field| lacks(&field)) {
        let lacking = stated.iter().filter(lacks).map(|(key, _)| *key);
        let lacking = lacking.collect::<Vec<_>>().join(", ");
        (
            "architecture",
            format!("`{model}` is a {name} and lacks {lacking}"),
            format!("state {lacking}, as config.json of the model does"),
        )
    } else if shape.num_experts_per_tok > shape.num_experts {
        let (chosen, all) = (shape.num_experts_per_tok, shape.num_experts);
        (
            "num_experts_per_tok",
            format!("`{model}`: a token cannot pass through {chosen} of {all} experts"),
            "num_experts_per_tok must be at most num_experts".to_owned(),
        )
    } else if shape.first_k_dense_replace > shape.num_layers {
        let (dense, all) = (shape.first_k_dense_replace, shape.num_layers);
        (
            "first_k_dense_replace",
            format!("`{model}`: {dense} of {all} layers cannot be dense"),
            "first_k_dense_replace must be at most num_layers".to_owned(),
        )
    } else if shape.sliding_window == 0 && shape.sliding_window_pattern > 0 {
        (
            "sliding_window_pattern",
            format!("`{model}` says which layers have a window, and not how long it is"),
            "state sliding_window as well".to_owned(),
        )
    } else {
        return true;
    };
    let problem = r
        .view
        .problem_at(&format!("models.{model}.{key}"), message, "here");
    r.push(problem.help(help));
    false
}

/// All four numbers of a scaling, or none.
fn rope_scaling(r: &mut SettingsReader, model: &str, stated: &Model) -> Option<RopeScaling> {
    let stated = stated.rope_scaling.as_ref()?;
    if *stated == schema::RopeScaling::default() {
        return None;
    }
    let whole = || {
        Ok(RopeScaling {
            factor: stated.factor.ok_or("factor")?,
            low_freq_factor: stated.low_freq_factor.ok_or("low_freq_factor")?,
            high_freq_factor: stated.high_freq_factor.ok_or("high_freq_factor")?,
            original_max_position_embeddings: stated
                .original_max_position_embeddings
                .ok_or("original_max_position_embeddings")?,
        })
    };
    let scaling: Result<RopeScaling, &str> = whole();
    if let Err(missing) = scaling {
        r.problem(
            &format!("models.{model}.rope_scaling"),
            format!("rope_scaling of `{model}`: missing field `{missing}`"),
            "here",
        );
    }
    scaling.ok()
}

/// Are experts all that the layers have, of the width that the shape states once?
fn has_one_width(architecture: &str) -> bool {
    ["mixtral", "gpt_oss"].contains(&architecture)
}

/// One problem says all that a shape lacks.
fn incomplete(r: &mut SettingsReader, model: &str) {
    let at = |key: &str| format!("models.{model}.{key}");
    if r.view.is_faulty_around(&at("num_layers")) {
        return;
    }
    let name = r.view.get(&at("architecture")).and_then(Value::as_str);
    let name = name.unwrap_or_default().to_lowercase();
    let further = architecture(&name).map_or(&[][..], |known| known.needs);
    let further = further
        .iter()
        .filter(|key| **key != "moe_intermediate_size" || !has_one_width(&name));
    let missing: Vec<&str> = NEEDED_SHAPE
        .iter()
        .chain(further)
        .filter(|key| r.view.get(&at(key)).is_none_or(|value| *value == 0))
        .copied()
        .collect();
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
}

/// Sets the number of parameters, which must be about the one that is stated.
fn count(r: &mut SettingsReader, model: &str, stated: Option<u64>, shape: &mut ModelShape) {
    let at = |key: &str| format!("models.{model}.{key}");
    let tolerance = r.section::<Validation>().num_parameters_tolerance;
    let Some(count) = count_parameters(shape) else {
        let message = format!("the parameters of `{model}` cannot be counted");
        r.problem(&at("architecture"), message, "from this shape");
        return;
    };
    shape.num_parameters = count;
    if let Some(stated) = stated
        && stated.abs_diff(count) as f64 > tolerance * count as f64
    {
        r.problem(
            &at("num_parameters"),
            format!("`{model}` is said to have {stated} parameters, its shape has {count}"),
            &format!("more than {} % off", tolerance * 100.0),
        );
    }
}

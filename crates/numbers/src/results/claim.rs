//! What somebody says a run is: a job, as far as they say anything.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tprimat_job::{Job, ModelShape, OTHER};
use tprimat_logs::Trace;

use super::{
    parameters::{self, same_size},
    settings::{self, Declared, SETTINGS, Setting, agree, setting, show},
};

/// A build claims its whole job; an imported log only what came with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub job: Job,
    /// Settings that are claimed, by name; `None` = every one.
    pub fields: Option<BTreeSet<String>>,
    /// Settings whose values are tprimat's defaults and reach a command of the user's own by no way: a trainer that has
    /// others contradicts nobody.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unwritten: BTreeSet<String>,
}

/// Settings that a model's shape decides, beside [`ModelShape::further`]. Its constants cost no work,
/// so a name alone does not claim them.
const MODEL: [&str; 10] = [
    "architecture",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "tie_embeddings",
    "qkv_bias",
];

/// The names of all settings that a model's shape decides.
fn of_model() -> impl Iterator<Item = &'static str> {
    let further = ModelShape::default().further();
    MODEL.into_iter().chain(further.map(|(name, _)| name))
}

/// A log that states all of these states the model's shape in full; the flags beside them may be
/// left out.
const SIZES: [&str; 6] = [
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_kv_heads",
    "vocab_size",
];

/// What a log states of a model's shape. A vocabulary that is stated as padded alone is computed as such.
fn stated_of_shape(trace: &Trace, setting: &Setting) -> Option<Value> {
    let padded = || {
        let padded = self::setting("padded_vocab_size").filter(|_| setting.name == "vocab_size");
        padded?.effective(&trace.effective.0)
    };
    setting.effective(&trace.effective.0).or_else(padded)
}

/// The architecture whose parts a log names one by one, as Megatron's arguments do: Llama's, or that of
/// Qwen3, which differs by norms of queries and keys.
fn kind_of_parts(trace: &Trace) -> Option<&'static str> {
    let stated = &trace.effective.0;
    let is_on = |name: &str| stated.get(name).and_then(Value::as_bool) == Some(true);
    let is_word = |name: &str, word: &str| {
        let value = stated.get(name).and_then(Value::as_str);
        value.is_some_and(|value| value.eq_ignore_ascii_case(word))
    };
    let has_experts = ["num_experts", "num_moe_experts"]
        .iter()
        .filter_map(|name| stated.get(*name)?.as_u64())
        .any(|experts| experts > 1);
    let is_gated = is_on("swiglu") && is_word("normalization", "rmsnorm");
    let is_plain = !has_experts && !is_on("multi_latent_attention");
    let is_it = is_gated && is_plain && is_word("position_embedding_type", "rope");
    is_it.then_some(match is_on("qk_layernorm") {
        true => "qwen3",
        false => "llama",
    })
}

/// Is `field` the model's name, or one that its shape decides?
#[must_use]
pub fn is_of_model(field: &str) -> bool {
    ["model", "num_parameters"].contains(&field) || of_model().any(|name| name == field)
}

impl Claim {
    #[must_use]
    pub fn of(job: &Job) -> Self {
        Self {
            job: job.clone(),
            ..Self::default()
        }
    }

    /// Claims nothing but a model, if that.
    #[must_use]
    pub fn of_model(model: Option<ModelShape>) -> Self {
        let fields = model
            .iter()
            .flat_map(|_| of_model())
            .map(str::to_owned)
            .collect();
        Self {
            job: Job {
                model: model.unwrap_or_default(),
                ..Job::default()
            },
            fields: Some(fields),
            ..Self::default()
        }
    }

    /// Claims one more setting; its value is set in `job`.
    pub fn add(&mut self, field: &str) {
        debug_assert!(setting(field).is_some(), "{field}");
        if let Some(fields) = &mut self.fields {
            fields.insert(field.to_owned());
        }
    }

    #[must_use]
    pub fn covers(&self, field: &str) -> bool {
        self.fields
            .as_ref()
            .is_none_or(|fields| fields.contains(field))
    }

    /// Where the log states its model's shape in full, that shape replaces a model that nobody
    /// claimed, as one guessed from a file's name, or takes the place of none. Returns what it changes of
    /// a model that was guessed, as `vocab_size 151665, not 152064; …`; nothing if the shapes agree.
    ///
    /// The head dimension of a model that was not run means nothing: where the log states none, it
    /// is the hidden size divided by the heads, as for every model without one. Where that is not
    /// whole, the model is unknown, and its shape is not taken.
    pub fn take_shape(&mut self, trace: &Trace) -> Option<String> {
        let stated = |setting: &Setting| stated_of_shape(trace, setting);
        let is_full = SIZES
            .into_iter()
            .filter_map(setting)
            .all(|s| stated(s).and_then(|v| v.as_u64()).is_some_and(|n| n > 0));
        // A whole job is claimed by whoever wrote it down.
        if !is_full || self.fields.is_none() {
            return None;
        }
        let mut shape = serde_json::to_value(&self.job.model).ok()?;
        let declared = self.declared();
        let is_claimed = self.covers("num_layers");
        let names_its_kind = setting("architecture").and_then(stated).is_some();
        if !is_claimed && !names_its_kind {
            shape["architecture"] = kind_of_parts(trace)?.into();
        }
        let mut changed: Vec<&str> = Vec::new();
        let mut words = Vec::new();
        for setting in SETTINGS
            .iter()
            .filter(|s| of_model().any(|name| name == s.name))
        {
            let name = setting.name.as_str();
            let Some(own) = stated(setting) else {
                continue;
            };
            match declared.get(name) {
                Some(claimed) if agree(&own, claimed) => continue,
                Some(claimed) => {
                    let [is, was] = [&own, claimed].map(|value| show(Some(value)));
                    words.push(format!("{name} {is}, not {was}"));
                }
                // Nothing is claimed of it, and the log may say what it is.
                None if is_claimed => continue,
                None => {}
            }
            shape[name] = own;
            changed.push(name);
        }
        if changed.is_empty() {
            return None;
        }
        let mut model: ModelShape = serde_json::from_value(shape).ok()?;
        let states_head_dim = setting("head_dim").and_then(stated).is_some();
        // Some models have a head dimension of their own, which stays where what it usually follows
        // from stays.
        let moves = |name: &&str| ["hidden_size", "num_attention_heads"].contains(name);
        if !states_head_dim && changed.iter().any(moves) {
            let head_dim = model.hidden_size.checked_div(model.num_attention_heads)?;
            if head_dim * model.num_attention_heads != model.hidden_size {
                return None;
            }
            if head_dim != model.head_dim && is_claimed {
                words.push(format!(
                    "head_dim {head_dim} (hidden_size / num_attention_heads), not {}",
                    model.head_dim
                ));
            }
            model.head_dim = head_dim;
        }
        self.job.model = model;
        self.job.model.num_parameters = super::count_parameters(&self.job.model).unwrap_or(0);
        Some(words.join("; "))
    }

    /// The first size of the model by which a log shows that it is not the one that is claimed, as
    /// `num_layers 80, not 32`.
    #[must_use]
    pub fn other_shape(&self, trace: &Trace) -> Option<String> {
        let declared = self.declared();
        let words = |name: &str, own: &Value, claimed: &Value| {
            let [is, was] = [own, claimed].map(|value| show(Some(value)));
            format!("{name} {is}, not {was}")
        };
        let of_size = |name: &'static str| {
            let own = setting(name)?.effective(&trace.effective.0)?;
            let claimed = declared.get(name)?;
            (!agree(&own, claimed)).then(|| words(name, &own, claimed))
        };
        let of_count = || {
            let claimed = super::count_parameters(&self.job.model)?;
            let mut stated = parameters::stated(trace);
            let (name, other) = stated.find(|(_, count)| !same_size(*count, claimed))?;
            Some(words(name, &other.into(), &claimed.into()))
        };
        SIZES.into_iter().find_map(of_size).or_else(of_count)
    }

    /// What is claimed of each setting.
    pub(crate) fn declared(&self) -> Declared {
        let mut declared = settings::declared(&self.job);
        // Only the trainer knows the shape of such a model: whatever it states is right.
        let is_other = self.job.model.architecture == OTHER;
        declared.retain(|name, _| self.covers(name) && !(is_other && is_of_model(name)));
        declared
    }

    /// What is claimed of this one.
    pub(crate) fn declares(&self, name: &str) -> Option<Value> {
        self.declared().remove(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::results::stand_ins::shape;

    /// A log that states these sizes: layers, hidden, ffn, heads, key-value heads, vocabulary.
    fn log(sizes: [u64; 6], head_dim: Option<u64>) -> Trace {
        let mut trace = Trace::default();
        let stated = SIZES
            .into_iter()
            .zip(sizes)
            .chain(head_dim.map(|n| ("head_dim", n)));
        stated.for_each(|(name, value)| {
            drop(trace.effective.0.insert(name.to_owned(), value.into()))
        });
        trace
    }

    #[test]
    fn the_head_dimension_of_another_model_is_not_kept() {
        let of_7b = || {
            Claim::of_model(Some(shape(
                "qwen2",
                [28, 3584, 18944, 28, 4, 128, 152_064],
                false,
            )))
        };
        let of_half_b = [24, 896, 4864, 14, 2, 151_936];
        let mut claim = of_7b();
        let told = claim.take_shape(&log(of_half_b, None)).unwrap();
        let head_dim = "head_dim 64 (hidden_size / num_attention_heads), not 128";
        assert!(told.ends_with(head_dim), "{told}");
        let untied = shape("qwen2", [24, 896, 4864, 14, 2, 64, 151_936], false);
        assert_eq!(claim.job.model.head_dim, 64);
        assert_eq!(
            Some(claim.job.model.num_parameters),
            crate::results::count_parameters(&untied)
        );
        // What the log states counts, and so does what is claimed of the very model that was run.
        let mut claim = of_7b();
        claim.take_shape(&log(of_half_b, Some(96))).unwrap();
        assert_eq!(claim.job.model.head_dim, 96);
        let mut claim = Claim::of_model(Some(shape(
            "llama",
            [28, 1024, 3072, 16, 8, 128, 151_936],
            true,
        )));
        assert_eq!(
            claim.take_shape(&log([28, 1024, 3072, 16, 8, 151_936], None)),
            None
        );
        assert_eq!(claim.job.model.head_dim, 128);
        let mut claim = of_7b();
        assert_eq!(
            claim.take_shape(&log([24, 896, 4864, 15, 3, 151_936], None)),
            None
        );
        assert_eq!(claim.job, of_7b().job);
    }

    /// A model of which nothing is claimed is the one that the log states in full.
    #[test]
    fn the_shape_of_a_log_takes_the_place_of_none() {
        let sizes = [32, 4096, 14336, 32, 8, 128_256];
        let mut claim = Claim::of_model(None);
        let mut log = log(sizes, None);
        assert_eq!(claim.take_shape(&log), None, "no architecture");
        // Megatron names the parts, and may know the padded vocabulary alone.
        let mut parts = log.clone();
        parts.effective.0.remove("vocab_size");
        for (name, value) in [
            ("padded_vocab_size", json!(128_256)),
            ("swiglu", json!(true)),
            ("normalization", json!("RMSNorm")),
            ("position_embedding_type", json!("rope")),
        ] {
            parts.effective.0.insert(name.to_owned(), value);
        }
        let mut of_parts = claim.clone();
        assert_eq!(of_parts.take_shape(&parts).as_deref(), Some(""));
        assert_eq!(of_parts.job.model.architecture, "llama");
        assert_eq!(of_parts.job.model.vocab_size, 128_256);
        let experts = json!(8);
        parts.effective.0.insert("num_experts".to_owned(), experts);
        assert_eq!(claim.take_shape(&parts), None, "experts");
        let kind = json!("llama");
        log.effective.0.insert("architecture".to_owned(), kind);
        assert_eq!(claim.take_shape(&log).as_deref(), Some(""));
        let model = &claim.job.model;
        assert_eq!((model.num_layers, model.head_dim), (32, 128));
        assert_eq!(model.num_parameters, 8_030_261_248);
    }
}

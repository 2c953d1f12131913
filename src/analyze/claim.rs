//! What somebody says a run is: a job, as far as they say anything.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::settings::{SETTINGS, Setting};
use crate::plan::{Job, ModelShape};

/// A build claims its whole job; an imported log only what came with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub job: Job,
    /// Settings that are claimed, by name; `None` = every one.
    pub fields: Option<BTreeSet<String>>,
}

/// Settings that a model's shape decides. Its constants cost no work, so a name alone does not claim them.
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

/// Is `field` one that a model's shape decides?
#[must_use]
pub fn is_of_model(field: &str) -> bool {
    field == "num_parameters" || MODEL.contains(&field)
}

impl Claim {
    #[must_use]
    pub fn of(job: &Job) -> Self {
        Self { job: job.clone(), fields: None }
    }

    /// Claims nothing but a model, if that.
    #[must_use]
    pub fn of_model(model: Option<ModelShape>) -> Self {
        let fields = model.iter().flat_map(|_| MODEL).map(str::to_owned).collect();
        Self { job: Job { model: model.unwrap_or_default(), ..Job::default() }, fields: Some(fields) }
    }

    /// Claims one more setting; its value is set in `job`.
    pub fn add(&mut self, field: &str) {
        debug_assert!(SETTINGS.iter().any(|s| s.name == field), "{field}");
        if let Some(fields) = &mut self.fields {
            fields.insert(field.to_owned());
        }
    }

    #[must_use]
    pub fn covers(&self, field: &str) -> bool {
        self.fields.as_ref().is_none_or(|fields| fields.contains(field))
    }

    pub(super) fn declared(&self, setting: &Setting) -> Option<Value> {
        (setting.declared)(&self.job).filter(|_| self.covers(setting.name))
    }
}

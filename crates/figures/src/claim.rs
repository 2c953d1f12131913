//! What somebody says a run is: a job, as far as they say anything.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tprimat_job::{Job, ModelShape};
use tprimat_logs::Trace;

use super::settings::{SETTINGS, Setting, agree, show};

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

/// A log that states all of these states the model's shape in full; the flags beside them may be left out.
const SIZES: [&str; 6] =
    ["num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_kv_heads", "vocab_size"];

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

    /// Where the log states its model's shape in full, that shape replaces a model that nobody claimed, as one guessed from a
    /// file's name. Returns what it changes: `vocab_size 151665, not 152064; …`; nothing if the shapes agree.
    pub fn take_shape(&mut self, trace: &Trace) -> Option<String> {
        let stated = |setting: &Setting| setting.effective(&trace.effective.0);
        let is_full = SETTINGS
            .iter()
            .filter(|s| SIZES.contains(&s.name))
            .all(|s| stated(s).and_then(|v| v.as_u64()).is_some_and(|n| n > 0));
        // A whole job is claimed by whoever wrote it down.
        if !is_full || self.fields.is_none() {
            return None;
        }
        let mut shape = serde_json::to_value(&self.job.model).ok()?;
        let mut changes = Vec::new();
        for setting in SETTINGS.iter().filter(|s| MODEL.contains(&s.name)) {
            let (Some(own), Some(claimed)) = (stated(setting), self.declared(setting)) else { continue };
            if !agree(&own, &claimed) {
                changes.push(format!("{} {}, not {}", setting.name, show(Some(&own)), show(Some(&claimed))));
                shape[setting.name] = own;
            }
        }
        if changes.is_empty() {
            return None;
        }
        self.job.model = serde_json::from_value(shape).ok()?;
        self.job.model.num_parameters = super::count_parameters(&self.job.model).unwrap_or(0);
        Some(changes.join("; "))
    }

    pub(super) fn declared(&self, setting: &Setting) -> Option<Value> {
        (setting.declared)(&self.job).filter(|_| self.covers(setting.name))
    }
}

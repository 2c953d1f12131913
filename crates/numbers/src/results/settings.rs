//! The one table of settings, `table.toml`: what a job declares, where a trainer states it, and how
//! much hangs on it.
//!
//! Attestation and contract both walk it, so they cannot disagree about a name.

use std::{collections::BTreeMap, sync::LazyLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tprimat_job::{Job, ModelShape, Sharding};
use tprimat_logs::ARGUMENTS;

use super::unlisted;

/// How much hangs on a setting when two summaries are compared.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// The work itself, which decides the throughput: must agree.
    #[default]
    Workload,
    /// How the work is done: may differ, and is then named; under `identical_config` it must agree
    /// too.
    Execution,
    /// What the loss depends on, but not the speed: named; under `identical_config` it must agree
    /// too.
    Convergence,
}

/// A row of `table.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    pub name: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(skip)]
    pub tier: Tier,
    job: Option<String>,
    #[serde(default)]
    above: f64,
    none: Option<String>,
    when: Option<(String, Value)>,
    #[serde(default)]
    real: bool,
}

/// What is declared of each setting, by its name.
pub(crate) type Declared = BTreeMap<&'static str, Value>;

use Tier::{Convergence, Execution};

pub(crate) static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        workload: Vec<Setting>,
        execution: Vec<Setting>,
        convergence: Vec<Setting>,
    }
    let table: Table = toml::from_str(include_str!("table.toml")).expect("a table of our own");
    let tiers = [
        (Tier::Workload, table.workload),
        (Execution, table.execution),
        (Convergence, table.convergence),
    ];
    let rows = tiers
        .into_iter()
        .flat_map(|(tier, rows)| rows.into_iter().map(move |row| Setting { tier, ..row }));
    rows.collect()
});

/// The setting of the table with this name.
pub(crate) fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// What a job asks for, setting by setting.
pub(crate) fn declared(job: &Job) -> Declared {
    let job = serde_json::to_value(job).unwrap_or_default();
    let of = |setting: &'static Setting| Some((setting.name.as_str(), setting.declared(&job)?));
    SETTINGS.iter().filter_map(of).collect()
}

pub const TOKENS_PER_STEP: &str = "tokens_per_step";
pub const NUM_EXPERTS: &str = "num_experts";
pub const NUM_PARAMETERS: &str = "num_parameters";
pub const SLIDING_WINDOW: &str = "sliding_window";
pub const TASK: &str = "task";
pub const LORA_RANK: &str = "lora_rank";
pub const PRECISION: &str = "precision";
pub const DETERMINISTIC: &str = "deterministic";
pub const DATASET_DIGEST: &str = "dataset_digest";
pub const TOKENIZER_DIGEST: &str = "tokenizer_digest";

/// May two values of this setting be of one [`class`]?
pub fn has_classes(field: &str) -> bool {
    [PRECISION, "optimizer", "data"].contains(&field)
}

/// Values of a setting that are the same work at the same speed: one class. They are compared, and
/// the difference is named.
pub fn class<'a>(field: &str, value: &'a Value) -> Option<(&'a str, Tier)> {
    let text = value.as_str()?;
    match (field, text) {
        // The matrix units of all devices run both at one rate.
        (PRECISION, "bf16" | "fp16") => Some(("16-bit", Execution)),
        // `fp8`, `fp8_hybrid`, `fp8-delayed`, …; MXFP8 multiplies at the same rate, with scales of
        // its own for 32 values each.
        (PRECISION, _) if text.starts_with("fp8") || text.starts_with("mxfp8") => {
            Some(("fp8", Execution))
        }
        // The same states and operations; the weight decay enters at another place.
        ("optimizer", "adam" | "adamw") => Some(("adam", Convergence)),
        // Neither reads a file. Megatron's mock tokens count upwards, so the losses differ, but not
        // the speed.
        ("data", "mock" | "random") => Some(("made up", Convergence)),
        _ => None,
    }
}

/// The policy of warm-up: no setting of a trainer, but it may differ between summaries, and be
/// compared across.
pub const WARMUP: &str = "warmup";

/// Everything that `--across` can name.
pub fn fields() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|s| s.name.as_str()).chain([WARMUP])
}

/// The settings of the work that a job has a field for: the name, and the field as
/// `model.num_layers`.
pub fn work_fields() -> impl Iterator<Item = (&'static str, String)> {
    let work = SETTINGS.iter().filter(|s| s.tier == Tier::Workload);
    work.filter_map(|s| Some((s.name.as_str(), s.job.as_ref()?.get(1..)?.replace('/', "."))))
}

/// Is `name` one of [`fields`], or a name by which trainers state something else that cells are kept
/// apart by?
#[must_use]
pub fn known_field(name: &str) -> bool {
    fields().any(|field| field == name) || !is_in_table(name) && unlisted::tier(name).is_some()
}

/// Is it a setting of the table, by whichever of its names?
#[must_use]
pub fn is_in_table(name: &str) -> bool {
    SETTINGS
        .iter()
        .any(|s| s.names().any(|known| known == name))
}

/// Is it a count or size that most models and tasks have none of?
#[must_use]
pub fn is_further(name: &str) -> bool {
    let further = ModelShape::default().further();
    name == LORA_RANK || further.iter().any(|(further, _)| *further == name)
}

/// Is this one of the names of a setting of the table?
pub(super) fn is_called(of: &str, name: &str) -> bool {
    setting(of).is_some_and(|s| s.names().any(|known| known == name))
}

/// How much hangs on a setting, in the table or not; none where nothing does or nobody knows.
pub(crate) fn tier_of(name: &str) -> Option<Tier> {
    setting(name).map_or_else(|| unlisted::tier(name), |s| Some(s.tier))
}

impl Setting {
    /// What a job asks for; `None` where it asks for nothing.
    fn declared(&self, job: &Value) -> Option<Value> {
        let has_dataset = || !job["model"]["dataset"].is_null();
        let is_rotary = || job["model"]["rope_theta"].as_f64() > Some(0.0);
        match self.name.as_str() {
            "data" => return Some(if has_dataset() { "real" } else { "random" }.into()),
            "tokenizer_name" if !has_dataset() => return None,
            "rope_scaling_factor" if !is_rotary() => return None,
            _ => {}
        }
        let is_as = |(place, value): &(String, Value)| job.pointer(place) == Some(value);
        if !self.when.as_ref().is_none_or(is_as) {
            return None;
        }
        match job.pointer(self.job.as_deref()?) {
            None if self.name == "rope_scaling_factor" => Some(1.0.into()),
            Some(Value::String(word)) if word.is_empty() || self.none.as_ref() == Some(word) => {
                None
            }
            Some(Value::Number(number)) => {
                let value = number.as_f64().filter(|value| *value > self.above)?;
                Some(if self.real {
                    value.into()
                } else {
                    number.clone().into()
                })
            }
            value => value.filter(|value| !value.is_null()).map(canonical),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    /// What the trainer states, in canonical spelling.
    pub fn effective(&self, stated: &BTreeMap<String, Value>) -> Option<Value> {
        self.stated(stated).next().map(|(_, value)| value)
    }

    /// Every value that the trainer states, each with the name that it uses.
    pub fn stated<'a>(
        &'a self,
        stated: &'a BTreeMap<String, Value>,
    ) -> impl Iterator<Item = (&'a str, Value)> + 'a {
        let all = self.names();
        all.flat_map(move |name| lookup(stated, name).map(move |v| (name, canonical(v))))
    }

    /// Takes out all that the trainer states of it.
    pub fn forget(&self, stated: &mut BTreeMap<String, Value>) {
        for name in self.names() {
            stated.remove(name);
            for group in GROUPS {
                if let Some(Value::Object(group)) = stated.get_mut(group) {
                    group.remove(name);
                }
            }
        }
    }
}

/// Groups of settings that a job has.
const GROUPS: [&str; 4] = ["model", "data", "optimizer", "parallelism"];

/// A longer list is data rather than a setting.
const MOST_VALUES: usize = 64;

fn is_plain(value: &Value) -> bool {
    let is_scalar = |value: &Value| !(value.is_null() || value.is_object() || value.is_array());
    match value {
        Value::Array(all) => all.len() <= MOST_VALUES && all.iter().all(is_scalar),
        value => is_scalar(value),
    }
}

/// Arguments of a trainer that the table does not have. They are many, and most of them have the value that nobody set, so words
/// within their names say nothing: what one of them means is known by its whole name only.
fn arguments(stated: &BTreeMap<String, Value>) -> impl Iterator<Item = (String, Value)> {
    let all = stated.get(ARGUMENTS).and_then(Value::as_object);
    let unknown = all.into_iter().flatten().filter(|(name, value)| {
        is_plain(value) && !is_in_table(name) && !stated.contains_key(*name)
    });
    unknown.map(|(name, value)| (name.clone(), canonical(value)))
}

fn is_known_argument(name: &str) -> bool {
    unlisted::has_whole_name(name) && tier_of(name).is_some()
}

/// What a trainer states and the table does not have, by name; `a.b` of what stands in a group.
pub fn unlisted(stated: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let is_known = is_in_table;
    let known_arguments = arguments(stated).filter(|(name, _)| is_known_argument(name));
    let mut found: BTreeMap<String, Value> = known_arguments.collect();
    for (name, value) in stated.iter().filter(|(name, _)| *name != ARGUMENTS) {
        match value {
            Value::Object(group) => {
                for (inner, value) in group.iter().filter(|(_, value)| is_plain(value)) {
                    let full = format!("{name}.{inner}");
                    if !(is_known(&full) || (GROUPS.contains(&&**name) && is_known(inner))) {
                        found.insert(full, canonical(value));
                    }
                }
            }
            value if is_plain(value) && !is_known(name) => {
                found.insert(name.clone(), canonical(value));
            }
            _ => {}
        }
    }
    found
}

/// Of these, what is in no contract: what is harmless, and what nobody knows the meaning of.
pub fn without_meaning(stated: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let mut found = unlisted(stated);
    found.retain(|name, _| tier_of(name).is_none());
    let is_told = |name: &str| !is_known_argument(name) && !unlisted::is_harmless(name);
    found.extend(arguments(stated).filter(|(name, _)| is_told(name)));
    found
}

/// Every name of the settings that a trainer does not state.
pub fn names_not_stated(stated: &BTreeMap<String, Value>) -> impl Iterator<Item = &'static str> {
    SETTINGS
        .iter()
        .filter(|setting| setting.effective(stated).is_none())
        .flat_map(Setting::names)
}

/// `name` at the top or in one of the groups that a job has; `a.b` looks `b` up in `a`.
pub(super) fn lookup<'a>(
    stated: &'a BTreeMap<String, Value>,
    name: &'a str,
) -> impl Iterator<Item = &'a Value> {
    let nested = |group: &str, name: &str| stated.get(group).and_then(|g| g.get(name));
    let grouped = GROUPS.into_iter().filter_map(move |g| nested(g, name));
    let dotted = name
        .split_once('.')
        .and_then(|(group, name)| nested(group, name));
    stated
        .get(name)
        .into_iter()
        .chain(dotted)
        .chain(grouped)
        .filter(|v| !v.is_null() && !v.is_object())
}

/// One spelling for what trainers spell in several ways.
pub(crate) fn canonical(value: &Value) -> Value {
    let Value::String(text) = value else {
        return value.clone();
    };
    let text = text.trim().to_lowercase();
    let text = text.strip_prefix("torch.").unwrap_or(&text);
    match text {
        // `bf16-mixed`, `16-mixed` and `32-true` are Lightning's words.
        "bfloat16" | "bf16-mixed" | "bf16_mixed" => "bf16".into(),
        "float32" | "32-true" => "fp32".into(),
        "float16" | "16-mixed" | "fp16-mixed" | "fp16_mixed" => "fp16".into(),
        // Apex and Transformer Engine call it FusedAdam, and decouple the weight decay unless they
        // are told not to.
        "optim.adamw" | "fusedadam" | "fused_adam" | "fusedadamw" | "fused_adamw"
        | "adamw_torch" | "adamw_torch_fused" => "adamw".into(),
        "synthetic" => "random".into(),
        "true" => true.into(),
        "false" => false.into(),
        _ => match Sharding::named(text) {
            Some(sharding) => sharding.name().into(),
            None => text
                .parse()
                .ok()
                .map_or_else(|| text.into(), |n: u64| n.into()),
        },
    }
}

/// Relative rounding of a single-precision float.
const TOLERANCE: f64 = 1e-6;

/// Do two canonical values say the same? Reals may differ by the rounding of a single-precision
/// float.
pub fn agree(a: &Value, b: &Value) -> bool {
    if a == b {
        return true;
    }
    match (a.as_u64(), b.as_u64(), number(a), number(b)) {
        (Some(a), Some(b), ..) => a == b,
        (_, _, Some(a), Some(b)) => (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()),
        _ => false,
    }
}

/// Does the value say that the setting is not in use?
#[must_use]
pub fn is_off(value: &Value) -> bool {
    match value {
        Value::Bool(false) | Value::Null => true,
        Value::String(word) => {
            ["none", "null", "false", "off", "no", "disabled"].contains(&word.as_str())
        }
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::Array(all) => all.is_empty(),
        _ => false,
    }
}

/// A value as a number, where it is one; what is not in use is 0, and `inf` and `nan` are words.
fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(n) => n.as_f64(),
        _ if is_off(value) => Some(0.0),
        Value::String(s) => s.parse::<f64>().ok(),
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => None,
    };
    number.filter(|n| n.is_finite())
}

/// What stands in the place of a value that nobody states.
pub const NOT_STATED: &str = "not stated";

/// A setting's value as tables and sentences show it.
pub fn show(value: Option<&Value>) -> String {
    match value {
        None => NOT_STATED.to_owned(),
        Some(Value::String(s)) => s.clone(),
        // A whole number is one however it was written.
        Some(other) => {
            let text = other.to_string();
            text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
        }
    }
}

#[cfg(test)]
mod tests;

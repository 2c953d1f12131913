//! How a log is to be read, as data: `[log]` of a recipe, and each `[[log]]` of formats.toml.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::Evidence;

/// How a recipe's log is to be read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// The name of a shipped format; `regex`, or a name of one's own where `patterns` or `lines`
    /// say how the log reads.
    pub format: String,
    /// Patterns that are all looked for in each line; named groups are fields of a step (`step`,
    /// `loss`, `step_time_seconds`, …).
    #[serde(default, skip_serializing_if = "is_default")]
    pub patterns: Vec<String>,
    /// Kinds of lines. The first one that a line fits reads it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lines: Vec<LineTable>,
    /// Their names of values, and the fields that these are.
    #[serde(default, skip_serializing_if = "is_default")]
    pub names: BTreeMap<String, Named>,
    /// Their names of settings, and what jobs call them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub settings: BTreeMap<String, Named>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub flags: BTreeSet<Flag>,
    /// The number of the first epoch, where steps count anew in each; else the log's first one, at
    /// most 1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub first_epoch: Option<u64>,
    /// A step that claims less than this many per cent of the median step time did not end when it
    /// was timed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub implausible_percent: Option<u8>,
    /// Who counts the memory: `torch`, `jax`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_source: String,
}

/// What is special about a format.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// A line's values are means over the steps since the line before it.
    Averages,
    /// Where two lines are about the same step, the later one counts: a resumed run did that step again.
    LatestCounts,
    /// Where a setting is stated twice, the first value counts, and no anomaly is noted: the two come from
    /// different sources.
    FirstSettingCounts,
    /// Settings are printed before the first step; later lines that look like them are not.
    SettingsBeforeSteps,
    /// The time of the step with an evaluation's number includes the evaluation.
    EvaluationInStep,
    /// The global batch size is the tokens of each step over the sequence length.
    BatchFromTokens,
}

/// A kind of line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineTable {
    /// What `tprimat parse --lines` calls it.
    pub name: String,
    /// The pattern that such a line fits; its named groups are fields, names of `names` or
    /// `settings`, or `key` and `value`: a name and what it is set to.
    pub when: String,
    /// Patterns that must be found behind the beginning of `when` as well.
    #[serde(default, skip_serializing_if = "is_default")]
    pub needs: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub evidence: Evidence,
    #[serde(default, skip_serializing_if = "is_default")]
    pub about: About,
    /// Values by the text that stands right before them, behind the beginning of `when`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub after: BTreeMap<String, Named>,
    /// Patterns whose groups are fields, where they are found behind the beginning of `when`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub patterns: Vec<String>,
    /// How the rest of the line falls into names and values.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pairs: Option<Pairs>,
    /// Names of values of these lines only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub names: BTreeMap<String, Named>,
    /// Settings that the line means by itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub set: BTreeMap<String, Value>,
    /// An anomaly that the line is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub note: Option<NoteTable>,
    /// The last line of a log may be cut off: without this pattern it is not read, and neither are
    /// values that reach its end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub complete: Option<String>,
    /// Several ranks may share a line: each match of `when` begins a part that is read by itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repeats: bool,
    /// How many steps the values of such a line are means of, where that is known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub steps_averaged: Option<u64>,
    /// Who counts the memory, if the line is of another source than the others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_source: Option<String>,
    /// The trainer says so at its end.
    #[serde(default, skip_serializing_if = "is_default")]
    pub finished: bool,
    /// Later entries may read the line as well.
    #[serde(default, skip_serializing_if = "is_default")]
    pub goes_on: bool,
}

/// What a line's values are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum About {
    #[default]
    Step,
    /// An evaluation after the step that the line names, else after the newest one.
    Evaluation,
    /// A rank's memory, apart from any step.
    Memory,
    Setting,
    /// Nothing: the line only tells which format the log has.
    Nothing,
}

/// `name: value, name: value`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pairs {
    pub between: String,
    /// What stands between a name and its value.
    pub of: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoteTable {
    pub kind: String,
    pub text: String,
}

/// A field by its name, with or without a conversion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "the name of a field, or a table with `field` and how its values are converted"
)]
pub enum Named {
    Plain(String),
    Converted(Conversion),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conversion {
    pub field: String,
    /// What must follow the number, and what the number is divided by.
    #[serde(default, skip_serializing_if = "is_default")]
    pub units: BTreeMap<String, f64>,
    /// The field is 1 over the number.
    #[serde(default, skip_serializing_if = "is_default")]
    pub inverse: bool,
    /// A number that means that there is no value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub absent: Option<f64>,
    /// The anomaly that such a number is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub absent_note: Option<String>,
    /// Texts, and the settings that they mean; `*` stands for any text, in lower case where it is
    /// the meaning.
    #[serde(default, skip_serializing_if = "is_default")]
    pub values: BTreeMap<String, Value>,
    /// The value is a list, and the setting is how many items it has.
    #[serde(default, skip_serializing_if = "is_default")]
    pub items: bool,
    /// Counts only if nothing else states the setting before the first step.
    #[serde(default, skip_serializing_if = "is_default")]
    pub late: bool,
    /// Counts whatever else states the setting.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replaces: bool,
    /// The line repeats the newest value until there is another.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stale: bool,
}

impl Named {
    pub fn conversion(&self) -> Conversion {
        match self {
            Self::Converted(conversion) => conversion.clone(),
            Self::Plain(field) => Conversion {
                field: field.clone(),
                ..Conversion::default()
            },
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

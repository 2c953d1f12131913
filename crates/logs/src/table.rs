//! How a log is to be read, as data: `[log]` of a recipe, and each `[[log]]` of formats.toml.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::Evidence;

/// How a recipe's log is to be read.
#[serde_with::apply(_ => #[serde(default, skip_serializing_if = "is_default")])]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// The name of a shipped format; `regex`, or a name of one's own where `patterns` or `lines`
    /// say how the log reads.
    #[serde_with(skip_apply)]
    pub format: String,
    /// Patterns that are all looked for in each line; named groups are fields of a step (`step`,
    /// `loss`, `step_time_seconds`, …).
    pub patterns: Vec<String>,
    /// Kinds of lines. The first one that a line fits reads it.
    pub lines: Vec<LineTable>,
    /// Their names of values, and the fields that these are.
    pub names: BTreeMap<String, Named>,
    /// Their names of settings, and what jobs call them.
    pub settings: BTreeMap<String, Named>,
    pub flags: BTreeSet<Flag>,
    /// The number of the first epoch, where steps count anew in each; else the log's first one, at
    /// most 1.
    pub first_epoch: Option<u64>,
    /// A step that claims less than this many per cent of the median step time did not end when it
    /// was timed.
    pub implausible_percent: Option<u8>,
    /// Who counts the memory: `torch`, `jax`.
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
    /// Settings of which nothing here knows the name are kept: two runs that differ in one may differ in speed.
    UnknownSettings,
}

/// A kind of line.
#[serde_with::apply(_ => #[serde(default, skip_serializing_if = "is_default")])]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LineTable {
    /// What `tprimat parse --lines` calls it.
    #[serde_with(skip_apply)]
    pub name: String,
    /// The pattern that such a line fits; its named groups are fields, names of `names` or
    /// `settings`, or `key` and `value`: a name and what it is set to.
    #[serde_with(skip_apply)]
    pub when: String,
    /// Patterns that must be found behind the beginning of `when` as well.
    pub needs: Vec<String>,
    pub evidence: Evidence,
    pub about: About,
    /// Values by the text that stands right before them, behind the beginning of `when`.
    pub after: BTreeMap<String, Named>,
    /// Patterns whose groups are fields, where they are found behind the beginning of `when`.
    pub patterns: Vec<String>,
    /// How the rest of the line falls into names and values.
    pub pairs: Option<Pairs>,
    /// Names of values of these lines only.
    pub names: BTreeMap<String, Named>,
    /// Settings that the line means by itself.
    pub set: BTreeMap<String, Value>,
    /// An anomaly that the line is.
    pub note: Option<NoteTable>,
    /// The last line of a log may be cut off: without this pattern it is not read, and neither are
    /// values that reach its end.
    pub complete: Option<String>,
    /// Several ranks may share a line: each match of `when` begins a part that is read by itself.
    pub repeats: bool,
    /// How many steps the values of such a line are means of, where that is known.
    pub steps_averaged: Option<u64>,
    /// Who counts the memory, if the line is of another source than the others.
    pub memory_source: Option<String>,
    /// The trainer says so at its end.
    pub finished: bool,
    /// Later entries may read the line as well.
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

#[serde_with::apply(_ => #[serde(default, skip_serializing_if = "is_default")])]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conversion {
    #[serde_with(skip_apply)]
    pub field: String,
    /// What must follow the number, and what the number is divided by.
    pub units: BTreeMap<String, f64>,
    /// The field is 1 over the number.
    pub inverse: bool,
    /// A number that means that there is no value.
    pub absent: Option<f64>,
    /// The anomaly that such a number is.
    pub absent_note: Option<String>,
    /// Texts, and the settings that they mean; `*` stands for any text, in lower case where it is
    /// the meaning.
    pub values: BTreeMap<String, Value>,
    /// The value is a list, and the setting is how many items it has.
    pub items: bool,
    /// Counts only if nothing else states the setting before the first step.
    pub late: bool,
    /// Counts whatever else states the setting.
    pub replaces: bool,
    /// The line repeats the newest value until there is another.
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

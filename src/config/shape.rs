//! What config.yaml may hold, by the JSON Schema of [`ConfigFile`], and the type check.
//!
//! Knows nothing of files, layers or places: faults come back as [`Problem`]s without one.

use std::sync::LazyLock;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Number, Value, json};

use super::{
    foreign_keys::{called, stands_for},
    nested::join,
    schema::{CloudCost, ConfigFile, Model},
};
use crate::error::{Problem, did_you_mean, nearest};

/// The schema of config.yaml; made once a process.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| schemars::schema_for!(ConfigFile).to_value());

/// The schema of what may be anything.
static ANYTHING: Value = Value::Bool(true);

/// What one value may be, by its part of the schema. Null is always allowed and means "not stated":
/// as if the line were left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape(&'static Value);

impl Shape {
    /// Of the whole file.
    pub fn root() -> Self {
        Self(&SCHEMA)
    }

    /// Follows references; of alternatives, the first that is not null.
    fn of(schema: &'static Value) -> Self {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.rsplit('/').next().unwrap_or(reference);
            return Self::of(&SCHEMA["$defs"][name]);
        }
        let any = schema["anyOf"].as_array().into_iter().flatten();
        match any.into_iter().find(|one| one["type"] != "null") {
            Some(one) => Self::of(one),
            None => Self(schema),
        }
    }

    /// Below a table whose keys are the user's.
    fn entry(self) -> Option<Self> {
        if !self.is_table() {
            return None;
        }
        match &self.0["additionalProperties"] {
            Value::Bool(false) => None,
            entry @ Value::Object(_) => Some(Self::of(entry)),
            // Anything at all: what is in it is of its own kind.
            _ if self.is_open() => Some(self),
            _ => Some(Self(&ANYTHING)),
        }
    }

    fn may_be(self, kind: &str) -> bool {
        match &self.0["type"] {
            Value::String(one) => one == kind,
            Value::Array(several) => several.iter().any(|one| one == kind),
            _ => kind != "integer",
        }
    }

    fn has_texts_only(self) -> bool {
        self.0["items"]["type"] == "string"
    }
    fn choices(self) -> Vec<&'static str> {
        texts(&self.0["enum"]).collect()
    }
    fn fields(self) -> impl Iterator<Item = (&'static str, &'static Value)> {
        let fields = self.0["properties"].as_object();
        let fields = fields.into_iter().flat_map(Map::iter);
        fields.map(|(name, field)| (name.as_str(), field))
    }

    /// Why the value changes nothing, where it only describes.
    pub fn descriptive(self) -> Option<&'static str> {
        self.0["x-descriptive"].as_str()
    }
    pub fn is_table(self) -> bool {
        self.may_be("object")
    }
    /// A table and nothing else: null here is an empty table.
    pub fn is_only_table(self) -> bool {
        let others = ["boolean", "integer", "number", "string", "array"];
        self.is_table() && !others.into_iter().any(|kind| self.may_be(kind))
    }
    pub fn wants_string(self) -> bool {
        let others = ["boolean", "integer", "number"];
        self.may_be("string") && !others.into_iter().any(|kind| self.may_be(kind))
    }
    /// Any scalar will do, so that how it is written decides what it is.
    pub fn is_open(self) -> bool {
        let scalars = ["string", "number", "boolean"];
        scalars.into_iter().all(|kind| self.may_be(kind))
    }

    /// The canonical name and the shape of what `key` holds.
    pub fn field(self, key: &str) -> Option<(&str, Self)> {
        let is_called =
            |(name, field): &(&str, &Value)| *name == key || aliases(field).any(|a| a == key);
        match self.fields().find(is_called) {
            Some((name, field)) => Some((name, Self::of(field))),
            None => self.entry().map(|entry| (key, entry)),
        }
    }

    pub fn field_names(self) -> impl Iterator<Item = &'static str> {
        let names = self.fields().map(|(name, _)| name);
        names.chain(self.fields().flat_map(|(_, field)| aliases(field)))
    }

    /// Adds the paths below `table` of what has this very name; `<id>` stands for names that people
    /// give.
    fn add_called(self, table: &str, key: &str, found: &mut Vec<String>) {
        for (name, field) in self.fields() {
            let (path, field) = (join(table, name), Self::of(field));
            if name == key && !field.is_only_table() {
                found.push(path.clone());
            }
            field.add_called(&path, key, found);
        }
        // A block of the same keys again has no other names.
        let entry = self.entry();
        if let Some(entry) = entry.filter(|entry| !std::ptr::eq(entry.0, self.0)) {
            entry.add_called(&join(table, "<id>"), key, found);
        }
    }

    /// The problem of `key` being none of the table's.
    pub fn unknown_key(self, table: &str, key: &str) -> Problem {
        let path = join(table, key);
        let label = if table.is_empty() {
            "not a section".into()
        } else {
            format!("not a key of `{table}`")
        };
        let help = match nearest(key, self.field_names()) {
            _ if let Some(there) = called(&path) => format!("write {there}"),
            _ if let Some(here) = self.called_here(key) => format!("write `{here}`"),
            Some(name) => format!("did you mean `{name}`?"),
            None if let Some(there) = called(key) => format!("write {there}"),
            None if let Some(there) = settings_called(key) => format!("write {there}"),
            None if self.fields().next().is_none() => "it holds a value, not a table".into(),
            None => {
                let known: Vec<&str> = self.fields().map(|(name, _)| name).collect();
                format!("known: {}", known.join(", "))
            }
        };
        let mut problem = Problem::new(format!("unknown key `{path}`")).help(help);
        problem.label = label;
        problem
    }

    /// The fields of this very table that a foreign name stands for.
    fn called_here(self, key: &str) -> Option<String> {
        let names = stands_for(key).into_iter();
        let names = names.map(|path| path.rsplit('.').next().unwrap_or(path));
        let is_here = |name: &&str| self.fields().any(|(field, _)| field == *name);
        let names: Vec<&str> = names.filter(is_here).collect();
        (!names.is_empty()).then(|| names.join("` and `"))
    }

    /// Accepts a scalar, a list or null as it should be: a whole float becomes an integer.
    pub fn accept(self, path: &str, value: Value) -> Result<Value, Problem> {
        let choices = self.choices();
        let accepted = match &value {
            Value::Null => true,
            Value::Bool(_) => self.may_be("boolean"),
            Value::String(text) if self.may_be("string") && !choices.is_empty() => {
                return match choice(&choices, text) {
                    Some(choice) => Ok(choice.into()),
                    None => Err(self.mismatch(path, &value)),
                };
            }
            Value::String(_) => self.may_be("string"),
            Value::Number(number) => {
                let accepted = self.accepted_number(number);
                return accepted.ok_or_else(|| self.mismatch(path, &value));
            }
            Value::Array(items) => {
                let is_odd = |item: &Value| self.has_texts_only() && !item.is_string();
                self.may_be("array") && !items.iter().any(is_odd)
            }
            Value::Object(_) => self.is_table(),
        };
        if accepted {
            Ok(value)
        } else {
            Err(self.mismatch(path, &value))
        }
    }

    fn accepted_number(self, number: &Number) -> Option<Value> {
        let value = Value::Number(number.clone());
        let size = number.as_f64().unwrap_or(f64::NAN);
        let (least, most) = self.bounds();
        if least.is_some_and(|least| size < least) || most.is_some_and(|most| size > most) {
            return None;
        }
        match (self.may_be("number"), self.may_be("integer")) {
            // What may also be a text is printed as it was written; elsewhere 1.0 and 1 are one
            // value with one name.
            (true, _) if self.may_be("string") || !number.is_f64() => Some(value),
            (true, _) => Some(whole(size).unwrap_or(value)),
            (false, true) if number.is_f64() => whole(size),
            (false, true) => Some(value),
            (false, false) => None,
        }
    }

    fn bounds(self) -> (Option<f64>, Option<f64>) {
        (self.0["minimum"].as_f64(), self.0["maximum"].as_f64())
    }

    pub fn mismatch(self, path: &str, found: &Value) -> Problem {
        let wanted = self.wanted();
        let odd_item = found
            .as_array()
            .filter(|_| self.has_texts_only())
            .and_then(|items| items.iter().find(|item| !item.is_string()));
        let told = match odd_item {
            Some(item) => format!("a list with {}", describe(item)),
            None => describe(found),
        };
        let mut problem = Problem::new(format!("`{path}` must be {wanted}, not {told}"));
        problem.label = format!("expected {wanted}");
        problem.help = self.hint(path, found);
        problem
    }

    /// What was probably meant by a value of another kind.
    fn hint(self, path: &str, found: &Value) -> Option<String> {
        if let Value::String(text) = found {
            let plain = text.trim().replace('_', "");
            let is_number = !self.may_be("string") && plain.parse::<f64>().is_ok();
            let quoted = is_number.then(|| format!("write {plain} without quotes"));
            return did_you_mean(text, self.choices()).or(quoted);
        }
        if self.wants_string() && !matches!(found, Value::Array(_) | Value::Object(_)) {
            let key = path.rsplit('.').next().unwrap_or(path);
            let is_duration = ["timeout", "hang_least"].contains(&key) && found.is_number();
            let unit = if is_duration { "s" } else { "" };
            return Some(format!("write \"{found}{unit}\" in quotes"));
        }
        let (table, platform) = path.rsplit_once('.')?;
        (table.ends_with(".cloud_costs") && found.is_number())
            .then(|| format!("an hour of one GPU: `{platform}: {{ per_gpu_hour: {found} }}`"))
    }

    fn wanted(self) -> String {
        let choices = self.choices();
        if !choices.is_empty() {
            return format!("one of {}", choices.join(", "));
        }
        let bounds = match self.bounds() {
            (None, None) => String::new(),
            (Some(least), None) => format!(" of at least {least}"),
            (None, Some(most)) => format!(" of at most {most}"),
            (Some(least), Some(most)) => format!(" from {least} to {most}"),
        };
        let list = if self.has_texts_only() {
            "a list of texts"
        } else {
            "a list"
        };
        let mut kinds = Vec::new();
        for (kind, name) in [
            ("boolean", "true or false".to_owned()),
            ("integer", format!("a whole number{bounds}")),
            ("number", format!("a number{bounds}")),
            ("string", "a text".to_owned()),
            ("array", list.to_owned()),
            ("object", "a table".to_owned()),
        ] {
            if self.may_be(kind) && (kind != "integer" || !self.may_be("number")) {
                kinds.push(name);
            }
        }
        kinds.join(" or ")
    }
}

fn aliases(field: &Value) -> impl Iterator<Item = &str> {
    texts(&field["x-aliases"])
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str)
}

/// The choice that a text stands for: `BF16` and `bfloat16` are `bf16`.
pub(crate) fn choice(choices: &[&'static str], text: &str) -> Option<&'static str> {
    let plain = text.trim().to_lowercase();
    let known = PRECISIONS.iter().find(|(other, _)| *other == plain);
    let plain = known.map_or(plain.as_str(), |(_, own)| own);
    let is_meant = |choice: &&&str| **choice == text || choice.to_lowercase() == plain;
    choices.iter().find(is_meant).copied()
}

/// Names of precisions that other programs use.
const PRECISIONS: [(&str, &str); 10] = [
    ("bfloat16", "bf16"),
    ("torch.bfloat16", "bf16"),
    ("float32", "fp32"),
    ("torch.float32", "fp32"),
    ("float8", "fp8"),
    ("float16", "fp16"),
    ("torch.float16", "fp16"),
    ("half", "fp16"),
    ("fp16-mixed", "fp16"),
    ("bf16-mixed", "bf16"),
];

/// The integer that a float stands for, if it does so exactly.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "bounded by 2^53, where both are exact"
)]
fn whole(size: f64) -> Option<Value> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    (size.fract() == 0.0 && size.abs() <= EXACT).then(|| Value::from(size as i64))
}

/// The settings of this name, wherever they stand: `` `training.duration.train_iters` ``. None where
/// there are so many that the name says nothing.
pub(crate) fn settings_called(key: &str) -> Option<String> {
    let mut found = Vec::new();
    Shape::root().add_called("", key, &mut found);
    let quoted: Vec<String> = found.iter().map(|path| format!("`{path}`")).collect();
    (1..=3).contains(&found.len()).then(|| quoted.join(" or "))
}

pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() > 40 => "a long text".into(),
        Value::String(text) => format!("the text {text:?}"),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "a table".into(),
    }
}

/// The built-in defaults, nested; null where there is none.
pub(super) fn defaults() -> &'static Value {
    static DEFAULTS: LazyLock<Value> = LazyLock::new(|| plain(&ConfigFile::default()));
    &DEFAULTS
}

/// Keys of `frameworks.<id>` that tprimat itself reads; the rest is the recipe's.
#[must_use]
pub fn framework_keys() -> Vec<&'static str> {
    entry_of("frameworks").field_names().collect()
}

/// What a block of `parallelism` may state.
pub(super) fn parallelism_fields() -> impl Iterator<Item = &'static str> {
    entry_of("parallelism").fields().map(|(name, _)| name)
}

/// What each entry of a section may hold whose keys are the user's.
fn entry_of(section: &str) -> Shape {
    let section = Shape::root().field(section);
    let entry = section.and_then(|(_, section)| section.entry());
    entry.unwrap_or(Shape(&ANYTHING))
}

/// Tables whose keys are the user's, and the defaults of each entry.
pub(super) fn entry_defaults() -> &'static [(&'static str, Value)] {
    static DEFAULTS: LazyLock<[(&str, Value); 2]> = LazyLock::new(|| {
        [
            ("models", of_nothing::<Model>()),
            (
                "benchmarking.enhanced_metrics.cloud_costs",
                of_nothing::<CloudCost>(),
            ),
        ]
    });
    &*DEFAULTS
}

/// An entry that states nothing.
fn of_nothing<T: DeserializeOwned + Serialize>() -> Value {
    serde_json::from_value(json!({})).map_or(Value::Null, |entry: T| plain(&entry))
}

fn plain(defaults: &impl Serialize) -> Value {
    serde_json::to_value(defaults).unwrap_or(Value::Null)
}

//! What config.yaml may hold, compiled from the JSON Schema of [`ConfigFile`], and the type check.
//!
//! Knows nothing of files, layers or places: faults come back as [`Problem`]s without one.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Number, Value};

use super::{
    foreign_keys::{called, is_of_experts, stands_for},
    schema::{CloudCost, ConfigFile, Model},
};
use crate::error::{Problem, nearest};

pub(super) type ShapeId = usize;

/// The compiled schema of config.yaml; made once a process.
pub(super) fn shapes() -> &'static Shapes {
    static SHAPES: LazyLock<Shapes> = LazyLock::new(Shapes::of_config);
    &SHAPES
}

pub(super) struct Shapes {
    all: Vec<Shape>,
    pub root: ShapeId,
}

/// What one value may be. Null is always allowed and means "not stated": as if the line were left
/// out.
#[derive(Default)]
pub(super) struct Shape {
    boolean: bool,
    integer: bool,
    number: bool,
    string: bool,
    list: bool,
    /// The items of a list must be texts.
    texts: bool,
    table: bool,
    minimum: Option<f64>,
    maximum: Option<f64>,
    choices: Vec<String>,
    fields: Vec<(String, ShapeId)>,
    /// Other spellings of a field's name.
    aliases: Vec<(String, String)>,
    /// The shape of keys that are not fields; none where there may be no others.
    additional: Option<ShapeId>,
    /// Why the value changes nothing, where it only describes.
    pub descriptive: Option<String>,
}

impl Shapes {
    fn of_config() -> Self {
        let schema = schemars::schema_for!(ConfigFile).to_value();
        let mut shapes = Self {
            all: Vec::new(),
            root: 0,
        };
        shapes.root = shapes.compile(&schema, &schema["$defs"], &mut HashMap::new());
        shapes
    }

    fn compile(
        &mut self,
        schema: &Value,
        definitions: &Value,
        known: &mut HashMap<String, ShapeId>,
    ) -> ShapeId {
        if let Some(reference) = schema["$ref"].as_str() {
            let name = reference.rsplit('/').next().unwrap_or(reference);
            if let Some(id) = known.get(name) {
                return *id;
            }
            known.insert(name.to_owned(), self.all.len());
            return self.compile(&definitions[name], definitions, known);
        }
        if let Some(some) = schema["anyOf"]
            .as_array()
            .and_then(|any| any.iter().find(|s| s["type"] != "null"))
        {
            return self.compile(some, definitions, known);
        }
        let id = self.all.len();
        self.all.push(Shape::default());
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ => vec!["boolean", "number", "string", "array", "object"],
        };
        let has = |name: &str| types.contains(&name);
        let mut shape = Shape {
            boolean: has("boolean"),
            integer: has("integer"),
            number: has("number"),
            string: has("string"),
            list: has("array"),
            texts: schema["items"]["type"] == "string",
            table: has("object"),
            minimum: schema["minimum"].as_f64(),
            maximum: schema["maximum"].as_f64(),
            choices: strings(&schema["enum"]),
            descriptive: schema["x-descriptive"].as_str().map(str::to_owned),
            ..Shape::default()
        };
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            shape.aliases.extend(
                strings(&field["x-aliases"])
                    .into_iter()
                    .map(|alias| (alias, name.clone())),
            );
            shape
                .fields
                .push((name.clone(), self.compile(field, definitions, known)));
        }
        if shape.table {
            shape.additional = match &schema["additionalProperties"] {
                Value::Bool(false) => None,
                closed @ Value::Object(_) => Some(self.compile(closed, definitions, known)),
                // Anything at all: what is in it is of its own kind.
                _ if shape.is_open() => Some(id),
                _ => Some(self.compile(&Value::Bool(true), definitions, known)),
            };
        }
        self.all[id] = shape;
        id
    }

    pub fn get(&self, id: ShapeId) -> &Shape {
        &self.all[id]
    }

    /// Adds the paths below `table` of what has this very name; `<id>` stands for names that people give.
    fn add_called(&self, table: &str, id: ShapeId, key: &str, found: &mut Vec<String>) {
        let shape = self.get(id);
        for (name, field) in &shape.fields {
            let path = join(table, name);
            if name == key && !self.get(*field).is_only_table() {
                found.push(path.clone());
            }
            self.add_called(&path, *field, key, found);
        }
        if let Some(of_any) = shape.additional.filter(|of_any| *of_any != id) {
            self.add_called(&join(table, "<id>"), of_any, key, found);
        }
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

impl Shape {
    pub fn is_table(&self) -> bool {
        self.table
    }
    /// A table and nothing else: null here is an empty table.
    pub fn is_only_table(&self) -> bool {
        self.table && !self.is_scalar() && !self.list
    }
    fn is_scalar(&self) -> bool {
        self.boolean || self.integer || self.number || self.string
    }
    pub fn wants_string(&self) -> bool {
        self.string && !self.boolean && !self.number && !self.integer
    }
    /// Any scalar will do, so that how it is written decides what it is.
    pub fn is_open(&self) -> bool {
        self.string && self.number && self.boolean
    }

    /// The canonical name and the shape of what `key` holds.
    pub fn field<'a>(&'a self, key: &'a str) -> Option<(&'a str, ShapeId)> {
        let canonical = self
            .aliases
            .iter()
            .find(|(alias, _)| alias == key)
            .map_or(key, |(_, name)| name);
        match self.fields.iter().find(|(name, _)| name == canonical) {
            Some((name, id)) => Some((name, *id)),
            None => self.additional.map(|id| (key, id)),
        }
    }

    pub fn field_names(&self) -> impl Iterator<Item = &str> {
        self.fields
            .iter()
            .map(|(name, _)| name.as_str())
            .chain(self.aliases.iter().map(|(alias, _)| alias.as_str()))
    }

    /// The problem of `key` being none of the table's.
    pub fn unknown_key(&self, table: &str, key: &str) -> Problem {
        let path = join(table, key);
        let label = if table.is_empty() {
            "not a section".into()
        } else {
            format!("not a key of `{table}`")
        };
        let help = match nearest(key, self.field_names()) {
            _ if is_of_experts(key) => {
                "expert parallelism is not supported: models with experts cannot be planned".into()
            }
            _ if let Some(here) = self.called_here(key) => format!("write `{here}`"),
            Some(name) => format!("did you mean `{name}`?"),
            None if let Some(there) = called(key) => format!("write {there}"),
            None if let Some(there) = settings_called(key) => format!("write {there}"),
            None if self.fields.is_empty() => "it holds a value, not a table".into(),
            None => format!(
                "known: {}",
                self.fields
                    .iter()
                    .map(|f| f.0.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        };
        let mut problem = Problem::new(format!("unknown key `{path}`")).help(help);
        problem.label = label;
        problem
    }

    /// The fields of this very table that a foreign name stands for.
    fn called_here(&self, key: &str) -> Option<String> {
        let names = stands_for(key)?
            .iter()
            .map(|path| path.rsplit('.').next().unwrap_or(path));
        let names: Vec<&str> = names
            .filter(|name| self.fields.iter().any(|(field, _)| field == name))
            .collect();
        (!names.is_empty()).then(|| names.join("` and `"))
    }

    /// Accepts a scalar, a list or null as it should be: a whole float becomes an integer.
    pub fn accept(&self, path: &str, value: Value) -> Result<Value, Problem> {
        let accepted = match &value {
            Value::Null => return Ok(value),
            Value::Bool(_) => self.boolean,
            Value::String(text) if self.string && !self.choices.is_empty() => {
                match self.choice(text) {
                    Some(choice) => return Ok(choice.into()),
                    None => false,
                }
            }
            Value::String(_) => self.string,
            Value::Number(number) => return self.accept_number(path, number),
            Value::Array(items) => self.list && (!self.texts || items.iter().all(Value::is_string)),
            Value::Object(_) => self.table,
        };
        if accepted {
            Ok(value)
        } else {
            Err(self.mismatch(path, &value))
        }
    }

    /// The choice that a text stands for: `BF16` and `bfloat16` are `bf16`.
    fn choice(&self, text: &str) -> Option<&str> {
        let plain = text.trim().to_lowercase();
        let plain = PRECISIONS
            .iter()
            .find(|(other, _)| *other == plain)
            .map_or(plain.as_str(), |(_, own)| own);
        self.choices
            .iter()
            .map(String::as_str)
            .find(|choice| *choice == text || choice.to_lowercase() == plain)
    }

    fn accept_number(&self, path: &str, number: &Number) -> Result<Value, Problem> {
        let value = Value::Number(number.clone());
        let size = number.as_f64().unwrap_or(f64::NAN);
        let fits = self.minimum.is_none_or(|least| size >= least)
            && self.maximum.is_none_or(|most| size <= most);
        let accepted = match (self.number, self.integer) {
            // What may also be a text is printed as it was written; elsewhere 1.0 and 1 are one
            // value with one name.
            (true, _) if self.string => Some(value.clone()),
            (true, _) => whole(size)
                .filter(|_| number.is_f64())
                .or_else(|| Some(value.clone())),
            (false, true) if number.is_f64() => whole(size),
            (false, true) => Some(value.clone()),
            (false, false) => None,
        };
        accepted
            .filter(|_| fits)
            .ok_or_else(|| self.mismatch(path, &value))
    }

    pub fn mismatch(&self, path: &str, found: &Value) -> Problem {
        let wanted = self.wanted();
        let other = found.as_array().and_then(|items| {
            let item = items.iter().find(|item| self.texts && !item.is_string())?;
            Some(format!("a list with {}", describe(item)))
        });
        let other = other.unwrap_or_else(|| describe(found));
        let mut problem = Problem::new(format!("`{path}` must be {wanted}, not {other}"));
        problem.label = format!("expected {wanted}");
        if let Value::String(text) = found {
            if let Some(choice) = nearest(text, self.choices.iter().map(String::as_str)) {
                problem = problem.help(format!("did you mean `{choice}`?"));
            } else if !self.string && text.trim().replace('_', "").parse::<f64>().is_ok() {
                problem = problem.help(format!(
                    "write {} without quotes",
                    text.trim().replace('_', "")
                ));
            }
        } else if self.wants_string() && !matches!(found, Value::Array(_) | Value::Object(_)) {
            let is_duration = ["timeout", "hang_least"]
                .iter()
                .any(|key| path.ends_with(&format!(".{key}")));
            let unit = if is_duration && found.is_number() {
                "s"
            } else {
                ""
            };
            problem = problem.help(format!("write \"{found}{unit}\" in quotes"));
        } else if let Some((table, platform)) = path.rsplit_once('.')
            && table.ends_with(".cloud_costs")
            && found.is_number()
        {
            problem = problem.help(format!(
                "an hour of one GPU: `{platform}: {{ per_gpu_hour: {found} }}`"
            ));
        }
        problem
    }

    fn wanted(&self) -> String {
        let bounds = match (self.minimum, self.maximum) {
            (None, None) => String::new(),
            (Some(least), None) => format!(" of at least {least}"),
            (None, Some(most)) => format!(" of at most {most}"),
            (Some(least), Some(most)) => format!(" from {least} to {most}"),
        };
        if !self.choices.is_empty() {
            return format!("one of {}", self.choices.join(", "));
        }
        let kinds = [
            (self.boolean, "true or false".to_owned()),
            (
                self.integer && !self.number,
                format!("a whole number{bounds}"),
            ),
            (self.number, format!("a number{bounds}")),
            (self.string, "a text".to_owned()),
            (
                self.list,
                if self.texts {
                    "a list of texts"
                } else {
                    "a list"
                }
                .to_owned(),
            ),
            (self.table, "a table".to_owned()),
        ];
        kinds
            .into_iter()
            .filter_map(|(is, name)| is.then_some(name))
            .collect::<Vec<_>>()
            .join(" or ")
    }
}

/// Names of precisions that other programs use.
const PRECISIONS: [(&str, &str); 6] = [
    ("bfloat16", "bf16"),
    ("torch.bfloat16", "bf16"),
    ("float32", "fp32"),
    ("torch.float32", "fp32"),
    ("float8", "fp8"),
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
    shapes().add_called("", shapes().root, key, &mut found);
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

/// `table.key`, or `key` at the top.
pub(super) fn join(table: &str, key: &str) -> String {
    if table.is_empty() {
        key.to_owned()
    } else {
        format!("{table}.{key}")
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
    let shapes = shapes();
    let of = |id: ShapeId, key: &'static str| shapes.get(id).field(key).map_or(id, |(_, id)| id);
    shapes
        .get(of(of(shapes.root, "frameworks"), "any"))
        .field_names()
        .collect()
}

/// What a block of `parallelism` may state.
pub(super) fn parallelism_fields() -> impl Iterator<Item = &'static str> {
    let shapes = shapes();
    let strategies = shapes.get(shapes.root).field("parallelism");
    let block = strategies.and_then(|(_, id)| shapes.get(id).additional);
    let fields = block.map_or(&[][..], |id| &shapes.get(id).fields);
    fields.iter().map(|(name, _)| name.as_str())
}

/// Tables whose keys are the user's, and the defaults of each entry.
pub(super) fn entry_defaults() -> &'static [(&'static str, Value)] {
    static DEFAULTS: LazyLock<[(&str, Value); 2]> = LazyLock::new(|| {
        [
            ("models", plain(&Model::default())),
            (
                "benchmarking.enhanced_metrics.cloud_costs",
                plain(&CloudCost::default()),
            ),
        ]
    });
    &*DEFAULTS
}

fn plain(defaults: &impl serde::Serialize) -> Value {
    serde_json::to_value(defaults).unwrap_or(Value::Null)
}

//! Paths and values that people write outside config.yaml: `--set`, axes, overrides, variables.

use std::sync::Arc;
use tprimat_base::words::part;

use serde_json::Value;

use super::{
    layers::Config,
    names::{canonical_id, framework_named, vendor_named},
    nested::{join, longest_key},
    shape::{Shape, parallelism_fields},
    yaml::json_of,
};
use crate::error::{Problem, did_you_mean};

/// Tables whose keys are ids that config.yaml declares: only there can a new one be made.
const DECLARED: [&str; 3] = ["models", "hardware.platforms", "parallelism"];

/// Tables whose keys may narrow a block of `parallelism`.
const CELL_NAMES: [&str; 3] = ["models", "hardware.platforms", "frameworks"];

/// Keys of one path: deeper tables would take more of the stack than there is.
pub const MAX_PARTS: usize = 32;

/// A path that config.yaml may hold, with aliases spelled out.
struct Resolved {
    keys: Vec<String>,
    shape: Shape,
}

/// A path of config.yaml that holds one value, resolved once for many values.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Canonical.
    pub path: Arc<str>,
    shape: Shape,
}

impl Leaf {
    /// `value` as the schema wants it here. Problems come without a place.
    pub fn accept(&self, value: Value) -> Result<Value, Problem> {
        self.shape.accept(&self.path, value)
    }
}

impl Config {
    /// The canonical form of a path that a person wrote, if config.yaml may hold such a value or
    /// table.
    pub fn resolve(&self, path: &str) -> Result<Arc<str>, Problem> {
        Ok(self.resolved(path)?.keys.join(".").into())
    }

    /// Like [`Config::resolve`], but of a single value, and ready to check values for it.
    pub fn leaf(&self, path: &str) -> Result<Leaf, Problem> {
        let Resolved { keys, shape } = self.resolved(path)?;
        let canonical = keys.join(".");
        if self.children(&canonical).next().is_some() || shape.is_only_table() {
            let message = format!("`{path}` is a table, not a value");
            return Err(labelled(message, "set one of its keys"));
        }
        let path = canonical.into();
        Ok(Leaf { path, shape })
    }

    /// `value` as the schema wants it at `path`, a table as its leaves. Problems come without a
    /// place.
    pub fn typed(&self, path: &str, value: Value) -> Result<Vec<(Arc<str>, Value)>, Problem> {
        let leaves = self.typed_leaves(path, value)?;
        let path = |(keys, value): (Vec<String>, Value)| (keys.join(".").into(), value);
        Ok(leaves.into_iter().map(path).collect())
    }

    /// The same, with the keys of each path.
    pub(super) fn typed_leaves(
        &self,
        path: &str,
        value: Value,
    ) -> Result<Vec<(Vec<String>, Value)>, Problem> {
        let Resolved { keys, shape } = self.resolved(path)?;
        match value {
            Value::Object(entries) if shape.is_table() => {
                let mut leaves = Vec::new();
                for (key, value) in entries {
                    leaves.extend(self.typed_leaves(&join(path, &key), value)?);
                }
                Ok(leaves)
            }
            Value::Object(_) => Err(shape.mismatch(path, &value)),
            Value::Null => Ok(vec![(keys, value)]),
            value => Ok(vec![(keys, self.leaf(path)?.accept(value)?)]),
        }
    }

    /// A value given as text: YAML, but where a text is expected it is taken as it stands.
    pub(super) fn value_of_text(&self, path: &str, text: &str) -> Result<Value, Problem> {
        let shape = self.resolved(path)?.shape;
        let is_quoted = text.starts_with(['"', '\'']);
        if shape.wants_string() && !text.is_empty() && !is_quoted && !matches!(text, "null" | "~") {
            return Ok(Value::String(text.to_owned()));
        }
        let yaml: serde_yaml::Value = serde_yaml::from_str(text).map_err(|error| {
            let message = format!("the value of `{path}` is not YAML: {error}");
            labelled(message, "not YAML")
        })?;
        json_of(yaml).map_err(|why| labelled(format!("the value of `{path}` {why}"), &why))
    }

    /// Follows a dotted path through the schema. Keys that hold dots are known from the values.
    fn resolved(&self, path: &str) -> Result<Resolved, Problem> {
        if path.matches('.').count() >= MAX_PARTS {
            let message = format!("a path has at most {MAX_PARTS} keys");
            return Err(labelled(message, "too many keys"));
        }
        let (mut shape, mut table) = (Shape::root(), Some(&self.values));
        let (mut keys, mut at, mut rest) = (Vec::new(), String::new(), path);
        while !rest.is_empty() || keys.is_empty() {
            if table.is_some_and(|table| !table.is_object() && !table.is_null()) {
                let message = format!("`{at}` is a value, not a table");
                return Err(labelled(message, &format!("nothing is below `{at}`")));
            }
            let known = longest_key(table, rest);
            let is_narrower = keys.len() >= 2 && keys[0] == "parallelism";
            let declared = known.or_else(|| self.declared_name(rest).filter(|_| is_narrower));
            let key = declared.unwrap_or_else(|| rest.split_once('.').map_or(rest, |(key, _)| key));
            if known.is_none() && table.is_some() && DECLARED.contains(&at.as_str()) {
                return Err(self.undeclared(&at, key));
            }
            let Some((name, field)) = shape.field(key).filter(|_| !key.is_empty()) else {
                return Err(shape.unknown_key(&at, key));
            };
            let name = canonical_id(&at, name);
            if is_narrower && declared.is_none() && !parallelism_fields().any(|f| f == name) {
                self.check_names_a_cell(shape, &at, key)?;
            }
            shape = field;
            at = join(&at, name);
            table = table.and_then(|table| table.get(name));
            keys.push(name.to_owned());
            rest = part(rest, key.len()..).strip_prefix('.').unwrap_or("");
        }
        Ok(Resolved { keys, shape })
    }

    fn undeclared(&self, table: &str, id: &str) -> Problem {
        let ids: Vec<&str> = self.children(table).collect();
        let listed = match &ids[..] {
            [] => "none".to_owned(),
            ids => ids.join(", "),
        };
        let message = format!("unknown id `{id}` in `{table}`");
        let near = did_you_mean(id, ids);
        labelled(message, &format!("`{table}` has no `{id}`"))
            .help(near.unwrap_or_else(|| format!("config.yaml declares {listed}")))
    }

    /// Below a strategy only a model, a platform or a framework may stand.
    fn check_names_a_cell(&self, shape: Shape, table: &str, key: &str) -> Result<(), Problem> {
        if vendor_named(key).is_some() || framework_named(key).is_some() {
            return Ok(());
        }
        let mut known: Vec<&str> = shape.field_names().collect();
        for table in CELL_NAMES {
            known.extend(self.children(table));
        }
        let help = did_you_mean(key, known);
        let message = format!("unknown key `{table}.{key}`");
        let problem = labelled(message, "no model, platform or framework has this name");
        Err(Problem { help, ..problem })
    }

    /// The declared model, platform or framework that `rest` begins with; it may hold dots.
    fn declared_name(&self, rest: &str) -> Option<&str> {
        let tables = CELL_NAMES.into_iter().map(|table| self.find(table));
        let names = tables.filter_map(|table| longest_key(table, rest));
        names.max_by_key(|key| key.len())
    }
}

/// A problem without a place.
pub(super) fn labelled(message: String, label: &str) -> Problem {
    Problem {
        label: label.to_owned(),
        ..Problem::new(message)
    }
}

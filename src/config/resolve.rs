//! Paths and values that people write outside config.yaml: `--set`, axes, overrides, variables.

use std::sync::Arc;
use tprimat_words::part;

use serde_json::Value;

use super::{
    framework_named,
    layers::Layer,
    names::canonical_id,
    read::scalar_of,
    shape::{Shape, ShapeId, shapes},
    tree::{Node, ROOT, Tree},
    vendor_named,
};
use crate::error::{Problem, did_you_mean};

/// Tables whose keys are ids that config.yaml declares: only there can a new one be made.
const DECLARED: [&str; 3] = ["models", "hardware.platforms", "parallelism"];

/// Tables whose keys may narrow a block of `parallelism`.
const CELL_NAMES: [&str; 3] = ["models", "hardware.platforms", "frameworks"];

pub(super) struct Resolved {
    pub keys: Vec<String>,
    shape: ShapeId,
}

impl Resolved {
    fn shape(&self) -> &'static Shape {
        shapes().get(self.shape)
    }
}

/// A path of config.yaml that holds one value, resolved once for many values.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Canonical.
    pub path: Arc<str>,
    shape: ShapeId,
}

impl Leaf {
    pub(super) fn find(tree: &Tree<Layer>, path: &str) -> Result<Self, Problem> {
        let resolved = resolve(tree, path)?;
        let leaf = Self {
            path: resolved.keys.join(".").into(),
            shape: resolved.shape,
        };
        let holds_keys = tree
            .find(&leaf.path)
            .is_some_and(|node| !node.children.is_empty());
        if holds_keys || resolved.shape().is_only_table() {
            return Err(labelled(
                format!("`{path}` is a table, not a value"),
                "set one of its keys".into(),
            ));
        }
        Ok(leaf)
    }

    /// `value` as the schema wants it here. Problems come without a place.
    pub fn accept(&self, value: Value) -> Result<Value, Problem> {
        shapes().get(self.shape).accept(&self.path, value)
    }
}

/// Keys of one path: deeper tables would take more of the stack than there is.
pub const MAX_PARTS: usize = 32;

/// Follows a dotted path through the schema, spelling aliases out. Keys that hold dots are known
/// from the tree.
pub(super) fn resolve(tree: &Tree<Layer>, path: &str) -> Result<Resolved, Problem> {
    let mut shape_id = shapes().root;
    let mut node = Some(tree.node(ROOT));
    let mut keys = Vec::new();
    let mut at = String::new();
    let mut rest = path;
    if path.matches('.').count() >= MAX_PARTS {
        return Err(labelled(
            format!("a path has at most {MAX_PARTS} keys"),
            "too many keys".into(),
        ));
    }
    while !rest.is_empty() || keys.is_empty() {
        if node.is_some_and(|node| {
            node.leaf
                .as_ref()
                .is_some_and(|(value, _)| !value.is_null())
        }) {
            return Err(labelled(
                format!("`{at}` is a value, not a table"),
                format!("nothing is below `{at}`"),
            ));
        }
        let shape = shapes().get(shape_id);
        let known = node.and_then(|node| tree.longest_key(node, rest));
        let is_narrower = keys.len() >= 2 && keys[0] == "parallelism";
        let declared = known.or_else(|| declared_name(tree, rest).filter(|_| is_narrower));
        let key = declared.unwrap_or_else(|| rest.split_once('.').map_or(rest, |(key, _)| key));
        if let Some(parent) = node.filter(|_| known.is_none() && DECLARED.contains(&at.as_str())) {
            let ids: Vec<&str> = tree.children(parent).map(Node::key).collect();
            return Err(undeclared(&at, key, &ids));
        }
        let Some((name, field)) = shape.field(key).filter(|_| !key.is_empty()) else {
            return Err(shape.unknown_key(&at, key));
        };
        let name = canonical_id(&at, name);
        if is_narrower && declared.is_none() && !super::parallelism::is_field(name) {
            check_names_a_cell(tree, shape, &at, key)?;
        }
        shape_id = field;
        at = super::shape::join(&at, name);
        node = tree.find(&at);
        keys.push(name.to_owned());
        rest = part(rest, key.len()..).strip_prefix('.').unwrap_or("");
    }
    Ok(Resolved {
        keys,
        shape: shape_id,
    })
}

fn undeclared(table: &str, id: &str, ids: &[&str]) -> Problem {
    let help = did_you_mean(id, ids.iter().copied()).unwrap_or_else(|| {
        format!(
            "config.yaml declares {}",
            if ids.is_empty() {
                "none".into()
            } else {
                ids.join(", ")
            }
        )
    });
    labelled(
        format!("unknown id `{id}` in `{table}`"),
        format!("`{table}` has no `{id}`"),
    )
    .help(help)
}

/// Below a strategy only a model, a platform or a framework may stand.
fn check_names_a_cell(
    tree: &Tree<Layer>,
    shape: &Shape,
    table: &str,
    key: &str,
) -> Result<(), Problem> {
    if vendor_named(key).is_some() || framework_named(key).is_some() {
        return Ok(());
    }
    let ids = |table: &str| {
        tree.find(table)
            .into_iter()
            .flat_map(|node| tree.children(node))
            .map(Node::key)
    };
    let known = CELL_NAMES
        .into_iter()
        .flat_map(ids)
        .chain(shape.field_names());
    let message = format!("unknown key `{table}.{key}`");
    let problem = labelled(
        message,
        "no model, platform or framework has this name".into(),
    );
    Err(Problem {
        help: did_you_mean(key, known),
        ..problem
    })
}

/// The declared model, platform or framework that `rest` begins with; it may hold dots.
fn declared_name<'a>(tree: &'a Tree<Layer>, rest: &str) -> Option<&'a str> {
    let tables = CELL_NAMES.into_iter().filter_map(|table| tree.find(table));
    tables
        .filter_map(|node| tree.longest_key(node, rest))
        .max_by_key(|key| key.len())
}

fn labelled(message: String, label: String) -> Problem {
    let mut problem = Problem::new(message);
    problem.label = label;
    problem
}

/// A value given as text: YAML, but where a text is expected it is taken as it stands.
pub(super) fn parse_text(tree: &Tree<Layer>, path: &str, text: &str) -> Result<Value, Problem> {
    let shape = resolve(tree, path)?.shape();
    let is_quoted = text.starts_with(['"', '\'']);
    if shape.wants_string() && !text.is_empty() && !is_quoted && !matches!(text, "null" | "~") {
        return Ok(Value::String(text.to_owned()));
    }
    let yaml: serde_yaml::Value = serde_yaml::from_str(text).map_err(|error| {
        labelled(
            format!("the value of `{path}` is not YAML: {error}"),
            "not YAML".into(),
        )
    })?;
    json_of(yaml).map_err(|why| labelled(format!("the value of `{path}` {why}"), why))
}

/// YAML without variables as JSON; the error completes "the value …".
pub(super) fn json_of(yaml: serde_yaml::Value) -> Result<Value, String> {
    use serde_yaml::Value as Yaml;
    Ok(match yaml {
        Yaml::Sequence(items) => {
            Value::Array(items.into_iter().map(json_of).collect::<Result<_, _>>()?)
        }
        Yaml::Mapping(entries) => {
            let entry = |(key, value)| {
                Ok((
                    key_of(&key).ok_or("has a key that is not a text")?,
                    json_of(value)?,
                ))
            };
            Value::Object(
                entries
                    .into_iter()
                    .map(entry)
                    .collect::<Result<_, String>>()?,
            )
        }
        Yaml::Tagged(tagged) => {
            return Err(format!(
                "has the tag {}, and tags mean nothing here",
                tagged.tag
            ));
        }
        scalar => scalar_of(scalar)?,
    })
}

pub(super) fn key_of(key: &serde_yaml::Value) -> Option<String> {
    match key {
        serde_yaml::Value::String(text) => Some(text.clone()),
        serde_yaml::Value::Number(number) => Some(number.to_string()),
        serde_yaml::Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// Checks `value` against the schema at `path`; a table becomes its leaves.
pub(super) fn typed(
    tree: &Tree<Layer>,
    path: &str,
    value: Value,
) -> Result<Vec<(Vec<String>, Value)>, Problem> {
    let resolved = resolve(tree, path)?;
    let shape = resolved.shape();
    if let Value::Object(entries) = value {
        if !shape.is_table() {
            return Err(shape.mismatch(path, &Value::Object(entries)));
        }
        let mut leaves = Vec::new();
        for (key, value) in entries {
            leaves.extend(typed(tree, &format!("{path}.{key}"), value)?);
        }
        return Ok(leaves);
    }
    if value.is_null() {
        return Ok(vec![(resolved.keys, value)]);
    }
    let value = Leaf::find(tree, path)?.accept(value)?;
    Ok(vec![(resolved.keys, value)])
}

//! config.yaml's text → values in the tree, each checked against its shape.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_yaml::Value as Yaml;

use super::{
    expand::expand,
    layers::{Config, Layer, placed},
    resolve::{json_of, key_of},
    shape::{Shape, ShapeId, join, shapes},
    spans::Spans,
    tree::{NodeId, ROOT},
};
use crate::error::{Problem, Source};

pub(super) struct Reader<'a> {
    config: &'a mut Config,
    env: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    /// Fills the config's tree with all that is right. Err: the text is not YAML.
    pub fn read(config: &'a mut Config, env: &'a BTreeMap<String, String>) -> Result<Vec<Problem>, Vec<Problem>> {
        let yaml = parse(&config.source)?;
        let mut reader = Reader { config, env, problems: Vec::new() };
        match yaml {
            Yaml::Null => {}
            Yaml::Mapping(entries) => reader.table(ROOT, shapes().root, "", entries),
            _ => reader.problems.push(reader.config.problem_at("", "config.yaml must be a table", "a table is wanted")),
        }
        Ok(reader.problems)
    }

    fn table(&mut self, parent: NodeId, shape: ShapeId, spelled: &str, entries: serde_yaml::Mapping) {
        let shape = shapes().get(shape);
        for (key, value) in entries {
            let Some(key) = key_of(&key) else {
                self.problem(spelled, "a key must be a text", "one of its keys is not");
                continue;
            };
            let path = join(spelled, &key);
            let field = shape.field(&key).filter(|_| !key.is_empty());
            // Beside named fields a lone value is a field misspelt; only tables may have names of the user's.
            let is_misspelt = |id| {
                !value.is_mapping()
                    && !value.is_null()
                    && shape.field_names().all(|name| name != key)
                    && shape.field_names().next().is_some()
                    && shapes().get(id).is_only_table()
            };
            let Some((name, field)) = field.filter(|(_, id)| !is_misspelt(*id)) else {
                let unknown = shape.unknown_key(&self.config.tree.node(parent).path, &key);
                self.problem_at_key(&path, unknown);
                continue;
            };
            let canonical = join(&self.config.tree.node(parent).path, name);
            if self.config.tree.find(&canonical).is_some() {
                let mut problem = Problem::new(format!("`{canonical}` is given twice"));
                problem.label = "the same key".into();
                self.problem_at_key(&path, problem);
                continue;
            }
            if canonical != path {
                self.config.spelled.insert(canonical.into(), path.clone());
            }
            if let Some(node) = self.config.tree.enter(parent, name) {
                self.value(node, field, &path, value);
            }
        }
    }

    fn value(&mut self, node: NodeId, shape_id: ShapeId, path: &str, value: Yaml) {
        let shape = shapes().get(shape_id);
        let value = match value {
            Yaml::Mapping(entries) if shape.is_table() => return self.table(node, shape_id, path, entries),
            Yaml::Null if shape.is_only_table() => return,
            Yaml::String(text) if text.contains("${") => match expand(&text, self.env) {
                Ok(text) => Ok(self.expanded(shape, path, text)),
                Err(why) => return self.problem(path, format!("`{path}`: {why}"), "cannot be expanded"),
            },
            Yaml::Sequence(_) => self.expand_list(value).and_then(json_of),
            value => json_of(value),
        };
        let accepted = match value {
            Ok(value) => shape.accept(path, value).map(|value| self.config.tree.set(node, value, Layer::File)),
            Err(why) => return self.problem(path, format!("`{path}` {why}"), why),
        };
        if let Err(problem) = accepted {
            let span = self.config.spans().find(path).map_or(0..0, |place| place.caret());
            self.problems.push(placed(problem, &self.config.source, span));
        }
    }

    /// An expanded text is typed as if it stood there itself, unless it is quoted where anything may stand.
    fn expanded(&self, shape: &Shape, path: &str, text: String) -> Value {
        let is_text = shape.wants_string()
            || shape.is_open() && !self.config.spans().find(path).is_some_and(|place| place.is_plain);
        let scalar = if is_text { None } else { serde_yaml::from_str::<Yaml>(&text).ok() };
        match scalar.map(scalar_of) {
            Some(Ok(value)) => value,
            _ => Value::String(text),
        }
    }

    fn expand_list(&self, value: Yaml) -> Result<Yaml, String> {
        Ok(match value {
            Yaml::String(text) => Yaml::String(expand(&text, self.env)?),
            Yaml::Sequence(items) => {
                Yaml::Sequence(items.into_iter().map(|item| self.expand_list(item)).collect::<Result<_, _>>()?)
            }
            other => other,
        })
    }

    fn problem_at_key(&mut self, path: &str, problem: Problem) {
        let span = self.config.spans().find(path).map_or(0..0, |place| place.key);
        self.problems.push(placed(problem, &self.config.source, span));
    }

    fn problem(&mut self, path: &str, message: impl Into<String>, label: impl Into<String>) {
        let problem = self.config.problem_at(path, message, label);
        self.problems.push(problem);
    }
}

/// A YAML scalar as JSON; the error completes "the value …".
pub(super) fn scalar_of(scalar: Yaml) -> Result<Value, String> {
    Ok(match scalar {
        Yaml::Null => Value::Null,
        Yaml::Bool(flag) => Value::Bool(flag),
        Yaml::String(text) => Value::String(text),
        Yaml::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), _, _) => number.into(),
            (_, Some(number), _) => number.into(),
            (_, _, Some(number)) if number.is_finite() => number.into(),
            _ => return Err("is not a finite number".into()),
        },
        _ => return Err("is not a single value".into()),
    })
}

fn parse(source: &std::sync::Arc<Source>) -> Result<Yaml, Vec<Problem>> {
    let parsed = serde_yaml::from_str::<Yaml>(&source.text);
    let error = match parsed.and_then(|mut yaml| yaml.apply_merge().map(|()| yaml)) {
        Ok(yaml) => return Ok(yaml),
        Err(error) => error,
    };
    let duplicates = Spans::of(&source.text).duplicates;
    if !duplicates.is_empty() {
        let problem = |d: super::spans::Duplicate| {
            Problem::new(format!("the key `{}` is given twice", d.key)).at(source, d.second, "again here")
        };
        return Err(duplicates.into_iter().map(problem).collect());
    }
    let text = error.to_string();
    let why = text.split(" at line ").next().unwrap_or(&text);
    let problem = Problem::new(format!("not YAML: {why}"));
    Err(vec![match error.location() {
        Some(location) => problem.at(source, caret(&source.text, location.index()), "here"),
        None => problem.at(source, 0..0, ""),
    }])
}

/// One whole character at or before `index`.
fn caret(text: &str, index: usize) -> std::ops::Range<usize> {
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let start = (0..=index.min(text.len())).rev().find(is_boundary).unwrap_or(0);
    start..(start + 1..=text.len()).find(is_boundary).unwrap_or(text.len())
}

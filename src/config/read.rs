//! config.yaml's text → values in the tree, each checked against its shape.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_yaml::Value as Yaml;

use tprimat_words::part;

use super::{
    dialect::{self, Moved, Translated},
    interpolate::{expand, secret_in, variables},
    layers::{Config, Layer, placed},
    names::canonical_id,
    resolve::{json_of, key_of},
    shape::{Shape, ShapeId, join, shapes},
    spans::Spans,
    tree::{NodeId, ROOT},
    upgrade::Translation,
};
use crate::error::{Problem, Source};

pub(super) struct ConfigReader<'a> {
    config: &'a mut Config,
    env: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl<'a> ConfigReader<'a> {
    /// Fills the config's tree with all that is right. Err: the text is not YAML.
    pub fn read(
        config: &'a mut Config,
        env: &'a BTreeMap<String, String>,
    ) -> Result<Vec<Problem>, Vec<Problem>> {
        let yaml = parse(&config.source)?;
        variables(&yaml, &mut config.variables);
        let mut reader = ConfigReader {
            config,
            env,
            problems: Vec::new(),
        };
        match yaml {
            Yaml::Null => {}
            Yaml::Mapping(mut entries) => {
                let moved = dialect::take(&mut entries);
                reader.table(ROOT, shapes().root, "", entries);
                reader.dialect(moved);
            }
            _ => reader.problems.push(reader.config.problem_at(
                "",
                "config.yaml must be a table",
                "expected a table",
            )),
        }
        Ok(reader.problems)
    }

    fn table(
        &mut self,
        parent: NodeId,
        shape: ShapeId,
        spelled: &str,
        entries: serde_yaml::Mapping,
    ) {
        let shape = shapes().get(shape);
        for (key, value) in entries {
            let Some(key) = key_of(&key) else {
                self.problem(spelled, "a key must be a text", "one of its keys is not");
                continue;
            };
            let path = join(spelled, &key);
            let field = shape.field(&key).filter(|_| !key.is_empty());
            // Beside named fields a lone value is a field misspelt; only tables may have names of
            // the user's.
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
            let above = &self.config.tree.node(parent).path;
            let name = canonical_id(above, name);
            let canonical = join(above, name);
            // A null states nothing, but in `env`, where it takes a variable away.
            if value.is_null() && !shapes().get(field).is_only_table() && !above.ends_with(".env") {
                continue;
            }
            if let Some(known) = self.config.tree.find(&canonical) {
                // `max_steps: 10` beside `train_iters: 10` says one thing twice.
                let stated = json_of(value)
                    .ok()
                    .and_then(|value| shapes().get(field).accept(&path, value).ok());
                if stated.is_some()
                    && known.leaf.as_ref().map(|(value, _)| value) == stated.as_ref()
                {
                    continue;
                }
                let first = self.config.spelled.get(canonical.as_str());
                let other = match first {
                    Some(other) if *other != path => other.clone(),
                    _ if path != canonical => path.clone(),
                    _ => String::new(),
                };
                let message = if other.is_empty() {
                    format!("`{canonical}` is given twice")
                } else {
                    format!("`{canonical}` is given twice, as `{other}` too")
                };
                let mut problem = Problem::new(message).help("leave one of them out");
                problem.label = "the same key, with another value".into();
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

    /// What the file says in an older suite's way, once everything else is read.
    fn dialect(&mut self, moved: Vec<Moved>) {
        for Moved {
            from,
            value,
            meaning,
        } in moved
        {
            match dialect::translate(self.config, &from, &value, meaning) {
                Ok(Translated { settings, note }) => {
                    for (to, value) in &settings {
                        self.place(&from, to, value.clone());
                    }
                    self.config.translations.push(Translation {
                        from: from.clone(),
                        settings,
                    });
                    self.config
                        .notes
                        .extend(note.map(|note| self.at_key(&from, note)));
                }
                Err(problem) => self.problem_at_key(&from, problem),
            }
        }
    }

    /// Puts the value that the file spells `from` at the canonical path `to`.
    fn place(&mut self, from: &str, to: &[String], value: Yaml) {
        let canonical = to.join(".");
        let (mut node, mut shape_id) = (ROOT, shapes().root);
        let mut above = String::new();
        for key in to {
            let Some((_, field)) = shapes().get(shape_id).field(key) else {
                let problem = shapes().get(shape_id).unknown_key(from, key);
                return self.problem_at_key(from, problem);
            };
            shape_id = field;
            above = join(&above, key);
            if above == canonical
                && let Some((known, _)) = self.config.tree.leaf(&canonical)
            {
                let problem =
                    Problem::new(format!("`{canonical}` is given twice, as `{from}` too"));
                if json_of(value).ok().as_ref() != Some(known) {
                    self.problem_at_key(from, problem.help("leave one of them out"));
                }
                return;
            }
            match self.config.tree.enter(node, key) {
                Some(next) => node = next,
                None => return,
            }
        }
        self.config
            .spelled
            .insert(canonical.into(), from.to_owned());
        self.value(node, shape_id, from, value);
    }

    fn value(&mut self, node: NodeId, shape_id: ShapeId, path: &str, value: Yaml) {
        let shape = shapes().get(shape_id);
        let value = match value {
            Yaml::Mapping(entries) if shape.is_table() => {
                return self.table(node, shape_id, path, entries);
            }
            Yaml::Null if shape.is_only_table() => return,
            Yaml::String(text) if text.contains("${") => {
                // What a file of somebody else's may read of this environment would stand in tables
                // and pages.
                let secret = Some(path)
                    .filter(|path| !is_in_env(path))
                    .and_then(|_| secret_in(&text));
                if let Some(name) = secret {
                    let message = format!(
                        "`{path}` would publish the variable {name}, whose name is that of a secret"
                    );
                    let problem =
                        Problem::new(message).help("a trainer gets secrets through an `env` table");
                    self.leave_out(node);
                    return self.problem_at_value(path, problem, "only `env` tables may name it");
                }
                match expand(&text, self.env) {
                    Ok(text) => Ok(self.expanded(shape, path, text)),
                    Err(why) => {
                        self.leave_out(node);
                        let problem = Problem::new(format!("`{path}`: {why}")).help(
                            "`${NAME:-default}` stands in where it is not set; `$NAME` or `$${NAME}` is left to the shell of the run",
                        );
                        return self.problem_at_value(path, problem, "cannot be expanded");
                    }
                }
            }
            Yaml::Sequence(_) => self.expand_list(value).and_then(json_of),
            value => json_of(value),
        };
        let accepted = match value {
            Ok(value) => shape
                .accept(path, value)
                .map(|value| self.config.tree.set(node, value, Layer::File)),
            Err(why) => {
                self.leave_out(node);
                return self.problem(path, format!("`{path}` {why}"), why);
            }
        };
        if let Err(problem) = accepted {
            self.leave_out(node);
            let span = self
                .config
                .spans()
                .find(path)
                .map_or(0..0, |place| place.caret());
            self.problems
                .push(placed(problem, &self.config.source, span));
        }
    }

    /// A value that is wrong is as good as none.
    fn leave_out(&mut self, node: NodeId) {
        let path = self.config.tree.node(node).path.clone();
        self.config.tree.remove(node);
        self.config.left_out.push(path);
    }

    /// An expanded text is typed as if it stood there itself, unless it is quoted where anything
    /// may stand.
    fn expanded(&self, shape: &Shape, path: &str, text: String) -> Value {
        let is_text = shape.wants_string()
            || shape.is_open()
                && !self
                    .config
                    .spans()
                    .find(path)
                    .is_some_and(|place| place.is_plain);
        let scalar = if is_text {
            None
        } else {
            serde_yaml::from_str::<Yaml>(&text).ok()
        };
        match scalar.map(scalar_of) {
            Some(Ok(value)) => value,
            _ => Value::String(text),
        }
    }

    fn expand_list(&self, value: Yaml) -> Result<Yaml, String> {
        Ok(match value {
            Yaml::String(text) => match secret_in(&text) {
                Some(name) => return Err(format!("names {name}, a secret; only `env` tables may")),
                None => Yaml::String(expand(&text, self.env)?),
            },
            Yaml::Sequence(items) => Yaml::Sequence(
                items
                    .into_iter()
                    .map(|item| self.expand_list(item))
                    .collect::<Result<_, _>>()?,
            ),
            other => other,
        })
    }

    fn problem_at_key(&mut self, path: &str, problem: Problem) {
        let problem = self.at_key(path, problem);
        self.problems.push(problem);
    }

    fn at_key(&self, path: &str, problem: Problem) -> Problem {
        let span = self
            .config
            .spans()
            .find(path)
            .map_or(0..0, |place| place.key);
        placed(problem, &self.config.source, span)
    }

    fn problem_at_value(&mut self, path: &str, problem: Problem, label: &str) {
        let Problem { place, .. } = self.config.problem_at(path, "", "");
        self.problems.push(Problem {
            place,
            label: label.to_owned(),
            ..problem
        });
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

/// Bytes of config.yaml, and how deep `[` and `{` may nest in it: the parser takes quadratic time
/// for more.
const MAX_BYTES: usize = 4 << 20;
const MAX_NESTING: usize = 64;

fn parse(source: &std::sync::Arc<Source>) -> Result<Yaml, Vec<Problem>> {
    if source.text.len() > MAX_BYTES {
        let message = format!(
            "the file has {} bytes; at most {MAX_BYTES} are read",
            source.text.len()
        );
        return Err(vec![Problem::new(message).at(source, 0..0, "")]);
    }
    if let Some(at) = too_deep(&source.text) {
        let message = format!("brackets are nested more than {MAX_NESTING} deep");
        return Err(vec![Problem::new(message).at(
            source,
            at..at + 1,
            "too deep",
        )]);
    }
    let parsed = serde_yaml::from_str::<Yaml>(&source.text);
    let error = match parsed.and_then(|mut yaml| yaml.apply_merge().map(|()| yaml)) {
        Ok(yaml) => return Ok(yaml),
        Err(error) => error,
    };
    let duplicates = Spans::of(&source.text).duplicates;
    if !duplicates.is_empty() {
        let problem = |d: super::spans::Duplicate| {
            let first = 1 + part(&source.text, ..d.first.start).matches('\n').count();
            Problem::new(format!("the key `{}` is given twice", d.key))
                .at(source, d.second, "again here")
                .help(format!(
                    "line {first} has it already: leave one of the two out"
                ))
        };
        return Err(duplicates.into_iter().map(problem).collect());
    }
    let text = error.to_string();
    let why = text.split(" at line ").next().unwrap_or(&text);
    let problem = Problem::new(format!("not YAML: {why}"));
    let Some(location) = error.location() else {
        return Err(vec![problem.at(source, 0..0, "")]);
    };
    let caret = caret(&source.text, location.index());
    let is_tab = part(&source.text, caret.clone()) == "\t";
    let problem = problem.at(source, caret, "here");
    Err(vec![if is_tab {
        problem.help("this is a tab: YAML is indented with spaces")
    } else {
        problem
    }])
}

/// Where a bracket opens that is deeper than is read. Brackets in quotes count too: a line of text
/// has seldom so many.
fn too_deep(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Some(at);
        }
    }
    None
}

/// One whole character at or before `index`.
fn caret(text: &str, index: usize) -> std::ops::Range<usize> {
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let start = (0..=index.min(text.len()))
        .rev()
        .find(is_boundary)
        .unwrap_or(0);
    start
        ..(start + 1..=text.len())
            .find(is_boundary)
            .unwrap_or(text.len())
}

/// Is the path that of a variable in an `env` table?
fn is_in_env(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(table, _)| table.ends_with(".env"))
}

//! config.yaml's text → values, each checked against its shape.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use serde_yaml::{Mapping, Value as Yaml};

use super::{
    interpolate::{expand, secret_in, variables},
    layers::{Config, Layer},
    names::canonical_id,
    nested::join,
    older_keys::{self, Moved, Translated},
    resolve::labelled,
    shape::Shape,
    yaml::{json_of, key_of, parse},
};
use crate::error::Problem;

const GIVEN_TWICE: &str = "leave one of them out";

pub(super) struct ConfigReader<'a> {
    config: &'a mut Config,
    env: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
    /// The ids of the file's platforms.
    platforms: Vec<String>,
    /// Keys that only older suites write.
    moved: Vec<Moved>,
}

impl<'a> ConfigReader<'a> {
    /// Fills the config with all that is right. Err: the text is not YAML.
    pub fn read(
        config: &'a mut Config,
        env: &'a BTreeMap<String, String>,
    ) -> Result<Vec<Problem>, Vec<Problem>> {
        let yaml = parse(&config.source)?;
        variables(&yaml, &mut config.variables);
        let platforms = yaml.get("hardware").and_then(|t| t.get("platforms"));
        let platforms = platforms.and_then(Yaml::as_mapping).into_iter().flatten();
        let mut reader = ConfigReader {
            platforms: platforms.filter_map(|(id, _)| key_of(id)).collect(),
            config,
            env,
            problems: Vec::new(),
            moved: Vec::new(),
        };
        match yaml {
            Yaml::Null => {}
            Yaml::Mapping(entries) => {
                let table = reader.table(Shape::root(), "", "", entries);
                reader.config.values = Value::Object(table);
                reader.place_moved();
            }
            _ => {
                let message = "config.yaml must be a table".to_owned();
                reader.problem_at_value("", labelled(message, "expected a table"));
            }
        }
        Ok(reader.problems)
    }

    /// `above` is the table's path, which the file spells `spelled`.
    fn table(
        &mut self,
        shape: Shape,
        above: &str,
        spelled: &str,
        entries: Mapping,
    ) -> Map<String, Value> {
        let mut table = Map::new();
        for (key, value) in entries {
            let Some(key) = key_of(&key) else {
                let message = "a key must be a text".to_owned();
                self.problem_at_value(spelled, labelled(message, "one of its keys is not"));
                continue;
            };
            let path = join(spelled, &key);
            if self.is_moved(above, &path, &key, &value) {
                continue;
            }
            let Some((name, field)) = field_for(shape, &key, &value) else {
                self.problem_at_key(&path, shape.unknown_key(above, &key));
                continue;
            };
            let name = canonical_id(above, name);
            let canonical = join(above, name);
            // A null states nothing, but in `env`, where it takes a variable away.
            if value.is_null() && !field.is_only_table() && !above.ends_with(".env") {
                continue;
            }
            if let Some(known) = table.get(name) {
                self.given_twice(&canonical, &path, field, known, value);
                continue;
            }
            if canonical != path {
                self.config.spelled.insert(canonical.clone(), path.clone());
            }
            if let Some(value) = self.value(field, &canonical, &path, value) {
                table.insert(name.to_owned(), value);
            }
        }
        table
    }

    /// `max_steps: 10` beside `train_iters: 10` says one thing twice; beside another value it is a
    /// mistake.
    fn given_twice(
        &mut self,
        canonical: &str,
        path: &str,
        shape: Shape,
        known: &Value,
        value: Yaml,
    ) {
        let stated = json_of(value).ok();
        let stated = stated.and_then(|value| shape.accept(path, value).ok());
        if stated.as_ref() == Some(known) {
            return;
        }
        let first = self.config.spelled.get(canonical);
        let other = first
            .filter(|first| *first != path)
            .map_or(path, String::as_str);
        let also = match other == canonical {
            true => String::new(),
            false => format!(", as `{other}` too"),
        };
        let message = format!("`{canonical}` is given twice{also}");
        let problem = labelled(message, "the same key, with another value");
        self.problem_at_key(path, problem.help(GIVEN_TWICE));
    }

    /// Is this a key that only older suites write? It is put in today's place once everything else
    /// is read.
    fn is_moved(&mut self, above: &str, path: &str, key: &str, value: &Yaml) -> bool {
        let meaning = older_keys::meaning(above, key, value, &self.platforms);
        let is_moved = meaning.is_some();
        self.moved.extend(meaning.map(|meaning| Moved {
            from: path.to_owned(),
            value: value.clone(),
            meaning,
        }));
        is_moved
    }

    fn place_moved(&mut self) {
        for moved in std::mem::take(&mut self.moved) {
            let from = moved.from.clone();
            match older_keys::translate(self.config, moved) {
                Ok(Translated { settings, note }) => {
                    for (to, value) in settings {
                        self.place(&from, &to, value);
                    }
                    let note = note.map(|note| self.at_key(&from, note));
                    self.config.notes.extend(note);
                }
                Err(problem) => self.problem_at_key(&from, problem),
            }
        }
    }

    /// Puts the value that the file spells `from` at the canonical path `to`.
    fn place(&mut self, from: &str, to: &[String], value: Yaml) {
        if value.is_null() {
            return;
        }
        let canonical = to.join(".");
        let mut shape = Shape::root();
        for key in to {
            match shape.field(key) {
                Some((_, field)) => shape = field,
                None => return self.problem_at_key(from, shape.unknown_key(from, key)),
            }
        }
        if let Some(known) = self.config.get(&canonical) {
            if json_of(value).ok().as_ref() != Some(known) {
                let message = format!("`{canonical}` is given twice, as `{from}` too");
                self.problem_at_key(from, Problem::new(message).help(GIVEN_TWICE));
            }
            return;
        }
        self.config
            .spelled
            .insert(canonical.clone(), from.to_owned());
        if let Some(value) = self.value(shape, &canonical, from, value) {
            self.config.set(to, value, Layer::File);
        }
    }

    /// The value at a path as it should be. None: it is wrong, and as good as none.
    fn value(&mut self, shape: Shape, canonical: &str, path: &str, value: Yaml) -> Option<Value> {
        let told = |why: String| labelled(format!("`{path}` {why}"), &why);
        let value = match value {
            Yaml::Mapping(entries) if shape.is_table() => {
                return Some(Value::Object(self.table(shape, canonical, path, entries)));
            }
            Yaml::Mapping(entries) => {
                let count = entries.len();
                let mut others = entries;
                others.retain(|key, value| {
                    let key = key_of(key).unwrap_or_default();
                    !self.is_moved(canonical, &join(path, &key), &key, value)
                });
                if others.is_empty() && count > 0 {
                    return None;
                }
                json_of(Yaml::Mapping(others)).map_err(told)
            }
            Yaml::Null if shape.is_only_table() => return Some(Value::Object(Map::new())),
            Yaml::String(text) if text.contains("${") => self.expanded(shape, path, &text),
            Yaml::Sequence(_) => self.expanded_list(value).and_then(json_of).map_err(told),
            value => json_of(value).map_err(told),
        };
        match value.and_then(|value| shape.accept(path, value)) {
            // An empty variable is as if the line were left out; in `env` it takes a variable away.
            Ok(Value::Null) if !canonical.split('.').any(|key| key == "env") => None,
            Ok(value) => {
                self.config.layers.insert(canonical.to_owned(), Layer::File);
                Some(value)
            }
            Err(problem) => {
                self.config.left_out.push(canonical.to_owned());
                self.problem_at_value(path, problem);
                None
            }
        }
    }

    /// A text with its variables expanded. It is typed as if it stood there itself, unless it is
    /// quoted where anything may stand.
    fn expanded(&self, shape: Shape, path: &str, text: &str) -> Result<Value, Problem> {
        // What a file of somebody else's may read of this environment would stand in tables and
        // pages.
        if let Some(name) = secret_in(text).filter(|_| !is_in_env(path)) {
            let message = format!(
                "`{path}` would publish the variable {name}, whose name is that of a secret"
            );
            return Err(labelled(message, "only `env` tables may name it")
                .help("a trainer gets secrets through an `env` table"));
        }
        let text = expand(text, self.env).map_err(|why| {
            labelled(format!("`{path}`: {why}"), "cannot be expanded").help(
                "`${NAME:-default}` stands in where it is not set; `$NAME` or `$${NAME}` is left to the shell of the run",
            )
        })?;
        let place = self.config.places().find(path);
        let is_quoted = !place.is_some_and(|place| place.is_plain);
        if shape.wants_string() || shape.is_open() && is_quoted {
            return Ok(Value::String(text));
        }
        let scalar = serde_yaml::from_str::<Yaml>(&text).ok();
        let scalar = scalar.filter(|yaml| !yaml.is_mapping() && !yaml.is_sequence());
        let value = scalar.and_then(|scalar| json_of(scalar).ok());
        Ok(value.unwrap_or(Value::String(text)))
    }

    fn expanded_list(&self, value: Yaml) -> Result<Yaml, String> {
        Ok(match value {
            Yaml::String(text) => match secret_in(&text) {
                Some(name) => return Err(format!("names {name}, a secret; only `env` tables may")),
                None => Yaml::String(expand(&text, self.env)?),
            },
            Yaml::Sequence(items) => {
                let items = items.into_iter().map(|item| self.expanded_list(item));
                Yaml::Sequence(items.collect::<Result<_, _>>()?)
            }
            other => other,
        })
    }

    fn at_key(&self, path: &str, problem: Problem) -> Problem {
        let place = self.config.places().find(path);
        let span = place.map_or(0..0, |place| place.key.clone());
        Problem {
            place: Some((self.config.source.clone(), span)),
            ..problem
        }
    }

    fn problem_at_key(&mut self, path: &str, problem: Problem) {
        let problem = self.at_key(path, problem);
        self.problems.push(problem);
    }

    fn problem_at_value(&mut self, path: &str, problem: Problem) {
        let span = self.config.nearest_span(path);
        self.problems.push(Problem {
            place: Some((self.config.source.clone(), span)),
            ..problem
        });
    }
}

/// What `key` holds in a table of this shape. Beside named fields a lone value is a field misspelt;
/// only tables may have names of the user's.
fn field_for<'a>(shape: Shape, key: &'a str, value: &Yaml) -> Option<(&'a str, Shape)> {
    let (name, field) = shape.field(key).filter(|_| !key.is_empty())?;
    let is_misspelt = !value.is_mapping()
        && !value.is_null()
        && shape.field_names().next().is_some()
        && shape.field_names().all(|name| name != key)
        && field.is_only_table();
    (!is_misspelt).then_some((name, field))
}

/// Is the path that of a variable in an `env` table?
fn is_in_env(path: &str) -> bool {
    path.rsplit_once('.')
        .is_some_and(|(table, _)| table.ends_with(".env"))
}

//! config.yaml < environment < `--set`, merged once.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use super::{
    check,
    environment::VARIABLES,
    known_models,
    layers::{Config, Layer, after_equals},
    nested, plausible,
    read::ConfigReader,
    shape::{defaults, entry_defaults},
};
use crate::error::{Error, Problem, Result, Source};

impl Config {
    /// `env` is the process environment, handed in so that loading is a pure function. `sets`:
    /// `PATH=VALUE`, VALUE in YAML.
    pub fn load(
        source: Arc<Source>,
        env: &BTreeMap<String, String>,
        sets: &[String],
    ) -> Result<Self> {
        match Self::read(source, env, sets) {
            (Some(config), problems) if problems.is_empty() => Ok(config),
            (_, problems) => Err(Error::Invalid(problems)),
        }
    }

    /// Like [`Config::load`], but keeps what is right beside all that is wrong, so that a matrix
    /// can be checked as well. No config: the file is not YAML, and there is at least one problem.
    #[must_use]
    pub fn read(
        source: Arc<Source>,
        env: &BTreeMap<String, String>,
        sets: &[String],
    ) -> (Option<Self>, Vec<Problem>) {
        let mut config = Self::empty(source, sets);
        let mut problems = match ConfigReader::read(&mut config, env) {
            Ok(problems) => problems,
            Err(problems) => return (None, problems),
        };
        config.apply_environment(env, &mut problems);
        config.apply_sets(&mut problems);
        known_models::fill(&mut config);
        add_defaults(&mut config.values, defaults());
        for (table, defaults) in entry_defaults() {
            config.add_entry_defaults(table, defaults);
        }
        config.fill_settings();
        problems.extend(check::check(&config));
        let (implausible, unlikely) = plausible::look(&config);
        problems.extend(implausible);
        config.notes.extend(unlikely);
        let places = problems.iter().filter_map(|problem| problem.place.as_ref());
        let own = places.filter(|(source, _)| *source == config.source);
        config.faulty = own.map(|(_, span)| span.clone()).collect();
        (Some(config), problems)
    }

    fn apply_environment(&mut self, env: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
        for (index, (variable, path)) in VARIABLES.iter().enumerate() {
            // As in a shell's `${X:-…}`, empty is unset; and a platform that the file lacks has
            // nothing to set.
            let Some(text) = env.get(*variable).filter(|text| !text.is_empty()) else {
                continue;
            };
            let of_platform = path.strip_prefix("hardware.platforms.");
            let path = match of_platform.and_then(|rest| rest.split_once('.')) {
                None => (*path).to_owned(),
                Some((platform, key)) => match self.platforms_named(platform)[..] {
                    [] => continue,
                    [id, ..] => format!("hardware.platforms.{id}.{key}"),
                },
            };
            let source = Source::new("environment", format!("{variable}={text}"));
            self.environment[index] = Some(source.clone());
            if let Err(problem) = self.apply(&path, text, Layer::Environment(index)) {
                let place = Some((source.clone(), after_equals(&source)));
                problems.push(Problem { place, ..problem });
            }
        }
    }

    fn apply_sets(&mut self, problems: &mut Vec<Problem>) {
        for (index, source) in self.sets.clone().iter().enumerate() {
            let Some((path, text)) = source.text.split_once('=') else {
                let problem = Problem::new(format!("--set {} has no value", source.text));
                let problem = problem.at(source, 0..source.text.len(), "expected PATH=VALUE");
                problems.push(problem.help("as in --set training.seed=7"));
                continue;
            };
            let (problem, span) = match self.resolve(path.trim()) {
                Err(problem) => (problem, 0..path.len()),
                Ok(_) => match self.apply(path.trim(), text.trim(), Layer::Set(index)) {
                    Err(problem) => (problem, after_equals(source)),
                    Ok(()) => continue,
                },
            };
            let place = Some((source.clone(), span));
            problems.push(Problem { place, ..problem });
        }
    }

    fn apply(&mut self, path: &str, text: &str, layer: Layer) -> Result<(), Problem> {
        let value = self.value_of_text(path, text)?;
        for (keys, value) in self.typed_leaves(path, value)? {
            let path = keys.join(".");
            // There null is a statement: it takes away what a weaker table sets.
            let is_variable = keys.iter().rev().nth(1).is_some_and(|key| key == "env");
            if !value.is_null() || is_variable {
                self.set(&keys, value, layer);
                continue;
            }
            self.forget(&path);
            if self.children(&path).next().is_some() {
                nested::put(
                    &mut self.values,
                    &keys,
                    Value::Object(serde_json::Map::new()),
                );
            } else {
                nested::remove(&mut self.values, &keys);
            }
        }
        Ok(())
    }

    /// The defaults of a table whose keys are the user's: each entry has them.
    fn add_entry_defaults(&mut self, table: &str, defaults: &Value) {
        let keys: Vec<&str> = table.split('.').collect();
        let entries = keys
            .iter()
            .try_fold(&mut self.values, |table, key| table.get_mut(*key));
        let entries = entries.and_then(Value::as_object_mut);
        for (_, entry) in entries.into_iter().flatten() {
            if entry.is_object() {
                add_defaults(entry, defaults);
            }
        }
    }
}

/// Gives a table what it does not state. Null is no default, and nothing is added below a value.
fn add_defaults(table: &mut Value, defaults: &Value) {
    let Some(table) = table.as_object_mut() else {
        return;
    };
    for (key, default) in defaults.as_object().into_iter().flatten() {
        let is_empty = default.as_object().is_some_and(serde_json::Map::is_empty);
        if default.is_null() || is_empty {
            continue;
        }
        match default {
            Value::Object(_) => {
                let empty = || Value::Object(serde_json::Map::new());
                add_defaults(table.entry(key).or_insert_with(empty), default);
            }
            _ => _ = table.entry(key).or_insert_with(|| default.clone()),
        }
    }
}

//! The text of a lock → [`Lock`], or all that is wrong with it.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{DATA_TABLES, Fact, Lock, Section, VERSION};
use crate::error::{Problem, Result, Source, did_you_mean};

/// Walks the parsed file and keeps the place of everything that is wrong.
pub(super) struct LockReader<'a> {
    pub(super) source: &'a Arc<Source>,
    pub(super) problems: Vec<Problem>,
}

/// A lock that cannot be read stops `tprimat lock --update` as well.
const HELP: &str =
    "restore it from git, or remove it: the next build on each platform's host pins it anew";

type Entries<'t, 'i> = Vec<(&'t str, Range<usize>, &'t Spanned<DeValue<'i>>)>;

impl LockReader<'_> {
    pub(super) fn lock(mut self) -> Result<Lock, Vec<Problem>> {
        let source = self.source.clone();
        let table = match DeTable::parse(&source.text) {
            Ok(table) => table,
            Err(error) => {
                self.wrong(error.span().unwrap_or(0..0), error.message().to_owned(), "");
                return Err(self.problems);
            }
        };
        let mut lock = Lock::default();
        let mut version = None;
        for (name, place, value) in entries(table.get_ref()) {
            match name {
                "version" => version = self.version(value),
                "platform" => {
                    for (id, _, value) in self.table(value, "a table of platforms") {
                        let section = self.section(value);
                        lock.platforms.insert(id.to_owned(), section);
                    }
                }
                other => self.unknown(other, place, &["version", "platform"]),
            }
        }
        if version.is_none() && self.problems.is_empty() {
            self.wrong(0..0, "the lock has no `version`".into(), "");
        }
        // In the order of the file, which is not the order of the parsed table.
        self.problems
            .sort_by_key(|problem| problem.place.as_ref().map(|(_, span)| span.start));
        if self.problems.is_empty() {
            Ok(lock)
        } else {
            Err(self.problems)
        }
    }

    fn version(&mut self, value: &Spanned<DeValue>) -> Option<i64> {
        let found = integer(value.get_ref());
        match found {
            Some(VERSION) => {}
            Some(other) if other > VERSION => {
                let message =
                    format!("the lock has version {other}, and this tprimat knows {VERSION}");
                let problem =
                    Problem::new(message).at(self.source, value.span(), "newer than this tprimat");
                self.problems.push(problem.help("update tprimat"));
            }
            _ => self.wrong(
                value.span(),
                "not a version of the lock".into(),
                "expected 1",
            ),
        }
        found
    }

    fn section(&mut self, value: &Spanned<DeValue>) -> Section {
        let mut section = Section::default();
        for (name, _, value) in self.table(value, "a table of facts") {
            if name == "recipe" {
                for (recipe, _, value) in self.table(value, "a table of recipes") {
                    self.recipe(recipe, value, &mut section);
                }
                continue;
            }
            if DATA_TABLES.contains(&name) {
                let digests = self.texts(value, "a digest in quotes");
                section.data.insert(name.to_owned(), digests);
                continue;
            }
            match value.get_ref() {
                DeValue::String(text) => drop(
                    section
                        .facts
                        .insert(name.to_owned(), Fact::Text(text.to_string())),
                ),
                other => match integer(other) {
                    Some(number) => {
                        drop(section.facts.insert(name.to_owned(), Fact::Number(number)))
                    }
                    None => self.wrong(
                        value.span(),
                        format!("`{name}` cannot be read"),
                        "expected a string or an integer",
                    ),
                },
            }
        }
        section
    }

    fn recipe(&mut self, recipe: &str, value: &Spanned<DeValue>, section: &mut Section) {
        for (name, place, value) in self.table(value, "a table") {
            match name {
                "packages" => drop(
                    section
                        .packages
                        .insert(recipe.to_owned(), self.texts(value, "a version in quotes")),
                ),
                "checkouts" => {
                    let checkouts = self.table(value, "a table of checkouts").into_iter();
                    let facts = checkouts.map(|(variable, _, value)| {
                        (
                            variable.to_owned(),
                            self.texts(value, "a commit or a digest in quotes"),
                        )
                    });
                    section.checkouts.insert(recipe.to_owned(), facts.collect());
                }
                _ => self.unknown(name, place, &["packages", "checkouts"]),
            }
        }
    }

    fn texts(&mut self, value: &Spanned<DeValue>, expected: &str) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for (name, _, value) in self.table(value, "a table") {
            match value.get_ref() {
                DeValue::String(text) => drop(texts.insert(name.to_owned(), text.to_string())),
                _ => self.wrong(
                    value.span(),
                    format!("`{name}` cannot be read"),
                    &format!("expected {expected}"),
                ),
            }
        }
        texts
    }

    fn table<'t, 'i>(
        &mut self,
        value: &'t Spanned<DeValue<'i>>,
        expected: &str,
    ) -> Entries<'t, 'i> {
        match value.get_ref() {
            DeValue::Table(table) => entries(table),
            _ => {
                self.wrong(
                    value.span(),
                    "not a table".into(),
                    &format!("expected {expected}"),
                );
                Vec::new()
            }
        }
    }

    fn unknown(&mut self, name: &str, place: Range<usize>, known: &[&str]) {
        let problem = Problem::new(format!("unknown key `{name}`")).at(
            self.source,
            place,
            "not a key of the lock",
        );
        self.problems.push(Problem {
            help: did_you_mean(name, known.iter().copied()).or(Some(HELP.to_owned())),
            ..problem
        });
    }

    fn wrong(&mut self, place: Range<usize>, message: String, label: &str) {
        let problem = Problem::new(message).at(self.source, place, label);
        self.problems.push(problem.help(HELP));
    }
}

fn entries<'t, 'i>(table: &'t DeTable<'i>) -> Entries<'t, 'i> {
    table
        .iter()
        .map(|(key, value)| (key.get_ref().as_ref(), key.span(), value))
        .collect()
}

fn integer(value: &DeValue) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

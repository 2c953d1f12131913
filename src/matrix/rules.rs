//! `[[exclude]]` and `[[override]]`: which cells they are about, and what they do to them.

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::{
    file::{MatrixReader, Where, overlap},
    read::{Placed, in_file_order, json, print},
};
use crate::{
    config::{Origin, Setting, framework_named},
    error::did_you_mean,
};

impl MatrixReader<'_> {
    pub fn excludes(&mut self, root: &DeTable<'_>) -> Vec<(Where, String)> {
        let mut excludes = Vec::new();
        for table in self.toml.tables(root, "exclude") {
            self.toml
                .only_keys(table.value, "[[exclude]]", &["where", "reason"]);
            let place = self.wanted_where(&table, "[[exclude]]");
            let reason = table
                .value
                .get("reason")
                .and_then(|item| self.toml.text(item, "reason"));
            if !table.value.contains_key("reason") {
                self.toml
                    .problem(table.span.clone(), "[[exclude]] has no `reason`", "say why");
            }
            excludes.push((
                place,
                reason.map_or_else(String::new, |reason| reason.value),
            ));
        }
        excludes
    }

    pub fn overrides(&mut self, root: &DeTable<'_>) -> Vec<(Where, Vec<Setting>)> {
        let mut overrides = Vec::new();
        for table in self.toml.tables(root, "override") {
            self.toml
                .only_keys(table.value, "[[override]]", &["where", "set"]);
            let place = self.wanted_where(&table, "[[override]]");
            let mut settings = Vec::new();
            match table.value.get("set") {
                Some(item) => {
                    if let Some(set) = self.toml.table(item, "set") {
                        self.settings(set, "", &mut settings);
                    }
                }
                None => self.toml.problem(
                    table.span.clone(),
                    "[[override]] has no `set`",
                    "nothing is overridden",
                ),
            }
            overrides.push((place, settings));
        }
        overrides
    }

    /// `"a.b" = 1` and `a.b = 1` alike: the leaves of nested tables, each with its own place.
    fn settings(&mut self, table: &DeTable<'_>, above: &str, settings: &mut Vec<Setting>) {
        for (key, item) in in_file_order(table) {
            let path = if above.is_empty() {
                key.value
            } else {
                format!("{above}.{}", key.value)
            };
            if let DeValue::Table(table) = item.get_ref() {
                self.settings(table, &path, settings);
                continue;
            }
            if let Err(problem) = self.config.resolve(&path) {
                self.place(problem, key.span);
                continue;
            }
            let value = match json(item.get_ref()) {
                Ok(value) => Placed {
                    value,
                    span: item.span(),
                },
                Err(why) => {
                    self.toml
                        .problem(item.span(), format!("`{path}` {why}"), why);
                    continue;
                }
            };
            for (path, value) in self.typed(&path, value).into_iter().flatten() {
                if !self.is_of_cell(&path, &key.span) {
                    continue;
                }
                let axis = self.dimensions.iter().find(|d| {
                    d.leaf
                        .as_ref()
                        .is_some_and(|l| overlap(&l.value.path, &path))
                });
                if let Some(axis) = axis {
                    let message = format!(
                        "the override sets `{path}`, but the axis `{}` names cells after it",
                        axis.name
                    );
                    let help = "leave it to the axis, or give the axis another value";
                    self.toml
                        .problem_with_help(key.span.clone(), message, "set by an axis", help);
                }
                let origin = Origin::Matrix {
                    source: self.toml.source.clone(),
                    span: item.span(),
                };
                settings.push(Setting {
                    path,
                    value,
                    origin,
                });
            }
        }
    }

    fn wanted_where(&mut self, table: &Placed<&DeTable<'_>>, place: &str) -> Where {
        let Some(item) = table.value.get("where") else {
            self.toml.problem(
                table.span.clone(),
                format!("{place} has no `where`"),
                "of which cells?",
            );
            return Where::default();
        };
        let Some(conditions) = self.toml.table(item, "where") else {
            return Where::default();
        };
        let mut found = Where::default();
        for (key, item) in in_file_order(conditions) {
            let Some(index) = self.dimensions.iter().position(|d| *d.name == *key.value) else {
                let known: Vec<&str> = self.dimensions.iter().map(|d| &*d.name).collect();
                let help = did_you_mean(&key.value, known.iter().copied())
                    .unwrap_or_else(|| format!("there are {}", known.join(", ")));
                let message = format!("`where` names an unknown axis `{}`", key.value);
                self.toml
                    .problem_with_help(key.span, message, "no axis has this name", help);
                continue;
            };
            let mut wanted = vec![false; self.dimensions[index].values.len()];
            for value in self.toml.scalars(item, &key.value) {
                if let Some(position) = self.where_value(index, &value) {
                    wanted[position] = true;
                }
            }
            found.0.push((index, wanted));
        }
        found
    }

    fn where_value(&mut self, dimension: usize, value: &Placed<Value>) -> Option<usize> {
        let dimension = &self.dimensions[dimension];
        let typed = dimension
            .leaf
            .as_ref()
            .and_then(|leaf| leaf.value.accept(value.value.clone()).ok());
        let printed = print(typed.as_ref().unwrap_or(&value.value));
        let alias = match &*dimension.name {
            "platform" => match self.config.platforms_named(&printed)[..] {
                [id] => Some(id),
                _ => None,
            },
            "framework" => framework_named(&printed),
            _ => None,
        };
        let found = dimension
            .position(&printed)
            .or_else(|| dimension.position(alias?));
        // What is said of a strategy that `$PARALLEL` replaced is no slip: it is about no cell now.
        let is_replaced = &*dimension.name == "parallelism" && self.replaced.contains(&printed);
        // A dimension that is empty has its own problem already.
        if found.is_none() && !is_replaced && !dimension.values.is_empty() {
            let help = did_you_mean(&printed, dimension.names()).unwrap_or_else(|| {
                format!(
                    "there are {}",
                    dimension.names().collect::<Vec<_>>().join(", ")
                )
            });
            let message = format!("no cell has the {} `{printed}`", dimension.name);
            self.toml
                .problem_with_help(value.span.clone(), message, "matches nothing", help);
        }
        found
    }
}

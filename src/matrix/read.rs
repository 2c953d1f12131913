//! TOML with places: every value read here either is what was wanted or leaves a [`Problem`] with a
//! caret.

use std::{ops::Range, sync::Arc};

use serde_json::Value;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::error::{Problem, Source, did_you_mean};

pub(super) type Item<'a> = Spanned<DeValue<'a>>;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placed<T> {
    pub value: T,
    pub span: Range<usize>,
}

pub(super) struct TomlReader<'a> {
    pub source: &'a Arc<Source>,
    pub problems: Vec<Problem>,
}

impl TomlReader<'_> {
    pub fn problem(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
    ) {
        self.problems
            .push(Problem::new(message).at(self.source, span, label));
    }

    pub fn problem_with_help(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.problems.push(
            Problem::new(message)
                .at(self.source, span, label)
                .help(help),
        );
    }

    fn wanted(&mut self, item: &Item<'_>, name: &str, wanted: &str) {
        let found = item.get_ref().type_str();
        let message = format!("`{name}` must be {wanted}, not a value of type {found}");
        self.problem(item.span(), message, format!("expected {wanted}"));
    }

    /// Reports the keys that are not among `known`.
    pub fn only_keys(&mut self, table: &DeTable<'_>, place: &str, known: &[&str]) {
        self.only_keys_but(table, place, known, |_| None);
    }

    /// The same, where some other keys have help of their own.
    pub fn only_keys_but(
        &mut self,
        table: &DeTable<'_>,
        place: &str,
        known: &[&str],
        help: impl Fn(&str) -> Option<String>,
    ) {
        for (key, _) in in_file_order(table) {
            if !known.contains(&key.value.as_str()) {
                let help = help(&key.value)
                    .or_else(|| did_you_mean(&key.value, known.iter().copied()))
                    .unwrap_or_else(|| format!("known: {}", known.join(", ")));
                self.problem_with_help(
                    key.span,
                    format!("unknown key `{}` in {place}", key.value),
                    format!("not a key of {place}"),
                    help,
                );
            }
        }
    }

    pub fn table<'t, 'i>(&mut self, item: &'t Item<'i>, name: &str) -> Option<&'t DeTable<'i>> {
        let table = item.get_ref().as_table();
        if table.is_none() {
            self.wanted(item, name, "a table");
        }
        table
    }

    /// `[[name]]`, each entry with its place.
    pub fn tables<'t, 'i>(
        &mut self,
        root: &'t DeTable<'i>,
        name: &str,
    ) -> Vec<Placed<&'t DeTable<'i>>> {
        let Some(item) = root.get(name) else {
            return Vec::new();
        };
        let Some(list) = item.get_ref().as_array() else {
            let message = format!("`{name}` must be a list of tables");
            self.problem_with_help(
                item.span(),
                message,
                "a single one",
                format!("write [[{name}]]"),
            );
            return Vec::new();
        };
        let mut tables = Vec::new();
        for item in list.iter() {
            if let Some(table) = self.table(item, name) {
                tables.push(Placed {
                    value: table,
                    span: item.span(),
                });
            }
        }
        tables
    }

    pub fn text(&mut self, item: &Item<'_>, name: &str) -> Option<Placed<String>> {
        let text = item.get_ref().as_str();
        if text.is_none() {
            self.wanted(item, name, "a text");
        }
        Some(Placed {
            value: text?.to_owned(),
            span: item.span(),
        })
    }

    /// What a list has, which is not empty; a single value is a list of one.
    fn listed<'t, 'i>(&mut self, item: &'t Item<'i>, name: &str) -> Vec<&'t Item<'i>> {
        let Some(list) = item.get_ref().as_array() else {
            return vec![item];
        };
        if list.is_empty() {
            let message = format!("`{name}` is empty");
            self.problem(item.span(), message, "expected at least one");
        }
        list.iter().collect()
    }

    /// A text or a list of texts, not empty.
    pub fn texts(&mut self, item: &Item<'_>, name: &str) -> Vec<Placed<String>> {
        if !matches!(item.get_ref(), DeValue::Array(_) | DeValue::String(_)) {
            self.wanted(item, name, "a text or a list of texts");
            return Vec::new();
        }
        let listed = self.listed(item, name);
        listed
            .into_iter()
            .filter_map(|item| self.text(item, name))
            .collect()
    }

    /// A single value: text, number or true/false.
    pub fn scalar(&mut self, item: &Item<'_>, name: &str) -> Option<Placed<Value>> {
        match json(item.get_ref()) {
            Ok(value) if !value.is_array() && !value.is_object() => Some(Placed {
                value,
                span: item.span(),
            }),
            Ok(_) => {
                self.wanted(item, name, "a single value");
                None
            }
            Err(why) => {
                self.problem(item.span(), format!("`{name}` {why}"), why);
                None
            }
        }
    }

    /// A scalar or a list of scalars, not empty.
    pub fn scalars(&mut self, item: &Item<'_>, name: &str) -> Vec<Placed<Value>> {
        let listed = self.listed(item, name);
        listed
            .into_iter()
            .filter_map(|item| self.scalar(item, name))
            .collect()
    }
}

/// The entries of a table as they were written.
pub(super) fn in_file_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(Placed<String>, &'t Item<'i>)> {
    let at = |key: &Spanned<toml::de::DeString<'_>>| Placed {
        value: key.get_ref().to_string(),
        span: key.span(),
    };
    let mut entries: Vec<_> = table.iter().map(|(key, value)| (at(key), value)).collect();
    entries.sort_by_key(|(key, _)| key.span.start);
    entries
}

/// A TOML value as JSON; the error completes "the value …".
pub(super) fn json(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Bool(*flag),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => number.into(),
            Err(_) => u64::from_str_radix(number.as_str(), number.radix())
                .map_err(|_| "is too large")?
                .into(),
        },
        DeValue::Float(number) => {
            let number: f64 = number.as_str().parse().map_err(|_| "is not a number")?;
            serde_json::Number::from_f64(number)
                .map(Value::Number)
                .ok_or("is not a finite number")?
        }
        DeValue::Datetime(_) => return Err("is a date; put it in quotes if a text is meant".into()),
        DeValue::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| json(item.get_ref()))
                .collect::<Result<_, _>>()?,
        ),
        DeValue::Table(_) => {
            let entries = in_file_order(value.as_table().ok_or("is not a table")?);
            let entry =
                |(key, item): (Placed<String>, &Item<'_>)| Ok((key.value, json(item.get_ref())?));
            Value::Object(
                entries
                    .into_iter()
                    .map(entry)
                    .collect::<Result<_, String>>()?,
            )
        }
    })
}

/// As it stands in a cell's name.
pub(super) fn print(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

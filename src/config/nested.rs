//! Nested values by dotted path.
//!
//! A key may itself hold dots (`llama-3.1-70b-proxy`), so a path is matched against the keys that
//! there are, and never split at its dots alone.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tprimat_base::words::part;

/// `table.key`, or `key` at the top.
pub(super) fn join(table: &str, key: &str) -> String {
    if table.is_empty() {
        key.to_owned()
    } else {
        format!("{table}.{key}")
    }
}

/// The value or table at `path`; the whole where that is empty.
pub(super) fn find<'a>(whole: &'a Value, path: &str) -> Option<&'a Value> {
    if path.is_empty() {
        return Some(whole);
    }
    let table = whole.as_object()?;
    let dots = path.match_indices('.').map(|(dot, _)| dot);
    dots.chain([path.len()]).find_map(|end| {
        let below = table.get(part(path, ..end))?;
        match part(path, end..).strip_prefix('.') {
            None => Some(below),
            Some("") => None,
            Some(rest) => find(below, rest),
        }
    })
}

/// The value at `path`; none where there is a table.
pub(super) fn leaf<'a>(whole: &'a Value, path: &str) -> Option<&'a Value> {
    find(whole, path).filter(|value| !value.is_object())
}

pub(super) fn keys(table: Option<&Value>) -> impl Iterator<Item = &str> {
    let table = table.and_then(Value::as_object);
    table.into_iter().flat_map(Map::keys).map(String::as_str)
}

/// The longest key of a table that `rest` begins with, as a whole part of the path.
pub(super) fn longest_key<'a>(table: Option<&'a Value>, rest: &str) -> Option<&'a str> {
    let is_part = |key: &&str| {
        rest.strip_prefix(*key)
            .is_some_and(|after| after.is_empty() || after.starts_with('.'))
    };
    keys(table).filter(is_part).max_by_key(|key| key.len())
}

/// Puts a value where `keys` lead to, in place of whatever is there.
pub(super) fn put(whole: &mut Value, keys: &[impl AsRef<str>], value: Value) {
    let mut at = whole;
    for key in keys {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[key.as_ref()];
    }
    *at = value;
}

/// Takes away what `keys` lead to.
pub(super) fn remove(whole: &mut Value, keys: &[String]) {
    let Some((last, above)) = keys.split_last() else {
        return;
    };
    let table = above
        .iter()
        .try_fold(whole, |table, key| table.get_mut(key.as_str()));
    if let Some(table) = table.and_then(Value::as_object_mut) {
        table.shift_remove(last);
    }
}

/// Every value that is no table, with its path, in the order of the tables.
pub(super) fn leaves(whole: &Value) -> Vec<(String, &Value)> {
    fn add<'a>(path: &str, value: &'a Value, found: &mut Vec<(String, &'a Value)>) {
        match value {
            Value::Object(table) => table
                .iter()
                .for_each(|(key, value)| add(&join(path, key), value, found)),
            _ => found.push((path.to_owned(), value)),
        }
    }
    let mut found = Vec::new();
    add("", whole, &mut found);
    found
}

/// A struct of the schema, filled with values that were checked against it where they came in, so no
/// input can fail here.
pub(super) fn fill<T: DeserializeOwned + Default>(values: Option<Value>) -> T {
    values.map_or_else(T::default, |values| {
        serde_json::from_value(values).expect("values are checked where they come in")
    })
}

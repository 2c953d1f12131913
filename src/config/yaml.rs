//! The text of config.yaml → YAML, or where it is not; and YAML as JSON.

use std::sync::Arc;

use serde_json::Value;
use serde_yaml::Value as Yaml;

use tprimat_base::words::part;

use super::places::{Duplicate, Places};
use crate::error::{Problem, Source};

/// YAML without variables as JSON; the error completes "the value …".
pub(super) fn json_of(yaml: Yaml) -> Result<Value, String> {
    Ok(match yaml {
        Yaml::Sequence(items) => {
            Value::Array(items.into_iter().map(json_of).collect::<Result<_, _>>()?)
        }
        Yaml::Mapping(entries) => {
            let entry = |(key, value)| -> Result<_, String> {
                let key = key_of(&key).ok_or("has a key that is not a text")?;
                Ok((key, json_of(value)?))
            };
            Value::Object(entries.into_iter().map(entry).collect::<Result<_, _>>()?)
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

/// YAML of others as JSON; none where it is not such, or has what JSON has not.
#[must_use]
pub fn json_of_yaml(text: &str) -> Option<Value> {
    if too_deep(text).is_some() {
        return None;
    }
    json_of(serde_yaml::from_str(text).ok()?).ok()
}

fn scalar_of(scalar: Yaml) -> Result<Value, String> {
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

pub(super) fn key_of(key: &Yaml) -> Option<String> {
    match key {
        Yaml::String(text) => Some(text.clone()),
        Yaml::Number(number) => Some(number.to_string()),
        Yaml::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// How deep `[` and `{` may nest: the parser takes quadratic time for more.
const MAX_NESTING: usize = 64;

pub(super) fn parse(source: &Arc<Source>) -> Result<Yaml, Vec<Problem>> {
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
    let duplicates = Places::of(&source.text).duplicates;
    if !duplicates.is_empty() {
        let problem = |d: Duplicate| {
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

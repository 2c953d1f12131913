//! docs/config.md as the schema has it: every key of config.yaml, a list for each section.

use std::fmt::Write as _;

use schemars::schema_for;
use serde_json::Value;

use tprimat::config::schema::ConfigFile;

/// A list for each section: path, type, default and meaning of every key.
pub fn page_of_keys() -> String {
    let schema: Value = schema_for!(ConfigFile).into();
    let mut page = String::new();
    for (name, value) in schema["properties"].as_object().into_iter().flatten() {
        let _ = writeln!(page, "## {name}\n");
        rows(&schema, value, name, 0, &mut page);
        page.push('\n');
    }
    page
}

/// Tables within tables; a strategy of a strategy would never end.
const DEEPEST: usize = 8;

fn rows(root: &Value, value: &Value, path: &str, depth: usize, page: &mut String) {
    let at = target(root, value);
    let said = value["description"]
        .as_str()
        .or_else(|| at["description"].as_str());
    let is_table = at["properties"].is_object() || at["additionalProperties"].is_object();
    if !is_table || said.is_some() {
        let default = match value.get("default").unwrap_or(&Value::Null) {
            Value::Null => String::new(),
            Value::Object(map) if map.is_empty() || is_table => String::new(),
            Value::Array(items) if items.is_empty() => String::new(),
            other => format!("; default `{other}`"),
        };
        let descriptive = value["x-descriptive"].as_str().map(|why| match why {
            "a text for people" => "For people only.".to_owned(),
            why => format!("For people only: {why}."),
        });
        let aliases: Vec<String> = value["x-aliases"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|a| Some(format!("`{}`", a.as_str()?)))
            .collect();
        let also = (!aliases.is_empty()).then(|| format!("Also {}.", aliases.join(", ")));
        let meaning: Vec<String> = said
            .map(str::to_owned)
            .into_iter()
            .chain(also)
            .chain(descriptive)
            .collect();
        let meaning = meaning.join(" ").replace('\n', " ");
        let _ = writeln!(page, "- `{path}` ({}{default}): {meaning}", kind(&at));
    }
    if depth == DEEPEST {
        return;
    }
    for (name, value) in at["properties"].as_object().into_iter().flatten() {
        rows(root, value, &format!("{path}.{name}"), depth + 1, page);
    }
    if let Some(entry) = at
        .get("additionalProperties")
        .filter(|entry| entry.is_object())
    {
        let inner = target(root, entry);
        // A block of the same keys again is told once.
        if inner["properties"].is_object() && inner != at {
            rows(root, entry, &format!("{path}.<id>"), depth + 1, page);
        }
    }
}

/// What a value refers to; of alternatives, the first that is not null.
fn target(root: &Value, value: &Value) -> Value {
    let named =
        |reference: &str| root["$defs"][reference.rsplit('/').next().unwrap_or_default()].clone();
    if let Some(reference) = value["$ref"].as_str() {
        return named(reference);
    }
    let any = value["anyOf"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|v| v["type"] != "null");
    match any.and_then(|v| v["$ref"].as_str()) {
        Some(reference) => named(reference),
        None => any.cloned().unwrap_or_else(|| value.clone()),
    }
}

fn kind(at: &Value) -> String {
    if let Some(words) = at["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .filter(|w| !w.is_null())
            .map(ToString::to_string)
            .collect();
        return words.join(", ");
    }
    match &at["type"] {
        Value::String(kind) if kind == "object" => "table".to_owned(),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds: Vec<&str> = kinds
                .iter()
                .filter_map(Value::as_str)
                .filter(|k| *k != "null")
                .collect();
            kinds.join(" or ")
        }
        _ => "any".to_owned(),
    }
}

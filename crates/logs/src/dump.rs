//! Objects that trainers print of their configurations, as JSON or as Python writes a dictionary.

use serde_json::{Map, Value};

use super::values::Block;

/// An object over several lines, as far as it has come.
pub struct Dump {
    /// What it is a part of.
    name: String,
    block: Block,
}

impl Dump {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            block: Block::default(),
        }
    }

    /// The object, with the line that closes it; nothing is in one that cannot be read.
    pub fn add(&mut self, line: &str) -> Option<Value> {
        let object = match self.block.add(line) {
            Ok(None) => return None,
            Ok(Some(whole)) => object(&whole).unwrap_or_default(),
            Err(()) => Map::new(),
        };
        let mut whole = Value::Object(object);
        if !self.name.is_empty() {
            whole = Value::Object(Map::from_iter([(self.name.clone(), whole)]));
        }
        Some(whole)
    }
}

/// The members of an object and of what is in it, as `training.seq_len`, and their values as text.
pub fn members(value: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    walk(value, String::new(), &mut all);
    all
}

fn walk(value: &Value, path: String, all: &mut Vec<(String, String)>) {
    let below = |key: &str| match path.is_empty() {
        true => key.to_owned(),
        false => format!("{path}.{key}"),
    };
    match value {
        Value::Object(object) => {
            for (key, member) in object {
                walk(member, below(key), all);
            }
        }
        Value::Array(list) => {
            for (at, item) in list.iter().enumerate() {
                walk(item, below(&at.to_string()), all);
            }
        }
        Value::String(text) => all.push((path, text.clone())),
        Value::Null => {}
        plain => all.push((path, plain.to_string())),
    }
}

/// JSON, or what Python prints of a dictionary of plain values.
pub fn object(text: &str) -> Option<Map<String, Value>> {
    let text = text.trim();
    serde_json::from_str(text).ok().or_else(|| {
        let plain = text
            .replace('\'', "\"")
            .replace("None", "null")
            .replace("True", "true")
            .replace("False", "false");
        serde_json::from_str(&plain.replace('(', "[").replace(')', "]")).ok()
    })
}

//! A config for others: nested JSON, and `export` lines for shells. No secret that config.yaml spells
//! out is in either.

use std::{collections::HashSet, fmt::Write};

use serde_json::Value;

use super::{layers::Config, names::plain, nested};
use crate::{
    secrets::masked,
    words::{plain::is_active, secret::public_value},
};

impl Config {
    /// All effective values, nested, in file order.
    #[must_use]
    pub fn to_json(&self) -> Value {
        public("", &self.values)
    }

    /// `export TPRIMAT_TRAINING_DATA_SEQ_LENGTH=4096`, one line a value. Lists are JSON; what is
    /// null is left out, and so is a secret: a shell would take what stands in its place for it.
    #[must_use]
    pub fn shell_export(&self) -> String {
        let mut lines = String::new();
        let mut taken = HashSet::new();
        for (path, value) in nested::leaves(&self.values) {
            let text = match value {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let name = variable_name(&path);
            // A comment cannot be ended by what it quotes: it is debug-printed.
            let line = if public(&path, value) != *value || masked(&text) != text {
                format!("# left out, it is a secret: {path:?}\n")
            } else if text.contains('\0') {
                format!("# left out, shells cannot hold it: {path:?}\n")
            } else if taken.insert(name.clone()) {
                format!("export {name}={}\n", word(&name, &text))
            } else {
                format!("# left out, {name} is another value already: {path:?}\n")
            };
            lines.push_str(&line);
        }
        lines
    }
}

/// A value as others may see it: without secrets, which are known by the names of variables, and
/// without the passwords in addresses.
#[must_use]
pub fn public(path: &str, value: &Value) -> Value {
    let (table, name) = path.rsplit_once('.').unwrap_or(("", path));
    let name = if table.ends_with(".env") { name } else { "" };
    match value {
        Value::Object(table) => {
            let entry = |(key, value): (&String, &Value)| {
                (key.clone(), public(&nested::join(path, key), value))
            };
            table.iter().map(entry).collect()
        }
        Value::Array(items) => items.iter().map(|item| public(path, item)).collect(),
        other => {
            let text = plain(other);
            let shown = public_value(name, &text);
            if shown == text {
                other.clone()
            } else {
                shown.into()
            }
        }
    }
}

/// A value as one word of a shell, in one line and of characters that command neither a terminal nor
/// a CI system. What else it has is spelled in octal, behind a full stop that keeps its last line end
/// and is then taken away.
fn word(name: &str, text: &str) -> String {
    if !text.contains(is_active) {
        return shlex::try_quote(text)
            .map_or_else(|_| "''".to_owned(), |quoted| quoted.into_owned());
    }
    let mut spelled = String::new();
    for c in text.chars() {
        match c {
            '\\' => spelled.push_str(r"\\"),
            '\'' => spelled.push_str(r"'\''"),
            c if is_active(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    _ = write!(spelled, "\\0{byte:03o}");
                }
            }
            c => spelled.push(c),
        }
    }
    format!("\"$(printf '%b' '{spelled}.')\"; {name}=\"${{{name}%.}}\"")
}

fn variable_name(path: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    std::iter::once("TPRIMAT_".to_owned())
        .chain(path.chars().map(|c| plain(c).to_string()))
        .collect()
}

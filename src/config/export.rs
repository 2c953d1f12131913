//! A config for others: nested JSON, and `export` lines for shells.

use std::collections::HashSet;

use serde_json::Value;

use super::{layers::Config, nested};

impl Config {
    /// All effective values, nested, in file order.
    #[must_use]
    pub fn to_json(&self) -> Value {
        self.values.clone()
    }

    /// `export TPRIMAT_TRAINING_DATA_SEQ_LENGTH=4096`, one line a value. Lists are JSON; what is
    /// null is left out.
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
            let line = match shlex::try_quote(&text) {
                Ok(quoted) if taken.insert(name.clone()) => format!("export {name}={quoted}\n"),
                // A comment cannot be ended by what it quotes: both are debug-printed.
                Ok(_) => format!("# left out, {name} is another value already: {path:?}\n"),
                Err(_) => format!("# left out, shells cannot hold it: {path:?}\n"),
            };
            lines.push_str(&line);
        }
        lines
    }
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

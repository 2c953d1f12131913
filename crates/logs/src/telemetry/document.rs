//! JSON, or Python's way of printing the same, that goes over many lines: collected until its
//! brackets are closed.

use serde_json::Value;
use tprimat_words::part;

/// A larger document is passed over.
const MAX_BYTES: usize = 16 << 20;
const MAX_DEPTH: usize = 64;

#[derive(Default)]
pub struct Documents {
    text: String,
    /// Closing brackets that are still to come.
    open: Vec<u8>,
    quote: Option<u8>,
    /// Too large: it is followed, but not kept.
    passed_over: bool,
}

pub enum Found {
    Nothing,
    Document(Value),
    /// Why what looked like a document is none.
    Unreadable(&'static str),
}

impl Documents {
    /// Is a document open?
    pub fn inside(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes a line; the document that ends in it, if one does. A line outside of any document must
    /// begin one.
    pub fn line(&mut self, line: &str) -> Found {
        let line = if self.inside() {
            line
        } else {
            line.trim_start()
        };
        if !self.inside() && !line.starts_with(['{', '[']) {
            return Found::Nothing;
        }
        let mut escaped = false;
        for (at, byte) in line.bytes().enumerate() {
            match (self.quote, byte) {
                (Some(_), _) if escaped => escaped = false,
                (Some(_), b'\\') => escaped = true,
                (Some(quote), _) if byte == quote => self.quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => self.quote = Some(byte),
                (None, b'{') => self.open.push(b'}'),
                (None, b'[') => self.open.push(b']'),
                (None, b'}' | b']') => {
                    if self.open.pop() != Some(byte) {
                        self.clear();
                        return Found::Unreadable("brackets that do not match");
                    }
                    if self.open.is_empty() {
                        self.keep(part(line, ..=at));
                        return self.finish();
                    }
                }
                _ => {}
            }
            if self.open.len() > MAX_DEPTH {
                self.clear();
                return Found::Unreadable("brackets nested too deeply");
            }
        }
        // Neither form has strings that go over lines.
        self.quote = None;
        self.keep(line);
        Found::Nothing
    }

    /// After the last line: what there is of a document that was cut off, with its brackets closed.
    pub fn end(&mut self) -> Found {
        if !self.inside() || self.passed_over {
            return Found::Nothing;
        }
        while let Some(close) = self.open.pop() {
            self.text.push(char::from(close));
        }
        self.finish()
    }

    fn keep(&mut self, text: &str) {
        if self.text.len() + text.len() > MAX_BYTES {
            self.passed_over = true;
            self.text = String::new();
        }
        if !self.passed_over {
            self.text.push_str(text);
            self.text.push('\n');
        }
    }

    fn finish(&mut self) -> Found {
        let (text, passed_over) = (std::mem::take(&mut self.text), self.passed_over);
        self.clear();
        if passed_over {
            return Found::Unreadable("a document of more than 16 MiB");
        }
        let value =
            serde_json::from_str(&text).or_else(|_| serde_json::from_str(&python_to_json(&text)));
        value.map_or(
            Found::Unreadable("neither JSON nor Python's form of it"),
            Found::Document,
        )
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// `{'a': None}` → `{"a": null}`.
fn python_to_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' | '\'' => {
                out.push('"');
                while let Some((_, inner)) = chars.next() {
                    match inner {
                        _ if inner == c => break,
                        '"' => out.push_str("\\\""),
                        '\\' => match chars.next() {
                            Some((_, '\'')) => out.push('\''),
                            Some((_, other)) => {
                                out.push('\\');
                                out.push(other);
                            }
                            None => {}
                        },
                        _ => out.push(inner),
                    }
                }
                out.push('"');
            }
            'N' | 'T' | 'F' => {
                let words = [("None", "null"), ("True", "true"), ("False", "false")];
                let word = words
                    .iter()
                    .find(|(python, _)| part(text, at..).starts_with(python));
                match word {
                    Some((python, json)) => {
                        out.push_str(json);
                        for _ in 1..python.len() {
                            chars.next();
                        }
                    }
                    None => out.push(c),
                }
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn all(text: &str) -> Vec<Value> {
        let mut documents = Documents::default();
        let mut found: Vec<_> = text.lines().map(|line| documents.line(line)).collect();
        found.push(documents.end());
        found
            .into_iter()
            .filter_map(|f| {
                if let Found::Document(value) = f {
                    Some(value)
                } else {
                    None
                }
            })
            .collect()
    }

    #[test]
    fn documents_over_many_lines_one_after_another_and_cut_off() {
        assert_eq!(
            all("noise\n[\n {\"a\": \"]\"}\n]\n{\"b\": 1}\n"),
            [json!([{"a": "]"}]), json!({"b": 1})]
        );
        assert_eq!(
            all("{'a': None, 'b': [True, 'it\\'s \"x\"'], 'c': 'N/A'}"),
            [json!({"a": null, "b": [true, "it's \"x\""], "c": "N/A"})]
        );
        assert_eq!(
            all("{'a': {'b': 1}, 'c': [1, 2]"),
            [json!({"a": {"b": 1}, "c": [1, 2]})]
        );
        assert_eq!(all("{]\n{\"b\": 1}"), [json!({"b": 1})]);
        assert!(all(&"[".repeat(100_000)).is_empty());
    }
}

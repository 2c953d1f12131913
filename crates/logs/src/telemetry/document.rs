//! JSON, or Python's way of printing the same, that goes over many lines: collected until its
//! brackets are closed.

use regex::Captures;
use serde_json::Value;
use tprimat_base::words::part;

use crate::{builder::Builder, pattern::Pattern};

/// A larger document is passed over.
const MAX_BYTES: usize = 16 << 20;
const MAX_DEPTH: usize = 64;

/// A string, one that the line's end cuts off, or a word of Python's.
static TOKEN: Pattern =
    Pattern::new(r#""(?:[^"\\]|\\.)*(?:"|\\?$)|'((?:[^'\\]|\\.)*)(?:'|\\?$)|None|True|False"#);

#[derive(Default)]
pub struct Documents {
    text: String,
    /// Closing brackets that are still to come.
    open: Vec<u8>,
    /// Too large: it is followed, but not kept.
    passed_over: bool,
}

impl Documents {
    /// Is a document open?
    pub fn inside(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes a line, which must begin a document where none is open; the document that ends in it,
    /// if one does.
    pub fn line(&mut self, line: &str, out: &mut Builder) -> Option<Value> {
        // Brackets within strings are no brackets. Neither form has strings that go over lines.
        let bare = TOKEN.replace_all(line, |token: &Captures<'_>| " ".repeat(token[0].len()));
        for (at, byte) in bare.bytes().enumerate() {
            match byte {
                b'{' => self.open.push(b'}'),
                b'[' => self.open.push(b']'),
                b'}' | b']' if self.open.pop() != Some(byte) => {
                    return self.unreadable("brackets that do not match", out);
                }
                b'}' | b']' if self.open.is_empty() => {
                    self.keep(part(line, ..=at));
                    return self.finish(out);
                }
                _ => {}
            }
            if self.open.len() > MAX_DEPTH {
                return self.unreadable("brackets nested too deeply", out);
            }
        }
        self.keep(line);
        None
    }

    /// After the last line: what there is of a document that was cut off, with its brackets closed.
    pub fn end(&mut self, out: &mut Builder) -> Option<Value> {
        if !self.inside() || self.passed_over {
            return None;
        }
        out.notes
            .add("truncated", || "the document is not closed".to_owned());
        let missing = self.open.iter().rev().map(|b| char::from(*b));
        self.text.extend(missing);
        self.finish(out)
    }

    fn keep(&mut self, text: &str) {
        if self.text.len() + text.len() > MAX_BYTES {
            self.passed_over = true;
            self.text.clear();
        }
        if !self.passed_over {
            self.text.push_str(text);
            self.text.push('\n');
        }
    }

    fn finish(&mut self, out: &mut Builder) -> Option<Value> {
        if self.passed_over {
            return self.unreadable("a document of more than 16 MiB", out);
        }
        let text = &self.text;
        let value =
            serde_json::from_str(text).or_else(|_| serde_json::from_str(&python_to_json(text)));
        match value {
            Ok(value) => {
                *self = Self::default();
                Some(value)
            }
            Err(_) => self.unreadable("neither JSON nor Python's form of it", out),
        }
    }

    fn unreadable(&mut self, why: &str, out: &mut Builder) -> Option<Value> {
        *self = Self::default();
        out.notes.add("unreadable_document", || why.to_owned());
        None
    }
}

/// `{'a': None}` → `{"a": null}`.
fn python_to_json(text: &str) -> String {
    let json = |token: &Captures<'_>| match (&token[0], token.get(1)) {
        ("None", _) => "null".to_owned(),
        ("True" | "False", _) => token[0].to_lowercase(),
        (_, Some(inner)) => {
            let inner = inner.as_str().replace("\\'", "'").replace('"', "\\\"");
            format!("\"{inner}\"")
        }
        (double_quoted, None) => double_quoted.to_owned(),
    };
    TOKEN.replace_all(text, json).into_owned()
}

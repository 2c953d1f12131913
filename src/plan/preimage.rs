//! Keys: a task's content hash, and the text that it is the hash of.
//!
//! The pre-image is lines `name = JSON`, sorted by name, under a header with a version and the task
//! kind. One text feeds both the hash and the explanation, so the two cannot disagree. No line ever
//! holds a modification time, an absolute path, a host name, or anything in map order.
//!
//! A value that is itself large and structured (the job) is a nested pre-image: the line holds its
//! digest, the cache holds its text, and [`changes`] looks inside.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::{cache::TaskKind, digest::Digest};

/// Bump to void every key of every kind.
const VERSION: u32 = 1;

/// Lines `name = JSON`, in one buffer.
struct Lines {
    text: Vec<u8>,
    lines: Vec<Line>,
}

/// Where a line lies in the text, and where the name ends that it begins with.
struct Line {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Lines {
    /// Adds a line; `name` writes its name.
    fn add(&mut self, name: impl FnOnce(&mut Vec<u8>), value: &(impl Serialize + ?Sized)) {
        let start = self.text.len();
        name(&mut self.text);
        let name_end = self.text.len();
        self.text.extend_from_slice(b" = ");
        serde_json::to_writer(&mut self.text, value).expect("keys cover plain data");
        self.lines.push(Line {
            start,
            name_end,
            end: self.text.len(),
        });
    }

    fn name(&self, line: &Line) -> &[u8] {
        &self.text[line.start..line.name_end]
    }

    /// The header, then the lines sorted by name.
    fn sorted(&self, header: &str) -> String {
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        lines.sort_unstable_by_key(|line| (self.name(line), &self.text[line.name_end..line.end]));
        let mut text = Vec::with_capacity(header.len() + self.text.len() + lines.len() + 1);
        text.extend_from_slice(header.as_bytes());
        text.push(b'\n');
        for line in lines {
            text.extend_from_slice(&self.text[line.start..line.end]);
            text.push(b'\n');
        }
        String::from_utf8(text).expect("names and JSON are UTF-8")
    }
}

/// Builds one pre-image.
pub struct Preimage {
    kind: TaskKind,
    lines: Lines,
}

impl Preimage {
    #[must_use]
    pub fn new(kind: TaskKind) -> Self {
        Self {
            kind,
            lines: Lines {
                text: Vec::with_capacity(1024),
                lines: Vec::with_capacity(16),
            },
        }
    }

    /// Adds one field. Giving a name twice is a bug of the caller.
    #[must_use]
    pub fn field(mut self, name: &str, value: &(impl Serialize + ?Sized)) -> Self {
        debug_assert!(
            !name.contains(['\n', '=']),
            "a field name must not look like a line: {name}"
        );
        self.lines
            .add(|text| text.extend_from_slice(name.as_bytes()), value);
        self
    }

    /// Adds one field for each item of a map, as `prefix.name`.
    #[must_use]
    pub fn fields<'a, V: Serialize + 'a>(
        mut self,
        prefix: &str,
        items: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Self {
        for (name, value) in items {
            let escaped = |text: &mut Vec<u8>| {
                text.extend_from_slice(prefix.as_bytes());
                text.push(b'.');
                // The name is all that follows, so its dots are plain.
                escape(text, name, &PUNCTUATION);
            };
            self.lines.add(escaped, &value);
        }
        self
    }

    /// Adds the leaves of a structured value, each under its path, so that a change names the leaf.
    #[must_use]
    pub fn tree(mut self, prefix: &str, value: &Value) -> Self {
        leaves(
            &mut prefix.as_bytes().to_vec(),
            value,
            None,
            &mut self.lines,
        );
        self
    }

    #[must_use]
    pub fn text(&self) -> String {
        let is_first = |(number, line)| {
            let name = self.lines.name(line);
            self.lines.lines[..number]
                .iter()
                .all(|other| self.lines.name(other) != name)
        };
        // The lists of cells are too long to compare each name with each.
        debug_assert!(
            self.lines.lines.len() > 100 || self.lines.lines.iter().enumerate().all(is_first),
            "a field twice"
        );
        self.lines
            .sorted(&format!("tprimat-key {VERSION} {}", self.kind.name()))
    }

    /// The key and its pre-image.
    #[must_use]
    pub fn finish(&self) -> (Digest, String) {
        let text = self.text();
        (Digest::of(&text), text)
    }
}

/// The field of a training on several nodes whose own log is that of the last rank, so that its
/// other logs are read as well.
pub const RANKS: &str = "ranks";

/// The field of a derived task that holds the digest of tprimat's analysis.
pub const ANALYSIS: &str = "analysis";

/// A derived task's pre-image without that field: what it has in common with the same task of
/// another tprimat.
#[must_use]
pub fn without_analysis(preimage: &str) -> String {
    let begin = format!("{ANALYSIS} = ");
    let lines = preimage.split_inclusive('\n');
    lines.filter(|line| !line.starts_with(&begin)).collect()
}

/// A training's pre-image as it would be if these files were not among its inputs.
#[must_use]
pub fn without_inputs(preimage: &str, names: &[impl AsRef<str>]) -> String {
    let begins = names.iter().map(|name| {
        let mut line = b"input.".to_vec();
        escape(&mut line, name.as_ref(), &PUNCTUATION);
        String::from_utf8_lossy(&line).into_owned() + " = "
    });
    let begins: Vec<String> = begins.collect();
    let lines = preimage.split_inclusive('\n');
    lines
        .filter(|line| !begins.iter().any(|begin| line.starts_with(begin.as_str())))
        .collect()
}

/// A training's pre-image as it would be if these files were among its inputs as well.
#[must_use]
pub fn with_inputs(preimage: &str, inputs: &[(String, Digest)]) -> String {
    let (header, lines) = preimage.split_once('\n').unwrap_or((preimage, ""));
    let mut all: Vec<(Vec<u8>, String)> = lines
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, value)| (name.as_bytes().to_vec(), value.to_owned()))
        .collect();
    for (name, digest) in inputs {
        let mut field = b"input.".to_vec();
        escape(&mut field, name, &PUNCTUATION);
        all.push((field, serde_json::json!(digest).to_string()));
    }
    all.sort();
    let lines = all
        .iter()
        .map(|(name, value)| format!("{} = {value}\n", String::from_utf8_lossy(name)));
    format!("{header}\n{}", lines.collect::<String>())
}

/// What a pre-image says of a field, as JSON.
#[must_use]
pub fn line<'a>(preimage: &'a str, field: &str) -> Option<&'a str> {
    preimage
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(" = "))
}

/// The canonical text of a structured value: its leaves as `path = JSON` lines, leaving out
/// whatever equals `default`, so that a field added later with a default voids no key.
#[must_use]
pub fn canonical(header: &str, value: &Value, default: &Value) -> String {
    let mut lines = Lines {
        text: Vec::with_capacity(4096),
        lines: Vec::with_capacity(64),
    };
    leaves(&mut Vec::new(), value, Some(default), &mut lines);
    lines.sorted(header)
}

/// What would be mistaken for a line's own punctuation in the name of a file or a key, which are
/// foreign.
const PUNCTUATION: [u8; 3] = *b"%\n=";

/// What would be mistaken for punctuation in a part of a path.
const PUNCTUATION_OF_PATHS: [u8; 4] = *b"%\n=.";

fn escape(text: &mut Vec<u8>, name: &str, punctuation: &[u8]) {
    for byte in name.bytes() {
        if punctuation.contains(&byte) {
            text.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            text.push(byte);
        }
    }
}

/// A name of a pre-image without its escapes, as people read it: in one line.
#[must_use]
pub fn unescaped(name: &str) -> String {
    ["%0A", "%3D", "%2E", "%25"]
        .iter()
        .zip([" ", "=", ".", "%"])
        .fold(name.to_owned(), |name, (code, sign)| {
            name.replace(code, sign)
        })
}

/// `path` is escaped already, as it stands in the lines.
fn leaves(path: &mut Vec<u8>, value: &Value, default: Option<&Value>, lines: &mut Lines) {
    if Some(value) == default {
        return;
    }
    match value {
        // An empty table is a value of its own: the trainer gets it, or does not.
        Value::Object(map) if !map.is_empty() => {
            for (key, child) in map {
                let length = path.len();
                if length > 0 {
                    path.push(b'.');
                }
                escape(path, key, &PUNCTUATION_OF_PATHS);
                // An empty name would leave no trace in the path.
                if key.is_empty() {
                    path.extend_from_slice(b"%");
                }
                leaves(path, child, default.and_then(|d| d.get(key)), lines);
                path.truncate(length);
            }
        }
        leaf => lines.add(|text| text.extend_from_slice(path), leaf),
    }
}

/// One difference between two pre-images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub field: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |v: &Option<String>| match v.as_deref().map(|v| v.trim_matches('"')) {
            None => "(none)".to_owned(),
            Some(v) if v.len() == 64 && v.bytes().all(|b| b.is_ascii_hexdigit()) => {
                v.chars().take(12).collect()
            }
            Some(v) if v.chars().count() > 60 => v.chars().take(57).chain("...".chars()).collect(),
            Some(v) => v.to_owned(),
        };
        write!(
            f,
            "{}: {} → {}",
            self.field,
            short(&self.old),
            short(&self.new)
        )
    }
}

/// What differs between two pre-images; `nested` gives the text behind a digest, where there is
/// one.
pub fn changes(old: &str, new: &str, nested: &dyn Fn(&Digest) -> Option<String>) -> Vec<Change> {
    let (old, new) = (lines(old), lines(new));
    let mut changes = Vec::new();
    for name in old
        .keys()
        .chain(new.keys().filter(|n| !old.contains_key(*n)))
    {
        let (a, b) = (old.get(name), new.get(name));
        if a == b {
            continue;
        }
        // The cache may hold the text behind other digests as well, such as the content of a small input, but
        // that is no list of fields.
        let inner = |v: Option<&&str>| match *name {
            "job" => nested(&v?.trim_matches('"').parse().ok()?),
            _ => None,
        };
        match (inner(a), inner(b)) {
            (Some(a), Some(b)) => {
                changes.extend(self::changes(&a, &b, nested).into_iter().map(|c| Change {
                    field: format!("{name}.{}", c.field),
                    ..c
                }))
            }
            _ => changes.push(Change {
                field: (*name).to_owned(),
                old: a.map(|v| (*v).to_owned()),
                new: b.map(|v| (*v).to_owned()),
            }),
        }
    }
    changes.sort_by(|a, b| a.field.cmp(&b.field));
    changes
}

fn lines(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once(" = "))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_at_its_default_is_not_in_the_text() {
        let default = json!({"a": 1, "b": {"c": false, "d": null}});
        let text = canonical(
            "job",
            &json!({"a": 1, "b": {"c": true, "d": null}, "new": "x"}),
            &default,
        );
        assert_eq!(text, "job\nb.c = true\nnew = \"x\"\n");
    }

    #[test]
    fn changes_look_inside_nested_texts() {
        let (old, new) = ("job\nseq = 2048\nx = 1\n", "job\nseq = 4096\nx = 1\n");
        let nested = |d: &Digest| {
            [old, new]
                .into_iter()
                .find(|t| Digest::of(t) == *d)
                .map(str::to_owned)
        };
        let image = |job: &str| {
            Preimage::new(TaskKind::Train)
                .field("job", &Digest::of(job))
                .field("same", "y")
                .text()
        };
        let changes = changes(&image(old), &image(new), &nested);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].to_string(), "job.seq: 2048 → 4096");
    }

    #[test]
    fn inputs_that_are_added_and_taken_away_leave_the_text_that_has_them() {
        let image = |names: &[&str]| {
            Preimage::new(TaskKind::Train)
                .field("command", &["a = b", "x\n"])
                .fields("input", names.iter().map(|name| (*name, Digest::of(name))))
                .field("repeat", &1)
                .text()
        };
        let some = image(&["a.py", "z=1.py"]);
        let all = image(&["a.py", "b c.py", "lib/%.py", "z=1.py"]);
        let added = ["lib/%.py", "b c.py"].map(|name| (name.to_owned(), Digest::of(name)));
        assert_eq!(with_inputs(&some, &added), all);
        assert_eq!(without_inputs(&all, &["lib/%.py", "b c.py"]), some);
    }

    /// Small, over few names, so that two of them are often nearly the same.
    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(1)),
            Just(json!({})),
            Just(json!(null)),
            Just(json!([])),
            Just(json!("{}"))
        ];
        let grown = leaf.prop_recursive(3, 12, 3, |inner| {
            proptest::collection::btree_map("[ab.%\n=]{0,2}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect()))
        });
        proptest::collection::btree_map("[ab.%\n=]{0,2}", grown, 0..3)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    #[test]
    fn keys_that_look_alike_are_kept_apart() {
        let alike = [
            (json!({"o": {"p": {}}}), json!({"o": {}})),
            (json!({"extra": {}}), json!({})),
            (json!({"a.b": 1}), json!({"a": {"b": 1}})),
            (json!({"a\nb": 1}), json!({"a%0Ab": 1})),
            (json!({"": {"a": 1}}), json!({"a": 1})),
        ];
        for (one, other) in alike {
            assert_ne!(
                canonical("job", &one, &json!({})),
                canonical("job", &other, &json!({})),
                "{one} {other}"
            );
        }
    }

    proptest! {
        /// Two field sets share a key only if they are equal: no value can pose as another field.
        #[test]
        fn the_text_is_injective(a in proptest::collection::btree_map("[a-z%\n=]{1,4}", ".{0,6}", 0..4),
                                 b in proptest::collection::btree_map("[a-z%\n=]{1,4}", ".{0,6}", 0..4)) {
            let text = |m: &BTreeMap<String, String>| Preimage::new(TaskKind::Train).fields("f", m.iter().map(|(k, v)| (k.as_str(), v))).text();
            prop_assert_eq!(text(&a) == text(&b), a == b);
        }

        /// Two jobs share a text only if they are equal, whatever their keys and empty tables are.
        #[test]
        fn the_text_of_a_tree_is_injective(a in tree(), b in tree()) {
            let text = |tree: &Value| canonical("job", tree, &json!({}));
            prop_assert_eq!(text(&a) == text(&b), a == b, "{}\n{}", a, b);
        }
    }
}

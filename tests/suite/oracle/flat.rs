//! A JSON value as lines that can be compared and read: one field a line, long series as a count and
//! a digest, sentences as the numbers in them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tprimat::digest::Digest;

/// Fields and their values, as they stand in a file.
pub type Lines = BTreeMap<String, String>;

/// Lists up to this length are written out.
const SHORT: usize = 8;
/// Arguments of trainers that mean nothing to tprimat: of more than a few, their number and a digest.
const ARGUMENTS: [&str; 2] = ["arguments", "unlisted"];
const MANY: usize = 12;
/// Text of somebody else is cut to this many characters.
const TEXT: usize = 80;

/// How the fields of one form are written.
pub struct Form {
    /// Fields that differ from run to run, or that are held elsewhere.
    pub dropped: &'static [&'static str],
    /// Fields that are English: that there is a sentence and which numbers are in it is held, and not
    /// its words.
    pub sentences: &'static [&'static str],
    /// What tells the elements of a list apart.
    pub names: &'static [&'static str],
    /// Significant digits. A mean or a logarithm may differ in its last ones from host to host.
    pub digits: usize,
}

impl Form {
    /// All of a value, below a field.
    pub fn add(&self, field: &str, value: &Value, lines: &mut Lines) {
        match value {
            Value::Null => {}
            Value::Object(map) if map.len() > MANY && ARGUMENTS.contains(&last(field)) => {
                let digest = Digest::of(value.to_string().as_bytes()).to_string();
                lines.insert(field.to_owned(), format!("{} of {digest:.12}", map.len()));
            }
            Value::Object(map) => match figure(map) {
                Some(text) => self.figure(field, map, text, lines),
                None => self.add_fields(field, map, lines),
            },
            Value::Array(list) if list.iter().all(Value::is_null) => {}
            Value::Array(list) => self.add_list(field, list, lines),
            scalar => {
                lines.insert(field.to_owned(), self.scalar(last(field), scalar));
            }
        }
    }

    fn add_fields(&self, field: &str, map: &Map<String, Value>, lines: &mut Lines) {
        for (name, value) in map.iter().filter(|(name, _)| !self.is_dropped(name)) {
            self.add(&below(field, name), value, lines);
        }
    }

    fn is_dropped(&self, name: &str) -> bool {
        self.dropped.contains(&name)
    }

    fn add_list(&self, field: &str, list: &[Value], lines: &mut Lines) {
        if !list.iter().any(Value::is_object) {
            let texts: Vec<Value> = list.to_vec();
            lines.insert(field.to_owned(), self.series(last(field), &texts));
            return;
        }
        if let Some(name) = self.name_of(list) {
            for element in list {
                let mut fields = element.as_object().unwrap().clone();
                let own = fields.remove(name).unwrap();
                let at = below(field, own.as_str().unwrap());
                let is_leaf = fields.values().all(|v| !v.is_object() && !v.is_array());
                if is_leaf && figure(&fields).is_none() {
                    lines.insert(at, self.inline(&fields));
                } else {
                    self.add(&at, &Value::Object(fields), lines);
                }
            }
            return;
        }
        // Columns: what stands in the same place of each element is one series.
        let mut columns: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (at, element) in list.iter().enumerate() {
            let mut found = Vec::new();
            self.leaves("", element, &mut found);
            for (name, value) in found {
                let column = columns.entry(name).or_default();
                column.resize(at, Value::Null);
                column.push(value);
            }
        }
        for (name, mut column) in columns {
            column.resize(list.len(), Value::Null);
            let at = below(field, &name);
            let is_empty = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
            if !column.iter().all(is_empty) {
                let text = self.series(last(&at), &column);
                lines.insert(at, text);
            }
        }
    }

    /// The field that names each element of a list, where no two have the same name.
    fn name_of(&self, list: &[Value]) -> Option<&'static str> {
        self.names.iter().copied().find(|name| {
            let names: Option<BTreeSet<&str>> = list.iter().map(|e| e[*name].as_str()).collect();
            names.is_some_and(|names| names.len() == list.len())
        })
    }

    fn leaves(&self, field: &str, value: &Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(map) => {
                for (name, value) in map.iter().filter(|(name, _)| !self.is_dropped(name)) {
                    self.leaves(&below(field, name), value, found);
                }
            }
            Value::Array(list) if list.iter().any(Value::is_object) => {
                for (at, value) in list.iter().enumerate() {
                    self.leaves(&format!("{field}[{at}]"), value, found);
                }
            }
            other => found.push((field.to_owned(), other.clone())),
        }
    }

    /// A small table, on one line.
    pub fn inline(&self, fields: &Map<String, Value>) -> String {
        let mut texts: Vec<String> = fields
            .iter()
            .filter(|(name, value)| !self.is_dropped(name) && !value.is_null())
            .map(|(name, value)| format!("{name}: {}", self.scalar(name, value)))
            .collect();
        texts.sort();
        format!("{{{}}}", texts.join(", "))
    }

    fn figure(&self, field: &str, map: &Map<String, Value>, text: &str, lines: &mut Lines) {
        let shown = match map.get("value") {
            Some(value) => self.scalar("value", value),
            None => format!("{text}, {}", numbers(map["reason"].as_str().unwrap_or(""))),
        };
        let field = field.strip_suffix(".figure").unwrap_or(field);
        lines.insert(field.to_owned(), shown);
    }

    /// A list of values: written out, or told in short.
    fn series(&self, name: &str, values: &[Value]) -> String {
        let texts: Vec<String> = values.iter().map(|v| self.scalar(name, v)).collect();
        if values.len() <= SHORT {
            return format!("[{}]", texts.join(", "));
        }
        let distinct: BTreeSet<&String> = texts.iter().collect();
        if let [one] = distinct.iter().collect::<Vec<_>>()[..] {
            return format!("{} × {one}", values.len());
        }
        let digest = &Digest::of(texts.join("\n")).to_string()[..8];
        let there: Vec<(&Value, &String)> = (values.iter().zip(&texts))
            .filter(|(v, _)| !v.is_null())
            .collect();
        let of = match values.len() - there.len() {
            0 => format!("{} values", there.len()),
            absent => format!("{} values ({absent} absent)", there.len()),
        };
        let (first, last) = (there[0].1, there[there.len() - 1].1);
        let all: Option<Vec<f64>> = there.iter().map(|(v, _)| v.as_f64()).collect();
        match all {
            Some(all) => {
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                let mean = number(mean, 6);
                format!("{of}, {first} … {last}, mean {mean}, digest {digest}")
            }
            None => format!(
                "{of}, {} of them different, digest {digest}",
                distinct.len()
            ),
        }
    }

    pub fn scalar(&self, name: &str, value: &Value) -> String {
        match value {
            Value::String(text) if self.sentences.contains(&name) => numbers(text),
            Value::String(text) => {
                let cut: String = text.chars().take(TEXT).collect();
                Value::String(cut).to_string()
            }
            Value::Number(n) if n.is_f64() => number(n.as_f64().unwrap(), self.digits),
            Value::Array(list) => self.series(name, list),
            Value::Object(map) => self.inline(map),
            other => other.to_string(),
        }
    }
}

/// The value with the sentence alone in the place of each reason, which is how reasons are held.
pub fn in_sentences(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(in_sentences).collect(),
        Value::Object(map) if map.contains_key("code") && map.contains_key("severity") => {
            match map.get("kind") {
                None => map["text"].clone(),
                Some(kind) => {
                    let cell = map.get("cell").unwrap_or(&Value::Null);
                    serde_json::json!({ "kind": kind, "cell": cell, "text": map["text"] })
                }
            }
        }
        Value::Object(map) => {
            let fields = map.iter();
            let fields = fields.map(|(name, value)| (name.clone(), in_sentences(value)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// Is it a figure, which is there or says why not: `{ status, value | reason }`? Then its status.
fn figure(map: &Map<String, Value>) -> Option<&str> {
    let is_one = map.contains_key("value") || map.contains_key("reason");
    let status = map.get("status")?.as_str()?;
    (is_one && ["ok", "absent", "error"].contains(&status)).then_some(status)
}

fn below(field: &str, name: &str) -> String {
    match field {
        "" => name.to_owned(),
        _ => format!("{field}.{name}"),
    }
}

/// The last name of a field, without a place in a list.
fn last(field: &str) -> &str {
    let name = field.rsplit('.').next().unwrap_or(field);
    name.split('[').next().unwrap_or(name)
}

fn number(value: f64, digits: usize) -> String {
    let rounded: f64 = format!("{:.*e}", digits - 1, value).parse().unwrap();
    match rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        true => format!("{rounded:.0}"),
        false => Value::from(rounded).to_string(),
    }
}

/// The numbers of a sentence: its words that are nothing else, smallest first.
pub fn numbers(sentence: &str) -> String {
    let marks = [
        '(', ')', '[', ']', ',', ';', ':', '.', '"', '\'', '`', '%', '+', '×', '$', '=',
    ];
    let words = sentence.split(|c: char| c.is_whitespace() || c == '–' || c == '/');
    let mut found: Vec<f64> = words
        .map(|word| word.trim_matches(marks).replace(',', ""))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '−'))
        .filter_map(|word| word.replace('−', "-").parse().ok())
        .collect();
    found.sort_by(f64::total_cmp);
    let found: Vec<String> = found.into_iter().map(|n| number(n, 12)).collect();
    match found.is_empty() {
        true => "says why".to_owned(),
        false => format!("says {}", found.join(" ")),
    }
}

#[test]
fn a_field_is_a_line_whatever_its_value() {
    let form = Form {
        dropped: &["host"],
        sentences: &["detail"],
        names: &["field"],
        digits: 12,
    };
    let steps: Vec<Value> = (1..=10)
        .map(|n| serde_json::json!({ "step": n, "loss": 10.0 / f64::from(n), "kind": "torch" }))
        .collect();
    let value = serde_json::json!({
        "host": "n1",
        "rate": 53.350199999999994,
        "steps": steps,
        "mfu": { "status": "absent", "reason": "no peak of 3 is known" },
        "odd": [{ "kind": "nan_loss", "detail": "step 5: nan, 1,234.50 in all (10 %)" }],
        "contract": [{ "field": "seq_length", "value": 8192, "source": "effective" }],
    });
    let mut lines = Lines::new();
    form.add("", &value, &mut lines);
    let text: Vec<String> = lines.iter().map(|(k, v)| format!("{k} = {v}")).collect();
    assert_eq!(
        text,
        [
            "contract.seq_length = {source: \"effective\", value: 8192}",
            "mfu = absent, says 3",
            "odd.detail = [says 5 10 1234.5]",
            "odd.kind = [\"nan_loss\"]",
            "rate = 53.3502",
            "steps.kind = 10 × \"torch\"",
            "steps.loss = 10 values, 10 … 1, mean 2.92897, digest 49f2f9e7",
            "steps.step = 10 values, 1 … 10, mean 5.5, digest f200e10f",
        ]
    );
}

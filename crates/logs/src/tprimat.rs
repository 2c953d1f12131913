//! The format `tprimat`: JSON lines `start`, `step`, `end` and `error`, with any other text around
//! them.

use std::{borrow::Cow, sync::LazyLock};
use tprimat_base::words::part;

use memchr::memmem::Finder;
use serde_json::{Map, Value};

use super::{
    Failure, FailureClass, LOSS_STEPS_AVERAGED, Step,
    builder::{Builder, LAST_STEP, Notes},
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{as_count, whole_text_number},
    pattern::Pattern,
    process::Said,
    values::Checks,
};

/// Attempts to read an object per line: keeps the work on hostile lines linear.
const MAX_TRIES: usize = 8;
/// More memory and more tokens than these are misprints.
const MAX_BYTES: u64 = 1 << 50;
const MAX_TOKENS: u64 = 1 << 50;

/// Is it worth reading the line as an event? Cheap, for lines between which events may stand.
pub fn may_be_event(line: &str) -> bool {
    static EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"event\""));
    EVENT.find(line.as_bytes()).is_some()
}

pub fn evidence(line: &str) -> Evidence {
    let weight = |event: &Map<String, Value>| match event.get("event").and_then(Value::as_str) {
        // A trainer may state its settings so, and then print its own step lines: those name the
        // format.
        Some("start")
            if text(event, "schema").is_some_and(|s| s.starts_with("tprimat.events/")) =>
        {
            Evidence::Weak
        }
        Some("step") if event.get("step").is_some_and(Value::is_u64) => Evidence::Strong,
        // A trainer that refuses its job says no more than this.
        Some("error") if text(event, "message").is_some() && event.contains_key("class") => {
            Evidence::Weak
        }
        _ => Evidence::None,
    };
    if !may_be_event(line) {
        return Evidence::None;
    }
    objects(line).0.iter().map(weight).max().unwrap_or_default()
}

/// Reads events, between whatever else stands in the log.
#[derive(Default)]
pub struct Events {
    start: Option<Map<String, Value>>,
    steps_said: Option<u64>,
    /// A launcher may start a trainer again below one log: the last end decides.
    failed_end: Option<Failure>,
}

impl Reader for Events {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let (events, lost) = objects(&line.text);
        if lost {
            let kind = if line.ended {
                "unreadable_line"
            } else {
                "truncated"
            };
            out.notes.add(kind, || cut(&line.text, 160));
        }
        for event in events {
            self.event(event, out);
        }
    }

    fn forget(&mut self) {
        *self = Self::default();
    }

    fn end(&mut self, out: &mut Builder) {
        if let Some(failure) = self.failed_end.take() {
            out.failure(failure);
        }
        let logged = out.trace.steps.iter().map(Step::count).sum::<u64>();
        if let Some(said) = self.steps_said.filter(|said| *said != logged) {
            out.notes.add("step_count", || {
                format!("the trainer says {said} steps, the log has {logged}")
            });
        }
    }
}

/// That which a field names, if it is one of ours.
fn class(event: &Map<String, Value>, field: &str) -> FailureClass {
    let named = event.get(field).cloned();
    let class = named.and_then(|name| serde_json::from_value(name).ok());
    class.unwrap_or(FailureClass::Unknown)
}

impl Events {
    fn event(&mut self, event: Map<String, Value>, out: &mut Builder) {
        match event.get("event").and_then(Value::as_str) {
            Some("start") => self.start(event, out),
            Some("step") => {
                if let Some(step) = step(&event, &mut out.notes) {
                    out.step(step);
                }
            }
            Some("end") => {
                self.steps_said = event.get("steps").and_then(whole);
                let status = text(&event, "status");
                out.trace.finished = status == Some("ok");
                // Whatever else it says, it does not say that the run went well.
                let is_failed = status.is_some() && !out.trace.finished;
                if status.is_none() {
                    out.notes.add("end_status", || "missing".to_owned());
                }
                self.failed_end = is_failed.then(|| Failure {
                    class: class(&event, "status"),
                    evidence: vec![cut(&Value::Object(event).to_string(), 300)],
                });
            }
            Some("error") => {
                let message = text(&event, "message").map(|m| cut(m, 300));
                out.failure(Failure {
                    class: class(&event, "class"),
                    evidence: message.into_iter().collect(),
                });
            }
            // Somebody else's JSON.
            _ => {}
        }
    }

    fn start(&mut self, event: Map<String, Value>, out: &mut Builder) {
        out.begins(Said::Begins);
        if let Some(first) = &self.start {
            let differing = differing(first, &event);
            if !differing.is_empty() {
                out.notes.add("second_start", || {
                    let told = differing.iter().map(|(name, value)| format!("{name} {value}"));
                    let told = told.collect::<Vec<_>>().join(", ");
                    cut(
                        &format!("a later start event says {told}, and the first one does not; the first one counts"),
                        300,
                    )
                });
            }
            for (name, value) in differing {
                out.trace
                    .restated
                    .0
                    .entry(name.clone())
                    .or_insert_with(|| value.clone());
            }
            return;
        }
        // Between the lines of another format, settings may have been stated before.
        if let Some(Value::Object(settings)) = event.get("effective") {
            settings
                .iter()
                .for_each(|(name, value)| out.set(name, value.clone()));
        }
        let trace = &mut out.trace;
        if let Some(epochs) = trace
            .effective
            .0
            .get("data_epochs")
            .and_then(Value::as_f64)
            .filter(|e| *e > 1.0)
        {
            out.notes.add("repeated_data", || {
                format!("the run goes through its dataset {epochs:.2} times")
            });
        }
        let count = event
            .get("num_parameters")
            .and_then(whole)
            .filter(|n| *n > 0);
        trace.num_parameters = trace.num_parameters.or(count);
        let device = event
            .get("device")
            .cloned()
            .and_then(|d| serde_json::from_value(d).ok());
        trace.device = device.or_else(|| trace.device.take());
        if let Some(Value::Object(versions)) = event.get("versions") {
            let stated = versions
                .iter()
                .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())));
            trace.versions.extend(stated);
        }
        self.start = Some(event);
    }
}

/// Settings that a later start event states otherwise than the first one, or alone.
fn differing<'a>(
    first: &Map<String, Value>,
    later: &'a Map<String, Value>,
) -> Vec<(&'a String, &'a Value)> {
    let settings = later
        .get("effective")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let before = |name: &String| first.get("effective")?.get(name);
    let mut found: Vec<_> = settings
        .filter(|(name, value)| !value.is_null() && before(name) != Some(*value))
        .collect();
    let count = later
        .get_key_value("num_parameters")
        .filter(|(name, value)| first.get(*name) != Some(*value));
    found.extend(count.filter(|(_, value)| whole(value).is_some_and(|n| n > 0)));
    found
}

/// One step event → step; `None` and a note where it has no usable number.
fn step(event: &Map<String, Value>, notes: &mut Notes) -> Option<Step> {
    // Trainers number their first step 0 or 1; which of the two is found out from the whole series.
    let Some(number) = event.get("step").and_then(whole) else {
        notes.add("unreadable_line", || {
            format!(
                "step number {}",
                cut(&event.get("step").unwrap_or(&Value::Null).to_string(), 40)
            )
        });
        return None;
    };
    let number_at = |key: &str| event.get(key).and_then(number_of);
    let mut checks = Checks {
        step: number,
        notes,
    };
    let time = "step_time_seconds";
    let step_time_seconds = checks.seconds(time, number_at(time));
    let mut float = |key: &str, kind: Option<&str>, sensible: fn(f64) -> bool| {
        checks.take(key, kind, number_at(key), sensible)
    };
    let positive = |v: f64| v > 0.0;
    let loss = float("loss", Some("nan_loss"), |_| true);
    let is_null = event.get("loss").is_some_and(Value::is_null);
    let learning_rate = float("learning_rate", None, |v| v >= 0.0);
    let grad_norm = float("grad_norm", Some("nan_grad_norm"), |v| v >= 0.0);
    let tokens_per_second_per_gpu = float("tokens_per_second_per_gpu", None, positive);
    let tflops_per_gpu = float("tflops_per_gpu", None, positive);
    let notes = checks.notes;
    if let Some(kind) = text(event, "anomaly")
        .filter(|_| loss.is_some() || event.get("loss").is_none_or(Value::is_null))
    {
        notes.add(&cut(kind, 40), || {
            format!("step {number}, as the trainer says")
        });
    } else if is_null {
        // JSON has no NaN, so a loss that is not finite is written as null.
        notes.add_at(number, "nan_loss", || "loss is null".to_owned());
    }
    let mut count = |key: &str, most: u64| {
        let value = event.get(key).filter(|v| !v.is_null())?;
        let count = whole(value).filter(|n| *n > 0 && *n < most);
        if count.is_none() {
            notes.add_at(number, "absurd_value", || {
                format!("{key} is {}", cut(&value.to_string(), 40))
            });
        }
        count
    };
    let memory_bytes = count("memory_bytes", MAX_BYTES);
    let tokens = count("tokens", MAX_TOKENS);
    let averaged = count(LOSS_STEPS_AVERAGED, LAST_STEP).filter(|n| *n > 1);
    let averaged = averaged.map(|n| (LOSS_STEPS_AVERAGED.into(), n as f64));
    let with_memory = |key| {
        memory_bytes
            .and_then(|_| text(event, key))
            .map(|s| Cow::Owned(cut(s, 40)))
    };
    let ended_at = event
        .get("time")
        .and_then(number_of)
        .filter(|t| t.is_finite() && *t > 0.0)
        .map(in_seconds);
    Some(Step {
        step: number,
        ended_at,
        step_time_seconds,
        loss,
        learning_rate,
        grad_norm,
        tokens,
        tokens_per_second_per_gpu,
        tflops_per_gpu,
        memory_bytes,
        memory_kind: with_memory("memory_kind"),
        memory_source: with_memory("memory_source"),
        other: averaged.into_iter().collect(),
        ..Step::default()
    })
}

/// A date in seconds, which some write in thousandths, millionths or thousandths of these: as seconds
/// they would lie thousands of years ahead.
fn in_seconds(mut date: f64) -> f64 {
    while date > 1e11 {
        date /= 1e3;
    }
    date
}

/// The JSON objects with a key `event` in a line, and whether something that looks like one could
/// not be read.
///
/// Trainers print an event at the beginning of a line: a line that begins as one and cannot be read
/// was cut off, or two processes wrote into it, also where another event follows.
fn objects(line: &str) -> (Vec<Map<String, Value>>, bool) {
    let (mut found, mut tries, mut at) = (Vec::new(), 0, 0);
    let mut torn = false;
    let Some(last_key) = line.rfind("\"event\"") else {
        let text = line.trim_start();
        let lost = text.starts_with("{\"") && leading_object(text).is_none();
        return (found, lost);
    };
    while let Some(brace) = line
        .get(at..last_key)
        .and_then(|rest| rest.find('{'))
        .filter(|_| tries < MAX_TRIES)
    {
        let start = at + brace;
        at = start + 1;
        if !part(line, at..).trim_start().starts_with('"') {
            continue;
        }
        match leading_object(part(line, start..)) {
            Some((object, length)) => {
                at = start + length;
                if object.contains_key("event") {
                    found.push(object);
                }
            }
            None => {
                tries += 1;
                let is_head = part(line, ..start).trim_start().is_empty()
                    && part(line, at..).starts_with('"');
                torn |= is_head || part(line, at..).trim_start().starts_with("\"event\"");
            }
        }
    }
    // Text before an event may hold braces; only an event that was lost is worth a word.
    let lost = torn || tries > 0 && found.is_empty();
    (found, lost)
}

/// The object that `text` starts with, and its length in `text`.
pub fn leading_object(text: &str) -> Option<(Map<String, Value>, usize)> {
    let read = |text: &str| {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Map<String, Value>>();
        let object = values.next()?.ok()?;
        Some((object, values.byte_offset()))
    };
    if let Some(object) = read(text) {
        return Some(object);
    }
    let (quoted, quoted_at) = quote_nonfinite(text);
    let (object, length) = read(&quoted).filter(|_| !quoted_at.is_empty())?;
    // Each token before the end of the object was made two bytes longer.
    let added = quoted_at.iter().filter(|at| **at < length).count() * 2;
    let length = length.checked_sub(added)?;
    text.is_char_boundary(length).then_some((object, length))
}

/// A string, or a word outside of strings.
static WORD: Pattern = Pattern::new(r#""(?:[^"\\]|\\.)*"?|[+-]?[A-Za-z]+"#);

/// Puts bare `NaN`, `Infinity`, `inf`, … outside of strings into quotes, as JSON has no such
/// numbers; also where, in the new text, each of them begins.
fn quote_nonfinite(text: &str) -> (String, Vec<usize>) {
    let (mut out, mut copied, mut places) = (String::new(), 0, Vec::new());
    for word in WORD.find_iter(text) {
        let name = word.as_str().trim_start_matches(['+', '-']);
        let mut names = ["nan", "inf", "infinity"].iter();
        if names.any(|known| name.eq_ignore_ascii_case(known)) {
            out.push_str(part(text, copied..word.start()));
            places.push(out.len());
            out.extend(["\"", word.as_str(), "\""]);
            copied = word.end();
        }
    }
    out.push_str(part(text, copied..));
    (out, places)
}

pub fn text<'a>(event: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    event.get(key).and_then(Value::as_str)
}

/// A number, also one that stands in quotes.
pub fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => whole_text_number(s),
        _ => None,
    }
}

/// A count, also one that is written `2048.0`.
pub fn whole(value: &Value) -> Option<u64> {
    if let Some(n) = value.as_u64() {
        return Some(n);
    }
    as_count(number_of(value)?)
}

#[cfg(test)]
mod tests;

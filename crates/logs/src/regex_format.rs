//! The format `regex`: patterns of a recipe's `[log] patterns`, whose named groups say what they
//! found.
//!
//! All that the patterns find in a line is one step's. Where no pattern has a group `step`, steps
//! are counted: a new one begins when a field is found again. The engine takes time linear in the
//! line, whatever the pattern.

use std::{collections::BTreeMap, sync::Arc};

use regex::{Regex, RegexBuilder};
use tprimat_words::did_you_mean;

use super::{
    Step,
    builder::Builder,
    fields::{Field, fill, named},
    format::Reader,
    lines::{Line, cut},
    numbers::{GIB, MIB, as_count, stated, whole_text_number},
    trace::UNREADABLE_FIELD,
};

/// Compiled size of one pattern.
const MAX_SIZE: usize = 4 << 20;
const MAX_PATTERNS: usize = 64;

/// Groups that stand for one field each; the others have a unit or a name of their own in them.
const PLAIN: &[(&str, Field)] = &[
    ("step", Field::Step),
    ("steps_averaged", Field::StepsAveraged),
    ("loss", Field::Loss),
    ("learning_rate", Field::LearningRate),
    ("grad_norm", Field::GradNorm),
    ("tokens", Field::Tokens),
    ("tokens_per_second_per_gpu", Field::TokensPerGpu),
    ("tflops_per_gpu", Field::Tflops),
    ("global_batch_size", Field::GlobalBatchSize),
    ("consumed_samples", Field::ConsumedSamples),
    ("num_parameters", Field::NumParameters),
];
const TIMES: &[(&str, f64)] = &[
    ("seconds", 1.0),
    ("s", 1.0),
    ("ms", 1e-3),
    ("milliseconds", 1e-3),
    ("us", 1e-6),
    ("microseconds", 1e-6),
];
const SIZES: &[(&str, f64)] = &[
    ("bytes", 1.0),
    ("kib", 1024.0),
    ("mib", MIB),
    ("gib", GIB),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
];
const MEMORY: &[(&str, Option<&str>)] = &[
    ("memory_", None),
    ("peak_allocated_memory_", Some("peak_allocated")),
    ("peak_reserved_memory_", Some("peak_reserved")),
    ("allocated_memory_", Some("allocated")),
    ("reserved_memory_", Some("reserved")),
    ("device_used_memory_", Some("device_used")),
];

/// The field that a group's name stands for.
fn field(group: &str) -> Option<Field> {
    let after = |prefix: &str| {
        group
            .strip_prefix(prefix)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
    };
    if let Some(field) = named(PLAIN, group) {
        return Some(field.clone());
    }
    let unit = |rest: &str, units: &[(&str, f64)]| {
        units
            .iter()
            .find(|(unit, _)| *unit == rest)
            .map(|(_, scale)| *scale)
    };
    if let Some(scale) = group
        .strip_prefix("step_time_")
        .and_then(|rest| unit(rest, TIMES))
    {
        return Some(Field::Time(scale));
    }
    for (prefix, kind) in MEMORY {
        if let Some(scale) = group
            .strip_prefix(prefix)
            .and_then(|rest| unit(rest, SIZES))
        {
            return Some(Field::Memory(*kind, scale));
        }
    }
    after("effective_")
        .map(Field::Effective)
        .or_else(|| after("evaluation_").map(Field::Evaluation))
        .or_else(|| after("total_").map(Field::Total))
        .or_else(|| after("other_").map(Field::Other))
}

/// Names that a group may have, for messages.
fn known_groups() -> Vec<String> {
    let plain = PLAIN.iter().map(|(name, _)| (*name).to_owned());
    let times = TIMES.iter().map(|(unit, _)| format!("step_time_{unit}"));
    let sizes = MEMORY
        .iter()
        .flat_map(|(prefix, _)| SIZES.iter().map(move |(unit, _)| format!("{prefix}{unit}")));
    plain.chain(times).chain(sizes).collect()
}

/// Why patterns cannot be used; `at` is the one to blame, if it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    pub at: Option<usize>,
    pub message: String,
    pub help: Option<String>,
}

/// A pattern, and what its groups are.
type Compiled = (Regex, Vec<(usize, Field)>);

#[derive(Debug)]
pub struct Patterns {
    all: Vec<Compiled>,
    numbered: bool,
}

impl Patterns {
    pub fn compile(patterns: &[String]) -> Result<Arc<Self>, PatternError> {
        let error = |at, message, help| PatternError { at, message, help };
        if patterns.is_empty() {
            return Err(error(
                None,
                "the format `regex` needs `patterns`".into(),
                None,
            ));
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(error(
                None,
                format!("more than {MAX_PATTERNS} patterns"),
                None,
            ));
        }
        let mut all = Vec::new();
        for (at, pattern) in patterns.iter().enumerate() {
            let compiled = compile(pattern);
            all.push(compiled.map_err(|(message, help)| error(Some(at), message, help))?);
        }
        let numbered = all
            .iter()
            .any(|(_, fields)| fields.iter().any(|(_, f)| *f == Field::Step));
        Ok(Arc::new(Self { all, numbered }))
    }
}

/// `Err`: why the pattern cannot be used, and what would help.
fn compile(pattern: &str) -> Result<Compiled, (String, Option<String>)> {
    let built = RegexBuilder::new(pattern)
        .size_limit(MAX_SIZE)
        .dfa_size_limit(MAX_SIZE)
        .build();
    let regex = built.map_err(|e| {
        // The engine draws carets under several lines of its own; the last one says what is wrong.
        let why = e.to_string();
        let why = why.lines().last().unwrap_or_default().trim();
        let why = why.trim_start_matches("error: ");
        (format!("not a pattern: {why}"), None)
    })?;
    let mut fields = Vec::new();
    for (group, name) in regex.capture_names().enumerate() {
        let Some(name) = name else { continue };
        let field = field(name).ok_or_else(|| {
            let known = known_groups();
            let near = did_you_mean(name, known.iter().map(String::as_str));
            let near = near.map_or_else(String::new, |question| question + " ");
            let plain: Vec<&str> = PLAIN.iter().map(|(name, _)| *name).collect();
            let help = format!(
                "{near}groups: {}, step_time_<unit>, memory_<unit>, effective_<setting>, evaluation_<name>, \
                 total_<name>, other_<name>",
                plain.join(", ")
            );
            (format!("`{name}` is not a field of a step"), Some(help))
        })?;
        fields.push((group, field));
    }
    if fields.is_empty() {
        let help = "name what it finds: (?P<step>\\d+), (?P<loss>\\S+), …";
        let message = "the pattern has no named group, so it finds nothing";
        return Err((message.to_owned(), Some(help.to_owned())));
    }
    Ok((regex, fields))
}

pub struct Log {
    patterns: Arc<Patterns>,
    newest: Option<u64>,
    /// What the newest counted step has, where steps are counted.
    filled: Vec<Field>,
}

impl Log {
    pub fn new(patterns: Arc<Patterns>) -> Self {
        Self {
            patterns,
            newest: None,
            filled: Vec::new(),
        }
    }
}

impl Reader for Log {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let mut found: Vec<(&Field, &str)> = Vec::new();
        let patterns = Arc::clone(&self.patterns);
        for (regex, fields) in &patterns.all {
            if let Some(captures) = regex.captures(&line.text) {
                found.extend(
                    fields
                        .iter()
                        .filter_map(|(group, field)| Some((field, captures.get(*group)?.as_str()))),
                );
            }
        }
        let mut of_step: BTreeMap<usize, (&Field, f64)> = BTreeMap::new();
        let (mut unreadable, mut any_read) = (Vec::new(), false);
        for (place, (field, text)) in found.into_iter().enumerate() {
            if let Field::Effective(name) = field {
                out.set(name, stated(text));
                any_read = true;
                continue;
            }
            let Some(value) = whole_text_number(text) else {
                unreadable.push((field, text));
                continue;
            };
            any_read = true;
            match field {
                Field::NumParameters => {
                    out.trace.num_parameters = as_count(value).filter(|n| *n > 0)
                }
                Field::Total(name) => out.total(name, value),
                _ => drop(of_step.insert(place, (field, value))),
            }
        }
        // Without its number, the rest of a line belongs to no step.
        let lost_step = unreadable.iter().any(|(field, _)| **field == Field::Step);
        let kind = match any_read && !lost_step {
            true => UNREADABLE_FIELD,
            false => "unreadable_line",
        };
        for (_, text) in unreadable {
            out.notes
                .add(kind, || format!("`{}` is not a number", cut(text, 60)));
        }
        if !of_step.is_empty() && !lost_step {
            self.step(&of_step.into_values().collect::<Vec<_>>(), out);
        }
    }
}

impl Log {
    fn step(&mut self, found: &[(&Field, f64)], out: &mut Builder) {
        let evaluations = |step: Option<u64>, out: &mut Builder| {
            for (field, value) in found {
                if let Field::Evaluation(name) = field {
                    out.evaluated(step, name, *value);
                }
            }
        };
        if found
            .iter()
            .all(|(field, _)| matches!(field, Field::Evaluation(_)))
        {
            return evaluations(self.newest, out);
        }
        let stated = found
            .iter()
            .find(|(field, _)| **field == Field::Step)
            .map(|(_, value)| *value);
        let number = if let Some(stated) = stated {
            let Some(number) = as_count(stated) else {
                out.notes
                    .add("unreadable_line", || format!("step number {stated}"));
                return;
            };
            number
        } else if self.patterns.numbered {
            match self.newest {
                Some(newest) => newest,
                None => {
                    out.notes.add("before_first_step", || {
                        "values before any step number are left out".to_owned()
                    });
                    return;
                }
            }
        } else {
            let again = found.iter().any(|(field, _)| self.filled.contains(field));
            if again || self.newest.is_none() {
                self.filled.clear();
            }
            if self.newest.is_none() {
                out.notes.add("step_numbers_assumed", || {
                    "no pattern finds a step's number: they are counted".to_owned()
                });
            }
            self.filled
                .extend(found.iter().map(|(field, _)| (*field).clone()));
            self.newest.map_or(1, |n| n + u64::from(again))
        };
        self.newest = Some(number);
        let mut step = Step {
            step: number,
            ..Step::default()
        };
        for (field, value) in found {
            fill(&mut step, field, *value, &mut out.notes);
        }
        evaluations(Some(number), out);
        out.step(step);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Live, LogSection, Trace, parse, testing};

    fn section(patterns: &[&str]) -> LogSection {
        LogSection {
            format: "regex".into(),
            patterns: patterns.iter().map(|p| (*p).to_owned()).collect(),
        }
    }

    fn read(patterns: &[&str], log: &str) -> Trace {
        parse(&section(patterns), log.as_bytes())
    }

    #[test]
    fn a_line_counts_as_lost_only_where_its_values_are() {
        let patterns = [r"^it (?P<step>\S+) loss=(?P<loss>\S+) lr=(?P<learning_rate>\S+)"];
        let trace = read(&patterns, "it 1 loss=2.5 lr=n/a\nit 2 loss=2.25 lr=1e-3\n");
        assert_eq!(testing::kinds(&trace), ["unreadable_field"]);
        assert_eq!(trace.unreadable, None);
        assert_eq!((trace.steps.len(), trace.steps[0].loss), (2, Some(2.5)));
        // The values of a line whose step cannot be read are not those of the step before.
        let trace = read(&patterns, "it 1 loss=2.5 lr=1e-3\nit ? loss=9.5 lr=2e-3\n");
        assert_eq!(testing::kinds(&trace), ["unreadable_line"]);
        assert_eq!(
            trace.unreadable.map(|lines| (lines.count, lines.first)),
            Some((1, 2))
        );
        assert_eq!((trace.steps.len(), trace.steps[0].loss), (1, Some(2.5)));
    }

    #[test]
    fn groups_are_fields_with_their_units() {
        let trace = read(
            &[
                r"^it (?P<step>\d+) took (?P<step_time_ms>\S+)ms loss=(?P<loss>\S+)",
                r"mem (?P<peak_allocated_memory_gib>[\d.]+)G lr (?P<learning_rate>\S+) q=(?P<other_queue_depth>\d+)",
                r"(?P<tokens_per_second_per_gpu>[\d,]+) tok/s/gpu",
                r"batch: (?P<effective_global_batch_size>\d+) dtype: (?P<effective_precision>\w+)",
                r"val=(?P<evaluation_validation_loss>\S+)",
                r"total (?P<total_runtime_seconds>\d+)s",
            ],
            "batch: 32 dtype: bf16\nit 7 took 250.5ms loss=3.5 mem 1.5G lr 1e-4 q=3\n 1,024 tok/s/gpu\nval=3.25\n\
             it 8 took x loss=nan\ntotal 9s\n",
        );
        let step = &trace.steps[0];
        assert_eq!(
            (step.step, step.step_time_seconds, step.loss),
            (7, Some(0.2505), Some(3.5))
        );
        assert_eq!(
            (step.memory_bytes, step.memory_kind.as_deref()),
            (Some(3 << 29), Some("peak_allocated"))
        );
        assert_eq!(
            (step.learning_rate, step.tokens_per_second_per_gpu),
            (Some(1e-4), Some(1024.0))
        );
        assert_eq!(step.other["queue_depth"], 3.0);
        assert_eq!(trace.effective.0["global_batch_size"], 32);
        assert_eq!(trace.effective.0["precision"], "bf16");
        assert_eq!(
            (trace.evaluations[0].step, trace.evaluations[0].value),
            (Some(7), 3.25)
        );
        assert_eq!(trace.totals["runtime_seconds"], 9.0);
        assert_eq!(
            trace.steps.len(),
            1,
            "a line that no pattern matches is no step"
        );
        assert_eq!(trace.format, "regex");
    }

    #[test]
    fn without_numbers_steps_are_counted_and_that_is_said() {
        let trace = read(
            &["loss (?P<loss>\\S+)", "in (?P<step_time_s>\\S+) s"],
            "loss 3\nin 2 s\nloss 2\nin 1 s\nloss 1",
        );
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.loss, s.step_time_seconds))
            .collect();
        assert_eq!(
            steps,
            [
                (1, Some(3.0), Some(2.0)),
                (2, Some(2.0), Some(1.0)),
                (3, Some(1.0), None)
            ]
        );
        assert_eq!(testing::kinds(&trace), ["step_numbers_assumed"]);
    }

    #[test]
    fn bad_patterns_are_one_clear_error() {
        let error = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(|p| (*p).to_owned()).collect();
            Patterns::compile(&patterns).unwrap_err()
        };
        assert_eq!(error(&[]).at, None);
        let unclosed = error(&["(?P<step>1)", "(?P<loss>x"]);
        assert_eq!(
            (unclosed.at, &*unclosed.message),
            (Some(1), "not a pattern: unclosed group")
        );
        let unknown = error(&["(?P<stpe>1)"]);
        assert!(unknown.help.unwrap().contains("did you mean `step`?"));
        assert!(error(&["loss: \\d+"]).message.contains("no named group"));
        assert!(
            error(&["(?P<step_time>1)"])
                .help
                .unwrap()
                .contains("step_time_<unit>"),
            "a time has a unit"
        );
        assert_eq!(
            error(&[&format!("(?P<loss>{})", "(a{500}){500}")]).at,
            Some(0)
        );
    }

    #[test]
    fn live_shows_steps_too() {
        let mut live = Live::new(&section(&["s (?P<step>\\d+) l (?P<loss>\\S+)"]));
        assert_eq!(live.feed(b"warm up\n"), None);
        assert_eq!(
            live.feed(b"s 4 l 2.5\n").map(|s| (s.step, s.loss)),
            Some((4, Some(2.5)))
        );
        assert_eq!(live.feed(b"s 4 l 2.5\n"), None);
        let mut counted = Live::new(&section(&["l (?P<loss>\\S+)"]));
        assert_eq!(counted.feed(b"l 2.5\n").map(|s| s.step), Some(1));
        assert_eq!(counted.feed(b"l 2.25\n").map(|s| s.step), Some(2));
    }

    #[test]
    fn a_pattern_made_to_explode_takes_linear_time() {
        let line = format!("{}!", "a".repeat(200_000));
        assert!(read(&["(?P<loss>(a+)+)$"], &line).steps.is_empty());
    }

    proptest! {
        #[test]
        fn never_panics_on_any_bytes(log in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&section(&["(?s)(?P<step>.)(?P<loss>.*)", "(?P<step_time_ms>\\d+)"]), &log);
        }

        #[test]
        fn never_panics_on_any_pattern(pattern in "(\\(\\?P<(step|loss|other_x)>)?[a-z0-9.*+?()\\[\\]{},|^$\\\\]{0,30}", log in "[ -~\n]{0,200}") {
            let _ = parse(&section(&[&pattern]), log.as_bytes());
        }
    }
}

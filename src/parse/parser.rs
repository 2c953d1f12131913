//! Bytes, in chunks of any size → a [`Trace`]; the memory does not grow with the log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Step, Trace,
    builder::Builder,
    format::{self, Evidence, Format, Reader, TABLE},
    lines::{Line, MAX_LINE, Splitter},
    mlperf,
    patterns::{self, PatternError, Patterns},
    tfevents::{self, TfEvents},
    tprimat,
};

/// How a recipe's log is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    pub format: String,
    /// For the format `regex`: named groups are fields of a step (`step`, `loss`, `step_time_seconds`, …).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
}

/// The format that a recipe's patterns make up.
const PATTERNS: &str = "regex";

impl LogSection {
    #[must_use]
    pub fn named(format: &str) -> Self {
        Self { format: format.to_owned(), patterns: Vec::new() }
    }

    /// Why logs cannot be read so, if they cannot.
    pub fn check(&self) -> Result<(), PatternError> {
        self.reader().map(drop)
    }

    fn reader(&self) -> Result<(&'static str, Box<dyn Reader>), PatternError> {
        if self.format == PATTERNS {
            let patterns = Patterns::compile(&self.patterns)?;
            return Ok((PATTERNS, Box::new(patterns::Log::new(patterns))));
        }
        let error = |message, help| Err(PatternError { at: None, message, help });
        let Some(format) = format::named(&self.format) else {
            let known: Vec<_> = format::names().chain([PATTERNS]).collect();
            let near =
                crate::error::nearest(&self.format, known.iter().copied()).map(|n| format!("did you mean `{n}`? "));
            let help = format!("{}formats: {}", near.unwrap_or_default(), known.join(", "));
            return error(format!("`{}` is not a log format", self.format), Some(help));
        };
        if !self.patterns.is_empty() {
            let help = "format = \"regex\" reads logs by patterns".to_owned();
            return error(format!("the format `{}` takes no patterns", self.format), Some(help));
        }
        Ok((format.name, (format.reader)()))
    }
}

/// Bytes of a log's beginning that are kept until its format is known.
const HEAD: usize = 64 << 20;
/// A line that only one format has may still be a relative's: so much more is read before the format is chosen.
const AFTER_EVIDENCE: usize = 1 << 20;

pub struct Parser {
    splitter: Splitter,
    state: State,
    builder: Builder,
    beside: Beside,
}

/// What any trainer's log may hold between its own lines: tprimat's events and MLPerf's entries.
struct Beside {
    events: tprimat::Events,
    mlperf: mlperf::Entries,
}

impl Beside {
    fn line(&mut self, format: &str, line: &Line<'_>, out: &mut Builder) {
        if format != "tprimat" && tprimat::may_be_event(&line.text) {
            self.events.line(line, out);
        }
        if format != "mlperf" && mlperf::may_be_entry(&line.text) {
            self.mlperf.line(line, out);
        }
    }
}

enum State {
    Detecting(Box<Detecting>),
    Reading(&'static str, Box<dyn Reader>),
    /// No lines: TensorBoard's event file.
    Events(Box<TfEvents>),
}

struct Detecting {
    head: Vec<u8>,
    best: Vec<Evidence>,
    strong_at: Option<usize>,
    seen: usize,
}

impl Parser {
    /// For a log whose format is known; `Err`: why it cannot be read so.
    pub fn new(section: &LogSection) -> Result<Self, String> {
        if section.format == tfevents::FORMAT {
            return Ok(Self::with(State::Events(Box::default())));
        }
        let (name, reader) = section.reader().map_err(|e| e.message)?;
        Ok(Self::with(State::Reading(name, reader)))
    }

    /// For a log of any format.
    #[must_use]
    pub fn detecting() -> Self {
        let best = vec![Evidence::None; TABLE.len()];
        Self::with(State::Detecting(Box::new(Detecting { head: Vec::new(), best, strong_at: None, seen: 0 })))
    }

    fn with(state: State) -> Self {
        Self {
            splitter: Splitter::default(),
            state,
            builder: Builder::default(),
            beside: Beside { events: tprimat::Events::default(), mlperf: mlperf::Entries::beside() },
        }
    }

    pub fn feed(&mut self, chunk: &[u8]) {
        match &mut self.state {
            State::Reading(name, reader) => {
                let (builder, beside) = (&mut self.builder, &mut self.beside);
                self.splitter.feed(chunk, |line| {
                    beside.line(name, line, builder);
                    reader.line(line, builder);
                });
            }
            State::Events(events) => events.feed(chunk),
            State::Detecting(detecting) => {
                let best = &mut detecting.best;
                self.splitter.feed(chunk, |line| {
                    for (best, format) in best.iter_mut().zip(TABLE) {
                        if *best != Evidence::Strong {
                            *best = (*best).max((format.evidence)(&line.text));
                        }
                    }
                });
                if detecting.head.len() < HEAD {
                    detecting.head.extend_from_slice(chunk);
                }
                // Its first bytes tell an event file; a log's lines that were seen before them say nothing.
                if detecting.seen < tfevents::HEADER && tfevents::begins(&detecting.head) {
                    let mut events = Box::<TfEvents>::default();
                    events.feed(&detecting.head);
                    self.state = State::Events(events);
                    return;
                }
                detecting.seen += chunk.len();
                if best.contains(&Evidence::Strong) {
                    let at = *detecting.strong_at.get_or_insert(detecting.seen);
                    if detecting.seen >= at + AFTER_EVIDENCE {
                        self.choose();
                    }
                }
            }
        }
    }

    /// Ends the detection, and reads what was kept.
    fn choose(&mut self) {
        let State::Detecting(detecting) = &mut self.state else { return };
        let strongest = detecting.best.iter().copied().max().unwrap_or_default();
        let format = TABLE.iter().zip(&detecting.best).find(|(_, e)| **e == strongest && **e > Evidence::None);
        let Some((format, _)) = format else { return };
        let head = std::mem::take(&mut detecting.head);
        let left_out = detecting.seen.saturating_sub(head.len());
        if left_out > 0 {
            let detail =
                format!("{left_out} bytes before the first step were not kept, settings among them may be missing");
            self.builder.notes.add("late_start", || detail);
        }
        self.state = reading(format);
        self.splitter = Splitter::default();
        self.feed(&head);
    }

    /// The format that is read, once it is known.
    #[must_use]
    pub fn format(&self) -> Option<&'static str> {
        match &self.state {
            State::Reading(name, _) => Some(name),
            State::Events(_) => Some(tfevents::FORMAT),
            State::Detecting(_) => None,
        }
    }

    #[must_use]
    pub fn finish(mut self) -> Trace {
        self.choose();
        let (name, mut reader) = match self.state {
            State::Reading(name, reader) => (name, reader),
            State::Events(events) => return events.finish(),
            State::Detecting(_) => return Trace { format: "unknown".to_owned(), ..self.builder.finish() },
        };
        let (builder, beside) = (&mut self.builder, &mut self.beside);
        self.splitter.finish(|line| {
            beside.line(name, line, builder);
            reader.line(line, builder);
        });
        reader.end(builder);
        if self.splitter.cut > 0 {
            let count = self.splitter.cut;
            self.builder.notes.add("long_line", || format!("{count} lines longer than {MAX_LINE} bytes were cut"));
        }
        self.builder.trace.format = name.to_owned();
        self.builder.finish()
    }
}

fn reading(format: &'static Format) -> State {
    State::Reading(format.name, (format.reader)())
}

/// What a log in memory says. A format that cannot be read gives an empty trace with the anomaly `unknown_format`.
#[must_use]
pub fn parse(section: &LogSection, log: &[u8]) -> Trace {
    match Parser::new(section) {
        Ok(mut parser) => {
            parser.feed(log);
            parser.finish()
        }
        Err(why) => {
            let mut builder = Builder::default();
            builder.notes.add("unknown_format", || why);
            Trace { format: section.format.clone(), ..builder.finish() }
        }
    }
}

/// What a log in memory says, whatever its format.
#[must_use]
pub fn parse_any(log: &[u8]) -> Trace {
    let mut parser = Parser::detecting();
    parser.feed(log);
    parser.finish()
}

/// Reads a log while it grows, line by line, for the progress display.
pub struct Live {
    reader: Option<Box<dyn Reader>>,
    last: Option<u64>,
}

impl Live {
    #[must_use]
    pub fn new(section: &LogSection) -> Self {
        Self { reader: section.reader().ok().map(|(_, reader)| reader), last: None }
    }

    /// The newest step that `line` (with or without its line end) states, if it is further than any before.
    pub fn feed(&mut self, line: &[u8]) -> Option<Step> {
        let reader = self.reader.as_mut()?;
        let mut builder = Builder::default();
        super::lines::for_each_line(line, |line| reader.line(line, &mut builder));
        let step = builder.trace.steps.pop().filter(|s| self.last.is_none_or(|last| s.step > last))?;
        self.last = Some(step.step);
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_reports_each_step_once_and_skips_what_other_ranks_repeat() {
        let mut live = Live::new(&LogSection::named("tprimat"));
        assert_eq!(live.feed(b"loading weights\n"), None);
        let step = live.feed(b"[rank0]: {\"event\":\"step\",\"step\":1,\"loss\":2.5}\r\n").unwrap();
        assert_eq!((step.step, step.loss), (1, Some(2.5)));
        assert_eq!(live.feed(b"[rank1]: {\"event\":\"step\",\"step\":1,\"loss\":2.5}"), None);
        assert_eq!(live.feed(br#"{"event":"step","step":2}"#).map(|s| s.step), Some(2));
        assert_eq!(Live::new(&LogSection::named("nothing")).feed(br#"{"event":"step","step":2}"#), None);
    }

    #[test]
    fn an_unknown_format_is_said_and_not_guessed() {
        let trace = parse(&LogSection::named("nothing"), b"iteration 1/ 10");
        assert_eq!(trace.anomalies[0].kind, "unknown_format");
        assert!(trace.steps.is_empty());
    }

    #[test]
    fn detects_the_own_format_behind_noise_only() {
        let start = b"warning: x\n[rank0]: {\"event\": \"start\", \"schema\": \"tprimat.events/1\"}\n";
        assert_eq!(parse_any(start).format, "tprimat");
        assert_eq!(parse_any(b"{\"event\": \"click\"}\n{\"other\": 1}\n").format, "unknown");
        assert_eq!(parse_any(b"").format, "unknown");
    }
}

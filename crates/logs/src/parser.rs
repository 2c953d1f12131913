//! Bytes, in chunks of any size → a [`Trace`]; the memory does not grow with the log.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use tprimat_base::words::{did_you_mean, part};

use super::{
    Step, Trace,
    builder::Builder,
    causes::{CHARS, Causes},
    compile::{PatternError, Table},
    dates,
    encoding::Decoder,
    engine::Engine,
    format::{self, Evidence, Format, Reader, TABLE},
    lines::{Line, MAX_LINE, Splitter, cut},
    mlperf, process,
    table::LogSection,
    tfevents::{self, TfEvents},
    tprimat,
    tqdm::may_be_bar,
};

/// A line between the logs of two ranks of one run that are read as one: steps come again, and no process begins.
pub const NEXT_RANK: &[u8] = b"\n\x1e\n";
const RANK_MARK: &str = "\x1e";

/// The format that a recipe's patterns make up.
const PATTERNS: &str = "regex";
/// Events, or else whatever known format the log has.
const ANY: &str = "any";
const EVENTS: &str = "tprimat";

impl LogSection {
    #[must_use]
    pub fn named(format: &str) -> Self {
        Self {
            format: format.to_owned(),
            ..Self::default()
        }
    }

    /// Lines of one's own: each with named places, or a pattern with named groups.
    #[must_use]
    pub fn of_lines(lines: &[&str]) -> Self {
        Self {
            patterns: lines.iter().map(|line| (*line).to_owned()).collect(),
            ..Self::named(PATTERNS)
        }
    }

    /// Is the format made up by patterns of a recipe, so that no log can be known to be in it by
    /// its looks?
    #[must_use]
    pub fn is_of_patterns(&self) -> bool {
        self.format == PATTERNS || !self.lines.is_empty() || !self.patterns.is_empty()
    }

    /// Is the format not stated? Then a log without events is read once more, by what it looks like.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.format == ANY
    }

    /// Why logs cannot be read so, if they cannot.
    pub fn check(&self) -> Result<(), PatternError> {
        self.reader().map(drop)
    }

    fn reader(&self) -> Result<(String, Box<dyn Reader>), PatternError> {
        let error = |message, help| {
            Err(PatternError {
                at: Vec::new(),
                message,
                help,
            })
        };
        let own = self.is_of_patterns();
        let name = if self.format == ANY {
            EVENTS
        } else {
            &self.format
        };
        match format::named(name) {
            Some(_) if own => error(
                format!("the format `{}` takes no patterns", self.format),
                Some("format = \"regex\" reads logs by patterns".to_owned()),
            ),
            Some(format) => Ok((format.name.to_owned(), format.reader())),
            None if self.lines.is_empty() && self.patterns.is_empty() && own => error(
                "the format `regex` needs `patterns` or `lines`".to_owned(),
                None,
            ),
            None if own => {
                let table = Table::compile(self)?;
                Ok((self.format.clone(), Box::new(Engine::new(table))))
            }
            None => {
                let known: Vec<_> = format::names().chain([PATTERNS, ANY]).collect();
                let near = did_you_mean(&self.format, known.iter().copied());
                let near = near.map_or_else(String::new, |question| question + " ");
                let help = format!("{near}formats: {}", known.join(", "));
                error(format!("`{}` is not a log format", self.format), Some(help))
            }
        }
    }
}

/// Bytes of a log's beginning that are kept until its format is known.
const HEAD: usize = 16 << 20;
/// Bytes before the first line of a known format that are kept as well, where it comes later.
const BEFORE_EVIDENCE: usize = 1 << 20;
/// Bytes that are read after a line that only one format has, before that format is chosen: it may
/// still be a relative's.
const AFTER_EVIDENCE: usize = 1 << 20;
/// Chunks are taken piece by piece, so that neither of the above depends on how the log comes in.
const PIECE: usize = 64 << 10;

pub struct Parser {
    decoder: Decoder,
    splitter: Splitter,
    state: State,
    builder: Builder,
    extras: Extras,
}

/// What is looked for between the lines of any format.
struct Extras {
    /// Trainers that tprimat starts may state their settings as events between their own lines.
    events: tprimat::Events,
    /// Evaluations and settings; the steps are the trainer's own lines.
    mlperf: mlperf::Entries,
    /// What a launcher says of the run, above or between the trainer's lines.
    banner: Engine,
    causes: Causes,
}

impl Extras {
    fn new() -> Self {
        Self {
            events: tprimat::Events::default(),
            mlperf: mlperf::Entries::beside(),
            banner: Engine::new(format::shipped("banner")),
            causes: Causes::default(),
        }
    }
}

enum State {
    Detecting(Box<Detecting>),
    Reading(String, Box<dyn Reader>),
    /// No lines: TensorBoard's event file.
    Events(Box<TfEvents>),
}

struct Detecting {
    head: Vec<u8>,
    /// What came after the head, as far as it is kept.
    recent: Vec<u8>,
    best: Vec<Evidence>,
    strong_at: Option<usize>,
    seen: usize,
}

impl Detecting {
    fn keep(&mut self, piece: &[u8]) {
        self.seen += piece.len();
        if self.recent.is_empty() && self.head.len() + piece.len() <= HEAD {
            self.head.extend_from_slice(piece);
            return;
        }
        if self.strong_at.is_none() && self.recent.len() >= 2 * BEFORE_EVIDENCE {
            self.recent.drain(..self.recent.len() - BEFORE_EVIDENCE);
        }
        self.recent.extend_from_slice(piece);
    }

    /// Bytes between the head and what is kept of the rest; cuts torn lines off on both sides of
    /// such a gap.
    fn close_gap(&mut self) -> usize {
        let gap = self.seen - self.head.len() - self.recent.len();
        if gap > 0 {
            let ends = |b: &u8| *b == b'\n' || *b == b'\r';
            self.head
                .truncate(self.head.iter().rposition(ends).map_or(0, |at| at + 1));
            self.recent.drain(
                ..self
                    .recent
                    .iter()
                    .position(ends)
                    .map_or(self.recent.len(), |at| at + 1),
            );
        }
        gap
    }
}

impl Parser {
    /// Reads a log whose format is known; `Err`: why it cannot be read so.
    pub fn new(section: &LogSection) -> Result<Self, String> {
        if section.format == tfevents::FORMAT {
            return Ok(Self::with(State::Events(Box::default())));
        }
        let (name, reader) = section.reader().map_err(|e| e.message)?;
        Ok(Self::with(State::Reading(name, reader)))
    }

    /// Reads a log of any format.
    #[must_use]
    pub fn detecting() -> Self {
        let best = vec![Evidence::None; TABLE.len()];
        let (head, recent) = (Vec::new(), Vec::new());
        Self::with(State::Detecting(Box::new(Detecting {
            head,
            recent,
            best,
            strong_at: None,
            seen: 0,
        })))
    }

    fn with(state: State) -> Self {
        Self {
            decoder: Decoder::default(),
            splitter: Splitter::default(),
            state,
            builder: Builder::default(),
            extras: Extras::new(),
        }
    }

    pub fn feed(&mut self, chunk: &[u8]) {
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::Plain);
        for piece in chunk.chunks(PIECE) {
            decoder.feed(piece, |text| self.text(text));
        }
        self.decoder = decoder;
    }

    fn text(&mut self, text: &[u8]) {
        for piece in text.chunks(PIECE) {
            self.piece(piece);
        }
    }

    /// Tells of each line that is read which kind of line, or which pattern, has read it.
    #[must_use]
    pub fn telling(mut self, tell: impl FnMut(u64, &str) + Send + 'static) -> Self {
        self.builder.tell = Some(Box::new(tell));
        self
    }

    /// What is fed from now on was seen in the log at `time`, in seconds since 1970. Says nothing
    /// while the format is still looked for: those bytes are read later.
    fn seen_at(&mut self, time: f64) {
        if let State::Reading(..) = self.state {
            self.builder.clock = Some(time);
        }
    }

    fn piece(&mut self, piece: &[u8]) {
        let Self {
            splitter,
            state,
            builder,
            extras,
            ..
        } = self;
        match state {
            State::Reading(name, reader) => {
                splitter.feed(piece, |line| {
                    read(name, reader.as_mut(), line, builder, extras)
                });
            }
            State::Events(events) => events.feed(piece),
            State::Detecting(detecting) => {
                let best = &mut detecting.best;
                splitter.feed(piece, |line| weigh(line, best, &mut extras.causes));
                if best.contains(&Evidence::Strong) {
                    detecting
                        .strong_at
                        .get_or_insert(detecting.seen + piece.len());
                }
                let first = detecting.seen < tfevents::HEADER;
                detecting.keep(piece);
                // Its first bytes tell an event file; what they look like as lines says nothing.
                if first && tfevents::begins(&detecting.head) {
                    let mut events = Box::<TfEvents>::default();
                    events.feed(&detecting.head);
                    self.state = State::Events(events);
                } else if detecting
                    .strong_at
                    .is_some_and(|at| detecting.seen >= at + AFTER_EVIDENCE)
                {
                    self.choose();
                }
            }
        }
    }

    /// Ends the detection, and reads what was kept.
    fn choose(&mut self) {
        let State::Detecting(detecting) = &mut self.state else {
            return;
        };
        let strongest = detecting.best.iter().copied().max().unwrap_or_default();
        let format = TABLE
            .iter()
            .zip(&detecting.best)
            .find(|(_, e)| **e == strongest && **e > Evidence::None);
        let Some((format, _)) = format else { return };
        let left_out = detecting.close_gap();
        if left_out > 0 {
            let detail = format!(
                "{left_out} bytes before the first step were not kept, settings among them may be missing"
            );
            self.builder.notes.add("late_start", || detail);
        }
        let (head, recent) = (
            std::mem::take(&mut detecting.head),
            std::mem::take(&mut detecting.recent),
        );
        let feeds = self.splitter.feeds;
        self.state = reading(format);
        self.splitter = Splitter::default();
        self.extras.causes = Causes::default();
        self.text(&head);
        if left_out > 0 {
            let kept = memchr::memchr_iter(b'\n', &recent).count() as u64;
            self.splitter.feeds = feeds.saturating_sub(kept);
        }
        self.text(&recent);
    }

    #[must_use]
    pub fn finish(self) -> Trace {
        let (mut trace, causes) = self.end();
        if trace.failure.is_none() {
            trace.failure = causes.verdict(&trace);
        }
        trace
    }

    /// What the log says, and what it says of failures.
    pub(super) fn end(mut self) -> (Trace, Causes) {
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::Plain);
        decoder.finish(|text| self.text(text));
        if let State::Detecting(detecting) = &mut self.state {
            // The last line, if it has no line end: it may be the only one.
            let (best, causes) = (&mut detecting.best, &mut self.extras.causes);
            self.splitter.finish(|line| weigh(line, best, causes));
        }
        self.choose();
        let Self {
            mut splitter,
            state,
            mut builder,
            mut extras,
            ..
        } = self;
        let (name, mut reader) = match state {
            State::Reading(name, reader) => (name, reader),
            State::Events(events) => return (events.finish(), Causes::default()),
            State::Detecting(_) => {
                return (
                    Trace {
                        format: "unknown".to_owned(),
                        ..builder.finish()
                    },
                    extras.causes,
                );
            }
        };
        splitter.finish(|line| read(&name, reader.as_mut(), line, &mut builder, &mut extras));
        builder.settle_back(None);
        builder.choose_beginning();
        reader.end(&mut builder);
        if splitter.cut > 0 {
            let count = splitter.cut;
            builder.notes.add("long_line", || {
                format!("{count} lines longer than {MAX_LINE} bytes were cut")
            });
        }
        builder.trace.format.clone_from(&name);
        (builder.finish(), extras.causes)
    }
}

/// One line for the format's reader, and for what is looked for in every format.
fn read(
    name: &str,
    reader: &mut dyn Reader,
    line: &Line<'_>,
    builder: &mut Builder,
    extras: &mut Extras,
) {
    builder.notes.line = line.number;
    if line.text == RANK_MARK {
        return builder.next_rank();
    }
    // A number at the end of a line that was cut off may lack digits; a row of readings is nothing without its last one.
    let cut_off = without_last_number(line).filter(|_| !name.ends_with("-smi"));
    let lacks = cut_off.is_some();
    let line = &cut_off.unwrap_or_else(|| Line {
        text: line.text.as_ref().into(),
        ..*line
    });
    builder.beginning.clear();
    let reach = line.text.floor_char_boundary(dates::REACH);
    builder.beginning.push_str(part(&line.text, ..reach));
    let text = dates::behind_collector(&line.text);
    // Somebody's own patterns may be of whole lines.
    let is_plain = text.len() < line.text.len() && format::named(name).is_some();
    let line = &Line {
        text: if is_plain { text } else { &line.text }.into(),
        ..*line
    };
    let said = process::said(&line.text);
    // What stands behind a bar says nothing of the bar's step. The Trainer's reader sees to that itself.
    let is_behind = may_be_bar(&line.text) && name != "hf-trainer";
    if let Some(said) = said.filter(|_| !is_behind) {
        reader.settle(builder);
        if process::starts_again(&line.text) && builder.forget_attempt() {
            reader.forget();
            extras.events.forget();
        }
        builder.begins(said);
    }
    let (steps, nans) = (builder.trace.step_lines, builder.notes.nan_losses);
    if name != "tprimat" && tprimat::may_be_event(&line.text) {
        extras.events.line(line, builder);
    }
    if name != "mlperf" && mlperf::may_be_entry(&line.text) {
        extras.mlperf.line(line, builder);
    }
    reader.line(line, builder);
    if let Some(said) = said.filter(|_| is_behind) {
        reader.settle(builder);
        builder.begins(said);
    }
    if builder.trace.step_lines > steps {
        builder.tell_reader(name);
        if lacks {
            let what = || "the log ends within a number, which is left out".to_owned();
            builder.notes.add("truncated", what);
        }
    }
    // A dictionary waits for the bar behind it: what is told then is not of the line that is read.
    if builder.notes.nan_losses > nans && name != "hf-trainer" {
        builder.nan_line(&cut(line.text.trim_ascii(), CHARS));
    }
    let causes = &mut extras.causes;
    if builder.trace.step_lines > steps {
        causes.step_line(&line.text)
    } else {
        if is_banner(&line.text) {
            extras.banner.line(line, builder);
        }
        causes.line(&line.text);
        if said.is_some() {
            causes.begins();
        }
    }
}

/// A line that has no end, without the number that it breaks off in.
fn without_last_number<'a>(line: &'a Line<'_>) -> Option<Line<'a>> {
    let of_number = |c: char| c.is_ascii_digit() || ".,+-eE".contains(c);
    let whole = line.text.trim_end_matches(of_number);
    let number = part(&line.text, whole.len()..);
    let is_cut = !line.ended && number.contains(|c: char| c.is_ascii_digit());
    is_cut.then(|| Line {
        text: whole.into(),
        ..*line
    })
}

/// Cheap, for lines of trainers.
fn is_banner(text: &str) -> bool {
    static WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| {
        let words = [
            "[Primus:Env]",
            "seq_length: ",
            "rainable ",
            "LoRA ",
            "lora_r",
            "Peak res",
        ];
        AhoCorasick::new(words).expect("a few short words")
    });
    text.starts_with("# ") || WORDS.is_match(text)
}

/// One line's evidence for each format.
fn weigh(line: &Line<'_>, best: &mut [Evidence], causes: &mut Causes) {
    // Lines that are mostly not UTF-8 are no text, and gigabytes of them should not cost a look by
    // every format.
    if line.text.matches('\u{fffd}').count() * 8 > line.text.len() {
        return;
    }
    let text = dates::behind_collector(&line.text);
    for (best, format) in best.iter_mut().zip(TABLE) {
        if *best != Evidence::Strong {
            *best = (*best).max(format.evidence(text));
        }
    }
    causes.line(&line.text);
}

fn reading(format: &'static Format) -> State {
    State::Reading(format.name.to_owned(), format.reader())
}

/// What a log in memory says. A format that cannot be read gives an empty trace with the anomaly
/// `unknown_format`.
#[must_use]
pub fn parse(section: &LogSection, log: &[u8]) -> Trace {
    parse_dated(section, log, b"")
}

/// The same, where `times` says when the log grew: lines `<seconds since 1970> <bytes of log by
/// then>`.
#[must_use]
pub fn parse_dated(section: &LogSection, log: &[u8], times: &[u8]) -> Trace {
    let mut parser = Dated::new(section, times);
    parser.feed(log);
    parser.finish()
}

/// The same in chunks.
pub struct Dated {
    parser: Result<Parser, Trace>,
    /// When the log had which length, the first one last.
    growth: Vec<(f64, usize)>,
    done: usize,
}

impl Dated {
    #[must_use]
    pub fn new(section: &LogSection, times: &[u8]) -> Self {
        let unknown = |why: String| {
            let mut builder = Builder::default();
            builder.notes.add("unknown_format", || why);
            Trace {
                format: section.format.clone(),
                ..builder.finish()
            }
        };
        let mut growth: Vec<_> = growth(times).collect();
        growth.reverse();
        Self {
            parser: Parser::new(section).map_err(unknown),
            growth,
            done: 0,
        }
    }

    /// A chunk of a log that comes before the one whose times are known.
    pub fn feed_before(&mut self, chunk: &[u8]) {
        if let Ok(parser) = &mut self.parser {
            parser.feed(chunk);
        }
    }

    pub fn feed(&mut self, mut chunk: &[u8]) {
        let Ok(parser) = &mut self.parser else {
            return;
        };
        while let Some((time, length)) = self.growth.last().copied().filter(|_| !chunk.is_empty()) {
            let (piece, rest) = chunk.split_at(length.saturating_sub(self.done).min(chunk.len()));
            parser.seen_at(time);
            parser.feed(piece);
            self.done += piece.len();
            if self.done >= length {
                self.growth.pop();
            }
            chunk = rest;
        }
        parser.feed(chunk);
    }

    #[must_use]
    pub fn finish(self) -> Trace {
        self.parser.map_or_else(|trace| trace, Parser::finish)
    }
}

fn growth(times: &[u8]) -> impl Iterator<Item = (f64, usize)> {
    times.split(|b| *b == b'\n').filter_map(|line| {
        let (time, length) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        Some((
            time.parse().ok().filter(|t: &f64| t.is_finite())?,
            length.parse().ok()?,
        ))
    })
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
        Self {
            reader: section.reader().ok().map(|(_, reader)| reader),
            last: None,
        }
    }

    /// The newest step that `line` (with or without its line end) states, if it is further than any
    /// before.
    pub fn feed(&mut self, line: &[u8]) -> Option<Step> {
        let reader = self.reader.as_mut()?;
        let mut builder = Builder::default();
        super::lines::for_each_line(line, |line| reader.line(line, &mut builder));
        let step = builder
            .trace
            .steps
            .pop()
            .filter(|s| self.last.is_none_or(|last| s.step > last))?;
        self.last = Some(step.step);
        Some(step)
    }
}

#[cfg(test)]
mod tests;

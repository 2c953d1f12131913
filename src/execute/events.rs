//! What a build tells while it runs, and who listens: plain lines, a line that moves, JSON lines.
//!
//! Progress goes to standard error. A listener that cannot be written to any more falls silent; a
//! build never fails for it.

mod event;
mod live_line;
mod progress;
#[cfg(test)]
mod tests;
mod wording;

use std::{
    collections::{HashMap, HashSet},
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    files::unix_now,
    secrets::masked,
    words::plain,
};
pub use event::{CellCounts, Event, Outcome};
pub use live_line::LiveLine;
pub use progress::Progress;
use wording::sentence;

/// Listens to a build.
pub trait Reporter: Send {
    fn report(&mut self, event: &Event);
}

/// A writer that falls silent for good once it fails.
struct Quietly<W> {
    writer: Option<W>,
}

impl<W: Write> Quietly<W> {
    fn line(&mut self, line: &str) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        // One write a line, so that lines of several processes do not mix.
        if let Err(error) = writer
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| writer.flush())
        {
            self.writer = None;
            if error.kind() != io::ErrorKind::BrokenPipe {
                let _ = writeln!(io::stderr(), "progress is not written any more: {error}");
            }
        }
    }
}

/// One JSON object a line: `{"time": <seconds since 1970>, "event": "step", …}`.
pub struct JsonLines<W> {
    sink: Quietly<W>,
}

impl<W: Write> JsonLines<W> {
    pub fn new(writer: W) -> Self {
        Self {
            sink: Quietly {
                writer: Some(writer),
            },
        }
    }
}

impl JsonLines<Box<dyn Write + Send>> {
    /// `-` is standard output.
    pub fn open(target: &Path) -> Result<Self> {
        if target == Path::new("-") {
            return Ok(Self::new(Box::new(io::stdout())));
        }
        // A stream, read while it grows (or a named pipe): it cannot be replaced as a whole.
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(target);
        Ok(Self::new(Box::new(
            file.map_err(Error::io("cannot write", target))?,
        )))
    }
}

/// A line of the event stream.
#[derive(Serialize, Deserialize)]
pub struct Stamped<E> {
    /// Seconds since 1970.
    pub time: f64,
    #[serde(flatten)]
    pub event: E,
}

impl<W: Write + Send> Reporter for JsonLines<W> {
    fn report(&mut self, event: &Event) {
        if let Ok(line) = serde_json::to_string(&Stamped {
            time: unix_now(),
            event,
        }) {
            self.sink.line(&plain::json(&masked(&line)));
        }
    }
}

/// How much of a build is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Amount {
    /// Only what failed.
    Failures,
    /// Measurements. Parsing and its like are worth a line only when they go wrong.
    #[default]
    Measurements,
    EveryTask,
}

/// Lines for a log or a pipe; of the steps of one task at most one in `every`.
pub struct PlainLines<W> {
    sink: Quietly<W>,
    every: Duration,
    amount: Amount,
    /// Running measurements, with the time of their start or of the last step that was told, and how
    /// long it takes from there to the next one.
    running: HashMap<String, (Instant, Duration)>,
    /// The failures that were told, by what their logs say: one that many runs meet is told once.
    failures: HashMap<Vec<String>, String>,
    progress: Progress,
    /// When the last line was written.
    told_at: Option<Instant>,
    /// It was told that somebody else's run holds a device.
    told_held: bool,
    /// What each task was told to wait for.
    waits: HashSet<(String, String)>,
}

impl<W: Write> PlainLines<W> {
    pub fn new(writer: W, every: Duration, amount: Amount) -> Self {
        Self {
            sink: Quietly {
                writer: Some(writer),
            },
            every,
            amount,
            running: HashMap::new(),
            failures: HashMap::new(),
            progress: Progress::default(),
            told_at: None,
            told_held: false,
            waits: HashSet::new(),
        }
    }

    /// Was something told of a task so shortly before that this may wait? The longer it goes on, the more
    /// seldom it is told of.
    fn is_too_soon(&mut self, task: &str) -> bool {
        let now = Instant::now();
        let first = (now, self.every);
        let (last, every) = self.running.entry(task.to_owned()).or_insert(first);
        if last.elapsed() < *every {
            return true;
        }
        *last = now;
        *every = every.saturating_mul(2).min(LONGEST_SILENCE.max(self.every));
        false
    }
}

/// How it is said who has a device that a run waits for.
pub(super) const HELD: &str = " held by process ";

/// A run of hours has a dozen lines, and none is silent for so long that a CI host takes it for dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

impl<W: Write + Send> Reporter for PlainLines<W> {
    fn report(&mut self, event: &Event) {
        let tells_all = self.amount == Amount::EveryTask;
        self.progress.take(event);
        let mut said = sentence(event);
        match event {
            Event::TaskFinished {
                outcome: Outcome::Failed | Outcome::NotCounted | Outcome::Interrupted,
                task,
                evidence,
                ..
            } => {
                self.running.remove(task);
                if let Some(like) = self.failures.get(evidence).filter(|_| !tells_all) {
                    said.truncate(said.find('\n').unwrap_or(said.len()));
                    said += &format!(": as {like}");
                } else if !evidence.is_empty() {
                    self.failures.insert(evidence.clone(), task.clone());
                }
            }
            _ if self.amount == Amount::Failures => return,
            // On a busy host every run waits for a moment.
            Event::TaskWaiting { what_for, .. }
                if !tells_all
                    && what_for.contains(HELD)
                    && std::mem::replace(&mut self.told_held, true) =>
            {
                return;
            }
            // Numbers change while the reason stays, as how many nodes have no room for a Job, and an image
            // that is absent has two names, which alternate.
            Event::TaskWaiting { task, what_for } if !tells_all => {
                let reason = what_for.replace(|c: char| c.is_ascii_digit(), "");
                if !self.waits.insert((task.clone(), reason)) && self.is_too_soon(task) {
                    return;
                }
            }
            // The end says that nothing was to do, and the start of each run how many are to come.
            Event::BuildStarted { stale, queue, .. }
                if *stale == 0 || queue.iter().any(|task| task.starts_with("train ")) =>
            {
                return;
            }
            Event::Step { task, .. } if self.is_too_soon(task) => return,
            Event::TaskStarted { repeat: None, .. } if !tells_all => return,
            Event::TaskStarted { task, .. } => {
                let now = Instant::now();
                self.running.insert(task.clone(), (now, self.every));
                // After a run of a few seconds, another one of its cell is no news, unless nothing was
                // told for a while.
                let is_short = |mean: f64| mean < self.every.as_secs_f64();
                let is_recent = self.told_at.is_some_and(|at| at.elapsed() < self.every);
                if self.progress.mean(task).is_some_and(is_short) && is_recent && !tells_all {
                    return;
                }
                if let Some(how_far) = self.progress.told() {
                    said += &format!("; {how_far}");
                }
            }
            // How far the build is stands at the next start.
            Event::TaskFinished { task, outcome, .. } => {
                let was_running = self.running.remove(task).is_some();
                let is_told = was_running && *outcome != Outcome::Ok || !is_no_news(*outcome);
                if !is_told && !tells_all {
                    return;
                }
            }
            _ => {}
        }
        self.told_at = Some(Instant::now());
        self.sink.line(&said);
    }
}

/// The end of a task that goes without saying.
fn is_no_news(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Ok | Outcome::Cached | Outcome::Waiting)
}

//! What a build tells while it runs, and who listens: plain lines, bars, JSON lines.
//!
//! Talk goes to standard error. A listener that cannot be written to any more falls silent; a build
//! never fails for it.

use std::{
    collections::HashMap,
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::secrets::masked;
use crate::{
    error::{Error, Result},
    files::unix_now,
    parse::FailureClass,
    plain::{self, counted},
};

/// What an outcome of a task is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    Failed,
    Waiting,
    Unsupported,
    /// The build was interrupted before the task was done; nothing of it is kept.
    Interrupted,
}

impl Outcome {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Waiting => "waiting",
            Self::Unsupported => "unsupported",
            Self::Interrupted => "interrupted",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    BuildStarted {
        tasks: usize,
        /// How many of them will run.
        stale: usize,
    },
    TaskStarted {
        task: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cell: Option<String>,
        /// Counted from 1; only a task that measures has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        repeat: Option<u32>,
        /// Why the task is stale.
        reason: String,
    },
    /// The task was started and cannot go on yet.
    TaskWaiting {
        task: String,
        #[serde(rename = "for")]
        what_for: String,
    },
    /// An optimiser step of a running trainer, as its log has it.
    Step {
        task: String,
        step: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps_total: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step_time_seconds: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss: Option<f64>,
        /// Over all ranks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens_per_second: Option<f64>,
    },
    TaskFinished {
        task: String,
        outcome: Outcome,
        seconds: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<FailureClass>,
        /// Lines of the log that say so.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        evidence: Vec<String>,
    },
    /// Something a person should know that belongs to no task.
    Note { message: String },
    BuildFinished {
        ok: usize,
        failed: usize,
        waiting: usize,
        unsupported: usize,
        /// Runs that ended well and still count for nothing: they contradict their job, were disturbed, or measured nothing.
        #[serde(default)]
        contradicted: usize,
        #[serde(default)]
        suspect: usize,
        #[serde(default)]
        unmeasured: usize,
        seconds: f64,
    },
}

/// Listens to a build.
pub trait Reporter: Send {
    fn report(&mut self, event: &Event);
}

/// Several listeners, as one.
#[derive(Default)]
pub struct Reporters(pub Vec<Box<dyn Reporter>>);

impl Reporter for Reporters {
    fn report(&mut self, event: &Event) {
        for reporter in &mut self.0 {
            reporter.report(event);
        }
    }
}

/// A writer that falls silent for good once it fails.
struct Quietly<W> {
    writer: Option<W>,
}

impl<W: Write> Quietly<W> {
    fn line(&mut self, line: &str) {
        let Some(writer) = &mut self.writer else { return };
        // One write a line, so that lines of several processes do not mix.
        if let Err(error) = writer.write_all(format!("{line}\n").as_bytes()).and_then(|()| writer.flush()) {
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
        Self { sink: Quietly { writer: Some(writer) } }
    }
}

impl JsonLines<Box<dyn Write + Send>> {
    /// `-` is standard output.
    pub fn open(target: &Path) -> Result<Self> {
        if target == Path::new("-") {
            return Ok(Self::new(Box::new(io::stdout())));
        }
        // A stream, read while it grows (or a named pipe): it cannot be replaced as a whole.
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(target);
        Ok(Self::new(Box::new(file.map_err(Error::io("cannot write", target))?)))
    }
}

#[derive(Serialize)]
struct Stamped<'a> {
    time: f64,
    #[serde(flatten)]
    event: &'a Event,
}

impl<W: Write + Send> Reporter for JsonLines<W> {
    fn report(&mut self, event: &Event) {
        if let Ok(line) = serde_json::to_string(&Stamped { time: unix_now(), event }) {
            self.sink.line(&plain::json(&masked(&line)));
        }
    }
}

/// Lines for a log or a pipe; of the steps of one task at most one in `every`.
pub struct PlainLines<W> {
    sink: Quietly<W>,
    every: Duration,
    /// Running measurements, with the time of the last step that was told.
    running: HashMap<String, Option<Instant>>,
}

impl<W: Write> PlainLines<W> {
    pub fn new(writer: W, every: Duration) -> Self {
        Self { sink: Quietly { writer: Some(writer) }, every, running: HashMap::new() }
    }
}

impl<W: Write + Send> Reporter for PlainLines<W> {
    fn report(&mut self, event: &Event) {
        match event {
            Event::Step { task, .. } => {
                let now = Instant::now();
                let last = self.running.insert(task.clone(), Some(now)).flatten();
                if let Some(last) = last.filter(|last| now.duration_since(*last) < self.every) {
                    self.running.insert(task.clone(), Some(last));
                    return;
                }
            }
            // Parsing and its like are worth a line only when they go wrong.
            Event::TaskStarted { repeat: None, .. } => return,
            Event::TaskStarted { task, .. } => drop(self.running.insert(task.clone(), None)),
            Event::TaskFinished { task, outcome, .. }
                if self.running.remove(task).is_none() && *outcome == Outcome::Ok =>
            {
                return;
            }
            _ => {}
        }
        self.sink.line(&sentence(event));
    }
}

/// One bar a running measurement, under the lines of what is done. For a terminal.
pub struct Bars {
    all: MultiProgress,
    tasks: ProgressBar,
    running: HashMap<String, ProgressBar>,
}

impl Bars {
    #[must_use]
    pub fn new() -> Self {
        Self::on(ProgressDrawTarget::stderr())
    }

    fn on(target: ProgressDrawTarget) -> Self {
        let all = MultiProgress::with_draw_target(target);
        let tasks = all.add(ProgressBar::no_length());
        tasks.set_style(style("{pos}/{len} tasks  {elapsed}"));
        Self { all, tasks, running: HashMap::new() }
    }

    fn say(&self, event: &Event) {
        let _ = self.all.println(sentence(event));
    }
}

impl Default for Bars {
    fn default() -> Self {
        Self::new()
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}

impl Reporter for Bars {
    fn report(&mut self, event: &Event) {
        match event {
            Event::BuildStarted { stale, .. } => {
                self.tasks.set_length(*stale as u64);
                self.tasks.enable_steady_tick(Duration::from_secs(1));
            }
            Event::TaskStarted { task, repeat: Some(_), .. } => {
                let bar = self.all.insert_before(&self.tasks, ProgressBar::no_length());
                bar.set_style(style("{prefix}  {msg}  {elapsed}"));
                bar.set_prefix(plain::line(task).into_owned());
                bar.set_message("starting");
                self.running.insert(task.clone(), bar);
            }
            Event::TaskStarted { .. } => {}
            Event::TaskWaiting { task, what_for } => match self.running.get(task) {
                Some(bar) => bar.set_message(plain::line(&format!("waiting for {what_for}")).into_owned()),
                None => self.say(event),
            },
            Event::Step { task, step, steps_total, .. } => {
                let Some(bar) = self.running.get(task) else { return };
                if let Some(total) = steps_total.filter(|total| bar.length() != Some(*total)) {
                    bar.set_length(total);
                    bar.set_style(style("{prefix} [{bar:20}] {msg}  {eta} left"));
                }
                bar.set_position(*step);
                bar.set_message(step_words(event));
            }
            Event::TaskFinished { task, outcome, .. } => {
                let bar = self.running.remove(task);
                if let Some(bar) = &bar {
                    bar.finish_and_clear();
                    self.all.remove(bar);
                }
                self.tasks.inc(1);
                // Parsing and its like are worth a line only when they go wrong.
                if bar.is_some() || *outcome != Outcome::Ok {
                    self.say(event);
                }
            }
            Event::Note { .. } => self.say(event),
            Event::BuildFinished { .. } => {
                self.say(event);
                self.tasks.finish_and_clear();
            }
        }
    }
}

fn step_words(event: &Event) -> String {
    let Event::Step { step, steps_total, loss, tokens_per_second, .. } = event else { return String::new() };
    let mut words = match steps_total {
        Some(total) => format!("step {step}/{total}"),
        None => format!("step {step}"),
    };
    if let Some(loss) = loss {
        words += &format!("  loss {loss:.4}");
    }
    if let Some(rate) = tokens_per_second {
        words += &format!("  {rate:.0} tokens/s");
    }
    words
}

/// The event as a person reads it. Names, reasons and lines of logs are strangers' words.
fn sentence(event: &Event) -> String {
    let words = words(event);
    plain::without_commands(&masked(&plain::lines(&words))).into_owned()
}

fn words(event: &Event) -> String {
    match event {
        Event::BuildStarted { tasks, stale } => format!("{stale} of {tasks} tasks to run"),
        Event::TaskStarted { task, reason, .. } => format!("{task}: started ({reason})"),
        Event::TaskWaiting { task, what_for } => format!("{task}: waiting for {what_for}"),
        Event::Step { task, .. } => format!("{task}: {}", step_words(event)),
        Event::TaskFinished { task, outcome, seconds, class, evidence } => {
            let name = class.map_or_else(String::new, |class| format!(" ({})", class.name()));
            let mut text = format!("{task}: {}{name} after {seconds:.1} s", outcome.name());
            for line in evidence {
                text += &format!("\n    {line}");
            }
            if let Some(class) = class {
                text += &format!("\n    what to do: {}", crate::report::advice(*class));
            }
            text
        }
        Event::Note { message } => format!("note: {message}"),
        Event::BuildFinished { ok, failed, waiting, unsupported, contradicted, suspect, unmeasured, seconds } => {
            let mut text = format!("{} ok, {failed} failed", counted(*ok, "task"));
            for (count, word) in [(waiting, "waiting"), (unsupported, "unsupported")] {
                if *count > 0 {
                    text += &format!(", {count} {word}");
                }
            }
            text += &format!(" in {seconds:.1} s");
            let uncounted = [
                (contradicted, "contradicted by their logs"),
                (suspect, "disturbed"),
                (unmeasured, "with nothing to measure"),
            ];
            let uncounted = uncounted.into_iter().filter(|(count, _)| **count > 0);
            let uncounted: Vec<String> = uncounted.map(|(count, what)| format!("{count} {what}")).collect();
            if !uncounted.is_empty() {
                text += &format!("; runs that ended well and do not count: {}", uncounted.join(", "));
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_build() -> Vec<Event> {
        let task = || "train cpu/native/llama/single#2".to_owned();
        let step = |step| Event::Step {
            task: task(),
            step,
            steps_total: Some(50),
            step_time_seconds: Some(0.1),
            loss: Some(5.123_456),
            tokens_per_second: Some(1234.6),
        };
        vec![
            Event::BuildStarted { tasks: 12, stale: 2 },
            Event::TaskStarted { task: task(), cell: None, repeat: Some(2), reason: "never run".into() },
            Event::TaskWaiting { task: task(), what_for: "device cpu, held by pid 7 (run x)".into() },
            step(1),
            step(2),
            Event::TaskFinished {
                task: task(),
                outcome: Outcome::Failed,
                seconds: 3.21,
                class: Some(FailureClass::Oom),
                evidence: vec!["out of memory".into()],
            },
            Event::BuildFinished {
                ok: 1,
                failed: 1,
                waiting: 0,
                unsupported: 3,
                contradicted: 2,
                suspect: 0,
                unmeasured: 1,
                seconds: 4.0,
            },
        ]
    }

    #[test]
    fn plain_lines_are_few_and_say_what_a_person_needs() {
        let mut bytes = Vec::new();
        let mut plain = PlainLines::new(&mut bytes, Duration::MAX);
        for event in a_build() {
            plain.report(&event);
        }
        let expected = "\
2 of 12 tasks to run
train cpu/native/llama/single#2: started (never run)
train cpu/native/llama/single#2: waiting for device cpu, held by pid 7 (run x)
train cpu/native/llama/single#2: step 1/50  loss 5.1235  1235 tokens/s
train cpu/native/llama/single#2: failed (oom) after 3.2 s
    out of memory
    what to do: `tprimat fit CELL` lists what to change, cheapest first, with the memory it predicts for each; then build again
1 task ok, 1 failed, 3 unsupported in 4.0 s; runs that ended well and do not count: 2 contradicted by their logs, 1 with nothing to measure
";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn json_lines_come_back_as_the_events_they_were() {
        let mut bytes = Vec::new();
        let mut json = JsonLines::new(&mut bytes);
        for event in a_build() {
            json.report(&event);
        }
        let lines: Vec<Event> = bytes
            .split(|&b| b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert_eq!(lines, a_build());
        assert!(String::from_utf8(bytes).unwrap().contains(r#""event":"task_waiting""#));
    }

    #[test]
    fn bars_go_when_their_tasks_are_done() {
        let mut bars = Bars::on(ProgressDrawTarget::hidden());
        let events = a_build();
        for event in &events[..5] {
            bars.report(event);
        }
        assert_eq!(bars.running.len(), 1);
        for event in &events[5..] {
            bars.report(event);
        }
        assert!(bars.running.is_empty());
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_is_not_written_to_again() {
        struct Closed(std::sync::mpsc::Sender<()>);
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                self.0.send(()).unwrap();
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut plain = PlainLines::new(Closed(sender), Duration::ZERO);
        for event in a_build() {
            plain.report(&event);
        }
        drop(plain);
        assert_eq!(receiver.iter().count(), 1);
    }
}

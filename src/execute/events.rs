//! What a build tells while it runs, and who listens: plain lines, bars, JSON lines.
//!
//! EventSink goes to standard error. A listener that cannot be written to any more falls silent; a build
//! never fails for it.

use std::{
    collections::HashMap,
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use tprimat_live::Progress;
pub use tprimat_live::{CellCounts, Event, Outcome};

use super::secrets::masked;
use crate::{
    error::{Error, Result},
    files::unix_now,
    words::plain::{self, counted},
};

/// What is said of a run that tprimat itself ended.
pub const INTERRUPTED: &str = "tprimat was interrupted";

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
    /// Running measurements, with the time of the last step that was told.
    running: HashMap<String, Option<Instant>>,
    progress: Progress,
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
            progress: Progress::default(),
        }
    }
}

impl<W: Write + Send> Reporter for PlainLines<W> {
    fn report(&mut self, event: &Event) {
        let tells_all = self.amount == Amount::EveryTask;
        self.progress.take(unix_now(), event.clone());
        let mut how_far = None;
        match event {
            Event::TaskFinished {
                outcome: Outcome::Failed | Outcome::NotCounted,
                ..
            } => {}
            _ if self.amount == Amount::Failures => return,
            Event::Step { task, .. } => {
                let now = Instant::now();
                let last = self.running.insert(task.clone(), Some(now)).flatten();
                if let Some(last) = last.filter(|last| now.duration_since(*last) < self.every) {
                    self.running.insert(task.clone(), Some(last));
                    return;
                }
            }
            Event::TaskStarted { repeat: None, .. } if !tells_all => return,
            Event::TaskStarted { task, .. } => drop(self.running.insert(task.clone(), None)),
            Event::TaskFinished { task, outcome, .. } => {
                let is_run = self.running.remove(task).is_some();
                if !is_run && is_no_news(*outcome) && !tells_all {
                    return;
                }
                how_far = is_run.then(|| far(&self.progress)).flatten();
            }
            _ => {}
        }
        let said = sentence(event);
        self.sink.line(&match how_far {
            Some(how_far) => {
                let (first, rest) = said.split_at(said.find('\n').unwrap_or(said.len()));
                format!("{first} ({how_far}){rest}")
            }
            None => said,
        });
    }
}

/// The end of a task that goes without saying.
fn is_no_news(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Ok | Outcome::Cached | Outcome::Waiting)
}

/// `3 of 14 measurements over, 1 running; about 12 min of measuring left`; nothing of a single one,
/// and nothing at the end.
fn far(progress: &Progress) -> Option<String> {
    let runs = progress.runs();
    let running = runs.running + runs.waiting;
    if runs.all < 2 || runs.queued + running == 0 {
        return None;
    }
    let over = runs.all - runs.queued - running;
    let mut said = format!("{over} of {} measurements over", runs.all);
    if running > 0 {
        said += &format!(", {running} running");
    }
    let left = progress.left();
    if let Some(seconds) = left.seconds {
        said += &format!("; {} of measuring left", span(seconds));
        if left.runs_without_estimate > 0 {
            said += &format!(
                ", and {} of unknown length",
                counted(left.runs_without_estimate, "measurement")
            );
        }
    }
    Some(said)
}

/// `under 1 s`, `about 95 s`, `about 12 min`, `about 3.5 h`
fn span(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => "under 1 s".to_owned(),
        s if s < 120.0 => format!("about {s:.0} s"),
        s if s < 7200.0 => format!("about {:.0} min", s / 60.0),
        s => format!("about {:.1} h", s / 3600.0),
    }
}

/// One bar a running measurement, under the lines of what is done. For a terminal.
pub struct Bars {
    all: MultiProgress,
    tasks: ProgressBar,
    running: HashMap<String, ProgressBar>,
    tells_all: bool,
    progress: Progress,
    /// A line has no room for a bar, and one that is too long would take two.
    is_narrow: bool,
}

/// Columns that a bar with its name, its step and its time left takes.
const ROOM_FOR_A_BAR: u16 = 100;

impl Bars {
    #[must_use]
    pub fn new(amount: Amount) -> Self {
        Self::on(ProgressDrawTarget::stderr(), amount)
    }

    fn on(target: ProgressDrawTarget, amount: Amount) -> Self {
        let all = MultiProgress::with_draw_target(target);
        let tasks = all.add(ProgressBar::no_length());
        tasks.set_style(style("{pos}/{len} tasks  {elapsed}  {msg}"));
        Self {
            all,
            tasks,
            running: HashMap::new(),
            tells_all: amount == Amount::EveryTask,
            progress: Progress::default(),
            is_narrow: console::Term::stderr()
                .size_checked()
                .is_some_and(|(_, columns)| columns < ROOM_FOR_A_BAR),
        }
    }

    /// What a bar says; cut at the terminal's edge, so on a narrow one the name comes last.
    fn message(&self, task: &str, words: &str) -> String {
        let text = match self.is_narrow {
            true => format!("{words}  {task}"),
            false => words.to_owned(),
        };
        plain::line(&text).into_owned()
    }

    fn say(&self, event: &Event) {
        let _ = self.all.println(sentence(event));
    }
}

const NARROW: &str = "{wide_msg}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

impl Reporter for Bars {
    fn report(&mut self, event: &Event) {
        self.progress.take(unix_now(), event.clone());
        self.tasks
            .set_message(far(&self.progress).unwrap_or_default());
        match event {
            Event::BuildStarted { stale, .. } => {
                self.tasks.set_length(*stale as u64);
                self.tasks.enable_steady_tick(Duration::from_secs(1));
            }
            Event::TaskStarted {
                task,
                repeat: Some(_),
                ..
            } => {
                let bar = self
                    .all
                    .insert_before(&self.tasks, ProgressBar::no_length());
                bar.set_style(style(match self.is_narrow {
                    true => NARROW,
                    false => "{prefix}  {msg}  {elapsed}",
                }));
                bar.set_prefix(plain::line(task).into_owned());
                bar.set_message(self.message(task, "starting"));
                self.running.insert(task.clone(), bar);
            }
            Event::TaskStarted { .. } if self.tells_all => self.say(event),
            Event::TaskStarted { .. } => {}
            Event::TaskWaiting { task, what_for } => match self.running.get(task) {
                Some(bar) => {
                    bar.set_message(self.message(task, &format!("waiting for {what_for}")))
                }
                None => self.say(event),
            },
            Event::Step {
                task,
                step,
                steps_total,
                ..
            } => {
                let Some(bar) = self.running.get(task) else {
                    return;
                };
                if let Some(total) = steps_total.filter(|total| bar.length() != Some(*total)) {
                    bar.set_length(total);
                    bar.set_style(style(match self.is_narrow {
                        true => NARROW,
                        false => "{prefix} [{bar:20}] {msg}  {eta} left",
                    }));
                }
                bar.set_position(*step);
                bar.set_message(self.message(task, &step_words(event)));
            }
            Event::TaskFinished { task, outcome, .. } => {
                let bar = self.running.remove(task);
                if let Some(bar) = &bar {
                    bar.finish_and_clear();
                    self.all.remove(bar);
                }
                self.tasks.inc(1);
                if bar.is_some() || !is_no_news(*outcome) || self.tells_all {
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
    let Event::Step {
        step,
        steps_total,
        loss,
        tokens_per_second,
        power_watts,
        ..
    } = event
    else {
        return String::new();
    };
    let mut words = match steps_total {
        Some(total) => format!("step {step}/{total}"),
        None => format!("step {step}"),
    };
    if let Some(loss) = loss {
        words += &format!("  loss {loss:.4}");
    }
    if let Some(rate) = tokens_per_second {
        words += &format!("  {} tokens/s", crate::report::number(*rate));
    }
    if let Some(watts) = power_watts {
        words += &format!("  {watts:.0} W");
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
        Event::BuildStarted {
            tasks, stale: 0, ..
        } => format!("none of {tasks} tasks is to run"),
        Event::BuildStarted {
            tasks,
            stale,
            queue,
        } => {
            let runs = queue.iter().filter(|name| name.starts_with("train "));
            let runs = match runs.count() {
                0 => String::new(),
                runs => format!(", {} among them", counted(runs, "measurement")),
            };
            format!("{stale} of {tasks} tasks to run{runs}")
        }
        Event::TaskStarted { task, reason, .. } => format!("{task}: started ({reason})"),
        Event::TaskWaiting { task, what_for } => format!("{task}: waiting for {what_for}"),
        Event::Step { task, .. } => format!("{task}: {}", step_words(event)),
        Event::TaskFinished {
            task,
            outcome: Outcome::Cached,
            ..
        } => format!("{task}: not run, another task has made the same"),
        Event::TaskFinished {
            task,
            outcome: Outcome::Waiting,
            ..
        } => format!("{task}: not run, something before it failed or is missing"),
        Event::TaskFinished {
            task,
            outcome,
            seconds,
            class,
            evidence,
            what_to_do,
        } => {
            // The run did nothing wrong, and why the build ends is said at its end.
            if evidence.iter().any(|line| line == INTERRUPTED) {
                return format!(
                    "{task}: interrupted after {seconds:.1} s; the next build runs it again"
                );
            }
            let name = class.map_or_else(String::new, |class| format!(" ({})", class.name()));
            let mut text = format!("{task}: {}{name} after {seconds:.1} s", outcome.name());
            for line in evidence {
                text += &format!("\n    {line}");
            }
            if let Some(advice) = what_to_do {
                text += &format!("\n    what to do: {advice}");
            }
            text
        }
        Event::Note { message } => format!("note: {message}"),
        Event::BuildFinished {
            cells,
            runs,
            contradicted,
            suspect,
            unmeasured,
            seconds,
            ..
        } => {
            let others = [
                (cells.failed, "failed"),
                (cells.not_counted, "without a run that counts"),
                (cells.waiting, "waiting"),
                (cells.unsupported, "unsupported"),
                (cells.not_measured, "not measured"),
            ];
            let others: Vec<String> = (others.into_iter())
                .filter(|(count, _)| *count > 0)
                .map(|(count, word)| format!("{count} {word}"))
                .collect();
            let mut text = format!(
                "{} of {} measured",
                cells.done,
                counted(cells.all(), "selected cell")
            );
            if !others.is_empty() {
                text += &format!(" ({})", others.join(", "));
            }
            text += &format!("; {} made in {seconds:.1} s", counted(*runs, "run"));
            let uncounted = [
                (contradicted, "contradicted by their logs"),
                (suspect, "disturbed"),
                (unmeasured, "with nothing to measure"),
            ];
            let uncounted = uncounted.into_iter().filter(|(count, _)| **count > 0);
            let uncounted: Vec<String> = uncounted
                .map(|(count, what)| format!("{count} {what}"))
                .collect();
            if !uncounted.is_empty() {
                text += &format!(
                    "; runs that ended well and do not count: {}",
                    uncounted.join(", ")
                );
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
            power_watts: Some(2801.4),
        };
        vec![
            Event::BuildStarted {
                tasks: 12,
                stale: 2,
                queue: Vec::new(),
            },
            Event::TaskStarted {
                task: task(),
                cell: None,
                repeat: Some(2),
                reason: "never run".into(),
            },
            Event::TaskWaiting {
                task: task(),
                what_for: "device cpu, held by pid 7 (run x)".into(),
            },
            step(1),
            step(2),
            Event::TaskFinished {
                task: task(),
                outcome: Outcome::Failed,
                seconds: 3.21,
                class: Some(crate::job::FailureClass::Oom),
                evidence: vec!["out of memory".into()],
                what_to_do: Some("look".into()),
            },
            Event::BuildFinished {
                ok: 1,
                failed: 4,
                cells: CellCounts {
                    done: 1,
                    failed: 2,
                    unsupported: 3,
                    ..CellCounts::default()
                },
                runs: 12,
                waiting: 0,
                unsupported: 3,
                contradicted: 2,
                suspect: 0,
                unmeasured: 1,
                seconds: 4.0,
                output: None,
            },
        ]
    }

    #[test]
    fn on_a_narrow_terminal_a_bar_is_cut_at_its_end_which_is_the_name() {
        let mut bars = Bars::on(ProgressDrawTarget::hidden(), Amount::Measurements);
        let message = |bars: &Bars| bars.message("train a/b/c/d#1", "step 3/50");
        assert_eq!(message(&bars), "step 3/50");
        bars.is_narrow = true;
        assert_eq!(message(&bars), "step 3/50  train a/b/c/d#1");
        assert!(NARROW.contains("wide_msg"), "only that is cut");
        a_build().iter().for_each(|event| bars.report(event));
    }

    #[test]
    fn plain_lines_are_few_and_say_what_a_person_needs() {
        let mut bytes = Vec::new();
        let mut plain = PlainLines::new(&mut bytes, Duration::MAX, Amount::default());
        for event in a_build() {
            plain.report(&event);
        }
        let expected = "\
2 of 12 tasks to run
train cpu/native/llama/single#2: started (never run)
train cpu/native/llama/single#2: waiting for device cpu, held by pid 7 (run x)
train cpu/native/llama/single#2: step 1/50  loss 5.1235  1,235 tokens/s  2801 W
train cpu/native/llama/single#2: failed (oom) after 3.2 s
    out of memory
    what to do: look
1 of 6 selected cells measured (2 failed, 3 unsupported); 12 runs made in 4.0 s; runs that ended well and do not count: 2 contradicted by their logs, 1 with nothing to measure
";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    /// Repeats, a cell with the runs of another, and one whose launch file failed: each counts once.
    #[test]
    fn a_measurement_that_ends_says_how_far_the_build_is() {
        let mut bytes = Vec::new();
        let mut plain = PlainLines::new(&mut bytes, Duration::MAX, Amount::default());
        let queue = [
            "train a#1",
            "train a#2",
            "train twin#1",
            "train broken#1",
            "parse a#1",
        ];
        plain.report(&Event::BuildStarted {
            tasks: 9,
            stale: 5,
            queue: queue.map(String::from).to_vec(),
        });
        let end = |task: &str, outcome, seconds| Event::TaskFinished {
            task: task.to_owned(),
            outcome,
            seconds,
            class: None,
            evidence: Vec::new(),
            what_to_do: None,
        };
        let start = |task: &str| Event::TaskStarted {
            task: task.to_owned(),
            cell: None,
            repeat: Some(1),
            reason: "never run".into(),
        };
        for event in [
            end("train broken#1", Outcome::Waiting, 0.0),
            start("train a#1"),
            end("train a#1", Outcome::Ok, 300.0),
            end("train twin#1", Outcome::Cached, 0.0),
            end("parse a#1", Outcome::Ok, 0.1),
            start("train a#2"),
            end("train a#2", Outcome::Ok, 310.0),
        ] {
            plain.report(&event);
        }
        let expected = "\
5 of 9 tasks to run, 4 measurements among them
train a#1: started (never run)
train a#1: ok after 300.0 s (2 of 4 measurements over; about 5 min of measuring left, and 1 measurement of unknown length)
train a#2: started (never run)
train a#2: ok after 310.0 s
";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn a_quiet_build_tells_what_failed_and_a_verbose_one_every_task() {
        let told = |amount| {
            let mut bytes = Vec::new();
            let mut plain = PlainLines::new(&mut bytes, Duration::MAX, amount);
            let parse = || "parse cpu/native/llama/single#1".to_owned();
            plain.report(&Event::TaskStarted {
                task: parse(),
                cell: None,
                repeat: None,
                reason: "never run".into(),
            });
            plain.report(&Event::TaskFinished {
                task: parse(),
                outcome: Outcome::Ok,
                seconds: 0.1,
                class: None,
                evidence: Vec::new(),
                what_to_do: None,
            });
            for event in a_build() {
                plain.report(&event);
            }
            String::from_utf8(bytes).unwrap()
        };
        let quiet = told(Amount::Failures);
        let failure = "train cpu/native/llama/single#2: failed (oom) after 3.2 s\n    out of memory\n    what to do: look\n";
        assert_eq!(quiet, failure);
        let all = told(Amount::EveryTask);
        for part in [
            "parse cpu/native/llama/single#1: started (never run)\n",
            "parse cpu/native/llama/single#1: ok after 0.1 s\n",
            failure,
        ] {
            assert!(all.contains(part), "{all}");
        }
        assert!(!told(Amount::Measurements).contains("parse"));
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
        assert!(
            String::from_utf8(bytes)
                .unwrap()
                .contains(r#""event":"task_waiting""#)
        );
    }

    #[test]
    fn bars_go_when_their_tasks_are_done() {
        let mut bars = Bars::on(ProgressDrawTarget::hidden(), Amount::default());
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
        let mut plain = PlainLines::new(Closed(sender), Duration::ZERO, Amount::default());
        for event in a_build() {
            plain.report(&event);
        }
        drop(plain);
        assert_eq!(receiver.iter().count(), 1);
    }
}

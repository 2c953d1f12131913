//! A build at one moment: what its events add up to.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    event::{Event, Outcome},
    series::Series,
};

pub const BOARD_SCHEMA: &str = "tprimat.board/1";

/// Notes that are kept; a build that says more says the same again.
const MOST_NOTES: usize = 100;
/// Tasks that a board lists at most.
const MOST_TASKS: usize = 1000;

/// Is it still going on?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    #[default]
    Running,
    Ended,
    /// Nobody holds its lock, and it did not say how it ended.
    Died,
}

/// A build at one moment, for its page.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Board {
    pub schema: &'static str,
    /// The command line, without the program.
    pub arguments: Vec<String>,
    pub state: State,
    /// Seconds since 1970, as are all times here.
    pub started_at: Option<f64>,
    pub ended_at: Option<f64>,
    pub exit_code: Option<i32>,
    pub now: f64,
    /// Is there a report to open?
    pub has_report: bool,
    pub counts: Counts,
    /// The same of measurements alone.
    pub runs: Counts,
    pub left: TimeLeft,
    #[serde(flatten)]
    pub progress: Progress,
    /// Tasks that `tasks` leaves out: queued ones at its end and, before those, ones that are done.
    pub tasks_left_out: usize,
}

/// Tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Counts {
    pub all: usize,
    pub ok: usize,
    pub failed: usize,
    /// Runs that ended well and do not count.
    pub not_counted: usize,
    pub blocked: usize,
    /// Ended together with the build.
    pub interrupted: usize,
    pub running: usize,
    pub waiting: usize,
    pub queued: usize,
}

/// How long the measurements still take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct TimeLeft {
    /// One after the other: what is left of those that run, and for each that is to come the mean
    /// of its cell's repeats that are over.
    pub seconds: Option<f64>,
    /// Measurements that `seconds` does not count, because nothing says how long they take.
    pub runs_without_estimate: usize,
}

impl Board {
    /// Fills in what follows from the progress, and leaves out the tasks that a page has no room
    /// for. Nothing runs any more in a build that is over, whether it said so or not.
    #[must_use]
    pub fn of(mut progress: Progress, state: State) -> Self {
        if state != State::Running {
            progress.end();
        }
        let (counts, runs, left) = (progress.counts(), progress.runs(), progress.left());
        let too_many = progress.tasks.len().saturating_sub(MOST_TASKS);
        let mut done = too_many;
        progress.tasks.retain(|task| {
            let goes = done > 0 && task.state == TaskState::Ok;
            done -= usize::from(goes);
            !goes
        });
        progress.tasks.truncate(MOST_TASKS);
        Self {
            schema: BOARD_SCHEMA,
            state,
            counts,
            runs,
            left,
            progress,
            tasks_left_out: too_many,
            ..Self::default()
        }
    }
}

/// What the events of a build add up to.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Progress {
    /// All that this build runs, in order.
    pub tasks: Vec<Task>,
    /// Measurements that go on now.
    pub running: Vec<Run>,
    pub failed: Vec<Failure>,
    pub notes: Vec<String>,
    /// Runs that went on when the build ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub going_on: Vec<GoingOn>,
    /// How many tasks were to run; none before the build has said so.
    #[serde(skip)]
    pub planned: Option<usize>,
    /// The folder that holds what was published.
    #[serde(skip)]
    pub output: Option<PathBuf>,
    /// Seconds of finished measurements and their number, by cell.
    #[serde(skip)]
    durations: BTreeMap<String, (f64, u32)>,
    /// Position of each task by its name.
    #[serde(skip)]
    positions: BTreeMap<String, usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    Queued,
    Running,
    /// Started, and waits for what `waiting_for` names.
    Waiting,
    Ok,
    Failed,
    /// It ended well, and its log shows that it does not count.
    NotCounted,
    /// Something before it failed, or is not here.
    Blocked,
    Interrupted,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Task {
    /// As `tprimat plan --tasks` names it: `train cpu/native/llama/single#2`.
    pub name: String,
    pub state: TaskState,
    /// Why it runs.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How long it ran; absent of one that needed no run in the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// A measurement that goes on.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Run {
    pub task: String,
    pub since: f64,
    pub waiting_for: Option<String>,
    pub step: Option<u64>,
    pub steps_total: Option<u64>,
    pub seconds_left: Option<f64>,
    /// Over optimiser steps.
    pub loss: Series,
    /// Seconds, over optimiser steps.
    pub step_time: Series,
    /// The rate of all ranks together, over optimiser steps.
    pub tokens_per_second: Series,
    /// One a GPU; filled by whoever reads the run's telemetry.
    pub devices: Vec<DeviceCurves>,
}

/// One GPU, over seconds since the run began.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct DeviceCurves {
    pub name: String,
    pub power_watts: Series,
    pub memory_bytes: Series,
    pub clock_hz: Series,
    pub temperature_celsius: Series,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Failure {
    pub task: String,
    /// The class of the failure, where it has one.
    pub class: Option<&'static str>,
    /// Lines of the log that say so.
    pub evidence: Vec<String>,
    pub what_to_do: Option<String>,
}

/// A run that a build left to the batch system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GoingOn {
    pub task: String,
    pub slurm_job: String,
}

impl Progress {
    /// Takes in what happened at `time`.
    pub fn take(&mut self, time: f64, event: Event) {
        match event {
            Event::BuildStarted { stale, queue, .. } => {
                self.planned = Some(stale);
                for name in queue {
                    self.position(&name);
                }
            }
            Event::TaskStarted {
                task,
                repeat,
                reason,
                ..
            } => {
                let position = self.position(&task);
                self.tasks[position].state = TaskState::Running;
                self.tasks[position].reason = reason;
                if repeat.is_some() {
                    self.running.push(Run {
                        task,
                        since: time,
                        ..Run::default()
                    });
                }
            }
            Event::TaskWaiting { task, what_for } => {
                let position = self.position(&task);
                self.tasks[position].state = TaskState::Waiting;
                if let Some(run) = self.run(&task) {
                    run.waiting_for = Some(what_for);
                }
            }
            Event::Step {
                task,
                step,
                steps_total,
                step_time_seconds,
                loss,
                tokens_per_second,
                ..
            } => {
                let position = self.position(&task);
                self.tasks[position].state = TaskState::Running;
                let Some(run) = self.run(&task) else { return };
                run.waiting_for = None;
                run.step = Some(step);
                run.steps_total = steps_total.or(run.steps_total);
                for (series, value) in [
                    (&mut run.loss, loss),
                    (&mut run.step_time, step_time_seconds),
                    (&mut run.tokens_per_second, tokens_per_second),
                ] {
                    if let Some(value) = value {
                        series.push(step as f64, value);
                    }
                }
                run.seconds_left = run.estimate();
            }
            Event::TaskFinished {
                task,
                outcome,
                seconds,
                class,
                evidence,
                what_to_do,
            } => {
                let position = self.position(&task);
                self.tasks[position].state = match outcome {
                    Outcome::Ok | Outcome::Cached => TaskState::Ok,
                    Outcome::Failed => TaskState::Failed,
                    Outcome::NotCounted => TaskState::NotCounted,
                    Outcome::Waiting | Outcome::Unsupported => TaskState::Blocked,
                    Outcome::Interrupted => TaskState::Interrupted,
                };
                let has_run = !matches!(outcome, Outcome::Cached | Outcome::Waiting);
                self.tasks[position].seconds = has_run.then_some(seconds);
                if let Some(run) = self.running.iter().position(|run| run.task == task) {
                    self.running.remove(run);
                    if outcome == Outcome::Ok {
                        let (sum, count) =
                            self.durations.entry(cell_of(&task).to_owned()).or_default();
                        *sum += seconds;
                        *count += 1;
                    }
                }
                if matches!(outcome, Outcome::Failed | Outcome::NotCounted) {
                    let not_counted =
                        Some(outcome.name()).filter(|_| outcome == Outcome::NotCounted);
                    self.failed.push(Failure {
                        task,
                        class: not_counted.or(class.map(|class| class.name())),
                        evidence,
                        what_to_do,
                    });
                }
            }
            Event::TaskGoesOn { task, slurm_job } => {
                self.note(format!(
                    "{task}: Slurm job {slurm_job} goes on; the next build takes it up, `scancel {slurm_job}` ends it"
                ));
                self.going_on.push(GoingOn { task, slurm_job });
            }
            Event::Note { message } => self.note(message),
            Event::BuildFinished { output, .. } => {
                self.running.clear();
                self.output = output;
            }
        }
    }

    /// The build is over: what it had begun is not going on any more, whether it said so or not.
    fn end(&mut self) {
        self.running.clear();
        for task in &mut self.tasks {
            if matches!(task.state, TaskState::Running | TaskState::Waiting) {
                task.state = TaskState::Interrupted;
            }
        }
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        counted(self.tasks.iter())
    }

    /// The same of measurements alone.
    #[must_use]
    pub fn runs(&self) -> Counts {
        counted(self.tasks.iter().filter(|task| task.is_run()))
    }

    fn note(&mut self, message: String) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push(message);
        }
    }

    fn run(&mut self, task: &str) -> Option<&mut Run> {
        self.running.iter_mut().find(|run| run.task == task)
    }

    /// Where the task stands; one that no queue named is appended.
    fn position(&mut self, name: &str) -> usize {
        if let Some(position) = self.positions.get(name) {
            return *position;
        }
        self.tasks.push(Task {
            name: name.to_owned(),
            state: TaskState::Queued,
            reason: String::new(),
            seconds: None,
        });
        self.positions.insert(name.to_owned(), self.tasks.len() - 1);
        self.tasks.len() - 1
    }

    #[must_use]
    pub fn left(&self) -> TimeLeft {
        let mean = |task: &str| {
            self.durations
                .get(cell_of(task))
                .map(|(sum, count)| sum / f64::from(*count))
        };
        let queued = self
            .tasks
            .iter()
            .filter(|task| task.state == TaskState::Queued && task.is_run());
        let times = self
            .running
            .iter()
            .map(|run| run.seconds_left.or_else(|| mean(&run.task)));
        let mut left = TimeLeft::default();
        for time in times.chain(queued.map(|task| mean(&task.name))) {
            match time {
                Some(seconds) => *left.seconds.get_or_insert(0.0) += seconds,
                None => left.runs_without_estimate += 1,
            }
        }
        left
    }
}

fn counted<'a>(tasks: impl Iterator<Item = &'a Task>) -> Counts {
    let mut counts = Counts::default();
    for task in tasks {
        counts.all += 1;
        *match task.state {
            TaskState::Queued => &mut counts.queued,
            TaskState::Running => &mut counts.running,
            TaskState::Waiting => &mut counts.waiting,
            TaskState::Ok => &mut counts.ok,
            TaskState::Failed => &mut counts.failed,
            TaskState::NotCounted => &mut counts.not_counted,
            TaskState::Blocked => &mut counts.blocked,
            TaskState::Interrupted => &mut counts.interrupted,
        } += 1;
    }
    counts
}

impl Task {
    /// Is it a measurement?
    fn is_run(&self) -> bool {
        self.name.starts_with("train ")
    }
}

impl Run {
    /// The steps that are left, each as long as the mean of those that were seen.
    fn estimate(&self) -> Option<f64> {
        let left = self.steps_total?.saturating_sub(self.step?);
        let times = self.step_time.points();
        let count = times.len();
        (count > 0)
            .then(|| left as f64 * times.map(|(_, seconds)| seconds).sum::<f64>() / count as f64)
    }
}

/// `cpu/native/llama/single` of `train cpu/native/llama/single#2`.
fn cell_of(task: &str) -> &str {
    let name = task.split_once(' ').map_or(task, |(_, name)| name);
    name.rsplit_once('#').map_or(name, |(cell, _)| cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(task: &str) -> Event {
        Event::TaskStarted {
            task: task.into(),
            cell: None,
            repeat: Some(1),
            reason: "never run".into(),
        }
    }

    fn step(task: &str, step: u64, seconds: f64) -> Event {
        Event::Step {
            task: task.into(),
            step,
            steps_total: Some(10),
            step_time_seconds: Some(seconds),
            loss: Some(5.0),
            tokens_per_second: None,
            power_watts: None,
        }
    }

    fn finished(task: &str, outcome: Outcome, seconds: f64) -> Event {
        Event::TaskFinished {
            task: task.into(),
            outcome,
            seconds,
            class: None,
            evidence: vec!["a line".into()],
            what_to_do: None,
        }
    }

    #[test]
    fn the_time_left_is_that_of_what_runs_and_of_the_repeats_to_come() {
        let mut progress = Progress::default();
        let queue = [
            "train a#1",
            "train a#2",
            "train a#3",
            "train b#1",
            "compare x",
        ]
        .map(String::from)
        .to_vec();
        progress.take(
            0.0,
            Event::BuildStarted {
                tasks: 9,
                stale: 5,
                queue,
            },
        );
        assert_eq!(
            progress.left(),
            TimeLeft {
                seconds: None,
                runs_without_estimate: 4
            }
        );
        progress.take(0.0, started("train a#1"));
        progress.take(1.0, finished("train a#1", Outcome::Ok, 20.0));
        progress.take(2.0, started("train a#2"));
        progress.take(3.0, step("train a#2", 4, 2.0));
        // 6 steps of 2 s, and one more repeat of 20 s; nothing is known of b.
        assert_eq!(
            progress.left(),
            TimeLeft {
                seconds: Some(32.0),
                runs_without_estimate: 1
            }
        );
        progress.take(4.0, finished("train a#2", Outcome::Failed, 3.0));
        assert_eq!(progress.failed[0].evidence, ["a line"]);
        assert_eq!(
            progress.left().seconds,
            Some(20.0),
            "a run that failed says nothing of how long a repeat takes"
        );
        assert!(progress.running.is_empty());
        assert_eq!(
            progress.counts(),
            Counts {
                all: 5,
                ok: 1,
                failed: 1,
                queued: 3,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn a_run_that_does_not_count_is_told_with_its_reason_and_is_not_ok() {
        let mut progress = Progress::default();
        progress.take(0.0, started("train a#1"));
        progress.take(1.0, finished("train a#1", Outcome::NotCounted, 20.0));
        let counts = progress.counts();
        assert_eq!((counts.ok, counts.failed, counts.not_counted), (0, 0, 1));
        assert_eq!(progress.failed[0].class, Some("not counted"));
        assert_eq!(progress.failed[0].evidence, ["a line"]);
    }

    #[test]
    fn a_board_has_room_for_a_thousand_tasks_and_says_how_many_it_leaves_out() {
        let mut progress = Progress::default();
        let queue = (0..1500).map(|i| format!("train a#{i}")).collect();
        progress.take(
            0.0,
            Event::BuildStarted {
                tasks: 1500,
                stale: 1500,
                queue,
            },
        );
        for i in 0..700 {
            progress.take(0.0, finished(&format!("train a#{i}"), Outcome::Ok, 1.0));
        }
        progress.take(1.0, started("train a#700"));
        for (state, running, not_done) in [
            (State::Running, 1, 0),
            (State::Ended, 0, 1),
            (State::Died, 0, 1),
        ] {
            let board = Board::of(progress.clone(), state);
            assert_eq!(
                (board.progress.tasks.len(), board.tasks_left_out),
                (1000, 500)
            );
            let expected = Counts {
                all: 1500,
                ok: 700,
                running,
                interrupted: not_done,
                queued: 799,
                ..Counts::default()
            };
            assert_eq!(
                (board.counts, board.runs),
                (expected, expected),
                "{state:?}"
            );
            assert_eq!(board.progress.tasks[0].name, "train a#500");
            assert_eq!(board.left.runs_without_estimate, 799 + running);
        }
    }

    #[test]
    fn a_run_that_waits_says_for_what_until_its_first_step() {
        let mut progress = Progress::default();
        progress.take(0.0, started("train a#1"));
        progress.take(
            1.0,
            Event::TaskWaiting {
                task: "train a#1".into(),
                what_for: "gpu-1".into(),
            },
        );
        assert_eq!(progress.running[0].waiting_for.as_deref(), Some("gpu-1"));
        assert_eq!(progress.tasks[0].state, TaskState::Waiting);
        progress.take(2.0, step("train a#1", 1, 1.0));
        assert_eq!(
            (
                progress.running[0].waiting_for.as_ref(),
                progress.tasks[0].state
            ),
            (None, TaskState::Running)
        );
    }
}

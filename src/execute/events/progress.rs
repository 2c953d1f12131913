//! What the events of a build add up to: how far it is, and what is left.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::event::{Event, Outcome};
use crate::{job::FailureClass, words::plain::counted};

/// A build at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Progress {
    /// How many tasks were to run; none while the build still plans.
    pub tasks: Option<usize>,
    /// Those that ran and ended well.
    pub ok: usize,
    /// Those that needed no run in the end.
    pub cached: usize,
    /// Those that were ended together with the build.
    pub interrupted: usize,
    /// The runs that go on now.
    pub running: Vec<Run>,
    pub failed: Vec<Failure>,
    /// The runs that are not over, those that go on among them.
    pub left: BTreeSet<String>,
    /// Those of them that batch jobs had when the build ended.
    pub going_on: Vec<GoingOn>,
    /// How many runs were to be made.
    #[serde(skip)]
    runs: usize,
    /// Seconds of the runs that ended well and their number, by cell.
    #[serde(skip)]
    durations: BTreeMap<String, (f64, u32)>,
}

/// A run that goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    pub task: String,
    pub waiting_for: Option<String>,
    pub step: Option<u64>,
    pub steps_total: Option<u64>,
    pub loss: Option<f64>,
    pub seconds_left: Option<f64>,
    /// Seconds of the steps that were seen and their number.
    #[serde(skip)]
    steps: (f64, u32),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    pub task: String,
    /// It failed, or it ended well and does not count.
    pub outcome: Outcome,
    pub class: Option<FailureClass>,
    /// Lines of the log that say so.
    pub evidence: Vec<String>,
}

/// A run that a build left to the batch system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GoingOn {
    pub task: String,
    pub job: String,
    /// The command that cancels it.
    pub cancels: String,
}

impl Progress {
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::BuildStarted { stale, queue, .. } => {
                self.tasks = Some(*stale);
                self.left = queue.iter().filter(|task| is_run(task)).cloned().collect();
                self.runs = self.left.len();
            }
            Event::TaskStarted { task, .. } if is_run(task) => self.running.push(Run {
                task: task.clone(),
                ..Run::default()
            }),
            Event::TaskWaiting { task, what_for } => {
                if let Some(run) = self.run(task) {
                    run.waiting_for = Some(what_for.clone());
                }
            }
            Event::Step {
                task,
                step,
                steps_total,
                step_time_seconds,
                loss,
                ..
            } => {
                let Some(run) = self.run(task) else { return };
                run.waiting_for = None;
                run.step = Some(*step);
                run.steps_total = steps_total.or(run.steps_total);
                run.loss = loss.or(run.loss);
                if let Some(seconds) = step_time_seconds {
                    run.steps = (run.steps.0 + seconds, run.steps.1 + 1);
                }
                run.seconds_left = run.estimate();
            }
            Event::TaskFinished {
                task,
                outcome,
                seconds,
                class,
                evidence,
                ..
            } => {
                let was_running = self.run(task).is_some();
                self.running.retain(|run| run.task != *task);
                match outcome {
                    Outcome::Ok => self.ok += 1,
                    Outcome::Cached => self.cached += 1,
                    Outcome::Interrupted => self.interrupted += 1,
                    Outcome::Failed | Outcome::NotCounted => self.failed.push(Failure {
                        task: task.clone(),
                        outcome: *outcome,
                        class: class.filter(|_| *outcome == Outcome::Failed),
                        evidence: evidence.clone(),
                    }),
                    Outcome::Waiting | Outcome::Unsupported => {}
                }
                if *outcome != Outcome::Interrupted {
                    self.left.remove(task);
                }
                if was_running && *outcome == Outcome::Ok {
                    let (sum, count) = self.durations.entry(cell_of(task).to_owned()).or_default();
                    *sum += seconds;
                    *count += 1;
                }
            }
            Event::TaskGoesOn { task, job, cancels } => self.going_on.push(GoingOn {
                task: task.clone(),
                job: job.clone(),
                cancels: cancels.clone(),
            }),
            Event::BuildFinished { .. } => self.running.clear(),
            Event::TaskStarted { .. } | Event::Note { .. } => {}
        }
    }

    fn run(&mut self, task: &str) -> Option<&mut Run> {
        self.running.iter_mut().find(|run| run.task == task)
    }

    /// `3 of 14 runs over, 2 running; about 12 min of measuring left`; nothing of a single one,
    /// and nothing at the end.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        if self.runs < 2 || self.left.is_empty() {
            return None;
        }
        let over = self.runs.saturating_sub(self.left.len());
        let mut said = format!("{over} of {} runs over", self.runs);
        if self.running.len() > 1 {
            said += &format!(", {} running", self.running.len());
        }
        if let (Some(seconds), unknown) = self.time_left() {
            said += &format!("; {} of measuring left", span(seconds));
            if unknown > 0 {
                said += &format!(", and {} of unknown length", counted(unknown, "run"));
            }
        }
        Some(said)
    }

    /// Seconds of the runs of a task's cell that are over.
    pub(super) fn mean(&self, task: &str) -> Option<f64> {
        let durations = self.durations.get(cell_of(task));
        durations.map(|(sum, count)| sum / f64::from(*count))
    }

    /// Seconds of measuring, one run after the other: what is left of those that go on, and for each
    /// that is to come the mean of its cell's repeats that are over. Beside it the number of runs of
    /// which nothing says how long they take.
    fn time_left(&self) -> (Option<f64>, usize) {
        let (mut known, mut unknown) = (None, 0);
        for task in &self.left {
            let run = self.running.iter().find(|run| run.task == *task);
            match run
                .and_then(|run| run.seconds_left)
                .or_else(|| self.mean(task))
            {
                Some(seconds) => *known.get_or_insert(0.0) += seconds,
                None => unknown += 1,
            }
        }
        (known, unknown)
    }
}

impl Run {
    /// The steps that are left, each as long as the mean of those that were seen.
    fn estimate(&self) -> Option<f64> {
        let left = self.steps_total?.saturating_sub(self.step?);
        let (seconds, count) = self.steps;
        (count > 0).then(|| left as f64 * seconds / f64::from(count))
    }
}

/// Is the task a measurement?
fn is_run(task: &str) -> bool {
    task.starts_with("train ")
}

/// `cpu/native/llama/single` of `train cpu/native/llama/single#2`.
fn cell_of(task: &str) -> &str {
    let name = task.split_once(' ').map_or(task, |(_, name)| name);
    name.rsplit_once('#').map_or(name, |(cell, _)| cell)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn planned(queue: &[&str]) -> Progress {
        let mut progress = Progress::default();
        assert_eq!(progress.tasks, None, "it still plans");
        progress.take(&Event::BuildStarted {
            tasks: 9,
            stale: queue.len(),
            queue: queue.iter().map(|task| (*task).to_owned()).collect(),
        });
        progress
    }

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
            class: Some(FailureClass::Oom),
            evidence: vec!["a line".into()],
            what_to_do: None,
        }
    }

    #[test]
    fn the_time_left_is_that_of_what_runs_and_of_the_repeats_to_come() {
        let queue = [
            "train a#1",
            "train a#2",
            "train a#3",
            "train b#1",
            "compare x",
        ];
        let mut progress = planned(&queue);
        assert_eq!(progress.time_left(), (None, 4));
        progress.take(&started("train a#1"));
        progress.take(&finished("train a#1", Outcome::Ok, 20.0));
        progress.take(&started("train a#2"));
        progress.take(&step("train a#2", 4, 2.0));
        // 6 steps of 2 s, and one more repeat of 20 s; nothing is known of b.
        assert_eq!(progress.time_left(), (Some(32.0), 1));
        progress.take(&finished("train a#2", Outcome::Failed, 3.0));
        assert_eq!(
            progress.time_left(),
            (Some(20.0), 1),
            "a run that failed says nothing of how long a repeat takes"
        );
        assert!(progress.running.is_empty());
    }

    #[test]
    fn a_run_that_waits_says_for_what_until_its_first_step() {
        let mut progress = planned(&["train a#1"]);
        progress.take(&started("train a#1"));
        progress.take(&Event::TaskWaiting {
            task: "train a#1".into(),
            what_for: "gpu-1".into(),
        });
        assert_eq!(progress.running[0].waiting_for.as_deref(), Some("gpu-1"));
        progress.take(&step("train a#1", 1, 1.0));
        assert_eq!(progress.running[0].waiting_for, None);
        assert_eq!(progress.running[0].step, Some(1));
    }

    #[test]
    fn the_tasks_of_a_build_are_what_its_events_add_up_to() {
        let queue = [
            "train a#1",
            "train a#2",
            "train b#1",
            "train b#2",
            "parse a#1",
            "train c#1",
        ];
        let mut progress = planned(&queue);
        for event in [
            finished("train a#1", Outcome::Ok, 1.0),
            finished("parse a#1", Outcome::Cached, 1.0),
            finished("train a#2", Outcome::NotCounted, 1.0),
            finished("train b#1", Outcome::Failed, 1.0),
            finished("train c#1", Outcome::Interrupted, 1.0),
            started("train b#2"),
            Event::TaskGoesOn {
                task: "train b#2".into(),
                job: "Slurm job 12".into(),
                cancels: "scancel 12".into(),
            },
        ] {
            progress.take(&event);
        }
        let failed = |task: &str, outcome: &str, class: Option<&str>| json!({ "task": task, "outcome": outcome, "class": class, "evidence": ["a line"] });
        let running = json!({ "task": "train b#2", "waiting_for": null, "step": null, "steps_total": null, "loss": null, "seconds_left": null });
        let expected = json!({
            "tasks": 6, "ok": 1, "cached": 1, "interrupted": 1, "running": [running],
            "failed": [failed("train a#2", "not_counted", None), failed("train b#1", "failed", Some("oom"))],
            "left": ["train b#2", "train c#1"], "going_on": [{ "task": "train b#2", "job": "Slurm job 12", "cancels": "scancel 12" }],
        });
        assert_eq!(serde_json::to_value(progress).unwrap(), expected);
    }
}

//! `status`: how the detached builds stand, as their events say.

use std::{fmt::Write as _, fs, path::Path};

use serde::Serialize;
use serde_json::json;
use tprimat_live::{GoingOn, Progress, State, Task, TaskState};

use super::{Build, EVENTS, Started, ago, builds, folder};
use crate::{
    cache::{Attempt, Cache},
    cli::{
        args::Globals,
        output::{print, print_json},
        plan::duration,
    },
    error::{Result, exit},
    execute::{Event, Outcome, Stamped},
    words::plain::counted,
};

/// How a detached build stands: what `status` tells, and prints with --json.
#[derive(Serialize)]
pub(super) struct Status {
    name: String,
    state: State,
    pid: Option<u32>,
    /// Where it was started.
    host: Option<String>,
    /// The process as text names it, and its host where that is not this one.
    #[serde(skip)]
    process: Option<String>,
    #[serde(skip)]
    other_host: Option<String>,
    arguments: Option<Vec<String>>,
    /// The same as a line for a shell, and how to go on.
    #[serde(skip)]
    command: Option<String>,
    #[serde(skip)]
    pub(super) again: String,
    started_at: Option<f64>,
    ended_at: Option<f64>,
    exit_code: Option<i32>,
    #[serde(flatten)]
    tasks: Tasks,
}

/// The tasks of a build, as its events tell of them.
#[derive(Serialize)]
struct Tasks {
    /// How many were to run; none while the build still plans.
    tasks: Option<usize>,
    ok: usize,
    /// Those that needed no run in the end.
    cached: usize,
    /// Those that were ended together with the build.
    interrupted: usize,
    running: Vec<RunningTask>,
    failed: Vec<FailedTask>,
    /// Trainings that it did not come to, or that were ended together with it.
    left: Vec<String>,
    /// Those of them that Slurm jobs had when the build ended, and that nobody has taken in since.
    going_on: Vec<GoingOn>,
}

#[derive(Serialize)]
struct RunningTask {
    task: String,
    #[serde(flatten)]
    at: Position,
}

/// How far a running task is.
#[derive(Serialize)]
#[serde(untagged)]
enum Position {
    Started {},
    Waiting {
        waiting_for: String,
    },
    Training {
        step: u64,
        steps_total: Option<u64>,
        loss: Option<f64>,
        seconds_left: Option<f64>,
    },
}

#[derive(Serialize)]
struct FailedTask {
    task: String,
    outcome: Outcome,
    class: Option<&'static str>,
    evidence: Vec<String>,
}

impl Tasks {
    fn of(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join(EVENTS)).unwrap_or_default();
        let mut progress = Progress::default();
        for line in text.lines() {
            // The last line may be half written.
            if let Ok(Stamped { time, event }) = serde_json::from_str::<Stamped<Event>>(line) {
                progress.take(time, event);
            }
        }
        Self::told(progress)
    }

    fn told(progress: Progress) -> Self {
        let done = |is_run: bool| {
            let done = progress.tasks.iter().filter(|t| t.state == TaskState::Ok);
            done.filter(|task| task.seconds.is_some() == is_run).count()
        };
        let (ok, cached) = (done(true), done(false));
        let interrupted = progress.counts().interrupted;
        let is_not_counted = |name: &str| {
            let task = progress.tasks.iter().find(|task| task.name == name);
            task.is_some_and(|task| task.state == TaskState::NotCounted)
        };
        let failed = progress.failed.iter().map(|failure| {
            let (outcome, class) = match is_not_counted(&failure.task) {
                true => (Outcome::NotCounted, None),
                false => (Outcome::Failed, failure.class),
            };
            FailedTask {
                task: failure.task.clone(),
                outcome,
                class,
                evidence: failure.evidence.clone(),
            }
        });
        let failed = failed.collect();
        let is_left = |task: &&Task| {
            let is_open = match task.state {
                TaskState::Queued
                | TaskState::Running
                | TaskState::Waiting
                | TaskState::Interrupted => true,
                TaskState::Ok | TaskState::Failed | TaskState::NotCounted | TaskState::Blocked => {
                    false
                }
            };
            is_open && task.name.starts_with("train ")
        };
        let left = progress.tasks.iter().filter(is_left);
        let left = left.map(|task| task.name.clone()).collect();
        let running = progress.running.into_iter().map(|run| RunningTask {
            at: match (run.waiting_for, run.step) {
                (Some(waiting_for), _) => Position::Waiting { waiting_for },
                (None, Some(step)) => Position::Training {
                    step,
                    steps_total: run.steps_total,
                    loss: run.loss.points().last().map(|(_, loss)| loss),
                    seconds_left: run.seconds_left,
                },
                (None, None) => Position::Started {},
            },
            task: run.task,
        });
        let mut running: Vec<RunningTask> = running.collect();
        running.sort_by(|a, b| a.task.cmp(&b.task));
        Self {
            tasks: progress.planned,
            ok,
            cached,
            interrupted,
            running,
            failed,
            left,
            going_on: progress.going_on,
        }
    }

    /// Takes away what was run since the build started, by whatever build.
    fn without(&mut self, attempts: &[Attempt], started_at: f64) {
        let is_run = |task: &String| {
            let mut runs = attempts.iter().filter(|attempt| attempt.task == *task);
            runs.any(|run| run.ended_at > started_at && !run.is_interrupted())
        };
        self.left.retain(|task| !is_run(task));
        self.going_on.retain(|run| !is_run(&run.task));
    }
}

impl Build {
    pub(in crate::cli) fn state(&self) -> State {
        match (&self.ended, self.is_alive) {
            (_, true) => State::Running,
            (Some(_), false) => State::Ended,
            // Killed: it could not say how it ended.
            (None, false) => State::Died,
        }
    }

    pub(super) fn status(&self) -> Status {
        let (started, ended) = (self.started.as_ref(), self.ended.as_ref());
        let tasks = Tasks::of(&self.dir);
        Status {
            name: self.name.clone(),
            state: self.state(),
            pid: started.map(|started| started.pid),
            host: started.and_then(|started| started.host.clone()),
            process: self.process(),
            other_host: self.other_host().map(str::to_owned),
            arguments: started.map(|started| started.arguments.clone()),
            command: started.map(Started::command),
            again: self.again(tasks.tasks.is_some()),
            started_at: started.map(|started| started.at),
            ended_at: ended.map(|ended| ended.at),
            exit_code: ended.map(|ended| ended.code),
            tasks,
        }
    }
}

pub fn status(globals: &Globals) -> Result<i32> {
    let folder = folder(globals)?;
    let mut all: Vec<Status> = builds(&folder).iter().rev().map(Build::status).collect();
    if all.iter().any(|build| !build.tasks.left.is_empty())
        && let Some(cache) = folder.parent().and_then(|root| Cache::open(root).ok())
    {
        let attempts = cache.all_attempts();
        for build in &mut all {
            let started_at = build.started_at.unwrap_or_default();
            build.tasks.without(&attempts, started_at);
        }
    }
    if globals.json {
        print_json("status", &json!({ "builds": all }))?;
        return Ok(exit::OK);
    }
    if all.is_empty() {
        eprintln!("no build was detached here; `tprimat build --detach` starts one");
    }
    let mut text = String::new();
    // Those that go on, the last one that is over, and those that left something undone which no
    // later build of the same cells took up.
    let is_taken_up = |at: usize| all[..at].iter().any(|later| later.again == all[at].again);
    let shown = all.iter().enumerate().filter(|(at, build)| {
        let is_open = !build.tasks.left.is_empty() && !is_taken_up(*at);
        *at == 0 || build.state == State::Running || is_open
    });
    for (_, build) in shown {
        describe(build, &mut text);
    }
    print(&text)?;
    Ok(exit::OK)
}

fn describe(build: &Status, text: &mut String) {
    let unknown = || "unknown".to_owned();
    let Tasks {
        running,
        failed,
        left,
        ..
    } = &build.tasks;
    let state = match (build.state, &build.other_host) {
        (State::Running, _) => format!(
            "running for {}, {}",
            ago(build.started_at),
            build.process.as_deref().unwrap_or("process unknown")
        ),
        (State::Ended, _) if build.exit_code == Some(exit::OK) => {
            format!("done {} ago", ago(build.ended_at))
        }
        (State::Ended, _) => format!(
            "ended {} ago with exit code {}",
            ago(build.ended_at),
            build
                .exit_code
                .map_or_else(unknown, |code| code.to_string())
        ),
        (State::Died, Some(host)) => format!(
            "was started on {host}, and this host does not see it running: run `tprimat status` there"
        ),
        (State::Died, None) => "died without a word (killed, or the host went down)".to_owned(),
    };
    let command = build.command.as_ref();
    let command = command.map_or_else(String::new, |command| format!("  {command}\n"));
    let _ = writeln!(
        text,
        "{}: {state}\n{command}  {}",
        build.name,
        tasks_of(build)
    );
    for RunningTask { task, at } in running.iter().filter(|_| build.state == State::Running) {
        let at = match at {
            Position::Started {} => "started".to_owned(),
            Position::Waiting { waiting_for } => format!("waits for {waiting_for}"),
            Position::Training {
                step,
                steps_total,
                seconds_left,
                ..
            } => {
                let total = steps_total.map_or_else(String::new, |total| format!(" of {total}"));
                let left = seconds_left.map_or_else(String::new, |seconds| {
                    format!(", {} left", duration(seconds))
                });
                format!("step {step}{total}{left}")
            }
        };
        let _ = writeln!(text, "  {task}: {at}");
    }
    for FailedTask {
        task,
        outcome,
        class,
        evidence,
    } in failed
    {
        let why = evidence
            .first()
            .map_or("no reason was given", String::as_str);
        let how = match outcome {
            Outcome::NotCounted => "ended well and is not counted".to_owned(),
            _ => format!("failed ({})", class.unwrap_or("unknown")),
        };
        let _ = writeln!(text, "  {task} {how}: {why}");
    }
    let again = &build.again;
    let _ = match (left.len(), build.state) {
        (_, State::Running) => Ok(()),
        (0, State::Died) => writeln!(text, "  {again}"),
        (0, _) => Ok(()),
        (runs, _) => writeln!(
            text,
            "  it stopped with {} to do; {again}",
            counted(runs, "run")
        ),
    };
    if let Some(told) = told_going_on(build) {
        let _ = writeln!(text, "  {told}");
    }
}

/// `1 run goes on as Slurm job 12 (train a#1); `scancel 12` ends it, the next build takes it up`; of a
/// build that is over.
pub(super) fn told_going_on(build: &Status) -> Option<String> {
    const MOST: usize = 3;
    let runs = &build.tasks.going_on;
    if runs.is_empty() || build.state == State::Running {
        return None;
    }
    let jobs: Vec<&str> = runs.iter().map(|run| run.slurm_job.as_str()).collect();
    let mut names: Vec<&str> = runs.iter().map(|run| run.task.as_str()).collect();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    let mut names = names.join(", ");
    if more > 0 {
        let _ = write!(names, " and {more} more");
    }
    let (went, them) = if runs.len() == 1 {
        ("1 run went on as Slurm job".to_owned(), "it")
    } else {
        (format!("{} runs went on as Slurm jobs", runs.len()), "them")
    };
    Some(format!(
        "{went} {} ({names}) when the build ended; `scancel {}` ends {them}, and the next build takes {them} up",
        jobs.join(", "),
        jobs.join(" ")
    ))
}

/// `10 of 14 tasks done, 1 failed`; of a build that is over and well `10 tasks run, 4 were done by
/// then`.
pub(super) fn tasks_of(build: &Status) -> String {
    let Tasks {
        tasks,
        ok,
        cached,
        interrupted,
        failed,
        ..
    } = &build.tasks;
    let Some(tasks) = tasks else {
        let told = match (build.state, build.exit_code) {
            (State::Running, _) => "it has not planned its tasks yet",
            (_, Some(exit::OK)) => "nothing was to run",
            _ => "it had not planned its tasks yet",
        };
        return told.to_owned();
    };
    let done = ok + cached;
    // What needed no run in the end is done as well: another build did it, or its inputs came out
    // as they had been.
    let rest = tasks.saturating_sub(*ok);
    let (failed, not_counted): (Vec<&FailedTask>, Vec<&FailedTask>) = failed
        .iter()
        .partition(|task| task.outcome == Outcome::Failed);
    let mut bad = String::new();
    for (tasks, word) in [
        (failed.len(), "failed"),
        (not_counted.len(), "not counted"),
        (*interrupted, "interrupted"),
    ] {
        if tasks > 0 {
            let _ = write!(bad, ", {tasks} {word}");
        }
    }
    match (build.exit_code, bad.as_str()) {
        (Some(exit::OK), "") if rest == 0 => format!("{} run", counted(*ok, "task")),
        (Some(exit::OK), "") => format!(
            "{} run, the other {rest} needed no run any more",
            counted(*ok, "task")
        ),
        _ => format!("{done} of {} done{bad}", counted(*tasks, "task")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(task: &str, outcome: Outcome) -> Event {
        Event::TaskFinished {
            task: task.into(),
            outcome,
            seconds: 1.0,
            class: Some(crate::job::FailureClass::Oom),
            evidence: vec!["a line".into()],
            what_to_do: None,
        }
    }

    #[test]
    fn the_tasks_of_a_build_are_what_its_events_add_up_to() {
        let mut progress = Progress::default();
        assert_eq!(Tasks::told(progress.clone()).tasks, None, "it still plans");
        let queue = [
            "train a#1",
            "train a#2",
            "train b#1",
            "train b#2",
            "parse a#1",
            "train c#1",
        ];
        let queue: Vec<String> = queue.map(String::from).to_vec();
        let events = [
            Event::BuildStarted {
                tasks: 9,
                stale: queue.len(),
                queue,
            },
            finished("train a#1", Outcome::Ok),
            finished("parse a#1", Outcome::Cached),
            finished("train a#2", Outcome::NotCounted),
            finished("train b#1", Outcome::Failed),
            finished("train c#1", Outcome::Interrupted),
            Event::TaskStarted {
                task: "train b#2".into(),
                cell: None,
                repeat: Some(2),
                reason: "never run".into(),
            },
            Event::TaskGoesOn {
                task: "train b#2".into(),
                slurm_job: "12".into(),
            },
        ];
        for event in events {
            progress.take(0.0, event);
        }
        let told = serde_json::to_value(Tasks::told(progress)).unwrap();
        let failed = |task: &str, outcome: &str, class: Option<&str>| json!({ "task": task, "outcome": outcome, "class": class, "evidence": ["a line"] });
        let expected = json!({
            "tasks": 6, "ok": 1, "cached": 1, "interrupted": 1, "running": [{ "task": "train b#2" }],
            "failed": [failed("train a#2", "not_counted", None), failed("train b#1", "failed", Some("oom"))],
            "left": ["train b#2", "train c#1"], "going_on": [{ "task": "train b#2", "slurm_job": "12" }],
        });
        assert_eq!(told, expected);
    }
}

//! `status`: how the detached builds stand, as their events say.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
};

use serde::Serialize;
use serde_json::json;

use super::{Build, EVENTS, LOOK, State, builds, chosen, folder};
use crate::{
    cache::{Attempt, Cache},
    cli::{
        args::{Globals, StatusArgs},
        output::{print, print_json, wait_while_read},
        plan::duration,
    },
    error::{Error, Result, exit},
    execute::{Event, Outcome, Progress, Stamped, live_runs},
    files::unix_now,
    job::FailureClass,
    words::plain::counted,
};

/// How a detached build stands: what `status` tells, and prints with --json.
#[derive(Serialize)]
struct Status {
    #[serde(flatten)]
    build: Build,
    #[serde(flatten)]
    progress: Progress,
}

pub fn status(globals: &Globals, args: &StatusArgs) -> Result<i32> {
    if args.wait {
        return wait(globals, args.name.as_deref());
    }
    let folder = folder(globals)?;
    let mut all: Vec<Status> = builds(&folder).into_iter().rev().map(Status::of).collect();
    if all.iter().any(|status| !status.progress.left.is_empty())
        && let Some(cache) = folder.parent().and_then(|root| Cache::open(root).ok())
    {
        let attempts = cache.all_attempts();
        all.iter_mut()
            .for_each(|status| status.leave_out(&attempts));
    }
    if globals.json {
        print_json("status", &json!({ "builds": all }))?;
        return Ok(exit::OK);
    }
    if all.is_empty() {
        eprintln!("no build was detached here; `tprimat build --detach` starts one");
        let runs = folder.parent().map(|cache| cache.join("runs"));
        for (task, dir) in runs.iter().flat_map(|runs| live_runs(runs)) {
            eprintln!("  {task} goes on in {}", dir.display());
        }
    }
    // Those that go on, the last one that is over, and those that left runs undone which no later
    // one has to do.
    let is_shown = |at: usize| {
        let (later, build) = (&all[..at], &all[at]);
        let mut left = build.progress.left.iter();
        let is_left = |task| !later.iter().any(|one| one.progress.left.contains(task));
        at == 0 || build.build.state == State::Running || left.any(is_left)
    };
    let shown = all.iter().enumerate().filter(|(at, _)| is_shown(*at));
    print(&shown.map(|(_, status)| status.told()).collect::<String>())?;
    Ok(exit::OK)
}

/// Waits until the build is over, says how it ended, and ends as it did.
fn wait(globals: &Globals, name: Option<&str>) -> Result<i32> {
    let mut build = chosen(globals, name)?;
    while build.state == State::Running {
        if !wait_while_read(LOOK) {
            // How the build ends is not known, so this is not its success.
            return Ok(exit::FAILED);
        }
        build = Build::of(build.dir);
    }
    let Some(code) = build.ended.as_ref().map(|ended| ended.exit_code) else {
        build.refuse_other_host("tprimat status --wait")?;
        return Err(Error::failed_with(
            format!("the detached build {} died without a word", build.name),
            build.again(),
        ));
    };
    let status = Status::of(build);
    match globals.json {
        true => print_json("status", &json!({ "builds": [status] }))?,
        false => print(&status.told())?,
    }
    Ok(code)
}

/// How a build stands, for people.
pub(super) fn told(build: Build) -> String {
    Status::of(build).told()
}

impl Status {
    fn of(build: Build) -> Self {
        let events = File::open(build.dir.join(EVENTS)).into_iter();
        let lines =
            events.flat_map(|file| BufReader::new(file).split(b'\n').map_while(io::Result::ok));
        let mut progress = Progress::default();
        for line in lines {
            // The last line may be half written.
            if let Ok(Stamped { event, .. }) = serde_json::from_slice::<Stamped<Event>>(&line) {
                progress.take(&event);
            }
        }
        if build.state != State::Running {
            progress.running.clear();
        }
        Self { build, progress }
    }

    /// Leaves out what was run since the build started, by whatever build.
    fn leave_out(&mut self, attempts: &[Attempt]) {
        let started = self.build.started.as_ref();
        let started_at = started.map_or(0.0, |started| started.started_at);
        let is_run = |task: &str| {
            let mut runs = attempts.iter().filter(|attempt| attempt.task == task);
            runs.any(|run| run.ended_at > started_at && !run.is_interrupted())
        };
        self.progress.left.retain(|task| !is_run(task));
        self.progress.going_on.retain(|run| !is_run(&run.task));
    }

    fn told(&self) -> String {
        let Self { build, progress } = self;
        let started_at = build.started.as_ref().map(|started| started.started_at);
        let state = match (build.state, &build.ended) {
            (State::Running, _) => format!("running for {}, {}", ago(started_at), build.process()),
            (_, Some(ended)) => {
                let at = ago(Some(ended.ended_at));
                match ended.exit_code {
                    exit::OK => format!("done {at} ago"),
                    code => format!("ended {at} ago with exit code {code}"),
                }
            }
            (_, None) => build.other_host().map_or_else(
                || "died without a word (killed, or the host went down)".to_owned(),
                |host| {
                    format!(
                        "was started on {host}, and this host does not see it running: run `tprimat status` there"
                    )
                },
            ),
        };
        let mut lines = vec![
            format!("{}: {state}", build.name),
            build.command(),
            self.tasks(),
        ];
        for run in &progress.running {
            let total = run.steps_total.map(|total| format!(" of {total}"));
            let left = run.seconds_left.map(|s| format!(", {} left", duration(s)));
            let at = match (&run.waiting_for, run.step) {
                (Some(what), _) => format!("waits for {what}"),
                (None, None) => "started".to_owned(),
                (None, Some(step)) => {
                    format!(
                        "step {step}{}{}",
                        total.unwrap_or_default(),
                        left.unwrap_or_default()
                    )
                }
            };
            lines.push(format!("{}: {at}", run.task));
        }
        for failure in &progress.failed {
            let why = failure.evidence.first().map(String::as_str);
            let how = match failure.outcome {
                Outcome::NotCounted => "ended well and is not counted".to_owned(),
                _ => format!(
                    "failed{}",
                    failure
                        .class
                        .map_or_else(String::new, FailureClass::in_brackets)
                ),
            };
            let why = why.unwrap_or("no reason was given");
            lines.push(format!("{} {how}: {why}", failure.task));
        }
        let again = build.again();
        match (build.state, progress.left.len()) {
            (State::Running, _) => lines.extend(progress.told()),
            (State::Ended, 0) => {}
            (State::Died, 0) => lines.push(again),
            (_, left) => {
                let left = counted(left, "run");
                lines.push(format!("it stopped with {left} to do; {again}"));
            }
        }
        lines.extend(self.told_going_on());
        lines.push(format!("log: {}", build.log.display()));
        lines.join("\n  ") + "\n"
    }

    /// `10 of 14 tasks done, 1 failed`. What needed no run in the end is done as well: another build
    /// did it, or its inputs came out as they had been.
    fn tasks(&self) -> String {
        let progress = &self.progress;
        let Some(tasks) = progress.tasks else {
            return "it has planned no tasks".to_owned();
        };
        let count = |outcome| {
            let failed = progress.failed.iter();
            failed.filter(|task| task.outcome == outcome).count()
        };
        let done = progress.ok + progress.cached;
        let mut told = format!("{done} of {} done", counted(tasks, "task"));
        for (tasks, word) in [
            (count(Outcome::Failed), "failed"),
            (count(Outcome::NotCounted), "not counted"),
            (progress.interrupted, "interrupted"),
        ] {
            if tasks > 0 {
                told += &format!(", {tasks} {word}");
            }
        }
        told
    }

    /// Which runs a build that is over left to a batch system, and how to end them.
    fn told_going_on(&self) -> Option<String> {
        let runs = &self.progress.going_on;
        if runs.is_empty() || self.build.state == State::Running {
            return None;
        }
        let jobs: Vec<&str> = runs.iter().map(|run| run.job.as_str()).collect();
        let cancels: Vec<String> = runs
            .iter()
            .map(|run| format!("`{}`", run.cancels))
            .collect();
        let names: Vec<&str> = runs.iter().map(|run| run.task.as_str()).collect();
        let (went, them) = match runs.len() {
            1 => ("1 run went on as".to_owned(), "it"),
            many => (format!("{many} runs went on as"), "them"),
        };
        Some(format!(
            "{went} {} ({}) when the build ended; {} ends {them}, and the next build takes {them} up",
            jobs.join(", "),
            names.join(", "),
            cancels.join(", ")
        ))
    }
}

fn ago(at: Option<f64>) -> String {
    at.map_or_else(
        || "an unknown time".to_owned(),
        |at| duration((unix_now() - at).max(0.0)),
    )
}

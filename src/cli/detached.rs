//! Builds that go on without a terminal: `build --detach` starts one, `status` says how it stands,
//! `attach` follows it, `stop` ends it.
//!
//! A folder below cache/detached holds what it says: `output`, as a terminal would have it,
//! `events.jsonl`, and `end.json` when it is over. It holds the lock of its folder as long as it
//! lives, so a build that died is not taken for one that goes on.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, setsid},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    args::{BuildArgs, DetachedArgs, Globals},
    output::{print, print_json, say},
    plan::duration,
    project,
    session::Project,
};
use crate::{
    cache::Cache,
    error::{Error, Problem, Result, exit},
    execute::{Event, INTERRUPTED, Outcome},
    files::{self, Durability, unix_now},
    job::FailureClass,
    words::plain::counted,
};

/// Names the folder of a detached build to the process that is one.
pub const FOLDER: &str = "TPRIMAT_DETACHED";
const LOOK: Duration = Duration::from_millis(100);
/// So long a build may take to say that it has begun.
const MOMENT: Duration = Duration::from_secs(10);
/// Older ones are removed when a new one starts.
const KEPT: usize = 20;
const OUTPUT: &str = "output";
pub(super) const EVENTS: &str = "events.jsonl";

#[derive(Serialize, Deserialize)]
pub(super) struct Started {
    pid: u32,
    pub at: f64,
    /// The command line, without the program.
    pub arguments: Vec<String>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Ended {
    pub code: i32,
    pub at: f64,
}

/// A detached build, as its folder shows it.
pub(super) struct Build {
    pub name: String,
    pub dir: PathBuf,
    pub started: Option<Started>,
    pub ended: Option<Ended>,
    pub is_alive: bool,
}

fn folder(globals: &Globals) -> Result<PathBuf> {
    let root = project::root(globals)?;
    // Builds go on while their config.yaml is edited, and mistakes in it must not hide them.
    let cache = Project::open(globals, &[])
        .map_or_else(|_| root.join("cache"), |project| project.cache_dir());
    Ok(cache.join("detached"))
}

/// Starts this very command again without a terminal, and returns once it has begun to build.
pub fn start(globals: &Globals, args: &BuildArgs) -> Result<i32> {
    if globals.json || args.events.is_some() {
        let problem = Problem::new("--detach keeps the events itself, and prints no JSON");
        return Err(Error::invalid(
            problem.help("`tprimat status --json` says how the build stands"),
        ));
    }
    let folder = folder(globals)?;
    // It is a part of the cache, which must be one before anything is put into it.
    Cache::open(folder.parent().unwrap_or(&folder))?.ensure_writable()?;
    files::create_dir_all(&folder)?;
    remove_old(&folder);
    let name = jiff::Timestamp::now()
        .strftime("%Y%m%dT%H%M%S%.3fZ")
        .to_string();
    let dir = folder.join(&name);
    files::create_dir_all(&dir)?;
    let failed = |what: &'static str| Error::io(what, &dir);
    let lock = File::create_new(dir.join("lock")).map_err(failed("cannot make a lock in"))?;
    lock.lock().map_err(failed("cannot lock"))?;
    let output = File::create_new(dir.join(OUTPUT)).map_err(failed("cannot write in"))?;
    let errors = output.try_clone().map_err(failed("cannot write in"))?;
    let program =
        std::env::current_exe().map_err(Error::io("cannot find", "the tprimat binary"))?;
    let arguments: Vec<_> = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--detach")
        .collect();
    let mut command = Command::new(program);
    command
        .args(&arguments)
        .arg("--events")
        .arg(dir.join(EVENTS))
        .env(FOLDER, &dir);
    // The lock is its standard input: held from its first instant, let go by its death and by
    // nothing else.
    command.stdin(lock).stdout(output).stderr(errors);
    // SAFETY: `setsid` is async-signal-safe.
    unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    let mut child = command
        .spawn()
        .map_err(Error::io("cannot start", "the build"))?;
    loop {
        if let Some(status) = child
            .try_wait()
            .map_err(failed("cannot wait for the build in"))?
        {
            // What is wrong with the project is told here, not in a file.
            let said = fs::read_to_string(dir.join(OUTPUT)).unwrap_or_default();
            say(said.trim_end());
            return Ok(status.code().unwrap_or(exit::FAILED));
        }
        if fs::metadata(dir.join(EVENTS)).is_ok_and(|found| found.len() > 0) {
            break;
        }
        thread::sleep(LOOK);
    }
    eprintln!(
        "the build goes on without this terminal (process {}); `tprimat status` says how it stands, `tprimat attach` follows it, \
         `tprimat stop` ends it",
        child.id()
    );
    Ok(exit::OK)
}

/// Notes that a detached build goes on; does nothing in any other one. The build says so itself, so
/// that it can be found and stopped whatever became of the process that started it.
pub fn note_start() {
    if let Some(dir) = std::env::var_os(FOLDER).map(PathBuf::from) {
        let mut arguments: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        // The last two name the file of its events.
        arguments.truncate(arguments.len().saturating_sub(2));
        let _ = write(
            &dir.join("started.json"),
            &Started {
                pid: std::process::id(),
                at: unix_now(),
                arguments,
            },
        );
    }
}

/// Notes that a detached build is over; does nothing in any other one.
pub fn note_end(code: i32) {
    if let Some(dir) = std::env::var_os(FOLDER).map(PathBuf::from) {
        // Without it the lock still tells that it is over.
        let _ = write(
            &dir.join("end.json"),
            &Ended {
                code,
                at: unix_now(),
            },
        );
    }
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|e| Error::Failed {
        message: e.to_string(),
        help: None,
    })?;
    files::write_atomically(path, &text, Durability::Plain)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&files::read(path).ok()?).ok()
}

fn remove_old(folder: &Path) {
    let over: Vec<Build> = builds(folder)
        .into_iter()
        .filter(|build| !build.is_alive)
        .collect();
    for build in over.iter().take(over.len().saturating_sub(KEPT)) {
        let _ = fs::remove_dir_all(&build.dir);
    }
}

/// All that there are, the oldest first.
fn builds(folder: &Path) -> Vec<Build> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| {
        entry.file_type().is_ok_and(|kind| kind.is_dir()) && files::is_own(&entry.path())
    });
    let mut builds: Vec<Build> = folders.map(|entry| Build::of(entry.path())).collect();
    builds.sort_by(|a, b| a.name.cmp(&b.name));
    builds
}

/// What names the detached builds of a project.
pub(super) fn names(globals: &Globals) -> Vec<String> {
    let all = folder(globals).map(|folder| builds(&folder));
    let all = all.unwrap_or_default().into_iter();
    all.map(|build| build.name).collect()
}

/// The named one, else the last one; an error where there is none.
pub(super) fn chosen(globals: &Globals, name: Option<&str>) -> Result<Build> {
    let mut all = builds(&folder(globals)?);
    let found = match name {
        Some(name) => all.into_iter().find(|build| build.name == name),
        // One that goes on, before one that is over.
        None => all
            .iter()
            .rposition(|build| build.is_alive)
            .or(all.len().checked_sub(1))
            .map(|last| all.remove(last)),
    };
    found.ok_or_else(|| Error::NothingSelected {
        message: name.map_or("no build was detached here".into(), |name| {
            format!("there is no detached build `{name}`")
        }),
        help: Some("`tprimat build --detach` starts one".into()),
    })
}

/// How a detached build stands: what `status` tells, and prints with --json.
#[derive(Serialize)]
struct Status {
    name: String,
    state: State,
    pid: Option<u32>,
    arguments: Option<Vec<String>>,
    started_at: Option<f64>,
    ended_at: Option<f64>,
    exit_code: Option<i32>,
    #[serde(flatten)]
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Running,
    Ended,
    /// Killed: it could not say how it ended.
    Died,
}

/// What the events of a build add up to.
#[derive(Default, Serialize)]
struct Progress {
    /// The tasks that were to run.
    tasks: usize,
    ok: usize,
    /// Those that needed no run in the end.
    cached: usize,
    #[serde(serialize_with = "values")]
    running: BTreeMap<String, RunningTask>,
    failed: Vec<FailedTask>,
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
    class: Option<FailureClass>,
    evidence: Vec<String>,
}

fn values<S: serde::Serializer>(
    tasks: &BTreeMap<String, RunningTask>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tasks.values())
}

impl Progress {
    fn of(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join(EVENTS)).unwrap_or_default();
        let mut progress = Self::default();
        for line in text.lines() {
            // The last line may be half written.
            let Ok(event) = serde_json::from_str::<Event>(line) else {
                continue;
            };
            progress.take(event);
        }
        progress
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::BuildStarted { stale, .. } => self.tasks = stale,
            Event::TaskStarted {
                task,
                repeat: Some(_),
                ..
            } => self.set(task, Position::Started {}),
            Event::TaskWaiting { task, what_for } => self.set(
                task,
                Position::Waiting {
                    waiting_for: what_for,
                },
            ),
            Event::Step {
                task,
                step,
                steps_total,
                step_time_seconds,
                loss,
                ..
            } => {
                let seconds_left = steps_total
                    .zip(step_time_seconds)
                    .map(|(total, time)| total.saturating_sub(step) as f64 * time);
                self.set(
                    task,
                    Position::Training {
                        step,
                        steps_total,
                        loss,
                        seconds_left,
                    },
                );
            }
            Event::TaskFinished {
                task,
                outcome,
                class,
                evidence,
                ..
            } => {
                self.running.remove(&task);
                match outcome {
                    Outcome::Ok => self.ok += 1,
                    Outcome::Cached => self.cached += 1,
                    Outcome::Failed | Outcome::NotCounted => self.failed.push(FailedTask {
                        task,
                        outcome,
                        class,
                        evidence,
                    }),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn set(&mut self, task: String, at: Position) {
        self.running.insert(task.clone(), RunningTask { task, at });
    }
}

impl Build {
    pub(super) fn of(dir: PathBuf) -> Self {
        let lock = OpenOptions::new().read(true).open(dir.join("lock"));
        // Asked first: what a build that is over has to say is there.
        let is_alive = lock.is_ok_and(|lock| lock.try_lock_shared().is_err());
        Self {
            name: dir
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            started: read(&dir.join("started.json")),
            ended: read(&dir.join("end.json")),
            is_alive,
            dir,
        }
    }

    fn status(&self) -> Status {
        let (started, ended) = (self.started.as_ref(), self.ended.as_ref());
        Status {
            name: self.name.clone(),
            state: match (ended, self.is_alive) {
                (_, true) => State::Running,
                (Some(_), false) => State::Ended,
                (None, false) => State::Died,
            },
            pid: started.map(|started| started.pid),
            arguments: started.map(|started| started.arguments.clone()),
            started_at: started.map(|started| started.at),
            ended_at: ended.map(|ended| ended.at),
            exit_code: ended.map(|ended| ended.code),
            progress: Progress::of(&self.dir),
        }
    }
}

pub fn status(globals: &Globals) -> Result<i32> {
    let all: Vec<Status> = builds(&folder(globals)?)
        .iter()
        .rev()
        .map(Build::status)
        .collect();
    if globals.json {
        print_json("status", &json!({ "builds": all }))?;
        return Ok(exit::OK);
    }
    if all.is_empty() {
        eprintln!("no build was detached here; `tprimat build --detach` starts one");
    }
    let mut text = String::new();
    // Those that go on, and the last one that is over.
    let shown = all
        .iter()
        .enumerate()
        .filter(|(position, build)| *position == 0 || build.state == State::Running);
    for (_, build) in shown {
        describe(build, &mut text);
    }
    print(&text)?;
    Ok(exit::OK)
}

fn describe(build: &Status, text: &mut String) {
    let unknown = || "unknown".to_owned();
    let Progress {
        running, failed, ..
    } = &build.progress;
    let state = match build.state {
        State::Running => format!(
            "running for {}, process {}",
            ago(build.started_at),
            build.pid.map_or_else(unknown, |pid| pid.to_string())
        ),
        State::Ended if build.exit_code == Some(exit::OK) => format!("done {} ago", ago(build.ended_at)),
        State::Ended => format!(
            "ended {} ago with exit code {}",
            ago(build.ended_at),
            build.exit_code.map_or_else(unknown, |code| code.to_string())
        ),
        State::Died => {
            "died without a word (killed, or the host went down); `tprimat build` goes on where it was".to_owned()
        }
    };
    let _ = writeln!(text, "{}: {state}\n  {}", build.name, tasks_of(build));
    for RunningTask { task, at } in running.values().filter(|_| build.state == State::Running) {
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
            _ => format!("failed ({})", class.map_or("unknown", FailureClass::name)),
        };
        let _ = writeln!(text, "  {task} {how}: {why}");
    }
}

/// `10 of 14 tasks done, 1 failed`; of a build that is over and well `10 tasks run, 4 were done by
/// then`.
fn tasks_of(build: &Status) -> String {
    let Progress {
        tasks,
        ok,
        cached,
        failed,
        ..
    } = &build.progress;
    let done = ok + cached;
    // What needed no run in the end is done as well: another build did it, or its inputs came out
    // as they had been.
    let rest = tasks.saturating_sub(*ok);
    let (failed, not_counted): (Vec<&FailedTask>, Vec<&FailedTask>) = failed
        .iter()
        .partition(|task| task.outcome == Outcome::Failed);
    let mut bad = String::new();
    for (tasks, word) in [(failed, "failed"), (not_counted, "not counted")] {
        if !tasks.is_empty() {
            let _ = write!(bad, ", {} {word}", tasks.len());
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

fn ago(at: Option<f64>) -> String {
    at.map_or_else(
        || "an unknown time".to_owned(),
        |at| duration((unix_now() - at).max(0.0)),
    )
}

/// Prints what the build has said and says, until it is over; its exit code.
pub fn attach(globals: &Globals, args: &DetachedArgs) -> Result<i32> {
    let build = chosen(globals, args.name.as_deref())?;
    let path = build.dir.join(OUTPUT);
    let mut output = File::open(&path).map_err(Error::io("cannot read", &path))?;
    let mut seen = 0;
    loop {
        // Asked before the last look, or what it said in between would be lost.
        let now = Build::of(build.dir.clone());
        let mut bytes = Vec::new();
        let read = output
            .seek(SeekFrom::Start(seen))
            .and_then(|_| output.read_to_end(&mut bytes));
        seen += read.map_err(Error::io("cannot read", &path))? as u64;
        print(&String::from_utf8_lossy(&bytes))?;
        match now {
            Build { is_alive: true, .. } => thread::sleep(LOOK),
            Build {
                ended: Some(ended), ..
            } => return Ok(ended.code),
            _ => {
                let message = format!("the detached build {} died without a word", build.name);
                return Err(Error::Failed {
                    message,
                    help: Some("`tprimat build` goes on where it was".into()),
                });
            }
        }
    }
}

/// SIGTERM, as Ctrl-C in its terminal would be, and the wait for its end.
pub fn stop(globals: &Globals, args: &DetachedArgs) -> Result<i32> {
    let mut build = chosen(globals, args.name.as_deref())?;
    // Between its lock and its first words there is a moment.
    let begun = Instant::now();
    while build.is_alive && build.started.is_none() && begun.elapsed() < MOMENT {
        thread::sleep(LOOK);
        build = Build::of(build.dir);
    }
    if build.is_alive && build.started.is_none() {
        let message = format!(
            "the build {} goes on and does not say which process it is",
            build.name
        );
        let help = "its folder lacks started.json, as on a full disk; end the process that holds the folder's lock";
        return Err(Error::Failed {
            message,
            help: Some(help.into()),
        });
    }
    let Some(started) = build.started.as_ref().filter(|_| build.is_alive) else {
        let how = build.ended.as_ref().map_or_else(
            || "died before; `tprimat build` goes on where it was".to_owned(),
            |ended| {
                format!(
                    "has already ended, {} ago with exit code {}",
                    ago(Some(ended.at)),
                    ended.code
                )
            },
        );
        eprintln!("the build {} {how}", build.name);
        return Ok(exit::OK);
    };
    // It holds its lock, so the pid is still its own.
    kill(Pid::from_raw(started.pid.cast_signed()), Signal::SIGTERM).map_err(|e| Error::Failed {
        message: format!("cannot end process {}: {e}", started.pid),
        help: None,
    })?;
    let asked = Instant::now();
    while Build::of(build.dir.clone()).is_alive {
        thread::sleep(LOOK);
    }
    eprintln!(
        "{}: ended after {}",
        build.name,
        duration(asked.elapsed().as_secs_f64())
    );
    Ok(exit::OK)
}

/// Tasks of a build by how they ended: those that ended in it, until it says of all selected ones
/// how they stand.
#[derive(Default)]
pub struct Counts {
    ok: usize,
    failed: usize,
    /// Not known of a build that was stopped.
    waiting: Option<usize>,
}

impl Counts {
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::TaskFinished {
                outcome: Outcome::Ok,
                ..
            } => self.ok += 1,
            // What was stopped with the build has not failed.
            Event::TaskFinished {
                outcome: Outcome::Failed | Outcome::NotCounted,
                evidence,
                ..
            } if !evidence.iter().any(|line| line == INTERRUPTED) => self.failed += 1,
            Event::BuildFinished {
                ok,
                failed,
                waiting,
                ..
            } => (self.ok, self.failed, self.waiting) = (*ok, *failed, Some(*waiting)),
            _ => {}
        }
    }
}

/// Runs the command of `--notify`, whatever came of the build.
pub fn notify(command: &str, counts: &Counts, code: i32) {
    let waiting = counts.waiting.map(|n| n.to_string());
    let variables = [
        ("TPRIMAT_EXIT_CODE", Some(code.to_string())),
        ("TPRIMAT_OK", Some(counts.ok.to_string())),
        ("TPRIMAT_FAILED", Some(counts.failed.to_string())),
        ("TPRIMAT_WAITING", waiting),
    ];
    let mut shell = Command::new("/bin/sh");
    // A build that the command starts is not this detached one.
    shell
        .args(["-c", command])
        .env_remove("TPRIMAT_WAITING")
        .envs(
            variables
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env_remove(FOLDER)
        .stdin(Stdio::null());
    let ran = shell.status();
    match ran {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("note: the command of --notify ended with {status}"),
        Err(error) => eprintln!("note: the command of --notify cannot be started: {error}"),
    }
}

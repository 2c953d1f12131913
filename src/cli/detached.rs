//! Builds that go on without a terminal: `build --detach` starts one, `status` says how it stands, `attach` follows it, `stop`
//! ends it.
//!
//! A folder below cache/detached holds what it says: `output`, as a terminal would have it, `events.jsonl`, and `end.json` when
//! it is over. It holds the lock of its folder as long as it lives, so a build that died is not taken for one that goes on.

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
use serde_json::{Value, json};

use super::{
    args::{BuildArgs, DetachedArgs, StatusArgs},
    output::{print, print_json},
    project,
};
use crate::{
    cache::Cache,
    error::{Error, Problem, Result, exit},
    execute::{Event, Outcome},
    files::{self, Durability, unix_now},
};

/// Names the folder of a detached build to the process that is one.
const FOLDER: &str = "TPRIMAT_DETACHED";
const LOOK: Duration = Duration::from_millis(100);
/// Older ones are removed when a new one starts.
const KEPT: usize = 20;
const OUTPUT: &str = "output";

#[derive(Serialize, Deserialize)]
struct Started {
    pid: u32,
    at: f64,
    /// The command line, without the program.
    arguments: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Ended {
    code: i32,
    at: f64,
}

/// A detached build, as its folder shows it.
struct Build {
    name: String,
    dir: PathBuf,
    started: Option<Started>,
    ended: Option<Ended>,
    is_alive: bool,
}

fn folder(at: Option<&Path>) -> Result<PathBuf> {
    let root = project::root(at)?;
    let request = crate::plan::PlanRequest { root: root.clone(), env: project::environment(), ..Default::default() };
    let cache = super::build::cache_dir_of(&request).unwrap_or_else(|| root.join("cache"));
    Ok(cache.join("detached"))
}

/// Starts this very command again without a terminal, and returns once it has begun to build.
pub fn start(at: Option<&Path>, args: &BuildArgs) -> Result<i32> {
    if args.wanted.json || args.events.is_some() {
        let problem = Problem::new("--detach keeps the events itself, and prints no JSON");
        return Err(Error::invalid(problem.help("`tprimat status --json` says how the build stands")));
    }
    let folder = folder(at)?;
    // It is a part of the cache, which must be one before anything is put into it.
    Cache::open(folder.parent().unwrap_or(&folder))?.ensure_writable()?;
    files::create_dir_all(&folder)?;
    remove_old(&folder);
    let name = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ").to_string();
    let dir = folder.join(&name);
    files::create_dir_all(&dir)?;
    let failed = |what: &'static str| Error::io(what, &dir);
    let lock = File::create_new(dir.join("lock")).map_err(failed("cannot make a lock in"))?;
    lock.lock().map_err(failed("cannot lock"))?;
    let output = File::create_new(dir.join(OUTPUT)).map_err(failed("cannot write in"))?;
    let errors = output.try_clone().map_err(failed("cannot write in"))?;
    let program = std::env::current_exe().map_err(Error::io("cannot find", "the tprimat binary"))?;
    let arguments: Vec<_> = std::env::args_os().skip(1).filter(|argument| argument != "--detach").collect();
    let mut command = Command::new(program);
    command.args(&arguments).arg("--events").arg(dir.join("events.jsonl")).env(FOLDER, &dir);
    // The lock is its standard input: held from its first instant, let go by its death and by nothing else.
    command.stdin(lock).stdout(output).stderr(errors);
    // SAFETY: `setsid` is async-signal-safe.
    unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    let mut child = command.spawn().map_err(Error::io("cannot start", "the build"))?;
    let arguments = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    write(&dir.join("started.json"), &Started { pid: child.id(), at: unix_now(), arguments })?;
    loop {
        if let Some(status) = child.try_wait().map_err(failed("cannot wait for the build in"))? {
            // What is wrong with the project is told here, not in a file.
            let said = fs::read_to_string(dir.join(OUTPUT)).unwrap_or_default();
            eprintln!("{}", said.trim_end());
            return Ok(status.code().unwrap_or(exit::FAILED));
        }
        if fs::metadata(dir.join("events.jsonl")).is_ok_and(|found| found.len() > 0) {
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

/// Notes that a detached build is over; does nothing in any other one.
pub fn note_end(code: i32) {
    if let Some(dir) = std::env::var_os(FOLDER).map(PathBuf::from) {
        // Without it the lock still tells that it is over.
        let _ = write(&dir.join("end.json"), &Ended { code, at: unix_now() });
    }
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|e| Error::Failed { message: e.to_string(), help: None })?;
    files::write_atomically(path, &text, Durability::Plain)
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&files::read(path).ok()?).ok()
}

fn remove_old(folder: &Path) {
    let over: Vec<Build> = builds(folder).into_iter().filter(|build| !build.is_alive).collect();
    for build in over.iter().take(over.len().saturating_sub(KEPT)) {
        let _ = fs::remove_dir_all(&build.dir);
    }
}

/// All that there are, the oldest first.
fn builds(folder: &Path) -> Vec<Build> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders =
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && files::is_own(&entry.path()));
    let mut builds: Vec<Build> = folders
        .map(|entry| {
            let dir = entry.path();
            let lock = OpenOptions::new().read(true).open(dir.join("lock"));
            Build {
                name: entry.file_name().to_string_lossy().into_owned(),
                started: read(&dir.join("started.json")),
                ended: read(&dir.join("end.json")),
                is_alive: lock.is_ok_and(|lock| lock.try_lock_shared().is_err()),
                dir,
            }
        })
        .collect();
    builds.sort_by(|a, b| a.name.cmp(&b.name));
    builds
}

/// The named one, else the last one; an error where there is none.
fn chosen(at: Option<&Path>, name: Option<&str>) -> Result<Build> {
    let mut all = builds(&folder(at)?);
    let found = match name {
        Some(name) => all.into_iter().find(|build| build.name == name),
        // One that goes on, before one that is over.
        None => all.iter().rposition(|build| build.is_alive).or(all.len().checked_sub(1)).map(|last| all.remove(last)),
    };
    found.ok_or_else(|| Error::NothingSelected {
        message: name
            .map_or("no build was detached here".into(), |name| format!("there is no detached build `{name}`")),
        help: Some("`tprimat build --detach` starts one".into()),
    })
}

/// What the events of a build add up to.
#[derive(Default)]
struct Progress {
    stale: usize,
    ok: usize,
    failed: Vec<Value>,
    running: BTreeMap<String, Value>,
}

impl Progress {
    fn of(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
        let mut progress = Self::default();
        for line in text.lines() {
            // The last line may be half written.
            let Ok(event) = serde_json::from_str::<Event>(line) else { continue };
            progress.take(event);
        }
        progress
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::BuildStarted { stale, .. } => self.stale = stale,
            Event::TaskStarted { task, repeat: Some(_), .. } => {
                self.running.insert(task.clone(), json!({ "task": task }));
            }
            Event::TaskWaiting { task, what_for } => {
                self.running.insert(task.clone(), json!({ "task": task, "waiting_for": what_for }));
            }
            Event::Step { task, step, steps_total, step_time_seconds, loss, .. } => {
                let left =
                    steps_total.zip(step_time_seconds).map(|(total, time)| total.saturating_sub(step) as f64 * time);
                self.running.insert(
                    task.clone(),
                    json!({ "task": task, "step": step, "steps_total": steps_total, "loss": loss, "seconds_left": left }),
                );
            }
            Event::TaskFinished { task, outcome, class, evidence, .. } => {
                self.running.remove(&task);
                match outcome {
                    Outcome::Ok => self.ok += 1,
                    Outcome::Failed => self.failed.push(json!({ "task": task, "class": class, "evidence": evidence })),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

impl Build {
    fn state(&self) -> &'static str {
        match (&self.ended, self.is_alive) {
            (_, true) => "running",
            (Some(_), _) => "ended",
            (None, _) => "died",
        }
    }

    fn as_json(&self) -> Value {
        let progress = Progress::of(&self.dir);
        json!({
            "name": self.name, "state": self.state(), "pid": self.started.as_ref().map(|s| s.pid),
            "arguments": self.started.as_ref().map(|s| s.arguments.clone()),
            "started_at": self.started.as_ref().map(|s| s.at), "ended_at": self.ended.as_ref().map(|e| e.at),
            "exit_code": self.ended.as_ref().map(|e| e.code), "tasks": progress.stale, "ok": progress.ok,
            "running": progress.running.values().collect::<Vec<_>>(), "failed": progress.failed,
        })
    }
}

pub fn status(at: Option<&Path>, args: &StatusArgs) -> Result<i32> {
    let all: Vec<Value> = builds(&folder(at)?).iter().rev().map(Build::as_json).collect();
    if args.json {
        print_json(&Value::Array(all))?;
        return Ok(exit::OK);
    }
    if all.is_empty() {
        eprintln!("no build was detached here; `tprimat build --detach` starts one");
    }
    let mut text = String::new();
    // Those that go on, and the last one that is over.
    let shown = all.iter().enumerate().filter(|(position, build)| *position == 0 || build["state"] == "running");
    for (_, build) in shown {
        describe(build, &mut text);
    }
    print(&text)?;
    Ok(exit::OK)
}

fn describe(build: &Value, text: &mut String) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = word(&build["name"]);
    let state = match build["state"].as_str() {
        Some("running") => format!("running since {}, process {}", ago(&build["started_at"]), build["pid"]),
        Some("ended") => format!("ended {} ago with exit code {}", ago(&build["ended_at"]), build["exit_code"]),
        _ => "died without a word (killed, or the host went down); `tprimat build` goes on where it was".to_owned(),
    };
    let failed = build["failed"].as_array().map_or(0, Vec::len);
    let _ = writeln!(text, "{name}: {state}\n  {} of {} tasks done, {failed} failed", build["ok"], build["tasks"]);
    for run in build["running"].as_array().into_iter().flatten().filter(|_| build["state"] == "running") {
        let step = match (run["step"].as_u64(), run["steps_total"].as_u64()) {
            (Some(step), Some(total)) => format!("step {step} of {total}"),
            (Some(step), None) => format!("step {step}"),
            _ => run["waiting_for"].as_str().map_or("started".into(), |what| format!("waits for {what}")),
        };
        let left = run["seconds_left"].as_f64().map_or_else(String::new, |s| format!(", {} left", span(s)));
        let _ = writeln!(text, "  {}: {step}{left}", word(&run["task"]));
    }
    for failed in build["failed"].as_array().into_iter().flatten() {
        let why =
            failed["evidence"].as_array().and_then(|lines| lines.first()?.as_str()).unwrap_or("no reason was given");
        let _ = writeln!(text, "  {} failed ({}): {why}", word(&failed["task"]), word(&failed["class"]));
    }
}

fn ago(at: &Value) -> String {
    at.as_f64().map_or_else(|| "an unknown time".to_owned(), |at| span(unix_now() - at))
}

fn span(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Prints what the build has said and says, until it is over; its exit code.
pub fn attach(at: Option<&Path>, args: &DetachedArgs) -> Result<i32> {
    let build = chosen(at, args.name.as_deref())?;
    let path = build.dir.join(OUTPUT);
    let mut output = File::open(&path).map_err(Error::io("cannot read", &path))?;
    let mut seen = 0;
    loop {
        // Asked before the last look, or what it said in between would be lost.
        let now = builds(build.dir.parent().unwrap_or(&build.dir)).into_iter().find(|other| other.name == build.name);
        let mut bytes = Vec::new();
        let read = output.seek(SeekFrom::Start(seen)).and_then(|_| output.read_to_end(&mut bytes));
        seen += read.map_err(Error::io("cannot read", &path))? as u64;
        print(&String::from_utf8_lossy(&bytes))?;
        match now {
            Some(now) if now.is_alive => thread::sleep(LOOK),
            Some(Build { ended: Some(ended), .. }) => return Ok(ended.code),
            _ => {
                let message = format!("the detached build {} died without a word", build.name);
                return Err(Error::Failed { message, help: Some("`tprimat build` goes on where it was".into()) });
            }
        }
    }
}

/// SIGTERM, as Ctrl-C in its terminal would be, and the wait for its end.
pub fn stop(at: Option<&Path>, args: &DetachedArgs) -> Result<i32> {
    let build = chosen(at, args.name.as_deref())?;
    let Some(started) = build.started.as_ref().filter(|_| build.is_alive) else {
        eprintln!("{}: it is over already", build.name);
        return Ok(exit::OK);
    };
    // It holds its lock, so the pid is still its own.
    kill(Pid::from_raw(started.pid.cast_signed()), Signal::SIGTERM)
        .map_err(|e| Error::Failed { message: format!("cannot end process {}: {e}", started.pid), help: None })?;
    let asked = Instant::now();
    while builds(build.dir.parent().unwrap_or(&build.dir)).iter().any(|b| b.name == build.name && b.is_alive) {
        thread::sleep(LOOK);
    }
    eprintln!("{}: ended after {}", build.name, span(asked.elapsed().as_secs_f64()));
    Ok(exit::OK)
}

/// Runs the command of `--notify`, whatever came of the build. `finished`: the last event that counts tasks.
pub fn notify(command: &str, finished: Option<&Event>, code: i32) {
    let (mut ok, mut failed, mut waiting) = (0, 0, 0);
    if let Some(Event::BuildFinished { ok: o, failed: f, waiting: w, .. }) = finished {
        (ok, failed, waiting) = (*o, *f, *w);
    }
    let counts = [
        ("TPRIMAT_EXIT_CODE", code.to_string()),
        ("TPRIMAT_OK", ok.to_string()),
        ("TPRIMAT_FAILED", failed.to_string()),
        ("TPRIMAT_WAITING", waiting.to_string()),
    ];
    let ran = Command::new("/bin/sh").args(["-c", command]).envs(counts).stdin(Stdio::null()).status();
    match ran {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("note: the command of --notify ended with {status}"),
        Err(error) => eprintln!("note: the command of --notify cannot be started: {error}"),
    }
}

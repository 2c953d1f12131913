//! Builds that go on without a terminal: `build --detach` starts one, `status` (in its own file)
//! says how it stands, `stop` ends it.
//!
//! A folder below cache/detached holds `started.json`, `log`, which has what a terminal would have
//! shown, `events.jsonl`, and `ended.json` when the build is over. The build holds the lock of its
//! folder as long as it lives, so one that was killed is not taken for one that goes on.

mod status;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, setsid},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    args::{BuildArgs, Globals, StopArgs},
    output::say,
    project,
    session::Project,
};
use crate::{
    error::{Error, Problem, Result, exit},
    files::{self, Durability, unix_now},
    plan::{PlanRequest, command_line, look_at_config},
    run,
};
pub use status::status;

/// Names the folder of a detached build to the process that is one.
pub const FOLDER: &str = "TPRIMAT_DETACHED";
const LOOK: Duration = Duration::from_millis(100);
/// Older ones are removed when a new one starts.
const KEPT: usize = 20;
const LOG: &str = "log";
const EVENTS: &str = "events.jsonl";
const STARTED: &str = "started.json";
const ENDED: &str = "ended.json";

#[derive(Serialize, Deserialize)]
struct Started {
    pid: u32,
    /// Where the process is.
    host: Option<String>,
    /// When the process began, in the kernel's words: another one that has its pid has not.
    process_start: Option<u64>,
    started_at: f64,
    /// The command line, without the program.
    arguments: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Ended {
    exit_code: i32,
    ended_at: f64,
}

/// Is the build still going on?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It has not come to its end.
    Running,
    Ended,
    /// Nobody holds its lock, and it did not say how it ended.
    Died,
}

/// A detached build, as its folder shows it.
#[derive(Serialize)]
struct Build {
    name: String,
    state: State,
    log: PathBuf,
    #[serde(flatten)]
    started: Option<Started>,
    #[serde(flatten)]
    ended: Option<Ended>,
    #[serde(skip)]
    dir: PathBuf,
}

fn folder(globals: &Globals) -> Result<PathBuf> {
    let root = project::root(globals)?;
    let request = PlanRequest {
        root: root.clone(),
        env: project::environment(),
        ..PlanRequest::default()
    };
    // Builds go on while their config.yaml is edited, and mistakes in it must not hide them.
    let (config, _) = look_at_config(&root.join("config.yaml"), &request)?;
    let cache = config.map_or_else(|| root.join("cache"), |config| config.cache_dir(&root));
    Ok(cache.join(crate::cache::DETACHED))
}

/// Starts this very command again without a terminal, and returns once it has begun to build.
pub fn start(globals: &Globals, args: &BuildArgs) -> Result<i32> {
    if globals.json || args.events.is_some() {
        return Err(Error::refused(
            "--detach keeps the events itself, and prints no JSON",
            "`tprimat status --json` says how the build stands",
        ));
    }
    // The build would end at a mistake in config.yaml, which may be the name of its cache.
    let cache = Project::open(globals, &[])?.cache()?;
    // The folder is a part of the cache, which must be one before anything is put into it.
    cache.ensure_writable()?;
    let folder = folder(globals)?;
    files::create_dir_all(&folder)?;
    remove_old(&folder);
    let others: Vec<Build> = (builds(&folder).into_iter())
        .filter(|build| build.state == State::Running)
        .collect();
    let name = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%.3fZ");
    let dir = folder.join(name.to_string());
    files::create_dir_all(&dir)?;
    let failed = |what: &'static str| Error::io(what, &dir);
    let lock = File::create_new(dir.join("lock")).map_err(failed("cannot make a lock in"))?;
    lock.lock().map_err(failed("cannot lock"))?;
    let log = File::create_new(dir.join(LOG)).map_err(failed("cannot write in"))?;
    let errors = log.try_clone().map_err(failed("cannot write in"))?;
    let program =
        std::env::current_exe().map_err(Error::io("cannot find", "the tprimat binary"))?;
    let arguments = std::env::args_os().skip(1);
    let mut command = Command::new(program);
    command
        .args(arguments.filter(|argument| argument != "--detach"))
        .arg("--events")
        .arg(dir.join(EVENTS))
        .env(FOLDER, &dir);
    // The lock is its standard input: held from its first instant, let go by its death and by
    // nothing else.
    command.stdin(lock).stdout(log).stderr(errors);
    // SAFETY: `setsid` is async-signal-safe.
    unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    let mut child = command
        .spawn()
        .map_err(Error::io("cannot start", "the build"))?;
    let has_begun = || {
        let events = fs::read_to_string(dir.join(EVENTS)).unwrap_or_default();
        events.contains("\"build_started\"")
    };
    loop {
        let begun = has_begun();
        let ended = child.try_wait();
        if let Some(status) = ended.map_err(failed("cannot wait for the build in"))? {
            // What is wrong with the project is told here, not in a file.
            let said = fs::read_to_string(dir.join(LOG)).unwrap_or_default();
            say(said.trim_end());
            return Ok(status.code().unwrap_or(exit::FAILED));
        }
        if begun {
            break;
        }
        thread::sleep(LOOK);
    }
    eprintln!(
        "the build goes on without this terminal (process {}) and writes to {}; `tprimat status` says how it stands \
         (`--wait` waits for its end), `tprimat stop` ends it",
        child.id(),
        dir.join(LOG).display()
    );
    for other in &others {
        eprintln!(
            "note: the detached build {} (`{}`) goes on as well: a run that both need is made once, and this build waits for devices that the other uses",
            other.name,
            other.command()
        );
    }
    Ok(exit::OK)
}

/// Notes that a detached build goes on; does nothing in any other one. The build says so itself, so
/// that it can be found and stopped whatever became of the process that started it.
pub fn note_start() {
    let mut arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    // The last two name the file of its events.
    arguments.truncate(arguments.len().saturating_sub(2));
    let pid = std::process::id();
    note(
        STARTED,
        &Started {
            pid,
            host: run::hostname(),
            process_start: process_start(pid),
            started_at: unix_now(),
            arguments,
        },
    );
}

/// Notes that a detached build is over; does nothing in any other one.
pub fn note_end(exit_code: i32) {
    note(
        ENDED,
        &Ended {
            exit_code,
            ended_at: unix_now(),
        },
    );
}

fn note(name: &str, value: &impl Serialize) {
    if let Some(dir) = std::env::var_os(FOLDER).map(PathBuf::from)
        && let Ok(text) = serde_json::to_vec(value)
    {
        // Without it the lock still tells whether the build goes on.
        let _ = files::write_atomically(&dir.join(name), &text, Durability::Plain);
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&files::read(path).ok()?).ok()
}

fn process_start(pid: u32) -> Option<u64> {
    run::process_start(i32::try_from(pid).ok()?)
}

fn remove_old(folder: &Path) {
    // Locks may not be seen from one host to the other, so a build of another host is over only
    // where it says so.
    let is_over = |build: &Build| match build.state {
        State::Running => false,
        State::Ended => true,
        State::Died => build.other_host().is_none(),
    };
    let over: Vec<Build> = builds(folder).into_iter().filter(is_over).collect();
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

/// The named one, else the one that goes on, else the last one; an error where there is none, or where
/// several go on.
fn chosen(globals: &Globals, name: Option<&str>) -> Result<Build> {
    let mut all = builds(&folder(globals)?);
    let goes_on = |build: &Build| build.state == State::Running;
    let running: Vec<&str> = all
        .iter()
        .filter(|build| goes_on(build))
        .map(|build| build.name.as_str())
        .collect();
    if name.is_none() && running.len() > 1 {
        let problem = Problem::new(format!(
            "{} builds go on: {}",
            running.len(),
            running.join(", ")
        ));
        let help = format!(
            "give the name of one, for example `{}`; `tprimat status` shows them",
            running[0]
        );
        return Err(Error::invalid(problem.help(help)));
    }
    let found = match name {
        Some(name) => all.iter().position(|build| build.name == name),
        // One that goes on, before one that is over.
        None => all.iter().rposition(goes_on).or(all.len().checked_sub(1)),
    };
    found.map(|at| all.swap_remove(at)).ok_or_else(|| {
        let (message, help) = match name {
            Some(name) => (
                format!("there is no detached build `{name}`"),
                "`tprimat status` shows those that there are",
            ),
            None => (
                "no build was detached here".to_owned(),
                "`tprimat build --detach` starts one",
            ),
        };
        Error::nothing(message, help)
    })
}

impl Build {
    fn of(dir: PathBuf) -> Self {
        let lock = OpenOptions::new().read(true).open(dir.join("lock"));
        // Asked first: what a build that is over has to say is there.
        let is_held = lock.is_ok_and(|lock| lock.try_lock_shared().is_err());
        let ended: Option<Ended> = read(&dir.join(ENDED));
        let name = dir.file_name().unwrap_or_default();
        Self {
            name: name.to_string_lossy().into_owned(),
            state: match &ended {
                Some(_) => State::Ended,
                None if is_held => State::Running,
                None => State::Died,
            },
            log: dir.join(LOG),
            started: read(&dir.join(STARTED)),
            ended,
            dir,
        }
    }

    /// The host that the build was started on, where that is not this one.
    fn other_host(&self) -> Option<&str> {
        let host = self.started.as_ref()?.host.as_deref()?;
        let here = run::hostname()?;
        Some(host).filter(|host| *host != here)
    }

    /// An error where the build is on another host, whose processes can only be seen and ended
    /// there. Its lock may not be seen from here either.
    fn refuse_other_host(&self, command: &str) -> Result<()> {
        let Some(host) = self.other_host() else {
            return Ok(());
        };
        let name = &self.name;
        Err(Error::failed_with(
            format!("the detached build {name} was started on {host}, not on this host"),
            format!("run `{command} {name}` on {host}"),
        ))
    }

    /// `process 123`, with the host where that is not this one.
    fn process(&self) -> String {
        let Some(started) = &self.started else {
            return "it has just begun".to_owned();
        };
        let host = self.other_host().map(|host| format!(" on {host}"));
        format!("process {}{}", started.pid, host.unwrap_or_default())
    }

    /// What was typed, without `--detach`.
    fn command(&self) -> String {
        let typed = self.started.iter().flat_map(|started| &started.arguments);
        let words = ["tprimat"].into_iter().chain(typed.map(String::as_str));
        command_line(words)
    }

    /// How to go on where a build stopped that did not come to its end.
    fn again(&self) -> String {
        let command = self.command();
        let typed = self.started.iter().flat_map(|started| &started.arguments);
        let mut lists = typed.scan(false, |is_next, word| {
            let list = match word.strip_prefix("--force=") {
                None if *is_next => Some(word.as_str()),
                list => list,
            };
            *is_next = word == "--force";
            Some(list.unwrap_or_default())
        });
        match lists.any(|list| list.split(',').any(|force| force == "measured")) {
            true => format!(
                "`{command}` measures all of it anew; without `--force=measured` it goes on where it was"
            ),
            false => format!("`{command}` goes on where it was"),
        }
    }
}

/// SIGTERM, as Ctrl-C in its terminal would be, and the wait for its end.
pub fn stop(globals: &Globals, args: &StopArgs) -> Result<i32> {
    let mut build = chosen(globals, args.name.as_deref())?;
    let name = build.name.clone();
    if let Some(Ended { exit_code, .. }) = build.ended {
        eprintln!("the build {name} has already ended, with exit code {exit_code}");
        return Ok(exit::OK);
    }
    build.refuse_other_host("tprimat stop")?;
    if build.state == State::Died {
        eprintln!("the build {name} died before; {}", build.again());
        return Ok(exit::OK);
    }
    let is_its_process = |started: &&Started| process_start(started.pid) == started.process_start;
    let Some(started) = build.started.as_ref().filter(is_its_process) else {
        return Err(Error::failed_with(
            format!("the build {name} goes on, but its process is not seen here"),
            "try again if it has just begun; if it runs in another container of this host, run `tprimat stop` there",
        ));
    };
    kill(Pid::from_raw(started.pid.cast_signed()), Signal::SIGTERM).map_err(|e| Error::Failed {
        message: format!("cannot end process {}: {e}", started.pid),
        help: None,
    })?;
    while build.state == State::Running {
        thread::sleep(LOOK);
        build = Build::of(build.dir);
    }
    eprintln!("stopped the build; what it measured is kept");
    eprintln!("{}", status::told(build).trim_end());
    Ok(exit::OK)
}

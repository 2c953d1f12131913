//! Builds that go on without a terminal: `build --detach` starts one, `status` (in its own file)
//! says how it stands, `attach` follows it, `stop` ends it.
//!
//! A folder below cache/detached holds what it was asked for, `asked.json`, and what it says: `output`,
//! as a terminal would have it, `events.jsonl`, and `end.json` when it is over. It holds the lock of its folder as long as it
//! lives, so a build that died is not taken for one that goes on.

mod status;

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, setsid},
};
use serde::{Deserialize, Serialize};

use super::{
    args::{BuildArgs, DetachedArgs, Globals},
    blocked::few,
    output::{print, say, wait_while_read},
    plan::duration,
    project,
    session::Project,
};
use crate::{
    digest::Digest,
    error::{Error, Problem, Result, exit},
    files::{self, Durability, ReadSet, unix_now},
    matrix,
    plan::{PlanRequest, look_at_config},
    run,
};
pub use status::status;

/// Names the folder of a detached build to the process that is one.
pub const FOLDER: &str = "TPRIMAT_DETACHED";
const LOOK: Duration = Duration::from_millis(100);
/// How long `stop` waits for a build to say that it has begun.
const MOMENT: Duration = Duration::from_secs(10);
/// Older ones are removed when a new one starts.
const KEPT: usize = 20;
const OUTPUT: &str = "output";
/// The digest of what a build was asked for.
const ASKED: &str = "asked.json";
pub(super) const EVENTS: &str = "events.jsonl";

#[derive(Serialize, Deserialize)]
pub(super) struct Started {
    pid: u32,
    /// Where the process is.
    host: Option<String>,
    /// When the process began, in the kernel's words: another one that has its pid has not.
    process_start: Option<u64>,
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
    /// It holds its lock and has not come to its end. What it runs after its end, as for --notify, is
    /// not waited for.
    pub is_alive: bool,
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
        let problem = Problem::new("--detach keeps the events itself, and prints no JSON");
        return Err(Error::invalid(
            problem.help("`tprimat status --json` says how the build stands"),
        ));
    }
    // The build would end at a mistake in config.yaml, which may be the name of its cache.
    let cache = Project::open(globals, &[])?.cache()?;
    // The folder is a part of the cache, which must be one before anything is put into it.
    cache.ensure_writable()?;
    let folder = folder(globals)?;
    files::create_dir_all(&folder)?;
    remove_old(&folder);
    let arguments: Vec<_> = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--detach")
        .collect();
    // Of two that start at once, the second one sees what the first one asks for.
    let starting = folder.join("starting.lock");
    let open = OpenOptions::new().append(true).create(true).open(&starting);
    let alone = open.and_then(|file| file.lock().map(|()| file));
    let alone = alone.map_err(Error::io("cannot lock", &starting))?;
    let asked = asked(
        &project::matrix_request(globals, &args.selection)?,
        &arguments,
    );
    refuse_a_second(&folder, &asked)?;
    let name = jiff::Timestamp::now()
        .strftime("%Y%m%dT%H%M%S%.3fZ")
        .to_string();
    let dir = folder.join(&name);
    files::create_dir_all(&dir)?;
    let failed = |what: &'static str| Error::io(what, &dir);
    let lock = File::create_new(dir.join("lock")).map_err(failed("cannot make a lock in"))?;
    lock.lock().map_err(failed("cannot lock"))?;
    write(&dir.join(ASKED), &asked)?;
    drop(alone);
    let output = File::create_new(dir.join(OUTPUT)).map_err(failed("cannot write in"))?;
    let errors = output.try_clone().map_err(failed("cannot write in"))?;
    let program =
        std::env::current_exe().map_err(Error::io("cannot find", "the tprimat binary"))?;
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

/// What a build is asked for: its command line in its project, whose configuration and matrix have
/// these texts. Several projects may have one cache, and a build goes on while its project is edited.
fn asked(request: &PlanRequest, arguments: &[OsString]) -> Digest {
    let root = &request.root;
    let matrix = matrix::find(request.matrix.as_deref(), root, &ReadSet::default());
    let files = [Some(root.join("config.yaml")), matrix.ok().flatten()];
    let texts = files.map(|file| Digest::of_file(&file?).ok());
    Digest::of(format!("{root:?} {arguments:?} {texts:?}"))
}

/// An error if a build goes on that was asked for the same: the second would only wait for the runs of
/// the first, and hide it.
fn refuse_a_second(folder: &Path, asked: &Digest) -> Result<()> {
    let is_same =
        |build: &Build| build.is_alive && read(&build.dir.join(ASKED)).as_ref() == Some(asked);
    let Some(same) = builds(folder).into_iter().find(is_same) else {
        return Ok(());
    };
    let problem = Problem::new(format!("this build goes on already: {}", same.told()));
    Err(Error::invalid(problem.help(format!(
        "`tprimat attach {0}` follows it; where recipes or inputs have changed since, `tprimat stop {0}` ends it first",
        same.name
    ))))
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
                host: run::hostname(),
                process_start: own_start(),
                at: unix_now(),
                arguments,
            },
        );
    }
}

fn own_start() -> Option<u64> {
    run::process_start(i32::try_from(std::process::id()).ok()?)
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
    // Locks may not be seen from one host to the other, so a build of another host is over only
    // where it says so.
    let is_over = |build: &Build| build.ended.is_some() || build.other_host().is_none();
    let over: Vec<Build> = builds(folder)
        .into_iter()
        .filter(|build| !build.is_alive && is_over(build))
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

/// The named one, else the one that goes on, else the last one; an error where there is none, or where
/// several go on.
pub(super) fn chosen(globals: &Globals, name: Option<&str>) -> Result<Build> {
    let mut all = builds(&folder(globals)?);
    let alive: Vec<&Build> = all.iter().filter(|build| build.is_alive).collect();
    if name.is_none() && alive.len() > 1 {
        let told: Vec<String> = alive.iter().map(|build| build.told()).collect();
        let problem = Problem::new(format!("{} builds go on: {}", told.len(), told.join("; ")));
        let help = format!("give the name of one, for example `{}`", alive[0].name);
        return Err(Error::invalid(problem.help(help)));
    }
    let names: Vec<String> = all.iter().rev().map(|build| build.name.clone()).collect();
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
        help: Some(if names.is_empty() {
            "`tprimat build --detach` starts one".into()
        } else {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("there are {}", few(&names))
        }),
    })
}

fn command<'a>(arguments: impl Iterator<Item = &'a str>) -> String {
    let words = ["tprimat"].into_iter().chain(arguments);
    shlex::try_join(words).unwrap_or_else(|_| "tprimat build".to_owned())
}

impl Started {
    /// What was typed, without `--detach`.
    fn command(&self) -> String {
        command(self.arguments.iter().map(String::as_str))
    }

    /// What was typed, without what would measure anew what the build has measured. A build that
    /// has not planned yet has measured nothing.
    fn going_on(&self, has_planned: bool) -> String {
        let typed = self.arguments.iter().map(String::as_str);
        let mut words = Vec::new();
        let mut is_together = false;
        for word in typed {
            is_together &= !word.starts_with('-');
            words.extend(is_together.then_some("--only"));
            match word {
                "--remeasure" if has_planned => {}
                "--together" if has_planned => is_together = true,
                _ => words.push(word),
            }
        }
        command(words.into_iter())
    }
}

impl Build {
    /// How to go on where a build stopped that did not come to its end.
    fn again(&self, has_planned: bool) -> String {
        let started = self.started.as_ref();
        let command = started.map_or_else(
            || "tprimat build".to_owned(),
            |started| started.going_on(has_planned),
        );
        format!("`{command}` goes on where it was")
    }

    /// The host that the build was started on, where that is not this one.
    fn other_host(&self) -> Option<&str> {
        let host = self.started.as_ref()?.host.as_deref()?;
        let here = run::hostname()?;
        Some(host).filter(|host| *host != here)
    }

    /// `process 123`, with the host where that is not this one.
    fn process(&self) -> Option<String> {
        let pid = self.started.as_ref()?.pid;
        Some(match self.other_host() {
            Some(host) => format!("process {pid} on {host}"),
            None => format!("process {pid}"),
        })
    }

    /// `20261123T010203.456Z (process 123, for 4 min, `tprimat build m`)`
    fn told(&self) -> String {
        match &self.started {
            Some(started) => format!(
                "{} ({}, for {}, `{}`)",
                self.name,
                self.process().unwrap_or_default(),
                ago(Some(started.at)),
                started.command()
            ),
            None => format!("{} (it has just begun)", self.name),
        }
    }

    pub(super) fn of(dir: PathBuf) -> Self {
        let lock = OpenOptions::new().read(true).open(dir.join("lock"));
        // Asked first: what a build that is over has to say is there.
        let is_held = lock.is_ok_and(|lock| lock.try_lock_shared().is_err());
        let ended: Option<Ended> = read(&dir.join("end.json"));
        Self {
            name: dir
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            started: read(&dir.join("started.json")),
            is_alive: is_held && ended.is_none(),
            ended,
            dir,
        }
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
            Build { is_alive: true, .. } if wait_while_read(LOOK) => {}
            // How the build ends is not known, so this is not its success.
            Build { is_alive: true, .. } => return Ok(exit::FAILED),
            Build {
                ended: Some(ended), ..
            } => return Ok(ended.code),
            _ => {
                if let Some(host) = now.other_host() {
                    return Err(elsewhere(&now, host, "attach"));
                }
                let message = format!("the detached build {} died without a word", build.name);
                return Err(Error::Failed {
                    message,
                    help: Some(now.status().again),
                });
            }
        }
    }
}

/// The build is on another host, whose processes can only be seen and ended there. Its lock may not
/// be seen from here either.
fn elsewhere(build: &Build, host: &str, verb: &str) -> Error {
    let words = command([verb, &build.name].into_iter());
    Error::Failed {
        message: format!(
            "the detached build {} was started on {host}, and this host is {}",
            build.name,
            run::hostname().unwrap_or_default()
        ),
        help: Some(format!("run `{words}` on {host}")),
    }
}

/// Whether the process that a build names is still the one that wrote it.
fn is_its_process(started: &Started) -> bool {
    let found = i32::try_from(started.pid).ok().and_then(run::process_start);
    found == started.process_start
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
    if let Some(host) = build.other_host().filter(|_| build.ended.is_none()) {
        return Err(elsewhere(&build, host, "stop"));
    }
    let Some(started) = build.started.as_ref().filter(|_| build.is_alive) else {
        let how = build.ended.as_ref().map_or_else(
            || format!("died before; {}", build.status().again),
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
    if !is_its_process(started) {
        let message = format!(
            "the build {} goes on, but process {} of this host is not that build",
            build.name, started.pid
        );
        let help = "it may run in another container of this host: run `tprimat stop` there";
        return Err(Error::Failed {
            message,
            help: Some(help.into()),
        });
    }
    kill(Pid::from_raw(started.pid.cast_signed()), Signal::SIGTERM).map_err(|e| Error::Failed {
        message: format!("cannot end process {}: {e}", started.pid),
        help: None,
    })?;
    let mut over = Build::of(build.dir);
    while over.is_alive {
        thread::sleep(LOOK);
        over = Build::of(over.dir);
    }
    let ran_for = ago(Some(started.at));
    let told = over.status();
    let (done, again) = (status::tasks_of(&told), &told.again);
    match over.ended {
        Some(ended) if ended.code == exit::OK => {
            eprintln!(
                "the build {} came to its end before it was stopped",
                over.name
            );
        }
        _ => eprintln!(
            "stopped the build {}, which ran for {ran_for}: {done}. What it measured is kept; {again}",
            over.name
        ),
    }
    if let Some(left) = status::told_going_on(&told) {
        eprintln!("{left}");
    }
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_on_keeps_every_option_that_limits_the_work() {
        let going_on = |typed: &str, has_planned| {
            let started = Started {
                pid: 1,
                host: None,
                process_start: None,
                at: 0.0,
                arguments: typed.split(' ').map(str::to_owned).collect(),
            };
            started.going_on(has_planned)
        };
        let limited = "-C . build m --profile nsys --max-gpu-hours 5 --fail-fast -j 1 --locked";
        assert_eq!(going_on(limited, true), format!("tprimat {limited}"));
        let anew = "build --remeasure --fail-fast";
        assert_eq!(going_on(anew, false), format!("tprimat {anew}"));
        assert_eq!(going_on(anew, true), "tprimat build --fail-fast");
        assert_eq!(
            going_on("build m --together a b --locked", true),
            "tprimat build m --only a --only b --locked"
        );
    }
}

//! A run inside a container: how it is started, ended, and never left behind.
//!
//! The supervisor of the run stays outside. It starts the engine's client as it would start the
//! trainer, so locks, log, times, telemetry and timeouts are the same. What differs is said here:
//!
//! | what happens | what ends the container |
//! |---|---|
//! | the trainer ends | the supervisor asks how (exit code, out of memory), and removes it |
//! | Ctrl-C, timeout, tprimat dies | the supervisor: SIGTERM inside, grace, removal |
//! | the supervisor is killed | a guard, which waits for the supervisor's end and removes the container; it holds the device locks until then |
//! | all of them are killed, power cut | the next build, by the run folder or by the label |
//!
//! The container in which an image is looked into before a build has the same labels, and the next
//! build removes it in the same way.
//!
//! The environment goes in through standard input: neither a list of processes, nor `inspect`, nor
//! a file shows it.

mod sweep;

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::RawFd,
    path::{Path, PathBuf},
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub(super) use sweep::sweep;

use super::{
    container::{Needs, has_these_alone, home_variables, user_arguments},
    error::LaunchError,
    guard::Guard,
    prepare_run::attempt_id,
    process::RUN_ID_VARIABLE,
    run::{ExitKind, tail_of},
    train::{Gpu, TrainHost},
    train_work::TrainWork,
};
use crate::{
    digest::Digest,
    error::{Error, Problem, Result},
    files,
    host::{ContainerEngine, EngineKind, engine_environment, last_line},
    job::{Job, Vendor},
    plan::{Container, Place, Prepared},
};
use sweep::remember;

/// The label that names the run of a container.
const RUN_LABEL: &str = "tprimat.run";
/// The label that names the folder of runs, so that a sweep touches no other project's containers.
const OWNER_LABEL: &str = "tprimat.runs";

/// Sets the variables that standard input states, then becomes the trainer.
const ENTER: &str = r#"eval "$(cat)" && exec "$@" </dev/null"#;

/// An engine that was stopped may be started again; that takes a few seconds.
const ENGINE_RESTART: Duration = Duration::from_secs(15);
/// How long a container may take to be removed.
const REMOVAL: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// How a run is put into a container; a part of its spec, without anything secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    pub engine: EngineKind,
    pub program: PathBuf,
    /// From the engine's verb to the image.
    pub arguments: Vec<String>,
    /// Variables of the engine's own command, such as docker; not those of the trainer.
    pub environment: BTreeMap<String, String>,
}

/// The variables of the caller that go into a container; the others (PATH, LANG, …) are about the
/// host.
pub(super) const PASSED: &[&str] = &[
    "TZ",
    "HF_TOKEN",
    "HF_HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// Decides how `work` is put into its container, and completes the variables that it gets there.
pub(super) fn contain(
    work: &TrainWork,
    host: &TrainHost,
    given: &[&Gpu],
    (id, dir): (&str, &Path),
    env: &mut BTreeMap<String, String>,
) -> Result<Option<ContainerSpec>> {
    let Some(container) = &work.placement.execution.container else {
        return Ok(None);
    };
    let engine = engine_for(
        container,
        work.placement.execution.place,
        &work.job,
        &host.caller_env,
    )
    .map_err(LaunchError::NotContained)?;
    // Where the run's folder is: a profiled run's is not among the measured ones.
    let folder = dir.parent().unwrap_or(dir);
    remember(folder, engine.kind)?;
    let home = host.runs.with_file_name(crate::cache::CONTAINER_HOME);
    files::create_dir_all(&home)?;
    let home = text(&home)?;
    env.insert("TPRIMAT_PYTHON".into(), container.python.clone());
    for (name, value) in home_variables(&home) {
        env.insert(name.to_owned(), value);
    }
    // Kept from run to run as on a host, where they are below the user's home.
    let compiled = format!("{home}/.cache/torchinductor");
    env.entry("TORCHINDUCTOR_CACHE_DIR".into())
        .or_insert(compiled);
    if let Some(name) = env.keys().find(|name| !is_variable(name)) {
        let message = format!(
            "the variable `{name}` cannot be set in a container: its name is not one of a shell"
        );
        return Err(LaunchError::NotContained(Problem::new(message)).into());
    }
    let mounts = mounts(work, host, container, &[&home, &text(dir)?], env);
    let gpus: Vec<Gpu> = given.iter().map(|gpu| (*gpu).clone()).collect();
    let (vendor, workdir) = (work.job.vendor, text(dir)?);
    let needs = Needs {
        vendor,
        gpus: Some(&gpus),
        mounts: &mounts,
        workdir: &workdir,
    };
    let image = work
        .placement
        .image
        .clone()
        .unwrap_or_else(|| container.image.clone());
    let mut arguments = verb(engine.kind, id, folder);
    arguments.extend(needs.arguments(engine.kind));
    arguments.extend(container.options.iter().cloned());
    arguments.push(match engine.kind {
        // By its digest: the name may mean another image by now.
        EngineKind::Docker | EngineKind::Podman => image,
        EngineKind::Apptainer => text(&host.project.join(&container.image))?,
        EngineKind::Pyxis => format!("--container-image={}", container.image),
    });
    Ok(Some(ContainerSpec {
        engine: engine.kind,
        program: engine.program,
        arguments,
        environment: engine_environment(&host.caller_env),
    }))
}

/// The engine that starts the container of a run; why it cannot, where that is known before anything
/// runs.
fn engine_for(
    container: &Container,
    place: Place,
    job: &Job,
    env: &BTreeMap<String, String>,
) -> Result<ContainerEngine, Problem> {
    let engine = ContainerEngine::find(container.engine, env).map_err(|why| {
        Problem::new(format!("the run is to be in a container, and {why}"))
            .help("install it, or name another one in execution.<platform>.container.engine")
    })?;
    if place != Place::Local && has_service(engine.kind) && job.vendor != Vendor::Cpu {
        let message = format!(
            "{} starts containers outside its Slurm job, so they would not be held to the job's GPUs",
            engine.name()
        );
        return Err(Problem::new(message)
            .help("name apptainer or pyxis in execution.<platform>.container.engine"));
    }
    if job.parallelism.num_nodes > 1 && engine.kind != EngineKind::Apptainer {
        let message = format!(
            "a run on several nodes is not started in containers of {}",
            engine.name()
        );
        return Err(
            Problem::new(message).help("name apptainer in execution.<platform>.container.engine")
        );
    }
    Ok(engine)
}

/// Why the run of a cell cannot be put into its container; `None`: it can, or it has none.
#[must_use]
pub fn preflight_container(prepared: &Prepared, host: &TrainHost) -> Option<Problem> {
    let execution = &prepared.resolved.execution;
    let container = execution.container.as_ref()?;
    engine_for(container, execution.place, prepared.job(), &host.caller_env).err()
}

/// Are the GPUs of a run numbered from 0, because its container has these and no others?
pub(super) fn counts_anew(work: &TrainWork, host: &TrainHost, given: &[&Gpu]) -> bool {
    let Some(container) = &work.placement.execution.container else {
        return false;
    };
    let engine = ContainerEngine::find(container.engine, &host.caller_env);
    engine.is_ok_and(|engine| has_these_alone(engine.kind, work.job.vendor, given.iter().copied()))
}

/// The engine's verb with what names the run and its user.
fn verb(kind: EngineKind, id: &str, runs: &Path) -> Vec<String> {
    let mark = format!("{RUN_ID_VARIABLE}={id}");
    match kind {
        EngineKind::Docker | EngineKind::Podman => {
            let mut words = vec![
                "run".to_owned(),
                "--interactive".into(),
                "--init".into(),
                "--pull=never".into(),
            ];
            words.extend(["--name".into(), container_name(id)]);
            words.extend(
                labels(id, runs)
                    .into_iter()
                    .flat_map(|label| ["--label".into(), label]),
            );
            // The only variable that `inspect` shows; by it processes inside are known as the
            // run's.
            words.extend(["--env".into(), mark]);
            words.extend(user_arguments(kind));
            words
        }
        EngineKind::Apptainer => vec!["exec".into(), "--env".into(), mark],
        EngineKind::Pyxis => Vec::new(),
    }
}

/// Folders of the host that the run reads or writes, each under its own path.
fn mounts(
    work: &TrainWork,
    host: &TrainHost,
    container: &Container,
    own: &[&str],
    env: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut writable: Vec<PathBuf> = vec![host.project.clone()];
    writable.extend(own.iter().map(PathBuf::from));
    writable.extend(
        env.get("HF_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute() && path.is_dir()),
    );
    let mut readable: Vec<PathBuf> = work
        .launch
        .checkouts
        .iter()
        .map(|(_, path)| path.clone())
        .collect();
    // A dataset is named by the prefix of its files, a tokenizer by a file or a folder.
    let data = work
        .launch
        .data_env
        .values()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    readable.extend(data.filter_map(|path| {
        if path.is_dir() {
            Some(path)
        } else {
            Some(path.parent()?.to_owned())
        }
    }));
    readable.extend(
        host.native
            .iter()
            .filter(|_| work.launch.needs_native)
            .filter_map(|path| Some(path.parent()?.to_owned())),
    );
    let mut mounts: Vec<String> = Vec::new();
    let mut covered: Vec<PathBuf> = Vec::new();
    writable.sort();
    readable.sort();
    let named = |path: &Path, ending: &str| format!("{0}:{0}{ending}", path.display());
    for (paths, ending) in [(&writable, ""), (&readable, ":ro")] {
        for path in paths {
            if !covered.iter().any(|known| path.starts_with(known)) {
                mounts.push(named(path, ending));
                covered.push(path.clone());
            }
        }
    }
    mounts.extend(
        container
            .mounts
            .iter()
            .map(|mount| match mount.contains(':') {
                true => mount.clone(),
                false => format!("{mount}:{mount}"),
            }),
    );
    mounts
}

fn text(path: &Path) -> Result<String> {
    let unfit = |why: &str| {
        let message = format!(
            "the path {} {why}, so it cannot be mounted into a container",
            path.display()
        );
        Error::from(LaunchError::NotContained(Problem::new(message)))
    };
    let text = path.to_str().ok_or_else(|| unfit("is not UTF-8"))?;
    if text.contains([':', ',']) {
        Err(unfit("has a colon or a comma"))
    } else {
        Ok(text.to_owned())
    }
}

fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The name that finds a run's container again.
fn container_name(run_id: &str) -> String {
    format!("tprimat-{run_id}")
}

fn owner(runs: &Path) -> String {
    Digest::of(runs.as_os_str().as_encoded_bytes()).short()
}

impl ContainerSpec {
    /// The command that runs `argv` inside.
    pub fn command(&self, argv: &[String]) -> Vec<String> {
        let program = self.program.to_string_lossy().into_owned();
        let enter = ["/bin/sh", "-c", ENTER, "tprimat"].map(str::to_owned);
        std::iter::once(program)
            .chain(self.arguments.iter().cloned())
            .chain(enter)
            .chain(argv.iter().cloned())
            .collect()
    }

    /// What the command reads from standard input: the environment, as a shell reads it.
    pub fn input(env: &BTreeMap<String, String>) -> Vec<u8> {
        let quoted = |value: &str| value.replace('\'', r"'\''");
        env.iter()
            .map(|(name, value)| format!("export {name}='{}'\n", quoted(value)))
            .collect::<String>()
            .into_bytes()
    }

    fn engine(&self) -> ContainerEngine {
        ContainerEngine {
            kind: self.engine,
            program: self.program.clone(),
        }
    }
}

/// Has the engine a service of its own, which keeps a container when its client dies?
fn has_service(kind: EngineKind) -> bool {
    matches!(kind, EngineKind::Docker | EngineKind::Podman)
}

/// The container of one run, as its supervisor and a sweep see it.
pub(super) struct Contained {
    engine: ContainerEngine,
    environment: BTreeMap<String, String>,
    name: String,
}

/// What an engine says of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Absent,
    /// Made, and never started.
    Created,
    Running,
    Exited {
        code: i32,
        out_of_memory: bool,
    },
}

impl Contained {
    /// None where the engine's processes are the run's own, so that nothing needs more than any
    /// process does.
    pub fn of(spec: &ContainerSpec, run_id: &str) -> Option<Self> {
        let environment = spec.environment.clone();
        has_service(spec.engine).then(|| Self {
            engine: spec.engine(),
            environment,
            name: container_name(run_id),
        })
    }

    /// As a later tprimat finds it. The program is looked up anew: a run folder may come from
    /// anywhere, and must not name a program that is then run.
    pub fn found(kind: EngineKind, run_id: &str, env: &BTreeMap<String, String>) -> Option<Self> {
        let engine = ContainerEngine::find(Some(kind), env)
            .ok()
            .filter(|_| has_service(kind))?;
        Some(Self {
            engine,
            environment: env.clone(),
            name: container_name(run_id),
        })
    }

    fn ask(&self, arguments: &[&str]) -> Result<std::process::Output, String> {
        self.engine.ask(&self.environment, arguments)
    }

    fn stage(&self) -> Result<Stage, String> {
        const FORMAT: &str = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}";
        let said = self.ask(&["container", "inspect", "--format", FORMAT, &self.name])?;
        if said.status.success() {
            return stage_of(&String::from_utf8_lossy(&said.stdout));
        }
        let error = last_line(&said.stderr);
        if error.to_lowercase().contains("no such container") {
            Ok(Stage::Absent)
        } else {
            Err(error)
        }
    }

    /// How the run ended, now that the engine's client has. `log`: where the client wrote its own
    /// errors, too.
    pub fn ended(&self, client: ExitStatus, log: &Path) -> ExitKind {
        let name = self.engine.name();
        let begun = Instant::now();
        let stage = loop {
            match self.stage() {
                Ok(stage) => break stage,
                Err(_) if begun.elapsed() < ENGINE_RESTART => thread::sleep(PAUSE * 5),
                Err(why) => {
                    return ExitKind::Lost(format!(
                        "{name} stopped answering while the run went on: {why}"
                    ));
                }
            }
        };
        match stage {
            Stage::Absent | Stage::Created => {
                let said = last_line(&tail_of(log, 4096).unwrap_or_default());
                ExitKind::LaunchFailed(format!("{name} did not start the container: {said}"))
            }
            Stage::Running => {
                ExitKind::Lost(format!("the client of {name} ended ({client}) while its container went on"))
            }
            Stage::Exited { out_of_memory: true, .. } => ExitKind::Killed(
                "the kernel ended the container for lack of host memory (its own limit, or the host's)".into(),
            ),
            // The service was stopped or restarted, and took the container along.
            Stage::Exited { code, .. } if client.code() != Some(code) => ExitKind::Lost(format!(
                "{name} lost the container: its client ended with {client}, the container with exit code {code}"
            )),
            Stage::Exited { code, .. } => exit_of(code),
        }
    }

    /// Sends a signal to the container's first process, which passes it on.
    pub fn signal(&self, signal: &str) -> bool {
        self.ask(&["kill", "--signal", signal, &self.name])
            .is_ok_and(|said| said.status.success())
    }

    /// Ends and removes the container; is it gone?
    pub fn remove(&self) -> bool {
        let begun = Instant::now();
        loop {
            let _ = self.ask(&["rm", "--force", "--volumes", &self.name]);
            match self.stage() {
                Ok(Stage::Absent) => return true,
                _ if begun.elapsed() >= REMOVAL => return false,
                _ => thread::sleep(PAUSE),
            }
        }
    }

    /// Removes the container when the supervisor is killed.
    pub fn guard(&self, run: &Path, locks: &[RawFd]) -> io::Result<Guard> {
        Guard::start(
            run,
            &self.engine.program,
            &["rm", "--force", "--volumes", &self.name],
            &engine_environment(&self.environment),
            locks,
        )
    }
}

/// The container in which an image is looked into. It is removed when this is dropped, also where
/// its program hangs; what a killed tprimat leaves is found by the next sweep.
pub(super) struct LookContainer {
    contained: Contained,
    labels: [String; 2],
    lock: PathBuf,
    /// Held while the look goes on, so that a sweep of another tprimat leaves its container alone.
    _held: fs::File,
    /// The engine's client saw the end of the container, which `--rm` has removed.
    pub is_over: bool,
}

impl LookContainer {
    /// Before it is started. None where the engine's processes are the look's own.
    pub fn of(
        engine: &ContainerEngine,
        env: &BTreeMap<String, String>,
        runs: &Path,
    ) -> Result<Option<Self>> {
        if !has_service(engine.kind) {
            return Ok(None);
        }
        files::create_dir_all(runs)?;
        remember(runs, engine.kind)?;
        let id = format!("{LOOK}{}", attempt_id());
        let lock = look_lock(runs, &id);
        let held = || -> io::Result<fs::File> {
            let file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&lock)?;
            file.lock()?;
            Ok(file)
        };
        let held = held().map_err(Error::io("cannot lock", &lock))?;
        Ok(Some(Self {
            labels: labels(&id, runs),
            contained: Contained {
                engine: engine.clone(),
                environment: env.clone(),
                name: container_name(&id),
            },
            lock,
            _held: held,
            is_over: false,
        }))
    }

    /// What names it, between the engine's verb and the image.
    pub fn arguments(&self) -> Vec<&str> {
        let [run, owner] = &self.labels;
        let name = self.contained.name.as_str();
        vec!["--name", name, "--label", run, "--label", owner]
    }
}

impl Drop for LookContainer {
    fn drop(&mut self) {
        // The lock's file stays beside a container that stays: a sweep removes both.
        if self.is_over || self.contained.remove() {
            let _ = fs::remove_file(&self.lock);
        }
    }
}

/// The labels of a container: whose it is, and of which folder of runs.
fn labels(id: &str, runs: &Path) -> [String; 2] {
    [
        format!("{RUN_LABEL}={id}"),
        format!("{OWNER_LABEL}={}", owner(runs)),
    ]
}

/// Begins the id of a container in which an image is looked into; a run's begins with a digit.
const LOOK: &str = "look-";

fn look_lock(runs: &Path, id: &str) -> PathBuf {
    runs.join(format!(".{id}.lock"))
}

fn stage_of(said: &str) -> Result<Stage, String> {
    let fields: Vec<&str> = said.split_whitespace().collect();
    match fields.as_slice() {
        ["created" | "initialized" | "configured", ..] => Ok(Stage::Created),
        [
            "exited" | "dead" | "stopped" | "removing",
            code,
            out_of_memory,
        ] => {
            let code = code
                .parse()
                .map_err(|_| format!("an exit code of `{code}`"))?;
            Ok(Stage::Exited {
                code,
                out_of_memory: *out_of_memory == "true",
            })
        }
        [_, ..] => Ok(Stage::Running),
        [] => Err("it said nothing".into()),
    }
}

/// A shell's way to tell signals from codes, which the first process of a container follows.
fn exit_of(code: i32) -> ExitKind {
    match code - 128 {
        signal if [4, 6, 7, 8, 9, 11, 15].contains(&signal) => ExitKind::Signal(signal),
        _ => ExitKind::Code(code),
    }
}

#[cfg(test)]
mod tests;

//! A run inside a container: how it is started, ended, and never left behind.
//!
//! The supervisor of the run stays outside. It starts the engine's client as it would start the
//! trainer, so locks, log, times, telemetry and timeouts are the same. What differs is said here:
//!
//! | what happens | what ends the container |
//! |---|---|
//! | the trainer ends | the supervisor asks how (exit code, out of memory), and removes it |
//! | Ctrl-C, timeout, tprimat dies | the supervisor: SIGTERM inside, grace, removal |
//! | the supervisor is killed | tprimat; where that is dead as well, the next build, by the run folder or by the label |
//!
//! The environment goes in through standard input: neither a list of processes, nor `inspect`, nor
//! a file shows it.

mod sweep;

use std::{
    collections::BTreeMap,
    path::Path,
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

use super::{
    container::{user_arguments, words},
    folder::tail_of,
    process::RUN_ID_VARIABLE,
    spec::{ContainerSpec, ExitKind},
};
use crate::{
    digest::Digest,
    host::{ContainerEngine, EngineKind, last_line},
};

pub(crate) use sweep::{remember, sweep};

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

/// The engine's verb with what names the run and its user.
pub(crate) fn verb(kind: EngineKind, id: &str, runs: &Path) -> Vec<String> {
    let mark = format!("{RUN_ID_VARIABLE}={id}");
    match kind {
        EngineKind::Docker | EngineKind::Podman => {
            let mut words = words("run --interactive --init --pull=never");
            words.extend(["--name".into(), container_name(id)]);
            words.extend(["--label".into(), format!("{RUN_LABEL}={id}")]);
            words.extend(["--label".into(), format!("{OWNER_LABEL}={}", owner(runs))]);
            // The only variable that `inspect` shows; by it processes inside are known as the
            // run's.
            words.extend(["--env".into(), mark]);
            words.extend(user_arguments(kind));
            words
        }
        EngineKind::Apptainer => vec!["exec".into(), "--env".into(), mark],
        EngineKind::Pyxis | EngineKind::Kubernetes => Vec::new(),
    }
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
}

/// Has the engine a service of its own, which keeps a container when its client dies?
pub(crate) fn has_service(kind: EngineKind) -> bool {
    matches!(kind, EngineKind::Docker | EngineKind::Podman)
}

/// The container of one run, as its supervisor and a sweep see it.
pub(crate) struct Contained {
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
        let (kind, program) = (spec.engine, spec.program.clone());
        has_service(kind).then(|| Self {
            engine: ContainerEngine { kind, program },
            environment: spec.environment.clone(),
            name: container_name(run_id),
        })
    }

    /// As a later tprimat finds it. The program is looked up anew: a run folder may come from
    /// anywhere, and must not name a program that is then run.
    pub fn found(kind: EngineKind, run_id: &str, env: &BTreeMap<String, String>) -> Option<Self> {
        let engine = ContainerEngine::find(Some(kind), env).ok();
        Some(Self {
            engine: engine.filter(|_| has_service(kind))?,
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
        match error.to_lowercase().contains("no such container") {
            true => Ok(Stage::Absent),
            false => Err(error),
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
}

fn stage_of(said: &str) -> Result<Stage, String> {
    let mut fields = said.split_whitespace();
    match fields.next().ok_or("it said nothing")? {
        "created" | "initialized" | "configured" => Ok(Stage::Created),
        "exited" | "dead" | "stopped" | "removing" => {
            let code = fields.next().unwrap_or_default();
            let code = code.parse();
            Ok(Stage::Exited {
                code: code.map_err(|_| format!("it told of an exit in `{said}`"))?,
                out_of_memory: fields.next() == Some("true"),
            })
        }
        _ => Ok(Stage::Running),
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
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_an_engine_says_is_a_stage() {
        let exited = |code, out_of_memory| {
            Ok(Stage::Exited {
                code,
                out_of_memory,
            })
        };
        assert_eq!(stage_of("exited 3 false\n"), exited(3, false));
        assert_eq!(stage_of("exited 137 true\n"), exited(137, true));
        assert_eq!(stage_of("running 0 false\n"), Ok(Stage::Running));
        assert_eq!(stage_of("paused 0 false\n"), Ok(Stage::Running));
        assert_eq!(stage_of("created 128 false\n"), Ok(Stage::Created));
        assert!(stage_of("").is_err() && stage_of("exited x false").is_err());
        assert_eq!(
            (exit_of(0), exit_of(1), exit_of(139)),
            (ExitKind::Code(0), ExitKind::Code(1), ExitKind::Signal(11))
        );
    }

    #[test]
    fn any_value_enters_as_it_is() {
        let env = BTreeMap::from([
            ("A".to_owned(), "it's $HOME `x` \"y\" \\ \n two".to_owned()),
            ("B_2".to_owned(), String::new()),
        ]);
        let mut shell = Command::new("/bin/sh");
        shell.args([
            "-c",
            ENTER,
            "tprimat",
            "/bin/sh",
            "-c",
            "printf '%s|%s|' \"$A\" \"$B_2\"; cat",
        ]);
        let mut child = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(
            &mut child.stdin.take().unwrap(),
            &ContainerSpec::input(&env),
        )
        .unwrap();
        let said = child.wait_with_output().unwrap();
        assert_eq!(
            String::from_utf8(said.stdout).unwrap(),
            format!("{}||", env["A"])
        );
    }
}

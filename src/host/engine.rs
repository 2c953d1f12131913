//! The programs that start containers: which of them is here, and what its images are.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    process::Output,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::which;
use crate::{digest::Digest, words::secret::is_secret};

/// A program that starts containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    Docker,
    Podman,
    /// Also Singularity, which takes the same arguments.
    Apptainer,
    /// `srun --container-image`, by NVIDIA's plugin for Slurm.
    Pyxis,
    /// The pod of a Job, which is a container already; only `executor: kubernetes` names it.
    Kubernetes,
}

impl EngineKind {
    /// Those that config.yaml may name.
    pub const ALL: [Self; 4] = [Self::Docker, Self::Podman, Self::Apptainer, Self::Pyxis];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Apptainer => "apptainer",
            Self::Pyxis => "pyxis",
            Self::Kubernetes => "kubernetes",
        }
    }

    /// Commands that may be this engine, the preferred one first.
    #[must_use]
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Docker => &["docker"],
            Self::Podman => &["podman"],
            Self::Apptainer => &["apptainer", "singularity"],
            Self::Pyxis => &["srun"],
            Self::Kubernetes => &["kubectl"],
        }
    }

    /// The file that an image is, where the engine opens one by its path; a relative one is the
    /// project's.
    #[must_use]
    pub fn file_of(self, image: &str, root: &Path) -> Option<PathBuf> {
        match self {
            Self::Docker | Self::Podman | Self::Kubernetes => None,
            Self::Apptainer => Some(root.join(image)),
            Self::Pyxis => Some(PathBuf::from(image)).filter(|path| path.is_absolute()),
        }
    }

    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let named = |kind: &Self| {
            kind.name() == name || (*kind != Self::Pyxis && kind.programs().contains(&name))
        };
        Self::ALL.into_iter().find(named)
    }
}

/// A container engine of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEngine {
    pub kind: EngineKind,
    pub program: PathBuf,
}

/// Variables that tell an engine's own program where its service and its settings are.
const OWN_VARIABLES: [&str; 8] = [
    "PATH",
    "HOME",
    "USER",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
];
const OWN_FAMILIES: [&str; 6] = [
    "DOCKER_",
    "CONTAINER_",
    "CONTAINERS_",
    "APPTAINER_",
    "SINGULARITY_",
    "SLURM_",
];

/// An engine that takes longer to answer does not answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at a command that runs.
const PAUSE: Duration = Duration::from_millis(5);

/// What an engine's own program gets of the caller's environment.
#[must_use]
pub fn engine_environment(env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_own = |name: &str| {
        OWN_VARIABLES.contains(&name)
            || OWN_FAMILIES.iter().any(|family| name.starts_with(family)) && !is_secret(name)
    };
    env.iter()
        .filter(|(name, _)| is_own(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

impl ContainerEngine {
    /// The engine of that kind, or the first of docker, podman and apptainer; in words why there is
    /// none.
    pub fn find(kind: Option<EngineKind>, env: &BTreeMap<String, String>) -> Result<Self, String> {
        let any = [
            EngineKind::Docker,
            EngineKind::Podman,
            EngineKind::Apptainer,
        ];
        let kinds = kind.as_ref().map_or(&any[..], std::slice::from_ref);
        let found = kinds.iter().find_map(|kind| {
            let program = kind.programs().iter().find_map(|name| which(name, env))?;
            Some(Self {
                kind: *kind,
                program,
            })
        });
        found.ok_or_else(|| match kind {
            None => "there is neither docker nor podman nor apptainer in PATH".to_owned(),
            Some(kind) => format!("there is no {} in PATH", kind.programs().join(" or ")),
        })
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Runs the engine's program and waits for it, but not for ever; in words why that failed.
    pub fn ask(
        &self,
        env: &BTreeMap<String, String>,
        arguments: &[&str],
    ) -> Result<Output, String> {
        let command = duct::cmd(&self.program, arguments).full_env(engine_environment(env));
        ask(&command, PATIENCE).map_err(|why| format!("{} does not answer: {why}", self.name()))
    }

    /// What the content of an image is named by; `None`: it is not on this host. `digest_of`: reads
    /// an image that is a file.
    pub fn image_digest(
        &self,
        env: &BTreeMap<String, String>,
        image: &str,
        root: &Path,
        digest_of: impl FnOnce(&Path) -> io::Result<Digest>,
    ) -> Result<Option<String>, String> {
        if let Some(file) = self.kind.file_of(image, root) {
            return match digest_of(&file) {
                Ok(digest) => Ok(Some(format!("blake3:{digest}"))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(format!("{}: {error}", file.display())),
            };
        }
        match self.kind {
            EngineKind::Docker | EngineKind::Podman => {
                let said = self.ask(env, &["image", "inspect", "--format", "{{.Id}}", image])?;
                if said.status.success() {
                    let id = String::from_utf8_lossy(&said.stdout).trim().to_owned();
                    return Ok(Some(if id.starts_with("sha256:") {
                        id
                    } else {
                        format!("sha256:{id}")
                    }));
                }
                // Only an engine that is alive can say that an image is absent.
                let alive = self.ask(env, &["info"])?;
                if alive.status.success() {
                    Ok(None)
                } else {
                    Err(format!(
                        "{} does not answer: {}",
                        self.name(),
                        last_line(&alive.stderr)
                    ))
                }
            }
            EngineKind::Apptainer | EngineKind::Pyxis | EngineKind::Kubernetes => {
                match image.split_once('@') {
                    Some((_, digest)) => Ok(Some(digest.to_owned())),
                    None => Err(format!(
                        "{} fetches the image `{image}` anew for each job, so its name needs a digest: `{image}@sha256:…` in \
                         execution.<platform>.container.image",
                        self.name()
                    )),
                }
            }
        }
    }
}

/// Why a command that was asked has no output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It was given up after so many seconds; the same may answer later.
    #[error("no answer in {0} s")]
    NoAnswer(u64),
    /// It did not start, or its end was not seen.
    #[error("{0}")]
    NotRun(String),
}

/// The output of a command that ends in time, with all that holds its pipes.
///
/// It is looked at again and again: a supervisor blocks SIGCHLD, and a wait that is to be woken by
/// that signal would not be.
pub fn ask(command: &duct::Expression, patience: Duration) -> Result<Output, AskError> {
    ask_while(command, &|| patience)
}

/// The same where patience may end earlier, while the command is waited for.
pub fn ask_while(
    command: &duct::Expression,
    patience: &dyn Fn() -> Duration,
) -> Result<Output, AskError> {
    let not_run = |e: io::Error| AskError::NotRun(e.to_string());
    let command = command
        .stdin_null()
        .stdout_capture()
        .stderr_capture()
        .unchecked();
    let handle = command.start().map_err(not_run)?;
    let begun = Instant::now();
    loop {
        match handle.try_wait() {
            Ok(Some(output)) => return Ok(output.clone()),
            Ok(None) if begun.elapsed() < patience() => thread::sleep(PAUSE),
            Ok(None) => {
                // Whatever holds its pipes may outlive it, and is not waited for.
                let _ = handle.kill();
                return Err(AskError::NoAnswer(begun.elapsed().as_secs()));
            }
            Err(e) => return Err(not_run(e)),
        }
    }
}

/// The last line that says something.
#[must_use]
pub fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty())
        .unwrap_or("it said nothing")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_told_where_its_service_is_and_no_password() {
        let env = [
            "PATH",
            "DOCKER_HOST",
            "LD_PRELOAD",
            "APPTAINER_DOCKER_PASSWORD",
            "HF_TOKEN",
            "NCCL_DEBUG",
        ];
        let env = env
            .into_iter()
            .map(|name| (name.to_owned(), "x".to_owned()))
            .collect();
        assert_eq!(
            engine_environment(&env).into_keys().collect::<Vec<_>>(),
            ["DOCKER_HOST", "PATH"]
        );
    }

    #[test]
    fn a_command_that_does_not_end_is_ended_and_one_that_says_much_is_read() {
        let slow = ask(&duct::cmd!("sleep", "60"), Duration::from_millis(20));
        assert_eq!(slow.unwrap_err().to_string(), "no answer in 0 s");
        // Whoever is left with the pipe is not waited for without end.
        let left = ask(
            &duct::cmd!("sh", "-c", "sleep 60 & exit 0"),
            Duration::from_millis(500),
        );
        assert_eq!(left.unwrap_err(), AskError::NoAnswer(0));
        let much = ask(
            &duct::cmd!("head", "-c", "300000", "/dev/zero"),
            Duration::from_secs(60),
        )
        .unwrap();
        assert_eq!(much.stdout.len(), 300_000);
    }

    #[test]
    fn an_engine_that_is_not_there_is_named() {
        let nothing = BTreeMap::from([("PATH".to_owned(), "/nonexistent".to_owned())]);
        assert!(
            ContainerEngine::find(None, &nothing)
                .unwrap_err()
                .contains("neither docker nor podman nor apptainer")
        );
        assert_eq!(
            ContainerEngine::find(Some(EngineKind::Podman), &nothing).unwrap_err(),
            "there is no podman in PATH"
        );
    }
}

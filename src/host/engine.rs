//! The programs that start containers: which of them is here, and what its images are.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::which;
use crate::{analyze::is_secret, digest::Digest, plan::EngineKind};

/// A container engine of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
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
const OWN_FAMILIES: [&str; 6] = ["DOCKER_", "CONTAINER_", "CONTAINERS_", "APPTAINER_", "SINGULARITY_", "SLURM_"];

/// An engine that takes longer to answer does not answer.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// What an engine's own program gets of the caller's environment.
#[must_use]
pub fn engine_environment(env: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_own = |name: &str| {
        OWN_VARIABLES.contains(&name) || OWN_FAMILIES.iter().any(|family| name.starts_with(family)) && !is_secret(name)
    };
    env.iter().filter(|(name, _)| is_own(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Engine {
    /// The engine of that kind, or the first of docker, podman and apptainer; in words why there is none.
    pub fn find(kind: Option<EngineKind>, env: &BTreeMap<String, String>) -> Result<Self, String> {
        let any = [EngineKind::Docker, EngineKind::Podman, EngineKind::Apptainer];
        let kinds = kind.map_or(&any[..], |kind| match kind {
            EngineKind::Docker => &any[..1],
            EngineKind::Podman => &any[1..2],
            EngineKind::Apptainer => &any[2..],
            EngineKind::Pyxis => &[EngineKind::Pyxis],
        });
        let found = kinds.iter().find_map(|kind| {
            let program = kind.programs().iter().find_map(|name| which(name, env))?;
            Some(Self { kind: *kind, program })
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
    pub fn ask(&self, env: &BTreeMap<String, String>, arguments: &[&str]) -> Result<Output, String> {
        ask(Command::new(&self.program).args(arguments).env_clear().envs(engine_environment(env)), PATIENCE)
            .map_err(|why| format!("{} does not answer: {why}", self.name()))
    }

    /// What the content of an image is named by; `None`: it is not on this host.
    pub fn image_digest(&self, env: &BTreeMap<String, String>, image: &str) -> Result<Option<String>, String> {
        match self.kind {
            EngineKind::Docker | EngineKind::Podman => {
                let said = self.ask(env, &["image", "inspect", "--format", "{{.Id}}", image])?;
                if said.status.success() {
                    let id = String::from_utf8_lossy(&said.stdout).trim().to_owned();
                    return Ok(Some(if id.starts_with("sha256:") { id } else { format!("sha256:{id}") }));
                }
                // Only an engine that is alive can say that an image is absent.
                let alive = self.ask(env, &["info"])?;
                if alive.status.success() {
                    Ok(None)
                } else {
                    Err(format!("{} does not answer: {}", self.name(), last_line(&alive.stderr)))
                }
            }
            EngineKind::Apptainer => digest_of_file(Path::new(image)),
            EngineKind::Pyxis if Path::new(image).is_absolute() => digest_of_file(Path::new(image)),
            EngineKind::Pyxis => match image.split_once('@') {
                Some((_, digest)) => Ok(Some(digest.to_owned())),
                None => Err(format!(
                    "pyxis fetches `{image}` anew for each job; name it with its digest, as {image}@sha256:…"
                )),
            },
        }
    }
}

fn digest_of_file(path: &Path) -> Result<Option<String>, String> {
    if !path.exists() {
        return Ok(None);
    }
    Digest::of_file(path).map(|digest| Some(format!("blake3:{digest}"))).map_err(|e| format!("{}: {e}", path.display()))
}

/// The output of a command that ends in time.
pub fn ask(command: &mut Command, patience: Duration) -> Result<Output, String> {
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    // Read beside the wait, or a command that says much would wait for its reader.
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let reader = |pipe: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            bytes
        })
    };
    let out = reader(out.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let err = reader(err.map(|pipe| Box::new(pipe) as Box<dyn Read + Send>));
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < patience => thread::sleep(PAUSE),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer in {} s", patience.as_secs()));
            }
            Err(e) => return Err(e.to_string()),
        }
    };
    Ok(Output { status, stdout: out.join().unwrap_or_default(), stderr: err.join().unwrap_or_default() })
}

/// The last line that says something.
#[must_use]
pub fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_told_where_its_service_is_and_no_password() {
        let env = ["PATH", "DOCKER_HOST", "LD_PRELOAD", "APPTAINER_DOCKER_PASSWORD", "HF_TOKEN", "NCCL_DEBUG"];
        let env = env.into_iter().map(|name| (name.to_owned(), "x".to_owned())).collect();
        assert_eq!(engine_environment(&env).into_keys().collect::<Vec<_>>(), ["DOCKER_HOST", "PATH"]);
    }

    #[test]
    fn a_command_that_does_not_end_is_ended_and_one_that_says_much_is_read() {
        let slow = ask(Command::new("sleep").arg("60"), Duration::from_millis(20));
        assert_eq!(slow.unwrap_err(), "no answer in 0 s");
        let much = ask(Command::new("head").args(["-c", "300000", "/dev/zero"]), Duration::from_secs(60)).unwrap();
        assert_eq!(much.stdout.len(), 300_000);
    }

    #[test]
    fn an_engine_that_is_not_there_is_named() {
        let nothing = BTreeMap::from([("PATH".to_owned(), "/nonexistent".to_owned())]);
        assert!(Engine::find(None, &nothing).unwrap_err().contains("neither docker nor podman nor apptainer"));
        assert_eq!(Engine::find(Some(EngineKind::Podman), &nothing).unwrap_err(), "there is no podman in PATH");
    }
}

//! Container engines and Slurm: what answers, and the command that mends what the project needs.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::Value;

use super::{Page, State, Wanted};
use crate::{
    host::{ContainerEngine, EngineKind, ask, last_line, which},
    job::Vendor,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// The command that installs an engine, and the page for distributions that have another one.
fn installs(kind: EngineKind) -> String {
    let (command, page) = match kind {
        EngineKind::Docker => (
            "sudo apt-get install -y docker.io",
            "https://docs.docker.com/engine/install/",
        ),
        EngineKind::Podman => (
            "sudo apt-get install -y podman",
            "https://podman.io/docs/installation",
        ),
        EngineKind::Apptainer | EngineKind::Pyxis => (
            "sudo apt-get install -y apptainer",
            "https://apptainer.org/docs/admin/latest/installation.html",
        ),
    };
    format!("`{command}` installs it (other distributions: {page})")
}

/// What makes an installed engine answer.
fn starts(kind: EngineKind, said: &str) -> String {
    match kind {
        EngineKind::Docker if said.to_lowercase().contains("permission denied") => {
            "`sudo usermod -aG docker $USER` lets you use it from your next login on".to_owned()
        }
        EngineKind::Docker => {
            "`sudo systemctl start docker` starts its service; `sudo usermod -aG docker $USER` lets you use it from your next login on"
                .to_owned()
        }
        _ => format!("`{} info` shows the whole message", kind.name()),
    }
}

/// What makes an engine hand out NVIDIA GPUs.
fn hands_out(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Docker => {
            "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker` sets it up; nvidia-ctk is in the package nvidia-container-toolkit"
        }
        _ => {
            "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` sets it up; nvidia-ctk is in the package nvidia-container-toolkit"
        }
    }
}

pub(super) fn engines(env: &BTreeMap<String, String>, wanted: &Wanted, page: &mut Page) {
    let any = ContainerEngine::find(None, env).map(|engine| engine.kind);
    let is_wanted = |kind: EngineKind| {
        let stands_in = any
            .as_ref()
            .map_or(kind == EngineKind::Docker, |any| *any == kind);
        wanted.engines.contains(&Some(kind)) || (wanted.engines.contains(&None) && stands_in)
    };
    for kind in [
        EngineKind::Docker,
        EngineKind::Podman,
        EngineKind::Apptainer,
    ] {
        let Ok(engine) = ContainerEngine::find(Some(kind), env) else {
            if is_wanted(kind) {
                page.mend(
                    "containers",
                    State::Problem,
                    format!(
                        "{}: not installed, and cells of this project run in its containers",
                        kind.name()
                    ),
                    installs(kind),
                );
            } else {
                page.add(
                    "containers",
                    State::Absent,
                    format!("{}: not installed", kind.name()),
                );
            }
            continue;
        };
        // All that Docker says of itself has the names of the host and of its kernel, which may be
        // called `…-nvidia`.
        let asked: &[&str] = match kind {
            EngineKind::Apptainer => &["--version"],
            EngineKind::Docker => &["info", "--format", "{{json .Runtimes}}"],
            _ => &["info"],
        };
        match engine.ask(env, asked) {
            Ok(said) if said.status.success() => {
                let runtimes: serde_json::Map<String, Value> = match kind {
                    EngineKind::Docker => serde_json::from_slice(&said.stdout).unwrap_or_default(),
                    _ => serde_json::Map::new(),
                };
                let has_cdi = || {
                    ["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"]
                        .iter()
                        .any(|p| Path::new(p).exists())
                };
                let gpus = match kind {
                    EngineKind::Apptainer => "",
                    _ if runtimes.contains_key("nvidia") || has_cdi() => ", hands out NVIDIA GPUs",
                    EngineKind::Docker => ", no NVIDIA runtime and no CDI",
                    _ => ", no CDI",
                };
                let what = format!("{}: answers{gpus}", kind.name());
                if is_wanted(kind)
                    && wanted.in_containers.contains(&Vendor::Nvd)
                    && gpus.starts_with(", no ")
                {
                    page.mend("containers", State::Problem, what, hands_out(kind));
                } else {
                    page.add("containers", State::Ok, what);
                }
            }
            Ok(said) => {
                let why = last_line(&said.stderr);
                let what = format!("{} does not answer: {why}", kind.name());
                page.mend("containers", State::Problem, what, starts(kind, &why));
            }
            Err(why) => {
                let help = starts(kind, &why);
                page.mend("containers", State::Problem, why, help);
            }
        }
    }
}

pub(super) fn slurm(env: &BTreeMap<String, String>, wanted: &Wanted, page: &mut Page) {
    let Some(sinfo) = which("sinfo", env) else {
        if wanted.slurm {
            page.mend(
                "slurm",
                State::Problem,
                "no sinfo in PATH, and cells of this project are jobs of Slurm",
                "run tprimat on a login node of the cluster; on a host that belongs to it, `sudo apt-get install -y slurm-client` installs the commands",
            );
        } else {
            page.add("slurm", State::Absent, "no sinfo in PATH");
        }
        return;
    };
    let arguments = ["--noheader", "--format=%P %a, %D nodes %T, limit %l, %G"];
    match ask(&duct::cmd(sinfo, arguments).full_env(env), PATIENCE) {
        Ok(said) if said.status.success() => {
            for line in String::from_utf8_lossy(&said.stdout).lines() {
                page.add("slurm", State::Ok, format!("partition {}", line.trim()));
            }
        }
        // Packages bring sinfo to hosts that belong to no cluster.
        Ok(said) => unanswered(&last_line(&said.stderr), wanted, page),
        Err(why) => unanswered(&why.to_string(), wanted, page),
    }
}

fn unanswered(why: &str, wanted: &Wanted, page: &mut Page) {
    let what = format!("sinfo is installed, but no cluster answers ({why})");
    if wanted.slurm {
        page.mend(
            "slurm",
            State::Problem,
            format!("{what}, and cells of this project are jobs of Slurm"),
            "`scontrol ping` shows which controller is asked; `sudo systemctl restart slurmctld` on that host starts it",
        );
    } else {
        page.add(
            "slurm",
            State::Absent,
            format!("{what}; only `executor: slurm` needs one"),
        );
    }
}

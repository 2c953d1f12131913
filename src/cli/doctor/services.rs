//! Container engines, Slurm and Kubernetes: what answers, and the command that mends what the project needs.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::Value;

use super::{Cluster, Page, State, Wanted};
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
        EngineKind::Apptainer | EngineKind::Pyxis | EngineKind::Kubernetes => (
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
        let name = kind.name();
        let Ok(engine) = ContainerEngine::find(Some(kind), env) else {
            let what = format!("{name}: not installed");
            match is_wanted(kind) {
                true => page.mend(
                    "containers",
                    State::Problem,
                    what + ", and cells of this project run in its containers",
                    installs(kind),
                ),
                false => drop(page.add("containers", State::Absent, what)),
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
        let said = match engine.ask(env, asked) {
            Ok(said) if said.status.success() => said.stdout,
            Ok(said) => {
                let why = last_line(&said.stderr);
                let what = format!("{name} does not answer: {why}");
                page.mend("containers", State::Problem, what, starts(kind, &why));
                continue;
            }
            Err(why) => {
                let help = starts(kind, &why);
                page.mend("containers", State::Problem, why, help);
                continue;
            }
        };
        let runtimes: serde_json::Map<String, Value> = match kind {
            EngineKind::Docker => serde_json::from_slice(&said).unwrap_or_default(),
            _ => serde_json::Map::new(),
        };
        let cdi = ["/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml"];
        let hands_out_gpus =
            runtimes.contains_key("nvidia") || cdi.iter().any(|path| Path::new(path).exists());
        let gpus = match kind {
            EngineKind::Apptainer => "",
            _ if hands_out_gpus => ", hands out NVIDIA GPUs",
            EngineKind::Docker => ", no NVIDIA runtime and no CDI",
            _ => ", no CDI",
        };
        let what = format!("{name}: answers{gpus}");
        let needs_gpus = is_wanted(kind) && wanted.in_containers.contains(&Vendor::Nvd);
        match needs_gpus && gpus.starts_with(", no ") {
            true => page.mend("containers", State::Problem, what, hands_out(kind)),
            false => drop(page.add("containers", State::Ok, what)),
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

/// What a run needs to be allowed.
const VERBS: [(&str, &str); 6] = [
    ("create", "jobs.batch"),
    ("list", "jobs.batch"),
    ("delete", "jobs.batch"),
    ("list", "pods"),
    ("create", "secrets"),
    ("delete", "secrets"),
];

pub(super) fn kubernetes(env: &BTreeMap<String, String>, cluster: &Cluster, page: &mut Page) {
    const TOPIC: &str = "kubernetes";
    let Some(kubectl) = which("kubectl", env) else {
        page.mend(
            TOPIC,
            State::Problem,
            "no kubectl in PATH, and cells of this project are Jobs",
            "https://kubernetes.io/docs/tasks/tools says how it is installed",
        );
        return;
    };
    let option = |name: &str, value: &Option<String>| {
        let value = value.as_ref();
        value.map(|value| format!("--{name}={value}"))
    };
    let place: Vec<String> = option("context", &cluster.context)
        .into_iter()
        .chain(option("namespace", &cluster.namespace))
        .collect();
    let ask = |words: &[&str]| {
        let words = place
            .iter()
            .map(String::as_str)
            .chain(words.iter().copied());
        ask(&duct::cmd(&kubectl, words).full_env(env), PATIENCE).map_err(|why| why.to_string())
    };
    let name = match &cluster.context {
        Some(context) => format!("context {context}"),
        None => "the current context".to_owned(),
    };
    let name = match &cluster.namespace {
        Some(namespace) => format!("{name}, namespace {namespace}"),
        None => name,
    };
    let mut refused = Vec::new();
    for (verb, what) in VERBS {
        let why = match ask(&["auth", "can-i", verb, what]) {
            Ok(said) if said.status.success() => continue,
            // It prints `no`, and ends with 1.
            Ok(said) if said.stdout.starts_with(b"no") => {
                refused.push(format!("{verb} {what}"));
                continue;
            }
            Ok(said) => last_line(&said.stderr),
            Err(why) => why,
        };
        let what = format!("{name}: the cluster does not answer ({why})");
        let help = "`kubectl config get-contexts` lists the clusters that kubectl knows, `kubectl cluster-info` asks one";
        page.mend(TOPIC, State::Problem, what, help);
        return;
    }
    if refused.is_empty() {
        page.add(TOPIC, State::Ok, format!("{name}: Jobs may be made here"));
    } else {
        let what = format!("{name}: you may not {}", refused.join(", "));
        let help =
            "a Role of the namespace with these verbs, bound to you by its administrator, lets you";
        page.mend(TOPIC, State::Problem, what, help);
    }
    let Some(resource) = &cluster.resource else {
        return;
    };
    // Who may not list them is shown an empty list.
    let nodes = ask(&["get", "nodes", "--output=json"]).ok();
    let nodes = nodes
        .filter(|said| said.status.success())
        .map(|said| said.stdout);
    let nodes: Value = serde_json::from_slice(&nodes.unwrap_or_default()).unwrap_or_default();
    let Some(nodes) = nodes["items"].as_array() else {
        let what = format!("{name}: which nodes have {resource} cannot be seen from here");
        page.add(TOPIC, State::Unchecked, what);
        return;
    };
    let gpus = nodes.iter().filter_map(|node| {
        let count = node["status"]["allocatable"][resource].as_str()?;
        count.parse::<u64>().ok().filter(|count| *count > 0)
    });
    let gpus: Vec<u64> = gpus.collect();
    match gpus.iter().max() {
        Some(most) => {
            let all: u64 = gpus.iter().sum();
            let of = gpus.len();
            let what = format!("{name}: {all} {resource} on {of} nodes, at most {most} on one");
            page.add(TOPIC, State::Ok, what);
        }
        None => page.mend(
            TOPIC,
            State::Problem,
            format!("{name}: no node has {resource}"),
            "`kubectl describe nodes` lists what they have; a device plugin of the vendor offers GPUs, execution.<platform>.kubernetes.resource names them",
        ),
    }
}

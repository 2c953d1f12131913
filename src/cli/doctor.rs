//! `doctor`: what this host has of what runs need, on one page, with the command that mends what is missing. It starts nothing
//! that the project names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    os::unix::fs::MetadataExt,
    path::Path,
    process::Command,
    time::Duration,
};

use serde::Serialize;

use super::{
    args::DoctorArgs,
    blocked, build,
    output::{page, print, print_json},
    project,
};
use crate::{
    cache::Cache,
    error::{Result, exit},
    execute::{self, Look},
    host::{self, Engine, HostFacts, ask, last_line, which},
    plan::{EngineKind, Plan, PlanRequest, Support, Vendor},
};

/// A line of the page.
#[derive(Debug, Serialize)]
struct Finding {
    topic: &'static str,
    state: State,
    what: String,
    /// What mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// Not here, and needed by those only who use it.
    Absent,
    Problem,
}

const PATIENCE: Duration = Duration::from_secs(10);
const GIB: f64 = (1_u64 << 30) as f64;
/// A build of a few cells with their logs fits into less; a full disk in the night costs GPU-hours.
const LITTLE_DISK: f64 = 5.0;

#[derive(Default)]
struct Page(Vec<Finding>);

impl Page {
    fn add(&mut self, topic: &'static str, state: State, what: impl Into<String>) -> &mut Finding {
        self.0.push(Finding { topic, state, what: what.into(), help: None });
        self.0.last_mut().expect("added just now")
    }
    fn mend(&mut self, topic: &'static str, state: State, what: impl Into<String>, help: impl Into<String>) {
        self.add(topic, state, what).help = Some(help.into());
    }
}

pub fn run(at: Option<&Path>, args: &DoctorArgs) -> Result<i32> {
    let env = project::environment();
    let mut findings = Page::default();
    let facts = host::probe();
    hardware(&facts, &env, &mut findings);
    engines(&env, &mut findings);
    slurm(&env, &mut findings);
    // Outside of a project the host alone is looked at.
    match project::root(at) {
        Ok(root) => in_project(PlanRequest { root, env, ..PlanRequest::default() }, &mut findings)?,
        Err(error) => {
            findings.mend("project", State::Absent, error.to_string(), "`tprimat init` writes a starter project")
        }
    }
    if args.json {
        print_json(&serde_json::to_value(&findings.0).unwrap_or_default())?;
    } else {
        print(&text(&findings.0, page().width))?;
    }
    Ok(exit::OK)
}

fn hardware(facts: &HostFacts, env: &BTreeMap<String, String>, page: &mut Page) {
    let memory = facts.cpu.memory_bytes.map_or_else(String::new, |bytes| format!(", {:.0} GiB", bytes as f64 / GIB));
    let cores = facts.cpu.cores.map_or_else(|| "an unknown number of".to_owned(), |cores| cores.to_string());
    let model = facts.cpu.model.as_deref().unwrap_or("a CPU of unknown model");
    page.add(
        "host",
        State::Ok,
        format!("{}: {model}, {cores} cores{memory}", facts.hostname.as_deref().unwrap_or("?")),
    );
    let lock_dir = build::lock_dir(env);
    for vendor in [Vendor::Cpu, Vendor::Nvd, Vendor::Amd] {
        let gpus = match vendor {
            Vendor::Cpu => None,
            Vendor::Nvd => Some(&facts.nvd),
            Vendor::Amd => Some(&facts.amd),
        };
        for (index, lock) in facts.device_locks(vendor).iter().enumerate() {
            let name = gpus.map_or_else(
                || "the CPU".to_owned(),
                |gpus| {
                    let gpu = &gpus[index];
                    let memory = gpu.memory_bytes.map_or_else(String::new, |b| format!(", {:.0} GiB", b as f64 / GIB));
                    let driver = gpu.driver.as_deref().map_or_else(String::new, |d| format!(", driver {d}"));
                    format!("GPU {index}: {}{memory}{driver}", gpu.name.as_deref().unwrap_or("unknown model"))
                },
            );
            match execute::device_holder(&lock_dir, lock) {
                None if vendor == Vendor::Cpu => {}
                None => drop(page.add("devices", State::Ok, format!("{name}: free"))),
                Some(holder) => {
                    let whose = holder.map_or_else(
                        || "a run".to_owned(),
                        |h| format!("run {} (process {}, {})", h.run_id, h.pid, user_of(h.pid)),
                    );
                    page.mend(
                        "devices",
                        State::Problem,
                        format!("{name} is held by {whose}"),
                        "it is free when that run ends; `tprimat status` and `tprimat stop` are for detached builds",
                    );
                }
            }
        }
    }
    if facts.nvd.is_empty() && facts.amd.is_empty() {
        page.add("devices", State::Absent, "no GPU is seen here: neither NVML nor /dev/kfd");
    }
    for note in &facts.notes {
        page.add("devices", State::Problem, note.clone());
    }
}

fn user_of(pid: u32) -> String {
    let uid = std::fs::metadata(format!("/proc/{pid}")).map(|found| found.uid());
    let user = uid.ok().and_then(|uid| nix::unistd::User::from_uid(uid.into()).ok().flatten());
    user.map_or_else(|| "an unknown user".to_owned(), |user| format!("user {}", user.name))
}

fn engines(env: &BTreeMap<String, String>, page: &mut Page) {
    for kind in [EngineKind::Docker, EngineKind::Podman, EngineKind::Apptainer] {
        let Ok(engine) = Engine::find(Some(kind), env) else {
            page.add("containers", State::Absent, format!("{}: not installed", kind.name()));
            continue;
        };
        let asked = if kind == EngineKind::Apptainer { "--version" } else { "info" };
        match engine.ask(env, &[asked]) {
            Ok(said) if said.status.success() => {
                let text = String::from_utf8_lossy(&said.stdout);
                let gpus = match kind {
                    EngineKind::Apptainer => "",
                    _ if text.contains("nvidia") || Path::new("/etc/cdi/nvidia.yaml").exists() => {
                        ", hands out NVIDIA GPUs"
                    }
                    _ => ", no NVIDIA runtime and no CDI",
                };
                page.add("containers", State::Ok, format!("{}: answers{gpus}", kind.name()));
            }
            Ok(said) => {
                let what = format!("{} does not answer: {}", kind.name(), last_line(&said.stderr));
                page.mend("containers", State::Problem, what, "start its service, or join its group");
            }
            Err(why) => page.mend("containers", State::Problem, why, "start its service, or join its group"),
        }
    }
}

fn slurm(env: &BTreeMap<String, String>, page: &mut Page) {
    let Some(sinfo) = which("sinfo", env) else {
        page.add("slurm", State::Absent, "no sinfo in PATH");
        return;
    };
    let mut command = Command::new(sinfo);
    command.args(["--noheader", "--format=%P %a, %D nodes %T, limit %l, %G"]).env_clear().envs(env);
    match ask(&mut command, PATIENCE) {
        Ok(said) if said.status.success() => {
            for line in String::from_utf8_lossy(&said.stdout).lines() {
                page.add("slurm", State::Ok, format!("partition {}", line.trim()));
            }
        }
        Ok(said) => drop(page.add("slurm", State::Problem, last_line(&said.stderr))),
        Err(why) => drop(page.add("slurm", State::Problem, why)),
    }
}

fn in_project(request: PlanRequest, page: &mut Page) -> Result<()> {
    let plan = match Plan::load(&request) {
        Ok(plan) => plan,
        Err(error) => {
            page.mend(
                "project",
                State::Problem,
                error.to_string(),
                "`tprimat check` shows every problem with its line",
            );
            return Ok(());
        }
    };
    let place = project::cache_dir(&plan);
    disk(&place, page);
    let frameworks: BTreeSet<&str> = plan.matrix.cells.iter().map(|cell| &*cell.framework).collect();
    for framework in frameworks {
        page.add("python", State::Ok, format!("{framework}: {}", plan.facts.python(framework).display()));
    }
    let cache = Cache::open(&place)?;
    let host = build::train_host(&plan, &request, cache.root())?;
    let mut here = Vec::new();
    for (cell, planned) in plan.cells.iter().enumerate() {
        if let Support::Ready(prepared) = &planned.support
            && prepared.known().is_ok()
            && prepared.here().is_ok()
        {
            here.push(cell);
        }
    }
    let found = blocked::find(&plan, &here, &host, Look::AtFiles)?;
    for (problem, cells) in blocked::by_problem(&found) {
        let names: Vec<&str> = cells.iter().map(|cell| plan.cells[*cell].id.as_str()).collect();
        let what = format!("{} ({})", problem.message, blocked::few(&names));
        page.mend("cells", State::Problem, what, problem.help.clone().unwrap_or_default());
    }
    let count = here.len() - found.len();
    page.add("cells", State::Ok, format!("{count} of {} cells can be measured on this host now", plan.cells.len()));
    Ok(())
}

fn disk(place: &Path, page: &mut Page) {
    let there = place.ancestors().find(|path| path.exists()).unwrap_or(place);
    let Ok(found) = nix::sys::statvfs::statvfs(there) else { return };
    let free = found.blocks_available() as f64 * found.fragment_size() as f64 / GIB;
    let what = format!("{free:.0} GiB are free for {}", place.display());
    match free < LITTLE_DISK {
        true => page.mend(
            "disk",
            State::Problem,
            what,
            "`tprimat clean` removes published output, `paths.cache` names another place",
        ),
        false => drop(page.add("disk", State::Ok, what)),
    }
}

fn text(findings: &[Finding], width: usize) -> String {
    let mut text = String::new();
    let mut last = "";
    for Finding { topic, state, what, help } in findings {
        if *topic != last {
            let _ = writeln!(text, "{}{topic}", if last.is_empty() { "" } else { "\n" });
            last = topic;
        }
        let mark = match state {
            State::Ok => "ok ",
            State::Absent => "-  ",
            State::Problem => "!! ",
        };
        let _ = writeln!(text, "  {mark}{}", wrapped(what, width, 5));
        if let Some(help) = help.as_ref().filter(|help| !help.is_empty()) {
            let _ = writeln!(text, "     {}", wrapped(help, width, 5));
        }
    }
    text
}

/// In lines of at most `width`, the later ones indented.
fn wrapped(what: &str, width: usize, indent: usize) -> String {
    let mut lines = vec![String::new()];
    for word in what.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > width.max(40) {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

//! `doctor`: what this host has of what runs need, on one page, with the command that mends what is
//! missing. It starts nothing that the project names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    os::unix::fs::MetadataExt,
    path::Path,
    time::Duration,
};

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    args::{DoctorArgs, Globals},
    blocked,
    output::{confirmed, page, print, print_json},
    project,
    session::Session,
    train_host,
};
use crate::{
    error::{Error, Result, exit},
    execute::{self, GpuHolder, ProbeDepth, ProcessOwner},
    host::{self, ContainerEngine, EngineKind, HostFacts, ask, last_line, which},
    job::Vendor,
    logs::GIB,
    matrix::CellId,
    plan::{Asked, Place, Plan, PlanRequest, Support},
    report::wrapped,
    words::plain::counted,
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
    /// It is not here; only who uses it needs it.
    Absent,
    /// Whether it is here only a build finds out.
    Unchecked,
    Problem,
}

const PATIENCE: Duration = Duration::from_secs(10);
/// A build of a few cells with their logs fits into less; a full disk in the night costs GPU-hours.
const LITTLE_DISK: f64 = 5.0;

#[derive(Default)]
struct Page(Vec<Finding>);

impl Page {
    fn add(&mut self, topic: &'static str, state: State, what: impl Into<String>) -> &mut Finding {
        self.0.push(Finding {
            topic,
            state,
            what: what.into(),
            help: None,
        });
        self.0.last_mut().expect("added just now")
    }
    fn mend(
        &mut self,
        topic: &'static str,
        state: State,
        what: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.add(topic, state, what).help = Some(help.into());
    }
}

pub fn run(globals: &Globals, args: &DoctorArgs) -> Result<i32> {
    if args.free_gpus {
        return free_gpus(args.yes);
    }
    let env = project::environment();
    let mut findings = Page::default();
    let facts = host::probe();
    hardware(&facts, &env, &mut findings);
    engines(&env, &mut findings);
    slurm(&env, &mut findings);
    // Outside of a project the host alone is looked at.
    match project::root(globals) {
        Ok(root) => in_project(
            PlanRequest {
                root,
                directory: globals.directory.clone(),
                env,
                matrix: args.common.matrix().cloned(),
                sets: args.common.sets.clone(),
                ..PlanRequest::default()
            },
            &mut findings,
        )?,
        Err(error) => findings.mend(
            "project",
            State::Absent,
            error.to_string(),
            "`tprimat init` writes a starter project",
        ),
    }
    if globals.json {
        print_json("doctor", &json!({ "findings": findings.0 }))?;
    } else {
        print(&text(&findings.0, page().width))?;
    }
    Ok(exit::OK)
}

/// Ends what runs of the caller's left on GPUs, and nothing else.
fn free_gpus(is_sure: bool) -> Result<i32> {
    let holders = execute::gpu_holders();
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    let mut text = String::new();
    for GpuHolder {
        pid,
        name,
        devices,
        whose,
    } in &holders
    {
        let why = match whose {
            ProcessOwner::Leftover(run) => {
                *left.entry(run).or_default() += 1;
                format!("left over from run {run}, which nothing supervises any more")
            }
            ProcessOwner::Run(run) => format!("run {run} goes on, so it is left alone"),
            ProcessOwner::Other => "not a run of yours, so it is left alone".to_owned(),
        };
        let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
        let _ = writeln!(
            text,
            "process {pid} ({name}, {}) holds {}: {why}",
            user_of(*pid),
            devices.join(", ")
        );
    }
    print(&text)?;
    if nix::unistd::geteuid().as_raw() != 0 {
        eprintln!(
            "note: processes of other users are hidden from you; `nvidia-smi` or `rocm-smi --showpids` lists them"
        );
    }
    if left.is_empty() {
        eprintln!("no run of yours left a process on a GPU");
        return Ok(exit::OK);
    }
    let runs = counted(left.len(), "run");
    if !is_sure
        && !confirmed(
            "doctor --free-gpus",
            &format!("End all processes that {runs} left behind?"),
        )?
    {
        return Ok(exit::OK);
    }
    let mut survivors = 0;
    for run in left.keys() {
        let (ended, stayed) = execute::end_leftovers(run);
        eprintln!(
            "run {run}: ended {}",
            processes(ended.saturating_sub(stayed))
        );
        survivors += stayed;
    }
    match survivors {
        0 => Ok(exit::OK),
        n => Err(Error::Failed {
            message: format!("{} did not end, not even by SIGKILL", processes(n)),
            help: Some(
                "they hang in the driver; a reset of the device, or of the host, ends them".into(),
            ),
        }),
    }
}

fn processes(count: usize) -> String {
    format!(
        "{count} {}",
        if count == 1 { "process" } else { "processes" }
    )
}

fn hardware(facts: &HostFacts, env: &BTreeMap<String, String>, page: &mut Page) {
    let memory = facts.cpu.memory_bytes.map_or_else(String::new, |bytes| {
        format!(", {:.0} GiB", bytes as f64 / GIB)
    });
    let cores = facts.cpu.cores.map_or_else(
        || "an unknown number of".to_owned(),
        |cores| cores.to_string(),
    );
    let model = facts
        .cpu
        .model
        .as_deref()
        .unwrap_or("a CPU of unknown model");
    page.add(
        "host",
        State::Ok,
        format!(
            "{}: {model}, {cores} cores{memory}",
            facts.hostname.as_deref().unwrap_or("?")
        ),
    );
    let lock_dir = train_host::lock_dir(env);
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
                    let memory = gpu
                        .memory_bytes
                        .map_or_else(String::new, |b| format!(", {:.0} GiB", b as f64 / GIB));
                    let driver = gpu
                        .driver
                        .as_deref()
                        .map_or_else(String::new, |d| format!(", driver {d}"));
                    format!(
                        "GPU {index}: {}{memory}{driver}",
                        gpu.name.as_deref().unwrap_or("unknown model")
                    )
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
    // With a note, a driver is here and does not answer.
    if facts.nvd.is_empty() && facts.amd.is_empty() && facts.notes.is_empty() {
        page.add(
            "devices",
            State::Absent,
            "no GPU is seen here: neither NVML nor /dev/kfd",
        );
    }
    for note in &facts.notes {
        page.add("devices", State::Problem, note.clone());
    }
}

fn user_of(pid: u32) -> String {
    let uid = std::fs::metadata(format!("/proc/{pid}")).map(|found| found.uid());
    let user = uid
        .ok()
        .and_then(|uid| nix::unistd::User::from_uid(uid.into()).ok().flatten());
    user.map_or_else(
        || "an unknown user".to_owned(),
        |user| format!("user {}", user.name),
    )
}

fn engines(env: &BTreeMap<String, String>, page: &mut Page) {
    for kind in [
        EngineKind::Docker,
        EngineKind::Podman,
        EngineKind::Apptainer,
    ] {
        let Ok(engine) = ContainerEngine::find(Some(kind), env) else {
            page.add(
                "containers",
                State::Absent,
                format!("{}: not installed", kind.name()),
            );
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
                page.add(
                    "containers",
                    State::Ok,
                    format!("{}: answers{gpus}", kind.name()),
                );
            }
            Ok(said) => {
                let what = format!(
                    "{} does not answer: {}",
                    kind.name(),
                    last_line(&said.stderr)
                );
                page.mend(
                    "containers",
                    State::Problem,
                    what,
                    "start its service, or join its group",
                );
            }
            Err(why) => page.mend(
                "containers",
                State::Problem,
                why,
                "start its service, or join its group",
            ),
        }
    }
}

fn slurm(env: &BTreeMap<String, String>, page: &mut Page) {
    let Some(sinfo) = which("sinfo", env) else {
        page.add("slurm", State::Absent, "no sinfo in PATH");
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
        Ok(said) => drop(page.add("slurm", State::Absent, unanswered(&last_line(&said.stderr)))),
        Err(why) => drop(page.add("slurm", State::Absent, unanswered(&why.to_string()))),
    }
}

fn unanswered(why: &str) -> String {
    format!("sinfo is installed, but no cluster answers ({why}); only `executor: slurm` needs one")
}

fn in_project(request: PlanRequest, page: &mut Page) -> Result<()> {
    let asked = Asked::of(&request);
    let session = match Session::open(request) {
        Ok(session) => session,
        Err(error) => {
            page.mend(
                "project",
                State::Problem,
                error.to_string(),
                format!(
                    "`{}` shows every problem with its line",
                    asked.command("check", &[])
                ),
            );
            return Ok(());
        }
    };
    let Session { plan, cache, .. } = &session;
    disk(cache.root(), page);
    let host = train_host::train_host(&session)?;
    let frameworks: BTreeSet<&str> = plan
        .matrix
        .cells
        .iter()
        .map(|cell| &*cell.framework)
        .collect();
    for framework in frameworks {
        packages(plan, framework, &host.caller_env, page);
    }
    let mut here = Vec::new();
    for (cell, planned) in plan.cells.with_ids() {
        if let Support::Ready(prepared) = &planned.support
            && prepared.known().is_ok()
            && prepared.here().is_ok()
        {
            here.push(cell);
        }
    }
    let found = blocked::find(plan, &here, &host, ProbeDepth::AtFiles)?;
    for (problem, cells) in blocked::by_problem(&found) {
        let names: Vec<&str> = cells
            .iter()
            .map(|cell| plan.cells[*cell].id.as_str())
            .collect();
        let what = format!("{} ({})", problem.message, blocked::few(&names));
        page.mend(
            "cells",
            State::Problem,
            what,
            problem.help.clone().unwrap_or_default(),
        );
    }
    measurable(plan, here.len() - found.len(), page);
    Ok(())
}

/// What is known of the packages of a framework, without starting its interpreter.
fn packages(plan: &Plan, framework: &str, env: &BTreeMap<String, String>, page: &mut Page) {
    let of_framework = |(cell, _): &(CellId, _)| *plan.matrix.cells[*cell].framework == *framework;
    let cells = plan.cells.with_ids().filter(of_framework);
    let (mut on_nodes, mut in_container, mut here) = (false, false, false);
    for execution in cells.filter_map(|(cell, _)| Some(&plan.prepared(cell)?.resolved.execution)) {
        match (execution.place, &execution.container) {
            (_, Some(_)) => in_container = true,
            (Place::Local, None) => here = true,
            (Place::Slurm | Place::Allocation, None) => on_nodes = true,
        }
    }
    for (is_so, what) in [
        (
            in_container,
            "what its image holds is seen when a build starts it",
        ),
        (on_nodes, "a run looks for its packages on its node"),
    ] {
        if is_so {
            page.add("python", State::Unchecked, format!("{framework}: {what}"));
        }
    }
    if !here {
        return;
    }
    let python = plan.facts.python(framework);
    let modules = &plan.recipes.recipes[framework].file.require.python_modules;
    let found = host::absent_modules(python, env, modules);
    let (state, what) = match &found {
        _ if modules.is_empty() => (
            State::Unchecked,
            "its recipe lists no modules, so none are looked for".to_owned(),
        ),
        Err(why) => (
            State::Unchecked,
            format!("its files do not show which packages it has ({why}); a build asks it"),
        ),
        Ok(absent) if absent.is_empty() => (State::Ok, format!("has {}", modules.join(", "))),
        Ok(absent) => (
            State::Absent,
            format!("does not have {}", absent.join(", ")),
        ),
    };
    let what = format!("{framework}: {}: {what}", python.display());
    page.add("python", state, what);
}

/// How many cells this host can measure, and what the others wait for.
fn measurable(plan: &Plan, count: usize, page: &mut Page) {
    let (mut unsupported, mut waiting) = (0, BTreeMap::<&str, usize>::new());
    for planned in &plan.cells {
        match &planned.support {
            Support::Unsupported(_) => unsupported += 1,
            Support::Ready(prepared) => match prepared.here() {
                Ok(()) => {}
                Err(_) => *waiting.entry(prepared.job().vendor.devices()).or_default() += 1,
            },
        }
    }
    let all = plan.cells.len();
    let mut parts: Vec<String> = waiting
        .iter()
        .map(|(devices, n)| format!("{n} wait for a host with {devices}"))
        .collect();
    parts.extend((unsupported > 0).then(|| format!("{unsupported} are not supported")));
    let mut rest = if parts.is_empty() {
        String::new()
    } else {
        format!(": {}", parts.join(", "))
    };
    if count > 0 && page.0.iter().any(|found| found.state == State::Unchecked) {
        rest.push_str("; what is marked with ? was not checked");
    }
    match count {
        0 if all > 0 => page.mend(
            "cells",
            State::Absent,
            format!(
                "none of {} can be measured on this host now{rest}",
                counted(all, "cell")
            ),
            format!("`{}` says why for each", plan.command("plan", &[])),
        ),
        _ => drop(page.add(
            "cells",
            State::Ok,
            format!(
                "{count} of {} can be measured on this host now{rest}",
                counted(all, "cell")
            ),
        )),
    }
}

fn disk(place: &Path, page: &mut Page) {
    let there = place
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(place);
    let Ok(found) = nix::sys::statvfs::statvfs(there) else {
        return;
    };
    let free = found.blocks_available() as f64 * found.fragment_size() as f64 / GIB;
    let what = format!("{free:.0} GiB are free for {}", place.display());
    match free < LITTLE_DISK {
        true => page.mend(
            "disk",
            State::Problem,
            what,
            "`tprimat cache gc --older-than 30d` removes what a build draws again, `paths.cache` names another place",
        ),
        false => drop(page.add("disk", State::Ok, what)),
    }
}

fn text(findings: &[Finding], width: usize) -> String {
    let mut text = String::new();
    let mut last = "";
    for Finding {
        topic,
        state,
        what,
        help,
    } in findings
    {
        if *topic != last {
            let _ = writeln!(text, "{}{topic}", if last.is_empty() { "" } else { "\n" });
            last = topic;
        }
        let mark = match state {
            State::Ok => "  ok ",
            State::Absent => "  -  ",
            State::Unchecked => "  ?  ",
            State::Problem => "  !! ",
        };
        for (bullet, words) in [
            (mark, Some(what)),
            ("     ", help.as_ref().filter(|help| !help.is_empty())),
        ] {
            for line in words
                .iter()
                .flat_map(|words| wrapped(bullet, words, width.max(40)))
            {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

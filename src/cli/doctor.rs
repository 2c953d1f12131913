//! `doctor`: what this host has of what runs need, on one page, with the command that mends what is
//! missing. It starts nothing that the project names.

mod gpus;
mod services;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use indexmap::IndexMap;
use serde::Serialize;
use serde_json::json;

use self::gpus::{GpuNow, HeldBy, WHEN_FREE, gpu_finding, run_of, without_driver};
use super::{
    args::{DoctorArgs, Globals},
    blocked,
    output::{answer, page},
    project,
    session::Session,
    train_host,
};
use crate::{
    error::{Result, exit},
    execute::ProbeDepth,
    host::{self, EngineKind, HostFacts},
    job::Vendor,
    logs::GIB,
    matrix::CellId,
    plan::{Asked, Place, Plan, PlanRequest, Support},
    report::wrapped,
    run,
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
    /// The processes that use a GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<HeldBy>,
    /// Memory of a GPU that nobody has.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_memory_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// It is not here; only who uses it needs it.
    Absent,
    /// Whether it is here only a build finds out.
    Unchecked,
    Problem,
}

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
            holders: Vec::new(),
            free_memory_bytes: None,
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
        return gpus::free_gpus(args.yes);
    }
    let env = project::environment();
    let mut findings = Page::default();
    let facts = host::probe();
    // Outside of a project the host alone is looked at, and nothing is asked of it.
    let project = project::root(globals).map(|root| {
        let request = PlanRequest {
            root,
            directory: globals.directory.clone(),
            env: env.clone(),
            matrix: args.common.matrix().cloned(),
            sets: args.common.sets.clone(),
            ..PlanRequest::default()
        };
        (Asked::of(&request), Session::open(request))
    });
    let wanted = match &project {
        Ok((_, Ok(session))) => Wanted::of(&session.plan),
        _ => Wanted::default(),
    };
    hardware(&facts, &env, &wanted, &mut findings);
    services::engines(&env, &wanted, &mut findings);
    services::slurm(&env, &wanted, &mut findings);
    wanted
        .kubernetes
        .iter()
        .for_each(|cluster| services::kubernetes(&env, cluster, &mut findings));
    match project {
        Ok((asked, session)) => in_project(&asked, session, &mut findings)?,
        Err(error) => findings.mend(
            "project",
            State::Absent,
            error.to_string(),
            error.help().unwrap_or_default(),
        ),
    }
    let value = json!({ "findings": findings.0 });
    answer(globals, "doctor", &value, || {
        text(&findings.0, page().width)
    })?;
    Ok(exit::OK)
}

/// What the cells of the project ask of this host.
#[derive(Default)]
struct Wanted {
    /// `None`: any engine will do.
    engines: BTreeSet<Option<EngineKind>>,
    /// Vendors of GPUs that runs in containers get.
    in_containers: BTreeSet<Vendor>,
    /// Vendors of GPUs that runs of this host need.
    vendors: BTreeSet<Vendor>,
    slurm: bool,
    /// What the cells that are Jobs say of their clusters; with what their GPUs are called.
    kubernetes: BTreeSet<Cluster>,
}

/// A cluster, as kubectl is told of it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cluster {
    context: Option<String>,
    namespace: Option<String>,
    /// `None`: its cells need no GPU.
    resource: Option<String>,
}

impl Wanted {
    fn of(plan: &Plan) -> Self {
        let mut wanted = Self::default();
        let cells = plan.cells.with_ids();
        for prepared in cells.filter_map(|(cell, _)| plan.prepared(cell)) {
            let (execution, vendor) = (&prepared.resolved.execution, prepared.job().vendor);
            wanted.slurm |= execution.place == Place::Slurm;
            if execution.place == Place::Kubernetes {
                let settings = &execution.kubernetes;
                wanted.kubernetes.insert(Cluster {
                    context: settings.context.clone(),
                    namespace: settings.namespace.clone(),
                    resource: settings.resource_of(vendor),
                });
            }
            if execution.place == Place::Local {
                wanted.vendors.insert(vendor);
            }
            // Another host's cells ask nothing of this one.
            let is_started_here =
                execution.place != Place::Local || prepared.facts.here(prepared.job()).is_ok();
            if let Some(container) = execution.container.as_ref().filter(|_| is_started_here) {
                wanted.engines.insert(container.engine);
                wanted.in_containers.insert(vendor);
            }
        }
        wanted
    }
}

fn hardware(facts: &HostFacts, env: &BTreeMap<String, String>, wanted: &Wanted, page: &mut Page) {
    let cpu = &facts.cpu;
    let memory = cpu
        .memory_bytes
        .map(|bytes| format!(", {:.0} GiB", bytes as f64 / GIB));
    let cores = cpu.cores.map(|cores| format!(", {cores} cores"));
    let what = format!(
        "{}: {}{}{}",
        facts.hostname.as_deref().unwrap_or("?"),
        cpu.model.as_deref().unwrap_or("a CPU of unknown model"),
        cores.unwrap_or_default(),
        memory.unwrap_or_default()
    );
    page.add("host", State::Ok, what);
    let lock_dir = train_host::lock_dir(env);
    for lock in facts.device_locks(Vendor::Cpu) {
        if let Some(holder) = run::device_holder(&lock_dir, &lock) {
            let what = format!("the CPU is held by {}", run_of(holder));
            page.mend("devices", State::Problem, what, WHEN_FREE);
        }
    }
    // With a note, a driver is here and does not answer.
    if facts.nvd.is_empty() && facts.amd.is_empty() && facts.notes.is_empty() {
        let what = "no GPU is seen here: neither NVML nor /dev/kfd";
        page.add("devices", State::Absent, what);
    }
    for (vendor, gpus, is_silent) in [
        (Vendor::Nvd, &facts.nvd, !facts.notes.is_empty()),
        (Vendor::Amd, &facts.amd, false),
    ] {
        let uses = host::gpu_use(vendor);
        let openers = match gpus.is_empty() {
            true => Vec::new(),
            false => run::gpu_holders(),
        };
        let locks = facts.device_locks(vendor);
        for (index, (gpu, lock)) in gpus.iter().zip(&locks).enumerate() {
            let now = GpuNow {
                lock: run::device_holder(&lock_dir, lock),
                used: uses.get(index).cloned().unwrap_or_default(),
                openers: &openers,
                sees_all: host::sees_all_processes(),
            };
            page.0.push(gpu_finding(index, vendor, gpu, now));
        }
        if wanted.vendors.contains(&vendor) && gpus.is_empty() && !is_silent {
            without_driver(vendor, host::has_gpu_hardware(vendor), page);
        }
    }
    for note in &facts.notes {
        page.mend(
            "devices",
            State::Problem,
            note.clone(),
            "`nvidia-smi` shows the driver's own message; after an update of the driver, `sudo reboot` loads the new one",
        );
    }
}

fn in_project(asked: &Asked, session: Result<Session>, page: &mut Page) -> Result<()> {
    let session = match session {
        Ok(session) => session,
        Err(error) => {
            let check = asked.command("check", &[]);
            let help = format!("`{check}` shows every problem with its line");
            page.mend("project", State::Problem, error.to_string(), help);
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
    // What is so for several frameworks is said once.
    let mut said: IndexMap<(State, String), Vec<&str>> = IndexMap::new();
    let mut env = host.caller_env.clone();
    env.remove(host::PYTHONPATH); // no run has that of the caller's shell
    for framework in frameworks {
        for found in packages(plan, framework, &env) {
            said.entry(found).or_default().push(framework);
        }
    }
    for ((state, what), frameworks) in said {
        page.add(
            "python",
            state,
            format!("{}: {what}", frameworks.join(", ")),
        );
    }
    let is_here = |cell: &CellId| {
        let prepared = plan.prepared(*cell);
        prepared.is_some_and(|prepared| prepared.known().is_ok() && prepared.here().is_ok())
    };
    let here: Vec<CellId> = plan.cells.ids().filter(is_here).collect();
    let found = blocked::find(plan, &here, &host, ProbeDepth::AtFiles)?;
    for (problem, cells) in blocked::by_problem(&found) {
        let cells = blocked::names(plan, &cells);
        let what = format!("{} ({cells})", problem.message);
        let help = problem.help.clone().unwrap_or_default();
        page.mend("cells", State::Problem, what, help);
    }
    measurable(plan, here.len() - found.len(), page);
    Ok(())
}

/// What is known of the packages of a framework, without starting its interpreter.
fn packages(plan: &Plan, framework: &str, env: &BTreeMap<String, String>) -> Vec<(State, String)> {
    let mut found = Vec::new();
    let of_framework = |(cell, _): &(CellId, _)| *plan.matrix.cells[*cell].framework == *framework;
    let cells = plan.cells.with_ids().filter(of_framework);
    let (mut on_nodes, mut in_container, mut here) = (false, false, false);
    for execution in cells.filter_map(|(cell, _)| Some(&plan.prepared(cell)?.resolved.execution)) {
        match (execution.place, &execution.container) {
            (_, Some(_)) => in_container = true,
            (Place::Local, None) => here = true,
            (Place::Slurm | Place::Kubernetes | Place::Allocation, None) => on_nodes = true,
        }
    }
    let unchecked = |is_so: bool, what: &str| is_so.then(|| (State::Unchecked, what.to_owned()));
    found.extend(unchecked(
        in_container,
        "what its image holds is seen when a build starts it",
    ));
    found.extend(unchecked(
        on_nodes,
        "a run looks for its packages on its node",
    ));
    if !here {
        return found;
    }
    let python = plan.facts.python(framework);
    let modules = &plan.recipes.recipes[framework].file.require.python_modules;
    let (state, what) = match &host::absent_modules(python, env, modules) {
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
    found.push((state, format!("{}: {what}", python.display())));
    found
}

/// How many cells this host can measure, and what the others wait for.
fn measurable(plan: &Plan, count: usize, page: &mut Page) {
    let (mut unsupported, mut waiting) = (0, IndexMap::<String, usize>::new());
    for planned in &plan.cells {
        match &planned.support {
            Support::Unsupported(_) => unsupported += 1,
            Support::Ready(prepared) => {
                if let Err(why) = prepared.here() {
                    *waiting.entry(why.replace("; ", ", ")).or_default() += 1;
                }
            }
        }
    }
    let waiting = waiting
        .iter()
        .map(|(why, n)| format!("{}: {why}", counted(*n, "cell")));
    let mut parts: Vec<String> = waiting.collect();
    parts.extend((unsupported > 0).then(|| format!("{unsupported} are not supported")));
    let mut rest = match parts.is_empty() {
        true => String::new(),
        false => format!(". {}", parts.join("; ")),
    };
    if count > 0 && page.0.iter().any(|found| found.state == State::Unchecked) {
        rest.push_str("; what is marked with ? was not checked");
    }
    let all = plan.cells.len();
    let of_all = format!(
        "of {} can be measured on this host now{rest}",
        counted(all, "cell")
    );
    if count == 0 && all > 0 {
        let help = format!("`{}` says why for each", plan.command("plan", &[]));
        page.mend("cells", State::Absent, format!("none {of_all}"), help);
    } else {
        page.add("cells", State::Ok, format!("{count} {of_all}"));
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
        ..
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

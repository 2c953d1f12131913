//! GPUs: who uses them now, and what ends a process that a run left there.

use std::{collections::BTreeSet, fmt::Write as _, os::unix::fs::MetadataExt};

use serde::Serialize;

use super::{Finding, Page, State};
use crate::{
    cli::output::{confirmed, print},
    error::{Error, Result, exit},
    host::{self, GpuFacts, GpuUse},
    job::Vendor,
    logs::GIB,
    run::{self, GpuHolder, ProcessOwner},
    words::plain::counted,
};

/// Ends what runs of the caller's left on GPUs, and nothing else.
pub(super) fn free_gpus(is_sure: bool) -> Result<i32> {
    let holders = run::gpu_holders();
    let mut left: BTreeSet<&str> = BTreeSet::new();
    let mut text = String::new();
    for holder in &holders {
        let why = match &holder.whose {
            ProcessOwner::Leftover(run) => {
                left.insert(run);
                "left over, and nothing supervises its run any more"
            }
            ProcessOwner::Run(_) => "its run goes on, so it is left alone",
            ProcessOwner::Other => "not a run of yours, so it is left alone",
        };
        let devices: Vec<&str> = holder.devices.iter().map(String::as_str).collect();
        let (process, devices) = (HeldBy::of(holder, None).told(true), devices.join(", "));
        let _ = writeln!(text, "{process} holds {devices}: {why}");
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
    for run in left {
        let (ended, stayed) = run::end_leftovers(run);
        eprintln!(
            "run {run}: ended {}",
            processes(ended.saturating_sub(stayed))
        );
        survivors += stayed;
    }
    match survivors {
        0 => Ok(exit::OK),
        n => Err(Error::failed_with(
            format!("{} did not end, not even by SIGKILL", processes(n)),
            "they hang in the driver; a reset of the device, or of the host, ends them",
        )),
    }
}

fn processes(count: usize) -> String {
    format!(
        "{count} {}",
        if count == 1 { "process" } else { "processes" }
    )
}

/// A process that uses a GPU; what this user may not see of it is absent.
#[derive(Debug, Default, Serialize)]
pub(super) struct HeldBy {
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// When the process was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip)]
    since_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    /// The run of the caller's that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// Nothing supervises that run any more.
    is_left_over: bool,
}

/// Cells ask for GPUs of a vendor, and no driver shows one. `is_on_bus`: such a GPU sits in the host.
pub(super) fn without_driver(vendor: Vendor, is_on_bus: bool, page: &mut Page) {
    let name = vendor.devices();
    if !is_on_bus {
        page.add(
            "devices",
            State::Absent,
            format!(
                "the cells that need {name} wait for another host: this one has none on its PCI bus"
            ),
        );
        return;
    }
    let help = match vendor {
        Vendor::Amd => {
            "`sudo apt-get install -y amdgpu-dkms rocm-smi-lib && sudo modprobe amdgpu` installs and loads it (AMD's package source: \
             https://rocm.docs.amd.com); in a container, start that with --device=/dev/kfd --device=/dev/dri"
        }
        _ => {
            "`sudo apt-get install -y nvidia-driver && sudo modprobe nvidia` installs and loads it (Debian; on Ubuntu \
             `sudo ubuntu-drivers install`); in a container, start that with --gpus all"
        }
    };
    page.mend(
        "devices",
        State::Problem,
        format!("this host has {name} on its PCI bus, but their driver does not show them"),
        help,
    );
}

pub(super) const WHEN_FREE: &str =
    "it is free when that run ends; `tprimat status` and `tprimat stop` are for detached builds";

/// What is known of a GPU at this moment.
pub(super) struct GpuNow<'a> {
    /// The holder of its lock, if a run has it and said who it is.
    pub lock: Option<Option<run::Holder>>,
    pub used: GpuUse,
    /// The processes that have any GPU's device file open.
    pub openers: &'a [GpuHolder],
    /// Processes outside this container could be seen.
    pub sees_all: bool,
}

pub(super) fn gpu_finding(index: usize, vendor: Vendor, gpu: &GpuFacts, now: GpuNow) -> Finding {
    let gib = |bytes: u64| bytes as f64 / GIB;
    let memory = match (now.used.free_bytes, gpu.memory_bytes) {
        (Some(free), Some(all)) => {
            format!(", {:.0} of {:.0} GiB are free", gib(free), gib(all))
        }
        (_, Some(all)) => format!(", {:.0} GiB", gib(all)),
        _ => String::new(),
    };
    let driver = gpu.driver.as_deref();
    let driver = driver.map_or_else(String::new, |driver| format!(", driver {driver}"));
    let model = gpu.name.as_deref().unwrap_or("unknown model");
    let name = format!("GPU {index}: {model}{memory}{driver}");

    let (holders, openers) = users_of(&now);
    let lock_run = now.lock.as_ref().and_then(|holder| holder.as_ref());
    let lock_run = lock_run.map(|holder| holder.run_id.clone());
    // The processes of the run that holds the lock are named by their run.
    let strangers: Vec<&HeldBy> = holders
        .iter()
        .filter(|held| held.run.is_none() || held.run != lock_run)
        .collect();
    let named = |all: &[&HeldBy]| {
        let all: Vec<String> = all.iter().map(|held| held.told(now.sees_all)).collect();
        all.join(", ")
    };
    let mut said = Vec::new();
    let is_locked = now.lock.is_some();
    said.extend(now.lock.map(|holder| format!("held by {}", run_of(holder))));
    if !strangers.is_empty() {
        said.push(format!("used by {}", named(&strangers)));
    }
    let (state, said) = if !said.is_empty() {
        (State::Problem, said.join("; "))
    } else if !openers.is_empty() {
        let named = named(&openers.iter().collect::<Vec<_>>());
        let open = format!("no process uses it, but its device file is open in {named}");
        (State::Ok, open)
    } else {
        let (state, said) = match (&now.used.processes, now.sees_all) {
            (None, _) => (
                State::Unchecked,
                "whether a process uses it is unknown: its driver does not list them",
            ),
            (_, false) => (
                State::Ok,
                "no process is seen on it from inside this container",
            ),
            (_, true) => (State::Ok, "free"),
        };
        (state, said.to_owned())
    };
    let help = if strangers.iter().any(|held| held.is_left_over) {
        Some("`tprimat doctor --free-gpus` ends what your runs left behind".to_owned())
    } else if !strangers.is_empty() {
        let variable = host::visibility(vendor).last().copied().unwrap_or_default();
        Some(format!(
            "a run beside another process is suspect and does not count: wait until it ends, or leave this GPU out with {variable}"
        ))
    } else {
        is_locked.then(|| WHEN_FREE.to_owned())
    };
    Finding {
        topic: "devices",
        state,
        what: format!("{name}: {said}"),
        help,
        holders,
        free_memory_bytes: now.used.free_bytes,
    }
}

/// The processes that use a GPU, and others that only have its device file open, as services that
/// watch GPUs do.
fn users_of(now: &GpuNow) -> (Vec<HeldBy>, Vec<HeldBy>) {
    let listed = now.used.processes.as_deref().unwrap_or_default();
    let pids: Vec<u32> = listed.iter().map(|process| process.pid).collect();
    let mut holders: Vec<HeldBy> = listed
        .iter()
        .zip(run::gpu_processes(&pids))
        // One that is not there has just ended; in a container, its number is of the host.
        .filter(|(process, _)| !now.sees_all || exists(process.pid))
        .map(|(process, seen)| match now.sees_all {
            true => HeldBy::of(&seen, process.memory_bytes),
            // Here that number may be another process's.
            false => HeldBy::numbered(process.pid, process.memory_bytes),
        })
        .collect();
    let file = now.used.device_file.as_ref();
    let file = file.map(|path| path.display().to_string());
    let mut openers = Vec::new();
    for opener in now.openers {
        let is_open = file.as_ref().is_some_and(|it| opener.devices.contains(it));
        if !is_open || pids.contains(&opener.pid) {
            continue;
        }
        // A run may have opened it and not begun to compute. Where the driver lists nobody, an open
        // file is all that tells.
        let uses = opener.whose != ProcessOwner::Other || now.used.processes.is_none();
        let held = HeldBy::of(opener, None);
        if uses {
            holders.push(held);
        } else {
            openers.push(held);
        }
    }
    (holders, openers)
}

/// Also one of another user, which may be hidden in /proc.
fn exists(pid: u32) -> bool {
    use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
    i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

impl HeldBy {
    fn of(seen: &GpuHolder, memory_bytes: Option<u64>) -> Self {
        let (run, is_left_over) = match &seen.whose {
            ProcessOwner::Leftover(run) => (Some(run.clone()), true),
            ProcessOwner::Run(run) => (Some(run.clone()), false),
            ProcessOwner::Other => (None, false),
        };
        let since = seen.since;
        let since = since.and_then(|at| jiff::Timestamp::from_second(at as i64).ok());
        Self {
            pid: seen.pid,
            program: Some(seen.name.clone()).filter(|name| !name.is_empty()),
            user: user_name(seen.pid),
            since: since.map(|at| at.to_string()),
            since_seconds: seen.since,
            memory_bytes,
            run,
            is_left_over,
        }
    }

    /// One of which no more is known.
    fn numbered(pid: u32, memory_bytes: Option<u64>) -> Self {
        Self {
            pid,
            memory_bytes,
            ..Self::default()
        }
    }

    /// `process 4711 (python3, user anna, since 2026-03-01 09:15, 61 GiB)`.
    fn told(&self, sees_all: bool) -> String {
        let mut parts: Vec<String> = self.program.iter().cloned().collect();
        parts.extend(self.user.iter().map(|user| format!("user {user}")));
        parts.extend(
            self.since_seconds
                .map(|at| format!("since {}", at_minute(at))),
        );
        let memory = self.memory_bytes.map(|bytes| bytes as f64 / GIB);
        parts.extend(memory.map(|gib| format!("{gib:.1} GiB")));
        parts.extend(self.run.iter().map(|run| match self.is_left_over {
            true => format!("left over from run {run}"),
            false => format!("run {run}"),
        }));
        if self.program.is_none() && !sees_all {
            parts.push("outside this container".to_owned());
        }
        match parts.is_empty() {
            true => format!("process {}", self.pid),
            false => format!("process {} ({})", self.pid, parts.join(", ")),
        }
    }
}

/// A time as the caller's clock shows it.
fn at_minute(seconds: f64) -> String {
    let at = jiff::Timestamp::from_second(seconds as i64).unwrap_or_default();
    let here = at.to_zoned(jiff::tz::TimeZone::system());
    here.strftime("%Y-%m-%d %H:%M").to_string()
}

pub(super) fn run_of(holder: Option<run::Holder>) -> String {
    holder.map_or_else(
        || "a run".to_owned(),
        |h| format!("run {} (process {}, {})", h.run_id, h.pid, user_of(h.pid)),
    )
}

fn user_of(pid: u32) -> String {
    user_name(pid).map_or_else(
        || "an unknown user".to_owned(),
        |user| format!("user {user}"),
    )
}

/// By number where the host does not know the name, as in a container.
fn user_name(pid: u32) -> Option<String> {
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    Some(user.map_or_else(|| uid.to_string(), |user| user.name))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::{host::GpuProcess, mock};

    fn sleeper() -> Child {
        mock::running(Command::new("sleep").arg("60"))
    }

    fn finding(used: GpuUse, openers: &[GpuHolder], sees_all: bool) -> Finding {
        let gpu = GpuFacts {
            name: Some("H200".into()),
            memory_bytes: Some(140 << 30),
            ..GpuFacts::default()
        };
        let now = GpuNow {
            lock: None,
            used,
            openers,
            sees_all,
        };
        gpu_finding(0, Vendor::Nvd, &gpu, now)
    }

    fn used(processes: Option<Vec<GpuProcess>>) -> GpuUse {
        GpuUse {
            free_bytes: Some(80 << 30),
            processes,
            device_file: Some("/dev/nvidia0".into()),
        }
    }

    #[test]
    fn a_gpu_is_free_only_where_no_process_has_it() {
        let mut other = sleeper();
        let one = GpuProcess {
            pid: other.id(),
            memory_bytes: Some(60 << 30),
        };
        let taken = finding(used(Some(vec![one])), &[], true);
        assert_eq!(taken.state, State::Problem);
        let words = format!(
            "80 of 140 GiB are free: used by process {} (sleep, user ",
            other.id()
        );
        assert!(taken.what.contains(&words), "{}", taken.what);
        assert!(
            taken.what.contains(", since 2") && taken.what.ends_with(", 60.0 GiB)"),
            "{}",
            taken.what
        );
        let help = taken.help.as_deref().unwrap_or_default();
        assert!(help.contains("CUDA_VISIBLE_DEVICES"), "{help}");
        let json = serde_json::to_value(&taken).unwrap();
        assert_eq!(json["holders"][0]["pid"], other.id());
        assert_eq!(json["holders"][0]["program"], "sleep");
        assert_eq!(json["free_memory_bytes"], 80_u64 << 30);
        other.kill().unwrap();
        other.wait().unwrap();
        let gone = GpuProcess {
            pid: other.id(),
            memory_bytes: None,
        };
        let free = finding(used(Some(vec![gone])), &[], true);
        assert!(free.what.ends_with(": free"), "{}", free.what);
        assert_eq!(free.state, State::Ok);
    }

    #[test]
    fn what_is_not_known_of_a_gpu_is_not_called_free() {
        let unknown = finding(used(None), &[], true);
        assert_eq!(unknown.state, State::Unchecked);
        assert!(!unknown.what.contains(": free"), "{}", unknown.what);
        let inside = finding(used(Some(Vec::new())), &[], false);
        assert!(
            inside.what.ends_with("from inside this container"),
            "{}",
            inside.what
        );
        // A number of the host, which this process cannot look up.
        let hidden = GpuProcess {
            pid: u32::MAX,
            memory_bytes: None,
        };
        let outside = finding(used(Some(vec![hidden])), &[], false);
        assert!(
            outside.what.ends_with("(outside this container)"),
            "{}",
            outside.what
        );
    }

    #[test]
    fn a_service_that_only_has_the_device_file_open_is_named_and_does_not_use_it() {
        let opener = |whose| GpuHolder {
            pid: std::process::id(),
            name: "persistenced".into(),
            devices: ["/dev/nvidia0".to_owned()].into(),
            whose,
            since: None,
        };
        let service = [opener(ProcessOwner::Other)];
        let open = finding(used(Some(Vec::new())), &service, true);
        assert_eq!((open.state, open.help.as_deref()), (State::Ok, None));
        assert!(
            open.what.contains("device file is open in process") && !open.what.contains(": free"),
            "{}",
            open.what
        );
        // Where the driver lists nobody, the open file is all that tells.
        let unlisted = finding(used(None), &service, true);
        assert_eq!(unlisted.state, State::Problem);
        let left = [opener(ProcessOwner::Leftover("r1".into()))];
        let left = finding(used(Some(Vec::new())), &left, true);
        assert!(left.what.contains("left over from run r1"), "{}", left.what);
        let help = left.help.as_deref().unwrap_or_default();
        assert!(help.contains("doctor --free-gpus"), "{help}");
    }

    #[test]
    fn a_gpu_without_a_driver_gets_the_command_that_installs_it() {
        for (vendor, command) in [
            (Vendor::Nvd, "nvidia-driver"),
            (Vendor::Amd, "modprobe amdgpu"),
        ] {
            let mut page = Page::default();
            without_driver(vendor, true, &mut page);
            let help = page.0[0].help.as_deref().unwrap_or_default();
            assert!(help.contains(command), "{help}");
            without_driver(vendor, false, &mut page);
            assert_eq!((page.0[1].state, &page.0[1].help), (State::Absent, &None));
        }
    }
}

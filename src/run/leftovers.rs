//! Processes that hold a GPU, and which of them a run left behind. It looks at the device files
//! that processes have open, so it needs no driver's tool, and sees of other users nothing but as
//! root.

use std::{collections::BTreeSet, fs, os::unix::ffi::OsStrExt, path::Path, time::Duration};

use super::{
    process::{RUN_ID_VARIABLE, Tree, pids, run_of, started_at, whole_run},
    spec::RUN_ARGUMENT,
};
use crate::files::is_own_entry;

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// A process that has a GPU open.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuHolder {
    pub pid: u32,
    pub name: String,
    /// Device files: `/dev/nvidia0`, `/dev/dri/renderD128`.
    pub devices: BTreeSet<String>,
    pub whose: ProcessOwner,
    /// When it was started, in seconds since 1970.
    pub since: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessOwner {
    /// A run of the caller's that no supervisor watches any more, by its id: nobody waits for it.
    Leftover(String),
    /// A run that goes on.
    Run(String),
    /// Another user's, or no run of tprimat's.
    Other,
}

/// The processes that hold a GPU of this host, as far as the caller may see them.
#[must_use]
pub fn gpu_holders() -> Vec<GpuHolder> {
    holders_of(is_gpu)
}

/// The processes that a driver lists, in the same order. Of a process that cannot be seen from here
/// no more than its number is known.
#[must_use]
pub fn gpu_processes(pids: &[u32]) -> Vec<GpuHolder> {
    let supervised = supervised();
    let holder = |pid: &u32| holder(*pid, BTreeSet::new(), &supervised);
    pids.iter().map(holder).collect()
}

fn holder(pid: u32, devices: BTreeSet<String>, supervised: &BTreeSet<String>) -> GpuHolder {
    // A driver may name a process by a number that none has here.
    let here = i32::try_from(pid).unwrap_or(0);
    // Empty where the process cannot be seen.
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    GpuHolder {
        pid,
        name: name.trim_end().to_owned(),
        devices,
        whose: whose(here, supervised),
        since: started_at(here),
    }
}

/// Ends all processes of a run that nothing supervises; how many there were, and how many would not
/// end. A supervisor that has come meanwhile keeps them all.
#[must_use]
pub fn end_leftovers(run_id: &str) -> (usize, usize) {
    if supervised().contains(whole_run(run_id)) {
        return (0, 0);
    }
    let ended = Tree::marked(run_id).end(GRACE, &mut || false);
    (ended.count, ended.survivors)
}

fn is_gpu(file: &Path) -> bool {
    let Some(name) = file.strip_prefix("/dev").ok().and_then(Path::to_str) else {
        return false;
    };
    let number = name
        .strip_prefix("nvidia")
        .or_else(|| name.strip_prefix("dri/renderD"));
    name == "kfd" || number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

fn holders_of(is_device: impl Fn(&Path) -> bool) -> Vec<GpuHolder> {
    let supervised = supervised();
    let mut found: Vec<GpuHolder> = pids()
        .filter_map(|pid| {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
            let targets = open.filter_map(|file| fs::read_link(file.path()).ok());
            let devices: BTreeSet<String> = targets
                .filter(|path| is_device(path))
                .map(|path| path.display().to_string())
                .collect();
            (!devices.is_empty()).then(|| holder(pid.cast_unsigned(), devices, &supervised))
        })
        .collect();
    found.sort_by_key(|holder| holder.pid);
    found
}

fn whose(pid: i32, supervised: &BTreeSet<String>) -> ProcessOwner {
    // Root could read, and end, what others run.
    let is_own = fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| is_own_entry(&found));
    match run_of(pid).filter(|run| is_own && !run.is_empty()) {
        Some(run) if supervised.contains(whole_run(&run)) => ProcessOwner::Run(run),
        Some(run) => ProcessOwner::Leftover(run),
        None => ProcessOwner::Other,
    }
}

/// The runs that a supervisor on this host watches, whoever's they are: `tprimat __run …/runs/ID`. And the
/// run that this process belongs to, whose supervisor may be outside of the container.
fn supervised() -> BTreeSet<String> {
    let own = std::env::var(RUN_ID_VARIABLE).ok();
    let mut runs: BTreeSet<String> = own.iter().map(|run| whole_run(run).to_owned()).collect();
    for pid in pids() {
        let Ok(words) = fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let mut words = words.split(|&b| b == 0);
        if words.any(|word| word == RUN_ARGUMENT.as_bytes())
            && let Some(folder) = words.next()
            && let Some(run) = Path::new(std::ffi::OsStr::from_bytes(folder)).file_name()
        {
            runs.insert(run.to_string_lossy().into_owned());
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::files;

    #[test]
    fn device_files_of_both_vendors_are_gpus_and_their_control_files_are_not() {
        for (path, is) in [
            ("/dev/nvidia0", true),
            ("/dev/nvidia15", true),
            ("/dev/nvidiactl", false),
            ("/dev/nvidia-uvm", false),
            ("/dev/kfd", true),
            ("/dev/dri/renderD128", true),
            ("/dev/dri/card0", false),
            ("/tmp/nvidia0", false),
        ] {
            assert_eq!(is_gpu(Path::new(path)), is, "{path}");
        }
    }

    /// A process of a run that has a file open, which stands in for a device.
    fn holder(device: &Path, run: Option<&str>) -> Child {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(fs::File::open(device).unwrap());
        match run {
            Some(run) => command.env(RUN_ID_VARIABLE, run),
            None => command.env_remove(RUN_ID_VARIABLE),
        };
        command.spawn().expect("sleep exists")
    }

    #[test]
    fn only_what_a_run_left_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("device");
        files::write_atomically(&device, b"", files::Durability::Plain).unwrap();
        let id = |name: &str| format!("leftovers-{name}-{}", std::process::id());
        let (gone, live) = (id("gone"), id("live"));
        let mut left = holder(&device, Some(&gone));
        let mut stranger = holder(&device, None);
        let mut trainer = holder(&device, Some(&live));
        // A shell in the place of that run's supervisor.
        let supervisor = [
            "-c",
            "sleep 60; :",
            RUN_ARGUMENT,
            &format!("/cache/runs/{live}"),
        ];
        let mut supervisor = Command::new("sh").args(supervisor).spawn().unwrap();
        // Its command line is there once it was executed.
        while !supervised().contains(&live) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let now = files::unix_now();
        let listed = gpu_processes(&[left.id(), u32::MAX]);
        assert_eq!(
            listed[0].whose,
            ProcessOwner::Leftover(gone.clone()),
            "{listed:?}"
        );
        let age = now - listed[0].since.unwrap();
        assert!((-1.0..60.0).contains(&age), "it was started {age} s ago");
        assert_eq!((listed[1].name.as_str(), listed[1].since), ("", None));
        let of = |child: &Child| {
            let found = holders_of(|path| path == device)
                .into_iter()
                .find(|holder| holder.pid == child.id());
            found.map(|holder| (holder.name, holder.devices.len(), holder.whose))
        };
        let named = |whose| Some(("sleep".to_owned(), 1, whose));
        assert_eq!(of(&left), named(ProcessOwner::Leftover(gone.clone())));
        assert_eq!(of(&stranger), named(ProcessOwner::Other));
        assert_eq!(of(&trainer), named(ProcessOwner::Run(live.clone())));
        assert_eq!(end_leftovers(&live), (0, 0));
        assert_eq!(end_leftovers(&gone), (1, 0));
        assert!(!left.wait().unwrap().success());
        assert_eq!(
            (stranger.try_wait().unwrap(), trainer.try_wait().unwrap()),
            (None, None)
        );
        for child in [&mut stranger, &mut trainer, &mut supervisor] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

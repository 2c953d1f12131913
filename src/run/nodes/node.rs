//! The half of a run on several nodes that is on each node: a supervisor which srun started.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::{Error, Result},
    files::{self, Durability},
    run::{
        folder::{if_there, read_if_there, read_spec_with, write_exit},
        inbox::{receive_environment, settle_down},
        process::part_of_run,
        slurm,
        spec::{ExitKind, RunExit, RunSpec, TELEMETRY, hostname, never_ran},
        supervisor::Supervisor,
    },
};

/// The last word of `tprimat __run DIR node`, the supervisor of one node of the run in DIR.
pub(crate) const NODE: &str = "node";

const READY: &str = "ready.json";

/// Between two looks whether the conductor still needs this node.
const LINGER: Duration = Duration::from_secs(1);

/// Where a node answers the conductor.
pub(super) fn answers_of(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("node-{node}"))
}

/// Where the log of a node is: that of node 0 is the run's own.
pub(super) fn folder_of(dir: &Path, node: usize) -> PathBuf {
    match node {
        0 => dir.to_owned(),
        _ => answers_of(dir, node),
    }
}

/// A file that a node left beside those of node 0, and its name among an attempt's outputs.
pub(crate) struct NodeFile {
    pub node: usize,
    pub name: String,
    pub path: PathBuf,
}

/// Logs and samples of each node of a run of several, as far as they are there.
pub(crate) fn files_of(dir: &Path, nodes: usize) -> Result<(Vec<NodeFile>, Vec<NodeFile>)> {
    let (mut logs, mut samples) = (Vec::new(), Vec::new());
    for node in (0..nodes).filter(|_| nodes > 1) {
        let log = folder_of(dir, node).join("log");
        if node > 0 && is_regular(&log)? {
            let name = format!("log.node-{node}");
            let path = log;
            logs.push(NodeFile { node, name, path });
        }
        // Not the run's: it is of one node's devices.
        let path = answers_of(dir, node).join(TELEMETRY);
        if is_regular(&path)? {
            let name = format!("telemetry.node-{node}.jsonl");
            samples.push(NodeFile { node, name, path });
        }
    }
    Ok((logs, samples))
}

/// A folder may have come with somebody's project, so nothing is followed through links.
fn is_regular(path: &Path) -> Result<bool> {
    let found = if_there(path, std::fs::symlink_metadata(path))?;
    let is_own = files::is_own(path) && path.parent().is_some_and(files::is_own);
    Ok(is_own && found.is_some_and(|found| found.is_file()))
}

/// Where the others find a node, and a port that was free there just now. A node says it when it is what
/// the run's key says, and then waits for the others.
pub(super) type Ready = (String, u16);

pub(super) fn read_ready(answers: &Path) -> Option<Ready> {
    let text = read_if_there(&answers.join(READY)).ok()??;
    serde_json::from_slice(&text).ok()
}

fn say_ready(name: &str, answers: &Path) -> Result<()> {
    let bound = TcpListener::bind(("0.0.0.0", 0)).and_then(|bound| bound.local_addr());
    let bound = bound.map_err(Error::io("cannot find a free port on", "0.0.0.0"))?;
    let address = hostname().unwrap_or_else(|| name.to_owned());
    let text = serde_json::to_vec(&(address, bound.port())).unwrap_or_default();
    files::write_atomically(&answers.join(READY), &text, Durability::Plain)
}

/// The supervisor of one node of a run, which srun started for the run's conductor.
pub(crate) fn supervise(dir: &Path) -> Result<()> {
    let number = std::env::var("SLURM_NODEID").ok();
    let number = number.and_then(|number| number.parse::<usize>().ok());
    let (Some(number), true) = (number, slurm::is_of_this_job(dir)) else {
        return Err(Error::failed(
            "only tprimat itself starts the supervisor of a node, within a Slurm job",
        ));
    };
    let inbox = settle_down(true)?;
    let env = receive_environment().map_err(Error::io("cannot receive the environment of", dir))?;
    let spec = read_spec_with(dir, env)?;
    let telemetry = match spec.nodes() {
        1 => dir.join(TELEMETRY),
        _ => answers_of(dir, number).join(TELEMETRY),
    };
    let spec = RunSpec {
        // Each node ends its own processes, also where two nodes are one host.
        run_id: part_of_run(&spec.run_id, number),
        dir: folder_of(dir, number),
        ..spec
    };
    let mut supervisor = Supervisor::new(spec, inbox, telemetry);
    let name = std::env::var("SLURMD_NODENAME").ok().or_else(hostname);
    let name = name.unwrap_or_else(|| "this node".into());
    // The other nodes wait for this one, so it says whatever keeps it from running.
    let exit = measure(&mut supervisor, dir, number, &name)
        .unwrap_or_else(|why| never_ran(ExitKind::LaunchFailed(why), 0.0));
    let host = Some(name);
    write_exit(&answers_of(dir, number), &RunExit { host, ..exit })?;
    // srun takes a supervisor that goes before the conductor lets it go for one that died.
    while !supervisor.inbox.stop() {
        supervisor.inbox.wait(LINGER);
    }
    Ok(())
}

/// The part of the run in `dir` that this node has; in words why it cannot run here.
fn measure(
    supervisor: &mut Supervisor,
    dir: &Path,
    number: usize,
    name: &str,
) -> Result<RunExit, String> {
    let note = slurm::settle_in(&mut supervisor.spec)?;
    supervisor.notes.extend(note);
    say_ready(name, &answers_of(dir, number)).map_err(|error| format!("{name}: {error}"))?;
    // The lifeline's end: another node cannot run, or the run is no longer wanted.
    let Ok(meeting) = receive_environment() else {
        return Ok(never_ran(ExitKind::Interrupted, 0.0));
    };
    let spec = &mut supervisor.spec;
    let rank = spec.rank_of(number).to_string();
    spec.env.extend(meeting);
    spec.env.insert("TPRIMAT_NODE_RANK".into(), rank);
    // Two nodes of one host: the first one holds the host's cores for all of the run.
    let first = read_ready(&answers_of(dir, 0)).map(|(address, _)| address);
    if number > 0 && first.is_some() && first == hostname() {
        spec.devices.retain(|device| device != "cpu");
    }
    Ok(supervisor.measure())
}

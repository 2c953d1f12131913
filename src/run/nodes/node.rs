//! The half of a run on several nodes that is on each node: a supervisor which srun or a pod started.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::{Error, Result},
    files::{self, Durability},
    run::{
        batch,
        folder::{
            LOG, answers_of, folder_of, is_own_file, note_host, read_if_there, read_spec_with,
            write_exit,
        },
        inbox::{receive_environment, settle_down},
        process::part_of_run,
        spec::{ExitKind, RunExit, RunSpec, TELEMETRY, hostname, never_ran},
        supervisor::{Supervisor, free_port},
    },
};

/// The last word of `tprimat __run DIR node`, the supervisor of one node of the run in DIR.
pub(crate) const NODE: &str = "node";

/// Which node it is, as srun says it.
pub(super) const NUMBER: &str = "SLURM_NODEID";
/// In a pod, where the others find it: not every cluster knows pods by their names.
const ADDRESS: &str = "TPRIMAT_ADDRESS";

const READY: &str = "ready.json";

/// Between two looks whether the conductor still needs this node.
const LINGER: Duration = Duration::from_secs(1);

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
        let path = folder_of(dir, node).join(LOG);
        if node > 0 && is_own_file(&path)? {
            let name = format!("log.node-{node}");
            logs.push(NodeFile { node, name, path });
        }
        // Not the run's: it is of one node's devices.
        let path = answers_of(dir, node).join(TELEMETRY);
        if is_own_file(&path)? {
            let name = format!("telemetry.node-{node}.jsonl");
            samples.push(NodeFile { node, name, path });
        }
    }
    Ok((logs, samples))
}

/// Where the others find a node, and a port that was free there just now. A node says it when it is what
/// the run's key says, and then waits for the others.
pub(super) type Ready = (String, u16);

pub(super) fn read_ready(answers: &Path) -> Option<Ready> {
    let text = read_if_there(&answers.join(READY)).ok()??;
    serde_json::from_slice(&text).ok()
}

pub(super) fn address() -> String {
    let told = std::env::var(ADDRESS).ok();
    told.or_else(hostname).unwrap_or_default()
}

fn say_ready(answers: &Path) -> Result<()> {
    let ready: Ready = (address(), free_port()?);
    let text = serde_json::to_vec(&ready).unwrap_or_default();
    files::write_atomically(&answers.join(READY), &text, Durability::Plain)
}

/// The number of the node that srun started this process on.
pub(crate) fn number() -> Result<usize> {
    let number = std::env::var(NUMBER).ok();
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| Error::failed("only srun starts the supervisor of a node"))
}

/// The supervisor of one node of a run, at the other end of whose standard input is the conductor.
/// `own`: the environment of a pod that has it already.
pub(crate) fn supervise(
    dir: &Path,
    number: usize,
    own: Option<&BTreeMap<String, String>>,
) -> Result<()> {
    let inbox = settle_down(true)?;
    let env = match own {
        Some(own) => own.clone(),
        None => {
            receive_environment().map_err(Error::io("cannot receive the environment of", dir))?
        }
    };
    let answers = answers_of(dir, number);
    // As Slurm names it.
    let host = std::env::var("SLURMD_NODENAME").ok().or_else(hostname);
    note_host(&folder_of(dir, number), host.as_deref());
    // The other nodes wait for this one, so it says whatever keeps it from running.
    let refused = |why: String| never_ran(ExitKind::LaunchFailed(why), 0.0);
    let (mut exit, mut inbox) = match read_spec_with(dir, env) {
        Err(why) => {
            let name = host.as_deref().unwrap_or("this node");
            (refused(format!("{name}: {why}")), inbox)
        }
        Ok(spec) => {
            let sampled = if spec.nodes() == 1 { dir } else { &answers };
            let spec = RunSpec {
                // Each node ends its own processes, also where two nodes are one host.
                run_id: part_of_run(&spec.run_id, number),
                dir: folder_of(dir, number),
                ..spec
            };
            let mut supervisor = Supervisor::new(spec, inbox, sampled.join(TELEMETRY));
            let exit = measure(&mut supervisor, dir, number).unwrap_or_else(refused);
            (exit, supervisor.inbox)
        }
    };
    // The log of node 0 is elsewhere, and the conductor says how long it is.
    (exit.host, exit.log_bytes) = (host, None);
    write_exit(&answers, &exit)?;
    // srun takes a supervisor that goes before the conductor lets it go for one that died.
    while !inbox.stop() {
        inbox.wait(LINGER);
    }
    Ok(())
}

/// The part of the run in `dir` that this node has; in words why it cannot run here.
fn measure(supervisor: &mut Supervisor, dir: &Path, number: usize) -> Result<RunExit, String> {
    batch::settle_in(&mut supervisor.spec)?;
    say_ready(&answers_of(dir, number)).map_err(|error| error.to_string())?;
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
    if number > 0 && first.is_some_and(|first| first == address()) {
        spec.devices.retain(|device| device != "cpu");
    }
    Ok(supervisor.measure())
}

//! The half of a run on several nodes that is on each node: a supervisor which srun started.

use std::{path::Path, time::Duration};

use super::{FIRST_NODE, folder_of, messages::Message, name_of_this_node, telemetry_of, this_node};
use crate::{
    error::{Error, Result},
    files,
    run::{
        folder::read_spec_with,
        inbox::{receive_environment, settle_down},
        process::part_of_run,
        slurm,
        spec::{RunSpec, TELEMETRY, hostname},
        supervisor::Supervisor,
    },
};

/// Between two looks whether the conductor still needs this node.
const LINGER: Duration = Duration::from_secs(1);

/// The supervisor of one node of a run, which srun started for the run's conductor.
pub(crate) fn supervise(dir: &Path) -> Result<()> {
    let (Some(number), true) = (this_node(), slurm::is_of_this_job(dir)) else {
        return Err(Error::Failed {
            message: "only tprimat itself starts the supervisor of a node, within a Slurm job"
                .into(),
            help: None,
        });
    };
    let name = name_of_this_node();
    // The other nodes wait for this one, so it says whatever keeps it from running.
    let mut supervisor = match prepare(dir, number, &name) {
        Ok(supervisor) => supervisor,
        Err(why) => {
            Message::Refused { name, why }.say(number);
            return Ok(());
        }
    };
    // The lifeline's end: another node cannot run, or the run is no longer wanted.
    let Ok(mut meeting) = receive_environment() else {
        return Ok(());
    };
    let first = meeting.remove(FIRST_NODE);
    let rank = supervisor.spec.rank_of(number).to_string();
    let env = &mut supervisor.spec.env;
    env.extend(meeting);
    env.insert("TPRIMAT_NODE_RANK".into(), rank);
    // Two nodes of one host: the first one holds the host's cores for all of the run.
    if number > 0 && first.is_some() && first == hostname() {
        supervisor.spec.devices.retain(|device| device != "cpu");
    }
    let exit = Box::new(supervisor.measure());
    Message::Ended { name, exit }.say(number);
    // srun takes a supervisor that goes before the conductor lets it go for one that died.
    while !supervisor.inbox.stop() {
        supervisor.inbox.wait(LINGER);
    }
    Ok(())
}

/// All that comes before the run's start, up to the word that this node is ready; in words why it
/// cannot run there.
fn prepare(dir: &Path, number: usize, name: &str) -> Result<Supervisor, String> {
    let here = |error: Error| format!("{name}: {error}");
    let inbox = settle_down(true).map_err(here)?;
    let env = receive_environment()
        .map_err(|e| here(Error::io("cannot receive the environment of", dir)(e)))?;
    let spec = read_spec_with(dir, env).map_err(here)?;
    let spec = RunSpec {
        // Each node ends its own processes, also where two nodes are one host.
        run_id: part_of_run(&spec.run_id, number),
        dir: folder_of(dir, number),
        ..spec
    };
    files::create_dir_all(&spec.dir).map_err(here)?;
    let telemetry = if spec.nodes() > 1 {
        telemetry_of(dir, number)
    } else {
        spec.dir.join(TELEMETRY)
    };
    let mut supervisor = Supervisor::new(spec, inbox, telemetry);
    let note = slurm::settle_in(&mut supervisor.spec)?;
    supervisor.notes.extend(note);
    Message::ready(name).map_err(here)?.say(number);
    Ok(supervisor)
}

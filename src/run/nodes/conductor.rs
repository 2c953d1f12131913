//! The half of a run on several nodes that starts srun, and makes one end of the nodes' ends.

use std::{
    collections::BTreeMap,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
    unistd::Pid,
};

use super::{
    node::{NODE, answers_of},
    seen::{PATIENCE, Seen},
};
use crate::{
    error::Result,
    files::{self, Durability},
    host::which,
    job::Vendor,
    results::TELEMETRY_SCHEMA,
    run::{
        inbox::{Inbox, frame},
        slurm,
        spec::{ExitKind, RUN_ARGUMENT, RunExit, RunSpec, TELEMETRY, never_ran},
    },
};

/// How often the folders of the nodes are looked at, which may be on a network file system.
const LOOK: Duration = Duration::from_millis(500);

/// What a node's supervisor may take beyond the run's grace to end its part and to say how it
/// ended.
const MARGIN: Duration = Duration::from_secs(30);

/// Variables by which a caller's environment changes what srun does with its streams or with a lost
/// node, or takes our command for something else. srun has no options that undo all of them.
const NOT_FOR_SRUN: [&str; 5] = [
    "SLURM_NO_KILL",
    "SLURM_SRUN_MULTI",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
];

/// Sees a run through that has a supervisor on each of its nodes.
pub(crate) fn conduct(spec: &RunSpec, inbox: &mut Inbox) -> RunExit {
    let caller: BTreeMap<String, String> = std::env::vars().collect();
    // By its path, which nodes have as well. Where this process is from another file than is there
    // now, the kernel would name none.
    let tprimat = std::env::args_os().next().unwrap_or_default();
    which("srun", &caller)
        .ok_or_else(|| "there is no srun in PATH".to_owned())
        .and_then(|srun| start(spec, &srun, Path::new(&tprimat)))
        .map(|srun| see_through(spec, srun, inbox, PATIENCE))
        .unwrap_or_else(|why| never_ran(ExitKind::LaunchFailed(why), 0.0))
}

/// Power and energy are of all devices of a run, or of none. The nodes' own files are kept beside
/// the log, and judged for what disturbed the run.
fn tell_of_telemetry(spec: &RunSpec) -> Result<()> {
    let nodes = spec.nodes();
    if nodes == 1 || spec.sampled.is_none_or(|vendor| vendor == Vendor::Cpu) {
        return Ok(());
    }
    let why = format!(
        "the run had {nodes} nodes, whose samples are kept one file a node and are not added up"
    );
    let header = serde_json::json!({
        "schema": TELEMETRY_SCHEMA, "source": "none", "interval_seconds": 1.0, "devices": [], "unavailable": why
    });
    let path = spec.dir.join(TELEMETRY);
    files::write_atomically(&path, format!("{header}\n").as_bytes(), Durability::Plain)
}

/// Starts a supervisor on each node; in words why not, if not.
fn start(spec: &RunSpec, srun: &Path, tprimat: &Path) -> Result<Child, String> {
    // Made here, before anybody looks for them: a client of a network file system remembers for a
    // while what it did not find.
    let folders: Vec<PathBuf> = (0..spec.nodes())
        .map(|n| answers_of(&spec.dir, n))
        .collect();
    folders
        .iter()
        .try_for_each(|folder| files::create_dir_all(folder))
        .and_then(|()| tell_of_telemetry(spec))
        .map_err(|error| error.to_string())?;
    let mut command = Command::new(srun);
    command
        .args(arguments(spec))
        .arg(tprimat)
        .arg(RUN_ARGUMENT)
        .arg(&spec.dir)
        .arg(NODE)
        .stdin(Stdio::piped())
        // What srun and the supervisors complain of goes to supervisor.log, as this process's own.
        .stdout(Stdio::null())
        // A terminal's Ctrl-C is ours to pass on.
        .process_group(0);
    for name in NOT_FOR_SRUN {
        command.env_remove(name);
    }
    let unblock = || {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call and allocates nothing.
    unsafe { command.pre_exec(unblock) };
    let mut srun = command
        .spawn()
        .map_err(|e| format!("cannot start srun: {e}"))?;
    send(srun.stdin.as_mut(), &spec.env);
    Ok(srun)
}

/// Tells it to all nodes. One that is gone is missed at its end.
fn send(lifeline: Option<&mut ChildStdin>, variables: &BTreeMap<String, String>) {
    if let Some(lifeline) = lifeline {
        let _ = frame(variables).and_then(|frame| lifeline.write_all(&frame));
    }
}

fn see_through(spec: &RunSpec, mut srun: Child, inbox: &mut Inbox, patience: Duration) -> RunExit {
    let nodes = spec.nodes();
    let mut seen = Seen::default();
    // When srun ended, and whether all supervisors did so well.
    let mut over: Option<(Instant, bool)> = None;
    let mut is_forced = false;
    loop {
        inbox.wait(LOOK);
        // Looked at before the folders: what was written before srun's end is then seen.
        if over.is_none()
            && let Some(ended) = srun.try_wait().transpose()
        {
            let ended_well = ended.is_ok_and(|status| status.success());
            over = Some((Instant::now(), ended_well));
        }
        seen.look(spec);
        seen.was_asked |= inbox.stop();
        if let Some((since, ended_well)) = over {
            // A network file system may show late what was written before.
            let is_late = since.elapsed() >= slurm::patience(ended_well);
            if seen.ends.len() == nodes || is_late || inbox.is_in_a_hurry() {
                return seen.exit(spec, patience);
            }
            continue;
        }
        if srun.stdin.is_some() && seen.can_begin(nodes) {
            // They meet at the node of rank 0.
            let (address, port) = seen.ready[&spec.rank_of(0)].clone();
            seen.begin();
            send(
                srun.stdin.as_mut(),
                &BTreeMap::from([
                    ("TPRIMAT_MASTER_ADDR".to_owned(), address),
                    ("TPRIMAT_PORT".to_owned(), port.to_string()),
                ]),
            );
        }
        if inbox.is_in_a_hurry() && !is_forced {
            is_forced = true;
            // srun then ends its step without grace.
            let pid = Pid::from_raw(srun.id().cast_signed());
            let _ = kill(pid, Signal::SIGTERM);
        }
        if seen.is_no_longer_needed(nodes, patience) {
            drop(srun.stdin.take());
        }
    }
}

fn arguments(spec: &RunSpec) -> Vec<String> {
    let nodes = spec.nodes();
    let mut arguments = vec![
        format!("--nodes={nodes}"),
        format!("--ntasks={nodes}"),
        "--ntasks-per-node=1".into(),
        format!("--job-name=tprimat-{}", spec.run_id),
        format!("--chdir={}", spec.dir.display()),
        // Each supervisor ends its part of the run, says how that ended, and waits until the
        // conductor lets all of them go. One that goes before that has died: srun gives the others
        // time to fail in their own words and to end their parts, then it ends the step.
        "--kill-on-bad-exit=0".into(),
        format!("--wait={}", (PATIENCE + spec.grace() + MARGIN).as_secs()),
        "--input=all".into(),
        "--mpi=none".into(),
        "--cpu-bind=none".into(),
    ];
    let Some(job) = &spec.job else {
        return arguments;
    };
    if job.is_step && job.settings.max_jobs.is_some_and(|most| most > 1) {
        arguments.push("--exact".into());
        let gpus = (job.vendor != Vendor::Cpu).then(|| format!("--gres=gpu:{}", job.num_gpus));
        arguments.extend(gpus);
    } else if job.is_step {
        // Beside the step that tprimat itself may be in.
        arguments.push("--overlap".into());
    }
    let cpus = job.settings.cpus;
    arguments.extend(cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{mock, recipe::Nodes, run::spec::JobSpec};

    const SOON: Duration = Duration::from_millis(200);

    /// Writes what a node says into its folder, as its supervisor does.
    fn says(node: usize, file: &str, text: &str) -> String {
        format!("echo '{text}' > node-{node}/.new; mv node-{node}/.new node-{node}/{file}\n")
    }

    fn ready(node: usize) -> String {
        let port = node + 1;
        let text = format!(r#"["host{node}",{port}]"#);
        says(node, "ready.json", &text)
    }

    fn ended(node: usize, status: ExitKind) -> String {
        let exit = serde_json::to_string(&never_ran(status, 0.0)).unwrap();
        says(node, "exit.json", &exit)
    }

    /// The end of a run of two nodes whose srun is this script.
    fn conducted(script: &str) -> RunExit {
        let folder = tempfile::tempdir().unwrap();
        conducted_in(folder.path(), Nodes::FirstRankSpeaks, script)
    }

    fn conducted_in(folder: &Path, ranks: Nodes, script: &str) -> RunExit {
        let srun = folder.join("srun");
        mock::program(
            &srun,
            format!("#!/bin/sh\ncd '{}'\n{script}", folder.display()),
        );
        let spec = spec(folder, ranks);
        let srun = start(&spec, &srun, Path::new("tprimat")).unwrap();
        see_through(&spec, srun, &mut Inbox::open(false).unwrap(), SOON)
    }

    fn spec(dir: &Path, ranks: Nodes) -> RunSpec {
        RunSpec {
            run_id: "r1".into(),
            dir: dir.to_owned(),
            argv: vec!["true".into()],
            env: BTreeMap::new(),
            cwd: dir.to_owned(),
            container: None,
            job: Some(JobSpec {
                vendor: Vendor::Cpu,
                num_gpus: 1,
                nodes: 2,
                ranks,
                is_step: false,
                facts: BTreeMap::new(),
                packages: BTreeMap::new(),
                python: PathBuf::new(),
                settings: crate::plan::Slurm::default(),
            }),
            timeout_seconds: None,
            hang: None,
            grace_seconds: 1.0,
            devices: Vec::new(),
            sampled: None,
            exclusive: true,
            lock_dir: dir.to_owned(),
            watched: Vec::new(),
            meta: crate::run::Verbatim::of(&()).unwrap(),
        }
    }

    /// As srun does, this goes on until the lifeline's end.
    const UNTIL_RELEASED: &str = "cat > /dev/null\n";

    /// Its last words, and the end of a step that is killed.
    const LOST: &str = "echo 'srun: killed' >> supervisor.log; exit 1\n";

    /// Waits until the nodes were told where they meet.
    const BEGUN: &str =
        "until grep -q TPRIMAT_MASTER_ADDR heard 2>/dev/null; do sleep 0.05; done\n";

    #[test]
    fn nodes_meet_at_the_one_that_has_the_first_rank() {
        for (ranks, address, port) in [
            (Nodes::FirstRankSpeaks, "host0", "1"),
            (Nodes::LastRankSpeaks, "host1", "2"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let script = [
                "exec 3<&0; cat <&3 > heard &\n",
                &ready(0),
                &ready(1),
                BEGUN,
                &ended(0, ExitKind::Code(0)),
                &ended(1, ExitKind::Code(0)),
                // The end of the nodes' lifeline comes after their own.
                "wait\n",
            ];
            let exit = conducted_in(folder.path(), ranks, &script.concat());
            assert_eq!(exit.status, ExitKind::Code(0));
            let mut said = std::fs::read(folder.path().join("heard")).unwrap();
            let mut frames = Vec::new();
            while said.len() >= 8 {
                let text = said.split_off(8);
                let length = u64::from_le_bytes(said.try_into().unwrap()) as usize;
                let frame: BTreeMap<String, String> =
                    serde_json::from_slice(&text[..length]).unwrap();
                frames.push(frame);
                said = text[length..].to_vec();
            }
            let [_, meeting] = &frames[..] else {
                panic!("the environment, then where they meet: {frames:?}")
            };
            let told = |name: &str| meeting[name].as_str();
            assert_eq!(
                (told("TPRIMAT_MASTER_ADDR"), told("TPRIMAT_PORT")),
                (address, port)
            );
        }
    }

    #[test]
    fn a_node_that_never_says_that_it_is_ready_is_noticed() {
        let exit = conducted(&format!("{}{UNTIL_RELEASED}{}", ready(0), LOST));
        let ExitKind::LaunchFailed(why) = exit.status else {
            panic!("{exit:?}")
        };
        assert!(why.contains("1 of 2 nodes"), "{why}");
    }

    #[test]
    fn a_step_that_is_killed_after_the_start_is_lost_and_was_not_kept_from_starting() {
        let script = [
            "exec 3<&0; cat <&3 > heard &\n",
            &ready(0),
            &ready(1),
            BEGUN,
            LOST,
        ];
        let exit = conducted(&script.concat());
        let ExitKind::Lost(why) = exit.status else {
            panic!("{exit:?}")
        };
        assert!(
            why.contains("2 of 2 nodes") && why.contains("srun: killed"),
            "{why}"
        );
    }

    #[test]
    fn what_a_node_wrote_before_the_end_is_waited_for() {
        let late = format!("(sleep 2; {}) &\n", ended(1, ExitKind::Code(3)).trim_end());
        let script = [
            "exec 3<&0; cat <&3 > heard &\n",
            &ready(0),
            &ready(1),
            BEGUN,
            &ended(0, ExitKind::Interrupted),
            &late,
            LOST,
        ];
        let exit = conducted(&script.concat());
        assert_eq!((exit.status, exit.lost_nodes), (ExitKind::Code(3), None));
    }

    #[test]
    fn a_failure_releases_the_other_nodes_after_their_time() {
        let script = [
            &ready(0),
            &ready(1),
            "sleep 1\n",
            &ended(1, ExitKind::Code(3)),
            UNTIL_RELEASED,
            &ended(0, ExitKind::Interrupted),
        ];
        let exit = conducted(&script.concat());
        assert_eq!((exit.status, exit.lost_nodes), (ExitKind::Code(3), None));
    }
}

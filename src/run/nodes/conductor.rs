//! The half of a run on several nodes that starts srun, and makes one end of the nodes' ends.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
    unistd::Pid,
};

use super::{
    FIRST_NODE, NODE,
    heard::Heard,
    messages::{Listener, Message},
};
use crate::{
    error::Result,
    files::{self, Durability, unix_now},
    host::which,
    job::Vendor,
    results::{TELEMETRY_SCHEMA, TelemetryHeader},
    run::{
        folder::lock,
        inbox::{Inbox, frame},
        spec::{ExitKind, RUN_ARGUMENT, RunExit, RunSpec, TELEMETRY, never_ran},
    },
    secrets::masked,
    words::plain,
};

const LOOK: Duration = Duration::from_millis(100);
/// How long after srun's end what it wrote before is still read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long nodes wait for each other.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// From the first node that is ready to the last one: all compare themselves with the run's
    /// key, and a cold network file system may take minutes to load Python.
    pub gathering: Duration,
    /// From the first failure to the end of the nodes that still run: a rank whose peer is gone
    /// fails in its own words, which often tell more.
    pub others: Duration,
}

const PATIENCE: Patience = Patience {
    gathering: Duration::from_secs(300),
    others: Duration::from_secs(60),
};

/// What a node's supervisor may take beyond the run's grace to end its part and to say how it
/// ended.
const MARGIN: Duration = Duration::from_secs(30);

/// Variables by which a caller's environment changes what srun does with the streams that carry
/// our messages, or takes our command for something else. srun has no options that undo them.
const NOT_FOR_SRUN: [&str; 10] = [
    "SLURM_DEBUG",
    "SLURM_LABELIO",
    "SLURM_NO_KILL",
    "SLURM_OPEN_MODE",
    "SLURM_SRUN_MULTI",
    "SLURM_STDERRMODE",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_TEST_EXEC",
    "SLURM_UNBUFFEREDIO",
];

/// Sees a run through that has a supervisor on each of its nodes.
pub(crate) fn conduct(spec: &RunSpec, inbox: &mut Inbox) -> RunExit {
    let caller: BTreeMap<String, String> = std::env::vars().collect();
    let found = which("srun", &caller)
        .ok_or_else(|| "there is no srun in PATH".to_owned())
        .and_then(|srun| {
            // By its path, which nodes have as well. Where this process is from another file than is there
            // now, the kernel would name none.
            let tprimat = std::env::args_os().next().map(PathBuf::from);
            let tprimat = tprimat.ok_or("tprimat was started without a name".to_owned())?;
            Ok((srun, tprimat))
        });
    let started = found.and_then(|(srun, tprimat)| Conductor::start(spec, &srun, &tprimat));
    match started {
        Ok(mut conductor) => {
            let nodes = spec.nodes();
            if nodes > 1
                && let Err(error) = tell_of_telemetry(spec, nodes)
            {
                conductor.said = Some(error.to_string());
            }
            conductor.see_through(inbox, PATIENCE)
        }
        Err(why) => never_ran(ExitKind::LaunchFailed(why), 0.0),
    }
}

/// Power and energy are of all devices of a run, or of none. The nodes' own files are kept beside
/// the log, and judged for what disturbed the run.
fn tell_of_telemetry(spec: &RunSpec, nodes: usize) -> Result<()> {
    if spec.sampled.is_none_or(|vendor| vendor == Vendor::Cpu) {
        return Ok(());
    }
    let header = TelemetryHeader {
        schema: TELEMETRY_SCHEMA.to_owned(),
        source: "none".into(),
        interval_seconds: 1.0,
        devices: Vec::new(),
        unavailable: Some(format!(
            "the run had {nodes} nodes, whose samples are kept one file a node and are not added up"
        )),
    };
    let mut line = serde_json::to_vec(&header).unwrap_or_default();
    line.push(b'\n');
    files::write_atomically(&spec.dir.join(TELEMETRY), &line, Durability::Plain)
}

struct Conductor<'a> {
    spec: &'a RunSpec,
    srun: Child,
    /// The nodes' lifeline.
    input: Option<ChildStdin>,
    messages: Receiver<(usize, Message)>,
    /// The last thing that srun itself complained of.
    complaint: Arc<Mutex<String>>,
    complaints: JoinHandle<()>,
    /// What a person should know.
    said: Option<String>,
}

impl<'a> Conductor<'a> {
    fn start(spec: &'a RunSpec, srun: &Path, tprimat: &Path) -> Result<Self, String> {
        let mut command = Command::new(srun);
        command
            .args(arguments(spec))
            .arg(tprimat)
            .arg(RUN_ARGUMENT)
            .arg(&spec.dir)
            .arg(NODE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
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
        let (input, output, errors) = (srun.stdin.take(), srun.stdout.take(), srun.stderr.take());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut listener = Listener::default();
            if let Some(output) = output {
                each_line(output, |line| {
                    let sent = listener.hear(line).map(|message| sender.send(message));
                    !matches!(sent, Some(Err(_)))
                });
            }
        });
        let complaint = Arc::new(Mutex::new(String::new()));
        let heard = complaint.clone();
        let complaints = std::thread::spawn(move || {
            if let Some(errors) = errors {
                each_line(errors, |line| {
                    // srun's own words, which go to the file of the run's output.
                    drop(writeln!(io::stderr(), "{}", masked(&plain::lines(line))));
                    if !line.trim().is_empty() {
                        line.trim().clone_into(&mut lock(&heard));
                    }
                    true
                });
            }
        });
        let mut conductor = Self {
            spec,
            srun,
            input,
            messages,
            complaint,
            complaints,
            said: None,
        };
        conductor.send(&spec.env);
        Ok(conductor)
    }

    /// A node that is gone says so at its end.
    fn send(&mut self, variables: &BTreeMap<String, String>) {
        if let Some(input) = &mut self.input {
            let _ = frame(variables).and_then(|frame| {
                input.write_all(&frame)?;
                input.flush()
            });
        }
    }

    fn see_through(mut self, inbox: &mut Inbox, patience: Patience) -> RunExit {
        let nodes = self.spec.nodes();
        let mut heard = Heard::default();
        let (mut is_over, mut is_forced) = (false, false);
        loop {
            inbox.wait(LOOK);
            // Looked at before the messages: whatever was said before srun's end is then heard.
            is_over = is_over || !matches!(self.srun.try_wait(), Ok(None));
            let wait = if is_over { LAST_WORDS } else { Duration::ZERO };
            while let Ok((node, message)) = self.messages.recv_timeout(wait) {
                heard.message(node, message);
                if heard.begun_at.is_none() && heard.ready.len() == nodes {
                    self.meet(&mut heard);
                }
            }
            if is_over {
                break;
            }
            if inbox.is_in_a_hurry() && !is_forced {
                is_forced = true;
                // srun then ends its step without grace.
                let srun = Pid::from_raw(self.srun.id().cast_signed());
                let _ = kill(srun, Signal::SIGTERM);
            }
            heard.was_asked = heard.was_asked || inbox.stop();
            heard.give_up(nodes, patience);
            if heard.is_no_longer_needed(nodes, patience) {
                self.input = None;
            }
        }
        // Its last words may still be on their way.
        let over = Instant::now();
        while !self.complaints.is_finished() && over.elapsed() < LAST_WORDS {
            std::thread::sleep(LOOK / 10);
        }
        let complaint = lock(&self.complaint).clone();
        heard.exit(nodes, &complaint, self.said.take())
    }

    /// All nodes are what they must be: they begin, and meet at the node of rank 0.
    fn meet(&mut self, heard: &mut Heard) {
        let at = |node| heard.ready.get(&node).cloned();
        let (Some((_, first, _)), Some((_, address, port))) = (at(0), at(self.spec.rank_of(0)))
        else {
            return;
        };
        heard.begun_at = Some(unix_now());
        self.send(&BTreeMap::from([
            (FIRST_NODE.to_owned(), first),
            ("TPRIMAT_MASTER_ADDR".to_owned(), address),
            ("TPRIMAT_PORT".to_owned(), port.to_string()),
        ]));
    }
}

/// Hands on each line as text, whatever bytes it is of, until `on_line` wants no more.
fn each_line(stream: impl Read, mut on_line: impl FnMut(&str) -> bool) {
    let (mut stream, mut line) = (BufReader::new(stream), Vec::new());
    while stream
        .read_until(b'\n', &mut line)
        .is_ok_and(|length| length > 0)
        && on_line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']))
    {
        line.clear();
    }
}

/// How long after the first supervisor's end srun lets the others go on.
fn last_wait(spec: &RunSpec) -> Duration {
    PATIENCE.others + spec.grace() + MARGIN
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
        format!("--wait={}", last_wait(spec).as_secs()),
        "--input=all".into(),
        "--mpi=none".into(),
        "--cpu-bind=none".into(),
    ];
    let Some(job) = &spec.job else {
        return arguments;
    };
    let is_one_of_several = job.settings.max_jobs.is_some_and(|most| most > 1);
    match (job.is_step, is_one_of_several) {
        (false, _) => {}
        // Beside the step that tprimat itself may be in.
        (true, false) => arguments.push("--overlap".into()),
        (true, true) => {
            arguments.push("--exact".into());
            if job.vendor != Vendor::Cpu {
                arguments.push(format!("--gres=gpu:{}", job.num_gpus));
            }
        }
    }
    let cpus = job.settings.cpus;
    arguments.extend(cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
    arguments
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{mock, recipe::Nodes, run::spec::JobSpec};

    const SOON: Patience = Patience {
        gathering: Duration::from_millis(200),
        others: Duration::from_millis(200),
    };

    fn ready(node: usize) -> String {
        format!(
            "printf 'tprimat-node {node} . {{\"ready\":{{\"name\":\"n{node}\",\"address\":\"host{node}\",\"port\":{}}}}}\\n'\n",
            node + 1
        )
    }

    fn ended(node: usize, status: ExitKind) -> String {
        let exit = serde_json::to_string(&never_ran(status, 0.0)).unwrap();
        format!(
            "printf '%s\\n' 'tprimat-node {node} . {{\"ended\":{{\"name\":\"n{node}\",\"exit\":{exit}}}}}'\n"
        )
    }

    /// The end of a run of two nodes whose srun is this script.
    fn conducted(script: &str) -> RunExit {
        conducted_with(Nodes::FirstRankSpeaks, script)
    }

    fn conducted_with(ranks: Nodes, script: &str) -> RunExit {
        let folder = tempfile::tempdir().unwrap();
        let srun = folder.path().join("srun");
        mock::program(&srun, format!("#!/bin/sh\n{script}"));
        let spec = spec(folder.path(), ranks);
        let conductor = Conductor::start(&spec, &srun, Path::new("tprimat")).unwrap();
        conductor.see_through(&mut Inbox::open(false).unwrap(), SOON)
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

    #[test]
    fn nodes_meet_at_the_one_that_has_the_first_rank() {
        for (ranks, address, port) in [
            (Nodes::FirstRankSpeaks, "host0", "1"),
            (Nodes::LastRankSpeaks, "host1", "2"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let heard = folder.path().join("heard");
            let script = [
                &ready(0),
                &ready(1),
                // The end of the nodes' lifeline comes after their own.
                &ended(0, ExitKind::Code(0)),
                &ended(1, ExitKind::Code(0)),
                &format!("cat > '{}'\n", heard.display()),
            ]
            .map(String::as_str)
            .concat();
            assert_eq!(conducted_with(ranks, &script).status, ExitKind::Code(0));
            let mut said = std::fs::read(&heard)
                .unwrap()
                .into_iter()
                .collect::<Vec<_>>();
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
            assert_eq!(told(FIRST_NODE), "host0", "whose cores are the run's");
        }
    }

    #[test]
    fn what_is_no_text_ends_nobodys_word() {
        let noise = "printf 'a prologue says \\377\\376\\n'; printf '\\377\\n' >&2\n";
        let script = [
            noise,
            &ready(0),
            &ready(1),
            noise,
            &ended(0, ExitKind::Code(0)),
            &ended(1, ExitKind::Code(0)),
            UNTIL_RELEASED,
        ];
        assert_eq!(conducted(&script.concat()).status, ExitKind::Code(0));
    }

    #[test]
    fn a_node_that_never_says_that_it_is_ready_is_noticed() {
        let exit = conducted(&format!("{}{UNTIL_RELEASED}", ready(0)));
        let ExitKind::LaunchFailed(why) = exit.status else {
            panic!("{exit:?}")
        };
        assert!(why.contains("1 of 2 nodes"), "{why}");
    }

    #[test]
    fn a_step_that_is_killed_after_the_start_is_lost_and_was_not_kept_from_starting() {
        let script = format!("{}{}echo 'srun: killed' >&2; exit 1\n", ready(0), ready(1));
        let exit = conducted(&script);
        let ExitKind::Lost(why) = exit.status else {
            panic!("{exit:?}")
        };
        assert!(
            why.contains("2 of 2 nodes") && why.contains("srun: killed"),
            "{why}"
        );
    }

    #[test]
    fn a_failure_releases_the_other_nodes_after_their_time() {
        let script = [
            &ready(0),
            &ready(1),
            &ended(1, ExitKind::Code(3)),
            UNTIL_RELEASED,
            &ended(0, ExitKind::Interrupted),
        ];
        let exit = conducted(&script.concat());
        assert_eq!((exit.status, exit.lost_nodes), (ExitKind::Code(3), None));
    }
}

//! The half of a run on several nodes that starts srun, or the supervisor of the first pod, and makes one end of the nodes' ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

use super::{
    lifelines::{Lifelines, Pods},
    node::{NODE, NUMBER, Ready, read_ready},
};
use crate::{
    error::{Error, Result},
    files::{self, Durability, unix_now},
    host::{last_line, which},
    job::Vendor,
    results::TELEMETRY_SCHEMA,
    run::{
        batch,
        container::words,
        folder::{LOG, answers_of, hosts_of, supervisor_said},
        inbox::Inbox,
        spec::{ExitKind, RUN_ARGUMENT, RunExit, RunSpec, TELEMETRY, never_ran},
    },
};

/// How often the folders of the nodes are looked at, which may be on a network file system.
const LOOK: Duration = Duration::from_millis(500);

/// From the first failure to the end of the nodes that still run: a rank whose peer is gone fails in its
/// own words, which often tell more.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many times longer than that nodes which are ready wait for the last one: all compare themselves
/// with the run's key, and a cold network file system may take minutes to load Python.
const GATHERING: u32 = 5;
/// The same of pods: each waits for room of its own, and pulls an image of 20 GB.
const GATHERING_PODS: u32 = 30;

/// What a node's supervisor may take beyond the run's grace to end its part and to say how it
/// ended.
const MARGIN: Duration = Duration::from_secs(30);

/// Sees a run through that has a supervisor on each of its nodes.
pub(crate) fn conduct(spec: &RunSpec, inbox: &mut Inbox) -> RunExit {
    let caller: BTreeMap<String, String> = std::env::vars().collect();
    // By its path, which nodes have as well. Where this process is from another file than is there
    // now, the kernel would name none.
    let tprimat = std::env::args_os().next().unwrap_or_default();
    let srun = which("srun", &caller).filter(|_| !spec.is_of_pods());
    let started = match srun.is_some() || spec.is_of_pods() {
        true => start(spec, srun.as_deref(), Path::new(&tprimat)),
        false => Err(Error::failed("there is no srun in PATH")),
    };
    match started {
        Ok(started) => RunExit {
            log_bytes: std::fs::metadata(spec.dir.join(LOG))
                .map(|log| log.len())
                .ok(),
            ..see_through(spec, started, inbox, PATIENCE)
        },
        Err(why) => never_ran(ExitKind::LaunchFailed(why.to_string()), 0.0),
    }
}

/// Power and energy are of all devices of a run, or of none. The nodes' own files are kept beside
/// the log, and judged for what disturbed the run.
fn tell_of_telemetry(spec: &RunSpec) -> Result<()> {
    let nodes = spec.nodes();
    if nodes == 1 || spec.sampled.is_none_or(|vendor| vendor == Vendor::Cpu) {
        return Ok(());
    }
    let header = serde_json::json!({
        "schema": TELEMETRY_SCHEMA, "source": "none", "interval_seconds": 1.0, "devices": [],
        "unavailable": format!("the run had {nodes} nodes, whose samples are kept one file a node and are not added up"),
    });
    let path = spec.dir.join(TELEMETRY);
    files::write_atomically(&path, format!("{header}\n").as_bytes(), Durability::Plain)
}

/// Starts a supervisor on each node; without srun, that of node 0, to which those of the other pods come.
fn start(spec: &RunSpec, srun: Option<&Path>, tprimat: &Path) -> Result<Lifelines> {
    // Made here, before anybody looks for them: a client of a network file system remembers for a
    // while what it did not find.
    for node in 0..spec.nodes() {
        files::create_dir_all(&answers_of(&spec.dir, node))?;
    }
    tell_of_telemetry(spec)?;
    let mut command = Command::new(srun.unwrap_or(tprimat));
    let pods = match srun {
        Some(_) => {
            command.args(arguments(spec)).arg(tprimat);
            None
        }
        None => {
            command.env(NUMBER, "0");
            Some(Pods::listen(&spec.dir, spec.nodes())?)
        }
    };
    command
        .arg(RUN_ARGUMENT)
        .arg(&spec.dir)
        .arg(NODE)
        .stdin(Stdio::piped())
        // What srun and the supervisors complain of goes to supervisor.log, as this process's own.
        .stdout(Stdio::null())
        // A terminal's Ctrl-C is ours to pass on.
        .process_group(0);
    // With these in the caller's environment srun does something else with its streams, with a lost node or
    // with our command, and it has no options that undo all of them.
    for name in "STDINMODE STDOUTMODE STDERRMODE NO_KILL SRUN_MULTI".split(' ') {
        command.env_remove(format!("SLURM_{name}"));
    }
    let unblock = || {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call and allocates nothing.
    unsafe { command.pre_exec(unblock) };
    let child = command.spawn();
    let child = child.map_err(Error::io("cannot start", srun.unwrap_or(tprimat)))?;
    // Before any pod is taken in: their environment is in their Secret.
    let mut started = Lifelines { child, pods };
    started.tell(&spec.env);
    Ok(started)
}

fn see_through(
    spec: &RunSpec,
    mut started: Lifelines,
    inbox: &mut Inbox,
    patience: Duration,
) -> RunExit {
    let nodes = spec.nodes();
    let mut seen = Seen::default();
    // When all supervisors, or srun, had ended, and whether they did so well.
    let mut over: Option<(Instant, bool)> = None;
    loop {
        inbox.wait(LOOK);
        // Looked at before the folders: what was written before srun's end is then seen.
        if over.is_none()
            && let Some(ended_well) = started.ended()
        {
            over = Some((Instant::now(), ended_well));
        }
        seen.look(spec);
        seen.was_asked |= inbox.stop();
        if let Some((since, ended_well)) = over {
            // A network file system may show late what was written before.
            let is_late = since.elapsed() >= batch::patience(ended_well);
            if seen.ends.len() == nodes || is_late || inbox.is_in_a_hurry() {
                seen.forget(&started.lost());
                return seen.exit(spec, patience);
            }
            continue;
        }
        if !seen.is_let_go {
            seen.lost = started.lost();
        }
        if !seen.lost.is_empty() {
            seen.since.get_or_insert_with(Instant::now);
        }
        let is_wanted = seen.begun_at.is_none() && started.child.stdin.is_some();
        if is_wanted && seen.ready.len() == nodes {
            // They meet at the node of rank 0.
            let (address, port) = seen.ready[&spec.rank_of(0)].clone();
            let address = ("TPRIMAT_MASTER_ADDR".to_owned(), address);
            let port = ("TPRIMAT_PORT".to_owned(), port.to_string());
            started.tell(&BTreeMap::from([address, port]));
            (seen.begun_at, seen.since) = (Some(unix_now()), None);
        }
        if inbox.is_in_a_hurry() {
            started.hurry();
        }
        if seen.is_no_longer_needed(spec, patience) {
            seen.is_let_go = true;
            started.end();
        }
    }
}

/// What was seen of the nodes.
#[derive(Default)]
struct Seen {
    ready: BTreeMap<usize, Ready>,
    ends: BTreeMap<usize, RunExit>,
    /// When the first node was ready; once the nodes have begun, when the first one failed.
    since: Option<Instant>,
    /// When they were told to begin, in seconds since 1970.
    begun_at: Option<f64>,
    /// Was this process told to end the run?
    was_asked: bool,
    /// The nodes whose pods are gone that nobody had let go.
    lost: BTreeSet<usize>,
    /// The nodes were told to end what they still do.
    is_let_go: bool,
    /// The nodes whose pods were told to end by somebody else, as it seems.
    told: BTreeSet<usize>,
}

impl Seen {
    /// Looks at what the nodes have written. What cannot be read now is seen later.
    fn look(&mut self, spec: &RunSpec) {
        for node in 0..spec.nodes() {
            let answers = answers_of(&spec.dir, node);
            if self.ends.contains_key(&node) {
                continue;
            }
            if let Ok(Some(exit)) = batch::exit_of_ended(&answers) {
                // One that has done its work leaves the others to theirs: the first rank alone
                // writes the last checkpoint.
                if exit.status != ExitKind::Code(0) {
                    self.since.get_or_insert_with(Instant::now);
                }
                let is_told = exit.status == ExitKind::Interrupted && !self.is_let_go;
                if is_told && spec.is_of_pods() {
                    self.told.insert(node);
                }
                self.ends.insert(node, exit);
            } else if !self.ready.contains_key(&node)
                && let Some(ready) = read_ready(&answers)
            {
                self.since.get_or_insert_with(Instant::now);
                self.ready.insert(node, ready);
            }
        }
    }

    /// A pod that lost its connection ended its part because of that, and nobody told it to: on a volume that
    /// it still reaches it left the word of one that was told.
    fn forget(&mut self, lost: &BTreeSet<usize>) {
        for node in lost {
            if self.told.remove(node) {
                self.ends.remove(node);
            }
        }
    }

    /// Have nodes waited too long for the others?
    fn is_late(&self, spec: &RunSpec, patience: Duration) -> bool {
        let most = match self.begun_at {
            Some(_) => patience,
            None => patience * gathering(spec),
        };
        self.since.is_some_and(|since| since.elapsed() >= most)
    }

    /// Are the nodes to end what they still do?
    fn is_no_longer_needed(&self, spec: &RunSpec, patience: Duration) -> bool {
        // One that cannot run keeps all of them from it.
        let is_refused =
            self.begun_at.is_none() && (!self.ends.is_empty() || !self.lost.is_empty());
        // Nothing is to be waited for where no node can say any more.
        let is_over = |node: usize| self.ends.contains_key(&node) || self.lost.contains(&node);
        let is_done = (0..spec.nodes()).all(is_over);
        self.was_asked || is_refused || is_done || self.is_late(spec, patience)
    }

    /// The end of the run, whose srun is over.
    fn exit(self, spec: &RunSpec, patience: Duration) -> RunExit {
        let (nodes, missing) = (spec.nodes(), spec.nodes() - self.ends.len());
        let said = supervisor_said(&spec.dir).unwrap_or_default();
        let said = last_line(said.as_bytes());
        let Some(begun_at) = self.begun_at else {
            let why = |exit: &RunExit| match &exit.status {
                ExitKind::LaunchFailed(why) => Some(why.clone()),
                _ => None,
            };
            let refused: Vec<String> = self.ends.values().filter_map(why).collect();
            let is_late = self.is_late(spec, patience);
            let was_asked = self.was_asked || !self.told.is_empty();
            let status = match (refused.is_empty(), is_late, was_asked) {
                (false, ..) => ExitKind::LaunchFailed(refused.join("; ")),
                _ if !self.lost.is_empty() && !was_asked => ExitKind::Lost(
                    "a pod was gone before all of them were ready; nothing was run".to_owned(),
                ),
                (_, true, _) => ExitKind::LaunchFailed(format!(
                    "{} of {nodes} nodes did not say within {:.0} s that they are ready; nothing was run",
                    nodes - self.ready.len(),
                    (patience * gathering(spec)).as_secs_f64(),
                )),
                (_, _, true) => ExitKind::Interrupted,
                _ => ExitKind::LaunchFailed(format!(
                    "srun did not start the run on its nodes: {said}"
                )),
            };
            return never_ran(status, 0.0);
        };
        let lost =
            format!("{missing} of {nodes} nodes left no word of how the run ended there: {said}");
        let lost = lost.trim_end_matches(": ").to_owned();
        let mut exit = together(self.ends.into_values().collect(), begun_at);
        let has_failed = !matches!(exit.status, ExitKind::Code(0) | ExitKind::Interrupted);
        if !self.told.is_empty() && has_failed {
            // The others failed because it went, and the cluster says why it was told.
            exit.status = ExitKind::Interrupted;
        }
        if missing > 0 {
            exit.host = hosts_of(&spec.dir, nodes).or(exit.host);
        }
        if missing > 0 && !has_failed {
            // Whoever is not heard of has not ended well, whatever the others did.
            exit.status = match self.was_asked {
                true => ExitKind::Interrupted,
                false => ExitKind::Lost(lost),
            };
        } else if missing > 0 && !self.was_asked {
            // A failure that is known stays the cause, unless its own log says that it followed
            // from the loss of a peer.
            exit.lost_nodes = Some(lost);
        }
        exit
    }
}

fn gathering(spec: &RunSpec) -> u32 {
    match spec.is_of_pods() {
        true => GATHERING_PODS,
        false => GATHERING,
    }
}

/// The end of a run that had begun then, from the ends of its nodes: the first failure is the cause of the
/// others.
fn together(mut ends: Vec<RunExit>, begun_at: f64) -> RunExit {
    ends.sort_by(|a, b| a.ended_at.total_cmp(&b.ended_at));
    let name = |exit: &RunExit| exit.host.clone().unwrap_or_default();
    let failed = || ends.iter().filter(|exit| exit.status != ExitKind::Code(0));
    // A node that was told to end is never why the others ended.
    let cause = failed()
        .find(|exit| exit.status != ExitKind::Interrupted)
        .or_else(|| failed().next());
    let note = |exit: &RunExit| Some(format!("{}: {}", name(exit), exit.note.as_ref()?));
    let mut notes: Vec<String> = ends.iter().filter_map(note).collect();
    let of_cause = cause.filter(|_| ends.len() > 1);
    notes.extend(of_cause.map(|exit| format!("it ended first on {}", name(exit))));
    let mut names: Vec<String> = ends.iter().map(name).collect();
    names.sort_unstable();
    let status = match cause {
        Some(exit) => exit.status.clone(),
        None if ends.is_empty() => ExitKind::Interrupted,
        None => ExitKind::Code(0),
    };
    let mut whole = RunExit {
        host: Some(names.join(",")).filter(|names| !names.is_empty()),
        note: Some(notes.join("; ")).filter(|note| !note.is_empty()),
        ..never_ran(status, 0.0)
    };
    if ends.is_empty() {
        whole.started_at = begun_at;
    }
    for one in ends {
        whole.started_at = whole.started_at.min(one.started_at);
        whole.ended_at = one.ended_at;
        whole.waited_seconds = whole.waited_seconds.max(one.waited_seconds);
        whole.survivors += one.survivors;
        whole.changed.extend(one.changed);
        whole.undeclared.merge(one.undeclared);
    }
    whole.changed.sort();
    whole.changed.dedup();
    whole
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
        format!("--wait={}", (PATIENCE + spec.grace() + MARGIN).as_secs()),
    ];
    arguments.extend(words(
        "--kill-on-bad-exit=0 --input=all --mpi=none --cpu-bind=none",
    ));
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
    use crate::{files::write_atomically, mock, recipe::Nodes, run::spec::JobSpec};

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
        let srun = start(&spec, Some(&srun), Path::new("tprimat")).unwrap();
        see_through(&spec, srun, &mut Inbox::open(false).unwrap(), SOON)
    }

    fn spec(dir: &Path, ranks: Nodes) -> RunSpec {
        spec_of(dir, 2, ranks)
    }

    fn spec_of(dir: &Path, nodes: usize, ranks: Nodes) -> RunSpec {
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
                nodes,
                ranks,
                is_step: false,
                facts: BTreeMap::new(),
                packages: BTreeMap::new(),
                python: std::path::PathBuf::new(),
                settings: crate::plan::Slurm::default(),
                kubernetes: None,
            }),
            timeout_seconds: None,
            hang: None,
            grace_seconds: 1.0,
            devices: Vec::new(),
            sampled: None,
            exclusive: true,
            lock_dir: dir.to_owned(),
            watched: Vec::new(),
            meta: serde_json::Value::Null,
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

    /// How a run ends that began, and of whose nodes these ends were seen, one after the other.
    fn exit(ends: &[(&str, ExitKind)], nodes: usize, was_asked: bool) -> RunExit {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("supervisor.log");
        write_atomically(&said, b"srun: n2 is gone\n", Durability::Plain).unwrap();
        let ends = ends.iter().zip([30.0, 20.0, 10.0]).enumerate();
        // The last node ended first.
        let ends = ends.map(|(node, ((name, status), ended_at))| {
            let exit = RunExit {
                ended_at,
                host: Some((*name).to_owned()),
                ..never_ran(status.clone(), 0.0)
            };
            (node, exit)
        });
        let seen = Seen {
            ends: ends.collect(),
            begun_at: Some(1.0),
            was_asked,
            ..Seen::default()
        };
        seen.exit(
            &spec_of(folder.path(), nodes, Nodes::FirstRankSpeaks),
            Duration::ZERO,
        )
    }

    #[test]
    fn the_first_failure_is_the_cause_and_hosts_are_a_set() {
        let good = [("n2", ExitKind::Code(0)), ("n1", ExitKind::Code(0))];
        let whole = exit(&good, 2, false);
        assert_eq!(
            (whole.status, whole.host.as_deref(), whole.note),
            (ExitKind::Code(0), Some("n1,n2"), None)
        );
        let failed = [
            ("n3", ExitKind::Signal(9)),
            ("n2", ExitKind::Code(3)),
            ("n1", ExitKind::Interrupted),
        ];
        let failed = exit(&failed, 3, false);
        assert_eq!(failed.status, ExitKind::Code(3));
        assert!(failed.note.unwrap().contains("n2"));
    }

    #[test]
    fn a_known_failure_stays_the_cause_where_other_nodes_left_no_word() {
        let exit = exit(&[("n1", ExitKind::Code(3))], 2, false);
        assert_eq!(exit.status, ExitKind::Code(3));
        let lost = exit.lost_nodes.unwrap();
        assert!(lost.contains("1 of 2 nodes") && lost.contains("n2 is gone"));
    }

    #[test]
    fn a_run_of_which_a_node_left_no_word_never_ended_well() {
        for status in [ExitKind::Code(0), ExitKind::Interrupted] {
            let one = [("n1", status)];
            let lost = exit(&one, 2, false);
            assert!(matches!(lost.status, ExitKind::Lost(_)), "{lost:?}");
            // `scancel` of somebody else: srun kills its step at once.
            assert_eq!(exit(&one, 2, true).status, ExitKind::Interrupted);
        }
        let lost = exit(&[], 2, false);
        assert!(matches!(lost.status, ExitKind::Lost(_)), "{lost:?}");
        assert!((lost.started_at - 1.0).abs() < 1e-9, "it had begun then");
    }

    #[test]
    fn nobody_is_waited_for_where_every_node_has_ended_or_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path(), Nodes::FirstRankSpeaks);
        let failed = never_ran(ExitKind::Code(3), 0.0);
        let mut seen = Seen {
            begun_at: Some(1.0),
            since: Some(Instant::now()),
            ends: BTreeMap::from([(0, failed)]),
            ..Seen::default()
        };
        // The second one may still fail in its own words.
        assert!(!seen.is_no_longer_needed(&spec, PATIENCE));
        seen.lost.insert(1);
        assert!(seen.is_no_longer_needed(&spec, PATIENCE));
    }

    #[test]
    fn a_pod_that_lost_its_connection_was_not_told_to_end() {
        let mut seen = Seen::default();
        seen.told.insert(1);
        seen.ends.insert(1, never_ran(ExitKind::Interrupted, 0.0));
        seen.forget(&BTreeSet::from([0]));
        assert_eq!((seen.ends.len(), seen.told.len()), (1, 1));
        seen.forget(&BTreeSet::from([1]));
        assert_eq!((seen.ends.len(), seen.told.len()), (0, 0));
    }

    #[test]
    fn nodes_that_are_ready_wait_for_the_others_only_so_long() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path(), Nodes::FirstRankSpeaks);
        let mut seen = Seen::default();
        assert!(
            !seen.is_no_longer_needed(&spec, Duration::ZERO),
            "the clock runs from the first node"
        );
        let answers = answers_of(folder.path(), 0);
        let ready = answers.join("ready.json");
        write_atomically(&ready, br#"["n1",1]"#, Durability::Plain).unwrap();
        seen.look(&spec);
        assert!(seen.is_no_longer_needed(&spec, Duration::ZERO));
        let ExitKind::LaunchFailed(why) = seen.exit(&spec, Duration::ZERO).status else {
            panic!("nothing was run")
        };
        assert!(why.contains("1 of 2 nodes"), "{why}");
    }
}

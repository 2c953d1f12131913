//! What the conductor has seen of a run's nodes, and the one end of the run that follows from it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::node::{Ready, answers_of, read_ready};
use crate::{
    files::unix_now,
    host::last_line,
    run::{
        folder::supervisor_said,
        slurm::exit_of_ended,
        spec::{ExitKind, RunExit, RunSpec, never_ran},
    },
};

/// From the first failure to the end of the nodes that still run: a rank whose peer is gone fails in its
/// own words, which often tell more.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How many times longer than that nodes which are ready wait for the last one: all compare themselves
/// with the run's key, and a cold network file system may take minutes to load Python.
const GATHERING: u32 = 5;

#[derive(Default)]
pub(super) struct Seen {
    pub ready: BTreeMap<usize, Ready>,
    pub ends: BTreeMap<usize, RunExit>,
    /// When the first node was ready; once the nodes have begun, when the first one failed.
    since: Option<Instant>,
    /// When they were told to begin, in seconds since 1970.
    begun_at: Option<f64>,
    /// Was this process told to end the run?
    pub was_asked: bool,
}

impl Seen {
    /// Looks at what the nodes have written. What cannot be read now is seen later.
    pub fn look(&mut self, spec: &RunSpec) {
        for node in 0..spec.nodes() {
            let answers = answers_of(&spec.dir, node);
            if self.ends.contains_key(&node) {
                continue;
            }
            if let Ok(Some(exit)) = exit_of_ended(&answers) {
                // One that has done its work leaves the others to theirs: the first rank alone
                // writes the last checkpoint.
                if exit.status != ExitKind::Code(0) {
                    self.since.get_or_insert_with(Instant::now);
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

    /// Are all nodes ready that have not begun yet?
    pub fn can_begin(&self, nodes: usize) -> bool {
        self.begun_at.is_none() && self.ready.len() == nodes
    }

    pub fn begin(&mut self) {
        self.begun_at = Some(unix_now());
        self.since = None;
    }

    /// Have nodes waited too long for the others?
    fn is_late(&self, patience: Duration) -> bool {
        let most = match self.begun_at {
            Some(_) => patience,
            None => patience * GATHERING,
        };
        self.since.is_some_and(|since| since.elapsed() >= most)
    }

    /// Are the nodes to end what they still do?
    pub fn is_no_longer_needed(&self, nodes: usize, patience: Duration) -> bool {
        // One that cannot run keeps all of them from it.
        let is_refused = self.begun_at.is_none() && !self.ends.is_empty();
        self.was_asked || is_refused || self.ends.len() == nodes || self.is_late(patience)
    }

    /// The end of the run, whose srun is over.
    pub fn exit(self, spec: &RunSpec, patience: Duration) -> RunExit {
        let (nodes, missing) = (spec.nodes(), spec.nodes() - self.ends.len());
        let said = supervisor_said(&spec.dir).unwrap_or_default();
        let said = last_line(said.as_bytes());
        let Some(begun_at) = self.begun_at else {
            let why = |exit: &RunExit| match &exit.status {
                ExitKind::LaunchFailed(why) => Some(why.clone()),
                _ => None,
            };
            let refused: Vec<String> = self.ends.values().filter_map(why).collect();
            let status = match (refused.is_empty(), self.is_late(patience), self.was_asked) {
                (false, ..) => ExitKind::LaunchFailed(refused.join("; ")),
                (_, true, _) => ExitKind::LaunchFailed(format!(
                    "{} of {nodes} nodes did not say within {:.0} s that they are ready; nothing was run",
                    nodes - self.ready.len(),
                    (patience * GATHERING).as_secs_f64(),
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
        let mut exit = together(self.ends.into_values().collect(), begun_at);
        let has_failed = !matches!(exit.status, ExitKind::Code(0) | ExitKind::Interrupted);
        match (has_failed, self.was_asked) {
            _ if missing == 0 => {}
            (true, true) => {}
            // A failure that is known stays the cause, unless its own log says that it followed
            // from the loss of a peer.
            (true, false) => exit.lost_nodes = Some(lost),
            // Whoever is not heard of has not ended well, whatever the others did.
            (false, true) => exit.status = ExitKind::Interrupted,
            (false, false) => exit.status = ExitKind::Lost(lost),
        }
        exit
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
        started_at: ends
            .iter()
            .map(|one| one.started_at)
            .fold(f64::INFINITY, f64::min),
        host: Some(names.join(",")),
        note: Some(notes.join("; ")).filter(|note| !note.is_empty()),
        ..never_ran(status, 0.0)
    };
    match ends.last() {
        Some(last) => whole.ended_at = last.ended_at,
        None => whole.started_at = begun_at,
    }
    for one in ends {
        whole.waited_seconds = whole.waited_seconds.max(one.waited_seconds);
        whole.survivors += one.survivors;
        whole.changed.extend(one.changed);
        whole.undeclared.merge(one.undeclared);
    }
    whole.changed.sort();
    whole.changed.dedup();
    whole
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::files::{Durability, write_atomically};

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
        seen.exit(&spec(folder.path(), nodes), Duration::ZERO)
    }

    fn spec(dir: &Path, nodes: usize) -> RunSpec {
        let settings = crate::plan::Slurm::default();
        let spec = serde_json::from_value(serde_json::json!({
            "run_id": "r1", "dir": dir, "argv": ["true"], "cwd": "/", "timeout_seconds": null,
            "grace_seconds": 1.0, "devices": [], "exclusive": true, "lock_dir": "/tmp", "meta": null,
            "job": {"vendor": "cpu", "num_gpus": 1, "nodes": nodes, "facts": {}, "settings": settings},
        }));
        spec.unwrap()
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
    fn nodes_that_are_ready_wait_for_the_others_only_so_long() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path(), 2);
        let mut seen = Seen::default();
        assert!(
            !seen.is_no_longer_needed(2, Duration::ZERO),
            "the clock runs from the first node"
        );
        let answers = answers_of(folder.path(), 0);
        let ready = answers.join("ready.json");
        write_atomically(&ready, br#"["n1",1]"#, Durability::Plain).unwrap();
        seen.look(&spec);
        assert!(seen.is_no_longer_needed(2, Duration::ZERO));
        let ExitKind::LaunchFailed(why) = seen.exit(&spec, Duration::ZERO).status else {
            panic!("nothing was run")
        };
        assert!(why.contains("1 of 2 nodes"), "{why}");
    }
}

//! What the conductor has heard of a run's nodes, and the one end of the run that follows from it.

use std::{collections::BTreeMap, time::Instant};

use super::{conductor::Patience, messages::Message};
use crate::run::spec::{ExitKind, RunExit, never_ran};

#[derive(Default)]
pub(super) struct Heard {
    /// Name, address and a free port of each node that is ready, by its number.
    pub ready: BTreeMap<usize, (String, String, u16)>,
    first_ready: Option<Instant>,
    /// When the nodes were told to begin, in seconds since 1970.
    pub begun_at: Option<f64>,
    /// Why nothing is run.
    refused: Vec<String>,
    /// Names and ends of nodes, in the order in which they came.
    ends: Vec<(String, RunExit)>,
    first_failure: Option<Instant>,
    /// Was this process told to end the run?
    pub was_asked: bool,
}

impl Heard {
    pub fn message(&mut self, node: usize, message: Message) {
        match message {
            Message::Ready {
                name,
                address,
                port,
            } => {
                self.first_ready.get_or_insert_with(Instant::now);
                self.ready.insert(node, (name, address, port));
            }
            Message::Refused { why, .. } => self.refused.push(why),
            Message::Ended { name, exit } => {
                // One that has done its work leaves the others to theirs: the first rank alone
                // writes the last checkpoint.
                if exit.status != ExitKind::Code(0) {
                    self.first_failure.get_or_insert_with(Instant::now);
                }
                self.ends.push((name, *exit));
            }
        }
    }

    /// Refuses the run where nodes have waited too long for another one.
    pub fn give_up(&mut self, nodes: usize, patience: Patience) {
        let is_late = |first: Instant| first.elapsed() >= patience.gathering;
        if self.begun_at.is_none()
            && self.refused.is_empty()
            && self.first_ready.is_some_and(is_late)
        {
            let names: Vec<&str> = self
                .ready
                .values()
                .map(|(name, ..)| name.as_str())
                .collect();
            self.refused.push(format!(
                "{} of {nodes} nodes did not say within {:.0} s that they are ready, and {} waited for them; nothing was run",
                nodes - names.len(),
                patience.gathering.as_secs_f64(),
                names.join(", ")
            ));
        }
    }

    /// Are the nodes to end what they still do?
    pub fn is_no_longer_needed(&self, nodes: usize, patience: Patience) -> bool {
        let is_late = |first: Instant| first.elapsed() >= patience.others;
        self.was_asked
            || !self.refused.is_empty()
            || self.ends.len() == nodes
            || self.first_failure.is_some_and(is_late)
    }

    /// The end of the run. `complaint`: the last words of srun; `said`: what a person should know.
    pub fn exit(self, nodes: usize, complaint: &str, said: Option<String>) -> RunExit {
        let missing = nodes.saturating_sub(self.ends.len());
        let lost = || {
            let words = if complaint.is_empty() {
                String::new()
            } else {
                format!(": {complaint}")
            };
            format!("{missing} of {nodes} nodes left no word of how the run ended there{words}")
        };
        if self.ends.is_empty() {
            let status = match (&self.refused[..], self.was_asked, self.begun_at) {
                ([], true, _) => ExitKind::Interrupted,
                ([], false, Some(_)) => ExitKind::Lost(lost()),
                ([], false, None) => ExitKind::LaunchFailed(format!(
                    "srun did not start the run on its nodes: {complaint}"
                )),
                (refused, ..) => ExitKind::LaunchFailed(refused.join("; ")),
            };
            let never = never_ran(status, 0.0);
            return RunExit {
                started_at: self.begun_at.unwrap_or(never.started_at),
                ..never
            };
        }
        let exit = together(self.ends, said);
        if missing == 0 {
            return exit;
        }
        // Whoever is not heard of has not ended well, whatever the others did.
        match (&exit.status, self.was_asked) {
            (ExitKind::Code(0) | ExitKind::Interrupted, true) => RunExit {
                status: ExitKind::Interrupted,
                ..exit
            },
            (ExitKind::Code(0) | ExitKind::Interrupted, false) => RunExit {
                status: ExitKind::Lost(lost()),
                ..exit
            },
            (_, true) => exit,
            // A failure that is known stays the cause, unless its own log says that it followed
            // from the loss of a peer.
            (_, false) => RunExit {
                lost_nodes: Some(lost()),
                ..exit
            },
        }
    }
}

/// The end of a run from the ends of its nodes, in the order in which they came: the first failure
/// is the cause of the others.
fn together(ends: Vec<(String, RunExit)>, said: Option<String>) -> RunExit {
    let is_good = |exit: &RunExit| exit.status == ExitKind::Code(0);
    // A node that was told to end is never why the others ended.
    let cause = ends
        .iter()
        .find(|(_, exit)| !is_good(exit) && exit.status != ExitKind::Interrupted)
        .or_else(|| ends.iter().find(|(_, exit)| !is_good(exit)));
    let status = cause.map_or(ExitKind::Code(0), |(_, exit)| exit.status.clone());
    let of_cause = cause
        .filter(|_| ends.len() > 1)
        .map(|(name, _)| format!("it ended first on {name}"));
    let mut names: Vec<&str> = ends.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let host = Some(names.join(","));
    let notes: Vec<String> = ends
        .iter()
        .filter_map(|(name, exit)| Some(format!("{name}: {}", exit.note.as_ref()?)))
        .chain(of_cause)
        .chain(said)
        .collect();
    let mut all = ends.into_iter().map(|(_, exit)| exit);
    let mut whole = all.next().unwrap_or_else(|| never_ran(status.clone(), 0.0));
    for one in all {
        whole.started_at = whole.started_at.min(one.started_at);
        whole.ended_at = whole.ended_at.max(one.ended_at);
        whole.waited_seconds = whole.waited_seconds.max(one.waited_seconds);
        whole.survivors += one.survivors;
        whole.changed.extend(one.changed);
        whole.undeclared.merge(one.undeclared);
    }
    whole.changed.sort();
    whole.changed.dedup();
    RunExit {
        status,
        host,
        note: (!notes.is_empty()).then(|| notes.join("; ")),
        ..whole
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ended(status: ExitKind) -> RunExit {
        never_ran(status, 0.0)
    }

    /// A run of two nodes that began, and of which these ends were heard.
    fn heard(all: &[(&str, ExitKind)], was_asked: bool) -> Heard {
        let mut heard = Heard {
            begun_at: Some(1.0),
            was_asked,
            ..Heard::default()
        };
        for (node, (name, status)) in all.iter().enumerate() {
            let (name, exit) = ((*name).to_owned(), Box::new(ended(status.clone())));
            heard.message(node, Message::Ended { name, exit });
        }
        heard
    }

    #[test]
    fn the_first_failure_is_the_cause_and_hosts_are_a_set() {
        let good = [("n2", ExitKind::Code(0)), ("n1", ExitKind::Code(0))];
        let whole = heard(&good, false).exit(2, "", None);
        assert_eq!(
            (whole.status, whole.host.as_deref(), whole.note),
            (ExitKind::Code(0), Some("n1,n2"), None)
        );
        let failed = [
            ("n1", ExitKind::Interrupted),
            ("n2", ExitKind::Code(3)),
            ("n3", ExitKind::Signal(9)),
        ];
        let failed = heard(&failed, false).exit(3, "", None);
        assert_eq!(failed.status, ExitKind::Code(3));
        assert!(failed.note.unwrap().contains("n2"));
    }

    #[test]
    fn a_known_failure_stays_the_cause_where_other_nodes_left_no_word() {
        let exit = heard(&[("n1", ExitKind::Code(3))], false).exit(2, "srun: n2 is gone", None);
        assert_eq!(exit.status, ExitKind::Code(3));
        let lost = exit.lost_nodes.unwrap();
        assert!(lost.contains("1 of 2 nodes") && lost.contains("n2 is gone"));
    }

    #[test]
    fn a_run_of_which_a_node_left_no_word_never_ended_well() {
        for status in [ExitKind::Code(0), ExitKind::Interrupted] {
            let one = [("n1", status)];
            let exit = heard(&one, false).exit(2, "", None);
            assert!(matches!(exit.status, ExitKind::Lost(_)), "{exit:?}");
            // `scancel` of somebody else: srun kills its step at once.
            let exit = heard(&one, true).exit(2, "", None);
            assert_eq!(exit.status, ExitKind::Interrupted);
        }
        let exit = heard(&[], false).exit(2, "srun: killed", None);
        assert!(matches!(exit.status, ExitKind::Lost(_)), "{exit:?}");
        assert!((exit.started_at - 1.0).abs() < 1e-9, "it had begun then");
    }

    #[test]
    fn nodes_that_are_ready_wait_for_the_others_only_so_long() {
        let patience = Patience {
            gathering: Duration::ZERO,
            others: Duration::ZERO,
        };
        let mut heard = Heard::default();
        heard.give_up(2, patience);
        assert!(
            !heard.is_no_longer_needed(2, patience),
            "the clock runs from the first node"
        );
        let (name, address) = ("n1".to_owned(), "n1".to_owned());
        let ready = Message::Ready {
            name,
            address,
            port: 1,
        };
        heard.message(0, ready);
        heard.give_up(2, patience);
        assert!(heard.is_no_longer_needed(2, patience));
        let ExitKind::LaunchFailed(why) = heard.exit(2, "", None).status else {
            panic!("nothing was run")
        };
        assert!(
            why.contains("1 of 2 nodes") && why.contains("n1 waited"),
            "{why}"
        );
    }
}

//! Whether the runs of two cells show a fault of what these have in common: their recipe and their
//! command. Every other cell of these would meet it as well, and pay for runs that give no figure.
//!
//! It is read from how the runs ended and what their logs say now, and stored nowhere. So another
//! script has other keys, a log that is read otherwise has another verdict, and one run that counts
//! shows that the fault is not everybody's: each of these releases the cells.

use super::{Engine, State, Status, Statuses, reason::outcome_text, training::has_not_run};
use crate::{
    cache::{Attempt, TaskKind},
    figures::{self, codes},
    job::{FailureClass, RunOutcome},
    logs::same_fault,
    matrix::CellId,
    plan::Inputs,
    results,
};

/// What cells share that one fault may be of: platform, framework, and the files of the command.
#[derive(Clone, Copy)]
struct Launch<'a> {
    platform: &'a str,
    framework: &'a str,
    inputs: &'a Inputs,
}

impl PartialEq for Launch<'_> {
    fn eq(&self, other: &Self) -> bool {
        fn names(of: &Inputs) -> impl Iterator<Item = &str> {
            of.files.iter().map(|input| input.name.as_str())
        }
        (self.platform, self.framework) == (other.platform, other.framework)
            && (std::ptr::eq(self.inputs, other.inputs)
                || names(self.inputs).eq(names(other.inputs)))
    }
}

/// How a run ended, as far as it speaks for or against a fault that all share.
enum End<'a> {
    /// The recipe and the command work, whatever else kept the run from counting.
    Works,
    Failed(&'a Attempt),
    Uncounted(results::Reason),
}

/// Of the faults of each launch, the sentence that its cells are held back with.
#[derive(Default)]
pub(super) struct Faults<'a>(Vec<(Launch<'a>, Option<String>)>);

impl<'a> Faults<'a> {
    fn of(&mut self, engine: &'a Engine, launch: Launch<'a>, statuses: &Statuses) -> Option<&str> {
        let at = self.0.iter().position(|(known, _)| *known == launch);
        let at = at.unwrap_or_else(|| {
            self.0.push((launch, engine.fault(launch, statuses)));
            self.0.len() - 1
        });
        self.0[at].1.as_deref()
    }
}

impl Engine<'_> {
    /// A training that is not started, where two cells of its recipe and command ended alike and none
    /// counts. `faults`: those that are known already.
    pub(super) fn unless_all_would_end_alike<'a>(
        &'a self,
        cell: CellId,
        train: Status,
        statuses: &Statuses,
        faults: &mut Faults<'a>,
    ) -> Status {
        if train.state != State::Stale
            || !has_not_run(&train)
            || self.options.keep_going
            || self.options.retry_failed
        {
            return train;
        }
        let launch = self.launch_of(cell);
        match launch.and_then(|launch| faults.of(self, launch, statuses)) {
            None => train,
            Some(why) => Status {
                key: train.key,
                dropped: train.dropped,
                ..Status::not_started(why)
            },
        }
    }

    fn launch_of(&self, cell: CellId) -> Option<Launch<'_>> {
        let of = &self.plan.matrix.cells[cell];
        Some(Launch {
            platform: &of.platform,
            framework: &of.framework,
            inputs: &self.plan.prepared(cell)?.inputs,
        })
    }

    fn fault(&self, launch: Launch, statuses: &Statuses) -> Option<String> {
        let mut ends: Vec<(CellId, End)> = Vec::new();
        for (cell, planned) in self.plan.cells.with_ids() {
            if self.launch_of(cell) != Some(launch) {
                continue;
            }
            for repeat in 1..=planned.repeats {
                match self.end(cell, repeat, statuses) {
                    Some(End::Works) => return None,
                    Some(end) if ends.last().is_none_or(|(last, _)| *last != cell) => {
                        ends.push((cell, end));
                    }
                    _ => {}
                }
            }
        }
        let like = |at: usize, end: &End| {
            let mut others = ends.iter().skip(at + 1);
            others.any(|(_, other)| is_alike(end, other))
        };
        let mut all = ends.iter().enumerate();
        let (_, (_, end)) = all.find(|(at, (_, end))| like(*at, end))?;
        let what = match end {
            End::Works => return None,
            End::Uncounted(why) => why.text.clone(),
            End::Failed(attempt) => match &attempt.outcome {
                RunOutcome::Failed { evidence, .. } if !evidence.is_empty() => evidence[0].clone(),
                _ => outcome_text(attempt),
            },
        };
        Some(format!(
            "held back, because two cells of `{}` ended alike ({what}); --keep-going runs it anyway",
            launch.framework
        ))
    }

    /// `None`: the run is still to come, or its end may be of its cell alone or of this host.
    fn end<'s>(&self, cell: CellId, repeat: u32, statuses: &'s Statuses) -> Option<End<'s>> {
        let of = |kind| statuses.get(self.dag.node(kind, cell, repeat));
        let train = of(TaskKind::Train);
        let attempt = train.attempt()?;
        if let RunOutcome::Failed { class, .. } = &attempt.outcome {
            use FailureClass::{Crash, Import, Input, Launch, Unknown};
            let is_of_all = matches!(class, Crash | Import | Input | Launch | Unknown);
            let is_own = attempt.suspect.is_none() && !attempt.is_interrupted();
            return (is_of_all && is_own).then_some(End::Failed(attempt));
        }
        Some(match self.verdict(cell, train, of(TaskKind::Parse))? {
            Some(why) if why.is(codes::FAILED) => return None,
            Some(why) if figures::comes_again(&why) => End::Uncounted(why),
            _ => End::Works,
        })
    }
}

/// Did two cells meet the same fault? Logs that contradict their jobs do so only if they contradict
/// them in the same values: else each cell may differ from its job in what the matrix varies.
fn is_alike(a: &End, b: &End) -> bool {
    match (a, b) {
        (End::Failed(a), End::Failed(b)) => match (&a.outcome, &b.outcome) {
            (
                RunOutcome::Failed {
                    class: class_a,
                    evidence: said_a,
                    status: status_a,
                },
                RunOutcome::Failed {
                    class: class_b,
                    evidence: said_b,
                    status: status_b,
                },
            ) => class_a == class_b && same_fault((said_a, status_a), (said_b, status_b)),
            _ => false,
        },
        (End::Uncounted(a), End::Uncounted(b)) => {
            a.code == b.code && (!a.is(codes::CONTRADICTED) || a.text == b.text)
        }
        _ => false,
    }
}

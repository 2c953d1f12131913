//! Which of several differences between two configurations changed the speed: a search over *arms*, the
//! first configuration with some of the differences applied. Knows nothing of cells: whoever asks
//! measures the arms.
//!
//! Arms are measured in rounds, one run of each arm in turn, so that a drift of the machine is common to
//! all of a round. Every pair of arms that shared rounds has an interval that holds however often it is
//! looked at, and all of them hold together with probability 1 − [`ERROR`]. The search decides by
//! these intervals alone: it bisects until one difference moves the time, measures that one alone, and
//! goes on with the others until what was found makes the whole.

mod cost;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::ChangedSetting;

pub use cost::{error_of_one, least_rounds, questions_at_most, usual_runs};
pub use search::{bisect, search};

/// The differences of an arm that are applied to the first configuration, by number.
pub type Arm = BTreeSet<usize>;

/// The probability that any interval of a search misses.
pub const ERROR: f64 = 0.02;

/// One run of an arm.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The time of a step in seconds.
    Time(f64),
    /// The arm does not run, or does other work than the first configuration: why.
    Fails(String),
    /// This run does not count, because something disturbed it.
    Lost,
}

/// How exact an answer is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Two arms whose times differ by less count as alike: 0.02 is 2 %.
    pub margin: f64,
    /// The number of rounds after which a question is left undecided.
    pub rounds: usize,
}

/// By how much a step takes longer: the ratio of two times less 1, with its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Effect {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// What one difference does without the others.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Alone {
    Makes(Effect),
    /// Within the margin.
    Nothing,
    /// It does not run without the others, or cannot be told.
    NotMeasured(String),
}

/// Differences that together change the time.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Cause {
    /// One; two that act together; or more that do not run apart.
    pub differences: Vec<usize>,
    /// What they make of the first configuration; of a difference that was not measured alone, what
    /// it makes on top of the differences before it.
    pub effect: Effect,
    /// For each of them.
    pub alone: Vec<Alone>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PairTold {
    Differs,
    /// Within the margin.
    Alike,
    Open,
    /// One of the two does not run.
    Fails,
}

/// Two arms that were measured in turns.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Measured {
    /// The question that they were measured for first, from 1.
    pub question: usize,
    /// The differences of either that are applied to the first configuration.
    pub from: Vec<usize>,
    pub to: Vec<usize>,
    /// Rounds in which a run of both counts.
    pub rounds: usize,
    /// By how much a step of the second takes longer, over these rounds.
    pub so_far: Option<f64>,
    /// The same with bounds, also by way of other arms; absent while a bound is missing.
    pub effect: Option<Effect>,
    pub told: PairTold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The causes make the whole difference, within the margin.
    Found,
    /// The two configurations take the same time, within the margin.
    Noise,
    /// The rounds or the budget were spent before the rest could be told apart.
    Undecided,
    /// They do not do the same work, so that nothing was measured.
    OtherWork,
    /// What can be varied makes no difference on this host; what was recorded before differs.
    HostChanged,
}

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub answer: Answer,
    /// The second configuration against the first; none where it does not run, or not often enough.
    pub total: Option<Effect>,
    pub causes: Vec<Cause>,
    /// The differences among which a cause lies that could not be told apart from the others.
    pub among: Vec<usize>,
    /// The differences that make nothing: within the margin, all that were measured together.
    pub cleared: Vec<usize>,
    /// The budget ended the search.
    pub is_spent: bool,
    pub questions: Vec<Measured>,
    /// Arms that do not run, and why.
    pub fails: Vec<(Arm, String)>,
    /// About how many more rounds it takes to answer the question that was left; none where nothing is
    /// undecided, or where that cannot be said.
    pub more_rounds: Option<usize>,
    /// Questions that were asked: *is there a difference, which half has it, is it this one?*
    pub verdicts: usize,
}

/// What is told of two cells, or of a cell then and now.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Blame {
    pub a: String,
    pub b: String,
    /// Times that differ by less count as the same.
    pub margin: f64,
    pub answer: Answer,
    /// Numbers in the other fields count these from 0.
    pub differences: Vec<ChangedSetting>,
    /// What was changed besides and cannot be varied: both configurations are measured with it as it is now.
    pub not_varied: Vec<ChangedSetting>,
    /// Commands that measure what of it can be varied alone: the versions of a package.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub varied_by: Vec<String>,
    /// Why they do not do the same work.
    pub other_work: Vec<String>,
    pub total: Option<Effect>,
    /// By how much a step takes longer now than was measured then; absent of two cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<f64>,
    pub causes: Vec<Cause>,
    pub among: Vec<usize>,
    /// The differences that make nothing: within the margin, all that were measured together.
    pub cleared: Vec<usize>,
    /// What goes on where the budget ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goes_on_by: Option<String>,
    /// About how many more rounds, of one run of each of 2 to 4 cells, it takes to answer the question
    /// that was left; absent where nothing is undecided, or where that cannot be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more_rounds: Option<usize>,
    pub fails: Vec<FailedArm>,
    /// Questions that were asked: is there a difference, which half has it, is it this one?
    pub verdicts: usize,
    /// What was measured for them.
    pub questions: Vec<Measured>,
    /// Runs that were made for it; what the cache had is not counted.
    pub runs: usize,
    pub gpu_hours: f64,
}

/// The first configuration with some of the differences, which does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FailedArm {
    pub with: Vec<usize>,
    pub why: String,
}

impl Blame {
    /// The differences of which nothing is known apart from others: neither a cause, nor cleared.
    #[must_use]
    pub fn remaining(&self) -> Vec<usize> {
        let guilty = |one: &usize| {
            self.causes
                .iter()
                .any(|cause| cause.differences.contains(one))
        };
        let all = 0..self.differences.len();
        all.filter(|one| !guilty(one) && !self.cleared.contains(one))
            .collect()
    }

    /// Nothing is known yet.
    #[must_use]
    pub fn of(a: &str, b: &str, margin: f64, differences: Vec<ChangedSetting>) -> Self {
        Self {
            a: a.to_owned(),
            b: b.to_owned(),
            margin,
            answer: Answer::Undecided,
            differences,
            not_varied: Vec::new(),
            varied_by: Vec::new(),
            other_work: Vec::new(),
            total: None,
            recorded: None,
            causes: Vec::new(),
            among: Vec::new(),
            cleared: Vec::new(),
            goes_on_by: None,
            more_rounds: None,
            fails: Vec::new(),
            verdicts: 0,
            questions: Vec::new(),
            runs: 0,
            gpu_hours: 0.0,
        }
    }

    pub fn take(&mut self, found: Found) {
        let failed = |(with, why): (Arm, String)| FailedArm {
            with: with.into_iter().collect(),
            why,
        };
        self.answer = found.answer;
        self.total = found.total;
        self.causes = found.causes;
        self.among = found.among;
        self.cleared = found.cleared;
        self.questions = found.questions;
        self.more_rounds = found.more_rounds;
        self.fails = found.fails.into_iter().map(failed).collect();
        self.verdicts = found.verdicts;
    }
}

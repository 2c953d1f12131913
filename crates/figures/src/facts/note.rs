//! What a reader must know beside the figures, and what sort of thing that is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ComparisonFact, RunFact};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    pub kind: NoteKind,
    /// What it is about; absent in a cell's own summary, and where it is about all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Its sentence is without the name of that cell before it, and without a full stop.
    #[serde(rename = "text")]
    pub fact: Fact,
}

/// What a note says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Fact {
    /// The sentence, where that is all that is kept: see [`super::in_words`].
    Said(String),
    Run(RunFact),
    Comparison(ComparisonFact),
}

impl From<RunFact> for Fact {
    fn from(fact: RunFact) -> Self {
        Self::Run(fact)
    }
}

impl From<ComparisonFact> for Fact {
    fn from(fact: ComparisonFact) -> Self {
        Self::Comparison(fact)
    }
}

/// In the order of telling.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// A comparison that was asked for and is not made.
    Refused,
    /// A run did not do what it was asked to.
    Contradicted,
    /// Figures that are of an earlier configuration.
    Earlier,
    /// A figure that cannot be right, ours or the trainer's.
    Doubtful,
    /// A setting that alone can decide a comparison.
    Dangerous,
    /// Two cells that ask for the very same, or share what was measured.
    Same,
    /// Figures that may not be laid beside each other, although their cells are compared.
    NotComparable,
    Failed,
    /// Something else disturbed a run.
    Suspect,
    /// How cells that are compared differ, or may differ, or that the baseline is not the one asked
    /// for.
    Differs,
    /// What else is not the same where the cells ran.
    Environment,
    /// Steps that are warm-up although they are not declared to be, or that look like it.
    WarmUp,
    Remark,
    /// How figures were made.
    Method,
}

impl Note {
    pub fn new(kind: NoteKind, fact: impl Into<Fact>) -> Self {
        Self {
            kind,
            cell: None,
            fact: fact.into(),
        }
    }

    pub fn of(cell: &str, kind: NoteKind, fact: impl Into<Fact>) -> Self {
        Self {
            cell: Some(cell.to_owned()),
            ..Self::new(kind, fact)
        }
    }
}

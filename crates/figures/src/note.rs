//! A sentence that a reader must know beside the figures, and what sort of thing it says: readers and reports go by the
//! sort, never by the words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    pub kind: NoteKind,
    /// What it is about; absent in a cell's own summary, and where it is about all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Without the name of that cell before it, and without a full stop.
    pub text: String,
}

/// In the order of telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
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
    /// How cells that are compared differ, or may differ, or that the baseline is not the one asked for.
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
    pub fn new(kind: NoteKind, text: impl Into<String>) -> Self {
        Self { kind, cell: None, text: text.into() }
    }

    pub fn of(cell: &str, kind: NoteKind, text: impl Into<String>) -> Self {
        Self { cell: Some(cell.to_owned()), ..Self::new(kind, text) }
    }
}

//! What a reader must know beside the figures, and what sort of thing that is.

use crate::results::{Reason, Severity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    pub kind: NoteKind,
    /// What it is about; absent in a cell's own summary, and where it is about all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Its text is without the name of that cell before it.
    #[serde(flatten)]
    pub reason: Reason,
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

impl NoteKind {
    fn severity(self) -> Severity {
        match self {
            Self::Refused | Self::Contradicted | Self::Failed | Self::Suspect => Severity::Excludes,
            Self::Earlier
            | Self::Doubtful
            | Self::Dangerous
            | Self::Same
            | Self::NotComparable
            | Self::Differs => Severity::Beside,
            Self::Environment | Self::WarmUp | Self::Remark | Self::Method => Severity::Detail,
        }
    }
}

impl Note {
    pub fn new(kind: NoteKind, code: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind,
            cell: None,
            reason: Reason::new(kind.severity(), code, text),
        }
    }

    /// The note with the cell that it is about.
    #[must_use]
    pub fn of(mut self, cell: &str) -> Self {
        self.cell = Some(cell.to_owned());
        self
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.reason = self.reason.with(name, value);
        self
    }
}

#[cfg(test)]
impl Note {
    pub fn text(&self) -> String {
        self.reason.text.clone()
    }
}

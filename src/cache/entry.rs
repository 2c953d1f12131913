//! What records hold: entries, attempts, outputs.

use serde::{Deserialize, Serialize};
use tprimat_base::digest::Digest;
use tprimat_job::{FailureClass, RunOutcome};
use tprimat_numbers::results::RepeatsPlanned;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskKind {
    Render,
    Train,
    Parse,
    Aggregate,
    Compare,
    Plot,
    Report,
}

impl TaskKind {
    /// One for the whole matrix, not one a cell.
    #[must_use]
    pub fn is_over_all(self) -> bool {
        matches!(self, Self::Compare | Self::Plot | Self::Report)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Render => "render",
            Self::Train => "train",
            Self::Parse => "parse",
            Self::Aggregate => "aggregate",
            Self::Compare => "compare",
            Self::Plot => "plot",
            Self::Report => "report",
        }
    }
}

/// One file that a task left: an object of the cache under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub name: String,
    pub digest: Digest,
    /// Bytes, uncompressed.
    pub size: u64,
}

/// A task that was done: its key, the whole pre-image of that key, and what it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Digest,
    pub kind: TaskKind,
    /// The task's name when it ran (`parse cpu/native/llama/single#2`); only for "what changed
    /// since last time".
    pub task: String,
    /// Canonical text whose digest is `key`.
    pub preimage: String,
    pub outputs: Vec<Output>,
}

/// Begins the id of an import; that of a run begins with its date.
pub const IMPORT: &str = "import-";

/// One execution of a train key. Immutable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Sorts by start time: `20261121T023705.123456Z-1a2b3c4d`.
    pub id: String,
    pub key: Digest,
    pub task: String,
    pub preimage: String,
    /// Opened by `--force=measured`; the highest one counts.
    pub generation: u32,
    pub outcome: RunOutcome,
    pub outputs: Vec<Output>,
    /// Seconds since 1970.
    pub started_at: f64,
    pub ended_at: f64,
    pub host: String,
    /// What disturbed it, if something did: a run that ended well is not counted then, and one that
    /// ran out of memory may not do so again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspect: Option<String>,
    /// How many runs of its cell were to be made when this one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_planned: Option<RepeatsPlanned>,
    /// Somebody decided that it does not count; a record of its own, which a later one may take
    /// back.
    #[serde(skip)]
    pub set_aside: Option<SetAside>,
    /// Files that its command names, that nobody declares, and that were written while it ran.
    #[serde(default, skip_serializing_if = "Undeclared::is_nothing")]
    pub undeclared: Undeclared,
    /// The commit of the project that it was launched from, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Only an import has it: what is known of its files. No build takes an import for a run of its own,
    /// because no task can have its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<serde_json::Value>,
    /// When it was recorded, in nanoseconds since 1970; 0 before that.
    #[serde(default)]
    pub recorded: u64,
}

/// Files that a run may have read or written: only its command names them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undeclared {
    /// Those that were there and changed. The attempt counts once somebody says that the run wrote
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Those that were not there when the run was planned. The run did not read them from its
    /// beginning, so it counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made: Vec<String>,
}

impl Undeclared {
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.changed.is_empty() && self.made.is_empty()
    }

    /// What was seen on another node of the same run.
    pub fn merge(&mut self, other: Self) {
        for (mine, theirs) in [
            (&mut self.changed, other.changed),
            (&mut self.made, other.made),
        ] {
            mine.extend(theirs);
            mine.sort();
            mine.dedup();
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.changed.iter().chain(&self.made)
    }

    /// Why the attempt does not count, and the line that makes it count if the run wrote the files.
    #[must_use]
    pub fn suspect(&self) -> Option<String> {
        (!self.changed.is_empty()).then(|| {
            format!(
                "{INPUTS_CHANGED}: {}; if the runs write that themselves, {} says so for good, and no other run is needed; if you \
                 edited it, {} has it measured anew",
                self.changed.join(", "),
                inputs_line(&self.changed, "!"),
                inputs_line(&self.changed, "")
            )
        })
    }

    /// What the run is believed to have written.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        (!self.made.is_empty()).then(|| {
            format!(
                "the run wrote {}, which its command names, so it is not taken for an input: {} says so for good; {} makes it one",
                self.made.join(", "),
                inputs_line(&self.made, "!"),
                inputs_line(&self.made, "")
            )
        })
    }
}

/// `inputs: ["!out.txt"]`, as config.yaml has it.
#[must_use]
pub fn inputs_line(names: &[String], sign: &str) -> String {
    let names: Vec<String> = names
        .iter()
        .map(|name| format!("\"{sign}{name}\""))
        .collect();
    format!("`inputs: [{}]`", names.join(", "))
}

/// Why an attempt does not count although it may have gone well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetAside {
    pub reason: String,
    /// Seconds since 1970.
    pub at: f64,
}

/// Begins the reason why an attempt is suspect whose inputs had other contents during its run.
pub const INPUTS_CHANGED: &str = "inputs changed while it ran";

/// The status of a run that was ended together with its build, by Ctrl-C, `tprimat stop` or the
/// death of tprimat.
pub const INTERRUPTED: &str = "interrupted";

/// Was a run ended together with its build? Then it did nothing wrong, and has not failed.
#[must_use]
pub fn is_interrupted(outcome: &RunOutcome) -> bool {
    matches!(outcome, RunOutcome::Failed { status, .. } if status == INTERRUPTED)
}

impl Attempt {
    /// A run that ended well, under the key that its pre-image has, with nothing else said of it: the
    /// caller adds what more it knows.
    #[must_use]
    pub fn ok(id: String, task: String, preimage: String, outputs: Vec<Output>) -> Self {
        Self {
            id,
            key: Digest::of(&preimage),
            task,
            preimage,
            generation: 0,
            outcome: RunOutcome::Ok,
            outputs,
            started_at: 0.0,
            ended_at: 0.0,
            host: String::new(),
            suspect: None,
            repeats_planned: None,
            set_aside: None,
            undeclared: Undeclared::default(),
            commit: None,
            origin: None,
            recorded: 0,
        }
    }

    /// Ended well, nothing disturbed it, and nobody set it aside: it counts.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.outcome == RunOutcome::Ok && self.suspect.is_none() && self.set_aside.is_none()
    }
    /// Ended well, but is kept and not counted.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.outcome == RunOutcome::Ok && self.suspect.is_some() && self.set_aside.is_none()
    }
    /// Was it ended together with its build?
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        is_interrupted(&self.outcome)
    }
    /// Did it end badly by itself?
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.outcome != RunOutcome::Ok && !self.is_interrupted()
    }
    /// Did it fail in a way that the same launch would meet again?
    #[must_use]
    pub fn will_fail_again(&self) -> bool {
        let lasts = |class: FailureClass| {
            class.is_deterministic() && self.suspect.is_none() && self.set_aside.is_none()
        };
        matches!(&self.outcome, RunOutcome::Failed { class, .. } if lasts(*class))
    }
    /// What its result is made from.
    #[must_use]
    pub fn log(&self) -> Option<&Output> {
        self.outputs.iter().find(|o| o.name == "log")
    }
}

//! How a run ends: classes of failure, and exit codes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    Oom,
    Nccl,
    Timeout,
    /// It made no more steps.
    Hang,
    Nan,
    Import,
    /// It read a file of the project that is no input, so its key does not say what was measured.
    Input,
    Port,
    Killed,
    /// It ended itself by a signal, as for a wrong memory access.
    Crash,
    Node,
    /// A launcher that is not there, or weights and data to which there is no access.
    Launch,
    Unknown,
}

impl FailureClass {
    /// Would the same bytes on the same hardware fail again? Such failures stay failed until the
    /// key changes. A command that was not found may be there now: installing it changes no key.
    #[must_use]
    pub fn is_deterministic(self) -> bool {
        matches!(self, Self::Oom | Self::Nan | Self::Import | Self::Input)
    }
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Nccl => "nccl",
            Self::Timeout => "timeout",
            Self::Hang => "hang",
            Self::Nan => "nan",
            Self::Import => "import",
            Self::Input => "input",
            Self::Port => "port",
            Self::Killed => "killed",
            Self::Crash => "crash",
            Self::Node => "node",
            Self::Launch => "launch",
            Self::Unknown => "unknown",
        }
    }
    /// ` (oom)` behind a word for the failure; nothing where its class says no more than that word.
    #[must_use]
    pub fn in_brackets(self) -> String {
        match self {
            Self::Unknown => String::new(),
            known => format!(" ({})", known.name()),
        }
    }
}

/// How a run of a trainer ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum RunOutcome {
    Ok,
    Failed {
        class: FailureClass,
        evidence: Vec<String>,
        /// Exit status in words: `exit 1`, `signal 9`, `timeout after 60 s`.
        status: String,
    },
}

impl RunOutcome {
    /// The trainer exited with 0, and its log reports an error: the log is believed.
    #[must_use]
    pub fn contradicted_by_log(class: FailureClass, evidence: Vec<String>) -> Self {
        let reported = match class {
            FailureClass::Nan => "the loss is not finite",
            _ => "the trainer reports an error",
        };
        Self::Failed {
            class,
            evidence,
            status: format!("exit 0, but {reported}"),
        }
    }

    /// The outcome of a run that ended with exit code 0 but printed losses that are NaN or infinite.
    #[must_use]
    pub fn with_nan_losses(evidence: Vec<String>) -> Self {
        Self::Failed {
            class: FailureClass::Nan,
            evidence,
            status: "exit 0, but the log has losses that are not finite".to_owned(),
        }
    }
}

/// Exit codes, the whole table.
pub mod exit {
    pub const OK: i32 = 0;
    /// A task failed, or what it printed contradicts its job.
    pub const FAILED: i32 = 1;
    pub const USAGE: i32 = 2;
    pub const REGRESSION: i32 = 3;
    pub const NOTHING_SELECTED: i32 = 4;
    /// Stale (`plan --exit-code`) or incomplete (`build --require=complete`).
    pub const STALE: i32 = 5;
    pub const INCONCLUSIVE: i32 = 6;
}

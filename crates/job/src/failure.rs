//! How a run ends: classes of failure, and exit codes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    Oom,
    Nccl,
    Timeout,
    Nan,
    Import,
    Port,
    Killed,
    Node,
    /// A launcher that is not there, or weights and data to which there is no access.
    Launch,
    Unknown,
}

impl FailureClass {
    /// Would the same bytes on the same hardware fail again? Such failures stay failed until the key changes. A command that
    /// was not found may be there now: installing it changes no key.
    #[must_use]
    pub fn is_deterministic(self) -> bool {
        matches!(self, Self::Oom | Self::Nan | Self::Import)
    }
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Nccl => "nccl",
            Self::Timeout => "timeout",
            Self::Nan => "nan",
            Self::Import => "import",
            Self::Port => "port",
            Self::Killed => "killed",
            Self::Node => "node",
            Self::Launch => "launch",
            Self::Unknown => "unknown",
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
    /// Stale (`plan --exit-code`) or incomplete (`build --require-complete`).
    pub const STALE: i32 = 5;
    pub const INCONCLUSIVE: i32 = 6;
}

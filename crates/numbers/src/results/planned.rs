//! How many runs of a cell were to be made, as each of them remembers it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was settled of a cell's runs before one of them was made. It decides which test they may have:
/// one for a number of runs that was fixed beforehand is wrong where runs were added until it was
/// significant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RepeatsPlanned {
    /// Their number.
    Number(u32),
    /// That runs are added until the speeds are told apart (`build --decide`).
    UntilDecided {
        /// Names the round: its runs, one of each cell, were made one after the other. It is the time
        /// of its start, in milliseconds since 1970.
        round: u64,
    },
}

impl RepeatsPlanned {
    #[must_use]
    pub fn number(self) -> Option<u32> {
        match self {
            Self::Number(number) => Some(number),
            Self::UntilDecided { .. } => None,
        }
    }

    #[must_use]
    pub fn round(self) -> Option<u64> {
        match self {
            Self::Number(_) => None,
            Self::UntilDecided { round } => Some(round),
        }
    }
}

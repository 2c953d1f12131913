//! Logs and results that others measured → runs that stand beside ours, labelled; no GPU needed.
//!
//! An import is stored as it came, under its own name: it is under no train key, so no build ever
//! takes it for a measurement. What it shows is read out of the stored bytes whenever it is asked
//! for, by the parsers of the day.
mod facts;
mod gather;
mod gpus;
mod names;
mod published;
mod read;
mod record;
mod result;
mod runs;
mod text;

pub use facts::{Facts, contradictions, facts, listed};
pub use gather::{Unit, file_name, gather};
pub use names::{Guess, canonical, configuration, content_guess, guess, stem};
pub use read::{check_one_run, chunks, is_ours, parts, read, reads, recognise, why_not_read};
pub use record::{Imports, KeptRun, Kind, OnDamage, Recorded, Source};
pub use result::{EXPECTED, OldResult, read_result};
pub use runs::{
    Claims, ImportedRun, claim_for, is_id, other_workload, runs, set_aside, summary, told_set_aside,
};
pub use text::brief;

//! jobs → a petgraph DAG of tasks, their keys, their states and the reasons.
mod code;
mod dag;
pub mod key;
mod keys;
mod reason;
mod state;
mod training;
mod wording;

pub use code::BUILD;
pub use code::CodeDigests;
pub use dag::{Dag, Task, label};
pub use reason::{Present, Reason, changed_fields, outcome_text};
pub use state::{Engine, Made, Options, State, Status, Statuses};
pub use training::filed_without;
pub use wording::worded;

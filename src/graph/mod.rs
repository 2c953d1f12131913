//! jobs → a petgraph DAG of tasks, their keys, their states and the reasons.
mod attempt_logs;
mod code;
mod compared;
mod dag;
mod damage;
mod earlier;
mod fault;
mod keys;
mod reason;
mod state;
mod status;
mod training;
mod wording;
mod work;
mod written;

pub use attempt_logs::{logs_to_read, lost_log};
pub use code::{BUILD, CodeDigests};
pub use compared::{ComparedCell, FiguresFrom};
pub use dag::{Dag, Task, TaskId, label};
pub use earlier::Earlier;
pub use reason::{NEVER_RUN, Present, Reason, changed_fields, outcome_text};
pub use state::{Engine, Options, Verdicts};
pub use status::{Artifacts, State, Status, Statuses};
pub use wording::{worded, worded_of_task};
pub use work::{Trainings, is_same_work, job_in, work_differences};
pub use written::Written;

//! What a build tells while it runs, what that adds up to, and the page that shows it.
//!
//! | module | |
//! |---|---|
//! | `event` | what happens, one event at a time |
//! | `series` | a curve of bounded length |
//! | `board` | events → a build at one moment |
//! | `server` | the page, its data and logs, for browsers of this host only |
//!
//! Nothing here opens a project's files: who serves a build says where its data are from
//! (`Source`).

mod board;
mod event;
mod series;
mod server;

pub use board::{
    BOARD_SCHEMA, Board, Counts, DeviceCurves, Failure, GoingOn, Progress, Run, State, Task,
    TaskState, TimeLeft,
};
pub use event::{CellCounts, Event, Outcome};
pub use series::Series;
pub use server::{LogPart, Server, Source};

//! The seam between what is run and where: an executor takes the spec of a run and answers with how
//! it goes and how it ended.
//!
//! Another batch system implements `batch::System` alone. Whoever adds an executor of another kind
//! implements [`Run`] for a run that was started, adds a word to
//! `plan::execution`, and an arm to `execute::train`. Keys,
//! parsing and reports do not know which one it is; the scheduler asks only whether a run takes
//! devices of this host. What they see is a run folder and a [`RunExit`].
//!
//! Most executors only bring the supervisor somewhere else, as `batch` does with
//! `tprimat __run DIR job`; one that cannot must write `log` and `exit.json` itself. Where runs
//! outlive their tprimat, `recover::take_up` finds one, and `execute::takeover` follows it to its
//! end. A container engine is not an executor but a variant of `EngineKind`.
//!
//! What an executor must keep:
//!
//! 1. The run folder is the run: the trainer's bytes are in `log`, `exit.json` appears once, whole,
//!    when no process of the run is left, and not before.
//! 2. `start` returns when somebody else is responsible for the end of the run, also if tprimat is
//!    killed the next instant.
//! 3. One attempt runs once: whatever dies in between, a second `start` of the same run folder
//!    starts nothing.
//! 4. What cannot be reached is not gone: `wait` goes on waiting. What ended well and is not seen
//!    is not lost: [`End::Unseen`].

use std::time::Duration;

use super::spec::{RunExit, RunState};
use crate::error::Result;

/// How often whoever waits for a run looks how it goes.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// A run that was started. While it lives, no other tprimat takes up its folder.
pub trait Run: Send + Sync {
    /// `None`: it has just begun.
    fn state(&self) -> Option<RunState>;
    /// Asks for the end: SIGTERM to everything, grace, SIGKILL. Returns at once, with what becomes of
    /// the run.
    fn terminate(&self) -> Interrupted;
    /// Ends the run without grace.
    fn kill(&self);
    /// Blocks until the run is over and no process of it is left, or until nobody is to wait any
    /// more. `look` is called about ten times a second meanwhile, more seldom while a batch system
    /// lets one wait for its answers.
    fn wait(&self, look: &mut (dyn FnMut() + Send)) -> Result<End>;
}

/// What becomes of a run whose build is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// It ends; [`Run::kill`] ends it at once.
    Ends,
    /// Its job is cancelled; [`Run::kill`] leaves it.
    IsCancelled,
    /// Its job goes on, as somebody says when the wait for it ends.
    GoesOn,
}

/// How the wait for a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Over(Box<RunExit>),
    /// The run goes on without this tprimat: as which job, and the command that cancels it.
    GoesOn {
        job: String,
        cancels: String,
    },
    /// The batch system does not take the run, so nothing has run; in a sentence why. Other runs may
    /// be taken.
    Refused(String),
    /// No job was ever submitted for the run, so nothing has run and nothing will.
    NeverWas,
    /// The run is over, and how it ended cannot be seen here yet; in a sentence. Its folder stays,
    /// and nothing is run instead.
    Unseen(String),
}

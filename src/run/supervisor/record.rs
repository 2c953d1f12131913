//! What a run leaves: its log, finished and on disk, and the record of how it ended.

use super::Supervisor;
use crate::{
    error::Result,
    run::{
        folder::{sync_run, write_exit},
        log_times::LogTimes,
        spec::RunExit,
    },
    secrets::Secrets,
};

impl Supervisor {
    /// Where the disk has no room for a record, the note of the trainer's end takes it in.
    pub(crate) fn record(&self, exit: &RunExit) -> Result<()> {
        write_exit(&self.spec.dir, exit).or_else(|error| match &self.end_note {
            Some(end) if end.note(exit).is_ok() => Ok(()),
            _ => Err(error),
        })
    }

    /// Notes how the trainer ended, at once. What cannot be noted is recorded a moment later all the same.
    pub(super) fn note_end(&self, exit: &RunExit) {
        if let Some(end) = &self.end_note
            && sync_run(&self.spec.dir, &self.telemetry).is_ok()
        {
            let _ = end.note(exit);
        }
    }

    /// Finishes the log, and brings it to disk; what a person should know of the run.
    pub(super) fn finish_log(
        &mut self,
        times: &mut LogTimes,
        is_container_gone: bool,
    ) -> Option<String> {
        times.look();
        let masked = Secrets::of(&self.spec.env).mask_file(&times.log);
        let mut notes = std::mem::take(&mut self.notes);
        if let Err(error) = sync_run(&self.spec.dir, &self.telemetry) {
            notes.push(format!("the log may not survive a power cut: {error}"));
        }
        if let Err(error) = masked {
            notes.push(format!(
                "tokens and passwords that the trainer printed may be in the log: {error}"
            ));
        }
        if !is_container_gone {
            notes.push("the container engine did not remove the run's container; the next build tries again".into());
        }
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

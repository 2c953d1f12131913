//! What a run leaves: its log, finished and on disk, and the record of how it ended.

use std::{io, time::Duration};

use super::Supervisor;
use crate::{
    digest::Digest,
    error::Result,
    execute::{
        log_times::{LogTimes, sync_run},
        run::{RunExit, RunSpec, digest_of_log, write_exit},
        secrets::Secrets,
    },
    job::Vendor,
};

impl Supervisor {
    /// Where the disk has no room for a record, the note of the trainer's end takes it in.
    pub(super) fn record(&self, exit: &RunExit) -> Result<()> {
        write_exit(&self.spec.dir, exit).or_else(|error| match &self.end_note {
            Some(end) if end.note(exit, exit.unsynced.is_none()).is_ok() => Ok(()),
            _ => Err(error),
        })
    }

    /// Notes how the trainer ended, at once. A job's host may be another one than that of whoever reads
    /// it. What cannot be noted is recorded a moment later all the same.
    pub(super) fn note_end(&self, exit: &RunExit) {
        if let Some(end) = &self.end_note {
            let is_log_synced = self.spec.job.is_some() && self.sync().is_ok();
            let _ = end.note(exit, is_log_synced);
        }
    }

    /// Does a tprimat on this host wait for the run? It brings what the run left to disk, as soon as
    /// it is told that the run has ended.
    pub(super) fn is_awaited(&mut self) -> bool {
        self.inbox.wait(Duration::ZERO);
        self.spec.job.is_none() && self.inbox.has_lifeline()
    }

    /// Finishes the log; its digest, if it was not brought to disk, and what a person should know of
    /// the run.
    pub(super) fn finish_log(
        &mut self,
        times: &mut LogTimes,
        is_container_gone: bool,
        is_short: bool,
    ) -> (Option<Digest>, Option<String>) {
        times.look();
        let masked = Secrets::of(&self.spec.env).mask_file(&times.log);
        let mut notes = std::mem::take(&mut self.notes);
        let may_be_left = is_short && self.left_nothing() && self.is_awaited();
        let unsynced = may_be_left.then(|| digest_of_log(&self.spec.dir)).flatten();
        if unsynced.is_none()
            && let Err(error) = self.sync()
        {
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
        (unsynced, (!notes.is_empty()).then(|| notes.join("; ")))
    }

    /// Brings to disk what the run left, before it is recorded how it ended.
    pub(super) fn sync(&self) -> io::Result<()> {
        sync_run(&self.spec.dir, &self.telemetry)
    }

    /// Is everything gone that the run had: processes, a container, threads that sample its devices?
    pub(super) fn left_nothing(&self) -> bool {
        let RunSpec {
            sampled, container, ..
        } = &self.spec;
        self.ended_alone
            && self.tree.has_no_descendants()
            && container.is_none()
            && sampled.is_none_or(|vendor| vendor == Vendor::Cpu)
    }
}

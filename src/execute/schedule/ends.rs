//! How the end of a task is taken in: what it left becomes its status and that of the tasks that
//! share its key, and what waited for it may start.

use std::sync::Arc;

use super::{Finished, Scheduler, room::Running, telling::Unread};
use crate::{
    cache::{Attempt, Entry, TaskKind, is_of_one_file},
    digest::Digest,
    error::{Error, Result},
    execute::{derived::Derived, see_through::Trained},
    figures::codes::SUSPECT,
    graph::{Artifacts, State, Status, Statuses, TaskId, label},
    job::RunOutcome,
    matrix::CellId,
};

impl Scheduler<'_> {
    pub(super) fn finished(&mut self, node: TaskId, finished: Finished, statuses: &mut Statuses) {
        if let Err(error) = self.take_in(node, finished, statuses) {
            self.give_up(error);
        }
    }

    fn take_in(&mut self, node: TaskId, finished: Finished, statuses: &mut Statuses) -> Result<()> {
        let Some(run) = self.room.leave(node) else {
            return Ok(());
        };
        self.summary.ran += 1;
        let key = run.key.ok_or_else(|| {
            let name = label(self.engine.plan, &self.engine.dag.task(node));
            Error::Internal(format!("task `{name}` ran without a key"))
        })?;
        match finished {
            // One bad file must not cost what else there is to measure tonight.
            Finished::Derived(Err(error)) if is_of_one_file(&error) => {
                self.nothing_recorded(node, &error.to_string(), statuses)
            }
            Finished::Derived(left) => self.take_in_derived(node, run, key, left?, statuses),
            Finished::Trained(trained) => {
                self.take_in_training(node, &run, key, *trained, statuses)
            }
        }
    }

    fn take_in_derived(
        &mut self,
        node: TaskId,
        run: Running,
        key: Digest,
        left: Derived,
        statuses: &mut Statuses,
    ) -> Result<()> {
        let task = self.engine.dag.task(node);
        let name = label(self.engine.plan, &task);
        let seconds = run.since.elapsed().as_secs_f64();
        for message in left.notes {
            self.say(message);
        }
        self.record_job(node)?;
        self.engine.cache.record_entry(&Entry {
            key,
            kind: task.kind,
            task: name.clone(),
            preimage: run.preimage,
            outputs: left.outputs.clone(),
        })?;
        if let (Some(verdict), [result]) = (left.verdict, &left.outputs[..]) {
            let verdicts = &self.engine.verdicts;
            verdicts.note(task.cell, result.digest, verdict);
        }
        statuses.set(node, Status::fresh(key, left.outputs));
        self.say_ended_well(name, seconds);
        self.done(node, statuses)
    }

    fn take_in_training(
        &mut self,
        node: TaskId,
        run: &Running,
        key: Digest,
        trained: Result<Trained>,
        statuses: &mut Statuses,
    ) -> Result<()> {
        self.record_job(node)?;
        // Trainings with the same key that have not started take this attempt too, even if it does
        // not count: a build measures a key once.
        let same_key = self.queue.end(&key);
        let attempt = match trained? {
            Trained::Attempt(attempt) => {
                self.summary.runs += 1;
                self.cool_down_after(node, run);
                attempt
            }
            Trained::Found(attempt) => attempt,
            Trained::Nothing(why) => {
                self.nothing_recorded(node, &why, statuses)?;
                // Cells with the same key may be run in another place, where the reason that kept
                // this one from running may not hold.
                for other in same_key {
                    self.ready(other, statuses)?;
                }
                return Ok(());
            }
        };
        self.trained.insert(key);
        self.summary.count(&attempt);
        self.say_what_is_odd(node, &attempt);
        let state = self.say_or_defer_its_end(node, &attempt);
        let status = Status {
            state,
            reason: None,
            key: Some(key),
            artifacts: Artifacts::Attempt(Arc::new(*attempt)),
            // What was dropped before is so still; this attempt is the one that stands.
            dropped: statuses.get(node).dropped.clone(),
        };
        for other in same_key {
            statuses.set(other, status.clone());
            self.settled(other, statuses)?;
        }
        statuses.set(node, status);
        if state == State::Failed {
            self.settle_repeats(self.engine.dag.task(node).cell, statuses)?;
        }
        self.done(node, statuses)
    }

    /// Starts no training on this host for a while after a run that had it to itself, as the
    /// configuration asks.
    fn cool_down_after(&mut self, node: TaskId, run: &Running) {
        let prepared = self.engine.plan.prepared(self.engine.dag.task(node).cell);
        if let Some(prepared) = prepared.filter(|_| run.needs.exclusive) {
            let seconds = prepared.resolved.cooldown_seconds;
            self.room.cool_down(seconds);
            self.say_cooldown(node, seconds);
        }
    }

    /// The state of a training by how its run ended. A failure is said at once; whether a run that
    /// ended well counts is said when its log is parsed.
    fn say_or_defer_its_end(&mut self, node: TaskId, attempt: &Attempt) -> State {
        let task = self.engine.dag.task(node);
        // How long it ran: it may have waited for a device, or for another tprimat that ran the
        // same.
        let seconds = (attempt.ended_at - attempt.started_at).clamp(0.0, f64::MAX);
        if attempt.outcome == RunOutcome::Ok {
            let name = label(self.engine.plan, &task);
            let parse = self
                .engine
                .dag
                .node(TaskKind::Parse, task.cell, task.repeat);
            self.unread.insert(parse, Unread { name, seconds });
            return State::Fresh;
        }
        self.summary.failed += 1;
        self.stopping |= self.options.fail_fast;
        self.say_failed(node, &attempt.outcome, seconds);
        State::Failed
    }

    /// The log of a run that ended well is parsed: it is known whether the run counts, which is said,
    /// and whether the build goes on.
    pub(super) fn judge(&mut self, parse: TaskId, ended: Unread, statuses: &Statuses) {
        let dag = self.engine.dag;
        let task = dag.task(parse);
        let train = statuses.get(dag.node(TaskKind::Train, task.cell, task.repeat));
        let verdict = self.engine.verdict(task.cell, train, statuses.get(parse));
        let Some(why) = verdict.flatten() else {
            return self.say_ended_well(ended.name, ended.seconds);
        };
        // A disturbed run has not failed.
        self.stopping |= self.options.fail_fast && !why.is(SUSPECT);
        self.say_not_counted(task.cell, ended, &why, statuses);
    }

    /// After a failure the other repeats of the cell may not run either: they are settled at once, so
    /// that what is left is told rightly.
    fn settle_repeats(&mut self, cell: CellId, statuses: &mut Statuses) -> Result<()> {
        for train in self.queued_of(cell) {
            let status = self.engine.evaluate(train.node, statuses)?;
            if status.state != State::Stale {
                self.queue.remove(train);
                statuses.set(train.node, status);
                self.settled(train.node, statuses)?;
            }
        }
        Ok(())
    }

    /// Marks a task as failed that left nothing; `why` says the reason, such as an input that
    /// changed after it was planned, or a damaged file.
    fn nothing_recorded(&mut self, node: TaskId, why: &str, statuses: &mut Statuses) -> Result<()> {
        self.stopping |= self.options.fail_fast;
        self.summary.failed += 1;
        self.say_not_run(node, why);
        let key = statuses.get(node).key;
        statuses.set(
            node,
            Status {
                key,
                ..Status::failed(why)
            },
        );
        self.done(node, statuses)
    }

    /// Stores the job's text, so that `show --stale` can look inside later: once, for it is the cell's.
    fn record_job(&mut self, node: TaskId) -> Result<()> {
        let task = self.engine.dag.task(node);
        let has_job = matches!(
            task.kind,
            TaskKind::Render | TaskKind::Train | TaskKind::Parse
        );
        if has_job
            && !self.recorded.contains(&task.cell)
            && let Some(prepared) = self.engine.plan.prepared(task.cell)
        {
            self.engine.cache.record_preimage(prepared.job_text())?;
            self.recorded.insert(task.cell);
        }
        Ok(())
    }
}

//! What a run does while it runs, for people: its steps, and what it waits for.

use std::path::Path;

use super::{
    event_sink::EventSink,
    events::{Event, HELD},
    launch::TrainWork,
};
use crate::{
    growing::Tail,
    logs,
    results::TelemetryLine,
    run::{
        devices::Holder,
        executor::Run,
        spec::{RunState, TELEMETRY},
    },
};

/// Reports the progress of a run.
pub(super) struct Follower<'a> {
    work: &'a TrainWork<'a>,
    run: &'a dyn Run,
    log: &'a Path,
    events: &'a EventSink,
    /// From the first look on; a short run is over before that.
    seen: Option<Seen>,
}

struct Seen {
    tail: Tail,
    live: logs::Live,
    samples: Tail,
    power_watts: Option<f64>,
    waiting_for: Option<String>,
    changed: Vec<String>,
}

impl<'a> Follower<'a> {
    pub fn of(
        work: &'a TrainWork<'a>,
        (run, log): (&'a dyn Run, &'a Path),
        events: &'a EventSink,
    ) -> Self {
        Self {
            work,
            run,
            log,
            events,
            seen: None,
        }
    }

    /// Reports what is new since the last look.
    pub fn look(&mut self) {
        let Self {
            work, log, events, ..
        } = self;
        let seen = self.seen.get_or_insert_with(|| Seen {
            tail: Tail::new(log),
            live: logs::Live::new(&work.measurement.log_section),
            samples: Tail::new(&log.with_file_name(TELEMETRY)),
            power_watts: None,
            waiting_for: None,
            changed: Vec::new(),
        });
        // The header, and a line of a newer sampler, say nothing of the power.
        let _ = seen.samples.poll(&mut |line| {
            seen.power_watts = serde_json::from_str(line)
                .ok()
                .as_ref()
                .and_then(TelemetryLine::power_watts);
        });
        let data = &work.job().data;
        let tokens_per_step = data.global_batch_size.saturating_mul(data.seq_length);
        let _ = seen.tail.poll(&mut |line| {
            if let Some(step) = seen.live.feed(line.as_bytes()) {
                events.report(&Event::Step {
                    task: work.name().to_owned(),
                    step: step.step,
                    steps_total: Some(work.job().train_iters),
                    step_time_seconds: step.step_time_seconds,
                    loss: step.loss,
                    tokens_per_second: step
                        .step_time_seconds
                        .filter(|t| *t > 0.0)
                        .map(|t| step.tokens.unwrap_or(tokens_per_step) as f64 / t),
                    power_watts: seen.power_watts,
                });
            }
        });
        let Some(state) = self.run.state() else {
            return;
        };
        if let Some(what_for) =
            awaited(&state).filter(|what_for| seen.waiting_for.as_ref() != Some(what_for))
        {
            events.report(&Event::TaskWaiting {
                task: work.name().to_owned(),
                what_for: what_for.clone(),
            });
            seen.waiting_for = Some(what_for);
        }
        if let RunState::Running { changed, .. } = state
            && changed.len() > seen.changed.len()
        {
            let message = format!(
                "{} will not count: {} changed while it runs",
                work.name(),
                changed.join(", ")
            );
            seen.changed = changed;
            events.report(&Event::Note { message });
        }
    }
}

/// What a run waits for, where it does.
fn awaited(state: &RunState) -> Option<String> {
    match state {
        RunState::WaitingForDevice { device, holder } => Some(match holder {
            Some(Holder {
                pid,
                run_id,
                project,
            }) => format!(
                "{device}{HELD}{pid} in {} (run {run_id})",
                project.display()
            ),
            None => device.clone(),
        }),
        RunState::Queued { reason } => Some(reason.clone()),
        _ => None,
    }
}

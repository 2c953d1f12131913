//! What a run does while it runs, for people: its steps, and what it waits for.

use std::{path::Path, sync::mpsc, time::Duration};

use super::{
    EventSink, Holder,
    events::Event,
    executor::Run,
    progress::Tail,
    run::{RunState, TELEMETRY},
    train_work::TrainWork,
};
use crate::{logs, results::TelemetryLine};

/// How often the progress of a run is looked at.
const FOLLOW_LOOK: Duration = Duration::from_millis(100);

/// Reports the run's progress until `over` has no other end any more.
pub(super) fn follow(
    work: &TrainWork,
    (run, log): (&dyn Run, &Path),
    over: mpsc::Receiver<()>,
    events: &EventSink,
) {
    let mut tail = Tail::new(log);
    let (mut samples, mut power_watts) = (Tail::new(&log.with_file_name(TELEMETRY)), None);
    let mut live = logs::Live::new(&work.measurement.log_section);
    let tokens_per_step = work
        .job
        .data
        .global_batch_size
        .saturating_mul(work.job.data.seq_length);
    let (mut waiting_for, mut changed) = (None, Vec::new());
    loop {
        // The header, and a line of a newer sampler, say nothing of the power.
        let _ = samples.poll(&mut |line| {
            power_watts = serde_json::from_str(line)
                .ok()
                .as_ref()
                .and_then(TelemetryLine::power_watts);
        });
        let _ = tail.poll(&mut |line| {
            if let Some(step) = live.feed(line.as_bytes()) {
                events.report(&Event::Step {
                    task: work.name().to_owned(),
                    step: step.step,
                    steps_total: Some(work.job.train_iters),
                    step_time_seconds: step.step_time_seconds,
                    loss: step.loss,
                    tokens_per_second: step
                        .step_time_seconds
                        .filter(|t| *t > 0.0)
                        .map(|t| step.tokens.unwrap_or(tokens_per_step) as f64 / t),
                    power_watts,
                });
            }
        });
        let state = run.state();
        if let Some(what_for) =
            awaited(&state).filter(|what_for| waiting_for.as_ref() != Some(what_for))
        {
            events.report(&Event::TaskWaiting {
                task: work.name().to_owned(),
                what_for: what_for.clone(),
            });
            waiting_for = Some(what_for);
        }
        if let RunState::Running { changed: seen, .. } = state
            && seen.len() > changed.len()
        {
            changed = seen;
            let message = format!(
                "{} will not count: {} changed while it runs",
                work.name(),
                changed.join(", ")
            );
            events.report(&Event::Note { message });
        }
        if over.recv_timeout(FOLLOW_LOOK) != Err(mpsc::RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// What a run waits for, where it does.
fn awaited(state: &RunState) -> Option<String> {
    match state {
        RunState::WaitingForDevice { device, holder } => Some(match holder {
            Some(holder) => {
                let place = match holder.project.as_os_str().is_empty() {
                    true => String::new(),
                    false => format!(" in {}", holder.project.display()),
                };
                let Holder { pid, run_id, .. } = holder;
                format!("{device} held by process {pid}{place} (run {run_id})")
            }
            None => device.clone(),
        }),
        RunState::Queued { reason } => Some(reason.clone()),
        _ => None,
    }
}

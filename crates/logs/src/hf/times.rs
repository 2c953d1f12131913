//! Step times from what bars or lines count since the beginning, mostly in whole seconds.

use crate::{MAX_REPORTS, Step, builder::Builder};

/// A shorter time is too coarse where seconds are whole.
const LEAST_SECONDS: f64 = 10.0;
/// Times that a long run is cut into at most.
const MOST_TIMES: f64 = 40.0;

/// Dates steps by `ends`, and gives them times where the log states none: means over several steps, as a
/// second is too much of one.
pub fn derive(ends: &[(u64, f64)], out: &mut Builder) {
    let process = out.trace.processes.len().saturating_sub(1);
    let began = out
        .trace
        .processes
        .last()
        .and_then(|process| process.first_step);
    let before = began.map_or(0, |first| first - 1);
    let ends: Vec<(u64, f64)> = ends
        .iter()
        .copied()
        .filter(|(step, _)| *step >= before)
        .collect();
    let evaluations = &out.trace.evaluations;
    let evaluated: Vec<u64> = evaluations.iter().filter_map(|e| e.step).collect();
    let is_known = evaluated.len() == evaluations.len() && evaluations.len() < MAX_REPORTS;
    let is_own = |step: &&mut Step| step.process as usize == process;
    let steps = &mut out.trace.steps;
    let mut own = steps.iter().filter(|s| s.process as usize == process);
    let is_timed = own.any(|s| s.step_time_seconds.is_some());
    let (Some(first), Some(last)) = (ends.first(), ends.last()) else {
        return;
    };
    let least = LEAST_SECONDS.max((last.1 - first.1) / MOST_TIMES);
    let (mut then, mut any) = (*first, false);
    for step in steps.iter_mut().filter(is_own) {
        let Ok(at) = ends.binary_search_by_key(&step.step, |(step, _)| *step) else {
            continue;
        };
        let (number, seconds) = ends[at];
        step.ended_at = step.ended_at.or(Some(seconds).filter(|s| *s > 0.0));
        if is_timed || seconds - then.1 < least || number <= then.0 {
            continue;
        }
        let count = number - then.0;
        step.step_time_seconds = Some((seconds - then.1) / count as f64);
        step.steps_averaged = Some(count).filter(|n| *n > 1);
        step.includes_evaluation =
            !is_known || evaluated.iter().any(|at| (then.0..number).contains(at));
        (then, any) = ((number, seconds), true);
    }
    if any {
        out.notes.add("step_time_derived", || {
            "step times are means of several steps, from the time that the progress bar or the lines count".to_owned()
        });
    }
}

//! Step times that become longer or shorter all the way through a run, as where a device grows warm or
//! memory is cut into pieces.

use crate::{
    figures::{Note, NoteKind, RepeatSummary, otherwise::LARGE_SHIFT},
    results::{RunResult, is_positive, quantile, words::repeats as named},
};

const PARTS: usize = 5;
/// Fewer times than two a part show no course.
const LEAST_ENTRIES: usize = 2 * PARTS;
/// A change from one part to the next that is more of the whole than this is one of level.
const AT_ONCE: f64 = 0.5;

/// Step times of the first and the last fifth of the measured part, where those between lead from one to the other.
fn drift(times: &[f64]) -> Option<[f64; 2]> {
    if times.len() < LEAST_ENTRIES {
        return None;
    }
    let bounds = |part: usize| part * times.len() / PARTS;
    let parts: Vec<f64> = (0..PARTS)
        .filter_map(|part| quantile(&times[bounds(part)..bounds(part + 1)], 0.5))
        .collect();
    let [first, .., last] = parts[..] else {
        return None;
    };
    let whole = (last / first).ln();
    let is_course = |pair: &[f64]| {
        let share = (pair[1] / pair[0]).ln() / whole;
        share > 0.0 && share <= AT_ONCE
    };
    let is_steady = parts.windows(2).all(is_course);
    (whole.abs() >= LARGE_SHIFT.ln_1p() && is_steady).then_some([first, last])
}

fn of_run(repeat: &RepeatSummary, result: &RunResult) -> Option<[f64; 2]> {
    let from = repeat.cut()?.first_step;
    let is_measured = |step: &&tprimat_logs::Step| step.step >= from && !step.includes_evaluation;
    let steps = result.trace.steps.iter().filter(is_measured);
    let times = steps.filter_map(|step| step.step_time_seconds);
    let times: Vec<f64> = times.filter(|time| is_positive(*time)).collect();
    drift(&times).filter(|_| !result.workload.tokens_vary)
}

/// One note: of the repeat that drifts the most.
pub(super) fn notes(counted: &[(&RepeatSummary, &RunResult)]) -> Option<Note> {
    let found = counted.iter().filter_map(|(repeat, result)| {
        let times = of_run(repeat, result)?;
        Some((repeat, times))
    });
    let found: Vec<_> = found.collect();
    let of: Vec<u32> = found.iter().map(|(repeat, _)| repeat.repeat).collect();
    let size = |times: &[f64; 2]| (times[1] / times[0]).ln().abs();
    let (repeat, [first, last]) =
        (found.into_iter()).max_by(|(_, a), (_, b)| size(a).total_cmp(&size(b)))?;
    let steady = repeat.steady.as_ref()?;
    let rate = |time: f64| steady.tokens_per_second_per_gpu * steady.step_time.mean_seconds / time;
    let figures = match of.len() {
        1 => String::new(),
        _ => format!(" (figures of repeat {})", repeat.repeat),
    };
    let text = format!(
        "{}{figures}: the speed drifts by {:+.1} % over the measured part, from {:.0} tokens/s per device in its first fifth to {:.0} \
         in its last one, so a longer run has another rate",
        named(&of),
        (first / last - 1.0) * 100.0,
        rate(first),
        rate(last),
    );
    let note = Note::new(NoteKind::Doubtful, "drift", text);
    Some(note.with("ratio", first / last).with("repeats", of))
}

#[cfg(test)]
mod tests {
    use super::drift;

    fn times(of: impl Fn(f64) -> f64, n: usize) -> Vec<f64> {
        let time = |at: usize| of(at as f64 / n as f64) * (1.0 + 0.004 * ((at * 7) % 5) as f64);
        (0..n).map(time).collect()
    }

    #[test]
    fn a_course_is_no_jump_and_no_noise() {
        for n in [10, 30, 300] {
            let [first, last] = drift(&times(|at| 2.0 * (1.0 + 0.2 * at), n)).unwrap();
            assert!((last / first - 1.15).abs() < 0.03, "{n}: {first} {last}");
            assert!(
                drift(&times(|at| 2.0 * (1.0 - 0.2 * at), n)).is_some(),
                "{n}"
            );
            assert_eq!(drift(&times(|_| 2.0, n)), None, "{n}");
            assert_eq!(drift(&times(|at| 2.0 * (1.0 + 0.03 * at), n)), None, "{n}");
            let jump = |at: f64| if at < 0.5 { 2.0 } else { 2.4 };
            assert_eq!(drift(&times(jump, n)), None, "{n}");
        }
        assert_eq!(drift(&times(|at| 2.0 + at, 9)), None);
    }
}

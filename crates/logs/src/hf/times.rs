//! Step times from what bars or lines count since the beginning, mostly in whole seconds, or from
//! what the end of the log says of the whole run.

use crate::{
    CoarseClock, MAX_REPORTS, Step, TOTAL_RATE, WHOLE_RUN, builder::Builder, numbers::as_count,
    values::once,
};

fn total(name: &str, out: &Builder) -> Option<f64> {
    out.trace.totals.get(name).copied().filter(|n| *n > 0.0)
}

/// How many steps the summary at the end of a run is of, and by how many it may be wrong: a figure has
/// four digits, or three behind the point.
fn of_summary(out: &Builder) -> Option<(f64, f64)> {
    let seconds = total("train_runtime_seconds", out)?;
    let rate = total("train_steps_per_second", out)?;
    let steps = rate * seconds;
    Some((steps, 1e-4 * steps + 5e-4 * seconds))
}

/// Is this number that of the summary? A bar of something else has another one, and so has that of a
/// run which stopped early.
fn is_of_summary(steps: u64, out: &Builder) -> bool {
    of_summary(out).is_some_and(|(all, wrong)| (steps as f64 - all).abs() <= 1.0 + wrong)
}

/// Does the summary speak of another number of steps than the bar?
pub fn is_of_another(total: u64, out: &Builder) -> bool {
    of_summary(out).is_some() && !is_of_summary(total, out)
}

/// The steps of a log that has no line for any, where its bar was drawn: those that can be timed, and
/// the last one.
pub fn of_bars(ends: &[(u64, f64)], out: &mut Builder) {
    let (Some(mut then), Some(last)) = (ends.first(), ends.last()) else {
        return;
    };
    if !out.trace.steps.is_empty() || !is_of_summary(last.0, out) {
        return;
    }
    let least = CoarseClock::least_seconds(ends);
    for end in ends {
        if end.1 - then.1 >= least || end.0 == last.0 {
            out.put(Step {
                step: end.0,
                ..Step::default()
            });
            then = end;
        }
    }
}

/// The steps of the whole run and its time, by the summary at its end; `stated`: steps, where a bar or a banner says how
/// many there are.
fn whole_run(stated: Option<u64>, out: &Builder) -> Option<(u64, f64)> {
    let seconds = total("train_runtime_seconds", out)?;
    let (all, wrong) = of_summary(out)?;
    let steps = match stated {
        Some(steps) => Some(steps).filter(|steps| is_of_summary(*steps, out)),
        None => as_count(all.round()).filter(|_| wrong < 5e-3 * all),
    };
    Some((steps.filter(|steps| *steps > 0)?, seconds))
}

/// The steps that the run was asked for, by a summary that has enough digits to tell their number.
pub fn asked_for(out: &mut Builder) {
    let known = of_summary(out)
        .filter(|(steps, wrong)| *wrong < 0.25 && (steps - steps.round()).abs() <= *wrong);
    if let Some(steps) = known.and_then(|(steps, _)| as_count(steps.round())) {
        once("train_iters", steps, out);
    }
}

/// The mean step time of the whole run, where no step has a time or a rate.
/// `is_drawn`: are the steps `stated` by a bar, which tells where a run stopped? The summary speaks of all steps that were
/// asked for.
pub fn of_whole_run(stated: Option<u64>, is_drawn: bool, out: &mut Builder) {
    let is_timed = |step: &Step| {
        step.step_time_seconds.is_some()
            || step.tokens_per_second_per_gpu.is_some()
            || step.other.contains_key(TOTAL_RATE)
    };
    if out.trace.processes.len() > 1 {
        return;
    }
    let Some((steps, seconds)) = whole_run(stated, out) else {
        return;
    };
    if let Some(clock) = &mut out.trace.clock {
        clock.ends_with(steps, seconds);
    }
    if out.trace.steps.iter().any(is_timed) {
        return;
    }
    let tokens = total("num_input_tokens_seen", out);
    let tokens = tokens.and_then(|seen| as_count((seen / steps as f64).round()));
    // What the last line says of its own step stays.
    let line = out.trace.steps.pop_if(|line| line.step >= steps);
    let mut step = line.unwrap_or(Step {
        step: steps,
        ..Step::default()
    });
    step.step_time_seconds = Some(seconds / steps as f64);
    step.steps_averaged = Some(steps).filter(|steps| *steps > 1);
    step.tokens = step.tokens.or(tokens);
    out.put(step);
    // Then it is known how fast the steps were, and not how many.
    let is_rough = of_summary(out).is_some_and(|(_, wrong)| wrong > 0.5);
    out.trace.steps_assumed |= stated.is_none() && is_rough;
    let what = out.trace.beside_steps();
    out.notes.add(WHOLE_RUN, || {
        let text = format!("the log has no step times; its rate is that of the whole run, with {what}");
        match is_drawn {
            true => text,
            false => format!("{text}, if all steps were run: without a bar, a run that stopped early looks like a quicker one"),
        }
    });
}

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
    let Some(first) = ends.first() else {
        return;
    };
    out.trace.clock = match &out.trace.clock {
        None => Some(CoarseClock::new(&ends)).filter(|_| process == 0 && !is_timed),
        // The bar of each process counts from its own beginning.
        Some(_) => Some(CoarseClock::default()),
    };
    // Whoever measures by the clock makes times of its own, and takes each line's own tokens.
    let is_final = out
        .trace
        .clock
        .as_ref()
        .is_none_or(|clock| clock.ends.is_empty());
    let least = CoarseClock::least_seconds(&ends);
    let (mut then, mut any) = (*first, false);
    // A line's tokens are those of a step since the line before it; a time is of all steps since the last one that has a time.
    let (mut line, mut tokens) = (first.0, Some(0.0));
    for step in steps.iter_mut().filter(is_own) {
        let since = step
            .step
            .saturating_sub(std::mem::replace(&mut line, step.step)) as f64;
        tokens = tokens
            .zip(step.tokens)
            .map(|(all, each)| all + each as f64 * since);
        let Ok(at) = ends.binary_search_by_key(&step.step, |(step, _)| *step) else {
            continue;
        };
        let (number, seconds) = ends[at];
        step.ended_at = step.ended_at.or(Some(seconds).filter(|s| *s > 0.0));
        if is_timed || seconds - then.1 < least || number <= then.0 {
            continue;
        }
        let count = number - then.0;
        if let Some(all) = tokens.replace(0.0).filter(|_| is_final) {
            step.tokens = as_count((all / count as f64).round()).or(step.tokens);
        }
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

#[cfg(test)]
mod tests {
    use tprimat_base::words::part;

    use super::super::tests::parse;

    const SUMMARY: &str = "{'train_runtime': '6.047', 'train_samples_per_second': '26.46', 'train_steps_per_second': \
                           '6.615', 'train_loss': '5.56', 'epoch': '0.03906', 'num_input_tokens_seen': 10240}\n";

    /// As a script that says nothing of logging prints it.
    fn bar(step: u64, seconds: u64) -> String {
        format!("\r  5%|5         | {step}/40 [00:{seconds:02}<00:07,  5.07it/s]")
    }

    #[test]
    fn a_summary_alone_times_the_whole_run() {
        for log in [
            SUMMARY.to_owned(),
            bar(1, 0) + &bar(37, 5) + SUMMARY + &bar(40, 6),
        ] {
            let trace = parse(&log);
            let [.., step] = &trace.steps[..] else {
                panic!("{trace:?}")
            };
            assert_eq!((step.step, step.steps_averaged), (40, Some(40)));
            assert_eq!(step.step_time_seconds, Some(6.047 / 40.0));
            assert_eq!(step.tokens, Some(256));
            assert!(trace.anomalies.iter().any(|a| a.kind == crate::WHOLE_RUN));
        }
    }

    #[test]
    fn a_bar_that_was_drawn_often_enough_times_its_parts() {
        let drawn: String = (1..=40).map(|step| bar(step, 2 * step)).collect();
        let trace = parse(&(drawn + &SUMMARY.replace("6.047", "80.5").replace("6.615", "0.497")));
        let times = trace.steps.iter().map(|s| (s.step, s.step_time_seconds));
        let times: Vec<_> = times.collect();
        assert_eq!(
            times,
            [
                (11, Some(2.0)),
                (21, Some(2.0)),
                (31, Some(2.0)),
                (40, None)
            ]
        );
        // The summary's time is that of the last bar, with the part of a second that no bar shows.
        let clock = trace.clock.unwrap();
        assert_eq!(clock.whole_run, Some((40, 80.5)));
        assert_eq!((clock.ends[0], clock.ends[39]), ((1, 2.0), (40, 80.5)));
        assert!(!trace.anomalies.iter().any(|a| a.kind == crate::WHOLE_RUN));
    }

    #[test]
    fn a_run_that_goes_on_or_stops_early_has_no_time_of_its_own() {
        let resumed = "Continuing training from global step 30\n".to_owned() + SUMMARY;
        let early = bar(1, 0) + &bar(20, 5) + SUMMARY;
        let without_rate = part(SUMMARY, ..26).to_owned() + "}\n";
        for log in [resumed, early, without_rate] {
            let trace = parse(&log);
            assert!(
                trace.steps.iter().all(|s| s.step_time_seconds.is_none()),
                "{log}"
            );
        }
    }
}

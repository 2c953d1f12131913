//! Step times from what bars or lines count since the beginning, mostly in whole seconds, or from
//! what the end of the log says of the whole run.

use super::fields::Fields;
use crate::{
    CoarseClock, MAX_REPORTS, MEAN_BATCH, PARTIAL_BATCHES, Process, Step, TOTAL_RATE, WHOLE_RUN,
    builder::{Builder, MAX_STEPS},
    numbers::as_count,
    values::once,
};

/// When steps had ended by the dates of their lines, in seconds since the first of them.
#[derive(Default)]
pub struct Dated {
    first: Option<f64>,
    ends: Vec<(u64, f64)>,
    is_torn: bool,
}

impl Dated {
    pub fn ended(&mut self, step: u64, date: Option<f64>) {
        let Some(date) = date else {
            self.is_torn = true;
            return;
        };
        let seconds = date - *self.first.get_or_insert(date);
        let last = self.ends.last();
        if last.is_some_and(|(_, then)| seconds < *then) || self.ends.len() >= MAX_STEPS {
            self.is_torn = true;
        } else if last.is_none_or(|(last, _)| *last < step) {
            self.ends.push((step, seconds));
        }
    }

    /// None where a line has no date, or an earlier one than the line before it.
    pub fn ends(self) -> Vec<(u64, f64)> {
        match self.is_torn {
            true => Vec::new(),
            false => self.ends,
        }
    }
}

/// A cumulative time and token count, of which differences are taken.
#[derive(Default)]
pub struct Elapsed {
    pub at: Option<(u64, f64)>,
    pub tokens: Option<(u64, f64)>,
    gap: Option<u64>,
}

impl Elapsed {
    /// Step time and tokens as differences of what the lines count since the beginning.
    pub fn differences(&mut self, step: &mut Step, fields: &Fields, out: &mut Builder) {
        if let Some(seen) = fields.tokens_seen() {
            let (then, tokens) = self.tokens.unwrap_or((0, 0.0));
            let steps = step.step.saturating_sub(then) as f64;
            let each = (seen - tokens) / steps;
            // The first line of a resumed run has the tokens of the run before in its total.
            let whole_run = self.tokens.is_some() || step.step <= 1;
            step.tokens = as_count(each.round()).filter(|n| *n > 0 && whole_run);
            self.tokens = Some((step.step, seen));
        }
        let Some((now, resolution)) = fields.elapsed() else {
            return;
        };
        let then = self.at.replace((step.step, now));
        let Some((then_step, then)) = then.filter(|(s, _)| *s < step.step) else {
            return;
        };
        let (steps, seconds) = (step.step - then_step, now - then);
        let gap = *self.gap.get_or_insert(steps);
        self.gap = Some(gap.min(steps));
        // Over a hole in the log it would be the mean of more steps than the line stands for. Whole seconds are too coarse for most
        // lines, and to time only the slow ones would be wrong: `times::derive` makes means of them.
        if steps <= gap && resolution < 1.0 && seconds >= 50.0 * resolution && seconds < 1e7 {
            step.step_time_seconds = Some(seconds / steps as f64);
            if !out.notes.has("step_time_derived") {
                out.notes.add("step_time_derived", || {
                    "step times are differences of the time since the beginning, evaluations included".to_owned()
                });
            }
        }
    }
}

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
pub fn of_bars(ends: &[(u64, f64)], done: Done, out: &mut Builder) {
    let (Some(mut then), Some(last)) = (ends.first(), ends.last()) else {
        return;
    };
    let is_end = done == Done::Known(last.0) || is_of_summary(last.0, out);
    if !out.trace.steps.is_empty() || !is_end {
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

/// How many steps a run had done at its end.
#[derive(Clone, Copy, PartialEq)]
pub enum Done {
    Known(u64),
    /// As many as were asked for, as far as the log tells: those that a bar or a banner states, else those of the summary.
    All(Option<u64>),
    /// Fewer than were asked for.
    Fewer,
}

/// The steps that were done; `by_epoch`: the first and the last step that the epoch of the summary may be that of. The
/// summary's rates are of all steps that were asked for.
pub fn done(stated: Option<u64>, by_epoch: Option<[f64; 2]>, out: &Builder) -> Done {
    if let Some(steps) = total("global_step", out).and_then(as_count) {
        return Done::Known(steps);
    }
    let asked = of_summary(out).map(|(steps, _)| steps);
    let early = by_epoch.zip(asked).filter(|([_, last], asked)| {
        // A step more or less an epoch has where the last micro-batches of one go into the next.
        *asked > 1.05 * last + 1.0
    });
    match early {
        None => Done::All(stated),
        Some(([first, last], _)) => match stated {
            Some(drawn) if (first..=last).contains(&(drawn as f64)) => Done::Known(drawn),
            _ if first == last => as_count(first).map_or(Done::Fewer, Done::Known),
            _ => Done::Fewer,
        },
    }
}

/// The last step of the run and its time, by the summary at its end.
fn whole_run(done: Done, out: &Builder) -> Option<(u64, f64)> {
    let seconds = total("train_runtime_seconds", out)?;
    let steps = match done {
        Done::Known(steps) => Some(steps),
        Done::Fewer => None,
        Done::All(Some(steps)) => Some(steps).filter(|steps| is_of_summary(*steps, out)),
        Done::All(None) => {
            let (all, wrong) = of_summary(out)?;
            as_count(all.round()).filter(|_| wrong < 5e-3 * all)
        }
    };
    Some((steps.filter(|steps| *steps > 0)?, seconds))
}

/// The last batches of epochs have fewer sequences than the others; `mean`: sequences of a step on average.
pub fn fewer_sequences(mean: Option<f64>, out: &mut Builder) {
    let batch = out.trace.effective.0.get("global_batch_size");
    let (Some(mean), Some(batch)) = (mean, batch.and_then(serde_json::Value::as_u64)) else {
        return;
    };
    out.total(MEAN_BATCH, mean);
    out.notes.add(PARTIAL_BATCHES, || {
        format!("the last step of an epoch has fewer than {batch} sequences: a step has {mean:.2} on average")
    });
}

/// The steps that the run was asked for, by a summary that has enough digits to tell their number.
pub fn asked_for(out: &mut Builder) {
    let known = of_summary(out)
        .filter(|(steps, wrong)| *wrong < 0.25 && (steps - steps.round()).abs() <= *wrong);
    if let Some(steps) = known.and_then(|(steps, _)| as_count(steps.round())) {
        once("train_iters", steps, out);
    }
}

/// The mean step time of the whole run, where no step has a time or a rate; `after`: the last step of the run that it goes on
/// from.
/// `is_drawn`: are the steps stated by a bar, which tells where a run stopped? The summary speaks of all steps that were
/// asked for.
pub fn of_whole_run(after: u64, done: Done, is_drawn: bool, out: &mut Builder) {
    let is_timed = |step: &Step| {
        step.step_time_seconds.is_some()
            || step.tokens_per_second_per_gpu.is_some()
            || step.other.contains_key(TOTAL_RATE)
    };
    if out.trace.processes.len() > 1 {
        return;
    }
    if done == Done::Fewer {
        out.notes.add("stopped_early", || {
            "by its last epoch the run stopped early, and the summary's rates are of all steps that were asked for".to_owned()
        });
    }
    let Some((last, seconds)) = whole_run(done, out) else {
        return;
    };
    let Some(steps) = last.checked_sub(after).filter(|steps| *steps > 0) else {
        return;
    };
    if after > 0 && out.trace.processes.is_empty() {
        let first_step = Some(after + 1);
        out.trace.processes.push(Process {
            line: 0,
            first_step,
        });
    }
    if let Some(clock) = &mut out.trace.clock {
        clock.ends_with(last, seconds);
    }
    if out.trace.steps.iter().any(is_timed) {
        return;
    }
    let tokens = total("num_input_tokens_seen", out);
    let tokens = tokens.and_then(|seen| as_count((seen / last as f64).round()));
    // What the last line says of its own step stays.
    let line = out.trace.steps.pop_if(|line| line.step >= last);
    let mut step = line.unwrap_or(Step {
        step: last,
        ..Step::default()
    });
    step.step_time_seconds = Some(seconds / steps as f64);
    step.steps_averaged = Some(steps).filter(|steps| *steps > 1);
    step.tokens = step.tokens.or(tokens);
    out.put(step);
    // Then it is known how fast the steps were, and not how many.
    let is_rough = of_summary(out).is_some_and(|(_, wrong)| wrong > 0.5);
    out.trace.steps_assumed |= done == Done::All(None) && is_rough;
    let what = out.trace.beside_steps();
    let open = match done {
        _ if is_drawn => None,
        Done::Known(_) if after > 0 => None,
        // The end is known, and not where the run began.
        Done::Known(_) => Some("if it did not go on from a checkpoint"),
        _ => Some("if all steps were run"),
    };
    out.notes.add(WHOLE_RUN, || {
        let text = format!("the log has no step times; its rate is that of the whole run, with {what}");
        match open {
            None => text,
            Some(open) => format!(
                "{text}, {open}: without a bar, a run that stopped early or went on from a checkpoint looks like a quicker one"
            ),
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

    /// The summary divides by the 40 steps that were asked for.
    #[test]
    fn the_steps_of_a_run_that_goes_on_or_stops_early_are_its_own() {
        let resumed = "Continuing training from global step 30\n".to_owned() + SUMMARY;
        let output = SUMMARY.to_owned()
            + "TrainOutput(global_step=20, training_loss=5.5, metrics={'train_runtime': 6.047})\n";
        let banner = "***** Running training *****\n  Num examples = 1,024\n  Total train batch size (w. parallel, distributed & \
                      accumulation) = 8\n  Total optimization steps = 40\n";
        let stopped = banner.to_owned() + &SUMMARY.replace("0.03906", "0.15625");
        let both = banner.to_owned() + "Continuing training from global step 10\n" + &output;
        for (log, last, steps) in [
            (resumed, 40, 10),
            (output, 20, 20),
            (stopped, 20, 20),
            (both, 20, 10),
        ] {
            let trace = parse(&log);
            let [step] = &trace.steps[..] else {
                panic!("{log}: {trace:?}")
            };
            assert_eq!((step.step, step.count()), (last, steps), "{log}");
            assert_eq!(step.step_time_seconds, Some(6.047 / steps as f64), "{log}");
        }
        // An epoch of two digits may be that of several steps.
        let rough = banner.to_owned() + &SUMMARY.replace("0.03906", "0.16");
        let trace = parse(&rough);
        assert!(trace.steps.is_empty());
        assert!(trace.anomalies.iter().any(|a| a.kind == "stopped_early"));
    }

    /// 1,000 sequences are 31 whole batches of 32 and 8 more.
    #[test]
    fn the_last_step_of_an_epoch_may_have_fewer_sequences() {
        let run = |micro: u64, total: u64, more: &str| {
            let banner = format!(
                "***** Running training *****\n  Num examples = 1,000\n  Num Epochs = 2\n  Instantaneous batch size per device = {micro}\n  \
                 Total train batch size (w. parallel, distributed & accumulation) = 32\n  Gradient Accumulation steps = 1\n  Total \
                 optimization steps = {total}\n{more}"
            );
            let drawn: String = (1..=total)
                .map(|step| {
                    format!(
                        "\r  5%|5  | {step}/{total} [{:02}:{:02}<00:07,  5.07it/s]",
                        step / 30,
                        2 * step % 60
                    )
                })
                .collect();
            parse(
                &(banner
                    + &drawn
                    + "\n{'train_runtime': 128.0, 'train_steps_per_second': 0.5, 'epoch': 2.0}\n"),
            )
        };
        let mean = |trace: &crate::Trace| trace.totals.get(crate::MEAN_BATCH).copied();
        assert_eq!(mean(&run(32, 64, "")), Some(2000.0 / 64.0));
        // Several processes fill their batches up; and the last batch may be dropped.
        assert_eq!(mean(&run(4, 64, "")), None);
        assert_eq!(mean(&run(32, 62, "")), None);
        assert_eq!(
            mean(&run(
                32,
                64,
                "TrainingArguments(dataloader_drop_last=True)\n"
            )),
            None
        );
    }

    #[test]
    fn a_run_without_the_time_or_the_number_of_its_steps_has_no_time() {
        let early = bar(1, 0) + &bar(20, 5) + SUMMARY;
        let without_rate = part(SUMMARY, ..26).to_owned() + "}\n";
        for log in [early, without_rate] {
            let trace = parse(&log);
            assert!(
                trace.steps.iter().all(|s| s.step_time_seconds.is_none()),
                "{log}"
            );
        }
    }
}

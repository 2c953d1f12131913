use proptest::{collection::vec, prelude::*};
use tprimat_logs::Evaluation;

use super::*;
use crate::figures::{RepeatStatus, Statistics, Summary, summarize, summary::tests::run};

const START: f64 = 1e9;

/// A run that took `seconds`. Its trainer says that its steps took `times`, and that they ended
/// `ends` seconds after the start.
fn dated(times: &[f64], ends: &[f64], seconds: f64) -> RunResult {
    let mut result = run(times);
    (result.started_at, result.ended_at) = (Some(START), Some(START + seconds));
    result
        .trace
        .steps
        .iter_mut()
        .zip(ends)
        .for_each(|(step, end)| step.ended_at = Some(START + end));
    result
}

/// Ends of steps: so many, so far apart.
fn every(seconds: f64, steps: u32) -> Vec<f64> {
    (1..=steps).map(|i| f64::from(i) * seconds).collect()
}

fn summary(result: RunResult) -> Summary {
    summarize(&[(1, result)], &Statistics::default())
}

/// Why a run does not count.
#[track_caller]
fn refused(result: RunResult) -> String {
    let summary = summary(result);
    assert!(
        summary.n == 0
            && summary.tokens_per_second_per_gpu.is_none()
            && summary.repeats[0].steady.is_none()
    );
    match &summary.repeats[0].status {
        RepeatStatus::Unmeasured { reason } => reason.text.clone(),
        status => panic!("{status:?}"),
    }
}

/// The note on a run that counts.
#[track_caller]
fn told(result: RunResult) -> Option<String> {
    let summary = summary(result);
    assert_eq!(summary.n, 1, "{:?}", summary.notes);
    let note = summary
        .notes
        .into_iter()
        .find(|note| note.text().contains("outside the reported step times"))?;
    // Pauses are no reason to doubt a step time.
    let is_pause = note
        .text()
        .ends_with("in pauses, as evaluations and checkpoints are");
    assert_eq!(
        note.kind,
        if is_pause {
            NoteKind::Remark
        } else {
            NoteKind::Doubtful
        }
    );
    Some(note.text())
}

/// docs/METRICS.md, "Step times and the clock".
#[test]
fn the_clock_worked_by_hand() {
    assert_eq!(
        refused(dated(&[6.0; 10], &[], 20.0)),
        "the log claims 60.0 s of steps in a run of 20.0 s"
    );
    assert_eq!(told(dated(&[2.1; 10], &[], 20.0)), None);
    let mut paused = every(2.0, 10);
    paused[5..].iter_mut().for_each(|end| *end += 30.0);
    let note = "repeat 1: 30.0 s of 48.0 s lie outside the reported step times: in pauses, as evaluations and checkpoints are";
    assert_eq!(
        told(dated(&[2.0; 10], &paused, 60.0)).as_deref(),
        Some(note)
    );
    let note = "repeat 1: 1.8 s of 4.5 s lie outside the reported step times: after most steps, or many in a row, so the trainer may stop its timer before the step has ended, and the rate may be 1.7× too high";
    assert_eq!(
        told(dated(&[0.3; 10], &every(0.5, 10), 60.0)).as_deref(),
        Some(note)
    );
    let reason = "the log claims 10.0 ms a step, but 500 ms pass from one to the next by the trainer's own clock: the trainer may stop its timer before the step has ended";
    assert_eq!(refused(dated(&[0.01; 10], &every(0.5, 10), 60.0)), reason);
    let reason = "the log claims 14.0 s of steps (2.00 s a step) while 4.5 s passed by the trainer's own clock (500 ms a step)";
    assert_eq!(refused(dated(&[2.0; 10], &every(0.5, 10), 60.0)), reason);
}

#[test]
fn steps_that_are_stated_twice_or_as_means_count_once() {
    // Five lines of ten steps each, 2 s a step: 100 s.
    let mut averaged = dated(&[2.0; 5], &[], 105.0);
    for (i, step) in averaged.trace.steps.iter_mut().enumerate() {
        (step.step, step.steps_averaged) = (10 * (i as u64 + 1), Some(10));
    }
    assert_eq!(told(averaged.clone()), None);
    averaged.ended_at = Some(START + 90.0);
    assert!(refused(averaged.clone()).contains("100.0 s of steps"));
    // Means over the last ten steps, every five of them: 60 s.
    averaged
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.step = 5 + s.step / 2);
    assert_eq!(told(averaged), None);
}

#[test]
fn lines_that_are_left_out_took_as_long_as_the_next() {
    let mut tenth = dated(&[2.0; 8], &every(20.0, 8), 200.0);
    tenth.trace.steps.iter_mut().for_each(|s| s.step *= 10);
    let clock = summary(tenth.clone()).repeats[0].clock.clone().unwrap();
    assert_eq!(
        (
            clock.passed_seconds,
            clock.steps_seconds,
            clock.typical_ratio
        ),
        (140.0, 140.0, Some(1.0))
    );
    assert_eq!(told(tenth), None);
}

/// Twenty steps of 20 ms that are said to take five eighths of it, and a tenth.
#[test]
fn short_steps_are_held_against_the_trainers_clock_as_well() {
    let short = |factor: f64| dated(&[0.02 / factor; 20], &every(0.02, 20), 10.0);
    assert_eq!(told(short(1.0)), None);
    assert!(
        told(short(1.6))
            .unwrap()
            .ends_with(" and the rate may be 1.6× too high")
    );
    assert!(refused(short(10.0)).contains("2.00 ms a step, but 20.0 ms pass from one to the next"));
}

/// Forty steps that are said to take a fifth longer than what lies between their ends.
#[test]
fn a_step_longer_than_the_time_between_two_ends_gives_no_rate() {
    let claimed = |step: f64, factor: f64| dated(&[step * factor; 40], &every(step, 40), 60.0);
    let reason = refused(claimed(0.1, 1.2));
    assert_eq!(
        reason,
        "the log claims 4.7 s of steps (120 ms a step) while 3.9 s passed by the trainer's own clock (100 ms a step)"
    );
    assert_eq!(told(claimed(0.1, 1.0)), None);
    // A clock of whole seconds shows nothing of steps below one.
    let mut whole = claimed(0.4, 1.1);
    let steps = &mut whole.trace.steps;
    steps
        .iter_mut()
        .for_each(|step| step.ended_at = step.ended_at.map(f64::floor));
    assert_eq!(told(whole), None);
    // One pause within a step that the line before it was late for is no rule.
    let mut late = every(0.1, 40);
    late.iter_mut().step_by(5).for_each(|end| *end += 0.05);
    assert_eq!(told(dated(&[0.1; 40], &late, 60.0)), None);
}

/// 400 steps of 2 s, every hundredth with a pause of 30 s in it; the log shows every tenth.
#[test]
fn a_log_that_shows_the_slow_steps_gives_no_rate() {
    let time = |step: u32| if step.is_multiple_of(100) { 30.0 } else { 2.0 };
    let ends: Vec<f64> = (1..=40u32)
        .map(|line| (1..=10 * line).map(time).sum())
        .collect();
    let times: Vec<f64> = (1..=40u32).map(|line| time(10 * line)).collect();
    let mut tenth = dated(&times, &ends, 1600.0);
    tenth.trace.steps.iter_mut().for_each(|s| s.step *= 10);
    let reason = refused(tenth.clone());
    assert!(
        reason.starts_with("the log shows only some of the steps, and by these all would take 1580.0 s, but 892.0 s"),
        "{reason}"
    );
    // Without dates there is a rate, and it is doubtful.
    tenth.trace.steps.iter_mut().for_each(|s| s.ended_at = None);
    let notes = summary(tenth).notes;
    let words = "the log shows only every 10th step";
    assert!(
        notes
            .iter()
            .any(|n| n.kind == NoteKind::Doubtful && n.text().ends_with(words)),
        "{notes:?}"
    );
}

/// 80 steps of 51 ms; the log has a line every five of them.
fn every_fifth(time: f64, seen: impl Fn(f64) -> f64, run: f64) -> RunResult {
    let ends: Vec<f64> = every(0.257, 16).into_iter().map(seen).collect();
    let mut result = dated(&[time; 16], &ends, run);
    result.trace.dated_by_lines = true;
    result.trace.steps.iter_mut().for_each(|s| s.step *= 5);
    result
}

#[test]
fn the_time_of_five_steps_is_not_that_of_one() {
    let at_once = |end: f64| ((40.0 + end) * 10.0).ceil() / 10.0;
    let by_lines = "the log shows only every 5th step, and at the times that it prints all steps would take 18.0 s, but 3.9 s passed by \
                    tprimat's clock: each time seems to be that of 5 steps, and the trainer must print that of one step";
    assert_eq!(refused(every_fifth(0.257, at_once, 60.0)), by_lines);
    let by_run = refused(every_fifth(0.257, |_| 4.5, 5.0));
    assert!(
        by_run.contains("19.5 s, but the run took 5.0 s: each time seems"),
        "{by_run}"
    );
    // In a long run whose lines come all at the end, nothing refutes them, and that is said.
    assert_eq!(unchecked(every_fifth(0.257, |_| 59.0, 60.0)).len(), 1);
    for honest in [
        every_fifth(0.0514, at_once, 60.0),
        every_fifth(0.0514, |_| 4.5, 5.0),
    ] {
        assert_eq!(summary(honest).n, 1);
    }
    // Every line there, with five times its step's time.
    let mut each = dated(&[0.5; 50], &every(0.1, 50), 60.0);
    each.trace.dated_by_lines = true;
    assert_eq!(
        refused(each),
        "the log claims 24.0 s of steps (500 ms a step) while 4.9 s passed by tprimat's clock (100 ms a step)"
    );
}

#[test]
fn a_time_that_cannot_be_one_does_no_harm_in_the_warm_up_and_leaves_no_figure_after_it() {
    let first = |time: f64| [vec![time], vec![2.0; 9]].concat();
    let with = |time, warmup_steps| {
        summarize(
            &[(1, dated(&first(time), &[], 30.0))],
            &Statistics { warmup_steps },
        )
        .n
    };
    assert_eq!((with(1.7e9, 1), with(1.7e9, 0)), (1, 0));
    // One that can be is of the run.
    assert_eq!((with(20.0, 1), with(10.0, 1)), (0, 1));
    assert_eq!((with(1e-12, 1), with(1e-12, 0)), (1, 0));
    let reason = "the log claims a step of 1e-12 s, and no step is shorter than a microsecond";
    assert_eq!(refused(dated(&[1e-12; 10], &[], 0.3)), reason);
}

#[test]
fn of_an_import_only_its_own_dates_are_known() {
    let imported = |times: &[f64], ends: &[f64]| {
        let mut result = dated(times, ends, 0.0);
        (result.started_at, result.ended_at) = (None, None);
        result
    };
    assert_eq!(told(imported(&[60.0; 10], &[])), None);
    assert!(refused(imported(&[60.0; 10], &every(1.0, 10))).contains("by the trainer's own clock"));
    assert!(refused(imported(&[0.01; 10], &every(1.0, 10))).contains("from one to the next"));
}

#[test]
fn lines_that_were_held_back_refuse_nothing() {
    let held = |ends: &[f64], by_lines| {
        let mut result = dated(&[2.0; 10], ends, 25.0);
        result.trace.dated_by_lines = by_lines;
        result
    };
    assert_eq!(told(held(&[24.0; 10], true)), None);
    let together = [vec![23.0; 5], vec![24.0; 5]].concat();
    assert_eq!(told(held(&together, true)), None);
    assert!(refused(held(&together, false)).contains("by the trainer's own clock"));
    // Among ten steps, each as long as a look, pauses after some look like pauses after most.
    let mut quick = dated(&[0.1; 100], &every(0.13, 100), 25.0);
    quick.trace.dated_by_lines = true;
    quick
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = s.ended_at.map(|at| (at * 10.0).ceil() / 10.0));
    assert!(
        told(quick)
            .unwrap()
            .ends_with("evaluations, checkpoints, or a timer that stops before the step has ended")
    );
    // A clock in milliseconds is none to go by.
    let milliseconds = held(&every(2000.0, 10), false);
    assert_eq!(summary(milliseconds.clone()).repeats[0].clock, None);
    assert_eq!(told(milliseconds), None);
}

#[test]
fn a_clock_that_was_set_back_or_stands_is_none_to_go_by() {
    // Ten steps of 2 s; after the fifth the clock is set back.
    let set_back = |by: f64| {
        let mut ends = every(2.0, 10);
        ends[5..].iter_mut().for_each(|end| *end -= by);
        dated(&[2.0; 10], &ends, 25.0)
    };
    for by in [10.0, 3600.0] {
        assert_eq!(summary(set_back(by)).repeats[0].clock, None);
        assert_eq!(told(set_back(by)), None);
    }
    assert_eq!(told(dated(&[2.0; 10], &[24.0; 10], 25.0)), None);
    // Dates that jitter are still dates.
    let jitter: Vec<f64> = (1..=10)
        .map(|i| f64::from(i) * 0.1 - f64::from(i % 2) * 0.3)
        .collect();
    assert!(refused(dated(&[2.0; 10], &jitter, 25.0)).contains("by the trainer's own clock"));
    // The run's own end, as it was taken from such a clock: nothing is known of how long it took.
    assert_eq!(
        told(RunResult {
            ended_at: Some(START - 3600.0),
            ..set_back(3600.0)
        }),
        None
    );
}

#[test]
fn a_step_may_be_dated_by_its_begin() {
    let starts: Vec<f64> = (0..10).map(f64::from).collect();
    let with_last = |last: f64| dated(&[vec![1.0; 9], vec![last]].concat(), &starts, 100.0);
    assert_eq!(told(with_last(60.0)), None, "a checkpoint in the last step");
    assert!(refused(dated(&[3.0; 10], &starts, 100.0)).contains("by the trainer's own clock"));
}

#[test]
fn evaluations_are_no_steps_and_few_pairs_show_nothing_typical() {
    let with = |steps: usize, at: &[Option<u64>]| {
        let mut result = dated(&vec![0.1; steps], &every(5.0, 10), 60.0);
        let evaluation = |step: &Option<u64>| Evaluation {
            step: *step,
            ..Evaluation::default()
        };
        result.trace.evaluations = at.iter().map(evaluation).collect();
        result
    };
    assert!(refused(with(10, &[])).contains("from one to the next"));
    assert!(refused(with(10, &[Some(5)])).contains("from one to the next"));
    // One evaluation of an unknown step explains one pause, not nine.
    assert!(refused(with(10, &[None])).contains("from one to the next"));
    for unclear in [
        with(3, &[]),
        with(5, &[Some(2)]),
        with(10, &[None; 5]),
        with(10, &[Some(2), Some(5), Some(8)]),
    ] {
        let note = told(unclear).unwrap();
        assert!(
            note.ends_with(
                "evaluations, checkpoints, or a timer that stops before the step has ended"
            ),
            "{note}"
        );
    }
}

/// Five lines, each far from the one before it; or ten slow gaps in a row at the end of thirty, where four are a pause.
#[test]
fn time_beside_steps_is_no_pause_after_all_or_many_in_a_row() {
    let few = told(dated(&[2.5; 5], &every(10.0, 5), 60.0)).unwrap();
    assert!(few.ends_with("4.0× too high"), "{few}");
    for (slow, said) in [(10, "2.0× too high"), (4, "checkpoints are")] {
        let ends = (0..30).map(|at: u32| f64::from(at + 3 * at.saturating_sub(29 - slow)));
        let note = told(dated(&[1.0; 30], &ends.collect::<Vec<_>>(), 200.0)).unwrap();
        assert!(note.ends_with(said), "{note}");
    }
}

#[test]
fn neither_pauses_nor_buffers_reach_three_of_four_pairs() {
    let with = |steps: u32,
                pauses: fn(u32) -> bool,
                evaluated: fn(u32) -> bool,
                flushed: fn(u32) -> u32| {
        let paused = |step: u32| f64::from((1..step).filter(|s| pauses(*s)).count() as u32);
        let ends: Vec<f64> = (1..=steps)
            .map(|s| f64::from(flushed(s)) + 60.0 * paused(flushed(s)))
            .collect();
        let mut result = dated(&vec![1.0; steps as usize], &ends, 1e4);
        result.trace.dated_by_lines = true;
        let evaluation = |step| Evaluation {
            step: Some(u64::from(step)),
            ..Evaluation::default()
        };
        result.trace.evaluations = (1..=steps)
            .filter(|s| evaluated(*s))
            .map(evaluation)
            .collect();
        summary(result).n
    };
    let third = |step: u32| step.is_multiple_of(3);
    // Three lines come together, so that each evaluation seems to be where there was none.
    assert_eq!(
        with(31, third, third, |step| (step - 1).div_ceil(3) * 3 + 1),
        1
    );
    // Evaluated after all but the last steps, with a checkpoint among those.
    assert_eq!(
        with(
            41,
            |step| step <= 34 || step == 38,
            |step| step <= 34,
            |step| step
        ),
        1
    );
    assert_eq!(with(41, |_| true, |_| false, |step| step), 0);
}

#[test]
fn repeats_share_a_note_with_the_worst_of_them() {
    let runs = [0.45, 0.5, 0.3].map(|apart| dated(&[0.3; 10], &every(apart, 10), 60.0));
    let runs: Vec<_> = (1..).zip(runs).collect();
    let notes = summarize(&runs, &Statistics::default()).notes;
    let shared = "repeats 1, 2: up to 1.8 s of 4.5 s lie outside the reported step times";
    assert!(
        notes.iter().any(|note| note.text().starts_with(shared)),
        "{notes:?}"
    );
}

/// Why the clock says nothing of a run that counts.
fn unchecked(result: RunResult) -> Vec<(NoteKind, String)> {
    let notes = summary(result).notes.into_iter();
    notes
        .filter(|note| note.text().contains("not checked against the clock"))
        .map(|note| (note.kind, note.text()))
        .collect()
}

/// Ten steps of 2 s that are said to take 0.5 s, by dates that agree with them.
#[test]
fn a_trainers_own_dates_are_held_against_tprimats_clock() {
    let seen = |apart: f64| {
        let mut result = dated(&[0.5; 10], &every(0.5, 10), 25.0);
        for (step, end) in result.trace.steps.iter_mut().zip(every(apart, 10)) {
            step.seen_at = Some(START + end);
        }
        result
    };
    let reason =
        "the log claims 500 ms a step, but 2.00 s pass from one to the next by tprimat's clock";
    let told_reason = refused(seen(2.0));
    assert!(told_reason.starts_with(reason), "{told_reason}");
    assert_eq!(told(seen(0.5)), None);
    assert_eq!(unchecked(seen(0.5)), []);
    let short = told(seen(0.8)).unwrap();
    assert!(short.ends_with("1.6× too high"), "{short}");
}

#[test]
fn a_check_that_could_not_be_made_is_told() {
    let held = |ends: Vec<f64>, times: usize| {
        let mut result = dated(&vec![2.0; times], &ends, 60.0);
        result.trace.dated_by_lines = true;
        result
    };
    let together = [vec![10.0; 5], vec![20.0; 5]].concat();
    let [(NoteKind::Doubtful, note)] = &unchecked(held(together, 10))[..] else {
        panic!("lines that came together");
    };
    assert!(
        note.starts_with("the speed was not checked against the clock, because most lines"),
        "{note}"
    );
    assert_eq!(unchecked(held(every(2.0, 10), 10)), []);
    let mut brief = dated(&[0.01; 10], &[1.0; 10], 5.0);
    brief.trace.dated_by_lines = true;
    let brief = unchecked(brief);
    assert!(
        matches!(&brief[..], [(NoteKind::Remark, note)] if note.contains("between two looks at the log")),
        "{brief:?}"
    );
    // The first look finds eight of ten steps, or the lines that a buffer held back.
    let mut first_look = vec![1.0; 8];
    first_look.extend([1.1, 1.1]);
    for (seconds, why) in [(0.01, "between two looks"), (1.0, "came several at a time")] {
        let mut run = dated(&[seconds; 10], &first_look, 60.0);
        (run.trace.dated_by_lines, run.ended_at) = (true, None);
        let told = unchecked(run);
        assert!(
            matches!(&told[..], [(_, note)] if note.contains(why)),
            "{told:?}"
        );
    }
    let few = unchecked(held(every(2.0, 3), 3));
    assert!(
        matches!(&few[..], [(NoteKind::Remark, note)] if note.ends_with("the log has fewer than 6 lines of measured steps")),
        "{few:?}"
    );
    let none = unchecked(dated(&[2.0; 10], &[], 60.0));
    assert!(
        matches!(&none[..], [(NoteKind::Remark, note)] if note.ends_with("does not say when its steps ended")),
        "{none:?}"
    );
    let mut back = every(2.0, 10);
    back[5..].iter_mut().for_each(|end| *end -= 10.0);
    assert_eq!(unchecked(dated(&[2.0; 10], &back, 60.0)).len(), 1);
}

/// Steps of 0.5 s that are said to take 0.3 s, with a pause of 20 s after the fifth.
#[test]
fn pauses_are_no_part_of_the_factor() {
    let mut ends = every(0.5, 10);
    ends[5..].iter_mut().for_each(|end| *end += 20.0);
    let note = told(dated(&[0.3; 10], &ends, 60.0)).unwrap();
    assert!(
        note.contains("21.8 s of 24.5 s") && note.ends_with("1.7× too high"),
        "{note}"
    );
}

/// How a run went, and how it was dated.
#[derive(Clone, Debug)]
struct Course {
    /// Level of the step times, and each in levels.
    level: f64,
    steps: Vec<f64>,
    /// What the loop does between steps, in levels, and beside it in seconds.
    between: (f64, f64),
    /// The number of steps between two pauses, and the seconds of each pause. The log mentions
    /// evaluations, and not checkpoints.
    evaluations: (usize, f64),
    checkpoints: (usize, f64),
    /// Does a step's time begin where the one before it ended, pauses included?
    laps: bool,
    /// Is a step dated after the pause that follows it?
    late: bool,
    /// Seconds between flushes of the log, by whose lines the steps are dated.
    flushes: Option<Vec<f64>>,
    /// Before the first step, and after the last one.
    around: (f64, f64),
}

fn course() -> impl Strategy<Value = Course> {
    let level = (-3.5f64..0.7).prop_map(|exponent| 10f64.powf(exponent));
    let steps = vec(0.7f64..1.5, 1..60);
    let flushes = proptest::option::of(vec(0.0f64..20.0, 1..40));
    // Evaluations and checkpoints that take turns would leave no step without a pause.
    let pauses = ((1usize..90, 0.0f64..60.0), (3usize..90, 0.0f64..60.0));
    let rest = (
        (0.0f64..0.5, 0.0f64..0.005),
        pauses,
        (0.0f64..5.0, 0.0f64..60.0),
    );
    (level, steps, any::<bool>(), any::<bool>(), flushes, rest).prop_map(
        |(level, steps, laps, late, flushes, rest)| {
            let (between, (evaluations, checkpoints), around) = rest;
            Course {
                level,
                steps,
                between,
                evaluations,
                checkpoints,
                laps,
                late,
                flushes,
                around,
            }
        },
    )
}

impl Course {
    /// After the first step, and so on.
    fn is_evaluated(&self, step: usize) -> bool {
        (step - 1).is_multiple_of(self.evaluations.0)
    }

    /// What such a run leaves, where every step time is stated `factor` times as long as it was.
    fn result(&self, factor: f64) -> RunResult {
        let (mut now, mut pause) = (self.around.0, 0.0);
        let (mut times, mut ends) = (Vec::new(), Vec::new());
        for (relative, step) in self.steps.iter().zip(1..) {
            let time = self.level * relative;
            now += time;
            times.push(factor * (time + if self.laps { pause } else { 0.0 }));
            let saved = if usize::is_multiple_of(step, self.checkpoints.0) {
                self.checkpoints.1
            } else {
                0.0
            };
            let evaluated = if self.is_evaluated(step) {
                self.evaluations.1
            } else {
                0.0
            };
            pause = self.level * self.between.0 + self.between.1 + evaluated + saved;
            ends.push(if self.late { now + pause } else { now });
            now += pause;
        }
        let seconds = now + self.around.1;
        if let Some(gaps) = &self.flushes {
            let flushed: Vec<f64> = gaps
                .iter()
                .scan(0.0, |at, gap| (*at += gap, Some(*at)).1)
                .collect();
            // The last bytes are written when the trainer ends; the log is looked at ten times a
            // second.
            let seen = |end: f64| {
                flushed
                    .iter()
                    .copied()
                    .find(|at| *at >= end)
                    .unwrap_or(seconds)
                    .min(seconds)
            };
            ends.iter_mut()
                .for_each(|end| *end = (seen(*end) * 10.0).ceil() / 10.0);
        }
        let mut result = dated(&times, &ends, seconds);
        result.trace.dated_by_lines = self.flushes.is_some();
        let evaluated = (1..=self.steps.len()).filter(|step| self.is_evaluated(*step));
        let evaluation = |step| Evaluation {
            step: Some(step as u64),
            ..Evaluation::default()
        };
        result.trace.evaluations = evaluated.map(evaluation).collect();
        result
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn honest_steps_are_never_refused(course in course(), rounding in 0.99f64..1.01, unclear in any::<bool>()) {
        let mut result = course.result(rounding);
        if unclear {
            result.trace.evaluations.iter_mut().for_each(|evaluation| evaluation.step = None);
        }
        let checked = of_run(&result, |_| true);
        prop_assert!(checked.is_ok(), "{checked:?}");
    }

    #[test]
    fn steps_that_take_longer_than_their_run_always_are(course in course(), factor in 1.5f64..100.0) {
        let course = Course { around: (1.0, 2.0), ..course };
        let honest = course.result(1.0);
        let run = honest.ended_at.unwrap() - honest.started_at.unwrap();
        let steps: f64 = honest.trace.steps.iter().filter_map(|s| s.step_time_seconds).sum();
        prop_assert!(of_run(&course.result(factor * run / steps), |_| true).is_err());
    }

    #[test]
    fn steps_that_are_over_before_the_device_is_always_are(course in course(), factor in 4.0f64..1e4) {
        let steps = [vec![1.0; LEAST_PAIRS + 2], course.steps].concat();
        let (level, evaluations) = (course.level + 0.1, (90, 0.0));
        let alone = Course { level, steps, evaluations, between: (0.0, 0.0), flushes: None, laps: false, ..course };
        let result = alone.result(1.0 / factor);
        prop_assert!(of_run(&result, |_| true).is_err());
    }

    /// However late the lines come, and however many steps lie between them.
    #[test]
    fn lines_of_some_steps_are_not_refused_for_a_buffer(
        exponent in -2.0f64..0.7, lines in 6u32..120, apart in 1u32..20, gaps in vec(0.0f64..20.0, 1..60), rounding in 0.99f64..1.01,
    ) {
        let level = 10f64.powf(exponent);
        let end = f64::from(lines * apart) * level;
        let flushed: Vec<f64> = gaps.iter().scan(0.0, |at, gap| (*at += gap, Some(*at)).1).collect();
        let seen = |at: f64| (flushed.iter().copied().find(|f| *f >= at).unwrap_or(end) * 10.0).ceil() / 10.0;
        let ends: Vec<f64> = every(level * f64::from(apart), lines).into_iter().map(seen).collect();
        let mut result = dated(&vec![level * rounding; lines as usize], &ends, end + 0.5);
        result.trace.dated_by_lines = true;
        result.trace.steps.iter_mut().for_each(|s| s.step *= u64::from(apart));
        let checked = of_run(&result, |_| true);
        prop_assert!(checked.is_ok(), "{checked:?}");
    }

    /// Steps without pauses, seen ten times a second, whatever their length.
    #[test]
    fn a_short_timer_is_seen_between_looks_and_an_honest_one_is_not_blamed(
        exponent in -2.0f64..0.3, steps in 60u32..120, first in 0.0f64..0.1, factor in 2.2f64..100.0,
    ) {
        let level = 10f64.powf(exponent);
        let looked = |claimed: f64| {
            let ends: Vec<f64> = every(level, steps)
                .iter()
                .map(|end| ((end + first) * 10.0).ceil() / 10.0)
                .collect();
            let mut result = dated(&vec![claimed; steps as usize], &ends, ends[ends.len() - 1] + 1.0);
            result.trace.dated_by_lines = true;
            of_run(&result, |_| true)
        };
        let honest = looked(level).unwrap().clock.unwrap();
        prop_assert_eq!(honest.timer_factor(), None);
        let short = looked(level / factor);
        let is_seen = short.as_ref().is_ok_and(|checked| checked.clock.as_ref().is_some_and(|c| c.timer_factor().is_some()));
        prop_assert!(short.is_err() || is_seen, "{short:?}");
        // From twice the length of writing a line on, a tenth gives no rate.
        if level >= 0.02 {
            prop_assert!(looked(level / 10.0).is_err());
        }
    }
}

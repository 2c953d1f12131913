//! What the rates of two cells would be by another choice of the steps that count, and whether that
//! choice decides what is said of them.

use crate::results::{CONFIDENCE, RatioTest, Reason, decimals_beside, geometric_mean};

use super::{
    Clock, Estimate, LevelShift, RatioInterval, RepeatStatus, RepeatSummary, Row, Run, Speedup,
    Steady,
    codes::LEVEL_SHIFT,
    judged::{tested, tested_as_it_is},
};

/// A choice of steps beside that of docs/METRICS.md, "Steady state".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// With the steps that were left out as further warm-up.
    WithWarmUp,
    WithoutOutliers,
    /// With all the time that passed between the steps' ends.
    ByClock,
    /// Before the step time changes for good, and from there on.
    Before,
    After,
}

/// Rates nearer than this are one rate.
const MOVES: f64 = 0.001;
/// A shift of the step time by this share or more is told beside the rate, whatever it decides.
pub(super) const LARGE_SHIFT: f64 = 0.05;

impl Choice {
    fn rate(self, repeat: &RepeatSummary, steady: &Steady) -> f64 {
        let plain = steady.tokens_per_second_per_gpu;
        let cut = steady.cut.as_ref();
        let levels = cut.and_then(|cut| cut.level_shift.as_ref()?.rates);
        match self {
            Self::WithWarmUp => cut.map_or(plain, |cut| cut.declared_tokens_per_second_per_gpu),
            Self::WithoutOutliers => steady.without_outliers.unwrap_or(plain),
            Self::ByClock => {
                let outside = repeat.clock.as_ref().map(Clock::ratio);
                plain / outside.filter(|ratio| *ratio > 1.0).unwrap_or(1.0)
            }
            Self::Before => levels.map_or(plain, |[before, _]| before),
            Self::After => levels.map_or(plain, |[_, after]| after),
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::WithWarmUp => "warm_up_decides",
            Self::WithoutOutliers => "outliers_decide",
            Self::ByClock => "clock_decides",
            Self::Before | Self::After => LEVEL_SHIFT,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::WithWarmUp => "with the steps that were left out as further warm-up",
            Self::WithoutOutliers => "without the steps that took much longer or shorter than most",
            Self::ByClock => "with the time that passes outside of the steps",
            Self::Before => "before the step time changes for good",
            Self::After => "after the step time has changed for good",
        }
    }

    /// The rates of the repeats that count by this choice, as units of replication; none where no rate
    /// moves.
    pub(super) fn units(self, repeats: &[RepeatSummary]) -> Option<Vec<f64>> {
        let counted = repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
        let with_steady = counted.filter_map(|r| Some((r, r.steady.as_ref()?)));
        let rates: Vec<(&RepeatSummary, f64, f64)> = with_steady
            .map(|(r, steady)| (r, self.rate(r, steady), steady.tokens_per_second_per_gpu))
            .collect();
        let moves = |(_, rate, plain): &(_, f64, f64)| (rate / plain - 1.0).abs() >= MOVES;
        rates.iter().find(|one| moves(one))?;
        let runs: Vec<Run<'_>> = rates
            .iter()
            .map(|(repeat, rate, _)| Run {
                rate: *rate,
                host: &repeat.host,
                started_at: repeat.started_at,
                ended_at: repeat.ended_at,
            })
            .collect();
        Some(Estimate::of(&runs)?.units)
    }
}

/// What a choice makes of a ratio.
struct Other {
    choice: Choice,
    ratio: f64,
    ends: Option<[f64; 2]>,
}

fn others(rows: [&Row; 2], least: [f64; 2], choices: &[Choice], confidence: f64) -> Vec<Other> {
    // Time outside of the steps is compared where it is known of all runs.
    let mut counted = rows.into_iter().flat_map(|row| &row.repeats);
    let has_clocks =
        counted.all(|repeat| repeat.status != RepeatStatus::Ok || repeat.clock.is_some());
    let of = |choice: &Choice| {
        if *choice == Choice::ByClock && !has_clocks {
            return None;
        }
        let moved = rows.map(|row| choice.units(&row.repeats));
        moved.iter().flatten().next()?;
        let plain = rows.map(|row| &row.tokens_per_second_per_gpu.units);
        let units = [0, 1].map(|at| moved[at].as_deref().unwrap_or(plain[at]));
        let rate = |repeat: &RepeatSummary, steady: &Steady| choice.rate(repeat, steady);
        let test = tested(rows, units, rate, least);
        let ratio = match test {
            Some(RatioTest::Sequential(test)) => test.ratio(),
            _ => geometric_mean(units[0])? / geometric_mean(units[1])?,
        };
        Some(Other {
            choice: *choice,
            ratio,
            ends: test.and_then(|test| test.interval(confidence)),
        })
    };
    choices.iter().filter_map(of).collect()
}

/// −1, 0 or 1: what an interval says of a difference.
fn side(ends: Option<[f64; 2]>) -> i8 {
    match ends {
        Some([low, _]) if low > 1.0 => 1,
        Some([_, high]) if high < 1.0 => -1,
        _ => 0,
    }
}

impl Other {
    /// Would the other cell be the faster one? Pauses and what a timer leaves out are in most logs, and of no other matter.
    fn reverses(&self, ratio: f64, ends: Option<[f64; 2]>) -> bool {
        let is_other = (self.ratio > 1.0) != (ratio > 1.0);
        let is_said = ends.is_none() || side(ends) != 0;
        is_other && is_said && self.ratio.ln().abs() >= MOVES
    }

    /// Would it change the verdict, or move the ratio by more than its interval?
    fn decides(&self, ratio: f64, ends: Option<[f64; 2]>) -> bool {
        if self.choice == Choice::ByClock {
            return self.reverses(ratio, ends);
        }
        let moved = (self.ratio / ratio).ln().abs();
        match ends {
            Some([low, high]) => {
                let turns = self.ends.is_some() && side(self.ends) != side(ends);
                moved > (high / low).ln() / 2.0 || turns && moved >= MOVES
            }
            None => moved >= LARGE_SHIFT,
        }
    }
}

/// Why the speeds of two cells get no verdict: the level of a run's step times shifts for good, and which
/// level counts decides. The same answer whichever of them comes first.
pub(super) fn level_decides(rows: [&Row; 2], confidence: f64) -> Option<Reason> {
    let largest =
        |row: &&Row| largest_shift(&row.repeats).map_or(0.0, |shift| shift.ratio.ln().abs());
    let shifted = rows
        .into_iter()
        .max_by(|a, b| largest(a).total_cmp(&largest(b)))?;
    let shift = largest_shift(&shifted.repeats)?;
    let test = tested_as_it_is(rows, [0.0; 2])?;
    let ends = test.interval(confidence);
    let choices = [Choice::Before, Choice::After];
    let others = others(rows, [0.0; 2], &choices, confidence);
    others
        .iter()
        .find(|other| other.decides(test.ratio(), ends))?;
    let text = format!("{}: {}", shifted.cell, shift_words(shift));
    Some(Reason::no_verdict(LEVEL_SHIFT, text).with("cell", &*shifted.cell))
}

/// The largest change for good of a repeat that counts.
pub(super) fn largest_shift<'a>(
    repeats: impl IntoIterator<Item = &'a RepeatSummary>,
) -> Option<&'a LevelShift> {
    let counted = repeats.into_iter().filter(|r| r.status == RepeatStatus::Ok);
    let shifts = counted.filter_map(|r| r.cut()?.level_shift.as_ref());
    let size = |shift: &LevelShift| shift.ratio.ln().abs();
    shifts.max_by(|a, b| size(a).total_cmp(&size(b)))
}

/// `the median step time changes by +100.0 % near step 31 and stays there, so the rate is a mean of two
/// levels (10658 tokens/s per device before, 5329 from there on)`
pub(super) fn shift_words(shift: &LevelShift) -> String {
    let percent = (shift.ratio - 1.0) * 100.0;
    let decimals = decimals_beside(percent, 0.0, 1);
    let levels = shift.rates.map_or_else(String::new, |[before, after]| {
        let decimals = if before.min(after) < 100.0 { 3 } else { 0 };
        format!(
            " ({before:.decimals$} tokens/s per device before, {after:.decimals$} from there on)"
        )
    });
    format!(
        "the median step time changes by {percent:+.decimals$} % near step {} and stays there, so the rate is a mean of two \
         levels{levels}",
        shift.step
    )
}

/// The choices that would change the verdict on a ratio, or move it by more than its interval.
pub(super) fn doubts(speedup: &Speedup, rows: [&Row; 2], least: [f64; 2]) -> Vec<Reason> {
    let interval = speedup.interval;
    let ends = interval.map(|RatioInterval { low, high, .. }| [low, high]);
    let confidence = interval.map_or(CONFIDENCE, |interval| interval.confidence);
    let choices = [Choice::WithWarmUp, Choice::WithoutOutliers, Choice::ByClock];
    let told = |other: &Other| {
        let (a, b) = (&speedup.a, &speedup.b);
        let (size, than) = relation(other.ratio);
        let turned = format!("{size} {than}");
        let loses = side(ends) != 0 && other.ends.is_some() && side(other.ends) == 0;
        let not_clearly = if loses {
            ", which is not a significant difference"
        } else {
            ""
        };
        let text = format!(
            "{}, {a} would be {turned} {b}{not_clearly}, and it is {} as measured",
            other.choice.words(),
            relation(speedup.ratio).0
        );
        Reason::beside(other.choice.code(), text).with("ratio", other.ratio)
    };
    let all = others(rows, least, &choices, confidence);
    let decisive = all
        .iter()
        .filter(|other| other.decides(speedup.ratio, ends));
    decisive.map(told).collect()
}

/// `9.6 % slower` and `than`
fn relation(ratio: f64) -> (String, &'static str) {
    let percent = (ratio - 1.0) * 100.0;
    let word = if percent < 0.0 { "slower" } else { "faster" };
    match percent.abs() {
        same if same < 0.05 => ("as fast".to_owned(), "as"),
        _ if ratio >= 2.0 => (format!("{ratio:.2}× as fast"), "as"),
        size => (format!("{size:.1} % {word}"), "than"),
    }
}

#[cfg(test)]
mod tests;

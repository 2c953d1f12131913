//! The verdict of a gate on one cell: what it rests on, and its words.

use std::collections::BTreeMap;

use crate::results::{
    CONFIDENCE, MIN_REPEATS, MOST_REPEATS, RatioTest, Reason, Sequential, Welch, geometric_mean,
    logs, moderated, repeats_to_tell, welch,
};

use super::{
    GateCell, GateVerdict, ROUNDING,
    change::{Change, needed},
};
use crate::figures::{
    Unit,
    codes::{CANNOT_TELL, LEVEL_SHIFT, NOT_SIGNIFICANT, SLOWER},
    judged::no_variation,
};

/// Level of significance over a whole gate.
const LEVEL: f64 = 0.05;

/// What a verdict rests on.
#[derive(Clone, Copy)]
pub(super) struct Test {
    /// The logarithm of the ratio now ÷ then.
    difference: f64,
    /// The variance of the logarithm of one unit, estimated from both sides with `freedom` degrees of
    /// freedom; 0 where nothing varies in either side.
    variance: f64,
    freedom: f64,
    /// 1 ÷ units now + 1 ÷ units then.
    per_unit: f64,
    unit: Unit,
    /// The test where runs of one side were added until a decision.
    sequential: Option<Sequential>,
    /// How many times too high the rates now and then may be, by the clock.
    pub timer_factors: [Option<f64>; 2],
    /// Does the level of step times shift for good in one of the two measurements alone?
    pub shifts: bool,
}

impl Test {
    /// None where there are too few units for a verdict.
    pub fn of(now: &[f64], then: &[f64], unit: Unit) -> Option<Self> {
        if now.len().min(then.len()) < MIN_REPEATS {
            return None;
        }
        let difference = (geometric_mean(now)? / geometric_mean(then)?).ln();
        let per_unit = 1.0 / now.len() as f64 + 1.0 / then.len() as f64;
        let test = welch(now, then);
        Some(Self {
            difference,
            variance: test.map_or(0.0, |test| test.standard_error.powi(2) / per_unit),
            freedom: test.map_or(0.0, |test| test.freedom),
            per_unit,
            unit,
            sequential: None,
            timer_factors: [None; 2],
            shifts: false,
        })
    }

    /// The same where runs of one side were added until a decision.
    pub fn until_decided(self, now: &[f64], then: &[f64]) -> Self {
        let arms = logs(now).zip(logs(then));
        let sequential = arms.and_then(|(now, then)| Sequential::of_arms(&now, &then));
        Self { sequential, ..self }
    }

    /// Runs were added until a decision, and so few exclude no ratio.
    pub fn excludes_nothing(&self) -> bool {
        self.test()
            .is_some_and(|test| test.interval(CONFIDENCE).is_none())
    }

    fn varies(&self) -> bool {
        self.variance > 0.0
    }

    fn test(&self) -> Option<RatioTest> {
        if let Some(test) = self.sequential {
            return Some(RatioTest::Sequential(test));
        }
        let variance = self.variance * self.per_unit;
        let test = Welch::of(self.difference, variance, self.freedom);
        test.filter(|_| self.varies()).map(RatioTest::Welch)
    }

    pub fn ci95(&self) -> [f64; 2] {
        let interval = self.test().and_then(|test| test.interval(CONFIDENCE));
        interval.unwrap_or([self.difference.exp(); 2])
    }

    /// That the ratio is this limit. Where nothing varies, the test is the comparison of two numbers.
    pub fn p_against(&self, limit: f64) -> f64 {
        let of_numbers = f64::from(u8::from(self.difference.exp() >= limit));
        let p = self.test().and_then(|test| test.p_against(limit));
        p.unwrap_or(of_numbers)
    }

    /// How many units would tell two ratios apart.
    fn needed(&self, ratio: f64, other: f64, confidence: f64) -> String {
        if self.sequential.is_some() {
            return "more runs, in the baseline too, would tell".to_owned();
        }
        let distance = (ratio / other).ln().abs();
        let n = repeats_to_tell(distance, self.variance.sqrt(), confidence);
        needed(n, MOST_REPEATS, self.unit)
    }
}

/// Gives each test the spread that it has after hearing the others. `firsts`: for each the first that
/// asks the same question.
pub(super) fn moderate(tests: &mut [Option<Test>], firsts: &[usize]) {
    let spread = |at: &usize| {
        let test = tests[*at]
            .as_ref()
            // What was added until a decision keeps the test that this needs.
            .filter(|test| test.varies() && test.sequential.is_none() && firsts[*at] == *at)?;
        Some((*at, (test.variance, test.freedom)))
    };
    let (places, of): (Vec<usize>, Vec<(f64, f64)>) =
        (0..tests.len()).filter_map(|at| spread(&at)).unzip();
    let heard: BTreeMap<usize, (f64, f64)> = places.into_iter().zip(moderated(&of)).collect();
    for (test, first) in tests.iter_mut().zip(firsts) {
        if let (Some(test), Some((variance, freedom))) = (test, heard.get(first)) {
            (test.variance, test.freedom) = (*variance, *freedom);
        }
    }
}

/// The verdict on a rate whose corrected p-value is known, one of `tested`.
pub(super) fn judge(cell: &mut GateCell, test: &Test, max_regression: f64, tested: usize) {
    let (Some(ratio), Some(p), Some(ci95)) = (cell.ratio, cell.p_value, cell.ci95) else {
        return;
    };
    let [low, high] = ci95;
    let limit = limit(max_regression);
    let change = Change {
        ratio,
        ci95,
        max_regression,
    };
    let (interval, allowed) = (change.interval(), change.allowed());
    let reason = if test.test().is_none() && (ratio - 1.0).abs() > ROUNDING {
        let text = format!(
            "{}: {}; does the trainer print a rounded or a constant rate?",
            change.alone(),
            no_variation().text
        );
        inconclusive("no_variation", text)
    } else if ratio < limit && p < LEVEL {
        let text = format!("{interval}: beyond the limit of {allowed}, and significantly so");
        (GateVerdict::Fail, Reason::excludes(SLOWER, text))
    } else if ratio < limit {
        let slower = if high < 1.0 {
            ", and slower than the baseline"
        } else {
            ""
        };
        // Where the interval of this cell alone holds the limit, no correction is to blame.
        let over = if tested > 1 && high < limit {
            format!(" after Holm's correction over {tested} cells")
        } else {
            String::new()
        };
        let needed = test.needed(ratio, limit, 1.0 - LEVEL / tested.max(1) as f64);
        let text = format!(
            "{interval}: beyond the limit of {allowed}{slower}, but that is not significant{over}; {needed}"
        );
        inconclusive(NOT_SIGNIFICANT, text)
    } else if low >= limit && high < 1.0 {
        let text =
            format!("{interval}: slower than the baseline, but within the limit of {allowed}");
        (GateVerdict::Pass, Reason::beside("within_but_slower", text))
    } else if low >= limit {
        let text = if low > 1.0 {
            format!("{interval}: faster than the baseline; limit {allowed}")
        } else {
            format!("no significant change: {interval}; limit {allowed}")
        };
        (GateVerdict::Pass, Reason::detail("within", text))
    } else {
        let needed = test.needed(ratio, limit, CONFIDENCE);
        let text = format!(
            "{interval}: these repeats cannot tell whether it is beyond the limit of {allowed}; {needed}"
        );
        inconclusive(CANNOT_TELL, text)
    };
    (cell.verdict, cell.reason) = reason;
    // A rate can be too high for it, never too low. So it may hide that a cell is slower now, and
    // one then may make it look so.
    let [now, then] = test.timer_factors;
    let now = now.map(|factor| ("its step times", factor));
    let then = then.map(|factor| ("the baseline's step times", factor));
    let doubted = match cell.verdict {
        GateVerdict::Pass => now.or(then),
        GateVerdict::Fail => then,
        _ => None,
    };
    if let Some((of, factor)) = doubted {
        let text = format!(
            "{interval}: {of} leave out time that passes between steps, so that rate may be {factor:.1}× too high; let the timer \
             stop when the device has finished, and measure anew"
        );
        (cell.verdict, cell.reason) = inconclusive("short_step_times", text);
    } else if test.shifts && [GateVerdict::Pass, GateVerdict::Fail].contains(&cell.verdict) {
        let text = format!(
            "{interval}: step times change for good during the runs of one of the two measurements, so its rate is a mean of two \
             levels"
        );
        (cell.verdict, cell.reason) = inconclusive(LEVEL_SHIFT, text);
    }
}

fn inconclusive(code: &'static str, text: String) -> (GateVerdict, Reason) {
    (GateVerdict::Inconclusive, Reason::no_verdict(code, text))
}

/// The ratio below which a cell is slower than allowed.
pub(super) fn limit(max_regression: f64) -> f64 {
    1.0 - max_regression - ROUNDING
}

//! The verdict on a rate: limits, significance, units of replication.

use super::*;
use crate::{figures::Unit, results::geometric_mean};

#[test]
fn slower_fails_as_fast_passes_and_noise_is_inconclusive() {
    let slower = STEADY.map(|t| t * 1.1);
    let failed = one(&STEADY, &slower, 0.03);
    assert_eq!(failed.verdict, GateVerdict::Fail, "{failed:?}");
    assert!(
        failed
            .reason
            .text
            .starts_with("−9.09 % (95 % CI −10.13 to −8.04 %): ")
            && failed
                .reason
                .text
                .contains("beyond the limit of −3 %, and significant"),
        "{:?}",
        failed.reason
    );
    assert_eq!(one(&STEADY, &STEADY, 0.03).verdict, GateVerdict::Pass);
    assert_eq!(
        one(&slower, &STEADY, 0.03).verdict,
        GateVerdict::Pass,
        "faster is no regression"
    );
    let noisy = [0.8, 1.3, 1.0, 1.1, 0.9];
    assert_eq!(
        one(&STEADY, &noisy, 0.03).verdict,
        GateVerdict::Inconclusive
    );
    let beyond = one(&STEADY, &noisy.map(|t| t * 1.05), 0.03);
    assert!(
        beyond.reason.text.contains("not significant; "),
        "{:?}",
        beyond.reason
    );
}

/// What these repeats cannot tell is said as that, with how many could; and a pass below 1 is not
/// silent.
#[test]
fn a_reason_is_true_and_says_what_would_help() {
    let rates = |level: f64| [0.99, 1.0, 1.01, 1.0].map(|of| 1000.0 * level * of);
    let open = of_values(&rates(1.0), &rates(0.98), 0.03);
    assert_eq!(open.verdict, GateVerdict::Inconclusive);
    let words = "−2.00 % (95 % CI −3.37 to −0.61 %): these repeats cannot tell whether it is beyond the limit of −3 %; about 7 repeats now and in the baseline would tell, at this spread";
    assert_eq!(open.reason.text, words);
    let near = of_values(&rates(1.0), &rates(0.970_01), 0.03);
    assert!(
        near.reason
            .text
            .ends_with("; more than 100 repeats would be needed to tell, at this spread"),
        "{:?}",
        near.reason
    );
    let slower = of_values(&rates(1.0), &rates(0.98), 0.05);
    assert_eq!(slower.verdict, GateVerdict::Pass);
    assert!(
        slower
            .reason
            .text
            .ends_with(": slower than the baseline, but within the limit of −5 %"),
        "{:?}",
        slower.reason
    );
    let same = of_values(&rates(1.0), &rates(1.0), 0.05);
    assert!(
        same.reason.text.starts_with("no significant change: ")
            && same.reason.text.ends_with("; limit −5 %"),
        "{:?}",
        same.reason
    );
}

#[test]
fn few_repeats_give_no_verdict_and_neither_do_equal_ones() {
    for (then, now) in [(1, 5), (5, 1), (2, 5), (5, 2), (1, 1)] {
        let cell = one(&STEADY[..then], &STEADY[..now], 0.5);
        assert_eq!(
            (cell.verdict, cell.p_value),
            (GateVerdict::Inconclusive, None)
        );
        assert!(
            cell.reason.text.contains("needs 3 each") && cell.ratio.is_some(),
            "{:?}",
            cell.reason
        );
    }
    let exact = |factor: f64, limit: f64| one(&[1.0; 3], &[factor; 3], limit).verdict;
    assert_eq!(exact(1.0, 0.0), GateVerdict::Pass);
    for factor in [1.0 / 0.97, 1.1, 0.9] {
        assert_eq!(exact(factor, 0.03), GateVerdict::Inconclusive, "{factor}");
    }
}

/// A gate of `times` then and now: p-values as they are corrected, and notes.
fn p_values(
    names: &[&str],
    times: impl Fn(&str) -> [f64; 5],
    attempt: impl Fn(&str) -> String,
) -> Vec<GateCell> {
    let of = |factor: f64| -> Vec<GateInput> {
        let cell = |name: &&str| {
            let mut cell = of_times(name, &job(), &times(name).map(|t| t * factor));
            let CellState::Ok { summary } = &mut cell.input.state else {
                unreachable!()
            };
            for repeat in &mut summary.repeats {
                repeat.attempt = format!("{} {}", attempt(name), repeat.repeat);
            }
            cell
        };
        names.iter().map(cell).collect()
    };
    gate(&baseline(&of(1.0)), &of(1.02), 0.03).cells
}

#[test]
fn cells_that_share_their_measurements_are_one_test() {
    let times = |name: &str| {
        if name == "a/b/c/noisy" {
            [1.0, 1.2, 0.9, 1.1, 0.8]
        } else {
            STEADY
        }
    };
    let p = |cells: &[GateCell]| cells.iter().map(|c| c.p_value.unwrap()).collect::<Vec<_>>();
    let alone = p_values(&["a/b/c/x", "a/b/c/noisy"], times, str::to_owned);
    let shared = |name: &str| {
        if name == "a/b/c/noisy" {
            name.to_owned()
        } else {
            "one".to_owned()
        }
    };
    let twins = p_values(&["a/b/c/x", "a/b/c/twin", "a/b/c/noisy"], times, shared);
    assert_eq!(p(&twins), [p(&alone)[0], p(&alone)[0], p(&alone)[1]]);
    assert_eq!(
        texts(&twins[1].notes),
        ["shares its measurements with a/b/c/x: one test for both"]
    );
    // Rates that are equal by chance are two tests.
    let others = p_values(
        &["a/b/c/x", "a/b/c/twin", "a/b/c/noisy"],
        times,
        str::to_owned,
    );
    assert!(
        p(&others)[0] > p(&alone)[0] && others[1].notes.is_empty(),
        "{others:?}"
    );
}

/// One cell's report from values alone.
fn of_values(then: &[f64], now: &[f64], limit: f64) -> GateCell {
    let mut cell = GateCell::new("c", GateVerdict::Inconclusive, Reason::stated(""));
    let Some(test) = Test::of(now, then, Unit::Repeat) else {
        return cell;
    };
    cell.ratio = geometric_mean(now)
        .zip(geometric_mean(then))
        .map(|(a, b)| a / b);
    let beside = super::super::limit(limit);
    (cell.ci95, cell.p_value) = (Some(test.ci95()), Some(test.p_against(beside)));
    judge(&mut cell, &test, limit, 1);
    cell
}

/// Three rates a share `off` beyond (or, below 0, within) a limit of 3 %, hardly varying.
fn beside_the_limit(off: f64) -> GateCell {
    let rates = |factor: f64| [1.0 - 1e-8, 1.0, 1.0 + 1e-8].map(|r| r * factor);
    of_values(&rates(100.0), &rates(97.0 * (1.0 - off)), 0.03)
}

#[test]
fn no_figure_is_rounded_onto_the_limit_that_it_is_held_against() {
    let beyond = beside_the_limit(2e-5);
    assert_eq!(beyond.verdict, GateVerdict::Fail, "{beyond:?}");
    assert!(
        beyond
            .reason
            .text
            .starts_with("−3.002 % (95 % CI −3.002 to −3.002 %): beyond the limit"),
        "{:?}",
        beyond.reason
    );
    let within = beside_the_limit(-2e-5);
    assert_eq!(within.verdict, GateVerdict::Pass, "{within:?}");
    assert!(
        within.reason.text.starts_with(
            "−2.998 % (95 % CI −2.998 to −2.998 %): slower than the baseline, but within"
        ),
        "{:?}",
        within.reason
    );
    assert!(
        beside_the_limit(0.0).reason.text.starts_with("−3.00 % ("),
        "{:?}",
        beside_the_limit(0.0).reason
    );
}

fn rank(verdict: GateVerdict) -> u8 {
    match verdict {
        GateVerdict::Fail => 0,
        GateVerdict::Inconclusive => 1,
        _ => 2,
    }
}

proptest! {
    #[test]
    fn a_wider_limit_never_makes_it_worse(
        then in prop::collection::vec(0.5f64..2.0, 1..6),
        now in prop::collection::vec(0.5f64..2.0, 1..6),
        a in 0.0f64..0.9,
        b in 0.0f64..0.9,
    ) {
        let (tight, wide) = (a.min(b), a.max(b));
        let (tight, wide) = (of_values(&then, &now, tight), of_values(&then, &now, wide));
        prop_assert!(rank(tight.verdict) <= rank(wide.verdict));
    }

    #[test]
    fn it_passes_only_within_and_fails_only_beyond_the_limit(
        then in prop::collection::vec(0.9f64..1.1, 3..6),
        now in prop::collection::vec(0.9f64..1.1, 3..6),
        limit in 0.0f64..0.2,
    ) {
        let cell = of_values(&then, &now, limit);
        let (ratio, [low, _]) = (cell.ratio.unwrap(), cell.ci95.unwrap());
        match cell.verdict {
            GateVerdict::Pass => prop_assert!(low >= 1.0 - limit - 1e-6 && ratio >= low - 1e-9),
            GateVerdict::Fail => prop_assert!(ratio < 1.0 - limit && cell.p_value.unwrap() < 0.05),
            _ => {}
        }
    }
}

/// Standard normal numbers, always the same ones: splitmix64 and Box–Muller.
struct Normal(u64);

impl Normal {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
    fn next(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
    /// Five repeats of a rate, with 1 % of noise.
    fn rates(&mut self, rate: f64) -> Vec<f64> {
        (0..5).map(|_| rate * (0.01 * self.next()).exp()).collect()
    }
}

/// Shares of failures and passes over 2,000 gates of one cell whose rate became `factor` of what it
/// was.
fn shares(factor: f64, limit: f64) -> (f64, f64) {
    let mut random = Normal(1);
    let (mut failed, mut passed) = (0, 0);
    for _ in 0..2000 {
        let (then, now) = (random.rates(100.0), random.rates(100.0 * factor));
        match of_values(&then, &now, limit).verdict {
            GateVerdict::Fail => failed += 1,
            GateVerdict::Pass => passed += 1,
            _ => {}
        }
    }
    (f64::from(failed) / 2000.0, f64::from(passed) / 2000.0)
}

#[test]
fn error_rates_are_those_that_the_definition_promises() {
    let (false_alarms, passed) = shares(1.0, 0.03);
    assert!(
        false_alarms <= 0.05 && passed >= 0.9,
        "no regression: {false_alarms} fail, {passed} pass"
    );
    // With no tolerance at all, an alarm is a one-sided 2.5 %.
    let (false_alarms, _) = shares(1.0, 0.0);
    assert!(
        false_alarms <= 0.035,
        "no regression, no tolerance: {false_alarms} fail"
    );
    let (found, missed) = shares(0.94, 0.03);
    assert!(
        found >= 0.9 && missed <= 0.001,
        "6 % slower: {found} fail, {missed} pass"
    );
    // At the limit itself at most 2.5 % pass.
    let (_, passed) = shares(0.97, 0.03);
    assert!(passed <= 0.035, "at the limit: {passed} pass");
}

/// The verdicts of a gate of this many cells, three repeats each with 1 % of noise, all of which became
/// `factor` of what they were: failures and passes of 500 gates.
fn of_gates(cells: usize, factor: f64) -> (f64, f64) {
    const TRIALS: u32 = 500;
    let mut random = Normal(7);
    let (mut failed, mut passed) = (0, 0);
    for _ in 0..TRIALS {
        let mut arm = |rate: f64| random.rates(rate)[..3].to_vec();
        let arms: Vec<_> = (0..cells)
            .map(|_| (arm(100.0), arm(100.0 * factor)))
            .collect();
        let one = |(then, now): &(Vec<f64>, Vec<f64>)| Test::of(now, then, Unit::Repeat);
        let mut tests: Vec<Option<Test>> = arms.iter().map(one).collect();
        let firsts: Vec<usize> = (0..cells).collect();
        moderate(&mut tests, &firsts);
        let beside = super::super::limit(0.03);
        let mut all: Vec<GateCell> = Vec::new();
        for ((then, now), test) in arms.iter().zip(tests.iter().flatten()) {
            let ratio = geometric_mean(now).zip(geometric_mean(then));
            all.push(GateCell {
                ratio: ratio.map(|(a, b)| a / b),
                ci95: Some(test.ci95()),
                p_value: Some(test.p_against(beside)),
                ..GateCell::new("c", GateVerdict::Inconclusive, Reason::stated(""))
            });
        }
        let tested = correct(&mut all, &firsts);
        for (cell, test) in all.iter_mut().zip(tests.iter().flatten()) {
            judge(cell, test, 0.03, tested);
        }
        failed += u32::from(all.iter().any(|c| c.verdict == GateVerdict::Fail));
        passed += u32::from(all.iter().all(|c| c.verdict == GateVerdict::Pass));
    }
    (
        f64::from(failed) / f64::from(TRIALS),
        f64::from(passed) / f64::from(TRIALS),
    )
}

#[test]
fn nine_cells_of_three_repeats_pass_where_nothing_changed_and_not_where_all_did() {
    for cells in [1, 3, 9] {
        for factor in [1.0, 0.99, 0.98, 0.97, 0.95, 0.92] {
            let (failed, passed) = of_gates(cells, factor);
            println!(
                "{cells} cells, {factor}: {:.0} % fail, {:.0} % pass",
                failed * 100.0,
                passed * 100.0
            );
        }
    }
    let (failed, passed) = of_gates(9, 1.0);
    assert!(
        passed > 0.5 && failed < 0.01,
        "no change: {passed} pass, {failed} fail"
    );
    for cells in [3, 9] {
        let (failed, passed) = of_gates(cells, 0.97);
        assert!(
            passed < 0.04 && failed < 0.06,
            "at the limit: {passed} pass, {failed} fail"
        );
    }
}

//! Error rates of verdicts and coverage of intervals, over arms of repeats.

use tprimat::{
    figures::{Estimate, Run, bootstrap_interval},
    results::{Welch, changes, t_interval, verdicts, welch},
};

use super::noise::{Noise, Random, Tails, mean};

/// What one run makes of a level of 1: autocorrelated steps with heavy tails after a slow start of
/// another length and size in every run, cut and averaged as tprimat does.
fn measured(random: &mut Random) -> f64 {
    let mut times = Noise {
        phi: 0.7,
        sd: 0.02,
        tails: Tails::Heavy,
    }
    .steps(60, random);
    let (length, size) = (2.0 + 8.0 * random.uniform(), 0.5 * random.uniform());
    times
        .iter_mut()
        .enumerate()
        .for_each(|(i, t)| *t += size * (-(i as f64) / length).exp());
    1.0 / mean(&times[changes(&times, times.len() / 2).cut..])
}

fn close_to(name: &str, hits: usize, trials: usize) -> f64 {
    let rate = hits as f64 / trials as f64;
    println!(
        "{name}: {:.2} % of {trials}, ± {:.2}",
        rate * 100.0,
        196.0 * (rate * (1.0 - rate) / trials as f64).sqrt()
    );
    rate
}

#[test]
fn identical_arms_are_seldom_told_apart() {
    const TRIALS: usize = 20_000;
    let mut random = Random(1);
    let runs: Vec<f64> = (0..5000).map(|_| measured(&mut random)).collect();
    for (repeats, between) in [(3, 0.01), (4, 0.01), (5, 0.01), (3, 0.001), (5, 0.001)] {
        let mut arm = || -> Vec<f64> {
            let mut one = || {
                let run = runs[(random.uniform() * runs.len() as f64) as usize];
                run * (between * random.normal()).exp()
            };
            (0..repeats).map(|_| one()).collect()
        };
        let alarms = (0..TRIALS)
            .filter(|_| verdicts(&[welch(&arm(), &arm()).unwrap()])[0].significant)
            .count();
        let name = format!(
            "false alarms of two identical arms, {repeats} repeats, {:.1} % from run to run",
            between * 100.0
        );
        assert!(close_to(&name, alarms, TRIALS) <= 0.05, "{name}");
    }
}

#[test]
fn over_a_table_of_identical_arms_one_false_alarm_is_as_seldom() {
    const TRIALS: usize = 20_000;
    let mut random = Random(2);
    let mut draw =
        |n: usize| -> Vec<f64> { (0..n).map(|_| (0.01 * random.normal()).exp()).collect() };
    for (arms, repeats) in [(3, 3), (6, 5), (12, 5)] {
        let (mut alarms, mut uncorrected, mut held) = (0, 0, 0);
        for _ in 0..TRIALS {
            let baseline = draw(repeats);
            let tests: Vec<Welch> = (1..arms)
                .map(|_| welch(&draw(repeats), &baseline).unwrap())
                .collect();
            let found = verdicts(&tests);
            alarms += usize::from(found.iter().any(|v| v.significant));
            uncorrected += usize::from(tests.iter().any(|t| t.p < 0.05));
            held += usize::from(found.iter().all(|v| {
                v.interval()
                    .is_some_and(|[low, high]| low <= 1.0 && 1.0 <= high)
            }));
        }
        let name = format!(
            "a false alarm in {} comparisons of {repeats} repeats",
            arms - 1
        );
        assert!(close_to(&name, alarms, TRIALS) <= 0.05, "{name}");
        assert_eq!(
            alarms + held,
            TRIALS,
            "intervals and verdicts are one statement"
        );
        close_to("  without Holm", uncorrected, TRIALS);
    }
}

#[test]
fn each_interval_of_a_table_covers_and_most_tables_do_as_a_whole() {
    const TRIALS: usize = 20_000;
    let truth = [1.0, 1.0, 1.02, 1.1, 0.8];
    let mut random = Random(7);
    let (mut each, mut all) = (0, 0);
    for _ in 0..TRIALS {
        let mut draw = |level: f64| -> Vec<f64> {
            (0..5)
                .map(|_| level * (0.01 * random.normal()).exp())
                .collect()
        };
        let baseline = draw(1.0);
        let tests: Vec<Welch> = truth
            .iter()
            .map(|level| welch(&draw(*level), &baseline).unwrap())
            .collect();
        let hits = verdicts(&tests)
            .iter()
            .zip(truth)
            .filter(|(v, level)| {
                v.interval()
                    .is_some_and(|[low, high]| low <= *level && *level <= high)
            })
            .count();
        each += hits;
        all += usize::from(hits == truth.len());
    }
    assert!(
        close_to(
            "coverage of each of 5 intervals, 3 of them with a difference",
            each,
            TRIALS * 5
        ) >= 0.95
    );
    close_to("  of all 5 at once", all, TRIALS);
}

#[test]
fn a_difference_of_three_per_cent_is_found() {
    const TRIALS: usize = 10_000;
    for repeats in [4, 5] {
        let mut random = Random(3);
        let mut draw = |level: f64| -> Vec<f64> {
            (0..repeats)
                .map(|_| level * (0.01 * random.normal()).exp())
                .collect()
        };
        let found = (0..TRIALS)
            .filter(|_| verdicts(&[welch(&draw(1.03), &draw(1.0)).unwrap()])[0].significant)
            .count();
        let name = format!("3 % found at 1 % noise, {repeats} repeats");
        assert!(close_to(&name, found, TRIALS) >= 0.9, "{name}");
    }
}

#[test]
fn intervals_cover_what_they_say() {
    const TRIALS: usize = 20_000;
    let covers = |interval: Option<[f64; 2]>, truth: f64| {
        usize::from(interval.is_some_and(|[low, high]| low <= truth && truth <= high))
    };
    let mut random = Random(4);
    for repeats in [2, 3, 5] {
        let mut draw = |level: f64| -> Vec<f64> {
            (0..repeats)
                .map(|_| level * (0.01 * random.normal()).exp())
                .collect()
        };
        let (mut cell, mut ratio) = (0, 0);
        for _ in 0..TRIALS {
            let (a, b) = (draw(1.1), draw(1.0));
            cell += covers(t_interval(&a), 1.1);
            ratio += covers(welch(&a, &b).unwrap().interval(0.95), 1.1);
        }
        let of_cell = close_to(
            &format!("coverage of a cell's interval, {repeats} repeats"),
            cell,
            TRIALS,
        );
        let of_ratio = close_to(
            &format!("coverage of a speed-up's interval, {repeats} repeats"),
            ratio,
            TRIALS,
        );
        assert!((of_cell - 0.95).abs() < 0.01 && of_ratio >= 0.945);
    }
}

#[test]
fn the_bootstrap_covers_what_it_says_from_ten_units_on() {
    const TRIALS: usize = 400;
    for (repeats, heavy) in [(10, false), (15, false), (10, true), (15, true)] {
        let mut random = Random(5);
        let (mut boot, mut t) = (0, 0);
        for _ in 0..TRIALS {
            // Now and then a slow run: logarithms are skewed, with mean 0.
            let slow = |r: &mut Random| {
                if heavy {
                    0.02 * (1.0 + r.uniform().ln())
                } else {
                    0.0
                }
            };
            let rates: Vec<f64> = (0..repeats)
                .map(|_| (0.01 * random.normal() + slow(&mut random)).exp())
                .collect();
            let covers = |interval: Option<[f64; 2]>| {
                usize::from(interval.is_some_and(|[low, high]| low <= 1.0 && 1.0 <= high))
            };
            boot += covers(bootstrap_interval(&rates));
            t += covers(t_interval(&rates));
        }
        let skewed = if heavy { ", skewed" } else { "" };
        let rate = close_to(
            &format!("coverage of bootstrap-t, {repeats} units{skewed}"),
            boot,
            TRIALS,
        );
        close_to("  of Student's t", t, TRIALS);
        assert!(rate >= 0.925, "{repeats} {skewed}");
    }
}

#[test]
fn hosts_that_differ_are_no_repeats() {
    const TRIALS: usize = 5000;
    let mut random = Random(6);
    let (mut hosts, mut pooled) = (0, 0);
    let names = ["a", "b", "c", "d"];
    for _ in 0..TRIALS {
        let mut arm = || {
            let mut rates = Vec::new();
            for host in names {
                let level = 0.02 * random.normal();
                rates.extend((0..3).map(|_| (host, (level + 0.003 * random.normal()).exp())));
            }
            let runs: Vec<Run<'_>> = rates
                .iter()
                .map(|(host, rate)| Run {
                    rate: *rate,
                    host,
                    started_at: None,
                    ended_at: None,
                })
                .collect();
            Estimate::of(&runs).unwrap()
        };
        let (a, b) = (arm(), arm());
        assert_eq!((a.units.len(), a.values.len()), (4, 12));
        hosts += usize::from(welch(&a.units, &b.units).unwrap().p < 0.05);
        pooled += usize::from(welch(&a.values, &b.values).unwrap().p < 0.05);
    }
    assert!(
        close_to(
            "false alarms of identical arms on 4 hosts each, hosts as units",
            hosts,
            TRIALS
        ) <= 0.05
    );
    assert!(
        close_to("  with runs taken for units", pooled, TRIALS) > 0.2,
        "which is why they are not"
    );
}

/// Arms of one session each: what a session adds is in neither spread, and no number of repeats
/// shows it.
#[test]
fn identical_arms_of_two_sessions_are_told_apart_however_many_repeats_there_are() {
    const TRIALS: usize = 5000;
    for session in [0.0, 0.005, 0.01] {
        let mut before = 0.0;
        for repeats in [3, 5] {
            let mut random = Random(8);
            let mut arm = || -> Vec<f64> {
                let level = session * random.normal();
                (0..repeats)
                    .map(|_| (level + 0.003 * random.normal()).exp())
                    .collect()
            };
            let alarms = (0..TRIALS)
                .filter(|_| verdicts(&[welch(&arm(), &arm()).unwrap()])[0].significant)
                .count();
            let name = format!(
                "false alarms of identical arms in two sessions {:.1} % apart, {repeats} repeats, 0.3 % from run to run",
                session * 100.0
            );
            let rate = close_to(&name, alarms, TRIALS);
            if session == 0.0 {
                assert!(rate <= 0.05, "{name}");
            } else {
                assert!(
                    rate > 0.25 && rate > before,
                    "{name}: which is why it is said"
                );
                before = rate;
            }
        }
    }
}

use super::*;
use crate::figures::{CORE, LEVEL_SD, Run};

fn measured(day: f64, rates: &[f64]) -> Measurement {
    let at = day * 86_400.0;
    let run = |rate: &f64| Run {
        rate: *rate,
        host: "h",
        started_at: Some(at),
        ended_at: Some(at + 60.0),
    };
    let mut contract = Contract::default();
    // A run that failed may say nothing.
    let said = CORE.into_iter().filter(|_| !rates.is_empty());
    for field in said {
        contract.declare(field, "stated".into());
    }
    Measurement {
        contract,
        started_at: at,
        ended_at: at + 60.0,
        host: "h".into(),
        tokens_per_second_per_gpu: Estimate::of(&rates.iter().map(run).collect::<Vec<_>>()),
        ..Measurement::default()
    }
}

#[test]
fn two_works_of_one_name_are_told_apart_and_one_is_not() {
    let of_length = |day: f64, rate: f64, length: u64| {
        let mut measured = measured(day, &[rate, rate + 0.3, rate - 0.3]);
        measured.contract.declare("seq_length", length.into());
        measured
    };
    let all = vec![
        of_length(0.0, 100.0, 2048),
        of_length(1.0, 50.0, 4096),
        of_length(2.0, 64.0, 2048),
        of_length(3.0, 50.0, 4096),
        // It failed before it said anything.
        measured(4.0, &[]),
    ];
    let of = |all: Vec<Measurement>| CellHistory::of("c", false, all, None, |_, _| Vec::new());
    let works = of(all.clone());
    let days = |work: &CellHistory| -> Vec<f64> {
        let all = work.measurements.iter();
        all.map(|m| m.started_at / 86_400.0).collect()
    };
    let parted: Vec<_> = works
        .iter()
        .map(|work| (days(work), &work.work["seq_length"]))
        .collect();
    assert_eq!(
        parted,
        [
            (vec![0.0, 2.0], &"2048".to_owned()),
            (vec![1.0, 3.0, 4.0], &"4096".to_owned())
        ]
    );
    assert_eq!(levels(&works[0].measurements), [None, Some(Level::Slower)]);
    assert_eq!(of(all[..1].to_vec())[0].work, BTreeMap::new());
}

/// What takes a verdict from a comparison takes it here, and what is named there is named here.
#[test]
fn what_logs_state_otherwise_is_named_and_other_work_is_not_judged() {
    let stated = |day: f64, field: &str, value: &str| {
        let mut measured = measured(day, &[100.0, 100.3, 99.7]);
        measured.contract.declare(field, value.into());
        measured
    };
    let mut all = [
        stated(0.0, "dataset", "c4"),
        stated(1.0, "dataset", "pile"),
        stated(2.0, "dropout", "0.1"),
        stated(3.0, "lora_rank", "16"),
    ];
    assess(&mut all, None, |_, _| Vec::new());
    let told = |at: usize| {
        let changes = all[at].since.as_ref().unwrap().changes.iter();
        changes.map(ChangedSetting::words).collect::<Vec<_>>()
    };
    assert_eq!(told(1), ["dataset c4 → pile"]);
    assert_eq!(
        told(2),
        ["dataset pile → not stated", "dropout not stated → 0.1"]
    );
    let why = all[3].since.as_ref().unwrap().reason.as_ref().unwrap();
    assert_eq!(why.text, "the workloads may differ in lora_rank");
    assert_eq!(
        (&all[3].since_level, all[2].since_level.is_some()),
        (&None, true)
    );
    // The configuration has said it already.
    let named = |_: &Measurement, _: &Measurement| {
        vec![ChangedSetting {
            what: "models.tiny.dataset".into(),
            how: None,
            old: Some("c4".into()),
            new: Some("pile".into()),
        }]
    };
    assess(&mut all[..2], None, named);
    assert_eq!(all[1].since.as_ref().unwrap().changes.len(), 1);
}

/// By the clock the second rate may be twice too high, and then it is the first one's.
#[test]
fn a_doubted_rate_is_no_change_of_speed() {
    let mut doubled = [0.0, 1.0, 2.0].map(|day| {
        let rate = if day == 1.0 { 200.0 } else { 100.0 };
        measured(day, &[rate, rate + 0.3, rate - 0.3])
    });
    assess(&mut doubled, None, |_, _| Vec::new());
    assert_eq!(
        levels(&doubled),
        [None, Some(Level::Faster), Some(Level::Slower)]
    );
    doubled[1].timer_factor = Some(2.0);
    assess(&mut doubled, None, |_, _| Vec::new());
    assert_eq!(
        levels(&doubled),
        [None, Some(Level::NotAssessed), Some(Level::NotAssessed)]
    );
    let why = doubled[1].since.as_ref().and_then(|s| s.reason.as_ref());
    assert!(why.unwrap().is("short_step_times"));
    // Slower than before although the rate may be too high: that is certain.
    let mut slower = [100.0, 50.0].map(|rate| measured(rate, &[rate, rate + 0.3, rate - 0.3]));
    slower[1].timer_factor = Some(1.5);
    assess(&mut slower, None, |_, _| Vec::new());
    assert_eq!(levels(&slower), [None, Some(Level::Slower)]);
}

fn levels(all: &[Measurement]) -> Vec<Option<Level>> {
    all.iter()
        .map(|m| m.since.as_ref().map(|s| s.level))
        .collect()
}

#[test]
fn a_change_of_speed_is_found_where_it_happened_and_nowhere_else() {
    let mut all = [
        measured(0.0, &[100.0, 100.4, 99.7]),
        measured(1.0, &[100.2, 99.8, 100.1]),
        measured(2.0, &[95.1, 94.8, 95.3]),
        measured(3.0, &[]),
        measured(4.0, &[110.0, 110.3, 109.8]),
    ];
    assess(&mut all, None, |before, now| {
        vec![ChangedSetting {
            what: format!("{}", before.started_at / 86_400.0),
            how: None,
            old: None,
            new: Some(now.started_at.to_string()),
        }]
    });
    use Level::{Faster, NotAssessed, Same, Slower};
    assert_eq!(
        levels(&all),
        [
            None,
            Some(Same),
            Some(Slower),
            Some(NotAssessed),
            Some(Faster)
        ]
    );
    // Over the failed one, the last with a rate is what counts.
    let last = all[4].since.as_ref().unwrap();
    assert_eq!(
        (last.started_at, last.changes[0].what.as_str()),
        (2.0 * 86_400.0, "2")
    );
    let slower = all[2].since.as_ref().unwrap();
    assert!(
        slower.interval.unwrap()[1] < 1.0 && slower.ratio.unwrap() < 1.0,
        "{slower:?}"
    );
}

/// Whether they are of one session or of two: the level of a host moves from hour to hour as well.
#[test]
fn a_difference_that_comes_and_goes_with_time_is_no_change() {
    let (before, rates) = (measured(0.0, &[100.0, 100.1, 99.9]), [1.0, 1.001, 0.999]);
    let level = |day: f64, host: &str, factor: f64| {
        let mut all = [
            before.clone(),
            Measurement {
                host: host.into(),
                ..measured(day, &rates.map(|rate| rate * factor))
            },
        ];
        assert_eq!(assess(&mut all, None, |_, _| Vec::new()), Some(LEVEL_SD));
        all[1].since.clone().unwrap().level
    };
    for (day, host) in [(0.1, "h"), (1.0, "h"), (0.1, "g")] {
        assert_eq!(level(day, host, 98.0), Level::Same);
        assert_eq!(level(day, host, 95.0), Level::Slower);
        assert_eq!(level(day, host, 105.0), Level::Faster);
    }
}

/// Each step is too small to be one; the last level is far from the first.
#[test]
fn what_creeps_is_seen_from_the_first_measurements_and_named_once() {
    let weekly = |week: usize| {
        let rate = 100.0 * 0.99f64.powi(week as i32);
        measured(7.0 * week as f64, &[rate, rate + 0.3, rate - 0.3])
    };
    let mut all: Vec<Measurement> = (0..12).map(weekly).collect();
    assess(&mut all, None, |_, _| Vec::new());
    assert!(
        all.iter()
            .all(|m| m.since.as_ref().is_none_or(|s| !s.level.is_change()))
    );
    let named: Vec<usize> = (0..12)
        .filter(|at| {
            all[*at]
                .since_level
                .as_ref()
                .is_some_and(|s| s.level == Level::Slower)
        })
        .collect();
    assert!(!named.is_empty() && named.len() <= 3, "{named:?}");
    // A baseline is the level of all of them.
    let level = Reference {
        started_at: 0.0,
        rate: Rate::of(all[0].tokens_per_second_per_gpu.as_ref().unwrap()).unwrap(),
    };
    assess(&mut all, Some(level), |_, _| Vec::new());
    let last = all[11].since_level.as_ref().unwrap();
    assert_eq!(last.level, Level::Slower);
    assert!((last.ratio.unwrap() - 0.99f64.powi(11)).abs() < 1e-3);
}

#[test]
fn few_repeats_give_a_ratio_and_no_verdict() {
    let mut all = [measured(0.0, &[100.0, 101.0]), measured(1.0, &[50.0, 50.5])];
    assess(&mut all, None, |_, _| Vec::new());
    let since = all[1].since.as_ref().unwrap();
    assert_eq!(
        (since.level, &*since.reason.as_ref().unwrap().code),
        (Level::NotAssessed, "few_repeats")
    );
    assert!(since.ratio.is_some() && since.interval.is_some());
}

/// Nights of a host whose sessions differ by 1 %: at most one history in twenty names a change that is
/// none, however long it is.
#[test]
fn a_long_history_names_no_change_that_is_none() {
    const TRIALS: u32 = 200;
    let mut state = 5u64;
    // SplitMix64.
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / 9_007_199_254_740_992.0
    };
    let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    for (session, run) in [(0.005, 0.003), (0.01, 0.003), (0.01, 0.01), (0.015, 0.003)] {
        for nights in [2, 7, 30, 90] {
            let mut named = 0;
            for _ in 0..TRIALS {
                let mut night = |day: usize| {
                    let level = session * normal();
                    let rates = [(); 5].map(|()| (level + run * normal()).exp());
                    measured(day as f64, &rates)
                };
                let mut all: Vec<Measurement> = (0..nights).map(&mut night).collect();
                assess(&mut all, None, |_, _| Vec::new());
                let is_named = |m: &Measurement| {
                    let both = [&m.since, &m.since_level];
                    both.into_iter()
                        .flatten()
                        .any(|since| since.level.is_change())
                };
                named += u32::from(all.iter().any(is_named));
            }
            let share = f64::from(named) / f64::from(TRIALS);
            println!(
                "sessions {session}, runs {run}, {nights} nights: {:.1} %",
                share * 100.0
            );
            let most = if nights > 30 { 0.08 } else { 0.05 };
            assert!(
                session > 0.01 || share <= most,
                "{session} {run} {nights}: {share}"
            );
        }
    }
}

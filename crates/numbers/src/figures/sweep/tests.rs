use crate::results::{CUSUM, welch};
use proptest::{prelude::*, strategy::ValueTree};

use super::*;
use crate::figures::{Catalogue, CellInput, CellState, CompareSettings, compare, stand_ins::*};

fn cells(
    axis: &str,
    points: &[(u64, [f64; 3])],
    set: fn(&mut tprimat_job::Job, u64),
) -> Vec<CellInput> {
    cells_of("titan", axis, points, set)
}

fn cells_of(
    framework: &str,
    axis: &str,
    points: &[(u64, [f64; 3])],
    set: fn(&mut tprimat_job::Job, u64),
) -> Vec<CellInput> {
    let one = |(value, times): &(u64, [f64; 3])| {
        let mut job = test_job();
        set(&mut job, *value);
        let mut cell = measured(
            &format!("nvd/{framework}/llama/single@{axis}={value}"),
            &job,
            times,
            None,
        );
        cell.axes = [(axis.to_owned(), value.to_string())].into();
        cell
    };
    points.iter().map(one).collect()
}

fn only(cells: &[CellInput]) -> Sweep {
    let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
    let mut found = sweeps(&all, &Judged::of_comparison(&all));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn micro(job: &mut tprimat_job::Job, value: u64) {
    job.data.micro_batch_size = value;
}

#[test]
fn of_one_workload_the_fastest_point_is_named_where_it_is_apart_from_all_others() {
    let slow = (1, [1.2, 1.201, 1.199]);
    let found = only(&cells(
        "mbs",
        &[slow, (2, [1.0, 1.001, 0.999]), (4, [0.97, 0.971, 0.969])],
        micro,
    ));
    assert!(found.fields.is_empty());
    let best = found.surfaces[0].best.clone().unwrap();
    assert_eq!((best.at, best.next), (2, 1));
    assert!(best.is_fastest);
    let ends = best.interval.unwrap();
    assert!(ends.low > 1.0 && ends.high > best.ratio && ends.confidence >= 0.95);
    // As noisy as they are far apart.
    let found = only(&cells(
        "mbs",
        &[slow, (2, [1.0, 1.02, 0.98]), (4, [0.99, 1.01, 0.97])],
        micro,
    ));
    let best = found.surfaces[0].best.clone().unwrap();
    assert_eq!((best.at, best.not_apart.clone()), (2, vec![1]));
    assert!(!best.is_fastest);
}

#[test]
fn a_point_that_was_measured_before_an_edit_is_neither_the_fastest_nor_beaten() {
    let points = [
        (1, [1.2, 1.201, 1.199]),
        (2, [1.0, 1.001, 0.999]),
        (4, [0.9, 0.901, 0.899]),
    ];
    let earlier = "measured before train.sh was edited";
    for (at, of_all) in [(0, false), (2, false), (2, true)] {
        let mut cells = cells("mbs", &points, micro);
        for (i, cell) in cells.iter_mut().enumerate() {
            cell.standing.earlier = (of_all || i == at).then(|| earlier.to_owned());
        }
        let best = only(&cells).surfaces[0].best.clone().unwrap();
        assert_eq!(best.is_fastest, of_all, "{best:?}");
        let is_told = best
            .reason
            .as_ref()
            .is_some_and(|why| why.text.ends_with(earlier));
        assert_eq!(is_told, !of_all, "{best:?}");
    }
}

#[test]
fn a_group_is_swept_only_where_all_its_cells_are_points() {
    let points = [
        (1024, [1.2, 1.201, 1.199]),
        (2048, [1.0, 1.001, 0.999]),
        (4096, [0.9, 0.901, 0.899]),
    ];
    let mut cells = cells("seq_length", &points, |job, value| {
        job.data.seq_length = value;
    });
    let swept = |cells: &[CellInput]| {
        let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
        let swept = swept_groups(&all, |sweep| !sweep.fields.is_empty());
        (swept.len(), all.groups.len())
    };
    assert_eq!(swept(&cells), (3, 3));
    // It has the workload of one point, and no axis.
    let mut job = test_job();
    job.data.seq_length = 2048;
    cells.push(measured(
        "nvd/native/llama/single",
        &job,
        &[1.0, 1.01, 0.99],
        None,
    ));
    assert_eq!(swept(&cells), (2, 3));
}

#[test]
fn points_are_held_against_each_other_by_their_own_warm_up() {
    let points = [
        (1, [1.2, 1.201, 1.199]),
        (2, [1.0, 1.001, 0.999]),
        (4, [0.9, 0.901, 0.899]),
    ];
    let sweep = |warm_up: [(u64, &str); 3], across: &[&str]| {
        let mut cells = cells("mbs", &points, micro);
        // The baseline of the workload has a warm-up of its own.
        cells.insert(
            0,
            measured(
                "nvd/native/llama/single",
                &test_job(),
                &[1.0, 1.01, 0.99],
                None,
            ),
        );
        for (cell, (steps, rule)) in cells[1..].iter_mut().zip(warm_up) {
            let CellState::Ok { summary } = &mut cell.state else {
                unreachable!()
            };
            (summary.warmup_steps, summary.steady_state) = (steps, rule.to_owned());
        }
        let settings = CompareSettings {
            across: across.iter().map(|field| (*field).to_owned()).collect(),
            ..CompareSettings::default()
        };
        let all = compare(&cells, &settings, &Catalogue::default());
        let found = sweeps(&all, &Judged::of_comparison(&all));
        found[0]
            .surfaces
            .iter()
            .find_map(|one| one.best.clone())
            .unwrap()
    };
    let declared = "declared";
    assert!(sweep([(99, declared); 3], &[]).is_fastest);
    assert!(sweep([(97, CUSUM), (98, CUSUM), (99, CUSUM)], &[]).is_fastest);
    let apart = [(99, declared), (99, declared), (98, declared)];
    assert!(
        sweep(apart, &[])
            .reason
            .unwrap()
            .is(crate::figures::codes::OTHER_WARM_UP)
    );
    assert!(sweep(apart, &["warmup"]).is_fastest);
}

/// Two frameworks over one axis.
fn two(points: &[(u64, [f64; 3])], by: f64) -> Sweep {
    let slower: Vec<(u64, [f64; 3])> = points
        .iter()
        .map(|(value, times)| (*value, times.map(|time| time * by)))
        .collect();
    let mut all = cells("mbs", points, micro);
    all.extend(cells_of("native", "mbs", &slower, micro));
    only(&all)
}

#[test]
fn two_frameworks_are_compared_setting_by_setting_and_at_their_fastest() {
    let found = two(
        &[
            (1, [1.2, 1.201, 1.199]),
            (2, [1.0, 1.001, 0.999]),
            (4, [0.97, 0.971, 0.969]),
        ],
        1.1,
    );
    let [pair] = &found.pairs[..] else {
        panic!("{found:?}")
    };
    assert_eq!(pair.same.len(), 3);
    assert!(pair.same.iter().all(|at| at.significant == Some(true)));
    let highest = pair.highest.clone().unwrap();
    assert_eq!((highest.at, highest.of), ([2, 2], [3, 3]));
    let ends = highest.interval.unwrap();
    assert!(ends.low < highest.ratio && highest.ratio < ends.high);
    assert!(ends.low > 1.0 || ends.high < 1.0, "{ends:?}");
}

/// Two frameworks that differ by less than the noise.
#[test]
fn bests_that_were_picked_after_a_look_have_a_wider_interval_than_their_own_two_points() {
    let noisy = [
        (1, [1.00, 1.01, 0.99]),
        (2, [0.99, 1.00, 0.98]),
        (4, [0.995, 1.005, 0.985]),
        (8, [0.985, 0.995, 0.975]),
    ];
    let found = two(&noisy, 1.015);
    let pair = &found.pairs[0];
    assert!(pair.same.iter().all(|at| at.significant == Some(false)));
    let highest = pair.highest.clone().unwrap();
    let ends = highest.interval.unwrap();
    assert!(ends.low < 1.0 && ends.high > 1.0, "{highest:?}");
    // The two points alone, as if nobody had picked them.
    let [a, b] = [(pair.a, highest.at[0]), (pair.b, highest.at[1])].map(|(surface, at)| {
        let (_, times) = noisy[at];
        let by = if surface == 0 { 1.0 } else { 1.015 };
        times.map(|time| 1.0 / (time * by))
    });
    let [low, high] = welch(&a, &b).unwrap().interval(CONFIDENCE).unwrap();
    assert!(ends.low < low && ends.high > high, "{ends:?} {low} {high}");
}

/// Lengths are workloads of their own, and each has its fastest micro-batch.
#[test]
fn of_two_axes_each_value_of_the_one_that_makes_workloads_has_its_fastest_point() {
    let mut all = Vec::new();
    for seq in [64_u64, 128, 256] {
        for mbs in [1_u64, 2, 4] {
            // At 256 the two larger ones are as noisy as they are far apart.
            let (time, noise) = match (seq, mbs) {
                (_, 1) => (1.3, 0.001),
                (256, _) => (1.0 - 0.002 * mbs as f64, 0.02),
                _ => (1.0 - 0.05 * mbs as f64, 0.001),
            };
            let mut job = test_job();
            (job.data.seq_length, job.data.micro_batch_size) = (seq, mbs);
            let name = format!("nvd/titan/llama/single@mbs={mbs},seq={seq}");
            let times = [time, time + noise, time - noise].map(|t| t * seq as f64);
            let mut cell = measured(&name, &job, &times, None);
            let axes = [("mbs", mbs), ("seq", seq)];
            cell.axes = axes
                .map(|(axis, value)| (axis.to_owned(), value.to_string()))
                .into();
            all.push(cell);
        }
    }
    let found = only(&all);
    let surface = &found.surfaces[0];
    assert_eq!((surface.best.clone(), found.fields.len()), (None, 1));
    let micro = |at: usize| surface.points[at].x;
    let told: Vec<_> = surface
        .lines
        .iter()
        .map(|line| (line.value, micro(line.best.at), line.best.is_fastest))
        .collect();
    assert_eq!(
        told,
        [(64.0, 4.0, true), (128.0, 4.0, true), (256.0, 4.0, false)]
    );
    let open = &surface.lines[2].best;
    assert_eq!(micro(open.not_apart[0]), 2.0);
}

#[test]
fn points_of_different_workloads_are_not_ranked() {
    let found = only(&cells(
        "seq",
        &[(64, [1.0; 3]), (128, [2.0; 3]), (256, [4.1; 3])],
        |job, value| job.data.seq_length = value,
    ));
    assert_eq!(found.fields, ["seq_length"]);
    assert_eq!(found.surfaces[0].best, None);
    assert!(found.surfaces.iter().all(|surface| surface.best.is_none()));
    assert_eq!(found.surfaces[0].points.len(), 3);
}

#[test]
fn points_that_count_the_same_runs_are_not_tested_against_each_other() {
    let times = [
        (1, [1.2, 1.201, 1.199]),
        (2, [1.2, 1.201, 1.199]),
        (3, [1.0, 1.001, 0.999]),
    ];
    let tests = |shared: usize| {
        let mut cells = cells("mbs", &times, micro);
        for (at, cell) in cells.iter_mut().enumerate() {
            let CellState::Ok { summary } = &mut cell.state else {
                unreachable!("{cell:?}")
            };
            for (n, repeat) in summary.repeats.iter_mut().enumerate() {
                let of = if at == 1 && n < shared { 0 } else { at };
                repeat.attempt = format!("{of}-{n}");
            }
        }
        let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        Judged::of_comparison(&all).tests()
    };
    assert_eq!(tests(0), 3);
    assert_eq!(tests(1), 2, "one run counts for both");
    assert_eq!(tests(3), 1, "both are the same point beside the third");
}

#[test]
fn where_only_points_are_asked_for_none_is_judged() {
    let points = [
        (1, [1.2, 1.201, 1.199]),
        (2, [1.1, 1.101, 1.099]),
        (3, [1.0, 1.001, 0.999]),
    ];
    let mut cells = cells("mbs", &points, micro);
    cells.extend(cells_of("native", "mbs", &points, micro));
    let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
    let judged = sweeps(&all, &Judged::of_comparison(&all));
    let found = sweeps_unjudged(&all);
    let points = |sweeps: &[Sweep]| -> Vec<Vec<SweepPoint>> {
        sweeps[0]
            .surfaces
            .iter()
            .map(|one| one.points.clone())
            .collect()
    };
    assert_eq!(points(&found), points(&judged));
    assert!(judged[0].surfaces.iter().all(|one| one.best.is_some()));
    assert!(found[0].surfaces.iter().all(|one| one.best.is_none()));
    let pair = &found[0].pairs[0];
    assert!(pair.highest.is_none() && pair.same.iter().all(|same| same.significant.is_none()));
}

#[test]
fn two_values_seeds_and_words_are_no_sweep() {
    let of = |cells: &[CellInput]| {
        let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
        sweeps(&all, &Judged::of_comparison(&all))
    };
    let two = [(1, [1.0; 3]), (2, [1.1; 3])];
    let three = [(1, [1.0; 3]), (2, [1.1; 3]), (3, [1.2; 3])];
    assert_eq!(of(&cells("mbs", &two, micro)), []);
    assert_eq!(of(&cells("seed", &three, |_, _| {})), []);
    let mut worded = cells("mbs", &three, micro);
    worded[1].axes.insert("mbs".into(), "auto".into());
    assert_eq!(of(&worded), []);
}

/// Step times of 3 repeats at `points` values of a line, near enough to each other and noisy enough
/// that some of them differ and some do not.
fn times(points: usize) -> impl Strategy<Value = Vec<[f64; 3]>> {
    let repeats = (0.97..1.03_f64, prop::array::uniform3(-0.01..0.01_f64));
    let point = repeats.prop_map(|(time, noise)| noise.map(|by| time * (1.0 + by)));
    prop::collection::vec(point, points)
}

proptest! {
    /// What is said of a line, of two lines at one setting and of their highest rates is what the
    /// ratios say of the same cells.
    #[test]
    fn a_sweep_says_of_two_cells_what_their_ratio_says(
        times in prop::collection::vec(times(4), 1..3),
        baseline in 0..4_usize,
    ) {
        let named = ["titan", "native"].iter().zip(&times);
        let cells: Vec<CellInput> = named
            .flat_map(|(framework, times)| {
                let points: Vec<(u64, [f64; 3])> = (1..).zip(times.iter().copied()).collect();
                cells_of(framework, "mbs", &points, micro)
            })
            .collect();
        let settings = CompareSettings {
            baseline: Some(cells[baseline].cell.clone()),
            ..CompareSettings::default()
        };
        let all = compare(&cells, &settings, &Catalogue::default());
        let found = &sweeps(&all, &Judged::of_comparison(&all))[0];
        let ratios = all.speedups_by_cell();
        let base = &cells[baseline].cell;
        // The ratio of two cells of which one is the baseline, and whether it is of the first.
        let ratio = |a: &str, b: &str| {
            let other = if a == base { b } else if b == base { a } else { return None };
            Some((*ratios.get(other)?, b == base))
        };
        for surface in &found.surfaces {
            let cell = |at: usize| all.rows[surface.points[at].row].cell.as_str();
            let best = surface.best.as_ref().unwrap();
            // Repeats that do not vary at all.
            if best.reason.is_some() {
                continue;
            }
            for other in (0..surface.points.len()).filter(|at| *at != best.at) {
                if let Some((ratio, is_first)) = ratio(cell(best.at), cell(other)) {
                    let is_apart = !best.not_apart.contains(&other);
                    prop_assert_eq!(ratio.significant, Some(is_apart));
                    if let (true, Some(own), Some(its)) = (other == best.next, best.interval, ratio.interval) {
                        let its = if is_first { [its.low, its.high] } else { [1.0 / its.high, 1.0 / its.low] };
                        prop_assert!((own.low - its[0]).abs() < 1e-9 && (own.high - its[1]).abs() < 1e-9);
                    }
                }
            }
        }
        for pair in &found.pairs {
            let cell = |surface: usize, at: usize| {
                all.rows[found.surfaces[surface].points[at].row].cell.as_str()
            };
            for same in &pair.same {
                if let Some((ratio, _)) = ratio(cell(pair.a, same.at[0]), cell(pair.b, same.at[1])) {
                    prop_assert_eq!(same.significant, ratio.significant);
                }
            }
            let highest = pair.highest.as_ref().unwrap();
            let Some(ends) = highest.interval else { continue };
            if ends.low > 1.0 || ends.high < 1.0 {
                let named = ratio(cell(pair.a, highest.at[0]), cell(pair.b, highest.at[1]));
                prop_assert!(named.is_none_or(|(ratio, _)| ratio.significant == Some(true)));
            }
        }
    }
}

/// Three repeats of runs that fall into two modes (clocks, placement) are often of one mode, and show no
/// spread to speak of. Of 20 points that are one and the same, no sweep may then name the fastest or tell
/// two apart, but in 5 % of the cases.
#[test]
fn runs_of_two_modes_tell_no_two_equal_points_apart() {
    const TRIALS: usize = 60;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut uniform = || (0.0..1.0_f64).new_tree(&mut runner).unwrap().current();
    // The two modes lie 2.18 % apart, which makes a standard deviation of 1 %.
    let mut step_time = || {
        let mode = if uniform() < 0.3 { 1.0218 } else { 1.0 };
        let noise: f64 = (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        mode * (1.0 + 0.0005 * noise)
    };
    let mut is_false = |_: &usize| {
        let mut times = |value| (value, [(); 3].map(|()| step_time()));
        let points: Vec<(u64, [f64; 3])> = (0..20).map(|at| times(1 << at)).collect();
        let cells = cells("mbs", &points, micro);
        let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        let judged = Judged::of_comparison(&all);
        let best = sweeps(&all, &judged)[0].surfaces[0].best.clone();
        let is_apart = |at: usize| judged.test([at, 0]).is_some_and(|test| test.significant);
        best.is_some_and(|best| best.not_apart.len() < 19) || (1..all.rows.len()).any(is_apart)
    };
    let found = (0..TRIALS).filter(&mut is_false).count();
    assert!(found * 20 <= TRIALS, "{found} of {TRIALS}");
}

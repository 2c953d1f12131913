use proptest::prelude::*;

use super::*;
use crate::results::stand_ins::{file, reading};

#[test]
fn energies_are_sums_of_all_devices_by_both_methods() {
    let lines = [
        (10.0, vec![reading(100.0, 5.0), reading(300.0, 900.0)]),
        (11.0, vec![reading(200.0, 155.0), reading(300.0, 1200.0)]),
    ];
    let samples = Samples::read(&file(1.0, 2, &lines));
    assert_eq!(
        (samples.begin, samples.devices, samples.points.len()),
        (Some(10.0), 2, 1)
    );
    let point = &samples.points[0];
    assert_eq!(
        (point.counter_joules, point.integrated_joules, point.samples),
        (Some(450.0), Some(450.0), 2)
    );
}

#[test]
fn a_counter_that_goes_back_or_stands_still_is_not_known() {
    let of = |joules: [f64; 3]| -> Vec<Option<f64>> {
        let lines: Vec<_> = joules
            .iter()
            .enumerate()
            .map(|(i, j)| (i as f64, vec![reading(100.0, *j)]))
            .collect();
        Samples::read(&file(1.0, 1, &lines))
            .points
            .iter()
            .map(|p| p.counter_joules)
            .collect()
    };
    assert_eq!(of([100.0, 200.0, 300.0]), [Some(100.0), Some(100.0)]);
    assert_eq!(of([100.0, 200.0, 50.0]), [Some(100.0), None]);
    assert_eq!(of([0.0, 0.0, 0.0]), [None, None]);
    // Nor if another device's counter makes up for it.
    let lines = [
        (0.0, vec![reading(1.0, 100.0), reading(1.0, 0.0)]),
        (1.0, vec![reading(1.0, 50.0), reading(1.0, 500.0)]),
    ];
    assert_eq!(
        Samples::read(&file(1.0, 2, &lines)).points[0].counter_joules,
        None
    );
}

#[test]
fn a_counter_that_two_devices_share_is_neither_ones() {
    let lines = [
        (0.0, vec![reading(300.0, 1e6), reading(300.0, 1e6)]),
        (1.0, vec![reading(300.0, 1e6 + 600.0); 2]),
    ];
    assert_eq!(
        Samples::read(&file(1.0, 2, &lines)).points[0].counter_joules,
        None
    );
}

#[test]
fn power_is_not_integrated_over_a_gap_and_a_missing_one_is_no_zero() {
    let one = |watts: Option<f64>| {
        vec![Reading {
            power_watts: watts,
            ..Reading::default()
        }]
    };
    let lines = [
        (0.0, one(Some(100.0))),
        (1.0, one(Some(100.0))),
        (9.0, one(Some(100.0))),
        (10.0, one(None)),
        (11.0, one(Some(100.0))),
    ];
    let samples = Samples::read(&file(1.0, 1, &lines));
    let energies: Vec<_> = samples.points.iter().map(|p| p.integrated_joules).collect();
    assert_eq!(energies, [Some(100.0), None, None, None]);
    assert!(samples.points.iter().all(|p| p.counter_joules.is_none()));
}

#[test]
fn torn_and_foreign_lines_are_passed_over() {
    let mut text = file(
        1.0,
        1,
        &[
            (0.0, vec![reading(1.0, 1.0)]),
            (1.0, vec![reading(1.0, 2.0)]),
        ],
    );
    text.extend_from_slice(
            b"{\"time\":2.0,\"dev\nnot json\n{\"time\":0.5,\"devices\":[{}]}\n{\"time\":3,\"devices\":[]}\n",
        );
    assert_eq!(Samples::read(&text).points.len(), 1);
    for nothing in [
            &b""[..],
            b"\n\n",
            b"{}",
            b"\xff\n{}",
            b"{\"schema\":\"tprimat.telemetry/9\",\"source\":\"x\",\"interval_seconds\":1,\"devices\":[]}",
        ] {
            let samples = Samples::read(nothing);
            assert!(samples.unavailable.is_some() && samples.points.is_empty());
        }
    assert!(
        Samples::read(&file(1.0, 1, &[])).unavailable.is_some(),
        "no sample is no telemetry"
    );
}

#[test]
fn long_runs_have_points_of_equal_weight() {
    for (seconds, weight) in [(3600u32, 8), (36_000, 128)] {
        let lines: Vec<_> = (0..=seconds)
            .map(|i| (f64::from(i), vec![reading(100.0, 100.0 * f64::from(i))]))
            .collect();
        let points = Samples::read(&file(1.0, 1, &lines)).points;
        let (last, full) = points.split_last().unwrap();
        // The first sample of all ends no time and is counted with the first point.
        assert_eq!(full[0].samples, weight + 1);
        assert!(
            full[1..].iter().all(|p| p.samples == weight) && last.samples <= weight,
            "{seconds}"
        );
        assert!((MAX_POINTS / 2..=MAX_POINTS).contains(&points.len()));
    }
}

proptest! {
    #[test]
    fn condensing_loses_no_energy(steps in proptest::collection::vec((0.5f64..1.5, 1.0f64..700.0), 2..3000)) {
        let (mut time, mut joules) = (1.8e9, 0.0);
        let lines: Vec<_> = steps.iter().map(|(dt, watts)| {
            (time, joules) = (time + dt, joules + dt * watts);
            (time, vec![Reading { throttled: Some(vec!["sw_power_cap".into()]), ..reading(*watts, joules) }])
        }).collect();
        let samples = Samples::read(&file(1.0, 1, &lines));
        prop_assert!(samples.points.len() <= MAX_POINTS);
        let sum: f64 = samples.points.iter().map(|p| p.counter_joules.unwrap()).sum();
        let exact = joules - lines[0].1[0].energy_joules.unwrap();
        prop_assert!((sum - exact).abs() <= 1e-9 * exact, "{} {}", sum, exact);
        let seen: u64 = samples.points.iter().map(|p| p.samples).sum();
        prop_assert_eq!(seen, lines.len() as u64);
        prop_assert_eq!(samples.points.iter().map(|p| p.throttled["sw_power_cap"]).sum::<u64>(), seen);
        prop_assert_eq!(samples.points.last().unwrap().time, time);
    }
}

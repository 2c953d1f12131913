use super::*;
use crate::figures::{
    Statistics,
    stand_ins::{file, reading},
    summarize,
    summary::tests::run,
};
use crate::results::Reading;

/// Ten steps of 3 s that end at 103, 106, …, 130; all at 500 W, after 10 s at 50 W.
fn measured(change: impl Fn(f64, &mut Vec<Reading>)) -> RunResult {
    let mut result = run(&[3.0; 10]);
    result
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = Some(100.0 + 3.0 * s.step as f64));
    result.started_at = Some(90.0);
    let lines: Vec<_> = (0..45)
        .map(|i| {
            let time = 90.0 + f64::from(i);
            let joules = if time <= 100.0 {
                50.0 * (time - 90.0)
            } else {
                500.0 + 500.0 * (time - 100.0)
            };
            let mut devices = vec![reading(
                if time < 100.0 { 50.0 } else { 500.0 },
                1e7 + joules,
            )];
            change(time, &mut devices);
            (time, devices)
        })
        .filter(|(_, devices)| !devices.is_empty())
        .collect();
    result.telemetry = Some(Samples::read(&file(1.0, 1, &lines)));
    result
}

fn of(result: RunResult, warmup_steps: u64) -> (Result<Telemetry, String>, Vec<String>) {
    let summary = summarize(&[(1, result)], &Statistics { warmup_steps });
    let repeat = &summary.repeats[0];
    let found = repeat.telemetry.clone().ok_or_else(|| {
        repeat
            .telemetry_absent
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    });
    (
        found,
        summary.notes.into_iter().map(|note| note.text()).collect(),
    )
}

fn energy_of(result: RunResult, warmup_steps: u64) -> Result<(f64, String), String> {
    let telemetry = of(result, warmup_steps).0?;
    let energy = telemetry.energy.ok_or_else(|| {
        telemetry
            .energy_absent
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default()
    })?;
    Ok((energy.joules, energy.method))
}

#[track_caller]
fn is_about(found: &Result<(f64, String), String>, joules: f64, method: &str) {
    let (value, by) = found.as_ref().unwrap();
    assert!(
        (value / joules - 1.0).abs() < 1e-6 && by == method,
        "{found:?}"
    );
}

#[test]
fn the_counter_is_read_over_the_measured_steps_alone() {
    // Warm-up of 2: from 106 to 130, 24 s at 500 W.
    is_about(&energy_of(measured(|_, _| {}), 2), 12_000.0, "counter");
    let (telemetry, notes) = of(measured(|_, _| {}), 2);
    let telemetry = telemetry.unwrap();
    assert!(
        (telemetry.seconds - 24.0).abs() < 1e-9
            && (telemetry.mean_power_watts.unwrap() - 500.0).abs() < 1e-6
    );
    assert!(telemetry.max_memory_used_bytes.is_none() && telemetry.throttled.is_empty());
    assert!(
        !notes
            .iter()
            .any(|n| n.contains("telemetry") || n.contains("clocks")),
        "{notes:?}"
    );
    // Ends between two samples are interpolated: 100.25 to 130.25.
    let mut shifted = measured(|_, _| {});
    shifted
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = s.ended_at.map(|t| t + 0.25));
    is_about(&energy_of(shifted, 0), 15_000.0, "counter");
}

#[test]
fn what_the_device_does_after_the_last_step_is_not_of_it() {
    // The last step ends between two samples, and the counter stands still from there on.
    let idle = |time: f64, d: &mut Vec<Reading>| {
        if time > 129.5 {
            let at_end = d[0].energy_joules.map(|j| j - 500.0 * (time - 129.5));
            d[0].energy_joules = at_end;
        }
    };
    let mut early = measured(idle);
    early
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = s.ended_at.map(|t| t - 0.25));
    is_about(&energy_of(early, 2), 12_000.0, "counter");
}

#[test]
fn without_a_counter_power_is_integrated_and_a_reset_counter_is_none() {
    is_about(
        &energy_of(measured(|_, d| d[0].energy_joules = None), 2),
        12_000.0,
        "integrated",
    );
    let reset = |time, d: &mut Vec<Reading>| {
        if time > 120.0 {
            d[0].energy_joules = d[0].energy_joules.map(|j| j - 1e7)
        }
    };
    is_about(&energy_of(measured(reset), 2), 12_000.0, "integrated");
    // Before the measured part it does not matter.
    let early = |time, d: &mut Vec<Reading>| {
        if time < 95.0 {
            d[0].energy_joules = Some(9e9)
        }
    };
    is_about(&energy_of(measured(early), 2), 12_000.0, "counter");
}

#[test]
fn what_is_missing_is_missing_and_says_why() {
    let nothing = |_, d: &mut Vec<Reading>| d[0] = Reading::default();
    assert!(
        energy_of(measured(nothing), 2)
            .unwrap_err()
            .contains("neither")
    );
    // A gap does not hurt a counter, but power is not guessed over it.
    let gap = |time: f64, d: &mut Vec<Reading>| {
        if (112.0..120.0).contains(&time) {
            d.clear()
        }
    };
    is_about(&energy_of(measured(gap), 2), 12_000.0, "counter");
    let gap_of_power = |time: f64, d: &mut Vec<Reading>| {
        d[0].energy_joules = None;
        gap(time, d);
    };
    assert!(
        energy_of(measured(gap_of_power), 2)
            .unwrap_err()
            .contains("neither")
    );
    let late = |time: f64, d: &mut Vec<Reading>| {
        if (102.0..110.0).contains(&time) {
            d.clear()
        }
    };
    assert!(
        energy_of(measured(late), 2)
            .unwrap_err()
            .contains("begins or ends")
    );
    let short = |time: f64, d: &mut Vec<Reading>| {
        if time > 120.0 {
            d.clear()
        }
    };
    assert!(
        energy_of(measured(short), 2)
            .unwrap_err()
            .contains("last 10.0 s")
    );
    let a_little_short = |time: f64, d: &mut Vec<Reading>| {
        if time > 129.0 {
            d.clear()
        }
    };
    is_about(&energy_of(measured(a_little_short), 2), 12_000.0, "counter");
    let mut unavailable = measured(|_, _| {});
    unavailable.telemetry = Some(Samples::none("no driver answers"));
    let (found, notes) = of(unavailable, 2);
    assert_eq!(found.unwrap_err(), "no driver answers");
    assert!(
        notes.contains(&"repeat 1: no telemetry: no driver answers".to_owned()),
        "{notes:?}"
    );
}

/// A run that takes `seconds`: 100 s at 50 W before its first step, then steps of 10 s at 500 W.
fn long(seconds: u32) -> RunResult {
    let steps = seconds / 10 - 10;
    let mut result = run(&vec![10.0; steps as usize]);
    result
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = Some(1100.0 + 10.0 * s.step as f64));
    result.started_at = Some(1000.0);
    let joules = |t: f64| 50.0 * t.min(100.0) + 500.0 * (t - 100.0).max(0.0);
    let lines: Vec<_> = (0..=seconds + 1)
        .map(f64::from)
        .map(|t| {
            (
                1000.0 + t,
                vec![reading(
                    if t < 100.0 { 50.0 } else { 500.0 },
                    1e7 + joules(t),
                )],
            )
        })
        .collect();
    result.telemetry = Some(Samples::read(&file(1.0, 1, &lines)));
    result
}

#[test]
fn long_runs_keep_the_energy_of_their_measured_steps() {
    for (seconds, stride) in [(3600, 8.0), (36_000, 128.0)] {
        // With the first step the measured part begins in the point in which the power changes.
        for warmup in [0, 5, 100] {
            let exact = 500.0 * f64::from(seconds - 100 - 10 * warmup);
            let (joules, method) = energy_of(long(seconds), u64::from(warmup)).unwrap();
            assert!(
                (joules - exact).abs() <= stride * 450.0 && method == "counter",
                "{seconds} {warmup}: {joules}"
            );
            assert!(
                warmup == 0 || (joules / exact - 1.0).abs() < 5e-3,
                "{seconds} {warmup}: {joules} {exact}"
            );
        }
    }
    // 100 s at the end of ten hours.
    let why = energy_of(long(36_000), 3580).unwrap_err();
    assert!(
        why.contains("too short a part") && !why.contains("without a sample"),
        "{why}"
    );
}

#[test]
fn lines_that_were_held_back_date_nothing() {
    let mut held = measured(|_, _| {});
    held.trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = Some(130.0));
    assert!(
        of(held, 2)
            .0
            .unwrap_err()
            .contains("passed between their lines")
    );
    let mut undated = measured(|_, _| {});
    undated
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = None);
    assert!(of(undated, 2).0.unwrap_err().contains("not known when"));
    // An evaluation of 20 s between two steps is no training.
    let mut paused = measured(|_, _| {});
    paused
        .trace
        .steps
        .iter_mut()
        .filter(|s| s.step > 5)
        .for_each(|s| s.ended_at = s.ended_at.map(|t| t + 20.0));
    assert!(of(paused, 2).0.is_err());
}

#[test]
fn a_mean_over_k_steps_begins_k_steps_before_its_line() {
    let mut result = measured(|_, _| {});
    result.trace.steps.retain(|s| s.step.is_multiple_of(5));
    result
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.steps_averaged = Some(5));
    is_about(&energy_of(result, 0), 15_000.0, "counter");
}

#[test]
fn lowered_clocks_are_told_with_their_share() {
    let lowered = |time: f64, d: &mut Vec<Reading>| {
        let capped = (106.5..112.5).contains(&time);
        d[0].throttled = Some(if capped {
            vec!["sw_power_cap".into()]
        } else {
            vec![]
        });
        (d[0].memory_used_bytes, d[0].temperature_celsius) = (Some(time as u64), Some(time));
        (d[0].utilization, d[0].clock_hz) = (Some(0.5), Some(1.5e9));
    };
    let (telemetry, notes) = of(measured(lowered), 2);
    let telemetry = telemetry.unwrap();
    assert_eq!(telemetry.throttled, ["sw_power_cap"]);
    assert!(
        (telemetry.throttled_share["sw_power_cap"] - 0.25).abs() < 1e-9,
        "{telemetry:?}"
    );
    assert_eq!(
        (
            telemetry.max_memory_used_bytes,
            telemetry.max_temperature_celsius
        ),
        (Some(130), Some(130.0))
    );
    assert_eq!(
        (telemetry.mean_utilization, telemetry.mean_clock_hz),
        (Some(0.5), Some(1.5e9))
    );
    // Samples of 107 s to 130 s, one a second.
    assert!(
        (telemetry.mean_memory_used_bytes.unwrap() - 118.5).abs() < 1.0,
        "{telemetry:?}"
    );
    assert!(
        notes.contains(&"ran at its power cap in 25 % of the samples".to_owned()),
        "{notes:?}"
    );
}

use proptest::prelude::*;

use super::*;
use crate::figures::{
    NoteKind, RepeatStatus,
    stand_ins::{file, reading},
    summarize,
    summary::tests::run,
};
use crate::results::{AttestationStatus, Reading};

/// Ten steps of 3 s that end at 103, 106, …, 130; with two of warm-up, 106 to 130 is measured.
fn result() -> RunResult {
    let mut result = run(&[3.0; 10]);
    result
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = Some(100.0 + 3.0 * s.step as f64));
    (result.started_at, result.ended_at) = (Some(90.0), Some(135.0));
    result
}

/// What two devices, sampled at 90, 91, …, 134, make of it.
fn judged(change: impl Fn(f64, &mut [Reading])) -> Option<String> {
    let lines: Vec<_> = (90..135)
        .map(|time| {
            let mut devices = vec![
                Reading {
                    throttled: Some(vec![]),
                    ..reading(500.0, 1e6)
                };
                2
            ];
            change(f64::from(time), &mut devices);
            (f64::from(time), devices)
        })
        .collect();
    Signs::read(&file(1.0, 2, &lines))?.judge(&result(), &Statistics { warmup_steps: 2 })
}

fn process(pid: u32, name: &str) -> OtherProcess {
    OtherProcess {
        pid,
        name: (!name.is_empty()).then(|| name.to_owned()),
    }
}

fn slowed_by(reason: &str, from: f64, to: f64) -> Option<String> {
    judged(|time, devices| {
        if (from..to).contains(&time) {
            devices[1].throttled = Some(vec!["sw_power_cap".into(), reason.to_owned()]);
        }
    })
}

#[test]
fn another_process_in_the_measured_part_is_named_with_its_device() {
    let seen = |at: f64, found: Vec<OtherProcess>| {
        judged(move |time, devices| {
            if time == at {
                devices[1].other_processes = Some(found.clone());
            }
        })
    };
    let one = vec![process(4711, "python3")];
    assert_eq!(
        seen(106.0, one.clone()).unwrap(),
        "its GPU gpu-1 was also used by process 4711 (python3)"
    );
    assert_eq!(
        (seen(105.0, one.clone()), seen(131.0, one)),
        (None, None),
        "warm-up and the end are not measured"
    );
    assert_eq!(seen(110.0, vec![]), None);
    let many = vec![
        process(9, "bad\u{1b}[31m\n"),
        process(10, ""),
        process(11, ""),
    ];
    let why = seen(110.0, many).unwrap();
    assert_eq!(
        why,
        "its GPU gpu-1 was also used by process 9 (bad?[31m?) and 2 other processes"
    );
    let both = judged(|_, devices| {
        devices
            .iter_mut()
            .for_each(|d| d.other_processes = Some(vec![process(7, "")]))
    });
    assert_eq!(both.unwrap(), "2 of its 2 GPUs were also used by process 7");
}

#[test]
fn whoever_else_was_on_a_device_may_have_taken_its_memory_at_any_time() {
    let others = |time: f64, found: &[OtherProcess]| {
        let hot = Reading {
            throttled: Some(vec!["hw_thermal_slowdown".into()]),
            ..Reading::default()
        };
        let used = Reading {
            other_processes: Some(found.to_vec()),
            ..hot.clone()
        };
        Signs::read(&file(1.0, 2, &[(time, vec![hot, used])]))
            .unwrap()
            .others()
    };
    let why = "its GPU gpu-1 was also used by process 4711 (python3)";
    assert_eq!(
        others(0.0, &[process(4711, "python3")]).as_deref(),
        Some(why)
    );
    assert_eq!(others(0.0, &[]), None, "heat takes no memory");
}

#[test]
fn memory_of_others_is_what_torch_tells_beside_its_own() {
    let (torch, other) = (
        "OutOfMemoryError: CUDA out of memory.",
        "Process 1085385 has 92.85 GiB memory in use.",
    );
    let (free, own) = (
        "GPU 0 has a total capacity of 95.00 GiB of which 1.20 GiB is free.",
        "this process has 1.00 GiB memory in use.",
    );
    let of = |parts: &[&str]| memory_of_others(parts.join(" ").as_bytes());
    let why = "process 1085385 had 92.85 GiB of its GPU's memory";
    assert_eq!(
        of(&[
            "loading\n[rank0]:",
            torch,
            free,
            other,
            "Including non-PyTorch memory,",
            own
        ])
        .as_deref(),
        Some(why)
    );
    assert_eq!(
        of(&[torch, free]),
        None,
        "whose the rest is, it does not say"
    );
    assert_eq!(of(&[torch, free, own]), None);
    // In a container its own share goes by the host's number.
    assert_eq!(of(&[torch, free, other]), None);
    assert_eq!(of(&["a warning:", other, own]), None);
    assert_eq!(
        of(&[
            torch,
            "Process x has no memory in use",
            own,
            "Process 1 has"
        ]),
        None
    );
    // Another rank's.
    for rank in [
        "launch.py:318] Killing subprocess 1085385",
        "Sending process 1085385 closing signal SIGTERM",
        "exitcode  : 1 (pid: 1085385)",
    ] {
        assert_eq!(of(&[torch, other, own, "\n", rank]), None, "{rank}");
    }
    assert_eq!(
        of(&[torch, other, own, "\nexitcode  : 1 (pid: 10853859)"]).as_deref(),
        Some(why)
    );
}

#[test]
fn heat_and_the_power_brake_count_from_a_share_of_the_samples_on_and_the_power_cap_never() {
    let why = |percent: u32, name: &str| {
        format!("clocks were lowered ({name}) in {percent} % of the samples")
    };
    // 25 samples are of the measured part: one is 4 %, two are 8 %.
    for reason in SLOWDOWNS {
        assert_eq!(slowed_by(reason, 110.0, 111.0), None);
        assert_eq!(slowed_by(reason, 110.0, 112.0), Some(why(8, reason)));
    }
    for reason in [
        "sw_power_cap",
        "hw_slowdown",
        "applications_clocks_setting",
        "sync_boost",
    ] {
        assert_eq!(slowed_by(reason, 0.0, 999.0), None, "{reason}");
    }
    assert_eq!(
        slowed_by("hw_thermal_slowdown", 0.0, 106.0),
        None,
        "only the warm-up was slowed"
    );
    // Where one device reports nothing, nothing is known of all devices.
    let silent = judged(|_, devices| {
        devices[0].throttled = None;
        devices[1].throttled = Some(vec!["hw_thermal_slowdown".into()]);
    });
    assert_eq!(silent, None);
}

#[test]
fn where_it_is_not_known_when_the_steps_were_nothing_is_held_against_a_run() {
    let others = Reading {
        other_processes: Some(vec![process(1, "")]),
        ..Reading::default()
    };
    let signs = Signs::read(&file(1.0, 1, &[(110.0, vec![others])])).unwrap();
    let judged = |result: &RunResult| signs.judge(result, &Statistics::default());
    assert!(judged(&result()).is_some());
    let mut undated = result();
    undated
        .trace
        .steps
        .iter_mut()
        .for_each(|s| s.ended_at = None);
    assert_eq!(judged(&undated), None);
    // Nor against one that does not count: to replace it would be in vain.
    let contradicted = crate::results::Attestation {
        status: AttestationStatus::Contradicted,
        ..result().attestation
    };
    assert_eq!(
        judged(&RunResult {
            attestation: contradicted,
            ..result()
        }),
        None
    );
    assert_eq!(
        judged(&RunResult {
            ended_at: Some(95.0),
            ..result()
        }),
        None,
        "30 s of steps in a run of 5 s"
    );
    assert!(
        Signs::read(b"").is_none()
            && Signs::read(&file(1.0, 1, &[(1.0, vec![Reading::default()])])).is_none()
    );
}

#[test]
fn a_suspect_run_is_a_row_and_does_not_count() {
    let suspect = RunResult {
        suspect: Some("it was hot".into()),
        ..run(&[1.0, 1.0])
    };
    let summary = summarize(
        &[(1, run(&[2.0, 2.0])), (2, suspect)],
        &Statistics::default(),
    );
    assert_eq!(
        (summary.n, summary.tokens_per_second_per_gpu.unwrap().values),
        (1, vec![512.0])
    );
    assert_eq!(
        summary.repeats[1].status,
        RepeatStatus::Suspect {
            reason: "it was hot".into()
        }
    );
    let note = &summary.notes[0];
    assert_eq!(
        (note.kind, &*note.text()),
        (NoteKind::Suspect, "repeat 2 is not counted: it was hot")
    );
}

#[test]
fn names_of_devices_are_as_short_as_tells_them_apart() {
    assert_eq!(
        short_name("gpu-1b2c3d4e-0000-1111-2222-333344445555"),
        "gpu-1b2c3d4e"
    );
    assert_eq!(short_name("gpu-nvd-3"), "gpu-nvd-3");
}

proptest! {
    #[test]
    fn a_run_is_suspect_exactly_by_what_is_inside_its_measured_part(
        hot in proptest::collection::vec(proptest::option::of(any::<bool>()), 45),
        others in proptest::collection::vec(0u8..20, 45),
    ) {
        let at = |time: f64| (time - 90.0) as usize;
        let found = judged(|time, devices| {
            devices[0].throttled = hot[at(time)].map(|h| if h { vec!["hw_thermal_slowdown".into()] } else { vec![] });
            devices[1].other_processes = (others[at(time)] == 0).then(|| vec![process(5, "x")]);
        });
        let inside = || at(106.0)..=at(130.0);
        let slow = inside().filter(|i| hot[*i] == Some(true)).count();
        let known = inside().filter(|i| hot[*i].is_some()).count();
        let is_slow = slow >= 2 && 20 * slow > known;
        let is_shared = inside().any(|i| others[i] == 0);
        prop_assert_eq!(found.is_some(), is_slow || is_shared, "{:?}", found);
        prop_assert_eq!(found.clone().unwrap_or_default().contains("clocks"), is_slow);
        prop_assert_eq!(found.unwrap_or_default().contains("process 5"), is_shared);
    }
}

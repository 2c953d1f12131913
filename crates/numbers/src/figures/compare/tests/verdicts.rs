//! Who is faster, with which interval, and what counts as one test.

use super::*;

#[test]
fn a_clear_speedup_is_significant_and_noise_is_not() {
    let comparison = compare_all(&[
        measured("cpu/native/llama/single", &job(), &[1.0, 1.01, 0.99], None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
        measured("cpu/cmd/llama/single", &job(), &[1.0, 1.02, 0.985], None),
    ]);
    assert!(comparison.comparable && comparison.groups.len() == 1);
    let [slow, same] = &comparison.speedups[..] else {
        panic!("{:?}", comparison.speedups)
    };
    assert_eq!(
        (slow.b.as_str(), slow.significant, same.significant),
        ("cpu/native/llama/single", Some(true), Some(false))
    );
    assert!((slow.ratio - 0.5).abs() < 0.01 && slow.interval.unwrap().high < 0.55);
}

#[test]
fn figures_of_an_earlier_configuration_get_no_verdict_beside_present_ones() {
    let mut cells = [
        measured("cpu/native/llama/single", &job(), &[1.0, 1.01, 0.99], None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
        measured("cpu/cmd/llama/single", &job(), &[1.5, 1.52, 1.48], None),
    ];
    let earlier = "measured before train.py was edited".to_owned();
    cells[1].standing.earlier = Some(earlier);
    let all = compare_all(&cells);
    let [edited, other] = &all.speedups[..] else {
        panic!("{:?}", all.speedups)
    };
    assert_eq!(
        (edited.significant, edited.p_value, code(edited)),
        (None, None, "other_configuration")
    );
    assert_eq!(
        (other.significant, other.interval.unwrap().confidence),
        (Some(true), 0.95),
        "it is not corrected for a pair that is not tested"
    );
}

/// Why a ratio has no verdict.
fn code(speedup: &Speedup) -> &str {
    &speedup.reason.as_ref().unwrap().code
}

#[test]
fn few_repeats_give_no_verdict_and_say_why() {
    let cells = |n: usize| {
        let times = [1.0, 1.01, 0.99];
        [
            measured("cpu/native/llama/single", &job(), &times, None),
            measured("cpu/tran/llama/single", &job(), &times[..n], None),
        ]
    };
    let one = &compare_all(&cells(1)).speedups[0];
    assert_eq!(
        (one.interval, one.significant, code(one)),
        (None, None, "one_repeat")
    );
    let two = &compare_all(&cells(2)).speedups[0];
    assert!(
        two.interval.is_some()
            && two.significant.is_none()
            && two.reason.as_ref().unwrap().text == "2 repeats, and a verdict needs 3"
    );
}

#[test]
fn the_baseline_can_be_named_and_identical_launches_are_noted() {
    let mut cells = [
        measured("cpu/native/llama/single", &job(), &[1.0, 1.1], None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.1], None),
    ];
    cells[1].same_launch_as = Some(cells[0].cell.clone());
    let named = CompareSettings {
        baseline: Some("cpu/tran/llama/single".into()),
        ..Default::default()
    };
    let comparison = compare_with(&cells, named);
    assert_eq!(comparison.speedups[0].b, "cpu/tran/llama/single");
    assert!(
        comparison
            .notes
            .iter()
            .any(|n| n.kind == NoteKind::Same && n.text().contains("the very same bytes"))
    );
    let absent = CompareSettings {
        baseline: Some("x".into()),
        ..Default::default()
    };
    assert!(
        compare_with(&cells, absent)
            .notes
            .iter()
            .any(|n| n.text().contains("has no figures"))
    );
}

#[test]
fn the_same_measurements_are_not_compared_with_themselves() {
    let times = [1.0, 1.01, 0.99];
    let mut cells = [
        measured("cpu/cmd/llama/single", &job(), &times, None),
        measured("cpu/cmd/llama/other", &job(), &times, None),
        measured("cpu/tran/llama/single", &job(), &[2.0, 2.02, 1.98], None),
    ];
    cells[1].same_launch_as = Some(cells[0].cell.clone());
    // Two runs of the same launch: a difference is possible, and noise.
    let apart = compare_all(&cells);
    assert!(apart.speedups[0].interval.is_some() && apart.speedups[0].significant == Some(false));
    let same_note = |all: &Comparison| {
        all.notes
            .iter()
            .find(|n| n.kind == NoteKind::Same)
            .unwrap()
            .text()
    };
    assert!(
        same_note(&apart).contains("any difference between them is noise"),
        "{}",
        same_note(&apart)
    );
    let share = |cells: &mut [CellInput; 3], repeats: usize| {
        let CellState::Ok { summary: first } = cells[0].state.clone() else {
            unreachable!()
        };
        let CellState::Ok { summary } = &mut cells[1].state else {
            unreachable!()
        };
        for (own, theirs) in summary.repeats.iter_mut().zip(&first.repeats).take(repeats) {
            own.attempt.clone_from(&theirs.attempt);
        }
    };
    let none = (None, None, None);
    share(&mut cells, 2);
    let part = compare_all(&cells);
    let found = &part.speedups[0];
    assert_eq!((found.interval, found.significant, found.p_value), none);
    assert_eq!(code(found), "some_same_measurements");
    share(&mut cells, 3);
    let all = compare_all(&cells);
    let [same, other] = &all.speedups[..] else {
        panic!("{:?}", all.speedups)
    };
    assert_eq!((same.interval, same.significant, same.p_value), none);
    assert_eq!(code(same), "same_measurements");
    assert!(
        same_note(&all)
            .starts_with("identical to cpu/cmd/llama/single, so both were measured once"),
        "{}",
        same_note(&all)
    );
    // Nor does it count as a comparison that the others are corrected for.
    assert_eq!(
        (other.significant, other.interval.unwrap().confidence),
        (Some(true), 0.95)
    );
    // Against a third cell they are one comparison, which is corrected for once and told alike.
    let third = CompareSettings {
        baseline: Some("cpu/tran/llama/single".into()),
        ..Default::default()
    };
    let twice = compare_with(&cells, third).speedups;
    let [first, second] = &twice[..] else {
        panic!("{twice:?}")
    };
    assert_eq!(
        (first.same_as.as_deref(), second.same_as.as_deref()),
        (None, Some("cpu/cmd/llama/single"))
    );
    assert_eq!(
        (first.interval, first.p_value, first.significant),
        (second.interval, second.p_value, Some(true))
    );
    assert_eq!(
        (second.significant, first.interval.unwrap().confidence),
        (Some(true), 0.95)
    );
    // Without a name nothing is the same.
    for cell in &mut cells[..2] {
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        summary.repeats.iter_mut().for_each(|r| r.attempt.clear());
    }
    assert!(compare_all(&cells).speedups[0].interval.is_some());
}

#[test]
fn hosts_are_the_units_of_a_comparison_and_two_of_them_are_too_few() {
    let set = |cell: &mut CellInput, units: &[f64], unit: Unit| {
        let CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        let estimate = summary.tokens_per_second_per_gpu.as_mut().unwrap();
        (estimate.units, estimate.unit) = (units.to_vec(), unit);
    };
    let times = [1.0, 1.01, 0.99, 1.0];
    let mut cells = [
        measured("cpu/native/llama/single", &job(), &times, None),
        measured(
            "cpu/tran/llama/single",
            &job(),
            &times.map(|t| 2.0 * t),
            None,
        ),
    ];
    set(&mut cells[1], &[500.0, 503.0], Unit::Host);
    let all = compare_all(&cells);
    let two = &all.speedups[0];
    assert_eq!(
        (
            two.n_a,
            two.n_b,
            two.significant,
            two.interval.unwrap().confidence
        ),
        (2, 4, None, 0.95)
    );
    assert_eq!(
        two.reason.as_ref().unwrap().text,
        "2 hosts, and a verdict needs 3"
    );
    set(&mut cells[1], &[500.0, 503.0, 505.0], Unit::Host);
    assert_eq!(compare_all(&cells).speedups[0].significant, Some(true));
}

#[test]
fn no_interval_of_a_speedup_contradicts_its_verdict() {
    // Each alone would be significant; over the four of them the correction leaves some.
    let times = |t: f64| [t, 1.006 * t, 0.994 * t, 1.002 * t];
    let cells: Vec<CellInput> = ["native", "tran", "cmd", "fsdp", "deep"]
        .iter()
        .zip([1.0, 1.011, 0.989, 1.02, 1.001])
        .map(|(name, t)| measured(&format!("cpu/{name}/llama/single"), &job(), &times(t), None))
        .collect();
    let found = compare_all(&cells).speedups;
    for speedup in &found {
        let RatioInterval {
            low,
            high,
            confidence,
        } = speedup.interval.unwrap();
        assert!(confidence >= 0.95, "{speedup:?}");
        assert_eq!(
            speedup.significant,
            Some(low > 1.0 || high < 1.0),
            "{speedup:?}"
        );
    }
    let verdicts: BTreeSet<_> = found.iter().map(|s| s.significant).collect();
    assert_eq!(
        verdicts.len(),
        2,
        "some are significant, some are not: {found:?}"
    );
    assert!(
        found.iter().any(|s| s.interval.unwrap().confidence > 0.95),
        "four of them are looked at: {found:?}"
    );
}

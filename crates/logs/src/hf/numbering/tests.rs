use crate::{hf::tests::parse, testing::all_kinds};

/// A log of bars (numbers) and lines (`L`, each with its own learning rate), of 40 steps.
fn drawn(log: &str) -> (Vec<u64>, Vec<String>) {
    let piece = |(at, word): (usize, &str)| match word {
        "L" => format!("{{'loss': 2.5, 'learning_rate': {at}e-06, 'epoch': 0.01}}\n"),
        count => format!("  5%|#         | {count}/40 [00:08<01:12,  2.00s/it]\r"),
    };
    let trace = parse(&log.split(' ').enumerate().map(piece).collect::<String>());
    let kinds = all_kinds(&trace)
        .iter()
        .filter(|k| **k != "missing_steps")
        .map(|k| (*k).to_owned())
        .collect();
    (trace.steps.iter().map(|s| s.step).collect(), kinds)
}

#[test]
fn a_bar_that_is_not_drawn_again_is_of_a_later_step() {
    let (assumed, uncertain) = ("step_numbers_assumed", "step_numbers_uncertain");
    for (log, steps, told) in [
        ("9 10 L 10 11 20 L 20 21 30 L 30", vec![10, 20, 30], None),
        (
            "9 10 L 11 19 20 L 21 29 30 L 31",
            vec![10, 20, 30],
            Some(assumed),
        ),
        (
            "10 L 11 20 L 21 30 L 31 40 L",
            vec![10, 20, 30, 40],
            Some(assumed),
        ),
        ("10 L 12 20 L 21 30 L 33", vec![10, 20, 30], Some(assumed)),
        // Bars that come too fast are not drawn before the line.
        ("9 L 10 19 L 20 29 L 30", vec![10, 20, 30], None),
        ("0 L 1 L 2 L 3", vec![1, 2, 3], None),
        ("0 1 L 1 2 L 2 3 L 3", vec![1, 2, 3], None),
        ("0 1 L 2 L 3 L 4", vec![1, 2, 3], Some(assumed)),
        (
            "37 L 38 L 39 L 40 L 40",
            vec![38, 39, 40, 41],
            Some(uncertain),
        ),
        ("10 L 12 25 L 26 33 L 34", vec![12, 26, 34], Some(uncertain)),
        ("7 L 8", vec![8], Some(uncertain)),
    ] {
        let (found, kinds) = drawn(log);
        assert_eq!(
            (found, kinds.first().map(String::as_str)),
            (steps, told),
            "{log}: {kinds:?}"
        );
    }
}

#[test]
fn with_an_interval_or_fine_epochs_a_bar_that_is_not_drawn_again_shifts_nothing() {
    let log = " 3%|# | 1/40 [00:02<01:12, 2.00s/it]\r{'loss': 2.5, 'epoch': 0.25}\n 5%|# | 2/40 [00:04<01:12, 2.00s/it]\r{'loss': 2.5, 'epoch': 0.5}\n";
    let steps = |before: &str| {
        let trace = parse(&format!("{before}{log}"));
        (
            trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
            trace.steps_assumed,
        )
    };
    assert_eq!(steps("logging_steps: 1\n"), (vec![1, 2], false));
    let banner = "  Num examples = 32\n  Total train batch size (w. parallel, distributed & accumulation) = 8\n";
    assert_eq!(steps(banner), (vec![1, 2], false));
}

#[test]
fn two_ranks_are_not_two_steps() {
    let line = |loss: f64, rest: &str| format!("{{'loss': {loss}, {rest}}}\n");
    let read = |log: String| {
        let trace = parse(&log);
        let kinds = all_kinds(&trace)
            .into_iter()
            .map(ToOwned::to_owned)
            .filter(|k| k != "step_numbers_assumed");
        (
            trace
                .steps
                .iter()
                .filter_map(|s| s.loss)
                .collect::<Vec<_>>(),
            kinds.collect::<Vec<_>>(),
        )
    };
    let pairs = |rest: &dyn Fn(u32) -> String, prefixes: [&str; 2]| -> String {
        (1..4u32)
            .flat_map(|n| {
                [0u32, 1].map(|r| {
                    prefixes[r as usize].to_owned()
                        + &line(f64::from(n) + 0.25 * f64::from(r), &rest(n))
                })
            })
            .collect()
    };
    let (ranks, steps) = (vec![1.0, 2.0, 3.0], vec![1.0, 1.25, 2.0, 2.25, 3.0, 3.25]);
    let decaying = |n: u32| format!("'learning_rate': {n}e-06, 'epoch': 0.0{n}");
    assert_eq!(
        read(pairs(&decaying, ["", ""])),
        (ranks.clone(), vec!["duplicate_step".to_owned(); 3])
    );
    let normed = |n: u32| format!("'grad_norm': {n}.5, 'learning_rate': 1e-06, 'epoch': 0.01");
    assert_eq!(read(pairs(&normed, ["", ""])).0, ranks);
    let constant = |_| "'learning_rate': 1e-06, 'epoch': 0.01".to_owned();
    assert_eq!(
        read(pairs(&constant, ["", ""])),
        (steps.clone(), vec!["ranks_or_steps".to_owned()])
    );
    assert_eq!(read(pairs(&constant, ["[rank0]:", "[rank0]:"])).0, steps);
    let tagged = read(pairs(
        &|n| format!("'learning_rate': 1e-06, 'epoch': 0.0{n}"),
        ["[rank0]:", "[rank1]:"],
    ));
    assert_eq!(tagged.0, ranks);
    let other_norms = |norm: u32, n: u32| {
        line(
            f64::from(n),
            &format!("'grad_norm': {norm}.5, 'learning_rate': 1e-06, 'epoch': 0.01"),
        )
    };
    assert_eq!(
        read((1..4).map(|n| other_norms(n, n)).collect()),
        (ranks.clone(), vec![]),
        "steps of a coarse epoch"
    );
    // Bars stand still between ranks.
    let bar = |n: u32| format!(" 5%|# | {n}/40 [00:02<01:12, 2.00s/it]\r");
    let both = |n: u32| {
        bar(n)
            + &line(f64::from(n), &constant(n))
            + &bar(n)
            + &line(f64::from(n) + 0.25, &constant(n))
            + &bar(n)
    };
    assert_eq!(read((1..4).map(both).collect()).0, ranks);
    let one = |n: u32| bar(n) + &line(f64::from(n), &constant(n)) + &bar(n);
    assert_eq!(read((1..4).map(one).collect()), (ranks, vec![]));
    // One bar for all of the log says nothing of steps.
    let still = bar(0)
        + &(1..4)
            .map(|n| line(f64::from(n), &constant(n)))
            .collect::<String>();
    assert_eq!(read(still).1, ["ranks_or_steps"]);
}

#[test]
fn ranks_by_their_prefixes() {
    let known = [
        ("[rank3]:", 3),
        ("[default12]:", 12),
        (" 7: ", 7),
        ("2024-01-02 [rank 4] ", 4),
    ];
    for (prefix, rank) in known {
        assert_eq!(super::rank_of(prefix), Some(rank), "{prefix}");
    }
    for prefix in [
        "",
        "2024-01-02 10:00:01,123 ",
        "loss:",
        "[rank]:",
        "10%|#| 4/40",
    ] {
        assert_eq!(super::rank_of(prefix), None, "{prefix}");
    }
}

#[test]
fn lines_of_one_rate_norm_and_epoch_are_steps() {
    let line = |step: u32, rate: &str, epoch: &str| {
        let loss = 9.0 - 0.05 * f64::from(step);
        format!(
            "{{'loss': {loss:.4}, 'grad_norm': 1.5000, 'learning_rate': {rate}, 'epoch': {epoch}}}\n"
        )
    };
    let constant: String = (1..=60)
        .map(|step| line(step, "3.0000e-04", if step <= 31 { "0.0" } else { "0.01" }))
        .collect();
    let warmed_up: String = (1..=60)
        .map(|step| line(step, &format!("{}e-04", step.min(10)), "0.0"))
        .collect();
    for log in [constant, warmed_up] {
        let trace = parse(&log);
        assert_eq!(trace.steps.len(), 60, "{:?}", all_kinds(&trace));
        assert!(!all_kinds(&trace).contains(&"duplicate_step"));
    }
}

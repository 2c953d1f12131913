use crate::{LogSection, parse};

/// Each mark, over and over in one line of a megabyte: half an hour if all of the line were
/// searched at every one.
#[test]
fn a_line_full_of_marks_is_read_in_linear_time() {
    let words = super::MARKS.iter().map(|(word, _)| *word);
    let values = [
        "memory (MB):",
        "iter time (s): 1 steps: 1 loss: ",
        "iteration 1/ 2 |",
        "Step Time : 1s tok/s/gpu ",
    ];
    for piece in words.chain(values) {
        for filler in ["", ": 1,", "[ "] {
            let line = format!("{piece}{filler}").repeat((1 << 20) / (piece.len() + filler.len()));
            let trace = parse(&LogSection::named("megatron"), line.as_bytes());
            assert!(trace.memory.is_empty(), "{piece}{filler}");
        }
    }
}

#[test]
fn what_one_mark_is_given_does_not_grow_with_the_line() {
    let place = |text, at| super::Place {
        text,
        ended: true,
        start: at,
        end: at,
    };
    let line = "é1 | ".repeat(1 << 16);
    for at in [0, 3, 300, 300_000] {
        let place = place(&line, at);
        assert!(place.before().len() <= super::BEFORE + 3);
        let behind = place.behind();
        assert!(
            behind.len() < super::BEHIND && (behind.is_empty() || behind.ends_with(['1', '|'])),
            "{behind}"
        );
    }
    assert_eq!(place("a 12", 1).behind(), " 12");
}

#[test]
fn reports_of_many_ranks_share_a_line() {
    let report = |rank: u32| {
        format!(
            "[Rank {rank}] (after 5 iterations) memory (MB) | allocated: {rank}.5 | max allocated: {rank}.0"
        )
    };
    let line: String = (1..=64).map(report).collect();
    let trace = parse(
        &LogSection::named("megatron"),
        format!("{line}\n").as_bytes(),
    );
    let told: Vec<_> = trace
        .memory
        .iter()
        .map(|m| (m.rank, m.after_step, m.figures[0].bytes >> 19))
        .collect();
    let expected: Vec<_> = (1..=64)
        .map(|rank| (Some(rank), Some(5), 2 * rank + 1))
        .collect();
    assert_eq!((told, trace.memory_lines), (expected, 1));
    assert!(trace.memory.iter().all(|m| m.figures.len() == 2));
}

#[test]
fn a_run_that_goes_on_in_the_same_log_counts_from_where_it_goes_on() {
    let line = |n: u64, ms: f64| {
        format!(
            " [2026-01-02 03:04:05.000001] iteration {n}/ 6 | consumed samples: {} | elapsed time per iteration (ms): {ms} | lm loss: 2.0E+00 |\n",
            n * 8
        )
    };
    let start = "[before the start of training step] datetime: 2026-01-02 03:04:05\n";
    let log = [
        start.to_owned(),
        line(1, 9000.0),
        line(2, 5000.0),
        line(3, 1000.0),
        line(4, 1000.0),
    ]
    .concat()
        + start
        + &[
            line(3, 8000.0),
            line(4, 5000.0),
            line(5, 2000.0),
            line(6, 2000.0),
        ]
        .concat();
    let trace = parse(&LogSection::named("megatron"), log.as_bytes());
    let times: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds, s.steps_averaged))
        .collect();
    let expected = [
        (1, 9.0, None),
        (2, 5.0, Some(2)),
        (3, 8.0, None),
        (4, 5.0, Some(2)),
        (5, 2.0, None),
        (6, 2.0, None),
    ];
    assert_eq!(times, expected.map(|(n, t, k)| (n, Some(t), k)));
}

/// Some of Megatron's relatives count an evaluation into the time of the step behind it.
#[test]
fn a_step_that_includes_an_evaluation_has_no_step_time() {
    let line = |n: u64, ms: f64| {
        format!(" iteration {n}/ 6 | elapsed time per iteration (ms): {ms} | lm loss: 2.0E+00 |\n")
    };
    let evaluated = " validation loss at iteration 3 | lm loss value: 2.0E+00 |\n";
    let log = |behind: f64| {
        let before = [line(1, 9000.0), line(2, 600.0), line(3, 600.0)].concat();
        let trace = parse(
            &LogSection::named("megatron"),
            (before + evaluated + &line(4, behind) + &line(5, 600.0)).as_bytes(),
        );
        let included = trace.steps.iter().filter(|step| step.includes_evaluation);
        included.map(|step| step.step).collect::<Vec<_>>()
    };
    assert_eq!(log(13_900.0), [4]);
    assert_eq!(log(610.0), [0; 0]);
}

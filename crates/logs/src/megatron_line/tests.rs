use proptest::prelude::*;

use super::*;

fn read_one(text: &str) -> (Iteration, usize) {
    let (head, mut found) = (
        find_header(text).expect("has a header"),
        Iteration::default(),
    );
    let end = read(text, &head, &mut found, &mut Notes::default());
    (found, end)
}

#[test]
fn headers_of_all_writers() {
    let head = |text: &str| find_header(text).map(|h| (h.number, h.total, h.microseconds));
    assert_eq!(
        head(" iteration        7/     250 | consumed"),
        Some((7, 250, false))
    );
    assert_eq!(
        head("3: [2025-02-03 04:05:06] iteration 7/ 250 | x"),
        Some((7, 250, false))
    );
    assert_eq!(
        head("[2026-02-03 04:05:06.654321] iteration        7/     250 | x"),
        Some((7, 250, true))
    );
    assert_eq!(
        head("[I][training:9]  iteration=       7/   250 | lm loss=2"),
        Some((7, 250, false))
    );
    assert_eq!(head("saving checkpoint at iteration     100 to /x"), None);
    assert_eq!(
        head("validation loss at iteration 50 | lm loss value: 8"),
        None
    );
    assert_eq!(head("iteration 99999999999999999999999/ 5 |"), None);
    assert_eq!(head("Training epoch 0, iteration 3/19 | lr: 1e-06"), None);
    assert_eq!(head("iteration"), None);
}

#[test]
fn values_of_this_iteration_and_means_are_kept_apart() {
    let (found, _) = read_one(
        "iteration 4/ 9 | elapsed time per iteration (ms): 812.5/900.0 | hip mem usage/free/total/usage_ratio: \
         1.50GB/2.50GiB/4.00GB/37.50% | compute per GPU (TFLOP/s/GPU): 410.0 (avg 400.5) | tokens/s/GPU inst/harmonic \
         mean: 9000.5/8800.0 | rank-3 rocm max mem usage/usage_ratio: 2.00GB/50.00%",
    );
    let step = found.step;
    assert_eq!(
        (step.step_time_seconds, step.tflops_per_gpu),
        (Some(0.8125), Some(410.0))
    );
    let means = step.running_average.unwrap();
    assert_eq!(
        (means.step_time_seconds, means.tflops_per_gpu),
        (Some(0.9), Some(400.5))
    );
    assert_eq!(
        (
            step.tokens_per_second_per_gpu,
            means.tokens_per_second_per_gpu
        ),
        (Some(9000.5), Some(8800.0))
    );
    assert_eq!(
        (step.memory_bytes, step.memory_source.as_deref()),
        (Some(3 << 29), Some("hip"))
    );
    let figures: Vec<_> = step
        .memory_figures
        .iter()
        .map(|f| (&*f.kind, &*f.source, f.bytes >> 20))
        .collect();
    let expected = [
        ("device_used", "hip", 1536),
        ("device_free", "hip", 2560),
        ("device_total", "hip", 4096),
        ("device_used_max_rank", "rocm-smi", 2048),
    ];
    assert_eq!(figures, expected);
}

#[test]
fn what_is_glued_to_the_line_is_left_to_others() {
    let text = "iteration 1/ 2 | lm loss: 3.5 | number of nan iterations:   0 |Number of parameters in billions:  6.98";
    let (found, end) = read_one(text);
    assert_eq!(
        (found.step.loss, &text[end..]),
        (Some(3.5), "Number of parameters in billions:  6.98")
    );
    let two =
        "iteration 1/ 2 | lm loss: 3.5 | [2025-01-01 00:00:00] iteration 2/ 2 | lm loss: 2.5 |";
    let (found, end) = read_one(two);
    assert_eq!(found.step.loss, Some(3.5));
    assert_eq!(find_header(&two[end..]).unwrap().number, 2);
}

#[test]
fn nan_and_absurd_values_are_absent() {
    let mut notes = Notes::default();
    let text = "iteration 1/ 2 | elapsed time per iteration (ms): -5.0 | throughput per GPU (TFLOP/s/GPU): 59892.5 | \
                grad norm: nan | lm loss: NaN";
    let mut found = Iteration::default();
    read(text, &find_header(text).unwrap(), &mut found, &mut notes);
    assert!(found.nan_loss && found.nan_grad_norm);
    assert_eq!(
        found.step,
        Step {
            step: 1,
            ..Step::default()
        }
    );
    let kinds: Vec<_> = notes.finish().into_iter().map(|a| a.kind).collect();
    assert_eq!(kinds, ["absurd_step_time", "absurd_value"]);
}

proptest! {
    #[test]
    fn numbers_are_those_of_the_standard_library(text in "-?[0-9]{0,17}\\.?[0-9]{0,9}([eE][-+]?[0-9]{1,3})?") {
        let expected = text.parse::<f64>().ok();
        let read = number(&text).filter(|(_, rest)| rest.is_empty());
        prop_assert_eq!(read.map(|(value, _)| value), expected);
    }

    #[test]
    fn any_text_is_read(text in "(iteration|[ =/|:]|[0-9]{1,3}|lm loss|hip mem usage|GB|é|nan|\\(avg){0,40}") {
        if let Some(head) = find_header(&text) {
            let end = read(&text, &head, &mut Iteration::default(), &mut Notes::default());
            prop_assert!(text.is_char_boundary(end) && end >= head.end);
        }
    }
}

use super::super::{LogSection, parse_any};

const LOG: &str = concat!(
    "2025-09-01 10:00:00 | INFO | root | step 0 | epoch 0 | loss 1.2500 | grad_norm 3.0625 | lr 4.00e-06 | mem 32.00 GiB | tps 400.00(100.00/gpu) | num_label_tokens 4707\n",
    "2025-09-01 10:00:01 | INFO | root | step 1 | epoch 0 | loss nan | grad_norm 2.0 | lr 5.00e-06 | mem: 33.00 GiB | tps 250.50/gpu | num_label_tokens 4800\n",
    "2025-09-01 10:00:02 | INFO | root | [val] default | step 1 | epoch 0 | loss 1.5000 | lr 5.00e-06 | num_label_tokens 900\n",
    "2025-09-01 10:00:03 | INFO | root | step 2 | epoch 0 | loss 1.0 | grad_norm 2.0 | lr 5.00e-06 | mem 33.00 GiB | tps 900.0 | num_label_tokens 4800\n",
);

#[test]
fn metric_lines() {
    let trace = parse_any(LOG.as_bytes());
    assert_eq!(trace.format, "automodel");
    let [first, second, third] = &trace.steps[..] else {
        panic!("{:?}", trace.steps)
    };
    assert_eq!(
        (first.step, first.loss, first.grad_norm, first.learning_rate),
        (0, Some(1.25), Some(3.0625), Some(4e-6))
    );
    assert_eq!(
        (first.tokens_per_second_per_gpu, first.other["tps"]),
        (Some(100.0), 400.0)
    );
    assert_eq!(
        (first.memory_bytes, first.memory_kind.as_deref()),
        (Some(32 << 30), Some("peak_allocated"))
    );
    assert_eq!(
        (first.tokens, first.other["num_label_tokens"]),
        (None, 4707.0)
    );
    assert_eq!(
        (
            second.loss,
            second.tokens_per_second_per_gpu,
            second.memory_bytes
        ),
        (None, Some(250.5), Some(33 << 30))
    );
    assert_eq!(
        (third.tokens_per_second_per_gpu, third.other["tps"]),
        (None, 900.0)
    );
    assert_eq!(
        (trace.evaluations.len(), trace.evaluations[0].value),
        (1, 1.5)
    );
    assert_eq!(trace.anomalies[0].kind, "nan_loss");
}

/// In any way in which people write thousands.
#[test]
fn rates_in_thousands() {
    for (all, each, rate) in [
        ("65.5k", "8.19k", 8190.0),
        ("65,536", "8,192", 8192.0),
        ("65'536", "8'192", 8192.0),
        ("65\u{202f}536", "8\u{202f}192", 8192.0),
    ] {
        let is_it = |step: &crate::Step| {
            let read = step.tokens_per_second_per_gpu;
            read.is_some_and(|read| (read - rate).abs() < 1e-6)
        };
        let line =
            format!("step 1 | epoch 0 | loss 1.5 | tps {all}({each}/gpu) | num_label_tokens 900\n");
        let step = &parse_any(line.as_bytes()).steps[0];
        assert!(is_it(step), "{line}: {step:?}");
        let line = format!("step:  1  loss:  1.5  memory: 3.31GiB(4%)  tps: {each}  mfu: 9%\n");
        let step = &parse_any(line.as_bytes()).steps[0];
        assert!(is_it(step), "{line}: {step:?}");
        let section = crate::LogSection::of_lines(&["it <step> at <tokens_per_second_per_gpu>"]);
        let step = &crate::parse(&section, format!("it 5 at {each} tok/s\n").as_bytes()).steps[0];
        assert!(is_it(step), "{each}: {step:?}");
    }
}

super::super::testing::damaged!("automodel", LOG);

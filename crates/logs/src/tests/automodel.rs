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

super::super::testing::damaged!("automodel", LOG);

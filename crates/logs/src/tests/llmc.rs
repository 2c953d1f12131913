use crate::{LogSection, parse, parse_any, testing};

const STDOUT: &str = "\
+-----------------------+----------------------------------------------------+
| Parameter             | Value                                              |
| learning rate (LR)    | 3.000000e-04                                       |
| warmup iterations     | 7                                                  |
| num_layers L          | 12                                                 |
num_parameters: 124475904 => bytes: 248951808
batch_size B=4 * seq_len T=512 * num_processes=2 and total_batch_size=8192
=> setting grad_accum_steps=2
val loss 11.000500
step    1/40 | loss 11.000000 (+nanz)| norm 20.5000 (+nanz)| lr 4.29e-05 | 500.00 ms | 40.5% bf16 MFU | 16384 tok/s
step    2/40 | loss 10.500000 (+0.12z)| norm 18.2500 (-1.50z)| lr 8.57e-05 | 250.50 ms | 47.4% bf16 MFU | 32000 tok/s
val loss 10.400000
step    3/40 | loss nan (+nanz)| norm nan (+nanz)| lr 1.29e-04 | 251.00 ms | -100.0% fp32 MFU | 32100 tok/s
total average iteration time: 250.750000 ms
";
const MAIN_LOG: &str = "s:0 tel:11.0090\ns:0 trl:11.0080 lr:0.000001 norm:15.25\ns:1 trl:10.5000 lr:0.000002 norm:14.50\n\
        s:2 eval:0.2500\ns:2 trl:9.7500 lr:0.000003 norm:1.2";

#[test]
fn output_with_global_rates_kept_apart() {
    let trace = parse_any(STDOUT.as_bytes());
    assert_eq!(trace.format, "llm.c");
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds, s.loss, s.grad_norm))
        .collect();
    assert_eq!(
        steps,
        [
            (1, Some(0.5), Some(11.0), Some(20.5)),
            (2, Some(0.2505), Some(10.5), Some(18.25)),
            (3, Some(0.251), None, None),
        ]
    );
    assert!(
        trace
            .steps
            .iter()
            .all(|s| s.tokens_per_second_per_gpu.is_none() && s.tokens == Some(8192))
    );
    assert_eq!(trace.steps[1].learning_rate, Some(8.57e-5));
    assert_eq!(
        trace.steps[1].other["tokens_per_second_global_smoothed"],
        32000.0
    );
    assert_eq!(trace.steps[1].other["mfu_percent"], 47.4);
    assert!(!trace.steps[2].other.contains_key("mfu_percent"));
    let settings = &trace.effective.0;
    for (name, value) in [
        ("global_batch_size", 16),
        ("micro_batch_size", 4),
        ("seq_length", 512),
        ("num_gpus", 2),
        ("gradient_accumulation_steps", 2),
        ("warmup_steps", 7),
        ("num_layers", 12),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    assert_eq!(settings["learning_rate"], 3e-4);
    assert_eq!(trace.num_parameters, Some(124_475_904));
    let validation: Vec<_> = trace
        .evaluations
        .iter()
        .map(|e| (e.step, e.value))
        .collect();
    assert_eq!(validation, [(None, 11.0005), (Some(2), 10.4)]);
    assert_eq!(testing::kinds(&trace), ["nan_loss", "nan_grad_norm"]);
    assert!(trace.finished);
    assert_eq!(trace.totals["average_iteration_time_seconds"], 0.25075);
}

#[test]
fn main_log_counts_from_0_and_has_no_times() {
    let trace = parse_any(MAIN_LOG.as_bytes());
    assert_eq!(trace.format, "llm.c");
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.loss, s.grad_norm))
        .collect();
    assert_eq!(
        steps,
        [(0, Some(11.008), Some(15.25)), (1, Some(10.5), Some(14.5))],
        "the cut-off line is left out"
    );
    assert!(trace.steps.iter().all(|s| s.step_time_seconds.is_none()));
    let evaluations: Vec<_> = trace
        .evaluations
        .iter()
        .map(|e| (e.step, &*e.name, e.value))
        .collect();
    assert_eq!(
        evaluations,
        [
            (Some(0), "validation_loss", 11.009),
            (Some(2), "eval_accuracy", 0.25)
        ]
    );
    assert_eq!(testing::kinds(&trace), ["truncated"]);
}

#[test]
fn a_line_is_lost_only_where_its_loss_is() {
    let read = |entry: &str| {
        let log = format!("s:0 tel:11.0090\ns:0 trl:11.0080 lr:0.000001 norm:15.25\n{entry}\n");
        let trace = parse_any(log.as_bytes());
        (
            testing::kinds(&trace).join(" "),
            trace.unreadable.is_some(),
            trace.steps.len(),
        )
    };
    assert_eq!(
        read("s:1 trl:10.5 lr:? norm:14.5"),
        ("unreadable_field".into(), false, 2)
    );
    assert_eq!(
        read("s:1 trl:? lr:0.000002 norm:14.5"),
        ("unreadable_line".into(), true, 1)
    );
}

#[test]
fn steps_of_other_trainers_are_not_taken() {
    for line in [
        "step 10/100 loss 3.1",
        "step 6 | epoch 0 | loss 1.2",
        "s:0 note",
        "Step 1/9, Loss: 2",
    ] {
        assert_eq!(parse_any(line.as_bytes()).format, "unknown", "{line}");
        assert!(
            parse(&LogSection::named("llm.c"), line.as_bytes())
                .steps
                .is_empty()
        );
    }
}

testing::damaged!("llm.c", format!("{STDOUT}{MAIN_LOG}"));

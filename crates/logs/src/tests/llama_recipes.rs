use crate::{LogSection, parse_any, testing};

const LOG: &str = "trainable params: 2,097,152 || all params: 1,237,911,552 || trainable%: 0.16941\n\
    Training Epoch: 1/2:   0%|          | 0/3 [00:00<?, ?it/s]\r\
    Training Epoch: 1/2, step 0/3 completed (loss: 2.5):   0%|          | 0/3 [00:02<?, ?it/s]\r\
    Training Epoch: 1/2, step 0/3 completed (loss: 2.5):  33%|###       | 1/3 [00:02<00:04,  2.00s/it]\r\
    Training Epoch: 1/2, step 1/3 completed (loss: 2.25):  66%|######    | 2/3 [00:03<00:01,  1.50s/it]\r\
    Training Epoch: 1/2, step 2/3 completed (loss: nan): 100%|##########| 3/3 [00:04<00:00,  2.50it/s]\n\
    12:00 | INFO | Max CUDA memory allocated was 20 GB\n\
    12:00 | INFO | Epoch 1: train_perplexity=9.5, train_epoch_loss=2.25, epoch time 4.25s\n\
    Training Epoch: 2/2, step 2/3 completed (loss: 1.5): 100%|##########| 3/3 [00:04<00:00,  1.40s/it]\n\
    MMLU5-shots Acc: 0.25\navg_iter_time(s): 1.4375\nTokens/p/s:  2048.5\nMFU:  0.375\n\
    Key: avg_train_loss, Value: 1.75\nKey: avg_epoch_time, Value: 4.5\n";

#[test]
fn steps_go_on_over_epochs_and_averages_are_totals() {
    let trace = parse_any(LOG.as_bytes());
    assert_eq!(trace.format, "llama-recipes");
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.loss, s.step_time_seconds))
        .collect();
    assert_eq!(
        steps,
        [
            (0, Some(2.5), None),
            (1, Some(2.25), None),
            (2, None, None),
            (5, Some(1.5), None)
        ]
    );
    assert_eq!(trace.steps[1].other["seconds_per_step_smoothed"], 1.5);
    assert_eq!(trace.steps[2].other["seconds_per_step_smoothed"], 0.4);
    assert_eq!(trace.num_parameters, Some(1_237_911_552));
    for (name, value) in [
        ("trainable_parameters", 2_097_152.0),
        ("epoch_1_time_seconds", 4.25),
        ("average_step_time_seconds", 1.4375),
        ("tokens_per_second_per_gpu", 2048.5),
        ("mfu_ratio", 0.375),
        ("avg_train_loss", 1.75),
        ("avg_epoch_time_seconds", 4.5),
    ] {
        assert_eq!(trace.totals[name], value, "{name}");
    }
    let memory = &trace.memory[0];
    assert_eq!(
        (memory.after_step, memory.figures[0].bytes),
        (Some(2), 20 << 30)
    );
    let evaluations: Vec<_> = trace
        .evaluations
        .iter()
        .map(|e| (e.step, &*e.name, e.value))
        .collect();
    assert_eq!(
        evaluations,
        [
            (Some(2), "train_perplexity", 9.5),
            (Some(2), "train_epoch_loss", 2.25),
            (Some(5), "MMLU5-shots_accuracy", 0.25),
        ]
    );
    assert_eq!(testing::kinds(&trace), ["nan_loss", "missing_steps"]);
    assert!(trace.finished);
}

#[test]
fn older_versions_call_the_first_epoch_0() {
    let log = "Training Epoch: 0/2, step 1/3 completed (loss: 2.5)\nTraining Epoch: 1/2, step 0/3 completed (loss: 2.0)\n";
    assert_eq!(
        parse_any(log.as_bytes())
            .steps
            .iter()
            .map(|s| s.step)
            .collect::<Vec<_>>(),
        [1, 3]
    );
}

testing::damaged!("llama-recipes", LOG);

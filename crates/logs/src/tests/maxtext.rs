use crate::{LogSection, parse, parse_any, testing};

const LOG: &str = "Config param max_target_length: 4096\nConfig param dtype: bfloat16\nConfig param adam_b1: 0.9\n\
    number parameters: 1.235 billion\nMemstats: After params initialized:\n\
    \tUsing (GB) 10.5 / 95.75 (10.97%) on TPU_0(process=0,(0,0,0,0))\n\
    completed step: 0, seconds: 30.500, TFLOP/s/device: 20.000, Tokens/s/device: 537.100, total_weights: 65536, loss: 12.000\n\
    completed step: 1, seconds: 0.250, TFLOP/s/device: 2440.000, Tokens/s/device: 65536.000, total_weights: 65536, loss: 12.000\n\
    completed step: 2, seconds: 4.000, TFLOP/s/device: 152.500, Tokens/s/device: 4096.000, total_weights: 65536, loss: 11.500\n\
    completed step: 3, seconds: 4.100, TFLOP/s/device: 148.800, Tokens/s/device: 3996.100, total_weights: 65536, loss: nan\n\
    eval metrics after step: 3, loss=11.250, total_weights=65536\n\
    completed step: 4, seconds: 4.050, TFLOP/s/device: 150.600, loss: 11.125\n";

#[test]
fn a_step_that_was_timed_too_early_has_no_time() {
    let trace = parse_any(LOG.as_bytes());
    assert_eq!(trace.format, "maxtext");
    let steps: Vec<_> = trace
        .steps
        .iter()
        .map(|s| (s.step, s.step_time_seconds, s.tflops_per_gpu, s.loss))
        .collect();
    assert_eq!(
        steps,
        [
            (0, Some(30.5), Some(20.0), Some(12.0)),
            (1, None, None, Some(12.0)),
            (2, Some(4.0), Some(152.5), Some(11.5)),
            (3, Some(4.1), Some(148.8), None),
            (4, Some(4.05), Some(150.6), Some(11.125)),
        ]
    );
    assert_eq!(
        testing::kinds(&trace),
        ["nan_loss", "implausible_step_time"]
    );
    assert!(
        trace.anomalies[1]
            .detail
            .contains("step 1: 0.25 s and 2440 TFLOP/s")
    );
    assert_eq!(trace.steps[2].tokens_per_second_per_gpu, Some(4096.0));
    assert_eq!(trace.steps[2].other["total_weights"], 65536.0);
    assert_eq!(
        (trace.evaluations[0].step, trace.evaluations[0].value),
        (Some(3), 11.25)
    );
    assert_eq!(trace.effective.0["seq_length"], 4096);
    assert_eq!(trace.effective.0["precision"], "bfloat16");
    assert_eq!(trace.num_parameters, None);
    assert_eq!(
        (trace.memory[0].rank, trace.memory[0].figures[0].bytes),
        (Some(0), 10_752 << 20)
    );
}

/// Two passes of half a sequence on each of eight devices.
#[test]
fn batches_of_devices_make_the_batch_of_all() {
    let of = |more: &str| {
        let log = format!(
            "Config param per_device_batch_size: 0.5\nConfig param gradient_accumulation_steps: 2\n{more}completed step: 0, seconds: \
             2.0, TFLOP/s/device: 152.5, Tokens/s/device: 2048.0, total_weights: 32768, loss: 11.5\n"
        );
        let settings = parse_any(log.as_bytes()).effective.0;
        ["num_gpus", "global_batch_size"]
            .map(|name| settings.get(name).and_then(serde_json::Value::as_u64))
    };
    let devices = "Num_devices: 8, shape (1, 1, 1, 8, 1, 1, 1, 1)\n";
    let batch = "Config param global_batch_size_to_load: 16\nConfig param global_batch_size_to_train_on: 8\n";
    for more in [
        devices.to_owned(),
        batch.to_owned(),
        batch.to_owned() + devices,
    ] {
        assert_eq!(of(&more), [Some(8), Some(8)], "{more}");
    }
    assert_eq!(of(""), [None, None]);
}

#[test]
fn maxdiffusion_says_the_same_step_twice() {
    let log = "completed step: 7, seconds: 9.500, TFLOP/s/device: 300.500, loss: 1.5\n\
        completed step: 7, seconds: 9.510, TFLOP/s/device: 300.200, Tokens/s/device: 6000.5, Samples/s/device: 0.085, Frames/s/device: 7.25, loss: 1.5\n";
    let trace = parse_any(log.as_bytes());
    assert_eq!(
        (trace.steps.len(), trace.step_lines, testing::kinds(&trace)),
        (1, 2, vec!["missing_steps"])
    );
    let step = &trace.steps[0];
    assert_eq!(
        (step.step_time_seconds, step.tokens_per_second_per_gpu),
        (Some(9.5), Some(6000.5))
    );
    assert_eq!(step.other["samples_per_second_per_device"], 0.085);
}

#[test]
fn a_cut_off_field_is_left_out() {
    let log = b"completed step: 7, seconds: 9.500, TFLOP/s/device: 300.500, lm_loss: 1.5, loss: 1";
    let trace = parse(&LogSection::named("maxtext"), log);
    assert_eq!(
        (trace.steps[0].step_time_seconds, trace.steps[0].loss),
        (Some(9.5), None)
    );
}

testing::damaged!("maxtext", LOG);

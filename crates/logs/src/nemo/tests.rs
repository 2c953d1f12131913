use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{LogSection, Trace, parse_any};

fn parse(log: &str) -> Trace {
    super::super::parse(&LogSection::named("nemo"), log.as_bytes())
}

/// Two starts of one run: steps 2 and 3 were done again.
const LOG: &str = concat!(
    "ining/0 [default0]:[NeMo I 2025-03-07 22:37:13 x:1] Copying Trainer's 'max_steps' (6) to LR scheduler's 'max_steps'.\n",
    "ining/0 [default0]:Training epoch 0, iteration 0/5 | lr: 1.5e-07 | global_batch_size: 32 | global_step: 0 | ",
    "max_memory_reserved: 3000 | max_memory_allocated: 2000 | reduced_train_loss: 11.03 | train_step_timing in s: 9.5 | TFLOPS_per_GPU: 1.25e+03\n",
    "ining/0 [default0]:Training epoch 0, iteration 1/5 | lr: 3e-07 | global_batch_size: 32 | global_step: 1 | ",
    "peak_memory_usage: 4000 | memory_allocated: 1000 | reduced_train_loss: nan | train_step_timing in s: 0.5 | consumed_samples: 64\n",
    "(pretraining, pid=7) Training epoch 0, iteration 2/5 | global_step: 2 | reduced_train_loss: 10 | train_step_timing in s: 0.5 | val_loss: 3.5\n",
    "(pretraining, pid=7) Training epoch 0, iteration 3/5 | global_step: 3 | reduced_train_loss: 9 | train_step_timing in s: 0.5 | val_loss: 3.5\n",
    "[default2]:[rank2]: Exception: broken\n",
    "[default0]:Training epoch 0, iteration 2/5 | consumed_samples: 96 | global_step: 2 | reduced_train_loss: 10 | train_step_timing in s: 2.5\n",
    "Training epoch 0, iteration 3/5 | consumed_samples: 128 | global_step: 3 | reduced_train_loss: 9 | train_step_timing in s: 0.5 | val_loss: 3.25",
    "Training epoch 0, iteration 4/5 | consumed_samples: 1.6e+02 | global_step: 4 | moe_loss: 0.5 | reduced_train_loss: 8 | train_step_timing in s: 0.5 | val_loss: 3.25\n",
);

#[test]
fn progress_lines_with_a_restart() {
    let trace = parse_any(LOG.as_bytes());
    assert_eq!((trace.format.as_str(), trace.step_lines), ("nemo", 7));
    assert_eq!(
        trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4]
    );
    let [first, second, third, fourth, last] = &trace.steps[..] else {
        panic!()
    };
    assert_eq!(
        (first.loss, first.step_time_seconds, first.tflops_per_gpu),
        (Some(11.03), Some(9.5), Some(1250.0))
    );
    assert_eq!(
        (first.memory_bytes, first.memory_kind.as_deref()),
        (Some(2000), Some("peak_allocated"))
    );
    assert_eq!(
        (
            first.memory_figures[0].bytes,
            first.memory_figures[0].kind.as_ref()
        ),
        (3000, "peak_reserved")
    );
    assert_eq!(
        (
            first.consumed_samples,
            second.consumed_samples,
            last.consumed_samples
        ),
        (None, Some(64), None)
    );
    assert_eq!(
        (
            second.loss,
            second.memory_bytes,
            second.memory_kind.as_deref()
        ),
        (None, Some(4000), Some("peak_reserved"))
    );
    assert_eq!(
        (
            third.step_time_seconds,
            third.consumed_samples,
            fourth.global_batch_size
        ),
        (Some(2.5), Some(96), None)
    );
    assert_eq!(last.other["moe_loss"], 0.5);
    let evaluations: Vec<_> = trace
        .evaluations
        .iter()
        .map(|e| (e.step, e.value))
        .collect();
    assert_eq!(evaluations, [(Some(2), 3.5), (Some(3), 3.25)]);
    let kinds: Vec<_> = trace.anomalies.iter().map(|a| a.kind.as_str()).collect();
    assert_eq!(kinds, ["nan_loss", "restart"]);
    assert_eq!(
        (
            &trace.effective.0["train_iters"],
            &trace.effective.0["global_batch_size"]
        ),
        (&6.into(), &32.into())
    );
}

#[test]
fn iterations_begin_again_with_each_epoch() {
    let trace = parse(
        "Training epoch 1, iteration 9/9 | reduced_train_loss: 2\nTraining epoch 2, iteration 0/9 | reduced_train_loss: 1\n",
    );
    assert_eq!(
        trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
        [19, 20]
    );
    assert!(!trace.effective.0.contains_key("train_iters"));
    let one = parse("Training epoch 0, iteration 3/9 | reduced_train_loss: 2\n");
    assert_eq!(one.effective.0["train_iters"], 10);
    let every_tenth: String = (1..4)
        .map(|n| {
            format!(
                "Training epoch 0, iteration {}/99 | reduced_train_loss: 2\n",
                n * 10 - 1
            )
        })
        .collect();
    assert_eq!(parse(&every_tenth).steps[1].steps_averaged, Some(10));
}

#[test]
fn a_wrapped_line_is_one_line() {
    let whole = "[default0]:Training epoch 0, iteration 5/99 | lr: 3e-07 | global_batch_size: 32 | global_step: 5 | \
                     reduced_train_loss: 10.5 | train_step_timing in s: 2.5 | consumed_samples: 192\n";
    let expected = parse(whole).steps;
    assert_eq!(
        (expected[0].step, expected[0].step_time_seconds),
        (5, Some(2.5))
    );
    let places: Vec<usize> = whole
        .match_indices(' ')
        .map(|(at, _)| at)
        .filter(|at| *at > "[default0]:Training epoch ".len())
        .collect();
    for at in places.into_iter().map(|at| &whole[at..]) {
        let (before, after) = whole.split_once(at).unwrap();
        for indent in ["", "    "] {
            let trace =
                parse_any(format!("{before}\n{indent}{}{after}", at.trim_start()).as_bytes());
            assert_eq!(
                (trace.format.as_str(), &trace.steps),
                ("nemo", &expected),
                "{at}"
            );
            assert_eq!(
                (trace.step_lines, &trace.anomalies),
                (1, &parse(whole).anomalies),
                "{at}"
            );
        }
    }
    // A progress line that is whole is taken at once: the time at which it was seen is its
    // step's end.
    let table = format!("{whole}| Name | Type |\n| other: table\n");
    assert_eq!(parse(&table).steps, expected);
    let narrow = whole.replace(" | ", "\n| ");
    assert_eq!(
        (&parse(&narrow).steps, parse(&narrow).step_lines),
        (&expected, 1)
    );
    let late = whole
        .replace(" | global_step: 5", "")
        .replace(" | consumed", "\n| global_step: 7 | consumed");
    assert_eq!(
        parse(&late)
            .steps
            .iter()
            .map(|step| step.step)
            .collect::<Vec<_>>(),
        [7]
    );
    // Over three lines; and what follows a line that breaks off for good is read for itself.
    let thrice = whole.replace(" 5/99", "\n5/99").replace(" in s", "\nin s");
    assert_eq!(parse(&thrice).steps, expected);
    let killed = format!("Training epoch 0, iteration\n{whole}");
    assert_eq!(parse(&killed).steps, expected);
    let (cut, _) = whole.split_once(" 192").unwrap();
    for after in ["", "[NeMo I 2025-03-07 22:37:13 x:1] saved\n"] {
        let steps = parse(&format!("{cut}\n{after}")).steps;
        assert_eq!(
            (steps[0].step, steps[0].step_time_seconds),
            (5, Some(2.5)),
            "{after}"
        );
    }
}

#[test]
fn a_callbacks_lines() {
    let trace = parse_any(b"[NVD] Step  10 | Time: 3.25s | Avg: 3.5s | Memory: 36.2GB | Loss: 2.25\n[NVD] Step  20 | Time: 3.0s | Avg: 3.25s | Memory: 36.2GB | Loss: N/A\n");
    let [first, second] = &trace.steps[..] else {
        panic!()
    };
    assert_eq!(
        (first.step, first.step_time_seconds, first.loss),
        (10, Some(3.25), Some(2.25))
    );
    assert_eq!(
        first.running_average.as_ref().unwrap().step_time_seconds,
        Some(3.5)
    );
    assert_eq!(
        (first.memory_bytes, first.memory_kind.as_deref()),
        (Some(36_200_000_000), Some("allocated"))
    );
    assert_eq!(
        (first.memory_source.as_deref(), first.steps_averaged),
        (Some("the script's own GB, read as decimal"), Some(1))
    );
    assert_eq!((second.loss, trace.format.as_str()), (None, "nemo"));
}

#[test]
fn a_figure_without_a_name_belongs_to_no_line() {
    for noise in ["|:0", "| : 7 | loss: 1"] {
        let noisy: String = LOG
            .lines()
            .map(|line| format!("{line}\n{noise}\n"))
            .collect();
        assert_eq!(parse(&noisy).steps, parse(LOG).steps, "{noise}");
    }
}

super::super::testing::damaged!("nemo", LOG);

proptest! {
    /// Without bars: `|a: 0` is a figure of the line above it.
    #[test]
    fn noise_between_the_lines_changes_nothing(noise in proptest::collection::vec("[ -{}~é]{0,60}", 8)) {
        let mut noisy = String::new();
        for (line, noise) in LOG.lines().zip(noise.iter().cycle()) {
            noisy.push_str(&format!("{noise}\n[1,0]<stdout>:{line}\r\n"));
        }
        prop_assert_eq!(parse(&noisy).steps, parse(LOG).steps);
    }
}

fn settings_of(log: &str) -> (Value, Trace) {
    let trace = parse(log);
    (serde_json::to_value(&trace.effective).unwrap(), trace)
}

#[test]
fn megatrons_set_up_lines() {
    let (stated, trace) = settings_of(concat!(
        "[default0]:[NeMo I 2025-01-01 00:00:00 x:1] Rank 0 has data parallel group : [0, 2]\n",
        "[default0]:[NeMo I 2025-01-01 00:00:00 x:1] Rank 0 has tensor model parallel group: [0, 1]\n",
        "[default0]:[NeMo I 2025-01-01 00:00:00 x:1] Rank 0 has combined group of data parallel and context parallel : [0, 2]\n",
        "[default0]:[NeMo I 2025-01-01 00:00:00 x:1] Rank 0 has pipeline model parallel group: [0]\n",
        "[default0]:All distributed processes registered. Starting with 4 processes\n",
        "[default0]:[NeMo I 2025-01-01 00:00:00 x:1] setting number of microbatches to constant 16\n",
        "[NeMo I]  > number of parameters on (tensor, pipeline) model parallel rank (0 ,0): 1000\n",
        "[NeMo I]  > number of parameters on (tensor, pipeline) model parallel rank (1, 0): 900\n",
        "[NeMo I] Setting up optimizer with config OptimizerConfig(optimizer='adam', lr=0.0003, min_lr=None, weight_decay=0.1, ",
        "fp16=False, bf16=True, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-05, clip_grad=1.0)\n",
        "INFO:pytorch_lightning.utilities.rank_zero:`Trainer.fit` stopped: `max_steps=100` reached.\n",
        "TFLOPs per sec per GPU=-1.00\n",
    ));
    assert_eq!(
        stated,
        json!({
            "data_parallel_size": 2, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "num_gpus": 4,
            "gradient_accumulation_steps": 16, "optimizer": "adamw", "learning_rate": 0.0003, "weight_decay": 0.1,
            "precision": "bf16", "beta1": 0.9, "beta2": 0.95, "eps": 1e-5, "clip_grad": 1, "train_iters": 100,
        })
    );
    assert_eq!(
        (
            trace.num_parameters_per_rank,
            trace.num_parameters,
            trace.finished
        ),
        (Some(1000), None, true)
    );
    assert!(trace.totals.is_empty());
}

#[test]
fn dlloggers_parameters() {
    let (stated, trace) = settings_of(concat!(
        "DLL 2025-06-12 22:11:00.5 - PARAMETER cfg/micro_batch_size : 1  cfg/global_batch_size : 512  cfg/rampup_batch_size : None  ",
        "cfg/encoder_seq_length : 4096  cfg/num_query_groups : 8  cfg/kv_channels : None  cfg/nsys_profile/ranks : [0, 1]  ",
        "cfg/optim/name : distributed_fused_adam  cfg/optim/betas : [0.9, 0.95]  cfg/data/data_impl : mock  cfg/precision : bf16-mixed \n",
        "TFLOPs per sec per GPU=1116.5\n",
    ));
    assert_eq!(
        stated,
        json!({
            "micro_batch_size": 1, "global_batch_size": 512, "seq_length": 4096, "num_kv_heads": 8, "optimizer": "adamw",
            "beta1": 0.9, "beta2": 0.95, "data": "random", "precision": "bf16",
        })
    );
    assert_eq!(trace.totals["tflops_per_gpu"], 1116.5);
}

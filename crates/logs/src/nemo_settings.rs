//! What NeMo 1 and 2 say of their settings: DLLogger's parameters, Megatron's set-up lines,
//! Lightning's end.

use super::{
    builder::Builder,
    numbers::{after, as_count, grouped_number},
    values::{count_after, grouped_after, has, once, once_number, word_after},
};

#[derive(Default)]
pub struct Settings {
    /// Steps over which the step timing is a moving mean.
    pub timing_window: Option<usize>,
    /// Lines in which the window may still follow.
    timing_lines: u32,
}

impl Settings {
    pub fn line(&mut self, text: &str, out: &mut Builder) {
        self.timing(text);
        if let Some(parameters) = after(text, " - PARAMETER ").filter(|_| has(text, "DLL ")) {
            dll_parameters(parameters, out);
        } else if let Some(config) = after(text, "with config OptimizerConfig(") {
            optimizer(config, out);
        } else if let Some(group) = after(text, "Rank 0 has ") {
            parallel_group(group, out);
        } else if let Some(count) = after(
            text,
            "number of parameters on (tensor, pipeline) model parallel rank",
        ) {
            let count = after(count, "): ")
                .and_then(grouped_number)
                .and_then(|(n, _)| as_count(n));
            out.trace.num_parameters_per_rank = out.trace.num_parameters_per_rank.max(count);
        } else if let Some(n) = count_after(text, "setting number of microbatches to constant ") {
            once("gradient_accumulation_steps", n, out);
        } else if let Some(n) =
            count_after(text, "All distributed processes registered. Starting with ")
        {
            once("num_gpus", n, out);
        } else if let Some(n) = count_after(text, "Copying Trainer's 'max_steps' (") {
            once("train_iters", n, out);
        } else if has(text, "`Trainer.fit` stopped:") {
            out.trace.finished = true;
            if let Some(n) = count_after(text, "`max_steps=") {
                once("train_iters", n, out);
            }
        } else if let Some(figure) = grouped_after(text, "TFLOPs per sec per GPU=") {
            // -1: the model's FLOPs are not known to NeMo.
            if figure > 0.0 {
                out.total("tflops_per_gpu", figure);
            }
        }
    }

    /// `step_timing_kwargs:` and soon `buffer_size: 5`, or both in one line.
    fn timing(&mut self, text: &str) {
        let at = after(text, "step_timing_kwargs");
        if at.is_some() {
            self.timing_lines = 6;
        }
        if self.timing_lines > 0 {
            self.timing_lines -= 1;
            let size = ["buffer_size: ", "buffer_size': "]
                .iter()
                .find_map(|key| count_after(at.unwrap_or(text), key));
            if let Some(size) = size
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| *n < 1 << 16)
            {
                // A later line prints the defaults as well.
                self.timing_window = self.timing_window.max(Some(size));
                self.timing_lines = 0;
            }
        }
    }
}

/// `cfg/micro_batch_size : 1  cfg/precision : bf16  …`
fn dll_parameters(text: &str, out: &mut Builder) {
    for pair in text.split("cfg/").take(2048) {
        let Some((key, value)) = pair.split_once(" : ") else {
            continue;
        };
        let value = value.trim();
        let name = match key {
            "global_batch_size"
            | "micro_batch_size"
            | "num_layers"
            | "hidden_size"
            | "ffn_hidden_size"
            | "seed"
            | "num_attention_heads"
            | "tensor_model_parallel_size"
            | "pipeline_model_parallel_size"
            | "context_parallel_size" => key,
            "num_query_groups" => "num_kv_heads",
            "kv_channels" => "head_dim",
            "encoder_seq_length" => "seq_length",
            "override_vocab_size" => "vocab_size",
            "init_method_std" => "init_std",
            "layernorm_epsilon" => "norm_eps",
            "optim/lr" => "learning_rate",
            "optim/weight_decay" => "weight_decay",
            "optim/sched/warmup_steps" => "warmup_steps",
            "optim/sched/min_lr" => "min_learning_rate",
            "optim/betas" => {
                betas(value, out);
                continue;
            }
            "optim/name" => {
                out.set(
                    "optimizer",
                    if value.contains("adam") {
                        "adamw"
                    } else {
                        value
                    },
                );
                continue;
            }
            "data/data_impl" if value == "mock" => {
                out.set("data", "random");
                continue;
            }
            "precision" => {
                precision(value.trim_matches('\''), out);
                continue;
            }
            _ => continue,
        };
        set_number(name, value, out);
    }
}

/// `optimizer='adam', lr=0.0003, min_lr=None, weight_decay=0.1, bf16=True, adam_beta1=0.9, …`
fn optimizer(config: &str, out: &mut Builder) {
    if let Some(name) = word_after(config, "optimizer=") {
        // Megatron's Adam decouples its weight decay.
        once(
            "optimizer",
            if name == "adam" { "adamw" } else { name },
            out,
        );
    }
    for (flag, name) in [(" bf16=True", "bf16"), (" fp16=True", "fp16")] {
        if has(config, flag) {
            once("precision", name, out);
        }
    }
    for (key, name) in [
        (" lr=", "learning_rate"),
        (" min_lr=", "min_learning_rate"),
        (" weight_decay=", "weight_decay"),
        (" adam_beta1=", "beta1"),
        (" adam_beta2=", "beta2"),
        (" adam_eps=", "eps"),
        (" clip_grad=", "clip_grad"),
    ] {
        once_number(name, grouped_after(config, key), out);
    }
}

/// `tensor model parallel group: [0, 1]`: as many ranks as the dimension is large.
fn parallel_group(group: &str, out: &mut Builder) {
    let Some((what, ranks)) = group.split_once(": [") else {
        return;
    };
    let name = match what.trim() {
        "data parallel group" => "data_parallel_size",
        "tensor model parallel group" => "tensor_model_parallel_size",
        "pipeline model parallel group" => "pipeline_model_parallel_size",
        "context parallel group" => "context_parallel_size",
        _ => return,
    };
    let count = ranks
        .split(']')
        .next()
        .unwrap_or_default()
        .split(',')
        .filter(|r| !r.trim().is_empty())
        .count();
    if count > 0 {
        once(name, count, out);
    }
}

fn betas(list: &str, out: &mut Builder) {
    let mut values = list
        .trim_matches(['[', ']', '(', ')'])
        .split(',')
        .map(str::trim);
    for name in ["beta1", "beta2"] {
        if let Some(value) = values.next() {
            set_number(name, value, out);
        }
    }
}

fn precision(value: &str, out: &mut Builder) {
    let plain = match value.trim_end_matches("-mixed") {
        "bf16" => "bf16",
        "16" | "fp16" => "fp16",
        "32" | "fp32" | "32-true" => "fp32",
        _ => return,
    };
    once("precision", plain, out);
}

fn set_number(name: &str, text: &str, out: &mut Builder) {
    once_number(
        name,
        grouped_number(text)
            .filter(|(_, tail)| tail.is_empty())
            .map(|(n, _)| n),
        out,
    );
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{LogSection, Trace, parse};

    fn read(log: &str) -> (Value, Trace) {
        let trace = parse(&LogSection::named("nemo"), log.as_bytes());
        (serde_json::to_value(&trace.effective).unwrap(), trace)
    }

    #[test]
    fn megatrons_set_up_lines() {
        let (stated, trace) = read(concat!(
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
        let (stated, trace) = read(concat!(
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
}

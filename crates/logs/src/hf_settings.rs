//! What Hugging Face's Trainer says of its settings: its banner, a dump of `TrainingArguments`, the
//! model's configuration.

use serde_json::{Map, Value};

use super::{
    builder::Builder,
    numbers::{after, as_count, grouped_number},
    values::{Block, count_after, grouped_after, has, once, once_number},
};

#[derive(Default)]
pub struct Settings {
    pub total_steps: Option<u64>,
    /// A line is logged every so many steps, and perhaps after the first one.
    pub logging_steps: Option<u64>,
    pub logging_first_step: bool,
    examples: Option<u64>,
    /// Lines of a model's configuration.
    model: Option<Block>,
    model_seen: bool,
    /// Within the parentheses of `TrainingArguments(`.
    arguments: u32,
}

impl Settings {
    pub fn line(&mut self, text: &str, out: &mut Builder) {
        if let Some(block) = &mut self.model {
            match block.add(text) {
                Ok(None) => {}
                Ok(Some(whole)) => {
                    serde_json::from_str(&whole)
                        .ok()
                        .iter()
                        .for_each(|config| model(config, out));
                    self.model = None;
                }
                Err(()) => self.model = None,
            }
            return;
        }
        if has(text, " = ") {
            self.banner(text, out);
        }
        if has(text, "Model config ") && text.trim_end().ends_with('{') && !self.model_seen {
            self.model_seen = true;
            let mut block = Block::default();
            if block.add("{") == Ok(None) {
                self.model = Some(block);
            }
        }
        if let Some(all) =
            count_after(text, "all params: ").filter(|_| has(text, "trainable params: "))
        {
            out.trace.num_parameters.get_or_insert(all);
            count_after(text, "trainable params: ")
                .into_iter()
                .for_each(|n| out.total("trainable_parameters", n as f64));
        }
        if let Some(arguments) = after(text, "TrainingArguments(") {
            // One line each, or all of them on this one.
            self.arguments = if arguments.contains("=") { 1 } else { 400 };
            self.arguments(arguments, out);
        } else if self.arguments > 0 {
            self.arguments -= 1;
            self.arguments(text, out);
        } else if has(text, "logging_steps") {
            let stated = [
                "logging_steps: ",
                "logging_steps\": ",
                "logging_steps=",
                "logging_steps ",
            ];
            self.logging_steps = self.logging_steps.or(stated
                .iter()
                .find_map(|key| count_after(text, key))
                .filter(|n| *n > 0));
        }
    }

    fn banner(&mut self, text: &str, out: &mut Builder) {
        for (key, name) in [
            ("Instantaneous batch size per device = ", "micro_batch_size"),
            (
                "Total train batch size (w. parallel, distributed & accumulation) = ",
                "global_batch_size",
            ),
            (
                "Gradient Accumulation steps = ",
                "gradient_accumulation_steps",
            ),
            ("Total optimization steps = ", "train_iters"),
        ] {
            let Some(n) = count_after(text, key) else {
                continue;
            };
            once(name, n, out);
            if name == "train_iters" {
                self.total_steps.get_or_insert(n);
            }
            return;
        }
        if let Some(n) = count_after(text, "Num examples = ") {
            self.examples.get_or_insert(n);
        } else if let Some(n) = grouped_after(text, "Number of trainable parameters = ") {
            // Sharded, it is a rank's share.
            out.total("trainable_parameters", n);
        }
    }

    fn arguments(&mut self, text: &str, out: &mut Builder) {
        for pair in text.split(',').take(512) {
            let Some((key, value)) = pair.split_once('=') else {
                if pair.trim() == ")" {
                    self.arguments = 0;
                }
                continue;
            };
            let value = value.trim().trim_end_matches(')');
            let count = || {
                grouped_number(value)
                    .filter(|(_, tail)| tail.is_empty())
                    .and_then(|(n, _)| as_count(n))
            };
            let name = match key.trim() {
                "per_device_train_batch_size" => "micro_batch_size",
                "gradient_accumulation_steps" => "gradient_accumulation_steps",
                "learning_rate" => "learning_rate",
                "weight_decay" => "weight_decay",
                "adam_beta1" => "beta1",
                "adam_beta2" => "beta2",
                "adam_epsilon" => "eps",
                "max_grad_norm" => "clip_grad",
                "seed" => "seed",
                "warmup_steps" if count() != Some(0) => "warmup_steps",
                "max_steps" if count().is_some_and(|n| n > 0) => "train_iters",
                key @ ("bf16" | "fp16") if value == "True" => {
                    once("precision", key, out);
                    continue;
                }
                "gradient_checkpointing" | "torch_compile" if matches!(value, "True" | "False") => {
                    let compile = key.trim() == "torch_compile";
                    once(
                        if compile {
                            "compile"
                        } else {
                            "activation_checkpointing"
                        },
                        value == "True",
                        out,
                    );
                    continue;
                }
                "optim" => {
                    if value.to_lowercase().contains("adamw") {
                        once("optimizer", "adamw", out);
                    }
                    continue;
                }
                "logging_steps" => {
                    self.logging_steps = self.logging_steps.or(count().filter(|n| *n > 0));
                    continue;
                }
                "logging_first_step" => {
                    self.logging_first_step |= value == "True";
                    continue;
                }
                _ => continue,
            };
            once_number(
                name,
                grouped_number(value)
                    .filter(|(_, tail)| tail.is_empty())
                    .map(|(n, _)| n),
                out,
            );
        }
    }

    /// The step at which `epoch`, as it is printed, must have been logged; `None` if several can be
    /// meant.
    pub fn step_of_epoch(&self, epoch: &str, out: &Builder) -> Option<u64> {
        let (value, _) = grouped_number(epoch)?;
        let batch = out
            .trace
            .effective
            .0
            .get("global_batch_size")?
            .as_f64()
            .filter(|b| *b > 0.0)?;
        // The Trainer counts whole micro-batches of all ranks, by the micro-batches of a step.
        let accumulation = out
            .trace
            .effective
            .0
            .get("gradient_accumulation_steps")
            .and_then(|v| v.as_f64());
        let accumulation = accumulation.filter(|n| *n >= 1.0).unwrap_or(1.0);
        let steps_per_epoch =
            (self.examples? as f64 / (batch / accumulation)).ceil() / accumulation;
        let decimals = epoch
            .trim()
            .split_once('.')
            .map_or(0, |(_, d)| d.len().min(15));
        let half = 0.5 * 10f64.powi(-i32::try_from(decimals).ok()?) * steps_per_epoch + 0.1;
        let (low, high) = (
            (value * steps_per_epoch - half).ceil(),
            (value * steps_per_epoch + half).floor(),
        );
        as_count(low).filter(|_| (low - high).abs() < 0.5)
    }
}

fn model(config: &Map<String, Value>, out: &mut Builder) {
    for (key, name) in [
        ("model_type", "architecture"),
        ("num_hidden_layers", "num_layers"),
        ("hidden_size", "hidden_size"),
        ("intermediate_size", "ffn_hidden_size"),
        ("num_attention_heads", "num_attention_heads"),
        ("num_key_value_heads", "num_kv_heads"),
        ("head_dim", "head_dim"),
        ("vocab_size", "vocab_size"),
        ("tie_word_embeddings", "tie_embeddings"),
        ("initializer_range", "init_std"),
        ("rope_theta", "rope_theta"),
        ("rms_norm_eps", "norm_eps"),
    ] {
        match config.get(key) {
            Some(Value::Number(n)) => once_number(name, n.as_f64(), out),
            Some(value @ (Value::Bool(_) | Value::String(_))) => once(name, value.clone(), out),
            _ => {}
        }
    }
    // Other kinds have a factor as well, but it is of something else.
    let factor = match config
        .get("rope_scaling")
        .or_else(|| config.get("rope_parameters"))
    {
        Some(Value::Null) => Some(1.0),
        Some(Value::Object(rope)) => match rope
            .get("rope_type")
            .or_else(|| rope.get("type"))
            .and_then(Value::as_str)
        {
            Some("llama3") => rope.get("factor").and_then(Value::as_f64),
            Some("default") => Some(1.0),
            _ => None,
        },
        _ => None,
    };
    once_number("rope_scaling_factor", factor, out);
    if let Some(version) = config.get("transformers_version").and_then(Value::as_str) {
        out.trace
            .versions
            .entry("transformers".to_owned())
            .or_insert_with(|| version.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{LogSection, parse};
    use super::*;

    fn effective(log: &str) -> Value {
        serde_json::to_value(parse(&LogSection::named("hf-trainer"), log.as_bytes()).effective)
            .unwrap()
    }

    #[test]
    fn the_banner_and_the_arguments() {
        let banner = concat!(
            "[INFO|trainer.py:2519] 2025-12-31 13:12:20,429 >> ***** Running training *****\n",
            "[INFO|trainer.py:2520] 2025-12-31 13:12:20,429 >>   Num examples = 2,400\n",
            "[INFO|trainer.py:2522] >>   Instantaneous batch size per device = 2\n",
            "[INFO|trainer.py:2525] >>   Total train batch size (w. parallel, distributed & accumulation) = 64\n",
            "[INFO|trainer.py:2526] >>   Gradient Accumulation steps = 4\n",
            "[INFO|trainer.py:2527] >>   Total optimization steps = 1,000\n",
        );
        let sizes = json!({"micro_batch_size": 2, "global_batch_size": 64, "gradient_accumulation_steps": 4, "train_iters": 1000});
        assert_eq!(effective(banner), sizes);
        let one_line = "INFO: parameters TrainingArguments(output_dir=x, per_device_train_batch_size=2, weight_decay=0.1, bf16=True, \
                        max_steps=-1, warmup_steps=0, gradient_checkpointing=True, optim=adamw_torch, logging_steps=5)\nseed=7,\n";
        let many = "TrainingArguments(\n_n_gpu=1,\nper_device_train_batch_size=2,\nweight_decay=0.1,\nbf16=True,\nfp16=False,\n\
                    gradient_checkpointing=True,\nmax_steps=-1,\noptim=OptimizerNames.ADAMW_TORCH,\n)\nlearning_rate=1,\n";
        let expected = json!({
            "micro_batch_size": 2, "weight_decay": 0.1, "precision": "bf16", "activation_checkpointing": true, "optimizer": "adamw",
        });
        assert_eq!(effective(many), expected);
        assert_eq!(effective(one_line)["weight_decay"], 0.1);
    }

    #[test]
    fn the_factor_of_scaled_positions_is_llama_3s() {
        let stated = |rope: &str| {
            let log =
                format!("Model config LlamaConfig {{\n  \"hidden_size\": 64,\n  {rope}\n}}\n");
            effective(&log).get("rope_scaling_factor").cloned()
        };
        let llama3 =
            "\"rope_scaling\": {\n    \"factor\": 8.0,\n    \"rope_type\": \"llama3\"\n  }";
        assert_eq!(stated(llama3), Some(json!(8)));
        assert_eq!(stated("\"rope_scaling\": null"), Some(json!(1)));
        assert_eq!(
            stated(r#""rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}"#),
            Some(json!(1))
        );
        assert_eq!(
            stated(r#""rope_scaling": {"factor": 4.0, "type": "yarn"}"#),
            None
        );
        assert_eq!(stated("\"rope_theta\": 1e4"), None);
    }

    #[test]
    fn the_models_configuration_and_its_parameters() {
        let log = concat!(
            "INFO - transformers.configuration_utils - Model config MistralConfig {\n  \"architectures\": [\n    \"X\"\n  ],\n",
            "  \"hidden_size\": 4096,\n  \"model_type\": \"mistral\",\n  \"rope_theta\": 1000000.0,\n  \"sliding_window\": null,\n",
            "  \"tie_word_embeddings\": false,\n  \"transformers_version\": \"4.40.2\"\n}\n\n",
            "INFO - trainable params: 3,407,872 || all params: 7,245,139,968 || trainable%: 0.0470\n",
            "INFO -   Number of trainable parameters = 3,407,872\n",
        );
        let stated = json!({"hidden_size": 4096, "architecture": "mistral", "rope_theta": 1_000_000, "tie_embeddings": false});
        assert_eq!(effective(log), stated);
        let trace = parse(&LogSection::named("hf-trainer"), log.as_bytes());
        assert_eq!(
            (
                trace.num_parameters,
                trace.versions["transformers"].as_str()
            ),
            (Some(7_245_139_968), "4.40.2")
        );
        assert_eq!(trace.totals["trainable_parameters"], 3_407_872.0);
    }
}

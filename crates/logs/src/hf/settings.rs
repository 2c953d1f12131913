//! What Hugging Face's Trainer says of its settings: its banner, a dump of `TrainingArguments`, the
//! model's configuration.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::fields::whole_number;
use crate::{
    builder::Builder,
    numbers::{after, as_count, grouped_number},
    pattern::Pattern,
    values::{Block, count_after, grouped_after, has, once, once_number, settings_of},
};

/// `Total batch size (2 x 4 x 1) = 8`
static PRODUCT: Pattern = Pattern::new(r"Total batch size \([0-9 x]+\) = ([0-9,]+)");

/// Lines that a dump of arguments may go over.
const MAX_ARGUMENTS: u32 = 400;

#[derive(Default)]
pub struct Settings {
    pub total_steps: Option<u64>,
    /// The trainer logs a line each time this number of steps has passed.
    pub logging_steps: Option<u64>,
    pub logging_first_step: bool,
    examples: Option<u64>,
    epochs: Option<u64>,
    drops_last: bool,
    /// Lines of a model's configuration.
    model: Option<Block>,
    model_seen: bool,
    /// Lines that may still come within the parentheses of `TrainingArguments(`.
    arguments: u32,
}

impl Settings {
    pub fn line(&mut self, text: &str, out: &mut Builder) {
        if let Some(block) = &mut self.model {
            match block.add(text) {
                Ok(None) => return,
                Ok(Some(whole)) => {
                    if let Ok(config) = serde_json::from_str(&whole) {
                        model(&config, out);
                    }
                }
                Err(()) => {}
            }
            self.model = None;
            return;
        }
        if has(text, " = ") {
            self.banner(text, out);
        }
        if has(text, "Model config ") && text.trim_end().ends_with('{') && !self.model_seen {
            self.model_seen = true;
            let mut block = Block::default();
            let is_open = block.add("{") == Ok(None);
            self.model = Some(block).filter(|_| is_open);
        }
        if let Some(arguments) = after(text, "TrainingArguments(") {
            // One line each, or all of them on this one.
            let is_one_line = arguments.contains('=');
            self.arguments = if is_one_line { 1 } else { MAX_ARGUMENTS };
            self.arguments(arguments, out);
        } else if self.arguments > 0 {
            self.arguments -= 1;
            self.arguments(text, out);
        } else if has(text, "logging_steps") {
            let keys = [
                "logging_steps: ",
                "logging_steps\": ",
                "logging_steps=",
                "logging_steps ",
            ];
            let mut stated = keys.iter().filter_map(|key| count_after(text, key));
            self.logging_steps = self.logging_steps.or(stated.next().filter(|n| *n > 0));
        }
    }

    fn banner(&mut self, text: &str, out: &mut Builder) {
        let stated = |name: &str| grouped_after(text, &format!("{name} = "));
        for (words, name) in settings_of("hf_banner") {
            if let Some(n) = stated(words).and_then(as_count).filter(|n| *n > 0) {
                once(name, n, out);
                if name == "train_iters" {
                    self.total_steps.get_or_insert(n);
                }
            }
        }
        if let Some([size]) = PRODUCT.groups(text)
            && let Ok(size) = size.replace(',', "").parse::<u64>()
        {
            once("global_batch_size", size, out);
        }
        if let Some(n) = stated("Num examples").and_then(as_count) {
            self.examples.get_or_insert(n);
        }
        if let Some(n) = stated("Num Epochs").and_then(as_count) {
            self.epochs.get_or_insert(n);
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
            let (key, value) = (key.trim(), value.trim().trim_end_matches(')'));
            let number = whole_number(value);
            let is_true = value == "True";
            match key {
                "bf16" | "fp16" if is_true => once("precision", key, out),
                "gradient_checkpointing" if is_true || value == "False" => {
                    once("activation_checkpointing", is_true, out);
                }
                "torch_compile" if is_true || value == "False" => once("compile", is_true, out),
                "optim" => optimizer(value, out),
                "logging_steps" => {
                    let stated = number.and_then(as_count).filter(|n| *n > 0);
                    self.logging_steps = self.logging_steps.or(stated);
                }
                "dataloader_drop_last" => self.drops_last |= is_true,
                "logging_first_step" => self.logging_first_step |= is_true,
                // No warm-up by this argument, and no limit.
                "warmup_steps" if number == Some(0.0) => {}
                "max_steps" if number.and_then(as_count).is_none_or(|n| n == 0) => {}
                _ => {
                    let mut known = settings_of("hf_arguments").iter();
                    if let Some((_, name)) = known.find(|(known, _)| known == key) {
                        once_number(name, number, out);
                    }
                }
            }
        }
    }

    /// The step at which `epoch`, as it is printed, must have been logged; `None` if several can be
    /// meant.
    pub fn step_of_epoch(&self, epoch: &str, out: &Builder) -> Option<u64> {
        let [low, high] = self.steps_of_epoch(epoch, out)?;
        as_count(low).filter(|_| (low - high).abs() < 0.5)
    }

    /// The first and the last step at which `epoch`, as it is printed, may have been logged.
    pub fn steps_of_epoch(&self, epoch: &str, out: &Builder) -> Option<[f64; 2]> {
        let (value, _) = grouped_number(epoch)?;
        let batch = count(out, "global_batch_size")?;
        // The Trainer counts whole micro-batches of all ranks, by the micro-batches of a step.
        let accumulation = count(out, "gradient_accumulation_steps").unwrap_or(1.0);
        let steps_per_epoch =
            (self.examples? as f64 / (batch / accumulation)).ceil() / accumulation;
        let decimals = epoch.trim().split_once('.');
        let decimals = decimals.map_or(0, |(_, d)| d.len().min(15));
        let half = 0.5 * 10f64.powi(-i32::try_from(decimals).ok()?) * steps_per_epoch + 0.1;
        let low = (value * steps_per_epoch - half).ceil();
        Some([low, (value * steps_per_epoch + half).floor()])
    }

    /// Sequences of a step on average over the first `steps`, where the last batch of each epoch has fewer than the others.
    /// Several processes fill up their last batches with sequences that were there before; micro-batches may still lack.
    pub fn mean_batch(&self, steps: u64, out: &Builder) -> Option<f64> {
        let batch = count(out, "global_batch_size")?;
        let accumulation = count(out, "gradient_accumulation_steps").unwrap_or(1.0);
        let examples = self.examples.filter(|_| !self.drops_last)? as f64;
        let of_all = batch / accumulation;
        let is_one = count(out, "micro_batch_size") == Some(of_all);
        let rounds = (examples / of_all).ceil();
        let each = (rounds / accumulation).ceil();
        let asked = self.total_steps.zip(self.epochs);
        // What is left over is dropped, or goes into the next epoch, where epochs have fewer steps.
        let is_left = |(total, epochs): (u64, u64)| {
            let fewer = [(examples / of_all).floor(), rounds].map(|of| (of / accumulation).floor());
            let is_of =
                |each_fewer: f64| each_fewer < each && each_fewer * epochs as f64 == total as f64;
            fewer.into_iter().any(is_of)
        };
        if asked.is_some_and(is_left) {
            return None;
        }
        let in_epoch = if is_one { examples } else { rounds * of_all };
        let whole = (steps as f64 / each).floor();
        let rest = (steps as f64 - whole * each) * batch;
        let mean = (whole * in_epoch + rest) / steps as f64;
        (mean > 0.0 && mean < batch).then_some(mean)
    }
}

/// A setting that counts something.
fn count(out: &Builder, name: &str) -> Option<f64> {
    let stated = out.trace.effective.0.get(name)?.as_f64();
    stated.filter(|n| *n >= 1.0)
}

/// `adamw_torch_fused`, `OptimizerNames.ADAMW_BNB`, `paged_adamw_8bit`, `galore_adamw`: what precedes or follows `adamw` is
/// how it is computed, the format of its state, or another optimizer made of it.
fn optimizer(value: &str, out: &mut Builder) {
    let value = value.to_lowercase();
    let name = value.rsplit('.').next().unwrap_or_default();
    let name = name
        .trim_matches(['\'', '"', '>'])
        .split(['\'', ':'])
        .next()
        .unwrap_or_default();
    let bits = ["8bit", "4bit", "bnb"]
        .into_iter()
        .find(|bits| name.contains(bits));
    let is_adamw = ["adamw", "paged_adamw"]
        .iter()
        .any(|first| name.starts_with(first));
    once("optimizer", if is_adamw { "adamw" } else { name }, out);
    if let Some(bits) = bits {
        let format = if bits == "4bit" { "int4" } else { "int8" };
        once("optimizer_state_precision", format, out);
    }
}

fn model(config: &Map<String, Value>, out: &mut Builder) {
    let has_window = config.get("use_sliding_window") != Some(&Value::Bool(false));
    for (key, name) in settings_of("hf_model") {
        match config
            .get(key)
            .filter(|_| has_window || key != "sliding_window")
        {
            Some(Value::Number(n)) => once_number(name, n.as_f64(), out),
            Some(value @ (Value::Bool(_) | Value::String(_))) => once(name, value.clone(), out),
            _ => {}
        }
    }
    let quantization = config.get("quantization_config");
    if let Some(Value::String(method)) = quantization.and_then(|of| of.get("quant_method")) {
        once("quantization", method.clone(), out);
    }
    // All that its layers have are experts, of its one width.
    if config
        .get("model_type")
        .is_some_and(|kind| kind == "mixtral")
    {
        let width = config.get("intermediate_size").and_then(Value::as_f64);
        once_number("moe_intermediate_size", width, out);
    }
    let rope = ["rope_scaling", "rope_parameters"];
    let rope = rope.iter().find_map(|key| config.get(*key));
    let of_rope = |key: &str| rope.and_then(|rope| rope.get(key));
    let kind = of_rope("rope_type").or_else(|| of_rope("type"));
    // Other kinds have a factor as well, but it is of something else.
    let factor = match kind.and_then(Value::as_str) {
        Some("llama3") => of_rope("factor").and_then(Value::as_f64),
        Some("default") => Some(1.0),
        _ => rope.filter(|rope| rope.is_null()).map(|_| 1.0),
    };
    once_number("rope_scaling_factor", factor, out);
    if let Some(version) = config.get("transformers_version").and_then(Value::as_str) {
        let versions = &mut out.trace.versions;
        let known = versions.entry("transformers".to_owned());
        known.or_insert_with(|| version.to_owned());
    }
}

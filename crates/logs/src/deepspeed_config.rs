//! The configuration that DeepSpeed's engine prints, in whatever trainer it runs, and its skipped
//! steps.

use serde_json::{Map, Value};

use super::{
    builder::Builder,
    numbers::{after, as_count, grouped_number},
    values::{Block, grouped_after, has, once, once_number, word_after},
};

#[derive(Default)]
pub struct Config {
    /// A value over several lines, as far as it has come, and its key.
    dump: Option<(String, Block)>,
}

impl Config {
    /// False if the line is none of DeepSpeed's configuration.
    pub fn line(&mut self, text: &str, out: &mut Builder) -> bool {
        if let Some(entry) = after(text, "[config.py:").and_then(|t| after(t, "]")) {
            self.dump = None;
            self.entry(entry.trim(), out);
            return true;
        }
        if self.dump.is_some() {
            self.collect(text, out);
            return true;
        }
        if let Some(version) = word_after(text, "DeepSpeed info: version=") {
            out.trace
                .versions
                .entry("deepspeed".to_owned())
                .or_insert_with(|| version.to_owned());
            return true;
        }
        false
    }

    /// `train_batch_size ............. 64`, `json = {`.
    fn entry(&mut self, entry: &str, out: &mut Builder) {
        let Some((key, value)) = entry.split_once(' ') else {
            return;
        };
        let value = value.trim_start_matches(['.', ' ', '=']).trim();
        if value.ends_with('{') {
            self.dump = Some((key.to_owned(), Block::default()));
            self.collect(value, out);
            return;
        }
        match key {
            "optimizer_params" => object(value)
                .iter()
                .for_each(|params| optimizer(params, out)),
            "scheduler_params" => object(value)
                .iter()
                .for_each(|params| scheduler(params, out)),
            "optimizer_name" if value != "None" => once("optimizer", name_of(value), out),
            "fp16_enabled" if value == "True" => once("precision", "fp16", out),
            "bfloat16_enabled" if value == "True" => once("precision", "bf16", out),
            "zero_optimization_stage" => stage(grouped_number(value).map(|(n, _)| n), out),
            "zero_config" => stage(grouped_after(value, "stage="), out),
            _ => plain(
                key,
                grouped_number(value)
                    .filter(|(_, tail)| tail.is_empty())
                    .map(|(n, _)| n),
                out,
            ),
        }
    }

    fn collect(&mut self, text: &str, out: &mut Builder) {
        let Some((key, block)) = &mut self.dump else {
            return;
        };
        let whole = match block.add(text) {
            Ok(None) => return,
            Ok(Some(whole)) => object(&whole),
            Err(()) => None,
        };
        match (key.as_str(), whole) {
            ("json", Some(value)) => whole_config(&value, out),
            ("zero_config", Some(value)) => zero(&value, out),
            _ => {}
        }
        self.dump = None;
    }
}

/// The loss scale and what became of it, if the line says that rank 0 skips a step.
pub fn overflow(text: &str) -> Option<String> {
    let skipped = has(text, "OVERFLOW! Rank 0 Skipping step")
        || has(text, "[Rank 0] Overflow detected. Skipping step");
    if !skipped {
        return None;
    }
    let scale = word_after(text, "Attempted loss scale:").unwrap_or("?");
    Some(match word_after(text, "reducing to ") {
        Some(lower) => format!("loss scale {scale} → {lower}"),
        None => format!("loss scale {scale}"),
    })
}

fn plain(key: &str, value: Option<f64>, out: &mut Builder) {
    let name = match key {
        "train_batch_size" => "global_batch_size",
        "train_micro_batch_size_per_gpu" => "micro_batch_size",
        "gradient_accumulation_steps" => key,
        "gradient_clipping" => "clip_grad",
        // DeepSpeed's world leaves out the ranks that share a model.
        "world_size" => "data_parallel_size",
        "seq_length" => "seq_length",
        _ => return,
    };
    once_number(name, value, out);
}

fn stage(stage: Option<f64>, out: &mut Builder) {
    match stage.and_then(as_count) {
        Some(0) => once("sharding", "none", out),
        Some(n @ 1..=3) => once("sharding", format!("zero{n}"), out),
        _ => {}
    }
}

fn zero(config: &Map<String, Value>, out: &mut Builder) {
    stage(config.get("stage").and_then(Value::as_f64), out);
    let devices =
        ["offload_optimizer", "offload_param"].map(|key| config.get(key)?.get("device")?.as_str());
    if devices.iter().any(Option::is_some) {
        once(
            "offload",
            devices.iter().flatten().any(|d| *d != "none"),
            out,
        );
    }
}

fn whole_config(config: &Map<String, Value>, out: &mut Builder) {
    for (key, value) in config {
        plain(key, value.as_f64(), out);
    }
    let part = |key: &str| config.get(key).and_then(Value::as_object);
    part("zero_optimization")
        .into_iter()
        .for_each(|z| zero(z, out));
    for (key, name) in [("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")] {
        if part(key).and_then(|p| p.get("enabled")) == Some(&Value::Bool(true)) {
            once("precision", name, out);
        }
    }
    if let Some(part) = part("optimizer") {
        if let Some(name) = part.get("type").and_then(Value::as_str) {
            once("optimizer", name_of(name), out);
        }
        part.get("params")
            .and_then(Value::as_object)
            .into_iter()
            .for_each(|p| optimizer(p, out));
    }
    let params = part("scheduler")
        .and_then(|p| p.get("params"))
        .and_then(Value::as_object);
    params.into_iter().for_each(|p| scheduler(p, out));
}

fn optimizer(params: &Map<String, Value>, out: &mut Builder) {
    for (key, name) in [
        ("lr", "learning_rate"),
        ("eps", "eps"),
        ("weight_decay", "weight_decay"),
    ] {
        once_number(name, params.get(key).and_then(Value::as_f64), out);
    }
    for (at, name) in ["beta1", "beta2"].into_iter().enumerate() {
        once_number(
            name,
            params
                .get("betas")
                .and_then(|b| b.get(at))
                .and_then(Value::as_f64),
            out,
        );
    }
}

fn scheduler(params: &Map<String, Value>, out: &mut Builder) {
    once_number(
        "warmup_steps",
        params.get("warmup_num_steps").and_then(Value::as_f64),
        out,
    );
}

fn name_of(optimizer: &str) -> String {
    let name = optimizer.trim_matches(['\'', '"']).to_lowercase();
    // DeepSpeed's `adam` decouples its weight decay unless it is told not to.
    if name == "adam" {
        "adamw".to_owned()
    } else {
        name
    }
}

/// JSON, or what Python prints of a dictionary.
fn object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).ok().or_else(|| {
        let plain = text
            .replace('\'', "\"")
            .replace("None", "null")
            .replace("True", "true")
            .replace("False", "false");
        serde_json::from_str(&plain.replace('(', "[").replace(')', "]")).ok()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lines::for_each_line;

    fn effective(log: &str) -> Value {
        let (mut config, mut out) = (Config::default(), Builder::default());
        for_each_line(log.as_bytes(), |line| {
            config.line(&line.text, &mut out);
        });
        serde_json::to_value(out.finish().effective).unwrap()
    }

    #[test]
    fn the_older_print_and_the_newer() {
        let older = concat!(
            "[2021-01-01 00:00:00,1] [INFO] [logging.py:60:log_dist] [Rank 0] DeepSpeed info: version=0.3.17+x, git-hash=y\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:748:print] DeepSpeedEngine configuration:\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   activation_checkpointing_config  {\n    \"profile\": false\n}\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   fp16_enabled ................. True\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   gradient_accumulation_steps .. 2\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   gradient_clipping ............ 1.0\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   optimizer_name ............... adamw\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   optimizer_params ............. {'lr': 5e-05, 'betas': [0.9, 0.98], 'eps': 1e-08}\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   train_batch_size ............. 64\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   train_micro_batch_size_per_gpu  4\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   world_size ................... 8\n",
            "[2021-01-01 00:00:00,1] [INFO] [config.py:752:print]   zero_config .................. {\n    \"stage\": 3, \n",
            "    \"reduce_bucket_size\": 5.138022e+07, \n    \"offload_optimizer\": {\n        \"device\": \"cpu\"\n    }\n}\n",
        );
        let newer = concat!(
            "[INFO] [config.py:999:print]   bfloat16_enabled ............. False\n",
            "[INFO] [config.py:999:print]   zero_config .................. stage=3 contiguous_gradients=True\n",
            "[INFO] [config.py:985:print_user_config]   json = {\n",
            "    \"train_batch_size\": 64, \n    \"train_micro_batch_size_per_gpu\": 4, \n    \"gradient_accumulation_steps\": 2, \n",
            "    \"gradient_clipping\": 1.0, \n    \"fp16\": {\n        \"enabled\": true\n    }, \n    \"zero_optimization\": {\n        \"stage\": 3, \n",
            "        \"offload_optimizer\": {\n            \"device\": \"cpu\"\n        }\n    }, \n    \"optimizer\": {\n        \"type\": \"AdamW\", \n",
            "        \"params\": {\n            \"lr\": 5e-05, \"eps\": 1e-08, \"betas\": [0.9, 0.98]\n        }\n    }\n}\n",
            "[INFO] [config.py:999:print]   world_size ................... 8\n",
        );
        let expected = json!({
            "precision": "fp16", "gradient_accumulation_steps": 2, "clip_grad": 1, "optimizer": "adamw", "learning_rate": 5e-5,
            "beta1": 0.9, "beta2": 0.98, "eps": 1e-8, "global_batch_size": 64, "micro_batch_size": 4, "data_parallel_size": 8,
            "sharding": "zero3", "offload": true,
        });
        assert_eq!(
            (effective(older), effective(newer)),
            (expected.clone(), expected)
        );
        assert_eq!(
            effective("[config.py:1:print]   json = {\n never ended\n"),
            json!({})
        );
    }

    #[test]
    fn only_rank_zero_tells_of_a_skipped_step() {
        let line = |rank: u8| {
            format!(
                "[deepspeed] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: 64, reducing to 32"
            )
        };
        assert_eq!(
            (overflow(&line(0)).as_deref(), overflow(&line(1))),
            (Some("loss scale 64 → 32"), None)
        );
        let hysteresis = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, but hysteresis is 2. Reducing hysteresis to 1";
        assert_eq!(overflow(hysteresis).as_deref(), Some("loss scale 64"));
    }
}

//! What torchtitan says of its settings before the first step: header lines, the model's arguments,
//! the dump of its configuration (its own and Primus').

use serde_json::{Map, Value};

use super::{
    DeviceLine, MemoryReport,
    builder::Builder,
    numbers::{after, as_count, grouped_number},
    torchtitan::{model_memory, rank},
    values::{Block, count_after, grouped_after, has},
};

#[derive(Default)]
pub struct Settings {
    /// A dump over several lines, as far as it has come.
    dump: Option<Block>,
    precision: Option<&'static str>,
    quantised: bool,
    warmup_adjusted: bool,
}

impl Settings {
    pub fn line(&mut self, text: &str, out: &mut Builder) {
        if self.dump.is_some() {
            self.collect(text, out);
            return;
        }
        if let Some(argument) = after(text, "] arguments ") {
            let split = argument
                .find(|c: char| c == ' ' || (c == '.' && argument.contains(".. ")))
                .map(|_| argument);
            if let Some((path, value)) = split.and_then(dotted) {
                self.setting(path, &scalar(value), out);
            }
        } else if let Some(config) = ["Running with args: ", "Running with configs: "]
            .iter()
            .find_map(|k| after(text, k))
        {
            self.dump = Some(Block::default());
            self.collect(config, out);
        } else {
            self.header(text, out);
        }
    }

    /// Before the first step: what depended on lines that may have come later.
    pub fn settle(&mut self, out: &mut Builder) {
        let precision = if self.quantised {
            Some("fp8")
        } else {
            self.precision
        };
        if let Some(precision) =
            precision.filter(|_| !out.trace.effective.0.contains_key("precision"))
        {
            out.set("precision", precision);
        }
    }

    fn header(&mut self, text: &str, out: &mut Builder) {
        if has(text, "local batch size ") && has(text, "global batch size ") {
            for (key, name) in [
                ("local batch size ", "micro_batch_size"),
                ("global batch size ", "global_batch_size"),
                (
                    "gradient accumulation steps ",
                    "gradient_accumulation_steps",
                ),
                ("sequence length ", "seq_length"),
                ("total steps ", "train_iters"),
                ("(warmup ", "warmup_steps"),
            ] {
                if let Some(n) = count_after(text, key)
                    .filter(|_| name != "warmup_steps" || !self.warmup_adjusted)
                {
                    set(out, name, n.into());
                }
            }
        } else if let Some(steps) = count_after(text, "Adjusting warmup steps to ") {
            self.warmup_adjusted = true;
            out.trace
                .effective
                .0
                .insert("warmup_steps".to_owned(), steps.into());
        } else if has(text, "device mesh with") {
            mesh(text, out);
        } else if let Some(count) = size(text) {
            out.trace.num_parameters.get_or_insert(count);
        } else if let Some(arguments) =
            after(text, "Building ").filter(|t| has(t, " with ") && has(t, "n_layers"))
        {
            model(arguments, out);
        } else if let Some(what) = after(text, " capacity: ").filter(|t| t.ends_with("GiB memory"))
        {
            let kind = if has(text, "CPU capacity") {
                "cpu"
            } else {
                "cuda"
            };
            let name = what.rsplit_once(" with ").map(|(name, _)| name.to_owned());
            out.trace.device.get_or_insert(DeviceLine {
                r#type: kind.to_owned(),
                name,
                count: None,
            });
        } else if let Some(figure) = model_memory(text) {
            out.memory(MemoryReport {
                rank: rank(text),
                after_step: None,
                figures: vec![figure],
            });
        } else if let Some(flops) = grouped_after(text, "Peak FLOPS used for computing MFU: ") {
            out.total("mfu_peak_flops", flops);
        } else if has(text, "Peak flops undefined for") {
            out.notes.add("false_mfu", || {
                "no peak is known for this device: mfu is a share of another one's".to_owned()
            });
        } else {
            self.applied(text, out);
        }
    }

    fn applied(&mut self, text: &str, out: &mut Builder) {
        for (line, name, value) in [
            ("Applied FSDP to the model", "sharding", Value::from("fsdp")),
            ("Applied HSDP to the model", "sharding", "hsdp".into()),
            ("Applied DDP to the model", "sharding", "ddp".into()),
            ("Applied replicate to the model", "sharding", "ddp".into()),
            (
                "activation checkpointing to the model",
                "activation_checkpointing",
                true.into(),
            ),
            (
                "Compiling each TransformerBlock with torch.compile",
                "compile",
                true.into(),
            ),
            (
                "Applied CPU Offloading to the model",
                "offload",
                true.into(),
            ),
        ] {
            if has(text, line) {
                set(out, name, value);
            }
        }
        self.quantised |= has(text, "Float8 training active") || has(text, "Swapped to Float8");
    }

    fn collect(&mut self, text: &str, out: &mut Builder) {
        let Some(block) = &mut self.dump else { return };
        let config = match block.add(text) {
            Ok(None) => return,
            Ok(Some(whole)) => json(&whole).unwrap_or_default(),
            Err(()) => Map::new(),
        };
        self.dump = None;
        for (group, members) in config {
            let Value::Object(members) = members else {
                continue;
            };
            members
                .iter()
                .for_each(|(key, value)| self.setting((&group, key), value, out));
        }
    }

    /// One member of the configuration.
    fn setting(&mut self, (group, key): (&str, &str), value: &Value, out: &mut Builder) {
        let name = match (group, key) {
            ("training", "seq_len") => "seq_length",
            ("training", "local_batch_size" | "batch_size") => "micro_batch_size",
            ("training", "global_batch_size") => "global_batch_size",
            ("training", "steps") => "train_iters",
            ("training", "max_norm") => "clip_grad",
            ("training" | "debug", "seed") => "seed",
            ("training", "enable_cpu_offload") => "offload",
            ("optimizer", "name") => "optimizer",
            ("optimizer", "lr") => "learning_rate",
            ("optimizer", "beta1") => "beta1",
            ("optimizer", "beta2") => "beta2",
            ("optimizer", "eps") => "eps",
            ("optimizer", "weight_decay") => "weight_decay",
            ("parallelism", "tensor_parallel_degree") => "tensor_model_parallel_size",
            ("parallelism", "pipeline_parallel_degree") => "pipeline_model_parallel_size",
            ("parallelism", "context_parallel_degree") => "context_parallel_size",
            ("compile", "enable") => "compile",
            ("activation_checkpoint", "mode") => {
                if let Some(mode) = value.as_str() {
                    set(out, "activation_checkpointing", (mode != "none").into());
                }
                return;
            }
            ("training", "mixed_precision_param") => {
                self.precision = match value.as_str() {
                    Some("bfloat16") => Some("bf16"),
                    Some("float16") => Some("fp16"),
                    Some("float32") => Some("fp32"),
                    _ => None,
                };
                return;
            }
            ("model", "converters") => {
                self.quantised |= value.to_string().contains("float8");
                return;
            }
            _ => return,
        };
        // -1: as many as there are, or as it comes out.
        if value.is_boolean()
            || value.as_f64().is_some_and(|n| n >= 0.0)
            || name == "optimizer" && value.is_string()
        {
            let value = value
                .as_str()
                .map_or_else(|| value.clone(), |s| s.to_lowercase().into());
            set(out, name, value);
        }
    }
}

/// What the first line says counts; each rank repeats it, and torchtitan's counts may come from
/// another source.
fn set(out: &mut Builder, name: &str, value: Value) {
    let whole = value.as_f64().and_then(as_count).map(Value::from);
    out.set(name, whole.filter(|_| value.is_number()).unwrap_or(value));
}

/// `Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]`, or with `pp=1, dp_shard=8, …` since
/// 2025.
fn mesh(text: &str, out: &mut Builder) {
    let named = |name: &str| -> Option<u64> {
        if let Some((names, sizes)) = text.split_once("], [") {
            let names = names.rsplit_once('[')?.1;
            let at = names
                .split(',')
                .position(|n| n.trim().trim_matches(['\'', '"']) == name)?;
            return sizes
                .trim_end_matches(']')
                .split(',')
                .nth(at)?
                .trim()
                .parse()
                .ok();
        }
        [" ", ","]
            .iter()
            .find_map(|before| count_after(text, &format!("{before}{name}=")))
    };
    if !has(text, "], [") && !has(text, "dp_shard=") {
        return;
    }
    let size = |name: &str| named(name).filter(|n| *n > 0 && *n < 1 << 24).unwrap_or(1);
    let shard = if named("dp_shard").is_some() {
        size("dp_shard")
    } else {
        size("dp_shard_mod_ep") * size("dp_shard_in_ep")
    };
    let (dp, tp, pp, cp) = (
        shard * size("dp_replicate"),
        size("tp"),
        size("pp"),
        size("cp"),
    );
    let Some(all) = [dp, tp, pp, cp]
        .iter()
        .try_fold(1u64, |all, n| all.checked_mul(*n))
    else {
        return;
    };
    for (name, n) in [
        ("data_parallel_size", dp),
        ("tensor_model_parallel_size", tp),
        ("pipeline_model_parallel_size", pp),
        ("context_parallel_size", cp),
        ("num_gpus", all),
    ] {
        set(out, name, n.into());
    }
}

/// `Model llama3 8B size: 8,030,261,248 total parameters`.
fn size(text: &str) -> Option<u64> {
    let (count, tail) = grouped_number(after(after(text, "Model ")?, "size: ")?)?;
    as_count(count).filter(|_| tail.trim_start().starts_with("total parameters"))
}

/// The model's arguments, as a data class (`n_layers=32`) or as JSON (`"n_layers": 32`).
fn model(text: &str, out: &mut Builder) {
    for (key, name) in [
        ("dim", "hidden_size"),
        ("n_layers", "num_layers"),
        ("n_heads", "num_attention_heads"),
        ("n_kv_heads", "num_kv_heads"),
        ("vocab_size", "vocab_size"),
        ("rope_theta", "rope_theta"),
        ("norm_eps", "norm_eps"),
    ] {
        let forms = [
            format!("({key}="),
            format!(" {key}="),
            format!("\"{key}\": "),
            format!("'{key}': "),
        ];
        let value = forms
            .iter()
            .find_map(|form| grouped_after(text, form))
            .filter(|v| v.is_finite() && *v > 0.0);
        if let Some(value) = value.and_then(serde_json::Number::from_f64) {
            set(out, name, Value::Number(value));
        }
    }
}

/// `training.seq_len.......... 2048` → its path and its value.
fn dotted(argument: &str) -> Option<((&str, &str), &str)> {
    let (path, value) = argument.split_once(' ')?;
    Some((path.trim_end_matches('.').split_once('.')?, value.trim()))
}

fn scalar(text: &str) -> Value {
    match text {
        "True" => true.into(),
        "False" => false.into(),
        "None" => Value::Null,
        _ => grouped_number(text)
            .filter(|(_, tail)| tail.is_empty())
            .and_then(|(n, _)| serde_json::Number::from_f64(n))
            .map_or_else(|| text.into(), Value::Number),
    }
}

/// A configuration as JSON or as Python writes a dictionary of plain values.
fn json(text: &str) -> Option<Map<String, Value>> {
    let text = text.trim();
    serde_json::from_str(text).ok().or_else(|| {
        let mut plain = text.replace('\'', "\"");
        for (python, json) in [("None", "null"), ("True", "true"), ("False", "false")] {
            plain = plain.replace(&format!(": {python}"), &format!(": {json}"));
        }
        serde_json::from_str(&plain).ok()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{LogSection, Trace, parse};

    fn effective(log: &str) -> (Value, Trace) {
        let trace = parse(&LogSection::named("torchtitan"), log.as_bytes());
        (serde_json::to_value(&trace.effective).unwrap(), trace)
    }
    use super::*;

    #[test]
    fn header_lines() {
        let (stated, trace) = effective(concat!(
            "[titan] - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n",
            "[titan] - WARNING - Peak flops undefined for: X, fallback to A100\n",
            "[titan] - INFO - Peak FLOPS used for computing MFU: 3.120e+14\n",
            "[titan] - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]\n",
            "[titan] - INFO - Building llama3 1B with TransformerModelArgs(_x='y', dim=2048, n_layers=16, n_heads=32, n_kv_heads=8, vocab_size=128256, norm_eps=1e-05, rope_theta=500000, depth_init=True)\n",
            "[titan] - INFO - \x1b[34mModel llama3 1B \x1b[31msize: 1,498,482,688 total parameters\x1b[39m\n",
            "[titan] - INFO - Applied selective activation checkpointing to the model\n",
            "[titan] - INFO - Compiling each TransformerBlock with torch.compile\n",
            "[titan] - INFO - Applied FSDP to the model\n",
            "[titan] - WARNING - Warmup steps (200) exceed total training steps (50). Adjusting warmup steps to 50.\n",
            "[titan] - INFO - Trainer is initialized with local batch size 2, global batch size 16, gradient accumulation steps 2, sequence length 4096, total steps 50 (warmup 200)\n",
        ));
        assert_eq!(
            stated,
            json!({
                "data_parallel_size": 4, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1,
                "context_parallel_size": 1, "num_gpus": 8, "hidden_size": 2048, "num_layers": 16, "num_attention_heads": 32,
                "num_kv_heads": 8, "vocab_size": 128_256, "norm_eps": 1e-5, "rope_theta": 500_000,
                "activation_checkpointing": true, "compile": true, "sharding": "fsdp", "warmup_steps": 50,
                "micro_batch_size": 2, "global_batch_size": 16, "gradient_accumulation_steps": 2, "seq_length": 4096,
                "train_iters": 50,
            })
        );
        assert_eq!(
            (trace.num_parameters, trace.totals["mfu_peak_flops"]),
            (Some(1_498_482_688), 3.12e14)
        );
        assert_eq!(
            trace.device.unwrap().name.as_deref(),
            Some("NVIDIA H100 80GB HBM3")
        );
        assert_eq!(trace.anomalies[0].kind, "false_mfu");
    }

    #[test]
    fn the_configuration_in_three_spellings() {
        let dotted = concat!(
            "[rank-1/8][INFO ] ========== TorchTitan Config ==========\n",
            "[rank-1/8][INFO ] arguments activation_checkpoint.mode........... none\n",
            "[rank-1/8][INFO ] arguments activation_checkpoint.per_op_sac_force_recompute ['moe.router']\n",
            "[rank-1/8][INFO ] arguments optimizer.lr......................... 0.0008\n",
            "[rank-1/8][INFO ] arguments optimizer.name....................... AdamW\n",
            "[rank-1/8][INFO ] arguments training.global_batch_size........... -1\n",
            "[rank-1/8][INFO ] arguments training.mixed_precision_param....... bfloat16\n",
            "[rank-1/8][INFO ] arguments training.seed........................ None\n",
            "[rank-1/8][INFO ] arguments training.seq_len..................... 2048\n",
            "[rank-1/8][INFO ] arguments validation.seq_len................... 512\n",
        );
        let lines = "Running with configs: {\n  \"activation_checkpoint\": {\"mode\": \"none\"},\n  \"optimizer\": {\"name\": \"AdamW\",\n \
                     \"lr\": 0.0008},\n  \"training\": {\"mixed_precision_param\": \"bfloat16\", \"seq_len\": 2048,\n \"seed\": null}\n}\n";
        let python = "x Running with args: {'activation_checkpoint': {'mode': 'none'}, 'optimizer': {'name': 'AdamW', 'lr': 0.0008}, \
                      'training': {'mixed_precision_param': 'bfloat16', 'seq_len': 2048, 'seed': None, 'compile': False}}\n";
        let expected = json!({
            "activation_checkpointing": false, "learning_rate": 0.0008, "optimizer": "adamw", "precision": "bf16",
            "seq_length": 2048,
        });
        for log in [dotted, lines, python] {
            assert_eq!(effective(log).0, expected, "{log}");
        }
        let (quantised, _) = effective(&format!(
            "{dotted}[rank-1/8] Swapped to Float8Linear layers\n"
        ));
        assert_eq!(quantised["precision"], "fp8");
    }

    #[test]
    fn newer_meshes_name_their_sizes() {
        let (stated, _) = effective(
            "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=4, etp=1\n",
        );
        assert_eq!(
            (&stated["data_parallel_size"], &stated["num_gpus"]),
            (&json!(4), &json!(8))
        );
        let (stated, _) = effective(
            "Building 2-D device mesh with ['dp_shard_mod_ep', 'dp_shard_in_ep'], [2, 4]\n",
        );
        assert_eq!(stated["data_parallel_size"], 8);
        for broken in [
            "Building device mesh with",
            "device mesh with [], []",
            "device mesh with ['tp'], [99999999999999999999]",
        ] {
            let _ = effective(broken);
        }
    }
}

//! A comparison as JSON, of as many cells as wanted, with all that can be in one; for tests and
//! benches.

use serde_json::{Map, Value, json};

/// What is in the cells besides figures of every kind.
#[derive(Clone, Copy)]
pub struct Sample {
    pub cells: usize,
    pub groups: usize,
    pub repeats: usize,
    pub steps: usize,
    /// Every rate and time is multiplied by this.
    pub scale: f64,
    /// Failures, contradictions, missing metrics, single repeats, long names, imports.
    pub troubled: bool,
}

/// The same numbers for the same `n`, from 0 to 1.
fn noise(n: usize) -> f64 {
    let mut z = (n as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((z ^ (z >> 27)) >> 40) as f64 / (1u64 << 24) as f64
}

impl Sample {
    pub fn json(self) -> Value {
        let names: Vec<String> = (0..self.cells).map(|i| self.name(i)).collect();
        let groups: Vec<Value> = (0..self.groups)
            .map(|g| {
                let cells: Vec<&String> = names.iter().skip(g).step_by(self.groups).collect();
                json!({"model": "llama-3.1-8b", "workload": format!("sequence {}, global batch 128, 8 devices", 1024 * (g + 1)),
                    "identical_config": g == 1, "baseline": cells.first(), "cells": cells})
            })
            .collect();
        let absent = [
            (
                "failed",
                "oom: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate <20.00 GiB> & \"more\"".to_owned(),
            ),
            ("missing", "not run on this host".to_owned()),
            ("contradicted", format!("seq_length: 2048, not 8192; {}", "and so on ".repeat(30))),
            ("unsupported", "Primus needs an AMD platform\u{1b}[0m".to_owned()),
        ];
        let absent: Vec<Value> = absent
            .iter()
            .cycle()
            .take(if self.troubled { self.cells.div_ceil(4).max(2) } else { 0 })
            .enumerate()
            .map(|(i, (state, reason))| json!({"cell": format!("nvd/fsdp/llama-3.1-8b/absent@n={i}"), "state": state, "reason": reason,
                "contradicted": 0, "contract": []}))
            .collect();
        let mut all = json!({
            "schema_version": "tprimat.comparison/1", "comparable": true, "groups": groups, "absent": absent,
            "rows": (0..self.cells).map(|i| self.row(i, &names[i])).collect::<Vec<_>>(),
            "speedups": [], "differences": [], "notes": [],
        });
        give_codes(&mut all);
        all
    }

    fn name(self, i: usize) -> String {
        let platform = ["nvd", "amd"][i % 2];
        let framework = ["native", "tran", "fsdp", "deep", "nemo", "prim"][i % 6];
        if self.troubled && i % 5 == 3 {
            let model = "a-model-<with>&a-\"long\"-name".repeat(6);
            return format!("{platform}/{framework}/{model}/maximum_performance@n={i}");
        }
        format!(
            "{platform}/{framework}/llama-3.1-8b/maximum_performance@micro_batch_size={i},precision=bf16"
        )
    }

    fn row(self, i: usize, name: &str) -> Value {
        let rate = self.scale * (9000.0 + 400.0 * (i % 17) as f64 + 300.0 * noise(i));
        let wanted = if self.troubled && i % 6 == 4 {
            1
        } else {
            self.repeats
        };
        let status = |r: usize| match (self.troubled, i % 7, r) {
            (true, 2, 1) => {
                json!({"status": "failed", "class": "oom", "evidence": ["CUDA out of memory"]})
            }
            (true, 5, 2) => {
                json!({"status": "contradicted", "fields": ["global_batch_size", "seq_length"]})
            }
            (true, 6, 1) => {
                json!({"status": "suspect", "reason": "its GPU gpu-0 was also used by process 4711"})
            }
            (true, 6, 2) => json!({"status": "unmeasured", "reason": "no timed step"}),
            _ => json!({"status": "ok"}),
        };
        let repeats: Vec<Value> = (0..wanted)
            .map(|r| self.repeat(i, r, rate, &status(r)))
            .collect();
        let rates: Vec<f64> = repeats
            .iter()
            .filter(|r| r["status"]["status"] == "ok")
            .filter_map(|r| r["steady"]["tokens_per_second_per_gpu"].as_f64())
            .collect();
        let value = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let counted = |s: &str| {
            repeats
                .iter()
                .filter(|r| r["status"]["status"] == s)
                .count()
        };
        let mut row = json!({
            "cell": name, "platform": name.split('/').next(), "framework": name.split('/').nth(1),
            "model": "llama-3.1-8b", "parallelism": "maximum_performance", "group": i % self.groups + 1,
            "n": rates.len(), "repeats_wanted": wanted, "failed": counted("failed"), "contradicted": counted("contradicted"),
            "suspect": counted("suspect"),
            "tokens_per_second_per_gpu": {"value": value, "values": rates, "unit": "repeat", "units": rates,
                "ci95": (rates.len() > 1).then_some([value * 0.985, value * 1.016])},
            "tokens_per_second": value * 8.0,
            "step_time": {"mean_seconds": 2.0 / self.scale, "median_seconds": 2.0 / self.scale, "p95_seconds": 2.1 / self.scale},
            "memory": [{"kind": "peak_allocated", "source": "torch", "bytes": (40 + i as u64 % 30) << 30},
                {"kind": "peak_reserved", "source": "torch", "bytes": (44 + i as u64 % 30) << 30}],
            "mfu": {"status": "ok", "value": 0.3 + 0.01 * (i % 17) as f64, "basis": "400 TFLOP/s ÷ 989.4 TFLOP/s peak"},
            "warmup_steps": 0, "steady_state": "", "environment": {},
            "precision": "bf16", "attestation": "attested", "labels": [], "tokens_per_step": 1_048_576,
            "memory_capacity_bytes": 80u64 << 30, "loss_group": 1 + usize::from(self.troubled && i % 9 == 7),
            "contract": [{"field": "num_gpus", "tier": "workload", "value": 8, "source": "effective"},
                {"field": "seed", "tier": "convergence", "value": if self.troubled && i % 9 == 7 { 2 } else { 1 }, "source": "effective"}],
            "metrics": self.metrics(i), "repeats": repeats,
        });
        if self.troubled {
            self.trouble(i, row.as_object_mut().expect("an object"));
        }
        let mfu = json!({"name": "mfu", "title": "MFU", "unit": "fraction", "higher_is_better": true, "figure": row["mfu"]});
        row["metrics"]
            .as_array_mut()
            .expect("a list of metrics")
            .push(mfu);
        row
    }

    fn trouble(self, i: usize, row: &mut Map<String, Value>) {
        if i % 4 == 1 {
            row.insert(
                "labels".into(),
                json!([
                    "precision: fp8, not bf16",
                    "across global_batch_size: 128, not 8",
                    "recompute: full, not none",
                    "micro_batch_size: 4, not 2",
                    "zero_stage: 3, not 1",
                    "attention: flash, not sdpa",
                    "tensor_parallel: 4, not 8",
                    "pipeline_parallel: 2, not 1",
                    "sequence_parallel: true, not false"
                ]),
            );
        }
        if i % 5 == 2 {
            row.insert(
                "mfu".into(),
                json!({"status": "absent", "reason": "no dense peak of `NVIDIA H100 NVL` is known"}),
            );
            row.insert("memory".into(), json!([]));
        }
        if i % 8 == 5 {
            row.insert(
                "mfu".into(),
                json!({"status": "error", "reason": "MFU 1.31 is more than the device can do"}),
            );
            row.insert("imported".into(), json!(["h100.log"]));
        }
    }

    fn metrics(self, i: usize) -> Value {
        let cost = if self.troubled && i % 5 == 2 {
            json!({"status": "absent", "reason": "no price of platform `nvd` is configured"})
        } else {
            json!({"status": "ok", "value": 60_000.0 / self.scale * (1.0 + noise(i)), "basis": "a price"})
        };
        json!([{"name": "dollars_per_trillion_tokens", "title": "USD/1T tokens", "unit": "USD", "higher_is_better": false,
            "figure": cost},
            {"name": "tokens_per_joule", "title": "tokens/J", "unit": "tokens/J", "higher_is_better": true,
            "figure": {"status": "ok", "value": 2.5 * self.scale * (1.0 + noise(i)), "basis": "samples"}}])
    }

    fn repeat(self, i: usize, r: usize, rate: f64, status: &Value) -> Value {
        let at = |s: usize| noise(i * 1_000_003 + r * 10_007 + s);
        let rate = rate * (1.0 + 0.01 * (at(0) - 0.5));
        let seconds = 2.0 * 10_000.0 / rate;
        let steps: Vec<usize> = (1..=self.steps).collect();
        let time = |s: &usize| {
            let slow = if at(*s) > 0.995 { 1.3 } else { 1.0 };
            seconds * slow * (1.0 + 0.02 * (at(*s + 7) - 0.5) + 4.0 * (-(*s as f64)).exp())
        };
        let loss = |s: &usize| {
            2.0 + 8.0 * (-(*s as f64) / 90.0).exp() + 0.1 * at(*s + 13) + 0.02 * i as f64
        };
        let warmup = 20.0;
        let learning_rate = |s: &usize| {
            let s = *s as f64;
            if s < warmup {
                3e-4 * s / warmup
            } else {
                1.5e-4 * (1.0 + (s / self.steps as f64 * 3.1).cos())
            }
        };
        json!({
            "repeat": r + 1, "attempt": format!("a{r}"), "host": "gpu1", "status": status,
            "steady": {"steps": self.steps, "tokens_per_second": rate * 8.0, "tokens_per_second_per_gpu": rate,
                "step_time": {"mean_seconds": seconds, "median_seconds": seconds, "p95_seconds": seconds},
                "cut": {"first_step": 6, "dropped_steps": 3, "method": "MSER-5", "declared_tokens_per_second_per_gpu": rate,
                    "level_shift": (i % 7 == 3 && r == 0).then(|| json!({"step": self.steps / 2, "ratio": 1.031}))}},
            "telemetry": (i % 3 != 1).then(|| json!({"source": "nvml", "devices": 8, "seconds": 900.0, "mean_power_watts": 5200.0 + 40.0 * i as f64,
                "energy": {"joules": 4.7e6 + 1e4 * i as f64, "method": "counter"}, "max_memory_used_bytes": (70u64 + i as u64 % 9) << 30})),
            "curve": {"step": steps, "step_time_seconds": steps.iter().map(time).collect::<Vec<_>>(),
                "loss": steps.iter().map(loss).collect::<Vec<_>>(),
                "learning_rate": steps.iter().map(learning_rate).collect::<Vec<_>>()},
        })
    }
}

/// Makes reasons of the sentences that the sample states alone.
fn give_codes(value: &mut Value) {
    let reason = |text: &str| json!({"code": "told", "severity": "detail", "text": text});
    match value {
        Value::Object(map) => {
            let is_of_a_run = map.get("status").is_some_and(|status| status == "suspect");
            if let Some(Value::String(text)) = map.get("reason").filter(|_| !is_of_a_run) {
                let told = reason(text);
                map.insert("reason".to_owned(), told);
            }
            if let Some(Value::Array(labels)) = map.get_mut("labels") {
                for label in labels {
                    *label = reason(label.as_str().unwrap_or_default());
                }
            }
            map.values_mut().for_each(give_codes);
        }
        Value::Array(all) => all.iter_mut().for_each(give_codes),
        _ => {}
    }
}

//! The format `deepspeed`: the engine's own lines, its timers and flops profiler, DeepSpeed-Chat,
//! and loops that print `Step 0 time: 178.66ms` or `Step 10/500, Loss: 11.9, Step Time: 0.747s`.

use std::{borrow::Cow, collections::BTreeMap};

use super::{
    MemoryFigure, Step,
    builder::Builder,
    deepspeed_config::{Config, overflow},
    format::{Evidence, Reader},
    lines::Line,
    numbers::{GIB, after, as_count, grouped_number},
    values::{Checks, bytes, count_after, grouped_after, has, once, word_after},
};

pub fn evidence(line: &str) -> Evidence {
    let engine = has(line, "step=") && has(line, "skipped=") && has(line, "lr=[")
        || has(line, "RunningAvgSamplesPerSec=");
    if engine
        || reinforced(line).is_some()
        || timed(line).is_some()
        || looped(line).is_some()
        || chat(line).is_some()
    {
        return Evidence::Strong;
    }
    let usual = [
        "[deepspeed]",
        "DeepSpeed info: version=",
        "time (ms) | fwd_microstep",
    ];
    if usual.iter().any(|s| has(line, s)) {
        Evidence::Weak
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct DeepSpeed {
    config: Config,
    /// Timers of a step whose line is to come.
    pending: BTreeMap<Cow<'static, str>, f64>,
    /// The engine prints the timers of forward and backward after its step's line.
    engine: bool,
    chat_told: Option<u64>,
    /// Lines in which the flops profiler's summary may still stand.
    profile: u32,
}

impl Reader for DeepSpeed {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some(detail) = overflow(text) {
            let after = out.trace.steps.last().map_or(0, |s| s.step);
            out.notes
                .add("overflow_skip", || format!("after step {after}: {detail}"));
        } else if let Some(timers) = after(text, "time (ms) | ") {
            self.timers(timers, out);
        } else if has(text, "step=") && has(text, "skipped=") {
            self.engine_step(text, out);
        } else if let Some(fields) =
            after(text, "global_step=").filter(|t| has(t, "RunningAvgSamplesPerSec="))
        {
            self.engine_rates(fields, out);
        } else if let Some((at, seconds)) = timed(text) {
            let step_time_seconds = Checks {
                step: at,
                notes: &mut out.notes,
            }
            .seconds("time", Some(seconds));
            let other = std::mem::take(&mut self.pending);
            out.step(Step {
                step: at,
                step_time_seconds,
                other,
                ..Step::default()
            });
        } else if let Some((at, total)) = looped(text) {
            self.looped_step(at, total, text, out);
        } else if let Some(figures) = chat(text) {
            self.chat(figures, out);
        } else if let Some((at, losses)) = reinforced(text) {
            let other = losses
                .into_iter()
                .map(|(name, value)| (name.into(), value))
                .collect();
            out.step(Step {
                step: at,
                other,
                ..Step::default()
            });
        } else if let Some(value) = text
            .trim_start()
            .strip_prefix("ppl: ")
            .and_then(grouped_number)
            .map(|(v, _)| v)
        {
            let step = out.trace.steps.last().map(|s| s.step);
            out.evaluated(step, "perplexity", value);
        } else if has(text, "DeepSpeed Flops Profiler -") {
            self.profile = 40;
        } else if self.profile > 0 {
            self.profile -= 1;
            profile(text, out);
        } else if has(text, "exits successfully") {
            out.trace.finished = true;
        } else if has(text, "[Summary]") {
            for (key, name) in [
                ("avg_accumulation_step=", "avg_accumulation_step_ms"),
                ("avg_update_step=", "avg_update_step_ms"),
            ] {
                grouped_after(text, key)
                    .into_iter()
                    .for_each(|v| out.total(name, v));
            }
        } else {
            self.config.line(text, out);
        }
    }
}

impl DeepSpeed {
    /// `step=10, skipped=6, lr=[1e-05, 1e-05], mom=[(0.9, 0.999)]`: no loss, no time.
    fn engine_step(&mut self, text: &str, out: &mut Builder) {
        self.engine = true;
        // Step 0 is the state before the first one.
        let Some(at) = count_after(text, "step=").filter(|n| *n > 0) else {
            return;
        };
        let mut checks = Checks {
            step: at,
            notes: &mut out.notes,
        };
        let learning_rate = checks.learning_rate(grouped_after(text, "lr=["));
        let mut other = std::mem::take(&mut self.pending);
        if let Some(skipped) = count_after(text, "skipped=") {
            other.insert("skipped_steps".into(), skipped as f64);
        }
        out.step(Step {
            step: at,
            learning_rate,
            other,
            ..Step::default()
        });
    }

    /// `7360, RunningAvgSamplesPerSec=…, CurrSamplesPerSec=…, MemAllocated=3.96GB,
    /// MaxMemAllocated=22.95GB`. The rates are too high where gradients are accumulated: they are
    /// kept by the log's name and never used.
    fn engine_rates(&mut self, fields: &str, out: &mut Builder) {
        let Some(at) = grouped_number(fields)
            .and_then(|(n, _)| as_count(n))
            .filter(|n| *n > 0)
        else {
            return;
        };
        let mut step = Step {
            step: at,
            ..Step::default()
        };
        for (key, name) in [
            ("RunningAvgSamplesPerSec=", "running_avg_samples_per_sec"),
            ("CurrSamplesPerSec=", "curr_samples_per_sec"),
        ] {
            if let Some(value) = grouped_after(fields, key).filter(|v| v.is_finite()) {
                step.other.insert(name.into(), value);
            }
        }
        let gib = |key: &str| grouped_after(fields, key).and_then(|v| bytes(v, GIB));
        // Its GB are 2³⁰ bytes.
        if let Some(peak) = gib("MaxMemAllocated=") {
            step.memory_bytes = Some(peak);
            (step.memory_kind, step.memory_source) =
                (Some("peak_allocated".into()), Some("torch".into()));
        }
        if let Some(bytes) = gib(" MemAllocated=") {
            step.memory_figures.push(MemoryFigure {
                kind: "allocated".into(),
                source: "torch".into(),
                bytes,
            });
        }
        out.step(step);
    }

    /// `fwd_microstep: 54.76 | bwd_microstep: 122.95 | …`
    fn timers(&mut self, timers: &str, out: &mut Builder) {
        let at = out.trace.steps.last().map_or(0, |s| s.step);
        let ahead =
            !self.engine || timers.starts_with("optimizer") || timers.starts_with("selective");
        for (key, value) in timers.split('|').filter_map(|t| t.split_once(':')).take(32) {
            let Some((value, _)) = grouped_number(value) else {
                continue;
            };
            let key = key.trim();
            if value < 0.0 || !value.is_finite() {
                out.notes.add("negative_time", || {
                    format!("after step {at}: {key} is {value} ms")
                });
                continue;
            }
            if key.len() > 48 {
                continue;
            }
            let name = Cow::Owned(format!("{key}_ms"));
            let step = if ahead { None } else { out.last_step() };
            let into = step.map_or(&mut self.pending, |s| &mut s.other);
            if into.len() < 64 {
                into.insert(name, value);
            }
        }
    }

    /// `Step 10/500, Loss: 11.9, Step Time: 0.747s, Elapsed: 7.5s`. The time is of a micro-step: a
    /// step's only where nothing is accumulated.
    fn looped_step(&mut self, at: u64, total: u64, text: &str, out: &mut Builder) {
        once("train_iters", total, out);
        let single = out
            .trace
            .effective
            .0
            .get("gradient_accumulation_steps")
            .and_then(serde_json::Value::as_u64)
            == Some(1);
        let mut checks = Checks {
            step: at,
            notes: &mut out.notes,
        };
        let time = checks.seconds("Step Time", grouped_after(text, "Step Time:"));
        let mut step = Step {
            step: at,
            steps_averaged: Some(1),
            loss: checks.loss(grouped_after(text, "Loss:")),
            ..Step::default()
        };
        step.learning_rate = checks.learning_rate(grouped_after(text, ", LR:"));
        if single {
            step.step_time_seconds = time;
        } else if let Some(time) = time {
            step.other.insert("micro_step_time_seconds".into(), time);
        }
        if let Some(elapsed) =
            grouped_after(text, "Elapsed:").filter(|v| v.is_finite() && *v >= 0.0)
        {
            step.other.insert("elapsed_seconds".into(), elapsed);
        }
        out.step(step);
    }

    /// `0.331 B, Latency: 0.14s, TFLOPs: 1.98, Samples/sec: 14.08, …, Batch Size: 2, Sequence
    /// Length: 512`: figures of the micro-step that ended a step.
    fn chat(&mut self, figures: &str, out: &mut Builder) {
        for (key, name) in [
            ("Batch Size:", "micro_batch_size"),
            ("Sequence Length:", "seq_length"),
        ] {
            count_after(figures, key)
                .into_iter()
                .for_each(|n| once(name, n, out));
        }
        grouped_number(figures)
            .into_iter()
            .for_each(|(billions, _)| out.total("model_parameters_billion", billions));
        let at = out.trace.steps.last().map(|s| s.step);
        let ends_step = std::mem::replace(&mut self.chat_told, at) != at;
        for (key, name) in [
            ("Latency:", "micro_step_latency_seconds"),
            ("TFLOPs:", "micro_step_tflops"),
            ("Samples/sec:", "micro_step_samples_per_sec"),
        ] {
            let Some(value) = grouped_after(figures, key).filter(|v| v.is_finite() && *v > 0.0)
            else {
                continue;
            };
            match out.last_step().filter(|_| ends_step) {
                Some(step) => {
                    step.other.insert(name.into(), value);
                }
                None => out.total(name, value),
            }
        }
    }
}

/// `Step 0 time: 178.66ms`, in seconds.
fn timed(line: &str) -> Option<(u64, f64)> {
    let (step, text) = grouped_number(line.trim_start().strip_prefix("Step ")?)?;
    let (time, unit) = grouped_number(text.strip_prefix(" time:")?)?;
    let scale = match unit.trim() {
        "ms" => 1e3,
        "s" => 1.0,
        _ => return None,
    };
    Some((as_count(step)?, time / scale))
}

/// `Step 10/500, Loss: …, Step Time: …`: the step and how many there are.
fn looped(line: &str) -> Option<(u64, u64)> {
    let (step, text) = grouped_number(after(line, "Step ")?)?;
    let (total, text) = grouped_number(text.strip_prefix('/')?)?;
    let own = has(text, "Loss:") && has(text, "Step Time:");
    Some((as_count(step)?, as_count(total)?)).filter(|_| own)
}

/// DeepSpeed-Chat's third stage, old and new: `epoch: 0|step: 10|ppo_ep: 1|act_loss: 0.5|cri_loss:
/// 0.25|…`, `Epoch: 0 | Step: 10 | PPO Epoch: 1 | Actor Loss: 0.5 | …`. None of them is the loss of
/// a language model.
fn reinforced(line: &str) -> Option<(u64, Vec<(&'static str, f64)>)> {
    if !has(line, "ppo_ep:") && !has(line, "PPO Epoch:") {
        return None;
    }
    let find = |keys: [&str; 2]| {
        keys.into_iter()
            .find_map(|key| grouped_after(line, key))
            .filter(|v| v.is_finite())
    };
    let step = find(["|step:", "| Step:"]).and_then(as_count)?;
    let losses = [
        ("actor_loss", find(["act_loss:", "Actor Loss:"])),
        ("critic_loss", find(["cri_loss:", "Critic Loss:"])),
        (
            "unsupervised_loss",
            find(["unsuper_loss:", "Unsupervised Loss:"]),
        ),
    ];
    Some((
        step,
        losses
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
    ))
}

fn chat(line: &str) -> Option<&str> {
    after(line, "Model Parameters: ").filter(|t| has(t, "Latency: ") && has(t, "TFLOPs: "))
}

/// A line of the profiler's summary, `bwd latency:      26.9 ms`. What is negative was measured
/// wrongly.
fn profile(text: &str, out: &mut Builder) {
    let Some((what, value)) = text.split_once(':') else {
        return;
    };
    let name = match what.trim() {
        "world size" => {
            count_after(text, ":")
                .into_iter()
                .for_each(|n| once("num_gpus", n, out));
            return;
        }
        "batch size per GPU" => {
            count_after(text, ":")
                .into_iter()
                .for_each(|n| once("micro_batch_size", n, out));
            return;
        }
        "fwd latency" => "profile_fwd_latency_seconds",
        "bwd latency" => "profile_bwd_latency_seconds",
        "step latency" => "profile_step_latency_seconds",
        "iter latency" => "profile_iter_latency_seconds",
        "samples/second" => "profile_samples_per_sec",
        what if what.starts_with("FLOPS per GPU =") => "profile_tflops_per_gpu",
        _ => return,
    };
    let Some((value, unit)) = grouped_number(value) else {
        return;
    };
    let scale = match word_after(unit, "").unwrap_or("") {
        "s" | "" | "TFLOPS" => 1.0,
        "ms" | "GFLOPS" => 1e-3,
        "us" | "MFLOPS" => 1e-6,
        "ns" => 1e-9,
        _ if value < 0.0 => 1.0,
        _ => return,
    };
    if value > 0.0 {
        out.total(name, value * scale);
    } else {
        out.notes.add("absurd_value", || {
            format!("the profiler says {}", super::lines::cut(text.trim(), 100))
        });
    }
}

#[cfg(test)]
mod tests;

//! DeepSpeed's timers and its micro-steps, which belong to steps of other lines; formats.toml has
//! its lines. The engine prints its configuration and its skipped steps in whatever trainer it runs.

use std::{borrow::Cow, collections::BTreeMap};

use super::{
    builder::Builder,
    engine::Engine,
    format::{Reader, shipped},
    lines::Line,
    numbers::{after, grouped_number},
    table::About,
    values::{Checks, grouped_after, has, word_after},
};

/// Reads the engine's configuration.
pub struct Config(Engine);

impl Default for Config {
    fn default() -> Self {
        Self(Engine::new(shipped("deepspeed")))
    }
}

impl Config {
    /// False if the line is none of DeepSpeed's configuration.
    pub fn line(&mut self, text: &str, out: &mut Builder) -> bool {
        let line = Line {
            text: Cow::Borrowed(text),
            number: 0,
            ended: true,
        };
        self.0.read(&line, |about| about == About::Setting, out)
    }
}

pub struct DeepSpeed {
    lines: Engine,
    /// Timers of a step whose line is to come.
    pending: BTreeMap<Cow<'static, str>, f64>,
    /// The engine prints the timers of forward and backward after its step's line.
    engine: bool,
    chat_told: Option<u64>,
}

impl Default for DeepSpeed {
    fn default() -> Self {
        Self {
            lines: Engine::new(shipped("deepspeed")),
            pending: BTreeMap::new(),
            engine: false,
            chat_told: None,
        }
    }
}

impl Reader for DeepSpeed {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some(detail) = overflow(text) {
            let after = out.trace.steps.last().map_or(0, |s| s.step);
            out.notes
                .add("overflow_skip", || format!("after step {after}: {detail}"));
            return;
        }
        if let Some(timers) = after(text, "time (ms) | ") {
            return self.timers(timers, out);
        }
        self.engine |= has(text, "skipped=");
        let steps = out.trace.step_lines;
        self.lines.line(line, out);
        if out.trace.step_lines > steps {
            self.complete(text, out);
        } else if has(text, "Latency: ") && has(text, "TFLOPs: ") {
            self.micro_step(text, out);
        }
    }
}

impl DeepSpeed {
    /// A step's line: the timers before it are the step's. The time of a loop's line is that of a
    /// micro-step, and the step's only where nothing is accumulated.
    fn complete(&mut self, text: &str, out: &mut Builder) {
        let settings = &out.trace.effective.0;
        let single = settings.get("gradient_accumulation_steps") == Some(&1.into());
        let Some(step) = out.last_step() else {
            return;
        };
        step.other.append(&mut self.pending);
        if single && has(text, "Step Time:") {
            let (number, time) = (step.step, step.other.remove("micro_step_time_seconds"));
            let mut checks = Checks {
                step: number,
                notes: &mut out.notes,
            };
            let time = checks.seconds("Step Time", time);
            if let Some(step) = out.last_step() {
                step.step_time_seconds = time;
            }
        }
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

    /// `Model Parameters: 0.331 B, Latency: 0.14s, TFLOPs: 1.98, Samples/sec: 14.08, …`: figures of
    /// the micro-step that ended a step, or of one before the first step.
    fn micro_step(&mut self, figures: &str, out: &mut Builder) {
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

#[cfg(test)]
mod tests;

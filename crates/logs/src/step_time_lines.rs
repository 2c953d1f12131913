//! Times and rates on lines of their own, beside Megatron's iteration lines: Bridge's `Step Time`,
//! NeoX' `iter time`.
//!
//! Where iteration lines are there as well, these only add to them; without such lines they are the
//! steps.

use super::{
    Step,
    builder::Builder,
    megatron_line::count,
    numbers::{finite_number, number},
    values::Checks,
};

/// Lines without an iteration line among them after which none is waited for.
const PATIENCE: usize = 64;
/// Bridge prints hundredths of a second.
const ROUNDED: f64 = 0.0051;
/// More than any device does.
const MAX_TFLOPS: f64 = 2e4;

#[derive(Default)]
pub struct StepTimeLines {
    waiting: Vec<Step>,
    /// Iteration lines are there.
    joined: bool,
    /// There are none.
    alone: bool,
    /// Lines that state no step number.
    counted: u64,
}

impl StepTimeLines {
    /// ` : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU`, maybe with tokens and memory.
    pub fn step_time(&mut self, rest: &str, out: &mut Builder) {
        let Some((seconds, rest)) = rest.trim_start().strip_prefix(':').and_then(number) else {
            return;
        };
        if !rest.starts_with('s') {
            return;
        }
        let after = |word: &str| {
            rest.split_once(word)
                .and_then(|(_, rest)| finite_number(rest))
        };
        let rate = after("GPU utilization:");
        let tflops_per_gpu = rate.filter(|v| *v > 0.0 && *v < MAX_TFLOPS);
        if let Some(rate) = rate.filter(|_| tflops_per_gpu.is_none()) {
            out.notes.add("absurd_value", || {
                format!("GPU utilization {rate} MODEL_TFLOP/s/GPU")
            });
        }
        let tokens = rest
            .split_once("tok/s/gpu")
            .and_then(|(before, _)| before.rsplit([' ', ',']).find(|w| !w.is_empty()));
        let tokens = tokens.and_then(finite_number).filter(|v| *v > 0.0);
        self.counted += 1;
        let step = Step {
            step: self.counted,
            step_time_seconds: Some(seconds),
            tflops_per_gpu,
            tokens_per_second_per_gpu: tokens,
            ..Step::default()
        };
        // Some versions print it after its iteration line.
        if let Some(last) = out
            .last_step()
            .filter(|last| self.joined && is_of(&step, last))
        {
            last.tflops_per_gpu = last.tflops_per_gpu.or(step.tflops_per_gpu);
            last.tokens_per_second_per_gpu = last
                .tokens_per_second_per_gpu
                .or(step.tokens_per_second_per_gpu);
            return;
        }
        self.take(step, out);
    }

    /// `steps: N loss: X iter time (s): Y samples/sec: Z`: what stands close before the value, and
    /// behind `(s):`.
    pub fn iter_time(&mut self, before: &str, rest: &str, out: &mut Builder) {
        let finite = |text: Option<&str>| text.and_then(finite_number);
        let stated = |text: &str| number(text).map(|(value, _)| value);
        let Some((_, said)) = before.rsplit_once("steps: ") else {
            return;
        };
        let Some(step) = count(said) else { return };
        let mut step = Step {
            step,
            loss: said.split_once("loss: ").and_then(|(_, loss)| stated(loss)),
            step_time_seconds: stated(rest),
            ..Step::default()
        };
        if let Some(rate) = finite(rest.split_once("samples/sec: ").map(|(_, rate)| rate)) {
            step.other.insert("samples_per_second".into(), rate);
        }
        self.take(step, out);
    }

    fn take(&mut self, step: Step, out: &mut Builder) {
        if self.alone {
            checked(step, out);
            return;
        }
        if self.joined {
            self.waiting.clear();
        }
        self.waiting.push(step);
        if self.waiting.len() > PATIENCE {
            self.give(out);
        }
    }

    /// An iteration line: what waits for it adds to it.
    pub fn joins(&mut self, step: &mut Step, out: &mut Builder) {
        self.joined = true;
        if self.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        for other in waiting {
            if let Some(samples) = other
                .other
                .get("samples_per_second")
                .filter(|_| other.step == step.step)
            {
                // NeoX: the engine's own time; the line's may hold a checkpoint as well.
                step.other.insert("samples_per_second".into(), *samples);
                if let Some(time) = other.step_time_seconds.filter(|v| v.is_finite()) {
                    step.other.insert("iter_time_seconds".into(), time);
                }
            } else if other.other.is_empty() && is_of(&other, step) {
                step.tflops_per_gpu = step.tflops_per_gpu.or(other.tflops_per_gpu);
                step.tokens_per_second_per_gpu = step
                    .tokens_per_second_per_gpu
                    .or(other.tokens_per_second_per_gpu);
            } else if !other.other.is_empty() {
                // A step between two iteration lines: only the engine tells of it.
                out.notes.add("other_clock", || {
                    format!(
                        "step {} is only in lines of the engine; left out",
                        other.step
                    )
                });
            }
        }
    }

    pub fn end(&mut self, out: &mut Builder) {
        if !self.joined {
            self.give(out);
        }
        if self.alone && self.counted > 0 {
            out.notes.add("counted_steps", || {
                "the log numbers no steps; its lines were counted".to_owned()
            });
        }
    }

    fn give(&mut self, out: &mut Builder) {
        self.alone = !self.waiting.is_empty() && !self.joined;
        for step in std::mem::take(&mut self.waiting) {
            checked(step, out);
        }
    }
}

/// Hands a step on. Its numbers are checked only here: where there are iteration lines, those state
/// the step's time and loss.
fn checked(mut step: Step, out: &mut Builder) {
    let mut checks = Checks {
        step: step.step,
        notes: &mut out.notes,
    };
    step.step_time_seconds = checks.seconds("step time in seconds", step.step_time_seconds);
    step.loss = checks.loss(step.loss);
    out.step(step);
}

/// Does a time of its own belong to this iteration?
fn is_of(time: &Step, step: &Step) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() <= ROUNDED + 1e-3 * b;
    time.step_time_seconds
        .zip(step.step_time_seconds)
        .is_some_and(|(a, b)| close(a, b))
        && step.tflops_per_gpu.is_none()
}

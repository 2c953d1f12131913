//! nanoGPT: `iter 10: loss 3.1, time 135.2ms, mfu 30.1%`, and `step 0: train loss 10.9, val loss
//! 10.9`.
//!
//! `time` is that of this one iteration, whatever the log interval; the iteration after an
//! evaluation includes it.

use super::{
    Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::Line,
    numbers::{after, count, finite, number, number_after, stated, whole_text_number},
    values::{Checks, grouped_after},
};

/// What configurator.py says of the command line, and what jobs call it. Its
/// gradient_accumulation_steps counts all ranks together, so it is not the job's.
const SETTINGS: &[(&str, &str)] = &[
    ("batch_size", "micro_batch_size"),
    ("block_size", "seq_length"),
    ("max_iters", "train_iters"),
    ("n_layer", "num_layers"),
    ("n_head", "num_attention_heads"),
    ("n_embd", "hidden_size"),
    ("learning_rate", "learning_rate"),
    ("min_lr", "min_learning_rate"),
    ("warmup_iters", "warmup_steps"),
    ("weight_decay", "weight_decay"),
    ("beta1", "beta1"),
    ("beta2", "beta2"),
    ("grad_clip", "clip_grad"),
    ("dropout", "dropout"),
    ("dtype", "precision"),
    ("compile", "compile"),
];

pub fn evidence(line: &str) -> Evidence {
    if iteration(line).is_some() || losses(line).is_some() {
        Evidence::Strong
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct Log {
    tokens: Option<u64>,
    /// The step of the newest evaluation: the time of its iteration includes it.
    evaluated_at: Option<u64>,
}

impl Reader for Log {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some((step, loss, rest)) = iteration(text) {
            // A last line without its end may lack digits.
            if !line.ended && !rest.contains("ms") {
                out.notes.add("truncated", || format!("step {step}"));
                return;
            }
            self.iteration(step, loss, rest, out);
        } else if let Some((step, train, validation)) = losses(text) {
            self.evaluated_at = Some(step);
            out.evaluated(Some(step), "train_loss", train);
            out.evaluated(Some(step), "validation_loss", validation);
        } else if let Some(rest) = after(text, "tokens per iteration will be: ") {
            self.tokens = rest
                .split_whitespace()
                .next()
                .and_then(whole_text_number)
                .and_then(super::numbers::as_count);
        } else if let Some((name, value)) =
            after(text, "Overriding: ").and_then(|rest| rest.split_once(" = "))
        {
            out.set_named(SETTINGS, name.trim(), stated(value));
        }
    }
}

impl Log {
    fn iteration(&mut self, step: u64, loss: f64, rest: &str, out: &mut Builder) {
        let mut checks = Checks {
            step,
            notes: &mut out.notes,
        };
        let milliseconds = grouped_after(rest, ", time ");
        let time = checks.seconds("time in seconds", milliseconds.map(|ms| ms / 1000.0));
        let includes_evaluation = self.evaluated_at.take() == Some(step);
        if let Some(time) = time.filter(|_| includes_evaluation) {
            out.notes.add("evaluation_in_interval", || {
                format!("step {step}: {time} s")
            });
        }
        let mut other = std::collections::BTreeMap::new();
        // Before the fifth iteration it is printed as −100 %: not known.
        if let Some(mfu) = number_after(rest, ", mfu ").filter(|mfu| *mfu >= 0.0) {
            other.insert("mfu_percent".into(), mfu);
        }
        let loss = finite(loss, "nan_loss", step, &mut out.notes);
        let tokens = self.tokens;
        out.step(Step {
            step,
            loss,
            step_time_seconds: time,
            includes_evaluation,
            tokens,
            other,
            ..Step::default()
        });
    }
}

/// `iter N: loss X, time Y…`: step, loss and what follows the loss.
fn iteration(line: &str) -> Option<(u64, f64, &str)> {
    let (step, rest) = count(after(line, "iter ")?)?;
    let (loss, rest) = number(rest.strip_prefix(": loss ")?)?;
    (rest.starts_with(", time ")).then_some((step, loss, rest))
}

/// `step N: train loss X, val loss Y`.
fn losses(line: &str) -> Option<(u64, f64, f64)> {
    let (step, rest) = count(after(line, "step ")?)?;
    let (train, rest) = number(rest.strip_prefix(": train loss ")?)?;
    let (validation, _) = number(rest.strip_prefix(", val loss ")?)?;
    Some((step, train, validation))
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, Trace, parse_any, testing};

    const LOG: &str = "Overriding: batch_size = 12\nOverriding: compile = True\nOverriding: dtype = bfloat16\n\
        tokens per iteration will be: 98,304\nnumber of parameters: 12.34M\n\
        step 0: train loss 9.1000, val loss 9.2000\n\
        iter 0: loss 9.0123, time 8123.40ms, mfu -100.00%\n\
        saving checkpoint to out\n\
        iter 10: loss 8.5, time 101.50ms, mfu 31.25%\n\
        iter 20: loss nan, time 102.00ms, mfu 31.00%\n\
        iter 21: loss 7.25, time 99.00ms\n";

    fn parse(log: &[u8]) -> Trace {
        crate::parse(&LogSection::named("nanogpt"), log)
    }

    #[test]
    fn iterations_evaluations_and_settings() {
        let trace = parse_any(LOG.as_bytes());
        assert_eq!(trace.format, "nanogpt");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.step_time_seconds, s.loss))
            .collect();
        assert_eq!(
            steps,
            [
                (0, Some(8.1234), Some(9.0123)),
                (10, Some(0.1015), Some(8.5)),
                (20, Some(0.102), None),
                (21, Some(0.099), Some(7.25)),
            ]
        );
        assert_eq!(
            trace
                .steps
                .iter()
                .map(|s| s.includes_evaluation)
                .collect::<Vec<_>>(),
            [true, false, false, false]
        );
        assert!(
            trace
                .steps
                .iter()
                .all(|s| s.steps_averaged.is_none() && s.tokens == Some(98304))
        );
        assert!(trace.steps[0].other.is_empty(), "−100 % is no utilisation");
        assert_eq!(trace.steps[1].other["mfu_percent"], 31.25);
        assert!(trace.steps[3].other.is_empty());
        let evaluations: Vec<_> = trace
            .evaluations
            .iter()
            .map(|e| (e.step, &*e.name, e.value))
            .collect();
        assert_eq!(
            evaluations,
            [
                (Some(0), "train_loss", 9.1),
                (Some(0), "validation_loss", 9.2)
            ]
        );
        assert_eq!(trace.effective.0["micro_batch_size"], 12);
        assert_eq!(trace.effective.0["compile"], true);
        assert_eq!(
            testing::kinds(&trace),
            ["evaluation_in_interval", "nan_loss"]
        );
    }

    #[test]
    fn a_cut_off_last_line_is_no_step() {
        let trace = parse(b"iter 1: loss 8.5, time 101.50ms\niter 2: loss 8.4, time 10");
        assert_eq!(
            (trace.steps.len(), testing::kinds(&trace)),
            (1, vec!["truncated"])
        );
    }

    testing::damaged!("nanogpt", LOG);
}

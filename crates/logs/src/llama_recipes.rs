//! llama-recipes and FlagPerf: `Training Epoch: 1/3, step 9/10 completed (loss: 2.09): 100%|###|
//! 10/10 [00:16<00:00, 1.66s/it]`. Steps count from 0 in each epoch. The bar's rate is smoothed,
//! and never taken as a step's time.

use super::{
    MemoryFigure, MemoryReport, Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{GIB, after, bytes, count, finite, number, number_after, whole_text_number},
    values::grouped_after,
};

pub fn evidence(line: &str) -> Evidence {
    if progress(line).is_some() {
        Evidence::Strong
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct Log {
    /// Older versions call the first epoch 0.
    first_epoch: Option<u64>,
    newest: Option<u64>,
}

struct Progress<'a> {
    epoch: u64,
    step: u64,
    all: u64,
    loss: f64,
    rest: &'a str,
}

impl Reader for Log {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some(progress) = progress(text) {
            self.step(&progress, out);
        } else if let Some((key, value)) =
            after(text, "Key: ").and_then(|rest| rest.split_once(", Value: "))
        {
            if let Some(value) = whole_text_number(value) {
                let unit = if key.contains("time") { "_seconds" } else { "" };
                out.total(&format!("{}{unit}", cut(key, 60)), value);
                // Averages over all epochs come after the last one.
                out.trace.finished |= key == "avg_epoch_time";
            }
        } else if let Some(rest) = after(text, "Epoch ") {
            self.epoch(rest, out);
        } else {
            self.figures(text, out);
        }
    }
}

impl Log {
    fn step(&mut self, line: &Progress<'_>, out: &mut Builder) {
        let first = *self.first_epoch.get_or_insert(line.epoch.min(1));
        let epochs_before = line.epoch.saturating_sub(first);
        let Some(number) = epochs_before
            .checked_mul(line.all)
            .and_then(|n| n.checked_add(line.step))
        else {
            return;
        };
        self.newest = Some(number);
        let mut step = Step {
            step: number,
            ..Step::default()
        };
        step.loss = finite(line.loss, "nan_loss", number, &mut out.notes);
        step.other.insert("epoch".into(), line.epoch as f64);
        if let Some(seconds) = rate(line.rest) {
            step.other
                .insert("seconds_per_step_smoothed".into(), seconds);
        }
        out.step(step);
    }

    /// `Epoch 1: train_perplexity=5.7, train_epoch_loss=1.7, epoch time 5151.6s`
    fn epoch(&self, rest: &str, out: &mut Builder) {
        let Some((epoch, rest)) =
            count(rest).filter(|(_, rest)| rest.starts_with(": train_perplexity="))
        else {
            return;
        };
        for name in ["train_perplexity", "train_epoch_loss"] {
            if let Some(value) = grouped_after(rest, &format!("{name}=")) {
                out.evaluated(self.newest, name, value);
            }
        }
        if let Some(seconds) = number_after(rest, "epoch time ") {
            out.total(&format!("epoch_{epoch}_time_seconds"), seconds);
        }
    }

    fn figures(&mut self, text: &str, out: &mut Builder) {
        // Whole GiB, rounded down, whatever they are called.
        for (words, kind) in [
            ("Max CUDA memory allocated was ", "peak_allocated"),
            ("Max CUDA memory reserved was ", "peak_reserved"),
            ("Peak active CUDA memory was ", "peak_active"),
        ] {
            if let Some((gib, " GB")) = after(text, words)
                .and_then(number)
                .map(|(v, unit)| (v, unit.trim_end()))
                && let Some(bytes) = bytes(gib, GIB)
            {
                let figures = vec![MemoryFigure {
                    kind: kind.into(),
                    source: "torch".into(),
                    bytes,
                }];
                out.memory(MemoryReport {
                    rank: None,
                    after_step: self.newest,
                    figures,
                });
                return;
            }
        }
        if let Some(all) =
            after(text, "|| all params: ").and_then(|rest| rest.split_whitespace().next())
        {
            let all = whole_text_number(all).and_then(super::numbers::as_count);
            out.trace.num_parameters = all.filter(|n| *n > 0).or(out.trace.num_parameters);
            let trainable =
                after(text, "trainable params: ").and_then(|rest| rest.split_whitespace().next());
            if let Some(trainable) = trainable.and_then(whole_text_number) {
                out.total("trainable_parameters", trainable);
            }
            return;
        }
        for (words, name) in [
            ("avg_iter_time(s): ", "average_step_time_seconds"),
            ("Tokens/p/s: ", "tokens_per_second_per_gpu"),
            ("System tokens per second: ", "system_tokens_per_second"),
            ("MFU: ", "mfu_ratio"),
        ] {
            if let Some(value) = text
                .trim_start()
                .strip_prefix(words)
                .and_then(whole_text_number)
            {
                out.total(name, value);
            }
        }
        for name in ["eval_ppl", "eval_epoch_loss"] {
            if let Some(value) = grouped_after(text, &format!(" {name}=")) {
                out.evaluated(self.newest, name, value);
            }
        }
        if let Some((name, value)) = text.rsplit_once(" Acc: ")
            && let Some(value) = whole_text_number(value)
        {
            let name = format!(
                "{}_accuracy",
                cut(name.rsplit(' ').next().unwrap_or_default(), 60)
            );
            out.evaluated(self.newest, name, value);
        }
    }
}

fn progress(line: &str) -> Option<Progress<'_>> {
    let (epoch, rest) = count(after(line, "Training Epoch: ")?)?;
    let (_, rest) = count(rest.strip_prefix('/')?)?;
    let (step, rest) = count(rest.strip_prefix(", step ")?)?;
    let (all, rest) = count(rest.strip_prefix('/')?)?;
    let (loss, rest) = number(rest.strip_prefix(" completed (loss: ")?)?;
    let rest = rest.strip_prefix(')')?;
    Some(Progress {
        epoch,
        step,
        all,
        loss,
        rest,
    })
}

/// Seconds per step from the end of a bar: `1.66s/it]` or `2.10it/s]`.
fn rate(bar: &str) -> Option<f64> {
    let (_, rate) = bar.strip_suffix(']')?.rsplit_once(", ")?;
    let (value, unit) = number(rate)?;
    let seconds = match unit {
        "s/it" => value,
        "it/s" => 1.0 / value,
        _ => return None,
    };
    Some(seconds).filter(|s| s.is_finite() && *s > 0.0)
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, parse_any, testing};

    const LOG: &str = "trainable params: 2,097,152 || all params: 1,237,911,552 || trainable%: 0.16941\n\
        Training Epoch: 1/2:   0%|          | 0/3 [00:00<?, ?it/s]\r\
        Training Epoch: 1/2, step 0/3 completed (loss: 2.5):   0%|          | 0/3 [00:02<?, ?it/s]\r\
        Training Epoch: 1/2, step 0/3 completed (loss: 2.5):  33%|###       | 1/3 [00:02<00:04,  2.00s/it]\r\
        Training Epoch: 1/2, step 1/3 completed (loss: 2.25):  66%|######    | 2/3 [00:03<00:01,  1.50s/it]\r\
        Training Epoch: 1/2, step 2/3 completed (loss: nan): 100%|##########| 3/3 [00:04<00:00,  2.50it/s]\n\
        12:00 | INFO | Max CUDA memory allocated was 20 GB\n\
        12:00 | INFO | Epoch 1: train_perplexity=9.5, train_epoch_loss=2.25, epoch time 4.25s\n\
        Training Epoch: 2/2, step 2/3 completed (loss: 1.5): 100%|##########| 3/3 [00:04<00:00,  1.40s/it]\n\
        MMLU5-shots Acc: 0.25\navg_iter_time(s): 1.4375\nTokens/p/s:  2048.5\nMFU:  0.375\n\
        Key: avg_train_loss, Value: 1.75\nKey: avg_epoch_time, Value: 4.5\n";

    #[test]
    fn steps_go_on_over_epochs_and_averages_are_totals() {
        let trace = parse_any(LOG.as_bytes());
        assert_eq!(trace.format, "llama-recipes");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.loss, s.step_time_seconds))
            .collect();
        assert_eq!(
            steps,
            [
                (0, Some(2.5), None),
                (1, Some(2.25), None),
                (2, None, None),
                (5, Some(1.5), None)
            ]
        );
        assert_eq!(trace.steps[1].other["seconds_per_step_smoothed"], 1.5);
        assert_eq!(trace.steps[2].other["seconds_per_step_smoothed"], 0.4);
        assert_eq!(trace.num_parameters, Some(1_237_911_552));
        for (name, value) in [
            ("trainable_parameters", 2_097_152.0),
            ("epoch_1_time_seconds", 4.25),
            ("average_step_time_seconds", 1.4375),
            ("tokens_per_second_per_gpu", 2048.5),
            ("mfu_ratio", 0.375),
            ("avg_train_loss", 1.75),
            ("avg_epoch_time_seconds", 4.5),
        ] {
            assert_eq!(trace.totals[name], value, "{name}");
        }
        let memory = &trace.memory[0];
        assert_eq!(
            (memory.after_step, memory.figures[0].bytes),
            (Some(2), 20 << 30)
        );
        let evaluations: Vec<_> = trace
            .evaluations
            .iter()
            .map(|e| (e.step, &*e.name, e.value))
            .collect();
        assert_eq!(
            evaluations,
            [
                (Some(2), "train_perplexity", 9.5),
                (Some(2), "train_epoch_loss", 2.25),
                (Some(5), "MMLU5-shots_accuracy", 0.25),
            ]
        );
        assert_eq!(testing::kinds(&trace), ["nan_loss", "missing_steps"]);
        assert!(trace.finished);
    }

    #[test]
    fn older_versions_call_the_first_epoch_0() {
        let log = "Training Epoch: 0/2, step 1/3 completed (loss: 2.5)\nTraining Epoch: 1/2, step 0/3 completed (loss: 2.0)\n";
        assert_eq!(
            parse_any(log.as_bytes())
                .steps
                .iter()
                .map(|s| s.step)
                .collect::<Vec<_>>(),
            [1, 3]
        );
    }

    testing::damaged!("llama-recipes", LOG);
}

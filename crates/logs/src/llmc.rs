//! llm.c: `step 1/9 | loss 11.1 (+nanz)| norm 52.9 (+nanz)| lr 8.5e-07 | 3056.3 ms | 42.6% bf16 MFU
//! | 343080 tok/s` on its output, from 1; and `s:0 trl:11.0 lr:0.000001 norm:15.3` in its main.log,
//! from 0 and without times.
//!
//! `tok/s` is of all GPUs together, and smoothed over earlier steps: never a step's own rate.

use super::{
    Step,
    builder::{Builder, Notes},
    fields::{Field, fill, named},
    format::{Evidence, Reader},
    lines::Line,
    numbers::{after, as_count, count, number, number_after, setting, whole_text_number},
    trace::UNREADABLE_FIELD,
};

/// Fields of a line of its output: the word before the number.
const STDOUT: &[(&str, Field)] = &[
    ("loss ", Field::Loss),
    ("train loss ", Field::Loss),
    ("norm ", Field::GradNorm),
    ("lr ", Field::LearningRate),
];
const MAIN_LOG: &[(&str, Field)] = &[
    ("trl", Field::Loss),
    ("norm", Field::GradNorm),
    ("lr", Field::LearningRate),
];
/// Rows of its table of parameters, and what jobs call them.
const SETTINGS: &[(&str, &str)] = &[
    ("micro batch size B", "micro_batch_size"),
    ("sequence length T", "seq_length"),
    ("num_processes", "num_gpus"),
    ("learning rate (LR)", "learning_rate"),
    ("warmup iterations", "warmup_steps"),
    ("weight decay", "weight_decay"),
    ("num_layers L", "num_layers"),
    ("num_heads NH", "num_attention_heads"),
    ("channels C", "hidden_size"),
    ("vocab_size V", "vocab_size"),
];

pub fn evidence(line: &str) -> Evidence {
    if stdout(line).is_some() || main_log(line).is_some() {
        Evidence::Strong
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct Log {
    /// Tokens of a step over all ranks, once the log says.
    tokens: Option<u64>,
    newest: Option<u64>,
}

impl Reader for Log {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some((step, total, rest)) = stdout(text) {
            if !line.ended && !rest.contains("tok/s") {
                out.notes.add("truncated", || format!("step {step}"));
                return;
            }
            self.newest = Some(step);
            out.set("train_iters", total);
            let step = self.step(step, rest, &mut out.notes);
            out.step(step);
        } else if let Some((step, rest)) = main_log(text) {
            main_log_entry(step, rest, line.ended, out);
        } else if let Some(value) = text
            .trim_start()
            .strip_prefix("val loss ")
            .and_then(whole_text_number)
        {
            // It stands before the line of the step that comes next: it belongs to the weights after
            // the newest one.
            out.evaluated(self.newest, "validation_loss", value);
        } else if let Some(ms) = after(text, "total average iteration time: ").and_then(number) {
            out.total("average_iteration_time_seconds", ms.0 / 1000.0);
            out.trace.finished = true;
        } else {
            self.settings(text, out);
        }
    }
}

impl Log {
    fn step(&self, number: u64, rest: &str, notes: &mut Notes) -> Step {
        let mut step = Step {
            step: number,
            tokens: self.tokens,
            ..Step::default()
        };
        for field in rest.split('|').map(str::trim) {
            let found = STDOUT.iter().find_map(|(word, known)| {
                let (value, _) = super::numbers::number(field.strip_prefix(word)?)?;
                Some((known, value))
            });
            if let Some((known, value)) = found {
                fill(&mut step, known, value, notes);
            } else if let Some(ms) = field.strip_suffix(" ms").and_then(whole_text_number) {
                fill(&mut step, &Field::Time(1e-3), ms, notes);
            } else if let Some((percent, _)) =
                super::numbers::number(field).filter(|(_, unit)| unit.ends_with("MFU"))
            {
                // −100 % where the device's peak is not known.
                if percent >= 0.0 {
                    step.other.insert("mfu_percent".into(), percent);
                }
            } else if let Some(rate) = field.strip_suffix(" tok/s").and_then(whole_text_number)
                && rate.is_finite()
            {
                step.other
                    .insert("tokens_per_second_global_smoothed".into(), rate);
            }
        }
        step
    }

    fn settings(&mut self, text: &str, out: &mut Builder) {
        if let Some((name, value)) = table_row(text) {
            self.parameter(name, value, out);
        } else if let Some(rest) = after(text, "num_parameters: ") {
            out.trace.num_parameters = count(rest)
                .map(|(n, _)| n)
                .filter(|n| *n > 0)
                .or(out.trace.num_parameters);
        } else if let Some(rest) = after(text, "batch_size B=") {
            let sizes = [
                number(rest).map(|(n, _)| n),
                number_after(rest, "seq_len T="),
                number_after(rest, "num_processes="),
                number_after(rest, "total_batch_size="),
            ];
            let names = [
                "micro batch size B",
                "sequence length T",
                "num_processes",
                "total batch size",
            ];
            for (name, value) in names.into_iter().zip(sizes) {
                if let Some(value) = value {
                    self.parameter(name, &value.to_string(), out);
                }
            }
        } else if let Some((steps, _)) = after(text, "=> setting grad_accum_steps=").and_then(count)
        {
            out.set("gradient_accumulation_steps", steps);
        }
    }

    fn parameter(&mut self, name: &str, value: &str, out: &mut Builder) {
        let Some(value) = whole_text_number(value).filter(|v| v.is_finite()) else {
            return;
        };
        let positive = as_count(value).filter(|n| *n > 0);
        match name {
            "num_parameters" => out.trace.num_parameters = positive,
            "total batch size" => self.tokens = positive,
            _ => out.set_named(SETTINGS, name, Some(setting(value))),
        }
        // It counts tokens where the job counts sequences.
        let length = out
            .trace
            .effective
            .0
            .get("seq_length")
            .and_then(serde_json::Value::as_u64)
            .filter(|n| *n > 0);
        if let (Some(tokens), Some(length)) = (self.tokens, length)
            && tokens.is_multiple_of(length)
        {
            out.set("global_batch_size", tokens / length);
        }
    }
}

/// `step N/M | loss … | … tok/s`: N, M, and what follows.
fn stdout(line: &str) -> Option<(u64, u64, &str)> {
    let (step, rest) = count(after(line, "step ")?)?;
    let (total, rest) = count(rest.strip_prefix('/')?)?;
    let rest = rest.trim_start().strip_prefix('|')?;
    let field = rest.trim_start();
    (field.starts_with("loss ") || field.starts_with("train loss ")).then_some((step, total, rest))
}

/// `s:N trl:X …`, `s:N tel:X` or `s:N eval:X`: N and what follows it.
fn main_log(line: &str) -> Option<(u64, &str)> {
    let (step, rest) = count(line.trim_start().strip_prefix("s:")?)?;
    let rest = rest.strip_prefix(' ')?;
    ["trl:", "tel:", "eval:"]
        .iter()
        .any(|key| rest.starts_with(key))
        .then_some((step, rest))
}

fn main_log_entry(number: u64, rest: &str, ended: bool, out: &mut Builder) {
    let mut step = Step {
        step: number,
        ..Step::default()
    };
    let cut_off = || format!("s:{number} {}", super::lines::cut(rest, 80));
    if !ended {
        out.notes.add("truncated", cut_off);
        return;
    }
    let (mut trained, mut any_read, mut any_unreadable) = (false, false, false);
    for (name, value) in rest
        .split_whitespace()
        .filter_map(|field| field.split_once(':'))
    {
        let Some(value) = whole_text_number(value) else {
            any_unreadable = true;
            continue;
        };
        any_read |= ["trl", "tel", "eval"].contains(&name);
        trained |= name == "trl";
        match name {
            "tel" => out.evaluated(Some(number), "validation_loss", value),
            "eval" => out.evaluated(Some(number), "eval_accuracy", value),
            _ => {
                if let Some(field) = named(MAIN_LOG, name) {
                    fill(&mut step, field, value, &mut out.notes);
                }
            }
        }
    }
    if any_unreadable {
        let kind = match any_read {
            true => UNREADABLE_FIELD,
            false => "unreadable_line",
        };
        out.notes.add(kind, cut_off);
    }
    if trained {
        out.step(step);
    }
}

/// `| sequence length T     | 1024      |`
fn table_row(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line
        .trim()
        .strip_prefix('|')?
        .strip_suffix('|')?
        .split_once('|')?;
    Some((name.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, parse, parse_any, testing};

    const STDOUT: &str = "\
+-----------------------+----------------------------------------------------+
| Parameter             | Value                                              |
| learning rate (LR)    | 3.000000e-04                                       |
| warmup iterations     | 7                                                  |
| num_layers L          | 12                                                 |
num_parameters: 124475904 => bytes: 248951808
batch_size B=4 * seq_len T=512 * num_processes=2 and total_batch_size=8192
=> setting grad_accum_steps=2
val loss 11.000500
step    1/40 | loss 11.000000 (+nanz)| norm 20.5000 (+nanz)| lr 4.29e-05 | 500.00 ms | 40.5% bf16 MFU | 16384 tok/s
step    2/40 | loss 10.500000 (+0.12z)| norm 18.2500 (-1.50z)| lr 8.57e-05 | 250.50 ms | 47.4% bf16 MFU | 32000 tok/s
val loss 10.400000
step    3/40 | loss nan (+nanz)| norm nan (+nanz)| lr 1.29e-04 | 251.00 ms | -100.0% fp32 MFU | 32100 tok/s
total average iteration time: 250.750000 ms
";
    const MAIN_LOG: &str = "s:0 tel:11.0090\ns:0 trl:11.0080 lr:0.000001 norm:15.25\ns:1 trl:10.5000 lr:0.000002 norm:14.50\n\
        s:2 eval:0.2500\ns:2 trl:9.7500 lr:0.000003 norm:1.2";

    #[test]
    fn output_with_global_rates_kept_apart() {
        let trace = parse_any(STDOUT.as_bytes());
        assert_eq!(trace.format, "llm.c");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.step_time_seconds, s.loss, s.grad_norm))
            .collect();
        assert_eq!(
            steps,
            [
                (1, Some(0.5), Some(11.0), Some(20.5)),
                (2, Some(0.2505), Some(10.5), Some(18.25)),
                (3, Some(0.251), None, None),
            ]
        );
        assert!(
            trace
                .steps
                .iter()
                .all(|s| s.tokens_per_second_per_gpu.is_none() && s.tokens == Some(8192))
        );
        assert_eq!(trace.steps[1].learning_rate, Some(8.57e-5));
        assert_eq!(
            trace.steps[1].other["tokens_per_second_global_smoothed"],
            32000.0
        );
        assert_eq!(trace.steps[1].other["mfu_percent"], 47.4);
        assert!(!trace.steps[2].other.contains_key("mfu_percent"));
        let settings = &trace.effective.0;
        for (name, value) in [
            ("global_batch_size", 16),
            ("micro_batch_size", 4),
            ("seq_length", 512),
            ("num_gpus", 2),
            ("gradient_accumulation_steps", 2),
            ("warmup_steps", 7),
            ("num_layers", 12),
        ] {
            assert_eq!(settings[name], value, "{name}");
        }
        assert_eq!(settings["learning_rate"], 3e-4);
        assert_eq!(trace.num_parameters, Some(124_475_904));
        let validation: Vec<_> = trace
            .evaluations
            .iter()
            .map(|e| (e.step, e.value))
            .collect();
        assert_eq!(validation, [(None, 11.0005), (Some(2), 10.4)]);
        assert_eq!(testing::kinds(&trace), ["nan_loss", "nan_grad_norm"]);
        assert!(trace.finished);
        assert_eq!(trace.totals["average_iteration_time_seconds"], 0.25075);
    }

    #[test]
    fn main_log_counts_from_0_and_has_no_times() {
        let trace = parse_any(MAIN_LOG.as_bytes());
        assert_eq!(trace.format, "llm.c");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.loss, s.grad_norm))
            .collect();
        assert_eq!(
            steps,
            [(0, Some(11.008), Some(15.25)), (1, Some(10.5), Some(14.5))],
            "the cut-off line is left out"
        );
        assert!(trace.steps.iter().all(|s| s.step_time_seconds.is_none()));
        let evaluations: Vec<_> = trace
            .evaluations
            .iter()
            .map(|e| (e.step, &*e.name, e.value))
            .collect();
        assert_eq!(
            evaluations,
            [
                (Some(0), "validation_loss", 11.009),
                (Some(2), "eval_accuracy", 0.25)
            ]
        );
        assert_eq!(testing::kinds(&trace), ["truncated"]);
    }

    #[test]
    fn a_line_is_lost_only_where_its_loss_is() {
        let read = |entry: &str| {
            let log = format!("s:0 tel:11.0090\ns:0 trl:11.0080 lr:0.000001 norm:15.25\n{entry}\n");
            let trace = parse_any(log.as_bytes());
            (
                testing::kinds(&trace).join(" "),
                trace.unreadable.is_some(),
                trace.steps.len(),
            )
        };
        assert_eq!(
            read("s:1 trl:10.5 lr:? norm:14.5"),
            ("unreadable_field".into(), false, 2)
        );
        assert_eq!(
            read("s:1 trl:? lr:0.000002 norm:14.5"),
            ("unreadable_line".into(), true, 1)
        );
    }

    #[test]
    fn steps_of_other_trainers_are_not_taken() {
        for line in [
            "step 10/100 loss 3.1",
            "step 6 | epoch 0 | loss 1.2",
            "s:0 note",
            "Step 1/9, Loss: 2",
        ] {
            assert_eq!(parse_any(line.as_bytes()).format, "unknown", "{line}");
            assert!(
                parse(&LogSection::named("llm.c"), line.as_bytes())
                    .steps
                    .is_empty()
            );
        }
    }

    testing::damaged!("llm.c", format!("{STDOUT}{MAIN_LOG}"));
}

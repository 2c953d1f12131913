//! The format `automodel`: NeMo Automodel's `step 6 | epoch 0 | loss 1.3 | … | tps
//! 5468.16(2734.08/gpu) | …`.

use super::{
    Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::Line,
    numbers::{GIB, after, as_count, grouped_number},
    values::{Checks, bytes, has},
};

pub fn evidence(line: &str) -> Evidence {
    if fields(line).is_some() {
        Evidence::Strong
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct Automodel {
    started: bool,
}

impl Reader for Automodel {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let Some((at, pairs)) = fields(&line.text) else {
            return;
        };
        if !std::mem::replace(&mut self.started, true) {
            out.latest = true;
        }
        let validation = has(&line.text, "[val]") || has(&line.text, "val_loss ");
        if validation {
            evaluation(at, pairs, out)
        } else {
            step(at, pairs, out)
        }
    }
}

/// The step and the `key value` pairs behind it; ranks that share a line are not known of this
/// trainer.
fn fields(line: &str) -> Option<(u64, impl Iterator<Item = (&str, &str)>)> {
    let text = after(line, "step ")?;
    let (step, text) = grouped_number(text)?;
    let text = text.trim_start().strip_prefix('|')?;
    let own = has(text, "epoch ")
        && has(text, "loss ")
        && (has(text, "num_label_tokens") || has(text, "| tps "));
    let pairs = text
        .split('|')
        .filter_map(|p| p.trim().split_once([' ', ':']))
        .map(|(k, v)| (k, v.trim()));
    Some((as_count(step)?, pairs)).filter(|_| own)
}

fn step<'a>(at: u64, pairs: impl Iterator<Item = (&'a str, &'a str)>, out: &mut Builder) {
    let mut step = Step {
        step: at,
        ..Step::default()
    };
    let mut checks = Checks {
        step: at,
        notes: &mut out.notes,
    };
    for (key, text) in pairs {
        let Some((value, tail)) = grouped_number(text) else {
            continue;
        };
        match key {
            "loss" => step.loss = checks.loss(Some(value)),
            "grad_norm" => step.grad_norm = checks.grad_norm(Some(value)),
            "lr" => step.learning_rate = checks.learning_rate(Some(value)),
            "mem" if tail.trim_start().starts_with("GiB") => {
                step.memory_bytes = bytes(value, GIB);
                if step.memory_bytes.is_some() {
                    (step.memory_kind, step.memory_source) =
                        (Some("peak_allocated".into()), Some("torch".into()));
                }
            }
            // `5468.16(2734.08/gpu)`, or only `2734.08/gpu`; without `/gpu` it is of all GPUs.
            "tps" => {
                let per_gpu = match tail.strip_prefix('(').and_then(grouped_number) {
                    Some((value, tail)) => Some(value).filter(|_| tail.starts_with("/gpu")),
                    None => Some(value).filter(|_| tail.starts_with("/gpu")),
                };
                step.tokens_per_second_per_gpu = checks.positive("tps", per_gpu);
                if !tail.starts_with("/gpu") && value.is_finite() {
                    step.other.insert("tps".into(), value);
                }
            }
            "epoch" => {}
            _ if value.is_finite() && step.other.len() < 16 && key.len() <= 48 => {
                step.other.insert(key.to_owned().into(), value);
            }
            _ => {}
        }
    }
    out.step(step);
}

fn evaluation<'a>(at: u64, pairs: impl Iterator<Item = (&'a str, &'a str)>, out: &mut Builder) {
    for (key, text) in pairs {
        let value = grouped_number(text).map(|(v, _)| v);
        if let Some(value) = value.filter(|_| key == "loss" || key == "val_loss") {
            out.evaluated(Some(at), "validation_loss", value);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LogSection, parse_any};

    const LOG: &str = concat!(
        "2025-09-01 10:00:00 | INFO | root | step 0 | epoch 0 | loss 1.2500 | grad_norm 3.0625 | lr 4.00e-06 | mem 32.00 GiB | tps 400.00(100.00/gpu) | num_label_tokens 4707\n",
        "2025-09-01 10:00:01 | INFO | root | step 1 | epoch 0 | loss nan | grad_norm 2.0 | lr 5.00e-06 | mem: 33.00 GiB | tps 250.50/gpu | num_label_tokens 4800\n",
        "2025-09-01 10:00:02 | INFO | root | [val] default | step 1 | epoch 0 | loss 1.5000 | lr 5.00e-06 | num_label_tokens 900\n",
        "2025-09-01 10:00:03 | INFO | root | step 2 | epoch 0 | loss 1.0 | grad_norm 2.0 | lr 5.00e-06 | mem 33.00 GiB | tps 900.0 | num_label_tokens 4800\n",
    );

    #[test]
    fn metric_lines() {
        let trace = parse_any(LOG.as_bytes());
        assert_eq!(trace.format, "automodel");
        let [first, second, third] = &trace.steps[..] else {
            panic!("{:?}", trace.steps)
        };
        assert_eq!(
            (first.step, first.loss, first.grad_norm, first.learning_rate),
            (0, Some(1.25), Some(3.0625), Some(4e-6))
        );
        assert_eq!(
            (first.tokens_per_second_per_gpu, first.other["tps"]),
            (Some(100.0), 400.0)
        );
        assert_eq!(
            (first.memory_bytes, first.memory_kind.as_deref()),
            (Some(32 << 30), Some("peak_allocated"))
        );
        assert_eq!(
            (first.tokens, first.other["num_label_tokens"]),
            (None, 4707.0)
        );
        assert_eq!(
            (
                second.loss,
                second.tokens_per_second_per_gpu,
                second.memory_bytes
            ),
            (None, Some(250.5), Some(33 << 30))
        );
        assert_eq!(
            (third.tokens_per_second_per_gpu, third.other["tps"]),
            (None, 900.0)
        );
        assert_eq!(
            (trace.evaluations.len(), trace.evaluations[0].value),
            (1, 1.5)
        );
        assert_eq!(trace.anomalies[0].kind, "nan_loss");
    }

    super::super::testing::damaged!("automodel", LOG);
}

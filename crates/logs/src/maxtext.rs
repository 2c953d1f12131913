//! MaxText and MaxDiffusion: `completed step: 3, seconds: 5.4, TFLOP/s/device: 141.5,
//! Tokens/s/device: 9098.1, total_weights: 196608, loss: 11.379`, from 0.
//!
//! Steps are dispatched asynchronously, so the second one can claim a fraction of its time.

use super::{
    MemoryFigure, MemoryReport, Step,
    builder::Builder,
    fields::{Field, fill, named},
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{self, GIB, after, count, number, number_after, stated, whole_text_number},
    values::grouped_after,
};

const FIELDS: &[(&str, Field)] = &[
    ("seconds", Field::Time(1.0)),
    ("TFLOP/s/device", Field::Tflops),
    ("Tokens/s/device", Field::TokensPerGpu),
    ("loss", Field::Loss),
    ("learning_rate", Field::LearningRate),
    ("grad_norm", Field::GradNorm),
];

/// Parameters of its configuration, and what jobs call them.
const SETTINGS: &[(&str, &str)] = &[
    ("max_target_length", "seq_length"),
    ("global_batch_size_to_train_on", "global_batch_size"),
    ("steps", "train_iters"),
    ("emb_dim", "hidden_size"),
    ("mlp_dim", "ffn_hidden_size"),
    ("num_decoder_layers", "num_layers"),
    ("num_query_heads", "num_attention_heads"),
    ("num_kv_heads", "num_kv_heads"),
    ("head_dim", "head_dim"),
    ("vocab_size", "vocab_size"),
    ("dtype", "precision"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping_threshold", "clip_grad"),
    ("opt_type", "optimizer"),
    ("learning_rate", "learning_rate"),
    ("adam_b1", "beta1"),
    ("adam_b2", "beta2"),
    ("adam_eps", "eps"),
    ("adam_weight_decay", "weight_decay"),
    ("rope_max_timescale", "rope_theta"),
    ("normalization_layer_epsilon", "norm_eps"),
    ("init_weights_seed", "seed"),
];

/// A step that claims less than this part of the others' median did not end when it was timed.
const IMPLAUSIBLE: f64 = 0.2;
/// Fields of a line that are kept besides the known ones.
const MAX_OTHER: usize = 24;

pub fn evidence(line: &str) -> Evidence {
    if completed(line).is_some() {
        Evidence::Strong
    } else if line.starts_with("Config param ") {
        Evidence::Weak
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct Log {
    newest: Option<u64>,
}

impl Reader for Log {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some((number, rest)) = completed(text) {
            if !line.ended && number_after(rest, "loss: ").is_none() {
                out.notes.add("truncated", || format!("step {number}"));
                return;
            }
            self.newest = Some(number);
            step(number, rest, line.ended, out);
        } else if let Some((step, rest)) = after(text, "eval metrics after step: ").and_then(count)
        {
            if let Some(value) = grouped_after(rest, "loss=") {
                out.evaluated(Some(step), "validation_loss", value);
            }
        } else if let Some((name, value)) =
            after(text, "Config param ").and_then(|rest| rest.split_once(": "))
        {
            out.set_named(SETTINGS, name.trim(), stated(value));
        } else if let Some(rest) = after(text, "number parameters: ") {
            // Three decimals of a billion: too coarse to be the count itself.
            if let Some((billions, " billion")) = number(rest) {
                out.total("number_of_parameters_billion", billions);
            }
        } else if let Some(rest) = after(text, "Using (GB) ") {
            self.memory(rest, out);
        }
    }

    fn end(&mut self, out: &mut Builder) {
        let mut times: Vec<f64> = out
            .trace
            .steps
            .iter()
            .filter_map(|s| s.step_time_seconds)
            .collect();
        if times.len() < 4 {
            return;
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        for step in &mut out.trace.steps {
            let Some(time) = step.step_time_seconds.filter(|t| *t < IMPLAUSIBLE * median) else {
                continue;
            };
            let rate = step
                .tflops_per_gpu
                .map(|r| format!(" and {r} TFLOP/s"))
                .unwrap_or_default();
            let number = step.step;
            out.notes.add_at(number, "implausible_step_time", || {
                format!("{time} s{rate}, the median is {median} s")
            });
            (
                step.step_time_seconds,
                step.tflops_per_gpu,
                step.tokens_per_second_per_gpu,
            ) = (None, None, None);
        }
    }
}

impl Log {
    /// `44.63 / 95.74 (46.6%) on TPU_0(…)`; its GB are GiB.
    fn memory(&self, rest: &str, out: &mut Builder) {
        let Some((used, tail)) = number(rest) else {
            return;
        };
        let total = tail
            .trim_start()
            .strip_prefix('/')
            .and_then(number)
            .map(|(total, _)| total);
        let device = after(tail, ") on ")
            .and_then(|d| d.split('(').next())
            .and_then(|d| d.rsplit('_').next());
        let figure = |kind: &'static str, gib: f64| {
            Some(MemoryFigure {
                kind: kind.into(),
                source: "jax".into(),
                bytes: numbers::bytes(gib, GIB)?,
            })
        };
        let figures: Vec<_> = [
            figure("allocated", used),
            total.and_then(|t| figure("device_total", t)),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !figures.is_empty() {
            let rank = device.and_then(|d| d.parse().ok());
            out.memory(MemoryReport {
                rank,
                after_step: self.newest,
                figures,
            });
        }
    }
}

/// `completed step: N, seconds: …`: N and what follows it.
fn completed(line: &str) -> Option<(u64, &str)> {
    let (step, rest) = count(after(line, "completed step: ")?)?;
    rest.starts_with(", seconds: ").then_some((step, rest))
}

fn step(number: u64, rest: &str, ended: bool, out: &mut Builder) {
    let mut step = Step {
        step: number,
        ..Step::default()
    };
    let mut fields = rest.split(", ").filter(|f| !f.is_empty()).peekable();
    while let Some(field) = fields.next() {
        // The last field of a line that was cut off may lack digits.
        if fields.peek().is_none() && !ended {
            break;
        }
        let Some((name, value)) = field.split_once(": ") else {
            continue;
        };
        let Some(value) = whole_text_number(value) else {
            continue;
        };
        if let Some(field) = named(FIELDS, name) {
            fill(&mut step, field, value, &mut out.notes);
        } else if value.is_finite() && step.other.len() < MAX_OTHER {
            let name = name
                .replace("/s/device", "_per_second_per_device")
                .to_lowercase();
            step.other.insert(cut(&name, 64).into(), value);
        }
    }
    out.step(step);
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, parse, parse_any, testing};

    const LOG: &str = "Config param max_target_length: 4096\nConfig param dtype: bfloat16\nConfig param adam_b1: 0.9\n\
        number parameters: 1.235 billion\nMemstats: After params initialized:\n\
        \tUsing (GB) 10.5 / 95.75 (10.97%) on TPU_0(process=0,(0,0,0,0))\n\
        completed step: 0, seconds: 30.500, TFLOP/s/device: 20.000, Tokens/s/device: 537.100, total_weights: 65536, loss: 12.000\n\
        completed step: 1, seconds: 0.250, TFLOP/s/device: 2440.000, Tokens/s/device: 65536.000, total_weights: 65536, loss: 12.000\n\
        completed step: 2, seconds: 4.000, TFLOP/s/device: 152.500, Tokens/s/device: 4096.000, total_weights: 65536, loss: 11.500\n\
        completed step: 3, seconds: 4.100, TFLOP/s/device: 148.800, Tokens/s/device: 3996.100, total_weights: 65536, loss: nan\n\
        eval metrics after step: 3, loss=11.250, total_weights=65536\n\
        completed step: 4, seconds: 4.050, TFLOP/s/device: 150.600, loss: 11.125\n";

    #[test]
    fn a_step_that_was_timed_too_early_has_no_time() {
        let trace = parse_any(LOG.as_bytes());
        assert_eq!(trace.format, "maxtext");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.step_time_seconds, s.tflops_per_gpu, s.loss))
            .collect();
        assert_eq!(
            steps,
            [
                (0, Some(30.5), Some(20.0), Some(12.0)),
                (1, None, None, Some(12.0)),
                (2, Some(4.0), Some(152.5), Some(11.5)),
                (3, Some(4.1), Some(148.8), None),
                (4, Some(4.05), Some(150.6), Some(11.125)),
            ]
        );
        assert_eq!(
            testing::kinds(&trace),
            ["nan_loss", "implausible_step_time"]
        );
        assert!(
            trace.anomalies[1]
                .detail
                .contains("step 1: 0.25 s and 2440 TFLOP/s")
        );
        assert_eq!(trace.steps[2].tokens_per_second_per_gpu, Some(4096.0));
        assert_eq!(trace.steps[2].other["total_weights"], 65536.0);
        assert_eq!(
            (trace.evaluations[0].step, trace.evaluations[0].value),
            (Some(3), 11.25)
        );
        assert_eq!(trace.effective.0["seq_length"], 4096);
        assert_eq!(trace.effective.0["precision"], "bfloat16");
        assert_eq!(trace.num_parameters, None);
        assert_eq!(
            (trace.memory[0].rank, trace.memory[0].figures[0].bytes),
            (Some(0), 10_752 << 20)
        );
    }

    #[test]
    fn maxdiffusion_says_the_same_step_twice() {
        let log = "completed step: 7, seconds: 9.500, TFLOP/s/device: 300.500, loss: 1.5\n\
            completed step: 7, seconds: 9.510, TFLOP/s/device: 300.200, Tokens/s/device: 6000.5, Samples/s/device: 0.085, Frames/s/device: 7.25, loss: 1.5\n";
        let trace = parse_any(log.as_bytes());
        assert_eq!(
            (trace.steps.len(), trace.step_lines, testing::kinds(&trace)),
            (1, 2, vec!["missing_steps"])
        );
        let step = &trace.steps[0];
        assert_eq!(
            (step.step_time_seconds, step.tokens_per_second_per_gpu),
            (Some(9.5), Some(6000.5))
        );
        assert_eq!(step.other["samples_per_second_per_device"], 0.085);
    }

    #[test]
    fn a_cut_off_field_is_left_out() {
        let log =
            b"completed step: 7, seconds: 9.500, TFLOP/s/device: 300.500, lm_loss: 1.5, loss: 1";
        let trace = parse(&LogSection::named("maxtext"), log);
        assert_eq!(
            (trace.steps[0].step_time_seconds, trace.steps[0].loss),
            (Some(9.5), None)
        );
    }

    testing::damaged!("maxtext", LOG);
}

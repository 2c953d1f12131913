//! The format `torchtitan`: its metric lines of all versions, behind any prefix, and those of Meta
//! Lingua.

use std::collections::BTreeMap;
use tprimat_words::part;

use super::{
    MemoryFigure, Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::Line,
    numbers::{GIB, after, as_count, grouped_number},
    titan_settings::Settings,
    values::{Checks, bytes, grouped_after, has, word_after},
};

pub fn evidence(line: &str) -> Evidence {
    if has(line, "step:") && steps(line).next().is_some() {
        return Evidence::Strong;
    }
    let says_so = [
        "[titan]",
        "TorchTitan Config",
        "Trainer is initialized with local batch size",
    ];
    if says_so.iter().any(|s| has(line, s)) {
        Evidence::Weak
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct Torchtitan {
    settings: Settings,
    started: bool,
}

impl Reader for Torchtitan {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if has(text, "step:") {
            let mut found = false;
            for (validation, segment) in steps(text) {
                found = true;
                if !self.started {
                    self.started = true;
                    (out.averages, out.latest) = (true, true);
                    self.settings.settle(out);
                }
                if validation {
                    evaluation(segment, out)
                } else {
                    step(segment, out)
                }
            }
            if found {
                return;
            }
        }
        if has(text, "Training completed") {
            out.trace.finished = true;
        }
        if !self.started {
            self.settings.line(text, out);
        }
    }

    fn end(&mut self, out: &mut Builder) {
        self.settings.settle(out);
    }
}

/// The parts of a line that each state a step (ranks may share a line), and whether it is a
/// validation's.
fn steps(line: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + memchr::memmem::find(&line.as_bytes()[at..], b"step:")?;
            let end = memchr::memmem::find(&line.as_bytes()[start + 5..], b"step:")
                .map_or(line.len(), |n| start + 5 + n);
            at = end;
            let (before, segment) = (part(line, ..start), part(line, start..end));
            let measured = ["tps:", "wps:", "memory:"]
                .iter()
                .any(|key| has(segment, key));
            let own_word = before.is_empty() || before.ends_with([' ', ':', ']']);
            if own_word
                && measured
                && has(segment, "loss:")
                && grouped_number(part(segment, 5..)).is_some()
            {
                return Some((before.ends_with("validate "), segment));
            }
        }
    })
}

fn step(segment: &str, out: &mut Builder) {
    let Some(at) = grouped_after(segment, "step:").and_then(as_count) else {
        return;
    };
    let lingua = has(segment, "wps:") && has(segment, "iter:");
    let mut checks = Checks {
        step: at,
        notes: &mut out.notes,
    };
    let stated = grouped_after(segment, "loss:");
    // Stages of a pipeline that do not hold the loss print -1.
    let loss = if stated == Some(-1.0) {
        checks
            .notes
            .add_at(at, "loss_not_visible", || "loss is -1".to_owned());
        None
    } else {
        checks.loss(stated)
    };
    let mut step = Step {
        step: at,
        loss,
        grad_norm: checks.grad_norm(
            grouped_after(segment, "grad_norm:").or_else(|| grouped_after(segment, " grad:")),
        ),
        learning_rate: checks.learning_rate(grouped_after(segment, " lr:")),
        tokens_per_second_per_gpu: checks.positive(
            "tps",
            grouped_after(segment, " tps:").or_else(|| grouped_after(segment, "wps:")),
        ),
        tflops_per_gpu: checks.positive("tflops", grouped_after(segment, "tflops:")),
        ..Step::default()
    };
    if lingua {
        step.step_time_seconds = checks.seconds("iter", grouped_after(segment, "iter:"));
        step.tflops_per_gpu = checks
            .positive("flops", grouped_after(segment, " flops:"))
            .map(|v| v / 1e12);
    }
    if let Some((figure, unit)) = after(segment, "memory:").and_then(grouped_number)
        && unit.starts_with("GiB")
        && let Some(bytes) = bytes(figure, GIB)
    {
        step.memory_bytes = Some(bytes);
        (step.memory_kind, step.memory_source) =
            (Some("peak_reserved".into()), Some("torch".into()));
    }
    let mut other = BTreeMap::new();
    for (key, name, unit) in [
        ("mfu:", "mfu_percent", "%"),
        (" data:", "data_time_seconds", ""),
        (" mem:", "memory_percent", "%"),
        (" pow:", "power_watts", ""),
        (" acc:", "accumulation_step", ""),
    ] {
        if let Some((value, tail)) = after(segment, key).and_then(grouped_number)
            && value.is_finite()
            && tail.starts_with(unit)
        {
            other.insert(name.into(), value);
        }
    }
    step.other = other;
    out.step(step);
}

fn evaluation(segment: &str, out: &mut Builder) {
    // A pipeline stage that does not compute the loss prints −1.
    let value = grouped_after(segment, "loss:").filter(|v| v.is_nan() || *v >= 0.0);
    let (Some(step), Some(value)) = (grouped_after(segment, "step:").and_then(as_count), value)
    else {
        return;
    };
    // Every rank prints it.
    let last = out.trace.evaluations.last();
    if last.is_none_or(|last| (last.step, last.value) != (Some(step), value)) {
        out.evaluated(Some(step), "validation_loss", value);
    }
}

/// `CUDA memory usage for model: 3.76GiB(1.96%)`, before the first step.
pub fn model_memory(line: &str) -> Option<MemoryFigure> {
    let (figure, unit) = grouped_number(after(line, "memory usage for model:")?)?;
    let bytes = bytes(figure, GIB).filter(|_| unit.starts_with("GiB"))?;
    Some(MemoryFigure {
        kind: "peak_reserved".into(),
        source: "torch".into(),
        bytes,
    })
}

/// The rank of a loguru prefix (`[rank-1/8]`), a launcher's (`[rank0]:`) or srun's (`3: `).
pub fn rank(line: &str) -> Option<u64> {
    let bracketed =
        word_after(line, "[rank").and_then(|w| grouped_number(w.trim_start_matches('-')));
    bracketed
        .or_else(|| grouped_number(line).filter(|(_, tail)| tail.starts_with(": ")))
        .and_then(|(n, _)| as_count(n))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{LogSection, Trace, parse_any, testing::all_kinds};

    fn parse(log: &str) -> Trace {
        super::super::parse(&LogSection::named("torchtitan"), log.as_bytes())
    }

    /// Colours, an incomplete set of metrics and a validation, as versions of three years print
    /// them.
    const LOG: &str = concat!(
        "[rank0]:[titan] 2025-05-01 10:00:00,001 - root - INFO - CUDA memory usage for model: 2.50GiB(3.12%)\n",
        "[rank0]:[titan] 2025-05-01 10:00:01,001 - root - INFO - Training starts at step 1.\n",
        "[rank0]:[titan] 2025-05-01 10:00:09,001 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 11.7500  ",
        "\x1b[38;2;180;60;0mgrad_norm:  3.2500  \x1b[33mmemory: 40.00GiB(50.00%)  \x1b[34mtps: 1,024  \x1b[36mtflops: 60.50  ",
        "\x1b[35mmfu: 6.12%\x1b[39m\n",
        "[rank0]:[titan] x - INFO - step: 10  loss:  nan  grad_norm:  inf  memory: 44.00GiB(55.00%)  tps: 12,345  tflops: 1,001.25  mfu: N/A\n",
        "[rank0]:[titan] x - INFO - validate step: 10  loss:  9.5000  memory: 44.00GiB(55.00%)  tps: 20,000\n",
        "2: 2024-09-01 - root - INFO - step: 20  loss:  8.0000  memory: 44.00GiB(55.00%)  wps: 12,000  mfu: 31.50%\n",
        "3: 2024-09-01 - root - INFO - step: 20  loss:  8.0000  memory: 45.00GiB(56.25%)  wps: 12,001  mfu: 31.50%\n",
        "[titan] step: 30  loss: -1.0000  memory: 44.00GiB(55.00%)  tps: 12,000  tflops: 1.00  mfu: 1.00%",
        "[rank1]:step: 30  loss: 7.5000  memory: 44.00GiB(55.00%)  tps: 12,000  tflops: 1.00  mfu: 1.00%\n",
        "[titan] 2025-05-01 - INFO - Training completed\n",
    );

    #[test]
    fn metric_lines_of_all_versions() {
        let trace = parse(LOG);
        assert_eq!(
            trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
            [1, 10, 20, 30]
        );
        let first = &trace.steps[0];
        assert_eq!(
            (first.loss, first.grad_norm, first.step_time_seconds),
            (Some(11.75), Some(3.25), None)
        );
        assert_eq!(
            (first.tokens_per_second_per_gpu, first.tflops_per_gpu),
            (Some(1024.0), Some(60.5))
        );
        assert_eq!(
            (first.memory_bytes, first.memory_kind.as_deref()),
            (Some(40 << 30), Some("peak_reserved"))
        );
        assert_eq!(first.other["mfu_percent"], 6.12);
        let second = &trace.steps[1];
        assert_eq!(
            (second.loss, second.grad_norm, second.other.len()),
            (None, None, 0)
        );
        assert_eq!(
            (second.tflops_per_gpu, second.steps_averaged),
            (Some(1001.25), Some(9))
        );
        assert_eq!(
            (
                trace.steps[2].tokens_per_second_per_gpu,
                trace.steps[2].memory_bytes
            ),
            (Some(12001.0), Some(45 << 30))
        );
        assert_eq!((trace.steps[3].loss, trace.step_lines), (Some(7.5), 6));
        assert_eq!(
            (trace.evaluations[0].value, trace.evaluations.len()),
            (9.5, 1)
        );
        assert_eq!(
            all_kinds(&trace),
            ["nan_loss", "nan_grad_norm", "loss_not_visible"]
        );
        assert!(trace.finished);
        assert_eq!(trace.memory[0].figures[0].bytes, 5 << 29);
    }

    #[test]
    fn lingua_prints_relatives() {
        let log = "1: INFO    24-10-19 18:00:00 - 0:00:49 - step: 1  acc: 0  loss: 12.0  grad: 1.25e+01  flops: 2.50e+14  \
                   wps: 2.00e+04  iter:  0.5  data: 0.25  lr: 6.00e-07  mem: 50%  pow: 400.5 W\n";
        let trace = parse_any(log.as_bytes());
        let step = &trace.steps[0];
        assert_eq!(
            (
                trace.format.as_str(),
                step.step_time_seconds,
                step.grad_norm
            ),
            ("torchtitan", Some(0.5), Some(12.5))
        );
        assert_eq!(
            (step.tokens_per_second_per_gpu, step.tflops_per_gpu),
            (Some(2e4), Some(250.0))
        );
        assert_eq!((step.learning_rate, step.memory_bytes), (Some(6e-7), None));
        let other: Vec<_> = step.other.iter().map(|(k, v)| (k.as_ref(), *v)).collect();
        let expected = [
            ("accumulation_step", 0.0),
            ("data_time_seconds", 0.25),
            ("memory_percent", 50.0),
            ("power_watts", 400.5),
        ];
        assert_eq!(other, expected);
    }

    #[test]
    fn other_logs_are_not_claimed() {
        for line in [
            "step: 4",
            "global_step: 4 loss: 2 memory: 3GiB",
            "step: x loss: 1 tps: 2",
            "iter step: 3, loss: 2",
        ] {
            assert_eq!(parse_any(line.as_bytes()).format, "unknown", "{line}");
        }
    }

    super::super::testing::damaged!("torchtitan", LOG);

    proptest! {
        #[test]
        fn noise_between_the_lines_changes_nothing(noise in proptest::collection::vec("[ -~é]{0,60}", 8)) {
            let mut noisy = String::new();
            for (line, noise) in LOG.lines().zip(noise.iter().cycle()) {
                noisy.push_str(&format!("{noise}\n[20250501 10:00:00][rank-1/8][INFO ] {line}\r\n"));
            }
            prop_assert_eq!(parse(&noisy).steps, parse(LOG).steps);
        }
    }
}

//! Composer and llm-foundry: a record of several lines, `[epoch=1][batch=5/5]:` and then `Train
//! key: value`.
//!
//! Throughput is a mean over a window of batches and printed with four decimals, so no step time is
//! made of it.

use super::{
    MemoryFigure, Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{after, as_count, bytes, count, finite, whole_text_number},
    values::Checks,
};
use tprimat_words::part;

/// Metrics of a record that are kept besides the known ones.
const MAX_OTHER: usize = 24;

pub fn evidence(line: &str) -> Evidence {
    match metric(line) {
        Some(("Train", name, _))
            if ["time/", "throughput/", "loss/train/", "trainer/"]
                .iter()
                .any(|p| name.starts_with(p)) =>
        {
            Evidence::Strong
        }
        Some(_) => Evidence::Weak,
        None => Evidence::None,
    }
}

#[derive(Default)]
pub struct Log {
    record: Option<Record>,
    /// Batches and sequences before some earlier record.
    before: Option<(u64, u64)>,
    newest: Option<u64>,
}

#[derive(Default)]
struct Record {
    epoch: Option<u64>,
    batch: Option<(u64, Option<u64>)>,
    /// `time/batch` and `time/sample`: what was done before this batch.
    batches_before: Option<u64>,
    samples_before: Option<u64>,
    step: Step,
    filled: bool,
}

impl Reader for Log {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some(record) = header(text) {
            self.flush(out);
            self.record = Some(record);
        } else if let Some((kind, name, value)) = metric(text) {
            if !line.ended {
                out.notes.add("truncated", || cut(text, 120));
            } else if kind == "Train" {
                self.train(name, value, out);
            } else if name.starts_with("metrics/") || name.starts_with("loss/") {
                out.evaluated(self.newest, cut(name, 120), value);
            }
        } else if text.contains("[Eval batch=") {
            // What follows is the evaluation's.
            self.flush(out);
        }
    }

    fn end(&mut self, out: &mut Builder) {
        self.flush(out);
    }
}

impl Log {
    fn train(&mut self, name: &str, value: f64, out: &mut Builder) {
        // A log that was cut at its beginning starts inside of a record.
        let record = self.record.get_or_insert_default();
        record.filled = true;
        let step = &mut record.step;
        let number = record.batch.map_or(0, |(batch, _)| batch);
        let mut checks = Checks {
            step: number,
            notes: &mut out.notes,
        };
        match name {
            "time/batch" => record.batches_before = as_count(value),
            "time/sample" => record.samples_before = as_count(value),
            "loss/train/total" => step.loss = finite(value, "nan_loss", number, &mut out.notes),
            "l2_norm/grad/global" => {
                step.grad_norm = finite(value, "nan_grad_norm", number, &mut out.notes)
            }
            "throughput/device/tokens_per_sec" => {
                step.tokens_per_second_per_gpu = checks.positive(name, Some(value))
            }
            "throughput/device/flops_per_sec" => {
                step.tflops_per_gpu = checks.positive(name, Some(value / 1e12))
            }
            "trainer/device_train_microbatch_size" => {
                if let Some(size) = as_count(value).filter(|n| *n > 0) {
                    out.set("micro_batch_size", size);
                }
            }
            // Four decimals: a rate below 0.00005 is printed as 0, which it is not.
            _ if name.starts_with("lr-") => {
                step.learning_rate = checks.learning_rate(Some(value)).filter(|v| *v > 0.0)
            }
            _ if name.starts_with("memory/") => memory(name, value, step),
            _ => {}
        }
        let counted = matches!(name, "time/batch" | "time/sample" | "time/token");
        let kept = counted
            || ["metrics/", "throughput/", "loss/"]
                .iter()
                .any(|prefix| name.starts_with(prefix));
        if kept && name != "loss/train/total" && value.is_finite() && step.other.len() < MAX_OTHER {
            let name = match name {
                "throughput/tokens_per_sec" => "tokens_per_second_global",
                "throughput/samples_per_sec" => "samples_per_second_global",
                "throughput/batches_per_sec" => "batches_per_second",
                "throughput/device/tokens_per_sec" | "throughput/device/flops_per_sec" => return,
                _ => name,
            };
            step.other.insert(cut(name, 96).into(), value);
        }
    }

    fn flush(&mut self, out: &mut Builder) {
        let Some(record) = self.record.take().filter(|r| r.filled) else {
            return;
        };
        let header = match (record.epoch, record.batch) {
            (None | Some(1), Some((batch, _))) => Some(batch),
            (Some(epoch), Some((batch, Some(all)))) => (epoch - 1)
                .checked_mul(all)
                .and_then(|n| n.checked_add(batch)),
            _ => None,
        };
        let Some(number) = record.batches_before.map(|n| n + 1).or(header) else {
            out.notes.add("unreadable_line", || {
                "a record without its batch".to_owned()
            });
            return;
        };
        let mut step = Step {
            step: number,
            ..record.step
        };
        if let (Some(batches), Some(samples)) = (record.batches_before, record.samples_before) {
            // All batches before this one were as large as their mean says, where it comes out
            // even.
            let (b0, s0) = self
                .before
                .filter(|(b, s)| *b < batches && *s <= samples)
                .unwrap_or((0, 0));
            let (batches_since, samples_since) = (batches - b0, samples - s0);
            if batches_since > 0 && samples_since > 0 && samples_since.is_multiple_of(batches_since)
            {
                step.global_batch_size = Some(samples_since / batches_since);
            }
            self.before = Some((batches, samples));
        }
        self.newest = Some(number);
        // The number behind the slash is of the epoch where one is printed, else of the whole
        // training. A batch is one optimiser step, in however many micro-batches.
        if let (None, Some((batch, Some(all)))) = (record.epoch, record.batch)
            && batch == number
            && batch <= all
        {
            out.set("train_iters", all);
        }
        out.step(step);
    }
}

/// `memory/peak_allocated_mem: 51.2`, in units of 10⁹ bytes.
fn memory(name: &str, value: f64, step: &mut Step) {
    let kind = match name {
        "memory/peak_allocated_mem" => "peak_allocated",
        "memory/peak_reserved_mem" => "peak_reserved",
        "memory/current_allocated_mem" => "allocated",
        "memory/current_reserved_mem" => "reserved",
        _ => return,
    };
    let Some(bytes) = bytes(value, 1e9).filter(|n| *n > 0) else {
        return;
    };
    if kind == "peak_allocated" || (kind == "peak_reserved" && step.memory_bytes.is_none()) {
        (step.memory_bytes, step.memory_kind, step.memory_source) =
            (Some(bytes), Some(kind.into()), Some("torch".into()));
    }
    step.memory_figures.push(MemoryFigure {
        kind: kind.into(),
        source: "torch".into(),
        bytes,
    });
}

/// `[epoch=1][batch=5/5]:`, `[batch=100/4800]:` or, where training is measured otherwise,
/// `[token=…/…]:`.
fn header(line: &str) -> Option<Record> {
    let start = ["[epoch=", "[batch=", "[token=", "[sample="]
        .iter()
        .filter_map(|key| line.find(key))
        .min()?;
    let line = part(line, start..).trim_end();
    if !line.trim_end_matches(':').ends_with(']') {
        return None;
    }
    let batch = after(line, "[batch=").and_then(count).map(|(batch, rest)| {
        (
            batch,
            rest.strip_prefix('/').and_then(count).map(|(all, _)| all),
        )
    });
    let epoch = after(line, "[epoch=")
        .and_then(count)
        .map(|(epoch, _)| epoch)
        .filter(|n| *n > 0);
    Some(Record {
        epoch,
        batch,
        ..Record::default()
    })
}

/// `Train key: value` or `Eval key: value`, the key with a slash in it.
fn metric(line: &str) -> Option<(&'static str, &str, f64)> {
    let line = line.trim();
    ["Train", "Eval"].into_iter().find_map(|kind| {
        let at = line.find(kind)?;
        let (name, value) = part(line, at + kind.len()..)
            .strip_prefix(' ')?
            .rsplit_once(": ")?;
        let is_key = name.contains('/') && !name.contains(char::is_whitespace);
        Some((kind, name, whole_text_number(value).filter(|_| is_key)?))
    })
}

#[cfg(test)]
mod tests {
    use crate::{LogSection, parse, parse_any, testing};

    const LOG: &str = "\
[epoch=1][batch=1/3]:
\t Train time/batch: 0
\t Train time/sample: 0
\t Train trainer/device_train_microbatch_size: 4
\t Train loss/train/total: 10.5000
\t Train lr-DecoupledAdamW/group0: 0.0000
[epoch=1][batch=2/3]:
\t Train time/batch: 1
\t Train time/sample: 256
\t Train time/token: 524288
\t Train memory/peak_allocated_mem: 40.5000
\t Train memory/peak_reserved_mem: 44.0000
\t Train loss/train/total: 10.2500
\t Train metrics/train/LanguagePerplexity: 28282.5000
\t Train throughput/batches_per_sec: 0.1250
\t Train throughput/tokens_per_sec: 65536.0000
\t Train throughput/device/tokens_per_sec: 8192.0000
\t Train throughput/device/flops_per_sec: 125000000000000.0000
\t Train lr-DecoupledAdamW/group0: 0.0006
[Eval batch=1/1] Eval on eval data:
\t Eval metrics/eval/LanguageCrossEntropy: 9.7500
[epoch=2][batch=1/3]:
\t Train loss/train/total: nan
";

    #[test]
    fn one_step_a_record() {
        let trace = parse_any(LOG.as_bytes());
        assert_eq!(trace.format, "composer");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.loss, s.learning_rate, s.global_batch_size))
            .collect();
        assert_eq!(
            steps,
            [
                (1, Some(10.5), None, None),
                (2, Some(10.25), Some(0.0006), Some(256)),
                (4, None, None, None)
            ]
        );
        let second = &trace.steps[1];
        assert_eq!(
            (second.tokens_per_second_per_gpu, second.tflops_per_gpu),
            (Some(8192.0), Some(125.0))
        );
        assert_eq!(second.other["tokens_per_second_global"], 65536.0);
        assert_eq!(second.other["time/token"], 524_288.0);
        assert_eq!(
            (second.memory_bytes, second.memory_kind.as_deref()),
            (Some(40_500_000_000), Some("peak_allocated"))
        );
        assert_eq!(
            second.step_time_seconds, None,
            "a rounded mean over a window is no step's time"
        );
        assert_eq!(trace.effective.0["micro_batch_size"], 4);
        let evaluation = &trace.evaluations[0];
        assert_eq!(
            (evaluation.step, &*evaluation.name, evaluation.value),
            (Some(2), "metrics/eval/LanguageCrossEntropy", 9.75)
        );
        assert_eq!(testing::kinds(&trace), ["nan_loss", "missing_steps"]);
    }

    #[test]
    fn batches_are_the_run_s_unless_they_are_an_epoch_s() {
        let record = |head: &str, before: u64| {
            format!("[{head}]:\n\t Train time/batch: {before}\n\t Train loss/train/total: 2.5000\n")
        };
        let asked = |log: String| {
            parse_any(log.as_bytes())
                .effective
                .0
                .get("train_iters")
                .and_then(|n| n.as_u64())
        };
        assert_eq!(
            asked(record("batch=3/4800", 2) + &record("batch=4/4800", 3)),
            Some(4800)
        );
        assert_eq!(
            asked(record("epoch=1][batch=3/4800", 2)),
            None,
            "there may be more epochs"
        );
        assert_eq!(asked(record("batch=3", 2)), None);
        assert_eq!(asked(record("token=96/4800", 2)), None);
        assert_eq!(
            asked(record("batch=3/4800", 9)),
            None,
            "another batch than its own metrics say"
        );
    }

    #[test]
    fn other_prose_is_no_record() {
        for line in [
            "Train loss: 3",
            "Training time/x: 3",
            "[batch=3] done",
            "Train a b/c: 3",
        ] {
            assert_eq!(parse_any(line.as_bytes()).format, "unknown", "{line}");
            assert!(
                parse(&LogSection::named("composer"), line.as_bytes())
                    .steps
                    .is_empty()
            );
        }
    }

    testing::damaged!("composer", LOG);
}

//! Composer and llm-foundry: a record of several lines, `[epoch=1][batch=5/5]:` and then `Train
//! key: value`. formats.toml has the keys.

use super::{
    builder::Builder,
    engine::Engine,
    format::{Reader, shipped},
    lines::{Line, cut},
    numbers::{after, as_count, count, whole_text_number},
};
use tprimat_base::words::part;

/// Lines of a record that are kept.
const MAX_VALUES: usize = 256;

pub struct Log {
    table: Engine,
    record: Option<Record>,
    /// Batches and sequences before some earlier record.
    before: Option<(u64, u64)>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            table: Engine::new(shipped("composer")),
            record: None,
            before: None,
        }
    }
}

#[derive(Default)]
struct Record {
    epoch: Option<u64>,
    batch: Option<(u64, Option<u64>)>,
    values: Vec<(String, String)>,
}

impl Record {
    fn count(&self, name: &str) -> Option<u64> {
        let (_, text) = self.values.iter().find(|(known, _)| known == name)?;
        as_count(whole_text_number(text)?)
    }
}

impl Reader for Log {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let text = &*line.text;
        if let Some(record) = header(text) {
            self.flush(out);
            self.record = Some(record);
        } else if let Some((name, value)) = trained(text) {
            if !line.ended {
                out.notes.add("truncated", || cut(text, 120));
                return;
            }
            // A log that was cut at its beginning starts inside of a record.
            let values = &mut self.record.get_or_insert_default().values;
            if values.len() < MAX_VALUES {
                values.push((name.to_owned(), value.to_owned()));
            }
        } else if text.contains("[Eval batch=") {
            // What follows is the evaluation's.
            self.flush(out);
        } else {
            self.table.line(line, out);
        }
    }

    fn settle(&mut self, out: &mut Builder) {
        self.flush(out);
    }

    fn end(&mut self, out: &mut Builder) {
        self.flush(out);
    }
}

impl Log {
    fn flush(&mut self, out: &mut Builder) {
        let Some(record) = self.record.take().filter(|r| !r.values.is_empty()) else {
            return;
        };
        let batches_before = record.count("time/batch");
        let samples_before = record.count("time/sample");
        let header = match (record.epoch, record.batch) {
            (None | Some(1), Some((batch, _))) => Some(batch),
            (Some(epoch), Some((batch, Some(all)))) => (epoch - 1)
                .checked_mul(all)
                .and_then(|n| n.checked_add(batch)),
            _ => None,
        };
        let Some(number) = batches_before.map(|n| n + 1).or(header) else {
            out.notes.add("unreadable_line", || {
                "a record without its batch".to_owned()
            });
            return;
        };
        let values = record.values.iter();
        let values = values.map(|(name, value)| (name.as_str(), value.as_str()));
        let mut step = self.table.named_step(number, values, out);
        if let (Some(batches), Some(samples)) = (batches_before, samples_before) {
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

/// `Train key: value`, the key with a slash in it.
fn trained(line: &str) -> Option<(&str, &str)> {
    let (name, value) = after(line.trim(), "Train ")?.rsplit_once(": ")?;
    let is_key = name.contains('/') && !name.contains(char::is_whitespace);
    whole_text_number(value).filter(|_| is_key)?;
    Some((name, value))
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

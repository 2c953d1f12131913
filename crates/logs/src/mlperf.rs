//! MLPerf's compliance log: JSON behind `:::MLLOG`, between whatever else the trainer prints.
//!
//! It counts sequences, not steps: `step` of tracked_stats and `samples_count` are samples. A
//! step's number is its samples divided by the global batch size where the log states one, else its
//! place in the log.

use std::sync::LazyLock;
use tprimat_base::words::part;

use memchr::memmem::Finder;
use serde_json::{Map, Value};

use super::{
    Evaluation, Failure, FailureClass, Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::{Line, cut},
    numbers::{after, finite, setting},
    tprimat::{leading_object, number_of, whole},
    values::{Checks, settings_of},
};

const MARK: &str = ":::MLLOG ";
/// Figures of tracked_stats that are kept besides the known ones.
const MAX_OTHER: usize = 24;

/// May the line hold an entry? Cheap, for logs of other trainers.
pub fn may_be_entry(line: &str) -> bool {
    static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARK));
    FINDER.find(line.as_bytes()).is_some()
}

pub fn evidence(line: &str) -> Evidence {
    let entry = after(line, MARK).is_some_and(|rest| rest.trim_start().starts_with('{'));
    Evidence::Strong.only_if(entry)
}

#[derive(Default)]
pub struct Entries {
    /// Another reader takes the steps from the trainer's own lines.
    beside: bool,
    global_batch_size: Option<u64>,
    started: Option<f64>,
    init_started: Option<f64>,
    stopped: bool,
    newest: u64,
}

impl Entries {
    /// Reads settings, evaluations and the run's times, and leaves steps to the trainer's own
    /// lines.
    pub fn beside() -> Self {
        Self {
            beside: true,
            ..Self::default()
        }
    }
}

impl Reader for Entries {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        // Ranks that print at once may share a line.
        let mut rest = &*line.text;
        while let Some(text) = after(rest, MARK) {
            let text = text.trim_start();
            match leading_object(until_next(text)) {
                Some((entry, _)) => self.entry(&entry, out),
                None => {
                    let kind = if line.ended {
                        "unreadable_line"
                    } else {
                        "truncated"
                    };
                    out.notes.add(kind, || cut(text, 120));
                }
            }
            rest = text;
        }
    }
}

/// `text` up to the next entry that shares its line.
fn until_next(text: &str) -> &str {
    memchr::memmem::find(text.as_bytes(), MARK.as_bytes()).map_or(text, |at| part(text, ..at))
}

impl Entries {
    fn entry(&mut self, entry: &Map<String, Value>, out: &mut Builder) {
        let Some(key) = entry.get("key").and_then(Value::as_str) else {
            return;
        };
        let (value, metadata) = (
            entry.get("value").unwrap_or(&Value::Null),
            entry.get("metadata"),
        );
        let about = |name: &str| metadata.and_then(|m| m.get(name));
        let time = entry
            .get("time_ms")
            .and_then(number_of)
            .filter(|t| t.is_finite());
        match key {
            "init_start" => self.init_started = self.init_started.or(time),
            "init_stop" => {
                if let (Some(start), Some(stop), None) = (self.init_started, time, self.started) {
                    out.total("init_duration_seconds", (stop - start) / 1000.0);
                }
            }
            "run_start" if self.started.is_none() => {
                self.started = time;
                if let Some(time) = time {
                    out.total("run_start_unix_milliseconds", time);
                }
            }
            "run_stop" => self.stop(time, about("status").and_then(Value::as_str), out),
            "tracked_stats" => {
                let samples = about("step").or_else(|| about("samples_count"));
                self.stats(value, samples, time, out)
            }
            "overall_throughput" => {
                if let Some(rate) = number_of(value) {
                    out.total("overall_throughput_samples_per_second", rate);
                }
            }
            _ if key.starts_with("eval_") && metadata.is_some() => {
                let samples = about("samples_count")
                    .or_else(|| about("samples"))
                    .and_then(whole);
                match (number_of(value), samples) {
                    (Some(value), Some(samples)) => evaluation(key, value, Some(samples), out),
                    _ => self.setting(key, value, out),
                }
            }
            _ => self.setting(key, value, out),
        }
    }

    fn stop(&mut self, time: Option<f64>, status: Option<&str>, out: &mut Builder) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        if let Some(time) = time {
            out.total("run_stop_unix_milliseconds", time);
            if let Some(start) = self.started {
                out.total("run_duration_seconds", (time - start) / 1000.0);
            }
        }
        match status {
            Some("success") => out.trace.finished = true,
            Some(status) => {
                let said = format!("run_stop with status {}", cut(status, 80));
                out.failure(Failure {
                    class: FailureClass::Unknown,
                    evidence: vec![said],
                });
            }
            None => {}
        }
    }

    fn stats(
        &mut self,
        value: &Value,
        samples: Option<&Value>,
        milliseconds: Option<f64>,
        out: &mut Builder,
    ) {
        let Value::Object(stats) = value else { return };
        let samples = samples.and_then(whole);
        let mut step = Step {
            consumed_samples: samples.filter(|n| *n > 0),
            ended_at: milliseconds.map(|ms| ms / 1e3),
            ..Step::default()
        };
        let by_samples = self.by_samples(samples);
        let number = by_samples.unwrap_or(self.newest + 1);
        // With a throughput, an entry sums up a block of steps between two evaluations: its time is
        // their mean.
        let of_block = stats.contains_key("throughput");
        let mut is_step = false;
        for (name, value) in stats {
            let Some(value) = number_of(value) else {
                continue;
            };
            let mut checks = Checks {
                step: number,
                notes: &mut out.notes,
            };
            match name.as_str() {
                "train_step_time" if !of_block => {
                    (step.step_time_seconds, is_step) = (checks.seconds(name, Some(value)), true)
                }
                "reduced_train_loss" | "train_loss" | "loss" if !of_block => {
                    (step.loss, is_step) =
                        (finite(value, "nan_loss", number, &mut out.notes), true);
                }
                "lr" | "learning_rate" => step.learning_rate = checks.learning_rate(Some(value)),
                "grad_norm" => {
                    step.grad_norm = finite(value, "nan_grad_norm", number, &mut out.notes)
                }
                "val_loss" | "validation_loss" => {
                    evaluation("validation_loss", value, samples, out)
                }
                // The rate of all GPUs together.
                "throughput" if value.is_finite() => {
                    step.other.insert("samples_per_second_global".into(), value);
                    // A block that cannot be numbered is not one more step behind the last one.
                    is_step |= by_samples.is_some();
                }
                name if value.is_finite() && step.other.len() < MAX_OTHER => {
                    let unit = if name.ends_with("_time") {
                        "_seconds"
                    } else {
                        ""
                    };
                    let block = if of_block { "block_" } else { "" };
                    step.other
                        .insert(format!("{block}{}{unit}", cut(name, 60)).into(), value);
                }
                _ => {}
            }
        }
        if is_step && !self.beside {
            self.newest = number;
            if by_samples.is_none() && !std::mem::replace(&mut out.trace.steps_assumed, true) {
                out.notes.add("step_numbers_assumed", || {
                    "the global batch size or the samples of a step are not stated, so the steps are counted".to_owned()
                });
            }
            out.step(Step {
                step: number,
                ..step
            });
        } else if !is_step {
            for (name, value) in step.other {
                out.total(&name, value);
            }
        }
    }

    /// The step that ends when `samples` samples are done; `None` where the log does not state the
    /// batch, or no step ends there.
    fn by_samples(&self, samples: Option<u64>) -> Option<u64> {
        let whole = samples
            .zip(self.global_batch_size)
            .filter(|(n, size)| *n > 0 && n.is_multiple_of(*size));
        whole.map(|(n, size)| n / size)
    }

    fn setting(&mut self, key: &str, value: &Value, out: &mut Builder) {
        if key == "global_batch_size" {
            self.global_batch_size = whole(value).filter(|n| *n > 0).or(self.global_batch_size);
        }
        let mut known = settings_of("mlperf").iter();
        let Some((_, name)) = known.find(|(known, _)| known == key) else {
            return;
        };
        match value {
            Value::Number(_) => {
                if let Some(number) = number_of(value).filter(|n| n.is_finite()) {
                    out.set(name, setting(number));
                }
            }
            Value::String(text) if !text.is_empty() => out.set(name, cut(text, 120)),
            Value::Bool(flag) => out.set(name, *flag),
            _ => {}
        }
    }
}

fn evaluation(name: &str, value: f64, samples: Option<u64>, out: &mut Builder) {
    if value.is_finite() {
        out.evaluation(Evaluation {
            step: None,
            samples,
            name: cut(name, 80),
            value,
        });
    } else {
        out.notes.add("nan_evaluation", || {
            format!("{} after {samples:?} samples: {value}", cut(name, 80))
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::{FailureClass, LogSection, parse, parse_any, testing};

    fn entry(time: u64, key: &str, value: &str, metadata: &str) -> String {
        format!(
            "  0: :::MLLOG {{\"namespace\": \"\", \"time_ms\": {time}, \"event_type\": \"X\", \"key\": \"{key}\", \
             \"value\": {value}, \"metadata\": {{\"file\": \"a.py\", \"lineno\": 3{metadata}}}}}\n"
        )
    }

    fn log(status: &str) -> String {
        [
            entry(1000, "init_start", "null", ""),
            entry(1100, "global_batch_size", "16", ""),
            entry(1100, "max_sequence_length", "4096", ""),
            entry(1100, "gradient_accumulation_steps", "2.0", ""),
            entry(1100, "opt_base_learning_rate", "0.0005", ""),
            entry(1100, "eval_samples", "1024", ""),
            entry(1100, "opt_name", "\"adamw\"", ""),
            entry(
                3000,
                "tracked_stats",
                "{\"warmup_time\": 1.5}",
                ", \"step\": 0",
            ),
            entry(3500, "init_stop", "null", ""),
            entry(4000, "run_start", "null", ""),
            entry(4000, "run_start", "null", ""),
            "some other line\n".to_owned(),
            entry(
                5000,
                "tracked_stats",
                "{\"train_step_time\": 0.75, \"reduced_train_loss\": 12.5}",
                ", \"step\": 16.0",
            ),
            entry(
                6000,
                "tracked_stats",
                "{\"train_step_time\": 0.5, \"reduced_train_loss\": NaN}",
                ", \"step\": 32.0",
            ),
            entry(
                7000,
                "tracked_stats",
                "{\"throughput\": 24.5, \"train_step_time\": 0.6}",
                ", \"step\": 160",
            ),
            entry(7500, "eval_accuracy", "3.25", ", \"samples_count\": 160"),
            entry(
                9000,
                "run_stop",
                "null",
                &format!(", \"samples_count\": 160, \"status\": \"{status}\""),
            ),
            ":::MLLOG {\"key\": \"ev".to_owned(),
        ]
        .concat()
    }

    #[test]
    fn samples_become_steps_and_the_run_has_its_times() {
        let trace = parse_any(log("success").as_bytes());
        assert_eq!(trace.format, "mlperf");
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.consumed_samples, s.step_time_seconds, s.loss))
            .collect();
        assert_eq!(
            steps,
            [
                (1, Some(16), Some(0.75), Some(12.5)),
                (2, Some(32), Some(0.5), None),
                (10, Some(160), None, None)
            ]
        );
        assert_eq!(trace.steps[2].other["samples_per_second_global"], 24.5);
        assert_eq!(
            trace.steps[2].other["block_train_step_time_seconds"], 0.6,
            "no step's own time"
        );
        for (name, value) in [
            ("run_start_unix_milliseconds", 4000.0),
            ("run_stop_unix_milliseconds", 9000.0),
            ("run_duration_seconds", 5.0),
            ("init_duration_seconds", 2.5),
            ("warmup_time_seconds", 1.5),
        ] {
            assert_eq!(trace.totals[name], value, "{name}");
        }
        let evaluation = &trace.evaluations[0];
        assert_eq!(
            (evaluation.samples, &*evaluation.name, evaluation.value),
            (Some(160), "eval_accuracy", 3.25)
        );
        let settings = &trace.effective.0;
        assert_eq!(
            (&settings["global_batch_size"], &settings["seq_length"]),
            (&16.into(), &4096.into())
        );
        assert_eq!(
            (
                &settings["gradient_accumulation_steps"],
                &settings["optimizer"]
            ),
            (&2.into(), &"adamw".into())
        );
        assert_eq!(settings["eval_samples"], 1024);
        assert_eq!(
            testing::kinds(&trace),
            ["nan_loss", "truncated", "missing_steps"]
        );
        assert!(trace.finished && trace.failure.is_none());
    }

    #[test]
    fn without_a_batch_size_steps_are_counted_and_a_block_is_none_of_them() {
        let all = log("success");
        let trace = parse_any(
            all.lines()
                .filter(|l| !l.contains("global_batch_size"))
                .collect::<Vec<_>>()
                .join("\n")
                .as_bytes(),
        );
        let steps: Vec<_> = trace
            .steps
            .iter()
            .map(|s| (s.step, s.step_time_seconds))
            .collect();
        assert_eq!(steps, [(1, Some(0.75)), (2, Some(0.5))]);
        assert_eq!(trace.totals["samples_per_second_global"], 24.5);
        assert!(
            trace.steps_assumed && testing::kinds(&trace).contains(&"step_numbers_assumed"),
            "{:?}",
            trace.anomalies
        );
        assert!(!parse_any(all.as_bytes()).steps_assumed);
    }

    #[test]
    fn an_aborted_run_failed() {
        let trace = parse_any(log("aborted").as_bytes());
        assert!(!trace.finished);
        let failure = trace.failure.unwrap();
        assert_eq!(
            (failure.class, &*failure.evidence[0]),
            (FailureClass::Unknown, "run_stop with status aborted")
        );
    }

    #[test]
    fn beside_another_trainers_lines_only_what_they_lack_is_taken() {
        let both = format!("{}iter 3: loss 2.5, time 100.00ms\n", log("success"));
        let trace = parse(&LogSection::named("nanogpt"), both.as_bytes());
        assert_eq!(trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(), [3]);
        assert_eq!(
            (
                trace.evaluations.len(),
                trace.totals["run_duration_seconds"]
            ),
            (1, 5.0)
        );
        assert_eq!(trace.effective.0["global_batch_size"], 16);
    }

    testing::damaged!("mlperf", log("success"));
}

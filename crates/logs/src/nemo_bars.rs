//! Lightning's progress bars and the lines of DLLogger that NeMo 1 glues behind them.

use std::collections::VecDeque;

use super::{
    RunningAverage, Step,
    builder::Builder,
    dates,
    engine::Engine,
    numbers::{after, as_count, grouped_number},
    tqdm::{bars, may_be_bar},
    values::{count_after, has, once},
};

/// Reads bars until DLLogger's lines come, which have all digits where the bar has three.
#[derive(Default)]
pub struct Bars {
    logger: bool,
    /// A bar is drawn again with the step's own values; the last one counts.
    pending: Option<Step>,
    moving: Moving,
    told: bool,
    /// Steps over which the step timing is a moving mean.
    window: Option<usize>,
    /// Lines in which the window may still follow.
    window_lines: u32,
}

impl Bars {
    /// Does the line state a step?
    pub fn is_step(line: &str) -> bool {
        has(line, "DLL") && logged(line).is_some()
            || has(line, "v_num=") && bars(line).any(|bar| bar.label.contains("Epoch "))
    }

    /// False if the line is none of a step.
    pub fn line(&mut self, text: &str, table: &mut Engine, out: &mut Builder) -> bool {
        self.find_window(text);
        let window = self.window;
        if has(text, "DLL")
            && let Some((at, fields)) = logged(text)
        {
            if !self.logger {
                self.logger = true;
                self.pending = None;
                out.latest = true;
            }
            let fields = fields.iter().map(|(k, v)| (k.as_str(), v.as_str()));
            let mut step = named_step(at, fields, table, out);
            if let Some(steps) = window.filter(|w| *w > 1) {
                let mean = step.step_time_seconds.take();
                step.step_time_seconds = mean.and_then(|m| self.moving.solve(at, m, steps));
                keep_average(&mut step, mean);
                self.tell(steps, out);
            }
            out.step(step);
            return true;
        }
        self.logger |= has(text, "DLLogger has been set up");
        if !may_be_bar(text) {
            return false;
        }
        let mut found = false;
        for bar in bars(text).filter(|bar| bar.label.contains("Epoch ")) {
            found = true;
            if !self.logger {
                self.bar(&bar, table, out);
            }
        }
        found
    }

    fn bar(&mut self, bar: &super::tqdm::Bar<'_>, table: &mut Engine, out: &mut Builder) {
        let pairs = || {
            bar.postfix
                .split(',')
                .filter_map(|p| p.split_once('='))
                .map(|(k, v)| (k.trim(), v.trim()))
        };
        let find = |key: &str| {
            pairs()
                .find(|(k, _)| *k == key)
                .and_then(|(_, v)| grouped_number(v))
                .map(|(n, _)| n)
        };
        let epoch = bar
            .label
            .rsplit("Epoch ")
            .next()
            .and_then(grouped_number)
            .and_then(|(n, _)| as_count(n))
            .unwrap_or(0);
        let counted = epoch.saturating_mul(bar.total).saturating_add(bar.count);
        let at = find("global_step").and_then(as_count).unwrap_or(counted);
        if find("reduced_train_loss").is_none() && (pairs().count() == 0 || bar.count == 0) {
            return;
        }
        // NeMo's own loss is the step's; Lightning 1's `loss` is smoothed.
        let named = [
            "reduced_train_loss",
            "train_loss_step",
            "train_loss",
            "loss",
        ];
        let loss = named
            .into_iter()
            .find(|key| find(key).is_some())
            .unwrap_or_default();
        let fields = pairs().filter(|(k, _)| *k == loss || !named.contains(k));
        let fields = fields.map(|(k, v)| (if k == loss { "reduced_train_loss" } else { k }, v));
        let mut step = named_step(at, fields, table, out);
        if step.step_time_seconds.is_none() {
            keep_average(&mut step, bar.seconds_per_iteration);
        } else if let Some(steps) = self.window.filter(|w| *w > 1) {
            let mean = step.step_time_seconds.take();
            keep_average(&mut step, mean);
            self.tell(steps, out);
        }
        // A bar counts the seconds of its epoch. It is drawn again later for the same step.
        let is_dated = epoch > 0 || dates::of(&out.beginning).is_some();
        step.ended_at = bar.elapsed_seconds.filter(|s| *s > 0.0 && !is_dated);
        // With another time it is done again.
        let times = |drawn: &Step| drawn.step_time_seconds.zip(step.step_time_seconds);
        let is_same = |drawn: &Step| times(drawn).is_none_or(|(then, now)| then == now);
        match &self.pending {
            Some(drawn) if drawn.step == at && is_same(drawn) => {
                step.ended_at = drawn.ended_at.or(step.ended_at)
            }
            _ => self.flush(out),
        }
        self.pending = Some(step);
    }

    fn tell(&mut self, steps: usize, out: &mut Builder) {
        if !std::mem::replace(&mut self.told, true) {
            out.notes.add("moving_mean", || {
                format!(
                    "step timing is a mean over {steps} steps: kept as running average, single times solved from it"
                )
            });
        }
    }

    /// `step_timing_kwargs:` and soon `buffer_size: 5`, or both in one line.
    fn find_window(&mut self, text: &str) {
        let at = after(text, "step_timing_kwargs");
        if at.is_some() {
            self.window_lines = 6;
        }
        if self.window_lines > 0 {
            self.window_lines -= 1;
            let size = ["buffer_size: ", "buffer_size': "]
                .iter()
                .find_map(|key| count_after(at.unwrap_or(text), key));
            if let Some(size) = size
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| *n < 1 << 16)
            {
                // A later line prints the defaults as well.
                self.window = self.window.max(Some(size));
                self.window_lines = 0;
            }
        }
    }

    /// The last bar's step.
    pub fn flush(&mut self, out: &mut Builder) {
        if let Some(step) = self.pending.take() {
            out.step(step);
        }
    }
}

/// `DLL 2025-01-01 00:00:00.5 - 3 reduced_train_loss : 12.9  lr : 0.0  …`: the step and its fields.
fn logged(line: &str) -> Option<(u64, Vec<(String, String)>)> {
    if let Some(object) = after(line, "DLLL ") {
        return logged_json(object);
    }
    let (step, fields) = grouped_number(after(after(line, "DLL ")?, " - ")?)?;
    if !fields.starts_with(' ') || !has(fields, " : ") {
        return None;
    }
    let owned = |(key, value): (&str, &str)| (key.trim().to_owned(), value.trim().to_owned());
    let pairs: Vec<_> = fields
        .split("  ")
        .filter_map(|p| p.split_once(" : "))
        .take(64)
        .map(owned)
        .collect();
    Some((counted(step, &pairs)?, pairs))
}

/// DLLogger's file: `DLLL {"type": "LOG", "step": 3, "data": {"reduced_train_loss": 12.9, …}}`.
fn logged_json(object: &str) -> Option<(u64, Vec<(String, String)>)> {
    let entry: serde_json::Value = serde_json::from_str(object.trim()).ok()?;
    let (step, data) = (
        entry.get("step")?.as_f64()?,
        entry.get("data")?.as_object()?,
    );
    let text = |value: &serde_json::Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let pairs: Vec<_> = data
        .iter()
        .take(64)
        .map(|(key, value)| (key.clone(), text(value)))
        .collect();
    Some((counted(step, &pairs)?, pairs))
}

fn counted(step: f64, pairs: &[(String, String)]) -> Option<u64> {
    let global = pairs
        .iter()
        .find(|(k, _)| k == "global_step")
        .and_then(|(_, v)| grouped_number(v))
        .map(|(n, _)| n);
    as_count(global.unwrap_or(step))
}

/// The step of a bar or of DLLogger.
fn named_step<'t>(
    at: u64,
    fields: impl Iterator<Item = (&'t str, &'t str)>,
    table: &mut Engine,
    out: &mut Builder,
) -> Step {
    let step = table.named_step(at, fields, out);
    if let Some(n) = step.global_batch_size {
        once("global_batch_size", n, out);
    }
    step
}

fn keep_average(step: &mut Step, mean: Option<f64>) {
    if let Some(mean) = mean {
        let average = RunningAverage {
            step_time_seconds: Some(mean),
            ..RunningAverage::default()
        };
        step.running_average = Some(Box::new(average));
    }
}

/// Solves single step times from a moving mean over the last `window` steps, as long as no step is
/// missing.
#[derive(Default)]
struct Moving {
    recent: VecDeque<f64>,
    mean: f64,
    next: Option<u64>,
}

impl Moving {
    fn solve(&mut self, step: u64, mean: f64, window: usize) -> Option<f64> {
        if step == 0 {
            self.recent.clear();
        } else if self.next != Some(step) {
            self.next = None;
            return None;
        }
        let count = self.recent.len();
        let time = if count < window {
            (count + 1) as f64 * mean - count as f64 * self.mean
        } else {
            window as f64 * (mean - self.mean) + self.recent.pop_front()?
        };
        self.mean = mean;
        self.recent.push_back(time);
        self.next = Some(step + 1).filter(|_| time > 0.0);
        Some(time).filter(|t| *t > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LogSection, Trace, parse, parse_any};

    fn read(log: &str) -> Trace {
        parse(&LogSection::named("nemo"), log.as_bytes())
    }

    #[test]
    fn a_moving_mean_is_solved_and_kept_apart() {
        let times = [40.0, 20.0, 21.0, 19.5, 20.5, 20.25];
        let mut log = "|   step_timing_kwargs:\n|     sync_cuda: true\n|     buffer_size: 3\n{'step_timing_kwargs': {'buffer_size': 1}}\n".to_owned();
        for at in 0..times.len() {
            let window = &times[at.saturating_sub(2)..=at];
            let mean = window.iter().sum::<f64>() / window.len() as f64;
            log.push_str(&format!(
                "Epoch 0: :   5%|▌  | {n}/20 [00:41<13:13, v_num=None, reduced_train_loss=13.00, global_step={at}.000, \
                 train_step_timing in s={mean:.2}]DLL 2025-06-12 22:13:05.5 - {at} reduced_train_loss : 12.953125  lr : 0.0  \
                 global_step : {at}.0  consumed_samples : {s}.0  train_backward_timing in s : 0.5  grad_norm : 14.5  \
                 train_step_timing in s : {mean:?}  epoch : 0 \n\n",
                n = at + 1,
                s = (at + 1) * 512,
            ));
        }
        let trace = parse_any(log.as_bytes());
        assert_eq!((trace.format.as_str(), trace.steps.len()), ("nemo", 6));
        for (step, time) in trace.steps.iter().zip(times) {
            assert!(
                (step.step_time_seconds.unwrap() - time).abs() < 1e-9,
                "{step:?}"
            );
        }
        let last = &trace.steps[5];
        assert!(
            (last
                .running_average
                .as_ref()
                .unwrap()
                .step_time_seconds
                .unwrap()
                - 20.083_333_333)
                .abs()
                < 1e-6
        );
        assert_eq!(
            (last.loss, last.grad_norm, last.consumed_samples),
            (Some(12.953_125), Some(14.5), Some(3072))
        );
        assert_eq!(
            (last.step, last.other["train_backward_timing_seconds"]),
            (5, 0.5)
        );
        assert_eq!(
            trace
                .anomalies
                .iter()
                .map(|a| a.kind.as_str())
                .collect::<Vec<_>>(),
            ["moving_mean"]
        );
        // After a lost line the means cannot be solved any more.
        let lost: Vec<_> = log
            .lines()
            .enumerate()
            .filter(|(n, _)| *n != 8)
            .map(|(_, l)| l)
            .collect();
        let trace = read(&lost.join("\n"));
        assert_eq!(
            trace
                .steps
                .iter()
                .filter(|s| s.step_time_seconds.is_some())
                .count(),
            2
        );
        assert!(trace.steps.iter().all(|s| s.running_average.is_some()));
    }

    #[test]
    fn the_loggers_file() {
        let log = "DLLL {\"timestamp\": \"1\", \"type\": \"LOG\", \"step\": 3, \"data\": {\"reduced_train_loss\": 12.5, \"lr\": 0.5, \
                   \"consumed_samples\": 512.0, \"train_step_timing in s\": 4.5}}\nDLLL {\"type\": \"LOG\", \"step\": [], \"data\": {}}\n";
        let trace = parse_any(log.as_bytes());
        let step = &trace.steps[0];
        assert_eq!(
            (trace.format.as_str(), step.step, step.loss),
            ("nemo", 3, Some(12.5))
        );
        assert_eq!(
            (step.step_time_seconds, step.consumed_samples),
            (Some(4.5), Some(512))
        );
    }

    #[test]
    fn bars_alone() {
        let trace = parse_any(
            "Epoch 0: 2%| | 1/40 [00:01<00:30, 1.25it/s, loss=10.9, v_num=, reduced_train_loss=10.90, global_step=0.000]\r\
             Epoch 0: 5%| | 2/40 [00:01<00:30, 1.25it/s, loss=10.9, v_num=, reduced_train_loss=10.90, global_step=0.000]\r\
             Epoch 0: 5%| | 2/40 [00:02<00:30, 1.25it/s, loss=10.8, v_num=, reduced_train_loss=10.70, global_step=1.000, consumed_samples=512.0]\n"
                .as_bytes(),
        );
        let [first, second] = &trace.steps[..] else {
            panic!("{:?}", trace.steps)
        };
        assert_eq!(
            (trace.format.as_str(), first.loss, second.loss),
            ("nemo", Some(10.9), Some(10.7))
        );
        assert_eq!(
            (
                second.step,
                second.consumed_samples,
                second.step_time_seconds
            ),
            (1, Some(512), None)
        );
        assert_eq!(
            second.running_average.as_ref().unwrap().step_time_seconds,
            Some(0.8)
        );
        let plain =
            read("Epoch 1:  50%|##   | 5/10 [00:05<00:05,  1.00it/s, v_num=3, train_loss=2.500]");
        assert_eq!((plain.steps[0].step, plain.steps[0].loss), (15, Some(2.5)));
    }
}

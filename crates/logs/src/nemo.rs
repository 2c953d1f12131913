//! The format `nemo`: NeMo 2's progress lines, NeMo 1's and Lightning's bars with DLLogger's lines,
//! and the lines of a callback that prints `[NVD] Step  10 | Time: …`.

use super::{
    MemoryFigure, Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::Line,
    nemo_bars::Bars,
    nemo_settings::Settings,
    numbers::{after, as_count, grouped_number},
    values::{Checks, bytes, count_after, grouped_after, has, once},
};
use tprimat_words::part;

pub fn evidence(line: &str) -> Evidence {
    if has(line, "Training epoch ") && has(line, ", iteration ")
        || callback(line).is_some()
        || Bars::is_step(line)
    {
        return Evidence::Strong;
    }
    // The rest of a progress line that was wrapped.
    if has(line, "train_step_timing in s:") && has(line, " | ") {
        return Evidence::Strong;
    }
    if has(line, "[NeMo ") {
        Evidence::Weak
    } else {
        Evidence::None
    }
}

#[derive(Default)]
pub struct Nemo {
    settings: Settings,
    bars: Bars,
    validation_loss: Option<f64>,
    /// Lines of the trainer's own were seen; a callback's count other steps.
    own: bool,
    /// The last iteration's index and the epochs that were seen.
    last_index: Option<u64>,
    epochs: (u64, u64),
    /// A progress line that breaks off before its first field or within one: a terminal or a
    /// document wrapped it.
    broken: Option<String>,
    /// The last progress line, while the next line may still be the rest of it, and the step that
    /// it was taken for.
    whole: Option<(String, u64)>,
}

/// Lines over which one progress line may be wrapped, in bytes.
const MAX_WRAPPED: usize = 2000;

impl Reader for Nemo {
    fn line(&mut self, line: &Line<'_>, out: &mut Builder) {
        let broken = self.broken.take();
        let goes_on = !has(&line.text, "Training epoch ") && !has(&line.text, "[NeMo ");
        let is_rest = goes_on && is_rest(&line.text);
        let whole = self
            .whole
            .take()
            .filter(|(text, _)| is_rest && text.len() <= MAX_WRAPPED);
        // A line that was wrapped before a `|` looks whole until the next one comes. It is taken at
        // once all the same, as its time counts, and taken again with its rest.
        if let Some((_, step)) = &whole {
            out.take_back(*step);
        }
        let before = broken
            .as_deref()
            .or(whole.as_ref().map(|(text, _)| text.as_str()))
            .filter(|_| goes_on);
        let joined = before.map(|before| format!("{before} {}", line.text.trim_start()));
        if let Some(before) = broken.filter(|_| !goes_on) {
            self.progress(before.trim_start_matches("Training epoch "), out);
        }
        let text = joined.as_deref().unwrap_or(&line.text);
        if let Some(after) =
            after(text, "Training epoch ").filter(|after| line.ended && is_broken(after))
        {
            self.broken =
                Some(format!("Training epoch {after}")).filter(|text| text.len() <= MAX_WRAPPED);
            if self.broken.is_some() {
                return;
            }
        }
        let mut left = after(text, "Training epoch ");
        if left.is_some() {
            while let Some(segment) = left {
                left = after(segment, "Training epoch ");
                let end = segment.len() - left.map_or(0, |l| l.len() + "Training epoch ".len());
                self.progress(part(segment, ..end), out);
            }
        } else if let Some((step, fields)) = callback(text) {
            if !self.own {
                callback_step(step, fields, out);
            }
        } else if !self.bars.line(text, self.settings.timing_window, out) {
            self.settings.line(text, out);
        } else {
            self.own = true;
        }
    }

    fn end(&mut self, out: &mut Builder) {
        if let Some(before) = self.broken.take() {
            self.progress(before.trim_start_matches("Training epoch "), out);
        }
        self.bars.flush(out);
        // `iteration 5/99` counts within an epoch: of several epochs it says nothing of the whole.
        if let Some(last) = self.last_index.filter(|_| self.epochs.0 == self.epochs.1) {
            once("train_iters", last.saturating_add(1), out);
        }
    }
}

/// Is this the rest of a progress line that was wrapped before a `|`: `| reduced_train_loss: 10.5 |
/// …`?
fn is_rest(line: &str) -> bool {
    let Some(fields) = line.trim_start().strip_prefix('|') else {
        return false;
    };
    let (first, is_last) = fields
        .split_once('|')
        .map_or((fields, true), |(first, _)| (first, false));
    match first.split_once(':') {
        // A figure without a name is none of the progress bar's.
        Some((name, _)) if name.trim().is_empty() => false,
        Some((_, value)) if value.trim().is_empty() => is_last,
        Some((_, value)) => grouped_number(value.trim()).is_some_and(|(_, tail)| tail.is_empty()),
        // Wrapped once more, within the only name that has spaces.
        None => {
            is_last
                && !first.trim().is_empty()
                && "train_step_timing in s".starts_with(first.trim())
        }
    }
}

/// Does the text behind `Training epoch ` break off: has it no field, or a last one without a
/// value?
fn is_broken(text: &str) -> bool {
    if after(text, "Training epoch ").is_some() {
        return false;
    }
    let last = text.rsplit_once('|').map(|(_, field)| field);
    last.is_none_or(|field| {
        field
            .split_once(':')
            .is_none_or(|(_, value)| value.trim().is_empty())
    })
}

impl Nemo {
    /// `0, iteration 5/99 | lr: 1e-05 | global_step: 5 | …`
    fn progress(&mut self, segment: &str, out: &mut Builder) {
        let mut parts = segment.split('|');
        let head = parts.next().unwrap_or_default();
        let (epoch, index) = (
            grouped_number(head).and_then(|(n, _)| as_count(n)),
            count_after(head, "iteration "),
        );
        let last = head
            .split_once('/')
            .and_then(|(_, last)| grouped_number(last))
            .and_then(|(n, _)| as_count(n));
        let (Some(epoch), Some(index), Some(last)) = (epoch, index, last) else {
            return;
        };
        if !self.own {
            (out.averages, out.latest) = (true, true);
            self.own = true;
            self.epochs = (epoch, epoch);
        }
        self.epochs = (self.epochs.0.min(epoch), self.epochs.1.max(epoch));
        self.last_index = Some(last);
        let fields: Vec<_> = parts
            .filter_map(|p| p.split_once(':'))
            .map(|(k, v)| (k.trim(), v.trim()))
            .take(64)
            .collect();
        let earlier = epoch.saturating_mul(last.saturating_add(1));
        let global = fields
            .iter()
            .find(|(k, _)| *k == "global_step")
            .and_then(|(_, v)| grouped_number(v))
            .and_then(|(n, _)| as_count(n));
        let step = global.unwrap_or_else(|| earlier.saturating_add(index));
        self.whole = Some((format!("Training epoch {}", segment.trim_end()), step));
        if let Some(loss) = read_fields(step, fields.into_iter(), out, |s, out| out.step(s)) {
            self.validation(step, loss, out);
        }
    }

    /// The line repeats the newest value until there is another.
    fn validation(&mut self, step: u64, value: f64, out: &mut Builder) {
        let is_same = |last: f64| last == value || last.is_nan() && value.is_nan();
        if !self.validation_loss.is_some_and(is_same) {
            self.validation_loss = Some(value);
            out.evaluated(Some(step), "validation_loss", value);
        }
    }
}

/// Makes a step of `key, value` pairs and hands it on; returns the validation loss that the line
/// repeats.
pub fn read_fields<'a>(
    at: u64,
    fields: impl Iterator<Item = (&'a str, &'a str)>,
    out: &mut Builder,
    give: impl FnOnce(Step, &mut Builder),
) -> Option<f64> {
    let mut step = Step {
        step: at,
        ..Step::default()
    };
    let mut validation = None;
    for (key, text) in fields {
        let Some((value, tail)) = grouped_number(text).filter(|(_, tail)| tail.is_empty()) else {
            continue;
        };
        let mut checks = Checks {
            step: at,
            notes: &mut out.notes,
        };
        // Four digits and an exponent are no count.
        let exact = Some(value)
            .filter(|_| !text.contains('e'))
            .and_then(as_count)
            .filter(|n| *n > 0 && tail.is_empty());
        match key {
            "lr" => step.learning_rate = checks.learning_rate(Some(value)),
            "reduced_train_loss" => step.loss = checks.loss(Some(value)),
            "grad_norm" => step.grad_norm = checks.grad_norm(Some(value)),
            "train_step_timing in s" => step.step_time_seconds = checks.seconds(key, Some(value)),
            "TFLOPS_per_GPU" | "tflops_per_gpu" if value == -1.0 => {}
            "TFLOPS_per_GPU" | "tflops_per_gpu" => {
                step.tflops_per_gpu = checks.positive(key, Some(value))
            }
            "global_batch_size" => {
                step.global_batch_size = exact;
                if let Some(n) = exact {
                    once(key, n, out);
                }
            }
            "consumed_samples" => step.consumed_samples = exact,
            "max_memory_allocated" => figure(&mut step, "peak_allocated", value),
            // NeMo's name for the maximum that the caching allocator reserved.
            "max_memory_reserved" | "peak_memory_usage" => {
                figure(&mut step, "peak_reserved", value)
            }
            "memory_allocated" => figure(&mut step, "allocated", value),
            "memory_reserved" => figure(&mut step, "reserved", value),
            "val_loss" => validation = Some(value),
            "global_step" | "step" | "epoch" | "v_num" => {}
            _ if value.is_finite() && step.other.len() < 16 && key.len() <= 48 => {
                let name = key
                    .strip_suffix(" in s")
                    .map_or_else(|| key.to_owned(), |k| format!("{k}_seconds"));
                step.other.insert(name.into(), value);
            }
            _ => {}
        }
    }
    choose_memory(&mut step);
    give(step, out);
    validation
}

fn figure(step: &mut Step, kind: &'static str, value: f64) {
    if let Some(bytes) = bytes(value, 1.0) {
        step.memory_figures.push(MemoryFigure {
            kind: kind.into(),
            source: "torch".into(),
            bytes,
        });
    }
}

/// The figure that says most of what a run needs stands for the step, the others beside it.
fn choose_memory(step: &mut Step) {
    let order = ["peak_allocated", "peak_reserved", "allocated", "reserved"];
    let Some(at) = order
        .iter()
        .find_map(|kind| step.memory_figures.iter().position(|f| f.kind == *kind))
    else {
        return;
    };
    let chosen = step.memory_figures.remove(at);
    (step.memory_bytes, step.memory_kind, step.memory_source) =
        (Some(chosen.bytes), Some(chosen.kind), Some(chosen.source));
}

/// `[NVD] Step  10 | Time: 3.2s | Avg: 3.2s | Memory: 36.2GB | Loss: 2.2`: the step and what stands
/// behind it.
fn callback(line: &str) -> Option<(u64, &str)> {
    let (step, fields) = grouped_number(after(line, "] Step ")?)?;
    let fields = fields.trim_start().strip_prefix('|')?;
    Some((as_count(step)?, fields))
        .filter(|(_, f)| has(f, "Time:") && (has(f, "Avg:") || has(f, "Memory:")))
}

/// Who says how much memory is in use in a callback's line.
const CALLBACK: &str = "the script's own GB, read as decimal";

fn callback_step(at: u64, fields: &str, out: &mut Builder) {
    let mut checks = Checks {
        step: at,
        notes: &mut out.notes,
    };
    let mut step = Step {
        step: at,
        // Every tenth step's own time, no mean of ten.
        steps_averaged: Some(1),
        step_time_seconds: checks.seconds("Time", grouped_after(fields, "Time:")),
        loss: checks.loss(grouped_after(fields, "Loss:")),
        ..Step::default()
    };
    if let Some(average) = checks.seconds("Avg", grouped_after(fields, "Avg:")) {
        step.running_average = Some(Box::new(super::RunningAverage {
            step_time_seconds: Some(average),
            ..Default::default()
        }));
    }
    // Such scripts print what is allocated at the step's end. Some divide by 10⁹ and some by 2³⁰,
    // so the source says that the unit is theirs.
    if let Some(bytes) = grouped_after(fields, "Memory:")
        .filter(|v| *v > 0.0)
        .and_then(|gb| bytes(gb, 1e9))
    {
        step.memory_figures.push(MemoryFigure {
            kind: "allocated".into(),
            source: CALLBACK.into(),
            bytes,
        });
        choose_memory(&mut step);
    }
    out.step(step);
}

#[cfg(test)]
mod tests;

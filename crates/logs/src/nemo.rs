//! The format `nemo`: NeMo 2's progress lines, NeMo 1's and Lightning's bars with DLLogger's lines,
//! and the lines of a callback that prints `[NVD] Step  10 | Time: …`.

use super::{
    Evaluation, MemoryFigure, Step,
    builder::Builder,
    format::{Evidence, Reader},
    lines::Line,
    nemo_bars::Bars,
    nemo_settings::Settings,
    values::{Checks, after, bytes, count_after, has, number, once, rest, whole},
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
            rest(text, "Training epoch ").filter(|after| line.ended && is_broken(after))
        {
            self.broken =
                Some(format!("Training epoch {after}")).filter(|text| text.len() <= MAX_WRAPPED);
            if self.broken.is_some() {
                return;
            }
        }
        let mut left = rest(text, "Training epoch ");
        if left.is_some() {
            while let Some(segment) = left {
                left = rest(segment, "Training epoch ");
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
        Some((_, value)) if value.trim().is_empty() => is_last,
        Some((_, value)) => number(value.trim()).is_some_and(|(_, tail)| tail.is_empty()),
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
    if rest(text, "Training epoch ").is_some() {
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
            number(head).and_then(|(n, _)| whole(n)),
            count_after(head, "iteration "),
        );
        let last = head
            .split_once('/')
            .and_then(|(_, last)| number(last))
            .and_then(|(n, _)| whole(n));
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
            .and_then(|(_, v)| number(v))
            .and_then(|(n, _)| whole(n));
        let step = global.unwrap_or_else(|| earlier.saturating_add(index));
        self.whole = Some((format!("Training epoch {}", segment.trim_end()), step));
        if let Some(loss) = read_fields(step, fields.into_iter(), out, |s, out| out.step(s)) {
            self.validation(step, loss, out);
        }
    }

    /// The line repeats the newest value until there is another.
    fn validation(&mut self, step: u64, value: f64, out: &mut Builder) {
        if self.validation_loss != Some(value) {
            self.validation_loss = Some(value);
            let name = "validation_loss".to_owned();
            out.evaluation(Evaluation {
                step: Some(step),
                name,
                value,
                ..Evaluation::default()
            });
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
        let Some((value, tail)) = number(text).filter(|(_, tail)| tail.is_empty()) else {
            continue;
        };
        let mut checks = Checks {
            step: at,
            notes: &mut out.notes,
        };
        // Four digits and an exponent are no count.
        let exact = Some(value)
            .filter(|_| !text.contains('e'))
            .and_then(whole)
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
            "val_loss" => validation = Some(value).filter(|v| v.is_finite()),
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
    let (step, fields) = number(rest(line, "] Step ")?)?;
    let fields = fields.trim_start().strip_prefix('|')?;
    Some((whole(step)?, fields))
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
        step_time_seconds: checks.seconds("Time", after(fields, "Time:")),
        loss: checks.loss(after(fields, "Loss:")),
        ..Step::default()
    };
    if let Some(average) = checks.seconds("Avg", after(fields, "Avg:")) {
        step.running_average = Some(Box::new(super::RunningAverage {
            step_time_seconds: Some(average),
            ..Default::default()
        }));
    }
    // Such scripts print what is allocated at the step's end. Some divide by 10⁹ and some by 2³⁰,
    // so the source says that the unit is theirs.
    if let Some(bytes) = after(fields, "Memory:")
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
mod tests {
    use proptest::prelude::*;

    use super::super::{LogSection, Trace, parse_any};

    fn parse(log: &str) -> Trace {
        super::super::parse(&LogSection::named("nemo"), log.as_bytes())
    }

    /// Two starts of one run: steps 2 and 3 were done again.
    const LOG: &str = concat!(
        "ining/0 [default0]:[NeMo I 2025-03-07 22:37:13 x:1] Copying Trainer's 'max_steps' (6) to LR scheduler's 'max_steps'.\n",
        "ining/0 [default0]:Training epoch 0, iteration 0/5 | lr: 1.5e-07 | global_batch_size: 32 | global_step: 0 | ",
        "max_memory_reserved: 3000 | max_memory_allocated: 2000 | reduced_train_loss: 11.03 | train_step_timing in s: 9.5 | TFLOPS_per_GPU: 1.25e+03\n",
        "ining/0 [default0]:Training epoch 0, iteration 1/5 | lr: 3e-07 | global_batch_size: 32 | global_step: 1 | ",
        "peak_memory_usage: 4000 | memory_allocated: 1000 | reduced_train_loss: nan | train_step_timing in s: 0.5 | consumed_samples: 64\n",
        "(pretraining, pid=7) Training epoch 0, iteration 2/5 | global_step: 2 | reduced_train_loss: 10 | train_step_timing in s: 0.5 | val_loss: 3.5\n",
        "(pretraining, pid=7) Training epoch 0, iteration 3/5 | global_step: 3 | reduced_train_loss: 9 | train_step_timing in s: 0.5 | val_loss: 3.5\n",
        "[default2]:[rank2]: Exception: broken\n",
        "[default0]:Training epoch 0, iteration 2/5 | consumed_samples: 96 | global_step: 2 | reduced_train_loss: 10 | train_step_timing in s: 2.5\n",
        "Training epoch 0, iteration 3/5 | consumed_samples: 128 | global_step: 3 | reduced_train_loss: 9 | train_step_timing in s: 0.5 | val_loss: 3.25",
        "Training epoch 0, iteration 4/5 | consumed_samples: 1.6e+02 | global_step: 4 | moe_loss: 0.5 | reduced_train_loss: 8 | train_step_timing in s: 0.5 | val_loss: 3.25\n",
    );

    #[test]
    fn progress_lines_with_a_restart() {
        let trace = parse_any(LOG.as_bytes());
        assert_eq!((trace.format.as_str(), trace.step_lines), ("nemo", 7));
        assert_eq!(
            trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4]
        );
        let [first, second, third, fourth, last] = &trace.steps[..] else {
            panic!()
        };
        assert_eq!(
            (first.loss, first.step_time_seconds, first.tflops_per_gpu),
            (Some(11.03), Some(9.5), Some(1250.0))
        );
        assert_eq!(
            (first.memory_bytes, first.memory_kind.as_deref()),
            (Some(2000), Some("peak_allocated"))
        );
        assert_eq!(
            (
                first.memory_figures[0].bytes,
                first.memory_figures[0].kind.as_ref()
            ),
            (3000, "peak_reserved")
        );
        assert_eq!(
            (
                first.consumed_samples,
                second.consumed_samples,
                last.consumed_samples
            ),
            (None, Some(64), None)
        );
        assert_eq!(
            (
                second.loss,
                second.memory_bytes,
                second.memory_kind.as_deref()
            ),
            (None, Some(4000), Some("peak_reserved"))
        );
        assert_eq!(
            (
                third.step_time_seconds,
                third.consumed_samples,
                fourth.global_batch_size
            ),
            (Some(2.5), Some(96), None)
        );
        assert_eq!(last.other["moe_loss"], 0.5);
        let evaluations: Vec<_> = trace
            .evaluations
            .iter()
            .map(|e| (e.step, e.value))
            .collect();
        assert_eq!(evaluations, [(Some(2), 3.5), (Some(3), 3.25)]);
        let kinds: Vec<_> = trace.anomalies.iter().map(|a| a.kind.as_str()).collect();
        assert_eq!(kinds, ["nan_loss", "duplicate_step"]);
        assert_eq!(
            (
                &trace.effective.0["train_iters"],
                &trace.effective.0["global_batch_size"]
            ),
            (&6.into(), &32.into())
        );
    }

    #[test]
    fn iterations_begin_again_with_each_epoch() {
        let trace = parse(
            "Training epoch 1, iteration 9/9 | reduced_train_loss: 2\nTraining epoch 2, iteration 0/9 | reduced_train_loss: 1\n",
        );
        assert_eq!(
            trace.steps.iter().map(|s| s.step).collect::<Vec<_>>(),
            [19, 20]
        );
        assert!(!trace.effective.0.contains_key("train_iters"));
        let one = parse("Training epoch 0, iteration 3/9 | reduced_train_loss: 2\n");
        assert_eq!(one.effective.0["train_iters"], 10);
        let every_tenth: String = (1..4)
            .map(|n| {
                format!(
                    "Training epoch 0, iteration {}/99 | reduced_train_loss: 2\n",
                    n * 10 - 1
                )
            })
            .collect();
        assert_eq!(parse(&every_tenth).steps[1].steps_averaged, Some(10));
    }

    #[test]
    fn a_wrapped_line_is_one_line() {
        let whole = "[default0]:Training epoch 0, iteration 5/99 | lr: 3e-07 | global_batch_size: 32 | global_step: 5 | \
                     reduced_train_loss: 10.5 | train_step_timing in s: 2.5 | consumed_samples: 192\n";
        let expected = parse(whole).steps;
        assert_eq!(
            (expected[0].step, expected[0].step_time_seconds),
            (5, Some(2.5))
        );
        let places: Vec<usize> = whole
            .match_indices(' ')
            .map(|(at, _)| at)
            .filter(|at| *at > "[default0]:Training epoch ".len())
            .collect();
        for at in places.into_iter().map(|at| &whole[at..]) {
            let (before, after) = whole.split_once(at).unwrap();
            for indent in ["", "    "] {
                let trace =
                    parse_any(format!("{before}\n{indent}{}{after}", at.trim_start()).as_bytes());
                assert_eq!(
                    (trace.format.as_str(), &trace.steps),
                    ("nemo", &expected),
                    "{at}"
                );
                assert_eq!(
                    (trace.step_lines, &trace.anomalies),
                    (1, &parse(whole).anomalies),
                    "{at}"
                );
            }
        }
        // A progress line that is whole is taken at once: the time at which it was seen is its
        // step's end.
        let table = format!("{whole}| Name | Type |\n| other: table\n");
        assert_eq!(parse(&table).steps, expected);
        let narrow = whole.replace(" | ", "\n| ");
        assert_eq!(
            (&parse(&narrow).steps, parse(&narrow).step_lines),
            (&expected, 1)
        );
        let late = whole
            .replace(" | global_step: 5", "")
            .replace(" | consumed", "\n| global_step: 7 | consumed");
        assert_eq!(
            parse(&late)
                .steps
                .iter()
                .map(|step| step.step)
                .collect::<Vec<_>>(),
            [7]
        );
        // Over three lines; and what follows a line that breaks off for good is read for itself.
        let thrice = whole.replace(" 5/99", "\n5/99").replace(" in s", "\nin s");
        assert_eq!(parse(&thrice).steps, expected);
        let killed = format!("Training epoch 0, iteration\n{whole}");
        assert_eq!(parse(&killed).steps, expected);
        let (cut, _) = whole.split_once(" 192").unwrap();
        for after in ["", "[NeMo I 2025-03-07 22:37:13 x:1] saved\n"] {
            let steps = parse(&format!("{cut}\n{after}")).steps;
            assert_eq!(
                (steps[0].step, steps[0].step_time_seconds),
                (5, Some(2.5)),
                "{after}"
            );
        }
    }

    #[test]
    fn a_callbacks_lines() {
        let trace = parse_any(b"[NVD] Step  10 | Time: 3.25s | Avg: 3.5s | Memory: 36.2GB | Loss: 2.25\n[NVD] Step  20 | Time: 3.0s | Avg: 3.25s | Memory: 36.2GB | Loss: N/A\n");
        let [first, second] = &trace.steps[..] else {
            panic!()
        };
        assert_eq!(
            (first.step, first.step_time_seconds, first.loss),
            (10, Some(3.25), Some(2.25))
        );
        assert_eq!(
            first.running_average.as_ref().unwrap().step_time_seconds,
            Some(3.5)
        );
        assert_eq!(
            (first.memory_bytes, first.memory_kind.as_deref()),
            (Some(36_200_000_000), Some("allocated"))
        );
        assert_eq!(
            (first.memory_source.as_deref(), first.steps_averaged),
            (Some(super::CALLBACK), Some(1))
        );
        assert_eq!((second.loss, trace.format.as_str()), (None, "nemo"));
    }

    super::super::testing::damaged!("nemo", LOG);

    proptest! {
        #[test]
        fn noise_between_the_lines_changes_nothing(noise in proptest::collection::vec("[ -~é]{0,60}", 8)) {
            let mut noisy = String::new();
            for (line, noise) in LOG.lines().zip(noise.iter().cycle()) {
                noisy.push_str(&format!("{noise}\n[1,0]<stdout>:{line}\r\n"));
            }
            prop_assert_eq!(parse(&noisy).steps, parse(LOG).steps);
        }
    }
}

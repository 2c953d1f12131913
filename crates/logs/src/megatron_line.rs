//! The line that Megatron and all that is built on it print after an iteration, scanned by hand.
//!
//! `… iteration N/ M | key: value | key: value/mean | …`; one fork writes `key=value`.

use std::borrow::Cow;
use tprimat_words::part;

use super::{
    ABSURD_STEP_TIME, MemoryFigure, RunningAverage, Step,
    builder::Notes,
    lines::cut,
    numbers::{GIB, as_count, finite_number, number},
    values::bytes,
};

/// Longer steps and higher rates than these are misprints.
const MAX_SECONDS: f64 = 1e7;
const MAX_TFLOPS: f64 = 2e4;
const MAX_TOKENS: f64 = 1e9;
/// Further losses of one line that are kept.
const MAX_OTHER: usize = 16;

/// `iteration N/ M |`, wherever it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    pub number: u64,
    pub total: u64,
    /// Where the fields begin.
    pub end: usize,
    /// The line's time has microseconds, as since core 0.16.
    pub microseconds: bool,
}

/// The header whose word `iteration` stands at `at`.
pub fn header(text: &str, at: usize) -> Option<Header> {
    let bytes = text.as_bytes();
    let mut at_now = at + "iteration".len();
    if !matches!(bytes.get(at_now), Some(b' ' | b'=')) {
        return None;
    }
    at_now += bytes[at_now..]
        .iter()
        .take_while(|b| matches!(b, b' ' | b'='))
        .count();
    let number = count_at(text, &mut at_now)?;
    at_now += bytes[at_now..].iter().take_while(|b| **b == b' ').count();
    if bytes.get(at_now) != Some(&b'/') {
        return None;
    }
    at_now += 1;
    at_now += bytes[at_now..].iter().take_while(|b| **b == b' ').count();
    let total = count_at(text, &mut at_now)?;
    at_now += bytes[at_now..].iter().take_while(|b| **b == b' ').count();
    if bytes.get(at_now) != Some(&b'|') {
        return None;
    }
    // `[2026-01-31 12:00:00.123456] iteration`
    let before = &bytes[..at];
    let stamp = before
        .iter()
        .rposition(|b| *b != b' ')
        .map_or(&[][..], |last| &before[..=last]);
    // NeMo's `epoch 0, iteration 3/19 |` counts otherwise.
    if stamp.last() == Some(&b',') {
        return None;
    }
    let microseconds = matches!(stamp, [.., b':', _, _, b'.', a, b, c, d, e, f, b']'] if [a, b, c, d, e, f].iter().all(|b| b.is_ascii_digit()));
    Some(Header {
        number,
        total,
        end: at_now + 1,
        microseconds,
    })
}

/// The first header in a text.
pub fn find_header(text: &str) -> Option<Header> {
    memchr::memmem::find_iter(text.as_bytes(), "iteration").find_map(|at| header(text, at))
}

fn count_at(text: &str, at: &mut usize) -> Option<u64> {
    let digits = text.as_bytes()[*at..]
        .iter()
        .take_while(|b| b.is_ascii_digit())
        .count();
    let number = part(text, *at..*at + digits).parse().ok();
    *at += digits;
    number
}

/// A count, which some writers print as `2048.0`.
pub fn count(text: &str) -> Option<u64> {
    let text = text.trim_ascii();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits > 0 && text.as_bytes().get(digits) != Some(&b'.') {
        return part(text, ..digits).parse().ok();
    }
    as_count(number(text)?.0)
}

/// `X`, `X/Y` or `X (avg Y)`.
fn pair(text: &str) -> (Option<f64>, Option<f64>) {
    let Some((first, rest)) = number(text) else {
        return (None, None);
    };
    let rest = rest.trim_start();
    let second = rest.strip_prefix('/').or_else(|| rest.strip_prefix("(avg"));
    (Some(first), second.and_then(finite_number))
}

/// One iteration's fields.
#[derive(Debug, Default)]
pub struct Iteration {
    pub step: Step,
    pub skipped: u64,
    pub nan_iterations: u64,
    /// The line states running averages beside its values.
    pub has_pairs: bool,
    pub nan_loss: bool,
    pub nan_grad_norm: bool,
    /// The line states a time, as every writer's does.
    pub has_time: bool,
}

/// Reads the fields behind the header; returns where the iteration's text ends, for others may be
/// glued to it. `ended`: the line has its end, so the last number is whole.
pub fn read(
    text: &str,
    head: &Header,
    ended: bool,
    found: &mut Iteration,
    notes: &mut Notes,
) -> usize {
    found.step.step = head.number;
    let mut start = head.end;
    let rest = &text.as_bytes()[head.end..];
    for end in memchr::memchr_iter(b'|', rest)
        .map(|at| head.end + at)
        .chain(std::iter::once(text.len()))
    {
        let field = part(text, start..end);
        let last = end == text.len();
        match memchr::memchr2(b':', b'=', field.as_bytes()) {
            None if last || is_foreign(field) => return start,
            None => {}
            Some(_) if last && !ended => {
                notes.add("truncated", || {
                    format!(
                        "step {}: the line ends in \"{}\"",
                        head.number,
                        cut(field.trim(), 80)
                    )
                });
                return end;
            }
            Some(at) => {
                let known =
                    found.field(part(field, ..at).trim_ascii(), part(field, at + 1..), notes);
                if !known && (last || is_foreign(field)) {
                    return start;
                }
            }
        }
        start = end + 1;
    }
    text.len()
}

/// Is it the beginning of another line that was glued to this one?
fn is_foreign(field: &str) -> bool {
    memchr::memmem::find_iter(field.as_bytes(), "iteration")
        .next()
        .is_some()
        && field.contains('/')
}

impl Iteration {
    pub fn has_fields(&self) -> bool {
        let step = &self.step;
        self.has_time
            || self.nan_loss
            || step.loss.is_some()
            || step.consumed_samples.is_some()
            || step.learning_rate.is_some()
            || step.global_batch_size.is_some()
            || step.tflops_per_gpu.is_some()
    }

    /// Takes one field; false if its name is not known.
    fn field(&mut self, key: &str, value: &str, notes: &mut Notes) -> bool {
        match key {
            "elapsed time per iteration (ms)" | "elapsed_time_per_iteration_ms" => {
                let (time, mean) = pair(value);
                self.has_time = true;
                self.step.step_time_seconds = self.sensible(key, time, 1000.0 * MAX_SECONDS, notes).map(|ms| ms / 1e3);
                self.mean(mean, |average, ms| average.step_time_seconds = Some(ms / 1e3));
            }
            "lm loss" | "lm_loss" | "lm-loss" => match number(value) {
                Some((loss, _)) if loss.is_finite() => self.step.loss = Some(loss),
                Some(_) => self.nan_loss = true,
                None => {}
            },
            "learning rate" | "learning_rate" => {
                self.step.learning_rate = finite_number(value).filter(|v| *v >= 0.0);
            }
            "grad norm" | "grad_norm" => match number(value) {
                Some((norm, _)) if norm.is_finite() => self.step.grad_norm = Some(norm).filter(|v| *v >= 0.0),
                Some(_) => self.nan_grad_norm = true,
                None => {}
            },
            "global batch size" | "global_batch_size" => {
                self.step.global_batch_size = count(value).filter(|n| *n > 0);
            }
            "consumed samples" | "consumed_samples" => self.step.consumed_samples = count(value),
            "number of skipped iterations" | "number_of_skipped_iterations" => self.skipped = count(value).unwrap_or(0),
            "number of nan iterations" | "number_of_nan_iterations" => self.nan_iterations = count(value).unwrap_or(0),
            "throughput per GPU (TFLOP/s/GPU)"
            | "compute per GPU (TFLOP/s/GPU)"
            | "TFLOPs"
            // Megatron's own count, where the line has DeepSpeed's too.
            | "[LM]-TFLOPs"
            | "[LM]TFLOPs"
            | "approx flops per GPU" => {
                let (rate, mean) = pair(value);
                // One decimal is printed: a rate below this one is rounded by more than 5 %.
                self.step.tflops_per_gpu = self.sensible(key, rate, MAX_TFLOPS, notes).filter(|rate| *rate >= 1.0);
                self.mean(mean, |average, rate| average.tflops_per_gpu = Some(rate));
            }
            "tokens per GPU (tokens/s/GPU)"
            | "tokens/s/GPU inst/harmonic mean"
            | "Tokens per second per GPU (Tok/s/GPU)"
            | "tokens per gpu per second (tgs)"
            | "tokens_per_gpu_per_second_tgs" => {
                let (rate, mean) = pair(value);
                self.step.tokens_per_second_per_gpu = self.sensible(key, rate, MAX_TOKENS, notes);
                self.mean(mean, |average, rate| average.tokens_per_second_per_gpu = Some(rate));
            }
            "loss scale" | "loss_scale" => {
                // 1 is what bf16 and fp32 print.
                self.other("loss_scale", finite_number(value).filter(|scale| *scale != 1.0));
            }
            "num zeros" => self.other("num_zeros", finite_number(value)),
            "params norm" => self.other("params_norm", finite_number(value)),
            "samples per second" | "samples_per_second" => self.other("samples_per_second", finite_number(value)),
            "consumed tokens" | "consumed_tokens" => self.other("consumed_tokens", finite_number(value)),
            "actual seqlen" | "actual_seqlen" => self.other("actual_seq_length", finite_number(value)),
            "[DS]-TFLOPs" | "[DS]TFLOPs" => self.other("deepspeed_tflops_per_gpu", finite_number(value)),
            "energy per GPU (J/iter/GPU)" => self.other("energy_per_gpu_joules", finite_number(value)),
            "power per GPU (W/GPU)" => self.other("power_per_gpu_watts", finite_number(value)),
            "mem usages" => self.other("memory_usage_fraction", finite_number(value)),
            "skipped samples" | "decoupled learning rate" => {}
            _ if key.contains("mem usage") => return self.memory(key, value),
            _ if key.contains("loss") && !key.contains('[') && key.len() < 40 && self.step.other.len() < MAX_OTHER => {
                let Some(loss) = finite_number(value) else { return true };
                self.step.other.insert(Cow::Owned(key.replace([' ', '-'], "_")), loss);
            }
            _ => return false,
        }
        true
    }

    /// Primus' device memory: `used/free/total/ratio`; "GB" is GiB.
    fn memory(&mut self, key: &str, value: &str) -> bool {
        let source: &'static str = match () {
            () if key.contains("rocm") => "rocm-smi",
            () if key.contains("hip") => "hip",
            () => return false,
        };
        let kinds: &[&'static str] = if key.contains("max") {
            &["device_used_max_rank"]
        } else {
            &["device_used", "device_free", "device_total"]
        };
        for (kind, value) in kinds.iter().zip(value.split('/')) {
            let Some((value, unit)) = number(value) else {
                continue;
            };
            if !matches!(unit.trim(), "GB" | "GiB") {
                continue;
            }
            let Some(bytes) = bytes(value, GIB) else {
                continue;
            };
            if *kind == "device_used" && self.step.memory_bytes.is_none() {
                self.step.memory_bytes = Some(bytes);
                self.step.memory_kind = Some(Cow::Borrowed(kind));
                self.step.memory_source = Some(Cow::Borrowed(source));
            }
            let (kind, source) = (Cow::Borrowed(*kind), Cow::Borrowed(source));
            self.step.memory_figures.push(MemoryFigure {
                kind,
                source,
                bytes,
            });
        }
        true
    }

    fn other(&mut self, name: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.step.other.insert(Cow::Borrowed(name), value);
        }
    }

    fn mean(&mut self, mean: Option<f64>, put: impl FnOnce(&mut RunningAverage, f64)) {
        if let Some(mean) = mean {
            self.has_pairs = true;
            put(self.step.running_average.get_or_insert_default(), mean);
        }
    }

    /// A rate or time that can be true.
    fn sensible(&self, key: &str, value: Option<f64>, most: f64, notes: &mut Notes) -> Option<f64> {
        let value = value?;
        if value > 0.0 && value < most {
            return Some(value);
        }
        let kind = if key.starts_with("elapsed") {
            ABSURD_STEP_TIME
        } else {
            "absurd_value"
        };
        notes.add_at(self.step.step, kind, || format!("{key} is {value}"));
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_one(text: &str) -> (Iteration, usize) {
        let (head, mut found) = (
            find_header(text).expect("has a header"),
            Iteration::default(),
        );
        let end = read(text, &head, true, &mut found, &mut Notes::default());
        (found, end)
    }

    #[test]
    fn headers_of_all_writers() {
        let head = |text: &str| find_header(text).map(|h| (h.number, h.total, h.microseconds));
        assert_eq!(
            head(" iteration        7/     250 | consumed"),
            Some((7, 250, false))
        );
        assert_eq!(
            head("3: [2025-02-03 04:05:06] iteration 7/ 250 | x"),
            Some((7, 250, false))
        );
        assert_eq!(
            head("[2026-02-03 04:05:06.654321] iteration        7/     250 | x"),
            Some((7, 250, true))
        );
        assert_eq!(
            head("[I][training:9]  iteration=       7/   250 | lm loss=2"),
            Some((7, 250, false))
        );
        assert_eq!(head("saving checkpoint at iteration     100 to /x"), None);
        assert_eq!(
            head("validation loss at iteration 50 | lm loss value: 8"),
            None
        );
        assert_eq!(head("iteration 99999999999999999999999/ 5 |"), None);
        assert_eq!(head("Training epoch 0, iteration 3/19 | lr: 1e-06"), None);
        assert_eq!(head("iteration"), None);
    }

    #[test]
    fn values_of_this_iteration_and_means_are_kept_apart() {
        let (found, _) = read_one(
            "iteration 4/ 9 | elapsed time per iteration (ms): 812.5/900.0 | hip mem usage/free/total/usage_ratio: \
             1.50GB/2.50GiB/4.00GB/37.50% | compute per GPU (TFLOP/s/GPU): 410.0 (avg 400.5) | tokens/s/GPU inst/harmonic \
             mean: 9000.5/8800.0 | rank-3 rocm max mem usage/usage_ratio: 2.00GB/50.00%",
        );
        let step = found.step;
        assert_eq!(
            (step.step_time_seconds, step.tflops_per_gpu),
            (Some(0.8125), Some(410.0))
        );
        let means = step.running_average.unwrap();
        assert_eq!(
            (means.step_time_seconds, means.tflops_per_gpu),
            (Some(0.9), Some(400.5))
        );
        assert_eq!(
            (
                step.tokens_per_second_per_gpu,
                means.tokens_per_second_per_gpu
            ),
            (Some(9000.5), Some(8800.0))
        );
        assert_eq!(
            (step.memory_bytes, step.memory_source.as_deref()),
            (Some(3 << 29), Some("hip"))
        );
        let figures: Vec<_> = step
            .memory_figures
            .iter()
            .map(|f| (&*f.kind, &*f.source, f.bytes >> 20))
            .collect();
        let expected = [
            ("device_used", "hip", 1536),
            ("device_free", "hip", 2560),
            ("device_total", "hip", 4096),
            ("device_used_max_rank", "rocm-smi", 2048),
        ];
        assert_eq!(figures, expected);
    }

    #[test]
    fn what_is_glued_to_the_line_is_left_to_others() {
        let text = "iteration 1/ 2 | lm loss: 3.5 | number of nan iterations:   0 |Number of parameters in billions:  6.98";
        let (found, end) = read_one(text);
        assert_eq!(
            (found.step.loss, &text[end..]),
            (Some(3.5), "Number of parameters in billions:  6.98")
        );
        let two =
            "iteration 1/ 2 | lm loss: 3.5 | [2025-01-01 00:00:00] iteration 2/ 2 | lm loss: 2.5 |";
        let (found, end) = read_one(two);
        assert_eq!(found.step.loss, Some(3.5));
        assert_eq!(find_header(&two[end..]).unwrap().number, 2);
    }

    #[test]
    fn nan_absurd_and_cut_values_are_absent() {
        let mut notes = Notes::default();
        let text = "iteration 1/ 2 | elapsed time per iteration (ms): -5.0 | throughput per GPU (TFLOP/s/GPU): 59892.5 | \
                    grad norm: nan | lm loss: NaN | learning rate: 1.0E-05";
        let mut found = Iteration::default();
        read(
            text,
            &find_header(text).unwrap(),
            false,
            &mut found,
            &mut notes,
        );
        assert!(found.nan_loss && found.nan_grad_norm);
        assert_eq!(
            found.step,
            Step {
                step: 1,
                ..Step::default()
            }
        );
        let kinds: Vec<_> = notes.finish().into_iter().map(|a| a.kind).collect();
        assert_eq!(kinds, ["absurd_step_time", "absurd_value", "truncated"]);
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_the_standard_library(text in "-?[0-9]{0,17}\\.?[0-9]{0,9}([eE][-+]?[0-9]{1,3})?") {
            let expected = text.parse::<f64>().ok();
            let read = number(&text).filter(|(_, rest)| rest.is_empty());
            prop_assert_eq!(read.map(|(value, _)| value), expected);
        }

        #[test]
        fn any_text_is_read(text in "(iteration|[ =/|:]|[0-9]{1,3}|lm loss|hip mem usage|GB|é|nan|\\(avg){0,40}") {
            if let Some(head) = find_header(&text) {
                let end = read(&text, &head, true, &mut Iteration::default(), &mut Notes::default());
                prop_assert!(text.is_char_boundary(end) && end >= head.end);
            }
        }
    }
}

//! The line that Megatron and all that is built on it print after an iteration.
//!
//! `… iteration N/ M | key: value | key: value/mean | …`; one fork writes `key=value`.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use tprimat_base::words::part;

use super::{
    ABSURD_STEP_TIME, MemoryFigure, RunningAverage, Step,
    builder::Notes,
    fields::TOTAL_RATE,
    numbers::{GIB, as_count, finite_number, number},
    pattern::Pattern,
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

static HEADER: Pattern = Pattern::new(r"^iteration[ =]+([0-9]+) */ *([0-9]+) *\|");

/// `[2026-01-31 12:00:00.123456]`
static MICROSECONDS: Pattern = Pattern::new(r":..\.[0-9]{6}\]$");

/// The header whose word `iteration` stands at `at`.
pub fn header(text: &str, at: usize) -> Option<Header> {
    let (before, from) = text.split_at(at);
    let found = HEADER.captures(from)?;
    let before = before.trim_end_matches(' ');
    // NeMo's `epoch 0, iteration 3/19 |` counts otherwise.
    if before.ends_with(',') {
        return None;
    }
    Some(Header {
        number: found[1].parse().ok()?,
        total: found[2].parse().ok()?,
        end: at + found[0].len(),
        microseconds: MICROSECONDS.is_match(before),
    })
}

/// The first header in a text.
pub fn find_header(text: &str) -> Option<Header> {
    memchr::memmem::find_iter(text.as_bytes(), "iteration").find_map(|at| header(text, at))
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
/// glued to it.
pub fn read(text: &str, head: &Header, found: &mut Iteration, notes: &mut Notes) -> usize {
    found.step.step = head.number;
    let mut start = head.end;
    for field in part(text, head.end..).split('|') {
        let end = start + field.len();
        let is_last = end == text.len();
        let named = field.split_once([':', '=']);
        let is_known =
            named.is_some_and(|(key, value)| found.field(key.trim_ascii(), value, notes));
        // The beginning of another line that was glued to this one?
        let is_foreign = || is_last || field.contains("iteration") && field.contains('/');
        if !is_known && is_foreign() {
            return start;
        }
        start = end + 1;
    }
    text.len()
}

/// `lm_loss`, `lm-loss` and `lm loss` are one name, with its unit in brackets or not.
fn plain(key: &str) -> String {
    let bare = key.chars().filter(|c| !matches!(c, '(' | ')'));
    bare.map(|c| if matches!(c, '_' | '-') { ' ' } else { c })
        .collect()
}

/// `tokens/s/GPU`, `Tokens per second per GPU Tok/s/GPU`, `tokens/sec/gpu`, `rate tokens/sec`: every fork has
/// a name of its own.
fn is_token_rate(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("tok")
        && ["/s", " per s", "per gpu per s"]
            .iter()
            .any(|per| name.contains(per))
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
        let name = plain(key);
        match name.as_str() {
            "elapsed time per iteration ms" => {
                let (time, mean) = pair(value);
                self.has_time = true;
                let time = self.sensible(key, time, 1000.0 * MAX_SECONDS, notes);
                self.step.step_time_seconds = time.map(|ms| ms / 1e3);
                self.mean(mean, |average, ms| {
                    average.step_time_seconds = Some(ms / 1e3)
                });
            }
            "lm loss" => (self.step.loss, self.nan_loss) = finite_or_nan(value, self.step.loss),
            "grad norm" => {
                let (norm, is_nan) = finite_or_nan(value, self.step.grad_norm);
                (self.step.grad_norm, self.nan_grad_norm) = (norm.filter(|v| *v >= 0.0), is_nan);
            }
            "learning rate" => {
                self.step.learning_rate = finite_number(value).filter(|v| *v >= 0.0);
            }
            "global batch size" => {
                self.step.global_batch_size = count(value).filter(|n| *n > 0);
            }
            "consumed samples" => self.step.consumed_samples = count(value),
            "number of skipped iterations" => self.skipped = count(value).unwrap_or(0),
            "number of nan iterations" => self.nan_iterations = count(value).unwrap_or(0),
            // `[LM]` is Megatron's own count, where the line has DeepSpeed's too.
            "throughput per GPU TFLOP/s/GPU"
            | "compute per GPU TFLOP/s/GPU"
            | "TFLOPs"
            | "[LM] TFLOPs"
            | "[LM]TFLOPs"
            | "approx flops per GPU" => {
                let (rate, mean) = pair(value);
                let rate = self.sensible(key, rate, MAX_TFLOPS, notes);
                // One decimal is printed: a rate below this one is rounded by more than 5 %.
                self.step.tflops_per_gpu = rate.filter(|rate| *rate >= 1.0);
                self.mean(mean, |average, rate| average.tflops_per_gpu = Some(rate));
            }
            _ if is_token_rate(&name) && name.to_ascii_lowercase().contains("gpu") => {
                let (rate, mean) = pair(value);
                self.step.tokens_per_second_per_gpu = self.sensible(key, rate, MAX_TOKENS, notes);
                self.mean(mean, |average, rate| {
                    average.tokens_per_second_per_gpu = Some(rate);
                });
            }
            // 1 is what bf16 and fp32 print.
            "loss scale" if finite_number(value) == Some(1.0) => {}
            "loss scale" | "num zeros" | "params norm" | "samples per second"
            | "consumed tokens" => self.other(name.replace(' ', "_"), value),
            // The actual length comes behind that of the curriculum, and counts.
            "actual seqlen" | "curriculum seqlen" => self.other("actual_seq_length", value),
            "[DS] TFLOPs" | "[DS]TFLOPs" => self.other("deepspeed_tflops_per_gpu", value),
            "energy per GPU J/iter/GPU" => self.other("energy_per_gpu_joules", value),
            "power per GPU W/GPU" => self.other("power_per_gpu_watts", value),
            "mem usages" => self.other("memory_usage_fraction", value),
            "skipped samples" | "decoupled learning rate" => {}
            _ if is_token_rate(&name) => self.other(TOTAL_RATE, value),
            _ if name.contains("mem usage") => return self.memory(key, value),
            _ if name.contains("loss")
                && !key.contains('[')
                && key.len() < 40
                && self.step.other.len() < MAX_OTHER =>
            {
                self.other(key.replace([' ', '-'], "_"), value);
            }
            _ => return false,
        }
        true
    }

    /// Primus' device memory: `used/free/total/ratio`; "GB" is GiB.
    fn memory(&mut self, key: &str, value: &str) -> bool {
        let source = match () {
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
            let value = number(value).filter(|(_, unit)| matches!(unit.trim(), "GB" | "GiB"));
            let Some(bytes) = value.and_then(|(value, _)| bytes(value, GIB)) else {
                continue;
            };
            let (kind, source) = (Cow::Borrowed(*kind), Cow::Borrowed(source));
            if kind == "device_used" && self.step.memory_bytes.is_none() {
                self.step.memory_bytes = Some(bytes);
                self.step.memory_kind = Some(kind.clone());
                self.step.memory_source = Some(source.clone());
            }
            self.step.memory_figures.push(MemoryFigure {
                kind,
                source,
                bytes,
            });
        }
        true
    }

    fn other(&mut self, name: impl Into<Cow<'static, str>>, value: &str) {
        if let Some(value) = finite_number(value) {
            self.step.other.insert(name.into(), value);
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

/// The number that a field states, else what was `known`; and whether it states one that is not
/// finite.
fn finite_or_nan(value: &str, known: Option<f64>) -> (Option<f64>, bool) {
    match number(value) {
        Some((value, _)) if value.is_finite() => (Some(value), false),
        stated => (known, stated.is_some()),
    }
}

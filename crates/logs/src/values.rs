//! Numbers and words as trainers print them, and what of them can be believed.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;
use tprimat_base::words::part;

use super::{
    ABSURD_STEP_TIME,
    builder::{ARGUMENTS, Builder, Notes},
    numbers::{after, as_count, grouped_number, number, setting},
};

/// Is `needle` somewhere in `text`?
pub fn has(text: &str, needle: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), needle.as_bytes()).is_some()
}

/// The number that follows the first `key`, perhaps after spaces.
pub fn grouped_after(text: &str, key: &str) -> Option<f64> {
    grouped_number(after(text, key)?).map(|(value, _)| value)
}

/// The count that follows the first `key`.
pub fn count_after(text: &str, key: &str) -> Option<u64> {
    grouped_after(text, key).and_then(as_count)
}

/// The word that follows the first `key`, up to a space or one of `,;)]}|`, without quotes.
pub fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let word = after(text, key)?.trim_start();
    let end = word
        .find(|c: char| c.is_whitespace() || ",;)]}|".contains(c))
        .unwrap_or(word.len());
    Some(part(word, ..end).trim_matches(['\'', '"'])).filter(|w| !w.is_empty())
}

/// MaxText's batch is that of a device in one pass, and may be a fraction where a model is parted over several devices. With it
/// the batch of all of them tells their number, and their number the batch.
pub fn batch_of_devices(out: &mut Builder) {
    let settings = &out.trace.effective.0;
    let argument = || {
        settings
            .get(ARGUMENTS)?
            .get("per_device_batch_size")?
            .as_f64()
    };
    let Some(of_device) = argument().filter(|n| *n > 0.0) else {
        return;
    };
    let count = |name: &str| settings.get(name).and_then(Value::as_f64);
    let each = of_device * count("gradient_accumulation_steps").unwrap_or(1.0);
    let (name, value) = match (count("num_gpus"), count("global_batch_size")) {
        (Some(devices), None) => ("global_batch_size", devices * each),
        (None, Some(batch)) => ("num_gpus", batch / each),
        _ => return,
    };
    if let Some(value) = as_count(value).filter(|n| *n > 0) {
        out.set(name, value);
    }
}

/// `1:02:03`, `15:19`, `2 days, 1:02:03`, `0:07:05.42`, `1h 2m 3s` → seconds.
pub fn clock(text: &str) -> Option<f64> {
    if text.trim_end().ends_with(['s', 'm', 'h', 'd']) && !text.contains(':') {
        return in_units(text);
    }
    let (days, time) = match text.split_once("day") {
        Some((days, rest)) => (
            days.trim().parse::<f64>().ok()?,
            rest.trim_start_matches('s').trim_start_matches(','),
        ),
        None => (0.0, text),
    };
    let mut seconds = 0.0;
    let mut parts = 0;
    for part in time.trim().split(':') {
        let value = part
            .parse::<f64>()
            .ok()
            .filter(|v| (0.0..1e6).contains(v))?;
        seconds = seconds * 60.0 + value;
        parts += 1;
    }
    (2..=3)
        .contains(&parts)
        .then_some(days * 86_400.0 + seconds)
}

/// `1d 2h 3m 4s`, any of them.
fn in_units(text: &str) -> Option<f64> {
    text.split_whitespace().try_fold(0.0, |sum, word| {
        let (value, unit) = number(word)?;
        let unit = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        Some(sum + value * unit).filter(|s| (0.0..1e9).contains(s))
    })
}

/// Bytes of a figure in `unit`s; `None` if it cannot be one.
pub fn bytes(figure: f64, unit: f64) -> Option<u64> {
    super::numbers::bytes(figure, unit).filter(|n| *n > 0)
}

/// Names of settings as a log has them and as a job does, by who writes them.
static SETTINGS: LazyLock<BTreeMap<String, Vec<(String, String)>>> =
    LazyLock::new(|| toml::from_str(include_str!("settings.toml")).expect("a table of our own"));

pub fn settings_of(writer: &str) -> &'static [(String, String)] {
    &SETTINGS[writer]
}

/// A setting, unless it is stated already: of two sources that differ by nature the first one
/// counts without a word.
pub fn once(name: &str, value: impl Into<Value>, out: &mut Builder) {
    let value = value.into();
    match out.trace.effective.0.get(name) {
        None => out.set(name, value),
        Some(first) if *first != value => out.states_again(name, &value),
        Some(_) => {}
    }
}

pub fn once_number(name: &str, value: Option<f64>, out: &mut Builder) {
    if let Some(value) = value.filter(|v| v.is_finite()) {
        once(name, setting(value), out);
    }
}

/// `key: value` pairs of the flat Python dictionary (or JSON object) that `text` begins with, and
/// what follows it; nested values are left out.
pub fn dictionary(text: &str) -> Option<(Vec<(&str, &str)>, &str)> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'{') {
        return None;
    }
    let (mut pairs, mut at) = (Vec::new(), 1);
    loop {
        let quote = bytes[at..]
            .iter()
            .position(|b| !b.is_ascii_whitespace() && *b != b',')?
            + at;
        if bytes[quote] == b'}' {
            return Some((pairs, part(text, quote + 1..)));
        }
        if !matches!(bytes[quote], b'\'' | b'"') {
            return None;
        }
        let key_end = memchr::memchr(bytes[quote], &bytes[quote + 1..])? + quote + 1;
        let colon = bytes[key_end + 1..]
            .iter()
            .position(|b| !b.is_ascii_whitespace())?
            + key_end
            + 1;
        if bytes[colon] != b':' {
            return None;
        }
        let end = value_end(bytes, colon + 1)?;
        let value = part(text, colon + 1..end).trim();
        if !value.starts_with(['{', '[', '(']) {
            pairs.push((
                part(text, quote + 1..key_end),
                bare(value).trim_matches(['\'', '"']),
            ));
        }
        at = end;
    }
}

/// NumPy and PyTorch print a number with its type: `np.float64(nan)`, `tensor(2.5, device='cuda:0')`.
fn bare(value: &str) -> &str {
    let called = value.strip_suffix(')').and_then(|v| v.split_once('('));
    let is_name = |name: &str| {
        !name.is_empty() && (name.bytes()).all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b))
    };
    match called {
        Some((name, inner)) if is_name(name) => inner.split(',').next().unwrap_or_default().trim(),
        _ => value,
    }
}

/// Where the value that begins at `at` ends: at a comma or a closing brace outside of quotes and
/// brackets.
fn value_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0usize;
    loop {
        match *bytes.get(at)? {
            quote @ (b'\'' | b'"') => at += memchr::memchr(quote, &bytes[at + 1..])? + 1,
            b'{' | b'[' | b'(' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' | b']' | b')' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

/// Lines of an object that is printed over several, until its braces are closed.
#[derive(Default)]
pub struct Block {
    text: String,
    depth: i64,
}

impl Block {
    /// A longer one is none.
    const MAX: usize = 1 << 18;

    /// The whole text with the line that closes it; `Err` where there will be none.
    pub fn add(&mut self, line: &str) -> Result<Option<String>, ()> {
        for byte in line.bytes() {
            self.depth += i64::from(byte == b'{') - i64::from(byte == b'}');
        }
        self.text.push_str(line);
        self.text.push('\n');
        match self.depth {
            _ if self.text.len() > Self::MAX => Err(()),
            0 => Ok(Some(std::mem::take(&mut self.text))),
            1.. => Ok(None),
            _ => Err(()),
        }
    }
}

/// Checks the numbers of one step: a value that cannot be right is left out and noted. No reader
/// drops one without a note, for a rate over the other steps would be wrong.
pub struct Checks<'a> {
    pub step: u64,
    pub notes: &'a mut Notes,
}

impl Checks<'_> {
    pub fn loss(&mut self, value: Option<f64>) -> Option<f64> {
        self.take("loss", Some("nan_loss"), value, |_| true)
    }

    pub fn grad_norm(&mut self, value: Option<f64>) -> Option<f64> {
        self.take("grad norm", Some("nan_grad_norm"), value, |v| v >= 0.0)
    }

    pub fn learning_rate(&mut self, value: Option<f64>) -> Option<f64> {
        self.take("learning rate", None, value, |v| v >= 0.0)
    }

    /// A step's time.
    pub fn seconds(&mut self, name: &str, value: Option<f64>) -> Option<f64> {
        let (value, step) = (value?, self.step);
        let found = Some(value).filter(|v| *v > 0.0 && *v < 1e7);
        if found.is_none() {
            self.notes
                .add_at(step, ABSURD_STEP_TIME, || format!("{name} is {value}"));
        }
        found
    }

    pub fn positive(&mut self, name: &str, value: Option<f64>) -> Option<f64> {
        self.take(name, None, value, |v| v > 0.0 && v < 1e15)
    }

    /// A value that is finite and sensible. Another is noted; one that is not finite under `kind`,
    /// where that is given.
    pub fn take(
        &mut self,
        name: &str,
        kind: Option<&str>,
        value: Option<f64>,
        sensible: fn(f64) -> bool,
    ) -> Option<f64> {
        let (value, step) = (value?, self.step);
        match kind {
            Some(kind) if !value.is_finite() => self
                .notes
                .add_at(step, kind, || format!("{name} is {value}")),
            _ if !value.is_finite() || !sensible(value) => {
                self.notes
                    .add_at(step, "absurd_value", || format!("{name} is {value}"));
            }
            _ => return Some(value),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{LogSection, Trace};

    #[test]
    fn numbers_as_trainers_print_them() {
        for (text, value, left) in [
            ("  1,297  x", 1297.0, "  x"),
            ("1,297,000.5%", 1_297_000.5, "%"),
            ("5, 6", 5.0, ", 6"),
            ("5,6000", 5.0, ",6000"),
            ("-2.9601e+08 us", -2.9601e8, " us"),
            ("3.95e+02", 395.0, ""),
            ("'0.5', ", 0.5, ", "),
            ("12step", 12.0, "step"),
            ("7.e", 7.0, "e"),
        ] {
            assert_eq!(grouped_number(text), Some((value, left)), "{text}");
        }
        assert!(
            grouped_number("nan,").unwrap().0.is_nan()
                && grouped_number("'-Infinity'").unwrap().0 < 0.0
        );
        for text in ["N/A", "", "-", "nano", ",1", "'"] {
            assert_eq!(grouped_number(text), None, "{text}");
        }
        assert_eq!(
            (clock("0:07:05.5"), clock("15:19"), clock("1 day, 1:00:00")),
            (Some(425.5), Some(919.0), Some(90_000.0))
        );
        assert_eq!((clock("7"), clock("?"), clock("1:nan")), (None, None, None));
        assert_eq!(
            (clock("1m 33s"), clock("7s"), clock("2h 0m 1s")),
            (Some(93.0), Some(7.0), Some(7201.0))
        );
        assert_eq!(
            (clock("7 apples"), clock("x s"), clock("s")),
            (None, None, None)
        );
    }

    #[test]
    fn dictionaries_are_read_without_being_json() {
        let (pairs, left) = dictionary(
            "{'loss': np.float64(nan), \"lr\": '5e-05', 'x': {'y': [1, 2]}, 'text': 'a, b}', 'g': tensor(2.5, device='cuda:0'), \
             'f': 'f(x)', 'e': 1} tail",
        )
        .unwrap();
        assert_eq!(
            pairs,
            [
                ("loss", "nan"),
                ("lr", "5e-05"),
                ("text", "a, b}"),
                ("g", "2.5"),
                ("f", "f(x)"),
                ("e", "1")
            ]
        );
        assert_eq!(left, " tail");
        for broken in ["{", "{'a'", "{'a':", "{'a': 1", "{a: 1}", "{'a': 1)}", ""] {
            assert_eq!(dictionary(broken), None, "{broken}");
        }
        assert_eq!(dictionary("{}"), Some((Vec::new(), "")));
    }

    /// Text of the pieces that the readers look for, so that a wide character comes right behind
    /// each of them.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "'", "\"", "nan", "inf", "infinity", "-", "+", "1", "1,234", ".", "e", ",", "{", "}",
            ":", "[", "]", "(", ")", "k", " ", "é", "€", "😀",
        ]);
        prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    const PATTERNS: [&str; 2] = [
        r"it (?P<step>\d+)",
        r"took (?P<step_time_seconds>\S+) s at (?P<tokens_per_second_per_gpu>\S+) lr (?P<learning_rate>\S+)",
    ];

    fn read(format: &str, log: &str) -> Trace {
        let mut section = LogSection::named(format);
        if format == "regex" {
            section.patterns = PATTERNS.map(str::to_owned).to_vec();
        }
        crate::parse(&section, log.as_bytes())
    }

    fn notes(trace: &Trace) -> Vec<(&str, Option<u64>)> {
        let all = trace.anomalies.iter();
        all.map(|a| (&*a.kind, a.step)).collect()
    }

    #[test]
    fn every_format_notes_a_step_time_that_cannot_be_one() {
        let mllog = |step: u64, time: &str| {
            format!(
                ":::MLLOG {{\"key\": \"tracked_stats\", \"value\": {{\"train_step_time\": {time}, \
                 \"reduced_train_loss\": 2.5}}, \"metadata\": {{\"step\": {}}}}}\n",
                16 * step
            )
        };
        let mllog = ":::MLLOG {\"key\": \"global_batch_size\", \"value\": 16, \"metadata\": {}}\n"
            .to_owned()
            + &mllog(1, "0.5")
            + &mllog(2, "0.0");
        let logs = [
            (
                "regex",
                "it 1 took 0.01 s at 9 lr 1e-4\nit 2 took 0.00 s at 9 lr 1e-4\n",
            ),
            (
                "maxtext",
                "completed step: 1, seconds: 4.0, loss: 9.5\ncompleted step: 2, seconds: 0.0, loss: 9.5\n",
            ),
            (
                "llm.c",
                "step 1/2 | loss 9.5 (+nanz)| norm 1.5 (+nanz)| lr 1.00e-04 | 250.50 ms | -100.0% bf16 MFU | 9 tok/s\n\
                 step 2/2 | loss 9.5 (+nanz)| norm 1.5 (+nanz)| lr 1.00e-04 | 0.00 ms | -100.0% bf16 MFU | 9 tok/s\n",
            ),
            (
                "nanogpt",
                "iter 1: loss 9.5, time 101.50ms, mfu 3.25%\niter 2: loss 8.5, time 0.00ms, mfu 3.25%\n",
            ),
            (
                "megatron",
                "Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU\n\
                 Step Time : 0.00s GPU utilization: 663.5MODEL_TFLOP/s/GPU\n",
            ),
            ("mlperf", &mllog),
        ];
        for (format, log) in logs {
            let trace = read(format, log);
            let times: Vec<_> = trace.steps.iter().map(|s| s.step_time_seconds).collect();
            assert!(
                matches!(times[..], [Some(_), None]),
                "{format}: {times:?}, {:?}",
                trace.anomalies
            );
            assert!(
                notes(&trace).contains(&(ABSURD_STEP_TIME, Some(2))),
                "{format}: {:?}",
                trace.anomalies
            );
        }
    }

    #[test]
    fn rates_that_cannot_be_are_noted() {
        let trace = read("regex", "it 1 took 0.5 s at 0 lr -1\n");
        let all: Vec<_> = trace.anomalies.iter().map(|a| &*a.detail).collect();
        assert_eq!(
            all,
            [
                "step 1: tokens per second per GPU is 0",
                "step 1: learning rate is -1"
            ]
        );
    }

    #[test]
    fn every_format_notes_an_evaluation_that_is_not_a_number() {
        let logs = [
            (
                "automodel",
                "x | [val] default | step 3 | epoch 0 | loss nan | lr 5.00e-06 | num_label_tokens 9\n",
                Some(3),
            ),
            ("deepspeed", "ppl: nan\n", None),
            (
                "hf-trainer",
                "{'eval_loss': nan, 'step': 3, 'epoch': 0.5}\n",
                Some(3),
            ),
            (
                "hf-trainer",
                "Step\tTraining Loss\tValidation Loss\n3\t2.5\tnan\n",
                Some(3),
            ),
            (
                "hf-trainer",
                "  eval_loss               =        nan\n",
                None,
            ),
            (
                "torchtitan",
                "validate step: 3  loss:  nan  memory: 44.00GiB(55.00%)  tps: 20,000\n",
                Some(3),
            ),
            (
                "megatron",
                " validation loss at iteration 3 | lm loss value: nan | lm loss PPL: 7.3E+03 |\n",
                Some(3),
            ),
            (
                "maxtext",
                "eval metrics after step: 3, loss=nan, total_weights=65536\n",
                Some(3),
            ),
            (
                "llama-recipes",
                " eval_ppl=tensor(nan) eval_epoch_loss=nan\n",
                None,
            ),
            ("composer", "Eval metrics/eval/CrossEntropy: nan\n", None),
        ];
        for (format, log, step) in logs {
            let trace = read(format, log);
            let (about, all) = (format!("{format}: {log}"), notes(&trace));
            assert!(
                all.contains(&("nan_evaluation", step)),
                "{about}{:?}",
                trace.anomalies
            );
            let mut told = trace.anomalies.iter();
            let told = told.find(|a| a.kind == "nan_evaluation").unwrap();
            assert!(told.detail.ends_with(" is NaN"), "{about}{}", told.detail);
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_at_a_wide_character(text in pieces()) {
            let _ = (grouped_number(&text), clock(&text), dictionary(&text), word_after(&text, ":"));
            if let Some((_, rest)) = grouped_number(&text) {
                prop_assert!(text.ends_with(rest));
            }
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,60}", key in "\\PC{0,3}") {
            let _ = (grouped_number(&text), clock(&text), dictionary(&text), dictionary(&format!("{{'{text}")));
            let _ = (grouped_after(&text, &key), word_after(&text, &key));
        }
    }
}

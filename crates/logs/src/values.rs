//! Numbers and words as trainers print them, and what of them can be believed.

use serde_json::Value;
use tprimat_words::part;

pub use super::numbers::{GIB, as_count as whole, grouped_number as number};
use super::{
    ABSURD_STEP_TIME,
    builder::{Builder, Notes},
    numbers::{duration, setting},
};

/// Is `needle` somewhere in `text`?
pub fn has(text: &str, needle: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), needle.as_bytes()).is_some()
}

/// What follows the first `key`.
pub fn rest<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    memchr::memmem::find(text.as_bytes(), key.as_bytes()).map(|at| part(text, at + key.len()..))
}

/// The number that follows the first `key`, perhaps after spaces.
pub fn after(text: &str, key: &str) -> Option<f64> {
    number(rest(text, key)?).map(|(value, _)| value)
}

/// The count that follows the first `key`.
pub fn count_after(text: &str, key: &str) -> Option<u64> {
    after(text, key).and_then(whole)
}

/// The word that follows the first `key`, up to a space or one of `,;)]}|`, without quotes.
pub fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let word = rest(text, key)?.trim_start();
    let end = word
        .find(|c: char| c.is_whitespace() || ",;)]}|".contains(c))
        .unwrap_or(word.len());
    Some(part(word, ..end).trim_matches(['\'', '"'])).filter(|w| !w.is_empty())
}

/// `1:02:03`, `15:19`, `2 days, 1:02:03`, `0:07:05.42` → seconds.
pub fn clock(text: &str) -> Option<f64> {
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

/// Bytes of a figure in `unit`s; `None` if it cannot be one.
pub fn bytes(figure: f64, unit: f64) -> Option<u64> {
    super::numbers::bytes(figure, unit).filter(|n| *n > 0)
}

/// A setting, unless it is stated already: of two sources that differ by nature the first one
/// counts without a word.
pub fn once(name: &str, value: impl Into<Value>, out: &mut Builder) {
    if !out.trace.effective.0.contains_key(name) {
        out.set(name, value);
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
                value.trim_matches(['\'', '"']),
            ));
        }
        at = end;
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

/// Takes the numbers of one step in; what cannot be is absent and told.
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
        let found = duration(value);
        if found.is_none() {
            self.notes
                .add_at(step, ABSURD_STEP_TIME, || format!("{name} is {value}"));
        }
        found.map(|_| value)
    }

    pub fn positive(&mut self, name: &str, value: Option<f64>) -> Option<f64> {
        self.take(name, None, value, |v| v > 0.0 && v < 1e15)
    }

    fn take(
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
            assert_eq!(number(text), Some((value, left)), "{text}");
        }
        assert!(number("nan,").unwrap().0.is_nan() && number("'-Infinity'").unwrap().0 < 0.0);
        for text in ["N/A", "", "-", "nano", ",1", "'"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(
            (clock("0:07:05.5"), clock("15:19"), clock("1 day, 1:00:00")),
            (Some(425.5), Some(919.0), Some(90_000.0))
        );
        assert_eq!((clock("7"), clock("?"), clock("1:nan")), (None, None, None));
    }

    #[test]
    fn dictionaries_are_read_without_being_json() {
        let (pairs, left) = dictionary(
            "{'loss': nan, \"lr\": '5e-05', 'x': {'y': [1, 2]}, 'text': 'a, b}', 'e': 1} tail",
        )
        .unwrap();
        assert_eq!(
            pairs,
            [
                ("loss", "nan"),
                ("lr", "5e-05"),
                ("text", "a, b}"),
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

    proptest! {
        #[test]
        fn nothing_panics_at_a_wide_character(text in pieces()) {
            let _ = (number(&text), clock(&text), dictionary(&text), word_after(&text, ":"));
            if let Some((_, rest)) = number(&text) {
                prop_assert!(text.ends_with(rest));
            }
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,60}", key in "\\PC{0,3}") {
            let _ = (number(&text), clock(&text), dictionary(&text), dictionary(&format!("{{'{text}")));
            let _ = (after(&text, &key), word_after(&text, &key));
        }
    }
}

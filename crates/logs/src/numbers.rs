//! Numbers and sizes in lines of text. All readers of formats scan numbers here.

use std::borrow::Cow;

use super::{builder::Notes, lines::cut};
use tprimat_base::words::part;

/// Bytes.
pub const MIB: f64 = 1_048_576.0;
/// Bytes.
pub const GIB: f64 = 1_073_741_824.0;

/// More memory than any device has: a misprint.
const MAX_BYTES: f64 = (1u64 << 50) as f64;

/// What stands behind the first `key` of `line`.
pub fn after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let at = memchr::memmem::find(line.as_bytes(), key.as_bytes())?;
    line.get(at + key.len()..)
}

/// The number that `text` begins with, behind blanks, and what follows it. `nan` and `inf` are
/// numbers; `1.2.3` is none, since it is a version or the numbers of two writers run together.
pub fn number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim_start();
    let bytes = text.as_bytes();
    let sign = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let digits = |from: usize| {
        bytes
            .iter()
            .skip(from)
            .take_while(|b| b.is_ascii_digit())
            .count()
    };
    let mut end = sign + digits(sign);
    if bytes.get(end) == Some(&b'.') {
        end += 1 + digits(end + 1);
    }
    if end == sign || part(text, sign..end) == "." {
        let word = bytes
            .iter()
            .skip(sign)
            .take_while(|b| b.is_ascii_alphabetic())
            .count();
        let name = text.get(sign..sign + word)?.to_ascii_lowercase();
        let value = match name.as_str() {
            "nan" => f64::NAN,
            "inf" | "infinity" => f64::INFINITY,
            _ => return None,
        };
        if bytes.get(sign + word).is_some_and(u8::is_ascii_digit) {
            return None;
        }
        let rest = part(text, sign + word..);
        return Some((
            if text.starts_with('-') { -value } else { value },
            behind_nonfinite(rest),
        ));
    }
    // `1.#QNAN` and `-1.#IND`, as Windows writes them; `1.#INF` is none either.
    if bytes.get(end) == Some(&b'#') {
        let name = bytes[end + 1..]
            .iter()
            .take_while(|b| b.is_ascii_alphabetic());
        return Some((f64::NAN, part(text, end + 1 + name.count()..)));
    }
    if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
        return None;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    Some((part(text, ..end).parse().ok()?, part(text, end..)))
}

/// What follows a NaN or an infinity: bars print `nan.0`, and C libraries `-nan(ind)`.
fn behind_nonfinite(rest: &str) -> &str {
    let is_end = |rest: &&str| !rest.starts_with(|c: char| c.is_ascii_digit());
    if let Some(rest) = rest.strip_prefix(".0").filter(is_end) {
        return rest;
    }
    let payload = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    match payload {
        Some((payload, rest)) if payload.bytes().all(|b| b.is_ascii_alphanumeric()) => rest,
        _ => rest,
    }
}

/// The finite number that a text begins with.
pub fn finite_number(text: &str) -> Option<f64> {
    Some(number(text)?.0).filter(|value| value.is_finite())
}

/// The same as people write it: `1,297`, with quotes around it or not.
pub fn grouped_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim_start();
    let unquoted = text.strip_prefix(['\'', '"']);
    let digits = unquoted.unwrap_or(text);
    let (value, rest) = match thousands(digits) {
        None => number(digits)?,
        Some(end) => {
            let plain = part(digits, ..end).replace(|c| !matches!(c, '+' | '-' | '0'..='9'), "");
            let plain = plain + part(digits, end..);
            let (value, rest) = number(&plain)?;
            (value, part(digits, digits.len() - rest.len()..))
        }
    };
    let closing = unquoted.and_then(|_| rest.strip_prefix(['\'', '"']));
    Some((value, closing.unwrap_or(rest)))
}

/// Where the groups of thousands end that `text` begins with, if it does.
fn thousands(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        let digits = bytes.iter().skip(from);
        digits.take_while(|b| b.is_ascii_digit()).count()
    };
    let mut end = usize::from(text.starts_with(['+', '-']));
    let first = digits(end);
    if first == 0 {
        return None;
    }
    end += first;
    let mut is_grouped = false;
    let mut separator = None;
    while let Some(width) = between_groups(part(text, end..), &mut separator)
        && digits(end + width) == 3
    {
        end += width + 3;
        is_grouped = true;
    }
    is_grouped.then_some(end)
}

/// What people write between thousands; of a number it is the same everywhere.
const SEPARATORS: [char; 6] = [',', '\'', '\u{2019}', '\u{a0}', '\u{2009}', '\u{202f}'];

/// How many bytes the separator has that `text` begins with, if it does.
fn between_groups(text: &str, separator: &mut Option<char>) -> Option<usize> {
    let first = text.chars().next().filter(|c| SEPARATORS.contains(c))?;
    (*separator.get_or_insert(first) == first).then(|| first.len_utf8())
}

/// The count that `text` begins with, behind blanks, and what follows it.
pub fn count(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start();
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    Some((part(text, ..end).parse().ok()?, part(text, end..)))
}

/// A text that is one number and nothing else, with or without commas between thousands.
pub fn whole_text_number(text: &str) -> Option<f64> {
    let text = text.trim();
    let plain = match text.contains(SEPARATORS) && !text.starts_with(SEPARATORS) {
        true => Cow::Owned(text.replace(SEPARATORS, "")),
        false => Cow::Borrowed(text),
    };
    let (value, rest) = number(&plain)?;
    rest.is_empty().then_some(value)
}

/// A text that is one number in thousands or millions, such as `41.2k`.
pub fn suffixed_number(text: &str) -> Option<f64> {
    let text = text.trim();
    let (scale, number) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (1e3, number),
        None => (1e6, text.strip_suffix('M')?),
    };
    Some(whole_text_number(number)? * scale)
}

/// What a number is multiplied by that has such a letter right behind it, as in `12.3k tok/s`.
pub fn thousands_behind(tail: &str) -> Option<f64> {
    let mut letters = tail.chars();
    let scale = match letters.next()? {
        'k' | 'K' => 1e3,
        'M' => 1e6,
        _ => return None,
    };
    let is_word = letters.next().is_some_and(char::is_alphanumeric);
    (!is_word).then_some(scale)
}

/// A finite value; `nan` and `inf` become a note of `kind` instead.
pub fn finite(value: f64, kind: &'static str, step: u64, notes: &mut Notes) -> Option<f64> {
    if value.is_finite() {
        return Some(value);
    }
    notes.add_at(step, kind, || format!("{value}"));
    None
}

/// `value` units of memory, in bytes.
pub fn bytes(value: f64, unit: f64) -> Option<u64> {
    let bytes = (value * unit).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked on the line"
    )]
    (0.0..MAX_BYTES).contains(&bytes).then_some(bytes as u64)
}

/// A float that is a count.
pub fn as_count(value: f64) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked on the line"
    )]
    (value.fract() == 0.0 && (0.0..9e15).contains(&value)).then_some(value as u64)
}

/// A setting as JSON: a whole number where it is one.
pub fn setting(value: f64) -> serde_json::Value {
    match as_count(value) {
        Some(n) => n.into(),
        None => value.into(),
    }
}

/// A setting's text as JSON: number, truth or words.
pub fn stated(text: &str) -> Option<serde_json::Value> {
    Some(match text.trim() {
        "" => return None,
        "True" | "true" => true.into(),
        "False" | "false" => false.into(),
        text => match whole_text_number(text).filter(|v| v.is_finite()) {
            Some(number) => setting(number),
            None => cut(text, 120).into(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_their_units_begin() {
        assert_eq!(number(" 135.2ms, x"), Some((135.2, "ms, x")));
        assert_eq!(number("8.57e-07 |"), Some((8.57e-7, " |")));
        assert_eq!(number("5e"), Some((5.0, "e")));
        assert_eq!(number("-100.00%"), Some((-100.0, "%")));
        assert_eq!(number("7/10"), Some((7.0, "/10")));
        assert_eq!(number(".5"), Some((0.5, "")));
        assert_eq!(number("2.5. Then"), Some((2.5, ". Then")));
        assert!(number("-nanz)").is_none(), "a word that only begins so");
        assert!(number("nan)").unwrap().0.is_nan());
        for text in [
            "nan.0,",
            "NaN,",
            "-nan(ind),",
            "nan(0x7),",
            "1.#QNAN,",
            "-1.#IND,",
        ] {
            let (value, rest) = number(text).unwrap();
            assert!(value.is_nan() && rest == ",", "{text}");
        }
        assert_eq!(number("-inf"), Some((f64::NEG_INFINITY, "")));
        for none in [
            "",
            "-",
            ".",
            "x1",
            "é",
            "-é",
            "e5",
            "1.2.3",
            "812.5812.5",
            "nan5",
        ] {
            assert_eq!(number(none), None, "{none}");
        }
        assert_eq!(whole_text_number("1,340"), Some(1340.0));
        for text in [
            "12,345",
            "12'345",
            "12\u{2019}345",
            "12\u{a0}345",
            "12\u{2009}345",
            "12\u{202f}345",
        ] {
            assert_eq!(whole_text_number(text), Some(12_345.0), "{text}");
            assert_eq!(
                grouped_number(&format!("{text}.5 x")),
                Some((12_345.5, " x")),
                "{text}"
            );
        }
        assert_eq!(grouped_number("'345', "), Some((345.0, ", ")));
        assert_eq!(grouped_number("12,345'678"), Some((12_345.0, "'678")));
        assert_eq!(whole_text_number("1,340 W"), None);
        assert_eq!(count(" 12/30"), Some((12, "/30")));
        assert_eq!(count("99999999999999999999"), None);
    }
}

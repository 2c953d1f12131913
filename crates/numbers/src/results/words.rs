//! What many sentences are made of: counts, lists, numbers.

/// `dropout, packing`; of many, the first and how many more.
#[must_use]
pub fn few<T: AsRef<str>>(names: &[T]) -> String {
    const MOST: usize = 4;
    let (named, more) = names.split_at(if names.len() > MOST {
        MOST - 1
    } else {
        names.len()
    });
    let named = named
        .iter()
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(", ");
    if more.is_empty() {
        named
    } else {
        format!("{named} and {} more", more.len())
    }
}

/// `repeat 2`, `repeats 1, 3`
#[must_use]
pub fn repeats(numbers: &[u32]) -> String {
    let s = if numbers.len() == 1 { "" } else { "s" };
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("repeat{s} {}", numbers.join(", "))
}

/// The verb after [`repeats`].
#[must_use]
pub fn verb<'a>(numbers: &[u32], one: &'a str, several: &'a str) -> &'a str {
    if numbers.len() == 1 { one } else { several }
}

/// `: the log's own line`
#[must_use]
pub fn evidence(line: Option<&String>) -> String {
    line.map(|line| format!(": {line}")).unwrap_or_default()
}

#[must_use]
pub fn seconds(seconds: f64) -> String {
    if seconds.abs() < 0.05 {
        format!("{seconds:.1e} s")
    } else {
        format!("{seconds:.1} s")
    }
}

/// A step's time: three digits, in ms below a second.
#[must_use]
pub fn step_time(seconds: f64) -> String {
    if seconds < 0.9995 {
        format!("{} ms", three_digits(seconds * 1e3))
    } else {
        format!("{} s", three_digits(seconds))
    }
}

fn three_digits(value: f64) -> String {
    let decimals = if value < 9.995 {
        2
    } else {
        usize::from(value < 99.95)
    };
    format!("{value:.decimals$}")
}

/// Four digits for a sentence: `10682`, `549.8`, `0.5557`.
#[must_use]
pub fn short(value: f64) -> String {
    let magnitude = value.abs().log10().floor();
    if value != 0.0 && !(-6.0..15.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    let decimals = (3.0 - magnitude).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// `1,048,576`; below a hundred thousand with one decimal, where it is not whole.
#[must_use]
pub fn thousands(value: f64) -> String {
    let text = if value.abs() < 1e5 && value.fract().abs() > 0.005 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    };
    let (digits, decimals) = text
        .split_once('.')
        .map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0
            && (digits.len() - i).is_multiple_of(3)
            && digit.is_ascii_digit()
            && !out.ends_with('-')
        {
            out.push(',');
        }
        out.push(digit);
    }
    decimals.map_or(out.clone(), |d| format!("{out}.{d}"))
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn four_digits_are_written() {
        let written = [
            10_682.31,
            549.84,
            0.555_73,
            3.0,
            1e15,
            0.000_012_346,
            1e-9,
            0.0,
        ]
        .map(short);
        assert_eq!(
            written,
            [
                "10682",
                "549.8",
                "0.5557",
                "3",
                "1.000e15",
                "0.00001235",
                "1.000e-9",
                "0"
            ]
        );
    }
}

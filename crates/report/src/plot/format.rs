//! Numbers as people read them: four significant digits, thousands apart, units beside.

use tprimat_numbers::results::decimals_beside;

/// What stands where no figure is.
pub const MISSING: &str = "–";

/// `10,682`, `341.3`, `0.01235`; what is no number is missing.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    // Taken of the rounded value: 9.9999 is printed as 10.00, with two decimals and not three.
    let text = format!("{value:.3e}");
    let magnitude = text
        .rsplit_once('e')
        .and_then(|(_, power)| power.parse().ok());
    let Some(magnitude) = magnitude.filter(|magnitude: &i32| (-4..15).contains(magnitude)) else {
        return text;
    };
    let decimals = usize::try_from(3 - magnitude).unwrap_or(0);
    grouped(&format!("{value:.decimals$}"))
}

/// A number as text, with its thousands apart.
pub(crate) fn grouped(number: &str) -> String {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut out = String::new();
    for (i, ch) in whole.char_indices() {
        let left = whole.len() - i;
        if left.is_multiple_of(3) && out.ends_with(|before: char| before.is_ascii_digit()) {
            out.push(',');
        }
        out.push(ch);
    }
    out + fraction
}

/// A ratio with two decimals, and more where its interval, `width` wide, would vanish in them:
/// `1.31`, `1.003`, `262`.
pub fn ratio(value: f64, width: Option<f64>) -> String {
    if !value.is_finite() || !(1e-4..100.0).contains(&value) {
        return number(value);
    }
    // Two digits of a small ratio, and at least one of the interval's width.
    let digits = |of: f64| (-of.log10() + 0.3).ceil().clamp(2.0, 6.0) as usize;
    let small = if value < 0.1 { digits(value) + 1 } else { 2 };
    let decimals = width
        .filter(|w| *w > 0.0 && w.is_finite())
        .map_or(2, digits)
        .max(small);
    format!("{value:.decimals$}")
}

/// The same of a ratio of which it matters on which side of 1 it lies: `0.996`, where two decimals
/// would be `1.00`.
pub fn ratio_beside_1(value: f64, width: Option<f64>) -> String {
    let text = ratio(value, width);
    let decimals = text
        .split_once('.')
        .map_or(0, |(_, fraction)| fraction.len());
    // What is written otherwise is far from 1.
    if !(0.1..10.0).contains(&value) {
        return text;
    }
    format!("{value:.*}", decimals_beside(value, 1.0, decimals))
}

/// `305.1 ms`, `12.27 s`.
pub fn seconds(value: f64) -> String {
    match value {
        v if !v.is_finite() => MISSING.to_owned(),
        v if v.abs() < 1e-3 => format!("{} µs", number(v * 1e6)),
        v if v.abs() < 1.0 => format!("{} ms", number(v * 1e3)),
        v => format!("{} s", number(v)),
    }
}

/// A metric as its unit asks for: `55.6 %`, `1.200 h`, `9.613 M tokens/USD`; without a unit that
/// its title has.
pub fn metric(value: f64, unit: &str, title: &str) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    match unit {
        "fraction" => percent(value),
        "s" if value >= 3600.0 => format!("{} h", number(value / 3600.0)),
        "s" => seconds(value),
        _ if unit.is_empty() || title.contains(unit) => large(value),
        _ => format!("{} {unit}", large(value)),
    }
}

/// What large numbers are told in.
pub(crate) const SCALES: [(f64, &str); 3] = [(1e12, "T"), (1e9, "G"), (1e6, "M")];

/// `9.613 M`, `104,200`: what has more than seven digits in millions and their like.
fn large(value: f64) -> String {
    match SCALES.iter().find(|(size, _)| value.abs() >= *size) {
        Some((size, letter)) if value.abs() < 1e15 => format!("{} {letter}", number(value / size)),
        _ => number(value),
    }
}

/// `36.17 GiB`
pub fn bytes(value: u64) -> String {
    let value = value as f64;
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, size)| value >= *size as f64) {
        Some((unit, size)) => format!("{} {unit}", number(value / *size as f64)),
        None => format!("{value:.0} B"),
    }
}

/// `55.6 %`, `0.094 %`; what is smaller than a tenth keeps two digits.
pub fn percent(value: f64) -> String {
    let value = value * 100.0;
    if !value.is_finite() {
        MISSING.to_owned()
    } else if value == 0.0 || (0.1..1e6).contains(&value.abs()) {
        format!("{value:.1} %")
    } else if (1e-4..0.1).contains(&value.abs()) {
        let decimals = (1.0 - value.abs().log10().floor()) as usize;
        format!("{value:.decimals$} %")
    } else if value.abs() < 1e-4 {
        // The last bits of a sum, not a spread.
        "under 0.0001 %".to_owned()
    } else {
        format!("{} %", number(value))
    }
}

/// Stands behind the name of a cell that tprimat did not measure.
pub fn mark(imported: &[String]) -> &'static str {
    if imported.is_empty() {
        ""
    } else {
        " (imported)"
    }
}

/// From here on, a factor is easier to read than per cent.
pub const FACTOR: f64 = 2.0;

/// `11–15 %`, `−0.6 to +1.0 %`, `2.5–2.7×`: a change of speed.
#[must_use]
pub fn change_range(value: f64, [low, high]: [f64; 2]) -> String {
    let width = Some(high - low);
    if value >= FACTOR {
        format!(
            "{}–{}×",
            ratio_beside_1(low, width),
            ratio_beside_1(high, width)
        )
    } else if low >= 1.0 {
        format!("{}–{} %", points(low, width), points(high, width))
    } else {
        let signed = |end: f64| {
            format!(
                "{}{}",
                if end < 1.0 { "−" } else { "+" },
                points(end, width).trim_start_matches('-')
            )
        };
        format!("{} to {} %", signed(low), signed(high))
    }
}

/// `13 % faster` and `than`, `2.6× as fast` and `as`: how much faster the faster one is, in the
/// unit in which [`change_range`] has its interval.
#[must_use]
pub fn faster(value: f64, width: Option<f64>) -> (String, &'static str) {
    if value < FACTOR {
        (format!("{} % faster", points(value, width)), "than")
    } else {
        (format!("{}× as fast", ratio(value, width)), "as")
    }
}

/// Per cent above 1, with as many decimals as the width of the interval calls for and as show on
/// which side of 1 it lies.
#[must_use]
pub fn points(value: f64, width: Option<f64>) -> String {
    let percent = (value - 1.0) * 100.0;
    if !percent.is_finite() {
        return MISSING.to_owned();
    }
    let least = match width.map_or(percent.abs() / 4.0, |width| width * 100.0) {
        w if w >= 2.0 => 0,
        w if w >= 0.2 => 1,
        w if w >= 0.02 => 2,
        _ => 3,
    };
    format!("{percent:.*}", decimals_beside(percent, 0.0, least))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A ratio of any size, most of them near 1.
    fn ratios() -> impl Strategy<Value = f64> {
        let near = (-16.0f64..0.0, any::<bool>()).prop_map(|(exponent, above)| {
            let off = 10f64.powf(exponent);
            if above { 1.0 + off } else { 1.0 - off * 0.999 }
        });
        prop_oneof![8 => near, 1 => Just(1.0), 1 => 1e-9f64..1e6]
    }

    proptest! {
        #[test]
        fn printed_ends_leave_1_out_exactly_where_the_interval_does(a in ratios(), b in ratios()) {
            let (low, high) = (a.min(b), a.max(b));
            let width = Some(high - low);
            let [read_low, read_high] =
                [low, high].map(|end| ratio_beside_1(end, width).replace(',', "").parse::<f64>().unwrap());
            prop_assert_eq!(low > 1.0, read_low > 1.0);
            prop_assert_eq!(high < 1.0, read_high < 1.0);
            prop_assert!(read_low <= read_high, "{} {}", read_low, read_high);
        }
    }

    #[test]
    fn a_ratio_near_1_has_as_many_decimals_as_show_its_side() {
        for (value, width, text) in [
            (0.9963, 0.07, "0.996"),
            (0.999_96, 0.07, "0.99996"),
            (1.004, 0.2, "1.004"),
            (1.006, 0.2, "1.01"),
            (0.932, 0.07, "0.93"),
            (1.0, 0.07, "1.00"),
            (1.000_000_04, 0.2, "1.00000004"),
            (262.4, 0.2, "262.4"),
        ] {
            assert_eq!(ratio_beside_1(value, Some(width)), text);
        }
        assert_eq!(ratio_beside_1(f64::NAN, None), MISSING);
    }

    #[test]
    fn four_digits_and_thousands() {
        for (value, text) in [
            (10_682.4, "10,682"),
            (341.34, "341.3"),
            (0.012_345, "0.01235"),
            (-1_234_567.0, "-1,234,567"),
            (0.0, "0.000"),
            (1e-9, "1.000e-9"),
            (f64::NAN, MISSING),
            (f64::INFINITY, MISSING),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(
            (seconds(0.3051), seconds(12.27)),
            ("305.1 ms".to_owned(), "12.27 s".to_owned())
        );
        assert_eq!(
            (bytes(38_838_185_984), bytes(12)),
            ("36.17 GiB".to_owned(), "12 B".to_owned())
        );
        assert_eq!(
            (percent(0.5557), percent(0.000_943_4)),
            ("55.6 %".to_owned(), "0.094 %".to_owned())
        );
        for (value, width, text) in [
            (1.312, Some(0.04), "1.31"),
            (1.0031, Some(0.004), "1.003"),
            (0.0123, None, "0.0123"),
            (262.4, Some(3.0), "262.4"),
            (1e-9, None, "1.000e-9"),
            (f64::NAN, None, MISSING),
        ] {
            assert_eq!(ratio(value, width), text);
        }
    }
}

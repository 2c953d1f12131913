//! Values → pixels, and round ticks.

/// From `low` to `high`, both finite, `low < high`; logarithmic only where `low > 0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Pixels of `low` and `high`.
    from: i32,
    to: i32,
}

impl Scale {
    /// Any two numbers make an axis; what cannot be shown is widened.
    pub fn new([low, high]: [f64; 2], [from, to]: [i32; 2]) -> Self {
        let low = if low.is_finite() { low } else { 0.0 };
        let least = low.abs().max(f64::MIN_POSITIVE * 1e9) * 1e-9;
        let high = if high.is_finite() {
            high.max(low + least)
        } else {
            low + 1.0
        };
        Self {
            low,
            high,
            logarithmic: false,
            from,
            to,
        }
    }

    /// The same axis in powers, where it can be.
    pub fn logarithmic(self) -> Self {
        Self {
            logarithmic: self.low > 0.0,
            ..self
        }
    }

    pub fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// Values outside are drawn at the edge.
    pub fn at(&self, value: f64) -> i32 {
        let part = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let part = if part.is_nan() {
            0.0
        } else {
            part.clamp(0.0, 1.0)
        };
        self.from + (f64::from(self.to - self.from) * part).round() as i32
    }

    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Round values on the axis, about `wanted`, with their labels.
    pub fn ticks(&self, wanted: usize) -> Vec<(f64, String)> {
        if self.logarithmic {
            return self.powers(wanted);
        }
        let step = round_step((self.high - self.low) / wanted.max(1) as f64);
        let first = (self.low / step).ceil();
        let ticks: Vec<f64> = (0..=2 * wanted + 2)
            .map(|i| (first + i as f64) * step)
            .take_while(|tick| *tick <= self.high + step * 1e-6)
            .map(|tick| if tick.abs() < step * 1e-6 { 0.0 } else { tick })
            .collect();
        let most = self.low.abs().max(self.high.abs());
        ticks
            .into_iter()
            .map(|tick| (tick, label(tick, step, most)))
            .collect()
    }

    /// Powers of 2, 10, 100, …: the first of which there are not too many.
    fn powers(&self, wanted: usize) -> Vec<(f64, String)> {
        for base in [2.0f64, 10.0, 1e2, 1e4, 1e8, 1e16, 1e64] {
            let first = (self.low.ln() / base.ln() - 1e-9).ceil();
            let powers: Vec<f64> = (0..=2 * wanted)
                .map(|i| base.powf(first + i as f64))
                .take_while(|tick| *tick <= self.high * (1.0 + 1e-9))
                .collect();
            if powers.len() <= wanted + 1 {
                return powers
                    .into_iter()
                    .map(|tick| (tick, label(tick, tick, tick)))
                    .collect();
            }
        }
        Vec::new()
    }
}

fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    if !power.is_normal() {
        return rough;
    }
    [1.0, 2.0, 5.0, 10.0]
        .iter()
        .map(|m| m * power)
        .find(|step| *step >= rough)
        .unwrap_or(rough)
}

/// A tick with as many digits as tell it from the next one: `1,500`, `0.25`, `0`, `2.5e12`.
fn label(tick: f64, step: f64, most: f64) -> String {
    let digits = |value: f64| value.abs().log10().floor() as i32;
    if tick == 0.0 {
        return "0".to_owned();
    }
    // Where all ticks are large, in millions and their like.
    let scale = [(12, 1e12, "T"), (9, 1e9, "G"), (7, 1e6, "M")]
        .into_iter()
        .find(|(least, ..)| digits(most) >= *least);
    if let Some((_, size, letter)) = scale.filter(|_| digits(most) < 15) {
        return format!("{} {letter}", label(tick / size, step / size, most / size));
    }
    if !(-4..7).contains(&digits(most)) {
        let mantissa = usize::try_from(digits(tick) - digits(step))
            .unwrap_or(0)
            .min(12);
        return format!("{tick:.mantissa$e}");
    }
    let decimals = usize::try_from(-digits(step * 1.000_001))
        .unwrap_or(0)
        .min(12);
    if decimals > 0 {
        trimmed(&format!("{tick:.decimals$}"))
    } else {
        whole(tick)
    }
}

fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `-12,500`
pub fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::from(if value < 0.0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Smallest and largest of what is finite.
pub fn extent(values: impl IntoIterator<Item = f64>) -> Option<[f64; 2]> {
    let finite = values.into_iter().filter(|v| v.is_finite());
    finite.fold(None, |all, v| {
        Some(all.map_or([v, v], |[low, high]: [f64; 2]| [low.min(v), high.max(v)]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64) -> Vec<String> {
        Scale::new([low, high], [0, 100])
            .ticks(5)
            .into_iter()
            .map(|(_, label)| label)
            .collect()
    }

    #[test]
    fn ticks_are_round_and_differ() {
        assert_eq!(
            labels(0.0, 2500.0),
            ["0", "500", "1,000", "1,500", "2,000", "2,500"]
        );
        assert_eq!(labels(0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(
            labels(10_682.0, 10_682.4),
            ["10682", "10682.1", "10682.2", "10682.3", "10682.4"]
        );
        assert_eq!(labels(-1.0, 1.0), ["-1", "-0.5", "0", "0.5", "1"]);
        assert_eq!(labels(0.0, 71e6)[..3], ["0", "20 M", "40 M"]);
        assert_eq!(labels(0.0, 1e15)[1], "2e14");
        assert_eq!(labels(0.0, 1e-9)[1], "2e-10");
    }

    #[test]
    fn any_two_numbers_make_an_axis() {
        for (low, high) in [
            (0.0, 0.0),
            (1.0, 1.0),
            (f64::NAN, 1.0),
            (0.0, f64::INFINITY),
            (1e300, 1e300),
            (0.0, 5e-324),
        ] {
            let scale = Scale::new([low, high], [10, 90]);
            for scale in [scale, scale.logarithmic()] {
                for value in [low, high, f64::NAN, -1.0, 1e308] {
                    assert!((10..=90).contains(&scale.at(value)), "{low} {high} {value}");
                }
                let ticks = scale.ticks(5);
                assert!(
                    ticks.len() <= 13 && ticks.windows(2).all(|w| w[0].1 != w[1].1),
                    "{low} {high} {ticks:?}"
                );
            }
        }
    }

    #[test]
    fn logarithmic_ticks_are_powers() {
        let ticks = Scale::new([0.5, 9.0], [0, 100]).logarithmic().ticks(5);
        assert_eq!(
            ticks.iter().map(|t| t.1.as_str()).collect::<Vec<_>>(),
            ["0.5", "1", "2", "4", "8"]
        );
        let ticks = Scale::new([1e-9, 1e15], [0, 100]).logarithmic().ticks(6);
        assert!(ticks.len() > 2 && ticks.len() <= 7, "{ticks:?}");
    }
}

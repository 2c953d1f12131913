//! Values → pixels, and round ticks. plotters' own axes fail for ranges below 2e-16, and know no
//! edge at which to keep what is beyond it.

use crate::plot::format::{SCALES, grouped};

/// From `low` to `high`, both finite, `low < high`; logarithmic only where `low > 0`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub low: f64,
    pub high: f64,
    pub logarithmic: bool,
    /// Where `low` and `high` lie in the picture.
    pixels: [i32; 2],
}

impl Scale {
    /// Any two numbers make an axis; what cannot be shown is widened.
    pub fn new([low, high]: [f64; 2]) -> Self {
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
            pixels: [0, 1],
        }
    }

    /// The same axis from one pixel to another.
    pub fn on(self, pixels: [i32; 2]) -> Self {
        Self { pixels, ..self }
    }

    /// The same axis in powers, where it can be.
    pub fn logarithmic(self) -> Self {
        let logarithmic = self.low > 0.0;
        Self {
            logarithmic,
            ..self
        }
    }

    /// Values outside are drawn at the edge.
    pub fn at(&self, value: f64) -> i32 {
        let part = if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let part = if part.is_nan() { 0.0 } else { part };
        let [from, to] = self.pixels;
        from + (f64::from(to - from) * part.clamp(0.0, 1.0)).round() as i32
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
        let most = self.low.abs().max(self.high.abs());
        (0..=2 * wanted + 2)
            .map(|i| (first + i as f64) * step)
            .take_while(|tick| *tick <= self.high + step * 1e-6)
            .map(|tick| if tick.abs() < step * 1e-6 { 0.0 } else { tick })
            .map(|tick| (tick, label(tick, step, most)))
            .collect()
    }

    /// Powers of 2, 10, 100, …: the first of which there are not too many.
    fn powers(&self, wanted: usize) -> Vec<(f64, String)> {
        let of = |base: &f64| -> Vec<(f64, String)> {
            let first = (self.low.ln() / base.ln() - 1e-9).ceil();
            // Powers of 2 have more digits than one: 0.25, 0.125.
            let finest = if *base == 2.0 { 0.01 } else { 1.0 };
            (0..=2 * wanted)
                .map(|i| base.powf(first + i as f64))
                .take_while(|tick| *tick <= self.high * (1.0 + 1e-9))
                .map(|tick| (tick, label(tick, tick * finest, tick)))
                .collect()
        };
        let bases = [2.0f64, 10.0, 1e2, 1e4, 1e8, 1e16, 1e64];
        let mut ticks = bases.iter().map(of);
        ticks.find(|t| t.len() <= wanted + 1).unwrap_or_default()
    }
}

fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    if !power.is_normal() {
        return rough;
    }
    let steps = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
    steps
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough)
}

/// A tick with as many digits as tell it from the next one: `1,500`, `0.25`, `0`, `20 M`, `2e15`.
fn label(tick: f64, step: f64, most: f64) -> String {
    let digits = |value: f64| value.abs().log10().floor() as i32;
    if tick == 0.0 {
        return "0".to_owned();
    }
    if (7..15).contains(&digits(most))
        && let Some((size, letter)) = SCALES.iter().find(|(size, _)| most >= *size)
    {
        return format!("{} {letter}", label(tick / size, step / size, most / size));
    }
    if !(-4..7).contains(&digits(most)) {
        let mantissa = (digits(tick) - digits(step)).clamp(0, 12) as usize;
        return format!("{tick:.mantissa$e}");
    }
    match (-digits(step * 1.000_001)).clamp(0, 12) as usize {
        0 => grouped(&format!("{tick:.0}")),
        decimals => {
            let text = format!("{tick:.decimals$}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

/// Smallest and largest of what is finite.
pub fn extent(values: impl IntoIterator<Item = f64>) -> Option<[f64; 2]> {
    let finite = values.into_iter().filter(|v| v.is_finite());
    let ends = finite.map(|value| [value, value]);
    ends.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])])
}
#[cfg(test)]
mod tests {
    use super::*;

    fn labels(low: f64, high: f64) -> Vec<String> {
        Scale::new([low, high])
            .on([0, 100])
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
            let scale = Scale::new([low, high]).on([10, 90]);
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
        let ticks = Scale::new([0.5, 9.0]).on([0, 100]).logarithmic().ticks(5);
        assert_eq!(
            ticks.iter().map(|t| t.1.as_str()).collect::<Vec<_>>(),
            ["0.5", "1", "2", "4", "8"]
        );
        let ticks = Scale::new([0.2, 2.0]).on([0, 100]).logarithmic().ticks(5);
        let labels: Vec<_> = ticks.iter().map(|t| t.1.as_str()).collect();
        assert_eq!(labels, ["0.25", "0.5", "1", "2"]);
        let ticks = Scale::new([1e-9, 1e15]).on([0, 100]).logarithmic().ticks(6);
        assert!(ticks.len() > 2 && ticks.len() <= 7, "{ticks:?}");
    }
}

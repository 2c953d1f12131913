//! The change of a rate, and how much more had to be measured to be sure of it, in words.

use crate::results::decimals_beside;

use super::ROUNDING;
use crate::figures::Unit;

/// A ratio with its 95 % interval, and the share by which it may be below 1.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub ratio: f64,
    pub ci95: [f64; 2],
    pub max_regression: f64,
}

impl Change {
    /// `−3.21 % (95 % CI −4.12 to −2.30 %)`: the change of the rate, below 0 where it is slower.
    pub fn interval(&self) -> String {
        let [low, high] = self.ci95.map(|ratio| self.percent(ratio));
        format!("{} (95 % CI {low} to {high} %)", self.alone())
    }

    /// `−3.21 %`
    pub fn alone(&self) -> String {
        format!("{} %", self.percent(self.ratio))
    }

    /// With as many decimals as show on which side of the limit it is; at the limit itself two.
    fn percent(&self, ratio: f64) -> String {
        let limit = -100.0 * self.max_regression;
        let percent = (ratio - 1.0) * 100.0;
        let is_at_limit = (ratio - (1.0 - self.max_regression)).abs() <= ROUNDING;
        let decimals = if is_at_limit {
            2
        } else {
            decimals_beside(percent, limit, 2)
        };
        format!("{percent:+.decimals$}").replace('-', "−")
    }

    /// `−3 %`
    pub fn allowed(&self) -> String {
        let percent = format!("{:.2}", self.max_regression * 100.0);
        match percent.trim_end_matches('0').trim_end_matches('.') {
            "0" => "0 %".to_owned(),
            percent => format!("−{percent} %"),
        }
    }
}

/// How many units of replication, now and in the baseline, would tell at this spread. `n`: none where
/// more than `most` would be needed.
pub(super) fn needed(n: Option<usize>, most: usize, unit: Unit) -> String {
    match n {
        Some(n) => format!(
            "about {} now and in the baseline would tell, at this spread",
            unit.counted(n)
        ),
        None => format!(
            "more than {most} {}s would be needed to tell, at this spread",
            unit.name()
        ),
    }
}

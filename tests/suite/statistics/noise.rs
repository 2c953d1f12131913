//! Random numbers and the noise of runs, the same every time.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Between 0 and 1.
    pub fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / 9_007_199_254_740_992.0
    }
    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
    /// Student's t with three degrees of freedom, scaled to a variance of 1.
    pub fn heavy(&mut self) -> f64 {
        let chi = (0..3).map(|_| self.normal().powi(2)).sum::<f64>();
        self.normal() / chi.sqrt()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tails {
    Normal,
    /// Student's t, 3 degrees of freedom.
    Heavy,
    /// Normal, and 2 % of the steps take 1.5 to 3 times as long.
    Outliers,
}

/// How step times vary around the level of their run.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// The coefficient of an AR(1) process.
    pub phi: f64,
    /// Relative standard deviation of a step.
    pub sd: f64,
    pub tails: Tails,
}

impl Noise {
    /// `n` steps of a run whose level is 1.
    pub fn steps(self, n: usize, random: &mut Random) -> Vec<f64> {
        let mut state = random.normal();
        let step = |_| {
            let shock = if self.tails == Tails::Heavy {
                random.heavy()
            } else {
                random.normal()
            };
            state = self.phi * state + (1.0 - self.phi * self.phi).sqrt() * shock;
            let odd = if self.tails == Tails::Outliers && random.uniform() < 0.02 {
                1.5 + 1.5 * random.uniform()
            } else {
                1.0
            };
            (odd * (1.0 + self.sd * state)).max(0.5)
        };
        (0..n).map(step).collect()
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

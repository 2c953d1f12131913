//! e to a power, without a branch or a call, so that loops over it are vectorised.

/// 355/512: few enough bits that its products with whole numbers are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
/// Added to a number of less than 2^22, it leaves the nearest whole number in the low bits.
const ROUND: f32 = 12_582_912.0;

/// e^x for `x` of at most 88; 1e-38 or so below -87. Not-a-number stays what it is.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Not f32::max, which would make a number of not-a-number.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    // The series of e^r, |r| <= ln 2 / 2: the first term left out is below 6e-9.
    let tail = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let tail = 0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * tail));
    let series = 1.0 + (r + r * r * tail);
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    series * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_two_roundings_of_the_exact_value() {
        let mut x = -86.9_f32;
        while x < 88.0 {
            let wanted = f64::from(x).exp();
            let error = (f64::from(exp(x)) - wanted).abs() / wanted;
            assert!(error < 1.5 * f64::from(f32::EPSILON), "{x}: {error:e}");
            x += 0.001_37;
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(1e9).is_finite());
    }
}

//! RMSNorm, with the addition to the residual stream before it.

use crate::{sum, vectorised};

#[inline(always)]
fn normalise(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> f32 {
    let scale = 1.0 / (sum([x], |[x]| x * x) / x.len() as f32 + eps).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
    scale
}

vectorised! {
    /// `out` = rows of `x` over their root mean square, times `weight`; `scales` = one over it.
    pub fn norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32], scales: &mut [f32]) {
        let width = weight.len();
        let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
        for ((x, out), scale) in rows.zip(scales) {
            *scale = normalise(x, weight, eps, out);
        }
    }
}

vectorised! {
    /// `total` = `x` + `y`, and its [`norm`].
    pub fn add_and_norm(
        x: &[f32],
        y: &[f32],
        weight: &[f32],
        eps: f32,
        total: &mut [f32],
        out: &mut [f32],
        scales: &mut [f32],
    ) {
        let width = weight.len();
        let terms = x.chunks_exact(width).zip(y.chunks_exact(width));
        let results = total.chunks_exact_mut(width).zip(out.chunks_exact_mut(width));
        for (((x, y), (total, out)), scale) in terms.zip(results).zip(scales) {
            for ((total, x), y) in total.iter_mut().zip(x).zip(y) {
                *total = x + y;
            }
            *scale = normalise(total, weight, eps, out);
        }
    }
}

vectorised! {
    /// Adds the derivatives by `x` to `dx` and those by the weight to `dw`. `scales`: as [`norm`]
    /// left them.
    pub fn norm_backward(
        x: &[f32],
        scales: &[f32],
        weight: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        dw: &mut [f32],
    ) {
        let width = weight.len();
        let inputs = x.chunks_exact(width).zip(dy.chunks_exact(width));
        for (((x, dy), dx), scale) in inputs.zip(dx.chunks_exact_mut(width)).zip(scales) {
            let dot = sum([x, dy, weight], |[x, dy, weight]| x * (dy * weight));
            let along = dot * scale * scale * scale / width as f32;
            let elements = dx.iter_mut().zip(dw.iter_mut());
            for (((dx, dw), (x, dy)), weight) in elements.zip(x.iter().zip(dy)).zip(weight) {
                *dw += dy * (x * scale);
                *dx += dy * weight * scale - x * along;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tests::{close, numbers};

    /// The normalised row in float64.
    fn exact(x: &[f64], weight: &[f32], eps: f64) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + eps).sqrt();
        x.iter()
            .zip(weight)
            .map(|(x, w)| x * scale * f64::from(*w))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn agrees_with_float64(rows in 1_usize..5, width in 1_usize..70, seed: u64) {
            let (a, b) = (numbers(rows * width, seed), numbers(rows * width, seed ^ 1));
            let (weight, dy) = (numbers(width, seed ^ 2), numbers(rows * width, seed ^ 3));
            let eps = 1e-3;
            let (mut x, mut out) = (vec![0.0; rows * width], vec![0.0; rows * width]);
            let mut scales = vec![0.0; rows];
            add_and_norm(&a, &b, &weight, eps, &mut x, &mut out, &mut scales);
            let mut again = out.clone();
            norm(&x, &weight, eps, &mut again, &mut scales);
            prop_assert_eq!(&again, &out);

            let before = numbers(rows * width, seed ^ 4);
            let (mut dx, mut dw) = (before.clone(), vec![0.0; width]);
            norm_backward(&x, &scales, &weight, &dy, &mut dx, &mut dw);

            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let eps = f64::from(eps);
            let mut wanted = Vec::new();
            let (mut wanted_dx, mut wanted_dw) = (Vec::new(), vec![0.0; width]);
            for (n, row) in wide.chunks(width).enumerate() {
                wanted.extend(exact(row, &weight, eps));
                let dy = &dy[n * width..][..width];
                // The derivative as a difference, at both sides of each element.
                for i in 0..width {
                    let loss = |step: f64| {
                        let mut row = row.to_vec();
                        row[i] += step;
                        let out = exact(&row, &weight, eps);
                        out.iter().zip(dy).map(|(o, d)| o * f64::from(*d)).sum::<f64>()
                    };
                    let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                    wanted_dx.push(f64::from(before[n * width + i]) + slope);
                    wanted_dw[i] += f64::from(dy[i]) * row[i] * f64::from(scales[n]);
                }
            }
            close(&out, &wanted, 1e-6);
            close(&dx, &wanted_dx, 1e-4);
            close(&dw, &wanted_dw, 1e-5);
        }
    }
}

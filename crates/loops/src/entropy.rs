//! Cross entropy, and its gradient written over the logits.

use crate::{exp::exp, fold, sum, vectorised};

vectorised! {
    /// `losses` = `weight` times each row's cross entropy; the rows become its derivatives.
    ///
    /// A row whose target is negative does not count: its loss and derivatives are 0.
    pub fn cross_entropy(logits: &mut [f32], targets: &[i64], weight: f32, losses: &mut [f32]) {
        let width = logits.len() / targets.len().max(1);
        let rows = logits.chunks_exact_mut(width.max(1));
        for ((row, target), loss) in rows.zip(targets).zip(losses) {
            let Ok(target) = usize::try_from(*target) else {
                row.fill(0.0);
                *loss = 0.0;
                continue;
            };
            let scored = row[target];
            let largest = fold([row], f32::NEG_INFINITY, |[x]| x, |a, b| if a > b { a } else { b });
            for x in row.iter_mut() {
                *x = exp(*x - largest);
            }
            let total = sum([row], |[x]| x);
            *loss = weight * (total.ln() - (scored - largest));
            let scale = weight / total;
            for x in row.iter_mut() {
                *x *= scale;
            }
            row[target] -= weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{close, numbers};

    #[test]
    fn agrees_with_float64() {
        for width in [1, 2, 17, 50, 130] {
            let (rows, weight) = (4, 0.125);
            let logits: Vec<f32> = numbers(rows * width, width as u64)
                .iter()
                .map(|x| x * 30.0)
                .collect();
            let targets = [0, width as i64 - 1, -100, width as i64 / 2];
            let (mut gradient, mut losses) = (logits.clone(), vec![0.0; rows]);
            cross_entropy(&mut gradient, &targets, weight as f32, &mut losses);
            let (mut wanted, mut wanted_losses) = (Vec::new(), Vec::new());
            for (row, target) in logits.chunks(width).zip(targets) {
                let total: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
                let counts = if target < 0 { 0.0 } else { weight };
                let scored = row.get(target as usize).map_or(0.0, |x| f64::from(*x));
                wanted_losses.push(counts * (total.ln() - scored));
                wanted.extend(row.iter().enumerate().map(|(i, x)| {
                    counts * (f64::from(*x).exp() / total - f64::from(u8::from(i as i64 == target)))
                }));
            }
            close(&gradient, &wanted, 1e-6);
            close(&losses, &wanted_losses, 1e-6);
        }
    }

    #[test]
    fn not_a_number_is_not_hidden() {
        for logits in [[f32::NAN, 1.0, 2.0], [1.0, 2.0, f32::NAN]] {
            let mut losses = [0.0];
            cross_entropy(&mut logits.clone(), &[1], 1.0, &mut losses);
            assert!(losses[0].is_nan());
        }
    }
}

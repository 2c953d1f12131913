//! The joined product of q, k and v: its biases, and the rotation of q and k.
//!
//! A row is one position: all heads of q, then those of k, then those of v.

use crate::vectorised;

/// How a row is cut up.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// How many heads q has.
    pub queries: usize,
    /// How many heads k has, and v as many.
    pub keys: usize,
    /// Elements of a head, an even number.
    pub width: usize,
}

impl Heads {
    /// Elements of a row.
    #[must_use]
    pub fn row(self) -> usize {
        (self.queries + 2 * self.keys) * self.width
    }
}

/// Cosines and sines of all positions, `Heads::width / 2` of each for a position.
#[derive(Clone, Copy, Debug)]
pub struct Angles<'a> {
    pub cosines: &'a [f32],
    pub sines: &'a [f32],
}

impl<'a> Angles<'a> {
    /// Those of row `row`, where sequence follows sequence.
    #[inline(always)]
    fn at(self, row: usize, half: usize) -> (&'a [f32], &'a [f32]) {
        let first = row * half % self.cosines.len();
        let these = first..first + half;
        (&self.cosines[these.clone()], &self.sines[these])
    }
}

vectorised! {
    /// Adds the biases, and turns q and k by their positions' angles. Element i of a head is paired
    /// with element i + `width / 2`.
    pub fn rotate(
        rows: &mut [f32],
        first_row: usize,
        bias: Option<&[f32]>,
        angles: Angles,
        heads: Heads,
    ) {
        let half = heads.width / 2;
        for (n, row) in rows.chunks_exact_mut(heads.row()).enumerate() {
            if let Some(bias) = bias {
                for (x, bias) in row.iter_mut().zip(bias) {
                    *x += bias;
                }
            }
            let (cosines, sines) = angles.at(first_row + n, half);
            let turned = (heads.queries + heads.keys) * heads.width;
            for head in row[..turned].chunks_exact_mut(heads.width) {
                let (left, right) = head.split_at_mut(half);
                let pairs = left.iter_mut().zip(right);
                for (((left, right), cosine), sine) in pairs.zip(cosines).zip(sines) {
                    let (a, b) = (*left, *right);
                    *left = a * cosine - b * sine;
                    *right = b * cosine + a * sine;
                }
            }
        }
    }
}

vectorised! {
    /// The derivative by the joined product from those of q, k and v, whose rows have their heads
    /// alone; where there is a bias, adds its derivative to `d_bias`.
    pub fn rotate_backward(
        gradients: [&[f32]; 3],
        first_row: usize,
        d_bias: Option<&mut [f32]>,
        angles: Angles,
        heads: Heads,
        rows: &mut [f32],
    ) {
        let [d_q, d_k, d_v] = gradients;
        let (half, width) = (heads.width / 2, heads.width);
        let (wide, narrow) = (heads.queries * width, heads.keys * width);
        let parts = d_q.chunks_exact(wide).zip(d_k.chunks_exact(narrow));
        let parts = parts.zip(d_v.chunks_exact(narrow));
        let rows_and = rows.chunks_exact_mut(heads.row()).zip(parts);
        for (n, (row, ((d_q, d_k), d_v))) in rows_and.enumerate() {
            let (cosines, sines) = angles.at(first_row + n, half);
            let (row, values) = row.split_at_mut(wide + narrow);
            let from = d_q.chunks_exact(width).chain(d_k.chunks_exact(width));
            for (to, from) in row.chunks_exact_mut(width).zip(from) {
                let (left, right) = to.split_at_mut(half);
                let to = left.iter_mut().zip(right);
                let from = from[..half].iter().zip(&from[half..]);
                for (((to, from), cosine), sine) in to.zip(from).zip(cosines).zip(sines) {
                    *to.0 = from.0 * cosine + from.1 * sine;
                    *to.1 = from.1 * cosine - from.0 * sine;
                }
            }
            values.copy_from_slice(d_v);
        }
        if let Some(d_bias) = d_bias {
            for row in rows.chunks_exact(heads.row()) {
                for (sum, x) in d_bias.iter_mut().zip(row) {
                    *sum += x;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{close, numbers};

    #[test]
    fn turns_pairs_and_turns_gradients_back() {
        let heads = Heads {
            queries: 3,
            keys: 1,
            width: 6,
        };
        // Two sequences of 4 positions, without the first row.
        let (length, rows, row) = (4, 7, heads.row());
        let (joined, bias) = (numbers(rows * row, 1), numbers(row, 2));
        let turns: Vec<f64> = (0..length * 3).map(f64::from).collect();
        let cosines: Vec<f32> = turns.iter().map(|a| a.cos() as f32).collect();
        let sines: Vec<f32> = turns.iter().map(|a| a.sin() as f32).collect();
        let angles = Angles {
            cosines: &cosines,
            sines: &sines,
        };
        let mut turned = joined.clone();
        rotate(&mut turned, 1, Some(&bias), angles, heads);

        let biased: Vec<f64> = joined
            .iter()
            .zip(bias.iter().cycle())
            .map(|(x, b)| f64::from(*x) + f64::from(*b))
            .collect();
        let wanted: Vec<f64> = (0..rows * row)
            .map(|at| {
                let (n, head, i) = (at / row, at % row / 6, at % 6);
                let (sin, cos) = turns[(n + 1) % length as usize * 3 + i % 3].sin_cos();
                match (head < 4, i < 3) {
                    (false, _) => biased[at],
                    (true, true) => biased[at] * cos - biased[at + 3] * sin,
                    (true, false) => biased[at] * cos + biased[at - 3] * sin,
                }
            })
            .collect();
        close(&turned, &wanted, 1e-6);

        // Turning keeps lengths: the derivative of half the sum of squares is what was turned.
        let part = |from: usize, to: usize| -> Vec<f32> {
            turned
                .chunks(row)
                .flat_map(|row| &row[from..to])
                .copied()
                .collect()
        };
        let (d_q, d_k, d_v) = (part(0, 18), part(18, 24), part(24, 30));
        let (mut gradient, mut d_bias) = (vec![0.0; rows * row], vec![0.0; row]);
        rotate_backward(
            [&d_q, &d_k, &d_v],
            1,
            Some(&mut d_bias),
            angles,
            heads,
            &mut gradient,
        );
        close(&gradient, &biased, 1e-6);
        let sums: Vec<f64> = (0..row)
            .map(|i| biased.iter().skip(i).step_by(row).sum())
            .collect();
        close(&d_bias, &sums, 1e-6);
    }
}

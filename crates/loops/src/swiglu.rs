//! SwiGLU over the joined product of gate and up: a row has all gates and then all ups.

use crate::{exp::exp, vectorised};

vectorised! {
    /// `out` = silu(gate) · up; `width` gates a row.
    pub fn swiglu(gate_up: &[f32], width: usize, out: &mut [f32]) {
        for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at(width);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate)) * up;
            }
        }
    }
}

vectorised! {
    /// Writes the derivatives by gate and up over them. `d_out`: the derivative by the output.
    pub fn swiglu_backward(gate_up: &mut [f32], width: usize, d_out: &[f32]) {
        for (row, d_out) in gate_up.chunks_exact_mut(2 * width).zip(d_out.chunks_exact(width)) {
            let (gate, up) = row.split_at_mut(width);
            for ((gate, up), d_out) in gate.iter_mut().zip(up).zip(d_out) {
                let sigmoid = 1.0 / (1.0 + exp(-*gate));
                let silu = *gate * sigmoid;
                let d_gate = d_out * *up * (sigmoid + silu * (1.0 - sigmoid));
                *up = d_out * silu;
                *gate = d_gate;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{close, numbers};

    #[test]
    fn agrees_with_float64() {
        let (rows, width) = (3, 37);
        let gate_up: Vec<f32> = numbers(rows * 2 * width, 1)
            .iter()
            .map(|x| x * 12.0)
            .collect();
        let d_out = numbers(rows * width, 2);
        let mut out = vec![0.0; rows * width];
        swiglu(&gate_up, width, &mut out);
        let mut gradient = gate_up.clone();
        swiglu_backward(&mut gradient, width, &d_out);

        let (mut wanted, mut wanted_gradient) = (Vec::new(), vec![0.0; gate_up.len()]);
        for n in 0..rows {
            for i in 0..width {
                let at = n * 2 * width + i;
                let (gate, up) = (f64::from(gate_up[at]), f64::from(gate_up[at + width]));
                let silu = |gate: f64| gate / (1.0 + (-gate).exp());
                let d = f64::from(d_out[n * width + i]);
                wanted.push(silu(gate) * up);
                let slope = (silu(gate + 1e-5) - silu(gate - 1e-5)) / 2e-5;
                wanted_gradient[at] = d * up * slope;
                wanted_gradient[at + width] = d * silu(gate);
            }
        }
        close(&out, &wanted, 1e-6);
        close(&gradient, &wanted_gradient, 1e-6);
    }

    #[test]
    fn large_gates_do_not_overflow() {
        let mut out = [0.0; 2];
        swiglu(&[-1e4, 1e4, 1.0, 1.0], 2, &mut out);
        assert!(out[0].abs() < 1e-30 && out[1] == 1e4, "{out:?}");
    }
}

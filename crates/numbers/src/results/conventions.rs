//! FLOPs per token as trainers count them: the same run, up to a third apart, so every figure needs
//! its convention's name.

use serde_json::Value;
use tprimat_job::{ModelShape, count_active_parameters, count_parameters};
use tprimat_logs::Trace;

use super::flops::{pairs, products};

/// How far a trainer's figure may be from a convention's to be told as that one. Figures of trainers
/// whose convention is known are within 0.0002 of it; models of one size may be 0.04 apart.
pub const FLOPS_TOLERANCE: f64 = 0.01;

/// Every named way to count a model's FLOPs per token at a sequence length; those with
/// recomputation last.
fn flops_conventions(
    shape: &ModelShape,
    seq_length: u64,
    padded_vocab: Option<u64>,
) -> Vec<(String, f64)> {
    let counts = count_active_parameters(shape).zip(count_parameters(shape));
    let counts = counts.filter(|_| seq_length > 0).zip(products(shape));
    let Some(((active, whole), products)) = counts else {
        return Vec::new();
    };
    // What a token passes through: with experts not all of N.
    let parameters = active as f64;
    let rows = |vocab: u64| vocab as f64 * shape.hidden_size as f64;
    // Scores and their product with the values, forward and backward, every token with every other;
    // and with those that the mask and windows let through.
    let full = 3.0 * pairs(shape) * seq_length as f64;
    let causal = 3.0 * pairs(shape) * shape.attended_tokens(seq_length as f64);
    let matrices = 3.0 * products;
    let padding = padded_vocab
        .and_then(|p| p.checked_sub(shape.vocab_size))
        .filter(|p| *p < 1 << 20)
        .unwrap_or(0);
    let padded = matrices + 6.0 * rows(padding);
    let mut all = vec![
        ("6·N", 6.0 * parameters),
        ("6·(N − N_embedding)", matrices),
        ("6·N + 12·L·H·Q·T, full attention", 6.0 * parameters + full),
        (
            "6·(N − N_embedding) + 12·L·H·Q·T, full attention",
            matrices + full,
        ),
        ("6·N + 6·L·H·Q·T, causal-halved", 6.0 * parameters + causal),
        (
            "6·(N − N_embedding) + 6·L·H·Q·T, causal-halved",
            matrices + causal,
        ),
    ];
    if padding > 0 {
        all.push((
            "matrix products with the padded vocabulary, full attention",
            padded + full,
        ));
        all.push((
            "matrix products with the padded vocabulary, causal-halved",
            padded + causal,
        ));
    }
    // Hugging Face's Trainer, and whoever takes a model's parameters for those of a token.
    if whole > active {
        all.push(("6·N of all experts", 6.0 * whole as f64));
    }
    let again = |(name, value): &(&str, f64)| {
        let name = format!("{name}, with recomputation (× 4/3)");
        (name, value * (4.0 / 3.0))
    };
    let once = all.iter().map(|(name, value)| ((*name).to_owned(), *value));
    once.chain(all.iter().map(again)).collect()
}

/// The nearest convention, and whether it is near enough. Recomputation explains only what nothing
/// else does, and nothing where the trainer says that there is none.
#[must_use]
pub fn fitting_convention(
    trace: &Trace,
    shape: &ModelShape,
    seq_length: u64,
    flops: f64,
) -> Option<(String, f64, bool)> {
    let stated = &trace.effective.0;
    let padded = stated.get("padded_vocab_size").and_then(Value::as_u64);
    let without = stated.get("activation_checkpointing") == Some(&Value::Bool(false));
    let all = flops_conventions(shape, seq_length, padded);
    let off = |(_, value): &(String, f64)| (flops / value - 1.0).abs();
    let nearest = |some: &[(String, f64)]| {
        some.iter()
            .min_by(|a, b| off(a).total_cmp(&off(b)))
            .cloned()
    };
    let (once, again) = all.split_at(all.len() / 2);
    let fits = |c: &(String, f64)| off(c) <= FLOPS_TOLERANCE;
    let found = nearest(once)
        .filter(fits)
        .or_else(|| nearest(again).filter(|c| fits(c) && !without));
    found
        .map(|(convention, value)| (convention, value, true))
        .or_else(|| {
            let admissible = if without { once } else { &all };
            nearest(admissible).map(|(convention, value)| (convention, value, false))
        })
}

#[cfg(test)]
mod tests {
    use tprimat_logs::Effective;

    use super::*;
    use crate::results::flops::tests::{llama_8b, mixture};

    #[test]
    fn the_published_conventions_of_an_8b_model() {
        let giga = |name: &str| {
            let all = flops_conventions(&llama_8b(), 8192, None);
            let found = all.iter().find(|(own, _)| own == name).unwrap();
            found.1 / 1e9
        };
        for (name, expected) in [
            ("6·N", 48.2),
            ("6·(N − N_embedding) + 6·L·H·Q·T, causal-halved", 51.5),
            ("6·(N − N_embedding) + 12·L·H·Q·T, full attention", 57.9),
            ("6·N + 12·L·H·Q·T, full attention", 61.1),
        ] {
            assert!(
                (giga(name) - expected).abs() < 0.06,
                "{name}: {}",
                giga(name)
            );
        }
    }

    /// Qwen3-30B-A3B at 4096 tokens, as two trainers count it: Megatron without the router, and the
    /// published rates of its runs (Megatron-Bridge, docs/performance-summary.md: 1041 TFLOP/s at
    /// 45,275 tokens/s a GPU, 206 at 8,960); torchtitan (`get_moe_model_nparams_and_flops`) with it
    /// and with attention in full. `6·N` of all experts is nine times what is computed.
    #[test]
    fn experts_are_counted_as_trainers_count_them() {
        let shape = mixture();
        let (h, q, kv) = (2048.0, 4096.0, 512.0);
        let products = 48.0 * (2.0 * h * (q + kv) + 8.0 * 3.0 * h * 768.0) + h * 151_936.0;
        let attention = 6.0 * 48.0 * q * 4096.0;
        let router = 48.0 * h * 128.0;
        for (flops, convention) in [
            (6.0 * products + attention, "causal-halved"),
            (1041e12 / 45_275.0, "causal-halved"),
            (206e12 / 8_960.0, "causal-halved"),
            (
                6.0 * (products + router) + 2.0 * attention,
                "full attention",
            ),
            (6.0 * 30_532_122_624.0, "6·N of all experts"),
        ] {
            let fit = fitting_convention(&Trace::default(), &shape, 4096, flops);
            let (name, _, fits) = fit.unwrap();
            assert!(
                fits && name.ends_with(convention),
                "{name}, not {convention}"
            );
        }
    }

    #[test]
    fn recomputation_explains_only_what_nothing_else_does() {
        let mut trace = Trace::default();
        let fit = |trace: &Trace, giga: f64| {
            fitting_convention(trace, &llama_8b(), 8192, giga * 1e9).unwrap()
        };
        assert_eq!(
            fit(&trace, 57.9).0,
            "6·(N − N_embedding) + 12·L·H·Q·T, full attention"
        );
        let (found, _, fits) = fit(&trace, 77.0);
        assert!(fits && found.contains("recomputation"), "{found:?}");
        trace.effective = Effective([("activation_checkpointing".to_owned(), false.into())].into());
        assert!(!fit(&trace, 77.0).2, "no recomputation is stated");
        assert!(!fit(&trace, 20.0).2 && !fit(&trace, 200.0).2);
        assert_eq!(
            fitting_convention(&trace, &ModelShape::default(), 8192, 1.0),
            None
        );
    }
}

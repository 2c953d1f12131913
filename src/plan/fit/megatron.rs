//! Megatron-core and the frameworks on it: tensor, sequence and pipeline parallel, with a
//! distributed optimizer.
//!
//! Bytes a token that one layer keeps on one of TP ranks: 8h/TP for the norms (their inputs and
//! outputs are split along the sequence), 6(q + k)/TP for the joint QKV product, its rotated
//! queries and keys and the attention's output, 6f/TP for gate and up in one matrix and their
//! product, which the fused SwiGLU computes again.

use super::{Phase, Sizes, UPPER_BOUND, WORKSPACES};
use crate::job::{Job, Sharding};

pub(super) fn megatron(
    vocab_multiple: u32,
    job: &Job,
    s: &Sizes,
    assumptions: &mut Vec<String>,
) -> Result<Vec<Phase>, String> {
    if job.optimizer.state_precision != "fp32" || job.offload {
        return Err("not modelled: bf16 state or offload under Megatron".into());
    }
    let multiple = f64::from(vocab_multiple) * s.tp;
    let vocab = (s.vocab / multiple).ceil() * multiple;
    let embedding = vocab * s.hidden / s.tp;
    let layers = s.layers / s.pp;
    let ep = job.parallelism.expert_model_parallel_size as f64;
    let experts = s.experts / s.tp / ep;
    let layer_parameters = (s.layer_parameters() - s.experts) / s.tp + experts;
    let shards = if Sharding::named(&job.parallelism.sharding) == Some(Sharding::None) {
        1.0
    } else {
        s.dp * s.cp
    };
    if shards > 1.0 {
        assumptions
            .push("master weights and moments are sharded over the data-parallel ranks".to_owned());
    }
    if s.pp > 1.0 {
        assumptions.push(
            "1F1B: the first stage keeps as many micro-batches as there are stages".to_owned(),
        );
    }
    let kept = (8.0 * s.hidden + 6.0 * (s.q + s.kv) + 6.0 * s.ffn + 4.0 * s.heads + s.besides)
        / s.tp
        + 8.0;
    let input = 2.0 * s.hidden / s.tp;
    let recomputed = (s.recomputed / s.pp).ceil().min(layers);
    let activations = s.tokens * ((layers - recomputed) * kept + recomputed * input);
    let again = if recomputed > 0.0 {
        s.tokens * kept
    } else {
        0.0
    };
    let hidden = s.tokens * s.hidden;

    // What a stage holds that owns `ends` parameters of embedding and head.
    let state = |ends: f64| {
        let n = layers * layer_parameters + ends + s.hidden;
        // Ranks that hold different experts share the states of none of them.
        let shared = (n - layers * experts) / shards + layers * experts / (shards / ep).max(1.0);
        [
            ("parameters, bf16", 2.0 * n),
            ("gradients, fp32", 4.0 * n),
            ("master weights, fp32", 4.0 * shared),
            ("optimiser moments", 8.0 * shared),
            WORKSPACES,
        ]
    };
    let mut copies = Vec::new();
    if job.precision == "fp8" {
        // Transformer Engine keeps each weight of a layer in FP8, once as it is and once
        // transposed.
        copies.push(("FP8 copies of the weights", 2.0 * layers * layer_parameters));
        assumptions.push(format!(
            "FP8: activations are counted as in bf16, {UPPER_BOUND}"
        ));
    }
    let is_whole = s.pp == 1.0;
    let last = state(if is_whole && !s.is_tied {
        2.0 * embedding
    } else {
        embedding
    });
    let backward = [
        ("one layer, recomputed", again),
        ("gradients of activations", s.working()),
    ];
    let mut phases = vec![
        Phase::new(
            "head, forward",
            &[
                &last,
                &copies,
                &[
                    ("activations", activations),
                    ("final norm and input of the head", 4.0 * hidden / s.tp),
                    // bf16 logits, their fp32 copy, and the exponentials that the fused cross
                    // entropy keeps.
                    ("logits and loss", 10.0 * s.tokens * vocab / s.tp),
                ],
            ],
        ),
        Phase::new(
            "layers, backward",
            &[&last, &copies, &[("activations", activations)], &backward],
        ),
    ];
    if !is_whole {
        let in_flight = s.pp.min(s.micro_steps);
        let first = state(embedding);
        let kept = [(
            "activations of the micro-batches in flight",
            in_flight * activations,
        )];
        phases.push(Phase::new(
            "first stage, backward",
            &[&first, &copies, &kept, &backward],
        ));
    }
    Ok(phases)
}

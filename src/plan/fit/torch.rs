//! Programs on plain PyTorch: tprimat-native, Transformers' Trainer, FSDP2, DeepSpeed's ZeRO,
//! torchtitan.
//!
//! Bytes a token that one layer keeps, counted with saved-tensor hooks (h hidden, q and k widths of
//! queries and keys, f feed-forward):
//!
//! - eager Transformers, bf16: each RMSNorm 8h (fp32 copy, bf16 product, output), q, k, v and the
//!   attention's output 2(2q + 2k), the MLP 8f (gate, up, silu, product).
//! - eager Transformers under autocast, residual stream in fp32: each RMSNorm 8h (input, product),
//!   the bf16 casts for q, k, v, gate and up 10h, the rest as above.
//! - compiled: norms, silu and product are computed again: inputs and outputs of the norms, and 6f.
//! - tprimat-native, fused step: both norms' inputs and outputs 8h, q, k, v and the attention's
//!   output 4q + 4k, gate, up and their product 6f. Where ranks share the weights out: 4h + 4q + 4k
//!   + 4f, because the outputs of norms and the product are made again.
//! - the same in fp8: norms' outputs, the attention's output and gate times up once in fp8 by
//!   columns, which for the attention's output comes besides: 6h + 5q + 4k + 5f.
//! - tprimat-native by autograd: fused norms keep input and output; the attention's output is
//!   copied to be joined, 2q more.

use super::{Phase, Sizes, UPPER_BOUND, WORKSPACES};
use crate::job::{Job, Sharding};

type Part = (&'static str, f64);
type Phases = Result<Vec<Phase>, String>;

/// FSDP2's program keeps whole gradients between micro-steps up to this many parameters
/// (recipes/fsdp/train.py).
const SMALL_MODEL: f64 = 2e9;
/// Logits that tprimat-native has at one time, by the fused step (bf16) and by autograd (fp32).
const FUSED_LOGITS_AT_ONCE: f64 = (1u64 << 30) as f64;
const LOGITS_AT_ONCE: f64 = (1u64 << 29) as f64;
/// DeepSpeed's `reduce_bucket_size`, in elements.
const REDUCE_BUCKET: f64 = 5e8;
/// DeepSpeed's `sub_group_size`: parameters that one part of the update handles.
const SUB_GROUP: f64 = 1e9;

/// How a network on Transformers runs.
struct Network {
    /// Bytes a token of a layer.
    layer: f64,
    input: f64,
    /// Bytes a token between the last layer and the head.
    last: f64,
    /// Bytes a logit, forward and backward.
    logit: (f64, f64),
}

impl Network {
    fn plain(s: &Sizes, is_compiled: bool) -> Self {
        let attention = 4.0 * s.q + 4.0 * s.kv;
        let layer = attention
            + if is_compiled {
                8.0 * s.hidden + 6.0 * s.ffn
            } else {
                16.0 * s.hidden + 8.0 * s.ffn
            };
        // Logits in bf16, their fp32 copy and log-softmax; on the way back log-softmax and two
        // gradients, all fp32.
        Self {
            layer,
            input: 2.0 * s.hidden,
            last: 8.0 * s.hidden,
            logit: (10.0, 12.0),
        }
    }

    /// fp32 weights under autocast; compiled as a whole, the loss included.
    fn autocast(s: &Sizes, is_compiled: bool) -> Self {
        let attention = 4.0 * s.q + 4.0 * s.kv;
        let (layer, last, logit) = if is_compiled {
            // Logits in bf16 and the fp32 copy that accelerate returns; the loss keeps one scale a
            // row.
            (
                attention + 12.0 * s.hidden + 6.0 * s.ffn,
                6.0 * s.hidden,
                (6.0, 4.0),
            )
        } else {
            (
                attention + 26.0 * s.hidden + 8.0 * s.ffn,
                10.0 * s.hidden,
                (10.0, 12.0),
            )
        };
        Self {
            layer,
            input: 4.0 * s.hidden,
            last,
            logit,
        }
    }
}

/// What a data-parallel program holds besides activations, in bytes.
#[derive(Default)]
struct Held {
    /// From the first update to the last.
    always: Vec<Part>,
    /// Gradients in the last micro-step, before its backward pass, and after it.
    gradients: (f64, f64),
    /// bf16 casts of weights: during the forward pass, while the head goes back, and while one
    /// layer does.
    casts: (f64, f64, f64),
    /// Besides, while the head goes back; while a layer does.
    at_head: Vec<Part>,
    at_layers: Vec<Part>,
    at_update: Vec<Part>,
}

fn phases(s: &Sizes, network: &Network, held: &Held) -> Vec<Phase> {
    let (all, one) = s.activations(network.layer, network.input);
    let (before, after) = held.gradients;
    let one = if s.recomputed > 0.0 { one } else { 0.0 };
    let kept = [
        ("activations", all),
        ("final norm and input of the head", s.tokens * network.last),
    ];
    let always = [held.always.as_slice(), &[WORKSPACES]].concat();
    let accumulated = [("accumulated gradients", before)];
    // Without earlier micro-steps, the head's gradient is the first one there is.
    let first = if before > 0.0 {
        0.0
    } else {
        after.min(4.0 * s.embedding)
    };
    let (forward, head, layer) = held.casts;
    let casts = |bytes| [("bf16 copies of the weights", bytes)];
    vec![
        Phase::new(
            "head, forward",
            &[
                &always,
                &accumulated,
                &casts(forward),
                &kept,
                &held.at_head,
                &[("logits and loss", network.logit.0 * s.logits())],
            ],
        ),
        Phase::new(
            "head, backward",
            &[
                &always,
                &accumulated,
                &casts(head),
                &kept,
                &held.at_head,
                &[(
                    "logits, loss and their gradients",
                    network.logit.1 * s.logits(),
                )],
            ],
        ),
        Phase::new(
            "layers, backward",
            &[
                &always,
                &[("accumulated gradients", before + first)],
                &casts(layer),
                &[
                    ("activations", all),
                    ("one layer, recomputed", one),
                    ("gradients of activations", s.working()),
                ],
                &held.at_layers,
            ],
        ),
        Phase::new(
            "gradients, complete",
            &[
                &always,
                &[("gradients", before.max(after))],
                &[
                    ("one layer", s.activations(network.layer, network.input).1),
                    ("gradients of activations", s.working()),
                ],
                &held.at_layers,
            ],
        ),
        Phase::new(
            "update",
            &[&always, &[("gradients", after)], &held.at_update],
        ),
    ]
}

/// Bytes of one value of weights, gradients and each moment.
fn state_bytes(job: &Job) -> f64 {
    if job.optimizer.state_precision == "bf16" {
        2.0
    } else {
        4.0
    }
}

fn only_data_parallel(s: &Sizes) -> Result<(), String> {
    (s.tp * s.pp * s.cp == 1.0)
        .then_some(())
        .ok_or_else(|| "not modelled: this framework with TP, PP or CP".into())
}

pub(super) fn native(job: &Job, s: &Sizes) -> Phases {
    only_data_parallel(s)?;
    let state = state_bytes(job);
    let n = s.parameters;
    let (word, is_fp8) = (job.parallelism.sharding.as_str(), job.precision == "fp8");
    if s.dp > 1.0 && word != "none" && (is_fused(job) || !word.is_empty()) {
        return match is_fused(job) {
            true => Ok(fused(s, &native_shards(job, s, state), is_fp8, !is_fp8)),
            false => {
                Err("not modelled: this trainer shards by its own kernels only, which do not take this job".into())
            }
        };
    }
    let always = [
        ("parameters, bf16", 2.0 * n),
        ("master weights", if state == 4.0 { 4.0 * n } else { 0.0 }),
        ("gradients", state * n),
        ("optimiser moments", 2.0 * state * n),
        WORKSPACES,
    ];
    if is_fp8 {
        if !is_fused(job) {
            return Err(
                "not modelled: only this trainer's kernels compute in FP8, and they do not take this job".into()
            );
        }
        // By rows and by columns.
        let weights = (
            "weights of the layers in fp8, twice",
            2.0 * s.layers * s.layer_parameters(),
        );
        return Ok(fused(
            s,
            &[always.as_slice(), &[weights]].concat(),
            true,
            false,
        ));
    }
    if is_fused(job) {
        return Ok(fused(s, &always, false, false));
    }
    let layer = 8.0 * s.hidden + 6.0 * s.q + 4.0 * s.kv + 8.0 * s.ffn;
    let (all, one) = s.activations(layer, 2.0 * s.hidden);
    let rows = s.tokens.min((LOGITS_AT_ONCE / s.vocab).floor().max(1.0));
    // fp32 log-softmax and two gradients of one chunk; gradients of the hidden states, chunk by
    // chunk.
    let head = [
        ("activations", all),
        (
            "final norm and input of the head",
            4.0 * s.tokens * s.hidden,
        ),
        (
            "logits of a chunk, loss and their gradients",
            12.0 * rows * s.vocab,
        ),
        ("gradients of hidden states", 2.0 * rows * s.hidden),
    ];
    let recomputed = if s.recomputed > 0.0 { one } else { 0.0 };
    let layers = [
        ("activations", all),
        ("one layer, recomputed", recomputed),
        ("gradients of activations", s.working()),
    ];
    // Neighbours that are not recomputed share one graph, whose gradients are all handed over at
    // its end.
    let neighbours = if s.recomputed > 0.0 {
        (s.layers / s.recomputed).ceil() / s.layers
    } else {
        1.0
    };
    let end = [
        ("one layer", one),
        (
            "bf16 gradients before they are added up",
            2.0 * n * neighbours,
        ),
    ];
    Ok(vec![
        Phase::new("head, backward", &[&always, &head]),
        Phase::new("layers, backward", &[&always, &layers]),
        Phase::new(
            "gradients, complete",
            &[&always, &end, &[("gradients of activations", s.working())]],
        ),
    ])
}

/// tprimat-native with everything shared out: parts of the state, and room for two whole layers, of
/// which one runs, and for the embedding or the head.
fn native_shards(job: &Job, s: &Sizes, state: f64) -> Vec<Part> {
    let part = s.parameters / s.dp;
    let layers = s.layers.min(2.0) * s.layer_parameters();
    let at_once = layers + s.embedding;
    let received = state * s.embedding.max(s.layer_parameters());
    vec![
        ("parameters, bf16, sharded", 2.0 * part),
        (
            "master weights, sharded",
            if state == 4.0 { 4.0 * part } else { 0.0 },
        ),
        ("gradients, sharded", state * part),
        ("optimiser moments, sharded", 2.0 * state * part),
        ("gathered weights, bf16", 2.0 * at_once),
        (
            "gathered weights in fp8, twice",
            if job.precision == "fp8" {
                2.0 * layers
            } else {
                0.0
            },
        ),
        ("whole gradients before they are sent", state * at_once),
        ("gradients received from all ranks", received),
        (
            "gradients of what the embedding gave, of all ranks",
            2.0 * s.tokens * s.hidden * s.dp,
        ),
        WORKSPACES,
    ]
}

/// Whether tprimat-native's kernels cover the job; where a GPU refuses them, the trainer's `start`
/// event says so.
fn is_fused(job: &Job) -> bool {
    let m = &job.model;
    let asks_otherwise = job
        .framework
        .get("step")
        .is_some_and(|step| step == "autograd");
    let fits = m.hidden_size.is_multiple_of(64)
        && m.hidden_size <= 8192
        && m.ffn_hidden_size.is_multiple_of(8)
        && m.vocab_size.is_multiple_of(8)
        && m.head_dim.is_multiple_of(16)
        && m.architecture != "qwen3";
    !asks_otherwise && fits
}

/// tprimat-native's step over its own kernels: every buffer of it is listed in its source.
/// `restores`: results of the norms and of SwiGLU are made again by the backward pass.
fn fused(s: &Sizes, always: &[Part], is_fp8: bool, restores: bool) -> Vec<Phase> {
    let layer = match (is_fp8, restores) {
        (true, _) => 6.0 * s.hidden + 5.0 * s.q + 4.0 * s.kv + 5.0 * s.ffn,
        (false, false) => 8.0 * s.hidden + 4.0 * s.q + 4.0 * s.kv + 6.0 * s.ffn,
        (false, true) => 4.0 * s.hidden + 4.0 * s.q + 4.0 * s.kv + 4.0 * s.ffn,
    };
    let (all, one) = s.activations(layer, 2.0 * s.hidden);
    let parts = (s.logits() / FUSED_LOGITS_AT_ONCE).ceil().max(1.0);
    let gradient = ("gradient of the hidden states", 2.0 * s.tokens * s.hidden);
    let head = [
        ("activations", all),
        (
            "input and output of the final norm",
            4.0 * s.tokens * s.hidden,
        ),
        gradient,
        (
            "logits, and their gradients over them",
            2.0 * s.logits() / parts,
        ),
    ];
    let recomputed = if s.recomputed > 0.0 { one } else { 0.0 };
    // In fp8, either the gradient of the MLP's output twice beside that of its product, or those of
    // gate and up twice, when the product is gone already.
    let mlp = if is_fp8 {
        (2.0 * s.ffn + 2.0 * s.hidden).max(3.0 * s.ffn)
    } else {
        2.0 * s.ffn
    };
    let layers = [
        ("activations", all),
        ("one layer, recomputed", recomputed),
        gradient,
        ("gradients within an MLP", s.tokens * mlp),
    ];
    vec![
        Phase::new("head", &[always, &head]),
        Phase::new("layers, backward", &[always, &layers]),
    ]
}

pub(super) fn trainer(job: &Job, s: &Sizes, assumptions: &mut Vec<String>) -> Phases {
    only_data_parallel(s)?;
    let (n, state) = (s.parameters, state_bytes(job));
    let is_autocast = state == 4.0;
    let network = if is_autocast {
        Network::autocast(s, job.compile)
    } else {
        Network::plain(s, job.compile)
    };
    if job.compile {
        assumptions.push(
            "compiled as a whole: which values the compiler keeps is known within a few per cent only".to_owned(),
        );
    }
    let buckets = if s.dp > 1.0 { state * n } else { 0.0 };
    let whole = state * n;
    let casts = if !is_autocast {
        (0.0, 0.0, 0.0)
    } else if s.recomputed > 0.0 {
        // autocast's own cache ends with the forward pass; a recomputed layer casts again.
        // The weights of experts are cast by their own product, and those copies end with their layer.
        let (head, layer) = (2.0 * s.embedding, 2.0 * s.layer_parameters());
        (
            2.0 * (n - s.experts * s.layers),
            head + 2.0 * (s.layers - s.recomputed) * s.layer_parameters(),
            head + layer,
        )
    } else {
        (2.0 * n, 2.0 * n, 2.0 * n)
    };
    let held = Held {
        always: vec![
            ("parameters", state * n),
            ("optimiser moments", 2.0 * state * n),
            ("DDP's buckets of gradients", buckets),
        ],
        gradients: (if s.micro_steps > 1.0 { whole } else { 0.0 }, whole),
        casts,
        ..Held::default()
    };
    Ok(phases(s, &network, &held))
}

pub(super) fn fsdp2(job: &Job, s: &Sizes, assumptions: &mut Vec<String>) -> Phases {
    only_data_parallel(s)?;
    let sync = job
        .framework
        .get("gradient_sync")
        .and_then(serde_json::Value::as_str);
    let keeps_whole = sync.map_or(s.parameters <= SMALL_MODEL, |sync| sync == "last");
    Ok(phases(
        s,
        &Network::plain(s, job.compile),
        &sharded(job, s, keeps_whole, assumptions),
    ))
}

/// FSDP2 with a group a layer: shards of the state, the layer that runs in bf16, the next one on
/// its way.
fn sharded(job: &Job, s: &Sizes, keeps_whole: bool, assumptions: &mut Vec<String>) -> Held {
    let (n, state) = (s.parameters, state_bytes(job));
    let on_gpu = if job.offload { 0.0 } else { 1.0 };
    let shard = on_gpu * state * n / s.dp;
    let before = match (s.micro_steps > 1.0, keeps_whole) {
        (false, _) => 0.0,
        (true, true) => 4.0 * n, // summed in fp32 by the reduction's dtype
        (true, false) => shard,
    };
    assumptions.push(if keeps_whole && s.micro_steps > 1.0 {
        "gradients stay whole, in fp32, between micro-steps".into()
    } else {
        "gradients are reduced to shards after each micro-step".to_owned()
    });
    // A rank gathers the experts that are its own.
    let ep = job.parallelism.expert_model_parallel_size.max(1) as f64;
    let layer = s.layer_parameters() - s.experts * (1.0 - 1.0 / ep);
    let gathered = if s.dp > 1.0 { 2.0 * layer } else { 0.0 };
    let ends = (
        "gathered embedding, head and final norm, bf16",
        2.0 * (s.ends() + s.hidden),
    );
    let next = ("next layer's weights, gathered ahead", gathered);
    // The weights of the layer, their gradients, and fp32 input of its reduction beside that of the
    // layer before.
    let reduction = if s.dp > 1.0 { 8.0 * layer } else { 4.0 * layer };
    Held {
        always: vec![
            ("parameters, sharded", shard),
            ("optimiser moments, sharded", 2.0 * shard),
        ],
        gradients: (before, shard),
        at_head: vec![ends, next],
        at_layers: vec![
            ends,
            next,
            ("weights and gradients of one layer, bf16", 4.0 * layer),
            ("gradients under reduction, fp32", reduction),
        ],
        ..Held::default()
    }
}

pub(super) fn zero(job: &Job, s: &Sizes, assumptions: &mut Vec<String>) -> Phases {
    only_data_parallel(s)?;
    let n = s.parameters;
    let stage = match (
        job.parallelism.sharding.as_str(),
        Sharding::named(&job.parallelism.sharding),
    ) {
        ("", _) | (_, Some(Sharding::Zero3)) => 3,
        (_, Some(Sharding::Zero2)) => 2,
        (_, Some(Sharding::Zero1)) => 1,
        (other, _) => return Err(format!("not modelled: sharding {other}")),
    };
    let weights = if stage == 3 { 2.0 * n / s.dp } else { 2.0 * n };
    let gradients = if stage == 1 { 2.0 * n } else { 2.0 * n / s.dp };
    let on_gpu = if job.offload { 0.0 } else { 1.0 };
    let buckets = if stage == 3 { 1.0 } else { 2.0 }; // two in turn where reduction overlaps
    let mut held = Held {
        always: vec![
            ("parameters, bf16", weights),
            ("gradients, bf16", on_gpu * gradients),
            ("master weights, fp32", on_gpu * 4.0 * n / s.dp),
            ("optimiser moments", on_gpu * 8.0 * n / s.dp),
            (
                "bucket of gradients under reduction",
                buckets * 2.0 * REDUCE_BUCKET,
            ),
        ],
        at_update: vec![(
            "fp32 gradients of a part of the update",
            on_gpu * 4.0 * (n / s.dp).min(SUB_GROUP),
        )],
        ..Held::default()
    };
    if stage == 3 && s.dp > 1.0 {
        let ends = 2.0 * (s.ends() + s.embedding);
        held.at_head = vec![(
            "gathered embedding and head, and the buffer of one gathering",
            ends,
        )];
        held.at_layers = vec![("gathered weights", 2.0 * s.parameters.min(SUB_GROUP))];
        assumptions.push(
            "DeepSpeed keeps what it gathered up to stage3_max_live_parameters, 10⁹ by default"
                .to_owned(),
        );
    }
    if stage != 3 {
        assumptions
            .push("ZeRO-1 and -2: derived; only stage 3 was compared with measured peaks".into());
    }
    Ok(phases(s, &Network::plain(s, job.compile), &held))
}

pub(super) fn torchtitan(job: &Job, s: &Sizes, assumptions: &mut Vec<String>) -> Phases {
    only_data_parallel(s)?;
    assumptions.push("torchtitan prints reserved memory, which is more than this".into());
    let state = state_bytes(job);
    let is_sharded = s.dp > 1.0;
    if is_sharded && Sharding::named(&job.parallelism.sharding) == Some(Sharding::None) {
        return Err("not modelled: torchtitan with DDP".into());
    }
    if job.compile {
        assumptions.push(format!("compiled: counted as without, {UPPER_BOUND}"));
    }
    // Keys and values are repeated for every query head before attention.
    let attention = 8.0 * s.q;
    let is_autocast = !is_sharded && state == 4.0;
    let width = if is_autocast { 4.0 } else { 2.0 };
    // Norms in one kernel keep input and output; under autocast inputs are fp32, and five products
    // cast theirs.
    let norms = if is_autocast { 18.0 } else { 8.0 };
    let network = Network {
        layer: norms * s.hidden + attention + 8.0 * s.ffn,
        input: width * s.hidden,
        last: 2.0 * width * s.hidden,
        logit: (10.0, 12.0),
    };
    let held = if is_sharded {
        sharded(job, s, false, assumptions)
    } else {
        let (n, whole) = (s.parameters, state * s.parameters);
        let casts = if is_autocast { 2.0 * n } else { 0.0 };
        Held {
            always: vec![
                ("parameters", state * n),
                ("optimiser moments", 2.0 * state * n),
            ],
            gradients: (if s.micro_steps > 1.0 { whole } else { 0.0 }, whole),
            casts: (casts, casts, casts),
            ..Held::default()
        }
    };
    Ok(phases(s, &network, &held))
}

//! The direct step beside autograd, which shares none of its code.

use proptest::{prelude::*, strategy::ValueTree};
use tprimat_job::{ModelShape, OptimizerJob};

use super::*;
use crate::{
    backward::{self, Plan},
    model::Model,
    parameters::State,
    tokens::Tokens,
    weights,
};

#[derive(Clone, Debug)]
struct Case {
    model: ModelShape,
    batch: usize,
    length: usize,
    micro_batches: usize,
    threads: usize,
    logits_rows: usize,
    seed: u64,
}

/// Ragged sizes that the flat buffers can join.
fn case() -> impl Strategy<Value = Case> {
    let model = (
        1..4_u64,
        1..10_u64,
        1..12_u64,
        (1..4_u64, 1..4_u64, 1..5_u64),
        2..200_u64,
    )
        .prop_flat_map(|(layers, hidden, ffn, (groups, keys, width), vocab)| {
            (any::<bool>(), any::<bool>()).prop_map(move |(tied, bias)| ModelShape {
                num_layers: layers,
                hidden_size: 8 * hidden,
                ffn_hidden_size: 8 * ffn,
                num_attention_heads: groups * keys,
                num_kv_heads: keys,
                head_dim: if bias { 64 } else { 8 * width },
                vocab_size: vocab,
                rope_theta: 1e4,
                norm_eps: 1e-5,
                tie_embeddings: tied,
                qkv_bias: bias,
                ..ModelShape::default()
            })
        });
    (
        model,
        1..4_usize,
        2..40_usize,
        1..4_usize,
        1..4_usize,
        1..50_usize,
        0..1000_u64,
    )
        .prop_map(
            |(model, batch, length, micro_batches, threads, logits_rows, seed)| Case {
                model,
                batch,
                length,
                micro_batches,
                threads,
                logits_rows,
                seed,
            },
        )
}

/// Weights that are large enough for every part of a layer to matter, norms and biases included.
fn parameters(case: &Case) -> Parameters {
    let specs = Shape::of(&case.model).unwrap().parameters();
    let (kind, device) = (Kind::Float, Device::Cpu);
    let mut parameters = Parameters::new(&specs, kind, kind, 0.1, device).unwrap();
    weights::initialise(&mut parameters, case.seed, 0.2, device).unwrap();
    for (index, spec) in specs
        .iter()
        .enumerate()
        .filter(|(_, spec)| spec.size.len() == 1)
    {
        let around = if spec.name.ends_with("bias") {
            0.0
        } else {
            1.0
        };
        let noise = Tensor::randn(spec.size.as_slice(), (kind, device)) * 0.2 + around;
        parameters.write(State::Weights, index, &noise).unwrap();
    }
    parameters.publish().unwrap();
    parameters
}

fn direct(case: &Case, parameters: &Parameters) -> Direct {
    let shape = Shape::of(&case.model).unwrap();
    let threads = Threads::always(case.threads);
    let mut direct = Direct::new(&shape, parameters, [case.batch, case.length], threads)
        .unwrap()
        .unwrap();
    let vocab = shape.vocab as usize;
    let rows = case.logits_rows.min(case.batch * case.length);
    direct.logits = Buffer::zeros(rows, vocab).unwrap();
    direct
}

/// Loss of all micro-batches of a step.
fn losses(case: &Case, mut run: impl FnMut(&[i64], &[i64], f64, usize) -> f64) -> f64 {
    let tokens = Tokens::Synthetic {
        seed: case.seed,
        length: case.length as u64,
    };
    (0..case.micro_batches)
        .map(|number| {
            let first = (number * case.batch) as u64;
            let (inputs, targets) = tokens
                .batch(first, case.batch as u64, case.model.vocab_size)
                .unwrap();
            run(&inputs, &targets, 1.0 / case.micro_batches as f64, number)
        })
        .sum()
}

fn by_autograd(case: &Case, parameters: &mut Parameters) -> f64 {
    let shape = Shape::of(&case.model).unwrap();
    let model = Model::new(&shape, parameters, case.length as u64, Device::Cpu).unwrap();
    let plan = Plan::new(model.num_parts(), 0);
    losses(case, |inputs, targets, weight, _| {
        let tensor = |values: &[i64]| {
            Tensor::from_slice(values).reshape([case.batch as i64, case.length as i64])
        };
        let (inputs, targets) = (tensor(inputs), tensor(targets));
        backward::run(&model, parameters, &plan, &inputs, &targets, weight)
            .unwrap()
            .double_value(&[])
    })
}

fn directly(case: &Case, direct: &Direct) -> f64 {
    losses(case, |inputs, targets, weight, number| {
        direct.run(inputs, targets, weight, number == 0).unwrap()
    })
}

/// The largest difference, by the largest magnitude or by `least` where that is more.
fn difference(found: &Tensor, wanted: &Tensor, least: f64) -> f64 {
    let largest = wanted.abs().max().double_value(&[]);
    (found - wanted).abs().max().double_value(&[]) / largest.max(least)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn losses_and_gradients_are_those_of_autograd(case in case()) {
        let _turn = weights::take_turns();
        let (mut theirs, ours) = (parameters(&case), parameters(&case));
        let wanted = by_autograd(&case, &mut theirs);
        let direct = direct(&case, &ours);
        // What an earlier step left in the gradients does not count.
        directly(&case, &direct);
        let found = directly(&case, &direct);
        prop_assert!((found / wanted - 1.0).abs() < 1e-5, "{found} instead of {wanted}");
        let norms = [
            direct.grad_norm(&ours).unwrap(),
            theirs.grad_norm().unwrap().double_value(&[]),
        ];
        prop_assert!((norms[0] / norms[1] - 1.0).abs() < 1e-4, "{norms:?}");
        for (ours, theirs) in ours.list.iter().zip(&theirs.list) {
            // The gradient of a softmax that sees one position only is nothing but rounding.
            let error = difference(ours.grad(), theirs.grad(), 1e-3 * norms[1]);
            prop_assert!(error < 2e-4, "{}: {error:e}", ours.name);
        }
    }

    #[test]
    fn the_same_again_has_the_same_bits(case in case()) {
        let _turn = weights::take_turns();
        let [one, two] = [parameters(&case), parameters(&case)];
        let losses = [&one, &two].map(|of| directly(&case, &direct(&case, of)).to_bits());
        prop_assert_eq!(losses[0], losses[1]);
        for (one, two) in one.groups.iter().zip(&two.groups) {
            prop_assert!(one.grads.equal(&two.grads));
        }
    }
}

/// AdamW on gradients that are the same for both, because its first step only sees their signs.
#[test]
fn updates_are_those_of_libtorch() {
    let _turn = weights::take_turns();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let case = case().new_tree(&mut runner).unwrap().current();
    for clip_grad in [0.0, 0.5, 1e9] {
        let (mut theirs, ours) = (parameters(&case), parameters(&case));
        let direct = direct(&case, &ours);
        let options = OptimizerJob {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            clip_grad,
            ..OptimizerJob::default()
        };
        for step in 1..=4 {
            for (ours, theirs) in ours.groups.iter().zip(&theirs.groups) {
                let gradient = theirs.grads.randn_like() * 0.1;
                ours.grads.shallow_clone().copy_(&gradient);
                theirs.grads.shallow_clone().copy_(&gradient);
            }
            let norm = theirs.grad_norm().unwrap();
            let own = direct.grad_norm(&ours).unwrap();
            assert!((own / norm.double_value(&[]) - 1.0).abs() < 1e-5);
            theirs.update(&norm, 1e-2, &options).unwrap();
            direct.update(&ours, own, step, 1e-2, &options).unwrap();
        }
        for (ours, theirs) in ours.groups.iter().zip(&theirs.groups) {
            for (name, found, wanted) in [
                ("weights", &ours.master, &theirs.master),
                ("first moments", &ours.exp_avg, &theirs.exp_avg),
                ("second moments", &ours.exp_avg_sq, &theirs.exp_avg_sq),
            ] {
                let error = difference(found, wanted, 1e-12);
                assert!(error < 1e-5, "clip {clip_grad}, {name}: {error:e}");
            }
        }
    }
}

#[test]
fn what_is_not_covered_has_a_reason() {
    let mut model = ModelShape {
        num_layers: 1,
        hidden_size: 64,
        ffn_hidden_size: 64,
        num_attention_heads: 2,
        num_kv_heads: 2,
        vocab_size: 50,
        rope_theta: 1e4,
        norm_eps: 1e-5,
        ..ModelShape::default()
    };
    type Edit = fn(&mut Job);
    let edits: [(&str, Edit); 3] = [
        ("in bf16", |job| job.precision = "bf16".to_owned()),
        ("between ranks", |job| job.parallelism.num_gpus = 2),
        ("checkpointing", |job| job.activation_checkpointing = true),
    ];
    let job = || {
        let mut job = Job {
            precision: "fp32".to_owned(),
            ..Job::default()
        };
        job.data.micro_batch_size = 1;
        job.data.seq_length = 4;
        job.parallelism.num_gpus = 1;
        job
    };
    let open = |model: &ModelShape, job: &Job| {
        let shape = Shape::of(model).unwrap();
        let specs = shape.parameters();
        let kind = Kind::Float;
        let parameters = Parameters::new(&specs, kind, kind, 0.0, Device::Cpu).unwrap();
        Direct::open(job, &shape, &parameters, Device::Cpu)
            .unwrap()
            .map(drop)
    };
    assert_eq!(open(&model, &job()), Ok(()));
    for (words, edit) in edits {
        let mut job = job();
        edit(&mut job);
        let reason = open(&model, &job).unwrap_err();
        assert!(reason.contains(words), "{reason}");
    }
    model.num_attention_heads = 1;
    model.num_kv_heads = 1;
    model.head_dim = 6;
    model.hidden_size = 10;
    let reason = open(&model, &job()).unwrap_err();
    assert!(reason.contains("not multiples of 64"), "{reason}");
}

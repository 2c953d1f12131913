//! Several ranks on the CPU, as threads: they train what one does, whole or shared out, and write
//! what one would write.

use std::path::Path;

use tprimat_job::ModelShape;

use super::{
    tests::{Host, distance, shape},
    *,
};
use crate::{
    checkpoint::{self, Checkpoints},
    parameters::{Share, State},
    ranks::Ring,
    shape::ParameterSpec,
    tokens::Tokens,
    weights,
};

/// Two steps of [`MICRO_BATCHES`] micro-batches in all: what every rank ends with, and its losses
/// and gradient norms.
struct Trained {
    parameters: Parameters,
    figures: Vec<[f64; 2]>,
}

const MICRO_BATCHES: u64 = 6;
/// Sequences of a micro-batch.
const ROWS: u64 = 2;

/// One rank of several; `first` are the weights that all begin with. `folder` gets a checkpoint.
fn train_rank(
    job: &Job,
    first: &[Tensor],
    group: Option<Rc<dyn Group>>,
    share: Option<Share>,
    folder: Option<&Path>,
) -> Trained {
    // A thread a rank is enough.
    tch::set_num_threads(1);
    let shape = Shape::of(&job.model).unwrap();
    let kinds = [Kind::BFloat16, Kind::Float];
    let mut parameters =
        Parameters::shared(&shape.parameters(), kinds, 0.1, Device::Cpu, share).unwrap();
    for (index, whole) in first.iter().enumerate() {
        parameters.write(State::Weights, index, whole).unwrap();
    }
    parameters.publish().unwrap();
    if let Some(group) = group.as_ref().filter(|_| share.is_some()) {
        parameters.make_reachable(&**group).unwrap();
        parameters.publish().unwrap();
    }
    let (rank, ranks) = group
        .as_ref()
        .map_or((0, 1), |group| (group.rank() as u64, group.size() as u64));
    let job = Job {
        data: tprimat_job::DataJob {
            gradient_accumulation_steps: MICRO_BATCHES / ranks,
            ..job.data.clone()
        },
        ..job.clone()
    };
    let fused = Fused::new(&job, &shape, &parameters, Rc::new(Host), group.clone()).unwrap();
    let tokens = Tokens::Synthetic {
        seed: 3,
        length: job.data.seq_length,
    };
    let optimizer = tprimat_job::OptimizerJob {
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-6,
        ..job.optimizer.clone()
    };
    let mut figures = Vec::new();
    for step in 1..=2 {
        let mut loss = Tensor::from(0.0_f32);
        let micro_batches = (step - 1) * MICRO_BATCHES / ranks..step * MICRO_BATCHES / ranks;
        for number in micro_batches.clone() {
            let of = |rank| {
                let first = (number * ranks + rank) * ROWS;
                tokens.batch(first, ROWS, job.model.vocab_size).unwrap()
            };
            let (inputs, targets) = of(rank);
            let embedded = match fused.embeds_for_all() {
                true => (0..ranks).flat_map(|rank| of(rank).0).collect(),
                false => inputs.clone(),
            };
            let batch = MicroBatch {
                tokens: Tensor::from_slice(&inputs),
                targets: Tensor::from_slice(&targets),
                segments: fused.segments(&embedded).unwrap(),
                predictions: (ROWS * (job.data.seq_length - 1)) as f64,
            };
            let turn = Turn {
                is_first: number == micro_batches.start,
                is_last: number + 1 == micro_batches.end,
            };
            let part = fused.run(&batch, 1.0 / MICRO_BATCHES as f64, turn).unwrap();
            loss += part;
        }
        if let Some(group) = &group {
            group.wait(group.all_reduce(&loss).unwrap()).unwrap();
        }
        let norm = fused.grad_norm(&parameters).unwrap();
        fused
            .update(&parameters, &norm, step, 1e-2, &optimizer)
            .unwrap();
        figures.push([loss.double_value(&[]), norm.double_value(&[])]);
    }
    if let Some(folder) = folder {
        let checkpoints = Checkpoints {
            folder: folder.to_owned(),
            every: 2,
        };
        checkpoints
            .write(&job, &parameters, group.as_deref(), 2)
            .unwrap();
    }
    Trained {
        parameters,
        figures,
    }
}

fn train_ranks(
    job: &Job,
    first: &[Tensor],
    ranks: usize,
    is_shared: bool,
    folder: Option<&Path>,
) -> Vec<Trained> {
    if ranks == 1 {
        return vec![train_rank(job, first, None, None, folder)];
    }
    std::thread::scope(|scope| {
        let start = |(rank, ring): (usize, Ring)| {
            let share = is_shared.then_some(Share {
                rank: rank as i64,
                ranks: ranks as i64,
            });
            // A tensor belongs to one thread at a time.
            let first: Vec<Tensor> = first.iter().map(Tensor::copy).collect();
            scope.spawn(move || train_rank(job, &first, Some(Rc::new(ring)), share, folder))
        };
        let threads: Vec<_> = Ring::connected(ranks)
            .into_iter()
            .enumerate()
            .map(start)
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

fn first_weights(specs: &[ParameterSpec]) -> Vec<Tensor> {
    let mut whole = Parameters::new(specs, Kind::BFloat16, Kind::Float, 0.1, Device::Cpu).unwrap();
    weights::initialise(&mut whole, 5, 0.1, Device::Cpu).unwrap();
    whole.list.iter().map(|p| p.master.copy()).collect()
}

/// The same global batch gives the same losses, norms and weights on any number of ranks, shared
/// out or not.
#[test]
fn several_ranks_train_what_one_does() {
    let _turn = weights::take_turns();
    for (tied, bias, recomputes, precision) in [
        (false, false, false, "bf16"),
        (true, true, true, "bf16"),
        (true, false, true, "fp8"),
    ] {
        let model = ModelShape {
            num_layers: 5,
            ..shape(tied, bias)
        };
        let mut job = Job {
            model,
            precision: precision.to_owned(),
            activation_checkpointing: recomputes,
            ..Job::default()
        };
        // Rows of products in fp8 are a multiple of 16.
        let length = if precision == "fp8" { 16 } else { 9 };
        (job.data.seq_length, job.sac_frequency, job.train_iters) = (length, 2, 2);
        job.data.micro_batch_size = ROWS;
        let specs = Shape::of(&job.model).unwrap().parameters();
        let first = first_weights(&specs);
        let alone = train_ranks(&job, &first, 1, false, None).remove(0);
        assert!(
            alone.figures[1][0] < alone.figures[0][0] - 0.02,
            "it learns: {:?}",
            alone.figures
        );
        // With six ranks each has one micro-batch a step, with three each has two.
        let cases: &[_] = if tied {
            &[(6, true), (3, true), (2, false)]
        } else {
            &[(2, true), (3, false)]
        };
        for (ranks, is_shared) in cases.iter().copied() {
            let what = format!("{ranks} ranks, shared {is_shared}, tied {tied}, {precision}");
            let trained = train_ranks(&job, &first, ranks, is_shared, None);
            for (
                rank,
                Trained {
                    parameters,
                    figures,
                },
            ) in trained.iter().enumerate()
            {
                assert_eq!(
                    figures, &trained[0].figures,
                    "{what}: every rank has the same figures"
                );
                for (got, wanted) in figures.iter().flatten().zip(alone.figures.iter().flatten()) {
                    assert!(
                        (got / wanted - 1.0).abs() < 1e-3,
                        "{what}: {figures:?}, alone {:?}",
                        alone.figures
                    );
                }
                // What this rank would hold of the weights that one rank alone has trained.
                let share = is_shared.then_some(Share {
                    rank: rank as i64,
                    ranks: ranks as i64,
                });
                let kinds = [Kind::BFloat16, Kind::Float];
                let mut wanted =
                    Parameters::shared(&specs, kinds, 0.1, Device::Cpu, share).unwrap();
                for (index, parameter) in alone.parameters.list.iter().enumerate() {
                    wanted
                        .write(State::Weights, index, &parameter.master)
                        .unwrap();
                }
                for (got, wanted) in parameters.groups.iter().zip(&wanted.groups) {
                    let error = distance(&got.master, &wanted.master);
                    assert!(error < 2e-3, "{what}, rank {rank}: {error:.1e}");
                }
            }
        }
    }
}

/// Three ranks that hold parts of everything write whole tensors; any number of ranks gets its
/// parts back, to the last bit.
#[test]
fn a_checkpoint_is_whole_whoever_wrote_it() {
    let _turn = weights::take_turns();
    let mut job = Job {
        model: shape(false, true),
        precision: "bf16".to_owned(),
        ..Job::default()
    };
    (job.data.seq_length, job.train_iters) = (9, 2);
    job.data.micro_batch_size = ROWS;
    let specs = Shape::of(&job.model).unwrap().parameters();
    let folder = tempfile::tempdir().unwrap();
    let trained = train_ranks(&job, &first_weights(&specs), 3, true, Some(folder.path()));
    job.train_iters = 3;
    let resumed = |share| {
        let kinds = [Kind::BFloat16, Kind::Float];
        let mut parameters = Parameters::shared(&specs, kinds, 0.1, Device::Cpu, share).unwrap();
        let resumed =
            checkpoint::resume(&mut parameters, &job, &folder.path().join("step-2")).unwrap();
        assert_eq!(
            (resumed.step, resumed.changed),
            (
                2,
                ["data.gradient_accumulation_steps", "train_iters"]
                    .map(str::to_owned)
                    .to_vec()
            )
        );
        parameters
    };
    for (rank, Trained { parameters, .. }) in trained.iter().enumerate() {
        let again = resumed(Some(Share {
            rank: rank as i64,
            ranks: 3,
        }));
        for (got, wanted) in again.groups.iter().zip(&parameters.groups) {
            let buffers = [
                &wanted.values,
                &wanted.master,
                &wanted.exp_avg,
                &wanted.exp_avg_sq,
            ];
            for (got, wanted) in [&got.values, &got.master, &got.exp_avg, &got.exp_avg_sq]
                .into_iter()
                .zip(buffers)
            {
                assert!(got.equal(wanted), "rank {rank}");
            }
            assert!(wanted.exp_avg_sq.abs().max().double_value(&[]) > 0.0);
        }
    }
    // Whole, and cut for two ranks.
    let whole = resumed(None);
    for rank in 0..2 {
        let share = Share { rank, ranks: 2 };
        let kinds = [Kind::BFloat16, Kind::Float];
        let mut wanted = Parameters::shared(&specs, kinds, 0.1, Device::Cpu, Some(share)).unwrap();
        for (index, parameter) in whole.list.iter().enumerate() {
            wanted
                .write(State::Weights, index, &parameter.master)
                .unwrap();
        }
        for (got, wanted) in resumed(Some(share)).groups.iter().zip(&wanted.groups) {
            assert!(got.master.equal(&wanted.master), "rank {rank} of 2");
        }
    }
}

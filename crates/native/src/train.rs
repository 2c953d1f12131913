//! The training run: set-up, the loop over optimiser steps, and what is reported of both.

use std::{io::Write, path::Path, rc::Rc, time::Instant};

use serde_json::{Map, Value, json};
use tch::{Device, Kind, TchError, Tensor};
use tprimat_job::{Decay, Job};

use crate::{
    backward::{self, Plan},
    checkpoint::{self, Checkpoints, Resumed},
    device,
    events::Events,
    fused::{self, Fused, MicroBatch, Turn},
    model::Model,
    parameters::{Parameters, Share},
    profile::Profile,
    ranks::{self, Group, Ring},
    shape::Shape,
    shim,
    stop::Stop,
    support,
    tokens::Tokens,
    weights,
};

/// All that the loop needs. The job stands beside it for the numbers that no tensor holds.
pub struct Trainer<'a> {
    job: &'a Job,
    device: Device,
    /// The other ranks, where there are any.
    group: Option<Rc<dyn Group>>,
    parameters: Parameters,
    model: Model,
    path: StepPath,
    tokens: Tokens,
    /// The next step's tokens, made and sent while the device works on this one's.
    prepared: Option<(u64, Batch)>,
    initialisation: &'static str,
    /// The checkpoint that this run goes on from.
    resumed: Option<Resumed>,
    pub checkpoints: Option<Checkpoints>,
}

/// Where weights come from.
pub enum Begin<'a> {
    Random,
    /// A file of them.
    Weights(&'a Path),
    /// A checkpoint's folder.
    Resume(&'a Path),
}

/// How a step is computed.
enum StepPath {
    Fused(Box<Fused>),
    /// By libtorch's autograd, and why.
    Autograd(Plan, String),
}

/// Tokens of a step on the device.
enum Batch {
    Fused(Vec<MicroBatch>),
    /// Inputs and targets, `[micro_steps, rows, seq_length]`.
    Autograd(Tensor, Tensor),
}

/// What one optimiser step measured.
struct Step {
    loss: f64,
    grad_norm: f64,
    learning_rate: f64,
    tokens: u64,
    /// Until everything was queued on the device: what is left of the step is waiting for it.
    queued_seconds: f64,
}

impl<'a> Trainer<'a> {
    /// `ring`: this process's place among the ranks of the run, where there are several.
    pub fn new(
        job: &'a Job,
        begin: Begin,
        dataset: Option<&Path>,
        ring: Option<Ring>,
    ) -> Result<Self, Stop> {
        let tokens = Tokens::of(job, dataset)?;
        let device = device::open(job.vendor, ring.as_ref().map_or(0, Ring::rank))?;
        if let Some(ring) = &ring {
            device::share_cores(device, ring.size());
        }
        let group = ring.map(|ring| ranks::group(ring, device)).transpose()?;
        let shape = Shape::of(&job.model).map_err(Stop::Refused)?;
        // In fp8, factors of products are fp8; all other values are bf16.
        let kind = |precision: &str| {
            if precision == "fp32" {
                Kind::Float
            } else {
                Kind::BFloat16
            }
        };
        let (kind, state_kind) = (kind(&job.precision), kind(&job.optimizer.state_precision));
        let is_shared = group.is_some() && fused::shares_out(job, &shape, device);
        let share = group.as_ref().filter(|_| is_shared);
        let share = share.map(|group| Share {
            rank: group.rank() as i64,
            ranks: group.size() as i64,
        });
        let (specs, decay) = (shape.parameters(), job.optimizer.weight_decay);
        let mut parameters = Parameters::shared(&specs, [kind, state_kind], decay, device, share)?;
        if let Some(group) = group.as_ref().filter(|_| is_shared) {
            parameters.make_reachable(&**group)?;
        }
        let (initialisation, resumed) = match begin {
            Begin::Random => {
                weights::initialise(&mut parameters, job.seed, job.initialisation.std, device)?;
                ("random", None)
            }
            Begin::Weights(path) => {
                weights::load(&mut parameters, path)?;
                ("file", None)
            }
            Begin::Resume(folder) => (
                "checkpoint",
                Some(checkpoint::resume(&mut parameters, job, folder)?),
            ),
        };
        let model = Model::new(&shape, &parameters, job.data.seq_length, device)?;
        let checkpoint_every = if job.activation_checkpointing {
            job.sac_frequency.max(1)
        } else {
            0
        };
        let opened = Self::open_step(job, &shape, &parameters, device, group.clone())?;
        let path = opened.unwrap_or_else(|reason| {
            StepPath::Autograd(
                Plan::new(model.num_parts(), checkpoint_every as usize),
                reason,
            )
        });
        Ok(Self {
            job,
            device,
            group,
            parameters,
            model,
            path,
            tokens,
            prepared: None,
            initialisation,
            resumed,
            checkpoints: None,
        })
    }

    /// A step that is written out, or the reason for autograd; a job that insists on the former
    /// gets no other.
    fn open_step(
        job: &Job,
        shape: &Shape,
        parameters: &Parameters,
        device: Device,
        group: Option<Rc<dyn Group>>,
    ) -> Result<Result<StepPath, String>, Stop> {
        if support::step(job) == Some("autograd") {
            return match parameters.shards {
                Some(_) => Err(Stop::Refused(
                    "sharding needs the fused step, and the job asks for autograd".to_owned(),
                )),
                None => Ok(Err("the job asks for autograd".to_owned())),
            };
        }
        let opened = Fused::open(job, shape, parameters, device, group.clone())?;
        if let Some(group) = &group {
            let reason = opened.as_ref().err().map(String::as_str);
            ranks::agree::all_or_none(&**group, device, "the fused step", reason)?;
        }
        match (&opened, support::step(job), &parameters.shards) {
            (Err(reason), Some(_), _) => Err(Stop::Refused(format!(
                "the fused step does not cover this job: {reason}"
            ))),
            // Autograd has no fp8, and another precision would be another measurement.
            (Err(reason), None, None) if job.precision == "fp8" => Err(Stop::Refused(format!(
                "only the fused step computes in fp8, and it does not cover this job: {reason}"
            ))),
            (Err(reason), _, Some(_)) => Err(Stop::Refused(format!(
                "sharding needs the fused step, which does not cover this job: {reason}"
            ))),
            _ => Ok(opened.map(|fused| StepPath::Fused(Box::new(fused)))),
        }
    }

    /// This process's number among the ranks, and how many there are.
    fn rank(&self) -> (u64, u64) {
        self.group
            .as_ref()
            .map_or((0, 1), |group| (group.rank() as u64, group.size() as u64))
    }

    /// Forward of the first micro-batch, before any training.
    pub fn dump_logits(&self, path: &Path) -> Result<(), Stop> {
        let tokens = self.tokens_of(1, self.rank().0)?.0;
        let inputs = self.tensor(&tokens)?.f_select(0, 0)?;
        let logits = match &self.path {
            StepPath::Fused(fused) => fused.logits(&inputs)?,
            StepPath::Autograd(..) => tch::no_grad(|| {
                let hidden = self.model.forward(&(0..self.model.num_parts()), &inputs)?;
                self.model.logits(&hidden)
            })?,
        };
        match self.rank() {
            (0, _) => weights::dump_logits(&inputs, &logits, path),
            _ => Ok(()),
        }
    }

    pub fn run<W: Write>(&mut self, events: &mut Events<W>) -> Result<(), Stop> {
        events.start(self.start_fields()?)?;
        let mut last = Instant::now();
        let (done_before, last_step) = (
            self.resumed.as_ref().map_or(0, |resumed| resumed.step),
            self.job.train_iters,
        );
        let mut profile = Profile::asked(self.rank().0);
        for step in done_before + 1..=last_step {
            if let Some(profile) = &mut profile {
                profile.before(step - done_before)?;
            }
            let done = self.step(step)?;
            let now = Instant::now();
            let seconds = now.duration_since(last).as_secs_f64();
            last = now;
            let mut fields = done.fields(step, seconds);
            if let Some(memory) = device::peak_memory(self.device)? {
                // What ranks exchange is beside PyTorch's allocator, from before the first step to
                // the end.
                let exchanged = self
                    .group
                    .as_ref()
                    .map_or(0, |group| group.allocated_bytes());
                fields.insert("memory_bytes".to_owned(), (memory.bytes + exchanged).into());
                fields.insert("memory_kind".to_owned(), memory.kind.into());
                fields.insert("memory_source".to_owned(), memory.source.into());
            }
            events.step(fields)?;
            if done.loss.is_nan() {
                return Err(Stop::NanLoss(step));
            }
            let due = self.checkpoints.as_ref();
            if let Some(checkpoints) = due.filter(|due| due.is_due(step, last_step)) {
                let start = Instant::now();
                let path =
                    checkpoints.write(self.job, &self.parameters, self.group.as_deref(), step)?;
                events.checkpoint(step, &path, start.elapsed().as_secs_f64())?;
                // What it takes is in its own event, and in the time of no step.
                last = Instant::now();
            }
        }
        if let Some(profile) = &mut profile {
            profile.end()?;
        }
        Ok(events.end(last_step - done_before)?)
    }

    fn step(&mut self, step: u64) -> Result<Step, Stop> {
        let start = Instant::now();
        let batch = match self.prepared.take() {
            Some((number, batch)) if number == step => batch,
            _ => self.batch(step)?,
        };
        let data = &self.job.data;
        let micro_steps = data.gradient_accumulation_steps;
        let (_, ranks) = self.rank();
        let weight = 1.0 / (micro_steps * ranks) as f64;
        let learning_rate = self.job.optimizer.rate(self.job.train_iters, step);
        let mut loss = Tensor::f_zeros([], (Kind::Float, self.device))?;
        let mut adding = None;
        let grad_norm = match (&self.path, &batch) {
            (StepPath::Fused(fused), Batch::Fused(micro_batches)) => {
                for (number, micro_batch) in micro_batches.iter().enumerate() {
                    let turn = Turn {
                        is_first: number == 0,
                        is_last: number + 1 == micro_batches.len(),
                    };
                    loss = loss.f_add(&fused.run(micro_batch, weight, turn)?)?;
                }
                // Not after the update, which it would make the step wait for.
                let group = self.group.as_ref();
                adding = group.map(|group| group.all_reduce(&loss)).transpose()?;
                let grad_norm = fused.grad_norm(&self.parameters)?;
                fused.update(
                    &self.parameters,
                    &grad_norm,
                    step,
                    learning_rate,
                    &self.job.optimizer,
                )?;
                grad_norm
            }
            (StepPath::Autograd(plan, _), Batch::Autograd(inputs, targets)) => {
                for number in 0..micro_steps as i64 {
                    let (inputs, targets) =
                        (inputs.f_select(0, number)?, targets.f_select(0, number)?);
                    let part = backward::run(
                        &self.model,
                        &mut self.parameters,
                        plan,
                        &inputs,
                        &targets,
                        weight,
                    )?;
                    loss = loss.f_add(&part)?;
                }
                if let Some(group) = &self.group {
                    self.parameters.add_up(&**group)?;
                }
                let grad_norm = self.parameters.grad_norm()?;
                self.parameters
                    .update(&grad_norm, learning_rate, &self.job.optimizer)?;
                grad_norm
            }
            _ => {
                return Err(TchError::Torch(
                    "a batch was made for another kind of step".to_owned(),
                )
                .into());
            }
        };
        if let Some(group) = &self.group {
            let adding = match adding {
                Some(pending) => pending,
                None => group.all_reduce(&loss)?,
            };
            group.wait(adding)?;
        }
        if step < self.job.train_iters {
            self.prepared = Some((step + 1, self.batch(step + 1)?));
        }
        let queued_seconds = start.elapsed().as_secs_f64();
        // The only wait of a step: the copy comes after all work that was queued.
        let read = Tensor::f_stack(&[loss, grad_norm], 0)?.f_to_device(Device::Cpu)?;
        let at = |index| read.f_double_value(&[index]);
        let tokens = data.micro_batch_size * micro_steps * ranks * data.seq_length;
        Ok(Step {
            loss: at(0)?,
            grad_norm: at(1)?,
            learning_rate,
            tokens,
            queued_seconds,
        })
    }

    /// The tokens of a step, on their way to the device.
    fn batch(&self, step: u64) -> Result<Batch, Stop> {
        let (rank, ranks) = self.rank();
        let (inputs, targets) = self.tokens_of(step, rank)?;
        let fused = match &self.path {
            StepPath::Fused(fused) => fused,
            StepPath::Autograd(..) => {
                let (inputs, targets) = (self.tensor(&inputs)?, self.tensor(&targets)?);
                return Ok(Batch::Autograd(inputs, targets));
            }
        };
        let everyones = match fused.embeds_for_all() {
            true => (0..ranks)
                .map(|rank| Ok(self.tokens_of(step, rank)?.0))
                .collect::<Result<Vec<_>, Stop>>()?,
            false => vec![inputs.clone()],
        };
        let data = &self.job.data;
        let rows = (data.micro_batch_size * data.seq_length) as usize;
        let mut micro_batches = Vec::new();
        for (number, (inputs, targets)) in inputs.chunks(rows).zip(targets.chunks(rows)).enumerate()
        {
            let embedded: Vec<i64> = everyones
                .iter()
                .flat_map(|inputs| &inputs[number * rows..][..rows])
                .copied()
                .collect();
            micro_batches.push(MicroBatch {
                tokens: device::send(inputs, self.device)?,
                targets: device::send(targets, self.device)?,
                segments: fused.segments(&embedded)?,
                predictions: (data.micro_batch_size * (data.seq_length - 1)) as f64,
            });
        }
        Ok(Batch::Fused(micro_batches))
    }

    /// A rank's inputs and targets of a step, row after row. Ranks take turns, micro-batch by
    /// micro-batch.
    fn tokens_of(&self, step: u64, rank: u64) -> Result<(Vec<i64>, Vec<i64>), Stop> {
        let data = &self.job.data;
        let (_, ranks) = self.rank();
        let (rows, micro_steps) = (data.micro_batch_size, data.gradient_accumulation_steps);
        let vocab = self.model.head().size()[0] as u64;
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for number in (step - 1) * micro_steps..step * micro_steps {
            let (input, target) = self
                .tokens
                .batch((number * ranks + rank) * rows, rows, vocab)?;
            inputs.extend(input);
            targets.extend(target);
        }
        Ok((inputs, targets))
    }

    /// Tokens of all micro-batches of a step, `[micro_steps, rows, seq_length]`.
    fn tensor(&self, values: &[i64]) -> Result<Tensor, TchError> {
        let data = &self.job.data;
        let size = [
            data.gradient_accumulation_steps,
            data.micro_batch_size,
            data.seq_length,
        ]
        .map(|n| n as i64);
        device::send(values, self.device)?.f_reshape(size)
    }

    fn start_fields(&self) -> Result<Map<String, Value>, TchError> {
        let settings = shim::build_settings()?;
        let mut fields = Map::new();
        fields.insert("effective".to_owned(), self.effective());
        fields.insert("num_parameters".to_owned(), self.parameters.count().into());
        fields.insert(
            "device".to_owned(),
            device::describe(self.device, self.rank().1 as usize),
        );
        let implementation = match &self.path {
            StepPath::Fused(fused) => fused.describe(),
            StepPath::Autograd(_, reason) => json!({ "step": "autograd", "reason": reason }),
        };
        fields.insert("implementation".to_owned(), implementation);
        if let Some(Resumed { step, changed }) = &self.resumed {
            fields.insert(
                "resumed".to_owned(),
                json!({ "step": step, "changed": changed }),
            );
        }
        fields.insert("versions".to_owned(), versions(&settings));
        fields.insert("threads".to_owned(), tch::get_num_threads().into());
        Ok(fields)
    }

    /// Settings as the tensors and the loop have them; sizes are read off the tensors.
    fn effective(&self) -> Value {
        let Job {
            data, optimizer, ..
        } = self.job;
        let (_, ranks) = self.rank();
        let checkpointed = match &self.path {
            StepPath::Fused(fused) => fused.recomputed_layers(),
            StepPath::Autograd(plan, _) => plan.segments.iter().filter(|s| s.recompute).count(),
        };
        let fp8_hybrid = match &self.path {
            StepPath::Fused(fused) => fused.fp8_is_hybrid(),
            StepPath::Autograd(..) => None,
        };
        let mut effective = json!({
            "micro_batch_size": data.micro_batch_size,
            "global_batch_size": data.micro_batch_size * data.gradient_accumulation_steps * ranks,
            "gradient_accumulation_steps": data.gradient_accumulation_steps,
            "seq_length": data.seq_length,
            "train_iters": self.job.train_iters,
            "precision": if fp8_hybrid.is_some() { "fp8" } else { precision(self.model.kind()) },
            "optimizer": "adamw",
            "optimizer_state_precision": precision(self.parameters.state_kind()),
            "learning_rate": optimizer.learning_rate,
            "min_learning_rate": optimizer.min_learning_rate,
            "warmup_steps": optimizer.warmup_steps,
            "weight_decay": self.parameters.groups[0].weight_decay,
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "eps": optimizer.eps,
            "clip_grad": optimizer.clip_grad,
            "seed": self.job.seed,
            "tensor_model_parallel_size": 1,
            "pipeline_model_parallel_size": 1,
            "context_parallel_size": 1,
            "data_parallel_size": ranks,
            "num_gpus": ranks,
            "compile": false,
            "activation_checkpointing": checkpointed > 0,
            "offload": false,
            "dropout": 0.0,
            "architecture": self.job.model.architecture,
            "mask": "causal",
            "packing": "none",
            "initialisation": self.initialisation,
        });
        if optimizer.lr_decay_style != Decay::default() {
            effective["lr_decay_style"] = json!(optimizer.lr_decay_style);
            effective["wsd_decay_steps"] = optimizer.wsd_decay_steps.into();
        }
        if ranks > 1 {
            effective["sharding"] = self.sharding().into();
        }
        if let Value::Object(map) = &mut effective {
            map.append(&mut self.model.effective());
            map.append(
                &mut self
                    .tokens
                    .effective(self.job.train_iters.saturating_mul(data.global_batch_size)),
            );
            if let Some(is_hybrid) = fp8_hybrid {
                map.insert("fp8_hybrid".to_owned(), is_hybrid.into());
                map.insert("fp8_param".to_owned(), false.into());
                // Megatron's word for one current scale a matrix.
                map.insert("fp8_recipe".to_owned(), "tensorwise".into());
            }
            if self.initialisation == "random" {
                map.insert("init_std".to_owned(), self.job.initialisation.std.into());
            }
        }
        effective
    }
}

impl Trainer<'_> {
    /// What ranks share out, in the job's word where it has one for it.
    fn sharding(&self) -> &str {
        match (
            &self.parameters.shards,
            self.job.parallelism.sharding.as_str(),
        ) {
            (None, _) => "none",
            (Some(_), "") => "full_shard",
            (Some(_), word) => word,
        }
    }
}

impl Step {
    fn fields(&self, step: u64, seconds: f64) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("step".to_owned(), step.into());
        fields.insert("step_time_seconds".to_owned(), seconds.into());
        // Not-a-number has no JSON: `null`.
        fields.insert("loss".to_owned(), self.loss.into());
        if self.loss.is_nan() {
            fields.insert("anomaly".to_owned(), "nan_loss".into());
        }
        fields.insert("learning_rate".to_owned(), self.learning_rate.into());
        fields.insert("grad_norm".to_owned(), self.grad_norm.into());
        fields.insert("tokens".to_owned(), self.tokens.into());
        fields.insert("queued_seconds".to_owned(), self.queued_seconds.into());
        fields
    }
}

fn precision(kind: Kind) -> &'static str {
    match kind {
        Kind::BFloat16 => "bf16",
        Kind::Float => "fp32",
        _ => "unknown",
    }
}

/// Versions out of PyTorch's description of its own build.
fn versions(settings: &str) -> Value {
    let mut versions = json!({ "tprimat-native": env!("CARGO_PKG_VERSION") });
    for (name, label) in [
        ("torch", "TORCH_VERSION="),
        ("cuda", "CUDA Runtime "),
        ("cudnn", "CuDNN "),
    ] {
        let Some((_, rest)) = settings.split_once(label) else {
            continue;
        };
        let version: String = rest
            .chars()
            .take_while(|c| !matches!(c, ',' | '\n' | ' '))
            .collect();
        versions[name] = if name == "cudnn" {
            cudnn(&version)
        } else {
            version
        }
        .into();
    }
    versions
}

/// PyTorch prints cuDNN's number, which is major × 10000 + minor × 100 + patch since cuDNN 9,
/// divided by 1000.
fn cudnn(printed: &str) -> String {
    let number = printed
        .parse::<f64>()
        .map(|thousands| (thousands * 1000.0).round() as u64);
    match number {
        Ok(n @ 90_000..) => format!("{}.{}.{}", n / 10_000, n / 100 % 100, n % 100),
        _ => printed.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_build_settings() {
        let settings = "PyTorch built with:\n  - CUDA Runtime 13.0\n  - CuDNN 91.9\n  - Build settings: X=1, TORCH_VERSION=2.11.0, USE_CUDA=1, \n";
        let versions = versions(settings);
        assert_eq!(
            (versions["torch"].as_str(), versions["cuda"].as_str()),
            (Some("2.11.0"), Some("13.0"))
        );
        assert_eq!(versions["cudnn"].as_str(), Some("9.19.0"));
        assert_eq!(cudnn("8.9.7"), "8.9.7");
        assert!(super::versions("nothing")["torch"].is_null());
    }
}

//! Rules across the settings of a cell.

use super::{SKIPPED, SettingsReader, parallelism::Block};
use crate::{
    figures::accelerators_like,
    job::{Architecture, Decay, Job, PRECISIONS, Task, architecture},
    matrix::Cell,
};

/// A run none of whose steps is counted costs its time for nothing.
pub(super) fn measures(r: &mut SettingsReader, job: &Job, skipped: u64) {
    if skipped >= job.train_iters {
        let message = format!(
            "no step would be measured, for the first {skipped} of a run of {} are warm-up",
            job.train_iters
        );
        let problem = r
            .view
            .problem_at("training.duration.train_iters", message, "too short");
        r.push_of_cell(problem.help(format!("train longer, or lower `{SKIPPED}`")));
    }
}

/// A format that none of the cards has which the platform's name of one may mean.
pub(super) fn card(r: &mut SettingsReader, job: &Job, gpu_model: Option<&str>) {
    const PRECISION: &str = "training.precision.default";
    let Some(model) = gpu_model else {
        return;
    };
    let cards = accelerators_like(model);
    let has = |precision: &str| cards.iter().any(|card| card.computes(precision));
    if cards.is_empty() || has(&job.precision) {
        return;
    }
    let message = format!("a {model} does not compute in {}", job.precision);
    let problem = r.view.problem_at(PRECISION, message, "asked for here");
    let others = PRECISIONS.into_iter().filter(|other| has(other));
    let others = others.collect::<Vec<_>>().join(", ");
    r.push_of_cell(problem.help(format!("it computes in {others}")));
}

/// `is_command`: what trains is the user's own, which may part layers unevenly.
pub(super) fn check(
    r: &mut SettingsReader,
    cell: &Cell,
    job: &Job,
    block: Option<&Block>,
    is_command: bool,
) {
    shape(r, cell, job, is_command);
    task(r, job);
    experts(r, cell, job, block);
    optimizer(r, job);
}

/// How the batch is shared out.
pub(super) fn batch(r: &mut SettingsReader, job: &Job, block: Option<&Block>, is_command: bool) {
    let (data, p) = (&job.data, &job.parallelism);
    let product = data
        .micro_batch_size
        .saturating_mul(p.data_parallel_size)
        .saturating_mul(data.gradient_accumulation_steps);
    if product != data.global_batch_size {
        r.problem_of_cell(
            "training.data.global_batch_size",
            format!(
                "a global batch of {} is not a multiple of MBS {} × DP {}",
                data.global_batch_size, data.micro_batch_size, p.data_parallel_size
            ),
            match is_command {
                true => {
                    "GBS = MBS × DP × GA; without this line a step is one micro-batch of each rank"
                }
                false => "GBS = MBS × DP × GA",
            },
        );
    }
    if let Some((path, block)) = block
        && let Some(stated) = block.gradient_accumulation_steps
        && stated != data.gradient_accumulation_steps
    {
        let message = format!(
            "GA is stated as {stated}, but GBS {} / (MBS {} × DP {}) = {}",
            data.global_batch_size,
            data.micro_batch_size,
            p.data_parallel_size,
            data.gradient_accumulation_steps
        );
        r.problem_of_cell(path, message, "GA is derived; a stated one is an assertion");
    }
}

/// What the model's shape allows.
fn shape(r: &mut SettingsReader, cell: &Cell, job: &Job, is_command: bool) {
    let (data, p, m) = (&job.data, &job.parallelism, &job.model);
    let tp = p.tensor_model_parallel_size;
    if m.num_attention_heads % tp != 0 {
        let path = format!("models.{}.num_attention_heads", cell.model);
        r.problem_of_cell(
            &path,
            format!(
                "{} attention heads do not divide by TP {tp}",
                m.num_attention_heads
            ),
            "heads % TP must be 0",
        );
    }
    let pp = p.pipeline_model_parallel_size;
    if m.num_layers % pp != 0 && !is_command {
        let path = format!("models.{}.num_layers", cell.model);
        r.problem_of_cell(
            &path,
            format!("{} layers do not divide by PP {pp}", m.num_layers),
            "layers % PP must be 0",
        );
    }
    if m.max_position_embeddings > 0 && data.seq_length > m.max_position_embeddings {
        r.problem_of_cell(
            "training.data.seq_length",
            format!(
                "a sequence of {} is longer than the {} learned positions of `{}`",
                data.seq_length, m.max_position_embeddings, cell.model
            ),
            "too long for this model",
        );
    }
}

/// Experts are shared out evenly, over devices that DP and CP have.
fn experts(r: &mut SettingsReader, cell: &Cell, job: &Job, block: Option<&Block>) {
    let (p, m) = (&job.parallelism, &job.model);
    let ep = p.expert_model_parallel_size;
    let ranks = p.data_parallel_size.saturating_mul(p.context_parallel_size);
    if ep <= 1 || (m.num_experts > 0 && m.num_experts % ep == 0 && ranks % ep == 0) {
        return;
    }
    // What a model with experts lacks has been told.
    let has_experts = architecture(&m.architecture).is_some_and(Architecture::has_experts);
    if m.num_experts == 0 && has_experts {
        return;
    }
    let (message, label) = if m.num_experts == 0 {
        let message = format!("EP {ep}, and `{}` has no experts", cell.model);
        (message, "a dense model has nothing to share out")
    } else if m.num_experts % ep != 0 {
        let message = format!(
            "`{}`: {} experts do not divide by EP {ep}",
            cell.model, m.num_experts
        );
        (message, "experts % EP must be 0")
    } else {
        let (dp, cp) = (p.data_parallel_size, p.context_parallel_size);
        let message = format!("DP {dp} × CP {cp} = {ranks} devices do not divide by EP {ep}");
        (message, "DP × CP % EP must be 0")
    };
    let path = block.map_or("parallelism", |(path, _)| path);
    let path = format!("{path}.expert_model_parallel_size");
    let is_possible = |n: &u64| ranks % n == 0 && m.num_experts % n == 0;
    let nearest = (1..ep)
        .rev()
        .find(is_possible)
        .filter(|_| m.num_experts > 0);
    let help = match nearest {
        Some(n) if n > 1 => format!("the next smaller EP that can be is {n}"),
        _ => "leave EP out".to_owned(),
    };
    let problem = r.view.problem_at(&path, message, label);
    r.push_of_cell(problem.help(help));
}

fn task(r: &mut SettingsReader, job: &Job) {
    let message = match (job.task, job.lora_rank) {
        (Task::Lora, 0) => {
            "the task is lora, and training.lora_rank, the rank of its adapters, is not stated"
        }
        (Task::Pretrain | Task::Sft, 1..) => {
            "a rank of adapters is stated, and the task is not lora"
        }
        _ => return,
    };
    let label = "state lora_rank with task: lora, and only there";
    r.problem_of_cell("training.lora_rank", message.to_owned(), label);
}

fn optimizer(r: &mut SettingsReader, job: &Job) {
    let (falling, style) = (job.optimizer.wsd_decay_steps, job.optimizer.lr_decay_style);
    let left = job.train_iters.saturating_sub(job.optimizer.warmup_steps);
    if (style == Decay::Wsd) != (falling > 0) || falling > left {
        let message = match (style == Decay::Wsd, falling) {
            (true, 0) => "a wsd schedule does not say over how many last steps it falls".to_owned(),
            (true, _) => format!(
                "a wsd schedule falls over {falling} steps, and has {left} behind its warm-up"
            ),
            _ => format!("a schedule other than wsd states {falling} decay steps"),
        };
        let label = "1 to train_iters − warmup_steps with lr_decay_style: wsd, else left out";
        r.problem_of_cell("training.optimizer.wsd_decay_steps", message, label);
    }
    if job.optimizer.warmup_steps > job.train_iters {
        r.problem_of_cell(
            "training.optimizer.warmup_steps",
            format!(
                "{} warm-up steps in a run of {}",
                job.optimizer.warmup_steps, job.train_iters
            ),
            "longer than the run",
        );
    }
}

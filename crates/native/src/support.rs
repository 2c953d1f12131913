//! What this trainer does not do: a job that asks for it is refused, never run as something else.

use tprimat_job::{Job, Sharding, Vendor};

use crate::shape::Shape;

/// Bound of counts that are multiplied with each other.
const MOST: u64 = 1 << 20;
/// No host has as many devices.
const MOST_RANKS: u64 = 256;

/// Every reason why `job` cannot be run as it stands; empty = it can.
pub fn refusals(job: &Job) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut refuse = |condition: bool, reason: String| {
        if condition {
            reasons.push(reason);
        }
    };
    let (model, data, optimizer, parallel) =
        (&job.model, &job.data, &job.optimizer, &job.parallelism);

    match model.architecture.as_str() {
        name @ ("llama" | "mistral" | "qwen3") => refuse(
            model.qkv_bias,
            format!("architecture {name} has no QKV bias"),
        ),
        name @ ("qwen2" | "gpt2") => refuse(
            !model.qkv_bias,
            format!("architecture {name} always has a QKV bias"),
        ),
        other => refuse(
            true,
            format!(
                "architecture {other:?} is not supported; supported: llama, mistral, qwen2, qwen3, gpt2"
            ),
        ),
    }
    if let Err(reason) = Shape::of(model) {
        refuse(true, reason);
    }
    let positions = model.max_position_embeddings;
    refuse(
        model.architecture == "gpt2" && data.seq_length > positions,
        format!(
            "seq_length {} is longer than the {positions} positions that the model has",
            data.seq_length
        ),
    );

    match (job.precision.as_str(), optimizer.state_precision.as_str()) {
        ("fp32", "fp32") | ("bf16" | "fp8", "fp32" | "bf16") => {}
        ("fp32" | "bf16" | "fp8", state) => {
            refuse(
                true,
                format!(
                    "optimizer state precision {state:?} is not supported with {}",
                    job.precision
                ),
            );
        }
        (other, _) => refuse(
            true,
            format!("precision {other:?} is not supported; supported: fp32, bf16, fp8"),
        ),
    }
    if job.precision == "fp8" {
        refuse(
            job.fp8_param,
            "weights kept in fp8 (fp8_param) are not supported".into(),
        );
        refuse(
            job.vendor == Vendor::Cpu,
            "precision fp8 needs a GPU".into(),
        );
        refuse(
            step(job) == Some("autograd"),
            "precision fp8 needs step fused, not autograd".into(),
        );
    }
    refuse(
        optimizer.r#type != "adamw",
        format!(
            "optimizer {:?} is not supported; supported: adamw",
            optimizer.r#type
        ),
    );
    refuse(job.compile, "compile is not supported".into());
    refuse(job.offload, "offload is not supported".into());

    for (name, value) in [
        (
            "tensor_model_parallel_size",
            parallel.tensor_model_parallel_size,
        ),
        (
            "pipeline_model_parallel_size",
            parallel.pipeline_model_parallel_size,
        ),
        ("context_parallel_size", parallel.context_parallel_size),
    ] {
        refuse(
            value != 1,
            format!("{name} = {value}: this trainer is data parallel only"),
        );
    }
    let ranks = parallel.data_parallel_size;
    refuse(
        ranks != parallel.num_gpus || !(1..=MOST_RANKS).contains(&ranks),
        format!(
            "data_parallel_size {ranks} with num_gpus {}: both must be the same, 1 to {MOST_RANKS}",
            parallel.num_gpus
        ),
    );
    let sharding = parallel.sharding.as_str();
    let is_known = sharding.is_empty()
        || matches!(
            Sharding::named(sharding),
            Some(Sharding::None | Sharding::Zero3)
        );
    let known = Sharding::Zero3.own_names().join(", ");
    refuse(
        !is_known,
        format!("sharding {sharding:?} is not supported; supported: none, {known}"),
    );

    for (name, value, least) in [
        ("micro_batch_size", data.micro_batch_size, 1),
        (
            "gradient_accumulation_steps",
            data.gradient_accumulation_steps,
            1,
        ),
        ("seq_length", data.seq_length, 2),
    ] {
        refuse(
            !(least..=MOST).contains(&value),
            format!("{name} = {value} is not within {least} to {MOST}"),
        );
    }
    refuse(
        job.train_iters == 0,
        "train_iters = 0: nothing to train".into(),
    );
    let product = data
        .micro_batch_size
        .checked_mul(data.gradient_accumulation_steps);
    refuse(
        product.and_then(|product| product.checked_mul(ranks)) != Some(data.global_batch_size),
        format!(
            "global_batch_size {} is not micro_batch_size {} x gradient_accumulation_steps {} x data_parallel_size {ranks}",
            data.global_batch_size, data.micro_batch_size, data.gradient_accumulation_steps
        ),
    );
    for (name, value) in [
        ("learning_rate", optimizer.learning_rate),
        ("min_learning_rate", optimizer.min_learning_rate),
        ("weight_decay", optimizer.weight_decay),
        ("eps", optimizer.eps),
        ("clip_grad", optimizer.clip_grad),
        ("initialisation.std", job.initialisation.std),
    ] {
        refuse(
            !(value.is_finite() && value >= 0.0),
            format!("{name} = {value} is not a number of at least 0"),
        );
    }
    for (name, value) in [("beta1", optimizer.beta1), ("beta2", optimizer.beta2)] {
        refuse(
            !(0.0..1.0).contains(&value),
            format!("{name} = {value} is not within [0, 1)"),
        );
    }
    if let Some(step) = job.framework.get("step") {
        let is_known = matches!(step.as_str(), Some("fused" | "autograd"));
        refuse(
            !is_known,
            format!("framework step {step} is not supported; supported: fused, autograd"),
        );
    }
    for name in ["deterministic", "fast_accumulation"] {
        let Some(value) = job.framework.get(name) else {
            continue;
        };
        refuse(
            !value.is_boolean(),
            format!("framework {name} {value} is not supported; supported: true, false"),
        );
    }
    if let Some(every) = job.framework.get("checkpoint_every") {
        let is_number = every.as_u64().is_some_and(|every| every > 0);
        refuse(
            !is_number,
            format!("framework checkpoint_every {every} is not a number of steps, from 1"),
        );
    }
    let is_fused = job.vendor == Vendor::Cpu || step(job) == Some("fused");
    refuse(
        is_deterministic(job) && !is_fused,
        "deterministic on a GPU needs step fused".into(),
    );
    let is_fp8 = job.precision == "fp8";
    refuse(
        accumulates_fast(job) && !is_fp8,
        "fast_accumulation is for precision fp8 only".into(),
    );
    if let Some(rounding) = job.framework.get("rounding") {
        let is_known = matches!(rounding.as_str(), Some("nearest" | "stochastic"));
        refuse(
            !is_known,
            format!(
                "framework rounding {rounding} is not supported; supported: nearest, stochastic"
            ),
        );
        let is_fused = optimizer.state_precision == "bf16" && step(job) == Some("fused");
        let why = "rounding stochastic needs step fused and an optimizer state in bf16";
        refuse(rounds_stochastically(job) && !is_fused, why.into());
    }
    reasons
}

/// Whether bf16 weights are rounded up or down by chance, so that small updates are kept on
/// average.
pub fn rounds_stochastically(job: &Job) -> bool {
    job.framework
        .get("rounding")
        .is_some_and(|rounding| rounding == "stochastic")
}

/// Whether every run of the job must give the same bits. The CPU's always do.
pub fn is_deterministic(job: &Job) -> bool {
    job.framework.get("deterministic") == Some(&serde_json::Value::Bool(true))
}

/// Whether products of fp8 may be added up with fewer bits than fp32 has.
pub fn accumulates_fast(job: &Job) -> bool {
    job.framework.get("fast_accumulation") == Some(&serde_json::Value::Bool(true))
}

/// After how many steps each a checkpoint is written, where the job says so.
pub fn checkpoint_every(job: &Job) -> Option<u64> {
    job.framework.get("checkpoint_every")?.as_u64()
}

/// How the job wants its step computed, where it says so: `fused` or `autograd`.
pub fn step(job: &Job) -> Option<&str> {
    job.framework
        .get("step")
        .and_then(serde_json::Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        serde_json::from_value(serde_json::json!({
            "model": {
                "architecture": "llama", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64,
                "num_attention_heads": 4, "num_kv_heads": 2, "vocab_size": 64, "rope_theta": 1e4, "norm_eps": 1e-5
            },
            "data": { "micro_batch_size": 2, "global_batch_size": 4, "gradient_accumulation_steps": 2, "seq_length": 8 },
            "train_iters": 3,
            "optimizer": { "type": "adamw", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
                           "state_precision": "fp32" },
            "precision": "fp32"
        }))
        .expect("a job")
    }

    #[test]
    fn a_plain_job_is_accepted() {
        assert_eq!(refusals(&job()), Vec::<String>::new());
    }

    #[test]
    fn what_is_not_done_is_refused() {
        type Edit = fn(&mut Job);
        let edits: [(&str, Edit); 24] = [
            ("checkpoint_every", |j| {
                drop(j.framework.insert("checkpoint_every".into(), 0.into()))
            }),
            ("fast_accumulation", |j| {
                drop(j.framework.insert("fast_accumulation".into(), true.into()))
            }),
            ("framework deterministic", |j| {
                drop(j.framework.insert("deterministic".into(), "yes".into()))
            }),
            ("needs step fused", |j| {
                j.vendor = Vendor::Nvd;
                j.framework.insert("deterministic".into(), true.into());
            }),
            ("framework step", |j| {
                drop(j.framework.insert("step".into(), "slow".into()))
            }),
            ("framework rounding", |j| {
                drop(j.framework.insert("rounding".into(), "up".into()))
            }),
            ("needs step fused", |j| {
                drop(j.framework.insert("rounding".into(), "stochastic".into()))
            }),
            ("architecture", |j| j.model.architecture = "bert".into()),
            ("QKV bias", |j| j.model.qkv_bias = true),
            ("precision", |j| j.precision = "fp4".into()),
            ("fp8 needs a GPU", |j| j.precision = "fp8".into()),
            ("fp8_param", |j| {
                (j.precision, j.fp8_param) = ("fp8".into(), true)
            }),
            ("state precision", |j| {
                j.optimizer.state_precision = "bf16".into()
            }),
            ("compile", |j| j.compile = true),
            ("offload", |j| j.offload = true),
            ("initialisation.std", |j| j.initialisation.std = -0.1),
            ("optimizer", |j| j.optimizer.r#type = "lion".into()),
            ("tensor_model_parallel_size", |j| {
                j.parallelism.tensor_model_parallel_size = 2
            }),
            ("data_parallel_size", |j| {
                j.parallelism.data_parallel_size = 2
            }),
            ("sharding", |j| j.parallelism.sharding = "zero1".into()),
            ("global_batch_size", |j| j.data.global_batch_size = 5),
            ("beta2", |j| j.optimizer.beta2 = 1.0),
            ("learning_rate", |j| j.optimizer.learning_rate = f64::NAN),
            ("num_kv_heads", |j| j.model.num_kv_heads = 3),
        ];
        for (word, edit) in edits {
            let mut job = job();
            edit(&mut job);
            let reasons = refusals(&job);
            assert!(
                reasons.iter().any(|r| r.contains(word)),
                "{word}: {reasons:?}"
            );
        }
        assert!(refusals(&Job::default()).len() > 5);
    }
}

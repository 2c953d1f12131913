//! Which jobs the kernels cover.

use tch::Device;
use tprimat_job::Job;

use super::{
    backend::FP8_STEP,
    kernels,
    operand::{Format, Fp8},
};
use crate::{shape::Shape, support};

/// The formats of a job in fp8; hybrid = gradients have more range and one bit less.
pub fn fp8(job: &Job) -> Option<Fp8> {
    let gradients = if job.fp8_hybrid {
        Format::E5m2
    } else {
        Format::E4m3
    };
    (job.precision == "fp8").then_some(Fp8 {
        forward: Format::E4m3,
        gradients,
    })
}

/// Whether the ranks of this job share its matrices out: where it names no way, where the kernels
/// take the job.
pub fn shares_out(job: &Job, shape: &Shape, device: Device) -> bool {
    match job.parallelism.sharding.as_str() {
        "" => support::step(job) != Some("autograd") && unsupported(job, shape, device).is_none(),
        word => word != "none",
    }
}

/// Why the kernels do not cover this job.
pub fn unsupported(job: &Job, shape: &Shape, device: Device) -> Option<String> {
    if device == Device::Cpu {
        return Some("it runs on GPUs only".to_owned());
    }
    let multiples = [
        ("hidden_size", shape.hidden, 64),
        ("ffn_hidden_size", shape.ffn, 8),
        ("vocab_size", shape.vocab, 8),
        ("head_dim", shape.head_dim, 16),
    ];
    if shape.positions > 0 {
        return Some("it has no kernels for GPT-2's layers".to_owned());
    }
    if shape.qk_norm {
        return Some("it has no kernels for the norms of Q and K".to_owned());
    }
    let rows = (job.data.micro_batch_size * job.data.seq_length) as i64;
    match job.precision.as_str() {
        "bf16" => {}
        "fp8" if rows % FP8_STEP == 0 && shape.ffn % FP8_STEP == 0 => {}
        "fp8" => {
            return Some(format!(
                "products in fp8 need multiples of {FP8_STEP}: a micro-batch has {rows} tokens, ffn_hidden_size is {}",
                shape.ffn
            ));
        }
        other => return Some(format!("it computes in bf16 or fp8, not in {other}")),
    }
    if let Some((name, value, step)) = multiples
        .into_iter()
        .find(|(_, value, step)| value % step != 0)
    {
        return Some(format!("{name} {value} is not a multiple of {step}"));
    }
    if shape.hidden > kernels::WIDEST_NORM {
        return Some(format!(
            "hidden_size {} is above {}",
            shape.hidden,
            kernels::WIDEST_NORM
        ));
    }
    if shape.qkv_bias && (shape.kv_heads * shape.head_dim) % 64 != 0 {
        return Some("the biases of k and v do not end at multiples of 64".to_owned());
    }
    None
}

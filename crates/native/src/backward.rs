//! Forward and backward of one micro-batch, in segments, so that memory stays bounded.
//!
//! - The head and its cross entropy run over a few thousand rows at a time: fp32 logits of a whole
//!   micro-batch at a vocabulary of 128,256 would be the largest tensors of the run.
//! - A checkpointed layer keeps its input only and runs again on the way back.
//!
//! Between segments the gradient is handed over by differentiating `sum(output * gradient)`, whose
//! derivative by `output` is exactly `gradient`.

use std::ops::Range;

use tch::{Kind, Reduction, TchError, Tensor};

use crate::{model::Model, parameters::Parameters, tokens::IGNORED};

/// Logits that exist at one time; 2^29 of them are 2 GiB in fp32.
const LOGITS_AT_ONCE: i64 = 1 << 29;

/// Neighbouring parts of the model that share one autograd graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub parts: Range<usize>,
    /// Runs again on the way back instead of keeping its activations.
    pub recompute: bool,
}

/// With `checkpoint_every` = n, layers 0, n, 2n, … are segments that are recomputed; 0 = none are.
fn segments(num_parts: usize, checkpoint_every: usize) -> Vec<Segment> {
    let mut list: Vec<Segment> = Vec::new();
    for part in 0..num_parts {
        let is_layer = part > 0 && part < num_parts - 1;
        let recompute = checkpoint_every > 0 && is_layer && (part - 1) % checkpoint_every == 0;
        match list.last_mut() {
            Some(last) if !recompute && !last.recompute => last.parts.end = part + 1,
            _ => list.push(Segment {
                parts: part..part + 1,
                recompute,
            }),
        }
    }
    list
}

/// How a micro-batch is cut up.
pub struct Plan {
    pub segments: Vec<Segment>,
    logits_at_once: i64,
}

impl Plan {
    pub fn new(num_parts: usize, checkpoint_every: usize) -> Self {
        Self {
            segments: segments(num_parts, checkpoint_every),
            logits_at_once: LOGITS_AT_ONCE,
        }
    }
}

/// Adds the gradients of `mean loss * weight` to `parameters`, and returns that product, an fp32
/// scalar on the device.
pub fn run(
    model: &Model,
    parameters: &mut Parameters,
    plan: &Plan,
    inputs: &Tensor,
    targets: &Tensor,
    weight: f64,
) -> Result<Tensor, TchError> {
    let mut kept = Vec::new();
    let mut x = inputs.shallow_clone();
    for segment in &plan.segments {
        let input = if segment.parts.start == 0 {
            x
        } else {
            x.f_detach()?.f_set_requires_grad(true)?
        };
        let forward = || model.forward(&segment.parts, &input);
        x = if segment.recompute {
            tch::no_grad(forward)?
        } else {
            forward()?
        };
        let output = (!segment.recompute).then(|| x.shallow_clone());
        kept.push((segment, input, output));
    }

    let (loss, mut gradient) = head(model, parameters, plan, &x, targets, weight)?;
    drop(x);
    while let Some((segment, input, output)) = kept.pop() {
        let output = match output {
            Some(output) => output,
            None => model.forward(&segment.parts, &input)?,
        };
        let handed_over = output.f_mul(&gradient)?.f_sum(Kind::Float)?;
        let used = model.parameters_of(&segment.parts);
        let mut wanted: Vec<&Tensor> = parameters.list[used.clone()]
            .iter()
            .map(|p| &p.value)
            .collect();
        if segment.parts.start > 0 {
            wanted.push(&input);
        }
        let mut gradients =
            Tensor::f_run_backward(&[handed_over], &wanted, false, false)?.into_iter();
        for index in used {
            if let Some(gradient) = gradients.next() {
                parameters.accumulate(index, &gradient)?;
            }
        }
        gradient = gradients.next().unwrap_or(gradient);
    }
    Ok(loss)
}

/// Loss and gradient of the head: the weighted loss, and its derivative by `hidden`.
fn head(
    model: &Model,
    parameters: &mut Parameters,
    plan: &Plan,
    hidden: &Tensor,
    targets: &Tensor,
    weight: f64,
) -> Result<(Tensor, Tensor), TchError> {
    let (batch, length, width) = hidden.size3()?;
    let rows = hidden.f_detach()?.f_reshape([-1, width])?;
    let targets = targets.f_reshape([-1])?;
    let predictions = (batch * (length - 1)) as f64;
    let count = batch * length;
    let at_once = (plan.logits_at_once / model.head().size()[0]).max(1);

    let mut loss = Tensor::f_zeros([], (Kind::Float, hidden.device()))?;
    let mut gradients = Vec::new();
    for start in (0..count).step_by(at_once as usize) {
        let part = at_once.min(count - start);
        let leaf = rows
            .f_narrow(0, start, part)?
            .f_detach()?
            .f_set_requires_grad(true)?;
        let target = targets.f_narrow(0, start, part)?;
        let part_loss = model
            .logits(&leaf)?
            .f_to_kind(Kind::Float)?
            .f_cross_entropy_loss(&target, None::<Tensor>, Reduction::Sum, IGNORED, 0.0)?
            .f_mul_scalar(weight / predictions)?;
        let mut pair = Tensor::f_run_backward(&[&part_loss], &[&leaf, model.head()], false, false)?
            .into_iter();
        gradients.extend(pair.next());
        if let Some(gradient) = pair.next() {
            parameters.accumulate(model.head_parameter(), &gradient)?;
        }
        loss = loss.f_add(&part_loss.f_detach()?)?;
    }
    Ok((
        loss,
        Tensor::f_cat(&gradients, 0)?.f_reshape(hidden.size())?,
    ))
}

#[cfg(test)]
mod tests {
    use tch::Device;
    use tprimat_job::ModelShape;

    use super::*;
    use crate::{shape::Shape, tokens::Tokens, weights};

    #[test]
    fn segments_cover_every_part_once() {
        let ranges = |every| {
            segments(8, every)
                .into_iter()
                .map(|s| s.parts)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            segments(8, 0),
            [Segment {
                parts: 0..8,
                recompute: false
            }]
        );
        assert_eq!(ranges(1), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6, 6..7, 7..8]);
        assert_eq!(ranges(3), [0..1, 1..2, 2..4, 4..5, 5..8]);
        let recomputed: Vec<bool> = segments(8, 3).iter().map(|s| s.recompute).collect();
        assert_eq!(recomputed, [false, true, false, true, false]);
    }

    /// Loss and gradient norm of one micro-batch of a tiny model.
    fn loss_and_norm(tied: bool, plan: impl Fn(usize) -> Plan) -> (f64, f64) {
        let model = ModelShape {
            num_layers: 2,
            hidden_size: 16,
            ffn_hidden_size: 32,
            num_attention_heads: 2,
            num_kv_heads: 1,
            vocab_size: 50,
            rope_theta: 1e4,
            norm_eps: 1e-5,
            tie_embeddings: tied,
            ..ModelShape::default()
        };
        let shape = Shape::of(&model).unwrap();
        let mut parameters = Parameters::new(
            &shape.parameters(),
            Kind::Float,
            Kind::Float,
            0.0,
            Device::Cpu,
        )
        .unwrap();
        weights::initialise(&mut parameters, 3, 0.02, Device::Cpu).unwrap();
        let model = Model::new(&shape, &parameters, 7, Device::Cpu).unwrap();
        let (inputs, targets) = Tokens::Synthetic { seed: 3, length: 7 }
            .batch(0, 2, 50)
            .unwrap();
        let tensor = |values: &[i64]| Tensor::from_slice(values).reshape([2, 7]);
        let plan = plan(model.num_parts());
        let loss = run(
            &model,
            &mut parameters,
            &plan,
            &tensor(&inputs),
            &tensor(&targets),
            1.0,
        )
        .unwrap();
        (
            loss.double_value(&[]),
            parameters.grad_norm().unwrap().double_value(&[]),
        )
    }

    #[test]
    fn cutting_up_changes_nothing() {
        let _turn = weights::take_turns();
        for tied in [false, true] {
            let whole = loss_and_norm(tied, |parts| Plan::new(parts, 0));
            assert!(
                (whole.0 - 50_f64.ln()).abs() < 0.1 && whole.1 > 0.0,
                "{whole:?}"
            );
            // 3 rows of logits at a time, of 14: the last chunk is a short one.
            let chunked = loss_and_norm(tied, |parts| Plan {
                logits_at_once: 150,
                ..Plan::new(parts, 0)
            });
            let recomputed = loss_and_norm(tied, |parts| Plan::new(parts, 1));
            for other in [chunked, recomputed] {
                assert!(
                    (other.0 / whole.0 - 1.0).abs() < 1e-5,
                    "{other:?} {whole:?}"
                );
                assert!(
                    (other.1 / whole.1 - 1.0).abs() < 1e-5,
                    "{other:?} {whole:?}"
                );
            }
        }
    }
}

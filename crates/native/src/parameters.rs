//! All parameters with their gradients and AdamW state, in a few flat buffers.
//!
//! Parameters are views of two flat tensors, one with weight decay (matrices) and one without
//! (norms and biases), so that clipping, the update and the copy from fp32 master weights to bf16
//! are one kernel each, however many parameters there are. Gradients are accumulated in the
//! precision of the state.
//!
//! Several ranks may share the matrices out: each unit (the embedding, a layer, the head) is then
//! cut into as many equal parts as there are ranks, and the flat buffers hold one part of every
//! unit. Vectors, a few thousandths of a per cent of a model, stay whole on every rank.

use std::collections::HashMap;

use tch::{Device, Kind, TchError, Tensor};
use tprimat_job::OptimizerJob;

use crate::{ranks, shape::ParameterSpec, shim};

/// Views begin at multiples of this many elements, for aligned loads.
const ALIGNMENT: i64 = 64;
/// Buffers are whole rows of this length, for norms by row: PyTorch adds a long fp32 vector up in
/// so few partial sums on the CPU that the norm of 10^8 elements comes out 1 % low.
const ROW: i64 = 1 << 14;
/// Elements a fused update handles at once; its kernels index chunks with 32 bits.
const LONGEST_UPDATE: i64 = 1 << 30;

pub struct Parameters {
    pub list: Vec<Parameter>,
    pub groups: Vec<Group>,
    /// `None`: this rank holds everything.
    pub shards: Option<Shards>,
    /// Updates done, as the fp32 scalar that the fused kernel wants.
    step: Tensor,
}

pub struct Parameter {
    pub name: String,
    /// What forward and backward use: a leaf of the autograd graph. Of a matrix that ranks share it
    /// has the size and the kind, and is not a number everywhere.
    pub value: Tensor,
    /// The same in the precision of the state; `value` itself where that is equal.
    #[cfg(test)]
    pub master: Tensor,
    grad: Tensor,
    has_grad: bool,
    pub place: Place,
}

/// Where the elements of a parameter, or of neighbouring ones joined, are.
#[derive(Clone, Debug)]
pub struct Place {
    /// Index of the group.
    group: usize,
    /// The unit, of a matrix: 0 is what comes before the layers, 1 + n is layer n, then what comes
    /// after them.
    pub unit: usize,
    /// The first one, counted from the beginning of the group's buffers or, of shared matrices, of
    /// the unit's.
    pub start: i64,
    size: Vec<i64>,
}

impl Place {
    pub fn count(&self) -> i64 {
        self.size.iter().product()
    }

    pub fn is_matrix(&self) -> bool {
        self.group == MATRICES
    }

    /// These elements of a flat buffer of the group or, of shared matrices, of the unit.
    pub fn view(&self, flat: &Tensor) -> Result<Tensor, TchError> {
        flat.f_narrow(0, self.start, self.count())?
            .f_reshape(self.size.as_slice())
    }
}

/// Which rank this is, and how many share the matrices.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub rank: i64,
    pub ranks: i64,
}

/// The parts of matrices that this rank holds.
pub struct Shards {
    pub share: Share,
    pub units: Vec<Unit>,
}

/// The part of one unit.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Where it begins in the group's buffers.
    pub start: i64,
    /// Its elements; the whole unit has as many for every rank.
    pub length: i64,
}

impl Unit {
    /// This rank's part of the unit, out of a buffer of the group.
    pub fn part(&self, buffer: &Tensor) -> Result<Tensor, TchError> {
        buffer.f_narrow(0, self.start, self.length)
    }
}

/// What the optimiser keeps of every parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Weights,
    FirstMoments,
    SecondMoments,
}

impl State {
    /// torch.optim's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "master",
            Self::FirstMoments => "exp_avg",
            Self::SecondMoments => "exp_avg_sq",
        }
    }
}

/// The groups: matrices have weight decay, norms and biases have none.
pub const MATRICES: usize = 0;
pub const VECTORS: usize = 1;

/// The flat buffers of all parameters with one weight decay.
pub struct Group {
    pub weight_decay: f64,
    pub values: Tensor,
    pub master: Tensor,
    pub grads: Tensor,
    pub exp_avg: Tensor,
    pub exp_avg_sq: Tensor,
}

impl Group {
    fn state(&self, state: State) -> &Tensor {
        match state {
            State::Weights => &self.master,
            State::FirstMoments => &self.exp_avg,
            State::SecondMoments => &self.exp_avg_sq,
        }
    }
}

/// The state of whole parameters, gathered from the ranks unit by unit where they share the
/// matrices.
pub struct Whole<'a> {
    parameters: &'a Parameters,
    ranks: Option<&'a dyn ranks::Group>,
    gathered: Option<(State, usize, Tensor)>,
}

impl<'a> Whole<'a> {
    pub fn new(parameters: &'a Parameters, ranks: Option<&'a dyn ranks::Group>) -> Self {
        Self {
            parameters,
            ranks,
            gathered: None,
        }
    }

    /// Where ranks share matrices, all of them must ask for the same ones in the same order.
    pub fn of(&mut self, state: State, index: usize) -> Result<Tensor, TchError> {
        let place = &self.parameters.list[index].place;
        let flat = self.parameters.groups[place.group].state(state);
        let shards = self
            .parameters
            .shards
            .as_ref()
            .filter(|_| place.is_matrix());
        let (Some(Shards { share, units }), Some(ranks)) = (shards, self.ranks) else {
            return place.view(flat);
        };
        if self
            .gathered
            .as_ref()
            .is_none_or(|(of, unit, _)| (*of, *unit) != (state, place.unit))
        {
            self.gathered = None;
            let unit = units[place.unit];
            let whole = Tensor::f_empty([unit.length * share.ranks], (flat.kind(), flat.device()))?;
            ranks.wait(ranks.all_gather(&unit.part(flat)?, &whole)?)?;
            self.gathered = Some((state, place.unit, whole));
        }
        self.gathered
            .as_ref()
            .map_or_else(|| place.view(flat), |(_, _, whole)| place.view(whole))
    }
}

impl Parameter {
    /// Its accumulated gradient.
    #[cfg(test)]
    pub fn grad(&self) -> &Tensor {
        &self.grad
    }
}

impl Parameters {
    /// For one rank.
    #[cfg(test)]
    pub fn new(
        specs: &[ParameterSpec],
        kind: Kind,
        state_kind: Kind,
        weight_decay: f64,
        device: Device,
    ) -> Result<Self, TchError> {
        Self::shared(specs, [kind, state_kind], weight_decay, device, None)
    }

    /// With the matrices shared out, where `share` says so. `kinds`: what the network computes in,
    /// and that of master weights, moments and gradients.
    pub fn shared(
        specs: &[ParameterSpec],
        kinds: [Kind; 2],
        weight_decay: f64,
        device: Device,
        share: Option<Share>,
    ) -> Result<Self, TchError> {
        let Layout {
            places,
            units,
            lengths,
        } = Layout::of(specs, share);
        let groups = [(lengths[MATRICES], weight_decay), (lengths[VECTORS], 0.0)]
            .into_iter()
            .map(|(length, weight_decay)| {
                Group::new(round_up(length, ROW), weight_decay, kinds, device)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut list = Vec::new();
        for (spec, place) in specs.iter().zip(places) {
            let group = &groups[place.group];
            let is_shared = share.is_some() && place.is_matrix();
            let view = |flat: &Tensor| match is_shared {
                true => Tensor::f_full([1], f64::NAN, (flat.kind(), device))?
                    .f_expand(spec.size.as_slice(), false),
                false => place.view(flat),
            };
            let value = view(&group.values)?.f_detach()?;
            list.push(Parameter {
                name: spec.name.clone(),
                value: if is_shared {
                    value
                } else {
                    value.f_set_requires_grad(true)?
                },
                #[cfg(test)]
                master: view(&group.master)?,
                grad: view(&group.grads)?,
                has_grad: false,
                place,
            });
        }
        let shards = share.map(|share| Shards { share, units });
        Ok(Self {
            list,
            groups,
            shards,
            step: Tensor::f_zeros([1], (Kind::Float, device))?,
        })
    }

    /// Moves this rank's parts of the matrices' weights to where the other ranks can reach them.
    pub fn make_reachable(&mut self, ranks: &dyn ranks::Group) -> Result<(), TchError> {
        let Group { values, master, .. } = &mut self.groups[MATRICES];
        let is_one = values.data_ptr() == master.data_ptr();
        *values = ranks.allocate(values.numel() as i64, values.kind(), values.device())?;
        if is_one {
            *master = values.shallow_clone();
        }
        Ok(())
    }

    /// Counted from the tensors themselves; a tied head is no tensor of its own.
    pub fn count(&self) -> usize {
        self.list.iter().map(|p| p.value.numel()).sum()
    }

    pub fn index(&self) -> HashMap<&str, usize> {
        self.list
            .iter()
            .enumerate()
            .map(|(i, p)| (p.name.as_str(), i))
            .collect()
    }

    /// Where neighbouring parameters are as one matrix (or vector), rows below rows; `None` if
    /// something lies between them.
    pub fn joined(&self, indices: &[usize]) -> Option<Place> {
        let mut joined = self.list[*indices.first()?].place.clone();
        for place in indices[1..].iter().map(|index| &self.list[*index].place) {
            let is_next = (place.group, place.unit, place.start)
                == (joined.group, joined.unit, joined.start + joined.count());
            if !is_next || place.size[1..] != joined.size[1..] {
                return None;
            }
            joined.size[0] += place.size[0];
        }
        Some(joined)
    }

    /// Sets the state of a parameter, or this rank's part of it; [`Self::publish`] makes new
    /// weights count.
    pub fn write(&mut self, state: State, index: usize, whole: &Tensor) -> Result<(), TchError> {
        let place = &self.list[index].place;
        let flat = self.groups[place.group].state(state);
        let Some(Shards { share, units }) = self.shards.as_ref().filter(|_| place.is_matrix())
        else {
            return tch::no_grad(|| place.view(flat)?.f_copy_(whole));
        };
        let unit = units[place.unit];
        let first = share.rank * unit.length;
        let (from, to) = (
            place.start.max(first),
            (place.start + place.count()).min(first + unit.length),
        );
        if from >= to {
            return Ok(());
        }
        let source = whole
            .f_reshape([-1])?
            .f_narrow(0, from - place.start, to - from)?;
        let mut own = flat.f_narrow(0, unit.start + from - first, to - from)?;
        tch::no_grad(|| own.f_copy_(&source))
    }

    /// Call after weights and moments were written that so many updates have made.
    pub fn resume(&mut self, updates: u64) -> Result<(), TchError> {
        let _ = self.step.f_fill_(updates as f64)?;
        self.publish()
    }

    pub fn state_kind(&self) -> Kind {
        self.groups[0].exp_avg.kind()
    }

    /// Call after the master weights were written: `value` follows them.
    pub fn publish(&mut self) -> Result<(), TchError> {
        tch::no_grad(|| {
            for group in &mut self.groups {
                if group.values.kind() != group.master.kind() {
                    group.values.f_copy_(&group.master)?;
                }
            }
            Ok(())
        })
    }

    /// Adds the gradient of one backward pass.
    pub fn accumulate(&mut self, index: usize, grad: &Tensor) -> Result<(), TchError> {
        let parameter = &mut self.list[index];
        tch::no_grad(|| match parameter.has_grad {
            true => parameter.grad.f_add_(grad).map(drop),
            false => parameter.grad.f_copy_(grad),
        })?;
        parameter.has_grad = true;
        Ok(())
    }

    /// Adds the accumulated gradients up over all ranks.
    pub fn add_up(&self, ranks: &dyn ranks::Group) -> Result<(), TchError> {
        let pending = self
            .groups
            .iter()
            .map(|group| ranks.all_reduce(&group.grads))
            .collect::<Result<Vec<_>, _>>()?;
        pending
            .into_iter()
            .try_for_each(|pending| ranks.wait(pending))
    }

    /// Global 2-norm of the accumulated gradients, an fp32 scalar on the device.
    pub fn grad_norm(&self) -> Result<Tensor, TchError> {
        let by_row = |g: &Group| {
            g.grads
                .f_reshape([-1, ROW])?
                .f_linalg_norm(2.0, [1].as_slice(), false, Kind::Float)
        };
        let norms = self
            .groups
            .iter()
            .map(by_row)
            .collect::<Result<Vec<_>, _>>()?;
        Tensor::f_cat(&norms, 0)?.f_linalg_norm(2.0, None::<i64>, false, Kind::Float)
    }

    /// Clips (where `clip_grad` > 0), updates, and forgets the gradients. Nothing waits for the
    /// device.
    pub fn update(
        &mut self,
        grad_norm: &Tensor,
        learning_rate: f64,
        options: &OptimizerJob,
    ) -> Result<(), TchError> {
        tch::no_grad(|| {
            let _ = self.step.f_add_scalar_(1.0)?;
            // torch.nn.utils.clip_grad_norm_ multiplies by min(1, clip / (norm + 1e-6)); the kernel
            // divides.
            let grad_scale = match options.clip_grad > 0.0 {
                true => Some(
                    grad_norm
                        .f_add_scalar(1e-6)?
                        .f_div_scalar(options.clip_grad)?
                        .f_clamp_min(1.0)?,
                ),
                false => None,
            };
            for group in &self.groups {
                group.update(&self.step, grad_scale.as_ref(), learning_rate, options)?;
            }
            Ok::<_, TchError>(())
        })?;
        self.list.iter_mut().for_each(|p| p.has_grad = false);
        self.publish()
    }
}

/// Where all parameters are.
struct Layout {
    places: Vec<Place>,
    units: Vec<Unit>,
    /// Elements of each group's buffers.
    lengths: [i64; 2],
}

impl Layout {
    fn of(specs: &[ParameterSpec], share: Option<Share>) -> Self {
        let mut lengths = [0, 0];
        let mut whole_units: Vec<i64> = Vec::new();
        let mut places = Vec::new();
        for spec in specs {
            let group = if spec.size.len() < 2 {
                VECTORS
            } else {
                MATRICES
            };
            let unit = match layer_of(&spec.name) {
                Some(layer) => 1 + layer,
                // Neither before the layers nor in one of them.
                None if whole_units.len() > 1 => whole_units.len(),
                None => 0,
            };
            let is_shared = share.is_some() && group == MATRICES;
            if group == MATRICES {
                whole_units.resize(whole_units.len().max(unit + 1), 0);
            }
            let length = if is_shared {
                &mut whole_units[unit]
            } else {
                &mut lengths[group]
            };
            places.push(Place {
                group,
                unit,
                start: *length,
                size: spec.size.clone(),
            });
            *length += round_up(spec.size.iter().product(), ALIGNMENT);
        }
        let mut units = Vec::new();
        if let Some(Share { ranks, .. }) = share {
            for whole in whole_units {
                let length = round_up(whole, ranks * ALIGNMENT) / ranks;
                units.push(Unit {
                    start: lengths[MATRICES],
                    length,
                });
                lengths[MATRICES] += length;
            }
        }
        Self {
            places,
            units,
            lengths,
        }
    }
}

/// The number in the name of a layer's parameter.
fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name
        .split_once(".layers.")
        .or_else(|| name.split_once(".h."))?;
    rest.split('.').next()?.parse().ok()
}

fn round_up(count: i64, multiple: i64) -> i64 {
    (count + multiple - 1) / multiple * multiple
}

impl Group {
    fn new(
        length: i64,
        weight_decay: f64,
        [kind, state_kind]: [Kind; 2],
        device: Device,
    ) -> Result<Self, TchError> {
        let zeros = |kind| Tensor::f_zeros([length], (kind, device));
        let values = zeros(kind)?;
        let master = if kind == state_kind {
            values.shallow_clone()
        } else {
            zeros(state_kind)?
        };
        Ok(Self {
            weight_decay,
            values,
            master,
            grads: zeros(state_kind)?,
            exp_avg: zeros(state_kind)?,
            exp_avg_sq: zeros(state_kind)?,
        })
    }

    fn update(
        &self,
        step: &Tensor,
        grad_scale: Option<&Tensor>,
        learning_rate: f64,
        options: &OptimizerJob,
    ) -> Result<(), TchError> {
        let OptimizerJob {
            beta1, beta2, eps, ..
        } = *options;
        let options = shim::AdamW {
            learning_rate,
            beta1,
            beta2,
            eps,
            weight_decay: self.weight_decay,
        };
        let length = self.master.numel() as i64;
        for start in (0..length).step_by(LONGEST_UPDATE as usize) {
            let part = |t: &Tensor| t.f_narrow(0, start, LONGEST_UPDATE.min(length - start));
            let state = shim::AdamWState {
                weight: &part(&self.master)?,
                grad: &part(&self.grads)?,
                exp_avg: &part(&self.exp_avg)?,
                exp_avg_sq: &part(&self.exp_avg_sq)?,
                step,
                grad_scale,
            };
            shim::fused_adamw(&state, options)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs() -> Vec<ParameterSpec> {
        vec![
            ParameterSpec {
                name: "matrix".into(),
                size: vec![3, 5],
            },
            ParameterSpec {
                name: "norm".into(),
                size: vec![7],
            },
        ]
    }

    fn options(clip_grad: f64) -> OptimizerJob {
        OptimizerJob {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            clip_grad,
            ..OptimizerJob::default()
        }
    }

    /// AdamW in f64, written from its definition.
    fn oracle(weight: f64, grads: &[f64], rate: f64, decay: f64) -> f64 {
        let (mut w, mut m, mut v) = (weight, 0.0, 0.0);
        for (t, g) in (1..).zip(grads) {
            w -= rate * decay * w;
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            let (m_hat, v_hat) = (m / (1.0 - 0.9_f64.powi(t)), v / (1.0 - 0.95_f64.powi(t)));
            w -= rate * m_hat / (v_hat.sqrt() + 1e-8);
        }
        w
    }

    #[test]
    fn decay_reaches_matrices_only_and_gradients_accumulate() {
        let mut parameters =
            Parameters::new(&specs(), Kind::Float, Kind::Float, 0.5, Device::Cpu).unwrap();
        assert_eq!(parameters.count(), 22);
        tch::no_grad(|| {
            parameters
                .list
                .iter_mut()
                .for_each(|p| drop(p.master.fill_(2.0)))
        });
        for grad in [0.3, -0.7] {
            for index in 0..2 {
                let half = Tensor::full_like(&parameters.list[index].value, grad / 2.0);
                parameters.accumulate(index, &half).unwrap();
                parameters.accumulate(index, &half).unwrap();
            }
            let norm = parameters.grad_norm().unwrap();
            assert!(
                (norm.double_value(&[]) - grad.abs() * 22_f64.sqrt()).abs() < 1e-5,
                "padding counts for nothing"
            );
            parameters.update(&norm, 0.1, &options(0.0)).unwrap();
        }
        let value = |i: usize| {
            parameters.list[i]
                .value
                .double_value(&[2, 3][..if i == 0 { 2 } else { 1 }])
        };
        assert!((value(0) - oracle(2.0, &[0.3, -0.7], 0.1, 0.5)).abs() < 1e-5);
        assert!((value(1) - oracle(2.0, &[0.3, -0.7], 0.1, 0.0)).abs() < 1e-5);
    }

    #[test]
    fn the_norm_of_many_gradients_is_exact() {
        let many = [ParameterSpec {
            name: "matrix".into(),
            size: vec![3000, 1000],
        }];
        let mut parameters =
            Parameters::new(&many, Kind::Float, Kind::Float, 0.0, Device::Cpu).unwrap();
        let grad = Tensor::arange(3_000_000, (Kind::Double, Device::Cpu))
            .sin_()
            .reshape([3000, 1000]);
        parameters.accumulate(0, &grad).unwrap();
        let (norm, exact) = (
            parameters.grad_norm().unwrap().double_value(&[]),
            grad.norm().double_value(&[]),
        );
        assert!((norm / exact - 1.0).abs() < 1e-6, "{norm} {exact}");
    }

    #[test]
    fn clipping_scales_to_the_limit() {
        let mut parameters =
            Parameters::new(&specs(), Kind::Float, Kind::Float, 0.0, Device::Cpu).unwrap();
        let grads = [4.0, 0.4];
        for grad in grads {
            for index in 0..2 {
                let grad = Tensor::full_like(&parameters.list[index].value, grad);
                parameters.accumulate(index, &grad).unwrap();
            }
            let norm = parameters.grad_norm().unwrap();
            parameters.update(&norm, 0.1, &options(1.0)).unwrap();
        }
        let clipped: Vec<f64> = grads
            .iter()
            .map(|g| g * (1.0 / (g * 22_f64.sqrt() + 1e-6)).min(1.0))
            .collect();
        assert!(
            (parameters.list[1].value.double_value(&[0]) - oracle(0.0, &clipped, 0.1, 0.0)).abs()
                < 1e-5
        );
    }

    #[test]
    fn bf16_weights_follow_fp32_masters() {
        let mut parameters =
            Parameters::new(&specs(), Kind::BFloat16, Kind::Float, 0.0, Device::Cpu).unwrap();
        // Steps too small for bf16 to see one by one must not be lost.
        tch::no_grad(|| drop(parameters.list[0].master.fill_(1.0)));
        for _ in 0..100 {
            let grad = Tensor::full_like(&parameters.list[0].value, 1.0);
            parameters.accumulate(0, &grad).unwrap();
            let norm = parameters.grad_norm().unwrap();
            parameters.update(&norm, 1e-3, &options(0.0)).unwrap();
        }
        assert_eq!(parameters.state_kind(), Kind::Float);
        assert_eq!(parameters.list[0].value.kind(), Kind::BFloat16);
        assert!((parameters.list[0].value.double_value(&[0, 0]) - 0.9).abs() < 0.004);
    }
}

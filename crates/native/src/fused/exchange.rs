//! What ranks exchange during a fused step, beside its computation.
//!
//! - *Replicas* hold everything. In a step's last micro-batch, the gradients of each unit (embedding, layer, head) are added
//!   up over the ranks as soon as its backward pass is queued.
//! - *Shards* hold a part of every matrix. Before a unit runs, its bf16 weights are gathered, while the unit before it runs;
//!   after its backward pass, the gradients of the micro-batch are added up, and each rank keeps those of its part. Gathered
//!   weights and whole gradients of layers have two places each, which layers take in turns; embedding and head share one.
//!
//! Vectors (norms and biases) are whole on every rank; their gradients are added up once at the end of a step.

use std::{cell::Cell, rc::Rc};

use tch::{TchError, Tensor};

use crate::{
    parameters::{MATRICES, Parameters, Place, Unit, VECTORS},
    ranks::{Group, Pending},
};

/// Layers whose weights are there at one time: the one that runs and the next one.
const LAYERS_AT_ONCE: usize = 2;

pub enum Exchange {
    /// There is one rank.
    None,
    Replicas(Replicas),
    Shards(Shards),
}

/// Where a micro-batch is in its step.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub is_first: bool,
    pub is_last: bool,
}

pub struct Replicas {
    group: Rc<dyn Group>,
    /// The gradients of each unit's matrices.
    units: Vec<Tensor>,
    vectors: Tensor,
    pending: Cell<Vec<Pending>>,
}

pub struct Shards {
    group: Rc<dyn Group>,
    units: Vec<Unit>,
    /// This rank's parts of all units.
    weights: Tensor,
    gradients: Tensor,
    vectors: Tensor,
    ends: Slot,
    layers: Vec<Slot>,
    num_layers: usize,
}

/// Room for one whole unit.
struct Slot {
    weights: Tensor,
    gradients: Tensor,
    /// Summed gradients of this rank's part, before they are added to those of earlier micro-batches; empty where there is
    /// one micro-batch.
    received: Tensor,
    /// The unit whose weights are there, or on their way.
    holds: Cell<Option<usize>>,
    gathering: Cell<Option<Pending>>,
    reducing: Cell<Option<Reducing>>,
}

struct Reducing {
    unit: usize,
    pending: Pending,
    /// It is in `received` and still to be added.
    is_added_later: bool,
}

impl Exchange {
    /// `micro_batches`: of one step.
    pub fn new(
        parameters: &Parameters,
        group: Option<Rc<dyn Group>>,
        layers: usize,
        micro_batches: u64,
    ) -> Result<Self, TchError> {
        let Some(group) = group else { return Ok(Self::None) };
        Ok(match &parameters.shards {
            Some(shards) => Self::Shards(Shards::new(parameters, &shards.units, group, layers, micro_batches > 1)?),
            None => Self::Replicas(Replicas::new(parameters, group)?),
        })
    }

    /// The flat buffers in which a step finds weights and gradients at `place`.
    pub fn buffers<'a>(&'a self, parameters: &'a Parameters, place: &Place) -> [&'a Tensor; 2] {
        match self {
            Self::Shards(shards) if place.is_matrix() => {
                let slot = shards.slot(place.unit);
                [&slot.weights, &slot.gradients]
            }
            _ => {
                let group = &parameters.groups[if place.is_matrix() { MATRICES } else { VECTORS }];
                [&group.values, &group.grads]
            }
        }
    }

    /// The group, where every rank holds a part of each matrix only.
    pub fn shared(&self) -> Option<&dyn Group> {
        match self {
            Self::Shards(shards) => Some(&*shards.group),
            _ => None,
        }
    }

    /// Whether other ranks write to the gradients that this rank has written.
    pub fn is_alone(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether a micro-batch adds its gradients of matrices to those of the one before.
    pub fn accumulates(&self, turn: Turn) -> bool {
        !turn.is_first && self.shared().is_none()
    }

    /// Before a unit runs; `next` is the one after it.
    pub fn before(&self, unit: usize, next: Option<usize>) -> Result<(), TchError> {
        let Self::Shards(shards) = self else { return Ok(()) };
        shards.gather(unit)?;
        if let Some(pending) = shards.slot(unit).gathering.take() {
            shards.group.wait(pending)?;
        }
        next.map_or(Ok(()), |next| shards.gather(next))
    }

    /// Before gradients of a unit's matrices are written.
    pub fn before_gradients(&self, unit: usize) -> Result<(), TchError> {
        match self {
            Self::Shards(shards) => shards.settle(shards.slot(unit)),
            _ => Ok(()),
        }
    }

    /// After all gradients of a unit's matrices have been queued.
    pub fn after_gradients(&self, unit: usize, turn: Turn) -> Result<(), TchError> {
        match self {
            Self::Replicas(replicas) if turn.is_last => replicas.reduce(&replicas.units[unit]),
            Self::Shards(shards) => shards.reduce(unit, turn),
            _ => Ok(()),
        }
    }

    /// After the last micro-batch: every rank has the sum of all gradients, or its part of it.
    pub fn finish(&self) -> Result<(), TchError> {
        match self {
            Self::None => Ok(()),
            Self::Replicas(replicas) => {
                replicas.reduce(&replicas.vectors)?;
                replicas.pending.take().into_iter().try_for_each(|pending| replicas.group.wait(pending))
            }
            Self::Shards(shards) => {
                let vectors = shards.group.all_reduce(&shards.vectors)?;
                shards.slots().try_for_each(|slot| shards.settle(slot))?;
                shards.group.wait(vectors)
            }
        }
    }

    /// After the weights have changed.
    pub fn forget(&self) {
        if let Self::Shards(shards) = self {
            shards.slots().for_each(|slot| slot.holds.set(None));
        }
    }
}

impl Replicas {
    fn new(parameters: &Parameters, group: Rc<dyn Group>) -> Result<Self, TchError> {
        let places: Vec<&Place> = parameters.list.iter().map(|p| &p.place).filter(|place| place.is_matrix()).collect();
        let count = places.iter().map(|place| place.unit + 1).max().unwrap_or(0);
        let units = (0..count).map(|unit| {
            let of_unit = || places.iter().filter(|place| place.unit == unit);
            let start = of_unit().map(|place| place.start).min().unwrap_or(0);
            let end = of_unit().map(|place| place.start + place.count()).max().unwrap_or(0);
            parameters.groups[MATRICES].grads.f_narrow(0, start, end - start)
        });
        Ok(Self {
            group,
            units: units.collect::<Result<_, _>>()?,
            vectors: parameters.groups[VECTORS].grads.shallow_clone(),
            pending: Cell::default(),
        })
    }

    fn reduce(&self, gradients: &Tensor) -> Result<(), TchError> {
        let mut pending = self.pending.take();
        pending.push(self.group.all_reduce(gradients)?);
        self.pending.set(pending);
        Ok(())
    }
}

impl Shards {
    fn new(
        parameters: &Parameters,
        units: &[Unit],
        group: Rc<dyn Group>,
        layers: usize,
        accumulates: bool,
    ) -> Result<Self, TchError> {
        let (matrices, vectors) = (&parameters.groups[MATRICES], &parameters.groups[VECTORS]);
        let is_end = |unit: usize| unit == 0 || unit > layers;
        let slot = |of_ends: bool| {
            let of_kind = units.iter().enumerate().filter(|(unit, _)| is_end(*unit) == of_ends);
            let longest = of_kind.map(|(_, unit)| unit.length).max().unwrap_or(0);
            // Zeros: what pads the units is added up as well, and must stay 0.
            let zeros = |length, like: &Tensor| Tensor::f_zeros([length], (like.kind(), like.device()));
            let whole = longest * group.size() as i64;
            Ok::<_, TchError>(Slot {
                weights: zeros(whole, &matrices.values)?,
                gradients: zeros(whole, &matrices.grads)?,
                received: zeros(if accumulates { longest } else { 0 }, &matrices.grads)?,
                holds: Cell::default(),
                gathering: Cell::default(),
                reducing: Cell::default(),
            })
        };
        Ok(Self {
            units: units.to_vec(),
            weights: matrices.values.shallow_clone(),
            gradients: matrices.grads.shallow_clone(),
            vectors: vectors.grads.shallow_clone(),
            ends: slot(true)?,
            num_layers: layers,
            layers: (0..LAYERS_AT_ONCE.min(layers)).map(|_| slot(false)).collect::<Result<_, _>>()?,
            group,
        })
    }

    fn slot(&self, unit: usize) -> &Slot {
        let is_layer = (1..=self.num_layers).contains(&unit);
        if is_layer { &self.layers[(unit - 1) % self.layers.len()] } else { &self.ends }
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.layers.iter().chain([&self.ends])
    }

    /// What the unit takes of a slot's buffer.
    fn whole(&self, unit: usize, buffer: &Tensor) -> Result<Tensor, TchError> {
        buffer.f_narrow(0, 0, self.units[unit].length * self.group.size() as i64)
    }

    /// Begins to gather a unit's weights, unless they are there. What ran with those in their place was queued before.
    fn gather(&self, unit: usize) -> Result<(), TchError> {
        let slot = self.slot(unit);
        if slot.holds.get() == Some(unit) {
            return Ok(());
        }
        let whole = self.whole(unit, &slot.weights)?;
        let pending = self.group.all_gather(&self.units[unit].part(&self.weights)?, &whole)?;
        slot.gathering.set(Some(pending));
        slot.holds.set(Some(unit));
        Ok(())
    }

    fn reduce(&self, unit: usize, turn: Turn) -> Result<(), TchError> {
        let slot = self.slot(unit);
        let own = self.units[unit].part(&self.gradients)?;
        let is_added_later = !turn.is_first;
        let to = if is_added_later { slot.received.f_narrow(0, 0, self.units[unit].length)? } else { own };
        let pending = self.group.reduce_scatter(&self.whole(unit, &slot.gradients)?, &to)?;
        slot.reducing.set(Some(Reducing { unit, pending, is_added_later }));
        Ok(())
    }

    /// After this, what is queued finds the slot's gradients added up, and may write new ones.
    fn settle(&self, slot: &Slot) -> Result<(), TchError> {
        let Some(Reducing { unit, pending, is_added_later }) = slot.reducing.take() else { return Ok(()) };
        self.group.wait(pending)?;
        if is_added_later {
            let unit = self.units[unit];
            let _ = unit.part(&self.gradients)?.f_add_(&slot.received.f_narrow(0, 0, unit.length)?)?;
        }
        Ok(())
    }
}

//! What ranks exchange during a fused step, beside its computation.
//!
//! - *Replicas* hold everything. In a step's last micro-batch, the gradients of each unit
//!   (embedding, layer, head) are added up over the ranks as soon as its backward pass is queued.
//! - *Shards* hold a part of every matrix. Before a unit runs, its bf16 weights are gathered, while
//!   the unit before it runs; after its backward pass, each rank is sent the gradients of its part
//!   by all others, and adds them up once the unit after it has run. Gathered weights and whole
//!   gradients of layers have two places each, which layers take in turns; embedding and head share
//!   one.
//!
//! Vectors (norms and biases) are whole on every rank; their gradients are added up once at the end
//! of a step.

use std::{cell::Cell, rc::Rc};

use tch::{TchError, Tensor};

use super::{backend::Backend, kernels};
use crate::{
    parameters::{MATRICES, Parameters, Place, Unit, VECTORS},
    ranks::{Group, Pending},
};

/// Layers whose weights are there at one time: the one that runs and the next one.
const LAYERS_AT_ONCE: usize = 2;

/// Units whose new weights are gathered while others are still updated: the embedding and the first
/// layer.
const EARLY: usize = 2;

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
    backend: Rc<dyn Backend>,
    group: Rc<dyn Group>,
    units: Vec<Unit>,
    /// This rank's parts of all units.
    weights: Tensor,
    gradients: Tensor,
    vectors: Tensor,
    ends: Slot,
    layers: Vec<Slot>,
    num_layers: usize,
    /// The gradients of this rank's part of a unit, from every rank.
    received: Tensor,
    receiving: Cell<Option<Receiving>>,
}

/// Room for one whole unit.
struct Slot {
    weights: Tensor,
    gradients: Tensor,
    /// The unit whose weights are there, or on their way.
    holds: Cell<Option<usize>>,
    gathering: Cell<Option<Pending>>,
}

struct Receiving {
    unit: usize,
    pending: Pending,
    /// Whether they are added to those of earlier micro-batches.
    is_added: bool,
}

impl Exchange {
    pub fn new(
        parameters: &Parameters,
        backend: Rc<dyn Backend>,
        group: Option<Rc<dyn Group>>,
        layers: usize,
    ) -> Result<Self, TchError> {
        let Some(group) = group else {
            return Ok(Self::None);
        };
        Ok(match &parameters.shards {
            Some(shards) => Self::Shards(Shards::new(
                parameters,
                &shards.units,
                backend,
                group,
                layers,
            )?),
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

    /// The layer before `layer` whose weights are gathered to the same place.
    pub fn takes_turns_with(&self, layer: usize) -> Option<usize> {
        self.shared()
            .and_then(|_| layer.checked_sub(LAYERS_AT_ONCE))
    }

    /// Whether no other rank writes to the gradients that this rank has written.
    pub fn is_alone(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether a micro-batch adds its gradients of matrices to those of the one before.
    pub fn accumulates(&self, turn: Turn) -> bool {
        !turn.is_first && self.shared().is_none()
    }

    /// Before a unit runs; `next` is the one after it.
    pub fn before(&self, unit: usize, next: Option<usize>) -> Result<(), TchError> {
        let Self::Shards(shards) = self else {
            return Ok(());
        };
        shards.gather(unit)?;
        if let Some(pending) = shards.slot(unit).gathering.take() {
            shards.group.wait(pending)?;
        }
        next.map_or(Ok(()), |next| shards.gather(next))
    }

    /// Before gradients of a unit's matrices are written.
    pub fn before_gradients(&self, unit: usize) -> Result<(), TchError> {
        match self {
            Self::Shards(shards) => shards.before_gradients(unit),
            _ => Ok(()),
        }
    }

    /// After all gradients of a unit's matrices have been queued.
    pub fn after_gradients(&self, unit: usize, turn: Turn) -> Result<(), TchError> {
        match self {
            Self::Replicas(replicas) if turn.is_last => replicas.reduce(&replicas.units[unit]),
            Self::Shards(shards) => shards.send(unit, turn),
            _ => Ok(()),
        }
    }

    /// After the last micro-batch: every rank has the sum of all gradients, or its part of it.
    pub fn finish(&self) -> Result<(), TchError> {
        match self {
            Self::None => Ok(()),
            Self::Replicas(replicas) => {
                replicas.reduce(&replicas.vectors)?;
                replicas
                    .pending
                    .take()
                    .into_iter()
                    .try_for_each(|pending| replicas.group.wait(pending))
            }
            Self::Shards(shards) => {
                let vectors = shards.group.all_reduce(&shards.vectors)?;
                shards.add_up()?;
                shards.group.wait(vectors)
            }
        }
    }

    /// The pieces in which an update goes through the buffers of a group of `length` elements:
    /// first and how many. What the next step needs first comes first.
    pub fn pieces(&self, group: usize, length: i64) -> Vec<(i64, i64)> {
        match self {
            Self::Shards(shards) if group == MATRICES => {
                let first = shards
                    .units
                    .iter()
                    .take(EARLY)
                    .map(|unit| (unit.start, unit.length));
                let rest = shards
                    .units
                    .get(EARLY)
                    .map(|unit| (unit.start, length - unit.start));
                first.chain(rest).collect()
            }
            _ => vec![(0, length)],
        }
    }

    /// Before the weights change: what was gathered is not theirs any more.
    pub fn forget(&self) {
        if let Self::Shards(shards) = self {
            shards.slots().for_each(|slot| slot.holds.set(None));
        }
    }

    /// After the update of a piece of the matrices, before another step: its unit is gathered
    /// beside the other updates.
    pub fn updated(&self, piece: usize) -> Result<(), TchError> {
        match self {
            Self::Shards(shards) if piece < EARLY => shards.gather(piece),
            _ => Ok(()),
        }
    }
}

impl Replicas {
    fn new(parameters: &Parameters, group: Rc<dyn Group>) -> Result<Self, TchError> {
        let places: Vec<&Place> = parameters
            .list
            .iter()
            .map(|p| &p.place)
            .filter(|place| place.is_matrix())
            .collect();
        let count = places.iter().map(|place| place.unit + 1).max().unwrap_or(0);
        let units = (0..count).map(|unit| {
            let of_unit = || places.iter().filter(|place| place.unit == unit);
            let start = of_unit().map(|place| place.start).min().unwrap_or(0);
            let end = of_unit()
                .map(|place| place.start + place.count())
                .max()
                .unwrap_or(0);
            parameters.groups[MATRICES]
                .grads
                .f_narrow(0, start, end - start)
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
        backend: Rc<dyn Backend>,
        group: Rc<dyn Group>,
        num_layers: usize,
    ) -> Result<Self, TchError> {
        let (matrices, vectors) = (&parameters.groups[MATRICES], &parameters.groups[VECTORS]);
        let is_layer = |unit: usize| (1..=num_layers).contains(&unit);
        let longest = |of_layers: bool| {
            let of_kind = units
                .iter()
                .enumerate()
                .filter(|(unit, _)| is_layer(*unit) == of_layers);
            of_kind
                .map(|(_, unit)| unit.length * group.size() as i64)
                .max()
                .unwrap_or(0)
        };
        // Zeros: what pads the units is added up as well, and must stay 0.
        let zeros = |length, like: &Tensor| group.allocate(length, like.kind(), like.device());
        let slot = |length| {
            Ok::<_, TchError>(Slot {
                weights: zeros(length, &matrices.values)?,
                gradients: zeros(length, &matrices.grads)?,
                holds: Cell::default(),
                gathering: Cell::default(),
            })
        };
        let (of_layers, of_ends) = (longest(true), longest(false));
        let layers = (0..LAYERS_AT_ONCE.min(num_layers))
            .map(|_| slot(of_layers))
            .collect::<Result<_, _>>()?;
        let ends = slot(of_ends)?;
        let received = zeros(of_layers.max(of_ends), &matrices.grads)?;
        Ok(Self {
            backend,
            units: units.to_vec(),
            weights: matrices.values.shallow_clone(),
            gradients: matrices.grads.shallow_clone(),
            vectors: vectors.grads.shallow_clone(),
            ends,
            layers,
            num_layers,
            received,
            receiving: Cell::default(),
            group,
        })
    }

    fn slot(&self, unit: usize) -> &Slot {
        let is_layer = (1..=self.num_layers).contains(&unit);
        if is_layer {
            &self.layers[(unit - 1) % self.layers.len()]
        } else {
            &self.ends
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.layers.iter().chain([&self.ends])
    }

    /// What the unit takes of a slot's buffer.
    fn whole(&self, unit: usize, buffer: &Tensor) -> Result<Tensor, TchError> {
        buffer.f_narrow(0, 0, self.units[unit].length * self.group.size() as i64)
    }

    /// Begins to gather a unit's weights, unless they are there. What ran with those in their place
    /// was queued before.
    fn gather(&self, unit: usize) -> Result<(), TchError> {
        let slot = self.slot(unit);
        if slot.holds.get() == Some(unit) {
            return Ok(());
        }
        let whole = self.whole(unit, &slot.weights)?;
        let pending = self
            .group
            .all_gather(&self.units[unit].part(&self.weights)?, &whole)?;
        slot.gathering.set(Some(pending));
        slot.holds.set(Some(unit));
        Ok(())
    }

    /// What a unit has left in its slot must have been sent before the next one writes there.
    fn before_gradients(&self, unit: usize) -> Result<(), TchError> {
        let receiving = self.receiving.take();
        let is_same = receiving
            .as_ref()
            .is_some_and(|last| std::ptr::eq(self.slot(last.unit), self.slot(unit)));
        self.receiving.set(receiving);
        if is_same { self.add_up() } else { Ok(()) }
    }

    /// Begins to send the other ranks their parts of a unit's gradients, and to receive this
    /// rank's.
    fn send(&self, unit: usize, turn: Turn) -> Result<(), TchError> {
        self.add_up()?;
        let sent = self.whole(unit, &self.slot(unit).gradients)?;
        let pending = self
            .group
            .all_to_all(&sent, &self.whole(unit, &self.received)?)?;
        self.receiving.set(Some(Receiving {
            unit,
            pending,
            is_added: !turn.is_first,
        }));
        Ok(())
    }

    /// Adds up what every rank has sent of the last unit.
    fn add_up(&self) -> Result<(), TchError> {
        let Some(Receiving {
            unit,
            pending,
            is_added,
        }) = self.receiving.take()
        else {
            return Ok(());
        };
        self.group.wait(pending)?;
        let own = self.units[unit].part(&self.gradients)?;
        kernels::add_parts(
            &*self.backend,
            &self.whole(unit, &self.received)?,
            &own,
            is_added,
        )
    }
}

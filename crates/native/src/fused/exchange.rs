//! What ranks exchange during a fused step, beside its computation.
//!
//! - *Replicas* hold everything. In a step's last micro-batch, the gradients of each unit
//!   (embedding, layer, head) are added up over the ranks as soon as its backward pass is queued.
//! - *Shards* hold a part of every matrix. Before a unit runs, its bf16 weights are gathered, while
//!   the unit before it runs; after its backward pass, each rank is sent the gradients of its part
//!   by all others, and adds them up once the unit after it has run. Gathered weights and whole
//!   gradients of layers have two places each, which layers take in turns; embedding and head share
//!   one for their weights. The head's gradient stays whole until the last micro-batch.
//!
//!   A step touches few rows of the embedding. So its gradient is never whole: each rank is sent
//!   what all ranks would add to those rows, and adds up its own part of them.
//!
//! Vectors (norms and biases) are whole on every rank; their gradients are added up once at the end
//! of a step.

use std::{cell::Cell, ops::Range, rc::Rc};

use tch::{Kind, TchError, Tensor};

use super::{
    backend::Backend,
    kernels::{self, Segments},
};
use crate::{
    parameters::{MATRICES, Parameters, Place, Unit, VECTORS},
    ranks::{Group, Pending},
};

/// Layers whose weights are there at one time: the one that runs and the next one.
const LAYERS_AT_ONCE: usize = 2;

/// Units whose new weights are gathered while others are still updated: the embedding and the first
/// layer.
const EARLY: usize = 2;

/// The embedding's unit.
const EMBEDDING: usize = 0;

pub enum Exchange {
    /// There is one rank.
    None,
    Replicas(Replicas),
    Shards(Shards),
}

/// What the exchange must know of a job.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub layers: usize,
    /// Tokens of a micro-batch of one rank.
    pub tokens: i64,
    pub hidden: i64,
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
    /// Gathered weights of the embedding or the head, and of layers in turns.
    ends: Slot,
    layers: Vec<Slot>,
    /// Whole gradients: of the head, and of layers in turns.
    end_gradients: Tensor,
    layer_gradients: Vec<Tensor>,
    num_layers: usize,
    /// The gradients of this rank's part of a unit, from every rank.
    received: Tensor,
    receiving: Cell<Option<Receiving>>,
    /// The gradients of what the embedding gave the first layer, from every rank in its order.
    embedded: Tensor,
    gathering_embedded: Cell<Option<Pending>>,
    adding_vectors: Cell<Option<Pending>>,
}

/// Room for the weights of one whole unit.
struct Slot {
    weights: Tensor,
    /// The unit whose weights are there, or on their way.
    holds: Cell<Option<usize>>,
    gathering: Cell<Option<Pending>>,
}

struct Receiving {
    unit: usize,
    pending: Pending,
    /// Whether they are added to those that are there: of earlier micro-batches, or of the embedding
    /// that is the head as well.
    is_added: bool,
}

impl Exchange {
    pub fn new(
        parameters: &Parameters,
        backend: Rc<dyn Backend>,
        group: Option<Rc<dyn Group>>,
        sizes: Sizes,
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
                sizes,
            )?),
            None => Self::Replicas(Replicas::new(parameters, group)?),
        })
    }

    /// The flat buffers in which a step finds weights and gradients at `place`.
    pub fn buffers<'a>(&'a self, parameters: &'a Parameters, place: &Place) -> [&'a Tensor; 2] {
        match self {
            Self::Shards(shards) if place.is_matrix() => [
                &shards.slot(place.unit).weights,
                shards.whole_gradients(place.unit),
            ],
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

    /// The tokens whose rows of the embedding's gradient this rank adds up, of a matrix that begins
    /// its unit; `None`: it adds up those of its own micro-batches, whichever they are.
    pub fn embedded_tokens(&self) -> Option<Range<i64>> {
        let Self::Shards(shards) = self else {
            return None;
        };
        let hidden = shards.embedded.size()[1];
        let (first, length) = shards.own_embedding();
        Some(first / hidden..(first + length + hidden - 1) / hidden)
    }

    /// Once the gradient `dx` of what the embedding gave the first layer is queued: begins to show
    /// it to the ranks that hold the rows.
    pub fn gather_embedded(&self, dx: &Tensor) -> Result<(), TchError> {
        match self {
            Self::Shards(shards) => shards.gather_embedded(dx),
            _ => Ok(()),
        }
    }

    /// Whether a micro-batch adds its gradients of a unit's matrices to those of the one before.
    pub fn accumulates(&self, unit: usize, turn: Turn) -> bool {
        let stay = match self {
            Self::Shards(shards) => shards.layer(unit).is_none(),
            _ => true,
        };
        stay && !turn.is_first
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

    /// Before a step's first micro-batch.
    pub fn begin(&self) -> Result<(), TchError> {
        match self {
            Self::Shards(shards) => {
                let mut own = shards.units[EMBEDDING].part(&shards.gradients)?;
                own.f_zero_().map(drop)
            }
            _ => Ok(()),
        }
    }

    /// After the layers' backward passes: adds what this micro-batch gives the rows of an embedding
    /// whose gradient is shared out. `false`: it is whole.
    pub fn embedding_backward(&self, segments: &Segments) -> Result<bool, TchError> {
        match self {
            Self::Shards(shards) => shards.embedding_backward(segments).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Where the matrices' gradients begin that are complete once the last backward pass is queued,
    /// in a buffer of `length` elements. The others are after [`Self::finish`].
    pub fn complete_from(&self, length: i64) -> i64 {
        match self {
            Self::Shards(shards) => shards.units.get(EARLY).map_or(length, |unit| unit.start),
            _ => length,
        }
    }

    /// After the last micro-batch: begins to add up the gradients of vectors.
    pub fn add_up_vectors(&self) -> Result<(), TchError> {
        match self {
            Self::None => Ok(()),
            Self::Replicas(replicas) => replicas.reduce(&replicas.vectors),
            Self::Shards(shards) => {
                let pending = shards.group.all_reduce(&shards.vectors)?;
                shards.adding_vectors.set(Some(pending));
                Ok(())
            }
        }
    }

    /// After that: every rank has the sum of all gradients, or its part of it.
    pub fn finish(&self) -> Result<(), TchError> {
        match self {
            Self::None => Ok(()),
            Self::Replicas(replicas) => replicas
                .pending
                .take()
                .into_iter()
                .try_for_each(|pending| replicas.group.wait(pending)),
            Self::Shards(shards) => {
                shards.add_up()?;
                match shards.adding_vectors.take() {
                    Some(pending) => shards.group.wait(pending),
                    None => Ok(()),
                }
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
        sizes: Sizes,
    ) -> Result<Self, TchError> {
        let num_layers = sizes.layers;
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
                holds: Cell::default(),
                gathering: Cell::default(),
            })
        };
        let (of_layers, of_ends) = (longest(true), longest(false));
        let layers = (0..LAYERS_AT_ONCE.min(num_layers))
            .map(|_| slot(of_layers))
            .collect::<Result<_, _>>()?;
        let ends = slot(of_ends)?;
        let layer_gradients = (0..LAYERS_AT_ONCE.min(num_layers))
            .map(|_| zeros(of_layers, &matrices.grads))
            .collect::<Result<_, _>>()?;
        let end_gradients = zeros(of_ends, &matrices.grads)?;
        let received = zeros(of_layers.max(of_ends), &matrices.grads)?;
        let rows = sizes.tokens * group.size() as i64;
        let (length, device) = (rows * sizes.hidden, matrices.grads.device());
        let embedded = group
            .allocate(length, Kind::BFloat16, device)?
            .f_reshape([rows, sizes.hidden])?;
        Ok(Self {
            backend,
            units: units.to_vec(),
            weights: matrices.values.shallow_clone(),
            gradients: matrices.grads.shallow_clone(),
            vectors: vectors.grads.shallow_clone(),
            ends,
            layers,
            end_gradients,
            layer_gradients,
            num_layers,
            received,
            receiving: Cell::default(),
            embedded,
            gathering_embedded: Cell::default(),
            adding_vectors: Cell::default(),
            group,
        })
    }

    /// The number of a unit's layer; `None`: it is the embedding or the head.
    fn layer(&self, unit: usize) -> Option<usize> {
        unit.checked_sub(1).filter(|layer| *layer < self.num_layers)
    }

    fn slot(&self, unit: usize) -> &Slot {
        match self.layer(unit) {
            Some(layer) => &self.layers[layer % self.layers.len()],
            None => &self.ends,
        }
    }

    fn whole_gradients(&self, unit: usize) -> &Tensor {
        match self.layer(unit) {
            Some(layer) => &self.layer_gradients[layer % self.layer_gradients.len()],
            None => &self.end_gradients,
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

    /// What a unit has left in its place must have been sent before the next one writes there.
    fn before_gradients(&self, unit: usize) -> Result<(), TchError> {
        let receiving = self.receiving.take();
        let is_same = receiving.as_ref().is_some_and(|last| {
            std::ptr::eq(self.whole_gradients(last.unit), self.whole_gradients(unit))
        });
        self.receiving.set(receiving);
        if is_same { self.add_up() } else { Ok(()) }
    }

    /// Begins to send the other ranks their parts of a unit's gradients, and to receive this
    /// rank's. The head's are complete after the last micro-batch only.
    fn send(&self, unit: usize, turn: Turn) -> Result<(), TchError> {
        let is_layer = self.layer(unit).is_some();
        if !is_layer && !turn.is_last {
            return Ok(());
        }
        self.add_up()?;
        let sent = self.whole(unit, self.whole_gradients(unit))?;
        let pending = self
            .group
            .all_to_all(&sent, &self.whole(unit, &self.received)?)?;
        self.receiving.set(Some(Receiving {
            unit,
            pending,
            is_added: if is_layer {
                !turn.is_first
            } else {
                unit == EMBEDDING
            },
        }));
        Ok(())
    }

    /// Where this rank's part of the embedding's unit begins in it, and how long it is.
    fn own_embedding(&self) -> (i64, i64) {
        let length = self.units[EMBEDDING].length;
        (self.group.rank() as i64 * length, length)
    }

    fn gather_embedded(&self, dx: &Tensor) -> Result<(), TchError> {
        let (all, count) = (self.embedded.f_view([-1])?, dx.numel() as i64);
        let mut own = all.f_narrow(0, self.group.rank() as i64 * count, count)?;
        own.f_copy_(&dx.f_view([-1])?)?;
        let pending = self.group.all_gather(&own, &all)?;
        self.gathering_embedded.set(Some(pending));
        Ok(())
    }

    fn embedding_backward(&self, segments: &Segments) -> Result<(), TchError> {
        let own = self.units[EMBEDDING].part(&self.gradients)?;
        if let Some(pending) = self.gathering_embedded.take() {
            self.group.wait(pending)?;
        }
        let (first, _) = self.own_embedding();
        kernels::embedding_backward(&*self.backend, &self.embedded, segments, &own, first)
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

//! Protobuf's wire format as far as events need it: `Event{1: wall_time, 2: step, 5: Summary{1:
//! Value{1: tag, 2: simple_value, 8: TensorProto}}}`.

use super::{record::Records, tags};
use crate::{
    Step, TOTAL_RATE, Trace,
    builder::Builder,
    fields::{self, Field},
    lines::cut,
    numbers,
    values::Checks,
};

pub const FORMAT: &str = "tfevents";
/// Values of a step that are kept besides the known ones.
const MAX_OTHER: usize = 24;
const MAX_TAG: usize = 120;

/// Reads an event file in pieces of any size.
#[derive(Default)]
pub struct TfEvents {
    records: Records,
    events: Scalars,
    builder: Builder,
}

/// What an event file in memory says.
#[must_use]
pub fn tfevents(bytes: &[u8]) -> Trace {
    let mut reader = TfEvents::default();
    reader.feed(bytes);
    reader.finish()
}

impl TfEvents {
    pub fn feed(&mut self, chunk: &[u8]) {
        let Self {
            records,
            events,
            builder,
        } = self;
        let mut found = Vec::new();
        // A chunk at a time, so that what is found stays small.
        for piece in chunk.chunks(1 << 16) {
            records.feed(piece, &mut builder.notes, |data| scalars(data, &mut found));
            for scalar in found.drain(..) {
                events.scalar(scalar, builder);
            }
        }
    }

    #[must_use]
    pub fn finish(mut self) -> Trace {
        self.records.finish(&mut self.builder.notes);
        self.events.end(&mut self.builder);
        self.builder.trace.format = FORMAT.to_owned();
        self.builder.finish()
    }
}

pub struct Scalar {
    pub step: i64,
    pub tag: String,
    pub value: f64,
    /// Seconds since 1970, when it was written.
    pub time: Option<f64>,
}

/// A writer gives each value of a step an event of its own: they are put together while the step is
/// the same.
#[derive(Default)]
pub struct Scalars {
    step: Option<Step>,
    /// The steps that Megatron's `iteration-time` was written for: it is a mean since the last time it
    /// was written.
    timed: Timed,
}

#[derive(Default)]
struct Timed {
    is_mean: bool,
    newest: Option<u64>,
    /// The most common distance is not needed: the largest says whether there are steps without a
    /// time between.
    largest_gap: u64,
}

impl Scalars {
    pub fn scalar(&mut self, scalar: Scalar, out: &mut Builder) {
        let Ok(number) = u64::try_from(scalar.step) else {
            out.notes
                .add("unreadable_event", || format!("step {}", scalar.step));
            return;
        };
        let Some(field) = tags::field(&scalar.tag) else {
            return;
        };
        let value = scalar.value;
        match &field {
            Field::Evaluation(name) => {
                return out.evaluated(Some(number), cut(name, MAX_TAG), value);
            }
            Field::Total(name) => return out.total(&cut(name, MAX_TAG), value),
            Field::Effective(name) => {
                if value.is_finite() {
                    out.set(name, numbers::setting(value));
                }
                return;
            }
            Field::MeanTime(_) => {
                self.timed.is_mean = true;
                let before = self.timed.newest.replace(number).unwrap_or(number);
                self.timed.largest_gap = self.timed.largest_gap.max(number.saturating_sub(before));
            }
            _ => {}
        }
        if self.step.as_ref().is_none_or(|step| step.step != number) {
            self.flush(out);
        }
        let step = self.step.get_or_insert_with(|| Step {
            step: number,
            ended_at: scalar.time,
            ..Step::default()
        });
        put(&field, step, &scalar.tag, value, &mut out.notes);
    }

    fn flush(&mut self, out: &mut Builder) {
        self.step.take().into_iter().for_each(|step| out.step(step));
    }

    pub fn end(&mut self, out: &mut Builder) {
        self.flush(out);
        if !self.timed.is_mean {
            return;
        }
        let steps = &out.trace.steps;
        let closest = steps.windows(2).map(|w| w[1].step - w[0].step).min();
        match closest {
            // Every step that is written has a time: times and losses are means of as many steps.
            Some(gap) if self.timed.largest_gap <= gap => out.averages = gap > 1,
            Some(_) => {
                let gap = self.timed.largest_gap;
                out.notes.add("averaged_step_time", || {
                    format!("iteration-time is a mean of up to {gap} steps")
                });
            }
            None => {}
        }
    }
}

/// A mean, too, stands for the step that it was written at.
fn put(field: &Field, step: &mut Step, tag: &str, value: f64, notes: &mut crate::builder::Notes) {
    let number = step.step;
    let mut checks = Checks {
        step: number,
        notes: &mut *notes,
    };
    let whole = numbers::as_count(value).filter(|n| *n > 0);
    match field {
        Field::Time(_) | Field::MeanTime(_) => {
            step.step_time_seconds = checks.seconds(tag, Some(value))
        }
        Field::Loss => step.loss = numbers::finite(value, "nan_loss", number, notes),
        Field::LearningRate => step.learning_rate = checks.learning_rate(Some(value)),
        Field::GradNorm => step.grad_norm = numbers::finite(value, "nan_grad_norm", number, notes),
        Field::Tflops => step.tflops_per_gpu = checks.positive(tag, Some(value)),
        Field::TokensPerGpu => step.tokens_per_second_per_gpu = checks.positive(tag, Some(value)),
        Field::GlobalBatchSize => step.global_batch_size = whole,
        Field::ConsumedSamples => step.consumed_samples = whole,
        Field::Memory(..) => {
            // Less than a mebibyte are gigabytes of somebody who names no unit.
            let figure = fields::figure(field, value, "torch").filter(|f| f.bytes >= 1 << 20);
            let Some(figure) = figure else { return };
            if step.memory_bytes.is_none() || figure.kind == "peak_allocated" {
                step.memory_bytes = Some(figure.bytes);
                step.memory_kind = Some(figure.kind.clone());
                step.memory_source = Some(figure.source.clone());
            }
            step.memory_figures.push(figure);
        }
        Field::Other(name) if name == TOTAL_RATE => {
            let rate = checks.positive(tag, Some(value));
            step.other
                .extend(rate.map(|rate| (TOTAL_RATE.into(), rate)));
        }
        Field::Other(_) if value.is_finite() && step.other.len() < MAX_OTHER => {
            step.other.insert(cut(tag, MAX_TAG).into(), value);
        }
        _ => {}
    }
}

/// The scalars of one event.
fn scalars(event: &[u8], found: &mut Vec<Scalar>) {
    let (mut step, mut summary, mut time) = (0, None, None);
    for field in Fields(event) {
        match field {
            (1, Wire::Fixed64(bits)) => time = Some(f64::from_bits(bits)),
            (2, Wire::Varint(n)) => step = n.cast_signed(),
            (5, Wire::Bytes(bytes)) => summary = Some(bytes),
            _ => {}
        }
    }
    for (_, value) in Fields(summary.unwrap_or_default()).filter(|(number, _)| *number == 1) {
        let Wire::Bytes(value) = value else { continue };
        let (mut tag, mut scalar) = (None, None);
        for field in Fields(value) {
            match field {
                (1, Wire::Bytes(name)) => tag = std::str::from_utf8(name).ok(),
                (2, Wire::Fixed32(bits)) => scalar = Some(f64::from(f32::from_bits(bits))),
                (8, Wire::Bytes(tensor)) => scalar = scalar.or(tensor_scalar(tensor)),
                _ => {}
            }
        }
        if let (Some(tag), Some(value)) = (tag, scalar) {
            found.push(Scalar {
                step,
                tag: cut(tag, MAX_TAG),
                value,
                time: time.filter(|t| t.is_finite() && *t > 0.0),
            });
        }
    }
}

/// The only element of a tensor of floats or doubles.
fn tensor_scalar(tensor: &[u8]) -> Option<f64> {
    let (mut kind, mut content) = (0, None);
    for field in Fields(tensor) {
        match field {
            (1, Wire::Varint(n)) => kind = n,
            (4, Wire::Bytes(bytes)) if !bytes.is_empty() => content = Some(bytes),
            // Packed `float_val` and `double_val`, or one of them unpacked.
            (5 | 6, Wire::Bytes(bytes)) => content = Some(bytes),
            (5, Wire::Fixed32(bits)) => return Some(f64::from(f32::from_bits(bits))),
            (6, Wire::Fixed64(bits)) => return Some(f64::from_bits(bits)),
            _ => {}
        }
    }
    match kind {
        1 => Some(f64::from(f32::from_le_bytes(content?.try_into().ok()?))),
        2 => Some(f64::from_le_bytes(content?.try_into().ok()?)),
        _ => None,
    }
}

enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Fields of a message, up to the first that is broken.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Wire<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (at, byte) in self.0.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

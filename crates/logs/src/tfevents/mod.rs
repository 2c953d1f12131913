//! TensorBoard's event files: TFRecords of protobuf events, of which scalars are read, by tag.
mod events;
mod record;
mod tags;
#[cfg(test)]
mod tests;

pub use events::{FORMAT, Scalar, Scalars, TfEvents, tfevents};
pub use record::{HEADER, begins};
pub use tags::{field, is_of_step};

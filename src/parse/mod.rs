//! Log bytes → [`Trace`]. One file a format.
mod trace;
pub use trace::*;

//! What tprimat and a trainer say to each other: the job goes in, and the samples of its dataset;
//! exit codes and classes of failure come out.
//!
//! Nothing here computes a measurement or a figure. The native trainer's keys cover this crate, so
//! what is not said between the two has no place in it.

#[cfg(test)]
extern crate self as tprimat_job;

mod failure;
mod job;
pub mod samples;
mod schedule;
mod shape;
mod sharding;
mod vendor;

pub use failure::{FailureClass, RunOutcome, exit};
pub use job::*;
pub use shape::{
    ARCHITECTURES, Architecture, OTHER, architecture, architecture_names, count_active_parameters,
    count_parameters,
};
pub use sharding::Sharding;
pub use vendor::{Vendor, vendor_named, vendor_names};

//! This machine: what it is (probe), and what a platform's numbers were pinned to (tprimat.lock).

mod lock;
mod probe;
mod python;

pub use lock::{Fact, FactDiff, Lock, Section};
pub use probe::{CpuFacts, GpuFacts, HostFacts, probe};
pub use python::python_packages;

//! This machine: what it is (probe), what it draws and how warm it is (telemetry), and what a platform's numbers were pinned to (tprimat.lock).

mod checkout;
mod lock;
mod probe;
mod python;
mod telemetry;

pub use checkout::checkout_facts;
pub use lock::{Fact, FactDiff, Lock, Section};
pub use probe::{CpuFacts, GpuFacts, HostFacts, probe};
pub use python::{absent_modules, python_packages, which};
pub use telemetry::{Sampler, Sampling};

//! This machine: what it is (probe), what it draws and how warm it is (telemetry), and what a
//! platform's numbers were pinned to (tprimat.lock).

mod checkout;
mod engine;
mod gpu_use;
mod lock;
mod probe;
mod python;
mod telemetry;

pub use checkout::{checkout_facts, commit_around, edited_below, state_around};
pub use engine::{
    AskError, ContainerEngine, EngineKind, ask, ask_while, engine_environment, last_line,
};
pub use gpu_use::{GpuProcess, GpuUse, gpu_use, has_gpu_hardware};
pub use lock::{Fact, FactDiff, IMAGES, Lock, Section};
pub use probe::{CpuFacts, GpuFacts, HostFacts, probe, visibility};
pub use python::{
    PYENV_DIR, PYTHONPATH, absent_modules, editable_packages, followed, package_folders,
    python_packages, which,
};
pub use telemetry::{Sampler, Sampling, sees_all_processes};

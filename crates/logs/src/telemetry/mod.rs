//! Output of the tools that read GPUs. `names.toml` has the names by which each form of it calls a
//! quantity; a file a tool knows how its lines are laid out.
mod amd_smi;
mod document;
mod nvidia_smi;
mod reading;
mod rocm_smi;
#[cfg(test)]
mod tests;

pub use amd_smi::{AmdSmi, evidence as amd_smi_evidence};
pub use nvidia_smi::{NvidiaSmi, evidence as nvidia_smi_evidence};
pub use rocm_smi::{RocmSmi, evidence as rocm_smi_evidence};

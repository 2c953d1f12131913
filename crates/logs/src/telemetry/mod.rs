//! Output of the tools that read GPUs: one file a tool. Memory is in bytes whatever the tool calls
//! its unit.
mod amd_smi;
mod document;
mod nvidia_smi;
mod quantity;
mod rocm_smi;

pub use amd_smi::{AmdSmi, evidence as amd_smi_evidence};
pub use nvidia_smi::{NvidiaSmi, evidence as nvidia_smi_evidence};
pub use rocm_smi::{RocmSmi, evidence as rocm_smi_evidence};

//! What recipes launch: every launcher of the default matrix, what reaches a trainer, and that
//! nothing of a job is lost.

mod bridge;
mod checkout;
mod container;
mod features;
mod fields;
mod measured;
mod megatron;
mod megatron_deepspeed;
mod nemo;
mod primus;
mod profile;
mod render;
mod rendered;
mod verbatim;

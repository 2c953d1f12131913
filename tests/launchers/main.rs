//! What recipes launch: every launcher of the default matrix, what reaches a trainer, and that nothing of a job is lost.

#![recursion_limit = "256"]
#![allow(clippy::disallowed_methods, reason = "plays the trainers, which write files as they like")]

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
#[path = "../support/mod.rs"]
mod support;
mod verbatim;

//! What a user relies on, tried on the binary: one module a subject, and one binary, since each one
//! more is one more to link.
//!
//! `cargo test --test suite staleness` runs the tests of one module. Attacks, containers and batch
//! systems, the soak and the real frameworks have binaries of their own: what they need is not on
//! every host.

#![recursion_limit = "256"]
#![allow(
    clippy::disallowed_methods,
    reason = "plays users and trainers, who write files as they like"
)]

#[path = "../support/mod.rs"]
mod support;

mod batch;
mod blocked;
mod cli;
mod compare;
mod data;
mod detached;
mod documents;
mod first_day;
mod gate;
mod guard;
mod history;
mod import;
mod imported;
mod json;
mod kept;
mod kill;
mod launchers;
mod migrating;
mod moving_in;
mod parse;
mod price;
mod remote;
mod slips;
mod staleness;
mod statistics;
mod supervision;
mod telemetry;

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

mod abilities;
mod arrows;
mod batch;
mod blame;
mod blocked;
mod builds;
mod cli;
mod compare;
mod damaged;
mod data;
mod decide;
mod detached;
mod digests;
mod disks;
mod document_settings;
mod documents;
mod field;
mod first_day;
mod gate;
mod gate_clock;
mod guard;
mod guard_outputs;
mod history;
mod import;
mod import_claims;
mod import_facts;
mod import_own;
mod import_ranks;
mod imported;
mod json;
mod kept;
mod kill;
mod kubernetes;
mod launchers;
mod little_memory;
mod logs;
mod lost_records;
mod migrating;
mod misleading;
mod moving_in;
mod next_step;
mod oracle;
mod output_folder;
mod own_command;
mod page_of_keys;
mod parse;
mod plans;
mod price;

mod printed;
mod prose;
mod published_rows;
mod python;
mod remote;
mod schemas;
mod set_aside;
mod slips;
mod staleness;
mod statistics;
mod supervision;
mod telemetry;
mod trainer_env;
mod twins;
mod why;

//! Builds that run in real containers, under a real batch system and with a real S3 server, which
//! these tests start and end by themselves. Where one cannot be had, its tests fail and say which
//! command installs it; `make test-services` installs all of them.
#![allow(
    clippy::disallowed_methods,
    reason = "plays the user, who edits files as users do"
)]
mod allocation;
mod container;
#[path = "../support/services/mod.rs"]
mod fixtures;
mod nodes;
mod s3;
mod slurm;
#[path = "../support/mod.rs"]
mod support;

use fixtures::{eventually, tool};

//! Attacks by files that strangers wrote: each was tried, and once worked.
//! docs/SECURITY.md says what is trusted.
//!
//! Attacks that need two users are run by `make test-services`, as root and with `nobody` as the
//! stranger.

#![allow(
    clippy::disallowed_methods,
    reason = "plays users and attackers, who write files as they like"
)]

#[path = "../support/mod.rs"]
mod support;

mod arena;
mod files;
mod folders;
mod programs;
mod secrets;
mod two_users;

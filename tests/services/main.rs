//! Builds that run in real containers and under a real batch system, which these tests start and
//! end by themselves. Where one cannot be had, its tests fail and say which command installs it.
#![allow(
    clippy::disallowed_methods,
    reason = "plays the user, who edits files as users do"
)]
mod allocation;
mod container;
mod nodes;
#[cfg(feature = "remote")]
mod s3;
mod slurm;
#[path = "../support/mod.rs"]
mod support;

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

/// The output of a program that must be there. `package`: what installs it on Debian.
#[track_caller]
fn tool(program: &str, arguments: &[&str], package: &str) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}; `apt-get install -y {package}` installs it"))
}

/// Polls until it holds, or says what did not.
#[track_caller]
fn eventually(what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(seconds),
            "not within {seconds} s: {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

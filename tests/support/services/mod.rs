//! Real services, which tests start and end by themselves: a Docker daemon, a Slurm cluster, an S3
//! server, a clock that can be moved. Where one cannot be had, its test fails and says which command
//! installs it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::disallowed_methods,
    reason = "plays the user, who edits files as users do"
)]

pub mod clock;
pub mod docker;
pub mod s3;
pub mod slurm;

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

/// The output of a program that must be there. `package`: what installs it on Debian.
#[track_caller]
pub fn tool(program: &str, arguments: &[&str], package: &str) -> Output {
    Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}; `apt-get install -y {package}` installs it"))
}

/// Polls until it holds, or says what did not.
#[track_caller]
pub fn eventually(what: &str, seconds: u64, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < Duration::from_secs(seconds),
            "not within {seconds} s: {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

//! A clock that tests move, for programs that are started with it (libfaketime).

use std::{fs, path::Path, process::Command};

use super::tool;

/// The library that programs get before their own.
pub fn library() -> String {
    let listed = tool("dpkg", &["--listfiles", "libfaketime"], "dpkg");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_it = |line: &&str| line.ends_with("/libfaketimeMT.so.1");
    let found = listed.lines().find(is_it);
    let missing = "libfaketime is missing; `apt-get install -y libfaketime` installs it";
    found.expect(missing).to_owned()
}

/// What a program is started with so that `file` says how far its clock is off (`+3d`, `-2h`). Only
/// the time of day is moved, as on a host whose clock is set: the monotonic clock and the stamps of
/// files go on.
pub fn variables(library: &str, file: &Path) -> [(&'static str, String); 5] {
    [
        ("LD_PRELOAD", library.to_owned()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("NO_FAKE_STAT", "1".to_owned()),
    ]
}

pub fn set(file: &Path, offset: &str) {
    // In one piece: a program that reads half an offset stops.
    let new = file.with_extension("new");
    fs::write(&new, format!("{offset}\n")).unwrap();
    fs::rename(&new, file).unwrap();
}

/// Does a program that is started so believe the file?
pub fn is_believed(library: &str, file: &Path) -> bool {
    let told = |command: &mut Command| {
        let said = command.arg("+%s").output().unwrap();
        String::from_utf8_lossy(&said.stdout)
            .trim()
            .parse::<i64>()
            .unwrap_or_default()
    };
    let (real, moved) = (
        told(&mut Command::new("date")),
        told(Command::new("date").envs(variables(library, file))),
    );
    (real - moved).abs() > 60
}

//! Other processes for tests: this test program again, told by its environment what to do.

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tprimat_base::files::Durability;

use super::*;

const ROLE: &str = "TPRIMAT_TEST_ROLE";
const ROOT: &str = "TPRIMAT_TEST_ROOT";
const FIRST: &str = "TPRIMAT_TEST_FIRST";

/// A process that plays `role` on the cache at `root` with numbers from `first`.
pub fn process(role: &str, root: &Path, first: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "cache::tests::child::child",
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env(ROLE, role)
        .env(ROOT, root)
        .env(FIRST, first.to_string());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Not a test of its own: what such a process does.
#[test]
#[ignore = "what the processes of other tests do"]
fn child() {
    let role = std::env::var(ROLE).unwrap();
    let root = PathBuf::from(std::env::var_os(ROOT).unwrap());
    let first: u32 = std::env::var(FIRST).unwrap().parse().unwrap();
    match role.as_str() {
        "record forever" => (first..u32::MAX).for_each(|n| record(&Cache::open(&root).unwrap(), n)),
        "record 100" => {
            let cache = Cache::open(&root).unwrap();
            (first..first + 100).for_each(|n| record(&cache, n));
        }
        "fill" => limits::fill(&root),
        "read only" => limits::read_only(&root),
        "small disk" => limits::small_disk(&root),
        "little memory" => limits::little_memory(&root, first),
        "hold a lock" => {
            let _lock = Cache::open(&root)
                .unwrap()
                .lock_key(&digest("key"))
                .unwrap();
            say("held");
            let _ = std::io::stdin().read(&mut [0]);
        }
        other => panic!("unknown role {other}"),
    }
}

pub fn blob(n: u32) -> Vec<u8> {
    format!("log of {n}\n").repeat(500).into_bytes()
}

/// What a build does with a measurement, then says that it did.
fn record(cache: &Cache, n: u32) {
    cache.put(&blob(n), Durability::Synced).unwrap();
    record_with_outputs(cache, &attempt(n, 0, n, n)).unwrap();
    say(&format!("attempt {n}"));
    cache
        .record_entry(&entry(TaskKind::Parse, n, n, n))
        .unwrap();
    say(&format!("entry {n}"));
}

/// In one write, past the test runner's capture; marked, as the runner prints lines of its own.
pub fn say(line: &str) {
    std::io::stdout()
        .write_all(format!("\n>{line}\n").as_bytes())
        .unwrap();
}

pub fn said(output: &str) -> impl Iterator<Item = &str> {
    // A line that was cut off by a kill does not count.
    output
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n')?.strip_prefix('>'))
}

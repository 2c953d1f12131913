//! Digests of source files, which keys cover. The build scripts of tprimat and of tprimat-native
//! share this file, since tprimat starts no native trainer that was built from other sources.

use std::{fs, path::Path};

/// What can decide the launch files of a run, or a value, a picture or a page that is made from
/// finished runs. Cargo.lock pins the libraries.
pub const ANALYSIS: &[&str] = &[
    "Cargo.lock",
    "crates/base/src",
    "crates/job/src",
    "crates/logs/src",
    "crates/numbers/src",
    "crates/report/src",
    "src/execute/derived",
    "src/execute/derived.rs",
    "src/graph/attempt_logs.rs",
    "src/import",
    "src/recipe/render.rs",
];

/// What tprimat-native trains with. Libraries do not count: another version of one would ask for
/// all trainings again.
pub const NATIVE: &[&str] = &["crates/job/src", "crates/native/src"];

/// BLAKE3 of the files at and below these paths of `root`, in hexadecimal digits.
///
/// Files of tests do not count; nor do comments, blank lines and the tests at the end of a Rust
/// file, because no training should run again for them.
///
/// # Panics
///
/// Where a path cannot be read: a digest of nothing would never change.
pub fn digest(root: &Path, paths: &[&str]) -> String {
    // In a package from a registry the crates are not there. Its Cargo.lock has their checksums.
    let is_checkout = root.join("crates").is_dir();
    let is_expected = |path: &&&str| is_checkout || root.join(path).exists();
    let mut hasher = blake3::Hasher::new();
    for file in paths
        .iter()
        .filter(is_expected)
        .flat_map(|path| files(root, path))
        .filter(|file| !is_of_tests(file))
    {
        let bytes = fs::read(root.join(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let counted = blake3::hash(&counted(&file, bytes));
        hasher.update(format!("{file} {}\n", counted.to_hex()).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Files below `path` (or itself), relative to `root`, sorted; without Python's byte code.
pub fn files(root: &Path, path: &str) -> Vec<String> {
    let full = root.join(path);
    if full.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(&full).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && name != "__pycache__")
        .collect();
    names.sort();
    names
        .iter()
        .flat_map(|name| files(root, &format!("{path}/{name}")))
        .collect()
}

fn is_of_tests(file: &str) -> bool {
    let is_folder = |part| part == "tests" || part == "snapshots";
    file.split('/').any(is_folder) || file.ends_with("tests.rs")
}

fn counted(file: &str, bytes: Vec<u8>) -> Vec<u8> {
    if !file.ends_with(".rs") {
        return bytes;
    }
    let text = String::from_utf8(bytes).unwrap_or_else(|e| panic!("{file}: {e}"));
    // Clippy lets nothing follow such a module.
    let product = text.split("\n#[cfg(test)]\nmod tests {").next();
    let lines = product.into_iter().flat_map(str::lines).filter(|line| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with("//")
    });
    lines
        .flat_map(|line| [line, "\n"])
        .collect::<String>()
        .into_bytes()
}

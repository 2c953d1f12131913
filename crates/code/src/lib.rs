//! For build scripts: a digest of the code that a crate can call.
//!
//! A crate whose code decides what a task makes has a `links` name and a build script that calls
//! [`announce`]. The digest covers the crate's own sources ([`own`]) and the digests of the
//! workspace crates that its manifest depends on. Cargo itself hands those over, as
//! `DEP_TPRIMAT_<CRATE>_CODE`, so nothing is listed by hand, and what a manifest does not name
//! cannot be called.

mod libraries;
mod manifest;
mod sources;
mod tokens;
mod without_tests;

use std::{collections::BTreeSet, env, fs, path::PathBuf};

pub use libraries::pins;
pub use manifest::{foreign_dependencies, own_dependencies};
pub use sources::digest as own;

/// Computes the digest of the package whose build script calls this, and tells Cargo, which tells
/// the crates that depend on it; likewise the libraries of others that it and the crates below it
/// call.
///
/// # Panics
///
/// Where a source cannot be read: a digest without it would mean nothing.
pub fn announce() {
    println!("cargo::metadata=code={}", of_package());
    let manifest = fs::read_to_string(folder().join("Cargo.toml")).expect("Cargo has just read it");
    let mut libraries: BTreeSet<String> = foreign_dependencies(&manifest)
        .into_iter()
        .map(str::to_owned)
        .collect();
    for (_, names) in announced("LIBRARIES") {
        libraries.extend(
            names
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        );
    }
    println!(
        "cargo::metadata=libraries={}",
        libraries.into_iter().collect::<Vec<_>>().join(",")
    );
    println!("cargo::rerun-if-changed=Cargo.toml");
}

/// The digest of the package whose build script calls this.
#[must_use]
pub fn of_package() -> String {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=build.rs");
    folded(&own(&folder().join("src")), announced("CODE"))
}

fn folder() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets it"))
}

/// What the crates that this package depends on announced under this name, by crate.
fn announced(what: &str) -> impl Iterator<Item = (String, String)> {
    let suffix = format!("_{what}");
    env::vars().filter_map(move |(name, value)| {
        let name = name.strip_prefix("DEP_TPRIMAT_")?.strip_suffix(&suffix)?;
        Some((name.to_lowercase(), value))
    })
}

/// One digest of a crate's own sources and of what the crates that it depends on announced.
#[must_use]
pub fn folded(own: &str, dependencies: impl IntoIterator<Item = (String, String)>) -> String {
    let mut dependencies: Vec<_> = dependencies.into_iter().collect();
    dependencies.sort();
    let mut hasher = blake3::Hasher::new();
    hasher.update(own.as_bytes());
    for (name, code) in dependencies {
        hasher.update(format!("\n{name} {code}").as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

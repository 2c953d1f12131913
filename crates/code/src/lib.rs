//! For build scripts: a digest of the code that a crate can call.
//!
//! A crate whose code decides what a task makes has a `links` name and a build script that calls [`announce`]. The digest
//! covers the crate's own sources ([`sources`]) and the digests of the workspace crates that its manifest depends on. Cargo
//! itself hands those over, as `DEP_TPRIMAT_<CRATE>_CODE`, so nothing is listed by hand, and what is not listed in the
//! manifest cannot be called.

mod manifest;
mod sources;
mod tokens;

use std::{env, path::PathBuf};

pub use manifest::{dependencies, own_dependencies};
pub use sources::digest as own;

/// Computes the digest of the package whose build script calls this, and tells Cargo, which tells the crates that depend on it.
///
/// # Panics
///
/// Where a source cannot be read: a digest without it would mean nothing.
pub fn announce() {
    println!("cargo::metadata=code={}", of_package());
}

/// The digest of the package whose build script calls this.
#[must_use]
pub fn of_package() -> String {
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets it"));
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=build.rs");
    let codes = env::vars().filter_map(|(name, code)| {
        let name = name.strip_prefix("DEP_TPRIMAT_")?.strip_suffix("_CODE")?;
        Some((name.to_lowercase(), code))
    });
    folded(&own(&folder.join("src")), codes)
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

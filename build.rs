//! Build-time facts: digests of the sources that keys cover, and the shipped recipes and templates.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use sources::files;

mod sources;

/// What decides how this binary behaves.
const BUILD: &[&str] = &["Cargo.lock", "crates", "recipes", "src", "templates"];

/// Folders count with all below them. The pages are those of `tprimat help`.
const EMBEDDED: &[&str] = &[
    "recipes",
    "templates",
    "pipelines",
    "config.yaml",
    "MIGRATING.md",
    "docs/METRICS.md",
    "docs/NATIVE.md",
    "docs/SECURITY.md",
    "docs/answers.md",
    "docs/ci.md",
    "docs/config.md",
    "docs/executors.md",
    "docs/matrix.md",
    "docs/parallelism.md",
    "docs/recipes.md",
    "docs/remote.md",
    "docs/troubleshooting.md",
];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    for (name, paths) in [
        ("ANALYSIS", sources::ANALYSIS),
        ("NATIVE", sources::NATIVE),
        ("BUILD", BUILD),
    ] {
        let digest = sources::digest(&root, paths);
        println!("cargo::rustc-env=TPRIMAT_{name}={digest}");
    }
    // A path that is not there would run this again at every build.
    let is_there = |path: &&&str| root.join(path).exists();
    for path in BUILD.iter().chain(EMBEDDED).filter(is_there) {
        println!("cargo::rerun-if-changed={path}");
    }
    embed(&root);
    at_a_fixed_address();
}

/// Each run starts this program once more, as its supervisor. A program that may be loaded anywhere
/// first adjusts every pointer of its tables, which here takes longer than all else of its start.
fn at_a_fixed_address() {
    let is = |what: &str, value: &str| env::var(what).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}

/// Writes `embedded.rs`: a sorted table of (path, bytes).
fn embed(root: &Path) {
    let mut out = String::from("pub static FILES: &[(&str, &[u8])] = &[\n");
    for file in EMBEDDED.iter().flat_map(|p| files(root, p)) {
        let full = root.join(&file);
        out.push_str(&format!(
            "    ({file:?}, include_bytes!({:?})),\n",
            full.display().to_string()
        ));
    }
    out.push_str("];\n");
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("embedded.rs");
    #[expect(clippy::disallowed_methods, reason = "cargo owns OUT_DIR")]
    fs::write(target, out).expect("OUT_DIR is writable");
}

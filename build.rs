//! Build-time facts: digests of the sources and libraries that keys cover, and the shipped recipes
//! and templates.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// For each digest: the crate whose code makes what the task leaves, as its build script announced
/// it with all that it depends on; what of this crate does; and whether the libraries count that it
/// calls ([`tprimat_code::pins`]).
const CODE: &[(&str, &str, Option<&str>, bool)] = &[
    ("RENDER", "RENDER", None, true),
    ("PARSE", "RESULTS", None, false),
    ("IMPORT", "FIGURES", Some("src/import"), false),
    ("AGGREGATE", "FIGURES", None, false),
    ("COMPARE", "FIGURES", None, true),
    ("PLOT", "PLOT", None, true),
    ("REPORT", "REPORT", None, true),
];

/// What decides how a binary behaves besides its crates and libraries.
const ALL: &[&str] = &["src", "recipes", "templates"];

/// The trainer that ships with tprimat: its source is in its train keys, as a recipe's own program
/// is. No crate may depend on it, so its digest is taken from its folder, as its own build script
/// takes it.
const NATIVE: &str = "crates/native";

const LOCK: &str = "Cargo.lock";

const EMBEDDED: &[&str] = &["recipes", "templates", "pipelines", "config.yaml"];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    // Not there where tprimat is built as somebody's library: no task runs then that anybody keeps.
    let lock = fs::read_to_string(root.join(LOCK)).unwrap_or_default();
    for (name, room, here, with_libraries) in CODE {
        let here = here.map(|path| ("here".to_owned(), tprimat_code::own(&root.join(path))));
        let libraries = with_libraries.then(|| {
            (
                "libraries".to_owned(),
                pins(&lock, &announced(room, "LIBRARIES")),
            )
        });
        let code =
            tprimat_code::folded(&announced(room, "CODE"), here.into_iter().chain(libraries));
        println!("cargo::rustc-env=TPRIMAT_CODE_{name}={code}");
    }
    println!("cargo::rustc-env=TPRIMAT_CODE_ALL={}", all(&root, &lock));
    println!("cargo::rustc-env=TPRIMAT_CODE_NATIVE={}", native(&root));
    // A path that is not there would run this again at every build.
    let is_there = |path: &&&str| root.join(path).exists();
    for path in ["src", LOCK, NATIVE]
        .iter()
        .chain(EMBEDDED)
        .filter(is_there)
    {
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

/// What the build script of a crate that this one depends on says.
fn announced(room: &str, what: &str) -> String {
    let variable = format!("DEP_TPRIMAT_{room}_{what}");
    env::var(&variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: Cargo.toml does not name the crate"))
}

/// Digest of what pins these libraries, whose names commas separate.
fn pins(lock: &str, libraries: &str) -> String {
    let libraries: Vec<&str> = libraries.split(',').collect();
    blake3::hash(tprimat_code::pins(lock, &libraries).as_bytes())
        .to_hex()
        .to_string()
}

/// Digest of everything that this binary is made of.
fn all(root: &Path, lock: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    for file in ALL
        .iter()
        .flat_map(|path| files(root, path))
        .filter(|file| !is_of_tests(file))
    {
        hasher.update(file.as_bytes());
        hasher
            .update(blake3::hash(&fs::read(root.join(&file)).expect("listed just now")).as_bytes());
    }
    let mut rooms: Vec<_> = env::vars()
        .filter(|(name, _)| name.starts_with("DEP_TPRIMAT_"))
        .collect();
    rooms.sort();
    for (name, code) in rooms {
        hasher.update(format!("{name} {code}\n").as_bytes());
    }
    hasher.update(lock.as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// Digest of the native trainer. In a package without its sources nothing can have been built from
/// them, so no trainer answers to this one.
fn native(root: &Path) -> String {
    let Ok(manifest) = fs::read_to_string(root.join(NATIVE).join("Cargo.toml")) else {
        return "absent".to_owned();
    };
    let needed = tprimat_code::own_dependencies(&manifest).into_iter();
    let codes = needed.map(|name| (name.to_owned(), announced(&name.to_uppercase(), "CODE")));
    tprimat_code::folded(&tprimat_code::own(&root.join(NATIVE).join("src")), codes)
}

/// A snapshot that changed voids nobody's pictures.
fn is_of_tests(file: &str) -> bool {
    file.split('/')
        .any(|part| ["snapshots", "tests", "tests.rs"].contains(&part))
}

/// Files below `path` (or itself), relative to `root`, sorted; without Python's byte code.
fn files(root: &Path, path: &str) -> Vec<String> {
    let full = root.join(path);
    if full.is_file() {
        return vec![path.to_owned()];
    }
    // A path that is not there would be a digest of nothing, which never changes.
    let entries = fs::read_dir(&full).unwrap_or_else(|e| panic!("build.rs names {path}: {e}"));
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

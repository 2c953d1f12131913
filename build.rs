//! Build-time facts: digests of the sources and libraries that keys cover, and the shipped recipes and templates.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

#[path = "src/graph/libraries.rs"]
mod libraries;

/// Which sources decide what a task prints. A change in one of them makes that task stale, and nothing before it.
/// The analysis is one net of functions, so it counts as a whole.
const CODE: &[(&str, &[&str])] = &[
    ("RENDER", &["src/recipe/template.rs"]),
    ("PARSE", &["src/parse", "src/analyze", "src/plan/shape.rs", DERIVED]),
    ("IMPORT", &["src/import", "src/parse", "src/analyze", "src/plan/shape.rs"]),
    ("AGGREGATE", &["src/analyze", "src/plan/shape.rs", DERIVED]),
    ("COMPARE", &["src/analyze", "src/plan/shape.rs", "src/config/names.rs", DERIVED]),
    ("PLOT", &["src/report", "src/analyze", "src/plan/shape.rs", DERIVED]),
    ("REPORT", &["src/report", "src/analyze", "src/plan/shape.rs", "src/config/names.rs", DERIVED]),
    // The trainer that ships with tprimat: its source is in its train keys, as a recipe's own program is.
    ("NATIVE", &["src/bin/tprimat-native", "src/data/dataset.rs", "src/data/index.rs", "src/data/samples.rs"]),
    ("ALL", &["src", "recipes", "templates"]),
];

/// What hands a task its inputs and stores what it made.
const DERIVED: &str = "src/execute/derived.rs";

const LOCK: &str = "Cargo.lock";

const EMBEDDED: &[&str] = &["recipes", "templates", "pipelines", "config.yaml"];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    // Not there where tprimat is built as somebody's library: no task runs then that anybody keeps.
    let lock = fs::read_to_string(root.join(LOCK)).unwrap_or_default();
    for (name, paths) in CODE {
        let mut hasher = blake3::Hasher::new();
        for file in paths.iter().flat_map(|p| files(&root, p)).filter(|file| !is_of_tests(file)) {
            hasher.update(file.as_bytes());
            hasher.update(blake3::hash(&fs::read(root.join(&file)).expect("listed just now")).as_bytes());
        }
        if *name == "ALL" {
            hasher.update(lock.as_bytes());
        }
        if let Some((_, libraries)) = libraries::LIBRARIES.iter().find(|(digest, _)| digest == name) {
            hasher.update(libraries::pins(&lock, libraries).as_bytes());
        }
        println!("cargo::rustc-env=TPRIMAT_CODE_{name}={}", hasher.finalize().to_hex());
    }
    // A path that is not there would run this again at every build.
    let is_there = |path: &&&str| root.join(path).exists();
    for path in ["src", LOCK].iter().chain(EMBEDDED).filter(is_there) {
        println!("cargo::rerun-if-changed={path}");
    }
    embed(&root);
    #[cfg(feature = "native")]
    link_native();
}

/// A snapshot that changed voids nobody's pictures.
fn is_of_tests(file: &str) -> bool {
    file.split('/').any(|part| ["snapshots", "tests", "tests.rs"].contains(&part))
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
    names.iter().flat_map(|name| files(root, &format!("{path}/{name}"))).collect()
}

/// Writes `embedded.rs`: a sorted table of (path, bytes).
fn embed(root: &Path) {
    let mut out = String::from("pub static FILES: &[(&str, &[u8])] = &[\n");
    for file in EMBEDDED.iter().flat_map(|p| files(root, p)) {
        let full = root.join(&file);
        out.push_str(&format!("    ({file:?}, include_bytes!({:?})),\n", full.display().to_string()));
    }
    out.push_str("];\n");
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("embedded.rs");
    #[expect(clippy::disallowed_methods, reason = "cargo owns OUT_DIR")]
    fs::write(target, out).expect("OUT_DIR is writable");
}

/// Compiles the native trainer's shim against the libtorch that torch-sys found, and links it into that binary alone.
#[cfg(feature = "native")]
fn link_native() {
    const SHIM: &str = "src/bin/tprimat-native/shim.cpp";
    println!("cargo:rerun-if-changed={SHIM}");
    let Some(lib) = env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        panic!("torch-sys did not say where libtorch is; set LIBTORCH or LIBTORCH_USE_PYTORCH=1");
    };
    let include = lib.parent().map(|root| root.join("include")).unwrap_or_default();
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .warnings(false)
        .include(include)
        .file(SHIM)
        .cargo_metadata(false)
        .compile("tprimat_shim");
    let archive = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("libtprimat_shim.a");
    let argument = |text: String| println!("cargo:rustc-link-arg-bin=tprimat-native={text}");
    argument(archive.display().to_string());
    // The libtorch it was built with, unless LD_LIBRARY_PATH names another.
    argument(format!("-Wl,-rpath,{}", lib.display()));
}

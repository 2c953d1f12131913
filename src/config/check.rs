//! What types cannot say of a config: names that must be declared, and rates that must name their source.

use super::{framework_names, is_plain_name, layers::Config, parallelism, tree::Node, vendor_names};
use crate::{
    error::{Problem, nearest},
    plan::Vendor,
};

const SPECS: &str = "benchmarking.enhanced_metrics.hardware_specs";
const COSTS: &str = "benchmarking.enhanced_metrics.cloud_costs";
/// By how many of model, platform and framework are already named.
const NOBODY: [&str; 3] = [
    "no model, platform or framework is called so",
    "no platform or framework is called so",
    "no framework is called so",
];

pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    ids(config, &mut problems);
    vendors(config, &mut problems);
    platform_tables(config, &mut problems);
    peak_sources(config, &mut problems);
    parallelism_keys(config, &mut problems);
    problems
}

/// Ids stand in the names of cells and of files.
fn ids(config: &Config, problems: &mut Vec<Problem>) {
    for table in ["hardware.platforms", "models", "parallelism", "frameworks"] {
        for id in config.children(table).filter(|id| !is_plain_name(id)) {
            let message = format!("`{id}` in `{table}` cannot be a name");
            let problem = at_key(config, &format!("{table}.{id}"), message, "not a plain name");
            problems.push(problem.help("leave out spaces, quotes and / , @ # { } * ? [ ] !"));
        }
    }
}

fn vendors(config: &Config, problems: &mut Vec<Problem>) {
    for platform in config.children("hardware.platforms").filter(|platform| config.vendor(platform).is_none()) {
        let path = format!("hardware.platforms.{platform}");
        let problem = at_key(config, &path, format!("`{path}` has no vendor"), "whose hardware is it?");
        problems.push(problem.help("add `vendor: nvd`, `vendor: amd` or `vendor: cpu`"));
    }
}

/// Platforms by id, and the names of their vendors.
fn platform_names(config: &Config) -> Vec<&str> {
    let mut names: Vec<&str> = config.children("hardware.platforms").collect();
    for vendor in [Vendor::Nvd, Vendor::Amd, Vendor::Cpu] {
        names.extend(vendor_names(vendor));
    }
    names
}

fn platform_tables(config: &Config, problems: &mut Vec<Problem>) {
    let known = platform_names(config);
    for table in ["platform_optimizations", COSTS, SPECS] {
        for key in config.children(table).filter(|key| !known.contains(key)) {
            let message = format!("unknown platform `{key}` in `{table}`");
            let problem = at_key(config, &format!("{table}.{key}"), message, "no platform is called so");
            problems.push(problem.help(meant(key, &known, "declare it under `hardware.platforms`")));
        }
    }
}

fn peak_sources(config: &Config, problems: &mut Vec<Problem>) {
    for platform in config.children(SPECS) {
        let (peaks, source) = (format!("{SPECS}.{platform}.peak_flops"), format!("{SPECS}.{platform}.source"));
        let is_stated = config.children(&peaks).next().is_some();
        if is_stated && config.get(&source).and_then(|s| s.as_str()).is_none_or(|s| s.trim().is_empty()) {
            let problem = at_key(config, &peaks, format!("the peak rates of `{platform}` name no source"), "says who?");
            problems.push(problem.help(format!("add `{source}`: a data sheet or a measurement")));
        }
    }
}

/// Below a strategy: a model, then a platform, then a framework, each optional.
fn parallelism_keys(config: &Config, problems: &mut Vec<Problem>) {
    let models: Vec<&str> = config.children("models").collect();
    let platforms = platform_names(config);
    let frameworks: Vec<&str> = config.children("frameworks").collect();
    let levels = |key: &str| {
        let is_framework = frameworks.contains(&key) || !framework_names(key).is_empty();
        [models.contains(&key), platforms.contains(&key), is_framework]
    };
    parallelism::walk(&config.tree, |node: &Node<_>, level| {
        let key = node.key();
        let found = (level..3).find(|level| levels(key)[*level]);
        if found.is_none() {
            let (label, help) = if level == 3 || levels(key).contains(&true) {
                ("out of order", "the order is model, platform, framework".to_owned())
            } else {
                let known = [&models[..], &platforms, &frameworks][level..].concat();
                let otherwise = "declare it under `models`, `hardware.platforms` or `frameworks`";
                (NOBODY[level], meant(key, &known, otherwise))
            };
            problems.push(at_key(config, &node.path, format!("unknown key `{}`", node.path), label).help(help));
        }
        found.map(|level| level + 1)
    });
}

fn meant(key: &str, known: &[&str], otherwise: &str) -> String {
    nearest(key, known.iter().copied()).map_or_else(|| otherwise.to_owned(), |near| format!("did you mean `{near}`?"))
}

fn at_key(config: &Config, path: &str, message: String, label: impl Into<String>) -> Problem {
    if let Some(place) = config.place(path) {
        return Problem::new(message).at(&config.source, place.key, label);
    }
    // A key that a `--set` made: its first value says where.
    let made = config.children(path).next().map_or_else(|| path.to_owned(), |key| format!("{path}.{key}"));
    config.problem_at(&made, message, label)
}

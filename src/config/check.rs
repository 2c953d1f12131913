//! What types cannot say of a config: names that must be declared, and rates that must name their source.

use super::{framework_names, is_plain_name, layers::Config, parallelism, tree::Node, vendor_names};
use crate::{
    error::{Problem, nearest},
    plan::Vendor,
};

const SPECS: &str = "benchmarking.enhanced_metrics.hardware_specs";
const COSTS: &str = "benchmarking.enhanced_metrics.cloud_costs";

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

fn parallelism_keys(config: &Config, problems: &mut Vec<Problem>) {
    let models: Vec<&str> = config.children("models").collect();
    let platforms = platform_names(config);
    let frameworks: Vec<&str> = config.children("frameworks").collect();
    let is_framework = |key: &str| frameworks.contains(&key) || !framework_names(key).is_empty();
    parallelism::walk(&config.tree, |node: &Node<_>, level| {
        let key = node.key();
        let below = [level == 0 && models.contains(&key), level <= 1 && platforms.contains(&key), is_framework(key)];
        let level_below = below.iter().position(|is| *is).map(|level| level + 1).filter(|_| level < 3);
        if level_below.is_none() {
            let mut known: Vec<&str> = frameworks.clone();
            if level <= 1 {
                known.extend(&platforms);
            }
            if level == 0 {
                known.extend(&models);
            }
            let (message, label) = if level < 3 {
                (
                    format!("unknown key `{}`", node.path),
                    ["no model, platform or framework", "no platform or framework", "no framework"][level],
                )
            } else {
                (format!("`{}` is below a framework", node.path), "nothing is narrower than a framework")
            };
            let problem = at_key(config, &node.path, message, format!("{label} is called so"));
            problems.push(problem.help(meant(
                key,
                &known,
                "declare it under `models`, `hardware.platforms` or `frameworks`",
            )));
        }
        level_below
    });
}

fn meant(key: &str, known: &[&str], otherwise: &str) -> String {
    nearest(key, known.iter().copied()).map_or_else(|| otherwise.to_owned(), |near| format!("did you mean `{near}`?"))
}

fn at_key(config: &Config, path: &str, message: String, label: impl Into<String>) -> Problem {
    let span = config.place(path).map_or_else(|| config.nearest_span(path), |place| place.key);
    Problem::new(message).at(&config.source, span, label)
}

//! What types cannot say of a config: names that must be declared, and rates that must name their
//! source.

use serde_json::Value;

use super::{
    framework_names, is_plain_name, layers::Config, names::strings, parallelism, tree::Node,
    vendor_names, view::ALLOCATOR,
};
use crate::{
    error::{Problem, did_you_mean},
    job::Vendor,
};

const SPECS: &str = "benchmarking.enhanced_metrics.hardware_specs";
const COSTS: &str = "benchmarking.enhanced_metrics.cloud_costs";
const TARGET_LOSS: &str = "comparison.target_loss";
/// By how many of model, platform and framework are already named.
const NOBODY: [&str; 3] = [
    "no model, platform or framework has this name",
    "no platform or framework has this name",
    "no framework has this name",
];

pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    ids(config, &mut problems);
    vendors(config, &mut problems);
    platform_tables(config, &mut problems);
    platforms_of_frameworks(config, &mut problems);
    allocators(config, &mut problems);
    peak_sources(config, &mut problems);
    quantities(config, &mut problems);
    target_loss(config, &mut problems);
    parallelism_keys(config, &mut problems);
    problems
}

/// Ids stand in the names of cells and of files.
fn ids(config: &Config, problems: &mut Vec<Problem>) {
    for table in ["hardware.platforms", "models", "parallelism", "frameworks"] {
        for id in config.children(table).filter(|id| !is_plain_name(id)) {
            let message = format!("`{id}` in `{table}` cannot be a name");
            let problem = at_key(
                config,
                &format!("{table}.{id}"),
                message,
                "not a plain name",
            );
            problems.push(problem.help("leave out spaces, quotes and / , @ # { } * ? [ ] !"));
        }
    }
}

fn vendors(config: &Config, problems: &mut Vec<Problem>) {
    for platform in config
        .children("hardware.platforms")
        .filter(|platform| config.vendor(platform).is_none())
    {
        let path = format!("hardware.platforms.{platform}");
        let problem = at_key(
            config,
            &path,
            format!("`{path}` has no vendor"),
            "whose hardware is it?",
        );
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
            let problem = at_key(
                config,
                &format!("{table}.{key}"),
                message,
                "no platform has this name",
            );
            problems.push(problem.help(meant(
                key,
                &known,
                "declare it under `hardware.platforms`",
            )));
        }
    }
}

/// `frameworks.<id>.platforms` names platforms, or vendors.
fn platforms_of_frameworks(config: &Config, problems: &mut Vec<Problem>) {
    let known = platform_names(config);
    for framework in config.children("frameworks") {
        let path = format!("frameworks.{framework}.platforms");
        for name in config.get(&path).map(strings).unwrap_or_default() {
            if !known.contains(&name) {
                let problem = config.problem_at(
                    &path,
                    format!("unknown platform `{name}` in `{path}`"),
                    "no platform has this name",
                );
                problems.push(problem.help(meant(
                    name,
                    &known,
                    "declare it under `hardware.platforms`",
                )));
            }
        }
    }
}

/// One variable under two names must have one value.
fn allocators(config: &Config, problems: &mut Vec<Problem>) {
    for platform in config.children("platform_optimizations") {
        let (short, long) = (
            format!("platform_optimizations.{platform}.cuda_alloc_conf"),
            format!("platform_optimizations.{platform}.env.{ALLOCATOR}"),
        );
        if let (Some(a), Some(b)) = (config.get(&short), config.get(&long))
            && a != b
        {
            let message = format!("`{short}` and `{long}` say different things");
            problems.push(
                config
                    .problem_at(&short, message, "one variable")
                    .help("leave one of them out"),
            );
        }
    }
}

fn peak_sources(config: &Config, problems: &mut Vec<Problem>) {
    for platform in config.children(SPECS) {
        let source = format!("{SPECS}.{platform}.source");
        if config
            .get(&source)
            .and_then(|s| s.as_str())
            .is_some_and(|s| !s.trim().is_empty())
        {
            continue;
        }
        let peaks = format!("{SPECS}.{platform}.peak_flops");
        let tdp = format!("{SPECS}.{platform}.tdp_watts");
        let stated = [
            (
                config.children(&peaks).next().is_some(),
                &peaks,
                "the peak rates of",
                "name no source",
            ),
            (
                config.get(&tdp).is_some_and(|v| !v.is_null()),
                &tdp,
                "the TDP of",
                "has no source",
            ),
        ];
        for (_, path, what, lacks) in stated.iter().filter(|(is_stated, ..)| *is_stated) {
            let problem = at_key(
                config,
                path,
                format!("{what} `{platform}` {lacks}"),
                "state its source",
            );
            problems.push(problem.help(format!("add `{source}`: a data sheet or a measurement")));
        }
    }
}

/// A price of nothing divides by nothing, and a peak of 989 is in another unit.
fn quantities(config: &Config, problems: &mut Vec<Problem>) {
    const LEAST_PEAK: f64 = 1e9;
    let number = |path: &str| config.get(path).and_then(Value::as_f64);
    let mut refuse = |path: &str, message: String, help: String| {
        problems.push(
            config
                .problem_at(path, message, "not a quantity")
                .help(help),
        );
    };
    for platform in config.children(COSTS) {
        let path = format!("{COSTS}.{platform}.per_gpu_hour");
        if let Some(price) = number(&path).filter(|price| *price <= 0.0) {
            let help = "leave the platform out if you have no price for it".to_owned();
            refuse(
                &path,
                format!("`{path}` must be above 0, not {price}"),
                help,
            );
        }
    }
    for platform in config.children(SPECS) {
        let path = format!("{SPECS}.{platform}.tdp_watts");
        if let Some(watts) = number(&path).filter(|watts| *watts <= 0.0) {
            refuse(
                &path,
                format!("`{path}` must be above 0, not {watts}"),
                "watts of one device".to_owned(),
            );
        }
        let peaks = format!("{SPECS}.{platform}.peak_flops");
        for precision in config.children(&peaks) {
            let path = format!("{peaks}.{precision}");
            if let Some(peak) = number(&path).filter(|peak| *peak < LEAST_PEAK) {
                let help = format!("FLOP/s of one device, dense: {peak} TFLOP/s is {peak}e12");
                refuse(&path, format!("`{path}` is {peak} FLOP/s"), help);
            }
        }
    }
}

/// One loss for all models, or one for each.
fn target_loss(config: &Config, problems: &mut Vec<Problem>) {
    let models: Vec<&str> = config.children("models").collect();
    let mut check = |path: &str| {
        let Some(value) = config.get(path).filter(|v| !v.is_null()) else {
            return;
        };
        if value.as_f64().is_none_or(|loss| loss <= 0.0) {
            let problem = config.problem_at(
                path,
                format!("`{path}` must be a number above 0, not {value}"),
                "no loss",
            );
            problems.push(problem.help("nats per token, as trainers log it"));
        }
    };
    check(TARGET_LOSS);
    config
        .children(TARGET_LOSS)
        .for_each(|model| check(&format!("{TARGET_LOSS}.{model}")));
    for model in config
        .children(TARGET_LOSS)
        .filter(|model| !models.contains(model))
    {
        let message = format!("unknown model `{model}` in `{TARGET_LOSS}`");
        let problem = at_key(
            config,
            &format!("{TARGET_LOSS}.{model}"),
            message,
            "no model has this name",
        );
        problems.push(problem.help(meant(model, &models, "declare it under `models`")));
    }
}

/// Below a strategy: a model, then a platform, then a framework, each optional.
fn parallelism_keys(config: &Config, problems: &mut Vec<Problem>) {
    let models: Vec<&str> = config.children("models").collect();
    let platforms = platform_names(config);
    let frameworks: Vec<&str> = config.children("frameworks").collect();
    let levels = |key: &str| {
        let is_framework = frameworks.contains(&key) || !framework_names(key).is_empty();
        [
            models.contains(&key),
            platforms.contains(&key),
            is_framework,
        ]
    };
    parallelism::walk(&config.tree, |node: &Node<_>, level| {
        let key = node.key();
        let found = (level..3).find(|level| levels(key)[*level]);
        if found.is_none() {
            let (label, help) = if level == 3 || levels(key).contains(&true) {
                (
                    "out of order",
                    "the order is model, platform, framework".to_owned(),
                )
            } else {
                let known = [&models[..], &platforms, &frameworks][level..].concat();
                let otherwise = "declare it under `models`, `hardware.platforms` or `frameworks`";
                (NOBODY[level], meant(key, &known, otherwise))
            };
            problems.push(
                at_key(
                    config,
                    &node.path,
                    format!("unknown key `{}`", node.path),
                    label,
                )
                .help(help),
            );
        }
        found.map(|level| level + 1)
    });
}

fn meant(key: &str, known: &[&str], otherwise: &str) -> String {
    did_you_mean(key, known.iter().copied()).unwrap_or_else(|| otherwise.to_owned())
}

fn at_key(config: &Config, path: &str, message: String, label: impl Into<String>) -> Problem {
    if let Some(place) = config.place(path) {
        return Problem::new(message).at(&config.source, place.key, label);
    }
    // A key that a `--set` made: its first value says where.
    let made = config
        .children(path)
        .next()
        .map_or_else(|| path.to_owned(), |key| format!("{path}.{key}"));
    config.problem_at(&made, message, label)
}

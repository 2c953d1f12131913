//! What types cannot say of a config: names that must be declared, and rates that must name their
//! source.

use serde_json::Value;

use super::{
    framework_names, is_plain_name, layers::Config, parallelism, tree::Node, vendor_names,
    view::ALLOCATOR,
};
use crate::{
    error::{Problem, did_you_mean},
    job::Vendor,
};

const SPECS: &str = "benchmarking.enhanced_metrics.hardware_specs";
const COSTS: &str = "benchmarking.enhanced_metrics.cloud_costs";
const TARGET_LOSS: &str = "comparison.target_loss";
/// What is wrong with a key below a strategy that names nothing, by how many of model, platform and
/// framework stand above it.
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
        let stated = config.settings.frameworks.get(framework);
        for name in stated
            .and_then(|f| f.platforms.as_ref())
            .into_iter()
            .flatten()
        {
            if !known.contains(&name.as_str()) {
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
        let Some(spec) = config
            .settings
            .benchmarking
            .enhanced_metrics
            .hardware_specs
            .get(platform)
        else {
            continue;
        };
        let source = format!("{SPECS}.{platform}.source");
        if spec
            .source
            .as_ref()
            .is_some_and(|text| !text.trim().is_empty())
        {
            continue;
        }
        let peaks = format!("{SPECS}.{platform}.peak_flops");
        let tdp = format!("{SPECS}.{platform}.tdp_watts");
        let stated = [
            (
                !spec.peak_flops.is_empty(),
                &peaks,
                "the peak rates of",
                "name no source",
            ),
            (
                spec.tdp_watts.is_some(),
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
    let stated = &config.settings.benchmarking.enhanced_metrics;
    let mut refuse = |path: &str, message: String, help: String| {
        problems.push(
            config
                .problem_at(path, message, "not a quantity")
                .help(help),
        );
    };
    for (platform, cost) in &stated.cloud_costs {
        if let Some(price) = cost.per_gpu_hour.filter(|price| *price <= 0.0) {
            let path = format!("{COSTS}.{platform}.per_gpu_hour");
            let help = "leave the platform out if you have no price for it".to_owned();
            refuse(
                &path,
                format!("`{path}` must be above 0, not {price}"),
                help,
            );
        }
    }
    for (platform, spec) in &stated.hardware_specs {
        if let Some(watts) = spec.tdp_watts.filter(|watts| *watts <= 0.0) {
            let path = format!("{SPECS}.{platform}.tdp_watts");
            refuse(
                &path,
                format!("`{path}` must be above 0, not {watts}"),
                "watts of one device".to_owned(),
            );
        }
        for (precision, peak) in &spec.peak_flops {
            if *peak < LEAST_PEAK {
                let path = format!("{SPECS}.{platform}.peak_flops.{precision}");
                let help = format!("FLOP/s of one device, dense: {peak} TFLOP/s is {peak}e12");
                refuse(&path, format!("`{path}` is {peak} FLOP/s"), help);
            }
        }
    }
    for (platform, cost) in &stated.cloud_costs {
        let currency = &cost.currency;
        // It is part of names of columns; the letters are those of ISO 4217.
        if currency.len() != 3 || !currency.bytes().all(|b| b.is_ascii_alphabetic()) {
            let path = format!("{COSTS}.{platform}.currency");
            let message = format!("`{path}` must be a code of three letters, not `{currency}`");
            let problem = config.problem_at(&path, message, "no currency code");
            problems.push(problem.help("write EUR for euros, USD for US dollars"));
        }
    }
}

/// One loss for all models, or one for each.
fn target_loss(config: &Config, problems: &mut Vec<Problem>) {
    let models: Vec<&str> = config.children("models").collect();
    let mut check = |path: &str, value: &Value| {
        if value.as_f64().is_none_or(|loss| loss <= 0.0) {
            let problem = config.problem_at(
                path,
                format!("`{path}` must be a number above 0, not {value}"),
                "no loss",
            );
            problems.push(problem.help("nats per token, as trainers log it"));
        }
    };
    match &config.settings.comparison.target_loss {
        Value::Null => {}
        Value::Object(by_model) => by_model
            .iter()
            .for_each(|(model, loss)| check(&format!("{TARGET_LOSS}.{model}"), loss)),
        for_all => check(TARGET_LOSS, for_all),
    }
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

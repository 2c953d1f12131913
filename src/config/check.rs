//! What types cannot say of a config: names that must be declared, and rates that must name their
//! source.

use serde_json::Value;

use super::{
    layers::Config,
    names::{framework_names, is_plain_name, vendor_names},
    nested::join,
    parallelism::is_field,
    view::ALLOCATOR,
};
use crate::{
    error::{Problem, did_you_mean},
    job::Vendor,
};

const SPECS: &str = "benchmarking.enhanced_metrics.hardware_specs";
const COSTS: &str = "benchmarking.enhanced_metrics.cloud_costs";
const TARGET_LOSS: &str = "comparison.target_loss";
const DECLARE_PLATFORM: &str = "declare it under `hardware.platforms`";
/// What is wrong with a key below a strategy that names nothing, by how many of model, platform and
/// framework stand above it.
const NOBODY: [&str; 3] = [
    "no model, platform or framework has this name",
    "no platform or framework has this name",
    "no framework has this name",
];
/// FLOP/s; a peak of 989 is in another unit.
const LEAST_PEAK: f64 = 1e9;

pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut checker = Checker {
        config,
        models: config.children("models").collect(),
        platforms: platform_names(config),
        problems: Vec::new(),
    };
    checker.ids();
    checker.vendors();
    for table in ["platform_optimizations", COSTS, SPECS] {
        let platforms = checker.platforms.clone();
        checker.names("platform", table, &platforms, DECLARE_PLATFORM);
    }
    checker.platforms_of_frameworks();
    checker.allocators();
    checker.specs();
    checker.costs();
    checker.target_loss();
    for strategy in config.children("parallelism") {
        checker.blocks(&join("parallelism", strategy), 0);
    }
    checker.problems
}

/// Platforms by id, and the names of their vendors.
fn platform_names(config: &Config) -> Vec<&str> {
    let mut names: Vec<&str> = config.children("hardware.platforms").collect();
    for vendor in [Vendor::Nvd, Vendor::Amd, Vendor::Cpu] {
        names.extend(vendor_names(vendor));
    }
    names
}

struct Checker<'a> {
    config: &'a Config,
    models: Vec<&'a str>,
    platforms: Vec<&'a str>,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    /// A problem of the value at `path`.
    fn value(&mut self, path: &str, message: String, label: &str, help: impl Into<String>) {
        let problem = self.config.problem_at(path, message, label);
        self.problems.push(problem.help(help));
    }

    /// A problem of the key that `path` ends with.
    fn key(&mut self, path: &str, message: String, label: &str, help: impl Into<String>) {
        let problem = self.config.problem_at_key(path, message, label);
        self.problems.push(problem.help(help));
    }

    /// Ids stand in the names of cells and of files.
    fn ids(&mut self) {
        for table in ["hardware.platforms", "models", "parallelism", "frameworks"] {
            for id in self.config.children(table).filter(|id| !is_plain_name(id)) {
                let message = format!("`{id}` in `{table}` cannot be a name");
                let help = match id.rsplit_once('/') {
                    Some((_, own)) if table == "models" && is_plain_name(own) => {
                        format!("call it `{own}`; a matrix may say `{id}` all the same")
                    }
                    _ => "leave out spaces, quotes and / , @ # { } * ? [ ] !".to_owned(),
                };
                self.key(&join(table, id), message, "not a plain name", help);
            }
        }
    }

    fn vendors(&mut self) {
        for platform in self.config.children("hardware.platforms") {
            if self.config.vendor(platform).is_none() {
                let path = format!("hardware.platforms.{platform}");
                let message = format!("`{path}` has no vendor");
                let help = "add `vendor: nvd`, `vendor: amd` or `vendor: cpu`";
                self.key(&path, message, "whose hardware is it?", help);
            }
        }
    }

    /// The keys of a table must be among what is known.
    fn names(&mut self, what: &str, table: &str, known: &[&str], otherwise: &str) {
        for name in self.config.children(table) {
            if !known.contains(&name) {
                let message = format!("unknown {what} `{name}` in `{table}`");
                let label = format!("no {what} has this name");
                self.key(
                    &join(table, name),
                    message,
                    &label,
                    meant(name, known, otherwise),
                );
            }
        }
    }

    /// `frameworks.<id>.platforms` names platforms, or vendors.
    fn platforms_of_frameworks(&mut self) {
        for (framework, stated) in &self.config.settings.frameworks {
            for name in stated.platforms.iter().flatten() {
                if !self.platforms.contains(&name.as_str()) {
                    let path = format!("frameworks.{framework}.platforms");
                    let message = format!("unknown platform `{name}` in `{path}`");
                    let help = meant(name, &self.platforms, DECLARE_PLATFORM);
                    self.value(&path, message, "no platform has this name", help);
                }
            }
        }
    }

    /// One variable under two names must have one value.
    fn allocators(&mut self) {
        for platform in self.config.children("platform_optimizations") {
            let short = format!("platform_optimizations.{platform}.cuda_alloc_conf");
            let long = format!("platform_optimizations.{platform}.env.{ALLOCATOR}");
            if let (Some(a), Some(b)) = (self.config.get(&short), self.config.get(&long))
                && a != b
            {
                let message = format!("`{short}` and `{long}` say different things");
                self.value(&short, message, "one variable", "leave one of them out");
            }
        }
    }

    /// Figures of hardware need a source, and a unit.
    fn specs(&mut self) {
        for (platform, spec) in &self
            .config
            .settings
            .benchmarking
            .enhanced_metrics
            .hardware_specs
        {
            let of = |key: &str| format!("{SPECS}.{platform}.{key}");
            let source = spec.source.as_deref().unwrap_or_default();
            let help = format!("add `{}`: a data sheet or a measurement", of("source"));
            if source.trim().is_empty() && !spec.peak_flops.is_empty() {
                let message = format!("the peak rates of `{platform}` name no source");
                self.key(&of("peak_flops"), message, "state its source", &help);
            }
            if source.trim().is_empty() && spec.tdp_watts.is_some() {
                let message = format!("the TDP of `{platform}` has no source");
                self.key(&of("tdp_watts"), message, "state its source", &help);
            }
            if let Some(watts) = spec.tdp_watts.filter(|watts| *watts <= 0.0) {
                let path = of("tdp_watts");
                let message = format!("`{path}` must be above 0, not {watts}");
                self.value(&path, message, "not a quantity", "watts of one device");
            }
            for (precision, peak) in spec
                .peak_flops
                .iter()
                .filter(|(_, peak)| **peak < LEAST_PEAK)
            {
                let path = of(&format!("peak_flops.{precision}"));
                let message = format!("`{path}` is {peak} FLOP/s");
                let help = format!("FLOP/s of one device, dense: {peak} TFLOP/s is {peak}e12");
                self.value(&path, message, "not a quantity", help);
            }
        }
    }

    fn costs(&mut self) {
        for (platform, cost) in &self
            .config
            .settings
            .benchmarking
            .enhanced_metrics
            .cloud_costs
        {
            // A price of nothing divides by nothing.
            if let Some(price) = cost.per_gpu_hour.filter(|price| *price <= 0.0) {
                let path = format!("{COSTS}.{platform}.per_gpu_hour");
                let message = format!("`{path}` must be above 0, not {price}");
                let help = "leave the platform out if you have no price for it";
                self.value(&path, message, "not a quantity", help);
            }
            let currency = &cost.currency;
            // It is part of names of columns; the letters are those of ISO 4217.
            if currency.len() != 3 || !currency.bytes().all(|b| b.is_ascii_alphabetic()) {
                let path = format!("{COSTS}.{platform}.currency");
                let message = format!("`{path}` must be a code of three letters, not `{currency}`");
                let help = "write EUR for euros, USD for US dollars";
                self.value(&path, message, "no currency code", help);
            }
        }
    }

    /// One loss for all models, or one for each.
    fn target_loss(&mut self) {
        let stated = match &self.config.settings.comparison.target_loss {
            Value::Null => Vec::new(),
            Value::Object(by_model) => by_model
                .iter()
                .map(|(model, loss)| (join(TARGET_LOSS, model), loss))
                .collect(),
            for_all => vec![(TARGET_LOSS.to_owned(), for_all)],
        };
        for (path, loss) in stated {
            if loss.as_f64().is_none_or(|loss| loss <= 0.0) {
                let message = format!("`{path}` must be a number above 0, not {loss}");
                let help = "nats per token, as trainers log it";
                self.value(&path, message, "no loss", help);
            }
        }
        let models = self.models.clone();
        self.names("model", TARGET_LOSS, &models, "declare it under `models`");
    }

    /// Below a strategy: a model, then a platform, then a framework, each optional. `above`: how many
    /// of the three may no longer stand below the table.
    fn blocks(&mut self, table: &str, above: usize) {
        let config = self.config;
        let frameworks: Vec<&str> = config.children("frameworks").collect();
        for key in config.children(table).filter(|key| !is_field(key)) {
            let path = join(table, key);
            let levels = [
                self.models.contains(&key),
                self.platforms.contains(&key),
                frameworks.contains(&key) || !framework_names(key).is_empty(),
            ];
            if let Some(level) = (above..3).find(|level| levels[*level]) {
                self.blocks(&path, level + 1);
                continue;
            }
            let message = format!("unknown key `{path}`");
            if above == 3 || levels.contains(&true) {
                let help = "the order is model, platform, framework";
                self.key(&path, message, "out of order", help);
            } else {
                let known = [&self.models[..], &self.platforms, &frameworks][above..].concat();
                let otherwise = "declare it under `models`, `hardware.platforms` or `frameworks`";
                self.key(&path, message, NOBODY[above], meant(key, &known, otherwise));
            }
        }
    }
}

fn meant(key: &str, known: &[&str], otherwise: &str) -> String {
    did_you_mean(key, known.iter().copied()).unwrap_or_else(|| otherwise.to_owned())
}

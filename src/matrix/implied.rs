//! The matrix that config.yaml implies where nobody wrote one: its platforms × frameworks × models × the strategy.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    config::{Config, framework_named, framework_names, is_plain_name, strings, vendor_names},
    error::{Problem, Source, nearest},
};

/// What the caller's environment says of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Names of `$FRAMEWORKS`, in place of those of config.yaml.
    pub frameworks: &'a [String],
    /// Names of `$PARALLEL`, in place of `experiment.methodology`.
    pub strategies: &'a [String],
}

/// The text of the matrix file that `init --matrix` writes. Problems point at the variable or the line of config.yaml that
/// is wrong, for nobody has written the matrix.
pub fn implied(config: &Config, wanted: Wanted<'_>, recipes: &[&str]) -> Result<String, Vec<Problem>> {
    let problems = unknown_names(config, wanted, recipes);
    if !problems.is_empty() {
        return Err(problems);
    }
    let platforms: Vec<&str> = config.children("hardware.platforms").collect();
    let models: Vec<&str> = config.children("models").collect();
    let of_platforms: Vec<Vec<&str>> = platforms.iter().map(|id| frameworks_of(config, id, wanted)).collect();
    let mut frameworks: Vec<&str> = Vec::new();
    for framework in of_platforms.iter().flatten() {
        if !frameworks.contains(framework) {
            frameworks.push(framework);
        }
    }
    let strategies = strategies(config, wanted);
    for (what, is_empty, help) in [
        ("platform", platforms.is_empty(), "add `hardware: { platforms: { nvd: { num_gpus: 8 } } }`"),
        ("model", models.is_empty(), "add `models: { llama: { name: Llama 3.1 8B } }`"),
        ("framework", frameworks.is_empty(), "add `frameworks: { tran: {} }`, or set the variable FRAMEWORKS=tran"),
        ("strategy", strategies.is_empty(), "add `parallelism: { single: { num_gpus: 1, DP: 1 } }`"),
    ] {
        if is_empty {
            let message =
                format!("there is no matrix file, and {} implies none: it has no {what}", config.source_name());
            return Err(vec![Problem::new(message).help(help)]);
        }
    }
    let name = config.get("experiment.name").and_then(Value::as_str).filter(|name| is_plain_name(name));
    let mut text =
        "# The matrix that config.yaml implies: its platforms, frameworks, models and strategy.\n\n[matrix]\n"
            .to_owned();
    let _ = writeln!(text, "name        = {:?}", name.unwrap_or("matrix"));
    let axes = [("platform", &platforms), ("framework", &frameworks), ("model", &models), ("parallelism", &strategies)];
    for (axis, names) in axes {
        let _ = writeln!(text, "{axis:11} = {names:?}");
    }
    for (platform, own) in platforms.iter().zip(&of_platforms) {
        let others: Vec<&&str> = frameworks.iter().filter(|framework| !own.contains(framework)).collect();
        if !others.is_empty() {
            let _ = write!(
                text,
                "\n[[exclude]]\nwhere  = {{ platform = {platform:?}, framework = {others:?} }}\nreason = \"config.yaml does not name it for {platform}\"\n"
            );
        }
    }
    Ok(text)
}

/// Names of variables and of platforms that are no framework's or no strategy's.
fn unknown_names(config: &Config, wanted: Wanted<'_>, recipes: &[&str]) -> Vec<Problem> {
    let mut frameworks: Vec<&str> = config.children("frameworks").chain(recipes.iter().copied()).collect();
    let long: Vec<&str> = frameworks.iter().flat_map(|id| framework_names(id)).copied().collect();
    frameworks.extend(long);
    let strategies: Vec<&str> = config.children("parallelism").collect();
    let is_framework =
        |name: &str| frameworks.contains(&name) || framework_named(name).is_some_and(|id| frameworks.contains(&id));
    let help = |name: &str, known: &[&str], otherwise: &str| match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => otherwise.to_owned(),
    };
    let mut problems = Vec::new();
    for platform in config.children("hardware.platforms").filter(|_| wanted.frameworks.is_empty()) {
        let path = format!("hardware.platforms.{platform}.framework");
        let Some(name) = config.get(&path).and_then(Value::as_str).filter(|name| !is_framework(name)) else { continue };
        let problem = config.problem_at(&path, format!("unknown framework `{name}`"), "no recipe is called so");
        problems.push(problem.help(help(name, &frameworks, "`tprimat recipe list` names the recipes")));
    }
    let of_variable = |variable: &str, all: &[String], name: &str, what: &str| {
        let source = Source::new("environment", format!("{variable}={}", all.join(",")));
        let before: usize = all.iter().take_while(|other| *other != name).map(|other| other.len() + 1).sum();
        let at = variable.len() + 1 + before;
        Problem::new(format!("unknown {what} `{name}` in ${variable}")).at(&source, at..at + name.len(), "here")
    };
    for name in wanted.frameworks.iter().filter(|name| !is_framework(name)) {
        let problem = of_variable("FRAMEWORKS", wanted.frameworks, name, "framework");
        problems.push(problem.help(help(name, &frameworks, "`tprimat recipe list` names the recipes")));
    }
    for name in wanted.strategies.iter().filter(|name| !strategies.contains(&name.as_str())) {
        let problem = of_variable("PARALLEL", wanted.strategies, name, "strategy");
        let otherwise = format!("`parallelism` of config.yaml has {}", strategies.join(", "));
        problems.push(problem.help(help(name, &strategies, &otherwise)));
    }
    problems
}

/// The frameworks of a platform: its own one, and those of `frameworks` that are for all platforms or name it.
fn frameworks_of<'a>(config: &'a Config, platform: &str, wanted: Wanted<'a>) -> Vec<&'a str> {
    let canonical = |name: &'a str| framework_named(name).unwrap_or(name);
    if !wanted.frameworks.is_empty() {
        return wanted.frameworks.iter().map(|name| canonical(name)).collect();
    }
    let own = config.get(&format!("hardware.platforms.{platform}.framework")).and_then(Value::as_str);
    let mut frameworks: Vec<&str> = own.map(canonical).into_iter().collect();
    let vendor = config.vendor(platform).map_or(&[][..], vendor_names);
    for id in config.children("frameworks") {
        let is_its = config
            .get(&format!("frameworks.{id}.platforms"))
            .map(strings)
            .is_none_or(|names| names.iter().any(|name| *name == platform || vendor.contains(name)));
        if is_its && !frameworks.contains(&id) {
            frameworks.push(id);
        }
    }
    frameworks
}

/// `PARALLEL`, else the strategy that `experiment.methodology` names, else all.
fn strategies<'a>(config: &'a Config, wanted: Wanted<'a>) -> Vec<&'a str> {
    if !wanted.strategies.is_empty() {
        return wanted.strategies.iter().map(String::as_str).collect();
    }
    let declared: Vec<&str> = config.children("parallelism").collect();
    let chosen = config.get("experiment.methodology").and_then(Value::as_str);
    match chosen.filter(|name| declared.contains(name)) {
        Some(name) => vec![name],
        None => declared,
    }
}

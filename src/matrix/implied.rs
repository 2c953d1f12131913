//! The matrix that config.yaml implies where nobody wrote one: its platforms × frameworks × models
//! × the strategy.

use std::fmt::Write as _;

use super::select::glob;
use crate::{
    config::{Config, framework_named, framework_names, is_plain_name, vendor_names},
    error::{Problem, Source, did_you_mean, nearest},
};

/// What the caller's environment says of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImpliedNames<'a> {
    /// Names of `$FRAMEWORKS`, in place of those of config.yaml.
    pub frameworks: &'a [String],
    /// Names of `$PARALLEL`, in place of `experiment.methodology`.
    pub strategies: &'a [String],
}

/// The text of the matrix file that `init --matrix` writes. Problems point at the variable or the
/// line of config.yaml that is wrong, for nobody has written the matrix.
pub fn implied(
    config: &Config,
    wanted: ImpliedNames<'_>,
    recipes: &[&str],
) -> Result<String, Vec<Problem>> {
    let problems = unknown_names(config, wanted, recipes);
    if !problems.is_empty() {
        return Err(problems);
    }
    let known = |names: &[String], is_known: &dyn Fn(&str) -> bool| -> Vec<String> {
        names
            .iter()
            .filter(|name| is_known(name))
            .cloned()
            .collect()
    };
    let chosen: Vec<String> = strategies_named(config, wanted.strategies)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let wanted = ImpliedNames {
        frameworks: &known(wanted.frameworks, &|name| {
            is_framework(config, recipes, name)
        }),
        strategies: &chosen,
    };
    let platforms: Vec<&str> = config.children("hardware.platforms").collect();
    let models: Vec<&str> = config.children("models").collect();
    let of_platforms: Vec<Vec<&str>> = platforms
        .iter()
        .map(|id| frameworks_of(config, id, wanted))
        .collect();
    let mut frameworks: Vec<&str> = Vec::new();
    for framework in of_platforms.iter().flatten() {
        if !frameworks.contains(framework) {
            frameworks.push(framework);
        }
    }
    let strategies = strategies(config, wanted);
    for (what, is_empty, help) in [
        (
            "platform",
            platforms.is_empty(),
            "add `hardware: { platforms: { nvd: { num_gpus: 8 } } }`",
        ),
        (
            "model",
            models.is_empty(),
            "add `models: { llama: { name: Llama 3.1 8B } }`",
        ),
        (
            "framework",
            frameworks.is_empty(),
            "add `frameworks: { tran: {} }`, or set the variable FRAMEWORKS=tran",
        ),
        (
            "strategy",
            strategies.is_empty(),
            "add `parallelism: { single: { num_gpus: 1, DP: 1 } }`",
        ),
    ] {
        if is_empty {
            let message = format!(
                "there is no matrix file, and {} implies none: it has no {what}",
                config.source_name()
            );
            return Err(vec![Problem::new(message).help(help)]);
        }
    }
    let name = config.settings().experiment.name.as_deref();
    let name = name.filter(|name| is_plain_name(name));
    let mut text =
        "# The matrix that config.yaml implies: its platforms, frameworks, models and strategy.\n\n[matrix]\n"
            .to_owned();
    let _ = writeln!(text, "name        = {:?}", name.unwrap_or("matrix"));
    let axes = [
        ("platform", &platforms),
        ("framework", &frameworks),
        ("model", &models),
        ("parallelism", &strategies),
    ];
    for (axis, names) in axes {
        let _ = writeln!(text, "{axis:11} = {names:?}");
    }
    for (platform, own) in platforms.iter().zip(&of_platforms) {
        let others: Vec<&&str> = frameworks
            .iter()
            .filter(|framework| !own.contains(framework))
            .collect();
        if !others.is_empty() {
            let _ = write!(
                text,
                "\n[[exclude]]\nwhere  = {{ platform = {platform:?}, framework = {others:?} }}\nreason = \"config.yaml does not name it for {platform}\"\n"
            );
        }
    }
    Ok(text)
}

/// Is this the name of a recipe, or of a framework of config.yaml?
fn is_framework(config: &Config, recipes: &[&str], name: &str) -> bool {
    let is_id =
        |id: &str| recipes.contains(&id) || config.children("frameworks").any(|known| known == id);
    is_id(name) || framework_named(name).is_some_and(is_id)
}

/// Problems for unknown names in $FRAMEWORKS and $PARALLEL, a platform's `framework` and
/// `experiment.methodology`. A variable is set for many projects, so it may name some that this one
/// lacks, but not only such; selections judge it alike.
fn unknown_names(config: &Config, wanted: ImpliedNames<'_>, recipes: &[&str]) -> Vec<Problem> {
    let mut frameworks: Vec<&str> = config
        .children("frameworks")
        .chain(recipes.iter().copied())
        .collect();
    let long: Vec<&str> = frameworks
        .iter()
        .flat_map(|id| framework_names(id))
        .map(String::as_str)
        .collect();
    frameworks.extend(long);
    let is_framework = |name: &str| is_framework(config, recipes, name);
    let help = |name: &str, known: &[&str], otherwise: &str| {
        did_you_mean(name, known.iter().copied()).unwrap_or_else(|| otherwise.to_owned())
    };
    let mut problems = Vec::new();
    for platform in config
        .children("hardware.platforms")
        .filter(|_| wanted.frameworks.is_empty())
    {
        let Some(name) = framework_of(config, platform).filter(|name| !is_framework(name)) else {
            continue;
        };
        let problem = config.problem_at(
            &format!("hardware.platforms.{platform}.framework"),
            format!("unknown framework `{name}`"),
            "no recipe has this name",
        );
        problems.push(problem.help(help(
            name,
            &frameworks,
            "`tprimat recipe list` names the recipes",
        )));
    }
    let has_framework = wanted.frameworks.iter().any(|name| is_framework(name));
    for name in wanted.frameworks.iter().filter(|_| !has_framework) {
        let problem = of_variable("FRAMEWORKS", wanted.frameworks, name, "framework");
        problems.push(problem.help(help(
            name,
            &frameworks,
            "`tprimat recipe list` names the recipes",
        )));
    }
    problems.extend(unknown_strategies(config, wanted.strategies));
    problems.extend(methodology(config).filter(|_| wanted.strategies.is_empty()));
    problems
}

fn of_variable(variable: &str, all: &[String], name: &str, what: &str) -> Problem {
    let source = Source::new("environment", format!("{variable}={}", all.join(",")));
    let before: usize = all
        .iter()
        .take_while(|other| *other != name)
        .map(|other| other.len() + 1)
        .sum();
    let at = variable.len() + 1 + before;
    Problem::new(format!("unknown {what} `{name}` in ${variable}")).at(
        &source,
        at..at + name.len(),
        "here",
    )
}

/// The declared strategies that names of `$PARALLEL` mean, which are patterns as in a selection.
pub(super) fn strategies_named<'a>(config: &'a Config, names: &[String]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for pattern in names.iter().filter_map(|name| glob("PARALLEL", name).ok()) {
        for id in config.children("parallelism") {
            if pattern.is_match(id) && !found.contains(&id) {
                found.push(id);
            }
        }
    }
    found
}

/// Problems of a `$PARALLEL` that names no strategy of config.yaml, whether or not there is a
/// matrix file.
pub(super) fn unknown_strategies(config: &Config, names: &[String]) -> Vec<Problem> {
    if !strategies_named(config, names).is_empty() {
        return Vec::new();
    }
    let problem = |name: &String| {
        of_variable("PARALLEL", names, name, "strategy").help(nearest_strategy(config, name, ""))
    };
    names.iter().map(problem).collect()
}

/// `experiment.methodology` chooses a strategy, or describes in a text. One word that names no
/// strategy is a slip, and would multiply the matrix by all strategies.
fn methodology(config: &Config) -> Option<Problem> {
    const PATH: &str = "experiment.methodology";
    let text = config.settings().experiment.methodology.as_deref()?.trim();
    let strategies: Vec<&str> = config.children("parallelism").collect();
    let name = text.split_whitespace().collect::<Vec<_>>().join("_");
    let may_be_name = name == text || nearest(&name, strategies.iter().copied()).is_some();
    if text.is_empty() || strategies.is_empty() || strategies.contains(&text) || !may_be_name {
        return None;
    }
    let message = format!("unknown strategy `{text}` in `{PATH}`");
    let problem = config.problem_at(PATH, message, "no strategy has this name");
    Some(problem.help(nearest_strategy(
        config,
        &name,
        "; a text of several words only describes, and all of them are planned",
    )))
}

/// The strategy that was meant, or all of them and `more`.
fn nearest_strategy(config: &Config, name: &str, more: &str) -> String {
    did_you_mean(name, config.children("parallelism")).unwrap_or_else(|| {
        let known: Vec<&str> = config.children("parallelism").collect();
        format!(
            "`parallelism` of config.yaml has {}{more}",
            known.join(", ")
        )
    })
}

/// The framework that a platform names.
fn framework_of<'a>(config: &'a Config, platform: &str) -> Option<&'a str> {
    let platform = config.settings().hardware.platforms.get(platform)?;
    platform.framework.as_deref()
}

/// The frameworks of a platform: its own one, and those of `frameworks` that are for all platforms
/// or name it.
fn frameworks_of<'a>(config: &'a Config, platform: &str, wanted: ImpliedNames<'a>) -> Vec<&'a str> {
    let canonical = |name: &'a str| framework_named(name).unwrap_or(name);
    if !wanted.frameworks.is_empty() {
        return wanted
            .frameworks
            .iter()
            .map(|name| canonical(name))
            .collect();
    }
    let own = framework_of(config, platform);
    let mut frameworks: Vec<&str> = own.map(canonical).into_iter().collect();
    let vendor = config.vendor(platform).map_or(&[][..], vendor_names);
    for id in config.children("frameworks") {
        let stated = config.settings().frameworks.get(id);
        let platforms = stated.and_then(|framework| framework.platforms.as_ref());
        let is_its = platforms.is_none_or(|names| {
            let mut names = names.iter().map(String::as_str);
            names.any(|name| name == platform || vendor.contains(&name))
        });
        if is_its && !frameworks.contains(&id) {
            frameworks.push(id);
        }
    }
    frameworks
}

/// `PARALLEL`, else the strategy that `experiment.methodology` names, else all.
fn strategies<'a>(config: &'a Config, wanted: ImpliedNames<'a>) -> Vec<&'a str> {
    if !wanted.strategies.is_empty() {
        return wanted.strategies.iter().map(String::as_str).collect();
    }
    let declared: Vec<&str> = config.children("parallelism").collect();
    let chosen = config.settings().experiment.methodology.as_deref();
    match chosen.map(str::trim).filter(|name| declared.contains(name)) {
        Some(name) => vec![name],
        None => declared,
    }
}

//! What the form of recipe.toml cannot say: names and fields that nothing would ever find.

use std::{
    ops::Range,
    sync::{Arc, LazyLock},
};

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::{Constraint, RecipeFile, Require, file::FACTS};
use crate::{
    config::framework_names,
    error::{Error, Problem, Result, Source, did_you_mean},
    job::{Job, ModelShape, RopeScaling},
    logs::LogSection,
};

pub(super) fn check(file: &RecipeFile, source: &Arc<Source>) -> Result<()> {
    check_aliases(file, source)?;
    check_fields(file, source)?;
    check_optional(file, source)?;
    check_log(&file.log, source)?;
    check_facts(&file.lock.facts, source)?;
    check_modules(&file.require, source)
}

/// A fact that no host has would be in no key.
fn check_facts(facts: &[String], source: &Arc<Source>) -> Result<()> {
    let Some(fact) = facts.iter().find(|fact| !FACTS.contains(&fact.as_str())) else {
        return Ok(());
    };
    let problem = Problem::new(format!("no host has the fact `{fact}`"));
    let all = || format!("there are {}", FACTS.join(", "));
    let help = did_you_mean(fact, FACTS).unwrap_or_else(all);
    Err(at(source, fact, problem.help(help)))
}

/// A job with everything that one may have, as conditions see it.
static JOB: LazyLock<Value> = LazyLock::new(|| {
    let model = ModelShape {
        rope_scaling: Some(RopeScaling::default()),
        ..ModelShape::default()
    };
    let job = Job {
        model,
        ..Job::default()
    };
    serde_json::to_value(job).expect("a job is plain data")
});

fn check_fields(file: &RecipeFile, source: &Arc<Source>) -> Result<()> {
    let ignored = file.ignored.iter().map(|ignored| &ignored.field);
    check_job_fields(ignored, source)?;
    check_constraints(&file.unsupported, source)
}

/// A condition on a field that no job has, or that cannot be read, never holds: what it should
/// refuse would train.
pub(super) fn check_constraints(constraints: &[Constraint], source: &Arc<Source>) -> Result<()> {
    check_job_fields(constraints.iter().flat_map(|c| c.when.keys()), source)?;
    let mut values = constraints.iter().flat_map(|c| c.when.values());
    match values.find_map(Constraint::unreadable) {
        Some(condition) => {
            let problem = Problem::new(format!("`{condition}` is not a condition"));
            let help =
                "expected a value, a list of values, \">n\", \"<n\", \"*\", \"\" or { not = … }";
            Err(at(source, &condition, problem.help(help)))
        }
        None => Ok(()),
    }
}

fn check_job_fields<'f>(
    fields: impl Iterator<Item = &'f String>,
    source: &Arc<Source>,
) -> Result<()> {
    for field in fields {
        let pointer = format!("/{}", field.replace('.', "/"));
        // What is below `framework` is the recipe's own.
        if field.starts_with("framework.") || JOB.pointer(&pointer).is_some() {
            continue;
        }
        let mut fields = Vec::new();
        leaves(&JOB, "", &mut fields);
        let near = did_you_mean(field, fields.iter().map(String::as_str));
        let help = near.unwrap_or_else(|| "`tprimat print schema job` lists them".to_owned());
        let problem = Problem::new(format!("a job has no field `{field}`"));
        return Err(at(source, field, problem.help(help)));
    }
    Ok(())
}

/// The problem at the first place that has the text in quotes, or else at all.
fn at(source: &Arc<Source>, text: &str, problem: Problem) -> Error {
    let quoted = source.text.find(&format!("\"{text}\"")).map(|at| at + 1);
    let found = quoted.or_else(|| source.text.find(text));
    let span = found.map_or(0..0, |at| at..at + text.len());
    Error::invalid(problem.at(source, span, "here"))
}

/// Dotted paths of the single values of a job.
fn leaves(value: &Value, above: &str, found: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = if above.is_empty() {
            key.clone()
        } else {
            format!("{above}.{key}")
        };
        match value {
            Value::Object(_) => leaves(value, &path, found),
            _ => found.push(path),
        }
    }
}

/// Every other value of a job is needed to run it.
fn check_optional(file: &RecipeFile, source: &Arc<Source>) -> Result<()> {
    const LEARNING_RATE: &str = "training.optimizer.learning_rate";
    let Some(path) = file.optional.iter().find(|path| *path != LEARNING_RATE) else {
        return Ok(());
    };
    let problem = Problem::new(format!("`{path}` cannot be optional"));
    let help = format!("only `{LEARNING_RATE}` can");
    Err(at(source, path, problem.help(help)))
}

/// config.yaml and matrices know the aliases of shipped recipes only: another recipe's would be
/// names that nothing understands.
fn check_aliases(file: &RecipeFile, source: &Arc<Source>) -> Result<()> {
    let shipped = framework_names(&file.id);
    let Some(unknown) = file.aliases.iter().find(|name| !shipped.contains(name)) else {
        return Ok(());
    };
    let at = source.text.find("aliases").unwrap_or(0);
    let problem = Problem::new(format!(
        "`{unknown}` cannot be an alias of `{}`: aliases are for shipped recipes",
        file.id
    ));
    Err(Error::invalid(
        problem
            .at(source, at..at + "aliases".len(), "remove this name")
            .help(format!(
                "the recipe is called as its folder is: `{}`",
                file.id
            )),
    ))
}

/// A log section that no log can be read by is said now, not after hours of training.
fn check_log(log: &LogSection, source: &Arc<Source>) -> Result<()> {
    let Err(wrong) = log.check() else {
        return Ok(());
    };
    let mut path = vec!["log"];
    match wrong.at[..] {
        [] => path.push("format"),
        _ => path.extend(wrong.at.iter().map(String::as_str)),
    }
    let document = DeTable::parse(&source.text).ok();
    let span = document.map_or(0..0, |table| place(table.get_ref(), &path));
    let problem = Problem::new(wrong.message).at(source, span, "here");
    Err(Error::invalid(match wrong.help {
        Some(help) => problem.help(help),
        None => problem,
    }))
}

/// Where the value stands that keys and indices lead to, as far as they do.
fn place(table: &DeTable<'_>, path: &[&str]) -> Range<usize> {
    let Some(mut item) = table.get(path[0]) else {
        return 0..0;
    };
    for key in &path[1..] {
        let next = match item.get_ref() {
            DeValue::Table(table) => table.get(*key),
            DeValue::Array(list) => key.parse().ok().and_then(|at: usize| list.get(at)),
            _ => None,
        };
        let Some(next) = next else { break };
        item = next;
    }
    item.span()
}

/// A name that no import can have is never found, whatever is installed.
fn check_modules(require: &Require, source: &Arc<Source>) -> Result<()> {
    let at = |name: &str| {
        let quoted = format!("\"{name}\"");
        let start = source
            .text
            .find(&quoted)
            .or_else(|| source.text.find(name))
            .unwrap_or(0);
        start..start + name.len()
    };
    let is_identifier = |part: &str| {
        let mut letters = part.chars();
        letters
            .next()
            .is_some_and(|first| first.is_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    for name in &require.python_modules {
        if !name.split('.').all(is_identifier) {
            let problem = Problem::new(format!("`{name}` is not the name of a Python module"));
            let help = format!(
                "name it as `import` does, and what pip calls it in `pip = {{ … = \"{name}\" }}`"
            );
            return Err(Error::invalid(
                problem
                    .at(source, at(name), "no import can have this name")
                    .help(help),
            ));
        }
    }
    if let Some(name) = require
        .pip
        .keys()
        .find(|name| !require.python_modules.contains(name))
    {
        let problem = Problem::new(format!(
            "`pip` names `{name}`, which `python_modules` does not list"
        ));
        return Err(Error::invalid(problem.at(
            source,
            at(name),
            "not in python_modules",
        )));
    }
    Ok(())
}

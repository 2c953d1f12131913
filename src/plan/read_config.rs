//! config.yaml, with the shapes of models that it takes from other files.

use std::{io, path::Path};

use super::{PlanRequest, execution::not_an_executor};
use crate::{
    config::Config,
    error::{Error, Problem, Result, Source},
    files::{ReadSet, require_inside},
};

pub fn load_config(path: &Path, request: &PlanRequest) -> Result<Config> {
    match look_at_config(path, request)? {
        (Some(config), problems) if problems.is_empty() => Ok(config),
        (_, problems) => Err(Error::Invalid(problems)),
    }
}

/// What is right of a config.yaml, and all that is wrong with it. No config: it is not YAML.
pub fn look_at_config(
    path: &Path,
    request: &PlanRequest,
) -> Result<(Option<Config>, Vec<Problem>)> {
    read_config(path, request, &ReadSet::default())
}

pub(super) fn read_config(
    path: &Path,
    request: &PlanRequest,
    reads: &ReadSet,
) -> Result<(Option<Config>, Vec<Problem>)> {
    require_inside(path.parent().unwrap_or(path), path)?;
    let source = Source::new("config.yaml", read_text(path, reads)?);
    let (mut config, mut problems) = Config::read(source.clone(), &request.env, &request.sets);
    let platforms: Vec<String> = config
        .iter()
        .flat_map(|c| c.children("hardware.platforms").map(str::to_owned))
        .collect();
    if let Some(executor) = &request.executor {
        if let Some(problem) = not_an_executor(executor) {
            return Ok((None, vec![problem]));
        }
        let sets = platforms
            .iter()
            .map(|platform| format!("execution.{platform}.executor={executor}"));
        let sets: Vec<String> = request.sets.iter().cloned().chain(sets).collect();
        (config, problems) = Config::read(source, &request.env, &sets);
    }
    if let Some(config) = &mut config {
        for (model, file) in config.hf_configs() {
            if let Err(problem) = complete_from_hf(config, request, &model, &file, reads) {
                problems.push(problem);
            }
        }
    }
    Ok((config, problems))
}

/// Takes a model's shape from the file that its `hf_config` names, or from the `config.json` of the
/// folder that it names.
fn complete_from_hf(
    config: &mut Config,
    request: &PlanRequest,
    model: &str,
    file: &str,
    reads: &ReadSet,
) -> Result<(), Problem> {
    let mut path = request.root.join(file);
    if path.is_dir() {
        path = path.join("config.json");
    }
    let text = require_inside(&request.root, &path).and_then(|()| read_text(&path, reads));
    let text = text.map_err(|error| {
        let at = format!("models.{model}.hf_config");
        let (message, help) = match &error {
            Error::Invalid(problems) => (problems[0].message.clone(), problems[0].help.clone()),
            other => (other.to_string(), None),
        };
        Problem {
            help,
            ..config.problem_at(&at, message, "this file")
        }
    })?;
    config.complete_from_hf(model, file, &text)
}

pub(super) fn read_text(path: &Path, reads: &ReadSet) -> Result<String> {
    let text = reads.read_text(path);
    let text = text.and_then(|text| text.ok_or_else(|| io::ErrorKind::NotFound.into()));
    text.map_err(Error::io("cannot read", path))
}

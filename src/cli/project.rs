//! Common ground of the subcommands: the project root, the plan, the cache, the engine.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::json;

use super::args::{Common, Select};
use crate::{
    cache::Cache,
    error::{Error, Problem, Result},
    graph::{CodeDigests, Dag, Engine, Options},
    matrix::Selection,
    plan::{Plan, PlanRequest},
};

/// The nearest folder, from `at` upwards, with a config.yaml.
pub fn root(at: Option<&Path>) -> Result<PathBuf> {
    let start = at.map_or_else(std::env::current_dir, |dir| dir.canonicalize());
    let start = start.map_err(Error::io("cannot find the folder", at.unwrap_or(Path::new("."))))?;
    start.ancestors().find(|dir| dir.join("config.yaml").is_file()).map(Path::to_owned).ok_or_else(|| {
        let problem = Problem::new(format!("there is no config.yaml in {} or above it", start.display()));
        Error::invalid(problem.help("`tprimat init` writes a starter project"))
    })
}

/// The caller's environment, as far as it is text.
#[must_use]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

pub fn request(at: Option<&Path>, common: &Common) -> Result<PlanRequest> {
    let env = environment();
    let Select { only, skip, where_, shard, sets, repeats, allow_drift, .. } = common.select.clone();
    Ok(PlanRequest {
        root: root(at)?,
        matrix: common.matrix.clone(),
        sets,
        selection: Selection {
            only,
            skip,
            where_,
            shard: shard.as_deref().map(Selection::parse_shard).transpose()?,
            ..Selection::default()
        }
        .with_environment(&env),
        repeats,
        env,
        allow_drift,
    })
}

/// Where the cache of a project is.
#[must_use]
pub fn cache_dir(plan: &Plan) -> PathBuf {
    let name = plan.config.get("paths.cache").and_then(|v| v.as_str()).unwrap_or("cache");
    plan.root.join(name)
}

/// Settings of the later stages, as their keys cover them.
pub fn engine<'a>(plan: &'a Plan, dag: &'a Dag, cache: &'a Cache, common: &Common) -> Engine<'a> {
    let settings = crate::execute::derived::Settings::of(plan);
    Engine {
        plan,
        dag,
        cache,
        code: CodeDigests::default(),
        options: Options { retry_failed: common.select.retry_failed, force: common.select.force },
        compare_settings: json!(settings.compare),
    }
}

/// `CELL#2` → (`CELL`, 2).
pub fn split_repeat(text: &str) -> Result<(&str, Option<u32>)> {
    match text.split_once('#') {
        None => Ok((text, None)),
        Some((cell, repeat)) => match repeat.parse() {
            Ok(repeat) if repeat > 0 => Ok((cell, Some(repeat))),
            _ => Err(Error::invalid(
                Problem::new(format!("`#{repeat}` is not a repeat")).help("repeats count from 1: CELL#2"),
            )),
        },
    }
}

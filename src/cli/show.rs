//! `show CELL` → its summary; `show CELL#2` → one result.

use std::path::Path;

use super::{
    args::CellArgs,
    output::{print, print_json},
    project::{self, split_repeat},
};
use crate::{
    cache::{Cache, TaskKind},
    error::{Error, Result},
    graph::{Dag, State},
    plan::{Plan, Support},
};

/// YAML without the per-step series, which `--json` has.
fn for_people(mut value: serde_json::Value) -> Result<String> {
    fn strip(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(map) => {
                map.remove("curve");
                map.remove("steps");
                map.values_mut().for_each(strip);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    strip(&mut value);
    serde_yaml::to_string(&value).map_err(|e| Error::Cache(format!("cannot print: {e}")))
}

pub fn run(at: Option<&Path>, args: &CellArgs) -> Result<i32> {
    let plan = Plan::load(&project::request(at, &args.common)?)?;
    let (id, repeat) = split_repeat(&args.cell)?;
    let cell = plan.find(id)?;
    if let Support::Unsupported(why) = &plan.cells[cell].support {
        return Err(Error::Failed { message: format!("`{id}` is unsupported: {why}"), help: None });
    }
    if repeat.is_some_and(|r| r > plan.cells[cell].repeats) {
        let help = Some(format!("the matrix asks for {}; --repeats asks for more", plan.cells[cell].repeats));
        return Err(Error::NothingSelected { message: format!("`{}` is not among the repeats", args.cell), help });
    }
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &args.common);
    let statuses = engine.evaluate_all()?;
    let kind = if repeat.is_some() { TaskKind::Parse } else { TaskKind::Aggregate };
    let status = statuses.get(dag.node(kind, cell as u32, repeat.unwrap_or(0)));
    let bytes = match (status.state, status.outputs().first()) {
        (State::Fresh, Some(output)) => cache.get(&output.digest)?,
        _ => None,
    };
    let Some(bytes) = bytes else {
        let message = format!("there is no fresh result of `{}`", args.cell);
        return Err(Error::Failed {
            message,
            help: Some("`tprimat explain` says why; `tprimat build` makes it".into()),
        });
    };
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::Cache(format!("the record of `{}` is not readable: {e}", args.cell)))?;
    if args.common.json {
        print_json(&value)?;
    } else {
        print(&for_people(value)?)?;
    }
    Ok(crate::error::exit::OK)
}

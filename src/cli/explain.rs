//! `explain CELL`: what each task of a cell hangs on, and what changed since it last ran.

use std::{fmt::Write as _, path::Path};

use serde_json::{Value, json};

use super::{
    args::ExplainArgs,
    output::{print, print_json},
    plan::{rows, state_name},
    project::{self, split_repeat},
};
use crate::{
    cache::Cache,
    error::{Result, exit},
    graph::{Dag, changed_fields},
    plan::Plan,
};

pub fn run(at: Option<&Path>, args: &ExplainArgs) -> Result<i32> {
    let mut plan = Plan::load(&project::request(at, &args.common, None, &args.measured)?)?;
    let (id, repeat) = split_repeat(&args.cell)?;
    let wanted = plan.find(id)?;
    for (position, cell) in plan.cells.iter_mut().enumerate() {
        cell.selected = position == wanted;
    }
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let dag = Dag::new(&plan)?;
    let engine = project::planner(&plan, &dag, &cache, &args.insist);
    let statuses = engine.evaluate_all()?;
    let (mut text, mut values) = (String::new(), Vec::new());
    for row in rows(&engine, &statuses) {
        if row.cell.is_none() || repeat.is_some_and(|r| row.repeat != 0 && row.repeat != r) {
            continue;
        }
        let node = dag.node(row.kind, row.cell.unwrap_or(0) as u32, row.repeat);
        let preimage = engine.preimage(node, &statuses);
        let changes = match &preimage {
            Some(_) if state_name(row.state) != "fresh" => {
                changed_fields(&cache, row.kind, &row.label, || engine.present(node, &statuses))
            }
            _ => None,
        };
        let _ = writeln!(text, "{:<11}  {}  {}", state_name(row.state), row.label, row.reason);
        for change in changes.iter().flatten() {
            let _ = writeln!(text, "             {change}");
        }
        if repeat.is_some() {
            for line in preimage.iter().flat_map(|p| p.lines()) {
                let _ = writeln!(text, "             | {line}");
            }
        }
        values.push(json!({
            "id": row.label, "state": row.state, "reason": row.reason, "key": row.key,
            "changes": changes.unwrap_or_default(), "preimage": preimage,
        }));
    }
    if args.json {
        print_json(&Value::Array(values))?
    } else {
        print(&text)?
    }
    Ok(exit::OK)
}

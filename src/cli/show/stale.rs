//! `show CELL --stale`: what each task of a cell depends on, and what changed since it last ran.

use std::fmt::Write as _;

use serde_json::json;

use crate::{
    cli::{
        args::{Globals, ShowArgs},
        output::answer,
        plan::{mark_uncounted, rows},
        project::{self, split_repeat},
        session::Session,
    },
    error::{Result, exit},
    graph::{State, changed_fields, worded_of_task},
};

pub fn run(globals: &Globals, args: &ShowArgs) -> Result<i32> {
    args.overrides.refuse_measured()?;
    let request = project::request(globals, &args.common, None, &args.measured)?;
    let mut session = Session::open(request)?;
    let (id, repeat) = split_repeat(&args.cell)?;
    let wanted = session.plan.find(id)?;
    for (position, cell) in session.plan.cells.with_ids_mut() {
        cell.selected = position == wanted;
    }
    let engine = session.planner(&args.overrides);
    let statuses = engine.evaluate_all()?;
    session.tell_damage();
    let (mut text, mut values) = (String::new(), Vec::new());
    let mut rows = rows(&engine, &statuses);
    mark_uncounted(&engine, &statuses, &mut rows)?;
    for row in rows {
        if row.cell.is_none() || repeat.is_some_and(|r| row.repeat != 0 && row.repeat != r) {
            continue;
        }
        let node = engine
            .dag
            .node(row.kind, row.cell.unwrap_or_default(), row.repeat);
        let preimage = engine.preimage(node, &statuses);
        let changes = match &preimage {
            Some(_) if row.state != State::Fresh => {
                changed_fields(&engine, row.kind, &row.label, || {
                    engine.present(node, &statuses)
                })
            }
            _ => None,
        };
        let _ = writeln!(text, "{:<11}  {}  {}", row.word(), row.label, row.reason);
        // What a task before it will make is not known yet; that it runs is the reason.
        let mut known = changes.clone().unwrap_or_default();
        known.retain(|change| !row.follows || change.new.is_some());
        let told = worded_of_task(&known);
        // One change is the reason itself.
        if told.len() > usize::from(!row.follows) {
            for change in &told {
                let _ = writeln!(text, "             {}", change.words());
            }
        }
        if repeat.is_some() {
            for line in preimage.iter().flat_map(|p| p.lines()) {
                let _ = writeln!(text, "             | {line}");
            }
        }
        values.push(json!({
            "task": row.label, "state": row.state, "reason": row.reason, "key": row.key,
            "changes": changes.unwrap_or_default(), "preimage": preimage,
        }));
    }
    answer(globals, "explain", &json!({ "tasks": values }), || text)?;
    Ok(exit::OK)
}

//! `lock`: what tprimat.lock pins for the platforms of a matrix, where this host differs, and
//! `--update`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde_json::json;

use super::{
    args::{Globals, LockArgs},
    flags::Measured,
    output::answer,
    project,
};
use crate::{
    error::{Result, exit},
    host::FactDiff,
    job::Vendor,
    plan::Plan,
    recipe::Recipe,
};

pub fn run(globals: &Globals, args: &LockArgs) -> Result<i32> {
    let mut plan = Plan::load(&project::request(
        globals,
        &args.common,
        Some(&args.cells),
        &Measured::default(),
    )?)?;
    // Of each platform the frameworks of its cells.
    let mut by_platform: BTreeMap<&str, (Vendor, BTreeSet<&str>)> = BTreeMap::new();
    for (cell, _) in plan.cells.with_ids().filter(|(_, cell)| cell.selected) {
        let of = &plan.matrix.cells[cell];
        if let Some(prepared) = plan.prepared(cell) {
            let new = || (prepared.job().vendor, BTreeSet::new());
            let (_, ids) = by_platform.entry(&of.platform).or_insert_with(new);
            ids.insert(&of.framework);
        }
    }
    let recipes = by_platform.into_iter().map(|(platform, (vendor, ids))| {
        let recipes = ids.iter().map(|id| &plan.recipes.recipes[*id]);
        (platform.to_owned(), vendor, recipes.collect())
    });
    let recipes: Vec<(String, Vendor, Vec<&Recipe>)> = recipes.collect();
    let changes: Vec<(String, Vec<FactDiff>)> = if args.update {
        plan.facts.update(&recipes)?
    } else {
        let here = plan.facts.host().platforms();
        let drift = |(platform, vendor, recipes): &(String, Vendor, Vec<&Recipe>)| -> Result<_> {
            let differences = match here.iter().any(|(found, _)| found == vendor) {
                true => plan.facts.drift(platform, *vendor, recipes)?,
                false => Vec::new(),
            };
            Ok((platform.clone(), differences))
        };
        recipes.iter().map(drift).collect::<Result<_>>()?
    };
    let is_without_cells = recipes.is_empty();
    let row = |(platform, differences): &(String, Vec<FactDiff>)| json!({ "platform": platform, "differences": differences });
    let rows: Vec<_> = changes.iter().map(row).collect();
    let value = json!({ "updated": args.update, "platforms": rows });
    answer(globals, "lock", &value, || {
        text(&plan, args, &changes, is_without_cells)
    })?;
    Ok(exit::OK)
}

fn text(
    plan: &Plan,
    args: &LockArgs,
    changes: &[(String, Vec<FactDiff>)],
    is_without_cells: bool,
) -> String {
    let mut text = String::new();
    for (platform, diffs) in changes {
        let verb = if args.update { "changed" } else { "differs" };
        for diff in diffs {
            let show = |fact: &Option<crate::host::Fact>| {
                fact.as_ref()
                    .map_or_else(|| "nothing".to_owned(), |f| json!(f).to_string())
            };
            let _ = writeln!(
                text,
                "{platform}: {} {verb}: {} → {}",
                diff.name,
                show(&diff.locked),
                show(&diff.found)
            );
        }
        if diffs.is_empty() {
            let known = if plan.facts.lock().section(platform).is_some() {
                "as pinned, as far as this host can tell"
            } else {
                "not pinned yet; the first build pins it"
            };
            let _ = writeln!(text, "{platform}: {known}");
        }
    }
    if is_without_cells {
        let _ = writeln!(
            text,
            "no cell of {} is supported, so there is nothing to lock; `{}` says why",
            plan.matrix.name,
            plan.command("check", &[])
        );
    } else if changes.is_empty() {
        let _ = writeln!(
            text,
            "no platform of {} is this host's; `tprimat lock MATRIX --update` takes another matrix",
            plan.matrix.name
        );
    }
    text
}

//! `lock`: what tprimat.lock pins for the platforms of a matrix, where this host differs, and
//! `--update`.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::json;

use super::{
    args::{Globals, LockArgs},
    flags::Measured,
    output::{print, print_json},
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
    let mut by_platform: BTreeMap<String, (Vendor, Vec<String>)> = BTreeMap::new();
    for (position, _) in plan.cells.with_ids().filter(|(_, c)| c.selected) {
        let of = &plan.matrix.cells[position];
        let Some(prepared) = plan.prepared(position) else {
            continue;
        };
        let entry = by_platform
            .entry(of.platform.to_string())
            .or_insert_with(|| (prepared.job().vendor, Vec::new()));
        if !entry.1.contains(&of.framework.to_string()) {
            entry.1.push(of.framework.to_string());
        }
    }
    let recipes: Vec<(String, Vendor, Vec<&Recipe>)> = by_platform
        .iter()
        .map(|(platform, (vendor, ids))| {
            (
                platform.clone(),
                *vendor,
                ids.iter().map(|id| &plan.recipes.recipes[id]).collect(),
            )
        })
        .collect();
    let changes: Vec<(String, Vec<FactDiff>)> = if args.update {
        plan.facts.update(&recipes)?
    } else {
        let drift = |(platform, vendor, recipes): &(String, Vendor, Vec<&Recipe>)| -> Result<_> {
            let is_here = plan
                .facts
                .host()
                .platforms()
                .iter()
                .any(|(v, _)| v == vendor);
            Ok((
                platform.clone(),
                if is_here {
                    plan.facts.drift(platform, *vendor, recipes)?
                } else {
                    Vec::new()
                },
            ))
        };
        recipes.iter().map(drift).collect::<Result<_>>()?
    };
    if globals.json {
        let rows: Vec<_> = changes
            .iter()
            .map(|(platform, diffs)| json!({ "platform": platform, "differences": diffs }))
            .collect();
        print_json(
            "lock",
            &json!({ "updated": args.update, "platforms": rows }),
        )?;
        return Ok(exit::OK);
    }
    let mut text = String::new();
    for (platform, diffs) in &changes {
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
    if recipes.is_empty() {
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
    print(&text)?;
    Ok(exit::OK)
}

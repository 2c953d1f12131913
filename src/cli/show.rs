//! `show CELL` → its summary; `show CELL#2` → one result.

use std::path::Path;

use super::{
    args::ShowArgs,
    flags::Insist,
    output::{page, print, print_json},
    project::{self, split_repeat},
    render::Launch,
};
use crate::{
    cache::Cache,
    error::{Error, Result},
    execute::{
        derived,
        reading::{self, Reach},
    },
    graph::Dag,
    import::{self, Imports},
    plan::{Plan, Support},
    report,
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

pub fn run(at: Option<&Path>, args: &ShowArgs) -> Result<i32> {
    let plan = project::plan_or_imports(at, &args.common, &args.measured)?;
    let (asked, repeat) = split_repeat(&args.cell)?;
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let imports = Imports::of(&cache);
    let (id, cell) = project::named(&plan, &imports, asked)?;
    let id = id.as_str();
    let Some(cell) = cell else { return imported(&plan, &cache, &imports, id, args) };
    let has_imports = !imports.digests(id).is_empty();
    if has_imports && matches!(plan.cells[cell].support, Support::Unsupported(_)) {
        return imported(&plan, &cache, &imports, id, args);
    }
    if let Support::Unsupported(why) = &plan.cells[cell].support {
        return Err(Error::Failed { message: format!("`{id}` is unsupported: {why}"), help: None });
    }
    if repeat.is_some_and(|r| r > plan.cells[cell].repeats) {
        let help = Some(format!("the matrix asks for {}; --repeats asks for more", plan.cells[cell].repeats));
        return Err(Error::NothingSelected { message: format!("`{}` is not among the repeats", args.cell), help });
    }
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let seeds = reading::cell_seeds(&engine, &statuses, Reach::Everything)?;
    let found = match repeat {
        None => seeds[cell].measured(&cache)?.map(|(value, standing)| (value, standing.clone())),
        Some(repeat) => reading::repeat(&engine, &statuses, cell, repeat)?
            .and_then(|(result, standing)| Some((serde_json::to_value(result).ok()?, standing))),
    };
    let Some((mut value, standing)) = found else {
        if has_imports {
            return imported(&plan, &cache, &imports, id, args);
        }
        if repeat.is_none() && !args.json {
            eprintln!("note: nothing of `{id}` was measured; this is what `tprimat build` launches");
            print(&Launch::of(&plan, cell)?.text())?;
            return Ok(crate::error::exit::OK);
        }
        let help = "`tprimat plan` says why; `tprimat build` measures it; `tprimat render` shows what it launches";
        let message = format!("nothing of `{}` was measured", args.cell);
        return Err(Error::Failed { message, help: Some(help.into()) });
    };
    if has_imports {
        eprintln!("note: `{id}` has imports too; what was measured here is shown");
    }
    if args.json {
        if !standing.is_present() {
            value["standing"] = serde_json::json!(standing);
        }
        print_json(&value)?;
        return Ok(crate::error::exit::OK);
    }
    if repeat.is_none() {
        // Beside the other cells: that is where prices, peaks, speed-ups and scaling come from.
        let comparison = derived::compare_cells(seeds, &derived::Settings::of(&plan).compare, &cache)?;
        if let Some(text) = report::cell_text(&comparison, &plan.cells[cell].id, &page()) {
            print(&text)?;
            return Ok(crate::error::exit::OK);
        }
    }
    let standing: String = standing.words().iter().map(|words| format!("# {words}\n")).collect();
    let marks = standing + &contradictions(&value);
    print(&(marks + &for_people(value)?))?;
    Ok(crate::error::exit::OK)
}

/// Lines that stand above everything else: which repeats, or which fields of one, contradict the job.
fn contradictions(value: &serde_json::Value) -> String {
    let list = |value: &serde_json::Value, path: &str| value.pointer(path).and_then(|v| v.as_array()).cloned();
    let text = |value: &serde_json::Value, path: &str| value.pointer(path).map(ToString::to_string).unwrap_or_default();
    let mut lines = String::new();
    for repeat in list(value, "/repeats").unwrap_or_default().iter().filter(|r| r["status"]["status"] == "contradicted")
    {
        lines += &format!(
            "# CONTRADICTED, not counted: repeat {} in {}\n",
            repeat["repeat"],
            text(repeat, "/status/fields")
        );
    }
    let fields = list(value, "/attestation/fields").unwrap_or_default();
    for field in fields.iter().filter(|f| f["status"] == "contradicted") {
        let name = field["field"].as_str().unwrap_or_default();
        lines += &format!(
            "# CONTRADICTED {name}: asked for {}, ran {}\n",
            text(field, "/declared"),
            text(field, "/effective")
        );
    }
    lines
}

/// What the imports of a cell say; CELL#N is one of them.
fn imported(plan: &Plan, cache: &Cache, imports: &Imports, id: &str, args: &ShowArgs) -> Result<i32> {
    let (_, repeat) = split_repeat(&args.cell)?;
    let statistics = import::statistics(plan);
    let runs = import::runs(cache, imports, id, &import::claim_for(plan, id))?;
    match repeat {
        Some(n) => {
            let found = usize::try_from(n).ok().and_then(|n| runs.get(n - 1));
            let run = found.ok_or_else(|| Error::NothingSelected {
                message: format!("`{id}` has no import {n}"),
                help: Some(format!("there are {}", runs.len())),
            })?;
            if args.json {
                print_json(&labelled(&run.result, run)?)?
            } else {
                print(&import::tell(id, n as usize, run, &statistics))?;
            }
        }
        None => {
            let summary = import::summary(&runs, &statistics);
            if args.json {
                let from: Vec<_> = runs.iter().map(|r| &r.recorded).collect();
                let mut value = serde_json::to_value(&summary).map_err(|e| Error::Cache(e.to_string()))?;
                value["imported"] = serde_json::json!(from);
                print_json(&value)?;
            } else {
                print(&import::show(id, &runs, &summary, &statistics))?;
            }
        }
    }
    Ok(crate::error::exit::OK)
}

/// A result that says where it is from.
fn labelled(result: &crate::analyze::RunResult, run: &import::ImportedRun) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(result).map_err(|e| Error::Cache(e.to_string()))?;
    value["imported"] = serde_json::json!(run.recorded);
    Ok(value)
}

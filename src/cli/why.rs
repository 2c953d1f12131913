//! `why`: where the time of a step goes, from a profiler's trace; and from one trace to another.

use std::{fs::File, path::Path};

use serde_json::json;

use super::{
    args::{Globals, WhyArgs},
    build::profile,
    flags::{Common, Measured},
    output::{answer, page},
    project,
    session::Session,
};
use crate::{
    error::{Error, Result, exit},
    execute::{
        derived,
        reading::{self, FigureScope},
    },
    figures::{Breakdown, Row},
    import::Imports,
    logs, publish, report,
};

pub fn run(globals: &Globals, args: &WhyArgs) -> Result<i32> {
    let is_file = |name: &String| Path::new(name).is_file();
    let found = if args.names.iter().all(is_file) {
        let read = |name: &String| Ok((short(name), read(Path::new(name))?));
        args.names.iter().map(read).collect::<Result<Vec<_>>>()?
    } else {
        of_cells(globals, args)?
    };
    let breakdowns = found
        .iter()
        .map(|(name, of)| json!({ "name": name, "breakdown": of }));
    let value = json!({ "breakdowns": breakdowns.collect::<Vec<_>>() });
    answer(globals, "why", &value, || report::why_text(&found, &page()))?;
    Ok(exit::OK)
}

/// A file's own name, without what all such names end with.
fn short(path: &str) -> String {
    let name = Path::new(path)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let name = name.trim_end_matches(".gz").trim_end_matches(".json");
    name.trim_end_matches(".pt.trace").to_owned()
}

fn read(path: &Path) -> Result<Breakdown> {
    let file = File::open(path).map_err(Error::io("cannot read", path))?;
    let trace = logs::device_trace(file).map_err(|why| {
        Error::refused(
            format!("{}: the trace {why}", path.display()),
            "a trace is what `torch.profiler` exports (export_chrome_trace), or a build with --set experiment.profiling=torch",
        )
    })?;
    Ok(Breakdown::of(&trace))
}

/// Files and cells, each cell with the trace that a profiled build left and the step time that was measured.
fn of_cells(globals: &Globals, args: &WhyArgs) -> Result<Vec<(String, Breakdown)>> {
    let common = Common::of(args.matrix.clone(), args.sets.clone());
    let session = Session::open_or_imports(globals, &common, &Measured::default())?;
    let plan = &session.plan;
    let imports = Imports::of(&session.cache);
    let (engine, statuses) = session.look()?;
    let seeds = reading::cell_seeds(&engine, &statuses, FigureScope::Everything)?;
    let settings = crate::plan::CompareConfig::of(plan);
    let all: Vec<_> = seeds.into_iter().collect();
    let comparison =
        derived::compare_cells(all, &settings, &session.cache, super::output::leave_out)?;
    let one = |name: &String| {
        if Path::new(name).is_file() {
            return Ok((short(name), read(Path::new(name))?));
        }
        let (id, cell) = project::named(plan, &imports, name)?;
        let trace = cell
            .map(|cell| publish::output_dir(plan).join(profile::file_name(plan, cell) + ".json"));
        let Some(trace) = trace.filter(|trace| trace.is_file()) else {
            let build = plan.command(
                "build",
                &["--only", &id, "--set", "experiment.profiling=torch"],
            );
            return Err(Error::Failed {
                message: format!("`{id}` has no trace of a profiler"),
                help: Some(format!(
                    "`{build}` makes one; a trace from elsewhere is named by its path"
                )),
            });
        };
        let mut found = read(&trace)?;
        let row = comparison.rows.iter().find(|row| row.cell == id);
        found.measured_step_seconds = row.map(|row| row.step_time.mean_seconds);
        Ok((id, found))
    };
    let mut found = args.names.iter().map(one).collect::<Result<Vec<_>>>()?;
    let row_of = |(id, _): &(String, Breakdown)| comparison.rows.iter().find(|row| row.cell == *id);
    let rows: Option<Vec<&Row>> = found.iter().map(row_of).collect();
    if let Some(rows) = rows.filter(|rows| rows.len() > 1) {
        let names = report::short_names(&rows).into_iter();
        found = names.zip(found).map(|(name, (_, of))| (name, of)).collect();
    }
    Ok(found)
}

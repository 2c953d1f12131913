//! `why`: where the time of a step goes, from a profiler's trace; and from one trace to another.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use serde_json::json;

use super::{
    args::{Globals, WhyArgs},
    build::profile,
    flags::{Common, Measured},
    output::{answer, leave_out, page},
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
    logs::{self, DeviceTrace},
    plan::CompareConfig,
    publish, report,
};

pub fn run(globals: &Globals, args: &WhyArgs) -> Result<i32> {
    let mut args = args.clone();
    args.names.append(&mut args.traces);
    if args.names.len() > 2 {
        return Err(Error::refused(
            format!(
                "why takes one or two traces, and {} are named",
                args.names.len()
            ),
            "`tprimat why A B`",
        ));
    }
    let args = &args;
    let is_file = |name: &String| Path::new(name).is_file();
    let found = if args.names.iter().all(is_file) {
        let names = named_apart(&args.names).into_iter();
        let read = |(name, path): (String, &String)| Ok((name, read(Path::new(path), args)?));
        names
            .zip(&args.names)
            .map(read)
            .collect::<Result<Vec<_>>>()?
    } else {
        of_cells(globals, args)?
    };
    let breakdowns = found
        .iter()
        .map(|(name, of)| json!({ "name": name, "breakdown": of }));
    both_by_step(&found)?;
    let value = json!({ "breakdowns": breakdowns.collect::<Vec<_>>() });
    answer(globals, "why", &value, || report::why_text(&found, &page()))?;
    Ok(exit::OK)
}

/// Two are held against each other only where both have steps.
fn both_by_step(found: &[(String, Breakdown)]) -> Result<()> {
    let without = found.iter().find(|(_, of)| !of.is_by_step);
    match without {
        Some((name, _)) if found.len() > 1 => Err(Error::refused(
            format!("{name}: the trace marks no steps, so it cannot be held against another"),
            "`profiler.step()` after each step marks them, or --steps N says how many there are",
        )),
        _ => Ok(()),
    }
}

/// A file's own name, without what all such names end with.
fn short(path: &str) -> String {
    let name = Path::new(path)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let name = name.trim_end_matches(".gz");
    let name = name.trim_end_matches(".json").trim_end_matches(".csv");
    name.trim_end_matches(".pt.trace").to_owned()
}

/// The files' own names, or their paths where these are alike.
fn named_apart(paths: &[String]) -> Vec<String> {
    let names: Vec<String> = paths.iter().map(|path| short(path)).collect();
    match &names[..] {
        [a, b] if a == b => paths.to_vec(),
        _ => names,
    }
}

fn read(path: &Path, args: &WhyArgs) -> Result<Breakdown> {
    let mut trace = trace(path)?;
    if let Some(copies) = copies_beside(path) {
        trace.add(self::trace(&copies)?);
    }
    Ok(Breakdown::of(&trace, args.steps.map(NonZeroUsize::get)))
}

fn trace(path: &Path) -> Result<DeviceTrace> {
    let file = File::open(path).map_err(Error::io("cannot read", path))?;
    logs::device_trace(file).map_err(|why| {
        Error::refused(
            format!("{}: the trace {why}", path.display()),
            "`tprimat help answers` says which traces are read, and how each is made",
        )
    })
}

/// The table of copies that rocprofv3 wrote beside one of kernels, if it has a row below its header.
fn copies_beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let copies = name
        .contains("kernel_trace")
        .then(|| path.with_file_name(name.replace("kernel_trace", "memory_copy_trace")))?;
    let has_rows = BufReader::new(File::open(&copies).ok()?)
        .lines()
        .nth(1)
        .is_some();
    has_rows.then_some(copies)
}

/// What is neither a file nor has the form of a cell.
fn is_no_cell(name: &str) -> bool {
    [".json", ".gz", ".csv"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Files and cells, each cell with the trace that a profiled build left and the step time that was measured.
fn of_cells(globals: &Globals, args: &WhyArgs) -> Result<Vec<(String, Breakdown)>> {
    if let Some(name) = args
        .names
        .iter()
        .find(|name| is_no_cell(name) && !Path::new(name).is_file())
    {
        return Err(Error::refused(
            format!("{name}: no such file"),
            "name a trace that is there, or a cell",
        ));
    }
    let common = Common::of(args.matrix.clone(), args.sets.clone());
    let session = Session::open_or_imports(globals, &common, &Measured::default())?;
    let plan = &session.plan;
    let imports = Imports::of(&session.cache);
    let (engine, statuses) = session.look()?;
    let named = |name: &String| project::named(plan, &imports, name);
    let cells = args.names.iter().filter(|name| !Path::new(name).is_file());
    let ids: Vec<String> = cells
        .map(|name| Ok(named(name)?.0))
        .collect::<Result<_>>()?;
    let seeds = reading::cell_seeds(&engine, &statuses, FigureScope::Everything)?;
    let own = seeds
        .into_iter()
        .filter(|seed| ids.iter().any(|id| seed.cell() == id));
    let settings = CompareConfig::of(plan);
    let own: Vec<_> = own.collect();
    let comparison = derived::compare_cells(own, &settings, &session.cache, leave_out)?;
    let one = |name: &String| {
        if Path::new(name).is_file() {
            return Ok((short(name), read(Path::new(name), args)?));
        }
        let (id, cell) = named(name)?;
        let trace = cell
            .map(|cell| publish::output_dir(plan).join(profile::file_name(plan, cell) + ".json"));
        let Some(trace) = trace.filter(|trace| trace.is_file()) else {
            let build = plan.command(
                "build",
                &["--only", &id, "--set", "experiment.profiling=torch"],
            );
            let own = cell.filter(|cell| !profile::starts_torch(plan.recipe(*cell)));
            return Err(Error::failed_with(
                format!("`{id}` has no trace of a profiler"),
                match own {
                    Some(_) => "its trainer does not start torch's profiler by itself: let the script export a trace \
                         (`torch.profiler`, `export_chrome_trace`), and name that file"
                        .to_owned(),
                    None => format!("`{build}` makes one; a trace from elsewhere is named by its path"),
                },
            ));
        };
        let mut found = read(&trace, args)?;
        let row = comparison.rows.iter().find(|row| row.cell == id);
        // A trace from before the runs may be of another configuration.
        let written = std::fs::metadata(&trace).and_then(|of| of.modified());
        let written = written
            .ok()
            .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let is_of_these = |row: &&Row| {
            let mut starts = row.repeats.iter().filter_map(|repeat| repeat.started_at);
            let is_after = |at: Duration| starts.all(|start| at.as_secs_f64() > start);
            row.standing.is_present() && written.is_some_and(is_after)
        };
        if let Some(row) = row {
            if !is_of_these(&row) {
                eprintln!(
                    "note: `{id}`: its trace is older than its runs, or these are of an earlier configuration: the measured step is left out"
                );
            } else if found.is_by_step {
                found.measured_step_seconds = Some(row.step_time.mean_seconds);
            }
        }
        Ok((id, found))
    };
    let mut found = args.names.iter().map(one).collect::<Result<Vec<_>>>()?;
    let row_of = |(id, _): &(String, Breakdown)| comparison.rows.iter().find(|row| row.cell == *id);
    let rows: Option<Vec<&Row>> = found.iter().map(row_of).collect();
    if let Some([a, b]) = rows.as_deref()
        && a.group != b.group
    {
        eprintln!(
            "note: the two do not do the same work: `{}` says in what they differ",
            plan.command("compare", &[&a.cell, &b.cell])
        );
    }
    if let Some(rows) = rows.filter(|rows| rows.len() > 1) {
        let names = report::short_names(&rows).into_iter();
        found = names.zip(found).map(|(name, (_, of))| (name, of)).collect();
    }
    Ok(found)
}

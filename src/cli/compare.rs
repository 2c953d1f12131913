//! `compare`: the comparison of a matrix, or of two named cells, from what the cache has.

use std::path::Path;

use super::{
    args::{CompareArgs, CompareFormat},
    flags::{Common, Insist},
    output::{page, print, print_json},
    project,
};
use crate::{
    analyze,
    cache::Cache,
    error::{Error, Problem, Result, exit, nearest},
    execute::derived,
    graph::Dag,
    import::Imports,
    plan::Plan,
    report,
};

/// Refuses what no contract has.
pub fn check_across(across: &[String]) -> Result<()> {
    let Some(unknown) = across.iter().find(|f| !analyze::known_field(f)) else { return Ok(()) };
    let problem = Problem::new(format!("--across {unknown}: there is no such field of a contract"));
    let near = nearest(unknown, analyze::fields()).map(|near| format!("did you mean `{near}`?"));
    Err(Error::invalid(match near {
        Some(near) => problem.help(near),
        None => problem,
    }))
}

pub fn run(at: Option<&Path>, args: &CompareArgs) -> Result<i32> {
    check_across(&args.across)?;
    let (matrix, cells) = match args.names.as_slice() {
        [matrix] => (Some(matrix.clone()), &[][..]),
        [matrix, cells @ ..] if cells.len() == 2 => (Some(matrix.clone()), cells),
        cells => (None, cells),
    };
    let common = Common { matrix, sets: args.sets.clone() };
    let plan = Plan::load(&project::request(at, &common, None, &args.measured)?)?;
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let imports = Imports::of(&cache);
    // A cell that the matrix does not have may have been imported.
    let find = |id: &String| match plan.find(id) {
        Err(_) if !imports.digests(id).is_empty() => Ok(None),
        found => found.map(Some),
    };
    let named: Vec<Option<usize>> = cells.iter().map(find).collect::<Result<_>>()?;
    if let [a, b] = cells
        && a == b
    {
        return Err(Error::invalid(Problem::new(format!("`{a}` is compared with itself"))));
    }
    if let Some(baseline) = &args.baseline {
        find(baseline)?;
    }
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let mut settings = derived::Settings::of(&plan).compare;
    settings.settings.across.clone_from(&args.across);
    settings.settings.baseline.clone_from(&args.baseline);
    settings.settings.named = !named.is_empty();
    let mut seeds = derived::cell_seeds(&engine, &statuses);
    if !named.is_empty() {
        // In the order they were named: the first is the baseline.
        let mut taken: Vec<Option<derived::CellSeed>> = seeds.into_iter().map(Some).collect();
        let seed = |(id, cell): (&String, &Option<usize>)| match cell {
            Some(cell) => taken[*cell].take(),
            None => Some(derived::CellSeed::imported(&plan, id)),
        };
        seeds = cells.iter().zip(&named).filter_map(seed).collect();
    }
    let comparison = derived::compare_cells(seeds, &settings, &cache)?;
    match args.format() {
        CompareFormat::Table => print(&report::table(&comparison, &page()))?,
        CompareFormat::Markdown => print(&report::markdown(&comparison))?,
        CompareFormat::Csv => print(&report::csv(&comparison))?,
        CompareFormat::Json => print_json(&comparison)?,
    }
    // Two cells that were named and may not be compared are an answer, but not the one that was asked for.
    Ok(if settings.settings.named && (!comparison.comparable || comparison.rows.len() < 2) {
        exit::FAILED
    } else {
        exit::OK
    })
}

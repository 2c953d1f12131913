//! `compare`: the comparison of a matrix, or of two named cells, from what the cache has.

use std::path::Path;

use super::{
    args::{CompareArgs, CompareFormat},
    flags::{Common, Compared, Insist},
    output::{page, print, print_json},
    project,
};
use crate::{
    analyze::{self, Comparison},
    cache::Cache,
    error::{Error, Problem, Result, exit, nearest},
    execute::{
        derived,
        reading::{self, Reach},
    },
    graph::{Dag, Engine, Statuses},
    import::Imports,
    report,
};

pub fn run(at: Option<&Path>, args: &CompareArgs) -> Result<i32> {
    compared(at, &args.compared, |of| match args.format() {
        CompareFormat::Table => print(&report::table(of.comparison, &page())),
        CompareFormat::Markdown => print(&report::markdown(of.comparison)),
        CompareFormat::Csv => print(&report::csv(of.comparison)),
        CompareFormat::Json => print_json(of.comparison),
    })
}

/// A comparison and what it was made from.
pub struct Made<'a> {
    pub engine: &'a Engine<'a>,
    pub statuses: &'a Statuses,
    pub comparison: &'a Comparison,
    /// What was compared instead of a whole matrix: the cells that were named, or `imports`.
    pub named: &'a [String],
}

/// Compares what is asked for, shows it, and says with which code to exit.
pub fn compared(at: Option<&Path>, asked: &Compared, show: impl FnOnce(&Made) -> Result<()>) -> Result<i32> {
    check_across(&asked.across)?;
    let (matrix, named) = match asked.names.as_slice() {
        [matrix] => (Some(matrix.clone()), &[][..]),
        [matrix, cells @ ..] if cells.len() == 2 => (Some(matrix.clone()), cells),
        [matrix, _] if matrix.ends_with(".toml") => {
            let problem =
                Problem::new(format!("after the matrix `{matrix}` one cell is named, and a comparison needs two"));
            return Err(Error::invalid(problem));
        }
        cells => (None, cells),
    };
    let common = Common { matrix, sets: asked.sets.clone() };
    let plan = project::plan_or_imports(at, &common, &asked.measured)?;
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let imports = Imports::of(&cache);
    let find = |name: &String| project::named(&plan, &imports, name);
    let (named, places): (Vec<String>, Vec<Option<usize>>) =
        named.iter().map(find).collect::<Result<Vec<_>>>()?.into_iter().unzip();
    if let [a, b] = &named[..]
        && a == b
    {
        return Err(Error::invalid(Problem::new(format!("`{a}` is compared with itself"))));
    }
    let baseline = asked.baseline.as_ref().map(find).transpose()?.map(|(id, _)| id);
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let mut settings = derived::Settings::of(&plan).compare;
    settings.settings.across.clone_from(&asked.across);
    settings.settings.baseline = baseline;
    settings.settings.named = !named.is_empty();
    let mut seeds = reading::cell_seeds(&engine, &statuses, Reach::Everything)?;
    if !named.is_empty() {
        // In the order they were named: the first is the baseline.
        let mut taken: Vec<Option<derived::CellSeed>> = seeds.into_iter().map(Some).collect();
        let seed = |(id, cell): (&String, &Option<usize>)| match cell {
            Some(cell) => taken[*cell].take(),
            None => Some(derived::CellSeed::imported(&plan, id)),
        };
        seeds = named.iter().zip(&places).filter_map(seed).collect();
    }
    let is_of_one = !named.is_empty() || common.matrix.is_some();
    let is_of_imports = asked.imported
        || (!is_of_one && !seeds.iter().any(derived::CellSeed::has_run) && imports.cells().next().is_some());
    if is_of_imports {
        if !asked.imported && !plan.is_bare() {
            eprintln!(
                "note: no cell of the matrix `{}` has run yet; these are the imported cells. `tprimat compare {}` is of \
                 the matrix alone.",
                plan.matrix.name, plan.matrix.name
            );
        }
        seeds = imports.cells().map(|id| derived::CellSeed::imported(&plan, id)).collect();
    }
    let comparison = derived::compare_cells(seeds, &settings, &cache)?;
    let imported = ["imports".to_owned()];
    let shown = if is_of_imports { &imported[..] } else { &named[..] };
    show(&Made { engine: &engine, statuses: &statuses, comparison: &comparison, named: shown })?;
    // Two cells that were named and may not be compared are an answer, but not the one that was asked for.
    let is_refused = !named.is_empty() && (!comparison.comparable || comparison.rows.len() < 2);
    Ok(if is_refused { exit::FAILED } else { exit::OK })
}

/// Refuses what no contract has.
fn check_across(across: &[String]) -> Result<()> {
    let Some(unknown) = across.iter().find(|f| !analyze::known_field(f)) else { return Ok(()) };
    let problem = Problem::new(format!("--across {unknown}: contracts have no field of this name"));
    let all = || format!("one of {}", analyze::fields().collect::<Vec<_>>().join(", "));
    let help = nearest(unknown, analyze::fields()).map_or_else(all, |near| format!("did you mean `{near}`?"));
    Err(Error::invalid(problem.help(help)))
}

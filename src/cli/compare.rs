//! `compare`: the comparison of a matrix, or of some of its cells, from what the cache has.

use std::path::Path;

use super::{
    args::{CompareArgs, CompareFormat},
    flags::{Common, Compared, Insist, Part},
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
    matrix::{Cell, Selection},
    plan::Plan,
    report,
};

pub fn run(at: Option<&Path>, args: &CompareArgs) -> Result<i32> {
    compared(at, &args.compared, |of| match args.format() {
        CompareFormat::Table if args.details => print(&report::table(of.comparison, &page())),
        CompareFormat::Table => {
            let more = again(&args.compared);
            print(&report::glance(of.comparison, of.one_by_one, &more, &page()))
        }
        CompareFormat::Markdown => print(&report::markdown(of.comparison)),
        CompareFormat::Csv => print(&report::csv(of.comparison)),
        CompareFormat::Json => print_json(of.comparison),
    })
}

/// The same command, for all there is to say.
fn again(asked: &Compared) -> String {
    let mut words = vec!["tprimat", "compare"];
    words.extend(asked.names.iter().map(String::as_str));
    let part = &asked.part;
    let lists = [
        ("--only", &part.only),
        ("--skip", &part.skip),
        ("--where", &part.where_),
        ("--platform", &part.platform),
        ("--frameworks", &part.frameworks),
    ];
    for (option, values) in lists {
        words.extend(values.iter().flat_map(|value| [option, value]));
    }
    words.extend(asked.sets.iter().flat_map(|set| ["--set", set]));
    let across = asked.across.join(",");
    if !across.is_empty() {
        words.extend(["--across", &across]);
    }
    words.extend(asked.baseline.iter().flat_map(|cell| ["--baseline", cell]));
    words.extend(asked.imported.then_some("--imported"));
    words.push("--details");
    shlex::try_join(words).unwrap_or_else(|_| "tprimat compare --details".to_owned())
}

/// A comparison and what it was made from.
pub struct Made<'a> {
    pub engine: &'a Engine<'a>,
    pub statuses: &'a Statuses,
    pub comparison: &'a Comparison,
    /// What was compared instead of a whole matrix: the cells that were named, or `imports`.
    pub named: &'a [String],
    /// Each of these cells was named, not a part of a matrix.
    pub one_by_one: bool,
}

/// Compares what is asked for, shows it, and says with which code to exit.
pub fn compared(at: Option<&Path>, asked: &Compared, show: impl FnOnce(&Made) -> Result<()>) -> Result<i32> {
    check_across(&asked.across)?;
    let (matrix, names) = matrix_and_cells(asked.names.as_slice());
    let common = Common { matrix, sets: asked.sets.clone() };
    let plan = project::plan_or_imports(at, &common, &asked.measured)?;
    let cache = Cache::open(&project::cache_dir(&plan))?;
    let imports = Imports::of(&cache);
    let baseline =
        asked.baseline.as_ref().map(|name| project::named(&plan, &imports, name)).transpose()?.map(|(id, _)| id);
    let part = selection(&asked.part);
    // Imports have names of their own, which no matrix needs to have.
    let of_matrix = if asked.imported || plan.is_bare() { Selection::default() } else { part.clone() };
    let chosen = chosen(&plan, &imports, names, of_matrix)?;
    let named: Vec<String> = chosen.cells.iter().map(|(id, _)| id.clone()).collect();
    let dag = Dag::new(&plan)?;
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let mut settings = derived::Settings::of(&plan).compare;
    settings.settings.across.clone_from(&asked.across);
    settings.settings.baseline = baseline;
    settings.settings.named = chosen.one_by_one;
    let mut seeds = reading::cell_seeds(&engine, &statuses, Reach::Everything)?;
    if !named.is_empty() {
        // In the order they were named: the first is the baseline.
        let mut taken: Vec<Option<derived::CellSeed>> = seeds.into_iter().map(Some).collect();
        let seed = |(id, cell): &(String, Option<usize>)| match cell {
            Some(cell) => taken[*cell].take(),
            None => Some(derived::CellSeed::imported(&plan, id)),
        };
        seeds = chosen.cells.iter().filter_map(seed).collect();
    }
    let is_of_one = !names.is_empty() || common.matrix.is_some();
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
        let cells: Vec<Cell> = imports.cells().map(Cell::of_id).collect();
        let mut selected = part.select(&cells)?.into_iter();
        seeds = imports.cells().map(|id| derived::CellSeed::imported(&plan, id)).collect();
        seeds.retain(|_| selected.next().unwrap_or(false));
    }
    let comparison = derived::compare_cells(seeds, &settings, &cache)?;
    let imported = ["imports".to_owned()];
    let shown = if is_of_imports { &imported[..] } else { &named };
    let one_by_one = chosen.one_by_one && !is_of_imports;
    show(&Made { engine: &engine, statuses: &statuses, comparison: &comparison, named: shown, one_by_one })?;
    // Cells that were named and may not be compared are an answer, but not the one that was asked for.
    let is_refused = chosen.one_by_one && (!comparison.comparable || comparison.rows.len() < 2);
    Ok(if is_refused { exit::FAILED } else { exit::OK })
}

/// The matrix that is named before the cells, if one is: a cell's name or pattern has a slash and does not end with `.toml`.
fn matrix_and_cells(names: &[String]) -> (Option<String>, &[String]) {
    match names.split_first() {
        Some((first, cells)) if !first.contains('/') || first.ends_with(".toml") => (Some(first.clone()), cells),
        _ => (None, names),
    }
}

/// The cells that are compared; none where it is the whole matrix.
struct Chosen {
    /// Name, and place in the matrix where it has the cell.
    cells: Vec<(String, Option<usize>)>,
    /// Each was named: then an answer that leaves a pair out is not the one that was asked for.
    one_by_one: bool,
}

fn selection(part: &Part) -> Selection {
    let Part { only, skip, mut where_, platform, frameworks } = part.clone();
    where_.extend(platform.iter().map(|name| format!("platform={name}")));
    where_.extend(frameworks.iter().map(|name| format!("framework={name}")));
    Selection { only, skip, where_, ..Selection::default() }
}

fn chosen(plan: &Plan, imports: &Imports, names: &[String], selection: Selection) -> Result<Chosen> {
    if names.is_empty() {
        let is_whole = selection == Selection::default();
        let cells = if is_whole { Vec::new() } else { selected(plan, &selection)? };
        return Ok(Chosen { cells, one_by_one: false });
    }
    if selection != Selection::default() {
        let problem =
            Problem::new("cells are named, so --only, --skip, --where, --platform and --frameworks select nothing");
        return Err(Error::invalid(problem.help("name the cells or select them; a name may be a glob: 'nvd/*/llama'")));
    }
    let mut chosen = Chosen { cells: Vec::new(), one_by_one: true };
    for name in names {
        let path = name.split('@').next().unwrap_or_default();
        let is_pattern = name.contains(['*', '?', '{', '[']) || path.split('/').count() < 4;
        match project::named(plan, imports, name) {
            Ok((id, _)) if chosen.cells.iter().any(|(known, _)| *known == id) => {
                return Err(Error::invalid(Problem::new(format!("`{id}` is compared with itself"))));
            }
            Ok(cell) => chosen.cells.push(cell),
            Err(_) if is_pattern => {
                chosen.one_by_one = false;
                let matched = selected(plan, &Selection { only: vec![name.clone()], ..Selection::default() })?;
                for cell in matched {
                    if !chosen.cells.contains(&cell) {
                        chosen.cells.push(cell);
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    if let [(only, _)] = &chosen.cells[..] {
        let problem = Problem::new(format!("only one cell is named, `{only}`, and a comparison needs two"));
        return Err(Error::invalid(problem.help("name another one, or a glob; `tprimat show CELL` shows one cell")));
    }
    Ok(chosen)
}

/// The cells of the matrix that pass, each with its place.
fn selected(plan: &Plan, selection: &Selection) -> Result<Vec<(String, Option<usize>)>> {
    let selected = selection.select(&plan.matrix.cells)?;
    let cells = selected.into_iter().enumerate().filter(|(_, selected)| *selected);
    Ok(cells.map(|(at, _)| (plan.cells[at].id.clone(), Some(at))).collect())
}

/// Refuses what no contract has.
fn check_across(across: &[String]) -> Result<()> {
    let Some(unknown) = across.iter().find(|f| !analyze::known_field(f)) else { return Ok(()) };
    let problem = Problem::new(format!("--across {unknown}: contracts have no field of this name"));
    let all = || format!("one of {}", analyze::fields().collect::<Vec<_>>().join(", "));
    let help = nearest(unknown, analyze::fields()).map_or_else(all, |near| format!("did you mean `{near}`?"));
    Err(Error::invalid(problem.help(help)))
}

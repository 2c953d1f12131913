//! `compare`: the comparison of a matrix, or of some of its cells, from what the cache has.

use std::{collections::BTreeSet, path::Path};

use indexmap::IndexSet;

use super::{
    args::{CompareArgs, CompareFormat, Globals, ImportArgs},
    flags::{Common, Compared, Filters, is_matrix, matrix_and_cells},
    import,
    output::{leave_out, page, print, print_document},
    project,
    session::Session,
};
use crate::{
    error::{Error, Problem, Result, did_you_mean, exit},
    execute::{
        derived,
        reading::{self, FigureScope},
    },
    figures::{Comparison, ComparisonDocument, Row},
    graph::{Engine, Statuses},
    import::Imports,
    matrix::{Cell, CellId, PerCell, Selection},
    plan::{CompareConfig, Plan, command_line},
    report::{self, SpeedVerdict},
};

/// So many reasons are told of a comparison that is none.
const MOST_REASONS: usize = 4;

pub fn run(globals: &Globals, args: &CompareArgs) -> Result<i32> {
    // What an import says is text as well, so only a table follows it.
    if let [folder] = &args.compared.names[..]
        && is_folder(folder)
        && matches!(args.format(globals.json), CompareFormat::Table)
    {
        let cells = import::imported(globals, &ImportArgs::of_folder(folder))?;
        print("\n")?;
        let mut args = args.clone();
        args.compared.names.clear();
        args.compared.imported = true;
        args.compared.of_folder = Some(cells);
        return run(globals, &args);
    }
    compared(globals, &args.compared, |of| {
        match args.format(globals.json) {
            CompareFormat::Table if args.details => print(&report::table(of.comparison, &page())),
            CompareFormat::Table => {
                let plan = of.engine.plan;
                let commands = report::Commands {
                    details: again(),
                    build: plan.command("build", &[]),
                    can_run: Some(can_run(plan, of.comparison)),
                    plan: plan.command("plan", &[]),
                };
                print(&report::glance(
                    of.comparison,
                    of.one_by_one,
                    &commands,
                    &page(),
                ))
            }
            CompareFormat::Markdown => print(&report::markdown(of.comparison)),
            CompareFormat::Csv => print(&report::csv(of.comparison)),
            CompareFormat::Json => print_document(&ComparisonDocument::of(of.comparison)),
        }
    })
}

/// Results of somebody else: a folder, as a shell completes its name or spelt as a path. Where there is
/// no project, no other name can be meant; in one, `amd` is a part of cells.
fn is_folder(name: &str) -> bool {
    let is_path = name.ends_with('/') || name.starts_with(['.', '/']);
    Path::new(name).is_dir() && (is_path || !Path::new("config.yaml").exists())
}

/// Could a build on this host measure one of the cells that are absent?
pub fn can_run(plan: &Plan, comparison: &Comparison) -> bool {
    comparison.absent.iter().any(|absent| {
        let cell = plan.find(&absent.cell).ok();
        cell.is_some_and(|cell| plan.why_not_run(cell).is_none())
    })
}

/// The same command with every figure.
fn again() -> String {
    let typed = std::env::args_os().skip(1);
    let typed: Vec<String> = typed
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words = ["tprimat"]
        .into_iter()
        .chain(typed.iter().map(String::as_str));
    command_line(words.chain(["--details"]))
}

/// A comparison and what it was made from.
pub struct ComparisonView<'a> {
    pub engine: &'a Engine<'a>,
    pub statuses: &'a Statuses,
    pub comparison: &'a Comparison,
    /// What was compared instead of a whole matrix: the cells that were named, or `imports`.
    pub named: &'a [String],
    pub is_of_imports: bool,
    /// Each of these cells was named, not a part of a matrix.
    pub one_by_one: bool,
}

/// Compares what is asked for, shows it, and says with which code to exit.
pub fn compared(
    globals: &Globals,
    asked: &Compared,
    show: impl FnOnce(&ComparisonView) -> Result<()>,
) -> Result<i32> {
    check_across(&asked.across)?;
    // The first segments of a cell's name have no slash either, so a matrix behind cells is a file.
    let is_file = |word: &str| word.ends_with(".toml");
    let (matrix, names) = matrix_and_cells(&asked.names, &asked.matrix, is_matrix, is_file)?;
    let common = Common::of(matrix, asked.sets.clone());
    if let Some(folder) = asked.names.iter().find(|name| is_folder(name)) {
        return Err(Error::refused(
            format!("`{folder}` is a folder, and no cell"),
            format!(
                "`tprimat import {folder}` reads the results and logs in it; then `tprimat compare` compares them"
            ),
        ));
    }
    let session = Session::open_or_imports(globals, &common, &asked.measured)?;
    let Session { plan, cache, .. } = &session;
    let imports = Imports::of(cache);
    let baseline = asked
        .baseline
        .as_ref()
        .map(|name| project::named(plan, &imports, name))
        .transpose()?
        .map(|(id, _)| id);
    let part = selection(&asked.part);
    // Imports have names of their own, which no matrix needs to have.
    let of_matrix = if asked.imported || plan.is_bare() {
        Selection::default()
    } else {
        part.clone()
    };
    let chosen = chosen(plan, &imports, names, of_matrix)?;
    let named: Vec<String> = chosen.cells.iter().map(|(id, _)| id.clone()).collect();
    let (engine, statuses) = session.look()?;
    let mut settings = CompareConfig::of(plan);
    if !asked.across.is_empty() {
        settings.settings.across.clone_from(&asked.across);
    }
    settings.settings.baseline.clone_from(&baseline);
    settings.settings.named = chosen.one_by_one;
    let all = reading::cell_seeds(&engine, &statuses, FigureScope::Everything)?;
    let mut seeds: Vec<derived::CellSeed> = if named.is_empty() {
        all.into_iter().collect()
    } else {
        // In the order they were named: the first is the baseline.
        let mut taken: PerCell<Option<_>> = all.into_iter().map(Some).collect();
        let seed = |(id, cell): &(String, Option<CellId>)| match cell {
            Some(cell) => taken[*cell].take(),
            None => Some(derived::CellSeed::imported(plan, id)),
        };
        chosen.cells.iter().filter_map(seed).collect()
    };
    let is_of_one = !names.is_empty() || common.matrix().is_some();
    let is_of_imports = asked.imported
        || (!is_of_one
            && !seeds.iter().any(derived::CellSeed::has_run)
            && imports
                .cells()
                .any(|cell| !seeds.iter().any(|seed| seed.cell() == cell)));
    if is_of_imports {
        if !asked.imported && !plan.is_bare() {
            eprintln!(
                "note: no cell of the matrix `{}` has run yet; these are the imported cells. With its file named, the comparison \
                 is of the matrix alone.",
                plan.matrix.name
            );
        }
        // What a matrix compares across is said of its own cells.
        settings.settings.across.clone_from(&asked.across);
        let cells: Vec<Cell> = imports.kept_cells().map(Cell::of_id).collect();
        let mut selected = part.select(&cells)?.into_iter();
        seeds = imports
            .kept_cells()
            .map(|id| derived::CellSeed::imported(plan, id))
            .collect();
        seeds.retain(|_| selected.next().unwrap_or(false));
        if let Some(of_folder) = &asked.of_folder {
            seeds.retain(|seed| of_folder.contains(seed.cell()));
        }
    }
    if let Some(baseline) = baseline.filter(|id| !seeds.iter().any(|seed| seed.cell() == id)) {
        return Err(Error::refused(
            format!("--baseline: `{baseline}` is not among the cells that are compared"),
            "name it with the others, or leave --baseline out",
        ));
    }
    let comparison = derived::compare_cells(seeds, &settings, cache, leave_out)?;
    check_stated(&asked.across, &comparison)?;
    let imported = ["imports".to_owned()];
    let shown = if is_of_imports { &imported[..] } else { &named };
    let one_by_one = chosen.one_by_one && !is_of_imports;
    show(&ComparisonView {
        engine: &engine,
        statuses: &statuses,
        comparison: &comparison,
        named: shown,
        is_of_imports,
        one_by_one,
    })?;
    // Cells that were named and may not be compared are an answer, but not the one that was asked
    // for.
    let is_compared = |row: &Row| row.same_runs_as.is_none() && row.impossible().is_none();
    let is_refused = chosen.one_by_one
        && (!comparison.comparable
            || comparison.rows.len() < 2
            || !comparison.rows.iter().all(is_compared));
    Ok(if is_refused || comparison.rows.is_empty() {
        exit::FAILED
    } else {
        exit::OK
    })
}

/// Why a comparison is not the one that was asked for, in sentences.
pub fn why_not_compared(comparison: &Comparison) -> String {
    let refused = report::headlines(comparison)
        .into_iter()
        .filter(|told| told.verdict == SpeedVerdict::Refused)
        .map(|told| told.text);
    let absent = comparison
        .absent
        .iter()
        .map(|absent| format!("{} has no figures: {}.", absent.cell, absent.told()));
    let impossible = comparison.rows.iter().filter_map(|row| {
        let why = row.impossible()?;
        Some(format!("The rate of {} is impossible: {why}.", row.cell))
    });
    let mut all = refused.chain(impossible).chain(absent);
    let mut told: Vec<String> = all.by_ref().take(MOST_REASONS).collect();
    let left = all.count();
    if left > 0 {
        told.push(format!("{left} more reasons are on the page."));
    }
    if told.is_empty() {
        return "there is no cell to compare".to_owned();
    }
    told.join(" ")
}

/// The cells that are compared; none where it is the whole matrix.
struct Chosen {
    /// Name, and place in the matrix where it has the cell.
    cells: Vec<(String, Option<CellId>)>,
    /// Each was named: then an answer that leaves a pair out is not the one that was asked for.
    one_by_one: bool,
}

fn selection(part: &Filters) -> Selection {
    let Filters { only, skip, where_ } = part.clone();
    Selection {
        only,
        skip,
        where_,
        ..Selection::default()
    }
}

fn chosen(
    plan: &Plan,
    imports: &Imports,
    names: &[String],
    selection: Selection,
) -> Result<Chosen> {
    if names.is_empty() {
        let is_whole = selection == Selection::default();
        let cells = if is_whole {
            Vec::new()
        } else {
            selected(plan, &selection)?
        };
        return Ok(Chosen {
            cells,
            one_by_one: false,
        });
    }
    if selection != Selection::default() {
        return Err(Error::refused(
            "cells are named, so --only, --skip and --where select nothing",
            "name the cells or select them; a name may be a glob: 'nvd/*/llama'",
        ));
    }
    let mut cells: IndexSet<(String, Option<CellId>)> = IndexSet::new();
    let mut one_by_one = true;
    for name in names {
        let path = name.split('@').next().unwrap_or_default();
        let is_pattern = name.contains(['*', '?', '{', '[']) || path.split('/').count() < 4;
        match project::named(plan, imports, name) {
            Ok(cell) if cells.contains(&cell) => {
                return Err(Error::invalid(Problem::new(format!(
                    "`{}` is compared with itself",
                    cell.0
                ))));
            }
            Ok(cell) => {
                cells.insert(cell);
            }
            Err(_) if is_pattern => {
                one_by_one = false;
                cells.extend(
                    selected(plan, &Selection::of_cell(name)).map_err(|_| no_match(plan, name))?,
                );
            }
            Err(error) => return Err(error),
        }
    }
    let chosen = Chosen {
        cells: cells.into_iter().collect(),
        one_by_one,
    };
    if let [(only, _)] = &chosen.cells[..] {
        return Err(Error::refused(
            format!("only one cell is named, `{only}`, and a comparison needs two"),
            format!(
                "name another one, or a glob; `{}` shows this one",
                plan.command("show", &[only])
            ),
        ));
    }
    Ok(chosen)
}

/// Nothing in the matrix is named so.
fn no_match(plan: &Plan, name: &str) -> Error {
    Error::NothingSelected {
        message: format!(
            "no cell of the matrix `{}` matches `{name}`",
            plan.matrix.name
        ),
        help: Some(format!(
            "`{}` names the cells; `tprimat compare --imported --only PATTERN` is of imports",
            plan.command("list", &[])
        )),
    }
}

/// The cells of the matrix that pass, each with its place.
fn selected(plan: &Plan, selection: &Selection) -> Result<Vec<(String, Option<CellId>)>> {
    let selected = selection.select(&plan.matrix.cells)?;
    let cells = plan.cells.with_ids().zip(selected);
    Ok(cells
        .filter(|(_, selected)| *selected)
        .map(|((at, cell), _)| (cell.id.clone(), Some(at)))
        .collect())
}

/// Refuses what no contract has.
fn check_across(across: &[String]) -> Result<()> {
    let Some(unknown) = across.iter().find(|f| !crate::results::known_field(f)) else {
        return Ok(());
    };
    let problem = Problem::new(format!(
        "--across {unknown}: contracts have no field of this name"
    ));
    let all = || {
        format!(
            "one of {}",
            crate::results::fields().collect::<Vec<_>>().join(", ")
        )
    };
    let help = did_you_mean(unknown, crate::results::fields()).unwrap_or_else(all);
    Err(Error::invalid(problem.help(help)))
}

/// Refuses a setting outside tprimat's table that no cell states: a slip in its name would otherwise cross
/// nothing, unseen.
fn check_stated(across: &[String], comparison: &Comparison) -> Result<()> {
    let rows = || comparison.rows.iter();
    let of_contracts = rows().flat_map(|row| row.contract.0.iter().map(|field| &*field.field));
    let unlisted = rows().flat_map(|row| row.unlisted.keys().map(String::as_str));
    let stated: BTreeSet<&str> = of_contracts.chain(unlisted).collect();
    let is_free = |field: &&String| {
        !stated.contains(field.as_str()) && !crate::results::fields().any(|known| known == **field)
    };
    match across.iter().find(is_free) {
        Some(field) if !stated.is_empty() => {
            let problem = Problem::new(format!(
                "--across {field}: no cell that is compared states a setting of this name"
            ));
            let help = did_you_mean(field, stated)
                .unwrap_or_else(|| "`tprimat compare --json` has what the cells state".into());
            Err(Error::invalid(problem.help(help)))
        }
        _ => Ok(()),
    }
}

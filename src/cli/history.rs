//! `history [MATRIX] [CELL…]`: every measurement of a cell that the cache has, and what was changed between
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{
    args::{Globals, HistoryArgs},
    blocked,
    output::{leave_out, page, print, print_document},
    session::{Project, Session},
    targets::refuse_in_project,
};
use crate::{
    cache::{Cache, TaskKind},
    config::Config,
    error::{Error, Problem, Result, Source, exit},
    execute::history::{Histories, Warmups, cells_with_attempts, histories, run_of},
    figures::{self, History},
    files::{Durability, unix_now, write_atomically},
    graph::{Engine, Status, Statuses},
    import::{self, Imports},
    matrix::{self, Cell, Selection, glob},
    plan::{Asked, Plan},
    report,
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &HistoryArgs) -> Result<i32> {
    let since = args
        .since
        .as_deref()
        .map(|text| moment(text, unix_now()))
        .transpose()?;
    let format = args.output.as_deref().map(Format::of).transpose()?;
    let mut project = Project::open_or_imports(globals, &args.sets)?;
    let (matrix, names) = matrix_and_cells(args, &matrix::files(project.root()))?;
    project.request.matrix = matrix;
    let (config, cache) = (&project.config, project.cache()?);
    let asked = Asked::of(&project.request);
    // All imports, whatever matrix was named.
    let compare_imported = Asked {
        matrix: None,
        ..asked.clone()
    }
    .command("compare", &["--imported"]);
    // A history needs no matrix: where there is none, or a wrong one, what was recorded has to do.
    let session = match project.session() {
        Err(error) if asked.matrix.is_some() => return Err(error),
        session => session.ok(),
    };
    let plan = session.as_ref().map(|session| &session.plan);
    let known = known_cells(&cache);
    if known.is_empty() {
        return Err(nothing_measured("nothing was measured yet", &asked, None));
    }
    let looked = session.as_ref().map(Looked::of).transpose()?;
    let wanted = wanted(known, config, looked.as_ref(), names, &asked)?;
    let host = args
        .host
        .as_deref()
        .map(|text| glob("--host", text))
        .transpose()?;
    let warmups = Warmups::of(plan, config);
    let is_wanted = |cell: &str| wanted.as_ref().is_none_or(|wanted| wanted.contains(cell));
    let is_host = |name: &str| host.as_ref().is_none_or(|glob| glob.is_match(name));
    let Histories { mut cells, guessed } = histories(&cache, &warmups, is_wanted, is_host)?;
    let imports = Imports::of(&cache);
    let mut undated = 0;
    if let Some(plan) = plan {
        for cell in imports.cells().filter(|cell| is_wanted(cell)) {
            let claims = import::claim_for(plan, cell);
            let (own, without) = import::history(
                &cache,
                &imports,
                cell,
                &claims,
                &warmups.otherwise,
                is_host,
                leave_out,
            )?;
            cells.extend(own);
            undated += without;
        }
        cells.sort_by(|a, b| (&a.cell, a.imported).cmp(&(&b.cell, b.imported)));
    }
    if undated > 0 && !cells.is_empty() {
        eprintln!(
            "note: {} left out: the files do not say when the runs were made. `{}` compares them",
            counted(undated, "imported run"),
            compare_imported
        );
    }
    if let Some(looked) = &looked {
        let (counting, mut planned) = looked.counting();
        // Runs of other hosts may count, and are not among these.
        planned.retain(|_| host.is_none());
        let matrix = &looked.engine.plan.matrix.name;
        figures::mark_present(&mut cells, &counting, &planned, matrix);
    }
    cells.retain(|cell| !report::from(cell, since).is_empty());
    if !guessed.is_empty() {
        let names: Vec<&str> = guessed.iter().map(String::as_str).collect();
        let absent = plan.map_or_else(
            || "there is no matrix".to_owned(),
            |plan| format!("the matrix `{}` does not have them", plan.matrix.name),
        );
        eprintln!(
            "note: nothing says how many steps of {} are warm-up: {absent}, and no build summarised them. \
             {} of config.yaml were left out (benchmarking.warmup.skip_steps).",
            blocked::few(&names),
            counted(
                usize::try_from(warmups.otherwise.warmup_steps).unwrap_or(usize::MAX),
                "step"
            ),
        );
    }
    if cells.is_empty() {
        let (message, help) = match (args.since.is_some() || args.host.is_some(), undated) {
            (false, 1..) => (
                "the runs that were imported have no date, so they have no history",
                format!("`{}` compares them", compare_imported),
            ),
            _ => (
                "nothing was measured that fits --since and --host",
                format!(
                    "`{}` without them shows all measurements",
                    asked.command("history", &[])
                ),
            ),
        };
        return Err(Error::NothingSelected {
            message: message.to_owned(),
            help: Some(help),
        });
    }
    if let (Some(path), Some(format)) = (args.output.as_deref(), format) {
        refuse_in_project(project.root(), cache.root(), "-o", path)?;
        let picture = report::history_picture(&cells, since)?;
        let bytes = match format {
            Format::Svg => picture.svg.as_bytes(),
            Format::Png => &picture.png,
        };
        write_atomically(path, bytes, Durability::Plain)?;
        eprintln!("the speed over time is drawn in {}", path.display());
    }
    if globals.json {
        if let Some(since) = since {
            cells
                .iter_mut()
                .for_each(|cell| cell.measurements.retain(|m| m.started_at >= since));
        }
        print_document(&History::of(cells))?;
    } else {
        let in_full = names
            .is_empty()
            .then(|| asked.command("history", &["CELL"]));
        print(&report::history_text(
            &cells,
            since,
            in_full.as_deref(),
            &page(),
        ))?;
    }
    Ok(exit::OK)
}

/// The matrix that is named before or behind the cells, if one is, and the cells. A word without a
/// slash may be the first segment of a cell's name as well; it is a matrix if there is one.
fn matrix_and_cells<'a>(
    args: &'a HistoryArgs,
    matrices: &[String],
) -> Result<(Option<String>, &'a [String])> {
    let is_matrix = |word: &String| {
        word.ends_with(".toml") || !word.contains('/') && matrices.iter().any(|file| file == word)
    };
    let (matrix, cells) = match &args.names[..] {
        [first, cells @ ..] if is_matrix(first) => (Some(first), cells),
        [cells @ .., last] if is_matrix(last) => (Some(last), cells),
        cells => (None, cells),
    };
    match (matrix, &args.matrix) {
        (Some(first), Some(_)) => Err(Error::invalid(
            Problem::new(format!("`{first}` and --matrix name a matrix each"))
                .help("a history is of one matrix; a cell's name has a slash"),
        )),
        (matrix, named) => Ok((matrix.or(named.as_ref()).cloned(), cells)),
    }
}

fn nothing_measured(message: &str, asked: &Asked, cell: Option<&str>) -> Error {
    let only: Vec<&str> = cell.into_iter().flat_map(|cell| ["--only", cell]).collect();
    Error::NothingSelected {
        message: message.to_owned(),
        help: Some(format!("`{}` measures", asked.command("build", &only))),
    }
}

/// Cells with attempts of this cache, and those that were imported.
fn known_cells(cache: &Cache) -> BTreeSet<String> {
    let imports = Imports::of(cache);
    let imported = imports.cells().map(str::to_owned);
    cells_with_attempts(cache)
        .into_iter()
        .chain(imported)
        .collect()
}

/// Which of the known cells are asked for; `None` = all.
fn wanted(
    mut known: BTreeSet<String>,
    config: &Config,
    looked: Option<&Looked>,
    names: &[String],
    asked: &Asked,
) -> Result<Option<BTreeSet<String>>> {
    let plan = looked.map(|looked| looked.engine.plan);
    let of_matrix = plan.filter(|_| asked.matrix.is_some());
    if names.is_empty() && of_matrix.is_none() {
        return Ok(None);
    }
    if names.iter().all(|id| known.contains(id)) && !names.is_empty() {
        return Ok(Some(names.iter().cloned().collect()));
    }
    // A measurement is filed under the cell that it was made for, and others may share it.
    let filed = looked.map(Looked::filed_under).unwrap_or_default();
    known.extend(filed.keys().cloned());
    if let Some(plan) = of_matrix {
        known.retain(|id| plan.cells.iter().any(|cell| cell.id == *id));
        if known.is_empty() {
            let name = &plan.matrix.name;
            let message = format!("no cell of the matrix `{name}` was measured yet");
            return Err(nothing_measured(&message, asked, None));
        }
    }
    let cells: Vec<Cell> = known.iter().map(|id| cell(config, id)).collect();
    let selection = Selection {
        only: names.to_vec(),
        ..Selection::default()
    };
    let selected = selection
        .select(&cells)
        .map_err(|error| not_found(error, plan, &cells, names, asked))?;
    let mut wanted = BTreeSet::new();
    let selected = known.into_iter().zip(selected);
    for (id, _) in selected.filter(|(_, selected)| *selected) {
        for other in filed.get(&id).into_iter().flatten() {
            eprintln!(
                "note: `{id}` launches exactly what `{other}` does, and shares its measurements"
            );
            wanted.insert(other.clone());
        }
        wanted.insert(id);
    }
    Ok(Some(wanted))
}

/// Why one of these names means no measured cell.
fn not_found(
    error: Error,
    plan: Option<&Plan>,
    cells: &[Cell],
    names: &[String],
    asked: &Asked,
) -> Error {
    let Error::NothingSelected { help, .. } = error else {
        return error;
    };
    let is_none = |name: &&String| Selection::of_cell(name).select(cells).is_err();
    let name = names.iter().find(is_none).map_or("", String::as_str);
    if plan.is_some_and(|plan| {
        let of_plan = Selection::of_cell(name).select(&plan.matrix.cells);
        of_plan.is_ok()
    }) {
        let message = format!("nothing of `{name}` was measured yet");
        let help = plan.and_then(|plan| plan.why_not_run(plan.find(name).ok()?));
        return match help {
            Some(why) => Error::NothingSelected {
                message,
                help: Some(format!("it {why}")),
            },
            None => nothing_measured(&message, asked, Some(name)),
        };
    }
    let elsewhere = plan.and_then(|plan| plan.matrix_with(name));
    Error::NothingSelected {
        message: format!("no measured cell is called `{name}`"),
        help: elsewhere.map_or(help, |matrix| {
            Some(format!(
                "the matrix `{matrix}` has it: add `--matrix {matrix}`"
            ))
        }),
    }
}

/// The matrix, and how its tasks stand.
struct Looked<'a> {
    engine: Engine<'a>,
    statuses: Statuses,
}

impl<'a> Looked<'a> {
    fn of(session: &'a Session) -> Result<Self> {
        let (engine, statuses) = session.look()?;
        Ok(Self { engine, statuses })
    }

    fn trainings(&self) -> impl Iterator<Item = (&str, &Status)> {
        let Engine { plan, dag, .. } = &self.engine;
        plan.cells.with_ids().flat_map(move |(at, cell)| {
            let nodes = (1..=cell.repeats).filter_map(move |n| dag.find(TaskKind::Train, at, n));
            nodes.map(|node| (&*cell.id, self.statuses.get(node)))
        })
    }

    /// Cells that share measurements made for other cells, and the names of those.
    fn filed_under(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut filed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (cell, status) in self.trainings() {
            let Some(key) = status.key else { continue };
            let runs = self.engine.cache.attempts(&key);
            let names = runs.iter().filter_map(|run| Some(run_of(&run.task)?.0));
            let others = names.filter(|name| *name != cell).map(str::to_owned);
            filed.entry(cell.to_owned()).or_default().extend(others);
        }
        filed.retain(|_, others| !others.is_empty());
        filed
    }

    /// The attempts that serve the cells as they are configured now, and the cells of which that is
    /// known.
    fn counting(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut counting, mut planned) = (BTreeSet::new(), BTreeSet::new());
        for (cell, status) in self.trainings() {
            planned.extend(status.key.map(|_| cell.to_owned()));
            counting.extend(status.attempt().map(|attempt| attempt.id.clone()));
        }
        (counting, planned)
    }
}

/// A cell of the cache as selections see it; it need not be in any matrix.
fn cell(config: &Config, id: &str) -> Cell {
    let cell = Cell::of_id(id);
    Cell {
        vendor: config.vendor(&cell.platform).unwrap_or(cell.vendor),
        ..cell
    }
}

#[derive(Clone, Copy)]
enum Format {
    Svg,
    Png,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => {
                let problem = Problem::new(format!(
                    "-o {}: a picture is an .svg or a .png",
                    path.display()
                ));
                Err(Error::invalid(
                    problem.help("name the file so: -o history.svg"),
                ))
            }
        }
    }
}

/// `2026-10-02`, `2026-10-02T18:30`, or `30d` before `now`; in seconds since 1970.
fn moment(text: &str, now: f64) -> Result<f64> {
    const DAY: f64 = 86_400.0;
    let units = [("h", 3600.0), ("d", DAY), ("w", 7.0 * DAY)];
    let ago = units.into_iter().find_map(|(unit, seconds)| {
        let count: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (count.is_finite() && count >= 0.0).then_some(now - count * seconds)
    });
    let at = |time: Option<jiff::civil::DateTime>| {
        Some(time?.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
    };
    let date = text
        .parse::<jiff::civil::Date>()
        .ok()
        .map(|date| date.at(0, 0, 0, 0));
    let time = text
        .parse()
        .ok()
        .or_else(|| at(text.parse().ok()))
        .or_else(|| at(date));
    let seconds = ago.or_else(|| time.map(|time: jiff::Timestamp| time.as_second() as f64));
    seconds.ok_or_else(|| {
        let problem = Problem::new(format!("--since {text} is not a time"));
        let problem = problem.at(
            &Source::new("--since", text),
            0..text.len(),
            "a date or an age is expected here",
        );
        Error::invalid(
            problem.help("as in --since 2026-10-02, --since 2026-10-02T18:30 (UTC), --since 30d"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_or_ages() {
        let at = |text: &str| moment(text, 1e9).ok();
        assert_eq!(at("30d"), Some(1e9 - 30.0 * 86_400.0));
        assert_eq!(at("12h"), Some(1e9 - 43_200.0));
        assert_eq!(at("2026-10-02"), Some(1_790_899_200.0));
        assert_eq!(at("2026-10-02T01:00"), Some(1_790_902_800.0));
        assert_eq!(at("2026-10-02T01:00:00Z"), Some(1_790_902_800.0));
        for bad in ["", "d", "-3d", "yesterday", "nand"] {
            assert_eq!(at(bad), None, "{bad}");
        }
    }
}

//! The report task: the files of a page, made of a comparison, and their publication.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use rayon::prelude::*;

use super::{
    Derived,
    cells::own_input,
    plot,
    stored::{json_bytes, need, put, put_comparison, read, read_comparison},
};
use crate::{
    cache::{Cache, Output, TaskKind},
    digest::Digest,
    error::Result,
    figures::{self, AbsentState, CellInput, CellState, Comparison, ComparisonDocument, Row},
    graph::{Engine, Statuses},
    job::Job,
    matrix::{self, CellId, PerCell},
    plan::{Plan, Prepared},
    publish::{self, Publication, Published},
    report::{self, PagePicture},
    results::words::few,
};

pub struct ReportWork {
    output_dir: PathBuf,
    matrix: String,
    /// Files of cells that have no present figures: what was published of them stays.
    keeps: BTreeSet<String>,
    /// The project's matrices, where they are known.
    known: Option<BTreeSet<String>>,
    comparison: Option<Output>,
    pictures: Vec<Output>,
    cells: Vec<PublishedCell>,
}

pub(super) struct PublishedCell {
    file: String,
    input: CellInput,
    summary: Digest,
    results: Vec<(u32, Digest)>,
    job: Box<Job>,
    key: Digest,
}

pub(super) fn report_work(
    engine: &Engine,
    statuses: &Statuses,
    comparison: Option<Output>,
    pictures: Vec<Output>,
) -> ReportWork {
    let cells = published_cells(engine, statuses);
    let mut keeps: BTreeSet<String> = file_names(engine.plan).into_iter().collect();
    for cell in &cells {
        keeps.remove(&cell.file);
    }
    ReportWork {
        output_dir: publish::output_dir(engine.plan),
        matrix: engine.plan.matrix.name.clone(),
        keeps,
        known: matrix::names(&engine.plan.root),
        comparison,
        pictures,
        cells,
    }
}

/// `train_<platform>_<framework>_<model>.json`, longer where that would name two cells, and cut where
/// it would be too long.
fn file_names(plan: &Plan) -> PerCell<String> {
    let short = |c: CellId| {
        let of = &plan.matrix.cells[c];
        publish::safe_name(&format!(
            "train_{}_{}_{}",
            of.platform, of.framework, of.model
        ))
    };
    let long = |c: CellId| {
        let of = &plan.matrix.cells[c];
        let axes: String = of
            .axes
            .iter()
            .map(|(axis, value)| format!("_{axis}-{value}"))
            .collect();
        publish::safe_name(&format!("{}_{}{axes}", short(c), of.parallelism))
    };
    // Signs that no file name should have are written alike, so that even the long names of two
    // cells may be the same.
    let whole = |c: CellId| format!("{}_{}", long(c), Digest::of(&plan.cells[c].id).short());
    let mut names = plan.cells.map(short);
    lengthen(&mut names, long);
    lengthen(&mut names, whole);
    names
        .into_iter()
        .map(|name| format!("{}.json", publish::short_name(name)))
        .collect()
}

/// Replaces the names that two have by longer ones.
fn lengthen(names: &mut PerCell<String>, longer: impl Fn(CellId) -> String) {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    names
        .iter()
        .for_each(|name| *count.entry(name.clone()).or_insert(0) += 1);
    for (c, name) in names.with_ids_mut() {
        if count[name] > 1 {
            *name = longer(c);
        }
    }
}

fn published_cells(engine: &Engine, statuses: &Statuses) -> Vec<PublishedCell> {
    let plan = engine.plan;
    let files = file_names(plan);
    let published = |(cell, prepared): (CellId, &Prepared)| {
        let aggregate = engine.dag.node(TaskKind::Aggregate, cell, 0);
        let summary = statuses.first_output(aggregate)?;
        let key = statuses.get(aggregate).key?;
        let results = engine.results(cell, statuses);
        Some(PublishedCell {
            file: files[cell].clone(),
            input: own_input(engine, cell),
            summary,
            results,
            job: Box::new(prepared.job().clone()),
            key,
        })
    };
    let published_cells = engine.published(statuses).into_par_iter();
    published_cells.filter_map(published).collect()
}

impl ReportWork {
    /// Makes the files and publishes them.
    pub(super) fn run(self, cache: &Cache) -> Result<Derived> {
        let report = Report::of(self, cache)?;
        let published = report.publish(&report.work.output_dir, cache)?;
        let outputs = match published.is_written {
            true => report.outputs,
            false => Vec::new(),
        };
        Ok(Derived {
            outputs,
            notes: published.notes,
            ..Derived::default()
        })
    }
}

/// Why no cell has figures, if some ran.
fn refused(comparison: &Comparison) -> Option<String> {
    const TOLD: usize = 3;
    let ran: Vec<String> = comparison
        .absent
        .iter()
        .filter(|cell| !matches!(cell.state, AbsentState::Missing | AbsentState::Unsupported))
        .map(|cell| format!("{} ({})", cell.cell, cell.reason))
        .collect();
    if !comparison.rows.is_empty() || ran.is_empty() {
        return None;
    }
    let told = ran[..ran.len().min(TOLD)].join(", ");
    Some(match ran.len() - ran.len().min(TOLD) {
        0 => told,
        more => format!("{told} and {more} more"),
    })
}

/// The files of a report, which are in the cache, and what their publication has to know.
pub struct Report {
    work: ReportWork,
    pub outputs: Vec<Output>,
    has_figures: bool,
    refused: Option<String>,
    /// Sentences on what it leaves out.
    notes: Vec<String>,
}

impl Report {
    fn of(work: ReportWork, cache: &Cache) -> Result<Self> {
        let put = |name: &str, bytes: &[u8]| put(cache, name, bytes);
        let comparison = read_comparison(cache, work.comparison.as_ref())?;
        let whole = || -> Result<Vec<Output>> {
            let drawn = drawn(cache, &work.pictures)?;
            let texts = report::files(&comparison, &drawn, &work.matrix)?;
            let stored = texts
                .par_iter()
                .map(|(name, text)| put(name, text.as_bytes()));
            stored.collect()
        };
        let rows = comparison.rows_by_cell();
        // Each is read and written by itself, and of thousands this is most of a report's time.
        let of_cell = |cell: &PublishedCell| -> Result<(Option<Output>, Option<String>)> {
            let summary = read(cache, &cell.summary, "summary.json")?;
            let (mut results, mut gone) = (Vec::new(), Vec::new());
            for (repeat, digest) in &cell.results {
                // One that is gone from the cache is published by the summary alone, which needs it no more.
                if cache.has(digest) {
                    results.push((*repeat, read(cache, digest, "result.json")?));
                } else {
                    gone.push(repeat.to_string());
                }
            }
            let note = (!gone.is_empty()).then(|| {
                format!(
                    "{} lacks {} of {}, whose results are gone from the cache; its summary has them still",
                    cell.file,
                    match &gone[..] {
                        [one] => format!("repeat {one}"),
                        several => format!("repeats {}", several.join(", ")),
                    },
                    cell.input.cell
                )
            });
            let input = CellInput {
                state: CellState::Ok {
                    summary: Box::new(summary),
                },
                ..cell.input.clone()
            };
            let row = rows.get(input.cell.as_str()).copied();
            let key = cell.key.to_string();
            let unified = figures::unified(&input, Some(&key), &cell.job, &results, row);
            let file = unified.map(|unified| put(&cell.file, &json_bytes(&unified)?));
            Ok((file.transpose()?, note))
        };
        let cells = || {
            work.cells
                .par_iter()
                .map(of_cell)
                .collect::<Result<Vec<_>>>()
        };
        let document = ComparisonDocument::published(&comparison);
        let published = || put_comparison(cache, &document);
        let (published, (whole, cells)) = rayon::join(published, || rayon::join(whole, cells));
        let mut outputs = work.pictures.clone();
        outputs.push(published?);
        outputs.extend(whole?);
        let mut notes = Vec::new();
        for (file, note) in cells? {
            outputs.extend(file);
            notes.extend(note);
        }
        Ok(Self {
            notes,
            has_figures: !comparison.rows.is_empty(),
            refused: refused(&comparison),
            outputs,
            work,
        })
    }

    /// Writes all of its files into a folder; nothing where it has no figures and what was
    /// published there has.
    pub fn publish(&self, folder: &Path, cache: &Cache) -> Result<Published> {
        let publication = Publication {
            matrix: &self.work.matrix,
            outputs: &self.outputs,
            keeps: &self.work.keeps,
            known: self.work.known.as_ref(),
            has_figures: self.has_figures,
            refused: self.refused.as_deref(),
        };
        let mut published = publish::publish(folder, &publication, cache)?;
        if published.is_written {
            published.notes.extend(self.notes.iter().cloned());
        }
        Ok(published)
    }
}

/// The pictures that a page shows: those that are drawn as lines.
fn drawn(cache: &Cache, pictures: &[Output]) -> Result<Vec<PagePicture>> {
    let svg = |output: &Output| {
        let name = output.name.strip_suffix(".svg")?;
        let text = need(cache, &output.digest, &output.name)
            .map(|b| String::from_utf8_lossy(&b).into_owned());
        Some(text.map(|svg| PagePicture::new(name, svg)))
    };
    // `plot_throughput` is `compare` under the name that pages elsewhere show: one of them is enough.
    let is_new = |(place, output): &(usize, &Output)| {
        pictures[..*place].iter().all(|p| p.digest != output.digest)
    };
    let once = pictures.iter().enumerate().filter(is_new);
    once.filter_map(|(_, output)| svg(output)).collect()
}

/// Makes the report of a comparison that no build made, of the named cells alone where there are
/// any, with `more` pictures; it publishes nothing.
pub fn report_of(
    engine: &Engine,
    statuses: &Statuses,
    comparison: &Comparison,
    named: &[String],
) -> Result<Report> {
    let cache = engine.cache;
    let stored = Some(put_comparison(cache, comparison)?);
    let pictures = plot(stored.as_ref(), cache)?;
    let mut work = report_work(engine, statuses, stored, pictures);
    if !named.is_empty() {
        work.matrix = named.join(" and ");
        work.cells.retain(|cell| named.contains(&cell.input.cell));
        (work.keeps, work.known) = (BTreeSet::new(), None);
    }
    let mut report = Report::of(work, cache)?;
    report
        .notes
        .extend(without_file(engine, comparison, &report.work.cells));
    Ok(report)
}

/// Says for which cells with present figures no file is written: what it is made of has to be made again.
fn without_file(
    engine: &Engine,
    comparison: &Comparison,
    written: &[PublishedCell],
) -> Option<String> {
    let plan = engine.plan;
    let is_present = |row: &&Row| row.imported.is_empty() && row.standing.earlier.is_none();
    let is_left_out = |row: &&Row| {
        plan.find(&row.cell).is_ok() && !written.iter().any(|cell| cell.input.cell == row.cell)
    };
    let rows = comparison.rows.iter().filter(is_present);
    let cells: Vec<&str> = rows.filter(is_left_out).map(|row| &*row.cell).collect();
    (!cells.is_empty()).then(|| {
        format!(
            "no train_*.json is written of {}, for a result is not in the cache as this tprimat makes it; `{}` makes it from the \
             log",
            few(&cells),
            plan.command("build", &["--cached-only"])
        )
    })
}

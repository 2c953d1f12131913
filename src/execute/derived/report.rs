//! The report task: the files of a page, made of a comparison, and their publication.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use rayon::prelude::*;

use super::{
    Derived,
    cells::input,
    plot, result_from_log,
    stored::{
        RESULTS, SUMMARIES, json_bytes, need, put, put_comparison, read_comparison,
    },
};
use crate::{
    cache::{Cache, JsonLayout, Output, TaskKind},
    digest::Digest,
    error::Result,
    figures::{self, AbsentState, CellInput, CellState, Comparison, ComparisonDocument},
    graph::{Engine, Statuses},
    job::Job,
    matrix::{self, CellId, PerCell},
    plan::{Plan, Prepared},
    publish::{self, Publication, Published},
    report::{self, PagePicture},
    results::RunResult,
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
    /// Those of them that are gone from the cache, read from their logs again.
    made_again: BTreeMap<u32, RunResult>,
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
        let lost: Vec<u32> = results
            .iter()
            .filter(|(_, digest)| !engine.cache.has(digest))
            .map(|(repeat, _)| *repeat)
            .collect();
        let published = PublishedCell {
            made_again: BTreeMap::new(),
            file: files[cell].clone(),
            input: input(
                plan,
                cell,
                CellState::Missing {
                    reason: String::new(),
                },
                None,
            ),
            summary,
            results,
            job: Box::new(prepared.job().clone()),
            key,
        };
        Some((cell, published, lost))
    };
    let cells: Vec<_> = engine
        .published(statuses)
        .into_par_iter()
        .filter_map(published)
        .collect();
    // No summary needs what is lost, so no parse is to be done for it, and a log that cannot be read
    // either leaves the summary. One by one, for each log is read whole.
    let with_lost = |(cell, mut published, lost): (CellId, PublishedCell, Vec<u32>)| {
        for repeat in lost {
            let made = result_from_log(engine, statuses, cell, repeat);
            published
                .made_again
                .extend(made.ok().flatten().map(|made| (repeat, made)));
        }
        published
    };
    cells.into_iter().map(with_lost).collect()
}

impl ReportWork {
    /// Makes the files and publishes them.
    pub(super) fn run(&self, cache: &Cache) -> Result<Derived> {
        let (outputs, figures) = report_outputs(self, cache)?;
        let published = publish::publish(
            &self.output_dir,
            &self.publication(&outputs, &figures),
            cache,
        )?;
        let outputs = if published.is_written {
            outputs
        } else {
            Vec::new()
        };
        Ok(Derived {
            outputs,
            notes: published.notes,
            ..Derived::default()
        })
    }

    fn publication<'a>(
        &'a self,
        outputs: &'a [Output],
        figures: &'a FiguresShown,
    ) -> Publication<'a> {
        let Self {
            matrix,
            keeps,
            known,
            ..
        } = self;
        Publication {
            matrix,
            outputs,
            keeps,
            known: known.as_ref(),
            has_figures: matches!(figures, FiguresShown::Some),
            refused: match figures {
                FiguresShown::Refused(why) => Some(why),
                FiguresShown::Some | FiguresShown::None => None,
            },
        }
    }
}

/// Has any cell figures?
enum FiguresShown {
    Some,
    /// Nothing ran.
    None,
    /// Cells ran, and why they have none.
    Refused(String),
}

impl FiguresShown {
    fn of(comparison: &Comparison) -> Self {
        const TOLD: usize = 3;
        if !comparison.rows.is_empty() {
            return Self::Some;
        }
        let ran: Vec<String> = comparison
            .absent
            .iter()
            .filter(|cell| !matches!(cell.state, AbsentState::Missing | AbsentState::Unsupported))
            .map(|cell| format!("{} ({})", cell.cell, cell.reason))
            .collect();
        match &ran[..] {
            [] => Self::None,
            ran if ran.len() <= TOLD => Self::Refused(ran.join(", ")),
            ran => {
                let (told, more) = (ran[..TOLD].join(", "), ran.len() - TOLD);
                Self::Refused(format!("{told} and {more} more"))
            }
        }
    }
}

/// The files of a report, and whether any cell has figures.
fn report_outputs(work: &ReportWork, cache: &Cache) -> Result<(Vec<Output>, FiguresShown)> {
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
    let of_cell = |cell: &PublishedCell| -> Result<Option<Output>> {
        let summary = SUMMARIES.read(cache, &cell.summary, "summary.json")?;
        let mut results = Vec::new();
        for (repeat, digest) in &cell.results {
            // One whose log was lost as well is published by its summary alone.
            if let Some(result) = cell.made_again.get(repeat) {
                results.push((*repeat, result.clone()));
            } else if cache.has(digest) {
                results.push((*repeat, RESULTS.read(cache, digest, "result.json")?));
            }
        }
        let input = CellInput {
            state: CellState::Ok {
                summary: Box::new(summary),
            },
            ..cell.input.clone()
        };
        let row = rows.get(input.cell.as_str()).copied();
        let key = cell.key.to_string();
        figures::unified(&input, Some(&key), &cell.job, &results, row)
            .map(|unified| {
                let text = json_bytes(&unified)?;
                put(&cell.file, &text)
            })
            .transpose()
    };
    let cells = || {
        work.cells
            .par_iter()
            .map(of_cell)
            .collect::<Result<Vec<_>>>()
    };
    let document = ComparisonDocument::of(&comparison);
    let published = || put_comparison(cache, &document, JsonLayout::Dense);
    let (published, (whole, cells)) = rayon::join(published, || rayon::join(whole, cells));
    let mut outputs = work.pictures.clone();
    outputs.push(published?);
    outputs.extend(whole?);
    outputs.extend(cells?.into_iter().flatten());
    Ok((outputs, FiguresShown::of(&comparison)))
}

/// The pictures that a page shows: those that are drawn as lines.
fn drawn(cache: &Cache, pictures: &[Output]) -> Result<Vec<PagePicture>> {
    let svg = |output: &Output| {
        let name = output.name.strip_suffix(".svg")?;
        let text = need(cache, &output.digest, &output.name)
            .map(|b| String::from_utf8_lossy(&b).into_owned());
        Some(text.map(|svg| PagePicture::new(name, svg)))
    };
    pictures.iter().filter_map(svg).collect()
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
    let stored = Some(put_comparison(cache, comparison, JsonLayout::Dense)?);
    let pictures = plot(stored.as_ref(), cache)?;
    let mut work = report_work(engine, statuses, stored, pictures);
    if !named.is_empty() {
        work.matrix = named.join(" and ");
        work.cells.retain(|cell| named.contains(&cell.input.cell));
        (work.keeps, work.known) = (BTreeSet::new(), None);
    }
    let (outputs, figures) = report_outputs(&work, cache)?;
    Ok(Report {
        work,
        outputs,
        figures,
    })
}

/// A report that no build made.
pub struct Report {
    work: ReportWork,
    pub outputs: Vec<Output>,
    figures: FiguresShown,
}

impl Report {
    /// Writes all of its files into a folder; nothing where it has no figures and what was
    /// published there has.
    pub fn publish(&self, folder: &Path, cache: &Cache) -> Result<Published> {
        publish::publish(
            folder,
            &self.work.publication(&self.outputs, &self.figures),
            cache,
        )
    }
}

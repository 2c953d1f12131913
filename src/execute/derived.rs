//! The tasks that compute rather than measure: bytes of the cache in, bytes of the cache out.
//!
//! `prepare` collects what a task needs while the states are at hand; `run` does it on any thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;
use serde_json::Value;

use super::run::TELEMETRY;
use crate::{
    cache::{Attempt, Cache, CacheError, Output, TaskKind},
    config::Config,
    digest::Digest,
    error::{Error, Result},
    figures::{
        self, AbsentState, Catalogue, CellInput, CellState, CompareSettings, Comparison, Dropped,
        PeakOverride, Peaks, Price, Standing, Statistics, Summary, Tdp,
    },
    files::Durability,
    graph::{Artifacts, ComparedCell, Engine, FiguresFrom, Statuses, TaskId},
    import::{self, Claims},
    job::Job,
    logs::LogSection,
    matrix::{self, CellId, PerCell},
    plan::{Plan, Prepared},
    publish::{self, Publication, Published},
    recipe::{Rendered, Unreached},
    report::{self, PagePicture},
    results::{AttemptOutputs, RunFacts, RunResult},
    sentences,
};

/// Settings of the later stages; each is in the key of the task that reads it.
pub struct Settings {
    pub compare: CompareAll,
}

#[derive(Clone, Debug, Serialize)]
pub struct CompareAll {
    pub settings: CompareSettings,
    pub catalogue: Catalogue,
}

impl Settings {
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let catalogue = catalogue(&plan.config);
        Self {
            compare: CompareAll {
                settings: CompareSettings {
                    across: plan.matrix.across.clone(),
                    ..CompareSettings::default()
                },
                catalogue,
            },
        }
    }
}

/// Prices, peaks and targets, as config.yaml states them.
#[must_use]
pub fn catalogue(config: &Config) -> Catalogue {
    let specs = config.table("benchmarking.enhanced_metrics.hardware_specs");
    let mut overrides = Vec::new();
    let mut tdp = BTreeMap::new();
    for (platform, spec) in &specs {
        // Figures without a source are refused by the config's own check.
        let source = spec
            .get("source")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if let Some(watts) = spec.get("tdp_watts").and_then(Value::as_f64) {
            tdp.insert(
                platform.clone(),
                Tdp {
                    watts,
                    source: source.to_owned(),
                },
            );
        }
        for (precision, flops) in spec
            .get("peak_flops")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            if let Some(flops) = flops.as_f64() {
                let (platform, precision, source) =
                    (platform.clone(), precision.clone(), source.to_owned());
                overrides.push(PeakOverride {
                    platform,
                    precision,
                    tflops: flops / 1e12,
                    source,
                });
            }
        }
    }
    let costs = config.table("benchmarking.enhanced_metrics.cloud_costs");
    let prices = costs
        .iter()
        .filter_map(|(platform, cost)| Some((platform.clone(), price(cost)?)))
        .collect();
    let platforms = config.children("hardware.platforms");
    let vendors = platforms
        .filter_map(|id| Some((id.to_owned(), config.vendor(id)?)))
        .collect();
    Catalogue {
        peaks: Peaks { overrides },
        prices,
        tdp,
        vendors,
        target_loss: target_loss(config),
    }
}

/// `comparison.target_loss`: one number for all models, or one for each.
fn target_loss(config: &Config) -> BTreeMap<String, f64> {
    const PATH: &str = "comparison.target_loss";
    let models = config.children("models");
    let by_model = config.table(PATH);
    let of = |model: &str| {
        config
            .get(PATH)
            .or_else(|| by_model.get(model))
            .and_then(Value::as_f64)
    };
    models
        .filter_map(|model| Some((model.to_owned(), of(model)?)))
        .collect()
}

/// None where the configuration names no rate.
fn price(cost: &Value) -> Option<Price> {
    let text = |name: &str| cost.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(Price {
        per_gpu_hour: cost
            .get("per_gpu_hour")
            .and_then(Value::as_f64)
            .filter(|p| p.is_finite())?,
        currency: text("currency").map_or_else(|| "USD".to_owned(), |c| c.trim().to_uppercase()),
        source: text("source"),
    })
}

/// What one derived task needs, owned.
pub enum DerivedWork {
    Render(Vec<Rendered>),
    Parse {
        attempt: Arc<Attempt>,
        job: Box<Job>,
        log: LogSection,
        unreached: Vec<Unreached>,
    },
    Aggregate {
        results: Vec<(u32, Digest)>,
        dropped: Vec<Dropped>,
        statistics: Statistics,
    },
    Compare {
        cells: Vec<CellSeed>,
        settings: Box<CompareAll>,
    },
    Plot {
        comparison: Option<Output>,
    },
    Report(Box<ReportWork>),
}

/// A cell as compare needs it, before its summary is read.
pub struct CellSeed {
    pub(super) input: CellInput,
    pub(super) summary: Option<Digest>,
    /// What is claimed of the imports that stand in for a measurement.
    pub(super) imported: Option<Box<(Claims, Statistics)>>,
}

/// Results by repeat.
pub type Results = Vec<(u32, RunResult)>;

impl CellSeed {
    /// A cell of imports only; no matrix needs to have it.
    #[must_use]
    pub fn imported(plan: &Plan, cell: &str) -> Self {
        let state = CellState::Missing {
            reason: "nothing was imported".to_owned(),
        };
        let input = import::input(cell, &[], state);
        let claims = (import::claim_for(plan, cell), import::statistics(plan));
        Self {
            input,
            summary: None,
            imported: Some(Box::new(claims)),
        }
    }

    /// The cell's name.
    #[must_use]
    pub fn cell(&self) -> &str {
        &self.input.cell
    }

    /// Is there anything to show of its own runs, a figure or a failure?
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.summary.is_some() || matches!(self.input.state, CellState::Failed { .. })
    }
}

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

struct PublishedCell {
    file: String,
    input: CellInput,
    summary: Digest,
    results: Vec<(u32, Digest)>,
    job: Box<Job>,
    key: Digest,
}

/// Collects what the task at `node` needs.
#[must_use]
pub fn prepare(engine: &Engine, node: TaskId, statuses: &Statuses) -> DerivedWork {
    let task = engine.dag.task(node);
    let cell = task.cell;
    let digest_of = |kind, cell, repeat| {
        statuses
            .get(engine.dag.node(kind, cell, repeat))
            .outputs()
            .first()
            .map(|o| o.digest)
    };
    let comparison = || {
        statuses
            .get(engine.dag.over_all(TaskKind::Compare))
            .outputs()
            .first()
            .cloned()
    };
    match task.kind {
        TaskKind::Render => DerivedWork::Render(match &statuses.get(node).artifacts {
            Artifacts::Rendered(_, files) => files.clone(),
            _ => Vec::new(),
        }),
        TaskKind::Parse | TaskKind::Train => {
            let train = statuses.get(engine.dag.node(TaskKind::Train, task.cell, task.repeat));
            let prepared = engine
                .plan
                .prepared(cell)
                .expect("a stale cell is supported");
            DerivedWork::Parse {
                attempt: train
                    .attempt()
                    .expect("parse is stale only after an attempt")
                    .clone(),
                job: Box::new(prepared.job().clone()),
                log: engine.plan.recipe(cell).file.log.clone(),
                unreached: engine.plan.unreached(cell).to_vec(),
            }
        }
        TaskKind::Aggregate => DerivedWork::Aggregate {
            results: (1..=engine.plan.cells[cell].repeats)
                .filter_map(|r| Some((r, digest_of(TaskKind::Parse, task.cell, r)?)))
                .collect(),
            dropped: engine
                .dropped(task.cell, statuses)
                .into_iter()
                .cloned()
                .collect(),
            statistics: engine
                .plan
                .prepared(cell)
                .map(|p| p.resolved.statistics.clone())
                .unwrap_or_default(),
        },
        TaskKind::Compare => DerivedWork::Compare {
            cells: cell_seeds(engine, statuses).into_iter().collect(),
            settings: Box::new(Settings::of(engine.plan).compare),
        },
        TaskKind::Plot => DerivedWork::Plot {
            comparison: comparison(),
        },
        TaskKind::Report => {
            let pictures = statuses
                .get(engine.dag.over_all(TaskKind::Plot))
                .outputs()
                .to_vec();
            DerivedWork::Report(Box::new(report_work(
                engine,
                statuses,
                comparison(),
                pictures,
            )))
        }
    }
}

fn report_work(
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

/// A cell's names, as the later stages show them.
fn input(plan: &Plan, cell: CellId, state: CellState, same_launch_as: Option<String>) -> CellInput {
    let of = &plan.matrix.cells[cell];
    CellInput {
        cell: plan.cells[cell].id.clone(),
        platform: of.platform.to_string(),
        framework: of.framework.to_string(),
        model: of.model.to_string(),
        parallelism: of.parallelism.to_string(),
        axes: of
            .axes
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        repeats_wanted: plan.cells[cell].repeats,
        state,
        same_launch_as,
        imported: Vec::new(),
        environment: plan
            .prepared(cell)
            .map(Prepared::environment)
            .unwrap_or_default(),
        standing: Standing::default(),
    }
}

/// A cell of the plan, of which nothing is known yet.
pub(super) fn own_input(engine: &Engine, cell: CellId) -> CellInput {
    input(
        engine.plan,
        cell,
        CellState::Missing {
            reason: String::new(),
        },
        None,
    )
}

#[must_use]
pub fn cell_seeds(engine: &Engine, statuses: &Statuses) -> PerCell<CellSeed> {
    let plan = engine.plan;
    let seed = |(cell, compared): (CellId, ComparedCell)| {
        let mut own_summary = None;
        let mut standing = Standing::default();
        let state = match compared.from {
            FiguresFrom::Imports { .. } => {
                return CellSeed::imported(plan, &plan.cells[cell].id);
            }
            FiguresFrom::Summary {
                summary, to_come, ..
            } => {
                own_summary = Some(summary);
                standing.to_come = to_come;
                CellState::Missing {
                    reason: "its summary is gone from the cache".into(),
                }
            }
            FiguresFrom::Failure { failure } => CellState::Failed {
                class: failure.class,
                evidence: failure.evidence,
            },
            FiguresFrom::Failed { failed: reason } | FiguresFrom::Missing { missing: reason } => {
                CellState::Missing { reason }
            }
            FiguresFrom::Unsupported {
                unsupported: reason,
            } => CellState::Unsupported { reason },
        };
        CellSeed {
            input: CellInput {
                standing,
                ..input(plan, cell, state, compared.same_launch_as)
            },
            summary: own_summary,
            imported: None,
        }
    };
    let compared = engine.compared_cells(statuses).into_with_ids();
    compared.map(seed).collect()
}

/// `train_<platform>_<framework>_<model>.json`, longer where that would name two cells.
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
        .map(|name| format!("{name}.json"))
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
    let mut cells = Vec::new();
    for (cell, prepared) in engine.published(statuses) {
        let aggregate = engine.dag.node(TaskKind::Aggregate, cell, 0);
        let (Some(summary), Some(key)) = (
            statuses.first_output(aggregate),
            statuses.get(aggregate).key,
        ) else {
            continue;
        };
        cells.push(PublishedCell {
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
            results: engine.results(cell, statuses),
            job: Box::new(prepared.job().clone()),
            key,
        });
    }
    cells
}

/// What a derived task left.
#[derive(Default)]
pub struct Derived {
    pub outputs: Vec<Output>,
    /// Sentences for people.
    pub notes: Vec<String>,
}

/// Does one derived task. Its outputs are in the cache when this returns.
pub fn run(work: DerivedWork, cache: &Cache) -> Result<Derived> {
    match work {
        DerivedWork::Report(work) => {
            let (outputs, figures) = report_outputs(&work, cache)?;
            let published = publish::publish(
                &work.output_dir,
                &work.publication(&outputs, &figures),
                cache,
            )?;
            Ok(Derived {
                outputs: if published.is_written {
                    outputs
                } else {
                    Vec::new()
                },
                notes: published.notes,
            })
        }
        other => Ok(Derived {
            outputs: outputs_of(other, cache)?,
            notes: Vec::new(),
        }),
    }
}

/// Does a task that publishes nothing.
fn outputs_of(work: DerivedWork, cache: &Cache) -> Result<Vec<Output>> {
    let put = |name: &str, bytes: &[u8]| put(cache, name, bytes);
    match work {
        DerivedWork::Render(files) => files.iter().map(|f| put(&f.name, &f.bytes)).collect(),
        DerivedWork::Parse {
            attempt,
            job,
            log: section,
            unreached,
        } => {
            let result = result_of(cache, &attempt, &job, &section, &unreached)?;
            Ok(vec![put("result.json", &json_bytes(&result)?)?])
        }
        DerivedWork::Aggregate {
            results,
            dropped,
            statistics,
        } => {
            let results = results
                .iter()
                .map(|(r, d)| Ok((*r, read::<RunResult>(cache, d, "result.json")?)));
            let results: Vec<_> = results.collect::<Result<_>>()?;
            let summary = figures::summarize(&results, &statistics).disclosing(dropped);
            Ok(vec![put("summary.json", &json_bytes(&summary)?)?])
        }
        DerivedWork::Compare { cells, settings } => {
            let comparison = compare_cells(cells, &settings, cache)?;
            Ok(vec![
                put_comparison(cache, &comparison)?,
                put(UNCOUNTED, &json_bytes(&comparison.uncounted())?)?,
            ])
        }
        DerivedWork::Plot { comparison } => {
            let comparison = read_comparison(cache, comparison.as_ref())?;
            let mut outputs = Vec::new();
            for picture in report::pictures(&comparison)?.drawn {
                outputs.extend(put_picture(cache, &picture)?);
            }
            Ok(outputs)
        }
        DerivedWork::Report(work) => Ok(report_outputs(&work, cache)?.0),
    }
}

/// What an attempt's log says, held against its job.
pub(super) fn result_of(
    cache: &Cache,
    attempt: &Attempt,
    job: &Job,
    section: &LogSection,
    unreached: &[Unreached],
) -> Result<RunResult> {
    let bytes = match attempt.log() {
        // However large it is: the record says how large.
        Some(log) => cache
            .get_at_most(&log.digest, log.size)?
            .ok_or_else(|| gone(&log.digest, "log"))?,
        None => Vec::new(),
    };
    let output = |name: &str| {
        attempt
            .outputs
            .iter()
            .find(|o| o.name == name)
            .map(|o| &o.digest)
    };
    let get = |digest: Option<&Digest>| digest.map_or(Ok(None), |digest| cache.get(digest));
    let sampled = output(TELEMETRY);
    // Without the times the log still says all else.
    let (times, samples) = (get(output("times"))?.unwrap_or_default(), get(sampled)?);
    let left = AttemptOutputs {
        log: &bytes,
        section,
        times: &times,
        samples: sampled.map(|_| samples.as_deref()),
        facts: facts_of(attempt),
        repeats_planned: attempt.repeats_planned,
        suspect: attempt.suspect.clone(),
    };
    Ok(left.result(
        job,
        &unreached
            .iter()
            .filter(|field| field.is_of_speed)
            .map(|field| field.setting)
            .collect::<Vec<_>>(),
    ))
}

/// What is known of a run besides its log.
pub(super) fn facts_of(attempt: &Attempt) -> RunFacts {
    RunFacts {
        attempt: attempt.id.clone(),
        host: attempt.host.clone(),
        started_at: Some(attempt.started_at),
        ended_at: Some(attempt.ended_at),
        outcome: attempt.outcome.clone(),
    }
}

fn put(cache: &Cache, name: &str, bytes: &[u8]) -> Result<Output> {
    let digest = cache.put(bytes, Durability::Plain)?;
    Ok(Output {
        name: name.to_owned(),
        digest,
        size: bytes.len() as u64,
    })
}

fn put_picture(cache: &Cache, picture: &report::Picture) -> Result<[Output; 2]> {
    let file = picture.file();
    Ok([
        put(cache, &format!("{file}.png"), &picture.png)?,
        put(cache, &format!("{file}.svg"), picture.svg.as_bytes())?,
    ])
}

impl ReportWork {
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
            .map(|cell| format!("{} ({})", cell.cell, sentences::said(&cell.reason)))
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
    let mut outputs = work.pictures.clone();
    // Between tasks it is values; what is published has the sentences in their place.
    outputs.push(sentences::in_words(|| put_comparison(cache, &comparison))?);
    let drawn = drawn(cache, &work.pictures)?;
    for (name, text) in report::files(&comparison, &drawn, &work.matrix)? {
        outputs.push(put(name, text.as_bytes())?);
    }
    let rows = comparison.rows_by_cell();
    for cell in &work.cells {
        let summary: Summary = read(cache, &cell.summary, "summary.json")?;
        let mut results = Vec::new();
        for (repeat, digest) in &cell.results {
            // A result that was lost and is not needed is published by its summary alone.
            if cache.has(digest) {
                results.push((*repeat, read::<RunResult>(cache, digest, "result.json")?));
            }
        }
        let input = CellInput {
            state: CellState::Ok {
                summary: Box::new(summary),
            },
            ..cell.input.clone()
        };
        let row = rows.get(input.cell.as_str()).copied();
        if let Some(unified) = figures::unified(
            &input,
            Some(&cell.key.to_string()),
            &cell.job,
            &results,
            row,
        ) {
            outputs.push(put(
                &cell.file,
                &sentences::in_words(|| json_bytes(&unified))?,
            )?);
        }
    }
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
    more: &[report::Picture],
) -> Result<Report> {
    let cache = engine.cache;
    let stored = Some(put_comparison(cache, comparison)?);
    let mut pictures = outputs_of(
        DerivedWork::Plot {
            comparison: stored.clone(),
        },
        cache,
    )?;
    for picture in more {
        pictures.extend(put_picture(cache, picture)?);
    }
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

/// Compares cells whose summaries are in the cache.
pub fn compare_cells(
    cells: impl IntoIterator<Item = CellSeed>,
    settings: &CompareAll,
    cache: &Cache,
) -> Result<Comparison> {
    Ok(figures::compare(
        &cell_inputs(cells, cache)?,
        &settings.settings,
        &settings.catalogue,
    ))
}

/// Reads the cells' summaries.
pub fn cell_inputs(
    cells: impl IntoIterator<Item = CellSeed>,
    cache: &Cache,
) -> Result<Vec<CellInput>> {
    let mut inputs = Vec::new();
    let imports = import::Imports::of(cache);
    for CellSeed {
        mut input,
        summary,
        imported,
    } in cells
    {
        if let Some((claims, statistics)) = imported.as_deref() {
            let runs = import::runs(cache, &imports, &input.cell, claims)?;
            if !runs.is_empty() {
                let dropped = import::set_aside(cache, &imports, &input.cell)?;
                let summary = import::summary(&runs, statistics).disclosing(dropped);
                input = import::input(
                    &input.cell,
                    &runs,
                    CellState::Ok {
                        summary: Box::new(summary),
                    },
                );
            } else if let Some(reason) = import::told_set_aside(cache, &imports, &input.cell)? {
                input.state = CellState::Missing { reason };
            }
        } else if let Some(digest) = summary {
            input.state = CellState::Ok {
                summary: Box::new(read::<Summary>(cache, &digest, "summary.json")?),
            };
        }
        inputs.push(input);
    }
    Ok(inputs)
}

/// The comparison that a plot or a report shows.
pub fn read_comparison(cache: &Cache, stored: Option<&Output>) -> Result<Comparison> {
    let Output { name, digest, .. } =
        stored.ok_or_else(|| Error::Internal("the comparison has no record".to_owned()))?;
    let read = cache.get_json(digest)?.ok_or_else(|| gone(digest, name))?;
    read.map_err(|e| not_ours(digest, name, e))
}

/// The cells with runs that the last comparison did not count; `outputs` are its task's. A file of
/// its own, since the comparison of many cells takes longer to read than all else of a plan.
pub(super) fn read_uncounted(cache: &Cache, outputs: &[Output]) -> Result<BTreeSet<String>> {
    let Some(output) = outputs.iter().find(|output| output.name == UNCOUNTED) else {
        return Ok(BTreeSet::new());
    };
    read(cache, &output.digest, UNCOUNTED)
}

const UNCOUNTED: &str = "uncounted.json";

/// Stores the comparison as a stream: for ten thousand cells its text is some hundred MiB, and is
/// never whole in memory.
fn put_comparison(cache: &Cache, comparison: &Comparison) -> Result<Output> {
    let (digest, size) = cache.put_json(comparison, Durability::Plain)?;
    Ok(Output {
        name: "compare.json".to_owned(),
        digest,
        size,
    })
}

pub(super) fn need(cache: &Cache, digest: &Digest, name: &str) -> Result<Vec<u8>> {
    cache.get(digest)?.ok_or_else(|| gone(digest, name))
}

fn gone(digest: &Digest, name: &str) -> Error {
    CacheError::Gone {
        what: format!("`{name}` ({})", digest.short()),
        again: "build again",
    }
    .into()
}

fn read<T: serde::de::DeserializeOwned>(cache: &Cache, digest: &Digest, name: &str) -> Result<T> {
    serde_json::from_slice(&need(cache, digest, name)?).map_err(|e| not_ours(digest, name, e))
}

fn not_ours(digest: &Digest, name: &str, source: serde_json::Error) -> Error {
    CacheError::OtherVersion {
        what: format!("`{name}` ({})", digest.short()),
        source,
    }
    .into()
}

fn json_bytes(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::Internal(format!("cannot write JSON: {e}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}

//! Imports × what is claimed of their cell → results and a summary, as a build makes them of its own runs.

use super::{Imports, Kind, OldResult, Recorded, names, read};
use crate::{
    analyze::{
        CellEnvironment, CellInput, CellState, Claim, Contract, FieldDifference, Note, NoteKind, RunFacts, RunOutcome,
        RunResult, Standing, Statistics, Summary, Tier, differences, repeated_runs, summarize,
    },
    cache::Cache,
    config::is_plain_name,
    error::Result,
    parse::Anomaly,
    plan::{Plan, model_shape},
};

/// One imported run, judged.
#[derive(Clone, Debug)]
pub struct ImportedRun {
    pub recorded: Recorded,
    pub result: RunResult,
}

/// What is claimed of a cell's imports.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Claims {
    /// Of a log: the cell's whole job where the matrix has the cell, else its model.
    log: Claim,
    /// Of a result file, whose own labels come on top.
    file: Claim,
    platform: String,
    model: String,
}

/// What config.yaml and the matrix claim of a cell.
#[must_use]
pub fn claim_for(plan: &Plan, cell: &str) -> Claims {
    let mut parts = cell.split(['/', '@']);
    let (platform, model) = (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default());
    let file = Claim::of_model(model_shape(&plan.config, model));
    let job = plan.cells.iter().position(|c| c.id == cell).and_then(|at| plan.prepared(at));
    let log = job.map_or_else(|| file.clone(), |prepared| Claim::of(prepared.job()));
    Claims { log, file, platform: platform.to_owned(), model: model.to_owned() }
}

/// `platform/framework/model/parallelism`, with `@axis=value,…` or without.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let (base, axes) = text.split_once('@').map_or((text, None), |(base, axes)| (base, Some(axes)));
    let parts: Vec<&str> = base.split('/').collect();
    let axis =
        |axis: &str| axis.split_once('=').is_some_and(|(name, value)| is_plain_name(name) && is_plain_name(value));
    parts.len() == 4 && parts.iter().all(|p| is_plain_name(p)) && axes.is_none_or(|axes| axes.split(',').all(axis))
}

impl ImportedRun {
    pub fn read(cache: &Cache, recorded: Recorded, claims: &Claims) -> Result<Self> {
        let old = read::read(cache, &recorded)?;
        Ok(Self::judge(old, recorded, claims))
    }

    fn judge(mut old: OldResult, recorded: Recorded, claims: &Claims) -> Self {
        let mut claim = if recorded.kind == Kind::Result { claims.file.clone() } else { claims.log.clone() };
        if recorded.is_guessed
            && let Some(differs) = claim.take_shape(&old.trace)
        {
            let model = &claims.model;
            let detail = format!(
                "the log states a shape of its own, which is used instead of config.yaml's `{model}`: {differs}. \
                 To hold it against `{model}`, name the cell: `tprimat import CELL --log FILE`"
            );
            old.anomalies.push(Anomaly { kind: "shape_of_log".to_owned(), detail });
        }
        old.claim(&mut claim);
        if let Some(named) = &old.platform
            && let Some(vendor) = crate::config::vendor_named(&named.to_lowercase())
            && let Some(of_cell) = crate::config::vendor_named(&claims.platform)
            && vendor != of_cell
        {
            let detail = format!("the file says platform `{named}`, the cell `{}`", claims.platform);
            old.anomalies.push(Anomaly { kind: "platform_differs".to_owned(), detail });
        }
        let outcome = match &old.trace.failure {
            None => RunOutcome::Ok,
            Some(failure) => RunOutcome::Failed {
                class: failure.class,
                evidence: failure.evidence.clone(),
                status: "as the log says".to_owned(),
            },
        };
        let facts = RunFacts {
            attempt: recorded.id(),
            host: old.host.take().unwrap_or_else(|| "not stated".to_owned()),
            started_at: old.started_at,
            ended_at: old.ended_at,
            outcome,
        };
        let complete = old.trace.finished;
        let mut result = RunResult::of_claim(old.trace, &claim, facts, complete);
        result.anomalies.splice(0..0, old.anomalies);
        result.suspect = old.suspect;
        if result.outcome != RunOutcome::Ok {
            result.log_tail = old.log_tail;
        }
        Self { recorded, result }
    }
}

/// In what the work itself differs; runs that do are no repeats of each other.
#[must_use]
pub fn other_workload(a: &Contract, b: &Contract) -> Option<String> {
    let told = |d: &FieldDifference| d.is_known() && d.tier == Tier::Workload;
    differences(a, b).into_iter().find(told).map(|d| d.sentence())
}

/// The warm-up that config.yaml declares for every run.
#[must_use]
pub fn statistics(plan: &Plan) -> Statistics {
    let steps = plan.config.get("benchmarking.warmup.skip_steps").and_then(serde_json::Value::as_u64);
    Statistics { warmup_steps: steps.unwrap_or(0) }
}

/// All imported runs of a cell, in order of import.
pub fn runs(cache: &Cache, imports: &Imports, cell: &str, claims: &Claims) -> Result<Vec<ImportedRun>> {
    let recorded = imports.runs(cell, cache)?;
    recorded.into_iter().map(|recorded| ImportedRun::read(cache, recorded, claims)).collect()
}

/// The statistics over a cell's imports; they say what they are.
#[must_use]
pub fn summary(runs: &[ImportedRun], statistics: &Statistics) -> Summary {
    let mut results: Vec<(u32, RunResult)> = (1..).zip(runs.iter().map(|r| r.result.clone())).collect();
    for (at, same) in repeated_runs(&results).into_iter().enumerate() {
        // Several repeats in one file are what its author measured, whatever they look like.
        let is_of_one_file = |n: u32| runs[n as usize - 1].recorded.sources == runs[at].recorded.sources;
        if let Some(earlier) = same.filter(|n| !is_of_one_file(*n)) {
            let why = format!("it is the same run as repeat {earlier}: every step has the same time and loss");
            results[at].1.no_rate.get_or_insert(why);
        }
    }
    let mut summary = summarize(&results, statistics);
    let mut notes: Vec<Note> = Vec::new();
    for (n, run) in (1u32..).zip(runs) {
        let published = run.result.trace.totals.get("published_tokens_per_second_per_gpu");
        let ours = summary.repeats.iter().find(|r| r.repeat == n).and_then(|r| r.steady.as_ref());
        let differs = |(published, ours): &(&f64, &crate::analyze::Steady)| {
            (*published / ours.tokens_per_second_per_gpu - 1.0).abs() > 0.005
        };
        if let Some((published, ours)) = published.zip(ours).filter(differs) {
            let text = format!(
                "repeat {n}: the file publishes {published:.0} tokens/s/GPU; its labels and steps, {} of warm-up dropped, give {:.0}",
                statistics.warmup_steps.saturating_add(ours.cut.as_ref().map_or(0, |c| c.dropped_steps)),
                ours.tokens_per_second_per_gpu
            );
            notes.push(Note::new(NoteKind::Doubtful, text));
        }
    }
    summary.notes.extend(notes);
    summary
}

/// A cell as the comparison wants it.
#[must_use]
pub fn input(cell: &str, runs: &[ImportedRun], state: CellState) -> CellInput {
    let (base, axes) = cell.split_once('@').unwrap_or((cell, ""));
    let mut parts = base.split('/').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    let from: Vec<String> = runs.iter().map(|r| r.recorded.from()).collect();
    CellInput {
        cell: cell.to_owned(),
        platform: part(),
        framework: part(),
        model: part(),
        parallelism: part(),
        axes: axes.split(',').filter_map(|a| a.split_once('=')).map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
        repeats_wanted: u32::try_from(runs.len()).unwrap_or(u32::MAX),
        state,
        same_launch_as: None,
        imported: from,
        environment: CellEnvironment::default(),
        standing: Standing::default(),
    }
}

/// What a run's content tells of its cell, for files whose name does not.
pub fn content_guess(cache: &Cache, recorded: &Recorded, plan: &Plan) -> Result<names::Guess> {
    let old = read::read(cache, recorded)?;
    let format = if recorded.kind == Kind::Log { old.trace.format.as_str() } else { "" };
    let device = old.trace.device.as_ref().and_then(|d| d.name.as_deref()).unwrap_or_default();
    let of_device = if device.contains("NVIDIA") || device.contains("H100") {
        Some("nvd")
    } else if device.contains("AMD") || device.contains("Instinct") {
        Some("amd")
    } else {
        // Primus and its prints exist on this platform only.
        (format == "primus").then_some("amd")
    };
    let config = &plan.config;
    Ok(names::Guess {
        platform: old.platform.as_deref().or(of_device).and_then(|p| names::platform_named(p, config)),
        framework: old
            .framework
            .as_deref()
            .and_then(|f| names::framework_of(f, config))
            .or_else(|| names::framework_of(format, config)),
        model: None,
        rest: Vec::new(),
    })
}

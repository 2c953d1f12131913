//! Imports × what is claimed of their cell → results and a summary, as a build makes them of its
//! own runs.

use super::{Facts, Imports, OldResult, OnDamage, Recorded, listed, read, result::writers_of};
use crate::{
    cache::{Cache, SetAside, is_of_one_file},
    config::{framework_named, is_plain_name, vendor_named},
    error::Result,
    figures::{
        Dropped, Note, NoteKind, Statistics, Summary, Telemetry, codes::SUPPLIED, device_vendor,
        repeated_runs, summarize,
    },
    job::{RunOutcome, Vendor},
    logs::Anomaly,
    matrix::Cell,
    plan::{Plan, model_shape},
    results::{
        AttestationStatus, Claim, Contract, FieldDifference, Reason, RunFacts, RunResult, Tier,
        anomalies::ENDS_EARLY, anomaly, differences, ends_early, labels_against,
    },
};

/// One imported run, judged.
#[derive(Clone, Debug)]
pub struct ImportedRun {
    /// As in `CELL#2`; it stays the run's own when another import of the cell is set aside.
    pub number: u32,
    pub recorded: Recorded,
    pub result: RunResult,
    /// What the file says of its platform or device, where that is of another vendor than the
    /// cell's platform. Then it has no rate.
    pub other_platform: Option<String>,
    /// What the file publishes as sampled beside the run.
    telemetry: Option<Telemetry>,
    /// The train key that a file published by tprimat states: runs with another key had other inputs.
    pub train_key: Option<String>,
}

/// What is claimed of a cell's imports.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Claims {
    /// The cell's whole job where the matrix has the cell, else its model; labels of a result file
    /// come on top.
    job: Claim,
    platform: String,
    framework: String,
    vendor: Option<Vendor>,
    model: String,
    /// The warm-up that config.yaml declares for every run.
    pub statistics: Statistics,
}

/// What config.yaml and the matrix claim of a cell.
#[must_use]
pub fn claim_for(plan: &Plan, cell: &str) -> Claims {
    let Cell {
        platform,
        framework,
        model,
        ..
    } = Cell::of_id(cell);
    let of_model = || Claim::of_model(model_shape(&plan.config, &model));
    let planned = plan.cells.with_ids().find(|(_, of)| of.id == cell);
    let prepared = planned.and_then(|(at, _)| plan.prepared(at));
    Claims {
        job: prepared.map_or_else(of_model, |prepared| Claim::of(prepared.job())),
        platform: platform.to_string(),
        framework: framework.to_string(),
        vendor: plan.config.vendor(&platform),
        model: model.to_string(),
        statistics: Statistics {
            warmup_steps: plan.config.settings().benchmarking.warmup.skip_steps,
        },
    }
}

/// `platform/framework/model/parallelism`, with `@axis=value,…` or without.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let (base, axes) = text
        .split_once('@')
        .map_or((text, None), |(base, axes)| (base, Some(axes)));
    let parts: Vec<&str> = base.split('/').collect();
    let axis = |axis: &str| {
        axis.split_once('=')
            .is_some_and(|(name, value)| is_plain_name(name) && is_plain_name(value))
    };
    parts.len() == 4
        && parts.iter().all(|p| is_plain_name(p))
        && axes.is_none_or(|axes| axes.split(',').all(axis))
}

impl ImportedRun {
    pub fn read(cache: &Cache, number: u32, recorded: Recorded, claims: &Claims) -> Result<Self> {
        let old = read::read(cache, &recorded)?;
        Ok(Self::judge(old, number, recorded, claims))
    }

    #[must_use]
    pub fn judge(mut old: OldResult, number: u32, recorded: Recorded, claims: &Claims) -> Self {
        let mut findings = Vec::new();
        let mut claim = claims.job.clone();
        let has_no_model = !claim.covers("num_layers");
        if (recorded.is_guessed || has_no_model)
            && let Some(changes) = claim.take_shape(&old.trace)
            && !changes.is_empty()
        {
            let model = &claims.model;
            let detail = format!(
                "the log states a shape of its own, which is used instead of config.yaml's `{model}`: {changes}. To hold it against \
                 `{model}`, name the cell: `tprimat import CELL --log FILE`"
            );
            findings.push(anomaly("shape_of_log", detail));
        }
        // Nobody said that it is this model: a word in the file's name did.
        let is_guess = recorded.is_guessed && claim.fields.is_some();
        if let Some(other) = claim.other_shape(&old.trace).filter(|_| is_guess) {
            findings.push(not_the_model(&claims.model, &other));
            claim = Claim::of_model(None);
            claim.take_shape(&old.trace);
        }
        // A file that is put into a cell of the matrix says of itself what a log would state.
        let mut contradicted = Vec::new();
        if claim.fields.is_none() {
            let mut labels = Claim::of_model(None);
            old.claim(&mut labels);
            contradicted = labels_against(&claim, &labels);
        }
        old.claim(&mut claim);
        let other_platform =
            other_platform(&old, claims).or_else(|| other_framework(&old.trace.format, claims));
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
            host: old.host.take().unwrap_or_default(),
            started_at: old.started_at,
            ended_at: old.ended_at,
            outcome,
        };
        let early = ends_early(&old.trace).filter(|_| !old.trace.finished);
        // An excerpt may begin and end anywhere, but one that says itself that it was cut is not the
        // run that a cell of the matrix asks for.
        let complete = old.trace.finished || (early.is_some() && claim.fields.is_none());
        if let Some((asked, last)) = early.filter(|_| !complete) {
            let detail = format!("the log says {asked} iterations and ends at {last}");
            findings.push(anomaly(ENDS_EARLY, detail));
        }
        let is_counted_alike = ["megatron", "primus", "torchtitan"].contains(&&*old.trace.format);
        let unnamed = (is_guess && is_counted_alike).then(|| {
            let mut claim = Claim::of_model(None);
            old.claim(&mut claim);
            (claim, old.trace.clone())
        });
        let mut result = RunResult::of_claim(old.trace, &claim, facts.clone(), complete);
        // These trainers' counts of FLOPs are known to a thousandth, so one that is only near shows another model.
        let of_flops = result.attestation.fields.iter().find(|field| {
            field.field == "flops_per_token_from_rate"
                && field.status != AttestationStatus::Attested
        });
        let how = of_flops.and_then(|field| field.arithmetic.clone());
        if let Some(((unnamed, trace), how)) = unnamed.zip(how) {
            findings.push(not_the_model(&claims.model, &how));
            result = RunResult::of_claim(trace, &unnamed, facts, complete);
        }
        result.attestation.contradict(contradicted);
        result.repeats_planned = old.repeats_planned;
        result.workload.step_time_source =
            old.step_time_source.or(result.workload.step_time_source);
        findings.extend(old.anomalies);
        result.anomalies.splice(0..0, findings);
        result.suspect = old.suspect;
        result.no_rate = result
            .no_rate
            .or_else(|| other_platform.clone().map(Reason::stated));
        if result.outcome != RunOutcome::Ok {
            result.log_tail = old.log_tail;
        } else if result.trace.steps.is_empty() && result.trace.totals.is_empty() {
            result.no_rate = other_platform
                .clone()
                .or_else(|| Some("no training step is in it".to_owned()))
                .map(Reason::stated);
        }
        Self {
            number,
            recorded,
            result,
            other_platform,
            telemetry: old.telemetry,
            train_key: old.train_key,
        }
    }
}

/// The log refutes the model that its file is named after.
fn not_the_model(model: &str, how: &str) -> Anomaly {
    let detail = format!(
        "the log is not of config.yaml's `{model}`, which its file is named after: {how}. No model is claimed"
    );
    anomaly("not_the_model_of_its_name", detail)
}

/// Whose log it is, where the cell is of another framework that tprimat ships.
fn other_framework(format: &str, claims: &Claims) -> Option<String> {
    let cell = framework_named(&claims.framework)?;
    let writers = writers_of(format)?;
    let is_other = writers.iter().all(|writer| writer != cell);
    is_other.then(|| format!("the log is in {format}'s format, the cell's framework is `{cell}`"))
}

/// What a file says of its platform or device that is of another vendor than the cell's platform.
fn other_platform(old: &OldResult, claims: &Claims) -> Option<String> {
    let (cell, of_cell) = (&claims.platform, claims.vendor?);
    let labelled = old.platform.as_deref().and_then(|named| {
        let said = format!("the file says platform `{named}`, the cell `{cell}`");
        Some((vendor_named(&named.to_lowercase())?, said))
    });
    let on_device = old.trace.device.as_ref().and_then(|device| {
        let name = device.name.as_deref().unwrap_or_default();
        let is_cpu = device.r#type == "cpu";
        let vendor = is_cpu.then_some(Vendor::Cpu).or(device_vendor(name))?;
        let what = match name {
            "" => "a CPU".to_owned(),
            name => format!("\"{name}\""),
        };
        let said = format!("the device is {what}, the cell's platform `{cell}`");
        Some((vendor, said))
    });
    // Only one vendor's devices have such memory.
    let is_hip =
        |source: Option<&str>| source.is_some_and(|name| ["hip", "rocm-smi"].contains(&name));
    let mut steps = old.trace.steps.iter();
    let on_hip = steps.any(|step| {
        let mut figures = step.memory_figures.iter();
        is_hip(step.memory_source.as_deref()) || figures.any(|figure| is_hip(Some(&figure.source)))
    });
    let of_memory = on_hip.then(|| {
        let said =
            format!("the log counts the memory of AMD's GPUs (HIP), the cell's platform `{cell}`");
        (Vendor::Amd, said)
    });
    let mut all = labelled.into_iter().chain(on_device).chain(of_memory);
    all.find(|(vendor, _)| *vendor != of_cell)
        .map(|(_, said)| said)
}

/// In what the work itself differs; runs that do are no repeats of each other.
#[must_use]
pub fn other_workload(a: &Contract, b: &Contract) -> Option<String> {
    let told = |d: &FieldDifference| d.is_known() && d.tier == Tier::Workload;
    differences(a, b).into_iter().find(told).map(|d| d.words())
}

/// All imported runs of a cell that count, in order of import. One with a damaged file is left to
/// `on_damage`.
pub fn runs(
    cache: &Cache,
    imports: &Imports,
    cell: &str,
    claims: &Claims,
    on_damage: OnDamage,
) -> Result<Vec<ImportedRun>> {
    let mut runs = Vec::new();
    for kept in imports.counted(cell) {
        match ImportedRun::read(cache, kept.number, kept.recorded.clone(), claims) {
            Ok(run) => runs.push(run),
            Err(error) if is_of_one_file(&error) => on_damage(&kept.name(), error)?,
            Err(error) => return Err(error),
        }
    }
    mark_repeated(&mut runs, &claims.statistics);
    Ok(runs)
}

/// What was imported of a cell and set aside, for its summary to name.
#[must_use]
pub fn set_aside(imports: &Imports, cell: &str) -> Vec<Dropped> {
    let dropped = |(repeat, why): (u32, &SetAside)| Dropped {
        repeat,
        set_aside: vec![why.reason.clone()],
        ..Dropped::default()
    };
    imports.set_aside_of(cell).map(dropped).collect()
}

/// Which import of a cell was set aside and why, and how it is taken back; none where none was.
#[must_use]
pub fn told_set_aside(imports: &Imports, cell: &str) -> Option<String> {
    let (first, why) = imports.set_aside_of(cell).next()?;
    let what = match imports.set_aside_of(cell).count() {
        1 => "its import was set aside".to_owned(),
        n => format!("its {n} imports were set aside, the first"),
    };
    let restore = format!("`tprimat cache restore {cell}#{first}` lets it count again");
    Some(format!("{what} ({}); {restore}", why.reason))
}

/// Takes the rate from runs that are another one once more.
fn mark_repeated(runs: &mut [ImportedRun], statistics: &Statistics) {
    let sources = |n: u32| {
        let run = runs.iter().find(|run| run.number == n);
        run.map(|run| &run.recorded.sources)
    };
    // Several repeats in one file are what its author measured, whatever they look like.
    let are_of_two_files = |a: u32, b: u32| sources(a) != sources(b);
    let repeated = repeated_runs(&results(runs), statistics, are_of_two_files);
    for (run, same) in runs.iter_mut().zip(repeated) {
        if let Some(other) = same {
            let why = format!(
                "it is the same run as repeat {other}: every step has the same time and loss"
            );
            run.result.no_rate.get_or_insert(Reason::stated(why));
        }
    }
}

fn results(runs: &[ImportedRun]) -> Vec<(u32, RunResult)> {
    runs.iter().map(|r| (r.number, r.result.clone())).collect()
}

/// The statistics over a cell's imports; they say what they are.
#[must_use]
pub fn summary(runs: &[ImportedRun], statistics: &Statistics) -> Summary {
    let mut summary = summarize(&results(runs), statistics);
    let supplied: Facts = runs.iter().flat_map(ImportedRun::supplied).collect();
    if !supplied.is_empty() {
        let text = format!(
            "{} as its importer says, which no log states",
            listed(&supplied)
        );
        let note = Note::new(NoteKind::Dangerous, SUPPLIED, text);
        summary.notes.push(note);
    }
    // It has a repeat for each run, in their order.
    for (repeat, run) in summary.repeats.iter_mut().zip(runs) {
        repeat.telemetry = run.telemetry.clone();
        let Some(steady) = &repeat.steady else {
            continue;
        };
        // What was metered are the steps that its author measured, which another warm-up makes
        // others.
        if let Some(telemetry) = &mut repeat.telemetry {
            let step = steady.step_time.mean_seconds;
            if (telemetry.seconds - steady.steps as f64 * step).abs() > 0.5 * step {
                telemetry.energy = None;
            }
        }
        let totals = &run.result.trace.totals;
        let published = totals.get("published_tokens_per_second_per_gpu");
        let ours = steady.tokens_per_second_per_gpu;
        if let Some(published) = published.filter(|rate| (*rate / ours - 1.0).abs() > 0.005) {
            let dropped = steady.cut.as_ref().map_or(0, |cut| cut.dropped_steps);
            let text = format!(
                "repeat {}: the file publishes {published:.0} tokens/s per device; its labels and steps, {} of warm-up dropped, give \
                 {ours:.0}",
                run.number,
                statistics.warmup_steps.saturating_add(dropped)
            );
            let note = Note::new(NoteKind::Doubtful, "published_rate_differs", text);
            summary.notes.push(note);
        }
    }
    summary
}

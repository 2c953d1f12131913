//! One cell × its recipe × the config → its [`Job`], checked.
//!
//! The rules about batch and parallel sizes live in this folder and nowhere else: TP × PP × CP × DP
//! = GPUs in `parallelism`, and GBS = MBS × DP × GA with GA derived here and held against what is
//! stated in `check`.

mod check;
mod model;
mod parallelism;
mod settings_reader;

use std::collections::BTreeMap;

use serde_json::Value;

pub use model::model_shape;
pub use settings_reader::CellProblem;
pub(super) use settings_reader::SettingsReader;

use super::{Execution, data::DataKind, execution};
use crate::{
    config::{Config, Origin, framework_keys},
    error::did_you_mean,
    figures::Statistics,
    job::{DataJob, InitJob, Job, OptimizerJob, ParallelismJob, Vendor},
    matrix::Cell,
    recipe::Recipe,
};
use check::{check, measures};
use model::{model, named_files};
use parallelism::parallelism;

/// What resolving a cell gives.
pub struct Resolved {
    pub job: Job,
    /// Declared environment: recipe, then platform, then framework; later ones win.
    pub env: BTreeMap<String, String>,
    pub share: bool,
    /// Globs of project files that belong in the train key.
    pub inputs: Vec<String>,
    pub timeout_seconds: Option<f64>,
    /// After how many median steps without a step a run counts as hung, and after how many seconds
    /// at the least; `None`: never.
    pub hang: Option<(f64, f64)>,
    /// Idle time after each measured run of this cell.
    pub cooldown_seconds: f64,
    pub statistics: Statistics,
    /// Where config.yaml says that data files are: a path as written, or of a tokenizer its name on
    /// a hub.
    pub data_paths: BTreeMap<DataKind, String>,
    /// How runs are started.
    pub execution: Execution,
    /// What was understood or adapted in a way that the reader should know.
    pub notes: Vec<String>,
}

/// Why a cell has no job.
pub enum Unresolved {
    /// The input is wrong.
    Problems(Vec<CellProblem>),
    /// The input is right, but not for this cell; what to write to have it.
    Refused(String),
}

/// Resolves one cell; every problem of it at once.
pub fn resolve(config: &Config, cell: &Cell, recipe: &Recipe) -> Result<Resolved, Unresolved> {
    let view = config.view(&recipe.defaults, &cell.overlay).of_cell(
        &cell.platform,
        cell.vendor,
        &cell.framework,
    );
    let mut r = SettingsReader::new(view);
    let vendor = vendor(&mut r, &cell.platform);
    let parallelism = match parallelism(&mut r, cell, vendor) {
        Ok(parallelism) => parallelism,
        Err(why) => return Err(Unresolved::Refused(why)),
    };
    let named = named_files(&mut r, &cell.model);
    let Some(model) = model(&mut r, &cell.model, &named) else {
        return Err(Unresolved::Problems(r.problems));
    };
    let mut notes = Vec::new();
    let train_iters = r.positive("training.duration.train_iters");
    let mut job = Job {
        vendor,
        model,
        data: data(&mut r, &parallelism),
        train_iters,
        optimizer: optimizer(&mut r, &recipe.file.optional, &mut notes),
        precision: precision(&mut r),
        fp8_hybrid: r.flag("training.precision.fp8_hybrid"),
        fp8_param: r.flag("training.precision.fp8_param"),
        compile: r.flag("training.compile"),
        compile_mode: r.word("training.compile_mode"),
        activation_checkpointing: r.flag("training.activation_checkpointing"),
        sac_frequency: r.count("training.sac_frequency"),
        offload: r.flag("training.offload"),
        seed: r.count("training.seed"),
        initialisation: InitJob {
            std: r.real("training.init_std"),
        },
        parallelism,
        framework: framework(&mut r, &cell.framework, recipe),
    };
    job.optimizer.warmup_steps = try_out(
        &r,
        WARMUP,
        job.optimizer.warmup_steps,
        train_iters + 1,
        train_iters,
        &mut notes,
    );
    let skipped = r.count(SKIPPED);
    let skipped = try_out(&r, SKIPPED, skipped, train_iters, train_iters, &mut notes);
    notes.extend(
        r.view
            .overruled()
            .into_iter()
            .map(|(counts, other, value)| {
                format!(
                    "`{other}: {}` is not used where `{counts}` says otherwise",
                    crate::config::plain(value)
                )
            }),
    );
    if !r.is_guessing {
        check(&mut r, cell, &job);
        measures(&mut r, &job, skipped);
    }
    let resolved = Resolved {
        env: environment(&mut r, cell, vendor, recipe),
        share: r
            .bool(&format!("frameworks.{}.share", cell.framework))
            .unwrap_or(recipe.file.launch.share),
        inputs: strings(r.view.get(&format!("frameworks.{}.inputs", cell.framework))),
        timeout_seconds: timeout(&mut r, &cell.framework, recipe),
        hang: hang(&mut r, &cell.framework),
        cooldown_seconds: r.real("benchmarking.runs.cooldown_seconds"),
        statistics: Statistics {
            warmup_steps: skipped,
        },
        data_paths: named
            .into_iter()
            .map(|(kind, (_, path))| (kind, path))
            .collect(),
        execution: execution::execution(&mut r, cell, vendor, recipe),
        notes,
        job,
    };
    if r.problems.is_empty() {
        Ok(resolved)
    } else {
        Err(Unresolved::Problems(r.problems))
    }
}

const WARMUP: &str = "training.optimizer.warmup_steps";
const SKIPPED: &str = "benchmarking.warmup.skip_steps";

/// A warm-up of `steps` in a run that a variable or `--set` made shorter than config.yaml or the
/// matrix meant: half of the run, where it would otherwise reach `limit`.
fn try_out(
    r: &SettingsReader,
    path: &str,
    steps: u64,
    limit: u64,
    train_iters: u64,
    notes: &mut Vec<String>,
) -> u64 {
    let asked = r
        .view
        .origin("training.duration.train_iters")
        .map(|(_, origin)| origin);
    let is_try_out = matches!(asked, Some(Origin::Environment(_) | Origin::Set));
    let is_insisted = matches!(
        r.view.origin(path),
        Some((_, Origin::Environment(_) | Origin::Set))
    );
    if steps < limit || !is_try_out || is_insisted {
        return steps;
    }
    let shorter = train_iters / 2;
    notes.push(format!(
        "`{path}` is {shorter} instead of {steps}: the run has only {train_iters} steps"
    ));
    shorter
}

fn timeout(r: &mut SettingsReader, framework: &str, recipe: &Recipe) -> Option<f64> {
    let path = format!("frameworks.{framework}.timeout");
    let text = r
        .string(&path)
        .or_else(|| recipe.file.run.timeout.clone())?;
    duration(r, &path, &text)
}

fn duration(r: &mut SettingsReader, path: &str, text: &str) -> Option<f64> {
    let seconds = seconds(text);
    if seconds.is_none() {
        r.problem(
            path,
            format!("`{text}` is not a duration"),
            "expected something like 90s, 30m or 6h",
        );
    }
    seconds
}

/// `90s`, `30m`, `1h 30m` → seconds.
fn seconds(text: &str) -> Option<f64> {
    let duration: jiff::SignedDuration = text.trim().parse().ok()?;
    (duration > jiff::SignedDuration::ZERO).then(|| duration.as_secs_f64())
}

/// Generous: saving a checkpoint, or an evaluation, may stand between two steps.
const HANG: (f64, &str) = (100.0, "10m");

fn hang(r: &mut SettingsReader, framework: &str) -> Option<(f64, f64)> {
    let path = format!("frameworks.{framework}.hang_least");
    let text = r.string(&path).unwrap_or_else(|| HANG.1.to_owned());
    let least = duration(r, &path, &text)?;
    let factor = r
        .f64(&format!("frameworks.{framework}.hang_factor"))
        .unwrap_or(HANG.0);
    (factor > 0.0).then_some((factor, least))
}

fn vendor(r: &mut SettingsReader, platform: &str) -> Vendor {
    let path = format!("hardware.platforms.{platform}.vendor");
    let name = r.string(&path).unwrap_or_else(|| platform.to_owned());
    crate::config::vendor_named(&name).unwrap_or_else(|| {
        r.problem(
            &path,
            format!("`{name}` is not a vendor"),
            "expected nvd (nvidia, cuda), amd (rocm) or cpu",
        );
        Vendor::Cpu
    })
}

fn data(r: &mut SettingsReader, parallelism: &ParallelismJob) -> DataJob {
    let mbs = r.positive("training.data.micro_batch_size");
    let gbs = r.positive("training.data.global_batch_size");
    DataJob {
        micro_batch_size: mbs,
        global_batch_size: gbs,
        gradient_accumulation_steps: (gbs
            / mbs.saturating_mul(parallelism.data_parallel_size).max(1))
        .max(1),
        seq_length: r.positive("training.data.seq_length"),
    }
}

/// `is_own`: a command of the user's may have a learning rate of its own, which is then in no job.
fn optimizer(r: &mut SettingsReader, optional: &[String], notes: &mut Vec<String>) -> OptimizerJob {
    let at = |key: &str| format!("training.optimizer.{key}");
    let mut name = r.word(&at("type")).to_lowercase();
    if name == "adam" {
        notes.push(
            "`training.optimizer.type: adam` is AdamW here, with decoupled weight decay, as in Megatron and NeMo"
                .into(),
        );
        "adamw".clone_into(&mut name);
    }
    OptimizerJob {
        r#type: name,
        learning_rate: if optional.contains(&at("learning_rate")) {
            r.f64(&at("learning_rate")).unwrap_or_default()
        } else {
            r.real(&at("learning_rate"))
        },
        min_learning_rate: r.real(&at("min_learning_rate")),
        warmup_steps: r.count(WARMUP),
        weight_decay: r.real(&at("weight_decay")),
        beta1: r.real(&at("beta1")),
        beta2: r.real(&at("beta2")),
        eps: r.real(&at("eps")),
        clip_grad: r.real(&at("clip_grad")),
        state_precision: r.word(&at("state_precision")),
    }
}

fn precision(r: &mut SettingsReader) -> String {
    const KNOWN: [&str; 3] = ["fp32", "bf16", "fp8"];
    let path = "training.precision.default";
    let name = r.word(path);
    if !KNOWN.contains(&name.as_str()) {
        r.problem(
            path,
            format!("`{name}` is not a precision"),
            "expected fp32, bf16 or fp8",
        );
    }
    name
}

fn framework(r: &mut SettingsReader, id: &str, recipe: &Recipe) -> BTreeMap<String, Value> {
    let own = framework_keys();
    let mut table = r.view.table(&format!("frameworks.{id}"));
    table.retain(|key, _| !own.contains(&key.as_str()));
    let settings = r.view.table(&format!("frameworks.{id}.settings"));
    for (key, value) in settings {
        if table.get(&key).is_some_and(|other| *other != value) {
            let path = format!("frameworks.{id}.settings.{key}");
            r.problem(
                &path,
                format!("`{key}` of `{id}` is given twice, with two values"),
                "also a key of the framework itself",
            );
        }
        table.insert(key, value);
    }
    let Some(known) = &recipe.file.launch.options else {
        return table;
    };
    for key in table.keys().filter(|key| !known.contains(key)) {
        let direct = format!("frameworks.{id}.{key}");
        let path = if r.view.nested(&direct).is_some() {
            direct
        } else {
            format!("frameworks.{id}.settings.{key}")
        };
        let names = known.iter().map(String::as_str).chain(own.iter().copied());
        let help = did_you_mean(key, names.clone())
            .unwrap_or_else(|| format!("it has {}", names.collect::<Vec<_>>().join(", ")));
        let problem = r.view.problem_at(
            &path,
            format!("the recipe `{id}` has no option `{key}`"),
            "would change nothing",
        );
        r.push(problem.help(help));
    }
    table
}

fn environment(
    r: &mut SettingsReader,
    cell: &Cell,
    vendor: Vendor,
    recipe: &Recipe,
) -> BTreeMap<String, String> {
    let mut env = recipe.file.launch.env.clone();
    env.extend(recipe.file.env.get(&vendor).cloned().unwrap_or_default());
    env.extend(
        r.view
            .platform_env(&cell.platform, vendor)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_string())),
    );
    let path = format!("frameworks.{}.env", cell.framework);
    for (name, value) in r.view.table(&path) {
        match value {
            Value::String(text) => drop(env.insert(name, text)),
            Value::Null => drop(env.remove(&name)),
            Value::Array(_) | Value::Object(_) => {
                r.problem(
                    &format!("{path}.{name}"),
                    format!("`{name}` is not a string or a number"),
                    "here",
                );
            }
            number => drop(env.insert(name, number.to_string())),
        }
    }
    env
}

pub(super) fn strings(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(many)) => many
            .iter()
            .filter_map(|v| Some(v.as_str()?.to_owned()))
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;

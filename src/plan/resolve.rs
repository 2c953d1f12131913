//! One cell × its recipe × the config → its [`Job`], checked.
//!
//! The rules about batch and parallel sizes live in this folder and nowhere else: TP × PP × CP × DP
//! = GPUs in `parallelism`, and GBS = MBS × DP × GA with GA derived here and held against what is
//! stated in `check`.

mod check;
mod model;
mod parallelism;
mod settings_reader;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

pub use model::model_shape;
pub use settings_reader::CellProblem;
pub(super) use settings_reader::SettingsReader;

use super::{Execution, command_words::plain_words, data::DataKind, execution, lookup::is_own};
use crate::{
    config::{
        Config, Origin, framework_keys, framework_named, plain,
        schema::{Data, Framework, Model, Optimizer, Platform, Runs, Scalar, Training, Warmup},
        vendor_named,
    },
    error::did_you_mean,
    figures::Statistics,
    job::{DataJob, InitJob, Job, OptimizerJob, ParallelismJob, Vendor},
    matrix::Cell,
    recipe::{COMMAND, Recipe, Unfilled, filled},
    words::slip_of,
};
use check::{batch, card, check, measures};
use model::{model, named_files};
use parallelism::parallelism;

/// What resolving a cell gives.
pub struct Resolved {
    pub job: Job,
    /// Declared environment: recipe, then platform, then framework; later ones win.
    pub env: BTreeMap<String, String>,
    pub share: bool,
    /// Globs of project files that belong in the train key, where config.yaml states them.
    pub inputs: Option<Vec<String>>,
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
    /// Settings of the losses that nobody wrote, neither in a file nor into a command of the user's own: their values are
    /// tprimat's defaults, which such a command need not heed.
    pub unwritten: Vec<&'static str>,
    /// What was understood or adapted in a way that the reader should know.
    pub notes: Vec<String>,
}

/// The path at which config.yaml states degrees for the cell's framework alone: the block that the
/// cell takes, or the framework's own within it, for a wider one would not be used.
pub fn own_degrees(config: &Config, cell: &Cell, vendor: Vendor, recipe: &Recipe) -> String {
    let Cell {
        platform,
        framework,
        model,
        parallelism: strategy,
        ..
    } = cell;
    let view = config.view(&recipe.defaults, &cell.overlay);
    let view = view.of_cell(platform, cell.vendor, framework);
    let block = view.parallelism(strategy, model, platform, vendor, framework);
    let path = block.map_or_else(
        || format!("parallelism.{strategy}"),
        |(path, _)| path.to_string(),
    );
    match path.rsplit('.').next() {
        Some(last) if framework_named(last).unwrap_or(last) == &**framework => path,
        _ => format!("{path}.{framework}"),
    }
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
    let platform: Platform = r.entry(&cell.platform);
    let vendor = vendor(&mut r, &cell.platform, &platform);
    let block = r.view.parallelism(
        &cell.parallelism,
        &cell.model,
        &cell.platform,
        vendor,
        &cell.framework,
    );
    let parallelism = match parallelism(&mut r, cell, block.as_ref(), platform.num_gpus) {
        Ok(parallelism) => parallelism,
        Err(why) => return Err(Unresolved::Refused(why)),
    };
    let knows_devices = !r.is_guessing;
    let stated: Model = r.entry(&cell.model);
    let named = named_files(&mut r, &cell.model, &stated);
    let model = model(&mut r, &cell.model, &stated, &named);
    let has_shape = model.is_some();
    // What else is wrong with the cell is told at once.
    r.is_guessing |= !has_shape;
    let training: Training = r.section();
    let own: Framework = r.entry(&cell.framework);
    let mut notes = Vec::new();
    let train_iters = r.needed(training.duration.train_iters, TRAIN_ITERS);
    let mut job = Job {
        vendor,
        model: model.unwrap_or_default(),
        data: data(
            &mut r,
            &training.data,
            &parallelism,
            recipe.file.launch.has_option(COMMAND),
        ),
        task: training.task,
        lora_rank: training.lora_rank,
        train_iters,
        optimizer: optimizer(
            &mut r,
            training.optimizer,
            &recipe.file.optional,
            &mut notes,
        ),
        precision: training.precision.default,
        fp8_hybrid: training.precision.fp8_hybrid,
        fp8_param: training.precision.fp8_param,
        compile: training.compile,
        compile_mode: training.compile_mode,
        activation_checkpointing: training.activation_checkpointing,
        sac_frequency: training.sac_frequency,
        offload: training.offload,
        seed: training.seed,
        initialisation: InitJob {
            std: training.init_std,
        },
        parallelism,
        framework: framework(&mut r, &cell.framework, &own, recipe),
    };
    if job.model.sliding_window >= job.data.seq_length {
        // It lets everything through, as without one.
        (job.model.sliding_window, job.model.sliding_window_pattern) = (0, 0);
    }
    job.optimizer.warmup_steps = try_out(
        &r,
        WARMUP,
        job.optimizer.warmup_steps,
        train_iters + 1,
        train_iters,
        &mut notes,
    );
    let skipped = r.section::<Warmup>().skip_steps;
    let skipped = try_out(&r, SKIPPED, skipped, train_iters, train_iters, &mut notes);
    let runs: Runs = r.section();
    notes.extend(
        r.view
            .overruled()
            .into_iter()
            .map(|(counts, other, value)| {
                format!(
                    "`{other}: {}` is not used where `{counts}` says otherwise",
                    plain(value)
                )
            }),
    );
    let is_command = recipe.file.launch.is_open();
    let sizes = &training.data;
    let has_sizes = sizes.micro_batch_size.is_some() && sizes.global_batch_size.is_some();
    if knows_devices && has_sizes && !r.view.is_guessed("training.data") {
        batch(&mut r, &job, block.as_ref(), is_command);
    }
    if !r.is_guessing {
        check(&mut r, cell, &job, block.as_ref(), is_command);
        card(&mut r, &job, platform.gpu_model.as_deref());
        measures(&mut r, &job, skipped);
    }
    let unwritten = unwritten(&r, &job, recipe);
    fill_command(&mut r, cell, &mut job, recipe);
    let resolved = Resolved {
        env: environment(&r, cell, vendor, recipe, own.env),
        share: own.share.unwrap_or(recipe.file.launch.share),
        inputs: own.inputs,
        timeout_seconds: timeout(&mut r, &cell.framework, own.timeout, recipe),
        hang: hang(&mut r, &cell.framework, own.hang_least, own.hang_factor),
        cooldown_seconds: runs.cooldown_seconds,
        statistics: Statistics {
            warmup_steps: skipped,
        },
        data_paths: named
            .into_iter()
            .map(|(kind, (_, path))| (kind, path))
            .collect(),
        execution: execution::execution(&mut r, cell, vendor, recipe),
        unwritten,
        notes,
        job,
    };
    // A shape is also not known where the file has a mistake that was told.
    if r.problems.is_empty() && has_shape {
        Ok(resolved)
    } else {
        Err(Unresolved::Problems(r.problems))
    }
}

const TRAIN_ITERS: &str = "training.duration.train_iters";
const WARMUP: &str = "training.optimizer.warmup_steps";
const LEARNING_RATE: &str = "training.optimizer.learning_rate";
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
    let asked = r.view.origin(TRAIN_ITERS).map(|(_, origin)| origin);
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

fn timeout(
    r: &mut SettingsReader,
    framework: &str,
    stated: Option<String>,
    recipe: &Recipe,
) -> Option<f64> {
    let text = stated.or_else(|| recipe.file.run.timeout.clone())?;
    duration(r, &format!("frameworks.{framework}.timeout"), &text)
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

fn hang(
    r: &mut SettingsReader,
    framework: &str,
    least: Option<String>,
    factor: Option<f64>,
) -> Option<(f64, f64)> {
    let text = least.unwrap_or_else(|| HANG.1.to_owned());
    let least = duration(r, &format!("frameworks.{framework}.hang_least"), &text)?;
    let factor = factor.unwrap_or(HANG.0);
    (factor > 0.0).then_some((factor, least))
}

fn vendor(r: &mut SettingsReader, id: &str, platform: &Platform) -> Vendor {
    let name = platform.vendor.as_deref().unwrap_or(id);
    vendor_named(name).unwrap_or_else(|| {
        r.problem(
            &format!("hardware.platforms.{id}.vendor"),
            format!("`{name}` is not a vendor"),
            "expected nvd (nvidia, cuda), amd (rocm) or cpu",
        );
        Vendor::Cpu
    })
}

/// A command of the user's own need not know of micro-batches: without one, a step is one batch.
fn data(
    r: &mut SettingsReader,
    stated: &Data,
    parallelism: &ParallelismJob,
    is_command: bool,
) -> DataJob {
    // With a micro-batch alone, a step is one of each rank.
    let of_micro = stated.micro_batch_size.filter(|_| is_command);
    let of_micro = of_micro.map(|mbs| mbs.saturating_mul(parallelism.data_parallel_size.max(1)));
    let gbs = stated.global_batch_size.or(of_micro);
    let gbs = r.needed(gbs, "training.data.global_batch_size");
    let whole = gbs / parallelism.data_parallel_size.max(1);
    let whole = Some(whole.max(1)).filter(|_| is_command);
    let mbs = stated.micro_batch_size.or(whole);
    let mbs = r.needed(mbs, "training.data.micro_batch_size");
    DataJob {
        micro_batch_size: mbs,
        global_batch_size: gbs,
        gradient_accumulation_steps: (gbs
            / mbs.saturating_mul(parallelism.data_parallel_size).max(1))
        .max(1),
        seq_length: r.needed(stated.seq_length, "training.data.seq_length"),
    }
}

/// A recipe may take a learning rate to be `optional`: a command of the user's may have one of its
/// own, which is then in no job.
fn optimizer(
    r: &mut SettingsReader,
    stated: Optimizer,
    optional: &[String],
    notes: &mut Vec<String>,
) -> OptimizerJob {
    let mut name = stated.r#type.to_lowercase();
    if name == "adam" {
        notes.push(
            "`training.optimizer.type: adam` is AdamW here, with decoupled weight decay, as in Megatron and NeMo"
                .into(),
        );
        "adamw".clone_into(&mut name);
    }
    if name != "adamw" {
        r.problem(
            "training.optimizer.type",
            format!("`{name}` is not an optimiser tprimat knows"),
            "expected adamw, or adam for the same",
        );
    }
    OptimizerJob {
        r#type: name,
        learning_rate: if optional.iter().any(|path| path == LEARNING_RATE) {
            stated.learning_rate.unwrap_or_default()
        } else {
            r.needed(stated.learning_rate, LEARNING_RATE)
        },
        min_learning_rate: stated.min_learning_rate,
        warmup_steps: stated.warmup_steps,
        lr_decay_style: stated.lr_decay_style,
        wsd_decay_steps: stated.wsd_decay_steps,
        weight_decay: stated.weight_decay,
        beta1: stated.beta1,
        beta2: stated.beta2,
        eps: stated.eps,
        clip_grad: stated.clip_grad,
        state_precision: stated.state_precision,
    }
}

/// The recipe's options: further keys of the framework, and its `settings`.
fn framework(
    r: &mut SettingsReader,
    id: &str,
    own: &Framework,
    recipe: &Recipe,
) -> BTreeMap<String, Value> {
    let mut table = own.options.clone();
    let reserved = framework_keys();
    for (key, value) in &own.settings {
        if reserved.contains(&key.as_str()) {
            // Somebody who thinks that it is read would believe figures of files that nobody watches.
            let path = format!("frameworks.{id}.settings.{key}");
            let message = format!("`{key}` is no option of the recipe: tprimat itself reads it");
            let problem = r.view.problem_at(&path, message, "would not be read here");
            r.push(problem.help(format!("write it as `frameworks.{id}.{key}`")));
            continue;
        }
        if table.get(key).is_some_and(|other| other != value) {
            let path = format!("frameworks.{id}.settings.{key}");
            r.problem(
                &path,
                format!("`{key}` of `{id}` is given twice, with two values"),
                "also a key of the framework itself",
            );
        }
        table.insert(key.clone(), value.clone());
    }
    let launch = &recipe.file.launch;
    for key in table.keys().filter(|key| !launch.has_option(key)) {
        let is_direct = own.options.contains_key(key);
        let names = launch.option_names().chain(reserved.iter().copied());
        let help = if launch.is_open() {
            // What stands under `settings` is the command's own for sure. A mistyped `inputs` would
            // leave files out of every key, a mistyped axis would compare a cell with itself.
            let Some(meant) = slip_of(key, names).filter(|_| is_direct) else {
                continue;
            };
            format!(
                "did you mean `{meant}`? An option of the command's own may be called so as `settings.{key}`"
            )
        } else {
            did_you_mean(key, names.clone())
                .unwrap_or_else(|| format!("it has {}", names.collect::<Vec<_>>().join(", ")))
        };
        let path = if is_direct {
            format!("frameworks.{id}.{key}")
        } else {
            format!("frameworks.{id}.settings.{key}")
        };
        let mut message = format!("the recipe `{id}` has no option `{key}`");
        let mut help = help;
        if key == COMMAND && framework_named(id).is_some() {
            let written = r
                .view
                .spelled(&path)
                .and_then(|path| path.split('.').nth(1));
            message = match written.filter(|written| *written != id) {
                Some(written) => {
                    format!(
                        "`{written}` is another name of the shipped recipe `{id}`, which has no option `{key}`"
                    )
                }
                None => format!("`{id}` is a shipped recipe, which has no option `{key}`"),
            };
            help = "give the framework of your own command another name".to_owned();
        }
        let problem = r.view.problem_at(&path, message, "would change nothing");
        r.push(problem.help(help));
    }
    // A text without anything that is a shell's is the list of its words, however it is written.
    if let Some(Value::String(text)) = table.get(COMMAND)
        && launch.has_option(COMMAND)
        && let Some(words) = plain_words(text)
    {
        table.insert(COMMAND.to_owned(), words.into());
    }
    table
}

/// Fills the job's settings into the command of the user's own.
fn fill_command(r: &mut SettingsReader, cell: &Cell, job: &mut Job, recipe: &Recipe) {
    let Some(stated) = job.framework.get(COMMAND) else {
        return;
    };
    if !recipe.file.launch.has_option(COMMAND) {
        return;
    }
    match filled(stated, job, &cell.model) {
        Ok(command) => drop(job.framework.insert(COMMAND.to_owned(), command)),
        Err(Unfilled { message, help }) => {
            let path = format!("frameworks.{}.{COMMAND}", cell.framework);
            let problem = r.view.problem_at(&path, message, "here");
            r.push(match help {
                Some(help) => problem.help(help),
                None => problem,
            });
        }
    }
}

/// Settings that nobody wrote and that a command of the user's own names nowhere. `job`: with the command as it is written, before
/// its places are filled.
fn unwritten(r: &SettingsReader, job: &Job, recipe: &Recipe) -> Vec<&'static str> {
    const DEFAULTS: [&str; 15] = [
        "training.compile",
        "training.activation_checkpointing",
        "training.offload",
        "training.init_std",
        "training.seed",
        "training.optimizer.learning_rate",
        "training.optimizer.min_learning_rate",
        "training.optimizer.warmup_steps",
        "training.optimizer.lr_decay_style",
        "training.optimizer.wsd_decay_steps",
        "training.optimizer.weight_decay",
        "training.optimizer.beta1",
        "training.optimizer.beta2",
        "training.optimizer.eps",
        "training.optimizer.clip_grad",
    ];
    let Some(command) = job.framework.get(COMMAND).map(Value::to_string) else {
        return Vec::new();
    };
    let is_default = |path: &str| matches!(r.view.origin(path), None | Some((_, Origin::Default)));
    let paths = DEFAULTS.into_iter().filter(|path| is_default(path));
    let names = paths.filter_map(|path| Some(path.rsplit_once('.')?.1));
    // The optimizer's states are of its type, the data of the model's dataset; where nobody states a micro-batch, that of the job
    // is one of several that the trainer may take.
    let optimizer: &[_] = match is_default("training.optimizer.type") {
        true => &["optimizer", "optimizer_state_precision"],
        false => &[],
    };
    let data: &[_] = match job.model.dataset.is_none() {
        true => &["data"],
        false => &[],
    };
    let micro: &[_] = match is_default("training.data.micro_batch_size") {
        true => &["micro_batch_size", "gradient_accumulation_steps"],
        false => &[],
    };
    let others = [optimizer, data, micro].into_iter().flatten().copied();
    let names = names.chain(others);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // Only a place hands a setting over; the same word outside is the script's.
    let places = command.split("{{").skip(1);
    let places = places.filter_map(|rest| Some(rest.split_once("}}")?.0));
    let words: BTreeSet<&str> = places
        .flat_map(|place| place.split(|c| !is_word(c)))
        .collect();
    match is_own(recipe) {
        true => names.filter(|name| !words.contains(name)).collect(),
        false => Vec::new(),
    }
}

/// `own`: the framework's variables, of which a null takes away what the recipe or the platform
/// sets.
fn environment(
    r: &SettingsReader,
    cell: &Cell,
    vendor: Vendor,
    recipe: &Recipe,
    own: BTreeMap<String, Scalar>,
) -> BTreeMap<String, String> {
    let mut env = recipe.file.launch.env.clone();
    env.extend(recipe.file.env.get(&vendor).cloned().unwrap_or_default());
    env.extend(
        r.view
            .platform_env(&cell.platform, vendor)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_string())),
    );
    for (name, Scalar(value)) in own {
        match value {
            Value::Null => drop(env.remove(&name)),
            value => drop(env.insert(name, plain(&value))),
        }
    }
    env
}

#[cfg(test)]
mod tests;

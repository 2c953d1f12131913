//! One cell × its recipe × the config → its [`Job`], checked.
//!
//! The rules about batch and parallel sizes live here and nowhere else:
//! TP × PP × CP × DP = GPUs, and GBS = MBS × DP × GA with GA derived.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Execution, data::DataKind, execution};
use crate::{
    config::{Config, Origin, View, framework_keys},
    error::{Problem, did_you_mean},
    figures::Statistics,
    job::{
        DataJob, InitJob, Job, ModelShape, OptimizerJob, ParallelismJob, RopeScaling, Sharding,
        Vendor, count_parameters,
    },
    matrix::Cell,
    recipe::Recipe,
};

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
    Problems(Vec<Problem>),
    /// The input is right, but not for this cell; what to write to have it.
    Refused(String),
}

/// Collects problems, so that one pass reports all of them.
pub(super) struct Reader<'a> {
    pub view: View<'a>,
    pub problems: Vec<Problem>,
    /// A value is missing where the file is wrong: what follows from it is not known, and not
    /// judged.
    is_guessing: bool,
}

impl Reader<'_> {
    fn take<T>(&mut self, value: Result<Option<T>, Problem>) -> Option<T> {
        value.unwrap_or_else(|problem| {
            self.problems.push(problem);
            None
        })
    }
    pub fn u64(&mut self, path: &str) -> Option<u64> {
        let value = self.view.u64(path);
        self.take(value)
    }
    fn f64(&mut self, path: &str) -> Option<f64> {
        let value = self.view.f64(path);
        self.take(value)
    }
    pub fn bool(&mut self, path: &str) -> Option<bool> {
        let value = self.view.bool(path);
        self.take(value)
    }
    pub fn string(&mut self, path: &str) -> Option<String> {
        let value = self.view.str(path).map(|v| v.map(str::to_owned));
        self.take(value)
    }
    /// A value that is stated or has a built-in default. The one table of defaults is that of
    /// `config::schema`.
    fn set<T: Default>(
        &mut self,
        path: &str,
        get: impl Fn(&View<'_>, &str) -> Result<Option<T>, Problem>,
    ) -> T {
        let value = get(&self.view, path);
        self.take(value).unwrap_or_else(|| {
            if self.view.get(path).is_none() && self.view.is_faulty_around(path) {
                self.is_guessing = true;
            } else if self.view.get(path).is_none() {
                let problem =
                    self.view
                        .problem_at(path, format!("`{path}` is not set"), "needed below here");
                let key = path.rsplit('.').next().unwrap_or(path);
                let help = format!("write `{key}: VALUE`; a null is the same as no line");
                self.problems.push(problem.help(help));
            }
            T::default()
        })
    }
    fn flag(&mut self, path: &str) -> bool {
        self.set(path, |view, path| view.bool(path))
    }
    fn count(&mut self, path: &str) -> u64 {
        self.set(path, |view, path| view.u64(path))
    }
    fn real(&mut self, path: &str) -> f64 {
        self.set(path, |view, path| view.f64(path))
    }
    fn word(&mut self, path: &str) -> String {
        self.set(path, |view, path| Ok(view.str(path)?.map(str::to_owned)))
    }
    fn positive(&mut self, path: &str) -> u64 {
        let value = self.count(path);
        if value == 0 && self.view.get(path).is_some_and(|v| v.as_f64() == Some(0.0)) {
            self.problem(path, format!("`{path}` must be at least 1"), "is 0");
        }
        value.max(1)
    }
    pub fn problem(&mut self, path: &str, message: String, label: &str) {
        let problem = self.view.problem_at(path, message, label);
        self.problems.push(problem);
    }
}

/// Resolves one cell; every problem of it at once.
pub fn resolve(config: &Config, cell: &Cell, recipe: &Recipe) -> Result<Resolved, Unresolved> {
    let view = config.view(&recipe.defaults, &cell.overlay).of_cell(
        &cell.platform,
        cell.vendor,
        &cell.framework,
    );
    let mut r = Reader {
        view,
        problems: Vec::new(),
        is_guessing: false,
    };
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
        measures(&mut r, cell, &job, skipped);
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
    r: &Reader,
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

/// The shape that config.yaml gives a model, for runs that are no cell of a matrix.
#[must_use]
pub fn model_shape(config: &Config, id: &str) -> Option<ModelShape> {
    if !config.children("models").any(|known| known == id) {
        return None;
    }
    let nothing = crate::config::Values::default();
    let mut r = Reader {
        view: config.view(&nothing, &[]),
        problems: Vec::new(),
        is_guessing: false,
    };
    let named = named_files(&mut r, id);
    let shape = model(&mut r, id, &named);
    shape.filter(|_| r.problems.is_empty())
}

fn timeout(r: &mut Reader, framework: &str, recipe: &Recipe) -> Option<f64> {
    let path = format!("frameworks.{framework}.timeout");
    let text = r
        .string(&path)
        .or_else(|| recipe.file.run.timeout.clone())?;
    duration(r, &path, &text)
}

fn duration(r: &mut Reader, path: &str, text: &str) -> Option<f64> {
    let seconds = super::seconds(text);
    if seconds.is_none() {
        r.problem(
            path,
            format!("`{text}` is not a duration"),
            "expected something like 90s, 30m or 6h",
        );
    }
    seconds
}

/// Generous: saving a checkpoint, or an evaluation, may stand between two steps.
const HANG: (f64, &str) = (100.0, "10m");

fn hang(r: &mut Reader, framework: &str) -> Option<(f64, f64)> {
    let path = format!("frameworks.{framework}.hang_least");
    let text = r.string(&path).unwrap_or_else(|| HANG.1.to_owned());
    let least = duration(r, &path, &text)?;
    let factor = r
        .f64(&format!("frameworks.{framework}.hang_factor"))
        .unwrap_or(HANG.0);
    (factor > 0.0).then_some((factor, least))
}

fn vendor(r: &mut Reader, platform: &str) -> Vendor {
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

fn named_files(r: &mut Reader, model: &str) -> BTreeMap<DataKind, (String, String)> {
    let kinds = [DataKind::Dataset, DataKind::Tokenizer];
    kinds
        .into_iter()
        .filter_map(|kind| Some((kind, named_file(r, model, kind)?)))
        .collect()
}

/// What a model's dataset or tokenizer is called, and its path; nothing where the path is not set,
/// or empty.
fn named_file(r: &mut Reader, model: &str, kind: DataKind) -> Option<(String, String)> {
    let at = |what: &str| format!("models.{model}.{}_{what}", kind.name());
    let path = r.string(&at("path")).filter(|path| !path.is_empty())?;
    let stated = r.string(&at("name")).filter(|name| !name.is_empty());
    let Some(name) = stated.or_else(|| kind.name_in(&path)) else {
        r.problem(
            &at("path"),
            format!("`{path}` does not end with a name"),
            &format!("give it a {}_name", kind.name()),
        );
        return None;
    };
    Some((name, path))
}

/// None: the shape is not known, which is one problem and says all that is missing.
fn model(
    r: &mut Reader,
    model: &str,
    named: &BTreeMap<DataKind, (String, String)>,
) -> Option<ModelShape> {
    let at = |key: &str| format!("models.{model}.{key}");
    const NEEDED: [&str; 6] = [
        "architecture",
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "vocab_size",
    ];
    let missing: Vec<&str> = NEEDED
        .into_iter()
        .filter(|key| r.view.get(&at(key)).is_none())
        .collect();
    if !missing.is_empty() && r.view.is_faulty_around(&at("num_layers")) {
        return None;
    }
    if let Some(unlike) = r
        .view
        .unlike_built_in(model)
        .filter(|_| !missing.is_empty())
    {
        let mut problem = unlike.clone();
        let missing = missing.join(", ");
        problem.message = format!("{}, so its {missing} are not known", problem.message);
        let help = "correct this line, or state the whole shape of a model of your own";
        r.problems.push(problem.help(help));
        return None;
    }
    if !missing.is_empty() {
        let message = format!("`models.{model}` lacks {}", missing.join(", "));
        let problem = r.view.problem_at(
            &format!("models.{model}"),
            message,
            "its shape is not known",
        );
        let help = "state them, name a Hugging Face config.json as `hf_config`, or give it the `name` of a model whose shape is built in, as in `name: Llama 3.1 8B`";
        r.problems.push(problem.help(help));
        return None;
    }
    let heads = r.positive(&at("num_attention_heads"));
    let hidden = r.positive(&at("hidden_size"));
    let head_dim = r.u64(&at("head_dim"));
    if head_dim.is_none() && !hidden.is_multiple_of(heads) {
        let message =
            format!("`{model}`: a hidden size of {hidden} does not divide by {heads} heads");
        r.problem(
            &at("hidden_size"),
            message,
            "hidden_size % num_attention_heads must be 0, or head_dim stated",
        );
    }
    let rope_scaling = r.view.table(&at("rope_scaling"));
    let mut shape = ModelShape {
        architecture: r.word(&at("architecture")).to_lowercase(),
        num_layers: r.positive(&at("num_layers")),
        hidden_size: hidden,
        ffn_hidden_size: r.positive(&at("ffn_hidden_size")),
        num_attention_heads: heads,
        num_kv_heads: r.u64(&at("num_kv_heads")).unwrap_or(heads),
        head_dim: head_dim.unwrap_or(hidden / heads),
        vocab_size: r.positive(&at("vocab_size")),
        max_position_embeddings: r.u64(&at("max_position_embeddings")).unwrap_or(0),
        rope_theta: r.f64(&at("rope_theta")).unwrap_or(0.0),
        rope_scaling: None,
        norm_eps: r.real(&at("norm_eps")),
        tie_embeddings: r.flag(&at("tie_embeddings")),
        qkv_bias: r.flag(&at("qkv_bias")),
        num_parameters: 0,
        dataset: named.get(&DataKind::Dataset).map(|(name, _)| name.clone()),
        tokenizer: named
            .get(&DataKind::Tokenizer)
            .map(|(name, _)| name.clone()),
        nemo_recipe: r
            .string(&at("nemo_recipe"))
            .map(|recipe| recipe.trim_end_matches(".pretrain_recipe").to_owned()),
        primus_config: r.string(&at("primus_config")),
    };
    if !rope_scaling.is_empty() {
        match serde_json::from_value::<RopeScaling>(Value::Object(
            rope_scaling.into_iter().collect(),
        )) {
            Ok(scaling) => shape.rope_scaling = Some(scaling),
            Err(e) => r.problem(
                &at("rope_scaling"),
                format!("rope_scaling of `{model}`: {e}"),
                "here",
            ),
        }
    }
    let tolerance = r.real("validation.num_parameters_tolerance");
    match count_parameters(&shape) {
        Some(count) => {
            shape.num_parameters = count;
            if let Some(stated) = r.f64(&at("num_parameters"))
                && (stated - count as f64).abs() > tolerance * count as f64
            {
                r.problem(
                    &at("num_parameters"),
                    format!("`{model}` is said to have {stated} parameters, its shape has {count}"),
                    &format!("more than {} % off", tolerance * 100.0),
                );
            }
        }
        None => r.problem(
            &at("architecture"),
            format!(
                "`{}` is not an architecture tprimat can count",
                shape.architecture
            ),
            "expected llama, qwen2, mistral or gpt2",
        ),
    }
    Some(shape)
}

/// Err: the strategy says nothing for the cell, or asks for more GPUs than one host has.
fn parallelism(r: &mut Reader, cell: &Cell, vendor: Vendor) -> Result<ParallelismJob, String> {
    let Cell {
        platform,
        model,
        parallelism: strategy,
        ..
    } = cell;
    let platform_gpus = r.u64(&format!("hardware.platforms.{platform}.num_gpus"));
    let found = r
        .view
        .parallelism(strategy, model, platform, vendor, &cell.framework);
    let Some((path, block)) = found else {
        let gpus = platform_gpus.unwrap_or(1);
        return Err(format!(
            "the strategy `{strategy}` says nothing for {model} on {platform}: add `{model}: {{ {platform}: {{ TP: 1, PP: 1, DP: {gpus} }} }}` below `parallelism.{strategy}`, with the degrees that you want"
        ));
    };
    // One device where nobody says how many there are.
    let of_nodes = block.nodes.unwrap_or(1).max(1);
    let of_platform = || Some(platform_gpus?.saturating_mul(of_nodes));
    let num_gpus = block.num_gpus.or_else(of_platform).unwrap_or(1);
    let num_nodes = nodes(&path, platform, (num_gpus, block.nodes), platform_gpus)?;
    let (tp, pp, cp) = (
        block.tp.unwrap_or(1).max(1),
        block.pp.unwrap_or(1).max(1),
        block.cp.unwrap_or(1).max(1),
    );
    let model_parallel = tp.saturating_mul(pp).saturating_mul(cp);
    let dp = block
        .dp
        .unwrap_or((num_gpus / model_parallel).max(1))
        .max(1);
    if model_parallel.saturating_mul(dp) != num_gpus {
        r.problem(
            &path,
            format!(
                "{cell}: TP {tp} × PP {pp} × CP {cp} × DP {dp} = {}, and num_gpus is {num_gpus}",
                model_parallel.saturating_mul(dp)
            ),
            "TP × PP × CP × DP must equal the number of GPUs",
        );
    }
    // `ZeRO-3` and `zero_3` are what others write.
    let sharding = block.sharding.clone().unwrap_or_default().to_lowercase();
    let sharding = sharding.replace("zero-", "zero").replace("zero_", "zero");
    let known = Sharding::named(&sharding);
    // A recipe refuses those that it has not. A name that nobody knows would change nothing.
    if !sharding.is_empty() && known.is_none() {
        let problem = r.view.problem_at(
            &path,
            format!("{cell}: `{sharding}` is not a way of sharding"),
            "named here",
        );
        let help = did_you_mean(&sharding, Sharding::names()).unwrap_or_else(|| {
            format!(
                "expected one of {}",
                Sharding::names().collect::<Vec<_>>().join(", ")
            )
        });
        r.problems.push(problem.help(help));
    }
    // One word for plain data parallelism: jobs that ask for the same must be the same, and every
    // recipe know it.
    let sharding = if known == Some(Sharding::None) {
        Sharding::None.name().to_owned()
    } else {
        sharding
    };
    Ok(ParallelismJob {
        tensor_model_parallel_size: tp,
        pipeline_model_parallel_size: pp,
        context_parallel_size: cp,
        data_parallel_size: dp,
        num_gpus,
        num_nodes,
        sharding,
    })
}

/// The hosts of a run: those that are stated, else as many as its GPUs need. All have the same
/// number of them; in words why that cannot be.
fn nodes(
    path: &str,
    platform: &str,
    (num_gpus, stated): (u64, Option<u64>),
    of_host: Option<u64>,
) -> Result<u64, String> {
    let told = || {
        let of_host = of_host.unwrap_or_default();
        format!("a host of {platform} has {of_host} (`hardware.platforms.{platform}.num_gpus`)")
    };
    let nodes = match (stated, of_host) {
        (Some(nodes), _) => nodes.max(1),
        (None, Some(of_host)) if num_gpus > of_host.max(1) => {
            if num_gpus % of_host.max(1) != 0 {
                return Err(format!(
                    "`{path}` asks for {num_gpus} GPUs, and {}: a run over several hosts takes whole hosts; `nodes` states another number of hosts",
                    told()
                ));
            }
            num_gpus / of_host.max(1)
        }
        _ => 1,
    };
    if num_gpus % nodes != 0 {
        return Err(format!(
            "`{path}` asks for {num_gpus} GPUs on {nodes} nodes: each node must have the same number of them"
        ));
    }
    match of_host {
        Some(of_host) if num_gpus / nodes > of_host => Err(format!(
            "`{path}` asks for {num_gpus} GPUs on {nodes} nodes, so {} on each, and {}",
            num_gpus / nodes,
            told()
        )),
        _ => Ok(nodes),
    }
}

fn data(r: &mut Reader, parallelism: &ParallelismJob) -> DataJob {
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
fn optimizer(r: &mut Reader, optional: &[String], notes: &mut Vec<String>) -> OptimizerJob {
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

fn precision(r: &mut Reader) -> String {
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

fn framework(r: &mut Reader, id: &str, recipe: &Recipe) -> BTreeMap<String, Value> {
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
        r.problems.push(problem.help(help));
    }
    table
}

fn environment(
    r: &mut Reader,
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

/// A run none of whose steps is counted costs its time for nothing.
fn measures(r: &mut Reader, cell: &Cell, job: &Job, skipped: u64) {
    if skipped >= job.train_iters {
        let message = format!(
            "{cell}: no step would be measured, for the first {skipped} of a run of {} are warm-up",
            job.train_iters
        );
        let problem = r
            .view
            .problem_at("training.duration.train_iters", message, "too short");
        r.problems
            .push(problem.help(format!("train longer, or lower `{SKIPPED}`")));
    }
}

/// Rules across fields.
fn check(r: &mut Reader, cell: &Cell, job: &Job) {
    let (data, p, m) = (&job.data, &job.parallelism, &job.model);
    let product = data
        .micro_batch_size
        .saturating_mul(p.data_parallel_size)
        .saturating_mul(data.gradient_accumulation_steps);
    if product != data.global_batch_size {
        r.problem(
            "training.data.global_batch_size",
            format!(
                "{cell}: a global batch of {} is not a multiple of MBS {} × DP {}",
                data.global_batch_size, data.micro_batch_size, p.data_parallel_size
            ),
            "GBS = MBS × DP × GA",
        );
    }
    let block = r.view.parallelism(
        &cell.parallelism,
        &cell.model,
        &cell.platform,
        job.vendor,
        &cell.framework,
    );
    if let Some((path, block)) = block
        && let Some(stated) = block.ga
        && stated != data.gradient_accumulation_steps
    {
        let message = format!(
            "{cell}: GA is stated as {stated}, but GBS {} / (MBS {} × DP {}) = {}",
            data.global_batch_size,
            data.micro_batch_size,
            p.data_parallel_size,
            data.gradient_accumulation_steps
        );
        r.problem(
            &path,
            message,
            "GA is derived; a stated one is an assertion",
        );
    }
    let tp = p.tensor_model_parallel_size;
    if m.num_attention_heads % tp != 0 {
        let path = format!("models.{}.num_attention_heads", cell.model);
        r.problem(
            &path,
            format!(
                "{cell}: {} attention heads do not divide by TP {tp}",
                m.num_attention_heads
            ),
            "heads % TP must be 0",
        );
    }
    if m.num_kv_heads == 0 || m.num_attention_heads % m.num_kv_heads != 0 {
        let path = format!("models.{}.num_kv_heads", cell.model);
        r.problem(
            &path,
            format!(
                "`{}`: {} heads cannot share {} key-value heads",
                cell.model, m.num_attention_heads, m.num_kv_heads
            ),
            "heads % KV heads must be 0",
        );
    }
    let pp = p.pipeline_model_parallel_size;
    if m.num_layers % pp != 0 {
        let path = format!("models.{}.num_layers", cell.model);
        r.problem(
            &path,
            format!("{cell}: {} layers do not divide by PP {pp}", m.num_layers),
            "layers % PP must be 0",
        );
    }
    if m.max_position_embeddings > 0 && data.seq_length > m.max_position_embeddings {
        r.problem(
            "training.data.seq_length",
            format!(
                "{cell}: a sequence of {} is longer than the {} learned positions of `{}`",
                data.seq_length, m.max_position_embeddings, cell.model
            ),
            "too long for this model",
        );
    }
    if job.optimizer.r#type != "adamw" {
        r.problem(
            "training.optimizer.type",
            format!(
                "`{}` is not an optimiser tprimat knows",
                job.optimizer.r#type
            ),
            "expected adamw, or adam for the same",
        );
    }
    if !["fp32", "bf16"].contains(&job.optimizer.state_precision.as_str()) {
        r.problem(
            "training.optimizer.state_precision",
            format!(
                "`{}` is not a state precision",
                job.optimizer.state_precision
            ),
            "expected fp32 or bf16",
        );
    }
    if job.optimizer.warmup_steps > job.train_iters {
        r.problem(
            "training.optimizer.warmup_steps",
            format!(
                "{cell}: {} warm-up steps in a run of {}",
                job.optimizer.warmup_steps, job.train_iters
            ),
            "longer than the run",
        );
    }
}

#[cfg(test)]
mod tests;

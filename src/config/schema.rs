//! The keys of config.yaml: their types, bounds, built-in defaults and documentation.
//!
//! `shape` compiles the JSON Schema of these structs into what every value is checked against where
//! it comes in. Their `Default`s are the lowest layer: the only table of defaults there is. `None`
//! means that a key has no default. `sections` fills them with the effective values, which is what
//! code reads.
//!
//! Every key either changes what is trained, measured or printed, or is marked `x-descriptive` with
//! the reason why it changes nothing (a test changes each and looks). A null in config.yaml is the
//! same as leaving the line out.

mod model;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::job::{Decay, PRECISIONS, Task};
pub use model::{Model, RopeScaling};

/// config.yaml: the single source of truth for everything that is not an axis of the matrix.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigFile {
    pub experiment: Experiment,
    pub hardware: Hardware,
    /// By the id that a matrix names.
    pub models: BTreeMap<String, Model>,
    pub training: Training,
    /// By strategy, then model, platform and framework; the most specific block wins whole.
    pub parallelism: BTreeMap<String, Parallelism>,
    /// By platform id or vendor; stronger than `training.*`.
    pub platform_optimizations: BTreeMap<String, PlatformOptimizations>,
    /// By framework id.
    pub frameworks: BTreeMap<String, Framework>,
    /// By platform id or vendor: where its runs start.
    pub execution: BTreeMap<String, Execution>,
    pub benchmarking: Benchmarking,
    pub comparison: Comparison,
    pub paths: Paths,
    #[schemars(extend("x-descriptive" = "`experiment.profiling` starts a profiler"))]
    pub profiling: BTreeMap<String, Value>,
    pub validation: Validation,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Experiment {
    /// Name of the implied matrix.
    pub name: Option<String>,
    #[schemars(extend("x-descriptive" = "a text for people"))]
    pub description: Option<String>,
    #[schemars(extend("type" = ["string", "number", "null"], "x-descriptive" = "a text for people"))]
    pub version: Option<Value>,
    /// That matrix's strategy; `PARALLEL` is stronger.
    pub methodology: Option<String>,
    /// Profile each cell once; `true`: by its vendor's profiler.
    #[schemars(extend("type" = ["boolean", "string", "null"], "enum" = [true, false, "nsys", "rocprof", "torch", null]))]
    pub profiling: Option<Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Hardware {
    pub platforms: BTreeMap<String, Platform>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Platform {
    /// Absent = the id.
    #[schemars(extend("enum" = ["nvd", "nvidia", "cuda", "amd", "rocm", "cpu", null]))]
    pub vendor: Option<String>,
    /// Whole or short: `H100`.
    pub gpu_model: Option<String>,
    /// As the maker counts them.
    #[schemars(range(min = 0))]
    pub memory_per_gpu_gb: Option<f64>,
    /// Devices of one host.
    #[schemars(range(min = 1))]
    pub num_gpus: Option<u64>,
    #[schemars(extend("x-descriptive" = "tprimat.lock records what is really installed"))]
    pub software_stack: Value,
    /// Its framework in the implied matrix.
    pub framework: Option<String>,
    /// Environment of its runs. A null takes a variable away.
    pub env: BTreeMap<String, Scalar>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Training {
    pub data: Data,
    pub duration: Duration,
    pub optimizer: Optimizer,
    pub precision: Precision,
    /// `sft` (on prompts and answers) and `lora` (adapters beside frozen weights) are only for a
    /// command of your own or an imported log.
    #[schemars(with = "String", extend("enum" = ["pretrain", "sft", "lora"]))]
    pub task: Task,
    /// Rank of the adapters.
    pub lora_rank: u64,
    /// `torch.compile`.
    pub compile: bool,
    /// The mode of `torch.compile`.
    #[schemars(extend("enum" = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]))]
    pub compile_mode: String,
    /// Recompute activations, to save memory.
    pub activation_checkpointing: bool,
    /// Every how many layers one is checkpointed.
    #[schemars(range(min = 1))]
    pub sac_frequency: u64,
    /// Optimiser state on the CPU.
    pub offload: bool,
    /// The seed of the first weights and of synthetic tokens.
    pub seed: u64,
    /// Standard deviation of matrices' first values.
    #[schemars(range(min = 0))]
    pub init_std: f64,
}

impl Default for Training {
    fn default() -> Self {
        Self {
            data: Data::default(),
            duration: Duration::default(),
            optimizer: Optimizer::default(),
            precision: Precision::default(),
            task: Task::default(),
            lora_rank: 0,
            compile: false,
            compile_mode: "default".into(),
            activation_checkpointing: false,
            sac_frequency: 1,
            offload: false,
            seed: 1234,
            init_std: 0.02,
        }
    }
}

/// These have no defaults.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Sequences per forward pass and rank.
    #[schemars(range(min = 1))]
    pub micro_batch_size: Option<u64>,
    /// Sequences per step: MBS × DP × GA.
    #[schemars(range(min = 1))]
    pub global_batch_size: Option<u64>,
    /// Tokens per sequence.
    #[schemars(range(min = 1))]
    pub seq_length: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Duration {
    /// Optimiser steps.
    #[schemars(range(min = 1), extend("x-aliases" = ["max_steps"]))]
    pub train_iters: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Optimizer {
    /// `adamw`; `adam` means the same.
    pub r#type: String,
    /// The highest rate.
    #[schemars(range(min = 0))]
    pub learning_rate: Option<f64>,
    /// Where the schedule ends.
    #[schemars(range(min = 0))]
    pub min_learning_rate: f64,
    /// Steps of the rise from 0.
    pub warmup_steps: u64,
    /// How the rate falls; `wsd`: in a line over the last steps.
    #[schemars(with = "String", extend("enum" = ["cosine", "linear", "constant", "wsd"]))]
    pub lr_decay_style: Decay,
    /// Over how many steps `wsd` falls.
    pub wsd_decay_steps: u64,
    /// Decoupled; not on vectors.
    #[schemars(range(min = 0))]
    pub weight_decay: f64,
    /// Decay of the first moment.
    #[schemars(range(min = 0, max = 1))]
    pub beta1: f64,
    /// Decay of the second moment.
    #[schemars(range(min = 0, max = 1))]
    pub beta2: f64,
    /// Adam's epsilon.
    #[schemars(range(min = 0))]
    pub eps: f64,
    /// Global gradient-norm limit; 0 = no clipping.
    #[schemars(range(min = 0))]
    pub clip_grad: f64,
    /// The format in which the optimizer keeps weights and moments; with `fp32`, bf16 training has master weights.
    #[schemars(extend("enum" = ["fp32", "bf16"]))]
    pub state_precision: String,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            r#type: "adamw".into(),
            learning_rate: None,
            min_learning_rate: 0.0,
            warmup_steps: 0,
            lr_decay_style: Decay::default(),
            wsd_decay_steps: 0,
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            clip_grad: 1.0,
            state_precision: "fp32".into(),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Precision {
    /// What products of linear layers read; with `fp8`, `mxfp8`, `mxfp4`, `nvfp4` the rest is bf16.
    #[schemars(extend("enum" = PRECISIONS))]
    pub default: String,
    /// With `fp8`: E4M3 forward, E5M2 backward.
    pub fp8_hybrid: bool,
    /// Keep parameters in FP8 as well.
    pub fp8_param: bool,
}

impl Default for Precision {
    fn default() -> Self {
        Self {
            default: "bf16".into(),
            fp8_hybrid: true,
            fp8_param: false,
        }
    }
}

/// Degrees of one block, and narrower blocks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Parallelism {
    /// Devices that share each layer.
    #[schemars(range(min = 1), extend("x-aliases" = ["TP", "tp"]))]
    pub tensor_model_parallel_size: Option<u64>,
    /// Stages of layers.
    #[schemars(range(min = 1), extend("x-aliases" = ["PP", "pp"]))]
    pub pipeline_model_parallel_size: Option<u64>,
    /// Devices that share each sequence.
    #[schemars(range(min = 1), extend("x-aliases" = ["CP", "cp"]))]
    pub context_parallel_size: Option<u64>,
    /// Copies that train on different sequences; absent = the GPUs left.
    #[schemars(range(min = 1), extend("x-aliases" = ["DP", "dp"]))]
    pub data_parallel_size: Option<u64>,
    /// Devices of DP and CP that share each layer's experts.
    #[schemars(range(min = 1), extend("x-aliases" = ["EP", "ep"]))]
    pub expert_model_parallel_size: Option<u64>,
    /// An assertion; GA is derived.
    #[schemars(range(min = 1), extend("x-aliases" = ["GA", "ga"]))]
    pub gradient_accumulation_steps: Option<u64>,
    /// What data-parallel devices share: `none` (also `ddp`, `no_shard`); `zero1`
    /// (`distributed_optimizer`, `optim`): optimizer states; `zero2` (`shard_grad_op`): and
    /// gradients; `zero3` (`fsdp`, `fsdp2`, `full_shard`): and weights; `hsdp`: within groups.
    /// Absent = the framework's own way.
    pub sharding: Option<String>,
    /// TP × PP × CP × DP; absent = the platform's.
    #[schemars(range(min = 1))]
    pub num_gpus: Option<u64>,
    /// Hosts that share the GPUs evenly; absent = as `num_gpus` needs.
    #[schemars(range(min = 1))]
    pub nodes: Option<u64>,
    #[serde(flatten)]
    pub narrower: BTreeMap<String, Parallelism>,
}

/// What a platform does differently.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PlatformOptimizations {
    /// Environment of its runs; part of the key.
    pub env: BTreeMap<String, Scalar>,
    /// In place of `training.precision.default`.
    #[schemars(extend("enum" = ["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp4", null]))]
    pub precision: Option<String>,
    /// In place of `training.precision.fp8_hybrid`.
    pub fp8_hybrid: Option<bool>,
    /// In place of `training.precision.fp8_param`.
    pub fp8_param: Option<bool>,
    /// In place of `training.activation_checkpointing`.
    pub activation_checkpointing: Option<bool>,
    /// Hugging Face's name for the same; either suffices.
    pub gradient_checkpointing: Option<bool>,
    /// The variable `PYTORCH_CUDA_ALLOC_CONF`.
    pub cuda_alloc_conf: Option<String>,
}

/// Further keys are options of the recipe.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Framework {
    #[schemars(extend("x-descriptive" = "a text for people"))]
    pub full_name: Option<String>,
    #[schemars(extend("x-descriptive" = "a text for people"))]
    pub description: Option<String>,
    /// Its platforms in the implied matrix; absent = all.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub platforms: Option<Vec<String>>,
    /// In place of `training.precision.default`; `platform_optimizations` is stronger.
    #[schemars(extend("enum" = ["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "mxfp4", null]))]
    pub precision: Option<String>,
    /// More options of the recipe.
    pub settings: BTreeMap<String, Value>,
    /// Its Python, or a virtual environment.
    pub python: Option<String>,
    /// Ends a run: `90s`, `30m`, `6h`.
    pub timeout: Option<String>,
    /// A run without a step for this many median step times ends; absent = 100, 0 = never.
    #[schemars(range(min = 0))]
    pub hang_factor: Option<f64>,
    /// And for at least this long; absent = 10m.
    pub hang_least: Option<String>,
    /// May run beside other runs.
    pub share: Option<bool>,
    /// Environment of its runs; part of the key. A null takes a variable away.
    pub env: BTreeMap<String, Scalar>,
    /// Further project files that the command reads, as globs; `"!GLOB"` takes files back.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub inputs: Option<Vec<String>>,
    /// How a command's log reads: `step <step> loss <loss> tokens/s <tokens_per_second>`, or
    /// patterns with named groups.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub log: Option<Vec<String>>,
    /// Base image of the container: a name, or one by vendor.
    pub image: Value,
    #[serde(flatten)]
    pub options: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Execution {
    /// `local`, `container`, `docker`, `podman`, `apptainer`, `slurm`, `slurm+container`,
    /// `slurm+apptainer`, `allocation`, `kubernetes`; absent = the recipe's, else `local`.
    /// `--executor` is stronger.
    pub executor: Option<String>,
    pub container: ExecutionContainer,
    pub slurm: ExecutionSlurm,
    pub kubernetes: ExecutionKubernetes,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutionContainer {
    /// Absent = the first installed of docker, podman and apptainer.
    #[schemars(extend("enum" = ["docker", "podman", "apptainer", "singularity", "pyxis", null]))]
    pub engine: Option<String>,
    /// A name, or one by framework; absent = `tprimat/<framework>:<vendor>`.
    pub image: Value,
    /// Python inside the image; absent = `python3`.
    pub python: Option<String>,
    /// Further folders of the host: `/data`, `/data:/inside`, `/data:/inside:ro`.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub mounts: Option<Vec<String>>,
    /// More arguments of the engine.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub options: Option<Vec<String>>,
}

/// Absent = the cluster's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutionSlurm {
    /// sbatch's `--account`.
    pub account: Option<String>,
    /// sbatch's `--partition`.
    pub partition: Option<String>,
    /// sbatch's `--qos`.
    pub qos: Option<String>,
    /// sbatch's `--constraint`.
    pub constraint: Option<String>,
    /// Absent = `gpu:N` for a job of N GPUs.
    pub gres: Option<String>,
    /// The job's limit: `04:00:00`.
    pub time: Option<String>,
    /// CPU cores of each job; absent = the cluster's default, often one.
    #[schemars(range(min = 1))]
    pub cpus: Option<u64>,
    /// Whole nodes.
    pub exclusive: Option<bool>,
    /// More options of sbatch.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub options: Option<Vec<String>>,
    /// Jobs of one build in the queue at once; absent = `--jobs`. Within an allocation: runs at
    /// once; absent = one.
    #[schemars(range(min = 1))]
    pub max_jobs: Option<u64>,
    /// Cancel the jobs on Ctrl-C; absent = they go on.
    pub cancel_on_interrupt: Option<bool>,
}

/// What templates/kubernetes.yaml.j2 writes into a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ExecutionKubernetes {
    /// kubectl's `--context`; absent = the current one.
    pub context: Option<String>,
    /// Absent = the context's.
    pub namespace: Option<String>,
    /// `CLAIM:/path` of a PersistentVolumeClaim, or `/path` of each node; `:ro`: only read.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub volumes: Option<Vec<String>>,
    /// A GPU's name; absent = `nvidia.com/gpu` or `amd.com/gpu`.
    pub resource: Option<String>,
    /// CPU cores that a pod asks for.
    #[schemars(range(min = 1))]
    pub cpus: Option<u64>,
    /// Memory of a pod: `512Gi`.
    pub memory: Option<String>,
    /// Size of /dev/shm, within the memory; absent = half of the node's.
    pub shm: Option<String>,
    /// Labels of the nodes.
    pub node_selector: BTreeMap<String, String>,
    /// As in a pod's spec: `[{ key: nvidia.com/gpu, operator: Exists }]`.
    pub tolerations: Value,
    pub service_account: Option<String>,
    /// Names of Secrets.
    #[schemars(extend("type" = ["string", "array", "null"]))]
    #[serde(deserialize_with = "texts")]
    pub pull_secrets: Option<Vec<String>>,
    /// Kueue's LocalQueue.
    pub queue: Option<String>,
    pub priority_class: Option<String>,
    /// Jobs of one build at once; absent = `--jobs`.
    #[schemars(range(min = 1))]
    pub max_jobs: Option<u64>,
    /// Delete the Jobs on Ctrl-C; absent = they go on.
    pub cancel_on_interrupt: Option<bool>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Benchmarking {
    pub output: Output,
    #[schemars(extend("x-descriptive" = "every table and file has all figures that could be measured"))]
    pub metrics: Value,
    pub warmup: Warmup,
    pub runs: Runs,
    pub enhanced_metrics: EnhancedMetrics,
}

/// The folder of results is `paths.output`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Output {
    #[schemars(extend("x-descriptive" = "results are named train_<platform>_<framework>_<model>.json"))]
    pub filename_format: Option<String>,
    #[schemars(extend("x-descriptive" = "logs are kept in the cache; `tprimat logs CELL` prints one"))]
    pub log_format: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Comparison {
    /// The loss whose training time is reported, in nats per token, or one by model.
    pub target_loss: Value,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Warmup {
    /// First steps that no statistic counts.
    pub skip_steps: u64,
}

impl Default for Warmup {
    fn default() -> Self {
        Self { skip_steps: 5 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Runs {
    /// Repeats where the matrix states none.
    #[schemars(range(min = 1, max = 10_000))]
    pub default_num_runs: u64,
    /// Idle time between measured runs.
    #[schemars(range(min = 0))]
    pub cooldown_seconds: f64,
}

impl Default for Runs {
    fn default() -> Self {
        Self {
            default_num_runs: 5,
            cooldown_seconds: 0.0,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EnhancedMetrics {
    /// By platform id or vendor.
    pub cloud_costs: BTreeMap<String, CloudCost>,
    /// By platform id or vendor; stronger than the built-in table.
    pub hardware_specs: BTreeMap<String, HardwareSpec>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CloudCost {
    /// The price of one device, above 0.
    #[schemars(range(min = 0))]
    pub per_gpu_hour: Option<f64>,
    /// Three letters. Different currencies are not compared.
    #[serde(default = "usd")]
    pub currency: String,
    /// Where the price is from.
    pub source: Option<String>,
}

fn usd() -> String {
    "USD".into()
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HardwareSpec {
    /// Dense FLOP/s by precision (`bf16`, `fp8`, …); needs a `source`.
    pub peak_flops: BTreeMap<String, f64>,
    /// Board power of one device; needs a `source` too.
    #[schemars(range(min = 0))]
    pub tdp_watts: Option<f64>,
    /// Where the figures are from.
    pub source: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// Where results are published.
    pub output: String,
    /// Where measurements are kept.
    pub cache: String,
    /// Where builds share runs: `file:///FOLDER`, `s3://BUCKET/PREFIX`, `gs://…`, `az://…`, or
    /// `none`.
    pub remote: Option<String>,
    /// Python of the trainers.
    pub python: Option<String>,
    /// A checkout of Primus; `$PRIMUS_PATH` is stronger.
    pub primus: Option<String>,
    /// A checkout of Megatron-LM; `$MEGATRON_PATH` is stronger.
    pub megatron: Option<String>,
    /// A checkout of Megatron-DeepSpeed; `$MEGATRON_DEEPSPEED_PATH` is stronger.
    pub megatron_deepspeed: Option<String>,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            output: "output".into(),
            cache: "cache".into(),
            remote: None,
            python: None,
            primus: None,
            megatron: None,
            megatron_deepspeed: None,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Validation {
    /// Allowed error of a stated `num_parameters`.
    #[schemars(range(min = 0, max = 1))]
    pub num_parameters_tolerance: f64,
}

impl Default for Validation {
    fn default() -> Self {
        Self {
            num_parameters_tolerance: 0.02,
        }
    }
}

/// Value of an environment variable.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("type" = ["string", "number", "boolean", "null"]))]
#[serde(transparent)]
pub struct Scalar(pub Value);

/// One text, or a list of texts.
fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    Ok(Option::deserialize(from)?.map(|texts| match texts {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    }))
}

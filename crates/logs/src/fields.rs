//! The fields that a value in a log line can be, and how a format's table names them.

use super::{
    MemoryFigure, RunningAverage, Step,
    numbers::{self, GIB, MIB, as_count},
    values::Checks,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    Step,
    /// Trainers that count the steps of each epoch anew print all three.
    Epoch,
    StepInEpoch,
    StepsPerEpoch,
    StepsAveraged,
    /// How many of its units a second has.
    Time(f64),
    /// The trainer's own mean over earlier steps, and how many of its units a second has.
    MeanTime(f64),
    Loss,
    LearningRate,
    GradNorm,
    Tokens,
    /// Tokens of each step from here on.
    TokensOfEachStep,
    TokensPerGpu,
    Tflops,
    GlobalBatchSize,
    ConsumedSamples,
    /// What it counts, and bytes of one unit.
    Memory(Option<String>, f64),
    /// The rank that reports its memory.
    Rank,
    NumParameters,
    NumParametersPerRank,
    /// The device's name, by the type that PyTorch calls it.
    Device(String),
    Version(String),
    Evaluation(String),
    Effective(String),
    Total(String),
    Other(String),
    /// Known, and of no use.
    Nothing,
}

/// Names that stand for one field each; the others have a unit or a name of their own in them.
pub const PLAIN: &[(&str, Field)] = &[
    ("step", Field::Step),
    ("epoch", Field::Epoch),
    ("step_in_epoch", Field::StepInEpoch),
    ("steps_per_epoch", Field::StepsPerEpoch),
    ("steps_averaged", Field::StepsAveraged),
    ("loss", Field::Loss),
    ("learning_rate", Field::LearningRate),
    ("grad_norm", Field::GradNorm),
    ("tokens", Field::Tokens),
    ("tokens_of_each_step", Field::TokensOfEachStep),
    ("tokens_per_second_per_gpu", Field::TokensPerGpu),
    ("tflops_per_gpu", Field::Tflops),
    ("global_batch_size", Field::GlobalBatchSize),
    ("consumed_samples", Field::ConsumedSamples),
    ("num_parameters", Field::NumParameters),
    ("num_parameters_per_rank", Field::NumParametersPerRank),
    ("rank", Field::Rank),
    ("nothing", Field::Nothing),
];
/// Tokens a second of all devices together. What one device does follows only where their number is
/// known, so the figure is kept apart until then.
pub const TOTAL_RATE: &str = "tokens_per_second";
/// Parts of a second.
const TIMES: &[(&str, f64)] = &[
    ("seconds", 1.0),
    ("s", 1.0),
    ("ms", 1e3),
    ("milliseconds", 1e3),
    ("us", 1e6),
    ("microseconds", 1e6),
];
const SIZES: &[(&str, f64)] = &[
    ("bytes", 1.0),
    ("kib", 1024.0),
    ("mib", MIB),
    ("gib", GIB),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
];
/// What a figure of memory counts; of several in one line the first of these stands for the step.
const MEMORY: &[&str] = &[
    "peak_allocated",
    "peak_reserved",
    "allocated",
    "reserved",
    "device_used",
    "peak_active",
    "device_total",
];

type WithName = (&'static str, fn(String) -> Field);
const WITH_NAMES: &[WithName] = &[
    ("effective_", Field::Effective),
    ("evaluation_", Field::Evaluation),
    ("total_", Field::Total),
    ("other_", Field::Other),
    ("version_", Field::Version),
    ("device_name_", Field::Device),
];

impl Field {
    /// Is it what is done in a second?
    pub fn is_rate(&self) -> bool {
        match self {
            Self::TokensPerGpu => true,
            Self::Other(name) | Self::Total(name) => name.contains("_per_second") || name == "tps",
            _ => false,
        }
    }

    /// The field that a name stands for.
    pub fn named(name: &str) -> Option<Self> {
        if let Some((_, field)) = PLAIN.iter().find(|(known, _)| *known == name) {
            return Some(field.clone());
        }
        if name == TOTAL_RATE {
            return Some(Self::Other(name.to_owned()));
        }
        let unit = |prefix: &str, units: &[(&str, f64)]| {
            let rest = name.strip_prefix(prefix)?;
            let (_, scale) = units.iter().find(|(unit, _)| *unit == rest)?;
            Some(*scale)
        };
        if let Some(scale) = unit("step_time_", TIMES) {
            return Some(Self::Time(scale));
        }
        if let Some(scale) = unit("mean_step_time_", TIMES) {
            return Some(Self::MeanTime(scale));
        }
        if let Some(scale) = unit("memory_", SIZES) {
            return Some(Self::Memory(None, scale));
        }
        for kind in MEMORY {
            if let Some(scale) = unit(&format!("{kind}_memory_"), SIZES) {
                return Some(Self::Memory(Some((*kind).to_owned()), scale));
            }
        }
        WITH_NAMES.iter().find_map(|(prefix, field)| {
            let rest = name.strip_prefix(prefix).filter(|rest| !rest.is_empty())?;
            Some(field(rest.to_owned()))
        })
    }

    pub fn is_count(&self) -> bool {
        use Field::{ConsumedSamples, GlobalBatchSize, Tokens};
        matches!(self, Tokens | GlobalBatchSize | ConsumedSamples)
    }

    pub fn has_wildcard(&self) -> bool {
        use Field::{Effective, Evaluation, Other, Total};
        matches!(self, Evaluation(name) | Effective(name) | Total(name) | Other(name) if name.contains('*'))
    }

    /// The field with what a wildcard of its key stood for in place of the `*` in its own name.
    pub fn with(&self, part: &str) -> Self {
        let filled = |name: &String| name.replace('*', part);
        match self {
            Self::Evaluation(name) => Self::Evaluation(filled(name)),
            Self::Effective(name) => Self::Effective(filled(name)),
            Self::Total(name) => Self::Total(filled(name)),
            Self::Other(name) => Self::Other(filled(name)),
            other => other.clone(),
        }
    }
}

/// Names that a field may have, for messages.
pub fn known_names() -> Vec<String> {
    let plain = PLAIN.iter().map(|(name, _)| *name).chain([TOTAL_RATE]);
    let plain = plain.map(str::to_owned);
    let times = TIMES.iter().map(|(unit, _)| format!("step_time_{unit}"));
    let memory = MEMORY.iter().map(|kind| format!("{kind}_memory_"));
    let sizes = memory
        .chain(["memory_".to_owned()])
        .flat_map(|prefix| SIZES.iter().map(move |(unit, _)| format!("{prefix}{unit}")));
    plain.chain(times).chain(sizes).collect()
}

/// Puts a number into its step. A value that the field cannot have is noted instead; a field that
/// does not belong to a step is left out.
pub fn fill(step: &mut Step, field: &Field, value: f64, checks: &mut Checks<'_>) {
    let whole = as_count(value).filter(|n| *n > 0);
    match field {
        Field::StepsAveraged => step.steps_averaged = whole.filter(|n| *n > 1),
        Field::Time(scale) => {
            step.step_time_seconds = checks.seconds("step time in seconds", Some(value / scale))
        }
        Field::MeanTime(scale) => {
            let mean = checks.seconds("mean step time in seconds", Some(value / scale));
            step.running_average = mean.map(|_| {
                Box::new(RunningAverage {
                    step_time_seconds: mean,
                    ..RunningAverage::default()
                })
            });
        }
        Field::Loss => step.loss = checks.loss(Some(value)),
        Field::LearningRate => step.learning_rate = checks.learning_rate(Some(value)),
        Field::GradNorm => step.grad_norm = checks.grad_norm(Some(value)),
        Field::Tokens => step.tokens = whole,
        Field::TokensPerGpu => {
            step.tokens_per_second_per_gpu =
                checks.positive("tokens per second per GPU", Some(value))
        }
        Field::Tflops => step.tflops_per_gpu = checks.positive("TFLOP/s per GPU", Some(value)),
        Field::GlobalBatchSize => step.global_batch_size = whole,
        Field::ConsumedSamples => step.consumed_samples = whole,
        Field::Other(name) if value.is_finite() && step.other.len() < MAX_OTHER => {
            step.other.insert(name.clone().into(), value);
        }
        _ => {}
    }
}

/// Values of a line that are kept besides the known ones.
const MAX_OTHER: usize = 24;

/// A memory figure of a line, in bytes.
pub fn figure(field: &Field, value: f64, source: &str) -> Option<MemoryFigure> {
    let Field::Memory(kind, scale) = field else {
        return None;
    };
    Some(MemoryFigure {
        kind: kind.clone().unwrap_or_default().into(),
        source: source.to_owned().into(),
        bytes: numbers::bytes(value, *scale).filter(|n| *n > 0)?,
    })
}

/// The figure that says most of what a run needs stands for the step, the others beside it.
pub fn choose_memory(step: &mut Step, figures: &[MemoryFigure]) {
    let mut figures = figures.to_vec();
    let place = |figure: &MemoryFigure| MEMORY.iter().position(|kind| *kind == figure.kind);
    let best = (0..figures.len()).min_by_key(|at| place(&figures[*at]).unwrap_or(MEMORY.len()));
    let Some(best) = best else { return };
    let chosen = figures.remove(best);
    step.memory_bytes = Some(chosen.bytes);
    step.memory_kind = Some(chosen.kind).filter(|kind| !kind.is_empty());
    step.memory_source = Some(chosen.source).filter(|source| !source.is_empty());
    step.memory_figures = figures;
}

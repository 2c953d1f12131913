//! The fields of a step that a number in a log line can be. Formats whose lines are names and values
//! say in a table which name is which field; a recipe's patterns say it by the names of their groups.

use super::{
    Step,
    builder::Notes,
    numbers::{self, as_count, finite},
    values::Checks,
};

#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    Step,
    StepsAveraged,
    /// Seconds of one unit.
    Time(f64),
    Loss,
    LearningRate,
    GradNorm,
    Tokens,
    TokensPerGpu,
    Tflops,
    GlobalBatchSize,
    ConsumedSamples,
    /// What it counts, and bytes of one unit.
    Memory(Option<&'static str>, f64),
    NumParameters,
    Evaluation(String),
    Effective(String),
    Total(String),
    Other(String),
}

/// The field that a name stands for in a format's table.
pub fn named<'f>(fields: &'f [(&str, Field)], name: &str) -> Option<&'f Field> {
    let mut fields = fields.iter();
    fields
        .find(|(known, _)| *known == name)
        .map(|(_, field)| field)
}

/// Puts a number into its step. A value that the field cannot have is noted instead; a field that
/// does not belong to a step is left out.
pub fn fill(step: &mut Step, field: &Field, value: f64, notes: &mut Notes) {
    let number = step.step;
    let whole = as_count(value).filter(|n| *n > 0);
    let mut checks = Checks {
        step: number,
        notes: &mut *notes,
    };
    match field {
        Field::StepsAveraged => step.steps_averaged = whole.filter(|n| *n > 1),
        Field::Time(scale) => {
            step.step_time_seconds = checks.seconds("step time in seconds", Some(value * scale))
        }
        Field::Loss => step.loss = finite(value, "nan_loss", number, notes),
        Field::LearningRate => step.learning_rate = checks.learning_rate(Some(value)),
        Field::GradNorm => step.grad_norm = finite(value, "nan_grad_norm", number, notes),
        Field::Tokens => step.tokens = whole,
        Field::TokensPerGpu => {
            step.tokens_per_second_per_gpu =
                checks.positive("tokens per second per GPU", Some(value))
        }
        Field::Tflops => step.tflops_per_gpu = checks.positive("TFLOP/s per GPU", Some(value)),
        Field::GlobalBatchSize => step.global_batch_size = whole,
        Field::ConsumedSamples => step.consumed_samples = whole,
        Field::Memory(kind, scale) => {
            step.memory_bytes = numbers::bytes(value, *scale).filter(|n| *n > 0);
            step.memory_kind = step.memory_bytes.and(*kind).map(Into::into);
        }
        Field::Other(name) if value.is_finite() => {
            step.other.insert(name.clone().into(), value);
        }
        Field::Step
        | Field::NumParameters
        | Field::Evaluation(_)
        | Field::Effective(_)
        | Field::Total(_)
        | Field::Other(_) => {}
    }
}

//! One logged dictionary of Hugging Face's Trainer, by whatever keys a relative adds.

use super::{
    MemoryFigure, Step,
    builder::Notes,
    numbers::{GIB, as_count, grouped_number},
    values::{Checks, bytes, clock},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Step,
    Evaluation,
    Summary,
    Other,
}

/// What a dictionary is, by its keys.
pub fn classify(pairs: &[(&str, &str)]) -> Kind {
    let has = |key: &str| pairs.iter().any(|(k, _)| *k == key);
    if has("current_steps") && has("total_steps") {
        return if has("loss") {
            Kind::Step
        } else if has("eval_loss") {
            Kind::Evaluation
        } else {
            Kind::Summary
        };
    }
    if has("loss") && (has("learning_rate") || has("epoch")) {
        Kind::Step
    } else if has("train_runtime") {
        Kind::Summary
    } else if pairs.iter().any(|(k, _)| k.starts_with("eval_")) && has("epoch") {
        Kind::Evaluation
    } else {
        Kind::Other
    }
}

/// The pairs whose value is a number, and the texts of those that need them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    pairs: Vec<(String, String)>,
}

impl Fields {
    const MOST: usize = 64;

    pub fn of(pairs: &[(&str, &str)]) -> Self {
        let kept = pairs
            .iter()
            .filter(|(k, v)| k.len() <= 64 && v.len() <= 64)
            .take(Self::MOST);
        Self {
            pairs: kept
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }

    pub fn get(&self, key: &str) -> Option<f64> {
        grouped_number(self.text(key)?)
            .filter(|(_, tail)| tail.is_empty())
            .map(|(n, _)| n)
    }

    pub fn epoch_text(&self) -> Option<&str> {
        self.text("epoch")
    }

    pub fn epoch(&self) -> Option<f64> {
        self.get("epoch")
    }

    /// The step's number, which relatives of the Trainer write.
    pub fn step(&self) -> Option<u64> {
        let plain = ["current_steps", "global_step", "step"]
            .iter()
            .find_map(|key| self.get(key))
            .and_then(as_count);
        plain.or_else(|| self.of_total(0))
    }

    /// ms-swift writes `'global_step/max_steps': '5/94'`.
    fn of_total(&self, at: usize) -> Option<u64> {
        let text = self
            .text("global_step/max_steps")?
            .trim_matches(['\'', '"']);
        text.split('/').nth(at)?.trim().parse().ok()
    }

    pub fn total_steps(&self) -> Option<u64> {
        self.get("total_steps")
            .and_then(as_count)
            .or_else(|| self.of_total(1))
    }

    pub fn tokens_seen(&self) -> Option<f64> {
        ["num_input_tokens_seen", "total_tokens", "num_tokens"]
            .iter()
            .find_map(|key| self.get(key))
            .filter(|n| n.is_finite())
    }

    /// Seconds since the beginning of training, and how finely they are printed.
    pub fn elapsed(&self) -> Option<(f64, f64)> {
        let fine = self.get("train_runtime").map(|s| (s, 1e-4));
        fine.or_else(|| self.text("elapsed_time").and_then(clock).map(|s| (s, 1.0)))
            .filter(|(s, _)| s.is_finite())
    }

    pub fn is_speed(name: &str) -> bool {
        name.contains("runtime") || name.contains("per_second")
    }

    /// Names and values of an evaluation; the values may be NaN.
    pub fn evaluations(&self) -> impl Iterator<Item = (&str, f64)> {
        self.pairs.iter().filter_map(|(key, text)| {
            let name = key.strip_prefix("eval_").filter(|n| !Self::is_speed(n))?;
            let (value, _) = grouped_number(text).filter(|_| !name.is_empty())?;
            Some((key.as_str(), value))
        })
    }

    /// The summary's figures by the log's own names. Some are per device and some are not: none
    /// becomes a step's.
    pub fn totals(&self) -> impl Iterator<Item = (String, f64)> {
        self.pairs.iter().filter_map(|(key, text)| {
            let value = grouped_number(text)
                .filter(|(_, tail)| tail.is_empty())
                .map(|(n, _)| n)?;
            let name = if key == "train_runtime" {
                "train_runtime_seconds"
            } else {
                key
            };
            Some((name.to_owned(), value))
        })
    }

    pub fn to_step(&self, at: u64, notes: &mut Notes) -> Step {
        let mut step = Step {
            step: at,
            ..Step::default()
        };
        let mut checks = Checks { step: at, notes };
        let grad_norm = self.get("grad_norm");
        step.grad_norm = checks.grad_norm(grad_norm);
        let loss = self.get("loss");
        // The trainer filters what is not a number out of the mean, and 0 is left.
        if loss == Some(0.0) && grad_norm.is_some_and(f64::is_nan) {
            checks.notes.add_at(at, "divergence", || {
                "loss 0 with a grad norm that is not a number".to_owned()
            });
        } else {
            step.loss = checks.loss(loss);
        }
        step.learning_rate =
            checks.learning_rate(self.get("learning_rate").or_else(|| self.get("lr")));
        let per_gpu = ["tokens_per_second_per_gpu", "tokens/train_per_sec_per_gpu"]
            .iter()
            .find_map(|key| self.get(key));
        step.tokens_per_second_per_gpu = checks.positive("tokens_per_second_per_gpu", per_gpu);
        for (key, text) in &self.pairs {
            let Some((value, "")) = grouped_number(text).filter(|(v, _)| v.is_finite()) else {
                continue;
            };
            match key.as_str() {
                "loss"
                | "grad_norm"
                | "learning_rate"
                | "lr"
                | "current_steps"
                | "total_steps"
                | "percentage"
                | "global_step"
                | "step"
                | "tokens_per_second_per_gpu"
                | "tokens/train_per_sec_per_gpu" => {}
                key if key.starts_with("memory/") => memory(&mut step, key, value),
                "train_runtime" => drop(
                    step.other
                        .insert("train_runtime_seconds".into(), value)
                        .is_some(),
                ),
                _ => drop(step.other.insert(key.clone().into(), value).is_some()),
            }
        }
        if let Some(seconds) = self.text("elapsed_time").and_then(clock) {
            step.other.insert("elapsed_seconds".into(), seconds);
        }
        step
    }
}

/// Axolotl's `memory/max_mem_allocated(gib)` and `memory/max_allocated (GiB)`: peaks that PyTorch
/// counts.
fn memory(step: &mut Step, key: &str, value: f64) {
    let plain = key
        .to_lowercase()
        .replace([' ', '_'], "")
        .replace("mem", "");
    let Some(name) = plain
        .strip_prefix("ory/")
        .and_then(|n| n.strip_suffix("(gib)"))
    else {
        step.other.insert(key.to_owned().into(), value);
        return;
    };
    match (name, bytes(value, GIB)) {
        ("maxallocated", Some(bytes)) => {
            step.memory_bytes = Some(bytes);
            (step.memory_kind, step.memory_source) =
                (Some("peak_allocated".into()), Some("torch".into()));
        }
        ("devicereserved" | "maxreserved", Some(bytes)) => {
            step.memory_figures.push(MemoryFigure {
                kind: "peak_reserved".into(),
                source: "torch".into(),
                bytes,
            });
        }
        ("maxactive", _) => drop(step.other.insert("max_active_gib".into(), value).is_some()),
        _ => drop(step.other.insert(key.to_owned().into(), value).is_some()),
    }
}

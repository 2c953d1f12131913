//! What Hugging Face's Trainer prints of a step: a dictionary with whatever keys a relative adds,
//! or in notebooks a row of a table.

use tprimat_base::words::part;

use crate::{
    MemoryFigure, Step,
    builder::{Builder, Notes},
    numbers::{GIB, MIB, as_count, grouped_number},
    pattern::Pattern,
    values::{Checks, bytes, clock, dictionary, has},
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
    let is_llama_factory = has("current_steps") && has("total_steps");
    let is_evaluation = |(key, _): &(&str, &str)| key.starts_with("eval_");
    // fairseq's and metaseq's lines have these keys as well, and count updates.
    if has("num_updates") {
        return Kind::Other;
    }
    if has("loss") && (has("learning_rate") || has("epoch") || is_llama_factory) {
        Kind::Step
    } else if is_llama_factory && has("eval_loss") {
        Kind::Evaluation
    } else if is_llama_factory || has("train_runtime") {
        Kind::Summary
    } else if has("epoch") && pairs.iter().any(is_evaluation) {
        Kind::Evaluation
    } else {
        Kind::Other
    }
}

/// A text that is one number, grouped and quoted as people like.
pub fn whole_number(text: &str) -> Option<f64> {
    grouped_number(text)
        .filter(|(_, tail)| tail.is_empty())
        .map(|(number, _)| number)
}

/// A number as it is printed: its value, decimals and significant digits.
pub fn printed(text: &str) -> Option<(f64, i32, i32)> {
    let value = whole_number(text)?;
    let text = text.trim_matches(['\'', '"', ' ']);
    let (digits, power) = text.split_once('e').unwrap_or((text, "0"));
    let decimals = digits.split_once('.').map_or(0, |(_, d)| d.len());
    let significant = digits.replace('.', "");
    let significant = significant.trim_start_matches('0').len();
    let decimals = i32::try_from(decimals).ok()? - power.parse::<i32>().ok()?;
    Some((value, decimals, i32::try_from(significant).ok()?))
}

/// Keys that say which step it is or fill its fields.
const OF_STEP: [&str; 11] = [
    "loss",
    "grad_norm",
    "learning_rate",
    "lr",
    "current_steps",
    "total_steps",
    "percentage",
    "global_step",
    "step",
    "tokens_per_second_per_gpu",
    "tokens/train_per_sec_per_gpu",
];

/// The pairs of a dictionary.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields {
    pairs: Vec<(String, String)>,
}

impl Fields {
    const MOST: usize = 64;

    pub fn of(pairs: &[(&str, &str)]) -> Self {
        let short = pairs.iter().filter(|(k, v)| k.len() <= 64 && v.len() <= 64);
        let kept = short.take(Self::MOST);
        let pairs = kept.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Self {
            pairs: pairs.collect(),
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(k, _)| k == key);
        found.map(|(_, v)| v.as_str())
    }

    pub fn get(&self, key: &str) -> Option<f64> {
        whole_number(self.text(key)?)
    }

    fn first_of(&self, keys: &[&str]) -> Option<f64> {
        keys.iter().find_map(|key| self.get(key))
    }

    /// Is it one line, as another handler prints it: with keys of its own, and the same values up to how they are rounded?
    pub fn is_said_again_by(&self, other: &Self) -> bool {
        let has_others = |a: &Self, b: &Self| a.pairs.iter().any(|(key, _)| b.text(key).is_none());
        let is_same = |key: &str| {
            let [a, b] = [self, other].map(|of| of.text(key).and_then(printed));
            a.zip(b).is_some_and(|((a, many, _), (b, few, _))| {
                (a - b).abs() <= 0.5001 * 10f64.powi(-many.min(few))
            })
        };
        let agrees = |(key, text): &(String, String)| {
            let stated = other.text(key);
            stated.is_none_or(|stated| stated == text || is_same(key))
        };
        (has_others(self, other) || has_others(other, self))
            && ["loss", "learning_rate", "epoch"].into_iter().all(is_same)
            && self.pairs.iter().all(agrees)
    }

    /// Takes what another handler says more.
    pub fn add(&mut self, other: &Self) {
        let new = other
            .pairs
            .iter()
            .filter(|(key, _)| self.text(key).is_none());
        let room = Self::MOST.saturating_sub(self.pairs.len());
        let new: Vec<_> = new.take(room).cloned().collect();
        self.pairs.extend(new);
    }

    /// The step's number, which relatives of the Trainer write.
    pub fn step(&self) -> Option<u64> {
        let plain = self.first_of(&["current_steps", "global_step", "step"]);
        plain.and_then(as_count).or_else(|| self.of_total(0))
    }

    /// ms-swift writes `'global_step/max_steps': '5/94'`.
    fn of_total(&self, at: usize) -> Option<u64> {
        let text = self.text("global_step/max_steps")?;
        let text = text.trim_matches(['\'', '"']);
        text.split('/').nth(at)?.trim().parse().ok()
    }

    pub fn total_steps(&self) -> Option<u64> {
        let plain = self.get("total_steps").and_then(as_count);
        plain.or_else(|| self.of_total(1))
    }

    pub fn tokens_seen(&self) -> Option<f64> {
        self.first_of(&["num_input_tokens_seen", "total_tokens", "num_tokens"])
            .filter(|n| n.is_finite())
    }

    /// Seconds since the beginning of training, and how finely they are printed.
    pub fn elapsed(&self) -> Option<(f64, f64)> {
        let fine = self.get("train_runtime").map(|s| (s, 1e-4));
        fine.or_else(|| Some((clock(self.text("elapsed_time")?)?, 1.0)))
            .filter(|(s, _)| s.is_finite())
    }

    pub fn is_speed(name: &str) -> bool {
        name.contains("runtime") || name.contains("per_second")
    }

    /// Names and values of an evaluation; the values may be NaN.
    pub fn evaluations(&self) -> impl Iterator<Item = (&str, f64)> {
        self.pairs.iter().filter_map(|(key, text)| {
            let name = key.strip_prefix("eval_")?;
            let is_value = !name.is_empty() && !Self::is_speed(name);
            let (value, _) = grouped_number(text).filter(|_| is_value)?;
            Some((key.as_str(), value))
        })
    }

    /// The summary's figures by the log's own names. Some are per device and some are not: none
    /// becomes a step's.
    pub fn totals(&self) -> impl Iterator<Item = (&str, f64)> {
        self.pairs.iter().filter_map(|(key, text)| {
            let name = match key.as_str() {
                "train_runtime" => "train_runtime_seconds",
                key => key,
            };
            Some((name, whole_number(text)?))
        })
    }

    pub fn to_step(&self, at: u64, notes: &mut Notes) -> Step {
        let mut step = Step {
            step: at,
            ..Step::default()
        };
        let mut checks = Checks { step: at, notes };
        let (loss, grad_norm) = (self.get("loss"), self.get("grad_norm"));
        step.grad_norm = checks.grad_norm(grad_norm);
        // The trainer filters what is not a number out of the mean, and 0 is left.
        if loss == Some(0.0) && grad_norm.is_some_and(f64::is_nan) {
            let what = "loss 0 with a grad norm that is not a number";
            let notes = &mut checks.notes;
            notes.add_at(at, "divergence", || what.to_owned());
        } else {
            step.loss = checks.loss(loss);
        }
        let rate = self.first_of(&["learning_rate", "lr"]);
        step.learning_rate = checks.learning_rate(rate);
        let speed = ["tokens_per_second_per_gpu", "tokens/train_per_sec_per_gpu"];
        let speed = self.first_of(&speed);
        step.tokens_per_second_per_gpu = checks.positive("tokens_per_second_per_gpu", speed);
        for (key, value) in self.totals().filter(|(_, value)| value.is_finite()) {
            if !OF_STEP.contains(&key) && !memory(&mut step, key, value) {
                step.other.insert(key.to_owned().into(), value);
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
static MEMORY: Pattern = Pattern::new(
    r"(?i)^memory/(max|device)[ _]?(?:mem[ _]?)?(allocated|reserved|active) ?\(gib\)$",
);

/// Names of others: kind, and bytes of a unit. ms-swift's is what the allocator reserved at most; Liger's
/// MB are MiB.
const OTHERS: [(&str, &str, f64); 5] = [
    ("memory(GiB)", "peak_reserved", GIB),
    ("max_memory_allocated", "peak_allocated", 1.0),
    ("total_peak_memory_allocated_MB", "peak_allocated", MIB),
    ("total_peak_memory_reserved_MB", "peak_reserved", MIB),
    ("step_peak_memory_allocated_MB", "peak_allocated", MIB),
];

/// Takes a figure of memory; false if it is none.
fn memory(step: &mut Step, key: &str, value: f64) -> bool {
    if let Some((_, kind, unit)) = OTHERS.iter().find(|(name, ..)| *name == key) {
        let figure = bytes(value, *unit);
        if let Some(figure) = figure.filter(|figure| Some(*figure) > step.memory_bytes) {
            step.memory_bytes = Some(figure);
            step.memory_kind = Some((*kind).into());
            step.memory_source = Some("torch".into());
        }
        return true;
    }
    let Some(name) = MEMORY.groups(key) else {
        return false;
    };
    match (name, bytes(value, GIB)) {
        (["max", "allocated"], Some(bytes)) => {
            step.memory_bytes = Some(bytes);
            step.memory_kind = Some("peak_allocated".into());
            step.memory_source = Some("torch".into());
        }
        (["max" | "device", "reserved"], Some(bytes)) => {
            step.memory_figures.push(MemoryFigure {
                kind: "peak_reserved".into(),
                source: "torch".into(),
                bytes,
            });
        }
        (["max", "active"], Some(bytes)) => {
            step.memory_figures.push(MemoryFigure {
                kind: "peak_active".into(),
                source: "torch".into(),
                bytes,
            });
        }
        _ => return false,
    }
    true
}

/// The table that notebooks show: `Step  Training Loss  [Validation Loss …]`, a row a line.
#[derive(Default)]
pub struct Table {
    /// Names of the columns, while rows may come.
    columns: Vec<String>,
}

pub fn is_header(line: &str) -> bool {
    has(line, "Training Loss") && cells(line).next() == Some("Step")
}

/// Parts that are separated by tabs or by several spaces.
fn cells(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split('\t').flat_map(|part| part.split("  "));
    parts.map(str::trim).filter(|cell| !cell.is_empty())
}

impl Table {
    /// The row's step number, if the line is one.
    pub fn line(&mut self, text: &str, out: &mut Builder) -> Option<u64> {
        if is_header(text) {
            self.columns = cells(text).take(16).map(str::to_owned).collect();
            return None;
        }
        if self.columns.is_empty() {
            return None;
        }
        let row: Vec<_> = cells(text).take(17).collect();
        let number = row.first().and_then(|cell| whole_number(cell));
        let number = number.and_then(as_count);
        let Some(at) = number.filter(|_| row.len() == self.columns.len()) else {
            self.columns.clear();
            return None;
        };
        let mut step = Step {
            step: at,
            ..Step::default()
        };
        for (column, cell) in self.columns.iter().zip(&row).skip(1) {
            // `No log` where the interval has not passed yet.
            let value = whole_number(cell);
            if column == "Training Loss" {
                let notes = &mut out.notes;
                step.loss = Checks { step: at, notes }.loss(value);
            } else if let Some(value) = value.filter(|_| column == "Validation Loss") {
                out.evaluated(Some(at), "eval_loss", value);
            }
        }
        out.averages = true;
        out.step(step);
        Some(at)
    }
}

type Pairs<'a> = Vec<(&'a str, &'a str)>;

/// The flat dictionaries of a line: where each begins, its pairs, where it ends.
pub fn dictionaries(line: &str) -> impl Iterator<Item = (usize, Pairs<'_>, usize)> {
    let (mut at, mut tries) = (0, 0);
    std::iter::from_fn(move || {
        while tries < 8 {
            let start = at + memchr::memchr(b'{', &line.as_bytes()[at..])?;
            at = start + 1;
            if !matches!(line.as_bytes().get(at), Some(b'\'' | b'"')) {
                continue;
            }
            match dictionary(part(line, start..)) {
                Some((pairs, left)) => {
                    at = line.len() - left.len();
                    return Some((start, pairs, at));
                }
                None => tries += 1,
            }
        }
        None
    })
}

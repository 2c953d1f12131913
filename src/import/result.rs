//! Result files of older suites: their labels are what is claimed, their series what is measured.
//!
//! Two schemas are read, and whatever lies between: `step_times`, `loss_values`, `learning_rates`
//! with `training_config` and `parallelism_config` (ours is a superset of it), and the older
//! `raw_step_times` with a `software_stack` of cuda, rocm, nemo or prim.

use serde_json::Value;

use super::{gpus, published};
use crate::{
    figures::Telemetry,
    job::Job,
    logs::{Anomaly, DeviceLine, GIB, MemoryFigure, MemoryReport, Step, Trace},
    results::{Claim, PUBLISHED_RATE, PUBLISHED_STEP_TIME, StepTimeSource},
};

/// The value of a label, in the form that its setting has.
#[derive(Clone, Debug, PartialEq)]
pub enum Label {
    /// A whole number above 0.
    Count(u64),
    Number(f64),
    Text(String),
}

impl Label {
    /// What the label's value must be: the form of the setting, and how it is called.
    fn read(label: &str, value: &Value) -> Result<Self, &'static str> {
        match label {
            "precision" => {
                let text = value.as_str().map(short).filter(|text| !text.is_empty());
                text.map(Self::Text).ok_or("a name")
            }
            "learning_rate" => {
                let number = value.as_f64().filter(|number| number.is_finite());
                number.map(Self::Number).ok_or("a number")
            }
            _ => {
                let count = value.as_u64().filter(|count| *count > 0);
                count.map(Self::Count).ok_or("a whole number above 0")
            }
        }
    }
}

/// One file, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OldResult {
    pub trace: Trace,
    /// Settings by the job's names, as the file labels its run.
    pub labels: Vec<(&'static str, Label)>,
    /// As written.
    pub platform: Option<String>,
    pub framework: Option<String>,
    /// Every name that the file gives its strategy.
    pub strategies: Vec<String>,
    /// Mistakes of the file itself.
    pub anomalies: Vec<Anomaly>,
    /// Last lines of a log.
    pub log_tail: Vec<String>,
    pub host: Option<String>,
    pub started_at: Option<f64>,
    pub ended_at: Option<f64>,
    /// What disturbed the run, as judged when it had ended.
    pub suspect: Option<String>,
    /// What was sampled beside it, over the steps that its publisher measured.
    pub telemetry: Option<Telemetry>,
    /// How many repeats the plan wanted when the run was made.
    pub repeats_planned: Option<u32>,
    /// How its step times were made, where they are not the trainer's own.
    pub step_time_source: Option<StepTimeSource>,
    /// The train key of the repeats, where tprimat published the file.
    pub train_key: Option<String>,
}

/// What was expected, for errors.
pub const EXPECTED: &str = "a result has `step_times` or `raw_step_times`, and `training_config`";

/// Reads a result file of any older schema, or one `repeat` of tprimat's own; `Err` says why it is
/// none.
pub fn read_result(bytes: &[u8], repeat: Option<u32>) -> Result<OldResult, String> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match (published::read(text), repeat) {
        (Some(file), Some(repeat)) => return file?.run(repeat),
        (Some(file), None) => {
            let file = file?;
            return file.run(file.repeats().next().unwrap_or(1));
        }
        (None, Some(_)) => return Err("not what tprimat publishes".to_owned()),
        (None, None) => {}
    }
    let file: Value =
        serde_json::from_slice(text).map_err(|e| format!("not JSON: {e}; {EXPECTED}"))?;
    if !file.is_object() {
        return Err(format!("JSON, but not an object; {EXPECTED}"));
    }
    let mut read = OldResultReader {
        file: &file,
        out: OldResult::default(),
    };
    let name = ["step_times", "raw_step_times"]
        .into_iter()
        .find(|n| file.get(n).is_some_and(Value::is_array));
    let Some(name) = name else {
        return Err(format!("JSON, but no result: {EXPECTED}"));
    };
    read.out.trace.format = if name == "step_times" {
        "unified-json"
    } else {
        "raw-json"
    }
    .to_owned();
    read.names();
    read.labels();
    read.series(name);
    read.published();
    read.device();
    read.memory();
    read.strategy();
    Ok(read.out)
}

/// The degrees of parallelism: what each is called, and its label.
const DEGREES: [(&str, &str); 4] = [
    ("TP", "tensor_model_parallel_size"),
    ("PP", "pipeline_model_parallel_size"),
    ("CP", "context_parallel_size"),
    ("DP", "data_parallel_size"),
];

/// Label, the table that it may stand in, the names that it may have there.
const LABELS: [(&str, &[&str], &[&str]); 12] = [
    ("global_batch_size", TRAINING, &["global_batch_size", "gbs"]),
    ("micro_batch_size", TRAINING, &["micro_batch_size", "mbs"]),
    (
        "seq_length",
        TRAINING,
        &["sequence_length", "seq_length", "seq_len"],
    ),
    ("num_gpus", TRAINING, &["num_gpus", "world_size"]),
    ("train_iters", TRAINING, &["max_steps", "train_iters"]),
    ("precision", TRAINING, &["precision"]),
    ("learning_rate", TRAINING, &["learning_rate", "lr"]),
    (
        "tensor_model_parallel_size",
        PARALLEL,
        &[
            "tensor_model_parallel_size",
            "tensor_parallel_size",
            "TP",
            "tp",
        ],
    ),
    (
        "pipeline_model_parallel_size",
        PARALLEL,
        &[
            "pipeline_model_parallel_size",
            "pipeline_parallel_size",
            "PP",
            "pp",
        ],
    ),
    (
        "context_parallel_size",
        PARALLEL,
        &["context_parallel_size", "CP", "cp"],
    ),
    (
        "data_parallel_size",
        PARALLEL,
        &["data_parallel_size", "data_parallel", "DP", "dp"],
    ),
    (
        "gradient_accumulation_steps",
        PARALLEL,
        &[
            "gradient_accumulation_steps",
            "gradient_accumulation",
            "GA",
            "ga",
        ],
    ),
];
const TRAINING: &[&str] = &["training_config"];
const PARALLEL: &[&str] = &[
    "parallelism_config",
    "parallelism",
    "parallel_config",
    "training_config",
];

struct OldResultReader<'a> {
    file: &'a Value,
    out: OldResult,
}

impl OldResultReader<'_> {
    fn get(&self, tables: &[&str], names: &[&str]) -> Option<&Value> {
        let found = tables
            .iter()
            .filter_map(|t| self.file.get(t))
            .flat_map(|t| names.iter().filter_map(|n| t.get(n)));
        found.into_iter().find(|v| !v.is_null())
    }

    fn number(&self, table: &str, names: &[&str]) -> Option<f64> {
        self.get(&[table], names)?
            .as_f64()
            .filter(|v| v.is_finite())
    }

    fn text(&self, table: &str, name: &str) -> Option<String> {
        let text = if table.is_empty() {
            self.file.get(name)
        } else {
            self.get(&[table], &[name])
        };
        text.and_then(Value::as_str)
            .map(short)
            .filter(|t| !t.is_empty())
    }

    fn tell(&mut self, kind: &str, detail: String) {
        self.out.tell(kind, detail);
    }

    fn names(&mut self) {
        let stack = self
            .text("gpu_info", "software_stack")
            .or_else(|| self.text("", "software_stack"));
        let source = self.text("", "source");
        let is_platform = |s: &String| crate::config::vendor_named(&s.to_lowercase()).is_some();
        self.out.platform = self
            .text("", "platform")
            .or_else(|| stack.clone().filter(is_platform));
        let from_primus = source.as_deref().is_some_and(|s| s.contains("primus"));
        let primus = || crate::config::framework_named("primus").map(str::to_owned);
        self.out.framework = self
            .text("", "framework")
            .or_else(|| stack.filter(|s| !is_platform(s)))
            .or_else(|| from_primus.then(primus).flatten());
    }

    fn labels(&mut self) {
        for (label, tables, names) in LABELS {
            if let Some(value) = self.get(tables, names).cloned() {
                self.out.add_label(label, &value);
            }
        }
        let count = self
            .get(&["gpu_info"], &["device_count"])
            .and_then(Value::as_u64)
            .filter(|n| *n > 0);
        match (self.label("num_gpus"), count) {
            (None, Some(count)) => self.out.labels.push(("num_gpus", Label::Count(count))),
            (Some(label), Some(count)) if label != count => {
                self.tell(
                    "labels_disagree",
                    format!("num_gpus is {label}, device_count {count}"),
                );
            }
            _ => {}
        }
        self.degrees();
    }

    /// Do the degrees that are stated fit the number of GPUs? One that is not stated may be any.
    fn degrees(&mut self) {
        let Some(gpus) = self.label("num_gpus") else {
            return;
        };
        let stated: Vec<(&str, u64)> = DEGREES
            .iter()
            .filter_map(|(short, label)| Some((*short, self.label(label)?)))
            .collect();
        let degrees = stated.iter().map(|(_, degree)| *degree);
        let product = degrees.fold(1u64, u64::saturating_mul);
        let fits = match stated.len() == DEGREES.len() {
            true => product == gpus,
            false => product > 0 && gpus.is_multiple_of(product),
        };
        if !fits {
            let shown: Vec<String> = stated.iter().map(|(d, n)| format!("{d} {n}")).collect();
            let shown = match stated.len() {
                1 => shown.concat(),
                _ => format!("{} = {product}", shown.join(" × ")),
            };
            self.tell(
                "labels_disagree",
                format!("{shown}, and num_gpus is {gpus}"),
            );
        }
    }

    fn label(&self, name: &str) -> Option<u64> {
        self.out.label(name)
    }

    fn numbers(&self, name: &str) -> Option<Vec<Option<f64>>> {
        let values = self.file.get(name)?.as_array()?;
        Some(
            values
                .iter()
                .map(|v| v.as_f64().filter(|v| v.is_finite()))
                .collect(),
        )
    }

    fn series(&mut self, times: &str) {
        let times = self.numbers(times).unwrap_or_default();
        let step = |(i, time): (usize, &Option<f64>)| Step {
            step: i as u64 + 1,
            step_time_seconds: time.filter(|t| *t > 0.0),
            ..Step::default()
        };
        let mut steps: Vec<Step> = times.iter().enumerate().map(step).collect();
        let missing = steps
            .iter()
            .filter(|s| s.step_time_seconds.is_none())
            .count();
        if missing > 0 {
            self.tell(
                "step_times_unreadable",
                format!(
                    "{missing} of {} step times are not positive numbers",
                    times.len()
                ),
            );
        }
        for (name, short) in [
            ("loss_values", "losses"),
            ("learning_rates", "learning rates"),
        ] {
            let Some(values) = self.numbers(name).filter(|v| !v.is_empty()) else {
                continue;
            };
            if values.len() != steps.len() {
                let detail = format!(
                    "{} {short} for {} steps: which step each is of is not known, so they are left out",
                    values.len(),
                    steps.len()
                );
                self.tell(&format!("{name}_count"), detail);
                continue;
            }
            for (step, value) in steps.iter_mut().zip(values) {
                if name == "loss_values" {
                    step.loss = value
                } else {
                    step.learning_rate = value
                }
            }
        }
        let total = self
            .number("performance_metrics", &["total_steps"])
            .map(|n| n as usize);
        if let Some(total) = total.filter(|n| *n != steps.len()) {
            self.tell(
                "steps_count",
                format!(
                    "total_steps is {total}, and there are {} step times",
                    steps.len()
                ),
            );
        }
        self.out.trace.finished = self
            .label("train_iters")
            .is_none_or(|n| n == steps.len() as u64);
        self.out.trace.step_lines = steps.len() as u64;
        self.out.trace.steps = steps;
    }

    fn published(&mut self) {
        let metric = |name: &str| {
            self.number("performance_metrics", &[name])
                .filter(|v| *v > 0.0)
        };
        let gpus = self.label("num_gpus").map(|n| n as f64);
        let each = metric("tokens_per_second_per_gpu");
        let all = metric("tokens_per_second").or_else(|| Some(each? * gpus?));
        let time = metric("avg_step_time_seconds");
        if let (Some(all), Some(each), Some(gpus)) = (all, each, gpus)
            && (each * gpus / all - 1.0).abs() > 0.01
        {
            let detail = format!("{each:.1} tokens/s per device × {gpus} is not {all:.1} tokens/s");
            self.tell("published_rates_disagree", detail);
        }
        let totals = [
            (PUBLISHED_RATE, all),
            ("published_tokens_per_second_per_gpu", each),
            (PUBLISHED_STEP_TIME, time),
        ];
        let stated = totals
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        self.out.trace.totals = stated.collect();
    }

    fn device(&mut self) {
        let name = self.text("gpu_info", "device_name");
        for (version, field) in [
            ("torch", "pytorch_version"),
            ("software", "software_version"),
        ] {
            if let Some(text) = self.text("gpu_info", field) {
                self.out.trace.versions.insert(version.to_owned(), text);
            }
        }
        let Some(name) = name else { return };
        let cores = self
            .get(&["gpu_info"], &["gpu_cores"])
            .and_then(Value::as_u64);
        if let Some(wrong) = cores.and_then(|cores| gpus::wrong_cores(&name, cores)) {
            self.tell("gpu_cores", wrong);
        }
        let count = self
            .get(&["gpu_info"], &["device_count"])
            .and_then(Value::as_u64);
        self.out.trace.device = Some(DeviceLine {
            r#type: "cuda".to_owned(),
            name: Some(name),
            count,
        });
    }

    /// Suites write GB and mean GB or GiB; where the figure is from tells which. Only peaks are read:
    /// an average (`avg_memory_allocated_gb`) says less than what a run needs.
    fn memory(&mut self) {
        let kinds = [
            ("peak_allocated", "peak_memory_allocated_gb"),
            ("peak_reserved", "peak_memory_reserved_gb"),
        ];
        let stated = kinds.map(|(kind, name)| {
            let gb = self.number("memory_metrics", &[name])?;
            (0.0..1e6).contains(&gb).then_some((kind, gb))
        });
        let Some((_, first)) = stated.iter().flatten().next().copied() else {
            return;
        };
        let device = self
            .out
            .trace
            .device
            .as_ref()
            .and_then(|d| d.name.clone())
            .unwrap_or_default();
        let total = self.number("gpu_info", &["total_memory_gb"]);
        let from_primus = self
            .out
            .framework
            .as_deref()
            .map(str::to_lowercase)
            .is_some_and(|f| {
                let mut names = crate::config::framework_names("primus").iter();
                names.any(|name| f.starts_with(name.as_str()))
            });
        let (unit, source, why) = if from_primus {
            (
                GIB,
                "hip",
                "GiB: Primus prints GiB and calls it GB, and it is memory in use on the device"
                    .to_owned(),
            )
        } else {
            match total.and_then(|total| Some((total, gpus::is_decimal(&device, total)?))) {
                Some((total, false)) => (
                    GIB,
                    "torch",
                    format!("GiB, as the file's total of {total} is"),
                ),
                Some((total, true)) => (
                    1e9,
                    "torch",
                    format!("decimal GB, as the file's total of {total} is"),
                ),
                None => {
                    let detail = format!(
                        "memory \"{first} GB\" may be decimal GB or GiB: the file states no total of \
                         a known device to tell them apart, so it is left out"
                    );
                    self.tell("memory_unit", detail);
                    return;
                }
            }
        };
        self.tell(
            "memory_unit",
            format!(
                "memory \"{first} GB\" is {why}: {:.2} GiB",
                first * unit / GIB
            ),
        );
        let figure = |(kind, gb): (&'static str, f64)| MemoryFigure {
            kind: if from_primus { "device_used" } else { kind }.into(),
            source: source.into(),
            bytes: (gb * unit) as u64,
        };
        let figures = stated.into_iter().flatten().map(figure).collect();
        self.out.trace.memory.push(MemoryReport {
            rank: None,
            after_step: None,
            figures,
        });
        self.out.trace.memory_lines = 1;
    }

    fn strategy(&mut self) {
        let tables = [
            "parallelism_config",
            "parallelism",
            "parallel_config",
            "training_config",
        ];
        let names = tables.iter().flat_map(|t| {
            [
                self.text(t, "strategy_name"),
                self.text(t, "parallel_strategy"),
            ]
        });
        let mut names: Vec<String> = names.flatten().collect();
        names.sort();
        names.dedup();
        let degrees: Vec<String> = DEGREES[..2]
            .iter()
            .filter_map(|(short, label)| Some(format!("{short} {}", self.label(label)?)))
            .collect();
        let shown = match degrees.is_empty() {
            true => String::new(),
            false => format!(", with {}", degrees.join(" and ")),
        };
        let quoted: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
        if names.len() > 1 {
            self.tell(
                "strategy_names",
                format!(
                    "the strategy is named {} at once{shown}",
                    quoted.join(" and ")
                ),
            );
        } else if names.iter().any(|n| n.eq_ignore_ascii_case("unknown")) {
            self.tell(
                "strategy_names",
                format!("the strategy is named `unknown`{shown}"),
            );
        }
        self.out.strategies = names;
    }
}

/// Foreign text, cut to what a cell or a line can hold.
fn short(text: &str) -> String {
    text.trim()
        .chars()
        .filter(|c| !c.is_control())
        .take(120)
        .collect()
}

impl OldResult {
    fn label(&self, name: &str) -> Option<u64> {
        match self.labels.iter().find(|(n, _)| *n == name)?.1 {
            Label::Count(count) => Some(count),
            Label::Number(_) | Label::Text(_) => None,
        }
    }

    fn tell(&mut self, kind: &str, detail: String) {
        self.anomalies.push(Anomaly {
            kind: kind.to_owned(),
            detail,
            step: None,
        });
    }

    fn add_label(&mut self, label: &'static str, value: &Value) {
        match Label::read(label, value) {
            Ok(read) => self.labels.push((label, read)),
            Err(expected) => {
                let shown = short(&value.to_string());
                self.tell(
                    "label_unreadable",
                    format!("{label} is labelled {shown}, which is not {expected}"),
                );
            }
        }
    }

    /// A setting that the run's job asked for, where it is one that files label.
    pub(super) fn declare(&mut self, field: &str, value: &Value) {
        if let Some((label, ..)) = LABELS.iter().find(|(label, ..)| *label == field) {
            self.add_label(label, value);
        }
    }

    /// Adds the labels to what is claimed.
    pub fn claim(&self, claim: &mut Claim) {
        for (label, value) in &self.labels {
            let Job {
                data,
                parallelism,
                optimizer,
                train_iters,
                precision,
                ..
            } = &mut claim.job;
            match (*label, value) {
                ("precision", Label::Text(text)) => precision.clone_from(text),
                ("learning_rate", Label::Number(rate)) => optimizer.learning_rate = *rate,
                (name, Label::Count(count)) => {
                    *match name {
                        "global_batch_size" => &mut data.global_batch_size,
                        "micro_batch_size" => &mut data.micro_batch_size,
                        "seq_length" => &mut data.seq_length,
                        "num_gpus" => &mut parallelism.num_gpus,
                        "train_iters" => train_iters,
                        "tensor_model_parallel_size" => &mut parallelism.tensor_model_parallel_size,
                        "pipeline_model_parallel_size" => {
                            &mut parallelism.pipeline_model_parallel_size
                        }
                        "context_parallel_size" => &mut parallelism.context_parallel_size,
                        "data_parallel_size" => &mut parallelism.data_parallel_size,
                        "gradient_accumulation_steps" => &mut data.gradient_accumulation_steps,
                        _ => continue,
                    } = *count;
                }
                (_, Label::Text(_) | Label::Number(_)) => continue,
            }
            claim.add(label);
        }
    }
}

#[cfg(test)]
mod tests;

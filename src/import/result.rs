//! Result files of older suites: their labels are what is claimed, their series what is measured.
//!
//! Two schemas are read, and whatever lies between: `step_times`, `loss_values`, `learning_rates`
//! with `training_config` and `parallelism_config` (ours is a superset of it), and the older
//! `raw_step_times` with a `software_stack` of cuda, rocm, nemo or prim. `fields.toml` has the names
//! of their settings.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::Value;

use super::{facts::Facts, gpus, published};
use crate::{
    config::{framework_named, framework_names, vendor_named},
    figures::Telemetry,
    job::{Job, Task},
    logs::{Anomaly, DeviceLine, GIB, MemoryFigure, MemoryReport, Step, Trace},
    results::{Claim, PUBLISHED_RATE, PUBLISHED_STEP_TIME, RepeatsPlanned},
};

/// `fields.toml`.
#[derive(Deserialize)]
struct Fields {
    setting: Vec<Setting>,
    /// The frameworks that alone write a format of logs, by its name.
    writers: BTreeMap<String, Vec<String>>,
}

/// A setting that files label.
#[derive(Deserialize)]
struct Setting {
    name: String,
    job: String,
    tables: Vec<String>,
    names: Vec<String>,
}

static FIELDS: LazyLock<Fields> =
    LazyLock::new(|| toml::from_str(include_str!("fields.toml")).expect("a test reads it"));
static SETTINGS: LazyLock<&[Setting]> = LazyLock::new(|| &FIELDS.setting);

/// The degrees of parallelism: what each is called, and its label.
const DEGREES: [(&str, &str); 4] = [
    ("TP", "tensor_model_parallel_size"),
    ("PP", "pipeline_model_parallel_size"),
    ("CP", "context_parallel_size"),
    ("DP", "data_parallel_size"),
];

/// One file, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OldResult {
    pub trace: Trace,
    /// Settings by the job's names, as the file labels its run.
    pub labels: Vec<(&'static str, Value)>,
    /// As written.
    pub platform: Option<String>,
    pub framework: Option<String>,
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
    pub repeats_planned: Option<RepeatsPlanned>,
    /// How its step times were made, where they are not the trainer's own.
    pub step_time_source: Option<String>,
    /// The train key of the repeats, where tprimat published the file.
    pub train_key: Option<String>,
}

/// The frameworks that write logs of this format, where no others do.
pub(super) fn writers_of(format: &str) -> Option<&'static [String]> {
    FIELDS.writers.get(format).map(Vec::as_slice)
}

/// The settings that a file may label its run with.
pub(super) fn label_names() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.name.as_str())
}

/// The setting that one of its names means: `world_size` is `num_gpus`.
pub(super) fn label_named(name: &str) -> Option<&'static str> {
    let mut settings = SETTINGS.iter();
    let setting =
        settings.find(|of| of.name == name || of.names.iter().any(|other| other == name))?;
    Some(&setting.name)
}

/// A label's value in the form that a job has it; the error is what was expected.
pub(super) fn label_value(name: &str, value: &Value) -> Result<Value, &'static str> {
    let setting = SETTINGS.iter().find(|setting| setting.name == name);
    let form = serde_json::to_value(Job::default()).unwrap_or_default();
    let form = setting
        .and_then(|setting| form.pointer(&setting.job))
        .unwrap_or(&Value::Null);
    if name == "task" {
        let task = serde_json::from_value::<Task>(value.clone());
        return task
            .map(|_| value.clone())
            .map_err(|_| "pretrain, sft or lora");
    }
    if form.is_string() {
        let text = value.as_str().map(short).filter(|text| !text.is_empty());
        text.map(Value::from).ok_or("a name")
    } else if form.is_f64() {
        value.as_f64().map(Value::from).ok_or("a number")
    } else {
        let count = value.as_u64().filter(|count| *count > 0 || name == "seed");
        count.map(Value::from).ok_or("a whole number above 0")
    }
}

/// What was expected, for errors.
pub const EXPECTED: &str = "a result has `step_times` or `raw_step_times`, and `training_config`";

/// Reads a result file of any older schema, or one `repeat` of tprimat's own; `Err` says why it is
/// none.
pub fn read_result(bytes: &[u8], repeat: Option<u32>) -> Result<OldResult, String> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    match (published::read(text), repeat) {
        (Some(file), repeat) => return file?.run(repeat),
        (None, Some(_)) => return Err("not what tprimat publishes".to_owned()),
        (None, None) => {}
    }
    let file: Value =
        serde_json::from_slice(text).map_err(|e| format!("not JSON: {e}; {EXPECTED}"))?;
    if !file.is_object() {
        return Err(format!("JSON, but not an object; {EXPECTED}"));
    }
    let mut series = [
        ("step_times", "unified-json"),
        ("raw_step_times", "raw-json"),
    ]
    .into_iter();
    if file["log_history"].is_array() {
        return Err(
            "the state of a Hugging Face Trainer, which is read as a log: `tprimat import CELL --log FILE`".to_owned(),
        );
    }
    let Some((series, format)) = series.find(|(name, _)| file[name].is_array()) else {
        return Err(format!("JSON, but no result: {EXPECTED}"));
    };
    let mut read = Reader {
        file: &file,
        out: OldResult::default(),
    };
    read.out.trace.format = format.to_owned();
    read.names();
    read.labels();
    read.series(series);
    read.published();
    read.device();
    read.memory();
    read.strategy();
    Ok(read.out)
}

/// The settings that a file labels its run with, each with its value.
pub(super) fn labelled(file: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    SETTINGS.iter().filter_map(|setting| {
        let tables = setting.tables.iter().filter_map(|name| file.get(name));
        let mut values = tables.flat_map(|of| setting.names.iter().filter_map(|n| of.get(n)));
        let value = values.find(|value| !value.is_null())?;
        Some((setting.name.as_str(), value))
    })
}

struct Reader<'a> {
    file: &'a Value,
    out: OldResult,
}

impl Reader<'_> {
    fn number(&self, path: &str) -> Option<f64> {
        let number = self.file.pointer(path)?.as_f64()?;
        number.is_finite().then_some(number)
    }

    fn count(&self, path: &str) -> Option<u64> {
        self.file.pointer(path)?.as_u64().filter(|n| *n > 0)
    }

    fn text(&self, path: &str) -> Option<String> {
        let text = short(self.file.pointer(path)?.as_str()?);
        (!text.is_empty()).then_some(text)
    }

    fn names(&mut self) {
        let stack = self.text("/gpu_info/software_stack");
        let stack = stack.or_else(|| self.text("/software_stack"));
        let is_platform = |stack: &String| vendor_named(&stack.to_lowercase()).is_some();
        let (platform, framework) = match stack {
            Some(stack) if is_platform(&stack) => (Some(stack), None),
            stack => (None, stack),
        };
        let source = self.text("/source").filter(|s| s.contains("primus"));
        let primus = source.and_then(|_| framework_named("primus"));
        self.out.platform = self.text("/platform").or(platform);
        self.out.framework = self.text("/framework").or(framework);
        self.out.framework = self.out.framework.take().or(primus.map(str::to_owned));
    }

    fn labels(&mut self) {
        for (name, value) in labelled(self.file) {
            self.out.declare(name, value);
        }
        match (
            self.out.label("num_gpus"),
            self.count("/gpu_info/device_count"),
        ) {
            (None, Some(count)) => self.out.labels.push(("num_gpus", count.into())),
            (Some(label), Some(count)) if label != count => {
                let detail = format!("num_gpus is {label}, device_count {count}");
                self.out.tell("labels_disagree", detail);
            }
            _ => {}
        }
        let Some(gpus) = self.out.label("num_gpus") else {
            return;
        };
        let stated = self.out.degrees();
        let product = stated
            .iter()
            .fold(1u64, |all, (_, n)| all.saturating_mul(*n));
        // A degree that is not stated may be any.
        let fits = match stated.len() == DEGREES.len() {
            true => product == gpus,
            false => product > 0 && gpus.is_multiple_of(product),
        };
        if !fits {
            let detail = format!("{} = {product}, and num_gpus is {gpus}", shown(&stated));
            self.out.tell("labels_disagree", detail);
        }
    }

    fn numbers(&self, name: &str) -> Vec<Option<f64>> {
        let values = self.file[name].as_array().into_iter().flatten();
        values
            .map(|value| value.as_f64().filter(|value| value.is_finite()))
            .collect()
    }

    fn series(&mut self, times: &str) {
        let times = self.numbers(times);
        let step = |(step, time): (u64, &Option<f64>)| Step {
            step,
            step_time_seconds: time.filter(|time| *time > 0.0),
            ..Step::default()
        };
        let mut steps: Vec<Step> = (1..).zip(&times).map(step).collect();
        let all = steps.len();
        let is_missing = |step: &&Step| step.step_time_seconds.is_none();
        let missing = steps.iter().filter(is_missing).count();
        if missing > 0 {
            let detail = format!("{missing} of {all} step times are not positive numbers");
            self.out.tell("step_times_unreadable", detail);
        }
        for name in ["loss_values", "learning_rates"] {
            let values = self.numbers(name);
            if values.len() == all {
                for (step, value) in steps.iter_mut().zip(values) {
                    match name {
                        "loss_values" => step.loss = value,
                        _ => step.learning_rate = value,
                    }
                }
            } else if !values.is_empty() {
                let detail = format!(
                    "{} {name} for {all} steps: which step each is of is not known, so they are left out",
                    values.len()
                );
                self.out.tell(&format!("{name}_count"), detail);
            }
        }
        let total = self.number("/performance_metrics/total_steps");
        if let Some(total) = total.filter(|total| *total as usize != all) {
            let detail = format!("total_steps is {total}, and there are {all} step times");
            self.out.tell("steps_count", detail);
        }
        let trace = &mut self.out.trace;
        trace.step_lines = all as u64;
        trace.steps = steps;
        let wanted = self.out.label("train_iters");
        self.out.trace.finished = wanted.is_none_or(|wanted| wanted == all as u64);
    }

    fn published(&mut self) {
        let metric = |name: &str| {
            let value = self.number(&format!("/performance_metrics/{name}"))?;
            (value > 0.0).then_some(value)
        };
        let gpus = self.out.label("num_gpus").map(|n| n as f64);
        let each = metric("tokens_per_second_per_gpu");
        let all = metric("tokens_per_second").or_else(|| Some(each? * gpus?));
        let time = metric("avg_step_time_seconds");
        if let (Some(all), Some(each), Some(gpus)) = (all, each, gpus)
            && (each * gpus / all - 1.0).abs() > 0.01
        {
            let detail = format!("{each:.1} tokens/s per device × {gpus} is not {all:.1} tokens/s");
            self.out.tell("published_rates_disagree", detail);
        }
        let totals = [
            (PUBLISHED_RATE, all),
            ("published_tokens_per_second_per_gpu", each),
            (PUBLISHED_STEP_TIME, time),
        ];
        let stated = totals.into_iter();
        let stated = stated.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        self.out.trace.totals = stated.collect();
    }

    fn device(&mut self) {
        for (version, field) in [
            ("torch", "/gpu_info/pytorch_version"),
            ("software", "/gpu_info/software_version"),
        ] {
            let text = self.text(field).map(|text| (version.to_owned(), text));
            self.out.trace.versions.extend(text);
        }
        let Some(name) = self.text("/gpu_info/device_name") else {
            return;
        };
        let cores = self.count("/gpu_info/gpu_cores");
        if let Some(wrong) = cores.and_then(|cores| gpus::wrong_cores(&name, cores)) {
            self.out.tell("gpu_cores", wrong);
        }
        let total = self.number("/gpu_info/total_memory_gb");
        self.out.suspect = total.and_then(|total| gpus::wrong_memory(&name, total));
        self.out.trace.device = Some(DeviceLine {
            r#type: "cuda".to_owned(),
            name: Some(name),
            count: self.count("/gpu_info/device_count"),
        });
    }

    /// Suites write GB and mean GB or GiB; where the figure is from tells which. Only peaks are read:
    /// an average (`avg_memory_allocated_gb`) says less than what a run needs.
    fn memory(&mut self) {
        let kinds = [
            ("peak_allocated", "/memory_metrics/peak_memory_allocated_gb"),
            ("peak_reserved", "/memory_metrics/peak_memory_reserved_gb"),
        ];
        let peaks = kinds.into_iter().filter_map(|(kind, path)| {
            let gb = self.number(path)?;
            (0.0..1e6).contains(&gb).then_some((kind, gb))
        });
        let peaks: Vec<(&str, f64)> = peaks.collect();
        let Some((_, first)) = peaks.first() else {
            return;
        };
        let device = self.text("/gpu_info/device_name").unwrap_or_default();
        let total = self.number("/gpu_info/total_memory_gb").unwrap_or_default();
        let framework = self
            .out
            .framework
            .as_deref()
            .unwrap_or_default()
            .to_lowercase();
        let mut primus = framework_names("primus").iter();
        let is_primus = primus.any(|name| framework.starts_with(name.as_str()));
        let (unit, why) = match gpus::is_decimal(&device, total) {
            _ if is_primus => {
                let why =
                    "GiB: Primus prints GiB and calls it GB, and it is memory in use on the device";
                (GIB, why.to_owned())
            }
            Some(false) => (GIB, format!("GiB, as the file's total of {total} is")),
            Some(true) => (
                1e9,
                format!("decimal GB, as the file's total of {total} is"),
            ),
            None => {
                let detail = format!(
                    "memory \"{first} GB\" may be decimal GB or GiB: the file states no total of \
                     a known device to tell them apart, so it is left out"
                );
                return self.out.tell("memory_unit", detail);
            }
        };
        let gib = first * unit / GIB;
        let detail = format!("memory \"{first} GB\" is {why}: {gib:.2} GiB");
        self.out.tell("memory_unit", detail);
        let figure = |(kind, gb): (&'static str, f64)| MemoryFigure {
            kind: if is_primus { "device_used" } else { kind }.into(),
            source: if is_primus { "hip" } else { "torch" }.into(),
            bytes: (gb * unit) as u64,
        };
        let figures = peaks.into_iter().map(figure).collect();
        self.out.remember(figures);
    }

    /// Files that give their strategy two names, or none, are told with the degrees that they state.
    fn strategy(&mut self) {
        let tables = SETTINGS.iter().flat_map(|setting| &setting.tables);
        let names = tables.flat_map(|table| {
            ["strategy_name", "parallel_strategy"].map(|name| format!("/{table}/{name}"))
        });
        let mut names: Vec<String> = names.filter_map(|path| self.text(&path)).collect();
        names.sort();
        names.dedup();
        if names.len() > 1
            || names
                .iter()
                .any(|name| name.eq_ignore_ascii_case("unknown"))
        {
            let mut degrees = self.out.degrees();
            degrees.retain(|(of, _)| ["TP", "PP"].contains(of));
            let with = if degrees.is_empty() { "" } else { ", with " };
            let names = names.join("` and `");
            let detail = format!("the strategy is named `{names}`{with}{}", shown(&degrees));
            self.out.tell("strategy_names", detail);
        }
    }
}

/// `TP 2 × DP 4`
fn shown(degrees: &[(&str, u64)]) -> String {
    let each: Vec<String> = degrees.iter().map(|(of, n)| format!("{of} {n}")).collect();
    each.join(" × ")
}

/// Foreign text, cut to what a cell or a line can hold.
fn short(text: &str) -> String {
    let plain = text.trim().chars().filter(|c| !c.is_control());
    plain.take(120).collect()
}

impl OldResult {
    fn label(&self, name: &str) -> Option<u64> {
        let (_, value) = self.labels.iter().find(|(label, _)| *label == name)?;
        value.as_u64()
    }

    fn degrees(&self) -> Vec<(&'static str, u64)> {
        let stated = DEGREES.iter();
        stated
            .filter_map(|(short, label)| Some((*short, self.label(label)?)))
            .collect()
    }

    pub(super) fn tell(&mut self, kind: &str, detail: String) {
        self.anomalies.push(Anomaly {
            kind: kind.to_owned(),
            detail,
            step: None,
        });
    }

    pub(super) fn remember(&mut self, figures: Vec<MemoryFigure>) {
        if !figures.is_empty() {
            self.trace.memory_lines = 1;
            self.trace.memory.push(MemoryReport {
                rank: None,
                after_step: None,
                figures,
            });
        }
    }

    /// A setting that the run's job asked for, where it is one that files label and has its form.
    pub(super) fn declare(&mut self, field: &str, value: &Value) {
        let Some(name) = label_named(field) else {
            return;
        };
        match label_value(name, value) {
            Ok(read) => self.labels.push((name, read)),
            Err(expected) => {
                let value = short(&value.to_string());
                let detail = format!("{field} is labelled {value}, which is not {expected}");
                self.tell("label_unreadable", detail);
            }
        }
    }

    /// What whoever imports the file knows, where it has no such label. A batch that follows is one
    /// of these facts.
    pub(super) fn supply(&mut self, facts: &Facts) {
        for (name, value) in facts {
            if self.labels.iter().all(|(label, _)| label != name) {
                self.declare(name, value);
            }
        }
        let stated = |name: &str| self.trace.effective.0.get(name).and_then(Value::as_u64);
        let known = |name: &str| stated(name).or_else(|| self.label(name));
        let [micro, ranks, steps] = [
            "micro_batch_size",
            "data_parallel_size",
            "gradient_accumulation_steps",
        ]
        .map(known);
        if !facts.is_empty()
            && known("global_batch_size").is_none()
            && let (Some(micro), Some(ranks), Some(steps)) = (micro, ranks, steps)
        {
            let batch = micro.saturating_mul(ranks).saturating_mul(steps);
            self.labels.push(("global_batch_size", batch.into()));
        }
    }

    /// Adds the labels to what is claimed.
    pub fn claim(&self, claim: &mut Claim) {
        let mut job = serde_json::to_value(&claim.job).unwrap_or_default();
        for (label, value) in &self.labels {
            let setting = SETTINGS.iter().find(|setting| setting.name == *label);
            if let Some(place) = setting.and_then(|of| job.pointer_mut(&of.job)) {
                *place = value.clone();
                claim.add(label);
            }
        }
        if let Ok(job) = serde_json::from_value(job) {
            claim.job = job;
        }
    }
}

#[cfg(test)]
mod tests;

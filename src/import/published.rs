//! Result files that tprimat published: every repeat with its own series, what its trainer stated,
//! how it ended and what was sampled beside it.
//!
//! Only the fields that an import uses are read, so that a file stays readable when the rest of the
//! format changes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{
    is_id,
    result::{OldResult, labelled},
};
use crate::{
    figures::{Memory, Telemetry, UNIFIED_SCHEMA, host_named},
    job::FailureClass,
    logs::{DeviceLine, Failure, MemoryFigure, Step},
    results::{Contract, Reason, RepeatsPlanned},
};

/// How every schema of tprimat's own files begins.
const OURS: &str = "tprimat.";

/// One file.
#[derive(Debug, Deserialize)]
pub(super) struct Published {
    pub cell: String,
    platform: String,
    framework: String,
    gpu_info: GpuInfo,
    memory_metrics: MemoryMetrics,
    contract: Contract,
    key: Option<String>,
    environment: Environment,
    repeats: Vec<Repeat>,
}

#[derive(Clone, Debug, Deserialize)]
struct GpuInfo {
    device_count: Option<u64>,
    device_name: Option<String>,
    software_stack: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Environment {
    versions: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct MemoryMetrics {
    all: Vec<Memory>,
}

#[derive(Debug, Deserialize)]
struct Repeat {
    repeat: u32,
    host: String,
    started_at: Option<f64>,
    ended_at: Option<f64>,
    #[serde(flatten)]
    status: Status,
    telemetry: Option<Telemetry>,
    repeats_planned: Option<RepeatsPlanned>,
    step_time_source: Option<String>,
    steps: Vec<u64>,
    #[serde(default)]
    steps_averaged: Vec<u64>,
    step_times: Vec<Option<f64>>,
    loss_values: Vec<Option<f64>>,
    learning_rates: Vec<Option<f64>>,
}

/// How a repeat ended, as far as its series do not say it again.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Status {
    Failed {
        class: FailureClass,
        evidence: Vec<String>,
    },
    Suspect {
        reason: String,
    },
    Contradicted {
        fields: Vec<String>,
    },
    Unmeasured {
        reason: Reason,
    },
    Ok,
}

/// The schema that the bytes name, where it is one of tprimat's. Cut files name it too.
pub(super) fn schema(bytes: &[u8]) -> Option<String> {
    let start = memchr::memmem::find_iter(bytes, b"\"schema_version\"").find_map(|at| {
        let value = bytes[at..]
            .splitn(3, |b| *b == b'"')
            .nth(2)?
            .trim_ascii_start()
            .strip_prefix(b":")?;
        value.trim_ascii_start().strip_prefix(b"\"")
    })?;
    let name = start.split(|b| *b == b'"').next().unwrap_or_default();
    std::str::from_utf8(name)
        .ok()
        .filter(|name| name.starts_with(OURS))
        .map(str::to_owned)
}

/// Is it the schema of a result, in whatever version?
pub(super) fn is_result(schema: &str) -> bool {
    schema.split('/').next() == UNIFIED_SCHEMA.split('/').next()
}

/// `None`: not a file of tprimat's. `Err`: it says that it is one, and why it cannot be read as
/// one.
pub(super) fn read(bytes: &[u8]) -> Option<Result<Published, String>> {
    let schema = schema(bytes)?;
    let version = |schema: &'_ str| schema.rsplit('/').next().unwrap_or_default().to_owned();
    Some(match schema.as_str() {
        UNIFIED_SCHEMA => parsed(bytes).map_err(|why| {
            format!("it says that tprimat published it (`{UNIFIED_SCHEMA}`), but {why}")
        }),
        other if is_result(other) => Err(format!(
            "a result of tprimat in version {} of its format, and this tprimat reads version {}; \
             import it with the tprimat that published it, or a later one",
            version(other),
            version(UNIFIED_SCHEMA)
        )),
        _ => Err(format!(
            "tprimat publishes it (`{schema}`), but it is not a result; results are train_*.json"
        )),
    })
}

fn parsed(bytes: &[u8]) -> Result<Published, String> {
    let file: Published =
        serde_json::from_slice(bytes).map_err(|e| format!("not as tprimat does: {e}"))?;
    if file.repeats.is_empty() {
        return Err("`repeats` is empty".to_owned());
    }
    if !is_id(&file.cell) {
        let cell = &file.cell;
        return Err(format!(
            "`cell` is {cell:?}, not platform/framework/model/parallelism"
        ));
    }
    for run in &file.repeats {
        let repeat = run.repeat;
        let lengths = [
            run.steps.len(),
            run.loss_values.len(),
            run.learning_rates.len(),
        ];
        let averaged = Some(run.steps_averaged.len()).filter(|length| *length > 0);
        let mut lengths = lengths.into_iter().chain(averaged);
        if lengths.any(|length| length != run.step_times.len()) {
            return Err(format!("repeat {repeat} has series of different lengths"));
        }
        let is_rising = run.steps.is_sorted_by(|one, next| one < next);
        if !is_rising || run.steps_averaged.contains(&0) {
            return Err(format!(
                "the numbers in `steps` of repeat {repeat} do not rise"
            ));
        }
    }
    let whole = serde_json::from_slice(bytes).unwrap_or_default();
    match contradiction(&whole, &file) {
        Some(why) => Err(format!("it contradicts itself: {why}")),
        None => Ok(file),
    }
}

/// Where a file states two things of one fact, as tprimat never publishes it: somebody edited one of
/// them, and nobody knows which of the others.
fn contradiction(whole: &Value, file: &Published) -> Option<String> {
    let contract = |name: &str| {
        let field = file.contract.0.iter().find(|field| field.field == name)?;
        field.value.as_u64()
    };
    // What was asked for may differ from what the log states.
    let labels = labelled(whole).filter(|(name, _)| *name != "train_iters");
    let devices = whole
        .pointer("/gpu_info/device_count")
        .map(|count| ("num_gpus", count));
    for (name, label) in labels.chain(devices) {
        if let Some(stated) = contract(name).filter(|stated| label.as_u64() != Some(*stated)) {
            return Some(format!("{name} is {label}, and {stated} in its contract"));
        }
    }
    let metric = |name: &str| {
        whole
            .pointer(&format!("/performance_metrics/{name}"))?
            .as_f64()
    };
    if let (Some(all), Some(each), Some(devices)) = (
        metric("tokens_per_second"),
        metric("tokens_per_second_per_gpu"),
        contract("num_gpus"),
    ) && (each * devices as f64 / all - 1.0).abs() > 1e-6
    {
        return Some(format!(
            "tokens_per_second is {all}, and {each} per device × {devices}"
        ));
    }
    let repeats = whole["repeats"].as_array()?;
    let has = |repeat: &Value| {
        let series = ["steps", "step_times", "loss_values", "learning_rates"];
        series.iter().all(|name| repeat[*name] == whole[*name])
    };
    let times = whole["step_times"].as_array();
    let is_of_none = times.is_some_and(|all| !all.is_empty()) && !repeats.iter().any(has);
    is_of_none.then(|| "its series are those of none of its repeats".to_owned())
}

impl Published {
    /// The numbers of its repeats.
    pub fn repeats(&self) -> impl Iterator<Item = u32> {
        self.repeats.iter().map(|run| run.repeat)
    }

    /// One repeat as a run; the first where none is named.
    pub fn run(&self, repeat: Option<u32>) -> Result<OldResult, String> {
        let mut runs = self.repeats.iter();
        let run = runs.find(|run| repeat.is_none_or(|repeat| run.repeat == repeat));
        let run = run.ok_or_else(|| format!("it has no repeat {}", repeat.unwrap_or(1)))?;
        let mut out = OldResult {
            platform: Some(self.platform.clone()),
            framework: Some(self.framework.clone()),
            host: host_named(&run.host).map(str::to_owned),
            started_at: run.started_at,
            ended_at: run.ended_at,
            telemetry: run.telemetry.clone(),
            repeats_planned: run.repeats_planned,
            step_time_source: run.step_time_source.clone(),
            train_key: self.key.clone(),
            ..OldResult::default()
        };
        match run.status.clone() {
            Status::Failed { class, evidence } => {
                out.trace.failure = Some(Failure { class, evidence });
            }
            Status::Suspect { reason } => out.suspect = Some(reason),
            // What the log said of these is not in the file, so they stay what they were found to
            // be.
            Status::Contradicted { fields } => {
                let fields = fields.join(", ");
                out.suspect = Some(format!("its log contradicted its job in {fields}"));
            }
            Status::Unmeasured { reason } => {
                out.suspect = Some(format!("it had no rate: {reason}"))
            }
            // Whether it counts follows from its series again.
            Status::Ok => {}
        }
        let step = |i: usize| Step {
            step: run.steps[i],
            steps_averaged: run.steps_averaged.get(i).copied().filter(|n| *n > 1),
            step_time_seconds: run.step_times[i],
            loss: run.loss_values[i],
            learning_rate: run.learning_rates[i],
            ..Step::default()
        };
        out.trace.format = "tprimat-json".to_owned();
        out.trace.steps = (0..run.step_times.len()).map(step).collect();
        out.trace.step_lines = run.step_times.len() as u64;
        out.trace.finished = out.trace.failure.is_none();
        out.trace.versions.clone_from(&self.environment.versions);
        for field in &self.contract.0 {
            let (name, value) = (field.field.clone(), field.value.clone());
            // A trainer's statement stands in every repeat that counts; all else is from the job.
            if !field.source.is_of_trainer() {
                out.declare(&name, &value);
            } else {
                out.trace.effective.0.insert(name, value);
            }
        }
        let GpuInfo {
            software_stack,
            device_name,
            device_count: count,
        } = self.gpu_info.clone();
        out.trace.device = device_name.map(|name| DeviceLine {
            r#type: software_stack.unwrap_or_else(|| "cuda".to_owned()),
            name: Some(name),
            count,
        });
        let figure = |of: &Memory| MemoryFigure {
            kind: of.kind.clone().into(),
            source: of.source.clone().into(),
            bytes: of.bytes,
        };
        out.remember(self.memory_metrics.all.iter().map(figure).collect());
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use proptest::prelude::*;

    use super::{super::read_result, *};

    /// Result files that tprimat published of runs on GPUs.
    fn of_gpus() -> Vec<(PathBuf, Value)> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/published");
        let files = fs::read_dir(folder).unwrap().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.sort();
        let value = |path: &PathBuf| serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        files
            .iter()
            .map(|path| (path.clone(), value(path)))
            .collect()
    }

    fn bytes(value: &Value) -> Vec<u8> {
        serde_json::to_vec(value).unwrap()
    }

    #[test]
    fn every_published_file_is_read_with_all_its_repeats() {
        let files = of_gpus();
        assert!(files.len() >= 4, "{} files", files.len());
        for (path, value) in files {
            let at = path.display();
            let file = read(&bytes(&value))
                .unwrap()
                .unwrap_or_else(|why| panic!("{at}: {why}"));
            let repeats: Vec<u32> = file.repeats().collect();
            let published = value["repeats"].as_array().unwrap();
            assert_eq!(repeats.len(), published.len(), "{at}");
            for (repeat, published) in repeats.iter().zip(published) {
                let run = file.run(Some(*repeat)).unwrap();
                let times: Vec<Value> = run
                    .trace
                    .steps
                    .iter()
                    .map(|s| s.step_time_seconds.into())
                    .collect();
                assert_eq!(Value::from(times), published["step_times"], "{at}#{repeat}");
                assert_eq!(
                    run.host.as_deref(),
                    published["host"].as_str(),
                    "{at}#{repeat}"
                );
                assert_eq!(
                    run.telemetry.is_some(),
                    published.get("telemetry").is_some(),
                    "{at}#{repeat}"
                );
                let stated = value["contract"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|f| f["source"] != "declared")
                    .count();
                assert_eq!(run.trace.effective.0.len(), stated, "{at}#{repeat}");
            }
        }
    }

    #[test]
    fn files_of_ours_that_are_no_results_say_what_they_are() {
        let said = |text: &str| read(text.as_bytes()).unwrap().unwrap_err();
        let comparison = said(r#"{"schema_version": "tprimat.comparison/1", "rows": []}"#);
        assert!(comparison.contains("train_*.json"), "{comparison}");
        let later = said(r#"{"schema_version":"tprimat.unified/9"}"#);
        assert!(
            later.contains("version 9") && later.contains("reads version 1"),
            "{later}"
        );
        let cut = said(r#"{"schema_version": "tprimat.unified/1", "cell": "a/b"#);
        assert!(cut.contains("EOF") && cut.contains("line 1"), "{cut}");
        assert!(read(br#"{"schema_version": "1.0", "step_times": [1.0]}"#).is_none());
    }

    #[test]
    fn a_status_or_a_length_that_is_not_known_refuses_the_file() {
        let (_, file) = of_gpus().swap_remove(0);
        let refused = |file: &Value| read(&bytes(file)).unwrap().unwrap_err();
        let mut other = file.clone();
        other["repeats"][0]["status"] = "quarantined".into();
        let why = refused(&other);
        assert!(why.contains("unknown variant `quarantined`"), "{why}");
        let mut other = file.clone();
        other["repeats"][0].as_object_mut().unwrap().remove("steps");
        let why = refused(&other);
        assert!(why.contains("missing field `steps`"), "{why}");
    }

    #[test]
    fn a_file_that_was_edited_so_that_it_contradicts_itself_is_refused() {
        let (_, file) = of_gpus().swap_remove(0);
        for (at, value) in [
            ("/training_config/global_batch_size", Value::from(16)),
            ("/training_config/global_batch_size", u64::MAX.into()),
            ("/training_config/num_gpus", 0.into()),
            ("/parallelism_config/data_parallel_size", 2.into()),
            ("/gpu_info/device_count", 1.into()),
            ("/performance_metrics/tokens_per_second", 1e6.into()),
            ("/step_times/3", 0.001.into()),
            ("/repeats/0/step_times/3", 0.001.into()),
        ] {
            let mut edited = file.clone();
            *edited.pointer_mut(at).unwrap() = value;
            let why = read(&bytes(&edited)).unwrap().unwrap_err();
            assert!(why.contains("it contradicts itself"), "{at}: {why}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Whatever is wrong with a file of ours, it is read with all its repeats or refused; never
        /// as a stranger's file, which has one repeat and states nothing.
        #[test]
        fn a_damaged_file_of_ours_is_no_strangers_file(file in 0usize..100, field in 0usize..30, odd in prop_oneof![
            Just(None), Just(Some(Value::from("x"))), Just(Some(Value::from(-1.5))), Just(Some(Value::Array(Vec::new())))]) {
            let mut files = of_gpus();
            let at = file % files.len();
            let (_, mut value) = files.swap_remove(at);
            let whole = value["repeats"].as_array().unwrap().len();
            let map = value.as_object_mut().unwrap();
            let names: Vec<String> = map.keys().filter(|name| *name != "schema_version").cloned().collect();
            let name = &names[field % names.len()];
            match odd {
                None => drop(map.remove(name)),
                Some(odd) => drop(map.insert(name.clone(), odd)),
            }
            let damaged = bytes(&value);
            match read(&damaged) {
                None => prop_assert!(false, "`{name}` makes it a stranger's"),
                Some(Ok(file)) => prop_assert_eq!(file.repeats().count(), whole),
                Some(Err(why)) => {
                    let said = read_result(&damaged, None).unwrap_err();
                    prop_assert_eq!(said, why);
                }
            }
        }
    }
}

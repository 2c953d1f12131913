//! Every log and result, imported at once, and compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    flat::{Form, Lines, in_sentences, numbers},
    held::{Sections, hold},
    logs::unpack,
};
use crate::support::{Project, files_below};

/// Models that the logs are of, a price for each vendor, and one warm-up step, so that short logs
/// have a rate as well.
const CONFIG: &str = r#"hardware:
  platforms:
    nvd: { vendor: nvd, gpu_model: NVIDIA H100 80GB HBM3, memory_per_gpu_gb: 80, num_gpus: 8 }
    amd: { vendor: amd, gpu_model: AMD Instinct MI300X, memory_per_gpu_gb: 192, num_gpus: 8 }
models:
  llama: { full_name: Llama 3.1 8B }
  qwen: { full_name: Qwen2.5 7B }
  mistral: { full_name: Mistral 7B v0.1 }
training:
  data: { micro_batch_size: 1, global_batch_size: 128, seq_length: 8192 }
  duration: { train_iters: 50 }
  optimizer: { type: adamw, learning_rate: 3.0e-4, warmup_steps: 10 }
parallelism:
  fast: { DP: 8 }
benchmarking:
  warmup: { skip_steps: 1 }
  enhanced_metrics:
    cloud_costs:
      nvd: { per_gpu_hour: 3.00, currency: USD, source: made up }
      amd: { per_gpu_hour: 2.50, currency: USD, source: made up }
"#;

const MATRIX: &str = r#"[matrix]
name = "held"
platform = ["nvd", "amd"]
framework = ["nemo", "prim"]
model = "llama"
parallelism = "fast"
repeats = 1
"#;

/// The fields of `compare --json`.
pub const COMPARISON: Form = Form {
    dropped: &[
        // When, where, and under which name in the cache.
        "attempt",
        "host",
        "hosts",
        "started_at",
        "ended_at",
        "clock",
        "unchecked",
        // The log, which is held by itself.
        "curve",
        "log_tail",
        "imported",
        // What stands elsewhere in the same row, or is told below.
        "attestation",
        "attested",
        "contract",
        "declared_only",
        "environment",
        "mfu",
        "repeats_wanted",
        // The cell's own name, and places in lists.
        "platform",
        "framework",
        "model",
        "parallelism",
        "axes",
        "group",
        "loss_group",
        // English, and constants of the metric.
        "title",
        "unit",
        "higher_is_better",
        "basis",
        "prices",
        // What the status of a repeat and the workload of a group say as well.
        "why",
        "across",
    ],
    sentences: &["reason", "not_assessed", "arithmetic", "workload", "labels"],
    names: &["field", "name"],
    digits: 12,
};

/// What a comparison says of each cell, and what it says of pairs of them.
pub struct Compared {
    pub cells: BTreeMap<String, Lines>,
    pub pairs: Lines,
}

impl Compared {
    pub fn of(comparison: &Value) -> Self {
        let comparison = in_sentences(comparison);
        let list = |name: &str| comparison[name].as_array().cloned().unwrap_or_default();
        let mut cells: BTreeMap<String, Lines> = BTreeMap::new();
        for row in list("rows").iter().chain(&list("absent")) {
            let lines = cells.entry(text(&row["cell"]).to_owned()).or_default();
            add_row(row, lines);
        }
        let mut pairs = Lines::new();
        for ((cell, kind), told) in notes(&list("notes")) {
            let lines = match &*cell {
                "" => &mut pairs,
                cell => cells.entry(cell.to_owned()).or_default(),
            };
            lines.insert(format!("notes.{kind}"), told);
        }
        for name in [
            "comparable",
            "failed",
            "contradicted",
            "suspect",
            "unmeasured",
            "sweeps",
        ] {
            COMPARISON.add(name, &comparison[name], &mut pairs);
        }
        // By their names and not by their places.
        for mut group in list("groups") {
            let baseline = group.as_object_mut().unwrap().remove("baseline").unwrap();
            COMPARISON.add(&format!("group of {}", text(&baseline)), &group, &mut pairs);
        }
        for mut ratio in list("speedups") {
            let fields = ratio.as_object_mut().unwrap();
            let [a, b] = ["a", "b"].map(|name| fields.remove(name).unwrap());
            COMPARISON.add(
                &format!("ratio {} | {}", text(&a), text(&b)),
                &ratio,
                &mut pairs,
            );
        }
        for (list, kind) in [
            (list("differences"), "field"),
            (list("environment"), "name"),
        ] {
            for ((what, pair), mut fields) in differences(&list, kind) {
                fields.sort_unstable();
                pairs.insert(format!("{what} {pair}"), fields.join(" "));
            }
        }
        Self { cells, pairs }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

/// In which fields pairs differ, those that refuse a comparison apart. The values are in the
/// contracts.
fn differences<'a>(
    list: &'a [Value],
    name: &str,
) -> BTreeMap<(&'static str, String), Vec<&'a str>> {
    let mut found: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for difference in list {
        let what = match (name, &difference["refused"]) {
            ("field", Value::Bool(true)) => "refused",
            ("field", _) => "allowed",
            _ => "environment",
        };
        let [a, b] = ["cell_a", "cell_b"].map(|cell| text(&difference[cell]));
        let fields = found.entry((what, format!("{a} | {b}"))).or_default();
        fields.push(text(&difference[name]));
    }
    found
}

/// The figures of one cell, or why it has none, with its workload and what of it is attested.
fn add_row(row: &Value, lines: &mut Lines) {
    let mut figures = row.clone();
    figures.as_object_mut().unwrap().remove("cell");
    COMPARISON.add("", &figures, lines);
    for field in row["contract"].as_array().into_iter().flatten() {
        let value = COMPARISON.scalar("value", &field["value"]);
        let told = format!(
            "{value}, {}, {}",
            text(&field["source"]),
            text(&field["tier"])
        );
        lines.insert(format!("contract.{}", text(&field["field"])), told);
    }
    let attested = &row["attested"];
    lines.insert("attested".to_owned(), text(&attested["status"]).to_owned());
    // Their values are in the contract.
    let mut plain: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for field in attested["fields"].as_array().into_iter().flatten() {
        let (name, status) = (text(&field["field"]), text(&field["status"]));
        let is_plain = match status {
            "not_stated" => field["effective"].is_null(),
            "attested" => field["arithmetic"].is_null(),
            _ => false,
        };
        if is_plain {
            plain.entry(status).or_default().push(name);
        } else {
            let mut told = field.as_object().unwrap().clone();
            told.remove("field");
            lines.insert(format!("attested.{name}"), COMPARISON.inline(&told));
        }
    }
    for (status, mut names) in plain {
        names.sort_unstable();
        lines.insert(format!("attested.fields.{status}"), names.join(" "));
    }
}

/// By cell and kind: the numbers in each note.
fn notes(notes: &[Value]) -> BTreeMap<(String, String), String> {
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for note in notes {
        let (kind, numbers) = (text(&note["kind"]), numbers(text(&note["text"])));
        // A remark without a number is English alone.
        if kind != "remark" || numbers != "says why" {
            let of = (text(&note["cell"]).to_owned(), kind.to_owned());
            found.entry(of).or_default().push(numbers);
        }
    }
    let in_order = |(of, mut told): (_, Vec<String>)| {
        told.sort();
        (of, format!("[{}]", told.join(", ")))
    };
    found.into_iter().map(in_order).collect()
}

fn project() -> Project {
    let project = Project::empty();
    project
        .write("config.yaml", CONFIG)
        .write("matrix.toml", MATRIX);
    unpack(&project);
    project
}

fn names(sources: &Value) -> impl Iterator<Item = &str> {
    let sources = sources.as_array().unwrap().iter();
    sources.map(|source| source["name"].as_str().unwrap())
}

#[test]
fn imports_are_read_and_compared_as_they_were() {
    let project = project();
    let imported = project
        .run(&["import", "logs", "--json"])
        .ends_with(0)
        .json();
    let mut found = Sections::new();
    let compared = project.run(&["compare", "--imported", "--json"]).json();
    let mut compared = Compared::of(&compared);
    let mut taken = BTreeSet::new();
    for import in imported["imported"].as_array().unwrap() {
        let files: Vec<&str> = names(&import["sources"]).collect();
        taken.extend(files.iter().map(|file| (*file).to_owned()));
        let cell = import["cell"].as_str().unwrap();
        let mut lines = compared.cells.remove(cell).unwrap();
        for name in ["cell", "repeat", "format", "kind"] {
            COMPARISON.add(name, &import[name], &mut lines);
        }
        let outcome = &import["outcome"];
        for name in ["outcome", "class", "evidence"] {
            COMPARISON.add(name, &outcome[name], &mut lines);
        }
        lines.insert("files".to_owned(), format!("{files:?}"));
        let other = found.insert(files[0].to_owned(), lines);
        assert!(other.is_none(), "two imports begin with {}", files[0]);
    }
    assert!(compared.cells.is_empty(), "{:?}", compared.cells.keys());
    let file_name =
        |path: std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    for file in files_below(&project.path("logs"))
        .into_iter()
        .map(file_name)
    {
        if !taken.contains(&file) {
            let lines = Lines::from([("import".to_owned(), "left out".to_owned())]);
            found.insert(file, lines);
        }
    }
    assert!(found.len() > 90, "{} imports", found.len());
    found.insert("ALL OF THEM COMPARED".to_owned(), compared.pairs);
    // Two at a time, as somebody asks who wants to know which is faster.
    let cell_of = |file: &str| -> String {
        let all = imported["imported"].as_array().unwrap();
        let one = all
            .iter()
            .find(|import| names(&import["sources"]).any(|name| name == file));
        one.unwrap()["cell"].as_str().unwrap().to_owned()
    };
    let fields = "global_batch_size,seq_length,num_gpus,precision,data,warmup";
    for (a, b, more) in [
        (
            "benchmark_cuda_llama.json",
            "benchmark_rocm_llama.json",
            &[][..],
        ),
        (
            "train_nvd_nemo_llama.json",
            "train_amd_prim_llama.json",
            &[],
        ),
        (
            "primus-llama-training.log",
            "primus-llama-full-stdout.log",
            &[],
        ),
        (
            "primus-llama-training.log",
            "primus-llama-full-stdout.log",
            &["--across", fields],
        ),
        (
            "benchmark_cuda_llama.json",
            "train_nvd_nemo_llama.json",
            &["--across", fields],
        ),
    ] {
        let cells = [cell_of(a), cell_of(b)];
        let words = [&["compare", &cells[0], &cells[1], "--json"], more].concat();
        let ran = project.run(&words);
        let mut lines = Compared::of(&ran.json()).pairs;
        lines.insert("exit code".to_owned(), ran.code.unwrap().to_string());
        let how = if more.is_empty() { "" } else { " ACROSS" };
        found.insert(format!("COMPARED{how}: {a} AND {b}"), lines);
    }
    hold("imports.txt", &found);
}

/// A cell of the matrix claims its job, so that what its file states is held against that.
#[test]
fn imports_into_cells_of_a_matrix_are_held_against_their_jobs_as_they_were() {
    let project = project();
    let mut codes = Lines::new();
    // A log that counts the memory of AMD's GPUs is refused by a cell of another vendor.
    let log = project.read("logs/results/primus-llama-training.log");
    let other = log.replace("hip mem", "mem").replace("rocm mem", "mem");
    project.write("logs/results/primus-without-memory.log", &other);
    for (cell, kind, file) in [
        (
            "amd/prim/llama/fast",
            "--log",
            "logs/results/primus-llama-training.log",
        ),
        (
            "nvd/prim/llama/fast",
            "--log",
            "logs/results/primus-without-memory.log",
        ),
        (
            "nvd/nemo/llama/fast",
            "--result",
            "logs/results/train_nvd_nemo_llama.json",
        ),
        (
            "amd/nemo/llama/fast",
            "--result",
            "logs/results/benchmark_rocm_llama.json",
        ),
        (
            "nvd/nemo/llama/events",
            "--tfevents",
            "logs/results/nemo-llama.events.out.tfevents.1766052086",
        ),
    ] {
        let ran = project.run(&["import", cell, kind, file]);
        codes.insert(
            format!("import {cell}"),
            format!("exit code {}", ran.code.unwrap()),
        );
    }
    let compared = project.run(&["compare", "--imported", "--json"]).json();
    let mut found = Sections::from([("IMPORTS".to_owned(), codes)]);
    let compared = Compared::of(&compared);
    found.extend(compared.cells);
    found.insert("COMPARED".to_owned(), compared.pairs);
    hold("claims.txt", &found);
}

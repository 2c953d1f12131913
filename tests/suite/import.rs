//! Logs and results of others: taken in as they are, judged by their own arithmetic, never mistaken
//! for ours.

use std::{fmt::Write as _, fs};

use crate::support::{ONE_RUN, Project};
use serde_json::{Value, json};

/// Two tokens a millisecond on two devices: 8 × 128 tokens take 0.256 s.
pub(crate) fn published(batch: u64, length: u64, times: &[f64], rate: f64) -> Value {
    json!({
        "platform": "amd",
        "gpu_info": { "device_count": 2, "device_name": "AMD Instinct MI300X", "gpu_cores": 16896,
            "total_memory_gb": 206.14, "software_stack": "rocm" },
        "training_config": { "max_steps": times.len(), "global_batch_size": batch, "sequence_length": length, "num_gpus": 2 },
        "performance_metrics": { "tokens_per_second": rate, "tokens_per_second_per_gpu": rate / 2.0,
            "avg_step_time_seconds": times[1..].iter().sum::<f64>() / (times.len() - 1) as f64 },
        "raw_step_times": times,
        "source": "primus_log_extraction",
        "memory_metrics": { "peak_memory_allocated_gb": 100.0 },
    })
}

/// Lines as Primus prints them, from two ranks of two devices.
pub(crate) fn primus(first: u64, last: u64) -> String {
    let mut log = String::new();
    for step in first..=last {
        _ = writeln!(
            log,
            "[20260101 10:00:{:06.3}][rank-1/2][INFO ] [--------trainer.py:2578] :  iteration {step:8}/      12 | \
             consumed samples: {:12} | elapsed time per iteration (ms): 256.{step}/256.0 | \
             hip mem usage/free/total/usage_ratio: 10.00GB/181.98GB/191.98GB/5.21% | \
             throughput per GPU (TFLOP/s/GPU): 0.1/0.1 | tokens per GPU (tokens/s/GPU): 2000.0/2000.0 | \
             learning rate: 1.000000E-05 | global batch size: {:5} | lm loss: 3.{step:02}E+00 | loss scale: 1.0 | \
             grad norm: 1.5 | number of skipped iterations:   0 | number of nan iterations:   0 |",
            0.256 * step as f64,
            step * 8,
            8
        );
    }
    log
}

pub(crate) fn project() -> Project {
    Project::new(ONE_RUN)
}

pub(crate) fn times() -> Vec<f64> {
    vec![0.9, 0.256, 0.257, 0.255, 0.256, 0.2561]
}

#[test]
fn a_label_that_the_figures_contradict_is_marked_everywhere() {
    let project = project();
    // 4,000 tokens/s × 0.256 s = 1,024 = 8 × 128; the file says 8 × 32.
    project.write(
        "benchmark_rocm_tiny.json",
        &published(8, 32, &times(), 4000.0).to_string(),
    );
    let told = project
        .run(&["import", "benchmark_rocm_tiny.json"])
        .ends_with(0)
        .stdout;
    for words in [
        "amd/prim/tiny/imported#1",
        "CONTRADICTED",
        "1,024 = 8 × 128",
        "the labels would give 999.9 tokens/s",
        "gpu_cores is 16896, the H100's figure; the MI300X has 19456",
        "\"100 GB\" is GiB",
    ] {
        assert!(told.contains(words), "{words}:\n{told}");
    }
    let cell = "amd/prim/tiny/imported";
    let listed = project.run(&["list"]).ends_with(0).stdout;
    assert!(
        listed.contains("imported from benchmark_rocm_tiny.json, not in the matrix"),
        "{listed}"
    );
    assert!(
        listed.contains("(contradicted: tokens_per_step_from_published)"),
        "{listed}"
    );
    let shown = project.run(&["show", cell]).ends_with(0).stdout;
    assert!(
        shown.contains("contradicts") && shown.contains("benchmark_rocm_tiny.json"),
        "{shown}"
    );
    let summary = project.run(&["show", cell, "--json"]).ends_with(0).json();
    assert_eq!(
        (&summary["n"], &summary["repeats"][0]["status"]["status"]),
        (&json!(0), &json!("contradicted"))
    );
    assert_eq!(
        summary["imported"][0]["sources"][0]["name"],
        "benchmark_rocm_tiny.json"
    );
    let result = project
        .run(&["show", &format!("{cell}#1"), "--json"])
        .ends_with(0)
        .json();
    assert_eq!(result["attestation"]["status"], "contradicted");
    project.run(&["show", &format!("{cell}#2")]).ends_with(4);
}

#[test]
fn two_published_files_of_other_batches_are_refused() {
    let project = project();
    project.write(
        "benchmark_rocm_tiny.json",
        &published(8, 32, &times(), 4000.0).to_string(),
    );
    let mut cuda = published(2, 128, &times(), 1000.0);
    cuda["platform"] = "nvd".into();
    cuda["gpu_info"] = json!({ "device_count": 2, "device_name": "NVIDIA H100 80GB HBM3", "software_stack": "cuda" });
    cuda["source"] = Value::Null;
    project.write("benchmark_cuda_tiny.json", &cuda.to_string());
    project.run(&["import", "."]).ends_with(0);
    let ran = project
        .run(&[
            "compare",
            "nvd/unknown/tiny/imported",
            "amd/prim/tiny/imported",
            "--json",
        ])
        .ends_with(1);
    let compared = ran.json();
    assert_eq!(compared["comparable"], false);
    let fields: Vec<&str> = compared["differences"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|d| d["field"].as_str())
        .collect();
    assert_eq!(fields, ["seq_length", "global_batch_size"]);
    let text = project
        .run(&[
            "compare",
            "nvd/unknown/tiny/imported",
            "amd/prim/tiny/imported",
        ])
        .ends_with(1)
        .stdout;
    // What its figures contradict is told as what it is, and nobody is asked to look past it.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "are not compared, because the file of amd/prim/tiny/imported contradicts its label";
    assert!(words.contains(told), "{text}");
    assert!(words.contains("the file contradicts its label"), "{text}");
    assert!(
        !words.contains("--across") && !words.contains("the job"),
        "{text}"
    );
    assert!(text.contains("(imported)"), "{text}");
    // Labels that nothing contradicts are compared field by field.
    project.write("benchmark_rocm_tiny.json", &consistent("amd", 8, &times()));
    project.run(&[
        "import",
        "amd/prim/tiny/other",
        "--result",
        "benchmark_rocm_tiny.json",
    ]);
    let both = [
        "compare",
        "nvd/unknown/tiny/imported",
        "amd/prim/tiny/other",
    ];
    let text = project.run(&both).ends_with(1).stdout;
    assert!(
        text.contains("may not be compared") && text.contains("global_batch_size: 8"),
        "{text}"
    );
}

#[test]
fn an_import_is_no_measurement_and_stands_in_for_none() {
    let project = project();
    let cell = "cpu/cmd/tiny/single";
    project.run(&["build"]).ends_with(0);
    let log = project.run(&["logs", cell]).ends_with(0).stdout;
    project
        .run(&["cache", "clean", "--all", "--yes"])
        .ends_with(0);
    fs::remove_file(project.path("launches")).unwrap();
    project.write("own.log", &log);
    project
        .run(&["import", cell, "--log", "own.log"])
        .ends_with(0);
    let plan = project.run(&["plan", "--json"]).ends_with(0).json();
    let train = plan["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["kind"] == "train")
        .unwrap();
    assert_eq!(train["state"], "stale", "an import satisfies no train key");
    // Until it is measured, the import stands in its place, and says what it is.
    let before = project.run(&["compare", "--details"]).ends_with(0).stdout;
    assert!(
        before.contains("(imported)") && before.contains("imported, not measured by tprimat"),
        "{before}"
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    let after = project.run(&["compare", "--details"]).ends_with(0).stdout;
    assert!(!after.contains("(imported)"), "{after}");
    assert!(
        project
            .run(&["plan", "--exit-code"])
            .ends_with(0)
            .stdout
            .contains("fresh")
    );
}

#[test]
fn a_cell_of_the_matrix_claims_its_job() {
    let project = project();
    // The log states the memory of an AMD GPU, which a run on a CPU has not.
    project.write("other.log", &primus(1, 12));
    let refused = project.run(&["import", "cpu/cmd/tiny/single", "--log", "other.log"]);
    assert!(refused.ends_with(2).stderr.contains("memory of AMD's GPUs"));
    let other = primus(1, 12).replace("hip mem", "mem");
    project.write("other.log", &other);
    let told = project
        .run(&["import", "cpu/cmd/tiny/single", "--log", "other.log"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains("CONTRADICTED") && told.contains("contradicted global_batch_size"),
        "{told}"
    );
}

#[test]
fn a_log_of_one_line_is_a_failed_run() {
    let project = project();
    project.write(
        "training_tiny.log",
        "bash: ./run.sh: No such file or directory\n",
    );
    let told = project
        .run(&["import", "training_tiny.log"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains("failed (launch)") && told.contains("No such file"),
        "{told}"
    );
    let shown = project.run(&["list"]).ends_with(0).stdout;
    assert!(
        shown.contains("unknown/unknown/tiny/imported") && shown.contains("(failed)"),
        "{shown}"
    );
}

#[test]
fn what_is_neither_is_refused_with_what_was_expected() {
    let project = project();
    project.write("notes.txt", "buy milk\n");
    project.write(
        "power.txt",
        "index, power.draw [W], memory.used [MiB]\n0, 310.22 W, 4096 MiB\n1, 305.10 W, 4096 MiB\n",
    );
    project.write("broken.json", "{\"step_times\": ");
    for (arguments, words) in [
        (vec!["import", "notes.txt"], "neither a log nor a result"),
        (vec!["import", "power.txt"], "no training steps"),
        (vec!["import", "broken.json"], "not JSON"),
        (vec!["import", "nothing.log"], "cannot read"),
        (
            vec!["import", "nothing", "--log", "notes.txt"],
            "is not a cell",
        ),
        (vec!["import", "amd/prim/tiny/x"], "no file to import"),
        (vec!["import"], "nothing to import is named"),
    ] {
        let ran = project.run(&arguments).ends_with(2);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    // In a folder it is left out, and the rest is taken.
    project.write(
        "train_amd_prim_tiny.json",
        &published(8, 128, &times(), 4000.0).to_string(),
    );
    let ran = project.run(&["import", "."]).ends_with(0);
    assert!(
        ran.stderr.contains("left out: broken.json: not JSON"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stdout.contains("amd/prim/tiny/imported#1"),
        "{}",
        ran.stdout
    );
}

/// Steps of 0.5 s after the start events; what `tprimat import` says, and the summary.
fn imported_events(settings: &[&str], tokens: &str) -> (String, Value) {
    let project = project();
    let mut log = String::new();
    for settings in settings {
        _ = writeln!(
            log,
            r#"{{"event":"start","schema":"tprimat.events/1","trainer":"x","effective":{{{settings}}}}}"#
        );
    }
    for step in 1..=6 {
        _ = writeln!(
            log,
            r#"{{"event":"step","step":{step},"step_time_seconds":0.5{step},"tokens":{tokens}}}"#
        );
    }
    project.write("theirs.log", &log);
    let cell = "lab/cmd/elsewhere/imported";
    let told = project
        .run(&["import", cell, "--log", "theirs.log"])
        .ends_with(0)
        .stdout;
    (
        told,
        project.run(&["show", cell, "--json"]).ends_with(0).json(),
    )
}

/// A file's name suggests a model. What the log states of its shape is the shape, unless somebody
/// names the cell.
#[test]
fn a_shape_that_the_log_states_in_full_replaces_a_guessed_one() {
    let project = project();
    let log = |vocabulary: &str| {
        let shape = format!(
            r#""num_layers":2,"hidden_size":8,"ffn_hidden_size":16,"num_attention_heads":2,"num_kv_heads":2{vocabulary}"#
        );
        let run = r#""global_batch_size":8,"seq_length":128,"num_gpus":1"#;
        let mut log = format!(
            "{{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"trainer\":\"x\",\"effective\":{{{shape},{run}}}}}\n"
        );
        for step in 1..=6 {
            _ = writeln!(
                log,
                r#"{{"event":"step","step":{step},"step_time_seconds":0.5{step},"tokens":1024}}"#
            );
        }
        log
    };
    let value = |cell: &str, field: &str| {
        let shown = project.run(&["show", cell, "--json"]).ends_with(0).json();
        let contract = shown["contract"].as_array().unwrap().clone();
        let found = contract.into_iter().find(|f| f["field"] == field).unwrap();
        (
            found["value"].clone(),
            found["source"].clone(),
            shown["n"].clone(),
        )
    };
    project.write("cpu_cmd_tiny.log", &log(r#","vocab_size":48"#));
    let told = project
        .run(&["import", "cpu_cmd_tiny.log"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains("#1  imported") && told.contains(": attested"),
        "{told}"
    );
    assert!(
        told.contains("shape of log") && told.contains("vocab_size 48, not 32"),
        "{told}"
    );
    let guessed = "cpu/cmd/tiny/imported";
    assert_eq!(
        value(guessed, "vocab_size"),
        (json!(48), json!("effective"), json!(1))
    );
    let notes = project.run(&["show", guessed]).ends_with(0).stdout;
    assert!(notes.contains("vocab_size 48, not 32"), "{notes}");
    // Whoever names the cell claims its model.
    let named = "cpu/cmd/tiny/theirs";
    let told = project
        .run(&["import", named, "--log", "cpu_cmd_tiny.log"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains("CONTRADICTED") && told.contains("contradicted vocab_size"),
        "{told}"
    );
    assert!(!told.contains("shape of log"), "{told}");
    // A shape in part takes no model's place, and one that agrees needs no word.
    project.write(
        "cpu_cmd_tiny_part.log",
        &log("").replace("\"hidden_size\":8", "\"hidden_size\":24"),
    );
    let told = project
        .run(&["import", "cpu_cmd_tiny_part.log"])
        .ends_with(0)
        .stdout;
    // The name of a file claims no model that its log refutes.
    assert!(
        told.contains("hidden_size 24, not 8. No model is claimed"),
        "{told}"
    );
    project.write("cpu_cmd_tiny_same.log", &log(r#","vocab_size":32"#));
    let told = project
        .run(&["import", "cpu_cmd_tiny_same.log"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains(": attested") && !told.contains("shape of log"),
        "{told}"
    );
}

#[test]
fn a_log_that_contradicts_itself_has_no_rate() {
    let settings = r#""global_batch_size":8,"seq_length":128,"num_gpus":1"#;
    let (told, summary) = imported_events(&[settings], "1024");
    assert!(
        told.contains("attested") && summary["tokens_per_second_per_gpu"].is_object(),
        "{told}"
    );
    let no_rate = |settings: &[&str], tokens: &str, words: &str| {
        let (told, summary) = imported_events(settings, tokens);
        assert!(summary["tokens_per_second_per_gpu"].is_null(), "{summary}");
        assert_eq!(summary["repeats"][0]["status"]["status"], "contradicted");
        let notes = summary["notes"].to_string();
        assert!(
            told.contains(words) && notes.contains(words),
            "{told}\n{notes}"
        );
    };
    no_rate(
        &[settings],
        "512",
        "8 × 128 = 1024, and step 1 has 512 tokens",
    );
    let later = r#""global_batch_size":16,"seq_length":256,"num_gpus":2"#;
    for words in [
        "global_batch_size is 8 at first, later 16",
        "num_gpus is 1 at first, later 2",
    ] {
        no_rate(&[settings, later], "1024", words);
    }
    for tokens in ["0", "-1024", "1e308"] {
        let (_, summary) = imported_events(&[settings], tokens);
        let notes = summary["notes"].to_string();
        assert!(
            notes.contains("absurd value (step 1: tokens is "),
            "{notes}"
        );
    }
}

/// Step times of a run: each run a little slower than the one before.
pub(crate) fn run(number: usize) -> Vec<f64> {
    times()
        .iter()
        .map(|time| time * (1.0 + 0.002 * number as f64))
        .collect()
}

/// Rates follow from the times, as the suites computed them.
pub(crate) fn consistent(platform: &str, batch: u64, times: &[f64]) -> String {
    let mean = times[1..].iter().sum::<f64>() / (times.len() - 1) as f64;
    let mut file = published(batch, 128, times, batch as f64 * 128.0 / mean);
    file["platform"] = platform.into();
    if platform == "nvd" {
        file["gpu_info"]["device_name"] = "NVIDIA H200".into();
        file["gpu_info"]["total_memory_gb"].take();
    }
    file["gpu_info"]["gpu_cores"].take();
    file.to_string()
}

/// A folder of results and nothing else: no config.yaml, no matrix.
fn old_results() -> Project {
    let project = Project::empty();
    for number in 1..=3 {
        let stamp = format!("2026010{number}_10300{number}");
        project.write(
            &format!("old/benchmark_rocm_llama_{stamp}.json"),
            &consistent("amd", 8, &run(number)),
        );
        project.write(
            &format!("old/train_nvd_nemo_llama_run{number}.json"),
            &consistent("nvd", 8, &run(number + 5)),
        );
    }
    // The same name but for the date, and another batch: no repeat.
    project.write(
        "old/benchmark_rocm_llama_20260109_101010.json",
        &consistent("amd", 16, &run(0)),
    );
    project
        .write("old/notes.txt", "what we did last summer\n")
        .write(
            "old/failed.log",
            "bash: ./run.sh: No such file or directory\n",
        );
    project
}

#[test]
fn old_results_are_one_comparison_without_a_project() {
    let project = old_results();
    project.run(&["compare"]).ends_with(2);
    let imported = project.run(&["import", ".", "--json"]).ends_with(0).json();
    assert_eq!(
        imported["imported"].as_array().unwrap().len(),
        8,
        "{imported:#}"
    );
    let comparison = project.run(&["compare", "--json"]).ends_with(0).json();
    let shown = |row: &Value| {
        (
            row["cell"].as_str().unwrap().to_owned(),
            row["n"].as_u64().unwrap(),
            row["group"].as_u64().unwrap(),
        )
    };
    let mut rows: Vec<_> = comparison["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(shown)
        .collect();
    rows.sort_by_key(|(cell, ..)| cell.len());
    let [(amd, 3, of_amd), (nvd, 3, of_nvd), (other, 1, of_other)] = &rows[..] else {
        panic!("{rows:?}")
    };
    assert_eq!(
        (nvd.as_str(), amd.as_str()),
        ("nvd/nemo/llama/imported", "amd/prim/llama/imported")
    );
    assert!(
        other.starts_with("amd/prim/llama/imported@file=benchmark-rocm-llama-20260109"),
        "{other}"
    );
    assert!(of_nvd == of_amd && of_amd != of_other, "{rows:?}");
    assert_eq!(comparison["absent"][0]["state"], "failed");
    // Once more, from below too: nothing is new, and what tprimat keeps there is not taken for a
    // result.
    let again = project.run(&["import", ".", "--json"]).ends_with(0).json();
    assert!(
        again["imported"]
            .as_array()
            .unwrap()
            .iter()
            .all(|run| run["known"] == true),
        "{again:#}"
    );
    project.run(&["report"]).ends_with(0);
    let after = project.run(&["import", ".", "--json"]).ends_with(0).json();
    assert_eq!(after["imported"].as_array().unwrap().len(), 8, "{after:#}");
    assert!(
        project
            .read("output/compare.csv")
            .contains("nvd/nemo/llama/imported")
    );
}

#[test]
fn imports_are_compared_where_nothing_of_the_matrix_has_run() {
    let project = project();
    project.write("benchmark_rocm_tiny.json", &consistent("amd", 8, &run(1)));
    project
        .run(&["import", "benchmark_rocm_tiny.json"])
        .ends_with(0);
    let shown = project.run(&["compare", "--json"]).ends_with(0);
    assert_eq!(shown.json()["rows"][0]["cell"], "amd/prim/tiny/imported");
    assert!(
        shown
            .stderr
            .contains("no cell of the matrix `one` has run yet"),
        "{}",
        shown.stderr
    );
    // A matrix that is named is what is shown.
    let of_matrix = project
        .run(&["compare", "matrix.toml", "--json"])
        .ends_with(1)
        .json();
    assert_eq!(
        (
            &of_matrix["rows"],
            of_matrix["absent"].as_array().unwrap().len()
        ),
        (&json!([]), 1)
    );
    project.run(&["build"]).ends_with(0);
    let built = project.run(&["compare", "--json"]).ends_with(0).json();
    assert_eq!(built["rows"].as_array().unwrap().len(), 1);
    assert_eq!(built["rows"][0]["cell"], "cpu/cmd/tiny/single");
    let imported = project
        .run(&["compare", "--imported", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(imported["rows"][0]["cell"], "amd/prim/tiny/imported");
    // Its pages are not the matrix's.
    project.run(&["report", "--imported"]).ends_with(0);
    project
        .run(&["report", "cpu/cmd/*", "amd/prim/tiny/imported"])
        .ends_with(2);
    project
        .run(&["report", "--imported", "-o", "elsewhere"])
        .ends_with(0);
}

/// The runs of another project are no logs: the command that takes them over is named, and needs a
/// project.
#[test]
fn a_project_that_is_imported_into_an_empty_folder_is_followed_by_what_works_there() {
    let measured = Project::new(crate::support::ONE_RUN);
    measured.run(&["build"]).ends_with(0);
    let other = measured.root().to_str().unwrap();
    let empty = Project::empty();
    let said = empty.run(&["import", other]).ends_with(2).stderr;
    assert!(said.contains("tprimat cache pull --remote"), "{said}");
    for file in ["config.yaml", "matrix.toml", "trainer.sh", "tprimat.lock"] {
        empty.write(file, &measured.read(file));
    }
    let address = format!("file://{other}/cache");
    empty
        .run(&["cache", "pull", "--remote", &address])
        .ends_with(0);
    empty.run(&["build"]).ends_with(0);
    assert_eq!(empty.launches(), 0);
}

//! Two workloads on one axis: no command does that unless it is told to.

use std::fs;

use crate::support::{ONE_RUN, Project, Ran};
use serde_json::{Value, json};

const SMALL: &str = "nvd/unknown/tiny/small";
const LARGE: &str = "nvd/unknown/tiny/large";

/// A result file of two devices whose label says what its figures show.
fn published(batch: u64, rate: f64, jitter: f64) -> String {
    let time = batch as f64 * 128.0 / rate;
    let times: Vec<f64> = (0..6)
        .map(|i| time * (1.0 + jitter + 0.001 * f64::from(i % 3)))
        .collect();
    let mean = times[1..].iter().sum::<f64>() / 5.0;
    json!({
        "platform": "nvd",
        "gpu_info": { "device_count": 2, "device_name": "NVIDIA H100 80GB HBM3", "software_stack": "cuda" },
        "training_config": { "max_steps": 6, "global_batch_size": batch, "sequence_length": 128, "num_gpus": 2 },
        "performance_metrics": { "tokens_per_second": batch as f64 * 128.0 / mean,
            "tokens_per_second_per_gpu": batch as f64 * 64.0 / mean, "avg_step_time_seconds": mean },
        "raw_step_times": times,
    })
    .to_string()
}

/// Three runs of a batch of 8, and three of 64 at 2.62 times the rate.
fn two_workloads() -> Project {
    let project = Project::new(ONE_RUN);
    for (repeat, jitter) in [(1, 0.0), (2, 0.004), (3, -0.004)] {
        for (cell, batch, rate) in [(SMALL, 8, 4000.0), (LARGE, 64, 10480.0)] {
            let file = format!("{batch}-{repeat}.json");
            project.write(&file, &published(batch, rate, jitter));
            project
                .run(&["import", cell, "--result", &file])
                .ends_with(0);
        }
    }
    project
}

/// Anything that puts the two rates in relation: a ratio of 2.62 or of 0.38, in any spelling.
#[track_caller]
pub(super) fn holds_no_ratio(what: &str, text: &str) {
    let numbers = text
        .split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .filter_map(|n| n.parse::<f64>().ok());
    let ratios: Vec<f64> = numbers
        .filter(|n| (n - 2.62).abs() < 0.011 || (n - 1.0 / 2.62).abs() < 0.0011)
        .collect();
    assert!(
        ratios.is_empty(),
        "{what} relates two workloads: {ratios:?}\n{text}"
    );
}

/// What a person reads, whatever the format escapes.
pub(super) fn unescaped(text: &str) -> String {
    text.replace("&#95;", "_")
        .replace("<wbr>", "")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Names and bytes of what is published in a folder.
pub(super) fn files_in(project: &Project, folder: &str) -> Vec<(String, Vec<u8>)> {
    let files = project
        .names_in(folder)
        .into_iter()
        .filter(|f| !f.starts_with('.'));
    files
        .map(|file| {
            (
                file.clone(),
                fs::read(project.path(folder).join(&file)).unwrap(),
            )
        })
        .collect()
}

/// A comparison relates nothing across groups, and no group has two workloads.
#[track_caller]
fn is_apart(comparison: &Value) {
    let group = |cell: &Value| {
        let row = comparison["rows"]
            .as_array()
            .unwrap()
            .iter()
            .find(|r| r["cell"] == *cell)
            .unwrap();
        row["group"].as_u64().unwrap()
    };
    assert_ne!(group(&json!(SMALL)), group(&json!(LARGE)), "one group");
    for speedup in comparison["speedups"].as_array().unwrap() {
        assert_eq!(group(&speedup["a"]), group(&speedup["b"]), "{speedup}");
    }
    for group in comparison["groups"].as_array().unwrap() {
        assert_eq!(group["cells"].as_array().unwrap().len(), 1, "{group}");
    }
    let loss = |row: usize| comparison["rows"][row]["loss_group"].clone();
    assert_ne!(loss(0), loss(1), "losses on one axis");
}

#[test]
fn two_workloads_are_never_related_by_a_comparison() {
    let project = two_workloads();
    let compare =
        |more: &[&str]| -> Ran { project.run(&[&["compare", SMALL, LARGE], more].concat()) };
    let refused = compare(&["--json"]).ends_with(1).json();
    assert_eq!(
        (&refused["comparable"], &refused["speedups"]),
        (&json!(false), &json!([]))
    );
    is_apart(&refused);
    let text = compare(&[]).ends_with(1).stdout;
    holds_no_ratio("compare", &text);
    let told = format!(
        "{LARGE} and {SMALL} may not be compared, because they differ in global_batch_size: 64, not 8."
    );
    assert!(
        text.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .starts_with(&told),
        "{text}"
    );
    // Another baseline or another order changes nothing.
    is_apart(
        &compare(&["--json", "--baseline", LARGE])
            .ends_with(1)
            .json(),
    );
    is_apart(
        &project
            .run(&["compare", LARGE, SMALL, "--json"])
            .ends_with(1)
            .json(),
    );
    // Nor does a field that is not the one that differs.
    is_apart(
        &compare(&["--json", "--across", "seq_length"])
            .ends_with(1)
            .json(),
    );
    for cell in [SMALL, LARGE] {
        holds_no_ratio("show", &project.run(&["show", cell]).ends_with(0).stdout);
    }
    // As a report; it is no matrix's, so it never lands where a build publishes.
    let report =
        |more: &[&str]| -> Ran { project.run(&[&["report", SMALL, LARGE], more].concat()) };
    fs::create_dir(project.path("output")).unwrap();
    for nowhere in [&[][..], &["-o", "output"]] {
        assert!(
            report(nowhere)
                .ends_with(2)
                .stderr
                .contains("-o DIR for all files")
        );
        assert_eq!(project.names_in("output"), [""; 0]);
    }
    let told = report(&["-o", "pair", "--json"]).ends_with(1).json();
    assert_eq!(
        (&told["report"], &told["comparable"], &told["cells"]),
        (&json!("pair/report.html"), &json!(false), &json!(2))
    );
    for (file, bytes) in files_in(&project, "pair")
        .iter()
        .filter(|(f, _)| !f.ends_with(".png") && !f.ends_with(".svg"))
    {
        if file == "compare.json" {
            is_apart(&serde_json::from_slice(bytes).unwrap());
        } else {
            holds_no_ratio(file, &String::from_utf8_lossy(bytes));
        }
    }
    report(&["--across", "global_batch_size", "-o", "pair.html"]).ends_with(0);
    assert!(unescaped(&project.read("pair.html")).contains("across global_batch_size: 64, not 8"));
    let asked = compare(&["--json", "--across", "global_batch_size"])
        .ends_with(0)
        .json();
    assert!(
        (asked["speedups"][0]["ratio"].as_f64().unwrap() - 2.62).abs() < 0.02,
        "{}",
        asked["speedups"]
    );
    for labels in [&asked["speedups"][0]["labels"], &asked["rows"][1]["labels"]] {
        assert_eq!(labels[0]["text"], "across global_batch_size: 64, not 8");
        assert_eq!(labels[0]["values"]["crossed"], true);
        assert_eq!(labels.as_array().unwrap().len(), 1);
    }
    let glance = compare(&["--across", "global_batch_size"])
        .ends_with(0)
        .stdout;
    let glance = glance.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = [
        "2.62×",
        "; across global_batch_size: 64, not 8",
        "--across global_batch_size --details`",
    ];
    assert!(words.iter().all(|words| glance.contains(words)), "{glance}");
    let text = compare(&["--across", "global_batch_size", "--details"])
        .ends_with(0)
        .stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = format!("{LARGE}: unlike {SMALL}: across global_batch_size: 64, not 8.");
    assert!(text.contains("2.62×") && text.contains(&note), "{text}");
}

#[test]
fn two_workloads_of_one_matrix_are_published_apart() {
    let project = two_workloads();
    // Two cells of a matrix that only imports stand in for: the same files, now with everything
    // that a build publishes.
    project.edit(
        "config.yaml",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n    nvd: { vendor: nvd, num_gpus: 2 }\n",
    );
    project.edit(
        "config.yaml",
        "  single: { num_gpus: 1, DP: 1 }\n",
        "  small: { num_gpus: 2, DP: 2 }\n  large: { num_gpus: 2, DP: 2 }\n",
    );
    // The jobs of the cells are what the files say that was done.
    project.edit("config.yaml", "seq_length: 16", "seq_length: 128");
    let matrix = "[matrix]\nname = \"two\"\nplatform = \"nvd\"\nframework = \"tran\"\nmodel = \"tiny\"\nparallelism = [\"small\", \"large\"]\nrepeats = 3\n";
    let batches = [("small", 8), ("large", 64)].map(|(strategy, batch)| {
        format!("[[override]]\nwhere = {{ parallelism = \"{strategy}\" }}\nset = {{ \"training.data.global_batch_size\" = {batch} }}\n")
    });
    project.write("matrix.toml", &(matrix.to_owned() + &batches.concat()));
    for (cell, batch) in [("nvd/tran/tiny/small", 8), ("nvd/tran/tiny/large", 64)] {
        for repeat in 1..=3 {
            project
                .run(&[
                    "import",
                    cell,
                    "--result",
                    &format!("{batch}-{repeat}.json"),
                ])
                .ends_with(0);
        }
    }
    project.run(&["build", "--cached-only"]).ends_with(0);
    let files = project.names_in("output");
    assert!(
        files.iter().any(|f| f == "compare.json") && files.iter().any(|f| f == "compare.svg"),
        "{files:?}"
    );
    let comparison: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    assert_eq!(
        (
            comparison["groups"].as_array().unwrap().len(),
            &comparison["speedups"]
        ),
        (2, &json!([]))
    );
    // Text of every kind that is published; pictures are the same data, drawn.
    for file in files
        .iter()
        .filter(|f| !f.ends_with(".png") && !f.ends_with(".svg") && !f.starts_with('.'))
    {
        let text = fs::read_to_string(project.path("output").join(file)).unwrap();
        if !file.ends_with(".json") {
            holds_no_ratio(file, &text);
        }
    }
    let gate = project
        .run(&["gate", "--only", "nvd/tran/tiny/small", "--write", "b.json"])
        .ends_with(0);
    assert!(gate.stderr.contains(" of 1 cell"), "{}", gate.stderr);
    // A baseline of one workload for the cell of the other.
    let renamed = project
        .read("b.json")
        .replace("nvd/tran/tiny/small", "nvd/tran/tiny/large");
    project.write("b.json", &renamed);
    let ran = project.run(&[
        "gate",
        "--baseline",
        "b.json",
        "--max-regression",
        "3%",
        "--only",
        "nvd/tran/tiny/large",
    ]);
    let ran = ran.ends_with(3);
    assert!(
        ran.stdout
            .contains("another workload than the baseline's: global_batch_size: 64, not 8"),
        "{}",
        ran.stdout
    );
    holds_no_ratio("gate", &ran.stdout);
}

#[test]
fn cells_that_launch_the_same_bytes_are_reported_also_where_nothing_is_known_of_the_host() {
    let project = Project::new(&ONE_RUN.replace("\"single\"", "[\"single\", \"other\"]"));
    project.edit(
        "config.yaml",
        "  single: { num_gpus: 1, DP: 1 }\n",
        "  single: { num_gpus: 1, DP: 1 }\n  other: { num_gpus: 1, DP: 1 }\n",
    );
    let note = "`cpu/cmd/tiny/other` launches exactly what `cpu/cmd/tiny/single` does";
    let checked = project.run(&["check", "--json"]).ends_with(0);
    assert!(checked.stderr.contains(note), "{}", checked.stderr);
    assert_eq!(
        checked.json()["same_launch"][0]["same_launch_as"],
        "cpu/cmd/tiny/single"
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    let noted = "identical to cpu/cmd/tiny/single, so both were measured once";
    for text in [
        project.run(&["compare", "--details"]).ends_with(0).stdout,
        project.read("output/compare.txt"),
        project.read("output/compare.json"),
    ] {
        assert!(
            text.split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
                .contains(noted),
            "{text}"
        );
        assert!(
            text.contains("both are the same measurements") && !text.contains("is noise"),
            "{text}"
        );
    }
    // On a platform that this host is not: no facts, no keys, and the same note.
    project.edit(
        "config.yaml",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n    amd: { vendor: amd, num_gpus: 1 }\n",
    );
    project.write(
        "matrix.toml",
        &project.read("matrix.toml").replace("\"cpu\"", "\"amd\""),
    );
    let checked = project.run(&["check"]).ends_with(0);
    assert!(
        checked.stderr.contains(&note.replace("cpu/", "amd/")),
        "{}",
        checked.stderr
    );
    project.write(
        "matrix.toml",
        &project
            .read("matrix.toml")
            .replace("[\"single\", \"other\"]", "\"single\"")
            .replace("\"tiny\"", "[\"tiny\", \"wide\"]"),
    );
    assert_eq!(project.run(&["check"]).ends_with(0).stderr, "");
}

#[test]
fn what_a_cell_ran_in_stands_beside_the_comparison() {
    let matrix = ONE_RUN.replace("\"cpu\"", "[\"cpu\", \"box\"]");
    let project = Project::new(&matrix);
    let declared = "    cpu: { vendor: cpu, num_gpus: 1, env: { CUDA_LAUNCH_BLOCKING: \"1\", HF_TOKEN: hunter2 } }\n    box: { vendor: cpu, num_gpus: 1, env: { OMP_NUM_THREADS: \"2\" } }\n";
    project.edit(
        "config.yaml",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n",
        declared,
    );
    project.run(&["build"]).ends_with(0);
    let compared = project.run(&["compare", "--json"]).ends_with(0);
    let text = project
        .run(&["compare", "--details"])
        .ends_with(0)
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    for words in [
        "cpu/cmd/tiny/single: run with CUDA_LAUNCH_BLOCKING=1: the host waits for every kernel.",
        "box/cmd/tiny/single: environment differs from that of cpu/cmd/tiny/single: CUDA_LAUNCH_BLOCKING: unset instead of 1 (the host waits for every kernel); ",
        "OMP_NUM_THREADS: 2 instead of unset",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let comment = unescaped(
        &project
            .run(&["compare", "--format", "markdown"])
            .ends_with(0)
            .stdout,
    );
    assert!(
        comment.contains("| 1/1, not attested, CUDA_LAUNCH_BLOCKING |"),
        "{comment}"
    );
    assert!(
        comment.contains("environment differs from that of cpu/cmd/tiny/single"),
        "{comment}"
    );
    let all = compared.json();
    let dangerous: Vec<&Value> = all["environment"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["dangerous"].is_string())
        .collect();
    assert!(
        matches!(dangerous[..], [d] if d["name"] == "CUDA_LAUNCH_BLOCKING"),
        "{dangerous:?}"
    );
    assert!(
        all["rows"][0]["environment"]["facts"]["cores"].is_string(),
        "{}",
        all["rows"][0]["environment"]
    );
    for file in ["output/compare.json", "output/compare.txt"] {
        assert!(!project.read(file).contains("hunter2"), "{file}");
    }
    // A fact of the lock that no key covers is in the comparison all the same.
    let lock = project.read("tprimat.lock");
    project.write(
        "tprimat.lock",
        &lock.replacen("[platform.box]\n", "[platform.box]\ndriver = \"9.9\"\n", 1),
    );
    let again = project.run(&["build", "--cached-only"]).ends_with(0);
    assert_eq!(project.launches(), 2, "{}", again.stderr);
    assert!(project.read("output/compare.json").contains("\"9.9\""));
}

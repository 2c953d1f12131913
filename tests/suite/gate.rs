//! Baselines and gates on a build's own measurements, and the switches that CI builds with.

use std::fs;

use crate::support::{ONE_RUN, Project, Ran};
use serde_json::{Value, json};

pub(super) const CELL: &str = "cpu/cmd/tiny/single";

/// A project whose stub takes `pace` × 10 ms a step, a little more or less from repeat to repeat.
fn measured(repeats: usize) -> Project {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", &format!("repeats = {repeats}")));
    project.write("pace", "100");
    project.edit(
        "config.yaml",
        "inputs: [trainer.sh]",
        "inputs: [trainer.sh, pace]",
    );
    let noisy = "\"step_time_seconds\":0.0'$(( $(<pace) * 10 + ${RUN_NOISE:=$(( $(wc -l < \"$TPRIMAT_PROJECT_DIR/launches\") % 5 ))} ))',";
    project.edit(
        "trainer.sh",
        "\"step_time_seconds\":0.0'$seed$step',",
        noisy,
    );
    project.edit(
        "trainer.sh",
        "seed=$(job seed)",
        "seed=$(job seed); cd \"$TPRIMAT_PROJECT_DIR\"",
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), repeats);
    project
        .run(&["gate", "--write", "baseline.json"])
        .ends_with(0);
    project
}

pub(super) fn gate(project: &Project, more: &[&str]) -> Ran {
    project.run(
        &[
            &[
                "gate",
                "--baseline",
                "baseline.json",
                "--max-regression",
                "3%",
            ],
            more,
        ]
        .concat(),
    )
}

#[test]
fn a_gate_passes_fails_and_says_when_it_cannot_tell() {
    let project = measured(5);
    let same = gate(&project, &[]).ends_with(0);
    let words = "pass          cpu/cmd/tiny/single  the same measurements as the baseline: nothing that counts was measured since";
    assert!(same.stdout.contains(words), "{}", same.stdout);
    assert!(
        same.stdout.contains("gate: pass: 1 pass;"),
        "{}",
        same.stdout
    );
    // Nothing is trained for a gate: what is stale fails.
    project.write("pace", "110");
    let stale = gate(&project, &[]).ends_with(3);
    assert!(
        stale
            .stdout
            .contains("missing: only measured before pace was edited"),
        "{}",
        stale.stdout
    );
    assert_eq!(project.launches(), 5);
    project.run(&["build"]).ends_with(0);
    let slower = gate(
        &project,
        &[
            "--json",
            "--junit",
            "junit.xml",
            "--markdown",
            "gate.md",
            "--annotations",
            "github",
        ],
    );
    let slower = slower.ends_with(3);
    let told = gate(&project, &[]).ends_with(3).stdout;
    for words in [
        "`tprimat history cpu/cmd/tiny/single` shows what changed",
        "- changed since the baseline: pace edited\n",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let report = slower.json();
    assert_eq!(
        (&report["verdict"], &report["cells"][0]["verdict"]),
        (&json!("fail"), &json!("fail"))
    );
    let ratio = report["cells"][0]["ratio"].as_f64().unwrap();
    assert!((ratio - 1.0 / 1.1).abs() < 0.003, "{ratio}");
    assert!(
        slower.stderr.starts_with(
            "::error title=tprimat gate%3A cpu/cmd/tiny/single::cpu/cmd/tiny/single: −9.0"
        ),
        "{}",
        slower.stderr
    );
    assert!(
        project
            .read("gate.md")
            .contains("| FAIL | cpu/cmd/tiny/single | "),
        "{}",
        project.read("gate.md")
    );
    let annotated = gate(&project, &["--annotations", "github"])
        .ends_with(3)
        .stdout;
    assert!(annotated.contains("\n::error title="), "{annotated}");
    // A wider limit lets it pass; faster passes under any.
    gate(&project, &["--max-regression", "0.2"]).ends_with(2);
    project
        .run(&[
            "gate",
            "--baseline",
            "baseline.json",
            "--max-regression",
            "0.2",
        ])
        .ends_with(0);
    project.run(&["gate", "--write", "slow.json"]).ends_with(0);
    project.write("pace", "100");
    project
        .run(&["gate", "--baseline", "slow.json", "--max-regression", "0"])
        .ends_with(0);
    // What was measured before is there again: no run was needed.
    assert_eq!(project.launches(), 10);
    // Measured anew, it is held against what it was; more repeats of the same are no new sample.
    project.run(&["build", "--force=measured"]).ends_with(0);
    let anew = project
        .run(&[
            "gate",
            "--baseline",
            "baseline.json",
            "--max-regression",
            "0.2",
        ])
        .ends_with(0)
        .stdout;
    assert!(
        anew.contains("% CI ") && !anew.contains("the same measurements"),
        "{anew}"
    );
    project
        .run(&["gate", "--write", "baseline.json"])
        .ends_with(0);
    project.write(
        "matrix.toml",
        &project
            .read("matrix.toml")
            .replace("repeats = 5", "repeats = 8"),
    );
    project.run(&["build"]).ends_with(0);
    let mixed = gate(&project, &[]).ends_with(6).stdout;
    assert!(
        mixed.contains("5 of 8 repeats are the baseline's own"),
        "{mixed}"
    );
}

#[test]
fn a_gate_says_how_much_of_a_cell_is_measured() {
    let project = measured(3);
    let reason = |project: &Project| {
        let report = gate(project, &["--json"]).ends_with(3).json();
        report["cells"][0]["reason"]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let one = format!("{CELL}#2");
    project
        .run(&["cache", "set-aside", &one, "--reason", "a test"])
        .ends_with(0);
    assert_eq!(reason(&project), "missing: 2 of 3 repeats are measured");
    fs::remove_dir_all(project.path("cache")).unwrap();
    assert_eq!(reason(&project), "missing: not measured yet");
}

#[test]
fn a_baseline_of_too_few_runs_makes_no_gate_add_runs() {
    let project = measured(1);
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.004");
    let line = ["gate", "--baseline", "baseline.json", "--decide"];
    let before = project.launches();
    let told = project.run(&line).ends_with(6).stdout;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("so the baseline needs more runs"), "{told}");
    assert!(project.launches() <= before + 2, "one run of each cell");
}

#[test]
fn one_repeat_gives_no_verdict() {
    let project = measured(1);
    project.run(&["build", "--force=measured"]).ends_with(0);
    let told = gate(&project, &["--annotations", "github", "--junit", "j.xml"])
        .ends_with(6)
        .stdout;
    assert!(
        told.contains("1 repeat now and 1 repeat then: a verdict needs 3 each")
            && told.contains("::warning title="),
        "{told}"
    );
    assert!(project.read("j.xml").contains("errors=\"1\""));
}

#[test]
fn what_is_gone_failed_or_changed_fails_and_what_is_new_is_listed() {
    let project = measured(3);
    let fails = |words: &str| {
        let told = gate(&project, &[]).ends_with(3).stdout;
        assert!(told.contains(words), "{words}: {told}");
    };
    let matrix = project.read("matrix.toml");
    project.write("matrix.toml", &matrix.replace("\"tiny\"", "\"wide\""));
    fails("missing: the matrix no longer has it");
    project.write(
        "matrix.toml",
        &matrix.replace("\"tiny\"", "[\"tiny\", \"wide\"]"),
    );
    project.run(&["build"]).ends_with(0);
    let told = gate(&project, &[]).ends_with(0).stdout;
    assert!(
        told.contains("new           cpu/cmd/wide/single")
            && told.contains("gate: pass: 1 pass, 1 new"),
        "{told}"
    );
    // A gate of nothing that the baseline has is no pass.
    let told = gate(&project, &["--only", "cpu/cmd/wide"])
        .ends_with(6)
        .stdout;
    assert!(
        told.contains("not selected  cpu/cmd/tiny/single\n"),
        "{told}"
    );
    gate(&project, &["--only", "cpu/cmd/nothing"]).ends_with(4);
    project.write("matrix.toml", &matrix);
    project.edit(
        "config.yaml",
        "global_batch_size: 2",
        "global_batch_size: 4",
    );
    project.edit("trainer.sh", "\"tokens\":32", "\"tokens\":64");
    project.run(&["build"]).ends_with(0);
    fails("another workload than the baseline's: global_batch_size: 4, not 2");
    project.edit("trainer.sh", "\"tokens\":64", "\"tokens\":32");
    project.run(&["build"]).ends_with(1);
    fails("is not counted: the log contradicts the job");
    project.edit(
        "trainer.sh",
        "seed=$(job seed)",
        "echo 'ModuleNotFoundError: No module named x' >&2; exit 1; seed=",
    );
    project.run(&["build"]).ends_with(1);
    fails("failed (import)");
}

#[test]
fn a_new_cell_that_failed_fails_the_gate_with_its_reason() {
    let project = measured(3);
    project.write(
        "matrix.toml",
        &project
            .read("matrix.toml")
            .replace("\"tiny\"", "[\"tiny\", \"wide\"]"),
    );
    let told = gate(&project, &[]).ends_with(0).stdout;
    assert!(
        told.contains(
            "new           cpu/cmd/wide/single  not in the baseline, nor measured: missing: not measured yet"
        ),
        "{told}"
    );
    // The launches of both cells read the same file; what was measured stays.
    let trainer = project.read("trainer.sh");
    project.write(
        "trainer.sh",
        &trainer.replace(
            "seed=$(job seed);",
            "echo 'it went boom: the connection was lost' >&2; exit 1; seed=",
        ),
    );
    project
        .run(&["build", "--only", "cpu/cmd/wide"])
        .ends_with(1);
    let failed = "cpu/cmd/wide/single  failed: unknown: it went boom";
    let told = gate(
        &project,
        &["--only", "cpu/cmd/wide", "--junit", "junit.xml"],
    )
    .ends_with(3)
    .stdout;
    assert!(told.contains(failed) && !told.contains("stale"), "{told}");
    assert!(
        project.read("junit.xml").contains("failures=\"1\""),
        "{}",
        project.read("junit.xml")
    );
    // Everything else that shows the cell says the same, although a build would try it again.
    let compared = project
        .run(&["compare", "--format", "json"])
        .ends_with(0)
        .json();
    let wide = &compared["absent"][0];
    assert_eq!(
        (&wide["state"], &wide["reason"]["text"]),
        (
            &json!("failed"),
            &json!("unknown: it went boom: the connection was lost")
        )
    );
    // The other cell has figures of the trainer before, which a gate does not take.
    assert_eq!(compared["rows"][0]["cell"], CELL);
    assert_eq!(
        compared["rows"][0]["standing"]["earlier"],
        "measured before trainer.sh was edited"
    );
    let none = project.run(&["gate", "--write", "-"]).ends_with(1).stderr;
    assert!(
        none.contains("`cpu/cmd/wide/single` is left out: failed: unknown: it went boom"),
        "{none}"
    );
    assert!(
        project
            .run(&["plan", "--exit-code"])
            .ends_with(5)
            .stdout
            .contains("this may be transient, so it runs again")
    );
}

#[test]
fn no_output_is_written_over_what_the_project_reads() {
    let project = measured(1);
    let before: Vec<String> = [
        "config.yaml",
        "matrix.toml",
        "trainer.sh",
        "tprimat.lock",
        "baseline.json",
    ]
    .map(|f| project.read(f))
    .into();
    let refused = |arguments: &[&str], words: &str| {
        let ran = project.run(arguments).ends_with(2);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    };
    for input in [
        "config.yaml",
        "./tprimat.lock",
        "matrix.toml",
        "output/../trainer.sh",
    ] {
        refused(&["gate", "--write", input], "the project reads this file");
        refused(
            &[
                "gate",
                "--baseline",
                "baseline.json",
                "--junit",
                "new.xml",
                "--markdown",
                input,
            ],
            "--markdown",
        );
    }
    assert!(!project.path("new.xml").exists());
    for inside in [
        "cache/new.json",
        "recipes/new/new.json",
        "templates/new.json",
        "pipelines/new.json",
    ] {
        refused(
            &["gate", "--write", inside],
            "is a folder of the project's own",
        );
    }
    refused(
        &[
            "gate",
            "--baseline",
            "baseline.json",
            "--junit",
            "./baseline.json",
        ],
        "this command reads that file",
    );
    let twice = [
        "gate",
        "--baseline",
        "baseline.json",
        "--junit",
        "a.xml",
        "--markdown",
        "output/../a.xml",
    ];
    refused(&twice, "--junit names the same file");
    for folder in [
        "cache",
        "recipes",
        "templates/x",
        "pipelines",
        ".",
        "output/..",
    ] {
        refused(&["report", "-o", folder], "project's");
    }
    refused(
        &["report", "-o", "config.yaml"],
        "this is a file, not a folder",
    );
    refused(
        &["gate", "--write", "output"],
        "this is a folder, not a file",
    );
    refused(
        &["report", "-o", "cache/page.html"],
        "is a folder of the project's own",
    );
    let after: Vec<String> = [
        "config.yaml",
        "matrix.toml",
        "trainer.sh",
        "tprimat.lock",
        "baseline.json",
    ]
    .map(|f| project.read(f))
    .into();
    assert_eq!(before, after);
    assert!(!project.path("recipes").exists() && !project.path("cache/report.html").exists());
    // What an earlier call wrote may be written again.
    for _ in 0..2 {
        project
            .run(&["gate", "--write", "baseline.json"])
            .ends_with(0);
        project.run(&["report", "-o", "page.html"]).ends_with(0);
        project.run(&["report", "-o", "elsewhere"]).ends_with(0);
    }
}

#[test]
fn a_baseline_holds_what_a_gate_needs_and_no_price() {
    let project = measured(3);
    project.edit(
        "config.yaml",
        "benchmarking:\n",
        "benchmarking:\n  enhanced_metrics: { cloud_costs: { cpu: { per_gpu_hour: 47.11 } } }\n",
    );
    let printed = project.run(&["gate", "--write", "-"]).ends_with(0);
    let baseline = printed.json();
    assert_eq!(
        baseline,
        serde_json::from_str::<Value>(&project.read("baseline.json")).unwrap()
    );
    let cell = &baseline["cells"][0];
    assert_eq!(
        (&baseline["schema_version"], &cell["cell"]),
        (&json!("tprimat.baseline/1"), &json!(CELL))
    );
    assert_eq!(
        cell["tokens_per_second_per_gpu"]["values"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert!(
        cell["contract"].is_array() && cell["key"].is_string() && !printed.stdout.contains("47.11")
    );
    let said = project
        .run(&["gate", "--write", "c.json", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        (&said["baseline"], &said["cells"]),
        (&json!("c.json"), &json!(1))
    );
    project.write("pace", "120");
    let none = project.run(&["gate", "--write", "-"]).ends_with(1);
    assert!(
        none.stderr.contains("no cell has figures")
            && none.stderr.contains("only measured before pace was edited"),
        "{}",
        none.stderr
    );
    assert_eq!(none.stdout, "");
}

#[test]
fn mistakes_with_baselines_are_told() {
    let project = Project::new(ONE_RUN);
    let said = |arguments: &[&str]| {
        let ran = project.run(&[&["gate"], arguments].concat()).ends_with(2);
        assert_eq!(ran.stdout, "");
        ran.stderr
    };
    project.write(
        "broken.json",
        "{\n  \"schema_version\": \"tprimat.baseline/1\",\n  \"cells\": [}\n",
    );
    insta::assert_snapshot!("baseline_not_json", said(&["--baseline", "broken.json"]));
    project.write(
        "newer.json",
        r#"{"schema_version": "tprimat.baseline/9", "cells": []}"#,
    );
    insta::assert_snapshot!(
        "baseline_of_another_version",
        said(&["--baseline", "newer.json"])
    );
    project.write(
        "other.json",
        r#"{"schema_version": "tprimat.comparison/1"}"#,
    );
    insta::assert_snapshot!(
        "baseline_is_something_else",
        said(&["--baseline", "other.json"])
    );
    project.write("list.json", "[]");
    insta::assert_snapshot!("baseline_is_a_list", said(&["--baseline", "list.json"]));
    project.write(
        "half.json",
        r#"{"schema_version": "tprimat.baseline/1", "matrix": "m", "cells": [{"cell": "a"}]}"#,
    );
    insta::assert_snapshot!("baseline_is_damaged", said(&["--baseline", "half.json"]));
    project.write(
        "empty.json",
        r#"{"schema_version": "tprimat.baseline/1", "matrix": "m", "cells": []}"#,
    );
    insta::assert_snapshot!(
        "percent_wrong",
        said(&["--baseline", "empty.json", "--max-regression", "3"])
    );
    assert!(said(&["--baseline", "nowhere.json"]).contains("nowhere.json"));
    project
        .run(&["gate", "--baseline", "empty.json"])
        .ends_with(6);
}

#[test]
fn the_junit_file_is_xml_whatever_a_cell_is_called() {
    let project = measured(3);
    // Names come from the baseline, which anybody may have written.
    let strange = project.read("baseline.json").replace(
        CELL,
        "a\\u0000\\u001b[31m<&>\\\"'\\ufffe]]>/\\ud83d\\ude00\\n",
    );
    project.write("baseline.json", &strange);
    gate(&project, &["--junit", "junit.xml"]).ends_with(3);
    let check = "import sys, xml.etree.ElementTree as e; s = e.parse('junit.xml').getroot()[0]; print(s.get('tests'), s.get('failures'), len(s))";
    let parsed: Ran = project
        .command("python3")
        .args(["-c", check])
        .output()
        .unwrap()
        .into();
    assert_eq!(parsed.ends_with(0).stdout, "2 1 2\n");
}

#[test]
fn locked_cached_only_and_require_complete_work_together() {
    let project = Project::new(ONE_RUN);
    let ci = [
        "build",
        "--require=locked",
        "--cached-only",
        "--require=complete",
    ];
    let unpinned = project
        .run(&["build", "--require=locked"])
        .ends_with(2)
        .stderr;
    assert!(
        unpinned.contains("tprimat.lock would have to be written: it has no section for cpu"),
        "{unpinned}"
    );
    project.run(&["plan", "--require=locked"]).ends_with(2);
    project.run(&ci).ends_with(2);
    assert!(!project.path("tprimat.lock").exists() && project.launches() == 0);

    project.run(&["build"]).ends_with(0);
    let lock = fs::read(project.path("tprimat.lock")).unwrap();
    for arguments in [
        &["build", "--require=locked"][..],
        &["plan", "--require=locked", "--exit-code"],
        &["build", "-n", "--require=locked"],
        &ci,
    ] {
        project.run(arguments).ends_with(0);
    }
    // Nothing to train with --cached-only, so nothing is complete.
    project.edit("config.yaml", "train_iters: 6", "train_iters: 7");
    let incomplete = project.run(&ci).ends_with(5);
    assert!(
        incomplete
            .stdout
            .contains("not measured yet, and --cached-only trains nothing"),
        "{}",
        incomplete.stdout
    );
    project
        .run(&["build", "--require=locked", "--cached-only"])
        .ends_with(0);
    assert_eq!(
        (
            project.launches(),
            fs::read(project.path("tprimat.lock")).unwrap()
        ),
        (1, lock)
    );
    project.edit("config.yaml", "train_iters: 7", "train_iters: 6");
    project.run(&ci).ends_with(0);

    // A fact that no key of this recipe covers: this host is another one than the lock's.
    project.edit(
        "tprimat.lock",
        "[platform.cpu]\n",
        "[platform.cpu]\ndriver = \"1.0\"\n",
    );
    let drifted = project
        .run(&["build", "--require=locked"])
        .ends_with(2)
        .stderr;
    assert!(
        drifted.contains("this host differs from tprimat.lock: cpu, driver"),
        "{drifted}"
    );
    project.run(&["plan", "--require=locked"]).ends_with(2);
    // Where nothing can train, it does not matter which host this is.
    project.run(&ci).ends_with(0);
    project
        .run(&["build", "--require=locked", "--allow-drift"])
        .ends_with(2);
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_baseline_that_was_cut_is_not_printed() {
    let project = Project::new(ONE_RUN);
    let cut = format!("{{\"cells\": [{}", "{\"cell\": \"a\"},".repeat(1000));
    project.write("baseline.json", &cut);
    let ran = gate(&project, &[]).ends_with(2);
    assert!(
        ran.stderr.contains("baseline.json is not JSON: "),
        "{ran:?}"
    );
    assert!(ran.stderr.len() < 1000, "{}", ran.stderr);
}

/// Whether anything was trained at all is no matter of speed, and stands beside the verdict.
#[test]
fn a_loss_that_never_moves_stands_beside_the_verdict() {
    let project = Project::new(ONE_RUN);
    project.edit("trainer.sh", r#""loss":'$((9 - step))'.5"#, r#""loss":0"#);
    project.run(&["build"]).ends_with(0);
    let told =
        "the loss is 0 at every one of 6 logged steps: nothing was trained, or it is not the loss";
    let shown = project.run(&["compare"]).ends_with(0).stdout;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(told), "{shown}");
    project
        .run(&["gate", "--write", "baseline.json"])
        .ends_with(0);
    let passed = gate(&project, &[]).ends_with(0).stdout;
    let passed = passed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(passed.contains(told), "{passed}");
}

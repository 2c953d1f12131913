//! Results of our own that come back, and files of others that look like them.

use std::fs;

use crate::import::{consistent, project, published, times};
use crate::support::{ONE_RUN, Project};
use serde_json::{Value, json};

/// What another box published is taken in whole: every repeat, what the trainer stated, memory,
/// hosts.
#[test]
fn our_own_results_come_back_as_they_were() {
    let theirs = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    theirs.run(&["build"]).ends_with(0);
    let file = theirs.read("output/train_cpu_cmd_tiny.json");
    let measured = theirs
        .run(&["show", "cpu/cmd/tiny/single", "--json"])
        .ends_with(0)
        .json();
    // The same warm-up is declared there, and nothing of that cell has run.
    let ours = project();
    ours.write("results/train_cpu_cmd_tiny.json", &file);
    ours.run(&["import", "results"]).ends_with(0);
    let imported = ours
        .run(&["show", "cpu/cmd/tiny/single", "--json"])
        .ends_with(0)
        .json();
    for path in [
        "/n",
        "/memory",
        "/attestation",
        "/hosts",
        "/tokens_per_second_per_gpu/values",
    ] {
        assert_eq!(imported.pointer(path), measured.pointer(path), "{path}");
    }
    let ran = |summary: &Value, repeat: usize| summary["repeats"][repeat]["started_at"].clone();
    assert!(
        (0..3).all(|repeat| ran(&imported, repeat) == ran(&measured, repeat)),
        "{imported:#}"
    );
    let again = ours
        .run(&["import", "results", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        again["imported"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|run| run["known"] == true)
            .count(),
        3,
        "{again:#}"
    );
    let published: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(published["gpu_info"]["software_stack"], "cpu");
}

/// A log that shows every second step: the file says which, so they are not taken for all.
#[test]
fn the_steps_of_our_own_results_keep_their_numbers() {
    let theirs = Project::new(ONE_RUN);
    theirs.edit("config.yaml", "train_iters: 6", "train_iters: 12");
    theirs.edit("trainer.sh", "\"step\":'$step'", "\"step\":'$((step * 2))'");
    theirs.edit("trainer.sh", "\"steps\":6", "\"steps\":12");
    theirs.run(&["build"]).ends_with(0);
    let cell = "cpu/cmd/tiny/single";
    let shown = |project: &Project| project.run(&["show", cell, "--json"]).ends_with(0).json();
    let mut published: Value =
        serde_json::from_str(&theirs.read("output/train_cpu_cmd_tiny.json")).unwrap();
    assert_eq!(published["steps"], json!([2, 4, 6, 8, 10, 12]));
    assert_eq!(published["repeats"][0]["steps"], published["steps"]);
    let ours = project();
    ours.edit("config.yaml", "train_iters: 6", "train_iters: 12");
    ours.write("results/train_cpu_cmd_tiny.json", &published.to_string());
    ours.run(&["import", "results"]).ends_with(0);
    let values = "/tokens_per_second_per_gpu/values";
    assert_eq!(shown(&ours).pointer(values), shown(&theirs).pointer(values));
    // Numbers that are none are no reason to guess.
    published["repeats"][0]["steps"] = json!([2, 4, 4, 8, 10, 12]);
    let odd = project();
    odd.write("results/train_cpu_cmd_tiny.json", &published.to_string());
    let said = odd.run(&["import", "results"]).ends_with(2).stderr;
    assert!(said.contains("`steps` of repeat 1 do not rise"), "{said}");
}

/// A published result gives the figures that it was published with, energy included.
#[test]
fn published_results_of_gpus_give_their_figures_again() {
    let project = project();
    let files = [
        "native-8b.json",
        "native-1b-four-replicas.json",
        "native-qwen-fp8.json",
        "titan-1b.json",
    ];
    for name in files {
        let ran = project.run(&["import", &fixture(name)]).ends_with(0);
        assert!(
            !ran.stdout.contains("CONTRADICTED") && ran.stdout.contains(": attested, "),
            "{}",
            ran.stdout
        );
        assert!(ran.stderr.lines().count() <= 3, "{}", ran.stderr);
    }
    let warm_up = "benchmarking.warmup.skip_steps=5";
    let again = project
        .run(&["compare", "--imported", "--json", "--set", warm_up])
        .ends_with(0)
        .json();
    let energy = |metrics: &Value| {
        let metrics = metrics.as_array().unwrap();
        metrics
            .iter()
            .find(|metric| metric["name"] == "tokens_per_joule")
            .unwrap()["figure"]["value"]
            .as_f64()
            .unwrap()
    };
    for name in files {
        let file: Value =
            serde_json::from_str(&fs::read_to_string(fixture(name)).unwrap()).unwrap();
        let row = again["rows"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["cell"] == file["cell"])
            .unwrap();
        let published = &file["performance_metrics"];
        let rate = published["tokens_per_second_per_gpu"].as_f64().unwrap();
        let value = row["tokens_per_second_per_gpu"]["value"].as_f64().unwrap();
        assert!(
            (value / rate - 1.0).abs() < 1e-9,
            "{name}: {value} against {rate}"
        );
        assert_eq!(row["n"], 3, "{name}");
        let [ours, theirs] = [energy(&row["metrics"]), energy(&published["metrics"])];
        assert!(
            (ours / theirs - 1.0).abs() < 1e-6,
            "{name}: {ours} against {theirs} tokens/J"
        );
    }
}

fn fixture(name: &str) -> String {
    format!(
        "{}/tests/fixtures/published/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

/// Commands that imports have no part in, or another one, say where to go.
#[test]
fn imports_that_a_command_does_not_see_are_named() {
    let project = project();
    project.write("benchmark_rocm_tiny.json", &consistent("amd", 8, &times()));
    project
        .run(&["import", "benchmark_rocm_tiny.json"])
        .ends_with(0);
    let none = project.run(&["history"]).ends_with(4).stderr;
    assert!(
        none.contains("do not say when the runs were made")
            && none.contains("tprimat compare --imported"),
        "{none}"
    );
    let none = project
        .run(&["compare", "amd/prim/*", "amd/*"])
        .ends_with(4)
        .stderr;
    assert!(
        none.contains("no cell of the matrix") && none.contains("--imported --only PATTERN"),
        "{none}"
    );
}

/// A cut file of ours is an error that names it, and costs none of the files beside it.
#[test]
fn a_cut_result_of_ours_is_no_strangers_file() {
    let project = project();
    let file = fs::read_to_string(fixture("titan-1b.json")).unwrap();
    project.write("results/a_whole.json", &file);
    project.write("results/b_cut.json", &file[..file.len() / 2]);
    project.write(
        "results/c_odd.json",
        &file.replacen("\"repeats\"", "\"repetitions\"", 1),
    );
    let ran = project.run(&["import", "results"]).ends_with(2);
    assert!(
        ran.stderr.contains("b_cut.json") && ran.stderr.contains("missing field `repeats`"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        ran.stdout.matches("imported from").count(),
        3,
        "{}",
        ran.stdout
    );
    let listed = project
        .run(&["compare", "--imported", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(listed["rows"].as_array().unwrap().len(), 1, "{listed:#}");
}

#[test]
fn a_file_of_another_vendor_is_imported_into_a_cell_only_on_purpose() {
    let project = project();
    project.write(
        "mi300x.json",
        &published(8, 128, &times(), 4000.0).to_string(),
    );
    let cell = "nvd/nemo/tiny/mine";
    let refused = project
        .run(&["import", cell, "--result", "mi300x.json"])
        .ends_with(2);
    assert!(
        refused
            .stderr
            .contains("is not imported into `nvd/nemo/tiny/mine`")
            && refused.stderr.contains("--other-platform"),
        "{}",
        refused.stderr
    );
    let listed = project.run(&["show", "--attempts", cell]);
    assert_ne!(listed.code, Some(0), "nothing is kept: {}", listed.stdout);
    project
        .run(&[
            "import",
            cell,
            "--result",
            "mi300x.json",
            "--other-platform",
        ])
        .ends_with(0);
}

/// A log that only a recipe's patterns can read is imported by them, and read so ever after.
#[test]
fn a_log_of_a_recipe_with_patterns_is_imported_by_them() {
    let cell = "cpu/cmd/tiny/single";
    let project = project();
    let lines = |i| format!("batch {i} took 0.1{i} s (0.2{i} with data) at a loss of 3.{i}\n");
    project.write("own.log", &(1..=6).map(lines).collect::<String>());
    let import = ["import", cell, "--log", "own.log"];
    let refused = project.run(&import).ends_with(2).stderr;
    assert!(refused.contains("neither a log nor a result"), "{refused}");
    project.run(&["recipe", "copy", "cmd"]).ends_with(0);
    let patterns = |time: &str| {
        format!(
            "format = \"regex\"\npatterns = ['batch (?P<step>\\d+) took {time} at a loss of (?P<loss>\\S+)']"
        )
    };
    let whole = patterns("(?P<step_time_s>\\S+) s .*");
    project.edit("recipes/cmd/recipe.toml", "format = \"any\"", &whole);
    // Which recipe reads it, only the cell says; and the patterns may not fit.
    project.write("other.log", "nothing of the kind\n");
    for (arguments, told) in [
        (&["import", "own.log"][..], "name a cell of that framework"),
        (
            &["import", cell, "--log", "other.log"],
            "the log lines of `cmd` find no step in it either",
        ),
    ] {
        let refused = project.run(arguments).ends_with(2).stderr;
        let words = refused.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(told), "{refused}");
    }
    project.run(&import).ends_with(0);
    let mean = || {
        let shown = project.run(&["show", cell, "--json"]).ends_with(0).json();
        assert_eq!(shown["repeats"].as_array().unwrap().len(), 1, "{shown}");
        let steady = &shown["repeats"][0]["steady"];
        assert_eq!(steady["steps"], 5, "{shown}");
        steady["step_time"]["mean_seconds"].as_f64().unwrap()
    };
    assert!((mean() - 0.14).abs() < 1e-9, "{}", mean());
    // Whoever corrects the patterns imports the file again: it stays one run.
    let other = patterns("\\S+ s .(?P<step_time_s>\\S+) with data.");
    project.edit("recipes/cmd/recipe.toml", &whole, &other);
    assert!((mean() - 0.14).abs() < 1e-9, "{}", mean());
    let again = project.run(&import).ends_with(0).stdout;
    assert!(again.contains("imported before"), "{again}");
    assert!((mean() - 0.24).abs() < 1e-9, "{}", mean());
    // It does not depend on the recipe any more.
    fs::remove_dir_all(project.path("recipes")).unwrap();
    assert!((mean() - 0.24).abs() < 1e-9, "{}", mean());
}

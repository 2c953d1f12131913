//! Imports after they were filed: their numbers, their logs, and cells of another platform.

use crate::support::{ONE_RUN, Project};
use serde_json::{Value, json};

const CELL: &str = "cpu/cmd/tiny/single";

/// A result of one device: 2 × 16 tokens a step.
fn result(device: &str, first: f64, rate: f64) -> String {
    let times = [first, 0.256, 0.257, 0.255, 0.256, 0.2561];
    json!({
        "platform": "",
        "gpu_info": { "device_count": 1, "device_name": device },
        "training_config": { "max_steps": 6, "global_batch_size": 2, "sequence_length": 16, "num_gpus": 1 },
        "performance_metrics": { "tokens_per_second": rate, "tokens_per_second_per_gpu": rate,
            "avg_step_time_seconds": times[1..].iter().sum::<f64>() / 5.0 },
        "raw_step_times": times,
    })
    .to_string()
}

fn project() -> Project {
    let project = Project::new(ONE_RUN);
    for (name, first) in [("a.json", 0.9), ("b.json", 0.8), ("c.json", 0.7)] {
        project.write(name, &result("Intel(R) Xeon(R)", first, 125.0));
    }
    project
}

fn import(project: &Project, cell: &str, file: &str) -> String {
    let ran = project.run(&["import", cell, "--result", file]);
    ran.ends_with(0).stdout
}

/// They part the matrix alone.
#[test]
fn shards_and_the_variables_of_older_suites_hide_no_import() {
    let project = project();
    import(&project, "cpu/cmd/other/single", "a.json");
    let lists_it = |run: &mut std::process::Command| {
        let output = run.output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("cpu/cmd/other/single")
    };
    for shard in ["1/2", "2/2"] {
        assert!(lists_it(&mut project.tprimat(&["list", "--shard", shard])));
    }
    assert!(lists_it(
        project.tprimat(&["list"]).env("FRAMEWORKS", "tran")
    ));
    let of_another = ["list", "--only", "cpu/cmd/tiny"];
    assert!(!lists_it(&mut project.tprimat(&of_another)));
}

#[test]
fn an_import_keeps_its_number_when_another_is_set_aside() {
    let project = project();
    for file in ["a.json", "b.json", "c.json"] {
        import(&project, CELL, file);
    }
    let first = format!("{CELL}#1");
    project
        .run(&["cache", "set-aside", &first, "--reason", "a test"])
        .ends_with(0);
    let second = format!("{CELL}#2");
    let shown = project.run(&["show", &second]).ends_with(0).stdout;
    assert!(
        shown.starts_with(&format!("# {second}, imported from b.json")),
        "{shown}"
    );
    let gone = project.run(&["show", &first]).ends_with(4).stderr;
    assert!(
        gone.contains("was set aside: a test") && gone.contains("cache restore"),
        "{gone}"
    );
    let all = project.run(&["show", CELL, "--json"]).ends_with(0).json();
    let repeats: Vec<&Value> = all["repeats"]
        .as_array()
        .unwrap()
        .iter()
        .map(|repeat| &repeat["repeat"])
        .collect();
    assert_eq!(repeats, [&json!(2), &json!(3)]);
}

#[test]
fn the_same_bytes_under_two_cells_are_pointed_out() {
    let project = project();
    let told = import(&project, CELL, "a.json");
    assert!(!told.contains("same bytes"), "{told}");
    let told = import(&project, "cpu/cmd/tiny/other", "a.json");
    assert!(
        told.contains(&format!("the same bytes are imported as {CELL}#1 too")),
        "{told}"
    );
}

/// A rate under the name of another vendor's platform would be read as that platform's.
#[test]
fn what_ran_on_another_vendors_device_has_no_rate() {
    let project = project();
    project.write("epyc.json", &result("AMD EPYC 9654 96-Core", 0.9, 125.0));
    project.write("h100.json", &result("NVIDIA H100 80GB HBM3", 0.9, 125.0));
    for (cell, file) in [
        ("nvd/nemo/tiny/x", "a.json"),
        ("amd/prim/tiny/x", "epyc.json"),
        ("cpu/cmd/tiny/x", "h100.json"),
    ] {
        let arguments = ["import", cell, "--result", file, "--other-platform"];
        let refused = project.run(&arguments[..4]).ends_with(2).stderr;
        let words = refused.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("without a rate"), "{refused}");
        let told = project.run(&arguments).ends_with(0).stdout;
        assert!(
            told.contains("no rate: the device is") && !told.contains("tokens/s"),
            "{told}"
        );
    }
    let compared = project
        .run(&["compare", "--imported", "--json"])
        .ends_with(1)
        .json();
    for row in compared["rows"].as_array().unwrap() {
        assert_eq!(row["n"], 0, "{row:#}");
    }
}

#[test]
fn logs_and_history_say_what_there_is_of_an_import() {
    let project = project();
    project.write("run.log", "{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"trainer\":\"stub\"}\n{\"event\":\"step\",\"step\":1,\"step_time_seconds\":0.1,\"tokens\":32}\n");
    project
        .run(&["import", CELL, "--log", "run.log"])
        .ends_with(0);
    let log = project.run(&["logs", CELL]).ends_with(0).stdout;
    assert_eq!(log, project.read("run.log"));
    let other = "cpu/cmd/tiny/other";
    import(&project, other, "a.json");
    let none = project.run(&["logs", other]).ends_with(1).stderr;
    assert!(
        none.contains("was imported from a.json, which is not a log")
            && none.contains(&format!("tprimat show '{other}#1'")),
        "{none}"
    );
    project.run(&["build"]).ends_with(0);
    let none = project.run(&["history", other]).ends_with(4).stderr;
    assert!(
        none.contains("do not say when the runs were made")
            && none.contains("tprimat compare --imported"),
        "{none}"
    );
}

/// An import that is no figure, in a cell of the matrix, is not all that there is to compare.
#[test]
fn an_import_in_the_matrix_hides_no_other() {
    let project = project();
    project.write("odd.json", &result("Intel(R) Xeon(R)", 0.6, 500.0));
    let told = import(&project, CELL, "odd.json");
    assert!(told.contains("CONTRADICTED"), "{told}");
    import(&project, "cpu/cmd/tiny/other", "a.json");
    let compared = project.run(&["compare", "--json"]).ends_with(0).json();
    let cells: Vec<&str> = compared["rows"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["cell"].as_str())
        .collect();
    assert!(cells.contains(&"cpu/cmd/tiny/other"), "{cells:?}");
    let page = project.run(&["report", "--imported"]).ends_with(0).stdout;
    assert!(
        page.trim_end().ends_with("output/imports/report.html"),
        "{page}"
    );
    assert!(
        project.path("output/imports/report.html").is_file(),
        "{page}"
    );
}

/// A file that is like the others, but for some of its labels.
fn relabelled(batch: u64, rate: f64) -> String {
    let mut file: Value = serde_json::from_str(&result("Intel(R) Xeon(R)", 0.6, rate)).unwrap();
    file["training_config"]["global_batch_size"] = batch.into();
    file.to_string()
}

#[test]
fn an_import_of_other_work_is_not_restored_beside_another() {
    let project = project();
    project.write("large.json", &relabelled(4, 250.0));
    let cell = "cpu/cmd/tiny/theirs";
    import(&project, cell, "a.json");
    let first = format!("{cell}#1");
    let aside = ["cache", "set-aside", &first, "--reason", "a test"];
    project.run(&aside).ends_with(0);
    import(&project, cell, "large.json");
    let refused = project.run(&["cache", "restore", &first]).ends_with(1);
    assert!(
        refused
            .stderr
            .contains("holds an import of another workload")
            && refused.stderr.contains("global_batch_size: 2, not 4"),
        "{}",
        refused.stderr
    );
    let second = format!("{cell}#2");
    let aside = ["cache", "set-aside", &second, "--reason", "a test"];
    project.run(&aside).ends_with(0);
    project.run(&["cache", "restore", &first]).ends_with(0);
}

/// Imports of another cache come with their cells, so that one cell may get two workloads.
#[test]
fn repeats_that_did_other_work_have_no_figures() {
    let (ours, theirs) = (project(), project());
    theirs.write("large.json", &relabelled(4, 250.0));
    let cell = "cpu/cmd/tiny/theirs";
    import(&ours, cell, "a.json");
    import(&theirs, cell, "large.json");
    let cache = format!("file://{}", theirs.path("cache").display());
    ours.run(&["cache", "pull", "--remote", &cache])
        .ends_with(0);
    let summary = ours.run(&["show", cell, "--json"]).ends_with(0).json();
    assert_eq!(
        (&summary["n"], &summary["tokens_per_second_per_gpu"]),
        (&json!(0), &Value::Null)
    );
    let shown = ours.run(&["show", cell]).ends_with(0).stdout;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        shown.contains("global_batch_size (2 in repeat 1, 4 in repeat 2)"),
        "{shown}"
    );
    let compared = ours
        .run(&["compare", "--imported", "--json"])
        .ends_with(1)
        .json();
    assert_eq!(compared["rows"], json!([]), "{compared:#}");
}

#[test]
fn a_result_file_in_a_cell_of_the_matrix_is_held_against_its_job() {
    let project = project();
    assert!(!import(&project, CELL, "a.json").contains("CONTRADICTED"));
    let mut file: Value = serde_json::from_str(&relabelled(4, 250.0)).unwrap();
    file["training_config"]["max_steps"] = 500.into();
    file["training_config"]["num_gpus"] = 2.into();
    file["parallelism_config"] = json!({ "pipeline_model_parallel_size": 2 });
    project.write("other.json", &file.to_string());
    let first = format!("{CELL}#1");
    let aside = ["cache", "set-aside", &first, "--reason", "a test"];
    project.run(&aside).ends_with(0);
    let told = import(&project, CELL, "other.json");
    for words in [
        "CONTRADICTED",
        "contradicted global_batch_size: claimed 2, the log says 4",
        "contradicted pipeline_model_parallel_size: claimed 1, the log says 2",
        "contradicted train_iters: claimed 6, the log says 500",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // In a cell that no matrix has, the labels are all that is claimed.
    let told = import(&project, "cpu/cmd/tiny/theirs", "other.json");
    assert!(!told.contains("CONTRADICTED"), "{told}");
}

#[test]
fn an_import_that_was_set_aside_is_still_listed() {
    let project = project();
    let cell = "cpu/cmd/tiny/theirs";
    import(&project, cell, "a.json");
    let aside = ["cache", "set-aside", cell, "--reason", "another host"];
    project.run(&aside).ends_with(0);
    let listed = project.run(&["list"]).ends_with(0).stdout;
    assert!(
        listed.contains(&format!("{cell}  (1 import set aside: another host)")),
        "{listed}"
    );
    let restore = format!("tprimat cache restore {cell}#1");
    let shown = project.run(&["show", cell]).ends_with(4).stderr;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        shown.contains("its import was set aside (another host)") && shown.contains(&restore),
        "{shown}"
    );
    let compared = project.run(&["compare", "--imported"]).ends_with(1).stdout;
    let compared = compared.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        compared.contains("its import was set aside (another host)"),
        "{compared}"
    );
    // A second one, which counts, does not hide the first.
    import(&project, cell, "c.json");
    let shown = project.run(&["show", cell]).ends_with(0).stdout;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        shown.contains("repeat 1 was set aside by hand: another host"),
        "{shown}"
    );
}

#[test]
fn list_filters_imports_as_well() {
    let project = project();
    project.write("h100.json", &result("NVIDIA H100 80GB HBM3", 0.9, 125.0));
    import(&project, "nvd/nemo/tiny/x", "h100.json");
    import(&project, "cpu/cmd/tiny/theirs", "a.json");
    let lines = |filter: &[&str]| {
        let listed = project.run(&[&["list"], filter].concat());
        let listed = listed.ends_with(0).stdout;
        let first = |line: &str| line.split(' ').next().unwrap().to_owned();
        listed.lines().map(first).collect::<Vec<_>>()
    };
    assert_eq!(lines(&["--only", "nvidia"]), ["nvd/nemo/tiny/x"]);
    assert_eq!(lines(&["--skip", "nvd"]), [CELL, "cpu/cmd/tiny/theirs"]);
    project.run(&["list", "--only", "amd"]).ends_with(4);
}

#[test]
fn a_log_that_ends_before_the_step_it_names_says_so() {
    let project = project();
    let mut log =
        "{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"trainer\":\"stub\",\"effective\":\
                   {\"seq_length\":16,\"global_batch_size\":2,\"num_gpus\":1,\"train_iters\":6}}\n"
            .to_owned();
    for step in 1..=5 {
        log += &format!(
            "{{\"event\":\"step\",\"step\":{step},\"step_time_seconds\":0.10{step},\"tokens\":32}}\n"
        );
    }
    project.write("cut.log", &log);
    project
        .run(&["import", "cpu/cmd/tiny/theirs", "--log", "cut.log"])
        .ends_with(0);
    let compared = project.run(&["compare", "--imported"]).ends_with(0).stdout;
    assert!(
        compared.contains("the log says 6 iterations and ends at 5"),
        "{compared}"
    );
    // A cell of the matrix asks for all of its steps.
    let told = project
        .run(&["import", CELL, "--log", "cut.log"])
        .ends_with(0)
        .stdout;
    assert!(
        told.contains("contradicted steps_run: claimed 6, the log says 5"),
        "{told}"
    );
}

#[test]
fn failed_imports_are_among_what_failed() {
    let project = project();
    let log = "{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"trainer\":\"stub\"}\nRuntimeError: CUDA error: out of memory\n";
    project.write("bad.log", log);
    let other = "cpu/cmd/tiny/other";
    project
        .run(&["import", other, "--log", "bad.log"])
        .ends_with(0);
    import(&project, "cpu/cmd/tiny/good", "a.json");
    let listed = project.run(&["list", "--failed"]).ends_with(0).stdout;
    assert!(
        listed.starts_with(other) && listed.contains("(failed)") && listed.lines().count() == 1,
        "{listed}"
    );
    project
        .run(&["cache", "set-aside", other, "--reason", "a test"])
        .ends_with(0);
    project.run(&["list", "--failed"]).ends_with(4);
}

#[test]
fn an_import_that_is_set_aside_already_or_counts_is_told_so() {
    let project = project();
    let cell = "cpu/cmd/tiny/theirs";
    import(&project, cell, "a.json");
    let first = format!("{cell}#1");
    let told = |arguments: &[&str]| {
        let ran = project.run(&[&["cache"], arguments].concat()).ends_with(1);
        ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for name in [cell, &first] {
        let said = told(&["restore", name]);
        assert!(
            said.contains(&format!("the import {first} was not set aside")),
            "{said}"
        );
    }
    let aside = ["cache", "set-aside", &first, "--reason", "a test"];
    project.run(&aside).ends_with(0);
    for name in [cell, &first] {
        let said = told(&["set-aside", name, "--reason", "again"]);
        assert!(
            said.contains(&format!("the import {first} was set aside already, on "))
                && said.contains(": a test"),
            "{said}"
        );
    }
    project.run(&["cache", "restore", &first]).ends_with(0);
    import(&project, cell, "b.json");
    let said = told(&["restore", cell]);
    assert!(
        said.contains("no run of `cpu/cmd/tiny/theirs` was set aside"),
        "{said}"
    );
}

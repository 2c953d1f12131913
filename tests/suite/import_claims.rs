//! What is said of an imported run: that it does not count, where it ran, and only what its file
//! states.

use crate::support::{ONE_RUN, Project};
use serde_json::{Value, json};

const CELL: &str = "cpu/cmd/tiny/single";
const DAY: f64 = 86_400.0;

/// A file that tprimat published of three repeats.
fn published() -> Value {
    let theirs = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    theirs.run(&["build"]).ends_with(0);
    serde_json::from_str(&theirs.read("output/train_cpu_cmd_tiny.json")).unwrap()
}

fn imported(file: &Value) -> (Project, String) {
    let project = Project::new(ONE_RUN);
    project.write("train_cpu_cmd_tiny.json", &file.to_string());
    let told = project.run(&["import", "train_cpu_cmd_tiny.json"]);
    let told = told.ends_with(0).stdout;
    (project, told)
}

/// What `show` says of one import, with what the summary of all says of it.
fn shown(project: &Project, cell: &str, number: usize) -> (String, Value) {
    let one = project.run(&["show", &format!("{cell}#{number}")]);
    let all = project.run(&["show", cell, "--json"]).ends_with(0).json();
    (one.ends_with(0).stdout, all["repeats"][number - 1].clone())
}

#[test]
fn a_run_that_does_not_count_says_so_beside_its_figure() {
    let mut file = published();
    file["repeats"][1]["status"] = "suspect".into();
    file["repeats"][1]["reason"] = "another process used the GPU".into();
    let (project, told) = imported(&file);
    let second = told.lines().find(|line| line.contains("#2 ")).unwrap();
    assert!(
        second.contains("does not count: another process used the GPU")
            && !second.contains("tokens/s"),
        "{told}"
    );
    let (said, repeat) = shown(&project, CELL, 2);
    let marked = "# repeat 2 is not counted: another process used the GPU";
    assert!(said.contains(marked), "{said}");
    assert_eq!(repeat["status"]["status"], "suspect", "{repeat}");
    let (said, _) = shown(&project, CELL, 1);
    assert!(!said.contains("not counted"), "{said}");
    let all = project
        .run(&["show", "--attempts", CELL])
        .ends_with(0)
        .stdout;
    assert!(
        all.contains("does not count: another process used the GPU"),
        "{all}"
    );
}

/// Twelve steps, each of a time and a loss of its own.
fn log_of_twelve() -> String {
    let effective = json!({"seq_length": 16, "global_batch_size": 2, "num_gpus": 1});
    let mut log = json!({"event": "start", "schema": "tprimat.events/1", "trainer": "stub",
        "effective": effective})
    .to_string();
    for step in 1..=12 {
        let time = 0.25 + 0.001 * f64::from(step * step % 7);
        let line = json!({"event": "step", "step": step, "step_time_seconds": time,
            "loss": 5.0 - 0.1 * f64::from(step), "tokens": 32});
        log += &format!("\n{line}");
    }
    log + "\n{\"event\":\"end\",\"status\":\"ok\",\"steps\":12}\n"
}

#[test]
fn of_two_imports_of_one_run_the_one_that_says_more_stands() {
    // An excerpt counts in a cell that no matrix has. In a cell of the matrix it contradicts the job.
    for cell in ["cpu/cmd/tiny/other", CELL] {
        let project = Project::new(ONE_RUN);
        project.edit("config.yaml", "train_iters: 6", "train_iters: 12");
        let log = log_of_twelve();
        let part: Vec<&str> = log.lines().take(9).collect();
        project.write("part.log", &(part.join("\n") + "\n"));
        project.write("whole.log", &log);
        for log in ["part.log", "whole.log"] {
            project.run(&["import", cell, "--log", log]).ends_with(0);
        }
        for (number, counts) in [(2, true), (1, false)] {
            let (said, repeat) = shown(&project, cell, number);
            assert_eq!(said.contains("measured steps"), counts, "{cell}: {said}");
            let status = &repeat["status"]["status"];
            assert_eq!(status == "ok", counts, "{cell}: {repeat}");
        }
    }
}

#[test]
fn a_part_of_a_run_that_failed_gives_it_no_figure() {
    let cell = "cpu/cmd/tiny/other";
    let project = Project::new(ONE_RUN);
    let log = log_of_twelve();
    let steps: Vec<&str> = log.lines().take(13).collect();
    let failure = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.";
    let write = |name: &str, lines: &[&str], end: &str| {
        project.write(name, &format!("{}\n{end}\n", lines.join("\n")));
    };
    write("launcher.log", &steps, failure);
    write("rank.log", &steps, "");
    write("part.log", &steps[..9], "");
    for log in ["rank.log", "part.log", "launcher.log"] {
        project.run(&["import", cell, "--log", log]).ends_with(0);
    }
    let shown = project.run(&["show", cell, "--json"]).ends_with(0).json();
    assert_eq!(shown["n"], 0, "{shown:#}");
}

#[test]
fn a_run_that_was_imported_twice_has_no_rate_of_its_own() {
    let cell = "cpu/cmd/tiny/other";
    let project = Project::new(ONE_RUN);
    let log = log_of_twelve();
    project.write("a.log", &log);
    project.write("b.log", &format!("launched\n{log}"));
    for log in ["a.log", "b.log"] {
        project.run(&["import", cell, "--log", log]).ends_with(0);
    }
    let (said, repeat) = shown(&project, cell, 2);
    assert!(
        said.contains("# repeat 2 is not counted: it is the same run as repeat 1"),
        "{said}"
    );
    assert_eq!(repeat["steady"], Value::Null, "{repeat}");
    let (said, repeat) = shown(&project, cell, 1);
    assert!(said.contains("measured steps"), "{said}");
    assert!(repeat["steady"].is_object(), "{repeat}");
}

#[test]
fn a_host_that_no_file_names_is_not_another_host() {
    let mut file = published();
    for (repeat, host) in ["node-a", "", ""].into_iter().enumerate() {
        file["repeats"][repeat]["host"] = host.into();
    }
    let (project, _) = imported(&file);
    let shown = project.run(&["show", CELL, "--json"]).ends_with(0).json();
    let speed = &shown["tokens_per_second_per_gpu"];
    assert_eq!((&shown["n"], &speed["unit"]), (&json!(3), &json!("repeat")));
    // Nor is it a change of the host.
    for (then, now, is_change) in [("", "node-a", false), ("node-b", "node-a", true)] {
        let project = Project::new(ONE_RUN);
        for (name, host, days) in [("then", then, 0.0), ("now", now, 3.0)] {
            let mut file = file.clone();
            for repeat in file["repeats"].as_array_mut().unwrap() {
                repeat["host"] = host.into();
                for at in ["started_at", "ended_at"] {
                    repeat[at] = json!(repeat[at].as_f64().unwrap() + days * DAY);
                }
                for time in repeat["step_times"].as_array_mut().unwrap() {
                    *time = json!(time.as_f64().unwrap() * (1.0 + days / 100.0));
                }
            }
            file["step_times"] = file["repeats"][0]["step_times"].clone();
            let name = format!("{name}.json");
            project.write(&name, &file.to_string());
            project.run(&["import", &name]).ends_with(0);
        }
        let history = project
            .run(&["history", CELL, "--json"])
            .ends_with(0)
            .json();
        let changes = history["cells"][0]["measurements"][1]["since"]["changes"].to_string();
        assert_eq!(changes.contains("\"host\""), is_change, "{history:#}");
        assert!(!history.to_string().contains("not stated"), "{history:#}");
    }
}

#[test]
fn a_log_without_steps_that_tells_of_no_failure_is_not_called_failed() {
    let cell = "cpu/cmd/tiny/other";
    let project = Project::new(ONE_RUN);
    let start = log_of_twelve().lines().next().unwrap().to_owned();
    project.write(
        "ended.log",
        &format!("{start}\n[launcher] torchrun finished successfully (code 0)\n"),
    );
    project.write("failed.log", &format!("{start}\nCUDA out of memory\n"));
    let import = |log: &str| {
        project
            .run(&["import", cell, "--log", log])
            .ends_with(0)
            .stdout
    };
    let said = import("ended.log");
    assert!(
        said.contains("no rate: no training step is in it") && !said.contains("failed"),
        "{said}"
    );
    let said = import("failed.log");
    assert!(said.contains("failed (oom)"), "{said}");
}

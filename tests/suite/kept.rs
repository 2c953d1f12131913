//! What was measured or published stays until somebody removes it, and can be looked at until then.

use std::fs;

use crate::support::{ONE_RUN, Project, until};

const CELL: &str = "cpu/cmd/tiny/single";

fn built() -> Project {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    project
}

fn bytes_of(project: &Project, folder: &str) -> Vec<(String, Vec<u8>)> {
    let files = project
        .names_in(folder)
        .into_iter()
        .filter(|name| project.path(folder).join(name).is_file());
    files
        .map(|name| {
            (
                name.clone(),
                fs::read(project.path(folder).join(name)).unwrap(),
            )
        })
        .collect()
}

/// A table wide enough for every word to stay on one line.
fn wide(project: &Project, arguments: &[&str]) -> String {
    let ran: crate::support::Ran = project
        .tprimat(arguments)
        .env("COLUMNS", "500")
        .output()
        .unwrap()
        .into();
    ran.ends_with(0).stdout
}

#[test]
fn a_command_without_figures_replaces_and_removes_nothing() {
    let project = built();
    let published = bytes_of(&project, "output");
    assert!(
        published.iter().any(|(name, _)| name == "compare.png")
            && published.iter().any(|(name, _)| name.starts_with("train_"))
    );
    // Everything is stale now, and nothing may be trained.
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    let ran = project.run(&["build", "--cached-only"]).ends_with(0);
    assert!(
        ran.stderr.contains(
            "nothing was published, since no cell has figures now; output stays as it was"
        ),
        "{ran:?}"
    );
    assert_eq!(bytes_of(&project, "output"), published);
    let again = project
        .run(&["build", "--cached-only", "--json"])
        .ends_with(0);
    assert_eq!(again.json()["ran"], 0, "{again:?}");
    project.run(&["build"]).ends_with(0);
    assert_ne!(bytes_of(&project, "output"), published);
}

/// The figures that stay are not those of the last build, and every file for people says so.
#[test]
fn figures_that_a_refused_build_leaves_are_marked() {
    let project = built();
    let before = project.read("output/compare.txt");
    let trainer = project.read("trainer.sh");
    project.write("trainer.sh", "echo 'ValueError: no <heads>'; exit 1\n");
    for _ in 0..2 {
        let ran = project.run(&["build"]).ends_with(1).stderr;
        assert!(ran.contains("marked as outdated"), "{ran}");
    }
    for name in ["compare.txt", "compare.md", "report.html", "OUTDATED.txt"] {
        let text = project.read(&format!("output/{name}"));
        assert_eq!(text.matches("OUTDATED: ").count(), 1, "{name}");
        assert!(text.contains("ValueError: no "), "{name}");
    }
    assert!(
        project
            .read("output/report.html")
            .contains("no &lt;heads&gt;")
    );
    assert!(project.read("output/compare.txt").ends_with(&before));
    // Figures again: nothing of the mark is left.
    project.write("trainer.sh", &trainer);
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.read("output/compare.txt"), before);
    assert!(!project.path("output/OUTDATED.txt").exists());
    assert!(!project.read("output/report.html").contains("OUTDATED: "));
}

#[test]
fn a_file_of_somebodys_own_with_a_published_name_is_kept() {
    let project = Project::new(ONE_RUN);
    project.write("output/compare.txt", "my notes\n");
    let told = project.run(&["build"]).ends_with(0).stderr;
    assert!(
        told.contains("compare.txt was not written by tprimat")
            && told.contains("earlier/compare.txt"),
        "{told}"
    );
    assert_eq!(project.read("output/earlier/compare.txt"), "my notes\n");
    // So is what somebody edited of what was published, as often as that happens.
    let table = project.read("output/compare.txt");
    for (number, text) in [(2, "edited\n"), (3, "edited again\n")] {
        project
            .write("output/compare.txt", text)
            .run(&["build"])
            .ends_with(0);
        assert_eq!(
            project.read(&format!("output/earlier-{number}/compare.txt")),
            text
        );
        assert_eq!(project.read("output/compare.txt"), table);
    }
    // What tprimat itself wrote for an earlier configuration gives way, also where its list is
    // lost.
    project.remove("output/.published.json");
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    let told = project.run(&["build"]).ends_with(0).stderr;
    assert!(!told.contains("was not written by tprimat"), "{told}");
    assert!(!project.path("output/earlier-4").exists());
}

/// Two names of one measurement: the strategies `single` and `other` are the same.
fn of_twins() -> Project {
    let project = Project::new(&ONE_RUN.replace("\"single\"", "[\"single\", \"other\"]"));
    let single = "  single: { num_gpus: 1, DP: 1 }\n";
    project.edit(
        "config.yaml",
        single,
        &format!("{single}  other: {{ num_gpus: 1, DP: 1 }}\n"),
    );
    project
}

#[test]
fn a_cell_that_shares_the_measurement_of_another_has_its_past_as_well() {
    let project = of_twins();
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    for cell in [CELL, "cpu/cmd/tiny/other"] {
        let shown = project.run(&["show", cell, "--json"]).ends_with(0).json();
        assert!(
            shown["tokens_per_second_per_gpu"]["value"]
                .as_f64()
                .is_some(),
            "{cell}: {shown}"
        );
        let attempts = project
            .run(&["attempts", cell, "--json"])
            .ends_with(0)
            .json();
        assert_eq!(
            attempts["attempts"].as_array().unwrap().len(),
            1,
            "{cell}: {attempts}"
        );
    }
}

/// Every task of the queue ends in the events, once, whether it ran or not: counts and bars are made of
/// them.
#[test]
fn each_task_of_a_build_is_counted_once_whoever_made_it() {
    let ended = |project: &Project, code: i32| {
        let events = project.run(&["build", "--events", "-"]).ends_with(code);
        let events = events.stdout.lines().filter(|line| line.starts_with('{'));
        let events: Vec<serde_json::Value> = events
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let of = |kind: &str| {
            let all = events.iter().filter(|event| event["event"] == *kind);
            all.cloned().collect::<Vec<_>>()
        };
        let queue = of("build_started")[0]["queue"].clone();
        let mut queue: Vec<String> = serde_json::from_value(queue).unwrap();
        let finished = of("task_finished");
        let name = |event: &serde_json::Value| event["task"].as_str().unwrap().to_owned();
        let mut names: Vec<String> = finished.iter().map(name).collect();
        queue.sort();
        names.sort();
        assert_eq!(names, queue);
        let outcome = |task: &str| {
            let found = finished.iter().find(|event| name(event) == task).unwrap();
            found["outcome"].as_str().unwrap().to_owned()
        };
        [
            outcome("train cpu/cmd/tiny/single#1"),
            outcome("train cpu/cmd/tiny/other#1"),
        ]
    };
    let twins = of_twins();
    assert_eq!(ended(&twins, 0), ["ok", "cached"]);
    assert_eq!(twins.launches(), 1);
    let failing = of_twins();
    failing.write("trainer.sh", "echo 'CUDA out of memory'; exit 1\n");
    assert_eq!(ended(&failing, 1), ["failed", "waiting"]);
}

#[test]
fn twins_without_figures_are_not_said_to_differ_by_noise() {
    let project = of_twins();
    project
        .write("trainer.sh", "exit 1\n")
        .run(&["build"])
        .ends_with(1);
    let compared = project.read("output/compare.json");
    assert!(
        compared.contains(
            "launches the very same bytes as cpu/cmd/tiny/single: one measurement serves both"
        ),
        "{compared}"
    );
    assert!(!compared.contains("is noise"), "{compared}");
}

#[test]
fn two_checkouts_may_publish_into_one_folder_at_once() {
    let projects: Vec<Project> = (0..2).map(|_| Project::new(ONE_RUN)).collect();
    let shared = tempfile::tempdir().unwrap();
    let config = format!(
        "paths:\n  output: {}\n",
        shared.path().join("output").display()
    );
    for project in &projects {
        project.write("config.yaml", &(project.read("config.yaml") + &config));
    }
    for round in 0..8 {
        for project in &projects {
            project.write(
                "trainer.sh",
                &format!("{}# round {round}\n", project.read("trainer.sh")),
            );
        }
        let builds: Vec<_> = projects
            .iter()
            .map(|p| p.tprimat(&["build"]).spawn().unwrap())
            .collect();
        for build in builds {
            crate::support::Ran::from(build.wait_with_output().unwrap()).ends_with(0);
        }
        let names: Vec<String> = fs::read_dir(shared.path().join("output"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(names.iter().any(|name| name == "report.html"), "{names:?}");
        // What the other one wrote is tprimat's as well, and nothing half written stays.
        assert!(
            !names
                .iter()
                .any(|name| name.starts_with("earlier") || name.starts_with(".tmp")),
            "{names:?}"
        );
    }
}

#[test]
fn a_log_that_is_followed_shows_no_secret_of_the_run_and_each_line_once() {
    const SECRET: &str = "hf_5ecret0fThisRun";
    let project = Project::new(ONE_RUN);
    let held = "echo token $HF_TOKEN, key $MY_KEY\nuntil [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in";
    project.edit("trainer.sh", "for step in", held);
    project.edit(
        "config.yaml",
        "num_gpus: 1 }\n",
        "num_gpus: 1, env: { MY_KEY: \"${MY_KEY:-0ther5ecretHere}\" } }\n",
    );
    let mut build = project.tprimat(&["build"]);
    let build = build
        .env("HF_TOKEN", SECRET)
        .env("MY_KEY", "An0ther5ecretOfTheRun")
        .spawn()
        .unwrap();
    until("the trainer starts", || project.launches() == 1);
    // Somebody else's shell, which knows neither.
    let follow = project.tprimat(&["logs", "-f", CELL]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    project.write("go", "");
    build.wait_with_output().unwrap();
    let shown = crate::support::Ran::from(follow.wait_with_output().unwrap())
        .ends_with(0)
        .stdout;
    assert!(
        shown.contains(&format!("token {}, key ", "*".repeat(SECRET.len()))),
        "{shown}"
    );
    assert!(
        !shown.contains("ecretOfTheRun")
            && shown.matches("\"event\":\"step\",\"step\":3,").count() == 1,
        "{shown}"
    );
    assert_eq!(shown, project.run(&["logs", CELL]).ends_with(0).stdout);
}

#[test]
fn a_page_without_figures_gives_way_to_the_next() {
    let project = Project::new(ONE_RUN);
    // The trainer's batches have 32 tokens, so it contradicts every other job.
    for (old, new) in [
        ("seq_length: 16", "seq_length: 32"),
        ("seq_length: 32", "seq_length: 64"),
    ] {
        project.edit("config.yaml", old, new);
        project.run(&["build"]).ends_with(1);
        let tokens = 2 * new.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
        let table = project
            .read("output/compare.txt")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(table.contains(&format!("= {tokens}")), "{table}");
    }
}

#[test]
fn a_cell_without_present_figures_keeps_its_published_file() {
    let project = Project::new(&ONE_RUN.replace("\"tiny\"", "[\"tiny\", \"wide\"]"));
    project.run(&["build"]).ends_with(0);
    let of_wide = project.read("output/train_cpu_cmd_wide.json");
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    project.run(&["build", "--only", CELL]).ends_with(0);
    assert_eq!(project.read("output/train_cpu_cmd_wide.json"), of_wide);
    assert!(
        project
            .read("output/train_cpu_cmd_tiny.json")
            .contains("0.002")
    );
    // A cell that the matrix no longer has is published no longer.
    project.write("matrix.toml", ONE_RUN);
    project.run(&["build"]).ends_with(0);
    assert!(!project.path("output/train_cpu_cmd_wide.json").exists());
}

/// Each would replace the pages of the other.
#[test]
fn two_matrices_of_one_name_are_refused_before_anything_runs() {
    let project = Project::new(ONE_RUN);
    let of = |name: &str| ONE_RUN.replace("\"one\"", &format!("\"{name}\""));
    project
        .write("pipelines/first.toml", &of("a b"))
        .write("pipelines/second.toml", &of("a b"));
    let refused = |matrix: &str| {
        let error = project.run(&["build", matrix]).ends_with(2).stderr;
        error.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let error = refused("first");
    for part in ["pipelines/first.toml", "pipelines/second.toml", "`a b`"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Other names that are written alike as a folder.
    project.write("pipelines/second.toml", &of("a-b"));
    assert!(refused("second").contains("pipelines/first.toml"));
    assert_eq!(project.launches(), 0);
    project.write("pipelines/second.toml", &of("c"));
    project.run(&["build", "first"]).ends_with(0);
    // The default matrix has the output folder itself, whatever it is called.
    project.write("matrix.toml", &of("c"));
    project.run(&["build", "second"]).ends_with(0);
    project.run(&["build"]).ends_with(0);
}

/// Without the list nothing says what tprimat published, so the file stays; but not unsaid.
#[test]
fn results_of_a_dropped_cell_are_named_where_the_list_was_lost() {
    let both = ONE_RUN.replace("\"tiny\"", "[\"tiny\", \"wide\"]");
    let project = Project::new(&both);
    project.run(&["build"]).ends_with(0);
    project.remove("output/.published.json");
    project.write("matrix.toml", ONE_RUN);
    let told = project.run(&["build"]).ends_with(0).stderr;
    assert!(
        told.contains("train_cpu_cmd_wide.json in ") && told.contains("is of an earlier build"),
        "{told}"
    );
    assert!(project.path("output/train_cpu_cmd_wide.json").exists());
}

#[test]
fn matrices_of_a_project_publish_side_by_side() {
    let project = built();
    let published = bytes_of(&project, "output");
    project.write(
        "pipelines/other.toml",
        &ONE_RUN
            .replace("\"one\"", "\"other\"")
            .replace("\"tiny\"", "\"wide\""),
    );
    let built = project.run(&["build", "other"]).ends_with(0);
    assert!(
        built
            .stderr
            .ends_with("results, table and picture: output/other\n"),
        "{built:?}"
    );
    assert_eq!(
        bytes_of(&project, "output"),
        published,
        "the default matrix's pages stay"
    );
    assert!(
        project
            .read("output/other/compare.txt")
            .contains("cpu/cmd/wide/single")
    );
    // Nor does a report that is sent there.
    for arguments in [
        &["report", "-o", "output/other"][..],
        &["report", "other", "-o", "output"],
    ] {
        let refused = project.run(arguments).ends_with(2);
        assert!(
            refused
                .stderr
                .contains("holds what was published of the matrix"),
            "{refused:?}"
        );
    }
    // A matrix that got another name takes the files of its old one with it.
    project
        .edit("matrix.toml", "name = \"one\"", "name = \"two\"")
        .edit("matrix.toml", "\"tiny\"", "\"wide\"");
    project.run(&["build"]).ends_with(0);
    assert!(
        !project.path("output/train_cpu_cmd_tiny.json").exists()
            && project.path("output/train_cpu_cmd_wide.json").exists()
    );
}

#[test]
fn cells_whose_names_are_written_alike_have_files_of_their_own() {
    let models = r#"["tiny", "a;b", "a-b"]"#;
    let project = Project::new(&ONE_RUN.replace("\"tiny\"", models));
    project.edit(
        "config.yaml",
        "  wide: {",
        "  \"a;b\": { <<: *tiny, ffn_hidden_size: 24 }\n  a-b: { <<: *tiny, ffn_hidden_size: 40 }\n  wide: {",
    );
    let built = project.run(&["build"]);
    if built.code == Some(2) {
        // A name that needs no file of its own is refused before.
        assert!(built.stderr.contains("a;b"), "{built:?}");
        return;
    }
    let files = project
        .names_in("output")
        .into_iter()
        .filter(|name| name.starts_with("train_"))
        .count();
    assert_eq!(files, 3);
}

#[test]
fn clean_removes_what_was_published_and_nothing_else() {
    let project = built();
    project
        .write("output/compare.xlsx", "mine")
        .write("output/train_mine.json", "mine")
        .write("output/compare.md", "my words");
    let cleaned = project.run(&["clean"]).ends_with(0);
    assert!(
        cleaned
            .stderr
            .contains("output/compare.md: it was changed after tprimat published it"),
        "{cleaned:?}"
    );
    assert_eq!(
        project.names_in("output"),
        ["compare.md", "compare.xlsx", "train_mine.json"]
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1, "measurements are kept");
    // A list that came with a repository names nothing outside of its folder.
    project.write("victim", "").write(
        "output/.published.json",
        &format!(
            r#"{{"m":{{"../victim":"{0}","{1}":"{0}"}}}}"#,
            blake3::hash(b""),
            project.path("victim").display()
        ),
    );
    project.run(&["clean"]).ends_with(0);
    project.run(&["build"]).ends_with(0);
    assert!(project.path("victim").exists());
}

#[test]
fn clean_removes_only_a_cache() {
    let project = built();
    project.write("precious/objects/thesis.tex", "years").write(
        "precious/CACHEDIR.TAG",
        "Signature: 8a477f597d28d172789f06886806bc55\n",
    );
    let config = project.read("config.yaml");
    project.write(
        "config.yaml",
        &format!("{config}paths: {{ cache: precious }}\n"),
    );
    let refused = project.run(&["clean", "--cache", "--yes"]).ends_with(2);
    assert!(
        refused.stderr.contains("is not a cache of tprimat"),
        "{refused:?}"
    );
    assert!(
        project.path("precious/objects/thesis.tex").exists()
            && project.path("output/compare.txt").exists()
    );
    project.write("config.yaml", &config);
    let cleaned = project.run(&["clean", "--cache", "--yes"]).ends_with(0);
    assert!(
        cleaned.stderr.contains("removed 1 run from "),
        "{cleaned:?}"
    );
    assert!(!project.path("cache/objects").exists());
}

#[test]
fn clean_is_refused_while_a_build_runs() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    until("the trainer starts", || project.launches() == 1);
    for arguments in [&["clean"][..], &["clean", "--cache", "--yes"]] {
        let refused = project.run(arguments).ends_with(2);
        assert!(
            refused.stderr.contains("a build is using the cache"),
            "{refused:?}"
        );
    }
    project.write("go", "");
    assert!(build.wait().unwrap().success());
    project.run(&["clean", "--cache", "--yes"]).ends_with(0);
    assert!(
        !project.path("cache/objects").exists() && !project.path("output/compare.txt").exists()
    );
}

/// Six steps, two repeats; a run waits for `go` where the project has `wait`.
fn two_repeats() -> Project {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 2"));
    let wait = "while [[ -e $TPRIMAT_PROJECT_DIR/wait && ! -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in";
    project.edit("trainer.sh", "for step in", wait);
    project
}

#[test]
fn repeats_that_are_there_are_shown_before_the_others_are_measured() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    for command in ["compare", "report"] {
        let ran = project.run(&[command, "--repeats", "3"]).ends_with(0);
        assert!(!ran.stdout.contains("No cell has figures"), "{ran:?}");
    }
    let table = wide(&project, &["compare", "--details", "--repeats", "3"]);
    assert!(
        table.contains("2/3, 1 still to be measured")
            && table.contains("2 of 3 repeats measured so far"),
        "{table}"
    );
    assert!(
        project
            .read("output/compare.md")
            .contains("2 of 3 repeats measured so far")
    );
    let shown = project
        .run(&["show", CELL, "--repeats", "3", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        (&shown["n"], &shown["standing"]["to_come"]),
        (&2.into(), &1.into())
    );
    // Fewer than were measured are all there, although nobody has summed them up: also for a gate.
    project.run(&["build", "--repeats", "4"]).ends_with(0);
    let table = wide(&project, &["compare", "--details", "--repeats", "3"]);
    assert!(
        table.contains("3/3") && !table.contains("still to be"),
        "{table}"
    );
    project
        .run(&["baseline", "--repeats", "3", "-o", "baseline.json"])
        .ends_with(0);
    project
        .run(&["gate", "--repeats", "3", "--baseline", "baseline.json"])
        .ends_with(0);
    assert_eq!(project.launches(), 4);
}

#[test]
fn what_was_measured_before_an_edit_is_shown_as_just_that() {
    let project = Project::new(
        &ONE_RUN
            .replace("\"tiny\"", "[\"tiny\", \"wide\"]")
            .replace("repeats = 1", "repeats = 2"),
    );
    project.run(&["build"]).ends_with(0);
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    const WHY: &str = "measured before learning_rate changed from 0.001 to 0.002";
    let shown = project.run(&["show", CELL]).ends_with(0).stdout;
    assert!(shown.contains(WHY), "{shown}");
    let json = project.run(&["show", CELL, "--json"]).ends_with(0).json();
    assert_eq!(
        (&json["n"], &json["standing"]["earlier"]),
        (&2.into(), &WHY.into())
    );
    assert!(
        project
            .run(&["show", "cpu/cmd/tiny/single#2"])
            .ends_with(0)
            .stdout
            .starts_with(&format!("# {WHY}\n"))
    );
    // One measured as it is configured now, beside one that is not: the comparison says so wherever
    // its ratio is.
    project.run(&["build", "--only", CELL]).ends_with(0);
    let comparison = project.run(&["compare", "--json"]).ends_with(0).json();
    let speedups = comparison["speedups"].as_array().unwrap();
    assert_eq!(comparison["rows"].as_array().unwrap().len(), 2);
    for speedup in speedups {
        assert!(
            speedup["labels"][0].as_str().unwrap().contains(WHY),
            "{speedup}"
        );
    }
    // A gate decides by present figures alone.
    let baseline = project.run(&["baseline", "--json"]);
    assert!(
        baseline.stdout.contains("cpu/cmd/tiny/single")
            && !baseline.stdout.contains("cpu/cmd/wide/single\""),
        "{baseline:?}"
    );
    // Back as it was: nothing is to be measured, and nothing is marked.
    project.edit(
        "config.yaml",
        "learning_rate: 2.0e-3",
        "learning_rate: 1.0e-3",
    );
    assert!(
        !project
            .run(&["compare", "--details"])
            .ends_with(0)
            .stdout
            .contains("measured before")
    );
    assert_eq!(project.launches(), 6);
}

#[test]
fn an_interrupted_build_hides_nothing() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    project.run(&["build", "--repeats", "1"]).ends_with(0);
    project.write("wait", "");
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    until("the second repeat starts", || project.launches() == 4);
    interrupt(&build);
    assert_eq!(build.wait().unwrap().code(), Some(130));
    let table = wide(&project, &["compare", "--details"]);
    assert!(table.contains("1/2, 1 still to be measured"), "{table}");
    // The configuration before that is in the list of attempts.
    let attempts = project
        .run(&["attempts", CELL, "--json"])
        .ends_with(0)
        .json();
    let verdicts: Vec<&str> = attempts["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["verdict"].as_str().unwrap())
        .collect();
    let earlier = "measured before learning_rate changed from 0.001 to 0.002";
    assert_eq!(verdicts[..3], [earlier, earlier, "counts"]);
    assert!(verdicts[3].starts_with("failed (killed"), "{verdicts:?}");
}

fn interrupt(child: &std::process::Child) {
    use nix::sys::signal::{Signal, kill};
    kill(
        nix::unistd::Pid::from_raw(child.id() as i32),
        Signal::SIGINT,
    )
    .unwrap();
}

#[test]
fn a_new_measurement_says_that_there_was_an_earlier_one() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    assert!(!project.run(&["compare"]).stdout.contains("measured anew"));
    project.run(&["build", "--remeasure"]).ends_with(0);
    project.run(&["build", "--remeasure"]).ends_with(0);
    let table = wide(&project, &["compare", "--details"]);
    assert!(table.contains("2/2, measured anew"), "{table}");
    assert!(
        table.contains("repeats 1, 2 were measured again on request (--remeasure)")
            && table.contains("the 4 earlier results do not count"),
        "{table}"
    );
    assert!(project.read("output/compare.csv").contains("measured anew"));
    // It is the same state to whoever plans, builds or reads.
    assert_eq!(
        project.run(&["build", "--json"]).ends_with(0).json()["ran"],
        0
    );
    assert_eq!(project.launches(), 6);
    let attempts = project.run(&["attempts", CELL]).ends_with(0).stdout;
    assert_eq!(
        attempts
            .matches("does not count: replaced on request by a later run")
            .count(),
        4,
        "{attempts}"
    );
    assert_eq!(
        attempts
            .lines()
            .filter(|line| line.ends_with("  counts"))
            .count(),
        2,
        "{attempts}"
    );
}

#[test]
fn a_measurement_is_set_aside_for_a_reason_and_comes_back() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    let attempts =
        |of: &str| project.run(&["attempts", of, "--json"]).ends_with(0).json()["attempts"].clone();
    let id = attempts("cpu/cmd/tiny/single#2")[0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    project
        .run(&["attempts", "set-aside", &id, "--reason", "  "])
        .ends_with(2);
    project
        .run(&["attempts", "set-aside", "2999", "--reason", "x"])
        .ends_with(4);
    project
        .run(&[
            "attempts",
            "set-aside",
            &id,
            "--reason",
            "somebody compiled beside it",
        ])
        .ends_with(0);
    let plan = project.run(&["plan"]).stdout;
    assert!(
        plan.contains("the measurement was set aside (somebody compiled beside it)"),
        "{plan}"
    );
    let table = wide(&project, &["compare", "--details"]);
    assert!(
        table.contains("1/2, 1 still to be measured, 1 set aside"),
        "{table}"
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 3);
    let table = wide(&project, &["compare", "--details"]);
    assert!(
        table.contains("2/2, 1 set aside")
            && table.contains("set aside by hand: somebody compiled beside it"),
        "{table}"
    );
    // A gate rests on the same figures: it says so of them now, and its baseline says so ever
    // after.
    project
        .run(&["baseline", "-o", "baseline.json"])
        .ends_with(0);
    let gate = || {
        project
            .run(&[
                "gate",
                "--baseline",
                "baseline.json",
                "--max-regression",
                "3%",
            ])
            .stdout
    };
    let told = gate();
    for when in ["now", "in the baseline"] {
        assert!(
            told.contains(&format!(
                "measurements that do not count ({when}: 1 set aside)"
            )),
            "{told}"
        );
    }
    assert_eq!(project.run(&["build", "--json"]).json()["ran"], 0);
    // Its log is there to be read.
    let log = project.run(&["logs", "--attempt", &id]).ends_with(0).stdout;
    assert!(log.contains("\"event\":\"end\""), "{log}");
    // As it was before: the first one counts, the later one is listed, and nothing is measured.
    project.run(&["attempts", "restore", &id]).ends_with(0);
    let of_second = attempts("cpu/cmd/tiny/single#2");
    assert_eq!(
        (&of_second[0]["counts"], &of_second[1]["counts"]),
        (&true.into(), &false.into())
    );
    assert!(!project.run(&["compare"]).stdout.contains("set aside"));
    let told = gate();
    assert!(
        !told.contains("(now: 1 set aside)") && told.contains("(in the baseline: 1 set aside)"),
        "{told}"
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 3);
    project.run(&["attempts", "restore", &id]).ends_with(1);
}

/// Also a cell of a matrix that is not the default one.
#[test]
fn a_run_of_another_matrix_is_set_aside_by_its_cell() {
    let project = two_repeats();
    project.write(
        "pipelines/other.toml",
        &project.read("matrix.toml").replace("\"one\"", "\"other\""),
    );
    project.write(
        "matrix.toml",
        &project.read("matrix.toml").replace("\"tiny\"", "\"large\""),
    );
    project.run(&["build", "other"]).ends_with(0);
    let named = [
        "attempts",
        "set-aside",
        "cpu/cmd/tiny/single#2",
        "other",
        "--reason",
        "the fan stood still",
    ];
    project.run(&named).ends_with(0);
    assert!(
        project
            .run(&["plan", "other"])
            .ends_with(0)
            .stdout
            .contains("the fan stood still")
    );
    project
        .run(&["attempts", "restore", "cpu/cmd/tiny/single#2", "other"])
        .ends_with(0);
}

#[test]
fn a_waiting_build_takes_what_a_dead_one_had_finished() {
    use nix::sys::signal::{Signal, kill};
    let project = Project::new(ONE_RUN);
    project.write("wait", "").edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut first = project.tprimat(&["build"]).spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(first.id() as i32);
    until("the trainer starts", || project.launches() == 1);
    let second = project
        .tprimat(&["build", "--events", "events.jsonl"])
        .spawn()
        .unwrap();
    let events = || fs::read_to_string(project.path("events.jsonl")).unwrap_or_default();
    until("the second build waits", || {
        events().contains("task_waiting")
    });
    kill(pid, Signal::SIGSTOP).unwrap();
    project.write("go", "");
    let runs = || {
        project
            .names_in("cache/runs")
            .into_iter()
            .filter(|name| !name.starts_with('.'))
    };
    until("the run is over", || {
        runs().any(|run| {
            project
                .path(&format!("cache/runs/{run}/exit.json"))
                .exists()
        })
    });
    kill(pid, Signal::SIGKILL).unwrap();
    first.wait().unwrap();
    let ended: crate::support::Ran = second.wait_with_output().unwrap().into();
    assert!(
        ended
            .ends_with(0)
            .stderr
            .contains("took in a run that an earlier build left")
    );
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_plan_names_the_run_that_a_build_would_take_in() {
    use nix::sys::signal::{Signal, kill};
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(build.id() as i32);
    until("the trainer starts", || project.launches() == 1);
    kill(pid, Signal::SIGSTOP).unwrap();
    project.write("go", "");
    let runs = || {
        project
            .names_in("cache/runs")
            .into_iter()
            .filter(|name| !name.starts_with('.'))
    };
    until("the run is over", || {
        runs().any(|run| {
            project
                .path(&format!("cache/runs/{run}/exit.json"))
                .exists()
        })
    });
    kill(pid, Signal::SIGKILL).unwrap();
    build.wait().unwrap();
    until("the supervisor is gone", || project.processes().is_empty());
    let plan = project.run(&["plan"]).stdout;
    assert!(plan.contains("`tprimat build` takes it in"), "{plan}");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
}

#[test]
fn following_a_log_ends_when_everybody_who_wrote_it_is_dead() {
    use nix::sys::signal::{Signal, kill};
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    until("the trainer starts", || project.launches() == 1);
    // Under other settings it is not this run that goes on.
    let other = project
        .run(&["logs", "-f", CELL, "--set", "training.seed=7"])
        .ends_with(1);
    assert!(
        other.stderr.contains("as it is configured now"),
        "{other:?}"
    );
    let mut follow = project.command("timeout");
    follow.args(["20", crate::support::TPRIMAT, "logs", "-f", CELL]);
    let follow = follow.spawn().unwrap();
    let supervisor = project
        .processes()
        .into_iter()
        .find(|(_, command)| command.contains("__supervise"))
        .unwrap()
        .0;
    for pid in [build.id() as i32, supervisor] {
        kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
    build.wait().unwrap();
    let ended = follow.wait_with_output().unwrap();
    assert_ne!(ended.status.code(), Some(124), "it never ended");
    project.write("go", "");
    project.run(&["build"]).ends_with(0);
}

#[test]
fn a_command_that_was_not_found_is_tried_again() {
    use std::os::unix::fs::PermissionsExt;
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "PATH=\"$TPRIMAT_PROJECT_DIR/bin:$PATH\" benchmark-launcher || exit 127\nfor step in",
    );
    let failed = project.run(&["build"]).ends_with(1);
    assert!(failed.stderr.contains("launch"), "{failed:?}");
    project.write("bin/benchmark-launcher", "#!/bin/sh\n");
    fs::set_permissions(
        project.path("bin/benchmark-launcher"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
}

#[test]
fn the_last_failure_is_the_one_recorded_last_whatever_the_clocks_say() {
    use tprimat::job::RunOutcome;
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\nfor step in",
    );
    project.run(&["build"]).ends_with(1);
    let key = project.run(&["plan", "--json"]).json()["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|task| task["kind"] == "train")
        .unwrap()["key"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    // A passing failure of a host whose clock is days ahead, recorded before; its id sorts last.
    let lasting = project.cache().attempts(&key).remove(0);
    let passing = RunOutcome::Failed {
        class: tprimat::job::FailureClass::Killed,
        evidence: vec![],
        status: "signal 9".into(),
    };
    fs::remove_dir_all(project.path("cache/segments")).unwrap();
    let _ = fs::remove_file(project.path("cache/snapshot"));
    let cache = project.cache();
    cache
        .record_attempt(&tprimat::cache::Attempt {
            id: "29991231T000000.000000Z-0".into(),
            outcome: passing,
            ..lasting.clone()
        })
        .unwrap();
    cache.record_attempt(&lasting).unwrap();
    drop(cache);
    project.run(&["build"]).ends_with(1);
    assert_eq!(
        project.launches(),
        1,
        "a failure that would come again is not tried again"
    );
}

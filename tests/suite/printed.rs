//! What commands print and publish, for people and for other programs.

use std::{fs, io::Read};

use crate::cli::TWO_CELLS;
use crate::support::{ONE_RUN, Project, Ran};
use serde_json::Value;

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let project = Project::new(TWO_CELLS);
    for command in [
        "tprimat plan",
        "tprimat print completions bash",
        "tprimat print schema config",
        "tprimat config",
    ] {
        let script = format!("{command} | true; echo ${{PIPESTATUS[0]}}")
            .replace("tprimat", crate::support::TPRIMAT);
        let ran: Ran = project
            .command("bash")
            .args(["-c", &script])
            .output()
            .unwrap()
            .into();
        // It may also have written all before the reader was gone.
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str()),
            ("0\n", ""),
            "{command}"
        );
    }
}

#[test]
fn an_initialised_folder_is_a_project_and_keeps_what_is_there() {
    let project = Project::empty();
    let told = project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0)
        .stderr;
    let recipe = include_str!("../../recipes/tran/recipe.toml");
    let recipe: toml::Value = toml::from_str(recipe).unwrap();
    let modules = recipe["require"]["python_modules"].as_array().unwrap();
    let modules: Vec<&str> = modules.iter().map(|name| name.as_str().unwrap()).collect();
    let install = format!(".venv/bin/pip install {}`\n", modules.join(" "));
    assert!(told.ends_with(&install), "{told}");
    let config = project.read("config.yaml");
    project.run(&["check", "quickstart.toml"]).ends_with(0);
    project.run(&["check", "matrix.toml"]).ends_with(0);
    let plan = project
        .run(&["plan", "quickstart.toml"])
        .ends_with(0)
        .stdout;
    assert!(
        plan.contains("cpu/native/llama-tiny/single  3 runs")
            && plan.contains("cpu/tran/qwen-tiny/single")
    );
    // Every matrix that is shipped, also on a host that cannot run it.
    for matrix in [
        "quickstart.toml",
        "single-gpu.toml",
        "multi-gpu.toml",
        "fit-check.toml",
        "matrix.toml",
    ] {
        for command in [
            &["plan", matrix][..],
            &["plan", matrix, "--json"],
            &["build", matrix, "-n"],
            &["check", matrix],
        ] {
            project.run(command).ends_with(0);
        }
        for command in [
            &["fit", matrix][..],
            &["report", matrix],
            &["compare", matrix],
            &["list", matrix],
            &["print", "graph", matrix],
        ] {
            assert!(
                [Some(0), Some(1)].contains(&project.run(command).code),
                "{command:?}"
            );
        }
    }
    let again = project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0)
        .stderr;
    assert!(
        again.starts_with("kept config.yaml\nkept .gitignore\n"),
        "{again}"
    );
    assert_eq!(project.read("config.yaml"), config);
    assert!(!project.path("cache/runs").exists());
}

#[test]
fn the_small_subcommands_print_what_their_readers_can_read() {
    let project = Project::new(TWO_CELLS);
    for name in [
        "job",
        "events",
        "trace",
        "result",
        "summary",
        "comparison",
        "baseline",
        "gate",
        "config",
    ] {
        assert!(
            project
                .run(&["print", "schema", name])
                .ends_with(0)
                .json()
                .is_object(),
            "{name}"
        );
    }
    assert_eq!(
        project
            .run(&["config", "get", "training.data.seq_length"])
            .ends_with(0)
            .stdout,
        "16\n"
    );
    assert!(
        project
            .run(&["--version"])
            .ends_with(0)
            .stdout
            .starts_with("tprimat ")
    );

    let bash = |script: String| -> Ran {
        project
            .command("bash")
            .args(["-euc", &script])
            .output()
            .unwrap()
            .into()
    };
    let tprimat = crate::support::TPRIMAT;
    bash(format!(
        "{tprimat} print completions bash > c.sh; bash -n c.sh; . ./c.sh; complete -p tprimat"
    ))
    .ends_with(0);
    project.edit(
        "config.yaml",
        "command: [bash, trainer.sh]",
        r#"command: "echo \"it's\" $HOME; exit 3""#,
    );
    let name = "TPRIMAT_FRAMEWORKS_CMD_COMMAND";
    let evaluated = bash(format!(
        "eval \"$({tprimat} config --shell)\"; printf %s \"${name}\""
    ))
    .ends_with(0);
    assert_eq!(evaluated.stdout, r#"echo "it's" $HOME; exit 3"#);

    let graph = project.run(&["print", "graph"]).ends_with(0).stdout;
    let body = graph
        .strip_prefix("digraph tprimat {\n")
        .and_then(|rest| rest.strip_suffix("}\n"))
        .unwrap();
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    for line in body
        .lines()
        .map(|line| line.trim().strip_suffix(';').unwrap())
        .skip(2)
    {
        match line.split_once(" -> ") {
            Some((from, to)) => edges.push((from, to)),
            None => nodes.push(line.split_once(" [label=\"").unwrap().0),
        }
    }
    assert_eq!(nodes.len(), 2 * 4 + 3, "{graph}");
    assert!(
        edges
            .iter()
            .all(|(from, to)| nodes.contains(from) && nodes.contains(to)),
        "{graph}"
    );
}

#[test]
fn the_pages_of_the_documentation_come_with_the_program() {
    let project = Project::empty();
    let help = |topic: &[&str]| {
        let arguments: Vec<&str> = ["help"].iter().chain(topic).copied().collect();
        project.run(&arguments)
    };
    let page = include_str!("../../docs/recipes.md");
    assert_eq!(help(&["recipes"]).ends_with(0).stdout, page);
    assert_eq!(help(&["Recipes.md"]).ends_with(0).stdout, page);
    let listed = help(&[]).ends_with(0).stdout;
    for name in ["METRICS.md", "troubleshooting.md", "MIGRATING.md", "blame"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    let of_push = help(&["cache", "push"]).ends_with(0).stdout;
    assert!(of_push.contains("tprimat cache push"), "{of_push}");
    // A command is stronger than a page.
    assert!(help(&["config"]).stdout.contains("Usage:"));
    let unknown = help(&["recipies"]).ends_with(2).stderr;
    assert!(unknown.contains("did you mean `recipes`?"), "{unknown}");
}

#[test]
fn a_comparison_is_printed_and_published_in_every_format() {
    let project = Project::new(TWO_CELLS);
    project.run(&["build"]).ends_with(0);
    let printed = |arguments: &[&str]| {
        project
            .run(&[&["compare"], arguments].concat())
            .ends_with(0)
            .stdout
    };
    for (format, file) in [("markdown", "compare.md"), ("csv", "compare.csv")] {
        assert_eq!(
            printed(&["--format", format]),
            project.read(&format!("output/{file}")),
            "{format}"
        );
    }
    let table = printed(&["--format", "table"]);
    // But for the command for every figure, which is the one that was typed.
    let figures = |text: &str| {
        text.lines()
            .filter(|line| !line.contains("--details"))
            .collect::<String>()
    };
    assert!(
        figures(&table) == figures(&printed(&[])) && !table.contains('\u{1b}'),
        "no colour without a terminal: {table}"
    );
    assert_eq!(printed(&["--format", "json"]), printed(&["--json"]));
    let cells = project.read("output/compare.csv").lines().count();
    let runs = project.read("output/compare_repeats.csv").lines().count();
    assert_eq!((cells, runs), (3, 3));
    project
        .run(&["compare", "--json", "--format", "csv"])
        .ends_with(2);
    let shown = project
        .run(&["show", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    assert!(
        shown.starts_with("cpu/cmd/tiny/single\n") && shown.contains("\nRepeats:\n"),
        "{shown}"
    );
}

#[test]
fn any_cells_of_a_matrix_are_compared() {
    let project = Project::new(&TWO_CELLS.replace("\"single\"", "[\"single\", \"other\"]"));
    let single = "  single: { num_gpus: 1, DP: 1 }\n";
    project.edit(
        "config.yaml",
        single,
        &format!("{single}{}", single.replace("single", "other")),
    );
    project.run(&["build"]).ends_with(0);
    let compared = |arguments: &[&str]| -> Vec<String> {
        let comparison = project
            .run(&[&["compare", "--json"], arguments].concat())
            .json();
        let rows = comparison["rows"]
            .as_array()
            .unwrap_or_else(|| panic!("{arguments:?}: {comparison}"))
            .iter();
        rows.map(|row| {
            row["cell"]
                .as_str()
                .unwrap()
                .trim_start_matches("cpu/cmd/")
                .to_owned()
        })
        .collect()
    };
    let named = [
        "cpu/cmd/tiny/single",
        "cpu/cmd/wide/single",
        "cpu/cmd/wide/other",
    ];
    assert_eq!(
        compared(&named),
        ["tiny/single", "wide/single", "wide/other"]
    );
    let tiny = ["tiny/single", "tiny/other"];
    for arguments in [
        &["cpu/*/tiny"][..],
        &["matrix.toml", "cpu/*/tiny"],
        &["cpu/cmd/tiny/single", "cpu/cmd/tiny/other"],
        &["--only", "cpu/cmd/tiny"],
        &["--where", "model=tiny"],
        &["--only", "cpu/cmd", "--skip", "*/*/wide"],
    ] {
        assert_eq!(compared(arguments), tiny, "{arguments:?}");
    }
    assert_eq!(compared(&[]).len(), 4);
    // What is left is said to be a part, also by the command for the details.
    let glance = project
        .run(&["compare", "--where", "model=tiny"])
        .ends_with(0)
        .stdout;
    assert!(
        glance.contains("`tprimat compare --where ") && glance.contains(" --details`"),
        "{glance}"
    );
    assert!(
        glance.contains("cells: cpu/cmd/tiny/single, cpu/cmd/tiny/other"),
        "{glance}"
    );
    for (arguments, code) in [
        (&["cpu/cmd/tiny/single"][..], 2),
        (&["cpu/cmd/tiny", "--only", "cpu"], 2),
        (&["cpu/cmd/tiny/single", "cpu/cmd/tiny/single"], 2),
        (&["cpu/cmd/tini"], 4),
        (&["--where", "framework=cdm"], 4),
    ] {
        project
            .run(&[&["compare"], arguments].concat())
            .ends_with(code);
    }
    // A page of a part never lands where builds publish the whole.
    project
        .run(&["report", "--only", "cpu/cmd/tiny"])
        .ends_with(2);
    project
        .run(&["report", "--only", "cpu/cmd/tiny", "-o", "part.html"])
        .ends_with(0);
    assert!(!project.read("part.html").contains("cpu/cmd/wide"));
}

#[test]
fn events_on_stdout_are_one_json_value_a_line() {
    let project = Project::new(ONE_RUN);
    let mut child = project
        .tprimat(&["build", "--events", "-"])
        .spawn()
        .unwrap();
    let mut events = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut events)
        .unwrap();
    assert!(child.wait().unwrap().success());
    let events: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(events.len() > 10, "{events:?}");
}

#[test]
fn a_report_is_the_same_with_and_without_a_build_and_runs_nothing() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let page = project.read("output/report.html");
    assert!(page.contains("cpu/cmd/tiny/single") && page.contains("<svg"));
    project.run(&["report", "-o", "page.html"]).ends_with(0);
    assert_eq!(project.read("page.html"), page);
    fs::remove_dir_all(project.path("output")).unwrap();
    let shown = project.run(&["report", "--json"]).ends_with(0).json();
    assert_eq!(
        (&shown["cells"], &shown["comparable"]),
        (&Value::from(1), &Value::from(true))
    );
    assert_eq!(project.read("output/report.html"), page);
    // As a build would have published it.
    assert!(
        project
            .run(&["build"])
            .ends_with(0)
            .stderr
            .contains("nothing to do")
    );
    for (option, value, code) in [
        ("--across", "seq_lenght", 2),
        ("--baseline", "cpu/cmd/tiny/none", 4),
    ] {
        project
            .run(&["report", option, value, "-o", "wrong.html"])
            .ends_with(code);
    }
    assert!(!project.path("wrong.html").exists());
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_repeat_is_one_screen() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let shown = project
        .run(&["show", "cpu/cmd/tiny/single#1"])
        .ends_with(0)
        .stdout;
    assert!(shown.lines().count() < 60, "{shown}");
    for words in [
        "attested: seq_length 16, ",
        "not_stated: 'architecture llama, ",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

/// A table that nobody got is no success.
#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let project = Project::new(ONE_RUN);
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut child = project
        .tprimat(&["build"])
        .stdout(full)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("cannot write to stdout"), "{said}");
}

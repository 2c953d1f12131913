//! `compare` and `history` as they stand beside a build: one measurement has one rate, and a
//! command that a sentence names shows what the sentence is about.

use serde_json::Value;

use crate::support::{
    ONE_RUN, Project, Ran,
    tasks::{LARGE, SMALL},
};

/// The command in the last line of a summary: `Every figure and note: `…``.
fn hint(ran: &Ran) -> Vec<String> {
    let said = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, command) = said
        .rsplit_once("figure and note: `")
        .unwrap_or_else(|| panic!("{said}"));
    shlex::split(command.trim_end_matches('`'))
        .unwrap()
        .split_off(1)
}

fn rate_of_compare(project: &Project, variables: &[(&str, &str)]) -> f64 {
    let ran: Ran = project
        .tprimat(&["compare", "--json"])
        .envs(variables.iter().copied())
        .output()
        .unwrap()
        .into();
    let rows = ran.ends_with(0).json()["rows"].clone();
    let row = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["cell"] == SMALL)
        .cloned();
    row.unwrap_or_else(|| panic!("{rows}"))["tokens_per_second_per_gpu"]["value"]
        .as_f64()
        .unwrap()
}

fn rates_of_history(project: &Project, variables: &[(&str, &str)]) -> Vec<Option<f64>> {
    let ran: Ran = project
        .tprimat(&["history", SMALL, "--json"])
        .envs(variables.iter().copied())
        .output()
        .unwrap()
        .into();
    let measurements = ran.ends_with(0).json()["cells"][0]["measurements"].clone();
    measurements
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["tokens_per_second_per_gpu"]["value"].as_f64())
        .collect()
}

#[test]
fn a_measurement_has_one_rate_whatever_its_warm_up() {
    // Each step takes another time, so each warm-up gives another rate.
    let project = Project::of_two();
    project.edit("config.yaml", "skip_steps: 1", "skip_steps: 3");
    let matrix = project.read("matrix.toml");
    let with_more = format!(
        "{matrix}\n[[override]]\nwhere = {{ model = \"small\" }}\nset = {{ benchmarking.warmup.skip_steps = 2 }}\n"
    );
    project.write("matrix.toml", &with_more);
    project.run(&["build"]).ends_with(0);
    let built = rate_of_compare(&project, &[]);
    assert_eq!(
        rates_of_history(&project, &[]),
        [Some(built)],
        "the matrix' own warm-up counts"
    );
    // Edited, and not built: what the cell has now is judged by what it says now.
    project.write("matrix.toml", &matrix);
    let edited = rate_of_compare(&project, &[]);
    assert_ne!(edited, built);
    assert_eq!(rates_of_history(&project, &[]), [Some(edited)]);
    // A try-out is judged by its own warm-up, then and later.
    let try_out = [("TRAIN_ITERS", "3")];
    let ran: Ran = project
        .tprimat(&["build"])
        .envs(try_out)
        .output()
        .unwrap()
        .into();
    ran.ends_with(0);
    let short = rate_of_compare(&project, &try_out);
    assert_eq!(
        rates_of_history(&project, &try_out).last(),
        Some(&Some(short))
    );
    assert_eq!(rates_of_history(&project, &[]).last(), Some(&Some(short)));
    // Without a matrix, what the build summarised is known.
    project
        .remove("matrix.toml")
        .edit("config.yaml", "  single: {", "  other: {");
    assert_eq!(rates_of_history(&project, &[]).last(), Some(&Some(short)));
}

#[test]
fn a_baseline_that_is_not_compared_is_an_error() {
    let project = Project::built();
    for arguments in [
        &["--skip", SMALL, "--baseline", SMALL][..],
        &["--only", LARGE, "--baseline", "cpu/cmd/small"],
    ] {
        let refused = project
            .run(&[&["compare"], arguments].concat())
            .ends_with(2);
        assert!(
            refused
                .stderr
                .contains(&format!("`{SMALL}` is not among the cells")),
            "{}",
            refused.stderr
        );
    }
    let all = project.run(&[
        "compare",
        "--baseline",
        LARGE,
        "--across",
        "num_layers,vocab_size",
    ]);
    assert!(all.code != Some(2), "{}", all.stderr);
    // A name that changes the work, and that nothing states, is a slip.
    let free = project
        .run(&["compare", "--across", "quantization"])
        .ends_with(2);
    assert!(
        free.stderr.contains("no cell that is compared states"),
        "{}",
        free.stderr
    );
}

#[test]
fn the_command_for_every_figure_compares_the_same_cells() {
    let project = Project::built();
    let folder = project.root().to_str().unwrap();
    let built = project
        .run(&[
            "-C",
            folder,
            "build",
            "--set",
            "training.seed=5",
            "--repeats",
            "3",
        ])
        .ends_with(0);
    let command = hint(&built);
    let expected = [
        "-C",
        folder,
        "compare",
        "--details",
        "--set",
        "training.seed=5",
        "--repeats",
        "3",
    ];
    assert_eq!(command, expected);
    let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
    words[3] = "--json";
    let rows = project.run(&words).ends_with(0).json()["rows"].clone();
    assert!(
        rows.as_array().unwrap().iter().all(|row| row["n"] == 3),
        "{rows}"
    );
    let compared = project
        .run(&["compare", "--repeats", "1", "--only", SMALL])
        .ends_with(0);
    assert_eq!(
        hint(&compared),
        ["compare", "--repeats", "1", "--only", SMALL, "--details"],
        "as it was typed"
    );
}

#[test]
fn a_host_is_named_in_any_case() {
    let project = Project::built();
    let all = project.run(&["history", "--json"]).ends_with(0).json();
    let host = all["cells"][0]["measurements"][0]["host"]
        .as_str()
        .unwrap()
        .to_owned();
    let found = project
        .run(&["history", "--json", "--host", &host.to_uppercase()])
        .ends_with(0)
        .json();
    assert_eq!(
        found["cells"].as_array().map(Vec::len),
        all["cells"].as_array().map(Vec::len)
    );
    assert_ne!(found["cells"], Value::Null);
}

#[test]
fn a_sweep_is_in_the_json_of_a_comparison() {
    let project = Project::of_two();
    let axis = "\n[matrix.axes.seq_length]\npath = \"training.data.seq_length\"\nvalues = [64, 128, 256]\n";
    let matrix = project.read("matrix.toml");
    project.write("matrix.toml", &(matrix + axis));
    project
        .run(&["build", "--only", "cpu/cmd/small"])
        .ends_with(0);
    let sweeps = project.json(&["compare"])["sweeps"].clone();
    let [sweep] = &sweeps.as_array().unwrap()[..] else {
        panic!("{sweeps}")
    };
    assert_eq!(sweep["axis"], "seq_length");
    assert_eq!(sweep["different_workloads_by"][0], "seq_length");
    let curve = &sweep["curves"][0];
    assert_eq!(
        (&curve["framework"], &curve["best"]),
        (&"cmd".into(), &Value::Null)
    );
    let points = curve["points"].as_array().unwrap();
    let values: Vec<f64> = points.iter().map(|p| p["x"].as_f64().unwrap()).collect();
    assert_eq!(values, [64.0, 128.0, 256.0]);
    assert_eq!(points[0]["cell"], "cpu/cmd/small/single@seq_length=64");
    assert!(points[0]["tokens_per_second_per_gpu"].as_f64().unwrap() > 0.0);
    let schema = project
        .run(&["print", "schema", "comparison"])
        .ends_with(0)
        .json();
    assert!(schema["properties"]["sweeps"].is_object(), "{schema}");
}

/// What a build of some cells publishes of the others is what `compare` shows of them.
#[test]
fn a_build_of_some_cells_publishes_the_figures_that_compare_shows_of_the_others() {
    let project = Project::of_two();
    project
        .edit("matrix.toml", "repeats = 2", "repeats = 1")
        .build(&[]);
    project.edit("matrix.toml", "repeats = 1", "repeats = 3");
    let built = project.build(&["--only", SMALL]);
    assert_eq!((built.code, project.launches()), (0, 4), "{}", built.stderr);
    let published: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let compared = project.json(&["compare"]);
    let of = |comparison: &Value| {
        let rows = comparison["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["cell"] == LARGE);
        let row = row.unwrap_or_else(|| panic!("{comparison:#}"));
        [
            "n",
            "repeats_wanted",
            "standing",
            "tokens_per_second_per_gpu",
        ]
        .map(|key| row[key].clone())
    };
    assert_eq!(of(&published), of(&compared));
    assert_eq!(of(&published)[0], 1);
    assert!(
        project
            .read("output/compare.txt")
            .contains("1 of 3 repeats measured so far")
    );
    // It is up to date, and the runs that are missing are still to be made.
    assert_eq!(project.stale(&["--only", SMALL]), Default::default());
    assert_eq!(project.build(&["--only", SMALL]).ran, Default::default());
    assert_eq!((project.build(&[]).code, project.launches()), (0, 6));
    let published: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    assert_eq!(of(&published)[0], 3);
}

/// Nothing was compared with the misspelt setting, so a wrong length would go unseen.
#[test]
fn a_misspelt_setting_of_a_trainer_is_said_with_the_name_that_was_meant() {
    let project = Project::new(ONE_RUN);
    project.edit("trainer.sh", "\"seq_length\":", "\"sequence_lenght\":");
    let told = project.run(&["build"]).ends_with(0).stdout;
    let words = "the log states `sequence_lenght`, which is not the name of a setting";
    assert_eq!(told.matches(words).count(), 1, "{told}");
    assert!(
        told.contains("perhaps `sequence_length` is meant"),
        "{told}"
    );
}

/// What a run was started in is in its own record, also where it is of an earlier configuration.
#[test]
fn a_measurement_from_before_an_edit_ran_on_the_same_vendor() {
    let project = Project::new(ONE_RUN);
    let axis = "[matrix.axes.mbs]\npath = \"training.data.micro_batch_size\"\nvalues = [1, 2]\n";
    let matrix = format!("{ONE_RUN}{axis}");
    project.write("matrix.toml", &matrix);
    project.run(&["build"]).ends_with(0);
    let edit = "[[override]]\nwhere = { mbs = 2 }\nset = { frameworks.cmd.env.PACE = \"2\" }\n";
    project.write("matrix.toml", &format!("{matrix}{edit}"));
    let compared = project.run(&["compare", "--json"]).ends_with(0).json();
    let earlier = &compared["rows"][1]["standing"]["earlier"];
    assert!(earlier.as_str().unwrap().contains("PACE"), "{compared}");
    assert_eq!(compared["environment"], Value::Null, "no difference");
}

/// What was asked for was not measured, or is not compared: scripts see that, and people why.
#[test]
fn a_comparison_that_is_none_has_failed_and_a_report_says_why() {
    let project = Project::new(&ONE_RUN.replace("\"tiny\"", "[\"tiny\", \"wide\"]"));
    let told = project.run(&["compare"]).ends_with(1).stdout;
    assert!(told.contains("No cell has figures yet"), "{told}");
    let [small, large] = ["cpu/cmd/tiny/single", "cpu/cmd/wide/single"];
    project.run(&["build", "--only", small]).ends_with(0);
    project.run(&["compare"]).ends_with(0);
    for output in ["pair", "page.html"] {
        let report = project
            .run(&["report", small, large, "-o", output])
            .ends_with(1);
        let why = format!("{large} has no figures: missing: ");
        let words = report.stderr.split_whitespace().collect::<Vec<_>>();
        assert!(words.join(" ").contains(&why), "{report:?}");
    }
    project.run(&["build"]).ends_with(0);
    let report = project
        .run(&["report", small, large, "-o", "pair"])
        .ends_with(1);
    let words = report.stderr.split_whitespace().collect::<Vec<_>>();
    assert!(words.join(" ").contains("not compared: "), "{report:?}");
}

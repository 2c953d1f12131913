//! What a plan says, and what a host that differs from the lock may do.

use crate::support::{ONE_RUN, Project};

#[test]
fn the_lock_of_a_matrix_without_supported_cells_says_so() {
    let project = Project::new(ONE_RUN);
    project.edit("matrix.toml", "\"cmd\"", "\"mega\"");
    let said = project.run(&["lock"]).ends_with(0).stdout;
    assert_eq!(
        said,
        "no cell of one is supported, so there is nothing to lock; `tprimat check` says why\n"
    );
}

#[test]
fn a_drifted_host_runs_nothing_and_shows_what_it_has() {
    let project = Project::new(ONE_RUN);
    assert_eq!(
        project.run(&["lock"]).ends_with(0).stdout,
        "cpu: not pinned yet; the first build pins it\n"
    );
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built
            .stderr
            .contains("tprimat.lock: pinned this host's facts for cpu"),
        "{}",
        built.stderr
    );
    assert_eq!(
        project.run(&["lock"]).ends_with(0).stdout,
        "cpu: as pinned, as far as this host can tell\n"
    );

    // A fact that is in no key: what was measured stays fresh, and a new run is left out.
    project.edit(
        "tprimat.lock",
        "[platform.cpu]\n",
        "[platform.cpu]\ndriver = \"1.0\"\n",
    );
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.006");
    let refused = project.run(&["build"]).ends_with(1).stderr;
    for part in [
        "tprimat.lock:7:1: this host differs from tprimat.lock: cpu, driver (locked \"1.0\", found nothing)",
        "lock --update",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(project.launches(), 1);
    assert!(
        project
            .run(&["lock"])
            .ends_with(0)
            .stdout
            .contains("cpu: driver differs: \"1.0\" → nothing")
    );
    project.edit("trainer.sh", "sleep 0.006", "sleep 0.005");
    project.run(&["show", "cpu/cmd/tiny/single"]).ends_with(0);
    assert!(
        project
            .run(&["compare", "--details"])
            .ends_with(0)
            .stdout
            .contains("cpu/cmd/tiny/single")
    );

    // A fact that keys cover.
    let lock = project.read("tprimat.lock");
    let pinned = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .unwrap();
    project.edit("tprimat.lock", pinned, "cores = 4096");
    let refused = project.run(&["build"]).ends_with(1).stderr;
    assert!(
        refused.contains("cpu, cores") && refused.contains("locked 4096, found "),
        "{refused}"
    );
    assert_eq!(project.launches(), 1);
    // What is here was measured here before the lock was edited.
    project.run(&["build", "--allow-drift"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    project
        .run(&["build", "--allow-drift", "--repeats", "2"])
        .ends_with(0);
    assert_eq!(project.launches(), 2);
    project.run(&["lock", "--update"]).ends_with(0);
    assert_eq!(
        project
            .run(&["build", "--repeats", "2", "--json"])
            .ends_with(0)
            .json()["summary"]["stale"],
        0
    );
    assert_eq!(project.launches(), 2);
}

/// A plan of many cells has a line for each reason, which counts the cells and their runs.
#[test]
fn a_long_plan_counts_cells_and_runs_by_their_reason() {
    let project = Project::new(ONE_RUN);
    let axis = "\n[matrix.axes.seed]\npath = \"training.seed\"\nvalues = [";
    let values: Vec<String> = (1..=30).map(|seed| seed.to_string()).collect();
    let matrix = ONE_RUN.replace("repeats = 1", "repeats = 2");
    project.write(
        "matrix.toml",
        &format!("{matrix}{axis}{}]\n", values.join(", ")),
    );
    let plan = project.run(&["plan"]).ends_with(0).stdout;
    for line in [
        "single@seed=2 and 28 more (30 cells, 60 runs): never run\n",
        "\none: 30 cells, all stale; 60 runs, ",
        "`--json` lists the 183 tasks behind these lines",
    ] {
        assert!(plan.contains(line), "{line}: {plan}");
    }
    // What follows from the cells is none of what a reader has to decide on.
    assert!(!plan.contains("report one"), "{plan}");
    let all = project.run(&["plan", "--json"]).ends_with(0).json();
    assert_eq!(all["tasks"].as_array().unwrap().len(), 183);
}

#[test]
fn a_plan_is_coloured_where_colours_are_asked_for() {
    let project = Project::new(ONE_RUN);
    let plain = project.run(&["plan"]).ends_with(0).stdout;
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let coloured = project.run(&["plan", "--color=always"]).ends_with(0).stdout;
    assert!(
        coloured.contains("\u{1b}[1mstale      \u{1b}[22m  cpu/cmd/tiny"),
        "{coloured}"
    );
    let without = coloured.replace("\u{1b}[1m", "").replace("\u{1b}[22m", "");
    assert_eq!(without.replace("\u{1b}[2m", ""), plain);
}

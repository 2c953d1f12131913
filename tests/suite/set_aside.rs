//! A measurement that somebody sets aside: it counts no more, for a reason, and comes back.

use crate::kept::{two_repeats, wide};

#[test]
fn a_measurement_is_set_aside_for_a_reason_and_comes_back() {
    let project = two_repeats();
    project.run(&["build"]).ends_with(0);
    let attempts = |of: &str| {
        project
            .run(&["show", "--attempts", of, "--json"])
            .ends_with(0)
            .json()["attempts"]
            .clone()
    };
    let id = attempts("cpu/cmd/tiny/single#2")[0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    project
        .run(&["cache", "set-aside", &id, "--reason", "  "])
        .ends_with(2);
    project
        .run(&["cache", "set-aside", "2999", "--reason", "x"])
        .ends_with(4);
    project
        .run(&[
            "cache",
            "set-aside",
            &id,
            "--reason",
            "somebody compiled beside it",
        ])
        .ends_with(0);
    let shown = project.run(&["show", "cpu/cmd/tiny/single#2"]).ends_with(1);
    let words: Vec<&str> = shown.stderr.split_whitespace().collect();
    assert!(
        words.join(" ").contains("Repeat 2: set aside on ")
            && shown.stderr.contains("somebody compiled beside it"),
        "{shown:?}"
    );
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
        .run(&["gate", "--write", "baseline.json"])
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
    for whose in ["repeats measured now", "baseline's repeats"] {
        assert!(
            told.contains(&format!(
                "beside the {whose} there are runs that do not count: 1 set aside"
            )),
            "{told}"
        );
    }
    assert_eq!(project.run(&["build", "--json"]).json()["ran"], 0);
    // Its log is there to be read.
    let log = project.run(&["logs", "--attempt", &id]).ends_with(0).stdout;
    assert!(log.contains("\"event\":\"end\""), "{log}");
    // As it was before: the first one counts, the later one is listed, and nothing is measured.
    project.run(&["cache", "restore", &id]).ends_with(0);
    let of_second = attempts("cpu/cmd/tiny/single#2");
    assert_eq!(
        (&of_second[0]["counts"], &of_second[1]["counts"]),
        (&true.into(), &false.into())
    );
    assert!(!project.run(&["compare"]).stdout.contains("set aside"));
    let told = gate();
    assert!(
        !told.contains("beside the repeats measured now")
            && told.contains(
                "beside the baseline's repeats there are runs that do not count: 1 set aside"
            ),
        "{told}"
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 3);
    project.run(&["cache", "restore", &id]).ends_with(1);
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
        "cache",
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
        .run(&["cache", "restore", "cpu/cmd/tiny/single#2", "other"])
        .ends_with(0);
}

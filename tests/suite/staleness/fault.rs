//! One fault is met by two cells, and not by the whole matrix.

use crate::support::{Project, tasks::TRAINER};

/// Four cells of one command, two repeats each; one run at a time.
fn of_four(mood: &str) -> Project {
    let project = Project::of_two();
    project
        .edit("config.yaml", "share: true", "share: false")
        .edit("matrix.toml", "[\"small\", \"large\"]", "\"small\"")
        .write("mood", mood);
    let matrix = project.read("matrix.toml");
    let axis = "[matrix.axes.seq]\npath = \"training.data.seq_length\"\nvalues = [64, 32, 16, 8]\n";
    project.write("matrix.toml", &(matrix + axis));
    project
}

const RAISES: &str = "echo 'AttributeError: no stepp' >&2; exit 1";

#[test]
fn the_other_cells_of_a_command_are_held_back_and_other_frameworks_go_on() {
    let project = of_four(RAISES);
    project
        .edit(
            "config.yaml",
            "frameworks:\n",
            "frameworks:\n  other: { command: \"bash other.sh\", inputs: [other.sh] }\n",
        )
        .edit("matrix.toml", "\"cmd\"", "[\"cmd\", \"other\"]")
        .write("other.sh", &TRAINER.replace("/mood", "/none"));
    let built = project.build(&[]);
    // Two that fail, and two repeats of each of the other's cells.
    assert_eq!(
        (built.code, project.launches()),
        (1, 10),
        "{}",
        built.stderr
    );
    let held = &project.run(&["build"]).ends_with(1);
    let stdout = held.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        stdout.contains("(missing: held back, because two cells of `cmd` ended alike (AttributeError: no stepp); --keep-going runs it"),
        "{}",
        held.stdout
    );
    assert!(
        held.stderr
            .contains("4 of 8 selected cells measured (2 failed, 2 not measured)"),
        "{}",
        held.stderr
    );
    // The next build asked the two once more. `--keep-going` asks all, each twice.
    let before = project.launches();
    assert_eq!(before, 12);
    assert_eq!(project.build(&["--keep-going"]).code, 1);
    assert_eq!(project.launches(), before + 4);
    // Nothing of this is kept: where the script works again, all of them run.
    project.remove("mood");
    let built = project.build(&["--force=failed"]);
    assert_eq!(built.code, 0, "{}", built.stderr);
    project.expect_nothing();
}

#[test]
fn a_log_that_nobody_can_read_is_written_twice_and_a_pattern_releases_the_others() {
    let project =
        of_four("for ((s = 1; s <= steps; s++)); do echo \"at $s: 0.0$s s\"; done; exit 0");
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
    let third = &project.plan(&[])["train cpu/cmd/small/single@seq=16#1"];
    assert!(
        third.state == "failed" && third.reason.starts_with("held back"),
        "{third:?}"
    );
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
    project.edit(
        "config.yaml",
        "inputs: [train.sh]",
        "inputs: [train.sh], log: \"at <step>: <step_time_seconds> s\"",
    );
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 8), "{}", built.stderr);
}

#[test]
fn a_log_that_comes_short_holds_its_own_repeats_back_as_well() {
    let project = of_four("steps=3");
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
    assert_eq!(
        (project.build(&["--keep-going"]).code, project.launches()),
        (1, 4)
    );
}

/// What may be one cell's own fault holds no other cell back, and one run that counts shows that the
/// command works.
#[test]
fn a_fault_that_may_be_the_cells_own_holds_nobody_back() {
    let of_memory = "echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2; exit 1";
    let each_its_own = "echo \"ValueError: $seq is too long\" >&2; exit 1";
    for (mood, launches) in [
        (of_memory, 4),
        (each_its_own, 4 * 2),
        // Each log contradicts its job in another value.
        ("seq=8192", 4),
        (
            &format!("if [[ $seq != 64 ]]; then {RAISES}; fi"),
            2 + 3 * 2,
        ),
    ] {
        let project = of_four(mood);
        assert_eq!(
            (project.build(&[]).code, project.launches()),
            (1, launches),
            "{mood}"
        );
    }
}

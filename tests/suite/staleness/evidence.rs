//! A plan rests on what it read when it read it: edits that come while a build runs are built next,
//! and `plan` and `build` never disagree.

use std::{
    os::unix::{ffi::OsStrExt, fs::symlink},
    process::{Child, Stdio},
};

use crate::support::{
    ONE_RUN, Project, Ran,
    tasks::{LARGE, SMALL},
    until,
};

/// Trainers say that they run, and go on once they may.
const HELD: &str = "echo >> \"$TPRIMAT_PROJECT_DIR/up\"; until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\n";

/// A build whose trainers wait for `go`.
pub(super) fn held_build(project: &Project) -> Child {
    project.write("mood", HELD);
    let child = project
        .tprimat(&["build", "--json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("it trains", || project.path("up").exists());
    child
}

pub(super) fn let_go(project: &Project, child: Child) -> Ran {
    project.write("go", "");
    let ran = child.wait_with_output().unwrap().into();
    for name in ["mood", "go", "up"] {
        project.remove(name);
    }
    ran
}

/// What `plan` calls stale `build` builds, as people call it: from what the last build noted, if
/// that stands.
#[track_caller]
fn the_edit_is_built(project: &Project, what: &str) {
    let stale = project.stale(&[]);
    assert!(!stale.is_empty(), "{what}: nothing is stale");
    let built = project.run(&["build", "--json"]).ends_with(0).json();
    assert_ne!(built["ran"], 0, "{what}: {built}");
    project.expect_nothing();
}

#[test]
fn what_is_edited_while_a_build_trains_is_built_next() {
    let project = Project::of_two();
    type Edit = fn(&Project) -> &Project;
    let edits: [(&str, Edit); 5] = [
        ("config.yaml", |p| {
            p.edit("config.yaml", "seq_length: 64", "seq_length: 128")
        }),
        ("matrix.toml", |p| {
            p.edit("matrix.toml", "repeats = 2", "repeats = 3")
        }),
        ("recipes/cmd/helper.sh", |p| {
            p.write("recipes/cmd/helper.sh", "# helps more\n")
        }),
        ("templates/cmd.sh.j2", |p| {
            p.write(
                "templates/cmd.sh.j2",
                &(p.read("templates/cmd.sh.j2") + "# more\n"),
            )
        }),
        ("a price", |p| {
            p.edit("config.yaml", "per_gpu_hour: 1.00", "per_gpu_hour: 7.00")
        }),
    ];
    for (what, edit) in edits {
        // Something to train, so that there is a build to edit under.
        let train = project.read("train.sh");
        project.write("train.sh", &format!("{train}# for {what}\n"));
        let child = held_build(&project);
        edit(&project);
        let_go(&project, child).ends_with(0);
        the_edit_is_built(&project, what);
    }
    // A lock that this host contradicts runs nothing, and says so.
    project.write(
        "train.sh",
        &format!("{}# for the lock\n", project.read("train.sh")),
    );
    let child = held_build(&project);
    let lock = project.read("tprimat.lock");
    let cores = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .unwrap();
    project.edit("tprimat.lock", cores, "cores = 4096");
    let_go(&project, child).ends_with(0);
    assert!(
        project
            .run(&["build"])
            .ends_with(1)
            .stderr
            .contains("differs from tprimat.lock")
    );
}

#[test]
fn a_matrix_that_comes_first_is_seen() {
    let project = Project::of_two();
    let matrix = project.read("matrix.toml");
    project
        .remove("matrix.toml")
        .write("pipelines/matrix.toml", &matrix);
    assert_eq!(project.build(&[]).code, 0);
    project.expect_nothing();
    project.write("matrix.toml", &matrix.replace("repeats = 2", "repeats = 3"));
    the_edit_is_built(&project, "matrix.toml above pipelines/matrix.toml");
}

#[test]
fn every_variable_that_config_names_counts() {
    let project = Project::of_two();
    project.edit("config.yaml", "flavor: 0", "flavor: \"${TERM:-0}\"");
    project.edit(
        "config.yaml",
        "OF_FRAMEWORK: \"0\"",
        "OF_FRAMEWORK: \"${SEED_KEY:-0}\"",
    );
    let built = |name: &str, value: &str| {
        let run = |arguments: &[&str]| {
            Ran::from(
                project
                    .tprimat(arguments)
                    .env(name, value)
                    .output()
                    .unwrap(),
            )
        };
        let stale = run(&["plan", "--json"]).json()["summary"]["stale"].clone();
        assert_ne!(stale, 0, "{name}={value}");
        assert_eq!(
            run(&["build", "--json"]).ends_with(0).json()["ran"],
            stale,
            "{name}={value}"
        );
        assert_eq!(
            run(&["build", "--json"]).ends_with(0).json()["ran"],
            0,
            "{name}={value}"
        );
    };
    for (name, value) in [
        ("TERM", "a"),
        ("TERM", "b"),
        ("SEED_KEY", "a"),
        ("SEED_KEY", "b"),
    ] {
        built(name, value);
    }
}

#[test]
fn what_runs_and_editors_leave_behind_is_no_input() {
    let project = Project::of_two();
    project.write("src/model.py", "x = 1\n");
    project.edit(
        "config.yaml",
        "inputs: [train.sh]",
        "inputs: [\"*.toml\", \"*.lock\", \"src/**\"]",
    );
    // As Python does it, at the first run.
    project.write(
        "mood",
        "mkdir -p src/__pycache__; echo x > src/__pycache__/model.cpython-311.pyc\n",
    );
    assert_eq!(
        project.build(&[]).code,
        2,
        "no file but tprimat.lock, which tprimat makes, matches *.lock"
    );
    project.edit("config.yaml", "\"*.lock\", ", "");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    project.expect_nothing();
    for name in [
        "src/model.py~",
        "src/.model.py.swp",
        "src/#model.py#",
        "recipes/cmd/recipe.toml~",
    ] {
        project.write(name, "x");
    }
    symlink("me@host.4711", project.path("src/.#model.py")).unwrap();
    project.edit("config.yaml", "the first words", "other words");
    assert_eq!(project.build(&[]).code, 0);
    assert_eq!(project.launches(), 4);
    project.expect_nothing();
}

#[test]
fn what_lies_behind_a_link_is_an_input_and_what_has_no_end_is_an_error() {
    let project = Project::of_two();
    project.write("src/model.py", "x = 1\n");
    project.write("../shared/net.py", "y = 1\n");
    symlink("../../shared", project.path("src/shared")).unwrap();
    project.edit(
        "config.yaml",
        "inputs: [train.sh]",
        "inputs: [\"src/**/*.py\"]",
    );
    assert_eq!(project.build(&[]).code, 0);
    project.expect_nothing();
    project.write("../shared/net.py", "y = 2\n");
    project.expect(
        &["{train,parse,aggregate} *", super::LATER],
        &["{train,parse,aggregate} *", super::LATER],
    );
    // A name that no line of a key can hold is not passed over.
    let odd = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(b"src/\xff.py"));
    symlink("model.py", project.root().join(&odd)).unwrap();
    assert!(
        project
            .run(&["plan"])
            .ends_with(2)
            .stderr
            .contains("a name that is not UTF-8")
    );
    std::fs::remove_file(project.root().join(&odd)).unwrap();
    for place in ["src/pipe.py", "recipes/cmd/pipe"] {
        nix::unistd::mkfifo(&project.path(place), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let refused = project.run(&["plan"]).ends_with(2);
        assert!(refused.stderr.contains("a pipe"), "{}", refused.stderr);
        project.remove(place);
    }
}

#[test]
fn a_file_that_the_command_names_is_an_input() {
    let project = Project::of_two();
    project.edit("config.yaml", "inputs: [train.sh], ", "");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    project.write("train.sh", &(project.read("train.sh") + "# another\n"));
    let reason = |cell: &str| project.plan(&[])[&format!("train {cell}#1")].reason.clone();
    assert!(
        reason(SMALL).contains("train.sh edited") && reason(LARGE).contains("train.sh edited"),
        "{}",
        reason(SMALL)
    );
    the_edit_is_built(&project, "train.sh");
    assert_eq!(project.launches(), 8);
    // Said in another way it is the same file.
    project.edit(
        "config.yaml",
        "share: true",
        "inputs: [./train.sh], share: true",
    );
    project.expect_nothing();
    // What the run itself writes can be taken back.
    project.edit(
        "config.yaml",
        "inputs: [./train.sh]",
        "inputs: [\"!train.sh\"]",
    );
    assert_eq!(project.build(&[]).code, 0);
    project.write("train.sh", &(project.read("train.sh") + "# a third\n"));
    project.expect_nothing();
}

#[test]
fn so_is_one_that_it_names_by_an_absolute_path() {
    let project = Project::of_two();
    let elsewhere = tempfile::tempdir().unwrap();
    let trainer = elsewhere.path().join("trainer.sh");
    std::fs::copy(project.path("train.sh"), &trainer).unwrap();
    project.edit("config.yaml", "inputs: [train.sh], ", "inputs: [], ");
    project.edit("config.yaml", "train.sh", trainer.to_str().unwrap());
    let check = project.run(&["check"]);
    assert!(
        check.stderr.contains("a host that has it elsewhere"),
        "{}",
        check.stderr
    );
    check.ends_with(0);
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    let text = std::fs::read_to_string(&trainer).unwrap();
    std::fs::write(&trainer, text + "# another\n").unwrap();
    assert_eq!((project.build(&[]).code, project.launches()), (0, 8));
    project.expect_nothing();
}

/// An override chooses it for the cells of one value of an axis.
#[test]
fn so_is_one_that_an_override_chooses_for_some_cells() {
    let project = Project::new(ONE_RUN);
    for variant in ["a", "b"] {
        project.write(&format!("conf/{variant}.json"), "{}");
    }
    let axis =
        "[matrix.axes.variant]\npath = \"frameworks.cmd.env.VARIANT\"\nvalues = [\"a\", \"b\"]\n";
    let of = |variant: &str| {
        format!(
            "\n[[override]]\nwhere = {{ variant = \"{variant}\" }}\nset = {{ \"frameworks.cmd.command\" = \"bash trainer.sh --conf=conf/{variant}.json\" }}\n"
        )
    };
    project.write(
        "matrix.toml",
        &format!("{ONE_RUN}\n{axis}{}{}", of("a"), of("b")),
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
    project.write("conf/b.json", "{ }");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 3);
}

/// A shell decides what a text for it reads, so whoever writes one says so.
#[test]
fn a_command_for_a_shell_states_its_inputs() {
    let project = Project::new(ONE_RUN);
    let list = "command: [bash, trainer.sh], inputs: [trainer.sh]";
    let text = "command: \"VARIANT=a bash trainer.sh < conf/$VARIANT.json\"";
    project
        .write("conf/a.json", "{}")
        .edit("config.yaml", list, text);
    let ran = project.run(&["check"]).ends_with(2);
    assert!(
        ran.stderr.contains("needs a shell (`<`)") && ran.stderr.contains("frameworks.cmd.inputs"),
        "{ran:?}"
    );
    let text = "command: \"VARIANT=a; bash trainer.sh < conf/$VARIANT.json\"";
    project.edit(
        "config.yaml",
        "command: \"VARIANT=a ",
        "inputs: [trainer.sh, \"conf/*.json\"], command: \"VARIANT=a; ",
    );
    assert!(project.read("config.yaml").contains(text));
    project.run(&["build"]).ends_with(0);
    project.write("conf/a.json", "{ }");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
}

/// Two repeats, one after the other, of one cell.
pub(super) fn of_one_cell() -> Project {
    let project = Project::of_two();
    project.edit(
        "matrix.toml",
        "model = [\"small\", \"large\"]",
        "model = \"small\"",
    );
    project.edit("config.yaml", "share: true", "share: false");
    project
}

/// What the runs that go on now are doing.
fn run_states(project: &Project) -> String {
    let runs = project.names_in("cache/runs").into_iter();
    runs.filter_map(|run| {
        std::fs::read_to_string(project.path(&format!("cache/runs/{run}/state.json"))).ok()
    })
    .collect()
}

#[test]
fn an_input_that_is_edited_during_a_run_makes_no_figure_also_when_it_is_put_back() {
    let project = of_one_cell();
    let train = project.read("train.sh");
    let child = held_build(&project);
    project.write("train.sh", &format!("{train}# edited\n"));
    let built = let_go(&project, child);
    // The first repeat read both, the second was not started.
    assert_eq!(
        (built.code, project.launches()),
        (Some(1), 1),
        "{}",
        built.stderr
    );
    for part in [
        "not counted after ",
        "    inputs changed while it ran: train.sh\n",
    ] {
        assert!(built.stderr.contains(part), "{}", built.stderr);
    }
    let told = "train.sh changed after this build was planned";
    assert!(built.stderr.contains(told), "{}", built.stderr);
    // Put back: it is the same training again, and what was disturbed is replaced.
    project.write("train.sh", &train);
    let why = project.plan(&[])[&format!("train {SMALL}#1")]
        .reason
        .clone();
    assert!(why.contains("inputs changed while it ran"), "{why}");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 3));
    project.expect_nothing();
    // Edited and put back within one run, but not before it was seen.
    project.write("train.sh", &format!("{train}# another\n"));
    let child = held_build(&project);
    project.write("train.sh", &train);
    until("the edit is seen", || {
        run_states(&project).contains("train.sh")
    });
    project.write("train.sh", &format!("{train}# another\n"));
    let built = let_go(&project, child);
    assert!(
        built
            .stderr
            .contains("    inputs changed while it ran: train.sh"),
        "{}",
        built.stderr
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 6));
    assert_eq!(
        project.json(&["show", SMALL])["repeats"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    project.expect_nothing();
}

#[test]
fn what_a_recipe_states_as_command_and_inputs_counts_as_well() {
    let project = Project::of_two();
    project
        .edit(
            "config.yaml",
            "command: \"bash train.sh\", inputs: [train.sh], ",
            "",
        )
        .write("lib/a.sh", "# a\n");
    let defaults = "[defaults]\n\"frameworks.cmd.command\" = \"bash train.sh\"\n\"frameworks.cmd.inputs\" = [\"lib/*.sh\"]\n";
    project.write(
        "recipes/cmd/recipe.toml",
        &format!("{}\n{defaults}", project.read("recipes/cmd/recipe.toml")),
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    project.write("lib/a.sh", "# b\n");
    the_edit_is_built(&project, "lib/a.sh");
    project.write("train.sh", &(project.read("train.sh") + "# another\n"));
    the_edit_is_built(&project, "train.sh");
    project.edit("recipes/cmd/recipe.toml", "lib/*.sh", "none/*.sh");
    let refused = project.run(&["plan"]).ends_with(2);
    assert!(
        refused
            .stderr
            .contains("no file of the project matches the input `none/*.sh`"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_run_whose_inputs_changed_does_not_count_though_its_tprimat_was_killed() {
    let project = of_one_cell();
    let train = project.read("train.sh");
    let mut child = held_build(&project);
    project.write("train.sh", &format!("{train}# edited\n"));
    // Stopped, it cannot take in what its supervisor will say.
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.id().cast_signed()),
        nix::sys::signal::Signal::SIGSTOP,
    )
    .unwrap();
    project.write("go", "");
    let ended = |run: &String| {
        project
            .path("cache/runs")
            .join(run)
            .join("exit.json")
            .exists()
    };
    until("the run is over", || {
        project.names_in("cache/runs").iter().any(ended)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // Put back, so that the key is the run's again.
    project.write("train.sh", &train).remove("mood");
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 3), "{}", built.stderr);
    assert!(
        built
            .stderr
            .contains("took in a run that an earlier build left"),
        "{}",
        built.stderr
    );
}

#[test]
fn a_run_that_edits_its_own_inputs_makes_no_figure() {
    let project = of_one_cell();
    project.write("src/a.py", "a = 1\n");
    project.edit("config.yaml", "inputs: [train.sh]", "inputs: [\"src/**\"]");
    // The second repeat would read another file than the first.
    project.write(
        "mood",
        "[[ $n -gt 1 ]] || { sleep 0.05; echo 'a = 2' > src/a.py; }\n",
    );
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (1, 1), "{}", built.stderr);
    assert!(built.stderr.contains("src/a.py"), "{}", built.stderr);
}

/// A plan tells what was lost from what was edited, and both from what another build published.
#[test]
fn a_plan_says_what_is_wrong_with_a_published_file() {
    let project = Project::of_two();
    assert_eq!(project.build(&[]).code, 0);
    let reason = || project.plan(&[])["report m"].reason.clone();
    let page = project.path("output/compare.json");
    let published = std::fs::read(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert_eq!(reason(), "compare.json is not in the output folder");
    std::fs::write(&page, "{}").unwrap();
    assert_eq!(reason(), "compare.json in the output folder was changed");
    std::fs::write(&page, published).unwrap();
    project.edit("config.yaml", "per_gpu_hour: 1.00", "per_gpu_hour: 2.00");
    assert_eq!(project.build(&[]).code, 0);
    project.edit("config.yaml", "per_gpu_hour: 2.00", "per_gpu_hour: 1.00");
    let told = reason();
    assert!(
        told.ends_with(" in the output folder is from another build"),
        "{told}"
    );
}

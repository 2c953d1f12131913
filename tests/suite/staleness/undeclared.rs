//! Files that only a run's command names, and that nobody declares: a run may read them or write them.

use super::evidence::{held_build, let_go, of_one_cell};
use crate::support::{Project, tasks::SMALL};

#[test]
fn a_touch_or_the_same_bytes_written_again_disturb_no_run() {
    let project = of_one_cell();
    let child = held_build(&project);
    let train = project.read("train.sh");
    std::fs::File::open(project.path("train.sh"))
        .unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    project.write("train.sh", &train);
    let built = let_go(&project, child).ends_with(0);
    assert!(!built.stderr.contains("changed while"), "{}", built.stderr);
    assert_eq!(
        project.json(&["show", SMALL])["repeats"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 2));
}

/// A training that writes some of many files which only the command names is found again like any
/// other.
#[test]
fn a_run_that_writes_two_of_six_undeclared_files_is_made_again_once() {
    let project = crate::support::Project::new(crate::support::ONE_RUN);
    let names: Vec<String> = (1..=6).map(|number| format!("f{number}.txt")).collect();
    for name in &names {
        project.write(name, name);
    }
    let command = format!("command: [bash, trainer.sh, {}], inputs", names.join(", "));
    project.edit(
        "config.yaml",
        "command: [bash, trainer.sh], inputs",
        &command,
    );
    let writes =
        "for f in f1.txt f2.txt; do echo $RANDOM$RANDOM >> \"$TPRIMAT_PROJECT_DIR/$f\"; done\n";
    project.write(
        "trainer.sh",
        &format!("{writes}{}", crate::support::TRAINER),
    );
    for _ in 0..4 {
        project.run(&["build"]);
    }
    assert_eq!(project.launches(), 2, "once more, and no third time");
}

/// One cell, two repeats; its runs write what follows an option that tprimat does not know.
fn with_a_journal() -> Project {
    let project = of_one_cell();
    project.edit(
        "config.yaml",
        "\"bash train.sh\"",
        "\"bash train.sh --journal out.txt\"",
    );
    project.write("mood", "echo $RANDOM >> out.txt\n");
    project
}

#[test]
fn a_file_that_a_run_makes_under_a_name_of_its_command_is_not_an_input() {
    let project = with_a_journal();
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 2), "{}", built.stderr);
    assert!(
        built.stderr.contains("the run wrote out.txt")
            && built.stderr.contains("`inputs: [\"!out.txt\"]`")
    );
    let train = || project.plan(&[])[&format!("train {SMALL}#1")].clone();
    assert!(
        train().state == "fresh" && train().reason.contains("the run wrote out.txt"),
        "{:?}",
        train()
    );
    // Whoever writes to it later, and once somebody says what it is: nothing runs again.
    project.write("out.txt", "more\n");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 2));
    project.edit(
        "config.yaml",
        "inputs: [train.sh]",
        "inputs: [train.sh, \"!out.txt\"]",
    );
    assert!(
        train().state == "fresh" && train().reason.is_empty(),
        "{:?}",
        train()
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 2));
    project.expect_nothing();
    // Declared as an input it is one.
    project.edit("config.yaml", "\"!out.txt\"", "out.txt");
    assert_eq!(train().state, "stale");
}

#[test]
fn a_run_that_changes_a_file_of_its_command_is_replaced_once_and_counts_once_the_file_is_an_output()
{
    let project = with_a_journal();
    project.write("out.txt", "of yesterday\n");
    let checked = project.run(&["check"]).ends_with(0);
    assert!(
        checked.stderr.contains(&format!(
            "inputs of {SMALL}: out.txt, which the command names"
        )),
        "{checked:?}"
    );
    // The first repeat writes it, so the second would not read what was planned.
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (1, 1), "{}", built.stderr);
    let told = "inputs changed while it ran: out.txt; if the runs write that themselves, `inputs: [\"!out.txt\"]` says so for \
                good, and no other run is needed; if you edited it, `inputs: [\"out.txt\"]` has it measured anew";
    for told in [told, "not started: out.txt changed"] {
        assert!(built.stderr.contains(told), "{told}: {}", built.stderr);
    }
    let why = |state: &str| {
        let train = project.plan(&[])[&format!("train {SMALL}#1")].clone();
        assert_eq!(train.state, state, "{train:?}");
        train.reason
    };
    let reason = format!("the last attempt was disturbed: {told}; this is replacement 1 of 1");
    assert_eq!(why("stale"), reason);
    // Each repeat is made once more, and no third time: builds end, and have no figure.
    for launches in [2, 3, 4, 4, 4] {
        let built = project.build(&[]);
        assert_eq!(
            (built.code, project.launches()),
            (1, launches),
            "{}",
            built.stderr
        );
    }
    let reason = format!("disturbed, so not counted: {told}; replaced 1 of 1 times");
    assert_eq!(why("fresh"), reason);
    let attempts = || {
        project
            .run(&["show", "--attempts", SMALL])
            .ends_with(0)
            .stdout
    };
    let disturbed = "does not count: it was disturbed (inputs changed while it ran: out.txt;";
    assert_eq!(attempts().matches(disturbed).count(), 4, "{}", attempts());
    // Somebody says what it is, and the first runs count.
    project.edit(
        "config.yaml",
        "inputs: [train.sh]",
        "inputs: [train.sh, \"!out.txt\"]",
    );
    assert_eq!(why("fresh"), "");
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 4), "{}", built.stderr);
    let repeats = || {
        let shown = project.json(&["show", SMALL]);
        shown["repeats"].as_array().unwrap().len()
    };
    assert_eq!(repeats(), 2);
    assert_eq!(attempts().matches(disturbed).count(), 2, "{}", attempts());
    project.write("out.txt", "of tomorrow\n");
    project.expect_nothing();
    // They are replaced like any others where somebody asks for that.
    let built = project.build(&["--force=measured"]);
    assert_eq!(
        (built.code, project.launches(), repeats()),
        (0, 6, 2),
        "{}",
        built.stderr
    );
    project.expect_nothing();
}

/// What a run that left the file alone shows: an edit disturbed the runs before it, and the next edit
/// disturbs the next one anew.
#[test]
fn edits_of_a_file_that_only_the_command_names_each_make_one_replacement() {
    let project = of_one_cell();
    project
        .edit(
            "config.yaml",
            "\"bash train.sh\"",
            "\"bash train.sh --conf conf.txt\"",
        )
        .edit("matrix.toml", "repeats = 2", "repeats = 1")
        .write("conf.txt", "0\n");
    for edited in 1..4 {
        let child = held_build(&project);
        project.write("conf.txt", &format!("{edited}\n"));
        let built = let_go(&project, child).ends_with(1);
        let told = "inputs changed while it ran: conf.txt";
        assert!(built.stderr.contains(told), "{}", built.stderr);
        let launches = 2 * edited;
        assert_eq!((project.build(&[]).code, project.launches()), (0, launches));
        project.expect_nothing();
        project.write("conf.txt", &format!("{edited}, and more\n"));
    }
    // That a file is gone does not say that runs write it: the disturbed run does not count.
    let child = held_build(&project);
    project.write("conf.txt", "4\n");
    let_go(&project, child).ends_with(1);
    project.remove("conf.txt");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 8));
    project.expect_nothing();
}

/// What a run made does not excuse that its declared inputs changed.
#[test]
fn a_run_that_makes_a_file_and_whose_inputs_change_does_not_count() {
    let project = with_a_journal();
    project.edit("matrix.toml", "repeats = 2", "repeats = 1");
    let train = format!(
        "[[ -e out.txt ]] || echo 1 > out.txt\n{}",
        project.read("train.sh")
    );
    project.write("train.sh", &train);
    let child = held_build(&project);
    project.write("train.sh", &format!("{train}# edited\n"));
    let_go(&project, child).ends_with(1);
    project.write("train.sh", &train);
    let planned = project.plan(&[])[&format!("train {SMALL}#1")].clone();
    let why = "the last attempt was disturbed: inputs changed while it ran: train.sh;";
    assert!(
        planned.state == "stale" && planned.reason.starts_with(why),
        "{planned:?}"
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 2));
    project.expect_nothing();
}

/// A failure comes again, whatever the run wrote before it.
#[test]
fn a_run_that_fails_and_changes_a_file_of_its_command_is_tried_twice() {
    let project = with_a_journal();
    project.edit("matrix.toml", "repeats = 2", "repeats = 1");
    let failing =
        "echo $RANDOM >> out.txt\necho \"ModuleNotFoundError: No module named 'torch'\"\nexit 1\n";
    project.write("out.txt", "").write("mood", failing);
    for launches in [1, 2, 2] {
        let built = project.build(&[]);
        assert_eq!(
            (built.code, project.launches()),
            (1, launches),
            "{}",
            built.stderr
        );
    }
}

/// One cell with one repeat and a script that only its command names.
fn with_an_undeclared_script() -> Project {
    let project = of_one_cell();
    project
        .edit("config.yaml", "inputs: [train.sh], ", "")
        .edit("matrix.toml", "repeats = 2", "repeats = 1");
    project
}

/// Code is never taken for something that a run writes: however often it is edited while runs go on,
/// the next build measures what is there then.
#[test]
fn a_script_that_is_edited_while_a_run_names_it_is_measured_again_with_the_new_bytes() {
    let project = with_an_undeclared_script();
    for already in [0, 2, 4, 6] {
        let child = held_build(&project);
        project.write("train.sh", &(project.read("train.sh") + "# edited\n"));
        let built = let_go(&project, child).ends_with(1);
        let told = "inputs changed while it ran: train.sh";
        assert!(built.stderr.contains(told), "{}", built.stderr);
        assert_eq!(
            (project.build(&[]).code, project.launches()),
            (0, already + 2)
        );
        project.expect_nothing();
        let another = project.read("train.sh") + "# of another day\n";
        project.write("train.sh", &another);
    }
}

#[test]
fn a_run_that_fails_while_its_script_is_edited_is_tried_again_with_the_new_bytes() {
    let project = with_an_undeclared_script();
    let train = project.read("train.sh");
    project.write(
        "train.sh",
        &format!("{train}\necho \"ModuleNotFoundError: No module named 'torch'\"\nexit 1\n"),
    );
    let child = held_build(&project);
    // Bash goes on with the file that it has open.
    project.remove("train.sh").write("train.sh", &train);
    let_go(&project, child).ends_with(1);
    assert_eq!((project.build(&[]).code, project.launches()), (0, 2));
    project.expect_nothing();
}

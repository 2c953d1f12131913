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
    assert_eq!(project.launches(), 2, "once more, and then it is held");
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
fn a_file_that_changes_under_two_runs_holds_the_cell_until_somebody_says_what_it_is() {
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
    for told in [
        "out.txt changed while it ran",
        "`inputs: [\"!out.txt\"]`",
        "not started: out.txt changed",
    ] {
        assert!(built.stderr.contains(told), "{told}: {}", built.stderr);
    }
    let why = project.plan(&[])[&format!("train {SMALL}#1")]
        .reason
        .clone();
    assert!(
        why.contains("out.txt changed while it ran") && why.ends_with("this is replacement 1 of 1"),
        "{why}"
    );
    // Each repeat is made once more, and no third time: builds end, and go on to fail.
    for launches in [2, 3, 4, 4, 4] {
        let built = project.build(&[]);
        assert_eq!(
            (built.code, project.launches()),
            (1, launches),
            "{}",
            built.stderr
        );
        let told = format!(
            "{SMALL} not counted: out.txt changed while it ran, as during the run before it"
        );
        assert!(built.stderr.contains(&told), "{}", built.stderr);
    }
    assert_eq!(
        project.run(&["build", "--json"]).ends_with(1).json()["held"],
        1
    );
    assert_eq!(project.json(&["plan"])["summary"]["held"], 1);
    let plan = project.run(&["plan"]).ends_with(0).stdout;
    assert!(
        plan.contains(&format!("{SMALL} not counted: out.txt"))
            && plan.starts_with("not counted  ")
            && !plan.contains("`tprimat show"),
        "{plan}"
    );
    for command in [&["list"][..], &["list", "--failed"]] {
        let listed = project.run(command).ends_with(0).stdout;
        assert!(
            listed.contains("(not counted: #1 out.txt changed"),
            "{listed}"
        );
    }
    let attempts = project.run(&["attempts", SMALL]).ends_with(0).stdout;
    assert_eq!(
        attempts
            .matches("does not count: it was disturbed (out.txt changed")
            .count(),
        4,
        "{attempts}"
    );
    // Somebody says what it is, and what was measured counts.
    project.edit(
        "config.yaml",
        "inputs: [train.sh]",
        "inputs: [train.sh, \"!out.txt\"]",
    );
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 4), "{}", built.stderr);
    assert_eq!(
        project.json(&["show", SMALL])["repeats"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    project.write("out.txt", "of tomorrow\n");
    project.expect_nothing();
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

//! What would mislead: settings of a run that no key covers, lists and tables that hold what was not
//! asked for, and files that are refused without a reason.

use std::{fs, process::Stdio};

use crate::{
    damaged::log,
    support::{ONE_RUN, Project},
};

const CELL: &str = "cpu/cmd/tiny/single";

/// The stub trainer without stated inputs.
fn without_inputs(command: &str) -> Project {
    let project = Project::new(ONE_RUN);
    project.edit(
        "config.yaml",
        "command: [bash, trainer.sh], inputs: [trainer.sh]",
        &format!("command: {command}"),
    );
    project
}

#[test]
fn a_file_that_settings_name_is_in_the_key_and_what_nobody_names_is_told() {
    let project = without_inputs("[bash, trainer.sh, conf/a.yaml]");
    project.write("conf/a.yaml", "model: { shape: conf/shape.json }\n");
    project.write("conf/shape.json", "{}");
    project.run(&["build"]).ends_with(0);
    let check = project.run(&["check"]).ends_with(0);
    let unwatched = "Files that the program opens by itself are not watched";
    assert!(
        check.stderr.contains("conf/shape.json") && check.stderr.contains(unwatched),
        "{check:?}"
    );
    project
        .run(&["gate", "--write", "baseline.json"])
        .ends_with(0);
    let gate = ["gate", "--baseline", "baseline.json"];
    let passed = project.run(&gate).ends_with(0).stdout;
    assert!(passed.contains(unwatched), "{passed}");
    project.write("conf/shape.json", "{\"x\": 1}");
    let plan = project.run(&["plan"]).ends_with(0).stdout;
    assert!(plan.contains("conf/shape.json edited"), "{plan}");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
    // Whoever states the inputs has said what is read.
    project.edit("config.yaml", "conf/a.yaml]", "conf/a.yaml], inputs: []");
    project
        .run(&["gate", "--write", "baseline.json"])
        .ends_with(0);
    let passed = project.run(&gate).ends_with(0).stdout;
    assert!(!passed.contains(unwatched), "{passed}");
}

#[test]
fn code_outside_of_the_project_is_told_until_it_is_named() {
    let elsewhere = tempfile::tempdir().unwrap();
    let folder = elsewhere.path().canonicalize().unwrap();
    let folder = folder.to_str().unwrap();
    for file in ["lib.sh", "pkg/more.sh"] {
        let path = elsewhere.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x=1\n").unwrap();
    }
    let by_variable = format!("[env, \"PYTHONPATH={folder}\", bash, trainer.sh]");
    let by_word = format!("[bash, trainer.sh, {folder}/lib.sh]");
    let in_text = format!("\"cd . && bash trainer.sh {folder}\"");
    let in_environment = format!("[bash, trainer.sh], env: {{ PYTHONPATH: {folder} }}");
    let told =
        format!("in `{folder}`, outside of the project, are not watched; name them in `inputs`");
    for (command, inputs) in [
        (by_variable, ""),
        (by_word, ""),
        (in_environment, ""),
        (in_text, ", inputs: [trainer.sh]"),
    ] {
        let project = without_inputs(&(command.clone() + inputs));
        project.run(&["build"]).ends_with(0);
        let check = project.run(&["check"]).ends_with(0).stderr;
        assert_eq!(check.matches(&told).count(), 1, "{command}: {check}");
        project
            .run(&["gate", "--write", "baseline.json"])
            .ends_with(0);
        let gate = ["gate", "--baseline", "baseline.json"];
        let passed = project.run(&gate).ends_with(0).stdout;
        let passed = passed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(passed.contains(&told), "{command}: {passed}");
        // Whoever names the files, or says that none is read, is not told again.
        for named in [format!("{folder}/**/*.sh"), format!("!{folder}/**")] {
            let named = format!(", inputs: [trainer.sh, \"{named}\"]");
            let project = without_inputs(&(command.clone() + &named));
            let check = project.run(&["check"]).ends_with(0).stderr;
            assert!(!check.contains(&told), "{command}: {check}");
            let plan = project.run(&["plan"]).ends_with(0);
            assert!(!plan.stderr.contains("matches nothing"), "{plan:?}");
        }
    }
    // A folder of data is none of code.
    let project = without_inputs("[bash, trainer.sh, /var/lib]");
    let check = project.run(&["check"]).ends_with(0).stderr;
    assert!(!check.contains("outside of the project"), "{check}");
}

#[test]
fn a_package_that_is_worked_on_elsewhere_is_pinned_with_its_commit() {
    let project = without_inputs("[venv/bin/python, trainer.sh]");
    let package = project.folder().join("package");
    let git = |arguments: &[&str]| {
        let mut command = project.command("git");
        let name = ["-c", "user.name=x", "-c", "user.email=x@y"];
        command.args(name).args(arguments).current_dir(&package);
        let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(ended.unwrap().success(), "{arguments:?}");
    };
    let site = project.path("venv/lib/python3.12/site-packages/mine-0.1.dist-info");
    for folder in [&package, &site, &project.path("venv/bin")] {
        fs::create_dir_all(folder).unwrap();
    }
    project.write("venv/pyvenv.cfg", "home = /usr/bin\n");
    // As an interpreter is: a program, here a shell.
    std::os::unix::fs::symlink("/bin/bash", project.path("venv/bin/python")).unwrap();
    fs::write(site.join("METADATA"), "Name: mine\nVersion: 0.1\n").unwrap();
    let origin = format!(
        "{{\"url\": \"file://{}\", \"dir_info\": {{\"editable\": true}}}}",
        package.display()
    );
    fs::write(site.join("direct_url.json"), origin).unwrap();
    fs::write(package.join("mine.py"), "x = 1\n").unwrap();
    let plan = project.run(&["plan"]).ends_with(0).stderr;
    assert!(plan.contains("is in no git repository"), "{plan}");
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "x"]);
    project.run(&["build"]).ends_with(0);
    let pinned = project.read("tprimat.lock");
    assert!(pinned.contains("mine = \"0.1+commit."), "{pinned}");
    fs::write(package.join("mine.py"), "x = 2\n").unwrap();
    let plan = project.run(&["plan"]).ends_with(0).stderr;
    assert!(
        plan.contains("differs from tprimat.lock") && plan.contains(".changed."),
        "{plan}"
    );
    project.run(&["lock", "--update"]).ends_with(0);
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
}

#[test]
fn imports_need_no_matrix() {
    let project = Project::new(ONE_RUN);
    project.remove("matrix.toml");
    // Of this a matrix would be implied whose one strategy is missing.
    project.edit(
        "config.yaml",
        "parallelism:\n  single: { num_gpus: 1, DP: 1 }\n",
        "",
    );
    project.write("run.log", &log(0.1));
    let empty = project.run(&["compare"]).ends_with(2).stderr;
    assert!(empty.contains("there is no matrix file"), "{empty}");
    project.run(&["import", "run.log"]).ends_with(0);
    for command in ["compare", "list"] {
        let shown = project.run(&[command]).ends_with(0).stdout;
        assert!(shown.contains("imported"), "{command}: {shown}");
    }
    let compared = project.run(&["compare"]).ends_with(0).stderr;
    assert!(
        compared.contains("only what was imported is looked at"),
        "{compared}"
    );
}

#[test]
fn files_that_hold_a_log_or_a_result_in_another_form_are_told_one_by_one() {
    let project = Project::new(ONE_RUN);
    let text = log(0.1);
    let utf16: Vec<u8> = [0xfeff]
        .into_iter()
        .chain(text.encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    fs::create_dir(project.path("logs")).unwrap();
    project.write("logs/good.log", &text);
    fs::write(project.path("logs/wide.log"), utf16).unwrap();
    let gzip: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";
    fs::write(project.path("logs/run.log.gz"), gzip).unwrap();
    project.write("logs/README.md", "x");
    let told = project.run(&["import", "logs"]).ends_with(0).stderr;
    let (name, why) = ("run.log.gz", "`gzip -d logs/run.log.gz` unpacks it");
    let line = told.lines().find(|line| line.contains(name));
    assert!(
        line.is_some_and(|line| line.contains(why)),
        "{name}: {told}"
    );
    let alone = project
        .run(&["import", &format!("logs/{name}")])
        .ends_with(2)
        .stderr;
    let words: Vec<&str> = alone
        .split_whitespace()
        .filter(|word| *word != "│")
        .collect();
    assert!(words.join(" ").contains(why), "{name}: {alone}");
    // A text in UTF-16 is read as any other.
    assert!(!told.contains("wide.log"), "{told}");
    assert!(told.contains("1 file left out as neither"), "{told}");
}

#[test]
fn a_part_of_a_matrix_is_built_counted_and_shown_alone() {
    let project = Project::new(&format!(
        "{ONE_RUN}[matrix.axes.seed]\npath = \"training.seed\"\nvalues = [1, 2, 3]\n"
    ));
    project.run(&["build"]).ends_with(0);
    let only = format!("{CELL}@seed=2");
    let built = project
        .run(&["build", "--force=measured", "--only", &only])
        .ends_with(0);
    assert_eq!(built.stderr.matches(": started (").count(), 1, "{built:?}");
    assert!(
        built.stderr.contains("1 of 1 selected cell measured"),
        "{built:?}"
    );
    assert!(built.stdout.contains("seed=2"), "{built:?}");
    for other in ["seed=1", "seed=3", "{1,2,3}"] {
        assert!(!built.stdout.contains(other), "{built:?}");
    }
    let details = format!("compare --only '{only}' --details");
    assert!(built.stdout.contains(&details), "{built:?}");
}

#[test]
fn what_has_figures_again_is_no_failed_cell() {
    let project = Project::new(&ONE_RUN.replace("\"tiny\"", "[\"tiny\", \"wide\"]"));
    project.run(&["build"]).ends_with(0);
    let good = project.read("trainer.sh");
    project.write("trainer.sh", &format!("{good}\nexit 3\n"));
    project.run(&["build", "--only", CELL]).ends_with(1);
    assert_eq!(
        project.run(&["list", "--failed"]).ends_with(0).stdout,
        format!("{CELL}\n")
    );
    project.write("trainer.sh", &good);
    project.run(&["list", "--failed"]).ends_with(4);
    project.run(&["build", "--failed"]).ends_with(4);
}

#[test]
fn a_trainer_that_builds_its_own_project_is_told_at_once() {
    let project = Project::new(ONE_RUN);
    let trainer = project.read("trainer.sh");
    let tprimat = crate::support::TPRIMAT;
    let builds = format!("{tprimat} -C \"$TPRIMAT_PROJECT_DIR\" build || exit 7\n{trainer}");
    project.write("trainer.sh", &builds);
    let ran = project.run(&["build"]).ends_with(1);
    assert!(ran.stderr.contains("exit 7"), "{ran:?}");
    let log = project.run(&["logs", CELL]).ends_with(0).stdout;
    assert!(
        log.contains("of this project, whose end it would wait for"),
        "{log}"
    );
}

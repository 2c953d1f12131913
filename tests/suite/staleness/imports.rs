//! What a Python trainer imports, and the packages that it runs with.

use std::fs;

use super::LATER;
use crate::support::{Project, Ran, tasks::SMALL};

/// Reads its job, imports `net`, and prints the events of a run.
const TRAIN: &str = r#"
import json, os
with open(os.path.join(os.environ["TPRIMAT_PROJECT_DIR"], "launches"), "a") as file:
    file.write(os.environ["TPRIMAT_RUN_ID"] + "\n")
IMPORTS
job = json.load(open(os.environ["TPRIMAT_JOB"]))
def say(**event):
    print(json.dumps(event), flush=True)
say(event="start", schema="tprimat.events/1", effective={"seq_length": job["data"]["seq_length"], "global_batch_size": 1, "num_gpus": 1})
for step in range(1, job["train_iters"] + 1):
    say(event="step", step=step, step_time_seconds=0.01 + step / 1000, loss=9.5 - step)
say(event="end", status="ok", steps=job["train_iters"])
"#;

/// One cell whose trainer is `src/train.py`, with the lines that import.
fn of_python(imports: &str) -> Project {
    let project = Project::of_two();
    project
        .edit(
            "matrix.toml",
            "model = [\"small\", \"large\"]",
            "model = \"small\"",
        )
        .edit("matrix.toml", "repeats = 2", "repeats = 1")
        .edit(
            "config.yaml",
            "command: \"bash train.sh\", inputs: [train.sh]",
            "command: \"python3 src/train.py\"",
        )
        .write("src/train.py", &TRAIN.replace("IMPORTS", imports))
        .write("src/net.py", "LAYERS = 1\n");
    project
}

fn why(project: &Project) -> String {
    project.plan(&[])[&format!("train {SMALL}#1")]
        .reason
        .clone()
}

#[test]
fn a_module_beside_the_script_is_an_input_and_what_is_no_code_is_none() {
    let project = of_python("import net, kernels.gelu");
    project
        .write("src/kernels/gelu.py", "")
        .write("src/kernels/gelu.cu", "// 1\n");
    fs::create_dir(project.path(".shared")).unwrap();
    project.write(".shared/linked.py", "# 1\n");
    std::os::unix::fs::symlink("../.shared", project.path("src/ext")).unwrap();
    assert_eq!(project.build(&[]).code, 0);
    for (name, text) in [
        ("src/net.py", "LAYERS = 2\n"),
        ("src/kernels/gelu.cu", "// 2\n"),
        ("src/new.py", "# git does not know it yet\n"),
        (".shared/linked.py", "# 2\n"),
    ] {
        project.write(name, text);
        let name = name.replace(".shared", "src/ext");
        assert!(why(&project).contains(&name), "{name}: {}", why(&project));
        project.expect(
            &["train *", "parse *", "aggregate *", LATER],
            &["train *", "parse *", "aggregate *", LATER],
        );
    }
    for (name, text) in [
        ("README.md", "# of the project\n"),
        ("src/notes.txt", "a\n"),
        ("src/.ipynb_checkpoints/net.py", "LAYERS = 3\n"),
        ("src/env/pyvenv.cfg", "home = /usr/bin\n"),
        ("src/env/lib/x.py", "\n"),
        ("other/script.py", "\n"),
        ("baseline.json", "{}\n"),
    ] {
        project.write(name, text);
    }
    for words in [
        &["init", "-q"][..],
        &["add", "tprimat.lock", "baseline.json"],
    ] {
        let git = std::process::Command::new("git")
            .arg("-C")
            .arg(project.path(""))
            .args(words)
            .status();
        assert!(git.unwrap().success());
    }
    project.expect_nothing();
    let told = project.run(&["check"]).ends_with(0).stderr;
    assert!(
        told.contains(
            "src/train.py, which the command names, and 5 files of code below its folder"
        ),
        "{told}"
    );
}

/// Adds `lib` to the path of modules, beside the folder of the script.
const FROM_LIB: &str =
    "import sys; sys.path.insert(0, os.path.join(os.environ['TPRIMAT_PROJECT_DIR'], 'lib'))";

#[test]
fn a_module_that_is_no_input_ends_the_run_with_the_line_to_add() {
    let project = of_python(&format!("{FROM_LIB}\nimport far"));
    project.write("lib/far.py", "\n");
    let ran = project.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr
            .contains("lib/far.py is imported and is not an input"),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains(r#"frameworks.cmd.inputs: ["lib/**/*.py"]"#),
        "{ran:?}"
    );
    // The same would come again.
    project.run(&["build"]).ends_with(1);
    assert_eq!(project.launches(), 1);
    project.edit(
        "config.yaml",
        "src/train.py\"",
        "src/train.py\", inputs: [\"lib/**/*.py\"]",
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 2));
    project.write("lib/far.py", "# slower\n");
    assert!(why(&project).contains("lib/far.py"));
}

#[test]
fn what_is_imported_late_costs_no_other_run_once_it_is_an_input() {
    // As late as the hook takes it to be.
    let late = "os.utime(os.path.join(os.environ['TPRIMAT_IMPORTS'], 'inputs.json'), (1, 1))";
    let project = of_python("");
    let text = project.read("src/train.py");
    let hook = text.replace("import json, os", &format!("import json, os\n{late}"));
    project.write("src/train.py", &format!("{hook}{FROM_LIB}\nimport far\n"));
    project.write("lib/far.py", "\n");
    let restarted = "import importlib.util, subprocess";
    assert!(!hook.contains(restarted));
    let ran = project.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr
            .contains(r#"`frameworks.cmd.inputs: ["lib/far.py"]`"#),
        "{ran:?}"
    );
    project.run(&["build"]).ends_with(1);
    assert_eq!(project.launches(), 1);
    project.edit(
        "config.yaml",
        "src/train.py\"",
        "src/train.py\", inputs: [lib/far.py]",
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 1));
    project.expect_nothing();
}

/// A `sitecustomize` of the user's still runs, and a Python that hides what it imports is told of.
#[test]
fn the_environments_own_hook_runs_and_a_python_that_says_nothing_is_told_of() {
    let project = of_python("assert os.environ['OWN_HOOK'] == 'ran'; import net");
    project
        .write(
            "hooks/sitecustomize.py",
            "import os; os.environ['OWN_HOOK'] = 'ran'\n",
        )
        .edit(
            "config.yaml",
            "OF_FRAMEWORK: \"0\"",
            "PYTHONPATH: \"${PROJECT}/hooks\"",
        )
        .edit(
            "config.yaml",
            "src/train.py\"",
            "src/train.py\", inputs: [hooks/sitecustomize.py]",
        );
    let with_root = |project: &Project| {
        let root = project.path("").display().to_string();
        project.edit("config.yaml", "${PROJECT}/", &root);
    };
    with_root(&project);
    let ran = project.run(&["build"]).ends_with(0);
    assert!(!ran.stderr.contains("said what it imports"), "{ran:?}");
    let quiet = of_python("import net");
    quiet.edit("config.yaml", "python3 src", "python3 -E src");
    let Ran { stderr, .. } = quiet.run(&["build"]).ends_with(0);
    assert!(
        stderr.contains("no Python of this run said what it imports"),
        "{stderr}"
    );
}

/// A folder with an interpreter of its own and packages in it.
fn environment(project: &Project, name: &str, torch: &str) {
    project
        .write(
            &format!("{name}/pyvenv.cfg"),
            "home = /usr/bin\ninclude-system-site-packages = false\n",
        )
        .write(
            &format!("{name}/lib/python3.11/site-packages/torch-{torch}.dist-info/METADATA"),
            &format!("Name: torch\nVersion: {torch}\n"),
        );
    fs::create_dir_all(project.path(&format!("{name}/bin"))).unwrap();
    let python = project.path(&format!("{name}/bin/python"));
    if !python.exists() {
        std::os::unix::fs::symlink("/usr/bin/python3", python).unwrap();
    }
}

#[test]
fn another_version_of_a_package_that_decides_the_speed_is_another_measurement() {
    let project = of_python("import net");
    environment(&project, "env", "2.10.0");
    environment(&project, "next", "2.11.0");
    project.edit("config.yaml", "python3 src", "env/bin/python src");
    assert_eq!(project.build(&[]).code, 0);
    let lock = project.read("tprimat.lock");
    assert!(
        lock.contains("cmd env/bin/python") && lock.contains("torch = \"2.10.0\""),
        "{lock}"
    );
    project.expect_nothing();
    fs::remove_dir_all(project.path("env/lib")).unwrap();
    environment(&project, "env", "2.11.0");
    // What is measured still stands for what is locked, and whoever upgraded is told.
    let ran = project.run(&["build"]).ends_with(0);
    assert!(
        ran.stderr.contains("has torch 2.11.0 (locked: 2.10.0)"),
        "{ran:?}"
    );
    let ran = project.run(&["build", "--require=locked"]).ends_with(2);
    assert!(
        ran.stderr.contains("locked \"2.10.0\", found \"2.11.0\""),
        "{ran:?}"
    );
    project.run(&["lock", "--update"]).ends_with(0);
    assert!(
        why(&project).contains("torch 2.10.0 → 2.11.0"),
        "{}",
        why(&project)
    );
    assert_eq!((project.build(&[]).code, project.launches()), (0, 2));
    // Two environments of one matrix are pinned beside each other.
    let axis = r#"
[matrix.axes.env]
path = "frameworks.cmd.env.ENV"
values = ["env", "next"]
[[override]]
where = { env = "next" }
set = { "frameworks.cmd.command" = ["next/bin/python", "src/train.py"] }
"#;
    project.write("matrix.toml", &(project.read("matrix.toml") + axis));
    project.run(&["build"]).ends_with(0);
    assert!(project.read("tprimat.lock").contains("cmd next/bin/python"));
}

//! Commands that only look at a project start no program that the project brings.

use std::{fs, path::Path};

use crate::arena::{Arena, one_user};

/// Everything that plans, and trains nothing. `logs` and `gate` fail for want of a measurement,
/// which is after planning.
pub const READING: &[&[&str]] = &[
    &["plan"],
    &["check"],
    &["build", "-n"],
    &["list"],
    &["report"],
    &["compare"],
    &["show", "--stale", "cpu/evil/tiny/single"],
    &["print", "graph"],
    &["fit"],
    &["show", "cpu/evil/tiny/single"],
    &["logs", "cpu/evil/tiny/single"],
    &["lock"],
    &["config"],
    &["import", "any.log"],
];

/// A recipe whose facts tprimat looks up on this host.
const EVIL: &str = r#"id = "evil"
name = "evil"
vendors = ["cpu"]
[launch]
templates = []
command = ["true"]
reads_job = true
[lock]
packages = ["torch"]
[[require.checkouts]]
variable = "X_PATH"
setting = "paths.primus"
file = "train.py"
help = "x"
[log]
format = "tprimat"
"#;

pub const LOG: &str = r#"{"event":"start","schema":"tprimat.events/1","trainer":"x","effective":{}}
{"event":"step","step":1,"step_time_seconds":0.1,"loss":2.0,"tokens":32}
{"event":"end","status":"ok","steps":1}
"#;

pub fn hostile_project(arena: &Arena) -> std::path::PathBuf {
    let root = arena.project("project");
    let config = crate::support::CONFIG.replace(
        "frameworks:\n",
        "paths:\n  primus: third_party/primus\nframeworks:\n  evil: {}\n",
    );
    arena.write("project/config.yaml", &config);
    arena.write(
        "project/matrix.toml",
        &crate::support::ONE_RUN.replace("\"cmd\"", "\"evil\""),
    );
    arena.write("project/recipes/evil/recipe.toml", EVIL);
    arena.write("project/any.log", LOG);
    root
}

#[track_caller]
fn nothing_runs(arena: &Arena, root: &Path, env: &[(&str, &str)]) {
    let mark = arena.path("mark");
    for command in READING {
        let ran = arena.run_with(root, command, env);
        assert!(
            !mark.exists(),
            "{command:?} ran a program of the project: {}\n{ran:?}",
            fs::read_to_string(&mark).unwrap()
        );
        assert_ne!(ran.code, Some(101), "{command:?}: {ran:?}");
    }
    let ran = arena.run_with(root, &["plan"], env);
    assert_eq!(
        ran.code,
        Some(0),
        "the project is planned, else this shows nothing: {ran:?}"
    );
}

#[test]
fn the_interpreter_of_a_strangers_project_is_not_started() {
    let arena = Arena::new();
    let root = hostile_project(&arena);
    let program = format!(
        "#!/bin/sh\necho \"PWNED $HF_TOKEN\" >>{}\n",
        arena.path("mark").display()
    );
    arena.program("project/.venv/bin/python", &program);
    arena.write("project/.venv/bin/python3.12", "");
    nothing_runs(&arena, &root, &[("HF_TOKEN", "sekret-sekret")]);
    let config = fs::read_to_string(root.join("config.yaml")).unwrap();
    arena.write(
        "project/config.yaml",
        &config.replace("paths:\n", "paths:\n  python: ./pwn.sh\n"),
    );
    arena.program("project/pwn.sh", &program);
    nothing_runs(&arena, &root, &[]);
}

#[test]
fn the_settings_of_a_strangers_checkout_are_not_obeyed() {
    let arena = Arena::new();
    let root = hostile_project(&arena);
    let program = format!("echo PWNED >>{}; cat", arena.path("mark").display());
    let hostile = |name: &str| {
        arena.write(&format!("{name}/train.py"), "print(1)\n");
        let line = format!(
            "git init -q && git -c user.name=x -c user.email=x@x add . && \
             git -c user.name=x -c user.email=x@x -c commit.gpgsign=false commit -qm x && \
             printf '*.py filter=evil diff=evil\\n' >.gitattributes && echo 'print(2)' >train.py && \
             for name in core.fsmonitor filter.evil.clean diff.evil.textconv diff.evil.command diff.external; do \
             git config $name '{program}'; done"
        );
        arena.shell(&arena.path(name), &line, false);
    };
    hostile("project/third_party/primus");
    nothing_runs(&arena, &root, &[]);
    // As plain files, a bare repository comes with any clone of the project; git finds it above the
    // work tree.
    fs::remove_dir_all(root.join("third_party")).unwrap();
    hostile("bare/primus");
    arena.shell(
        &arena.path("bare"),
        "mv primus/.git third_party && mv primus third_party/ && mv third_party ../project/ && \
         git config -f ../project/third_party/config core.worktree primus && \
         git config -f ../project/third_party/config core.bare false",
        false,
    );
    nothing_runs(&arena, &root, &[]);
}

#[test]
fn ones_own_project_is_not_refused() {
    let project = one_user();
    project.run(&["check"]).ends_with(0);
}

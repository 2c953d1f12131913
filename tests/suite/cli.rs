//! What a user meets who errs: every error as it is printed, exit codes, and how commands name what
//! they are about.

use std::fs;

use crate::support::{ONE_RUN, Project, Ran};

/// Two cells that share all their settings: one mistake is one message.
pub(crate) const TWO_CELLS: &str = r#"[matrix]
name = "two"
platform = "cpu"
framework = "cmd"
model = ["tiny", "wide"]
parallelism = "single"
repeats = 1
"#;

/// stderr, with what differs from run to run replaced.
fn said(project: &Project, ran: &Ran) -> String {
    assert_eq!(ran.stdout, "", "an error prints no data");
    ran.stderr
        .replace(project.folder().to_str().unwrap(), "[folder]")
}

/// Snapshots what a failing command says.
macro_rules! message {
    ($name:literal, $project:expr, $arguments:expr, $code:expr) => {
        let project = &$project;
        let ran = project.run(&$arguments).ends_with($code);
        insta::assert_snapshot!($name, said(project, &ran));
    };
}

#[test]
fn a_command_that_is_gone_is_answered_with_what_to_use() {
    let project = Project::new(ONE_RUN);
    for (command, instead) in [
        (&["attach", "20260101T000000.000Z"][..], "status --wait"),
        (&["watch", "--port", "8000"], "status"),
        (&["explain", "cpu/cmd/tiny/single"], "show CELL --stale"),
    ] {
        let told = project.run(command).ends_with(2).stderr;
        let gone = format!("`{}` is now `tprimat {instead}`", command[0]);
        assert!(told.contains(&gone), "{told}");
    }
}

#[test]
fn commands_on_an_unsupported_cell_say_why() {
    let project = Project::new(&ONE_RUN.replace("\"cmd\"", "\"prim\""));
    for command in [
        &["logs"][..],
        &["show"],
        &["show", "--stale"],
        &["show", "--attempts"],
    ] {
        let ran = project.run(&[command, &["cpu/prim/tiny/single"]].concat());
        let command = command.join(" ");
        assert!(!ran.stderr.contains("tprimat build"), "{command}: {ran:?}");
        assert!(
            ran.stderr.contains("runs on AMD GPUs only")
                || ran.stdout.contains("runs on AMD GPUs only"),
            "{command}: {ran:?}"
        );
    }
}

#[test]
fn mistakes_in_the_config_are_shown_where_they_are() {
    let config = |old: &str, new: &str| {
        let project = Project::new(TWO_CELLS);
        project.edit("config.yaml", old, new);
        project
    };
    let misspelt = config("seq_length: 16", "seq_lenght: 16");
    message!("config_unknown_key", misspelt, ["check"], 2);
    let mistyped = config("seq_length: 16", "seq_length: long");
    message!("config_wrong_type", mistyped, ["build"], 2);
    let impossible = config("num_gpus: 1, DP: 1", "num_gpus: 1, DP: 1, TP: 2");
    message!("config_impossible_parallelism", impossible, ["plan"], 2);
    let indivisible = config(
        "micro_batch_size: 1, global_batch_size: 2",
        "micro_batch_size: 2, global_batch_size: 3",
    );
    message!("config_indivisible_batch", indivisible, ["plan"], 2);
    let unreadable = config("models:", "models: [");
    message!("config_not_yaml", unreadable, ["plan"], 2);
}

#[test]
fn all_mistakes_are_told_at_once() {
    let project = Project::new(TWO_CELLS);
    project.edit("config.yaml", "vocab_size: 32", "vocab_size: many");
    project.edit("config.yaml", "skip_steps", "skip_step");
    message!("several_problems", project, ["check"], 2);
}

#[test]
fn mistakes_in_the_matrix_are_shown_where_they_are() {
    let project = Project::new(TWO_CELLS);
    project.write("misspelt.toml", &TWO_CELLS.replace("platform", "platfrom"));
    message!("matrix_unknown_key", project, ["plan", "misspelt.toml"], 2);
    project.write("broken.toml", "[matrix\n");
    message!("matrix_not_toml", project, ["plan", "broken.toml"], 2);
    project.write("stranger.toml", &TWO_CELLS.replace("tiny", "tyni"));
    message!(
        "matrix_unknown_model",
        project,
        ["plan", "stranger.toml"],
        2
    );
    fs::write(
        project.path("latin.toml"),
        b"[matrix]\nname = \"caf\xe9\"\n",
    )
    .unwrap();
    message!("matrix_not_utf8", project, ["plan", "latin.toml"], 2);
}

#[test]
fn a_missing_template_variable_is_shown_in_the_template() {
    let project = Project::new(TWO_CELLS);
    project.write(
        "templates/cmd.sh.j2",
        "#!/usr/bin/env bash\nexec train --length {{ job.data.seq_lenght }}\n",
    );
    for command in ["check", "plan", "build"] {
        message!("template_undefined", project, [command], 2);
    }
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let project = Project::new(TWO_CELLS);
    message!(
        "select_unknown_model",
        project,
        ["build", "--only", "cpu/cmd/tyni"],
        4
    );
    message!(
        "select_unknown_axis",
        project,
        ["build", "--where", "seed=1"],
        2
    );
    message!("matrix_not_there", project, ["plan", "quickstrat.toml"], 2);
    message!(
        "cell_not_there",
        project,
        ["show", "cpu/cmd/tiny/singel"],
        4
    );
    message!(
        "repeat_not_there",
        project,
        ["show", "--stale", "cpu/cmd/tiny/single#0"],
        2
    );
    message!("log_not_there", project, ["logs", "cpu/cmd/tiny/single"], 1);
    message!("schema_not_there", project, ["print", "schema", "jbo"], 2);
    message!(
        "setting_not_there",
        project,
        ["config", "get", "training.data.seq_lenght"],
        2
    );
    message!("file_not_there", project, ["parse", "no.log"], 2);
    message!(
        "clean_without_terminal",
        project,
        ["cache", "clean", "--all"],
        2
    );
    message!(
        "set_without_value",
        project,
        ["plan", "--set", "training.seed"],
        2
    );
    message!("folder_not_there", project, ["-C", "nowhere", "plan"], 2);
    message!("project_not_there", Project::empty(), ["plan"], 2);
}

#[test]
fn a_command_takes_the_flags_that_mean_something_to_it_and_no_other() {
    const CELLS: [&str; 4] = ["only", "skip", "where", "shard"];
    const MEASURED: [&str; 2] = ["repeats", "allow-drift"];
    const INSIST: [&str; 1] = ["force"];
    let project = Project::new(ONE_RUN);
    for (commands, wanted) in [
        (
            &["build", "plan"][..],
            [&CELLS[..], &MEASURED, &INSIST].concat(),
        ),
        (&["show"], [&MEASURED[..], &INSIST].concat()),
        (&["list", "gate"], [&CELLS[..], &MEASURED].concat()),
        (&["logs", "check"], MEASURED.to_vec()),
        (
            &["compare", "report"],
            [&["only", "skip", "where"][..], &MEASURED].concat(),
        ),
        (&["fit"], [&CELLS[..], &["allow-drift"]].concat()),
        (&["lock"], CELLS.to_vec()),
        (&["import", "parse", "config"], vec![]),
    ] {
        for command in commands {
            let help = project.run(&[command, "--help"]).ends_with(0).stdout;
            for flag in [&CELLS[..], &MEASURED, &INSIST].concat() {
                let flag = format!("--{flag}");
                assert_eq!(
                    help.contains(&flag),
                    wanted.contains(&&flag[2..]),
                    "{command} {flag}: {help}"
                );
                if !wanted.contains(&&flag[2..]) {
                    let refused = project.run(&[command, &flag]).ends_with(2).stderr;
                    assert!(
                        refused.contains(&format!("unexpected argument '{flag}'")),
                        "{command}: {refused}"
                    );
                }
            }
        }
    }
    project.run(&["list", "--exit-code"]).ends_with(2);
}

#[test]
fn an_empty_variable_is_as_if_its_line_were_left_out() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "config.yaml",
        "training:\n",
        "training:\n  seed: ${SEED_OF_NOBODY:-}\n",
    );
    project.edit(
        "config.yaml",
        "benchmarking:\n",
        "benchmarking:\n  output: { directory: }\n",
    );
    project.run(&["plan"]).ends_with(0);
}

#[test]
fn a_build_that_only_profiles_takes_no_option_of_measurements() {
    let project = Project::new(ONE_RUN);
    for option in ["--cached-only", "--max-gpu-hours=1", "--force=measured"] {
        let ran = project.run(&["build", option, "--set", "experiment.profiling=torch"]);
        let told = ran.ends_with(2).stderr;
        assert!(
            told.contains("experiment.profiling measures nothing"),
            "{told}"
        );
    }
    assert_eq!(project.launches(), 0);
}

#[test]
fn an_old_name_is_told_with_the_new_one() {
    let project = Project::empty();
    for (words, told) in [
        (
            &["explain", "a/b/c/d"][..],
            "`explain` is now `tprimat show CELL --stale`",
        ),
        (&["image", "list"], "`image` is now `tprimat container`"),
        (
            &["build", "--remeasure"],
            "`--remeasure` is now `--force=measured`",
        ),
        (
            &["build", "--locked"],
            "`--locked` is now `--require=locked`",
        ),
    ] {
        let ran = project.run(words).ends_with(2);
        assert!(ran.stderr.contains(told), "{ran:?}");
    }
}

#[test]
fn with_json_an_error_is_one_value_on_stdout() {
    let project = Project::new(TWO_CELLS);
    for (arguments, code) in [
        (vec!["plan", "--set", "training.data.seq_length=x"], 2),
        (vec!["build", "--only", "amd"], 4),
        (vec!["show", "cpu/cmd/tiny/single"], 1),
        (vec!["compare", "nothing.toml"], 2),
        (vec!["parse", "no.log"], 2),
    ] {
        let ran = project
            .run(&[&arguments[..], &["--json"]].concat())
            .ends_with(code);
        let error = &ran.json()["error"];
        assert_eq!(error["exit_code"], code, "{arguments:?}");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{arguments:?}"
        );
        assert!(
            error["problems"]
                .as_array()
                .is_some_and(|problems| !problems.is_empty()),
            "{arguments:?}"
        );
        assert_eq!(ran.stderr, "", "{arguments:?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let project = Project::new(TWO_CELLS);
    for arguments in [&["plan"][..], &["frob"], &["plan", "nothing.toml"]] {
        let ran: Ran = project
            .tprimat(arguments)
            .env("NO_COLOR", "1")
            .output()
            .unwrap()
            .into();
        assert!(
            !ran.stdout.contains('\x1b') && !ran.stderr.contains('\x1b'),
            "{arguments:?}"
        );
    }
}

/// A matrix is named behind the cells, by `--matrix`, or before them; where a command has no cell
/// it stands alone.
#[test]
fn a_matrix_is_named_in_one_way_everywhere() {
    let project = Project::new(ONE_RUN);
    let other = project
        .read("matrix.toml")
        .replace("name = \"", "name = \"other-");
    project.write("pipelines/other.toml", &other);
    project.run(&["build", "--matrix", "other"]).ends_with(0);
    const CELL: &str = "cpu/cmd/tiny/single";
    for words in [
        ["show", CELL, "other"].as_slice(),
        &["show", "other", CELL],
        &["show", "--matrix", "other", CELL],
        &["show", "--attempts", "pipelines/other.toml", CELL],
        &["logs", "other", CELL],
        &["show", "--stale", CELL, "--matrix", "other"],
        &["compare", "--matrix", "other"],
        &["doctor", "other"],
    ] {
        project.run(words).ends_with(0);
    }
    for words in [["logs", "--failed", "other"], ["logs", "--failed", CELL]] {
        let none = project.run(&words).ends_with(4).stderr;
        assert!(none.contains("no cell's last run failed"), "{none}");
    }
    let theirs = ONE_RUN.replace("\"tiny\"", "\"wide\"");
    project.write("pipelines/two.toml", &theirs.replace("\"one\"", "\"two\""));
    let elsewhere = project.run(&["show", "cpu/cmd/wide/single"]).ends_with(4);
    let words = "help: the matrix `two` has it: add `--matrix two`";
    assert!(elsewhere.stderr.contains(words), "{elsewhere:?}");
    let twice = project
        .run(&["compare", "other", "--matrix", "other"])
        .ends_with(2);
    assert!(twice.stderr.contains("name a matrix each"), "{twice:?}");
    let cell = project.run(&["build", CELL]).ends_with(2).stderr;
    assert!(cell.contains("--only CELL selects cells"), "{cell}");
}

/// A shell that completes asks tprimat, which knows the project's cells and matrices.
#[test]
fn cells_and_matrices_are_completed() {
    let project = Project::new(TWO_CELLS);
    project.write("pipelines/other.toml", ONE_RUN);
    let offered = |words: &[&str]| -> Vec<String> {
        let mut command = project.command(crate::support::TPRIMAT);
        command.args(["--", "tprimat"]).args(words);
        let ran: Ran = command
            .env("_TPRIMAT_COMPLETE", "fish")
            .output()
            .unwrap()
            .into();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.stderr, "");
        let offered = ran.stdout.lines().filter(|line| !line.starts_with('-'));
        let word = |line: &str| line.split('\t').next().unwrap().to_owned();
        offered.map(word).collect()
    };
    assert_eq!(offered(&["plan", ""]), ["matrix", "other"]);
    assert_eq!(offered(&["show", "cpu/cmd/t"]), ["cpu/cmd/tiny/single"]);
    assert_eq!(
        offered(&["compare", "--only", "cpu"]),
        ["cpu/cmd/tiny/single", "cpu/cmd/wide/single"]
    );
    assert_eq!(
        offered(&["build", "other", "--only", "cpu"]),
        ["cpu/cmd/tiny/single"],
        "cells of the matrix that the line names"
    );
    assert_eq!(offered(&["history", "x"]), Vec::<String>::new());
    assert_eq!(offered(&["hist"]), ["history"]);
    assert_eq!(offered(&["cache", "set"]), ["set-aside"]);
    assert_eq!(offered(&["compare", "--format", "m"]), ["markdown"]);
    assert_eq!(offered(&["compare", "--across", "seq_l"]), ["seq_length"]);
    // Nothing of a project that cannot be read, and no error between the lines of a shell.
    assert_eq!(
        offered(&["-C", "pipelines/none", "show", "cpu"]),
        Vec::<String>::new()
    );
    project.write("config.yaml.kept", &project.read("config.yaml"));
    project.write("config.yaml", "models: [");
    assert_eq!(offered(&["show", "cpu"]), Vec::<String>::new());
    project.write("config.yaml", &project.read("config.yaml.kept"));
    // A shell that was offered the longer one alone would write on.
    project.write("pipelines/o.toml", ONE_RUN);
    assert_eq!(offered(&["plan", "o"]), ["o", "other"]);
    let script = format!(
        "shopt -s progcomp; tprimat() {{ {tprimat} \"$@\"; }}; . <(tprimat print completions bash)\n\
         COMP_WORDS=(tprimat show cpu/cmd/w) COMP_CWORD=2 COMP_TYPE=9\n\
         _clap_complete_tprimat tprimat cpu/cmd/w show; echo \"${{COMPREPLY[@]}}\"",
        tprimat = crate::support::TPRIMAT
    );
    let ran: Ran = project
        .command("bash")
        .args(["-euc", &script])
        .output()
        .unwrap()
        .into();
    assert_eq!(ran.ends_with(0).stdout, "cpu/cmd/wide/single\n");
}

#[test]
fn how_much_is_said_and_in_which_colours_is_the_callers_choice() {
    let project = Project::new(ONE_RUN);
    let quiet = project.run(&["build", "-q"]).ends_with(0);
    assert_eq!(quiet.stderr, "");
    assert!(quiet.stdout.contains("cpu/cmd"), "{}", quiet.stdout);
    project.run(&["cache", "clean", "--yes"]).ends_with(0);
    let verbose = project.run(&["-v", "build"]).ends_with(0).stderr;
    for part in ["matrix.toml (1 cell)", "cache: ", "report "] {
        assert!(verbose.contains(part), "{part}: {verbose}");
    }
    let both = project.run(&["-q", "plan", "-v"]).ends_with(2).stderr;
    assert!(both.contains("--quiet and --verbose"), "{both}");
    let failed = project.run(&["-q", "show", "no/such/cell/x"]).ends_with(4);
    assert!(
        failed.stderr.contains("no/such/cell/x"),
        "{}",
        failed.stderr
    );

    let is_coloured = |arguments: &[&str], set: &[(&str, &str)]| {
        let mut command = project.command(crate::support::TPRIMAT);
        let ran: Ran = command
            .args(arguments)
            .envs(set.iter().copied())
            .output()
            .unwrap()
            .into();
        (ran.stdout + &ran.stderr).contains('\x1b')
    };
    for (arguments, name) in [
        (["compare", "--details"].as_slice(), "a table"),
        (
            &["show", "no/such/cell/x", "--set", "nothing=1"],
            "an error",
        ),
        (&["--no-such-option"], "an error of the command line"),
        (&["plan", "--help"], "a help"),
    ] {
        let with = |more: &[&'static str], set: &[(&str, &str)]| {
            is_coloured(&[more, arguments].concat(), set)
        };
        assert!(!with(&[], &[]), "{name}: a pipe has no colours");
        assert!(with(&["--color", "always"], &[]), "{name}");
        assert!(with(&["--color=always"], &[("NO_COLOR", "1")]), "{name}");
        assert!(with(&[], &[("CLICOLOR_FORCE", "1")]), "{name}");
        assert!(
            !with(&["--color=never"], &[("CLICOLOR_FORCE", "1")]),
            "{name}"
        );
        assert!(
            !with(&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]),
            "{name}"
        );
    }
}

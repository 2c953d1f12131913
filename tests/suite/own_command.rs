//! A script of the user's own: its command takes the job's settings, one line says how its log
//! reads, and what the matrix varies has to reach it.

use std::collections::BTreeSet;

use crate::support::{ONE_RUN, Project};

/// Prints a rate and no time, as scripts do; its steps take what the rate says.
const SCRIPT: &str = "for step in 1 2 3 4 5 6 7 8; do sleep 0.02; echo \"step $step loss 3.$step, tokens/s $(($1 * 50 / 1000)).0k\"; done\n";
const LINE: &str = "step <step> loss <loss>, tokens/s <tokens_per_second>";
const MATRIX: &str =
    "[matrix.axes.seq]\npath = \"training.data.seq_length\"\nvalues = [1000, 2000]\n";

fn project(command: &str) -> Project {
    let project = Project::new(&format!(
        "{}{MATRIX}",
        ONE_RUN.replace("\"cmd\"", "\"mine\"")
    ));
    project.write("print.sh", SCRIPT).remove("trainer.sh");
    project.edit("config.yaml", ", inputs: [trainer.sh]", "");
    project.edit("config.yaml", "train_iters: 6", "train_iters: 8");
    project.edit(
        "config.yaml",
        "global_batch_size: 2",
        "global_batch_size: 1",
    );
    project.edit(
        "config.yaml",
        "frameworks:\n",
        &format!("frameworks:\n  mine:\n    command: {command}\n    log: \"{LINE}\"\n"),
    );
    project
}

#[test]
fn a_script_that_prints_its_rate_is_measured_by_two_lines_of_config() {
    let project = project("bash print.sh {{ seq_length }}");
    project.run(&["check"]).ends_with(0);
    let built = project.run(&["build"]).ends_with(0);
    assert!(built.stderr.contains("2 runs made"), "{}", built.stderr);
    let compared = project.run(&["compare", "--json"]).ends_with(0).json();
    let rows = compared["rows"].as_array().unwrap();
    let rate = |axis: &str| {
        let row = rows
            .iter()
            .find(|row| row["cell"].as_str().unwrap().ends_with(axis));
        row.unwrap()["tokens_per_second"].as_f64().unwrap()
    };
    assert_eq!(
        [rate("seq=1000"), rate("seq=2000")].map(f64::round),
        [50_000.0, 100_000.0]
    );
    let shown = project.run(&["show", "cpu/mine/tiny/single@seq=2000", "--launch"]);
    assert!(shown.ends_with(0).stdout.contains("print.sh 2000"));
    // The script is an input, as a file of any command is.
    project.edit("print.sh", "loss 3", "loss 2");
    let plan = project.run(&["plan"]).ends_with(0).stdout;
    assert!(plan.contains("print.sh edited"), "{plan}");
}

/// The command hands the learning rate over, and the script does not look at it.
#[test]
fn losses_that_are_the_same_at_another_learning_rate_show_that_it_does_not_reach_the_training() {
    let project = project("bash print.sh {{ learning_rate }}");
    project.edit("config.yaml", "train_iters: 8", "train_iters: 12");
    project.edit("matrix.toml", "[matrix.axes.seq]", "[matrix.axes.lr]");
    project.edit(
        "matrix.toml",
        "training.data.seq_length",
        "training.optimizer.learning_rate",
    );
    project.edit("matrix.toml", "[1000, 2000]", "[0.001, 0.002]");
    let script = |loss: &str| {
        format!(
            "for step in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.02; echo \"step $step loss {loss}$step, tokens/s 0.76k\"; done\n"
        )
    };
    project
        .write("print.sh", &script("3."))
        .run(&["build"])
        .ends_with(1);
    let compared = project.run(&["compare"]);
    let told = compared
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        told.contains("those of a cell with another learning_rate"),
        "{told}"
    );
    let runs = project.json(&["list"])["cells"][0]["cell"].clone();
    let runs = project.json(&["show", runs.as_str().unwrap(), "--attempts"]);
    assert_eq!(runs["attempts"][0]["counts"], false, "{runs}");
    project
        .write("print.sh", &script("${1#0.00}."))
        .run(&["build"])
        .ends_with(0);
    assert_eq!(
        project.json(&["compare"])["rows"].as_array().unwrap().len(),
        2
    );
}

/// What a run that ended well printed last is whole, also without the end of a line.
#[test]
fn the_last_line_of_a_good_run_counts_without_its_end() {
    let project = project("bash print.sh {{ seq_length }}");
    let rate = "loss 3.$step, tokens/s $(($1 * 50))";
    let steps =
        format!("for step in 1 2 3 4 5 6 7; do sleep 0.02; echo \"step $step {rate}\"; done");
    let last = format!("sleep 0.02; step=8; printf '%s' \"step $step {rate}\"");
    project.write("print.sh", &format!("{steps}\n{last}\n"));
    project.run(&["build"]).ends_with(0);
    let rows = project.json(&["compare"])["rows"].as_array().unwrap().len();
    assert_eq!(rows, 2);
}

/// Keys and tprimat.lock speak of the Python that the settings name, so a command starts that one.
#[test]
fn python3_of_a_command_is_the_python_that_the_settings_name() {
    use std::os::unix::fs::PermissionsExt;
    let project = project("python3 print.sh {{ seq_length }}");
    project.edit("config.yaml", "  mine:\n", "  mine:\n    python: own\n");
    project.write("own/pyvenv.cfg", "home = /usr/bin\n");
    project.write("own/lib/python3.11/site-packages/none", "");
    for name in ["python", "python3"] {
        project.write(
            &format!("own/bin/{name}"),
            "#!/bin/bash\necho the own one\nexec bash \"$@\"\n",
        );
        let path = project.path("own/bin").join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    project.run(&["build"]).ends_with(0);
    let log = project.run(&["logs", "cpu/mine/tiny/single@seq=1000"]);
    let log = log.ends_with(0).stdout;
    assert!(log.contains("the own one"), "{log}");
}

/// Where nothing that a first build ran counts, another Python may be named without a word of drift.
#[test]
fn a_first_build_whose_runs_all_fail_pins_nothing() {
    let project = project("bash print.sh {{ seq_length }}");
    project.write("print.sh", "exit 1\n");
    project.run(&["build"]).ends_with(1);
    assert!(!project.path("tprimat.lock").exists());
    project.write("print.sh", SCRIPT);
    project.run(&["build"]).ends_with(0);
    assert!(project.path("tprimat.lock").exists());
}

#[test]
fn what_the_matrix_varies_must_reach_the_command() {
    let project = project("bash print.sh 1000");
    let refused = project.run(&["check"]).ends_with(2).stderr;
    for part in [
        "the matrix varies `data.seq_length`",
        "config.yaml:",
        "write `{{ seq_length }}` into it",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    let refused = project.run(&["build"]).ends_with(2).stderr;
    assert!(refused.contains("would have no rate"), "{refused}");
    // A log that could state the setting may have a rate; this one does not state it.
    let lines = format!("log: [\"{LINE}\", \"length <effective_seq_length>\"]");
    project.edit("config.yaml", &format!("log: \"{LINE}\""), &lines);
    project.run(&["build"]);
    let compared = project.run(&["compare", "--json"]).json();
    assert_eq!(
        compared["rows"].as_array().map(Vec::len),
        Some(0),
        "{compared}"
    );
    assert!(
        compared["absent"]
            .to_string()
            .contains("does not hand over seq_length")
    );
    // A script that opens the job reads whatever it wants of it.
    project.edit("print.sh", "for", "# $TPRIMAT_JOB\nfor");
    project.run(&["check"]).ends_with(0);
}

/// An option of the framework's own has no name in tprimat's tables, and must reach the command all the same.
#[test]
fn an_option_that_the_matrix_varies_must_reach_the_command() {
    let of = |command: &str| {
        let project = project(command);
        let own = "path = \"frameworks.mine.kernel\"\nvalues = [1000, 2000]";
        project.edit(
            "matrix.toml",
            "path = \"training.data.seq_length\"\nvalues = [1000, 2000]",
            own,
        );
        project
    };
    let refused = of("bash print.sh 1000").run(&["check"]).ends_with(2).stderr;
    for part in [
        "the matrix varies `frameworks.mine.kernel`",
        "write `{{ job.framework.kernel }}` into it",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    for named in ["{{ job.framework.kernel }}", "{{ kernel }}"] {
        of(&format!("bash print.sh {named}"))
            .run(&["check"])
            .ends_with(0);
    }
}

/// Tables name a cell's precision, which would be that of all cells.
#[test]
fn a_format_is_varied_as_the_precision_and_not_as_an_option() {
    let axis = "[matrix.axes.dtype]\npath = \"frameworks.mine.dtype\"\nvalues = [\"float32\", \"bfloat16\"]\n";
    let project = project("bash print.sh {{ seq_length }} {{ dtype }}");
    project.write(
        "matrix.toml",
        &format!("{}{axis}", ONE_RUN.replace("\"cmd\"", "\"mine\"")),
    );
    let refused = project.run(&["check"]).ends_with(2).stderr;
    for words in [
        "`frameworks.mine.dtype` is bfloat16, float32 in the matrix",
        "vary `training.precision.default` instead",
    ] {
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn a_setting_that_is_misspelt_is_told_with_the_right_one() {
    for (typed, told) in [
        ("{{ seqlength }}", "did you mean `seq_length`?"),
        ("{seq_length}", "write `{{ seq_length }}`"),
    ] {
        let project = project(&format!("\"bash print.sh {typed}\""));
        let refused = project.run(&["check"]).ends_with(2).stderr;
        assert!(
            refused.contains(told) && refused.contains("print.sh"),
            "{refused}"
        );
    }
    let project = project("bash print.sh {{ seq_length }}");
    project.edit("config.yaml", "<loss>", "<los>");
    let refused = project.run(&["check"]).ends_with(2).stderr;
    assert!(refused.contains("did you mean `loss`?"), "{refused}");
}

#[test]
fn a_log_that_no_format_reads_is_answered_with_a_line_that_does() {
    let project = Project::new(ONE_RUN);
    let log: String = (1..=9)
        .map(|n| format!("step {n} loss 3.{n}, tokens/s {}\n", 900 + n))
        .collect();
    project.write("train.log", &log);
    let told = project.run(&["parse", "train.log"]).ends_with(2).stderr;
    assert!(told.contains(&format!("log: \"{LINE}\"")), "{told}");
    let read = project
        .run(&["parse", "train.log", "--format", LINE])
        .ends_with(0)
        .stdout;
    assert!(
        read.contains("9 steps") && read.contains("909 tokens/s  loss 3.9"),
        "{read}"
    );
}

/// A script of Hugging Face's Trainer that says nothing of logging, as it is.
#[test]
fn a_log_of_a_known_format_is_read_unasked_and_a_rate_of_the_whole_run_says_so() {
    let project = project("bash print.sh {{ seq_length }}");
    project.edit("config.yaml", &format!("    log: \"{LINE}\"\n"), "");
    let summary = "{'train_runtime': '0.04', 'train_samples_per_second': '200', 'train_steps_per_second': '200', \
                   'train_loss': '5.56', 'epoch': '0.04'}";
    project.write("print.sh", &format!("sleep 0.1\ncat <<'E'\n{summary}\nE\n"));
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built.stdout.contains("its rate is that of the whole run"),
        "{}",
        built.stdout
    );
    let compared = project.run(&["compare", "--json"]).ends_with(0).json();
    let rates = compared["rows"].as_array().unwrap().iter();
    let rates: Vec<_> = rates
        .map(|row| row["tokens_per_second"].as_f64().unwrap().round())
        .collect();
    assert_eq!(rates, [200_000.0, 400_000.0]);
    // Lines that nobody knows are answered with the line that reads them, at once.
    project.write("print.sh", &SCRIPT.replace(".0k", ".${step}k"));
    let built = project.run(&["build"]).ends_with(1);
    assert!(
        built
            .stderr
            .contains(&format!("`log: \"{LINE}\"` below frameworks.mine reads")),
        "{}",
        built.stderr
    );
}

/// Also where the format was found by looking: the log grows more slowly than its step times say.
#[test]
fn step_times_of_a_known_format_are_held_against_the_clock() {
    let project = project("bash print.sh {{ seq_length }}");
    project.edit("config.yaml", &format!("    log: \"{LINE}\"\n"), "");
    project.edit("config.yaml", "train_iters: 8", "train_iters: 30");
    let lines = "for step in $(seq 0 29); do sleep 0.06; echo \"iter $step: loss 3.$step, time 12.00ms, mfu 10.0%\"; done\n";
    project.write("print.sh", lines);
    project.run(&["build"]);
    let compared = project.run(&["compare", "--details"]).stdout;
    let said = compared.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("pass from one to the next by tprimat's clock"),
        "{compared}"
    );
}

/// Only the script knows its model: there are rates, and nothing that is made of a shape.
#[test]
fn a_model_of_the_scripts_own_has_a_rate_and_no_flops() {
    for counted in ["", ", num_parameters: 1000"] {
        let project = project("bash print.sh {{ seq_length }}");
        project.edit(
            "config.yaml",
            "models:\n",
            &format!("models:\n  own: {{ architecture: other{counted} }}\n"),
        );
        project.edit("matrix.toml", "\"tiny\"", "\"own\"");
        project.run(&["build"]).ends_with(0);
        let compared = project.run(&["compare", "--json"]).ends_with(0).json();
        let row = &compared["rows"][0];
        assert_eq!(
            row["tokens_per_second"].as_f64().map(f64::round),
            Some(50_000.0)
        );
        let text = compared.to_string();
        assert!(!text.contains("ln("), "{text}");
        let shown = project.run(&["compare", "--details"]).ends_with(0).stdout;
        assert!(!shown.contains("TFLOP/s"), "{shown}");
        // What makes a model by its shape cannot make this one.
        project.edit("matrix.toml", "\"mine\"", "[\"mine\", \"tran\"]");
        let plan = project.run(&["plan"]).ends_with(0).stdout;
        assert!(
            plan.contains("the architecture of `own` is `other`"),
            "{plan}"
        );
    }
    let project = project("bash print.sh {{ seq_length }}");
    project.edit("config.yaml", "architecture: llama", "architecture: mamba");
    let refused = project.run(&["check"]).ends_with(2).stderr;
    assert!(refused.contains("other, for a model of"), "{refused}");
}

/// What nobody wrote is no claim: neither the shape of a model that only the script knows, nor a default that the command
/// is not given.
#[test]
fn a_trainer_contradicts_only_what_somebody_wrote() {
    let project = project("bash print.sh {{ seq_length }}");
    project.edit("config.yaml", &format!("    log: \"{LINE}\"\n"), "");
    project.edit(
        "config.yaml",
        "models:\n",
        "models:\n  own: { architecture: other }\n",
    );
    project.edit("matrix.toml", "\"tiny\"", "\"own\"");
    let script = r#"echo "{\"event\":\"start\",\"schema\":\"tprimat.events/1\",\"effective\":{\"architecture\":\"gpt2\",\"num_layers\":3,\"vocab_size\":50,\"tie_embeddings\":true,\"weight_decay\":0.0,\"beta2\":0.999,\"seed\":42,\"seq_length\":$1,\"global_batch_size\":1,\"num_gpus\":1}}"
for step in 1 2 3 4 5 6 7 8; do sleep 0.02; echo "{\"event\":\"step\",\"step\":$step,\"loss\":3.5,\"step_time_seconds\":0.02}"; done
echo '{"event":"end","status":"ok","steps":8}'
"#;
    project.write("print.sh", script);
    project.run(&["build"]).ends_with(0);
    let told = project.run(&["compare", "--details"]).ends_with(0).stdout;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "weight_decay 0 (by default 0.1)",
        "beta2 0.999 (by default",
        "seed 42 (by default 1234)",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // What nobody says is not said to be declared.
    let shown = project.json(&["show", "cpu/mine/own/single@seq=1000"]);
    let source = |field: &str| {
        let contract = shown["contract"].as_array().unwrap();
        contract.iter().find(|of| of["field"] == field).unwrap()["source"].clone()
    };
    assert_eq!(
        ["weight_decay", "seq_length", "clip_grad", "compile", "data"].map(source),
        ["effective", "effective", "default", "default", "default"]
    );
    // As soon as it is written, also as what it is by default, it is held against the trainer; that takes no run.
    project.edit(
        "config.yaml",
        "type: adamw",
        "type: adamw, weight_decay: 0.1",
    );
    let built = project.run(&["build"]).ends_with(1).stderr;
    assert!(built.contains("no run was made"), "{built}");
    let shown = project
        .run(&["show", "cpu/mine/own/single@seq=1000"])
        .stdout;
    assert!(
        shown.contains("the trainer says weight_decay 0;"),
        "{shown}"
    );
    assert!(
        shown.contains(
            "the job in weight_decay
"
        ),
        "{shown}"
    );
}

/// A build would pay for runs that give no figure: it is refused with the line to add.
#[test]
fn lines_without_a_time_are_refused_before_a_run() {
    let project = project("bash print.sh {{ seq_length }}");
    project.edit("config.yaml", ", tokens/s <tokens_per_second>", "");
    for command in ["check", "build"] {
        let refused = project.run(&[command]).ends_with(2).stderr;
        for part in [
            "no line that `mine` prints has a step time or a rate",
            "config.yaml:",
            "<tokens_per_second>",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
    }
    project.write(
        "recipes/other/recipe.toml",
        "id = \"other\"\nname = \"other\"\nvendors = [\"cpu\"]\n\n[launch]\ntemplates = []\ncommand = [\"true\"]\n\n[log]\n\
         format = \"regex\"\npatterns = [\"step <step> loss <loss>\"]\n",
    );
    project.edit("matrix.toml", "\"mine\"", "\"other\"");
    let refused = project.run(&["build"]).ends_with(2).stderr;
    assert!(
        refused.contains("`patterns` of its recipe.toml"),
        "{refused}"
    );
}

/// A stranger's first two commands, in an empty folder: a table of what really trained, without a
/// run that does not count.
#[test]
fn what_init_writes_is_built_at_once() {
    let project = Project::empty();
    let told = project.run(&["init"]).ends_with(0).stderr;
    assert!(told.contains("next: `tprimat build`"), "{told}");
    project.run(&["check"]).ends_with(0);
    let built = project.run(&["build", "--repeats", "1"]).ends_with(0);
    assert!(
        built
            .stderr
            .contains("4 of 4 selected cells measured; 4 runs made")
            && built.stderr.contains("output/report.html"),
        "{}",
        built.stderr
    );
    let compared = project.run(&["compare", "--json"]).ends_with(0).json();
    let rows = compared["rows"].as_array().unwrap().iter();
    let losses: BTreeSet<_> = rows.map(|row| row["loss_at_end"].to_string()).collect();
    assert_eq!(
        losses.len(),
        3,
        "as many tokens train it as far: {losses:?}"
    );
    // The script is the user's from now on.
    project.edit("train.py", "(5 * letter", "(7 * letter");
    project.run(&["init"]).ends_with(0);
    assert!(project.read("train.py").contains("(7 * letter"));
}

/// What a framework without a command says, in one error.
#[test]
fn a_framework_without_a_command_is_one_error() {
    let command = "    command: bash print.sh {{ seq_length }}\n";
    let log = format!("    log: \"{LINE}\"\n");
    let mine = format!("  mine:\n{command}{log}");
    let missing = "`frameworks.mine` has no `command`, and there is no recipe `mine`";
    for (written, told) in [
        (
            mine.replace("command:", "comand:"),
            [missing, "did you mean `command`?"],
        ),
        (mine.replace(command, ""), [missing, "`command: python3"]),
        (
            mine.replace(command, "    command:\n"),
            [missing, "`command: python3"],
        ),
        ("  mine: {}\n".to_owned(), [missing, "`command: python3"]),
        (
            mine.replace(&log, "    log: []\n"),
            [
                "`frameworks.mine.log` is an empty list",
                "`step <step> loss",
            ],
        ),
        (
            mine.replace("  mine:", "  hf:"),
            [
                "`hf` is another name of the shipped recipe `tran`",
                "another name\n",
            ],
        ),
    ] {
        let project = project("bash print.sh {{ seq_length }}");
        project.edit("config.yaml", &mine, &written);
        if written.contains("hf:") {
            project.edit("matrix.toml", "\"mine\"", "\"hf\"");
            project.edit("config.yaml", &log, "");
        }
        for subcommand in ["check", "build"] {
            let ran = project.run(&[subcommand]).ends_with(2);
            for told in told {
                assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
            }
            assert_eq!(ran.stderr.matches('×').count(), 1, "{}", ran.stderr);
            assert!(ran.stderr.contains("config.yaml:"), "{}", ran.stderr);
        }
    }
    let project = project("''");
    let plan = project.run(&["plan"]);
    let said = plan.stdout + &plan.stderr;
    assert!(
        said.contains("frameworks.mine.command is not set"),
        "{said}"
    );
}

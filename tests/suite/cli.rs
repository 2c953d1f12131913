//! What a user meets: every error as it is printed, exit codes, and the small subcommands.

use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
};

use crate::support::{ONE_RUN, Project, Ran, files_below};
use serde_json::Value;

/// Two cells that share all their settings: one mistake is one message.
const TWO_CELLS: &str = r#"[matrix]
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
fn commands_on_an_unsupported_cell_say_why() {
    let project = Project::new(&ONE_RUN.replace("\"cmd\"", "\"prim\""));
    for command in ["logs", "show", "explain"] {
        let ran = project.run(&[command, "cpu/prim/tiny/single"]);
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
        ["explain", "cpu/cmd/tiny/single#0"],
        2
    );
    message!("log_not_there", project, ["logs", "cpu/cmd/tiny/single"], 1);
    message!("schema_not_there", project, ["schema", "jbo"], 2);
    message!(
        "setting_not_there",
        project,
        ["config", "get", "training.data.seq_lenght"],
        2
    );
    message!("file_not_there", project, ["parse", "no.log"], 2);
    message!("clean_without_terminal", project, ["clean", "--cache"], 2);
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
    const INSIST: [&str; 2] = ["retry-failed", "force"];
    let project = Project::new(ONE_RUN);
    for (commands, wanted) in [
        (
            &["build", "plan"][..],
            [&CELLS[..], &MEASURED, &INSIST].concat(),
        ),
        (&["explain"], [&MEASURED[..], &INSIST].concat()),
        (
            &["list", "baseline", "gate"],
            [&CELLS[..], &MEASURED].concat(),
        ),
        (&["show", "logs", "check"], MEASURED.to_vec()),
        (
            &["compare", "report"],
            [&["only", "skip", "where"][..], &MEASURED].concat(),
        ),
        (&["fit"], [&CELLS[..], &["allow-drift"]].concat()),
        (&["graph"], [&CELLS[..], &["repeats"]].concat()),
        (&["lock"], CELLS.to_vec()),
        (&["import", "parse", "config", "clean"], vec![]),
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

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let project = Project::new(TWO_CELLS);
    for command in [
        "tprimat plan",
        "tprimat completions bash",
        "tprimat schema config",
        "tprimat config",
    ] {
        let script = format!("{command} | true; echo ${{PIPESTATUS[0]}}")
            .replace("tprimat", crate::support::TPRIMAT);
        let ran: Ran = project
            .command("bash")
            .args(["-c", &script])
            .output()
            .unwrap()
            .into();
        // It may also have written all before the reader was gone.
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str()),
            ("0\n", ""),
            "{command}"
        );
    }
}

#[test]
fn an_initialised_folder_is_a_project_and_keeps_what_is_there() {
    let project = Project::empty();
    project.run(&["init"]).ends_with(0);
    let config = project.read("config.yaml");
    project.run(&["check", "quickstart.toml"]).ends_with(0);
    project.run(&["check", "matrix.toml"]).ends_with(0);
    let plan = project
        .run(&["plan", "quickstart.toml"])
        .ends_with(0)
        .stdout;
    assert!(
        plan.contains("cpu/native/llama-tiny/single  3 runs")
            && plan.contains("cpu/tran/qwen-tiny/single")
    );
    // Every matrix that is shipped, also on a host that cannot run it.
    for matrix in [
        "quickstart.toml",
        "single-gpu.toml",
        "multi-gpu.toml",
        "fit-check.toml",
        "matrix.toml",
    ] {
        for command in [
            &["plan", matrix][..],
            &["plan", matrix, "--json"],
            &["build", matrix, "-n"],
            &["check", matrix],
        ] {
            project.run(command).ends_with(0);
        }
        for command in [
            &["fit", matrix][..],
            &["report", matrix],
            &["compare", matrix],
            &["list", matrix],
            &["graph", matrix],
        ] {
            assert!(
                [Some(0), Some(1)].contains(&project.run(command).code),
                "{command:?}"
            );
        }
    }
    let again = project.run(&["init"]).ends_with(0).stderr;
    assert!(
        again.starts_with("kept config.yaml\nkept .gitignore\n"),
        "{again}"
    );
    assert_eq!(project.read("config.yaml"), config);
    assert!(!project.path("cache/runs").exists());
}

#[test]
fn the_small_subcommands_print_what_their_readers_can_read() {
    let project = Project::new(TWO_CELLS);
    for name in [
        "job",
        "events",
        "trace",
        "result",
        "summary",
        "comparison",
        "baseline",
        "gate",
        "config",
    ] {
        assert!(
            project
                .run(&["schema", name])
                .ends_with(0)
                .json()
                .is_object(),
            "{name}"
        );
    }
    assert_eq!(
        project
            .run(&["config", "get", "training.data.seq_length"])
            .ends_with(0)
            .stdout,
        "16\n"
    );
    assert!(
        project
            .run(&["--version"])
            .ends_with(0)
            .stdout
            .starts_with("tprimat ")
    );

    let bash = |script: String| -> Ran {
        project
            .command("bash")
            .args(["-euc", &script])
            .output()
            .unwrap()
            .into()
    };
    let tprimat = crate::support::TPRIMAT;
    bash(format!(
        "{tprimat} completions bash > c.sh; bash -n c.sh; . ./c.sh; complete -p tprimat"
    ))
    .ends_with(0);
    project.edit(
        "config.yaml",
        "command: [bash, trainer.sh]",
        r#"command: "echo \"it's\" $HOME; exit 3""#,
    );
    let name = "TPRIMAT_FRAMEWORKS_CMD_COMMAND";
    let evaluated = bash(format!(
        "eval \"$({tprimat} config --shell)\"; printf %s \"${name}\""
    ))
    .ends_with(0);
    assert_eq!(evaluated.stdout, r#"echo "it's" $HOME; exit 3"#);

    let graph = project.run(&["graph"]).ends_with(0).stdout;
    let body = graph
        .strip_prefix("digraph tprimat {\n")
        .and_then(|rest| rest.strip_suffix("}\n"))
        .unwrap();
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    for line in body
        .lines()
        .map(|line| line.trim().strip_suffix(';').unwrap())
        .skip(2)
    {
        match line.split_once(" -> ") {
            Some((from, to)) => edges.push((from, to)),
            None => nodes.push(line.split_once(" [label=\"").unwrap().0),
        }
    }
    assert_eq!(nodes.len(), 2 * 4 + 3, "{graph}");
    assert!(
        edges
            .iter()
            .all(|(from, to)| nodes.contains(from) && nodes.contains(to)),
        "{graph}"
    );
}

#[test]
fn a_comparison_is_printed_and_published_in_every_format() {
    let project = Project::new(TWO_CELLS);
    project.run(&["build"]).ends_with(0);
    let printed = |arguments: &[&str]| {
        project
            .run(&[&["compare"], arguments].concat())
            .ends_with(0)
            .stdout
    };
    for (format, file) in [("markdown", "compare.md"), ("csv", "compare.csv")] {
        assert_eq!(
            printed(&["--format", format]),
            project.read(&format!("output/{file}")),
            "{format}"
        );
    }
    let table = printed(&["--format", "table"]);
    assert!(
        table == printed(&[]) && !table.contains('\u{1b}'),
        "no colour without a terminal: {table}"
    );
    assert_eq!(printed(&["--format", "json"]), printed(&["--json"]));
    let cells = project.read("output/compare.csv").lines().count();
    let runs = project.read("output/compare_repeats.csv").lines().count();
    assert_eq!((cells, runs), (3, 3));
    project
        .run(&["compare", "--json", "--format", "csv"])
        .ends_with(2);
    let shown = project
        .run(&["show", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    assert!(
        shown.starts_with("cpu/cmd/tiny/single\n") && shown.contains("\nRepeats:\n"),
        "{shown}"
    );
}

#[test]
fn any_cells_of_a_matrix_are_compared() {
    let project = Project::new(&TWO_CELLS.replace("\"single\"", "[\"single\", \"other\"]"));
    let single = "  single: { num_gpus: 1, DP: 1 }\n";
    project.edit(
        "config.yaml",
        single,
        &format!("{single}{}", single.replace("single", "other")),
    );
    project.run(&["build"]).ends_with(0);
    let compared = |arguments: &[&str]| -> Vec<String> {
        let comparison = project
            .run(&[&["compare", "--json"], arguments].concat())
            .json();
        let rows = comparison["rows"]
            .as_array()
            .unwrap_or_else(|| panic!("{arguments:?}: {comparison}"))
            .iter();
        rows.map(|row| {
            row["cell"]
                .as_str()
                .unwrap()
                .trim_start_matches("cpu/cmd/")
                .to_owned()
        })
        .collect()
    };
    let named = [
        "cpu/cmd/tiny/single",
        "cpu/cmd/wide/single",
        "cpu/cmd/wide/other",
    ];
    assert_eq!(
        compared(&named),
        ["tiny/single", "wide/single", "wide/other"]
    );
    let tiny = ["tiny/single", "tiny/other"];
    for arguments in [
        &["cpu/*/tiny"][..],
        &["matrix.toml", "cpu/*/tiny"],
        &["cpu/cmd/tiny/single", "cpu/cmd/tiny/other"],
        &["--only", "cpu/cmd/tiny"],
        &["--where", "model=tiny"],
        &[
            "--platform",
            "cpu",
            "--frameworks",
            "cmd",
            "--skip",
            "*/*/wide",
        ],
    ] {
        assert_eq!(compared(arguments), tiny, "{arguments:?}");
    }
    assert_eq!(compared(&[]).len(), 4);
    // What is left is said to be a part, also by the command for the details.
    let glance = project
        .run(&["compare", "--where", "model=tiny"])
        .ends_with(0)
        .stdout;
    assert!(
        glance.contains("`tprimat compare --where ") && glance.contains(" --details`"),
        "{glance}"
    );
    assert!(
        glance.contains("cells: cpu/cmd/tiny/{single,other}"),
        "{glance}"
    );
    for (arguments, code) in [
        (&["cpu/cmd/tiny/single"][..], 2),
        (&["cpu/cmd/tiny", "--only", "cpu"], 2),
        (&["cpu/cmd/tiny/single", "cpu/cmd/tiny/single"], 2),
        (&["cpu/cmd/tini"], 4),
        (&["--frameworks", "cdm"], 4),
    ] {
        project
            .run(&[&["compare"], arguments].concat())
            .ends_with(code);
    }
    // A page of a part never lands where builds publish the whole.
    project
        .run(&["report", "--only", "cpu/cmd/tiny"])
        .ends_with(2);
    project
        .run(&["report", "--only", "cpu/cmd/tiny", "-o", "part.html"])
        .ends_with(0);
    assert!(!project.read("part.html").contains("cpu/cmd/wide"));
}

#[test]
fn a_drifted_host_runs_nothing_and_shows_what_it_has() {
    let project = Project::new(ONE_RUN);
    assert_eq!(
        project.run(&["lock"]).ends_with(0).stdout,
        "cpu: not pinned yet; the first build pins it\n"
    );
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built
            .stderr
            .contains("tprimat.lock: pinned this host's facts for cpu"),
        "{}",
        built.stderr
    );
    assert_eq!(
        project.run(&["lock"]).ends_with(0).stdout,
        "cpu: as pinned, as far as this host can tell\n"
    );

    // A fact that is in no key: what was measured stays fresh, and a new run is left out.
    project.edit(
        "tprimat.lock",
        "[platform.cpu]\n",
        "[platform.cpu]\ndriver = \"1.0\"\n",
    );
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.006");
    let refused = project.run(&["build"]).ends_with(1).stderr;
    for part in [
        "tprimat.lock:7:1: this host differs from tprimat.lock: cpu, driver (locked \"1.0\", found nothing)",
        "lock --update",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(project.launches(), 1);
    assert!(
        project
            .run(&["lock"])
            .ends_with(0)
            .stdout
            .contains("cpu: driver differs: \"1.0\" → nothing")
    );
    project.edit("trainer.sh", "sleep 0.006", "sleep 0.005");
    project.run(&["show", "cpu/cmd/tiny/single"]).ends_with(0);
    assert!(
        project
            .run(&["compare", "--details"])
            .ends_with(0)
            .stdout
            .contains("cpu/cmd/tiny/single")
    );

    // A fact that keys cover.
    let lock = project.read("tprimat.lock");
    let pinned = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .unwrap();
    project.edit("tprimat.lock", pinned, "cores = 4096");
    let refused = project.run(&["build"]).ends_with(1).stderr;
    assert!(
        refused.contains("cpu, cores") && refused.contains("locked 4096, found "),
        "{refused}"
    );
    assert_eq!(project.launches(), 1);
    // What is here was measured here before the lock was edited.
    project.run(&["build", "--allow-drift"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    project
        .run(&["build", "--allow-drift", "--repeats", "2"])
        .ends_with(0);
    assert_eq!(project.launches(), 2);
    project.run(&["lock", "--update"]).ends_with(0);
    assert_eq!(
        project
            .run(&["build", "--repeats", "2", "--json"])
            .ends_with(0)
            .json()["summary"]["stale"],
        0
    );
    assert_eq!(project.launches(), 2);
}

#[test]
fn a_setting_with_the_name_of_a_secret_is_told_of() {
    let project = Project::new(ONE_RUN);
    let env = "env: { SORT_KEY: length, NUM_PASS: 3, HF_TOKEN: \"${HF_TOKEN:-none_of_it}\", PLAIN: word }";
    project.edit(
        "config.yaml",
        "num_gpus: 1 }\n",
        &format!("num_gpus: 1, {env} }}\n"),
    );
    for command in ["check", "plan"] {
        let told = project.run(&[command]).ends_with(0).stderr;
        assert!(
            told.contains("`hardware.platforms.cpu.env.SORT_KEY` looks like a secret"),
            "{told}"
        );
        assert!(
            told.contains("`SORT_KEY=… python …`") && !told.contains("length"),
            "{told}"
        );
        assert_eq!(told.matches("looks like a secret").count(), 1, "{told}");
    }
}

#[test]
fn secrets_reach_trainers_and_nothing_else() {
    const SECRET: &str = "hf_5ecret0fThisTest";
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "job()",
        "echo token of ${#HF_TOKEN} characters, nccl ${NCCL_DEBUG-unset}\njob()",
    );
    let build = project
        .tprimat(&["build"])
        .env("HF_TOKEN", SECRET)
        .env("NCCL_DEBUG", "INFO")
        .output()
        .unwrap();
    let ran = Ran::from(build).ends_with(0);
    assert!(!ran.stderr.contains(SECRET) && !ran.stdout.contains(SECRET));
    assert!(
        ran.stderr.contains("not passed to trainers") && ran.stderr.contains("NCCL_DEBUG"),
        "{}",
        ran.stderr
    );
    let log = project
        .run(&["logs", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    assert!(
        log.contains(&format!("token of {} characters, nccl unset", SECRET.len())),
        "{log}"
    );
    let cache = tprimat::cache::Cache::open(&project.path("cache")).unwrap();
    for path in files_below(project.root()) {
        let name = path
            .strip_prefix(project.path("cache/objects"))
            .ok()
            .map(|p| p.to_str().unwrap().replace('/', ""));
        let bytes = match name.and_then(|name| name.parse().ok()) {
            Some(digest) => cache.get(&digest).unwrap().unwrap(),
            None => fs::read(&path).unwrap(),
        };
        assert!(
            !String::from_utf8_lossy(&bytes).contains(SECRET),
            "{}",
            path.display()
        );
    }
}

/// Runs a script with mounts of its own; `None` where this machine does not allow that.
fn with_mounts(project: &Project, script: &str) -> Option<Ran> {
    let unshare = |arguments: &[&str]| -> Command {
        let mut command = project.command("unshare");
        command
            .args(["--mount", "--user", "--map-root-user"])
            .args(arguments);
        command
    };
    let probe = "mkdir -p probe && mount -t tmpfs none probe";
    let can = unshare(&["bash", "-c", probe])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: this machine does not let users mount");
        return None;
    }
    Some(
        unshare(&["bash", "-c", script])
            .env("T", crate::support::TPRIMAT)
            .output()
            .unwrap()
            .into(),
    )
}

/// The parts of a script's output, each after a line `== name`.
fn parts(text: &str) -> Vec<(&str, &str)> {
    text.split("== ")
        .skip(1)
        .map(|part| part.split_once('\n').unwrap())
        .collect()
}

#[test]
fn a_full_disk_is_said_and_nothing_is_lost() {
    let project = Project::new(ONE_RUN);
    fs::create_dir(project.path("cache")).unwrap();
    let fills = "[ -e \"$TPRIMAT_PROJECT_DIR/fill\" ] && head -c 64m /dev/zero > \"$TPRIMAT_PROJECT_DIR/cache/.fill\" 2>/dev/null\njob()";
    project.edit("trainer.sh", "job()", fills);
    let script = r#"
        mount -t tmpfs -o mode=755,size=24m none cache
        echo "== full before"; head -c 12m /dev/zero > cache/.fill; $T build 2>&1; echo $?
        rm cache/.fill; touch fill
        echo "== full while it trains"; $T build 2>&1; echo $?
        rm cache/.fill fill
        echo "== space again"; $T build --json 2>/dev/null; echo "exit $?"; wc -l < launches; ls cache/runs
    "#;
    let Some(ran) = with_mounts(&project, script) else {
        return;
    };
    let parts = parts(&ran.stdout);
    let [(_, before), (_, during), (_, after)] = parts[..] else {
        panic!("{ran:?}")
    };
    assert!(
        before.starts_with("error: cannot write to the cache")
            && before.ends_with("needs 16 MiB\n2\n"),
        "{before}"
    );
    assert!(
        during.contains("No space left on device") && during.ends_with("\n1\n"),
        "{during}"
    );
    assert_eq!(during.matches("error:").count(), 1, "{during}");
    let (json, rest) = after.split_once("exit ").unwrap();
    let value: Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        (&value["summary"]["failed"], &value["incomplete"]),
        (&0.into(), &0.into())
    );
    // The run that could not be recorded, and the one that was.
    assert_eq!(rest, "0\n2\n", "{after}");
    assert!(project.path("output/compare.json").exists());
}

#[test]
fn a_read_only_cache_serves_what_it_has() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let before = files_below(&project.path("cache"));
    let script = r#"
        mount --bind cache cache && mount -o remount,bind,ro cache
        for command in plan "show cpu/cmd/tiny/single" compare build "explain cpu/cmd/tiny/single"; do
            echo "== $command"; $T $command > /dev/null; echo $?
        done
        echo "== build with work"; $T build --repeats 2 2>&1; echo $?
    "#;
    let Some(ran) = with_mounts(&project, script) else {
        return;
    };
    let parts = parts(&ran.stdout);
    assert_eq!(parts.len(), 6, "{ran:?}");
    for (name, result) in &parts[..5] {
        assert_eq!(*result, "0\n", "{name}: {}", ran.stderr);
    }
    let refused = format!(
        "error: cannot write to the cache {}: Read-only file system (os error 30)\n2\n",
        project.path("cache").display()
    );
    assert_eq!(parts[5].1, refused);
    assert_eq!(project.launches(), 1);
    assert_eq!(files_below(&project.path("cache")), before);
}

#[test]
fn events_on_stdout_are_one_json_value_a_line() {
    let project = Project::new(ONE_RUN);
    let mut child = project
        .tprimat(&["build", "--events", "-"])
        .spawn()
        .unwrap();
    let mut events = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut events)
        .unwrap();
    assert!(child.wait().unwrap().success());
    let events: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(events.len() > 10, "{events:?}");
}

#[test]
fn a_second_build_has_nothing_to_do_and_notices_when_it_has() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let idle = project.run(&["build"]).ends_with(0);
    assert!(idle.stderr.contains("nothing to do"), "{}", idle.stderr);
    // What a build pins is not forgotten because nothing has to run.
    fs::remove_file(project.path("tprimat.lock")).unwrap();
    project.run(&["build"]).ends_with(0);
    assert!(project.path("tprimat.lock").exists());
    assert_eq!(project.launches(), 1);
    // A published file that somebody changed is published again.
    fs::write(project.path("output/compare.txt"), "forged").unwrap();
    project.run(&["build"]).ends_with(0);
    assert!(!project.read("output/compare.txt").contains("forged"));
}

#[test]
fn a_report_is_the_same_with_and_without_a_build_and_runs_nothing() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let page = project.read("output/report.html");
    assert!(page.contains("cpu/cmd/tiny/single") && page.contains("<svg"));
    project.run(&["report", "-o", "page.html"]).ends_with(0);
    assert_eq!(project.read("page.html"), page);
    fs::remove_dir_all(project.path("output")).unwrap();
    let shown = project.run(&["report", "--json"]).ends_with(0).json();
    assert_eq!(
        (&shown["cells"], &shown["comparable"]),
        (&Value::from(1), &Value::from(true))
    );
    assert_eq!(project.read("output/report.html"), page);
    // As a build would have published it.
    assert!(
        project
            .run(&["build"])
            .ends_with(0)
            .stderr
            .contains("nothing to do")
    );
    for (option, value, code) in [
        ("--across", "seq_lenght", 2),
        ("--baseline", "cpu/cmd/tiny/none", 4),
    ] {
        project
            .run(&["report", option, value, "-o", "wrong.html"])
            .ends_with(code);
    }
    assert!(!project.path("wrong.html").exists());
    assert_eq!(project.launches(), 1);
}

#[test]
fn remeasuring_that_cannot_run_voids_nothing() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let pinned = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .unwrap();
    project.edit("tprimat.lock", pinned, "cores = 4096");
    project.run(&["build", "--remeasure"]).ends_with(1);
    project.edit("tprimat.lock", "cores = 4096", pinned);
    assert_eq!(
        project.run(&["plan", "--json"]).ends_with(0).json()["summary"]["stale"],
        0
    );
    project
        .run(&["build", "--cached-only", "--remeasure"])
        .ends_with(2);
    // It would hide the failure as stale and run nothing.
    project
        .run(&["build", "--cached-only", "--retry-failed"])
        .ends_with(2);
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_run_that_ends_well_and_proves_nothing_is_no_success() {
    let project = Project::new(ONE_RUN);
    // The trainer reports an error and exits 0 all the same.
    project.edit(
        "trainer.sh",
        "job()",
        "echo '{\"event\":\"error\",\"class\":\"nccl\",\"message\":\"watchdog\"}'; exit 0\njob()",
    );
    let ran = project.run(&["build"]).ends_with(1);
    assert!(ran.stderr.contains("nccl"), "{}", ran.stderr);
    // It is tried again, for it may not happen again.
    assert_eq!(
        project.run(&["plan", "--json"]).ends_with(0).json()["summary"]["stale"],
        6
    );
}

/// It is chosen when the run begins, not when it is planned.
#[test]
fn every_run_has_a_port_of_its_own() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "seed=$(job seed)",
        "seed=$(job seed); echo \"port $TPRIMAT_PORT\"",
    );
    project.run(&["build"]).ends_with(0);
    let log = project
        .run(&["logs", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    let port = log.lines().find_map(|line| line.strip_prefix("port "));
    assert!(
        port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 1023)),
        "{log}"
    );
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
        &["attempts", "pipelines/other.toml", CELL],
        &["logs", "other", CELL],
        &["explain", CELL, "--matrix", "other"],
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
        let ran = project.run(&[&["__complete"], words].concat()).ends_with(0);
        ran.stdout.lines().map(str::to_owned).collect()
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
    // A shell that was offered the longer one alone would write on.
    project.write("pipelines/o.toml", ONE_RUN);
    assert_eq!(offered(&["plan", "o"]), ["o", "other"]);
    let script = format!(
        "shopt -s progcomp; tprimat() {{ {tprimat} \"$@\"; }}; . <(tprimat completions bash)\n\
         COMP_LINE='tprimat show cpu/cmd/w' COMP_POINT=22; _tprimat; echo \"${{COMPREPLY[@]}}\"",
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
    project.run(&["clean", "--yes"]).ends_with(0);
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

/// A plan of many cells has a line for each reason, which counts the cells and their runs.
#[test]
fn a_long_plan_counts_cells_and_runs_by_their_reason() {
    let project = Project::new(ONE_RUN);
    let axis = "\n[matrix.axes.seed]\npath = \"training.seed\"\nvalues = [";
    let values: Vec<String> = (1..=30).map(|seed| seed.to_string()).collect();
    let matrix = ONE_RUN.replace("repeats = 1", "repeats = 2");
    project.write(
        "matrix.toml",
        &format!("{matrix}{axis}{}]\n", values.join(", ")),
    );
    let plan = project.run(&["plan"]).ends_with(0).stdout;
    let line = "single@seed=2 and 28 more (60 runs): never run\n";
    assert!(plan.contains(line), "{plan}");
}

#[test]
fn a_repeat_is_one_screen() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let shown = project
        .run(&["show", "cpu/cmd/tiny/single#1"])
        .ends_with(0)
        .stdout;
    assert!(shown.lines().count() < 60, "{shown}");
    for words in [
        "attested: seq_length 16, ",
        "not_stated: 'architecture llama, ",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn a_plan_is_coloured_where_colours_are_asked_for() {
    let project = Project::new(ONE_RUN);
    let plain = project.run(&["plan"]).ends_with(0).stdout;
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let coloured = project.run(&["plan", "--color=always"]).ends_with(0).stdout;
    assert!(
        coloured.contains("\u{1b}[1mstale      \u{1b}[22m  cpu/cmd/tiny"),
        "{coloured}"
    );
    let without = coloured.replace("\u{1b}[1m", "").replace("\u{1b}[22m", "");
    assert_eq!(without.replace("\u{1b}[2m", ""), plain);
}

/// Some programs read these variables in one case only.
#[test]
fn proxies_reach_the_trainer_in_either_case() {
    let project = Project::new(ONE_RUN);
    let trainer = project.read("trainer.sh");
    let noting =
        format!("echo \"$HTTPS_PROXY $no_proxy\" > \"$TPRIMAT_PROJECT_DIR/proxies\"\n{trainer}");
    project.write("trainer.sh", &noting);
    let built = project
        .tprimat(&["build"])
        .env("HTTPS_PROXY", "http://p:1")
        .env("no_proxy", "q")
        .output()
        .unwrap();
    crate::support::Ran::from(built).ends_with(0);
    assert_eq!(project.read("proxies"), "http://p:1 q\n");
}

/// A table that nobody got is no success.
#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let project = Project::new(ONE_RUN);
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut child = project
        .tprimat(&["build"])
        .stdout(full)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("cannot write to stdout"), "{said}");
}

/// The time that is said of a run is the run's, without what it waited for.
#[test]
fn how_long_a_run_took_is_from_its_start_to_its_end() {
    let project = Project::new(ONE_RUN);
    project
        .run(&["build", "--events", "events.jsonl"])
        .ends_with(0);
    let said = project.read("events.jsonl");
    let events = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let seconds: Vec<f64> = events
        .filter(|event| {
            event["event"] == "task_finished"
                && event["task"].as_str().unwrap().starts_with("train ")
        })
        .map(|event| event["seconds"].as_f64().unwrap())
        .collect();
    let result = project
        .run(&["show", "cpu/cmd/tiny/single#1", "--json"])
        .ends_with(0)
        .json();
    let at = |name: &str| result[name].as_f64().unwrap();
    let took = at("ended_at") - at("started_at");
    assert!(
        seconds.len() == 1 && (seconds[0] - took).abs() < 1e-6,
        "{seconds:?} {took}"
    );
}

#[test]
fn steps_without_a_time_say_which_field_is_missing() {
    let project = Project::new(ONE_RUN);
    let trainer = project.read("trainer.sh");
    let without = trainer.replace(r#""step_time_seconds":0.0'$seed$step',"#, "");
    assert_ne!(trainer, without);
    project.write("trainer.sh", &without);
    let told = project.run(&["build"]).ends_with(1);
    let words = "none of the 6 steps has a time (`step_time_seconds` in an event)";
    let said: Vec<&str> = told.stdout.split_whitespace().collect();
    assert!(said.join(" ").contains(words), "{told:?}");
}

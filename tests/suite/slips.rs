//! Settings and names that are slightly wrong, or that a matrix lacks: what is said names the line
//! to write, and nothing is planned that nobody asked for.

mod strategies;

use crate::support::{CONFIG, ONE_RUN, Project, Ran, TRAINER, files_below};

const OLD: &str = include_str!("../fixtures/older-suite.yaml");
const STRATEGY: &str = "  single: { num_gpus: 1, DP: 1 }\n";

/// What was said, without line breaks and the frames around it.
fn said(ran: &Ran) -> String {
    ran.stderr
        .replace(['│', '╰', '─', '╭', '·'], " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[track_caller]
fn says(ran: &Ran, told: &[&str]) {
    let said = said(ran);
    for told in told {
        assert!(said.contains(told), "`{told}` is not in\n{}", ran.stderr);
    }
}

fn with_variable(project: &Project, arguments: &[&str], variable: &str, value: &str) -> Ran {
    let mut command = project.tprimat(arguments);
    command.env(variable, value).output().unwrap().into()
}

/// A project of the older suite, with one piece of its config.yaml replaced.
fn older(from: &str, to: &str) -> Project {
    let project = Project::empty();
    assert!(OLD.contains(from), "{from}");
    project.write("config.yaml", &OLD.replace(from, to));
    project
}

#[test]
fn a_variable_means_the_same_with_a_matrix_file_and_without() {
    let two = CONFIG.replace(STRATEGY, &format!("{STRATEGY}  mine: {{ num_gpus: 1 }}\n"));
    let project = Project::empty();
    project
        .write("config.yaml", &two)
        .write("trainer.sh", TRAINER);
    let tell = |command: &str, value: &str| {
        let ran = with_variable(&project, &[command], "PARALLEL", value);
        (ran.code, said(&ran))
    };
    let all = |value| ["check", "plan", "list"].map(|command| tell(command, value));
    let before = all("x");
    for (code, said) in &before {
        assert_eq!(*code, Some(2), "{said}");
        assert!(
            said.contains("`parallelism` of config.yaml has single, mine"),
            "{said}"
        );
    }
    project.run(&["init", "--matrix"]).ends_with(0);
    assert_eq!(all("x"), before);
    let list = |value| {
        with_variable(&project, &["list"], "PARALLEL", value)
            .ends_with(0)
            .stdout
    };
    assert!(
        list("MIN*").contains("cpu/cmd/tiny/mine"),
        "patterns mean what they match"
    );
}

#[test]
fn names_that_the_matrix_lacks_are_told_with_the_line_that_adds_them() {
    let project = Project::new(ONE_RUN);
    let to_add = "to add its cells, add \"tran\" to `framework` below [matrix] in matrix.toml";
    let ran = project
        .run(&["plan", "--only", "cpu/{cmd,tran}"])
        .ends_with(0);
    let lacks = "note: --only cpu/{cmd,tran}: no cell has the framework `tran`";
    says(&ran, &[lacks, to_add]);
    let ran = with_variable(&project, &["plan"], "FRAMEWORKS", "cmd,transformers").ends_with(0);
    says(&ran, &["no cell has the framework `transformers`", to_add]);
    let ran = project
        .run(&["build", "--only", "cpu/tran/tiny"])
        .ends_with(4);
    says(&ran, &[to_add]);
    let ran = project
        .run(&["plan", "--only", "cpu/cmd/wide"])
        .ends_with(4);
    says(
        &ran,
        &["add \"wide\" to `model` below [matrix] in matrix.toml"],
    );
    let ran = project
        .run(&["plan", "--only", "{cpu,nvd}/cmd"])
        .ends_with(0);
    says(&ran, &["no cell has the platform `nvd`"]);
    assert!(
        !ran.stderr.contains("to add"),
        "no platform is NVIDIA's: {}",
        ran.stderr
    );
    project.remove("matrix.toml");
    let ran = project.run(&["plan", "--only", "cpu/tran"]).ends_with(4);
    says(
        &ran,
        &["write `tran: {}` below `frameworks` in config.yaml"],
    );
}

#[test]
fn a_model_that_is_not_the_one_it_is_named_like_points_at_the_line() {
    for (from, to, differs) in [
        (
            "num_layers: 32",
            "num_layers: 33",
            "num_layers is 32, not 33",
        ),
        (
            "num_parameters: 8.0e9",
            "num_parameters: 8",
            "num_parameters is 8030261248, not 8",
        ),
    ] {
        let ran = older(from, to).run(&["check"]).ends_with(2);
        says(&ran, &[differs, "are not known", "correct this line"]);
        assert!(!ran.stderr.contains("lacks"), "{}", ran.stderr);
    }
}

#[test]
fn peaks_and_prices_are_never_dropped_without_a_word() {
    let peak = "peak_tflops_fp8: 989.0e12";
    let told = |to: &str, code, told: &[&str]| {
        says(&older(peak, to).run(&["check"]).ends_with(code), told);
    };
    // The data sheet's exact figure is used.
    let sheet = "the fp8 peak of nvidia_h100 is 1978.9 TFLOP/s (NVIDIA H100 SXM";
    for (stated, shown) in [("1500", "1500"), ("1500.0e12", "1500"), ("1979", "1979")] {
        let not = format!("not {shown}");
        let of = format!("peak_tflops_fp8: {stated}");
        told(&of, 0, &[sheet, &not, "state its `source`"]);
    }
    let same = older(peak, "peak_tflops_fp8: 1978.9").run(&["check"]);
    assert!(!same.ends_with(0).stderr.contains("the fp8 peak of"));
    told(
        "peak_tflops: 989",
        2,
        &["does not say of which precision", "peak_tflops_bf16"],
    );
    told("tdp_watt: 700", 2, &["did you mean `tdp_watts`?"]);
    let tdp = older("tdp_watts: 700", "tdp_watts: 350")
        .run(&["check"])
        .ends_with(0);
    says(&tdp, &["the TDP of nvidia_h100 is 700 W", "not 350"]);
    let price = older("8gpu_per_hour: 32", "8gpu_per_hour: -3")
        .run(&["check"])
        .ends_with(2);
    says(&price, &["must be above 0, not -3"]);
}

#[test]
fn hardware_that_cannot_be_is_refused_and_unlikely_settings_are_told() {
    let check = |from: &str, to: &str| older(from, to).run(&["check"]);
    let ran = check("memory_per_gpu_gb: 80,", "memory_per_gpu_gb: 81920,").ends_with(2);
    says(
        &ran,
        &["no GPU has this much memory", "81920 MiB are 80 GB"],
    );
    let ran = check("gpu_model: \"MI300X\"", "gpu_model: \"H100\"").ends_with(2);
    says(
        &ran,
        &["names NVIDIA GPUs, and the platform `amd` has AMD GPUs"],
    );
    let ran = check("learning_rate: 3.0e-4", "learning_rate: 3").ends_with(0);
    says(&ran, &["learning_rate: 3` is far above"]);
    let project = Project::new(ONE_RUN);
    let platform = "cpu: { vendor: cpu, num_gpus: 1 }";
    project.edit(
        "config.yaml",
        platform,
        &format!("{platform}\n    nvd: {{ vendor: nvd, gpu_model: H1000, num_gpus: 1 }}"),
    );
    let ran = project.run(&["check"]).ends_with(0);
    says(
        &ran,
        &[
            "whose data sheet tprimat does not have",
            "did you mean `h100`?",
        ],
    );
}

#[test]
fn keys_that_mean_something_else_or_are_given_twice_say_so() {
    let check = |to: &str| {
        let config = CONFIG.replace(STRATEGY, to);
        let project = Project::new(ONE_RUN);
        project.write("config.yaml", &config).run(&["check"])
    };
    let ran = check("  single: { num_gpus: 1, DP: 1, EP: 2 }\n").ends_with(2);
    says(&ran, &["EP 2, and `tiny` has no experts", "leave EP out"]);
    let project = Project::new(ONE_RUN);
    project.edit(
        "config.yaml",
        "train_iters: 6",
        "max_steps: 20, train_iters: 10",
    );
    let ran = project.run(&["check"]).ends_with(2);
    says(
        &ran,
        &["`training.duration.train_iters` is given twice, as `training.duration.max_steps` too"],
    );
    let project = Project::new(ONE_RUN);
    project.edit("config.yaml", "seq_length: 16", "seq_length: null");
    says(
        &project.run(&["check"]).ends_with(2),
        &["write `seq_length: VALUE`"],
    );
}

#[test]
fn every_spelling_of_an_axis_leads_to_the_right_one() {
    let project = Project::new(ONE_RUN);
    for written in [
        "[[axis]]\npath = \"training.seed\"",
        "[[axes]]\npath = \"training.seed\"",
        "[[matrix.axes]]\npath = \"training.seed\"",
        "[matrix.axis.seed]\npath = \"training.seed\"",
    ] {
        project.write("matrix.toml", &format!("{ONE_RUN}{written}\n"));
        let ran = project.run(&["check"]).ends_with(2);
        says(
            &ran,
            &["an axis is a table below [matrix.axes]: `[matrix.axes.compile]`"],
        );
    }
}

#[test]
fn events_are_written_over_no_file_of_the_project() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let record = files_below(&project.path("cache/records")).remove(0);
    let record = record.strip_prefix(project.root()).unwrap();
    let all = [
        "config.yaml",
        "matrix.toml",
        "tprimat.lock",
        "trainer.sh",
        record.to_str().unwrap(),
    ];
    let read = |name: &str| std::fs::read(project.path(name)).unwrap();
    let before = all.map(read);
    for name in all {
        let ran = project.run(&["build", "--events", name]).ends_with(2);
        says(&ran, &["--events", "nothing was written"]);
    }
    assert!(all.map(read) == before);
    // A file of an earlier build's events is none of the project's.
    for _ in 0..2 {
        project
            .run(&["build", "--events", "events.jsonl"])
            .ends_with(0);
    }
    project.run(&["build", "-j", "0"]).ends_with(2);
}

#[test]
fn a_command_that_would_not_start_is_told_before_anything_runs() {
    let project = Project::new(ONE_RUN);
    let ends_with = |code, command: &str| {
        let set = format!("frameworks.cmd.command={command}");
        project.run(&["check", "--set", &set]).ends_with(code)
    };
    let check = |command: &str| ends_with(0, command);
    let cannot = "cpu/cmd/tiny/single cannot be measured here now";
    says(
        &check("[bsah, trainer.sh]"),
        &[cannot, "the program `bsah`, which is not there"],
    );
    project.write("notes.txt", "");
    std::os::unix::fs::symlink("gone.sh", project.path("link.sh")).unwrap();
    for (command, told) in [
        (
            "[./notes.txt, 5]",
            [
                "starts `./notes.txt`, which is not executable",
                "`chmod +x ./notes.txt`",
            ],
        ),
        (
            "./cache --steps 5",
            ["starts `./cache`, which is not executable", "executable"],
        ),
        (
            "[./link.sh]",
            [
                "the program `./link.sh`, which is not there",
                "is looked for below the project",
            ],
        ),
    ] {
        says(&ends_with(1, command), &[cannot, told[0], told[1]]);
    }
    for command in [
        "[bash, trianer.sh]",
        "bash trianer.sh --steps 5",
        "bash -eu trianer.sh",
    ] {
        let told = [
            "the file `trianer.sh`, which is not there",
            "did you mean `trainer.sh`?",
        ];
        // A program may be on another host, a file of the project is on none.
        says(&ends_with(1, command), &[cannot, told[0], told[1]]);
    }
    for command in [
        "python3 -u trian.py",
        "torchrun --nproc-per-node=1 trian.py",
    ] {
        let absent = "the file `trian.py`, which is not there";
        says(&ends_with(1, command), &[cannot, absent]);
    }
    // What a shell makes of a text is the shell's to say.
    for command in [
        "[bash, trainer.sh]",
        "[bash, -c, \"exec ./made-here.sh\"]",
        "set -e; exec bash trianer.sh > log",
        "cd x && bash y.sh",
        "bash gone.sh || bash trainer.sh",
        "python3 ~/train.py",
        "[bash, -c, \"python3 ~/train.py\"]",
        "echo > made.sh; bash made.sh",
        "run() { bash $1; }; run trainer.sh",
    ] {
        let ran = check(command);
        assert!(
            !ran.stderr.contains("cannot be measured"),
            "{command}: {}",
            ran.stderr
        );
    }
}

/// A path of config.yaml is its writer's own; one of a template is for every host.
#[test]
fn an_absolute_path_is_refused_only_where_a_template_has_it() {
    let project = Project::new(ONE_RUN);
    for command in [
        "cat \\\"/data/x.txt\\\"",
        "set -e\\n/data/x.txt",
        "cat /etc/none; cat /data/x.txt",
    ] {
        let set = format!("frameworks.cmd.command=\"{command}\"");
        let ran = project.run(&["check", "--set", &set]).ends_with(0);
        let told = "names `/data/x.txt`: a host that has it elsewhere";
        assert_eq!(said(&ran).matches(told).count(), 1, "{ran:?}");
    }
    project.write(
        "recipes/mine/recipe.toml",
        "id = \"mine\"\nname = \"mine\"\nvendors = [\"cpu\"]\n\n[launch]\ntemplates = [\"mine.sh.j2\"]\n\
         command = [\"bash\", \"mine.sh\"]\noptions = [\"folder\"]\nreads_job = true\nlaunch_abi = 1\n\n[log]\nformat = \"tprimat\"\n",
    );
    project.write(
        "recipes/mine/mine.sh.j2",
        "cat /bin/shop\ncat {{ job.framework.folder }} /data\n",
    );
    project.edit(
        "config.yaml",
        "  cmd: {",
        "  mine: { folder: /data/mine }\n  cmd: {",
    );
    project.write("matrix.toml", &ONE_RUN.replace("\"cmd\"", "\"mine\""));
    let ran = project.run(&["check"]).ends_with(2);
    says(
        &ran,
        &[
            "mine.sh, line 1, names the absolute path `/bin/shop`",
            "mine.sh, line 2, names the absolute path `/data`",
        ],
    );
    assert!(!said(&ran).contains("`/data/mine`"), "{ran:?}");
}

#[test]
fn patterns_of_a_recipe_can_be_tried_on_a_log() {
    let project = Project::new(ONE_RUN);
    project.write(
        "recipes/mine/recipe.toml",
        "id = \"mine\"\nname = \"mine\"\nvendors = [\"cpu\"]\n\n[launch]\ntemplates = [\"mine.sh.j2\"]\n\
         command = [\"bash\", \"mine.sh\"]\nreads_job = true\nlaunch_abi = 1\n\n[log]\nformat = \"regex\"\n\
         patterns = ['it (?P<step>\\d+) took (?P<step_time_seconds>[0-9.]+) l (?P<loss>[0-9.]+)']\n",
    );
    project.write("recipes/mine/mine.sh.j2", "bash trainer.sh\n");
    project.write("l.log", "it 1 took 0.5 l 7.25\nit 2 took 0.25 l 7.0\n");
    let ran = project.run(&["parse", "l.log"]).ends_with(2);
    says(&ran, &["reads lines of your own", "it 2 took 0.25 l 7.0"]);
    let read = project
        .run(&["parse", "l.log", "--format", "mine"])
        .ends_with(0)
        .stdout;
    assert!(
        read.contains("2 steps") && read.contains("0.250000 s  loss 7.000000"),
        "{read}"
    );
}

#[test]
fn fit_of_a_command_lists_no_setting_that_it_may_not_read() {
    let platform = "cpu: { vendor: cpu, num_gpus: 1 }";
    let project = Project::new(&ONE_RUN.replace("\"cpu\"", "\"nvd\""));
    project.edit(
        "config.yaml",
        platform,
        &format!("{platform}\n    nvd: {{ vendor: nvd, gpu_model: H100, memory_per_gpu_gb: 80, num_gpus: 1 }}"),
    );
    project.edit("config.yaml", "default: fp32", "default: bf16");
    let fit = project.run(&["fit"]).ends_with(0).stdout;
    assert!(
        fit.contains("not known") && !fit.contains("- training."),
        "{fit}"
    );
}

#[test]
fn a_cell_of_another_matrix_is_named_with_its_matrix() {
    let project = Project::new(ONE_RUN);
    project.write(
        "pipelines/large.toml",
        &ONE_RUN.replace("\"tiny\"", "\"wide\""),
    );
    for command in [
        &["show"][..],
        &["logs"],
        &["show", "--attempts"],
        &["compare"],
    ] {
        let words = [command, &["cpu/cmd/wide/single"]].concat();
        let ran = project.run(&words).ends_with(4);
        says(&ran, &["the matrix `large` has it: add `--matrix large`"]);
    }
    let ran = project.run(&["plan", "--executor", "dockr"]).ends_with(2);
    says(
        &ran,
        &[
            "--executor dockr: `dockr` is not an executor",
            "did you mean `docker`?",
        ],
    );
}

/// What a launch file is rendered from is the reason, not the file.
#[test]
fn a_rendered_setting_that_changed_is_named() {
    let project = Project::new(&ONE_RUN.replace("\"cmd\"", "\"mine\""));
    project.write(
        "recipes/mine/recipe.toml",
        "id = \"mine\"\nname = \"mine\"\nvendors = [\"cpu\"]\n\n[launch]\ntemplates = [\"mine.sh.j2\"]\n\
         command = [\"bash\", \"mine.sh\"]\n[log]\nformat = \"regex\"\n\
         patterns = ['step (?P<step>\\d+) took (?P<step_time_seconds>\\S+)']\n",
    );
    project.edit("config.yaml", "frameworks:\n", "frameworks:\n  mine: {}\n");
    project.write(
        "recipes/mine/mine.sh.j2",
        "# {{ job.data.seq_length }}\nfor s in $(seq {{ job.train_iters }}); do echo step $s took 0.5; done\n",
    );
    project.run(&["build"]);
    let plan = project.run(&["plan", "--set", "training.data.seq_length=64"]);
    let told = format!("{}{}", plan.stdout, plan.stderr);
    assert!(
        told.contains("seq_length ") && told.contains(" → 64") && !told.contains("mine.sh edited"),
        "{told}"
    );
    let attempts = project
        .run(&[
            "show",
            "--attempts",
            "cpu/mine/tiny/single",
            "--set",
            "training.data.seq_length=64",
        ])
        .stdout;
    assert!(
        attempts.contains("measured before seq_length changed from"),
        "{attempts}"
    );
}

#[test]
fn repeats_that_the_matrix_does_not_ask_for_are_made_once() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 2"));
    project.run(&["build", "--repeats", "3"]).ends_with(0);
    let shown = project
        .run(&["show", "cpu/cmd/tiny/single#2"])
        .ends_with(0)
        .stdout;
    assert!(
        shown.starts_with("# repeat 2: ") && shown.contains(" tokens/s per device, "),
        "{shown}"
    );
    let json = project
        .run(&["show", "cpu/cmd/tiny/single#2", "--json"])
        .ends_with(0)
        .json();
    assert!(json["repeat"]["steady"]["tokens_per_second_per_gpu"].is_number());
    // Cells that launch the same share their runs.
    let alike = project.read("matrix.toml")
        + "[matrix.axes.tag]\npath = \"frameworks.cmd.timeout\"\nvalues = [\"1h\", \"2h\"]\n";
    project.write("matrix.toml", &alike);
    let ran = project.run(&["build", "--repeats", "3"]).ends_with(0);
    assert_eq!(project.launches(), 3, "{ran:?}");
}

#[test]
fn a_run_that_waits_for_the_cooldown_says_so() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 2"));
    project.edit("config.yaml", "cooldown_seconds: 0", "cooldown_seconds: 1");
    let ran = project.run(&["build"]).ends_with(0);
    says(
        &ran,
        &[
            "train cpu/cmd/tiny/single#2: waiting for the cooldown of 1 s after train cpu/cmd/tiny/single#1",
        ],
    );
}

#[test]
fn a_mistyped_key_beside_a_command_is_no_option_of_the_command() {
    const SINGLE: &str = "[trainer.sh] }";
    for slip in [
        "input: [x]",
        "timout: 1h",
        "hang_leats: 1m",
        "pyton: p",
        "evn: { A: 1 }",
        "comand: [true]",
        "Inputs: [x]",
    ] {
        let project = Project::new(ONE_RUN);
        project.edit("config.yaml", SINGLE, &format!("[trainer.sh], {slip} }}"));
        let key = slip.split(':').next().unwrap();
        for command in ["check", "plan", "build"] {
            let unknown = format!("the recipe `cmd` has no option `{key}`");
            says(
                &project.run(&[command]).ends_with(2),
                &[&unknown, "did you mean `", &format!("as `settings.{key}`")],
            );
        }
    }
    let project = Project::new(ONE_RUN);
    // Other names are the command's, and so is whatever stands under `settings`.
    project.edit(
        "config.yaml",
        SINGLE,
        "[trainer.sh], scale: 2, settings: { input: x } }",
    );
    project.run(&["build"]).ends_with(0);
    // But nobody means a key of tprimat's own there.
    project.edit(
        "config.yaml",
        "settings: { input: x }",
        "settings: { inputs: x }",
    );
    says(
        &project.run(&["plan"]).ends_with(2),
        &[
            "tprimat itself reads it",
            "write it as `frameworks.cmd.inputs`",
        ],
    );
    project.edit(
        "config.yaml",
        "settings: { inputs: x }",
        "settings: { input: x }",
    );
    // An axis that would set nothing compares a cell with itself.
    let axis = "[matrix.axes.variant]\npath = \"frameworks.cmd.evn.A\"\nvalues = [\"a\", \"b\"]\n";
    project.write("matrix.toml", &format!("{ONE_RUN}\n{axis}"));
    says(
        &project.run(&["plan"]).ends_with(2),
        &["has no option `evn`", "did you mean `env`?", "matrix.toml:"],
    );
}

#[test]
fn a_build_that_no_cell_is_supported_of_is_no_success() {
    let project = Project::new(ONE_RUN);
    let config = project.read("config.yaml");
    let (before, rest) = config.split_once("command: [").unwrap();
    let (_, after) = rest.split_once("], ").unwrap();
    project.write("config.yaml", &format!("{before}{after}"));
    for _ in 0..2 {
        says(
            &project.run(&["build"]).ends_with(1),
            &["nothing is measured: of 1 selected cell none is supported"],
        );
    }
    project
        .run(&["build", "--cached-only", "--require=complete"])
        .ends_with(1);
    says(
        &project.run(&["check"]).ends_with(1),
        &["frameworks.cmd.command is not set", "none is supported"],
    );
}

/// What holds for the whole project is no setting of a cell.
#[test]
fn a_matrix_sets_only_what_its_cells_read() {
    let project = Project::new(ONE_RUN);
    for path in [
        "benchmarking.runs.default_num_runs",
        "paths.cache",
        "comparison.target_loss",
        "frameworks.cmd.python",
    ] {
        let refused = format!("`{path}` holds for all cells, so a matrix cannot set it");
        let axis = format!("[matrix.axes.x]\npath = \"{path}\"\nvalues = [1, 2]\n");
        let set = format!("[[override]]\nwhere = {{}}\nset = {{ \"{path}\" = 1 }}\n");
        let set = set.replace(
            " = 1 }",
            if path.starts_with("bench") || path.starts_with("comp") {
                " = 1 }"
            } else {
                " = \"x\" }"
            },
        );
        for more in [axis, set] {
            project.write("matrix.toml", &format!("{ONE_RUN}\n{more}"));
            says(&project.run(&["plan"]).ends_with(2), &[&refused]);
        }
    }
    let set = "[[override]]\nwhere = {}\nset = { \"frameworks.cmdd.inputs\" = [\"x\"] }\n";
    project.write("matrix.toml", &format!("{ONE_RUN}\n{set}"));
    says(
        &project.run(&["plan"]).ends_with(2),
        &["there is no framework `cmdd`", "did you mean `cmd`?"],
    );
}

#[test]
fn all_mistakes_that_do_not_follow_from_each_other_are_told_at_once() {
    let project = Project::new(ONE_RUN);
    let config = project.read("config.yaml");
    let with = |edits: &[(&str, &str)]| {
        let config = edits.iter().fold(config.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        project.write("config.yaml", &config);
        project.run(&["check"]).ends_with(2)
    };
    // A shape that is not known, and what has nothing to do with it.
    let ran = with(&[
        ("    num_layers: 2\n", ""),
        (", seq_length: 16", ""),
        ("type: adamw", "type: adamww"),
        ("global_batch_size: 2", "global_batch_size: 3"),
        ("micro_batch_size: 1", "micro_batch_size: 2"),
    ]);
    says(
        &ran,
        &[
            "`models.tiny` lacks num_layers",
            "`training.data.seq_length` is not set",
            "`adamww` is not an optimiser",
            "a global batch of 3 is not a multiple of MBS 2",
        ],
    );
    let ran = with(&[
        ("train_iters: 6", "train_iters: 0"),
        ("num_kv_heads: 2", "num_kv_heads: 3"),
        ("type: adamw", "type: adamww"),
    ]);
    let told = [
        "`training.duration.train_iters` must be",
        "2 heads cannot share 3 key-value heads",
        "`adamww` is not",
    ];
    says(&ran, &told);
    // What a model of a kind needs beside the sizes of all.
    let start = config.find("    architecture: llama").unwrap();
    let end = config.find("  wide:").unwrap();
    let shape = &config[start..end];
    let ran = with(&[(shape, "    architecture: deepseek_v3\n")]);
    let needs = "lacks num_layers, hidden_size, ffn_hidden_size, num_attention_heads, vocab_size, num_experts, \
                 num_experts_per_tok, moe_intermediate_size, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim";
    says(&ran, &[needs]);
}

//! Somebody comes with the config.yaml of an older suite, or with a recipe of their own.

use crate::support::{CONFIG, Project, TRAINER};

const OLD: &str = include_str!("../fixtures/older-suite.yaml");

/// An empty folder with a config.yaml.
fn with_config(text: &str) -> Project {
    let project = Project::empty();
    project.write("config.yaml", text);
    project
}

#[test]
fn a_config_of_an_older_suite_is_checked_and_planned_as_it_is() {
    let project = with_config(OLD);
    let check = project.run(&["check"]).ends_with(0).stderr;
    for said in [
        "config.yaml implies nvidia, amd × nemo, mgds, prim × llama, qwen × fast: 10 cells",
        "32 an hour for 8 GPUs is 4 a GPU-hour on nvidia",
        "the fp8 peak of nvidia_h100 is 1978.9 TFLOP/s (NVIDIA H100 SXM datasheet, dense)",
        "`training.optimizer.type: adam` is AdamW here",
        "`frameworks.nemo.precision: bf16` is not used where `platform_optimizations.nvidia.precision` says otherwise",
        "are for people and change nothing: hardware.platforms.nvidia.software_stack",
    ] {
        assert!(check.contains(said), "{said}\n{check}");
    }
    let plan = project.run(&["plan"]).ends_with(0);
    assert!(
        plan.stdout
            .contains("waiting      nvidia/nemo/llama/fast  5 runs"),
        "{}",
        plan.stdout
    );
    assert!(
        plan.stderr.contains("there is no matrix file"),
        "{}",
        plan.stderr
    );
    // A try-out: fewer steps than warm-up, one framework, by variables as those suites have them.
    let mut command = project.tprimat(&["show", "--launch", "nvidia/nemo/llama/fast", "--json"]);
    let rendered: crate::support::Ran = command
        .env("TRAIN_ITERS", "5")
        .env("FRAMEWORKS", "nemo")
        .output()
        .unwrap()
        .into();
    let launch = rendered.ends_with(0).json();
    assert_eq!(launch["job"]["precision"], "fp8");
    assert_eq!(
        (
            launch["job"]["train_iters"].as_u64(),
            launch["job"]["optimizer"]["warmup_steps"].as_u64()
        ),
        (Some(5), Some(2))
    );
    let of = |path: &str| {
        launch["settings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|s| s["path"] == path)
            .unwrap()
            .clone()
    };
    assert_eq!(
        of("training.precision.default")["from"],
        "platform_optimizations.nvidia.precision, config.yaml:28:24"
    );
    assert_eq!(
        of("models.qwen.num_layers".replace("qwen", "llama").as_str())["value"],
        32
    );
}

#[test]
fn init_keeps_a_config_and_writes_the_matrix_that_it_implies() {
    let project = with_config(OLD);
    project.run(&["init"]).ends_with(0);
    assert_eq!(project.read("config.yaml"), OLD);
    assert_eq!(
        project.names_in("."),
        [".gitignore", "config.yaml", "schemas"]
    );
    let cells = |project: &Project| project.run(&["list", "--json"]).ends_with(0).json();
    let implied = cells(&project);
    project.run(&["init", "--matrix"]).ends_with(0);
    assert_eq!(
        cells(&project),
        implied,
        "the written matrix has the implied cells"
    );
    assert!(
        project
            .run(&["plan"])
            .ends_with(0)
            .stderr
            .find("no matrix file")
            .is_none()
    );
    // One matrix is the default, whatever it is called; of several one is to be named.
    std::fs::rename(
        project.path("pipelines/matrix.toml"),
        project.path("pipelines/mine.toml"),
    )
    .unwrap();
    assert_eq!(cells(&project), implied);
    project.write("pipelines/other.toml", &project.read("pipelines/mine.toml"));
    assert!(
        project
            .run(&["plan"])
            .ends_with(2)
            .stderr
            .contains("pipelines has mine, other")
    );
}

#[test]
fn a_config_that_implies_nothing_says_what_to_add() {
    let said = |text: &str| with_config(text).run(&["check"]).ends_with(2).stderr;
    let all = "hardware: { platforms: { cpu: {} } }\nmodels: { m: { name: gpt2 } }\nparallelism: { s: { DP: 1 } }\n";
    assert!(said(all).contains("it has no framework") && said(all).contains("FRAMEWORKS=tran"));
    assert!(said("{}").contains("it has no platform"));
    assert!(
        said("hardware: [").contains("not YAML"),
        "config.yaml is looked at first"
    );
}

#[test]
fn a_variable_names_a_strategy_that_the_matrix_does_not() {
    let strategy = "  single: { num_gpus: 1, DP: 1 }\n";
    let project =
        with_config(&CONFIG.replace(strategy, &format!("{strategy}  mine: {{ num_gpus: 1 }}\n")));
    project
        .write("trainer.sh", TRAINER)
        .write("matrix.toml", crate::support::ONE_RUN);
    let list = |variable: &str| -> String {
        let ran: crate::support::Ran = project
            .tprimat(&["list"])
            .env("PARALLEL", variable)
            .output()
            .unwrap()
            .into();
        ran.stdout + &ran.stderr
    };
    assert!(
        list("mine").contains("cpu/cmd/tiny/mine"),
        "{}",
        list("mine")
    );
    assert!(list("single").contains("cpu/cmd/tiny/single"));
    assert!(
        list("mien").contains("unknown strategy `mien` in $PARALLEL"),
        "{}",
        list("mien")
    );
}

/// A variable is set for many projects, so names that this one does not have are passed over, with
/// a matrix file and without.
#[test]
fn a_variable_may_name_more_than_the_project_has() {
    let strategy = "  single: { num_gpus: 1, DP: 1 }\n";
    let project =
        with_config(&CONFIG.replace(strategy, &format!("{strategy}  mine: {{ num_gpus: 1 }}\n")));
    project.write("trainer.sh", TRAINER);
    let list = |project: &Project, variable: &str, value: &str| -> String {
        let ran: crate::support::Ran = project
            .tprimat(&["list"])
            .env(variable, value)
            .output()
            .unwrap()
            .into();
        ran.ends_with(0).stdout
    };
    let names = [("PARALLEL", "single fast"), ("FRAMEWORKS", "cmd,later")];
    let implied = names.map(|(variable, value)| list(&project, variable, value));
    assert!(
        implied[0].contains("cpu/cmd/tiny/single") && !implied[0].contains("mine"),
        "{}",
        implied[0]
    );
    assert!(
        implied[1].contains("cpu/cmd/tiny/mine") && !implied[1].contains("later"),
        "{}",
        implied[1]
    );
    project.run(&["init", "--matrix"]).ends_with(0);
    assert_eq!(
        names.map(|(variable, value)| list(&project, variable, value)),
        implied
    );
}

#[test]
fn problems_of_cells_that_are_not_selected_stop_nothing() {
    let config = CONFIG.replace(
        "cpu: { vendor: cpu, num_gpus: 1 }",
        "cpu: { vendor: cpu, num_gpus: 1 }\n    nvd: { num_gpus: 8 }",
    );
    let project = with_config(&config.replace(
        "single: { num_gpus: 1, DP: 1 }",
        "single: { num_gpus: 1, DP: 1, nvd: { DP: 8 } }",
    ));
    let matrix = crate::support::ONE_RUN.replace("\"cpu\"", "[\"cpu\", \"nvd\"]");
    project
        .write("trainer.sh", TRAINER)
        .write("matrix.toml", &matrix);
    let plan = |only: &str| -> crate::support::Ran {
        project
            .tprimat(&["plan", "--only", only])
            .env("CONFIG_NVD_NUM_GPUS", "4")
            .output()
            .unwrap()
            .into()
    };
    plan("cpu").ends_with(0);
    assert!(
        plan("nvd")
            .ends_with(2)
            .stderr
            .contains("and num_gpus is 4")
    );
}

/// What a recipe of the user's own never hands over is no setting of the run.
#[test]
fn a_recipe_that_hands_nothing_over_gets_no_rate() {
    let project = with_config(&CONFIG.replace(
        "  cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] }\n",
        "  mine: {}\n",
    ));
    let recipe = "id = \"mine\"\nname = \"mine\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = [\"mine.sh.j2\"]\n\
        command = [\"bash\", \"mine.sh\"]\n[log]\nformat = \"regex\"\npatterns = ['step (?P<step>\\d+) took (?P<step_time_seconds>\\S+)']\n";
    let steps = "for s in 1 2 3 4 5 6; do echo step $s took 0.0$s; done\n";
    project.write(
        "matrix.toml",
        &crate::support::ONE_RUN.replace("cmd", "mine"),
    );
    project
        .write("recipes/mine/recipe.toml", recipe)
        .write("recipes/mine/mine.sh.j2", steps);
    let check = project.run(&["check"]).ends_with(0).stderr;
    assert!(
        check.contains("recipe `mine` does not hand over model.architecture, model.num_layers"),
        "{check}"
    );
    assert!(
        check.contains("data.seq_length") && check.contains("reads_job = true"),
        "{check}"
    );
    project.run(&["build"]);
    let compared = project.run(&["compare", "--json"]).stdout;
    assert!(
        compared.contains("the recipe does not hand over architecture"),
        "{compared}"
    );
    let rate = |project: &Project| {
        let summary = project
            .run(&["show", "cpu/mine/tiny/single", "--json"])
            .json();
        summary["tokens_per_second_per_gpu"]["value"].as_f64()
    };
    assert_eq!(rate(&project), None);
    // Said to mean nothing, all but what the script uses: then the measurement counts.
    let fields = [
        "model.architecture",
        "model.num_layers",
        "model.hidden_size",
        "model.ffn_hidden_size",
        "model.num_attention_heads",
        "model.num_kv_heads",
        "model.head_dim",
        "model.vocab_size",
        "model.tie_embeddings",
        "model.qkv_bias",
        "data.global_batch_size",
        "precision",
        "optimizer.state_precision",
        "model.dataset",
    ];
    let ignored: String = fields
        .iter()
        .map(|field| format!("[[ignored]]\nfield = \"{field}\"\nreason = \"a stand-in\"\n"))
        .collect();
    project.write("recipes/mine/recipe.toml", &format!("{recipe}{ignored}"));
    project.write(
        "recipes/mine/mine.sh.j2",
        &format!("{steps}# {{{{ job.data.seq_length }}}}\n"),
    );
    assert!(
        !project
            .run(&["check"])
            .ends_with(0)
            .stderr
            .contains("does not hand over")
    );
    project.run(&["build"]);
    assert!(rate(&project).is_some());
    // What was chosen and never reaches the trainer is told, and gives no rate under its name.
    for chosen in [
        "training.compile=true",
        "training.activation_checkpointing=true",
        "training.offload=true",
    ] {
        let field = chosen
            .trim_start_matches("training.")
            .trim_end_matches("=true");
        let check = project.run(&["check", "--set", chosen]).ends_with(0).stderr;
        assert!(
            check.contains(&format!("recipe `mine` does not hand over {field}:")),
            "{check}"
        );
    }
    let compiled = project
        .run(&["build", "--set", "training.compile=true"])
        .ends_with(1);
    let told = format!("{}{}", compiled.stdout, compiled.stderr);
    assert!(told.contains("does not hand over compile"), "{told}");
    assert!(rate(&project).is_some());
    let check = project
        .run(&["check", "--set", "training.init_std=0.5"])
        .ends_with(0)
        .stderr;
    assert!(
        check.contains(
            "does not hand over initialisation.std: its losses are those of another setting"
        ),
        "{check}"
    );
    // Used for one model only, it is handed over for that one only; a template that fails has not
    // read it.
    let branched = "{% if job.model.ffn_hidden_size == 16 %}# {{ job.data.seq_length }}{% elif job.data.seq_length != 16 %}\
        {{ fail('another length') }}{% endif %}\n";
    project.write("recipes/mine/mine.sh.j2", &format!("{steps}{branched}"));
    project.write(
        "matrix.toml",
        &crate::support::ONE_RUN
            .replace("cmd", "mine")
            .replace("\"tiny\"", "[\"tiny\", \"wide\"]"),
    );
    let check = project.run(&["check"]).ends_with(0).stderr;
    assert!(
        check.contains("recipe `mine` does not hand over data.seq_length:"),
        "{check}"
    );
    project.run(&["build"]);
    assert!(rate(&project).is_some());
    let of_wide = project
        .run(&["show", "cpu/mine/wide/single", "--json"])
        .json();
    assert_eq!(of_wide["tokens_per_second_per_gpu"]["value"].as_f64(), None);
}

#[test]
fn a_cell_can_be_looked_at_before_it_runs() {
    let project = Project::new(crate::support::ONE_RUN);
    let shown = project.run(&["show", "cpu/cmd/tiny/single"]).ends_with(0);
    for said in [
        "TP 1 × PP 1 × CP 1 × DP 1 = 1",
        "2 sequences of 16 tokens a step = micro-batch 1 × DP 1 × accumulation 2",
        "training.data.seq_length = 16",
        "# config.yaml:15:66",
        "training.seed = 1234",
        "# built in",
        "── cmd.sh ──",
        "bash trainer.sh",
    ] {
        assert!(shown.stdout.contains(said), "{said}\n{}", shown.stdout);
    }
    assert_eq!(project.launches(), 0);
    project
        .run(&["show", "--launch", "cpu/cmd/tiny/single", "-o", "look"])
        .ends_with(0);
    assert_eq!(project.names_in("look"), ["cmd.sh", "job.json"]);
    project
        .run(&["show", "--launch", "cpu/cmd/tiny/single", "-o", "look"])
        .ends_with(0);
    project.write("look/cmd.sh", "mine");
    assert!(
        project
            .run(&["show", "--launch", "cpu/cmd/tiny/single", "-o", "look"])
            .ends_with(2)
            .stderr
            .contains("is there already")
    );
    assert_eq!(project.read("look/cmd.sh"), "mine");
}

#[test]
fn a_graph_of_some_cells_has_no_others_whatever_the_matrix_is_called() {
    let matrix = |name: &str| {
        crate::support::ONE_RUN
            .replace("\"one\"", &format!("{name:?}"))
            .replace("\"tiny\"", "[\"tiny\", \"wide\"]")
    };
    let nodes = |name: &str| {
        let graph = Project::new(&matrix(name))
            .run(&["print", "graph", "--where", "model=tiny"])
            .ends_with(0)
            .stdout;
        graph.matches("label=").count()
    };
    assert_eq!(
        nodes("single"),
        nodes("other"),
        "the strategy is called `single`"
    );
}

#[test]
fn a_token_is_said_to_be_set_and_nothing_more() {
    let project = Project::new(crate::support::ONE_RUN);
    let config: crate::support::Ran = project
        .tprimat(&["config"])
        .env("HF_TOKEN", "hf_hush")
        .output()
        .unwrap()
        .into();
    let text = config.ends_with(0).stdout;
    assert!(
        text.contains("HF_TOKEN is set") && !text.contains("hush"),
        "{text}"
    );
    // Any spelling of a path names its value.
    let by_alias = project
        .run(&["config", "get", "training.duration.max_steps"])
        .ends_with(0)
        .stdout;
    assert_eq!(by_alias, "6\n");
}

#[test]
fn a_million_runs_are_the_most_that_are_planned() {
    let axis = format!(
        "[matrix.axes.seed]\npath = \"training.seed\"\nvalues = {:?}\n",
        (0..101).collect::<Vec<_>>()
    );
    let project =
        Project::new(&(crate::support::ONE_RUN.replace("repeats = 1", "repeats = 10000") + &axis));
    let said = project.run(&["plan"]).ends_with(2).stderr;
    assert!(
        said.contains("has 1010000 runs (cells × repeats)"),
        "{said}"
    );
}

/// Under `identical_config` nothing but platform and framework may differ: that more does is said
/// before anything runs.
#[test]
fn a_configuration_called_identical_that_is_not_is_told_before_it_costs_anything() {
    let config = CONFIG
        .replace(
            "cpu: { vendor: cpu, num_gpus: 1 }",
            "cpu: { vendor: cpu, num_gpus: 1 }\n    spare: { vendor: cpu, num_gpus: 1 }",
        )
        .replace(
            "single: { num_gpus: 1, DP: 1 }",
            "identical_config: { num_gpus: 1, DP: 1 }",
        );
    let project = with_config(&config);
    project.write("trainer.sh", TRAINER);
    let matrix = "[matrix]\nname = \"same\"\nplatform = [\"cpu\", \"spare\"]\nframework = \"cmd\"\nmodel = \"tiny\"\n\
                  parallelism = \"identical_config\"\nrepeats = 1\n";
    project.write("matrix.toml", matrix);
    for command in ["check", "plan"] {
        let said = project.run(&[command]).ends_with(0).stderr;
        assert!(!said.contains("nothing may differ"), "{command}: {said}");
    }
    let other = "\n[[override]]\nwhere = { platform = \"spare\" }\nset = { \"training.data.seq_length\" = 32 }\n";
    project.write("matrix.toml", &format!("{matrix}{other}"));
    for command in ["check", "plan"] {
        let said = project.run(&[command]).ends_with(0).stderr;
        let words = "under `identical_config` nothing may differ, so `spare/cmd/tiny/identical_config` will not be compared with \
                     `cpu/cmd/tiny/identical_config`: seq_length: 32, not 16";
        assert!(said.contains(words), "{command}: {said}");
    }
}

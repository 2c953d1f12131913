//! The first day of somebody who brings a config.yaml, a cache or results along: names, mistakes,
//! first tables.

use crate::support::{CONFIG, ONE_RUN, Project, Ran, TRAINER};
use serde_json::{Value, json};

const CELL: &str = "cpu/cmd/tiny/single";

/// What was said, without line breaks and the frames around it.
fn said(ran: &Ran) -> String {
    ran.stderr
        .replace(['│', '╰', '─', '╭', '·'], " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

fn with_variable(project: &Project, arguments: &[&str], variable: &str, value: &str) -> Ran {
    project
        .tprimat(arguments)
        .env(variable, value)
        .output()
        .unwrap()
        .into()
}

#[test]
fn every_command_takes_the_same_names_of_a_cell() {
    let project = Project::new(&ONE_RUN.replace("\"tiny\"", "[\"tiny\", \"wide\"]"));
    project.run(&["build"]).ends_with(0);
    for command in [
        &["show"][..],
        &["show", "--launch"],
        &["show", "--stale"],
        &["show", "--attempts"],
        &["logs"],
    ] {
        let run = |name| project.run(&[command, &[name]].concat());
        let command = command.join(" ");
        for name in [CELL, "cpu/cmd/tiny", "CPU/CMD/tiny", "*/*/tiny"] {
            let ran = run(name).ends_with(0);
            assert!(!ran.stdout.is_empty(), "{command} {name}: {ran:?}");
        }
        let ran = run("cpu/cmd").ends_with(2);
        assert!(
            said(&ran).contains("name one: cpu/cmd/tiny/single, cpu/cmd/wide/single"),
            "{command}: {}",
            ran.stderr
        );
        let ran = run("cpu/cmd/tny").ends_with(4);
        assert!(
            said(&ran).contains("did you mean `cpu/cmd/tiny/single`?"),
            "{command}: {}",
            ran.stderr
        );
    }
    let compared = project
        .run(&[
            "compare",
            "matrix",
            "cpu/cmd/tiny",
            "cpu/cmd/wide",
            "--json",
        ])
        .stdout;
    assert!(compared.contains("cpu/cmd/wide/single"), "{compared}");
}

#[test]
fn the_problems_of_all_stages_are_told_in_one_pass() {
    let config = CONFIG
        .replace("learning_rate: 1.0e-3, ", "lr: 1.0e-3, ")
        .replace("global_batch_size: 2", "gbs: 2")
        .replace(
            "single: { num_gpus: 1, DP: 1 }",
            "single: { num_gpus: 1, DP: 1 }\n  split: { num_gpus: 1, TP: 2 }",
        );
    let matrix = ONE_RUN.replace("\"single\"", "[\"single\", \"split\", \"splt\"]");
    let project = Project::new(&matrix);
    project.write("config.yaml", &config);
    let ran = project.run(&["check"]).ends_with(2);
    let said = said(&ran);
    for told in [
        "unknown key `training.optimizer.lr`",
        "write `learning_rate`",
        "unknown key `training.data.gbs`",
        "write `global_batch_size`",
        "unknown strategy `splt`",
    ] {
        assert!(said.contains(told), "{told}:\n{}", ran.stderr);
    }
    assert!(
        !said.contains("is not set"),
        "what is misspelt is not missing as well:\n{}",
        ran.stderr
    );
    // The cells' own problems come with those of config.yaml.
    project.write("matrix.toml", &matrix.replace(", \"splt\"", ""));
    let ran = project.run(&["check"]).ends_with(2);
    assert!(
        ran.stderr
            .contains("TP 2 × PP 1 × CP 1 × DP 1 = 2, and num_gpus is 1"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("unknown key `training.optimizer.lr`"),
        "{}",
        ran.stderr
    );
    // A key of another table, and one that is two here.
    project.write(
        "config.yaml",
        &CONFIG.replace(
            "seq_length: 16",
            "seq_length: 16, betas: [0.9, 0.95], seq_len: 16",
        ),
    );
    let ran = project.run(&["check"]).ends_with(2);
    assert!(
        ran.stderr
            .contains("write `training.optimizer.beta1` and `training.optimizer.beta2`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn words_are_taken_as_people_write_them() {
    let config = CONFIG
        .replace("type: adamw", "type: AdamW")
        .replace("default: fp32", "default: BFloat16")
        .replace("architecture: llama", "architecture: Llama")
        .replace("DP: 1", "dp: 1");
    let project = Project::new(ONE_RUN);
    project.write("config.yaml", &config);
    let job = project
        .run(&["show", "--launch", CELL, "--json"])
        .ends_with(0)
        .json()["job"]
        .clone();
    assert_eq!(
        (&job["precision"], &job["optimizer"]["type"]),
        (&json!("bf16"), &json!("adamw"))
    );
    assert_eq!(job["model"]["architecture"], "llama");
    let listed = with_variable(&project, &["list"], "FRAMEWORKS", "CMD").ends_with(0);
    assert!(listed.stdout.contains(CELL), "{}", listed.stdout);
    // A model by the Hub's id, which has an owner before the name.
    project.edit("matrix.toml", "\"tiny\"", "\"owner/tiny\"");
    let listed = project.run(&["list"]).ends_with(0);
    assert!(listed.stdout.contains(CELL), "{}", listed.stdout);
    project.edit("config.yaml", "  wide:", "  owner/wide-1.5B:");
    let refused = project.run(&["check"]).ends_with(2);
    let told = "call it `wide-1.5B`; a matrix may say `owner/wide-1.5B` all the same";
    assert!(said(&refused).contains(told), "{refused:?}");
}

#[test]
fn what_is_nearly_a_name_is_answered_with_the_name() {
    let project = Project::new(ONE_RUN);
    for words in [
        &["build", "--force"][..],
        &["build", "--force", "matrix.toml"],
    ] {
        let refused = project.run(words).ends_with(2);
        assert!(
            said(&refused).contains("did you mean `--force=measured`"),
            "{refused:?}"
        );
    }
    // Nothing else of the model is known, and that is not what is told.
    project.edit(
        "config.yaml",
        "  wide:",
        "  new: { architecture: qwen4_moe }\n  wide:",
    );
    project.edit("matrix.toml", "\"tiny\"", "\"new\"");
    let refused = project.run(&["check"]).ends_with(2);
    let told = "`qwen4_moe` is not an architecture tprimat can count";
    assert!(
        said(&refused).contains(told)
            && said(&refused).contains("did you mean `qwen2_moe`? expected llama,"),
        "{refused:?}"
    );
}

#[test]
fn mistakes_in_an_implied_matrix_point_at_what_somebody_wrote() {
    let project = Project::empty();
    project.write("config.yaml", include_str!("../fixtures/older-suite.yaml"));
    for (variable, value, told) in [
        (
            "FRAMEWORKS",
            "nmeo",
            "unknown framework `nmeo` in $FRAMEWORKS",
        ),
        ("PARALLEL", "fats", "unknown strategy `fats` in $PARALLEL"),
    ] {
        let ran = with_variable(&project, &["plan"], variable, value).ends_with(2);
        assert!(
            ran.stderr.contains(told) && ran.stderr.contains("did you mean"),
            "{}",
            ran.stderr
        );
        assert!(
            !ran.stderr.contains("the matrix that config.yaml implies:"),
            "{}",
            ran.stderr
        );
    }
    project.edit("config.yaml", "framework: \"nemo\"", "framework: \"NeMoo\"");
    let ran = project.run(&["check"]).ends_with(2);
    assert!(
        ran.stderr.contains("config.yaml:4:") && said(&ran).contains("did you mean `nemo`?"),
        "{}",
        ran.stderr
    );
    project.edit("config.yaml", "framework: \"NeMoo\"", "framework: \"NeMo\"");
    project.run(&["check"]).ends_with(0);
}

#[test]
fn a_shape_from_a_file_that_is_not_there_says_which_line_names_it() {
    let project = Project::new(ONE_RUN);
    let shape = json!({
        "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32, "rms_norm_eps": 1e-5,
    });
    let folder = project.folder().join("hub");
    std::fs::create_dir(&folder).unwrap();
    let named = |path: &str| {
        CONFIG.replace(
            "  wide: {",
            &format!("  mine: {{ hf_config: {path} }}\n  wide: {{"),
        )
    };
    project.write("config.yaml", &named(folder.to_str().unwrap()));
    let ran = project.run(&["check"]).ends_with(2);
    assert!(ran.stderr.contains("config.yaml:13:"), "{}", ran.stderr);
    // An absolute path, of the file or of its folder.
    std::fs::write(folder.join("config.json"), shape.to_string()).unwrap();
    project.run(&["check"]).ends_with(0);
    project.write(
        "config.yaml",
        &named(folder.join("config.json").to_str().unwrap()),
    );
    project.run(&["check"]).ends_with(0);
}

#[test]
fn a_command_of_ones_own_needs_no_learning_rate() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3, min_learning_rate: 1.0e-4, ",
        "",
    );
    // The trainer's own rate is no contradiction.
    project.edit(
        "trainer.sh",
        "\"effective\":{",
        "\"effective\":{\"learning_rate\":0.01,",
    );
    project.run(&["build"]).ends_with(0);
    // A recipe that hands it over needs it.
    project.write("matrix.toml", &ONE_RUN.replace("\"cmd\"", "\"tran\""));
    let ran = project.run(&["check"]).ends_with(2);
    assert!(
        ran.stderr
            .contains("`training.optimizer.learning_rate` is not set"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_run_of_which_no_step_would_be_measured_is_refused() {
    let project = Project::new(ONE_RUN);
    project.edit("config.yaml", "skip_steps: 1", "skip_steps: 6");
    let ran = project.run(&["build"]).ends_with(2);
    assert!(
        said(&ran).contains("no step would be measured, for the first 6 of a run of 6 are warm-up"),
        "{}",
        ran.stderr
    );
    assert_eq!(project.launches(), 0);
}

#[test]
fn a_result_that_is_no_log_names_import() {
    let project = Project::new(ONE_RUN);
    project.write(
        "train_nvd_nemo_llama.json",
        "{ \"platform\": \"nvidia\", \"step_times\": [1.0] }",
    );
    let ran = project
        .run(&["parse", "train_nvd_nemo_llama.json"])
        .ends_with(2);
    assert!(
        said(&ran).contains("`tprimat import train_nvd_nemo_llama.json`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn an_attempt_is_set_aside_by_its_cell() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 2"));
    project.run(&["build"]).ends_with(0);
    let set_aside = |name: &str| {
        project.run(&[
            "cache",
            "set-aside",
            name,
            "--reason",
            "the fan stood still",
        ])
    };
    let ran = set_aside("cpu/cmd/tiny").ends_with(2);
    assert!(
        said(&ran).contains("2 runs of `cpu/cmd/tiny` may be meant"),
        "{}",
        ran.stderr
    );
    set_aside("cpu/cmd/tiny#2").ends_with(0);
    set_aside("cpu/cmd/tiny").ends_with(0);
    let ran = set_aside("cpu/cmd/tiny").ends_with(4);
    assert!(
        said(&ran).contains("no run of `cpu/cmd/tiny` counts"),
        "{}",
        ran.stderr
    );
    project
        .run(&["cache", "restore", "cpu/cmd/tiny#1"])
        .ends_with(0);
    project
        .run(&["cache", "restore", "cpu/cmd/tiny"])
        .ends_with(0);
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2, "both count again");
}

#[test]
fn a_copied_cache_is_taken_over_whole() {
    let there = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    there.run(&["build"]).ends_with(0);
    there.write(
        "training_other.log",
        "bash: ./run.sh: No such file or directory\n",
    );
    there.run(&["import", "training_other.log"]).ends_with(0);
    let here = Project::new(&there.read("matrix.toml"));
    here.write("trainer.sh", TRAINER);
    let shown = there.run(&["show", CELL, "--json"]).json();
    let path = there.root().to_str().unwrap();
    let told = here.run(&["import", path]).ends_with(2).stderr;
    // A long path is broken where the line ends.
    let told: String = told.split_whitespace().collect();
    let address = format!("file://{path}/cache");
    let pull = ["cache", "pull", "--remote", &address];
    assert!(told.contains(&pull.concat()), "{told}");
    let ran = here.run(&pull).ends_with(0);
    assert!(
        ran.stdout.contains("3 runs, 1 import pulled"),
        "{}",
        ran.stdout
    );
    // Every run counts here as it does there, and nothing is trained.
    assert_eq!(here.run(&["show", CELL, "--json"]).json(), shown);
    here.run(&["build"]).ends_with(0);
    assert_eq!(here.launches(), 0);
    assert_eq!(
        here.run(&["list", "--json"]).json(),
        there.run(&["list", "--json"]).json(),
        "imports come along"
    );
    let again = here.run(&pull).ends_with(0);
    assert!(
        again.stdout.contains("has no other runs"),
        "{}",
        again.stdout
    );
}

/// Each cell of the matrices that `init` writes is predicted to fit the card that config.yaml names
/// for it.
#[test]
fn shipped_cells_fit_their_cards_and_no_two_strategies_are_one() {
    let project = Project::empty();
    project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0);
    let mut looked_at = 0;
    for matrix in project.names_in("pipelines") {
        let fits = project.run(&["fit", &matrix, "--json"]).ends_with(0).json();
        for fit in fits["cells"].as_array().unwrap() {
            let cell = fit["cell"].as_str().unwrap();
            if cell.starts_with("cpu/") {
                continue;
            }
            looked_at += 1;
            // Plain DDP on the largest card is the one exception: it fits, and not by much.
            let allowed: &[&str] = if cell.starts_with("amd/tran") {
                &["fits", "tight"]
            } else {
                &["fits"]
            };
            assert!(
                allowed.iter().any(|word| fit["verdict"] == *word),
                "{matrix} {cell}: {fit}"
            );
        }
        let check = project.run(&["check", &matrix, "--json"]).ends_with(0);
        assert_eq!(check.json()["same_launch"], json!([]), "{matrix}");
        // Cells that differ in the same way share one sentence.
        assert!(
            said(&check).matches("nothing may differ").count() <= 1,
            "{}",
            check.stderr
        );
    }
    assert!(looked_at > 60, "{looked_at}");
}

/// Sixty steps of about 1.5 s at the stated batch, as `compare.py` and its kin publish them.
fn published(platform: &str, batch: u64, length: u64) -> Value {
    let base = if platform == "amd" { 1.6 } else { 1.5 };
    let times: Vec<f64> = (0..60)
        .map(|step| base + 0.001 * f64::from(step % 7))
        .collect();
    let mean = times[1..].iter().sum::<f64>() / 59.0;
    let rate = (batch * length) as f64 / mean;
    json!({
        "platform": platform,
        "gpu_info": { "device_count": 8, "device_name": if platform == "amd" { "AMD Instinct MI300X" } else { "NVIDIA H100 80GB HBM3" } },
        "training_config": { "max_steps": 60, "global_batch_size": batch, "sequence_length": length, "num_gpus": 8 },
        "performance_metrics": { "tokens_per_second": rate, "tokens_per_second_per_gpu": rate / 8.0, "avg_step_time_seconds": mean },
        "step_times": times,
    })
}

/// Older suites publish under the same names: what is there already is nobody's to overwrite.
#[test]
fn results_of_an_older_suite_are_not_written_over() {
    let project = Project::new(ONE_RUN);
    let old = published("nvd", 64, 2048).to_string();
    project
        .write("output/train_cpu_cmd_tiny.json", &old)
        .write("output/train_nvd_nemo_llama.json", &old);
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        said(&built)
            .contains("output/earlier/train_cpu_cmd_tiny.json, where `tprimat import` can read it"),
        "{}",
        built.stderr
    );
    assert_eq!(
        project.names_in("output/earlier"),
        ["train_cpu_cmd_tiny.json"]
    );
    assert_eq!(project.read("output/earlier/train_cpu_cmd_tiny.json"), old);
    assert_eq!(
        project.read("output/train_nvd_nemo_llama.json"),
        old,
        "in nobody's way"
    );
    // The next builds replace what tprimat wrote itself, and say nothing.
    project.edit("config.yaml", "skip_steps: 1", "skip_steps: 2");
    let built = project.run(&["build"]).ends_with(0);
    assert!(!built.stderr.contains("earlier"), "{}", built.stderr);
    assert_eq!(project.names_in("output/earlier").len(), 1);
    // They are imported with the folder; what tprimat published there is not.
    let told = project.run(&["import", "."]).ends_with(0).stdout;
    assert!(
        told.contains("train_nvd_nemo_llama.json") && !told.contains("compare.json"),
        "{told}"
    );
    assert_eq!(told.matches("imported from").count(), 2, "{told}");
}

/// Whoever comes from an older suite has a table before they have read anything.
#[test]
fn a_folder_of_an_older_suite_gives_a_first_table() {
    for config in [
        include_str!("../fixtures/older-suite.yaml"),
        include_str!("../fixtures/older-suite-short.yaml"),
    ] {
        let project = Project::empty();
        project
            .write("config.yaml", config)
            .write("README.md", "our results");
        project.write(
            "results/train_nvd_nemo_llama.json",
            &published("nvd", 64, 2048).to_string(),
        );
        project.write(
            "results/train_amd_prim_llama.json",
            &published("amd", 64, 2048).to_string(),
        );
        project.write(
            "results/benchmark_cuda_llama.json",
            &published("nvd", 8, 8192).to_string(),
        );
        project.write(
            "logs/training_llama.log",
            "bash: ./examples/run_pretrain.sh: No such file or directory\n",
        );
        let check = project.run(&["check"]).ends_with(0);
        assert!(check.stdout.contains("no problem found"), "{check:?}");
        let plan = project.run(&["plan"]).ends_with(0);
        let lines = plan.stdout.lines().count();
        assert!(lines <= 24, "a screen, not {lines} lines:\n{}", plan.stdout);
        assert!(
            plan.stdout.contains("nvidia/nemo/llama/"),
            "{}",
            plan.stdout
        );
        project.run(&["import", "."]).ends_with(0);
        let table = project.run(&["compare"]).ends_with(0);
        for cell in ["nvidia/nemo", "amd/prim"] {
            assert!(table.stdout.contains(cell), "{cell}:\n{}", table.stdout);
        }
        assert!(table.stdout.contains("tokens/s"), "{}", table.stdout);
        // A folder's table is of that folder.
        project.write(
            "more/train_nvd_nemo_qwen.json",
            &published("nvd", 16, 2048).to_string(),
        );
        let more = project.run(&["compare", "more/"]).ends_with(0);
        assert!(
            more.stdout.contains("nemo") && !more.stdout.contains("amd/prim"),
            "{}",
            more.stdout
        );
        let of_one = project
            .run(&["compare", "--only", "rocm/primus"])
            .ends_with(0);
        assert!(
            of_one.stdout.contains("amd/prim/llama") && !of_one.stdout.contains("nemo"),
            "{}",
            of_one.stdout
        );
        let none = project
            .run(&["compare", "--only", "amd/primm"])
            .ends_with(4);
        assert!(
            said(&none).contains("did you mean `prim`?"),
            "{}",
            none.stderr
        );
        let words = table
            .stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(
            words.contains("Cells of different workloads are not compared"),
            "batch 8 beside batch 64:\n{}",
            table.stdout
        );
        // Without any config.yaml as well.
        let bare = Project::empty();
        bare.write(
            "train_nvd_nemo_llama.json",
            &published("nvd", 64, 2048).to_string(),
        );
        bare.run(&["import", "."]).ends_with(0);
        assert!(bare.run(&["compare"]).ends_with(0).stdout.contains("nemo"));
    }
}

#[test]
fn a_repeat_that_is_not_started_after_failures_is_told_as_that() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    project.write("trainer.sh", "echo boom; exit 3\n");
    project.run(&["build"]).ends_with(1);
    for command in ["show", "logs"] {
        let ran = project
            .run(&[command, "cpu/cmd/tiny/single#3"])
            .ends_with(1);
        let told: Vec<&str> = ran.stderr.split_whitespace().collect();
        let told = told.join(" ");
        assert!(
            told.contains("`cpu/cmd/tiny/single#3` was not started: ")
                && told.contains(
                    "`tprimat build --force=failed --only cpu/cmd/tiny/single` starts it anyway"
                ),
            "{command}: {told}"
        );
    }
}

//! Edits of what people write: config, matrix, templates, recipes, declared files.

use std::{collections::BTreeSet, fs};

use serde_json::json;

use super::LATER;
use crate::support::{
    Project,
    tasks::{LARGE, RECIPE},
};

/// Everything of the cells of a model.
const ALL_OF_SMALL: &str = "* cpu/cmd/small/*";
const ALL_OF_LARGE: &str = "* cpu/cmd/large/*";

#[test]
fn everything_runs_once() {
    let project = Project::of_two();
    project.expect(&["*"], &["*"]);
    assert_eq!(project.launches(), 4);
}

#[test]
fn a_price_is_read_by_compare_and_later() {
    let project = Project::built();
    project.edit("config.yaml", "per_gpu_hour: 1.00", "per_gpu_hour: 2.50");
    project.expect(&[LATER], &[LATER]);
    assert_eq!(project.launches(), 4);
    let published = fs::read_to_string(project.path("output/train_cpu_cmd_small.json")).unwrap();
    assert!(
        published.contains("at 2.5 EUR a GPU-hour (made up)"),
        "{published}"
    );
    // A price that nothing is measured at: the comparison turns out the same, so neither picture
    // nor report is made again.
    project.edit(
        "config.yaml",
        "cloud_costs:\n",
        "cloud_costs:\n      amd: { per_gpu_hour: 2.00 }\n",
    );
    project.expect(&[LATER], &["compare m"]);
}

#[test]
fn a_target_loss_is_read_by_compare_and_later() {
    let project = Project::built();
    project.write(
        "config.yaml",
        &(project.read("config.yaml") + "\ncomparison: { target_loss: { small: 3.5 } }\n"),
    );
    project.expect(&[LATER], &[LATER]);
    assert_eq!(project.launches(), 4);
}

#[test]
fn a_description_a_comment_blank_lines_and_key_order_are_read_by_nobody() {
    let project = Project::built();
    project.edit("config.yaml", "the first words", "other words");
    project.expect_nothing();
    project.edit(
        "config.yaml",
        "training:\n",
        "# how\n\n\ntraining: # and how much\n",
    );
    project.expect_nothing();
    project.edit(
        "config.yaml",
        "micro_batch_size: 1, global_batch_size: 1",
        "global_batch_size: 1, micro_batch_size: 1",
    );
    let text = project.read("config.yaml");
    let (first, rest) = text.split_once("\n\n").unwrap();
    project.write("config.yaml", &format!("{rest}\n{first}\n"));
    project.expect_nothing();
    project.edit("matrix.toml", "repeats = 2", "# twice\nrepeats     = 2");
    project.expect_nothing();
    let own = "full_name: mine, description: my own, timeout: 2h, command:";
    project
        .edit(
            "config.yaml",
            "cooldown_seconds: 0",
            "cooldown_seconds: 0.5",
        )
        .edit("config.yaml", "command:", own);
    project.expect_nothing();
}

#[test]
fn a_sequence_length_is_read_by_the_cells_that_do_not_override_it() {
    let project = Project::of_two();
    let matrix = project.read("matrix.toml");
    let own = "\n[[override]]\nwhere = { model = \"small\" }\nset = { \"training.data.seq_length\" = 32 }\n";
    project.write("matrix.toml", &(matrix + own));
    assert_eq!(project.build(&[]).code, 0);
    project.edit("config.yaml", "seq_length: 64", "seq_length: 128");
    let reason = project.plan(&[])[&format!("train {LARGE}#1")]
        .reason
        .clone();
    assert!(
        reason.contains("seq_length") && reason.contains("64") && reason.contains("128"),
        "{reason}"
    );
    project.expect(&[ALL_OF_LARGE, LATER], &[ALL_OF_LARGE, LATER]);
    project.edit("matrix.toml", "seq_length\" = 32", "seq_length\" = 16");
    project.expect(&[ALL_OF_SMALL, LATER], &[ALL_OF_SMALL, LATER]);
}

#[test]
fn a_model_is_read_by_its_cells() {
    let project = Project::built();
    project.edit("config.yaml", "vocab_size: 64", "vocab_size: 96");
    project.expect(&[ALL_OF_LARGE, LATER], &[ALL_OF_LARGE, LATER]);
}

/// What no launch file and no program reads is published all the same: the JSON must not show the
/// job of before.
#[test]
fn a_field_that_only_the_published_job_has_is_read_by_render_parse_and_report() {
    let project = Project::of_two();
    project.edit(
        "recipes/cmd/recipe.toml",
        "reads_job = true",
        "reads_job = false",
    );
    // No job is handed over: the launch file has all that the trainer wants to know.
    let own = r#"export JOB='"seq_length": {{ job.data.seq_length }}, "vocab_size": {{ job.model.vocab_size }}, "train_iters": {{ job.train_iters }}'"#;
    // And what else decides the work of a step, for a launch that lacks it would have no rate.
    let model = [
        "architecture",
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_kv_heads",
    ];
    let more = [
        "head_dim",
        "tie_embeddings",
        "qkv_bias",
        "dataset | default('', true)",
    ];
    let shape: String = model
        .iter()
        .chain(&more)
        .map(|name| format!(" {{{{ job.model.{name} }}}}"))
        .collect();
    let work =
        "{{ job.precision }} {{ job.optimizer.state_precision }} {{ job.data.global_batch_size }}";
    project.edit(
        "templates/cmd.sh.j2",
        "set -euo pipefail",
        &format!("set -euo pipefail\n{own}\n: {work}{shape}"),
    );
    project.edit("train.sh", r#"job=$(<"$TPRIMAT_JOB")"#, "job=$JOB");
    project.edit(
        "config.yaml",
        "vocab_size: 32",
        "vocab_size: 32, nemo_recipe: one",
    );
    assert_eq!(project.build(&[]).code, 0);
    project.edit("config.yaml", "nemo_recipe: one", "nemo_recipe: another");
    // The results are the same bytes, so nothing between them and the report is made again.
    let made = ["{render,parse} cpu/cmd/small/*", "report m"];
    project.expect(&["{render,parse,aggregate} cpu/cmd/small/*", LATER], &made);
    let published = project.read("output/train_cpu_cmd_small.json");
    assert!(
        published.contains("\"another\"") && !published.contains("\"one\""),
        "{published}"
    );
    project.expect_nothing();
}

#[test]
fn an_environment_and_a_declared_file_are_read_by_trainings() {
    let project = Project::built();
    let rest = "{train,parse,aggregate} *";
    for (file, old, new) in [
        ("config.yaml", "OF_PLATFORM: \"0\"", "OF_PLATFORM: \"1\""),
        ("config.yaml", "OF_FRAMEWORK: \"0\"", "OF_FRAMEWORK: \"1\""),
        ("train.sh", "n=0", "n=0 # as said"),
        ("recipes/cmd/helper.sh", "helps", "helps a lot"),
    ] {
        project.edit(file, old, new);
        project.expect(&[rest, LATER], &[rest, LATER]);
    }
    // A file that is new in the recipe folder.
    project.write("recipes/cmd/more/library.sh", "# more\n");
    project.expect(&[rest, LATER], &[rest, LATER]);
    project.remove("recipes/cmd/more/library.sh");
    // As it was before: those measurements count again, and what they came to is published again.
    project.expect(&["report m"], &["report m"]);
}

#[test]
fn template_white_space_that_renders_the_same_ends_at_render() {
    let project = Project::built();
    project.edit("templates/cmd.sh.j2", "{% else %}", "{%  else  %}");
    // The plan renders in memory, so it knows already.
    project.expect(&["render *"], &["render *"]);
    project.edit(
        "templates/cmd.sh.j2",
        "{%  else  %}",
        "{# a remark #}{% else %}",
    );
    project.expect(&["render *"], &["render *"]);
    project.edit(
        "templates/cmd.sh.j2",
        "set -euo pipefail",
        "set -euo pipefail # as always",
    );
    project.expect(&["*"], &["*"]);
}

#[test]
fn a_recipe_without_what_it_launches_is_read_by_nobody() {
    let project = Project::built();
    project.edit(
        "recipes/cmd/recipe.toml",
        "timeout = \"6h\"",
        "timeout = \"7h\" # longer",
    );
    project.expect_nothing();
    project.edit(
        "recipes/cmd/recipe.toml",
        "name = \"a command of your own\"",
        "name = \"anything\"",
    );
    project.expect_nothing();
    // A copy of what is built in, taken away again.
    project
        .remove("recipes/cmd/helper.sh")
        .remove("recipes/cmd/recipe.toml");
    assert!(project.build(&[]).code == 0);
    project
        .write("recipes/cmd/recipe.toml", RECIPE)
        .remove("templates/cmd.sh.j2");
    project.expect_nothing();
}

#[test]
fn more_repeats_are_more_runs_and_fewer_are_none() {
    let project = Project::built();
    project.edit("matrix.toml", "repeats = 2", "repeats = 3");
    let more = ["{train,parse} *#3", "aggregate *", LATER];
    project.expect(&more, &more);
    project.edit("matrix.toml", "repeats = 3", "repeats = 2");
    project.expect(&["report m"], &["report m"]);
}

#[test]
fn cells_may_come_go_and_change_places() {
    let project = Project::built();
    project.edit(
        "matrix.toml",
        "[\"small\", \"large\"]",
        "[\"large\", \"small\"]",
    );
    project.expect(&[LATER], &[LATER]);
    project.edit("matrix.toml", "[\"large\", \"small\"]", "[\"large\"]");
    project.expect(&[LATER], &[LATER]);
    project.edit("matrix.toml", "[\"large\"]", "[\"small\", \"large\"]");
    project.expect(&["report m"], &["report m"]);
    assert_eq!(project.launches(), 4);
}

#[test]
fn a_touch_is_no_change() {
    let project = Project::built();
    for name in [
        "config.yaml",
        "matrix.toml",
        "train.sh",
        "templates/cmd.sh.j2",
        "recipes/cmd/recipe.toml",
        "tprimat.lock",
    ] {
        project.touch(name);
    }
    project
        .touch("recipes/cmd/helper.sh")
        .touch("output/compare.png")
        .touch("output/compare.txt");
    project.expect_nothing();
}

#[test]
fn the_checkout_may_be_copied() {
    let mut project = Project::built();
    project.move_to_copy();
    project.expect_nothing();
}

#[test]
fn an_edit_undone_is_no_edit() {
    let project = Project::built();
    project.edit("config.yaml", "seq_length: 64", "seq_length: 128");
    assert_ne!(project.stale(&[]), BTreeSet::new());
    project.edit("config.yaml", "seq_length: 128", "seq_length: 64");
    project.expect_nothing();
    // Undone after a build: what was measured counts again.
    project
        .edit("config.yaml", "seq_length: 64", "seq_length: 128")
        .build(&[]);
    project.edit("config.yaml", "seq_length: 128", "seq_length: 64");
    project.expect(&["report m"], &["report m"]);
}

#[test]
fn warm_up_is_read_by_aggregate_and_later() {
    let project = Project::built();
    project.edit("config.yaml", "skip_steps: 1", "skip_steps: 2");
    project.expect(&["aggregate *", LATER], &["aggregate *", LATER]);
}

#[test]
fn declared_globs_see_files_come_and_go() {
    let project = Project::of_two();
    project.edit(
        "config.yaml",
        "inputs: [train.sh]",
        "inputs: [train.sh, \"lib/**/*.sh\"]",
    );
    project
        .write("lib/a.sh", "# a")
        .write("lib/deep/notes.md", "none of it");
    assert_eq!(project.build(&[]).code, 0);
    project.write("lib/deep/b.sh", "# b");
    // As people call it: the note that the last build left must see it too.
    let built = project.run(&["build", "--json"]).ends_with(0).json();
    assert_eq!((&built["ran"], project.launches()), (&json!(13), 8));
    project.expect_nothing();
    project.remove("lib/deep/b.sh");
    project.expect(&["report m"], &["report m"]);
    // A glob over everything sees nothing of what builds write themselves.
    project.edit("config.yaml", "lib/**/*.sh", "**/*.{sh,json,toml}");
    assert_eq!(project.build(&[]).code, 0);
    project
        .write("cache/runs/left/cmd.sh", "# of a run that was killed")
        .write("output/mine.json", "{}");
    project.expect_nothing();
}

#[test]
fn what_people_read_and_other_platforms_install_is_no_part_of_a_run() {
    let project = Project::built();
    for name in ["README.md", "requirements.amd.txt", "requirements.nvd.txt"] {
        project.write(&format!("recipes/cmd/{name}"), "torch\n");
        project.expect_nothing();
    }
    assert_eq!(project.launches(), 4);
    // What is installed here may be read by a launch script.
    project.write("recipes/cmd/requirements.cpu.txt", "torch\n");
    assert!(!project.stale(&[]).is_empty());
}

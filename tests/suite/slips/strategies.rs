//! Slips of strategies: degrees and numbers of GPUs.

use super::*;

#[test]
fn a_slip_of_a_strategy_does_not_multiply_the_matrix() {
    let fast = "methodology: \"fast\"";
    for (written, told) in [
        ("fats", "did you mean `fast`?"),
        ("FAST", "did you mean `fast`?"),
        (
            "thorough",
            "`parallelism` of config.yaml has fast; a text of several words only describes",
        ),
    ] {
        let ran = older(fast, &format!("methodology: {written}")).run(&["plan"]);
        let unknown = format!("unknown strategy `{written}` in `experiment.methodology`");
        says(&ran.ends_with(2), &[&unknown, told, "config.yaml:1:"]);
    }
    // With blanks in place of underscores it is still a name.
    let two = CONFIG.replace(
        STRATEGY,
        &format!("{STRATEGY}  most_speed: {{ num_gpus: 1 }}\n"),
    );
    let project = Project::empty();
    project.write("trainer.sh", TRAINER);
    let with = |methodology: &str| {
        let text = format!("experiment: {{ methodology: {methodology} }}\n{two}");
        project.write("config.yaml", &text);
        project.run(&["list"])
    };
    says(
        &with("Most speed").ends_with(2),
        &["did you mean `most_speed`?"],
    );
    let both = with("\"the fastest and the simplest, side by side\"").ends_with(0);
    assert!(both.stdout.contains("most_speed") && both.stdout.contains("single"));
    let one = with("most_speed").ends_with(0);
    assert!(!one.stdout.contains("tiny/single"), "{}", one.stdout);
}

#[test]
fn a_recipe_without_model_parallelism_names_the_block_to_write() {
    let config = CONFIG.replace(
        STRATEGY,
        "  split: { cpu: { num_gpus: 2, TP: 2, DP: 1 } }\n",
    );
    let project = Project::new(
        &ONE_RUN
            .replace("\"cmd\"", "\"tran\"")
            .replace("single", "split"),
    );
    project.write(
        "config.yaml",
        &config.replace("num_gpus: 1 }", "num_gpus: 2 }"),
    );
    let listed = project.run(&["list"]).ends_with(0).stdout;
    let block = "tran: { TP: 1, PP: 1, CP: 1, DP: 2 }";
    let place =
        "set `parallelism.split.cpu.tran` to `{ TP: 1, PP: 1, CP: 1, DP: 2 }` in config.yaml";
    assert!(listed.contains(place), "{listed}");
    project.edit(
        "config.yaml",
        "TP: 2, DP: 1 }",
        &format!("TP: 2, DP: 1, {block} }}"),
    );
    let listed = project.run(&["list"]).ends_with(0).stdout;
    assert!(!listed.contains("unsupported"), "{listed}");
}

/// An override that is about a strategy which the matrix lists is no slip while `PARALLEL` plans
/// another one.
#[test]
fn what_a_matrix_says_of_strategies_that_a_variable_replaced_is_no_slip() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "config.yaml",
        "parallelism:\n",
        "parallelism:\n  other: { num_gpus: 1, DP: 1 }\n",
    );
    let rules = "[[override]]\nwhere = { parallelism = \"single\" }\nset = { \"training.seed\" = 7 }\n\n\
                 [[exclude]]\nwhere = { parallelism = [\"single\"] }\nreason = \"not now\"\n";
    project.write("matrix.toml", &format!("{ONE_RUN}\n{rules}"));
    let plan = |project: &Project| -> crate::support::Ran {
        let mut plan = project.tprimat(&["plan"]);
        plan.env("PARALLEL", "other").output().unwrap().into()
    };
    let planned = plan(&project).ends_with(0).stdout;
    assert!(planned.contains("cpu/cmd/tiny/other"), "{planned}");
    project.edit("matrix.toml", "[\"single\"]", "[\"singel\"]");
    let refused = plan(&project).ends_with(2).stderr;
    assert!(
        refused.contains("`singel`") && !refused.contains("`single`"),
        "{refused}"
    );
}

/// The number of GPUs that does not fit is not where the problem points.
#[test]
fn a_variable_that_sets_the_number_of_gpus_is_named_where_it_does_not_fit() {
    let project = Project::new(&ONE_RUN.replace("\"cpu\"", "\"nvd\""));
    let platform = "cpu: { vendor: cpu, num_gpus: 1 }";
    project.edit(
        "config.yaml",
        platform,
        "nvd: { vendor: nvidia, num_gpus: 8 }",
    );
    for (degrees, told) in [
        (
            "{ TP: 1, DP: 8 }",
            "and num_gpus is 4 (set by $CONFIG_NVD_NUM_GPUS)",
        ),
        (
            "{ num_gpus: 6, DP: 6 }",
            "(`hardware.platforms.nvd.num_gpus`, set by $CONFIG_NVD_NUM_GPUS)",
        ),
    ] {
        let config = project.read("config.yaml");
        project.edit("config.yaml", "{ num_gpus: 1, DP: 1 }", degrees);
        let mut plan = project.tprimat(&["check"]);
        let plan: crate::support::Ran = plan
            .env("CONFIG_NVD_NUM_GPUS", "4")
            .output()
            .unwrap()
            .into();
        let words = plan.stderr.split_whitespace().filter(|word| *word != "│");
        let words = words.collect::<Vec<_>>().join(" ");
        assert!(plan.code != Some(0) && words.contains(told), "{plan:?}");
        project.write("config.yaml", &config);
    }
}

/// Beside the block that the cell takes, degrees of its framework would not be used.
#[test]
fn degrees_for_a_data_parallel_framework_are_asked_for_at_the_path_that_is_used() {
    let project = Project::new(&ONE_RUN.replace("\"cmd\"", "\"native\""));
    project.edit("config.yaml", "cpu, num_gpus: 1", "cpu, num_gpus: 2");
    let with = |more: &str| {
        let block = format!("{{ tiny: {{ cpu: {{ TP: 2, DP: 1{more} }} }} }}");
        project.write(
            "config.yaml",
            &project
                .read("config.yaml")
                .replace("{ num_gpus: 1, DP: 1 }", &block),
        );
        let ran = project.run(&["check"]);
        ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let config = project.read("config.yaml");
    let place = "set `parallelism.single.tiny.cpu.native` to `{ TP: 1, PP: 1, CP: 1, DP: 2 }` in config.yaml";
    let said = with("");
    assert!(said.contains(place), "{said}");
    project.write("config.yaml", &config);
    let said = with(", native: { TP: 1, PP: 1, CP: 1, DP: 2 }");
    assert!(!said.contains("data parallel only"), "{said}");
    // A block of the framework's own is changed, and none is put into it.
    project.write("config.yaml", &config);
    let said = with(", native: { TP: 2, DP: 1 }");
    assert!(said.contains(place), "{said}");
}

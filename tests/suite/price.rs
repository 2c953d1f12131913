//! What a plan says of memory and money before anything runs.

use crate::support::{ONE_RUN, Project};

/// A GPU that no test has; its lock section makes its keys known, and its cells wait for its host.
const GPU: &str = "hardware:\n  platforms:\n    nvd: { gpu_model: NVIDIA H100 80GB HBM3, memory_per_gpu_gb: 80, num_gpus: 1 }\n";

#[test]
fn stale_runs_are_priced_by_what_is_known_of_them() {
    let project = Project::new(ONE_RUN);
    let estimate = || project.run(&["plan", "--json"]).ends_with(0).json();
    let first = estimate();
    assert_eq!(
        first["summary"]["runs_without_estimate"], 1,
        "a CPU has no model: {first}"
    );
    assert!(
        first["summary"]["estimated_seconds"].is_null() && first["estimates"][0]["basis"].is_null()
    );
    project.run(&["build"]).ends_with(0);
    let fresh = estimate();
    assert_eq!(fresh["estimates"].as_array().unwrap().len(), 0, "{fresh}");
    let more = project
        .run(&["plan", "--json", "--repeats", "3"])
        .ends_with(0)
        .json();
    assert_eq!(more["summary"]["basis"]["measured"], 2, "{more}");
    let each = more["estimates"][0]["seconds"].as_f64().unwrap() / 2.0;
    assert!(each > 0.0 && each < 60.0, "{more}");
    assert!(
        more["summary"]["gpu_hours"].is_null(),
        "a CPU takes no GPU-hours: {more}"
    );
    project.edit("config.yaml", "train_iters: 6", "train_iters: 600");
    let changed = estimate();
    assert_eq!(changed["summary"]["basis"]["earlier"], 1, "{changed}");
    let longer = changed["estimates"][0]["seconds"].as_f64().unwrap();
    assert!(
        (longer / each - 100.0).abs() < 1e-6,
        "a hundred times the steps: {longer} {each}"
    );
}

#[test]
fn runs_of_another_host_are_priced_apart_by_the_model() {
    let project = Project::new(
        &ONE_RUN
            .replace("\"cpu\"", "\"nvd\"")
            .replace("\"cmd\"", "\"tran\""),
    );
    project.edit("config.yaml", "hardware:\n  platforms:\n", GPU);
    project.edit(
        "config.yaml",
        "precision: { default: fp32 }",
        "precision: { default: bf16 }",
    );
    let rate =
        "  enhanced_metrics: { cloud_costs: { nvidia: { per_gpu_hour: 3.6, currency: EUR } } }\n";
    project.edit(
        "config.yaml",
        "  warmup: { skip_steps: 1 }\n",
        &format!("  warmup: {{ skip_steps: 1 }}\n{rate}"),
    );
    let plan = project
        .run(&["plan", "--json", "--repeats", "2"])
        .ends_with(0)
        .json();
    let told = project.run(&["plan", "--repeats", "2"]).ends_with(0).stdout;
    for words in [
        "one: 1 cell, waiting; nothing to train here; for other hosts, if one host ran them one after another: 2 runs, about ",
        // Here the tables and pictures are all that there is to make.
        "compare one",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let waiting = &plan["summary"]["waiting_estimate"];
    // FLOPs of so small a model are nothing: what is left is 60 s to start.
    assert_eq!(waiting["basis"]["model"], 2, "{plan}");
    assert!(
        (waiting["gpu_hours"].as_f64().unwrap() - 2.0 / 60.0).abs() < 1e-3,
        "{plan}"
    );
    assert!(
        (waiting["cost"].as_f64().unwrap() - 0.12).abs() < 1e-3 && waiting["currency"] == "EUR",
        "{plan}"
    );
    assert!(
        plan["summary"]["gpu_hours"].is_null(),
        "this host would spend nothing: {plan}"
    );
    // Here nothing would be spent; a plan is made for all hosts.
    // Refused is nothing; but nothing was measured either.
    let built = project.run(&["build", "--max-gpu-hours", "0"]).ends_with(1);
    assert!(!built.stderr.contains("refused"), "{}", built.stderr);
    project
        .run(&["plan", "--max-gpu-hours", "0.01"])
        .ends_with(2);
    project.run(&["plan", "--max-gpu-hours", "1"]).ends_with(0);
    project.run(&["plan", "--max-gpu-hours", "-1"]).ends_with(2);
    // Nobody knows how long a run in fp32 takes: only who says so counts it as nothing.
    let unknown = [
        "plan",
        "--max-gpu-hours",
        "1",
        "--set",
        "training.precision.default=fp32",
    ];
    let refused = project.run(&unknown).ends_with(2);
    assert!(
        refused.stderr.contains("--force=unpriced"),
        "{}",
        refused.stderr
    );
    let forced = |what| [&unknown[..], &[what]].concat();
    project.run(&forced("--force=memory")).ends_with(2);
    project.run(&forced("--force=unpriced")).ends_with(0);
}

#[test]
fn a_cell_far_from_fitting_is_said_so() {
    let project = Project::new(
        &ONE_RUN
            .replace("\"cpu\"", "\"nvd\"")
            .replace("\"cmd\"", "\"tran\""),
    );
    project.edit("config.yaml", "hardware:\n  platforms:\n", GPU);
    project.edit(
        "config.yaml",
        "precision: { default: fp32 }",
        "precision: { default: bf16 }",
    );
    let fit = |args: &[&str]| {
        project
            .run(&[&["fit", "--json"], args].concat())
            .ends_with(0)
            .json()["cells"][0]
            .clone()
    };
    assert_eq!(fit(&[])["verdict"], "fits");
    assert_eq!(
        fit(&["nvd/tran/tiny"])["verdict"],
        "fits",
        "a cell in place of a matrix"
    );
    let huge = [
        "--set",
        "training.data.micro_batch_size=100000000",
        "--set",
        "training.data.global_batch_size=100000000",
    ];
    assert_eq!(fit(&huge)["verdict"], "does_not_fit");
    let check = project
        .run(&[&["check", "--json"], &huge[..]].concat())
        .ends_with(0);
    assert_eq!(check.json()["will_not_fit"], 1);
    assert!(
        check.stderr.contains("will not fit: needs"),
        "{}",
        check.stderr
    );
    // Nor does a plan price what no host would start, unless it is told to.
    let plan = |more: &[&str]| {
        project
            .run(&[&["plan", "--json"], more].concat())
            .ends_with(0)
    };
    let priced = |ran: &crate::support::Ran| !ran.json()["summary"]["waiting_estimate"].is_null();
    let named = |ran: &crate::support::Ran, words: &str| {
        let warned = (
            ran.json()["summary"]["will_not_fit"].clone(),
            ran.json()["summary"]["may_not_fit"].clone(),
        );
        (
            ran.stderr
                .contains(&format!("note: `nvd/tran/tiny/single` {words}: needs")),
            warned,
        )
    };
    let withheld = plan(&huge);
    assert_eq!(
        named(&withheld, "will not fit"),
        (true, (1.into(), 0.into())),
        "{}",
        withheld.stderr
    );
    assert!(
        !priced(&withheld) && withheld.json()["waiting_estimates"] == serde_json::json!([]),
        "{}",
        withheld.stdout
    );
    assert!(priced(&plan(&[&huge[..], &["--force=memory"]].concat())));
    let fits = plan(&[]);
    assert!(priced(&fits) && fits.stderr.is_empty(), "{}", fits.stderr);
    // Within the error of the model: run, priced and named.
    let needed = fit(&[])["device_bytes"].as_f64().unwrap() / f64::from(1 << 30);
    let close = format!("hardware.platforms.nvd.memory_per_gpu_gb={}", needed / 1.07);
    let close = ["--set", close.as_str()];
    let doubtful = plan(&close);
    assert_eq!(
        named(&doubtful, "may not fit"),
        (true, (0.into(), 1.into())),
        "{}",
        doubtful.stderr
    );
    assert!(priced(&doubtful), "{}", doubtful.stdout);
    let check = project
        .run(&[&["check", "--json"], &close[..]].concat())
        .ends_with(0);
    assert_eq!(
        (
            check.json()["will_not_fit"].clone(),
            check.json()["may_not_fit"].clone()
        ),
        (0.into(), 1.into())
    );
    assert!(
        check.stderr.contains("may not fit: needs"),
        "{}",
        check.stderr
    );
    // A program of the user's own is not described.
    let own = Project::new(ONE_RUN);
    let cell = own.run(&["fit", "--json"]).ends_with(0).json()["cells"][0].clone();
    assert!(
        cell["verdict"].is_null() && cell["unknown"].is_string(),
        "{cell}"
    );
}

#[test]
fn whatever_the_framework_a_cell_far_beyond_its_card_is_neither_started_nor_priced() {
    let frameworks = "[\"mega\", \"mlm\", \"nemo\", \"titan\"]";
    let project = Project::new(
        &ONE_RUN
            .replace("\"cpu\"", "\"nvd\"")
            .replace("\"cmd\"", frameworks),
    );
    project.edit("config.yaml", "hardware:\n  platforms:\n", GPU);
    project.edit(
        "config.yaml",
        "precision: { default: fp32 }",
        "precision: { default: bf16 }",
    );
    let huge = [
        "--set",
        "training.data.micro_batch_size=100000000",
        "--set",
        "training.data.global_batch_size=100000000",
    ];
    let json = |command: &str| {
        let args = [&[command, "--json"], &huge[..]].concat();
        project.run(&args).ends_with(0).json()
    };
    for cell in json("fit")["cells"].as_array().unwrap() {
        assert_eq!(cell["verdict"], "does_not_fit", "{cell}");
    }
    let check = json("check");
    let supported = check["cells"].as_u64().unwrap() - check["unsupported"].as_u64().unwrap();
    assert!(supported >= 3, "{check}");
    assert_eq!(check["will_not_fit"], supported, "{check}");
    assert_eq!(check["may_not_fit"], 0, "{check}");
    let plan = json("plan");
    assert_eq!(plan["summary"]["will_not_fit"], supported, "{plan}");
    assert!(plan["summary"]["waiting_estimate"].is_null(), "{plan}");
}

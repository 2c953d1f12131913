//! Profiled runs: under the wrapper, once, and never to be taken for a measurement. The profilers
//! here are mocks.

use crate::support::{ONE_RUN, Project, Ran, mock::program};

/// A mock of a profiler: writes its own arguments as the trace, then runs what it wraps.
fn mock(project: &Project, name: &str, script: &str) {
    let path = project.folder().join("bin").join(name);
    program(&path, format!("#!/bin/bash\n{script}"));
}

fn run(project: &Project, arguments: &[&str]) -> Ran {
    let path = format!(
        "{}:{}",
        project.folder().join("bin").display(),
        std::env::var("PATH").unwrap()
    );
    project
        .tprimat(arguments)
        .env("PATH", path)
        .output()
        .unwrap()
        .into()
}

const NSYS: &str = r#"
[ "$1" = profile ] || exit 9
while [ "$1" != bash ]; do
  [ "$1" = --output ] && trace=$2
  words="$words $1"; shift
done
echo "$words" > "$trace"
exec "$@"
"#;

/// What the cache holds of attempts and tasks, as a later build sees it.
fn states(project: &Project) -> String {
    run(project, &["plan", "--json"]).ends_with(0).json()["summary"].to_string()
}

#[test]
fn a_cell_is_profiled_once_and_nothing_is_measured() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 3"));
    let without = run(&project, &["build", "--set", "experiment.profiling=nsys"]).ends_with(2);
    assert!(
        without.stderr.contains("`nsys` is not there"),
        "{}",
        without.stderr
    );
    mock(&project, "nsys", NSYS);
    let before = states(&project);
    let ran = run(&project, &["build", "--set", "experiment.profiling=nsys"]).ends_with(0);
    assert!(
        ran.stderr.contains("this is not a measurement"),
        "{}",
        ran.stderr
    );
    assert_eq!(project.launches(), 1, "once, whatever the repeats");
    let trace = project.read("output/profile_cpu_cmd_tiny_single.nsys-rep");
    assert!(
        trace.contains("--trace cuda,nvtx,osrt") && trace.contains("--trace-fork-before-exec true"),
        "{trace}"
    );
    assert!(
        project
            .read("output/profile_cpu_cmd_tiny_single.log")
            .contains("\"event\":\"end\"")
    );
    assert_eq!(states(&project), before, "no task is any fresher for it");
    assert!(!project.path("output/compare.json").exists());
    assert!(
        project
            .names_in("cache/profiles")
            .iter()
            .all(|name| name.starts_with('.')),
        "the run's folder is gone"
    );

    // Measured afterwards, all repeats are still to be run.
    run(&project, &["build"]).ends_with(0);
    assert_eq!(project.launches(), 4);
    assert!(
        project
            .path("output/profile_cpu_cmd_tiny_single.nsys-rep")
            .exists(),
        "published results leave traces alone"
    );
}

/// A folder that does not say which run it is of may be one that somebody wants to see.
#[test]
fn a_folder_that_nobody_knows_is_named_and_left_alone() {
    let project = Project::new(ONE_RUN);
    mock(&project, "nsys", NSYS);
    let folder = "cache/profiles/strange";
    project
        .write(&format!("{folder}/owner.lock"), "")
        .write(&format!("{folder}/spec.json"), "no JSON");
    let ran = run(&project, &["build", "--set", "experiment.profiling=nsys"]).ends_with(0);
    assert!(
        ran.stderr.contains("left alone: nobody knows which run") && ran.stderr.contains(folder),
        "{}",
        ran.stderr
    );
    assert_eq!(project.names_in(folder), ["owner.lock", "spec.json"]);
}

#[test]
fn the_setting_leaves_the_profiler_to_the_vendor_and_says_that_nothing_is_measured() {
    let project = Project::new(ONE_RUN);
    // A trainer that heeds torch's folder, as those of recipes/lib do.
    project.edit(
        "trainer.sh",
        "seed=$(job seed)",
        "seed=$(job seed); echo '{}' > \"$TPRIMAT_PROFILE_DIR/trace.json\"",
    );
    let asked = ["--set", "experiment.profiling=true"];
    let told = "experiment.profiling is true: cells are profiled, none is measured";
    for command in [&["check"][..], &["plan"], &["build", "-n"], &["build"]] {
        let ran = run(&project, &[command, &asked[..]].concat()).ends_with(0);
        let words = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.matches(told).count(), 1, "{command:?}: {ran:?}");
    }
    assert_eq!(
        project.read("output/profile_cpu_cmd_tiny_single.json"),
        "{}\n"
    );
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_trainer_that_is_not_ours_is_refused_torchs_profiler_before_it_runs() {
    let project = Project::new(ONE_RUN);
    let ours = include_str!("../../../recipes/cmd/recipe.toml");
    project.write(
        "recipes/cmd/recipe.toml",
        &ours.replace("format = \"any\"", "format = \"megatron\""),
    );
    let refused = run(&project, &["build", "--set", "experiment.profiling=torch"]).ends_with(2);
    assert!(
        refused
            .stderr
            .contains("the trainer of `cmd` cannot start torch's profiler"),
        "{}",
        refused.stderr
    );
    assert_eq!(project.launches(), 0);
}

#[test]
fn rocprof_leaves_a_folder_and_a_failure_no_trace() {
    let project = Project::new(ONE_RUN);
    let script = r#"
while [ "$1" != -- ]; do
  [ "$1" = --output-directory ] && mkdir -p "$2" && echo 1,2 > "$2/kernels.csv"
  shift
done
shift
exec "$@"
"#;
    mock(&project, "rocprofv3", script);
    run(
        &project,
        &["build", "--set", "experiment.profiling=rocprof"],
    )
    .ends_with(0);
    assert_eq!(
        project.names_in("output/profile_cpu_cmd_tiny_single.rocprof"),
        ["kernels.csv"]
    );

    let nothing = run(&project, &["build", "--set", "experiment.profiling=torch"]).ends_with(1);
    assert!(
        nothing.stderr.contains("left no trace"),
        "{}",
        nothing.stderr
    );
    project.write("trainer.sh", "echo 'CUDA out of memory' >&2; exit 3\n");
    let failed = run(
        &project,
        &["build", "--set", "experiment.profiling=rocprof"],
    )
    .ends_with(1);
    assert!(
        failed.stderr.contains("the profiled run failed"),
        "{}",
        failed.stderr
    );
}

#[test]
fn a_build_that_could_profile_no_cell_has_failed() {
    let project = Project::new(ONE_RUN);
    project.edit("config.yaml", "vendor: cpu", "vendor: amd");
    for asked in [
        ["--set", "experiment.profiling=rocprof"],
        ["--set", "experiment.profiling=true"],
    ] {
        let ran = run(&project, &[&["build"], &asked[..]].concat()).ends_with(1);
        assert!(
            ran.stderr.contains("is not profiled: ")
                && ran.stderr.contains("error: no cell was profiled"),
            "{ran:?}"
        );
    }
}

//! One thing that is missing keeps one cell from being measured, not the others.
#![allow(clippy::disallowed_methods, reason = "plays the user, who edits files as users do")]

mod support;
use support::{ONE_RUN, Project, Ran, tasks::RECIPE};

const CELL: &str = "cpu/cmd/tiny/single";

/// A second framework, whose launcher nobody has.
fn with_a_launcher_that_is_not_there() -> Project {
    let project = Project::new(&ONE_RUN.replace("\"cmd\"", "[\"cmd\", \"own\"]"));
    let own = RECIPE
        .replace("id = \"cmd\"", "id = \"own\"")
        .replace("commands = [\"bash\"]", "commands = [\"bash\", \"nobody-has-this-launcher\"]");
    project.write("recipes/own/recipe.toml", &own);
    project.edit(
        "config.yaml",
        "frameworks:\n",
        "frameworks:\n  own: { command: [bash, trainer.sh, own], inputs: [trainer.sh] }\n",
    );
    project
}

fn why(ran: &Ran) -> String {
    ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn one_missing_launcher_blocks_the_cells_that_need_it() {
    let project = with_a_launcher_that_is_not_there();
    let built = project.run(&["build"]).ends_with(0);
    let said = why(&built);
    let needs = "recipe `own` needs the command `nobody-has-this-launcher`, which is not there";
    assert!(said.contains(&format!("left out: cpu/own/tiny/single: {needs}")), "{said}");
    assert!(said.contains("1 of 2 selected cells have results; 1 cannot be measured on this host"), "{said}");
    assert_eq!(project.launches(), 1);
    assert!(project.read("output/compare.txt").contains(CELL));
    let value = project.run(&["build", "--json"]).ends_with(2);
    // Now nothing else is to be done, and what was asked for cannot be.
    assert!(value.stdout.contains("nobody-has-this-launcher"), "{value:?}");
    project.run(&["build", "--only", CELL]).ends_with(0);
    // Whoever needs the whole matrix says so.
    project.edit("trainer.sh", "for step in", "# again\nfor step in");
    let built = project.run(&["build", "--require-complete", "--json"]).ends_with(5).json();
    assert_eq!((&built["blocked"], &built["incomplete"]), (&1.into(), &1.into()));
    assert_eq!(project.launches(), 2);
}

#[test]
fn a_fact_that_drifted_blocks_its_platform_alone() {
    let project = Project::new(&ONE_RUN.replace("\"cpu\"", "[\"cpu\", \"cpu2\"]"));
    project.edit(
        "config.yaml",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n    cpu2: { vendor: cpu, num_gpus: 1 }\n",
    );
    project.run(&["build"]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let (before, of_second) = lock.split_once("[platform.cpu2]").unwrap();
    let cores = of_second.lines().find(|line| line.starts_with("cores = ")).unwrap();
    project.write("tprimat.lock", &format!("{before}[platform.cpu2]{}", of_second.replace(cores, "cores = 4711")));
    project.edit("trainer.sh", "for step in", "# again\nfor step in");
    let before = project.launches();
    let built = project.run(&["build"]).ends_with(0);
    assert!(why(&built).contains("this host differs from tprimat.lock: cpu2, cores"), "{built:?}");
    assert_eq!(project.launches() - before, 1);
}

#[test]
fn a_selection_of_which_nothing_can_be_measured_here_is_no_success() {
    let project = Project::new(&ONE_RUN.replace("\"cpu\"", "[\"cpu\", \"amd\"]"));
    project.edit(
        "config.yaml",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n    amd: { vendor: amd, num_gpus: 1 }\n",
    );
    let built = project.run(&["build", "--only", "amd"]).ends_with(1);
    let said = why(&built);
    assert!(said.contains("0 of 1 selected cells have results; 1 cannot be measured on this host"), "{said}");
    assert!(said.contains("needs an AMD GPU; this host has none"), "{said}");
    // With the others it is: they are measured.
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
}

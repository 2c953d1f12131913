//! `build --decide`: as many runs as the answer needs, and what later commands make of them.

use serde_json::{Value, json};

use crate::support::{CONFIG, Project, TRAINER};

const REFERENCE: &str = "cpu/ref/tiny/single";
const FAST: &str = "cpu/fast/tiny/single";
const SAME: &str = "cpu/same/tiny/single";

/// Three arms: `fast` takes 10 % less time than `ref`, `same` takes as long. Each run is up to 0.5 %
/// off.
fn three_arms(repeats: usize) -> Project {
    let project = Project::new(&format!(
        "[matrix]\nname = \"m\"\nplatform = \"cpu\"\nframework = [\"ref\", \"fast\", \"same\"]\nmodel = \"tiny\"\n\
         parallelism = \"single\"\nrepeats = {repeats}\n"
    ));
    let arm = |name: &str| {
        format!(
            "  {name}: {{ command: [bash, trainer.sh, {name}], inputs: [trainer.sh, fault] }}\n"
        )
    };
    let arms = ["ref", "fast", "same"].map(arm).concat();
    let own = "  cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] }\n";
    assert!(CONFIG.contains(own));
    project.write("config.yaml", &CONFIG.replace(own, &arms));
    let time = r#"case $1 in fast) level=5400 ;; *) level=6000 ;; esac
[[ $1 == $(<"$TPRIMAT_PROJECT_DIR/fault") ]] && exit 3
n=$(wc -l < "$TPRIMAT_PROJECT_DIR/launches")
level=$((level + (n * n * n * 7919 + n * 104729) % 61 - 30))
seed=$(job seed)"#;
    let trainer = TRAINER.replace("seed=$(job seed)", time);
    let trainer = trainer.replace("0.0'$seed$step'", "0.0'$level'");
    project.write("trainer.sh", &trainer).write("fault", "none");
    project
}

fn decide(project: &Project, more: &[&str]) -> Value {
    decide_with(project, more, 0)
}

fn decide_with(project: &Project, more: &[&str], code: i32) -> Value {
    project
        .run(&[&["build", "--decide", "2%", "--json"], more].concat())
        .ends_with(code)
        .json()["decided"]
        .clone()
}

/// What was decided of a cell beside the reference, by how many pairs.
fn of(decided: &Value, cell: &str) -> (String, u64) {
    let pairs = decided["pairs"].as_array().unwrap();
    let pair = pairs.iter().find(|pair| pair["a"] == cell).unwrap();
    (
        pair["decision"].as_str().unwrap().to_owned(),
        pair["pairs"].as_u64().unwrap(),
    )
}

fn compared(project: &Project) -> Value {
    project
        .run(&["compare", "--format", "json"])
        .ends_with(0)
        .json()
}

fn repeats_of(project: &Project, cell: &str) -> u64 {
    project.run(&["show", cell, "--json"]).ends_with(0).json()["n"]
        .as_u64()
        .unwrap()
}

#[test]
fn runs_are_added_until_the_speeds_are_told_apart_and_no_longer() {
    let project = three_arms(3);
    let planned = project
        .run(&["build", "--decide", "2%", "-n", "--json"])
        .ends_with(0)
        .json();
    let tasks = planned["tasks"].as_array().unwrap();
    let trains = tasks
        .iter()
        .filter(|task| task["kind"] == "train" && task["state"] == "stale");
    assert_eq!(
        (trains.count(), project.launches()),
        (3, 0),
        "one round is planned"
    );

    let decided = decide(&project, &[]);
    let ((fast, by_fast), (same, by_same)) = (of(&decided, FAST), of(&decided, SAME));
    assert_eq!(
        (&*fast, &*same, &decided["judged_together"]),
        ("faster", "same", &json!(2))
    );
    // Two pairs share the level, so at least five are needed; the tie takes longer, and runs of its two
    // cells alone are added for it.
    assert!(by_fast >= 5 && by_fast <= by_same, "{decided}");
    let launches = project.launches() as u64;
    assert_eq!(launches, 2 * by_same + by_fast);

    // A later build adds nothing, and its comparison has the same verdict by the same pairs.
    project.run(&["build"]).ends_with(0);
    assert_eq!(
        (project.launches() as u64, of(&decide(&project, &[]), SAME)),
        (launches, (same, by_same))
    );
    let table = compared(&project);
    let speedups = table["speedups"].as_array().unwrap();
    let speedup = |cell: &str| speedups.iter().find(|one| one["a"] == cell).unwrap();
    assert_eq!(
        (&speedup(FAST)["significant"], &speedup(FAST)["pairs"]),
        (&json!(true), &json!(by_fast))
    );
    assert_eq!(&speedup(SAME)["pairs"], &json!(by_same));
    let [low, high] = ["low", "high"].map(|end| speedup(SAME)["interval"][end].as_f64().unwrap());
    assert!(0.98 < low && high < 1.02, "{table}");
    for row in table["rows"].as_array().unwrap() {
        assert_eq!(
            row.get("repeats_added_later").filter(|flag| **flag == true),
            None,
            "{row}"
        );
    }
    assert_eq!(repeats_of(&project, REFERENCE), by_same);
    // A smaller margin goes on from there.
    let closer = of(
        &project
            .run(&["build", "--decide", "1%", "--json"])
            .ends_with(0)
            .json()["decided"],
        SAME,
    );
    assert!(closer.1 >= by_same && project.launches() as u64 >= launches);
}

#[test]
fn verdicts_stand_above_the_figures_and_a_plan_tells_the_usual_case_and_the_most() {
    let project = three_arms(3);
    let plan = |more: &[&str]| {
        let line = [&["build", "--decide", "2%", "-n"][..], more].concat();
        project.run(&line).ends_with(0).stdout
    };
    let unknown = plan(&[]);
    assert!(
        unknown.contains("At most: 60 runs") && unknown.contains("is not known"),
        "{unknown}"
    );
    assert!(plan(&["--max-runs", "33"]).contains("At most: 33 runs"));
    project
        .run(&["build", "--decide", "2%", "--max-runs", "9"])
        .ends_with(6);
    let known = plan(&[]);
    assert!(
        known.contains("like those that are there") && known.contains("At most: 60 runs, about "),
        "{known}"
    );
    let told = project
        .run(&["build", "--decide", "2%"])
        .ends_with(0)
        .stdout;
    let verdicts = told.find("same is the same as ref").unwrap();
    assert!(verdicts < told.find("fast trains tiny").unwrap(), "{told}");
    // Neither command needs to be told the margin to say how small the difference is.
    for later in [&["compare"][..], &["compare", "--details"]] {
        let table = project.run(later).ends_with(0).stdout;
        assert!(table.contains("differs by less than 1."), "{table}");
    }
}

#[test]
fn a_budget_ends_it_and_says_how_many_runs_it_would_take() {
    let project = three_arms(3);
    let decided = decide_with(&project, &["--repeats", "3"], 6);
    assert_eq!(project.launches(), 9, "three runs of each of three cells");
    let planned = |most: &str| {
        let options = ["build", "--decide", "2%", "-n", "--json", "--repeats", most];
        let plan = project.run(&options).ends_with(0).json();
        let tasks = plan["tasks"].as_array().unwrap().clone();
        let is_run = |task: &&Value| task["kind"] == "train" && task["state"] == "stale";
        tasks.iter().filter(is_run).count()
    };
    assert_eq!((planned("3"), planned("4")), (0, 3));
    // A cell without its baseline gets nothing, and which one is lacking is said.
    let alone = project
        .run(&["build", "--decide", "2%", "--only", FAST])
        .ends_with(6);
    assert!(
        alone.stdout.contains(&format!("`--only {REFERENCE}`")),
        "{}",
        alone.stdout
    );
    assert_eq!(project.launches(), 9);
    let pairs = decided["pairs"].as_array().unwrap();
    assert!(
        pairs.iter().all(
            |pair| pair["decision"] == "undecided" && pair["more_runs_each"].as_u64() > Some(0)
        ),
        "{decided}"
    );
    decide_with(&project, &["--max-runs", "4"], 6);
    assert_eq!(
        project.launches(),
        12,
        "a second round would be beyond four runs"
    );
    project
        .run(&["build", "--decide", "2%", "--max-runs", "2"])
        .ends_with(2);
    // It goes on where it was.
    decide(&project, &[]);
    assert!(project.launches() > 12);
}

#[test]
fn arms_that_were_measured_one_after_the_other_are_measured_together() {
    let project = three_arms(3);
    for cell in [REFERENCE, FAST] {
        project.run(&["build", "--only", cell]).ends_with(0);
    }
    let both = ["--only", REFERENCE, "--only", FAST];
    let decided = decide(&project, &both);
    // None of the first three runs of each is one of a pair.
    let (fast, pairs) = of(&decided, FAST);
    assert_eq!(
        (&*fast, project.launches() as u64),
        ("faster", 6 + 2 * pairs)
    );
    assert_eq!(repeats_of(&project, FAST), 3 + pairs);
    // Runs that were made in turns are pairs, whoever made them.
    let project = three_arms(3);
    project.run(&["build"]).ends_with(0);
    let (_, pairs) = of(&decide(&project, &both), FAST);
    assert_eq!(project.launches() as u64, 9 + 2 * (pairs - 3));
}

#[test]
fn an_arm_that_fails_is_left_out_and_the_others_are_decided() {
    let project = three_arms(3);
    project.write("fault", "same");
    let ran = project
        .run(&["build", "--decide", "2%", "--json"])
        .ends_with(1);
    let decided = ran.json()["decided"].clone();
    assert_eq!(of(&decided, FAST).0, "faster");
    assert_eq!(decided["pairs"].as_array().unwrap().len(), 1);
    for more in [&["-n"][..], &[]] {
        let refused = project.run(&[&["build", "--decide", "2%", "--failed"], more].concat());
        assert!(refused.stderr.contains("contradict"), "{}", refused.stderr);
    }
    let slip = project.run(&["build", "--decide", "2"]).ends_with(2);
    assert!(slip.stderr.contains("`2%`?"), "{}", slip.stderr);
    let slip = project.run(&["build", "--decide", "-1%"]).ends_with(2);
    assert!(slip.stderr.contains("expected a margin"), "{}", slip.stderr);
}

#[test]
fn a_gate_adds_runs_until_it_can_tell() {
    let project = three_arms(5);
    let only = ["--only", REFERENCE, "--only", FAST];
    project.run(&[&["build"][..], &only].concat()).ends_with(0);
    project
        .run(&[&["gate", "--write", "baseline.json"][..], &only].concat())
        .ends_with(0);
    let gate = |code: i32| {
        let before = project.launches();
        let line = ["gate", "--baseline", "baseline.json", "--decide", "--json"];
        let ran = project
            .run(&[&line[..], &only].concat())
            .ends_with(code)
            .json();
        let cells = ran["cells"].as_array().unwrap();
        let verdicts: Vec<String> = cells
            .iter()
            .map(|cell| cell["verdict"].as_str().unwrap().to_owned())
            .collect();
        (verdicts, project.launches() - before)
    };
    // Nothing was measured anew, so nothing is lacking.
    assert_eq!(gate(0), (vec!["pass".to_owned(); 2], 0));
    // The same speed after an edit, and then a cell that is slower by a tenth.
    project.write("fault", "nobody");
    let (verdicts, runs) = gate(0);
    assert!(
        verdicts == ["pass"; 2] && (6..20).contains(&runs),
        "{verdicts:?} {runs}"
    );
    project.edit("trainer.sh", "level=5400", "level=6000");
    let (verdicts, runs) = gate(3);
    assert!(
        verdicts.contains(&"fail".to_owned()) && (6..20).contains(&runs),
        "{verdicts:?} {runs}"
    );
    // What was added keeps its test without --decide.
    let again = project.run(&[&["gate", "--baseline", "baseline.json"][..], &only].concat());
    again.ends_with(3);
}

#[test]
fn what_would_decide_is_a_command_that_works_as_it_is_printed() {
    let project = three_arms(3);
    let matrix = project.read("matrix.toml");
    project.remove("matrix.toml");
    for name in ["speed", "other"] {
        let own = matrix.replace("name = \"m\"", &format!("name = \"{name}\""));
        project.write(&format!("pipelines/{name}.toml"), &own);
    }
    for more in [&[][..], &["-n"]] {
        let line = ["build", "speed", "--decide", "2%", "--max-runs", "2"];
        let refused = project.run(&[&line[..], more].concat()).ends_with(2);
        assert!(refused.stderr.contains("a round is 3 runs"), "{refused:?}");
    }
    assert_eq!(project.launches(), 0);
    let line = ["build", "speed", "--decide", "2%", "--max-runs", "9"];
    project.run(&line).ends_with(6);
    for later in [&["build", "speed"][..], &["compare", "speed"]] {
        let table = project.run(later).ends_with(0).stdout;
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        let more = "`tprimat build speed --decide 2%` makes more";
        assert!(table.is_empty() || words.contains(more), "{table}");
    }
}

//! `blame`: which of the differences between two cells, or of what was changed since, changed the speed.

use serde_json::Value;

use crate::support::{ONE_RUN, Project};

const A: &str = "cpu/cmd/tiny/single@SLOW=0";
const B: &str = "cpu/cmd/tiny/single@SLOW=1";

/// A step takes 100 ms and a little noise: 9 % more with SLOW, 15 % more with ONE and TWO together, and
/// `pace` times as much. BREAKS alone ends the run.
const TRAINER: &str = r#"
echo "$TPRIMAT_RUN_ID" >> "$TPRIMAT_PROJECT_DIR/launches"
job() { [[ $(<"$TPRIMAT_JOB") =~ \"$1\":\ *([0-9]+) ]] && echo "${BASH_REMATCH[1]}"; }
[[ ${BREAKS:-0} == 1 && ${MENDS:-0} != 1 ]] && { echo "RuntimeError: BREAKS wants MENDS"; exit 1; }
us=100000
[[ ${SLOW:-0} == 1 ]] && us=$((us * 109 / 100))
[[ ${ONE:-0} == 1 && ${TWO:-0} == 1 ]] && us=$((us * 115 / 100))
[[ -f $HOME/pace ]] && us=$((us * $(<$HOME/pace) / 100))
us=$((us + RANDOM % 1000 - 500))
echo '{"event":"start","schema":"tprimat.events/1","trainer":"stub","num_parameters":'"$(job num_parameters)"',"effective":{"seed":'"$(job seed)"',"seq_length":16,"global_batch_size":2}}'
for step in 1 2 3 4 5 6; do
    printf '{"event":"step","step":%d,"step_time_seconds":0.%06d,"loss":%d.5,"tokens":32}\n' $step $us $((9 - step))
done
echo '{"event":"end","status":"ok","steps":6}'
"#;

/// Two cells that differ in SLOW and in what else is set.
fn project(set: &str) -> Project {
    let axis = format!(
        "\n[matrix.axes.SLOW]\npath = \"frameworks.cmd.env.SLOW\"\nvalues = [\"0\", \"1\"]\n\
         [[override]]\nwhere = {{ SLOW = \"1\" }}\nset = {{ {set} }}\n"
    );
    let project = Project::new(&(ONE_RUN.to_owned() + &axis));
    project.write("trainer.sh", TRAINER);
    project
}

fn env(names: &[&str]) -> String {
    let one = |name: &&str| format!("\"frameworks.cmd.env.{name}\" = \"1\"");
    names.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The differences of each cause, by name.
fn causes(blame: &Value) -> Vec<Vec<String>> {
    let name = |at: &Value| blame["differences"][at.as_u64().unwrap() as usize]["what"].clone();
    let of = |cause: &Value| {
        let differences = cause["differences"].as_array().unwrap().iter();
        differences
            .map(|at| name(at).as_str().unwrap().to_owned())
            .collect()
    };
    blame["causes"].as_array().unwrap().iter().map(of).collect()
}

fn launches(project: &Project) -> usize {
    project.read("launches").lines().count()
}

#[test]
fn the_guilty_one_is_found_among_others_and_no_run_is_made_twice() {
    let project = project(&(env(&["IDLE"]) + ", \"training.seed\" = 7"));
    let plan = project.json(&["blame", A, B, "-n"]);
    assert_eq!(plan["differences"].as_array().unwrap().len(), 3);
    project.run(&["build"]).ends_with(0);
    // Runs with other numbers than those of the other cell that were made at the same time.
    let more = ["build", "--only", B, "--repeats", "4"];
    project.run(&more).ends_with(0);
    let cached = || project.json(&["blame", A, B, "-n"])["cached_runs"].clone();
    assert_eq!(cached(), 5);
    let runs_in_tables = || -> Vec<Value> {
        let rows = project.json(&["compare"])["rows"]
            .as_array()
            .unwrap()
            .clone();
        rows.iter().map(|row| row["n"].clone()).collect()
    };
    let before = (runs_in_tables(), launches(&project));
    let blame = project.json(&["blame", A, B]);
    assert_eq!(
        runs_in_tables(),
        before.0,
        "its runs are in no table of the matrix"
    );
    assert_eq!(blame["answer"], "found", "{blame}");
    assert_eq!(causes(&blame), [["SLOW"]]);
    let effect = blame["causes"][0]["effect"]["value"].as_f64().unwrap();
    assert!((0.07..0.11).contains(&effect), "{blame}");
    let made = launches(&project);
    assert_eq!(blame["runs"], made - before.1);
    let again = project.json(&["blame", A, B]);
    assert_eq!(again["runs"], 0);
    assert_eq!(again["causes"], blame["causes"]);
    assert_eq!(project.json(&["blame", A, B, "-n"])["runs"], 0);
    assert_eq!(launches(&project), made);
    let told = project.run(&["blame", A, B]).ends_with(0).stdout;
    assert!(told.contains("`SLOW 0 → 1` makes"), "{told}");
}

#[test]
fn a_budget_that_ends_keeps_what_was_measured_and_says_how_to_go_on() {
    let project = project(&env(&["IDLE", "ANY", "MORE"]));
    let unpriced = project.run(&["blame", A, B, "-n"]).ends_with(0).stdout;
    assert!(unpriced.contains("is not known"), "{unpriced}");
    let line = ["blame", A, B, "--max-runs", "25"];
    let ran = project.run(&[&line[..], &["--json"]].concat()).ends_with(6);
    let blame = ran.json();
    let measured = blame["questions"].as_array().unwrap();
    assert!(measured.len() > 1, "{blame}");
    assert_eq!(
        (&measured[0]["to"], &measured[0]["told"]),
        (
            &serde_json::json!([0, 1, 2, 3]),
            &serde_json::json!("differs")
        ),
        "{blame}"
    );
    let plan = project.run(&["blame", A, B, "-n"]).ends_with(0).stdout;
    assert!(
        plan.contains("At most: 200 runs, about ") && !plan.contains("about 0.0 s"),
        "{plan}"
    );
    let command = blame["goes_on_by"].as_str().unwrap().replace('\'', "");
    let mut words: Vec<&str> = command.split(' ').skip(1).collect();
    let more = "200".to_owned();
    let at = words.iter().position(|word| *word == "--max-runs").unwrap();
    words[at + 1] = &more;
    let before = launches(&project);
    let told = project.run(&words).ends_with(0).stdout;
    assert!(told.contains("`SLOW 0 → 1` makes"), "{told}");
    assert!(launches(&project) - before < 70, "{told}");
    let details = project
        .run(&[&words[..], &["-v"]].concat())
        .ends_with(0)
        .stdout;
    assert!(
        !told.contains("A with 1") && details.contains("A with 1"),
        "{details}"
    );
}

#[test]
fn two_that_act_only_together_are_named_together_and_an_arm_that_fails_is_no_end() {
    let project = project(&env(&["BREAKS", "ONE", "TWO", "MENDS"]));
    let trainer = TRAINER.replace("us * 109 / 100", "us");
    project.write("trainer.sh", &trainer);
    let blame = project.json(&["blame", A, B]);
    assert_eq!(blame["answer"], "found", "{blame}");
    assert_eq!(causes(&blame), [["ONE", "TWO"]]);
    assert_eq!(
        blame["causes"][0]["alone"],
        serde_json::json!(["nothing", "nothing"])
    );
    let failed = blame["fails"].as_array().unwrap();
    let why = failed.first().map(|of| of["why"].as_str().unwrap());
    assert!(
        why.is_some_and(|why| why.contains("BREAKS wants MENDS")),
        "{blame}"
    );
}

#[test]
fn cells_that_do_other_work_are_not_measured() {
    let project = project("\"training.data.global_batch_size\" = 4");
    let blame = project.json(&["blame", A, B]);
    assert_eq!(blame["answer"], "other_work", "{blame}");
    assert_eq!(
        blame["other_work"],
        serde_json::json!(["data.global_batch_size"])
    );
    assert!(!project.path("launches").exists());
}

#[test]
fn what_was_edited_since_a_baseline_is_blamed_by_the_file() {
    let project = project("\"training.seed\" = 7");
    let cell = ["--only", A];
    project.run(&[&["build"][..], &cell].concat()).ends_with(0);
    let write = ["gate", "--write", "baseline.json"];
    project.run(&[&write[..], &cell].concat()).ends_with(0);
    project.edit("trainer.sh", "us=100000", "us=107000");
    let paths = "  cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] }\n";
    let with = paths.replace(" }\n", ", env: { IDLE: 1 } }\n");
    project.edit("config.yaml", paths, &with);
    let blame = project.json(&["blame", A, "--since", "baseline.json"]);
    assert_eq!(blame["answer"], "found", "{blame}");
    assert_eq!(causes(&blame), [["trainer.sh"]]);
    assert_eq!(blame["differences"].as_array().unwrap().len(), 2);
}

#[test]
fn where_nothing_that_was_changed_matters_the_host_is_named() {
    let project = project("\"training.seed\" = 7");
    project.run(&["build", "--only", A]).ends_with(0);
    let write = ["gate", "--write", "baseline.json", "--only", A];
    project.run(&write).ends_with(0);
    project.edit(
        "config.yaml",
        "inputs: [trainer.sh] }",
        "inputs: [trainer.sh], env: { IDLE: 1 } }",
    );
    // Outside of the project, so no key knows it.
    project.write("../pace", "120");
    let blame = project.json(&["blame", A, "--since", "baseline.json"]);
    assert_eq!(blame["answer"], "host_changed", "{blame}");
    assert!(blame["recorded"].as_f64().unwrap() > 0.1, "{blame}");
}

/// A commit of the project, and its name.
fn commit(project: &Project, subject: &str) -> String {
    let git = |arguments: &[&str]| {
        let done = std::process::Command::new("git")
            .args([
                "-c",
                "user.name=a",
                "-c",
                "user.email=a@example.org",
                "-c",
                "commit.gpgsign=false",
            ])
            .args(arguments)
            .current_dir(project.path(""))
            .output()
            .expect("git");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    };
    if !project.path(".git").exists() {
        git(&["init", "--quiet"]);
    }
    // What is in no commit comes along as it is.
    project.write(
        ".gitignore",
        "cache\noutput\nlaunches\npipelines\nconfig.yaml\ndata\n",
    );
    project.write("NOTES", subject);
    git(&["add", "-A"]);
    git(&["commit", "--quiet", "-m", subject]);
    git(&["rev-parse", "--short=10", "HEAD"])
}

#[test]
fn the_commit_that_changed_the_speed_is_found_among_those_of_a_range() {
    let project = project("\"training.seed\" = 7");
    project.write("data/words", "1");
    let old = commit(&project, "Begin");
    commit(&project, "Words");
    project.edit("trainer.sh", "us=100000", "us=100000; exit 3");
    commit(&project, "Breaks every run");
    project.edit("trainer.sh", "us=100000; exit 3", "us=108000");
    let guilty = commit(&project, "Runs again, more slowly");
    commit(&project, "More words");
    project.edit("trainer.sh", "us=108000", "us=999999");
    let before = project.read("trainer.sh");
    let blame = project.json(&["blame", A, "--commits", &old]);
    assert_eq!(blame["answer"], "found", "{blame}");
    let found = causes(&blame);
    assert!(
        found.concat().contains(&guilty) && found.concat().len() <= 2,
        "{blame}"
    );
    let effect = blame["causes"][0]["effect"]["value"].as_f64().unwrap();
    assert!(
        (0.06..0.1).contains(&effect),
        "what is not committed is not measured: {blame}"
    );
    assert_eq!(
        project.read("trainer.sh"),
        before,
        "the project's own files stay"
    );
    let plan = project.json(&["blame", A, "--commits", &format!("{old}..HEAD"), "-n"]);
    assert_eq!(plan["cached_runs"], 0, "{plan}");
    let none = project
        .run(&["blame", A, "--commits", "HEAD..HEAD"])
        .ends_with(2);
    assert!(
        none.stderr.contains("no commit lies between"),
        "{}",
        none.stderr
    );
    let wrong = project
        .run(&["blame", A, "--commits", "nosuch..HEAD"])
        .ends_with(2);
    assert!(
        wrong.stderr.contains("`nosuch` is no commit"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn what_does_not_run_is_told_by_its_commit_with_a_command_that_shows_its_log() {
    let project = project("\"training.seed\" = 7");
    let good = commit(&project, "Begin");
    project.edit(
        "trainer.sh",
        "us=100000",
        "echo 'RuntimeError: boom'; exit 3",
    );
    let broken = commit(&project, "Breaks every run");
    project.edit(
        "trainer.sh",
        "echo 'RuntimeError: boom'; exit 3",
        "us=100000",
    );
    commit(&project, "Runs again");
    project.edit("matrix.toml", "name = \"one\"", "nam = \"one\"");
    let unplanned = commit(&project, "Breaks the matrix");
    project.edit("matrix.toml", "nam = \"one\"", "name = \"one\"");
    project.edit("trainer.sh", "us=100000", "us=108000");
    commit(&project, "Slower");
    project.edit("trainer.sh", "us=108000", "us=108001");
    for (range, which) in [
        (format!("{broken}..HEAD"), "first"),
        (format!("{good}..{broken}"), "last"),
    ] {
        let ran = project.run(&["blame", A, "--commits", &range]).ends_with(1);
        let end = format!("does not run at {broken}, the {which} of the range");
        assert!(ran.stderr.contains(&end), "{}", ran.stderr);
        assert!(!ran.stderr.contains("what to do"), "{}", ran.stderr);
        assert_eq!(
            ran.stderr
                .matches("uncommitted changes are not measured, only commits are: trainer.sh")
                .count(),
            1,
            "{}",
            ran.stderr
        );
        let (_, command) = ran.stderr.split_once("(`tprimat ").unwrap();
        let (command, _) = command.split_once('`').unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let log = project.run(&words).ends_with(0).stdout;
        assert!(log.contains("RuntimeError: boom"), "{log}");
    }
    let plan = project.json(&["blame", A, "--commits", &good, "-n"]);
    let names: Vec<&str> = (plan["fails"].as_array().unwrap().iter())
        .map(|one| {
            let at = one["with"][0].as_u64().unwrap() as usize;
            plan["differences"][at]["what"].as_str().unwrap()
        })
        .collect();
    assert_eq!(names, [unplanned], "{plan}");
}

/// Prints step times that a package decides.
const PYTHON_TRAINER: &str = r#"
import json, os, random
import slowpkg

with open(os.environ["TPRIMAT_JOB"]) as file:
    job = json.load(file)
effective = {"seed": job["seed"], "seq_length": 16, "global_batch_size": 2}
print(json.dumps({"event": "start", "schema": "tprimat.events/1", "trainer": "stub",
                  "num_parameters": job["model"]["num_parameters"], "effective": effective}))
seconds = 0.1 * slowpkg.PACE + random.uniform(-5e-4, 5e-4)
for step in range(1, 7):
    print(json.dumps({"event": "step", "step": step, "step_time_seconds": seconds, "loss": 9.5 - step, "tokens": 32}))
print(json.dumps({"event": "end", "status": "ok", "steps": 6}))
"#;

/// Six versions of `slowpkg`, of which 1.3 makes a step 9 % longer, 1.2 is not to be installed and 1.4 ends
/// whoever imports it; in the cell's own environment is 1.0.
const WHEELS: &str = r#"
import subprocess, sys, zipfile
folder = sys.argv[1]
for minor in range(6):
    version = f"1.{minor}"
    needs = "Requires-Dist: nosuchpkg\n" if minor == 2 else ""
    code = "raise RuntimeError('boom')" if minor == 4 else f"PACE = {1.09 if minor > 2 else 1}"
    info = f"slowpkg-{version}.dist-info"
    with zipfile.ZipFile(f"{folder}/slowpkg-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("slowpkg.py", code + "\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: slowpkg\nVersion: {version}\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
"#;

/// A project whose command starts `python3`, of an environment that has slowpkg 1.0, and wheels of others.
fn with_package(command: &str) -> Project {
    let mut project = project("\"training.seed\" = 7");
    project.edit(
        "config.yaml",
        "command: [bash, trainer.sh], inputs: [trainer.sh]",
        command,
    );
    project.write("train.py", PYTHON_TRAINER);
    project.write("../wheels/README", "");
    let wheels = project.path("../wheels").to_string_lossy().into_owned();
    let python = |python: &str, arguments: &[&str]| {
        let done = std::process::Command::new(python).args(arguments).output();
        let done = done.expect("a Python");
        assert!(done.status.success(), "{done:?}");
    };
    let own = project.path("../own").to_string_lossy().into_owned();
    python("python3", &["-c", WHEELS, &wheels]);
    python("python3", &["-m", "venv", &own]);
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--find-links",
    ];
    let install = [&install[..], &[&wheels, "slowpkg==1.0"]].concat();
    python(&format!("{own}/bin/python"), &install);
    let path = std::env::var("PATH").unwrap();
    project.environment.extend([
        ("PATH", format!("{own}/bin:{path}")),
        ("PIP_FIND_LINKS", wheels),
        ("PIP_NO_INDEX", "1".to_owned()),
    ]);
    project
}

#[test]
fn the_version_that_changed_the_speed_is_found_among_those_that_pip_offers() {
    let project = with_package("command: python3 train.py");
    let range = ["blame", A, "--versions", "slowpkg==1.0..1.5"];
    let plan = project.json(&[&range[..], &["-n"]].concat());
    let offered: Vec<&str> = (plan["differences"].as_array().unwrap().iter())
        .map(|one| one["how"].as_str().unwrap())
        .collect();
    assert_eq!(offered, ["1.1", "1.2", "1.3", "1.4", "1.5"]);
    project.run(&["build", "--only", A]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let blame = project.json(&range);
    assert_eq!(blame["answer"], "found", "{blame}");
    let guilty = &blame["causes"][0];
    assert_eq!(guilty["differences"], serde_json::json!([1, 2]), "{blame}");
    let effect = guilty["effect"]["value"].as_f64().unwrap();
    assert!((0.07..0.11).contains(&effect), "{blame}");
    let failed = blame["fails"].to_string();
    assert!(failed.contains("nosuchpkg"), "{blame}");
    assert_eq!(project.read("tprimat.lock"), lock);
    assert_eq!(project.json(&range)["runs"], 0);
    let ends = project
        .run(&["blame", A, "--versions", "slowpkg==1.0,1.4"])
        .ends_with(1);
    let told = "does not run with slowpkg 1.4, the last of the range";
    assert!(
        ends.stderr.contains(told) && ends.stderr.contains("boom"),
        "{}",
        ends.stderr
    );
    let none = project
        .run(&["blame", A, "--versions", "slowpkg==1.0..9"])
        .ends_with(2);
    assert!(
        none.stderr
            .contains("pip offers 1.5, 1.4, 1.3 and 3 more, and not 9"),
        "{}",
        none.stderr
    );
}

#[test]
fn a_version_is_measured_with_the_python_of_its_environment_or_not_at_all() {
    let blame = [
        "blame",
        A,
        "--versions",
        "slowpkg==1.0,1.3",
        "--max-runs",
        "2",
    ];
    let own = with_package("command: ../own/bin/python train.py");
    let refused = own.run(&blame).ends_with(2).stderr;
    assert!(refused.contains("does not start a Python"), "{refused}");
    // What a script starts ends itself.
    let hidden = with_package("command: [bash, start.sh, train.py]");
    hidden.write(
        "start.sh",
        "exec \"$TPRIMAT_PROJECT_DIR/../own/bin/python\" \"$1\"",
    );
    let other = hidden.run(&blame).ends_with(1).stderr;
    assert!(
        other.contains("bin/python was started, and not "),
        "{other}"
    );
    assert!(!hidden.path("tprimat.lock").exists());
}

#[test]
fn a_package_that_changed_since_a_baseline_is_named_with_the_command_that_measures_its_versions() {
    let project = with_package("command: python3 train.py");
    let version = |version: &str| {
        let info = "../own/lib/numpy-2.0.dist-info/METADATA";
        let site = std::fs::read_dir(project.path("../own/lib")).unwrap();
        let site = site.flatten().next().unwrap().path().join("site-packages");
        let info = info.replace("../own/lib", site.to_str().unwrap());
        project.write(&info, &format!("Name: numpy\nVersion: {version}\n"));
    };
    version("2.0");
    let cell = ["--only", A];
    project.run(&[&["build"][..], &cell].concat()).ends_with(0);
    let write = ["gate", "--write", "baseline.json"];
    project.run(&[&write[..], &cell].concat()).ends_with(0);
    version("2.1");
    project.run(&["lock", "--update"]).ends_with(0);
    let command = format!("`tprimat blame '{A}' --versions 'numpy==2.0..2.1'` measures");
    let since = ["blame", A, "--since", "baseline.json", "-n"];
    let only = project.run(&since).ends_with(1).stderr;
    assert!(only.contains(&command), "{only}");
    project.edit("config.yaml", "train.py", "train.py, env: { IDLE: 1 }");
    let plan = project.run(&since).ends_with(0).stdout;
    assert!(plan.contains(&command), "{plan}");
}

//! `history`: every change that a user made between two measurements is named, and a change of
//! speed is found where it was.

use crate::support::{
    Project,
    tasks::{LARGE, SMALL},
};
use serde_json::Value;

/// Step times that a file beside the trainer sets, unknown to every key: the speed of the machine.
/// They vary with the number of the cell's runs so far, however runs of other cells come between.
const TRAINER: &str = r#"echo "$TPRIMAT_RUN_ID" >> "$TPRIMAT_PROJECT_DIR/launches"
job=$(<"$TPRIMAT_JOB")
[[ $job =~ '"seq_length": '([0-9]+) ]] && seq=${BASH_REMATCH[1]}
[[ $job =~ '"vocab_size": '([0-9]+) ]] && vocab=${BASH_REMATCH[1]}
echo "$vocab" >> "$TPRIMAT_PROJECT_DIR/order"
n=$(grep -c "^$vocab\$" "$TPRIMAT_PROJECT_DIR/order")
time=$(<"$TPRIMAT_PROJECT_DIR/microseconds")
printf '{"event":"start","schema":"tprimat.events/1","effective":{"seq_length":%d,"global_batch_size":1,"num_gpus":1}}\n' "$seq"
for s in 1 2 3 4; do
    printf '{"event":"step","step":%d,"step_time_seconds":0.00%d,"loss":%d.5}\n' $s $((time + n % 3)) $((9 - s))
done
printf '{"event":"end","status":"ok","steps":4}\n'
"#;

fn project() -> Project {
    let project = Project::of_two();
    project
        .write("train.sh", TRAINER)
        .write("microseconds", "1000\n");
    project.edit("matrix.toml", "repeats = 2", "repeats = 3");
    project
}

fn built(project: &Project) {
    project.run(&["build", "--only", SMALL]).ends_with(0);
}

/// What was changed before each measurement, and what became of the speed. Only one work is expected.
fn story(project: &Project, arguments: &[&str]) -> Vec<(String, String)> {
    let mut stories = stories(project, arguments);
    assert_eq!(stories.len(), 1, "{stories:?}");
    stories.remove(0).1
}

/// The same for several works, each under what tells it from the others.
fn stories(project: &Project, arguments: &[&str]) -> Vec<(String, Vec<(String, String)>)> {
    let history = project.json(&[&["history"], arguments].concat());
    let name = |work: &Value| {
        let fields = work["work"].as_object().cloned().unwrap_or_default();
        let said = fields.iter().map(|(field, value)| {
            let value = value.as_str().unwrap_or_default();
            format!("{field} {value}")
        });
        said.collect::<Vec<_>>().join(", ")
    };
    let works = history["cells"].as_array().unwrap().iter();
    works.map(|work| (name(work), told(work))).collect()
}

fn told(work: &Value) -> Vec<(String, String)> {
    let measurements = work["measurements"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let change = |c: &Value| match c["how"].as_str() {
        Some(how) => format!("{} {how}", text(&c["what"])),
        None => format!(
            "{} {} → {}",
            text(&c["what"]),
            text(&c["old"]),
            text(&c["new"])
        ),
    };
    let told = |m: &Value| {
        let changes = m["since"]["changes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        (
            changes.iter().map(change).collect::<Vec<_>>().join("; "),
            text(&m["since"]["level"]),
        )
    };
    measurements.iter().map(told).collect()
}

fn pair(changes: &str, level: &str) -> (String, String) {
    (changes.to_owned(), level.to_owned())
}

#[test]
fn every_change_is_named_and_a_change_of_speed_is_found_where_it_was() {
    let project = project();
    built(&project);
    project.write("train.sh", &format!("{TRAINER}# a comment\n"));
    built(&project);
    project
        .edit("config.yaml", "OF_FRAMEWORK: \"0\"", "OF_FRAMEWORK: \"1\"")
        .write("microseconds", "1100\n");
    built(&project);
    project.edit("config.yaml", "learning_rate: 1e-3", "learning_rate: 2e-3");
    built(&project);
    project
        .run(&["build", "--only", SMALL, "--force=measured"])
        .ends_with(0);
    project.edit("recipes/cmd/helper.sh", "# helps", "# helps more");
    project.edit("config.yaml", "seq_length: 64", "seq_length: 128");
    built(&project);
    let expected = [
        pair("", ""),
        pair("train.sh edited", "same"),
        pair("OF_FRAMEWORK 0 → 1", "slower"),
        pair("learning_rate 0.001 → 0.002", "same"),
        pair("", "same"),
    ];
    // Another length is another work, whose speed is not that of the first one.
    let expected = [
        ("seq_length 64".to_owned(), expected.to_vec()),
        ("seq_length 128".to_owned(), vec![pair("", "")]),
    ];
    assert_eq!(stories(&project, &[SMALL]), expected);
    // A cell that no matrix has any more, by a glob.
    project.edit("matrix.toml", "[\"small\", \"large\"]", "\"large\"");
    assert_eq!(stories(&project, &["cpu/*/small"]), expected);
    let text = project.run(&["history", SMALL]).ends_with(0).stdout;
    for part in [
        "OF_FRAMEWORK 0 → 1",
        "▼ 9",
        "(seq_length 64): 5 measurements\n",
        "(seq_length 128): 1 measurement\n",
        "tokens/s (95 % CI)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// What is edited before a build: file, old text, new text.
type Edit = (&'static str, &'static str, &'static str);

/// 210 attempts over 30 train keys but for their repeats: two cells, fifteen builds, of seven
/// repeats each.
#[test]
fn in_two_hundred_attempts_each_change_is_named_where_it_was_made() {
    const CONFIG: &str = "config.yaml";
    let project = project();
    project.edit("matrix.toml", "repeats = 3", "repeats = 7");
    let rate: [Edit; 2] = [
        (CONFIG, "learning_rate: 1e-3", "learning_rate: 2e-3"),
        (CONFIG, "learning_rate: 2e-3", "learning_rate: 1e-3"),
    ];
    let program: Edit = ("train.sh", "job=$", "# faster\njob=$");
    let again: Edit = ("train.sh", "# faster", "# fastest");
    let of_framework = |old, new| (CONFIG, old, new);
    // What is edited, microseconds of a step from then on, what is to be named, what became of the
    // speed.
    let builds: [(&[Edit], &str, &str, &str); 15] = [
        (&[], "1000", "", ""),
        (&[program], "1000", "train.sh edited", "same"),
        (&[rate[0]], "1000", "learning_rate 0.001 → 0.002", "same"),
        (
            &[of_framework("OF_FRAMEWORK: \"0\"", "OF_FRAMEWORK: \"1\"")],
            "1200",
            "OF_FRAMEWORK 0 → 1",
            "slower",
        ),
        (
            &[(CONFIG, "OF_PLATFORM: \"0\"", "OF_PLATFORM: \"1\"")],
            "1200",
            "OF_PLATFORM 0 → 1",
            "same",
        ),
        (
            &[(CONFIG, "flavor: 0", "flavor: 1")],
            "1000",
            "flavor 0 → 1",
            "faster",
        ),
        (
            &[("recipes/cmd/helper.sh", "# helps", "# helps more")],
            "1000",
            "helper.sh edited",
            "same",
        ),
        (
            &[again, rate[1]],
            "1100",
            "learning_rate 0.002 → 0.001; train.sh edited",
            "slower",
        ),
        (
            &[of_framework(
                "OF_FRAMEWORK: \"1\"",
                "OF_FRAMEWORK: \"1\", B: x",
            )],
            "1000",
            "B  → x",
            "faster",
        ),
        (&[of_framework("B: x", "B: y")], "1000", "B x → y", "same"),
        (
            &[(CONFIG, "flavor: 1", "flavor: 2")],
            "1000",
            "flavor 1 → 2",
            "same",
        ),
        (&[rate[0]], "1500", "learning_rate 0.001 → 0.002", "slower"),
        (
            &[(CONFIG, "OF_PLATFORM: \"1\"", "OF_PLATFORM: \"0\"")],
            "1500",
            "OF_PLATFORM 1 → 0",
            "same",
        ),
        (
            &[of_framework("OF_FRAMEWORK: \"1\"", "OF_FRAMEWORK: \"2\"")],
            "1490",
            "OF_FRAMEWORK 1 → 2",
            // Less than the speed of a host moves from one measurement to the next.
            "same",
        ),
        (
            &[(CONFIG, "flavor: 2", "flavor: 0")],
            "1490",
            "flavor 2 → 0",
            "same",
        ),
    ];
    for (edits, microseconds, ..) in builds {
        for (file, old, new) in edits {
            project.edit(file, old, new);
        }
        project.write("microseconds", &format!("{microseconds}\n"));
        project.run(&["build", "--jobs", "4"]).ends_with(0);
    }
    assert_eq!(project.launches(), 210);
    let expected: Vec<_> = builds
        .iter()
        .map(|(.., named, level)| pair(named, level))
        .collect();
    for cell in [SMALL, LARGE] {
        assert_eq!(story(&project, &[cell]), expected, "{cell}");
    }
    project.run(&["history", "-o", "history.svg"]).ends_with(0);
    let svg = project.read("history.svg");
    for (.., named, _) in builds {
        // A variable that was not there is empty in the JSON.
        let named = named.replace("B  →", "B not set →").replace(';', ",");
        assert!(svg.contains(&named), "{named}");
    }
}

/// Two matrices use one name for cells of two lengths, and are built in turns.
#[test]
fn matrices_that_share_names_hide_no_slow_down_and_invent_no_change() {
    let project = project();
    let long = project
        .read("matrix.toml")
        .replace("name = \"m\"", "name = \"long\"");
    let set = "{ model = \"small\" }\nset = { \"training.data.seq_length\" = 128 }\n";
    project.write("long.toml", &format!("{long}\n[[override]]\nwhere = {set}"));
    let build = |matrix: &str| {
        project
            .run(&["build", matrix, "--only", SMALL])
            .ends_with(0);
    };
    build("matrix.toml");
    build("long.toml");
    project
        .write("train.sh", &format!("{TRAINER}# a comment\n"))
        .write("microseconds", "1360\n");
    let plan = project.run(&["plan", "--only", SMALL]).ends_with(0).stdout;
    assert!(plan.contains("train.sh edited"), "{plan}");
    assert!(!plan.contains("seq_length"), "{plan}");
    let compared = project.run(&["compare", "matrix.toml"]).ends_with(0);
    let said = format!("{}{}", compared.stdout, compared.stderr);
    assert!(
        said.contains("measured before train.sh was edited"),
        "{said}"
    );
    build("matrix.toml");
    build("long.toml");
    let expected = ["64", "128"].map(|length| {
        let changes = vec![pair("", ""), pair("train.sh edited", "slower")];
        (format!("seq_length {length}"), changes)
    });
    assert_eq!(stories(&project, &[SMALL]), expected);
}

/// What is measured in place of a run that was set aside completes the measurement.
#[test]
fn a_replaced_repeat_stays_in_its_measurement() {
    let project = project();
    built(&project);
    project
        .run(&[
            "cache",
            "set-aside",
            &format!("{SMALL}#2"),
            "--reason",
            "a test",
        ])
        .ends_with(0);
    // Something else was measured in between.
    project.write("train.sh", &format!("{TRAINER}# a comment\n"));
    built(&project);
    project.write("train.sh", TRAINER);
    built(&project);
    let history = project.json(&["history", SMALL]);
    let measurements = history["cells"][0]["measurements"].as_array().unwrap();
    let runs = |m: &Value| m["runs"].as_array().unwrap().len();
    assert_eq!(measurements.iter().map(runs).collect::<Vec<_>>(), [4, 3]);
    let units = &measurements[0]["tokens_per_second_per_gpu"]["units"];
    assert_eq!(units.as_array().unwrap().len(), 3);
}

#[test]
fn a_history_can_be_narrowed_and_drawn() {
    let project = project();
    built(&project);
    project.write("train.sh", &format!("{TRAINER}# a comment\n"));
    built(&project);
    assert_eq!(story(&project, &["--since", "1h"]).len(), 2);
    for narrow in [["--since", "2999-01-01"], ["--host", "no-such-host"]] {
        let ran = project
            .run(&[&["history"][..], &narrow].concat())
            .ends_with(4);
        assert!(
            ran.stderr
                .contains("no measurement has a date and a host that fit"),
            "{ran:?}"
        );
    }
    for bad in [
        ["--since", "yesterday"],
        ["-o", "history.pdf"],
        ["-o", "cache/history.svg"],
    ] {
        project.run(&[&["history"][..], &bad].concat()).ends_with(2);
    }
    let misspelt = project.run(&["history", "cpu/cmd/smal"]).ends_with(4);
    assert!(
        misspelt
            .stderr
            .contains("did you mean `cpu/cmd/small/single`?"),
        "{misspelt:?}"
    );
    project.run(&["history", "-o", "history.svg"]).ends_with(0);
    let svg = project.read("history.svg");
    assert!(
        svg.contains("train.sh edited") && svg.contains(SMALL),
        "{svg}"
    );
    project.run(&["history", "-o", "history.png"]).ends_with(0);
    assert!(
        std::fs::read(project.path("history.png"))
            .unwrap()
            .starts_with(b"\x89PNG")
    );
    project.run(&["history"]).ends_with(0);
    let write = ["gate", "--write", "baseline.json", "--only", SMALL];
    project.run(&write).ends_with(0);
    let against = ["history", SMALL, "--baseline", "baseline.json"];
    let told = project.run(&against).ends_with(0).stdout;
    assert!(told.contains("against the baseline"), "{told}");
}

/// The published results of two measurements of one cell: another train key, and nothing in the
/// files that says what it was.
#[test]
fn imported_results_have_a_history_of_their_own() {
    let project = project();
    for name in ["native-8b-first", "native-8b"] {
        let file = format!(
            "{}/tests/fixtures/published/{name}.json",
            env!("CARGO_MANIFEST_DIR")
        );
        project.run(&["import", &file]).ends_with(0);
    }
    let cell = "h200/native/llama-8b-8-layers/single@precision=bf16";
    let told = story(&project, &[cell]);
    let unnamed = "an input that the files do not name changed";
    assert_eq!(told, [pair("", ""), pair(unnamed, "same")]);
    let text = project.run(&["history", cell]).ends_with(0).stdout;
    assert!(
        text.contains(&format!("{cell} (imported): 2 measurements\n"))
            && text.contains("2026-11-22"),
        "{text}"
    );
}

#[test]
fn an_empty_cache_has_no_history() {
    let ran = project().run(&["history"]).ends_with(4);
    assert!(ran.stderr.contains("nothing was measured yet"), "{ran:?}");
}

#[test]
fn cells_measured_together_take_turns() {
    let project = project();
    built(&project);
    project.run(&["build"]).ends_with(0);
    project.remove("order");
    project
        .run(&[
            "build",
            "--force=measured",
            "--only",
            "cpu/cmd/small",
            "--only",
            "cpu/cmd/large",
        ])
        .ends_with(0);
    let order = project.read("order");
    let order: Vec<&str> = order.split_whitespace().collect();
    assert_eq!(order.len(), 6);
    // Runs that share a device are started side by side, so within a turn either may be the first.
    for turn in order.chunks(2) {
        assert!(turn.contains(&"32") && turn.contains(&"64"), "{order:?}");
    }
    let contradictory = project.run(&["build", "--force=measured", "--cached-only"]);
    contradictory.ends_with(2);
}

/// A measurement is filed under the cell that it was made for; a sweep's cell may share it.
#[test]
fn a_history_is_of_a_matrix_and_of_a_cell_that_shares_its_measurements() {
    let project = Project::of_two();
    project.build(&[]);
    let sweep = project.read("matrix.toml").replace("\"m\"", "\"sweep\"")
        + "\n[matrix.axes.lr]\npath = \"training.optimizer.learning_rate\"\nvalues = [1.0e-3, 2.0e-3]\n";
    project.write("pipelines/sweep.toml", &sweep);
    let all = project.run(&["history"]).ends_with(0).stdout;
    for words in [&["matrix"][..], &["matrix.toml"], &["--matrix", "matrix"]] {
        let words = [&["history"], words].concat();
        assert_eq!(project.run(&words).ends_with(0).stdout, all, "{words:?}");
    }
    let shared = "cpu/cmd/small/single@lr=0.001";
    for words in [
        &["history", shared, "sweep"][..],
        &["history", "sweep", shared],
        &["history", shared, "--matrix", "sweep"],
    ] {
        let ran = project.run(words).ends_with(0);
        assert!(ran.stdout.starts_with(&format!("{shared}: 1")), "{ran:?}");
        assert!(ran.stdout.contains("(now)"), "{ran:?}");
    }
    let elsewhere = project.run(&["history", shared]).ends_with(4).stderr;
    assert!(elsewhere.contains("add `--matrix sweep`"), "{elsewhere}");
    let other = "cpu/cmd/small/single@lr=0.002";
    let unmeasured = project
        .run(&["history", other, "sweep"])
        .ends_with(4)
        .stderr;
    assert!(
        unmeasured.contains(&format!("nothing of `{other}` was measured yet"))
            && unmeasured.contains(&format!("`tprimat build sweep --only '{other}'` measures")),
        "{unmeasured}"
    );
}

#[test]
fn a_matrix_with_cells_that_cannot_run_here_has_a_history() {
    let project = Project::new(crate::support::ONE_RUN);
    project.edit(
        "matrix.toml",
        "framework = \"cmd\"",
        "framework = [\"cmd\", \"prim\"]",
    );
    project.run(&["build"]);
    let told = project.run(&["history", "cpu/cmd"]).ends_with(0).stdout;
    assert!(told.contains("1 measurement"), "{told}");
    let none = project.run(&["history", "cpu/cmx"]).ends_with(4).stderr;
    assert!(none.contains("cpu/cmx"), "{none}");
}

/// What counts is what was measured of the present configuration, which need not be the last.
#[test]
fn an_edit_that_is_taken_back_has_the_speed_that_was_measured_before_it() {
    let project = project();
    let counts = || -> Vec<bool> {
        let history = project.json(&["history", SMALL]);
        let measurements = history["cells"][0]["measurements"].as_array().unwrap();
        let counts = measurements
            .iter()
            .map(|m| m["counts_now"].as_bool().unwrap());
        counts.collect()
    };
    built(&project);
    assert_eq!(counts(), [true]);
    project.write("train.sh", &format!("{TRAINER}# a comment\n"));
    assert_eq!(counts(), [false]);
    project.write("microseconds", "2000\n");
    built(&project);
    assert_eq!(counts(), [false, true]);
    project.write("train.sh", TRAINER);
    assert_eq!(counts(), [true, false]);
    let text = project.run(&["history", SMALL]).ends_with(0).stdout;
    let present = text.lines().find(|line| line.contains("(now)")).unwrap();
    // 63,9xx against 31,9xx tokens/s.
    assert!(present.contains("63,"), "{text}");
}

/// A run during which a file changed stands for the content that was planned.
#[test]
fn a_file_that_changed_during_a_run_was_not_added_after_it() {
    let project = project();
    project
        .edit("config.yaml", "bash train.sh", "bash train.sh conf.txt")
        .write("conf.txt", "");
    let disturb = "[[ -e $TPRIMAT_PROJECT_DIR/calm ]] || echo more >> conf.txt\n";
    let train = format!("cd \"$TPRIMAT_PROJECT_DIR\"\n{disturb}{TRAINER}");
    project.write("train.sh", &train);
    project.run(&["build", "--only", SMALL, "--repeats", "1"]);
    project.write("conf.txt", "").write("calm", "");
    project.edit("config.yaml", "learning_rate: 1e-3", "learning_rate: 2e-3");
    let plan = project.run(&["plan", "--only", SMALL]).ends_with(0).stdout;
    assert!(
        plan.contains("learning_rate 0.001 → 0.002\n") && !plan.contains("conf.txt added"),
        "{plan}"
    );
    built(&project);
    let told = story(&project, &[SMALL]);
    let changes = "learning_rate 0.001 → 0.002";
    assert_eq!(
        told.last(),
        Some(&pair(changes, "not_assessed")),
        "{told:?}"
    );
}

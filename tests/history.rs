//! `history`: every change that a user made between two measurements is named, and a change of speed is found where it was.

mod support;

use serde_json::Value;
use support::{Project, tasks::SMALL};

/// Step times that a file beside the trainer sets, unknown to every key: the speed of the machine.
const TRAINER: &str = r#"echo "$TPRIMAT_RUN_ID" >> "$TPRIMAT_PROJECT_DIR/launches"
job=$(<"$TPRIMAT_JOB")
[[ $job =~ '"seq_length": '([0-9]+) ]] && seq=${BASH_REMATCH[1]}
[[ $job =~ '"vocab_size": '([0-9]+) ]] && vocab=${BASH_REMATCH[1]}
echo "$vocab" >> "$TPRIMAT_PROJECT_DIR/order"
n=$(wc -l < "$TPRIMAT_PROJECT_DIR/launches")
time=$(<"$TPRIMAT_PROJECT_DIR/microseconds")
printf '{"event":"start","schema":"tprimat.events/1","effective":{"seq_length":%d,"global_batch_size":1,"num_gpus":1}}\n' "$seq"
for s in 1 2 3 4; do
    printf '{"event":"step","step":%d,"step_time_seconds":0.00%d,"loss":%d.5}\n' $s $((time + n % 3)) $((9 - s))
done
printf '{"event":"end","status":"ok","steps":4}\n'
"#;

fn project() -> Project {
    let project = Project::of_two();
    project.write("train.sh", TRAINER).write("microseconds", "1000\n");
    project.edit("matrix.toml", "repeats = 2", "repeats = 3");
    project
}

fn built(project: &Project) {
    project.run(&["build", "--only", SMALL]).ends_with(0);
}

/// Of each measurement: what was changed before it, and what became of the speed.
fn story(project: &Project, arguments: &[&str]) -> Vec<(String, String)> {
    let history = project.json(&[&["history"], arguments].concat());
    let measurements = history["cells"][0]["measurements"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let change = |c: &Value| match c["how"].as_str() {
        Some(how) => format!("{} {how}", text(&c["what"])),
        None => format!("{} {} → {}", text(&c["what"]), text(&c["old"]), text(&c["new"])),
    };
    let told = |m: &Value| {
        let changes = m["since"]["changes"].as_array().cloned().unwrap_or_default();
        (changes.iter().map(change).collect::<Vec<_>>().join("; "), text(&m["since"]["level"]))
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
    project.edit("config.yaml", "OF_FRAMEWORK: \"0\"", "OF_FRAMEWORK: \"1\"").write("microseconds", "1100\n");
    built(&project);
    project.edit("config.yaml", "learning_rate: 1e-3", "learning_rate: 2e-3");
    built(&project);
    project.run(&["build", "--only", SMALL, "--remeasure"]).ends_with(0);
    project.edit("recipes/cmd/helper.sh", "# helps", "# helps more");
    project.edit("config.yaml", "seq_length: 64", "seq_length: 128");
    built(&project);
    let expected = [
        pair("", ""),
        pair("train.sh edited", "same"),
        pair("OF_FRAMEWORK 0 → 1", "slower"),
        pair("learning_rate 0.001 → 0.002", "same"),
        pair("", "same"),
        pair("seq_length 64 → 128; helper.sh edited", "not_assessed"),
    ];
    assert_eq!(story(&project, &[SMALL]), expected);
    // A cell that no matrix has any more, by a glob.
    project.edit("matrix.toml", "[\"small\", \"large\"]", "\"large\"");
    assert_eq!(story(&project, &["cpu/*/small"]), expected);
    let text = project.run(&["history", SMALL]).ends_with(0).stdout;
    for part in ["~ OF_FRAMEWORK 0 → 1\n", "▼ 9", "Changed before it: OF_FRAMEWORK 0 → 1."] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("not compared: the work is not the same: seq_length"), "{text}");
}

#[test]
fn a_history_can_be_narrowed_and_drawn() {
    let project = project();
    built(&project);
    project.write("train.sh", &format!("{TRAINER}# a comment\n"));
    built(&project);
    assert_eq!(story(&project, &["--since", "1h"]).len(), 2);
    for narrow in [["--since", "2999-01-01"], ["--host", "no-such-host"]] {
        let ran = project.run(&[&["history"][..], &narrow].concat()).ends_with(4);
        assert!(ran.stderr.contains("nothing was measured that fits"), "{ran:?}");
    }
    for bad in [["--since", "yesterday"], ["-o", "history.pdf"], ["-o", "cache/history.svg"]] {
        project.run(&[&["history"][..], &bad].concat()).ends_with(2);
    }
    let misspelt = project.run(&["history", "cpu/cmd/smal"]).ends_with(4);
    assert!(misspelt.stderr.contains("did you mean `small`?"), "{misspelt:?}");
    project.run(&["history", "-o", "history.svg"]).ends_with(0);
    let svg = project.read("history.svg");
    assert!(svg.contains("train.sh edited") && svg.contains(SMALL), "{svg}");
    project.run(&["history", "-o", "history.png"]).ends_with(0);
    assert!(std::fs::read(project.path("history.png")).unwrap().starts_with(b"\x89PNG"));
    project.run(&["history"]).ends_with(0);
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
    project.run(&["build", "--together", "cpu/cmd/small", "cpu/cmd/large"]).ends_with(0);
    let order = project.read("order");
    let order: Vec<&str> = order.split_whitespace().collect();
    assert_eq!(order.len(), 6);
    // Runs that share a device are started side by side, so within a turn either may be the first.
    for turn in order.chunks(2) {
        assert!(turn.contains(&"32") && turn.contains(&"64"), "{order:?}");
    }
    let contradictory = project.run(&["build", "--together", "cpu/cmd/small", "cpu/cmd/large", "--cached-only"]);
    contradictory.ends_with(2);
}

//! The workflow of docs/ci.md: what it runs exists.

mod support;

use serde_yaml::Value;
use support::Project;

const PAGE: &str = include_str!("../docs/ci.md");

/// The commands of all `run:` steps, each on one line.
fn commands(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Mapping(map) => {
            for (key, value) in map {
                match (key.as_str(), value.as_str()) {
                    (Some("run"), Some(script)) => {
                        found.extend(script.replace("\\\n", " ").lines().map(|line| line.trim().to_owned()));
                    }
                    _ => commands(value, found),
                }
            }
        }
        Value::Sequence(items) => items.iter().for_each(|item| commands(item, found)),
        _ => {}
    }
}

#[test]
fn the_commands_of_the_workflow_exist() {
    let yaml = PAGE.split("```yaml\n").nth(1).and_then(|rest| rest.split("\n```").next()).unwrap();
    let mut all = Vec::new();
    commands(&serde_yaml::from_str(yaml).unwrap(), &mut all);
    let plain = PAGE.split("```\n").nth(1).unwrap().lines().map(|l| l.split('#').next().unwrap().trim().to_owned());
    let mut tprimat: Vec<String> = plain.chain(all).filter(|c| c.starts_with("tprimat ")).collect();
    tprimat.sort();
    tprimat.dedup();
    assert!(tprimat.len() >= 6, "{tprimat:?}");
    let project = Project::empty();
    project.run(&["init"]).ends_with(0);
    for command in &tprimat {
        let words = shlex::split(command).unwrap();
        let help = project.run(&[&words[1], "--help"]).ends_with(0).stdout;
        for option in words.iter().filter(|w| w.starts_with('-')) {
            assert!(
                help.contains(&format!("{option} "))
                    || help.contains(&format!("{option},"))
                    || help.contains(&format!("{option}\n")),
                "{command}: {option}"
            );
        }
        assert!(!words.contains(&"--locked".to_owned()) || words[1] == "build" || words[1] == "plan", "{command}");
    }
}

#[test]
fn the_exit_codes_are_the_programs() {
    use tprimat::error::exit;
    let table = PAGE.split("## Exit codes").nth(1).unwrap();
    let codes: std::collections::BTreeSet<i32> =
        table.lines().filter_map(|l| l.strip_prefix("| ")?.split(" |").next()?.trim().parse().ok()).collect();
    let known = [
        exit::OK,
        exit::FAILED,
        exit::USAGE,
        exit::REGRESSION,
        exit::NOTHING_SELECTED,
        exit::STALE,
        exit::INCONCLUSIVE,
    ];
    assert_eq!(codes, known.into());
}

//! The files of what is held: `## SECTION`, and below it a line `field = value` each.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use super::flat::Lines;

/// What is held of each log, or of each step of a story.
pub type Sections = BTreeMap<String, Lines>;

/// This many differences are told; the others are counted.
const TOLD: usize = 60;

const WRITE: &str = "TPRIMAT_WRITE_ORACLE=1 cargo test --test suite oracle";

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/oracle")
        .join(name)
}

fn written(sections: &Sections) -> String {
    let mut text = format!(
        "# What tprimat gives, so that another tprimat can be held to it. Written by\n# {WRITE}\n# A line that \
         changes is the mend of a fault that the commit names, or a bug.\n"
    );
    for (section, lines) in sections {
        let _ = write!(text, "\n## {section}\n");
        for (field, value) in lines {
            let _ = writeln!(text, "{field} = {value}");
        }
    }
    text
}

fn read(text: &str) -> Sections {
    let mut sections = Sections::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            section = name.to_owned();
            sections.entry(section.clone()).or_default();
        } else if let Some((field, value)) = line.split_once(" = ") {
            let lines = sections.entry(section.clone()).or_default();
            lines.insert(field.to_owned(), value.to_owned());
        }
    }
    sections
}

/// Every difference, by the log and the field that it is in.
fn differences(held: &Sections, found: &Sections) -> Vec<String> {
    let mut told = Vec::new();
    let all: std::collections::BTreeSet<&String> = held.keys().chain(found.keys()).collect();
    for section in all {
        let (held, found) = match (held.get(section), found.get(section)) {
            (Some(held), Some(found)) => (held, found),
            (held, _) => {
                let what = if held.is_some() { "gone" } else { "new" };
                told.push(format!("{section}: it is {what}"));
                continue;
            }
        };
        for (field, expected) in held {
            match found.get(field) {
                Some(value) if value == expected => {}
                Some(value) => told.push(format!(
                    "{section}: {field}\n    expected {expected}\n    found    {value}"
                )),
                None => told.push(format!(
                    "{section}: {field}\n    expected {expected}\n    found    nothing"
                )),
            }
        }
        for (field, value) in found.iter().filter(|(field, _)| !held.contains_key(*field)) {
            told.push(format!(
                "{section}: {field}\n    expected nothing\n    found    {value}"
            ));
        }
    }
    told
}

/// Holds what was found against a file of tests/fixtures/oracle, or writes the file.
#[track_caller]
pub fn hold(name: &str, found: &Sections) {
    let path = path(name);
    let text = written(found);
    // What cannot be told from a line of the file would be held by nobody.
    assert!(
        read(&text) == *found,
        "{name} does not come back as it was written"
    );
    if std::env::var_os("TPRIMAT_WRITE_ORACLE").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let held = read(&fs::read_to_string(&path).unwrap_or_default());
    let told = differences(&held, found);
    if told.is_empty() {
        return;
    }
    let more = match told.len().saturating_sub(TOLD) {
        0 => String::new(),
        more => format!("\n… and {more} more"),
    };
    panic!(
        "tests/fixtures/oracle/{name} is not what tprimat gives now, in {} places:\n{}{more}\n\
         Each is the mend of a fault that the commit names, or a bug. `{WRITE}` writes the file anew.",
        told.len(),
        told[..told.len().min(TOLD)].join("\n"),
    );
}

#[test]
fn a_value_that_changed_is_told_with_its_log_and_its_field() {
    let sections = |value: &str| {
        let lines = Lines::from([("steps.loss".to_owned(), value.to_owned())]);
        Sections::from([("megatron.log".to_owned(), lines)])
    };
    let told = differences(&sections("[8.5]"), &sections("[8.25]"));
    assert_eq!(
        told,
        ["megatron.log: steps.loss\n    expected [8.5]\n    found    [8.25]"]
    );
    assert_eq!(
        differences(&sections("[8.5]"), &Sections::new()),
        ["megatron.log: it is gone"]
    );
    assert_eq!(read(&written(&sections("[8.5]"))), sections("[8.5]"));
}

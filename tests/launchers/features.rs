//! What each feature changes of a plain launch, and which recipes refuse it: features.toml beside this file.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;
use similar::TextDiff;
use tprimat::plan::Support;

use crate::render::{FEATURES, Stage, render, supported_of};

const PLAIN: &str = "plain";

/// feature → framework → what was planned on each platform, in the order of the matrix.
fn planned() -> Vec<(&'static str, Vec<(&'static str, Vec<(&'static str, usize)>)>)> {
    let mut features: Vec<(&str, Vec<(&str, Vec<(&str, usize)>)>)> = Vec::new();
    for (cell, of) in FEATURES.matrix.cells.iter().enumerate() {
        let frameworks = entry(&mut features, &of.parallelism);
        entry(frameworks, &of.framework).push((&of.platform, cell));
    }
    features
}

fn entry<'a, T: Default>(list: &'a mut Vec<(&'static str, T)>, name: &'static str) -> &'a mut T {
    let at = list.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
        list.push((name, T::default()));
        list.len() - 1
    });
    &mut list[at].1
}

/// Platforms of which the same is said, joined: `nvd, amd`.
fn said_of<'a>(cells: impl Iterator<Item = (&'a str, String)>) -> Vec<(String, String)> {
    let mut said: Vec<(String, String)> = Vec::new();
    for (platform, text) in cells {
        match said.iter_mut().find(|(_, known)| *known == text) {
            Some((platforms, _)) => *platforms += &format!(", {platform}"),
            None => said.push((platform.to_owned(), text)),
        }
    }
    said
}

/// The launch files of a cell by name.
fn files(cell: usize) -> BTreeMap<String, String> {
    let prepared = FEATURES.prepared(cell).expect("supported");
    let files = render(FEATURES.recipe(cell), prepared.job());
    let files = files.unwrap_or_else(|e| panic!("{}: {e}", FEATURES.cells[cell].id));
    files.into_iter().map(|file| (file.name, String::from_utf8(file.bytes).unwrap())).collect()
}

/// One snapshot a framework: the launch files of its plain cell, then how those of each feature differ.
#[test]
fn features_change_the_launch_as_reviewed() {
    let planned = planned();
    assert_eq!(planned[0].0, PLAIN);
    for (framework, cells) in &planned[0].1 {
        let ready = |(_, cell): &&(&str, usize)| FEATURES.prepared(*cell).is_some();
        let (_, plain) = cells.iter().find(ready).unwrap_or_else(|| panic!("{framework} launches a plain job"));
        let plain = files(*plain);
        let mut text = String::new();
        for (name, file) in &plain {
            let _ = writeln!(text, "==== {PLAIN}: {name}\n{file}");
        }
        let mut unchanged: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (feature, frameworks) in &planned {
            let cells = &frameworks.iter().find(|(name, _)| name == framework).unwrap().1;
            let differences = |(platform, cell): &(&'static str, usize)| {
                let changed = files(*cell).into_iter().map(|(name, file)| (difference(&plain[&name], &file), name));
                let changed = changed.filter(|(difference, _)| !difference.is_empty());
                let texts: Vec<_> = changed.map(|(difference, name)| format!("{name}\n{difference}")).collect();
                (*platform, texts.join(""))
            };
            for (platforms, difference) in said_of(cells.iter().filter(ready).map(differences)) {
                if difference.is_empty() {
                    unchanged.entry(platforms).or_default().push(feature);
                } else {
                    let _ = write!(text, "==== {feature} ({platforms}): {difference}");
                }
            }
        }
        for (platforms, features) in unchanged {
            let _ = writeln!(text, "==== as the first ({platforms}): {}", features.join(", "));
        }
        insta::assert_snapshot!(format!("feature_{framework}"), text);
    }
}

/// Changed lines, each group with a line around it.
fn difference(plain: &str, file: &str) -> String {
    let diff = TextDiff::from_lines(plain, file);
    let mut text = String::new();
    for (number, hunk) in diff.unified_diff().context_radius(1).iter_hunks().enumerate() {
        text += if number > 0 { "…\n" } else { "" };
        for change in hunk.iter_changes() {
            let _ = write!(text, "{}{}", change.tag(), change.value());
        }
    }
    text
}

/// What each feature asks for, and who says why it cannot have it.
#[test]
fn features_are_refused_with_the_reviewed_reasons() {
    let mut text = String::new();
    for (framework, cells) in &planned()[0].1 {
        for (platforms, reason) in
            said_of(cells.iter().filter_map(|(platform, cell)| Some((*platform, refusal(*cell)?))))
        {
            let _ = writeln!(text, "{framework} ({platforms}): {reason}");
        }
    }
    let mut plain = Vec::new();
    for (feature, frameworks) in planned() {
        // A command of the user's own is handed every job.
        let (_, cells) = frameworks.iter().find(|(framework, _)| *framework == "cmd").unwrap();
        let mut job = Vec::new();
        leaves(&serde_json::to_value(FEATURES.prepared(cells[0].1).unwrap().job()).unwrap(), "", &mut job);
        let news = job.iter().filter(|leaf| !plain.contains(*leaf) && feature != PLAIN);
        let _ = writeln!(text, "\n==== {feature}: {}", news.map(String::as_str).collect::<Vec<_>>().join(", "));
        if feature == PLAIN {
            plain = job;
        }
        let (mut launched, mut refused) = (Vec::new(), String::new());
        for (framework, cells) in &frameworks {
            // A recipe that has no such vendor at all was named above.
            let on = cells.iter().filter(|(_, cell)| {
                let vendors = &FEATURES.recipe(*cell).file.vendors;
                vendors.iter().any(|vendor| vendor.name() == &*FEATURES.matrix.cells[*cell].platform)
            });
            for (platforms, reason) in
                said_of(on.map(|(platform, cell)| (*platform, refusal(*cell).unwrap_or_default())))
            {
                if reason.is_empty() {
                    launched.push(*framework);
                } else {
                    let _ = writeln!(refused, "{framework} ({platforms}): {reason}");
                }
            }
        }
        let _ = write!(text, "launched: {}\n{refused}", launched.join(", "));
    }
    insta::assert_snapshot!("features_refused", text);
}

/// A log that is piped on must not hide that the trainer failed.
#[test]
fn a_command_in_words_of_bash_fails_as_its_first_part_does() {
    let (_, recipe, job) = supported_of(&FEATURES).find(|(id, ..)| *id == "nvd/cmd/small/options").unwrap();
    let ends = |command: &str| {
        let mut job = job.clone();
        job.framework.insert("command".into(), command.into());
        Stage::new(recipe, &job).run(recipe).status.code()
    };
    assert_eq!((ends("exit 3 | cat"), ends("echo | cat")), (Some(3), Some(0)));
}

fn refusal(cell: usize) -> Option<String> {
    match &FEATURES.cells[cell].support {
        Support::Ready(_) => None,
        Support::Unsupported(reason) => Some(reason.clone()),
    }
}

/// `a.b = value` of each value that is set.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(value, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, found);
            }
        }
        Value::Null => {}
        _ => found.push(format!("{path} = {value}")),
    }
}

//! What each feature changes of a plain launch, and which recipes refuse it: features.toml beside
//! this file.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Value, json};
use similar::TextDiff;
use tprimat::{
    matrix::{Cell, CellId},
    plan::Support,
};

use super::render::{FEATURES, Stage, render, supported_of, unsupported};

const PLAIN: &str = "plain";

/// Names of cells in the order of the matrix, each once.
fn each(name: fn(&Cell) -> &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    FEATURES.matrix.cells.iter().map(name).for_each(|name| {
        if !names.contains(&name) {
            names.push(name);
        }
    });
    names
}

fn features() -> Vec<&'static str> {
    each(|cell| &cell.parallelism)
}

fn frameworks() -> Vec<&'static str> {
    each(|cell| &cell.framework)
}

/// Each platform, and which cell the framework's is there.
fn cells(framework: &str, feature: &str) -> impl Iterator<Item = (&'static str, CellId)> {
    let is_meant = move |of: &Cell| (&*of.framework, &*of.parallelism) == (framework, feature);
    let all = FEATURES.matrix.cells.with_ids();
    all.filter(move |(_, of)| is_meant(of))
        .map(|(cell, of)| (&*of.platform, cell))
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
fn files(cell: CellId) -> BTreeMap<String, String> {
    let prepared = FEATURES.prepared(cell).expect("supported");
    let files = render(FEATURES.recipe(cell), prepared.job());
    let files = files.unwrap_or_else(|e| panic!("{}: {e}", FEATURES.cells[cell].id));
    files
        .into_iter()
        .map(|file| (file.name, String::from_utf8(file.bytes).unwrap()))
        .collect()
}

/// One snapshot a framework: the launch files of its plain cell, then how those of each feature
/// differ.
#[test]
fn features_change_the_launch_as_reviewed() {
    for framework in frameworks() {
        let launched = |feature| {
            cells(framework, feature).filter(|(_, cell)| FEATURES.prepared(*cell).is_some())
        };
        let (_, first) = launched(PLAIN)
            .next()
            .unwrap_or_else(|| panic!("{framework} launches a plain job"));
        let plain = files(first);
        let mut text = String::new();
        for (name, file) in &plain {
            let _ = writeln!(text, "==== {PLAIN}: {name}\n{file}");
        }
        let mut unchanged: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for feature in features() {
            let differences = launched(feature).map(|(platform, cell)| {
                let changed = files(cell)
                    .into_iter()
                    .map(|(name, file)| (difference(&plain[&name], &file), name));
                let changed = changed.filter(|(difference, _)| !difference.is_empty());
                (
                    platform,
                    changed
                        .map(|(difference, name)| format!("{name}\n{difference}"))
                        .collect(),
                )
            });
            for (platforms, difference) in said_of(differences) {
                if difference.is_empty() {
                    unchanged.entry(platforms).or_default().push(feature);
                } else {
                    let _ = write!(text, "==== {feature} ({platforms}): {difference}");
                }
            }
        }
        for (platforms, features) in unchanged {
            let _ = writeln!(
                text,
                "==== as the first ({platforms}): {}",
                features.join(", ")
            );
        }
        insta::assert_snapshot!(format!("feature_{framework}"), text);
    }
}

/// Changed lines, each group with a line around it.
fn difference(plain: &str, file: &str) -> String {
    let diff = TextDiff::from_lines(plain, file);
    let mut text = String::new();
    for (number, hunk) in diff
        .unified_diff()
        .context_radius(1)
        .iter_hunks()
        .enumerate()
    {
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
    for framework in frameworks() {
        let refusals =
            cells(framework, PLAIN).filter_map(|(platform, cell)| Some((platform, refusal(cell)?)));
        for (platforms, reason) in said_of(refusals) {
            let _ = writeln!(text, "{framework} ({platforms}): {reason}");
        }
    }
    let plain = settings(PLAIN);
    for feature in features() {
        let news: Vec<String> = settings(feature)
            .into_iter()
            .filter(|setting| !plain.contains(setting))
            .collect();
        let _ = writeln!(text, "\n==== {feature}: {}", news.join(", "));
        let (mut launched, mut refused) = (Vec::new(), String::new());
        for framework in frameworks() {
            // Where not even a plain job is launched was said above.
            let here = cells(framework, PLAIN).map(|(_, cell)| refusal(cell).is_none());
            let here = cells(framework, feature)
                .zip(here)
                .filter(|(_, here)| *here);
            for (platforms, reason) in
                said_of(here.map(|((name, cell), _)| (name, refusal(cell).unwrap_or_default())))
            {
                if reason.is_empty() {
                    launched.push(framework);
                } else {
                    let _ = writeln!(refused, "{framework} ({platforms}): {reason}");
                }
            }
        }
        let _ = write!(text, "launched: {}\n{refused}", launched.join(", "));
    }
    insta::assert_snapshot!("features_refused", text);
}

/// `a.b = value` of the job that a command of the user's own is handed: hardly anything is refused
/// there, and that not by mega.
fn settings(feature: &str) -> Vec<String> {
    let (_, cell) = ["cmd", "mega"]
        .into_iter()
        .flat_map(|framework| cells(framework, feature))
        .find(|(_, cell)| FEATURES.prepared(*cell).is_some())
        .unwrap();
    let mut found = Vec::new();
    leaves(
        &serde_json::to_value(FEATURES.prepared(cell).unwrap().job()).unwrap(),
        "",
        &mut found,
    );
    found
}

/// A log that is piped on must not hide that the trainer failed.
#[test]
fn a_command_in_words_of_bash_fails_as_its_first_part_does() {
    let (_, recipe, job) = supported_of(&FEATURES)
        .find(|(id, ..)| *id == "nvd/cmd/small/options")
        .unwrap();
    let ends = |command: &str| {
        let mut job = job.clone();
        job.framework.insert("command".into(), command.into());
        Stage::new(recipe, &job).run(recipe).status.code()
    };
    assert_eq!(
        (ends("exit 3 | cat"), ends("echo | cat")),
        (Some(3), Some(0))
    );
}

/// The trainer refuses these by itself, but only once it has the GPU: a plan says so before.
#[test]
fn settings_that_need_natives_fused_step_are_refused_before_a_run() {
    let (_, recipe, job) = supported_of(&FEATURES)
        .find(|(id, ..)| id.starts_with("nvd/native/"))
        .unwrap();
    let refusal = |vendor: &str, state: &str, framework: Value| {
        let mut job = serde_json::to_value(job).unwrap();
        job["vendor"] = vendor.into();
        job["optimizer"]["state_precision"] = state.into();
        job["framework"] = framework;
        unsupported(recipe, &job).map(|reason| reason.split(':').next().unwrap().to_owned())
    };
    let stochastic = json!({ "rounding": "stochastic" });
    let fused = json!({ "rounding": "stochastic", "step": "fused" });
    let by_step = "only the fused step rounds stochastically";
    let by_state = "stochastic rounding is for weights kept in bf16";
    assert_eq!(refusal("nvd", "bf16", stochastic).as_deref(), Some(by_step));
    assert_eq!(
        refusal("nvd", "fp32", fused.clone()).as_deref(),
        Some(by_state)
    );
    assert_eq!(refusal("nvd", "bf16", fused), None);
    let same_bits = json!({ "deterministic": true });
    assert_eq!(
        refusal("nvd", "fp32", same_bits.clone()).as_deref(),
        Some("on a GPU only the fused step gives the same bits every time")
    );
    assert_eq!(refusal("cpu", "fp32", same_bits), None);
}

fn refusal(cell: CellId) -> Option<String> {
    match &FEATURES.cells[cell].support {
        Support::Ready(_) => None,
        Support::Unsupported(reason) => Some(reason.clone()),
    }
}

fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                leaves(
                    value,
                    &if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}.{name}")
                    },
                    found,
                );
            }
        }
        Value::Null => {}
        _ => found.push(format!("{path} = {value}")),
    }
}

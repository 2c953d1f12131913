//! In what two cells of one matrix differ, and the cells in between: the first one with some of the
//! differences.

use std::sync::Arc;

use serde_json::Value;

use super::series::{Series, point_of};
use crate::{
    config::{Setting, plain},
    figures::{ChangedSetting, blame::Arm},
    matrix::Cell,
    plan::Plan,
    recipe::COMMAND,
    words::secret::public_value,
};

/// One difference that can be made alone.
pub struct Difference {
    pub told: ChangedSetting,
    pub what: What,
    /// The field of the keys that it puts back to what it was.
    pub undoes: Option<String>,
}

pub enum What {
    /// A dimension of the matrix: `parallelism`, `framework`, …
    Name(&'static str),
    /// What an axis or an override sets.
    Path(Arc<str>),
    /// Words of a command.
    Words { command: Arc<Words>, hunk: Hunk },
    /// A setting as it was; the present cell has it without.
    Then(Setting),
    /// The text of a file as it was, if it was there.
    File { name: String, old: Option<String> },
    /// A commit or a version, after the one before.
    Next {
        of: Arc<Series>,
        before: String,
        point: String,
    },
}

/// The command of the first cell.
pub struct Words {
    /// An axis or an override of one of the two cells that sets it.
    like: Setting,
    old: Vec<String>,
}

/// Words of the first command, by place, and those that stand there in the second one.
#[derive(Clone, Debug, PartialEq)]
pub struct Hunk {
    at: std::ops::Range<usize>,
    new: Vec<String>,
}

/// All differences of two cells: together they make the second of the first.
pub fn differences(plan: &Plan, [a, b]: [&Cell; 2]) -> Vec<Difference> {
    let mut found = Vec::new();
    for name in ["platform", "framework", "model", "parallelism"] {
        let [old, new] = [a, b].map(|cell| cell.value(name).map(ToString::to_string));
        if old != new {
            let what = What::Name(name);
            found.push(Difference {
                told: changed(name, old, new),
                what,
                undoes: None,
            });
        }
    }
    let view = |cell: &'_ Cell, path: &str| -> Option<Value> {
        let recipe = &plan.recipes.recipes.get(&*cell.framework)?.defaults;
        let view = plan.config.view(recipe, &cell.overlay);
        let view = view.of_cell(&cell.platform, cell.vendor, &cell.framework);
        view.get(path).cloned()
    };
    let mut paths: Vec<&Arc<str>> = Vec::new();
    for setting in a.overlay.iter().chain(&b.overlay) {
        if !paths.contains(&&setting.path) {
            paths.push(&setting.path);
        }
    }
    for path in paths {
        let [old, new] = [a, b].map(|cell| view(cell, path));
        if old == new {
            continue;
        }
        let is_command = path.rsplit('.').next() == Some(COMMAND);
        let words = [&old, &new].map(|value| value.as_ref().and_then(words).filter(|_| is_command));
        let mut settings = a.overlay.iter().chain(&b.overlay);
        let like = settings.find(|setting| setting.path == *path).cloned();
        if let ([Some(old), Some(new)], Some(like)) = (words, like) {
            let hunks = hunks(&old, &new).into_iter();
            let command = Arc::new(Words { like, old });
            found.extend(hunks.map(|hunk| Difference {
                told: told_words(&command.old, &hunk),
                what: What::Words {
                    command: command.clone(),
                    hunk,
                },
                undoes: None,
            }));
            continue;
        }
        let name = path.rsplit('.').next().unwrap_or(path);
        let shown = |value: Option<Value>| {
            let value = value.filter(|value| !value.is_null());
            value.map(|value| public_value(name, &plain(&value)).into_owned())
        };
        found.push(Difference {
            told: changed(name, shown(old), shown(new)),
            what: What::Path(path.clone()),
            undoes: None,
        });
    }
    found
}

fn changed(what: &str, old: Option<String>, new: Option<String>) -> ChangedSetting {
    ChangedSetting {
        what: what.to_owned(),
        how: None,
        old,
        new,
    }
}

fn told_words(old: &[String], hunk: &Hunk) -> ChangedSetting {
    let (before, after) = (old[hunk.at.clone()].join(" "), hunk.new.join(" "));
    let whole = |what: String, how: &str| ChangedSetting {
        what,
        how: Some(how.to_owned()),
        old: None,
        new: None,
    };
    match (before.is_empty(), after.is_empty()) {
        (true, _) => return whole(after, "added"),
        (_, true) => return whole(before, "removed"),
        _ => {}
    }
    // `--threads 1 → 2` says more than `1 → 2`.
    let option = hunk.at.start.checked_sub(1).map(|at| old[at].as_str());
    let option = option.filter(|word| word.starts_with('-') && hunk.at.len() == 1);
    changed(option.unwrap_or("command"), Some(before), Some(after))
}

/// The words of a command, where they are told apart by spaces alone.
fn words(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) if !text.contains(['"', '\'', '\\', '$', '`', '|', ';', '&']) => {
            Some(text.split_whitespace().map(str::to_owned).collect())
        }
        Value::Array(words) => words
            .iter()
            .map(|word| word.as_str().map(str::to_owned))
            .collect(),
        _ => None,
    }
}

/// What turns one list of words into another: the longest words that both have in common stay.
fn hunks(old: &[String], new: &[String]) -> Vec<Hunk> {
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let mut found: Vec<Hunk> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let (mut start, mut from) = (i, j);
        while (i < old.len() || j < new.len())
            && !(i < old.len() && j < new.len() && old[i] == new[j])
        {
            let drops = i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]);
            if drops {
                i += 1;
            } else {
                j += 1;
            }
        }
        // An option's value and the option behind it are two differences.
        let [of_old, of_new] = [&old[start..i], &new[from..j]].map(|words| {
            let option = words.iter().position(|word| word.starts_with('-'));
            option.unwrap_or(words.len())
        });
        if of_old > 0 && of_new > 0 && (start + of_old < i || from + of_new < j) {
            found.push(Hunk {
                at: start..start + of_old,
                new: new[from..from + of_new].to_vec(),
            });
            (start, from) = (start + of_old, from + of_new);
        }
        found.push(Hunk {
            at: start..i,
            new: new[from..j].to_vec(),
        });
    }
    found
}

/// The first cell with some of the differences. None of them is the first cell itself, and all of
/// them are the second one.
pub fn cell_of(differences: &[Difference], [a, b]: [&Cell; 2], arm: &Arm) -> Cell {
    if let Some((series, point)) = point_of(differences, arm) {
        let mut cell = b.clone();
        cell.axes.push(series.axis(point));
        return cell;
    }
    if arm.len() == differences.len() {
        return b.clone();
    }
    let mut cell = a.clone();
    let mut is_as_it_was = false;
    for (at, difference) in differences.iter().enumerate() {
        let has = arm.contains(&at);
        match &difference.what {
            What::Then(setting) if !has => {
                is_as_it_was = true;
                put(&mut cell, &setting.path, Some(setting.clone()));
            }
            What::File { .. } if !has => is_as_it_was = true,
            What::Then(_) | What::File { .. } | What::Next { .. } => {}
            _ if !has => {}
            What::Name("platform") => {
                (cell.platform, cell.vendor) = (b.platform.clone(), b.vendor);
            }
            What::Name("framework") => cell.framework = b.framework.clone(),
            What::Name("model") => cell.model = b.model.clone(),
            What::Name(_) => cell.parallelism = b.parallelism.clone(),
            What::Path(path) => {
                let own = b.overlay.iter().find(|setting| setting.path == *path);
                put(&mut cell, path, own.cloned());
            }
            What::Words { command, .. } => {
                let setting = with_words(command, differences, arm);
                put(&mut cell, &command.like.path, Some(setting));
            }
        }
    }
    if arm.is_empty() && !is_as_it_was {
        return cell;
    }
    let numbers: Vec<String> = arm.iter().map(|at| (at + 1).to_string()).collect();
    let name = match numbers.is_empty() {
        true => "then".to_owned(),
        false => numbers.join("+"),
    };
    cell.axes.push(("blame".into(), name.into()));
    cell
}

/// The files that are as they were in an arm.
pub fn files_of<'a>(differences: &'a [Difference], arm: &Arm) -> Vec<(&'a str, Option<&'a str>)> {
    let all = differences.iter().enumerate();
    let of_then = all.filter(|(at, _)| !arm.contains(at));
    of_then
        .filter_map(|(_, difference)| match &difference.what {
            What::File { name, old } => Some((name.as_str(), old.as_deref())),
            _ => None,
        })
        .collect()
}

fn put(cell: &mut Cell, path: &Arc<str>, setting: Option<Setting>) {
    cell.overlay.retain(|own| own.path != *path);
    cell.overlay.extend(setting);
}

/// The first command with some of the second one's words.
fn with_words(command: &Arc<Words>, differences: &[Difference], arm: &Arm) -> Setting {
    let mut made = Vec::new();
    let mut at = 0;
    for (number, difference) in differences.iter().enumerate() {
        match &difference.what {
            What::Words { command: of, hunk } if Arc::ptr_eq(of, command) => {
                made.extend_from_slice(&command.old[at..hunk.at.start]);
                match arm.contains(&number) {
                    true => made.extend_from_slice(&hunk.new),
                    false => made.extend_from_slice(&command.old[hunk.at.clone()]),
                }
                at = hunk.at.end;
            }
            _ => {}
        }
    }
    made.extend_from_slice(&command.old[at..]);
    let value = match command.like.value {
        Value::String(_) => made.join(" ").into(),
        _ => made.into(),
    };
    Setting {
        value,
        ..command.like.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn each_option_of_a_command_is_a_difference_of_its_own() {
        let old = split("python train.py --threads 1 --compile --seed 3");
        let new = split("python train.py --threads 2 --seed 3 --fused");
        let told: Vec<String> = hunks(&old, &new)
            .iter()
            .map(|hunk| told_words(&old, hunk).words())
            .collect();
        assert_eq!(
            told,
            ["--threads 1 → 2", "--compile removed", "--fused added"]
        );
    }
}

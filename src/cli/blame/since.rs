//! A cell then and now: what was changed since one of its measurements, and how to have it as it was.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};

use super::differences::{Difference, What};
use crate::{
    cache::TaskKind,
    cli::{args::moment, gate::read_baseline, output::leave_out, session::Session},
    config::{Origin, Setting},
    digest::Digest,
    error::{Error, Result},
    execute::history::{changes_since, histories},
    figures::{ChangedSetting, Measurement},
    files::{self, Durability},
    graph::worded,
    job::Job,
    matrix::{Cell, CellId},
    plan::{
        Asked, Input, Plan,
        preimage::{Change, unescaped},
    },
};

/// The measurement of a cell that a baseline has, or the last one that began before a time.
pub fn measured_then(session: &Session, cell: CellId, since: &str) -> Result<Measurement> {
    let (engine, statuses) = session.look()?;
    let id = &session.plan.cells[cell].id;
    let wanted = BTreeSet::from([id.clone()]);
    let (found, _) = histories(&engine, &statuses, &wanted, None, None, leave_out)?;
    let own = found.into_iter().filter(|history| !history.imported);
    let mut all = own.flat_map(|history| history.measurements);
    let is_baseline = Path::new(since).is_file();
    let then = if is_baseline {
        let baseline = read_baseline(Path::new(since), &Asked::of(&session.request))?;
        let of_cell = baseline.cells.iter().find(|of| of.cell == *id);
        let key = of_cell.and_then(|of| of.key.as_ref()?.parse::<Digest>().ok());
        let attempts = key
            .map(|key| session.cache.attempts(&key))
            .unwrap_or_default();
        all.find(|measurement| {
            let mut runs = measurement.runs.iter();
            runs.any(|run| attempts.iter().any(|of| of.id == run.attempt))
        })
    } else {
        let at = moment(since).map_err(|expected| {
            Error::refused(format!("--since {since}: {expected}"), "or name a baseline")
        })?;
        let is_then =
            |of: &Measurement| of.started_at <= at && of.tokens_per_second_per_gpu.is_some();
        all.rfind(is_then)
    };
    then.ok_or_else(|| {
        let what = if is_baseline {
            format!("the cache has no run of `{id}` that the baseline {since} was made of")
        } else {
            format!("the cache has no measurement of `{id}` that began before {since}")
        };
        let history = session.plan.command("history", &[id]);
        Error::failed_with(what, format!("`{history}` lists what it has"))
    })
}

/// What was changed since, as far as it can be undone: the present cell without a change.
pub fn undone(session: &Session, id: CellId, then: &Measurement) -> Result<Vec<Difference>> {
    let cell = &session.plan.matrix.cells[id];
    let default = json!(Job::default());
    let one = |change: Change| {
        let mut told = worded(std::slice::from_ref(&change), &default).into_iter();
        Some(Difference {
            told: told.next()?,
            what: undo(session, cell, &change, &default)?,
            undoes: Some(change.field),
        })
    };
    let changes = changes(session, id, then, session)?;
    Ok(changes.into_iter().filter_map(one).collect())
}

/// The fields of the train key, of the job and of the host in which a measurement of a cell differs from
/// what `was` would launch: the cell itself, or the only one of another session.
pub fn changes(
    session: &Session,
    id: CellId,
    then: &Measurement,
    was: &Session,
) -> Result<Vec<Change>> {
    let at = if std::ptr::eq(session, was) {
        id
    } else {
        CellId::default()
    };
    let (engine, statuses) = was.look()?;
    let node = was.dag.find(TaskKind::Train, at, 1);
    let name = &session.plan.cells[id].id;
    let now = node.and_then(|node| engine.present(node, &statuses));
    let now = now.ok_or_else(|| Error::failed(format!("`{name}` has no key on this host")))?;
    let host = was.plan.facts.host().hostname.clone().unwrap_or_default();
    let mut changes = changes_since(&session.cache, name, &then.inputs, &now, &host);
    changes.retain(|change| change.field != "repeat");
    Ok(changes)
}

/// What cannot be undone, in words.
pub fn told(changes: &[Change]) -> Vec<ChangedSetting> {
    worded(changes, &json!(Job::default()))
}

/// Commands that measure the versions of packages between then and now.
pub fn varied_by(plan: &Plan, cell: &str, changes: &[Change]) -> Vec<String> {
    let one = |change: &Change| {
        let name = unescaped(change.field.strip_prefix("fact.package.")?);
        let [old, new] = [&change.old, &change.new]
            .map(|of| serde_json::from_str::<String>(of.as_deref()?).ok());
        // pip's index has no local parts, as `+cu130` is one.
        let [old, new] = [old?, new?].map(|of| of.split('+').next().map(str::to_owned));
        let range = format!("{name}=={}..{}", old?, new?);
        Some(plan.command("blame", &[cell, "--versions", &range]))
    };
    changes.iter().filter_map(one).collect()
}

fn undo(session: &Session, cell: &Cell, change: &Change, default: &Value) -> Option<What> {
    let old = || -> Option<Value> { serde_json::from_str(change.old.as_deref()?).ok() };
    let framework = &cell.framework;
    let set = |path: String, value: Value| {
        What::Then(Setting {
            path: Arc::from(path),
            value,
            origin: Origin::Set,
        })
    };
    if let Some(name) = change.field.strip_prefix("env.") {
        let value = old().unwrap_or(Value::Null);
        return Some(set(format!("frameworks.{framework}.env.{name}"), value));
    }
    if let Some(name) = change.field.strip_prefix("input.") {
        let text = match &change.old {
            None => None,
            Some(_) => {
                let digest = old()?.as_str()?.parse().ok()?;
                // A large file is not kept.
                Some(session.cache.preimage(&digest)?)
            }
        };
        let name = unescaped(name);
        return Some(What::File { name, old: text });
    }
    let path = change.field.strip_prefix("job.")?;
    let of_default = || {
        default
            .pointer(&format!("/{}", path.replace('.', "/")))
            .cloned()
    };
    let value = old().or_else(of_default).unwrap_or(Value::Null);
    Some(set(setting_of(path, cell)?, value))
}

/// Where config.yaml states a field of the job. Whatever this gets wrong is found out, because the
/// cell that is made so has another key than it had.
fn setting_of(path: &str, cell: &Cell) -> Option<String> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    Some(match first {
        "parallelism" | "vendor" => return None,
        "model" => format!("models.{}.{rest}", cell.model),
        "framework" => format!("frameworks.{}.{rest}", cell.framework),
        "initialisation" => format!("training.init_{rest}"),
        "train_iters" => "training.duration.train_iters".to_owned(),
        "precision" => "training.precision.default".to_owned(),
        "fp8_hybrid" | "fp8_param" => format!("training.precision.{path}"),
        _ => format!("training.{path}"),
    })
}

/// Writes the project with some files as they were into `to`. Whatever holds no input is linked.
pub fn copy_with(
    session: &Session,
    inputs: &[Input],
    old: &[(&str, Option<&str>)],
    to: &Path,
) -> Result<()> {
    let root = &session.plan.root;
    let names: Vec<&str> = inputs
        .iter()
        .map(|input| &*input.name)
        .chain(old.iter().map(|(name, _)| *name))
        .collect();
    let made: Vec<PathBuf> = vec![
        session.plan.config.cache_dir(root),
        session.plan.config.output_dir(root),
    ];
    copy_folder(root, Path::new(""), to, &names, &made)?;
    for (name, text) in old {
        let path = to.join(name);
        match text {
            Some(text) => {
                if let Some(folder) = path.parent() {
                    files::create_dir_all(folder)?;
                }
                files::write_atomically(&path, text.as_bytes(), Durability::Plain)?;
                like(&path, &root.join(name))?;
            }
            None => {
                let removed = std::fs::remove_file(&path);
                removed.map_err(Error::io("cannot remove", &path))?;
            }
        }
    }
    Ok(())
}

/// Folders whose files a plan reads.
pub const READ: [&str; 3] = ["recipes", "templates", "pipelines"];

pub fn copy_folder(
    root: &Path,
    folder: &Path,
    to: &Path,
    inputs: &[&str],
    made: &[PathBuf],
) -> Result<()> {
    let from = root.join(folder);
    let listed = std::fs::read_dir(&from).map_err(Error::io("cannot read", &from))?;
    for entry in listed {
        let entry = entry.map_err(Error::io("cannot read", &from))?;
        let (name, path) = (folder.join(entry.file_name()), entry.path());
        if made.contains(&path) || entry.file_name() == ".git" {
            continue;
        }
        let kind = entry.file_type().map_err(Error::io("cannot read", &path))?;
        let has_inputs = inputs
            .iter()
            .any(|input| Path::new(input).starts_with(&name));
        let is_read = READ.iter().any(|read| name.starts_with(read));
        let target = to.join(&name);
        if kind.is_dir() && (has_inputs || is_read) {
            files::create_dir_all(&target)?;
            copy_folder(root, &name, to, inputs, made)?;
        } else if kind.is_file() && (has_inputs || is_read || folder == Path::new("")) {
            copy_file(&path, &target)?;
        } else {
            let linked = std::os::unix::fs::symlink(&path, &target);
            linked.map_err(Error::io("cannot link", &target))?;
        }
    }
    Ok(())
}

pub fn copy_file(path: &Path, target: &Path) -> Result<()> {
    let mut source = files::open_regular(path).map_err(Error::io("cannot read", path))?;
    files::write_all_of(target, &mut source.0)?;
    like(target, path)
}

/// A script is still one: the copy may be executed where the original may, if that is still there.
#[expect(
    clippy::disallowed_methods,
    reason = "changes the mode of a copy alone"
)]
fn like(copy: &Path, original: &Path) -> Result<()> {
    match std::fs::metadata(original) {
        Ok(found) => std::fs::set_permissions(copy, found.permissions())
            .map_err(Error::io("cannot change the mode of", copy)),
        Err(_) => Ok(()),
    }
}

//! What a run imports of the project.
//!
//! Python loads `imports/sitecustomize.py` from the run's folder when it starts, before the trainer.
//! It ends a run at once that imports a file of the project which is no input, for that file is in no
//! key. What is imported so late that a measurement would be lost is noted instead, and the run is
//! filed under the key that has the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{host::TrainHost, launch::TrainWork};
use crate::{
    cache::Attempt,
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability, Known, write_atomically},
    job::{FailureClass, RunOutcome},
    plan::preimage::with_inputs,
    run::{Watched, folder::if_there},
};

const FOLDER: &str = "imports";
/// In the folder: what the hook is told.
const INPUTS: &str = "inputs.json";
/// In the folder: what it noted, a name in JSON a line.
const LATE: &str = "late";
/// In the folder: made by the first Python that loads the hook.
const LOADED: &str = "python";
const HOOK: &str = include_str!("imports/sitecustomize.py");

#[derive(Serialize, Deserialize)]
struct Told {
    root: PathBuf,
    /// Absolute, or from the root.
    inputs: Vec<PathBuf>,
    /// Folders whose files are in keys by other means, or are made by runs.
    left_out: Vec<PathBuf>,
    /// Where the files would be added: `frameworks.cmd.inputs`.
    setting: String,
}

/// Puts the hook into the run's folder, and in front of what its Python looks through.
pub(super) fn watch(
    work: &TrainWork,
    host: &TrainHost,
    dir: &Path,
    env: &mut BTreeMap<String, String>,
) -> Result<()> {
    let folder = dir.join(FOLDER);
    files::create_dir_all(&folder)?;
    let cache = host.runs.parent().unwrap_or(&host.runs);
    let checkouts = work.checkouts().map(|(_, path)| path);
    let told = Told {
        root: host.project.clone(),
        inputs: work.watched().iter().flat_map(Watched::files).collect(),
        left_out: [cache.to_owned()].into_iter().chain(checkouts).collect(),
        setting: format!("frameworks.{}.inputs", work.recipe.file.id),
    };
    let text = serde_json::to_vec(&told).map_err(|e| Error::failed(e.to_string()))?;
    write_atomically(&folder.join(INPUTS), &text, Durability::Plain)?;
    write_atomically(
        &folder.join("sitecustomize.py"),
        HOOK.as_bytes(),
        Durability::Plain,
    )?;
    let folder = folder.to_string_lossy().into_owned();
    if work.execution().container.is_none() {
        let others = env.get("PYTHONPATH").filter(|others| !others.is_empty());
        let path = others.map_or_else(|| folder.clone(), |others| format!("{folder}:{others}"));
        env.insert("PYTHONPATH".into(), path);
    }
    env.insert("TPRIMAT_IMPORTS".into(), folder);
    Ok(())
}

/// A command as it is started in a container, whose image may have a PYTHONPATH of its own.
pub(super) fn in_container(command: &[String]) -> Vec<String> {
    const SCRIPT: &str =
        r#"export PYTHONPATH="$TPRIMAT_IMPORTS${PYTHONPATH:+:$PYTHONPATH}"; exec "$@""#;
    let words = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned);
    words.into_iter().chain(command.iter().cloned()).collect()
}

/// Did a Python of the run say what it imports?
pub(super) fn are_reported(dir: &Path) -> bool {
    dir.join(FOLDER).join(LOADED).is_file()
}

/// What a run imported of the project, so late that it was not ended for it, that is no input.
pub(super) enum Late {
    Nothing,
    /// The attempt as it would be if the files were inputs, and as it is filed under the present key,
    /// where it does not count.
    Completed(Box<(Attempt, Attempt)>),
    /// Files that may have changed since the run began.
    Changed(Vec<String>),
}

/// The same of a run that ended well.
pub(super) fn late(dir: &Path, attempt: &Attempt) -> Result<Late> {
    let folder = dir.join(FOLDER);
    let path = folder.join(LATE);
    let Some(text) = if_there(&path, std::fs::read_to_string(&path))? else {
        return Ok(Late::Nothing);
    };
    let names: BTreeSet<String> = text
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok())
        .collect();
    let path = folder.join(INPUTS);
    let told = std::fs::read(&path).map_err(Error::io("cannot read", &path))?;
    let told: Told = serde_json::from_slice(&told)
        .map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
    let mut inputs: Vec<(String, Digest)> = Vec::new();
    let mut changed = Vec::new();
    for name in names {
        let path = told.root.join(&name);
        // The time of its inode, which no editor sets back.
        let is_older = |found: std::fs::Metadata| (found.ctime() as f64) < attempt.started_at;
        match Known::of(&path) {
            Ok(known) if path.metadata().is_ok_and(is_older) => inputs.push((name, known.digest)),
            _ => changed.push(name),
        }
    }
    if !changed.is_empty() {
        return Ok(Late::Changed(changed));
    }
    let listed: Vec<String> = inputs
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    let preimage = with_inputs(&attempt.preimage, &inputs);
    let whole = Attempt {
        key: Digest::of(&preimage),
        preimage,
        ..attempt.clone()
    };
    let (is, they) = if listed.len() == 1 {
        ("is", "it")
    } else {
        ("are", "them")
    };
    let evidence = format!(
        "imported, and {is} not among the inputs: {}. Add {they} to config.yaml, `{}: [{}]`: then this run counts, and no other one is made",
        listed.join(", "),
        told.setting,
        listed.join(", ")
    );
    let uncounted = Attempt {
        id: sibling_of(&attempt.id),
        outcome: RunOutcome::Failed {
            class: FailureClass::Input,
            evidence: vec![evidence],
            status: "exit 0, but its inputs are incomplete".into(),
        },
        ..attempt.clone()
    };
    Ok(Late::Completed(Box::new((whole, uncounted))))
}

/// The id of the second record that one run leaves: the same time, another last digit.
fn sibling_of(id: &str) -> String {
    let (rest, last) = id.split_at(id.len().saturating_sub(1));
    let digit = u32::from_str_radix(last, 16).unwrap_or_default() ^ 1;
    format!("{rest}{digit:x}")
}

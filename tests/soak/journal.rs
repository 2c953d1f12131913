//! What really ran, as the trainers themselves say it, in files that tprimat does not know.
//!
//! Each event of each run is a file of its own: no two trainers write to one, so a trainer that is
//! killed while it writes spoils nobody else's event, and its own one lacks the line's end.

use std::{collections::BTreeMap, fs};

use crate::support::Project;

/// Beside the project.
pub const FOLDER: &str = "../journal";

#[derive(Debug, Default)]
pub struct Run {
    /// What it read when it began; `None`: it never said.
    pub began: Option<String>,
    /// What it read when it ended; `None`: it never did.
    pub ended: Option<String>,
}

impl Run {
    /// What it read, where it ended by itself and read the same all the time.
    pub fn read_throughout(&self) -> Option<&str> {
        self.ended
            .as_deref()
            .filter(|ended| self.began.as_deref() == Some(ended))
    }
}

/// By the run's id, which is the attempt's as well.
pub fn read(project: &Project) -> BTreeMap<String, Run> {
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for name in project.names_in(FOLDER) {
        let (id, event) = name.rsplit_once('.').expect("a run's id and an event");
        let text = fs::read_to_string(project.path(FOLDER).join(&name)).unwrap();
        let Some(told) = text.strip_suffix('\n').map(str::to_owned) else {
            continue;
        };
        let run = runs.entry(id.to_owned()).or_default();
        match event {
            "begin" => run.began = Some(told),
            "end" => run.ended = Some(told),
            other => panic!("no trainer writes {other}"),
        }
    }
    runs
}

/// How many clean runs there are of each training.
pub fn clean(runs: &BTreeMap<String, Run>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for told in runs.values().filter_map(Run::read_throughout) {
        *counts.entry(told.to_owned()).or_insert(0) += 1;
    }
    counts
}

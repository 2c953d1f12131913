//! What really ran, as the trainers themselves say it, in a file that tprimat does not know.

use std::{collections::BTreeMap, fs};

use crate::support::Project;

#[derive(Debug, Default)]
pub struct Run {
    /// What it read when it began.
    pub began: String,
    /// What it read when it ended; `None`: it never did.
    pub ended: Option<String>,
}

impl Run {
    /// Ended by itself, and read the same all the time.
    pub fn is_clean(&self) -> bool {
        self.ended.as_ref() == Some(&self.began)
    }
}

/// By the run's id, which is the attempt's as well.
pub fn read(project: &Project) -> BTreeMap<String, Run> {
    let mut runs: BTreeMap<String, Run> = BTreeMap::new();
    for line in fs::read_to_string(project.path("../journal")).unwrap_or_default().lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(event), Some(id), Some(told)) = (words.next(), words.next(), words.next()) else { continue };
        let run = runs.entry(id.to_owned()).or_default();
        match event {
            "begin" => run.began = told.to_owned(),
            _ => run.ended = Some(told.to_owned()),
        }
    }
    runs
}

/// How many clean runs there are of each training.
pub fn clean(runs: &BTreeMap<String, Run>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for run in runs.values().filter(|run| run.is_clean()) {
        *counts.entry(run.began.clone()).or_insert(0) += 1;
    }
    counts
}

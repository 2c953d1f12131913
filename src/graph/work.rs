//! What work a training does, and which earlier one a training is held against.
//!
//! A cell's name is not enough: matrices may use one name for cells of several sequence lengths,
//! and the last run under a name may be another matrix's.

use std::{collections::HashMap, sync::LazyLock};

use crate::{
    cache::{Attempt, Cache, Entry, TaskKind},
    digest::Digest,
    plan::preimage::{self, Change},
    results::settings::work_fields,
};

/// The fields of a job that decide what work it is: those of its contract's workload.
static WORKLOAD: LazyLock<Vec<String>> = LazyLock::new(|| {
    let fields = work_fields().map(|(_, field)| field);
    let mut all: Vec<String> = fields.chain(["model.num_parameters".to_owned()]).collect();
    all.sort();
    all
});

/// Earlier trainings that are compared with a present one at most: those made last.
const MOST: usize = 16;

/// Do two jobs, as their canonical texts, ask for the same work?
#[must_use]
pub fn is_same_work(one: &str, other: &str) -> bool {
    work_differences(one, other).is_empty()
}

/// The fields in which two jobs, as their canonical texts, ask for other work.
#[must_use]
pub fn work_differences(one: &str, other: &str) -> Vec<&'static str> {
    let differs = |field: &&str| preimage::line(one, field) != preimage::line(other, field);
    WORKLOAD
        .iter()
        .map(String::as_str)
        .filter(differs)
        .collect()
}

/// All trainings that a cache has, by name.
#[derive(Debug)]
pub struct Trainings {
    /// Keys by the task's name, in the order in which they were last tried.
    keys: HashMap<String, Vec<Digest>>,
    /// What each attempt's log was read for: the job of recipes that have it in no train key.
    jobs: HashMap<String, Digest>,
}

impl Trainings {
    #[must_use]
    pub fn of(cache: &Cache) -> Self {
        let mut keys: HashMap<String, Vec<Digest>> = HashMap::new();
        for attempt in cache.all_attempts() {
            let keys = keys.entry(attempt.task).or_default();
            keys.retain(|key| *key != attempt.key);
            keys.push(attempt.key);
        }
        let named = |entry: &Entry| {
            let attempt = preimage::line(&entry.preimage, "attempt")?;
            Some((
                attempt.trim_matches('"').to_owned(),
                job_in(&entry.preimage)?,
            ))
        };
        let parses = cache.entries_named(TaskKind::Parse, |_| true);
        Self {
            keys,
            jobs: parses.iter().filter_map(named).collect(),
        }
    }

    /// The earlier training under a task's name that a present one is held against: of those that
    /// do the same work the one that differs least, and of several the last.
    #[must_use]
    pub fn nearest(
        &self,
        cache: &Cache,
        task: &str,
        job: &str,
        changes: impl Fn(&str) -> Vec<Change>,
    ) -> Option<Attempt> {
        let keys = self.keys.get(task)?.iter().rev().take(MOST);
        let attempts = keys.filter_map(|key| cache.attempts(key).into_iter().next());
        let same = attempts.filter(|attempt| {
            let text = self.job(cache, attempt);
            text.is_some_and(|text| is_same_work(&text, job))
        });
        same.min_by_key(|attempt| changes(&attempt.preimage).len())
    }

    /// The job of a training, in its train key or else as its log was read for.
    fn job(&self, cache: &Cache, attempt: &Attempt) -> Option<String> {
        let of = job_in(&attempt.preimage).or_else(|| self.jobs.get(&attempt.id).copied());
        of.and_then(|digest| cache.preimage(&digest))
    }

    /// What changed since an attempt, with the settings that launch files were rendered from in
    /// place of the files.
    #[must_use]
    pub fn with_settings(
        &self,
        cache: &Cache,
        old: &Attempt,
        job: &str,
        mut changes: Vec<Change>,
    ) -> Vec<Change> {
        let is_rendered = |change: &Change| change.field.starts_with("rendered.");
        if !changes.iter().any(is_rendered) || job_in(&old.preimage).is_some() {
            return changes;
        }
        let old = self.job(cache, old).unwrap_or_default();
        let mut settings = if old.is_empty() {
            Vec::new()
        } else {
            preimage::changes(&old, job, &|digest| cache.preimage(digest))
        };
        if !settings.is_empty() {
            changes.retain(|change| !is_rendered(change));
        }
        for change in &mut settings {
            change.field.insert_str(0, "job.");
        }
        changes.extend(settings);
        changes
    }
}

/// The digest of the job that a pre-image names.
#[must_use]
pub fn job_in(preimage: &str) -> Option<Digest> {
    preimage::line(preimage, "job")?
        .trim_matches('"')
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        job::Job,
        logs::Trace,
        results::{Claim, Contract, Tier},
    };

    fn leaves(at: &str, value: &Value, found: &mut Vec<String>) {
        match value.as_object() {
            Some(table) => table.iter().for_each(|(key, below)| {
                let path = format!("{at}/{key}");
                leaves(&path, below, found);
            }),
            None => found.push(at.to_owned()),
        }
    }

    /// What the contract takes for the workload is what tells one work from another.
    #[test]
    fn the_workload_is_that_of_the_contract() {
        let workload = |job: &Value| {
            let job: Job = serde_json::from_value(job.clone()).unwrap();
            let contract = Contract::of(&Trace::default(), &Claim::of(&job));
            let fields = contract.0.iter().filter(|f| f.tier == Tier::Workload);
            let fields = fields.map(|f| (f.field.clone(), f.value.clone()));
            fields.collect::<Vec<_>>()
        };
        let job = json!(Job::default());
        let (mut all, mut decide) = (Vec::new(), Vec::new());
        leaves("", &job, &mut all);
        for path in all {
            let mut other = job.clone();
            let leaf = other.pointer_mut(&path).unwrap();
            *leaf = match &*leaf {
                Value::Bool(b) => json!(!b),
                Value::String(_) if path == "/task" => json!("sft"),
                Value::String(_) if path.ends_with("style") => json!("linear"),
                Value::String(_) => json!("gpt2"),
                Value::Number(n) if n.is_u64() => json!(n.as_u64().unwrap() + 3),
                Value::Number(_) => json!(0.5),
                _ => continue,
            };
            if path != "/vendor" && workload(&other) != workload(&job) {
                decide.push(path[1..].replace('/', "."));
            }
        }
        decide.sort();
        assert_eq!(decide, *WORKLOAD);
    }
}

//! Imported runs over time: measurements of a cell as others published them, and what their files
//! say was changed between them.

use std::collections::BTreeSet;

use super::{Claims, ImportedRun, Imports, OnDamage, runs, summary};
use crate::{
    cache::Cache,
    digest::Digest,
    error::Result,
    figures::{
        self, CellHistory, ChangedSetting, Measurement, PastRun, Statistics, Summary, host_named,
    },
    results::{differences, settings::show},
    sentences::why_not,
};

/// The histories of a cell's imports, a work each, and how many of its runs have no date, so that
/// they are in none.
pub fn history(
    cache: &Cache,
    imports: &Imports,
    cell: &str,
    claims: &Claims,
    statistics: &Statistics,
    is_host: impl Fn(&str) -> bool,
    on_damage: OnDamage,
) -> Result<(Vec<CellHistory>, usize)> {
    let mut dated: Vec<(f64, ImportedRun)> = Vec::new();
    let mut undated = 0;
    for run in runs(cache, imports, cell, claims, on_damage)? {
        match run.result.started_at.filter(|at| at.is_finite()) {
            _ if !is_host(&run.result.host) => {}
            Some(at) => dated.push((at, run)),
            None => undated += 1,
        }
    }
    dated.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut groups: Vec<Vec<ImportedRun>> = Vec::new();
    for (at, run) in dated {
        let goes_on = |group: &&mut Vec<ImportedRun>| {
            let ended_at = group.iter().filter_map(ended_at).fold(f64::MIN, f64::max);
            group[0].result.host == run.result.host
                && configuration(&group[0]) == configuration(&run)
                && figures::is_same_session(ended_at, at)
        };
        match groups.iter_mut().rfind(goes_on) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    let measurements: Vec<Measurement> = groups
        .iter()
        .map(|group| measurement(group, statistics))
        .collect();
    let of_work = |(places, work): (Vec<usize>, Vec<figures::WorkField>)| {
        let mut measurements: Vec<Measurement> =
            places.iter().map(|at| measurements[*at].clone()).collect();
        figures::assess(&mut measurements, |before, now| {
            changes(&groups[places[before]][0], &groups[places[now]][0])
        });
        CellHistory {
            cell: cell.to_owned(),
            imported: true,
            work,
            measurements,
        }
    };
    let works = figures::works(&measurements);
    Ok((works.into_iter().map(of_work).collect(), undated))
}

fn ended_at(run: &ImportedRun) -> Option<f64> {
    run.result.ended_at.or(run.result.started_at)
}

/// Runs with the same text are repeats of each other: the train key where the file has it, else all
/// that the file says of settings and packages.
fn configuration(run: &ImportedRun) -> String {
    run.train_key.clone().unwrap_or_else(|| {
        let fields = run.result.contract.0.iter();
        let fields: Vec<String> = fields.map(|f| format!("{}={}", f.field, f.value)).collect();
        format!("{} {:?}", fields.join(","), run.result.trace.versions)
    })
}

fn measurement(group: &[ImportedRun], statistics: &Statistics) -> Measurement {
    let summary = summary(group, statistics);
    let first = &group[0].result;
    let started_at = first.started_at.unwrap_or_default();
    let past = |run: &ImportedRun| {
        let of = |r: &&figures::RepeatSummary| r.repeat == run.number;
        let repeat = summary.repeats.iter().find(of);
        let why_not = match repeat {
            Some(repeat) => why_not(&repeat.status),
            None => Some("it could not be summarised".to_owned()),
        };
        let started_at = run.result.started_at.unwrap_or_default();
        PastRun {
            attempt: run.recorded.id(),
            repeat: run.number,
            started_at,
            ended_at: ended_at(run).unwrap_or(started_at),
            tokens_per_second_per_gpu: repeat
                .and_then(|r| r.steady.as_ref())
                .map(|steady| steady.tokens_per_second_per_gpu),
            counts: why_not.is_none(),
            why_not,
            is_unread: false,
        }
    };
    Measurement {
        started_at,
        ended_at: group.iter().filter_map(ended_at).fold(started_at, f64::max),
        host: first.host.clone(),
        configuration: Digest::of(configuration(&group[0])).short(),
        generation: 0,
        timer_factor: Summary::timer_factor(&summary),
        since: None,
        counts_now: None,
        runs: group.iter().map(past).collect(),
        contract: summary.contract.clone(),
        matrices: BTreeSet::new(),
        tokens_per_second_per_gpu: summary.tokens_per_second_per_gpu,
    }
}

/// What two files both state, and state differently. What only one of them states is not known to
/// have changed.
fn changes(before: &ImportedRun, now: &ImportedRun) -> Vec<ChangedSetting> {
    let mut found: Vec<ChangedSetting> = Vec::new();
    let mut add = |what: &str, old: String, new: String| {
        found.push(ChangedSetting {
            what: what.to_owned(),
            how: None,
            old: Some(old),
            new: Some(new),
        });
    };
    let (old, new) = (&before.result, &now.result);
    for difference in differences(&old.contract, &new.contract) {
        if difference.is_known() {
            let [a, b] = [&difference.a, &difference.b].map(|value| show(value.as_ref()));
            add(&difference.field, a, b);
        }
    }
    for (name, version) in &old.trace.versions {
        if let Some(later) = new.trace.versions.get(name).filter(|v| *v != version) {
            add(name, version.clone(), later.clone());
        }
    }
    let device = |run: &ImportedRun| run.result.trace.device.clone()?.name;
    if let (Some(a), Some(b)) = (device(before), device(now))
        && a != b
    {
        add("device", a, b);
    }
    if let (Some(a), Some(b)) = (host_named(&old.host), host_named(&new.host))
        && a != b
    {
        add("host", a.to_owned(), b.to_owned());
    }
    if found.is_empty()
        && let (Some(a), Some(b)) = (&before.train_key, &now.train_key)
        && a != b
    {
        found.push(ChangedSetting {
            what: "a file, a package or another input that the results do not name".to_owned(),
            how: Some("changed (the train key differs)".to_owned()),
            old: None,
            new: None,
        });
    }
    found
}

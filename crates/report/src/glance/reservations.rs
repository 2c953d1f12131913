//! The reservations that would change what a reader of a comparison concludes.

use std::collections::BTreeSet;

use tprimat_numbers::figures::{
    Comparison, Difference, NoteKind, apart_words, codes::FEW_PAIRS, level_words,
};
use tprimat_numbers::results::{AttestationStatus, Reason, is_of_model};

use crate::{
    headline::{SpeedVerdict, across, contradicted, headlines},
    notes::notes,
    sweep::line_of_cell,
};

fn not_one_workload(fields: &[&str]) -> String {
    if fields.iter().any(|field| is_of_model(field)) {
        return "Cells of different models are not compared".to_owned();
    }
    format!(
        "Cells of different workloads are not compared (they differ in {})",
        fields.join(", ")
    )
}

/// What would change what a reader concludes, the weightiest first.
pub(super) fn reservations(comparison: &Comparison, named: bool, build: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let weighty = |kind: NoteKind| kind < NoteKind::Differs && kind != NoteKind::Refused;
    // What keeps a cell from having figures is told with the cell.
    let is_told = |text: &str| {
        let mut reasons = comparison
            .absent
            .iter()
            .map(|cell| cell.reason.text.as_str());
        reasons.any(|reason| !reason.is_empty() && text.contains(reason))
    };
    let own = notes(comparison)
        .into_iter()
        .filter(|note| weighty(note.kind) && !is_told(&note.text));
    all.extend(own.map(|note| note.text));
    // First what bears on the verdict that stands above the table.
    let told = headlines(comparison);
    let has_verdict = |h: &&crate::headline::Headline| {
        matches!(
            h.verdict,
            SpeedVerdict::Faster | SpeedVerdict::Slower | SpeedVerdict::NoDifference
        )
    };
    if let Some(first) = told.iter().find(has_verdict) {
        let of_pair = |text: &str| {
            text.contains(&first.a) || first.b.as_ref().is_some_and(|b| text.contains(b))
        };
        all.sort_by_key(|text| !of_pair(text));
    }
    let mut reasons: Vec<(&Reason, usize)> = Vec::new();
    for reason in comparison
        .speedups
        .iter()
        .filter_map(|speedup| speedup.reason.as_ref())
    {
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => reasons.push((reason, 1)),
        }
    }
    for (reason, count) in reasons {
        let whose = if count == comparison.speedups.len() {
            String::new()
        } else {
            format!(" on {count} of {} ratios", comparison.speedups.len())
        };
        let more = if reason.is(FEW_PAIRS) {
            format!("; `{build} --decide 2%` makes more")
        } else {
            String::new()
        };
        all.push(format!("No verdict{whose}: {reason}{more}."));
    }
    if let Some(speedup) = comparison
        .speedups
        .iter()
        .find(|speedup| speedup.apart_seconds.is_some())
    {
        let apart = apart_words(speedup.apart_seconds.unwrap_or_default());
        let (a, b) = (&speedup.a, &speedup.b);
        let mut rows = comparison.rows.iter();
        let is_import = rows.any(|row| [a, b].contains(&&row.cell) && !row.imported.is_empty());
        let anew = match is_import {
            true => String::new(),
            false => format!(
                " `{build} --force=measured --only {a} --only {b}` measures both anew, in turns."
            ),
        };
        all.push(format!(
            "{a} and {b} were {apart}, {}.{anew}",
            level_words()
        ));
    }
    let contradicted = contradicted(comparison);
    let is_known = |d: &&Difference| {
        let mut cells = [&d.cell_a, &d.cell_b].into_iter();
        !cells.any(|cell| contradicted.contains_key(cell.as_str()))
    };
    // A sweep says itself that its points are different workloads.
    let lines = line_of_cell(comparison);
    let is_of_sweep = |d: &&Difference| {
        let line = lines.get(d.cell_a.as_str());
        line.is_some() && line == lines.get(d.cell_b.as_str())
    };
    let refused: BTreeSet<&str> = comparison
        .differences
        .iter()
        .filter(|d| d.refused && !is_of_sweep(d))
        .filter(is_known)
        .map(|d| d.field.field.as_str())
        .collect();
    if !refused.is_empty() && !named {
        let fields: Vec<&str> = refused.into_iter().collect();
        all.push(format!("{}.{}", not_one_workload(&fields), across(&fields)));
    }
    let unattested = || {
        comparison
            .rows
            .iter()
            .filter(|row| row.attestation == AttestationStatus::NotStated)
    };
    let whose = match (unattested().count(), comparison.rows.len()) {
        (0, _) => return all,
        (1, _) => unattested().map(|row| row.cell.clone()).collect(),
        (n, rows) if n == rows => "all cells".to_owned(),
        (n, rows) => format!("{n} of {rows} cells"),
    };
    all.push(format!(
        "No log confirms the workload ({whose}); tokens/s that a log does not print rest on what was asked for (`tprimat help recipes` \
         on `effective`)."
    ));
    all
}

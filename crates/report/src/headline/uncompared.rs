//! The sentences on cells that are compared with none: alone in their group, or refused.

use std::collections::BTreeMap;

use tprimat_numbers::figures::{AbsentCell, Comparison, Difference, Row, dropped_words};
use tprimat_numbers::results::settings::is_in_table;

use super::{
    Headline, SpeedVerdict,
    phrases::{named, short_step_times, unit},
};
use crate::format::number;

/// `others`: there are cells that it may not be compared with.
pub(super) fn alone_sentence(row: &Row, others: bool) -> String {
    let name = named(row);
    if let Some(reason) = row.impossible() {
        return format!(
            "The rate of {name} on {} is impossible: {}.",
            row.model, reason
        );
    }
    let estimate = &row.tokens_per_second_per_gpu;
    let interval = match estimate.ci95 {
        Some([lo, hi]) => format!(" (95 % CI {}–{})", number(lo), number(hi)),
        None => String::new(),
    };
    let why = match others {
        true => "No other cell has a comparable workload",
        false => "There is no other cell to compare it with",
    };
    let rate = number(estimate.value);
    let unit = unit(&[row]);
    let model = match &*row.model {
        "unknown" => "an unknown model",
        known => known,
    };
    let mut parts = vec![format!("{name} trains {model} at {rate} {unit}{interval}")];
    parts.extend(short_step_times(row, "This rate"));
    let dropped = dropped_words(&row.dropped);
    if !dropped.is_empty() {
        parts.push(format!(
            "Besides the runs that count: {}",
            dropped.join(", ")
        ));
    }
    parts.push(why.to_owned());
    format!("{}.", parts.join(". "))
}

/// One sentence a pair, with every field that forbids it.
pub(super) fn refusals(comparison: &Comparison) -> Vec<Headline> {
    let refused: Vec<_> = comparison
        .differences
        .iter()
        .filter(|d| d.refused)
        .collect();
    let pairs = refused.chunk_by(|x, y| (&x.cell_a, &x.cell_b) == (&y.cell_a, &y.cell_b));
    let contradicted = contradicted(comparison);
    let unknown = |a: &str, b: &str| {
        let (cell, (file, claim)) = [a, b]
            .into_iter()
            .find_map(|c| contradicted.get_key_value(c))?;
        Some(format!(
            "{a} and {b} are not compared, because the {file} of {cell} contradicts its {claim}: what it trained is not known."
        ))
    };
    let sentence = |of_pair: &[&Difference]| {
        let fields: Vec<String> = of_pair.iter().map(|d| d.field.words()).collect();
        let names: Vec<&str> = of_pair.iter().map(|d| &*d.field.field).collect();
        let (a, b) = (&*of_pair[0].cell_a, &*of_pair[0].cell_b);
        let text = unknown(a, b).unwrap_or_else(|| {
            let (fields, across) = (fields.join("; "), across(&names));
            format!("{a} and {b} may not be compared, because they differ in {fields}.{across}")
        });
        Headline::of(None, (a, Some(b)), SpeedVerdict::Refused, text)
    };
    pairs.map(sentence).collect()
}

/// Fields that somebody may have reason to compare across.
const CROSSABLE: [&str; 6] = [
    "precision",
    "seq_length",
    "global_batch_size",
    "num_gpus",
    "optimizer",
    "data",
];

/// ` `--across precision` compares them anyway.`; nothing where no field in the way is one to
/// compare across: tokens/s of two models say nothing of each other.
pub(in super::super) fn across(fields: &[&str]) -> String {
    let is_crossable = |field: &&str| CROSSABLE.contains(field) || !is_in_table(field);
    if fields.iter().all(is_crossable) {
        format!(" `--across {}` compares them anyway.", fields.join(","))
    } else {
        String::new()
    }
}

/// Cells none of whose runs counts because a log contradicts what its run is said to be: what it is
/// and what it contradicts. Whatever is declared of them is no fact.
pub(in super::super) fn contradicted(
    comparison: &Comparison,
) -> BTreeMap<&str, (&'static str, &'static str)> {
    let of = |absent: &'_ &AbsentCell| absent.contradicted > 0;
    let claim = |absent: &AbsentCell| {
        if absent.imported.is_empty() {
            ("log", "job")
        } else {
            ("file", "label")
        }
    };
    let absent = comparison.absent.iter().filter(of);
    absent
        .map(|absent| (absent.cell.as_str(), claim(absent)))
        .collect()
}

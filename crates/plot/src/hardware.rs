//! What the cells of a workload ran on, as their logs or the lock state it.

use std::collections::BTreeMap;

use tprimat_figures::Row;

/// The devices of these cells: `NVIDIA H200`. Of several kinds, each with its number of cells, and how
/// many cells do not state theirs; `None` where no cell does.
fn hardware(rows: &[&Row]) -> Option<String> {
    // Their number is among the settings of the workload.
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut unknown = 0;
    for row in rows {
        match &row.device {
            Some(name) => *kinds.entry(name.clone()).or_default() += 1,
            None => unknown += 1,
        }
    }
    if kinds.len() == 1 && unknown == 0 {
        return kinds.into_keys().next();
    }
    let mut parts: Vec<String> = kinds
        .into_iter()
        .map(|(name, count)| format!("{name} ({count} of {} cells)", rows.len()))
        .collect();
    if parts.is_empty() {
        return None;
    }
    if unknown > 0 {
        parts.push(format!("not stated ({unknown} of {} cells)", rows.len()));
    }
    Some(parts.join(", "))
}

/// `; NVIDIA H200`, behind the workload of a title.
#[must_use]
pub fn in_title(rows: &[&Row]) -> String {
    hardware(rows).map_or_else(String::new, |words| format!("; {words}"))
}

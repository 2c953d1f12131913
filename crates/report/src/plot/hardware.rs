//! What the cells of a workload ran on, as their logs or the lock state it.

use std::collections::BTreeSet;

use tprimat_numbers::figures::Row;

/// `; NVIDIA H200`, behind the workload of a title. Nothing where no cell states its device; their number
/// is among the settings of the workload.
#[must_use]
pub fn in_title(rows: &[&Row]) -> String {
    let kinds: BTreeSet<&str> = rows
        .iter()
        .filter_map(|row| row.device.as_deref())
        .collect();
    let mut parts: Vec<&str> = kinds.into_iter().collect();
    if parts.is_empty() {
        return String::new();
    }
    if rows.iter().any(|row| row.device.is_none()) {
        parts.push("not stated");
    }
    format!("; {}", parts.join(", "))
}

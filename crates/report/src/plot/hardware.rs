//! What the cells of a workload ran on, as their logs or the lock state it.

use std::collections::BTreeMap;

use tprimat_numbers::figures::Row;

/// `; NVIDIA H200`, behind the workload of a title. Of several kinds, each with its number of cells,
/// and how many cells do not state theirs; nothing where no cell does.
#[must_use]
pub fn in_title(rows: &[&Row]) -> String {
    let mut kinds: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for row in rows {
        // Their number is among the settings of the workload.
        *kinds.entry(row.device.as_deref()).or_default() += 1;
    }
    let unknown = kinds.remove(&None);
    let mut parts: Vec<String> = match (kinds.len(), unknown) {
        (0, _) => return String::new(),
        (1, None) => kinds
            .keys()
            .flatten()
            .map(|name| (*name).to_owned())
            .collect(),
        _ => {
            let kinds = kinds
                .iter()
                .filter_map(|(name, count)| Some(((*name)?, count)));
            kinds
                .map(|(name, count)| format!("{name} ({count} of {} cells)", rows.len()))
                .collect()
        }
    };
    if let Some(count) = unknown {
        parts.push(format!("not stated ({count} of {} cells)", rows.len()));
    }
    format!("; {}", parts.join(", "))
}

//! What the cells of a workload ran on, as their logs or the lock state it.

use std::collections::BTreeMap;

use tprimat_figures::Row;

/// `NVIDIA H200`; of several kinds each with its number of cells, and how many cells state none.
/// Nothing where no cell states its device.
pub(super) fn hardware(rows: &[&Row]) -> Option<String> {
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
pub(super) fn in_title(rows: &[&Row]) -> String {
    hardware(rows).map_or_else(String::new, |words| format!("; {words}"))
}

#[cfg(test)]
mod tests {
    use tprimat_figures::{Catalogue, CompareSettings, compare};

    use super::*;
    use crate::stand_ins::*;

    #[test]
    fn a_title_names_the_devices_that_are_stated() {
        let said = |devices: &[Option<&str>]| {
            let cells: Vec<_> = devices
                .iter()
                .enumerate()
                .map(|(at, _)| {
                    measured(
                        &format!("nvd/f{at}/llama/single"),
                        &test_job(),
                        &[1.0],
                        None,
                    )
                })
                .collect();
            let mut all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
            for (row, device) in all.rows.iter_mut().zip(devices) {
                row.device = device.map(str::to_owned);
            }
            in_title(&all.rows.iter().collect::<Vec<_>>())
        };
        let h200 = Some("NVIDIA H200");
        assert_eq!(said(&[h200, h200]), "; NVIDIA H200");
        assert_eq!(
            said(&[h200, None]),
            "; NVIDIA H200 (1 of 2 cells), not stated (1 of 2 cells)"
        );
        assert_eq!(said(&[None, None]), "");
    }
}

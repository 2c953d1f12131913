//! In what compared cells ran besides their workload, condensed: what alone can decide a comparison
//! in full, what merely follows from another vendor, platform or framework as a count. The JSON has
//! all.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use tprimat_numbers::figures::{Comparison, EnvironmentDifference};

use super::notes::listed;

/// Harmless differences of a pair that are told.
const TOLD: usize = 6;

pub(super) struct EnvironmentNote {
    pub is_dangerous: bool,
    pub text: String,
}

/// A sentence for all cells that differ from one baseline in the same way; dangerous ones first.
pub(super) fn environments(comparison: &Comparison) -> Vec<EnvironmentNote> {
    let mut ways: IndexMap<(&str, String), (bool, Vec<&str>)> = IndexMap::new();
    for pair in pairs(comparison) {
        let is_dangerous = pair.iter().any(|d| d.dangerous.is_some());
        let way = ways
            .entry((&pair[0].cell_b, words(pair)))
            .or_insert((is_dangerous, Vec::new()));
        way.1.push(&pair[0].cell_a);
    }
    let mut ways: Vec<_> = ways
        .into_iter()
        .map(|((base, words), (d, cells))| (d, base, words, cells))
        .collect();
    ways.sort_by_key(|(is_dangerous, ..)| !is_dangerous);
    let sentence =
        |(is_dangerous, base, words, cells): (bool, &str, String, Vec<&str>)| EnvironmentNote {
            is_dangerous,
            text: format!("{} against {base}: {words}.", listed(&cells, &[])),
        };
    ways.into_iter().map(sentence).collect()
}

/// `NCCL_DEBUG: INFO, not WARN (collectives write logs while they run); torch: 2.9, not 2.8; 12
/// that follow from another vendor`
pub(super) fn words(of_pair: &[EnvironmentDifference]) -> String {
    let (own, following): (Vec<_>, Vec<_>) = of_pair
        .iter()
        .partition(|d| d.dangerous.is_some() || d.follows.is_none());
    let (dangerous, own): (Vec<_>, Vec<_>) = own.into_iter().partition(|d| d.dangerous.is_some());
    let mut parts: Vec<String> = dangerous
        .iter()
        .chain(own.iter().take(TOLD))
        .map(|d| d.words())
        .collect();
    if own.len() > TOLD {
        parts.push(format!("{} more", own.len() - TOLD));
    }
    parts.extend(following_words(&following));
    parts.join("; ")
}

/// `12 that follow from another platform, vendor`
pub(super) fn following_words(following: &[&EnvironmentDifference]) -> Option<String> {
    let from: BTreeSet<&str> = following
        .iter()
        .filter_map(|d| d.follows.as_deref())
        .collect();
    let from = from.into_iter().collect::<Vec<_>>().join(", ");
    let follow = if following.len() == 1 {
        "follows"
    } else {
        "follow"
    };
    (!following.is_empty())
        .then(|| format!("{} that {follow} from another {from}", following.len()))
}

fn pairs(comparison: &Comparison) -> impl Iterator<Item = &[EnvironmentDifference]> {
    comparison
        .environment
        .chunk_by(|a, b| (&a.cell_a, &a.cell_b) == (&b.cell_a, &b.cell_b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(
        name: &str,
        dangerous: Option<&str>,
        follows: Option<&str>,
    ) -> EnvironmentDifference {
        EnvironmentDifference {
            cell_a: "a".into(),
            cell_b: "b".into(),
            kind: tprimat_numbers::figures::EnvironmentKind::Variable,
            name: name.into(),
            a: Some("1".into()),
            b: None,
            dangerous: dangerous.map(Into::into),
            follows: follows.map(Into::into),
        }
    }

    #[test]
    fn dangerous_ones_are_told_in_full_and_following_ones_counted() {
        let mut all: Vec<_> = (0..9)
            .map(|i| difference(&format!("X{i}"), None, None))
            .collect();
        all.extend((0..8).map(|i| difference(&format!("D{i}"), Some("why"), None)));
        all.extend((0..5).map(|i| difference(&format!("F{i}"), None, Some("vendor"))));
        all.push(difference("G", None, Some("framework")));
        let text = words(&all);
        for i in 0..8 {
            assert!(
                text.contains(&format!("D{i}: 1 instead of unset (why)")),
                "{text}"
            );
        }
        assert!(
            text.starts_with("D0") && text.contains("X5: 1") && !text.contains("X6"),
            "{text}"
        );
        assert!(
            text.ends_with("; 3 more; 6 that follow from another framework, vendor"),
            "{text}"
        );
    }
}

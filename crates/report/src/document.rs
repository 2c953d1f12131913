//! What the whole comparison says, in the order in which it is read: the table of a terminal and the
//! comment on a pull request say the same, each in its own marks.

use tprimat_figures::{Comparison, Judged, NoteKind, Row};

use super::{
    cost,
    environment::{EnvironmentNote, environments},
    headline::{self, Headline, by_group, leading, ranking},
    notes::{NoteLine, notes, steady_state},
    sheet::Sheet,
    table::{group_title, sheet},
};

pub(super) struct Document<'a> {
    /// Pairs that may not be compared: the first, and how many more there are.
    pub refused: Vec<&'a Headline>,
    pub refused_untold: usize,
    pub groups: Vec<Section<'a>>,
    pub environments: Vec<EnvironmentNote>,
    pub notes: Vec<NoteLine>,
}

/// The cells of a workload.
pub(super) struct Section<'a> {
    pub title: String,
    pub ranking: Option<String>,
    pub leading: Vec<&'a Headline>,
    /// Counts the sentences that are not among the leading ones.
    pub more: Option<String>,
    pub figures: Sheet,
    /// How the measured part of the runs was found.
    pub steady_state: Vec<String>,
    pub cost: Option<Sheet>,
}

impl<'a> Document<'a> {
    /// `told` are the headlines of this comparison.
    pub fn of(comparison: &Comparison, judged: &Judged, told: &'a [Headline]) -> Self {
        let (refused, refused_untold) = headline::refused(told);
        let speedups = comparison.speedups_by_cell();
        let mut groups = Vec::with_capacity(comparison.groups.len());
        let told_of = by_group(comparison, told);
        for ((group, rows), told) in comparison
            .groups
            .iter()
            .zip(comparison.rows_by_group())
            .zip(&told_of)
        {
            let rows: Vec<&Row> = rows.into_iter().map(|(_, row)| row).collect();
            groups.push(Section {
                title: group_title(group, &rows),
                ranking: ranking(comparison, judged, group, &rows),
                leading: leading(told),
                more: headline::more(told),
                figures: sheet(&rows, &group.baseline, &speedups),
                steady_state: steady_state(&rows),
                cost: cost::sheet(&rows),
            });
        }
        // Environments have a section of their own, and what is refused stands first, if there was
        // room.
        let mut notes = notes(comparison);
        notes.retain(|note| match note.kind {
            NoteKind::Environment => false,
            NoteKind::Refused => refused_untold > 0,
            _ => true,
        });
        Self {
            refused,
            refused_untold,
            groups,
            environments: environments(comparison),
            notes,
        }
    }
}

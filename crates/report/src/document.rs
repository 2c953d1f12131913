//! What the whole comparison says, in the order in which it is read: the table of a terminal and the
//! comment on a pull request are written from it, each in its own marks.

use tprimat_numbers::figures::{Comparison, Judged, NoteKind, sweeps};

use super::{
    columns::{self, Of, Place, Table, crossed, ink_of, rows_of},
    hardware::in_title,
    headline::{self, Headline, by_group, headlines},
    mark,
    notes::{notes, shortened, steady_state},
    paint::{Ink, Page},
    sheet::{Sheet, Text},
    sweep::{sweep_tables, tell_sweep},
};

/// Where a comparison is written: each medium has its own marks for the same parts.
pub(super) trait Medium {
    fn title(&mut self, text: &str);
    /// What everybody is to read.
    fn sentence(&mut self, ink: Ink, text: &str);
    /// How something was found or is meant.
    fn remark(&mut self, text: &str);
    fn item(&mut self, ink: Ink, text: &str);
    fn sheet(&mut self, sheet: &Sheet);
    /// Details under a title of their own.
    fn section(&mut self, title: &str, write: impl FnOnce(&mut Self));
    /// Ends what belongs together.
    fn end(&mut self);
}

impl Medium for Text<'_> {
    fn title(&mut self, text: &str) {
        self.inked(Ink::Strong, text);
    }
    fn sentence(&mut self, ink: Ink, text: &str) {
        self.inked(ink, text);
    }
    fn remark(&mut self, text: &str) {
        self.say(text);
    }
    fn item(&mut self, ink: Ink, text: &str) {
        Text::item(self, "- ", ink, text);
    }
    fn sheet(&mut self, sheet: &Sheet) {
        Text::sheet(self, sheet);
    }
    fn section(&mut self, title: &str, write: impl FnOnce(&mut Self)) {
        self.say(&format!("{title}:"));
        write(self);
        self.gap();
    }
    fn end(&mut self) {
        self.gap();
    }
}

/// The whole comparison, in lines of at most the page's width as far as words allow.
#[must_use]
pub fn table(comparison: &Comparison, page: &Page) -> String {
    let mut text = Text::new(page);
    tell(comparison, page.most_notes, &mut text);
    text.finish()
}

/// The cells of a workload.
pub(super) struct Section<'a> {
    pub model: &'a str,
    /// What the cells have in common besides: the workload, and their devices.
    pub workload: String,
    /// The fastest first.
    pub rows: Vec<Of<'a>>,
    /// The weightiest first.
    pub told: Vec<&'a Headline>,
    pub figures: Table,
    pub metrics: Table,
    /// How the measured part of the runs was found.
    pub steady_state: Vec<String>,
}

/// A section for each workload, of the comparison's first rows. `told` are the headlines of this
/// comparison.
pub(super) fn sections<'a>(
    comparison: &'a Comparison,
    told: &'a [Headline],
    (place, most): (Place, usize),
) -> Vec<Section<'a>> {
    let of_groups = Of::by_group(comparison)
        .into_iter()
        .zip(by_group(comparison, told));
    let section = |(mut rows, told): (Vec<Of<'a>>, Vec<&'a Headline>)| {
        rows.retain(|of| of.at < most);
        let group = rows.first()?.group;
        let in_order = rows_of(&rows);
        let strict = if group.identical_config {
            ", identical configuration"
        } else {
            ""
        };
        let workload = format!("{}{strict}{}", group.workload.clone(), in_title(&in_order));
        let steady_state = steady_state(&in_order);
        rows.sort_by(|a, b| b.speed().total_cmp(&a.speed()));
        Some(Section {
            model: &group.model,
            workload,
            told,
            figures: columns::figures(&rows, place, "against the baseline"),
            metrics: columns::metrics(&rows, place),
            steady_state,
            rows,
        })
    };
    of_groups.filter_map(section).collect()
}

/// Sentences of a workload that are told before its table.
pub(super) const LEADING: usize = 3;

pub(super) fn tell(comparison: &Comparison, most_notes: Option<usize>, out: &mut impl Medium) {
    let told = headlines(comparison);
    let (refused, untold) = headline::refused(&told);
    for headline in &refused {
        out.sentence(Ink::Bad, &headline.text);
    }
    if untold > 0 {
        out.sentence(
            Ink::Bad,
            &format!("And {untold} more that may not be compared: see the notes."),
        );
    }
    if !refused.is_empty() {
        out.end();
    }
    for table in sweep_tables(
        comparison,
        &sweeps(comparison, &Judged::of_comparison(comparison)),
    ) {
        tell_sweep(&table, out);
    }
    for section in sections(comparison, &told, (Place::Table, usize::MAX)) {
        tell_section(&section, out);
    }
    if comparison.groups.is_empty() {
        out.remark("No cell has figures.");
        out.end();
    }
    if !comparison.absent.is_empty() {
        out.section(
            &format!("Cells without figures ({})", comparison.absent.len()),
            |out| {
                for cell in &comparison.absent {
                    let why = cell.told();
                    let text = format!("{}{}: {why}", cell.cell, mark(&cell.imported));
                    out.item(Ink::of_state(cell.state), &text);
                }
            },
        );
    }
    // What is refused stands first, if there was room.
    let mut notes = notes(comparison);
    notes.retain(|note| note.kind != NoteKind::Refused || untold > 0);
    if notes.is_empty() {
        return;
    }
    out.section(&format!("Notes ({})", notes.len()), |out| {
        let (notes, left_out) = shortened(notes, most_notes);
        for note in notes {
            let ink = if note.kind < NoteKind::Failed {
                Ink::Bad
            } else {
                Ink::Plain
            };
            out.item(ink, &note.text);
        }
        if left_out > 0 {
            out.remark(&format!("and {left_out} more remarks: --json has all."));
        }
    });
}

fn tell_section(section: &Section<'_>, out: &mut impl Medium) {
    out.title(&format!("{}: {}", section.model, section.workload));
    for headline in section.told.iter().take(LEADING) {
        out.sentence(ink_of(headline.verdict), &headline.text);
    }
    if section.told.len() > LEADING {
        out.remark(&format!(
            "And {} more, in the table.",
            section.told.len() - LEADING
        ));
    }
    let name = |of: &Of<'_>| format!("{}{}", of.row.cell, mark(&of.row.imported));
    let names = section.rows.iter().map(name);
    out.sheet(&Sheet::of("cell", names, &section.figures));
    section
        .steady_state
        .iter()
        .for_each(|line| out.remark(line));
    if !section.metrics.heads.is_empty() {
        // Figures across workloads say so wherever they stand side by side: each part of the table has
        // the names.
        let names = section
            .rows
            .iter()
            .map(|of| [vec![name(of)], crossed(of.row)].concat().join("; "));
        let sheet = Sheet::of("cell", names, &section.metrics);
        out.section("Cost and efficiency", |out| out.sheet(&sheet));
    }
    out.end();
}

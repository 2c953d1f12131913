//! How a cell is named in a picture: by what sets it apart from the others of its group, and what
//! it does differently from its baseline.

use plotters::style::RGBColor;
use tprimat_figures::{AbsentCell, Comparison, Row};

use super::{
    canvas::{Anchor, Canvas},
    chart::WIDEST_TAG,
    hardware::in_title,
    short_names::{short_names, variants},
    style::{FAINT, INK, LINE, MARGIN, Pen, SMALL, TEXT, WIDTH, colour_of},
    text::{clean, elide, elide_names, width_of, wrap},
};
use crate::format::mark;

/// A label that is longer than this is shortened in its middle.
const LABEL: i32 = 900;
/// Room for a piece of a line left of a name.
const SAMPLE: i32 = 44;
/// Lines of labels below a name.
const LABEL_LINES: usize = 6;
/// Cells without figures that are listed one by one.
const LISTED: usize = 60;

/// The names of all rows of a chart, laid out for one width.
pub struct Names {
    left: i32,
    room: i32,
    named: Vec<Named>,
}

struct Named {
    name: String,
    /// For the end of a line.
    tag: String,
    labels: Vec<String>,
    colour: RGBColor,
    variant: usize,
}

/// The widest name left of a bar; a longer one is shortened.
const GUTTER: i32 = 400;

impl Names {
    /// For bars, with the names left of them.
    pub fn wide(comparison: &Comparison) -> Self {
        Self::new(comparison, MARGIN + 6, WIDTH - 2 * MARGIN - GUTTER - 24)
    }

    /// Right of a piece of their line, as [`Names::draw_with_sample`] puts them.
    pub fn beside_samples(comparison: &Comparison) -> Self {
        Self::new(comparison, MARGIN + SAMPLE, WIDTH - 2 * MARGIN - SAMPLE)
    }

    /// From `left` on, in `room` pixels.
    pub fn new(comparison: &Comparison, left: i32, room: i32) -> Self {
        let mut names = vec![String::new(); comparison.rows.len()];
        let mut variant = vec![0; comparison.rows.len()];
        for (group, rows) in comparison.groups.iter().zip(comparison.rows_by_group()) {
            let of: Vec<&Row> = rows.iter().map(|(_, row)| *row).collect();
            let told = short_names(&of)
                .into_iter()
                .zip(variants(&of, &group.baseline));
            for ((index, _), (name, of)) in rows.iter().zip(told) {
                names[*index] = clean(&name);
                variant[*index] = of;
            }
        }
        let baseline: Vec<&str> = comparison
            .rows
            .iter()
            .map(|row| baseline_mark(comparison, row))
            .collect();
        let short = elide_names(&names, TEXT, |i| room - width_of(baseline[i], TEXT));
        let tags = elide_names(&names, SMALL, |i| WIDEST_TAG - width_of(baseline[i], SMALL));
        let named = comparison
            .rows
            .iter()
            .zip(short.into_iter().zip(tags))
            .zip(baseline.iter().zip(variant))
            .map(|((row, (name, tag)), (baseline, variant))| {
                let labels: Vec<String> = row
                    .labels
                    .iter()
                    .map(|label| clean(&label.text))
                    .filter(|label| !is_in_name(row, label))
                    .map(|label| elide(&label, SMALL, room.min(LABEL), 0.5))
                    .collect();
                let mut labels = wrap(&labels.join("; "), SMALL, room - 16);
                if labels.len() > LABEL_LINES {
                    labels.truncate(LABEL_LINES - 1);
                    labels.push("… and more: report.html".to_owned());
                }
                Named {
                    name: format!("{name}{baseline}"),
                    tag: format!("{tag}{baseline}"),
                    labels,
                    colour: colour_of(&row.framework),
                    variant,
                }
            });
        Self {
            left,
            room,
            named: named.collect(),
        }
    }

    /// Pixels that a cell's name and labels take.
    pub fn height(&self, index: usize) -> i32 {
        TEXT + 5 + self.labels_height(index)
    }

    pub fn labels_height(&self, index: usize) -> i32 {
        self.named[index].labels.len() as i32 * (SMALL + 4)
    }

    /// The colour of its framework.
    pub fn colour(&self, index: usize) -> RGBColor {
        self.named[index].colour
    }

    /// Which of the ways it is in which cells of one framework differ; see [`variants`].
    pub fn variant(&self, index: usize) -> usize {
        self.named[index].variant
    }

    /// How its line is drawn where it has this mark, and what stands at its end.
    pub fn pen(&self, index: usize, mark: usize) -> Pen {
        let colour = self.colour(index);
        Pen { colour, mark }
    }

    pub fn tag(&self, index: usize) -> String {
        self.named[index].tag.clone()
    }

    /// Room that the names of these cells need left of their bars.
    pub fn gutter(&self, indices: impl Iterator<Item = usize>) -> i32 {
        let widths = indices.map(|index| width_of(&self.named[index].name, TEXT));
        widths.max().unwrap_or(0).min(GUTTER) + 12
    }

    /// The names left of bars, no two of them alike, where `of` are all the cells of a panel.
    pub fn in_gutter(&self, of: &[usize]) -> Vec<String> {
        let names: Vec<String> = of.iter().map(|i| self.named[*i].name.clone()).collect();
        elide_names(&names, TEXT, |_| GUTTER)
    }

    pub fn draw(&self, canvas: &mut Canvas, index: usize) {
        self.draw_at(canvas, index, self.left);
    }

    pub fn draw_at(&self, canvas: &mut Canvas, index: usize, left: i32) {
        let named = &self.named[index];
        canvas.label(&named.name, (left, canvas.top), TEXT, INK, Anchor::Left);
        canvas.top += TEXT + 5;
        self.draw_labels(canvas, index, left);
    }

    pub fn draw_labels(&self, canvas: &mut Canvas, index: usize, left: i32) {
        for line in &self.named[index].labels {
            canvas.label(line, (left + 16, canvas.top), SMALL, FAINT, Anchor::Left);
            canvas.top += SMALL + 4;
        }
    }

    /// What a line of this style looks like, and the name of its cell.
    pub fn draw_with_sample(&self, canvas: &mut Canvas, index: usize, mark: usize) {
        canvas.sample(self.pen(index, mark), (MARGIN, canvas.top + 7));
        self.draw(canvas, index);
    }

    /// Words below such a name.
    pub fn draw_below(&self, canvas: &mut Canvas, words: &str) {
        canvas.lines_of(words, self.left + 16, self.room - 16, SMALL, FAINT);
    }
}

/// Is this difference from the baseline one that the name tells, as `(compiled)`?
fn is_in_name(row: &Row, label: &str) -> bool {
    let field = label.split_once(": ").map(|(field, _)| field);
    field.is_some_and(|field| row.axes.contains_key(field))
}

/// What stands behind the name of a group's baseline.
fn baseline_mark(comparison: &Comparison, row: &Row) -> &'static str {
    let is_baseline = comparison
        .groups
        .get(row.group)
        .is_some_and(|g| g.cells.len() > 1 && g.baseline == row.cell);
    if is_baseline { " (baseline)" } else { "" }
}

/// `llama-3.1-8b: sequence 8192, global batch 128, 8 devices; NVIDIA H200`
pub fn group_heading(comparison: &Comparison, index: usize) -> String {
    let group = &comparison.groups[index];
    let rows = comparison.rows.iter().filter(|row| row.group == index);
    let rows: Vec<&Row> = rows.collect();
    let strict = if group.identical_config {
        ", identical configuration"
    } else {
        ""
    };
    format!(
        "{}: {}{strict}{}",
        group.model,
        group.workload,
        in_title(&rows)
    )
}

/// Cells that no panel can show, with the reason.
pub fn absent(canvas: &mut Canvas, comparison: &Comparison) {
    if comparison.absent.is_empty() {
        return;
    }
    canvas.top += 4;
    canvas.line(
        vec![(MARGIN, canvas.top), (WIDTH - MARGIN, canvas.top)],
        LINE,
        1,
    );
    canvas.heading("Cells without figures");
    let (told, more) = comparison
        .absent
        .split_at(comparison.absent.len().min(LISTED));
    let names: Vec<String> = told.iter().map(|cell| clean(&cell.cell)).collect();
    for (cell, name) in told.iter().zip(elide_names(&names, TEXT, |_| 800)) {
        let line = format!("{name}{}: {}", mark(&cell.imported), why(cell));
        canvas.fit(&line, (MARGIN, canvas.top), WIDTH - 2 * MARGIN, TEXT, FAINT);
        canvas.top += TEXT + 6;
    }
    if !more.is_empty() {
        canvas.paragraph(&format!("and {} more", more.len()), TEXT, FAINT);
    }
}

fn why(cell: &AbsentCell) -> String {
    cell.told()
}

/// The same in a line, where another picture has the list.
pub fn count_absent(canvas: &mut Canvas, comparison: &Comparison) {
    let words = match comparison.absent.len() {
        0 => return,
        1 => "1 cell without figures is not shown".to_owned(),
        n => format!("{n} cells without figures are not shown"),
    };
    canvas.top += 4;
    canvas.paragraph(
        &format!("{words}; the overview names the reasons."),
        SMALL,
        FAINT,
    );
}

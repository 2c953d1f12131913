//! How a cell is named in a picture: its number, its name, and what it does differently from its baseline.

use tprimat_figures::{AbsentCell, Comparison, Group, Row};

use super::{
    canvas::{Anchor, Canvas},
    style::{FAINT, INK, LINE, MARGIN, SMALL, TEXT, WIDTH},
    text::{clean, elide, elide_names, width_of, wrap},
};
use crate::table::mark;

/// A label that is longer than this is shortened in its middle.
const LABEL: i32 = 900;
/// Room for a piece of a line left of a name.
const SAMPLE: i32 = 44;
/// Lines of labels below a name.
const LABEL_LINES: usize = 6;
/// Cells without figures that are listed one by one.
const LISTED: usize = 60;

/// Of all rows, for one width.
pub struct Names {
    left: i32,
    room: i32,
    named: Vec<Named>,
}

struct Named {
    name: String,
    labels: Vec<String>,
}

impl Names {
    pub fn wide(comparison: &Comparison) -> Self {
        Self::new(comparison, MARGIN + 6, WIDTH - 2 * MARGIN - 12)
    }

    /// Right of a piece of their line, as [`Names::draw_with_sample`] puts them.
    pub fn beside_samples(comparison: &Comparison) -> Self {
        Self::new(comparison, MARGIN + SAMPLE, WIDTH - 2 * MARGIN - SAMPLE)
    }

    /// From `left` on, in `room` pixels.
    pub fn new(comparison: &Comparison, left: i32, room: i32) -> Self {
        let around: Vec<(String, String)> =
            comparison.rows.iter().enumerate().map(|(i, row)| around(comparison, i, row)).collect();
        let names: Vec<String> = comparison.rows.iter().map(|row| clean(&row.cell)).collect();
        let left_for = |i: usize| room - width_of(&around[i].0, TEXT) - width_of(&around[i].1, TEXT);
        let short = elide_names(&names, TEXT, left_for);
        let named = comparison.rows.iter().zip(short).zip(&around).map(|((row, name), (before, after))| {
            let labels: Vec<String> =
                row.labels.iter().map(|label| elide(&clean(label), SMALL, room.min(LABEL), 0.5)).collect();
            let mut labels = wrap(&labels.join("; "), SMALL, room - 16);
            if labels.len() > LABEL_LINES {
                labels.truncate(LABEL_LINES - 1);
                labels.push("… and more: report.html".to_owned());
            }
            Named { name: format!("{before}{name}{after}"), labels }
        });
        Self { left, room, named: named.collect() }
    }

    /// Pixels that a cell's name and labels take.
    pub fn height(&self, index: usize) -> i32 {
        TEXT + 5 + self.named[index].labels.len() as i32 * (SMALL + 4)
    }

    pub fn draw(&self, canvas: &mut Canvas, index: usize) {
        self.draw_at(canvas, index, self.left);
    }

    pub fn draw_at(&self, canvas: &mut Canvas, index: usize, left: i32) {
        let named = &self.named[index];
        canvas.label(&named.name, (left, canvas.top), TEXT, INK, Anchor::Left);
        canvas.top += TEXT + 5;
        for line in &named.labels {
            canvas.label(line, (left + 16, canvas.top), SMALL, FAINT, Anchor::Left);
            canvas.top += SMALL + 4;
        }
    }

    /// What a line of this style looks like, and the name of its cell.
    pub fn draw_with_sample(&self, canvas: &mut Canvas, index: usize, style: usize) {
        canvas.sample(style, (MARGIN, canvas.top + 7));
        self.draw(canvas, index);
    }

    /// Words below such a name.
    pub fn draw_below(&self, canvas: &mut Canvas, words: &str) {
        canvas.lines_of(words, self.left + 16, self.room - 16, SMALL, FAINT);
    }

    pub fn reason_lines(&self, reason: &str) -> i32 {
        wrap(&clean(reason), SMALL, self.room).len() as i32
    }

    pub fn draw_reason(&self, canvas: &mut Canvas, reason: &str) {
        canvas.lines_of(reason, self.left, self.room, SMALL, FAINT);
    }
}

/// What stands before and behind a name.
fn around(comparison: &Comparison, index: usize, row: &Row) -> (String, String) {
    let is_baseline = comparison.groups.get(row.group).is_some_and(|g| g.cells.len() > 1 && g.baseline == row.cell);
    let baseline = if is_baseline { " (baseline)" } else { "" };
    (format!("{}  ", index + 1), format!("{}{baseline}", mark(&row.imported)))
}

/// `llama-3.1-8b: sequence 8192, global batch 128, 8 devices`
pub fn group_heading(group: &Group) -> String {
    let strict = if group.identical_config { ", identical configuration" } else { "" };
    format!("{}: {}{strict}", group.model, group.workload)
}

/// Cells that no panel can show, with the reason.
pub fn absent(canvas: &mut Canvas, comparison: &Comparison) {
    if comparison.absent.is_empty() {
        return;
    }
    canvas.top += 4;
    canvas.line(vec![(MARGIN, canvas.top), (WIDTH - MARGIN, canvas.top)], LINE, 1);
    canvas.heading("Cells without figures");
    let (told, more) = comparison.absent.split_at(comparison.absent.len().min(LISTED));
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
    format!("{}, {}", cell.state, cell.reason)
}

/// The same in a line, where another picture has the list.
pub fn count_absent(canvas: &mut Canvas, comparison: &Comparison) {
    let words = match comparison.absent.len() {
        0 => return,
        1 => "1 cell without figures is not shown".to_owned(),
        n => format!("{n} cells without figures are not shown"),
    };
    canvas.top += 4;
    canvas.paragraph(&format!("{words}; the overview names the reasons."), SMALL, FAINT);
}

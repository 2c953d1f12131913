//! Which cells the pictures show, in which order and by which names: all of them, or of many as
//! many as a reader can still take in. Every picture of a comparison shows the same ones.

use std::sync::OnceLock;

use plotters::style::RGBColor;
use tprimat_numbers::figures::{Comparison, Group, Judged, Row, swept_groups};

use super::{
    canvas::{Anchor, Canvas, LINE_MARKS},
    hardware::in_title,
    lines::WIDEST_TAG,
    short_names::short_names,
    style::{FAINT, FULL, HALF, INK, LINE, MARGIN, SERIES, SMALL, TEXT, WIDTH, colour_of},
    text::{clean, elide, elide_names, width_of, wrap},
};
use crate::plot::format::mark;

/// Cells of a picture. The tallest one, step times, then has 30 lines of panels.
const MOST_CELLS: usize = 60;
/// Workloads of a picture; each has panels of its own.
const MOST_GROUPS: usize = 16;
/// Cells without figures that are listed one by one.
const LISTED: usize = 60;
/// The widest name left of a bar; a longer one is shortened.
pub const GUTTER: i32 = 400;
/// The widest name or label elsewhere.
const WIDEST: i32 = HALF - 12;
/// Room for a piece of a line left of a name.
const SAMPLE: i32 = 44;
/// Lines of labels below a name.
const LABEL_LINES: usize = 6;
const BASELINE: &str = " (baseline)";

/// A comparison as the pictures show it.
pub struct Shown<'a> {
    /// Every cell, as the comparison has it.
    pub all: &'a Comparison,
    pub workloads: Vec<Workload<'a>>,
    /// What is not shown and where it is, for the head of each picture.
    said: String,
    judged: OnceLock<Judged>,
}

/// A group of cells that may share an axis.
pub struct Workload<'a> {
    pub group: &'a Group,
    /// Is it a point of a sweep over workloads? A panel for each of those would compare nothing.
    pub is_swept: bool,
    /// The fastest first.
    pub cells: Vec<Cell<'a>>,
}

/// A cell and how it is named: by what sets it apart from the others of its workload, and what it
/// does differently from its baseline.
pub struct Cell<'a> {
    pub row: &'a Row,
    pub name: String,
    /// Left of bars.
    pub short: String,
    /// At the end of a line.
    pub tag: String,
    labels: String,
    /// The colour of its framework; of cells of a single one, its own.
    pub colour: RGBColor,
}

impl<'a> Shown<'a> {
    /// All cells, where there are few. Of many: the workloads with the most cells, and of each the
    /// baseline, then the fastest and the slowest in turn.
    pub fn of(all: &'a Comparison) -> Self {
        let (cells, groups) = (all.rows.len(), all.groups.len());
        let mut members: Vec<(usize, Vec<&Row>)> = (0..groups).map(|i| (i, Vec::new())).collect();
        all.rows
            .iter()
            .for_each(|row| members[row.group].1.push(row));
        let mut said = String::new();
        if cells > MOST_CELLS || groups > MOST_GROUPS {
            // Stable: of workloads with as many cells, the first ones of the matrix.
            members.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.len()));
            members.truncate(MOST_GROUPS);
            members.sort_unstable_by_key(|(group, _)| *group);
            let kept = select(all, &mut members);
            let of_workloads = match groups {
                _ if groups > MOST_GROUPS => {
                    format!("{MOST_GROUPS} of {groups} workloads, those with the most cells")
                }
                1 => "the workload".to_owned(),
                n => format!("all {n} workloads"),
            };
            said = format!(
                " This picture shows {kept} of {cells} cells from {of_workloads}: of each workload the baseline, the fastest and \
                 the slowest. The tables of report.html and compare.csv have every cell."
            );
        }
        let swept = swept_groups(all, |sweep| !sweep.fields.is_empty());
        let colour = |row: &Row| {
            let place = all.rows.iter().position(|other| other.cell == row.cell);
            match all
                .rows
                .iter()
                .all(|other| other.framework == row.framework)
            {
                true => SERIES[place.unwrap_or_default() % SERIES.len()],
                false => colour_of(&row.framework),
            }
        };
        let workload = |(group, mut rows): (usize, Vec<&'a Row>)| {
            // Stable: matrix order among equals.
            rows.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
            Workload {
                group: &all.groups[group],
                is_swept: swept.contains(&group),
                cells: cells_of(&rows, &all.groups[group], &colour),
            }
        };
        Self {
            all,
            workloads: members.into_iter().map(workload).collect(),
            said,
            judged: OnceLock::new(),
        }
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell<'a>> {
        self.workloads.iter().flat_map(|workload| &workload.cells)
    }

    pub fn rows(&self) -> impl Iterator<Item = &'a Row> {
        self.cells().map(|cell| cell.row)
    }

    /// Workloads that have bars; points of a sweep have none.
    pub fn bar_workloads(&self) -> usize {
        self.workloads.iter().filter(|one| !one.is_swept).count()
    }

    /// The verdicts on all cells; the pictures share them, since a long sweep has many.
    pub fn judged(&self) -> &Judged {
        self.judged.get_or_init(|| Judged::of_comparison(self.all))
    }

    /// Begins a picture: its title, what a reader must know of all panels, and what is not shown.
    /// `panels`: how many workloads have some.
    pub fn titled(&self, title: &str, subtitle: &str, panels: usize) -> Canvas {
        let apart = match panels {
            0 | 1 => "",
            _ => " Panels are different workloads: do not compare across them.",
        };
        Canvas::titled(title, &format!("{subtitle}{apart}{}", self.said))
    }

    /// Why there is no picture; the cells that are not shown might have had one.
    pub fn reason(&self, why: String) -> String {
        if self.said.is_empty() {
            why
        } else {
            let shown = self.cells().count();
            format!("{why}, in the {shown} cells that pictures show")
        }
    }

    /// Cells that no panel can show, with the reason.
    pub fn list_absent(&self, canvas: &mut Canvas) {
        let absent = &self.all.absent;
        if absent.is_empty() {
            return;
        }
        canvas.top += 4;
        let line = vec![(MARGIN, canvas.top), (WIDTH - MARGIN, canvas.top)];
        canvas.line(line, LINE, 1);
        canvas.heading("Cells without figures");
        let names: Vec<String> = absent.iter().take(LISTED).map(|a| clean(&a.cell)).collect();
        for (cell, name) in absent.iter().zip(elide_names(&names, TEXT, |_| 800)) {
            let why = cell.told();
            let line = format!("{name}{}: {why}", mark(&cell.imported));
            canvas.fit(&line, (MARGIN, canvas.top), FULL, TEXT, FAINT);
            canvas.top += TEXT + 6;
        }
        if absent.len() > LISTED {
            let more = format!("and {} more", absent.len() - LISTED);
            canvas.paragraph(&more, TEXT, FAINT);
        }
    }

    /// The same in a line, where another picture has the list.
    pub fn count_absent(&self, canvas: &mut Canvas) {
        let words = match self.all.absent.len() {
            0 => return,
            1 => "1 cell without figures is not shown".to_owned(),
            n => format!("{n} cells without figures are not shown"),
        };
        canvas.top += 4;
        let words = format!("{words}; the overview names the reasons.");
        canvas.paragraph(&words, SMALL, FAINT);
    }
}

impl Workload<'_> {
    /// `llama-3.1-8b: sequence 8192, global batch 128, 8 devices; NVIDIA H200`
    pub fn draw_heading(&self, canvas: &mut Canvas) {
        let group = self.group;
        let rows: Vec<&Row> = self.cells.iter().map(|cell| cell.row).collect();
        let strict = match group.identical_config {
            true => ", identical configuration",
            false => "",
        };
        let (workload, devices) = (group.workload.clone(), in_title(&rows));
        canvas.heading(&format!("{}: {workload}{strict}{devices}", group.model));
    }
}

impl Cell<'_> {
    pub fn draw_labels(&self, canvas: &mut Canvas, left: i32, room: i32) {
        let mut lines = wrap(&self.labels, SMALL, room - 16);
        if lines.len() > LABEL_LINES {
            lines.truncate(LABEL_LINES - 1);
            lines.push("… and more: report.html".to_owned());
        }
        for line in lines {
            canvas.label(&line, (left + 16, canvas.top), SMALL, FAINT, Anchor::Left);
            canvas.top += SMALL + 4;
        }
    }

    pub fn draw_name(&self, canvas: &mut Canvas, left: i32, room: i32) {
        canvas.label(&self.name, (left, canvas.top), TEXT, INK, Anchor::Left);
        canvas.top += TEXT + 5;
        self.draw_labels(canvas, left, room);
    }

    /// What its line looks like that is at this place among others, its name, and `words` below.
    pub fn draw_key(&self, canvas: &mut Canvas, place: usize, colour: RGBColor, words: &str) {
        let (left, middle) = (MARGIN + SAMPLE, canvas.top + 7);
        canvas.line(vec![(MARGIN, middle), (MARGIN + 30, middle)], colour, 2);
        canvas.mark(
            LINE_MARKS[place % LINE_MARKS.len()],
            (MARGIN + 15, middle),
            colour,
        );
        self.draw_name(canvas, left, FULL - SAMPLE);
        canvas.lines_of(words, left + 16, FULL - SAMPLE - 16, SMALL, FAINT);
    }
}

/// Leaves of each workload's members those that are worth a place, in turn; how many in all.
fn select(all: &Comparison, members: &mut [(usize, Vec<&Row>)]) -> usize {
    let mut ranked: Vec<(usize, usize, &Row)> = Vec::new();
    for (group, rows) in members.iter_mut() {
        rows.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
        let last = rows.len().saturating_sub(1);
        for (place, row) in rows.drain(..).enumerate() {
            // From both ends: the fastest, the slowest, the second fastest, …
            let rank = match row.cell == all.groups[*group].baseline {
                true => 0,
                false => 1 + (2 * place).min(2 * (last - place) + 1),
            };
            ranked.push((rank, *group, row));
        }
    }
    ranked.sort_by_key(|(rank, group, _)| (*rank, *group));
    ranked.truncate(MOST_CELLS);
    for (group, rows) in members {
        let own = ranked.iter().filter(|(_, of, _)| of == group);
        rows.extend(own.map(|(.., row)| *row));
    }
    ranked.len()
}

/// What cannot be is not the fastest.
fn speed(row: &Row) -> f64 {
    let rate = row.tokens_per_second_per_gpu.value;
    if row.impossible().is_some() || !rate.is_finite() {
        f64::NEG_INFINITY
    } else {
        rate
    }
}

fn cells_of<'a>(
    rows: &[&'a Row],
    group: &Group,
    colour: &dyn Fn(&Row) -> RGBColor,
) -> Vec<Cell<'a>> {
    let names: Vec<String> = short_names(rows).iter().map(|name| clean(name)).collect();
    let suffix = |at: usize| match rows.len() > 1 && group.baseline == rows[at].cell {
        true => BASELINE,
        false => "",
    };
    let fitted = |size, room| elide_names(&names, size, |at| room - width_of(suffix(at), size));
    let fitted = [
        fitted(TEXT, WIDEST),
        fitted(TEXT, GUTTER),
        fitted(SMALL, WIDEST_TAG),
    ];
    let cell = |(at, row): (usize, &&'a Row)| {
        let [name, short, tag] = [0, 1, 2].map(|way| fitted[way][at].clone() + suffix(at));
        let labels = row.labels.iter().map(|label| clean(&label.text.clone()));
        let labels = labels.filter(|label| !is_in_name(row, label));
        let labels: Vec<String> = labels
            .map(|label| elide(&label, SMALL, WIDEST, 0.5))
            .collect();
        Cell {
            row,
            name,
            short,
            tag,
            labels: labels.join("; "),
            colour: colour(row),
        }
    };
    rows.iter().enumerate().map(cell).collect()
}

/// Is this difference from the baseline one that the name tells, as `(compiled)`?
fn is_in_name(row: &Row, label: &str) -> bool {
    let field = label.split_once(": ").map(|(field, _)| field);
    field.is_some_and(|field| row.axes.contains_key(field))
}

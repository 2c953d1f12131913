//! Bars from 0, a panel with its own axis for each group: only cells of one workload may be compared.

use plotters::style::RGBColor;
use tprimat_figures::{Comparison, Row};

use super::{
    axis::{Scale, extent},
    canvas::{Anchor, Canvas},
    names::{Names, group_heading},
    style::{BAR, FAINT, INK, LINE, MARGIN, PAPER, SMALL, TEXT, WIDTH},
    text::width_of,
};

/// Room right of the bars for figures.
const FIGURES: i32 = 470;
const RIGHT: i32 = WIDTH - MARGIN - FIGURES;
const THICK: i32 = 18;

pub struct Bar {
    pub value: f64,
    pub interval: Option<[f64; 2]>,
    /// Stands right of the bar.
    pub figures: String,
    pub fill: Fill,
    /// What the value cannot exceed, drawn across the bar.
    pub roof: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Fill {
    Solid(RGBColor),
    Hatched,
    Outline,
}

impl Bar {
    pub fn new(value: f64, figures: String) -> Self {
        Self { value, interval: None, figures, fill: Fill::Solid(BAR), roof: None }
    }
}

/// What one cell shows: bars, or why it has none.
pub type Entry = Result<Vec<Bar>, String>;

pub struct Panel<'a> {
    pub unit: &'a str,
    /// A value that no bar can exceed, with its name.
    pub roof: Option<(f64, &'a str)>,
}

/// A panel for each group that has a bar; how many were drawn.
pub fn panels<'a>(
    canvas: &mut Canvas,
    comparison: &'a Comparison,
    names: &Names,
    panel: &Panel,
    entry: impl Fn(usize, &'a Row) -> Entry,
) -> usize {
    let mut drawn = 0;
    for (i, group) in comparison.groups.iter().enumerate() {
        let members = comparison.rows.iter().enumerate().filter(|(_, row)| row.group == i);
        let entries: Vec<(usize, &Row, Entry)> =
            members.map(|(index, row)| (index, row, entry(index, row).map(known))).collect();
        if entries.iter().any(|(.., entry)| entry.as_ref().is_ok_and(|bars| !bars.is_empty())) {
            canvas.heading(&group_heading(group));
            draw(canvas, names, panel, &entries);
            drawn += 1;
        }
    }
    drawn
}

/// Only what has a length.
fn known(bars: Vec<Bar>) -> Vec<Bar> {
    bars.into_iter().filter(|bar| bar.value.is_finite() && bar.value >= 0.0).collect()
}

fn draw(canvas: &mut Canvas, names: &Names, panel: &Panel, entries: &[(usize, &Row, Entry)]) {
    let bars = || entries.iter().filter_map(|(.., entry)| entry.as_ref().ok()).flatten();
    let largest = bars().map(|bar| bar.value).fold(0.0, f64::max);
    let ends = bars().filter_map(|bar| Some(bar.interval?[1])).filter(|high| high.is_finite());
    // An interval of two repeats may be of any width; it must not flatten the bars.
    let longest = ends.fold(largest, f64::max).min(largest * 1.6);
    let roofs = bars().filter_map(|bar| bar.roof).chain(panel.roof.map(|(value, _)| value));
    let most = extent(roofs.chain([longest])).map_or(longest, |[_, high]| high);
    let scale = Scale::new([0.0, most], [MARGIN, RIGHT]);

    if let Some((value, name)) = panel.roof {
        canvas.text(name, (scale.at(value), canvas.top), SMALL, INK, Anchor::Right);
        canvas.top += SMALL + 4;
    }
    let top = canvas.top;
    let bottom = top + entries.iter().map(|(index, _, entry)| height(names, *index, entry)).sum::<i32>();
    canvas.top = bottom + 8;
    // First the grid, so that everything else stands on it.
    let mut free = i32::MIN;
    for (tick, label) in scale.ticks(6) {
        let (x, half) = (scale.at(tick), width_of(&label, SMALL) / 2);
        canvas.line(vec![(x, top), (x, bottom + 4)], LINE, 1);
        let middle = x.max(half + 2);
        if middle - half >= free && middle + half < RIGHT + 40 {
            canvas.text(&label, (middle, canvas.top), SMALL, FAINT, Anchor::Middle);
            free = middle + half + 14;
        }
    }
    canvas.text(panel.unit, (RIGHT + 44, canvas.top), SMALL, FAINT, Anchor::Left);
    // Behind the words.
    if let Some((value, _)) = panel.roof {
        canvas.dashed((scale.at(value), top), (scale.at(value), bottom), INK);
    }
    canvas.top = top;
    for (index, _, entry) in entries {
        draw_entry(canvas, names, *index, entry, &scale);
    }
    canvas.line(vec![(MARGIN, top), (MARGIN, bottom)], FAINT, 1);
    canvas.top = bottom + 8 + SMALL + 8;
}

fn height(names: &Names, index: usize, entry: &Entry) -> i32 {
    let bars = match entry {
        Ok(bars) if !bars.is_empty() => bars.len() as i32 * (THICK + 5),
        _ => names.reason_lines(reason(entry)) * (SMALL + 4),
    };
    names.height(index) + bars + 6
}

fn reason(entry: &Entry) -> &str {
    entry.as_ref().err().map_or("no figure", |reason| reason.as_str())
}

fn draw_entry(canvas: &mut Canvas, names: &Names, index: usize, entry: &Entry, scale: &Scale) {
    names.draw(canvas, index);
    match entry {
        Ok(bars) if !bars.is_empty() => bars.iter().for_each(|bar| draw_bar(canvas, bar, scale)),
        _ => names.draw_reason(canvas, reason(entry)),
    }
    canvas.top += 6;
}

fn draw_bar(canvas: &mut Canvas, bar: &Bar, scale: &Scale) {
    let (top, bottom) = (canvas.top, canvas.top + THICK);
    let middle = i32::midpoint(top, bottom);
    let end = scale.at(bar.value).max(MARGIN + 1);
    let corners = [(MARGIN, top), (end, bottom)];
    match bar.fill {
        Fill::Solid(colour) => canvas.rectangle(corners, colour, true),
        Fill::Hatched => {
            canvas.rectangle(corners, PAPER, true);
            canvas.hatched(corners, BAR);
        }
        Fill::Outline => {
            canvas.rectangle(corners, PAPER, true);
            canvas.rectangle(corners, BAR, false);
        }
    }
    let mut right = end;
    if let Some([low, high]) = bar.interval.filter(|ends| ends.iter().all(|end| end.is_finite())) {
        let (from, to) = (scale.at(low), scale.at(high));
        canvas.line(vec![(from, middle), (to, middle)], INK, 2);
        // A whisker that leaves the panel has no end.
        for x in [(from, scale.holds(low)), (to, scale.holds(high))].into_iter().filter(|x| x.1).map(|x| x.0) {
            canvas.line(vec![(x, middle - 5), (x, middle + 5)], INK, 2);
        }
        right = right.max(to);
    }
    if let Some(roof) = bar.roof {
        let x = scale.at(roof);
        canvas.line(vec![(x, top - 2), (x, bottom + 2)], INK, 2);
        // Beside the roof where there is no room before it.
        if x >= right && x < right + 16 + width_of(&bar.figures, TEXT) {
            right = x;
        }
    }
    canvas.label(&bar.figures, (right + 10, top + 2), TEXT, INK, Anchor::Left);
    canvas.top += THICK + 5;
}

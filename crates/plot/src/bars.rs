//! Bars from 0, a panel with its own axis for each group: only cells of one workload may be
//! compared.

use plotters::style::RGBColor;
use tprimat_figures::{Comparison, Row};

use super::{
    axis::{Scale, extent},
    canvas::{Anchor, Canvas},
    names::{Names, group_heading},
    style::{FAINT, INK, LINE, MARGIN, PAPER, SMALL, TEXT, WIDTH},
    sweep::swept_groups,
    text::{clean, width_of, wrap},
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
    /// None = the pattern of its cell.
    pub fill: Option<Fill>,
    /// What the value cannot exceed, drawn across the bar.
    pub roof: Option<f64>,
}

/// A pattern in the colour of the framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    Solid,
    Hatched,
    Outline,
    HatchedBack,
}

impl Fill {
    /// Cells of one framework have patterns of their own, as far as there are patterns.
    fn of_variant(variant: usize, variants: usize) -> Self {
        const ALL: [Fill; 4] = [Fill::Solid, Fill::Hatched, Fill::Outline, Fill::HatchedBack];
        if variants > ALL.len() {
            return Self::Solid;
        }
        ALL[variant]
    }
}

impl Bar {
    pub fn new(value: f64, figures: String) -> Self {
        Self {
            value,
            interval: None,
            figures,
            fill: None,
            roof: None,
        }
    }
}

/// What one cell shows: bars, or why it has none.
pub type Entry = Result<Vec<Bar>, String>;

pub struct Panel<'a> {
    pub unit: &'a str,
    /// A value that no bar can exceed, with its name.
    pub roof: Option<(f64, &'a str)>,
}

/// A panel for each group that has a bar; how many were drawn. Points of a sweep have none.
pub fn panels<'a>(
    canvas: &mut Canvas,
    comparison: &'a Comparison,
    names: &Names,
    panel: &Panel,
    entry: impl Fn(usize, &'a Row) -> Entry,
) -> usize {
    let mut drawn = 0;
    let swept = swept_groups(comparison);
    let groups = comparison.groups.iter().enumerate();
    for (i, _) in groups.filter(|(i, _)| !swept.contains(i)) {
        let members = comparison
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.group == i);
        let entries: Vec<(usize, &Row, Entry)> = members
            .map(|(index, row)| (index, row, entry(index, row).map(known)))
            .collect();
        if entries
            .iter()
            .any(|(.., entry)| entry.as_ref().is_ok_and(|bars| !bars.is_empty()))
        {
            canvas.heading(&group_heading(comparison, i));
            draw(canvas, names, panel, &entries);
            drawn += 1;
        }
    }
    drawn
}

/// The bars that have a length.
fn known(bars: Vec<Bar>) -> Vec<Bar> {
    bars.into_iter()
        .filter(|bar| bar.value.is_finite() && bar.value >= 0.0)
        .collect()
}

fn draw(canvas: &mut Canvas, names: &Names, panel: &Panel, entries: &[(usize, &Row, Entry)]) {
    let bars = || {
        entries
            .iter()
            .filter_map(|(.., entry)| entry.as_ref().ok())
            .flatten()
    };
    let largest = bars().map(|bar| bar.value).fold(0.0, f64::max);
    let ends = bars()
        .filter_map(|bar| Some(bar.interval?[1]))
        .filter(|high| high.is_finite());
    // An interval of two repeats may be of any width; it must not flatten the bars.
    let longest = ends.fold(largest, f64::max).min(largest * 1.6);
    let roofs = bars()
        .filter_map(|bar| bar.roof)
        .chain(panel.roof.map(|(value, _)| value));
    let most = extent(roofs.chain([longest])).map_or(longest, |[_, high]| high);
    let of: Vec<usize> = entries.iter().map(|(index, ..)| *index).collect();
    let left = MARGIN + names.gutter(of.iter().copied());
    let scale = Scale::new([0.0, most], [left, RIGHT]);

    if let Some((value, name)) = panel.roof {
        canvas.text(
            name,
            (scale.at(value), canvas.top),
            SMALL,
            INK,
            Anchor::Right,
        );
        canvas.top += SMALL + 4;
    }
    let top = canvas.top;
    let bottom = top
        + entries
            .iter()
            .map(|(index, _, entry)| height(names, *index, entry, left))
            .sum::<i32>();
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
    canvas.text(
        panel.unit,
        (RIGHT + 44, canvas.top),
        SMALL,
        FAINT,
        Anchor::Left,
    );
    // Behind the words.
    if let Some((value, _)) = panel.roof {
        canvas.dashed((scale.at(value), top), (scale.at(value), bottom), INK);
    }
    canvas.top = top;
    let variants = of.iter().map(|i| names.variant(*i) + 1).max().unwrap_or(1);
    for ((index, _, entry), name) in entries.iter().zip(names.in_gutter(&of)) {
        canvas.label(&name, (left - 8, canvas.top + 2), TEXT, INK, Anchor::Right);
        match entry {
            Ok(bars) if !bars.is_empty() => {
                let own = Fill::of_variant(names.variant(*index), variants);
                for bar in bars {
                    let fill = bar.fill.unwrap_or(own);
                    draw_bar(canvas, bar, &scale, (fill, names.colour(*index)));
                }
            }
            _ => {
                canvas.top += 2;
                canvas.lines_of(reason(entry), left + 8, room_beside(left), SMALL, FAINT);
                canvas.top += 3;
            }
        }
        names.draw_labels(canvas, *index, left);
        canvas.top += 3;
    }
    canvas.line(vec![(left, top), (left, bottom)], FAINT, 1);
    canvas.top = bottom + 8 + SMALL + 8;
}

/// Pixels right of the axis.
fn room_beside(left: i32) -> i32 {
    WIDTH - MARGIN - left - 8
}

fn height(names: &Names, index: usize, entry: &Entry, left: i32) -> i32 {
    let bars = match entry {
        Ok(bars) if !bars.is_empty() => bars.len() as i32 * (THICK + 5),
        _ => {
            let lines = wrap(&clean(reason(entry)), SMALL, room_beside(left)).len() as i32;
            5 + (lines * (SMALL + 4)).max(THICK)
        }
    };
    names.labels_height(index) + bars + 3
}

fn reason(entry: &Entry) -> &str {
    entry
        .as_ref()
        .err()
        .map_or("no figure", |reason| reason.as_str())
}

fn draw_bar(canvas: &mut Canvas, bar: &Bar, scale: &Scale, (fill, colour): (Fill, RGBColor)) {
    let (top, bottom) = (canvas.top, canvas.top + THICK);
    let middle = i32::midpoint(top, bottom);
    let left = scale.at(0.0);
    let end = scale.at(bar.value).max(left + 1);
    let corners = [(left, top), (end, bottom)];
    if fill == Fill::Solid {
        canvas.rectangle(corners, colour, true);
    } else {
        canvas.rectangle(corners, PAPER, true);
        if fill == Fill::Outline {
            canvas.rectangle(corners, colour, false);
        } else {
            canvas.hatched(corners, colour, fill == Fill::HatchedBack);
        }
    }
    let mut right = end;
    if let Some([low, high]) = bar
        .interval
        .filter(|ends| ends.iter().all(|end| end.is_finite()))
    {
        let (from, to) = (scale.at(low), scale.at(high));
        canvas.line(vec![(from, middle), (to, middle)], INK, 2);
        // A whisker that leaves the panel has no end.
        for x in [(from, scale.holds(low)), (to, scale.holds(high))]
            .into_iter()
            .filter(|x| x.1)
            .map(|x| x.0)
        {
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

//! Cells below each other over one axis, as data and drawn: bars from 0. Each workload has a panel with an axis of its own: only its cells may be compared.

use super::{
    axis::Scale,
    canvas::{Anchor, Canvas},
    cells::{Cell, GUTTER, Shown},
    lines::label_ticks,
    style::{FAINT, FULL, HEADING, INK, LINE, MARGIN, SMALL, TEXT, WIDTH},
    text::{clean, width_of, wrap},
};

/// Room right of the axis for figures.
const FIGURES: i32 = 500;
const RIGHT: i32 = WIDTH - MARGIN - FIGURES;
const THICK: i32 = 18;
/// Room of labels below a bar.
const LABELS: i32 = FULL - GUTTER - 24;

#[derive(Default)]
pub struct Bar {
    /// From 0 to here.
    pub length: f64,
    pub interval: Option<[f64; 2]>,
    /// Right of the bar.
    pub figures: String,
    /// What the value cannot exceed, drawn across the bar.
    pub roof: Option<f64>,
}

impl Bar {
    pub fn new(length: f64, figures: String) -> Self {
        Self {
            length,
            figures,
            ..Self::default()
        }
    }
}

/// What one cell shows: bars, or why it has none.
pub type Entry = Result<Vec<Bar>, String>;

/// Panels of one unit, one for each workload that has something to show.
pub struct Panels<'a> {
    /// Over all of them; may be empty.
    pub title: String,
    pub unit: String,
    pub entry: Box<dyn Fn(&Cell) -> Entry + 'a>,
}

impl<'a> Panels<'a> {
    pub fn new(title: &str, unit: &str, entry: impl Fn(&Cell) -> Entry + 'a) -> Self {
        Self {
            title: title.to_owned(),
            unit: unit.to_owned(),
            entry: Box::new(entry),
        }
    }

    /// What a cell shows of it, without what has no length.
    fn of(&self, cell: &Cell) -> Entry {
        let mut bars = (self.entry)(cell)?;
        bars.retain(|bar| bar.length.is_finite() && bar.length >= 0.0);
        match bars.is_empty() {
            true => Err("no figure".to_owned()),
            false => Ok(bars),
        }
    }

    /// How many panels there were to draw. Points of a sweep have none.
    pub fn draw(&self, canvas: &mut Canvas, shown: &Shown) -> usize {
        let mut drawn = 0;
        for workload in &shown.workloads {
            let entries: Vec<(&Cell, Entry)> = workload
                .cells
                .iter()
                .map(|cell| (cell, self.of(cell)))
                .collect();
            let is_empty = entries.iter().all(|(_, entry)| entry.is_err());
            if is_empty || workload.is_swept {
                continue;
            }
            if drawn == 0 && !self.title.is_empty() {
                canvas.top += 6;
                canvas.paragraph(&self.title, HEADING + 2, INK);
            }
            workload.draw_heading(canvas);
            self.draw_panel(canvas, &entries);
            drawn += 1;
        }
        drawn
    }

    fn draw_panel(&self, canvas: &mut Canvas, entries: &[(&Cell, Entry)]) {
        let names = entries.iter().map(|(cell, _)| width_of(&cell.short, TEXT));
        let left = MARGIN + names.max().unwrap_or(0).min(GUTTER) + 12;
        let bars = || entries.iter().flat_map(|(_, entry)| entry).flatten();
        let scale = Scale::new([0.0, end_of(bars)]).on([left, RIGHT]);
        let (top, since) = (canvas.top, canvas.count());
        for (cell, entry) in entries {
            let at = (left - 8, canvas.top + 2);
            canvas.label(&cell.short, at, TEXT, INK, Anchor::Right);
            match entry {
                Ok(bars) => {
                    for bar in bars {
                        bar.draw(canvas, cell, &scale);
                    }
                }
                Err(reason) => {
                    let below = canvas.top + THICK + 5;
                    canvas.top += 2;
                    canvas.lines_of(reason, left + 8, WIDTH - MARGIN - left - 8, SMALL, FAINT);
                    canvas.top = below.max(canvas.top);
                }
            }
            cell.draw_labels(canvas, left, LABELS);
            canvas.top += 3;
        }
        let bottom = canvas.top;
        canvas.behind(since, |canvas| {
            self.draw_grid(canvas, &scale, [top, bottom])
        });
        canvas.top = bottom + 8 + SMALL + 8;
    }

    fn draw_grid(&self, canvas: &mut Canvas, scale: &Scale, [top, bottom]: [i32; 2]) {
        let ticks = scale.ticks(6);
        for (value, _) in &ticks {
            let colour = if *value == 0.0 { FAINT } else { LINE };
            let x = scale.at(*value);
            canvas.line(vec![(x, top), (x, bottom + 4)], colour, 1);
        }
        label_ticks(canvas, scale, &ticks, bottom + 8, [i32::MIN, RIGHT + 40]);
        let unit = (RIGHT + 44, bottom + 8);
        canvas.text(&self.unit, unit, SMALL, FAINT, Anchor::Left);
    }
}

/// Where an axis of these bars ends. An interval of two repeats may be of any width; it must not flatten
/// the rest.
fn end_of<'a, I: Iterator<Item = &'a Bar>>(bars: impl Fn() -> I) -> f64 {
    let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let intervals = bars().filter_map(|bar| bar.interval).flatten();
    let farthest = largest(&mut intervals.filter(|end| end.is_finite()));
    let longest = largest(&mut bars().map(|bar| bar.length));
    let roof = largest(&mut bars().filter_map(|bar| bar.roof));
    roof.max(farthest.min(longest * 1.6)).max(longest)
}

impl Bar {
    fn draw(&self, canvas: &mut Canvas, cell: &Cell, scale: &Scale) {
        let (top, bottom) = (canvas.top, canvas.top + THICK);
        let middle = i32::midpoint(top, bottom);
        let zero = scale.at(0.0);
        let mut right = scale.at(self.length).max(zero + 1);
        canvas.rectangle([(zero, top), (right, bottom)], cell.colour, true);
        if let Some(ends) = self
            .interval
            .filter(|ends| ends.iter().all(|end| end.is_finite()))
        {
            let end = |end| ((scale.at(end), middle), scale.holds(end));
            canvas.whisker(ends.map(end), (0, 6), INK, 2);
            right = right.max(scale.at(ends[1]));
        }
        if let Some(roof) = self.roof {
            let x = scale.at(roof);
            canvas.line(vec![(x, top - 2), (x, bottom + 2)], INK, 2);
            // Beside the roof where there is no room before it.
            if x >= right && x < right + 16 + width_of(&self.figures, TEXT) {
                right = x;
            }
        }
        let room = WIDTH - MARGIN - right - 10;
        for (line, words) in (0..).zip(wrap(&clean(&self.figures), TEXT, room)) {
            let at = (right + 10, top + 2 + line * (TEXT + 4));
            canvas.label(&words, at, TEXT, INK, Anchor::Left);
            canvas.top = at.1 + TEXT + 6;
        }
        canvas.top = canvas.top.max(bottom + 5);
    }
}

//! Bars of tokens/s/GPU: a panel with its own scale for each group, for only its cells may be compared.

use plotters::prelude::*;

use super::style::{Drawing, FAINT, INK, LINE, MARGIN, WIDTH, colour, fit, text, tick_label, to_error, width_of};
use crate::{
    analyze::{Comparison, Group, Row},
    error::Result,
    report::{format::number, table::mark},
};

const HEADING: i32 = 34;
const BAR: i32 = 46;
const AXIS: i32 = 40;
const LISTED: i32 = 22;
/// Cells drawn; the table has all of them.
const MOST: usize = 60;
/// Room right of the bars for figures.
const FIGURES: i32 = 420;

pub fn height(comparison: &Comparison) -> u32 {
    let groups: i32 = comparison
        .groups
        .iter()
        .enumerate()
        .map(|(i, _)| HEADING + AXIS + BAR * i32::try_from(members(comparison, i).len()).unwrap_or(0))
        .sum();
    let absent = i32::try_from(comparison.absent.len().min(MOST + 1)).unwrap_or(0);
    let absent = if absent > 0 { HEADING + LISTED * absent + 12 } else { 0 };
    u32::try_from(groups + absent).unwrap_or(0)
}

/// Rows of one group that are drawn, with their index, which gives the colour.
fn members(comparison: &Comparison, group: usize) -> Vec<(usize, &Row)> {
    comparison.rows.iter().enumerate().take(MOST).filter(|(_, row)| row.group == group).collect()
}

pub fn draw<DB: DrawingBackend>(area: &Drawing<DB>, comparison: &Comparison) -> Result<()> {
    let mut top = 0;
    for (i, group) in comparison.groups.iter().enumerate() {
        top = draw_group(area, top, group, &members(comparison, i))?;
    }
    if comparison.absent.is_empty() {
        return Ok(());
    }
    text(area, "Cells without figures", (MARGIN, top + 8), 17, &INK)?;
    top += HEADING;
    let room = WIDTH as i32 - 2 * MARGIN;
    for cell in comparison.absent.iter().take(MOST) {
        let line = format!("{}{}: {}, {}", cell.cell, mark(&cell.imported), cell.state, cell.reason);
        text(area, &fit(&line, 15, room), (MARGIN, top), 15, &FAINT)?;
        top += LISTED;
    }
    if comparison.absent.len() > MOST {
        text(area, &format!("and {} more", comparison.absent.len() - MOST), (MARGIN, top), 15, &FAINT)?;
    }
    Ok(())
}

/// Draws one panel from `top` on; where it ends.
fn draw_group<DB: DrawingBackend>(area: &Drawing<DB>, top: i32, group: &Group, rows: &[(usize, &Row)]) -> Result<i32> {
    let strict = if group.identical_config { ", identical configuration" } else { "" };
    let heading = format!("{}: {}{strict}", group.model, group.workload);
    text(area, &fit(&heading, 17, WIDTH as i32 - 2 * MARGIN), (MARGIN, top + 8), 17, &INK)?;
    let first = top + HEADING;
    let bottom = first + BAR * i32::try_from(rows.len()).unwrap_or(0);
    let scale = Scale::of(rows);
    for tick in scale.ticks() {
        let x = scale.x(tick);
        area.draw(&PathElement::new([(x, first), (x, bottom + 4)], LINE.stroke_width(1))).map_err(to_error)?;
        let label = tick_label(tick);
        text(area, &label, (x - width_of(&label, 14) / 2, bottom + 8), 14, &FAINT)?;
    }
    text(area, "tokens/s/GPU", (scale.right + 34, bottom + 8), 14, &FAINT)?;
    for (i, (index, row)) in rows.iter().enumerate() {
        draw_bar(area, first + BAR * i as i32, *index, row, &scale)?;
    }
    area.draw(&PathElement::new([(MARGIN, first), (MARGIN, bottom)], FAINT.stroke_width(1))).map_err(to_error)?;
    Ok(bottom + AXIS)
}

fn draw_bar<DB: DrawingBackend>(area: &Drawing<DB>, top: i32, index: usize, row: &Row, scale: &Scale) -> Result<()> {
    let estimate = &row.tokens_per_second_per_gpu;
    // The name stands above its bar, on white, so that grid lines do not run through it.
    let mut name = format!("{}{}", row.cell, mark(&row.imported));
    if !row.labels.is_empty() {
        name += &format!("   ({})", row.labels.join("; "));
    }
    let name = fit(&name, 15, WIDTH as i32 - 2 * MARGIN - 12);
    let behind = [(MARGIN + 4, top + 3), (MARGIN + 10 + width_of(&name, 15), top + 21)];
    area.draw(&Rectangle::new(behind, WHITE.filled())).map_err(to_error)?;
    text(area, &name, (MARGIN + 6, top + 5), 15, &INK)?;

    let (bar_top, bar_bottom) = (top + 23, top + 41);
    let end = scale.x(estimate.value);
    area.draw(&Rectangle::new([(MARGIN, bar_top), (end.max(MARGIN + 1), bar_bottom)], colour(index).filled()))
        .map_err(to_error)?;
    let mut right = end;
    let mut figures = number(estimate.value);
    if let Some([low, high]) = estimate.ci95 {
        let (x_low, x_high) = (scale.x(low), scale.x(high));
        let middle = i32::midpoint(bar_top, bar_bottom);
        let line = |from, to| area.draw(&PathElement::new([from, to], INK.stroke_width(2))).map_err(to_error);
        line((x_low, middle), (x_high, middle))?;
        line((x_low, middle - 5), (x_low, middle + 5))?;
        // A whisker that leaves the panel has no end.
        if high <= scale.most {
            line((x_high, middle - 5), (x_high, middle + 5))?;
        }
        right = right.max(x_high);
        figures += &format!(" ({} to {})", number(low), number(high));
    }
    figures += &format!(", n = {} of {}", row.n, row.repeats_wanted);
    if row.contradicted > 0 {
        figures += &format!(", {} contradicted", row.contradicted);
    }
    let figures = fit(&figures, 15, FIGURES - 20);
    let behind = [(right + 6, bar_top), (right + 14 + width_of(&figures, 15), bar_bottom)];
    area.draw(&Rectangle::new(behind, WHITE.filled())).map_err(to_error)?;
    text(area, &figures, (right + 10, bar_top + 3), 15, &INK)
}

/// Rates → pixels, from 0: a bar's length must be its value.
struct Scale {
    most: f64,
    right: i32,
}

impl Scale {
    fn of(rows: &[(usize, &Row)]) -> Self {
        let values = || rows.iter().map(|(_, row)| &row.tokens_per_second_per_gpu);
        let largest = values().map(|e| e.value).fold(f64::MIN_POSITIVE, f64::max);
        let upper = values().filter_map(|e| e.ci95).map(|[_, high]| high).fold(largest, f64::max);
        // Two repeats may give an interval of any width; it must not flatten the bars.
        Self { most: upper.min(largest * 1.6), right: WIDTH as i32 - MARGIN - FIGURES }
    }

    fn x(&self, value: f64) -> i32 {
        MARGIN + (f64::from(self.right - MARGIN) * (value / self.most).clamp(0.0, 1.0)).round() as i32
    }

    /// Round values, about six.
    fn ticks(&self) -> Vec<f64> {
        let rough = self.most / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(rough);
        (0..10).map(|i| f64::from(i) * step).take_while(|t| *t <= self.most).collect()
    }
}

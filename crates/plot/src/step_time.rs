//! Step time over steps, a panel a cell: each repeat a line, with the cut, shifts of level and
//! outliers.

use tprimat_figures::{Cut, RepeatStatus, RepeatSummary, Row};
use tprimat_results::{OUTLIER_DEVIATIONS, OUTLIER_LEAST, outlier_limit, quantile};

use super::{
    axis::extent,
    canvas::{Anchor, Canvas, Mark, Point},
    cell_selection::Shown,
    chart::{Frame, NO_TAGS},
    names::{Names, count_absent, group_heading},
    series::{Series, of_repeat, simplified, thinned},
    style::{FAINT, GAP, HALF, INK, LINE, MARGIN, SMALL, colour_of},
    text::wrap,
};

/// Length of a stroke where a repeat's measured part begins.
const FOOT: i32 = 10;
const HEIGHT: i32 = 190;
/// Points of a repeat: a panel is no wider.
const POINTS: usize = 120;
/// Repeats drawn in a panel; all are counted.
const DRAWN: usize = 40;
/// Shifts of level that are named; all are drawn.
const SHIFTS: usize = 4;
/// Outliers marked in a panel; all are counted.
const MARKED: usize = 60;

pub fn step_time(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    if comparison
        .rows
        .iter()
        .all(|row| row.repeats.iter().all(|r| times(r).is_empty()))
    {
        return Err("no log states or implies step times".to_owned());
    }
    let subtitle = format!(
        "Seconds of each step, a line a repeat (grey: does not count). Each panel has its own axis, which spans at least \
         ±10 % of the median. Dashed, grey: where the declared warm-up ends; dashed, black: where the measured part of the \
         first counted repeat begins, if later. Strokes at the foot: the same of every counted repeat. Rings: steps more \
         than {OUTLIER_DEVIATIONS} scaled median absolute deviations and {} % from the median of their run; triangles: \
         beyond the panel.",
        OUTLIER_LEAST * 100.0
    );
    let mut canvas = shown.titled("Step time over steps", &subtitle);
    let names = Names::new(comparison, MARGIN, HALF - 8);
    for i in 0..comparison.groups.len() {
        let drawn = |(_, row): &(usize, &Row)| {
            row.group == i && row.repeats.iter().any(|r| !times(r).is_empty())
        };
        let members: Vec<(usize, &Row)> =
            comparison.rows.iter().enumerate().filter(drawn).collect();
        if members.is_empty() {
            continue;
        }
        canvas.heading(&group_heading(comparison, i));
        for line in members.chunks(2) {
            let top = canvas.top;
            let panels: Vec<Panel> = line.iter().map(|(_, row)| Panel::of(row)).collect();
            let said: Vec<Vec<String>> = panels
                .iter()
                .map(|panel| wrap(&panel.said, SMALL, HALF - 8))
                .collect();
            let named = line.iter().zip(&said);
            let head = named
                .map(|((index, _), said)| names.height(*index) + said.len() as i32 * (SMALL + 4))
                .max();
            let head = head.unwrap_or(0);
            for (column, (((index, _), panel), said)) in
                (0..).zip(line.iter().zip(&panels).zip(&said))
            {
                let left = MARGIN + column * (HALF + GAP);
                canvas.top = top;
                names.draw_at(&mut canvas, *index, left);
                for line in said {
                    canvas.label(line, (left, canvas.top), SMALL, FAINT, Anchor::Left);
                    canvas.top += SMALL + 4;
                }
                panel.draw(&mut canvas, (left, top + head + 4));
            }
            canvas.top = top + head + 4 + HEIGHT + 12;
        }
    }
    count_absent(&mut canvas, comparison);
    Ok(canvas)
}

fn times(repeat: &RepeatSummary) -> Vec<(u64, f64)> {
    of_repeat(repeat, |curve| &curve.step_time_seconds)
}

struct Panel<'a> {
    row: &'a Row,
    /// Below the name.
    said: String,
    outliers: Vec<(f64, f64)>,
    /// Where the axis of seconds begins and ends.
    seconds: [f64; 2],
}

impl<'a> Panel<'a> {
    fn of(row: &'a Row) -> Self {
        let mut outliers = Vec::new();
        let mut measured = Vec::new();
        for repeat in row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok) {
            let first = cut(repeat).map_or(0, |cut| cut.first_step);
            let steps: Vec<(u64, f64)> = times(repeat)
                .into_iter()
                .filter(|(step, _)| *step >= first)
                .collect();
            outliers.extend(outlying(&steps));
            measured.extend(steps.into_iter().map(|(_, seconds)| seconds));
        }
        if measured.is_empty() {
            measured = row
                .repeats
                .iter()
                .flat_map(times)
                .map(|(_, seconds)| seconds)
                .collect();
        }
        let median = quantile(&measured, 0.5).unwrap_or(1.0);
        let [low, high] = extent(measured).unwrap_or([0.0, 1.0]);
        let seconds = [
            (median * 0.9).min(low).max(median * 0.5),
            (median * 1.1).max(high).min(median * 1.5),
        ];
        Self {
            row,
            said: said(row, outliers.len()),
            outliers,
            seconds,
        }
    }

    fn draw(&self, canvas: &mut Canvas, (left, top): Point) {
        let frame = Frame {
            left,
            top,
            width: HALF,
            height: HEIGHT,
            tags: NO_TAGS,
            title: "step time, s",
            x_title: "step",
        };
        let lines: Vec<(Series, bool)> = self
            .row
            .repeats
            .iter()
            .take(DRAWN)
            .map(|r| (points(r), r.status == RepeatStatus::Ok))
            .collect();
        let steps = lines
            .iter()
            .flat_map(|(points, _)| points)
            .map(|(step, _)| *step);
        let x = frame.x(extent(steps).unwrap_or([0.0, 1.0]));
        let y = frame.y(self.seconds);
        frame.draw(canvas, &x, &y);
        let [_, _, upper, lower] = frame.inside();
        let own = colour_of(&self.row.framework);
        let cuts = counted(self.row).filter_map(cut);
        let cuts: Vec<&Cut> = cuts.take(DRAWN).collect();
        if let Some(cut) = cuts.first() {
            let (declared, measured) = (x.at(declared(cut) as f64), x.at(cut.first_step as f64));
            canvas.dashed((declared, upper), (declared, lower), FAINT);
            if measured != declared {
                canvas.dashed((measured, upper), (measured, lower), INK);
            }
        }
        for cut in &cuts {
            let at = x.at(cut.first_step as f64);
            canvas.line(vec![(at, lower - FOOT), (at, lower)], own, 2);
        }
        let edge = |(step, _): &(f64, f64)| (x.at(*step), upper - 8);
        let is_above = |(_, seconds): &&(f64, f64)| *seconds > self.seconds[1];
        // The grey ones behind the others.
        for counts in [false, true] {
            let colour = if counts { own } else { LINE };
            for (points, _) in lines.iter().filter(|(_, ok)| *ok == counts) {
                for stretch in points.split(|p| is_above(&p)) {
                    let pixels: Vec<_> = stretch
                        .iter()
                        .map(|(step, t)| (x.at(*step), y.at(*t)))
                        .collect();
                    canvas.line(simplified(&pixels), colour, 1);
                }
                let mut above: Vec<_> = points.iter().filter(is_above).map(edge).collect();
                above.dedup_by(|b, a| b.0 - a.0 < 8);
                above.truncate(MARKED);
                above
                    .into_iter()
                    .for_each(|at| canvas.mark(Mark::Above, at, colour));
            }
        }
        let inside = self
            .outliers
            .iter()
            .filter(|(_, seconds)| y.holds(*seconds));
        for (step, seconds) in inside.take(MARKED) {
            canvas.mark(Mark::Outlier, (x.at(*step), y.at(*seconds)), INK);
        }
    }
}

fn points(repeat: &RepeatSummary) -> Series {
    thinned(
        times(repeat)
            .into_iter()
            .map(|(step, seconds)| (step as f64, seconds))
            .collect(),
        POINTS,
    )
}

fn cut(repeat: &RepeatSummary) -> Option<&Cut> {
    repeat.steady.as_ref()?.cut.as_ref()
}

/// Repeats that count.
fn counted(row: &Row) -> impl Iterator<Item = &RepeatSummary> {
    row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok)
}

/// First step after the declared warm-up.
fn declared(cut: &Cut) -> u64 {
    cut.first_step.saturating_sub(cut.dropped_steps)
}

/// Steps far from the median of their run, in either direction.
fn outlying(steps: &[(u64, f64)]) -> Vec<(f64, f64)> {
    let seconds: Vec<f64> = steps.iter().map(|(_, seconds)| *seconds).collect();
    let Some(median) = quantile(&seconds, 0.5) else {
        return Vec::new();
    };
    let limit = outlier_limit(&seconds, median).unwrap_or(f64::INFINITY);
    let far = steps
        .iter()
        .filter(|(_, seconds)| (seconds - median).abs() > limit);
    far.map(|(step, seconds)| (*step as f64, *seconds))
        .collect()
}

/// What the marks mean here, in words.
fn said(row: &Row, outliers: usize) -> String {
    let mut parts = Vec::new();
    let cuts: Vec<(u32, &Cut)> = counted(row)
        .filter_map(|r| Some((r.repeat, cut(r)?)))
        .collect();
    if let Some((_, first)) = cuts.first() {
        let from = || cuts.iter().map(|(_, cut)| cut.first_step);
        let range = match (
            from().min().unwrap_or_default(),
            from().max().unwrap_or_default(),
        ) {
            (low, high) if low == high => low.to_string(),
            (low, high) => format!("{low} to {high}"),
        };
        let method = if cuts.iter().any(|(_, cut)| cut.dropped_steps > 0) {
            format!(" ({})", first.method)
        } else {
            String::new()
        };
        parts.push(format!(
            "declared warm-up ends before step {}, measured from step {range}{method}",
            declared(first)
        ));
        parts.extend(
            first
                .not_assessed
                .as_ref()
                .map(|why| format!("steady state not assessed: {why}")),
        );
    }
    let shifts = || {
        cuts.iter()
            .filter_map(|(repeat, cut)| Some((repeat, cut.level_shift.as_ref()?)))
    };
    for (repeat, shift) in shifts().take(SHIFTS) {
        parts.push(format!(
            "#{repeat}: {:+.1} % from step {}",
            (shift.ratio - 1.0) * 100.0,
            shift.step
        ));
    }
    let more = shifts().count().saturating_sub(SHIFTS);
    if more > 0 {
        parts.push(format!("{more} more repeats change level"));
    }
    if row.repeats.len() > DRAWN {
        parts.push(format!(
            "the first {DRAWN} of {} repeats are drawn",
            row.repeats.len()
        ));
    }
    parts.push(match outliers {
        0 => "no outlier".to_owned(),
        1 => "1 outlier".to_owned(),
        n => format!("{n} outliers"),
    });
    parts.join("; ")
}

//! Step time over steps, a panel a cell: each repeat a line, with the cut and shifts of level.

use tprimat_numbers::figures::{Cut, RepeatStatus, RepeatSummary, Row};
use tprimat_numbers::results::{quantile, words::few};

use super::{
    axis::{Scale, extent},
    canvas::{Canvas, Mark},
    cells::{Cell, Shown},
    lines::{Curve, Dashes, Lines, draw_beside},
    series::{Series, counted, of_repeat, thinned},
    style::{FAINT, GAP, HALF, INK, LINE, MARGIN, SMALL},
};

const HEIGHT: i32 = 190;
/// Points of a repeat: a panel is no wider.
const POINTS: usize = 120;
/// Parts of the steps below and above which a panel may end.
const LEVELS: [f64; 2] = [0.05, 0.95];
/// Repeats drawn in a panel; all are counted.
const DRAWN: usize = 40;

pub fn step_time(shown: &Shown) -> Result<Canvas, String> {
    let has_times = |cell: &&Cell| cell.row.repeats.iter().any(|r| !times(r).is_empty());
    if !shown.cells().any(|cell| has_times(&cell)) {
        return Err("no log states or implies step times".to_owned());
    }
    let subtitle = "Seconds of each step, a line a repeat (grey: does not count). Each panel has its own axis, which spans at least \
         ±10 % of the median; what is beyond it stands at its edge. Dashed, grey: where the declared warm-up ends; dashed, \
         black: where the measured part of the first counted repeat begins, if later. Strokes at the foot: the same of \
         every counted repeat.";
    let mut canvas = shown.titled("Step time over steps", subtitle, 0);
    for workload in &shown.workloads {
        let cells: Vec<&Cell> = workload.cells.iter().filter(has_times).collect();
        if cells.is_empty() {
            continue;
        }
        workload.draw_heading(&mut canvas);
        for line in cells.chunks(2) {
            let (top, mut below, mut panels) = (canvas.top, 0, Vec::new());
            for (column, cell) in (0..).zip(line) {
                let left = MARGIN + column * (HALF + GAP);
                canvas.top = top;
                cell.draw_name(&mut canvas, left, HALF - 8);
                let words = in_words(cell.row);
                canvas.lines_of(&words, left, HALF - 8, SMALL, FAINT);
                below = below.max(canvas.top + 4);
                panels.push(panel(cell));
            }
            canvas.top = below;
            draw_beside(&mut canvas, HEIGHT, &panels);
            canvas.top += 12;
        }
    }
    shown.count_absent(&mut canvas);
    Ok(canvas)
}

fn times(repeat: &RepeatSummary) -> Series {
    of_repeat(repeat, |curve| &curve.step_time_seconds)
}

/// The steps of a counted repeat after its declared warm-up, of which the first may have been found to be
/// warm-up as well.
fn declared_steps(repeat: &RepeatSummary) -> Series {
    let first = cut(repeat).map_or(0, declared) as f64;
    let mut steps = times(repeat);
    steps.retain(|(step, _)| *step >= first);
    steps
}

fn panel(cell: &Cell) -> Lines {
    let repeats = &cell.row.repeats;
    let of_all = |steps: &mut dyn Iterator<Item = Series>| -> Vec<f64> {
        steps.flatten().map(|(_, seconds)| seconds).collect()
    };
    let mut seconds = of_all(&mut counted(cell.row).map(declared_steps));
    if seconds.is_empty() {
        seconds = of_all(&mut repeats.iter().map(times));
    }
    let median = quantile(&seconds, 0.5).unwrap_or(1.0);
    // What a twentieth of the steps reaches is no lone outlier: a level is shown at its height.
    let [lower, upper] = LEVELS.map(|part| quantile(&seconds, part).unwrap_or(median));
    let [low, high] = extent(seconds).unwrap_or([0.0, 1.0]);
    let y = Scale::new([
        (median * 0.9)
            .min(low)
            .max((median * 0.5).min(lower * 0.95)),
        (median * 1.1)
            .max(high)
            .min((median * 1.5).max(upper * 1.05)),
    ]);
    let mut drawn: Vec<(bool, Series)> = repeats
        .iter()
        .take(DRAWN)
        .map(|r| (r.status == RepeatStatus::Ok, thinned(times(r), POINTS)))
        .collect();
    // The grey ones behind the others.
    drawn.sort_by_key(|(counts, _)| *counts);
    let steps = drawn
        .iter()
        .flat_map(|(_, points)| points)
        .map(|(step, _)| *step);
    let x = Scale::new(extent(steps).unwrap_or([0.0, 1.0]));
    let mut lines = Lines::new("step time, s", "step", x, y);
    let cuts: Vec<&Cut> = counted(cell.row).filter_map(cut).take(DRAWN).collect();
    if let Some(cut) = cuts.first() {
        let starts = [(declared(cut), FAINT), (cut.first_step, INK)];
        let which = if starts[0].0 == starts[1].0 { 1 } else { 2 };
        lines
            .dashes
            .extend(starts.into_iter().take(which).map(|(step, colour)| Dashes {
                from: (step as f64, y.low),
                to: (step as f64, y.high),
                colour,
                number: String::new(),
            }));
    }
    let feet = cuts
        .iter()
        .map(|cut| (Mark::Foot, (cut.first_step as f64, y.low), cell.colour));
    lines.marks.extend(feet);
    let curve = |(counts, points): (bool, Series)| {
        let colour = if counts { cell.colour } else { LINE };
        Curve::plain(colour, 1, points)
    };
    lines.curves.extend(drawn.into_iter().map(curve));
    lines
}

fn cut(repeat: &RepeatSummary) -> Option<&Cut> {
    repeat.steady.as_ref()?.cut.as_ref()
}

/// First step after the declared warm-up.
fn declared(cut: &Cut) -> u64 {
    cut.first_step.saturating_sub(cut.dropped_steps)
}

/// Where the measured part begins, and where the level changes later.
fn in_words(row: &Row) -> String {
    let cuts = || counted(row).filter_map(|r| Some((r.repeat, cut(r)?)));
    let starts = cuts().next().map(|(_, first)| {
        format!(
            "declared warm-up ends before step {}, measured from step {}",
            declared(first),
            first.first_step
        )
    });
    let shifts = cuts().filter_map(|(repeat, cut)| {
        let shift = cut.level_shift.as_ref()?;
        let change = (shift.ratio - 1.0) * 100.0;
        Some(format!(
            "#{repeat}: {change:+.1} % from step {}",
            shift.step
        ))
    });
    let shifts: Vec<String> = shifts.collect();
    let shifts = (!shifts.is_empty()).then(|| few(&shifts));
    starts
        .into_iter()
        .chain(shifts)
        .collect::<Vec<_>>()
        .join("; ")
}

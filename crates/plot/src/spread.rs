//! Each repeat's rate against the mean of its cell, also of those that do not count.

use tprimat_figures::{RepeatStatus, RepeatSummary, Row, rate_unit};

use super::{
    axis::Scale,
    canvas::{Anchor, Canvas, Mark},
    cell_selection::Shown,
    names::{Names, absent, group_heading},
    style::{FAINT, INK, LINE, MARGIN, SMALL, TEXT, WIDTH},
    text::{width_of, wrap},
    throughput::apart,
};
use crate::format::number;

const FIGURES: i32 = 520;
const RIGHT: i32 = WIDTH - MARGIN - FIGURES;
const THICK: i32 = 22;
/// Repeats that do not count and are named.
const NAMED: usize = 6;
/// A repeat that is farther off is drawn at the edge.
const FARTHEST: f64 = 50.0;

pub fn spread(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    if comparison.rows.is_empty() {
        return Err("no cell has figures".to_owned());
    }
    let subtitle = format!(
        "Rate of each repeat against the geometric mean of its cell, in percent, which is 0; line: 95 % interval of \
         that mean. Marks of repeats that do not count show the rate that they had.{}",
        apart(comparison)
    );
    let mut canvas = shown.titled("Spread over repeats", &subtitle);
    legend(&mut canvas);
    let names = Names::wide(comparison);
    for i in 0..comparison.groups.len() {
        let members: Vec<(usize, &Row)> = comparison
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.group == i)
            .collect();
        canvas.heading(&group_heading(comparison, i));
        panel(&mut canvas, &names, &members);
    }
    absent(&mut canvas, comparison);
    Ok(canvas)
}

fn legend(canvas: &mut Canvas) {
    let mut x = MARGIN + 6;
    for (mark, words) in [
        (Mark::Counted, "counts"),
        (Mark::Failed, "failed"),
        (Mark::Contradicted, "contradicts its job"),
        (Mark::Suspect, "disturbed"),
        (Mark::Unmeasured, "nothing to measure"),
    ] {
        canvas.mark(mark, (x, canvas.top + 6), INK);
        canvas.text(words, (x + 12, canvas.top), SMALL, FAINT, Anchor::Left);
        x += width_of(words, SMALL) + 44;
    }
    canvas.top += SMALL + 8;
}

fn mark_of(repeat: &RepeatSummary) -> Mark {
    match repeat.status {
        RepeatStatus::Ok => Mark::Counted,
        RepeatStatus::Failed { .. } => Mark::Failed,
        RepeatStatus::Contradicted { .. } => Mark::Contradicted,
        RepeatStatus::Suspect { .. } => Mark::Suspect,
        RepeatStatus::Unmeasured { .. } => Mark::Unmeasured,
    }
}

/// In percent of the mean; absent where either is not a rate.
fn deviation(row: &Row, rate: f64) -> Option<f64> {
    let percent = (rate / row.tokens_per_second_per_gpu.value - 1.0) * 100.0;
    percent.is_finite().then_some(percent)
}

fn rates(row: &Row) -> impl Iterator<Item = (Mark, f64)> {
    let rate = |r: &RepeatSummary| deviation(row, r.steady.as_ref()?.tokens_per_second_per_gpu);
    row.repeats
        .iter()
        .filter_map(move |r| Some((mark_of(r), rate(r)?)))
}

fn interval(row: &Row) -> Option<[f64; 2]> {
    let [low, high] = row.tokens_per_second_per_gpu.ci95?;
    Some([deviation(row, low)?, deviation(row, high)?])
}

fn panel(canvas: &mut Canvas, names: &Names, members: &[(usize, &Row)]) {
    let marks = members
        .iter()
        .flat_map(|(_, row)| rates(row))
        .map(|(_, off)| off.abs().min(FARTHEST))
        .fold(0.0, f64::max);
    let ends = members
        .iter()
        .filter_map(|(_, row)| interval(row))
        .flatten()
        .map(f64::abs)
        .fold(0.0, f64::max);
    // The interval of two repeats may be of any width.
    let most = marks.max(ends.min(marks * 3.0)).max(1.0) * 1.05;
    let of: Vec<usize> = members.iter().map(|(index, _)| *index).collect();
    let left = MARGIN + names.gutter(of.iter().copied());
    let scale = Scale::new([-most, most], [left, RIGHT]);
    let top = canvas.top;
    let figures: Vec<Vec<String>> = members
        .iter()
        .map(|(_, row)| wrap(&words(row), TEXT, FIGURES - 40))
        .collect();
    let strip = |lines: &Vec<String>| THICK.max(lines.len() as i32 * (TEXT + 4));
    let heights = members
        .iter()
        .zip(&figures)
        .map(|((index, _), lines)| names.labels_height(*index) + strip(lines) + 6);
    let bottom = top + heights.sum::<i32>();
    let mut free = i32::MIN;
    for (tick, label) in scale.ticks(8) {
        let (x, half) = (scale.at(tick), width_of(&label, SMALL) / 2);
        canvas.line(
            vec![(x, top), (x, bottom + 4)],
            if tick == 0.0 { FAINT } else { LINE },
            1,
        );
        if x - half >= free {
            canvas.text(&label, (x, bottom + 8), SMALL, FAINT, Anchor::Middle);
            free = x + half + 14;
        }
    }
    canvas.text(
        "% of the cell's mean",
        (RIGHT + 34, bottom + 8),
        SMALL,
        FAINT,
        Anchor::Left,
    );
    for (((index, row), lines), name) in members.iter().zip(&figures).zip(names.in_gutter(&of)) {
        canvas.label(&name, (left - 8, canvas.top + 3), TEXT, INK, Anchor::Right);
        let middle = canvas.top + THICK / 2;
        canvas.line(vec![(left, middle), (RIGHT, middle)], LINE, 1);
        if let Some([low, high]) = interval(row) {
            canvas.line(
                vec![(scale.at(low), middle), (scale.at(high), middle)],
                INK,
                2,
            );
            for x in [low, high]
                .into_iter()
                .filter(|end| scale.holds(*end))
                .map(|end| scale.at(end))
            {
                canvas.line(vec![(x, middle - 7), (x, middle + 7)], INK, 2);
            }
        }
        for (mark, off) in rates(row) {
            let colour = match mark {
                Mark::Counted => names.colour(*index),
                _ => INK,
            };
            canvas.mark(mark, (scale.at(off), middle), colour);
        }
        for (i, line) in (0..).zip(lines) {
            canvas.label(
                line,
                (RIGHT + 20, canvas.top + 3 + i * (TEXT + 4)),
                TEXT,
                INK,
                Anchor::Left,
            );
        }
        canvas.top += strip(lines);
        names.draw_labels(canvas, *index, left);
        canvas.top += 6;
    }
    canvas.top = bottom + 8 + SMALL + 8;
}

/// `10,600 to 10,764 tokens/s/GPU, n = 2 of 3; #3 failed (oom)`
fn words(row: &Row) -> String {
    let values = &row.tokens_per_second_per_gpu.values;
    let range = match super::axis::extent(values.iter().copied()) {
        Some([low, high]) if values.len() > 1 => format!("{} to {}", number(low), number(high)),
        _ => number(row.tokens_per_second_per_gpu.value),
    };
    let rate = if row.impossible().is_some() {
        "impossible".to_owned()
    } else {
        format!("{range} {}", rate_unit(std::iter::once(row)))
    };
    let mut words = format!("{rate}, n = {} of {}", row.n, row.repeats_wanted);
    let not_counted = || row.repeats.iter().filter(|r| r.status != RepeatStatus::Ok);
    for repeat in not_counted().take(NAMED) {
        match &repeat.status {
            RepeatStatus::Ok => {}
            RepeatStatus::Failed { class, .. } => {
                words += &format!("; #{} failed ({})", repeat.repeat, class.name())
            }
            RepeatStatus::Contradicted { fields } => {
                words += &format!("; #{} contradicts {}", repeat.repeat, fields.join(", "));
            }
            RepeatStatus::Suspect { .. } => words += &format!("; #{} disturbed", repeat.repeat),
            RepeatStatus::Unmeasured { .. } => words += &format!("; #{} unmeasured", repeat.repeat),
        }
    }
    let more = not_counted().count().saturating_sub(NAMED);
    if more > 0 {
        words += &format!("; {more} more do not count");
    }
    words
}

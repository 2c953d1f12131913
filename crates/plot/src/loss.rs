//! Loss and learning rate, over steps and over tokens; at most six cells to a panel.

use tprimat_figures::Row;
use tprimat_results::{FieldDifference, Tier, differences};

use super::{
    axis::{Scale, extent},
    canvas::Canvas,
    cell_selection::Shown,
    chart::{Curve, Frame, room_for},
    names::{Names, count_absent, group_heading},
    series::{Series, median, thinned},
    style::{FAINT, GAP, HALF, MARGIN, MOST_LINES, SMALL, TEXT},
};

/// Where the largest value is this many times the smallest, the axis is logarithmic.
const LOGARITHMIC: f64 = 8.0;
/// Points of a line: a panel is no wider.
const POINTS: usize = 240;
const HEIGHT: i32 = 330;
const LOW: i32 = 190;
/// Panels of a picture, each of a loss and a learning rate.
const MOST_PANELS: usize = 14;

/// A row with what its log has.
struct Member<'a> {
    index: usize,
    row: &'a Row,
    loss: Series,
    learning_rate: Series,
}

#[derive(Clone, Copy)]
enum Pick {
    Loss,
    LearningRate,
}

impl Member<'_> {
    fn series(&self, pick: Pick) -> &Series {
        match pick {
            Pick::Loss => &self.loss,
            Pick::LearningRate => &self.learning_rate,
        }
    }
}

pub fn loss(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    let subtitle = "Median over the counted repeats. Cells whose loss may differ for other reasons than their platform \
                    (seed, schedule, data) have panels of their own. Tokens: step × tokens of a step.";
    let mut rates = comparison
        .rows
        .iter()
        .map(|row| median(row, |curve| &curve.learning_rate));
    let title = if rates.any(|rate| !rate.is_empty()) {
        "Loss and learning rate"
    } else {
        "Loss"
    };
    let mut canvas = shown.titled(title, subtitle);
    let names = Names::beside_samples(comparison);
    let (mut without, mut panels, mut unshown) = (Vec::new(), 0, 0);
    for i in 0..comparison.groups.len() {
        let mut members = Vec::new();
        for (index, row) in comparison
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.group == i)
        {
            let loss = thinned(median(row, |curve| &curve.loss), POINTS);
            if loss.is_empty() {
                without.push(row.cell.as_str());
            } else {
                let learning_rate = thinned(median(row, |curve| &curve.learning_rate), POINTS);
                members.push(Member {
                    index,
                    row,
                    loss,
                    learning_rate,
                });
            }
        }
        if members.is_empty() {
            continue;
        }
        canvas.heading(&group_heading(comparison, i));
        let mut numbers: Vec<usize> = members.iter().map(|m| m.row.loss_group).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in &numbers {
            let inside: Vec<&Member> = members
                .iter()
                .filter(|m| m.row.loss_group == *number)
                .collect();
            panels += inside.len().div_ceil(MOST_LINES);
            if panels > MOST_PANELS {
                unshown += inside.len();
                continue;
            }
            let first = &members[0];
            if let Some(words) = inside
                .first()
                .and_then(|member| loss_apart(member.row, first.row))
            {
                canvas.paragraph(
                    &format!("Apart from {}: {words}", names.tag(first.index)),
                    TEXT,
                    FAINT,
                );
            }
            draw_group(&mut canvas, &names, &inside);
        }
    }
    if without.len() == comparison.rows.len() {
        return Err("no log states a loss".to_owned());
    }
    if !without.is_empty() {
        canvas.paragraph(
            &format!("No loss is logged: {}", without.join(", ")),
            SMALL,
            FAINT,
        );
    }
    if unshown > 0 {
        let words = format!(
            "{unshown} more cells trained towards other losses and have no panel here: compare.json."
        );
        canvas.paragraph(&words, SMALL, FAINT);
    }
    count_absent(&mut canvas, comparison);
    Ok(canvas)
}

/// Why the losses of two rows may not be laid over each other, if the guard says that they may not.
pub fn loss_apart(row: &Row, other: &Row) -> Option<String> {
    if (row.group, row.loss_group) == (other.group, other.loss_group) {
        return None;
    }
    let known = differences(&row.contract, &other.contract).into_iter();
    let known = known.filter(|d| d.is_known() && d.tier == Tier::Convergence);
    let fields: Vec<String> = known.map(|d: FieldDifference| d.words()).collect();
    // The difference may be from a third cell, which is comparable with the other.
    let fields = if fields.is_empty() {
        String::new()
    } else {
        format!(": {}", fields.join("; "))
    };
    Some(format!("loss not comparable{fields}"))
}

/// Panels of at most six lines, all of them with the same axes.
fn draw_group(canvas: &mut Canvas, names: &Names, members: &[&Member]) {
    for some in members.chunks(MOST_LINES) {
        let tags: Vec<String> = some.iter().map(|m| names.tag(m.index)).collect();
        for (title, height, pick) in [
            ("loss", HEIGHT, Pick::Loss),
            ("learning rate", LOW, Pick::LearningRate),
        ] {
            if some.iter().all(|m| m.series(pick).is_empty()) {
                continue;
            }
            let top = canvas.top;
            let frame = |left, x_title| Frame {
                left,
                top,
                width: HALF,
                height,
                tags: room_for(tags.iter().map(String::as_str)),
                title,
                x_title,
            };
            let step = |_: &Row| Some(1.0);
            draw(
                canvas,
                names,
                &frame(MARGIN, "step"),
                (members, some),
                pick,
                step,
            );
            let tokens = |row: &Row| Some(row.tokens_per_step? as f64);
            draw(
                canvas,
                names,
                &frame(MARGIN + HALF + GAP, "tokens"),
                (members, some),
                pick,
                tokens,
            );
            canvas.top = top + height;
        }
        for (style, member) in some.iter().enumerate() {
            names.draw_with_sample(canvas, member.index, style);
        }
        canvas.top += 14;
    }
}

/// `scale_by`: what a step is on the horizontal axis; rows for which it is not known are left out.
fn draw(
    canvas: &mut Canvas,
    names: &Names,
    frame: &Frame,
    (all, some): (&[&Member], &[&Member]),
    pick: Pick,
    scale_by: fn(&Row) -> Option<f64>,
) {
    let across = |m: &&Member| -> Option<Series> {
        let by = scale_by(m.row)?;
        Some(
            m.series(pick)
                .iter()
                .map(|(step, value)| (step * by, *value))
                .collect(),
        )
    };
    let points: Series = all.iter().filter_map(across).flatten().collect();
    let (Some(span), Some(values)) = (
        extent(points.iter().map(|p| p.0)),
        extent(points.iter().map(|p| p.1)),
    ) else {
        return;
    };
    let x = frame.x(span);
    let y = match pick {
        Pick::Loss => loss_axis(frame, values),
        Pick::LearningRate => frame.y([values[0].min(0.0), values[1] * 1.05]),
    };
    frame.draw(canvas, &x, &y);
    let curve = |(style, m): (usize, &&Member)| {
        Some(Curve {
            tag: names.tag(m.index),
            pen: Some(names.pen(m.index, style)),
            points: across(m)?,
        })
    };
    let curves: Vec<Curve> = some.iter().enumerate().filter_map(curve).collect();
    frame.curves(canvas, &curves, &x, &y);
}

/// A curve that stays away from 0 is shown from where it is; one that is near it, from 0.
pub fn loss_axis(frame: &Frame, [low, high]: [f64; 2]) -> Scale {
    if low > 0.0 && high / low > LOGARITHMIC {
        return frame.y([low / 1.1, high * 1.1]).logarithmic();
    }
    let floor = if low > 0.0 && low < high * 0.5 {
        0.0
    } else {
        low
    };
    let margin = ((high - floor) * 0.06).max(high.abs() * 1e-3).max(1e-12);
    frame.y([
        if floor == 0.0 { 0.0 } else { floor - margin },
        high + margin,
    ])
}

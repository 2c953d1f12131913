//! Loss and learning rate, over steps and over tokens; at most six cells to a panel.

use tprimat_numbers::figures::Row;
use tprimat_numbers::results::{FieldDifference, Tier, differences};

use super::{
    axis::{Scale, extent},
    canvas::Canvas,
    cells::{Cell, Shown},
    lines::{Curve, Lines, draw_beside},
    series::{Series, Values, median, thinned},
    style::{FAINT, MOST_LINES, SMALL, TEXT},
};

/// Where the largest value is this many times the smallest, the axis is logarithmic.
const LOGARITHMIC: f64 = 8.0;
/// Points of a line: a panel is no wider.
const POINTS: usize = 240;
/// Panels of a picture, each of a loss and a learning rate.
const MOST_PANELS: usize = 14;

/// The panels of a cell, from top to bottom, each with its height.
const PANELS: [(&str, i32, Values); 2] = [
    ("loss", 330, |curve| &curve.loss),
    ("learning rate", 190, |curve| &curve.learning_rate),
];

/// A cell with the curve of each panel.
struct Member<'a> {
    cell: &'a Cell<'a>,
    curves: [Series; 2],
}

impl<'a> Member<'a> {
    fn of(cell: &'a Cell<'a>) -> Self {
        let curve = |values| thinned(median(cell.row, values), POINTS);
        Self {
            cell,
            curves: PANELS.map(|(.., values)| curve(values)),
        }
    }
}

pub fn loss(shown: &Shown) -> Result<Canvas, String> {
    let subtitle = "Median over the counted repeats. Cells whose loss may differ for other reasons than their platform \
                    (seed, schedule, data) have panels of their own. Tokens: step × tokens of a step.";
    let all: Vec<Vec<Member>> = shown
        .workloads
        .iter()
        .map(|one| one.cells.iter().map(Member::of).collect())
        .collect();
    let members = || all.iter().flatten();
    let (with, without): (Vec<&Member>, Vec<&Member>) =
        members().partition(|member| !member.curves[0].is_empty());
    if with.is_empty() {
        return Err("no log states a loss".to_owned());
    }
    let title = match members().any(|member| !member.curves[1].is_empty()) {
        true => "Loss and learning rate",
        false => "Loss",
    };
    let mut canvas = shown.titled(title, subtitle, 0);
    let (mut panels, mut unshown) = (0, 0);
    for (workload, members) in shown.workloads.iter().zip(&all) {
        let mut members: Vec<&Member> =
            members.iter().filter(|m| !m.curves[0].is_empty()).collect();
        let Some(first) = members.first().map(|member| member.cell) else {
            continue;
        };
        workload.draw_heading(&mut canvas);
        members.sort_by_key(|member| member.cell.row.loss_group);
        for alike in members.chunk_by(|a, b| a.cell.row.loss_group == b.cell.row.loss_group) {
            panels += alike.len().div_ceil(MOST_LINES);
            if panels > MOST_PANELS {
                unshown += alike.len();
                continue;
            }
            if let Some(words) = loss_apart(alike[0].cell.row, first.row) {
                let words = format!("Apart from {}: {words}", first.tag);
                canvas.paragraph(&words, TEXT, FAINT);
            }
            draw_alike(&mut canvas, alike);
        }
    }
    if !without.is_empty() {
        let names: Vec<&str> = without.iter().map(|m| m.cell.row.cell.as_str()).collect();
        let words = format!("No loss is logged: {}", names.join(", "));
        canvas.paragraph(&words, SMALL, FAINT);
    }
    if unshown > 0 {
        let words = format!(
            "{unshown} more cells trained towards other losses and have no panel here: compare.json."
        );
        canvas.paragraph(&words, SMALL, FAINT);
    }
    shown.count_absent(&mut canvas);
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
    let fields = match fields.is_empty() {
        true => String::new(),
        false => format!(": {}", fields.join("; ")),
    };
    Some(format!("loss not comparable{fields}"))
}

/// Panels of at most six lines, all of them with the same axes.
fn draw_alike(canvas: &mut Canvas, alike: &[&Member]) {
    for some in alike.chunks(MOST_LINES) {
        for (place, (title, height, _)) in PANELS.iter().enumerate() {
            if some.iter().all(|member| member.curves[place].is_empty()) {
                continue;
            }
            let over_steps = panel(title, place, (alike, some), "step", |_| Some(1.0));
            let over_tokens = panel(title, place, (alike, some), "tokens", |row| {
                Some(row.tokens_per_step? as f64)
            });
            draw_beside(canvas, *height, over_steps.iter().chain(&over_tokens));
        }
        for (place, member) in some.iter().enumerate() {
            member.cell.draw_key(canvas, place, member.cell.colour, "");
        }
        canvas.top += 14;
    }
}

/// `step`: what a step is on the horizontal axis; rows for which it is not known are left out.
fn panel(
    title: &str,
    place: usize,
    (all, some): (&[&Member], &[&Member]),
    x_title: &str,
    step: fn(&Row) -> Option<f64>,
) -> Option<Lines> {
    let points = |member: &Member| -> Option<Series> {
        let by = step(member.cell.row)?;
        let points = member.curves[place].iter();
        Some(points.map(|(step, value)| (step * by, *value)).collect())
    };
    let of_all: Series = all
        .iter()
        .filter_map(|member| points(member))
        .flatten()
        .collect();
    let [low, high] = extent(of_all.iter().map(|p| p.1))?;
    let y = match place {
        0 => loss_axis([low, high]),
        _ => Scale::new([low.min(0.0), high * 1.05]),
    };
    let x = Scale::new(extent(of_all.iter().map(|p| p.0))?);
    let mut lines = Lines::new(title, x_title, x, y);
    let curve = |(place, member): (usize, &&Member)| {
        let cell = member.cell;
        Some(Curve::at_place(
            place,
            &cell.tag,
            cell.colour,
            points(member)?,
        ))
    };
    lines.curves = some.iter().enumerate().filter_map(curve).collect();
    Some(lines)
}

/// A curve that stays away from 0 is shown from where it is; one that is near it, from 0.
pub fn loss_axis([low, high]: [f64; 2]) -> Scale {
    if low > 0.0 && high / low > LOGARITHMIC {
        return Scale::new([low / 1.1, high * 1.1]).logarithmic();
    }
    if low > 0.0 && low < high * 0.5 {
        return Scale::new([0.0, high * 1.06]);
    }
    let margin = ((high - low) * 0.06).max(high.abs() * 1e-3).max(1e-12);
    Scale::new([low - margin, high + margin])
}

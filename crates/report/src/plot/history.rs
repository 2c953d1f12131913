//! A cell's speed over time, a panel a cell: measurements with their intervals, and at each what
//! was changed before it.

use super::{
    Picture,
    axis::{Scale, extent},
    canvas::{Canvas, Mark},
    format::{MISSING, change_range, faster, points},
    lines::{Curve, Dashes, Lines, Whisker},
    style::{FAINT, FULL, INK, MARGIN, PAPER, SMALL, TEXT, colour_of},
};
use tprimat_base::error::Result;
use tprimat_numbers::figures::{
    CellHistory, ChangedSetting, Estimate, Level, Measurement, Since, framework_of, rate_unit_of,
    unit_in_prose,
};

pub const NAME: &str = "history";
pub const TITLE: &str = "Speed over time";
const HEIGHT: i32 = 240;
/// Cells and measurements that a picture shows: the last ones.
const MOST_CELLS: usize = 20;
const MOST: usize = 40;
/// Changes that are named at a measurement.
const MOST_CAUSES: usize = 6;

/// The histories of some cells as a picture. Pure: the same histories give the same bytes.
///
/// # Errors
/// Only where plotters or the PNG encoder fail.
pub fn history_picture(cells: &[CellHistory]) -> Result<Picture> {
    let unit = unit_in_prose(rate_unit_of(cells.iter().map(|cell| cell.cell.as_str())));
    let subtitle = format!(
        "In {unit}. Each measurement with its 95 % interval, in order of time (UTC). The number at a dashed line leads to \
         what was changed before the measurement right of it. Triangle: faster (upwards) or slower (downwards) than before; \
         disc: no significant change; ring: no verdict; cross: no run counts."
    );
    let mut canvas = Canvas::titled(TITLE, &subtitle);
    let rates = |cell: &CellHistory| cell.measurements.iter().filter_map(rate).count();
    // One point is no course of time; it is drawn only where nothing else is.
    let least = cells.iter().map(rates).max().unwrap_or(0).clamp(1, 2);
    let drawn: Vec<&CellHistory> = cells.iter().filter(|cell| rates(cell) >= least).collect();
    for cell in drawn.iter().take(MOST_CELLS) {
        panel(&mut canvas, cell);
    }
    let said = match drawn.len() {
        0 => "No measurement has a rate.".to_owned(),
        all if all > MOST_CELLS => format!(
            "{} more cells are not drawn: name the cells to see them.",
            all - MOST_CELLS
        ),
        _ => String::new(),
    };
    canvas.paragraph(&said, TEXT, INK);
    Picture::of(NAME, TITLE, canvas)
}

fn rate(m: &Measurement) -> Option<&Estimate> {
    m.tokens_per_second_per_gpu.as_ref()
}

fn panel(canvas: &mut Canvas, cell: &CellHistory) {
    canvas.heading(&title(cell));
    let own = colour_of(framework_of(&cell.cell));
    let left_out = cell.measurements.len().saturating_sub(MOST);
    let shown = &cell.measurements[left_out..];
    let ends = |rate: &Estimate| rate.ci95.unwrap_or([rate.value, rate.value]);
    let [low, high] = extent(shown.iter().filter_map(rate).flat_map(ends)).unwrap_or([0.0, 1.0]);
    // Not from 0, but never so near that noise looks like a change.
    let room = ((high - low) * 0.25).max(high * 0.02);
    let x = Scale::new([-0.5, shown.len() as f64 - 0.5]);
    let y = Scale::new([(low - room).max(0.0), high + room]);
    let mut lines = Lines::new("", "", x, y);
    let mut notes: Vec<String> = Vec::new();
    if left_out > 0 {
        notes.push(format!("{left_out} earlier measurements are not drawn."));
    }
    let mut course = Vec::new();
    for (at, m) in (0..).map(f64::from).zip(shown) {
        let date = minute(m.started_at);
        if let Some(since) = &m.since {
            let number = (lines.dashes.len() + 1).to_string();
            let causes = causes(since, MOST_CAUSES);
            let speed = rate(m).map_or_else(|| "no run counts".to_owned(), |_| speed(since));
            notes.push(format!("{number}   {date}: {causes}; {speed}"));
            lines.dashes.push(Dashes {
                from: (at - 0.5, y.low),
                to: (at - 0.5, y.high),
                colour: FAINT,
                number,
            });
        }
        lines.ticks.push((at, date));
        let Some(rate) = rate(m) else {
            let above_axis = (at, y.low + (y.high - y.low) * 0.05);
            lines.marks.push((Mark::Cross, above_axis, FAINT));
            continue;
        };
        let ends = ends(rate);
        lines.whiskers.push(Whisker {
            at,
            ends,
            colour: INK,
        });
        let point = (at, rate.value);
        course.push(point);
        let changed = [&m.since, &m.since_level]
            .into_iter()
            .flatten()
            .map(|since| since.level);
        let changed = changed
            .clone()
            .find(|level| level.is_change())
            .or(changed.clone().next());
        match changed {
            Some(Level::Faster) => lines.marks.push((Mark::Up, point, INK)),
            Some(Level::Slower) => lines.marks.push((Mark::Down, point, INK)),
            Some(Level::Same) => lines.marks.push((Mark::Disc, point, own)),
            Some(Level::NotAssessed) | None => {
                let marks = [(Mark::Disc, point, PAPER), (Mark::Ring, point, own)];
                lines.marks.extend(marks);
            }
        }
    }
    lines.curves.push(Curve::plain(own, 2, course));
    let [left, right] = lines.across(MARGIN, FULL);
    lines.draw_wide(canvas, HEIGHT);
    canvas.top -= 10;
    for note in notes {
        canvas.lines_of(&note, left, right - left, SMALL, INK);
    }
}

/// `cpu/native/llama/single`, and where matrices use this name for several works,
/// `cpu/native/llama/single (seq_length 2048)`.
#[must_use]
pub fn title(cell: &CellHistory) -> String {
    let work = cell
        .work
        .iter()
        .map(|(field, value)| format!("{field} {value}"));
    let told: Vec<String> = work
        .chain(cell.imported.then(|| "imported".to_owned()))
        .collect();
    match told.is_empty() {
        true => cell.cell.clone(),
        false => format!("{} ({})", cell.cell, told.join(", ")),
    }
}

/// `train.py edited, torch 2.11 → 2.12 and 2 more`
#[must_use]
pub fn causes(since: &Since, most: usize) -> String {
    let told = since.changes.iter().take(most).map(ChangedSetting::words);
    let told = told.collect::<Vec<_>>().join(", ");
    match since.changes.len() {
        0 => "nothing that tprimat records was changed".to_owned(),
        all if all > most => format!("{told} and {} more", all - most),
        _ => told,
    }
}

/// `4.9 % slower (95 % CI 3.8–6.1 %)`, `2.97× as fast (95 % CI 2.95–3.00×)`, `no significant change
/// (95 % CI −0.6 to +1.0 %)`
#[must_use]
pub fn speed(since: &Since) -> String {
    let why = since.reason.as_ref().map(|why| why.text.clone());
    let Some(ratio) = since.ratio else {
        return why.map_or_else(|| MISSING.to_owned(), |why| format!("not compared: {why}"));
    };
    let width = since.interval.map(|[low, high]| high - low);
    let size = match ratio < 1.0 {
        true => format!("{} % slower", points(2.0 - ratio, width)),
        false => faster(ratio, width).0,
    };
    let range = |(ratio, [low, high]): (f64, [f64; 2])| match since.level {
        // Both ends as what they take away from the speed.
        Level::Slower => change_range(2.0 - ratio, [2.0 - high, 2.0 - low]),
        _ => change_range(ratio, [low, high]),
    };
    let interval = since
        .interval
        .map(|ends| format!(" (95 % CI {})", range((ratio, ends))));
    let interval = interval.unwrap_or_default();
    match since.level {
        Level::Same => format!("no significant change{interval}"),
        Level::Faster | Level::Slower => size + &interval,
        Level::NotAssessed => why.map_or(size.clone(), |why| format!("{size}, no verdict: {why}")),
    }
}

/// `2026-11-21 18:30`, UTC
#[must_use]
pub fn minute(seconds: f64) -> String {
    jiff::Timestamp::from_second(seconds as i64).map_or_else(
        |_| "unknown".to_owned(),
        |time| time.strftime("%Y-%m-%d %H:%M").to_string(),
    )
}

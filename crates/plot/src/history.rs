//! A cell's speed over time, a panel a cell: measurements with their intervals, and at each what
//! was changed before it.

use super::{
    Picture,
    axis::{Scale, extent},
    canvas::{Anchor, Canvas, Mark},
    format::{MISSING, change_range, faster, points},
    style::{FAINT, INK, LINE, MARGIN, PAPER, SMALL, TEXT, WIDTH, colour_of},
    text::{elide, register_fonts, width_of},
};
use tprimat_base::error::Result;
use tprimat_figures::{CellHistory, Level, Measurement, Since, rate_unit_of, unit_in_prose};
use tprimat_sentences::{changed_setting, said};

pub const NAME: &str = "history";
pub const TITLE: &str = "Speed over time";
const HEIGHT: i32 = 230;
const LEFT: i32 = MARGIN + 84;
const RIGHT: i32 = WIDTH - MARGIN - 24;
/// Cells and measurements that a picture shows: the last ones.
const MOST_CELLS: usize = 20;
const MOST: usize = 40;

/// The histories of some cells as a picture. Pure: the same histories give the same bytes.
///
/// # Errors
/// Only where plotters or the PNG encoder fail.
pub fn history_picture(cells: &[CellHistory], since: Option<f64>) -> Result<Picture> {
    register_fonts()?;
    let unit = unit_in_prose(rate_unit_of(cells.iter().map(|cell| cell.cell.as_str())));
    let subtitle = "Speed of each measurement with its 95 % interval, in order of time (UTC). Words at a \
                    dashed line say what was changed before the measurement right of it. Triangle: faster (upwards) or slower \
                    (downwards) than before; disc: no significant change; ring: no verdict; cross: no run counts.";
    let subtitle = format!("In {unit}. {subtitle}");
    let mut canvas = Canvas::titled(TITLE, &subtitle);
    let rates = |cell: &CellHistory| {
        from(cell, since)
            .iter()
            .filter(|m| m.tokens_per_second_per_gpu.is_some())
            .count()
    };
    // One point is no course of time; it is drawn only where nothing else is.
    let least = if cells.iter().any(|cell| rates(cell) > 1) {
        2
    } else {
        1
    };
    let with_rates: Vec<&CellHistory> = cells.iter().filter(|cell| rates(cell) >= least).collect();
    for cell in with_rates.iter().take(MOST_CELLS) {
        panel(&mut canvas, cell, since);
    }
    if with_rates.len() > MOST_CELLS {
        let more = with_rates.len() - MOST_CELLS;
        canvas.paragraph(
            &format!("{more} more cells are not drawn: name the cells to see them."),
            TEXT,
            INK,
        );
    }
    if with_rates.is_empty() {
        canvas.paragraph("No measurement has a rate.", TEXT, INK);
    }
    let (png, svg) = canvas.bounded().finish()?;
    Ok(Picture {
        name: NAME,
        title: TITLE,
        png,
        svg,
    })
}

fn panel(canvas: &mut Canvas, cell: &CellHistory, since: Option<f64>) {
    canvas.heading(&title(cell));
    let own = colour_of(cell.cell.split('/').nth(1).unwrap_or_default());
    let mut shown: Vec<&Measurement> = from(cell, since);
    let left_out = shown.len().saturating_sub(MOST);
    shown.drain(..left_out);
    let (top, bottom) = (canvas.top + 6, canvas.top + HEIGHT - 40);
    let ends = shown
        .iter()
        .filter_map(|m| m.tokens_per_second_per_gpu.as_ref())
        .flat_map(|e| {
            let [low, high] = e.ci95.unwrap_or([e.value, e.value]);
            [low, high, e.value]
        });
    let [low, high] = extent(ends).unwrap_or([0.0, 1.0]);
    // Not from 0, but never so near that noise looks like a change.
    let room = ((high - low) * 0.25).max(high * 0.02);
    let y = Scale::new([(low - room).max(0.0), high + room], [bottom, top]);
    for (value, label) in y.ticks(6) {
        canvas.line(vec![(LEFT, y.at(value)), (RIGHT, y.at(value))], LINE, 1);
        canvas.text(
            &label,
            (LEFT - 8, y.at(value) - 6),
            SMALL,
            FAINT,
            Anchor::Right,
        );
    }
    let x =
        |at: usize| LEFT + (RIGHT - LEFT) * (2 * at as i32 + 1) / (2 * shown.len().max(1) as i32);
    let mut free = LEFT;
    let mut notes: Vec<String> = Vec::new();
    // Under the marks, whose shapes say what became of the speed.
    let rates = shown.iter().enumerate();
    let course = rates.filter_map(|(at, m)| {
        let rate = m.tokens_per_second_per_gpu.as_ref()?;
        Some((x(at), y.at(rate.value)))
    });
    canvas.line(course.collect(), own, 2);
    for (at, m) in shown.iter().enumerate() {
        let across = x(at);
        let date = minute(m.started_at);
        let half = width_of(&date, SMALL) / 2;
        if across - half >= free && across + half <= RIGHT {
            canvas.text(&date, (across, bottom + 7), SMALL, FAINT, Anchor::Middle);
            free = across + half + 14;
        }
        if let Some(told) = m.since.as_ref().filter(|_| at > 0) {
            let middle = i32::midpoint(across, x(at - 1));
            canvas.dashed((middle, top), (middle, bottom), FAINT);
            notes.push(format!(
                "{}   {}: {}; {}",
                notes.len() + 1,
                date,
                causes(told, 6),
                speed(told)
            ));
            let words = format!("{}  {}", notes.len(), causes(told, 2));
            let room = (RIGHT - LEFT) / shown.len() as i32 - 12;
            let words = elide(&words, SMALL, room, 1.0);
            // Too little room for a word: the number leads to it below.
            let words = if words.chars().count() < 12 {
                notes.len().to_string()
            } else {
                words
            };
            canvas.label(&words, (middle, top), SMALL, INK, Anchor::Middle);
        }
        let Some(rate) = &m.tokens_per_second_per_gpu else {
            canvas.mark(Mark::Failed, (across, bottom - 8), FAINT);
            continue;
        };
        let point = (across, y.at(rate.value));
        if let Some([low, high]) = rate.ci95 {
            canvas.line(vec![(across, y.at(low)), (across, y.at(high))], INK, 1);
            for end in [low, high] {
                canvas.line(
                    vec![(across - 4, y.at(end)), (across + 4, y.at(end))],
                    INK,
                    1,
                );
            }
        }
        match m
            .since
            .as_ref()
            .map_or(Level::NotAssessed, |since| since.level)
        {
            Level::Faster => canvas.mark(Mark::Series(2), point, INK),
            Level::Slower => canvas.mark(Mark::Lower, point, INK),
            Level::Same => canvas.mark(Mark::Counted, point, own),
            Level::NotAssessed => {
                canvas.mark(Mark::Counted, point, PAPER);
                canvas.mark(Mark::Unmeasured, point, own);
            }
        }
    }
    canvas.line(vec![(LEFT, top), (LEFT, bottom), (RIGHT, bottom)], FAINT, 1);
    canvas.top = bottom + 30;
    if left_out > 0 {
        canvas.lines_of(
            &format!("{left_out} earlier measurements are not drawn."),
            LEFT,
            RIGHT - LEFT,
            SMALL,
            FAINT,
        );
    }
    for note in notes {
        canvas.lines_of(&note, LEFT, RIGHT - LEFT, SMALL, INK);
    }
    canvas.top += 10;
}

/// `cpu/native/llama/single`, and where matrices use this name for several works,
/// `cpu/native/llama/single (seq_length 2048)`.
#[must_use]
pub fn title(cell: &CellHistory) -> String {
    let mut named: Vec<String> = cell
        .work
        .iter()
        .map(|w| format!("{} {}", w.field, w.value))
        .collect();
    named.extend(cell.imported.then(|| "imported".to_owned()));
    if named.is_empty() {
        return cell.cell.clone();
    }
    format!("{} ({})", cell.cell, named.join(", "))
}

/// The measurements that started at `since` or later.
#[must_use]
pub fn from(cell: &CellHistory, since: Option<f64>) -> Vec<&Measurement> {
    cell.measurements
        .iter()
        .filter(|m| since.is_none_or(|since| m.started_at >= since))
        .collect()
}

/// `train.py edited, torch 2.11 → 2.12 and 2 more`
#[must_use]
pub fn causes(since: &Since, most: usize) -> String {
    if since.changes.is_empty() {
        return "nothing that tprimat records was changed".to_owned();
    }
    let (told, more) = since.changes.split_at(since.changes.len().min(most));
    let told = told
        .iter()
        .map(changed_setting)
        .collect::<Vec<_>>()
        .join(", ");
    if more.is_empty() {
        told
    } else {
        format!("{told} and {} more", more.len())
    }
}

/// `4.9 % slower (95 % CI 3.8–6.1 %)`, `2.97× as fast (95 % CI 2.95–3.00×)`, `no significant change
/// (95 % CI −0.6 to +1.0 %)`
#[must_use]
pub fn speed(since: &Since) -> String {
    let Some(ratio) = since.ratio else {
        return since.reason.as_ref().map_or_else(
            || MISSING.to_owned(),
            |why| format!("not compared: {}", said(why)),
        );
    };
    let width = since.interval.map(|[low, high]| high - low);
    let interval = since.interval.map(|ends| {
        let range = match since.level {
            // Both ends as what they take away from the speed.
            Level::Slower => change_range(2.0 - ratio, [2.0 - ends[1], 2.0 - ends[0]]),
            _ => change_range(ratio, ends),
        };
        format!(" (95 % CI {range})")
    });
    let interval = interval.unwrap_or_default();
    match since.level {
        Level::Same => format!("no significant change{interval}"),
        Level::Faster | Level::Slower | Level::NotAssessed => {
            let interval = if since.level == Level::NotAssessed {
                String::new()
            } else {
                interval
            };
            let verdict = since
                .reason
                .as_ref()
                .map(|why| format!(", no verdict: {}", said(why)))
                .unwrap_or_default();
            let size = if ratio < 1.0 {
                format!("{} % slower", points(2.0 - ratio, width))
            } else {
                faster(ratio, width).0
            };
            format!("{size}{interval}{verdict}")
        }
    }
}

/// `2026-11-21 18:30`, UTC
#[must_use]
pub fn minute(seconds: f64) -> String {
    moment(seconds, "%Y-%m-%d %H:%M")
}

/// `2026-11-21`, UTC
#[must_use]
pub fn day(seconds: f64) -> String {
    moment(seconds, "%Y-%m-%d")
}

fn moment(seconds: f64, format: &str) -> String {
    jiff::Timestamp::from_second(seconds as i64).map_or_else(
        |_| "unknown".to_owned(),
        |time| time.strftime(format).to_string(),
    )
}

//! Where the time of a step goes, drawn: the parts of one, or from one step to another.

use plotters::style::RGBColor;
use tprimat_base::error::Result;
use tprimat_numbers::figures::Breakdown;

use super::{
    Picture,
    axis::Scale,
    canvas::{Anchor, Canvas},
    style::{FAINT, INK, LINE, MARGIN, SERIES, SMALL, TEXT, WIDTH},
};
use crate::why::{self, milliseconds, signed};

const NAME: &str = "why";
const TITLE: &str = "Where the time goes";
/// Where the axis begins and ends; names stand left of it, figures right of it.
const AXIS: [i32; 2] = [MARGIN + 330, WIDTH - MARGIN - 120];
const THICK: i32 = 20;
const ROW: i32 = THICK + 8;
/// A name is cut to so many letters.
const NAME_LETTERS: usize = 42;
const PART: RGBColor = SERIES[0];
const LONGER: RGBColor = SERIES[1];
const SHORTER: RGBColor = SERIES[2];

/// One row: a bar from `from` to `to`, in seconds.
struct Row {
    name: String,
    from: f64,
    to: f64,
    figure: String,
    colour: RGBColor,
}

/// The breakdowns of [`crate::why_text`] as a picture: bars of one step, or a waterfall from the first step to
/// the second.
///
/// # Errors
/// Only where plotters or the PNG encoder fail.
pub fn why_picture(all: &[(String, Breakdown)]) -> Result<Picture> {
    let (sentence, rows) = match all {
        [(a_name, a), (b_name, b)] => (
            why::difference(a_name, a, b_name, b),
            waterfall(a_name, a, b_name, b),
        ),
        [(name, of), ..] => (why::one(name, of), parts(of)),
        [] => (String::new(), Vec::new()),
    };
    let mut canvas = Canvas::titled(TITLE, &sentence);
    canvas.top += 10;
    let most = rows
        .iter()
        .map(|row| row.from.max(row.to))
        .fold(0.0, f64::max);
    let scale = Scale::new([0.0, 1e3 * most.max(1e-9)]).on(AXIS);
    let (top, since) = (canvas.top, canvas.count());
    for row in &rows {
        draw(&mut canvas, row, &scale);
    }
    let bottom = canvas.top;
    canvas.behind(since, |canvas| {
        for (value, label) in scale.ticks(6) {
            let x = scale.at(value);
            canvas.line(vec![(x, top - 4), (x, bottom)], LINE, 1);
            canvas.text(&label, (x, bottom + 6), SMALL, FAINT, Anchor::Center);
        }
        canvas.text("ms", (AXIS[1] + 44, bottom + 6), SMALL, FAINT, Anchor::Left);
    });
    canvas.top = bottom + 6 + SMALL + 10;
    Picture::of(NAME, TITLE, canvas)
}

fn draw(canvas: &mut Canvas, row: &Row, scale: &Scale) {
    let [from, to] = [row.from, row.to].map(|seconds| scale.at(1e3 * seconds));
    let (left, right) = (from.min(to), from.max(to).max(from.min(to) + 1));
    let (top, bottom) = (canvas.top, canvas.top + THICK);
    let name: String = row.name.chars().take(NAME_LETTERS).collect();
    canvas.label(&name, (AXIS[0] - 10, top + 2), TEXT, INK, Anchor::Right);
    canvas.rectangle([(left, top), (right, bottom)], row.colour, true);
    canvas.text(&row.figure, (right + 8, top + 2), TEXT, INK, Anchor::Left);
    canvas.top += ROW;
}

fn parts(of: &Breakdown) -> Vec<Row> {
    let there = of.parts.iter().filter(|part| part.seconds > 0.0);
    let row = |part: &tprimat_numbers::figures::PartTime| {
        let share = 100.0 * part.seconds / of.step_seconds;
        Row {
            name: part.part.words().to_owned(),
            from: 0.0,
            to: part.seconds,
            figure: format!("{} ({share:.1} %)", milliseconds(part.seconds)),
            colour: PART,
        }
    };
    there.map(row).collect()
}

fn waterfall(a_name: &str, a: &Breakdown, b_name: &str, b: &Breakdown) -> Vec<Row> {
    let [of_a, of_b] = why::steps(a, b);
    let whole = |name: &str, seconds: f64| Row {
        name: name.to_owned(),
        from: 0.0,
        to: seconds,
        figure: milliseconds(seconds),
        colour: FAINT,
    };
    let mut rows = vec![whole(a_name, of_a)];
    let mut at = of_a;
    for (name, more) in why::changes(a, b) {
        rows.push(Row {
            name: name.to_owned(),
            from: at,
            to: at + more,
            figure: signed(more),
            colour: if more > 0.0 { LONGER } else { SHORTER },
        });
        at += more;
    }
    rows.push(whole(b_name, of_b));
    rows
}

#[cfg(test)]
mod tests {
    use tprimat_numbers::figures::{PartTime, StepPart};

    use super::*;

    fn step(products: f64, idle: f64, measured: Option<f64>) -> Breakdown {
        let seconds = |part| match part {
            StepPart::MatrixProducts => products,
            StepPart::Idle => idle,
            _ => 0.0,
        };
        let part = |part| PartTime {
            part,
            seconds: seconds(part),
            largest: Vec::new(),
        };
        Breakdown {
            steps: 3,
            is_by_step: true,
            step_seconds: products + idle,
            measured_step_seconds: measured,
            parts: StepPart::ALL.map(part).into(),
            hidden_exchange_seconds: 0.0,
        }
    }

    /// Each bar begins where the one before it ended, and the last one is at the second step.
    #[test]
    fn the_bars_lead_from_one_step_to_the_other() {
        for measured in [[None; 2], [Some(0.105), Some(0.16)]] {
            let (a, b) = (step(0.08, 0.02, measured[0]), step(0.07, 0.08, measured[1]));
            let rows = waterfall("a", &a, "b", &b);
            let between = &rows[1..rows.len() - 1];
            let mut at = rows[0].to;
            for row in between {
                assert_eq!(row.from, at, "{}", row.name);
                at = row.to;
            }
            assert!((at - rows[rows.len() - 1].to).abs() < 1e-12);
            assert!(
                between
                    .iter()
                    .any(|row| row.name == "idle" && row.to > row.from)
            );
        }
        let picture = why_picture(&[("a".to_owned(), step(0.08, 0.02, None))]).unwrap();
        assert!(picture.svg.contains("80.0 (80.0 %)"), "{}", picture.svg);
    }
}

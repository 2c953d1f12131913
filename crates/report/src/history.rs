//! A cell's measurements over time as text: one sentence on each cell, then every measurement with
//! what was changed before it.

use std::fmt::Write as _;

use tprimat_figures::{CellHistory, Level, Measurement, Since, host_named, rate_unit_of};
use tprimat_plot::history::{causes, day, from, minute, speed, title};
use tprimat_words::plain::counted;

use super::{
    format::{MISSING, number},
    paint::{Ink, Page},
    sheet::{Sheet, Word, paragraph},
    table::rate,
};

/// Cells that are shown measurement by measurement where nobody named any; of more, one line each.
const IN_FULL: usize = 3;

/// The histories of some cells. `since`: only measurements that started then or later are shown,
/// seconds since 1970. `in_full`: how to ask for each in full; none where somebody did.
#[must_use]
pub fn history_text(
    cells: &[CellHistory],
    since: Option<f64>,
    in_full: Option<&str>,
    page: &Page,
) -> String {
    let shown: Vec<(&CellHistory, Vec<&Measurement>)> = cells
        .iter()
        .map(|cell| (cell, from(cell, since)))
        .filter(|(_, measurements)| !measurements.is_empty())
        .collect();
    let mut out = String::new();
    if let Some(command) = in_full.filter(|_| shown.len() > IN_FULL) {
        out.push_str(&overview(&shown).show(page));
        let _ = writeln!(
            out,
            "\n\nA row shows the measurement of the present configuration, or the last one where there is none. `{command}` shows \
             every measurement of a cell and what was changed before it."
        );
        return out;
    }
    for (cell, measurements) in &shown {
        if !out.is_empty() {
            out.push('\n');
        }
        paragraph(
            &mut out,
            "",
            &sentence(cell, measurements),
            page,
            Ink::Strong,
        );
        // The sentence already says all there is about a single measurement.
        if measurements.len() > 1
            || measurements
                .iter()
                .any(|m| m.tokens_per_second_per_gpu.is_none())
        {
            let unit = rate_unit_of([cell.cell.as_str()]);
            out.push_str(&timeline(measurements, unit, page));
        }
    }
    if shown.iter().any(|(cell, m)| cell.imported && m.len() > 1) {
        out.push('\n');
        let note = "Of imported runs, only what their files state is compared: settings, packages, device and host. \
                    Sources, drivers and variables may have changed as well.";
        paragraph(&mut out, "", note, page, Ink::Dim);
    }
    if shown.iter().flat_map(|(_, m)| m).any(|m| {
        m.since
            .as_ref()
            .is_some_and(|since| since.level.is_change())
    }) {
        out.push('\n');
        let note = "Intervals come from the repeats within each measurement; clocks, heat and placement vary from day to day. So \
                    between sessions more than six hours apart, or between hosts, a change below 3 % gets no verdict.";
        paragraph(&mut out, "", note, page, Ink::Dim);
    }
    out
}

/// `cpu/native/llama/single: 4 measurements since 2026-10-02, the last at 54,838 tokens/s/GPU. Last
/// change of speed: 2026-11-21, 5 % slower (95 % CI 4–6 %). Changed before it: train.py edited.`
fn sentence(cell: &CellHistory, measurements: &[&Measurement]) -> String {
    let first = measurements.first().map_or(0.0, |m| m.started_at);
    let unit = rate_unit_of([cell.cell.as_str()]);
    let mut text = format!(
        "{}: {} since {}",
        title(cell),
        counted(measurements.len(), "measurement"),
        day(first)
    );
    let doubt = |m: &Measurement| {
        m.timer_factor.map_or_else(String::new, |factor| {
            format!(", which may be {factor:.1}× too high")
        })
    };
    let with_rate = measurements
        .iter()
        .enumerate()
        .rev()
        .find_map(|(at, m)| Some((at, m, m.tokens_per_second_per_gpu.as_ref()?)));
    // A configuration that was put back counts with what was measured of it, not with what was
    // measured last.
    let put_back = present(measurements).filter(|m| {
        measurements
            .last()
            .is_none_or(|last| !std::ptr::eq(*last, *m))
    });
    match (put_back, with_rate) {
        (Some(m), _) => {
            let at = minute(m.started_at);
            _ = match &m.tokens_per_second_per_gpu {
                Some(rate) => {
                    let (rate, doubt) = (number(rate.value), doubt(m));
                    write!(
                        text,
                        ". The present configuration was measured at {at}: {rate} {unit}{doubt}."
                    )
                }
                None => write!(
                    text,
                    ". The present configuration was measured at {at} and has no rate."
                ),
            };
        }
        (None, Some((at, m, rate))) if at + 1 == measurements.len() => {
            _ = write!(
                text,
                ", the last at {} {unit}{}.",
                number(rate.value),
                doubt(m)
            );
        }
        (None, Some((_, m, rate))) => {
            _ = write!(
                text,
                ". The last one has no rate; the one of {} ran at {} {unit}.",
                minute(m.started_at),
                number(rate.value)
            );
        }
        (None, None) => text.push_str(". None has a rate."),
    }
    if cell.is_outdated() {
        text.push_str(" The present configuration is not measured.");
    }
    let (changed, open) = (last_change(measurements), without_verdict(measurements));
    match changed {
        Some((at, since)) => {
            _ = write!(
                text,
                " Last change of speed: {}, {}. Changed before it: {}.",
                day(at),
                speed(since),
                causes(since, 3)
            );
        }
        None if measurements.len() > 1 && open == 0 => {
            text.push_str(" No change of speed was found.");
        }
        None => {}
    }
    if open > 0 {
        let then = if changed.is_some() {
            "Since then "
        } else {
            "Whether the speed changed is not known: "
        };
        let verb = if open == 1 { "has" } else { "have" };
        let compared = counted(open, "comparison");
        _ = write!(text, " {then}{compared} {verb} no verdict.");
    }
    text
}

/// The measurement of the present configuration, where it is among those that are shown.
fn present<'a>(measurements: &[&'a Measurement]) -> Option<&'a Measurement> {
    let mut latest_first = measurements.iter().rev();
    latest_first.find(|m| m.counts_now == Some(true)).copied()
}

/// How many measurements after the last change of speed are compared without a verdict.
fn without_verdict(measurements: &[&Measurement]) -> usize {
    measurements
        .iter()
        .rev()
        .filter_map(|m| m.since.as_ref())
        .take_while(|since| !since.level.is_change())
        .filter(|since| since.level == Level::NotAssessed && since.reason.is_some())
        .count()
}

fn last_change<'a>(measurements: &[&'a Measurement]) -> Option<(f64, &'a Since)> {
    let changed = |m: &&'a Measurement| {
        Some((
            m.started_at,
            m.since.as_ref().filter(|since| since.level.is_change())?,
        ))
    };
    measurements.iter().rev().find_map(changed)
}

fn overview(cells: &[(&CellHistory, Vec<&Measurement>)]) -> Sheet {
    let mut sheet = Sheet::default();
    let unit = rate_unit_of(cells.iter().map(|(cell, _)| cell.cell.as_str()));
    let rate_column = format!("{unit} (95 % CI)");
    let columns = [
        ("cell", false),
        ("measurements", true),
        ("measured (UTC)", false),
        (rate_column.as_str(), true),
        ("last change of speed", false),
    ];
    columns
        .into_iter()
        .for_each(|(name, figures)| sheet.column(name, figures));
    for (cell, measurements) in cells {
        // The measurement that counts now, and the last one where none is known to.
        let last = present(measurements).or_else(|| measurements.last().copied());
        let change = last_change(measurements);
        let said = change.map_or_else(
            || {
                let text = match (measurements.len(), without_verdict(measurements)) {
                    (1, _) => MISSING,
                    (_, 0) => "none found",
                    _ => "no verdict",
                };
                Word::inked(text, Ink::Dim)
            },
            |(at, since)| {
                Word::inked(
                    format!("{}: {}; {}", day(at), size(since), causes(since, 2)),
                    ink(since.level),
                )
            },
        );
        sheet.rows.push(vec![
            Word::plain(title(cell)),
            Word::plain(measurements.len().to_string()),
            Word::plain(last.map_or_else(String::new, |m| minute(m.started_at))),
            last.and_then(|m| m.tokens_per_second_per_gpu.as_ref())
                .map_or_else(Word::missing, |estimate| Word::plain(rate(estimate))),
            said,
        ]);
    }
    sheet
}

/// Every measurement on a line, and before it, indented, what was changed since the one that it is
/// held against.
fn timeline(measurements: &[&Measurement], unit: &str, page: &Page) -> String {
    let rate_column = format!("{unit} (95 % CI)");
    let header = [
        "started (UTC)",
        "host",
        "repeats",
        rate_column.as_str(),
        "speed against the one before",
    ];
    let row = |m: &Measurement| -> [String; 5] {
        let counts = m.runs.iter().filter(|run| run.counts).count();
        let repeats = if counts == m.runs.len() {
            counts.to_string()
        } else {
            format!("{counts} of {}", m.runs.len())
        };
        let figure = m
            .tokens_per_second_per_gpu
            .as_ref()
            .map_or_else(|| MISSING.to_owned(), rate);
        let against = m.since.as_ref().map_or_else(String::new, marked);
        [
            minute(m.started_at),
            host_named(&m.host).unwrap_or("not stated").to_owned(),
            repeats,
            figure,
            against,
        ]
    };
    let rows: Vec<[String; 5]> = measurements.iter().map(|m| row(m)).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &[String]| {
        let mut line = String::new();
        for (at, (word, width)) in row.iter().zip(&widths).enumerate() {
            // Figures stand to the right, so that they can be read down the column.
            _ = if at == 3 {
                write!(line, "{word:>width$}  ")
            } else {
                write!(line, "{word:<width$}  ")
            };
        }
        format!("  {}", line.trim_end())
    };
    let mut out = String::new();
    _ = writeln!(
        out,
        "{}",
        page.paint.ink(Ink::Dim, &line(&header.map(str::to_owned)))
    );
    for (at, (m, row)) in measurements.iter().zip(&rows).enumerate() {
        if let Some(since) = m.since.as_ref().filter(|_| at > 0) {
            paragraph(
                &mut out,
                "    ~ ",
                &causes(since, usize::MAX),
                page,
                Ink::Dim,
            );
        }
        let level = m
            .since
            .as_ref()
            .map_or(Level::NotAssessed, |since| since.level);
        _ = writeln!(out, "{}", page.paint.ink(ink(level), &line(row)));
        if let Some(factor) = m.timer_factor {
            let doubt = format!(
                "the rate may be {factor:.1}× too high: by the clock, its step times leave out time that passes after most steps"
            );
            paragraph(&mut out, "      ", &doubt, page, Ink::Bad);
        }
        for (count, why) in not_counted(m) {
            // Each of them has this reason, which speaks of one.
            let runs = match count {
                1 => "1 run is not counted".to_owned(),
                count => format!("each of {count} runs is not counted"),
            };
            paragraph(
                &mut out,
                "      ",
                &format!("{runs}: {why}"),
                page,
                Ink::Dim,
            );
        }
    }
    out
}

fn not_counted(m: &Measurement) -> Vec<(usize, &str)> {
    let mut reasons: Vec<(usize, &str)> = Vec::new();
    for why in m.runs.iter().filter_map(|run| run.why_not.as_deref()) {
        match reasons.iter_mut().find(|(_, known)| *known == why) {
            Some((count, _)) => *count += 1,
            None => reasons.push((1, why)),
        }
    }
    reasons
}

/// `▼ 4.9 % slower (95 % CI 3.8–6.1 %)`; the mark repeats what the words say.
fn marked(since: &Since) -> String {
    let mark = match since.level {
        Level::Faster => "▲ ",
        Level::Slower => "▼ ",
        Level::Same | Level::NotAssessed => "",
    };
    format!("{mark}{}", speed(since))
}

/// `4.9 % slower`
fn size(since: &Since) -> String {
    let text = speed(since);
    text.split(" (").next().unwrap_or_default().to_owned()
}

fn ink(level: Level) -> Ink {
    match level {
        Level::Faster => Ink::Good,
        Level::Slower => Ink::Bad,
        Level::Same | Level::NotAssessed => Ink::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tprimat_figures::{ChangedSetting, Estimate, PastRun, Run, assess};
    use tprimat_results::Contract;

    /// Three measurements a day apart; the second one failed.
    pub fn three() -> CellHistory {
        let measured = |day: f64, rates: &[f64]| {
            let at = 1.79e9 + day * 86_400.0;
            let run = |rate: &f64| Run {
                rate: *rate,
                host: "box",
                started_at: Some(at),
                ended_at: Some(at + 60.0),
            };
            let past = |why: Option<&str>| PastRun {
                attempt: "a".into(),
                repeat: 1,
                started_at: at,
                ended_at: at + 60.0,
                tokens_per_second_per_gpu: None,
                counts: why.is_none(),
                why_not: why.map(str::to_owned),
                is_unread: false,
            };
            Measurement {
                started_at: at,
                ended_at: at + 60.0,
                host: "box".into(),
                configuration: "c".into(),
                generation: 0,
                tokens_per_second_per_gpu: Estimate::of(&rates.iter().map(run).collect::<Vec<_>>()),
                timer_factor: None,
                since: None,
                counts_now: None,
                runs: if rates.is_empty() {
                    vec![past(Some("failed (oom)"))]
                } else {
                    rates.iter().map(|_| past(None)).collect()
                },
                contract: Contract::default(),
                matrices: Default::default(),
            }
        };
        let mut measurements = vec![
            measured(0.0, &[1000.0, 1004.0, 997.0]),
            measured(1.0, &[]),
            measured(2.0, &[951.0, 948.0, 953.0]),
        ];
        assess(&mut measurements, |before, now| {
            let value = |at: usize| Some(format!("2.1{at}"));
            vec![ChangedSetting {
                what: "torch".into(),
                how: None,
                old: value(before),
                new: value(now),
            }]
        });
        CellHistory {
            cell: "nvd/tran/llama/single".into(),
            imported: false,
            work: Vec::new(),
            measurements,
        }
    }

    /// A rate that the clock doubts is marked, and its change is neither told as one nor denied.
    #[test]
    fn a_doubted_rate_is_said_to_be_one() {
        let mut cell = three();
        cell.measurements.truncate(1);
        let mut doubled = cell.measurements[0].clone();
        doubled.started_at += 86_400.0;
        let rate = doubled.tokens_per_second_per_gpu.as_mut().unwrap();
        rate.value *= 2.0;
        for each in rate.values.iter_mut().chain(&mut rate.units) {
            *each *= 2.0;
        }
        doubled.timer_factor = Some(2.0);
        cell.measurements.push(doubled);
        assess(&mut cell.measurements, |_, _| Vec::new());
        let wide = Page {
            width: 400,
            ..Page::file()
        };
        let text = history_text(&[cell], None, None, &wide);
        for words in [
            "which may be 2.0× too high. Whether the speed changed is not known: 1 comparison has no verdict.",
            "the rate may be 2.0× too high: by the clock",
        ] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains("No change of speed"), "{text}");
    }

    #[test]
    fn each_measurement_has_its_speed_and_what_was_changed_before_it() {
        insta::assert_snapshot!(history_text(&[three()], None, None, &Page::file()));
    }

    /// The speed of an earlier measurement is not said to be that of the last one.
    #[test]
    fn a_rate_stands_with_the_measurement_that_has_it() {
        let mut cell = three();
        cell.measurements.pop();
        let told = sentence(&cell, &from(&cell, None));
        let expected = "2 measurements since 2026-09-21. The last one has no rate; the one of 2026-09-21 14:13 ran at 1,000 tokens/s/GPU.";
        assert!(told.contains(expected), "{told}");
        let many: Vec<CellHistory> = (0..4)
            .map(|n| CellHistory {
                cell: format!("c{n}"),
                ..cell.clone()
            })
            .collect();
        let overview = history_text(&many, None, Some("tprimat history CELL"), &Page::file());
        assert!(
            overview.contains("2026-09-22 14:13") && !overview.contains("1,000"),
            "{overview}"
        );
        cell.measurements.remove(0);
        assert!(sentence(&cell, &from(&cell, None)).contains("since 2026-09-22. None has a rate."));
    }

    /// `--since` leaves out the measurement of the present configuration like any other.
    #[test]
    fn what_is_not_shown_is_not_told_either() {
        let mut cell = three();
        for (at, measurement) in cell.measurements.iter_mut().enumerate() {
            measurement.counts_now = Some(at == 0);
        }
        let since = cell.measurements[1].started_at;
        let all = sentence(&cell, &from(&cell, None));
        assert!(all.contains("was measured at 2026-09-21"), "{all}");
        let later = sentence(&cell, &from(&cell, Some(since)));
        assert!(!later.contains("2026-09-21"), "{later}");
        let many = vec![cell; 4];
        let overview = history_text(
            &many,
            Some(since),
            Some("tprimat history CELL"),
            &Page::file(),
        );
        assert!(
            !overview.contains("2026-09-21") && overview.contains("950.7"),
            "{overview}"
        );
    }

    /// From twice the speed on, both the value and its interval are factors.
    #[test]
    fn a_change_and_its_interval_have_one_unit() {
        let since = |ratio: f64, level| Since {
            started_at: 0.0,
            changes: Vec::new(),
            ratio: Some(ratio),
            interval: Some([ratio - 0.03, ratio + 0.03]),
            level,
            reason: None,
        };
        assert_eq!(
            speed(&since(2.97, Level::Faster)),
            "2.97× as fast (95 % CI 2.94–3.00×)"
        );
        assert_eq!(
            speed(&since(1.97, Level::Faster)),
            "97 % faster (95 % CI 94–100 %)"
        );
        assert_eq!(
            speed(&since(0.8, Level::Slower)),
            "20 % slower (95 % CI 17–23 %)"
        );
    }

    #[test]
    fn of_many_cells_there_is_a_line_each() {
        let many: Vec<CellHistory> = (0..4)
            .map(|n| CellHistory {
                cell: format!("nvd/a{n}/llama/s"),
                imported: false,
                ..three()
            })
            .collect();
        insta::assert_snapshot!(history_text(
            &many,
            None,
            Some("tprimat history CELL"),
            &Page::file()
        ));
        let from_the_last = history_text(&many, Some(1.79e9 + 1.5 * 86_400.0), None, &Page::file());
        assert!(
            from_the_last.contains("1 measurement since")
                && !from_the_last.contains("started (UTC)"),
            "{from_the_last}"
        );
    }
}

//! Cells over time as text: a table a cell, or where there are many cells one table of all.

use crate::plot::history::{causes, minute, speed, title};
use tprimat_base::words::plain::counted;
use tprimat_numbers::figures::{
    CellHistory, FIRST_LEVEL, Level, Measurement, Since, host_named, rate_unit_of,
};

use super::{
    columns::estimated,
    paint::{Ink, Page},
    sheet::{Sheet, Text, Word},
};

/// The histories of some cells, one below the other.
#[must_use]
pub fn history_text(cells: &[CellHistory], page: &Page) -> String {
    let mut out = Text::new(page);
    let has_baseline = cells.iter().any(|cell| cell.is_against_baseline);
    for cell in cells {
        let count = counted(cell.measurements.len(), "measurement");
        out.inked(Ink::Strong, &format!("{}: {count}", title(cell)));
        let mut sheet = sheet(cell);
        let row = |m| row(m, cell.is_against_baseline);
        sheet.rows.extend(cell.measurements.iter().map(row));
        out.sheet(&sheet);
        for note in cell.measurements.iter().flat_map(notes) {
            out.item("  ", Ink::Dim, &note);
        }
        out.gap();
    }
    let all = || cells.iter().flat_map(|of| &of.measurements);
    if all().any(|m| m.counts_now) {
        out.inked(
            Ink::Dim,
            "(now): counts for the cell as it is configured now.",
        );
    }
    if cells
        .iter()
        .any(|cell| cell.imported && cell.measurements.len() > 1)
    {
        out.inked(
            Ink::Dim,
            "Of imported runs, only what their files state is compared: settings, packages, device and host. Sources, drivers and \
             variables may have changed as well.",
        );
    }
    let widest = cells.iter().filter_map(|cell| cell.session_sd);
    if let Some(sd) = widest.reduce(f64::max) {
        let level = if has_baseline {
            "the baseline".to_owned()
        } else {
            format!("the first {FIRST_LEVEL} of its speed")
        };
        out.inked(
            Ink::Dim,
            &format!(
                "Clocks, heat and placement vary from one measurement to the next: intervals allow for up to {:.1} % of it (standard \
                 deviation, from this history and from what is usual). Each measurement is held against the one before, and \
                 against {level}, so that what creeps is seen.",
                sd * 100.0
            ),
        );
    }
    out.finish()
}

/// How the speed changed since the measurement before, else since the level that it is held against.
fn level(m: &Measurement) -> Level {
    let of = |since: &Option<Since>| {
        since
            .as_ref()
            .map_or(Level::NotAssessed, |since| since.level)
    };
    match (of(&m.since), of(&m.since_level)) {
        (since, level) if level.is_change() && !since.is_change() => level,
        (since, _) => since,
    }
}

/// A change that is seen from the first measurements, or a baseline, and not from the one before.
fn crept(m: &Measurement) -> Option<&Since> {
    let is_change = |since: &&Since| since.level.is_change();
    let is_seen = m.since.as_ref().is_some_and(|since| is_change(&since));
    m.since_level
        .as_ref()
        .filter(is_change)
        .filter(|_| !is_seen)
}

/// A table without rows.
fn sheet(cell: &CellHistory) -> Sheet {
    let rate = format!("{} (95 % CI)", rate_unit_of([cell.cell.as_str()]));
    let mut columns = vec![
        ("started (UTC)", false),
        ("host", false),
        ("repeats", false),
        (&*rate, true),
        ("against the one before", false),
        ("changed before it", false),
    ];
    if cell.is_against_baseline {
        columns.insert(4, ("against the baseline", false));
    }
    Sheet::new(&columns, 1)
}

fn row(m: &Measurement, has_baseline: bool) -> Vec<Word> {
    let counts = m.runs.iter().filter(|run| run.counts).count();
    let repeats = match m.runs.len() {
        all if all == counts => counts.to_string(),
        all => format!("{counts} of {all}"),
    };
    // The mark repeats what the words say.
    let (mark, ink) = match level(m) {
        Level::Faster => ("▲ ", Ink::Good),
        Level::Slower => ("▼ ", Ink::Bad),
        Level::Same | Level::NotAssessed => ("", Ink::Plain),
    };
    let known =
        |text: Option<String>, ink| text.map_or_else(Word::missing, |text| Word::inked(text, ink));
    let since = m.since.as_ref();
    let now = if m.counts_now { " (now)" } else { "" };
    let mut row = vec![
        Word::plain(minute(m.started_at) + now),
        Word::plain(host_named(&m.host).unwrap_or("not stated")),
        Word::plain(repeats),
        known(
            m.tokens_per_second_per_gpu.as_ref().map(estimated),
            Ink::Plain,
        ),
        known(since.map(|since| told(m, since, mark, has_baseline)), ink),
        known(since.map(|since| causes(since, usize::MAX)), Ink::Plain),
    ];
    if has_baseline {
        let level = m.since_level.as_ref();
        row.insert(4, known(level.map(speed), Ink::Plain));
    }
    row
}

/// `▼ 4.9 % slower (95 % CI 3.8–6.1 %)`, and what is so of the level that it is held against, where that
/// is another thing.
fn told(m: &Measurement, since: &Since, mark: &str, has_baseline: bool) -> String {
    let of_level = crept(m).filter(|_| !has_baseline).map(|level| {
        let at = minute(level.started_at);
        format!("; since the level of {at}: {}", speed(level))
    });
    format!("{mark}{}{}", speed(since), of_level.unwrap_or_default())
}

/// What a reader must know of a measurement besides.
fn notes(m: &Measurement) -> Vec<String> {
    let at = minute(m.started_at);
    let doubt = m.timer_factor.map(|factor| {
        format!("{at}: the rate may be {factor:.1}× too high: by the clock, its step times leave out time that passes after most steps")
    });
    let not_counted = m.runs.iter().filter_map(|run| {
        let why = run.why_not.as_ref()?;
        Some(format!("{at}: run #{} is not counted: {why}", run.repeat))
    });
    doubt.into_iter().chain(not_counted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tprimat_numbers::figures::{CORE, ChangedSetting, Estimate, PastRun, Run, Since};
    use tprimat_numbers::results::Contract;

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
                repeat: 1,
                counts: why.is_none(),
                why_not: why.map(str::to_owned),
                ..PastRun::default()
            };
            let mut contract = Contract::default();
            for field in CORE {
                contract.declare(field, "stated".into());
            }
            Measurement {
                contract,
                started_at: at,
                ended_at: at + 60.0,
                host: "box".into(),
                tokens_per_second_per_gpu: Estimate::of(&rates.iter().map(run).collect::<Vec<_>>()),
                runs: if rates.is_empty() {
                    vec![past(Some("failed (oom)"))]
                } else {
                    rates.iter().map(|_| past(None)).collect()
                },
                ..Measurement::default()
            }
        };
        let measurements = vec![
            measured(0.0, &[1000.0, 1004.0, 997.0]),
            measured(1.0, &[]),
            measured(2.0, &[951.0, 948.0, 953.0]),
        ];
        let changes = |before: &Measurement, now: &Measurement| {
            let value =
                |m: &Measurement| Some(format!("2.1{}", (m.started_at - 1.79e9) / 86_400.0));
            vec![ChangedSetting {
                what: "torch".into(),
                how: None,
                old: value(before),
                new: value(now),
            }]
        };
        CellHistory::of("nvd/tran/llama/single", false, measurements, None, changes).remove(0)
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
        let cells = CellHistory::of("c", false, cell.measurements, None, |_, _| Vec::new());
        let wide = Page {
            width: 400,
            ..Page::file()
        };
        let text = history_text(&cells, &wide);
        for words in ["no verdict", "the rate may be 2.0× too high: by the clock"] {
            assert!(text.contains(words), "{words}:\n{text}");
        }
        assert!(!text.contains('▲'), "{text}");
    }

    #[test]
    fn each_measurement_has_its_speed_and_what_was_changed_before_it() {
        insta::assert_snapshot!(history_text(&[three()], &Page::file()));
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
}

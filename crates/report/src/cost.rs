//! The named metrics of a group's cells as a table: cost, efficiency, time.

use tprimat_figures::{Figure, Metric, Row, is_crossed};

use super::{
    format::{MISSING, metric},
    mark,
    paint::Ink,
    sheet::{Sheet, Word},
};

/// Shown among the first figures, or a multiple of another one here; files have them all.
const ELSEWHERE: [&str; 4] = [
    "mfu",
    "loss_at_end",
    "days_to_15t_tokens",
    "gpu_hours_per_trillion_tokens",
];

/// Names of the metrics that any of the rows has, in their order.
pub(super) fn shown<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    let rows: Vec<&Row> = rows.collect();
    let longest = rows.iter().max_by_key(|r| r.metrics.0.len());
    for metric in longest.map_or(&[][..], |r| &r.metrics.0[..]) {
        let is_known = |row: &&&Row| {
            !matches!(
                row.metrics.get(&metric.name),
                None | Some(Figure::Absent { .. })
            )
        };
        if !ELSEWHERE.contains(&metric.name.as_str()) && rows.iter().any(|r| is_known(&r)) {
            names.push(&metric.name);
        }
    }
    names
}

/// The table of costs; none where no cell has any.
pub(super) fn sheet(rows: &[&Row]) -> Option<Sheet> {
    let names = shown(rows.iter().copied());
    if names.is_empty() {
        return None;
    }
    let mut sheet = Sheet::default();
    sheet.column("cell", false);
    let titles: Vec<String> = names.iter().map(|name| title(rows, name)).collect();
    titles.iter().for_each(|title| sheet.column(title, true));
    for row in rows {
        // Figures across workloads say so wherever they stand side by side: each part of the table
        // has the names.
        let crossed = row.labels.iter().filter(|label| is_crossed(label));
        let name = [format!("{}{}", row.cell, mark(&row.imported))]
            .into_iter()
            .chain(crossed.map(ToString::to_string));
        let mut words = vec![Word::plain(name.collect::<Vec<_>>().join("; "))];
        words.extend(
            names
                .iter()
                .zip(&titles)
                .map(|(name, title)| word(row, name, title)),
        );
        sheet.rows.push(words);
    }
    Some(sheet)
}

fn of<'a>(row: &'a Row, name: &str) -> Option<&'a Metric> {
    row.metrics.0.iter().find(|m| m.name == name)
}

/// Titles that are not the same in all rows (another currency) are told in the cells.
fn title(rows: &[&Row], name: &str) -> String {
    let mut titles: Vec<&str> = rows
        .iter()
        .filter_map(|r| of(r, name))
        .map(|m| m.title.as_str())
        .collect();
    titles.dedup();
    if let [one] = titles[..] {
        one.to_owned()
    } else {
        name.replace('_', " ")
    }
}

fn word(row: &Row, name: &str, title: &str) -> Word {
    match of(row, name) {
        Some(Metric {
            figure: Figure::Ok { value, .. },
            unit,
            ..
        }) => {
            let text = metric(*value, unit, title);
            if text == MISSING {
                Word::missing()
            } else {
                Word::plain(text)
            }
        }
        Some(Metric {
            figure: Figure::Error { .. },
            ..
        }) => Word::inked("impossible", Ink::Alarm),
        _ => Word::missing(),
    }
}

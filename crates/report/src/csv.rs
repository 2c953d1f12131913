//! A comparison for spreadsheets and scripts: `compare.csv` has a row a cell, `compare_repeats.csv`
//! a row a run.
//!
//! Numbers have all their digits and a decimal point. Their unit ends the column's name (`_seconds`,
//! `_bytes`); ratios and shares have none. What is not known is an empty field. Names are words joined by `_`,
//! so that they need no quotes in any language. Text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-` or
//! `@`) gets an apostrophe before it, since names and logs are not ours; controls and line ends in
//! it become spaces.

use std::collections::BTreeSet;

use csv::Writer;
use indexmap::IndexSet;
use serde_json::Value;
use tprimat_numbers::figures::{
    AbsentCell, Comparison, Cut, Memory, Metric, RepeatStatus, RepeatSummary, Row, Steady,
    Telemetry, host_named, texts,
};

use super::{
    columns::{Of, VALUES, list, why_absent},
    sheet::clean,
};

/// The values of a row by the names of their columns.
type Record = Vec<(String, Value)>;

/// Columns stand as in the header, the others in the order of their first use.
fn written(header: &[String], records: &[Record]) -> String {
    let names = records.iter().flatten().map(|(name, _)| name);
    let columns: IndexSet<&str> = header.iter().chain(names).map(String::as_str).collect();
    if columns.is_empty() {
        return String::new();
    }
    let mut writer = Writer::from_writer(Vec::new());
    // A vector takes all that is written, and every record has the header's length.
    let names = columns.iter().map(|name| guarded(name));
    writer.write_record(names).expect("memory takes all");
    for record in records {
        let mut fields = vec![String::new(); columns.len()];
        for (name, value) in record {
            fields[columns.get_index_of(name.as_str()).expect("all are there")] = field(value);
        }
        writer.write_record(fields).expect("memory takes all");
    }
    String::from_utf8(writer.into_inner().expect("memory takes all")).expect("made of strings")
}

fn field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => guarded(text),
        // JSON would write a whole number of a rate as `1024.0`.
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}

fn guarded(text: &str) -> String {
    let text = clean(text);
    let is_formula = text
        .trim_start()
        .starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    if is_formula { format!("'{text}") } else { text }
}

/// Columns that stand before those of the axes.
const BEFORE_AXES: usize = 5;

/// A row a cell, in matrix order within those with figures, then those without.
#[must_use]
pub fn csv(comparison: &Comparison) -> String {
    let of_rows = comparison
        .rows
        .iter()
        .flat_map(|row| row.axes.keys().map(String::as_str));
    let named = comparison
        .absent
        .iter()
        .flat_map(|absent| axes_of(&absent.cell));
    let axes: BTreeSet<&str> = of_rows.chain(named.map(|(axis, _)| axis)).collect();
    let axes = axes.into_iter().map(|axis| format!("axis_{axis}"));
    let mut header: Vec<String> = VALUES.iter().map(|(name, _)| (*name).to_owned()).collect();
    header.splice(BEFORE_AXES..BEFORE_AXES, axes);
    let rows = Of::all(comparison);
    let records = rows
        .iter()
        .map(of_cell)
        .chain(comparison.absent.iter().map(of_absent));
    written(&header, &records.collect::<Vec<_>>())
}

fn of_cell(of: &Of<'_>) -> Record {
    let row = of.row;
    let mut record: Record = VALUES
        .iter()
        .map(|(name, read)| ((*name).to_owned(), read(of)))
        .collect();
    let axes = row.axes.iter();
    record.extend(axes.map(|(axis, value)| (format!("axis_{axis}"), value.clone().into())));
    record.extend(memory(&row.memory));
    // Some are columns already.
    let metrics = row.metrics.0.iter();
    let others =
        metrics.filter(|m| !["mfu", "loss_at_end", "tokens_per_second"].contains(&m.name.as_str()));
    record.extend(others.map(|metric| (column_of(metric), metric.figure.value().into())));
    let absent = row
        .metrics
        .0
        .iter()
        .filter_map(|m| Some(format!("{}: {}", m.name, why_absent(&m.figure)?)));
    record.push((
        "metrics_absent".to_owned(),
        list(&absent.collect::<Vec<_>>()),
    ));
    record
}

fn memory(memory: &[Memory]) -> impl Iterator<Item = (String, Value)> {
    memory.iter().map(|m| {
        (
            format!("memory_{}_{}_bytes", m.kind, m.source),
            m.bytes.into(),
        )
    })
}

/// A metric's name with its unit, where the name does not say it already: `time_to_loss_seconds`.
/// A price has its own currency: `tokens_per_eur`.
fn column_of(metric: &Metric) -> String {
    let name = &metric.name;
    let currency = match name.as_str() {
        "tokens_per_dollar" => metric.unit.strip_prefix("tokens/"),
        "dollars_per_trillion_tokens" => Some(&*metric.unit),
        _ => None,
    };
    match (currency, metric.unit.as_str()) {
        (Some(currency), _) => name
            .replace("dollars", "dollar")
            .replace("dollar", &currency.to_lowercase()),
        (None, "s") => format!("{name}_seconds"),
        _ => name.clone(),
    }
}

/// `seq_length` and `4096` of `…@seq_length=4096`.
fn axes_of(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    let axes = cell.split_once('@').map_or("", |(_, axes)| axes);
    axes.split(',').filter_map(|axis| axis.split_once('='))
}

fn of_absent(absent: &AbsentCell) -> Record {
    let path = absent.cell.split('@').next().unwrap_or_default();
    let parts = std::iter::once(&*absent.cell).chain(path.splitn(4, '/'));
    let names = VALUES.iter().map(|(name, _)| (*name).to_owned());
    let mut record: Record = names.zip(parts.map(Value::from)).collect();
    let axes = axes_of(&absent.cell);
    record.extend(axes.map(|(axis, value)| (format!("axis_{axis}"), value.into())));
    let mut put = |name: &str, value: Value| record.push((name.to_owned(), value));
    put("state", absent.state.name().into());
    put("reason", absent.reason.text.clone().into());
    put("imported_from", list(&absent.imported));
    // A cell without runs has nothing to count.
    let uncounted = absent.uncounted();
    for (why, count) in uncounted.iter().flat_map(|counts| counts.by_why()) {
        put(why, count.into());
    }
    record
}

/// A row a run, also those that do not count.
#[must_use]
pub fn csv_repeats(comparison: &Comparison) -> String {
    let rows = comparison.rows.iter();
    let of_rows = rows.flat_map(|row| {
        row.repeats
            .iter()
            .map(move |r| repeat(&row.cell, Some(row), r))
    });
    let absent = comparison.absent.iter();
    let of_absent =
        absent.flat_map(|cell| cell.repeats.iter().map(|r| repeat(&cell.cell, None, r)));
    written(&[], &of_rows.chain(of_absent).collect::<Vec<_>>())
}

/// How a value of a run is read.
pub(super) type Read = fn(&RepeatSummary) -> Value;

/// A run's values by their names in files, and by what people call them; that is empty where only files
/// have the value.
pub(super) const OF_REPEAT: [(&str, &str, Read); 24] = [
    ("repeat", "repeat", |r| r.repeat.into()),
    ("attempt", "", |r| r.attempt.clone().into()),
    ("host", "host", |r| host_named(&r.host).into()),
    ("state", "state", |r| status(r).0.into()),
    ("reason", "", |r| status(r).1.into()),
    ("started_at_unix_seconds", "", |r| r.started_at.into()),
    ("tokens_per_second_per_gpu", "tokens/s/GPU", |r| {
        steady(r, |s| s.tokens_per_second_per_gpu)
    }),
    ("tokens_per_second", "", |r| {
        steady(r, |s| s.tokens_per_second)
    }),
    ("steps_measured", "steps", |r| steady(r, |s| s.steps)),
    ("step_time_mean_seconds", "step time", |r| {
        steady(r, |s| s.step_time.mean_seconds)
    }),
    ("step_time_median_seconds", "", |r| {
        steady(r, |s| s.step_time.median_seconds)
    }),
    ("step_time_p95_seconds", "", |r| {
        steady(r, |s| s.step_time.p95_seconds)
    }),
    ("step_time_sd_seconds", "", |r| {
        steady(r, |s| s.step_time.sd_seconds)
    }),
    ("steady_state_method", "", |r| {
        cut(r, |cut| cut.method.clone())
    }),
    ("steady_state_not_assessed", "", |r| {
        cut(r, |cut| {
            cut.not_assessed.as_ref().map(|why| why.text.clone())
        })
    }),
    ("first_measured_step", "first step", |r| {
        cut(r, |cut| cut.first_step)
    }),
    ("dropped_after_warmup_steps", "extra warm-up steps", |r| {
        cut(r, |cut| cut.dropped_steps)
    }),
    ("tokens_per_second_per_gpu_all_after_warmup", "", |r| {
        cut(r, |cut| cut.declared_tokens_per_second_per_gpu)
    }),
    ("loss_at_end", "", |r| r.loss_at_end.into()),
    ("last_step", "", |r| r.last_step.into()),
    ("gpu_board_energy_joules", "energy, J", |r| {
        r.energy().map(|energy| energy.joules).into()
    }),
    ("energy_method", "", |r| {
        r.energy().map(|energy| &*energy.method).into()
    }),
    ("mean_power_watts", "mean power, W", |r| {
        telemetry(r, |t| t.mean_power_watts)
    }),
    ("max_temperature_celsius", "", |r| {
        telemetry(r, |t| t.max_temperature_celsius)
    }),
];

fn steady<T: Into<Value>>(r: &RepeatSummary, read: impl Fn(&Steady) -> T) -> Value {
    r.steady
        .as_ref()
        .map(|steady| read(steady).into())
        .unwrap_or_default()
}

fn cut<T: Into<Value>>(r: &RepeatSummary, read: impl Fn(&Cut) -> T) -> Value {
    r.cut().map(|cut| read(cut).into()).unwrap_or_default()
}

fn telemetry(r: &RepeatSummary, read: fn(&Telemetry) -> Option<f64>) -> Value {
    r.telemetry.as_ref().and_then(read).into()
}

fn repeat(cell: &str, row: Option<&Row>, repeat: &RepeatSummary) -> Record {
    let of_row: [(&str, Value); 4] = [
        ("cell", cell.into()),
        ("group", row.map(|row| row.group + 1).into()),
        (
            "labels",
            list(&row.map(|row| texts(&row.labels)).unwrap_or_default()),
        ),
        ("loss_group", row.map(|row| row.loss_group + 1).into()),
    ];
    let own = OF_REPEAT
        .iter()
        .map(|(name, _, read)| (*name, read(repeat)));
    let known = of_row.into_iter().chain(own);
    let known = known.map(|(name, value)| (name.to_owned(), value));
    known.chain(memory(&repeat.memory)).collect()
}

fn status(repeat: &RepeatSummary) -> (&'static str, String) {
    match &repeat.status {
        RepeatStatus::Ok => ("ok", String::new()),
        RepeatStatus::Failed { class, evidence } => (
            "failed",
            format!("{}: {}", class.name(), evidence.join(" ")),
        ),
        RepeatStatus::Contradicted { fields } => ("contradicted", fields.join("; ")),
        RepeatStatus::Suspect { reason } => ("suspect", reason.clone()),
        RepeatStatus::Unmeasured { reason } => ("unmeasured", reason.text.clone()),
    }
}

#[cfg(test)]
mod tests {
    use tprimat_numbers::figures::{Catalogue, CompareSettings, compare};

    use super::*;
    use crate::stand_ins::*;

    fn header(cells: &[tprimat_numbers::figures::CellInput]) -> Vec<String> {
        let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
        let text = csv(&all);
        let first = text.lines().next().unwrap_or_default();
        first.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn a_cell_without_figures_counts_its_runs_as_others_do() {
        let mut cell = measured("cpu/a/m/single", &test_job(), &[1.0, 1.0], None);
        let tprimat_numbers::figures::CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        summary.tokens_per_second_per_gpu = None;
        summary.notes.clear();
        for repeat in &mut summary.repeats {
            repeat.status = RepeatStatus::Suspect {
                reason: "hot".to_owned(),
            };
        }
        let all = compare(&[cell], &CompareSettings::default(), &Catalogue::default());
        let text = csv(&all);
        let mut lines = text.lines().map(|line| line.split(','));
        let counts: std::collections::HashMap<&str, &str> =
            lines.next().unwrap().zip(lines.next().unwrap()).collect();
        let counts = ["failed", "contradicted", "suspect", "unmeasured"].map(|why| counts[why]);
        assert_eq!(counts, ["0", "0", "2", "0"]);
    }

    #[test]
    fn columns_are_the_same_whatever_the_cells_have() {
        let cell = measured("cpu/a/m/single@x=1", &test_job(), &[1.0], None);
        let mut other = cell.clone();
        other.axes = [("x".to_owned(), "1".to_owned())].into();
        let with_figures = header(&[other]);
        let mut without = cell;
        without.state = tprimat_numbers::figures::CellState::Missing {
            reason: "nothing ran".to_owned(),
        };
        let without = header(&[without]);
        assert!(
            with_figures.starts_with(&without),
            "{with_figures:?} {without:?}"
        );
        assert!(without.contains(&"axis_x".to_owned()));
        // Names need no quotes, and say their unit.
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        for name in &with_figures {
            assert!(name.chars().all(is_plain), "{name}");
        }
        for name in [
            "memory_peak_rss_proc_bytes",
            "time_to_loss_seconds",
            "tokens_per_usd",
            "usd_per_trillion_tokens",
        ] {
            assert!(with_figures.contains(&name.to_owned()), "{with_figures:?}");
        }
    }
}

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
use tprimat_figures::{
    AbsentCell, Comparison, EnvironmentDifference, Estimate, Figure, Group, Memory, Metric,
    RatioInterval, RepeatStatus, RepeatSummary, Row, Speedup, dropped_words, host_named, texts,
};
use tprimat_results::AttestationStatus;

use super::{
    columns::{Cell, Columns},
    environment::words,
    sheet::clean,
};

fn written(columns: &Columns) -> String {
    if columns.is_empty() {
        return String::new();
    }
    let mut writer = Writer::from_writer(Vec::new());
    // A vector takes all that is written, and every record has the header's length.
    let names = columns.names().map(guarded);
    writer.write_record(names).expect("memory takes all");
    for row in columns.rows() {
        let fields = row.map(|cell| cell.map(field).unwrap_or_default());
        writer.write_record(fields).expect("memory takes all");
    }
    String::from_utf8(writer.into_inner().expect("memory takes all")).expect("made of strings")
}

fn field(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => guarded(text),
        Cell::Number(number) => number.to_string(),
        Cell::Count(count) => count.to_string(),
        Cell::Flag(is_so) => is_so.to_string(),
    }
}

fn guarded(text: &str) -> String {
    let text = clean(text);
    let is_formula = text
        .trim_start()
        .starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    if is_formula { format!("'{text}") } else { text }
}

const PATH: [&str; 4] = ["platform", "framework", "model", "parallelism"];

/// How a column is read from a cell with figures.
enum Read {
    Text(fn(&Of<'_>) -> String),
    Number(fn(&Of<'_>) -> Option<f64>),
    Count(fn(&Of<'_>) -> Option<u64>),
    Flag(fn(&Of<'_>) -> Option<bool>),
}

/// A cell with figures, and what else the comparison has of it.
struct Of<'a> {
    row: &'a Row,
    group: &'a Group,
    baseline: Option<&'a Row>,
    environment: &'a [EnvironmentDifference],
    speedup: Option<&'a Speedup>,
}

impl<'a> Of<'a> {
    /// The rate, unless it is impossible; `mfu_absent` says why then.
    fn rate(&self) -> Option<&'a Estimate> {
        Some(&self.row.tokens_per_second_per_gpu).filter(|_| self.row.impossible().is_none())
    }
    fn interval(&self) -> Option<RatioInterval> {
        self.speedup?.interval
    }
}

fn or_empty(text: Option<&String>) -> String {
    text.cloned().unwrap_or_default()
}

/// Columns behind the axes that a table of cells always has, whatever its cells have. Memory, metrics
/// and `metrics_absent` follow where a cell has figures.
const BEHIND_AXES: [(&str, Read); 50] = [
    ("state", Read::Text(|_| "ok".to_owned())),
    ("reason", Read::Text(|_| String::new())),
    ("imported_from", Read::Text(|of| of.row.imported.join("; "))),
    ("group", Read::Count(|of| Some(of.row.group as u64 + 1))),
    ("workload", Read::Text(|of| of.group.workload.clone())),
    (
        "identical_config",
        Read::Flag(|of| Some(of.group.identical_config)),
    ),
    ("baseline", Read::Text(|of| of.group.baseline.clone())),
    ("labels", Read::Text(|of| texts(&of.row.labels).join("; "))),
    (
        "warnings",
        Read::Text(|of| texts(&of.row.warnings).join("; ")),
    ),
    (
        "same_launch_as",
        Read::Text(|of| or_empty(of.row.same_launch_as.as_ref())),
    ),
    (
        "same_runs_as",
        Read::Text(|of| or_empty(of.row.same_runs_as.as_ref())),
    ),
    ("environment", Read::Text(|of| words(of.environment))),
    (
        "attestation",
        Read::Text(|of| attestation(of.row.attestation).to_owned()),
    ),
    (
        "declared_only",
        Read::Text(|of| of.row.declared_only.join("; ")),
    ),
    ("precision", Read::Text(|of| of.row.precision.clone())),
    ("device", Read::Text(|of| or_empty(of.row.device.as_ref()))),
    ("n", Read::Count(|of| Some(of.row.n as u64))),
    (
        "repeats_wanted",
        Read::Count(|of| Some(of.row.repeats_wanted.into())),
    ),
    (
        "failed",
        Read::Count(|of| Some(of.row.uncounted.failed as u64)),
    ),
    (
        "contradicted",
        Read::Count(|of| Some(of.row.uncounted.contradicted as u64)),
    ),
    (
        "suspect",
        Read::Count(|of| Some(of.row.uncounted.suspect as u64)),
    ),
    (
        "unmeasured",
        Read::Count(|of| Some(of.row.uncounted.unmeasured as u64)),
    ),
    (
        "standing",
        Read::Text(|of| of.row.standing.words().join("; ")),
    ),
    (
        "repeats_added_later",
        Read::Flag(|of| Some(of.row.repeats_added_later)),
    ),
    (
        "dropped",
        Read::Text(|of| dropped_words(&of.row.dropped).join("; ")),
    ),
    (
        "tokens_per_second_per_gpu",
        Read::Number(|of| Some(of.rate()?.value)),
    ),
    (
        "tokens_per_second_per_gpu_ci95_low",
        Read::Number(|of| Some(of.rate()?.ci95?[0])),
    ),
    (
        "tokens_per_second_per_gpu_ci95_high",
        Read::Number(|of| Some(of.rate()?.ci95?[1])),
    ),
    (
        "tokens_per_second",
        Read::Number(|of| of.rate().and(of.row.tokens_per_second)),
    ),
    ("tokens_per_step", Read::Count(|of| of.row.tokens_per_step)),
    (
        "step_time_mean_seconds",
        Read::Number(|of| Some(of.row.step_time.mean_seconds)),
    ),
    (
        "step_time_median_seconds",
        Read::Number(|of| Some(of.row.step_time.median_seconds)),
    ),
    (
        "step_time_p95_seconds",
        Read::Number(|of| Some(of.row.step_time.p95_seconds)),
    ),
    (
        "step_time_sd_seconds",
        Read::Number(|of| of.row.step_time.sd_seconds),
    ),
    ("step_time_cv", Read::Number(|of| of.row.step_time.cv)),
    ("loss_at_end", Read::Number(|of| of.row.loss_at_end)),
    // Losses may be compared where both numbers agree, this one and `group`.
    (
        "loss_group",
        Read::Count(|of| Some(of.row.loss_group as u64 + 1)),
    ),
    (
        "loss_comparable_with_baseline",
        Read::Flag(|of| Some(of.baseline?.loss_group == of.row.loss_group)),
    ),
    ("last_step", Read::Count(|of| of.row.last_step)),
    ("speedup", Read::Number(|of| Some(of.speedup?.ratio))),
    (
        "speedup_interval_low",
        Read::Number(|of| Some(of.interval()?.low)),
    ),
    (
        "speedup_interval_high",
        Read::Number(|of| Some(of.interval()?.high)),
    ),
    (
        "speedup_interval_confidence",
        Read::Number(|of| Some(of.interval()?.confidence)),
    ),
    (
        "speedup_significant",
        Read::Flag(|of| of.speedup?.significant),
    ),
    ("speedup_p_value", Read::Number(|of| of.speedup?.p_value)),
    (
        "cost_ratio",
        Read::Number(|of| of.speedup?.cost_ratio.value()),
    ),
    (
        "speedup_same_as",
        Read::Text(|of| or_empty(of.speedup.and_then(|s| s.same_as.as_ref()))),
    ),
    (
        "speedup_reason",
        Read::Text(|of| {
            let reason = of.speedup.and_then(|s| s.reason.as_ref());
            reason.map(ToString::to_string).unwrap_or_default()
        }),
    ),
    ("mfu", Read::Number(|of| of.row.mfu.value())),
    (
        "mfu_absent",
        Read::Text(|of| why_absent(&of.row.mfu.clone().into()).unwrap_or_default()),
    ),
];

#[must_use]
pub fn csv(comparison: &Comparison) -> String {
    written(&cells(comparison))
}

/// A row a cell, in matrix order within those with figures, then those without.
pub(super) fn cells(comparison: &Comparison) -> Columns {
    let mut columns = Columns::default();
    let axes: BTreeSet<&String> = comparison.rows.iter().flat_map(|r| r.axes.keys()).collect();
    let of_absent = comparison.absent.iter().flat_map(|a| axes_of(&a.cell));
    let of_absent: BTreeSet<&str> = of_absent.map(|(axis, _)| axis).collect();
    let all = axes.iter().map(|axis| axis.as_str()).chain(of_absent);
    let all: BTreeSet<String> = all.map(|axis| format!("axis_{axis}")).collect();
    columns.place("cell");
    for name in PATH {
        columns.place(name);
    }
    for name in &all {
        columns.place(name);
    }
    for (name, _) in &BEHIND_AXES {
        columns.place(name);
    }
    let rows = comparison.rows_by_cell();
    let speedups = comparison.speedups_by_cell();
    let environment = comparison.environment_by_cell();
    for row in &comparison.rows {
        columns.start_row();
        let (cell, group) = (row.cell.as_str(), &comparison.groups[row.group]);
        let of = Of {
            row,
            group,
            baseline: rows.get(group.baseline.as_str()).copied(),
            environment: environment.get(cell).copied().unwrap_or_default(),
            speedup: speedups.get(cell).copied(),
        };
        cell_row(&mut columns, &axes, &of);
    }
    for absent in &comparison.absent {
        columns.start_row();
        absent_row(&mut columns, absent);
    }
    columns
}

fn cell_row(columns: &mut Columns, axes: &BTreeSet<&String>, of: &Of<'_>) {
    let row = of.row;
    columns.text("cell", &row.cell);
    let path = [&row.platform, &row.framework, &row.model, &row.parallelism];
    for (name, value) in PATH.into_iter().zip(path) {
        columns.text(name, value);
    }
    for axis in axes {
        columns.text(
            &format!("axis_{axis}"),
            row.axes.get(*axis).map_or("", |v| v),
        );
    }
    for (name, read) in &BEHIND_AXES {
        match read {
            Read::Text(read) => columns.text(name, &read(of)),
            Read::Number(read) => columns.number(name, read(of)),
            Read::Count(read) => columns.count(name, read(of)),
            Read::Flag(read) => columns.flag(name, read(of)),
        }
    }
    memory(columns, &row.memory);
    let mut absent = Vec::new();
    for metric in &row.metrics.0 {
        absent.extend(why_absent(&metric.figure).map(|why| format!("{}: {why}", metric.name)));
        // Some are columns already.
        if !["mfu", "loss_at_end", "tokens_per_second"].contains(&metric.name.as_str()) {
            columns.number(&column_of(metric), metric.figure.value());
        }
    }
    columns.text("metrics_absent", &absent.join("; "));
}

fn memory(columns: &mut Columns, memory: &[Memory]) {
    for Memory {
        kind,
        source,
        bytes,
    } in memory
    {
        columns.count(&format!("memory_{kind}_{source}_bytes"), Some(*bytes));
    }
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

/// Why there is no figure; none where there is one.
fn why_absent(figure: &Figure) -> Option<String> {
    match figure {
        Figure::Ok { .. } => None,
        Figure::Absent { reason } => Some(reason.text.clone()),
        Figure::Error { reason } => Some(format!("impossible: {reason}")),
    }
}

/// `seq_length` and `4096` of `…@seq_length=4096`.
fn axes_of(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    let axes = cell.split_once('@').map_or("", |(_, axes)| axes);
    axes.split(',').filter_map(|axis| axis.split_once('='))
}

fn absent_row(columns: &mut Columns, absent: &AbsentCell) {
    columns.text("cell", &absent.cell);
    let path = absent.cell.split('@').next().unwrap_or_default();
    for (name, value) in PATH.into_iter().zip(path.splitn(4, '/')) {
        columns.text(name, value);
    }
    for (axis, value) in axes_of(&absent.cell) {
        columns.text(&format!("axis_{axis}"), value);
    }
    columns.text("state", absent.state.name());
    columns.text("reason", &absent.reason.text);
    columns.text("imported_from", &absent.imported.join("; "));
    // A cell without runs has nothing to count.
    let uncounted = absent.uncounted();
    for (why, count) in uncounted.unwrap_or_default().by_why() {
        columns.count(why, uncounted.map(|_| count as u64));
    }
}

/// A row a run, also those that do not count.
#[must_use]
pub fn csv_repeats(comparison: &Comparison) -> String {
    let mut columns = Columns::default();
    let of_rows = comparison
        .rows
        .iter()
        .flat_map(|r| r.repeats.iter().map(move |x| (&r.cell, Some(r), x)));
    let of_absent = comparison
        .absent
        .iter()
        .flat_map(|a| a.repeats.iter().map(move |x| (&a.cell, None, x)));
    for (cell, row, repeat) in of_rows.chain(of_absent) {
        columns.start_row();
        columns.text("cell", cell);
        columns.count("group", row.map(|r| r.group as u64 + 1));
        columns.text(
            "labels",
            &row.map(|r| texts(&r.labels).join("; ")).unwrap_or_default(),
        );
        columns.count("loss_group", row.map(|r| r.loss_group as u64 + 1));
        repeat_row(&mut columns, repeat);
    }
    written(&columns)
}

fn repeat_row(columns: &mut Columns, repeat: &RepeatSummary) {
    let (status, reason) = match &repeat.status {
        RepeatStatus::Ok => ("ok", String::new()),
        RepeatStatus::Failed { class, evidence } => (
            "failed",
            format!("{}: {}", class.name(), evidence.join(" ")),
        ),
        RepeatStatus::Contradicted { fields } => ("contradicted", fields.join("; ")),
        RepeatStatus::Suspect { reason } => ("suspect", reason.clone()),
        RepeatStatus::Unmeasured { reason } => ("unmeasured", reason.text.clone()),
    };
    columns.count("repeat", Some(repeat.repeat.into()));
    columns.text("attempt", &repeat.attempt);
    columns.text("host", host_named(&repeat.host).unwrap_or_default());
    columns.text("state", status);
    columns.text("reason", &reason);
    columns.number("started_at_unix_seconds", repeat.started_at);
    let steady = repeat.steady.as_ref();
    columns.number(
        "tokens_per_second_per_gpu",
        steady.map(|s| s.tokens_per_second_per_gpu),
    );
    columns.number("tokens_per_second", steady.map(|s| s.tokens_per_second));
    columns.count("steps_measured", steady.map(|s| s.steps));
    columns.number(
        "step_time_mean_seconds",
        steady.map(|s| s.step_time.mean_seconds),
    );
    columns.number(
        "step_time_median_seconds",
        steady.map(|s| s.step_time.median_seconds),
    );
    columns.number(
        "step_time_p95_seconds",
        steady.map(|s| s.step_time.p95_seconds),
    );
    columns.number(
        "step_time_sd_seconds",
        steady.and_then(|s| s.step_time.sd_seconds),
    );
    let cut = steady.and_then(|s| s.cut.as_ref());
    columns.text("steady_state_method", cut.map_or("", |c| &c.method));
    columns.text(
        "steady_state_not_assessed",
        cut.and_then(|c| c.not_assessed.as_ref())
            .map_or("", |why| &why.text),
    );
    columns.count("first_measured_step", cut.map(|c| c.first_step));
    columns.count("dropped_after_warmup_steps", cut.map(|c| c.dropped_steps));
    columns.number(
        "tokens_per_second_per_gpu_all_after_warmup",
        cut.map(|c| c.declared_tokens_per_second_per_gpu),
    );
    columns.number("loss_at_end", repeat.loss_at_end);
    columns.count("last_step", repeat.last_step);
    let telemetry = repeat.telemetry.as_ref();
    let energy = telemetry.and_then(|t| t.energy.as_ref());
    columns.number("gpu_board_energy_joules", energy.map(|e| e.joules));
    columns.text("energy_method", energy.map_or("", |e| &e.method));
    columns.number(
        "mean_power_watts",
        telemetry.and_then(|t| t.mean_power_watts),
    );
    columns.number(
        "max_temperature_celsius",
        telemetry.and_then(|t| t.max_temperature_celsius),
    );
    memory(columns, &repeat.memory);
}

fn attestation(status: AttestationStatus) -> &'static str {
    match status {
        AttestationStatus::Attested => "attested",
        AttestationStatus::Contradicted => "contradicted",
        AttestationStatus::NotStated => "not_stated",
    }
}

#[cfg(test)]
mod tests {
    use tprimat_figures::{Catalogue, CompareSettings, compare};

    use super::*;
    use crate::stand_ins::*;

    fn header(cells: &[tprimat_figures::CellInput]) -> Vec<String> {
        let all = compare(cells, &CompareSettings::default(), &Catalogue::default());
        let text = csv(&all);
        let first = text.lines().next().unwrap_or_default();
        first.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn a_cell_without_figures_counts_its_runs_as_others_do() {
        let mut cell = measured("cpu/a/m/single", &test_job(), &[1.0, 1.0], None);
        let tprimat_figures::CellState::Ok { summary } = &mut cell.state else {
            unreachable!()
        };
        summary.tokens_per_second_per_gpu = None;
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
        without.state = tprimat_figures::CellState::Missing {
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

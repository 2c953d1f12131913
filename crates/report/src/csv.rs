//! A comparison for spreadsheets and scripts: `compare.csv` has a row a cell, `compare_repeats.csv`
//! a row a run.
//!
//! Numbers are whole, with a point, in the unit that ends their column's name (`_seconds`, `_bytes`);
//! ratios and shares have none. What is not known is an empty field. Names are words joined by `_`,
//! so that they need no quotes in any language. Text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-` or
//! `@`) gets an apostrophe before it, since names and logs are not ours; controls and line ends in
//! it become spaces.

use std::collections::{BTreeMap, BTreeSet};

use csv::Writer;
use tprimat_figures::{
    AbsentCell, Comparison, EnvironmentDifference, Figure, Memory, Metric, RepeatStatus,
    RepeatSummary, Row, Speedup, host_named,
};
use tprimat_results::AttestationStatus;
use tprimat_sentences::{dropped_words, each, said, standing};

use super::{
    columns::{Cell, Columns, Kind},
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

/// Columns that a table of cells always has, whatever its cells have: those before the axes, and
/// those behind them, each with what it holds where no cell has any. Memory, metrics and `metrics_absent` follow where a cell has figures.
const BEFORE_AXES: [&str; 5] = ["cell", "platform", "framework", "model", "parallelism"];
const BEHIND_AXES: [(&str, Kind); 50] = [
    ("state", Kind::Text),
    ("reason", Kind::Text),
    ("imported_from", Kind::Text),
    ("group", Kind::Count),
    ("workload", Kind::Text),
    ("identical_config", Kind::Flag),
    ("baseline", Kind::Text),
    ("labels", Kind::Text),
    ("warnings", Kind::Text),
    ("same_launch_as", Kind::Text),
    ("same_runs_as", Kind::Text),
    ("environment", Kind::Text),
    ("attestation", Kind::Text),
    ("declared_only", Kind::Text),
    ("precision", Kind::Text),
    ("device", Kind::Text),
    ("n", Kind::Count),
    ("repeats_wanted", Kind::Count),
    ("failed", Kind::Count),
    ("contradicted", Kind::Count),
    ("suspect", Kind::Count),
    ("unmeasured", Kind::Count),
    ("standing", Kind::Text),
    ("repeats_added_later", Kind::Flag),
    ("dropped", Kind::Text),
    ("tokens_per_second_per_gpu", Kind::Number),
    ("tokens_per_second_per_gpu_ci95_low", Kind::Number),
    ("tokens_per_second_per_gpu_ci95_high", Kind::Number),
    ("tokens_per_second", Kind::Number),
    ("tokens_per_step", Kind::Count),
    ("step_time_mean_seconds", Kind::Number),
    ("step_time_median_seconds", Kind::Number),
    ("step_time_p95_seconds", Kind::Number),
    ("step_time_sd_seconds", Kind::Number),
    ("step_time_cv", Kind::Number),
    ("loss_at_end", Kind::Number),
    ("loss_group", Kind::Count),
    ("loss_comparable_with_baseline", Kind::Flag),
    ("last_step", Kind::Count),
    ("speedup", Kind::Number),
    ("speedup_interval_low", Kind::Number),
    ("speedup_interval_high", Kind::Number),
    ("speedup_interval_confidence", Kind::Number),
    ("speedup_significant", Kind::Flag),
    ("speedup_p_value", Kind::Number),
    ("cost_ratio", Kind::Number),
    ("speedup_same_as", Kind::Text),
    ("speedup_reason", Kind::Text),
    ("mfu", Kind::Number),
    ("mfu_absent", Kind::Text),
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
    for name in BEFORE_AXES {
        columns.place(name, Kind::Text);
    }
    for name in &all {
        columns.place(name, Kind::Text);
    }
    for (name, kind) in BEHIND_AXES {
        columns.place(name, kind);
    }
    let found = Found {
        axes,
        rows: comparison.rows_by_cell(),
        speedups: comparison.speedups_by_cell(),
        environment: comparison.environment_by_cell(),
    };
    for row in &comparison.rows {
        columns.start_row();
        cell_row(&mut columns, row, comparison, &found);
    }
    for absent in &comparison.absent {
        columns.start_row();
        absent_row(&mut columns, absent);
    }
    columns
}

/// What is looked up of a comparison for each of its rows.
struct Found<'a> {
    axes: BTreeSet<&'a String>,
    rows: BTreeMap<&'a str, &'a Row>,
    speedups: BTreeMap<&'a str, &'a Speedup>,
    environment: BTreeMap<&'a str, &'a [EnvironmentDifference]>,
}

fn cell_row(columns: &mut Columns, row: &Row, comparison: &Comparison, found: &Found) {
    let group = &comparison.groups[row.group];
    columns.text("cell", &row.cell);
    columns.text("platform", &row.platform);
    columns.text("framework", &row.framework);
    columns.text("model", &row.model);
    columns.text("parallelism", &row.parallelism);
    for axis in &found.axes {
        columns.text(
            &format!("axis_{axis}"),
            row.axes.get(*axis).map_or("", |v| v),
        );
    }
    columns.text("state", "ok");
    columns.text("reason", "");
    columns.text("imported_from", &row.imported.join("; "));
    columns.count("group", Some(row.group as u64 + 1));
    columns.text("workload", &said(&group.workload));
    columns.flag("identical_config", Some(group.identical_config));
    columns.text("baseline", &group.baseline);
    columns.text("labels", &each(&row.labels).join("; "));
    columns.text("warnings", &each(&row.warnings).join("; "));
    columns.text(
        "same_launch_as",
        row.same_launch_as.as_deref().unwrap_or_default(),
    );
    columns.text(
        "same_runs_as",
        row.same_runs_as.as_deref().unwrap_or_default(),
    );
    columns.text(
        "environment",
        &words(
            found
                .environment
                .get(row.cell.as_str())
                .copied()
                .unwrap_or_default(),
        ),
    );
    columns.text("attestation", attestation(row.attestation));
    columns.text("declared_only", &row.declared_only.join("; "));
    columns.text("precision", &row.precision);
    columns.text("device", row.device.as_deref().unwrap_or_default());
    columns.count("n", Some(row.n as u64));
    columns.count("repeats_wanted", Some(row.repeats_wanted.into()));
    for (why, count) in row.uncounted.by_why() {
        columns.count(why, Some(count as u64));
    }
    columns.text("standing", &standing(&row.standing).join("; "));
    columns.flag("repeats_added_later", Some(row.repeats_added_later));
    columns.text("dropped", &dropped_words(&row.dropped).join("; "));
    // Why a rate is impossible, `mfu_absent` says.
    let estimate = Some(&row.tokens_per_second_per_gpu).filter(|_| row.impossible().is_none());
    columns.number("tokens_per_second_per_gpu", estimate.map(|e| e.value));
    columns.number(
        "tokens_per_second_per_gpu_ci95_low",
        estimate.and_then(|e| Some(e.ci95?[0])),
    );
    columns.number(
        "tokens_per_second_per_gpu_ci95_high",
        estimate.and_then(|e| Some(e.ci95?[1])),
    );
    columns.number(
        "tokens_per_second",
        row.tokens_per_second.filter(|_| estimate.is_some()),
    );
    columns.count("tokens_per_step", row.tokens_per_step);
    columns.number("step_time_mean_seconds", Some(row.step_time.mean_seconds));
    columns.number(
        "step_time_median_seconds",
        Some(row.step_time.median_seconds),
    );
    columns.number("step_time_p95_seconds", Some(row.step_time.p95_seconds));
    columns.number("step_time_sd_seconds", row.step_time.sd_seconds);
    columns.number("step_time_cv", row.step_time.cv);
    columns.number("loss_at_end", row.loss_at_end);
    // Losses may be compared where both numbers agree, this one and `group`.
    columns.count("loss_group", Some(row.loss_group as u64 + 1));
    let base = found.rows.get(group.baseline.as_str());
    columns.flag(
        "loss_comparable_with_baseline",
        base.map(|base| base.loss_group == row.loss_group),
    );
    columns.count("last_step", row.last_step);
    speedup_columns(columns, found.speedups.get(row.cell.as_str()).copied());
    columns.number("mfu", row.mfu.value());
    let why = why_absent(&row.mfu.clone().into());
    columns.text("mfu_absent", &why.unwrap_or_default());
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

fn speedup_columns(columns: &mut Columns, speedup: Option<&Speedup>) {
    columns.number("speedup", speedup.map(|s| s.ratio));
    let interval = speedup.and_then(|s| s.interval);
    columns.number("speedup_interval_low", interval.map(|i| i.low));
    columns.number("speedup_interval_high", interval.map(|i| i.high));
    columns.number(
        "speedup_interval_confidence",
        interval.map(|i| i.confidence),
    );
    columns.flag("speedup_significant", speedup.and_then(|s| s.significant));
    columns.number("speedup_p_value", speedup.and_then(|s| s.p_value));
    columns.number("cost_ratio", speedup.and_then(|s| s.cost_ratio.value()));
    columns.text(
        "speedup_same_as",
        speedup
            .and_then(|s| s.same_as.as_deref())
            .unwrap_or_default(),
    );
    columns.text(
        "speedup_reason",
        &speedup
            .and_then(|s| s.reason.as_ref())
            .map(said)
            .unwrap_or_default(),
    );
}

/// Why there is no figure; none where there is one.
fn why_absent(figure: &Figure) -> Option<String> {
    match figure {
        Figure::Ok { .. } => None,
        Figure::Absent { reason } => Some(said(reason)),
        Figure::Error { reason } => Some(format!("impossible: {}", said(reason))),
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
    for (name, value) in ["platform", "framework", "model", "parallelism"]
        .into_iter()
        .zip(path.splitn(4, '/'))
    {
        columns.text(name, value);
    }
    for (axis, value) in axes_of(&absent.cell) {
        columns.text(&format!("axis_{axis}"), value);
    }
    columns.text("state", absent.state.name());
    columns.text("reason", &said(&absent.reason));
    columns.text("imported_from", &absent.imported.join("; "));
    columns.count("contradicted", Some(absent.contradicted as u64));
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
            &row.map(|r| each(&r.labels).join("; ")).unwrap_or_default(),
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
        RepeatStatus::Unmeasured { reason } => ("unmeasured", said(reason)),
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
        &cut.and_then(|c| c.not_assessed.as_ref())
            .map(said)
            .unwrap_or_default(),
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

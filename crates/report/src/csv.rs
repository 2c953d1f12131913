//! A comparison for spreadsheets and scripts: `compare.csv` has a row a cell, `compare_repeats.csv`
//! a row a run.
//!
//! Numbers are whole, in the unit that their column names, with a point; what is not known is an
//! empty field. Text that a spreadsheet would take for a formula (it begins with `=`, `+`, `-` or
//! `@`) gets an apostrophe before it, since names and logs are not ours; controls and line ends in
//! it become spaces.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use csv::Writer;
use tprimat_figures::{
    AbsentCell, Comparison, EnvironmentDifference, Figure, Memory, Mfu, RepeatStatus,
    RepeatSummary, Row, Speedup,
};
use tprimat_results::AttestationStatus;
use tprimat_sentences::{dropped_words, each, said, standing};

use super::environment::words;

/// Columns in the order of their first use.
#[derive(Default)]
struct Columns {
    names: Vec<String>,
    places: HashMap<String, usize>,
    /// By column, as far as a row has any.
    rows: Vec<Vec<String>>,
}

impl Columns {
    fn text(&mut self, name: &str, value: &str) {
        self.put(name, guarded(value));
    }
    fn number(&mut self, name: &str, value: Option<f64>) {
        self.put(
            name,
            value
                .filter(|v| v.is_finite())
                .map(|v| v.to_string())
                .unwrap_or_default(),
        );
    }
    fn count(&mut self, name: &str, value: Option<u64>) {
        self.put(name, value.map(|v| v.to_string()).unwrap_or_default());
    }
    fn place(&mut self, name: &str) -> usize {
        self.places.get(name).copied().unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.places.insert(name.to_owned(), self.names.len() - 1);
            self.names.len() - 1
        })
    }
    fn put(&mut self, name: &str, value: String) {
        let at = self.place(name);
        if let Some(row) = self.rows.last_mut() {
            if row.len() <= at {
                row.resize(at + 1, String::new());
            }
            row[at] = value;
        }
    }
    fn memory(&mut self, memory: &[Memory]) {
        for Memory {
            kind,
            source,
            bytes,
        } in memory
        {
            self.count(&format!("memory_{kind}_{source} [B]"), Some(*bytes));
        }
    }
    fn write(self) -> String {
        if self.names.is_empty() {
            return String::new();
        }
        let mut writer = Writer::from_writer(Vec::new());
        let empty = String::new();
        // A vector takes all that is written, and every record has the header's length.
        let names = self.names.iter().map(|name| guarded(name));
        writer.write_record(names).expect("memory takes all");
        for row in &self.rows {
            let fields = (0..self.names.len()).map(|at| row.get(at).unwrap_or(&empty));
            writer.write_record(fields).expect("memory takes all");
        }
        String::from_utf8(writer.into_inner().expect("memory takes all")).expect("made of strings")
    }
}

fn guarded(text: &str) -> String {
    let text = super::sheet::clean(text);
    let is_formula = text
        .trim_start()
        .starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠']);
    if is_formula { format!("'{text}") } else { text }
}

/// Columns that a table of cells always has, whatever its cells have: those before the axes, and
/// those behind them. Memory, metrics and `metrics_absent` follow where a cell has figures.
const BEFORE_AXES: [&str; 5] = ["cell", "platform", "framework", "model", "parallelism"];
const BEHIND_AXES: [&str; 50] = [
    "state",
    "reason",
    "imported_from",
    "group",
    "workload",
    "identical_config",
    "baseline",
    "labels",
    "warnings",
    "same_launch_as",
    "same_runs_as",
    "environment",
    "attestation",
    "declared_only",
    "precision",
    "device",
    "n",
    "repeats_wanted",
    "failed",
    "contradicted",
    "suspect",
    "unmeasured",
    "standing",
    "repeats_added_later",
    "dropped",
    "tokens_per_second_per_gpu",
    "tokens_per_second_per_gpu_ci95_low",
    "tokens_per_second_per_gpu_ci95_high",
    "tokens_per_second",
    "tokens_per_step",
    "step_time_mean [s]",
    "step_time_median [s]",
    "step_time_p95 [s]",
    "step_time_sd [s]",
    "step_time_cv",
    "loss_at_end",
    "loss_group",
    "loss_comparable_with_baseline",
    "last_step",
    "speedup",
    "speedup_interval_low",
    "speedup_interval_high",
    "speedup_interval_confidence",
    "speedup_significant",
    "speedup_p_value",
    "cost_ratio",
    "speedup_same_as",
    "speedup_reason",
    "mfu",
    "mfu_absent",
];

/// A row a cell, in matrix order within those with figures, then those without.
#[must_use]
pub fn csv(comparison: &Comparison) -> String {
    let mut columns = Columns::default();
    let axes: BTreeSet<&String> = comparison.rows.iter().flat_map(|r| r.axes.keys()).collect();
    let of_absent = comparison.absent.iter().flat_map(|a| axes_of(&a.cell));
    let of_absent: BTreeSet<&str> = of_absent.map(|(axis, _)| axis).collect();
    let all = axes.iter().map(|axis| axis.as_str()).chain(of_absent);
    let all: BTreeSet<String> = all.map(|axis| format!("axis {axis}")).collect();
    for name in BEFORE_AXES {
        columns.place(name);
    }
    for name in &all {
        columns.place(name);
    }
    for name in BEHIND_AXES {
        columns.place(name);
    }
    let found = Found {
        axes,
        rows: comparison.rows_by_cell(),
        speedups: comparison.speedups_by_cell(),
        environment: comparison.environment_by_cell(),
    };
    for row in &comparison.rows {
        columns.rows.push(Vec::new());
        cell_row(&mut columns, row, comparison, &found);
    }
    for absent in &comparison.absent {
        columns.rows.push(Vec::new());
        absent_row(&mut columns, absent);
    }
    columns.write()
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
            &format!("axis {axis}"),
            row.axes.get(*axis).map_or("", |v| v),
        );
    }
    columns.text("state", "ok");
    columns.text("reason", "");
    columns.text("imported_from", &row.imported.join("; "));
    columns.count("group", Some(row.group as u64 + 1));
    columns.text("workload", &said(&group.workload));
    columns.text("identical_config", &group.identical_config.to_string());
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
    columns.count("failed", Some(row.failed as u64));
    columns.count("contradicted", Some(row.contradicted as u64));
    columns.count("suspect", Some(row.suspect as u64));
    columns.count("unmeasured", Some(row.unmeasured as u64));
    columns.text("standing", &standing(&row.standing).join("; "));
    columns.text("repeats_added_later", &row.repeats_added_later.to_string());
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
    columns.number("step_time_mean [s]", Some(row.step_time.mean_seconds));
    columns.number("step_time_median [s]", Some(row.step_time.median_seconds));
    columns.number("step_time_p95 [s]", Some(row.step_time.p95_seconds));
    columns.number("step_time_sd [s]", row.step_time.sd_seconds);
    columns.number("step_time_cv", row.step_time.cv);
    columns.number("loss_at_end", row.loss_at_end);
    // Losses may be compared where both numbers agree, this one and `group`.
    columns.count("loss_group", Some(row.loss_group as u64 + 1));
    let base = found.rows.get(group.baseline.as_str());
    let is_comparable = base.map(|base| (base.loss_group == row.loss_group).to_string());
    columns.text(
        "loss_comparable_with_baseline",
        &is_comparable.unwrap_or_default(),
    );
    columns.count("last_step", row.last_step);
    speedup_columns(columns, found.speedups.get(row.cell.as_str()).copied());
    let (value, why) = match &row.mfu {
        Mfu::Ok { value, .. } => (Some(*value), String::new()),
        Mfu::Absent { reason } => (None, said(reason)),
        Mfu::Error { reason } => (None, format!("impossible: {}", said(reason))),
    };
    columns.number("mfu", value);
    columns.text("mfu_absent", &why);
    columns.memory(&row.memory);
    let mut absent = Vec::new();
    for metric in &row.metrics.0 {
        match &metric.figure {
            Figure::Absent { reason } => absent.push(format!("{}: {}", metric.name, said(reason))),
            Figure::Error { reason } => {
                absent.push(format!("{}: impossible: {}", metric.name, said(reason)))
            }
            Figure::Ok { .. } => {}
        }
        // Some are columns already.
        if !["mfu", "loss_at_end", "tokens_per_second"].contains(&metric.name.as_str()) {
            columns.number(
                &format!("{} [{}]", metric.name, metric.unit),
                metric.figure.value(),
            );
        }
    }
    columns.text("metrics_absent", &absent.join("; "));
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
    let significant = speedup
        .and_then(|s| s.significant)
        .map(|yes| yes.to_string());
    columns.text("speedup_significant", &significant.unwrap_or_default());
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
        columns.text(&format!("axis {axis}"), value);
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
        columns.rows.push(Vec::new());
        columns.text("cell", cell);
        columns.count("group", row.map(|r| r.group as u64 + 1));
        columns.text(
            "labels",
            &row.map(|r| each(&r.labels).join("; ")).unwrap_or_default(),
        );
        columns.count("loss_group", row.map(|r| r.loss_group as u64 + 1));
        repeat_row(&mut columns, repeat);
    }
    columns.write()
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
    columns.text("host", &repeat.host);
    columns.text("state", status);
    columns.text("reason", &reason);
    columns.number("started_at [s since 1970]", repeat.started_at);
    let steady = repeat.steady.as_ref();
    columns.number(
        "tokens_per_second_per_gpu",
        steady.map(|s| s.tokens_per_second_per_gpu),
    );
    columns.number("tokens_per_second", steady.map(|s| s.tokens_per_second));
    columns.count("steps_measured", steady.map(|s| s.steps));
    columns.number(
        "step_time_mean [s]",
        steady.map(|s| s.step_time.mean_seconds),
    );
    columns.number(
        "step_time_median [s]",
        steady.map(|s| s.step_time.median_seconds),
    );
    columns.number("step_time_p95 [s]", steady.map(|s| s.step_time.p95_seconds));
    columns.number(
        "step_time_sd [s]",
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
    columns.count("dropped_after_warmup [steps]", cut.map(|c| c.dropped_steps));
    columns.number(
        "tokens_per_second_per_gpu_all_after_warmup",
        cut.map(|c| c.declared_tokens_per_second_per_gpu),
    );
    columns.number("loss_at_end", repeat.loss_at_end);
    columns.count("last_step", repeat.last_step);
    let telemetry = repeat.telemetry.as_ref();
    let energy = telemetry.and_then(|t| t.energy.as_ref());
    columns.number("gpu_board_energy [J]", energy.map(|e| e.joules));
    columns.text("energy_method", energy.map_or("", |e| &e.method));
    columns.number("mean_power [W]", telemetry.and_then(|t| t.mean_power_watts));
    columns.number(
        "max_temperature [C]",
        telemetry.and_then(|t| t.max_temperature_celsius),
    );
    columns.memory(&repeat.memory);
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
        let more = with_figures[without.len()..].iter();
        let is_more = |name: &String| name.contains('[') || name == "metrics_absent";
        assert!(more.clone().all(is_more), "{more:?}");
        assert!(without.contains(&"axis x".to_owned()));
    }
}

//! A comparison as OpenMetrics text, for Prometheus' textfile collector and what else reads it.

use std::fmt::Write;

use tprimat_figures::{Comparison, Row};

/// Labels with their values, and the figure.
type Sample = (Vec<(String, String)>, f64);

/// A gauge: its name, its unit (which ends the name), its help.
struct Gauge {
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    lines: Vec<Sample>,
}

/// Every figure of every cell with figures, then how many runs of each cell count and do not.
#[must_use]
pub fn openmetrics(comparison: &Comparison, matrix: &str) -> String {
    let mut gauges = Vec::new();
    let mut gauge = |name, unit, help, of: &dyn Fn(&Row) -> Vec<Sample>| {
        let lines = comparison.rows.iter().flat_map(|row| {
            let own = labels(row, matrix);
            of(row)
                .into_iter()
                .filter(|(_, value)| value.is_finite())
                .map(move |(more, value)| ([own.clone(), more].concat(), value))
        });
        gauges.push(Gauge {
            name,
            unit,
            help,
            lines: lines.collect(),
        });
    };
    let one = |value: Option<f64>| value.map(|value| (Vec::new(), value)).into_iter().collect();
    // A rate that cannot be is no figure.
    let rate = |row: &Row| {
        Some(&row.tokens_per_second_per_gpu)
            .filter(|_| row.impossible().is_none())
            .cloned()
    };
    gauge(
        "tprimat_tokens_per_second_per_gpu",
        "",
        "Training speed after warm-up, geometric mean over the repeats that count",
        &|row| one(rate(row).map(|rate| rate.value)),
    );
    for (name, at, help) in [
        (
            "tprimat_tokens_per_second_per_gpu_ci95_low",
            0,
            "Lower end of the 95 % interval of the training speed",
        ),
        (
            "tprimat_tokens_per_second_per_gpu_ci95_high",
            1,
            "Upper end of the 95 % interval of the training speed",
        ),
    ] {
        gauge(name, "", help, &|row| {
            one(rate(row).and_then(|rate| Some(rate.ci95?[at])))
        });
    }
    gauge(
        "tprimat_step_time_seconds",
        "seconds",
        "Mean time of an optimiser step after warm-up",
        &|row| one(rate(row).map(|_| row.step_time.mean_seconds)),
    );
    gauge(
        "tprimat_mfu_ratio",
        "ratio",
        "Model FLOPs utilisation",
        &|row| one(row.mfu.value()),
    );
    gauge(
        "tprimat_peak_memory_bytes",
        "bytes",
        "Peak memory of one device; what each kind counts differs",
        &|row| {
            let peaks = row.memory.iter();
            let peak = peaks.map(|peak| {
                let labels = [("kind", &peak.kind), ("source", &peak.source)];
                let labels = labels.map(|(name, value)| (name.to_owned(), value.clone()));
                (labels.to_vec(), peak.bytes as f64)
            });
            peak.collect()
        },
    );
    gauge("tprimat_loss_at_end", "", "Loss at the last step", &|row| {
        one(row.loss_at_end)
    });
    gauge(
        "tprimat_repeats",
        "",
        "Runs of the cell, by whether they count",
        &|row| {
            [("counted", row.n)]
                .into_iter()
                .chain(row.uncounted.by_why())
                .map(|(state, n)| (vec![("state".to_owned(), state.to_owned())], n as f64))
                .collect()
        },
    );
    let mut out = String::new();
    for gauge in gauges.iter().filter(|gauge| !gauge.lines.is_empty()) {
        write_gauge(&mut out, gauge);
    }
    let absent = comparison.absent.iter().map(|cell| {
        let labels = [
            ("matrix", matrix),
            ("cell", &cell.cell),
            ("state", cell.state.name()),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        (labels.to_vec(), 1.0)
    });
    let absent = Gauge {
        name: "tprimat_cell_without_figures",
        unit: "",
        help: "A cell that has no figures, and its state",
        lines: absent.collect(),
    };
    if !absent.lines.is_empty() {
        write_gauge(&mut out, &absent);
    }
    out.push_str("# EOF\n");
    out
}

fn labels(row: &Row, matrix: &str) -> Vec<(String, String)> {
    let own = [
        ("matrix", matrix),
        ("cell", &row.cell),
        ("platform", &row.platform),
        ("framework", &row.framework),
        ("model", &row.model),
        ("parallelism", &row.parallelism),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let axes = row.axes.iter();
    let axes = axes.map(|(axis, value)| (format!("axis_{}", word(axis)), value.clone()));
    own.into_iter().chain(axes).collect()
}

/// An axis as a label's name may be.
fn word(axis: &str) -> String {
    let fit = |ch: char| if ch.is_ascii_alphanumeric() { ch } else { '_' };
    axis.chars().map(fit).collect()
}

fn write_gauge(out: &mut String, gauge: &Gauge) {
    let Gauge {
        name, unit, help, ..
    } = gauge;
    _ = writeln!(out, "# TYPE {name} gauge");
    if !unit.is_empty() {
        _ = writeln!(out, "# UNIT {name} {unit}");
    }
    _ = writeln!(out, "# HELP {name} {help}");
    for (labels, value) in &gauge.lines {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        _ = writeln!(out, "{name}{{{}}} {value}", labels.join(","));
    }
}

fn escaped(value: &str) -> String {
    let clean = super::sheet::clean(value);
    clean.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use tprimat_figures::{Catalogue, CompareSettings, compare};

    use super::*;
    use crate::stand_ins::*;

    #[test]
    fn every_line_is_a_figure_with_its_cell() {
        let mut cell = measured("cpu/mine/m/single@seq=64", &test_job(), &[1.0, 1.01], None);
        cell.axes = [("seq".to_owned(), "6\"4\\".to_owned())].into();
        let all = compare(&[cell], &CompareSettings::default(), &Catalogue::default());
        let text = openmetrics(&all, "m");
        assert!(text.ends_with("# EOF\n"));
        let rate = all.rows[0].tokens_per_second_per_gpu.value;
        let line = format!(
            "tprimat_tokens_per_second_per_gpu{{matrix=\"m\",cell=\"cpu/mine/m/single@seq=64\",platform=\"cpu\",framework=\"mine\",\
             model=\"m\",parallelism=\"single\",axis_seq=\"6\\\"4\\\\\"}} {rate}\n"
        );
        assert!(text.contains(&line), "{line}{text}");
        assert!(text.contains("# UNIT tprimat_step_time_seconds seconds\n"));
        assert!(text.contains("state=\"counted\"} 2\n"), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(
                series.starts_with("tprimat_") && series.ends_with('}'),
                "{line}"
            );
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        }
    }
}

//! One rich comparison through every text: what is there, what is apart, and what never appears.

use std::collections::BTreeMap;

use tprimat_job::FailureClass;
use tprimat_numbers::figures::{
    Catalogue, CellState, CompareSettings, Comparison, Cut, Energy, EnvironmentDifference, Figure,
    Metric, Note, NoteKind, RatioInterval, RepeatStatus, Telemetry, compare,
};

use super::{
    headline::{headlines, interval},
    *,
};
use crate::stand_ins::*;

mod comment;
mod impossible;
mod stated;
mod texts;

const H100: Option<(&str, &str)> = Some(("cuda", "NVIDIA H100 80GB HBM3"));

fn figure(value: f64) -> Figure {
    Figure::Ok {
        value,
        basis: "as priced".into(),
    }
}

fn metric(name: &str, title: &str, unit: &str, figure: Figure) -> Metric {
    Metric {
        name: name.into(),
        title: title.into(),
        unit: unit.into(),
        higher_is_better: None,
        reference: None,
        figure,
    }
}

/// Failures, a contradiction, an import, missing and impossible metrics, one repeat, other
/// workloads.
fn rich(across: &[&str]) -> Comparison {
    let mut fp8 = test_job();
    fp8.precision = "fp8".into();
    let mut long = test_job();
    long.data.seq_length = 256;
    let failed = CellState::Failed {
        class: FailureClass::Oom,
        evidence: vec![
            "CUDA out of memory. Tried to allocate 2 GiB | `rank 3` <b>@root</b>".into(),
        ],
        repeats: 2,
    };
    let mut imported = measured(
        "nvd/mega/llama/maximum_performance",
        &test_job(),
        &[0.011, 0.0112, 0.0111],
        H100,
    );
    imported.imported = vec!["old/run.log".into()];
    let cells = [
        measured(
            "nvd/native/llama/maximum_performance",
            &test_job(),
            &[0.01, 0.0101, 0.0099],
            H100,
        ),
        measured(
            "nvd/tran/llama/maximum_performance",
            &test_job(),
            &[0.02, 0.0202, 0.0198],
            H100,
        ),
        measured(
            "nvd/titan/llama/maximum_performance",
            &test_job(),
            &[0.005, 0.00505, 0.00495],
            H100,
        ),
        measured(
            "nvd/tran/llama/maximum_performance@precision=fp8",
            &fp8,
            &[0.0101, 0.0099, 0.01],
            H100,
        ),
        measured(
            "nvd/deep/llama/maximum_performance",
            &test_job(),
            &[0.01],
            None,
        ),
        imported,
        measured(
            "nvd/tran/llama/maximum_performance@seq_length=256",
            &long,
            &[0.02],
            H100,
        ),
        cell("nvd/fsdp/llama/maximum_performance", failed),
        cell(
            "amd/prim/llama/maximum_performance",
            CellState::Missing {
                reason: "waits for a host of platform amd".into(),
            },
        ),
        cell(
            "nvd/prim/llama/maximum_performance",
            CellState::Unsupported {
                reason: "Primus needs an AMD platform".into(),
            },
        ),
    ];
    let across = across.iter().map(|s| (*s).to_owned()).collect();
    let mut all = compare(
        &cells,
        &CompareSettings {
            across,
            ..Default::default()
        },
        &Catalogue::default(),
    );
    dress(&mut all);
    all
}

/// What other stages fill: metrics, cuts, telemetry, environments; and a run that contradicts its
/// job.
fn dress(all: &mut Comparison) {
    let no_price = Figure::Absent {
        reason: "no price of platform nvd is configured".into(),
    };
    let unsampled = Figure::Absent {
        reason: "no energy was sampled".into(),
    };
    for (i, row) in all.rows.iter_mut().enumerate() {
        let rate = row.tokens_per_second_per_gpu.value;
        row.metrics.0 = vec![
            metric("mfu", "MFU", "fraction", figure(0.5557)),
            metric(
                "tokens_per_dollar",
                "tokens/USD",
                "tokens/USD",
                figure(rate * 3600.0 / 2.5),
            ),
            metric(
                "dollars_per_trillion_tokens",
                "USD/1T tokens",
                "USD",
                if i == 1 {
                    no_price.clone()
                } else {
                    figure(1e15 / rate)
                },
            ),
            metric(
                "tokens_per_joule",
                "tokens/J",
                "tokens/J",
                if i > 0 {
                    unsampled.clone()
                } else {
                    figure(rate / 650.0)
                },
            ),
            metric(
                "days_to_1t_tokens",
                "days to 1T tokens",
                "days",
                figure(1e12 / rate / 86_400.0),
            ),
            metric(
                "time_to_loss",
                "time to loss",
                "s",
                if i == 0 {
                    figure(f64::NAN)
                } else {
                    figure(5000.0)
                },
            ),
            metric(
                "scaling_efficiency",
                "scaling efficiency",
                "fraction",
                unsampled.clone(),
            ),
        ];
        for repeat in &mut row.repeats {
            let Some(steady) = &mut repeat.steady else {
                continue;
            };
            steady.cut = Some(Cut {
                first_step: 5 + i as u64,
                dropped_steps: i as u64,
                method: if i == 2 {
                    "declared".into()
                } else {
                    "cusum".into()
                },
                not_assessed: (i == 2).then(|| "under 20 steps".into()),
                declared_tokens_per_second_per_gpu: rate * 0.98,
                level_shift: None,
            });
        }
    }
    let row = &mut all.rows[1];
    row.mfu = Figure::Error {
        reason: "1.31 of the peak".into(),
    };
    row.uncounted.contradicted = 1;
    row.uncounted.failed = 1;
    let mut contradicted = row.repeats[0].clone();
    (contradicted.repeat, contradicted.steady) = (4, None);
    contradicted.status = RepeatStatus::Contradicted {
        fields: vec!["global_batch_size".into()],
    };
    let mut failed = contradicted.clone();
    failed.repeat = 5;
    failed.status = RepeatStatus::Failed {
        class: FailureClass::Nccl,
        evidence: vec!["NCCL WARN Timeout waiting for \u{1b}[31mrank 3\u{1b}[0m".into()],
    };
    failed.log_tail = vec![
        "step 41 loss 2.1".into(),
        "Traceback (most recent call last):".into(),
    ];
    row.repeats.extend([contradicted, failed]);
    all.rows[0].repeats[0].telemetry = Some(Telemetry {
        source: "nvml".into(),
        devices: 1,
        seconds: 31.0,
        energy: Some(Energy {
            joules: 20_150.0,
            method: "counter".into(),
        }),
        mean_power_watts: Some(650.0),
        max_memory_used_bytes: None,
        mean_memory_used_bytes: None,
        mean_utilization: None,
        mean_clock_hz: None,
        max_temperature_celsius: None,
        energy_absent: None,
        throttled: vec!["SW power cap".into()],
        throttled_share: BTreeMap::new(),
        processes_known: 3,
    });
    all.rows[0].memory[0].bytes = 38_838_185_984;
    let note =
        |kind, text: &str| Note::new(kind, "told", text).of("nvd/tran/llama/maximum_performance");
    all.notes.extend([
        note(
            NoteKind::Contradicted,
            "repeat 4 is not counted: the log contradicts the job in global_batch_size",
        ),
        note(
            NoteKind::Failed,
            "repeat 5 failed (nccl): NCCL WARN Timeout waiting for rank 3",
        ),
        note(NoteKind::Doubtful, "MFU is impossible: 1.31 of the peak"),
    ]);
    all.environment.push(EnvironmentDifference {
        cell_a: "nvd/tran/llama/maximum_performance".into(),
        cell_b: "nvd/native/llama/maximum_performance".into(),
        kind: tprimat_numbers::figures::EnvironmentKind::Variable,
        name: "CUDA_LAUNCH_BLOCKING".into(),
        a: Some("1".into()),
        b: None,
        follows: None,
        dangerous: Some("the host waits for every kernel".into()),
    });
}

fn page(width: usize) -> Page {
    Page {
        width,
        ..Page::file()
    }
}

#[test]
fn terminal_80() {
    insta::assert_snapshot!(table(&rich(&[]), &page(80)));
}
#[test]
fn terminal_120() {
    insta::assert_snapshot!(table(&rich(&[]), &page(120)));
}
#[test]
fn terminal_200() {
    insta::assert_snapshot!(table(&rich(&[]), &page(200)));
}
#[test]
fn across_sequence_lengths() {
    insta::assert_snapshot!(table(&rich(&["seq_length"]), &page(140)));
}
#[test]
fn as_markdown() {
    insta::assert_snapshot!(markdown(&rich(&[])));
}
#[test]
fn as_csv() {
    insta::assert_snapshot!(csv(&rich(&[])));
}
#[test]
fn repeats_as_csv() {
    insta::assert_snapshot!(csv_repeats(&rich(&[])));
}
#[test]
fn one_cell() {
    let all = rich(&[]);
    let shown =
        |name: &str, width| cell_text(&all, name, crate::advice::in_general, &page(width)).unwrap();
    insta::assert_snapshot!(
        shown("nvd/tran/llama/maximum_performance", 80)
            + "\n=====\n\n"
            + &shown("nvd/native/llama/maximum_performance", 120)
            + "\n=====\n\n"
            + &shown("nvd/fsdp/llama/maximum_performance", 80)
    );
    assert!(cell_text(&all, "nvd/tran/llama", crate::advice::in_general, &page(80)).is_none());
}

#[test]
fn json_has_the_shape_that_scripts_rely_on() {
    let value = serde_json::to_value(rich(&[])).unwrap();
    assert_eq!(value["comparable"], serde_json::json!(false));
    assert!(
        value["differences"]
            .as_array()
            .is_some_and(|d| d.iter().any(|d| d["refused"] == true))
    );
    let speedups = value["speedups"].as_array().unwrap();
    assert_eq!(speedups.len(), 5);
    for speedup in speedups {
        assert!(
            speedup["a"].is_string() && speedup["b"].is_string() && speedup["ratio"].is_number(),
            "{speedup}"
        );
        let [interval, significant] = [&speedup["interval"], &speedup["significant"]];
        let is_whole = ["low", "high", "confidence"]
            .iter()
            .all(|key| interval[key].is_number());
        assert!(interval.is_null() || is_whole, "{speedup}");
        assert!(
            significant.is_null() || significant.is_boolean(),
            "{speedup}"
        );
        let is_there = |key: &str| speedup.get(key).is_some();
        assert!(
            is_there("interval") && is_there("significant"),
            "null, not absent: {speedup}"
        );
        assert!(
            !is_there("ci95"),
            "one interval, which goes with the verdict: {speedup}"
        );
    }
    assert!(
        speedups.iter().any(|s| s["interval"].is_null())
            && speedups.iter().any(|s| s["significant"] == true)
    );
}

#[test]
fn nothing_at_all() {
    let none = compare(&[], &CompareSettings::default(), &Catalogue::default());
    assert_eq!(table(&none, &page(80)), "No cell has figures.\n");
    assert!(markdown(&none).contains("No cell has figures.") && csv(&none).lines().count() == 1);
}

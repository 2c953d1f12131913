//! One rich comparison through every text: what is there, what is apart, and what never appears.

use std::collections::BTreeMap;

use tprimat_figures::{
    Catalogue, CellState, CompareSettings, Comparison, Cut, Energy, EnvironmentDifference, Figure,
    Metric, Mfu, Note, NoteKind, RatioInterval, RepeatStatus, Telemetry, compare,
};
use tprimat_job::FailureClass;

use super::{headline::interval, *};
use crate::stand_ins::*;

mod impossible;

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
    row.mfu = Mfu::Error {
        reason: "1.31 of the peak".into(),
    };
    row.contradicted = 1;
    row.failed = 1;
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
        power_series: vec![],
    });
    all.rows[0].memory[0].bytes = 38_838_185_984;
    let note = |kind, text: &str| Note::of("nvd/tran/llama/maximum_performance", kind, text);
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
        kind: "variable".into(),
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
    let shown = |name: &str, width| cell_text(&all, name, &page(width)).unwrap();
    insta::assert_snapshot!(
        shown("nvd/tran/llama/maximum_performance", 80)
            + "\n=====\n\n"
            + &shown("nvd/native/llama/maximum_performance", 120)
            + "\n=====\n\n"
            + &shown("nvd/fsdp/llama/maximum_performance", 80)
    );
    assert!(cell_text(&all, "nvd/tran/llama", &page(80)).is_none());
}

/// Every text made of a comparison.
fn texts(all: &Comparison) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for width in [1, 60, 80, 100, 140, 200] {
        texts.insert(format!("table {width}"), table(all, &page(width)));
        for row in &all.rows {
            texts.insert(
                format!("{} {width}", row.cell),
                cell_text(all, &row.cell, &page(width)).unwrap(),
            );
        }
    }
    texts.insert("markdown".into(), markdown(all));
    texts.insert("csv".into(), csv(all));
    texts.insert("repeats".into(), csv_repeats(all));
    texts.insert(
        "headlines".into(),
        headlines(all).into_iter().map(|h| h.text + "\n").collect(),
    );
    texts
}

#[test]
fn no_line_is_wider_than_the_page() {
    for width in [60, 80, 100, 140, 200] {
        for (name, text) in texts(&rich(&[]))
            .into_iter()
            .filter(|(name, _)| name.ends_with(&format!(" {width}")))
        {
            let wide = text.lines().find(|line| line.chars().count() > width);
            assert!(wide.is_none(), "{name}: {wide:?}");
        }
    }
}

#[test]
fn cells_of_two_workloads_stand_in_no_table_without_across() {
    // A line of a table that has both, or a ratio between them, would put them side by side.
    let (one, other) = (
        "nvd/native/llama/maximum_performance",
        "nvd/tran/llama/maximum_performance@seq_length=256",
    );
    for (name, text) in texts(&rich(&[])) {
        let both = text
            .lines()
            .filter(|line| line.contains(one) && line.contains(other));
        let wrong: Vec<_> = both
            .filter(|l| {
                !(l.contains("not be compared")
                    || l.contains("not compared with")
                    || l.contains("cells"))
            })
            .collect();
        let without_notes: Vec<_> = wrong.into_iter().filter(|l| l.contains('×')).collect();
        assert!(without_notes.is_empty(), "{name}: {without_notes:?}");
    }
    let apart = rich(&[]);
    assert!(apart.groups.len() == 2 && markdown(&apart).matches("\n#### ").count() == 2);
    for (name, text) in texts(&rich(&["seq_length"])) {
        let is_of_pair =
            name.starts_with("table") || ["markdown", "csv", "headlines"].contains(&name.as_str());
        let words: String = text
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace("&#95;", "_");
        let tight = words.replace([' ', '│'], "");
        assert!(
            !is_of_pair
                || (tight.contains("acrossseq_length:256,not128")
                    || tight.contains("Notthesameworkload:seq_length(")),
            "{name}:\n{text}"
        );
    }
}

#[test]
fn what_is_no_number_is_never_printed() {
    let mut all = rich(&[]);
    for (i, row) in all.rows.iter_mut().enumerate() {
        let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][i % 3];
        row.tokens_per_second_per_gpu.value = bad;
        row.tokens_per_second_per_gpu.ci95 = Some([bad, 1.0]);
        row.tokens_per_second = Some(bad);
        (
            row.step_time.mean_seconds,
            row.step_time.cv,
            row.loss_at_end,
        ) = (bad, Some(bad), Some(bad));
        row.metrics
            .0
            .iter_mut()
            .for_each(|m| m.figure = figure(bad));
        for steady in row.repeats.iter_mut().filter_map(|r| r.steady.as_mut()) {
            steady.tokens_per_second_per_gpu = bad;
        }
    }
    for speedup in &mut all.speedups {
        speedup.ratio = f64::NAN;
        speedup.interval = Some(RatioInterval {
            low: f64::NAN,
            high: f64::INFINITY,
            confidence: 0.95,
        });
    }
    for (name, text) in texts(&all) {
        let has = |word: &str| {
            text.split(|c: char| !c.is_alphanumeric())
                .any(|w| w.eq_ignore_ascii_case(word))
        };
        assert!(
            !has("nan") && !has("inf") && !has("infinity"),
            "{name}:\n{text}"
        );
    }
}

#[test]
fn colour_repeats_what_words_say_and_is_only_where_asked_for() {
    let all = rich(&[]);
    let strip = |text: &str| {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('\u{1b}') {
            out.push_str(&rest[..at]);
            rest = &rest[at..][rest[at..].find('m').unwrap() + 1..];
        }
        out + rest
    };
    for width in [60, 80, 120, 200] {
        let plain = table(&all, &page(width));
        let colour = table(
            &all,
            &Page {
                paint: Paint::Colour,
                ..page(width)
            },
        );
        assert!(
            !plain.contains('\u{1b}')
                && colour.contains("\u{1b}[32m")
                && colour.contains("\u{1b}[1;31m"),
            "{colour}"
        );
        assert_eq!(strip(&colour), plain, "{width}");
        assert!(
            plain.contains("faster") && plain.contains("slower") && plain.contains("contradicted")
        );
    }
}

/// Cells that differ in nothing but their names, with names of `length` letters.
fn many(cells: usize, length: usize) -> Comparison {
    let name = |i: usize| format!("nvd/{}{i}/llama/maximum_performance", "f".repeat(length));
    let cells: Vec<_> = (0..cells)
        .map(|i| measured(&name(i), &test_job(), &[0.01, 0.0101, 0.0099], H100))
        .collect();
    let mut all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
    let like = rich(&[]).rows[0].metrics.clone();
    all.rows.iter_mut().for_each(|r| r.metrics = like.clone());
    all
}

#[test]
fn a_comment_is_never_too_long_and_says_what_is_missing() {
    let all = markdown(&many(150, 250));
    assert!(
        all.len() < 65_536 && all.contains("left out: "),
        "{}",
        &all[all.len() - 300..]
    );
    let opened = all.matches("<details>").count();
    assert_eq!(opened, all.matches("</details>").count());
    let mut loud = many(3, 5);
    let note = |i: usize| Note::new(NoteKind::Remark, format!("note {i} {}", "x".repeat(i * 40)));
    loud.notes = (0..500).map(note).collect();
    let loud = markdown(&loud);
    assert!(
        loud.len() < 65_536 && loud.contains("notes."),
        "{}",
        &loud[loud.len() - 300..]
    );
    assert!(!markdown(&many(40, 5)).contains("left out"));
}

/// By its kind, whatever its words are.
#[test]
fn the_weightiest_note_is_told_first_and_none_but_remarks_are_left_out() {
    let kinds = [
        NoteKind::Method,
        NoteKind::Remark,
        NoteKind::Failed,
        NoteKind::Contradicted,
        NoteKind::Dangerous,
    ];
    let mut all = many(3, 5);
    let words = "not compared with, contradict, impossible, failed, MFU:";
    all.notes = kinds
        .iter()
        .zip(0..)
        .map(|(kind, i)| Note::new(*kind, format!("note {i} {words}")))
        .collect();
    all.notes
        .extend((5..40).map(|i| Note::new(NoteKind::Remark, format!("note {i}"))));
    all.rows.iter_mut().for_each(|row| row.metrics.0.clear());
    let text = table(
        &all,
        &Page {
            most_notes: Some(2),
            ..page(200)
        },
    );
    let at = |i: usize| {
        text.find(&format!("- Note {i} "))
            .unwrap_or_else(|| panic!("{i}: {text}"))
    };
    let order = [3, 4, 2, 1, 0].map(at);
    assert!(order.is_sorted(), "{text}");
    assert!(
        text.contains("more remarks: --json has all.") && !text.contains("Note 39"),
        "{text}"
    );
}

#[test]
fn a_note_of_several_cells_is_one_sentence_and_each_has_it_in_its_details() {
    let all = many(3, 5);
    let names: Vec<&str> = all.rows.iter().map(|row| row.cell.as_str()).collect();
    let text = table(&all, &page(1000));
    assert_eq!(
        text.matches("the log does not confirm ").count(),
        1,
        "{text}"
    );
    for name in names {
        let shown = cell_text(&all, name, &page(1000)).unwrap();
        assert_eq!(shown.matches("the job asked for it.").count(), 1, "{shown}");
    }
}

#[test]
fn forty_cells_have_one_line_for_what_holds_of_all() {
    let text = table(&many(40, 5), &page(160));
    assert!(
        text.contains("all 40 cells: the log does not confirm architecture"),
        "{text}"
    );
    assert!(
        text.lines().filter(|line| line.starts_with("- ")).count() < 10,
        "{text}"
    );
}

#[test]
fn names_and_logs_are_no_markup_and_no_formula() {
    let mut all = rich(&[]);
    all.absent[0].reason =
        "=cmd|' /C calc'!A0 | `x` <img src=x> @everyone #12 https://evil.example [a](b) \u{202e}"
            .into();
    all.notes
        .push(Note::new(NoteKind::Remark, "-1+1 @team **bold**"));
    let text = markdown(&all);
    for bad in [
        "<img",
        " @everyone",
        " #12",
        "https://",
        "[a](b)",
        "**bold**",
        "\u{202e}",
        " @team",
    ] {
        assert!(!text.contains(bad), "{bad}:\n{text}");
    }
    // A pipe in a reason makes no column.
    let columns = |line: &str| line.matches('|').count();
    assert!(
        text.lines()
            .filter(|l| l.contains("&lt;img"))
            .all(|l| columns(l) == 4),
        "{text}"
    );
    let file = csv(&all);
    assert!(file.contains("'=cmd|"), "{file}");
    let mut reader = ::csv::Reader::from_reader(file.as_bytes());
    assert_eq!(
        reader
            .records()
            .map(|r| r.unwrap().len())
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        1
    );
    assert!(csv_repeats(&all).lines().count() > 10);
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

/// One level for the reader, and by the same figures, everywhere; files have the exact confidence,
/// and a note says once that intervals are widened.
#[test]
fn every_text_has_the_interval_that_goes_with_the_verdict() {
    let all = rich(&[]);
    let tested: Vec<_> = all
        .speedups
        .iter()
        .filter(|s| s.significant.is_some())
        .collect();
    assert!(
        tested.iter().any(|s| s.interval.unwrap().confidence > 0.95),
        "{tested:?}"
    );
    let csv = csv(&all);
    let mut reader = ::csv::Reader::from_reader(csv.as_bytes());
    let at = |name: &str| {
        csv.lines()
            .next()
            .unwrap()
            .split(',')
            .position(|column| column == name)
            .unwrap()
    };
    let [low, confidence] = ["speedup_interval_low", "speedup_interval_confidence"].map(at);
    let records: Vec<_> = reader.records().map(|r| r.unwrap()).collect();
    for speedup in tested {
        let ends = interval(speedup).unwrap();
        let ends = ends.strip_prefix("95 % CI ").unwrap();
        assert!(sentence(speedup).contains(&format!("× ({ends})")), "{ends}");
        assert!(
            markdown(&all).contains(ends) && table(&all, &page(400)).contains(ends),
            "{ends}"
        );
        let record = records.iter().find(|r| r[0] == *speedup.a).unwrap();
        let of = speedup.interval.unwrap();
        assert_eq!(
            [&record[low], &record[confidence]],
            [of.low.to_string(), of.confidence.to_string()].each_ref()
        );
    }
    for text in [markdown(&all), table(&all, &page(400))] {
        let said = text
            .matches("comparisons together raise a false alarm in at most 5 % of tables")
            .count();
        assert!(
            said == 1 && !text.contains("98.") && !text.contains("97.5 %"),
            "{text}"
        );
    }
}

/// The same sentences in the same order before the figures of a group, what is refused before
/// everything.
#[test]
fn terminal_comment_and_page_begin_with_the_same_sentences() {
    let all = rich(&[]);
    let told = headlines(&all);
    let of_group: Vec<_> = told.iter().filter(|h| h.group == Some(0)).collect();
    let (refused, _) = headline::refused(&told);
    assert!(refused.len() == 1 && of_group.len() > 3, "{told:?}");
    let page_of = html(&all, &[], &Meta::default()).unwrap();
    let plain = |text: String| {
        text.replace("&#95;", "_")
            .replace("&#39;", "'")
            .replace("&#96;", "`")
    };
    for text in [table(&all, &page(1000)), plain(markdown(&all)), page_of] {
        let figures = text.find("10.00 ms").unwrap();
        let first = refused.iter().copied().chain(headline::leading(&of_group));
        let at: Vec<usize> = first
            .map(|h| {
                text.find(&*h.text)
                    .unwrap_or_else(|| panic!("{h:?}: {text}"))
            })
            .collect();
        assert!(
            at.len() == 4 && at.is_sorted() && at[3] < figures,
            "{at:?} {figures}: {text}"
        );
    }
    let more = format!("And {} more, in the table.", of_group.len() - 3);
    for text in [table(&all, &page(1000)), markdown(&all)] {
        let at = text.find(&more).unwrap_or_else(|| panic!("{more}: {text}"));
        assert!(
            at < text.find("10.00 ms").unwrap() && text.matches("in the table.").count() == 1,
            "{text}"
        );
    }
}

#[test]
fn a_loss_of_other_settings_is_marked_beside_the_baselines() {
    let mut all = rich(&[]);
    for (row, loss) in all.rows.iter_mut().zip([2.5, 2.25, 2.125]) {
        (row.loss_at_end, row.loss_group) = (Some(loss), 0);
    }
    let marked = |all: &Comparison| {
        [table(all, &page(200)), markdown(all)].map(|text| text.matches("(not comparable)").count())
    };
    assert_eq!(marked(&all), [0, 0]);
    all.rows[1].loss_group = 1;
    assert_eq!(marked(&all), [1, 1]);
    assert!(
        markdown(&all).contains("2.250 (not comparable)"),
        "{}",
        markdown(&all)
    );
    // What is not there needs no mark.
    all.rows[1].loss_at_end = None;
    assert_eq!(marked(&all), [0, 0]);
}

#[test]
fn nothing_at_all() {
    let none = compare(&[], &CompareSettings::default(), &Catalogue::default());
    assert_eq!(table(&none, &page(1)), "No cell has figures.\n");
    assert!(markdown(&none).contains("No cell has figures.") && csv(&none).lines().count() == 1);
}

#[test]
fn repeats_that_do_not_count_stand_beside_those_that_do() {
    let cells = [measured_steps(
        "cpu/native/llama/maximum_performance",
        &test_job(),
        &[vec![3.0, 1.0], vec![3.0]],
        None,
    )];
    let text = table(
        &compare(&cells, &CompareSettings::default(), &Catalogue::default()),
        &page(200),
    );
    assert!(text.contains("1/3, 1 unmeasured"), "{text}");
    assert!(
        text.contains("repeat 2 is not counted: the only timed step is within"),
        "{text}"
    );
}

use serde_json::json;
use tprimat_numbers::figures::{Catalogue, CompareSettings, RatioInterval, compare};

use super::*;
use crate::stand_ins::*;

fn two(times: &[f64], other: impl FnOnce(&mut tprimat_job::Job), across: &[&str]) -> Comparison {
    let mut job = test_job();
    other(&mut job);
    let cells = [
        measured(
            "nvd/nemo/llama/single",
            &test_job(),
            &[1.0, 1.01, 0.99, 1.0],
            None,
        ),
        measured("amd/prim/llama/single", &job, times, None),
    ];
    let across = across.iter().map(|s| (*s).to_owned()).collect();
    compare(
        &cells,
        &CompareSettings {
            across,
            ..Default::default()
        },
        &Catalogue::default(),
    )
}

fn only(comparison: &Comparison) -> Headline {
    let mut all = headlines(comparison);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The pair's first figures: `… trains llama 2.00× as fast as …`.
#[test]
fn the_faster_one_is_the_subject_and_the_number_comes_first() {
    let found = only(&two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]));
    assert_eq!(found.verdict, SpeedVerdict::Faster);
    let words = "amd/prim trains llama 2.00× as fast as nvd/nemo: 2,048 against 1,024 tokens/s per GPU (95 % CI 1.9";
    assert!(found.text.starts_with(words), "{found:?}");
    assert!(
        found
            .text
            .ends_with("Declared the same workload, of which neither log confirms architecture, num_layers, hidden_size and 10 more."),
        "{found:?}"
    );
    let turned = only(&two(&[2.0, 2.02, 1.98, 2.0], |_| {}, &[]));
    assert_eq!(
        turned.verdict,
        SpeedVerdict::Slower,
        "the verdict is on the cell, the sentence on the faster one"
    );
    assert!(
        turned
            .text
            .starts_with("nvd/nemo trains llama 2.00× as fast as amd/prim: 1,024 against 512")
            && turned.text.contains("; amd/prim is 0.50"),
        "{turned:?}"
    );
    let little = only(&two(&[0.88, 0.8801, 0.8799, 0.88], |_| {}, &[]));
    assert!(
        little
            .text
            .starts_with("amd/prim trains llama 14 % faster than nvd/nemo: "),
        "{little:?}"
    );
    assert!(
        little
            .text
            .contains(" (95 % CI 12–15 %). Declared the same workload, of which neither"),
        "{little:?}"
    );
}

#[test]
fn what_is_done_differently_is_named_once_and_what_follows_from_it_is_not() {
    let other = |job: &mut tprimat_job::Job| {
        job.data.micro_batch_size *= 2;
        job.data.gradient_accumulation_steps = 1;
        job.compile = true;
    };
    let found = only(&two(&[0.5, 0.505, 0.495, 0.5], other, &[]));
    let words = " and 10 more, except: compile (true against false), micro_batch_size (";
    assert!(
        found.text.contains(words) && !found.text.contains("gradient_accumulation"),
        "{found:?}"
    );
}

#[test]
fn the_names_say_who_compiles() {
    let mut compiled = test_job();
    compiled.compile = true;
    let cells = [
        measured(
            "nvd/native/llama/single@compile=false",
            &test_job(),
            &[1.0, 1.01, 0.99, 1.0],
            None,
        ),
        measured(
            "nvd/titan/llama/single@compile=true",
            &compiled,
            &[0.88, 0.881, 0.879, 0.88],
            None,
        ),
    ];
    let text = only(&compare(
        &cells,
        &CompareSettings::default(),
        &Catalogue::default(),
    ))
    .text;
    assert!(
        text.starts_with("titan (compiled) trains llama 14 % faster than native: 1,164 against "),
        "{text}"
    );
    assert!(
        text.contains(" and 10 more, except: compile (true against false)."),
        "{text}"
    );
}

/// Known of one side only, or of neither: named before everything else, and no verdict.
#[test]
fn what_is_not_stated_is_named_and_withholds_the_verdict() {
    let all = json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1, "precision": "bf16", "optimizer": "adamw",
        "data": "random", "micro_batch_size": 2});
    let log = |name: &str, without: &[&str], times: &[f64]| {
        let mut stated = all.clone();
        without
            .iter()
            .for_each(|field| drop(stated.as_object_mut().unwrap().remove(*field)));
        let mut cell = imported(name, stated, times);
        cell.imported = vec![format!("{name}.log")];
        cell
    };
    let (slow, fast) = ([1.0, 1.01, 0.99, 1.0], [0.5, 0.505, 0.495, 0.5]);
    let pair = |a: &[&str], b: &[&str]| {
        let cells = [
            log("nvd/nemo/llama/single", a, &slow),
            log("amd/prim/llama/single", b, &fast),
        ];
        only(&compare(
            &cells,
            &CompareSettings::default(),
            &Catalogue::default(),
        ))
    };
    let known = pair(&[], &[]);
    assert_eq!(known.verdict, SpeedVerdict::Faster);
    assert!(known.text.ends_with("×). Same workload."), "{known:?}");
    let one = pair(&["precision"], &["micro_batch_size"]);
    assert_eq!(one.verdict, SpeedVerdict::NotAssessed);
    assert!(one.text.starts_with("amd/prim (imported) trains llama at 2,048 tokens/s per GPU, nvd/nemo (imported) at 1,024: 2.00× (95 % CI 1.97–2.03)"), "{one:?}");
    let words =
        ". Same workload as far as it is stated. Only amd/prim (imported) states precision (bf16).";
    assert!(one.text.contains(words), "{one:?}");
    let neither = pair(&["optimizer", "data"], &["optimizer", "data"]);
    assert!(
        neither.text.ends_with(". Neither states optimizer, data."),
        "{neither:?}"
    );
    assert_eq!(neither.verdict, SpeedVerdict::NotAssessed);
}

#[test]
fn a_cell_alone_is_not_said_to_be_refused() {
    let times = [1.0, 1.01, 0.99, 1.0];
    let one = [measured("nvd/nemo/llama/single", &test_job(), &times, None)];
    let mut comparison = compare(&one, &CompareSettings::default(), &Catalogue::default());
    assert!(
        only(&comparison)
            .text
            .ends_with("). There is no other cell to compare it with."),
        "{:?}",
        only(&comparison)
    );
    comparison.rows[0].mfu = tprimat_numbers::figures::Figure::Error {
        reason: "1.31 of the peak".into(),
    };
    assert_eq!(
        only(&comparison).text,
        "The rate of nvd/nemo/llama/single on llama is impossible: 1.31 of the peak."
    );
    let refused = headlines(&two(&times, |job| job.data.seq_length = 256, &[]));
    let alone = refused
        .iter()
        .find(|h| h.verdict == SpeedVerdict::Alone)
        .unwrap();
    assert!(
        alone
            .text
            .ends_with("). No other cell has a comparable workload."),
        "{alone:?}"
    );
}

#[test]
fn cells_that_beat_the_baseline_are_told_before_those_that_it_beats() {
    let times = |t: f64| [t, t * 1.01, t * 0.99, t];
    let cell = |name: &str, times: &[f64]| {
        measured(
            &format!("nvd/{name}/llama/single"),
            &test_job(),
            times,
            None,
        )
    };
    let mut long = test_job();
    long.data.seq_length = 256;
    let cells = [
        cell("nemo", &times(1.0)),
        cell("one", &[0.2]),
        cell("same", &[1.0, 1.02, 0.985, 1.0]),
        cell("little", &times(0.8)),
        cell("slower", &times(3.0)),
        cell("faster", &times(0.5)),
        measured("nvd/long/llama/single", &long, &times(1.0), None),
    ];
    let all = headlines(&compare(
        &cells,
        &CompareSettings::default(),
        &Catalogue::default(),
    ));
    let names: Vec<&str> = all.iter().map(|h| h.a.split('/').nth(1).unwrap()).collect();
    assert_eq!(
        names,
        ["long", "faster", "little", "slower", "same", "one", "long"]
    );
    assert_eq!(
        (all[0].verdict, all[6].verdict),
        (SpeedVerdict::Refused, SpeedVerdict::Alone)
    );
    let of_group: Vec<&Headline> = all.iter().filter(|h| h.group == Some(0)).collect();
    assert_eq!(
        of_group
            .iter()
            .take(crate::document::LEADING)
            .map(|h| &h.a)
            .collect::<Vec<_>>(),
        [&all[1].a, &all[2].a, &all[3].a]
    );
}

#[test]
fn no_verdict_without_evidence() {
    let same = only(&two(&[1.0, 1.02, 0.985, 1.0], |_| {}, &[]));
    assert!(
        same.verdict == SpeedVerdict::NoDifference
            && same.text.contains("no significant difference"),
        "{same:?}"
    );
    let one = only(&two(&[0.5], |_| {}, &[]));
    assert!(one.verdict == SpeedVerdict::NotAssessed, "{one:?}");
    assert!(!one.text.contains("CI"), "{one:?}");
}

#[test]
fn a_verdict_is_not_contradicted_by_rounding() {
    let mut comparison = two(&[2.0, 2.02, 1.98, 2.0], |_| {}, &[]);
    comparison.speedups[0].ratio = 0.999_7;
    comparison.speedups[0].interval = Some(RatioInterval {
        low: 0.9,
        high: 0.999_96,
        confidence: 0.95,
    });
    let found = only(&comparison);
    assert!(
        found.text.contains(" 0.03 % faster than amd/prim: ")
            && found.text.contains("(95 % CI 0.004–11 %); amd/prim is 0.9"),
        "{found:?}"
    );
    comparison.speedups[0].significant = Some(false);
    comparison.speedups[0].interval = Some(RatioInterval {
        low: 0.9,
        high: 1.001,
        confidence: 0.95,
    });
    assert!(
        only(&comparison)
            .text
            .contains(" (95 % CI −0.1 to +11 %). "),
        "{:?}",
        only(&comparison)
    );
}

#[test]
fn what_differs_is_in_the_sentence_or_forbids_it() {
    let long = |job: &mut tprimat_job::Job| job.data.seq_length = 256;
    let all = headlines(&two(&[0.5, 0.505, 0.495], long, &[]));
    assert!(all.iter().all(|h| !h.text.contains('×')), "{all:?}");
    let refused = all
        .iter()
        .find(|h| h.verdict == SpeedVerdict::Refused)
        .unwrap();
    let words = "amd/prim/llama/single and nvd/nemo/llama/single may not be compared, because they differ in seq_length: 256, not 128";
    assert!(refused.text.starts_with(words), "{refused:?}");
    let forced = only(&two(&[0.5, 0.505, 0.495], long, &["seq_length"]));
    assert!(
        forced
            .text
            .contains(". Not the same workload: seq_length (256 against 128)"),
        "{forced:?}"
    );
    assert!(!forced.text.contains("Same workload"), "{forced:?}");
    assert!(
        refused
            .text
            .ends_with(" `--across seq_length` compares them anyway."),
        "{refused:?}"
    );
}

/// Recomputation is a fifth to a third of the speed, whether both logs state it or one.
#[test]
fn what_only_one_log_states_of_how_it_trains_is_in_the_sentence() {
    let all = json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": 1, "precision": "bf16", "optimizer": "adamw",
        "data": "random", "micro_batch_size": 2});
    let with = |more: serde_json::Value| {
        let mut stated = all.clone();
        let more = more.as_object().unwrap().clone();
        stated.as_object_mut().unwrap().extend(more);
        let mut cell = imported("amd/prim/llama/single", stated, &[0.5, 0.505, 0.495, 0.5]);
        cell.imported = vec!["prim.log".into()];
        let mut base = imported(
            "nvd/nemo/llama/single",
            all.clone(),
            &[1.0, 1.01, 0.99, 1.0],
        );
        base.imported = vec!["nemo.log".into()];
        only(&compare(
            &[base, cell],
            &CompareSettings::default(),
            &Catalogue::default(),
        ))
    };
    for (more, words) in [
        (
            json!({"activation_checkpointing": true}),
            "activation_checkpointing (true)",
        ),
        (
            json!({"fp8": "hybrid", "tf32": true}),
            "fp8 (hybrid), tf32 (true)",
        ),
    ] {
        let found = with(more);
        let wanted = format!(
            ". Same workload as far as it is stated. Only amd/prim (imported) states {words}, \
             so part of a difference in speed may come from there."
        );
        assert!(found.text.ends_with(&wanted), "{found:?}");
    }
    // Kernels have names of their own in each framework, and what is off is as if it were absent.
    let other = with(json!({"attention": "flash", "deterministic": false, "lora_rank": 0}));
    assert!(other.text.ends_with(". Same workload."), "{other:?}");
}

/// With one device nothing is sharded, whatever a log calls it; with two it may explain the speed.
#[test]
fn sharding_that_one_log_states_is_in_the_sentence_where_there_is_something_to_share() {
    let headline = |devices: u64| {
        let stated = json!({"global_batch_size": 8, "seq_length": 128, "num_gpus": devices, "precision": "bf16",
            "optimizer": "adamw", "data": "random", "micro_batch_size": 2});
        let mut sharded = stated.clone();
        sharded["sharding"] = "full_shard".into();
        let cells = [
            imported("nvd/nemo/llama/single", stated, &[1.0, 1.01, 0.99, 1.0]),
            imported("nvd/fsdp/llama/single", sharded, &[0.5, 0.505, 0.495, 0.5]),
        ];
        only(&compare(
            &cells,
            &CompareSettings::default(),
            &Catalogue::default(),
        ))
        .text
    };
    let words = "states sharding (";
    assert!(!headline(1).contains(words), "{}", headline(1));
    assert!(headline(2).contains(words), "{}", headline(2));
}

#[test]
fn labels_that_no_log_confirms_are_no_evidence_of_one_workload() {
    let by_labels = |without: &str| {
        let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
        for row in &mut comparison.rows {
            row.imported = vec![format!("{}.json", row.cell)];
            row.contract.0.retain(|found| found.field != without);
            let own = row
                .contract
                .0
                .iter()
                .filter(|f| f.tier == tprimat_numbers::results::Tier::Workload);
            row.declared_only = own.map(|found| found.field.clone()).collect();
        }
        only(&comparison).text
    };
    let whole = by_labels("");
    let words = ". Declared the same workload, which neither log confirms";
    assert!(whole.contains(words), "{whole}");
    let gap = by_labels("optimizer");
    let words = ". Same workload as far as it is stated, which neither log confirms";
    assert!(gap.contains(words), "{gap}");
}

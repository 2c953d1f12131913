use serde_json::json;
use tprimat_numbers::figures::{
    Catalogue, CompareSettings, EnvironmentDifference, Figure, Judged, Price, RatioInterval,
    codes::DANGEROUS_VARIABLE, compare,
};

use tprimat_numbers::results::Reason;

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
            .ends_with("Declared the same workload. 13 settings (architecture, num_layers, …) are confirmed by neither log."),
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
            .contains(" (95 % CI 12–15 %). Declared the same workload. "),
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
    let words =
        ". Declared the same workload, except: compile (true against false), micro_batch_size (";
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
        text.contains(". Declared the same workload, except: compile. "),
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
    let words = ". Same workload as far as it is stated. Only amd/prim (imported) states precision (bf16). ";
    assert!(one.text.contains(words), "{one:?}");
    assert!(
        one.text
            .contains(". No verdict: the workloads may differ in precision."),
        "{one:?}"
    );
    let neither = pair(&["optimizer", "data"], &["optimizer", "data"]);
    assert!(
        neither
            .text
            .contains(". Neither states optimizer, data. No verdict: the workloads may differ in optimizer, data"),
        "{neither:?}"
    );
    assert_eq!(neither.verdict, SpeedVerdict::NotAssessed);
}

#[test]
fn cells_of_two_sessions_say_so() {
    let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
    assert!(!only(&comparison).text.contains(" apart"));
    comparison.speedups[0].apart_seconds = Some(30.0 * 86_400.0);
    let words = "They were measured 30 days apart, so the interval allows for 1 % (standard deviation) by which the speed of each may move";
    assert!(
        only(&comparison).text.contains(words),
        "{:?}",
        only(&comparison)
    );
}

#[test]
fn a_host_that_no_log_names_is_said_to_be_unknown() {
    let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
    comparison.rows[0].repeats[0].host.clear();
    assert!(
        only(&comparison)
            .text
            .ends_with(". Some logs do not name their host."),
        "{:?}",
        only(&comparison)
    );
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
    comparison.rows[0].mfu = tprimat_numbers::figures::Mfu::Error {
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

/// Only prices that somebody stated, that differ, and beside a difference that is one.
#[test]
fn what_it_costs_is_said_where_it_says_something() {
    let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
    assert!(!only(&comparison).text.contains("cost"));
    let price = |per_gpu_hour: f64, source: &str| Price {
        per_gpu_hour,
        currency: "USD".into(),
        source: Some(source.into()),
    };
    let priced = |a: Price, b: Price| {
        let mut comparison = comparison.clone();
        let speedup = &mut comparison.speedups[0];
        speedup.cost_ratio = Figure::Ok {
            value: a.per_gpu_hour / b.per_gpu_hour / speedup.ratio,
            basis: "prices".into(),
        };
        speedup.prices = Some(Box::new([a, b]));
        comparison
    };
    let stated = priced(price(3.0, "our contract"), price(2.5, "our contract"));
    let text = only(&stated).text;
    assert!(
        text.contains(". At 3.00 against 2.50 USD per GPU-hour, a token costs 0.600× (95 % CI 0.5"),
        "{text}"
    );
    let mut unclear = stated.clone();
    unclear.speedups[0].significant = Some(false);
    let example = priced(
        price(3.0, "illustrative, not a quote"),
        price(2.5, "our contract"),
    );
    for other in [unclear, example, priced(price(3.0, "a"), price(3.0, "b"))] {
        assert!(!only(&other).text.contains("cost"), "{:?}", only(&other));
    }
    comparison.rows[1].repeats_added_later = true;
    let text = only(&comparison).text;
    assert!(
        text.contains(". Repeats of amd/prim were added after the first results were seen."),
        "{text}"
    );
    comparison.rows[0].repeats_added_later = true;
    let text = only(&comparison).text;
    assert_eq!(text.matches("were added after").count(), 1, "{text}");
    assert!(
        text.contains("Repeats of amd/prim and nvd/nemo were added"),
        "{text}"
    );
}

#[test]
fn more_devices_are_not_hidden_behind_a_rate_of_one() {
    let other = |job: &mut tprimat_job::Job| job.parallelism.num_gpus = 2;
    let text = only(&two(&[0.55, 0.5505, 0.5495, 0.55], other, &["num_gpus"])).text;
    assert!(
        text.contains("Not the same workload: num_gpus (1 against 2)"),
        "{text}"
    );
    assert!(
        text.contains("In total 1,024 tokens/s on 1 GPU against 1,862 on 2, 0.55× as much"),
        "{text}"
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
fn the_ranking_names_the_fastest_cell_and_not_the_largest_difference() {
    let cell = |name: &str, by: f64| {
        let times = [1.0, 1.01, 0.99, 1.0].map(|time| time * by);
        measured(
            &format!("nvd/{name}/llama/single"),
            &test_job(),
            &times,
            None,
        )
    };
    let said = |cells: &[(&str, f64)]| {
        let cells: Vec<_> = cells.iter().map(|(name, by)| cell(name, *by)).collect();
        let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        ranking(
            &all,
            &Judged::of_comparison(&all),
            &all.groups[0],
            &all.rows.iter().collect::<Vec<_>>(),
        )
    };
    let some = said(&[("nemo", 1.0), ("slower", 3.0), ("titan", 0.8)]).unwrap();
    assert!(
        some.starts_with(
            "Fastest: titan, 1,280 tokens/s per GPU, 25 % faster than the baseline nemo (95 % CI "
        ),
        "{some}"
    );
    let close = said(&[("nemo", 1.0), ("prim", 0.801), ("titan", 0.8)]).unwrap();
    assert!(
        close.ends_with(" It is not clearly apart from prim, the next."),
        "{close}"
    );
    assert_eq!(
        said(&[("nemo", 1.0), ("slower", 3.0), ("slow", 2.0)]).unwrap(),
        "No cell is distinguishably faster than the baseline nemo (1,024 tokens/s per GPU)."
    );
    assert_eq!(said(&[("nemo", 1.0), ("titan", 0.8)]), None);
}

/// The intervals of the two fastest rates overlap, and the test of the two finds a difference.
#[test]
fn the_ranking_tells_points_of_a_sweep_apart_as_the_sweep_does() {
    let points = [(1, 1.5), (2, 1.0), (4, 0.96)].map(|(value, time)| {
        let mut job = test_job();
        job.data.micro_batch_size = value;
        let times = [1.0, 1.01, 0.99].map(|near| near * time);
        let name = format!("nvd/titan/llama/single@micro_batch_size={value}");
        let mut cell = measured(&name, &job, &times, None);
        cell.axes = [("micro_batch_size".to_owned(), value.to_string())].into();
        cell
    });
    let all = compare(&points, &CompareSettings::default(), &Catalogue::default());
    let ends = |row: usize| all.rows[row].tokens_per_second_per_gpu.ci95.unwrap();
    assert!(ends(1)[1] > ends(2)[0], "they overlap");
    assert!(
        tprimat_numbers::figures::sweeps(&all, &Judged::of_comparison(&all))[0].surfaces[0]
            .best
            .as_ref()
            .unwrap()
            .is_fastest()
    );
    let rows: Vec<&Row> = all.rows.iter().collect();
    let said = ranking(&all, &Judged::of_comparison(&all), &all.groups[0], &rows).unwrap();
    assert!(
        said.starts_with("Fastest: titan (micro_batch_size=4)"),
        "{said}"
    );
    assert!(!said.contains("not clearly apart"), "{said}");
}

#[test]
fn cells_at_the_baselines_setting_are_told_before_mixed_pairs() {
    let mut cells = Vec::new();
    for (framework, by) in [("nemo", 1.0), ("prim", 0.95)] {
        for (value, time) in [(1, 1.3), (2, 1.0), (4, 0.8)] {
            let mut job = test_job();
            job.data.micro_batch_size = value;
            let times = [1.0, 1.001, 0.999].map(|near| near * time * by);
            let name = format!("nvd/{framework}/llama/single@micro_batch_size={value}");
            let mut cell = measured(&name, &job, &times, None);
            cell.axes = [("micro_batch_size".to_owned(), value.to_string())].into();
            cells.push(cell);
        }
    }
    let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
    let told = headlines(&all);
    assert_eq!(told[0].a, "nvd/prim/llama/single@micro_batch_size=1");
    assert_eq!(told[1].a, "nvd/prim/llama/single@micro_batch_size=4");
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
    assert!(
        one.verdict == SpeedVerdict::NotAssessed && one.text.contains("No verdict: one repeat"),
        "{one:?}"
    );
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

#[test]
fn a_dangerous_setting_is_in_the_sentence() {
    let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
    comparison.environment.push(EnvironmentDifference {
        cell_a: "amd/prim/llama/single".into(),
        cell_b: "nvd/nemo/llama/single".into(),
        kind: tprimat_numbers::figures::EnvironmentKind::Variable,
        name: "CUDA_LAUNCH_BLOCKING".into(),
        a: None,
        b: Some("1".into()),
        follows: None,
        dangerous: Some("every kernel is waited for".into()),
    });
    let found = only(&comparison);
    let words = ". nvd/nemo runs with CUDA_LAUNCH_BLOCKING=1, amd/prim without it: every kernel is waited for.";
    assert!(found.text.contains(words), "{found:?}");
    // Once, though the row warns of it too; what both run with is no difference, and told all the
    // same.
    let warning = |name: &str| {
        let warning = Reason::beside(DANGEROUS_VARIABLE, format!("{name}=1: it is slow"));
        warning.with("name", name).with("value", "1")
    };
    comparison.rows[0].warnings = vec![warning("CUDA_LAUNCH_BLOCKING"), warning("NCCL_DEBUG")];
    comparison.rows[1].warnings = vec![warning("NCCL_DEBUG")];
    let text = only(&comparison).text;
    assert_eq!(text.matches("CUDA_LAUNCH_BLOCKING").count(), 1, "{text}");
    for cell in ["amd/prim", "nvd/nemo"] {
        assert!(
            text.contains(&format!(". {cell} runs with NCCL_DEBUG=1: it is slow")),
            "{text}"
        );
    }
}

#[test]
fn two_that_launch_the_same_are_said_to_differ_by_noise() {
    let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
    let words = "amd/prim launches the very same bytes as nvd/nemo, so any difference";
    assert!(!only(&comparison).text.contains("bytes"));
    comparison.rows[1].same_launch_as = Some("nvd/nemo/llama/single".into());
    assert!(
        only(&comparison).text.contains(words),
        "{:?}",
        only(&comparison)
    );
    // Both launch as a third cell does, which is in another table.
    comparison
        .rows
        .iter_mut()
        .for_each(|row| row.same_launch_as = Some("x/y/z/w".into()));
    assert!(
        only(&comparison).text.contains(words),
        "{:?}",
        only(&comparison)
    );
    comparison.rows[1].imported = vec!["theirs.log".into()];
    assert!(!only(&comparison).text.contains("bytes"));
}

#[test]
fn one_measurement_under_two_names_is_no_difference_at_all() {
    let mut comparison = two(&[1.0, 1.01, 0.99, 1.0], |_| {}, &[]);
    comparison.rows[1].same_launch_as = Some("nvd/nemo/llama/single".into());
    comparison.rows[1].repeats = comparison.rows[0].repeats.clone();
    comparison.speedups[0].reason = Some("both are the same measurements".into());
    let text = only(&comparison).text;
    assert!(
        text.ends_with("No verdict: both are the same measurements.") && !text.contains("noise"),
        "{text}"
    );
}

#[test]
fn nobody_knows_whether_nameless_hosts_are_one() {
    let mut comparison = two(&[0.5, 0.505, 0.495, 0.5], |_| {}, &[]);
    comparison.rows[1]
        .repeats
        .iter_mut()
        .for_each(|r| r.host.clear());
    assert!(
        only(&comparison)
            .text
            .contains(". Some logs do not name their host"),
        "{:?}",
        only(&comparison)
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
        assert!(found.short.ends_with(&wanted), "{found:?}");
        assert!(found.text.ends_with(&wanted), "{found:?}");
    }
    // Kernels have names of their own in each framework, and what is off is as if it were absent.
    let other = with(json!({"attention": "flash", "deterministic": false, "lora_rank": 0}));
    assert!(other.short.ends_with(". Same workload."), "{other:?}");
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
    let words = ". Same workload by their labels only: neither log confirms any of it";
    assert!(whole.contains(words), "{whole}");
    let gap = by_labels("optimizer");
    let words = ". The labels of their files agree, but neither log confirms them, so the workloads may differ";
    assert!(gap.contains(words), "{gap}");
}

//! The worked examples of docs/METRICS.md, and what is absent, impossible or contradictory.

mod energy;
mod scaling;
mod time_to_loss;

use proptest::prelude::*;
use tprimat_job::{Job, Task};

use super::*;
use crate::figures::{
    CellState, CompareSettings, Comparison, Curve, Energy, Memory, Telemetry, compare,
    stand_ins::llama_8b, stand_ins::measured_steps, stand_ins::test_job as job,
};

const H100: (&str, &str) = ("cuda", "NVIDIA H100 80GB HBM3");
const MI300X: (&str, &str) = ("cuda", "AMD Instinct MI300X");
const NVD: &str = "nvd/nemo/llama/maximum_performance";
const AMD: &str = "amd/prim/llama/maximum_performance";

/// Llama 3.1 8B at 8192 tokens, 128 sequences a step on 8 devices.
fn llama_job() -> Job {
    let mut job = job();
    job.model = llama_8b();
    job.data.micro_batch_size = 1;
    job.data.global_batch_size = 128;
    job.data.gradient_accumulation_steps = 16;
    job.data.seq_length = 8192;
    job.parallelism.num_gpus = 8;
    job.parallelism.data_parallel_size = 8;
    job
}

/// Three repeats of 51 steps, the first of each warm-up.
fn cell_of(name: &str, job: &Job, seconds: f64, device: Option<(&str, &str)>) -> CellInput {
    measured_steps(name, job, &vec![vec![seconds; 51]; 3], device)
}

fn h100() -> CellInput {
    cell_of(NVD, &llama_job(), 12.27, Some(H100))
}

fn summary(cell: &mut CellInput) -> &mut Summary {
    let CellState::Ok { summary } = &mut cell.state else {
        panic!("{}", cell.cell)
    };
    summary
}

fn price(per_gpu_hour: f64, currency: &str) -> Price {
    Price {
        per_gpu_hour,
        currency: currency.into(),
        source: None,
    }
}

fn catalogue() -> Catalogue {
    let prices = [
        ("nvd".to_owned(), price(3.0, "USD")),
        ("amd".to_owned(), price(2.5, "USD")),
    ]
    .into();
    Catalogue {
        prices,
        target_loss: [("llama".to_owned(), 2.0)].into(),
        ..Catalogue::default()
    }
}

fn get(cell: &CellInput, catalogue: &Catalogue, name: &str) -> Figure {
    let CellState::Ok { summary } = &cell.state else {
        panic!()
    };
    metrics_of(cell, summary, catalogue)
        .get(name)
        .unwrap_or_else(|| panic!("{name}"))
        .clone()
}

#[track_caller]
fn is(cell: &CellInput, name: &str, expected: f64) {
    let found = get(cell, &catalogue(), name);
    let value = found.value().unwrap_or_else(|| panic!("{name}: {found:?}"));
    assert!(
        (value / expected - 1.0).abs() < 1e-4,
        "{name}: {value}, not {expected}: {found:?}"
    );
}

#[track_caller]
fn is_absent(cell: &CellInput, catalogue: &Catalogue, name: &str, why: &str) {
    let Figure::Absent { reason } = get(cell, catalogue, name) else {
        panic!("{name}")
    };
    let reason = reason.text;
    assert!(reason.contains(why), "{name}: {reason}");
}

#[track_caller]
fn is_error(cell: &CellInput, catalogue: &Catalogue, name: &str, why: &str) {
    let Figure::Error { reason } = get(cell, catalogue, name) else {
        panic!("{name}")
    };
    let reason = reason.text;
    assert!(reason.contains(why), "{name}: {reason}");
}

/// A run of 50 steps at 12.27 s, which took 613.5 s; 8 devices at 650 W make 3,190,200 J.
fn telemetry(joules: f64, seconds: f64, devices: u64) -> Telemetry {
    let energy = serde_json::json!({ "joules": 1.0, "method": "counter" });
    let json = serde_json::json!({ "source": "nvml", "devices": devices, "seconds": 1.0, "energy": energy });
    let telemetry: Telemetry = serde_json::from_value(json).unwrap();
    Telemetry {
        seconds,
        energy: telemetry.energy.map(|energy| Energy { joules, ..energy }),
        ..telemetry
    }
}

/// Metered in its first repeat alone.
fn metered(joules: f64, seconds: f64, devices: u64) -> CellInput {
    let mut cell = h100();
    summary(&mut cell).repeats[0].telemetry = Some(telemetry(joules, seconds, devices));
    cell
}

#[test]
fn the_worked_examples() {
    let mut cell = h100();
    let of = summary(&mut cell);
    of.memory = vec![Memory {
        kind: "peak_reserved".into(),
        source: "torch".into(),
        bytes: 60 << 30,
    }];
    of.repeats
        .iter_mut()
        .for_each(|r| r.telemetry = Some(telemetry(3_190_200.0, 613.5, 8)));
    of.loss_at_end = Some(2.5);
    is(&cell, "tokens_per_second", 85_458.5);
    is(&cell, "tflops_per_gpu", 549.84);
    is(&cell, "mfu", 0.555_731);
    is(&cell, "memory_headroom", 0.25);
    is(&cell, "loss_at_end", 2.5);
    is(&cell, "tokens_per_dollar", 12_818_777.5);
    is(&cell, "dollars_per_trillion_tokens", 78_010.56);
    is(&cell, "tokens_per_joule", 16.434_33);
    is(&cell, "tokens_per_joule_at_tdp", 15.260_45);
    is(&cell, "days_to_1t_tokens", 135.435);
    is(&cell, "gpu_hours_per_trillion_tokens", 26_003.52);
    // The driver's own count of bytes.
    cell.environment
        .facts
        .insert("memory_bytes".into(), "85520809984".into());
    is(&cell, "memory_headroom", 0.246_680);
}

#[test]
fn a_row_has_the_memory_of_one_device_where_that_is_known() {
    let of = |cell: CellInput| {
        compare(&[cell], &CompareSettings::default(), &catalogue())
            .rows
            .remove(0)
            .memory_capacity_bytes
    };
    assert_eq!(of(h100()), Some(80 << 30));
    assert_eq!(
        of(cell_of(AMD, &llama_job(), 12.27, Some(MI300X))),
        Some(192 << 30)
    );
    let mut locked = h100();
    locked
        .environment
        .facts
        .insert("memory_bytes".into(), "85520809984".into());
    assert_eq!(of(locked), Some(85_520_809_984));
    assert_eq!(
        of(cell_of(
            NVD,
            &llama_job(),
            12.27,
            Some(("cuda", "NVIDIA H20-3e"))
        )),
        None,
        "no datasheet"
    );
    assert_eq!(
        of(cell_of(
            "cpu/tran/llama/single",
            &llama_job(),
            12.27,
            Some(("cpu", "some CPU"))
        )),
        None
    );
}

#[test]
fn every_figure_says_what_it_is_made_of() {
    let Figure::Ok { basis, .. } = get(&h100(), &catalogue(), "dollars_per_trillion_tokens") else {
        panic!()
    };
    assert_eq!(basis, "26004 GPU-hours at 3 USD a GPU-hour");
    let Figure::Ok { basis, .. } = get(&h100(), &catalogue(), "mfu") else {
        panic!()
    };
    assert_eq!(
        basis,
        "549.8 TFLOP/s (causal-halved) ÷ 989.4 TFLOP/s peak (NVIDIA H100 SXM datasheet, dense)"
    );
    let Figure::Ok { basis, .. } = get(&h100(), &catalogue(), "tokens_per_second") else {
        panic!()
    };
    assert_eq!(basis, "10682 tokens/s per device × 8 devices");
}

#[test]
fn the_same_metrics_stand_in_every_row() {
    let mut nothing = h100();
    *summary(&mut nothing) = crate::figures::summarize(&[], &crate::figures::Statistics::default());
    let names = |cell: &CellInput| {
        let CellState::Ok { summary } = &cell.state else {
            panic!()
        };
        metrics_of(cell, summary, &Catalogue::default())
            .0
            .into_iter()
            .map(|m| (m.name, m.unit))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&nothing), names(&h100()));
    is_absent(&nothing, &catalogue(), "mfu", "no repeat counts");
}

#[test]
fn what_is_not_known_is_absent_and_says_why() {
    let cell = cell_of(NVD, &llama_job(), 12.27, Some(("cuda", "NVIDIA H20-3e")));
    for name in ["mfu", "tokens_per_joule_at_tdp"] {
        is_absent(
            &cell,
            &catalogue(),
            name,
            "no datasheet is known for \"NVIDIA H20-3e\"",
        );
    }
    is(&cell, "tflops_per_gpu", 549.84);
    is_absent(
        &h100(),
        &Catalogue::default(),
        "tokens_per_dollar",
        "no price is stated for nvd",
    );
    is_absent(&h100(), &catalogue(), "tokens_per_joule", "not sampled");
    is_absent(
        &h100(),
        &catalogue(),
        "memory_headroom",
        "no figure of device memory",
    );
    is_absent(
        &h100(),
        &Catalogue::default(),
        "time_to_loss",
        "comparison.target_loss",
    );
    let cpu = cell_of(
        "cpu/native/llama/single",
        &job(),
        1.0,
        Some(("cpu", "AMD EPYC 9R14")),
    );
    for name in [
        "mfu",
        "gpu_hours_per_trillion_tokens",
        "tokens_per_joule",
        "memory_headroom",
    ] {
        is_absent(&cpu, &catalogue(), name, "CPU");
    }
    let mut no_count = h100();
    summary(&mut no_count).workload.as_mut().unwrap().num_gpus = None;
    is_absent(
        &no_count,
        &catalogue(),
        "days_to_1t_tokens",
        "number of devices",
    );
}

#[test]
fn a_rate_that_no_precision_explains_is_impossible_whatever_is_stated() {
    let at = |seconds, device, precision: &str| {
        let mut cell = cell_of(NVD, &llama_job(), seconds, device);
        let workload = summary(&mut cell).workload.as_mut().unwrap();
        workload.precision = precision.to_owned();
        cell
    };
    let beyond = "TFLOP/s is more than the 1979 that the device can do";
    for precision in ["not stated", "", "fp32"] {
        // 4,400 TFLOP/s.
        let impossible = at(1.534, Some(H100), precision);
        is_error(&impossible, &catalogue(), "mfu", beyond);
        let possible = at(12.27, Some(H100), precision);
        is_absent(&possible, &catalogue(), "mfu", "");
    }
    // It may be faster than all that the table has.
    let unknown = at(1.534, Some(H100), "nvfp4");
    is_absent(&unknown, &catalogue(), "mfu", "no nvfp4 peak");
    let unnamed = |seconds, precision| at(seconds, None, precision);
    let beyond = "more than the 2500 that the fastest accelerator of this vendor does";
    is_error(&unnamed(1.534, "bf16"), &catalogue(), "mfu", beyond);
    is_absent(&unnamed(1.534, "fp8"), &catalogue(), "mfu", "device");
    is_absent(&unnamed(12.27, "bf16"), &catalogue(), "mfu", "device");
}

/// 10,682.3 tokens/s × (45.03 G × 4 ÷ 6 + 6.44 G). What a log states of its adapters is no riddle where the
/// job says that it trains some.
#[test]
fn adapters_cost_no_gradients_of_what_is_frozen() {
    let states = |cell: &mut CellInput, field: &str| {
        let field = serde_json::json!({ "field": field, "tier": "workload", "value": 41_943_040, "source": "effective" });
        let field = serde_json::from_value(field).unwrap();
        summary(cell).contract.0.push(field);
    };
    let mut job = llama_job();
    let mut whole = cell_of(NVD, &job, 12.27, Some(H100));
    states(&mut whole, "trainable_parameters");
    is_absent(
        &whole,
        &catalogue(),
        "tflops_per_gpu",
        "only a part of the weights",
    );
    (job.task, job.lora_rank) = (Task::Lora, 16);
    let mut adapters = cell_of(NVD, &job, 12.27, Some(H100));
    states(&mut adapters, "trainable_parameters");
    is(&adapters, "tflops_per_gpu", 389.50);
    states(&mut adapters, "freeze_layers");
    is_absent(&adapters, &catalogue(), "tflops_per_gpu", "freeze_layers");
}

#[test]
fn contradictory_metadata_makes_no_figure() {
    let on = |cell: &str, device| cell_of(cell, &llama_job(), 12.27, device);
    let catalogue = Catalogue {
        vendors: [("lab".to_owned(), Vendor::Amd)].into(),
        ..catalogue()
    };
    for (cell, why) in [
        (
            on(AMD, Some(H100)),
            "the platform is amd, but the device is \"NVIDIA H100 80GB HBM3\"",
        ),
        (
            on("lab/prim/llama/single", Some(H100)),
            "the platform is lab",
        ),
        (
            on("cpu/native/llama/single", Some(H100)),
            "the platform is cpu",
        ),
        (on(NVD, Some(("cpu", "AMD EPYC"))), "ran on a CPU"),
    ] {
        for name in [
            "mfu",
            "tokens_per_dollar",
            "dollars_per_trillion_tokens",
            "tokens_per_joule_at_tdp",
        ] {
            is_error(&cell, &catalogue, name, why);
        }
        is(&cell, "tokens_per_second", 85_458.5);
    }
    let mut locked = h100();
    locked
        .environment
        .facts
        .insert("accelerator".into(), "NVIDIA H200".into());
    is_error(&locked, &catalogue, "mfu", "tprimat.lock \"NVIDIA H200\"");
    locked
        .environment
        .facts
        .insert("accelerator".into(), H100.1.into());
    is(&locked, "mfu", 0.555_731);
}

#[test]
fn the_lock_names_a_device_that_the_log_does_not_and_a_part_is_not_the_whole() {
    let mut cell = cell_of(AMD, &llama_job(), 12.27, None);
    is_absent(&cell, &catalogue(), "mfu", "does not name the device");
    let facts = &mut cell.environment.facts;
    facts.insert("accelerator".into(), "AMD Instinct MI300X".into());
    facts.insert("partition".into(), "SPX/NPS1".into());
    is(&cell, "mfu", 549.84 / 1307.4);
    cell.environment
        .facts
        .insert("partition".into(), "CPX/NPS4".into());
    is_absent(&cell, &catalogue(), "mfu", "partitioned (CPX/NPS4)");
    is_absent(
        &cell,
        &catalogue(),
        "tokens_per_joule_at_tdp",
        "partitioned",
    );
}

#[test]
fn more_than_the_peak_is_an_error_in_every_figure_of_flops() {
    let fast = cell_of(NVD, &llama_job(), 5.0, Some(H100));
    is_error(&fast, &catalogue(), "mfu", "more than the 989");
    is_error(&fast, &catalogue(), "tflops_per_gpu", "more than the 989");
}

#[test]
fn a_price_is_found_by_the_platforms_id_then_by_its_vendors_names() {
    let cell = |name: &str, device| cell_of(name, &llama_job(), 12.27, device);
    let of =
        |cell: &CellInput, catalogue: &Catalogue| get(cell, catalogue, "tokens_per_dollar").value();
    let at = |price: f64| Some(10_682.314_588_427_058 * 3600.0 / price);
    let near =
        |a: Option<f64>, b: Option<f64>| a.zip(b).is_some_and(|(a, b)| (a / b - 1.0).abs() < 1e-9);
    let own = cell("h100-box/nemo/llama/single", None);
    assert_eq!(of(&own, &catalogue()), None);
    let declared = Catalogue {
        vendors: [("h100-box".to_owned(), Vendor::Nvd)].into(),
        ..catalogue()
    };
    assert!(near(of(&own, &declared), at(3.0)));
    assert!(near(
        of(
            &cell("h100-box/nemo/llama/single", Some(H100)),
            &catalogue()
        ),
        at(3.0)
    ));
    let mut both = declared;
    both.prices.insert("h100-box".into(), price(2.0, "USD"));
    assert!(near(of(&own, &both), at(2.0)));
}

#[test]
fn a_stated_tdp_wins() {
    let tdp = [(
        "nvidia".to_owned(),
        Tdp {
            watts: 500.0,
            source: "power cap".into(),
        },
    )]
    .into();
    let Figure::Ok { value, basis } = get(
        &h100(),
        &Catalogue { tdp, ..catalogue() },
        "tokens_per_joule_at_tdp",
    ) else {
        panic!()
    };
    assert!(
        (value - 21.364_63).abs() < 1e-4 && basis.contains("500 W (power cap)"),
        "{value} {basis:?}"
    );
}

#[test]
fn memory_is_of_one_kind_and_fits_the_device() {
    let with = |all: &[(&str, u64)]| {
        let mut cell = h100();
        let memory = |(kind, gib): &(&str, u64)| Memory {
            kind: (*kind).into(),
            source: "s".into(),
            bytes: gib << 30,
        };
        summary(&mut cell).memory = all.iter().map(memory).collect();
        cell
    };
    is(
        &with(&[
            ("peak_allocated", 40),
            ("peak_reserved", 60),
            ("peak_rss", 500),
        ]),
        "memory_headroom",
        0.25,
    );
    is(
        &with(&[("peak_reserved", 60), ("device_used", 64)]),
        "memory_headroom",
        0.2,
    );
    // Read between two steps, it missed the peak.
    let missed = with(&[
        ("device_used", 50),
        ("peak_reserved", 60),
        ("peak_allocated", 40),
    ]);
    is(&missed, "memory_headroom", 0.25);
    let Figure::Ok { basis, .. } = get(&missed, &catalogue(), "memory_headroom") else {
        panic!()
    };
    assert!(
        basis.starts_with("peak_reserved (s) 60.00 GiB"),
        "{basis:?}"
    );
    let full = get(
        &with(&[("device_used", 80)]),
        &catalogue(),
        "memory_headroom",
    );
    assert_eq!(
        full.value(),
        Some(0.0),
        "nothing left is no error: {full:?}"
    );
    is_absent(
        &with(&[("peak_rss", 40)]),
        &catalogue(),
        "memory_headroom",
        "no figure of device memory",
    );
    let mut cell = with(&[("peak_rss", 500)]);
    summary(&mut cell).repeats[2].telemetry = Some(Telemetry {
        max_memory_used_bytes: Some(70 << 30),
        ..telemetry(1.0, 1.0, 8)
    });
    is(&cell, "memory_headroom", 0.125);
    is_error(
        &with(&[("device_used", 81)]),
        &catalogue(),
        "memory_headroom",
        "more than there is",
    );
}

#[test]
fn a_speedup_has_its_cost() {
    let mi300x = || cell_of(AMD, &llama_job(), 1_048_576.0 / 8.0 / 6500.0, Some(MI300X));
    let of = |cells: &[CellInput], catalogue: &Catalogue| {
        compare(cells, &CompareSettings::default(), catalogue).speedups[0]
            .cost_ratio
            .clone()
    };
    let Figure::Ok { value, basis } = of(&[h100(), mi300x()], &catalogue()) else {
        panic!()
    };
    assert!((value - 1.369_53).abs() < 1e-4, "{value}");
    assert_eq!(basis, "106838 ÷ 78011 USD per trillion tokens");
    let mut euros = catalogue();
    euros.prices.insert("amd".into(), price(2.5, "EUR"));
    let figure = of(&[h100(), mi300x()], &euros);
    assert_eq!(
        figure,
        absent("other_currency", "prices in EUR and USD are not divided")
    );
    euros.prices.remove("amd");
    let Figure::Absent { reason } = of(&[h100(), mi300x()], &euros) else {
        panic!()
    };
    let reason = reason.text;
    assert!(
        reason.starts_with("amd/prim/llama/maximum_performance: no price is stated for amd"),
        "{reason}"
    );
    let wrong = cell_of(AMD, &llama_job(), 12.27, Some(H100));
    assert_eq!(
        compare(&[h100(), wrong], &CompareSettings::default(), &catalogue()).speedups,
        []
    );
}

proptest! {
    #[test]
    fn absurd_values_are_explained(
        rate in proptest::num::f64::ANY,
        price in proptest::num::f64::ANY,
        joules in proptest::num::f64::ANY,
        seconds in proptest::num::f64::ANY,
        bytes in any::<u64>(),
        gpus in any::<u64>(),
        target in proptest::num::f64::ANY,
        loss in proptest::num::f64::ANY,
    ) {
        let mut cell = metered(joules, seconds, gpus);
        let of = summary(&mut cell);
        of.tokens_per_second_per_gpu.as_mut().unwrap().value = rate;
        of.workload.as_mut().unwrap().num_gpus = Some(gpus);
        of.memory = vec![Memory { kind: "device_used".into(), source: String::new(), bytes }];
        of.loss_at_end = Some(loss);
        of.repeats[0].curve.loss.iter_mut().for_each(|l| *l = Some(loss));
        of.repeats[0].curve.step_time_seconds.iter_mut().for_each(|t| *t = Some(seconds));
        of.repeats[0].curve.step.iter_mut().for_each(|s| *s = gpus);
        let mut catalogue = catalogue();
        catalogue.prices.get_mut("nvd").unwrap().per_gpu_hour = price;
        catalogue.target_loss.insert("llama".into(), target);
        let CellState::Ok { summary } = &cell.state else { unreachable!() };
        for metric in metrics_of(&cell, summary, &catalogue).0 {
            // JSON has no infinity.
            let kept = serde_json::to_string(&metric.figure).unwrap();
            prop_assert!(serde_json::from_str::<Figure>(&kept).is_ok(), "{kept}");
            match metric.figure {
                Figure::Ok { value, .. } => prop_assert!(value.is_finite() && value > 0.0, "{}", metric.name),
                Figure::Absent { reason } | Figure::Error { reason } => prop_assert!(!reason.text.is_empty()),
            }
        }
    }
}

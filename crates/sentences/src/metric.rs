//! What figures are made of, and why there are none.

use tprimat_results::{GIB, settings::WARMUP};
use tprimat_words::plain::counted;

use super::comparison::impossible_rate;
use super::figures::{Basis, CpuHasNo, MemoryUse, NoFigure, Price};
use super::words::short;

pub(super) fn basis(of: &Basis) -> String {
    match of {
        Basis::Said(text) => text.clone(),
        Basis::TotalRate { rate, gpus } => total(*rate, *gpus),
        Basis::WithoutPause { rate, gpus } => {
            format!(
                "tokens ÷ ({} tokens/s × 86,400 s a day), without a pause",
                short(rate * *gpus as f64)
            )
        }
        Basis::Rate { rate } => format!("{} tokens/s per device", short(*rate)),
        Basis::Flops {
            rate,
            per_token,
            convention,
        } => {
            format!(
                "{} tokens/s per device × {} GFLOP a token ({convention})",
                short(*rate),
                short(per_token / 1e9)
            )
        }
        Basis::Mfu {
            tflops_per_gpu,
            convention,
            peak,
        } => {
            let peak = format!("{} TFLOP/s peak ({})", short(peak.tflops), peak.source);
            format!("{} TFLOP/s ({convention}) ÷ {peak}", short(*tflops_per_gpu))
        }
        Basis::Memory(used) => memory(used),
        Basis::Loss { step, repeats } => {
            let step = step.map_or_else(String::new, |step| format!(" at step {step}"));
            format!(
                "the trainer's loss{step}, mean of {}",
                counted(*repeats, "repeat")
            )
        }
        Basis::TimeToLoss {
            smoothed,
            target,
            repeats,
        } => format!(
            "step times until the mean of {smoothed} logged losses is at most {}, mean of {}",
            short(*target),
            counted(*repeats, "repeat")
        ),
        Basis::AtPrice { rate, price: of } => {
            format!("{} tokens/s per device at {}", short(*rate), price(of))
        }
        Basis::HoursAtPrice {
            gpu_hours,
            price: of,
        } => format!("{} GPU-hours at {}", short(*gpu_hours), price(of)),
        Basis::CostRatio { a, b, currency } => {
            format!(
                "{} ÷ {} {currency} per trillion tokens",
                short(*a),
                short(*b)
            )
        }
        Basis::Metered {
            repeats,
            of,
            methods,
        } => {
            let over = if repeats == of {
                String::new()
            } else {
                format!("{repeats} of ")
            };
            let methods: Vec<String> = methods
                .iter()
                .map(|[source, method]| format!("{source}, {method}"))
                .collect();
            let repeats = counted(*of, "repeat");
            format!(
                "GPU board energy over the measured steps of {over}{repeats} ({})",
                methods.join(", ")
            )
        }
        Basis::AtTdp {
            rate,
            watts,
            source,
        } => {
            format!(
                "{} tokens/s per device at {} W ({source}); not metered",
                short(*rate),
                short(*watts)
            )
        }
        Basis::Scaling {
            is_strong,
            rate,
            gpus,
            reference,
            reference_rate,
            reference_gpus,
        } => {
            let kind = if *is_strong { "strong" } else { "weak" };
            let (rate, reference_rate) = (short(*rate), short(*reference_rate));
            format!(
                "{kind} scaling: {rate} tokens/s per device on {gpus} ÷ {reference_rate} on {reference_gpus} ({reference})"
            )
        }
        Basis::ByConvention { convention } => format!("{convention} FLOPs per token × rate"),
    }
}

fn total(rate: f64, gpus: u64) -> String {
    let devices = counted(gpus as usize, "device");
    format!("{} tokens/s per device × {devices}", short(rate))
}

fn price(price: &Price) -> String {
    let source = price
        .source
        .as_ref()
        .map(|s| format!(" ({s})"))
        .unwrap_or_default();
    format!(
        "{} {} a GPU-hour{source}",
        price.per_gpu_hour, price.currency
    )
}

fn memory(of: &MemoryUse) -> String {
    let MemoryUse {
        kind,
        source,
        used,
        capacity,
        capacity_source,
    } = of;
    format!(
        "{kind} ({source}) {:.2} GiB of {:.2} GiB ({capacity_source})",
        used / GIB,
        capacity / GIB
    )
}

pub(super) fn no_figure(why: &NoFigure) -> String {
    match why {
        NoFigure::Said(text) => text.clone(),
        NoFigure::NotComputed => "not computed".to_owned(),
        NoFigure::NoRepeatCounts => "no repeat counts".to_owned(),
        NoFigure::DevicesNotKnown => "the number of devices is not known".to_owned(),
        NoFigure::TokensNotKnown => "tokens of an optimiser step are not known".to_owned(),
        NoFigure::FlopsNotKnown => "FLOPs per token of this model are not known".to_owned(),
        NoFigure::PrecisionNotStated => "the precision is not stated".to_owned(),
        NoFigure::NotOfACpu(what) => {
            let what = match what {
                CpuHasNo::Mfu => "MFU",
                CpuHasNo::BoardEnergy => "GPU board energy",
                CpuHasNo::Tdp => "TDP",
                CpuHasNo::DeviceMemory => "device memory",
                CpuHasNo::GpuHour => "a GPU-hour",
            };
            format!("{what} is not defined for a CPU")
        }
        NoFigure::BadRate { rate } => format!("the rate is {rate} tokens/s per device"),
        NoFigure::BadResult { value, basis: of } => {
            format!(
                "the result is {value}, which is not a positive number; computed from {}",
                basis(of)
            )
        }
        NoFigure::MoreThanPeak {
            tflops_per_gpu,
            peak,
        } => format!(
            "{tflops_per_gpu:.0} TFLOP/s is more than the {:.0} that the device can do ({}): batch size, step time or precision is \
             not what it seems",
            peak.tflops, peak.source
        ),
        NoFigure::MoreThanAnyKnown {
            tflops_per_gpu,
            peak,
        } => format!(
            "{tflops_per_gpu:.0} TFLOP/s is more than the {:.0} that the fastest accelerator of this vendor does ({}): batch size, step \
             time or precision is not what it seems",
            peak.tflops, peak.source
        ),
        NoFigure::LogSaysCpu { platform } => {
            format!("the platform is {platform}, but the log says that it ran on a CPU")
        }
        NoFigure::OtherVendor { platform, device } => {
            format!("the platform is {platform}, but the device is \"{device}\"")
        }
        NoFigure::OtherDeviceInLock { logged, locked } => {
            format!("the log names \"{logged}\", and tprimat.lock \"{locked}\"")
        }
        NoFigure::DeviceNotNamed => "the log does not name the device".to_owned(),
        NoFigure::Partitioned { device, mode } => {
            format!("\"{device}\" is partitioned ({mode}): a part does less than the whole")
        }
        NoFigure::NoDatasheet { device } => format!("no datasheet is known for \"{device}\""),
        NoFigure::VirtualFunction { device } => format!(
            "\"{device}\" is a virtual function, and tprimat.lock does not show that it has the memory of a whole device"
        ),
        NoFigure::Fp32OrTf32 => {
            "fp32 runs as fp32 or as tf32, and the log does not say which".to_owned()
        }
        NoFigure::NoPeak { precision, device } => {
            format!("no {precision} peak rate is known for \"{device}\"")
        }
        NoFigure::NoTdp { source } => format!("no TDP of this device alone is known ({source})"),
        NoFigure::NoMemory => "no figure of device memory".to_owned(),
        NoFigure::MoreMemoryThanThereIs(used) => format!("more than there is: {}", memory(used)),
        NoFigure::NoLoss => "the last step has no loss".to_owned(),
        NoFigure::NoTarget { model } => {
            format!("no target is set for {model} (comparison.target_loss)")
        }
        NoFigure::TargetNotReached {
            reached,
            repeats,
            target,
        } => {
            format!(
                "{reached} of {} reached a loss of {target}",
                counted(*repeats, "repeat")
            )
        }
        NoFigure::StepsBeforeTargetNotTimed => {
            "some steps before the target have no step time, or are not logged".to_owned()
        }
        NoFigure::NoPrice { platform } => {
            format!("no price is stated for {platform} (benchmarking.enhanced_metrics.cloud_costs)")
        }
        NoFigure::BadPrice {
            per_gpu_hour,
            currency,
        } => {
            format!("a GPU-hour at {per_gpu_hour} {currency} is not a price")
        }
        NoFigure::OtherCurrency { a, b } => format!("prices in {a} and {b} are not divided"),
        NoFigure::OfCell { cell, reason } => format!("{cell}: {}", no_figure(reason)),
        NoFigure::RateImpossible(why) => impossible_rate(why),
        NoFigure::PowerNotSampled => "power was not sampled beside the runs".to_owned(),
        NoFigure::NoEnergy => "the energy of the measured steps is not known".to_owned(),
        NoFigure::EnergyOf { devices, used } => {
            format!("energy is of {devices} devices, the run used {used}")
        }
        NoFigure::EnergyOver { metered, measured } => {
            format!(
                "energy is of {} s, the measured steps took {} s",
                short(*metered),
                short(*measured)
            )
        }
        NoFigure::BadEnergy { repeat, joules } => {
            format!("repeat {repeat}: {joules} J were metered")
        }
        NoFigure::MoreWattsThanTdp { repeat, watts, tdp } => {
            let (watts, tdp) = (short(*watts), short(*tdp));
            format!("repeat {repeat}: {watts} W a device were metered, and it is made for {tdp} W")
        }
        NoFigure::NothingSmaller => {
            "no cell of this platform, framework and model has fewer devices".to_owned()
        }
        NoFigure::OtherSetUp {
            reference,
            gpus,
            fields,
        } => {
            let name = |field: &String| {
                if field == WARMUP {
                    "warm-up".to_owned()
                } else {
                    field.clone()
                }
            };
            let fields = fields.iter().map(name).collect::<Vec<_>>().join(", ");
            format!("{reference} with {gpus} differs in {fields} as well")
        }
        NoFigure::BatchNotKnown => "the global batch size is not known".to_owned(),
        NoFigure::NeitherStrongNorWeak {
            reference,
            batch: [from, to],
            gpus: [few, many],
        } => format!(
            "the batch went from {from} to {to} for {few} → {many} devices: neither strong nor weak scaling from {reference}"
        ),
    }
}

//! Dense peak rates by exact device and precision, each with its source; MFU.

use crate::results::{FlopsPerToken, Reason, words::short};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Accelerator, Device, Figure, accelerators::accelerators_of, codes::DEVICE_NOT_NAMED,
    model_flops::flops_not_known,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peak {
    /// Dense TFLOP/s of one device.
    pub tflops: f64,
    pub source: String,
}

/// A peak that the configuration states, with where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeakOverride {
    /// Platform id, or one of the vendor's names; the id wins.
    pub platform: String,
    pub precision: String,
    pub tflops: f64,
    pub source: String,
}

/// The built-in table, and what the configuration puts in its place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peaks {
    pub overrides: Vec<PeakOverride>,
}

impl Peaks {
    /// The dense peak, or why there is none; never a guess.
    pub fn of(
        &self,
        platform: &str,
        device: Option<&str>,
        precision: &str,
    ) -> Result<Peak, Reason> {
        self.of_device(&Device::named(platform, device), precision)
    }

    /// [`Peaks::of`] for a device whose vendor and partition are known.
    pub fn of_device(&self, device: &Device<'_>, precision: &str) -> Result<Peak, Reason> {
        let precision = precision.to_lowercase();
        let stated = |name: &str| {
            self.overrides
                .iter()
                .find(|o| o.platform == name && o.precision.eq_ignore_ascii_case(&precision))
        };
        if let Some(stated) = device.names().find_map(stated) {
            return Ok(Peak {
                tflops: stated.tflops,
                source: stated.source.clone(),
            });
        }
        let sku = device.sku()?;
        if precision == "fp32" {
            let text = "fp32 runs as fp32 or as tf32, and the log does not say which";
            return Err(Reason::detail("fp32_or_tf32", text));
        }
        let name = device.name.unwrap_or_default();
        let tflops = at_precision(sku, &precision).ok_or_else(|| {
            let text = format!("no {precision} peak rate is known for \"{name}\"");
            Reason::detail("no_peak", text).with("precision", &*precision)
        })?;
        Ok(Peak {
            tflops,
            source: sku.source.clone(),
        })
    }
}

/// What no run exceeds where there is no peak of its own: of a device whose run does not say its
/// precision, the peak of its fastest format; of one that computes in fp32, the peak at FP8; where
/// no device is named, the highest of the vendor's, or of all where that is not known either. `None`
/// for a precision that the table does not have, which may be faster than all of it.
#[must_use]
pub fn ceiling(device: &Device<'_>, precision: Option<&str>) -> Option<Peak> {
    let of = |sku: &Accelerator| match precision {
        None => Some(sku.fp4.or(sku.fp8).unwrap_or(sku.bf16)),
        Some("fp32") => Some(sku.fp8.unwrap_or(sku.bf16)),
        Some(precision) => at_precision(sku, precision),
    };
    match device.sku() {
        Ok(sku) => Some(Peak {
            tflops: of(sku)?,
            source: sku.source.clone(),
        }),
        Err(why) if why.is(DEVICE_NOT_NAMED) => {
            let known = accelerators_of(device.vendor()).filter_map(|sku| Some((of(sku)?, sku)));
            let (tflops, sku) = known.max_by(|a, b| a.0.total_cmp(&b.0))?;
            Some(Peak {
                tflops,
                source: sku.source.clone(),
            })
        }
        Err(_) => None,
    }
}

/// Dense TFLOP/s of a SKU at a precision in small letters, as far as its maker states them.
fn at_precision(sku: &Accelerator, precision: &str) -> Option<f64> {
    match precision {
        "bf16" | "fp16" => Some(sku.bf16),
        "fp8" | "mxfp8" => sku.fp8,
        "fp4" | "nvfp4" | "mxfp4" => sku.fp4,
        "tf32" => sku.tf32,
        _ => None,
    }
}

/// Model FLOPs utilisation: achieved ÷ dense peak, of which nothing is beyond what `whose` can do.
#[must_use]
pub fn mfu(
    tokens_per_second_per_gpu: f64,
    flops: Option<&FlopsPerToken>,
    peak: Result<Peak, Reason>,
    whose: &str,
) -> Figure {
    let peak = match peak {
        Ok(peak) => peak,
        Err(reason) => return Figure::Absent { reason },
    };
    let Some(flops) = flops else {
        return Figure::Absent {
            reason: flops_not_known(),
        };
    };
    let tflops_per_gpu = tokens_per_second_per_gpu * flops.value / 1e12;
    let value = tflops_per_gpu / peak.tflops;
    if !(tokens_per_second_per_gpu > 0.0 && value > 0.0) {
        return Figure::Error {
            reason: bad_rate(tokens_per_second_per_gpu),
        };
    }
    if !value.is_finite() || value > 1.0 {
        let text = format!(
            "{tflops_per_gpu:.0} TFLOP/s is more than the {:.0} that {whose} ({}): batch size, step time or precision is not \
             what it seems",
            peak.tflops, peak.source
        );
        let reason = Reason::excludes("more_than_peak", text)
            .with("tflops_per_gpu", tflops_per_gpu)
            .with("peak", peak.tflops);
        return Figure::Error { reason };
    }
    let basis = format!(
        "{} TFLOP/s ({}) ÷ {} TFLOP/s peak ({})",
        short(tflops_per_gpu),
        flops.convention,
        short(peak.tflops),
        peak.source
    );
    Figure::Ok { value, basis }
}

pub(super) fn bad_rate(rate: f64) -> Reason {
    let text = format!("the rate is {rate} tokens/s per device");
    Reason::excludes("bad_rate", text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::stand_ins::llama_8b;
    use crate::results::flops_per_token;

    fn peak(device: &str, precision: &str) -> Option<f64> {
        Peaks::default()
            .of("any", Some(device), precision)
            .ok()
            .map(|p| p.tflops)
    }

    #[test]
    fn devices_are_known_by_their_whole_name() {
        assert_eq!(peak("NVIDIA H100 80GB HBM3", "bf16"), Some(989.4));
        assert_eq!(peak("NVIDIA H100 80GB HBM3", "fp8"), Some(1978.9));
        assert_eq!(peak("NVIDIA H100 PCIe", "bf16"), Some(756.0));
        assert_eq!(peak("AMD Instinct MI300X", "fp8"), Some(2614.9));
        assert_eq!(peak("NVIDIA A100-SXM4-80GB", "bf16"), Some(312.0));
        for unknown in [
            "NVIDIA H200 NVL",
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "NVIDIA H20-3e",
            "EPYC",
            "",
        ] {
            assert_eq!(peak(unknown, "bf16"), None, "{unknown}");
        }
        assert_eq!(peak("NVIDIA A100-SXM4-80GB", "fp8"), None);
        assert_eq!(peak("NVIDIA H100 PCIe", "fp32"), None);
        assert_eq!(peak("NVIDIA H100 80GB HBM3", "nvfp4"), None);
    }

    /// TFLOP/s that Megatron-Bridge's performance pages print, and their shares of the makers' dense peaks.
    #[test]
    fn published_shares_of_the_peak_follow_from_the_table() {
        for (device, precision, tflops, share) in [
            ("NVIDIA GB300", "fp8", 1933.0, 0.387),
            ("NVIDIA GB200", "fp8", 1622.0, 0.324),
            ("NVIDIA B200", "fp8", 1576.0, 0.350),
            ("NVIDIA GB300", "nvfp4", 3253.0, 0.217),
            ("NVIDIA GB200", "nvfp4", 2960.0, 0.296),
            ("NVIDIA GB300", "mxfp8", 1670.0, 0.334),
        ] {
            let of_peak = tflops / peak(device, precision).unwrap();
            assert!(
                (of_peak / share - 1.0).abs() < 0.005,
                "{device} {precision}: {of_peak}"
            );
        }
    }

    #[test]
    fn a_stated_peak_wins_on_its_platform() {
        let stated = PeakOverride {
            platform: "lab".into(),
            precision: "bf16".into(),
            tflops: 800.0,
            source: "measured".into(),
        };
        let peaks = Peaks {
            overrides: vec![stated],
        };
        assert_eq!(peaks.of("lab", None, "BF16").unwrap().tflops, 800.0);
        assert!(peaks.of("nvd", None, "bf16").is_err());
    }

    #[test]
    fn a_peak_may_be_stated_for_a_vendor_and_the_platforms_own_wins() {
        let stated = |platform: &str, tflops| PeakOverride {
            platform: platform.into(),
            precision: "bf16".into(),
            tflops,
            source: "measured".into(),
        };
        let peaks = Peaks {
            overrides: vec![
                stated("nvidia", 700.0),
                stated("nvd", 800.0),
                stated("rocm", 900.0),
            ],
        };
        let of = |platform, device| peaks.of(platform, device, "bf16").ok().map(|p| p.tflops);
        assert_eq!(of("nvd", None), Some(800.0));
        assert_eq!(of("amd", None), Some(900.0));
        // A platform of the user's own is of the vendor that its device names.
        assert_eq!(of("lab", Some("AMD Instinct MI999")), Some(900.0));
        assert_eq!((of("lab", None), of("cpu", None)), (None, None));
        let vendor_only = Peaks {
            overrides: vec![stated("nvidia", 700.0)],
        };
        assert_eq!(vendor_only.of("nvd", None, "bf16").unwrap().tflops, 700.0);
    }

    #[test]
    fn mfu_of_a_published_run_and_of_an_impossible_one() {
        let flops = flops_per_token(&llama_8b(), tprimat_job::Task::Pretrain, 8192);
        let on_h100 = |rate| {
            let peak = Peaks::default().of("nvd", Some("NVIDIA H100 80GB HBM3"), "bf16");
            mfu(rate, flops.as_ref(), peak, "the device can do")
        };
        let Figure::Ok { value, basis } = on_h100(10_682.0) else {
            panic!()
        };
        assert!((value - 0.556).abs() < 0.001, "{value}");
        assert!(
            basis.starts_with("549.8 TFLOP/s (causal-halved) ÷ 989.4 TFLOP/s peak"),
            "{basis}"
        );
        assert!(matches!(on_h100(20_000.0), Figure::Error { .. }));
        let unknown = Peaks::default().of("cpu", None, "fp32");
        assert!(matches!(
            mfu(1.0, None, unknown, "the device can do"),
            Figure::Absent { .. }
        ));
    }
}

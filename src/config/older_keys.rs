//! Keys as the older suites write them, and what they mean here.
//!
//! The reader hands them over as it meets them. They are put under today's key once platforms and
//! models are known. Carets keep pointing at what the file says.

use serde_yaml::{Mapping, Value as Yaml};

use super::{
    layers::Config,
    names::{checkout_setting, vendor_named},
    nested::join,
    resolve::labelled,
};
use crate::{
    error::{Problem, did_you_mean},
    figures::{Accelerator, accelerators_like},
};

/// Old key, today's key.
const MOVED: [(&str, &str); 4] = [
    ("paths.primus.installation", "paths.primus"),
    ("paths.megatron.installation", "paths.megatron"),
    (
        "paths.megatron_deepspeed.installation",
        "paths.megatron_deepspeed",
    ),
    ("benchmarking.output.directory", "paths.output"),
];
/// Tables that were by the names of GPUs and are by platform.
const COSTS: &str = "benchmarking.enhanced_metrics.cloud_costs";
const SPECS: &str = "benchmarking.enhanced_metrics.hardware_specs";
/// What the old keys of peaks begin with; the precision follows.
const PEAK: &str = "peak_tflops_";

/// One key that only older suites write.
pub(super) struct Moved {
    /// Its path as the file spells it.
    pub from: String,
    pub value: Yaml,
    pub meaning: Meaning,
}

pub(super) enum Meaning {
    /// The same value under another key.
    Key(String),
    /// The price of an hour of a box with so many of these GPUs.
    BoxPrice { gpu: String, gpus: u32 },
    /// What a GPU can do, by the GPU's name.
    Specs { gpu: String },
}

/// What a key of the older suites sets here.
#[derive(Default)]
pub(super) struct Translated {
    /// Paths in parts, for platforms may have dots in their names.
    pub settings: Vec<(Vec<String>, Yaml)>,
    pub note: Option<Problem>,
}

/// What the key of a table means, if only older suites write it. `platforms` are the file's.
pub(super) fn meaning(
    table: &str,
    key: &str,
    value: &Yaml,
    platforms: &[String],
) -> Option<Meaning> {
    if table == COSTS && !value.is_mapping() {
        let (gpu, gpus) = box_of(key)?;
        let gpu = gpu.to_owned();
        return Some(Meaning::BoxPrice { gpu, gpus });
    }
    if table == SPECS {
        let mut keys = value.as_mapping()?.keys().filter_map(Yaml::as_str);
        let is_platform = platforms.iter().any(|id| id == key) || vendor_named(key).is_some();
        let is_old = !is_platform || keys.any(|key| key.starts_with(PEAK));
        let gpu = key.to_owned();
        return is_old.then_some(Meaning::Specs { gpu });
    }
    if key == "path" {
        let framework = table.strip_prefix("frameworks.")?;
        return checkout_setting(framework).map(Meaning::Key);
    }
    let path = join(table, key);
    let (_, to) = MOVED.iter().find(|(from, _)| *from == path)?;
    Some(Meaning::Key((*to).to_owned()))
}

/// `nvidia_h100_8gpu_per_hour` is of 8 `nvidia_h100`.
fn box_of(key: &str) -> Option<(&str, u32)> {
    if let Some(gpu) = key.strip_suffix("_per_gpu_hour") {
        return Some((gpu, 1));
    }
    let (gpu, gpus) = key.strip_suffix("gpu_per_hour")?.rsplit_once('_')?;
    Some((gpu, gpus.parse().ok().filter(|gpus| *gpus > 0)?))
}

/// What a key that was handed over means, now that everything else is read.
pub(super) fn translate(config: &Config, moved: Moved) -> Result<Translated, Problem> {
    let Moved {
        from,
        value,
        meaning,
    } = moved;
    match meaning {
        Meaning::Key(to) => Ok(Translated {
            settings: vec![(parts(&to).collect(), value)],
            note: None,
        }),
        Meaning::BoxPrice { gpu, gpus } => box_price(config, &from, &value, &gpu, gpus),
        Meaning::Specs { gpu } => {
            let entries = value.as_mapping().cloned().unwrap_or_default();
            gpu_specs(config, &entries, &gpu)
        }
    }
}

fn parts(path: &str) -> impl Iterator<Item = String> {
    path.split('.').map(str::to_owned)
}

/// The keys of an entry of a table that is by platform.
fn below(table: &str, platform: &str, path: &str) -> Vec<String> {
    let platform = std::iter::once(platform.to_owned());
    parts(table).chain(platform).chain(parts(path)).collect()
}

fn box_price(
    config: &Config,
    from: &str,
    value: &Yaml,
    gpu: &str,
    gpus: u32,
) -> Result<Translated, Problem> {
    let Some(price) = value.as_f64() else {
        let message = format!("`{from}` must be a number");
        return Err(labelled(message, "expected a price"));
    };
    if price <= 0.0 {
        let message = format!("`{from}` must be above 0, not {price}");
        let help = "leave the line out if you have no price for it";
        return Err(labelled(message, "not a quantity").help(help));
    }
    let platforms = platforms_with(config, gpu, "cloud_costs")?;
    let each = price / f64::from(gpus);
    let of = platforms.join(", ");
    let message = format!("{price} an hour for {gpus} GPUs is {each} a GPU-hour on {of}");
    let label = format!("written today as `{of}: {{ per_gpu_hour: {each} }}`");
    let setting = |id: &String| (below(COSTS, id, "per_gpu_hour"), Yaml::from(each));
    Ok(Translated {
        settings: platforms.iter().map(setting).collect(),
        note: (gpus > 1).then(|| labelled(message, &label)),
    })
}

/// Figures of GPUs: those of a data sheet are left out for the data sheet's own, others need a
/// source.
fn gpu_specs(config: &Config, entries: &Mapping, gpu: &str) -> Result<Translated, Problem> {
    let platforms = platforms_with(config, gpu, "hardware_specs")?;
    let source = entries.get("source").and_then(Yaml::as_str);
    let has_source = source.is_some_and(|source| !source.trim().is_empty());
    let known = known_accelerators(config, gpu, &platforms);
    let (mut translated, mut others) = (Translated::default(), Vec::new());
    // The data sheet's figure is used; one that differs is told.
    let mut is_left_out = |what: (&str, &str), of: OfSheet, stated: f64| {
        let is_known = !has_source && known.iter().any(|known| of(known).is_some());
        if is_known {
            others.extend(other_figure(&known, what, of, stated));
        }
        is_known
    };
    for (key, value) in entries {
        let Some(key) = key.as_str() else { continue };
        let mut value = value.clone();
        let number = value.as_f64();
        let mut to = key.to_owned();
        if key == "peak_tflops" {
            let message = format!("`peak_tflops` of {gpu} does not say of which precision it is");
            return Err(labelled(message, "unknown key")
                .help("write `peak_tflops_bf16`, `peak_tflops_fp8` or `peak_tflops_tf32`"));
        }
        if let Some(precision) = key.strip_prefix(PEAK) {
            to = format!("peak_flops.{precision}");
            if let Some(stated) = number {
                // The name says TFLOP/s, but 989e12 is what people write.
                let tflops = if stated < 1e6 { stated } else { stated / 1e12 };
                let what = format!("{precision} peak of {gpu}");
                if is_left_out((&what, "TFLOP/s"), peak_of(precision), tflops) {
                    continue;
                }
                value = Yaml::from(tflops * 1e12);
            }
        } else if let ("tdp_watts", Some(watts)) = (key, number)
            && is_left_out((&format!("TDP of {gpu}"), "W"), |a| a.tdp_watts, watts)
        {
            continue;
        }
        for platform in &platforms {
            let setting = (below(SPECS, platform, &to), value.clone());
            translated.settings.push(setting);
        }
    }
    translated.note = (!others.is_empty()).then(|| {
        labelled(
            others.join("; "),
            "the data sheet's figure of the card that runs is used; to use another, state its `source`",
        )
    });
    Ok(translated)
}

/// What a data sheet says of an accelerator.
type OfSheet = fn(&Accelerator) -> Option<f64>;

/// How a figure that has no source is told of; nothing where it is exactly the data sheet's, for MFU is
/// of the exact figure.
fn other_figure(
    known: &[&Accelerator],
    (what, unit): (&str, &str),
    of: OfSheet,
    stated: f64,
) -> Option<String> {
    let sheets = known.iter().filter_map(|a| Some((of(a)?, &a.source)));
    let is_stated = |first: f64| (first - stated).abs() <= f64::EPSILON * first;
    if sheets
        .clone()
        .next()
        .is_none_or(|(first, _)| is_stated(first))
    {
        return None;
    }
    let figures: Vec<String> = sheets
        .map(|(figure, source)| format!("{figure} {unit} ({source})"))
        .collect();
    let figures = figures.join(" or ");
    Some(format!("the {what} is {figures}, not {stated}"))
}

fn peak_of(precision: &str) -> OfSheet {
    match precision {
        "bf16" | "fp16" => |a| Some(a.bf16),
        "fp8" => |a| a.fp8,
        "fp4" => |a| a.fp4,
        "tf32" => |a| a.tf32,
        _ => |_| None,
    }
}

/// The accelerators that the platforms' `gpu_model`, or else the key itself, may name.
fn known_accelerators(
    config: &Config,
    gpu: &str,
    platforms: &[String],
) -> Vec<&'static Accelerator> {
    let model = |id: &String| {
        config
            .get(&format!("hardware.platforms.{id}.gpu_model"))?
            .as_str()
    };
    let found: Vec<_> = platforms
        .iter()
        .filter_map(model)
        .flat_map(accelerators_like)
        .collect();
    if found.is_empty() {
        accelerators_like(&gpu.replace(['_', '-'], " "))
    } else {
        found
    }
}

/// The platforms that have the GPU which `nvidia_h100` or `h100` names.
fn platforms_with(config: &Config, gpu: &str, table: &str) -> Result<Vec<String>, Problem> {
    let named = config.platforms_named(gpu);
    if !named.is_empty() {
        return Ok(named.into_iter().map(str::to_owned).collect());
    }
    let mut words: Vec<String> = gpu
        .to_lowercase()
        .split(['_', '-', ' '])
        .map(str::to_owned)
        .collect();
    let vendor = words.first().and_then(|word| vendor_named(word));
    if vendor.is_some() {
        words.remove(0);
    }
    let has = |id: &&str| {
        let model = config
            .get(&format!("hardware.platforms.{id}.gpu_model"))
            .and_then(|model| model.as_str());
        let model = model.unwrap_or_default().to_lowercase();
        let of_model: Vec<&str> = model.split(|c: char| !c.is_alphanumeric()).collect();
        words.iter().all(|word| of_model.contains(&word.as_str()))
            && vendor.is_none_or(|vendor| config.vendor(id) == Some(vendor))
    };
    let found: Vec<String> = config
        .children("hardware.platforms")
        .filter(has)
        .map(str::to_owned)
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let known: Vec<&str> = config.children("hardware.platforms").collect();
    let problem = labelled(
        format!("unknown platform `{gpu}` in `{table}`"),
        "no platform has this GPU",
    );
    let otherwise = || {
        format!(
            "`hardware.platforms` has {}; its `gpu_model` says which GPU",
            known.join(", ")
        )
    };
    Err(problem.help(did_you_mean(gpu, known.iter().copied()).unwrap_or_else(otherwise)))
}

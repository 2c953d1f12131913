//! Keys as the older suites write them, and what they mean here.
//!
//! They are taken out of the file before it is read and put back under today's key afterwards, when
//! platforms and models are known. Carets keep pointing at what the file says; `config --upgrade`
//! writes today's key in its place.

use serde_yaml::{Mapping, Value as Yaml};

use super::{layers::Config, names::checkout_setting, vendor_named};
use crate::{
    error::{Problem, did_you_mean},
    figures::{Accelerator, accelerators_like},
};

const COSTS: [&str; 3] = ["benchmarking", "enhanced_metrics", "cloud_costs"];
const SPECS: [&str; 3] = ["benchmarking", "enhanced_metrics", "hardware_specs"];
/// Figures nearer than this to a data sheet's are the data sheet's.
const SAME: f64 = 0.01;

/// One key taken out of the file.
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

/// Takes out of a file what only older suites write.
pub(super) fn take(file: &mut Mapping) -> Vec<Moved> {
    let mut moved = Vec::new();
    for (table, key, to) in [
        ("paths.primus", "installation", "paths.primus"),
        ("paths.megatron", "installation", "paths.megatron"),
        (
            "paths.megatron_deepspeed",
            "installation",
            "paths.megatron_deepspeed",
        ),
        ("benchmarking.output", "directory", "paths.output"),
    ] {
        let parts: Vec<&str> = table.split('.').collect();
        let Some(entries) = mapping(file, &parts) else {
            continue;
        };
        let Some(value) = entries.shift_remove(key) else {
            continue;
        };
        let is_empty = entries.is_empty();
        moved.push(Moved {
            from: format!("{table}.{key}"),
            value,
            meaning: Meaning::Key(to.to_owned()),
        });
        if let [above @ .., last] = &parts[..]
            && is_empty
            && let Some(above) = mapping(file, above)
        {
            above.shift_remove(*last);
        }
    }
    for (framework, settings) in mapping(file, &["frameworks"]).into_iter().flatten() {
        let Some(name) = framework.as_str() else {
            continue;
        };
        if let Some(settings) = settings.as_mapping_mut()
            && settings.contains_key("path")
            && let Some(to) = checkout_setting(name)
            && let Some(value) = settings.shift_remove("path")
        {
            moved.push(Moved {
                from: format!("frameworks.{name}.path"),
                value,
                meaning: Meaning::Key(to),
            });
        }
    }
    let platforms: Vec<String> = mapping(file, &["hardware", "platforms"])
        .into_iter()
        .flat_map(|platforms| platforms.keys())
        .filter_map(|key| Some(key.as_str()?.to_owned()))
        .collect();
    moved.extend(prices(file));
    moved.extend(specs(file, &platforms));
    moved
}

fn prices(file: &mut Mapping) -> Vec<Moved> {
    let Some(costs) = mapping(file, &COSTS) else {
        return Vec::new();
    };
    let mut moved = Vec::new();
    for name in names(costs) {
        let Some((gpu, gpus)) = box_of(&name) else {
            continue;
        };
        if costs.get(&name).is_some_and(Yaml::is_mapping) {
            continue;
        }
        if let Some(value) = costs.shift_remove(&name) {
            let meaning = Meaning::BoxPrice {
                gpu: gpu.to_owned(),
                gpus,
            };
            moved.push(Moved {
                from: format!("{}.{name}", COSTS.join(".")),
                value,
                meaning,
            });
        }
    }
    moved
}

/// `nvidia_h100_8gpu_per_hour` is of 8 `nvidia_h100`.
fn box_of(key: &str) -> Option<(&str, u32)> {
    if let Some(gpu) = key.strip_suffix("_per_gpu_hour") {
        return Some((gpu, 1));
    }
    let (gpu, gpus) = key.strip_suffix("gpu_per_hour")?.rsplit_once('_')?;
    Some((gpu, gpus.parse().ok().filter(|gpus| *gpus > 0)?))
}

/// Entries by the name of a GPU, and peaks under keys of their own.
fn specs(file: &mut Mapping, platforms: &[String]) -> Vec<Moved> {
    let Some(specs) = mapping(file, &SPECS) else {
        return Vec::new();
    };
    let mut moved = Vec::new();
    for gpu in names(specs) {
        let is_platform = platforms.contains(&gpu) || vendor_named(&gpu).is_some();
        let has_old_keys = specs
            .get(&gpu)
            .and_then(Yaml::as_mapping)
            .is_some_and(|entry| {
                names(entry)
                    .iter()
                    .any(|key| key.starts_with("peak_tflops_"))
            });
        if is_platform && !has_old_keys || !specs.get(&gpu).is_some_and(Yaml::is_mapping) {
            continue;
        }
        if let Some(value) = specs.shift_remove(&gpu) {
            moved.push(Moved {
                from: format!("{}.{gpu}", SPECS.join(".")),
                value,
                meaning: Meaning::Specs { gpu },
            });
        }
    }
    moved
}

fn names(table: &Mapping) -> Vec<String> {
    table
        .keys()
        .filter_map(|key| Some(key.as_str()?.to_owned()))
        .collect()
}

fn mapping<'a>(mut table: &'a mut Mapping, path: &[&str]) -> Option<&'a mut Mapping> {
    for key in path {
        table = table.get_mut(*key)?.as_mapping_mut()?;
    }
    Some(table)
}

/// What a key that was taken out means, now that everything else is read.
pub(super) fn translate(
    config: &Config,
    from: &str,
    value: &Yaml,
    meaning: Meaning,
) -> Result<Translated, Problem> {
    match meaning {
        Meaning::Key(to) => {
            let settings = vec![(parts(&to), value.clone())];
            Ok(Translated {
                settings,
                note: None,
            })
        }
        Meaning::BoxPrice { gpu, gpus } => box_price(config, from, value, &gpu, gpus),
        Meaning::Specs { gpu } => gpu_specs(config, value, &gpu),
    }
}

fn parts(path: &str) -> Vec<String> {
    path.split('.').map(str::to_owned).collect()
}

fn below(table: [&str; 3], platform: &str, keys: &[&str]) -> Vec<String> {
    table
        .iter()
        .chain([&platform])
        .chain(keys)
        .map(|key| (*key).to_owned())
        .collect()
}

fn box_price(
    config: &Config,
    from: &str,
    value: &Yaml,
    gpu: &str,
    gpus: u32,
) -> Result<Translated, Problem> {
    let Some(price) = value.as_f64() else {
        return Err(labelled(
            format!("`{from}` must be a number"),
            "expected a price",
        ));
    };
    if price <= 0.0 {
        let message = format!("`{from}` must be above 0, not {price}");
        let help = "leave the line out if you have no price for it";
        return Err(labelled(message, "not a quantity").help(help));
    }
    let platforms = platforms_with(config, gpu, "cloud_costs")?;
    let each = price / f64::from(gpus);
    let settings = platforms
        .iter()
        .map(|id| (below(COSTS, id, &["per_gpu_hour"]), Yaml::from(each)))
        .collect();
    let message = format!(
        "{price} an hour for {gpus} GPUs is {each} a GPU-hour on {}",
        platforms.join(", ")
    );
    let note = labelled(
        message,
        &format!(
            "written today as `{}: {{ per_gpu_hour: {each} }}`",
            platforms.join(", ")
        ),
    );
    Ok(Translated {
        settings,
        note: Some(note).filter(|_| gpus > 1),
    })
}

fn gpu_specs(config: &Config, value: &Yaml, gpu: &str) -> Result<Translated, Problem> {
    let platforms = platforms_with(config, gpu, "hardware_specs")?;
    let entries = value.as_mapping().cloned().unwrap_or_default();
    let source = entries
        .get("source")
        .and_then(Yaml::as_str)
        .filter(|source| !source.trim().is_empty());
    let known = known_accelerators(config, gpu, &platforms);
    let (mut translated, mut mistakes) = (Translated::default(), Vec::new());
    for (key, value) in &entries {
        let Some(key) = key.as_str() else { continue };
        let to = match key.strip_prefix("peak_tflops_") {
            Some(precision) => vec!["peak_flops", precision],
            None => vec![key],
        };
        if key == "peak_tflops" {
            let message = format!("`peak_tflops` of {gpu} does not say of which precision it is");
            let problem = labelled(message, "unknown key");
            return Err(
                problem.help("write `peak_tflops_bf16`, `peak_tflops_fp8` or `peak_tflops_tf32`")
            );
        }
        let mut value = value.clone();
        if let (Some(precision), Some(stated)) = (key.strip_prefix("peak_tflops_"), value.as_f64())
        {
            // The name says TFLOP/s, but 989e12 is what people write.
            let tflops = if stated < 1e6 { stated } else { stated / 1e12 };
            if source.is_none() && !known.is_empty() {
                mistakes.extend(peak_mistake(&known, gpu, precision, tflops)?);
                continue;
            }
            value = Yaml::from(tflops * 1e12);
        } else if let ("tdp_watts", Some(watts), None, Some((first, its))) = (
            key,
            value.as_f64(),
            source,
            known.iter().find_map(|a| Some((a, a.tdp_watts?))),
        ) {
            let is_its = |a: &&&Accelerator| a.tdp_watts.is_some_and(|its| same(its, watts));
            match known.iter().find(is_its) {
                Some(other) if !is_its(&first) => mistakes.push(format!(
                    "{watts} W is the TDP of another {gpu} ({})",
                    other.source
                )),
                Some(_) => {}
                None => {
                    let message = format!(
                        "the TDP of {gpu} is {its} W ({}), not {watts}",
                        first.source
                    );
                    return Err(labelled(message, "state a `source` for another figure"));
                }
            }
            continue;
        }
        for platform in &platforms {
            translated
                .settings
                .push((below(SPECS, platform, &to), value.clone()));
        }
    }
    translated.note = (!mistakes.is_empty()).then(|| {
        labelled(
            mistakes.join("; "),
            "the data sheet's figure of the card that runs is used; to use another, state its `source`",
        )
    });
    Ok(translated)
}

/// What is odd about a stated peak; nothing where it is exactly the data sheet's.
fn peak_mistake(
    known: &[&Accelerator],
    gpu: &str,
    precision: &str,
    tflops: f64,
) -> Result<Option<String>, Problem> {
    let of = |a: &Accelerator, precision: &str| match precision {
        "bf16" | "fp16" => Some(a.bf16),
        "fp8" => a.fp8,
        "tf32" => a.tf32,
        _ => None,
    };
    let first = known[0];
    let has_it = |a: &&&Accelerator| of(a, precision).is_some_and(|peak| same(peak, tflops));
    match known.iter().find(has_it) {
        Some(other) if !has_it(&&first) => {
            return Ok(Some(format!(
                "{tflops} TFLOP/s is the {precision} peak of another {gpu} ({})",
                other.source
            )));
        }
        // Nearly the data sheet's: MFU is of the exact figure, so one that differs is told.
        Some(its) => {
            return Ok(of(its, precision)
                .filter(|peak| (peak - tflops).abs() > f64::EPSILON * peak)
                .map(|peak| {
                    format!(
                        "the {precision} peak of {gpu} is {peak} TFLOP/s on its data sheet ({}), not quite {tflops}",
                        its.source
                    )
                }));
        }
        None => {}
    }
    let right = of(first, precision).map_or_else(
        || format!("no {precision} peak of it is known"),
        |peak| {
            format!(
                "its dense {precision} peak is {peak} TFLOP/s ({})",
                first.source
            )
        },
    );
    let confused = ["bf16", "fp8", "tf32"].into_iter().find(|other| {
        known
            .iter()
            .filter_map(|a| of(a, other))
            .any(|peak| same(peak, tflops))
    });
    match confused {
        Some(other) => Ok(Some(format!(
            "{tflops} TFLOP/s is the {other} peak of {gpu}, not its {precision} peak; {right}"
        ))),
        None => {
            let message = format!(
                "the {precision} peak of {gpu} has no source, and {tflops} TFLOP/s is not the data sheet's; {right}"
            );
            Err(labelled(message, "state a `source`, or leave the line out")
                .help("peaks are dense, FLOP/s of one device"))
        }
    }
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs()
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

fn labelled(message: String, label: &str) -> Problem {
    Problem {
        label: label.to_owned(),
        ..Problem::new(message)
    }
}

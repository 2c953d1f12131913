//! Hardware and rates that no machine and no training has: slips of a unit or of a name, which are
//! of the right type.

use super::layers::Config;
use crate::{
    error::{Problem, did_you_mean},
    figures::{accelerator_names, accelerators_like},
    job::Vendor,
};

/// GiB that no device has for years to come; 80 GiB written as MiB are 81,920.
const MOST_MEMORY: f64 = 4096.0;
/// The highest learning rate at which an optimizer of language models may converge.
const MOST_LEARNING_RATE: f64 = 0.5;
const LEARNING_RATE: &str = "training.optimizer.learning_rate";

/// The problems of what cannot be, and notes on what is only unlikely.
pub(super) fn look(config: &Config) -> (Vec<Problem>, Vec<Problem>) {
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    for platform in config.children("hardware.platforms") {
        let Some(stated) = config.settings.hardware.platforms.get(platform) else {
            continue;
        };
        let path = format!("hardware.platforms.{platform}.memory_per_gpu_gb");
        if let Some(gb) = stated.memory_per_gpu_gb.filter(|gb| *gb > MOST_MEMORY) {
            let message = format!("`{path}` is {gb} GB: no GPU has this much memory");
            let problem = config.problem_at(&path, message, "in MiB?");
            problems.push(problem.help(format!("{gb} MiB are {} GB", gb / 1024.0)));
        }
        let path = format!("hardware.platforms.{platform}.gpu_model");
        let Some(model) = &stated.gpu_model else {
            continue;
        };
        let known = accelerators_like(model);
        let vendor = config.vendor(platform).filter(|v| *v != Vendor::Cpu);
        if let (Some(first), Some(vendor)) = (known.first(), vendor)
            && known.iter().all(|known| known.vendor != vendor)
        {
            let message = format!(
                "`{path}: {model}` names {}, and the platform `{platform}` has {}",
                first.vendor.devices(),
                vendor.devices()
            );
            let problem = config.problem_at(&path, message, "a device of another maker");
            problems.push(problem.help("correct the model, or the platform's `vendor`"));
        }
        if known.is_empty() && vendor.is_some() {
            let first_words = accelerator_names().filter_map(|name| name.split(' ').next());
            let near = did_you_mean(model, first_words);
            let near = near.map_or_else(String::new, |near| format!("; {near}"));
            let message = format!(
                "`{path}: {model}` names a GPU whose data sheet tprimat does not have, so its peak rates are not known{near}"
            );
            notes.push(config.problem_at(&path, message, ""));
        }
    }
    let stated = config.settings.training.optimizer.learning_rate;
    if let Some(rate) = stated.filter(|rate| *rate > MOST_LEARNING_RATE) {
        let message = format!(
            "`{LEARNING_RATE}: {rate}` is far above what language models learn at (1e-5 to 1e-2)"
        );
        notes.push(config.problem_at(LEARNING_RATE, message, ""));
    }
    (problems, notes)
}

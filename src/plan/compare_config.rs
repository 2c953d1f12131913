//! What config.yaml and the matrix say of a comparison: prices, peaks, targets, axes.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Plan;
use crate::{
    config::{Config, schema::CloudCost},
    figures::{Catalogue, CompareSettings, PeakOverride, Peaks, Price, Tdp},
};

/// All of it is in the key of the compare task.
#[derive(Clone, Debug, Serialize)]
pub struct CompareConfig {
    pub settings: CompareSettings,
    pub catalogue: Catalogue,
}

impl CompareConfig {
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        Self {
            settings: CompareSettings {
                across: plan.matrix.across.clone(),
                ..CompareSettings::default()
            },
            catalogue: catalogue(&plan.config),
        }
    }
}

const SPECS: &str = "benchmarking.enhanced_metrics.hardware_specs";

/// Prices, peaks and targets, as config.yaml states them.
#[must_use]
pub fn catalogue(config: &Config) -> Catalogue {
    let stated = &config.settings().benchmarking.enhanced_metrics;
    let mut overrides = Vec::new();
    let mut tdp = BTreeMap::new();
    for (platform, spec) in &stated.hardware_specs {
        // Figures without a source are refused by the config's own check.
        let source = spec.source.clone().unwrap_or_default();
        if let Some(watts) = spec.tdp_watts {
            let source = source.clone();
            tdp.insert(platform.clone(), Tdp { watts, source });
        }
        // The file's order is in the compare key.
        for precision in config.children(&format!("{SPECS}.{platform}.peak_flops")) {
            overrides.extend(spec.peak_flops.get(precision).map(|flops| PeakOverride {
                platform: platform.clone(),
                precision: precision.to_owned(),
                tflops: flops / 1e12,
                source: source.clone(),
            }));
        }
    }
    let prices = stated
        .cloud_costs
        .iter()
        .filter_map(|(platform, cost)| Some((platform.clone(), price(cost)?)))
        .collect();
    let platforms = config.children("hardware.platforms");
    let vendors = platforms
        .filter_map(|id| Some((id.to_owned(), config.vendor(id)?)))
        .collect();
    Catalogue {
        peaks: Peaks { overrides },
        prices,
        tdp,
        vendors,
        target_loss: target_loss(config),
    }
}

/// `comparison.target_loss`: one number for all models, or one for each.
fn target_loss(config: &Config) -> BTreeMap<String, f64> {
    let settings = config.settings();
    let stated = &settings.comparison.target_loss;
    let of = |model: &str| stated.as_f64().or_else(|| stated.get(model)?.as_f64());
    settings
        .models
        .keys()
        .filter_map(|model| Some((model.clone(), of(model)?)))
        .collect()
}

/// None where the configuration names no rate.
fn price(cost: &CloudCost) -> Option<Price> {
    Some(Price {
        per_gpu_hour: cost.per_gpu_hour?,
        currency: cost.currency.trim().to_uppercase(),
        source: cost.source.clone(),
    })
}

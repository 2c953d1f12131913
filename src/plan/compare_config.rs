//! What config.yaml and the matrix say of a comparison: prices, peaks, targets, axes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::Plan;
use crate::{
    config::Config,
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

/// Prices, peaks and targets, as config.yaml states them.
#[must_use]
pub fn catalogue(config: &Config) -> Catalogue {
    let specs = config.table("benchmarking.enhanced_metrics.hardware_specs");
    let mut overrides = Vec::new();
    let mut tdp = BTreeMap::new();
    for (platform, spec) in &specs {
        // Figures without a source are refused by the config's own check.
        let source = spec
            .get("source")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if let Some(watts) = spec.get("tdp_watts").and_then(Value::as_f64) {
            tdp.insert(
                platform.clone(),
                Tdp {
                    watts,
                    source: source.to_owned(),
                },
            );
        }
        for (precision, flops) in spec
            .get("peak_flops")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            if let Some(flops) = flops.as_f64() {
                let (platform, precision, source) =
                    (platform.clone(), precision.clone(), source.to_owned());
                overrides.push(PeakOverride {
                    platform,
                    precision,
                    tflops: flops / 1e12,
                    source,
                });
            }
        }
    }
    let costs = config.table("benchmarking.enhanced_metrics.cloud_costs");
    let prices = costs
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
    const PATH: &str = "comparison.target_loss";
    let models = config.children("models");
    let by_model = config.table(PATH);
    let of = |model: &str| {
        config
            .get(PATH)
            .or_else(|| by_model.get(model))
            .and_then(Value::as_f64)
    };
    models
        .filter_map(|model| Some((model.to_owned(), of(model)?)))
        .collect()
}

/// None where the configuration names no rate.
fn price(cost: &Value) -> Option<Price> {
    let text = |name: &str| cost.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(Price {
        per_gpu_hour: cost
            .get("per_gpu_hour")
            .and_then(Value::as_f64)
            .filter(|p| p.is_finite())?,
        currency: text("currency").map_or_else(|| "USD".to_owned(), |c| c.trim().to_uppercase()),
        source: text("source"),
    })
}

//! Money: what the configuration states as the price of a GPU-hour, nothing else.

use crate::results::{Reason, words::short};

use super::{
    Computed, Price, SECONDS_PER_HOUR, Subject, TRILLION, absent, error, figure, per_device,
};
use crate::figures::{Figure, Metric, Metrics};

pub(super) const DOLLARS: &str = "dollars_per_trillion_tokens";

/// The currency of the cell's price. A cell without a price takes that of the others where they all
/// agree, so that a column has one unit.
pub(super) fn currency(of: &Subject) -> String {
    if let Ok(price) = price(of) {
        return price.currency.clone();
    }
    let mut all: Vec<&str> = of
        .catalogue
        .prices
        .values()
        .map(|p| p.currency.as_str())
        .collect();
    all.sort_unstable();
    all.dedup();
    if let [one] = all[..] {
        one.to_owned()
    } else {
        "USD".to_owned()
    }
}

fn price<'a>(of: &'a Subject) -> Result<&'a Price, Figure> {
    let device = of.device()?;
    let none = || {
        let text = format!(
            "no price is stated for {} (benchmarking.enhanced_metrics.cloud_costs)",
            of.cell.platform
        );
        absent("no_price", text)
    };
    let price = device.stated(&of.catalogue.prices).ok_or_else(none)?;
    if price.per_gpu_hour.is_finite() && price.per_gpu_hour > 0.0 {
        return Ok(price);
    }
    let Price {
        per_gpu_hour,
        currency,
        ..
    } = price;
    let text = format!("a GPU-hour at {per_gpu_hour} {currency} is not a price");
    Err(error("bad_price", text))
}

/// `3 USD a GPU-hour (list price)`
fn price_words(price: &Price) -> String {
    let source = price
        .source
        .as_ref()
        .map(|source| format!(" ({source})"))
        .unwrap_or_default();
    format!(
        "{} {} a GPU-hour{source}",
        price.per_gpu_hour, price.currency
    )
}

pub(super) fn tokens_per_dollar(of: &Subject) -> Computed {
    let (rate, price) = (of.rate()?, price(of)?);
    let basis = format!("{} at {}", per_device(rate), price_words(price));
    Ok((rate * SECONDS_PER_HOUR / price.per_gpu_hour, basis))
}

/// The number of devices does not matter: twice as many cost twice as much for half as long.
pub(super) fn dollars_per_trillion(of: &Subject) -> Computed {
    let (rate, price) = (of.rate()?, price(of)?);
    let gpu_hours = TRILLION / rate / SECONDS_PER_HOUR;
    let basis = format!("{} GPU-hours at {}", short(gpu_hours), price_words(price));
    Ok((gpu_hours * price.per_gpu_hour, basis))
}

/// Cost per token of `a` ÷ of `b`, where both have a price in one currency.
#[must_use]
pub fn cost_ratio(a: (&str, &Metrics), b: (&str, &Metrics)) -> Figure {
    let of_cell = |cell: &str, reason: &Reason| Reason {
        text: format!("{cell}: {reason}"),
        ..reason.clone()
    };
    let cost = |(cell, metrics): (&str, &Metrics)| -> Result<(f64, Metric), Figure> {
        let metric = metrics
            .0
            .iter()
            .find(|m| m.name == DOLLARS)
            .ok_or_else(Figure::default)?;
        match &metric.figure {
            Figure::Ok { value, .. } => Ok((*value, metric.clone())),
            Figure::Absent { reason } => Err(Figure::Absent {
                reason: of_cell(cell, reason),
            }),
            Figure::Error { reason } => Err(Figure::Error {
                reason: of_cell(cell, reason),
            }),
        }
    };
    let ratio = || -> Computed {
        let ((of_a, a), (of_b, b)) = (cost(a)?, cost(b)?);
        if a.unit != b.unit {
            let text = format!("prices in {} and {} are not divided", a.unit, b.unit);
            return Err(absent("other_currency", text));
        }
        let basis = format!(
            "{} ÷ {} {} per trillion tokens",
            short(of_a),
            short(of_b),
            a.unit
        );
        Ok((of_a / of_b, basis))
    };
    figure(ratio())
}

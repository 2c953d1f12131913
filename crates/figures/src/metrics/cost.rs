//! Money: what the configuration states as the price of a GPU-hour, nothing else.

use super::{Made, Price, SECONDS_PER_HOUR, Subject, TRILLION, absent, error, figure, short};
use crate::{Figure, Metric, Metrics};

const DOLLARS: &str = "dollars_per_trillion_tokens";

/// Of the cell's price; without one, the only currency that there is, so that a column has one unit.
pub(super) fn currency(of: &Subject) -> String {
    if let Ok(price) = price(of) {
        return price.currency.clone();
    }
    let mut all: Vec<&str> = of.catalogue.prices.values().map(|p| p.currency.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    if let [one] = all[..] { one.to_owned() } else { "USD".to_owned() }
}

fn price<'a>(of: &'a Subject) -> Result<&'a Price, Figure> {
    let device = of.device()?;
    let none =
        || absent(format!("no price is stated for {} (benchmarking.enhanced_metrics.cloud_costs)", of.cell.platform));
    let price = device.stated(&of.catalogue.prices).ok_or_else(none)?;
    if price.per_gpu_hour.is_finite() && price.per_gpu_hour > 0.0 {
        return Ok(price);
    }
    Err(error(format!("a GPU-hour at {} {} is not a price", price.per_gpu_hour, price.currency)))
}

fn stated(price: &Price) -> String {
    let source = price.source.as_ref().map(|s| format!(" ({s})")).unwrap_or_default();
    format!("{} {} a GPU-hour{source}", price.per_gpu_hour, price.currency)
}

pub(super) fn tokens_per_dollar(of: &Subject) -> Made {
    let (rate, price) = (of.rate()?, price(of)?);
    let basis = format!("{} tokens/s/GPU at {}", short(rate), stated(price));
    Ok((rate * SECONDS_PER_HOUR / price.per_gpu_hour, basis))
}

/// Of all devices: twice as many cost twice as much for half as long.
pub(super) fn dollars_per_trillion(of: &Subject) -> Made {
    let (rate, price) = (of.rate()?, price(of)?);
    let basis = format!("{} GPU-hours at {}", short(TRILLION / rate / SECONDS_PER_HOUR), stated(price));
    Ok((TRILLION / rate / SECONDS_PER_HOUR * price.per_gpu_hour, basis))
}

/// Cost per token of `a` ÷ of `b`, where both have a price in one currency.
#[must_use]
pub fn cost_ratio(a: (&str, &Metrics), b: (&str, &Metrics)) -> Figure {
    let cost = |(cell, metrics): (&str, &Metrics)| -> Result<(f64, Metric), Figure> {
        let metric = metrics.0.iter().find(|m| m.name == DOLLARS).ok_or_else(|| absent("not computed"))?;
        match &metric.figure {
            Figure::Ok { value, .. } => Ok((*value, metric.clone())),
            Figure::Absent { reason } => Err(absent(format!("{cell}: {reason}"))),
            Figure::Error { reason } => Err(error(format!("{cell}: {reason}"))),
        }
    };
    let ratio = || -> Made {
        let ((of_a, a), (of_b, b)) = (cost(a)?, cost(b)?);
        if a.unit != b.unit {
            return Err(absent(format!("prices in {} and {} are not divided", a.unit, b.unit)));
        }
        Ok((of_a / of_b, format!("{} ÷ {} {} per trillion tokens", short(of_a), short(of_b), a.unit)))
    };
    figure(ratio())
}

//! Money: what the configuration states as the price of a GPU-hour, nothing else.

use super::{Computed, Price, SECONDS_PER_HOUR, Subject, TRILLION, absent, error, figure};
use crate::{Basis, Figure, Metric, Metrics, NoFigure};

const DOLLARS: &str = "dollars_per_trillion_tokens";

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
        absent(NoFigure::NoPrice {
            platform: of.cell.platform.clone(),
        })
    };
    let price = device.stated(&of.catalogue.prices).ok_or_else(none)?;
    if price.per_gpu_hour.is_finite() && price.per_gpu_hour > 0.0 {
        return Ok(price);
    }
    let Price {
        per_gpu_hour,
        currency,
        ..
    } = price.clone();
    Err(error(NoFigure::BadPrice {
        per_gpu_hour,
        currency,
    }))
}

pub(super) fn tokens_per_dollar(of: &Subject) -> Computed {
    let (rate, price) = (of.rate()?, price(of)?);
    let basis = Basis::AtPrice {
        rate,
        price: price.clone(),
    };
    Ok((rate * SECONDS_PER_HOUR / price.per_gpu_hour, basis))
}

/// The number of devices does not matter: twice as many cost twice as much for half as long.
pub(super) fn dollars_per_trillion(of: &Subject) -> Computed {
    let (rate, price) = (of.rate()?, price(of)?);
    let gpu_hours = TRILLION / rate / SECONDS_PER_HOUR;
    Ok((
        gpu_hours * price.per_gpu_hour,
        Basis::HoursAtPrice {
            gpu_hours,
            price: price.clone(),
        },
    ))
}

/// Cost per token of `a` ÷ of `b`, where both have a price in one currency.
#[must_use]
pub fn cost_ratio(a: (&str, &Metrics), b: (&str, &Metrics)) -> Figure {
    let of_cell = |cell: &str, reason: &NoFigure| NoFigure::OfCell {
        cell: cell.to_owned(),
        reason: Box::new(reason.clone()),
    };
    let cost = |(cell, metrics): (&str, &Metrics)| -> Result<(f64, Metric), Figure> {
        let metric = metrics
            .0
            .iter()
            .find(|m| m.name == DOLLARS)
            .ok_or_else(|| absent(NoFigure::NotComputed))?;
        match &metric.figure {
            Figure::Ok { value, .. } => Ok((*value, metric.clone())),
            Figure::Absent { reason } => Err(absent(of_cell(cell, reason))),
            Figure::Error { reason } => Err(error(of_cell(cell, reason))),
        }
    };
    let ratio = || -> Computed {
        let ((of_a, a), (of_b, b)) = (cost(a)?, cost(b)?);
        if a.unit != b.unit {
            return Err(absent(NoFigure::OtherCurrency {
                a: a.unit,
                b: b.unit,
            }));
        }
        Ok((
            of_a / of_b,
            Basis::CostRatio {
                a: of_a,
                b: of_b,
                currency: a.unit,
            },
        ))
    };
    figure(ratio())
}

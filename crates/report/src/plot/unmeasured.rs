//! Points of a sweep that have no figure, so that the fastest point is not taken for the fastest of
//! all that were tried.

use std::collections::BTreeMap;

use tprimat_job::FailureClass;
use tprimat_numbers::figures::{AbsentCell, Comparison, Surface, Sweep, failure_class};

/// A point of a surface whose cell has no figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Unmeasured {
    pub x: f64,
    pub second: Option<f64>,
    /// `out of memory`, `failed`, `missing`
    pub why: String,
}

/// The points of a surface without figures, by the first axis, then by the second.
#[must_use]
pub fn unmeasured(comparison: &Comparison, sweep: &Sweep, surface: &Surface) -> Vec<Unmeasured> {
    let Some(point) = surface.points.first() else {
        return Vec::new();
    };
    let own = parts(&comparison.rows[point.row].cell, sweep);
    let of = |absent: &AbsentCell| {
        let point = parts(&absent.cell, sweep);
        let second = match sweep.second {
            Some(_) => Some(point.second?),
            None => None,
        };
        ((&point.path, &point.others) == (&own.path, &own.others)).then_some(())?;
        Some(Unmeasured {
            x: point.x?,
            second,
            why: match failure_class(&absent.reason) {
                Some(FailureClass::Oom) => "out of memory".to_owned(),
                _ => absent.state.to_string(),
            },
        })
    };
    let mut all: Vec<Unmeasured> = comparison.absent.iter().filter_map(of).collect();
    all.sort_by(|a, b| {
        let second = |point: &Unmeasured| point.second.unwrap_or(0.0);
        a.x.total_cmp(&b.x).then(second(a).total_cmp(&second(b)))
    });
    all
}

/// `nvd/titan/llama/single`, the values of the sweep's axes, and the other axes.
struct Parts<'a> {
    path: &'a str,
    x: Option<f64>,
    second: Option<f64>,
    others: BTreeMap<&'a str, &'a str>,
}

fn parts<'a>(cell: &'a str, sweep: &Sweep) -> Parts<'a> {
    let (path, axes) = cell.split_once('@').unwrap_or((cell, ""));
    let axes = axes.split(',').filter_map(|axis| axis.split_once('='));
    let mut others: BTreeMap<&str, &str> = axes.collect();
    let mut value = |name: &str| others.remove(name)?.parse().ok();
    Parts {
        path,
        x: value(&sweep.axis),
        second: sweep.second.as_deref().and_then(&mut value),
        others,
    }
}

//! Points of a sweep that have no figure, so that the fastest point is not taken for the fastest of
//! all that were tried.

use std::collections::BTreeMap;

use tprimat_figures::{AbsentCell, Comparison, Surface, Sweep, failure_class};
use tprimat_job::FailureClass;

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
    let row = &comparison.rows[point.row];
    let is_axis = |name: &str| name == sweep.axis || Some(name) == sweep.second.as_deref();
    let fixed = |axes: BTreeMap<&str, &str>| -> BTreeMap<String, String> {
        let kept = axes.into_iter().filter(|(name, _)| !is_axis(name));
        kept.map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let (path, axes) = parts(&row.cell);
    let own = fixed(axes);
    let of = |absent: &AbsentCell| {
        let (other, axes) = parts(&absent.cell);
        let value = |name: &str| axes.get(name)?.parse::<f64>().ok();
        let x = value(&sweep.axis)?;
        let second = match &sweep.second {
            Some(name) => Some(value(name)?),
            None => None,
        };
        (other == path && fixed(axes.clone()) == own).then(|| Unmeasured {
            x,
            second,
            why: why(absent),
        })
    };
    let mut all: Vec<Unmeasured> = comparison.absent.iter().filter_map(of).collect();
    let place = |point: &Unmeasured| (point.x, point.second.unwrap_or(0.0));
    all.sort_by(|a, b| {
        let (a, b) = (place(a), place(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    all
}

/// `nvd/titan/llama/single` and its axes.
fn parts(cell: &str) -> (&str, BTreeMap<&str, &str>) {
    let (path, axes) = cell.split_once('@').unwrap_or((cell, ""));
    (
        path,
        axes.split(',')
            .filter_map(|axis| axis.split_once('='))
            .collect(),
    )
}

fn why(absent: &AbsentCell) -> String {
    match failure_class(&absent.reason) {
        Some(FailureClass::Oom) => "out of memory".to_owned(),
        _ => absent.state.to_string(),
    }
}

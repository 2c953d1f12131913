//! Sweeps as data, for readers of `compare --json`: each curve with its points and its fastest one.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Best, Comparison, NoVerdict, RatioInterval, Row, Surface, Sweep, SweepPoint, sweeps};

/// A comparison with the sweeps that its cells make up.
#[derive(Serialize, JsonSchema)]
pub struct ComparisonDocument<'a> {
    #[serde(flatten)]
    pub comparison: &'a Comparison,
    /// Cells of one model over a numeric axis with at least three values, or over two such axes.
    pub sweeps: Vec<SweepDocument<'a>>,
}

#[derive(Serialize, JsonSchema)]
pub struct SweepDocument<'a> {
    pub model: String,
    /// The numeric axis with the most values.
    pub axis: String,
    /// Another one with at least three values.
    pub second_axis: Option<String>,
    /// Fields of the workload in which points of one curve differ. Empty: all are one workload.
    pub different_workloads_by: Vec<String>,
    /// One each framework, platform, strategy and value of the other axes.
    pub curves: Vec<CurveDocument<'a>>,
}

#[derive(Serialize, JsonSchema)]
pub struct CurveDocument<'a> {
    pub platform: &'a str,
    pub framework: &'a str,
    pub parallelism: &'a str,
    pub points: Vec<PointDocument<'a>>,
    /// Absent where its points are different workloads.
    pub best: Option<BestDocument<'a>>,
}

#[derive(Serialize, JsonSchema)]
pub struct PointDocument<'a> {
    pub cell: &'a str,
    /// Value of the axis.
    pub x: f64,
    /// Value of the second axis.
    pub second: Option<f64>,
    pub tokens_per_second_per_gpu: f64,
    /// 95 % interval of the rate.
    pub ci95: Option<[f64; 2]>,
}

/// The point with the highest rate, beside the next one.
#[derive(Serialize, JsonSchema)]
pub struct BestDocument<'a> {
    pub cell: &'a str,
    pub next: &'a str,
    /// Do the runs tell it apart from all other points?
    pub is_fastest: bool,
    /// Rate of the best ÷ rate of the next one.
    pub ratio: f64,
    /// Corrected for all pairs of points.
    pub interval: Option<RatioInterval>,
    /// Points that the runs do not tell apart from it.
    pub not_apart: Vec<&'a str>,
    /// Why it is unknown whether it is the fastest.
    pub reason: Option<NoVerdict>,
}

impl<'a> ComparisonDocument<'a> {
    #[must_use]
    pub fn of(comparison: &'a Comparison) -> Self {
        let found = sweeps(comparison);
        Self {
            comparison,
            sweeps: found
                .into_iter()
                .map(|one| sweep(comparison, one))
                .collect(),
        }
    }
}

fn sweep(comparison: &Comparison, sweep: Sweep) -> SweepDocument<'_> {
    let curves = sweep.surfaces.into_iter();
    SweepDocument {
        model: sweep.model,
        axis: sweep.axis,
        second_axis: sweep.second,
        different_workloads_by: sweep.fields,
        curves: curves.map(|surface| curve(comparison, surface)).collect(),
    }
}

fn curve(comparison: &Comparison, Surface { points, best }: Surface) -> CurveDocument<'_> {
    let row = |point: &SweepPoint| -> &Row { &comparison.rows[point.row] };
    let cell = |at: usize| row(&points[at]).cell.as_str();
    let first = row(&points[0]);
    let best = best.map(|best: Best| BestDocument {
        cell: cell(best.at),
        next: cell(best.next),
        is_fastest: best.is_fastest(),
        ratio: best.ratio,
        interval: best.interval,
        not_apart: best.not_apart.iter().map(|at| cell(*at)).collect(),
        reason: best.reason,
    });
    let point = |point: &SweepPoint| PointDocument {
        cell: &row(point).cell,
        x: point.x,
        second: point.second,
        tokens_per_second_per_gpu: row(point).tokens_per_second_per_gpu.value,
        ci95: row(point).tokens_per_second_per_gpu.ci95,
    };
    CurveDocument {
        platform: &first.platform,
        framework: &first.framework,
        parallelism: &first.parallelism,
        points: points.iter().map(point).collect(),
        best,
    }
}

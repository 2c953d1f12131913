//! Sweeps as data, for readers of `compare --json`: each curve with its points and its fastest one.

use crate::results::{Reason, Severity};
use schemars::JsonSchema;
use serde::{
    Serialize, Serializer,
    ser::{Error, SerializeSeq},
};
use serde_json::{Map, Value};

use super::{
    Best, Comparison, Judged, RatioInterval, Row, Surface, SurfacePair, Sweep, SweepPoint, sweeps,
};

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
    /// Curves beside each other.
    pub pairs: Vec<PairDocument<'a>>,
}

/// A curve beside the one that has the baseline of its workload.
#[derive(Serialize, JsonSchema)]
pub struct PairDocument<'a> {
    /// Both at the same setting.
    pub same_setting: Vec<SameSettingDocument<'a>>,
    /// Their highest rates; absent where points are different workloads.
    pub highest: Option<HighestDocument<'a>>,
}

#[derive(Serialize, JsonSchema)]
pub struct SameSettingDocument<'a> {
    pub a: &'a str,
    pub b: &'a str,
    /// Rate of `a` ÷ rate of `b`.
    pub ratio: f64,
    /// After Holm's correction over all pairs of cells that the comparison judges; null: see `reason`.
    pub significant: Option<bool>,
    pub reason: Option<Reason>,
}

#[derive(Serialize, JsonSchema)]
pub struct HighestDocument<'a> {
    pub a: &'a str,
    pub b: &'a str,
    /// Points that each was picked from.
    pub picked_of: [usize; 2],
    pub ratio: f64,
    /// The interval of the highest rate of one framework divided by the highest of the other. It allows
    /// for the fact that both points were picked because they are the highest.
    pub interval: Option<RatioInterval>,
    pub reason: Option<Reason>,
}

#[derive(Serialize, JsonSchema)]
pub struct CurveDocument<'a> {
    pub platform: &'a str,
    pub framework: &'a str,
    pub parallelism: &'a str,
    pub points: Vec<PointDocument<'a>>,
    /// Absent where its points are different workloads.
    pub best: Option<BestDocument<'a>>,
    /// Only in a sweep over two axes of which one changes the workload: the fastest point at each of
    /// its values.
    pub best_at_each_value: Vec<BestDocument<'a>>,
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
    /// After Holm's correction over all pairs of cells that the comparison judges.
    pub interval: Option<RatioInterval>,
    /// Points that the runs do not tell apart from it.
    pub not_apart: Vec<&'a str>,
    /// Why it is unknown whether it is the fastest.
    pub reason: Option<Reason>,
}

/// Members of a row that the cell's own file has as well, and notes that are looked up, are not published once more
/// with the comparison: of thousands of cells they would be most of it.
const OF_A_CELL: [&str; 6] = [
    "contract",
    "attested",
    "repeats",
    "metrics",
    "unlisted",
    "declared_only",
];

/// The comparison as a report publishes it.
#[derive(Serialize)]
pub struct PublishedComparison<'a> {
    #[serde(flatten)]
    about: Map<String, Value>,
    #[serde(serialize_with = "short_rows")]
    rows: &'a [Row],
    sweeps: Vec<SweepDocument<'a>>,
}

fn short_rows<S: Serializer>(rows: &&[Row], to: S) -> Result<S::Ok, S::Error> {
    // One at a time: all of them as values would be several times the file.
    let mut all = to.serialize_seq(Some(rows.len()))?;
    for row in *rows {
        // An import has no file of its own.
        let has_file = row.imported.is_empty();
        let mut row = serde_json::to_value(row).map_err(S::Error::custom)?;
        if let (Value::Object(row), true) = (&mut row, has_file) {
            row.retain(|member, _| !OF_A_CELL.contains(&member.as_str()));
        }
        all.serialize_element(&row)?;
    }
    all.end()
}

impl<'a> PublishedComparison<'a> {
    /// # Errors
    /// None that a comparison has given: its members are all JSON.
    pub fn of(comparison: &'a Comparison) -> serde_json::Result<Self> {
        let about = Comparison {
            schema_version: comparison.schema_version.clone(),
            comparable: comparison.comparable,
            rows: Vec::new(),
            groups: comparison.groups.clone(),
            speedups: comparison.speedups.clone(),
            differences: comparison.differences.clone(),
            environment: comparison.environment.clone(),
            absent: comparison.absent.clone(),
            uncounted: comparison.uncounted,
            notes: comparison
                .notes
                .iter()
                .filter(|note| note.reason.severity != Severity::Detail)
                .cloned()
                .collect(),
        };
        let mut about: Map<String, Value> = serde_json::from_value(serde_json::to_value(about)?)?;
        about.remove("rows");
        Ok(Self {
            about,
            rows: &comparison.rows,
            sweeps: ComparisonDocument::of(comparison).sweeps,
        })
    }
}

impl<'a> ComparisonDocument<'a> {
    #[must_use]
    pub fn of(comparison: &'a Comparison) -> Self {
        let found = sweeps(comparison, &Judged::of_comparison(comparison));
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
    let pairs = sweep.pairs.iter();
    let pairs = pairs
        .map(|one| pair(comparison, &sweep.surfaces, one))
        .collect();
    let curves = sweep.surfaces.into_iter();
    SweepDocument {
        model: sweep.model,
        axis: sweep.axis,
        second_axis: sweep.second,
        different_workloads_by: sweep.fields,
        curves: curves.map(|surface| curve(comparison, surface)).collect(),
        pairs,
    }
}

fn pair<'a>(
    comparison: &'a Comparison,
    surfaces: &[Surface],
    pair: &SurfacePair,
) -> PairDocument<'a> {
    let sides = [pair.a, pair.b].map(|at| &surfaces[at].points);
    let cell = |point: &SweepPoint| comparison.rows[point.row].cell.as_str();
    PairDocument {
        same_setting: pair
            .same
            .iter()
            .map(|one| SameSettingDocument {
                a: cell(&sides[0][one.at[0]]),
                b: cell(&sides[1][one.at[1]]),
                ratio: one.ratio,
                significant: one.significant,
                reason: one.reason.clone(),
            })
            .collect(),
        highest: pair.highest.as_ref().map(|one| HighestDocument {
            a: cell(&sides[0][one.at[0]]),
            b: cell(&sides[1][one.at[1]]),
            picked_of: one.of,
            ratio: one.ratio,
            interval: one.interval,
            reason: one.reason.clone(),
        }),
    }
}

fn curve(
    comparison: &Comparison,
    Surface {
        points,
        best,
        lines,
    }: Surface,
) -> CurveDocument<'_> {
    let row = |point: &SweepPoint| -> &Row { &comparison.rows[point.row] };
    let cell = |at: usize| row(&points[at]).cell.as_str();
    let first = row(&points[0]);
    let document = |best: Best| BestDocument {
        cell: cell(best.at),
        next: cell(best.next),
        is_fastest: best.is_fastest(),
        ratio: best.ratio,
        interval: best.interval,
        not_apart: best.not_apart.iter().map(|at| cell(*at)).collect(),
        reason: best.reason,
    };
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
        best: best.map(document),
        best_at_each_value: lines.into_iter().map(|line| document(line.best)).collect(),
    }
}

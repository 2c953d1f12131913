//! Parts of sentences on one cell or on two.

use std::collections::BTreeSet;

use tprimat_numbers::figures::{
    RatioInterval, RepeatStatus, Row, Speedup, Unit, host_named, rate_unit, unit_in_prose,
};
use tprimat_numbers::results::{CONFIDENCE, Reason};

use crate::{
    format::{ratio, ratio_beside_1},
    mark,
};

/// The sentence on step times that the clock shows to be too short.
pub(super) fn short_step_times(row: &Row, rate: &str) -> Option<String> {
    let factor = row.timer_factor?;
    Some(format!(
        "{rate} may be {factor:.1}× too high: by the clock, its step times leave out time that passes after most steps"
    ))
}

pub(super) fn unit(rows: &[&Row]) -> String {
    unit_in_prose(rate_unit(rows.iter().copied()))
}

/// `A runs with NCCL_DEBUG=INFO: collectives write logs while they run`
pub(super) fn warned(row: &Row, name: &str, wanted: impl Fn(&Reason) -> bool) -> Option<String> {
    let warnings: Vec<&str> = row
        .warnings
        .iter()
        .filter(|w| wanted(w))
        .map(|w| &*w.text)
        .collect();
    (!warnings.is_empty()).then(|| format!("{name} runs with {}", warnings.join(", ")))
}

/// What an interval speaks of, where that is hosts in general.
pub(super) fn over_hosts(rows: &[&Row]) -> &'static str {
    let is_over_hosts = rows
        .iter()
        .all(|r| r.tokens_per_second_per_gpu.unit == Unit::Host);
    if is_over_hosts { ", over hosts" } else { "" }
}

/// An imported log may not say where it was written.
pub(super) fn unnamed_hosts(rows: &[&Row]) -> Option<String> {
    let counted = rows
        .iter()
        .flat_map(|r| &r.repeats)
        .filter(|r| r.status == RepeatStatus::Ok);
    let hosts: BTreeSet<&str> = counted.map(|r| r.host.as_str()).collect();
    let is_unnamed = |host: &&&str| host_named(host).is_none();
    let unnamed = hosts.iter().filter(is_unnamed).count();
    match (unnamed, hosts.len()) {
        (0, _) => None,
        (_, n) if n == unnamed && rows.len() == 1 => {
            Some("The log does not name its host".to_owned())
        }
        (_, n) if n == unnamed => Some("Neither log names its host".to_owned()),
        _ => Some("Some logs do not name their host".to_owned()),
    }
}

pub(super) fn named(row: &Row) -> String {
    format!("{}{}", row.cell, mark(&row.imported))
}

/// What is to be known of a cell that launches what the cell `name` does; `twin` is its row, if it
/// has figures.
pub(in super::super) fn same_as(row: &Row, name: &str, twin: Option<&Row>) -> String {
    match twin {
        Some(twin) if row.is_measured_as(twin) => format!("has the same measurements as {name}"),
        Some(_) => format!(
            "launches the very same bytes as {name}, so any difference between them is noise"
        ),
        None => format!("launches the very same bytes as {name}, which has no figures"),
    }
}

/// `1.31×`
pub(in super::super) fn times(speedup: &Speedup) -> String {
    let width = speedup.interval.map(|i| i.high - i.low);
    // A ratio that is called faster or slower is never printed as 1.
    let print = if speedup.significant == Some(true) {
        ratio_beside_1
    } else {
        ratio
    };
    format!("{}×", print(speedup.ratio, width))
}

/// What stands above the intervals of these ratios. Where several pairs of cells were judged, Holm's
/// correction makes each interval wider than one of 95 % would be alone.
pub(in super::super) fn ratio_intervals<'a>(
    shown: impl IntoIterator<Item = &'a Speedup>,
) -> &'static str {
    let confidences = shown
        .into_iter()
        .filter_map(|s| Some(s.interval?.confidence));
    // The last one that Holm's procedure looks at is of 95 %, up to rounding.
    let is_corrected = confidences.fold(0.0, f64::max) > CONFIDENCE + 1e-9;
    if is_corrected { CORRECTED } else { "95 % CI" }
}

const CORRECTED: &str = "95 % CI, Holm";

/// `1.29–1.33`, below a `head` that says which interval that is. Ratios without a verdict are not
/// corrected, so below a head that names a correction they say so: `95 % CI 1.29–1.33`.
pub(in super::super) fn interval(speedup: &Speedup, head: &str) -> Option<String> {
    let RatioInterval { low, high, .. } = speedup.interval?;
    let width = Some(high - low).filter(|width| width.is_finite())?;
    let kind = if head == CORRECTED && speedup.significant.is_none() {
        "95 % CI "
    } else {
        ""
    };
    Some(format!(
        "{kind}{}–{}",
        ratio_beside_1(low, Some(width)),
        ratio_beside_1(high, Some(width))
    ))
}

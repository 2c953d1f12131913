//! What is said of a sweep, beside its picture and its table.

use tprimat_figures::{Best, Comparison, Speedup, Surface, Sweep, SweepPoint, rate_unit};
use tprimat_sentences::{few, hours_or_days, said};

use super::{
    format::{bytes, change_range, faster, number, ratio},
    sweep::{plain, surface_names},
    unmeasured::unmeasured,
};

/// Which value is the fastest, a sentence a line; over workloads what the values are, and who is
/// faster than whom at how many of them.
#[must_use]
pub fn sweep_sentences(comparison: &Comparison, sweep: &Sweep) -> Vec<String> {
    let names = surface_names(comparison, sweep);
    let named = || sweep.surfaces.iter().zip(&names);
    let mut all: Vec<String> = named()
        .filter_map(|(surface, name)| {
            Some(best(
                comparison,
                sweep,
                surface,
                name,
                surface.best.as_ref()?,
            ))
        })
        .collect();
    if sweep.fields.is_empty() {
        return all;
    }
    all.push(format!(
        "Points are different workloads (they differ in {}), so none is called the fastest.",
        few(&sweep.fields)
    ));
    all.extend(named().filter_map(|(surface, name)| ends(comparison, sweep, surface, name)));
    all.extend(
        named().filter_map(|(surface, name)| against(comparison, sweep, surface, (name, &names))),
    );
    all
}

/// `seq_length 4,096`, of two axes `seq_length 4,096, micro_batch_size 2`
fn place(sweep: &Sweep, point: &SweepPoint) -> String {
    let first = format!("{} {}", sweep.axis, plain(point.x));
    match (&sweep.second, point.second) {
        (Some(name), Some(value)) => format!("{first}, {name} {}", plain(value)),
        _ => first,
    }
}

/// The same without the name of the axis, where there is one axis.
fn value(sweep: &Sweep, point: &SweepPoint) -> String {
    if sweep.second.is_some() {
        format!("({})", place(sweep, point))
    } else {
        plain(point.x)
    }
}

/// `titan: micro_batch_size 4 is fastest: 3.1 % faster than 2, the next (95 % CI 2.5–3.7 %). It
/// leaves 12.00 GiB of 80.00 GiB free (peak allocated).`
fn best(
    comparison: &Comparison,
    sweep: &Sweep,
    surface: &Surface,
    name: &str,
    best: &Best,
) -> String {
    let (first, next) = (&surface.points[best.at], &surface.points[best.next]);
    let at = place(sweep, first);
    let of = among(comparison, sweep, surface);
    let mut said = match &best.reason {
        Some(why) => format!(
            "{name}: {at} has the highest rate{of}; no verdict: {}.",
            said(why)
        ),
        None if !best.not_apart.is_empty() => {
            let others: Vec<String> = best
                .not_apart
                .iter()
                .map(|at| value(sweep, &surface.points[*at]))
                .collect();
            format!(
                "{name}: {at} has the highest rate{of}, but the runs do not tell it apart from {}.",
                few(&others)
            )
        }
        None => {
            let ends = best.interval.map(|found| [found.low, found.high]);
            let width = ends.map(|[low, high]| high - low);
            let (size, than) = faster(best.ratio, width);
            let interval = ends.map_or_else(String::new, |ends| {
                format!(" (95 % CI {})", change_range(best.ratio, ends))
            });
            let fastest = if of.is_empty() {
                "fastest".to_owned()
            } else {
                format!("the fastest{of}")
            };
            format!(
                "{name}: {at} is {fastest}: {size} {than} {}, the next{interval}.",
                value(sweep, next)
            )
        }
    };
    let row = &comparison.rows[first.row];
    let peak = row.memory.first().filter(|peak| !peak.kind.contains("rss"));
    if let (Some(peak), Some(capacity)) = (peak, row.memory_capacity_bytes)
        && peak.bytes <= capacity
    {
        said += &format!(
            " It leaves {} of {} free ({}).",
            bytes(capacity - peak.bytes),
            bytes(capacity),
            peak.kind.replace('_', " ")
        );
    }
    if let Some(seconds) = best.apart_seconds {
        let (count, unit) = hours_or_days(seconds);
        said += &format!(
            " It and {} were measured {count:.0} {unit} apart, and the interval does not cover what changed in between.",
            value(sweep, next)
        );
    }
    said
}

/// ` of 1, 2, 4 (8 has no figure: out of memory)`; nothing where every point has a figure.
fn among(comparison: &Comparison, sweep: &Sweep, surface: &Surface) -> String {
    let absent = unmeasured(comparison, sweep, surface);
    if absent.is_empty() {
        return String::new();
    }
    let at = |x: f64, second: Option<f64>| value(sweep, &SweepPoint { x, second, row: 0 });
    let known: Vec<String> = surface.points.iter().map(|p| at(p.x, p.second)).collect();
    let missing: Vec<String> = absent
        .iter()
        .map(|p| format!("{} has no figure: {}", at(p.x, p.second), p.why))
        .collect();
    format!(" of {} ({})", few(&known), few(&missing))
}

/// `titan: 61,894 tokens/s/GPU at seq_length 1,024, 48,201 at 8,192.`
fn ends(comparison: &Comparison, sweep: &Sweep, surface: &Surface, name: &str) -> Option<String> {
    let (first, last) = (surface.points.first()?, surface.points.last()?);
    let rate =
        |point: &SweepPoint| number(comparison.rows[point.row].tokens_per_second_per_gpu.value);
    (first != last && sweep.second.is_none()).then(|| {
        format!(
            "{name}: {} {} at {}, {} at {}.",
            rate(first),
            rate_unit(surface.points.iter().map(|p| &comparison.rows[p.row])),
            place(sweep, first),
            rate(last),
            value(sweep, last)
        )
    })
}

/// `titan is faster than native at 3 of 4 points (1.10× to 1.21×); at the others there is no
/// verdict or no significant difference.`
fn against(
    comparison: &Comparison,
    sweep: &Sweep,
    surface: &Surface,
    (name, names): (&str, &[String]),
) -> Option<String> {
    let speedups = comparison.speedups_by_cell();
    let of = |point: &SweepPoint| {
        speedups
            .get(comparison.rows[point.row].cell.as_str())
            .copied()
    };
    let found: Vec<(&SweepPoint, &Speedup)> = surface
        .points
        .iter()
        .filter_map(|point| Some((point, of(point)?)))
        .collect();
    // All beside one other line, each point beside that line's point of the same place.
    let base_of = |(point, speedup): &(&SweepPoint, &Speedup)| {
        let is_base = |other: &&SweepPoint| {
            comparison.rows[other.row].cell == speedup.b
                && (other.x, other.second) == (point.x, point.second)
        };
        let bases = sweep.surfaces.iter();
        bases
            .map(|other| other.points.iter().find(is_base))
            .position(|found| found.is_some())
    };
    let base = base_of(found.first()?)?;
    if found.iter().any(|pair| base_of(pair) != Some(base)) {
        return None;
    }
    let found: Vec<&Speedup> = found.into_iter().map(|(_, speedup)| speedup).collect();
    let verdict = |is_faster: bool| -> Vec<f64> {
        let told = found.iter().filter(|s| s.significant == Some(true));
        let told = told.map(|s| s.ratio).filter(|ratio| ratio.is_finite());
        told.filter(|ratio| (*ratio > 1.0) == is_faster).collect()
    };
    let range = |ratios: &[f64]| {
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        if ratios.len() == 1 {
            format!("{}×", ratio(low, None))
        } else {
            format!("{}× to {}×", ratio(low, None), ratio(high, None))
        }
    };
    let (quicker, slower) = (verdict(true), verdict(false));
    let mut parts = Vec::new();
    for (word, ratios) in [("faster", &quicker), ("slower", &slower)] {
        if !ratios.is_empty() {
            parts.push(format!(
                "{word} than {} at {} of {} points ({})",
                names[base],
                ratios.len(),
                found.len(),
                range(ratios)
            ));
        }
    }
    let left = found.len() - quicker.len() - slower.len();
    let rest = if left > 0 {
        format!(
            "; {left} of {} without a significant difference or a verdict",
            found.len()
        )
    } else {
        String::new()
    };
    if parts.is_empty() {
        return Some(format!(
            "{name} and {}: no significant difference or no verdict at all {} points.",
            names[base],
            found.len()
        ));
    }
    Some(format!("{name} is {}{rest}.", parts.join(" and ")))
}

//! What is said of a sweep, beside its picture and its table.

use tprimat_figures::{
    Best, Comparison, Speedup, Surface, SurfacePair, Sweep, SweepPoint, rate_unit,
};
use tprimat_sentences::{few, hours_or_days, said};

use super::{
    format::{bytes, change_range, faster, number, ratio},
    sweep::{plain, surface_names},
    unmeasured::unmeasured,
};

/// Who is faster than whom at the same values; then, of one workload, which value of each line is
/// the fastest, and the lines at their fastest; over workloads what the values are.
#[must_use]
pub fn sweep_sentences(comparison: &Comparison, sweep: &Sweep) -> Vec<String> {
    let names = surface_names(comparison, sweep);
    let named = || sweep.surfaces.iter().zip(&names);
    let mut all: Vec<String> = Vec::new();
    if sweep.fields.is_empty() {
        all.extend(sweep.pairs.iter().map(|pair| at_the_same(sweep, pair, &names)));
    }
    all.extend(named().filter_map(|(surface, name)| {
        Some(best(comparison, sweep, surface, name, surface.best.as_ref()?))
    }));
    if sweep.fields.is_empty() {
        let pairs = sweep.pairs.iter();
        all.extend(pairs.filter_map(|pair| at_their_fastest(comparison, sweep, pair, &names)));
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
            let mut values = vec![at];
            let others = best.not_apart.iter().map(|at| &surface.points[*at]);
            values.extend(others.map(|point| value(sweep, point)));
            let lead = if best.not_apart.contains(&best.next) {
                lead(best.ratio, best.interval.map(|found| [found.low, found.high]))
            } else {
                String::new()
            };
            format!(
                "{name}: {} is fastest{of}; the runs do not tell which{lead}.",
                one_of(&values)
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
            " {} leaves {} of {} free ({}).",
            value(sweep, first),
            bytes(capacity - peak.bytes),
            bytes(capacity),
            peak.kind.replace('_', " ")
        );
    }
    if let Some(seconds) = best.apart_seconds {
        let (count, unit) = hours_or_days(seconds);
        said += &format!(
            " {} and {} were measured {count:.0} {unit} apart, and the interval does not cover what changed in between.",
            value(sweep, first),
            value(sweep, next)
        );
    }
    said
}

/// `4 or 2`, `4, 2 or 8`; of many the first ones and their number.
fn one_of(values: &[String]) -> String {
    const MOST: usize = 4;
    match values {
        [all @ .., last] if values.len() <= MOST => format!("{} or {last}", all.join(", ")),
        _ => format!(
            "{} or one of {} other values",
            values[..MOST - 1].join(", "),
            values.len() - MOST + 1
        ),
    }
}

/// ` (the first is 0.7 % faster, 95 % CI −0.3 to +1.7 %)`
fn lead(ratio: f64, ends: Option<[f64; 2]>) -> String {
    let Some(ends) = ends else {
        return String::new();
    };
    let (size, _) = faster(ratio, Some(ends[1] - ends[0]));
    format!(
        " (the first is {size} than the second, 95 % CI {})",
        change_range(ratio, ends)
    )
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
    let ratios: Vec<(f64, Option<bool>)> = found
        .iter()
        .map(|(_, speedup)| (speedup.ratio, speedup.significant))
        .collect();
    Some(counts(name, &names[base], "points", &ratios))
}

/// `At the same micro_batch_size: titan is faster than native at 4 of 4 values (1.11× to 1.12×).`
fn at_the_same(sweep: &Sweep, pair: &SurfacePair, names: &[String]) -> String {
    let (a, b) = (&names[pair.a], &names[pair.b]);
    let axes = match &sweep.second {
        Some(second) => format!("{} and {second}", sweep.axis),
        None => sweep.axis.clone(),
    };
    if pair.same.is_empty() {
        return format!("{a} and {b} have no value of {axes} in common.");
    }
    let ratios: Vec<(f64, Option<bool>)> =
        pair.same.iter().map(|at| (at.ratio, at.significant)).collect();
    let what = if sweep.second.is_some() { "settings" } else { "values" };
    let mut text = format!("At the same {axes}: {}", counts(a, b, what, &ratios));
    if let Some(seconds) = pair.apart_seconds {
        let (count, unit) = hours_or_days(seconds);
        text += &format!(
            " Some of them were measured {count:.0} {unit} apart, and no interval covers what changed in between."
        );
    }
    text
}

/// `Each at its fastest: titan (8) is 5 % faster than native (4) (95 % CI 2–8 %, which allows for
/// picking the highest of 4 and of 4 values).`
fn at_their_fastest(
    comparison: &Comparison,
    sweep: &Sweep,
    pair: &SurfacePair,
    names: &[String],
) -> Option<String> {
    let found = pair.highest.as_ref()?;
    let sides = [(pair.a, found.at[0]), (pair.b, found.at[1])].map(|(surface, at)| {
        let point = &sweep.surfaces[surface].points[at];
        let value = value(sweep, point);
        let value = value.trim_start_matches('(').trim_end_matches(')').to_owned();
        let rate = number(comparison.rows[point.row].tokens_per_second_per_gpu.value);
        (format!("{} ({value})", names[surface]), rate)
    });
    let [(a, rate_a), (b, rate_b)] = &sides;
    let picked = format!("the highest of {} and of {} points", found.of[0], found.of[1]);
    if let Some(why) = &found.reason {
        return Some(format!(
            "Highest rates: {a} {rate_a}, {b} {rate_b}; no verdict: {}.",
            said(why)
        ));
    }
    let ends = found.interval.map(|found| [found.low, found.high])?;
    let is_turned = found.ratio < 1.0;
    let (first, second, ratio, ends) = if is_turned {
        (b, a, 1.0 / found.ratio, [1.0 / ends[1], 1.0 / ends[0]])
    } else {
        (a, b, found.ratio, ends)
    };
    let interval = format!(
        "95 % CI {}, which allows for picking {picked}",
        change_range(ratio, ends)
    );
    if ends[0] <= 1.0 {
        return Some(format!(
            "Each at its fastest: no significant difference between {first} and {second} ({interval})."
        ));
    }
    let (size, than) = faster(ratio, Some(ends[1] - ends[0]));
    Some(format!(
        "Each at its fastest: {first} is {size} {than} {second} ({interval})."
    ))
}

/// `titan is faster than native at 3 of 4 points (1.10× to 1.21×); 1 of 4 without a significant
/// difference or a verdict.`
fn counts(name: &str, base: &str, what: &str, found: &[(f64, Option<bool>)]) -> String {
    let verdict = |is_faster: bool| -> Vec<f64> {
        let told = found.iter().filter(|(_, significant)| *significant == Some(true));
        let told = told.map(|(ratio, _)| *ratio).filter(|ratio| ratio.is_finite());
        told.filter(|ratio| (*ratio > 1.0) == is_faster).collect()
    };
    let range = |ratios: &[f64]| {
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        let ends = [low, high].map(|end| format!("{}×", ratio(end, None)));
        if ends[0] == ends[1] {
            ends[0].clone()
        } else {
            ends.join(" to ")
        }
    };
    let (quicker, slower) = (verdict(true), verdict(false));
    let mut parts = Vec::new();
    for (word, ratios) in [("faster", &quicker), ("slower", &slower)] {
        if !ratios.is_empty() {
            parts.push(format!(
                "{word} than {base} at {} of {} {what} ({})",
                ratios.len(),
                found.len(),
                range(ratios)
            ));
        }
    }
    if parts.is_empty() {
        return format!(
            "{name} and {base}: no significant difference or no verdict at all {} {what}.",
            found.len()
        );
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
    format!("{name} is {}{rest}.", parts.join(" and "))
}

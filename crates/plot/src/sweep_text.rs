//! What is said of a sweep, beside its picture and its table.

use tprimat_figures::{
    Best, Comparison, Highest, Surface, SurfacePair, Sweep, SweepPoint, hours_or_days, rate_unit,
};
use tprimat_results::words::few;

use super::{
    format::{bytes, change_range, faster, number, ratio, ratio_beside_1},
    sweep::{plain, surface_names},
    unmeasured::{Unmeasured, unmeasured},
};

/// Who is faster than whom at the same values; then, of one workload, which value of each line is
/// the fastest, and the lines at their fastest; over workloads what the values are.
#[must_use]
pub fn sweep_sentences(comparison: &Comparison, sweep: &Sweep) -> Vec<String> {
    let names = surface_names(comparison, sweep);
    let named = || sweep.surfaces.iter().zip(&names);
    let mut all = Vec::new();
    if !sweep.fields.is_empty() {
        all.push(format!(
            "Points are different workloads (they differ in {}), so no point is called the fastest of all.",
            few(&sweep.fields)
        ));
        all.extend(named().filter_map(|(surface, name)| ends(comparison, sweep, surface, name)));
    }
    all.extend(at_the_same(sweep, &names));
    all.extend(named().filter_map(|(surface, name)| {
        Some(best(
            comparison,
            sweep,
            surface,
            name,
            surface.best.as_ref()?,
        ))
    }));
    all.extend(
        named().filter_map(|(surface, name)| at_each_value(comparison, sweep, surface, name)),
    );
    all.extend(at_their_fastest(comparison, sweep, &names));
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
            why
        ),
        None if !best.not_apart.is_empty() => {
            let mut values = vec![at];
            let others = best.not_apart.iter().map(|at| &surface.points[*at]);
            values.extend(others.map(|point| value(sweep, point)));
            let lead = if best.not_apart.contains(&best.next) {
                lead(
                    best.ratio,
                    best.interval.map(|found| [found.low, found.high]),
                )
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
    if let Some(edge) = edge(comparison, sweep, surface, first) {
        said += &edge;
    }
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

/// The sentence on a best value at the edge of those that were tried: one beyond it may be better.
fn edge(
    comparison: &Comparison,
    sweep: &Sweep,
    surface: &Surface,
    best: &SweepPoint,
) -> Option<String> {
    let absent = unmeasured(comparison, sweep, surface);
    if sweep.second.is_some() || best_is_open(surface) {
        return None;
    }
    let tried = || {
        let known = surface.points.iter().map(|point| point.x);
        known.chain(absent.iter().map(|point| point.x))
    };
    let which = if tried().all(|x| x <= best.x) {
        "largest"
    } else if tried().all(|x| x >= best.x) {
        "smallest"
    } else {
        return None;
    };
    Some(format!(" It is the {which} value that was tried."))
}

fn best_is_open(surface: &Surface) -> bool {
    surface.best.as_ref().is_none_or(|best| !best.is_fastest())
}

/// `titan: the fastest micro_batch_size is 8 at seq_length 512, 1,024; 8 or 4 at 2,048.`
fn at_each_value(
    comparison: &Comparison,
    sweep: &Sweep,
    surface: &Surface,
    name: &str,
) -> Option<String> {
    let second = sweep.second.as_ref()?;
    let first = surface.lines.first()?;
    let (shared, free) = if first.shares_first {
        (&sweep.axis, second)
    } else {
        (second, &sweep.axis)
    };
    let free_value = |at: &usize| {
        let point = &surface.points[*at];
        let value = if first.shares_first {
            point.second
        } else {
            Some(point.x)
        };
        plain(value.unwrap_or_default())
    };
    let absent = unmeasured(comparison, sweep, surface);
    // The value of the shared axis, and of the other one.
    let on_axes = |x: f64, second: Option<f64>| {
        let second = second.unwrap_or_default();
        if first.shares_first {
            (x, second)
        } else {
            (second, x)
        }
    };
    // Neighbours with the same answer are told together.
    let mut told: Vec<(String, Vec<String>)> = Vec::new();
    for line in &surface.lines {
        let best = &line.best;
        let answer = if best.reason.is_some() {
            "unknown".to_owned()
        } else if best.is_fastest() {
            free_value(&best.at)
        } else {
            let all: Vec<String> = std::iter::once(&best.at)
                .chain(&best.not_apart)
                .map(free_value)
                .collect();
            one_of(&all)
        };
        let of_line = |point: &&Unmeasured| {
            let (shared, _) = on_axes(point.x, point.second);
            shared == line.value
        };
        let missing: Vec<String> = absent
            .iter()
            .filter(of_line)
            .map(|point| {
                format!(
                    "{} has no figure: {}",
                    plain(on_axes(point.x, point.second).1),
                    point.why
                )
            })
            .collect();
        let answer = if missing.is_empty() {
            answer
        } else {
            format!("{answer} ({})", few(&missing))
        };
        match told.last_mut() {
            Some((last, values)) if *last == answer => values.push(plain(line.value)),
            _ => told.push((answer, vec![plain(line.value)])),
        }
    }
    let told: Vec<String> = told
        .iter()
        .enumerate()
        .map(|(place, (answer, values))| {
            let axis = if place == 0 {
                format!("{shared} ")
            } else {
                String::new()
            };
            format!("{answer} at {axis}{}", values.join(", "))
        })
        .collect();
    Some(format!(
        "{name}: the fastest {free} is {}.",
        told.join("; ")
    ))
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

/// Pairs of a sweep by the surface that they are held against, in the order of the first of each.
fn by_base(sweep: &Sweep) -> Vec<(usize, Vec<&SurfacePair>)> {
    let mut found: Vec<(usize, Vec<&SurfacePair>)> = Vec::new();
    for pair in &sweep.pairs {
        match found.iter_mut().find(|(base, _)| *base == pair.b) {
            Some((_, pairs)) => pairs.push(pair),
            None => found.push((pair.b, vec![pair])),
        }
    }
    found
}

/// `At the same micro_batch_size, against native: titan is faster at 4 of 4 values (1.11× to
/// 1.12×); tran is slower at 3 of 4 values (0.70× to 0.75×), without a verdict at 1.`
fn at_the_same(sweep: &Sweep, names: &[String]) -> Vec<String> {
    let axes = match &sweep.second {
        Some(second) => format!("{} and {second}", sweep.axis),
        None => sweep.axis.clone(),
    };
    let what = if sweep.second.is_some() {
        "settings"
    } else {
        "values"
    };
    let of_base = |(base, pairs): (usize, Vec<&SurfacePair>)| {
        let held: Vec<&SurfacePair> = pairs.into_iter().filter(|p| !p.same.is_empty()).collect();
        let told: Vec<String> = held
            .iter()
            .map(|pair| format!("{} {}", names[pair.a], counts(pair, what)))
            .collect();
        let seconds = held.iter().filter_map(|pair| pair.apart_seconds);
        let apart = seconds.reduce(f64::max).map_or_else(String::new, |seconds| {
            let (count, unit) = hours_or_days(seconds);
            format!(
                " Some of these runs were made {count:.0} {unit} apart, and no interval covers what changed in between."
            )
        });
        (!told.is_empty()).then(|| {
            let told = told.join("; ");
            format!(
                "At the same {axes}, against {}: {told}.{apart}",
                names[base]
            )
        })
    };
    by_base(sweep).into_iter().filter_map(of_base).collect()
}

/// `is faster at 3 of 4 values (1.10× to 1.21×), without a verdict or a significant difference at 1`
fn counts(pair: &SurfacePair, what: &str) -> String {
    let verdict = |is_faster: bool| -> Vec<f64> {
        let told = pair.same.iter().filter(|at| at.significant == Some(true));
        let ratios = told.map(|at| at.ratio).filter(|ratio| ratio.is_finite());
        ratios.filter(|ratio| (*ratio > 1.0) == is_faster).collect()
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
    let all = pair.same.len();
    let mut left = all;
    let mut parts = Vec::new();
    for (word, ratios) in [("faster", verdict(true)), ("slower", verdict(false))] {
        left -= ratios.len();
        if !ratios.is_empty() {
            parts.push(format!(
                "is {word} at {} of {all} {what} ({})",
                ratios.len(),
                range(&ratios)
            ));
        }
    }
    if parts.is_empty() {
        let reason = pair.same.iter().find_map(|at| at.reason.as_ref());
        let open = pair
            .same
            .iter()
            .filter(|at| at.significant.is_none())
            .count();
        return match reason {
            Some(why) if open == all => format!("has no verdict: {why}"),
            Some(why) => format!(
                "shows no significant difference at {} of {all} {what}, and has no verdict at {open}: {}",
                all - open,
                why
            ),
            None => format!("shows no significant difference at any of {all} {what}"),
        };
    }
    let mut said = parts.join(" and ");
    if left > 0 {
        said += &format!(", without a verdict or a significant difference at {left}");
    }
    said
}

/// `Each at its fastest, against native at 4: titan at 8 is 5 % faster (95 % CI 2–8 %). These
/// intervals allow for picking the highest of 4 points.`
fn at_their_fastest(comparison: &Comparison, sweep: &Sweep, names: &[String]) -> Vec<String> {
    let at = |surface: usize, point: usize| {
        let value = value(sweep, &sweep.surfaces[surface].points[point]);
        format!("{} at {value}", names[surface])
    };
    let rate = |surface: usize, point: usize| {
        let point = &sweep.surfaces[surface].points[point];
        number(comparison.rows[point.row].tokens_per_second_per_gpu.value)
    };
    let of_base = |(base, pairs): (usize, Vec<&SurfacePair>)| {
        let held = pairs
            .into_iter()
            .filter_map(|p| Some((p, p.highest.as_ref()?)));
        let held: Vec<(&SurfacePair, &Highest)> = held.collect();
        let (_, first) = held.first()?;
        let of = held.iter().flat_map(|(_, found)| found.of).max()?;
        let mut is_tested = false;
        let told = held.iter().map(|(pair, found)| {
            let name = at(pair.a, found.at[0]);
            let ends = found.interval.map(|found| [found.low, found.high]);
            match (&found.reason, ends) {
                (None, Some([low, high])) => {
                    is_tested = true;
                    format!("{name} {}", beside(found.ratio, [low, high]))
                }
                (why, _) => {
                    let why = why
                        .as_ref()
                        .map_or_else(|| "no interval".to_owned(), ToString::to_string);
                    let own = rate(pair.a, found.at[0]);
                    format!("{name} runs at {own}, no verdict: {why}")
                }
            }
        });
        let told: Vec<String> = told.collect();
        let base_at = at(base, first.at[1]);
        let base_rate = rate(base, first.at[1]);
        let picked = if is_tested {
            format!(" The intervals allow for picking the highest of up to {of} points of each.")
        } else {
            String::new()
        };
        Some(format!(
            "Each at its highest rate, against {base_at} ({base_rate}): {}.{picked}",
            told.join("; ")
        ))
    };
    by_base(sweep).into_iter().filter_map(of_base).collect()
}

/// `is 5 % faster (95 % CI 2–8 %)`, `is 0.75× as fast (95 % CI 0.70–0.80×)`, `differs not
/// significantly`
fn beside(value: f64, [low, high]: [f64; 2]) -> String {
    let width = Some(high - low);
    if low > 1.0 {
        let (size, _) = faster(value, width);
        return format!("is {size} (95 % CI {})", change_range(value, [low, high]));
    }
    let ends = format!(
        "95 % CI {}–{}×",
        ratio_beside_1(low, width),
        ratio_beside_1(high, width)
    );
    if high < 1.0 {
        format!("is {}× as fast ({ends})", ratio(value, width))
    } else {
        format!("shows no significant difference ({ends})")
    }
}

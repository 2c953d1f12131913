//! What is said of a sweep, beside its picture and its table.

use tprimat_numbers::figures::{
    Comparison, LineBest, Surface, SurfacePair, Sweep, SweepPoint, apart_words, level_words,
};
use tprimat_numbers::results::words::few;

use super::{
    axis::extent,
    format::{bytes, change_range, faster, number, ratio},
    sweep::{plain, surface_names},
    unmeasured::unmeasured,
};

/// Who is faster than whom at the same values; then, of one workload, which value of each line is
/// the fastest, and the lines at their fastest.
#[must_use]
pub fn sweep_sentences(comparison: &Comparison, sweep: &Sweep) -> Vec<String> {
    let told = Told {
        comparison,
        sweep,
        names: surface_names(comparison, sweep),
    };
    let named = || sweep.surfaces.iter().zip(&told.names);
    let mut all = Vec::new();
    if !sweep.fields.is_empty() {
        all.push(format!(
            "Points are different workloads (they differ in {}), so no point is called the fastest of all.",
            few(&sweep.fields)
        ));
    }
    let pairs = || sweep.pairs.iter();
    all.extend(pairs().filter_map(|pair| told.at_the_same(pair)));
    all.extend(named().filter_map(|(surface, name)| told.best(surface, name)));
    all.extend(named().filter_map(|(surface, name)| told.at_each_value(surface, name)));
    all.extend(pairs().filter_map(|pair| told.at_their_highest(pair)));
    all
}

struct Told<'a> {
    comparison: &'a Comparison,
    sweep: &'a Sweep,
    /// Of the surfaces.
    names: Vec<String>,
}

impl Told<'_> {
    /// `seq_length 4,096`, of two axes `seq_length 4,096, micro_batch_size 2`
    fn place(&self, x: f64, second: Option<f64>) -> String {
        let first = format!("{} {}", self.sweep.axis, plain(x));
        match (&self.sweep.second, second) {
            (Some(name), Some(value)) => format!("{first}, {name} {}", plain(value)),
            _ => first,
        }
    }

    /// The same without the name of the axis, where there is one axis.
    fn value(&self, x: f64, second: Option<f64>) -> String {
        match self.sweep.second {
            Some(_) => format!("({})", self.place(x, second)),
            None => plain(x),
        }
    }

    fn value_of(&self, point: &SweepPoint) -> String {
        self.value(point.x, point.second)
    }

    fn rate(&self, point: &SweepPoint) -> String {
        number(
            self.comparison.rows[point.row]
                .tokens_per_second_per_gpu
                .value,
        )
    }

    /// `titan: micro_batch_size 4 is fastest: 3.1 % faster than 2, the next (95 % CI 2.5–3.7 %). It
    /// leaves 12.00 GiB of 80.00 GiB free (peak allocated).`
    fn best(&self, surface: &Surface, name: &str) -> Option<String> {
        let best = surface.best.as_ref()?;
        let (first, next) = (&surface.points[best.at], &surface.points[best.next]);
        let (own, next) = (self.value_of(first), self.value_of(next));
        let at = self.place(first.x, first.second);
        let of = self.among(surface);
        let fastest = match of.is_empty() {
            true => "fastest".to_owned(),
            false => format!("the fastest{of}"),
        };
        let interval = best.interval.map(|found| [found.low, found.high]);
        let (size, than) = faster(best.ratio, interval.map(|[low, high]| high - low));
        let interval = interval.map(|ends| format!("95 % CI {}", change_range(best.ratio, ends)));
        let mut said = match &best.reason {
            Some(why) => format!(
                "{at} has the highest rate{of}; no verdict: {}.",
                why.text.clone()
            ),
            None if best.is_fastest => {
                let interval = interval.map_or_else(String::new, |words| format!(" ({words})"));
                format!("{at} is {fastest}: {size} {than} {next}, the next{interval}.")
            }
            None => {
                let others = best
                    .not_apart
                    .iter()
                    .map(|at| self.value_of(&surface.points[*at]));
                let values: Vec<String> = std::iter::once(at).chain(others).collect();
                let is_told = best.not_apart.contains(&best.next);
                let lead = interval
                    .filter(|_| is_told)
                    .map_or_else(String::new, |words| {
                        format!(" (the first is {size} {than} the second, {words})")
                    });
                let values = one_of(&values);
                format!("{values} is {fastest}; the runs do not tell which{lead}.")
            }
        };
        if best.is_fastest && self.sweep.second.is_none() {
            let tried = surface.points.iter().map(|point| point.x);
            let absent = unmeasured(self.comparison, self.sweep, surface);
            let tried = extent(tried.chain(absent.iter().map(|point| point.x)))?;
            let which = ["smallest", "largest"];
            for (which, _) in which.iter().zip(tried).filter(|(_, end)| *end == first.x) {
                said += &format!(" It is the {which} value that was tried.");
            }
        }
        let row = &self.comparison.rows[first.row];
        let peak = row.memory.first().filter(|peak| !peak.kind.contains("rss"));
        if let (Some(peak), Some(capacity)) = (peak, row.memory_capacity_bytes)
            && let Some(free) = capacity.checked_sub(peak.bytes)
        {
            let (free, capacity, kind) =
                (bytes(free), bytes(capacity), peak.kind.replace('_', " "));
            said += &format!(" {own} leaves {free} of {capacity} free ({kind}).");
        }
        if let Some(seconds) = best.apart_seconds {
            let (apart, allows) = (apart_words(seconds), level_words());
            said += &format!(" {own} and {next} were {apart}, {allows}.");
        }
        Some(format!("{name}: {said}"))
    }

    /// ` of 1, 2, 4 (8 has no figure: out of memory)`; nothing where every point has a figure.
    fn among(&self, surface: &Surface) -> String {
        let absent = unmeasured(self.comparison, self.sweep, surface);
        let missing = absent
            .iter()
            .map(|p| no_figure(&self.value(p.x, p.second), &p.why));
        let missing: Vec<String> = missing.collect();
        let known: Vec<String> = surface.points.iter().map(|p| self.value_of(p)).collect();
        match missing.is_empty() {
            true => String::new(),
            false => format!(" of {} ({})", few(&known), few(&missing)),
        }
    }

    /// `titan: the fastest micro_batch_size is 8 at seq_length 512; 8 or 4 at seq_length 2,048.`
    fn at_each_value(&self, surface: &Surface, name: &str) -> Option<String> {
        let axes = (&self.sweep.axis, self.sweep.second.as_ref()?);
        let shares_first = surface.lines.first()?.shares_first;
        let (shared, free) = if shares_first { axes } else { (axes.1, axes.0) };
        // The value of the shared axis, and of the other one.
        let on_axes = |x: f64, second: Option<f64>| {
            let second = second.unwrap_or_default();
            if shares_first {
                (x, second)
            } else {
                (second, x)
            }
        };
        let absent = unmeasured(self.comparison, self.sweep, surface);
        let answer = |line: &LineBest| {
            let points = std::iter::once(&line.best.at).chain(&line.best.not_apart);
            let points = points.map(|at| &surface.points[*at]);
            let values: Vec<String> = points.map(|p| plain(on_axes(p.x, p.second).1)).collect();
            let answer = match line.best.reason {
                Some(_) => "unknown".to_owned(),
                None => one_of(&values),
            };
            let missing = absent.iter().map(|p| (on_axes(p.x, p.second), &p.why));
            let missing = missing.filter(|((shared, _), _)| *shared == line.value);
            let missing = missing.map(|((_, free), why)| no_figure(&plain(free), why));
            let missing: Vec<String> = missing.collect();
            let missing = match missing.is_empty() {
                true => String::new(),
                false => format!(" ({})", few(&missing)),
            };
            format!("{answer}{missing}")
        };
        // Neighbours with the same answer are told together.
        let answers: Vec<(String, String)> = surface
            .lines
            .iter()
            .map(|line| (answer(line), plain(line.value)))
            .collect();
        let same = answers.chunk_by(|a, b| a.0 == b.0).map(|same| {
            let values: Vec<&str> = same.iter().map(|(_, value)| value.as_str()).collect();
            format!("{} at {shared} {}", same[0].0, values.join(", "))
        });
        let answers: Vec<String> = same.collect();
        Some(format!(
            "{name}: the fastest {free} is {}.",
            answers.join("; ")
        ))
    }

    /// `titan is faster than native at 4 of 4 values of micro_batch_size (1.11× to 1.12×).`
    fn at_the_same(&self, pair: &SurfacePair) -> Option<String> {
        let all = pair.same.len();
        let of = match &self.sweep.second {
            Some(second) => format!("{all} settings of {} and {second}", self.sweep.axis),
            None => format!("{all} values of {}", self.sweep.axis),
        };
        let [name, base] = [&self.names[pair.a], &self.names[pair.b]];
        let told = || pair.same.iter().filter(|at| at.significant == Some(true));
        let mut parts = Vec::new();
        for (word, is_faster) in [("faster", true), ("slower", false)] {
            let ratios = told().map(|at| at.ratio);
            let ratios: Vec<f64> = ratios.filter(|ratio| (*ratio > 1.0) == is_faster).collect();
            let Some(ends) = extent(ratios.iter().copied()) else {
                continue;
            };
            let [low, high] = ends.map(|end| format!("{}×", ratio(end, None)));
            let range = if low == high {
                low
            } else {
                format!("{low} to {high}")
            };
            parts.push(format!(
                "is {word} than {base} at {} of {of} ({range})",
                ratios.len()
            ));
        }
        let open = pair
            .same
            .iter()
            .filter(|at| at.significant.is_none())
            .count();
        let same = all - open - told().count();
        if same > 0 {
            parts.push(format!(
                "shows no significant difference from {base} at {same} of {of}"
            ));
        }
        let why = pair
            .same
            .iter()
            .find_map(|at| at.reason.as_ref())
            .map(|why| why.text.clone());
        if open > 0 {
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            parts.push(format!(
                "has no verdict beside {base} at {open} of {of}{why}"
            ));
        }
        let apart = pair.apart_seconds.map_or_else(String::new, |seconds| {
            format!(
                " Some of these were {}, {}.",
                apart_words(seconds),
                level_words()
            )
        });
        (all > 0).then(|| format!("{name} {}.{apart}", parts.join("; ")))
    }

    /// `Each at its highest rate: titan at 8 (1,109) is 5 % faster than native at 4 (1,056), 95 % CI
    /// 2–8 %, which allows for picking the highest of up to 4 points of each.`
    fn at_their_highest(&self, pair: &SurfacePair) -> Option<String> {
        let found = pair.highest.as_ref()?;
        let named = [(pair.a, found.at[0]), (pair.b, found.at[1])].map(|(surface, at)| {
            let point = &self.sweep.surfaces[surface].points[at];
            let (value, rate) = (self.value_of(point), self.rate(point));
            format!("{} at {value} ({rate})", self.names[surface])
        });
        let [name, base] = &named;
        let interval = found.interval.filter(|_| found.reason.is_none());
        let Some([low, high]) = interval.map(|found| [found.low, found.high]) else {
            let why = found
                .reason
                .as_ref()
                .map_or_else(|| "no interval".to_owned(), |why| why.text.clone());
            return Some(format!(
                "Each at its highest rate: {name}, {base}; no verdict: {why}."
            ));
        };
        // The faster one is the subject.
        let is_slower = high < 1.0;
        let (name, base, ratio, ends) = match is_slower {
            true => (base, name, 1.0 / found.ratio, [1.0 / high, 1.0 / low]),
            false => (name, base, found.ratio, [low, high]),
        };
        let what = match faster(ratio, Some(ends[1] - ends[0])) {
            (size, than) if ends[0] > 1.0 => format!("{name} is {size} {than} {base}"),
            _ => format!("{name} and {base} show no significant difference"),
        };
        let (range, of) = (change_range(ratio, ends), found.of[0].max(found.of[1]));
        Some(format!(
            "Each at its highest rate: {what}, 95 % CI {range}, which allows for picking the highest of up to {of} points of each."
        ))
    }
}

fn no_figure(value: &str, why: &str) -> String {
    format!("{value} has no figure: {why}")
}

/// `4`, `4 or 2`, `4, 2 or 8`; of many the first ones and their number.
fn one_of(values: &[String]) -> String {
    const MOST: usize = 4;
    match values {
        [only] => only.clone(),
        [all @ .., last] if values.len() <= MOST => format!("{} or {last}", all.join(", ")),
        _ => format!(
            "{} or one of {} other values",
            values[..MOST - 1].join(", "),
            values.len() - MOST + 1
        ),
    }
}

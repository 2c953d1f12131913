//! Figures of cells as bars: rates, the share of the dense peak, memory, energy and cost.

use tprimat_numbers::figures::{Figure, Metric, Row, rate_unit};
use tprimat_numbers::results::GIB;

use super::{
    bars::{Bar, Entry, Panels},
    canvas::Canvas,
    cells::{Cell, Shown},
    format::{bytes, metric as metric_text, number},
    series::counted,
};

/// What the bars of rates are.
pub const BARS: &str = "Bars: geometric mean over repeats; whiskers: 95 % interval; n: repeats that count. Longer is faster; the fastest comes first. A framework, or a cell of a single one, has one colour in all pictures.";

const NO_CELL: &str = "no cell has figures";
const NO_MEMORY: &str = "no log states memory, and none was sampled";

/// A picture of these panels, or the reason that the first of them gives for having no bar.
fn picture(
    shown: &Shown,
    (title, subtitle): (&str, &str),
    panels: &[Panels],
) -> Result<Canvas, String> {
    let workloads = shown.bar_workloads();
    if workloads == 0 && !shown.workloads.is_empty() {
        return Err(
            "each workload is a point of the sweep, which has a picture of its own".to_owned(),
        );
    }
    let mut canvas = shown.titled(title, subtitle, workloads);
    let drawn: usize = panels
        .iter()
        .map(|panels| panels.draw(&mut canvas, shown))
        .sum();
    if drawn == 0 {
        let reasons = panels
            .iter()
            .flat_map(|one| shown.cells().map(|cell| (one.entry)(cell)));
        let first = reasons.filter_map(Result::err).next();
        return Err(first.unwrap_or_else(|| NO_CELL.to_owned()));
    }
    shown.count_absent(&mut canvas);
    Ok(canvas)
}

pub fn rates(shown: &Shown) -> Panels<'static> {
    Panels::new("", rate_unit(shown.rows()), |cell| {
        let row = cell.row;
        if let Some(reason) = row.impossible() {
            return Err(format!("impossible: {}", reason.text.clone()));
        }
        let estimate = &row.tokens_per_second_per_gpu;
        // `10,682 (10,600 to 10,764), n = 2 of 3, 1 contradicted`
        let interval = estimate.ci95.map_or_else(String::new, |[low, high]| {
            format!(" ({} to {})", number(low), number(high))
        });
        let rate = number(estimate.value);
        let mut figures = format!("{rate}{interval}, n = {} of {}", row.n, row.repeats_wanted);
        for (why, count) in row.uncounted.by_why() {
            if count > 0 {
                figures += &format!(", {count} {why}");
            }
        }
        Ok(vec![Bar {
            interval: estimate.ci95,
            ..Bar::new(estimate.value, figures)
        }])
    })
}

pub fn mfu(shown: &Shown) -> Result<Canvas, String> {
    let subtitle = "Model FLOPs utilisation: FLOPs of the model a second, as a share of the device's dense peak.";
    of_metrics(shown, ("MFU", subtitle), &["mfu"])
}

/// Peak memory, each kind by its name: what one counts another does not.
pub fn memory(shown: &Shown) -> Result<Canvas, String> {
    let subtitle = "The most that any counted repeat used, of one device. Bars of different names count different things. \
         Stroke across a bar: what the device has.";
    let panels = Panels::new("", "GiB", |cell| memory_of(cell.row));
    picture(shown, ("Peak memory", subtitle), &[panels])
}

fn memory_of(row: &Row) -> Entry {
    let of_log = row.memory.iter();
    let of_log = of_log.map(|m| (m.kind.replace('_', " "), m.source.clone(), m.bytes));
    let sampled = counted(row).filter_map(|r| r.telemetry.as_ref());
    let most = sampled
        .filter_map(|t| Some((t.max_memory_used_bytes?, &t.source)))
        .max();
    let of_device = most.map(|(bytes, source)| {
        let source = format!("{source}, sampled");
        ("device used".to_owned(), source, bytes)
    });
    let bar = |(kind, source, count): (String, String, u64)| {
        // Memory of the host has nothing to do with the capacity of the device.
        let roof = row.memory_capacity_bytes.filter(|_| !kind.contains("rss"));
        let of = roof.map_or_else(String::new, |roof| format!(" of {}", bytes(roof)));
        let figures = format!("{}{of} {kind} ({source})", bytes(count));
        Bar {
            roof: roof.map(|bytes| bytes as f64 / GIB),
            ..Bar::new(count as f64 / GIB, figures)
        }
    };
    let bars: Vec<Bar> = of_log.chain(of_device).map(bar).collect();
    match bars.is_empty() {
        true => Err(NO_MEMORY.to_owned()),
        false => Ok(bars),
    }
}

/// What a joule gives: a figure of the metrics, drawn as it stands there.
pub fn energy(shown: &Shown) -> Result<Canvas, String> {
    let subtitle = "From the energy of GPU boards alone over the measured steps, as sampled beside the counted repeats.";
    of_metrics(shown, ("Energy", subtitle), &["tokens_per_joule"])
}

/// What a token costs.
pub fn cost(shown: &Shown) -> Result<Canvas, String> {
    let names = ["dollars_per_trillion_tokens", "tokens_per_dollar"];
    let subtitle = "From the rate and the price of an hour of one device, as configured.";
    of_metrics(shown, ("Cost", subtitle), &names)
}

fn of_metrics(
    shown: &Shown,
    titles: (&str, &str),
    names: &[&'static str],
) -> Result<Canvas, String> {
    let panels: Vec<Panels> = names.iter().flat_map(|name| metric(shown, name)).collect();
    match panels.is_empty() {
        true => Err(why_absent(shown, names[0])),
        false => picture(shown, titles, &panels),
    }
}

/// Bars of one metric, by its unit, which may be another currency.
pub fn metric(shown: &Shown, name: &'static str) -> Vec<Panels<'static>> {
    let of = move |row: &Row| row.metrics.0.iter().find(|m| m.name == name).cloned();
    let mut kinds: Vec<Metric> = Vec::new();
    for found in shown.rows().filter_map(of) {
        let is_new = kinds.iter().all(|known| known.unit != found.unit);
        if is_new && found.figure.value().is_some() {
            kinds.push(found);
        }
    }
    let panels = |kind: Metric| {
        let better = match kind.higher_is_better {
            Some(true) => ". Longer is better.",
            Some(false) => ". Shorter is better.",
            None => "",
        };
        let (shown_unit, factor) = match kind.unit.as_str() {
            "fraction" => ("%", 100.0),
            unit => (unit, 1.0),
        };
        let unit = kind.unit.clone();
        let entry = move |cell: &Cell| -> Entry {
            let found = of(cell.row).ok_or("no figure of this kind")?;
            match found.figure {
                Figure::Ok { value, .. } if found.unit == unit => {
                    let figures = metric_text(value, &unit, "");
                    Ok(vec![Bar::new(value * factor, figures)])
                }
                Figure::Ok { .. } => Err(format!("in {}: see there", found.unit)),
                Figure::Absent { reason } => Err(reason.text.clone()),
                Figure::Error { reason } => Err(format!("impossible: {}", reason.text.clone())),
            }
        };
        Panels::new(&format!("{}{better}", kind.title), shown_unit, entry)
    };
    kinds.into_iter().map(panels).collect()
}

/// The first reason that a row gives for having no such metric.
pub fn why_absent(shown: &Shown, name: &str) -> String {
    let reason = |row: &Row| match row.metrics.get(name)? {
        Figure::Absent { reason } | Figure::Error { reason } => Some(reason.text.clone()),
        Figure::Ok { .. } => None,
    };
    let first = shown.rows().find_map(reason);
    first.unwrap_or_else(|| format!("no cell has `{name}`"))
}

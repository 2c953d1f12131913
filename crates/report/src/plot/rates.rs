//! Figures of cells as bars: rates, the share of the dense peak, memory, power and cost; and each
//! repeat's rate against the mean of its cell.

use tprimat_numbers::figures::{
    Figure, Metric, Mfu, RepeatStatus, RepeatSummary, Row, Telemetry, rate_unit,
};
use tprimat_numbers::results::{GIB, mean};

use super::{
    axis::extent,
    bars::{Bar, Entry, Fill, Panels},
    canvas::{Anchor, Canvas, Mark},
    cells::{Cell, Shown},
    format::{bytes, metric as metric_text, number, percent},
    series::counted,
    style::{FAINT, INK, MARGIN, SMALL},
    text::width_of,
};

/// What the bars of rates are.
pub const BARS: &str = "Bars: geometric mean over repeats; whiskers: 95 % interval; n: repeats that count. Longer is faster; the fastest comes first. A framework has one colour in all pictures.";

/// Repeats that do not count and are named.
const NAMED: usize = 6;
/// A repeat that is farther off its cell's mean, in percent, is drawn at the edge.
const FARTHEST: f64 = 50.0;
const NO_CELL: &str = "no cell has figures";
const NO_MEMORY: &str = "no log states memory, and none was sampled";

/// A picture of these panels, or the reason that the first of them gives for having no bar.
fn picture(
    shown: &Shown,
    (title, subtitle): (&str, &str),
    panels: &[Panels],
    lists_absent: bool,
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
        .map(|panels| panels.draw(&mut canvas, shown, true))
        .sum();
    if drawn == 0 {
        let reasons = panels
            .iter()
            .flat_map(|one| shown.cells().map(|cell| (one.entry)(cell)));
        let first = reasons.filter_map(Result::err).next();
        return Err(first.unwrap_or_else(|| NO_CELL.to_owned()));
    }
    match lists_absent {
        true => shown.list_absent(&mut canvas),
        false => shown.count_absent(&mut canvas),
    }
    Ok(canvas)
}

pub fn throughput(shown: &Shown) -> Result<Canvas, String> {
    let rates = rates(shown);
    let title = format!("Training throughput, {}", rates.unit);
    picture(shown, (&title, BARS), &[rates], true)
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
    let subtitle = "Model FLOPs utilisation: FLOPs of the model a second, as a share of the device's dense peak. Stroke across a bar: 100 %, the peak.";
    let panels = Panels::new("", "% of the peak", |cell| match &cell.row.mfu {
        Mfu::Ok {
            value,
            convention,
            peak,
            ..
        } => {
            let (share, peak) = (percent(*value), number(peak.tflops));
            let figures = format!("{share} of {peak} TFLOP/s; {convention}");
            Ok(vec![Bar {
                roof: Some(100.0),
                ..Bar::new(value * 100.0, figures)
            }])
        }
        Mfu::Absent { reason } => Err(format!("no MFU: {}", reason)),
        Mfu::Error { reason } => Err(format!("MFU is impossible: {}", reason)),
    });
    picture(shown, ("MFU", subtitle), &[panels], false)
}

/// Peak memory, each kind by its name: what one counts another does not.
pub fn memory(shown: &Shown) -> Result<Canvas, String> {
    let subtitle = "The most that any counted repeat used, of one device. Bars of different names count different things: \
         allocated by the framework (solid), reserved by it (hatched), in use on the device or in the host (outline). Stroke across a bar: what the device has.";
    let panels = Panels::new("", "GiB", |cell| memory_of(cell.row));
    picture(shown, ("Peak memory", subtitle), &[panels], false)
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
        let fill = match () {
            () if kind.contains("allocated") => Fill::Solid,
            () if kind.contains("reserved") => Fill::Hatched,
            () => Fill::Outline,
        };
        let figures = format!("{}{of} {kind} ({source})", bytes(count));
        Bar {
            fill: Some(fill),
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

/// Power and energy of the measured steps, as sampled beside the runs.
pub fn power(shown: &Shown) -> Result<Canvas, String> {
    let subtitle = "GPU boards only, over the measured steps; means over the counted repeats that were sampled.";
    let panels = [
        Panels::new("Mean power of all devices of a run", "W", |cell| {
            watts(cell.row)
        }),
        Panels::new("Energy of one optimiser step, all devices", "J", |cell| {
            joules(cell.row)
        }),
    ];
    picture(shown, ("Power and energy", subtitle), &panels, false)
}

/// The mean of what is sampled of the counted repeats, each value with its source.
fn sampled_mean<'a>(
    row: &'a Row,
    value: impl Fn(&'a RepeatSummary, &'a Telemetry) -> Option<(f64, &'a str)>,
    words: impl Fn(f64, String) -> String,
) -> Option<Vec<Bar>> {
    let sampled = counted(row).filter_map(|r| value(r, r.telemetry.as_ref()?));
    let (values, mut sources): (Vec<f64>, Vec<&str>) = sampled.unzip();
    sources.dedup();
    let mean = mean(&values)?;
    let words = words(mean, sources.join(", "));
    let figures = format!("{words}, {} of {} repeats", values.len(), row.n);
    Some(vec![Bar::new(mean, figures)])
}

fn watts(row: &Row) -> Entry {
    let devices = counted(row).filter_map(|r| Some(r.telemetry.as_ref()?.devices));
    let devices = devices.max().filter(|devices| *devices > 1);
    let words = |watts: f64, sources: String| match devices {
        Some(devices) => {
            let each = number(watts / devices as f64);
            format!("{} W, {each} a device, {sources}", number(watts))
        }
        None => format!("{} W, {sources}", number(watts)),
    };
    let bars = sampled_mean(row, |_, t| Some((t.mean_power_watts?, &t.source)), words);
    bars.ok_or_else(|| "no power was sampled".to_owned())
}

fn joules(row: &Row) -> Entry {
    let words = |joules: f64, methods: String| format!("{} J ({methods})", number(joules));
    let bars = sampled_mean(
        row,
        |repeat, sampled| {
            let steps = repeat.steady.as_ref()?.steps;
            let energy = sampled.energy.as_ref().filter(|_| steps > 0)?;
            Some((energy.joules / steps as f64, &energy.method))
        },
        words,
    );
    bars.ok_or_else(|| "no energy was sampled".to_owned())
}

/// What a token costs: figures of the metrics, drawn as they stand there.
pub fn cost(shown: &Shown) -> Result<Canvas, String> {
    let names = ["dollars_per_trillion_tokens", "tokens_per_dollar"];
    let panels: Vec<Panels> = names.iter().flat_map(|name| metric(shown, name)).collect();
    if panels.is_empty() {
        return Err(why_absent(shown, names[0]));
    }
    let subtitle = "From the rate and the price of an hour of one device, as configured.";
    picture(shown, ("Cost", subtitle), &panels, false)
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

/// Each repeat's rate against the mean of its cell, also of those that do not count.
pub fn spread(shown: &Shown) -> Result<Canvas, String> {
    if shown.all.rows.is_empty() {
        return Err(NO_CELL.to_owned());
    }
    let subtitle = "Rate of each repeat against the geometric mean of its cell, in percent, which is 0; line: 95 % interval of \
         that mean. Marks of repeats that do not count show the rate that they had.";
    let mut canvas = shown.titled("Spread over repeats", subtitle, shown.workloads.len());
    let mut x = MARGIN + 6;
    for (mark, words) in [
        (Mark::Disc, "counts"),
        (Mark::Cross, "failed"),
        (Mark::Diamond, "contradicts its job"),
        (Mark::Square, "disturbed"),
        (Mark::Ring, "nothing to measure"),
    ] {
        canvas.mark(mark, (x, canvas.top + 6), INK);
        canvas.text(words, (x + 12, canvas.top), SMALL, FAINT, Anchor::Left);
        x += width_of(words, SMALL) + 44;
    }
    canvas.top += SMALL + 8;
    let entry = |cell: &Cell| Ok(vec![spread_of(cell.row)]);
    Panels::new("", "% of the cell's mean", entry).draw(&mut canvas, shown, false);
    shown.list_absent(&mut canvas);
    Ok(canvas)
}

fn spread_of(row: &Row) -> Bar {
    // Absent where either is not a rate.
    let deviation = |rate: f64| {
        let percent = (rate / row.tokens_per_second_per_gpu.value - 1.0) * 100.0;
        percent.is_finite().then_some(percent)
    };
    let interval = row.tokens_per_second_per_gpu.ci95;
    let interval = interval.and_then(|[low, high]| Some([deviation(low)?, deviation(high)?]));
    let mark = |repeat: &RepeatSummary| {
        let off = deviation(repeat.steady.as_ref()?.tokens_per_second_per_gpu)?;
        let mark = match repeat.status {
            RepeatStatus::Ok => Mark::Disc,
            RepeatStatus::Failed { .. } => Mark::Cross,
            RepeatStatus::Contradicted { .. } => Mark::Diamond,
            RepeatStatus::Suspect { .. } => Mark::Square,
            RepeatStatus::Unmeasured { .. } => Mark::Ring,
        };
        Some((mark, off.clamp(-FARTHEST, FARTHEST)))
    };
    Bar {
        interval,
        marks: row.repeats.iter().filter_map(mark).collect(),
        figures: repeats_in_words(row),
        ..Bar::default()
    }
}

/// `10,600 to 10,764 tokens/s/GPU, n = 2 of 3; #3 failed (oom)`
fn repeats_in_words(row: &Row) -> String {
    let values = &row.tokens_per_second_per_gpu.values;
    let range = match extent(values.iter().copied()) {
        Some([low, high]) if values.len() > 1 => format!("{} to {}", number(low), number(high)),
        _ => number(row.tokens_per_second_per_gpu.value),
    };
    let rate = match row.impossible() {
        Some(_) => "impossible".to_owned(),
        None => format!("{range} {}", rate_unit(std::iter::once(row))),
    };
    let mut words = format!("{rate}, n = {} of {}", row.n, row.repeats_wanted);
    let not_counted = || row.repeats.iter().filter(|r| r.status != RepeatStatus::Ok);
    for repeat in not_counted().take(NAMED) {
        let why = match &repeat.status {
            RepeatStatus::Ok => String::new(),
            RepeatStatus::Failed { class, .. } => format!("failed ({})", class.name()),
            RepeatStatus::Contradicted { fields } => format!("contradicts {}", fields.join(", ")),
            RepeatStatus::Suspect { .. } => "disturbed".to_owned(),
            RepeatStatus::Unmeasured { .. } => "unmeasured".to_owned(),
        };
        words += &format!("; #{} {why}", repeat.repeat);
    }
    let more = not_counted().count().saturating_sub(NAMED);
    if more > 0 {
        words += &format!("; {more} more do not count");
    }
    words
}

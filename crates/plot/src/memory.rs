//! Peak memory, each kind by its name: what one counts another does not.

use tprimat_figures::{RepeatStatus, Row};
use tprimat_results::GIB;

use super::{
    bars::{Bar, Entry, Fill, Panel, panels},
    canvas::Canvas,
    cell_selection::Shown,
    names::{Names, count_absent},
    throughput::bars_apart,
};
use crate::format::bytes;

pub fn memory(shown: &Shown) -> Result<Canvas, String> {
    let comparison = &shown.comparison;
    let subtitle = format!(
        "The most that any counted repeat used, of one device. Bars of different names count different things: \
         allocated by the framework (solid), reserved by it (hatched), in use on the device or in the host (outline). Stroke across a bar: what the device has.{}",
        bars_apart(comparison)
    );
    let mut canvas = shown.titled("Peak memory", &subtitle);
    let panel = Panel {
        unit: "GiB",
        roof: None,
    };
    let drawn = panels(
        &mut canvas,
        comparison,
        &Names::wide(comparison),
        &panel,
        |_, row| bars(row),
    );
    if drawn == 0 {
        return Err("no log states memory, and none was sampled".to_owned());
    }
    count_absent(&mut canvas, comparison);
    Ok(canvas)
}

fn bars(row: &Row) -> Entry {
    let of_log = row
        .memory
        .iter()
        .map(|m| (m.kind.replace('_', " "), m.source.clone(), m.bytes));
    let counted = row.repeats.iter().filter(|r| r.status == RepeatStatus::Ok);
    let sampled = counted.filter_map(|r| r.telemetry.as_ref());
    let most = sampled
        .filter_map(|t| Some((t.max_memory_used_bytes?, &t.source)))
        .max();
    let of_device = most.map(|(bytes, source)| {
        (
            "device used".to_owned(),
            format!("{source}, sampled"),
            bytes,
        )
    });
    let bar = |(kind, source, count): (String, String, u64)| {
        // Memory of the host has nothing to do with the capacity of the device.
        let roof = row.memory_capacity_bytes.filter(|_| !kind.contains("rss"));
        let of = roof.map_or_else(String::new, |roof| format!(" of {}", bytes(roof)));
        let fill = match () {
            () if kind.contains("allocated") => Some(Fill::Solid),
            () if kind.contains("reserved") => Some(Fill::Hatched),
            () => Some(Fill::Outline),
        };
        let figures = format!("{}{of} {kind} ({source})", bytes(count));
        Bar {
            fill,
            roof: roof.map(|bytes| bytes as f64 / GIB),
            ..Bar::new(count as f64 / GIB, figures)
        }
    };
    let bars: Vec<Bar> = of_log.chain(of_device).map(bar).collect();
    if bars.is_empty() {
        Err("no log states memory, and none was sampled".to_owned())
    } else {
        Ok(bars)
    }
}

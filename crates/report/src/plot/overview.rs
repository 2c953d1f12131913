//! The picture of the whole comparison: the rates of all cells, and who has none.

use tprimat_base::words::plain::counted;
use tprimat_numbers::figures::{rate_unit, sweeps};

use super::{
    canvas::Canvas,
    cells::Shown,
    rates::{BARS, rates},
    sweep,
};

pub fn overview(shown: &Shown) -> Result<Canvas, String> {
    let found = sweeps(shown.all, shown.judged());
    let workloads = shown.bar_workloads();
    let bars = (workloads > 0).then(|| BARS.to_owned());
    let all = &shown.all.speedups;
    let open = all.iter().filter(|speedup| speedup.significant.is_none());
    let (open, all) = (open.count(), all.len());
    let open = (open > 0 && workloads > 0).then(|| {
        format!(
            "No verdict on {open} of {}: the report says why.",
            counted(all, "ratio")
        )
    });
    let subtitle = sweep::caption(&found).into_iter().chain(bars).chain(open);
    let subtitle: Vec<String> = subtitle.collect();
    let title = format!("Training throughput, {}", rate_unit(shown.rows()));
    let mut canvas = shown.titled(&title, &subtitle.join(" "), workloads);
    sweep::rates(&mut canvas, shown.all, &found);
    rates(shown).draw(&mut canvas, shown);
    shown.list_absent(&mut canvas);
    Ok(canvas)
}

//! The picture of the whole comparison: the rates of all cells, and who has none.

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
    let subtitle: Vec<String> = sweep::caption(&found).into_iter().chain(bars).collect();
    let title = format!("Training throughput, {}", rate_unit(shown.rows()));
    let mut canvas = shown.titled(&title, &subtitle.join(" "), workloads);
    sweep::rates(&mut canvas, shown.all, &found);
    rates(shown).draw(&mut canvas, shown);
    shown.list_absent(&mut canvas);
    Ok(canvas)
}

//! A comparison as a picture: bars with intervals, loss and step time against step.
//!
//! One drawing code for PNG and SVG, an embedded font, no clock: the same comparison gives the same bytes everywhere.

mod bars;
mod curves;
mod style;

use plotters::prelude::*;

use crate::{
    analyze::{Comparison, RepeatStatus},
    error::{Error, Result},
};
use style::{Drawing, WIDTH, register_fonts, text, to_error};

/// The same picture in both formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub png: Vec<u8>,
    pub svg: String,
}

/// Bars a group of comparable cells, cells without figures, and the curves of all cells in the bars' colours.
pub fn plot(comparison: &Comparison) -> Result<Picture> {
    register_fonts()?;
    let size = (WIDTH, height(comparison));
    let mut svg = String::new();
    draw(&SVGBackend::with_string(&mut svg, size).into_drawing_area(), comparison)?;
    let mut pixels = vec![0; size.0 as usize * size.1 as usize * 3];
    draw(&BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area(), comparison)?;
    Ok(Picture { png: encode(&pixels, size)?, svg })
}

const TITLE: u32 = 64;
const CURVES: u32 = 440;

fn height(comparison: &Comparison) -> u32 {
    TITLE + bars::height(comparison) + if has_curves(comparison) { CURVES } else { 0 }
}

fn has_curves(comparison: &Comparison) -> bool {
    comparison
        .rows
        .iter()
        .any(|row| row.repeats.iter().any(|repeat| repeat.status == RepeatStatus::Ok && !repeat.curve.step.is_empty()))
}

fn draw<DB: DrawingBackend>(root: &Drawing<DB>, comparison: &Comparison) -> Result<()> {
    root.fill(&WHITE).map_err(to_error)?;
    text(root, "Training throughput, tokens/s/GPU", (24, 14), 26, &style::INK)?;
    let apart =
        if comparison.groups.len() > 1 { " Panels are different workloads: do not compare across them." } else { "" };
    let subtitle = format!(
        "Bars: geometric mean over repeats; whiskers: 95 % interval; n: repeats that count. Longer is faster.{apart}"
    );
    text(root, &subtitle, (24, 42), 15, &style::FAINT)?;
    let (_, below) = root.split_vertically(TITLE);
    let (upper, lower) = below.split_vertically(bars::height(comparison));
    bars::draw(&upper, comparison)?;
    if has_curves(comparison) {
        curves::draw(&lower, &comparison.rows)?;
    }
    root.present().map_err(to_error)
}

fn encode(pixels: &[u8], (width, height): (u32, u32)) -> Result<Vec<u8>> {
    let failed =
        |e: png::EncodingError| Error::Failed { message: format!("cannot encode the picture: {e}"), help: None };
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analyze::{Catalogue, CellInput, CellState, CompareSettings, compare, tests::*},
        parse::FailureClass,
    };

    /// Steps that settle after a slow start, with a ripple that differs from repeat to repeat.
    fn times(seconds: f64, repeat: usize) -> Vec<f64> {
        let ripple = |i: usize| ((i * 7 + repeat * 13) % 11) as f64 / 11.0 - 0.5;
        (0..60)
            .map(|i| seconds * (1.0 + 6.0 * (-(i as f64)).exp() + 0.04 * ripple(i) + 0.004 * repeat as f64))
            .collect()
    }

    fn cells() -> Vec<CellInput> {
        let cell_of = |name: &str, job: &crate::plan::Job, seconds: f64, repeats: usize| {
            let runs: Vec<Vec<f64>> = (0..repeats).map(|r| times(seconds, r)).collect();
            measured_steps(name, job, &runs, Some(("cuda", "NVIDIA H100 80GB HBM3")))
        };
        let mut fp8 = test_job();
        fp8.precision = "fp8".into();
        let mut small = test_job();
        small.data.seq_length = 64;
        let out_of_memory = vec!["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.2 GiB is free".to_owned()];
        vec![
            cell_of(
                "nvd/native/llama-3.1-70b-proxy/maximum_performance@precision=bf16,seq_length=128",
                &test_job(),
                0.0005,
                3,
            ),
            cell_of(
                "nvd/tran/llama-3.1-70b-proxy/maximum_performance@precision=bf16,seq_length=128",
                &test_job(),
                0.0007,
                3,
            ),
            cell_of("nvd/tran/llama-3.1-70b-proxy/maximum_performance@precision=fp8,seq_length=128", &fp8, 5.0, 2),
            cell_of("nvd/tran/llama-3.1-70b-proxy/maximum_performance@precision=bf16,seq_length=64", &small, 0.2, 1),
            cell(
                "nvd/fsdp/llama-3.1-70b-proxy/maximum_performance",
                CellState::Failed { class: FailureClass::Oom, evidence: out_of_memory },
            ),
        ]
    }

    fn picture(cells: &[CellInput]) -> Picture {
        plot(&compare(cells, &CompareSettings::default(), &Catalogue::default())).unwrap()
    }

    #[test]
    fn same_comparison_same_bytes_and_every_cell_is_named() {
        let cells = cells();
        let first = picture(&cells);
        assert_eq!(first, picture(&cells));
        assert!(first.png.starts_with(b"\x89PNG"));
        for cell in &cells {
            assert!(first.svg.contains(&cell.cell), "{}", cell.cell);
        }
        assert!(first.svg.contains("precision: fp8, not bf16"));
    }

    #[test]
    fn nothing_to_draw_is_still_a_picture() {
        assert!(picture(&[]).svg.contains("Training throughput"));
        let one = measured("cpu/native/tiny/single", &test_job(), &[0.25], None);
        assert!(picture(&[one]).png.len() > 1000);
    }
}

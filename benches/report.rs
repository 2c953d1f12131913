//! What pictures cost, by the number of cells: `cargo bench --bench report`. With a folder as
//! argument, the pictures are left there, to be looked at: `cargo bench --bench report -- FOLDER`.

use std::time::Instant;

use tprimat::{
    figures::Comparison,
    report::{bytes, pictures},
};

mod common;
use common::{folder, leave, samples};

fn main() {
    let folder = folder();
    for (name, sample) in samples() {
        let comparison: Comparison =
            serde_json::from_value(sample.json()).expect("the sample is a comparison");
        let start = Instant::now();
        let all = pictures(&comparison).expect("a picture");
        let seconds = start.elapsed().as_secs_f64();
        let svg: usize = all.drawn.iter().map(|p| p.svg.len()).sum();
        let png: usize = all.drawn.iter().map(|p| p.png.len()).sum();
        println!(
            "{name} cells: {} pictures in {seconds:.3} s; SVG {}, PNG {}",
            all.drawn.len(),
            bytes(svg as u64),
            bytes(png as u64)
        );
        for picture in &all.drawn {
            println!(
                "    {:<12} {:>10} {:>10}",
                picture.name,
                bytes(picture.svg.len() as u64),
                bytes(picture.png.len() as u64)
            );
            if let Some(folder) = &folder {
                leave(
                    folder,
                    name,
                    &format!("_{}.png", picture.file()),
                    &picture.png,
                );
                leave(
                    folder,
                    name,
                    &format!("_{}.svg", picture.file()),
                    picture.svg.as_bytes(),
                );
            }
        }
        for left_out in &all.left_out {
            println!("    {} is left out: {}", left_out.name, left_out.reason);
        }
    }
}

//! What pictures cost, by the number of cells: `cargo bench --bench report`. With a folder as argument, the pictures are
//! left there, to be looked at: `cargo bench --bench report -- FOLDER`.

use std::{path::PathBuf, time::Instant};

use tprimat::{
    analyze::Comparison,
    report::{bytes, pictures},
};

#[path = "../src/report/plot/sample.rs"]
mod sample;
use sample::Sample;

fn main() {
    let folder = std::env::args().skip(1).find(|a| !a.starts_with("--")).map(PathBuf::from);
    let plain = Sample { cells: 60, groups: 1, repeats: 5, steps: 500, scale: 1.0, troubled: false };
    for (name, sample) in [
        ("2", Sample { cells: 2, repeats: 3, ..plain }),
        ("8 troubled", Sample { cells: 8, groups: 2, troubled: true, ..plain }),
        ("40 troubled", Sample { cells: 40, groups: 2, troubled: true, ..plain }),
        ("60", plain),
    ] {
        let comparison: Comparison = serde_json::from_value(sample.json()).expect("the sample is a comparison");
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
                let file = folder.join(format!("{}_{}", name.replace(' ', "_"), picture.file()));
                write(file.with_extension("png"), &picture.png);
                write(file.with_extension("svg"), picture.svg.as_bytes());
            }
        }
        for left_out in &all.left_out {
            println!("    {} is left out: {}", left_out.name, left_out.reason);
        }
    }
}

fn write(path: PathBuf, bytes: &[u8]) {
    tprimat::files::write_atomically(&path, bytes, tprimat::files::Durability::Plain).expect("the folder is writable");
}

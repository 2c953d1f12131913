//! Tables, pictures and page of comparisons that were published earlier, in today's words:
//!
//!     cargo run --example render docs/measured/native-h200
//!
//! Figures are those of compare.json, which stays as it is; so are the notes in it.
#![allow(clippy::disallowed_methods, reason = "writes documents, not results")]

use std::{env, error::Error, fs, path::Path};

use tprimat::{
    analyze::Comparison,
    report::{self, Drawn, Meta, Page},
};

fn main() -> Result<(), Box<dyn Error>> {
    for folder in env::args().skip(1) {
        render(Path::new(&folder)).map_err(|e| format!("{folder}: {e}"))?;
    }
    Ok(())
}

fn render(folder: &Path) -> Result<(), Box<dyn Error>> {
    let comparison: Comparison = serde_json::from_slice(&fs::read(folder.join("compare.json"))?)?;
    let write = |name: &str, text: &str| {
        // Only what was published there: not every folder has every file.
        let path = folder.join(name);
        if path.exists() { fs::write(path, text) } else { Ok(()) }
    };
    write("compare.txt", &report::table(&comparison, &Page::file()))?;
    write("compare.md", &report::markdown(&comparison))?;
    write("compare.csv", &report::csv(&comparison))?;
    write("compare_repeats.csv", &report::csv_repeats(&comparison))?;
    let pictures = report::pictures(&comparison)?;
    let drawn: Vec<Drawn> = pictures.drawn.iter().map(|p| Drawn::new(&p.file(), p.svg.clone())).collect();
    let matrix = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    write("report.html", &report::html(&comparison, &drawn, &Meta { matrix, left_out: pictures.left_out })?)?;
    for picture in &pictures.drawn {
        let path = folder.join(format!("{}.png", picture.file()));
        if path.exists() {
            fs::write(path, &picture.png)?;
        }
    }
    Ok(())
}

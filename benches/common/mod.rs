//! What the benchmarks of pictures and pages share: their samples, and a folder to leave files in.

use std::path::{Path, PathBuf};

use tprimat::files::{Durability, write_atomically};

#[path = "../../crates/report/src/plot/sample_for_tests.rs"]
mod sample;
pub use sample::Sample;

/// The folder that was named as argument.
pub fn folder() -> Option<PathBuf> {
    std::env::args()
        .skip(1)
        .find(|a| !a.starts_with("--"))
        .map(PathBuf::from)
}

/// From few cells to many, each with a name.
pub fn samples() -> [(&'static str, Sample); 5] {
    let plain = Sample {
        cells: 60,
        groups: 1,
        repeats: 5,
        steps: 500,
        scale: 1.0,
        troubled: false,
    };
    [
        (
            "2",
            Sample {
                cells: 2,
                repeats: 3,
                ..plain
            },
        ),
        (
            "8 troubled",
            Sample {
                cells: 8,
                groups: 2,
                troubled: true,
                ..plain
            },
        ),
        (
            "40 troubled",
            Sample {
                cells: 40,
                groups: 2,
                troubled: true,
                ..plain
            },
        ),
        (
            "60 troubled",
            Sample {
                troubled: true,
                ..plain
            },
        ),
        ("60", plain),
    ]
}

/// Leaves `file` of the sample of this name in `folder`.
pub fn leave(folder: &Path, name: &str, file: &str, bytes: &[u8]) {
    let path = folder.join(format!("{}{file}", name.replace(' ', "_")));
    write_atomically(&path, bytes, Durability::Plain).expect("the folder is writable");
}

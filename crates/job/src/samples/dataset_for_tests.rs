//! Writes datasets for tests. Other crates include this file in their tests as well, so it names this
//! crate as they do.
#![allow(
    clippy::disallowed_methods,
    reason = "plays the user, who has files of any kind"
)]

use std::{fs, path::Path};

use tprimat_job::samples::{Dataset, Dtype, MAGIC, VERSION};

/// Writes PREFIX.idx and PREFIX.bin, and the folders above them, in place of what is there. A
/// document is a list of sequences.
pub fn write_dataset(prefix: &Path, dtype: Dtype, documents: &[Vec<Vec<i64>>]) {
    let sequences: Vec<&Vec<i64>> = documents.iter().flatten().collect();
    let mut idx = MAGIC.to_vec();
    idx.extend(VERSION.to_le_bytes());
    idx.push(dtype.code());
    idx.extend((sequences.len() as u64).to_le_bytes());
    idx.extend((documents.len() as u64 + 1).to_le_bytes());
    for sequence in &sequences {
        idx.extend((sequence.len() as i32).to_le_bytes());
    }
    let mut bin = Vec::new();
    for sequence in &sequences {
        idx.extend((bin.len() as i64).to_le_bytes());
        for token in *sequence {
            // Two's complement: the low bytes are the number in the smaller type.
            bin.extend(&token.to_le_bytes()[..dtype.size()]);
        }
    }
    let mut end = 0_i64;
    idx.extend(end.to_le_bytes());
    for document in documents {
        end += document.len() as i64;
        idx.extend(end.to_le_bytes());
    }
    for (path, bytes) in Dataset::paths(prefix).iter().zip([idx, bin]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(path);
        fs::write(path, bytes).unwrap();
    }
}

//! Any `.idx`, beside a `.bin` of the size that it describes or of another one: counted, verified
//! and sampled.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tprimat::{
    data::{Index, Samples, verify, verify_sampled},
    files::{Durability, write_atomically},
};

static PREFIX: LazyLock<std::path::PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("tprimat-fuzz-idx-{}", std::process::id())));

fuzz_target!(|data: &[u8]| {
    let [size, length, vocabulary, idx @ ..] = data else { return };
    let Ok(index) = Index::parse(idx) else { return };
    assert_eq!(index.lengths().len(), index.pointers().len());
    let described = index.end_of_tokens().filter(|end| *end <= 1 << 16 && size & 1 == 0);
    let size = described.map_or(usize::from(*size), |end| end as usize);
    let bin: Vec<u8> = idx.iter().rev().copied().cycle().take(size).collect();
    for (extension, bytes) in [("idx", idx), ("bin", &bin)] {
        write_atomically(&PREFIX.with_extension(extension), bytes, Durability::Plain).expect("a folder to write to");
    }
    let (length, vocabulary) = (u64::from(*length), u64::from(*vocabulary));
    let report = verify(&PREFIX, Some(vocabulary)).expect("the header was read before");
    assert_eq!(report.sequences, index.num_sequences() as u64);
    let sampled = verify_sampled(&PREFIX, vocabulary, length).expect("the header was read before");
    if let Ok(samples) = Samples::open(&PREFIX, length) {
        assert_eq!(samples.sample(u64::MAX).len() as u64, length);
        assert!(sampled.is_empty() || !report.problems.is_empty(), "a sampled check finds no more than a whole one");
    }
});

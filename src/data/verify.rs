//! What is wrong with a dataset, and what it holds.

use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;

use super::{Dataset, Dtype, Index};
use crate::error::Result;

/// Bytes that one thread looks at before it takes the next ones; whole tokens of every type.
const PART: usize = 8 << 20;
/// Stretches that a sampled check reads, and tokens in each.
const STRETCHES: usize = 256;
const STRETCH: usize = 4096;

/// What a dataset holds, and all that is wrong with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub dtype: &'static str,
    pub sequences: u64,
    /// Real ones: one less than the header's count, which is that of the table.
    pub documents: u64,
    pub tokens: u64,
    pub bytes: u64,
    /// No error: they are skipped.
    pub empty_sequences: u64,
    pub empty_documents: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_token: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_token: Option<i64>,
    pub problems: Vec<String>,
}

/// Looks at everything. An error only where the files cannot be read as a dataset at all.
pub fn verify(prefix: &Path, vocab_size: Option<u64>) -> Result<Report> {
    let dataset = super::open(prefix)?;
    let mut report = structure(&dataset);
    let dtype = dataset.index().dtype();
    if dtype.is_integer() {
        let ranges = dataset
            .bin()
            .par_chunks(PART)
            .filter_map(|part| range(dtype, part));
        if let Some((min, max)) = ranges.reduce_with(|a, b| (a.0.min(b.0), a.1.max(b.1))) {
            (report.min_token, report.max_token) = (Some(min), Some(max));
            report.problems.extend(out_of_range(min, max, vocab_size));
        }
    }
    Ok(report)
}

/// A check of milliseconds: the ends of both files, and tokens from all over. What is wrong, if
/// anything.
pub fn verify_sampled(prefix: &Path, vocab_size: u64, seq_length: u64) -> Result<Vec<String>> {
    let dataset = super::open(prefix)?;
    let (index, bin) = (dataset.index(), dataset.bin());
    let dtype = index.dtype();
    let mut problems: Vec<String> = [wrong_type(dtype), wrong_size(&index, bin)]
        .into_iter()
        .flatten()
        .collect();
    if !problems.is_empty() {
        return Ok(problems);
    }
    let tokens = bin.len() / dtype.size();
    if (tokens as u64) < seq_length {
        problems.push(format!(
            "it has {tokens} tokens, less than one sequence of {seq_length}"
        ));
    }
    let between = tokens.saturating_sub(STRETCH) / STRETCHES;
    let stretch = |i: usize| {
        let first = i * between * dtype.size();
        range(
            dtype,
            &bin[first..bin.len().min(first + STRETCH * dtype.size())],
        )
    };
    let last = range(
        dtype,
        &bin[bin.len().saturating_sub(STRETCH * dtype.size())..],
    );
    if let Some((min, max)) = (0..STRETCHES)
        .filter_map(stretch)
        .chain(last)
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    {
        problems.extend(out_of_range(min, max, Some(vocab_size)));
    }
    Ok(problems)
}

/// Everything but the tokens themselves.
pub(super) fn structure(dataset: &Dataset) -> Report {
    let (index, bin) = (dataset.index(), dataset.bin());
    let dtype = index.dtype();
    let mut problems: Vec<String> = wrong_type(dtype).into_iter().collect();
    if index.num_trailing_bytes() > 0 {
        problems.push(format!(
            "the .idx has {} bytes after its last table",
            index.num_trailing_bytes()
        ));
    }
    let mut negative = Places::default();
    let mut misplaced = Places::default();
    let (mut tokens, mut empty) = (0u64, 0u64);
    // Where the next one must begin, as long as the lengths say.
    let mut expected = Some(0i64);
    for (sequence, (length, pointer)) in index.lengths().zip(index.pointers()).enumerate() {
        if let Some(expected) = expected.filter(|expected| *expected != pointer) {
            misplaced.add(sequence, || {
                format!("at byte {pointer}, by the lengths before it {expected}")
            });
        }
        let Ok(length) = u64::try_from(length) else {
            negative.add(sequence, || format!("{length} tokens"));
            expected = None;
            continue;
        };
        empty += u64::from(length == 0);
        tokens = tokens.saturating_add(length);
        let bytes = i64::try_from(length * dtype.size() as u64).ok();
        expected = expected
            .zip(bytes)
            .and_then(|(begin, bytes)| begin.checked_add(bytes));
    }
    problems.extend(negative.problem("sequences have a negative length"));
    problems.extend(misplaced.problem("sequences are out of place"));
    problems.extend(wrong_size(&index, bin));
    let empty_documents = documents(&index, &mut problems);
    Report {
        dtype: dtype.name(),
        sequences: index.num_sequences() as u64,
        documents: index.num_documents() as u64,
        tokens,
        bytes: bin.len() as u64,
        empty_sequences: empty,
        empty_documents,
        min_token: None,
        max_token: None,
        problems,
    }
}

fn wrong_type(dtype: Dtype) -> Option<String> {
    (!dtype.is_integer()).then(|| {
        format!(
            "its numbers are {}, and tokens are whole numbers",
            dtype.name()
        )
    })
}

fn wrong_size(index: &Index, bin: &[u8]) -> Option<String> {
    let described = index.end_of_tokens();
    match described {
        Some(end) if end == bin.len() as u64 => None,
        Some(end) => Some(format!(
            "the .bin has {} bytes, the .idx describes {end}",
            bin.len()
        )),
        None => Some("the last sequence of the .idx has no place in a .bin".to_owned()),
    }
}

/// Checks the document table; the number of documents without a sequence.
fn documents(index: &Index, problems: &mut Vec<String>) -> u64 {
    let sequences = index.num_sequences() as u64;
    let Some(first) = index.document_indices().next() else {
        problems
            .push("the document table is empty; even one of no document begins with 0".to_owned());
        return 0;
    };
    if first != 0 {
        problems.push(format!("the document table begins with {first}, not 0"));
    }
    let mut falling = Places::default();
    let mut empty = 0;
    for (document, (begin, end)) in index
        .document_indices()
        .zip(index.document_indices().skip(1))
        .enumerate()
    {
        empty += u64::from(begin == end);
        if end < begin {
            falling.add(document, || format!("from sequence {begin} to {end}"));
        }
    }
    problems.extend(falling.problem("documents end before they begin"));
    let last = index.document_indices().next_back().unwrap_or(first);
    if u64::try_from(last) != Ok(sequences) {
        problems.push(format!(
            "the document table ends at sequence {last}, there are {sequences}"
        ));
    }
    empty
}

fn out_of_range(min: i64, max: i64, vocab_size: Option<u64>) -> Vec<String> {
    let mut problems = Vec::new();
    if min < 0 {
        problems.push(format!("the smallest token is {min}"));
    }
    if let Some(vocab_size) = vocab_size
        && u64::try_from(max).is_ok_and(|max| max >= vocab_size)
    {
        problems.push(format!(
            "the largest token is {max}, the vocabulary has {vocab_size}"
        ));
    }
    problems
}

/// Smallest and largest token.
fn range(dtype: Dtype, bytes: &[u8]) -> Option<(i64, i64)> {
    let (mut min, mut max) = (i64::MAX, i64::MIN);
    dtype.decode(bytes, |token| {
        min = min.min(token);
        max = max.max(token);
    });
    (min <= max).then_some((min, max))
}

/// The same thing wrong in many places: the first one and how many.
#[derive(Default)]
struct Places {
    first: Option<(usize, String)>,
    count: usize,
}

impl Places {
    fn add(&mut self, place: usize, how: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.is_none() {
            self.first = Some((place, how()));
        }
    }
    fn problem(self, what: &str) -> Option<String> {
        let (place, how) = self.first?;
        Some(format!(
            "{what}: {}, the first one is number {place} ({how})",
            self.count
        ))
    }
}

#[cfg(test)]
mod tests {
    use tprimat_job::samples::HEADER;

    use super::*;
    use crate::{
        dataset_for_tests::write_dataset,
        files::{self, Durability},
    };

    /// Three documents of 5, 0 and 3 tokens (dtype uint16), in one folder.
    fn written() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let documents = [vec![1, 2, 3, 4, 5], vec![], vec![7, 8, 9]];
        let prefix = folder.path().join("d");
        write_dataset(&prefix, Dtype::U16, &documents.map(|one| vec![one]));
        folder
    }

    /// What is told after `change` was done to the .idx.
    fn told(change: impl FnOnce(&mut Vec<u8>)) -> Vec<String> {
        let folder = written();
        let path = folder.path().join("d.idx");
        let mut bytes = files::read(&path).unwrap();
        change(&mut bytes);
        files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
        verify(&folder.path().join("d"), Some(10)).unwrap().problems
    }

    #[test]
    fn a_good_dataset_is_counted_and_nothing_is_wrong() {
        let folder = written();
        let report = verify(&folder.path().join("d"), Some(10)).unwrap();
        let expected = Report {
            dtype: "uint16",
            sequences: 3,
            documents: 3,
            tokens: 8,
            bytes: 16,
            empty_sequences: 1,
            empty_documents: 0,
            min_token: Some(1),
            max_token: Some(9),
            problems: vec![],
        };
        assert_eq!(report, expected);
        assert_eq!(
            verify_sampled(&folder.path().join("d"), 10, 8).unwrap(),
            Vec::<String>::new()
        );
        assert_eq!(
            verify_sampled(&folder.path().join("d"), 9, 9)
                .unwrap()
                .len(),
            2
        );
        let small = verify(&folder.path().join("d"), Some(9)).unwrap();
        assert_eq!(
            small.problems,
            ["the largest token is 9, the vocabulary has 9"]
        );
    }

    #[test]
    fn a_dataset_without_a_document_is_a_good_one() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("d");
        write_dataset(&prefix, Dtype::U16, &[]);
        let report = verify(&prefix, None).unwrap();
        assert_eq!(
            (report.documents, report.tokens, report.problems),
            (0, 0, vec![])
        );
    }

    #[test]
    fn each_fault_is_told_and_only_that_one() {
        let (lengths, pointers, documents) = (HEADER, HEADER + 12, HEADER + 36);
        let one = |problems: Vec<String>, part: &str| {
            assert!(
                problems.len() == 1 && problems[0].contains(part),
                "{part}: {problems:?}"
            );
        };
        one(
            told(|idx| idx[pointers + 8] = 12),
            "1, the first one is number 1 (at byte 12",
        );
        one(told(|idx| idx[documents] = 1), "begins with 1");
        one(told(|idx| idx[documents + 8] = 3), "from sequence 3 to 2");
        one(
            told(|idx| idx[documents + 24] = 2),
            "ends at sequence 2, there are 3",
        );
        one(told(|idx| idx.extend([0; 4])), "4 bytes after");
        one(
            told(|idx| idx[lengths + 8] = 4),
            "16 bytes, the .idx describes 18",
        );
        let negative = told(|idx| idx[lengths + 7] = 0x80);
        assert!(
            negative
                .iter()
                .any(|p| p.starts_with("sequences have a negative length: 1")),
            "{negative:?}"
        );
        let float = told(|idx| idx[17] = 7);
        assert!(float.iter().any(|p| p.contains("float32")), "{float:?}");
    }

    #[test]
    fn a_bin_that_is_cut_is_told() {
        let folder = written();
        let path = folder.path().join("d.bin");
        for size in [0, 7, 15] {
            let bytes = files::read(&path).unwrap();
            files::write_atomically(&path, &bytes[..size], Durability::Plain).unwrap();
            let problems = verify(&folder.path().join("d"), None).unwrap().problems;
            assert_eq!(
                problems,
                [format!("the .bin has {size} bytes, the .idx describes 16")]
            );
            assert_eq!(
                verify_sampled(&folder.path().join("d"), 10, 1)
                    .unwrap()
                    .len(),
                1
            );
            files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
        }
    }

    mod damaged {
        use proptest::prelude::*;

        use super::*;

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(64))]

            #[test]
            fn no_damage_makes_it_panic(changes in proptest::collection::vec((17usize..90, any::<u8>()), 1..6), cut in 0usize..90) {
                let folder = written();
                let path = folder.path().join("d.idx");
                let mut bytes = files::read(&path).unwrap();
                for (at, byte) in changes {
                    if let Some(old) = bytes.get_mut(at) {
                        *old = byte;
                    }
                }
                bytes.truncate(bytes.len().max(cut));
                files::write_atomically(&path, &bytes, Durability::Plain).unwrap();
                let prefix = folder.path().join("d");
                let _ = (verify(&prefix, Some(10)), verify_sampled(&prefix, 10, 2), crate::data::fingerprint(&prefix));
                let _ = crate::data::Samples::open(&prefix, 2).map(|s| s.sample(5));
            }
        }
    }
}

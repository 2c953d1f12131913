//! The order in which trainers see a dataset. recipes/lib/data.py does the same; a test compares
//! the two.
//!
//! The tokens of all documents stand one after the other, as they do in the `.bin`; they are cut
//! into sequences of `seq_length`, and what is left at the end is not used. Sample i of a run is
//! sequence i modulo their number: in order, and from the start again when they are all used. As
//! with synthetic tokens, the target of each position is the token after it, and the last position
//! of a sequence has none.

use std::path::Path;

use crate::samples::{Dataset, Dtype, Error};

pub struct Samples {
    dataset: Dataset,
    seq_length: usize,
    /// Whole sequences that the dataset has.
    count: u64,
}

impl Samples {
    pub fn open(prefix: &Path, seq_length: u64) -> Result<Self, Error> {
        let dataset = Dataset::open(prefix)?;
        let index = dataset.index();
        let refuse = |why: String| Error::Untrainable {
            prefix: dataset.prefix().to_owned(),
            why,
        };
        let size = dataset.bin().len() as u64;
        if !index.dtype().is_integer() {
            return Err(refuse(format!("its numbers are {}", index.dtype().name())));
        }
        if index.end_of_tokens() != Some(size)
            || index.pointers().next().is_some_and(|first| first != 0)
        {
            return Err(refuse("its .bin is not what its .idx describes".to_owned()));
        }
        let tokens = size / index.dtype().size() as u64;
        let Some(count) = tokens.checked_div(seq_length).filter(|count| *count > 0) else {
            return Err(refuse(format!(
                "it has {tokens} tokens, less than one sequence of {seq_length}"
            )));
        };
        // Not longer than the file, so it fits.
        let seq_length = seq_length as usize;
        Ok(Self {
            dataset,
            seq_length,
            count,
        })
    }

    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dataset.index().dtype()
    }
    /// Tokens of the dataset, those that no sequence uses included.
    #[must_use]
    pub fn num_tokens(&self) -> u64 {
        (self.dataset.bin().len() / self.dtype().size()) as u64
    }
    /// How often `samples` of them go through the dataset; above 1 something is seen again.
    #[must_use]
    pub fn epochs(&self, samples: u64) -> f64 {
        samples as f64 / self.count as f64
    }
    /// The tokens of sample `number` of a run.
    #[must_use]
    pub fn sample(&self, number: u64) -> Vec<i64> {
        let bytes = self.seq_length * self.dtype().size();
        // Below the count, so within the file.
        let first = (number % self.count) as usize * bytes;
        let mut tokens = Vec::with_capacity(self.seq_length);
        self.dtype()
            .decode(&self.dataset.bin()[first..first + bytes], |token| {
                tokens.push(token)
            });
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::dataset_for_tests::write_dataset;

    #[test]
    fn sequences_run_on_over_documents_and_begin_again_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("d");
        let documents = [vec![1, 2, 3], vec![4, 5], vec![], vec![6, 7, 70_000]];
        write_dataset(&prefix, Dtype::I32, &documents.map(|one| vec![one]));
        let samples = Samples::open(&prefix, 3).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|i| samples.sample(i)),
            [[1, 2, 3], [4, 5, 6], [1, 2, 3], [4, 5, 6]]
        );
        assert_eq!((samples.num_tokens(), samples.epochs(3)), (8, 1.5));
        assert_eq!(Samples::open(&prefix, 8).unwrap().sample(0)[7], 70_000);
        for length in [9, 0, u64::MAX] {
            assert!(matches!(
                Samples::open(&prefix, length),
                Err(Error::Untrainable { .. })
            ));
        }
    }
}

//! What is trained on: a dataset, or synthetic tokens, which are a pure function of (seed,
//! sequence, position), the same in every trainer of ours.
//!
//! Each synthetic sequence is a splitmix64 stream of its own. A token is `vocab_size * u^4` for a
//! uniform `u`, so the data can be learned: the loss starts near ln(vocab_size) and can fall by
//! about 1.6.

use std::path::Path;

use serde_json::{Map, Value};
use tprimat_job::Job;
use tprimat_job::samples::{Error, Samples};

use crate::stop::Stop;

const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// The target of the last position, which has no next token; cross entropy leaves it out.
pub const IGNORED: i64 = -100;

/// splitmix64's finaliser, a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `length` tokens of one sequence; `vocab_size` is below 2^32.
pub fn sequence(
    seed: u64,
    sequence: u64,
    length: u64,
    vocab_size: u64,
) -> impl Iterator<Item = i64> {
    let stream = mix(mix(seed).wrapping_add(GAMMA.wrapping_mul(sequence.wrapping_add(1))));
    (1..=length).map(move |position| {
        let u = mix(stream.wrapping_add(GAMMA.wrapping_mul(position))) >> 32;
        let squared = (u * u) >> 32;
        let fourth = (squared * squared) >> 32;
        ((fourth * vocab_size) >> 32) as i64
    })
}

/// Where the sequences of a run come from.
pub enum Tokens {
    Synthetic { seed: u64, length: u64 },
    Dataset { name: String, samples: Samples },
}

impl Tokens {
    /// `dataset`: the prefix of the job's dataset, where it has one.
    pub fn of(job: &Job, dataset: Option<&Path>) -> Result<Self, Stop> {
        let length = job.data.seq_length;
        let Some(name) = &job.model.dataset else {
            return Ok(Self::Synthetic {
                seed: job.seed,
                length,
            });
        };
        let Some(prefix) = dataset else {
            return Err(Stop::Data(format!(
                "$TPRIMAT_DATASET does not say where `{name}` is"
            )));
        };
        let told = |error: Error| Stop::Data(error.to_string());
        Ok(Self::Dataset {
            name: name.clone(),
            samples: Samples::open(prefix, length).map_err(told)?,
        })
    }

    /// Inputs and next-token targets of the sequences `first..first + rows`, row after row.
    pub fn batch(
        &self,
        first: u64,
        rows: u64,
        vocab_size: u64,
    ) -> Result<(Vec<i64>, Vec<i64>), Stop> {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for row in first..first + rows {
            let tokens = match self {
                Self::Synthetic { seed, length } => {
                    sequence(*seed, row, *length, vocab_size).collect()
                }
                Self::Dataset { samples, .. } => samples.sample(row),
            };
            // A GPU would end the whole process over it, without saying which one.
            if let Some(token) = tokens
                .iter()
                .find(|t| u64::try_from(**t).map_or(true, |t| t >= vocab_size))
            {
                return Err(Stop::Data(format!(
                    "sample {row} has the token {token}, the vocabulary {vocab_size}"
                )));
            }
            targets.extend(tokens.iter().skip(1).chain([&IGNORED]));
            inputs.extend(tokens);
        }
        Ok((inputs, targets))
    }

    /// What the start event says of them, for a run of so many samples.
    pub fn effective(&self, samples_of_run: u64) -> Map<String, Value> {
        let fields: Vec<(&str, Value)> = match self {
            Self::Synthetic { .. } => vec![("data", "random".into())],
            Self::Dataset { name, samples } => vec![
                ("data", "real".into()),
                ("dataset", name.as_str().into()),
                ("dataset_tokens", samples.num_tokens().into()),
                ("data_epochs", samples.epochs(samples_of_run).into()),
            ],
        };
        fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use tprimat_job::samples::Dtype;

    use super::*;
    use crate::dataset_for_tests::write_dataset;

    #[test]
    fn the_values_are_fixed() {
        // recipes/tran/train.py generates the same ones; tests/parity compares the two.
        assert_eq!(
            sequence(1234, 0, 6, 1000).collect::<Vec<_>>(),
            [0, 133, 658, 278, 174, 9]
        );
        assert_eq!(
            sequence(1234, 7, 6, 1000).collect::<Vec<_>>(),
            [441, 367, 15, 835, 1, 189]
        );
    }

    #[test]
    fn targets_are_the_next_tokens() {
        let (inputs, targets) = Tokens::Synthetic { seed: 1, length: 4 }
            .batch(5, 2, 50)
            .unwrap();
        assert_eq!(inputs.len(), 8);
        assert_eq!((&targets[..3], targets[3]), (&inputs[1..4], IGNORED));
        assert_eq!((&targets[4..7], targets[7]), (&inputs[5..8], IGNORED));
        assert_eq!(&inputs[4..], sequence(1, 6, 4, 50).collect::<Vec<_>>());
    }

    #[test]
    fn a_dataset_is_read_in_order_and_a_token_beyond_the_vocabulary_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("d");
        write_dataset(&prefix, Dtype::U16, &[vec![vec![1, 2, 3, 4, 5]]]);
        let mut job = Job::default();
        job.data.seq_length = 2;
        job.model.dataset = Some("d".into());
        assert!(matches!(Tokens::of(&job, None), Err(Stop::Data(_))));
        assert!(matches!(
            Tokens::of(&job, Some(folder.path())),
            Err(Stop::Data(_))
        ));
        let tokens = Tokens::of(&job, Some(&prefix)).unwrap();
        let (inputs, targets) = tokens.batch(0, 3, 6).unwrap();
        assert_eq!(
            (inputs, targets),
            (
                vec![1, 2, 3, 4, 1, 2],
                vec![2, IGNORED, 4, IGNORED, 2, IGNORED]
            )
        );
        assert!(
            tokens
                .batch(1, 1, 4)
                .unwrap_err()
                .to_string()
                .contains("sample 1 has the token 4")
        );
        assert_eq!(tokens.effective(3)["data_epochs"], 1.5);
    }

    #[test]
    fn tokens_follow_the_fourth_power() {
        let tokens: Vec<i64> = (0..64).flat_map(|s| sequence(9, s, 512, 10_000)).collect();
        assert!(tokens.iter().all(|t| (0..10_000).contains(t)));
        // P(token < V/16) = (1/16)^(1/4) = 1/2
        let low = tokens.iter().filter(|t| **t < 625).count() as f64 / tokens.len() as f64;
        assert!((low - 0.5).abs() < 0.01, "{low}");
    }
}

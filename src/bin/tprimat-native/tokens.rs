//! Synthetic tokens: a pure function of (seed, sequence, position), the same in every trainer of ours.
//!
//! Each sequence is a splitmix64 stream of its own. A token is `vocab_size * u^4` for a uniform `u`,
//! so the data can be learned: the loss starts near ln(vocab_size) and can fall by about 1.6.

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
pub fn sequence(seed: u64, sequence: u64, length: u64, vocab_size: u64) -> impl Iterator<Item = i64> {
    let stream = mix(mix(seed).wrapping_add(GAMMA.wrapping_mul(sequence.wrapping_add(1))));
    (1..=length).map(move |position| {
        let u = mix(stream.wrapping_add(GAMMA.wrapping_mul(position))) >> 32;
        let squared = (u * u) >> 32;
        let fourth = (squared * squared) >> 32;
        ((fourth * vocab_size) >> 32) as i64
    })
}

/// Inputs and next-token targets of the sequences `first..first + rows`, row after row.
pub fn batch(seed: u64, first: u64, rows: u64, length: u64, vocab_size: u64) -> (Vec<i64>, Vec<i64>) {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in first..first + rows {
        let tokens: Vec<i64> = sequence(seed, row, length, vocab_size).collect();
        targets.extend(tokens.iter().skip(1).chain([&IGNORED]));
        inputs.extend(tokens);
    }
    (inputs, targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_are_fixed() {
        // recipes/tran/train.py generates the same ones; tests/parity compares the two.
        assert_eq!(sequence(1234, 0, 6, 1000).collect::<Vec<_>>(), [0, 133, 658, 278, 174, 9]);
        assert_eq!(sequence(1234, 7, 6, 1000).collect::<Vec<_>>(), [441, 367, 15, 835, 1, 189]);
    }

    #[test]
    fn targets_are_the_next_tokens() {
        let (inputs, targets) = batch(1, 5, 2, 4, 50);
        assert_eq!(inputs.len(), 8);
        assert_eq!((&targets[..3], targets[3]), (&inputs[1..4], IGNORED));
        assert_eq!((&targets[4..7], targets[7]), (&inputs[5..8], IGNORED));
        assert_eq!(&inputs[4..], sequence(1, 6, 4, 50).collect::<Vec<_>>());
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

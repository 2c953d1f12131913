//! Words for people: text of strangers made harmless, secrets left out, the name that was probably
//! meant.

use std::slice::SliceIndex;

pub mod plain;
pub mod secret;

/// A part of a text; empty where the range does not lie within it or would cut a character in two.
///
/// Readers of foreign text take it by byte positions that they found. One that is wrong may cost
/// them a figure, never the whole command.
#[must_use]
pub fn part(text: &str, range: impl SliceIndex<str, Output = str>) -> &str {
    text.get(range).unwrap_or_default()
}

/// The name of which `typed` is a slip: another case, two letters swapped, one missing or too many, or
/// in a name of six letters or more one wrong. For places where other names are good, too: a short
/// name with another letter in it is a word of its own, such as `shape` beside `share`.
pub fn slip_of<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LONG: usize = 6;
    let letters = |name: &str| {
        let mut letters: Vec<char> = name.to_lowercase().chars().collect();
        letters.sort_unstable();
        letters
    };
    let typed_letters = letters(typed);
    let has_wrong_one = |known: &str| {
        let known = letters(known);
        known.len() == typed_letters.len() && known != typed_letters
    };
    known
        .into_iter()
        .find(|known| distance(typed, known) <= 1 && (known.len() >= LONG || !has_wrong_one(known)))
}

/// Letters that are wrong, missing, too many or swapped, whatever their case.
fn distance(typed: &str, known: &str) -> usize {
    strsim::damerau_levenshtein(&typed.to_lowercase(), &known.to_lowercase())
}

/// The nearest of `known` to what was typed, if it is near enough to be meant.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|k| (distance(typed, k), k))
        .filter(|(distance, k)| *distance <= 1 + k.len().max(typed.len()) / 4)
        .min()
        .map(|(_, k)| k)
}

/// The question whether the nearest of `known` was meant, if one is near enough.
pub fn did_you_mean<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(typed, known).map(|near| format!("did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_word_beside_a_short_name_is_no_slip_of_it() {
        let keys = ["share", "env", "inputs", "timeout", "python"];
        for (typed, meant) in [
            ("input", Some("inputs")),
            ("inpots", Some("inputs")),
            ("Timeout", Some("timeout")),
            ("timout", Some("timeout")),
            ("evn", Some("env")),
            ("envs", Some("env")),
            ("shape", None),
            ("shard", None),
            ("end", None),
            ("eng", None),
        ] {
            assert_eq!(slip_of(typed, keys), meant, "{typed}");
        }
    }
}

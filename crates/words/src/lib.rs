//! Words for people: text of strangers made harmless, the name that was probably meant.

pub mod plain;

/// The nearest of `known` to what was typed, if it is near enough to be meant.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(&typed.to_lowercase(), &k.to_lowercase()), k))
        .filter(|(distance, k)| *distance <= 1 + k.len().max(typed.len()) / 4)
        .min()
        .map(|(_, k)| k)
}

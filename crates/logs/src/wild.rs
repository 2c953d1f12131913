//! Values by names that may have wildcards.

/// Entries by name, where `*` in a name stands for any text. A name without one comes before those
/// with, and of these the longest.
#[derive(Clone, Debug)]
pub struct Wild<T> {
    entries: Vec<(Glob, T)>,
}

#[derive(Clone, Debug)]
enum Glob {
    Name(String),
    /// What stands before the first wildcard, between it and the second one, and behind the last.
    Wild(String, String, String),
}

impl<T> Default for Wild<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
        }
    }
}

impl<T> FromIterator<(String, T)> for Wild<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by_key(|(name, _)| (name.contains('*'), std::cmp::Reverse(name.len())));
        let entries = entries.into_iter();
        Self {
            entries: entries
                .map(|(name, value)| (Glob::new(&name), value))
                .collect(),
        }
    }
}

impl<T> Wild<T> {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry that a name has, and what the wildcard stands for in it.
    pub fn get<'n>(&self, name: &'n str) -> Option<(&T, &'n str)> {
        let mut entries = self.entries.iter();
        entries.find_map(|(glob, value)| Some((value, glob.fits(name)?)))
    }
}

impl Glob {
    fn new(name: &str) -> Self {
        let Some((first, rest)) = name.split_once('*') else {
            return Self::Name(name.to_owned());
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        Self::Wild(first.to_owned(), middle.to_owned(), last.to_owned())
    }

    /// What the wildcards stand for in `name`, from the first to the last, if it fits.
    fn fits<'n>(&self, name: &'n str) -> Option<&'n str> {
        match self {
            Self::Name(known) => (known == name).then_some(name),
            Self::Wild(first, middle, last) => {
                let part = name
                    .strip_prefix(first.as_str())?
                    .strip_suffix(last.as_str())?;
                part.contains(middle.as_str()).then_some(part)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_before_wildcards_and_long_ones_before_short_ones() {
        let all = ["*", "*_time", "avg_*", "lr", "*adam*"].map(|n| (n.to_owned(), n));
        let wild: Wild<&str> = all.into_iter().collect();
        for (name, entry, part) in [
            ("lr", "lr", "lr"),
            ("epoch_time", "*_time", "epoch"),
            ("fused_adam_w", "*adam*", "fused_adam_w"),
            ("loss", "*", "loss"),
        ] {
            assert_eq!(wild.get(name), Some((&entry, part)), "{name}");
        }
        assert!(Wild::<u8>::default().get("x").is_none());
    }
}

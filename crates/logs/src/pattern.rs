//! Patterns of our own that are compiled when they are first used.

use std::{ops::Deref, sync::OnceLock};

use regex::Regex;

pub struct Pattern {
    text: &'static str,
    compiled: OnceLock<Regex>,
}

impl Pattern {
    pub const fn new(text: &'static str) -> Self {
        Self {
            text,
            compiled: OnceLock::new(),
        }
    }

    /// The first `N` groups of the first match; one that matched nothing is empty.
    pub fn groups<'t, const N: usize>(&self, text: &'t str) -> Option<[&'t str; N]> {
        let found = self.captures(text)?;
        Some(std::array::from_fn(|at| {
            found.get(at + 1).map_or("", |group| group.as_str())
        }))
    }
}

impl Deref for Pattern {
    type Target = Regex;

    fn deref(&self) -> &Regex {
        let compile = || Regex::new(self.text).expect("a pattern of our own");
        self.compiled.get_or_init(compile)
    }
}

//! Attempts under which files were written that only their commands name.
//!
//! Such a file is an input, and its content is in the key. A run that writes it leaves another
//! content and so another key, under which the next plan would not find the run. Here an attempt is
//! found whatever the files have become that were written while it ran.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{
    cache::{Attempt, Cache, INPUTS_CHANGED},
    digest::Digest,
    plan::{Inputs, preimage::without_inputs},
};

/// By the files that were written, and by the pre-image without them.
pub struct Written(BTreeMap<Vec<String>, HashMap<Digest, Vec<Attempt>>>);

impl Written {
    #[must_use]
    pub fn of(cache: &Cache) -> Self {
        let all = cache.all_attempts();
        let names = |attempt: &Attempt| attempt.undeclared.names().cloned().collect();
        let mut found: BTreeMap<Vec<String>, HashMap<Digest, Vec<Attempt>>> = BTreeMap::new();
        let changed: BTreeSet<Vec<String>> = all
            .iter()
            .filter(|attempt| !attempt.undeclared.changed.is_empty())
            .map(names)
            .collect();
        for attempt in all {
            let bare = |names: &[String]| Digest::of(without_inputs(&attempt.preimage, names));
            if !attempt.undeclared.is_nothing() {
                let names: Vec<String> = names(&attempt);
                let bare = bare(&names);
                let same = found.entry(names).or_default().entry(bare).or_default();
                same.push(attempt);
            } else if attempt.is_valid() || attempt.will_fail_again() {
                // This run left the files alone, so it was somebody else who changed them before.
                for names in &changed {
                    if let Some(of_names) = found.get_mut(names)
                        && let Some(same) = of_names.get_mut(&bare(names))
                    {
                        same.retain(|earlier| earlier.undeclared.changed.is_empty());
                    }
                }
            }
        }
        Self(found)
    }

    /// The attempts at a training that stand under other keys than its own. If none of the files that
    /// changed is an input any more, the run is taken to have written them, so it counts as if it had
    /// been filed under the present key.
    #[must_use]
    pub fn elsewhere(
        &self,
        cache: &Cache,
        (key, preimage): (Digest, &str),
        inputs: &Inputs,
    ) -> Vec<Attempt> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let absent = inputs.absent.iter().map(String::as_str);
        let possible: HashSet<&str> = inputs.possible_outputs().chain(absent).collect();
        let all: HashSet<&str> = inputs.files.iter().map(|file| &*file.name).collect();
        let mut found = Vec::new();
        for (names, by_training) in &self.0 {
            let (listed, others): (Vec<&String>, Vec<&String>) =
                names.iter().partition(|name| possible.contains(&***name));
            if others.iter().any(|name| all.contains(&***name)) {
                // Somebody declared it as an input, so its content decides.
                continue;
            }
            let bare = match listed.is_empty() {
                true => key,
                false => Digest::of(without_inputs(preimage, &listed)),
            };
            for attempt in by_training.get(&bare).into_iter().flatten() {
                let of_key = cache.generation(&attempt.key);
                if attempt.key == key
                    || attempt.set_aside.is_some()
                    || attempt.generation < of_key.max(cache.generation(&key))
                {
                    continue;
                }
                let mut attempt = attempt.clone();
                let changed = &attempt.undeclared.changed;
                let suspect = attempt.suspect.as_deref().unwrap_or_default();
                if suspect.starts_with(INPUTS_CHANGED)
                    && !changed.is_empty()
                    && !changed.iter().any(|name| possible.contains(&**name))
                {
                    (attempt.key, attempt.suspect) = (key, None);
                }
                found.push(attempt);
            }
        }
        found
    }
}

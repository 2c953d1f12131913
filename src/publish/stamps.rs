//! What published files were when they were last read, so that a plan which finds them untouched
//! reads none of them again. Disposable: without the memo they are all read once more.

use std::{collections::BTreeMap, path::Path};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{
    cache::{Cache, Output},
    digest::Digest,
    files::Stamp,
};

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Known {
    stamp: Stamp,
    digest: Digest,
}

type Stamps = BTreeMap<String, Known>;

/// For each output, whether its file in `folder` is as it should be.
pub(super) fn are_published(cache: &Cache, folder: &Path, outputs: &[Output]) -> Vec<bool> {
    let name = Digest::of(format!("published files {}", folder.display()));
    let before: Stamps = cache
        .load_memo(&name)
        .and_then(|memo| serde_json::from_slice(&memo).ok())
        .unwrap_or_default();
    let looked: Vec<Option<Known>> = outputs
        .par_iter()
        .map(|output| look(&folder.join(&output.name), before.get(&output.name)))
        .collect();
    let right = outputs
        .iter()
        .zip(&looked)
        .map(|(o, known)| known.as_ref().is_some_and(|k| k.digest == o.digest));
    let right: Vec<bool> = right.collect();
    // A stamp that no later look may trust is not worth a write.
    let settled = |known: &&Known| known.stamp.is_settled();
    let of_outputs = outputs.iter().zip(&looked);
    let now: Stamps = of_outputs
        .filter_map(|(o, known)| Some((o.name.clone(), known.as_ref().filter(settled)?.clone())))
        .collect();
    let is_known = |(name, known): (&String, &Known)| {
        before
            .get(name)
            .is_some_and(|b| b.digest == known.digest && b.stamp.is_still(&known.stamp))
    };
    if !now.iter().all(is_known) {
        // A memo that cannot be written costs time, nothing else.
        let _ = serde_json::to_vec(&now).map(|bytes| cache.store_memo(&name, &bytes));
    }
    right
}

/// What the file is now: read, unless its stamp says that it is what it was.
fn look(path: &Path, before: Option<&Known>) -> Option<Known> {
    let stamp = Stamp::of(path).ok()?;
    match before.filter(|known| known.stamp.is_still(&stamp)) {
        Some(known) => Some(known.clone()),
        None => Some(Known {
            stamp,
            digest: Digest::of_file(path).ok()?,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    #[test]
    fn a_file_is_read_again_only_when_it_may_have_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"one", Durability::Plain).unwrap();
        let young = look(&path, None).unwrap();
        assert_eq!(young.digest, Digest::of("one"));
        // A settled stamp is believed, so what it says is not looked at again.
        let mut stamp = serde_json::to_value(&young.stamp).unwrap();
        stamp["taken"] = (stamp["taken"].as_f64().unwrap() + 60.0).into();
        let stamp = serde_json::from_value(stamp).unwrap();
        let believed = Known {
            stamp,
            digest: Digest::of("as it was read"),
        };
        assert_eq!(
            look(&path, Some(&believed)).unwrap().digest,
            believed.digest
        );
        // A young one is not, nor one of a file that was written since.
        let racy = Known {
            digest: believed.digest,
            ..young
        };
        assert_eq!(look(&path, Some(&racy)).unwrap().digest, Digest::of("one"));
        write_atomically(&path, b"two", Durability::Plain).unwrap();
        assert_eq!(
            look(&path, Some(&believed)).unwrap().digest,
            Digest::of("two")
        );
        assert!(look(&folder.path().join("none"), Some(&believed)).is_none());
    }

    #[test]
    fn what_is_missing_or_changed_is_not_published() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache")).unwrap();
        let output = |name: &str, text: &str| Output {
            name: name.into(),
            digest: Digest::of(text),
            size: text.len() as u64,
        };
        let outputs = [output("a", "one"), output("b", "two"), output("c", "three")];
        for (name, text) in [("a", "one"), ("b", "TWO")] {
            write_atomically(
                &folder.path().join(name),
                text.as_bytes(),
                Durability::Plain,
            )
            .unwrap();
        }
        assert_eq!(
            are_published(&cache, folder.path(), &outputs),
            [true, false, false]
        );
        assert_eq!(
            are_published(&cache, folder.path(), &outputs),
            [true, false, false]
        );
    }
}

//! Which algorithm was the fastest for each product, kept from one run to the next.
//!
//! The file is a hint and never more: an algorithm counts only if cuBLASLt offers those very bytes
//! for the product again, so a stale, cut or foreign file costs the time of choosing and nothing
//! else.
#![expect(
    clippy::disallowed_methods,
    reason = "this program writes its own files, and calls no crate that does"
)]

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

/// Choices beyond this many are those of other jobs and other cards: the file begins anew.
const MOST: usize = 10_000;

#[derive(Default)]
pub struct Choices {
    /// `None`: nothing is kept.
    file: Option<PathBuf>,
    /// What choices depend on besides the product: the card, its driver and the library.
    place: String,
    known: Map<String, Value>,
    fresh: Map<String, Value>,
}

impl Choices {
    /// The choices of this user for `place`, in `$XDG_CACHE_HOME` or `~/.cache`.
    pub fn open(place: String) -> Self {
        let set = |name: &str| {
            env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let folder = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        folder.map_or_else(Self::default, |folder| {
            Self::read(&folder.join("tprimat/products.json"), place)
        })
    }

    fn read(file: &Path, place: String) -> Self {
        Self {
            known: contents(file),
            file: Some(file.to_owned()),
            place,
            fresh: Map::new(),
        }
    }

    /// The algorithm of a product, as [`Self::note`] was told it.
    pub fn find(&self, product: &str) -> Option<&str> {
        self.known.get(&self.key(product))?.as_str()
    }

    pub fn note(&mut self, product: &str, algorithm: String) {
        self.fresh.insert(self.key(product), algorithm.into());
    }

    fn key(&self, product: &str) -> String {
        format!("{}: {product}", self.place)
    }

    /// Adds what was noted to what the file holds by now. Where it cannot be written, the next run
    /// chooses again.
    pub fn save(self) {
        let Some(file) = self.file.filter(|_| !self.fresh.is_empty()) else {
            return;
        };
        let mut all = contents(&file);
        if all.len() >= MOST {
            all.clear();
        }
        all.extend(self.fresh);
        let temporary = file.with_extension(format!("json.{}", std::process::id()));
        let text = Value::Object(all).to_string();
        let saved = file.parent().map_or(Ok(()), fs::create_dir_all);
        let saved = saved
            .and_then(|()| fs::write(&temporary, text))
            .and_then(|()| fs::rename(&temporary, &file));
        if saved.is_err() {
            let _ = fs::remove_file(&temporary);
        }
    }
}

fn contents(file: &Path) -> Map<String, Value> {
    let bytes = fs::read(file).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_of_one_place_and_a_broken_file_holds_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/products.json");
        let open = |place: &str| Choices::read(&file, place.to_owned());
        let (mut one, mut other) = (open("card, driver 1"), open("card, driver 2"));
        one.note("a product", "11".to_owned());
        other.note("a product", "22".to_owned());
        one.save();
        other.save();
        assert_eq!(
            open("card, driver 1").find("a product"),
            Some("11"),
            "the second one kept it"
        );
        assert_eq!(open("card, driver 2").find("a product"), Some("22"));
        assert_eq!(open("card, driver 3").find("a product"), None);
        assert_eq!(open("card, driver 1").find("another"), None);

        let whole = fs::read(&file).unwrap();
        for broken in [
            &whole[..whole.len() / 2],
            b"[1]",
            b"{\"card, driver 1: a product\": 7}",
        ] {
            fs::write(&file, broken).unwrap();
            let mut choices = open("card, driver 1");
            assert_eq!(choices.find("a product"), None);
            choices.note("a product", "33".to_owned());
            choices.save();
            assert_eq!(open("card, driver 1").find("a product"), Some("33"));
        }
        assert_eq!(
            fs::read_dir(file.parent().unwrap()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }
}

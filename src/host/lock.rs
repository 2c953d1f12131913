//! tprimat.lock: what each platform's numbers were pinned to.
//!
//! Written by tprimat and committed by people, as Cargo.lock is. Bytes are a function of the
//! content: everything is sorted. A fact that could not be read is left out.

mod file;

use std::{collections::BTreeMap, fmt, path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    error::{Error, Problem, Result, Source},
    files::{ReadSet, require_inside},
};

const VERSION: i64 = 1;
const HEADER: &str = "\
# What the numbers of each platform depend on. Written by tprimat; commit it.
# Refresh a platform on its own host: tprimat lock MATRIX --update
";

/// A value of the lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged, expecting = "neither a text in quotes nor a whole number")]
pub enum Fact {
    Number(i64),
    Text(String),
}

/// What one platform is pinned to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// `vendor`, `accelerator`, `count`, `driver`, …
    pub facts: BTreeMap<String, Fact>,
    /// Recipe → package → version. A package that is not installed is left out.
    pub packages: BTreeMap<String, BTreeMap<String, String>>,
    /// `datasets`, `tokenizers` and `images`: name → digest of the content.
    pub data: BTreeMap<String, BTreeMap<String, String>>,
    /// Recipe → variable of a checkout → `commit`, `dirty` or `content`. A checkout that is not
    /// there is left out.
    pub checkouts: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>,
}

/// The tables of [`Section::data`].
const DATA_TABLES: [&str; 3] = ["datasets", "tokenizers", IMAGES];

/// The table of container images, whose digests are their engine's.
pub const IMAGES: &str = "images";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    platforms: BTreeMap<String, Section>,
}

/// A line of the lock that this host contradicts. `None`: not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactDiff {
    /// `driver`, `recipe.tran.packages.torch`.
    pub name: String,
    pub locked: Option<Fact>,
    pub found: Option<Fact>,
}

impl Lock {
    /// A file that is not there is a lock without sections: the first build writes it.
    pub fn load(path: &Path, reads: &ReadSet) -> Result<Self> {
        require_inside(path.parent().unwrap_or(path), path)?;
        let Some(text) = reads
            .read_text(path)
            .map_err(Error::io("cannot read", path))?
        else {
            return Ok(Self::default());
        };
        let name = path
            .file_name()
            .map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
        Self::parse(&Source::new(name, text)).map_err(Error::Invalid)
    }

    pub fn parse(source: &Arc<Source>) -> Result<Self, Vec<Problem>> {
        file::read(source).map_err(|problem| vec![problem])
    }

    #[must_use]
    pub fn section(&self, platform: &str) -> Option<&Section> {
        self.platforms.get(platform)
    }

    /// The same lock with `section` in place of what it had for `platform`.
    #[must_use]
    pub fn with_section(mut self, platform: &str, section: Section) -> Self {
        self.platforms.insert(platform.to_owned(), section);
        self
    }

    /// The file's text; equal locks give equal bytes.
    #[must_use]
    pub fn to_toml(&self) -> String {
        format!("{HEADER}\n{}", file::write(self))
    }
}

impl Section {
    /// `None` leaves the fact out.
    pub fn set(&mut self, name: &str, fact: Option<Fact>) {
        match fact {
            Some(fact) => self.facts.insert(name.to_owned(), fact),
            None => self.facts.remove(name),
        };
    }

    /// Digest of a dataset or tokenizer, by its table.
    #[must_use]
    pub fn digest(&self, table: &str, name: &str) -> Option<&str> {
        self.data.get(table)?.get(name).map(String::as_str)
    }

    pub fn set_image(&mut self, name: &str, digest: &str) {
        self.data
            .entry(IMAGES.to_owned())
            .or_default()
            .insert(name.to_owned(), digest.to_owned());
    }

    pub fn set_digest(&mut self, table: &str, name: &str, digest: Digest) {
        self.data
            .entry(table.to_owned())
            .or_default()
            .insert(name.to_owned(), digest.to_string());
    }

    pub fn extend_data(&mut self, data: &BTreeMap<String, BTreeMap<String, String>>) {
        for (table, digests) in data {
            self.data
                .entry(table.clone())
                .or_default()
                .extend(digests.clone());
        }
    }

    /// The checkouts of `recipe`, by variable, as `checkout_facts` found them.
    pub fn set_checkouts(
        &mut self,
        recipe: &str,
        found: BTreeMap<String, BTreeMap<String, String>>,
    ) {
        let there = found.into_iter().filter(|(_, facts)| !facts.is_empty());
        self.checkouts.insert(recipe.to_owned(), there.collect());
    }

    /// Where `probed` contradicts this section, by name. Recipes that only one of the two knows are
    /// no contradiction: not every build probes every recipe, and a new one is still to be written.
    #[must_use]
    pub fn diff(&self, probed: &Self) -> Vec<FactDiff> {
        let facts = |texts: &BTreeMap<String, String>| -> BTreeMap<String, Fact> {
            texts
                .iter()
                .map(|(name, text)| (name.clone(), Fact::Text(text.clone())))
                .collect()
        };
        let mut all = differences("", &self.facts, &probed.facts);
        for (recipe, locked) in &self.packages {
            if let Some(found) = probed.packages.get(recipe) {
                all.extend(differences(
                    &format!("recipe.{recipe}.packages."),
                    &facts(locked),
                    &facts(found),
                ));
            }
        }
        for (table, locked) in &self.data {
            let mut locked = facts(locked);
            let found = facts(probed.data.get(table).unwrap_or(&BTreeMap::new()));
            // Not every build looks at every dataset.
            locked.retain(|name, _| found.contains_key(name));
            let found = found
                .into_iter()
                .filter(|(name, _)| locked.contains_key(name))
                .collect();
            all.extend(differences(&format!("{table}."), &locked, &found));
        }
        for (recipe, locked) in &self.checkouts {
            if let Some(found) = probed.checkouts.get(recipe) {
                let (locked, found) = (facts(&flat(locked)), facts(&flat(found)));
                all.extend(differences(
                    &format!("recipe.{recipe}.checkouts."),
                    &locked,
                    &found,
                ));
            }
        }
        all
    }
}

/// `PRIMUS_PATH.commit` → text.
fn flat(checkouts: &BTreeMap<String, BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let all = checkouts
        .iter()
        .flat_map(|(variable, facts)| facts.iter().map(move |(name, text)| (variable, name, text)));
    all.map(|(variable, name, text)| (format!("{variable}.{name}"), text.clone()))
        .collect()
}

fn differences(
    prefix: &str,
    locked: &BTreeMap<String, Fact>,
    found: &BTreeMap<String, Fact>,
) -> Vec<FactDiff> {
    let mut names: Vec<&String> = locked.keys().chain(found.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| (name, locked.get(name), found.get(name)))
        .filter(|(_, locked, found)| locked != found)
        .map(|(name, locked, found)| FactDiff {
            name: format!("{prefix}{name}"),
            locked: locked.cloned(),
            found: found.cloned(),
        })
        .collect()
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<&str> for Fact {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

#[cfg(test)]
mod tests;

//! tprimat.lock: what each platform's numbers were pinned to.
//!
//! Written by tprimat and committed by people, as Cargo.lock is. Bytes are a function of the content:
//! everything is sorted. A fact that could not be read is left out.

use std::{collections::BTreeMap, fmt, ops::Range, path::Path, sync::Arc};

use serde::{Deserialize, Serialize};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    digest::Digest,
    error::{Error, Problem, Result, Source, nearest},
    files,
};

const VERSION: i64 = 1;
const HEADER: &str = "\
# What the numbers of each platform depend on. Written by tprimat; commit it.
# Refresh a platform on its own host: tprimat lock --update
";

/// A value of the lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
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
    /// `datasets` and `tokenizers`: name → digest of the content.
    pub data: BTreeMap<String, BTreeMap<String, String>>,
    /// Recipe → variable of a checkout → `commit`, `dirty` or `content`. A checkout that is not there is left out.
    pub checkouts: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>,
}

/// The tables of [`Section::data`].
const DATA_TABLES: [&str; 2] = ["datasets", "tokenizers"];

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
    pub fn load(path: &Path) -> Result<Self> {
        match files::read_to_string(path) {
            Ok(text) => {
                let name = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
                Self::parse(&Source::new(name, text)).map_err(Error::Invalid)
            }
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    pub fn parse(source: &Arc<Source>) -> Result<Self, Vec<Problem>> {
        Reader { source, problems: Vec::new() }.lock()
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
        let mut root = toml::Table::new();
        root.insert("version".into(), VERSION.into());
        let platforms = self.platforms.iter().map(|(id, section)| (id.clone(), section.to_table().into()));
        if !self.platforms.is_empty() {
            root.insert("platform".into(), toml::Value::Table(platforms.collect()));
        }
        format!("{HEADER}\n{root}")
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

    /// The packages of `recipe`, as `python_packages` found them.
    pub fn set_packages(&mut self, recipe: &str, found: &BTreeMap<String, Option<String>>) {
        let installed = found.iter().filter_map(|(name, version)| Some((name.clone(), version.clone()?)));
        self.packages.insert(recipe.to_owned(), installed.collect());
    }

    /// Digest of a dataset or tokenizer, by its table.
    #[must_use]
    pub fn digest(&self, table: &str, name: &str) -> Option<&str> {
        self.data.get(table)?.get(name).map(String::as_str)
    }

    pub fn set_digest(&mut self, table: &str, name: &str, digest: Digest) {
        self.data.entry(table.to_owned()).or_default().insert(name.to_owned(), digest.to_string());
    }

    pub fn extend_data(&mut self, data: &BTreeMap<String, BTreeMap<String, String>>) {
        for (table, digests) in data {
            self.data.entry(table.clone()).or_default().extend(digests.clone());
        }
    }

    /// The checkouts of `recipe`, by variable, as `checkout_facts` found them.
    pub fn set_checkouts(&mut self, recipe: &str, found: BTreeMap<String, BTreeMap<String, String>>) {
        let there = found.into_iter().filter(|(_, facts)| !facts.is_empty());
        self.checkouts.insert(recipe.to_owned(), there.collect());
    }

    /// Where `probed` contradicts this section, by name. Recipes that only one of the two knows are
    /// no contradiction: not every build probes every recipe, and a new one is still to be written.
    #[must_use]
    pub fn diff(&self, probed: &Self) -> Vec<FactDiff> {
        let facts = |texts: &BTreeMap<String, String>| -> BTreeMap<String, Fact> {
            texts.iter().map(|(name, text)| (name.clone(), Fact::Text(text.clone()))).collect()
        };
        let mut all = differences("", &self.facts, &probed.facts);
        for (recipe, locked) in &self.packages {
            if let Some(found) = probed.packages.get(recipe) {
                all.extend(differences(&format!("recipe.{recipe}.packages."), &facts(locked), &facts(found)));
            }
        }
        for (table, locked) in &self.data {
            let mut locked = facts(locked);
            let found = facts(probed.data.get(table).unwrap_or(&BTreeMap::new()));
            // Not every build looks at every dataset.
            locked.retain(|name, _| found.contains_key(name));
            let found = found.into_iter().filter(|(name, _)| locked.contains_key(name)).collect();
            all.extend(differences(&format!("{table}."), &locked, &found));
        }
        for (recipe, locked) in &self.checkouts {
            if let Some(found) = probed.checkouts.get(recipe) {
                let (locked, found) = (facts(&flat(locked)), facts(&flat(found)));
                all.extend(differences(&format!("recipe.{recipe}.checkouts."), &locked, &found));
            }
        }
        all
    }

    fn to_table(&self) -> toml::Table {
        let mut table: toml::Table = self.facts.iter().map(|(name, fact)| (name.clone(), fact.into())).collect();
        let texts = |texts: &BTreeMap<String, String>| -> toml::Value {
            toml::Value::Table(texts.iter().map(|(name, text)| (name.clone(), text.clone().into())).collect())
        };
        let mut recipes = toml::Table::new();
        let mut put = |recipe: &String, name: &str, value: toml::Value| {
            let of = recipes.entry(recipe.clone()).or_insert_with(|| toml::Table::new().into());
            of.as_table_mut().map(|table| table.insert(name.to_owned(), value));
        };
        for (recipe, versions) in &self.packages {
            put(recipe, "packages", texts(versions));
        }
        for (recipe, checkouts) in &self.checkouts {
            put(
                recipe,
                "checkouts",
                toml::Value::Table(checkouts.iter().map(|(v, f)| (v.clone(), texts(f))).collect()),
            );
        }
        if !recipes.is_empty() {
            table.insert("recipe".into(), recipes.into());
        }
        for (name, digests) in self.data.iter().filter(|(_, digests)| !digests.is_empty()) {
            let digests = digests.iter().map(|(name, digest)| (name.clone(), digest.clone().into()));
            table.insert(name.clone(), toml::Value::Table(digests.collect()));
        }
        table
    }
}

/// `PRIMUS_PATH.commit` → text.
fn flat(checkouts: &BTreeMap<String, BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let all =
        checkouts.iter().flat_map(|(variable, facts)| facts.iter().map(move |(name, text)| (variable, name, text)));
    all.map(|(variable, name, text)| (format!("{variable}.{name}"), text.clone())).collect()
}

fn differences(prefix: &str, locked: &BTreeMap<String, Fact>, found: &BTreeMap<String, Fact>) -> Vec<FactDiff> {
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

/// Walks the parsed file and keeps the place of everything that is wrong.
struct Reader<'a> {
    source: &'a Arc<Source>,
    problems: Vec<Problem>,
}

type Entries<'t, 'i> = Vec<(&'t str, Range<usize>, &'t Spanned<DeValue<'i>>)>;

impl Reader<'_> {
    fn lock(mut self) -> Result<Lock, Vec<Problem>> {
        let source = self.source.clone();
        let table = match DeTable::parse(&source.text) {
            Ok(table) => table,
            Err(error) => {
                self.wrong(error.span().unwrap_or(0..0), error.message().to_owned(), "");
                return Err(self.problems);
            }
        };
        let mut lock = Lock::default();
        let mut version = None;
        for (name, place, value) in entries(table.get_ref()) {
            match name {
                "version" => version = self.version(value),
                "platform" => {
                    for (id, _, value) in self.table(value, "a table of platforms") {
                        let section = self.section(value);
                        lock.platforms.insert(id.to_owned(), section);
                    }
                }
                other => self.unknown(other, place, &["version", "platform"]),
            }
        }
        if version.is_none() && self.problems.is_empty() {
            self.wrong(0..0, "the lock has no `version`".into(), "");
        }
        // In the order of the file, which is not the order of the parsed table.
        self.problems.sort_by_key(|problem| problem.place.as_ref().map(|(_, span)| span.start));
        if self.problems.is_empty() { Ok(lock) } else { Err(self.problems) }
    }

    fn version(&mut self, value: &Spanned<DeValue>) -> Option<i64> {
        let found = integer(value.get_ref());
        match found {
            Some(VERSION) => {}
            Some(other) if other > VERSION => {
                let message = format!("the lock has version {other}, and this tprimat knows {VERSION}");
                let problem = Problem::new(message).at(self.source, value.span(), "newer than this tprimat");
                self.problems.push(problem.help("update tprimat"));
            }
            _ => self.wrong(value.span(), "not a version of the lock".into(), "expected 1"),
        }
        found
    }

    fn section(&mut self, value: &Spanned<DeValue>) -> Section {
        let mut section = Section::default();
        for (name, _, value) in self.table(value, "a table of facts") {
            if name == "recipe" {
                for (recipe, _, value) in self.table(value, "a table of recipes") {
                    self.recipe(recipe, value, &mut section);
                }
                continue;
            }
            if DATA_TABLES.contains(&name) {
                let digests = self.texts(value, "a digest in quotes");
                section.data.insert(name.to_owned(), digests);
                continue;
            }
            match value.get_ref() {
                DeValue::String(text) => drop(section.facts.insert(name.to_owned(), Fact::Text(text.to_string()))),
                other => match integer(other) {
                    Some(number) => drop(section.facts.insert(name.to_owned(), Fact::Number(number))),
                    None => {
                        self.wrong(value.span(), format!("`{name}` cannot be read"), "expected a string or an integer")
                    }
                },
            }
        }
        section
    }

    fn recipe(&mut self, recipe: &str, value: &Spanned<DeValue>, section: &mut Section) {
        for (name, place, value) in self.table(value, "a table") {
            match name {
                "packages" => {
                    drop(section.packages.insert(recipe.to_owned(), self.texts(value, "a version in quotes")))
                }
                "checkouts" => {
                    let checkouts = self.table(value, "a table of checkouts").into_iter();
                    let facts = checkouts.map(|(variable, _, value)| {
                        (variable.to_owned(), self.texts(value, "a commit or a digest in quotes"))
                    });
                    section.checkouts.insert(recipe.to_owned(), facts.collect());
                }
                _ => self.unknown(name, place, &["packages", "checkouts"]),
            }
        }
    }

    fn texts(&mut self, value: &Spanned<DeValue>, expected: &str) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for (name, _, value) in self.table(value, "a table") {
            match value.get_ref() {
                DeValue::String(text) => drop(texts.insert(name.to_owned(), text.to_string())),
                _ => self.wrong(value.span(), format!("`{name}` cannot be read"), &format!("expected {expected}")),
            }
        }
        texts
    }

    fn table<'t, 'i>(&mut self, value: &'t Spanned<DeValue<'i>>, expected: &str) -> Entries<'t, 'i> {
        match value.get_ref() {
            DeValue::Table(table) => entries(table),
            _ => {
                self.wrong(value.span(), "not a table".into(), &format!("expected {expected}"));
                Vec::new()
            }
        }
    }

    fn unknown(&mut self, name: &str, place: Range<usize>, known: &[&str]) {
        let problem = Problem::new(format!("unknown key `{name}`")).at(self.source, place, "not a key of the lock");
        self.problems.push(match nearest(name, known.iter().copied()) {
            Some(near) => problem.help(format!("did you mean `{near}`?")),
            None => problem,
        });
    }

    fn wrong(&mut self, place: Range<usize>, message: String, label: &str) {
        let problem = Problem::new(message).at(self.source, place, label);
        self.problems.push(problem.help("`tprimat lock --update` writes it anew"));
    }
}

fn entries<'t, 'i>(table: &'t DeTable<'i>) -> Entries<'t, 'i> {
    table.iter().map(|(key, value)| (key.get_ref().as_ref(), key.span(), value)).collect()
}

fn integer(value: &DeValue) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
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

impl From<&Fact> for toml::Value {
    fn from(fact: &Fact) -> Self {
        match fact {
            Fact::Number(number) => (*number).into(),
            Fact::Text(text) => text.clone().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn section() -> Section {
        let mut section = Section::default();
        section.set("vendor", Some("nvd".into()));
        section.set("count", Some(Fact::Number(8)));
        section.set("accelerator", Some("NVIDIA H100 80GB HBM3".into()));
        section.set("driver", Some("570.124.06".into()));
        let found = [("torch", Some("2.11.0")), ("transformers", Some("5.0.1")), ("apex", None)];
        section
            .set_packages("tran", &found.map(|(name, version)| (name.to_owned(), version.map(str::to_owned))).into());
        section
    }

    fn problems(text: &str) -> Vec<String> {
        let problems = Lock::parse(&Source::new("tprimat.lock", text)).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_text_is_sorted_and_readable() {
        let lock = Lock::default().with_section("nvd", section()).with_section("cpu", Section::default());
        let expected = r#"# What the numbers of each platform depend on. Written by tprimat; commit it.
# Refresh a platform on its own host: tprimat lock --update

version = 1

[platform.cpu]

[platform.nvd]
accelerator = "NVIDIA H100 80GB HBM3"
count = 8
driver = "570.124.06"
vendor = "nvd"

[platform.nvd.recipe.tran.packages]
torch = "2.11.0"
transformers = "5.0.1"
"#;
        assert_eq!(lock.to_toml(), expected);
        assert_eq!(Lock::parse(&Source::new("", expected)), Ok(lock));
    }

    #[test]
    fn a_lock_that_is_not_there_has_no_sections() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tprimat.lock");
        assert_eq!(Lock::load(&path).unwrap(), Lock::default());
        files::write_atomically(&path, b"version = 1\n[platform.cpu]\ncount = 1.5", files::Durability::Plain).unwrap();
        assert_eq!(Lock::load(&path).unwrap_err().to_string(), "tprimat.lock:3:9: `count` cannot be read");
    }

    #[test]
    fn all_problems_are_found_each_with_its_place() {
        let text = "version = 1\nplatfrom = 1\n[platform.cpu]\ncount = true\n[platform.nvd.recipe.tran]\nimage = 1\npackages = { torch = 2 }";
        assert_eq!(
            problems(text),
            [
                "tprimat.lock:2:1: unknown key `platfrom`",
                "tprimat.lock:4:9: `count` cannot be read",
                "tprimat.lock:6:1: unknown key `image`",
                "tprimat.lock:7:22: `torch` cannot be read",
            ]
        );
        assert_eq!(problems("version = 1\n[platform\n").len(), 1);
        assert_eq!(problems("version = 2"), ["tprimat.lock:1:11: the lock has version 2, and this tprimat knows 1"]);
        assert_eq!(problems("version = \"1\""), ["tprimat.lock:1:11: not a version of the lock"]);
        assert_eq!(problems(""), ["tprimat.lock:1:1: the lock has no `version`"]);
        assert_eq!(problems("version = 1\nplatform = []").len(), 1);
    }

    #[test]
    fn only_data_that_both_know_can_differ() {
        let with = |name: &str, digest: &str| {
            let mut section = section();
            section.data.entry("datasets".into()).or_default().insert(name.into(), digest.into());
            section
        };
        let locked = with("c4", "aa");
        assert!(locked.diff(&section()).is_empty() && locked.diff(&with("pile", "bb")).is_empty());
        assert_eq!(locked.diff(&with("c4", "bb"))[0].name, "datasets.c4");
        let lock = Lock::default().with_section("nvd", locked);
        assert_eq!(Lock::parse(&Source::new("", lock.to_toml())), Ok(lock.clone()));
        assert!(lock.to_toml().contains("[platform.nvd.datasets]\nc4 = \"aa\"\n"), "{}", lock.to_toml());
        let text = "version = 1\n[platform.nvd.datasets]\nc4 = 1";
        assert_eq!(problems(text), ["tprimat.lock:3:6: `c4` cannot be read"]);
    }

    #[test]
    fn exactly_the_lines_that_differ_are_named() {
        let locked = section();
        assert!(locked.diff(&locked).is_empty());
        let mut probed = section();
        probed.set("driver", Some("580.1".into()));
        probed.set("count", None);
        probed.set("cores", Some(Fact::Number(2)));
        probed.packages.get_mut("tran").unwrap().insert("apex".into(), "0.1".into());
        probed.packages.insert("native".into(), BTreeMap::new());
        let at = |commit: &str| [("PRIMUS_PATH".to_owned(), [("commit".to_owned(), commit.to_owned())].into())].into();
        let mut locked = locked;
        locked.set_checkouts("prim", at("a1"));
        probed.set_checkouts("prim", at("b2"));
        let diff =
            |name: &str, locked: Option<Fact>, found: Option<Fact>| FactDiff { name: name.into(), locked, found };
        assert_eq!(
            locked.diff(&probed),
            [
                diff("cores", None, Some(Fact::Number(2))),
                diff("count", Some(Fact::Number(8)), None),
                diff("driver", Some("570.124.06".into()), Some("580.1".into())),
                diff("recipe.tran.packages.apex", None, Some("0.1".into())),
                diff("recipe.prim.checkouts.PRIMUS_PATH.commit", Some("a1".into()), Some("b2".into())),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_lock_survives_writing_and_reading(
            facts in prop::collection::btree_map(".*".prop_filter("reserved", |n| n != "recipe" && !DATA_TABLES.contains(&n.as_str())), ".*", 0..5),
            number in any::<i64>(),
            packages in prop::collection::btree_map(".*", prop::collection::btree_map(".*", ".*", 0..3), 0..3),
            digests in prop::collection::btree_map(".*", ".*", 1..3),
            checkout in prop::collection::btree_map(".*", ".*", 0..3),
            platform in ".*",
        ) {
            let mut facts: BTreeMap<String, Fact> = facts.into_iter().map(|(n, t)| (n, Fact::Text(t))).collect();
            facts.insert("count".into(), Fact::Number(number));
            let data = [("datasets".to_owned(), digests)].into();
            let checkouts = [("prim".to_owned(), [("PRIMUS_PATH".to_owned(), checkout)].into())].into();
            let lock = Lock::default().with_section(&platform, Section { facts, packages, checkouts, data });
            let text = lock.to_toml();
            prop_assert_eq!(Lock::parse(&Source::new("", text.clone())), Ok(lock.clone()));
            prop_assert_eq!(lock.to_toml(), text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[a-z\\[\\]\\.=\"0-9\n {}]*") {
            let _ = Lock::parse(&Source::new("", text));
        }
    }
}

//! The form of tprimat.lock, as serde reads and writes it.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use toml::Spanned;

use super::{DATA_TABLES, Fact, Lock, Section, VERSION};
use crate::error::{Problem, Source};

/// A lock that cannot be read stops `tprimat lock --update` as well.
const HELP: &str =
    "restore it from git, or remove it: the next build on each platform's host pins it anew";

type Texts = BTreeMap<String, String>;

/// What of a lock of any version can be read.
#[derive(Deserialize)]
struct AnyVersion {
    version: Spanned<i64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockFile {
    version: i64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    platform: BTreeMap<String, SectionFile>,
}

/// Facts by their names, and the tables beside them.
struct SectionFile(Section);

/// What stands below a name of a section.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Fact(&'a Fact),
    Texts(&'a Texts),
    Recipes(BTreeMap<&'a String, RecipeFile>),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    packages: Option<Texts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkouts: Option<BTreeMap<String, Texts>>,
}

/// The lock, or the first thing that is wrong with its text.
pub(super) fn read(source: &Arc<Source>) -> Result<Lock, Problem> {
    let wrong = |error: toml::de::Error| {
        let span = error.span().unwrap_or(0..0);
        let problem = Problem::new(error.message().replace('\n', ", "));
        problem.at(source, span, "cannot be read").help(HELP)
    };
    let AnyVersion { version } = toml::from_str(&source.text).map_err(wrong)?;
    if *version.get_ref() > VERSION {
        let found = version.get_ref();
        let message = format!("the lock has version {found}, and this tprimat knows {VERSION}");
        let problem = Problem::new(message).at(source, version.span(), "newer than this tprimat");
        return Err(problem.help("update tprimat"));
    }
    if *version.get_ref() < VERSION {
        let problem = Problem::new("not a version of the lock");
        return Err(problem.at(source, version.span(), "expected 1").help(HELP));
    }
    let file: LockFile = toml::from_str(&source.text).map_err(wrong)?;
    let platforms = file.platform.into_iter();
    Ok(Lock {
        platforms: platforms.map(|(id, section)| (id, section.0)).collect(),
    })
}

pub(super) fn write(lock: &Lock) -> toml::Table {
    let platforms = lock.platforms.iter();
    let file = LockFile {
        version: VERSION,
        platform: platforms
            .map(|(id, section)| (id.clone(), SectionFile(section.clone())))
            .collect(),
    };
    toml::Table::try_from(file).expect("texts, numbers and tables of them are TOML")
}

impl Serialize for SectionFile {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Section {
            facts,
            packages,
            data,
            checkouts,
        } = &self.0;
        let mut recipes: BTreeMap<&String, RecipeFile> = BTreeMap::new();
        for (recipe, packages) in packages {
            recipes.entry(recipe).or_default().packages = Some(packages.clone());
        }
        for (recipe, checkouts) in checkouts {
            recipes.entry(recipe).or_default().checkouts = Some(checkouts.clone());
        }
        let facts = facts
            .iter()
            .map(|(name, fact)| (name.as_str(), Entry::Fact(fact)));
        let data = data.iter().filter(|(_, digests)| !digests.is_empty());
        let data = data.map(|(name, digests)| (name.as_str(), Entry::Texts(digests)));
        let recipes = (!recipes.is_empty()).then_some(("recipe", Entry::Recipes(recipes)));
        serializer.collect_map(facts.chain(data).chain(recipes))
    }
}

impl<'de> Deserialize<'de> for SectionFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfSection;

        impl<'de> Visitor<'de> for OfSection {
            type Value = SectionFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of facts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SectionFile, A::Error> {
                let mut section = Section::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "recipe" {
                        let recipes: BTreeMap<String, RecipeFile> = map.next_value()?;
                        for (recipe, of) in recipes {
                            let (packages, checkouts) = (of.packages, of.checkouts);
                            section
                                .packages
                                .extend(packages.map(|p| (recipe.clone(), p)));
                            section.checkouts.extend(checkouts.map(|c| (recipe, c)));
                        }
                    } else if DATA_TABLES.contains(&name.as_str()) {
                        section.data.insert(name, map.next_value()?);
                    } else {
                        section.facts.insert(name, map.next_value()?);
                    }
                }
                Ok(SectionFile(section))
            }
        }

        deserializer.deserialize_map(OfSection)
    }
}

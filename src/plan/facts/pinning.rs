//! This host beside tprimat.lock: what contradicts the lock, and what is added to it.

use std::collections::{BTreeMap, BTreeSet};

use tprimat_base::words::part;

use super::{FactBook, LOCK, fact_json};
use crate::{
    error::{Error, Problem, Result, Source},
    files::{Durability, ReadSet, write_atomically},
    host::{Fact, FactDiff, IMAGES, Lock, Section},
    job::Vendor,
    recipe::Recipe,
};

impl FactBook {
    /// Where this host contradicts the lock, for a platform and the recipes about to run on it.
    pub fn drift(
        &self,
        platform: &str,
        vendor: Vendor,
        recipes: &[&Recipe],
    ) -> Result<Vec<FactDiff>> {
        let Some(locked) = self.lock.section(platform) else {
            return Ok(Vec::new());
        };
        let mut probed = self.host().section(vendor).unwrap_or_default();
        for recipe in recipes {
            let found = self.probed(vendor, recipe)?;
            probed.packages.extend(found.packages);
            probed.checkouts.extend(found.checkouts);
        }
        self.probe_data(platform, &mut probed)?;
        Ok(locked.diff(&probed))
    }

    /// The same of files alone (data, images), which are here also where the runs of a batch system
    /// are on other hosts.
    pub fn drift_of_files(&self, platform: &str) -> Result<Vec<FactDiff>> {
        let Some(locked) = self.lock.section(platform) else {
            return Ok(Vec::new());
        };
        let mut probed = Section {
            facts: locked.facts.clone(),
            ..Section::default()
        };
        self.probe_data(platform, &mut probed)?;
        Ok(locked.diff(&probed))
    }

    /// An error that names every line of the lock that this host contradicts. `update`: the command
    /// that writes the lock anew.
    #[must_use]
    pub fn drift_error(&self, platform: &str, drift: &[FactDiff], update: &str) -> Error {
        let text = std::fs::read_to_string(self.root.join(LOCK)).unwrap_or_default();
        let source = Source::new(LOCK, text);
        let problems = drift.iter().map(|diff| {
            let show = |fact: &Option<Fact>| fact.as_ref().map_or_else(|| "nothing".to_owned(), |f| fact_json(f).to_string());
            let message = format!("this host differs from tprimat.lock: {platform}, {}", diff.name);
            let problem = Problem::new(message).help(format!(
                "`{update}` pins what is here (and makes its results stale); --allow-drift files results under what is here",
            ));
            let section = source.text.find(&format!("[platform.{platform}")).unwrap_or(0);
            let key = match diff.name.split_once('.') {
                Some(("datasets" | "tokenizers" | IMAGES, name)) => name,
                _ => diff.name.rsplit('.').next().unwrap_or(&diff.name),
            };
            let line = |key: String| part(&source.text, section..).find(&format!("\n{key} = "));
            let at = line(key.to_owned()).or_else(|| line(format!("{key:?}"))).map_or(section, |i| section + i + 1);
            let end = part(&source.text, at..).find('\n').map_or(source.text.len(), |i| at + i);
            problem.at(&source, at..end, format!("locked {}, found {}", show(&diff.locked), show(&diff.found)))
        });
        Error::Invalid(problems.collect())
    }

    /// An error that says what the next build would add to the lock, if it would.
    pub fn require_complete(&self) -> Result<()> {
        let problem = |(platform, section): (&String, &Section)| {
            let lacks = match self.lock.section(platform) {
                None => format!("has no section for {platform}"),
                Some(_) => {
                    let recipes: BTreeSet<&String> = section
                        .packages
                        .keys()
                        .chain(section.checkouts.keys())
                        .collect();
                    let data = section.data.values().flat_map(BTreeMap::keys);
                    let names: Vec<&str> = recipes
                        .into_iter()
                        .chain(data)
                        .map(String::as_str)
                        .collect();
                    format!("does not pin {} for {platform}", names.join(", "))
                }
            };
            let help = "build once without --require=locked on that platform's host, and commit tprimat.lock";
            Problem::new(format!("tprimat.lock would have to be written: it {lacks}")).help(help)
        };
        let problems: Vec<Problem> = self.missing.iter().map(problem).collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::Invalid(problems))
        }
    }

    /// What a recipe lacks on this host is not pinned: installing it would contradict the lock.
    pub fn leave_out_missing(&mut self, platform: &str, framework: &str) {
        if let Some(section) = self.missing.get_mut(platform) {
            let of_command = format!("{framework} ");
            let is_of = |name: &String| name == framework || name.starts_with(&of_command);
            section.packages.retain(|name, _| !is_of(name));
            section.checkouts.remove(framework);
        }
    }

    /// Adds what the lock lacks; returns the platforms that were added. What others added since it
    /// was read stays; what contradicts the facts that this plan's keys are made of is an error.
    pub fn write_missing(&self, reads: &ReadSet) -> Result<Vec<String>> {
        if self.missing.is_empty() {
            return Ok(Vec::new());
        }
        let path = self.root.join(LOCK);
        let now = ReadSet::default();
        let mut lock = Lock::load(&path, &now)?;
        let is_as_read = now.known(&path).map(|known| known.digest)
            == reads.known(&path).map(|known| known.digest);
        for (platform, found) in &self.missing {
            let with_found = |section: Option<&Section>| {
                let new = || Section {
                    facts: found.facts.clone(),
                    ..Section::default()
                };
                let mut section = section.cloned().unwrap_or_else(new);
                section.packages.extend(found.packages.clone());
                section.extend_data(&found.data);
                section.checkouts.extend(found.checkouts.clone());
                section
            };
            let ours = with_found(self.lock.section(platform));
            let there = lock.section(platform);
            if let Some(diff) = there.and_then(|there| there.diff(&ours).into_iter().next()) {
                return Err(Error::Failed {
                    message: format!(
                        "tprimat.lock was changed while this build was planned: {platform}, {}",
                        diff.name
                    ),
                    help: Some(
                        "nothing was run; build again, so that the plan is made from it".into(),
                    ),
                });
            }
            let section = with_found(there);
            lock = lock.with_section(platform, section);
        }
        write_atomically(&path, lock.to_toml().as_bytes(), Durability::Synced)?;
        if is_as_read {
            reads
                .wrote(&path)
                .map_err(Error::io("cannot read", &path))?;
        }
        Ok(self.missing.keys().cloned().collect())
    }

    /// Replaces the sections of the given platforms by what this host has; returns the differences.
    pub fn update(
        &mut self,
        platforms: &[(String, Vendor, Vec<&Recipe>)],
    ) -> Result<Vec<(String, Vec<FactDiff>)>> {
        let mut lock = self.lock.clone();
        let mut changes = Vec::new();
        for (platform, vendor, recipes) in platforms {
            let Some(mut section) = self.host().section(*vendor) else {
                continue;
            };
            for recipe in recipes {
                let found = self.probed(*vendor, recipe)?;
                section.packages.extend(found.packages);
                section.checkouts.extend(found.checkouts);
            }
            let old = lock.section(platform).cloned().unwrap_or_default();
            // What other matrices read, or what is not on this host, stays pinned.
            section.extend_data(&old.data);
            self.probe_data(platform, &mut section)?;
            changes.push((platform.clone(), old.diff(&section)));
            lock = lock.with_section(platform, section);
        }
        write_atomically(
            &self.root.join(LOCK),
            lock.to_toml().as_bytes(),
            Durability::Synced,
        )?;
        self.lock = lock;
        Ok(changes)
    }
}

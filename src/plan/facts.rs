//! What keys know of hardware and software: tprimat.lock where it has a section, else this host.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};
use tprimat_words::part;

use serde_json::Value;

use super::{CellPlan, Container, DataFile, DataKind, Support, data::DataMemo};
use crate::{
    config::Config,
    digest::Digest,
    error::{Error, Problem, Result, Source},
    files::{Durability, ReadSet, Stamp, write_atomically},
    host::{self, Engine, Fact, FactDiff, HostFacts, IMAGES, Lock, Section},
    job::{Job, Vendor},
    matrix::Cell,
    recipe::{Checkout, Recipe, RecipeSet},
};

const LOCK: &str = "tprimat.lock";

/// Facts of one (platform, recipe), as its train keys cover them.
#[derive(Clone, Debug)]
pub struct PlatformFacts {
    /// Fact → value; or why nothing is known.
    pub known: Result<BTreeMap<String, Value>, String>,
    /// All facts of the section and of the recipe, also those that no key covers; for people.
    pub all: BTreeMap<String, String>,
    /// The facts of the section that `known` is made of: what a host must have whose runs are filed
    /// under it.
    pub section: BTreeMap<String, Fact>,
    /// Devices that this host has for the platform; or why it cannot run there.
    available: Result<usize, String>,
}

/// The image that a cell's runs are started in.
#[derive(Clone, Debug)]
pub struct Image {
    pub name: String,
    /// Of the content, as keys cover it; or why nothing is known.
    pub digest: Result<String, String>,
    /// What the engine of this host has under the name; or why that cannot be said.
    pub here: Result<Option<String>, String>,
    /// Where it is, if runs open it as a file.
    pub file: Option<PathBuf>,
}

impl PlatformFacts {
    /// For runs that a batch system takes to another host: what this one has decides nothing.
    #[must_use]
    pub fn elsewhere(&self, platform: &str) -> Self {
        let mut facts = self.clone();
        facts.available = Ok(usize::MAX);
        facts.known = facts.known.map_err(|why| {
            format!("tprimat.lock does not pin {platform}, and this host cannot ({why}); `srun … tprimat lock --update` on one of its nodes does")
        });
        facts
    }

    /// What the packages of this host's Python are means nothing to a run that brings its own.
    #[must_use]
    pub fn without_packages(&self) -> Self {
        let is_package = |name: &String| name.starts_with("package.");
        let mut facts = self.clone();
        facts.all.retain(|name, _| !is_package(name));
        if let Ok(known) = &mut facts.known {
            known.retain(|name, _| !is_package(name));
        }
        facts
    }

    /// Can this host run the job? If not, why.
    pub fn here(&self, job: &Job) -> Result<(), String> {
        let available = self.available.as_ref().map_err(Clone::clone)?;
        let wanted = job.parallelism.num_gpus as usize;
        if job.vendor != Vendor::Cpu && wanted > *available {
            return Err(format!("needs {wanted} GPUs, {available} can be used here"));
        }
        Ok(())
    }
}

/// What runs of a vendor need, in words.
fn device_of(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Cpu => "a CPU",
        Vendor::Nvd => "an NVIDIA GPU",
        Vendor::Amd => "an AMD GPU",
    }
}

/// The lock, this host, and what follows from them for each (platform, recipe) of a matrix.
pub struct FactBook {
    root: PathBuf,
    lock: Lock,
    allow_drift: bool,
    /// The matrix asks what this host is.
    is_auto: bool,
    host: OnceLock<HostFacts>,
    book: HashMap<(String, String), Arc<PlatformFacts>>,
    /// Sections that this host would add to the lock.
    pub missing: BTreeMap<String, Section>,
    /// Datasets and tokenizers, by platform, kind and name.
    data: BTreeMap<(String, DataKind, String), DataFile>,
    /// Images, by platform and by what starts them.
    images: BTreeMap<(String, Container), Image>,
    cache: PathBuf,
    /// The Python of the trainers.
    python: PathBuf,
    /// Those of frameworks that have their own.
    pythons: HashMap<String, PathBuf>,
    /// The caller's; a bare `python3` is looked up in its PATH.
    env: BTreeMap<String, String>,
    /// What config.yaml says of where checkouts are, by setting.
    checkouts: HashMap<String, PathBuf>,
}

impl FactBook {
    pub fn load(
        root: &Path,
        allow_drift: bool,
        env: &BTreeMap<String, String>,
        reads: &ReadSet,
    ) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            lock: Lock::load(&root.join(LOCK), reads)?,
            allow_drift,
            is_auto: false,
            host: OnceLock::new(),
            book: HashMap::new(),
            missing: BTreeMap::new(),
            data: BTreeMap::new(),
            images: BTreeMap::new(),
            cache: PathBuf::new(),
            python: PathBuf::from("python3"),
            pythons: HashMap::new(),
            env: env.clone(),
            checkouts: HashMap::new(),
        })
    }

    pub fn host(&self) -> &HostFacts {
        self.host.get_or_init(host::probe)
    }

    /// The Python of a framework's trainer on this host.
    #[must_use]
    pub fn python(&self, framework: &str) -> &Path {
        self.pythons.get(framework).unwrap_or(&self.python)
    }

    #[must_use]
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// What `platform = "auto"` stands for here: the first GPU vendor of this host, else its CPU.
    /// Probes only if asked for.
    pub fn auto_platform(&mut self, config: &Config, matrix: &str) -> Option<String> {
        if !matrix.contains("auto") {
            return None;
        }
        self.is_auto = true;
        let here: Vec<Vendor> = self
            .host()
            .platforms()
            .into_iter()
            .map(|(vendor, _)| vendor)
            .collect();
        let vendor = [Vendor::Nvd, Vendor::Amd, Vendor::Cpu]
            .into_iter()
            .find(|v| here.contains(v))?;
        config
            .children("hardware.platforms")
            .find(|id| config.vendor(id) == Some(vendor))
            .map(str::to_owned)
    }

    /// Looks up or probes the facts of every (platform, framework) that the cells name.
    pub fn gather(&mut self, config: &Config, recipes: &RecipeSet, cells: &[Cell]) -> Result<()> {
        self.python = python(&self.root, config);
        for framework in config.children("frameworks") {
            if let Some(named) = config
                .get(&format!("frameworks.{framework}.python"))
                .and_then(Value::as_str)
            {
                self.pythons
                    .insert(framework.to_owned(), interpreter(&self.root, named));
            }
        }
        let mut pairs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut last = None;
        for cell in cells {
            let pair = (&*cell.platform, &*cell.framework);
            if last != Some(pair) && recipes.recipes.contains_key(pair.1) {
                pairs.entry(pair.0).or_default().insert(pair.1);
                last = Some(pair);
            }
        }
        for (platform, frameworks) in pairs {
            let vendor = config.vendor(platform).unwrap_or_default();
            let model = config
                .get(&format!("hardware.platforms.{platform}.gpu_model"))
                .and_then(Value::as_str);
            for framework in frameworks {
                let recipe = &recipes.recipes[framework];
                if !recipe.file.vendors.contains(&vendor) {
                    continue;
                }
                for checkout in &recipe.file.require.checkouts {
                    if let Some(path) = config.get(&checkout.setting).and_then(Value::as_str) {
                        self.checkouts
                            .insert(checkout.setting.clone(), self.root.join(path));
                    }
                }
                let facts = self.facts(platform, vendor, model, recipe)?;
                self.book
                    .insert((platform.to_owned(), framework.to_owned()), Arc::new(facts));
            }
        }
        Ok(())
    }

    #[must_use]
    pub fn of(&self, platform: &str, framework: &str) -> Arc<PlatformFacts> {
        let unknown = || {
            let why = format!("nothing is known of {platform}/{framework}");
            let (all, section) = (BTreeMap::new(), BTreeMap::new());
            Arc::new(PlatformFacts {
                known: Err(why.clone()),
                all,
                section,
                available: Err(why),
            })
        };
        self.book
            .get(&(platform.to_owned(), framework.to_owned()))
            .cloned()
            .unwrap_or_else(unknown)
    }

    /// Looks up or takes the digests of everything that the cells read.
    pub(super) fn gather_data(
        &mut self,
        config: &Config,
        cells: &[Cell],
        plans: &mut [CellPlan],
    ) -> Result<()> {
        self.cache = config.cache_dir(&self.root);
        let mut memo = None;
        for (cell, plan) in cells.iter().zip(plans) {
            let Support::Ready(prepared) = &mut plan.support else {
                continue;
            };
            if let Some(container) = prepared.resolved.execution.container.clone() {
                let available = prepared.facts.available.is_ok();
                let memo = memo.get_or_insert_with(|| DataMemo::load(&self.cache));
                prepared.image =
                    Some(self.image(&cell.platform, &cell.framework, container, available, memo));
            }
            let model = &prepared.resolved.job.model;
            // A tokenizer alone does nothing to synthetic tokens.
            let Some(dataset) = &model.dataset else {
                continue;
            };
            let tokenizer = model
                .tokenizer
                .iter()
                .map(|name| (DataKind::Tokenizer, name));
            let mut files = Vec::new();
            for (kind, name) in std::iter::once((DataKind::Dataset, dataset)).chain(tokenizer) {
                let path = self.root.join(&prepared.resolved.data_paths[&kind]);
                let key = (cell.platform.to_string(), kind, name.clone());
                if let Some(other) = self.data.get(&key).filter(|known| known.path != path) {
                    let (kind, name, at) = (kind.name(), &other.name, &cell.platform);
                    let (one, two) = (other.path.display(), path.display());
                    let problem = Problem::new(format!(
                        "on {at} `{name}` is the name of two {kind}s: {one} and {two}"
                    ));
                    return Err(Error::invalid(
                        problem.help(format!("give one of the models a {kind}_name")),
                    ));
                }
                if !self.data.contains_key(&key) {
                    let available = prepared.facts.available.as_ref().map_err(String::as_str);
                    let memo = memo.get_or_insert_with(|| DataMemo::load(&self.cache));
                    let file = data_file(
                        &self.lock,
                        self.allow_drift,
                        available,
                        (&key.0, kind, name),
                        path,
                        memo,
                    )?;
                    if let Ok(digest) = file.digest
                        && self
                            .lock
                            .section(&key.0)
                            .and_then(|s| s.digest(kind.table(), name))
                            .is_none()
                    {
                        self.missing.entry(key.0.clone()).or_default().set_digest(
                            kind.table(),
                            name,
                            digest,
                        );
                    }
                    self.data.insert(key.clone(), file);
                }
                files.push(self.data[&key].clone());
            }
            prepared.data = files;
        }
        memo.iter_mut().for_each(DataMemo::save);
        Ok(())
    }

    /// The image of a platform, looked up once; `available`: this host can run the platform, so its
    /// engine is asked.
    fn image(
        &mut self,
        platform: &str,
        framework: &str,
        container: Container,
        available: bool,
        memo: &mut DataMemo,
    ) -> Image {
        let key = (platform.to_owned(), container);
        if let Some(known) = self.images.get(&key) {
            return known.clone();
        }
        let (_, container) = &key;
        let name = container.image.clone();
        let engine = match (Engine::find(container.engine, &self.env), container.engine) {
            // What is a file on a shared file system is known where its engine is not.
            (Err(_), Some(kind)) if kind.file_of(&name, &self.root).is_some() => Ok(Engine {
                kind,
                program: PathBuf::new(),
            }),
            (found, _) => found,
        };
        let file = engine
            .as_ref()
            .ok()
            .and_then(|engine| engine.kind.file_of(&name, &self.root));
        let here = match engine {
            Ok(engine) if available => {
                engine.image_digest(&self.env, &name, &self.root, |path| memo.of_file(path))
            }
            Ok(_) => Err("this host cannot run the platform".to_owned()),
            Err(why) => Err(why),
        };
        let locked = self
            .lock
            .section(platform)
            .and_then(|section| section.digest(IMAGES, &name))
            .map(str::to_owned);
        let digest = match (&locked, &here) {
            (_, Ok(Some(found))) if locked.is_none() || (self.allow_drift && available) => {
                Ok(found.clone())
            }
            (Some(locked), _) => Ok(locked.clone()),
            (None, Ok(_)) => Err(format!(
                "there is no image {name} on this host: `tprimat image build {framework} --platform {platform}` makes one, `tprimat image pull` fetches it"
            )),
            (None, Err(why)) => Err(format!(
                "tprimat.lock does not pin the image {name} for {platform}, and {why}"
            )),
        };
        if let (None, Ok(found)) = (&locked, &digest) {
            self.missing
                .entry(platform.to_owned())
                .or_default()
                .set_image(&name, found);
        }
        let image = Image {
            name,
            digest,
            here,
            file,
        };
        self.images.insert(key, image.clone());
        image
    }

    /// Sets the digests of a platform's data as this host has it.
    fn probe_data(&self, platform: &str, section: &mut Section) -> Result<()> {
        let mut memo = DataMemo::load(&self.cache);
        for ((of, kind, name), file) in &self.data {
            if of == platform && file.is_here {
                section.set_digest(kind.table(), name, memo.digest(*kind, &file.path)?);
            }
        }
        memo.save();
        for ((of, _), image) in &self.images {
            if let (true, Ok(Some(found))) = (of == platform, &image.here) {
                section.set_image(&image.name, found);
            }
        }
        Ok(())
    }

    fn facts(
        &mut self,
        platform: &str,
        vendor: Vendor,
        model: Option<&str>,
        recipe: &Recipe,
    ) -> Result<PlatformFacts> {
        let available = self.available(platform, vendor, model);
        let locked = self.lock.section(platform);
        let (id, needs_packages) = (&recipe.file.id, !recipe.file.lock.packages.is_empty());
        let needs_checkouts = !recipe.file.require.checkouts.is_empty();
        let is_locked = locked.is_some_and(|s| {
            (!needs_packages || s.packages.contains_key(id))
                && (!needs_checkouts || s.checkouts.contains_key(id))
        });
        let section = match (locked, &available) {
            (Some(section), _) if is_locked && !self.allow_drift => section.clone(),
            (Some(section), Err(_)) if is_locked => section.clone(),
            (_, Ok(_)) => {
                let probed = self.probed(vendor, recipe)?;
                if !is_locked {
                    let missing = self.missing.entry(platform.to_owned()).or_default();
                    missing.facts.clone_from(&probed.facts);
                    missing.packages.extend(probed.packages.clone());
                    missing.checkouts.extend(probed.checkouts.clone());
                }
                // One fact the lock has and one it lacks must not be mixed from two states of a
                // host.
                match locked {
                    Some(section) if !self.allow_drift => Section {
                        facts: section.facts.clone(),
                        ..probed
                    },
                    _ => probed,
                }
            }
            (_, Err(why)) => {
                // What is not pinned is not known of a host that is elsewhere.
                let known = Err(why.clone());
                return Ok(PlatformFacts {
                    known,
                    all: BTreeMap::new(),
                    section: BTreeMap::new(),
                    available,
                });
            }
        };
        let mut all: BTreeMap<String, String> = section
            .facts
            .iter()
            .map(|(name, fact)| (name.clone(), fact.to_string()))
            .collect();
        let mut known = BTreeMap::new();
        for name in &recipe.file.lock.facts {
            if let Some(fact) = section.facts.get(name) {
                known.insert(name.clone(), fact_json(fact));
            }
        }
        for name in &recipe.file.lock.packages {
            if let Some(version) = section
                .packages
                .get(&recipe.file.id)
                .and_then(|p| p.get(name))
            {
                known.insert(format!("package.{name}"), version.clone().into());
            }
        }
        for (variable, facts) in section.checkouts.get(&recipe.file.id).into_iter().flatten() {
            known.extend(
                facts.iter().map(|(name, text)| {
                    (format!("checkout.{variable}.{name}"), text.clone().into())
                }),
            );
        }
        let of_recipe = known
            .iter()
            .filter(|(name, _)| name.starts_with("package.") || name.starts_with("checkout."));
        all.extend(
            of_recipe.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))),
        );
        Ok(PlatformFacts {
            known: Ok(known),
            all,
            section: section.facts,
            available,
        })
    }

    /// Stamps of a dataset's files, from when they were last read.
    #[must_use]
    pub fn data_stamps(&self, path: &Path, digest: Digest) -> Vec<Stamp> {
        DataMemo::load(&self.cache).stamps(path, digest)
    }

    /// Where the recipe's checkouts are on this host; `None`: config.yaml does not say.
    #[must_use]
    pub fn checkouts<'r>(&self, recipe: &'r Recipe) -> Vec<(&'r Checkout, Option<PathBuf>)> {
        let all = recipe.file.require.checkouts.iter();
        all.map(|checkout| (checkout, self.checkouts.get(&checkout.setting).cloned()))
            .collect()
    }

    /// GPUs of a vendor that runs may be given.
    #[must_use]
    pub fn usable_gpus(&self, vendor: Vendor) -> Vec<usize> {
        self.host()
            .usable(vendor, &|name| self.env.get(name).cloned())
    }

    fn available(
        &self,
        platform: &str,
        vendor: Vendor,
        model: Option<&str>,
    ) -> Result<usize, String> {
        let host = self.host();
        let count = host
            .platforms()
            .into_iter()
            .find(|(v, _)| *v == vendor)
            .map_or(0, |(_, count)| count);
        if count == 0 {
            return Err(format!("needs {}; this host has none", device_of(vendor)));
        }
        let found = host
            .section(vendor)
            .and_then(|s| s.facts.get("accelerator").cloned());
        if vendor != Vendor::Cpu
            && let (Some(model), Some(Fact::Text(found))) = (model, found)
            && !names_same_sku(model, &found)
        {
            return Err(format!(
                "platform {platform} is a {model}, this host has a {found} (--set hardware.platforms.{platform}.gpu_model=…)"
            ));
        }
        Ok(if vendor == Vendor::Cpu {
            count
        } else {
            self.usable_gpus(vendor).len()
        })
    }

    fn probed(&self, vendor: Vendor, recipe: &Recipe) -> Result<Section> {
        let mut section = self.host().section(vendor).unwrap_or_default();
        let names: Vec<&str> = recipe
            .file
            .lock
            .packages
            .iter()
            .map(String::as_str)
            .collect();
        if !names.is_empty() {
            // Without a usable Python nothing of it can run, and the pre-flight says so; planning
            // goes on.
            let found = host::python_packages(self.python(&recipe.file.id), &self.env, &names)
                .unwrap_or_default();
            section.set_packages(&recipe.file.id, &found);
        }
        let mut found = BTreeMap::new();
        for (checkout, path) in self.checkouts(recipe) {
            let Some(path) = path else { continue };
            let facts = host::checkout_facts(&path, &checkout.file)?;
            found.insert(checkout.variable.clone(), facts);
        }
        if !recipe.file.require.checkouts.is_empty() {
            section.set_checkouts(&recipe.file.id, found);
        }
        Ok(section)
    }

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

    /// An error that names every line of the lock that this host contradicts.
    #[must_use]
    pub fn drift_error(&self, platform: &str, drift: &[FactDiff]) -> Error {
        let text = std::fs::read_to_string(self.root.join(LOCK)).unwrap_or_default();
        let source = Source::new(LOCK, text);
        let problems = drift.iter().map(|diff| {
            let show = |fact: &Option<Fact>| fact.as_ref().map_or_else(|| "nothing".to_owned(), |f| fact_json(f).to_string());
            let message = format!("this host differs from tprimat.lock: {platform}, {}", diff.name);
            let problem = Problem::new(message).help(
                "`tprimat lock --update` pins what is here (and makes its results stale); --allow-drift files results under what is here",
            );
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

    /// Once what was missing is written: are all keys made of the lock alone, whatever this host
    /// has later?
    #[must_use]
    pub fn are_all_locked(&self) -> bool {
        !self.allow_drift && !self.is_auto
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
            let help =
                "build once without --locked on that platform's host, and commit tprimat.lock";
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
            section.packages.remove(framework);
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

/// `available`: can this host run the platform? What is not pinned is looked at there and nowhere
/// else.
fn data_file(
    lock: &Lock,
    allow_drift: bool,
    available: Result<&usize, &str>,
    (platform, kind, name): (&str, DataKind, &String),
    path: PathBuf,
    memo: &mut DataMemo,
) -> Result<DataFile> {
    let is_here = kind.is_at(&path);
    let not_pinned = |why: &str| {
        Err(format!(
            "tprimat.lock does not pin the {} `{name}` for {platform}, and {why}",
            kind.name()
        ))
    };
    let locked = lock
        .section(platform)
        .and_then(|section| section.digest(kind.table(), name));
    let digest = match (locked, available) {
        (Some(locked), _) if !(allow_drift && available.is_ok() && is_here) => {
            locked.parse().map_err(|_| {
                format!(
                    "tprimat.lock pins no digest for the {} `{name}` of {platform}",
                    kind.name()
                )
            })
        }
        (_, Err(why)) => not_pinned(why),
        (_, Ok(_)) if !is_here => {
            // A hub's name says nothing of the content, which may change there.
            let download = match kind {
                DataKind::Tokenizer => {
                    "; a tokenizer that is on a hub must be downloaded, with its folder as tokenizer_path"
                }
                DataKind::Dataset => "",
            };
            not_pinned(&format!("{} is not here{download}", path.display()))
        }
        (_, Ok(_)) => Ok(memo.digest(kind, &path)?),
    };
    Ok(DataFile {
        kind,
        name: name.clone(),
        path,
        digest,
        is_here,
    })
}

fn fact_json(fact: &Fact) -> Value {
    match fact {
        Fact::Number(n) => (*n).into(),
        Fact::Text(text) => text.clone().into(),
    }
}

/// `H100` names `NVIDIA H100 80GB HBM3`: every word of the shorter name is in the longer.
fn names_same_sku(declared: &str, found: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        text.to_lowercase()
            .split(|c: char| !c.is_alphanumeric())
            .filter(|w| !w.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let found = words(found);
    // Form factors and vendor names are told in different ways; the model number decides.
    words(declared)
        .iter()
        .filter(|w| w.chars().any(|c| c.is_ascii_digit()) && !w.ends_with("gb"))
        .all(|w| found.contains(w))
}

fn python(root: &Path, config: &Config) -> PathBuf {
    if let Some(named) = config.get("paths.python").and_then(Value::as_str) {
        return interpreter(root, named);
    }
    let venv = root.join(".venv/bin/python");
    if venv.exists() {
        venv
    } else {
        PathBuf::from("python3")
    }
}

/// A bare command is looked up in PATH; a path is taken from the project, and may be the folder of
/// a virtual environment.
fn interpreter(root: &Path, named: &str) -> PathBuf {
    let path = root.join(named);
    let in_folder = path.join("bin/python");
    if in_folder.exists() {
        in_folder
    } else if named.contains('/') {
        path
    } else {
        PathBuf::from(named)
    }
}

/// `90s`, `30m`, `1h 30m` → seconds.
#[must_use]
pub fn seconds(text: &str) -> Option<f64> {
    let duration: jiff::SignedDuration = text.trim().parse().ok()?;
    (duration > jiff::SignedDuration::ZERO).then(|| duration.as_secs_f64())
}

#[cfg(test)]
mod tests;

//! What keys know of hardware and software: tprimat.lock where it has a section, else this host.

mod files;
mod packages;
mod pinning;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use serde_json::Value;

pub use files::Image;
pub use packages::CommandPython;

use super::{Asked, Container, DataFile, DataKind, data::DataMemo};
use crate::{
    config::Config,
    digest::Digest,
    error::Result,
    files::{ReadSet, Stamp},
    host::{self, Fact, HostFacts, Lock, Section},
    job::{Job, Vendor},
    matrix::Cell,
    recipe::{COMMAND, Checkout, Recipe, RecipeSet},
};

pub const LOCK: &str = "tprimat.lock";

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

impl PlatformFacts {
    /// For runs that a batch system takes to another host: what this one has decides nothing.
    /// `update`: the command that pins the facts of the host it is run on.
    #[must_use]
    pub fn elsewhere(&self, platform: &str, update: &str) -> Self {
        let mut facts = self.clone();
        facts.available = Ok(usize::MAX);
        facts.known = facts.known.map_err(|why| {
            format!("tprimat.lock does not pin {platform}, and this host cannot ({why}); `srun … {update}` on one of its nodes does")
        });
        facts
    }

    /// For runs in pods, whose nodes have nothing in common with this host: only a pod pins what they
    /// have.
    #[must_use]
    pub fn of_pods(&self, platform: &str, update: &str) -> Self {
        let mut facts = self.clone();
        facts.known = Err(format!(
            "tprimat.lock does not pin {platform}, whose runs are Jobs of Kubernetes: run `{update}` once in a pod with their image, \
             volumes and GPUs (`tprimat help executors` says how)"
        ));
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
    /// The command that pins what the matrix needs of a host.
    pub update: String,
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
    /// By recipe, those that commands of the user's own start.
    commands: BTreeMap<String, BTreeSet<CommandPython>>,
    /// Where a Python of this host has other packages than the lock pins, in words.
    pub differing: Vec<String>,
    /// What each of these has, or why that is not known, by interpreter and recipe.
    installed: HashMap<(PathBuf, String), Result<BTreeMap<String, String>, String>>,
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
            update: Asked::default().command("lock", &["--update"]),
            is_auto: false,
            host: OnceLock::new(),
            book: HashMap::new(),
            missing: BTreeMap::new(),
            data: BTreeMap::new(),
            images: BTreeMap::new(),
            cache: PathBuf::new(),
            python: PathBuf::from("python3"),
            pythons: HashMap::new(),
            commands: BTreeMap::new(),
            differing: Vec::new(),
            installed: HashMap::new(),
            env: {
                let mut env = env.clone();
                env.entry(host::PYENV_DIR.to_owned())
                    .or_insert_with(|| root.to_string_lossy().into_owned());
                env
            },
            checkouts: HashMap::new(),
        })
    }

    pub fn host(&self) -> &HostFacts {
        self.host.get_or_init(host::probe)
    }

    /// The variables that decide which Python is found.
    #[must_use]
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
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
        self.python = host::followed(python(&self.root, config), &self.env);
        for (framework, stated) in &config.settings().frameworks {
            if let Some(named) = &stated.python {
                let named = host::followed(interpreter(&self.root, named), &self.env);
                self.pythons.insert(framework.clone(), named);
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
            let stated = config.settings().hardware.platforms.get(platform);
            let model = stated.and_then(|platform| platform.gpu_model.as_deref());
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

    fn facts(
        &mut self,
        platform: &str,
        vendor: Vendor,
        model: Option<&str>,
        recipe: &Recipe,
    ) -> Result<PlatformFacts> {
        let available = self.available(platform, vendor, model);
        let locked = self.lock.section(platform);
        let id = &recipe.file.id;
        let is_command = recipe.file.launch.has_option(COMMAND);
        let needs_packages = !is_command && !recipe.file.lock.packages.is_empty();
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
        // Those of a command are its cell's.
        for name in recipe.file.lock.packages.iter().filter(|_| !is_command) {
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

    /// Does the lock lack a platform, and may this host not stand in for it?
    #[must_use]
    pub fn lacks(&self, platform: &str) -> bool {
        !self.allow_drift && self.lock.section(platform).is_none()
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
        let id = &recipe.file.id;
        if recipe.file.launch.has_option(COMMAND) {
            for python in self.commands.get(id).into_iter().flatten() {
                if let Ok(found) = self.packages_of(recipe, &python.interpreter) {
                    section.packages.insert(python.name.clone(), found);
                }
            }
        } else if !recipe.file.lock.packages.is_empty() {
            // Without a usable Python nothing of it can run, and the pre-flight says so; planning
            // goes on.
            let found = self
                .packages_of(recipe, self.python(id))
                .unwrap_or_default();
            section.packages.insert(id.clone(), found);
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
    if let Some(named) = &config.settings().paths.python {
        return interpreter(root, named);
    }
    let own = [".venv", "venv"].map(|folder| root.join(folder).join("bin/python"));
    let own = own.into_iter().find(|python| python.exists());
    own.unwrap_or_else(|| PathBuf::from("python3"))
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

#[cfg(test)]
mod tests;

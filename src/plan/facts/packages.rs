//! The packages of a trainer that is a command of the user's own.
//!
//! A recipe has one Python on a host. Commands may name several, one for each cell: comparing two
//! versions of PyTorch is what such a matrix is for. So the packages of each are pinned under a name
//! of their own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use super::{super::command_words::is_conda_run, FactBook};
use crate::{
    config::strings,
    error::{Error, Result},
    files::{ReadSet, open_regular},
    host,
    matrix::Cell,
    plan::{CellPlan, Place, Prepared, Support},
    recipe::{COMMAND, Recipe, RecipeSet, mentions_python},
};

/// Programs of Python packages that start a trainer with the interpreter of their first line.
const LAUNCHERS: [&str; 3] = ["torchrun", "accelerate", "deepspeed"];
/// A script that is looked through for a Python, and the first line of a launcher.
const MOST_BYTES: u64 = 1 << 20;

/// The Python of a command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandPython {
    /// What tprimat.lock calls its packages: `cmd`, or `cmd envs/new/bin/python`.
    pub name: String,
    /// A path, or a name that is looked up in PATH.
    pub interpreter: PathBuf,
}

impl FactBook {
    /// Adds to the facts of each cell with a command of its own the versions of the packages that
    /// its Python has. Notes where a Python of this host has others than the lock pins, for whoever
    /// upgraded one waits for new figures.
    pub(in crate::plan) fn gather_packages(
        &mut self,
        recipes: &RecipeSet,
        cells: &[Cell],
        plans: &mut [CellPlan],
        reads: &ReadSet,
    ) -> Result<()> {
        let mut seen = BTreeSet::new();
        for (cell, plan) in cells.iter().zip(plans) {
            let Support::Ready(prepared) = &mut plan.support else {
                continue;
            };
            let recipe = &recipes.recipes[&*cell.framework];
            let is_in_image = prepared.resolved.execution.container.is_some();
            if recipe.file.lock.packages.is_empty() || is_in_image {
                continue;
            }
            let python = if recipe.file.launch.has_option(COMMAND) {
                let Some(python) = self.python_of(recipe, prepared) else {
                    continue;
                };
                self.add_packages(&cell.platform, recipe, python.clone(), prepared);
                python
            } else {
                CommandPython {
                    name: recipe.file.id.clone(),
                    interpreter: self.python(&recipe.file.id).to_owned(),
                }
            };
            if plan.selected
                && prepared.facts.available.is_ok()
                && prepared.resolved.execution.place == Place::Local
                && seen.insert((cell.platform.to_string(), python.clone()))
            {
                self.compare_with_lock(&cell.platform, recipe, &python, reads)?;
            }
        }
        Ok(())
    }

    fn compare_with_lock(
        &mut self,
        platform: &str,
        recipe: &Recipe,
        python: &CommandPython,
        reads: &ReadSet,
    ) -> Result<()> {
        for folder in host::package_folders(&python.interpreter, &self.env) {
            let refused = Error::io("cannot read the folder", &folder);
            reads.list(&folder).map_err(refused)?;
        }
        for (name, folder) in self.editable(&python.interpreter) {
            if host::state_around(&folder).is_ok_and(|state| state.is_none()) {
                self.differing.push(format!(
                    "the package `{name}` of `{}` is imported from {}, which is in no git repository, so edits there make nothing stale",
                    python.interpreter.display(),
                    folder.display()
                ));
            }
        }
        let locked = self.lock.section(platform);
        let Some(locked) = locked.and_then(|section| section.packages.get(&python.name)) else {
            return Ok(());
        };
        let Ok(found) = self.packages_of(recipe, &python.interpreter) else {
            return Ok(());
        };
        let names: BTreeSet<&String> = locked.keys().chain(found.keys()).collect();
        let differing = names
            .into_iter()
            .filter(|name| locked.get(*name) != found.get(*name));
        let told: Vec<String> = differing
            .map(|name| {
                let version = |of: Option<&String>| of.map_or("none", String::as_str).to_owned();
                format!(
                    "{name} {} (locked: {})",
                    version(found.get(name)),
                    version(locked.get(name))
                )
            })
            .collect();
        if !told.is_empty() && !self.allow_drift {
            self.differing.push(format!(
                "this host differs from tprimat.lock: `{}` has {}; what is shown was measured with what is locked, and `{}` pins what is here, so that it is measured",
                python.interpreter.display(),
                told.join(", "),
                self.update
            ));
        }
        Ok(())
    }

    fn add_packages(
        &mut self,
        platform: &str,
        recipe: &Recipe,
        python: CommandPython,
        prepared: &mut Prepared,
    ) {
        let versions = self.versions(platform, recipe, &python, &prepared.facts.available);
        let mut facts = (*prepared.facts).clone();
        match (&mut facts.known, versions) {
            (Ok(known), Ok(versions)) => {
                for (name, version) in versions {
                    let name = format!("package.{name}");
                    facts.all.insert(name.clone(), version.clone());
                    known.insert(name, version.into());
                }
            }
            // What cannot be read is in no key, and whoever measures is to know it.
            (Ok(_), Err(why)) => prepared.resolved.notes.push(format!(
                "the packages of `{}` are not known ({why}), so other versions of them make nothing stale; \
                 `frameworks.{}.python` names the interpreter itself",
                python.interpreter.display(),
                recipe.file.id
            )),
            (Err(_), _) => {}
        }
        prepared.facts = Arc::new(facts);
        prepared.python = Some(python);
    }

    /// As the lock has them, else as they are installed here.
    fn versions(
        &mut self,
        platform: &str,
        recipe: &Recipe,
        python: &CommandPython,
        available: &Result<usize, String>,
    ) -> Result<BTreeMap<String, String>, String> {
        let of_recipe = self.commands.entry(recipe.file.id.clone()).or_default();
        of_recipe.insert(python.clone());
        let locked = self.lock.section(platform);
        let locked = locked.and_then(|section| section.packages.get(&python.name));
        if let Some(locked) = locked
            && (!self.allow_drift || available.is_err())
        {
            return Ok(locked.clone());
        }
        if let Err(why) = available {
            return Err(format!("{why}, and tprimat.lock does not pin them"));
        }
        let asked = (python.interpreter.clone(), recipe.file.id.clone());
        let found = match self.installed.get(&asked) {
            Some(known) => known.clone(),
            None => {
                let found = self.packages_of(recipe, &python.interpreter);
                self.installed.insert(asked, found.clone());
                found
            }
        }?;
        if locked.is_none() {
            let missing = self.missing.entry(platform.to_owned()).or_default();
            missing.packages.insert(python.name.clone(), found.clone());
        }
        Ok(found)
    }

    /// Packages that are worked on outside of the project. What lies in it is an input by its files.
    fn editable(&self, python: &Path) -> Vec<(String, PathBuf)> {
        let mut editable = host::editable_packages(python, &self.env);
        editable.retain(|(_, folder)| !folder.starts_with(&self.root));
        editable
    }

    /// The packages that a recipe depends on, as an interpreter has them.
    pub(super) fn packages_of(
        &self,
        recipe: &Recipe,
        python: &Path,
    ) -> Result<BTreeMap<String, String>, String> {
        let editable = self.editable(python);
        let names = recipe.file.lock.packages.iter();
        let names = names.chain(editable.iter().map(|(name, _)| name));
        let names: Vec<&str> = names.map(String::as_str).collect();
        let found = host::python_packages(python, &self.env, &names).map_err(|e| e.to_string())?;
        let installed = found.into_iter();
        Ok(installed
            .filter_map(|(name, version)| Some((name, version?)))
            .collect())
    }

    /// The Python that a cell's command starts, as far as its words and its scripts tell.
    fn python_of(&self, recipe: &Recipe, prepared: &Prepared) -> Option<CommandPython> {
        let id = &recipe.file.id;
        let named = |interpreter: PathBuf, name: Option<&str>| {
            let name = name.map_or_else(|| id.clone(), |name| format!("{id} {name}"));
            Some(CommandPython { name, interpreter })
        };
        let command = prepared.job().framework.get(COMMAND)?;
        let words: Vec<&str> = match command {
            Value::String(text) => text.split_whitespace().collect(),
            list => strings(list),
        };
        let is_one = words.iter().any(|word| mentions_python(word))
            || prepared.inputs.files.iter().any(|input| {
                let is_named = words.iter().any(|word| word.ends_with(&input.name));
                is_named
                    && self
                        .text_of(&input.name)
                        .is_some_and(|text| mentions_python(&text))
            });
        if let Some(stated) = self.pythons.get(id).filter(|_| is_one) {
            return named(stated.clone(), None);
        }
        if let Some(environment) = conda_environment(&words) {
            let path = host::which(words[0], &self.env).and_then(|conda| {
                let root = conda.canonicalize().ok()?.parent()?.parent()?.to_owned();
                Some(root.join("envs").join(environment))
            });
            let path = path.unwrap_or_else(|| environment.into());
            return named(path.join("bin/python"), Some(environment));
        }
        // A command finds the folder of the project's Python first in its PATH, unless the project sets that.
        let own = self.python(id);
        let stated_path = &prepared.resolved.env;
        let has_path = stated_path.contains_key("PATH");
        let beside = |word: &str| {
            if has_path {
                return host::which(word, stated_path);
            }
            let path = own.with_file_name(word);
            (own.is_absolute() && path.is_file()).then_some(path)
        };
        for word in &words {
            let base = word.rsplit('/').next().unwrap_or(word);
            if LAUNCHERS.contains(&base) {
                let launcher = if word.contains('/') {
                    Some(self.root.join(word))
                } else {
                    beside(word).or_else(|| host::which(word, &self.env))
                };
                let interpreter = launcher.and_then(|path| interpreter_of(&path));
                return named(interpreter.unwrap_or_else(|| "python3".into()), None);
            }
            let version = base.strip_prefix("python");
            if version.is_some_and(|v| v.chars().all(|c| c.is_ascii_digit() || c == '.')) {
                let is_plain = ["python", "python3"].contains(word);
                let path = if word.contains('/') {
                    self.root.join(word)
                } else if is_plain && !has_path {
                    own.to_owned()
                } else {
                    beside(word).unwrap_or_else(|| PathBuf::from(word))
                };
                return named(path, (!is_plain).then_some(word));
            }
        }
        // A script that asks for one, or a program that is one: the Python that runs are told of.
        is_one.then(|| named(own.to_owned(), None))?
    }

    fn text_of(&self, name: &str) -> Option<String> {
        let (file, _) = open_regular(&self.root.join(name)).ok()?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The environment of `conda run -n NAME …` or `-p PATH`, by its name or path.
fn conda_environment<'a>(words: &[&'a str]) -> Option<&'a str> {
    if !is_conda_run(words) {
        return None;
    }
    let is_option = |pair: &&[&str]| ["-n", "--name", "-p", "--prefix"].contains(&pair[0]);
    words.windows(2).find(is_option).map(|pair| pair[1])
}

/// The interpreter of a script's first line: `#!/opt/env/bin/python`, `#!/usr/bin/env python3`.
fn interpreter_of(script: &Path) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let file = fs::File::open(script).ok()?;
    file.take(4096).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut words = text.lines().next()?.strip_prefix("#!")?.split_whitespace();
    let first = words.next()?;
    let path = if first.ends_with("/env") {
        words.next()?
    } else {
        first
    };
    path.contains("python").then(|| PathBuf::from(path))
}

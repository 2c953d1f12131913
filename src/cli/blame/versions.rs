//! A cell with the versions of a Python package, each in an environment of its own.
//!
//! An environment has the package, and what pip must change with it; all else it finds where the cell's own
//! Python has it. So a version costs what it weighs, and not what a trainer needs besides.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;

use super::{
    differences::Difference,
    series::{Series, differences},
    since::like,
};
use crate::{
    cli::{blocked, session::Session, train_host::train_host},
    error::{Error, Result},
    execute::{Interrupts, ProbeDepth},
    files::{Durability, write_atomically},
    host::{self, last_line},
    matrix::CellId,
    plan::{CommandPython, LAUNCHERS, Place, PlanRequest},
    recipe::COMMAND,
    results::words::few,
};

/// The environment, in the folder that is made for it.
const ENVIRONMENT: &str = "environment";
/// Made in the same folder whenever the Python of the environment starts.
pub const STARTED: &str = "started";
/// How long a version may take to be built and installed.
const PATIENCE: Duration = Duration::from_secs(3 * 60 * 60);

const LIST: &str = "`NAME==OLD..NEW` takes those that pip offers; `NAME==1.0,1.1,2.0` lists them, the oldest first";

pub struct Package {
    pub name: String,
    framework: String,
    /// The Python of the cell, and the folders of its packages.
    python: PathBuf,
    folders: Vec<PathBuf>,
    env: BTreeMap<String, String>,
    interrupts: Interrupts,
}

/// `NAME==OLD..NEW`, or `NAME==V1,V2,V3`: each version after the first one, the oldest first.
pub fn versions(
    session: &Session,
    cell: CellId,
    range: &str,
    interrupts: Interrupts,
) -> Result<Vec<Difference>> {
    let refused = |why: &str| Error::refused(format!("--versions {range}: {why}"), LIST);
    let (name, list) = range
        .split_once("==")
        .filter(|(name, _)| is_plain(name))
        .ok_or_else(|| refused("give a package and its versions"))?;
    let of = Package::of(session, cell, name, interrupts)?;
    let versions: Vec<String> = match list.split_once("..") {
        None => list.split(',').map(|one| one.trim().to_owned()).collect(),
        Some((old, new)) => {
            let offered = of.offered().map_err(|error| match error {
                Error::Interrupted(_) => error,
                error => refused(&format!(
                    "pip does not say which versions there are ({error})"
                )),
            })?;
            let [first, last] = [old, new].map(|end| {
                offered.iter().position(|one| one == end).ok_or_else(|| {
                    let newest: Vec<String> = offered.iter().rev().cloned().collect();
                    refused(&format!("pip offers {}, and not {end}", few(&newest)))
                })
            });
            offered.get(first?..=last?).unwrap_or_default().to_vec()
        }
    };
    if versions.len() < 2 || !versions.iter().all(|one| is_plain(one)) {
        return Err(refused("these are not two versions or more"));
    }
    let mut versions = versions.into_iter();
    let first = versions.next().unwrap_or_default();
    let others = versions.map(|one| (one.clone(), [name.to_owned(), one]));
    Ok(differences(Series::Versions(of), first, others))
}

/// Does a name or a version mean nothing else to pip?
fn is_plain(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-_+!".contains(c))
}

impl Package {
    fn of(session: &Session, id: CellId, name: &str, interrupts: Interrupts) -> Result<Self> {
        let plan = &session.plan;
        let (cell, framework) = (&plan.cells[id].id, &*plan.matrix.cells[id].framework);
        let prepared = plan.prepared(id);
        let execution = prepared.map(|prepared| &prepared.resolved.execution);
        if execution.is_none_or(|of| of.place != Place::Local || of.container.is_some()) {
            return Err(Error::refused(
                format!("`{cell}` does not run in an environment of this host"),
                "make the environments or images of the versions an axis of a matrix",
            ));
        }
        let command = prepared.and_then(|prepared| prepared.python.as_ref());
        if let Some(recipe) = plan.recipes.recipes.get(framework)
            && recipe.file.launch.has_option(COMMAND)
            && !command.is_some_and(CommandPython::is_looked_up)
        {
            return Err(Error::refused(
                format!("the command of `{cell}` does not start a Python that can be replaced"),
                "let it start `python3` or a launcher such as `torchrun`, without its folder",
            ));
        }
        // The environments stand in for what is pinned, so all else must be as it is pinned.
        let host = train_host(session)?;
        let blocked = blocked::find(plan, &[id], &host, ProbeDepth::ByAsking)?;
        if let Some(problem) = blocked.into_values().flatten().next() {
            return Err(Error::invalid(problem));
        }
        let mut env = session.request.env.clone();
        let root = plan.root.to_string_lossy().into_owned();
        env.entry(host::PYENV_DIR.to_owned()).or_insert(root);
        let python = match command {
            Some(command) => &command.interpreter,
            None => plan.facts.python(framework),
        };
        Ok(Self {
            name: name.to_owned(),
            framework: framework.to_owned(),
            folders: host::package_folders(python, &env),
            python: host::followed(python.to_owned(), &env),
            env,
            interrupts,
        })
    }

    /// The versions that pip would install, the oldest first, without pre-releases.
    fn offered(&self) -> Result<Vec<String>> {
        let list = ["-m", "pip", "index", "versions", &self.name];
        let said = self.said(&self.python, &list)?;
        let mut lines = said.lines();
        let all = lines.find_map(|line| line.strip_prefix("Available versions: "));
        let all = all.unwrap_or_default().rsplit(", ");
        Ok(all.map(|one| one.trim().to_owned()).collect())
    }

    /// Makes an environment that has a version.
    pub fn environment(&self, version: &str, folder: &Path) -> Result<()> {
        let python = self.empty(folder)?;
        let wanted = format!("{}=={version}", self.name);
        let install = ["-m", "pip", "install", "--quiet", "--no-input", &wanted];
        self.said(&python, &install).map(drop)
    }

    /// Makes an environment that has nothing of its own, and names its Python.
    fn empty(&self, folder: &Path) -> Result<PathBuf> {
        let environment = folder.join(ENVIRONMENT);
        let python = environment.join("bin/python");
        let place = environment.to_string_lossy();
        // Its pip is that of the cell's Python.
        self.said(&self.python, &["-m", "venv", "--without-pip", &place])?;
        let own = host::package_folders(&python, &self.env);
        let own = own
            .first()
            .ok_or_else(|| Error::failed("`python -m venv` made no folder for packages"))?;
        // Python takes the lines one by one: folders, which tprimat reads as well, and code. What lies in
        // the folders may have such lines itself.
        let mut lines: String = self
            .folders
            .iter()
            .map(|of| format!("{}\n", of.display()))
            .collect();
        let quoted = |path: &Path| json!(path.to_string_lossy()).to_string();
        let started = quoted(&folder.join(STARTED));
        lines += &format!("import pathlib, site; pathlib.Path({started}).touch()");
        let is_site =
            |of: &&PathBuf| of.ends_with("site-packages") || of.ends_with("dist-packages");
        for of in self.folders.iter().filter(is_site) {
            lines += &format!("; site.addsitedir({})", quoted(of));
        }
        write_atomically(
            &own.join("tprimat.pth"),
            lines.as_bytes(),
            Durability::Plain,
        )?;
        for launcher in LAUNCHERS {
            let Some(path) = host::which(launcher, &self.env) else {
                continue;
            };
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if let Some((first, rest)) = text.split_once('\n')
                && first.starts_with("#!")
                && first.contains("python")
            {
                let (copy, text) = (
                    python.with_file_name(launcher),
                    format!("#!{}\n{rest}", python.display()),
                );
                write_atomically(&copy, text.as_bytes(), Durability::Plain)?;
                like(&copy, &path)?;
            }
        }
        Ok(python)
    }

    /// What a Python says, which takes nothing from the folder and the variables it is started with.
    fn said(&self, python: &Path, arguments: &[&str]) -> Result<String> {
        let all = [&["-I"], arguments].concat();
        let command = duct::cmd(python.as_os_str(), all).full_env(&self.env);
        let patience = || match self.interrupts.asked() {
            Some(_) => Duration::ZERO,
            None => PATIENCE,
        };
        let failed = |why: &str| {
            let why = why.trim_start_matches("ERROR: ");
            Error::failed(format!("`{}`: {why}", arguments[1..].join(" ")))
        };
        let done = host::ask_while(&command, &patience);
        if let Some(signal) = self.interrupts.asked() {
            return Err(Error::Interrupted(signal));
        }
        let done = done.map_err(|why| failed(&why.to_string()))?;
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            false if done.stderr.is_empty() => Err(failed(&last_line(&done.stdout))),
            false => Err(failed(&last_line(&done.stderr))),
        }
    }

    /// Puts the environment of a folder first, where a command may look for its Python. What an environment
    /// has is in no lock, and its version is in the key whether the recipe names the package or not.
    pub fn name_in(&self, request: &mut PlanRequest, folder: &Path) {
        let bin = folder.join(ENVIRONMENT).join("bin");
        let python = bin.join("python");
        let set = format!("frameworks.{}.python={}", self.framework, python.display());
        request.sets.push(set);
        let path = request.env.get("PATH").map_or("", String::as_str);
        let path = format!("{}:{path}", bin.display());
        request.env.insert("PATH".to_owned(), path);
        request.packages.push(self.name.clone());
        request.allow_drift = true;
    }
}

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
};
use crate::{
    cli::session::Session,
    error::{Error, Result},
    files::{Durability, write_atomically},
    host,
    matrix::CellId,
    plan::{Place, PlanRequest, Prepared},
    recipe::COMMAND,
    results::words::few,
};

/// The environment, in the folder that is made for it.
const ENVIRONMENT: &str = "environment";
/// Names the folders of the cell's own packages. The hook of runs knows the environment by it.
const OF_CELL: &str = "tprimat-blame.pth";
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
}

/// `NAME==OLD..NEW`, or `NAME==V1,V2,V3`: each version after the first one, the oldest first.
pub fn versions(
    session: &Session,
    cell: CellId,
    prepared: &Prepared,
    range: &str,
) -> Result<Vec<Difference>> {
    let refused = |why: &str| Error::refused(format!("--versions {range}: {why}"), LIST);
    let (name, list) = range
        .split_once("==")
        .filter(|(name, _)| is_plain(name))
        .ok_or_else(|| refused("give a package and its versions"))?;
    let of = Package::of(session, cell, prepared, name)?;
    let versions: Vec<String> = match list.split_once("..") {
        None => list.split(',').map(str::to_owned).collect(),
        Some((old, new)) => {
            let offered = of.offered().map_err(|error| {
                refused(&format!(
                    "pip does not say which versions there are ({error})"
                ))
            })?;
            let [first, last] = [old, new].map(|end| {
                let at = offered.iter().position(|one| one == end);
                at.ok_or_else(|| refused(&format!("pip offers {}, and not {end}", few(&offered))))
            });
            let (first, last) = (first?, last?);
            let between = offered.get(first.min(last)..=first.max(last));
            let mut between = between.unwrap_or_default().to_vec();
            // The newest one comes first, and OLD may be newer than NEW, as after a downgrade.
            if last < first {
                between.reverse();
            }
            between
        }
    };
    if versions.len() < 2 || !versions.iter().all(|one| is_plain(one)) {
        return Err(refused("give two versions"));
    }
    let mut versions = versions.into_iter();
    let first = versions.next().unwrap_or_default();
    let others = versions.map(|one| (one.clone(), [name.to_owned(), one]));
    Ok(differences(Series::Versions(of), first, others))
}

/// `2.0` and `2.0.0`, or one with a local part behind `+`, are one version.
fn is_same(found: &str, asked: &str) -> bool {
    let [found, asked] = [found, asked].map(|of| of.split('+').next().unwrap_or(of));
    found.trim_end_matches(".0") == asked.trim_end_matches(".0")
}

/// Does a name or a version mean nothing else to pip?
fn is_plain(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-_+!".contains(c))
}

impl Package {
    fn of(session: &Session, id: CellId, prepared: &Prepared, name: &str) -> Result<Self> {
        let plan = &session.plan;
        let framework = &*plan.matrix.cells[id].framework;
        let (execution, named) = (&prepared.resolved.execution, &prepared.python);
        let is_elsewhere = execution.place != Place::Local || execution.container.is_some();
        let is_command = plan.recipe(id).file.launch.has_option(COMMAND);
        let is_fixed = named
            .as_ref()
            .map_or(is_command, |of| of.name.contains('/'));
        if is_elsewhere || is_fixed {
            let cell = &plan.cells[id].id;
            return Err(Error::refused(
                format!(
                    "`{cell}` does not start a Python of this host that another can stand in for"
                ),
                "let its command start `python3`, without a folder; or make environments an axis of a matrix",
            ));
        }
        let of_recipe = plan.facts.python(framework);
        let python = named.as_ref().map_or(of_recipe, |of| &of.interpreter);
        let env = plan.facts.env().clone();
        Ok(Self {
            name: name.to_owned(),
            framework: framework.to_owned(),
            folders: host::package_folders(python, &env),
            python: host::followed(python.to_owned(), &env),
            env,
        })
    }

    /// The versions that pip would install, the newest first, without pre-releases.
    fn offered(&self) -> Result<Vec<String>> {
        let said = self.said(&self.python, &["pip", "index", "versions", &self.name])?;
        let mut lines = said.lines();
        let all = lines.find_map(|line| line.strip_prefix("Available versions: "));
        let all = all.unwrap_or_default().split(", ");
        Ok(all.map(str::to_owned).collect())
    }

    /// Makes an environment that has a version.
    pub fn environment(&self, version: &str, folder: &Path) -> Result<()> {
        let environment = folder.join(ENVIRONMENT);
        let python = environment.join("bin/python");
        let place = environment.to_string_lossy();
        // Its pip is that of the cell's Python.
        self.said(&self.python, &["venv", "--without-pip", &place])?;
        // Python takes each line as a folder, which tprimat reads as well, or as code, which finds such lines
        // in those folders.
        let (mut folders, mut code) = (String::new(), "import site".to_owned());
        for of in &self.folders {
            folders += &format!("{}\n", of.display());
            if of.ends_with("site-packages") || of.ends_with("dist-packages") {
                code += &format!("; site.addsitedir({})", json!(of.to_string_lossy()));
            }
        }
        let own = host::package_folders(&python, &self.env);
        let file = own.first().unwrap_or(&environment).join(OF_CELL);
        write_atomically(&file, (folders + &code).as_bytes(), Durability::Plain)?;
        let wanted = format!("{}=={version}", self.name);
        self.said(
            &python,
            &["pip", "install", "--quiet", "--no-input", &wanted],
        )?;
        // The keys are made of what is found so.
        let found = host::python_packages(&python, &self.env, &[&self.name])?;
        match found.into_values().flatten().next() {
            Some(found) if is_same(&found, version) => Ok(()),
            found => Err(Error::failed(format!(
                "pip installed {wanted}, and its environment has {}",
                found.as_deref().unwrap_or("none")
            ))),
        }
    }

    /// What a module of a Python says, which takes nothing from the folder that it is started in.
    fn said(&self, python: &Path, arguments: &[&str]) -> Result<String> {
        let all = [&["-I", "-m"], arguments].concat();
        let command = duct::cmd(python.as_os_str(), all).full_env(&self.env);
        let failed = |why: &str| {
            let why = why.trim_start_matches("ERROR: ");
            Error::failed(format!("`{}`: {why}", arguments.join(" ")))
        };
        let done = host::ask(&command, PATIENCE).map_err(|why| failed(&why.to_string()))?;
        if !done.status.success() {
            return Err(failed(&host::last_line(&done.stderr)));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    /// Names the Python of an environment. What that has is in no lock, and its version is in the key whether
    /// the recipe names the package or not.
    pub fn name_in(&self, request: &mut PlanRequest, folder: &Path) {
        let python = folder.join(ENVIRONMENT).join("bin/python");
        let set = format!("frameworks.{}.python={}", self.framework, python.display());
        request.sets.push(set);
        request.packages.push(self.name.clone());
        request.allow_drift = true;
    }
}

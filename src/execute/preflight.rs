//! What must be there before the first second of training: commands, programs, Python modules, checkouts.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{TrainHost, watch::check_native};
use crate::{
    data,
    error::{Problem, Result},
    graph::CodeDigests,
    host::{self, python_packages, which},
    plan::{DataKind, Prepared},
    recipe::{Checkout, Recipe},
};

/// How a recipe's needs are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Only at files: whoever plans or checks a project starts no program that it names.
    AtFiles,
    /// Also by asking the interpreter and tprimat-native, which know best what they have.
    ByAsking,
}

/// What a recipe needs and this host lacks. `checkouts`: with where config.yaml says that they are; `python`: the interpreter
/// that runs the recipe.
#[must_use]
pub fn preflight(
    recipe: &Recipe,
    checkouts: &[(&Checkout, Option<PathBuf>)],
    python: &Path,
    host: &TrainHost,
    look: Look,
) -> Vec<Problem> {
    let require = &recipe.file.require;
    let mut problems = Vec::new();
    for command in &require.commands {
        if which(command, &host.caller_env).is_none() {
            problems.push(missing(recipe, &format!("the command `{command}`"), "it is looked up in PATH"));
        }
    }
    if require.programs.iter().any(|program| program == "tprimat-native") {
        problems.extend(native_problem(recipe, python, host, look));
    }
    problems.extend(checkouts.iter().filter_map(|(checkout, path)| absent_checkout(recipe, checkout, path.as_deref())));
    if !require.python_modules.is_empty() {
        match absent_modules(python, &host.caller_env, &require.python_modules, look) {
            Err(why) => problems.push(missing(
                recipe,
                &format!("a Python (`{}`: {why})", python.display()),
                &format!(
                    "name one with frameworks.{}.python, paths.python, $TPRIMAT_PYTHON or a .venv in the project",
                    recipe.file.id
                ),
            )),
            Ok(absent) if absent.is_empty() => {}
            Ok(absent) => {
                let packages: Vec<&str> =
                    absent.iter().map(|module| require.pip.get(module).unwrap_or(module).as_str()).collect();
                let help = format!(
                    "`{} -m pip install {}`; `tprimat recipe show {}` lists the files that pin all of them",
                    python.display(),
                    packages.join(" "),
                    recipe.file.id
                );
                let names: Vec<String> = absent.iter().map(|module| format!("`{module}`")).collect();
                let message = match &names[..] {
                    [one] => format!("recipe `{}` needs the Python module {one}, which is not there", recipe.file.id),
                    all => {
                        let all = all.join(", ");
                        format!("recipe `{}` needs the Python modules {all}, which are not there", recipe.file.id)
                    }
                };
                problems.push(Problem::new(message).help(help));
            }
        }
    }
    // Versions that cannot be read would be in no key, and other versions would pass for the same measurement.
    let packages: Vec<&str> = recipe.file.lock.packages.iter().map(String::as_str).collect();
    if problems.is_empty()
        && let Err(error) = python_packages(python, &host.caller_env, &packages)
    {
        let help = format!(
            "name the interpreter itself with frameworks.{}.python, paths.python or $TPRIMAT_PYTHON; for pyenv, `pyenv which python3` prints it",
            recipe.file.id
        );
        problems.push(Problem::new(format!("recipe `{}`: {error}", recipe.file.id)).help(help));
    }
    problems
}

/// Keys name the sources of the shipped trainer that this tprimat was built from, so no other one may run.
fn native_problem(recipe: &Recipe, python: &Path, host: &TrainHost, look: Look) -> Option<Problem> {
    const HELP: &str =
        "build it with `cargo build --release -p tprimat-native` beside tprimat, or name it in $TPRIMAT_NATIVE";
    let Some(path) = &host.native else { return Some(missing(recipe, "the program `tprimat-native`", HELP)) };
    if host.native_seen.get().is_some() || look == Look::AtFiles {
        return None;
    }
    match check_native(path, python, &CodeDigests::default().native) {
        Ok(seen) => {
            let _ = host.native_seen.set(seen);
            None
        }
        Err(why) => {
            let message = format!("recipe `{}` cannot run {}: {why}", recipe.file.id, path.display());
            Some(Problem::new(message).help(HELP))
        }
    }
}

fn missing(recipe: &Recipe, what: &str, help: &str) -> Problem {
    Problem::new(format!("recipe `{}` needs {what}, which is not there", recipe.file.id)).help(help)
}

/// What is wrong with the datasets that cells are about to train on, as far as milliseconds can tell; each is looked at once.
pub fn preflight_data(cells: &[&Prepared]) -> Result<Vec<Problem>> {
    let mut asked = BTreeSet::new();
    for cell in cells {
        let (vocab_size, seq_length) = (cell.job().model.vocab_size, cell.job().data.seq_length);
        let datasets = cell.data.iter().filter(|file| file.kind == DataKind::Dataset);
        asked.extend(datasets.map(|file| (&file.path, vocab_size, seq_length)));
    }
    let mut problems = Vec::new();
    for (path, vocab_size, seq_length) in asked {
        let help = format!("`tprimat data verify {} --vocab-size {vocab_size}` looks at all of it", path.display());
        let found = data::verify_sampled(path, vocab_size, seq_length)?;
        problems.extend(found.iter().map(|why| Problem::new(format!("{}: {why}", path.display())).help(help.clone())));
    }
    Ok(problems)
}

fn absent_checkout(recipe: &Recipe, checkout: &Checkout, path: Option<&Path>) -> Option<Problem> {
    let Checkout { variable, setting, file, help } = checkout;
    let what = match path {
        None => format!("a checkout: neither ${variable} nor {setting} in config.yaml says where it is"),
        Some(path) if !path.is_dir() => format!("its checkout at {} ({setting}, ${variable})", path.display()),
        Some(path) if !path.join(file).is_file() => {
            return Some(
                Problem::new(format!(
                    "recipe `{}`: {} ({setting}, ${variable}) is not a checkout of it: there is no {file} in it",
                    recipe.file.id,
                    path.display()
                ))
                .help(help.clone()),
            );
        }
        Some(_) => return None,
    };
    let message = match path {
        None => format!("recipe `{}` needs {what}", recipe.file.id),
        Some(_) => format!("recipe `{}` needs {what}, which is not there", recipe.file.id),
    };
    Some(Problem::new(message).help(help.clone()))
}

/// What an interpreter needs to find itself and the packages of its user.
const ASKED_WITH: [&str; 4] = ["PATH", "HOME", "LANG", "LD_LIBRARY_PATH"];

/// Modules that cannot be found; none is imported, for torch alone takes seconds.
fn absent_modules(
    python: &Path,
    env: &BTreeMap<String, String>,
    modules: &[String],
    look: Look,
) -> Result<Vec<String>, String> {
    if look == Look::AtFiles {
        // Whoever wraps an interpreter so that its folders cannot be told learns at the build what is missing.
        return Ok(host::absent_modules(python, env, modules).unwrap_or_default());
    }
    const PROGRAM: &str = "import sys, importlib.util as u\nsys.path = [p for p in sys.path if p]\nprint(*[m for m in sys.argv[1:] if u.find_spec(m) is None])";
    let output = Command::new(python)
        .args(["-E", "-c", PROGRAM])
        .args(modules)
        // The caller's secrets are no business of a look at what is installed.
        .env_clear()
        .envs(ASKED_WITH.iter().filter_map(|name| Some((name, env.get(*name)?))))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("failed").to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
}

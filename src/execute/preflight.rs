//! What must be there before the first second of training: commands, programs, Python modules,
//! checkouts.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::host::TrainHost;
use crate::{
    data,
    error::{Problem, Result, did_you_mean},
    graph::CodeDigests,
    host::{self, ContainerEngine, PYTHONPATH, ask, last_line, python_packages, which},
    plan::{Container, DataKind, Image, Prepared},
    recipe::{Checkout, Recipe},
    run::watched_inputs::check_native,
};

/// How a recipe's needs are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeDepth {
    /// Only at files: whoever plans or checks a project starts no program that it names.
    AtFiles,
    /// Also by asking the interpreter and tprimat-native, which know best what they have.
    ByAsking,
}

/// What a recipe needs and this host lacks. `checkouts`: with where config.yaml says that they are;
/// `prepared`: a cell of it; `python`: the interpreter that runs the recipe.
#[must_use]
pub fn preflight(
    recipe: &Recipe,
    checkouts: &[(&Checkout, Option<PathBuf>)],
    prepared: &Prepared,
    python: &Path,
    host: &TrainHost,
    look: ProbeDepth,
) -> Vec<Problem> {
    let require = &recipe.file.require;
    let mut problems = Vec::new();
    let absent =
        |(at, path): &(&Checkout, Option<PathBuf>)| absent_checkout(recipe, at, path.as_deref());
    problems.extend(checkouts.iter().filter_map(absent));
    let mut programs = require.programs.iter();
    if programs.any(|program| program == "tprimat-native") {
        problems.extend(native_problem(recipe, host, look));
    }
    if let (Some(container), Some(image)) =
        (&prepared.resolved.execution.container, &prepared.image)
    {
        problems.extend(image_problem(recipe, container, image, host));
        return problems;
    }
    for command in &require.commands {
        if which(command, &host.caller_env).is_none() {
            problems.push(missing(
                recipe,
                &format!("the command `{command}`"),
                "it is looked up in PATH",
            ));
        }
    }
    if !require.python_modules.is_empty() {
        // A run finds modules in the folders that config.yaml names, and in none that the caller's shell does.
        let mut env = host.caller_env.clone();
        match prepared.resolved.env.get(PYTHONPATH) {
            Some(folders) => env.insert(PYTHONPATH.to_owned(), folders.clone()),
            None => env.remove(PYTHONPATH),
        };
        match absent_modules(python, &env, &require.python_modules, look) {
            Err(why) => problems.push(missing(
                recipe,
                &format!("a Python (`{}`: {why})", python.display()),
                &format!(
                    "name one with frameworks.{}.python, paths.python, $TPRIMAT_PYTHON or a .venv \
                     in the project",
                    recipe.file.id
                ),
            )),
            Ok(absent) if absent.is_empty() => {}
            Ok(absent) => {
                let packages: Vec<&str> = absent
                    .iter()
                    .map(|module| require.pip.get(module).unwrap_or(module).as_str())
                    .collect();
                let id = &recipe.file.id;
                let files = format!("recipes/{id}/requirements.");
                let mut pins = crate::shipped::shipped_under(&files);
                let pinned = pins.next().map(|_| {
                    format!("; `tprimat recipe show {id}` lists the files that pin all of them")
                });
                let pinned = pinned.unwrap_or_default();
                let help = format!(
                    "`{} -m pip install {}`{pinned}",
                    python.display(),
                    packages.join(" "),
                );
                let names: Vec<String> =
                    absent.iter().map(|module| format!("`{module}`")).collect();
                let modules = if names.len() == 1 {
                    "module"
                } else {
                    "modules"
                };
                let (names, python) = (names.join(", "), python.display());
                let message = format!(
                    "recipe `{id}` needs the Python {modules} {names}, which `{python}` does not \
                     have installed"
                );
                problems.push(Problem::new(message).help(help));
            }
        }
    }
    // Versions that cannot be read would be in no key, and other versions would pass for the same
    // measurement.
    let packages: Vec<&str> = recipe
        .file
        .lock
        .packages
        .iter()
        .map(String::as_str)
        .collect();
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

/// What is wrong with the image that a recipe is to run in. What is in it shows when a run starts: one
/// that lacks something ends at once, with the missing module or command in its log.
fn image_problem(
    recipe: &Recipe,
    container: &Container,
    image: &Image,
    host: &TrainHost,
) -> Option<Problem> {
    let (id, name) = (&recipe.file.id, &image.name);
    if let Err(why) = ContainerEngine::find(container.engine, &host.caller_env) {
        let help = "install it, or name another one in execution.<platform>.container.engine";
        let message = format!("recipe `{id}` is to run in a container, and {why}");
        return Some(Problem::new(message).help(help));
    }
    let (why, help) = match &image.here {
        Ok(Some(_)) => return None,
        Ok(None) => ("it is not here", image.help.as_str()),
        Err(why) => (
            why.as_str(),
            "is the engine's service running, and may you use it?",
        ),
    };
    let message = format!("recipe `{id}` runs in the image {name}: {why}");
    Some(Problem::new(message).help(help))
}

/// Keys name the sources of the shipped trainer that this tprimat was built from, so no other one
/// may run.
fn native_problem(recipe: &Recipe, host: &TrainHost, look: ProbeDepth) -> Option<Problem> {
    const HELP: &str = "`make wheel` in a checkout of this version of tprimat builds the wheel that installs it; or name it in $TPRIMAT_NATIVE";
    let Some(path) = &host.native else {
        return Some(missing(recipe, "the program `tprimat-native`", HELP));
    };
    if host.native_seen.get().is_some() || look == ProbeDepth::AtFiles {
        return None;
    }
    match check_native(path, &CodeDigests::default().native) {
        Ok(seen) => {
            let _ = host.native_seen.set(seen);
            None
        }
        Err(why) => {
            let message = format!(
                "recipe `{}` cannot run {}: {why}",
                recipe.file.id,
                path.display()
            );
            Some(Problem::new(message).help(HELP))
        }
    }
}

/// What a command of a cell's own would not find when it starts.
pub struct AbsentOfCommand {
    pub problem: Problem,
    /// It is a file of the project, which no other host has either.
    pub is_of_project: bool,
}

/// Is a program in the folder of the Python that a command starts, which its run finds first in PATH?
fn is_beside_python(program: &str, prepared: &Prepared) -> bool {
    let python = prepared.python.as_ref();
    python.is_some_and(|python| python.interpreter.with_file_name(program).is_file())
}

/// What the command of a cell's own (`frameworks.<id>.command`) would not find when it starts: its
/// program, or the script that an interpreter is given. A text for a shell is not looked at.
#[must_use]
pub fn preflight_command(
    root: &Path,
    prepared: &Prepared,
    host: &TrainHost,
) -> Option<AbsentOfCommand> {
    const SCRIPTS: [(&str, &str); 4] = [
        ("python", ".py"),
        ("torchrun", ".py"),
        ("bash", ".sh"),
        ("sh", ".sh"),
    ];
    let sets_path = prepared.resolved.env.contains_key("PATH");
    if sets_path || prepared.resolved.execution.container.is_some() {
        return None;
    }
    // A text is left to the shell that it needs.
    let words: Vec<String> = match prepared.job().framework.get("command")? {
        Value::Array(words) => words.iter().map(crate::config::plain).collect(),
        _ => return None,
    };
    let absent = |message: String, help: &str, is_of_project: bool| {
        Some(AbsentOfCommand {
            problem: Problem::new(message).help(help),
            is_of_project,
        })
    };
    let missing = |what: &str| format!("the command needs {what}, which is not there");
    let program = words.first()?;
    if program.contains('/') {
        let is_of_project = !program.starts_with('/');
        let Ok(found) = root.join(program).metadata() else {
            let help = format!("`{program}` is looked for below the project");
            return absent(
                missing(&format!("the program `{program}`")),
                &help,
                is_of_project,
            );
        };
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            let help = format!("`chmod +x {program}` makes a file executable");
            let message = format!("the command starts `{program}`, which is not executable");
            return absent(message, &help, is_of_project);
        }
    } else if which(program, &host.caller_env).is_none() && !is_beside_python(program, prepared) {
        let help = "it is looked up in PATH; the line to correct is `command` of the framework";
        return absent(missing(&format!("the program `{program}`")), help, false);
    }
    let (program, rest) = words.split_first()?;
    let name = file_name(program);
    let script = match name {
        "torchrun" => rest.iter().find(|word| word.ends_with(".py"))?,
        _ => rest.iter().find(|word| !is_flag(word))?,
    };
    let is_script = SCRIPTS
        .iter()
        .any(|(interpreter, ending)| name.starts_with(interpreter) && script.ends_with(ending));
    if !is_script || script.starts_with('-') || root.join(script).exists() {
        return None;
    }
    let folder = root.join(script);
    let beside: Vec<String> = std::fs::read_dir(folder.parent()?)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let file = file_name(script);
    let otherwise =
        "a relative path begins at the project's folder, and `~` is known to shells only";
    let others = beside
        .iter()
        .map(String::as_str)
        .filter(|other| *other != file);
    let help = did_you_mean(file, others).unwrap_or_else(|| otherwise.to_owned());
    let message = missing(&format!("the file `{script}`"));
    absent(message, &help, !script.starts_with('/'))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// An option that no interpreter and no shell takes a value for: `-u`, `-eux`.
fn is_flag(word: &str) -> bool {
    let letters = word.strip_prefix('-').unwrap_or_default();
    !letters.is_empty() && letters.chars().all(|c| "BEIOPSbdeqsuvx".contains(c))
}

fn missing(recipe: &Recipe, what: &str, help: &str) -> Problem {
    Problem::new(format!(
        "recipe `{}` needs {what}, which is not there",
        recipe.file.id
    ))
    .help(help)
}

/// What is wrong with the datasets that cells are about to train on, as far as milliseconds can
/// tell; each is looked at once.
pub fn preflight_data(cells: &[&Prepared]) -> Result<Vec<Problem>> {
    let mut asked = BTreeSet::new();
    for cell in cells {
        let (vocab_size, seq_length) = (cell.job().model.vocab_size, cell.job().data.seq_length);
        let datasets = cell
            .data
            .iter()
            .filter(|file| file.kind == DataKind::Dataset);
        asked.extend(datasets.map(|file| (&file.path, vocab_size, seq_length)));
    }
    let mut problems = Vec::new();
    for (path, vocab_size, seq_length) in asked {
        let help = format!(
            "`tprimat data verify {} --vocab-size {vocab_size}` looks at all of it",
            path.display()
        );
        let found = data::verify_sampled(path, vocab_size, seq_length)?;
        problems.extend(
            found
                .iter()
                .map(|why| Problem::new(format!("{}: {why}", path.display())).help(help.clone())),
        );
    }
    Ok(problems)
}

fn absent_checkout(recipe: &Recipe, checkout: &Checkout, path: Option<&Path>) -> Option<Problem> {
    let Checkout {
        variable,
        setting,
        file,
        help,
    } = checkout;
    let id = &recipe.file.id;
    let message = match path {
        None => format!(
            "recipe `{id}` needs a checkout: neither ${variable} nor {setting} in config.yaml says where it is"
        ),
        Some(path) if !path.is_dir() => format!(
            "recipe `{id}` needs its checkout at {} ({setting}, ${variable}), which is not there",
            path.display()
        ),
        Some(path) if !path.join(file).is_file() => format!(
            "recipe `{id}`: {} ({setting}, ${variable}) is not a checkout of it: there is no {file} in it",
            path.display()
        ),
        Some(_) => return None,
    };
    Some(Problem::new(message).help(help.clone()))
}

/// Modules that cannot be found.
fn absent_modules(
    python: &Path,
    env: &BTreeMap<String, String>,
    modules: &[String],
    look: ProbeDepth,
) -> Result<Vec<String>, String> {
    match look {
        // Whoever wraps an interpreter so that its folders cannot be told learns at the build what
        // is missing.
        ProbeDepth::AtFiles => Ok(host::absent_modules(python, env, modules).unwrap_or_default()),
        ProbeDepth::ByAsking => ask_for_modules(python, env, modules),
    }
}

/// Modules that an interpreter of this host does not find; none is imported, for torch alone takes
/// seconds. In words why it cannot be asked.
fn ask_for_modules(
    python: &Path,
    env: &BTreeMap<String, String>,
    modules: &[String],
) -> Result<Vec<String>, String> {
    let words = ["-E", "-c", ABSENT_MODULES]
        .into_iter()
        .chain(modules.iter().map(String::as_str));
    // The caller's secrets are no business of a look at what is installed.
    let asked_with = ASKED_WITH
        .iter()
        .filter_map(|name| Some((name, env.get(*name)?)));
    // As text: a bare name is looked up in PATH, a path is not.
    let command = duct::cmd(python.as_os_str(), words).full_env(asked_with);
    let said = ask(&command, PATIENCE).map_err(|why| why.to_string())?;
    if !said.status.success() {
        return Err(last_line(&said.stderr));
    }
    // A wrapper around the interpreter may print what it likes before.
    let absent = last_line(&said.stdout);
    serde_json::from_str(&absent).map_err(|_| "it ended without an answer".to_owned())
}

/// What an interpreter needs to find itself and the packages of its user.
const ASKED_WITH: [&str; 5] = ["PATH", "HOME", "LANG", "LD_LIBRARY_PATH", PYTHONPATH];
/// An interpreter on a network file system may take minutes to start.
const PATIENCE: Duration = Duration::from_secs(300);
const ABSENT_MODULES: &str = r#"import sys, os, json, importlib.util as u
named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
sys.path = [p for p in named + sys.path if p]
def is_absent(name):
    try: return u.find_spec(name) is None
    except ImportError: return True
print(json.dumps([name for name in sys.argv[1:] if is_absent(name)]))"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_of_a_package_that_is_not_there_is_absent_and_the_python_is_not_to_blame() {
        let env = BTreeMap::from([("PATH".to_owned(), std::env::var("PATH").unwrap())]);
        let modules = ["json", "no_such_package.core"].map(str::to_owned);
        assert_eq!(
            ask_for_modules(Path::new("python3"), &env, &modules).unwrap(),
            ["no_such_package.core"]
        );
        assert!(ask_for_modules(Path::new("/no/such/python"), &env, &modules).is_err());
    }
}

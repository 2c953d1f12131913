//! What an image has of what a recipe needs, seen from inside: looked at once a digest, in a
//! container without network.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    files::{self, Durability},
    host::{ContainerEngine, EngineKind, ask, last_line},
    recipe::Require,
    run::contained::LookContainer,
};

/// A recipe's needs that an image does not meet, and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    pub absent_commands: Vec<String>,
    pub has_python: bool,
    pub absent_modules: Vec<String>,
    /// Distribution → version.
    pub packages: BTreeMap<String, String>,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Requirements<'a> {
    pub require: &'a Require,
    pub packages: &'a [String],
    pub python: &'a str,
}

/// What an interpreter needs to find itself and the packages of its user.
const ASKED_WITH: [&str; 4] = ["PATH", "HOME", "LANG", "LD_LIBRARY_PATH"];
/// A container is started, and an image of 20 GB may have to be read from a network first.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Lines that begin so are ours; an image's entry point may print what it likes.
const OURS: &str = "tprimat-inside ";
/// The last line of an interpreter that was asked.
const END: &str = "tprimat-inside end";
const LOOK: &str = r#"python=$1; program=$2; shift 2
while [ "$1" != -- ]; do command -v "$1" >/dev/null 2>&1 || echo "tprimat-inside no-command $1"; shift; done; shift
command -v "$python" >/dev/null 2>&1 || exit 0
echo "tprimat-inside python"
exec "$python" -c "$program" "$@""#;
const PROGRAM: &str = r#"import sys, importlib.util as u, importlib.metadata as m
at = sys.argv.index("--")
sys.path = [p for p in sys.path if p]
for name in sys.argv[1:at]:
    try: found = u.find_spec(name)
    except ImportError: found = None
    if found is None: print("tprimat-inside no-module", name)
for name in sys.argv[at + 1:]:
    try: print("tprimat-inside package", name, m.version(name))
    except m.PackageNotFoundError: pass
print("tprimat-inside end")"#;

/// Looks into `image`, or remembers what was seen there. `digest`: what names its content; `runs`:
/// the folder of runs, where a sweep looks for what a killed look left.
pub fn look(
    patience: Duration,
    engine: &ContainerEngine,
    env: &BTreeMap<String, String>,
    (image, digest): (&str, &str),
    wanted: Requirements,
    runs: &Path,
) -> Result<Inside, String> {
    let memos = runs.with_file_name("memos");
    let asked = format!(
        "{digest} {} {:?} {:?}",
        wanted.python, wanted.require, wanted.packages
    );
    let memo = memos.join(format!("image-{}.json", Digest::of(asked).short()));
    if let Some(known) = files::read(&memo)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
    {
        return Ok(known);
    }
    let mut container = LookContainer::of(engine, env, runs).map_err(|why| why.to_string())?;
    let names = container
        .as_ref()
        .map(LookContainer::arguments)
        .unwrap_or_default();
    let mut arguments: Vec<&str> = match engine.kind {
        EngineKind::Docker | EngineKind::Podman => {
            let mut arguments = vec!["run", "--rm", "--pull=never", "--network=none"];
            arguments.extend(names);
            arguments.push(digest);
            arguments
        }
        EngineKind::Apptainer => vec!["exec", "--cleanenv", "--no-home", image],
        // It fetches the image for a job, and only there.
        EngineKind::Pyxis | EngineKind::Kubernetes => {
            return Ok(Inside {
                has_python: true,
                ..Inside::default()
            });
        }
    };
    arguments.extend(["/bin/sh", "-c", LOOK, "tprimat", wanted.python, PROGRAM]);
    arguments.extend(
        wanted
            .require
            .commands
            .iter()
            .map(String::as_str)
            .chain(["--"]),
    );
    arguments.extend(
        wanted
            .require
            .python_modules
            .iter()
            .map(String::as_str)
            .chain(["--"]),
    );
    arguments.extend(wanted.packages.iter().map(String::as_str));
    let said = engine.ask_within(patience, env, &arguments)?;
    if let Some(container) = &mut container {
        container.is_over = said.status.success();
    }
    if !said.status.success() {
        return Err(format!(
            "{} cannot look into {image}: {}",
            engine.name(),
            last_line(&said.stderr)
        ));
    }
    let seen = read(&String::from_utf8_lossy(&said.stdout));
    if let Ok(text) = serde_json::to_vec(&seen) {
        // A memo that cannot be written costs time, nothing else.
        let _ = files::write_atomically(&memo, &text, Durability::Plain);
    }
    Ok(seen)
}

/// Modules that an interpreter of this host does not find; none is imported, for torch alone takes
/// seconds. In words why it cannot be asked.
pub fn absent_modules(
    python: &Path,
    env: &BTreeMap<String, String>,
    modules: &[String],
) -> Result<Vec<String>, String> {
    let words = ["-E", "-c", PROGRAM]
        .into_iter()
        .chain(modules.iter().map(String::as_str))
        .chain(["--"]);
    // The caller's secrets are no business of a look at what is installed.
    let asked_with = ASKED_WITH
        .iter()
        .filter_map(|name| Some((name, env.get(*name)?)));
    // As text: a bare name is looked up in PATH, a path is not.
    let said = ask(
        &duct::cmd(python.as_os_str(), words).full_env(asked_with),
        PATIENCE,
    )
    .map_err(|why| why.to_string())?;
    if !said.status.success() {
        return Err(last_line(&said.stderr));
    }
    let said = String::from_utf8_lossy(&said.stdout);
    if !said.lines().any(|line| line == END) {
        return Err("it ended without an answer".to_owned());
    }
    Ok(read(&said).absent_modules)
}

fn read(said: &str) -> Inside {
    let mut seen = Inside::default();
    let mut lacks = BTreeSet::new();
    for line in said.lines().filter_map(|line| line.strip_prefix(OURS)) {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["no-command", name] => seen.absent_commands.push((*name).to_owned()),
            ["no-module", name] => drop(lacks.insert((*name).to_owned())),
            ["python"] => seen.has_python = true,
            ["package", name, version] => drop(
                seen.packages
                    .insert((*name).to_owned(), (*version).to_owned()),
            ),
            _ => {}
        }
    }
    seen.absent_modules = lacks.into_iter().collect();
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock;

    /// A mock of docker, whose containers never end and which notes how it was called.
    const HANGS: &str = r#"#!/bin/sh
echo "$*" >> "$(dirname "$0")/said"
case "$1" in
  run) exec sleep 60 ;;
  container) echo 'Error: No such container' >&2; exit 1 ;;
esac
"#;

    #[test]
    fn a_look_that_hangs_leaves_no_container() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("docker");
        mock::program(&program, HANGS);
        let engine = ContainerEngine {
            kind: EngineKind::Docker,
            program,
        };
        let env = BTreeMap::from([("PATH".to_owned(), std::env::var("PATH").unwrap())]);
        let wanted = Requirements {
            require: &Require::default(),
            packages: &[],
            python: "python3",
        };
        let runs = folder.path().join("cache/runs");
        let patience = Duration::from_millis(500);
        let image = ("mine:1", "sha256:00");
        let why = look(patience, &engine, &env, image, wanted, &runs).unwrap_err();
        assert!(why.contains("does not answer"), "{why}");
        let said = std::fs::read_to_string(folder.path().join("said")).unwrap();
        let words: Vec<&str> = said.lines().next().unwrap().split(' ').collect();
        let at = words.iter().position(|word| *word == "--name").unwrap();
        let name = words[at + 1];
        assert!(name.starts_with("tprimat-look-"), "{said}");
        assert!(said.contains("--label tprimat.runs="), "{said}");
        let removed = format!("\nrm --force --volumes {name}\n");
        assert!(said.contains(&removed), "{said}");
        let engines = std::fs::read_to_string(runs.join(".engines")).unwrap();
        assert_eq!(engines, "docker\n", "a sweep asks this engine");
        let names = std::fs::read_dir(&runs).unwrap().flatten();
        let locks = names.filter(|file| file.file_name().to_string_lossy().contains("look"));
        assert_eq!(locks.count(), 0);
    }

    #[test]
    fn what_an_entry_point_prints_is_passed_over() {
        let said = "== NVIDIA ==\ntprimat-inside no-command torchrun\ntprimat-inside python\nno-module x\n\
                    tprimat-inside no-module nemo\ntprimat-inside package torch 2.4.0\ntprimat-inside end\n";
        let seen = read(said);
        assert_eq!(
            (seen.absent_commands.as_slice(), seen.has_python),
            (&["torchrun".to_owned()][..], true)
        );
        assert_eq!(
            (
                seen.absent_modules.as_slice(),
                seen.packages["torch"].as_str()
            ),
            (&["nemo".to_owned()][..], "2.4.0")
        );
    }

    #[test]
    fn the_program_finds_what_this_python_has() {
        let arguments = [
            "tprimat",
            "python3",
            PROGRAM,
            "sh",
            "no-such-command",
            "--",
            "json",
            "no_such_module",
            "a.b",
            "--",
            "x",
        ];
        let said = std::process::Command::new("/bin/sh")
            .args(["-c", LOOK])
            .args(arguments)
            .output()
            .unwrap();
        let seen = read(&String::from_utf8_lossy(&said.stdout));
        assert_eq!(seen.absent_commands, ["no-such-command"]);
        assert!(seen.has_python, "{said:?}");
        assert_eq!(seen.absent_modules, ["a.b", "no_such_module"]);
    }

    #[test]
    fn a_module_of_a_package_that_is_not_there_is_absent_and_the_python_is_not_to_blame() {
        let env = BTreeMap::from([("PATH".to_owned(), std::env::var("PATH").unwrap())]);
        let modules = ["json", "no_such_package.core"].map(str::to_owned);
        assert_eq!(
            absent_modules(Path::new("python3"), &env, &modules).unwrap(),
            ["no_such_package.core"]
        );
        assert!(absent_modules(Path::new("/no/such/python"), &env, &modules).is_err());
    }
}

//! Which Python packages a trainer would import, asked of the interpreter itself.

use std::{collections::BTreeMap, path::Path, process::Command};

use crate::error::{Error, Result};

/// Reads metadata and imports none of the packages: importing torch takes seconds. The current
/// folder is taken off the path, where a file could pose as a module.
const PROGRAM: &str = r#"
import sys
sys.path = [p for p in sys.path if p]
import json
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
sys.stdout.write("tprimat:" + json.dumps({name: version(name) for name in sys.argv[1:]}))
"#;

/// The installed version of each of `names`, by its name on the package index; `None`: not installed.
pub fn python_packages(python: &Path, names: &[&str]) -> Result<BTreeMap<String, Option<String>>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let failed = |why: String| Error::Failed {
        message: format!("cannot ask {} for its packages: {why}", python.display()),
        help: Some("is it a Python 3.8 or newer?".into()),
    };
    // Not `-I`, which would hide what `pip install --user` installed; `-E` keeps PYTHONPATH out, as the trainer's environment does.
    let output = Command::new(python)
        .args(["-E", "-c", PROGRAM])
        .args(names)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| failed(e.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    // A site's own start-up files may print as well.
    let answer = said.rsplit_once("tprimat:").filter(|_| output.status.success()).map(|(_, json)| json);
    let Some(answer) = answer else {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        return Err(failed(format!("{}: {}", output.status, last.trim())));
    };
    serde_json::from_str(answer).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_no_python_is_an_error() {
        for program in ["/no/such/python", "/bin/true", "/bin/false"] {
            let error = python_packages(Path::new(program), &["torch"]).unwrap_err();
            assert!(error.to_string().contains(program), "{error}");
        }
        assert!(python_packages(Path::new("/no/such/python"), &[]).unwrap().is_empty(), "nothing to ask");
    }

    #[test]
    fn what_is_not_installed_is_absent() {
        let name = "no-such-package-of-tprimat";
        // Where there is no Python there is nothing to learn here.
        if let Ok(found) = python_packages(Path::new("python3"), &[name]) {
            assert_eq!(found, BTreeMap::from([(name.to_owned(), None)]));
        }
    }
}

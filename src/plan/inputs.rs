//! The project's own files that a training reads: those that config.yaml declares, and those that its command names.
//!
//! Whatever a run reads and no key covers is a measurement under a wrong name. So the files among a command's words are
//! inputs without being declared; `"!results.json"` among the inputs takes one back that the run itself writes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    ffi::OsStr,
    path::{Component, Path, PathBuf},
};

use globset::GlobMatcher;
use serde_json::Value;

use super::resolve::strings;
use crate::{
    config::{Config, Values},
    digest::Digest,
    error::{Error, Result},
    files::{EntryKind, ReadSet, is_leftover},
    matrix::Cell,
};

/// Digests of a matrix's inputs; each glob is walked once and each file is read once.
#[derive(Default)]
pub(super) struct Inputs {
    /// What each glob matches, by the glob and its exceptions.
    globs: BTreeMap<String, Vec<String>>,
    commands: HashMap<String, Vec<String>>,
    files: BTreeMap<String, Digest>,
}

impl Inputs {
    pub fn gather(root: &Path, config: &Config, cells: &[Cell], reads: &ReadSet) -> Result<Self> {
        let mut inputs = Self::default();
        let nothing = &Values::default();
        for cell in cells {
            // Only settings that cells share or override can differ; the cost is two look-ups a cell.
            let view = config.view(nothing, &cell.overlay);
            let path = format!("frameworks.{}.inputs", cell.framework);
            let globs = strings(view.get(&path));
            for glob in globs.iter().filter(|glob| !glob.starts_with('!')) {
                let Entry::Vacant(new) = inputs.globs.entry(with_exceptions(glob, &globs)) else { continue };
                let refused = |message: String, label: &str| Error::invalid(config.problem_at(&path, message, label));
                let matched = expand(root, glob, &exceptions(&globs), reads).map_err(|why| refused(why, "here"))?;
                if matched.is_empty() {
                    return Err(refused(nothing_matches(root, glob), "matches nothing"));
                }
                new.insert(matched);
            }
            // Older files have the options of a framework below `settings`.
            let places = ["command", "settings.command"].map(|key| format!("frameworks.{}.{key}", cell.framework));
            let command = places.iter().find_map(|place| view.get(place));
            if let Some(command) = command
                && !inputs.commands.contains_key(&command.to_string())
            {
                inputs.commands.insert(command.to_string(), named_by(root, command, reads));
            }
            for name in inputs.names(&globs, command) {
                if let Entry::Vacant(new) = inputs.files.entry(name) {
                    let full = root.join(new.key());
                    new.insert(reads.digest(&full).map_err(Error::io("cannot read the input", &full))?);
                }
            }
        }
        Ok(inputs)
    }

    /// The inputs of a cell with these globs and this command.
    pub fn of(&self, globs: &[String], command: Option<&Value>) -> Vec<(String, Digest)> {
        self.names(globs, command)
            .into_iter()
            .filter_map(|name| self.files.get_key_value(&name))
            .map(|(name, digest)| (name.clone(), *digest))
            .collect()
    }

    fn names(&self, globs: &[String], command: Option<&Value>) -> BTreeSet<String> {
        let declared = globs.iter().filter_map(|glob| self.globs.get(&with_exceptions(glob, globs))).flatten();
        let named = command.and_then(|command| self.commands.get(&command.to_string())).into_iter().flatten();
        let except = exceptions(globs);
        declared.chain(named).filter(|name| !is_excepted(&except, name)).cloned().collect()
    }
}

/// A glob and what other entries take back of it: two frameworks may share the one and not the other.
fn with_exceptions(glob: &str, globs: &[String]) -> String {
    let except = globs.iter().filter(|other| other.starts_with('!')).map(String::as_str);
    [glob].into_iter().chain(except).collect::<Vec<_>>().join("\n")
}

/// What `!GLOB`s take back. One that is not a glob takes nothing back; as an input it is refused.
fn exceptions(globs: &[String]) -> Vec<GlobMatcher> {
    let except = globs.iter().filter_map(|glob| glob.strip_prefix('!'));
    except.filter_map(|glob| matcher(&normalized(Path::new(""), glob)).ok()).collect()
}

fn is_excepted(except: &[GlobMatcher], name: impl AsRef<Path>) -> bool {
    except.iter().any(|glob| glob.is_match(&name))
}

fn matcher(pattern: &str) -> Result<GlobMatcher, String> {
    let glob = globset::GlobBuilder::new(pattern).literal_separator(true).build();
    Ok(glob.map_err(|e| format!("`{pattern}` is not a glob: {}", e.kind()))?.compile_matcher())
}

/// A path as keys spell it: from the project's root where it lies below it, and without `./`.
fn normalized(root: &Path, path: &str) -> String {
    let path = Path::new(path);
    let below = path.strip_prefix(root).unwrap_or(path);
    let parts: PathBuf = below.components().filter(|part| *part != Component::CurDir).collect();
    parts.to_string_lossy().into_owned()
}

fn has_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Files of the project that match, but nothing that builds, editors or interpreters leave behind.
fn expand(root: &Path, pattern: &str, except: &[GlobMatcher], reads: &ReadSet) -> Result<Vec<String>, String> {
    let pattern = normalized(root, pattern);
    if !has_glob(&pattern) {
        return Ok(if reads.is_file(&root.join(&pattern)) { vec![pattern] } else { Vec::new() });
    }
    let glob = matcher(&pattern)?;
    // Start below the part of the pattern that is not a glob.
    let parts = || Path::new(&pattern).components();
    let fixed: PathBuf = parts().take_while(|part| !has_glob(&part.as_os_str().to_string_lossy())).collect();
    // `**` and alternatives may match any number of folders; without them each part matches one name.
    let is_deep = pattern.contains("**") || pattern.contains('{');
    let depth = if is_deep { usize::MAX } else { parts().count() - fixed.components().count() };
    let found =
        reads.walk(root, &fixed, depth).map_err(|why| format!("the input `{pattern}`: {why}; name fewer folders"))?;
    let mut names = Vec::new();
    for file in found.into_iter().filter(|file| glob.is_match(&file.path) && !is_excepted(except, &file.path)) {
        let shown = file.path.display();
        match (file.kind, file.path.to_str()) {
            (EntryKind::File, Some(name)) => names.push(name.to_owned()),
            (EntryKind::File, None) => {
                return Err(format!("the input `{pattern}` matches {shown}, a name that is not UTF-8"));
            }
            (EntryKind::Environment, _) | (EntryKind::Folder, _) => {}
            (EntryKind::Other(what), _) => {
                return Err(format!(
                    "the input `{pattern}` matches {shown}, which is {what}; \"!{shown}\" leaves it out"
                ));
            }
        }
    }
    Ok(names)
}

fn nothing_matches(root: &Path, glob: &str) -> String {
    if root.join(glob).is_dir() {
        return format!("the input `{glob}` is a folder; `{}/**` means all files in it", glob.trim_end_matches('/'));
    }
    format!("no file of the project matches the input `{glob}`")
}

/// The files of the project that a command names.
fn named_by(root: &Path, command: &Value, reads: &ReadSet) -> Vec<String> {
    let words = match command {
        Value::String(script) => {
            shlex::split(script).unwrap_or_else(|| script.split_whitespace().map(str::to_owned).collect())
        }
        list => strings(Some(list)),
    };
    let mut names = Vec::new();
    let mut before = "";
    for word in &words {
        let (option, value) = word.split_once('=').map_or((before, None), |(option, value)| (option, Some(value)));
        if !is_written(option) && !is_written(word) {
            names.extend(
                [Some(word.as_str()), value].into_iter().flatten().filter_map(|word| file_of(root, word, reads)),
            );
            if before == "-m" {
                let module = word.replace('.', "/");
                let places = [format!("{module}.py"), format!("{module}/__main__.py")];
                names.extend(places.iter().filter_map(|place| file_of(root, place, reads)));
            }
        }
        // `--save=x` has its value: the next word is another matter.
        before = if value.is_some() { "" } else { word };
    }
    names
}

/// Does a command write what follows this word? `>`, `tee`, `-o`, `--output`, `--log-file`, `--save`; not `--timeout`.
fn is_written(word: &str) -> bool {
    const OUTPUTS: [&str; 17] = [
        "o",
        "out",
        "output",
        "outputs",
        "outfile",
        "save",
        "result",
        "results",
        "log",
        "logs",
        "logfile",
        "trace",
        "ckpt",
        "checkpoint",
        "metrics",
        "dump",
        "export",
    ];
    let name = word.trim_start_matches('-').to_lowercase();
    let is_option = word.starts_with('-') && name.split(['-', '_']).any(|part| OUTPUTS.contains(&part));
    is_option || word.ends_with('>') || word == "tee"
}

fn file_of(root: &Path, word: &str, reads: &ReadSet) -> Option<String> {
    let name = normalized(root, word);
    let path = Path::new(&name);
    let is_inside = !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    let is_made = || reads.is_made(&root.join(path)) || path.iter().any(is_leftover) || is_of_environment(root, path);
    (is_inside && !name.contains('\0') && !is_made() && reads.is_file(&root.join(path))).then_some(name)
}

/// An interpreter is a fact of the host, wherever it lies.
fn is_of_environment(root: &Path, path: &Path) -> bool {
    path.ancestors().skip(1).any(|folder| folder != OsStr::new("") && root.join(folder).join("pyvenv.cfg").is_file())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::files::{Durability, write_atomically};

    fn project(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            write_atomically(&root.path().join(file), file.as_bytes(), Durability::Plain).unwrap();
        }
        root
    }

    fn expanded(root: &Path, pattern: &str) -> Result<Vec<String>, String> {
        let reads = ReadSet::default();
        reads.leave_out([root.join("cache"), root.join("tprimat.lock")]);
        expand(root, pattern, &[], &reads)
    }

    #[test]
    fn what_is_left_behind_is_no_input() {
        let kept = ["a.py", "src/b.py", "src/deep/c.py"];
        let left = [
            "src/__pycache__/b.cpython-311.pyc",
            "cache/x.py",
            "tprimat.lock",
            "a.py~",
            ".git/HEAD",
            "venv/pyvenv.cfg",
            "venv/x.py",
        ];
        let root = project(&[&kept[..], &left[..]].concat());
        std::os::unix::fs::symlink("me@host.1", root.path().join(".#a.py")).unwrap();
        assert_eq!(expanded(root.path(), "**/*").unwrap(), kept);
        assert_eq!(expanded(root.path(), "*.py").unwrap(), ["a.py"]);
        assert_eq!(expanded(root.path(), "src/**").unwrap(), ["src/b.py", "src/deep/c.py"]);
        assert_eq!(expanded(root.path(), "src/*").unwrap(), ["src/b.py"]);
    }

    #[test]
    fn the_spelling_of_an_input_does_not_count() {
        let root = project(&["src/a.py"]);
        let absolute = root.path().join("src/a.py");
        for spelled in ["src/a.py", "./src/a.py", "src/./a.py", "src//a.py", absolute.to_str().unwrap(), "./src/*.py"] {
            assert_eq!(expanded(root.path(), spelled).unwrap(), ["src/a.py"], "{spelled}");
        }
    }

    #[test]
    fn folders_behind_links_are_covered_and_special_files_refused() {
        let root = project(&["p/src/a.py", "shared/net.py"]);
        let p = root.path().join("p");
        std::os::unix::fs::symlink("../../shared", p.join("src/shared")).unwrap();
        assert_eq!(expanded(&p, "src/**/*.py").unwrap(), ["src/a.py", "src/shared/net.py"]);
        assert_eq!(expanded(&p, "src/*").unwrap(), ["src/a.py"]);
        nix::unistd::mkfifo(&p.join("src/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let why = expanded(&p, "src/*").unwrap_err();
        assert_eq!(why, "the input `src/*` matches src/pipe, which is a pipe; \"!src/pipe\" leaves it out");
        let except = exceptions(&["!src/pipe".to_owned()]);
        assert_eq!(expand(&p, "src/*", &except, &ReadSet::default()).unwrap(), ["src/a.py"]);
    }

    #[test]
    fn the_files_that_a_command_names_are_inputs() {
        let files =
            ["train.py", "conf/a.yaml", "pkg/mod.py", ".venv/pyvenv.cfg", ".venv/bin/python", "out.json", "log"];
        let root = project(&files);
        let named = |command: Value| named_by(root.path(), &command, &ReadSet::default());
        let absolute = root.path().join("train.py");
        assert_eq!(named(json!(["python", "./train.py", "--config=conf/a.yaml"])), ["train.py", "conf/a.yaml"]);
        assert_eq!(named(json!([".venv/bin/python", absolute, "-c", "conf/a.yaml"])), ["train.py", "conf/a.yaml"]);
        assert_eq!(named(json!("python 'train.py' --output out.json > log")), ["train.py"]);
        assert_eq!(named(json!(["bash", "train.py", "-o", "out.json"])), ["train.py"]);
        assert_eq!(named(json!("bash train.py | tee log")), ["train.py"]);
        // A word that only has an output's letters in it is none.
        assert_eq!(named(json!(["torchrun", "--rdzv-timeout=900", "train.py"])), ["train.py"]);
        assert_eq!(named(json!(["python", "train.py", "--router", "conf/a.yaml"])), ["train.py", "conf/a.yaml"]);
        assert_eq!(named(json!(["python", "-m", "pkg.mod", "--out=out.json", "../x", "/etc/passwd"])), ["pkg/mod.py"]);
    }
}

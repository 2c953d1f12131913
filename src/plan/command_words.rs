//! What a command reads of the project, as far as its words say: the words that are files, and the
//! code below the folder of the first script among them.
//!
//! The rule is meant to be predicted by whoever writes a command. It guesses nothing about shells:
//! a command that only a shell understands, or that names no file of the project, has its inputs
//! stated in config.yaml. What a Python trainer imports from elsewhere in the project is found when
//! it is imported (`execute/imports`).

use std::{
    ffi::OsStr,
    path::{Component, Path, PathBuf},
};

use serde_json::Value;

use crate::{
    config::strings,
    error::{Error, Result},
    files::{EntryKind, ReadSet, is_code, is_leftover, is_own},
    recipe::Hidden,
};

/// Files of code that a command's inputs may have without being listed one by one.
const MOST_CODE: usize = 2_000;
/// Entries of folders that are looked at for code. A folder that holds more is one of data.
const MOST_ENTRIES: usize = 20_000;
/// A file that settings name and that is larger is data, whose content is not looked at in every plan.
const MOST_NAMED: u64 = 64 << 20;
/// Files of settings that name further ones.
const MOST_SETTINGS: usize = 100;
/// No file system takes a longer name.
const LONGEST: usize = 1024;

/// Folders of experiment trackers, which copy code into them with every run.
const TRACKERS: [&str; 2] = ["wandb", "mlruns"];
/// Folders of the project that tprimat reads itself. A recipe's own files are in its key.
const OURS: [&str; 3] = ["recipes", "templates", "pipelines"];

/// What the words of a command are, by their paths from the project's root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    /// Words that are files.
    pub files: Vec<String>,
    /// Files of code below the folder of the first script.
    pub code: Vec<String>,
    /// Words that may become files: a run that makes one of them has written it.
    pub absent: Vec<String>,
    /// Words that are folders, or files that the caller's own runs must not be led to.
    pub unfollowed: Vec<String>,
    /// Folders of code outside of the project.
    pub outside: Vec<String>,
    /// Why all this does not say what the command reads.
    pub unknown: Option<String>,
}

/// The words that a command's text has without a shell; `None` where only a shell can tell.
#[must_use]
pub(super) fn plain_words(text: &str) -> Option<Vec<String>> {
    let hidden = Hidden::of(text);
    if shell_syntax(&hidden.text).is_some() {
        return None;
    }
    let words = shlex::split(&hidden.text).filter(|words| !words.is_empty())?;
    Some(words.iter().map(|word| hidden.shown(word)).collect())
}

/// What of a text only a shell understands.
fn shell_syntax(text: &str) -> Option<String> {
    const BUILTINS: [&str; 15] = [
        "cd", "source", ".", "export", "set", "eval", "exec", "ulimit", "trap", "if", "for",
        "while", "until", "case", "!",
    ];
    let (mut quote, mut before, mut rest) = (None, ' ', text.chars());
    while let Some(c) = rest.next() {
        let is_special = match quote {
            Some('\'') => false,
            Some(_) => "$`".contains(c),
            None => "$`;&|<>()*?[]{}\n".contains(c) || "~#".contains(c) && before == ' ',
        };
        if is_special {
            return Some(c.to_string());
        }
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None | Some('"'), '\\') => drop(rest.next()),
            _ => {}
        }
        before = c;
    }
    let first = text.split_whitespace().next().unwrap_or_default();
    let is_assignment = first
        .split_once('=')
        .is_some_and(|(name, _)| !name.contains('/'));
    (is_assignment || BUILTINS.contains(&first)).then(|| first.to_owned())
}

/// Folders of code outside of the project `root` that a text names, as a command or `PYTHONPATH` does.
pub(super) fn outside(root: &Path, text: &str, reads: &ReadSet) -> Vec<String> {
    let mut found = Vec::new();
    let place = Place { root, reads };
    let parts = text.split(|c: char| c.is_whitespace() || "=:;,'\"()".contains(c));
    for part in parts.filter(|part| part.starts_with('/') || part.starts_with("../")) {
        let name = place.name_of(part).filter(|name| !is_below(name));
        found.extend(name.and_then(|name| place.folder_of_code(&name)));
    }
    found.sort();
    found.dedup();
    found
}

/// What a command of the project `root` reads there.
pub(super) fn named_by(root: &Path, command: &Value, reads: &ReadSet) -> Result<Named> {
    let words = match command {
        Value::String(text) => {
            let sign = shell_syntax(text).unwrap_or_else(|| "'".into());
            return Ok(Named {
                outside: outside(root, text, reads),
                unknown: Some(format!(
                    "the command needs a shell (`{}`), so its words do not say which files it reads",
                    sign.escape_debug()
                )),
                ..Named::default()
            });
        }
        list => strings(list),
    };
    let mut named = Named::default();
    let mut place = Place { root, reads };
    let mut before = "";
    for word in &words {
        if before == "-m" {
            place.module(word, &mut named)?;
        } else {
            place.word(word, &mut named)?;
        }
        before = word;
    }
    place.code(words.first().copied(), &mut named)?;
    place.settings(&mut named)?;
    named.outside = outside(root, &words.join(" "), reads);
    if is_conda_run(&words) {
        named.unknown = Some(format!(
            "`{} run` starts the command in an environment whose files its words do not name",
            words[0]
        ));
    }
    Ok(named)
}

/// Does it start what follows in an environment of conda's?
pub(super) fn is_conda_run(words: &[&str]) -> bool {
    let program = words.first().and_then(|word| word.rsplit('/').next());
    let is_conda = program.is_some_and(|name| ["conda", "mamba", "micromamba"].contains(&name));
    is_conda && words.contains(&"run")
}

/// A project in which words are looked up.
struct Place<'a> {
    root: &'a Path,
    reads: &'a ReadSet,
}

/// What there is at a place that a word may mean.
#[derive(PartialEq)]
enum Found {
    Input,
    /// A file elsewhere that is a link or somebody else's: whoever wrote the project must not choose
    /// which files of others the caller reads.
    Refused,
    /// What comes with an interpreter or the host, which other facts name.
    OfHost,
    Folder,
    Nothing,
}

impl Place<'_> {
    /// A word, the value of an option (`--config=a.yaml`), or each part of a list (`a.json,b.json`).
    fn word(&mut self, word: &str, named: &mut Named) -> Result<()> {
        let value = word.split_once('=').map(|(_, value)| value);
        let parts = word.split(',').filter(|part| part.len() < word.len());
        for (number, text) in [word].into_iter().chain(value).chain(parts).enumerate() {
            let Some(name) = self.name_of(text) else {
                continue;
            };
            match self.found_at(&name)? {
                Found::Input => add(&mut named.files, name),
                Found::Refused => add(&mut named.unfollowed, text.to_owned()),
                Found::Folder if self.is_there(&format!("{name}/__main__.py"))? => {
                    add(&mut named.files, format!("{name}/__main__.py"));
                }
                Found::Folder => add(&mut named.unfollowed, text.to_owned()),
                // Of a list, what is not there is no more than a word.
                Found::Nothing
                    if number <= usize::from(value.is_some())
                        && !text.starts_with('-')
                        && !text.contains(char::is_whitespace)
                        && text.parse::<f64>().is_err() =>
                {
                    add(&mut named.absent, name);
                }
                Found::Nothing | Found::OfHost => {}
            }
        }
        Ok(())
    }

    /// The files that named files of settings name: a value that is a file, from the project's folder or
    /// from that of the settings.
    fn settings(&self, named: &mut Named) -> Result<()> {
        let mut at = 0;
        while let Some(file) = named.files.get(at).cloned().filter(|_| at < MOST_SETTINGS) {
            at += 1;
            let text = match is_settings(&file) && is_below(&file) {
                true => self.reads.read_text(&self.root.join(&file)),
                false => continue,
            };
            let folder = Path::new(&file).parent().unwrap_or(Path::new(""));
            for value in text
                .ok()
                .flatten()
                .map_or_else(Vec::new, |text| texts_of(&file, &text))
            {
                // A sentence or an address is no name, and most values are words.
                let is_name = value.contains(['.', '/']) && !value.contains(char::is_whitespace);
                if !is_name || value.contains("://") || value.parse::<f64>().is_ok() {
                    continue;
                }
                let beside = folder.join(&value);
                for text in [Some(&*value), beside.to_str()].into_iter().flatten() {
                    let Some(name) = self.name_of(text).filter(|name| is_below(name)) else {
                        continue;
                    };
                    let size = || {
                        self.root
                            .join(&name)
                            .metadata()
                            .map_or(0, |found| found.len())
                    };
                    match self.found_at(&name)? {
                        Found::Input if size() > MOST_NAMED => add(&mut named.unfollowed, name),
                        Found::Input => add(&mut named.files, name),
                        Found::Nothing if Path::new(&name).extension().is_some() => {
                            add(&mut named.absent, name);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// `python -m pkg.train` runs `pkg/train.py`, after `pkg/__init__.py`.
    fn module(&mut self, module: &str, named: &mut Named) -> Result<()> {
        let path = module.replace('.', "/");
        let top = path.split('/').next().unwrap_or_default();
        for name in [
            format!("{top}/__init__.py"),
            format!("{path}.py"),
            format!("{path}/__main__.py"),
        ] {
            if self.name_of(&name).is_some() && self.is_there(&name)? {
                add(&mut named.files, name);
            }
        }
        Ok(())
    }

    /// The code below the folder of the first script that the command names.
    fn code(&mut self, program: Option<&str>, named: &mut Named) -> Result<()> {
        let program = program.and_then(|word| self.name_of(word));
        let script = named
            .files
            .iter()
            .filter(|name| is_below(name))
            .find(|name| is_script(name) || program.as_ref() == Some(name));
        let Some(script) = script else {
            // A script that is not there is told by the pre-flight, with the name that was meant.
            if !named.absent.iter().any(|name| is_code(Path::new(name))) {
                named.unknown = Some(
                    "no word of the command is a script of the project, so tprimat cannot know what it reads"
                        .into(),
                );
            }
            return Ok(());
        };
        let folder = Path::new(script).parent().unwrap_or(Path::new(""));
        let skips = |path: &Path| {
            let name = path.file_name().map(OsStr::to_string_lossy);
            name.is_some_and(|name| TRACKERS.contains(&&*name))
                || OURS.iter().any(|ours| path == Path::new(ours))
        };
        let shown = if folder == Path::new("") {
            "the project".to_owned()
        } else {
            folder.display().to_string()
        };
        let found = match self
            .reads
            .walk_code(self.root, folder, MOST_ENTRIES, &skips)
        {
            Ok(found) => found,
            Err(why) => {
                named.unknown = Some(format!("looking for code below {shown}: {why}"));
                return Ok(());
            }
        };
        let files = found.into_iter().filter(|f| f.kind == EntryKind::File);
        let names = files.filter_map(|file| file.path.to_str().map(str::to_owned));
        named.code = names.collect();
        if named.code.len() > MOST_CODE {
            named.unknown = Some(format!(
                "{} files of code are below {shown}, more than the {MOST_CODE} that a trainer is taken to consist of",
                named.code.len()
            ));
            named.code.clear();
        }
        Ok(())
    }

    /// The path of a word from the root, if it may be a file of the project's, or one beside it that is
    /// named by `..`; a file elsewhere keeps its absolute path.
    fn name_of(&self, word: &str) -> Option<String> {
        let word = word.trim_start_matches('@');
        if word.is_empty() || word.len() > LONGEST || word.contains('\0') {
            return None;
        }
        let path = Path::new(word);
        let name = simplified(path.strip_prefix(self.root).unwrap_or(path));
        let is_file = matches!(name.components().next_back(), Some(Component::Normal(_)));
        let full = self.root.join(&name);
        let is_made = self.reads.is_made(&full) || name.iter().any(is_leftover);
        // config.yaml and the matrices are in the key as far as they say something of the cell.
        let is_ours = name == Path::new("config.yaml") || name.starts_with("pipelines");
        (is_file && !is_made && !is_ours && !is_of_host(&name))
            .then(|| name.to_str().map(str::to_owned))
            .flatten()
    }

    /// The folder elsewhere that a name means, or that of a script, where it has code of the caller's own that
    /// no more is read of than the script.
    fn folder_of_code(&self, name: &str) -> Option<String> {
        let full = self.root.join(name);
        let is_script = is_code(&full) && full.is_file();
        let folder = match is_script {
            true => full.parent()?,
            false => &full,
        };
        let is_installed = is_of_system(folder) || folder.join("pyvenv.cfg").is_file();
        if is_installed || !is_own(folder) || !folder.is_dir() {
            return None;
        }
        let skips = |_: &Path| false;
        let code = self.reads.walk_code(self.root, folder, MOST_CODE, &skips);
        // A folder with more entries is one of data.
        let is_more = code.is_ok_and(|code| code.len() > usize::from(is_script));
        is_more.then(|| folder.to_str().map(str::to_owned))?
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        Ok(self.found_at(name)? == Found::Input)
    }

    fn found_at(&self, name: &str) -> Result<Found> {
        let full = self.root.join(name);
        if name.starts_with("../") || name.starts_with('/') {
            return Ok(match is_own(&full) {
                true if self.reads.is_file(&full).is_ok_and(|is_file| is_file) => Found::Input,
                false if full.is_file() && is_of_system(&full) => Found::OfHost,
                false if full.is_file() => Found::Refused,
                _ => Found::Nothing,
            });
        }
        let refused = Error::io("cannot look for the input that the command names,", &full);
        Ok(match self.reads.is_file(&full).map_err(refused)? {
            true if self.is_of_environment(Path::new(name)) => Found::OfHost,
            true => Found::Input,
            false if full.is_dir() => Found::Folder,
            false => Found::Nothing,
        })
    }

    /// An interpreter is a fact of the host, wherever it lies.
    fn is_of_environment(&self, name: &Path) -> bool {
        let folders = name.ancestors().skip(1).filter(|f| *f != Path::new(""));
        folders.into_iter().any(|folder| {
            let folder = self.root.join(folder);
            folder.join("pyvenv.cfg").is_file() || folder.join("conda-meta").is_dir()
        })
    }
}

/// Is a file elsewhere a fact of the host: an installed program, as interpreters are, or what the
/// kernel shows as a file?
fn is_of_host(name: &Path) -> bool {
    let folder = name.parent().and_then(Path::file_name);
    let is_installed = folder.is_some_and(|folder| folder == "bin" || folder == "sbin");
    let is_kernels = ["/proc", "/sys", "/dev"]
        .iter()
        .any(|top| name.starts_with(top));
    name.is_absolute() && (is_installed || is_kernels)
}

/// Is it below a folder of the system, whose files come with the host?
fn is_of_system(path: &Path) -> bool {
    const FOLDERS: [&str; 9] = [
        "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys",
    ];
    FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// Does it lie in the project?
fn is_below(name: &str) -> bool {
    !name.starts_with("../") && !name.starts_with('/')
}

fn is_settings(name: &str) -> bool {
    let ending = Path::new(name).extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| ["yaml", "yml", "toml", "json"].contains(&ending))
}

/// All texts among the values of a file of settings; none where it is not one.
fn texts_of(name: &str, text: &str) -> Vec<String> {
    let value = if name.ends_with(".toml") {
        toml::from_str(text).ok()
    } else if name.ends_with(".json") {
        serde_json::from_str(text).ok()
    } else {
        crate::config::json_of_yaml(text)
    };
    let (mut texts, mut left) = (Vec::new(), Vec::from_iter(value));
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => texts.push(text),
            Value::Array(items) => left.extend(items),
            Value::Object(table) => left.extend(table.into_iter().map(|(_, value)| value)),
            _ => {}
        }
    }
    texts
}

/// Code, or a file without an ending, as scripts may be called.
fn is_script(name: &str) -> bool {
    is_code(Path::new(name)) || Path::new(name).extension().is_none()
}

fn add(names: &mut Vec<String>, name: String) {
    if !names.contains(&name) {
        names.push(name);
    }
}

/// Without `.` and, as far as there is something to go back from, without `..`.
fn simplified(path: &Path) -> PathBuf {
    let mut simple = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(simple.components().next_back(), Some(Component::Normal(_))) =>
            {
                simple.pop();
            }
            other => simple.push(other),
        }
    }
    simple
}

#[cfg(test)]
mod tests;

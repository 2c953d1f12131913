//! The project's own files that a training reads: those that config.yaml declares, those that its
//! command names, and the code below the folder of its script.
//!
//! Whatever a run reads and no key covers is a measurement under a wrong name. So these files are
//! inputs without being declared; `"!results.json"` among the inputs takes one back that the run
//! itself writes. Where a command does not say what it reads, `inputs` must.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use globset::GlobMatcher;
use serde_json::Value;

use super::{
    command_words::{Named, named_by, outside},
    resolve::Resolved,
};
use crate::{
    config::View,
    digest::Digest,
    error::{Error, Result},
    files::{EntryKind, ReadSet, is_code},
    results::words::few,
};

/// What holds of every command whose inputs nobody stated.
pub const UNWATCHED: &str = "Files that the program opens by itself are not watched, so an edit of them makes nothing stale; name \
                             them in `inputs`";

/// The project's files that a cell's runs read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    pub files: Vec<Input>,
    /// Names in the command that are not files yet. If a run makes one of them, it is an output,
    /// unless somebody says else.
    pub absent: Vec<String>,
    /// Words of the command that are folders, or files elsewhere that are not followed.
    pub unfollowed: Vec<String>,
    /// Folders outside of the project whose code nobody declares.
    pub outside: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its path from the project's root.
    pub name: String,
    pub digest: Digest,
    pub origin: InputOrigin,
}

/// Why a file is an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputOrigin {
    Declared,
    /// A word of the command.
    Word,
    /// Code below the folder of the command's script.
    Code,
}

impl Input {
    /// May it as well be what the run writes? Only its command names it, and it is not code.
    #[must_use]
    pub fn may_be_output(&self) -> bool {
        self.origin == InputOrigin::Word && !is_code(Path::new(&self.name))
    }
}

impl Inputs {
    /// That code outside of the project is not watched, where the command or `PYTHONPATH` names some.
    #[must_use]
    pub fn unwatched_outside(&self) -> Option<String> {
        let folder = self.outside.first()?;
        let folders: Vec<String> = self.outside.iter().map(|of| format!("`{of}`")).collect();
        Some(format!(
            "Files that the program reads in {}, outside of the project, are not watched; name them in `inputs` \
             (`{folder}/**/*.py`, or `!{folder}/**` if it reads none)",
            few(&folders)
        ))
    }

    /// Names of the inputs that nobody declares.
    pub fn found(&self, origin: InputOrigin) -> impl Iterator<Item = &str> {
        let of = self
            .files
            .iter()
            .filter(move |input| input.origin == origin);
        of.map(|input| input.name.as_str())
    }

    /// Names of the inputs that a run may write itself.
    pub fn possible_outputs(&self) -> impl Iterator<Item = &str> {
        let of = self.files.iter().filter(|input| input.may_be_output());
        of.map(|input| input.name.as_str())
    }
}

/// Finds the inputs of cells; each glob is walked once, each command and each file is read once.
pub(super) struct Finder<'a> {
    root: &'a Path,
    reads: &'a ReadSet,
    /// What each glob matches, by the glob and its exceptions.
    globs: BTreeMap<String, Vec<String>>,
    commands: HashMap<String, Named>,
    files: BTreeMap<String, Digest>,
    /// By globs and command, which many cells share.
    found: HashMap<String, Arc<Inputs>>,
}

impl<'a> Finder<'a> {
    pub fn new(root: &'a Path, reads: &'a ReadSet) -> Self {
        let (globs, commands, files, found) = Default::default();
        Self {
            root,
            reads,
            globs,
            commands,
            files,
            found,
        }
    }

    /// The inputs of a cell as its settings are, whatever gave them; `view` tells where the globs
    /// are written.
    pub fn of(
        &mut self,
        resolved: &Resolved,
        view: &View<'_>,
        framework: &str,
    ) -> Result<Arc<Inputs>> {
        let command = resolved.job.framework.get("command");
        let text = command.map(Value::to_string).unwrap_or_default();
        let path_of_python = resolved.env.get("PYTHONPATH");
        let of_both = format!("{:?}\n\n{text}\n\n{path_of_python:?}", resolved.inputs);
        if let Some(found) = self.found.get(&of_both) {
            return Ok(found.clone());
        }
        let stated = resolved.inputs.as_deref().unwrap_or_default();
        let path = format!("frameworks.{framework}.inputs");
        let refused =
            |message: String, label: &str| Error::invalid(view.problem_at(&path, message, label));
        let except = exceptions(stated).map_err(|why| refused(why, "here"))?;
        let mut declared = BTreeSet::new();
        for glob in stated.iter().filter(|glob| !glob.starts_with('!')) {
            let names = match self.globs.entry(with_exceptions(glob, stated)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let matched = expand(self.root, glob, &except, self.reads)
                        .map_err(|why| refused(why, "here"))?;
                    if matched.is_empty() {
                        return Err(refused(nothing_matches(self.root, glob), "matches nothing"));
                    }
                    new.insert(matched)
                }
            };
            declared.extend(
                names
                    .iter()
                    .filter(|name| !is_excepted(&except, name))
                    .cloned(),
            );
        }
        if let (Some(command), false) = (command, self.commands.contains_key(&text)) {
            let named = named_by(self.root, command, self.reads)?;
            self.commands.insert(text.clone(), named);
        }
        let nothing = Named::default();
        let named = self.commands.get(&text).unwrap_or(&nothing);
        if let (Some(why), None) = (&named.unknown, &resolved.inputs) {
            let at = format!("frameworks.{framework}.command");
            let problem = view.problem_at(&at, why.clone(), "what does it read?");
            return Err(Error::invalid(problem.help(format!(
                "list its files in `frameworks.{framework}.inputs`, as in `inputs: [\"*.py\", \"lib/**/*.py\"]`; \
                 `inputs: []` says that it reads none"
            ))));
        }
        let is_open = |name: &&String| !declared.contains(*name) && !is_excepted(&except, name);
        let absent = named.absent.iter().filter(is_open).cloned().collect();
        // Whoever lists inputs below a folder has said which of its files count.
        let is_listed = |word: &&String| {
            let folder = normalized(self.root, word.trim_end_matches('/'));
            let mut globs = stated.iter().map(|glob| glob.trim_start_matches('!'));
            globs.any(|glob| Path::new(&normalized(self.root, glob)).starts_with(&folder))
        };
        let unfollowed = named.unfollowed.iter().filter(|word| !is_listed(word));
        let unfollowed = unfollowed.cloned().collect();
        let of_python = path_of_python.map(|path| outside(self.root, path, self.reads));
        let mut outside = [named.outside.clone(), of_python.unwrap_or_default()].concat();
        outside.retain(|folder| !is_listed(&folder));
        outside.dedup();
        let mut origins = BTreeMap::new();
        for (names, origin) in [
            (&named.code, InputOrigin::Code),
            (&named.files, InputOrigin::Word),
        ] {
            let open = names.iter().filter(is_open);
            origins.extend(open.map(|name| (name.clone(), origin)));
        }
        origins.extend(
            declared
                .into_iter()
                .map(|name| (name, InputOrigin::Declared)),
        );
        let mut files = Vec::new();
        for (name, origin) in origins {
            let digest = self.digest(&name)?;
            files.push(Input {
                name,
                digest,
                origin,
            });
        }
        Ok(self
            .found
            .entry(of_both)
            .or_insert(Arc::new(Inputs {
                files,
                absent,
                unfollowed,
                outside,
            }))
            .clone())
    }

    fn digest(&mut self, name: &str) -> Result<Digest> {
        if let Some(known) = self.files.get(name) {
            return Ok(*known);
        }
        let full = self.root.join(name);
        let digest = self
            .reads
            .digest(&full)
            .map_err(Error::io("cannot read the input", &full))?;
        self.files.insert(name.to_owned(), digest);
        Ok(digest)
    }
}

/// A glob and what other entries take back of it: two frameworks may share the one and not the
/// other.
fn with_exceptions(glob: &str, globs: &[String]) -> String {
    let except = globs
        .iter()
        .filter(|other| other.starts_with('!'))
        .map(String::as_str);
    [glob]
        .into_iter()
        .chain(except)
        .collect::<Vec<_>>()
        .join("\n")
}

/// What `!GLOB`s take back.
fn exceptions(globs: &[String]) -> Result<Vec<GlobMatcher>, String> {
    let except = globs.iter().filter_map(|glob| glob.strip_prefix('!'));
    except
        .map(|glob| matcher(&normalized(Path::new(""), glob)))
        .collect()
}

fn is_excepted(except: &[GlobMatcher], name: impl AsRef<Path>) -> bool {
    except.iter().any(|glob| glob.is_match(&name))
}

fn matcher(pattern: &str) -> Result<GlobMatcher, String> {
    let glob = globset::GlobBuilder::new(pattern)
        .literal_separator(true)
        .build();
    Ok(glob
        .map_err(|e| format!("`{pattern}` is not a glob: {}", e.kind()))?
        .compile_matcher())
}

/// A path as keys spell it: from the project's root where it lies below it, and without `./`.
fn normalized(root: &Path, path: &str) -> String {
    let path = Path::new(path);
    let below = path.strip_prefix(root).unwrap_or(path);
    let parts: PathBuf = below
        .components()
        .filter(|part| *part != Component::CurDir)
        .collect();
    parts.to_string_lossy().into_owned()
}

fn has_glob(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Files of the project that match, but nothing that builds, editors or interpreters leave behind.
fn expand(
    root: &Path,
    pattern: &str,
    except: &[GlobMatcher],
    reads: &ReadSet,
) -> Result<Vec<String>, String> {
    let pattern = normalized(root, pattern);
    if !has_glob(&pattern) {
        let is_file = reads
            .is_file(&root.join(&pattern))
            .map_err(|why| format!("the input `{pattern}`: {why}"))?;
        return Ok(if is_file { vec![pattern] } else { Vec::new() });
    }
    let glob = matcher(&pattern)?;
    // Start below the part of the pattern that is not a glob.
    let parts = || Path::new(&pattern).components();
    let fixed: PathBuf = parts()
        .take_while(|part| !has_glob(&part.as_os_str().to_string_lossy()))
        .collect();
    // `**` and alternatives may match any number of folders; without them each part matches one
    // name.
    let is_deep = pattern.contains("**") || pattern.contains('{');
    let depth = if is_deep {
        usize::MAX
    } else {
        parts().count() - fixed.components().count()
    };
    let found = reads
        .walk(root, &fixed, depth)
        .map_err(|why| format!("the input `{pattern}`: {why}"))?;
    let mut names = Vec::new();
    for file in found
        .into_iter()
        .filter(|file| glob.is_match(&file.path) && !is_excepted(except, &file.path))
    {
        let shown = file.path.display();
        match (file.kind, file.path.to_str()) {
            (EntryKind::File, Some(name)) => names.push(name.to_owned()),
            (EntryKind::File, None) => {
                return Err(format!(
                    "the input `{pattern}` matches {shown}, a name that is not UTF-8"
                ));
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
        return format!(
            "the input `{glob}` is a folder; `{}/**` means all files in it",
            glob.trim_end_matches('/')
        );
    }
    format!("no file of the project matches the input `{glob}`")
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            expanded(root.path(), "src/**").unwrap(),
            ["src/b.py", "src/deep/c.py"]
        );
        assert_eq!(expanded(root.path(), "src/*").unwrap(), ["src/b.py"]);
    }

    #[test]
    fn an_exception_that_is_not_a_glob_is_an_error() {
        assert!(
            exceptions(&["!src/[".to_owned()])
                .unwrap_err()
                .starts_with("`src/[` is not a glob")
        );
    }

    #[test]
    fn the_spelling_of_an_input_does_not_count() {
        let root = project(&["src/a.py"]);
        let absolute = root.path().join("src/a.py");
        for spelled in [
            "src/a.py",
            "./src/a.py",
            "src/./a.py",
            "src//a.py",
            absolute.to_str().unwrap(),
            "./src/*.py",
        ] {
            assert_eq!(
                expanded(root.path(), spelled).unwrap(),
                ["src/a.py"],
                "{spelled}"
            );
        }
    }

    #[test]
    fn folders_behind_links_are_covered_and_special_files_refused() {
        let root = project(&["p/src/a.py", "shared/net.py"]);
        let p = root.path().join("p");
        std::os::unix::fs::symlink("../../shared", p.join("src/shared")).unwrap();
        assert_eq!(
            expanded(&p, "src/**/*.py").unwrap(),
            ["src/a.py", "src/shared/net.py"]
        );
        assert_eq!(expanded(&p, "src/*").unwrap(), ["src/a.py"]);
        nix::unistd::mkfifo(&p.join("src/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let why = expanded(&p, "src/*").unwrap_err();
        assert_eq!(
            why,
            "the input `src/*` matches src/pipe, which is a pipe; \"!src/pipe\" leaves it out"
        );
        let except = exceptions(&["!src/pipe".to_owned()]).unwrap();
        assert_eq!(
            expand(&p, "src/*", &except, &ReadSet::default()).unwrap(),
            ["src/a.py"]
        );
    }
}

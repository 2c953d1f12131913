//! What somebody else's repository on this host is, as keys know it: its commit, and what was
//! changed on top of it.
//!
//! The repository is read, never obeyed. Its own configuration may name programs (fsmonitor,
//! filters, hooks, external diffs, remotes), so git gets a folder of ours as its GIT_DIR, with an
//! empty configuration, and only the objects, the index and the exclude file of the repository.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability, open_regular, open_regular_no_link, write_atomically},
};

/// HEAD, a ref, a `.git` file: one short line each.
const LINE: u64 = 4 << 10;
/// `packed-refs` and `info/exclude`.
const LIST: u64 = 16 << 20;
/// Submodules within submodules.
const DEEPEST: usize = 8;
/// What differs from the commit in tracked files.
const DIFF: &[&str] = &[
    "diff",
    "HEAD",
    "--binary",
    // Git would start another git in each submodule, which obeys the submodule's configuration.
    "--ignore-submodules=all",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
];
/// The names of the files that it has.
const NAMES: &[&str] = &[
    "diff",
    "HEAD",
    "--name-only",
    "-z",
    "--no-renames",
    "--ignore-submodules=all",
    "--no-ext-diff",
];
/// The mode of a submodule in trees and in the index.
const GITLINK: &str = "160000";

/// Facts of the checkout at `dir`: `commit`, and `dirty` where tracked files differ from it or
/// untracked ones lie beside them. Where `dir` is not a git repository of its own, `content`, the
/// digest of `file`, stands in. Empty: not there.
pub fn checkout_facts(dir: &Path, file: &str) -> Result<BTreeMap<String, String>> {
    let marker = dir.join(file);
    if !marker.is_file() {
        return Ok(BTreeMap::new());
    }
    let Some(repository) = Repository::at(dir)? else {
        let digest = Digest::of_file(&marker)
            .map_err(Error::io("cannot read the checkout's file", &marker))?;
        return Ok([("content".to_owned(), digest.to_string())].into());
    };
    let mut facts = BTreeMap::new();
    facts.extend(
        repository
            .changes(0)?
            .map(|digest| ("dirty".to_owned(), digest.to_string())),
    );
    facts.insert("commit".to_owned(), repository.commit);
    Ok(facts)
}

/// The commit that the repository around a folder is at; none where there is none, or where it cannot
/// be read.
#[must_use]
pub fn commit_around(dir: &Path) -> Option<String> {
    let mut around = dir.ancestors();
    let repository = around.find_map(|dir| Repository::at(dir).ok().flatten())?;
    Some(repository.commit)
}

/// The same with a digest of what was changed in its tracked files, as in `2f93708e.changed.1b4c92d7`.
pub fn state_around(dir: &Path) -> Result<Option<String>> {
    let mut around = dir.ancestors().map(Repository::at);
    let Some(repository) = around.find_map(Result::transpose).transpose()? else {
        return Ok(None);
    };
    let commit: String = repository.commit.chars().take(12).collect();
    let changed = repository.tracked_changes(DIFF)?;
    Ok(Some(match changed.is_empty() {
        true => commit,
        false => format!("{commit}.changed.{}", Digest::of(&changed).short()),
    }))
}

/// The tracked files below a folder that differ from the commit of the repository around it.
pub fn edited_below(dir: &Path) -> Result<Vec<String>> {
    let dir = absolute(dir);
    let mut around = dir.ancestors().map(Repository::at);
    let Some(repository) = around.find_map(Result::transpose).transpose()? else {
        return Ok(Vec::new());
    };
    let below = dir.strip_prefix(&repository.work_tree).unwrap_or(&dir);
    let listed = repository.tracked_changes(NAMES)?;
    let names = listed.split(|&byte| byte == 0);
    let names =
        names.filter_map(|name| Path::new(OsStr::from_bytes(name)).strip_prefix(below).ok());
    let names = names.filter(|name| *name != Path::new(""));
    Ok(names.map(|name| name.display().to_string()).collect())
}

/// A work tree with its own `.git`, at a commit.
struct Repository {
    work_tree: PathBuf,
    /// Has HEAD and the index.
    git_dir: PathBuf,
    /// Has the objects and the branches; another folder than `git_dir` for a linked work tree.
    common_dir: PathBuf,
    commit: String,
}

impl Repository {
    /// `None`: `dir` is no repository of its own, or has no commit. A plain copy inside another
    /// repository has that one's commit, which says nothing of it; a bare repository has no work
    /// tree.
    fn at(dir: &Path) -> Result<Option<Self>> {
        let dot_git = dir.join(".git");
        let git_dir = match fs::metadata(&dot_git) {
            Ok(found) if found.is_dir() => dot_git,
            Ok(_) => match line_of(&dot_git)
                .and_then(|line| Some(line.strip_prefix("gitdir: ")?.to_owned()))
            {
                Some(place) => dir.join(place),
                None => return Ok(None),
            },
            Err(_) => return Ok(None),
        };
        let common_dir = match line_of(&git_dir.join("commondir")) {
            Some(place) => git_dir.join(place),
            None => git_dir.clone(),
        };
        if common_dir.join("reftable").exists() {
            return Err(Error::Failed {
                message: format!(
                    "the checkout {} keeps its branches in a reftable, which tprimat cannot read",
                    dir.display()
                ),
                help: Some(
                    "`git refs migrate --ref-format=files` in it makes them plain files".into(),
                ),
            });
        }
        let Some(commit) = resolve(&git_dir, &common_dir, "HEAD") else {
            return Ok(None);
        };
        Ok(Some(Self {
            work_tree: dir.to_owned(),
            git_dir,
            common_dir,
            commit,
        }))
    }

    /// What was changed in tracked files and is not committed.
    fn tracked_changes(&self, command: &[&str]) -> Result<Vec<u8>> {
        let own = self
            .private_git_dir()
            .map_err(|error| self.failed(&error.to_string()))?;
        let changes = self
            .honest_index(own.path())
            .and_then(|index| self.git(own.path(), &index, command, Vec::new()));
        changes.ok_or_else(|| self.failed("git did not answer"))
    }

    /// Digest of every change that is not committed, in submodules too; `None`: as committed.
    fn changes(&self, depth: usize) -> Result<Option<Digest>> {
        let own = self
            .private_git_dir()
            .map_err(|error| self.failed(&error.to_string()))?;
        let silent = || self.failed("git did not answer");
        let index = self.honest_index(own.path()).ok_or_else(silent)?;
        let git = |arguments: &[&str]| {
            self.git(own.path(), &index, arguments, Vec::new())
                .ok_or_else(silent)
        };
        let mut text = git(DIFF)?;
        let untracked = git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
        for name in untracked.split(|&b| b == 0).filter(|name| !name.is_empty()) {
            text.extend(self.untracked(name, depth)?.into_bytes());
        }
        let index = gitlinks(&git(&["ls-files", "--stage", "-z"])?);
        let head = match index.is_empty() && !self.work_tree.join(".gitmodules").exists() {
            true => BTreeMap::new(),
            false => gitlinks(&git(&["ls-tree", "-r", "-z", "HEAD"])?),
        };
        let removed = head.keys().filter(|path| !index.contains_key(*path));
        for path in index.keys().chain(removed) {
            let (staged, committed) = (index.get(path), head.get(path));
            text.extend(self.submodule(path, staged, committed, depth)?.into_bytes());
        }
        Ok((!text.is_empty()).then(|| Digest::of(&text)))
    }

    /// What an untracked file adds to the changes. Git names a folder that is a repository of its
    /// own, and none of its files.
    fn untracked(&self, name: &[u8], depth: usize) -> Result<String> {
        let path = self.work_tree.join(OsStr::from_bytes(name));
        let place = String::from_utf8_lossy(name);
        if !name.ends_with(b"/") {
            let digest = untracked_digest(&path)
                .map_err(|error| self.failed(&format!("`{place}` cannot be read: {error}")))?;
            let line = |digest| format!("\nuntracked {place} {digest}\n");
            return Ok(digest.map_or_else(String::new, line));
        }
        let unknown = "is a repository without a commit, or too deep within others";
        let inner = Self::within(&path, depth)?;
        let inner = inner.ok_or_else(|| self.failed(&format!("`{place}` {unknown}")))?;
        let mut text = format!("\nuntracked-repository {place} {}\n", inner.commit);
        if let Some(digest) = inner.changes(depth + 1)? {
            text += &format!("\nuntracked-repository {place} dirty {digest}\n");
        }
        Ok(text)
    }

    /// What a submodule adds to the changes. One that is not checked out is as the index has it.
    fn submodule(
        &self,
        path: &[u8],
        staged: Option<&String>,
        committed: Option<&String>,
        depth: usize,
    ) -> Result<String> {
        let place = String::from_utf8_lossy(path);
        let inner = Self::within(&self.work_tree.join(OsStr::from_bytes(path)), depth)?;
        let commit = inner.as_ref().map(|inner| &inner.commit).or(staged);
        let mut text = String::new();
        if commit != committed {
            let commit = commit.map_or("removed", String::as_str);
            text += &format!("\nsubmodule {place} {commit}\n");
        }
        let changes = inner.map(|inner| inner.changes(depth + 1)).transpose()?;
        if let Some(digest) = changes.flatten() {
            text += &format!("\nsubmodule {place} dirty {digest}\n");
        }
        Ok(text)
    }

    /// A repository within another one, if it is not too deep.
    fn within(dir: &Path, depth: usize) -> Result<Option<Self>> {
        if depth < DEEPEST {
            Self::at(dir)
        } else {
            Ok(None)
        }
    }

    /// A GIT_DIR without any setting of the repository's.
    fn private_git_dir(&self) -> Result<tempfile::TempDir> {
        let own = tempfile::tempdir()
            .map_err(Error::io("cannot make a folder in", std::env::temp_dir()))?;
        let write = |name: &str, text: &[u8]| {
            write_atomically(&own.path().join(name), text, Durability::Plain)
        };
        files::create_dir_all(&own.path().join("refs"))?;
        files::create_dir_all(&own.path().join("objects"))?;
        write("HEAD", format!("{}\n", self.commit).as_bytes())?;
        let format = match self.commit.len() {
            64 => "[core]\nrepositoryformatversion = 1\n[extensions]\nobjectformat = sha256\n",
            _ => "[core]\nrepositoryformatversion = 0\n",
        };
        write("config", format.as_bytes())?;
        if let Some(excluded) = read_small(&self.common_dir.join("info/exclude"), LIST) {
            write("info/exclude", excluded.as_bytes())?;
        }
        // Where the index is kept in two parts, git looks for the shared one in its GIT_DIR.
        for entry in fs::read_dir(&self.git_dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name.to_string_lossy().starts_with("sharedindex.")
                && entry.file_type().is_ok_and(|kind| kind.is_file())
            {
                let link = std::os::unix::fs::symlink(entry.path(), own.path().join(&name));
                link.map_err(Error::io("cannot make a link in", own.path()))?;
            }
        }
        Ok(own)
    }

    /// Files may be marked in the index as never changed, or as left out of the work tree, and git
    /// then looks at none of their edits. Where one of them is there all the same, git gets a copy
    /// of the index without the mark.
    fn honest_index(&self, git_dir: &Path) -> Option<PathBuf> {
        let own = absolute(&self.git_dir).join("index");
        let listed = self.git(git_dir, &own, &["ls-files", "-v", "-z"], Vec::new())?;
        let (mut unchanged, mut left_out) = (Vec::new(), Vec::new());
        for entry in listed.split(|&b| b == 0) {
            let (Some(tag), Some(name)) = (entry.first(), entry.get(2..)) else {
                continue;
            };
            let is_there =
                || fs::symlink_metadata(self.work_tree.join(OsStr::from_bytes(name))).is_ok();
            if tag.is_ascii_lowercase() {
                unchanged.extend([name, b"\0"].concat());
            }
            // A sparse checkout leaves files out; those are as committed.
            if tag.eq_ignore_ascii_case(&b's') && is_there() {
                left_out.extend([name, b"\0"].concat());
            }
        }
        if unchanged.is_empty() && left_out.is_empty() {
            return Some(own);
        }
        let copy = git_dir.join("index");
        write_atomically(&copy, &files::read(&own).ok()?, Durability::Plain).ok()?;
        for (mark, names) in [
            ("--no-assume-unchanged", unchanged),
            ("--no-skip-worktree", left_out),
        ] {
            if !names.is_empty() {
                self.git(
                    git_dir,
                    &copy,
                    &["update-index", mark, "-z", "--stdin"],
                    names,
                )?;
            }
        }
        Some(copy)
    }

    /// Standard output of a git command that ended well.
    fn git(
        &self,
        git_dir: &Path,
        index: &Path,
        arguments: &[&str],
        input: Vec<u8>,
    ) -> Option<Vec<u8>> {
        if fs::symlink_metadata(index).is_ok_and(|index| !index.is_file()) {
            return None;
        }
        let mut env: BTreeMap<OsString, OsString> = BTreeMap::new();
        // Not HOME and not XDG_CONFIG_HOME: a list of ignored files there would hide edits on one
        // host and not on another.
        for name in ["PATH", "TMPDIR", "LD_LIBRARY_PATH"] {
            env.extend(std::env::var_os(name).map(|value| (name.into(), value)));
        }
        let settings = [
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_SYSTEM", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_ALLOW_PROTOCOL", "none"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("LC_ALL", "C"),
        ];
        env.extend(settings.map(|(name, value)| (name.into(), value.into())));
        env.insert("GIT_DIR".into(), git_dir.into());
        env.insert("GIT_WORK_TREE".into(), absolute(&self.work_tree).into());
        env.insert(
            "GIT_OBJECT_DIRECTORY".into(),
            absolute(&self.common_dir.join("objects")).into(),
        );
        env.insert("GIT_INDEX_FILE".into(), index.into());
        let off = [
            "core.fsmonitor=false",
            "core.hooksPath=/dev/null",
            "core.untrackedCache=false",
            "core.excludesFile=/dev/null",
            "core.attributesFile=/dev/null",
        ];
        let off = off.iter().flat_map(|setting| ["-c", setting]);
        let command = duct::cmd("git", off.chain(arguments.iter().copied()))
            .dir(&self.work_tree)
            .full_env(env);
        let output = command
            .stdin_bytes(input)
            .stdout_capture()
            .stderr_null()
            .unchecked()
            .run();
        output.ok().filter(|o| o.status.success()).map(|o| o.stdout)
    }

    fn failed(&self, why: &str) -> Error {
        Error::Failed {
            message: format!(
                "cannot see what was changed in the checkout {}: {why}",
                self.work_tree.display()
            ),
            help: Some("`git -C DIR diff HEAD` must work there".into()),
        }
    }
}

/// Git reads paths from the work tree, where it is started.
fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The commit that a ref stands for.
fn resolve(git_dir: &Path, common_dir: &Path, name: &str) -> Option<String> {
    let mut name = name.to_owned();
    // A branch may stand for another one; no chain is longer.
    for _ in 0..5 {
        let line = line_of(&git_dir.join(&name)).or_else(|| line_of(&common_dir.join(&name)));
        let Some(line) = line else {
            return packed(common_dir, &name);
        };
        match line.strip_prefix("ref: ") {
            Some(next)
                if next.starts_with("refs/") && !next.split('/').any(|part| part == "..") =>
            {
                next.clone_into(&mut name)
            }
            Some(_) => return None,
            None => return Some(line).filter(|line| is_commit(line)),
        }
    }
    None
}

fn packed(common_dir: &Path, name: &str) -> Option<String> {
    let text = read_small(&common_dir.join("packed-refs"), LIST)?;
    let mut entries = text.lines().filter_map(|line| line.split_once(' '));
    entries
        .find(|(commit, of)| *of == name && is_commit(commit))
        .map(|(commit, _)| commit.to_owned())
}

fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Submodules by path, from `MODE … COMMIT … TAB PATH NUL`, which is what `ls-files --stage` and
/// `ls-tree` print.
fn gitlinks(listing: &[u8]) -> BTreeMap<Vec<u8>, String> {
    let mut links = BTreeMap::new();
    for entry in listing.split(|&b| b == 0) {
        let Some(tab) = entry.iter().position(|&b| b == b'\t') else {
            continue;
        };
        let words = String::from_utf8_lossy(&entry[..tab]).into_owned();
        let commit = words.split(' ').skip(1).find(|word| is_commit(word));
        if let Some(commit) = commit.filter(|_| words.starts_with(GITLINK)) {
            links.insert(entry[tab + 1..].to_owned(), commit.to_owned());
        }
    }
    links
}

/// A link counts by where it leads to: what is there is not in the checkout. A file that vanishes
/// while it is looked at was no input.
fn untracked_digest(path: &Path) -> io::Result<Option<Digest>> {
    if let Ok(target) = fs::read_link(path) {
        return Ok(Some(Digest::of(target.as_os_str().as_bytes())));
    }
    match open_regular_no_link(path).and_then(|_| Digest::of_file(path)) {
        Ok(digest) => Ok(Some(digest)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn line_of(path: &Path) -> Option<String> {
    read_small(path, LINE).map(|text| text.trim_end().to_owned())
}

fn read_small(path: &Path, most: u64) -> Option<String> {
    let (file, _) = open_regular(path).ok()?;
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;

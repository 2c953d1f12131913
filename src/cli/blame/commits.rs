//! A cell at the commits of a repository: that of its recipe's checkout where it has one, else the
//! project's own.

use std::path::{Path, PathBuf};

use super::{
    differences::Difference,
    series::{Series, differences},
    since::{READ, copy_file, copy_folder},
};
use crate::{
    cli::session::Session,
    error::{Error, Result},
    files,
    host::edited_below,
    matrix::CellId,
    plan::{Input, PlanRequest},
    results::words::few,
};

/// Characters of a commit that people are shown.
const SHOWN: usize = 10;

/// Characters of a commit's subject that people are shown.
const SUBJECT: usize = 72;

/// The work tree, in the folder that is made for it.
const TREE: &str = "repository";

/// Where commits come from.
#[derive(Debug)]
pub struct Repository {
    /// The top of its work tree.
    top: PathBuf,
    /// The project's folder below the top.
    project: PathBuf,
    /// Which setting names it; none for the project's own.
    setting: Option<String>,
}

/// The commits of a range, `OLD..NEW` or `OLD` for all since, oldest first: those that touch the folder,
/// along first parents, so that a branch that was merged is one of them.
pub fn commits(session: &Session, cell: CellId, range: &str) -> Result<Vec<Difference>> {
    let (folder, setting) = folder_of(session, cell)?;
    let said = |arguments: &[&str]| git(&folder, arguments);
    let top = said(&["rev-parse", "--show-toplevel"]).map_err(|_| {
        Error::refused(
            format!(
                "--commits {range}: {} is in no git repository",
                folder.display()
            ),
            "blame CELL --since DATE|BASELINE needs none",
        )
    })?;
    let repository = Repository {
        top: PathBuf::from(top),
        project: PathBuf::from(said(&["rev-parse", "--show-prefix"])?),
        setting,
    };
    let (old, new) = range.split_once("..").unwrap_or((range, ""));
    let new = if new.is_empty() { "HEAD" } else { new };
    let [old, new] = [old, new].map(|name| {
        said(&[
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            &format!("{name}^{{commit}}"),
        ])
        .map_err(|_| {
            Error::refused(
                format!(
                    "--commits {range}: `{name}` is no commit of {}",
                    repository.top.display()
                ),
                "give two commits, tags or branches: OLD..NEW, or OLD for all that came after it",
            )
        })
    });
    let (old, new) = (old?, new?);
    let between = format!("{old}..{new}");
    let line = [
        "log",
        "--first-parent",
        "--reverse",
        "--format=%H %s",
        &between,
    ];
    let all = said(&line)?;
    let Some(first) = all.split(' ').next().filter(|first| !first.is_empty()) else {
        return Err(Error::refused(
            format!("--commits {range}: no commit lies between the two"),
            "the older one comes first: OLD..NEW",
        ));
    };
    let parent = said(&["rev-parse", "--verify", "--quiet", &format!("{first}^")]).ok();
    if parent.as_ref() != Some(&old) {
        return Err(Error::refused(
            format!(
                "--commits {range}: the line of first parents of the newer commit does not lead to the older one"
            ),
            "give an older commit of the same branch first; in a shallow clone, `git fetch --unshallow`",
        ));
    }
    let listed = said(&[&line[..], &["--", "."]].concat())?;
    if listed.is_empty() {
        return Err(Error::refused(
            format!(
                "--commits {range} has no commit that touches {}",
                folder.display()
            ),
            "name a range that has some: OLD..NEW",
        ));
    }
    let commits = listed.lines().map(|line| {
        let (commit, subject) = line.split_once(' ').unwrap_or((line, ""));
        (
            commit.to_owned(),
            [short(commit).to_owned(), shown(subject)],
        )
    });
    Ok(differences(Series::Commits(repository), old, commits))
}

/// A note on changes that are in no commit, so that nothing is measured with them.
pub fn uncommitted(session: &Session, cell: CellId) -> Result<Option<String>> {
    let (folder, _) = folder_of(session, cell)?;
    let names = edited_below(&folder)?;
    Ok((!names.is_empty()).then(|| {
        format!(
            "note: uncommitted changes are not measured, only commits are: {}",
            few(&names)
        )
    }))
}

/// Whose commits: the folder, and the setting that names it.
fn folder_of(session: &Session, cell: CellId) -> Result<(PathBuf, Option<String>)> {
    let plan = &session.plan;
    let framework = &*plan.matrix.cells[cell].framework;
    let recipe = plan.recipes.recipes.get(framework);
    let checkouts = recipe
        .map(|recipe| plan.facts.checkouts(recipe))
        .unwrap_or_default();
    match &checkouts[..] {
        [] => Ok((plan.root.clone(), None)),
        [(checkout, Some(folder))] => Ok((folder.clone(), Some(checkout.setting.clone()))),
        [(checkout, None)] => Err(Error::refused(
            format!("config.yaml does not say where the checkout of {framework} is"),
            format!("state {}", checkout.setting),
        )),
        _ => Err(Error::refused(
            format!("{framework} has several checkouts"),
            "make the commits of one of them cells of a matrix",
        )),
    }
}

/// A subject as far as it fits a line.
fn shown(subject: &str) -> String {
    match subject.char_indices().nth(SUBJECT) {
        Some((end, _)) => format!("{}…", subject.get(..end).unwrap_or(subject).trim_end()),
        None => subject.to_owned(),
    }
}

pub fn short(commit: &str) -> &str {
    commit.get(..SHOWN).unwrap_or(commit)
}

impl Repository {
    /// Makes a work tree of its own at a commit in an empty folder, so that nothing is left in the
    /// repository.
    pub fn tree_at(
        &self,
        session: &Session,
        inputs: &[Input],
        (commit, folder): (&str, &Path),
    ) -> Result<()> {
        let tree = folder.join(TREE);
        let place = tree.to_string_lossy().into_owned();
        // It borrows the objects of the repository.
        let clone = ["clone", "--quiet", "--shared", "--no-checkout", ".", &place];
        git(&self.top, &clone)?;
        git(&tree, &["checkout", "--quiet", "--detach", commit])?;
        if self.setting.is_none() {
            add_the_rest(session, inputs, &tree.join(&self.project))?;
        }
        Ok(())
    }

    /// Names the work tree of a folder in a request.
    pub fn name_in(&self, request: &mut PlanRequest, session: &Session, folder: &Path) {
        let of_project = folder.join(TREE).join(&self.project);
        match &self.setting {
            Some(setting) => {
                let place = of_project.display();
                request.sets.push(format!("{setting}={place}"));
            }
            None => {
                request.root = of_project;
                let cache = session.cache.root().display();
                request.sets.push(format!("paths.cache={cache}"));
            }
        }
    }
}

/// What lies in the project's folder and in no commit: its settings perhaps, data, an environment. What a
/// plan reads is copied, the rest linked.
fn add_the_rest(session: &Session, inputs: &[Input], to: &Path) -> Result<()> {
    let plan = &session.plan;
    let root = &plan.root;
    let made = [plan.config.cache_dir(root), plan.config.output_dir(root)];
    let inputs: Vec<&str> = inputs.iter().map(|input| &*input.name).collect();
    let untracked = git(root, &["ls-files", "-z", "--others", "--directory"])?;
    for name in untracked.split('\0').filter(|name| !name.is_empty()) {
        // A folder ends with a slash.
        let name = Path::new(name.trim_end_matches('/'));
        let (path, target) = (root.join(name), to.join(name));
        if made.iter().any(|made| path.starts_with(made)) || target.symlink_metadata().is_ok() {
            continue;
        }
        let parent = target.parent().unwrap_or(to);
        files::create_dir_all(parent)?;
        let is_read = READ.iter().any(|read| name.starts_with(read))
            || inputs
                .iter()
                .any(|input| Path::new(input).starts_with(name));
        if path.is_dir() && is_read {
            files::create_dir_all(&target)?;
            copy_folder(root, name, to, &inputs, &made)?;
        } else if path.is_file() && (is_read || parent == to) {
            copy_file(&path, &target)?;
        } else {
            let linked = std::os::unix::fs::symlink(&path, &target);
            linked.map_err(Error::io("cannot link", &target))?;
        }
    }
    Ok(())
}

/// What git says, without the end of its last line. It runs no hooks, which a template of the user's may bring.
fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let failed = |why: &str| {
        Error::failed(format!(
            "git {} in {}: {why}",
            arguments[0],
            folder.display()
        ))
    };
    let all = [&["-c", "core.hooksPath=/dev/null"], arguments].concat();
    let done = duct::cmd("git", all)
        .dir(folder)
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin_null()
        .stdout_capture()
        .stderr_capture()
        .unchecked()
        .run()
        .map_err(|error| failed(&error.to_string()))?;
    if !done.status.success() {
        return Err(failed(String::from_utf8_lossy(&done.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
}

//! What a command may not write over: the project's own inputs, what it reads itself, and what it
//! writes elsewhere.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    plan::{Plan, Support},
};

/// Refuses files to write (option, path) that are an input of the project, lie in one of its own
/// folders, are `read` by the command, or are named twice.
pub fn refuse_files(plan: &Plan, files: &[(&str, Option<&Path>)], read: &[&Path]) -> Result<()> {
    let files: Vec<(&str, &Path)> = files
        .iter()
        .filter_map(|(option, path)| Some((*option, (*path)?)))
        .collect();
    let large = match files[..] {
        [] => BTreeSet::new(),
        _ => large_inputs(plan),
    };
    for (i, (option, path)) in files.iter().enumerate() {
        let at = place(path);
        let is_at = |other: &Path| place(other) == at;
        let what = if plan.reads.has_read(is_at) || large.iter().any(|file| is_at(file)) {
            Some("the project reads this file".to_owned())
        } else if read.iter().any(|input| is_at(input)) {
            Some("this command reads that file".to_owned())
        } else if let Some((other, _)) = files[..i].iter().find(|(_, other)| is_at(other)) {
            Some(format!("{other} names the same file"))
        } else if at.is_dir() {
            Some("this is a folder, not a file".to_owned())
        } else {
            own_folder(plan, &at)
        };
        refuse(option, path, what)?;
    }
    Ok(())
}

/// Refuses a folder to write to that is the project's root or one of its own, or no folder.
pub fn refuse_folder(plan: &Plan, option: &str, path: &Path) -> Result<()> {
    let at = place(path);
    let what = if at == place(&plan.root) {
        Some("the project's root holds its inputs".to_owned())
    } else if at.exists() && !at.is_dir() {
        Some("this is a file, not a folder".to_owned())
    } else {
        own_folder(plan, &at)
    };
    refuse(option, path, what)
}

fn refuse(option: &str, path: &Path, what: Option<String>) -> Result<()> {
    let Some(what) = what else { return Ok(()) };
    Err(Error::refused(
        format!("{option} {}: {what}", path.display()),
        "nothing was written; name another place",
    ))
}

/// Refuses a file to write in one of the project's own folders, where no plan says which files it
/// reads.
pub fn refuse_in_project(root: &Path, cache: &Path, option: &str, path: &Path) -> Result<()> {
    let at = place(path);
    let what = if at.is_dir() {
        Some("this is a folder, not a file".to_owned())
    } else {
        folder_of(root, cache, &at)
    };
    refuse(option, path, what)
}

/// Datasets, tokenizers and images, which a plan knows without reading them anew.
fn large_inputs(plan: &Plan) -> BTreeSet<PathBuf> {
    let ready = plan.cells.iter().filter_map(|cell| match &cell.support {
        Support::Ready(prepared) => Some(prepared),
        Support::Unsupported(_) => None,
    });
    let inputs = ready.flat_map(|prepared| {
        let data = prepared.data.iter();
        let data = data.flat_map(|data| data.kind.files(&data.path));
        let image = prepared.image.as_ref().and_then(|image| image.file.clone());
        data.chain(image)
    });
    inputs.collect()
}

fn own_folder(plan: &Plan, at: &Path) -> Option<String> {
    folder_of(&plan.root, &plan.cache_dir(), at)
}

fn folder_of(root: &Path, cache: &Path, at: &Path) -> Option<String> {
    let folders = ["recipes", "templates", "pipelines"].map(|name| root.join(name));
    let own = folders
        .into_iter()
        .chain([cache.to_owned()])
        .find(|folder| at.starts_with(place(folder)))?;
    Some(format!(
        "{} is a folder of the project's own",
        own.strip_prefix(root).unwrap_or(&own).display()
    ))
}

/// A path without links and `..`, as far as it exists.
fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = |known: &Path| {
        Some(
            known
                .canonicalize()
                .ok()?
                .join(path.strip_prefix(known).ok()?),
        )
    };
    // Without the slash at the end that joining nothing leaves: a file has none.
    path.ancestors()
        .find_map(real)
        .unwrap_or_else(|| path.clone())
        .components()
        .collect()
}

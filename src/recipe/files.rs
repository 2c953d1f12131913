//! The files of a recipe: the project's own, and those that are embedded in the binary.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Component, Path},
};

use crate::{
    error::{Error, Problem, Result},
    files::{EntryKind, ReadSet, require_inside},
    shipped::{shipped_file, shipped_under},
};

/// The most bytes that the files of one recipe may have.
const MOST_BYTES: usize = 256 << 20;

/// Files by name, relative to their folder.
pub type Files = BTreeMap<String, Cow<'static, [u8]>>;

/// A recipe's folder as this project has it, with the templates that it takes from elsewhere.
pub fn recipe_files(root: &Path, id: &str, templates: &[String]) -> Result<Files> {
    let reads = ReadSet::default();
    let mut files = folder(root, id, &reads)?;
    for name in templates {
        if let Some((_, bytes)) = find_template(root, id, name, &files, &reads)? {
            files.insert(name.clone(), bytes);
        }
    }
    Ok(files)
}

pub(super) fn has_recipe(folder: &Path, reads: &ReadSet) -> Result<bool> {
    let file = folder.join("recipe.toml");
    reads
        .is_file(&file)
        .map_err(Error::io("cannot look for the recipe", &file))
}

/// All files of a recipe's folder: the project's folder if it has one, else the embedded one.
pub(super) fn folder(root: &Path, id: &str, reads: &ReadSet) -> Result<Files> {
    let is_own = has_recipe(&root.join("recipes").join(id), reads)?;
    if is_own {
        read_folder(root, id, reads)
    } else {
        Ok(embedded(id))
    }
}

pub(super) fn embedded(id: &str) -> Files {
    shipped_under(&format!("recipes/{id}/"))
        .map(|(name, bytes)| (name.to_owned(), Cow::Borrowed(bytes)))
        .collect()
}

/// The project's own files of a recipe, by name; none where it has no folder.
pub(super) fn read_folder(root: &Path, id: &str, reads: &ReadSet) -> Result<Files> {
    let own = root.join("recipes").join(id);
    let refused = |what: String| Error::invalid(Problem::new(format!("recipes/{id}: {what}")));
    let mut files = BTreeMap::new();
    let mut total = 0;
    for found in reads
        .walk(&own, Path::new(""), usize::MAX)
        .map_err(refused)?
    {
        let is_hidden = found
            .path
            .iter()
            .any(|part| part.to_string_lossy().starts_with('.'));
        if is_hidden || found.kind == EntryKind::Environment {
            continue;
        }
        let shown = found.path.display();
        let Some(name) = found.path.to_str() else {
            return Err(refused(format!("the name of {shown} is not UTF-8")));
        };
        if let EntryKind::Other(what) = found.kind {
            return Err(refused(format!(
                "{shown} is {what}, and every file of a recipe is copied beside its program"
            )));
        }
        let path = own.join(&found.path);
        require_inside(root, &path)?;
        let Some(bytes) = reads.read(&path).map_err(Error::io("cannot read", &path))? else {
            continue;
        };
        total += bytes.len();
        if total > MOST_BYTES {
            return Err(refused(format!(
                "its files have more than {} MiB; put data elsewhere",
                MOST_BYTES >> 20
            )));
        }
        files.insert(name.to_owned(), Cow::Owned(bytes));
    }
    Ok(files)
}

pub(super) fn find_template(
    root: &Path,
    id: &str,
    name: &str,
    files: &Files,
    reads: &ReadSet,
) -> Result<Option<(String, Cow<'static, [u8]>)>> {
    if let Some(bytes) = files.get(name) {
        return Ok(Some((format!("recipes/{id}/{name}"), bytes.clone())));
    }
    if !Path::new(name)
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        return Ok(None);
    }
    let place = format!("templates/{name}");
    let path = root.join(&place);
    let own = reads
        .read(&path)
        .map_err(Error::io("cannot read the template", &path))?;
    let bytes = own
        .map(Cow::Owned)
        .or_else(|| shipped_file(&place).map(Cow::Borrowed));
    Ok(bytes.map(|bytes| (place, bytes)))
}

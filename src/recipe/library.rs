//! What several recipes share: modules of their programs, templates that theirs include, and refusals.

use std::{borrow::Cow, collections::BTreeMap, path::Path, sync::Arc};

use super::{
    Constraint, RecipeFile,
    check::check_constraints,
    files::{Files, embedded, read_folder},
};
use crate::{
    digest::Digest,
    error::{Error, Problem, Result, Source, did_you_mean},
    files::ReadSet,
};

/// The folder below recipes/ that is no recipe, but what several recipes share: modules of their
/// programs, templates that theirs include, and refusals.
pub(super) const LIBRARY: &str = "lib";

/// Refusals by name, in that folder.
const REFUSALS: &str = "refusals.toml";

/// recipes/lib, as this project has it.
pub(super) struct Shared {
    pub files: Files,
    refusals: BTreeMap<String, Vec<Constraint>>,
}

impl Shared {
    pub fn read(root: &Path, reads: &ReadSet) -> Result<Self> {
        let files = library(root, reads)?;
        // A project's own refusals come over the shipped ones by name, since shipped recipes name
        // these.
        let mut refusals = refusals(&embedded(LIBRARY))?;
        refusals.extend(self::refusals(&files)?);
        Ok(Self { files, refusals })
    }

    /// Templates for others to include: name, as `{% include "lib/…" %}` has it, and text.
    pub fn templates(&self) -> impl Iterator<Item = (String, Cow<'_, str>)> {
        let templates = self.files.iter().filter(|(name, _)| name.ends_with(".j2"));
        templates.map(|(name, bytes)| (format!("{LIBRARY}/{name}"), String::from_utf8_lossy(bytes)))
    }

    /// Digest of a template and, where it includes shared ones, of these: they may include each
    /// other.
    pub fn digest(&self, template: &str) -> Digest {
        let mut all = template.to_owned();
        if self.templates().any(|(name, _)| template.contains(&name)) {
            all.extend(self.templates().map(|(_, text)| text));
        }
        Digest::of(&all)
    }

    /// The refusals that a recipe names.
    pub fn refused_by(&self, file: &RecipeFile, source: &Arc<Source>) -> Result<Vec<Constraint>> {
        let mut found = Vec::new();
        for name in &file.refuses {
            let known = self.refusals.keys().map(String::as_str);
            let constraints = self.refusals.get(name).ok_or_else(|| {
                let at = source.text.find(name.as_str()).unwrap_or(0);
                let problem = Problem::new(format!(
                    "recipes/{LIBRARY}/{REFUSALS} has no refusal `{name}`"
                ));
                let help = did_you_mean(name, known.clone()).unwrap_or_else(|| {
                    format!("expected one of: {}", known.collect::<Vec<_>>().join(", "))
                });
                let problem = problem.at(source, at..at + name.len(), "named here");
                Error::invalid(problem.help(help))
            })?;
            found.extend_from_slice(constraints);
        }
        Ok(found)
    }
}

fn refusals(files: &Files) -> Result<BTreeMap<String, Vec<Constraint>>> {
    let text = String::from_utf8_lossy(files.get(REFUSALS).map_or(&[], |bytes| &**bytes));
    let source = Source::new(format!("recipes/{LIBRARY}/{REFUSALS}"), &*text);
    let refusals: BTreeMap<String, Vec<Constraint>> = toml::from_str(&text).map_err(|e| {
        let problem = Problem::new(e.message().to_owned());
        Error::invalid(problem.at(&source, e.span().unwrap_or(0..0), "here"))
    })?;
    for constraints in refusals.values() {
        check_constraints(constraints, &source)?;
    }
    Ok(refusals)
}

/// The shared library: the embedded files, and the project's own over them by name.
pub fn library_files(root: &Path) -> Result<Files> {
    library(root, &ReadSet::default())
}

fn library(root: &Path, reads: &ReadSet) -> Result<Files> {
    let mut files = embedded(LIBRARY);
    files.extend(read_folder(root, LIBRARY, reads)?);
    Ok(files)
}

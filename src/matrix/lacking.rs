//! Names that a selection asks for and no cell has: how the matrix would get them.

use super::cell::{Cell, Matrix};
use crate::config::{Config, framework_named};

/// A platform, framework, model or strategy that a selection names and no cell has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// What was given, as `--only amd/{nemo,tran}`.
    pub given: String,
    pub dimension: &'static str,
    pub name: String,
}

/// What the project has, whether or not its matrix names it.
pub struct Project<'a> {
    pub config: &'a Config,
    pub recipes: &'a [&'a str],
    pub matrix: &'a Matrix,
    /// The matrix file; none where config.yaml implies the matrix.
    pub file: Option<&'a str>,
    /// Does `$FRAMEWORKS` choose the frameworks of an implied matrix?
    pub is_chosen: bool,
}

impl Project<'_> {
    /// The note of a build that leaves the name out.
    #[must_use]
    pub fn note(&self, unmet: &Unmet) -> String {
        let Unmet {
            given,
            dimension,
            name,
        } = unmet;
        let how = self.how_to_add(unmet);
        let how = how.map_or_else(String::new, |how| format!("; {how}"));
        format!("{given}: no cell has the {dimension} `{name}`{how}")
    }

    /// The line to write where the project has what was named, and its matrix does not.
    #[must_use]
    pub fn how_to_add(&self, unmet: &Unmet) -> Option<String> {
        let Unmet {
            dimension, name, ..
        } = unmet;
        let id = self.id(dimension, name)?;
        let is_it = |cell: &Cell| cell.value(dimension).is_some_and(|value| **value == *id);
        if let Some((_, reason)) = self.matrix.excluded.iter().find(|(cell, _)| is_it(cell)) {
            return Some(format!("an [[exclude]] takes its cells out: {reason}"));
        }
        let is_declared = || self.config.children("frameworks").any(|known| known == id);
        match (self.file, *dimension) {
            (Some(file), _) => Some(format!(
                "to add its cells, add {id:?} to `{dimension}` below [matrix] in {file}"
            )),
            (None, "parallelism") => Some(format!("PARALLEL={id} plans its cells")),
            (None, "framework") if self.is_chosen => {
                Some(format!("$FRAMEWORKS leaves `{id}` out: add it there"))
            }
            (None, "framework") if !is_declared() => Some(format!(
                "to add its cells, write `{id}: {{}}` below `frameworks` in {}",
                self.config.source_name()
            )),
            (None, _) => None,
        }
    }

    /// The id of what config.yaml declares, or of a recipe.
    fn id(&self, dimension: &str, name: &str) -> Option<String> {
        let declared = |table: &str, name: &str| {
            let mut ids = self.config.children(table);
            ids.find(|id| id.eq_ignore_ascii_case(name))
                .map(str::to_owned)
        };
        match dimension {
            "platform" => match self.config.platforms_named(name)[..] {
                [id] => Some(id.to_owned()),
                _ => None,
            },
            "framework" => {
                let name = name.to_lowercase();
                let known = |id: &str| self.recipes.contains(&id).then(|| id.to_owned());
                known(&name).or_else(|| known(framework_named(&name)?))
            }
            "model" => declared("models", name),
            _ => declared("parallelism", name),
        }
    }
}

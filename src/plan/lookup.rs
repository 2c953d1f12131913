//! What a plan is asked: which cell a name means, what a cell runs, where its matrix is from.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError},
};

use tprimat_words::part;

use super::{Plan, Prepared, Support, read_config::read_text};
use crate::{
    error::{Error, Problem, Result, Source, nearest},
    files::ReadSet,
    matrix::{self, CellId, Selection},
    recipe::{Recipe, Unreached, unreached},
};

impl Plan {
    /// The folder of the project's measurements.
    #[must_use]
    pub fn cache_dir(&self) -> PathBuf {
        self.config.cache_dir(&self.root)
    }

    /// In a line, where the matrix comes from config.yaml alone.
    #[must_use]
    pub fn told_implied(&self) -> Option<String> {
        self.implied.as_ref()?;
        let names = |dimension: &str| {
            let mut names: Vec<&str> = Vec::new();
            for name in self
                .matrix
                .cells
                .iter()
                .filter_map(|cell| cell.value(dimension))
            {
                if !names.contains(&&**name) {
                    names.push(name);
                }
            }
            names.join(", ")
        };
        let axes = ["platform", "framework", "model", "parallelism"]
            .map(names)
            .join(" × ");
        Some(format!(
            "there is no matrix file; config.yaml implies {axes}: {} (`tprimat init --matrix` writes it)",
            crate::words::plain::counted(self.cells.len(), "cell")
        ))
    }

    #[must_use]
    pub fn recipe(&self, cell: CellId) -> &Recipe {
        &self.recipes.recipes[&*self.matrix.cells[cell].framework]
    }

    /// Settings of the workload that the cell's recipe does not hand to its trainer. A template may
    /// use a setting in some cells only, so they are looked for once for each job.
    #[must_use]
    pub fn unreached(&self, cell: CellId) -> Arc<[Unreached]> {
        let Some(prepared) = self.prepared(cell) else {
            return Arc::default();
        };
        let recipe = self.recipe(cell);
        if recipe.file.launch.reads_job {
            return Arc::default();
        }
        let key = (
            self.matrix.cells[cell].framework.clone(),
            prepared.job_digest,
        );
        let known = || {
            self.unreached
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(found) = known().get(&key) {
            return found.clone();
        }
        let found: Arc<[Unreached]> =
            unreached(recipe, &self.recipes.templates, prepared.job()).into();
        known().insert(key, found.clone());
        found
    }

    #[must_use]
    pub fn prepared(&self, cell: CellId) -> Option<&Prepared> {
        match &self.cells[cell].support {
            Support::Ready(prepared) => Some(prepared),
            Support::Unsupported(_) => None,
        }
    }

    /// The cell that was meant; its axes may have been left out.
    fn near(&self, id: &str) -> Option<&str> {
        let ids = || self.cells.iter().map(|c| c.id.as_str());
        let base = |id: &'_ str| id.find('@').unwrap_or(id.len());
        // As many parts as were written.
        let depth = id.split('/').count();
        let end = |id: &'_ str| {
            id.match_indices('/')
                .nth(depth - 1)
                .map_or(base(id), |(at, _)| at)
        };
        let near = nearest(id, ids())
            .or_else(|| nearest(id, ids().map(|id| part(id, ..base(id)))))
            .or_else(|| nearest(id, ids().map(|id| part(id, ..end(id)))))?;
        ids().find(|id| *id == near || part(id, ..base(id)) == near || part(id, ..end(id)) == near)
    }

    /// Which other matrix of the project has the cell. Those that cannot be read have none.
    fn in_another_matrix(&self, name: &str) -> Option<String> {
        let reads = ReadSet::default();
        let has_it = |file: &String| {
            let path = matrix::find(Some(file), &self.root, &reads).ok().flatten();
            let text = path.and_then(|path| read_text(&path, &reads).ok());
            let source = Source::new(file.as_str(), text.unwrap_or_default());
            matrix::load(source, &self.config, &self.recipes.ids(), None, &[])
                .is_ok_and(|other| other.cells.iter().any(|cell| cell.to_string() == name))
        };
        let file = matrix::files(&self.root).into_iter().find(has_it)?;
        Some(format!("the matrix `{file}` has it: add --matrix {file}"))
    }

    /// Position of the cell that a name on the command line means: its id, or whatever `--only`
    /// takes if it means one cell.
    pub fn find(&self, name: &str) -> Result<CellId> {
        if let Some((id, _)) = self.cells.with_ids().find(|(_, c)| c.id == name) {
            return Ok(id);
        }
        let meant = Selection::of_cell(name).select(&self.matrix.cells);
        let meant: Vec<CellId> = match &meant {
            Ok(selected) => {
                let cells = self.cells.ids().zip(selected);
                cells.filter(|(_, is)| **is).map(|(id, _)| id).collect()
            }
            Err(_) => Vec::new(),
        };
        match meant[..] {
            [one] => Ok(one),
            [] => {
                let near = || Some(format!("did you mean `{}`?", self.near(name)?));
                let help = self
                    .in_another_matrix(name)
                    .or_else(near)
                    .unwrap_or_else(|| "`tprimat list` names the cells".to_owned());
                let message = format!("the matrix `{}` has no cell `{name}`", self.matrix.name);
                Err(Error::NothingSelected {
                    message,
                    help: Some(help),
                })
            }
            [first, second, ..] => {
                let more = if meant.len() > 2 {
                    format!(", or {} more", meant.len() - 2)
                } else {
                    String::new()
                };
                let problem = Problem::new(format!("`{name}` may be any of {} cells", meant.len()));
                let (first, second) = (&self.cells[first].id, &self.cells[second].id);
                Err(Error::invalid(
                    problem.help(format!("name one: {first}, {second}{more}")),
                ))
            }
        }
    }
}

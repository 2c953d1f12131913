//! One cell of a plan: its job with all that its keys are made of, or why it cannot run.

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use super::{
    CellProblem, CommandPython, DataFile, DataKind, FactBook, Image, Inputs, Place, PlatformFacts,
    Resolved, Unresolved, preimage::canonical, resolve, resolve::own_degrees,
};
use crate::{
    config::Config,
    digest::Digest,
    error::{Problem, nearest},
    figures::{CellEnvironment, SHARE},
    job::{Job, OTHER},
    matrix::Cell,
    recipe::{COMMAND, Constraint, Nodes, Recipe, RecipeSet},
    shipped::shipped_file,
};

pub struct CellPlan {
    pub id: String,
    pub repeats: u32,
    pub selected: bool,
    /// It is selected and would have to train, which `--cached-only` does not: then it is treated as
    /// one that is not selected.
    pub left_out: bool,
    /// Why a build cannot measure it on this host now although it is the right host: something is
    /// missing.
    pub blocked: Option<String>,
    pub support: Support,
}

pub enum Support {
    Ready(Box<Prepared>),
    Unsupported(String),
}

/// A cell that can be planned.
pub struct Prepared {
    pub resolved: Resolved,
    /// Digest of the job's text.
    pub job_digest: Digest,
    /// Project files that are declared, or that the command names.
    pub inputs: Arc<Inputs>,
    pub facts: Arc<PlatformFacts>,
    /// The Python whose packages are among the facts, where the cell's own command starts it.
    pub python: Option<CommandPython>,
    /// What the runs read, where they read real data.
    pub data: Vec<DataFile>,
    /// What the runs are started in, where that is a container.
    pub image: Option<Image>,
}

impl Prepared {
    /// Are the facts known that keys are made of? If not, why.
    pub fn known(&self) -> Result<(), &str> {
        self.facts.known.as_ref().map_err(String::as_str)?;
        self.image
            .iter()
            .try_for_each(|image| image.digest.as_ref().map(|_| ()).map_err(String::as_str))?;
        self.data
            .iter()
            .try_for_each(|file| file.digest.as_ref().map(|_| ()).map_err(String::as_str))
    }

    /// Can this host run the job? If not, why.
    pub fn here(&self) -> Result<(), String> {
        let nodes = self.job().parallelism.num_nodes;
        if nodes > 1 && self.resolved.execution.place == Place::Local {
            return Err(format!(
                "needs {nodes} nodes, which the slurm and kubernetes executors start (--executor slurm)"
            ));
        }
        self.facts.here(self.job())?;
        match self.data.iter().find(|file| !file.is_here) {
            Some(DataFile {
                kind, name, path, ..
            }) => Err(format!(
                "the {} `{name}` is not here ({})",
                kind.name(),
                path.display()
            )),
            None => Ok(()),
        }
    }

    /// What the runs are started in, for people: declared variables, facts of the lock, digests of
    /// the data.
    #[must_use]
    pub fn environment(&self) -> CellEnvironment {
        let mut facts = self.facts.all.clone();
        for DataFile { kind, digest, .. } in &self.data {
            let name = match kind {
                DataKind::Dataset => crate::results::DATASET_DIGEST,
                DataKind::Tokenizer => crate::results::TOKENIZER_DIGEST,
            };
            facts.extend(
                digest
                    .as_ref()
                    .ok()
                    .map(|digest| (name.to_owned(), digest.to_string())),
            );
        }
        let digest = self
            .image
            .as_ref()
            .and_then(|image| image.digest.as_ref().ok());
        facts.extend(digest.map(|digest| ("image".to_owned(), digest.clone())));
        facts.insert(SHARE.to_owned(), self.resolved.share.to_string());
        CellEnvironment {
            variables: self.resolved.env.clone(),
            facts,
        }
        .public()
    }

    #[must_use]
    pub fn job(&self) -> &Job {
        &self.resolved.job
    }

    /// Canonical text of the job, the nested pre-image in keys. Made anew: only what runs needs it.
    #[must_use]
    pub fn job_text(&self) -> String {
        job_text(&as_json(self.job()))
    }
}

fn as_json(job: &Job) -> Value {
    serde_json::to_value(job).expect("a job is plain data")
}

fn job_text(job: &Value) -> String {
    static DEFAULT: LazyLock<Value> = LazyLock::new(|| as_json(&Job::default()));
    canonical("tprimat-job 1", job, &DEFAULT)
}

/// The facts that hold where the cell's runs are.
fn facts_of(cell: &Cell, resolved: &Resolved, facts: &FactBook) -> Arc<PlatformFacts> {
    let mut found = facts.of(&cell.platform, &cell.framework);
    if resolved.execution.container.is_some() {
        found = Arc::new(found.without_packages());
    }
    if resolved.execution.place != Place::Local {
        found = Arc::new(found.elsewhere(&cell.platform, &facts.update));
    }
    if resolved.execution.place == Place::Kubernetes && facts.lacks(&cell.platform) {
        found = Arc::new(found.of_pods(&cell.platform, &facts.update));
    }
    found
}

/// The block to write where a recipe that is data parallel only refuses a degree of model
/// parallelism.
fn data_parallel(
    config: &Config,
    cell: &Cell,
    resolved: &Resolved,
    recipe: &Recipe,
    refused: &Constraint,
) -> String {
    const TENSOR: &str = "parallelism.tensor_model_parallel_size";
    const DEGREES: [&str; 3] = [
        TENSOR,
        "parallelism.pipeline_model_parallel_size",
        "parallelism.context_parallel_size",
    ];
    let is_of = |constraint: &Constraint, degrees: &[&str]| {
        let mut fields = constraint.when.keys();
        fields.all(|field| degrees.contains(&field.as_str()))
    };
    let has_no_tensor = recipe.file.unsupported.iter().any(|c| is_of(c, &[TENSOR]));
    if !has_no_tensor || !is_of(refused, &DEGREES) {
        return String::new();
    }
    let place = own_degrees(config, cell, resolved.job.vendor, recipe);
    format!(
        "; to run it, set `{place}` to `{{ TP: 1, PP: 1, CP: 1, DP: {} }}` in config.yaml",
        resolved.job.parallelism.num_gpus
    )
}

/// What is wrong with a framework that has no recipe and no command.
fn no_command(config: &Config, recipes: &RecipeSet, id: &str) -> Problem {
    let table = format!("frameworks.{id}");
    let slip = nearest(COMMAND, config.children(&table));
    let (path, help) = match slip {
        Some(key) => (
            format!("{table}.{key}"),
            Some(format!("did you mean `{COMMAND}`?")),
        ),
        None => {
            let near = nearest(id, recipes.ids());
            let help = near.map(|near| format!("did you mean the recipe `{near}`?"));
            (table, help)
        }
    };
    let message = format!("`frameworks.{id}` has no `command`, and there is no recipe `{id}`");
    let problem = config.problem_at(&path, message, "does not say what to run");
    problem.help(help.unwrap_or_else(|| {
        "write what starts the trainer: `command: python3 train.py --steps {{ train_iters }}`"
            .to_owned()
    }))
}

pub(super) fn prepare(
    cell: &Cell,
    selected: bool,
    config: &Config,
    recipes: &RecipeSet,
    facts: &FactBook,
) -> Result<CellPlan, Vec<CellProblem>> {
    let support = |support| {
        Ok(CellPlan {
            id: cell.to_string(),
            repeats: cell.repeats,
            selected,
            left_out: false,
            blocked: None,
            support,
        })
    };
    let Some(recipe) = recipes.recipes.get(&*cell.framework) else {
        let problem = no_command(config, recipes, &cell.framework);
        if !selected {
            return support(Support::Unsupported(problem.to_string()));
        }
        return Err(vec![CellProblem {
            problem,
            is_of_cell: false,
        }]);
    };
    let resolved = match resolve(config, cell, recipe) {
        Ok(resolved) => resolved,
        Err(Unresolved::Refused(why)) => return support(Support::Unsupported(why)),
        // A variable or a slip may be about other cells than those that are wanted now; `check` has
        // no selection.
        Err(Unresolved::Problems(problems)) if !selected => {
            return support(Support::Unsupported(
                problems
                    .first()
                    .map_or_else(String::new, |found| found.problem.to_string()),
            ));
        }
        Err(Unresolved::Problems(problems)) => return Err(problems),
    };
    let job = as_json(&resolved.job);
    if !recipe.file.vendors.contains(&resolved.job.vendor) {
        let devices: Vec<_> = recipe.file.vendors.iter().map(|v| v.devices()).collect();
        let reason = format!(
            "`{}` runs on {} only",
            cell.framework,
            devices.join(" and ")
        );
        return support(Support::Unsupported(reason));
    }
    if let Some(constraint) = recipe.file.unsupported.iter().find(|c| c.applies(&job)) {
        let reason = &constraint.reason;
        let how = data_parallel(config, cell, &resolved, recipe, constraint);
        return support(Support::Unsupported(format!("{reason}{how}")));
    }
    let is_ours = shipped_file(&format!("recipes/{}/recipe.toml", recipe.file.id)).is_some();
    if resolved.job.model.architecture == OTHER
        && is_ours
        && !recipe.file.launch.has_option(COMMAND)
    {
        let reason = format!(
            "the architecture of `{}` is `other`, and `{}` makes a model of its shape; a command of your own has a model of its own",
            cell.model, cell.framework
        );
        return support(Support::Unsupported(reason));
    }
    let nodes = resolved.job.parallelism.num_nodes;
    if nodes > 1 && recipe.file.launch.nodes == Nodes::One {
        let reason = format!(
            "it needs {nodes} nodes, and the recipe `{}` does not say that it can start on several (in [launch], `nodes = true`, or `nodes = \"last\"` where the last rank prints the steps)",
            cell.framework
        );
        return support(Support::Unsupported(reason));
    }
    support(Support::Ready(Box::new(Prepared {
        job_digest: Digest::of(job_text(&job)),
        inputs: Arc::default(),
        data: Vec::new(),
        image: None,
        python: None,
        facts: facts_of(cell, &resolved, facts),
        resolved,
    })))
}

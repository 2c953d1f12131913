//! Jobs and recipes as tprimat itself plans them, and a folder in which a rendered launcher can
//! run.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::LazyLock,
};

use serde_json::Value;
use tprimat::{
    error::Result,
    job::Job,
    plan::{Plan, PlanRequest, Support},
    recipe::{Nodes, Recipe, Rendered, context},
};

use crate::support::mock;

pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The default matrix, planned.
pub static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let request = PlanRequest {
        root: ROOT.into(),
        ..PlanRequest::default()
    };
    Plan::load(&request).unwrap_or_else(|e| panic!("{e}"))
});

/// features.toml beside this file, planned with the config.yaml there and the same recipes.
pub static FEATURES: LazyLock<Plan> = LazyLock::new(|| {
    let root = Path::new(ROOT).join("tests/suite/launchers");
    let request = PlanRequest {
        root,
        matrix: Some("features".into()),
        ..PlanRequest::default()
    };
    Plan::load(&request).unwrap_or_else(|e| panic!("{e}"))
});

/// The supported cells of the default matrix: id, recipe, job.
pub fn supported() -> impl Iterator<Item = (&'static str, &'static Recipe, &'static Job)> {
    supported_of(&PLAN)
}

pub fn supported_of(plan: &Plan) -> impl Iterator<Item = (&str, &Recipe, &Job)> {
    plan.cells
        .with_ids()
        .filter_map(|(cell, planned)| match &planned.support {
            Support::Ready(prepared) => {
                Some((planned.id.as_str(), plan.recipe(cell), prepared.job()))
            }
            Support::Unsupported(_) => None,
        })
}

/// The first supported cell whose id begins so.
#[track_caller]
pub fn cell(prefix: &str) -> (&'static Recipe, Job) {
    let found = supported().find(|(id, ..)| id.starts_with(prefix));
    found
        .map(|(_, recipe, job)| (recipe, job.clone()))
        .unwrap_or_else(|| panic!("no supported cell {prefix}"))
}

pub fn render(recipe: &Recipe, job: &Job) -> Result<Vec<Rendered>> {
    let context = context(job);
    recipe
        .templates
        .iter()
        .map(|(name, _)| PLAN.recipes.templates.render(name, &context))
        .collect()
}

pub fn unsupported(recipe: &Recipe, job: &Value) -> Option<String> {
    let nodes = job["parallelism"]["num_nodes"].as_u64().unwrap_or(1);
    if nodes > 1 && recipe.file.launch.nodes == Nodes::One {
        return Some("it starts on one node".into());
    }
    recipe
        .file
        .unsupported
        .iter()
        .find(|c| c.applies(job))
        .map(|c| c.reason.clone())
}

/// The Python of trainers in tests: with torch, numpy and PyYAML.
pub fn python() -> String {
    std::env::var("TPRIMAT_PYTHON").expect(
        "set TPRIMAT_PYTHON to a Python that has recipes/tran/requirements.cpu.txt installed",
    )
}

/// A run folder, and a folder of mocks that stand before everything else in PATH.
pub struct Stage {
    folder: tempfile::TempDir,
    pub env: BTreeMap<String, String>,
}

impl Stage {
    /// Lays out what a run of `recipe` on `job` gets, except for what the caller puts into `env`.
    pub fn new(recipe: &Recipe, job: &Job) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        fs::create_dir_all(run.join("recipe")).unwrap();
        fs::create_dir_all(folder.path().join("bin")).unwrap();
        for file in render(recipe, job).unwrap_or_else(|e| panic!("{}: {e}", recipe.file.id)) {
            fs::write(run.join(&file.name), &file.bytes).unwrap();
        }
        for (name, bytes, _) in &recipe.files {
            let path = run.join("recipe").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        fs::write(run.join("job.json"), tprimat::execute::job_json(job)).unwrap();
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let path = format!(
            "{}:{}",
            text(folder.path().join("bin")),
            std::env::var("PATH").unwrap_or_default()
        );
        let env = [
            ("PATH", path),
            ("TPRIMAT_RUN_DIR", text(run.clone())),
            ("TPRIMAT_RECIPE_DIR", text(run.join("recipe"))),
            ("TPRIMAT_PROJECT_DIR", text(folder.path().to_owned())),
            ("TPRIMAT_JOB", text(run.join("job.json"))),
            ("TPRIMAT_PYTHON", "python3".into()),
            ("TPRIMAT_NATIVE", "tprimat-native".into()),
            ("TPRIMAT_PORT", "29511".into()),
        ];
        Self {
            folder,
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }

    pub fn set(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A program that stands before every other one of its name.
    pub fn program(&self, name: &str, script: &str) {
        mock::program(&self.path("bin").join(name), script);
    }

    /// Runs the recipe's command as a supervisor would: in the run folder, with this environment
    /// alone.
    pub fn run(&self, recipe: &Recipe) -> Output {
        let command = &recipe.file.launch.command;
        let mut process = Command::new(&command[0]);
        process
            .args(&command[1..])
            .env_clear()
            .envs(&self.env)
            .current_dir(self.path("run"));
        process
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"))
    }
}

#[track_caller]
pub fn ended_well(output: &Output) -> String {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Is the program in PATH? Where it is not, the test fails and says how to get it.
#[track_caller]
pub fn need(program: &str, help: &str) -> PathBuf {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path
        .split(':')
        .map(|dir| Path::new(dir).join(program))
        .find(|p| p.is_file());
    found.unwrap_or_else(|| panic!("this test needs `{program}`: {help}"))
}

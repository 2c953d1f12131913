//! A plan without a matrix, for those who only bring results along: nothing of it can be built.

use super::{Asked, Plan, PlanRequest, facts::FactBook};
use crate::{
    config::Config,
    error::{Result, Source},
    files::ReadSet,
    matrix::{Matrix, PerCell},
    recipe::RecipeSet,
    shipped::shipped_file,
};

impl Plan {
    /// For a folder without a config.yaml: models, platforms and frameworks are those that `tprimat
    /// init` would write.
    pub fn bare(request: &PlanRequest) -> Result<Self> {
        Self::without_matrix(request, starter_config(request)?)
    }

    /// For whoever only asks what was recorded.
    pub fn without_matrix(request: &PlanRequest, config: Config) -> Result<Self> {
        let root = &request.root;
        let reads = ReadSet::default();
        Ok(Self {
            root: root.clone(),
            config,
            recipes: RecipeSet::read(root, &reads)?,
            matrix: Matrix {
                name: "imports".to_owned(),
                across: Vec::new(),
                cells: PerCell::default(),
                excluded: Vec::new(),
            },
            is_default: true,
            matrix_path: None,
            asked: Asked::of(request),
            cells: PerCell::default(),
            facts: FactBook::load(root, request.allow_drift, &request.env, &reads)?,
            reads,
            allow_drift: request.allow_drift,
            implied: None,
            unreached: Default::default(),
            lost: Default::default(),
            readers: Default::default(),
            notes: Vec::new(),
            unmet: Vec::new(),
        })
    }

    /// Has it no cell that could be built?
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.cells.is_empty()
    }
}

/// The config.yaml that `tprimat init` would write.
pub fn starter_config(request: &PlanRequest) -> Result<Config> {
    let starter = shipped_file("config.yaml").unwrap_or_default();
    let source = Source::new(
        "the starter's config.yaml",
        String::from_utf8_lossy(starter),
    );
    Config::load(source, &request.env, &request.sets)
}

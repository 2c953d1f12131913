//! pipelines/*.toml → [`Cell`]s, the points of the matrix; and the selection of some of them.
//!
//! Unaware of recipes and jobs: that a recipe cannot honour a cell is for the plan to say.

mod cell;
mod expand;
mod file;
mod find;
mod ids;
mod implied;
mod lacking;
mod names;
mod read;
mod rules;
mod select;

use std::sync::Arc;

pub use cell::{Cell, Matrix};
pub use find::{files, find, named, names};
pub use ids::{CellId, PerCell};
pub use implied::{ImpliedNames, implied};
pub use lacking::{Project, Unmet};
pub use select::{Selection, glob};

use crate::{
    config::Config,
    error::{Error, Result, Source},
};

/// The form of a matrix file, for editors and `tprimat print schema matrix`. Files are read by `file`,
/// which points at each mistake; a test holds the keys of both together.
pub const SCHEMA: &str = include_str!("../../schemas/matrix.json");

/// Reads and expands a matrix. `recipes`: ids that are frameworks although config.yaml may not list
/// them; `auto_platform`: what `platform = "auto"` stands for on this host, a platform's id or a
/// vendor's name; `strategies`: names of `$PARALLEL`, in place of the file's where it has none of
/// them.
pub fn load(
    source: Arc<Source>,
    config: &Config,
    recipes: &[&str],
    auto_platform: Option<&str>,
    strategies: &[String],
) -> Result<Matrix> {
    let file = file::MatrixFile::read(&source, config, recipes, auto_platform, strategies)
        .map_err(Error::Invalid)?;
    expand::expand(file, source, config).map_err(Error::Invalid)
}

#[cfg(test)]
mod tests;

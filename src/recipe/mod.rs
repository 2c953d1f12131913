//! `recipes/<id>/` and templates/ → [`Recipe`]s: how a framework runs, and what it cannot do.
//!
//! Shipped recipes and templates are embedded in the binary; a project's own win by name.
mod constraint;
mod embedded;
#[cfg(test)]
mod launchers;
mod load;
mod reach;

pub use constraint::Constraint;
pub use embedded::{embedded_file, embedded_under};
pub use load::{
    Checkout, Files, Ignored, Launch, Recipe, RecipeFile, RecipeSet, Require, RunSection, library_files, recipe_files,
};
pub use reach::{Unreached, unreached};
pub use tprimat_render::{Rendered, Templates, context};

//! `recipes/<id>/` and templates/ → [`Recipe`]s: how a framework runs, and what it cannot do.
//!
//! Shipped recipes and templates are embedded in the binary; a project's own win by name.
mod constraint;
mod file;
#[cfg(test)]
#[path = "launchers_tests.rs"]
mod launchers;
mod load;
mod reach;

pub use constraint::Constraint;
pub use file::{
    Checkout, Ignored, Launch, LockNeeds, MemoryModel, MemorySection, RecipeFile, Require,
    RunSection,
};
pub use load::{Files, Recipe, RecipeSet, library_files, recipe_files};
pub use reach::{Unreached, unreached};
pub use tprimat_render::{Rendered, Templates, context};

//! `recipes/<id>/` and templates/ → [`Recipe`]s: how a framework runs, and what it cannot do.
//!
//! Shipped recipes and templates are embedded in the binary; a project's own win by name.
mod check;
mod constraint;
mod file;
mod files;
#[cfg(test)]
#[path = "launchers_tests.rs"]
mod launchers;
mod library;
mod load;
mod placeholders;
mod reach;
mod render;

pub use constraint::Constraint;
pub use file::{
    Checkout, FACTS, Ignored, Launch, LockNeeds, MemoryModel, MemorySection, Nodes, RecipeFile,
    Require, RunSection,
};
pub use files::{Files, recipe_files};
pub use library::library_files;
pub use load::{COMMAND, Recipe, RecipeSet, mentions_python};
pub use placeholders::{Hidden, Unfilled, filled};
pub use reach::{OPTIONS, Unreached, unreached, varied};
pub use render::{Rendered, Templates, context};

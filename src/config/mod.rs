//! config.yaml + environment + `--set` → [`Config`]: every value with its origin.
//!
//! Unaware of matrices, recipes and jobs: a matrix lends its settings and a recipe its defaults to
//! a [`View`].

mod check;
mod dialect;
mod environment;
mod export;
mod foreign_keys;
mod interpolate;
mod known_models;
mod layers;
mod names;
mod of_cell;
mod parallelism;
mod plausible;
mod read;
mod reference;
mod resolve;
pub mod schema;
mod sections;
mod shape;
mod spans;
mod tree;
mod upgrade;
mod view;

pub use environment::VARIABLES;
pub use known_models::NEEDED_SHAPE;
pub use layers::{Config, Origin};
pub use names::{
    framework_named, framework_names, is_plain_name, plain, strings, vendor_named, vendor_names,
};
pub(crate) use of_cell::not_of_cell;
pub use reference::reference;
pub use resolve::Leaf;
pub use sections::{Entry, Section};
pub use shape::framework_keys;
pub(crate) use shape::settings_called;
pub use view::{Setting, Values, View};

#[cfg(test)]
pub(crate) mod tests;

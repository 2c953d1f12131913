//! config.yaml + environment + `--set` → [`Config`]: every value with its origin.
//!
//! Unaware of matrices, recipes and jobs: a matrix lends its settings and a recipe its defaults to
//! a [`View`].

mod check;
mod environment;
mod export;
mod foreign_keys;
mod interpolate;
mod known_models;
mod layers;
mod load;
mod names;
mod nested;
mod of_cell;
mod older_keys;
mod parallelism;
mod places;
mod plausible;
mod read;
mod resolve;
pub mod schema;
mod sections;
mod shape;
mod view;
mod yaml;

pub use environment::VARIABLES;
pub use export::public;
pub use known_models::NEEDED_SHAPE;
pub use layers::{Config, Origin};
pub use names::{
    framework_named, framework_names, is_plain_name, plain, strings, vendor_named, vendor_names,
};
pub(crate) use of_cell::not_of_cell;
pub use resolve::Leaf;
pub use sections::{Entry, Section};
pub use shape::framework_keys;
pub(crate) use shape::{choice, settings_called};
pub use view::{Setting, Values, View};
pub(crate) use yaml::json_of_yaml;

#[cfg(test)]
pub(crate) mod tests;

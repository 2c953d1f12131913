//! Names that mean the same: frameworks. Those of vendors are in `tprimat_job`.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
pub use tprimat_job::{vendor_named, vendor_names};

use crate::shipped::shipped_under;

/// Shipped frameworks: the id first, then the names that people know them by.
static FRAMEWORKS: LazyLock<Vec<Vec<String>>> =
    LazyLock::new(|| shipped_recipes().map(names_in).collect());

/// The text of each shipped recipe.toml.
fn shipped_recipes() -> impl Iterator<Item = &'static str> {
    shipped_under("recipes/")
        .filter(|(path, _)| path.ends_with("/recipe.toml"))
        .filter_map(|(_, bytes)| std::str::from_utf8(bytes).ok())
}

/// `id` and `aliases` of a recipe.toml. Only the lines above its first table are parsed: every
/// command asks for these names, few need the rest.
fn names_in(recipe: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Names {
        id: String,
        #[serde(default)]
        aliases: Vec<String>,
    }
    let head: String = recipe
        .split_inclusive('\n')
        .take_while(|line| !line.starts_with('['))
        .collect();
    match toml::from_str(&head) {
        Ok(Names { id, aliases }) => std::iter::once(id).chain(aliases).collect(),
        Err(_) => Vec::new(),
    }
}

/// Where config.yaml says that the checkout of a shipped framework is: `paths.primus`.
#[must_use]
pub(super) fn checkout_setting(framework: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Checkouts {
        id: String,
        #[serde(default)]
        require: Require,
    }
    #[derive(Default, Deserialize)]
    struct Require {
        #[serde(default)]
        checkouts: Vec<Checkout>,
    }
    #[derive(Deserialize)]
    struct Checkout {
        setting: String,
    }
    let id = framework_named(framework)?;
    let mut recipes = shipped_recipes().filter_map(|text| toml::from_str::<Checkouts>(text).ok());
    let recipe = recipes.find(|recipe| recipe.id == id)?;
    Some(recipe.require.checkouts.into_iter().next()?.setting)
}

/// A value for people: a text without quotes.
#[must_use]
pub fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// A text, or the texts of a list.
#[must_use]
pub fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// `NeMo` is what people write.
fn is_among(name: &str, names: &[String]) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Everything a shipped framework is called, its id first; empty for a user's own.
#[must_use]
pub fn framework_names(name: &str) -> &'static [String] {
    FRAMEWORKS
        .iter()
        .find(|names| is_among(name, names))
        .map_or(&[], Vec::as_slice)
}

/// The id of a shipped framework, whichever of its names is given.
#[must_use]
pub fn framework_named(name: &str) -> Option<&'static str> {
    framework_names(name).first().map(String::as_str)
}

/// The key that config.yaml's tree has for `key` of a table: of `frameworks` the recipe's id, whichever
/// of its names is written.
#[must_use]
pub(super) fn canonical_id<'a>(table: &str, key: &'a str) -> &'a str {
    if table == "frameworks" {
        framework_named(key).unwrap_or(key)
    } else {
        key
    }
}

/// May `name` stand in a cell's id, `a/b/c/d@axis=value,axis=value`, without being taken apart?
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(|c: char| {
            c.is_whitespace() || c.is_control() || "/\\,@#{}*?[]!\"'".contains(c)
        })
}

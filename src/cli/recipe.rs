//! `recipe list|show|copy`: the recipes that a project can use, shipped ones and its own.

use std::path::Path;

use serde_json::json;

use super::{
    args::{Globals, RecipeCommand},
    output::{answer, columns, print},
    project,
};
use crate::{
    config,
    error::{Error, Problem, Result, did_you_mean, exit},
    files::{Durability, write_atomically},
    recipe::{Files, RecipeSet, library_files, recipe_files},
};

/// The name under which `recipe show` knows the files that recipes share.
const LIBRARY: &str = "lib";

pub fn run(globals: &Globals, command: &RecipeCommand) -> Result<i32> {
    let project = project::root(globals);
    // The shipped recipes can be looked at anywhere; a copy needs a project to go to.
    let root = match command {
        RecipeCommand::Copy { .. } => project?,
        _ => project.unwrap_or_default(),
    };
    let recipes = RecipeSet::load(&root)?;
    match command {
        RecipeCommand::List => list(globals, &root, &recipes),
        RecipeCommand::Show { id, file } => show(&root, &recipes, id, file.as_deref()),
        RecipeCommand::Copy { id, new_id } => {
            copy(&root, &recipes, id, new_id.as_deref().unwrap_or(id))
        }
    }
}

fn list(globals: &Globals, root: &Path, recipes: &RecipeSet) -> Result<i32> {
    let is_own = |id: &str| root.join("recipes").join(id).join("recipe.toml").is_file();
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for (id, recipe) in &recipes.recipes {
        let file = &recipe.file;
        let (source, own) = match is_own(id) {
            true => ("project", " (of this project)"),
            false => ("shipped", ""),
        };
        rows.push(
            json!({ "id": id, "name": file.name, "vendors": file.vendors, "source": source }),
        );
        lines.push([id.clone(), format!("{}{own}", file.name)]);
    }
    answer(globals, "recipes", &json!({ "recipes": rows }), || {
        columns(&lines)
    })?;
    Ok(exit::OK)
}

fn show(root: &Path, recipes: &RecipeSet, id: &str, file: Option<&str>) -> Result<i32> {
    let files = files_of(root, recipes, id)?;
    let Some(name) = file else {
        print(
            &files
                .keys()
                .map(|name| format!("{name}\n"))
                .collect::<String>(),
        )?;
        return Ok(exit::OK);
    };
    let Some(bytes) = files.get(name) else {
        let problem = Problem::new(format!("recipe `{}` has no file `{name}`", id));
        let help = did_you_mean(name, files.keys().map(String::as_str));
        let help = help.unwrap_or_else(|| format!("`tprimat recipe show {}` lists its files", id));
        return Err(Error::invalid(problem.help(help)));
    };
    print(&String::from_utf8_lossy(bytes))?;
    Ok(exit::OK)
}

/// Writes a recipe's folder into the project. Templates come with it, so that the copy stands
/// alone.
fn copy(root: &Path, recipes: &RecipeSet, id: &str, new: &str) -> Result<i32> {
    let files = files_of(root, recipes, id)?;
    if !config::is_plain_name(new) {
        return Err(Error::refused(
            format!("`{new}` cannot be the name of a recipe"),
            "a name has letters, digits, `-` and `_`",
        ));
    }
    let folder = root.join("recipes").join(new);
    if folder.exists() {
        return Err(Error::refused(
            format!("recipes/{new} is there already; nothing was written"),
            "`--as NAME` takes another name",
        ));
    }
    for (name, bytes) in &files {
        let renamed =
            (name == "recipe.toml").then(|| with_id(&String::from_utf8_lossy(bytes), id, new));
        let bytes = renamed.as_ref().map_or(bytes.as_ref(), String::as_bytes);
        write_atomically(&folder.join(name), bytes, Durability::Plain)?;
        eprintln!("wrote recipes/{new}/{name}");
    }
    eprintln!(
        "next: change recipes/{new}, then `tprimat check`; docs/recipes.md explains each key"
    );
    Ok(exit::OK)
}

/// recipe.toml with another `id`; comments and order are kept. The aliases stay with the recipe
/// that was copied.
fn with_id(text: &str, old: &str, new: &str) -> String {
    let renamed = text.replacen(&format!("id = \"{old}\""), &format!("id = \"{new}\""), 1);
    if old == new {
        return renamed;
    }
    let lines = renamed.split_inclusive('\n');
    lines
        .filter(|line| !line.starts_with("aliases = "))
        .collect()
}

fn files_of(root: &Path, recipes: &RecipeSet, id: &str) -> Result<Files> {
    if id == LIBRARY {
        return library_files(root);
    }
    let Some(recipe) = recipes.recipes.get(id) else {
        let problem = Problem::new(format!("there is no recipe `{id}`"));
        let help = did_you_mean(id, recipes.ids());
        let help = help.unwrap_or_else(|| format!("expected one of: {}", recipes.ids().join(", ")));
        return Err(Error::invalid(problem.help(help)));
    };
    recipe_files(root, id, &recipe.file.launch.templates)
}

//! Finds recipes and templates, in the project and in the binary.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
    sync::Arc,
};

use serde::Deserialize;

use super::{RecipeFile, Require, Templates};
use crate::{
    config::{Values, framework_names},
    digest::Digest,
    error::{Error, Problem, Result, Source},
    files::{EntryKind, ReadSet, require_inside},
    job::{Vendor, vendor_named},
    logs::LogSection,
    shipped::{shipped_file, shipped_under},
};

/// The folder below recipes/ that is no recipe, but what the trainers of several recipes share.
const LIBRARY: &str = "lib";

/// Files that no run reads.
const FOR_PEOPLE: [&str; 3] = ["README.md", "README", "LICENSE"];
/// The most bytes that the files of one recipe may have.
const MOST_BYTES: usize = 256 << 20;

pub struct Recipe {
    pub file: RecipeFile,
    /// Every file of the folder but recipe.toml and templates: name, bytes, digest. Those of
    /// [`Recipe::files_of_run`] go into the train key.
    pub files: Vec<(String, Cow<'static, [u8]>, Digest)>,
    /// Names in [`Templates`] and digests of the text.
    pub templates: Vec<(String, Digest)>,
    pub launch_digest: Digest,
    pub defaults: Values,
}

impl Recipe {
    /// The files that a run on a vendor's devices has beside it: all but what is for people, and
    /// what is installed on other platforms. What a run does not get is in no key.
    pub fn files_of_run(&self, vendor: Vendor) -> impl Iterator<Item = (&str, &[u8], &Digest)> {
        let is_read = move |name: &str| {
            let platform = name
                .strip_prefix("requirements.")
                .and_then(|rest| rest.strip_suffix(".txt"));
            let is_of_another = platform
                .and_then(vendor_named)
                .is_some_and(|other| other != vendor);
            !is_of_another && !FOR_PEOPLE.contains(&name)
        };
        self.all_files().filter(move |(name, ..)| is_read(name))
    }

    pub fn all_files(&self) -> impl Iterator<Item = (&str, &[u8], &Digest)> {
        self.files
            .iter()
            .map(|(name, bytes, digest)| (name.as_str(), &**bytes, digest))
    }
}

/// All recipes that can be seen from a project.
pub struct RecipeSet {
    pub recipes: BTreeMap<String, Recipe>,
    pub templates: Templates,
}

impl RecipeSet {
    /// Recipes of `root`/recipes over the embedded ones; all problems at once.
    pub fn load(root: &Path) -> Result<Self> {
        Self::read(root, &ReadSet::default())
    }

    /// The same, noting in `reads` what it rests on.
    pub fn read(root: &Path, reads: &ReadSet) -> Result<Self> {
        let mut ids: BTreeSet<String> = shipped_under("recipes/")
            .filter_map(|(path, _)| Some(path.split_once('/')?.0.to_owned()))
            .collect();
        let own = root.join("recipes");
        ids.remove(LIBRARY);
        for entry in reads
            .list(&own)
            .map_err(Error::io("cannot read the folder", &own))?
        {
            if entry.kind == EntryKind::Folder && has_recipe(&own.join(&entry.name), reads)? {
                ids.extend(entry.name.into_string());
            }
        }
        let (mut recipes, mut templates, mut problems) =
            (BTreeMap::new(), Templates::default(), Vec::new());
        for id in ids {
            match load(root, &id, &mut templates, reads) {
                Ok(recipe) => drop(recipes.insert(id, recipe)),
                Err(Error::Invalid(more)) => problems.extend(more),
                Err(other) => return Err(other),
            }
        }
        if problems.is_empty() {
            Ok(Self { recipes, templates })
        } else {
            Err(Error::Invalid(problems))
        }
    }

    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        self.recipes.keys().map(String::as_str).collect()
    }
}

fn load(root: &Path, id: &str, templates: &mut Templates, reads: &ReadSet) -> Result<Recipe> {
    require_inside(root, &root.join("recipes").join(id).join("recipe.toml"))?;
    let mut files = folder(root, id, reads)?;
    let text = files.remove("recipe.toml").unwrap_or_default();
    let source = Source::new(
        format!("recipes/{id}/recipe.toml"),
        String::from_utf8_lossy(&text),
    );
    let file: RecipeFile = toml::from_str(&source.text).map_err(|e| {
        let problem = Problem::new(e.message().to_owned());
        Error::invalid(problem.at(&source, e.span().unwrap_or(0..0), "here"))
    })?;
    if file.id != id {
        let at = source.text.find("id").unwrap_or(0);
        return Err(Error::invalid(
            Problem::new(format!(
                "the recipe calls itself `{}`, its folder `{id}`",
                file.id
            ))
            .at(&source, at..at + 2, "must be the folder's name"),
        ));
    }
    check_aliases(&file, &source)?;
    check_log(&file.log, &source)?;
    check_modules(&file.require, &source)?;
    let mut used = Vec::new();
    for name in &file.launch.templates {
        require_inside(root, &root.join("templates").join(name))?;
        let (place, bytes) = find_template(root, id, name, &files, reads)?.ok_or_else(|| {
            let at = source.text.find(name.as_str()).unwrap_or(0);
            Error::invalid(
                Problem::new(format!("template `{name}` is not there"))
                    .at(&source, at..at + name.len(), "named here")
                    .help(format!("put it into recipes/{id}/ or templates/")),
            )
        })?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let unique = format!("{id}/{name}");
        used.push((unique.clone(), Digest::of(&text)));
        templates.add(&unique, Source::new(place, text))?;
    }
    files.retain(|name, _| !name.ends_with(".j2"));
    let shared = if file.launch.library.is_empty() {
        Files::new()
    } else {
        library(root, reads)?
    };
    for name in &file.launch.library {
        let bytes = shared.get(name).ok_or_else(|| {
            let at = source.text.find(name.as_str()).unwrap_or(0);
            let problem = Problem::new(format!("recipes/{LIBRARY} has no file `{name}`"));
            Error::invalid(problem.at(&source, at..at + name.len(), "named here"))
        })?;
        files.entry(name.clone()).or_insert_with(|| bytes.clone());
    }
    let launch_digest = Digest::of(serde_json::to_vec(&file.launch.templates).unwrap_or_default());
    let files = files
        .into_iter()
        .map(|(name, bytes)| (name, Digest::of(&bytes), bytes))
        .map(|(n, d, b)| (n, b, d));
    let defaults = nested(&file.defaults).map_err(|path| {
        let at = source
            .text
            .find(path.get(..40).unwrap_or(&path))
            .unwrap_or(0);
        let problem =
            Problem::new("a default's path goes through another default, or is too long to be one");
        Error::invalid(problem.at(&source, at..at + path.len().min(40), "this path"))
    })?;
    let defaults = Values::new(id, &defaults);
    Ok(Recipe {
        files: files.collect(),
        templates: used,
        launch_digest,
        defaults,
        file,
    })
}

/// config.yaml and matrices know the aliases of shipped recipes only: another recipe's would be
/// names that nothing understands.
fn check_aliases(file: &RecipeFile, source: &Arc<Source>) -> Result<()> {
    let shipped = framework_names(&file.id);
    let Some(unknown) = file.aliases.iter().find(|name| !shipped.contains(name)) else {
        return Ok(());
    };
    let at = source.text.find("aliases").unwrap_or(0);
    let problem = Problem::new(format!(
        "`{unknown}` cannot be an alias of `{}`: aliases are for shipped recipes",
        file.id
    ));
    Err(Error::invalid(
        problem
            .at(source, at..at + "aliases".len(), "remove this name")
            .help(format!(
                "the recipe is called as its folder is: `{}`",
                file.id
            )),
    ))
}

/// A log section that no log can be read by is said now, not after hours of training.
fn check_log(log: &LogSection, source: &Arc<Source>) -> Result<()> {
    #[derive(Deserialize)]
    struct Places {
        log: LogPlaces,
    }
    #[derive(Deserialize)]
    struct LogPlaces {
        format: toml::Spanned<String>,
        #[serde(default)]
        patterns: Vec<toml::Spanned<String>>,
    }
    let Err(wrong) = log.check() else {
        return Ok(());
    };
    let places = toml::from_str::<Places>(&source.text)
        .ok()
        .map(|places| places.log);
    let span = places.map_or(0..0, |log| {
        wrong
            .at
            .and_then(|at| log.patterns.get(at))
            .unwrap_or(&log.format)
            .span()
    });
    let problem = Problem::new(wrong.message).at(source, span, "here");
    Err(Error::invalid(match wrong.help {
        Some(help) => problem.help(help),
        None => problem,
    }))
}

/// A name that no import can have is never found, whatever is installed.
fn check_modules(require: &Require, source: &Arc<Source>) -> Result<()> {
    let at = |name: &str| {
        let quoted = format!("\"{name}\"");
        let start = source
            .text
            .find(&quoted)
            .or_else(|| source.text.find(name))
            .unwrap_or(0);
        start..start + name.len()
    };
    let is_identifier = |part: &str| {
        let mut letters = part.chars();
        letters
            .next()
            .is_some_and(|first| first.is_alphabetic() || first == '_')
            && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    for name in &require.python_modules {
        if !name.split('.').all(is_identifier) {
            let problem = Problem::new(format!("`{name}` is not the name of a Python module"));
            let help = format!(
                "name it as `import` does, and what pip calls it in `pip = {{ … = \"{name}\" }}`"
            );
            return Err(Error::invalid(
                problem
                    .at(source, at(name), "no import can have this name")
                    .help(help),
            ));
        }
    }
    if let Some(name) = require
        .pip
        .keys()
        .find(|name| !require.python_modules.contains(name))
    {
        let problem = Problem::new(format!(
            "`pip` names `{name}`, which `python_modules` does not list"
        ));
        return Err(Error::invalid(problem.at(
            source,
            at(name),
            "not in python_modules",
        )));
    }
    Ok(())
}

/// `{"a.b": 1}` → `{"a": {"b": 1}}`. Err: the path of a value that another value's path goes
/// through, or one that is no path of config.yaml.
fn nested(flat: &BTreeMap<String, serde_json::Value>) -> Result<serde_json::Value, String> {
    let mut root = serde_json::json!({});
    for (path, value) in flat {
        let parts: Vec<&str> = path.split('.').collect();
        if parts.len() > crate::config::MAX_PARTS {
            return Err(path.clone());
        }
        let mut at = &mut root;
        for part in parts {
            let Some(table) = at.as_object_mut() else {
                return Err(path.clone());
            };
            at = table.entry(part).or_insert_with(|| serde_json::json!({}));
        }
        if at.as_object().is_none_or(|below| !below.is_empty()) {
            return Err(path.clone());
        }
        at.clone_from(value);
    }
    Ok(root)
}

/// Files by name, relative to their folder.
pub type Files = BTreeMap<String, Cow<'static, [u8]>>;

/// A recipe's folder as this project has it, with the templates that it takes from elsewhere.
pub fn recipe_files(root: &Path, id: &str, templates: &[String]) -> Result<Files> {
    let reads = ReadSet::default();
    let mut files = folder(root, id, &reads)?;
    for name in templates {
        if let Some((_, bytes)) = find_template(root, id, name, &files, &reads)? {
            files.insert(name.clone(), bytes);
        }
    }
    Ok(files)
}

/// The shared library: the embedded files, and the project's own over them by name.
pub fn library_files(root: &Path) -> Result<Files> {
    library(root, &ReadSet::default())
}

fn library(root: &Path, reads: &ReadSet) -> Result<Files> {
    let mut files = embedded(LIBRARY);
    files.extend(read_folder(root, LIBRARY, reads)?);
    Ok(files)
}

fn has_recipe(folder: &Path, reads: &ReadSet) -> Result<bool> {
    let file = folder.join("recipe.toml");
    reads
        .is_file(&file)
        .map_err(Error::io("cannot look for the recipe", &file))
}

/// All files of a recipe's folder: the project's folder if it has one, else the embedded one.
fn folder(root: &Path, id: &str, reads: &ReadSet) -> Result<Files> {
    let is_own = has_recipe(&root.join("recipes").join(id), reads)?;
    if is_own {
        read_folder(root, id, reads)
    } else {
        Ok(embedded(id))
    }
}

fn embedded(id: &str) -> Files {
    shipped_under(&format!("recipes/{id}/"))
        .map(|(name, bytes)| (name.to_owned(), Cow::Borrowed(bytes)))
        .collect()
}

/// The project's own files of a recipe, by name; none where it has no folder.
fn read_folder(root: &Path, id: &str, reads: &ReadSet) -> Result<Files> {
    let own = root.join("recipes").join(id);
    let refused = |what: String| Error::invalid(Problem::new(format!("recipes/{id}: {what}")));
    let mut files = BTreeMap::new();
    let mut total = 0;
    for found in reads
        .walk(&own, Path::new(""), usize::MAX)
        .map_err(refused)?
    {
        let is_hidden = found
            .path
            .iter()
            .any(|part| part.to_string_lossy().starts_with('.'));
        if is_hidden || found.kind == EntryKind::Environment {
            continue;
        }
        let shown = found.path.display();
        let Some(name) = found.path.to_str() else {
            return Err(refused(format!("the name of {shown} is not UTF-8")));
        };
        if let EntryKind::Other(what) = found.kind {
            return Err(refused(format!(
                "{shown} is {what}, and every file of a recipe is copied beside its program"
            )));
        }
        let path = own.join(&found.path);
        require_inside(root, &path)?;
        let Some(bytes) = reads.read(&path).map_err(Error::io("cannot read", &path))? else {
            continue;
        };
        total += bytes.len();
        if total > MOST_BYTES {
            return Err(refused(format!(
                "its files have more than {} MiB; put data elsewhere",
                MOST_BYTES >> 20
            )));
        }
        files.insert(name.to_owned(), Cow::Owned(bytes));
    }
    Ok(files)
}

fn find_template(
    root: &Path,
    id: &str,
    name: &str,
    files: &Files,
    reads: &ReadSet,
) -> Result<Option<(String, Cow<'static, [u8]>)>> {
    if let Some(bytes) = files.get(name) {
        return Ok(Some((format!("recipes/{id}/{name}"), bytes.clone())));
    }
    if !Path::new(name)
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        return Ok(None);
    }
    let place = format!("templates/{name}");
    let path = root.join(&place);
    let own = reads
        .read(&path)
        .map_err(Error::io("cannot read the template", &path))?;
    let bytes = own
        .map(Cow::Owned)
        .or_else(|| shipped_file(&place).map(Cow::Borrowed));
    Ok(bytes.map(|bytes| (place, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shipped() -> BTreeSet<&'static str> {
        shipped_under("recipes/")
            .filter_map(|(path, _)| path.strip_suffix("/recipe.toml"))
            .collect()
    }

    #[test]
    fn shipped_recipes_load_without_a_project() {
        let set = RecipeSet::load(Path::new("/nonexistent")).unwrap();
        assert_eq!(set.ids().into_iter().collect::<BTreeSet<_>>(), shipped());
        assert!(shipped().is_superset(&["cmd", "mgds", "native", "nemo", "prim", "tran"].into()));
    }

    /// On the index many a module's name is another package's: `nemo` is a laboratory's, `megatron`
    /// is nobody's.
    #[test]
    fn advice_to_install_names_what_the_requirements_pin() {
        let plain = |name: &str| {
            let end = name
                .find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c))
                .unwrap_or(name.len());
            name[..end].to_lowercase().replace('_', "-")
        };
        for (id, recipe) in RecipeSet::load(Path::new("/nonexistent")).unwrap().recipes {
            let folder = format!("recipes/{id}/");
            let files =
                shipped_under(&folder).filter(|(path, _)| path.starts_with("requirements."));
            let pinned: BTreeSet<String> = files
                .flat_map(|(_, text)| {
                    String::from_utf8_lossy(text)
                        .lines()
                        .map(plain)
                        .collect::<Vec<_>>()
                })
                .collect();
            let require = &recipe.file.require;
            for module in &require.python_modules {
                let package = require.pip.get(module).unwrap_or(module);
                let is_source = package.contains("git+https://");
                let is_named = pinned.contains(&plain(package.trim_matches('\'')))
                    || id == "prim" && module == "torch";
                assert!(
                    is_source || is_named,
                    "{id}: `pip install {package}` for {module}; pinned: {pinned:?}"
                );
            }
        }
    }

    #[test]
    fn a_project_overrides_a_recipe_by_name_and_adds_its_own() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            crate::files::write_atomically(
                &root.path().join(path),
                text.as_bytes(),
                crate::files::Durability::Plain,
            )
            .unwrap();
        };
        let recipe = |id: &str| {
            format!(
                "id = \"{id}\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = [\"x.sh.j2\"]\ncommand = [\"bash\", \"x.sh\"]\n[log]\nformat = \"tprimat\"\n"
            )
        };
        write("recipes/native/recipe.toml", &recipe("native"));
        write("recipes/mine/recipe.toml", &recipe("mine"));
        write("recipes/mine/lib/a.py", "pass");
        write("recipes/mine/x.sh.j2", "own");
        write("templates/x.sh.j2", "shared");
        let set = RecipeSet::load(root.path()).unwrap();
        let all: BTreeSet<_> = shipped().into_iter().chain(["mine"]).collect();
        assert_eq!(set.ids().into_iter().collect::<BTreeSet<_>>(), all);
        assert_eq!(set.recipes["native"].templates[0].1, Digest::of("shared"));
        assert_eq!(set.recipes["mine"].templates[0].1, Digest::of("own"));
        assert_eq!(
            set.recipes["mine"]
                .files
                .iter()
                .map(|f| f.0.as_str())
                .collect::<Vec<_>>(),
            ["lib/a.py"]
        );

        write("recipes/bad/recipe.toml", "id = \"bad\"\nnaem = \"x\"\n");
        let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
            panic!("must not load")
        };
        assert_eq!(
            problems[0].position(),
            Some(("recipes/bad/recipe.toml".into(), 2, 1))
        );
    }

    #[test]
    fn a_module_that_no_import_can_name_is_an_error_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        let problem = |require: &str| {
            let text = format!(
                "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n[require]\n{require}\n"
            );
            let path = root.path().join("recipes/mine/recipe.toml");
            crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
                .unwrap();
            let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
                return None;
            };
            let (_, line, _) = problems[0].position().unwrap();
            Some((problems[0].message.clone(), line))
        };
        assert_eq!(
            problem("python_modules = [\"torch\", \"megatron.core\", \"_six\"]"),
            None
        );
        let hyphen = problem("python_modules = [\"torch\", \"transformer-engine\"]").unwrap();
        assert_eq!(
            hyphen,
            (
                "`transformer-engine` is not the name of a Python module".into(),
                10
            )
        );
        assert!(
            problem("python_modules = [\"3d\"]").is_some()
                && problem("python_modules = [\"\"]").is_some()
        );
        let unused = problem("python_modules = [\"torch\"]\npip = { yaml = \"PyYAML\" }").unwrap();
        assert_eq!(
            unused,
            (
                "`pip` names `yaml`, which `python_modules` does not list".into(),
                11
            )
        );
    }

    /// NVIDIA's images have a Transformer Engine; a bound would have pip compile another one there.
    #[test]
    fn megatron_takes_the_transformer_engine_of_the_image() {
        let recipes = RecipeSet::load(Path::new("/nonexistent")).unwrap().recipes;
        let mut files = recipes["mlm"].files.iter();
        let (_, bytes, _) = files
            .find(|(name, ..)| name == "requirements.nvd.txt")
            .unwrap();
        let listed = String::from_utf8_lossy(bytes);
        let engine = listed
            .lines()
            .find(|line| line.starts_with("transformer_engine"));
        assert_eq!(engine, Some("transformer_engine[pytorch]"));
    }

    /// Whoever installs what a requirements file lists has all that is looked for before a run.
    #[test]
    fn requirements_files_name_every_module_that_is_looked_for() {
        let plain = |text: &str| text.to_lowercase().replace('_', "-");
        for recipe in RecipeSet::load(Path::new("/nonexistent"))
            .unwrap()
            .recipes
            .values()
        {
            let files = recipe
                .files
                .iter()
                .filter(|(name, ..)| name.starts_with("requirements."));
            for (file, bytes, _) in files {
                let listed = plain(&String::from_utf8_lossy(bytes));
                for module in &recipe.file.require.python_modules {
                    let pip = recipe.file.require.pip.get(module).unwrap_or(module);
                    let spec = pip
                        .split_whitespace()
                        .find(|word| !word.starts_with("--"))
                        .unwrap();
                    let name = spec.trim_start_matches('\'').rsplit('/').next().unwrap();
                    let name = name.split(['[', '<', '>', '=', '\'']).next().unwrap();
                    assert!(
                        listed.contains(&plain(name)),
                        "recipes/{}/{file} does not name {name}",
                        recipe.file.id
                    );
                }
            }
        }
    }

    #[test]
    fn defaults_that_go_through_each_other_are_one_problem() {
        let root = tempfile::tempdir().unwrap();
        let deep = vec!["a"; 50_000].join(".");
        for defaults in [
            "\"a\" = 1\n\"a.b\" = 2",
            "\"a.b\" = 1\na = 2",
            &format!("\"{deep}\" = 1"),
        ] {
            let text = format!(
                "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n[defaults]\n{defaults}\n"
            );
            let path = root.path().join("recipes/mine/recipe.toml");
            crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
                .unwrap();
            let Err(Error::Invalid(problems)) = RecipeSet::load(root.path()) else {
                panic!("must not load")
            };
            assert!(
                problems.len() == 1 && problems[0].position().is_some(),
                "{problems:?}"
            );
        }
    }

    /// Nothing looks up the aliases of a project's recipe, so they would name nothing.
    #[test]
    fn an_alias_of_a_recipe_that_does_not_ship_is_an_error_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        let problem = |id: &str, aliases: &str| {
            let text = format!(
                "id = \"{id}\"\nname = \"n\"\nvendors = [\"cpu\"]\naliases = {aliases}\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\nformat = \"tprimat\"\n"
            );
            let path = root.path().join(format!("recipes/{id}/recipe.toml"));
            crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
                .unwrap();
            match RecipeSet::load(root.path()) {
                Err(Error::Invalid(problems)) => problems[0].position(),
                _ => None,
            }
        };
        assert_eq!(problem("tran", "[\"transformers\"]"), None);
        assert_eq!(
            problem("mine", "[\"ours\"]"),
            Some(("recipes/mine/recipe.toml".into(), 4, 1))
        );
    }

    #[test]
    fn a_log_section_that_reads_nothing_is_one_error_with_its_place() {
        let root = tempfile::tempdir().unwrap();
        let problem = |log: &str| {
            let text = format!(
                "id = \"mine\"\nname = \"n\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = []\ncommand = [\"true\"]\n[log]\n{log}\n"
            );
            let path = root.path().join("recipes/mine/recipe.toml");
            crate::files::write_atomically(&path, text.as_bytes(), crate::files::Durability::Plain)
                .unwrap();
            match RecipeSet::load(root.path()) {
                Err(Error::Invalid(problems)) => {
                    let problem = problems.into_iter().next().unwrap();
                    let (_, line, column) = problem.position().unwrap();
                    Some((problem.message, line, column))
                }
                _ => None,
            }
        };
        assert_eq!(
            problem("format = \"regex\"\npatterns = ['s (?P<step>\\d+)', '(?P<loss>\\S+)']"),
            None
        );
        assert_eq!(
            problem("format = \"tpirmat\""),
            Some(("`tpirmat` is not a log format".into(), 8, 10))
        );
        let unknown = problem(
            "format = \"regex\"\npatterns = [\n  's (?P<step>\\d+)',\n  '(?P<los>\\S+)',\n]",
        );
        assert_eq!(
            unknown,
            Some(("`los` is not a field of a step".into(), 11, 3))
        );
        let broken = problem("format = \"regex\"\npatterns = ['(']");
        assert_eq!(
            broken,
            Some(("not a pattern: unclosed group".into(), 9, 13))
        );
        assert_eq!(problem("format = \"regex\"").unwrap().1, 8);
        assert!(
            problem("format = \"tprimat\"\npatterns = ['(?P<loss>x)']")
                .unwrap()
                .0
                .contains("takes no patterns")
        );
    }
}

//! A recipe from its files: checked, with its templates and what it takes of the shared library.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{
    RecipeFile, Templates,
    check::check,
    files::{find_template, folder, has_recipe},
    library::{LIBRARY, Shared},
};
use crate::{
    config::{Config, Values, strings},
    digest::Digest,
    error::{Error, Problem, Result, Source},
    files::{EntryKind, MOST_TEXT, ReadSet, require_inside},
    job::{Vendor, vendor_named},
    logs::LogSection,
    shipped::shipped_under,
    words::part,
};

/// The option of a recipe that is a command of the user's own.
pub const COMMAND: &str = "command";
/// The recipe of such commands.
const CMD: &str = "cmd";

/// Packages that decide how fast a Python trainer is, whatever it is: other versions of them are
/// another measurement.
const DECISIVE: [&str; 10] = [
    "torch",
    "triton",
    "transformers",
    "accelerate",
    "deepspeed",
    "megatron-core",
    "flash-attn",
    "transformer-engine",
    "apex",
    "numpy",
];

/// Does a line or a script start a Python, or is it a file of it?
#[must_use]
pub fn mentions_python(text: &str) -> bool {
    const WORDS: [&str; 5] = ["python", "PYTHON", "torchrun", "accelerate", "deepspeed"];
    text.ends_with(".py") || WORDS.iter().any(|word| text.contains(word))
}

/// Files that no run reads.
const FOR_PEOPLE: [&str; 3] = ["README.md", "README", "LICENSE"];

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
        let all = self.files.iter();
        all.map(|(name, bytes, digest)| (name.as_str(), &**bytes, digest))
            .filter(move |(name, ..)| is_read(name))
    }
}

impl Recipe {
    /// The same recipe for another framework of the user's own.
    fn named(&self, id: &str) -> Self {
        let mut file = RecipeFile {
            id: id.to_owned(),
            ..self.file.clone()
        };
        for refused in &mut file.unsupported {
            let own = format!("frameworks.{id}.");
            refused.reason = refused.reason.replace("frameworks.cmd.", &own);
        }
        Self {
            file,
            files: self.files.clone(),
            templates: self.templates.clone(),
            launch_digest: self.launch_digest,
            defaults: self.defaults.clone(),
        }
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
        let shared = Shared::read(root, reads)?;
        for (name, text) in shared.templates() {
            templates.add(&name, Source::new(format!("recipes/{name}"), text))?;
        }
        for id in ids {
            match load(root, &id, &shared, &mut templates, reads) {
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

    /// Adds what config.yaml says of commands of the user's own: a framework that has a `command`
    /// and no recipe runs as `cmd` does, under its own name, and `log` says how its lines read.
    pub fn add_commands(&mut self, config: &Config) -> Result<()> {
        let mut problems = Vec::new();
        for id in config.children("frameworks") {
            let command = config.get(&format!("frameworks.{id}.{COMMAND}"));
            if !self.recipes.contains_key(id)
                && command.is_some()
                && let Some(own) = self.recipes.get(CMD).map(|cmd| cmd.named(id))
            {
                self.recipes.insert(id.to_owned(), own);
            }
            let path = format!("frameworks.{id}.log");
            let stated = config.get(&path);
            let lines = stated.map(strings).unwrap_or_default();
            if stated.is_some() && lines.is_empty() {
                let message = format!("`{path}` is an empty list");
                let problem = config.problem_at(&path, message, "has no line");
                problems.push(problem.help(
                    "write the line that a step prints, with its places: `step <step> loss <loss>`. Without `log`, tprimat looks for a format that it knows",
                ));
            }
            let Some(recipe) = self.recipes.get_mut(id).filter(|_| !lines.is_empty()) else {
                continue;
            };
            if !recipe.file.launch.has_option(COMMAND) {
                let message = format!(
                    "`log` is for a command of your own; how `{id}` prints is in its recipe"
                );
                problems.push(config.problem_at(&path, message, "would not be read"));
                continue;
            }
            recipe.file.log = LogSection::of_lines(&lines);
            if let Err(wrong) = recipe.file.log.check() {
                let problem = config.problem_at(&path, wrong.message, "here");
                problems.push(match wrong.help {
                    Some(help) => problem.help(help),
                    None => problem,
                });
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Error::Invalid(problems)),
        }
    }

    #[must_use]
    pub fn ids(&self) -> Vec<&str> {
        self.recipes.keys().map(String::as_str).collect()
    }
}

fn load(
    root: &Path,
    id: &str,
    shared: &Shared,
    templates: &mut Templates,
    reads: &ReadSet,
) -> Result<Recipe> {
    require_inside(root, &root.join("recipes").join(id).join("recipe.toml"))?;
    let mut files = folder(root, id, reads)?;
    let text = files.remove("recipe.toml").unwrap_or_default();
    if text.len() as u64 > MOST_TEXT {
        let most = MOST_TEXT >> 20;
        let message = format!("recipes/{id}/recipe.toml is larger than {most} MiB");
        return Err(Error::invalid(Problem::new(message)));
    }
    let source = Source::new(
        format!("recipes/{id}/recipe.toml"),
        String::from_utf8_lossy(&text),
    );
    let mut file: RecipeFile = toml::from_str(&source.text).map_err(|e| {
        let problem = Problem::new(e.message().to_owned());
        Error::invalid(problem.at(&source, e.span().unwrap_or(0..0), "here"))
    })?;
    if file.id != id {
        let is_id = |line: &str| {
            let after = line.trim_start().strip_prefix("id");
            after.is_some_and(|after| after.trim_start().starts_with('='))
        };
        let mut lines = source.text.split_inclusive('\n');
        let before: usize = lines
            .by_ref()
            .take_while(|line| !is_id(line))
            .map(str::len)
            .sum();
        let below = part(&source.text, before..).find("id");
        let at = below.map_or_else(
            || source.text.find("id").unwrap_or(0),
            |below| before + below,
        );
        return Err(Error::invalid(
            Problem::new(format!(
                "the recipe calls itself `{}`, its folder `{id}`",
                file.id
            ))
            .at(&source, at..at + 2, "must be the folder's name"),
        ));
    }
    check(&file, &source)?;
    let refused = shared.refused_by(&file, &source)?;
    file.unsupported.splice(..0, refused);
    let mut used = Vec::new();
    let mut starts_python = !file.require.python_modules.is_empty()
        || file.launch.has_option(COMMAND)
        || files.keys().any(|name| name.ends_with(".py"));
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
        used.push((unique.clone(), shared.digest(&text)));
        starts_python |= mentions_python(&text);
        templates.add(&unique, Source::new(place, text))?;
    }
    files.retain(|name, _| !name.ends_with(".j2"));
    for name in &file.launch.library {
        let bytes = shared.files.get(name).ok_or_else(|| {
            let at = source.text.find(name.as_str()).unwrap_or(0);
            let problem = Problem::new(format!("recipes/{LIBRARY} has no file `{name}`"));
            Error::invalid(problem.at(&source, at..at + name.len(), "named here"))
        })?;
        files.entry(name.clone()).or_insert_with(|| bytes.clone());
    }
    // Of its Python, tprimat-native has libtorch alone.
    if starts_python && file.require.programs.is_empty() {
        file.lock.cover(&DECISIVE);
    }
    let launch_digest = Digest::of(serde_json::to_vec(&file.launch.templates).unwrap_or_default());
    let files = files
        .into_iter()
        .map(|(name, bytes)| (name, Digest::of(&bytes), bytes))
        .map(|(n, d, b)| (n, b, d));
    let mut defaults = Values::new(id);
    for (path, value) in &file.defaults {
        defaults.add(path, value).map_err(|mut problem| {
            let found = source.text.find(path);
            let span = found.map_or(0..0, |at| at..at + path.len());
            problem.place = Some((source.clone(), span));
            Error::invalid(problem)
        })?;
    }
    Ok(Recipe {
        files: files.collect(),
        templates: used,
        launch_digest,
        defaults,
        file,
    })
}

#[cfg(test)]
mod tests;

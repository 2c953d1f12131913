//! `image build` and `shell`: a framework's container, made and entered.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    args::{ImageArgs, ImageCommand, ShellArgs},
    output::print,
    project,
};
use crate::{
    analyze::is_secret,
    config::{Config, Values},
    error::{Error, Problem, Result, exit, nearest},
    execute::container::{Context, Engine, EnvFile, run_arguments, tag},
    files::{Durability, write_atomically},
    plan::{PlanRequest, Vendor, load_config},
    recipe::{Recipe, RecipeSet},
};

/// The caller's variables that a container gets, by name.
const PASSED: [&str; 5] = ["HF_TOKEN", "HF_HOME", "http_proxy", "https_proxy", "no_proxy"];

struct Inputs {
    root: PathBuf,
    env: BTreeMap<String, String>,
    config: Config,
    recipes: RecipeSet,
}

impl Inputs {
    fn load(at: Option<&Path>, sets: &[String]) -> Result<Self> {
        let (root, env) = (project::root(at)?, project::environment());
        let request =
            PlanRequest { root: root.clone(), sets: sets.to_vec(), env: env.clone(), ..PlanRequest::default() };
        let config = load_config(&root.join("config.yaml"), &request)?;
        let recipes = RecipeSet::load(&root)?;
        Ok(Self { root, env, config, recipes })
    }

    fn platform(&self, name: &str) -> Result<(String, Vendor)> {
        let known = || self.config.children("hardware.platforms");
        let id = self.config.platforms_named(name).first().map(|id| (*id).to_owned());
        let Some(id) = id else {
            let near = nearest(name, known()).map(|near| format!("did you mean `{near}`?"));
            let help = near.unwrap_or_else(|| format!("config.yaml has {}", known().collect::<Vec<_>>().join(", ")));
            return Err(Error::invalid(Problem::new(format!("there is no platform `{name}`")).help(help)));
        };
        let vendor = self.config.vendor(&id).unwrap_or_default();
        Ok((id, vendor))
    }

    fn recipe(&self, id: &str, vendor: Vendor) -> Result<&Recipe> {
        let Some(recipe) = self.recipes.recipes.get(id) else {
            let near = nearest(id, self.recipes.ids()).map(|near| format!("did you mean `{near}`?"));
            let help = near.unwrap_or_else(|| format!("recipes are {}", self.recipes.ids().join(", ")));
            return Err(Error::invalid(Problem::new(format!("there is no recipe `{id}`")).help(help)));
        };
        if !recipe.file.vendors.contains(&vendor) {
            let vendors: Vec<_> = recipe.file.vendors.iter().map(|v| v.name()).collect();
            let message = format!("`{id}` runs on {} only, not on {}", vendors.join(", "), vendor.name());
            return Err(Error::invalid(Problem::new(message)));
        }
        Ok(recipe)
    }

    /// --base, else frameworks.<id>.image in config.yaml (a name, or one a vendor), else the recipe's.
    fn base(&self, recipe: &Recipe, vendor: Vendor, flag: Option<&str>) -> Result<String> {
        let (id, vendor_name) = (&recipe.file.id, vendor.name());
        let path = format!("frameworks.{id}.image");
        let configured = self.config.get(&path).or_else(|| self.config.get(&format!("{path}.{vendor_name}")));
        let named = flag.or(configured.and_then(Value::as_str)).map(str::to_owned);
        named.or_else(|| recipe.file.image.get(&vendor).cloned()).ok_or_else(|| {
            let problem = Problem::new(format!("the recipe `{id}` has no base image for {vendor_name}"));
            let requirements = format!("requirements.{vendor_name}.txt");
            let needs = match recipe.files.iter().any(|(name, ..)| *name == requirements) {
                true => format!("any with python3 and pip, which install recipes/{id}/{requirements} there"),
                false => "any that has what your command needs: nothing is installed there".to_owned(),
            };
            Error::invalid(problem.help(format!("name one with --base, or in {path}.{vendor_name}: {needs}")))
        })
    }
}

pub fn run(at: Option<&Path>, args: &ImageArgs) -> Result<i32> {
    let ImageCommand::Build(args) = &args.command;
    let inputs = Inputs::load(at, &args.sets)?;
    let segments: Vec<&str> = args.target.split('/').collect();
    let (platform, framework) = match (&segments[..], args.platform.as_deref()) {
        ([framework], Some(platform)) => (platform, *framework),
        ([platform, framework, ..], None) => (*platform, *framework),
        ([platform, framework, ..], Some(other)) if *platform == other => (other, *framework),
        ([_], None) => {
            let problem = Problem::new(format!("`{}` is built for one vendor at a time", args.target));
            return Err(Error::invalid(problem.help("name a platform: --platform nvd, or a cell: nvd/nemo/llama")));
        }
        (_, Some(other)) => {
            let message = format!("the cell `{}` is not on the platform `{other}`", args.target);
            return Err(Error::invalid(Problem::new(message)));
        }
        ([], None) => (args.target.as_str(), ""),
    };
    let (_, vendor) = inputs.platform(platform)?;
    let recipe = inputs.recipe(framework, vendor)?;
    let base = inputs.base(recipe, vendor, args.base.as_deref())?;
    let context = Context::render(&inputs.root, recipe, vendor, &base, args.user.as_deref())?;
    let name = args.tag.clone().unwrap_or_else(|| tag(framework, vendor));
    if args.print {
        print(&format!("{}\n# docker build --tag {name} .\n", context.dockerfile().trim_end()))?;
        return Ok(exit::OK);
    }
    let engine = Engine::find(&inputs.env)?;
    let folder = tempfile::tempdir().map_err(Error::io("cannot make a folder in", std::env::temp_dir()))?;
    for (name, bytes) in &context.files {
        write_atomically(&folder.path().join(name), bytes, Durability::Plain)?;
    }
    let place = folder.path().to_string_lossy().into_owned();
    let arguments = ["build".to_owned(), "--tag".into(), name.clone(), place];
    let code = engine.run(&arguments)?;
    if code != 0 {
        return Err(Error::Failed {
            message: format!("{} build ended with exit code {code}", engine.program),
            help: Some("--print shows the Dockerfile; --base names another base image".into()),
        });
    }
    eprintln!("built {name}; enter it with `tprimat shell {platform} --framework {framework}`");
    Ok(exit::OK)
}

pub fn shell(at: Option<&Path>, args: &ShellArgs) -> Result<i32> {
    let inputs = Inputs::load(at, &args.sets)?;
    let (platform, vendor) = inputs.platform(&args.platform)?;
    let framework = match args.framework.as_deref() {
        Some(framework) => inputs.recipe(framework, vendor)?.file.id.clone(),
        None => first_with_image(&inputs, vendor)?,
    };
    let name = args.image.clone().unwrap_or_else(|| tag(&framework, vendor));
    let view = inputs.config.view(&EMPTY, &[]);
    let declared: BTreeMap<String, String> = view
        .platform_env(&platform, vendor)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect();
    let passed = PASSED.into_iter().filter(|name| inputs.env.contains_key(*name) && !declared.contains_key(*name));
    let names: Vec<&str> = passed.collect();
    let found = Engine::find(&inputs.env);
    let engine = if args.print { found.unwrap_or(Engine { program: "docker".into() }) } else { found? };
    let is_terminal = std::io::stdin().is_terminal();
    let mut arguments =
        run_arguments(&engine, vendor, &inputs.root.to_string_lossy(), is_terminal || args.print, &names);
    let file = if args.print { None } else { Some(EnvFile::write(&declared)?) };
    match &file {
        Some(file) => arguments.extend(file.arguments()),
        // A secret's value is the reader's own to set.
        None => arguments.extend(declared.iter().flat_map(|(name, value)| match is_secret(name) {
            true => ["--env".to_owned(), name.clone()],
            false => ["--env".to_owned(), format!("{name}={value}")],
        })),
    }
    arguments.push(name.clone());
    arguments.extend(if args.command.is_empty() { vec!["bash".to_owned()] } else { args.command.clone() });
    if args.print {
        let words = std::iter::once(&engine.program).chain(&arguments).map(String::as_str);
        let line = shlex::try_join(words).map_err(|e| Error::Failed { message: e.to_string(), help: None })?;
        print(&format!("{line}\n"))?;
        return Ok(exit::OK);
    }
    if !engine.has(&name)? {
        return Err(Error::Failed {
            message: format!("there is no image {name} on this host"),
            help: Some(format!("tprimat image build {framework} --platform {platform}")),
        });
    }
    engine.run(&arguments)
}

static EMPTY: std::sync::LazyLock<Values> = std::sync::LazyLock::new(Values::default);

/// The first framework of config.yaml that has an image for the vendor.
fn first_with_image(inputs: &Inputs, vendor: Vendor) -> Result<String> {
    let mut ids = inputs.config.children("frameworks");
    let has = |id: &&str| inputs.recipes.recipes.get(*id).is_some_and(|r| r.file.image.contains_key(&vendor));
    ids.find(has).map(str::to_owned).ok_or_else(|| {
        let problem = Problem::new(format!("no recipe has an image for {}", vendor.name()));
        Error::invalid(problem.help("name one with --framework, or an image with --image"))
    })
}

//! `image build` and `shell`: a framework's container, made and entered.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    args::{ImageArgs, ImageBuildArgs, ImageCommand, ImageListArgs, ImagePullArgs, ShellArgs},
    output::{print, print_json},
    project,
};
use crate::{
    analyze::is_secret,
    config::{Config, Values, vendor_names},
    error::{Error, Problem, Result, exit, nearest},
    execute::container::{Context, EnvFile, shell_arguments},
    files::{Durability, write_atomically},
    host::Engine,
    plan::{
        EngineKind, PlanRequest, Vendor,
        execution::{default_image, is_image_name},
        load_config,
    },
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

    /// What `execution.<platform>.container.image` says, by the platform's id or its vendor.
    fn stated_image(&self, platform: &str, vendor: Vendor, framework: &str) -> Option<String> {
        let names = std::iter::once(platform).chain(vendor_names(vendor).iter().copied());
        let tables: Vec<String> = names.map(|name| format!("execution.{name}.container.image")).collect();
        let own = tables.iter().map(|table| format!("{table}.{framework}"));
        let found =
            own.chain(tables.iter().cloned()).find_map(|path| self.config.get(&path)?.as_str().map(str::to_owned));
        found.filter(|name| is_image_name(name))
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
    match &args.command {
        ImageCommand::Build(args) => build(at, args),
        ImageCommand::Pull(args) => pull(at, args),
        ImageCommand::List(args) => list(at, args),
    }
}

/// Platform and framework of `platform/framework/…`, or of a framework with `--platform`.
fn named<'a>(target: &'a str, platform: Option<&'a str>) -> Result<(&'a str, &'a str)> {
    let segments: Vec<&str> = target.split('/').collect();
    match (&segments[..], platform) {
        ([framework], Some(platform)) => Ok((platform, *framework)),
        ([platform, framework, ..], None) => Ok((*platform, *framework)),
        ([platform, framework, ..], Some(other)) if *platform == other => Ok((other, *framework)),
        ([_], None) => {
            let problem = Problem::new(format!("`{target}` is built for one vendor at a time"));
            Err(Error::invalid(problem.help("name a platform: --platform nvd, or a cell: nvd/nemo/llama")))
        }
        (_, Some(other)) => {
            Err(Error::invalid(Problem::new(format!("the cell `{target}` is not on the platform `{other}`"))))
        }
        ([], None) => Ok((target, "")),
    }
}

/// The first engine of those, in the caller's PATH.
fn engine(kinds: &[EngineKind], env: &BTreeMap<String, String>) -> Result<Engine> {
    kinds.iter().find_map(|kind| Engine::find(Some(*kind), env).ok()).ok_or_else(|| {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        Error::Failed {
            message: format!("there is neither {} in PATH", names.join(" nor ")),
            help: Some("install one of them; --print shows what would be run".into()),
        }
    })
}

/// Runs with the terminal and the environment of the caller; the exit code.
fn run_engine(engine: &Engine, arguments: &[String]) -> Result<i32> {
    let command = duct::cmd(&engine.program, arguments).unchecked();
    let output = command.run().map_err(Error::io("cannot start", &engine.program))?;
    Ok(output.status.code().unwrap_or(1))
}

fn is_here(engine: &Engine, env: &BTreeMap<String, String>, image: &str) -> Result<bool> {
    engine
        .image_digest(env, image)
        .map(|digest| digest.is_some())
        .map_err(|message| Error::Failed { message, help: Some("is its service running, and may you use it?".into()) })
}

const BUILDERS: [EngineKind; 2] = [EngineKind::Docker, EngineKind::Podman];
const ENGINES: [EngineKind; 3] = [EngineKind::Docker, EngineKind::Podman, EngineKind::Apptainer];

fn build(at: Option<&Path>, args: &ImageBuildArgs) -> Result<i32> {
    let inputs = Inputs::load(at, &args.sets)?;
    let (platform, framework) = named(&args.target, args.platform.as_deref())?;
    let (_, vendor) = inputs.platform(platform)?;
    let recipe = inputs.recipe(framework, vendor)?;
    let base = inputs.base(recipe, vendor, args.base.as_deref())?;
    let context = Context::render(&inputs.root, recipe, vendor, &base, args.user.as_deref())?;
    let name = args.tag.clone().unwrap_or_else(|| default_image(framework, vendor));
    if args.print {
        print(&format!("{}\n# docker build --tag {name} .\n", context.dockerfile().trim_end()))?;
        return Ok(exit::OK);
    }
    let engine = engine(&BUILDERS, &inputs.env)?;
    let folder = tempfile::tempdir().map_err(Error::io("cannot make a folder in", std::env::temp_dir()))?;
    for (name, bytes) in &context.files {
        write_atomically(&folder.path().join(name), bytes, Durability::Plain)?;
    }
    let place = folder.path().to_string_lossy().into_owned();
    let arguments = ["build".to_owned(), "--tag".into(), name.clone(), place];
    let code = run_engine(&engine, &arguments)?;
    if code != 0 {
        return Err(Error::Failed {
            message: format!("{} build ended with exit code {code}", engine.name()),
            help: Some("--print shows the Dockerfile; --base names another base image".into()),
        });
    }
    eprintln!(
        "built {name}; `tprimat build --only {platform}/{framework} --executor container` runs in it, `tprimat shell {platform} --framework {framework}` enters it"
    );
    Ok(exit::OK)
}

fn pull(at: Option<&Path>, args: &ImagePullArgs) -> Result<i32> {
    let inputs = Inputs::load(at, &args.sets)?;
    let (platform, framework) = named(&args.target, args.platform.as_deref())?;
    let (platform, vendor) = inputs.platform(platform)?;
    let recipe = inputs.recipe(framework, vendor)?;
    let image = match inputs.stated_image(&platform, vendor, framework) {
        Some(stated) => stated,
        None => inputs.base(recipe, vendor, None)?,
    };
    let found = engine(&BUILDERS, &inputs.env);
    let engine = if args.print { found.ok() } else { Some(found?) };
    let program = engine.as_ref().map_or("docker", Engine::name);
    if args.print {
        print(&format!("{program} pull {image}\n"))?;
        return Ok(exit::OK);
    }
    let Some(engine) = engine else { return Ok(exit::FAILED) };
    let code = run_engine(&engine, &["pull".to_owned(), image.clone()])?;
    if code != 0 {
        let message = format!("{program} pull {image} ended with exit code {code}");
        return Err(Error::Failed {
            message,
            help: Some(format!("may this host fetch it? `{program} login` signs in")),
        });
    }
    Ok(exit::OK)
}

fn list(at: Option<&Path>, args: &ImageListArgs) -> Result<i32> {
    let inputs = Inputs::load(at, &args.sets)?;
    let engine = engine(&ENGINES, &inputs.env);
    let mut rows = Vec::new();
    for platform in inputs.config.children("hardware.platforms").map(str::to_owned).collect::<Vec<_>>() {
        let vendor = inputs.config.vendor(&platform).unwrap_or_default();
        for framework in inputs.config.children("frameworks") {
            let Ok(recipe) = inputs.recipe(framework, vendor) else { continue };
            let stated = inputs.stated_image(&platform, vendor, framework);
            let image = stated.unwrap_or_else(|| default_image(&recipe.file.id, vendor));
            let here = engine.as_ref().map_err(ToString::to_string).and_then(|e| e.image_digest(&inputs.env, &image));
            rows.push((platform.clone(), framework.to_owned(), image, here));
        }
    }
    if args.json {
        let row = |(platform, framework, image, here): &(String, String, String, Result<Option<String>, String>)| serde_json::json!({ "platform": platform, "framework": framework, "image": image, "digest": here.clone().ok().flatten() });
        print_json(&Value::Array(rows.iter().map(row).collect()))?;
        return Ok(exit::OK);
    }
    let mut text = String::new();
    for (platform, framework, image, here) in &rows {
        let state = match here {
            Ok(Some(digest)) => digest.chars().take(19).collect(),
            Ok(None) => "not on this host".to_owned(),
            Err(why) => why.clone(),
        };
        text += &format!("{:<30} {image:<44} {state}\n", format!("{platform}/{framework}"));
    }
    print(&text)?;
    Ok(exit::OK)
}

pub fn shell(at: Option<&Path>, args: &ShellArgs) -> Result<i32> {
    let inputs = Inputs::load(at, &args.sets)?;
    let (platform, vendor) = inputs.platform(&args.platform)?;
    let framework = match args.framework.as_deref() {
        Some(framework) => inputs.recipe(framework, vendor)?.file.id.clone(),
        None => first_with_image(&inputs, vendor)?,
    };
    let stated = args.image.clone().or_else(|| inputs.stated_image(&platform, vendor, &framework));
    let name = stated.unwrap_or_else(|| default_image(&framework, vendor));
    let view = inputs.config.view(&EMPTY, &[]);
    let declared: BTreeMap<String, String> = view
        .platform_env(&platform, vendor)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect();
    let passed = PASSED.into_iter().filter(|name| inputs.env.contains_key(*name) && !declared.contains_key(*name));
    let names: Vec<&str> = passed.collect();
    let found = engine(&ENGINES, &inputs.env);
    let docker = || Engine { kind: EngineKind::Docker, program: "docker".into() };
    let engine = if args.print { found.unwrap_or_else(|_| docker()) } else { found? };
    let is_terminal = std::io::stdin().is_terminal();
    let mut arguments =
        shell_arguments(engine.kind, vendor, &inputs.root.to_string_lossy(), is_terminal || args.print, &names);
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
        let words = std::iter::once(engine.name()).chain(arguments.iter().map(String::as_str));
        let line = shlex::try_join(words).map_err(|e| Error::Failed { message: e.to_string(), help: None })?;
        print(&format!("{line}\n"))?;
        return Ok(exit::OK);
    }
    if !is_here(&engine, &inputs.env, &name)? {
        return Err(Error::Failed {
            message: format!("there is no image {name} on this host"),
            help: Some(format!("tprimat image build {framework} --platform {platform}")),
        });
    }
    run_engine(&engine, &arguments)
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

//! `image build` and `shell`: a framework's container, made and entered.

mod context;

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    args::{
        Globals, ImageArgs, ImageBuildArgs, ImageCommand, ImageListArgs, ImagePullArgs, ShellArgs,
    },
    output::{print, print_json},
    session::Project,
};
use crate::{
    cache::CONTAINER_HOME,
    config::Config,
    digest::Digest,
    error::{Error, Problem, Result, did_you_mean, exit},
    files::{Durability, create_dir_all, write_atomically},
    host::{ContainerEngine, EngineKind},
    job::Vendor,
    plan::{
        PlanRequest,
        execution::{self, Containment, default_image},
    },
    recipe::{Recipe, RecipeSet},
    run::container::home_variables,
    words::secret::is_secret,
};
use context::{Context, EnvFile, shell_arguments};

/// The caller's variables that a container gets, by name.
const PASSED: [&str; 9] = [
    "TPRIMAT_LOCK_DIR",
    "HF_TOKEN",
    "HF_HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

struct Inputs {
    root: PathBuf,
    env: BTreeMap<String, String>,
    config: Config,
    recipes: RecipeSet,
}

impl Inputs {
    fn load(globals: &Globals, sets: &[String]) -> Result<Self> {
        let Project {
            request: PlanRequest { root, env, .. },
            config,
            ..
        } = Project::open(globals, sets)?;
        let recipes = RecipeSet::load(&root)?;
        Ok(Self {
            root,
            env,
            config,
            recipes,
        })
    }

    fn platform(&self, name: &str) -> Result<(String, Vendor)> {
        let known = || self.config.children("hardware.platforms");
        let id = self
            .config
            .platforms_named(name)
            .first()
            .map(|id| (*id).to_owned());
        let Some(id) = id else {
            let near = did_you_mean(name, known());
            let help = near.unwrap_or_else(|| {
                format!("config.yaml has {}", known().collect::<Vec<_>>().join(", "))
            });
            return Err(Error::invalid(
                Problem::new(format!("there is no platform `{name}`")).help(help),
            ));
        };
        let vendor = self.config.vendor(&id).unwrap_or_default();
        Ok((id, vendor))
    }

    fn recipe(&self, id: &str, vendor: Vendor) -> Result<&Recipe> {
        let Some(recipe) = self.recipes.recipes.get(id) else {
            let near = did_you_mean(id, self.recipes.ids());
            let help =
                near.unwrap_or_else(|| format!("recipes are {}", self.recipes.ids().join(", ")));
            return Err(Error::invalid(
                Problem::new(format!("there is no recipe `{id}`")).help(help),
            ));
        };
        if !recipe.file.vendors.contains(&vendor) {
            let vendors: Vec<_> = recipe.file.vendors.iter().map(|v| v.name()).collect();
            let message = format!(
                "`{id}` runs on {} only, not on {}",
                vendors.join(", "),
                vendor.name()
            );
            let help = "name a platform of one of these vendors; `tprimat config` lists hardware.platforms";
            return Err(Error::invalid(Problem::new(message).help(help)));
        }
        Ok(recipe)
    }

    /// What `execution.<platform>.container.image` says, by the platform's id or its vendor.
    fn stated_image(
        &self,
        platform: &str,
        vendor: Vendor,
        framework: &str,
    ) -> Result<Option<String>> {
        execution::stated_image(&self.config.general(), platform, vendor, framework)
            .map_err(Error::invalid)
    }

    /// How the runs of a framework are put into containers on a platform.
    fn containment(&self, platform: &str, vendor: Vendor, recipe: &Recipe) -> Containment {
        execution::containment(&self.config.general(), platform, vendor, recipe)
    }

    /// --base, else frameworks.<id>.image in config.yaml (a name, or one a vendor), else the
    /// recipe's.
    fn base(&self, recipe: &Recipe, vendor: Vendor, flag: Option<&str>) -> Result<String> {
        let (id, vendor_name) = (&recipe.file.id, vendor.name());
        let stated = self.config.settings().frameworks.get(id);
        let configured = stated.and_then(|framework| {
            let image = &framework.image;
            image.as_str().or_else(|| image.get(vendor_name)?.as_str())
        });
        let named = flag.or(configured).map(str::to_owned);
        named
            .or_else(|| recipe.file.image.get(&vendor).cloned())
            .ok_or_else(|| {
                let problem = Problem::new(format!(
                    "the recipe `{id}` has no base image for {vendor_name}"
                ));
                let requirements = format!("requirements.{vendor_name}.txt");
                let needs = match recipe.files.iter().any(|(name, ..)| *name == requirements) {
                    true => format!(
                        "any with python3 and pip, which install recipes/{id}/{requirements} there"
                    ),
                    false => "any that has what your command needs: nothing is installed there"
                        .to_owned(),
                };
                Error::invalid(problem.help(format!(
                    "name one with --base, or in frameworks.{id}.image.{vendor_name}: {needs}"
                )))
            })
    }
}

pub fn run(globals: &Globals, args: &ImageArgs) -> Result<i32> {
    match &args.command {
        ImageCommand::Build(args) => build(globals, args),
        ImageCommand::Pull(args) => pull(globals, args),
        ImageCommand::List(args) => list(globals, args),
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
            Err(Error::invalid(problem.help(
                "name a platform: --platform nvd, or a cell: nvd/nemo/llama",
            )))
        }
        (_, Some(other)) => {
            let problem = Problem::new(format!(
                "the cell `{target}` is not on the platform `{other}`"
            ));
            Err(Error::invalid(problem.help("leave out --platform")))
        }
        ([], None) => Ok((target, "")),
    }
}

/// The engine of that kind, else the first of `kinds` that is in the caller's PATH.
fn engine(
    stated: Option<EngineKind>,
    kinds: &[EngineKind],
    env: &BTreeMap<String, String>,
) -> Result<ContainerEngine> {
    if stated.is_some() {
        return ContainerEngine::find(stated, env).map_err(|message| Error::Failed {
            message,
            help: Some(
                "install it, or name another one in execution.<platform>.container.engine".into(),
            ),
        });
    }
    kinds
        .iter()
        .find_map(|kind| ContainerEngine::find(Some(*kind), env).ok())
        .ok_or_else(|| {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            Error::Failed {
                message: format!("there is neither {} in PATH", names.join(" nor ")),
                help: Some("install one of them; --print shows what would be run".into()),
            }
        })
}

/// Refuses to make an image with an engine that the runs would not look into. `instead`: what makes
/// one for theirs.
fn only_builders(verb: &str, stated: Option<EngineKind>, instead: &str) -> Result<()> {
    let Some(kind) = stated.filter(|kind| !BUILDERS.contains(kind)) else {
        return Ok(());
    };
    let problem = Problem::new(format!(
        "`image {verb}` works with docker and podman, but the runs of this platform use {}",
        kind.name()
    ));
    Err(Error::invalid(problem.help(instead)))
}

/// Runs with the terminal and the environment of the caller; the exit code.
fn run_engine(engine: &ContainerEngine, arguments: &[String]) -> Result<i32> {
    let command = duct::cmd(&engine.program, arguments).unchecked();
    let output = command
        .run()
        .map_err(Error::io("cannot start", &engine.program))?;
    Ok(output.status.code().unwrap_or(1))
}

fn is_here(engine: &ContainerEngine, inputs: &Inputs, image: &str) -> Result<bool> {
    engine
        .image_digest(&inputs.env, image, &inputs.root, Digest::of_file)
        .map(|digest| digest.is_some())
        .map_err(|message| Error::Failed {
            message,
            help: Some("is its service running, and may you use it?".into()),
        })
}

const BUILDERS: [EngineKind; 2] = [EngineKind::Docker, EngineKind::Podman];
const ENGINES: [EngineKind; 3] = [
    EngineKind::Docker,
    EngineKind::Podman,
    EngineKind::Apptainer,
];

fn build(globals: &Globals, args: &ImageBuildArgs) -> Result<i32> {
    let inputs = Inputs::load(globals, &args.sets)?;
    let (platform, framework) = named(&args.target, args.platform.as_deref())?;
    let (platform, vendor) = inputs.platform(platform)?;
    let recipe = inputs.recipe(framework, vendor)?;
    let Containment {
        engine: stated,
        is_default,
    } = inputs.containment(&platform, vendor, recipe);
    let base = inputs.base(recipe, vendor, args.base.as_deref())?;
    let context = Context::render(&inputs.root, recipe, vendor, &base, args.user.as_deref())?;
    let name = args
        .tag
        .clone()
        .unwrap_or_else(|| default_image(framework, vendor));
    let found = engine(stated, &BUILDERS, &inputs.env);
    if args.print {
        print(&format!(
            "{}\n# {} build --tag {name} .\n",
            context.dockerfile().trim_end(),
            builder(stated, found.as_ref().ok())
        ))?;
        return Ok(exit::OK);
    }
    only_builders(
        "build",
        stated,
        &format!(
            "where docker is, `tprimat image build {framework} --platform {platform} --set execution.{platform}.container.engine=docker` builds it; \
             `apptainer build {framework}.sif docker-daemon:{name}` makes the file that execution.{platform}.container.image names"
        ),
    )?;
    let engine = found?;
    let folder =
        tempfile::tempdir().map_err(Error::io("cannot make a folder in", std::env::temp_dir()))?;
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
    let runs_use = inputs
        .stated_image(&platform, vendor, framework)?
        .unwrap_or_else(|| default_image(framework, vendor));
    let program = engine.name();
    if runs_use == name {
        eprintln!(
            "built {name} with {program}; `tprimat build --only {platform}/{framework}{}` runs in it, `tprimat shell {platform} --framework {framework}` enters it",
            executor_flag(is_default)
        );
    } else {
        eprintln!(
            "built {name} with {program}; runs of {platform}/{framework} use the image {runs_use} until execution.{platform}.container.image.{framework} names this one"
        );
    }
    Ok(exit::OK)
}

/// What a build is told to run in containers, where config.yaml does not say it.
fn executor_flag(is_default: bool) -> &'static str {
    if is_default {
        ""
    } else {
        " --executor container"
    }
}

/// The program that `--print` names: it may not be installed on this host.
fn builder(stated: Option<EngineKind>, found: Option<&ContainerEngine>) -> &'static str {
    let stated = stated.filter(|kind| BUILDERS.contains(kind));
    let kind = stated.or(found
        .map(|engine| engine.kind)
        .filter(|kind| BUILDERS.contains(kind)));
    kind.unwrap_or(EngineKind::Docker).name()
}

fn pull(globals: &Globals, args: &ImagePullArgs) -> Result<i32> {
    let inputs = Inputs::load(globals, &args.sets)?;
    let (platform, framework) = named(&args.target, args.platform.as_deref())?;
    let (platform, vendor) = inputs.platform(platform)?;
    let recipe = inputs.recipe(framework, vendor)?;
    let Containment {
        engine: kind,
        is_default,
    } = inputs.containment(&platform, vendor, recipe);
    let stated = inputs.stated_image(&platform, vendor, framework)?;
    let image = match &stated {
        Some(stated) => stated.clone(),
        None => inputs.base(recipe, vendor, None)?,
    };
    if Path::new(&image).is_absolute() || image.ends_with(".sif") {
        let problem = Problem::new(format!(
            "`{image}` is a file, and `image pull` fetches from a registry"
        ));
        return Err(Error::invalid(
            problem.help("copy the file to this host; it is used as it is"),
        ));
    }
    // The base image is not what runs are started in, so the next step is said with it.
    let after = match &stated {
        Some(_) => format!(
            "{image} is the image of {platform}/{framework}; `tprimat build --only {platform}/{framework}{}` runs in it",
            executor_flag(is_default)
        ),
        None => format!(
            "{image} is only the base image of {framework}; `tprimat image build {framework} --platform {platform}` makes {} from it, which the runs use",
            default_image(framework, vendor)
        ),
    };
    let found = engine(kind, &BUILDERS, &inputs.env);
    if args.print {
        let program = builder(kind, found.as_ref().ok());
        print(&format!("{program} pull {image}\n"))?;
        eprintln!("{after}");
        return Ok(exit::OK);
    }
    only_builders(
        "pull",
        kind,
        &format!(
            "`apptainer pull {framework}.sif docker://{image}` makes a file, which execution.{platform}.container.image may name; a job fetches an image for pyxis by itself"
        ),
    )?;
    let engine = found?;
    let program = engine.name();
    let code = run_engine(&engine, &["pull".to_owned(), image.clone()])?;
    if code != 0 {
        let message = format!("{program} pull {image} ended with exit code {code}");
        return Err(Error::Failed {
            message,
            help: Some(format!(
                "may this host fetch it? `{program} login` signs in"
            )),
        });
    }
    eprintln!("pulled with {program}: {after}");
    Ok(exit::OK)
}

fn list(globals: &Globals, args: &ImageListArgs) -> Result<i32> {
    let inputs = Inputs::load(globals, &args.sets)?;
    let mut rows = Vec::new();
    for platform in inputs
        .config
        .children("hardware.platforms")
        .map(str::to_owned)
        .collect::<Vec<_>>()
    {
        let vendor = inputs.config.vendor(&platform).unwrap_or_default();
        for framework in inputs.config.children("frameworks") {
            let Ok(recipe) = inputs.recipe(framework, vendor) else {
                continue;
            };
            let stated = inputs.stated_image(&platform, vendor, framework)?;
            let image = stated.unwrap_or_else(|| default_image(&recipe.file.id, vendor));
            let kind = inputs.containment(&platform, vendor, recipe).engine;
            let here = ContainerEngine::find(kind, &inputs.env)
                .and_then(|e| e.image_digest(&inputs.env, &image, &inputs.root, Digest::of_file));
            rows.push((platform.clone(), framework.to_owned(), image, here));
        }
    }
    if globals.json {
        let row = |(platform, framework, image, here): &(
            String,
            String,
            String,
            Result<Option<String>, String>,
        )| serde_json::json!({ "platform": platform, "framework": framework, "image": image, "digest": here.as_ref().ok().cloned().flatten(), "unknown": here.as_ref().err() });
        print_json(
            "images",
            &serde_json::json!({ "images": rows.iter().map(row).collect::<Vec<_>>() }),
        )?;
        return Ok(exit::OK);
    }
    let mut text = String::new();
    for (platform, framework, image, here) in &rows {
        let state = match here {
            Ok(Some(digest)) => digest.chars().take(19).collect(),
            Ok(None) => "not on this host".to_owned(),
            Err(why) => why.clone(),
        };
        text += &format!(
            "{:<30} {image:<44} {state}\n",
            format!("{platform}/{framework}")
        );
    }
    print(&text)?;
    Ok(exit::OK)
}

pub fn shell(globals: &Globals, args: &ShellArgs) -> Result<i32> {
    let inputs = Inputs::load(globals, &args.sets)?;
    let (platform, vendor) = inputs.platform(&args.platform)?;
    let framework = match args.framework.as_deref() {
        Some(framework) => inputs.recipe(framework, vendor)?.file.id.clone(),
        None => first_with_image(&inputs, vendor)?,
    };
    let stated = match &args.image {
        Some(image) => Some(image.clone()),
        None => inputs.stated_image(&platform, vendor, &framework)?,
    };
    let name = stated.unwrap_or_else(|| default_image(&framework, vendor));
    let view = inputs.config.general();
    let declared: BTreeMap<String, String> = view
        .platform_env(&platform, vendor)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect();
    let passed = PASSED
        .into_iter()
        .filter(|name| inputs.env.contains_key(*name) && !declared.contains_key(*name));
    let names: Vec<&str> = passed.collect();
    let recipe = inputs.recipes.recipes.get(&framework);
    let kind = recipe.and_then(|recipe| inputs.containment(&platform, vendor, recipe).engine);
    if kind == Some(EngineKind::Pyxis) {
        let problem = Problem::new("`shell` cannot enter a container of pyxis".to_owned());
        return Err(Error::invalid(problem.help(format!(
            "`srun --container-image={name} --pty bash` does, as a job of the cluster"
        ))));
    }
    let found = engine(kind, &ENGINES, &inputs.env);
    let absent = || {
        let kind = kind.unwrap_or(EngineKind::Docker);
        ContainerEngine {
            kind,
            program: kind.name().into(),
        }
    };
    let engine = if args.print {
        found.unwrap_or_else(|_| absent())
    } else {
        found?
    };
    let is_terminal = std::io::stdin().is_terminal();
    let (mut mounts, checkouts) = shell_mounts(&inputs, recipe);
    mounts.extend(args.volume.iter().map(|volume| match volume.contains(':') {
        true => volume.clone(),
        false => format!("{volume}:{volume}"),
    }));
    let mut declared = declared;
    declared.extend(checkouts);
    if engine.kind != EngineKind::Apptainer {
        // As a run has it: the image knows no folder of the caller's user.
        let home = inputs.config.cache_dir(&inputs.root).join(CONTAINER_HOME);
        let text = home.display().to_string();
        if !args.print {
            create_dir_all(&home)?;
        }
        if !home.starts_with(&inputs.root) && !text.contains([':', ',']) {
            mounts.push(format!("{text}:{text}"));
        }
        declared.extend(home_variables(&text).map(|(name, value)| (name.to_owned(), value)));
    }
    let mut arguments = shell_arguments(
        engine.kind,
        vendor,
        &inputs.root.to_string_lossy(),
        &mounts,
        is_terminal || args.print,
        &names,
    );
    let variables = if args.print {
        None
    } else {
        Some(EnvFile::write(&declared)?)
    };
    match &variables {
        Some(file) => arguments.extend(file.arguments()),
        // A secret's value is the reader's own to set.
        None => arguments.extend(
            declared
                .iter()
                .flat_map(|(name, value)| match is_secret(name) {
                    true => ["--env".to_owned(), name.clone()],
                    false => ["--env".to_owned(), format!("{name}={value}")],
                }),
        ),
    }
    let file = engine.kind.file_of(&name, &inputs.root);
    let image = file.as_ref().map(|file| file.display().to_string());
    arguments.push(image.unwrap_or_else(|| name.clone()));
    arguments.extend(if args.command.is_empty() {
        vec!["bash".to_owned()]
    } else {
        args.command.clone()
    });
    if args.print {
        let words = std::iter::once(engine.name()).chain(arguments.iter().map(String::as_str));
        let line = shlex::try_join(words).map_err(|e| Error::failed(e.to_string()))?;
        print(&format!("{line}\n"))?;
        return Ok(exit::OK);
    }
    if !is_here(&engine, &inputs, &name)? {
        let of = (&*platform, &*framework, vendor);
        return Err(Error::Failed {
            message: format!("{} has no image {name} on this host", engine.name()),
            help: Some(execution::how_to_get(&name, file.as_deref(), of)),
        });
    }
    run_engine(&engine, &arguments)
}

/// What a run in the container would have besides the project, each under its own path: folders to
/// mount, and the variables that name checkouts there.
fn shell_mounts(inputs: &Inputs, recipe: Option<&Recipe>) -> (Vec<String>, Vec<(String, String)>) {
    let place = |path: &str| inputs.root.join(path);
    let mut checkouts = Vec::new();
    let mut folders: Vec<(PathBuf, &str)> = Vec::new();
    folders.extend(inputs.env.get("HF_HOME").map(|home| (home.into(), "")));
    folders.push((super::train_host::lock_dir(&inputs.env), ""));
    for checkout in recipe.iter().flat_map(|r| &r.file.require.checkouts) {
        let stated = inputs.config.get(&checkout.setting).and_then(Value::as_str);
        if let Some(path) = stated.map(place).filter(|path| path.is_dir()) {
            checkouts.push((checkout.variable.clone(), path.display().to_string()));
            folders.push((path, ":ro"));
        }
    }
    for id in inputs.config.children("models") {
        let Some(model) = inputs.config.settings().models.get(id) else {
            continue;
        };
        for stated in [&model.dataset_path, &model.tokenizer_path] {
            // A dataset is named by the prefix of its files, a tokenizer by a file, a folder or a
            // name on the hub.
            let path = stated.as_deref().map(place);
            let folder = path.and_then(|path| match path.is_dir() {
                true => Some(path),
                false => path.parent().map(Path::to_owned),
            });
            folders.extend(folder.map(|folder| (folder, ":ro")));
        }
    }
    let mut covered = vec![inputs.root.clone()];
    let mut mounts = Vec::new();
    for (folder, ending) in folders {
        let text = folder.display().to_string();
        let can_be_mounted = folder.is_absolute() && folder.is_dir() && !text.contains([':', ',']);
        if can_be_mounted && !covered.iter().any(|known| folder.starts_with(known)) {
            mounts.push(format!("{text}:{text}{ending}"));
            covered.push(folder);
        }
    }
    (mounts, checkouts)
}

/// The first framework of config.yaml that has an image for the vendor.
fn first_with_image(inputs: &Inputs, vendor: Vendor) -> Result<String> {
    let mut ids = inputs.config.children("frameworks");
    let has = |id: &&str| {
        inputs
            .recipes
            .recipes
            .get(*id)
            .is_some_and(|r| r.file.image.contains_key(&vendor))
    };
    ids.find(has).map(str::to_owned).ok_or_else(|| {
        let problem = Problem::new(format!("no recipe has an image for {}", vendor.name()));
        Error::invalid(problem.help("name one with --framework, or an image with --image"))
    })
}

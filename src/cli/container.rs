//! `container`: the images of frameworks, made, fetched and listed; and a shell in one.

mod context;
mod shell;

use std::{collections::BTreeMap, path::Path};

use serde_json::json;

use self::context::Context;
use super::{
    args::{BuildImageArgs, ContainerCommand, Globals, PullImageArgs},
    output::{answer, columns, print},
    session::Project,
};
use crate::{
    config::Config,
    digest::Digest,
    error::{Error, Result, did_you_mean, exit},
    files::{Durability, write_atomically},
    host::{ContainerEngine, EngineKind},
    job::Vendor,
    plan::execution::{self, Containment, default_image},
    recipe::{Recipe, RecipeSet},
};

/// The engines that make images.
const BUILDERS: [EngineKind; 2] = [EngineKind::Docker, EngineKind::Podman];

pub fn run(globals: &Globals, command: &ContainerCommand) -> Result<i32> {
    match command {
        ContainerCommand::Build(args) => build(&Inputs::load(globals, &args.sets)?, args),
        ContainerCommand::Pull(args) => pull(&Inputs::load(globals, &args.sets)?, args),
        ContainerCommand::List { sets } => list(globals, &Inputs::load(globals, sets)?),
        ContainerCommand::Shell(args) => shell::run(&Inputs::load(globals, &args.sets)?, args),
    }
}

/// The project, as far as images depend on it.
struct Inputs {
    project: Project,
    recipes: RecipeSet,
}

impl Inputs {
    fn load(globals: &Globals, sets: &[String]) -> Result<Self> {
        let project = Project::open(globals, sets)?;
        let recipes = RecipeSet::load(project.root())?;
        Ok(Self { project, recipes })
    }

    fn root(&self) -> &Path {
        self.project.root()
    }

    fn env(&self) -> &BTreeMap<String, String> {
        &self.project.request.env
    }

    fn config(&self) -> &Config {
        &self.project.config
    }

    fn platform(&self, name: &str) -> Result<(String, Vendor)> {
        let config = self.config();
        let Some(id) = config.platforms_named(name).first().copied() else {
            let known: Vec<&str> = config.children("hardware.platforms").collect();
            let near = did_you_mean(name, known.iter().copied());
            let help = near.unwrap_or_else(|| format!("config.yaml has {}", known.join(", ")));
            return Err(Error::refused(
                format!("there is no platform `{name}`"),
                help,
            ));
        };
        Ok((id.to_owned(), config.vendor(id).unwrap_or_default()))
    }

    fn recipe(&self, id: &str, vendor: Vendor) -> Result<&Recipe> {
        let Some(recipe) = self.recipes.recipes.get(id) else {
            let near = did_you_mean(id, self.recipes.ids());
            let all = || format!("recipes are {}", self.recipes.ids().join(", "));
            return Err(Error::refused(
                format!("there is no recipe `{id}`"),
                near.unwrap_or_else(all),
            ));
        };
        if !recipe.file.vendors.contains(&vendor) {
            let vendors: Vec<_> = recipe.file.vendors.iter().map(|v| v.name()).collect();
            let (own, asked) = (vendors.join(", "), vendor.name());
            return Err(Error::refused(
                format!("`{id}` runs on {own} only, not on {asked}"),
                "name a platform of one of these vendors; `tprimat config` lists hardware.platforms",
            ));
        }
        Ok(recipe)
    }

    /// The image of a framework's runs on a platform.
    fn target<'a>(&'a self, platform: &str, framework: &str) -> Result<Target<'a>> {
        let (platform, vendor) = self.platform(platform)?;
        let recipe = self.recipe(framework, vendor)?;
        let view = self.config().general();
        let Containment { engine, is_default } =
            execution::containment(&view, &platform, vendor, recipe);
        let stated = execution::stated_image(&view, &platform, vendor, &recipe.file.id)
            .map_err(Error::invalid)?;
        Ok(Target {
            inputs: self,
            platform,
            vendor,
            recipe,
            engine,
            is_default,
            stated,
        })
    }

    /// The target of `platform/framework/…`, or of a framework with `--platform`.
    fn named(&self, target: &str, platform: Option<&str>) -> Result<Target<'_>> {
        let segments: Vec<&str> = target.split('/').collect();
        match (&segments[..], platform) {
            ([framework], Some(platform)) => self.target(platform, framework),
            ([platform, framework, ..], None) => self.target(platform, framework),
            ([platform, framework, ..], Some(other)) if *platform == other => {
                self.target(other, framework)
            }
            (_, None) => Err(Error::refused(
                format!("`{target}` is built for one vendor at a time"),
                "name a platform: --platform nvd, or a cell: nvd/nemo/llama",
            )),
            (_, Some(other)) => Err(Error::refused(
                format!("the cell `{target}` is not on the platform `{other}`"),
                "leave out --platform",
            )),
        }
    }
}

/// A framework on a platform, and how its runs are put into containers.
struct Target<'a> {
    inputs: &'a Inputs,
    platform: String,
    vendor: Vendor,
    recipe: &'a Recipe,
    engine: Option<EngineKind>,
    /// Its runs are in containers without a word on the command line.
    is_default: bool,
    /// What `execution.<platform>.container.image` says.
    stated: Option<String>,
}

impl Target<'_> {
    fn framework(&self) -> &str {
        &self.recipe.file.id
    }

    fn default_image(&self) -> String {
        default_image(self.framework(), self.vendor)
    }

    /// The image that its runs use.
    fn image(&self) -> String {
        self.stated.clone().unwrap_or_else(|| self.default_image())
    }

    fn build_command(&self) -> String {
        let (framework, platform) = (self.framework(), &self.platform);
        format!("tprimat container build {framework} --platform {platform}")
    }

    /// What runs in the image.
    fn run_command(&self) -> String {
        let flag = match self.is_default {
            true => "",
            false => " --executor container",
        };
        let (platform, framework) = (&self.platform, self.framework());
        format!("tprimat build --only {platform}/{framework}{flag}")
    }

    /// --base, else frameworks.<id>.image in config.yaml (a name, or one a vendor), else the
    /// recipe's.
    fn base(&self, flag: Option<&str>) -> Result<String> {
        let (id, vendor) = (self.framework(), self.vendor.name());
        let stated = self.inputs.config().settings().frameworks.get(id);
        let configured = stated.and_then(|framework| {
            let image = &framework.image;
            image.as_str().or_else(|| image.get(vendor)?.as_str())
        });
        let own = self.recipe.file.image.get(&self.vendor).map(String::as_str);
        if let Some(base) = flag.or(configured).or(own) {
            return Ok(base.to_owned());
        }
        let requirements = format!("requirements.{vendor}.txt");
        let mut files = self.recipe.files.iter();
        let needs = match files.any(|(name, ..)| *name == requirements) {
            true => {
                format!("any with python3 and pip, which install recipes/{id}/{requirements} there")
            }
            false => "any that has what your command needs: nothing is installed there".to_owned(),
        };
        Err(Error::refused(
            format!("the recipe `{id}` has no base image for {vendor}"),
            format!("name one with --base, or in frameworks.{id}.image.{vendor}: {needs}"),
        ))
    }

    /// Has docker or podman do something; its name. `instead`: what makes an image for another engine.
    fn ask_builder(&self, words: &[&str], instead: &str, help: &str) -> Result<&'static str> {
        if let Some(kind) = self.engine.filter(|kind| !BUILDERS.contains(kind)) {
            let (verb, kind) = (words[0], kind.name());
            return Err(Error::refused(
                format!(
                    "`container {verb}` works with docker and podman, but the runs of this platform use {kind}"
                ),
                instead,
            ));
        }
        let engine = engine(self.engine, &BUILDERS, self.inputs.env())?;
        match run_engine(&engine, words)? {
            0 => Ok(engine.name()),
            code => Err(Error::failed_with(
                format!("{} {} ended with exit code {code}", engine.name(), words[0]),
                help,
            )),
        }
    }

    /// The program that `--print` names: it may not be installed on this host.
    fn builder(&self) -> &'static str {
        let found = engine(self.engine, &BUILDERS, self.inputs.env());
        let found = found.ok().map(|engine| engine.kind);
        let mut kinds = self.engine.into_iter().chain(found);
        let kind = kinds.find(|kind| BUILDERS.contains(kind));
        kind.unwrap_or(EngineKind::Docker).name()
    }
}

/// The engine of that kind, else the first of `kinds` that is in the caller's PATH.
fn engine(
    stated: Option<EngineKind>,
    kinds: &[EngineKind],
    env: &BTreeMap<String, String>,
) -> Result<ContainerEngine> {
    if stated.is_some() {
        return ContainerEngine::find(stated, env).map_err(|message| {
            let help = "install it, or name another one in execution.<platform>.container.engine";
            Error::failed_with(message, help)
        });
    }
    let mut found = kinds.iter();
    found
        .find_map(|kind| ContainerEngine::find(Some(*kind), env).ok())
        .ok_or_else(|| {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
            Error::failed_with(
                format!("there is neither {} in PATH", names.join(" nor ")),
                "install one of them; --print shows what would be run",
            )
        })
}

/// Runs with the terminal and the environment of the caller; the exit code.
fn run_engine(engine: &ContainerEngine, words: &[&str]) -> Result<i32> {
    let command = duct::cmd(&engine.program, words).unchecked();
    let output = command.run();
    let output = output.map_err(Error::io("cannot start", &engine.program))?;
    Ok(output.status.code().unwrap_or(1))
}

fn build(inputs: &Inputs, args: &BuildImageArgs) -> Result<i32> {
    let target = inputs.named(&args.target, args.platform.as_deref())?;
    let base = target.base(args.base.as_deref())?;
    let (root, user) = (inputs.root(), args.user.as_deref());
    let context = Context::render(root, target.recipe, target.vendor, &base, user)?;
    let name = args.tag.clone().unwrap_or_else(|| target.default_image());
    if args.print {
        let (dockerfile, builder) = (context.dockerfile(), target.builder());
        print(&format!(
            "{}\n# {builder} build --tag {name} .\n",
            dockerfile.trim_end()
        ))?;
        return Ok(exit::OK);
    }
    let folder =
        tempfile::tempdir().map_err(Error::io("cannot make a folder in", std::env::temp_dir()))?;
    for (name, bytes) in &context.files {
        write_atomically(&folder.path().join(name), bytes, Durability::Plain)?;
    }
    let (platform, framework) = (&target.platform, target.framework());
    let program = target.ask_builder(
        &["build", "--tag", &name, &folder.path().to_string_lossy()],
        &format!(
            "where docker is, `{} --set execution.{platform}.container.engine=docker` builds it; \
             `apptainer build {framework}.sif docker-daemon:{name}` makes the file that execution.{platform}.container.image names",
            target.build_command()
        ),
        "--print shows the Dockerfile; --base names another base image",
    )?;
    let used = target.image();
    if used == name {
        eprintln!(
            "built {name} with {program}; `{}` runs in it, `tprimat container shell {platform} --framework {framework}` enters it",
            target.run_command()
        );
    } else {
        eprintln!(
            "built {name} with {program}; runs of {platform}/{framework} use the image {used} until execution.{platform}.container.image.{framework} names this one"
        );
    }
    Ok(exit::OK)
}

fn pull(inputs: &Inputs, args: &PullImageArgs) -> Result<i32> {
    let target = inputs.named(&args.target, args.platform.as_deref())?;
    let image = match &target.stated {
        Some(stated) => stated.clone(),
        None => target.base(None)?,
    };
    if Path::new(&image).is_absolute() || image.ends_with(".sif") {
        return Err(Error::refused(
            format!("`{image}` is a file, and `container pull` fetches from a registry"),
            "copy the file to this host; it is used as it is",
        ));
    }
    let (platform, framework) = (&target.platform, target.framework());
    // The base image is not what runs are started in, so the next step is said with it.
    let after = match &target.stated {
        Some(_) => format!(
            "{image} is the image of {platform}/{framework}; `{}` runs in it",
            target.run_command()
        ),
        None => format!(
            "{image} is only the base image of {framework}; `{}` makes {} from it, which the runs use",
            target.build_command(),
            target.default_image()
        ),
    };
    if args.print {
        print(&format!("{} pull {image}\n", target.builder()))?;
        eprintln!("{after}");
        return Ok(exit::OK);
    }
    let program = target.ask_builder(
        &["pull", &image],
        &format!(
            "`apptainer pull {framework}.sif docker://{image}` makes a file, which execution.{platform}.container.image may name; a job fetches an image for pyxis by itself"
        ),
        "may this host fetch it? the engine's `login` signs in",
    )?;
    eprintln!("pulled with {program}: {after}");
    Ok(exit::OK)
}

/// The images of all platforms and frameworks, and which of them are on this host.
fn list(globals: &Globals, inputs: &Inputs) -> Result<i32> {
    let (mut lines, mut rows) = (Vec::new(), Vec::new());
    for platform in inputs.config().children("hardware.platforms") {
        let vendor = inputs.config().vendor(platform).unwrap_or_default();
        for framework in inputs.config().children("frameworks") {
            if inputs.recipe(framework, vendor).is_err() {
                continue;
            }
            let target = inputs.target(platform, framework)?;
            let image = target.image();
            let here = ContainerEngine::find(target.engine, inputs.env()).and_then(|engine| {
                engine.image_digest(inputs.env(), &image, inputs.root(), Digest::of_file)
            });
            rows.push(json!({
                "platform": platform, "framework": framework, "image": image,
                "digest": here.as_ref().ok(), "unknown": here.as_ref().err(),
            }));
            let state = match here {
                Ok(Some(digest)) => digest.chars().take(19).collect(),
                Ok(None) => "not on this host".to_owned(),
                Err(why) => why,
            };
            lines.push([format!("{platform}/{framework}"), image, state]);
        }
    }
    answer(globals, "images", &json!({ "images": rows }), || {
        columns(&lines)
    })?;
    Ok(exit::OK)
}

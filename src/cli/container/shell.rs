//! `container shell`: an interactive container that has what a run in it would have.

use std::{collections::BTreeMap, io::IsTerminal, path::PathBuf};

use serde_json::Value;

use super::{
    Inputs, Target,
    context::{EnvFile, shell_arguments},
    engine, run_engine,
};
use crate::{
    cache::CONTAINER_HOME,
    cli::{args::ShellArgs, output::print, train_host},
    digest::Digest,
    error::{Error, Result, exit},
    files::create_dir_all,
    host::{ContainerEngine, EngineKind},
    job::Vendor,
    plan::execution,
    recipe::Recipe,
    run::container::home_variables,
    words::secret::public_value,
};

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

const ENGINES: [EngineKind; 3] = [
    EngineKind::Docker,
    EngineKind::Podman,
    EngineKind::Apptainer,
];

pub fn run(inputs: &Inputs, args: &ShellArgs) -> Result<i32> {
    let (platform, vendor) = inputs.platform(&args.platform)?;
    let target = match args.framework.as_deref() {
        Some(framework) => inputs.target(&platform, framework)?,
        None => inputs.target(&platform, first_with_image(inputs, vendor)?)?,
    };
    let image = args.image.clone().unwrap_or_else(|| target.image());
    let engine = shell_engine(&target, &image, args.print)?;
    let view = inputs.config().general();
    let env = view.platform_env(&platform, vendor).into_iter();
    let env = env.map(|(name, value)| (name.to_owned(), value.to_string()));
    let mut declared: BTreeMap<String, String> = env.collect();
    let is_passed = |name: &&str| inputs.env().contains_key(*name) && !declared.contains_key(*name);
    let passed: Vec<&str> = PASSED.into_iter().filter(is_passed).collect();
    let (mut mounts, checkouts) = shell_mounts(inputs, target.recipe);
    let volumes = args.volume.iter();
    mounts.extend(volumes.map(|volume| match volume.contains(':') {
        true => volume.clone(),
        false => format!("{volume}:{volume}"),
    }));
    declared.extend(checkouts);
    if engine.kind != EngineKind::Apptainer {
        // As a run has it: the image knows no folder of the caller's user.
        let home = inputs.project.cache_dir().join(CONTAINER_HOME);
        let text = home.display().to_string();
        if !args.print {
            create_dir_all(&home)?;
        }
        if !home.starts_with(inputs.root()) && !text.contains([':', ',']) {
            mounts.push(format!("{text}:{text}"));
        }
        declared.extend(home_variables(&text).map(|(name, value)| (name.to_owned(), value)));
    }
    let root = inputs.root().to_string_lossy();
    let is_terminal = std::io::stdin().is_terminal() || args.print;
    let mut words = shell_arguments(engine.kind, vendor, &root, &mounts, is_terminal, &passed);
    // The file goes when this is dropped, after the shell.
    let file = match args.print {
        true => None,
        false => Some(EnvFile::write(&declared)?),
    };
    match &file {
        Some(file) => words.extend(file.arguments()),
        // A secret's value is the reader's own to set.
        None => words.extend(declared.iter().flat_map(|(name, value)| {
            let set = match public_value(name, value) == *value {
                true => format!("{name}={value}"),
                false => name.clone(),
            };
            ["--env".to_owned(), set]
        })),
    }
    let image_file = engine.kind.file_of(&image, inputs.root());
    let place = image_file.as_ref().map(|file| file.display().to_string());
    words.push(place.unwrap_or_else(|| image.clone()));
    match args.command.is_empty() {
        true => words.push("bash".to_owned()),
        false => words.extend(args.command.iter().cloned()),
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if args.print {
        let line = shlex::try_join(std::iter::once(engine.name()).chain(words));
        print(&(line.map_err(|e| Error::failed(e.to_string()))? + "\n"))?;
        return Ok(exit::OK);
    }
    let here = engine.image_digest(inputs.env(), &image, inputs.root(), Digest::of_file);
    let here =
        here.map_err(|why| Error::failed_with(why, "is its service running, and may you use it?"))?;
    if here.is_none() {
        let of = (&*platform, target.framework(), vendor);
        return Err(Error::failed_with(
            format!("{} has no image {image} on this host", engine.name()),
            execution::how_to_get(&image, image_file.as_deref(), of),
        ));
    }
    run_engine(&engine, &words)
}

/// The engine that opens the image; to print the command none has to be here.
fn shell_engine(target: &Target, image: &str, is_printed: bool) -> Result<ContainerEngine> {
    if target.engine == Some(EngineKind::Pyxis) {
        return Err(Error::refused(
            "`container shell` cannot enter a container of pyxis",
            format!("`srun --container-image={image} --pty bash` does, as a job of the cluster"),
        ));
    }
    let found = engine(target.engine, &ENGINES, target.inputs.env());
    found.or_else(|error| match is_printed {
        true => {
            let kind = target.engine.unwrap_or(EngineKind::Docker);
            Ok(ContainerEngine {
                kind,
                program: kind.name().into(),
            })
        }
        false => Err(error),
    })
}

/// What a run in the container would have besides the project, each under its own path: folders to
/// mount, and the variables that name checkouts there.
fn shell_mounts(inputs: &Inputs, recipe: &Recipe) -> (Vec<String>, Vec<(String, String)>) {
    let place = |path: &str| inputs.root().join(path);
    let mut checkouts = Vec::new();
    let mut folders: Vec<(PathBuf, &str)> = Vec::new();
    folders.extend(inputs.env().get("HF_HOME").map(|home| (home.into(), "")));
    folders.push((train_host::lock_dir(inputs.env()), ""));
    for checkout in &recipe.file.require.checkouts {
        let stated = inputs
            .config()
            .get(&checkout.setting)
            .and_then(Value::as_str);
        if let Some(path) = stated.map(place).filter(|path| path.is_dir()) {
            checkouts.push((checkout.variable.clone(), path.display().to_string()));
            folders.push((path, ":ro"));
        }
    }
    for model in inputs.config().settings().models.values() {
        for stated in [&model.dataset_path, &model.tokenizer_path] {
            // A dataset is named by the prefix of its files, a tokenizer by a file, a folder or a
            // name on the hub.
            let folder = stated
                .as_deref()
                .map(place)
                .and_then(|path| match path.is_dir() {
                    true => Some(path),
                    false => Some(path.parent()?.to_owned()),
                });
            folders.extend(folder.map(|folder| (folder, ":ro")));
        }
    }
    let mut covered = vec![inputs.root().to_owned()];
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
fn first_with_image(inputs: &Inputs, vendor: Vendor) -> Result<&str> {
    let recipes = &inputs.recipes.recipes;
    let has = |id: &&str| {
        let recipe = recipes.get(*id);
        recipe.is_some_and(|recipe| recipe.file.image.contains_key(&vendor))
    };
    inputs
        .config()
        .children("frameworks")
        .find(has)
        .ok_or_else(|| {
            Error::refused(
                format!("no recipe has an image for {}", vendor.name()),
                "name one with --framework, or an image with --image",
            )
        })
}

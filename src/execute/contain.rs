//! How a run is put into its container: with which engine, folders, devices and variables.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{error::LaunchError, host::TrainHost, launch::TrainWork};
use crate::{
    error::{Error, Problem, Result},
    files,
    host::{ContainerEngine, EngineKind, engine_environment},
    job::{Job, Vendor},
    plan::{Container, Place, Prepared, Volume},
    run::{
        ContainerSpec, Gpu,
        contained::{has_service, remember, verb},
        container::{Needs, has_these_alone, home_variables},
    },
};

/// The variables of the caller that go into a container; the others (PATH, LANG, …) are about the
/// host.
pub(super) const PASSED: &[&str] = &[
    "TZ",
    "HF_TOKEN",
    "HF_HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// Decides how `work` is put into its container, and completes the variables that it gets there.
pub(super) fn contain(
    work: &TrainWork,
    host: &TrainHost,
    given: &[&Gpu],
    (id, dir): (&str, &Path),
    env: &mut BTreeMap<String, String>,
) -> Result<Option<ContainerSpec>> {
    let Some(container) = &work.execution().container else {
        return Ok(None);
    };
    let engine = engine_for(
        container,
        work.execution().place,
        work.job(),
        &host.caller_env,
    )
    .map_err(LaunchError::NotContained)?;
    // Where the run's folder is: a profiled run's is not among the measured ones.
    let folder = dir.parent().unwrap_or(dir);
    remember(folder, engine.kind)?;
    let home = host.runs.with_file_name(crate::cache::CONTAINER_HOME);
    files::create_dir_all(&home)?;
    let home = text(&home)?;
    env.insert("TPRIMAT_PYTHON".into(), container.python.clone());
    for (name, value) in home_variables(&home) {
        env.insert(name.to_owned(), value);
    }
    // Kept from run to run as on a host, where they are below the user's home.
    let compiled = format!("{home}/.cache/torchinductor");
    env.entry("TORCHINDUCTOR_CACHE_DIR".into())
        .or_insert(compiled);
    if let Some(name) = env.keys().find(|name| !is_variable(name)) {
        let message = format!(
            "the variable `{name}` cannot be set in a container: its name is not one of a shell"
        );
        return Err(LaunchError::NotContained(Problem::new(message)).into());
    }
    let mounts = mounts(work, host, container, &[&home, &text(dir)?], env);
    if engine.kind == EngineKind::Kubernetes {
        // The pod is the container.
        let volumes = &work.execution().volumes;
        return match uncovered(mounts.iter().map(String::as_str), volumes) {
            None => Ok(None),
            Some(problem) => Err(LaunchError::NotContained(problem).into()),
        };
    }
    let gpus: Vec<Gpu> = given.iter().map(|gpu| (*gpu).clone()).collect();
    let (vendor, workdir) = (work.job().vendor, text(dir)?);
    let needs = Needs {
        vendor,
        gpus: Some(&gpus),
        mounts: &mounts,
        workdir: &workdir,
    };
    let image = work.prepared.image.as_ref();
    let image = image.and_then(|image| image.digest.clone().ok());
    let image = image.unwrap_or_else(|| container.image.clone());
    let mut arguments = verb(engine.kind, id, folder);
    arguments.extend(needs.arguments(engine.kind));
    arguments.extend(container.options.iter().cloned());
    arguments.push(match engine.kind {
        // By its digest: the name may mean another image by now.
        EngineKind::Docker | EngineKind::Podman | EngineKind::Kubernetes => image,
        EngineKind::Apptainer => text(&host.project.join(&container.image))?,
        EngineKind::Pyxis => format!("--container-image={}", container.image),
    });
    Ok(Some(ContainerSpec {
        engine: engine.kind,
        program: engine.program,
        arguments,
        environment: engine_environment(&host.caller_env),
    }))
}

/// The engine that starts the container of a run; why it cannot, where that is known before anything
/// runs.
fn engine_for(
    container: &Container,
    place: Place,
    job: &Job,
    env: &BTreeMap<String, String>,
) -> Result<ContainerEngine, Problem> {
    let engine = ContainerEngine::find(container.engine, env).map_err(|why| {
        Problem::new(format!("the run is to be in a container, and {why}"))
            .help("install it, or name another one in execution.<platform>.container.engine")
    })?;
    if place != Place::Local && has_service(engine.kind) && job.vendor != Vendor::Cpu {
        let message = format!(
            "{} starts containers outside its Slurm job, so they would not be held to the job's GPUs",
            engine.name()
        );
        return Err(Problem::new(message)
            .help("name apptainer or pyxis in execution.<platform>.container.engine"));
    }
    let is_there = matches!(engine.kind, EngineKind::Apptainer | EngineKind::Kubernetes);
    if job.parallelism.num_nodes > 1 && !is_there {
        let message = format!(
            "a run on several nodes is not started in containers of {}",
            engine.name()
        );
        return Err(
            Problem::new(message).help("name apptainer in execution.<platform>.container.engine")
        );
    }
    Ok(engine)
}

/// Why the run of a cell cannot be put into its container; `None`: it can, or it has none.
#[must_use]
pub fn preflight_container(prepared: &Prepared, host: &TrainHost) -> Option<Problem> {
    let execution = &prepared.resolved.execution;
    let container = execution.container.as_ref()?;
    let engine = engine_for(container, execution.place, prepared.job(), &host.caller_env);
    if execution.place != Place::Kubernetes {
        return engine.err();
    }
    let own = [&host.project, &host.runs].map(|path| path.display().to_string());
    let tprimat = format!("{}:ro", host.tprimat.display());
    let own = own.iter().chain([&tprimat]).map(String::as_str);
    uncovered(own, &execution.volumes)
}

/// Of what a run reads or writes, what the pods do not see, or cannot write to.
fn uncovered<'a>(mut mounts: impl Iterator<Item = &'a str>, volumes: &[Volume]) -> Option<Problem> {
    let mount = mounts.find(|mount| !is_covered(mount, volumes))?;
    let path = mount.split(':').next().unwrap_or_default();
    let message = format!("no volume of the pods has {path}");
    Some(Problem::new(message).help(
        "name the volume that has it under the same path in execution.<platform>.kubernetes.volumes",
    ))
}

/// Are the GPUs of a run numbered from 0, because its container has these and no others?
pub(super) fn counts_anew(work: &TrainWork, host: &TrainHost, given: &[&Gpu]) -> bool {
    let Some(container) = &work.execution().container else {
        return false;
    };
    let engine = ContainerEngine::find(container.engine, &host.caller_env);
    engine
        .is_ok_and(|engine| has_these_alone(engine.kind, work.job().vendor, given.iter().copied()))
}

/// Folders of the host that the run reads or writes, each under its own path.
fn mounts(
    work: &TrainWork,
    host: &TrainHost,
    container: &Container,
    own: &[&str],
    env: &BTreeMap<String, String>,
) -> Vec<String> {
    let mut writable: Vec<PathBuf> = vec![host.project.clone()];
    writable.extend(own.iter().map(PathBuf::from));
    writable.extend(
        env.get("HF_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute() && path.is_dir()),
    );
    let mut readable: Vec<PathBuf> = work.checkouts().map(|(_, path)| path).collect();
    // A dataset is named by the prefix of its files, a tokenizer by a file or a folder.
    let data = work.data_env().into_values().map(PathBuf::from);
    readable.extend(data.filter_map(|path| match path.is_absolute() {
        true if path.is_dir() => Some(path),
        true => Some(path.parent()?.to_owned()),
        false => None,
    }));
    let native = host.native.iter().filter(|_| work.needs_native());
    readable.extend(native.filter_map(|path| Some(path.parent()?.to_owned())));
    let mut mounts: Vec<String> = Vec::new();
    let mut covered: Vec<PathBuf> = Vec::new();
    writable.sort();
    readable.sort();
    let named = |path: &Path, ending: &str| format!("{0}:{0}{ending}", path.display());
    for (paths, ending) in [(&writable, ""), (&readable, ":ro")] {
        for path in paths {
            if !covered.iter().any(|known| path.starts_with(known)) {
                mounts.push(named(path, ending));
                covered.push(path.clone());
            }
        }
    }
    mounts.extend(
        container
            .mounts
            .iter()
            .map(|mount| match mount.contains(':') {
                true => mount.clone(),
                false => format!("{mount}:{mount}"),
            }),
    );
    mounts
}

/// Do the pods see a folder, and can they write to it where they have to?
fn is_covered(mount: &str, volumes: &[Volume]) -> bool {
    let path = mount.split(':').next().unwrap_or_default();
    let is_read = mount.ends_with(":ro");
    volumes.iter().any(|volume| {
        Path::new(path).starts_with(&volume.path) && (is_read || !volume.is_read_only)
    })
}

fn text(path: &Path) -> Result<String> {
    let unfit = |why: &str| {
        let message = format!(
            "the path {} {why}, so it cannot be mounted into a container",
            path.display()
        );
        Error::from(LaunchError::NotContained(Problem::new(message)))
    };
    let text = path.to_str().ok_or_else(|| unfit("is not UTF-8"))?;
    if text.contains([':', ',']) {
        Err(unfit("has a colon or a comma"))
    } else {
        Ok(text.to_owned())
    }
}

fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock;

    #[test]
    fn names_that_a_shell_would_not_set_are_told() {
        for (name, is_one) in [
            ("A", true),
            ("_a1", true),
            ("1A", false),
            ("A-B", false),
            ("", false),
            ("A B", false),
        ] {
            assert_eq!(is_variable(name), is_one, "{name}");
        }
    }

    #[test]
    fn an_engine_that_cannot_hold_a_run_to_its_job_is_named_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["docker", "apptainer", "srun"] {
            mock::program(&folder.path().join(name), "#!/bin/sh\n");
        }
        let env = BTreeMap::from([("PATH".to_owned(), folder.path().display().to_string())]);
        let why = |engine, place, vendor, nodes| {
            let container = Container {
                engine: Some(engine),
                image: "image".into(),
                python: "python3".into(),
                mounts: Vec::new(),
                options: Vec::new(),
            };
            let mut job = Job {
                vendor,
                ..Job::default()
            };
            job.parallelism.num_nodes = nodes;
            engine_for(&container, place, &job, &env)
                .err()
                .map(|problem| problem.message)
        };
        let (docker, pyxis) = (EngineKind::Docker, EngineKind::Pyxis);
        let outside = why(docker, Place::Slurm, Vendor::Nvd, 1).unwrap();
        assert!(outside.contains("outside its Slurm job"), "{outside}");
        assert_eq!(why(docker, Place::Local, Vendor::Nvd, 1), None);
        assert_eq!(why(docker, Place::Slurm, Vendor::Cpu, 1), None);
        assert_eq!(why(pyxis, Place::Slurm, Vendor::Nvd, 1), None);
        let nodes = why(pyxis, Place::Slurm, Vendor::Nvd, 2).unwrap();
        assert!(nodes.contains("containers of pyxis"), "{nodes}");
        assert_eq!(
            why(EngineKind::Apptainer, Place::Slurm, Vendor::Nvd, 2),
            None
        );
        let absent = why(EngineKind::Podman, Place::Slurm, Vendor::Cpu, 1).unwrap();
        assert!(absent.contains("there is no podman in PATH"), "{absent}");
    }
}

//! What one run is started with: its folder, its environment, its devices.

use std::{collections::BTreeMap, path::Path};

use super::{
    contain::{self, contain},
    host::TrainHost,
    imports,
    launch::{TrainWork, job_json},
    manifest::{Named, manifest},
};
use crate::{
    digest::Digest,
    error::{Error, Result},
    files::{self, Durability, write_atomically},
    job::Vendor,
    plan::Place,
    recipe::COMMAND,
    run::{
        kubernetes,
        spec::{Gpu, Hang, JobSpec, RunSpec, Target},
    },
    secrets::Secrets,
};

/// The folder of the recipe's own files, in the run's.
const RECIPE: &str = "recipe";
/// Tells a trainer where the project is that runs it.
pub const PROJECT_DIR: &str = "TPRIMAT_PROJECT_DIR";
/// The job in full, in the run's folder.
const JOB: &str = "job.json";

/// Variables that every child gets from the caller; their values are in no key.
const PASSED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "HF_TOKEN",
    "HF_HOME",
    "XDG_CACHE_HOME",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// Families of variables that change what trainers do, or without which they do not start. They are
/// never passed on by accident, and what was set is reported. `PYTHONUNBUFFERED` and its like change
/// nothing.
const DROPPED: &[&str] = &[
    "NCCL_",
    "RCCL_",
    "CUDA_",
    "CUBLAS",
    "CUDNN_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "PYTORCH_",
    "TORCH",
    "TRITON_",
    "NVTE_",
    "DS_",
    "OMP_",
    "MKL_",
    "LD_",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "TOKENIZERS_",
    "TRANSFORMERS_",
    "HF_",
    "WANDB_",
    "MLFLOW_",
];

/// Which variables of the caller change trainers and are not passed on.
#[must_use]
pub fn dropped_env(caller: &BTreeMap<String, String>) -> Vec<&str> {
    caller
        .keys()
        .map(String::as_str)
        .filter(|name| DROPPED.iter().any(|family| name.starts_with(family)))
        .filter(|name| !PASSED.contains(name))
        .collect()
}

/// Makes the run's folder, and says what is to be run in it.
pub(super) fn prepare(work: &TrainWork, host: &TrainHost, id: &str, dir: &Path) -> Result<RunSpec> {
    write_files(work, dir)?;
    let given = work.devices.iter().filter_map(|i| host.gpus.get(*i));
    let given: Vec<&Gpu> = given.collect();
    let (resolved, vendor) = (&work.prepared.resolved, work.job().vendor);
    let command = &work.recipe.file.launch.command;
    let mut env = environment(work, host, dir, &given)?;
    imports::watch(work, host, dir, &mut env)?;
    let devices = match vendor {
        Vendor::Cpu => vec!["cpu".to_owned()],
        _ => given.iter().map(|gpu| gpu.lock.clone()).collect(),
    };
    let container = contain(work, host, &given, (id, dir), &mut env)?;
    Secrets::note(&env, dir)?;
    Ok(RunSpec {
        job: match resolved.execution.place {
            Place::Local => None,
            Place::Kubernetes => Some(JobSpec {
                kubernetes: Some(target(work, host, id, dir)?),
                ..job_spec(work)
            }),
            Place::Slurm | Place::Allocation => Some(job_spec(work)),
        },
        run_id: id.to_owned(),
        dir: dir.to_owned(),
        argv: match &resolved.execution.container {
            None => command.clone(),
            Some(_) => imports::in_container(command),
        },
        env,
        cwd: dir.to_owned(),
        timeout_seconds: resolved.timeout_seconds,
        hang: resolved.hang.map(|(factor, least_seconds)| Hang {
            factor,
            least_seconds,
            steps: work.job().train_iters,
            log: work.recipe.file.log.clone(),
        }),
        grace_seconds: host.grace_seconds,
        devices,
        sampled: Some(vendor),
        exclusive: is_alone_on_devices(resolved.share, vendor),
        lock_dir: host.lock_dir.clone(),
        watched: Vec::new(),
        meta: serde_json::to_value(&work.measurement)
            .map_err(|why| Error::Internal(format!("cannot write JSON: {why}")))?,
        container,
    })
}

/// The launch files, the recipe's own, and the job, where the recipe reads it.
fn write_files(work: &TrainWork, dir: &Path) -> Result<()> {
    for (name, bytes) in &work.launch_files {
        write_atomically(&dir.join(name), bytes, Durability::Plain)?;
    }
    let recipe_dir = dir.join(RECIPE);
    files::create_dir_all(&recipe_dir)?;
    for (name, bytes, _) in work.recipe.files_of_run(work.job().vendor) {
        write_atomically(&recipe_dir.join(name), bytes, Durability::Plain)?;
    }
    if work.recipe.file.launch.reads_job {
        write_atomically(&dir.join(JOB), &job_json(work.job()), Durability::Plain)?;
    }
    Ok(())
}

/// All that the trainer's environment has.
fn environment(
    work: &TrainWork,
    host: &TrainHost,
    dir: &Path,
    given: &[&Gpu],
) -> Result<BTreeMap<String, String>> {
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    // A script's lines are dated as they come, which is what their step times are checked against. It
    // changes no result, so no key has it; a recipe's or the project's own value is stronger.
    env.insert("PYTHONUNBUFFERED".into(), "1".into());
    // A container has a PATH and a language of its own.
    let passed = match work.execution().container {
        Some(_) => contain::PASSED,
        None => PASSED,
    };
    let of_recipe = work.recipe.file.launch.pass_env.iter().map(String::as_str);
    for name in passed.iter().copied().chain(of_recipe) {
        if let Some(value) = host.caller_env.get(name) {
            env.insert(name.to_owned(), value.clone());
        }
    }
    env.extend(work.prepared.resolved.env.clone());
    env.extend(work.data_env());
    let mut set = |name: &str, value: String| drop(env.insert(name.to_owned(), value));
    set("TPRIMAT_RUN_DIR", path_text(dir)?);
    set("TPRIMAT_RECIPE_DIR", path_text(&dir.join(RECIPE))?);
    set(PROJECT_DIR, path_text(&host.project)?);
    let python = work.plan.facts.python(&work.recipe.file.id);
    set("TPRIMAT_PYTHON", path_text(python)?);
    // `python3` and `torchrun` of a command are those of the Python that keys and the lock speak of, unless
    // the project sets a PATH of its own.
    let folder = python.parent().filter(|folder| folder.is_absolute());
    let is_command = work.recipe.file.launch.has_option(COMMAND);
    let is_own = work.prepared.resolved.env.contains_key("PATH");
    if let (Some(folder), true, false, None) =
        (folder, is_command, is_own, &work.execution().container)
    {
        let folder = path_text(folder)?;
        let path = match env.get("PATH") {
            Some(path) => format!("{folder}:{path}"),
            None => folder,
        };
        env.insert("PATH".into(), path);
    }
    let mut set = |name: &str, value: String| drop(env.insert(name.to_owned(), value));
    if let Some(native) = &host.native {
        set("TPRIMAT_NATIVE", path_text(native)?);
    }
    for (variable, path) in work.checkouts() {
        set(&variable, path_text(&path)?);
    }
    if work.recipe.file.launch.reads_job {
        set("TPRIMAT_JOB", path_text(&dir.join(JOB))?);
    }
    // Inside a container that was given these devices and no others, they are counted anew.
    let is_renumbered = contain::counts_anew(work, host, given);
    let ids: Vec<String> = given
        .iter()
        .enumerate()
        .map(|(position, gpu)| if is_renumbered { position } else { gpu.index }.to_string())
        .collect();
    match work.job().vendor {
        Vendor::Cpu => {}
        Vendor::Nvd => {
            set("CUDA_VISIBLE_DEVICES", ids.join(","));
            // As NVML counts, where the ids are from; CUDA's own order begins with the fastest
            // device.
            set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
        }
        Vendor::Amd => set("HIP_VISIBLE_DEVICES", ids.join(",")),
    }
    Ok(env)
}

/// What a batch system and the node that it chooses must know.
fn job_spec(work: &TrainWork) -> JobSpec {
    let (prepared, shape) = (work.prepared, &work.job().parallelism);
    let python = match &prepared.python {
        Some(python) => &python.interpreter,
        None => work.plan.facts.python(&work.recipe.file.id),
    };
    JobSpec {
        vendor: work.job().vendor,
        num_gpus: (shape.num_gpus / shape.num_nodes.max(1)) as usize,
        nodes: shape.num_nodes as usize,
        ranks: work.recipe.file.launch.nodes,
        is_step: work.execution().place == Place::Allocation,
        facts: prepared.facts.section.clone(),
        packages: work.packages(),
        python: python.to_owned(),
        settings: work.execution().slurm.clone(),
        kubernetes: None,
    }
}

/// Runs that share a host have GPUs of their own: a second tprimat that shares as well must not give
/// one of them away again. On a CPU sharing is what was asked for.
fn is_alone_on_devices(shares_host: bool, vendor: Vendor) -> bool {
    !shares_host || vendor != Vendor::Cpu
}

/// Where the Job of a run is made, and as what.
pub(super) fn target(work: &TrainWork, host: &TrainHost, id: &str, dir: &Path) -> Result<Target> {
    let settings = &work.execution().kubernetes;
    let owner = kubernetes::owner(&host.runs)?;
    let named = Named {
        project: &host.project,
        run_id: id,
        dir: &path_text(dir)?,
        owner: &owner,
        tprimat: &path_text(&host.tprimat)?,
        grace_seconds: host.grace_seconds,
        timeout_seconds: work.prepared.resolved.timeout_seconds,
    };
    let manifest = manifest(work.execution(), work.job(), &named)?;
    Ok(Target {
        context: settings.context.clone(),
        namespace: settings.namespace.clone(),
        cancel_on_interrupt: settings.cancel_on_interrupt == Some(true),
        asked: Some(Digest::of(&manifest.bytes)),
        manifest: String::from_utf8_lossy(&manifest.bytes).into_owned(),
        owner,
    })
}

fn path_text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Error::failed(format!(
            "the path {} is not UTF-8, so no script can be told of it",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gpu_is_held_twice_whether_the_host_is_shared_or_not() {
        for vendor in [Vendor::Nvd, Vendor::Amd] {
            assert!([false, true].map(|share| is_alone_on_devices(share, vendor)) == [true; 2]);
        }
        assert!(is_alone_on_devices(false, Vendor::Cpu) && !is_alone_on_devices(true, Vendor::Cpu));
    }
}

//! The job's side: what the supervisor does on its node before it starts the run.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use super::{claim_path, environment_path, noted};
use crate::{
    error::{Error, Result},
    files,
    host::{self, HostFacts},
    job::Vendor,
    run::{
        end_note::exit_or_end,
        folder::read_spec_with,
        spec::{JobSpec, RunSpec},
    },
};

/// Is this process within the job that has the run of a folder?
pub(crate) fn is_of_this_job(dir: &Path) -> bool {
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    matches!(noted(&claim_path(dir)), Ok(Some(claimed)) if claimed == job)
}

/// Takes the run of a folder; false: somebody else has it already. Whoever makes this file is the
/// only one who may start the run.
pub(crate) fn take(dir: &Path, who: &str) -> Result<bool> {
    let path = claim_path(dir);
    // Written before it has its name: a claim that does not say whose it is would be nobody's for
    // ever.
    let claim = || -> io::Result<()> {
        let mut claim = tempfile::Builder::new().prefix(".tmp-").tempfile_in(dir)?;
        claim.write_all(who.as_bytes())?;
        claim.persist_noclobber(&path)?;
        Ok(())
    };
    match claim() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::io("cannot make", path)(error)),
    }
}

/// What a job does before its run may start: it takes the run for itself, and completes the spec
/// with what only the node knows. `None`: another job has it.
pub(crate) fn claim(dir: &Path) -> Result<Option<RunSpec>> {
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    if !take(dir, &job)? {
        // A controller that lost its last state starts a job that has run already. Where that start
        // was cut off, this one must not end well: Slurm would say so of the run.
        let is_again = noted(&claim_path(dir))?.is_some_and(|claimed| claimed == job);
        if is_again && exit_or_end(dir)?.is_none() {
            return Err(Error::failed(format!(
                "Slurm started job {job} a second time; its first start left no record of the run's end, and no run is made twice"
            )));
        }
        return Ok(None);
    }
    let path = environment_path(dir);
    let env = serde_json::from_slice(&files::read(&path)?).map_err(|e| Error::Io {
        what: "cannot read",
        path: path.clone(),
        source: e.into(),
    })?;
    let _ = fs::remove_file(&path);
    read_spec_with(dir, env).map(Some)
}

/// Gives a run the devices that Slurm gave its job, and answers with what a person should know of
/// the node; in words why the run cannot be started here.
pub(crate) fn settle_in(spec: &mut RunSpec) -> Result<Option<String>, String> {
    let Some(job) = spec.job.clone() else {
        return Ok(None);
    };
    let node = host::probe();
    let name = node.hostname.clone().unwrap_or_else(|| "this node".into());
    let differences = differences(spec, &job, &node, &name)?;
    if !differences.is_empty() {
        return Err(format!(
            "{name} differs from tprimat.lock (with --allow-drift: from the host that planned the run), so nothing was run on it: {}",
            differences.join("; ")
        ));
    }
    if job.vendor != Vendor::Cpu {
        take_devices(spec, &job, &node, &name)?;
    }
    Ok(few_cores(&job, &node, &name))
}

/// Where the node is another one than the run's key says, a sentence each.
fn differences(
    spec: &RunSpec,
    job: &JobSpec,
    node: &HostFacts,
    name: &str,
) -> Result<Vec<String>, String> {
    let Some(found) = node.section(job.vendor) else {
        return Err(format!(
            "{name} has no device of the platform; execution.<platform>.slurm chooses the nodes"
        ));
    };
    let told = |fact: &str, here: Option<String>, locked: &str| {
        format!(
            "{fact} is {}, locked is {locked}",
            here.unwrap_or_else(|| "not there".into())
        )
    };
    // A job sees those GPUs only that it was given.
    let facts = job
        .facts
        .iter()
        .filter(|(fact, locked)| *fact != "count" && found.facts.get(*fact) != Some(locked));
    let mut differences: Vec<String> = facts
        .map(|(fact, locked)| {
            told(
                fact,
                found.facts.get(fact).map(ToString::to_string),
                &locked.to_string(),
            )
        })
        .collect();
    let names: Vec<&str> = job.packages.keys().map(String::as_str).collect();
    let installed = host::python_packages(&job.python, &spec.env, &names)
        .map_err(|e| format!("{name}: {e}"))?;
    for (package, locked) in &job.packages {
        let here = installed.get(package).cloned().flatten();
        if here.as_ref() != Some(locked) {
            differences.push(told(&format!("package {package}"), here, locked));
        }
    }
    Ok(differences)
}

fn take_devices(
    spec: &mut RunSpec,
    job: &JobSpec,
    node: &HostFacts,
    name: &str,
) -> Result<(), String> {
    let variable = |name: &str| std::env::var(name).ok();
    let mut given = node.usable(job.vendor, &variable);
    if given.len() < job.num_gpus {
        return Err(format!(
            "Slurm gave the job {} GPUs on {name}, the run needs {}",
            given.len(),
            job.num_gpus
        ));
    }
    given.truncate(job.num_gpus);
    let locks = node.device_locks(job.vendor);
    spec.devices = given
        .iter()
        .filter_map(|index| locks.get(*index).cloned())
        .collect();
    let ids: Vec<String> = given.iter().map(ToString::to_string).collect();
    // The run is told in the variable that Slurm used, and in no other: a second one would count
    // among the devices that the first one leaves.
    let known = host::visibility(job.vendor);
    let is_set = |name: &&&str| variable(name).is_some();
    let variable = known.iter().find(is_set).or(known.last()).unwrap_or(&"");
    known.iter().for_each(|other| drop(spec.env.remove(*other)));
    spec.env.insert((*variable).to_owned(), ids.join(","));
    Ok(())
}

/// Slurm gives a job one core where nobody asks for more, and a training with its loaders needs
/// many.
fn few_cores(job: &JobSpec, node: &HostFacts, name: &str) -> Option<String> {
    // The cores of a CPU platform are a fact, which is compared.
    let all = host_cores().filter(|_| job.vendor != Vendor::Cpu)?;
    // As the key has it: where Slurm hides the other devices, this process sees the job's own only.
    let gpus = job
        .facts
        .get("count")
        .and_then(|count| count.to_string().parse::<u64>().ok())?;
    let given = node.cpu.cores?;
    let share = all * (job.num_gpus.max(1) as u64).min(gpus) / gpus.max(1);
    (given * 2 < share).then(|| {
        format!(
            "the job had {given} of the {all} cores of {name}, whose share for {} of {gpus} devices would be {share}: \
             slurm.cpus or slurm.exclusive asks for more",
            job.num_gpus.max(1)
        )
    })
}

/// All that the host has, whatever this process may use of them.
fn host_cores() -> Option<u64> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let range = |part: &str| -> Option<u64> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    text.trim().split(',').map(range).sum()
}

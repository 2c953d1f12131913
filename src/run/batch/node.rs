//! The job's side: what the supervisor does on its node before it starts the run.

use std::fs;

use crate::{
    host::{self, HostFacts},
    job::Vendor,
    run::spec::{JobSpec, RunSpec},
};

/// Gives a run the devices that the system gave its job, and answers with what a person should know of
/// the node; in words why the run cannot be started here.
pub(crate) fn settle_in(spec: &mut RunSpec) -> Result<Option<String>, String> {
    let Some(job) = spec.job.clone() else {
        return Ok(None);
    };
    let node = host::probe();
    let name = node.hostname.clone().unwrap_or_else(|| "this node".into());
    let Some(found) = node.section(job.vendor) else {
        return Err(format!(
            "{name} has no device of the platform; execution.<platform> chooses the nodes"
        ));
    };
    let mut differences = Vec::new();
    let mut compare = |fact: &str, here: Option<String>, locked: String| {
        if here.as_ref() != Some(&locked) {
            let here = here.unwrap_or_else(|| "not there".into());
            differences.push(format!("{fact} is {here}, locked is {locked}"));
        }
    };
    // A job sees those GPUs only that it was given.
    for (fact, locked) in job.facts.iter().filter(|(fact, _)| *fact != "count") {
        let here = found.facts.get(fact).map(ToString::to_string);
        compare(fact, here, locked.to_string());
    }
    let names: Vec<&str> = job.packages.keys().map(String::as_str).collect();
    let installed = host::python_packages(&job.python, &spec.env, &names);
    let installed = installed.map_err(|e| format!("{name}: {e}"))?;
    for (package, locked) in &job.packages {
        let here = installed.get(package).cloned().flatten();
        compare(&format!("package {package}"), here, locked.clone());
    }
    if !differences.is_empty() {
        return Err(format!(
            "{name} differs from tprimat.lock (with --allow-drift: from the host that planned the run), so nothing was run on it: {}",
            differences.join("; ")
        ));
    }
    if job.vendor != Vendor::Cpu {
        take_devices(spec, &job, &node).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(few_cores(&job, &node, &name))
}

fn take_devices(spec: &mut RunSpec, job: &JobSpec, node: &HostFacts) -> Result<(), String> {
    let variable = |name: &str| std::env::var(name).ok();
    let mut given = node.usable(job.vendor, &variable);
    if given.len() < job.num_gpus {
        return Err(format!(
            "the job was given {} GPUs, the run needs {}",
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
    // The run is told in the variable that the system used, and in no other: a second one would count
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
    let gpus: u64 = job.facts.get("count")?.to_string().parse().ok()?;
    let given = node.cpu.cores?;
    let share = all * (job.num_gpus.max(1) as u64).min(gpus) / gpus.max(1);
    (given * 2 < share).then(|| {
        format!(
            "the job had {given} of the {all} cores of {name}, whose share for {} of {gpus} devices would be {share}: \
             slurm.cpus, slurm.exclusive or kubernetes.cpus asks for more",
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

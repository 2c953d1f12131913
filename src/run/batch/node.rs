//! The job's side: what the supervisor does on its node before it starts the run.

use crate::{
    host::{self, HostFacts},
    job::Vendor,
    run::spec::{JobSpec, RunSpec},
};

/// Gives a run the devices that the system gave its job; in words why the run cannot be started here.
pub(crate) fn settle_in(spec: &mut RunSpec) -> Result<(), String> {
    let Some(job) = spec.job.clone() else {
        return Ok(());
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
    Ok(())
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

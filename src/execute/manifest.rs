//! The manifest of a run's Job, or of those of its nodes, from templates/kubernetes.yaml.j2 of the project or of tprimat.

use std::path::Path;

use minijinja::context;
use serde_json::Value;

use crate::{
    error::{Error, Problem, Result, Source},
    files,
    job::Job,
    plan::Execution,
    recipe::{Rendered, Templates},
    run::{
        RUN_ARGUMENT,
        kubernetes::{OWNER_LABEL, RUN_LABEL, name_of, role_of},
    },
    shipped::shipped_file,
};

const TEMPLATE: &str = "templates/kubernetes.yaml.j2";
/// How long beyond the run's own timeout its pod may last, in seconds: an image of 20 GB is pulled
/// within that time.
const SLACK: f64 = 3600.0;
/// How long the supervisor may take beyond the trainer's grace to record the end, in seconds.
const RECORD: f64 = 30.0;

/// Which run a Job is of, and what its pod executes.
pub struct Named<'a> {
    pub project: &'a Path,
    pub run_id: &'a str,
    pub dir: &'a str,
    pub owner: &'a str,
    pub tprimat: &'a str,
    pub grace_seconds: f64,
    pub timeout_seconds: Option<f64>,
}

/// An error where the template refuses, or drops what makes a run findable and single.
pub fn manifest(execution: &Execution, job: &Job, named: &Named) -> Result<Rendered> {
    let own = files::read(&named.project.join(TEMPLATE)).ok();
    let text = own.as_deref().or_else(|| shipped_file(TEMPLATE));
    let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
    let source = Source::new(TEMPLATE, text);
    let mut templates = Templates::default();
    templates.add("kubernetes.yaml.j2", source)?;
    let resource = execution.kubernetes.resource_of(job.vendor);
    let deadline = named
        .timeout_seconds
        .map(|seconds| (seconds + SLACK).ceil() as u64);
    let nodes = job.parallelism.num_nodes.max(1) as usize;
    let render = |node: usize| -> Result<Rendered> {
        let settings = context! {
            name => name_of(named.run_id, node),
            secret => name_of(named.run_id, 0),
            nodes,
            run => named.run_id.to_owned(),
            owner => named.owner.to_owned(),
            dir => named.dir.to_owned(),
            command => [named.tprimat, RUN_ARGUMENT, named.dir, &role_of(node)].map(str::to_owned),
            image => execution.container.as_ref().map(|container| container.image.clone()),
            gpus => resource.as_ref().map(|_| job.parallelism.num_gpus / nodes as u64),
            resource => resource.clone(),
            uid => nix::unistd::geteuid().as_raw(),
            gid => nix::unistd::getegid().as_raw(),
            grace => (named.grace_seconds + RECORD).ceil() as u64,
            deadline,
            kubernetes => minijinja::value::Serde(&execution.kubernetes),
            volumes => minijinja::value::Serde(&execution.volumes),
        };
        let rendered = templates.render("kubernetes.yaml.j2", &settings)?;
        check(&rendered, named, node)?;
        Ok(rendered)
    };
    let mut all = render(nodes - 1)?;
    // The Job of node 0 is made last: where it is there, all have been made.
    for node in (0..nodes - 1).rev() {
        all.bytes.extend_from_slice(b"\n---\n");
        all.bytes.extend(render(node)?.bytes);
    }
    Ok(all)
}

/// Has it what no template may leave out?
fn check(rendered: &Rendered, named: &Named, node: usize) -> Result<()> {
    let refused = |why: String| Error::invalid(Problem::new(format!("{TEMPLATE}: {why}")));
    let job: Value = serde_yaml::from_slice(&rendered.bytes)
        .map_err(|why| refused(format!("it makes what is not one YAML document: {why}")))?;
    let (name, pod) = (name_of(named.run_id, node), "/spec/template");
    let kept = [
        ("/kind".to_owned(), "Job".into()),
        ("/metadata/name".to_owned(), Value::from(name)),
        ("/spec/backoffLimit".to_owned(), 0.into()),
        (format!("{pod}/spec/restartPolicy"), "Never".into()),
    ];
    let labels = ["", pod].into_iter().flat_map(|of| {
        let path = |label: &str| format!("{of}/metadata/labels/{}", label.replace('/', "~1"));
        [
            (path(RUN_LABEL), Value::from(named.run_id)),
            (path(OWNER_LABEL), Value::from(named.owner)),
        ]
    });
    for (path, value) in kept.into_iter().chain(labels) {
        if job.pointer(&path) != Some(&value) {
            let place = path.replace("~1", "/").replace('/', ".");
            return Err(refused(format!(
                "{} has to be {value}, or a run could be made twice or not be found again",
                place.trim_start_matches('.')
            )));
        }
    }
    Ok(())
}

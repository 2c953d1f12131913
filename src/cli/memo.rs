//! The memo of a build that left nothing to do, or of a plan that found nothing to do: saying so
//! again is then a few comparisons.
//!
//! It holds the evidence of the plan (every file, folder and absence, as they were when the plan
//! read them), the cache's fingerprint, and every published file. If all of that still stands, so
//! does the verdict: what the build said, or what the plan showed. It is disposable: any doubt, and the plan is made anew.

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{args::BuildArgs, detached, flags::Overrides, remote, session::Project};
use crate::{
    cache::{Cache, Output, TaskKind},
    config::Config,
    digest::Digest,
    files::{Evidence, Known, Standing},
    graph::{BUILD, Engine, State, Statuses},
    plan::PlanRequest,
    publish,
    words::secret::is_secret,
};

/// Variables that change from shell to shell, and the folder of a detached build, which builds the
/// same. A project that reads one of them names it in config.yaml, and there the memo covers it.
const IDLE_VARIABLES: &[&str] = &[
    "_",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "COLUMNS",
    "LINES",
    "TERM",
    "SSH_TTY",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "WINDOWID",
    detached::FOLDER,
];

#[derive(Serialize, Deserialize)]
struct Memo {
    cache: Digest,
    evidence: Evidence,
    /// Variables that config.yaml names, and digests of what they held.
    variables: BTreeMap<String, Digest>,
    /// The keys of the plan's runs, for which the remote cache is asked.
    keys: BTreeSet<Digest>,
    verdict: Value,
}

/// A build or a plan with nothing to do, as far as this host knows.
pub struct Idle {
    pub config: Config,
    pub cache: Cache,
    pub keys: BTreeSet<Digest>,
    pub verdict: Value,
}

/// What the memo is filed under: the binary, the request, what was asked of it, the caller's
/// environment without its secrets, which are hashed nowhere.
fn name(request: &PlanRequest, asked: &str) -> Digest {
    let env: BTreeMap<_, _> = request
        .env
        .iter()
        .filter(|(name, _)| !IDLE_VARIABLES.contains(&name.as_str()) && !is_secret(name))
        .collect();
    let PlanRequest {
        root,
        directory,
        matrix,
        sets,
        selection,
        repeats,
        allow_drift,
        executor,
        ..
    } = request;
    // A matrix may be named from the current folder.
    let folder = matrix.as_ref().and_then(|_| std::env::current_dir().ok());
    Digest::of(format!(
        "{BUILD} {root:?} {directory:?} {matrix:?} {sets:?} {selection:?} {repeats:?} {allow_drift} {executor:?} {asked} {folder:?} {env:?}"
    ))
}

pub fn of_build(request: &PlanRequest, args: &BuildArgs) -> Digest {
    let asked = (
        args.cached_only,
        args.require_complete,
        args.overrides.retry_failed,
    );
    name(request, &format!("{asked:?}"))
}

/// The name of the memo of a plan that is shown cell by cell.
pub fn of_plan(request: &PlanRequest, overrides: &Overrides) -> Digest {
    let asked = (overrides.retry_failed, overrides.force);
    name(request, &format!("plan {asked:?}"))
}

/// The verdict that was filed under this name, if nothing that it depends on has changed.
pub fn nothing_to_do(request: &PlanRequest, name: &Digest) -> Option<Idle> {
    // The config alone: the plan is what a memo spares.
    let project = Project::of(request.clone()).ok()?;
    let cache = project.cache().ok()?;
    // What a killed build left must be swept, and only the whole path does that.
    if std::fs::read_dir(cache.root().join("runs")).is_ok_and(|runs| {
        runs.flatten()
            .any(|r| !r.file_name().to_string_lossy().starts_with('.'))
    }) {
        return None;
    }
    let mut memo: Memo = serde_json::from_slice(&cache.load_memo(name)?).ok()?;
    if memo.cache != cache.fingerprint()
        || memo
            .variables
            .iter()
            .any(|(name, was)| digest_of(request, name) != *was)
    {
        return None;
    }
    match memo.evidence.check() {
        Standing::Changed(_) => None,
        Standing::Holds { renewed } => {
            if renewed {
                // What a build has just written is too young to be trusted by its stamp; from now
                // on it is.
                write(&cache, name, &memo);
            }
            Some(Idle {
                config: project.config,
                cache,
                keys: memo.keys,
                verdict: memo.verdict,
            })
        }
    }
}

/// Are the objects still there by which tasks are fresh?
fn are_outputs_there(engine: &Engine, statuses: &Statuses) -> bool {
    engine.dag.order.par_iter().all(|node| {
        let status = statuses.get(*node);
        // What a run left counts by its log and its result, and its result is a task's too.
        status.state != State::Fresh
            || status.attempt().is_some()
            || status.outputs().iter().all(|o| engine.cache.has(&o.digest))
    })
}

/// A memo that cannot be written costs time, nothing else.
fn write(cache: &Cache, name: &Digest, memo: &Memo) {
    if let Ok(bytes) = serde_json::to_vec(memo) {
        let _ = cache.store_memo(name, &bytes);
    }
}

fn digest_of(request: &PlanRequest, variable: &str) -> Digest {
    Digest::of(format!("{:?}", request.env.get(variable)))
}

/// Files a memo, if all that the verdict rests on can be named.
pub fn store(
    engine: &Engine,
    statuses: &Statuses,
    request: &PlanRequest,
    name: &Digest,
    verdict: &Value,
) {
    let plan = engine.plan;
    // Facts that were probed can change with no file changing. A secret is hashed nowhere.
    if !plan.facts.are_all_locked() || plan.config.variables().iter().any(|name| is_secret(name)) {
        return;
    }
    let Ok(mut evidence) = plan.reads.evidence() else {
        return;
    };
    let output = publish::output_dir(plan);
    let report = statuses.get(engine.dag.over_all(TaskKind::Report));
    let published = |published: &Output| {
        let path = output.join(&published.name);
        let known = Known::of(&path).ok();
        let known = known.filter(|known| known.digest == published.digest)?;
        Some((path, known))
    };
    // Thousands of cells have a file each.
    let Some(known) = report
        .outputs()
        .par_iter()
        .map(published)
        .collect::<Option<Vec<_>>>()
    else {
        return;
    };
    for (path, known) in known {
        evidence.add(path, known);
    }
    let variables = plan
        .config
        .variables()
        .iter()
        .map(|name| (name.clone(), digest_of(request, name)))
        .collect();
    let cache = engine.cache.fingerprint();
    // Somebody may have set an attempt aside after the verdict on it was made.
    if engine.cache.has_heard_of_others() {
        return;
    }
    // An object that went after the verdict was made is missing from the fingerprint too.
    if !are_outputs_there(engine, statuses) {
        return;
    }
    write(
        engine.cache,
        name,
        &Memo {
            cache,
            evidence,
            variables,
            keys: remote::train_keys(engine, statuses),
            verdict: verdict.clone(),
        },
    );
}

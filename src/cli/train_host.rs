//! This host as runs see it: its GPUs, the folder of their locks, the native trainer.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use super::session::Session;
use crate::{
    error::{Error, Result},
    execute::{self, TrainHost},
    job::Vendor,
    plan::Plan,
    run::{self, Gpu},
};

/// Between SIGTERM and SIGKILL.
pub(super) const GRACE_SECONDS: f64 = 10.0;

pub(super) fn train_host(session: &Session) -> Result<TrainHost> {
    let Session {
        request,
        plan,
        cache,
        ..
    } = session;
    let tprimat =
        std::env::current_exe().map_err(Error::io("cannot find", "the tprimat binary"))?;
    let facts = plan.facts.host();
    let vendor = facts
        .platforms()
        .into_iter()
        .map(|(v, _)| v)
        .find(|v| *v != Vendor::Cpu);
    Ok(TrainHost {
        project: plan.root.clone(),
        runs: cache.root().join("runs"),
        lock_dir: lock_dir(&request.env),
        native: find_native(&tprimat, &request.env),
        native_seen: OnceLock::new(),
        hostname: facts.hostname.clone().unwrap_or_default(),
        caller_env: request.env.clone(),
        grace_seconds: GRACE_SECONDS,
        gpus: vendor.map(|v| gpus(plan, v)).unwrap_or_default(),
        systems: run::Systems {
            slurm: run::Slurm::new(request.env.clone()),
            kubernetes: run::Kubernetes::new(request.env.clone()),
        },
        folders: execute::Folders::default(),
        sharing: None,
        tprimat,
    })
}

/// The GPUs that runs may be given.
fn gpus(plan: &Plan, vendor: Vendor) -> Vec<Gpu> {
    let host = plan.facts.host();
    let (locks, found) = (
        host.device_locks(vendor),
        if vendor == Vendor::Amd {
            &host.amd
        } else {
            &host.nvd
        },
    );
    let gpu = |index: usize| {
        let facts = found.get(index)?;
        let (uuid, render_node) = (facts.uuid.clone(), facts.render_node.clone());
        Some(Gpu {
            index,
            lock: locks.get(index)?.clone(),
            uuid,
            render_node,
        })
    };
    plan.facts
        .usable_gpus(vendor)
        .into_iter()
        .filter_map(gpu)
        .collect()
}

/// One folder for the whole host, whoever runs tprimat on it.
pub fn lock_dir(env: &BTreeMap<String, String>) -> PathBuf {
    env.get("TPRIMAT_LOCK_DIR")
        .map_or_else(|| PathBuf::from("/tmp/tprimat-device-locks"), PathBuf::from)
}

/// tprimat-native: named by `$TPRIMAT_NATIVE`, beside tprimat, or in PATH.
fn find_native(tprimat: &Path, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let named = env.get("TPRIMAT_NATIVE").map(PathBuf::from);
    let beside = tprimat.parent().map(|dir| dir.join("tprimat-native"));
    named
        .into_iter()
        .chain(beside)
        .find(|p| p.is_file())
        .or_else(|| crate::host::which("tprimat-native", env))
}

//! Containers of runs that nobody watches any more.

use std::{collections::BTreeMap, fs, path::Path};

use super::{Contained, OWNER_LABEL, has_service, owner};
use crate::{
    error::Result,
    files::{self, Durability},
    host::{ContainerEngine, EngineKind, last_line},
};

/// In the folder of runs: the engines that were ever used there, a line each.
const ENGINES: &str = ".engines";

/// Notes that containers of this engine may be left here.
pub(crate) fn remember(runs: &Path, kind: EngineKind) -> Result<()> {
    let path = runs.join(ENGINES);
    let mut known: Vec<EngineKind> = engines(runs);
    if !has_service(kind) || known.contains(&kind) {
        return Ok(());
    }
    known.push(kind);
    let lines: String = known
        .iter()
        .map(|kind| format!("{}\n", kind.name()))
        .collect();
    files::write_atomically(&path, lines.as_bytes(), Durability::Synced)
}

fn engines(runs: &Path) -> Vec<EngineKind> {
    let text = fs::read_to_string(runs.join(ENGINES)).unwrap_or_default();
    EngineKind::ALL
        .into_iter()
        .filter(|kind| text.lines().any(|line| line == kind.name()))
        .collect()
}

/// Removes the containers of runs that nobody watches any more; their names. An engine that does
/// not answer is named instead.
pub(crate) fn sweep(
    runs: &Path,
    env: &BTreeMap<String, String>,
    is_live: impl Fn(&Path) -> bool,
) -> Vec<Result<String, String>> {
    let mut swept = Vec::new();
    for kind in engines(runs) {
        // An engine that was uninstalled keeps no container.
        let Ok(engine) = ContainerEngine::find(Some(kind), env) else {
            continue;
        };
        let filter = format!("label={OWNER_LABEL}={}", owner(runs));
        let said = match engine.ask(
            env,
            &["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"],
        ) {
            Ok(said) if said.status.success() => said,
            Ok(said) => {
                swept.push(Err(format!(
                    "{} does not answer: {}",
                    kind.name(),
                    last_line(&said.stderr)
                )));
                continue;
            }
            Err(why) => {
                swept.push(Err(why));
                continue;
            }
        };
        for name in String::from_utf8_lossy(&said.stdout).lines() {
            let Some(id) = name
                .trim()
                .strip_prefix("tprimat-")
                .filter(|id| is_run_id(id))
            else {
                continue;
            };
            if is_live(&runs.join(id)) {
                continue;
            }
            let contained = Contained {
                engine: engine.clone(),
                environment: env.clone(),
                name: name.trim().to_owned(),
            };
            let left = || {
                Err(format!(
                    "{} does not remove the container {}",
                    kind.name(),
                    name.trim()
                ))
            };
            swept.push(match contained.remove() {
                true => Ok(name.trim().to_owned()),
                false => left(),
            });
        }
    }
    swept
}

/// A run's id is also the name of its folder, so one from a label must not lead out of the folder
/// of runs.
fn is_run_id(id: &str) -> bool {
    !id.starts_with('.')
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
}

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
    if !has_service(kind) || engines(runs).contains(&kind) {
        return Ok(());
    }
    let path = runs.join(ENGINES);
    let known = fs::read_to_string(&path).unwrap_or_default();
    let lines = format!("{known}{}\n", kind.name());
    files::write_atomically(&path, lines.as_bytes(), Durability::Synced)
}

fn engines(runs: &Path) -> Vec<EngineKind> {
    let text = fs::read_to_string(runs.join(ENGINES)).unwrap_or_default();
    let is_known = |kind: &EngineKind| text.lines().any(|line| line == kind.name());
    EngineKind::ALL.into_iter().filter(is_known).collect()
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
        let names = match names(&engine, env, runs) {
            Ok(names) => names,
            Err(why) => {
                swept.push(Err(why));
                continue;
            }
        };
        for name in names {
            let id = name.strip_prefix("tprimat-");
            if id.is_none_or(|id| is_live(&runs.join(id))) {
                continue;
            }
            let contained = Contained {
                engine: engine.clone(),
                environment: env.clone(),
                name,
            };
            swept.push(match (contained.remove(), kind.name(), contained.name) {
                (true, _, name) => Ok(name),
                (false, kind, name) => Err(format!("{kind} does not remove the container {name}")),
            });
        }
    }
    swept
}

/// The containers of the runs of a folder.
fn names(
    engine: &ContainerEngine,
    env: &BTreeMap<String, String>,
    runs: &Path,
) -> Result<Vec<String>, String> {
    let filter = format!("label={OWNER_LABEL}={}", owner(runs));
    let words = ["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"];
    let said = engine.ask(env, &words)?;
    if !said.status.success() {
        let (name, why) = (engine.kind.name(), last_line(&said.stderr));
        return Err(format!("{name} does not answer: {why}"));
    }
    let names = String::from_utf8_lossy(&said.stdout);
    Ok(names.lines().map(|name| name.trim().to_owned()).collect())
}

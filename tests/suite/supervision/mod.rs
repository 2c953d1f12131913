//! Runs under their supervisors: what is left behind when anyone is killed (nothing), and what is
//! kept of how they ended (everything). Trainers are shell scripts.
mod deaths;
mod devices;
mod endings;
mod launch;

use std::{collections::BTreeMap, fs, path::Path};

use crate::support::{Project, TPRIMAT};
use tprimat::run::{self, RunExit, RunSpec, Running};

/// A run of `script` by /bin/sh.
fn spec_of(project: &Project, name: &str, script: &str) -> RunSpec {
    let folder = project.folder();
    RunSpec {
        run_id: format!("{name}-{}", folder.file_name().unwrap().to_string_lossy()),
        dir: project.path("runs").join(name),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
        cwd: project.root().to_owned(),
        container: None,
        job: None,
        timeout_seconds: Some(60.0),
        hang: None,
        grace_seconds: 5.0,
        devices: vec![],
        sampled: None,
        exclusive: false,
        lock_dir: folder.join("locks"),
        watched: Vec::new(),
        meta: serde_json::json!({ "name": name }),
    }
}

fn start(spec: &RunSpec) -> Running {
    run::start(spec, Path::new(TPRIMAT)).unwrap()
}

fn run(spec: &RunSpec) -> RunExit {
    start(spec).wait().unwrap()
}

fn log(spec: &RunSpec) -> String {
    String::from_utf8(fs::read(spec.dir.join("log")).unwrap()).unwrap()
}

/// Agent and workers as torchrun has them: sessions of their own, and deaf to SIGTERM.
const TORCHRUN_LIKE: &str = r#"
    for rank in 1 2 3; do
        setsid sh -c 'trap "" TERM; echo deaf; while :; do sleep 1; done' &
    done
    wait
"#;

/// All workers of a torchrun-like run are up and deaf.
fn trains(spec: &RunSpec) -> bool {
    fs::read_to_string(spec.dir.join("log")).is_ok_and(|log| log.matches("deaf\n").count() == 3)
}

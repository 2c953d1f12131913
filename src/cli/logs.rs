//! `logs CELL`: the log of the attempt that counts, byte for byte; `-f` follows one that is being written.

use std::{io::Write, path::Path, time::Duration};

use super::{
    args::LogsArgs,
    flags::Insist,
    project::{self, split_repeat},
};
use crate::{
    cache::{Cache, TaskKind},
    error::{Error, Result, exit},
    graph::Dag,
    plan::{Plan, Support},
};

pub fn run(at: Option<&Path>, args: &LogsArgs) -> Result<i32> {
    let plan = Plan::load(&project::request(at, &args.common, None, &args.measured)?)?;
    let (id, repeat) = split_repeat(&args.cell)?;
    let (cell, repeat) = (plan.find(id)?, repeat.unwrap_or(1));
    if let Support::Unsupported(why) = &plan.cells[cell].support {
        return Err(Error::Failed { message: format!("`{id}` is unsupported: {why}"), help: None });
    }
    let cache_dir = project::cache_dir(&plan);
    let cache = Cache::open(&cache_dir)?;
    if args.follow
        && let Some(dir) = crate::execute::live_run(&cache_dir.join("runs"), &format!("train {id}#{repeat}"))
    {
        return follow(&dir);
    }
    let dag = Dag::new(&plan)?;
    if repeat > plan.cells[cell].repeats {
        return Err(Error::NothingSelected { message: format!("`{id}` has no repeat {repeat}"), help: None });
    }
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let status = statuses.get(dag.node(TaskKind::Train, cell as u32, repeat));
    // A failed attempt that will be tried again is not the one that counts, but its log is what people ask for.
    let attempts = status.key.map(|key| cache.attempts(&key)).unwrap_or_default();
    let attempt = status.attempt().map(|a| (**a).clone()).or_else(|| attempts.last().cloned());
    let log = attempt.and_then(|a| Some(a.outputs.iter().find(|o| o.name == "log")?.digest));
    let bytes = log.map(|digest| cache.get(&digest)).transpose()?.flatten().ok_or_else(|| Error::Failed {
        message: format!("there is no log of `{id}#{repeat}`"),
        help: Some("`tprimat plan` says whether it ran".into()),
    })?;
    write(&bytes)?;
    Ok(exit::OK)
}

fn follow(dir: &Path) -> Result<i32> {
    let path = dir.join("log");
    let mut seen = 0;
    loop {
        let is_over = !dir.join("spec.json").exists() || dir.join("exit.json").exists();
        let bytes = std::fs::read(&path).unwrap_or_default();
        if bytes.len() > seen {
            write(&bytes[seen..])?;
            seen = bytes.len();
        }
        if is_over {
            return Ok(exit::OK);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(Error::io("cannot write to", "stdout")),
    }
}

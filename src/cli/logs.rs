//! `logs CELL`: the log of the attempt that counts, or of any other, byte for byte; `-f` follows one that is being written.

use std::{io::Write, path::Path, time::Duration};

use super::{
    args::LogsArgs,
    attempts,
    flags::Insist,
    project::{self, split_repeat},
};
use crate::{
    cache::{Attempt, Cache, TaskKind},
    error::{Error, Result, exit},
    execute,
    files::{open_regular_no_link, read_open},
    graph::Dag,
    plan::{Plan, Support},
};

pub fn run(at: Option<&Path>, args: &LogsArgs) -> Result<i32> {
    let asked = match (&args.attempt, &args.cell) {
        (Some(id), _) => return of_attempt(at, id),
        (None, cell) => cell.as_deref().unwrap_or_default(),
    };
    let plan = Plan::load(&project::request(at, &args.common, None, &args.measured)?)?;
    let (id, repeat) = split_repeat(asked)?;
    let (cell, repeat) = (plan.find(id)?, repeat.unwrap_or(1));
    let id = &plan.cells[cell].id;
    if let Support::Unsupported(why) = &plan.cells[cell].support {
        return Err(Error::Failed { message: format!("`{id}` is unsupported: {why}"), help: None });
    }
    let cache_dir = project::cache_dir(&plan);
    let cache = Cache::open(&cache_dir)?;
    let dag = Dag::new(&plan)?;
    if repeat > plan.cells[cell].repeats {
        return Err(Error::NothingSelected { message: format!("`{id}` has no repeat {repeat}"), help: None });
    }
    let engine = project::engine(&plan, &dag, &cache, &Insist::default());
    let statuses = engine.evaluate_all()?;
    let status = statuses.get(dag.node(TaskKind::Train, cell as u32, repeat));
    // A run under this name that has other settings is not this cell's, whoever started it.
    if args.follow
        && let Some(dir) = status.key.and_then(|key| execute::live_run(&cache_dir.join("runs"), &key))
    {
        return follow(&dir);
    }
    // A failed attempt that will be tried again is not the one that counts, but its log is what people ask for.
    let attempts = status.key.map(|key| cache.attempts(&key)).unwrap_or_default();
    let attempt = status.attempt().map(|a| (**a).clone()).or_else(|| attempts.last().cloned());
    let bytes = attempt.map(|attempt| log_of(&cache, &attempt)).transpose()?.flatten();
    let bytes = bytes.ok_or_else(|| Error::Failed {
        message: format!("there is no log of `{id}#{repeat}` as it is configured now"),
        help: Some(format!(
            "`tprimat attempts {id}` lists every run of it; `tprimat logs --attempt ID` prints its log"
        )),
    })?;
    write(&bytes)?;
    Ok(exit::OK)
}

fn of_attempt(at: Option<&Path>, id: &str) -> Result<i32> {
    let cache = attempts::open(at)?;
    let attempt = attempts::find(&cache, id)?;
    let bytes = log_of(&cache, &attempt)?.ok_or_else(|| Error::Failed {
        message: format!("the log of attempt {} is gone from the cache", attempt.id),
        help: None,
    })?;
    write(&bytes)?;
    Ok(exit::OK)
}

fn log_of(cache: &Cache, attempt: &Attempt) -> Result<Option<Vec<u8>>> {
    Ok(attempt.log().map(|log| cache.get(&log.digest)).transpose()?.flatten())
}

fn follow(dir: &Path) -> Result<i32> {
    let path = dir.join("log");
    // The log itself is masked only once the run has ended.
    let secrets = execute::Secrets::of_caller();
    let read = || open_regular_no_link(&path).and_then(|(file, found)| read_open(&file, found.len(), u64::MAX - 1));
    let mut seen = 0;
    loop {
        let is_over = execute::is_over(dir);
        let mut bytes = read().unwrap_or_default();
        // Whole lines, so that no secret is seen in two halves; a progress bar ends its lines by a carriage return.
        let whole = bytes.iter().rposition(|byte| b"\n\r".contains(byte)).map_or(0, |last| last + 1);
        let end = if is_over { bytes.len() } else { whole };
        if end > seen {
            secrets.mask(&mut bytes[seen..end]);
            write(&bytes[seen..end])?;
            seen = end;
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

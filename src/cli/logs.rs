//! `logs CELL`: the log of the attempt that counts, or of any other, byte for byte; `-f` follows one that is being written.

use std::{collections::BTreeMap, io::Write, path::Path, time::Duration};

use super::{
    args::LogsArgs,
    attempts,
    flags::Insist,
    project::{self, split_repeat},
};
use crate::{
    cache::{Attempt, Cache, TaskKind},
    error::{Error, Result, exit},
    execute::{self, Secrets},
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
        let declared = plan.prepared(cell).map(|prepared| prepared.resolved.env.clone()).unwrap_or_default();
        return follow(&dir, &declared);
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

/// The log itself is masked only once the run has ended, so what is shown before is masked here: by the secrets of whoever asks,
/// by those that are declared, and by those that the run was given, which only its processes know. Nothing is shown before
/// these are known, or the run is over.
fn follow(dir: &Path, declared: &BTreeMap<String, String>) -> Result<i32> {
    let mut others = vec![Secrets::of_caller(), Secrets::of(declared)];
    let mut log = execute::Growing::new(&dir.join("log"));
    let (mut pending, mut is_known) = (Vec::new(), false);
    loop {
        let is_over = execute::is_over(dir);
        if !is_known && let Some(env) = execute::environment_of(dir) {
            others.push(Secrets::of(&env));
            is_known = true;
        }
        if is_known || is_over {
            log.poll(&mut |bytes| pending.extend_from_slice(bytes))
                .map_err(Error::io("cannot read the log in", dir))?;
            let shown = showable(&mut pending, is_over, &others);
            write(&pending[..shown])?;
            pending.drain(..shown);
        }
        if is_over {
            return Ok(exit::OK);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Masks what has come and says how much of it may be shown: whole lines, so that no secret is seen in two halves. A progress
/// bar ends its lines by a carriage return; a line without an end is shown but for as much as may begin a secret.
fn showable(pending: &mut [u8], is_over: bool, secrets: &[Secrets]) -> usize {
    const LONGEST_LINE: usize = 64 << 10;
    let whole = pending.iter().rposition(|byte| b"\n\r".contains(byte)).map_or(0, |last| last + 1);
    let end = if is_over || pending.len() - whole > LONGEST_LINE { pending.len() } else { whole };
    secrets.iter().for_each(|secrets| secrets.mask(&mut pending[..end]));
    let held_back = secrets.iter().map(Secrets::longest).max().unwrap_or(0);
    if is_over || end == whole { end } else { whole.max(end.saturating_sub(held_back)) }
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(Error::io("cannot write to", "stdout")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_the_beginning_of_a_secret_is_held_back() {
        let secrets = [Secrets::of(&[("A_TOKEN".to_owned(), "abcdefghij".to_owned())].into())];
        let shown = |text: &str, is_over| {
            let mut pending = text.as_bytes().to_vec();
            let end = showable(&mut pending, is_over, &secrets);
            String::from_utf8(pending[..end].to_vec()).unwrap()
        };
        assert_eq!(shown("one abcdefghij\ntwo abcde", false), "one **********\n");
        assert_eq!(shown("10%\rtwo", false), "10%\r");
        assert_eq!(shown("two abcdefghij", true), "two **********");
        let long = "x".repeat(70 << 10);
        let end = shown(&format!("{long}abcde"), false);
        assert!(end.len() == long.len() - 5 && !end.contains('a'));
    }
}

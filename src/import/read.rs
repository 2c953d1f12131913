//! The stored bytes of one import → what they say.

use std::{
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use super::{
    Kind, OldResult, Recorded, Source, Unit,
    gather::{rank_by_name, rank_of},
    published, read_result,
};
use crate::{
    cache::{Cache, CacheError},
    error::{Error, Problem, Result},
    files::{open_regular, read_open},
    job::FailureClass,
    logs::{ExitSummary, Failure, LogSection, NEXT_RANK, Parser, Trace, classify},
};

const CHUNK: usize = 1 << 20;
/// Bytes of a log's end that causes of a failure are looked for in.
const TAIL: usize = 4 << 20;
/// A result file is one JSON value that has to be in memory, where it takes up to a hundred times
/// as much.
const MAX_RESULT: u64 = 16 << 20;
/// By then the parser knows the format of a log, or none.
const MOST_UNKNOWN: u64 = 65 << 20;

/// Logs are read by a recipe's patterns where these are given, else by what they look like.
fn parser(own: Option<&LogSection>) -> Result<Parser> {
    own.map_or_else(
        || Ok(Parser::detecting()),
        |own| {
            let failed = |why| Problem::new(format!("the patterns of its recipe: {why}"));
            Parser::new(own).map_err(|why| Error::invalid(failed(why)))
        },
    )
}

/// A log that is not in the cache yet, up to `most` bytes.
fn trace(path: &Path, own: Option<&LogSection>, most: u64) -> Result<Trace> {
    let mut parser = parser(own)?;
    let (file, _) = open_regular(path).map_err(Error::io("cannot read", path))?;
    let read = chunks(file.take(most), |chunk| parser.feed(chunk));
    read.map_err(Error::io("cannot read", path))?;
    Ok(parser.finish())
}

/// Does the format find steps in one of the logs?
pub fn reads(own: &LogSection, unit: &Unit) -> Result<bool> {
    for path in unit.files.iter().filter(|_| unit.kind == Kind::Log) {
        if !trace(path, Some(own), u64::MAX)?.steps.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Is there anything in the files that can be read? Asked before they are stored: what turns out to
/// be no log at all may be anything of the caller's.
pub fn recognise(unit: &Unit) -> Result<bool> {
    for path in &unit.files {
        let unreadable = || Error::io("cannot read", path);
        let (mut file, metadata) = open_regular(path).map_err(unreadable())?;
        let size = metadata.len();
        if unit.kind == Kind::Result {
            check_size(&unit.name, size)?;
            let bytes = read_open(&file, size, MAX_RESULT).map_err(unreadable())?;
            let read = read_result(&bytes, None).map_err(|why| unreadable_result(&unit.name, &why));
            return read.map(|_| true);
        }
        let mut tail = Vec::new();
        let end = file.seek(SeekFrom::Start(size.saturating_sub(TAIL as u64)));
        end.and_then(|_| file.take(TAIL as u64).read_to_end(&mut tail))
            .map_err(unreadable())?;
        if trace(path, None, MOST_UNKNOWN)?.format != "unknown" || failure(&tail).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Why a file is neither a log nor a result for tprimat, though there may be one in it; what to do
/// about it.
#[must_use]
pub fn why_not_read(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    let (file, _) = open_regular(path).ok()?;
    file.take(1 << 16).read_to_end(&mut head).ok()?;
    let shown = path.display();
    let packed: [(&[u8], &str); 4] = [
        (b"\x28\xb5\x2f\xfd", "zstd -d"),
        (b"\xfd7zXZ", "xz -d"),
        (b"BZh", "bzip2 -d"),
        (b"PK\x03\x04", "unzip"),
    ];
    if let Some((_, unpack)) = packed.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some(format!("it is compressed; `{unpack} {shown}` unpacks it"));
    }
    if head.is_empty() {
        return Some("it is empty".to_owned());
    }
    if is_table_of_wandb(&head) {
        return Some("it is a table of W&B, of several runs or without steps; `run.history().to_csv()` writes the one of a run".to_owned());
    }
    // A log that gzip packed is read: what comes here was looked through, and no log was found in it.
    let name = shown.to_string();
    head.starts_with(b"\x1f\x8b").then(|| {
        if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            format!("it is an archive; `tar xzf {name}` unpacks it")
        } else {
            format!(
                "it is compressed and holds nothing that reads as a log; `gzip -d {name}` unpacks it"
            )
        }
    })
}

/// A panel or the list of runs that W&B's page exported. A panel of one run over its steps is a log.
fn is_table_of_wandb(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let first = text.lines().next().unwrap_or_default();
    first.starts_with('"') && first.contains("__MIN")
        || first.starts_with("\"Name\",") && first.contains("\"State\"")
}

/// How a run failed, by the end of its log.
fn failure(tail: &[u8]) -> Option<Failure> {
    let failure = classify(tail, &ExitSummary::default());
    (failure.class != FailureClass::Unknown).then_some(failure)
}

/// Are the logs of a unit those of one run's ranks? Files that were named together may as well be
/// runs of their own, which would become one run with every step several times.
pub fn check_one_run(unit: &Unit, own: Option<&LogSection>) -> Result<()> {
    if unit.kind != Kind::Log || unit.files.len() < 2 {
        return Ok(());
    }
    let mut with_steps: Vec<(&Path, Option<u32>, Trace)> = Vec::new();
    for path in &unit.files {
        let log = trace(path, own, u64::MAX)?;
        if log.steps.is_empty() {
            continue;
        }
        let rank = rank(path).map_err(Error::io("cannot read", path))?;
        let others = with_steps.iter();
        let why = others.filter_map(|(other_path, other_rank, other)| {
            let are_ranks = rank.is_some() && other_rank.is_some() && rank != *other_rank;
            Some((other_path, no_ranks_of_one(other, &log, are_ranks)?))
        });
        if let Some((other, why)) = why.into_iter().next() {
            let [one, two] = [other, &path.as_path()].map(|path| path.display().to_string());
            let problem = Problem::new(format!("{one} and {two} are not logs of one run: {why}"));
            return Err(Error::invalid(problem.help(
                "repeats are imported one by one: `tprimat import CELL --log FILE` for each; \
                 ranks of one run are known by their names: rank-0.log, rank-1.log",
            )));
        }
        with_steps.push((path, rank, log));
    }
    Ok(())
}

/// The rank that a log's name, its folder's name or its first lines state.
fn rank(path: &Path) -> io::Result<Option<u32>> {
    let of_name = rank_by_name(path);
    let mut head = Vec::new();
    let (file, _) = open_regular(path)?;
    file.take(CHUNK as u64).read_to_end(&mut head)?;
    let text = String::from_utf8_lossy(&head);
    Ok(of_name.or_else(|| text.lines().find_map(rank_of)))
}

/// Why two logs are of two runs, where they are.
fn no_ranks_of_one(one: &Trace, other: &Trace, are_ranks: bool) -> Option<&'static str> {
    let points = |log: &Trace| -> Vec<(u64, Option<f64>, Option<f64>)> {
        let steps = log.steps.iter();
        steps
            .map(|s| (s.step, s.step_time_seconds, s.loss))
            .collect()
    };
    let last = |log: &Trace| log.steps.last().map(|step| step.step);
    let times = |log: &Trace| -> Vec<f64> { log.steps.iter().filter_map(|s| s.ended_at).collect() };
    let is_before = |one: &[f64], other: &[f64]| {
        let begin = other.iter().copied().reduce(f64::min);
        let end = one.iter().copied().reduce(f64::max);
        end.zip(begin).is_some_and(|(end, begin)| end < begin)
    };
    let (of_one, of_other) = (times(one), times(other));
    if points(one) == points(other) {
        // Two logs of one rank.
        None
    } else if !are_ranks {
        Some("both have training steps, and do not say that they are of different ranks")
    } else if one.finished && other.finished && last(one) != last(other) {
        Some("they ended after different steps")
    } else if is_before(&of_one, &of_other) || is_before(&of_other, &of_one) {
        Some("one began after the other had ended")
    } else {
        None
    }
}

/// Does it say of itself that tprimat published it as a result? Then a mistake in it is no
/// stranger's file.
#[must_use]
pub fn is_ours(unit: &Unit) -> bool {
    let (Kind::Result, [path]) = (unit.kind, &unit.files[..]) else {
        return false;
    };
    let bytes = open_regular(path)
        .and_then(|(file, metadata)| read_open(&file, metadata.len(), MAX_RESULT))
        .unwrap_or_default();
    published::schema(&bytes).is_some_and(|schema| published::is_result(&schema))
}

fn check_size(name: &str, size: u64) -> Result<()> {
    if size <= MAX_RESULT {
        return Ok(());
    }
    let [has, most] = [size, MAX_RESULT].map(|bytes| bytes >> 20);
    let message = format!("{name} has {has} MiB; a result file has at most {most} MiB");
    Err(Error::invalid(Problem::new(message)))
}

/// One run as it was read, whatever it was read from.
pub fn read(cache: &Cache, recorded: &Recorded) -> Result<OldResult> {
    let mut read = bare(cache, recorded)?;
    read.supply(&recorded.facts);
    Ok(read)
}

/// What the file itself says.
fn bare(cache: &Cache, recorded: &Recorded) -> Result<OldResult> {
    match (recorded.kind, recorded.sources.as_slice()) {
        // The parser knows an event file by its first bytes.
        (Kind::Log | Kind::Events, sources) => log(cache, sources, recorded.log.as_ref()),
        (Kind::Result, [source]) => read_result(&whole(cache, source)?, recorded.repeat)
            .map_err(|why| unreadable_result(&source.name, &why)),
        (Kind::Result, _) => Err(Error::Internal(
            "the record of an imported result does not name exactly one file".to_owned(),
        )),
    }
}

/// The runs that a file holds: of tprimat's own results every repeat, of all others one. Their
/// cell, where the file names it.
pub fn parts(cache: &Cache, recorded: Recorded) -> Result<(Vec<Recorded>, Option<String>)> {
    let (Kind::Result, [source]) = (recorded.kind, recorded.sources.as_slice()) else {
        return Ok((vec![recorded], None));
    };
    let Some(file) = published::read(&whole(cache, source)?) else {
        return Ok((vec![recorded], None));
    };
    let file = file.map_err(|why| unreadable_result(&source.name, &why))?;
    let of_repeat = |repeat: u32| Recorded {
        repeat: Some(repeat),
        ..recorded.clone()
    };
    Ok((file.repeats().map(of_repeat).collect(), Some(file.cell)))
}

fn unreadable_result(name: &str, why: &str) -> Error {
    Error::invalid(Problem::new(format!("{name}: {why}")))
}

fn gone(source: &Source) -> Error {
    CacheError::Gone {
        what: format!("`{}`", source.name),
        again: "import it again",
    }
    .into()
}

fn whole(cache: &Cache, source: &Source) -> Result<Vec<u8>> {
    check_size(&source.name, source.size)?;
    cache.get(&source.digest)?.ok_or_else(|| gone(source))
}

/// Hands a stored file over in chunks.
fn stream(cache: &Cache, source: &Source, mut take: impl FnMut(&[u8])) -> Result<()> {
    let is_sound = cache.stream(&source.digest, |chunk| {
        take(chunk);
        Ok(())
    })?;
    is_sound.then_some(()).ok_or_else(|| gone(source))
}

/// Hands over all that can be read, in chunks.
pub fn chunks(mut from: impl Read, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(n) => take(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// One log, or the logs of a run's ranks read one after the other into one trace.
fn log(cache: &Cache, sources: &[Source], own: Option<&LogSection>) -> Result<OldResult> {
    let mut out = OldResult::default();
    let mut all = parser(own)?;
    let mut tail: Vec<u8> = Vec::new();
    for source in sources {
        if sources.len() > 1 {
            let mut alone = parser(own)?;
            stream(cache, source, |chunk| alone.feed(chunk))?;
            if says_nothing(&alone.finish()) {
                let detail = format!("{} says nothing of the run; it is left out", source.name);
                out.tell("empty_rank", detail);
                continue;
            }
        }
        let mut feed = |chunk: &[u8]| {
            all.feed(chunk);
            tail.extend_from_slice(chunk);
            tail.drain(..tail.len().saturating_sub(TAIL));
        };
        stream(cache, source, &mut feed)?;
        // The next rank's first line must not be glued to this one's last.
        if sources.len() > 1 {
            feed(NEXT_RANK);
        }
    }
    out.trace = all.finish();
    if out.trace.failure.is_none() && out.trace.steps.is_empty() {
        // A log without steps mostly comes from a run that failed, and then has a line that says so.
        // Without such a line the run may have ended well and printed its steps elsewhere.
        out.trace.failure = failure(&tail);
    }
    out.log_tail = crate::logs::tail(&tail);
    Ok(out)
}

fn says_nothing(log: &Trace) -> bool {
    let is_silent = log.num_parameters.is_none() && log.memory.is_empty();
    log.steps.is_empty() && log.effective.0.is_empty() && is_silent
}

//! The stored bytes of one import → what they say.

use std::{
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use super::{Kind, OldResult, Recorded, Source, Unit, gather::rank_of, published, read_result};
use crate::{
    cache::{Cache, CacheError},
    error::{Error, Problem, Result},
    files::{open_regular, read_open},
    job::FailureClass,
    logs::{Anomaly, ExitSummary, LogSection, Parser, Trace, classify},
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
fn parser(own: Option<&LogSection>) -> io::Result<Parser> {
    own.map_or_else(
        || Ok(Parser::detecting()),
        |own| {
            Parser::new(own)
                .map_err(|why| io::Error::other(format!("the patterns of its recipe: {why}")))
        },
    )
}

/// Does the format find steps in one of the logs?
pub fn reads(own: &LogSection, unit: &Unit) -> Result<bool> {
    for path in unit.files.iter().filter(|_| unit.kind == Kind::Log) {
        let (trace, _) = of_rank(path, Some(own)).map_err(Error::io("cannot read", path))?;
        if !trace.steps.is_empty() {
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
        if unit.kind == Kind::Result {
            check_size(&unit.name, metadata.len())?;
            let bytes = read_open(&file, metadata.len(), MAX_RESULT).map_err(unreadable())?;
            let failed =
                |why: String| Error::invalid(Problem::new(format!("{}: {why}", unit.name)));
            return read_result(&bytes, None).map(|_| true).map_err(failed);
        }
        let mut parser = Parser::detecting();
        let start = (&file).take(MOST_UNKNOWN);
        chunks(start, |chunk| parser.feed(chunk)).map_err(unreadable())?;
        let mut tail = Vec::new();
        let end = file.seek(SeekFrom::Start(metadata.len().saturating_sub(TAIL as u64)));
        end.and_then(|_| (&file).take(TAIL as u64).read_to_end(&mut tail))
            .map_err(unreadable())?;
        if parser.finish().format != "unknown"
            || classify(&tail, &ExitSummary::default()).class != FailureClass::Unknown
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Are the logs of a unit those of one run's ranks? Files that were named together may as well be
/// runs of their own, which would become one run with every step several times.
pub fn check_one_run(unit: &Unit, own: Option<&LogSection>) -> Result<()> {
    if unit.kind != Kind::Log || unit.files.len() < 2 {
        return Ok(());
    }
    let mut with_steps: Vec<(&Path, Option<u32>, Trace)> = Vec::new();
    for path in &unit.files {
        let (trace, rank) = of_rank(path, own).map_err(Error::io("cannot read", path))?;
        if !trace.steps.is_empty() {
            with_steps.push((path, rank, trace));
        }
    }
    for (at, (path, rank, trace)) in with_steps.iter().enumerate() {
        for (other_path, other_rank, other) in &with_steps[..at] {
            let are_ranks = rank.is_some() && other_rank.is_some() && rank != other_rank;
            let why = if says_the_same(trace, other) {
                continue;
            } else if !are_ranks {
                "both have training steps, and do not say that they are of different ranks"
            } else if trace.finished && other.finished && last_step(trace) != last_step(other) {
                "they ended after different steps"
            } else if are_apart(trace, other) {
                "one began after the other had ended"
            } else {
                continue;
            };
            let [one, two] = [other_path, path].map(|path| path.display().to_string());
            let problem = Problem::new(format!("{one} and {two} are not logs of one run: {why}"));
            return Err(Error::invalid(problem.help(
                "repeats are imported one by one: `tprimat import CELL --log FILE` for each; \
                 ranks of one run are known by their names: rank-0.log, rank-1.log",
            )));
        }
    }
    Ok(())
}

/// One rank's log, and the rank that its name, its folder's name or its first lines state.
fn of_rank(path: &Path, own: Option<&LogSection>) -> io::Result<(Trace, Option<u32>)> {
    let (file, _) = open_regular(path)?;
    let mut parser = parser(own)?;
    let mut of_content = None;
    let mut is_first = true;
    chunks(file, |chunk| {
        if is_first {
            let text = String::from_utf8_lossy(chunk);
            of_content = text.lines().find_map(rank_of);
            is_first = false;
        }
        parser.feed(chunk);
    })?;
    let names = path.components().rev().take(2);
    let of_name = names
        .filter_map(|part| part.as_os_str().to_str())
        .find_map(rank_of);
    Ok((parser.finish(), of_name.or(of_content)))
}

fn last_step(trace: &Trace) -> Option<u64> {
    trace.steps.last().map(|step| step.step)
}

/// Do two logs state the same of every step? Then they are two logs of one rank.
fn says_the_same(one: &Trace, other: &Trace) -> bool {
    let points = |trace: &Trace| -> Vec<(u64, Option<f64>, Option<f64>)> {
        let steps = trace.steps.iter();
        steps
            .map(|s| (s.step, s.step_time_seconds, s.loss))
            .collect()
    };
    points(one) == points(other)
}

/// Had one run ended before the other began, by the times of their steps?
fn are_apart(one: &Trace, other: &Trace) -> bool {
    let span = |trace: &Trace| {
        let times = || trace.steps.iter().filter_map(|step| step.ended_at);
        Some((times().reduce(f64::min)?, times().reduce(f64::max)?))
    };
    match (span(one), span(other)) {
        (Some((from, to)), Some((other_from, other_to))) => to < other_from || other_to < from,
        _ => false,
    }
}

/// Does it say of itself that tprimat published it as a result? Then a mistake in it is no
/// stranger's file.
#[must_use]
pub fn is_ours(unit: &Unit) -> bool {
    let (Kind::Result, [path]) = (unit.kind, &unit.files[..]) else {
        return false;
    };
    let Ok((file, metadata)) = open_regular(path) else {
        return false;
    };
    let bytes = read_open(&file, metadata.len(), MAX_RESULT).unwrap_or_default();
    published::schema(&bytes).is_some_and(|schema| published::is_result(&schema))
}

fn check_size(name: &str, size: u64) -> Result<()> {
    if size <= MAX_RESULT {
        return Ok(());
    }
    let message = format!(
        "{name} has {} MiB; a result file has at most {} MiB",
        size >> 20,
        MAX_RESULT >> 20
    );
    Err(Error::invalid(Problem::new(message)))
}

/// One run as it was read, whatever it was read from.
pub(super) fn read(cache: &Cache, recorded: &Recorded) -> Result<OldResult> {
    match (recorded.kind, recorded.sources.as_slice()) {
        // The parser knows an event file by its first bytes.
        (Kind::Log | Kind::Events, sources) => log(cache, sources, recorded.log.as_ref()),
        (Kind::Result, [source]) => read_result(&whole(cache, source)?, recorded.repeat)
            .map_err(|why| unreadable(source, &why)),
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
    let file = file.map_err(|why| unreadable(source, &why))?;
    let of_repeat = |repeat: u32| Recorded {
        repeat: Some(repeat),
        ..recorded.clone()
    };
    Ok((file.repeats().map(of_repeat).collect(), Some(file.cell)))
}

fn unreadable(source: &Source, why: &str) -> Error {
    Error::invalid(Problem::new(format!("{}: {why}", source.name)))
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
    let name = sources.first().map_or("", |source| source.name.as_str());
    let mut parser = parser(own).map_err(Error::io("cannot read", Path::new(name)))?;
    let mut tail: Vec<u8> = Vec::new();
    for source in sources {
        if sources.len() > 1 && says_nothing(cache, source, own)? {
            let detail = format!("{} says nothing of the run; it is left out", source.name);
            out.anomalies.push(Anomaly {
                kind: "empty_rank".to_owned(),
                detail,
                step: None,
            });
            continue;
        }
        let mut feed = |chunk: &[u8]| {
            parser.feed(chunk);
            tail.extend_from_slice(chunk);
            tail.drain(..tail.len().saturating_sub(TAIL));
        };
        stream(cache, source, &mut feed)?;
        // The next rank's first line must not be glued to this one's last.
        if sources.len() > 1 {
            feed(b"\n");
        }
    }
    out.trace = parser.finish();
    if out.trace.failure.is_none() && out.trace.steps.is_empty() {
        // A log without steps mostly comes from a run that failed, and then has a line that says so.
        // Without such a line the run may have ended well and printed its steps elsewhere.
        let failure = classify(&tail, &ExitSummary::default());
        out.trace.failure = Some(failure).filter(|failure| failure.class != FailureClass::Unknown);
    }
    out.log_tail = crate::logs::tail(&tail);
    Ok(out)
}

fn says_nothing(cache: &Cache, source: &Source, own: Option<&LogSection>) -> Result<bool> {
    let mut parser = parser(own).map_err(Error::io("cannot read", Path::new(&source.name)))?;
    stream(cache, source, |chunk| parser.feed(chunk))?;
    let Trace {
        steps,
        effective,
        num_parameters,
        memory,
        ..
    } = parser.finish();
    Ok(steps.is_empty() && effective.0.is_empty() && num_parameters.is_none() && memory.is_empty())
}

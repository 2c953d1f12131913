//! Takes what a run left into the cache, and says how the run ended.

use std::path::{Path, PathBuf};

use super::{
    imports::{self, Late},
    launch::Measurement,
};
use crate::{
    cache::{Attempt, Cache, INPUTS_CHANGED, INTERRUPTED, Output},
    error::{Error, Result},
    figures::{Signs, Statistics, memory_of_others},
    files::Durability,
    import::chunks,
    job::{FailureClass, Job, RunOutcome},
    logs::{self, ExitSummary, LogSection},
    results::RunResult,
    run::{
        folder::{if_there, last_seen, tail_of},
        hang::STACKS,
        nodes::{self, NodeFile},
        spec::{ExitKind, RunExit, RunSpec, TELEMETRY},
    },
    secrets::Secrets,
};

/// As much of a log's end as may tell why its run failed.
const TAIL: u64 = 8 << 20;

/// Takes what a run left into the cache: the log first, then the attempt that names it. Both are on
/// disk when this returns, and the run folder is still there. A run that was interrupted while it
/// waited for its devices never began, and no attempt of it is recorded.
pub fn ingest(
    cache: &Cache,
    (spec, measured): (&RunSpec, Measurement),
    exit: Option<&RunExit>,
    log: &Path,
    hostname: &str,
) -> Result<Attempt> {
    let (node_logs, node_samples) =
        nodes::files_of(log.parent().unwrap_or(Path::new(".")), spec.nodes())?;
    for log in std::iter::once(log).chain(node_logs.iter().map(|file| file.path.as_path())) {
        mask(spec, log)?;
    }
    let mut own = Vec::new();
    for name in ["log", "times", TELEMETRY, STACKS] {
        let path = log.with_file_name(name);
        if if_there(&path, std::fs::metadata(&path))?.is_some_and(|found| found.is_file()) {
            own.push((name.to_owned(), path));
        }
    }
    let of_nodes = node_logs
        .iter()
        .chain(&node_samples)
        .map(|file| (file.name.clone(), file.path.clone()));
    let put = |(name, path): (String, PathBuf)| {
        let (digest, size) = cache.put_file(&path, Durability::Plain)?;
        Ok(Output { name, digest, size })
    };
    let mut outputs: Vec<Output> = own
        .into_iter()
        .chain(of_nodes)
        .map(put)
        .collect::<Result<_>>()?;
    let has_log = outputs.iter().any(|output| output.name == "log");
    if !has_log {
        let digest = cache.put(b"", Durability::Plain)?;
        outputs.insert(
            0,
            Output {
                name: "log".to_owned(),
                digest,
                size: 0,
            },
        );
    }
    let (started_at, ended_at) = match exit {
        Some(exit) => (exit.started_at, exit.ended_at),
        None => last_seen(&spec.dir),
    };
    let (mut changed, mut undeclared) = exit
        .map(|exit| (exit.changed.clone(), exit.undeclared.clone()))
        .unwrap_or_default();
    if !changed.is_empty() {
        // To declare these as outputs would not make it count.
        changed.append(&mut undeclared.changed);
    }
    let mut outcome = outcome(exit, (log, &node_logs), &measured.log_section)?;
    if let RunOutcome::Failed { evidence, .. } = &mut outcome
        && exit.is_some_and(|exit| exit.status == ExitKind::Timeout)
        && let Some(limit) = spec.timeout_seconds
    {
        evidence.insert(0, format!("it ran longer than its time limit, {limit} s"));
    }
    let mut attempt = Attempt {
        id: spec.run_id.clone(),
        key: measured.key,
        task: measured.task,
        preimage: measured.preimage,
        generation: measured.generation,
        outcome,
        outputs,
        started_at,
        ended_at,
        host: exit
            .and_then(|exit| exit.host.clone())
            .unwrap_or_else(|| hostname.to_owned()),
        suspect: None,
        repeats_planned: measured.repeats_planned,
        set_aside: None,
        undeclared,
        commit: measured.commit,
        origin: None,
        recorded: 0,
    };
    attempt.suspect = match changed.is_empty() {
        false => Some(format!("{INPUTS_CHANGED}: {}", changed.join(", "))),
        true => disturbance(
            &attempt,
            (log, &node_samples),
            &measured.job,
            &measured.log_section,
            &measured.statistics,
        )?
        .or_else(|| attempt.undeclared.suspect()),
    };
    if ended_before_it_began(exit, log) {
        return Ok(attempt);
    }
    if attempt.is_valid() {
        match imports::late(&spec.dir, &attempt)? {
            Late::Nothing => {}
            Late::Completed(both) => {
                let (mut whole, uncounted) = *both;
                whole.generation = cache.generation(&whole.key);
                cache.record_attempt(&whole)?;
                attempt = uncounted;
            }
            Late::Changed(names) => {
                attempt.suspect = Some(format!(
                    "it imported {}, which changed while it ran and is not an input",
                    names.join(", ")
                ));
            }
        }
    }
    cache.record_attempt(&attempt)?;
    Ok(attempt)
}

/// Was the run interrupted, or its supervisor killed, before its trainer started? A trainer has a log from its start on.
pub(super) fn ended_before_it_began(exit: Option<&RunExit>, log: &Path) -> bool {
    let is_of_no_trainer =
        |exit: &RunExit| exit.status == ExitKind::Interrupted && exit.started_at == exit.ended_at;
    exit.is_none_or(is_of_no_trainer) && !log.is_file()
}

/// The supervisor has masked the log, unless it was killed before it could. Then the run's own
/// environment is known where the same tprimat takes it in; later, its words are known by their
/// digests, and what the caller has now may help. A log that was made read-only is masked all the
/// same, and one that cannot be masked is not kept.
fn mask(spec: &RunSpec, log: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let failed = || Error::io("cannot mask secrets in the log of", &spec.dir);
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(log);
    let file = match open() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            #[expect(clippy::disallowed_methods, reason = "its mode alone is changed")]
            let opened = std::fs::set_permissions(log, std::fs::Permissions::from_mode(0o600))
                .and_then(|()| open());
            opened.map_err(failed())?
        }
        opened => opened.map_err(failed())?,
    };
    let all = [
        Secrets::of(&spec.env),
        Secrets::noted(&spec.dir),
        Secrets::of_caller(),
    ];
    for secrets in all {
        secrets.mask_file(&file).map_err(failed())?;
    }
    Ok(())
}

/// What disturbed a run that ended well, or took the memory of one that ran out of it. A good run's
/// log is read only where the samples have signs of it. A file that cannot be read is an error: the
/// verdict stays with the run for good.
fn disturbance(
    attempt: &Attempt,
    (log, of_nodes): (&Path, &[NodeFile]),
    job: &Job,
    section: &LogSection,
    statistics: &Statistics,
) -> Result<Option<String>> {
    let own = log.with_file_name(TELEMETRY);
    let samples: Vec<&Path> = match of_nodes {
        [] => vec![&own],
        of_nodes => of_nodes.iter().map(|file| file.path.as_path()).collect(),
    };
    let read = |path: &Path| if_there(path, std::fs::read(path));
    let mut signs = Vec::new();
    for samples in samples {
        signs.extend(read(samples)?.and_then(|text| Signs::read(&text)));
    }
    match &attempt.outcome {
        RunOutcome::Failed {
            class: FailureClass::Oom,
            ..
        } => {
            let others = match signs.iter().find_map(Signs::others) {
                None => memory_of_others(&tail_of(log, TAIL)?),
                others => others,
            };
            return Ok(others);
        }
        RunOutcome::Failed { .. } => return Ok(None),
        RunOutcome::Ok => {}
    }
    if signs.is_empty() {
        return Ok(None);
    }
    let times = read(&log.with_file_name("times"))?.unwrap_or_default();
    let mut parser = logs::Dated::new(section, &times);
    if let Some(file) = if_there(log, std::fs::File::open(log))? {
        let mut last = None;
        let read = chunks(file, |bytes| {
            last = bytes.last().copied().or(last);
            parser.feed(bytes);
        });
        read.map_err(Error::io("cannot read", log))?;
        if last != Some(b'\n') {
            // The last line of a run that ended well is whole.
            parser.feed(b"\n");
        }
    }
    let result = RunResult::from(parser.finish(), job, super::derived::facts_of(attempt));
    Ok(signs
        .iter()
        .find_map(|signs| signs.judge(&result, statistics)))
}

/// A line of a log without the rank that a launcher puts before it: `[rank0]: `.
fn behind_rank(line: &str) -> &str {
    match line.split_once("]: ") {
        Some((rank, rest)) if rank.starts_with('[') => rest,
        _ => line,
    }
}

/// Where an exception of Python was raised that a log ends in: the last line of code that is not a
/// package's, as in `train.py, line 15`.
fn raised_at(log: &str, said: &str) -> Option<String> {
    let said = behind_rank(said);
    let mut above = log.lines().rev().map(behind_rank);
    above.find(|line| line.contains(said))?;
    // The lines of a traceback are indented, down from its head.
    let is_of_traceback = |line: &&str| line.starts_with(char::is_whitespace) || line.is_empty();
    let is_of_package = |file: &Path| {
        let mut parts = file.iter().filter_map(|part| part.to_str());
        parts.any(|part| {
            part.ends_with("-packages") || part.starts_with("python3") || part.starts_with('<')
        })
    };
    above.take_while(is_of_traceback).find_map(|line| {
        let (file, rest) = line.split_once("File \"")?.1.split_once("\", line ")?;
        let file = Some(Path::new(file)).filter(|file| !is_of_package(file))?;
        let number = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(format!("{}, line {number}", file.file_name()?.to_str()?))
    })
}

fn outcome(
    exit: Option<&RunExit>,
    (log, of_nodes): (&Path, &[NodeFile]),
    section: &LogSection,
) -> Result<RunOutcome> {
    let failed = |class, evidence, status: &str| {
        let status = status.to_owned();
        Ok(RunOutcome::Failed {
            class,
            evidence,
            status,
        })
    };
    let Some(exit) = exit else {
        let evidence = vec!["the run ended without a record of how".to_owned()];
        return failed(FailureClass::Killed, evidence, "unknown");
    };
    let mut summary = ExitSummary::default();
    let status = match &exit.status {
        ExitKind::Code(0) => return Ok(ended_well(&tail_of(log, TAIL)?, section)),
        ExitKind::Code(code) => {
            summary.code = Some(*code);
            format!("exit {code}")
        }
        ExitKind::Signal(signal) => {
            summary.signal = Some(*signal);
            format!("signal {signal}")
        }
        ExitKind::Timeout => {
            summary.timed_out = true;
            "timeout".into()
        }
        ExitKind::Hung(evidence) => {
            let evidence = evidence.iter().chain(&exit.lost_nodes).cloned().collect();
            return failed(FailureClass::Hang, evidence, "hang");
        }
        ExitKind::Interrupted => {
            let evidence = vec!["tprimat was interrupted".to_owned()];
            return failed(FailureClass::Killed, evidence, INTERRUPTED);
        }
        ExitKind::Killed(why) => {
            return failed(FailureClass::Killed, vec![why.clone()], why);
        }
        ExitKind::Lost(why) => {
            let evidence = [why.clone()].into_iter().chain(exit.told()).collect();
            return failed(FailureClass::Node, evidence, why);
        }
        ExitKind::LaunchFailed(why) => {
            summary.launch_error = Some(why.clone());
            "launch failed".into()
        }
    };
    let tail = tail_of(log, TAIL)?;
    let mut failure = logs::classify(&tail, &summary);
    if let Some(said) = failure.evidence.first_mut()
        && let Some(place) = raised_at(&String::from_utf8_lossy(&tail), said)
    {
        *said += &format!(" ({place})");
    }
    // Where one node's rank fails, those of the others lose it, and say only that.
    if may_follow_from_another(failure.class) {
        for NodeFile { node, path, .. } in of_nodes {
            let found = logs::classify(&tail_of(path, TAIL)?, &summary);
            if !may_follow_from_another(found.class) {
                failure = found;
                failure
                    .evidence
                    .iter_mut()
                    .for_each(|line| *line = format!("node {node}: {line}"));
                break;
            }
        }
    }
    // No log says more of it than that a peer is gone: it went with a node.
    if let Some(lost) = exit
        .lost_nodes
        .as_ref()
        .filter(|_| may_follow_from_another(failure.class))
    {
        failure.class = FailureClass::Node;
        failure.evidence.insert(0, lost.clone());
    }
    failure
        .evidence
        .extend(exit.told().filter(|_| summary.launch_error.is_some()));
    failed(failure.class, failure.evidence, &status)
}

/// Is this what a rank may say because another one is gone?
fn may_follow_from_another(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::Nccl
            | FailureClass::Killed
            | FailureClass::Crash
            | FailureClass::Timeout
            | FailureClass::Port
            | FailureClass::Unknown
    )
}

/// Exit 0 is the trainer's word only if its log does not say otherwise.
fn ended_well(log_tail: &[u8], section: &LogSection) -> RunOutcome {
    match logs::parse(section, log_tail).failure {
        None => RunOutcome::Ok,
        Some(failure) => RunOutcome::contradicted_by_log(failure.class, failure.evidence),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::spec::never_ran;

    /// The class of a run of several nodes that failed with this log, and of which a node is lost.
    fn class(log: &str) -> (FailureClass, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        crate::files::write_atomically(&path, log.as_bytes(), Durability::Plain).unwrap();
        let exit = RunExit {
            lost_nodes: Some("1 of 2 nodes left no word".into()),
            ..never_ran(ExitKind::Code(1), 0.0)
        };
        let section = LogSection::named("tprimat");
        let RunOutcome::Failed {
            class, evidence, ..
        } = outcome(Some(&exit), (&path, &[]), &section).unwrap()
        else {
            panic!("it failed")
        };
        (class, evidence)
    }

    #[test]
    fn an_exception_is_told_with_its_place() {
        let traceback = |head: &str| {
            format!(
                "step 1\n{head}Traceback (most recent call last):\n\
                 {head}  File \"/home/me/p/train.py\", line 15, in <module>\n{head}    opt.stepp()\n\
                 {head}  File \"/x/site-packages/torch/optim.py\", line 99, in f\n{head}    g()\n\
                 {head}AttributeError: no attribute 'stepp'\n"
            )
        };
        for head in ["", "[rank0]: "] {
            let (_, evidence) = class(&traceback(head));
            assert!(
                evidence
                    .last()
                    .unwrap()
                    .ends_with("no attribute 'stepp' (train.py, line 15)"),
                "{evidence:?}"
            );
        }
        // Of an earlier one that was caught it is not the place.
        let (_, evidence) = class(&(traceback("") + "and then\nValueError: no\n"));
        assert!(!evidence.last().unwrap().contains("line"), "{evidence:?}");
    }

    #[test]
    fn a_log_that_cannot_be_read_is_not_taken_for_one_without_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let section = LogSection::named("tprimat");
        let exit = never_ran(ExitKind::Code(0), 0.0);
        let of = |log: &Path| outcome(Some(&exit), (log, &[]), &section);
        let missing = folder.path().join("log");
        assert_eq!(of(&missing).unwrap(), RunOutcome::Ok, "it wrote nothing");
        assert!(of(folder.path()).is_err(), "a folder is no log");
    }

    #[test]
    fn a_failure_of_its_own_is_not_blamed_on_a_node_that_is_lost_as_well() {
        let (of_memory, _) = class("torch.OutOfMemoryError: CUDA out of memory.\n");
        assert_eq!(of_memory, FailureClass::Oom);
        let (of_peer, evidence) =
            class("RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1\n");
        assert_eq!(of_peer, FailureClass::Node);
        assert!(evidence[0].contains("left no word"), "{evidence:?}");
    }
}

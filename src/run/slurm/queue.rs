//! Slurm's commands, and what their answers mean.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{JOB_PREFIX, job_name};
use crate::{
    host::{self, AskError, ask_while},
    run::spec::{ExitKind, RunSpec},
};

/// A command of Slurm that takes longer does not answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same once nobody is to wait for jobs any more.
const HURRIED: Duration = Duration::from_secs(1);
/// After a refusal because the user has too many jobs, no training of the build submits for so long.
/// Otherwise each of them would ask Slurm anew every few seconds.
const FULL: Duration = Duration::from_secs(5);

/// Slurm's commands, as the caller would run them. Clones share one look at the queue.
#[derive(Clone)]
pub struct Commands {
    /// The caller's: PATH to the commands, and where Slurm's configuration is.
    env: BTreeMap<String, String>,
    listed: Arc<Mutex<Option<Listed>>>,
    /// The build is told to end and leaves its jobs: a command that hangs must not hold it.
    is_hurried: Arc<AtomicBool>,
    /// When Slurm last refused a job because the user has too many.
    full_since: Arc<Mutex<Option<Instant>>>,
    /// Was the user told how to keep a build below that limit?
    is_limit_told: Arc<AtomicBool>,
}

/// The caller's jobs, as Slurm listed them.
struct Listed {
    /// Before Slurm was asked; where it did not answer, when that was given up, so that those who
    /// waited for the answer do not each ask again.
    at: Instant,
    jobs: Result<HashMap<String, Shown>, SlurmError>,
}

/// Why Slurm did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SlurmError {
    #[error("there is no {0} in PATH")]
    NotInstalled(String),
    #[error(transparent)]
    NotAsked(#[from] AskError),
    /// What the failed command printed. `sbatch` may name the reason in a line before the last.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
}

/// Why a job was refused, as far as it decides what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The user, the account or the QOS has too many jobs in the queue: one can be submitted when
    /// others have ended. A Slurm that names no limit may mean another one.
    TooManyJobs { is_named: bool },
    /// It would be refused again.
    Lasting,
}

impl SlurmError {
    /// Will the same get through later? Slurm's commands exit alike whatever went wrong, so only
    /// their words say so.
    pub fn is_passing(&self) -> bool {
        const PASSING: [&str; 5] = [
            "Unable to contact",
            "Socket timed out",
            "Connection refused",
            "temporarily",
            "Zero Bytes were transmitted",
        ];
        match self {
            Self::NotInstalled(_) | Self::NotAsked(AskError::NotRun(_)) => false,
            Self::NotAsked(AskError::NoAnswer(_)) => true,
            // A line before the last one tells of an attempt that sbatch has repeated by itself.
            Self::Refused(lines) => lines
                .last()
                .is_some_and(|said| PASSING.iter().any(|part| said.contains(part))),
        }
    }

    /// Of a submission that was refused.
    pub fn refusal(&self) -> Refusal {
        let Self::Refused(lines) = self else {
            return Refusal::Lasting;
        };
        let Some((last, before)) = lines.split_last() else {
            return Refusal::Lasting;
        };
        if !last.contains("Job violates accounting/QOS policy") {
            return Refusal::Lasting;
        }
        // `QOSMaxSubmitJobPerUserLimit`, in a line of its own.
        let mut limits = before
            .iter()
            .filter_map(|line| line.split_whitespace().next_back())
            .filter(|word| word.starts_with("QOS") || word.starts_with("Assoc"))
            .peekable();
        if limits.peek().is_none() {
            Refusal::TooManyJobs { is_named: false }
        } else if limits.any(|limit| limit.contains("SubmitJob")) {
            Refusal::TooManyJobs { is_named: true }
        } else {
            Refusal::Lasting
        }
    }

    fn knows_no_such_job(&self) -> bool {
        matches!(self, Self::Refused(lines) if lines.iter().any(|said| said.contains("Invalid job id")))
    }
}

/// The lines that say something, without the `sbatch: error: ` before each. More than a few are a
/// plugin's talk.
fn lines_of(stderr: &[u8]) -> Vec<String> {
    const MOST: usize = 5;
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .lines()
        .map(|line| match line.split_once(": error: ") {
            Some((program, said)) if !program.contains(char::is_whitespace) => said.trim(),
            _ => line.trim(),
        })
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        return vec!["it said nothing".to_owned()];
    }
    let last = lines.iter().skip(lines.len().saturating_sub(MOST));
    last.map(|line| (*line).to_owned()).collect()
}

/// A job of ours. Slurm gives an id once more where its controller died before it had noted the
/// first job of that id, so what has neither this name nor this folder is not what was submitted. One
/// of the two is enough: a job may be renamed.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnJob<'a> {
    pub id: &'a str,
    /// Its run, in whose folder it was started.
    pub spec: &'a RunSpec,
}

impl OwnJob<'_> {
    fn is(&self, name: &str, dir: &str) -> bool {
        name == job_name(&self.spec.run_id) || Path::new(dir) == self.spec.dir
    }
}

/// What Slurm shows of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    name: String,
    dir: String,
    pub state: String,
    /// Why it waits; empty where there is no reason.
    pub reason: String,
}

impl Commands {
    #[must_use]
    pub fn new(env: BTreeMap<String, String>) -> Self {
        Self {
            env,
            listed: Arc::default(),
            is_hurried: Arc::default(),
            full_since: Arc::default(),
            is_limit_told: Arc::default(),
        }
    }

    /// Did Slurm say just now that the user has too many jobs?
    pub(super) fn is_full(&self) -> bool {
        let since = self
            .full_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() < FULL)
    }

    /// `is_full`: what the last submission has shown.
    pub(super) fn note_full(&self, is_full: bool) {
        let mut since = self
            .full_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *since = is_full.then(Instant::now);
    }

    /// True once for a build.
    pub(super) fn tells_of_limit(&self) -> bool {
        !self.is_limit_told.swap(true, Ordering::SeqCst)
    }

    /// From now on answers that do not come at once are not waited for.
    pub(super) fn hurry(&self) {
        self.is_hurried.store(true, Ordering::SeqCst);
    }

    /// What it printed.
    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, SlurmError> {
        let program = host::which(program, &self.env)
            .ok_or_else(|| SlurmError::NotInstalled(program.to_owned()))?;
        let patience = || {
            if self.is_hurried.load(Ordering::SeqCst) {
                HURRIED
            } else {
                PATIENCE
            }
        };
        let command = duct::cmd(program, arguments).full_env(&self.env);
        let said = ask_while(&command, &patience)?;
        if said.status.success() {
            Ok(String::from_utf8_lossy(&said.stdout).into_owned())
        } else {
            Err(SlurmError::Refused(lines_of(&said.stderr)))
        }
    }

    /// How a job stands; `None`: Slurm answers, and knows no such job any more. One listing of all
    /// the caller's jobs, at most `age` old, answers for everybody who waits for one.
    pub(super) fn state(&self, job: OwnJob, age: Duration) -> Result<Option<Shown>, SlurmError> {
        // Held while Slurm is asked: whoever comes meanwhile gets the same answer.
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if listed
            .as_ref()
            .is_none_or(|listed| listed.at.elapsed() > age)
        {
            let begun = Instant::now();
            let jobs = self.list();
            let at = if jobs.is_ok() { begun } else { Instant::now() };
            *listed = Some(Listed { at, jobs });
        }
        let found = match listed.as_ref().map(|listed| &listed.jobs) {
            Some(Ok(jobs)) => jobs.get(job.id).cloned(),
            Some(Err(why)) => return Err(why.clone()),
            None => None,
        };
        drop(listed);
        if found.is_some() {
            return Ok(found.filter(|shown| job.is(&shown.name, &shown.dir)));
        }
        // Submitted after the listing, or not the caller's own: only an answer about this very job
        // says that it is gone.
        match self.run(
            "squeue",
            &[
                "--noheader",
                "--states=all",
                "--format=%T|%r|%j|%Z",
                "--jobs",
                job.id,
            ],
        ) {
            Ok(said) => Ok(said
                .lines()
                .next()
                .and_then(|line| shown(line.trim()))
                .filter(|shown| job.is(&shown.name, &shown.dir))),
            Err(why) if why.knows_no_such_job() => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Has the caller another job in the queue than the one of this name, whose end may make room? It
    /// may be of another build. Where Slurm `names_limit` of jobs, it may be any; else the refusal may
    /// be for something that no end of a stranger's job changes.
    pub(super) fn has_other_jobs(&self, name: &str, names_limit: bool) -> Result<bool, SlurmError> {
        let is_other = |shown: &Shown| {
            let counts = names_limit || shown.name.starts_with(JOB_PREFIX);
            shown.name != name && counts && !is_final(&shown.state)
        };
        Ok(self.list()?.values().any(is_other))
    }

    fn list(&self) -> Result<HashMap<String, Shown>, SlurmError> {
        let user = format!("--user={}", nix::unistd::geteuid());
        let said = self.run(
            "squeue",
            &[
                "--noheader",
                "--states=all",
                "--format=%i|%T|%r|%j|%Z",
                &user,
            ],
        )?;
        let jobs = said.lines().filter_map(|line| {
            let (id, rest) = line.trim().split_once('|')?;
            Some((id.to_owned(), shown(rest)?))
        });
        Ok(jobs.collect())
    }

    /// How long a job may still run; `None`: without end, or not known.
    pub(crate) fn seconds_left(&self, id: &str) -> Option<f64> {
        let said = self
            .run("squeue", &["--noheader", "--format=%L", "--jobs", id])
            .ok()?;
        seconds(said.trim())
    }

    pub(super) fn find(&self, name: &str) -> Result<Option<String>, SlurmError> {
        let named = format!("--name={name}");
        let said = self.run(
            "squeue",
            &["--noheader", "--states=all", "--format=%i", &named],
        )?;
        Ok(said.split_whitespace().next().map(str::to_owned))
    }

    /// The last state that Slurm or its accounting knows of a job.
    pub(super) fn last_state(&self, job: OwnJob) -> Option<String> {
        // Asked for no job, Slurm tells of all.
        if job.id.is_empty() {
            return None;
        }
        let shown = self
            .run("scontrol", &["--oneliner", "show", "job", job.id])
            .ok();
        let word = |text: &str, key: &str| {
            let mut words = text.split_whitespace();
            let found = words.find_map(|word| word.strip_prefix(key));
            found.unwrap_or_default().to_owned()
        };
        shown
            .filter(|text| job.is(&word(text, "JobName="), &word(text, "WorkDir=")))
            .map(|text| word(&text, "JobState="))
            .or_else(|| self.recorded(job, "State"))
    }

    /// What the accounting has of a job, where there is one.
    fn recorded(&self, job: OwnJob, field: &str) -> Option<String> {
        let format = format!("--format={field},JobName,WorkDir");
        let arguments = [
            "--noheader",
            "--allocations",
            "--parsable2",
            &format,
            "--jobs",
            job.id,
        ];
        let said = self.run("sacct", &arguments).ok()?;
        said.lines().find_map(|line| {
            let (found, rest) = line.trim().split_once('|')?;
            let (name, dir) = rest.split_once('|')?;
            (job.is(name, dir) && !found.is_empty()).then(|| found.to_owned())
        })
    }

    /// The node that a job ran on.
    pub(super) fn node(&self, job: OwnJob) -> Option<String> {
        if job.id.is_empty() {
            return None;
        }
        let arguments = [
            "--noheader",
            "--states=all",
            "--format=%N|%j|%Z",
            "--jobs",
            job.id,
        ];
        let said = self.run("squeue", &arguments).unwrap_or_default();
        let shown = said.lines().find_map(|line| {
            let (node, rest) = line.trim().split_once('|')?;
            let (name, dir) = rest.split_once('|')?;
            (job.is(name, dir) && !node.is_empty()).then(|| node.to_owned())
        });
        shown
            .or_else(|| self.recorded(job, "NodeList"))
            .filter(|node| !node.starts_with("None"))
    }
}

/// Slurm's `days-hours:minutes:seconds`, of which the first ones may be left out.
fn seconds(text: &str) -> Option<f64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u32>().ok()?, clock),
        None => (0, text),
    };
    let mut all = 0.0;
    for part in clock.split(':') {
        all = all * 60.0 + f64::from(part.parse::<u32>().ok()?);
    }
    Some(f64::from(days) * 86_400.0 + all)
}

/// `state|reason|name|folder`.
fn shown(line: &str) -> Option<Shown> {
    let (state, rest) = line.split_once('|')?;
    let (reason, rest) = rest.split_once('|')?;
    let (name, dir) = rest.split_once('|')?;
    let reason = if reason == "None" {
        String::new()
    } else {
        reason.to_owned()
    };
    Some(Shown {
        name: name.to_owned(),
        dir: dir.to_owned(),
        state: state.to_owned(),
        reason,
    })
}

pub(super) fn fate_of(id: &str, state: &str) -> Option<ExitKind> {
    // `CANCELLED by 1000`
    match state.split_whitespace().next().unwrap_or_default() {
        "NODE_FAIL" => Some(ExitKind::Lost(format!("the node of Slurm job {id} failed"))),
        "BOOT_FAIL" => Some(ExitKind::Lost(format!(
            "the node of Slurm job {id} did not start"
        ))),
        "PREEMPTED" => Some(ExitKind::Killed(format!(
            "Slurm preempted job {id} for another one"
        ))),
        "OUT_OF_MEMORY" => Some(out_of_host_memory(id)),
        "CANCELLED" => Some(ExitKind::Killed(format!("Slurm job {id} was cancelled"))),
        "TIMEOUT" | "DEADLINE" => Some(ExitKind::Timeout),
        _ => None,
    }
}

pub(super) fn out_of_host_memory(id: &str) -> ExitKind {
    ExitKind::Killed(format!(
        "Slurm ended job {id}: it took more host memory than it had asked for"
    ))
}

pub(super) fn is_final(state: &str) -> bool {
    const FINAL: [&str; 10] = [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ];
    FINAL.contains(&state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gets_through_later_is_told_from_what_never_will() {
        let refused = |said: &str| SlurmError::Refused(lines_of(said.as_bytes()));
        assert!(SlurmError::from(AskError::NoAnswer(30)).is_passing());
        assert!(refused("slurm_load_jobs error: Socket timed out on send/recv").is_passing());
        // No message of ours decides, whatever a trainer's or a cluster's words have in them.
        for never in [
            SlurmError::NotInstalled("sbatch".to_owned()),
            SlurmError::from(AskError::NotRun("no answer in 3 s".to_owned())),
            refused("sbatch: error: invalid partition specified: no answer in sight"),
            // sbatch has waited by itself, and what it was told then is what counts.
            refused(
                "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\nsbatch: error: Invalid account",
            ),
        ] {
            assert!(!never.is_passing(), "{never}");
        }
        assert!(refused("slurm_load_jobs error: Invalid job id specified").knows_no_such_job());
    }

    #[test]
    fn a_limit_on_the_number_of_jobs_is_told_from_other_refusals() {
        const POLICY: &str = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)";
        let refusal = |said: &str| SlurmError::Refused(lines_of(said.as_bytes())).refusal();
        for limit in [
            "QOSMaxSubmitJobPerUserLimit",
            "QOSMaxSubmitJobPerAccountLimit",
            "QOSGrpSubmitJobsLimit",
            "AssocMaxSubmitJobLimit",
            "AssocGrpSubmitJobsLimit",
        ] {
            let said = format!("sbatch: error: {limit}\n{POLICY}\n");
            assert_eq!(
                refusal(&said),
                Refusal::TooManyJobs { is_named: true },
                "{limit}"
            );
        }
        assert_eq!(refusal(POLICY), Refusal::TooManyJobs { is_named: false });
        let too_long = format!("sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}");
        assert_eq!(refusal(&too_long), Refusal::Lasting);
        let absent = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition name specified";
        assert_eq!(refusal(absent), Refusal::Lasting);
        let told = SlurmError::Refused(lines_of(too_long.as_bytes())).to_string();
        assert!(
            told.starts_with("QOSMaxWallDurationPerJobLimit; Batch job"),
            "{told}"
        );
    }

    #[test]
    fn the_time_left_is_read_as_slurm_writes_it() {
        assert_eq!(seconds("59"), Some(59.0));
        assert_eq!(seconds("4:05"), Some(245.0));
        assert_eq!(seconds("1-02:00:01"), Some(93_601.0));
        assert_eq!((seconds("UNLIMITED"), seconds("")), (None, None));
    }

    #[test]
    fn each_end_that_slurm_knows_is_told_apart() {
        let is = |state: &str| fate_of("7", state);
        assert!(matches!(is("NODE_FAIL"), Some(ExitKind::Lost(_))));
        assert!(
            matches!(is("PREEMPTED"), Some(ExitKind::Killed(why)) if why.contains("preempted"))
        );
        assert!(
            matches!(is("OUT_OF_MEMORY"), Some(ExitKind::Killed(why)) if why.contains("host memory"))
        );
        assert!(
            matches!(is("CANCELLED by 1000"), Some(ExitKind::Killed(why)) if why.contains("cancelled"))
        );
        assert_eq!(is("TIMEOUT"), Some(ExitKind::Timeout));
        assert_eq!((is("COMPLETED"), is("RUNNING"), is("")), (None, None, None));
    }
}

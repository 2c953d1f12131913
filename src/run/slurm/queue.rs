//! Slurm's commands, and what their answers mean.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    host::last_line,
    run::{
        folder::lock,
        spec::{ExitKind, RunSpec},
        system::{Answer, Commands, Shown, SystemError, job_name},
    },
};

/// After a refusal because the user has too many jobs, no training of the build submits for so long.
/// Otherwise each of them would ask Slurm anew every few seconds.
const FULL: Duration = Duration::from_secs(5);

/// What is asked for, in lines of [`Listed::read`].
const LISTED: &str = "--noheader --states=all --format=%i|%T|%r|%N|%j|%Z";
const RECORDED: &str =
    "--noheader --allocations --parsable2 --format=JobIDRaw,State,Reason,NodeList,JobName,WorkDir";

/// Slurm, as the caller's commands reach it.
#[derive(Clone, Default)]
pub struct Slurm {
    pub(super) commands: Commands<Jobs>,
    /// When Slurm last refused a job because the user has too many.
    refused_at: Arc<Mutex<Option<Instant>>>,
}

/// By their ids.
type Jobs = HashMap<String, Listed>;

/// A line before the last one tells of an attempt that sbatch has repeated by itself.
fn is_passing(stderr: &str) -> bool {
    const PASSING: [&str; 5] = [
        "Unable to contact",
        "Socket timed out",
        "Connection refused",
        "temporarily",
        "Zero Bytes were transmitted",
    ];
    let last = last_line(stderr.as_bytes());
    PASSING.iter().any(|part| last.contains(part))
}

/// Was a job refused because there are too many of the user, the account or the QOS? The refusal may be for
/// something else that no end of another job changes.
pub(super) fn may_be_full(why: &SystemError) -> bool {
    why.said.contains("Job violates accounting/QOS policy")
}

/// What Slurm shows of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// Empty where Slurm answers and knows no such job any more.
    pub state: String,
    /// Why it waits; empty where there is no reason.
    pub reason: String,
    /// Where it runs or ran, where that is known.
    pub nodes: Option<String>,
    pub name: String,
    pub dir: String,
}

impl Listed {
    /// `id|state|reason|nodes|name|folder`, of which the folder may have any character.
    fn read(line: &str) -> Option<(String, Self)> {
        let fields: Vec<&str> = line.trim().splitn(6, '|').collect();
        let [id, state, reason, nodes, name, dir] = fields[..] else {
            return None;
        };
        // Slurm has words for what there is not: `None`, `None assigned`, `(null)`.
        let is_said =
            |text: &&str| !text.is_empty() && !text.starts_with('(') && !text.starts_with("None");
        let shown = Self {
            state: state.to_owned(),
            reason: Some(reason).filter(is_said).unwrap_or_default().to_owned(),
            nodes: Some(nodes).filter(is_said).map(str::to_owned),
            name: name.to_owned(),
            dir: dir.to_owned(),
        };
        Some((id.to_owned(), shown))
    }

    /// Is it the job of this run? Slurm gives an id once more where its controller died before it had
    /// noted the first job of that id, so what has neither this name nor this folder is not what was
    /// submitted. One of the two is enough: a job may be renamed.
    pub fn is_of(&self, spec: &RunSpec) -> bool {
        self.name == job_name(&spec.run_id) || Path::new(&self.dir) == spec.dir
    }

    pub fn is_over(&self) -> bool {
        let ends = ["", "COMPLETED", "FAILED", "REVOKED"];
        ends.contains(&self.state.as_str()) || fate_of("", &self.state).is_some()
    }

    pub fn shown(self, id: &str) -> Shown {
        Shown {
            is_over: self.is_over(),
            ended_well: self.state == "COMPLETED",
            fate: fate_of(id, &self.state),
            state: self.state,
            reason: self.reason,
            nodes: self.nodes,
            ..Shown::default()
        }
    }
}

impl Slurm {
    #[must_use]
    pub fn new(env: BTreeMap<String, String>) -> Self {
        Self {
            commands: Commands::new(env),
            ..Self::default()
        }
    }

    /// Did Slurm say just now that the user has too many jobs?
    pub(super) fn is_full(&self) -> bool {
        lock(&self.refused_at).is_some_and(|at| at.elapsed() < FULL)
    }

    /// Notes that it did; true the first time in a build.
    pub(super) fn note_full(&self) -> bool {
        lock(&self.refused_at).replace(Instant::now()).is_none()
    }

    /// What a command printed. `sbatch` may name the reason in a line before the last one.
    pub(super) fn run(&self, program: &str, words: &[&str]) -> Answer<String> {
        let said = self.commands.run(program, words, "", is_passing);
        said.map_err(|why| SystemError {
            said: why.said.replace("sbatch: error: ", ""),
            ..why
        })
    }

    /// All of the caller's jobs.
    pub(super) fn list(&self, age: Duration) -> Answer<Arc<Jobs>> {
        let user = nix::unistd::geteuid();
        let list = || self.ask("squeue", &format!("{LISTED} --user={user}"));
        self.commands.listed(Vec::new(), age, list)
    }

    /// The jobs that a command lists.
    fn ask(&self, program: &str, words: &str) -> Answer<Jobs> {
        let said = self.run(program, &words.split(' ').collect::<Vec<_>>())?;
        Ok(said.lines().filter_map(Listed::read).collect())
    }

    /// How a job stands; `age`: of an answer that somebody else got.
    pub(super) fn state_of(&self, id: &str, spec: &RunSpec, age: Duration) -> Answer<Listed> {
        match self.list(age)?.get(id) {
            Some(shown) if shown.is_of(spec) => Ok(shown.clone()),
            // Submitted after the listing, or over for long, or not the caller's own.
            _ => self.ask_for(id, spec),
        }
    }

    /// The same of this job alone, from the controller or else from the accounting.
    fn ask_for(&self, id: &str, spec: &RunSpec) -> Answer<Listed> {
        // Asked for no job, Slurm tells of all.
        if id.is_empty() {
            return Ok(Listed::default());
        }
        let own = |jobs: &Jobs| jobs.get(id).filter(|shown| shown.is_of(spec)).cloned();
        let listed = self.ask("squeue", &format!("{LISTED} --jobs={id}"));
        let recorded = || own(&self.ask("sacct", &format!("{RECORDED} --jobs={id}")).ok()?);
        match (listed.as_ref().ok().and_then(own).or_else(recorded), listed) {
            (Some(shown), _) => Ok(shown),
            (None, Err(why)) if !why.said.contains("Invalid job id") => Err(why),
            // Another job has the id by now, or none.
            _ => Ok(Listed::default()),
        }
    }

    /// How long a job may still run; `None`: without end, or not known.
    pub(crate) fn seconds_left(&self, id: &str) -> Option<f64> {
        let said = self.run("squeue", &["--noheader", "--format=%L", "--jobs", id]);
        seconds(said.ok()?.trim())
    }
}

/// Slurm's `days-hours:minutes:seconds`, of which the first ones may be left out.
fn seconds(text: &str) -> Option<f64> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut all = 0.0;
    for part in clock.split(':') {
        all = all * 60.0 + f64::from(part.parse::<u32>().ok()?);
    }
    Some(f64::from(days.parse::<u32>().ok()?) * 86_400.0 + all)
}

/// How a run ended whose job Slurm ended, with Slurm's own word; `None`: Slurm did not end it.
fn fate_of(id: &str, state: &str) -> Option<ExitKind> {
    // `CANCELLED by 1000`
    let state = state.split_whitespace().next()?;
    let said = state.to_lowercase().replace('_', " ");
    let said = format!("Slurm job {id} ended: {said}");
    match state {
        "NODE_FAIL" | "BOOT_FAIL" => Some(ExitKind::Lost(said)),
        "PREEMPTED" | "OUT_OF_MEMORY" | "CANCELLED" => Some(ExitKind::Killed(said)),
        "TIMEOUT" | "DEADLINE" => Some(ExitKind::Timeout),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gets_through_later_is_told_from_what_never_will() {
        assert!(is_passing(
            "slurm_load_jobs error: Socket timed out on send/recv"
        ));
        // No message of ours decides, whatever a trainer's or a cluster's words have in them.
        for never in [
            "sbatch: error: invalid partition specified: no answer in sight",
            // sbatch has waited by itself, and what it was told then is what counts.
            "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\nsbatch: error: Invalid account",
        ] {
            assert!(!is_passing(never), "{never}");
        }
        let nothing = Slurm::new([("PATH".to_owned(), "/nowhere".to_owned())].into());
        let absent = nothing.run("sbatch", &[]).unwrap_err();
        assert!(!absent.is_passing && absent.to_string().contains("no sbatch in PATH"));
    }

    #[test]
    fn a_limit_on_the_number_of_jobs_is_told_from_other_refusals() {
        const POLICY: &str = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)";
        // A command that says so and fails.
        let refusal = |said: &str| {
            let folder = tempfile::tempdir().unwrap();
            let script = format!("#!/bin/sh\nprintf '%s' \"{said}\" >&2\nexit 1\n");
            crate::mock::program(&folder.path().join("sbatch"), script);
            let path = folder.path().display().to_string();
            let slurm = Slurm::new([("PATH".to_owned(), path)].into());
            slurm.run("sbatch", &[]).unwrap_err()
        };
        for limit in [
            "QOSMaxSubmitJobPerUserLimit",
            "QOSMaxSubmitJobPerAccountLimit",
            "QOSGrpSubmitJobsLimit",
            "AssocMaxSubmitJobLimit",
            "AssocGrpSubmitJobsLimit",
        ] {
            let said = refusal(&format!("sbatch: error: {limit}\n{POLICY}\n"));
            assert!(may_be_full(&said), "{limit}");
        }
        assert!(may_be_full(&refusal(POLICY)));
        let too_long = refusal(&format!(
            "sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}"
        ));
        let absent = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition name specified";
        assert!(!may_be_full(&refusal(absent)));
        let told = too_long.to_string();
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
        for (state, word) in [
            ("PREEMPTED", "preempted"),
            ("OUT_OF_MEMORY", "out of memory"),
            ("CANCELLED by 1000", "cancelled"),
        ] {
            assert!(matches!(is(state), Some(ExitKind::Killed(why)) if why.contains(word)));
        }
        assert_eq!(is("TIMEOUT"), Some(ExitKind::Timeout));
        assert_eq!((is("COMPLETED"), is("RUNNING"), is("")), (None, None, None));
        let is_over = |state: &str| {
            let state = state.to_owned();
            Listed {
                state,
                ..Listed::default()
            }
            .is_over()
        };
        assert!(is_over("CANCELLED by 1000") && is_over("FAILED") && is_over(""));
        assert!(!is_over("RUNNING") && !is_over("COMPLETING") && !is_over("REQUEUED"));
    }
}

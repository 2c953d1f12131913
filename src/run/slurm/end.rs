//! How the run of a job ended, as far as it can be seen from here.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::{
    WITHDRAWN, claim_path, job_name, job_path,
    node::take,
    noted,
    queue::{Commands, OwnJob, fate_of, is_final, out_of_host_memory},
};
use crate::{
    cache::Undeclared,
    error::Result,
    files::unix_now,
    host::last_line,
    run::{
        end_note::exit_or_end,
        folder::{last_seen, tail_of},
        leftovers::end_leftovers,
        spec::{ExitKind, RunExit, RunSpec},
    },
};

/// How long after a job's end its files may take to be seen here.
pub(super) const SETTLE: Duration = Duration::from_secs(5);
/// The same of a job that ended well, whose exit.json is there for sure. An NFS client may believe
/// for up to a minute that a file which it did not find is still not there.
const VISIBLE: Duration = Duration::from_secs(90);
/// After this a job's last state does not change any more.
const LONG_AGO: Duration = Duration::from_secs(60);
/// Between two questions for the last state of a job.
const PAUSE: Duration = Duration::from_millis(500);

/// How the run of a job that is over ended. The folder is listed first: a client of a network file
/// system then looks again for files that it did not find before.
pub(super) fn exit_of_ended(dir: &Path) -> Result<Option<RunExit>> {
    let _ = fs::read_dir(dir).map(Iterator::count);
    exit_or_end(dir)
}

/// What follows where a job is over and no exit.json is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The file may come to be seen.
    Wait,
    /// The run ended well, so its measurement is there, whatever is seen of it: nothing is run
    /// instead.
    Keep,
    /// There will be none.
    Ended,
}

/// `state`: the job's last one; `since`: for how long it has been over here.
pub(super) fn after(state: Option<&str>, since: Duration) -> After {
    // Slurm says so of a job whose command ended with 0: the supervisor had recorded the exit.
    let ended_well = state == Some("COMPLETED");
    match ended_well {
        true if since >= VISIBLE => After::Keep,
        false if since >= SETTLE => After::Ended,
        _ => After::Wait,
    }
}

pub(super) fn unseen(dir: &Path, id: &str) -> String {
    format!(
        "Slurm job {id} ended well, but this host does not see exit.json in {}: the next build looks again; to measure anew, \
         remove the folder",
        dir.display()
    )
}

/// A supervisor that was told to end does not know why, nor does a trainer that got the signal
/// first; Slurm does. A launcher such as torchrun ends with 1 whatever ended its workers, so Slurm is
/// asked after every end that may be somebody else's doing.
pub(crate) fn explained(spec: &RunSpec, slurm: &Commands, exit: RunExit) -> RunExit {
    let is_in_doubt = match exit.status {
        ExitKind::Interrupted | ExitKind::Signal(_) => true,
        ExitKind::Code(code) => code != 0,
        _ => false,
    };
    let Some(id) = id_of(&spec.dir).filter(|_| is_in_doubt) else {
        return exit;
    };
    let job = OwnJob { id: &id, spec };
    // The job's end may take a moment to be known; a job that ended long ago is known or forgotten.
    let is_long_ago = unix_now() - exit.ended_at > LONG_AGO.as_secs_f64();
    let patience = if is_long_ago { Duration::ZERO } else { SETTLE };
    let begun = Instant::now();
    loop {
        let state = slurm.last_state(job).unwrap_or_default();
        if let Some(status) = fate_of(&id, &state) {
            return RunExit { status, ..exit };
        }
        if is_final(&state) || begun.elapsed() >= patience {
            break;
        }
        thread::sleep(PAUSE);
    }
    match has_oom_kill(&spec.dir) {
        true => RunExit {
            status: out_of_host_memory(&id),
            ..exit
        },
        false => exit,
    }
}

/// Did Slurm's own step daemon write into the job's output that the kernel killed a process of the
/// job for lack of memory? The job may end as another state all the same, as where the process was
/// in a step that srun started.
fn has_oom_kill(dir: &Path) -> bool {
    /// What the daemon says at a job's end is at the end of the file.
    const TAIL: u64 = 64 << 10;
    let said = tail_of(&dir.join("supervisor.log"), TAIL).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().any(|line| {
        let is_of_slurm = line.contains("slurmstepd: ");
        is_of_slurm && (line.contains("oom-kill event") || line.contains("oom_kill event"))
    })
}

/// The job that has the run of a folder, or that was submitted for it last.
fn id_of(dir: &Path) -> Option<String> {
    noted_job(dir).ok().flatten().filter(|id| id != WITHDRAWN)
}

fn noted_job(dir: &Path) -> Result<Option<String>> {
    match noted(&claim_path(dir))? {
        None => noted(&job_path(dir)),
        claimed => Ok(claimed),
    }
}

/// What became of a run whose tprimat is dead.
pub(crate) enum Left {
    /// It goes on, or Slurm does not answer, or its end is not seen here yet. Whoever wants the run
    /// waits for it.
    GoesOn,
    /// Its tprimat died before the submission: nothing has run.
    NeverWas,
    Ended(Box<RunExit>),
}

/// `age`: of an answer of Slurm's that somebody else got.
pub(crate) fn left(spec: &RunSpec, slurm: &Commands, age: Duration) -> Left {
    let id = match noted_job(&spec.dir) {
        Ok(Some(claimed)) if claimed == WITHDRAWN => return Left::NeverWas,
        Ok(Some(id)) => id,
        Ok(None) => match slurm.find(&job_name(&spec.run_id)) {
            Ok(Some(id)) => id,
            // A submission of the dead tprimat may still get through: the run is withdrawn from
            // it, and where a job was first, that job has the run.
            Ok(None) => match take(&spec.dir, WITHDRAWN) {
                Ok(true) => return Left::NeverWas,
                Ok(false) | Err(_) => return Left::GoesOn,
            },
            Err(_) => return Left::GoesOn,
        },
        Err(_) => return Left::GoesOn,
    };
    let job = OwnJob { id: &id, spec };
    let state = match slurm.state(job, age) {
        Ok(Some(shown)) if !is_final(&shown.state) => return Left::GoesOn,
        Ok(Some(shown)) => Some(shown.state),
        Ok(None) => slurm.last_state(job),
        Err(_) => return Left::GoesOn,
    };
    // Written just before the end, it may have come in between.
    match exit_of_ended(&spec.dir) {
        Ok(Some(exit)) => Left::Ended(Box::new(explained(spec, slurm, exit))),
        Ok(None) if after(state.as_deref(), SETTLE) == After::Ended => {
            Left::Ended(Box::new(ended_unseen(slurm, job)))
        }
        Ok(None) | Err(_) => Left::GoesOn,
    }
}

pub(super) fn ended_unseen(slurm: &Commands, job: OwnJob) -> RunExit {
    let OwnJob { id, spec } = job;
    // The job may have run on this host, and whoever killed it may have killed its guard as well.
    // On any other host there is nothing to end.
    let _ = end_leftovers(&spec.run_id);
    let (started_at, ended_at) = last_seen(&spec.dir);
    let unknown = || {
        ExitKind::Lost(format!(
            "Slurm job {id} is over and left no word of how its run ended"
        ))
    };
    let said = fs::read(spec.dir.join("supervisor.log")).unwrap_or_default();
    let note = (!said.is_empty()).then(|| last_line(&said));
    let status = slurm
        .last_state(job)
        .and_then(|state| fate_of(id, &state))
        .unwrap_or_else(unknown);
    RunExit {
        status,
        started_at,
        ended_at,
        waited_seconds: 0.0,
        survivors: 0,
        changed: Vec::new(),
        undeclared: Undeclared::default(),
        lost_nodes: None,
        host: slurm.node(job),
        note,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::spec::never_ran;

    #[test]
    fn what_ended_well_is_waited_for_and_never_given_up() {
        let minute = Duration::from_secs(60);
        assert_eq!(after(Some("COMPLETED"), minute), After::Wait);
        assert_eq!(after(Some("COMPLETED"), 60 * minute), After::Keep);
        assert_eq!(after(Some("NODE_FAIL"), minute), After::Ended);
        assert_eq!(
            (after(None, Duration::ZERO), after(None, minute)),
            (After::Wait, After::Ended)
        );
    }

    /// The description of a run in a folder, and Slurm's commands, which a test writes.
    fn run_and_commands(folder: &Path) -> (RunSpec, Commands) {
        let (dir, bin) = (folder.join("run"), folder.join("bin"));
        crate::files::create_dir_all(&dir).unwrap();
        crate::files::create_dir_all(&bin).unwrap();
        let spec = serde_json::from_value(serde_json::json!({
            "run_id": "run", "dir": dir, "argv": ["true"], "cwd": "/", "timeout_seconds": null,
            "grace_seconds": 1.0, "devices": [], "exclusive": true, "lock_dir": "/tmp", "meta": null,
        }));
        let path = format!("{}:/usr/bin:/bin", bin.display());
        (
            spec.unwrap(),
            Commands::new([("PATH".to_owned(), path)].into()),
        )
    }

    fn write_command(folder: &Path, name: &str, script: &str) {
        let (path, new) = (folder.join("bin").join(name), folder.join("bin/new"));
        crate::mock::program(&new, format!("#!/bin/sh\n{script}\n"));
        #[expect(clippy::disallowed_methods, reason = "a stand-in of this test")]
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn an_id_that_was_given_again_says_nothing_of_the_first_job() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, commands) = run_and_commands(folder.path());
        take(&spec.dir, "7").unwrap();
        let of = |name: &str, dir: &Path| {
            let (of, dir) = (format!("{name}|{}", dir.display()), dir.display());
            let listed = format!(
                "case \"$*\" in *%i*) echo '7|COMPLETED|None|{of}';; *%N*) ;; *) echo 'COMPLETED|None|{of}';; esac"
            );
            write_command(folder.path(), "squeue", &listed);
            let shown = format!("echo 'JobId=7 JobName={name} JobState=COMPLETED WorkDir={dir}'");
            write_command(folder.path(), "scontrol", &shown);
            let commands = commands.clone();
            left(&spec, &commands, Duration::ZERO)
        };
        // Its own job ended well, so its exit.json is somewhere.
        let elsewhere = Path::new("/elsewhere");
        assert!(matches!(of("tprimat-run", elsewhere), Left::GoesOn));
        assert!(matches!(of("renamed", &spec.dir), Left::GoesOn));
        assert!(matches!(of("tprimat-another", elsewhere), Left::Ended(_)));
    }

    #[test]
    fn slurm_is_asked_why_a_launcher_failed_whose_workers_it_may_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, commands) = run_and_commands(folder.path());
        take(&spec.dir, "7").unwrap();
        let ended = |code: i32, state: &str| {
            let dir = spec.dir.display();
            let shown = format!(
                "echo asked >> {dir}/asked; echo 'JobId=7 JobName=tprimat-run JobState={state} WorkDir={dir}'"
            );
            write_command(folder.path(), "scontrol", &shown);
            let exit = RunExit {
                ended_at: unix_now(),
                ..never_ran(ExitKind::Code(code), 0.0)
            };
            explained(&spec, &commands, exit).status
        };
        let is_of_memory =
            |status| matches!(status, ExitKind::Killed(why) if why.contains("host memory"));
        assert!(is_of_memory(ended(1, "OUT_OF_MEMORY")));
        assert_eq!(ended(1, "COMPLETED"), ExitKind::Code(1));
        let asked = || fs::read_to_string(spec.dir.join("asked")).unwrap();
        assert_eq!(asked().lines().count(), 2, "once for each");
        // The step daemon's word is enough, and a trainer's own words are not.
        let output = |said: &str| {
            let path = spec.dir.join("supervisor.log");
            crate::files::write_atomically(&path, said.as_bytes(), crate::files::Durability::Plain)
        };
        output("an oom_kill event\n").unwrap();
        assert_eq!(ended(1, "COMPLETED"), ExitKind::Code(1));
        output("slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some of the step tasks have been OOM Killed.\n").unwrap();
        assert!(is_of_memory(ended(1, "COMPLETED")));
        assert_eq!(ended(0, "OUT_OF_MEMORY"), ExitKind::Code(0));
    }

    #[test]
    fn a_job_that_comes_between_the_question_and_the_answer_keeps_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, commands) = run_and_commands(folder.path());
        let dir = &spec.dir;
        // Which knows of no job, and while it is asked one may claim the folder.
        let squeue = |meanwhile: String| write_command(folder.path(), "squeue", &meanwhile);
        squeue(format!("echo 7 > {}/claim", dir.display()));
        assert!(matches!(
            left(&spec, &commands, Duration::ZERO),
            Left::GoesOn
        ));
        assert_eq!(noted(&claim_path(dir)).unwrap().as_deref(), Some("7"));
        // Where none came, none can come any more.
        fs::remove_file(claim_path(dir)).unwrap();
        squeue(String::new());
        assert!(matches!(
            left(&spec, &commands, Duration::ZERO),
            Left::NeverWas
        ));
        assert!(!take(dir, "7").unwrap());
    }
}

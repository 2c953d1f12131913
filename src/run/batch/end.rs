//! How the run of a job ended, as far as it can be seen from here.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use super::claim::{WITHDRAWN, noted_job};
use crate::{
    error::Result,
    host::last_line,
    run::{
        end_note::exit_or_end,
        executor::End,
        folder::{hosts_of, last_seen, supervisor_said},
        leftovers::end_leftovers,
        spec::{ExitKind, RunExit, RunSpec, never_ran},
        system::{Shown, System, job_of},
    },
};

/// How long after a job's end its files may take to be seen here.
const SETTLE: Duration = Duration::from_secs(5);
/// The same of a job that ended well, whose exit.json is there for sure. An NFS client may believe
/// for up to a minute that a file which it did not find is still not there.
const VISIBLE: Duration = Duration::from_secs(90);
/// Within which time a system notices that a node is lost: Kubernetes after 40 s, or 50 s since 1.32.
const NOTICED: Duration = Duration::from_secs(60);
/// How long the files of a supervisor that is gone are waited for.
pub(crate) fn patience(ended_well: bool) -> Duration {
    if ended_well { VISIBLE } else { SETTLE }
}

/// How a run ended whose supervisor is gone. The folder is listed first: a client of a network file
/// system then looks again for files that it did not find before.
pub(crate) fn exit_of_ended(dir: &Path) -> Result<Option<RunExit>> {
    let _ = fs::read_dir(dir).map(Iterator::count);
    exit_or_end(dir)
}

/// A supervisor that was told to end does not know why, nor does a trainer that got the signal
/// first; the system does. A launcher such as torchrun ends with 1 whatever ended its workers, so it is
/// asked after every end that may be somebody else's doing, for as long as somebody awaits its answer.
pub(crate) fn explained(
    spec: &RunSpec,
    system: &dyn System,
    exit: RunExit,
    is_awaited: impl Fn() -> bool,
) -> RunExit {
    let is_interrupted = exit.status == ExitKind::Interrupted;
    let is_told = is_interrupted || matches!(exit.status, ExitKind::Signal(_));
    // The others noticed at once that a node was gone; the system may take a minute.
    let has_lost = matches!(exit.status, ExitKind::Lost(_)) || exit.lost_nodes.is_some();
    let is_in_doubt =
        is_told || has_lost || matches!(exit.status, ExitKind::Code(code) if code != 0);
    let patience = if has_lost { NOTICED } else { SETTLE };
    let noted = noted_job(&spec.dir).ok().flatten();
    let Some(id) = noted.filter(|id| is_in_doubt && id != WITHDRAWN) else {
        return exit;
    };
    let begun = Instant::now();
    // The job's end may take a moment to be known.
    let mut shown = loop {
        match system.state(&id, spec, Duration::ZERO) {
            Ok(shown) if shown.is_over || has_lost && shown.is_silent => break shown,
            Err(why) if !why.is_passing => break Shown::default(),
            Ok(shown) if begun.elapsed() >= patience => break shown,
            _ if begun.elapsed() >= patience || !is_awaited() => break Shown::default(),
            _ => thread::sleep(patience / 10),
        }
    };
    // A node that does not answer now was well when the run's end was recorded on it.
    let is_late = !shown.is_over && !has_lost;
    (shown.fate).take_if(|fate| is_late && matches!(fate, ExitKind::Lost(_)));
    match system.fate(spec, shown, is_interrupted) {
        // A rank that failed may have done so by itself.
        Some(ExitKind::Lost(why)) if exit.lost_nodes.is_some() => RunExit {
            lost_nodes: Some(why),
            ..exit
        },
        Some(status) => RunExit { status, ..exit },
        None => exit,
    }
}

/// How the wait for a job ends that the system says is over while this host does not see its exit.json.
/// `shown`: the last state that it gave.
pub(super) fn ended_unseen(spec: &RunSpec, system: &dyn System, shown: Shown) -> End {
    let id = noted_job(&spec.dir).ok().flatten().unwrap_or_default();
    // The accounting may know by now what the controller has forgotten.
    let shown = match shown.state.as_str() {
        "" => system.state(&id, spec, Duration::ZERO).unwrap_or(shown),
        _ => shown,
    };
    let job = job_of(system, &id);
    // Its measurement is there, whatever is seen of it: nothing is run instead.
    if shown.ended_well {
        return End::Unseen(format!(
            "{job} ended well, but this host does not see exit.json in {}: the next build looks again; to measure anew, \
             remove the folder",
            spec.dir.display()
        ));
    }
    // The job may have run on this host, and whoever killed its supervisor left the rest. On any other
    // host there is nothing to end.
    let _ = end_leftovers(&spec.run_id);
    // What the system shows may be a later start, which ran nothing.
    let host = hosts_of(&spec.dir, spec.nodes()).or_else(|| shown.nodes.clone());
    let is_lost = || system.loss_of(spec, host.as_deref()?).map(ExitKind::Lost);
    let status = system.fate(spec, shown, false).or_else(is_lost);
    let status = status.unwrap_or_else(|| {
        ExitKind::Lost(format!(
            "{job} is over and left no word of how its run ended"
        ))
    });
    let (started_at, ended_at) = last_seen(&spec.dir);
    End::Over(Box::new(RunExit {
        started_at,
        ended_at,
        host,
        note: supervisor_said(&spec.dir).map(|said| last_line(said.as_bytes())),
        ..never_ran(status, 0.0)
    }))
}

#[cfg(test)]
mod tests {
    use super::super::{Systems, claim::take, left};
    use super::*;
    use crate::{files::unix_now, run::slurm::Slurm};

    #[test]
    fn what_ended_well_is_left_in_its_folder_and_never_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, slurm) = run_and_slurm(folder.path());
        let of = |state: &str| {
            let shown = Shown {
                state: state.to_owned(),
                ended_well: state == "COMPLETED",
                ..Shown::default()
            };
            ended_unseen(&spec, &slurm, shown)
        };
        assert!(matches!(of("COMPLETED"), End::Unseen(_)));
        for ended in ["NODE_FAIL", ""] {
            let lost = of(ended);
            assert!(
                matches!(&lost, End::Over(exit) if matches!(exit.status, ExitKind::Lost(_))),
                "{lost:?}"
            );
        }
    }

    /// The description of a run in a folder, and Slurm's commands, which a test writes.
    fn run_and_slurm(folder: &Path) -> (RunSpec, Slurm) {
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
            Slurm::new([("PATH".to_owned(), path)].into()),
        )
    }

    fn systems(slurm: &Slurm) -> Systems {
        let slurm = slurm.clone();
        Systems {
            slurm,
            ..Systems::default()
        }
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
        let (spec, slurm) = run_and_slurm(folder.path());
        take(&spec.dir, "7").unwrap();
        let of = |name: &str, dir: &Path| {
            let of = format!("{name}|{}", dir.display());
            let listed = format!("echo '7|COMPLETED|None|n1|{of}'");
            write_command(folder.path(), "squeue", &listed);
            left(&spec, &systems(&slurm), Duration::ZERO)
        };
        // Its own job ended well, so its exit.json is somewhere.
        let elsewhere = Path::new("/elsewhere");
        assert!(of("tprimat-run", elsewhere).is_none());
        assert!(of("renamed", &spec.dir).is_none());
        assert!(matches!(
            of("tprimat-another", elsewhere),
            Some(End::Over(_))
        ));
    }

    #[test]
    fn slurm_is_asked_why_a_launcher_failed_whose_workers_it_may_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, slurm) = run_and_slurm(folder.path());
        take(&spec.dir, "7").unwrap();
        let ended = |code: i32, state: &str| {
            let dir = spec.dir.display();
            let shown =
                format!("echo asked >> {dir}/asked; echo '7|{state}|None|n1|tprimat-run|{dir}'");
            write_command(folder.path(), "squeue", &shown);
            let exit = RunExit {
                ended_at: unix_now(),
                ..never_ran(ExitKind::Code(code), 0.0)
            };
            explained(&spec, &slurm, exit, || true).status
        };
        let is_of_memory =
            |status| matches!(status, ExitKind::Killed(why) if why.contains("out of memory"));
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
        let (spec, slurm) = run_and_slurm(folder.path());
        let dir = &spec.dir;
        // Which knows of no job, and while it is asked one may claim the folder.
        let squeue = |meanwhile: String| write_command(folder.path(), "squeue", &meanwhile);
        squeue(format!("echo 7 > {}/claim", dir.display()));
        assert!(left(&spec, &systems(&slurm), Duration::ZERO).is_none());
        assert_eq!(noted_job(dir).unwrap().as_deref(), Some("7"));
        // Where none came, none can come any more.
        fs::remove_file(dir.join("claim")).unwrap();
        squeue(String::new());
        assert!(matches!(
            left(&spec, &systems(&slurm), Duration::ZERO),
            Some(End::NeverWas)
        ));
        assert!(!take(dir, "7").unwrap());
    }
}

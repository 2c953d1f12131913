//! Runs as batch jobs: one job a run, which holds the run's supervisor on its node. Project and
//! cache are on a file system that the nodes share.
//!
//! | what happens | what follows |
//! |---|---|
//! | tprimat dies, Ctrl-C | the job goes on; the next build finds it by its name and takes it up |
//! | tprimat dies within the submission | Slurm is asked for a job of that name before another one is submitted |
//! | the job starts twice all the same | the one that makes `claim` in the run folder runs; the others end, and tprimat follows the claim |
//! | slurmctld does not answer | it is asked again until it does |
//! | the user has as many jobs as Slurm allows | it is submitted once others have ended |
//! | sbatch refuses the job otherwise | this training has nothing, with the reason; others go on |
//! | the job ended well, and `exit.json` is not seen here | it is waited for, then left in its folder: nothing is run instead |
//! | the run failed, whatever its exit code | Slurm says whether it ended the job: memory, time, node, `scancel` |
//! | the job ended otherwise, without `exit.json` | Slurm says why: lost node, preempted, out of time, out of memory, cancelled |
//! | the node differs from tprimat.lock | nothing runs there; the failure names the lines |
//! | Ctrl-C with `cancel_on_interrupt` | `scancel` until Slurm takes it; a second Ctrl-C leaves the job |

mod claim;
mod end;
mod node;
mod queue;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use super::{
    executor::{End, Executor, Interrupted, LOOK, Run},
    folder::{self, lock, owner_lock_path, read_exit, state_path, take_lock, write_spec},
    slurm::{
        claim::{CLAIM, ENVIRONMENT, SUBMITTED, WITHDRAWN, job_name, make, noted, noted_job},
        end::ended_unseen,
        queue::Shown,
    },
    spec::{RUN_ARGUMENT, RunSpec, RunState},
};
use crate::{
    error::{Error, Result},
    files::{self, Durability},
    job::Vendor,
};

pub use claim::is_of_a_job;
pub(crate) use claim::{claim, take};
pub(crate) use end::{exit_of_ended, explained, patience};
pub(crate) use node::settle_in;
pub use queue::Commands;

/// The last word of `tprimat __run DIR job`, the supervisor of the run in DIR inside its job.
pub(crate) const JOB: &str = "job";

/// Between two questions to Slurm, first and last: a cluster has many users.
const QUESTIONS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// How long beyond its grace a job that was told to end may take before Slurm ends it.
const CANCELLED: Duration = Duration::from_secs(30);

/// Submits to the cluster of this host.
pub struct Slurm {
    pub tprimat: PathBuf,
    pub commands: Commands,
}

/// A run that is a job, or is about to be.
pub struct Job {
    spec: RunSpec,
    slurm: Commands,
    /// What a job executes; none where an earlier tprimat started the run. Its folder may have come with a
    /// project, so it is never what a new job runs.
    tprimat: Option<PathBuf>,
    /// What the run waits for, as far as the queue says it.
    reason: Mutex<String>,
    /// Whether nobody is to wait for it any more, and what becomes of it then.
    interrupted: Mutex<Option<Interrupted>>,
    _owner: Option<File>,
}

impl Executor for Slurm {
    fn start(&self, spec: &RunSpec) -> Result<Box<dyn Run>> {
        let dir = &spec.dir;
        files::create_dir_all(dir)?;
        let owner = take_lock(&owner_lock_path(dir))?;
        let environment = dir.join(ENVIRONMENT);
        make(
            &environment,
            &serde_json::to_vec(&spec.env).unwrap_or_default(),
        )
        .map_err(Error::io("cannot write", environment))?;
        // From here on the run folder says that there is or will be a job.
        write_spec(spec, Durability::Synced)?;
        let tprimat = Some(&self.tprimat);
        let job = Job::of(spec.clone(), &self.commands, tprimat, Some(owner));
        Ok(Box::new(job))
    }
}

impl Slurm {
    /// Takes up the job of a tprimat that died. `owner`: the lock of its run folder, held.
    pub(crate) fn attach(&self, spec: RunSpec, owner: File) -> Job {
        Job::of(spec, &self.commands, None, Some(owner))
    }
}

impl Run for Job {
    fn state(&self) -> RunState {
        let text = fs::read(state_path(&self.spec.dir)).unwrap_or_default();
        match (*lock(&self.interrupted), serde_json::from_slice(&text)) {
            (None | Some(Interrupted::GoesOn), Ok(state)) => state,
            _ => RunState::Queued {
                reason: lock(&self.reason).clone(),
            },
        }
    }

    fn terminate(&self) -> Interrupted {
        let job = self.spec.job.as_ref();
        let asked = match job.is_some_and(|job| job.settings.cancel_on_interrupt) {
            true => Interrupted::IsCancelled,
            false => Interrupted::GoesOn,
        };
        let interrupted = *lock(&self.interrupted).get_or_insert(asked);
        if interrupted == Interrupted::GoesOn {
            self.slurm.hurry();
        }
        interrupted
    }

    fn kill(&self) {
        *lock(&self.interrupted) = Some(Interrupted::GoesOn);
        self.slurm.hurry();
    }

    fn wait(&self, look: &mut (dyn FnMut() + Send)) -> Result<End> {
        let dir = &self.spec.dir;
        let (mut pause, most) = QUESTIONS;
        let mut asked: Option<Instant> = None;
        // Since when the job is over here, and its last state.
        let mut over: Option<(Instant, Shown)> = None;
        let mut cancelled: Option<Instant> = None;
        loop {
            look();
            let interrupted = *lock(&self.interrupted);
            let exit = match over {
                Some(_) => exit_of_ended(dir),
                None => read_exit(dir),
            };
            match (exit, &over) {
                (Ok(Some(mut exit)), _) => {
                    // Who ended the run at somebody's word is known.
                    if interrupted.is_none() {
                        exit = explained(&self.spec, &self.slurm, exit);
                    }
                    return Ok(End::Over(Box::new(exit)));
                }
                (Ok(None), Some((since, shown)))
                    if since.elapsed() >= patience(shown.ended_well()) =>
                {
                    return Ok(ended_unseen(&self.spec, &self.slurm, shown.clone()));
                }
                (Err(why), Some(_)) => *lock(&self.reason) = unreachable(why),
                _ => {}
            }
            if interrupted == Some(Interrupted::GoesOn) {
                // Where the claim cannot be read, the job is the one that was submitted last.
                let submitted = |_| noted(&dir.join(SUBMITTED)).ok().flatten();
                let goes_on = noted_job(dir).unwrap_or_else(submitted);
                let goes_on = goes_on.map(|slurm_job| End::GoesOn { slurm_job });
                return goes_on.ok_or(Error::Interrupted(0));
            }
            let cancels = interrupted.is_some() && over.is_none();
            pause = if cancels { QUESTIONS.0 } else { pause };
            if asked.is_none_or(|asked| asked.elapsed() >= pause) {
                asked = Some(Instant::now());
                let told = match cancels {
                    true => self.cancel(&mut cancelled),
                    false => Ok(()),
                };
                match told.and_then(|()| self.look(pause / 2, &mut over)) {
                    Ok(None) => {}
                    Ok(Some(end)) => return Ok(end),
                    Err(reason) => *lock(&self.reason) = reason,
                }
                pause = pause.mul_f64(1.3).min(most);
            }
            thread::sleep(LOOK);
        }
    }
}

/// What became of a run whose tprimat is dead. `None`: it goes on, or Slurm does not answer, or its end is
/// not seen here yet; whoever wants the run waits for it. `age`: of an answer of Slurm's that somebody
/// else got.
pub(crate) fn left(spec: &RunSpec, slurm: &Commands, age: Duration) -> Option<End> {
    let mut over = None;
    if let Ok(Some(end)) = Job::of(spec.clone(), slurm, None, None).look(age, &mut over) {
        return Some(end);
    }
    let (_, shown) = over?;
    // Written just before the end, it may have come in between.
    match exit_of_ended(&spec.dir).ok()? {
        Some(exit) => Some(End::Over(Box::new(explained(spec, slurm, exit)))),
        None => (!shown.ended_well()).then(|| ended_unseen(spec, slurm, shown)),
    }
}

/// Where the wait for a run has come to an end, that end; else why it is waited for, where that is new.
type Look = Result<Option<End>, String>;

/// The folder is on a file system of the cluster, which may be away for a while.
fn unreachable(why: Error) -> String {
    format!("its run folder, which cannot be used now: {why}")
}

impl Job {
    fn of(spec: RunSpec, slurm: &Commands, tprimat: Option<&PathBuf>, owner: Option<File>) -> Self {
        Self {
            spec,
            slurm: slurm.clone(),
            tprimat: tprimat.cloned(),
            reason: Mutex::new("its submission to Slurm".into()),
            interrupted: Mutex::default(),
            _owner: owner,
        }
    }

    /// Submits what was not submitted, else asks how the job stands; `age`: of an answer that
    /// somebody else got. What cannot be reached is not gone.
    fn look(&self, age: Duration, over: &mut Option<(Instant, Shown)>) -> Look {
        let id = match noted_job(&self.spec.dir).map_err(unreachable)? {
            None => return self.submit(),
            Some(id) if id == WITHDRAWN => return Ok(Some(End::NeverWas)),
            Some(id) => id,
        };
        let shown = self.slurm.state(&id, &self.spec, age);
        let shown = shown.map_err(|why| why.told())?;
        if shown.is_over() {
            over.get_or_insert_with(|| (Instant::now(), shown));
            return Ok(None);
        }
        *over = None;
        match *lock(&self.interrupted) {
            Some(_) => Ok(None),
            None => Err(format!("Slurm job {id} ({})", shown.told())),
        }
    }

    /// One attempt at it. A submission that nobody heard the answer of has happened, or has not:
    /// Slurm is asked first.
    fn submit(&self) -> Look {
        const ROOM: &str = "Slurm, which takes no more jobs of this user until others have ended";
        if self.tprimat.is_some() && self.slurm.is_full() {
            return Err(ROOM.to_owned());
        }
        let list = || self.slurm.list(Duration::ZERO).map_err(|why| why.told());
        let before = list()?;
        if let Some((id, _)) = before.iter().find(|(_, job)| job.is_of(&self.spec)) {
            return self.submitted(id);
        }
        let Some(tprimat) = &self.tprimat else {
            // A job that comes to be seen later runs nothing. Where one was first, it has the run.
            let taken = take(&self.spec.dir, WITHDRAWN).map_err(unreachable)?;
            return Ok(taken.then_some(End::NeverWas));
        };
        let told = arguments(&self.spec, tprimat);
        let words: Vec<&str> = told.iter().map(String::as_str).collect();
        let why = match self.slurm.run("sbatch", &words) {
            // With --parsable: the id, and the cluster's name behind a semicolon where there are
            // several.
            Ok(said) => return self.submitted(said.trim().split(';').next().unwrap_or_default()),
            Err(why) if why.is_passing => {
                return Err(format!("Slurm: sbatch does not get through: {why}"));
            }
            Err(why) => why,
        };
        if let Some(prefix) = why.makes_room() {
            // The last of them may have ended before the second look, and the first of them may have
            // come after the first one.
            let after = list()?;
            let mut all = before.values().chain(after.values());
            if all.any(|job| job.name.starts_with(prefix) && !job.is_over()) {
                return Err(match self.slurm.note_full() {
                    true => format!(
                        "{ROOM} ({why}); execution.<platform>.slurm.max_jobs in config.yaml sets how many jobs a build has at once"
                    ),
                    false => ROOM.to_owned(),
                });
            }
        }
        Ok(Some(End::Refused(format!(
            "sbatch refused the job: {why}; execution.<platform>.slurm in config.yaml says what it was asked for"
        ))))
    }

    fn submitted(&self, id: &str) -> Look {
        let path = self.spec.dir.join(SUBMITTED);
        files::write_atomically(&path, id.as_bytes(), Durability::Synced).map_err(unreachable)?;
        Err(format!("Slurm job {id} (submitted)"))
    }

    /// One attempt at cancelling. SIGTERM goes to the supervisor in the job, which ends the run
    /// with grace; Slurm ends what does not end by itself. `told`: when Slurm last took it.
    fn cancel(&self, told: &mut Option<Instant>) -> Result<(), String> {
        let Some(id) = noted_job(&self.spec.dir).map_err(unreachable)? else {
            // Whether a submission was heard or not: no job runs what somebody else has claimed.
            if take(&self.spec.dir, WITHDRAWN).map_err(unreachable)? {
                folder::remove(&self.spec.dir);
                *lock(&self.interrupted) = Some(Interrupted::GoesOn);
                return Err("the end of the build, since no job has it".to_owned());
            }
            return Ok(());
        };
        let has_time = |told: Instant| told.elapsed() < self.spec.grace() + CANCELLED;
        // The id may be another job's by now.
        let shown = || self.slurm.state(&id, &self.spec, Duration::ZERO);
        if told.is_some_and(has_time) || shown().is_ok_and(|shown| shown.is_over()) {
            return Ok(());
        }
        // A job that has not started has nothing to end with grace.
        let is_gentle = told.is_none() && self.spec.dir.join(CLAIM).exists();
        let arguments: &[&str] = match is_gentle {
            // The supervisors are in a step. srun would end it without grace if it got the signal,
            // which --full sends to it as well.
            true if self.spec.nodes() > 1 => &["--signal=TERM", &id],
            true => &["--full", "--signal=TERM", &id],
            false => &[&id],
        };
        self.slurm
            .run("scancel", arguments)
            .map_err(|why| format!("Slurm to cancel job {id}, which it did not yet: {why}"))?;
        *told = Some(Instant::now());
        *lock(&self.reason) = format!("the end of Slurm job {id}, which was told to end");
        Ok(())
    }
}

/// What sbatch is told. `tprimat`: the program that the job executes.
fn arguments(spec: &RunSpec, tprimat: &Path) -> Vec<String> {
    let mut arguments = vec![
        // Nothing of the caller's shell that the run did not declare.
        "--export=PATH,HOME,LD_LIBRARY_PATH,TPRIMAT_LOCK_DIR".to_owned(),
        format!("--nodes={}", spec.nodes()),
        format!("--ntasks={}", spec.nodes()),
        "--ntasks-per-node=1".into(),
    ];
    if let Some(job) = &spec.job {
        let settings = &job.settings;
        let stated = [
            ("account", &settings.account),
            ("partition", &settings.partition),
            ("qos", &settings.qos),
            ("constraint", &settings.constraint),
            ("time", &settings.time),
        ];
        for (name, value) in stated {
            arguments.extend(value.as_ref().map(|value| format!("--{name}={value}")));
        }
        let gres = match &settings.gres {
            Some(gres) => Some(gres.clone()).filter(|gres| !gres.is_empty()),
            None => (job.vendor != Vendor::Cpu).then(|| format!("gpu:{}", job.num_gpus)),
        };
        arguments.extend(gres.map(|gres| format!("--gres={gres}")));
        arguments.extend(settings.cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
        arguments.extend(settings.exclusive.then(|| "--exclusive".to_owned()));
        arguments.extend(settings.options.iter().cloned());
    }
    let (program, dir) = (tprimat.to_string_lossy(), spec.dir.to_string_lossy());
    // A NUL cannot be quoted, and no path has one.
    let command = [&*program, RUN_ARGUMENT, &*dir, JOB]
        .map(|word| shlex::try_quote(word).unwrap_or_default());
    // Last, so that no option of the configuration replaces them: without its name and folder
    // nobody finds the job again, and a run that begins again in the same folder would mix two
    // logs.
    arguments.extend([
        "--parsable".to_owned(),
        format!("--output={dir}/supervisor.log"),
        format!("--chdir={dir}"),
        format!("--job-name={}", job_name(&spec.run_id)),
        "--no-requeue".to_owned(),
        format!("--wrap=exec {}", command.join(" ")),
    ]);
    arguments
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::run::JobSpec;
    use crate::{plan::Slurm as Settings, recipe::Nodes};

    fn spec(settings: Settings, vendor: Vendor) -> RunSpec {
        RunSpec {
            run_id: "r1".into(),
            dir: "/shared/runs/r1".into(),
            argv: vec!["true".into()],
            env: BTreeMap::new(),
            cwd: "/".into(),
            container: None,
            job: Some(JobSpec {
                vendor,
                num_gpus: 4,
                nodes: 1,
                ranks: Nodes::One,
                is_step: false,
                facts: BTreeMap::new(),
                packages: BTreeMap::new(),
                python: PathBuf::new(),
                settings,
            }),
            timeout_seconds: None,
            hang: None,
            grace_seconds: 1.0,
            devices: Vec::new(),
            sampled: None,
            exclusive: true,
            lock_dir: "/tmp".into(),
            watched: Vec::new(),
            meta: crate::run::Verbatim::of(&()).unwrap(),
        }
    }

    #[test]
    fn a_run_that_is_cancelled_before_its_submission_is_not_submitted() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        files::create_dir_all(&bin).unwrap();
        crate::mock::program(&bin.join("squeue"), "#!/bin/sh\n");
        let sbatch = format!("#!/bin/sh\n: > {}/submitted\n", folder.path().display());
        crate::mock::program(&bin.join("sbatch"), sbatch);
        let settings = Settings {
            cancel_on_interrupt: true,
            ..Settings::default()
        };
        let spec = RunSpec {
            dir: folder.path().join("run"),
            ..spec(settings, Vendor::Cpu)
        };
        let slurm = Slurm {
            tprimat: "/bin/tprimat".into(),
            commands: Commands::new([("PATH".to_owned(), bin.display().to_string())].into()),
        };
        let run = slurm.start(&spec).unwrap();
        assert_eq!(run.terminate(), Interrupted::IsCancelled);
        assert!(matches!(run.wait(&mut || ()), Err(Error::Interrupted(0))));
        assert!(!spec.dir.exists() && !folder.path().join("submitted").exists());
    }

    #[test]
    fn a_claim_that_cannot_be_read_now_ends_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let spec = RunSpec {
            dir: folder.path().to_owned(),
            ..spec(Settings::default(), Vendor::Cpu)
        };
        let slurm = Slurm {
            tprimat: "/bin/tprimat".into(),
            commands: Commands::new(BTreeMap::new()),
        };
        let one = slurm.attach(spec, tempfile::tempfile().unwrap());
        assert!(
            one.submitted("12")
                .is_err_and(|reason| reason.contains("12"))
        );
        // Reading a folder fails, as a file does whose server is away.
        files::create_dir_all(&folder.path().join(CLAIM)).unwrap();
        let reason = one.look(Duration::ZERO, &mut None).unwrap_err();
        assert!(reason.contains("claim"), "{reason}");
        assert_eq!(one.cancel(&mut None), Err(reason));
        one.kill();
        assert!(matches!(one.wait(&mut || ()), Ok(End::GoesOn { slurm_job }) if slurm_job == "12"));
    }

    fn asked(settings: Settings, vendor: Vendor) -> String {
        arguments(&spec(settings, vendor), Path::new("/bin/tprimat")).join(" ")
    }

    #[test]
    fn what_config_says_reaches_sbatch_and_nothing_else_does() {
        let plain = asked(Settings::default(), Vendor::Nvd);
        assert!(
            plain.contains("--no-requeue")
                && plain.contains("--gres=gpu:4")
                && !plain.contains("--account"),
            "{plain}"
        );
        let cpu = asked(Settings::default(), Vendor::Cpu);
        assert!(!cpu.contains("--gres"), "{cpu}");
        let stated = Settings {
            account: Some("lab".into()),
            partition: Some("h100".into()),
            gres: Some(String::new()),
            time: Some("04:00:00".into()),
            cpus: Some(96),
            exclusive: true,
            options: vec!["--mail-type=END".into(), "--job-name=mine".into()],
            ..Settings::default()
        };
        let stated = asked(stated, Vendor::Nvd);
        for part in [
            "--account=lab",
            "--partition=h100",
            "--time=04:00:00",
            "--cpus-per-task=96",
            "--exclusive",
            "--mail-type=END",
        ] {
            assert!(stated.contains(part), "{part}: {stated}");
        }
        assert!(!stated.contains("gres"), "{stated}");
        assert!(
            stated.ends_with(
                "--job-name=tprimat-r1 --no-requeue --wrap=exec /bin/tprimat __run /shared/runs/r1 job"
            ),
            "{stated}"
        );
    }
}

//! Runs as jobs of a batch system: one job a run, which holds the run's supervisor where the system
//! puts it. Project and cache are on a file system that both sides see.
//!
//! | what happens | what follows |
//! |---|---|
//! | tprimat dies, Ctrl-C | the job goes on; the next build finds it by its name and takes it up |
//! | tprimat dies within the submission | the system is asked for a job of that name before another one is submitted |
//! | the job starts twice all the same | the one that makes `claim` in the run folder runs; the others end, and tprimat follows the claim |
//! | the system does not answer | it is asked again until it does |
//! | the user has as many jobs as Slurm allows | it is submitted once others have ended |
//! | the system refuses the job otherwise, or can never start it | this training has nothing, with the reason; others go on |
//! | a build would submit another job before this one took its run | it is taken back, and nothing of it runs |
//! | the job is gone before it took its run | nothing has run, and nothing is recorded |
//! | the job ended well, and `exit.json` is not seen here | it is waited for, then left in its folder: nothing is run instead |
//! | the run failed, whatever its exit code | the system says whether it ended the job: memory, time, node, cancelled |
//! | the job ended otherwise, without `exit.json` | the system says why: lost node, preempted, out of time, out of memory, cancelled |
//! | the node differs from tprimat.lock | nothing runs there; the failure names the lines |
//! | Ctrl-C with `cancel_on_interrupt` | the job is cancelled as soon as the system takes it; a second Ctrl-C leaves the job |

mod claim;
mod end;
mod node;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    executor::{End, Interrupted, LOOK, Run},
    folder::{self, OWNER_LOCK, lock, make, read_exit, read_state, take_lock, write_spec},
    kubernetes::Kubernetes,
    slurm::Slurm,
    spec::{RunSpec, RunState},
    system::{Shown, Submission, System, job_of},
};
use crate::{
    error::{Error, Result},
    files::{self, Durability},
};

pub use claim::is_of_a_job;
use claim::{CLAIM, SUBMITTED, WITHDRAWN, noted, noted_job};
pub(crate) use claim::{ENVIRONMENT, claim, environment_in, take};
use end::ended_unseen;
pub(crate) use end::{exit_of_ended, explained, patience};
pub(crate) use node::settle_in;

/// Between two questions, first and last: a cluster has many users.
const QUESTIONS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// How long beyond its grace a job that was told to end may take before the system ends it.
const CANCELLED: Duration = Duration::from_secs(30);

/// The batch systems, as the caller would use them. Clones share one look at each queue.
#[derive(Clone, Default)]
pub struct Systems {
    pub slurm: Slurm,
    pub kubernetes: Kubernetes,
}

impl Systems {
    /// The one that a run's job is of.
    pub(crate) fn of(&self, spec: &RunSpec) -> Box<dyn System> {
        match spec.job.as_ref().and_then(|job| job.kubernetes.as_ref()) {
            Some(_) => Box::new(self.kubernetes.clone()),
            None => Box::new(self.slurm.clone()),
        }
    }
}

/// A run that is a job, or is about to be.
pub struct Job {
    spec: RunSpec,
    system: Box<dyn System>,
    /// What a job executes; none where an earlier tprimat started the run. Its folder may have come with a
    /// project, so it is never what a new job runs.
    tprimat: Option<PathBuf>,
    /// What the run waits for, as far as the queue says it.
    reason: Mutex<String>,
    /// What its own files say of it may be long past.
    is_silent: AtomicBool,
    /// Whether nobody is to wait for it any more, and what becomes of it then.
    interrupted: Mutex<Option<Interrupted>>,
    _owner: Option<File>,
}

impl Systems {
    /// Starts the run whose launch files are in `spec.dir`, and returns at once. `tprimat`: what its job
    /// executes.
    pub(crate) fn start(&self, spec: &RunSpec, tprimat: &Path) -> Result<Job> {
        let dir = &spec.dir;
        files::create_dir_all(dir)?;
        let owner = take_lock(&dir.join(OWNER_LOCK))?;
        // A Secret has it in Kubernetes.
        if spec.job.as_ref().is_none_or(|job| job.kubernetes.is_none()) {
            let environment = dir.join(ENVIRONMENT);
            let text = serde_json::to_vec(&spec.env).unwrap_or_default();
            make(&environment, &text).map_err(Error::io("cannot write", environment))?;
        }
        // From here on the run folder says that there is or will be a job.
        write_spec(spec)?;
        let tprimat = Some(tprimat.to_owned());
        Ok(Job::of(spec.clone(), self.of(spec), tprimat, Some(owner)))
    }

    /// Takes back a run whose job has not begun it; false: it has. The caller holds the lock of its folder.
    pub(crate) fn withdraw(&self, spec: &RunSpec) -> Result<bool> {
        let is_taken = take(&spec.dir, WITHDRAWN)?;
        if is_taken {
            self.of(spec).let_go(spec, None);
            folder::remove(&spec.dir);
        }
        Ok(is_taken)
    }

    /// Takes up the job of a tprimat that died. `owner`: the lock of its run folder, held.
    pub(crate) fn attach(&self, spec: RunSpec, owner: File) -> Job {
        let system = self.of(&spec);
        Job::of(spec, system, None, Some(owner))
    }
}

impl Run for Job {
    fn state(&self) -> Option<RunState> {
        let is_cancelled = *lock(&self.interrupted) == Some(Interrupted::IsCancelled);
        let is_old = is_cancelled || self.is_silent.load(Ordering::Relaxed);
        let state = read_state(&self.spec.dir).filter(|_| !is_old);
        state.or_else(|| {
            let reason = lock(&self.reason).clone();
            Some(RunState::Queued { reason })
        })
    }

    fn terminate(&self) -> Interrupted {
        let job = self.spec.job.as_ref();
        let asked = match job.is_some_and(|job| job.is_cancelled_on_interrupt()) {
            true => Interrupted::IsCancelled,
            false => Interrupted::GoesOn,
        };
        *lock(&self.interrupted).get_or_insert(asked)
    }

    fn kill(&self) {
        *lock(&self.interrupted) = Some(Interrupted::GoesOn);
    }

    fn wait(&self, look: &mut (dyn FnMut() + Send)) -> Result<End> {
        let end = self.wait_for_end(look);
        match &end {
            Ok(End::Over(exit)) => self.system.let_go(&self.spec, Some(exit)),
            Ok(End::Refused(_) | End::NeverWas) => self.system.let_go(&self.spec, None),
            _ => {}
        }
        end
    }
}

/// What became of a run whose tprimat is dead. `None`: it goes on, or the system does not answer, or its
/// end is not seen here yet; whoever wants the run waits for it. `age`: of an answer that somebody else
/// got.
pub(crate) fn left(spec: &RunSpec, systems: &Systems, age: Duration) -> Option<End> {
    let (mut over, system) = (None, systems.of(spec));
    let job = Job::of(spec.clone(), system, None, None);
    if let Ok(Some(end)) = job.look(age, &mut over) {
        return Some(end);
    }
    let (_, shown) = over?;
    // Written just before the end, it may have come in between.
    match exit_of_ended(&spec.dir).ok()? {
        Some(exit) => Some(End::Over(Box::new(explained(
            spec,
            &*job.system,
            exit,
            || true,
        )))),
        None => (!shown.ended_well).then(|| ended_unseen(spec, &*job.system, shown)),
    }
}

/// Where the wait for a run has come to an end, that end; else why it is waited for, where that is new.
type Look = Result<Option<End>, String>;

/// The folder is on a file system of the cluster, which may be away for a while.
fn unreachable(why: Error) -> String {
    format!("its run folder, which cannot be used now: {why}")
}

impl Job {
    fn of(
        spec: RunSpec,
        system: Box<dyn System>,
        tprimat: Option<PathBuf>,
        owner: Option<File>,
    ) -> Self {
        Self {
            spec,
            tprimat,
            reason: Mutex::new(format!("its submission to {}", system.name())),
            system,
            is_silent: AtomicBool::new(false),
            interrupted: Mutex::default(),
            _owner: owner,
        }
    }

    fn wait_for_end(&self, look: &mut (dyn FnMut() + Send)) -> Result<End> {
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
                        let is_awaited = || lock(&self.interrupted).is_none();
                        exit = explained(&self.spec, &*self.system, exit, is_awaited);
                    }
                    return Ok(End::Over(Box::new(exit)));
                }
                (Ok(None), Some((since, shown)))
                    if since.elapsed() >= patience(shown.ended_well) =>
                {
                    return Ok(ended_unseen(&self.spec, &*self.system, shown.clone()));
                }
                (Err(why), Some(_)) => *lock(&self.reason) = unreachable(why),
                _ => {}
            }
            if interrupted == Some(Interrupted::GoesOn) {
                // Where the claim cannot be read, the job is the one that was submitted last.
                let submitted = |_| noted(&dir.join(SUBMITTED)).ok().flatten();
                let goes_on = noted_job(dir).unwrap_or_else(submitted);
                let goes_on = goes_on.map(|id| End::GoesOn {
                    job: job_of(&*self.system, &id),
                    cancels: self.system.cancels(&id, &self.spec),
                });
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
                    Ok(Some(End::NeverWas)) if interrupted.is_some() => {
                        self.system.let_go(&self.spec, None);
                        folder::remove(dir);
                        return Err(Error::Interrupted(0));
                    }
                    Ok(Some(end)) => return Ok(end),
                    Err(reason) => *lock(&self.reason) = reason,
                }
                pause = pause.mul_f64(1.3).min(most);
            }
            thread::sleep(LOOK);
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
        let shown = self.system.state(&id, &self.spec, age);
        let name = self.system.name();
        let shown = shown.map_err(|why| format!("{name}, which does not answer: {why}"))?;
        let job = job_of(&*self.system, &id);
        let is_gone = shown.is_over && shown.state.is_empty();
        if (shown.is_hopeless || is_gone) && self.take_back()? {
            // The job is gone, and its run was taken back before it began: nothing has run and nothing will.
            return Ok(Some(match shown.is_hopeless {
                true => End::Refused(format!("{job} was not started: {}", shown.reason)),
                false => End::NeverWas,
            }));
        }
        if shown.is_over {
            over.get_or_insert_with(|| (Instant::now(), shown));
            return Ok(None);
        }
        *over = None;
        self.is_silent.store(shown.is_silent, Ordering::Relaxed);
        match *lock(&self.interrupted) {
            Some(_) => Ok(None),
            None => Err(format!("{job} ({})", shown.told())),
        }
    }

    /// A job that comes to be seen later runs nothing. False: one was first, and has the run.
    fn take_back(&self) -> Result<bool, String> {
        take(&self.spec.dir, WITHDRAWN).map_err(unreachable)
    }

    /// One attempt at it.
    fn submit(&self) -> Look {
        let end = match self.system.submit(&self.spec, self.tprimat.as_deref())? {
            Submission::Job(id) => return self.submitted(&id),
            Submission::Refused(why) => End::Refused(why),
            Submission::NoJob => End::NeverWas,
        };
        Ok(self.take_back()?.then_some(end))
    }

    fn submitted(&self, id: &str) -> Look {
        let path = self.spec.dir.join(SUBMITTED);
        files::write_atomically(&path, id.as_bytes(), Durability::Synced).map_err(unreachable)?;
        Err(format!("{} (submitted)", job_of(&*self.system, id)))
    }

    /// One attempt at cancelling. SIGTERM goes to the supervisor in the job, which ends the run
    /// with grace; the system ends what does not end by itself. `told`: when it last took it.
    fn cancel(&self, told: &mut Option<Instant>) -> Result<(), String> {
        let Some(id) = noted_job(&self.spec.dir).map_err(unreachable)? else {
            // Whether a submission was heard or not: no job runs what somebody else has claimed.
            if self.take_back()? {
                self.system.let_go(&self.spec, None);
                folder::remove(&self.spec.dir);
                *lock(&self.interrupted) = Some(Interrupted::GoesOn);
                return Err("the end of the build, since no job has it".to_owned());
            }
            return Ok(());
        };
        let has_time = |told: Instant| told.elapsed() < self.spec.grace() + CANCELLED;
        // The id may be another job's by now.
        let shown = || self.system.state(&id, &self.spec, Duration::ZERO);
        if told.is_some_and(has_time) || shown().is_ok_and(|shown| shown.is_over) {
            return Ok(());
        }
        // A job that has not started has nothing to end with grace.
        let is_gentle = told.is_none() && self.spec.dir.join(CLAIM).exists();
        let job = job_of(&*self.system, &id);
        let name = self.system.name();
        self.system
            .cancel(&id, &self.spec, is_gentle)
            .map_err(|why| format!("{name} to cancel job {id}, which it did not yet: {why}"))?;
        *told = Some(Instant::now());
        *lock(&self.reason) = format!("the end of {job}, which was told to end");
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{job::Vendor, plan::Slurm as Settings, recipe::Nodes, run::JobSpec};

    pub fn spec(settings: Settings, vendor: Vendor) -> RunSpec {
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
                kubernetes: None,
            }),
            timeout_seconds: None,
            hang: None,
            grace_seconds: 1.0,
            devices: Vec::new(),
            sampled: None,
            exclusive: true,
            lock_dir: "/tmp".into(),
            watched: Vec::new(),
            meta: serde_json::Value::Null,
        }
    }

    fn systems(slurm: Slurm) -> Systems {
        let kubernetes = Kubernetes::default();
        Systems { slurm, kubernetes }
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
            cancel_on_interrupt: Some(true),
            ..Settings::default()
        };
        let spec = RunSpec {
            dir: folder.path().join("run"),
            ..spec(settings, Vendor::Cpu)
        };
        let path = [("PATH".to_owned(), bin.display().to_string())];
        let slurm = systems(Slurm::new(path.into()));
        let run = slurm.start(&spec, Path::new("/bin/tprimat")).unwrap();
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
        let slurm = systems(Slurm::default());
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
        assert!(
            matches!(one.wait(&mut || ()), Ok(End::GoesOn { job, .. }) if job == "Slurm job 12")
        );
    }
}

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

mod end;
mod node;
mod queue;
mod submit;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, atomic::AtomicBool, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{
    executor::{self, End, Executor, Interrupted, Run},
    folder::{
        self, lock, owner_lock_path, read_exit, read_if_there, spec_path, state_path, take_lock,
    },
    slurm::{
        end::{After, after, ended_unseen, exit_of_ended, unseen},
        queue::{OwnJob, is_final},
    },
    spec::{RunSpec, RunState},
};
use crate::{
    error::{Error, Result},
    files::{self, Durability},
};

pub(crate) use end::{Left, explained, left};
pub(crate) use node::{claim, is_of_this_job, settle_in, take};
pub use queue::Commands;

/// The last word of `tprimat __run DIR job`, the supervisor of the run in DIR inside its job.
pub(crate) const JOB: &str = "job";

/// How often the run folder is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Between two questions to Slurm, first and last: a cluster has many users.
const QUESTIONS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));
/// How long beyond its grace a job that was told to end may take before Slurm ends it.
const CANCELLED: Duration = Duration::from_secs(30);
/// The claim of a tprimat that takes a run back before any job has it.
const WITHDRAWN: &str = "withdrawn";

/// Submits to the cluster of this host.
pub struct Slurm {
    pub tprimat: PathBuf,
    pub commands: Commands,
}

/// A run that is a job, or is about to be.
pub struct Job {
    spec: RunSpec,
    slurm: Commands,
    tprimat: PathBuf,
    id: Mutex<Option<String>>,
    /// What the run waits for, as far as the queue says it.
    reason: Mutex<String>,
    intent: Mutex<JobIntent>,
    /// Slurm takes no more jobs of this user for now, and the build has said so.
    waits_for_room: AtomicBool,
    /// It was refused for that while there was no other job of tprimat's.
    was_refused_alone: AtomicBool,
    /// An earlier tprimat started it. Its folder may have come with a project, so it is never what
    /// a new job runs.
    is_attached: bool,
    _owner: File,
}

/// What is to become of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobIntent {
    /// It is waited for.
    Wait,
    /// It is cancelled, and its end waited for.
    Cancel,
    /// Nobody waits for it any more; it goes on.
    Leave,
}

impl Executor for Slurm {
    fn start(&self, spec: &RunSpec) -> Result<Box<dyn Run>> {
        let dir = &spec.dir;
        files::create_dir_all(dir)?;
        let owner = take_lock(&owner_lock_path(dir))?;
        // For the job alone, which removes it as soon as it has read it.
        let environment = serde_json::to_vec(&spec.env).unwrap_or_default();
        write_private(&environment_path(dir), &environment)
            .map_err(Error::io("cannot write", environment_path(dir)))?;
        let text = serde_json::to_vec_pretty(spec)
            .map_err(|e| Error::failed(format!("cannot describe run {}: {e}", spec.run_id)))?;
        // From here on the run folder says that there is or will be a job.
        files::write_atomically(&spec_path(dir), &text, Durability::Synced)?;
        Ok(Box::new(self.job(spec.clone(), owner, false)))
    }
}

impl Slurm {
    /// Takes up the job of a tprimat that died. `owner`: the lock of its run folder, held.
    pub(crate) fn attach(&self, spec: RunSpec, owner: File) -> Job {
        self.job(spec, owner, true)
    }

    fn job(&self, spec: RunSpec, owner: File, is_attached: bool) -> Job {
        Job {
            slurm: self.commands.clone(),
            tprimat: self.tprimat.clone(),
            id: Mutex::new(noted(&job_path(&spec.dir)).ok().flatten()),
            reason: Mutex::new("its submission to Slurm".into()),
            intent: Mutex::new(JobIntent::Wait),
            waits_for_room: AtomicBool::new(false),
            was_refused_alone: AtomicBool::new(false),
            is_attached,
            _owner: owner,
            spec,
        }
    }
}

/// The id of the job that was submitted last, as soon as it is known. Which job runs is said by the
/// claim alone.
fn job_path(dir: &Path) -> PathBuf {
    dir.join("job")
}
/// Which job runs it; made once, by that job.
fn claim_path(dir: &Path) -> PathBuf {
    dir.join("claim")
}
/// Has a job this run? Its processes may be on another host then.
#[must_use]
pub fn is_of_a_job(dir: &Path) -> bool {
    matches!(noted(&claim_path(dir)), Ok(Some(_)))
}
fn environment_path(dir: &Path) -> PathBuf {
    dir.join("environment")
}

/// What such a file names; nothing as long as it is empty or not there.
fn noted(path: &Path) -> Result<Option<String>> {
    let text = read_if_there(path)?.unwrap_or_default();
    let is_id = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_+".contains(c))
    };
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    Ok(Some(text).filter(|text| is_id(text)))
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// How the names of all of tprimat's jobs begin.
const JOB_PREFIX: &str = "tprimat-";

fn job_name(run_id: &str) -> String {
    format!("{JOB_PREFIX}{run_id}")
}

impl Run for Job {
    fn state(&self) -> RunState {
        let queued = || RunState::Queued {
            reason: self.told(),
        };
        if *lock(&self.intent) == JobIntent::Cancel {
            return queued();
        }
        let text = fs::read(state_path(&self.spec.dir)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_else(|_| queued())
    }

    fn terminate(&self) -> Interrupted {
        let cancels = self
            .spec
            .job
            .as_ref()
            .is_some_and(|job| job.settings.cancel_on_interrupt);
        let mut intent = lock(&self.intent);
        if *intent == JobIntent::Wait {
            *intent = if cancels {
                JobIntent::Cancel
            } else {
                JobIntent::Leave
            };
        }
        if *intent == JobIntent::Leave {
            self.slurm.hurry();
            return Interrupted::GoesOn;
        }
        Interrupted::IsCancelled
    }

    fn kill(&self) {
        *lock(&self.intent) = JobIntent::Leave;
        self.slurm.hurry();
    }

    fn wait(&self, look: &mut (dyn FnMut() + Send)) -> Result<End> {
        let (over, is_over) = mpsc::channel::<()>();
        thread::scope(|scope| {
            // Beside the questions to Slurm, which may stay without an answer for long.
            scope.spawn(move || {
                while is_over.recv_timeout(executor::LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                    look();
                }
            });
            let end = self.wait_for_end();
            drop(over);
            end
        })
    }
}

impl Job {
    fn wait_for_end(&self) -> Result<End> {
        let (mut pause, most) = QUESTIONS;
        let mut asked: Option<Instant> = None;
        let mut over: Option<(Instant, Option<String>)> = None;
        let mut cancelling = Cancelling::default();
        loop {
            let exit = if over.is_some() {
                exit_of_ended(&self.spec.dir)
            } else {
                read_exit(&self.spec.dir)
            };
            if let Ok(Some(exit)) = exit {
                if *lock(&self.intent) != JobIntent::Wait {
                    return Ok(End::Over(Box::new(exit)));
                }
                let exit = explained(&self.spec, &self.slurm, exit);
                return Ok(End::Over(Box::new(exit)));
            }
            let intent = *lock(&self.intent);
            if intent == JobIntent::Leave {
                return self.left();
            }
            if intent == JobIntent::Cancel && !cancelling.is_begun {
                cancelling.is_begun = true;
                (asked, pause) = (None, QUESTIONS.0);
            }
            if asked.is_none_or(|asked| asked.elapsed() >= pause) {
                asked = Some(Instant::now());
                if intent == JobIntent::Cancel && over.is_none() {
                    self.cancel(&mut cancelling)?;
                } else {
                    pause = pause.mul_f64(1.3).min(most);
                }
                match self.look(pause / 2)? {
                    Standing::There => over = None,
                    Standing::Silent => {}
                    Standing::NeverWas => return Ok(End::NeverWas),
                    Standing::Refused(why) => return Ok(End::Refused(why)),
                    Standing::Over(state) => {
                        over.get_or_insert_with(|| (Instant::now(), state));
                    }
                }
            }
            if let Some((since, state)) = &over {
                match after(state.as_deref(), since.elapsed()) {
                    After::Wait => {}
                    After::Keep => {
                        return Ok(End::Unseen(unseen(&self.spec.dir, &self.known_id())));
                    }
                    After::Ended => {
                        let id = self.known_id();
                        let ended = || ended_unseen(&self.slurm, self.own(&id));
                        match exit_of_ended(&self.spec.dir) {
                            Ok(exit) => {
                                return Ok(End::Over(Box::new(exit.unwrap_or_else(ended))));
                            }
                            Err(why) => self.tell_unreachable(&why),
                        }
                    }
                }
            }
            thread::sleep(LOOK);
        }
    }
}

/// What Slurm says of a job, as far as a wait needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    There,
    /// With its last state, where Slurm still knows it.
    Over(Option<String>),
    /// It does not answer, or the run folder cannot be read. What cannot be reached is not gone.
    Silent,
    /// An earlier tprimat died before it submitted the job, and nobody can submit it now.
    NeverWas,
    /// Slurm does not take the job; in a sentence why, and what to do about it.
    Refused(String),
}

/// What was done so far to cancel a job.
#[derive(Default)]
struct Cancelling {
    is_begun: bool,
    /// Since when Slurm knows that it is to end.
    told: Option<Instant>,
    is_forced: bool,
}

impl Job {
    fn told(&self) -> String {
        lock(&self.reason).clone()
    }

    fn tell(&self, reason: String) {
        *lock(&self.reason) = reason;
    }

    /// By which Slurm and later builds know it.
    fn name(&self) -> String {
        job_name(&self.spec.run_id)
    }

    fn own<'a>(&'a self, id: &'a str) -> OwnJob<'a> {
        OwnJob {
            id,
            spec: &self.spec,
        }
    }

    /// The folder is on a file system of the cluster, which may be away for a while.
    fn tell_unreachable(&self, why: &Error) {
        self.tell(format!("its run folder, which cannot be used now: {why}"));
    }

    fn known_id(&self) -> String {
        lock(&self.id).clone().unwrap_or_default()
    }

    /// The job that is waited for. The one that claimed the folder runs, whichever submission this
    /// tprimat has heard of.
    fn current(&self) -> Result<Option<String>> {
        let mut id = lock(&self.id);
        if let Some(claimed) =
            noted(&claim_path(&self.spec.dir))?.filter(|claimed| Some(claimed) != id.as_ref())
        {
            files::write_atomically(
                &job_path(&self.spec.dir),
                claimed.as_bytes(),
                Durability::Synced,
            )?;
            *id = Some(claimed);
        }
        Ok(id.clone())
    }

    /// Submits what was not submitted, else asks how the job stands; `age`: of an answer that
    /// somebody else got.
    fn look(&self, age: Duration) -> Result<Standing> {
        let id = match self.current() {
            Ok(Some(id)) => id,
            Ok(None) => return self.submit(),
            Err(why) => {
                self.tell_unreachable(&why);
                return Ok(Standing::Silent);
            }
        };
        let job = self.own(&id);
        match self.slurm.state(job, age) {
            Ok(Some(shown)) => {
                if *lock(&self.intent) == JobIntent::Wait {
                    let because = if shown.reason.is_empty() {
                        String::new()
                    } else {
                        format!(": {}", shown.reason)
                    };
                    self.tell(format!(
                        "Slurm job {id} ({}{because})",
                        shown.state.to_lowercase()
                    ));
                }
                Ok(if is_final(&shown.state) {
                    Standing::Over(Some(shown.state))
                } else {
                    Standing::There
                })
            }
            Ok(None) => Ok(Standing::Over(self.slurm.last_state(job))),
            Err(why) => {
                self.tell(format!("Slurm, which does not answer: {why}"));
                Ok(Standing::Silent)
            }
        }
    }

    /// One attempt at cancelling. SIGTERM goes to the supervisor in the job, which ends the run
    /// with grace; Slurm ends what does not end by itself.
    fn cancel(&self, so_far: &mut Cancelling) -> Result<()> {
        let id = match self.current() {
            Ok(Some(id)) => id,
            // Whether a submission was heard or not: no job runs what somebody else has claimed.
            Ok(None) => match node::take(&self.spec.dir, WITHDRAWN) {
                Ok(true) => {
                    folder::remove(&self.spec.dir);
                    return Err(Error::Interrupted(0));
                }
                Ok(false) => return Ok(()),
                Err(why) => {
                    self.tell_unreachable(&why);
                    return Ok(());
                }
            },
            Err(why) => {
                self.tell_unreachable(&why);
                return Ok(());
            }
        };
        let has_had_its_time = |told: Instant| told.elapsed() >= self.spec.grace() + CANCELLED;
        let is_forced = so_far.told.is_some_and(has_had_its_time);
        if so_far.told.is_some() && (!is_forced || so_far.is_forced) {
            return Ok(());
        }
        // A job that has not started has nothing to end with grace.
        let has_started = claim_path(&self.spec.dir).exists();
        let gently = has_started && !is_forced;
        // The id may be another job's by now.
        if matches!(self.slurm.state(self.own(&id), Duration::ZERO), Ok(None)) {
            return Ok(());
        }
        let arguments: &[&str] = match gently {
            // The supervisors are in a step. srun would end it without grace if it got the signal,
            // which --full sends to it as well.
            true if self.spec.nodes() > 1 => &["--signal=TERM", &id],
            true => &["--full", "--signal=TERM", &id],
            false => &[&id],
        };
        match self.slurm.run("scancel", arguments) {
            Ok(_) => {
                self.tell(format!("the end of Slurm job {id}, which was told to end"));
                so_far.told.get_or_insert_with(Instant::now);
                so_far.is_forced = is_forced;
            }
            Err(why) => self.tell(format!(
                "Slurm to cancel job {id}, which it did not yet: {why}"
            )),
        }
        Ok(())
    }

    /// Nobody waits any more.
    fn left(&self) -> Result<End> {
        // Where the claim cannot be read, the job is the one that was submitted last.
        let current = self.current();
        let Some(id) = current.unwrap_or_else(|_| lock(&self.id).clone()) else {
            return Err(Error::Interrupted(0));
        };
        Ok(End::GoesOn { slurm_job: id })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::run::JobSpec;
    use crate::{job::Vendor, plan::Slurm as Settings, recipe::Nodes};

    pub(crate) fn job(settings: Settings, vendor: Vendor) -> Job {
        let facts = BTreeMap::new();
        let spec = RunSpec {
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
                facts,
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
        };
        let slurm = Slurm {
            tprimat: "/bin/tprimat".into(),
            commands: Commands::new(BTreeMap::new()),
        };
        slurm.job(spec, tempfile::tempfile().unwrap(), false)
    }

    #[test]
    fn a_run_is_claimed_once_and_its_environment_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let spec = RunSpec {
            dir: folder.path().to_owned(),
            ..job(Settings::default(), Vendor::Cpu).spec
        };
        write_private(
            &environment_path(folder.path()),
            br#"{"HF_TOKEN":"secret"}"#,
        )
        .unwrap();
        let text = serde_json::to_vec(&spec).unwrap();
        files::write_atomically(&spec_path(folder.path()), &text, Durability::Plain).unwrap();
        assert_eq!(
            claim(folder.path()).unwrap().unwrap().env["HF_TOKEN"],
            "secret"
        );
        assert!(!environment_path(folder.path()).exists());
        assert_eq!(claim(folder.path()).unwrap(), None);
    }

    #[test]
    fn a_claim_that_cannot_be_read_now_ends_no_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = job(Settings::default(), Vendor::Cpu);
        one.spec.dir = folder.path().to_owned();
        one.submitted("12".into()).unwrap();
        // Reading a folder fails, as a file does whose server is away.
        files::create_dir_all(&claim_path(folder.path())).unwrap();
        assert_eq!(one.look(Duration::ZERO).unwrap(), Standing::Silent);
        one.cancel(&mut Cancelling::default()).unwrap();
        assert!(one.told().contains("claim"), "{}", one.told());
        assert!(matches!(one.left(), Ok(End::GoesOn { slurm_job }) if slurm_job == "12"));
    }

    #[test]
    fn a_job_is_the_one_that_claimed_the_folder_whatever_was_heard_of_its_submission() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = job(Settings::default(), Vendor::Cpu);
        one.spec.dir = folder.path().to_owned();
        one.submitted("12".into()).unwrap();
        assert_eq!(one.current().unwrap().as_deref(), Some("12"));
        assert!(
            node::take(folder.path(), "11").unwrap() && !node::take(folder.path(), "12").unwrap()
        );
        assert_eq!(one.current().unwrap().as_deref(), Some("11"));
        assert_eq!(
            noted(&job_path(folder.path())).unwrap().as_deref(),
            Some("11")
        );
    }
}

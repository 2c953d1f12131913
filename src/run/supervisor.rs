//! The supervisor of a run: a process of its own, which outlives tprimat just long enough to end the
//! run's whole tree.
//!
//! | what happens | what it does |
//! |---|---|
//! | the trainer ends | notes how, ends what is left of its tree, records the exit |
//! | the lifeline closes (tprimat died, or asks) | SIGTERM to the tree, grace, SIGKILL: `interrupted` |
//! | SIGTERM, SIGINT, SIGHUP | the same; a second one, or SIGQUIT, cuts the grace short |
//! | the timeout passes | the same: `timeout` |
//! | it is killed itself | the kernel kills the trainer; tprimat ends the rest, or the next build does |

mod record;
mod trainer;

use std::{
    cell::RefCell,
    net::TcpListener,
    path::PathBuf,
    process::ExitStatus,
    time::{Duration, Instant},
};

use super::{
    contained::Contained,
    devices::{self, Claim, DeviceLock},
    end_note::EndNote,
    folder::{LOG, STATE},
    hang::{self, HangWatch},
    inbox::Inbox,
    log_times::LogTimes,
    process::{Ended, RUN_ID_VARIABLE, Tree, reap_orphans},
    spec::{ExitKind, RunExit, RunSpec, RunState, never_ran},
    supervisor::trainer::{exit_kind, exit_status, pid_of},
    watched_inputs::{not_started, outdated, written},
};
use crate::{
    error::{Error, Result},
    files::{self, Durability, unix_now},
    host::{Sampler, Sampling},
    words::plain::counted,
};

/// How often the log's growth is written down: seldom enough to disturb no measurement.
const LOG_LOOK: Duration = Duration::from_millis(100);
/// How often the inputs of a run are looked at while it runs.
const INPUT_LOOK: Duration = Duration::from_secs(1);
const DEVICE_LOOK: Duration = Duration::from_millis(20);
/// Helpers of a trainer that ended (Python's resource tracker) may tidy up this long.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the run's end waits for a last sample, when no process of the run is left.
const LAST_SAMPLE: Duration = Duration::from_secs(2);
/// Launchers that need a port take the one that this variable names.
const PORT_VARIABLE: &str = "TPRIMAT_PORT";

pub(crate) struct Supervisor {
    pub spec: RunSpec,
    tree: Tree,
    pub inbox: Inbox,
    /// Where the samples of its devices go.
    telemetry: PathBuf,
    /// What a person should know of the run, for its exit.
    pub notes: Vec<String>,
    /// Where it is noted how the trainer ended; none for one node of several, which is not the run.
    end_note: Option<EndNote>,
}

/// Why the supervisor stopped watching the trainer.
enum TrainerEnd {
    Exited(ExitStatus),
    Stopped(ExitKind),
}

/// A port that was free just now, on every address of this host.
pub(super) fn free_port() -> Result<u16> {
    let bound = TcpListener::bind(("0.0.0.0", 0)).and_then(|bound| bound.local_addr());
    let bound = bound.map_err(Error::io("cannot find a free port on", "0.0.0.0"))?;
    Ok(bound.port())
}

impl Supervisor {
    /// `telemetry`: where the samples of its devices go.
    pub fn new(spec: RunSpec, inbox: Inbox, telemetry: PathBuf) -> Self {
        Self {
            tree: Tree::below_this_process(&spec.run_id),
            telemetry,
            spec,
            inbox,
            notes: Vec::new(),
            end_note: None,
        }
    }

    /// Measures the run and records it.
    pub fn run(mut self) -> Result<()> {
        let exit = self.measure();
        self.record(&exit)
    }

    /// The run from the wait for its devices to the end of its last process. The devices' locks go
    /// after that.
    pub fn measure(&mut self) -> RunExit {
        let asked = Instant::now();
        let devices = self.take_devices();
        let waited_seconds = asked.elapsed().as_secs_f64();
        match devices {
            Ok(Some(mut locks)) => {
                let exit = self.train(waited_seconds);
                // What could not be ended may still have the devices, and is known by the name.
                let is_gone = exit.survivors == 0;
                locks.iter_mut().for_each(|lock| lock.signed &= is_gone);
                exit
            }
            Ok(None) => never_ran(ExitKind::Interrupted, waited_seconds),
            Err(error) => never_ran(ExitKind::LaunchFailed(error.to_string()), waited_seconds),
        }
    }

    /// Takes the devices one by one, always in the same order, so that two runs never wait for each
    /// other. `None`: told to stop meanwhile.
    fn take_devices(&mut self) -> Result<Option<Vec<DeviceLock>>> {
        let mut names = self.spec.devices.clone();
        names.sort();
        names.dedup();
        let mut locks = Vec::new();
        for device in names {
            let mut told = None;
            loop {
                match devices::claim(
                    &self.spec.lock_dir,
                    &device,
                    self.spec.exclusive,
                    (&self.spec.run_id, &self.spec.cwd),
                )? {
                    Claim::Got(lock) => {
                        locks.push(lock);
                        break;
                    }
                    Claim::Busy(holder) if told.as_ref() != Some(&holder) => {
                        self.tell(&RunState::WaitingForDevice {
                            device: device.clone(),
                            holder: holder.clone(),
                        });
                        told = Some(holder);
                    }
                    Claim::Busy(_) => {}
                }
                self.inbox.wait(DEVICE_LOOK);
                if self.inbox.stop() {
                    return Ok(None);
                }
            }
        }
        self.inbox.wait(Duration::ZERO);
        Ok((!self.inbox.stop()).then_some(locks))
    }

    fn train(&mut self, waited_seconds: f64) -> RunExit {
        // The devices may have been somebody else's for hours.
        let changed = outdated(&mut self.spec.watched);
        if !changed.is_empty() {
            let why = not_started(&changed, &self.spec.watched);
            return RunExit {
                changed,
                ..never_ran(ExitKind::LaunchFailed(why), waited_seconds)
            };
        }
        self.run_trainer(waited_seconds)
            .unwrap_or_else(|why| never_ran(ExitKind::LaunchFailed(why), waited_seconds))
    }

    /// The trainer from its start to the end of its last process; in words why it did not start, if
    /// not.
    fn run_trainer(&mut self, waited_seconds: f64) -> Result<RunExit, String> {
        // As late as can be: a port that was free when the run was planned may be taken by now. Nodes of one
        // run were told where they meet.
        if !self.spec.env.contains_key(PORT_VARIABLE) {
            let port = free_port().map_err(|why| why.to_string())?;
            (self.spec.env).insert(PORT_VARIABLE.to_owned(), port.to_string());
        }
        let contained = self
            .spec
            .container
            .as_ref()
            .and_then(|spec| Contained::of(spec, &self.spec.run_id));
        self.end_note = match self.spec.nodes() {
            // Where the disk is full before the start, the run goes on without it.
            1 => EndNote::reserve(&self.spec.dir).ok(),
            _ => None,
        };
        let (begun, started_at) = (Instant::now(), unix_now());
        let (handle, mut times) = self.launch()?;
        self.tell(&RunState::Running {
            since: started_at,
            changed: Vec::new(),
        });
        let sampler = self.sampler();
        let end = self.watch(&handle, begun, started_at, &mut times);
        times.look();
        // The clock may be set meanwhile.
        let ended_at = started_at + begun.elapsed().as_secs_f64();
        // A driver may hang, and the end of the run's tree must not wait for it.
        if let Some(sampler) = &sampler {
            sampler.stop();
        }
        let mut exit = RunExit {
            status: self.end_container_and_judge(&end, contained.as_ref(), &handle),
            started_at,
            ended_at,
            log_bytes: Some(times.known),
            ..never_ran(ExitKind::Interrupted, waited_seconds)
        };
        let ended = match &end {
            TrainerEnd::Exited(_) => {
                self.see_inputs(&mut exit);
                self.note_end(&exit);
                // A command of the sampler's is no leftover of the run.
                if let Some(sampler) = &sampler {
                    sampler.wait(SETTLE);
                }
                self.settle_tree(&handle)
            }
            TrainerEnd::Stopped(_) => {
                let ended = self.end_tree(&handle);
                self.see_inputs(&mut exit);
                ended
            }
        };
        // A helper of an engine's, or a sampler's command that hangs, is not what the trainer left.
        let is_its_own = contained.is_none() && sampler.is_none();
        if matches!(end, TrainerEnd::Exited(_)) && is_its_own && ended.count > 0 {
            self.notes.push(format!(
                "{} it had started went on after it, and had to be ended",
                counted(ended.count, "process"),
            ));
        }
        // Once more, for a client that was making it until just now.
        let is_gone = contained.as_ref().is_none_or(Contained::remove);
        if let Some(sampler) = sampler {
            sampler.wait(LAST_SAMPLE);
        }
        exit.note = self.finish_log(&mut times, is_gone);
        exit.log_bytes = Some(times.known);
        exit.survivors = ended.survivors;
        Ok(exit)
    }

    /// Notes which inputs have another content than before the trainer started, and tells of those
    /// that were written meanwhile and have the planned content again.
    fn see_inputs(&mut self, exit: &mut RunExit) {
        let seen = written(&self.spec.watched);
        (exit.changed, exit.undeclared) = (seen.changed, seen.undeclared);
        if !seen.touched.is_empty() {
            self.notes.push(format!(
                "{} was written or touched while it ran, and has the content that it began with",
                seen.touched.join(", ")
            ));
        }
    }

    /// How the run ended; ends its container, where that goes on.
    fn end_container_and_judge(
        &mut self,
        end: &TrainerEnd,
        contained: Option<&Contained>,
        handle: &duct::Handle,
    ) -> ExitKind {
        match (end, contained) {
            (TrainerEnd::Exited(status), Some(contained)) => {
                contained.ended(*status, &self.spec.dir.join(LOG))
            }
            (TrainerEnd::Exited(status), None) => exit_kind(*status),
            (TrainerEnd::Stopped(why), contained) => {
                if let Some(contained) = contained {
                    self.end_container(contained, handle);
                }
                why.clone()
            }
        }
    }

    /// SIGTERM inside, and the grace for it; what then is still there is removed.
    fn end_container(&mut self, contained: &Contained, handle: &duct::Handle) {
        let (asked, grace) = (Instant::now(), self.spec.grace());
        let is_told = contained.signal("TERM");
        while is_told
            && exit_status(handle).is_none()
            && asked.elapsed() < grace
            && !self.inbox.is_in_a_hurry()
        {
            reap_orphans(pid_of(handle));
            self.inbox.wait(Duration::from_millis(50));
        }
        contained.remove();
    }

    /// Looks at the run's devices beside it. Not before the trainer has started: nothing may keep
    /// it waiting.
    fn sampler(&self) -> Option<Sampler> {
        let spec = &self.spec;
        let mut env = spec.host_env().clone();
        env.insert(RUN_ID_VARIABLE.to_owned(), spec.run_id.clone());
        let (devices, file) = (spec.devices.clone(), self.telemetry.clone());
        let tree = Tree::below_this_process(&spec.run_id);
        let sampling = Sampling {
            vendor: spec.sampled?,
            devices,
            exclusive: spec.exclusive,
            env,
            file,
        };
        Sampler::start(sampling, move |pid| tree.has(pid))
    }

    fn watch(
        &mut self,
        handle: &duct::Handle,
        begun: Instant,
        since: f64,
        times: &mut LogTimes,
    ) -> TrainerEnd {
        let (mut inputs_at, mut changed) = (begun + INPUT_LOOK, Vec::new());
        let timeout = self
            .spec
            .timeout_seconds
            .and_then(|s| Duration::try_from_secs_f64(s).ok());
        let trainer = pid_of(handle);
        let mut hang = HangWatch::of(&self.spec, &self.spec.dir.join(LOG));
        loop {
            reap_orphans(trainer);
            if let Some(status) = exit_status(handle) {
                return TrainerEnd::Exited(status);
            }
            times.look();
            if Instant::now() >= inputs_at {
                inputs_at = self.look_at_inputs(since, &mut changed);
            }
            if let Some(why) = hang.as_mut().and_then(|hang| hang.look(Instant::now())) {
                let mut evidence = vec![why];
                // Somebody may ask for the end while the stacks are read.
                let inbox = RefCell::new(&mut self.inbox);
                let is_told_to_end = || {
                    let mut inbox = inbox.borrow_mut();
                    inbox.wait(Duration::ZERO);
                    inbox.stop()
                };
                evidence.extend(hang::stacks(&self.spec, &self.tree.pids(), &is_told_to_end));
                return TrainerEnd::Stopped(ExitKind::Hung(evidence));
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            if left == Some(Duration::ZERO) {
                return TrainerEnd::Stopped(ExitKind::Timeout);
            }
            self.inbox
                .wait(left.map_or(LOG_LOOK, |left| left.min(LOG_LOOK)));
            if self.inbox.stop() {
                // It may have ended by itself just before: then that is how it ended, and its
                // figures are whole.
                return exit_status(handle).map_or(
                    TrainerEnd::Stopped(ExitKind::Interrupted),
                    TrainerEnd::Exited,
                );
            }
        }
    }

    /// Tells of inputs that have another content now; when to look again, so that it takes a
    /// hundredth of one core at most.
    fn look_at_inputs(&mut self, since: f64, changed: &mut Vec<String>) -> Instant {
        let begun = Instant::now();
        let watched = self.spec.watched.iter_mut();
        let seen: Vec<String> = watched
            .filter_map(|one| one.look().then(|| one.name.clone()))
            .collect();
        if seen.len() > changed.len() {
            self.tell(&RunState::Running {
                since,
                changed: seen.clone(),
            });
            *changed = seen;
        }
        let now = Instant::now();
        now + INPUT_LOOK.max((now - begun) * 100)
    }

    fn settle_tree(&mut self, handle: &duct::Handle) -> Ended {
        let ended = Instant::now();
        let settle = SETTLE.min(self.spec.grace());
        loop {
            reap_orphans(pid_of(handle));
            // Every process of the host is looked at, so not more often than it must be.
            match self.tree.look() {
                (left, true) if left.is_empty() => return Ended::default(),
                (left, _) if left.is_empty() => break,
                _ => {}
            }
            if self.inbox.is_in_a_hurry() || ended.elapsed() >= settle {
                break;
            }
            self.inbox.wait(Duration::from_millis(20));
        }
        self.end_tree(handle)
    }

    fn end_tree(&mut self, handle: &duct::Handle) -> Ended {
        let Self {
            spec, tree, inbox, ..
        } = self;
        tree.end(spec.grace(), &mut || {
            inbox.wait(Duration::ZERO);
            // The trainer is duct's to reap, the others are ours.
            let _ = exit_status(handle);
            reap_orphans(pid_of(handle));
            inbox.is_in_a_hurry()
        })
    }

    /// For tprimat to show; of no consequence to the run.
    fn tell(&self, state: &RunState) {
        if let Ok(text) = serde_json::to_vec(state) {
            let _ = files::write_atomically(&self.spec.dir.join(STATE), &text, Durability::Plain);
        }
    }
}

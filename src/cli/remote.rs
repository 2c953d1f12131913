//! What a build shares with the remote cache: it takes what others measured before it plans, and
//! leaves what it measured. A remote that does not answer costs one note, never the build.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{
    output::say,
    session::Session,
    verbosity::{Verbosity, verbosity},
};
use crate::{
    cache::{Attempt, Cache, Counts, Pulled, Remote, TaskKind, Unreachable},
    config::Config,
    digest::Digest,
    error::{Error, Problem, Result},
    execute::{Event, EventSink, Interrupts, Share},
    files,
    graph::{Engine, Statuses},
    job::RunOutcome,
    words::plain::counted,
};

/// As the value of `paths.remote` or `--remote`: share with nobody.
const NONE: &str = "none";

/// The remote cache of a project, if it has one.
pub fn of(config: &Config) -> Result<Option<Remote>> {
    let address = config.settings().paths.remote.as_deref();
    let Some(address) = address.filter(|address| *address != NONE) else {
        return Ok(None);
    };
    match Remote::open(address) {
        Ok(remote) => Ok(Some(remote)),
        Err(wrong) => {
            let place = config.problem_at("paths.remote", wrong.message, "this address");
            Err(Error::invalid(place.help(wrong.help.unwrap_or_default())))
        }
    }
}

/// `--remote` as a setting of the command line. What is wrong with the address is said here, for later
/// it would look as if somebody had given `--set`.
pub fn setting(address: &str) -> Result<String> {
    if address != NONE
        && let Err(wrong) = Remote::open(address)
    {
        let message = format!("--remote: {}", wrong.message);
        return Err(Error::invalid(Problem { message, ..wrong }));
    }
    Ok(format!("paths.remote={address}"))
}

/// The remote of a build.
pub struct Sharing {
    remote: Remote,
    /// The keys of the plan.
    keys: BTreeSet<Digest>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// It did not answer. It is asked again at the end of the build only: each wait for it may be long.
    is_lost: bool,
    pulled: usize,
    pushed: usize,
    refused: Vec<String>,
    /// Runs that this build finished and could not leave there.
    unshared: BTreeSet<String>,
}

fn required(remote: Option<Remote>, is_required: bool) -> Result<Option<Remote>> {
    if remote.is_none() && is_required {
        return Err(no_remote());
    }
    Ok(remote)
}

pub fn no_remote() -> Error {
    let problem = Problem::new("this project has no remote cache");
    let help = "name one: `paths: { remote: s3://BUCKET/PREFIX }` in config.yaml, or TPRIMAT_REMOTE=file:///shared/folder";
    Error::invalid(problem.help(help))
}

/// Takes in what others measured of this plan; `None` where the project has no remote.
pub fn pull(
    session: &Session,
    is_required: bool,
    events: &EventSink,
) -> Result<Option<Arc<Sharing>>> {
    let Some(remote) = required(of(&session.plan.config)?, is_required)? else {
        return Ok(None);
    };
    let (engine, statuses) = session.look()?;
    let sharing = Sharing::new(remote, train_keys(&engine, &statuses));
    if is_required {
        sharing.remote.list(Some(&sharing.keys))?;
    }
    if let Some(doubt) = doubt(&sharing.remote) {
        warn(events, doubt);
    }
    sharing.take_keys(&sharing.keys, &session.cache, events)?;
    Ok(Some(Arc::new(sharing)))
}

/// Why what a folder says may not be what was measured, and what to do about it.
pub fn doubt(remote: &Remote) -> Option<String> {
    let folder = remote.folder()?;
    let why = files::controlled_by(folder)?;
    Some(format!(
        "the remote cache {} {why}, so others can say what was measured; if you trust them: export {}={}",
        folder.display(),
        files::TRUSTED_VARIABLE,
        folder.display()
    ))
}

impl Share for Sharing {
    fn take(&self, key: &Digest, cache: &Cache, events: &EventSink) -> Result<()> {
        if self.state().is_lost {
            return Ok(());
        }
        self.take_keys(&BTreeSet::from([*key]), cache, events)
    }

    fn leave(
        &self,
        attempt: &Attempt,
        cache: &Cache,
        is_stopped: bool,
        events: &EventSink,
    ) -> Result<()> {
        if attempt.outcome == RunOutcome::Ok {
            self.state().unshared.insert(attempt.id.clone());
        }
        if !is_stopped && !self.state().is_lost {
            match self.leave_keys(&BTreeSet::from([attempt.key]), cache, &|| Ok(())) {
                Err(error) if is_unreachable(&error) => {
                    let then = "it is asked again at the end of this build";
                    self.lost(&format!("{error}; {then}"), events);
                }
                other => return other,
            }
        }
        Ok(())
    }
}

impl Sharing {
    fn new(remote: Remote, keys: BTreeSet<Digest>) -> Self {
        Self {
            remote,
            keys,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns once until it answers again.
    fn lost(&self, message: &str, events: &EventSink) {
        let was_lost = std::mem::replace(&mut self.state().is_lost, true);
        if !was_lost {
            warn(events, message.to_owned());
        }
    }

    fn take_keys(&self, keys: &BTreeSet<Digest>, cache: &Cache, events: &EventSink) -> Result<()> {
        let listing = self.remote.list(Some(keys));
        let pulled = listing.and_then(|listing| self.remote.pull(cache, &listing, &|_, _| Ok(())));
        match pulled.and_then(|pulled| self.taken(pulled, events)) {
            Err(error) if is_unreachable(&error) => {
                let then =
                    "this build goes on without it; `tprimat cache push` shares its runs later";
                self.lost(&format!("{error}; {then}"), events);
                Ok(())
            }
            other => other,
        }
    }

    /// Counts and tells what a pull brought, then why it broke off, where it did.
    fn taken(&self, mut pulled: Pulled, events: &EventSink) -> Result<()> {
        let mut state = self.state();
        // What is damaged there is told once a build.
        pulled.refused.retain(|one| !state.refused.contains(one));
        state.pulled += pulled.counts.runs;
        state.refused.extend(pulled.refused.iter().cloned());
        drop(state);
        told(&self.remote, &pulled)
            .into_iter()
            .for_each(|message| note(events, message));
        refused(&self.remote, &pulled)
            .into_iter()
            .for_each(|message| warn(events, message));
        pulled.cut.map_or(Ok(()), Err)
    }

    fn leave_keys(
        &self,
        keys: &BTreeSet<Digest>,
        cache: &Cache,
        goes_on: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<()> {
        let listing = self.remote.list(Some(keys))?;
        let records = cache.shared_records(Some(keys));
        let pushed = self
            .remote
            .push(cache, &records, &listing, &|_, _| goes_on());
        let mut state = self.state();
        state.pushed += pushed.counts.runs;
        state.unshared.retain(|id| !pushed.there.contains(id));
        drop(state);
        pushed.cut.map_or(Ok(()), Err)
    }

    /// Takes the plan's runs once more, after files of the cache turned out to be damaged.
    pub fn bring_back(&self, cache: &Cache, events: &EventSink) -> Result<()> {
        if self.state().is_lost {
            return Ok(());
        }
        self.take_keys(&self.keys, cache, events)
    }

    /// Leaves what this cache has of the plan, also from earlier builds. False: the remote does not
    /// answer, and the next build is to try again.
    pub fn push(
        &self,
        session: &Session,
        interrupts: Interrupts,
        events: &EventSink,
    ) -> Result<bool> {
        let goes_on = || {
            interrupts
                .asked()
                .map_or(Ok(()), |s| Err(Error::Interrupted(s)))
        };
        let left = self.leave_keys(&self.keys, &session.cache, &goes_on);
        if left.is_ok() {
            self.state().is_lost = false;
        }
        let pushed = self.state().pushed;
        if pushed > 0 {
            let runs = counted(pushed, "run");
            note(
                events,
                format!("{runs} pushed to {}", self.remote.address()),
            );
        }
        match left {
            Ok(()) => Ok(true),
            Err(error) if is_unreachable(&error) && interrupts.asked().is_none() => {
                self.lost(&error.to_string(), events);
                self.say_unshared(events);
                Ok(false)
            }
            Err(error) => {
                self.say_unshared(events);
                Err(interrupts.asked().map_or(error, Error::Interrupted))
            }
        }
    }

    /// Says how many runs of this build are on this host alone.
    pub fn say_unshared(&self, events: &EventSink) {
        let message = match self.state().unshared.len() {
            0 => return,
            1 => "1 finished run is not in the remote cache: `tprimat cache push` shares it".into(),
            runs => format!(
                "{runs} finished runs are not in the remote cache: `tprimat cache push` shares them"
            ),
        };
        warn(events, message);
    }

    pub fn json(&self) -> Value {
        let state = self.state();
        json!({
            "address": self.remote.address(), "reached": !state.is_lost, "pulled": state.pulled,
            "pushed": state.pushed, "unshared": state.unshared.len(), "refused": state.refused,
        })
    }
}

/// `3 runs`, `3 runs, 1 import, 2 decisions`.
#[must_use]
pub fn counts(counts: &Counts) -> String {
    let mut parts = vec![counted(counts.runs, "run")];
    let others = [(counts.imports, "import"), (counts.decisions, "decision")];
    let others = others.into_iter().filter(|(count, _)| *count > 0);
    parts.extend(others.map(|(count, what)| counted(count, what)));
    parts.join(", ")
}

/// What a pull is worth telling.
pub fn told(remote: &Remote, pulled: &Pulled) -> Vec<String> {
    let mut told = Vec::new();
    let from = remote.address();
    if pulled.counts != Counts::default() {
        told.push(format!("{} pulled from {from}", counts(&pulled.counts)));
    }
    if pulled.counts.runs + pulled.counts.imports == 0 && pulled.objects > 0 {
        let files = counted(pulled.objects, "file");
        told.push(format!(
            "{files} that this cache had lost brought back from {from}"
        ));
    }
    told
}

/// What a pull did not take in.
pub fn refused(remote: &Remote, pulled: &Pulled) -> Option<String> {
    let first = pulled.refused.first()?;
    let others = match pulled.refused.len() - 1 {
        0 => String::new(),
        others => format!("; so are {others} more"),
    };
    Some(format!(
        "a run in {} is not what its name says and was not taken in: {first}{others}; \
         `tprimat cache push --repair` on a host that has it mends that",
        remote.address()
    ))
}

/// The keys under which the runs of a plan are filed.
pub fn train_keys(engine: &Engine, statuses: &Statuses) -> BTreeSet<Digest> {
    let trains = engine
        .dag
        .order
        .iter()
        .filter(|node| engine.dag.task(**node).kind == TaskKind::Train);
    trains.filter_map(|node| statuses.get(*node).key).collect()
}

/// Is it the remote that failed, and not this host?
pub fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::Stage(stage) if stage.is::<Unreachable>())
}

fn note(events: &EventSink, message: String) {
    events.report(&Event::Note { message });
}

/// Says what went wrong, also where `-q` leaves out notes.
fn warn(events: &EventSink, message: String) {
    if verbosity() == Verbosity::Quiet {
        say(&format!("warning: {message}"));
    }
    note(events, message);
}

/// A bar on a terminal, nothing elsewhere.
pub fn bar(verb: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(verb);
    if let Ok(style) = ProgressStyle::with_template("{msg} {pos}/{len} {wide_bar} {eta}") {
        bar.set_style(style);
    }
    bar
}

/// Moves a bar.
pub fn moves(bar: &ProgressBar) -> impl Fn(usize, usize) -> Result<()> + Sync + '_ {
    |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        Ok(())
    }
}

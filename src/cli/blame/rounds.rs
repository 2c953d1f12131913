//! Measures arms: each round is a small build of one run of each of some cells, which the cache may have.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use super::{
    differences::{Difference, cell_of, files_of},
    series::{BOTH_RUN, Series, point_of},
    since,
};
use crate::{
    cache::{Attempt, TaskKind},
    cli::{blocked, build, flags::Overrides, session::Session, train_host::train_host},
    error::{Error, Result},
    execute::{
        self, BuildOptions, Event, EventSink, Interrupts, Prices, ProbeDepth, Reporter, Runs,
        reading,
    },
    figures::{
        RepeatStatus, RepeatSummary,
        blame::{Arm, Outcome},
    },
    graph::{State, Status, TaskId, label, work_differences},
    job::Vendor,
    matrix::{Cell, CellId},
    plan::{Input, PlanRequest, Prepared, Support},
    results::{Contract, Tier, differences as contract_differences},
    words::plain::counted,
};

pub struct Rounds<'a> {
    pub session: &'a Session,
    /// Of the present cell, where it is held against itself.
    pub inputs: &'a [Input],
    pub copies: Copies,
    pub request: PlanRequest,
    pub cells: [&'a Cell; 2],
    pub differences: &'a [Difference],
    pub events: EventSink,
    pub interrupts: Interrupts,
    pub max_runs: usize,
    pub max_gpu_hours: f64,
    /// The job of the first cell, as its canonical text.
    pub job: String,
    pub cooldown_seconds: f64,
    /// When the known runs of each arm were started: those of the two cells, then those of each round.
    pub starts: BTreeMap<Arm, Vec<f64>>,
    pub rounds: BTreeMap<Arm, u32>,
    /// Those of the last round that was told of.
    pub arms: Vec<Arm>,
    /// What the log of the first cell's first run says of its work.
    pub contract: Option<Contract>,
    /// Seconds per token of the second configuration's runs, as logarithms.
    pub seconds: Vec<f64>,
    pub runs: usize,
    pub gpu_hours: f64,
}

/// Copies of the project with these files as they were, work trees at a commit, environments of a version.
pub type Copies = BTreeMap<Vec<String>, TempDir>;

/// One run of a round.
struct Run {
    outcome: Outcome,
    host: String,
    started_at: f64,
    ended_at: f64,
    /// The matrix asks for this repeat, so that its runs may have been made in any order.
    is_of_matrix: bool,
    /// That of `build --decide`.
    round: Option<u64>,
}

/// Runs with a longer pause between them are no round, unless the runs themselves take longer.
const PAUSE_SECONDS: f64 = 60.0;

/// The same request, of a copy of the project where files of an arm are as they were, at its commit, or with
/// its version.
pub fn with_files(
    mut request: PlanRequest,
    session: &Session,
    inputs: &[Input],
    differences: &[Difference],
    arm: &Arm,
    copies: &mut Copies,
) -> Result<PlanRequest> {
    if let Some((series, point)) = point_of(differences, arm) {
        let make = |folder: &Path| match series {
            Series::Commits(of) => of.tree_at(session, inputs, (point, folder)),
            Series::Versions(of) => of.environment(point, folder),
        };
        let folder = copy_of(vec![point.to_owned()], copies, make)?;
        match series {
            Series::Commits(of) => of.name_in(&mut request, session, &folder),
            Series::Versions(of) => of.name_in(&mut request, &folder),
        }
        return Ok(request);
    }
    let old = files_of(differences, arm);
    if old.is_empty() {
        return Ok(request);
    }
    let key: Vec<String> = old.iter().map(|(name, _)| (*name).to_owned()).collect();
    request.root = copy_of(key, copies, |folder| {
        since::copy_with(session, inputs, &old, folder)
    })?;
    let cache = session.cache.root().display();
    request.sets.push(format!("paths.cache={cache}"));
    Ok(request)
}

/// The folder of a copy, which is made once.
fn copy_of(
    key: Vec<String>,
    copies: &mut Copies,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    if let Some(known) = copies.get(&key) {
        return Ok(known.path().to_owned());
    }
    let folder = tempfile::tempdir();
    let folder = folder.map_err(Error::io("cannot make a folder in", &std::env::temp_dir()))?;
    make(folder.path())?;
    let path = folder.path().to_owned();
    copies.insert(key, folder);
    Ok(path)
}

/// What is told of runs. The cells of a search are in no table, so advice that names one would be of no use.
pub fn events() -> EventSink {
    let events = EventSink::default();
    events.add(WithoutAdvice(build::progress()));
    events
}

struct WithoutAdvice(EventSink);

impl Reporter for WithoutAdvice {
    fn report(&mut self, event: &Event) {
        let mut event = event.clone();
        if let Event::TaskFinished { what_to_do, .. } = &mut event {
            *what_to_do = None;
        }
        self.0.report(&event);
    }
}

fn overrides() -> Overrides {
    Overrides {
        keep_going: true,
        ..Overrides::default()
    }
}

/// The training of the last repeat of the only cell.
pub fn last_train(session: &Session) -> TaskId {
    let cell = CellId::default();
    let repeat = session.plan.cells[cell].repeats;
    session.dag.node(TaskKind::Train, cell, repeat)
}

/// That of the last repeat of the only cell.
fn state(session: &Session) -> Result<State> {
    let statuses = session.planner(&overrides()).evaluate_all()?;
    Ok(statuses.get(last_train(session)).state)
}

impl Rounds<'_> {
    /// One run of each arm; none once the budget is spent.
    pub fn measure(&mut self, arms: &[&Arm]) -> Result<Option<Vec<Outcome>>> {
        let mut outcomes: Vec<Option<Outcome>> = Vec::new();
        for arm in arms {
            let is_new = !self.rounds.contains_key(*arm);
            let why = is_new.then(|| self.why_not(arm)).transpose()?.flatten();
            if let (Some(why), true) = (&why, self.is_end(arm)) {
                return Err(self.unmeasured(arm, why));
            }
            outcomes.push(why.map(Outcome::Fails));
        }
        let runs: Vec<&Arm> = arms
            .iter()
            .zip(&outcomes)
            .filter_map(|(arm, outcome)| outcome.is_none().then_some(*arm))
            .collect();
        let all = self.differences.len();
        let made = loop {
            let before = self.runs;
            let Some(mut made) = self.build(&runs)? else {
                return Ok(None);
            };
            let is_round = self.is_in_turns(&runs, &made);
            // A run that was never started is not passed over: no later one would be started either.
            let is_kept = self.runs == before && made.iter().all(|run| run.started_at.is_finite());
            let earliest = made
                .iter()
                .map(|run| run.started_at)
                .fold(f64::INFINITY, f64::min);
            // Runs that the cache has pair by time and not by number: one arm may have runs of another search, or of the matrix. So
            // where they make no round, the earliest one alone is passed over, and the others wait for its successor.
            let passes = |run: &Run| is_round || !is_kept || run.started_at <= earliest;
            for (arm, run) in runs.iter().zip(&mut made) {
                if passes(run) {
                    if let (Outcome::Time(seconds), true) = (&run.outcome, arm.len() == all) {
                        self.seconds.push(seconds.ln());
                    }
                    *self.rounds.entry((*arm).clone()).or_default() += 1;
                    self.starts
                        .entry((*arm).clone())
                        .or_default()
                        .push(run.started_at);
                }
                if !is_round && matches!(run.outcome, Outcome::Time(_)) {
                    run.outcome = Outcome::Lost;
                }
            }
            let is_lost = made.iter().all(|run| matches!(run.outcome, Outcome::Lost));
            if !(is_kept && is_lost) {
                break made;
            }
        };
        let mut made = made.into_iter();
        let all = outcomes
            .into_iter()
            .map(|known| known.or_else(|| made.next().map(|run| run.outcome)));
        Ok(Some(
            all.map(|outcome| outcome.unwrap_or(Outcome::Lost))
                .collect(),
        ))
    }

    /// Is it one of the two that are held against each other?
    fn is_end(&self, arm: &Arm) -> bool {
        arm.is_empty() || arm.len() == self.differences.len()
    }

    fn unmeasured(&self, arm: &Arm, why: &str) -> Error {
        if let Some((series, point)) = point_of(self.differences, arm) {
            let (cell, at) = (self.cells[1], series.at(point));
            let which = if arm.is_empty() { "first" } else { "last" };
            let what = format!(
                "`{cell}` does not run {at}, the {which} of the range, so its speed there is not known: {why}"
            );
            return Error::failed_with(what, BOTH_RUN);
        }
        let cell = cell_of(self.differences, self.cells, arm);
        Error::failed(format!("`{cell}` cannot be measured: {why}"))
    }

    /// Why a run is of no use, and how to see its log.
    fn with_log(&self, why: String, attempt: Option<&Attempt>) -> String {
        match attempt {
            Some(attempt) => {
                let words = ["--attempt", &*attempt.id];
                let logs = self.session.plan.command("logs", &words);
                format!("{why} (`{logs}` prints its log)")
            }
            None => why,
        }
    }

    /// The project with one cell, that of an arm, whose last repeat is its next run.
    fn open(&mut self, arm: &Arm) -> Result<Session> {
        let mut request = self.request.clone();
        let repeats = self.rounds.get(arm).copied().unwrap_or_default() + 1;
        let cell = cell_of(self.differences, self.cells, arm);
        // A run that the matrix asks for remembers how many it asks for, as one of a build does.
        request.repeats = Some(repeats.max(cell.repeats));
        request.arms = vec![cell];
        let (session, inputs) = (self.session, self.inputs);
        let copies = &mut self.copies;
        let request = with_files(request, session, inputs, self.differences, arm, copies)?;
        // Its runs beyond those that the matrix asks for are in no table of the matrix: they were added
        // until a decision on something else.
        let mut opened = Session::open(request)?;
        opened.set_repeats(&vec![repeats].into())?;
        Ok(opened)
    }

    /// Why an arm cannot be measured, where that is known without a run of it.
    fn why_not(&mut self, arm: &Arm) -> Result<Option<String>> {
        if let Some((Series::Versions(of), version)) = point_of(self.differences, arm) {
            let message = format!("installing {} {version}", of.name);
            self.events.report(&Event::Note { message });
        }
        let session = match self.open(arm) {
            Ok(session) => session,
            Err(Error::Invalid(problems)) if !arm.is_empty() => {
                return Ok(problems.first().map(ToString::to_string));
            }
            // A version that cannot be installed is a result.
            Err(error @ Error::Failed { .. }) if point_of(self.differences, arm).is_some() => {
                return match self.interrupts.asked() {
                    Some(signal) => Err(Error::Interrupted(signal)),
                    None => Ok(Some(error.to_string())),
                };
            }
            Err(error) => return Err(error),
        };
        let cell = CellId::default();
        let prepared = match &session.plan.cells[cell].support {
            Support::Unsupported(why) => return Ok(Some(why.clone())),
            Support::Ready(prepared) => prepared,
        };
        let other = work_differences(&self.job, &prepared.job_text());
        if !other.is_empty() {
            return Ok(Some(format!("it does other work ({})", other.join(", "))));
        }
        let host = train_host(&session)?;
        let blocked = blocked::find(&session.plan, &[cell], &host, ProbeDepth::ByAsking)?;
        Ok(blocked
            .values()
            .flatten()
            .next()
            .map(blocked::sentence)
            .or(prepared.here().err()))
    }

    /// The next run of each arm; none where the budget does not allow those that are missing.
    fn build(&mut self, arms: &[&Arm]) -> Result<Option<Vec<Run>>> {
        let opened = arms.iter().map(|arm| self.open(arm));
        let mut opened: Vec<Session> = opened.collect::<Result<_>>()?;
        self.skip_old_runs(arms, &mut opened)?;
        let (mut missing, mut hours) = (0, 0.0);
        for session in &opened {
            let engine = session.planner(&overrides());
            let statuses = engine.evaluate_all()?;
            let is_stale = |node: &TaskId| statuses.get(*node).state == State::Stale;
            missing += usize::from(is_stale(&last_train(session)));
            // Whoever only plans reads no log either.
            if self.max_runs == 0 {
                let is_of_cell = |node: &&TaskId| !session.dag.task(**node).kind.is_over_all();
                let nodes = session.dag.order.iter().filter(is_of_cell);
                missing += nodes.filter(|node| is_stale(node)).count();
            }
            let prices = Prices::of(&engine, &statuses, Runs::Stale);
            hours += prices.gpu_hours().unwrap_or_default();
        }
        let is_beyond =
            self.runs + missing > self.max_runs || self.gpu_hours + hours > self.max_gpu_hours;
        if missing > 0 && is_beyond {
            return Ok(None);
        }
        // The rounds of one question are of the same arms.
        if missing > 0 && !self.arms.iter().eq(arms.iter().copied()) {
            let (made, most) = (self.runs, self.max_runs);
            let message = format!(
                "{} in turns; {made} of at most {most} runs made",
                counted(arms.len(), "configuration")
            );
            self.events.report(&Event::Note { message });
            self.arms = arms.iter().map(|arm| (*arm).clone()).collect();
        }
        let made = arms.iter().zip(&opened);
        made.map(|(arm, session)| self.run(arm, session))
            .collect::<Result<_>>()
            .map(Some)
    }

    /// How many runs of an arm the cache has.
    pub fn cached(&mut self, arm: &Arm) -> Result<usize> {
        let before = self.rounds.get(arm).copied().unwrap_or_default();
        let mut session = self.open(arm)?;
        self.skip_fresh(arm, &mut session)?;
        let there = self.rounds.get(arm).copied().unwrap_or_default() - before;
        Ok(there as usize)
    }

    /// A run that the cache has is no round with one that is still to be made: then each arm takes its next run that is not there.
    fn skip_old_runs(&mut self, arms: &[&Arm], opened: &mut [Session]) -> Result<()> {
        let states: Vec<State> = opened.iter().map(state).collect::<Result<_>>()?;
        if !states.contains(&State::Stale) {
            return Ok(());
        }
        let mut each = arms.iter().zip(opened);
        each.try_for_each(|(arm, session)| self.skip_fresh(arm, session))
    }

    fn skip_fresh(&mut self, arm: &Arm, session: &mut Session) -> Result<()> {
        while state(session)? == State::Fresh {
            *self.rounds.entry(arm.clone()).or_default() += 1;
            *session = self.open(arm)?;
        }
        Ok(())
    }

    /// The last repeat of the only cell of a session.
    fn run(&mut self, arm: &Arm, session: &Session) -> Result<Run> {
        let (plan, cell) = (&session.plan, CellId::default());
        let overrides = overrides();
        let engine = session.planner(&overrides);
        let mut statuses = engine.evaluate_all()?;
        // The cells of a search are compared by the search, and published nowhere.
        for kind in [TaskKind::Compare, TaskKind::Plot, TaskKind::Report] {
            let node = engine.dag.over_all(kind);
            statuses.set(node, Status::failed("it is of no matrix"));
        }
        let is_stale = |node: &TaskId| statuses.get(*node).state == State::Stale;
        let train = last_train(session);
        let is_missing = is_stale(&train);
        let silent = EventSink::default();
        if is_missing {
            engine.cache.ensure_writable()?;
            // A copy of the project has a lock of its own, which nobody is to commit. An environment is in
            // no lock.
            let is_own = plan.root == self.session.plan.root;
            let series = point_of(self.differences, arm).map(|(series, _)| series);
            if !matches!(series, Some(Series::Versions(_))) {
                build::pin(plan, if is_own { &self.events } else { &silent })?;
            }
            if self.runs > 0 {
                std::thread::sleep(Duration::from_secs_f64(self.cooldown_seconds));
            }
        }
        if engine.dag.order.iter().any(is_stale) {
            let options = BuildOptions {
                jobs: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
                fail_fast: false,
            };
            let host = train_host(session)?;
            // To read again what was run is nothing to tell of.
            let events = if is_missing { &self.events } else { &silent };
            let interrupts = self.interrupts;
            let summary =
                execute::build(&engine, &mut statuses, &options, &host, interrupts, events);
            if let Some(signal) = interrupts.asked() {
                return Err(Error::Interrupted(signal));
            }
            self.runs += summary?.runs;
        }
        let status = statuses.get(train);
        let time = |of: fn(&Attempt) -> f64| status.attempt().map_or(f64::NAN, |at| of(at));
        let mut run = Run {
            outcome: Outcome::Lost,
            host: String::new(),
            started_at: time(|attempt| attempt.started_at),
            ended_at: time(|attempt| attempt.ended_at),
            is_of_matrix: self.is_end(arm)
                && plan.cells[cell].repeats <= self.cells[usize::from(!arm.is_empty())].repeats,
            round: status
                .attempt()
                .and_then(|attempt| attempt.repeats_planned?.round()),
        };
        let job = plan.prepared(cell).map(Prepared::job);
        let job = job.filter(|job| is_missing && job.vendor != Vendor::Cpu);
        if let (Some(job), true) = (job, run.ended_at.is_finite()) {
            let seconds = run.ended_at - run.started_at;
            self.gpu_hours += seconds * job.parallelism.num_gpus as f64 / 3600.0;
        }
        let repeat = plan.cells[cell].repeats;
        let found = reading::repeat(&engine, &statuses, cell, repeat)?;
        if let Some((result, _)) = found.filter(|(_, standing)| standing.is_present()) {
            run.host.clone_from(&result.host);
            run.outcome = self.outcome(arm, &result.contract, || {
                let summary = reading::summary(&engine, cell, &vec![(repeat, result.clone())]);
                summary.repeats.into_iter().next()
            });
        } else if repeat == 1 {
            let name = label(plan, &engine.dag.task(train));
            let why = status.reason.as_ref();
            let why = why.map(|why| why.describe(&engine, TaskKind::Train, &name, || None));
            run.outcome = Outcome::Fails(why.unwrap_or_else(|| "it was not run".to_owned()));
        }
        if let Outcome::Fails(why) = &mut run.outcome {
            *why = self.with_log(std::mem::take(why), status.attempt().map(|at| &**at));
        }
        if let (Outcome::Fails(why), true) = (&run.outcome, self.is_end(arm)) {
            return Err(self.unmeasured(arm, why));
        }
        Ok(run)
    }

    /// What a run is worth to the search.
    fn outcome(
        &mut self,
        arm: &Arm,
        contract: &Contract,
        summary: impl FnOnce() -> Option<RepeatSummary>,
    ) -> Outcome {
        let is_first = !self.rounds.contains_key(arm);
        if arm.is_empty() {
            self.contract.get_or_insert_with(|| contract.clone());
        } else if let Some(first) = &self.contract {
            let mut other = contract_differences(first, contract).into_iter();
            let other = other.find(|field| field.tier == Tier::Workload && field.is_known());
            if let Some(field) = other {
                return Outcome::Fails(format!("it does other work ({})", field.words()));
            }
        }
        let Some(run) = summary() else {
            return Outcome::Lost;
        };
        match (&run.status, &run.steady) {
            (RepeatStatus::Ok, Some(steady)) => {
                Outcome::Time(1.0 / steady.tokens_per_second_per_gpu)
            }
            (RepeatStatus::Suspect { .. }, _) => Outcome::Lost,
            (status, _) if is_first => {
                let why = status.why_not();
                let why = why.unwrap_or_else(|| "its log has no step times".to_owned());
                let evidence = match status {
                    RepeatStatus::Failed { evidence, .. } => evidence.last(),
                    _ => None,
                };
                Outcome::Fails(evidence.map_or(why.clone(), |line| format!("{why}: {line}")))
            }
            _ => Outcome::Lost,
        }
    }

    /// Were these runs made as a round, one right after the other on one host? Those that the cache had may have been
    /// made one arm after the other, and each in the round of another.
    fn is_in_turns(&self, arms: &[&Arm], made: &[Run]) -> bool {
        // A search makes the runs of a round in the order of its arms.
        let is_in_order = made.is_sorted_by(|one, next| {
            one.started_at.partial_cmp(&next.started_at) != Some(Ordering::Greater)
        });
        let is_of_matrix = made.iter().all(|run| run.is_of_matrix);
        let first_round = made.first().and_then(|run| run.round);
        let is_one_round = first_round.is_some() && made.iter().all(|run| run.round == first_round);
        if !(is_in_order || is_of_matrix || is_one_round) {
            return false;
        }
        let mut runs: Vec<&Run> = made
            .iter()
            .filter(|run| run.started_at.is_finite())
            .collect();
        runs.sort_by(|a, b| a.started_at.total_cmp(&b.started_at));
        let is_other = |at: &f64| !runs.iter().any(|run| run.started_at == *at);
        let known = arms.iter().filter_map(|arm| self.starts.get(*arm));
        let others: Vec<f64> = known.flatten().copied().filter(is_other).collect();
        let follows = |two: &[&Run]| {
            let [one, next] = [two[0], two[1]];
            let least = [one, next].map(|run| run.ended_at - run.started_at);
            let pause = PAUSE_SECONDS.max(least[0].min(least[1])) + self.cooldown_seconds;
            next.started_at - one.ended_at <= pause
                && [one, next].iter().all(|run| !run.host.is_empty())
                && one.host == next.host
                && !others
                    .iter()
                    .any(|at| (one.started_at..next.started_at).contains(at))
        };
        runs.windows(2).all(follows)
    }
}

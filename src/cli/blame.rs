//! `blame`: which of the differences between two cells changed the speed. Builds the cells in between.

mod commits;
mod differences;
mod rounds;
mod series;
mod since;
mod versions;

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    args::{BlameArgs, Globals},
    build::profile,
    flags::{Common, Measured, Overrides, Repeats},
    output::{answer, page, say},
    plan, project,
    session::Session,
    train_host::train_host,
    verbosity::{Verbosity, verbosity},
};
use crate::{
    cache::TaskKind,
    error::{Error, Result, exit},
    execute::{self, Basis, CellPrice, EventSink, Interrupts, Prices, Runs},
    figures::{
        ChangedSetting, Measurement,
        blame::{Answer, Arm, Blame, FailedArm, Limits, bisect, search, usual_runs},
    },
    graph::work_differences,
    matrix::{Cell, CellId},
    plan::{Plan, Prepared, Support},
    report,
    results::known_field,
    words::plain::counted,
};
use differences::{Difference, cell_of, differences};
use rounds::{Copies, Rounds};
use series::{BOTH_RUN, point_of};

/// A question that this many rounds do not answer is given up.
const ROUNDS: usize = 100;

/// What is held against what.
struct Question<'a> {
    cells: [&'a Cell; 2],
    names: [String; 2],
    differences: Vec<Difference>,
    /// What differs besides, and comes with the second one alone.
    not_varied: Vec<ChangedSetting>,
    /// Commands that vary some of it.
    varied_by: Vec<String>,
    /// The jobs of both, as their canonical texts.
    jobs: [String; 2],
    /// What was measured of the cell then.
    then: Option<Measurement>,
    /// Where they come one after the other, as commits do: for each number of them, the least number that
    /// makes the same configuration.
    same: Option<Vec<usize>>,
    /// What is known not to run without a run of it.
    broken: Vec<FailedArm>,
}

pub fn run(globals: &Globals, args: &BlameArgs) -> Result<i32> {
    let common = Common::of(args.matrix.clone(), args.sets.clone());
    let measured = Measured {
        repeats: Repeats::default(),
        drift: args.drift.clone(),
        executor: args.executor.clone(),
    };
    let request = project::request(globals, &common, None, &measured)?;
    let session = Session::open(request)?;
    let plan = &session.plan;
    if profile::asked(plan).is_some() {
        return Err(Error::refused(
            "experiment.profiling measures nothing, and blame measures",
            "give --set experiment.profiling=false",
        ));
    }
    let interrupts = execute::install_interrupt_handler()?;
    let (ids, asked) = match (&args.cells[..], &args.since, &args.commits, &args.versions) {
        ([cell], Some(since), None, None) => {
            let id = plan.find(cell)?;
            measurable(plan, id)?;
            ([id, id], then_and_now(&session, id, since)?)
        }
        ([cell], None, Some(range), None) => {
            let id = plan.find(cell)?;
            ([id, id], at_commits(&session, id, range, interrupts)?)
        }
        ([cell], None, None, Some(range)) => {
            let id = plan.find(cell)?;
            ([id, id], with_versions(&session, id, range)?)
        }
        ([a, b], None, None, None) => {
            let ids = [plan.find(a)?, plan.find(b)?];
            (ids, two_cells(plan, ids)?)
        }
        _ => {
            return Err(Error::refused(
                "blame takes two cells, or one with --since, --commits or --versions",
                "`tprimat blame A B`, `tprimat blame CELL --since BASELINE|DATE`, `tprimat blame CELL --commits OLD..NEW`, or \
                 `tprimat blame CELL --versions NAME==OLD..NEW`",
            ));
        }
    };
    let n = asked.differences.len();
    let prepared = measurable(plan, ids[1])?;
    let told = asked.differences.iter().map(|one| one.told.clone());
    let [a, b] = &asked.names;
    let mut blame = Blame::of(a, b, args.decide, told.collect());
    blame.not_varied.clone_from(&asked.not_varied);
    blame.varied_by.clone_from(&asked.varied_by);
    let [first_job, second_job] = &asked.jobs;
    let other = work_differences(first_job, second_job);
    if !other.is_empty() {
        blame.answer = Answer::OtherWork;
        blame.other_work = other.into_iter().map(str::to_owned).collect();
        let code = told_of(globals, &blame)?;
        say_across(plan, &args.cells, &blame.other_work);
        return Ok(code);
    }
    let starts = match asked.same {
        // The present cell may be at none of them.
        Some(_) => BTreeMap::new(),
        None => starts(&session, ids, n)?,
    };
    blame.fails.clone_from(&asked.broken);
    let mut rounds = Rounds {
        session: &session,
        inputs: &prepared.inputs.files,
        copies: BTreeMap::new(),
        request: session.request.clone(),
        cells: asked.cells,
        differences: &asked.differences,
        events: EventSink::default(),
        interrupts,
        max_runs: args.max_runs,
        max_gpu_hours: args.max_gpu_hours.unwrap_or(f64::INFINITY),
        job: first_job.clone(),
        cooldown_seconds: prepared.resolved.cooldown_seconds,
        starts,
        rounds: BTreeMap::new(),
        arms: Vec::new(),
        contract: None,
        seconds: Vec::new(),
        runs: 0,
        gpu_hours: 0.0,
    };
    let limits = Limits {
        margin: args.decide,
        rounds: ROUNDS,
    };
    if args.dry_run {
        let prices = prices(&session, &ids);
        let cached = match asked.same {
            // Work trees and environments are made for runs alone.
            Some(_) => 0,
            None => rounds.cached(&Arm::new())? + rounds.cached(&(0..n).collect())?,
        };
        let mut cost = Cost::of(&asked, args, &prices, cached);
        // Without a single further run: does the cache answer it? What cannot be looked at does not.
        rounds.max_runs = 0;
        rounds.rounds.clear();
        cost.is_answered = cached > 0
            && search(n, limits, |arms| rounds.measure(arms))
                .is_ok_and(|found| found.answer != Answer::Undecided);
        if cost.is_answered {
            cost.usual = 0;
        }
        let value = json!({
            "differences": blame.differences, "cached_runs": cached, "not_varied": blame.not_varied,
            "varied_by": blame.varied_by, "prices": prices.cells, "runs": cost.usual, "most_runs": cost.most,
            "seconds_of_run": cost.seconds_of_run, "gpu_hours_of_run": cost.gpu_hours_of_run, "fails": blame.fails,
        });
        answer(globals, "blame_plan", &value, || plan_text(&blame, &cost))?;
        return Ok(exit::OK);
    }
    project::say_notes(plan);
    let _in_use = session.cache.use_it();
    rounds.events = rounds::events();
    if session.cache.ensure_writable().is_ok() {
        execute::sweep_up(&session.cache, &train_host(&session)?, &rounds.events);
    }
    let measure = |arms: &[&Arm]| rounds.measure(arms);
    let result = match asked.same {
        Some(same) => bisect(same, limits, measure)?,
        None => search(n, limits, measure)?,
    };
    let is_spent = result.is_spent && result.answer == Answer::Undecided;
    blame.take(result);
    if is_spent {
        let arms = rounds.arms.len().max(2);
        blame.goes_on_by = Some(goes_on_by(plan, args, blame.more_rounds.map(|n| n * arms)));
    }
    let is_known = |one: &FailedArm| blame.fails.iter().any(|known| known.with == one.with);
    let unmeasured: Vec<FailedArm> = asked
        .broken
        .into_iter()
        .filter(|one| !is_known(one))
        .collect();
    blame.fails.extend(unmeasured);
    (blame.runs, blame.gpu_hours) = (rounds.runs, rounds.gpu_hours);
    let rate = asked.then.and_then(|then| then.tokens_per_second_per_gpu);
    if let (Some(rate), false) = (rate, rounds.seconds.is_empty()) {
        let now = rounds.seconds.iter().sum::<f64>() / rounds.seconds.len() as f64;
        let recorded = now.exp() * rate.value - 1.0;
        blame.recorded = Some(recorded);
        if blame.answer == Answer::Noise && recorded.abs() > args.decide {
            blame.answer = Answer::HostChanged;
        }
    }
    told_of(globals, &blame)
}

fn two_cells(plan: &Plan, ids: [CellId; 2]) -> Result<Question<'_>> {
    let jobs = [
        measurable(plan, ids[0])?.job_text(),
        measurable(plan, ids[1])?.job_text(),
    ];
    let cells = ids.map(|id| &plan.matrix.cells[id]);
    let names = ids.map(|id| plan.cells[id].id.clone());
    let found = differences(plan, cells);
    if found.is_empty() {
        return Err(Error::refused(
            format!("`{}` and `{}` differ in nothing", names[0], names[1]),
            "name two cells that differ in a setting; a cell then and now: --since",
        ));
    }
    Ok(Question {
        cells,
        names,
        differences: found,
        not_varied: Vec::new(),
        varied_by: Vec::new(),
        jobs,
        then: None,
        same: None,
        broken: Vec::new(),
    })
}

/// A cell at the first and at the last commit of a range. Commits that change nothing that a run is made
/// of are left out.
fn at_commits<'a>(
    session: &'a Session,
    id: CellId,
    range: &str,
    interrupts: Interrupts,
) -> Result<Question<'a>> {
    let plan = &session.plan;
    let (name, cell) = (&plan.cells[id].id, &plan.matrix.cells[id]);
    let all = commits::commits(session, id, range)?;
    if let Some(note) = commits::uncommitted(session, id)? {
        say(&note);
    }
    let inputs = &measurable(plan, id)?.inputs.files;
    let planned = |arm: &Arm| {
        let mut request = session.request.clone();
        request.arms = vec![cell.clone()];
        request.repeats = Some(1);
        let mut copies = Copies::default();
        let request = rounds::with_files(request, session, inputs, &all, arm, &mut copies)?;
        let planned = Session::open(request)?;
        let job = measurable(&planned.plan, CellId::default())?.job_text();
        let statuses = planned.planner(&Overrides::default()).evaluate_all()?;
        let key = statuses.get(rounds::last_train(&planned)).key;
        Ok((job, key))
    };
    let (job, first) = planned(&Arm::new()).map_err(|error: Error| {
        let what = format!(
            "`{}` cannot be planned: {error}",
            at_point(name, &all, &Arm::new())
        );
        Error::failed_with(what, BOTH_RUN)
    })?;
    let (mut keys, mut acts, mut last_job) = (vec![first], Vec::new(), job.clone());
    let mut broken = Vec::new();
    for at in 0..all.len() {
        if let Some(signal) = interrupts.asked() {
            return Err(Error::Interrupted(signal));
        }
        // One that cannot be planned is a result of the search, also where it is not reached.
        let found = planned(&(0..=at).collect())
            .map_err(|error| {
                broken.push(FailedArm {
                    with: vec![keys.len() - 1],
                    why: error.to_string(),
                });
            })
            .ok();
        let key = found.as_ref().and_then(|(_, key)| *key);
        // The search says so of the last commit, which is no other work then.
        last_job = found.map_or_else(|| job.clone(), |(job, _)| job);
        let is_other = key.is_none() || keys.last() != Some(&key);
        acts.push(is_other);
        if is_other {
            keys.push(key);
        }
    }
    let mut acts = acts.into_iter();
    let differences: Vec<Difference> = all
        .into_iter()
        .filter(|_| acts.next() == Some(true))
        .collect();
    if differences.is_empty() {
        return Err(Error::refused(
            format!("no commit of {range} changes anything that a run of `{name}` is made of"),
            "`-n` lists the commits that do, of a longer range",
        ));
    }
    let least = |at: usize| {
        let is_same = |other: &usize| keys[at].is_some() && keys[*other] == keys[at];
        (0..at).find(is_same).unwrap_or(at)
    };
    let same = (0..keys.len()).map(least).collect();
    Ok(Question {
        same: Some(same),
        broken,
        ..in_line(plan, id, differences, [job, last_job])
    })
}

/// A cell with the first and with the last version of a package.
fn with_versions<'a>(session: &'a Session, id: CellId, range: &str) -> Result<Question<'a>> {
    let prepared = measurable(&session.plan, id)?;
    let job = prepared.job_text();
    let differences = versions::versions(session, id, prepared, range)?;
    // Each version is in the keys, so no two are the same.
    let same = (0..=differences.len()).collect();
    Ok(Question {
        same: Some(same),
        ..in_line(&session.plan, id, differences, [job.clone(), job])
    })
}

/// A cell at the two ends of a series.
fn in_line(
    plan: &Plan,
    id: CellId,
    differences: Vec<Difference>,
    jobs: [String; 2],
) -> Question<'_> {
    let (name, cell) = (&plan.cells[id].id, &plan.matrix.cells[id]);
    let last = (0..differences.len()).collect();
    Question {
        cells: [cell, cell],
        names: [Arm::new(), last].map(|arm| at_point(name, &differences, &arm)),
        differences,
        not_varied: Vec::new(),
        varied_by: Vec::new(),
        jobs,
        then: None,
        same: None,
        broken: Vec::new(),
    }
}

/// `cpu/cmd/gpt/single at 1f2e3d4c5b`
fn at_point(name: &str, differences: &[Difference], arm: &Arm) -> String {
    let at = point_of(differences, arm).map(|(series, point)| series.at(point));
    format!("{name} {}", at.unwrap_or_default())
}

/// A cell as it was measured once, as far as that can be made again, and as it is.
fn then_and_now<'a>(session: &'a Session, id: CellId, since: &str) -> Result<Question<'a>> {
    let then = since::measured_then(session, id, since)?;
    let plan = &session.plan;
    let name = &plan.cells[id].id;
    let cell = &plan.matrix.cells[id];
    let inputs = &measurable(plan, id)?.inputs.files;
    let mut undone = since::undone(session, id, &then)?;
    // What a change was undone by is right where the cell has the key again that it had then.
    let (left, job) = loop {
        let mut request = session.request.clone();
        request.arms = vec![cell_of(&undone, [cell, cell], &Arm::new())];
        request.repeats = Some(1);
        let mut copies = Copies::default();
        let request =
            rounds::with_files(request, session, inputs, &undone, &Arm::new(), &mut copies)?;
        let was = Session::open(request).map_err(|error| {
            let what = format!("`{name}` as it was then cannot be planned now: {error}");
            Error::failed(what)
        })?;
        let left = since::changes(session, id, &then, &was)?;
        let job = measurable(&was.plan, CellId::default())?.job_text();
        let known = undone.len();
        undone.retain(|one| !left.iter().any(|of| one.undoes.as_ref() == Some(&of.field)));
        if undone.len() == known {
            break (left, job);
        }
    };
    let not_varied = since::told(&left);
    let varied_by = since::varied_by(plan, name, &left);
    if undone.is_empty() {
        return Err(Error::failed_with(
            match &not_varied[..] {
                [] => format!(
                    "nothing that a key covers was changed since `{name}` was measured then"
                ),
                all => format!(
                    "what was changed since cannot be varied here: {}",
                    all.iter()
                        .map(ChangedSetting::words)
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            },
            match varied_by.first() {
                Some(command) => format!("`{command}` measures the versions between"),
                None => format!(
                    "`{}` has its speed over time",
                    plan.command("history", &[name])
                ),
            },
        ));
    }
    let at = jiff::Timestamp::from_second(then.started_at as i64).unwrap_or_default();
    Ok(Question {
        cells: [cell, cell],
        names: [
            format!("{name} as of {}", at.strftime("%Y-%m-%d %H:%M UTC")),
            format!("{name} now"),
        ],
        differences: undone,
        not_varied,
        varied_by,
        jobs: [job, measurable(plan, id)?.job_text()],
        then: Some(then),
        same: None,
        broken: Vec::new(),
    })
}

fn told_of(globals: &Globals, blame: &Blame) -> Result<i32> {
    answer(globals, "blame", blame, || {
        report::blame_text(blame, verbosity() == Verbosity::Verbose, &page())
    })?;
    Ok(match blame.answer {
        Answer::Undecided => exit::INCONCLUSIVE,
        _ => exit::OK,
    })
}

/// The command that goes on with a search whose budget is spent. Its budget is for the runs that it makes.
/// `more`: how many the last question takes.
fn goes_on_by(plan: &Plan, args: &BlameArgs, more: Option<usize>) -> String {
    let mut words = args.cells.clone();
    let mut add = |option: &str, value: Option<String>| {
        words.extend(
            value
                .map(|value| [option.to_owned(), value])
                .into_iter()
                .flatten(),
        );
    };
    add("--since", args.since.clone());
    add("--commits", args.commits.clone());
    add("--versions", args.versions.clone());
    let margin = (args.decide * 1e8).round() / 1e6;
    add(
        "--decide",
        Some(format!("{margin}%")).filter(|_| args.decide != 0.02),
    );
    let runs = more.unwrap_or_default().max(args.max_runs);
    add("--max-runs", Some(runs.to_string()));
    add(
        "--max-gpu-hours",
        args.max_gpu_hours.map(|hours| hours.to_string()),
    );
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    plan.command("blame", &words)
}

/// Rates of different work are compared where somebody asks for that.
fn say_across(plan: &Plan, cells: &[String], other_work: &[String]) {
    let last = |field: &String| field.rsplit('.').next().unwrap_or(field).to_owned();
    let fields: Vec<String> = other_work.iter().map(last).collect();
    if let [a, b] = cells
        && fields.iter().all(|field| known_field(field))
    {
        let compare = plan.command("compare", &[a, b, "--across", &fields.join(",")]);
        eprintln!("`{compare}` compares their rates all the same");
    }
}

/// A cell that this host can measure.
fn measurable(plan: &Plan, cell: CellId) -> Result<&Prepared> {
    let id = &plan.cells[cell].id;
    let prepared = match &plan.cells[cell].support {
        Support::Ready(prepared) => prepared,
        Support::Unsupported(why) => {
            return Err(Error::failed(format!("`{id}` is unsupported: {why}")));
        }
    };
    prepared.here().map_err(|why| {
        Error::failed_with(
            format!("`{id}` cannot be measured on this host: {why}"),
            "blame measures both cells in turns, so one host must run both",
        )
    })?;
    Ok(prepared)
}

/// When the runs that the cache has of the two cells were started.
fn starts(session: &Session, ids: [CellId; 2], n: usize) -> Result<BTreeMap<Arm, Vec<f64>>> {
    let (_, statuses) = session.look()?;
    let of = |cell: CellId| {
        let repeats = 1..=session.plan.cells[cell].repeats;
        let nodes = repeats.filter_map(|at| session.dag.find(TaskKind::Train, cell, at));
        let attempts = nodes.filter_map(|node| statuses.get(node).attempt());
        attempts.map(|attempt| attempt.started_at).collect()
    };
    let mut starts = BTreeMap::from([((0..n).collect(), of(ids[1]))]);
    if ids[0] != ids[1] {
        starts.insert(Arm::new(), of(ids[0]));
    }
    Ok(starts)
}

/// What a run of either cell takes.
fn prices(session: &Session, ids: &[CellId]) -> Prices {
    let ids = if ids[0] == ids[1] { &ids[..1] } else { ids };
    let mut plan = session.request.clone();
    let cells = ids.iter().map(|id| session.plan.matrix.cells[*id].clone());
    plan.arms = cells.collect();
    plan.repeats = Some(1);
    let priced = || -> Result<Prices> {
        let session = Session::open(plan)?;
        let engine = session.planner(&Overrides::default());
        let statuses = engine.evaluate_all()?;
        Ok(Prices::of(&engine, &statuses, Runs::Anew))
    };
    priced().unwrap_or_default()
}

/// What a search takes.
struct Cost {
    /// Runs where one difference makes all of it, and clearly.
    usual: usize,
    most: usize,
    cached: usize,
    /// The runs in the cache give an answer.
    is_answered: bool,
    /// How long a run of the slower cell takes, where one of them has run.
    seconds_of_run: Option<f64>,
    /// GPU-hours that one run takes; absent on a CPU, and where neither cell has run.
    gpu_hours_of_run: Option<f64>,
}

impl Cost {
    fn of(question: &Question, args: &BlameArgs, prices: &Prices, cached: usize) -> Self {
        let n = question.differences.len();
        // What no run of a cell took is not known.
        let has_run = |price: &&CellPrice| price.basis != Some(Basis::Model);
        let known = || prices.cells.iter().filter(has_run);
        let of_run = |price: &CellPrice| Some(price.seconds? / price.runs as f64);
        let hours_of_run = |price: &CellPrice| Some(price.gpu_hours? / price.runs as f64);
        Self {
            usual: usual_runs(n, question.same.is_some(), args.decide),
            most: args.max_runs,
            cached,
            is_answered: false,
            seconds_of_run: known().filter_map(of_run).reduce(f64::max),
            gpu_hours_of_run: known().filter_map(hours_of_run).reduce(f64::max),
        }
    }

    /// `5 min 10 s, 0.4 GPU-hours`
    fn takes(&self, runs: usize) -> Option<String> {
        let runs = runs as f64;
        let time = plan::duration(self.seconds_of_run? * runs);
        let hours = self.gpu_hours_of_run.map(|of| of * runs);
        let hours = hours.map(|of| format!(", {} GPU-hours", execute::few_digits(of)));
        Some(time + &hours.unwrap_or_default())
    }
}

fn plan_text(blame: &Blame, cost: &Cost) -> String {
    let mut text = report::blame_differences(blame);
    for failed in &blame.fails {
        let what = failed
            .with
            .iter()
            .filter_map(|at| blame.differences.get(*at));
        let what: Vec<String> = what.map(ChangedSetting::words).collect();
        text += &format!("{} does not run: {}\n", what.join(", "), failed.why);
    }
    let takes = |runs: usize| match cost.takes(runs) {
        Some(takes) => format!("{}, about {takes}", counted(runs, "run")),
        None => counted(runs, "run"),
    };
    if cost.is_answered {
        return text + "\nThe runs in the cache answer it: the command without -n makes none.\n";
    }
    text += &format!(
        "\nOne clear cause of four times the margin: about {}, where runs vary by 1 %. More noise, smaller and further causes take more.\nAt \
         most: {} (--max-runs){}.\n",
        takes(cost.usual),
        takes(cost.most),
        if cost.usual > cost.most {
            ", which will probably not do"
        } else {
            ""
        }
    );
    if cost.cached > 0 {
        let runs = counted(cost.cached, "run");
        text += &format!(
            "The cache has {runs} of A and B, which count among them where they were made in turns.\n"
        );
    }
    if cost.seconds_of_run.is_none() {
        text += "How long a run takes is not known: neither of the two has run yet.\n";
    }
    text
}

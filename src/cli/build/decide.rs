//! `build --decide` and `gate --decide`: rounds of one run each of the cells whose speeds are not told
//! apart yet, until they are or a budget is spent.
//!
//! The cache says how far the rounds are, so that one that was interrupted, or that another host made,
//! goes on where it was. docs/design/numbers.md has the test.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Pass, Passes, pass, profile};
use crate::{
    cache::TaskKind,
    cli::{
        args::{BuildArgs, Globals},
        flags::{Force, LastFailed, Overrides},
        output, plan, project,
        session::Session,
    },
    error::{Error, Result, exit},
    execute::{Basis, Prices, Runs, derived, few_digits, reading, round_now},
    figures::{
        self, Baseline, Comparison, Decided, GateCell,
        codes::{CANNOT_TELL, FEW_PAIRS, FEW_UNITS, NOT_SIGNIFICANT},
    },
    graph::State,
    matrix::{CellId, PerCell},
    plan::{CompareConfig, Support},
    report,
    results::{Decision, MIN_REPEATS},
    words::plain::counted,
};

/// Without `--repeats` no cell gets more runs than this: two speeds that cannot be told apart would be
/// measured for ever.
const MOST_RUNS_OF_CELL: u32 = 20;

/// One run each of some cells.
pub struct Round {
    /// What its runs remember of it.
    pub name: u64,
    /// The repeats that each cell has with it.
    pub repeats: PerCell<u32>,
    pub cells: BTreeSet<CellId>,
}

/// What the rounds are to settle.
pub trait Goal {
    /// The selected cells that need another run, among those with runs that count. `may`: may this one
    /// get one?
    fn undecided(
        &mut self,
        session: &Session,
        may: &dyn Fn(&CellId) -> bool,
    ) -> Result<BTreeSet<CellId>>;
    /// What is said at the end, and for programs; none where somebody else says it.
    fn told(&self) -> Option<(String, Value)>;
    /// As far as it was last looked.
    fn is_reached(&self) -> bool;
}

/// The ratios of the table that a comparison judges.
pub struct Ratios {
    margin: f64,
    comparison: Option<Comparison>,
    decided: Vec<Decided>,
    /// How many pairs of cells share the level.
    family: usize,
    /// The cells that are selected: what is to be decided of each is how it stands beside its baseline.
    selected: BTreeSet<String>,
    /// Baselines of open pairs that are not selected, each with the cell that is.
    left_out: Vec<[String; 2]>,
}

impl Ratios {
    /// `margin`: the share within which speeds are the same.
    pub fn within(margin: f64) -> Self {
        Self {
            margin,
            comparison: None,
            decided: Vec::new(),
            family: 0,
            selected: BTreeSet::new(),
            left_out: Vec::new(),
        }
    }
}

impl Goal for Ratios {
    fn undecided(
        &mut self,
        session: &Session,
        may: &dyn Fn(&CellId) -> bool,
    ) -> Result<BTreeSet<CellId>> {
        let engine = session.engine(&Overrides::default());
        let statuses = engine.evaluate_all()?;
        let settings = CompareConfig::of(&session.plan);
        let cells = &session.plan.cells;
        let compared = |is_shown: &dyn Fn(CellId) -> bool| -> Result<Comparison> {
            let seeds = reading::cell_seeds(&engine, &statuses, reading::FigureScope::Everything)?;
            let shown = seeds.into_with_ids().filter(|(cell, _)| is_shown(*cell));
            let shown = shown.map(|(_, seed)| seed);
            derived::compare_cells(shown, &settings, &session.cache, output::leave_out)
        };
        let mut comparison = compared(&|_| true)?;
        let is_selected = |name: &str| cells.iter().any(|cell| cell.selected && cell.id == name);
        let has_pair = |of: &Comparison| {
            let (decided, _) = figures::decided(of, self.margin);
            decided
                .iter()
                .any(|pair| is_selected(&pair.a) && is_selected(&pair.b))
        };
        // Where the baseline of the table is not selected, the selected cells are compared by themselves, the first as their baseline.
        if !has_pair(&comparison) {
            let alone = compared(&|cell| cells[cell].selected)?;
            if has_pair(&alone) {
                comparison = alone;
            }
        }
        (self.decided, self.family) = figures::decided(&comparison, self.margin);
        self.comparison = Some(comparison);
        let of_name = |name: &str| cells.with_ids().find(|(_, cell)| cell.id == name);
        let mut all = BTreeSet::new();
        let selected = cells.iter().filter(|cell| cell.selected);
        self.selected = selected.map(|cell| cell.id.clone()).collect();
        self.left_out.clear();
        for pair in self.decided.iter().filter(|pair| is_open(pair)) {
            let both = [&pair.a, &pair.b].map(|name| of_name(name));
            let [Some((a, of_a)), Some((b, of_b))] = both else {
                continue;
            };
            match (of_a.selected, of_b.selected) {
                (true, true) if may(&a) && may(&b) => all.extend([a, b]),
                (true, false) => self.left_out.push([pair.b.clone(), pair.a.clone()]),
                _ => {}
            }
        }
        Ok(all)
    }

    fn told(&self) -> Option<(String, Value)> {
        let names = self.comparison.iter().flat_map(|comparison| {
            let rows: Vec<_> = comparison.rows.iter().collect();
            let cells = comparison.rows.iter().map(|row| row.cell.clone());
            cells.zip(report::short_names(&rows)).collect::<Vec<_>>()
        });
        let names: BTreeMap<String, String> = names.collect();
        let lines = self
            .decided
            .iter()
            .map(|pair| line(pair, self.margin, &names));
        let left_out = self.left_out.iter().map(|[cell, other]| {
            format!("{other} gets no run beside {cell}, which is not selected: `--only {cell}` selects it as well")
        });
        let lines = lines.chain(left_out).map(|line| format!("  {line}\n"));
        let lines: String = lines.collect();
        let share = percent(self.margin);
        let text = match self.family {
            _ if self.decided.is_empty() => {
                "no two cells were compared, so nothing is decided: select a cell and its baseline\n".to_owned()
            }
            n => {
                let any = match n {
                    1 => "a false decision".to_owned(),
                    n => format!("any false decision among the {n} pairs of cells that are judged together"),
                };
                format!(
                    "Decided within {share}:\n{lines}(by a sequential t-test on pairs of runs, which may be looked at after \
                     every run: {any} has a probability of at most 5 %)\n"
                )
            }
        };
        let pairs: Vec<Value> = self.decided.iter().map(as_json).collect();
        let value =
            json!({ "margin": self.margin, "judged_together": self.family, "pairs": pairs });
        Some((text, value))
    }

    fn is_reached(&self) -> bool {
        let is_asked = |pair: &&Decided| self.selected.contains(&pair.a);
        let mut asked = self.decided.iter().filter(is_asked).peekable();
        asked.peek().is_some() && asked.all(|pair| pair.decision.is_ok() && !is_open(pair))
    }
}

fn is_open(pair: &Decided) -> bool {
    matches!(pair.decision, Ok(Decision::Undecided { .. }))
}

/// The verdicts of a gate.
pub struct Gated<'a> {
    pub baseline: &'a Baseline,
    pub max_regression: f64,
}

impl Goal for Gated<'_> {
    fn undecided(
        &mut self,
        session: &Session,
        may: &dyn Fn(&CellId) -> bool,
    ) -> Result<BTreeSet<CellId>> {
        let gate = figures::gate(self.baseline, &session.gate_inputs()?, self.max_regression);
        // Nothing but runs is lacking there.
        let is_open = |cell: &&GateCell| {
            let lacks = [CANNOT_TELL, NOT_SIGNIFICANT, FEW_UNITS, FEW_PAIRS];
            // Runs added now are no runs of the baseline.
            let lacks_then = cell.reason.is(FEW_UNITS) && cell.n_then < Some(MIN_REPEATS);
            !lacks_then && lacks.iter().any(|code| cell.reason.is(code))
        };
        let open = gate.cells.iter().filter(is_open);
        let open: Vec<&str> = open.map(|cell| cell.cell.as_str()).collect();
        let cells = session.plan.cells.with_ids();
        let of = cells.filter(|(_, cell)| cell.selected && open.contains(&cell.id.as_str()));
        Ok(of.map(|(id, _)| id).filter(may).collect())
    }

    fn told(&self) -> Option<(String, Value)> {
        None
    }

    /// The gate itself says.
    fn is_reached(&self) -> bool {
        true
    }
}

/// `2 %`
fn percent(share: f64) -> String {
    format!("{} %", (share * 1e8).round() / 1e6)
}

/// `titan is 12.9 % faster than native (11.2 to 14.5 %), by 5 pairs of runs`
fn line(pair: &Decided, margin: f64, names: &BTreeMap<String, String>) -> String {
    let [a, b] = [&pair.a, &pair.b].map(|name| names.get(name).unwrap_or(name));
    let by = format!("by {} of runs", counted(pair.pairs, "pair"));
    // No zero has a sign. One that is none has the digits that show it.
    let signed = |ratio: f64| {
        let change = (ratio - 1.0) * 100.0;
        let digits = (1..5).find(|n| (change * 10f64.powi(*n)).round() != 0.0);
        match digits.map(|n| n as usize) {
            None => "0.0".to_owned(),
            Some(digits) => format!("{change:+.digits$}").replace('-', "−"),
        }
    };
    let interval = pair.interval.map_or_else(String::new, |interval| {
        format!(" ({} to {} %)", signed(interval.low), signed(interval.high))
    });
    let change = pair.ratio.map_or_else(String::new, |ratio| {
        format!(": {} %{interval}", signed(ratio))
    });
    let within = pair.interval.is_some_and(|interval| {
        1.0 / (1.0 + margin) < interval.low && interval.high < 1.0 + margin
    });
    let also = if within {
        ", by less than the margin"
    } else {
        ""
    };
    match &pair.decision {
        Ok(Decision::Faster) => format!("{a} is faster than {b}{also}{change}, {by}"),
        Ok(Decision::Slower) => format!("{a} is slower than {b}{also}{change}, {by}"),
        Ok(Decision::Same) => {
            format!(
                "{a} is the same as {b} within {}{change}, {by}",
                percent(margin)
            )
        }
        Ok(Decision::Undecided { more: Some(more) }) => format!(
            "{a} and {b} are undecided{change}, {by}: about {} of each would do",
            counted(*more, "more run")
        ),
        Ok(Decision::Undecided { more: None }) => {
            format!("{a} and {b} are undecided{change}, {by}")
        }
        Err(why) => format!("{a} and {b} get no decision: {why}"),
    }
}

fn as_json(pair: &Decided) -> Value {
    let (decision, more) = match &pair.decision {
        Ok(Decision::Faster) => ("faster", None),
        Ok(Decision::Slower) => ("slower", None),
        Ok(Decision::Same) => ("same", None),
        Ok(Decision::Undecided { more }) => ("undecided", *more),
        Err(_) => ("none", None),
    };
    json!({
        "a": pair.a, "b": pair.b, "decision": decision, "more_runs_each": more, "pairs": pair.pairs,
        "ratio": pair.ratio, "interval": pair.interval, "reason": pair.decision.as_ref().err(),
    })
}

/// How many repeats of a cell, from the first on, are there; also beyond those that the matrix asks for, as `blame` or a larger
/// `--repeats` left them.
fn measured(session: &mut Session) -> Result<PerCell<u32>> {
    loop {
        let there = measured_of_plan(session)?;
        let is_whole = |cell: CellId| there[cell] == session.plan.cells[cell].repeats;
        if !there.ids().any(|cell| there[cell] > 0 && is_whole(cell)) {
            return Ok(there);
        }
        let more = there.map(|cell| match is_whole(cell) {
            true => 2 * there[cell].max(1),
            false => session.plan.cells[cell].repeats,
        });
        session.set_repeats(&more)?;
    }
}

fn measured_of_plan(session: &Session) -> Result<PerCell<u32>> {
    let engine = session.engine(&Overrides::default());
    let statuses = engine.evaluate_all()?;
    Ok(session.plan.cells.map(|cell| {
        let is_there = |repeat: &u32| {
            let train = session.dag.find(TaskKind::Train, cell, *repeat);
            train.is_some_and(|train| statuses.get(train).state == State::Fresh)
        };
        let repeats = 1..=session.plan.cells[cell].repeats;
        repeats.take_while(is_there).count() as u32
    }))
}

/// The next round, if anything is left to be told apart. Leaves the session with the runs that are there.
/// `there`: how many repeats each cell has; `may`: may a cell get another one?
fn next_round(
    session: &mut Session,
    there: &PerCell<u32>,
    goal: &mut dyn Goal,
    may: &dyn Fn(&CellId) -> bool,
) -> Result<Option<Round>> {
    let is_wanted = |cell: &CellId| {
        let planned = &session.plan.cells[*cell];
        planned.selected && matches!(planned.support, Support::Ready(_)) && there[*cell] == 0
    };
    let first: Vec<CellId> = session.plan.cells.ids().filter(is_wanted).collect();
    session.set_repeats(&as_measured(there))?;
    let mut cells = goal.undecided(session, may)?;
    cells.extend(first.into_iter().filter(may));
    let number = cells.iter().map(|cell| there[*cell]).max();
    let mut repeats = as_measured(there);
    for cell in &cells {
        repeats[*cell] = there[*cell] + 1;
    }
    Ok(number.map(|number| Round {
        // Rounds of the same cells go to and fro.
        name: round_now(u64::from(number)),
        repeats,
        cells,
    }))
}

/// A cell without a run is one that lacks its first.
fn as_measured(there: &PerCell<u32>) -> PerCell<u32> {
    there.map(|cell| there[cell].max(1))
}

/// The plan of the first round, as `build -n` shows it, and a sentence on all of them. `most`: as of [`build`].
pub fn plan_first(
    session: &mut Session,
    margin: f64,
    most: Option<u32>,
    max_runs: Option<usize>,
) -> Result<Option<String>> {
    let mut goal = Ratios::within(margin);
    let there = measured(session)?;
    let may = |cell: &CellId| most.is_none_or(|most| there[*cell] < most);
    let Some(round) = next_round(session, &there, &mut goal, &may)? else {
        goal.told()
            .into_iter()
            .for_each(|(text, _)| output::say(text.trim_end()));
        return Ok(None);
    };
    beyond_runs(max_runs, 0, &round, true)?;
    let has_room = |cell: &CellId| match most {
        Some(most) => (most - there[*cell]) as usize,
        None => MOST_RUNS_OF_CELL as usize,
    };
    let most: usize = round.cells.iter().map(has_room).sum();
    let most = max_runs.map_or(most, |runs| runs.min(most));
    session.of_round(&round)?;
    let engine = session.planner(&Overrides::default());
    let prices = Prices::of(&engine, &engine.evaluate_all()?, Runs::Stale);
    Ok(Some(all_rounds(&goal, round.cells.len(), most, &prices)))
}

/// What the rounds take in the usual case, and at most. `prices`: those of what the first one has to run.
fn all_rounds(goal: &Ratios, of_round: usize, most: usize, prices: &Prices) -> String {
    let is_known = prices
        .cells
        .iter()
        .all(|cell| cell.basis.is_some_and(|basis| basis != Basis::Model));
    let takes = |runs: usize| {
        let share = runs as f64 / prices.runs().max(1) as f64;
        let seconds = prices.seconds().filter(|_| is_known);
        let time = seconds.map(|of| format!(", about {}", plan::duration(of * share)));
        let hours = prices.gpu_hours().filter(|_| is_known);
        let hours = hours.map(|of| format!(", {} GPU-hours", few_digits(of * share)));
        format!(
            "{}{}{}",
            counted(runs, "run"),
            time.unwrap_or_default(),
            hours.unwrap_or_default()
        )
    };
    // What the pairs that are there foretell is better than any rule.
    let open = goal.decided.iter().filter(|pair| is_open(pair));
    let more = open.filter_map(|pair| match pair.decision {
        Ok(Decision::Undecided { more }) => more,
        _ => None,
    });
    let usual = match more.max() {
        Some(rounds) => {
            let takes = match rounds * of_round <= most {
                true => takes(rounds * of_round),
                false => "more than may be made".to_owned(),
            };
            let rounds = counted(rounds, "round");
            format!("about {rounds} if the runs go on like those that are there ({takes})")
        }
        None => {
            let [same, differ] = figures::usual_rounds(goal.margin, goal.family);
            let of = |rounds: Option<usize>| {
                let rounds = rounds.filter(|rounds| rounds * of_round <= most);
                rounds.map_or_else(
                    || "more than may be made".to_owned(),
                    |rounds| {
                        format!(
                            "about {} ({})",
                            counted(rounds, "round"),
                            takes(rounds * of_round)
                        )
                    },
                )
            };
            format!(
                "of runs that vary by 1 %, {} where speeds differ by twice {}, and {} where they are the same",
                of(differ),
                percent(goal.margin),
                of(same)
            )
        }
    };
    let unknown = match is_known {
        true => "",
        false => ". How long a run takes is not known: not all of these cells have run yet",
    };
    format!(
        "This is one round; rounds go on until the speeds are told apart: {usual}. At most: {}{unknown}.\n",
        takes(most)
    )
}

/// Makes rounds until the goal is reached, or the budget is spent: `--repeats` says how many runs a cell
/// may have then, and without it each gets as many new ones as `MOST_RUNS_OF_CELL`.
pub(super) fn build(globals: &Globals, args: &BuildArgs, goal: &mut dyn Goal) -> Result<i32> {
    refuse_others(&args.overrides, &args.last)?;
    let mut args = args.clone();
    let most = args.selection.measured.repeats.repeats.take();
    let request = project::matrix_request(globals, &args.selection)?;
    let (mut passes, mut code) = (Passes::new(), exit::OK);
    let (mut given_up, mut hours) = (BTreeSet::new(), 0.0);
    let mut first: Option<PerCell<u32>> = None;
    let mut last: Option<(PerCell<u32>, Round)> = None;
    loop {
        let mut session = Session::open(request.clone())?;
        if profile::asked(&session.plan).is_some() {
            profile::refuse_measuring(&args)?;
        }
        let there = measured(&mut session)?;
        let begun = &*first.get_or_insert_with(|| there.clone());
        if let Some((before, round)) = &last {
            let cells = round.cells.iter().copied();
            given_up.extend(cells.filter(|cell| there[*cell] <= before[*cell]));
        }
        let has_room =
            |cell: &CellId| there[*cell] < most.unwrap_or(begun[*cell] + MOST_RUNS_OF_CELL);
        let may = |cell: &CellId| !given_up.contains(cell) && has_room(cell);
        let next = next_round(&mut session, &there, goal, &may)?;
        let spent = match &next {
            Some(round) => {
                let made = passes.summary.runs;
                let is_first = last.is_none();
                match beyond_runs(args.max_runs, made, round, is_first)? {
                    None => over_budget(&mut session, round, &args, is_first, &mut hours)?,
                    beyond => beyond,
                }
            }
            None if goal.undecided(&session, &|_| true)?.iter().all(has_room) => None,
            None => Some(match most {
                Some(most) => {
                    format!("no cell gets more than {most} runs; a larger --repeats goes on")
                }
                None => format!(
                    "no cell gets more than {MOST_RUNS_OF_CELL} new runs; the same command goes on, --repeats N up to N runs a cell"
                ),
            }),
        };
        if let Some(why) = &spent {
            output::say(&format!("note: {why}"));
        }
        let Some(round) = next.filter(|_| spent.is_none()) else {
            // What the rounds left is compared and published as by any build, and nothing is run.
            let left = Round {
                name: round_now(0),
                repeats: as_measured(&there),
                cells: there.ids().collect(),
            };
            if goal.told().is_none() {
                return Ok(code);
            }
            let shown = Pass::Decided(&left, goal);
            code = code.max(pass(globals, &args, &mut passes, &shown)?);
            return Ok(match code {
                exit::OK if !goal.is_reached() => exit::INCONCLUSIVE,
                code => code,
            });
        };
        code = code.max(pass(globals, &args, &mut passes, &Pass::Round(&round))?);
        last = Some((there, round));
    }
}

pub fn refuse_others(overrides: &Overrides, last: &LastFailed) -> Result<()> {
    let asked = [
        (overrides.has(Force::Measured), "--force=measured"),
        (last.failed, "--failed"),
    ];
    match asked.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, option)) => Err(Error::refused(
            format!("{option} and --decide contradict each other"),
            "--decide makes as many runs as the answer needs, beside those that are there",
        )),
        None => Ok(()),
    }
}

/// Why `--max-runs` has no room for a round, and an error where it has none for the first.
fn beyond_runs(
    most: Option<usize>,
    made: usize,
    round: &Round,
    is_first: bool,
) -> Result<Option<String>> {
    let of_round = round.cells.len();
    let Some(most) = most.filter(|most| made + of_round > *most) else {
        return Ok(None);
    };
    if is_first {
        let why = format!("a round is {of_round} runs, and --max-runs {most} has no room for one");
        return Err(Error::refused(why, "nothing was run"));
    }
    let made = match made {
        1 => "1 run is".to_owned(),
        _ => format!("{made} runs are"),
    };
    Ok(Some(format!(
        "{made} made, and --max-runs {most} has no room for another round of {of_round}"
    )))
}

/// Why the budget has no room for a round, and an error where it has none for the first.
fn over_budget(
    session: &mut Session,
    round: &Round,
    args: &BuildArgs,
    is_first: bool,
    hours: &mut f64,
) -> Result<Option<String>> {
    let Some(limit) = args.max_gpu_hours else {
        return Ok(None);
    };
    session.of_round(round)?;
    let engine = session.planner(&args.overrides);
    let prices = Prices::of(&engine, &engine.evaluate_all()?, Runs::Stale);
    let allows_unknown = args.overrides.has(Force::Unpriced);
    match Prices::beyond(&[&prices], limit - *hours, allows_unknown) {
        Some(why) if is_first => Err(Error::refused(why, "nothing was run")),
        Some(_) => Ok(Some(format!(
            "about {} GPU-hours are spent, and --max-gpu-hours {limit} has no room for another round",
            few_digits(*hours)
        ))),
        None => {
            *hours += prices.gpu_hours().unwrap_or(0.0);
            Ok(None)
        }
    }
}

//! Cells that this host could measure if something were not missing: they are left out with the reason, and the others run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::PathBuf,
};

use petgraph::graph::NodeIndex;

use crate::{
    analyze::Comparison,
    cache::TaskKind,
    error::{Error, Problem, Result},
    execute::{self, Look, TrainHost},
    graph::{Engine, Reason, State, Statuses},
    plan::{Plan, Prepared, Support, Vendor},
};

/// Reasons that are listed at the end of a build.
const MOST: usize = 6;

/// What is wrong with each cell that cannot be trained here now, by the cell's position.
pub type Blocked = BTreeMap<usize, Vec<Problem>>;

/// Looks at everything that can be known to go wrong before the first second of training `cells`.
pub fn find(plan: &Plan, cells: &[usize], host: &TrainHost, look: Look) -> Result<Blocked> {
    let cells: BTreeSet<usize> = cells.iter().copied().collect();
    let mut blocked = Blocked::new();
    for ((platform, framework), of_pair) in by_recipe(plan, &cells) {
        let recipe = &plan.recipes.recipes[framework];
        let here = execute::preflight(recipe, &plan.facts.checkouts(recipe), plan.facts.python(framework), host, look);
        if !here.is_empty() {
            of_pair.iter().for_each(|cell| blocked.entry(*cell).or_default().extend(here.clone()));
        }
        // What is not installed differs from the lock as well: that would be said twice.
        if plan.allow_drift || !here.is_empty() {
            continue;
        }
        let vendor = plan.prepared(of_pair[0]).map_or(Vendor::Cpu, |p| p.job().vendor);
        for diff in plan.facts.drift(platform, vendor, &[recipe])? {
            let Error::Invalid(problems) = plan.facts.drift_error(platform, std::slice::from_ref(&diff)) else {
                continue;
            };
            for cell in of_pair.iter().filter(|cell| concerns(plan, **cell, &diff.name)) {
                blocked.entry(*cell).or_default().extend(problems.clone());
            }
        }
    }
    for (cell, problems) in of_data(plan, &cells)? {
        blocked.entry(cell).or_default().extend(problems);
    }
    Ok(blocked)
}

/// The cells that a build would train now, each as often as it has such repeats.
pub fn stale_trains(engine: &Engine, statuses: &Statuses) -> Vec<usize> {
    let is_to_train = |node: &NodeIndex| {
        engine.dag.task(*node).kind == TaskKind::Train
            && statuses.get(*node).state == State::Stale
            && engine.is_wanted(*node)
    };
    engine.dag.order.iter().filter(|n| is_to_train(n)).map(|n| engine.dag.task(*n).cell as usize).collect()
}

/// Notes in the plan which cells are left out and why, as their tasks say it. `trains`: the cells that are trained.
pub fn mark(plan: &mut Plan, blocked: &Blocked, trains: &[usize]) {
    let pair = |plan: &Plan, cell: usize| {
        let of = &plan.matrix.cells[cell];
        (of.platform.clone(), of.framework.clone())
    };
    let trained: BTreeSet<_> = trains.iter().map(|cell| pair(plan, *cell)).collect();
    for (cell, problems) in blocked {
        plan.cells[*cell].blocked = problems.first().map(sentence);
        let (platform, framework) = pair(plan, *cell);
        if !trained.contains(&(platform.clone(), framework.clone())) {
            plan.facts.leave_out_missing(&platform, &framework);
        }
    }
}

/// A line for each problem, with the cells that it keeps from being measured here.
pub fn told(plan: &Plan, blocked: &Blocked) -> Vec<String> {
    let line = |(problem, cells): (&Problem, Vec<usize>)| {
        let cells: Vec<&str> = cells.iter().map(|cell| plan.cells[*cell].id.as_str()).collect();
        format!("{} cannot be measured here now: {}", few(&cells), sentence(problem))
    };
    by_problem(blocked).into_iter().map(line).collect()
}

/// Cells by platform and framework: what they share is looked at once.
fn by_recipe<'a>(plan: &'a Plan, cells: &BTreeSet<usize>) -> BTreeMap<(&'a str, &'a str), Vec<usize>> {
    let mut pairs: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for &cell in cells {
        let of = &plan.matrix.cells[cell];
        pairs.entry((&of.platform, &of.framework)).or_default().push(cell);
    }
    pairs
}

/// Is a line of the lock about this cell? A dataset or a tokenizer is only about those that read it.
fn concerns(plan: &Plan, cell: usize, line: &str) -> bool {
    match line.split_once('.') {
        Some(("datasets" | "tokenizers", name)) => {
            plan.prepared(cell).is_some_and(|prepared| prepared.data.iter().any(|file| file.name == name))
        }
        _ => true,
    }
}

/// What is wrong with the data that cells read; each dataset is looked at once.
fn of_data(plan: &Plan, cells: &BTreeSet<usize>) -> Result<Blocked> {
    let mut readers: BTreeMap<(Vec<PathBuf>, u64, u64), Vec<usize>> = BTreeMap::new();
    for &cell in cells {
        let Some(prepared) = plan.prepared(cell).filter(|prepared| !prepared.data.is_empty()) else { continue };
        let paths = prepared.data.iter().map(|file| file.path.clone()).collect();
        let (vocab_size, seq_length) = (prepared.job().model.vocab_size, prepared.job().data.seq_length);
        readers.entry((paths, vocab_size, seq_length)).or_default().push(cell);
    }
    let mut blocked = Blocked::new();
    for cells in readers.into_values() {
        let prepared: Vec<&Prepared> = plan.prepared(cells[0]).into_iter().collect();
        let problems = execute::preflight_data(&prepared)?;
        if !problems.is_empty() {
            blocked.extend(cells.into_iter().map(|cell| (cell, problems.clone())));
        }
    }
    Ok(blocked)
}

/// Each problem once, with the cells that it leaves out.
pub fn by_problem(blocked: &Blocked) -> Vec<(&Problem, Vec<usize>)> {
    let mut found: Vec<(&Problem, Vec<usize>)> = Vec::new();
    for (cell, problems) in blocked {
        for problem in problems {
            match found.iter_mut().find(|(known, _)| *known == problem) {
                Some((_, cells)) => cells.push(*cell),
                None => found.push((problem, vec![*cell])),
            }
        }
    }
    found
}

/// Refuses cells of which nothing may be left out.
pub fn refuse(blocked: &Blocked) -> Result<()> {
    let problems: Vec<Problem> = by_problem(blocked).into_iter().map(|(problem, _)| problem.clone()).collect();
    if problems.is_empty() { Ok(()) } else { Err(Error::Invalid(problems)) }
}

/// A problem in one line, with what mends it.
pub fn sentence(problem: &Problem) -> String {
    match &problem.help {
        Some(help) => format!("{}: {help}", problem.message),
        None => problem.message.clone(),
    }
}

/// `a, b and 3 more`
pub fn few(cells: &[&str]) -> String {
    const MOST: usize = 2;
    let (first, more) = cells.split_at(cells.len().min(MOST));
    let first = first.join(", ");
    if more.is_empty() { first } else { format!("{first} and {} more", more.len()) }
}

/// How many of the selected cells have results, and why the others were not measured on this host.
#[derive(Debug, Default, PartialEq)]
pub struct Coverage {
    pub selected: usize,
    pub with_results: usize,
    pub blocked: usize,
    /// Reasons, each with the cells that it holds for.
    reasons: Vec<(String, Vec<String>)>,
}

impl Coverage {
    pub fn of(engine: &Engine, statuses: &Statuses, comparison: Option<&Comparison>) -> Self {
        let mut coverage = Self::default();
        let figures: BTreeSet<&str> =
            comparison.into_iter().flat_map(|c| &c.rows).map(|row| row.cell.as_str()).collect();
        for (id, cell) in (0u32..).zip(&engine.plan.cells) {
            if !cell.selected || !matches!(cell.support, Support::Ready(_)) {
                continue;
            }
            coverage.selected += 1;
            let status = statuses.get(engine.dag.node(TaskKind::Aggregate, id, 0));
            match (status.state, &status.reason) {
                _ if figures.contains(cell.id.as_str()) => coverage.with_results += 1,
                (State::Waiting | State::Blocked, Some(Reason::Because(why))) => {
                    coverage.blocked += usize::from(status.state == State::Blocked);
                    coverage.add(why, &cell.id);
                }
                _ => {}
            }
        }
        coverage
    }

    fn add(&mut self, why: &str, cell: &str) {
        match self.reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, cells)) => cells.push(cell.to_owned()),
            None => self.reasons.push((why.to_owned(), vec![cell.to_owned()])),
        }
    }

    /// Was there something to measure, and could nothing of it be measured here?
    pub fn is_nothing(&self) -> bool {
        self.with_results == 0 && !self.reasons.is_empty() && self.not_measured() == self.selected
    }

    fn not_measured(&self) -> usize {
        self.reasons.iter().map(|(_, cells)| cells.len()).sum()
    }

    /// None where every selected cell could be measured here.
    pub fn text(&self) -> Option<String> {
        if self.reasons.is_empty() {
            return None;
        }
        let Self { selected, with_results, .. } = self;
        let mut text = format!(
            "{with_results} of {selected} selected cells have results; {} cannot be measured on this host:\n",
            self.not_measured()
        );
        for (why, cells) in self.reasons.iter().take(MOST) {
            let more = if cells.len() > 1 { format!(" and {} more", cells.len() - 1) } else { String::new() };
            let _ = writeln!(text, "  {}{more}: {why}", cells[0]);
        }
        if self.reasons.len() > MOST {
            let _ = writeln!(text, "  and {} more reasons: `tprimat plan` has them all", self.reasons.len() - MOST);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_once_for_all_its_cells() {
        let [one, two] = ["no launcher", "no data"].map(Problem::new);
        let blocked = Blocked::from([(1, vec![one.clone()]), (4, vec![one.clone(), two.clone()])]);
        assert_eq!(by_problem(&blocked), [(&one, vec![1, 4]), (&two, vec![4])]);
        let Err(Error::Invalid(problems)) = refuse(&blocked) else { panic!("nothing may be left out") };
        assert_eq!(problems, [one, two]);
    }

    #[test]
    fn what_was_not_measured_is_counted_by_reason() {
        let mut coverage = Coverage { selected: 3, with_results: 1, ..Coverage::default() };
        assert_eq!(coverage.text(), None);
        coverage.add("no GPU", "a");
        coverage.add("no GPU", "b");
        assert!(!coverage.is_nothing());
        let text = coverage.text().unwrap();
        assert_eq!(
            text,
            "1 of 3 selected cells have results; 2 cannot be measured on this host:\n  a and 1 more: no GPU\n"
        );
        assert!(Coverage { selected: 2, with_results: 0, ..coverage }.is_nothing());
    }
}

//! Cells that this host could measure if something were not missing: they are left out with the
//! reason, and the others run.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use crate::{
    cache::TaskKind,
    error::{Error, Problem, Result},
    execute::{self, ProbeDepth, TrainHost},
    figures::Comparison,
    graph::{Engine, Reason, State, Statuses, TaskId},
    host::{FactDiff, IMAGES, which},
    job::Vendor,
    matrix::CellId,
    plan::{Container, Place, Plan, Prepared, Support},
    run::Target,
    words::plain::counted,
};

/// Reasons that are listed at the end of a build.
const MOST: usize = 6;

/// What is wrong with each cell that cannot be trained here now, by the cell's position.
pub type Blocked = BTreeMap<CellId, Vec<Problem>>;

/// The program or variable of a batch system that the runs need and that is missing here.
fn without_system(place: Place, host: &TrainHost) -> Option<Problem> {
    let has = |program: &str| which(program, &host.caller_env).is_some();
    let (message, help) = match place {
        Place::Local => return None,
        Place::Slurm if has("sbatch") => return None,
        Place::Kubernetes if has("kubectl") => return None,
        Place::Kubernetes => (
            "the executor is kubernetes, but kubectl is not in PATH",
            "install it (https://kubernetes.io/docs/tasks/tools), or run tprimat with --executor local",
        ),
        Place::Slurm => (
            "the executor is slurm, but sbatch is not in PATH",
            "run tprimat on a login node of the cluster, or with --executor local",
        ),
        Place::Allocation if !host.caller_env.contains_key("SLURM_JOB_ID") => (
            "the runs are steps of the Slurm allocation that tprimat runs in, but SLURM_JOB_ID is not set",
            "run tprimat below salloc or in an sbatch script, or with --executor slurm",
        ),
        Place::Allocation if has("srun") => return None,
        Place::Allocation => (
            "the runs are steps of a Slurm allocation, but srun is not in PATH",
            "run tprimat with --executor local",
        ),
    };
    Some(Problem::new(message.to_owned()).help(help))
}

/// A build does not wait for a cluster that nobody reaches from here.
fn without_cluster(target: &Target, host: &TrainHost) -> Option<Problem> {
    let (why, asked) = host.systems.kubernetes.reach(target).err()?;
    let what = format!("the Kubernetes cluster cannot be asked for Jobs ({why})");
    Some(Problem::new(what).help(format!(
        "`{asked}` has to answer first; execution.<platform>.kubernetes.context names another cluster"
    )))
}

/// Finds everything that would make the training of `cells` fail and can be known before it starts.
pub fn find(plan: &Plan, cells: &[CellId], host: &TrainHost, look: ProbeDepth) -> Result<Blocked> {
    let cells: BTreeSet<CellId> = cells.iter().copied().collect();
    let mut blocked = Blocked::new();
    let mut clusters: Vec<(Target, Option<Problem>)> = Vec::new();
    for ((platform, framework, ..), of_pair) in by_recipe(plan, &cells) {
        let recipe = &plan.recipes.recipes[framework];
        let Some(first) = plan.prepared(of_pair[0]) else {
            continue;
        };
        let place = first.resolved.execution.place;
        if place != Place::Local {
            // The job looks at its node before it starts anything.
            let mut problem = without_system(place, host);
            if problem.is_none() && place == Place::Kubernetes && look == ProbeDepth::ByAsking {
                let settings = &first.resolved.execution.kubernetes;
                let target = Target {
                    context: settings.context.clone(),
                    namespace: settings.namespace.clone(),
                    ..Target::default()
                };
                let known = clusters.iter().find(|(asked, _)| *asked == target).cloned();
                let (_, why) = known.unwrap_or_else(|| {
                    let why = without_cluster(&target, host);
                    clusters.push((target.clone(), why.clone()));
                    (target, why)
                });
                problem = why;
            }
            if let Some(problem) = problem {
                of_pair
                    .iter()
                    .for_each(|cell| blocked.entry(*cell).or_default().push(problem.clone()));
                continue;
            }
            for cell in &of_pair {
                let Some(prepared) = plan.prepared(*cell) else {
                    continue;
                };
                let unknown = prepared.known().err().map(Problem::new);
                let refused = execute::preflight_container(prepared, host);
                let found: Vec<Problem> = unknown.into_iter().chain(refused).collect();
                if !found.is_empty() {
                    blocked.entry(*cell).or_default().extend(found);
                }
            }
            // Files are shared with the nodes, so what a job would find is known here.
            if !plan.allow_drift {
                block_for(
                    plan,
                    platform,
                    plan.facts.drift_of_files(platform)?,
                    &of_pair,
                    &mut blocked,
                );
            }
            continue;
        }
        let (checkouts, python) = (plan.facts.checkouts(recipe), plan.facts.python(framework));
        let here = execute::preflight(recipe, &checkouts, first, python, host, look);
        for cell in &of_pair {
            let prepared = plan.prepared(*cell);
            let absent = prepared.and_then(|p| execute::preflight_command(&plan.root, p, host));
            if let Some(absent) = absent {
                blocked.entry(*cell).or_default().push(absent.problem);
            }
        }
        if !here.is_empty() {
            of_pair
                .iter()
                .for_each(|cell| blocked.entry(*cell).or_default().extend(here.clone()));
        }
        // What is not installed differs from the lock as well: that would be said twice.
        if plan.allow_drift || !here.is_empty() {
            continue;
        }
        let vendor = plan
            .prepared(of_pair[0])
            .map_or(Vendor::Cpu, |p| p.job().vendor);
        block_for(
            plan,
            platform,
            plan.facts.drift(platform, vendor, &[recipe])?,
            &of_pair,
            &mut blocked,
        );
    }
    for (cell, problems) in of_data(plan, &cells)? {
        blocked.entry(cell).or_default().extend(problems);
    }
    Ok(blocked)
}

/// Leaves out the cells that each difference from the lock is about.
fn block_for(
    plan: &Plan,
    platform: &str,
    drift: Vec<FactDiff>,
    cells: &[CellId],
    blocked: &mut Blocked,
) {
    for diff in drift {
        let Error::Invalid(problems) = plan.facts.drift_error(
            platform,
            std::slice::from_ref(&diff),
            &plan.command("lock", &["--update"]),
        ) else {
            continue;
        };
        for cell in cells
            .iter()
            .filter(|cell| concerns(plan, **cell, &diff.name))
        {
            blocked.entry(*cell).or_default().extend(problems.clone());
        }
    }
}

/// The cells that a build would train now, each as often as it has such repeats.
pub fn stale_trains(engine: &Engine, statuses: &Statuses) -> Vec<CellId> {
    let is_to_train = |node: &TaskId| {
        engine.dag.task(*node).kind == TaskKind::Train
            && statuses.get(*node).state == State::Stale
            && engine.is_wanted(*node)
    };
    engine
        .dag
        .order
        .iter()
        .filter(|n| is_to_train(n))
        .map(|n| engine.dag.task(*n).cell)
        .collect()
}

/// Notes in the plan which cells are left out and why, as their tasks say it. `trains`: the cells
/// that are trained.
pub fn mark(plan: &mut Plan, blocked: &Blocked, trains: &[CellId]) {
    let pair = |plan: &Plan, cell: CellId| {
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
    let told = by_problem(blocked).into_iter().map(|(problem, cells)| {
        let (cells, why) = (names(plan, &cells), sentence(problem));
        format!("{cells} cannot be measured here now: {why}")
    });
    told.collect()
}

/// Platform, framework, where it runs, and the container if there is one.
type Launched<'a> = (&'a str, &'a str, Place, Option<&'a Container>);

/// Cells by what they share, which is looked at once.
fn by_recipe<'a>(plan: &'a Plan, cells: &BTreeSet<CellId>) -> BTreeMap<Launched<'a>, Vec<CellId>> {
    let mut pairs: BTreeMap<Launched, Vec<CellId>> = BTreeMap::new();
    for &cell in cells {
        let of = &plan.matrix.cells[cell];
        let execution = plan
            .prepared(cell)
            .map(|prepared| &prepared.resolved.execution);
        let place = execution
            .map(|execution| execution.place)
            .unwrap_or_default();
        let container = execution.and_then(|execution| execution.container.as_ref());
        pairs
            .entry((&of.platform, &of.framework, place, container))
            .or_default()
            .push(cell);
    }
    pairs
}

/// Is a line of the lock about this cell? A dataset or a tokenizer is only about those that read
/// it.
pub(super) fn concerns(plan: &Plan, cell: CellId, line: &str) -> bool {
    match line.split_once('.') {
        Some(("datasets" | "tokenizers", name)) => plan
            .prepared(cell)
            .is_some_and(|prepared| prepared.data.iter().any(|file| file.name == name)),
        Some((IMAGES, name)) => plan
            .prepared(cell)
            .and_then(|p| p.image.as_ref())
            .is_some_and(|i| i.name == name),
        Some(("recipe", name)) => {
            let prepared = plan.prepared(cell);
            let framework: &str = &plan.matrix.cells[cell].framework;
            let Some((id, _)) = name.split_once(".packages.") else {
                return name.split('.').next() == Some(framework);
            };
            // A container brings its own packages.
            let brings_its_own = prepared.is_some_and(|prepared| prepared.image.is_some());
            let python = prepared.and_then(|prepared| prepared.python.as_ref());
            !brings_its_own && id == python.map_or(framework, |python| &python.name)
        }
        _ => true,
    }
}

/// What is wrong with the data that cells read; each dataset is looked at once.
fn of_data(plan: &Plan, cells: &BTreeSet<CellId>) -> Result<Blocked> {
    let mut readers: BTreeMap<(Vec<PathBuf>, u64, u64), Vec<CellId>> = BTreeMap::new();
    for &cell in cells {
        let Some(prepared) = plan
            .prepared(cell)
            .filter(|prepared| !prepared.data.is_empty())
        else {
            continue;
        };
        let paths = prepared.data.iter().map(|file| file.path.clone()).collect();
        let (vocab_size, seq_length) = (
            prepared.job().model.vocab_size,
            prepared.job().data.seq_length,
        );
        readers
            .entry((paths, vocab_size, seq_length))
            .or_default()
            .push(cell);
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
pub fn by_problem(blocked: &Blocked) -> Vec<(&Problem, Vec<CellId>)> {
    let mut found: Vec<(&Problem, Vec<CellId>)> = Vec::new();
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
    let problems = by_problem(blocked).into_iter();
    let problems: Vec<Problem> = problems.map(|(problem, _)| problem.clone()).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Error::Invalid(problems)),
    }
}

/// A problem in one line, with what mends it.
pub fn sentence(problem: &Problem) -> String {
    let label = match &*problem.label {
        "" => String::new(),
        label => format!(" ({label})"),
    };
    let help = problem.help.iter().map(|help| format!(": {help}"));
    format!("{problem}{label}{}", help.collect::<String>())
}

/// The same of cells by their positions.
pub fn names(plan: &Plan, cells: &[CellId]) -> String {
    let names = cells.iter().map(|cell| plan.cells[*cell].id.as_str());
    few(&names.collect::<Vec<_>>())
}

/// `a, b and 3 more`
pub fn few(cells: &[&str]) -> String {
    const MOST: usize = 2;
    let (first, more) = cells.split_at(cells.len().min(MOST));
    let first = first.join(", ");
    if more.is_empty() {
        first
    } else {
        format!("{first} and {} more", more.len())
    }
}

/// How many of the selected cells have results, and why the others were not measured on this host.
#[derive(Debug, Default, PartialEq)]
pub struct Coverage {
    /// Selected cells, but for those that no host can measure.
    pub selected: usize,
    pub unsupported: usize,
    pub with_results: usize,
    pub blocked: usize,
    /// Reasons, each with the cells that it holds for.
    reasons: Vec<(String, Vec<String>)>,
}

impl Coverage {
    pub fn of(engine: &Engine, statuses: &Statuses, comparison: Option<&Comparison>) -> Self {
        let mut coverage = Self::default();
        let figures: BTreeSet<&str> = comparison
            .into_iter()
            .flat_map(|c| &c.rows)
            .map(|row| row.cell.as_str())
            .collect();
        for (id, cell) in engine.plan.cells.with_ids() {
            if !cell.selected && !cell.left_out {
                continue;
            }
            if let Support::Unsupported(_) = cell.support {
                coverage.unsupported += 1;
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

    /// Was something asked for, and could nothing of it be measured here?
    pub fn is_nothing(&self) -> bool {
        let is_asked = !self.reasons.is_empty() || self.unsupported > 0;
        self.with_results == 0 && is_asked && self.not_measured() == self.selected
    }

    /// Is there no selected cell with figures?
    pub fn has_no_results(&self) -> bool {
        self.with_results == 0
    }

    fn not_measured(&self) -> usize {
        self.reasons.iter().map(|(_, cells)| cells.len()).sum()
    }

    /// None where every selected cell could be measured here.
    pub fn text(&self, plan_command: &str) -> Option<String> {
        if self.selected == 0 && self.unsupported > 0 {
            let cells = counted(self.unsupported, "selected cell");
            return Some(format!(
                "nothing is measured: of {cells} none is supported; `{plan_command}` says why\n"
            ));
        }
        if self.reasons.is_empty() {
            return None;
        }
        let Self {
            selected,
            with_results,
            ..
        } = self;
        let mut text = format!(
            "{with_results} of {selected} selected cells have results; {} cannot be measured on this host:\n",
            self.not_measured()
        );
        for (why, cells) in self.reasons.iter().take(MOST) {
            let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
            text += &format!("  {}: {why}\n", few(&cells));
        }
        if let Some(left) = self.reasons.len().checked_sub(MOST + 1) {
            let left = counted(left + 1, "more reason");
            text += &format!("  and {left}: `{plan_command}` has them all\n");
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
        let blocked = Blocked::from([
            (CellId::from(1), vec![one.clone()]),
            (CellId::from(4), vec![one.clone(), two.clone()]),
        ]);
        assert_eq!(
            by_problem(&blocked),
            [
                (&one, vec![CellId::from(1), CellId::from(4)]),
                (&two, vec![CellId::from(4)])
            ]
        );
        let Err(Error::Invalid(problems)) = refuse(&blocked) else {
            panic!("nothing may be left out")
        };
        assert_eq!(problems, [one, two]);
    }

    #[test]
    fn what_was_not_measured_is_counted_by_reason() {
        let mut coverage = Coverage {
            selected: 3,
            with_results: 1,
            ..Coverage::default()
        };
        assert_eq!(coverage.text("tprimat plan"), None);
        coverage.add("no GPU", "a");
        coverage.add("no GPU", "b");
        assert!(!coverage.is_nothing());
        let text = coverage.text("tprimat plan").unwrap();
        assert_eq!(
            text,
            "1 of 3 selected cells have results; 2 cannot be measured on this host:\n  a, b: no GPU\n"
        );
        assert!(
            Coverage {
                selected: 2,
                with_results: 0,
                ..coverage
            }
            .is_nothing()
        );
    }
}

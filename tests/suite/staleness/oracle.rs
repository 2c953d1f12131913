//! Which tasks must run: the rules once more, over the test's own [`World`] and its own memory of
//! what was made from what. It knows none of tprimat's keys; a digest is to it the name of a file
//! that a task left, learnt after the task ran.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tprimat::{
    cache::{Cache, Output, TaskKind},
    digest::Digest,
};

use super::world::{Cell, World};

/// What a task did its work from, in words.
type Inputs = String;

#[derive(Clone, Default)]
pub struct Oracle {
    /// What each task left, by its inputs. An attempt counts as its own inputs.
    made: HashMap<Inputs, Vec<Output>>,
    /// Attempts at a training, the first one first.
    attempts: HashMap<Inputs, Vec<u32>>,
    measured: u32,
    /// Attempts that something disturbed.
    suspects: HashSet<u32>,
    /// Objects that were deleted.
    gone: HashSet<Digest>,
    /// The files of output/.
    published: BTreeMap<String, Digest>,
}

/// A plan, or a build, under way.
struct Walk<'a> {
    oracle: &'a mut Oracle,
    /// A plan: whatever comes after a stale task is stale. A build looks at what the task really
    /// left.
    is_plan: bool,
    /// Whatever is trained now is disturbed.
    disturbed: bool,
    /// Some cell has a measurement that counts.
    any_counts: bool,
    /// Stale in a plan; run in a build.
    ids: BTreeMap<String, Inputs>,
}

impl Oracle {
    /// Ids of the tasks that a plan must call stale.
    pub fn stale(&self, world: &World) -> BTreeSet<String> {
        let mut copy = self.clone();
        Walk {
            oracle: &mut copy,
            is_plan: true,
            disturbed: false,
            any_counts: false,
            ids: BTreeMap::new(),
        }
        .all(world)
        .into_keys()
        .collect()
    }

    /// Ids of the tasks that a build must run; they count as done. [`Oracle::learn`] comes next.
    pub fn build(&mut self, world: &World, disturbed: bool) -> BTreeMap<String, Inputs> {
        Walk {
            oracle: self,
            is_plan: false,
            disturbed,
            any_counts: false,
            ids: BTreeMap::new(),
        }
        .all(world)
    }

    /// Learns the names of the files that the tasks of a build left.
    pub fn learn(&mut self, ran: &BTreeMap<String, Inputs>, cache: &Cache) {
        for (id, inputs) in ran {
            let kind = match id.split(' ').next() {
                Some("render") => TaskKind::Render,
                Some("train") => TaskKind::Train,
                Some("parse") => TaskKind::Parse,
                Some("aggregate") => TaskKind::Aggregate,
                Some("compare") => TaskKind::Compare,
                Some("plot") => TaskKind::Plot,
                _ => TaskKind::Report,
            };
            let outputs = cache
                .last_of(kind, id)
                .unwrap_or_else(|| panic!("{id} ran and left no record"))
                .outputs;
            for output in outputs.iter() {
                self.gone.remove(&output.digest);
            }
            if kind == TaskKind::Report {
                self.published
                    .extend(outputs.iter().map(|o| (o.name.clone(), o.digest)));
            }
            self.made.insert(inputs.clone(), outputs);
        }
    }

    /// Objects that are there, in a stable order: what, and which file of it.
    pub fn objects(&self) -> Vec<(String, Digest)> {
        let all = self
            .made
            .iter()
            .flat_map(|(inputs, outputs)| outputs.iter().map(move |o| (inputs, o)));
        let there = all.filter(|(_, output)| !self.gone.contains(&output.digest));
        let mut there: Vec<_> = there
            .map(|(inputs, o)| (format!("{} of {inputs}", o.name), o.digest))
            .collect();
        there.sort();
        there
    }
    /// The log and the result of a measurement, as far as they are there.
    pub fn of_measurement(&self, number: u32) -> Vec<Digest> {
        let is_named = |o: &&Output| {
            ["log", "result.json"].contains(&&*o.name) && !self.gone.contains(&o.digest)
        };
        let of = [measured(number), result(number)]
            .into_iter()
            .filter_map(|inputs| self.made.get(&inputs))
            .flatten();
        of.filter(is_named).map(|o| o.digest).collect()
    }
    pub fn measurements(&self) -> u32 {
        self.measured
    }
    pub fn lose(&mut self, digest: Digest) {
        self.gone.insert(digest);
    }
    pub fn published(&self) -> Vec<String> {
        self.published.keys().cloned().collect()
    }
    pub fn unpublish(&mut self, name: &str) {
        self.published.remove(name);
    }

    /// Was made, and nothing of it is lost.
    fn has(&self, inputs: &str) -> bool {
        self.made
            .get(inputs)
            .is_some_and(|outputs| outputs.iter().all(|o| !self.gone.contains(&o.digest)))
    }
    /// The measurement that speaks for a training, if `serves` says that it can: the first that
    /// nothing disturbed. Where none of them can, those made after the last of them decide: the
    /// last of these, but only when two were replaced.
    fn speaker(&self, training: &Inputs, serves: impl Fn(&u32) -> bool) -> Option<u32> {
        let all: &[u32] = self.attempts.get(training).map_or(&[], Vec::as_slice);
        let counts = |a: &&u32| !self.suspects.contains(*a);
        if let Some(first) = all.iter().filter(counts).find(|a| serves(a)) {
            return Some(*first);
        }
        let since = all
            .iter()
            .rposition(|a| counts(&a))
            .map_or(0, |last| last + 1);
        all.last()
            .copied()
            .filter(|a| all.len() - since > 2 && serves(a))
    }
    fn has_log(&self, attempt: u32) -> bool {
        let outputs = &self.made[&measured(attempt)];
        outputs
            .iter()
            .filter(|o| o.name == "log")
            .all(|o| !self.gone.contains(&o.digest))
    }
}

fn measured(attempt: u32) -> Inputs {
    format!("measurement {attempt}")
}
fn result(attempt: u32) -> Inputs {
    format!("result of measurement {attempt}")
}
fn summary(attempts: &[u32], world: &World) -> Inputs {
    format!(
        "summary of measurements {attempts:?} after {} steps",
        world.skip_steps
    )
}

impl Walk<'_> {
    fn all(mut self, world: &World) -> BTreeMap<String, Inputs> {
        let cells = world.cells();
        // No render waits for anything, so all of them are looked at before any of them runs.
        for (stale, cell) in cells
            .iter()
            .map(|c| !self.oracle.has(&render(world, c)))
            .collect::<Vec<_>>()
            .iter()
            .zip(&cells)
        {
            if *stale {
                self.run(format!("render {}", cell.id()), render(world, cell));
            }
        }
        let mut summaries = Vec::new();
        for cell in &cells {
            summaries.push((cell.id(), self.cell(world, cell)));
        }
        let compare = match summaries.iter().all(|(_, summary)| summary.is_some()) {
            true => self.task(
                "compare m",
                format!("comparison of {summaries:?} at {}", world.price),
            ),
            false => self.downstream("compare m"),
        };
        // Without a figure there is nothing that a price says anything of: the comparison comes out
        // the same.
        let compare = compare.map(|compare| match self.any_counts {
            true => compare,
            false => format!("comparison of {summaries:?} without a figure"),
        });
        let plot = match &compare {
            Some(compare) => self.task("plot m", format!("plot of {compare}")),
            None => self.downstream("plot m"),
        };
        match (compare, plot) {
            (Some(compare), Some(_)) => self.report(format!("report of {compare}")),
            _ => drop(self.downstream("report m")),
        }
        self.ids
    }

    /// A cell from its trainings to its summary; `None` where a plan cannot know which it will be.
    fn cell(&mut self, world: &World, cell: &Cell) -> Option<Inputs> {
        let id = cell.id();
        let trainings: Vec<Inputs> = (1..=world.repeats)
            .map(|repeat| training(world, cell, repeat))
            .collect();
        if let Some(attempts) = self.settled(world, &trainings) {
            self.count(&attempts);
            return Some(summary(&attempts, world));
        }
        let mut attempts = Vec::new();
        for (repeat, training) in (1..).zip(&trainings) {
            let serves = |a: &u32| self.oracle.has(&result(*a)) || self.oracle.has_log(*a);
            let (train, parse) = (
                format!("train {id}#{repeat}"),
                format!("parse {id}#{repeat}"),
            );
            match self.oracle.speaker(training, serves) {
                Some(attempt) => attempts.push(self.task(&parse, result(attempt)).map(|_| attempt)),
                None if self.is_plan => {
                    self.downstream(&train);
                    self.downstream(&parse);
                    attempts.push(None);
                }
                None => {
                    self.oracle.measured += 1;
                    let attempt = self.oracle.measured;
                    self.oracle
                        .attempts
                        .entry(training.clone())
                        .or_default()
                        .push(attempt);
                    if self.disturbed {
                        self.oracle.suspects.insert(attempt);
                    }
                    self.run(train, measured(attempt));
                    self.run(parse, result(attempt));
                    attempts.push(Some(attempt));
                }
            }
        }
        let task = format!("aggregate {id}");
        match attempts.into_iter().collect::<Option<Vec<u32>>>() {
            Some(attempts) => {
                self.count(&attempts);
                self.task(&task, summary(&attempts, world))
            }
            None => self.downstream(&task),
        }
    }

    fn count(&mut self, attempts: &[u32]) {
        self.any_counts |= attempts.iter().any(|a| !self.oracle.suspects.contains(a));
    }

    /// Where a log and its result are both lost, only a new measurement would bring them back.
    /// Nobody needs them while the summary of these very measurements is there: then the cell is
    /// left alone.
    fn settled(&self, world: &World, trainings: &[Inputs]) -> Option<Vec<u32>> {
        let is_lost = |a: &u32| !self.oracle.has(&result(*a)) && !self.oracle.has_log(*a);
        let has_run = |training: &Inputs| self.oracle.attempts.contains_key(training);
        let any_lost = trainings.iter().any(|t| {
            has_run(t)
                && self
                    .oracle
                    .speaker(t, |attempt| !is_lost(attempt))
                    .is_none()
        });
        let first: Vec<u32> = trainings
            .iter()
            .filter_map(|t| self.oracle.speaker(t, |_| true))
            .collect();
        let is_there = first.len() == trainings.len() && self.oracle.has(&summary(&first, world));
        (any_lost && is_there).then_some(first)
    }

    fn report(&mut self, inputs: Inputs) {
        let is_published = |o: &Output| self.oracle.published.get(&o.name) == Some(&o.digest);
        let published = self
            .oracle
            .made
            .get(&inputs)
            .is_some_and(|outputs| outputs.iter().all(is_published));
        if !published || !self.oracle.has(&inputs) {
            self.run("report m".into(), inputs);
        }
    }

    /// A task whose inputs are known. Returns its outcome's name; in a plan only if it is fresh.
    fn task(&mut self, id: &str, inputs: Inputs) -> Option<Inputs> {
        if self.oracle.has(&inputs) {
            return Some(inputs);
        }
        self.run(id.into(), inputs.clone());
        (!self.is_plan).then_some(inputs)
    }

    fn run(&mut self, id: String, inputs: Inputs) {
        if !self.is_plan {
            // What is made again from the same is the same.
            let outputs = self.oracle.made.entry(inputs.clone()).or_default();
            for output in outputs.iter() {
                self.oracle.gone.remove(&output.digest);
            }
        }
        self.ids.insert(id, inputs);
    }

    /// A task after a stale one.
    fn downstream(&mut self, id: &str) -> Option<Inputs> {
        assert!(self.is_plan);
        self.ids.insert(id.to_owned(), String::new());
        None
    }
}

fn render(world: &World, cell: &Cell) -> Inputs {
    format!(
        "script {} spelled {} for {}",
        world.template,
        world.template_spelling % 4,
        world.job(cell)
    )
}

fn training(world: &World, cell: &Cell, repeat: u32) -> Inputs {
    let World {
        template,
        recipe_file,
        trainer,
        module,
        new_module,
        platform_env,
        framework_env,
        ..
    } = world;
    let job = world.job(cell);
    format!(
        "#{repeat} script {template} recipe {recipe_file} inputs {trainer} {module} {new_module:?} env {platform_env} {framework_env} {job}"
    )
}

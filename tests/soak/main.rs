//! Everything at once, for as long as one likes: random edits, also while builds run, kills of
//! tprimat, supervisors and trainers, several builds of one cache, damaged caches. Whenever it is
//! quiet again, what is shown must be what the trainers say they ran, and nothing may have run
//! twice.
//!
//! `make soak SECONDS=600`; `cargo test` plays a short one. `TPRIMAT_TEST_SEED` plays one again.

mod journal;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{BuildHasher, RandomState},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use support::{
    Dice, Project, Ran,
    mayhem::{damage, strike},
};
use world::{MODELS, MOST_REPEATS, World};

/// How many runs of a build may be under way.
const JOBS: usize = 2;

#[derive(Default)]
struct Counts {
    rounds: usize,
    builds: usize,
    edits: usize,
    edits_during_builds: usize,
    put_back: usize,
    kills: BTreeMap<&'static str, usize>,
    damages: usize,
    unsettled: usize,
    figures_checked: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rounds,
            builds,
            edits,
            edits_during_builds,
            put_back,
            kills,
            damages,
            unsettled,
            figures_checked,
        } = self;
        write!(
            f,
            "{rounds} rounds, {builds} builds, {edits} edits, {edits_during_builds} of them while builds ran and {put_back} put back, signals {kills:?}, {damages} files of caches damaged, {unsettled} times runs that stayed disturbed until a file was declared, {figures_checked} figures checked"
        )
    }
}

struct Game {
    dice: Dice,
    project: Project,
    world: World,
    /// Worlds that were put back once. A second time might end the patience with disturbed runs.
    put_back: Vec<World>,
    /// The most repeats that were asked for of each training.
    wanted: BTreeMap<String, usize>,
    /// Clean runs beyond those, so far.
    beyond: usize,
    /// Builds under way.
    building: usize,
    /// How many more there may be this round: runs that a kill or an edit spoilt at their very end.
    forgiven: usize,
    /// How often the file that nobody declares changed while builds ran, by what else a training
    /// reads: since a clean run of it, and ever.
    shaken: BTreeMap<String, usize>,
    ever_shaken: BTreeMap<String, usize>,
    /// Trainings that builds of this round may run, by what they read besides that file.
    planned: BTreeSet<String>,
    is_shaken_now: bool,
    /// Attempts that were shown once.
    shown: BTreeSet<String>,
    counts: Counts,
    history: Vec<String>,
}

impl Game {
    fn new(seed: u64) -> Self {
        let mut game = Self {
            dice: Dice(seed),
            project: Project::empty(),
            world: World::default(),
            put_back: Vec::new(),
            wanted: BTreeMap::new(),
            beyond: 0,
            building: 0,
            forgiven: 0,
            shaken: BTreeMap::new(),
            ever_shaken: BTreeMap::new(),
            planned: BTreeSet::new(),
            is_shaken_now: false,
            shown: BTreeSet::new(),
            counts: Counts::default(),
            history: vec![format!("TPRIMAT_TEST_SEED={seed}")],
        };
        let first = format!("{}/first", journal::FOLDER);
        game.project.write(&first, "").remove(&first);
        game.save();
        game
    }

    fn note(&mut self, what: String) {
        self.history.push(what);
    }

    #[track_caller]
    fn demand(&self, is_so: bool, what: impl FnOnce() -> String) {
        let from = self.history.len().saturating_sub(60);
        assert!(
            is_so,
            "{}\n{:#?}\n{}\n{}",
            what(),
            &self.history[from..],
            self.history[0],
            self.counts
        );
    }

    fn save(&mut self) {
        self.world.save(&self.project, &mut self.dice);
        for (_, vocab_size) in MODELS {
            let wanted = self
                .wanted
                .entry(self.world.training(vocab_size))
                .or_default();
            *wanted = (*wanted).max(self.world.repeats as usize);
            self.planned.insert(self.world.without_words(vocab_size));
        }
    }

    /// Notes that the file that nobody declares changed. Runs that are under way do not count then.
    fn shake(&mut self) {
        if self.building > 0 {
            self.is_shaken_now = true;
            for training in &self.planned {
                *self.shaken.entry(training.clone()).or_default() += 1;
                *self.ever_shaken.entry(training.clone()).or_default() += 1;
            }
        }
    }

    fn edit(&mut self) {
        let before = self.world.clone();
        self.world.edit(&mut self.dice);
        self.save();
        self.counts.edits += 1;
        // Files that runs read where they lie: a run may be over but for the last look at them,
        // once for each time they change.
        let of_files = |world: &World| (world.trainer, world.data, world.words);
        if of_files(&before) != of_files(&self.world) {
            self.forgiven += 2 * JOBS * self.building;
        }
        let is_shaken = before.words != self.world.words;
        if is_shaken {
            self.shake();
        }
        self.note(format!("{before:?} -> {:?}", self.world));
        if self.dice.roll(4) == 0 && before != self.world && !self.put_back.contains(&before) {
            thread::sleep(moment(&mut self.dice));
            self.note("put back".into());
            self.world = before.clone();
            self.put_back.push(before);
            self.counts.put_back += 1;
            self.save();
            if is_shaken {
                self.shake();
            }
        }
    }

    fn start_build(&mut self) -> Child {
        self.counts.builds += 1;
        let jobs = JOBS.to_string();
        let mut command = self.project.tprimat(&["build", "-j", &jobs]);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Builds, edits and kills, all at once.
    fn turmoil(&mut self) {
        for _ in 0..self.dice.roll(3) {
            self.edit();
        }
        self.planned = MODELS
            .iter()
            .map(|(_, vocab_size)| self.world.without_words(*vocab_size))
            .collect();
        let mut builds = vec![self.start_build()];
        self.building = 1;
        for _ in 0..self.dice.roll(10) {
            thread::sleep(moment(&mut self.dice));
            match self.dice.roll(6) {
                0 if builds.len() < 3 => builds.push(self.start_build()),
                0..=2 => {
                    self.counts.edits_during_builds += 1;
                    self.edit();
                }
                _ => self.kill(),
            }
            self.building = builds.len();
        }
        for mut build in builds {
            build.wait().unwrap();
        }
        self.building = 0;
    }

    /// Changes the file that nobody declares under one build and, perhaps, under the replacements
    /// of its runs.
    fn shake_two_builds(&mut self) {
        self.world.is_declared = false;
        self.world.words += 1;
        self.save();
        for _ in 0..2 {
            self.planned = MODELS
                .iter()
                .map(|(_, vocab_size)| self.world.without_words(*vocab_size))
                .collect();
            let mut build = self.start_build();
            self.building = 1;
            thread::sleep(2 * moment(&mut self.dice));
            self.world.words += 1;
            self.save();
            self.shake();
            self.note(format!("words are {}", self.world.words));
            self.counts.edits_during_builds += 1;
            self.counts.edits += 1;
            self.forgiven += 2 * JOBS;
            build.wait().unwrap();
            self.building = 0;
        }
    }

    fn kill(&mut self) {
        let Some((what, signal)) = strike(&self.project, &mut self.dice, moment) else {
            return;
        };
        self.note(format!("{signal} to a {what}"));
        *self.counts.kills.entry(what).or_default() += 1;
        self.forgiven += JOBS;
    }

    /// Flips, cuts or removes files of the cache.
    fn damage(&mut self) {
        for _ in 0..=self.dice.roll(3) {
            if let Some(what) = damage(&self.project, &mut self.dice) {
                self.note(what);
                self.counts.damages += 1;
            }
        }
        // A clean run may be forgotten now.
        self.shaken = self.ever_shaken.clone();
        // At most everything is measured once more.
        let all: usize = MODELS.iter().map(|_| self.world.repeats as usize).sum();
        self.forgiven += all;
    }

    fn play(&mut self) {
        (self.forgiven, self.is_shaken_now) = (0, false);
        self.counts.rounds += 1;
        let round = self.counts.rounds;
        self.note(format!("round {round}"));
        let mut patience = 1;
        match self.dice.roll(8) {
            0 => self.edit(),
            1 if round > 3 => {
                self.damage();
                // What a lost record hides may show only when the first build has read all.
                patience = 2;
            }
            2 => self.shake_two_builds(),
            _ => self.turmoil(),
        }
        self.settle(patience);
        self.check();
    }

    /// Builds in peace, and declares the file that nobody declares where runs stay disturbed by it.
    fn settle(&mut self, patience: usize) {
        let mut last = self.build_in_peace(patience);
        if suspect(&last) > 0 {
            self.check_unsettled(&last);
            self.note("declared".into());
            self.world.is_declared = true;
            self.save();
            last = self.build_in_peace(patience);
        }
        self.demand(last.code == Some(0), || {
            format!(
                "a build in peace ended with {:?}: {}",
                last.code, last.stderr
            )
        });
    }

    fn build_in_peace(&mut self, patience: usize) -> Ran {
        let mut build = || {
            self.counts.builds += 1;
            self.project.run(&["build", "--json"])
        };
        let mut last = build();
        for _ in 1..patience {
            if last.code != Some(0) {
                last = build();
            }
        }
        last
    }

    /// Only runs that were replaced once stay disturbed; nothing replaces them again, and the plan says
    /// what to declare.
    fn check_unsettled(&mut self, built: &Ran) {
        self.counts.unsettled += 1;
        let of_cells = |(_, vocab_size): &&(&str, u32)| {
            self.shaken
                .get(&self.world.without_words(*vocab_size))
                .copied()
        };
        let cells = MODELS
            .iter()
            .filter(|model| of_cells(model).is_some_and(|times| times > 1))
            .count();
        let may_be = cells * self.world.repeats as usize;
        self.demand(
            !self.world.is_declared && suspect(built) <= may_be as u64,
            || {
                format!(
                    "{} runs stay disturbed, and {may_be} may: {}",
                    suspect(built),
                    built.stderr
                )
            },
        );
        let again = self.project.run(&["build", "--json"]);
        let is_same = again.json()["ran"] == 0 && suspect(&again) == suspect(built);
        let plan = self.project.run(&["plan", "--json"]).stdout;
        self.demand(
            is_same && plan.contains(r#"`inputs: [\"!words.txt\"]`"#),
            || format!("it was {built:?}, and then {again:?} with {plan}"),
        );
    }

    fn check(&mut self) {
        let again = self.project.run(&["build", "--json"]);
        self.demand(again.code == Some(0) && again.json()["ran"] == 0, || {
            format!("a second build ran something: {again:?}")
        });
        let plan = self.project.run(&["plan", "--json"]).json();
        self.demand(plan["summary"]["stale"] == 0, || {
            format!("plan and build disagree: {plan:#}")
        });
        let processes = self.project.processes();
        self.demand(processes.is_empty(), || {
            format!("left behind: {processes:?}")
        });
        let runs = self.project.names_in("cache/runs");
        self.demand(runs.iter().all(|name| name == ".making.lock"), || {
            format!("run folders left: {runs:?}")
        });

        let journal = journal::read(&self.project);
        let compared: Value =
            serde_json::from_str(&self.project.read("output/compare.json")).unwrap();
        for (model, vocab_size) in MODELS {
            let expected = self.world.training(vocab_size);
            let cell = format!("cpu/cmd/{model}/single");
            let shown = self.project.run(&["show", &cell, "--json"]);
            self.demand(shown.code == Some(0), || {
                format!("nothing to show: {shown:?}")
            });
            let shown = shown.json();
            let repeats = shown["repeats"].as_array().cloned().unwrap_or_default();
            self.demand(repeats.len() == self.world.repeats as usize, || {
                format!("{cell}: {shown:#}")
            });
            let mut attempts = BTreeSet::new();
            for repeat in &repeats {
                let attempt = repeat["attempt"].as_str().unwrap_or_default();
                let run = journal.get(attempt);
                let is_right =
                    run.and_then(journal::Run::read_throughout) == Some(expected.as_str());
                self.demand(is_right, || {
                    format!("{cell} shows {repeat}, of {run:?}, and must be of {expected}")
                });
                let counts = repeat["status"]["status"] == "ok";
                self.demand(counts && attempts.insert(attempt.to_owned()), || {
                    format!("{cell} does not count {repeat}")
                });
                self.counts.figures_checked += 1;
            }
            // All of its repeats were made after the file had changed for the last time.
            if !self.is_shaken_now
                && attempts.is_disjoint(&self.shown)
                && repeats.len() == MOST_REPEATS
            {
                self.shaken.remove(&self.world.without_words(vocab_size));
            }
            self.shown.extend(attempts);
            let row = compared["rows"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|row| row["cell"] == cell.as_str());
            let time = step_time(&expected);
            self.demand(row.is_some_and(|row| holds(row, time)), || {
                format!("{cell}: no step time of {time} s in {row:#?}")
            });
        }

        let mut beyond = 0;
        for (training, runs) in journal::clean(&journal) {
            beyond += runs.saturating_sub(self.wanted.get(&training).copied().unwrap_or(0));
        }
        self.demand(beyond <= self.beyond + self.forgiven, || {
            let (before, forgiven) = (self.beyond, self.forgiven);
            format!("{beyond} runs more than were wanted, {before} before this round, which forgives {forgiven}")
        });
        self.beyond = beyond;
    }
}

/// How long nothing happens.
fn moment(dice: &mut Dice) -> Duration {
    Duration::from_micros(dice.roll(120_000) as u64)
}

/// How many runs a build found disturbed, and did not replace.
fn suspect(built: &Ran) -> u64 {
    serde_json::from_str::<Value>(&built.stdout)
        .ok()
        .and_then(|value| value["suspect"].as_u64())
        .unwrap_or(0)
}

/// The trainer's step time, a function of what it read.
fn step_time(training: &str) -> f64 {
    let sum = training
        .bytes()
        .fold(0, |sum, byte| (sum * 31 + u32::from(byte)) % 100_000);
    format!("0.1{}", sum + 100_000).parse().unwrap()
}

/// Is the number anywhere in the value?
fn holds(value: &Value, number: f64) -> bool {
    match value {
        Value::Number(found) => found
            .as_f64()
            .is_some_and(|found| (found - number).abs() < 1e-9),
        Value::Array(items) => items.iter().any(|item| holds(item, number)),
        Value::Object(fields) => fields.values().any(|field| holds(field, number)),
        _ => false,
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number"))
    })
}

#[test]
fn whatever_happens_what_is_shown_is_what_ran_and_nothing_runs_twice() {
    let seed = number("TPRIMAT_TEST_SEED").unwrap_or_else(|| RandomState::new().hash_one("soak"));
    let seconds = Duration::from_secs(number("TPRIMAT_SOAK_SECONDS").unwrap_or(15));
    println!("TPRIMAT_TEST_SEED={seed}");
    let mut game = Game::new(seed);
    let begun = Instant::now();
    game.settle(1);
    game.check();
    while begun.elapsed() < seconds {
        game.play();
    }
    let runs = journal::read(&game.project);
    let clean = runs
        .values()
        .filter(|run| run.read_throughout().is_some())
        .count();
    let (counts, began, beyond) = (&game.counts, runs.len(), game.beyond);
    println!(
        "{counts}\n{began} trainings began, {clean} ended with all that they had begun with, {beyond} of these were spoilt by a kill, an edit or damage and made again; no disagreement"
    );
}

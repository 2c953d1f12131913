//! Everything at once, for as long as one likes: random edits, also while builds run, kills of tprimat, supervisors and
//! trainers, several builds of one cache, damaged caches. Whenever it is quiet again, what is shown must be what the
//! trainers say they ran, and nothing may have run twice.
//!
//! `make soak SECONDS=600`; `cargo test` plays a short one. `TPRIMAT_TEST_SEED` plays one again.

mod journal;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    hash::{BuildHasher, RandomState},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use support::{Dice, Project, files_below};
use world::{MODELS, World};

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
    figures_checked: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, builds, edits, edits_during_builds, put_back, kills, damages, figures_checked } = self;
        write!(
            f,
            "{rounds} rounds, {builds} builds, {edits} edits, {edits_during_builds} of them while builds ran and {put_back} put back, kills {kills:?}, {damages} files of caches damaged, {figures_checked} figures checked"
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
            counts: Counts::default(),
            history: vec![format!("TPRIMAT_TEST_SEED={seed}")],
        };
        game.save();
        game
    }

    fn note(&mut self, what: String) {
        self.history.push(what);
    }

    #[track_caller]
    fn demand(&self, is_so: bool, what: impl FnOnce() -> String) {
        let from = self.history.len().saturating_sub(60);
        assert!(is_so, "{}\n{:#?}\n{}\n{}", what(), &self.history[from..], self.history[0], self.counts);
    }

    fn save(&mut self) {
        self.world.save(&self.project, &mut self.dice);
        for (_, vocab_size) in MODELS {
            let wanted = self.wanted.entry(self.world.training(vocab_size)).or_default();
            *wanted = (*wanted).max(self.world.repeats as usize);
        }
    }

    fn edit(&mut self) {
        let before = self.world.clone();
        self.world.edit(&mut self.dice);
        self.save();
        self.counts.edits += 1;
        // Files that runs read where they lie: a run may be over but for the last look at them, once for each time they change.
        if (before.trainer, before.data) != (self.world.trainer, self.world.data) {
            self.forgiven += 2 * JOBS * self.building;
        }
        self.note(format!("{before:?} -> {:?}", self.world));
        if self.dice.roll(4) == 0 && before != self.world && !self.put_back.contains(&before) {
            thread::sleep(self.moment());
            self.note("put back".into());
            self.world = before.clone();
            self.put_back.push(before);
            self.counts.put_back += 1;
            self.save();
        }
    }

    fn moment(&mut self) -> Duration {
        Duration::from_micros(self.dice.roll(120_000) as u64)
    }

    fn start_build(&mut self) -> Child {
        self.counts.builds += 1;
        let jobs = JOBS.to_string();
        let mut command = self.project.tprimat(&["build", "-j", &jobs]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Builds, edits and kills, all at once.
    fn turmoil(&mut self) {
        for _ in 0..self.dice.roll(3) {
            self.edit();
        }
        let mut builds = vec![self.start_build()];
        self.building = 1;
        for _ in 0..self.dice.roll(10) {
            thread::sleep(self.moment());
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

    fn kill(&mut self) {
        let kinds = [("tprimat", "build -j"), ("supervisor", "__supervise"), ("trainer", "train.sh")];
        let processes = self.project.processes();
        let of = |(what, mark): &(&'static str, &str)| -> Vec<(&'static str, i32)> {
            processes.iter().filter(|(_, line)| line.contains(mark)).map(|(pid, _)| (*what, *pid)).collect()
        };
        // Of a kind of which there is any.
        let there: Vec<_> = kinds.iter().map(of).filter(|pids| !pids.is_empty()).collect();
        if there.is_empty() {
            return;
        }
        let kind = self.dice.roll(there.len());
        let (what, pid) = self.dice.pick(&there[kind]);
        let signal = self.dice.pick(&[Signal::SIGKILL, Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT]);
        // It may have ended in between.
        let _ = kill(Pid::from_raw(pid), signal);
        self.note(format!("{signal} to a {what}"));
        *self.counts.kills.entry(what).or_default() += 1;
        self.forgiven += JOBS;
    }

    /// Flips, cuts or removes files of the cache.
    fn damage(&mut self) {
        let mut files = files_below(&self.project.path("cache"));
        files.retain(|path| !path.to_string_lossy().contains("/locks/"));
        files.sort();
        for _ in 0..=self.dice.roll(3) {
            let path = files[self.dice.roll(files.len())].clone();
            let Ok(mut bytes) = fs::read(&path) else { continue };
            let what = self.dice.roll(3);
            let at = self.dice.roll(bytes.len().max(1));
            self.note(format!("damage {what} at {at} of {}", path.display()));
            self.counts.damages += 1;
            #[expect(clippy::disallowed_methods, reason = "plays a broken disk")]
            match what {
                0 if !bytes.is_empty() => {
                    bytes[at] ^= 1 << self.dice.roll(8);
                    let _ = fs::remove_file(&path);
                    fs::write(&path, &bytes).unwrap();
                }
                1 => {
                    let _ = fs::remove_file(&path);
                    fs::write(&path, &bytes[..at.min(bytes.len())]).unwrap();
                }
                _ => fs::remove_file(&path).unwrap(),
            }
        }
        // At most everything is measured once more.
        let all: usize = MODELS.iter().map(|_| self.world.repeats as usize).sum();
        self.forgiven += all;
    }

    fn play(&mut self) {
        self.forgiven = 0;
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
            _ => self.turmoil(),
        }
        self.settle(patience);
        self.check();
    }

    /// Builds in peace.
    fn settle(&mut self, patience: usize) {
        let mut last = None;
        for _ in 0..patience {
            self.counts.builds += 1;
            let built = self.project.run(&["build"]);
            let is_good = built.code == Some(0);
            last = Some(built);
            if is_good {
                break;
            }
        }
        let last = last.expect("there is a build");
        self.demand(last.code == Some(0), || format!("a build in peace ended with {:?}: {}", last.code, last.stderr));
    }

    fn check(&mut self) {
        let again = self.project.run(&["build", "--json"]);
        self.demand(again.code == Some(0) && again.json()["ran"] == 0, || {
            format!("a second build ran something: {again:?}")
        });
        let plan = self.project.run(&["plan", "--json"]).json();
        self.demand(plan["summary"]["stale"] == 0, || format!("plan and build disagree: {plan:#}"));
        let processes = self.project.processes();
        self.demand(processes.is_empty(), || format!("left behind: {processes:?}"));
        let runs = self.project.names_in("cache/runs");
        self.demand(runs.iter().all(|name| name == ".making.lock"), || format!("run folders left: {runs:?}"));

        let journal = journal::read(&self.project);
        let compared: Value = serde_json::from_str(&self.project.read("output/compare.json")).unwrap();
        for (model, vocab_size) in MODELS {
            let expected = self.world.training(vocab_size);
            let cell = format!("cpu/cmd/{model}/single");
            let shown = self.project.run(&["show", &cell, "--json"]);
            self.demand(shown.code == Some(0), || format!("nothing to show: {shown:?}"));
            let shown = shown.json();
            let repeats = shown["repeats"].as_array().cloned().unwrap_or_default();
            self.demand(repeats.len() == self.world.repeats as usize, || format!("{cell}: {shown:#}"));
            let mut attempts = BTreeSet::new();
            for repeat in &repeats {
                let attempt = repeat["attempt"].as_str().unwrap_or_default();
                let run = journal.get(attempt);
                let is_right = run.is_some_and(|run| run.is_clean() && run.began == expected);
                self.demand(is_right, || format!("{cell} shows {repeat}, of {run:?}, and must be of {expected}"));
                let counts = repeat["status"]["status"] == "ok";
                self.demand(counts && attempts.insert(attempt.to_owned()), || {
                    format!("{cell} does not count {repeat}")
                });
                self.counts.figures_checked += 1;
            }
            let row = compared["rows"].as_array().into_iter().flatten().find(|row| row["cell"] == cell.as_str());
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

/// The trainer's step time, as `cksum` makes it of what was read.
fn step_time(training: &str) -> f64 {
    let text = format!("{training}\n");
    let mut crc: u32 = 0;
    let mut feed = |byte: u8| {
        crc ^= u32::from(byte) << 24;
        for _ in 0..8 {
            crc = if crc & 0x8000_0000 == 0 { crc << 1 } else { (crc << 1) ^ 0x04c1_1db7 };
        }
    };
    text.bytes().for_each(&mut feed);
    let mut length = text.len();
    while length > 0 {
        feed((length & 0xff) as u8);
        length >>= 8;
    }
    format!("0.1{}", !crc % 100_000 + 100_000).parse().unwrap()
}

/// Is the number anywhere in the value?
fn holds(value: &Value, number: f64) -> bool {
    match value {
        Value::Number(found) => found.as_f64().is_some_and(|found| (found - number).abs() < 1e-9),
        Value::Array(items) => items.iter().any(|item| holds(item, number)),
        Value::Object(fields) => fields.values().any(|field| holds(field, number)),
        _ => false,
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
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
    let clean = runs.values().filter(|run| run.is_clean()).count();
    let (counts, began, beyond) = (&game.counts, runs.len(), game.beyond);
    println!(
        "{counts}\n{began} trainings began, {clean} ended with all that they had begun with, {beyond} of these were spoilt by a kill, an edit or damage and made again; no disagreement"
    );
}

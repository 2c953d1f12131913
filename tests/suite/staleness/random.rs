//! Random edits and accidents, against an oracle that knows nothing of keys.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use super::{
    oracle::Oracle,
    world::{NEW_MODULE, World},
};
use crate::support::{
    Dice, Project,
    tasks::{SAMPLED, SHARED},
};

struct Game {
    dice: Dice,
    project: Project,
    world: World,
    oracle: Oracle,
    /// What was done, for the one who reads a failure.
    history: Vec<String>,
}

impl Game {
    fn new(seed: u64) -> Self {
        let (project, world) = (Project::of_two(), World::default());
        let history = vec![format!("seed {seed}")];
        let game = Self {
            dice: Dice(seed),
            project,
            world,
            oracle: Oracle::default(),
            history,
        };
        game.save();
        game
    }

    fn save(&self) {
        if self.world.new_module.is_none() {
            let _ = fs::remove_file(self.project.path(NEW_MODULE));
        }
        for (name, text) in self.world.files() {
            if fs::read_to_string(self.project.path(name)).ok().as_ref() != Some(&text) {
                self.project.write(name, &text);
            }
        }
    }

    /// Changes one thing of what the project says.
    fn edit(&mut self) {
        let before = self.world.clone();
        let (w, d) = (&mut self.world, &mut self.dice);
        let up = |n: &mut u32| *n += 1;
        match d.roll(29) {
            0 => w.seq_length = d.pick(&[64, 128, 256]),
            1 => w.small_seq_length = d.pick(&[None, Some(16), Some(64)]),
            2 => w.learning_rate = d.pick(&[1, 2, 3]),
            3 => w.norm_eps_of_large = d.pick(&[5, 6]),
            4 => up(&mut w.flavor),
            5 | 6 => {
                // An axis value comes or goes.
                let seeds: [&[u32]; 6] = [&[1], &[2], &[1, 2], &[2, 1], &[3], &[1, 3]];
                w.seeds = d.pick(&seeds).to_vec();
            }
            7 | 24 => w.template = d.pick(&[0, 1, 2]),
            8 => w.template_spelling = d.roll(4) as u32,
            9 => up(&mut w.recipe_file),
            10 => up(&mut w.trainer),
            11 => w.platform_env = d.roll(2) as u32,
            12 => w.framework_env = d.roll(2) as u32,
            13 | 14 => w.repeats = d.pick(&[1, 2, 3]),
            15 => w.skip_steps = d.roll(3) as u32,
            16 | 17 => w.price = d.pick(&[1, 2, 3]),
            18 => up(&mut w.description),
            19 => up(&mut w.comments),
            20 => w.blank_lines = d.roll(3) as u32,
            21 => w.key_order = d.roll(7) as u32,
            22 => up(&mut w.recipe_toml),
            25 => w.seeds.reverse(),
            26 | 27 => up(&mut w.module),
            28 => w.new_module = d.pick(&[None, Some(1), Some(2)]),
            _ => up(&mut w.unknown_files),
        }
        let (old, new) = (format!("{before:?}"), format!("{:?}", self.world));
        let changed = old.split(", ").zip(new.split(", ")).find(|(a, b)| a != b);
        self.history
            .push(changed.map_or("no change".into(), |(a, b)| format!("{a} -> {b}")));
        self.save();
    }

    /// Does something to files that is no edit.
    fn accident(&mut self) {
        let d = &mut self.dice;
        match d.roll(10) {
            8 | 9 => {
                // A recent one: older ones are of keys that may never come back.
                let number = self.oracle.measurements()
                    - d.roll(6).min(self.oracle.measurements() as usize - 1) as u32;
                self.history
                    .push(format!("lose log and result of measurement {number}"));
                for digest in self.oracle.of_measurement(number) {
                    self.project.lose(digest);
                    self.oracle.lose(digest);
                }
            }
            0..=3 => {
                let objects = self.oracle.objects();
                let (what, digest) = objects[d.roll(objects.len())].clone();
                self.history.push(format!("lose {what}"));
                self.project.lose(digest);
                self.oracle.lose(digest);
            }
            4 | 5 => {
                let published = self.oracle.published();
                let name = published[d.roll(published.len())].clone();
                self.history.push(format!("delete output/{name}"));
                let _ = fs::remove_file(self.project.path(&format!("output/{name}")));
                self.oracle.unpublish(&name);
            }
            6 => {
                let files = self.world.files();
                let name = files[d.roll(files.len())].0;
                self.history.push(format!("touch {name}"));
                self.project.touch(name);
            }
            _ => {
                self.history.push("copy the checkout".into());
                self.project.move_to_copy();
            }
        }
    }

    /// One round: some changes, a plan, a build, and all is fresh.
    fn play(&mut self) {
        let before = self.world.clone();
        for _ in 0..=self.dice.roll(2) {
            match self.dice.roll(3) {
                0 => self.accident(),
                _ => self.edit(),
            }
        }
        if self.dice.roll(6) == 0 && self.world != before {
            self.check_plan();
            self.history.push("undo".into());
            self.world = before;
            self.save();
        }
        self.check_plan();
        // Every fourth round something is on the devices, for a while.
        let disturbed = if self.dice.roll(4) == 0 {
            self.dice.roll(5)
        } else {
            0
        };
        for _ in 0..disturbed {
            self.history.push("a disturbed build".into());
            self.project.write("mood", &format!("{SHARED}\n{SAMPLED}"));
            self.check_build(true);
            self.project.remove("mood");
            self.check_plan();
        }
        self.check_build(false);
        assert_eq!(
            self.project.stale(&[]),
            BTreeSet::new(),
            "after a build; {:#?}",
            self.history
        );
    }

    fn check_plan(&self) {
        let (found, expected) = (self.project.stale(&[]), self.oracle.stale(&self.world));
        let missed: Vec<_> = expected.difference(&found).collect();
        let too_much: Vec<_> = found.difference(&expected).collect();
        assert!(
            missed.is_empty() && too_much.is_empty(),
            "must be stale: {missed:#?}\nmust not: {too_much:#?}\n{:#?}",
            self.history
        );
    }

    fn check_build(&mut self, disturbed: bool) {
        let before = self.project.launches();
        let expected = self.oracle.build(&self.world, disturbed);
        let trained = expected
            .keys()
            .filter(|id| id.starts_with("train "))
            .count();
        // Nothing counts where every run was disturbed; where such runs stand, there may be nothing
        // else.
        let is_right = |code: i32, says: &Value| match code {
            0 => !disturbed || trained == 0,
            1 => says["suspect"] != 0,
            _ => false,
        };
        if self.dice.roll(2) == 0 {
            let built = self.project.build(&[]);
            assert!(
                is_right(built.code, &built.says),
                "{}: {}\n{:#?}",
                built.code,
                built.stderr,
                self.history
            );
            let ids: BTreeSet<String> = expected.keys().cloned().collect();
            assert_eq!(
                built.ran, ids,
                "ran (left), must run (right); {:#?}",
                self.history
            );
        } else {
            // As people call it: what the last build noted may answer.
            let built = self.project.run(&["build", "--json"]);
            let says = built.json();
            assert!(
                built.code.is_some_and(|code| is_right(code, &says)),
                "{built:?}{:#?}",
                self.history
            );
            assert_eq!(
                says["ran"],
                json!(expected.len()),
                "{built:?}{:#?}",
                self.history
            );
        }
        assert_eq!(
            self.project.launches() - before,
            trained,
            "launches; {:#?}",
            self.history
        );
        self.oracle.learn(&expected, &self.project.cache());
    }
}

fn random_edits(seed: u64) {
    let seed = std::env::var("TPRIMAT_TEST_SEED").map_or(seed, |s| s.parse().expect("a number"));
    let rounds = std::env::var("TPRIMAT_TEST_ROUNDS").map_or(30, |s| s.parse().expect("a number"));
    let mut game = Game::new(seed);
    game.check_plan();
    game.check_build(false);
    for round in 1..=rounds {
        game.history.push(format!("round {round}"));
        game.play();
    }
}

#[test]
fn random_edits_run_exactly_what_the_oracle_says() {
    random_edits(1);
}

#[test]
fn other_random_edits_run_exactly_what_the_oracle_says() {
    random_edits(2);
}

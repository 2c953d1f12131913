//! Builds on bad days: at random, tprimat, supervisors, trainers and their workers are killed or
//! stopped, several tprimats build at once, files of the cache are damaged and the disk is full.
//! Afterwards every run that began is recorded, each cell is measured once, every result equals that
//! of an undisturbed build but for times, hosts and telemetry, and no process, run folder or lock is
//! left.
//!
//! `make chaos SEEDS=200`; `cargo test` plays a few. `TPRIMAT_TEST_SEED` plays one seed again.

#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;
use support::{
    Dice, Project, Ran,
    mayhem::{damage, strike},
    oracle::{
        attempts, differences, names, nothing_is_torn, published_is_whole, results, timeless_config,
    },
};
use tprimat::job::RunOutcome;

/// Two cells of two runs that share the host, and one that has it to itself.
const MATRIX: &str = r#"[matrix]
name = "chaos"
platform = "cpu"
framework = "cmd"
model = ["tiny", "wide"]
parallelism = "single"
repeats = 2

[[override]]
where = { model = "tiny" }
set = { "frameworks.cmd.share" = true }
"#;

const CELLS: [&str; 2] = ["cpu/cmd/tiny/single", "cpu/cmd/wide/single"];
const REPEATS: usize = 2;

/// Prints the same log at every run of the same job, and notes beside the project, where no disk is
/// ever full, that it began and that it ended. It ends where it cannot write its log, as real
/// trainers do. Now and then a worker stays behind in a session of its own.
const TRAINER: &str = r#"set -e
journal=$TPRIMAT_PROJECT_DIR/../journal
: > "$journal/$TPRIMAT_RUN_ID.begin"
read -r -d '' job < "$TPRIMAT_JOB" || true
[[ $job =~ '"seq_length": '([0-9]+) ]] && seq_length=${BASH_REMATCH[1]}
[[ $job =~ '"ffn_hidden_size": '([0-9]+) ]] && width=${BASH_REMATCH[1]}
if ((RANDOM % 4 == 0)); then setsid sleep 30 < /dev/null & fi
printf '{"event":"start","schema":"tprimat.events/1","trainer":"stub","effective":{"seq_length":%d,"global_batch_size":2,"num_gpus":1}}\n' "$seq_length"
for step in 1 2 3 4 5 6; do
    sleep 0.02
    printf '{"event":"step","step":%d,"step_time_seconds":0.1%d%d,"loss":%d.5,"tokens":32}\n' "$step" "$width" "$step" $((9 - step))
done
echo '{"event":"end","status":"ok","steps":6}'
: > "$journal/$TPRIMAT_RUN_ID.end"
"#;

/// What is shown of a run whose file of times is lost.
const UNDATED: &str = "the log does not say when its steps ended";

/// Of the disk that fills up.
const DISK: &str = "size=48m,mode=0700";

#[derive(Debug, Default)]
struct Counts {
    seeds: usize,
    builds: usize,
    beside_another: usize,
    signals: BTreeMap<String, usize>,
    damages: usize,
    full_disks: usize,
    began: usize,
    ended: usize,
    recorded: usize,
    results: usize,
    /// Seeds in which a file was lost that says when a log grew.
    undated: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signals: Vec<String> = self
            .signals
            .iter()
            .map(|(to, times)| format!("{times} × {to}"))
            .collect();
        write!(
            f,
            "{} seeds: {} builds, {} of them beside another one; {} signals ({}); {} files of caches damaged; the disk was full {} times; \
             {} trainings began, {} ended, {} attempts recorded; {} results equal those of an undisturbed build, \
             {} seeds lost what dates a log and are not compared",
            self.seeds,
            self.builds,
            self.beside_another,
            self.signals.values().sum::<usize>(),
            signals.join(", "),
            self.damages,
            self.full_disks,
            self.began,
            self.ended,
            self.recorded,
            self.results,
            self.undated
        )
    }
}

/// A file system of its own for the project, which goes when this is dropped.
struct Disk<'a>(&'a Project);

impl<'a> Disk<'a> {
    /// `None`: this user may not mount anything.
    fn mount(project: &'a Project) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", DISK, "none"]);
        let is_mounted = mount
            .arg(project.root())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        is_mounted.then_some(Self(project))
    }

    /// Leaves no room for a moment.
    fn fill(&self, moment: Duration) {
        let filler = self.0.path("filler");
        // What does not fit is not written.
        let _ = support::fill(&filler);
        thread::sleep(moment);
        let _ = std::fs::remove_file(&filler);
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.0.root())
            .status();
    }
}

/// One bad day.
struct Day<'a> {
    dice: Dice,
    project: &'a Project,
    disk: Option<&'a Disk<'a>>,
    /// Files of the cache may be damaged. Then what was recorded may be lost, and is measured again.
    is_damaged: bool,
    damages: usize,
    counts: &'a mut Counts,
    history: Vec<String>,
}

impl Day<'_> {
    fn note(&mut self, what: String) {
        self.history.push(what);
    }

    #[track_caller]
    fn demand(&self, is_so: bool, what: impl FnOnce() -> String) {
        assert!(is_so, "{}\n{:#?}", what(), self.history);
    }

    fn moment(&mut self) -> Duration {
        moment(&mut self.dice)
    }

    fn start_build(&mut self) -> Child {
        self.counts.builds += 1;
        let mut build = self.project.tprimat(&["build", "-j", "2"]);
        let build = build.stdout(Stdio::null()).stderr(Stdio::null());
        build.spawn().unwrap()
    }

    /// Builds of which each is disturbed a few times.
    fn turmoil(&mut self) {
        for _ in 0..=self.dice.roll(3) {
            self.note("build".into());
            let mut builds = vec![self.start_build()];
            for _ in 0..self.dice.roll(6) {
                let pause = self.moment();
                thread::sleep(pause);
                match self.dice.roll(8) {
                    0 if builds.len() < 3 => {
                        self.note("another build".into());
                        self.counts.beside_another += 1;
                        builds.push(self.start_build());
                    }
                    1 if self.is_damaged => self.damage(),
                    2 if self.disk.is_some() => self.fill(),
                    _ => self.strike(),
                }
            }
            for mut build in builds {
                build.wait().unwrap();
            }
        }
        if self.is_damaged {
            self.damage();
        }
    }

    fn strike(&mut self) {
        if let Some((what, signal)) = strike(self.project, &mut self.dice, moment) {
            self.note(format!("{signal} to a {what}"));
            *self
                .counts
                .signals
                .entry(format!("{signal} to a {what}"))
                .or_default() += 1;
        }
    }

    fn damage(&mut self) {
        if let Some(what) = damage(self.project, &mut self.dice) {
            self.counts.damages += 1;
            self.damages += 1;
            self.note(what);
        }
    }

    fn fill(&mut self) {
        let moment = self.moment();
        if let Some(disk) = self.disk {
            self.note(format!("no room for {moment:?}"));
            self.counts.full_disks += 1;
            disk.fill(moment);
        }
    }

    /// What is left undone is done now. Each damaged file that a build reads ends it, with the
    /// advice to build again.
    fn settle(&mut self) {
        let mut last = self.build_in_peace();
        for _ in 0..self.damages {
            if last.code != Some(0) && last.stdout.contains("build again") {
                last = self.build_in_peace();
            }
        }
        self.demand(last.code == Some(0), || {
            format!("a build in peace ended with {last:?}")
        });
        let again = self.build_in_peace();
        self.demand(again.code == Some(0) && again.json()["ran"] == 0, || {
            format!("another build ran something: {again:?}")
        });
    }

    /// No build reads what it does not need, so a damaged file may be found by who looks at it. It
    /// says so, and the next build makes the file again.
    fn look(&mut self) {
        for name in names(&CELLS, REPEATS) {
            let shown = self.project.run(&["show", &name, "--json"]);
            if shown.code != Some(0) {
                self.note(format!("{name} was damaged"));
                self.demand(shown.stdout.contains("build again"), || {
                    format!("{shown:?}")
                });
                self.settle();
            }
        }
    }

    fn build_in_peace(&mut self) -> Ran {
        self.counts.builds += 1;
        self.project.run(&["build", "--json"])
    }

    fn check(&mut self, undisturbed: &BTreeMap<String, Value>) {
        let left = self.project.processes();
        self.demand(left.is_empty(), || format!("left behind: {left:?}"));
        let runs = self.project.names_in("cache/runs");
        self.demand(runs.iter().all(|name| name == ".making.lock"), || {
            format!("run folders left: {runs:?}")
        });
        // A damaged object that nothing needs any more stays as it is.
        if self.is_damaged {
            published_is_whole(self.project);
        } else {
            nothing_is_torn(self.project);
        }

        let attempts = attempts(self.project);
        self.demand(attempts.len() == CELLS.len() * REPEATS, || {
            format!("{:?}", attempts.keys())
        });
        let all: BTreeSet<&str> = attempts.values().flatten().map(|a| a.id.as_str()).collect();
        let journal = self.project.names_in("../journal");
        let of = |event: &str| -> BTreeSet<&str> {
            journal
                .iter()
                .filter_map(|n| n.strip_suffix(event))
                .collect()
        };
        let (began, ended) = (of(".begin"), of(".end"));
        for (task, attempts) in &attempts {
            let good = attempts.iter().filter(|a| a.outcome == RunOutcome::Ok);
            let good: Vec<&str> = good.map(|a| a.id.as_str()).collect();
            self.demand(good.iter().all(|id| ended.contains(id)), || {
                format!("{task} counts a run that did not end: {good:?}")
            });
            self.demand(good.len() == 1 || self.is_damaged, || {
                format!("{task} was measured {} times: {attempts:#?}", good.len())
            });
        }
        self.demand(self.is_damaged || began.is_subset(&all), || {
            let lost: Vec<_> = began.difference(&all).collect();
            format!("runs that nothing is recorded of: {lost:?}")
        });
        self.counts.began += began.len();
        self.counts.ended += ended.len();
        self.counts.recorded += all.len();

        let ours = results(self.project, (&CELLS, REPEATS));
        self.demand(ours.keys().eq(undisturbed.keys()), || {
            format!("{:?} / {:?}", ours.keys(), undisturbed.keys())
        });
        // When a log grew is telemetry: nothing tells it again where that file was damaged, or where
        // there was no room for it.
        let is_undated = |shown: &Value| shown.to_string().contains(UNDATED);
        if ours.values().any(is_undated) {
            self.demand(self.is_damaged || self.disk.is_some(), || {
                UNDATED.to_owned()
            });
            self.counts.undated += 1;
            return;
        }
        for (name, theirs) in undisturbed {
            let found = differences(name, &ours[name], theirs);
            self.demand(found.is_empty(), || format!("{found:#?}"));
            self.counts.results += 1;
        }
    }
}

/// How long nothing happens.
fn moment(dice: &mut Dice) -> Duration {
    Duration::from_millis(dice.roll(250) as u64)
}

fn fill_in(project: &Project) {
    project
        .write(
            "config.yaml",
            &timeless_config().replace("trainer.sh", "train.sh"),
        )
        .write("matrix.toml", MATRIX)
        .write("train.sh", TRAINER)
        .write("../journal/first", "")
        .remove("../journal/first");
}

fn undisturbed() -> BTreeMap<String, Value> {
    let project = Project::empty();
    fill_in(&project);
    project.run(&["build"]).ends_with(0);
    results(&project, (&CELLS, REPEATS))
}

fn play(seed: u64, undisturbed: &BTreeMap<String, Value>, counts: &mut Counts) {
    let mut dice = Dice(seed);
    let project = Project::empty();
    let disk = (dice.roll(3) == 0).then(|| Disk::mount(&project)).flatten();
    fill_in(&project);
    counts.seeds += 1;
    let mut day = Day {
        is_damaged: dice.roll(3) == 0,
        damages: 0,
        dice,
        project: &project,
        disk: disk.as_ref(),
        counts,
        history: Vec::new(),
    };
    day.turmoil();
    day.settle();
    if day.is_damaged {
        day.look();
    }
    day.check(undisturbed);
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} must be a number, not `{text}`")))
}

#[test]
fn after_a_bad_day_everything_is_as_if_it_had_been_a_good_one() {
    let again = number("TPRIMAT_TEST_SEED");
    // Everybody's tests play the same few days; whoever asks for a number of them gets new ones.
    let (first, seeds) = match (again, number("TPRIMAT_CHAOS_SEEDS")) {
        (Some(seed), _) => (seed, 1),
        (None, Some(seeds)) => (RandomState::new().hash_one("chaos") >> 16, seeds),
        (None, None) => (1, 3),
    };
    let undisturbed = undisturbed();
    let (mut counts, mut failed) = (Counts::default(), Vec::new());
    for seed in first..first + seeds {
        let played = catch_unwind(AssertUnwindSafe(|| play(seed, &undisturbed, &mut counts)));
        if played.is_err() {
            println!("TPRIMAT_TEST_SEED={seed} failed");
            failed.push(seed);
        }
    }
    println!("{counts}; {} seeds failed", failed.len());
    assert!(failed.is_empty(), "TPRIMAT_TEST_SEED: {failed:?}");
}

//! Builds on bad days: at random, tprimat, supervisors, trainers and their workers are killed or
//! stopped, several tprimats build at once, files of the cache are damaged and the disk is full. In
//! some worlds more goes wrong: the clock is set, the remote cache is away, containers are killed and
//! the Docker daemon restarts, Slurm's daemons die and jobs are cancelled.
//! Afterwards every run that began is recorded, each cell is measured once, every result equals that
//! of an undisturbed build but for times, hosts and telemetry, and no process, run folder, lock,
//! container, job or mount is left.
//!
//! `make chaos SEEDS=200` spreads its seeds over the worlds; `make test-services` plays a few of each.
//! `TPRIMAT_TEST_SEED=7 cargo test --features remote --test chaos slurm` plays one seed of one world
//! again.
#![allow(
    clippy::disallowed_methods,
    reason = "a test lays out folders and takes them away"
)]

#[path = "../support/services/mod.rs"]
mod services;
#[path = "../support/mod.rs"]
mod support;
mod worlds;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use support::{
    Dice, Project, Ran, files_below,
    mayhem::{damage, strike},
    oracle::{
        attempts, differences, names, nothing_is_torn, published_is_whole, results, timeless_config,
    },
};
use tprimat::{cache::Cache, job::RunOutcome};
use worlds::World;

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
dated() { :; }
#AS THE WORLD HAS IT
journal=$TPRIMAT_PROJECT_DIR/../journal
: > "$journal/$TPRIMAT_RUN_ID.begin"
read -r -d '' job < "$TPRIMAT_JOB" || true
[[ $job =~ '"seq_length": '([0-9]+) ]] && seq_length=${BASH_REMATCH[1]}
[[ $job =~ '"ffn_hidden_size": '([0-9]+) ]] && width=${BASH_REMATCH[1]}
if ((RANDOM % 4 == 0)); then setsid sleep 30 < /dev/null & fi
printf '{"event":"start","schema":"tprimat.events/1","trainer":"stub","effective":{"seq_length":%d,"global_batch_size":2,"num_gpus":1}}\n' "$seq_length"
for step in 1 2 3 4 5 6; do
    sleep ${pause:-0.02}
    printf '{"event":"step","step":%d,"step_time_seconds":0.1%d%d,"loss":%d.5,"tokens":32%s}\n' "$step" "$width" "$step" $((9 - step)) "$(dated)"
done
echo '{"event":"end","status":"ok","steps":6}'
: > "$journal/$TPRIMAT_RUN_ID.end"
"#;

/// What is shown of a run whose file of times is lost.
const UNDATED: &str = "the log does not say when its steps ended";

/// How the disk that fills up is mounted.
const DISK: &str = "size=48m,mode=0700";

#[derive(Debug, Default)]
struct Counts {
    seeds: usize,
    builds: usize,
    /// How often each thing was done to the builds.
    blows: BTreeMap<String, usize>,
    began: usize,
    ended: usize,
    recorded: usize,
    results: usize,
    /// Seeds in which a file was lost that says when a log grew.
    undated: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blows: Vec<String> = self
            .blows
            .iter()
            .map(|(what, times)| format!("{times} × {what}"))
            .collect();
        write!(
            f,
            "{} seeds: {} builds, {} blows ({}); {} trainings began, {} ended, {} attempts recorded; \
             {} results equal those of an undisturbed build, {} seeds lost what dates a log and are not compared",
            self.seeds,
            self.builds,
            self.blows.values().sum::<usize>(),
            blows.join(", "),
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
    fn mount(project: &'a Project) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", DISK, "none"]);
        let mounted = mount.arg(project.root()).output().unwrap();
        assert!(
            mounted.status.success(),
            "a day with a full disk mounts a disk of its own, which this user may not ({}): run the tests as root, \
             or `unshare --map-root-user --mount cargo test --features remote --test chaos local`",
            String::from_utf8_lossy(&mounted.stderr).trim()
        );
        Self(project)
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
    world: &'a mut World,
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
        self.world.moment(&mut self.dice)
    }

    /// Counts a blow, and notes it with its particulars.
    fn blow(&mut self, what: &str, particulars: &str) {
        *self.counts.blows.entry(what.to_owned()).or_default() += 1;
        self.note(format!("{what} {particulars}"));
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
            for _ in 0..2 + self.dice.roll(5) {
                let pause = self.moment();
                thread::sleep(pause);
                // Nothing can hit a build that has ended.
                if builds
                    .iter_mut()
                    .all(|build| build.try_wait().unwrap().is_some())
                {
                    self.note("build again".into());
                    builds.push(self.start_build());
                    let pause = self.moment();
                    thread::sleep(pause);
                }
                match self.dice.roll(12) {
                    0 if builds.len() < 5 => {
                        self.blow("another build", "");
                        builds.push(self.start_build());
                    }
                    1 if self.is_damaged => self.damage(),
                    2 if self.disk.is_some() => self.fill(),
                    3..=7 => {
                        if let Some(what) = self.world.blow(self.project, &mut self.dice) {
                            self.blow(what, "");
                        } else {
                            self.strike();
                        }
                    }
                    _ => self.strike(),
                }
            }
            self.world.tended(|| {
                for mut build in builds {
                    build.wait().unwrap();
                }
            });
        }
        if self.is_damaged {
            self.damage();
        }
        self.world.calm(self.project);
    }

    fn strike(&mut self) {
        let world = &self.world;
        if let Some((what, signal)) =
            strike(self.project, &mut self.dice, |dice| world.moment(dice))
        {
            self.blow(&format!("{signal} to a {what}"), "");
        }
    }

    fn damage(&mut self) {
        if let Some(what) = damage(self.project, &mut self.dice) {
            self.damages += 1;
            self.blow("damaged file", &what);
        }
    }

    fn fill(&mut self) {
        let moment = self.moment();
        if let Some(disk) = self.disk {
            self.blow("full disk", &format!("for {moment:?}"));
            disk.fill(moment);
        }
    }

    /// What is left undone is done now. Each damaged file that a build reads fails the task that
    /// needs it, with the advice to build again ([`advises_to_build`]).
    fn settle(&mut self) {
        let mut last = self.build_in_peace();
        for _ in 0..self.damages {
            if last.code != Some(0) && advises_to_build(&last) {
                last = self.build_in_peace();
            }
        }
        // A run that went on without its tprimat may have been hit: the build that takes it in says
        // so, and the next one runs it again.
        if last.code == Some(1) && self.world.runs_outlive_builds() {
            self.note(format!("took in a failure: {}", last.stderr));
            last = self.build_in_peace();
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
        let names = names(&CELLS, REPEATS);
        let shown = names.iter().map(|name| vec!["show", name, "--json"]);
        for command in shown.chain([vec!["plan", "--json"]]) {
            let shown = self.project.run(&command);
            if shown.code != Some(0) {
                self.note(format!("what {command:?} reads was damaged"));
                if shown.stdout.contains(BOTH_LOST) {
                    // Its summary has what they said, so no build makes the run anew unasked.
                    let (cell, _) = command[1].split_once('#').unwrap();
                    let build = ["build", "--force=measured", "--only", cell, "--json"];
                    self.counts.builds += 1;
                    let ran = self.world.tended(|| self.project.run(&build));
                    self.demand(ran.code == Some(0), || format!("{ran:?}"));
                } else {
                    self.demand(advises_to_build(&shown), || format!("{shown:?}"));
                }
                self.settle();
            }
        }
    }

    /// Where runs are shared, all of them are in the remote cache, and another host runs nothing.
    fn share(&mut self, undisturbed: &BTreeMap<String, Value>) {
        if !self.world.has_remote() {
            return;
        }
        // A server that was begun anew has lost what it had, and a build with nothing to do pushes nothing.
        let pushed = self.project.run(&["cache", "push", "--json"]).ends_with(0);
        let incomplete = &pushed.json()["incomplete"];
        self.demand(self.is_damaged || *incomplete == 0, || {
            incomplete.to_string()
        });
        // A run whose log was damaged stays here; another one has taken its place. Nothing else is left to push.
        let again = self.project.run(&["cache", "push", "--json"]).json();
        let moved = ["runs", "imports", "decisions"].map(|what| again[what].as_u64());
        self.demand(
            moved == [Some(0); 3] && again["incomplete"] == *incomplete,
            || again.to_string(),
        );
        let mut other = project(self.world);
        other.environment = self.project.environment.clone();
        fill_in(self.world, &other);
        other.write("tprimat.lock", &self.project.read("tprimat.lock"));
        other.run(&["build"]).ends_with(0);
        let ran = other.names_in("../journal");
        let began = ran.iter().filter(|name| name.ends_with(".begin")).count();
        // A run whose log is lost counts here by its result, and no other host can take it over.
        self.demand(incomplete.as_u64() >= Some(began as u64), || {
            format!("another host ran {ran:?}, and {incomplete} runs are incomplete here")
        });
        let [ours, theirs] = [self.project, &other].map(|host| results(host, (&CELLS, REPEATS)));
        self.demand(theirs.keys().eq(undisturbed.keys()), || {
            format!("{:?}", theirs.keys())
        });
        // A file of times that was lost on one host only is in what the other one took over, and in
        // the texts that show all runs, of which digests are held against each other.
        let some_are = ours.values().any(is_undated);
        let is_other = |shown: &Value| is_undated(shown) || some_are && shown.is_string();
        for (name, ours) in ours.iter().filter(|(_, shown)| !is_other(shown)) {
            let found = differences(name, &theirs[name], ours);
            self.demand(found.is_empty(), || format!("{found:#?}"));
        }
    }

    fn build_in_peace(&mut self) -> Ran {
        self.counts.builds += 1;
        self.world.tended(|| self.project.run(&["build", "--json"]))
    }

    fn check(&mut self, undisturbed: &BTreeMap<String, Value>) {
        let left = self.project.processes();
        self.demand(left.is_empty(), || format!("left behind: {left:?}"));
        let runs = self.project.names_in("cache/runs");
        self.demand(runs.iter().all(|name| name.starts_with('.')), || {
            format!("run folders left: {runs:?}")
        });
        let left = self.world.left(self.project);
        self.demand(left.is_empty(), || format!("left behind: {left:?}"));
        let held = held_locks(self.project);
        self.demand(held.is_empty(), || {
            format!("locks that somebody holds: {held:?}")
        });
        // The mark of a cache may be lost, and what else lies there is still known to be of a cache.
        fs::remove_file(self.project.path("cache/CACHEDIR.TAG")).unwrap();
        Cache::open(&self.project.path("cache")).unwrap();
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

/// What `show` says of a run of which nothing can be read any more.
const BOTH_LOST: &str = "but its log and its result cannot be read";

/// Does a command that met a damaged file say that a build makes it anew?
fn advises_to_build(met: &Ran) -> bool {
    [
        "build again",
        "`tprimat build --force=measured` measures it anew",
    ]
    .iter()
    .any(|advice| met.stdout.contains(advice) || met.stderr.contains(advice))
}

fn is_undated(shown: &Value) -> bool {
    shown.to_string().contains(UNDATED)
}

/// Locks of the cache and of devices that cannot be taken, though nobody builds.
fn held_locks(project: &Project) -> Vec<String> {
    let locks = [
        project.path("cache/locks"),
        project.folder().join("device-locks"),
    ];
    let is_held = |path: &Path| {
        let file = fs::File::open(path).unwrap();
        Flock::lock(file, FlockArg::LockExclusiveNonblock).is_err()
    };
    let files = locks.iter().flat_map(|folder| files_below(folder));
    files
        .filter(|path| is_held(path))
        .map(|path| path.display().to_string())
        .collect()
}

/// A project of this world, in which nothing has run yet.
fn project(world: &World) -> Project {
    let mut project = Project::empty();
    fs::create_dir(project.folder().join("journal")).unwrap();
    project.environment = world.environment(&project);
    project
}

fn fill_in(world: &World, project: &Project) {
    let config = timeless_config().replace("trainer.sh", "train.sh") + &world.config(project);
    project
        .write("config.yaml", &config)
        .write("matrix.toml", MATRIX)
        .write(
            "train.sh",
            &TRAINER.replace("#AS THE WORLD HAS IT", &world.trainer()),
        );
}

fn undisturbed(world: &World) -> BTreeMap<String, Value> {
    let project = project(world);
    fill_in(world, &project);
    project.run(&["build"]).ends_with(0);
    results(&project, (&CELLS, REPEATS))
}

fn play(world: &mut World, seed: u64, undisturbed: &BTreeMap<String, Value>, counts: &mut Counts) {
    let mut dice = Dice(seed);
    let project = project(world);
    let wants_disk = dice.roll(3) == 0 && world.is_local();
    let disk = wants_disk.then(|| Disk::mount(&project));
    fill_in(world, &project);
    counts.seeds += 1;
    let mut day = Day {
        is_damaged: dice.roll(3) == 0,
        damages: 0,
        dice,
        world,
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
    day.share(undisturbed);
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} must be a number, not `{text}`")))
}

/// Plays this world's part of the seeds that were asked for, or the few that everybody's tests play.
fn after_bad_days_everything_is_as_after_good_ones(mut world: World, name: &str, few: u64) {
    let again = number("TPRIMAT_TEST_SEED");
    let (first, seeds) = match (again, number("TPRIMAT_CHAOS_SEEDS")) {
        (Some(seed), _) => (seed, 1),
        (None, Some(seeds)) => (
            RandomState::new().hash_one("chaos") >> 16,
            seeds.div_ceil(worlds::HOW_MANY),
        ),
        (None, None) => (1, few),
    };
    let undisturbed = undisturbed(&world);
    let (mut counts, mut failed) = (Counts::default(), Vec::new());
    for seed in first..first + seeds {
        let played = catch_unwind(AssertUnwindSafe(|| {
            play(&mut world, seed, &undisturbed, &mut counts);
        }));
        if played.is_err() {
            println!("TPRIMAT_TEST_SEED={seed} of the world {name} failed");
            failed.push(seed);
            world.calm(&Project::empty());
        }
    }
    println!("{name}: {counts}; {} seeds failed", failed.len());
    assert!(failed.is_empty(), "TPRIMAT_TEST_SEED of {name}: {failed:?}");
    assert!(
        counts.results > 0 || counts.undated == counts.seeds,
        "{name}: no result was compared with one of an undisturbed build"
    );
}

#[test]
fn local() {
    after_bad_days_everything_is_as_after_good_ones(World::Local, "local", 3);
}

#[test]
fn clock() {
    after_bad_days_everything_is_as_after_good_ones(World::clock(), "clock", 2);
}

#[test]
fn folder() {
    after_bad_days_everything_is_as_after_good_ones(World::Folder, "folder", 2);
}

#[test]
fn s3() {
    after_bad_days_everything_is_as_after_good_ones(World::bucket(), "s3", 2);
}

#[test]
fn container() {
    after_bad_days_everything_is_as_after_good_ones(World::container(), "container", 2);
}

#[test]
fn slurm() {
    after_bad_days_everything_is_as_after_good_ones(World::slurm(), "slurm", 1);
}

//! Builds that are killed, interrupted, or run twice at once: nothing measured is lost or measured
//! again, nothing is torn, and nobody is left behind. Trainers are shell scripts.

mod folders;

use std::{
    collections::BTreeMap,
    fs,
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Dice, ONE_RUN, Project,
    oracle::{attempts, differences, nothing_is_torn, results, timeless_config},
    until,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tprimat::{
    cache::{Attempt, Cache},
    digest::Digest,
    files::Durability,
    job::RunOutcome,
};

/// Twelve runs: those of `tiny` share the host, those of `wide` have it to themselves.
const TWELVE_RUNS: &str = r#"[matrix]
name = "stubs"
platform = "cpu"
framework = "cmd"
model = ["tiny", "wide"]
parallelism = "single"
repeats = 3

[matrix.axes.seed]
path = "training.seed"
values = [1, 2]

[[override]]
where = { model = "tiny" }
set = { "frameworks.cmd.share" = true }
"#;

const KILLS: u32 = 50;

fn signal(child: &Child, signal: Signal) {
    // It may have ended in between.
    let _ = kill(Pid::from_raw(child.id().cast_signed()), signal);
}

/// When to kill.
#[derive(Debug)]
enum Moment {
    After(Duration),
    /// So long after tprimat said its so-manieth event.
    AfterEvent(usize, Duration),
}

fn microseconds(dice: &mut Dice, below: usize) -> Duration {
    Duration::from_micros(dice.roll(below) as u64)
}

/// Half of them at any time, half just after something happened: most writes are there.
fn moment(dice: &mut Dice) -> Moment {
    match dice.roll(2) {
        0 => Moment::After(microseconds(dice, 400_000)),
        _ => Moment::AfterEvent(dice.roll(40) + 1, microseconds(dice, 4000)),
    }
}

fn build_and_kill(project: &Project, more: &[&str], moment: &Moment) {
    let mut child = project
        .tprimat(&["build", "--events", "-"])
        .args(more)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    match moment {
        Moment::After(time) => thread::sleep(*time),
        Moment::AfterEvent(count, time) => {
            let events = BufReader::new(child.stdout.take().unwrap()).lines();
            events.take(*count).for_each(drop);
            thread::sleep(*time);
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killed_fifty_times_a_build_ends_as_if_nothing_had_happened() {
    let cells = ["tiny@1", "tiny@2", "wide@1", "wide@2"].map(|cell| {
        let (model, seed) = cell.split_once('@').unwrap();
        format!("cpu/cmd/{model}/single@seed={seed}")
    });
    let cells: Vec<&str> = cells.iter().map(String::as_str).collect();

    let project = Project::new(TWELVE_RUNS);
    project.write("config.yaml", &timeless_config());
    let seed = std::env::var("TPRIMAT_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one("dice"));
    println!("TPRIMAT_TEST_SEED={seed}");
    let mut dice = Dice(seed);
    for _ in 0..KILLS {
        // All done: publish or measure again, or there would be nothing left to disturb.
        let is_published = project.path("output/compare.txt").exists();
        let (again, moment) = match is_published.then(|| dice.roll(3)) {
            None => (&[][..], moment(&mut dice)),
            Some(0) => (&["--force=measured"][..], moment(&mut dice)),
            Some(_) => {
                fs::remove_dir_all(project.path("output")).unwrap();
                // Publishing is soon over.
                (&[][..], Moment::After(microseconds(&mut dice, 60_000)))
            }
        };
        println!(
            "{moment:?} {again:?}, {} launches so far",
            project.launches()
        );
        build_and_kill(&project, again, &moment);
        // Now, for the next build would repair it.
        nothing_is_torn(&project);
    }
    project.run(&["build"]).ends_with(0);

    assert_eq!(project.processes(), [], "left behind");
    assert_eq!(
        project.names_in("cache/runs"),
        [".making.lock"],
        "run folders left"
    );
    nothing_is_torn(&project);
    let attempts = attempts(&project);
    assert_eq!(attempts.len(), 12);
    for (task, attempts) in &attempts {
        let measured: Vec<u32> = attempts
            .iter()
            .filter(|a| a.outcome == RunOutcome::Ok)
            .map(|a| a.generation)
            .collect();
        assert!(!measured.is_empty(), "{task}: {attempts:?}");
        assert!(
            measured.is_sorted_by(|a, b| a > b),
            "{task} was measured twice in one generation: {attempts:?}"
        );
    }
    let recorded: usize = attempts.values().map(Vec::len).sum();
    assert!(
        project.launches() <= recorded,
        "{} launches, {recorded} attempts: one was lost",
        project.launches()
    );

    let undisturbed = Project::new(TWELVE_RUNS);
    undisturbed.write("config.yaml", &timeless_config());
    measured_anew_as_often(&undisturbed, &project.cache(), &attempts);
    undisturbed.run(&["build"]).ends_with(0);
    assert_eq!(undisturbed.launches(), 12);
    let (ours, theirs) = (
        results(&project, (&cells, 3)),
        results(&undisturbed, (&cells, 3)),
    );
    assert_eq!(
        ours.keys().collect::<Vec<_>>(),
        theirs.keys().collect::<Vec<_>>()
    );
    let differences: Vec<String> = theirs
        .iter()
        .flat_map(|(name, theirs)| differences(name, &ours[name], theirs))
        .collect();
    assert_eq!(differences, [""; 0]);
    assert_eq!(
        project.run(&["build", "--json"]).ends_with(0).json()["ran"],
        0
    );
}

/// How often a cell was measured anew is told beside its figures, so the other project must have
/// been, too.
fn measured_anew_as_often(
    other: &Project,
    ours: &Cache,
    attempts: &BTreeMap<String, Vec<Attempt>>,
) {
    let theirs = other.cache();
    for attempt in attempts.values().flatten() {
        let generation = ours.generation(&attempt.key);
        if attempt.generation < generation {
            for output in &attempt.outputs {
                let bytes = ours.get(&output.digest).unwrap().unwrap();
                theirs.put(&bytes, Durability::Plain).unwrap();
            }
            theirs.record_attempt(attempt).unwrap();
        }
        while theirs.generation(&attempt.key) < generation {
            theirs.open_generation(&attempt.key).unwrap();
        }
    }
}

/// Runs of a few seconds, each of which says when it is up.
fn slow(project: &Project) {
    project.edit(
        "trainer.sh",
        "sleep 0.005",
        "echo up >> \"$TPRIMAT_PROJECT_DIR/up\"; sleep 0.3",
    );
}

fn is_up(project: &Project) -> bool {
    project.path("up").exists()
}

/// A build in a process group of its own, as a shell's job has it.
fn build(project: &Project) -> Child {
    project
        .tprimat(&["build"])
        .process_group(0)
        .spawn()
        .unwrap()
}

/// Ctrl-C: the terminal signals the whole group.
fn signal_group(child: &Child, signal: Signal) {
    kill(Pid::from_raw(-child.id().cast_signed()), signal).unwrap();
}

#[test]
fn what_had_finished_when_tprimat_was_killed_is_taken_in_not_run_again() {
    let project = Project::new(ONE_RUN);
    slow(&project);
    let mut child = build(&project);
    until("it trains", || is_up(&project));
    // Stopped, it cannot take the result in before it is killed.
    signal(&child, Signal::SIGSTOP);
    until("the run is recorded", || {
        project.names_in("cache/runs").iter().any(|run| {
            project
                .path("cache/runs")
                .join(run)
                .join("exit.json")
                .exists()
        })
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built
            .stderr
            .contains("took in a run that an earlier build left: train cpu/cmd/tiny/single#1 (ok)"),
        "{}",
        built.stderr
    );
    assert_eq!(project.launches(), 1);
    assert_eq!(project.names_in("cache/runs"), [".making.lock"]);
}

/// Agent and workers as torchrun has them: sessions of their own, and for a moment deaf to SIGTERM.
const TORCHRUN_LIKE: &str = r#"
for rank in 1 2 3; do
    setsid bash -c 'trap "trap \"\" TERM; sleep 0.4; exit 1" TERM; echo $$ >> "$TPRIMAT_PROJECT_DIR/up"; while :; do sleep 0.1; done' &
done
trap 'wait; exit 1' TERM
wait
"#;

/// As above, but not even a grace period helps.
const DEAF: &str = r#"
for rank in 1 2 3; do
    setsid bash -c 'trap "" TERM; echo $$ >> "$TPRIMAT_PROJECT_DIR/up"; while :; do sleep 0.1; done' &
done
wait
"#;

fn three_are_up(project: &Project) -> bool {
    fs::read_to_string(project.path("up")).is_ok_and(|up| up.lines().count() == 3)
}

#[test]
fn an_interrupt_ends_the_tree_and_the_next_build_completes() {
    for (asked, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let project = Project::new(ONE_RUN);
        // The same files before and after: what was interrupted is the same training.
        project.write("agent.sh", TORCHRUN_LIKE);
        project.edit(
            "trainer.sh",
            "job()",
            "[ -e \"$TPRIMAT_PROJECT_DIR/agent.sh\" ] && . ./agent.sh\njob()",
        );
        let child = build(&project);
        until("all ranks are up", || three_are_up(&project));
        let begun = Instant::now();
        signal_group(&child, asked);
        let ran = crate::support::Ran::from(child.wait_with_output().unwrap()).ends_with(code);
        let took = begun.elapsed();
        assert!(
            took > Duration::from_millis(400) && took < Duration::from_secs(10),
            "{took:?}"
        );
        assert_eq!(project.processes(), [], "{asked}");
        assert!(
            ran.stderr.ends_with("error: interrupted\n"),
            "{}",
            ran.stderr
        );
        // One line tells of the run, and one of the build.
        assert!(ran.stderr.contains(": interrupted after "), "{ran:?}");
        assert!(!ran.stderr.contains("what to do:"), "{ran:?}");
        let plan = project.run(&["plan"]).ends_with(0).stdout;
        assert!(plan.contains("stale        cpu/cmd/tiny/single"), "{plan}");

        fs::remove_file(project.path("agent.sh")).unwrap();
        project.run(&["build"]).ends_with(0);
        assert_eq!(project.launches(), 2);
        assert_eq!(project.names_in("cache/runs"), [".making.lock"]);
    }
}

#[test]
fn a_second_interrupt_cuts_the_grace_short() {
    let project = Project::new(ONE_RUN);
    project.write("trainer.sh", DEAF);
    let mut child = build(&project);
    until("all ranks are up", || three_are_up(&project));
    let begun = Instant::now();
    signal_group(&child, Signal::SIGINT);
    thread::sleep(Duration::from_millis(500));
    assert!(
        child.try_wait().unwrap().is_none(),
        "the first one gives the workers time"
    );
    signal_group(&child, Signal::SIGINT);
    let ran = crate::support::Ran::from(child.wait_with_output().unwrap()).ends_with(130);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(project.processes(), []);
    let words = "interrupted: 1 run is being ended; a second Ctrl-C ends it at once";
    assert!(ran.stderr.contains(words), "{ran:?}");
}

#[test]
fn two_builds_at_once_measure_everything_once() {
    let project = Project::new(TWELVE_RUNS);
    let children = [build(&project), build(&project)];
    for child in children {
        crate::support::Ran::from(child.wait_with_output().unwrap()).ends_with(0);
    }
    assert_eq!(project.launches(), 12);
    for (task, attempts) in attempts(&project) {
        assert_eq!(attempts.len(), 1, "{task}");
    }
    assert_eq!(
        project.run(&["build", "--json"]).ends_with(0).json()["ran"],
        0
    );
}

#[test]
fn a_build_that_waits_for_another_says_so_and_can_be_interrupted() {
    let project = Project::new(ONE_RUN);
    slow(&project);
    let first = build(&project);
    until("it trains", || is_up(&project));
    let mut second = build(&project);
    let mut said = String::new();
    let mut lines = BufReader::new(second.stderr.take().unwrap());
    while !said.contains("waiting for another tprimat") {
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "{said}");
    }
    signal_group(&second, Signal::SIGINT);
    lines.read_to_string(&mut said).unwrap();
    assert_eq!(second.wait().unwrap().code(), Some(130));
    assert!(
        !said.contains("being ended"),
        "it is the first one's: {said}"
    );
    crate::support::Ran::from(first.wait_with_output().unwrap()).ends_with(0);
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_run_that_is_interrupted_while_it_waits_for_its_device_was_never_run() {
    let project = Project::new(ONE_RUN);
    slow(&project);
    let first = build(&project);
    until("it trains", || is_up(&project));
    let other = ["--set", "training.optimizer.learning_rate=2.0e-3"];
    let mut second = project
        .tprimat(&["build"])
        .args(other)
        .process_group(0)
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(second.stderr.take().unwrap());
    while !said.contains("waiting for cpu held by process") {
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "{said}");
    }
    signal_group(&second, Signal::SIGINT);
    assert_eq!(second.wait().unwrap().code(), Some(130));
    crate::support::Ran::from(first.wait_with_output().unwrap()).ends_with(0);
    assert_eq!(project.launches(), 1);
    assert_eq!(project.cache().all_attempts().len(), 1);
    assert_eq!(project.names_in("cache/runs"), [".making.lock"]);
    let plan = project.run(&[&["plan"], &other[..]].concat()).ends_with(0);
    assert!(!plan.stdout.contains("interrupted"), "{plan:?}");
}

#[test]
fn killed_while_it_publishes_it_leaves_whole_files_and_then_publishes_all() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let published = || -> BTreeMap<String, Vec<u8>> {
        let names = project.names_in("output").into_iter();
        names
            .map(|name| {
                (
                    name.clone(),
                    fs::read(project.path("output").join(name)).unwrap(),
                )
            })
            .collect()
    };
    let whole = published();
    for moment in 0..40 {
        // Not there if the kill came first.
        let _ = fs::remove_dir_all(project.path("output"));
        build_and_kill(
            &project,
            &[],
            &Moment::AfterEvent(2, Duration::from_micros(moment * 400)),
        );
        for (name, bytes) in published()
            .iter()
            .filter(|(name, _)| !name.starts_with('.'))
        {
            assert!(whole.get(name) == Some(bytes), "{name} is torn");
        }
        // Not removed first: what the kill left is still there.
        if moment % 8 == 7 {
            project.run(&["build"]).ends_with(0);
            assert_eq!(
                published().keys().collect::<Vec<_>>(),
                whole.keys().collect::<Vec<_>>()
            );
            assert!(published() == whole);
        }
    }
    assert_eq!(project.launches(), 1);
}

/// What is known to fail is not run again because somebody tried once more and gave up.
#[test]
fn an_interrupted_retry_leaves_the_failure_as_it_was() {
    let project = Project::new(crate::support::ONE_RUN);
    project.write(
        "trainer.sh",
        "if [ -e slow ]; then echo > up; exec sleep 60; fi\necho 'torch.OutOfMemoryError: CUDA out of memory.'; exit 1\n",
    );
    project.run(&["build"]).ends_with(1);
    project.write("slow", "");
    let mut retry = project.tprimat(&["build", "--force=failed"]);
    let quiet = retry.stdout(Stdio::null()).stderr(Stdio::null());
    let mut retry = quiet.spawn().unwrap();
    until("it trains", || project.path("up").exists());
    kill(Pid::from_raw(retry.id().cast_signed()), Signal::SIGINT).unwrap();
    retry.wait().unwrap();
    project.remove("up");
    let plan = project.run(&["plan", "--json"]).ends_with(0).json();
    assert_eq!(plan["summary"]["failed"], 1, "{:#}", plan["summary"]);
    project.run(&["build"]).ends_with(1);
    assert!(!project.path("up").exists());
}

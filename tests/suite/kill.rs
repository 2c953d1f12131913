//! Builds that are killed, interrupted, or run twice at once: nothing measured is lost or measured
//! again, nothing is torn, and nobody is left behind. Trainers are shell scripts.

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

#[test]
fn a_run_folder_that_was_half_made_or_half_removed_goes_away() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    for half in [
        "cache/runs/20260101T000000Z-made/cmd.sh",
        "cache/runs/.gone-20260101T000000Z-removed/owner.lock",
    ] {
        project.write(half, "");
    }
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.006");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.names_in("cache/runs"), [".making.lock"]);
}

#[test]
fn a_run_folder_without_a_description_goes_away_or_is_named() {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    let folder = |name: &str| format!("cache/runs/20260101T000000Z-{name}");
    let plant = |name: &str, files: &[(&str, &str)]| {
        for (file, text) in files
            .iter()
            .chain(&[("owner.lock", ""), ("log", "step 1\n")])
        {
            project.write(&format!("{}/{file}", folder(name)), text);
        }
    };
    // As power cuts leave them: nothing of them ended, and what they had begun is made again.
    plant("lost", &[]);
    plant("empty", &[("spec.json", "")]);
    plant("zeros", &[("spec.json", "\0\0\0")]);
    // Somebody else's doing: the run ended, or says something.
    plant("ended", &[("exit.json", "{}")]);
    plant("strange", &[("spec.json", "{\"run\": 7}")]);
    // Its owner is about to write it.
    plant("owned", &[]);
    let lock = fs::File::open(project.path(&format!("{}/owner.lock", folder("owned")))).unwrap();
    lock.lock().unwrap();
    let mut said = String::new();
    for _ in 0..2 {
        project.edit(
            "trainer.sh",
            "echo '{\"event\":\"end\"",
            "sleep 0.001; echo '{\"event\":\"end\"",
        );
        said = project.run(&["build"]).ends_with(0).stderr;
        let mut left = project.names_in("cache/runs");
        left.sort();
        let names = ["ended", "owned", "strange"].map(|name| format!("20260101T000000Z-{name}"));
        assert_eq!(left[1..], names);
    }
    for name in ["ended", "strange"] {
        let told = format!(
            "nobody knows which run {}",
            project.path(&folder(name)).display()
        );
        assert!(said.contains(&told), "{said}");
    }
    assert!(!said.contains("-owned"), "{said}");
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
        let plan = project.run(&["plan", "--tasks"]).ends_with(0).stdout;
        assert!(
            plan.contains("stale        train cpu/cmd/tiny/single#1"),
            "{plan}"
        );

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

/// What a run folder says of its measurement besides what these tests are about.
fn rest_of_meta() -> String {
    let job = serde_json::to_string(&tprimat::job::Job::default()).unwrap();
    format!(
        r#""log_section":{{"format":"tprimat"}},"repeats_planned":null,"statistics":{{"warmup_steps":0}},"job":{job}"#
    )
}

#[test]
fn a_run_that_cannot_be_taken_in_now_is_left_alone_and_ends_no_build() {
    let project = Project::new(ONE_RUN);
    let plant = |id: &str, meta: &str| {
        let dir = project.path("cache/runs").join(id);
        let spec = format!(
            r#"{{"run_id":"{id}","dir":{dir:?},"argv":["true"],"cwd":"/","timeout_seconds":null,"grace_seconds":1.0,
            "devices":["cpu"],"exclusive":true,"lock_dir":"/tmp","meta":{meta}}}"#
        );
        let exit = r#"{"status":{"code":0},"started_at":1.0,"ended_at":2.0,"waited_seconds":0.0,"leftover":0,"survivors":0}"#;
        for (name, text) in [
            ("spec.json", &*spec),
            ("exit.json", exit),
            ("log", "x"),
            ("owner.lock", ""),
            ("supervisor.lock", ""),
        ] {
            project.write(&format!("cache/runs/{id}/{name}"), text);
        }
        dir
    };
    project.run(&["build"]).ends_with(0);
    let unreadable = plant("01unreadable", r#"{"key":7}"#);
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built.stderr.contains("left alone: the run folder"),
        "{}",
        built.stderr
    );
    assert!(unreadable.is_dir());
    // Where the log of the second one belongs, there is something that cannot be replaced.
    let key = Digest::of("x");
    let meta = format!(
        r#"{{"key":"{key}","task":"train a#1","preimage":"x","generation":0,{}}}"#,
        rest_of_meta()
    );
    let readable = plant("02readable", &meta);
    let object = Digest::of("x").to_string();
    project.write(
        &format!("cache/objects/{}/{}/in-the-way", &object[..2], &object[2..]),
        "",
    );
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built
            .stderr
            .contains("is a folder where the cache keeps a file"),
        "{}",
        built.stderr
    );
    assert!(readable.is_dir(), "what it measured is not lost");
    let in_the_way = format!("cache/objects/{}/{}", &object[..2], &object[2..]);
    fs::remove_dir_all(project.path(&in_the_way)).unwrap();
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built.stderr.contains("took in a run") && !readable.exists(),
        "{}",
        built.stderr
    );
    // Nothing is recorded of a run that ended before its trainer started, so nothing is taken in.
    let unbegun = plant("03unbegun", &meta);
    project.write(
        "cache/runs/03unbegun/exit.json",
        r#"{"status":"interrupted","started_at":2.0,"ended_at":2.0,"waited_seconds":0.0,"survivors":0}"#,
    );
    project.remove("cache/runs/03unbegun/log");
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        !built.stderr.contains("took in a run") && !unbegun.exists(),
        "{}",
        built.stderr
    );
}

/// How a run ended is recorded once its log and its description are on disk.
#[test]
fn what_a_power_cut_leaves_of_a_run_is_not_taken_for_the_whole() {
    let mut project = Project::new(ONE_RUN);
    let token = ("HF_TOKEN", "a-secret-token".to_owned());
    project.environment.push(token);
    let plant = |id: &str| {
        let key = Digest::of(id);
        let spec = format!(
            r#"{{"run_id":"{id}","dir":"/","argv":["true"],"cwd":"/","timeout_seconds":null,"grace_seconds":1.0,
            "devices":["cpu"],"exclusive":true,"lock_dir":"/tmp",
            "meta":{{"key":"{key}","task":"train a#1","preimage":"{id}","generation":0,{}}}}}"#,
            rest_of_meta()
        );
        let exit = r#"{"status":{"code":0},"started_at":1.0,"ended_at":2.0,"waited_seconds":0.0,"survivors":0}"#;
        for (name, text) in [
            ("spec.json", &*spec),
            ("exit.json", exit),
            ("log", "whole"),
            ("times", ""),
            ("owner.lock", ""),
            ("supervisor.lock", ""),
        ] {
            project.write(&format!("cache/runs/{id}/{name}"), text);
        }
        key
    };
    let file = |name: &str, text: &str| project.write(&format!("cache/runs/{name}"), text);
    let whole = plant("01whole");
    let no_record = plant("03norecord");
    file("03norecord/exit.json", "\0\0\0");
    plant("04nospec");
    file("04nospec/spec.json", "");
    project.remove("cache/runs/04nospec/exit.json");
    // Where the end was on disk, so was the description: somebody else took it.
    plant("05taken");
    file("05taken/spec.json", "");
    // Its log has a word that only whoever takes it in knows as a secret, and cannot be stored at once.
    let secret = plant("06secret");
    file("06secret/log", "a-secret-token");
    let masked = Digest::of("**************").to_string();
    let in_the_way = format!("cache/objects/{}/{}", &masked[..2], &masked[2..]);
    project.write(&format!("{in_the_way}/file"), "");
    project.run(&["build"]).ends_with(0);
    fs::remove_dir_all(project.path(&in_the_way)).unwrap();
    let built = project.run(&["build"]).ends_with(0);
    let cache = Cache::open(&project.path("cache")).unwrap();
    let outcome = |key: &Digest| match &cache.attempts(key)[..] {
        [attempt] => attempt.outcome.clone(),
        others => panic!("{others:?}: {built:?}"),
    };
    for key in [whole, secret] {
        assert_eq!(outcome(&key), RunOutcome::Ok, "{built:?}");
    }
    let RunOutcome::Failed { status, .. } = outcome(&no_record) else {
        panic!("{built:?}")
    };
    assert_eq!(status, "unknown");
    assert_eq!(project.names_in("cache/runs"), [".making.lock", "05taken"]);
}

#[test]
fn a_run_folder_that_cannot_be_read_now_is_neither_removed_nor_run_again() {
    let project = Project::new(ONE_RUN);
    let id = "01left";
    let key = Digest::of("x");
    let spec = format!(
        r#"{{"run_id":"{id}","dir":"/","argv":["true"],"cwd":"/","timeout_seconds":null,"grace_seconds":1.0,
        "devices":["cpu"],"exclusive":true,"lock_dir":"/tmp",
        "meta":{{"key":"{key}","task":"train a#1","preimage":"x","generation":0,{}}}}}"#,
        rest_of_meta()
    );
    for (name, text) in [
        ("spec.json", &*spec),
        ("log", "x"),
        ("owner.lock", ""),
        ("supervisor.lock", ""),
    ] {
        project.write(&format!("cache/runs/{id}/{name}"), text);
    }
    let file = |name: &str| project.path(&format!("cache/runs/{id}/{name}"));
    // Stands for a disk that fails: a file of this size is never read.
    let unreadable = |name: &str| {
        let file = fs::File::create(file(name)).unwrap();
        file.set_len(1 << 40).unwrap();
    };
    // How it ended is not known, so it is not filed as killed, and what it measured stays.
    unreadable("exit.json");
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        built.stderr.contains("is left alone: cannot read") && built.stderr.contains("exit.json"),
        "{}",
        built.stderr
    );
    assert!(file("log").exists());
    // What it runs is not known, so it may be the very training that is wanted.
    unreadable("spec.json");
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.006");
    // No run was made, so none is followed by a pause.
    project
        .edit("matrix.toml", "repeats = 1", "repeats = 2")
        .edit(
            "config.yaml",
            "cooldown_seconds: 0",
            "cooldown_seconds: 3600",
        );
    let built = project.run(&["build"]);
    assert_ne!(built.code, Some(0));
    // Two trainings do not run for the same reason, which is said once.
    let told = built.stderr.matches("no run is started while").count();
    assert!(
        told == 1 && built.stderr.contains("spec.json"),
        "{}",
        built.stderr
    );
    assert_eq!(project.launches(), 1);
    assert!(file("log").exists());
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

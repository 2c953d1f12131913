//! Runs under their supervisors: what is left behind when anyone is killed (nothing), and what is
//! kept of how they ended (everything). Trainers are shell scripts.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tprimat::{
    execute::{self, ExitKind, RunExit, RunSpec, RunState, Running},
    files::{Durability, write_atomically},
};

const TPRIMAT: &str = env!("CARGO_BIN_EXE_tprimat");

const NOBODY: [i32; 0] = [];

/// A folder of runs, gone with the test.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn runs(&self) -> PathBuf {
        self.folder.path().join("runs")
    }

    /// A run of `script` by /bin/sh.
    fn spec(&self, name: &str, script: &str) -> RunSpec {
        spec_in(self.folder.path(), name, script)
    }
}

fn spec_in(folder: &Path, name: &str, script: &str) -> RunSpec {
    RunSpec {
        run_id: format!("{name}-{}", folder.file_name().unwrap().to_string_lossy()),
        dir: folder.join("runs").join(name),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())]),
        cwd: folder.to_owned(),
        timeout_seconds: Some(60.0),
        grace_seconds: 5.0,
        devices: vec![],
        sampled: None,
        exclusive: false,
        lock_dir: folder.join("locks"),
        meta: serde_json::json!({ "name": name }),
    }
}

fn start(spec: &RunSpec) -> Running {
    execute::start(spec, Path::new(TPRIMAT)).unwrap()
}

fn run(spec: &RunSpec) -> RunExit {
    start(spec).wait().unwrap()
}

fn log(spec: &RunSpec) -> String {
    String::from_utf8(fs::read(spec.dir.join("log")).unwrap()).unwrap()
}

/// Live processes whose environment names the run: an eye of its own, not the supervisor's.
fn alive(run_id: &str) -> Vec<i32> {
    let mark = format!("TPRIMAT_RUN_ID={run_id}").into_bytes();
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|&b| b == 0).any(|entry| entry == mark)
    })
    .collect()
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Agent and workers as torchrun has them: sessions of their own, and deaf to SIGTERM.
const TORCHRUN_LIKE: &str = r#"
    for rank in 1 2 3; do
        setsid sh -c 'trap "" TERM; echo deaf; while :; do sleep 1; done' &
    done
    wait
"#;

/// All workers of a torchrun-like run are up and deaf.
fn trains(spec: &RunSpec) -> bool {
    fs::read_to_string(spec.dir.join("log")).is_ok_and(|log| log.matches("deaf\n").count() == 3)
}

#[test]
fn exit_codes_and_signals_are_kept() {
    let scene = Scene::new();
    for (name, script, status) in [
        ("ok", "exit 0", ExitKind::Code(0)),
        ("three", "exit 3", ExitKind::Code(3)),
        ("segv", "kill -SEGV $$", ExitKind::Signal(11)),
        ("killed", "kill -KILL $$", ExitKind::Signal(9)),
        // As a shell reports a killed child: a code of its own, not a signal.
        ("masked", "sh -c 'kill -KILL $$' | cat; exit 137", ExitKind::Code(137)),
    ] {
        let exit = run(&scene.spec(name, script));
        assert_eq!(exit.status, status, "{name}");
        assert_eq!((exit.leftover, exit.survivors, exit.note), (0, 0, None), "{name}");
        assert!(exit.started_at <= exit.ended_at, "{name}");
    }
}

/// A supervisor with a thread that hangs in a driver cannot go, also when it has said how its run ended.
#[test]
fn a_supervisor_that_lingers_after_the_end_keeps_nobody_waiting() {
    let scene = Scene::new();
    let spec = scene.spec("lingers", "true");
    let (status, note) = (ExitKind::Code(7), None);
    let (leftover, survivors, waited_seconds) = (0, 0, 0.0);
    let told = RunExit { status, started_at: 1.0, ended_at: 2.0, waited_seconds, leftover, survivors, note };
    let told = serde_json::to_string(&told).unwrap();
    let script =
        format!("#!/bin/sh\necho $$ > \"$2/pid\"\nprintf %s '{told}' > \"$2/exit.json\"\nexec /bin/sleep 60\n");
    let supervisor = scene.folder.path().join("supervisor");
    write_atomically(&supervisor, script.as_bytes(), Durability::Plain).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a mock must be executable")]
    fs::set_permissions(&supervisor, fs::Permissions::from_mode(0o755)).unwrap();
    let exit = execute::start(&spec, &supervisor).unwrap().wait().unwrap();
    assert_eq!(exit.status, ExitKind::Code(7));
    let pid = Pid::from_raw(fs::read_to_string(spec.dir.join("pid")).unwrap().trim().parse().unwrap());
    assert!(kill(pid, Signal::SIGKILL).is_ok(), "the supervisor was waited for");
}

#[test]
fn the_log_is_byte_exact_and_its_growth_is_dated() {
    let scene = Scene::new();
    // Every byte there is, no newline at the end, both streams in the order they were written.
    let script = r"i=0; while [ $i -lt 256 ]; do printf \\$(printf %03o $i); i=$((i+1)); done
        printf 'to stderr\r\n' >&2; sleep 0.3; printf 'no end'";
    let spec = scene.spec("bytes", script);
    assert_eq!(run(&spec).status, ExitKind::Code(0));
    let mut expected: Vec<u8> = (0..=255).collect();
    expected.extend(b"to stderr\r\nno end");
    assert_eq!(fs::read(spec.dir.join("log")).unwrap(), expected);

    let times = fs::read_to_string(spec.dir.join("times")).unwrap();
    let times: Vec<(f64, usize)> = times
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(time, length)| (time.parse().unwrap(), length.parse().unwrap()))
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(times.first().unwrap().1, 0);
    assert_eq!(times.last().unwrap().1, expected.len());
    assert!(times.len() >= 3, "before and after the pause: {times:?}");
}

#[test]
fn the_environment_is_exactly_what_was_given() {
    let scene = Scene::new();
    let mut spec = scene.spec("env", "");
    spec.argv = vec!["/usr/bin/env".into(), "-0".into()];
    spec.env.insert("ODD".into(), "two\nlines = é".into());
    spec.env.insert("LARGE".into(), "x".repeat(100_000));
    run(&spec);
    let given: BTreeMap<String, String> = log(&spec)
        .split_terminator('\0')
        .map(|entry| entry.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut expected = spec.env.clone();
    expected.insert("TPRIMAT_RUN_ID".into(), spec.run_id.clone());
    assert_eq!(given, expected);
    for file in fs::read_dir(&spec.dir).unwrap().flatten().filter(|f| f.file_name() != "log") {
        assert!(!String::from_utf8_lossy(&fs::read(file.path()).unwrap()).contains("xxxx"), "{:?}", file.path());
    }
}

/// Without a shell, for some shells unblock signals themselves.
#[test]
fn no_signal_is_blocked_in_the_trainer() {
    let scene = Scene::new();
    let mut spec = scene.spec("mask", "");
    spec.argv = ["grep", "SigBlk", "/proc/self/status"].map(str::to_owned).into();
    run(&spec);
    assert_eq!(log(&spec), "SigBlk:\t0000000000000000\n");
}

#[test]
fn the_trainer_starts_with_a_clean_slate() {
    let scene = Scene::new();
    let spec = scene.spec("slate", "grep -E '^Sig(Blk|Ign)' /proc/self/status; pwd -P; ls /proc/self/fd; cat");
    assert_eq!(run(&spec).status, ExitKind::Code(0), "standard input is empty, not a terminal");
    let log = log(&spec);
    let mut lines = log.lines();
    for name in ["SigBlk", "SigIgn"] {
        let (found, mask) = lines.next().unwrap().split_once(":\t").unwrap();
        // Above the standard signals the C library keeps two for itself.
        let standard = u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff;
        assert_eq!((found, standard), (name, 0));
    }
    assert_eq!(lines.next().map(PathBuf::from), Some(scene.folder.path().canonicalize().unwrap()));
    // 3 is `ls` reading the folder: neither the lifeline nor a lock is handed on.
    assert_eq!(lines.collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

#[test]
fn what_cannot_start_says_why() {
    let scene = Scene::new();
    let failed = |spec: &RunSpec| match run(spec).status {
        ExitKind::LaunchFailed(why) => why,
        other => panic!("{other:?}"),
    };
    let mut spec = scene.spec("missing", "");
    spec.argv = vec!["no-such-trainer".into()];
    let why = failed(&spec);
    assert!(why.contains("`no-such-trainer`") && why.contains("No such file"), "{why}");

    let mut spec = scene.spec("nowhere", "true");
    spec.cwd = "/no/such/folder".into();
    assert!(failed(&spec).contains("/no/such/folder"));

    let mut spec = scene.spec("empty", "");
    spec.argv.clear();
    assert!(failed(&spec).contains("empty"));

    let mut spec = scene.spec("locks", "true");
    spec.devices = vec!["../escape".into()];
    assert!(failed(&spec).contains("../escape"));
}

#[test]
fn a_program_is_looked_up_on_the_trainers_own_path() {
    let scene = Scene::new();
    let bin = scene.folder.path().join("bin");
    tprimat::files::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/echo", bin.join("my-trainer")).unwrap();
    let mut spec = scene.spec("path", "");
    spec.argv = vec!["my-trainer".into(), "hello".into()];
    spec.env = BTreeMap::from([("PATH".to_owned(), bin.to_string_lossy().into_owned())]);
    assert_eq!(run(&spec).status, ExitKind::Code(0));
    assert_eq!(log(&spec), "hello\n");
}

#[test]
fn a_timeout_ends_the_whole_tree() {
    let scene = Scene::new();
    let spec = RunSpec { timeout_seconds: Some(0.3), grace_seconds: 0.3, ..scene.spec("timeout", TORCHRUN_LIKE) };
    let begun = Instant::now();
    let exit = run(&spec);
    assert_eq!(exit.status, ExitKind::Timeout);
    assert_eq!(alive(&spec.run_id), NOBODY);
    assert!(exit.ended_at - exit.started_at >= 0.3);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_torchrun_like_tree_is_asked_first_and_then_killed() {
    let scene = Scene::new();
    let spec = RunSpec { grace_seconds: 0.4, ..scene.spec("torchrun", TORCHRUN_LIKE) };
    let running = start(&spec);
    until("agent and workers run", || trains(&spec));
    assert!(matches!(running.state(), RunState::Running { .. }));
    let begun = Instant::now();
    running.terminate();
    running.terminate();
    assert_eq!(running.wait().unwrap().status, ExitKind::Interrupted);
    assert_eq!(alive(&spec.run_id), NOBODY);
    assert!(begun.elapsed() >= Duration::from_millis(400), "its grace was cut short: {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn a_trainer_that_obeys_has_its_grace_and_no_more_is_waited_for() {
    let scene = Scene::new();
    let script = "trap 'sleep 0.1; echo saved; exit 0' TERM; echo started; while :; do sleep 0.01; done";
    let spec = RunSpec { grace_seconds: 30.0, ..scene.spec("obeys", script) };
    let running = start(&spec);
    until("it runs", || spec.dir.join("log").exists() && log(&spec).contains("started"));
    let begun = Instant::now();
    running.terminate();
    running.wait().unwrap();
    assert!(log(&spec).ends_with("saved\n"), "{}", log(&spec));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn kill_wastes_no_time_on_grace() {
    let scene = Scene::new();
    let spec = RunSpec { grace_seconds: 60.0, ..scene.spec("kill", TORCHRUN_LIKE) };
    let running = start(&spec);
    until("it runs", || trains(&spec));
    let begun = Instant::now();
    running.terminate();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| running.wait().unwrap());
        thread::sleep(Duration::from_millis(100));
        running.kill();
        assert_eq!(waiting.join().unwrap().status, ExitKind::Interrupted);
    });
    running.kill();
    assert_eq!(alive(&spec.run_id), NOBODY);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn what_a_trainer_leaves_behind_is_ended_and_counted() {
    let scene = Scene::new();
    // Twice forked, in a session of its own, and one even without the mark in its environment.
    let script = "(setsid sh -c 'sleep 60' &) ; (setsid env -i /bin/sleep 61 &) ; sleep 0.2; exit 7";
    let spec = RunSpec { grace_seconds: 0.5, ..scene.spec("daemon", script) };
    let exit = run(&spec);
    assert_eq!(exit.status, ExitKind::Code(7));
    assert!(exit.leftover >= 2, "{exit:?}");
    assert_eq!((exit.survivors, alive(&spec.run_id)), (0, vec![]));
}

#[test]
fn short_lived_helpers_may_finish_by_themselves() {
    let scene = Scene::new();
    let spec = scene.spec("helper", "(setsid sh -c 'sleep 0.1; echo tidied' &) ; exit 0");
    let exit = run(&spec);
    assert_eq!((exit.status, exit.leftover), (ExitKind::Code(0), 0));
    assert_eq!(log(&spec), "tidied\n");
}

#[test]
fn exclusive_runs_never_overlap() {
    let scene = Scene::new();
    let script = "date +%s%N; sleep 0.1; date +%s%N";
    let specs: Vec<RunSpec> = (0..4)
        .map(|i| {
            let devices = if i % 2 == 0 { ["cpu", "gpu-1"] } else { ["gpu-1", "cpu"] };
            let devices = devices.map(str::to_owned).into();
            RunSpec { devices, exclusive: true, ..scene.spec(&format!("run{i}"), script) }
        })
        .collect();
    let running: Vec<Running> = specs.iter().map(start).collect();
    for run in &running {
        assert_eq!(run.wait().unwrap().status, ExitKind::Code(0));
    }
    let mut spans: Vec<Vec<u128>> =
        specs.iter().map(|spec| log(spec).lines().map(|line| line.parse().unwrap()).collect()).collect();
    spans.sort();
    for pair in spans.windows(2) {
        assert!(pair[0][1] <= pair[1][0], "{spans:?}");
    }
}

#[test]
fn sharers_run_together_and_who_waits_is_told_for_whom() {
    let scene = Scene::new();
    let on_cpu =
        |name, exclusive| RunSpec { devices: vec!["cpu".into()], exclusive, ..scene.spec(name, "echo on; sleep 60") };
    let (a, b, c) = (on_cpu("a", false), on_cpu("b", false), on_cpu("c", true));
    let (run_a, run_b) = (start(&a), start(&b));
    until("both share the device", || [&a, &b].iter().all(|spec| spec.dir.join("log").exists()));
    let run_c = start(&c);
    until("the third waits", || {
        matches!(run_c.state(), RunState::WaitingForDevice { ref device, holder: Some(ref holder) }
            if device == "cpu" && [&a.run_id, &b.run_id].contains(&&holder.run_id))
    });
    run_a.kill();
    run_b.kill();
    run_a.wait().unwrap();
    run_b.wait().unwrap();
    until("the third runs", || matches!(run_c.state(), RunState::Running { .. }));

    // And one that still waits can be told to stop.
    let d = on_cpu("d", true);
    let run_d = start(&d);
    until(
        "the fourth waits for the third",
        || matches!(run_d.state(), RunState::WaitingForDevice { holder: Some(ref holder), .. } if holder.run_id == c.run_id),
    );
    run_d.terminate();
    let exit = run_d.wait().unwrap();
    assert_eq!(exit.status, ExitKind::Interrupted);
    assert!(exit.waited_seconds > 0.0);
    assert!(!d.dir.join("log").exists(), "it never trained");
    run_c.kill();
    run_c.wait().unwrap();
}

/// Not a test: the tprimat that others kill. Starts one run and waits for it.
#[test]
#[ignore = "run by other tests, in a process of its own"]
fn victim() {
    let Some(folder) = std::env::var_os("TPRIMAT_TEST_FOLDER") else { return };
    let spec = RunSpec { grace_seconds: 0.2, ..spec_in(Path::new(&folder), "victim", TORCHRUN_LIKE) };
    let _ = start(&spec).wait();
}

fn start_victim(scene: &Scene) -> (RunSpec, Child) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored"])
        .env("TPRIMAT_TEST_FOLDER", scene.folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (spec_in(scene.folder.path(), "victim", TORCHRUN_LIKE), child)
}

/// Any process with the run folder on its command line: the supervisor.
fn supervisors(spec: &RunSpec) -> Vec<i32> {
    let dir = spec.dir.to_string_lossy().into_owned();
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&b| b == 0).any(|argument| argument == dir.as_bytes())
    })
    .collect()
}

#[test]
fn killed_at_any_moment_tprimat_leaves_nothing_behind() {
    // Moments spread evenly over the start and some running (0 to 20 ms), in an order that looks random.
    thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                for i in 0..10_u64 {
                    let moment = Duration::from_micros((half + 2 * i) * 7 % 41 * 500);
                    let scene = Scene::new();
                    let (spec, mut victim) = start_victim(&scene);
                    thread::sleep(moment);
                    victim.kill().unwrap();
                    victim.wait().unwrap();
                    // The next build's sweep: waits for the supervisor, whatever it is doing.
                    let leftovers = execute::sweep(&scene.runs()).unwrap();
                    assert_eq!(alive(&spec.run_id), NOBODY, "killed after {moment:?}");
                    for leftover in &leftovers {
                        let status = leftover.exit.as_ref().map(|exit| &exit.status);
                        assert!(matches!(status, None | Some(ExitKind::Interrupted)), "{leftover:?}");
                        assert_eq!(leftover.spec.meta, spec.meta);
                    }
                    drop(leftovers);
                    until("the supervisor ended", || supervisors(&spec).is_empty());
                }
            });
        }
    });
}

#[test]
fn when_tprimat_dies_the_supervisor_ends_the_run_and_records_it() {
    let scene = Scene::new();
    let (spec, mut victim) = start_victim(&scene);
    until("it trains", || trains(&spec));
    assert!(execute::sweep(&scene.runs()).unwrap().is_empty(), "the run of a living tprimat is not touched");
    victim.kill().unwrap();
    victim.wait().unwrap();
    // No sweep needed.
    until("the supervisor ended", || supervisors(&spec).is_empty());
    assert_eq!(alive(&spec.run_id), NOBODY);
    let leftovers = execute::sweep(&scene.runs()).unwrap();
    let [leftover] = &leftovers[..] else { panic!("{leftovers:?}") };
    assert_eq!(leftover.exit.as_ref().unwrap().status, ExitKind::Interrupted);
    assert_eq!(leftover.ended, 0);
    assert!(fs::read_to_string(&leftover.log).unwrap().starts_with("deaf\n"));
    assert!(execute::sweep(&scene.runs()).unwrap().is_empty(), "one sweep takes it up, not two");
    fs::remove_dir_all(&leftover.dir).unwrap();
    drop(leftovers);
    assert!(execute::sweep(&scene.runs()).unwrap().is_empty());
}

#[test]
fn when_all_are_killed_the_sweep_ends_the_workers() {
    let scene = Scene::new();
    let (spec, mut victim) = start_victim(&scene);
    until("it trains", || trains(&spec));
    victim.kill().unwrap();
    let [supervisor] = supervisors(&spec)[..] else { panic!("one supervisor") };
    kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
    victim.wait().unwrap();
    let leftovers = execute::sweep(&scene.runs()).unwrap();
    let [leftover] = &leftovers[..] else { panic!("{leftovers:?}") };
    assert_eq!(alive(&spec.run_id), NOBODY);
    // The supervisor may have seen its lifeline close before it was killed, but cannot have ended the deaf.
    assert_eq!(leftover.exit, None);
    assert!(leftover.ended >= 3, "{leftover:?}");
}

#[test]
fn a_killed_supervisor_ends_its_run_and_is_told_of() {
    let scene = Scene::new();
    let spec = RunSpec { grace_seconds: 0.2, ..scene.spec("orphaned", TORCHRUN_LIKE) };
    let running = start(&spec);
    until("it trains", || trains(&spec));
    let [supervisor] = supervisors(&spec)[..] else { panic!("one supervisor") };
    kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
    let exit = running.wait().unwrap();
    assert_eq!(exit.status, ExitKind::Signal(9));
    assert!(exit.note.unwrap().contains("supervisor"));
    assert_eq!(alive(&spec.run_id), NOBODY);
}

#[test]
fn a_supervisor_is_started_by_tprimat_alone() {
    let scene = Scene::new();
    let spec = scene.spec("by-hand", "true");
    run(&spec);
    let by_hand = Command::new(TPRIMAT)
        .arg(execute::SUPERVISE_ARGUMENT)
        .arg(&spec.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(by_hand.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&by_hand.stderr).contains("only tprimat"));
}

#[test]
fn a_run_folder_in_use_is_refused() {
    let scene = Scene::new();
    let spec = scene.spec("twice", "sleep 60");
    let running = start(&spec);
    assert!(execute::start(&spec, Path::new(TPRIMAT)).is_err());
    running.kill();
    running.wait().unwrap();
}

/// Not a test: a process that says what signals reached it.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn listener() {
    let Some(file) = std::env::var_os("TPRIMAT_TEST_FILE") else { return };
    let interrupts = execute::install_interrupt_handler().unwrap();
    loop {
        let heard = format!("{:?} {}", interrupts.asked(), interrupts.insisted());
        tprimat::files::write_atomically(Path::new(&file), heard.as_bytes(), Durability::Plain).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_first_interrupt_asks_the_second_insists_and_the_third_ends() {
    let scene = Scene::new();
    let file = scene.folder.path().join("heard");
    let mut listener = Command::new(std::env::current_exe().unwrap());
    listener.args(["--exact", "listener", "--ignored"]).env("TPRIMAT_TEST_FILE", &file).stdout(Stdio::null());
    // Tests may run in the background of a script, where SIGINT is ignored, and children inherit that.
    let heed = || {
        // SAFETY: the default action runs no code of ours.
        unsafe { nix::sys::signal::signal(Signal::SIGINT, nix::sys::signal::SigHandler::SigDfl) }?;
        Ok(())
    };
    // SAFETY: `sigaction` is async-signal-safe.
    let mut listener = unsafe { std::os::unix::process::CommandExt::pre_exec(&mut listener, heed) }.spawn().unwrap();
    let pid = Pid::from_raw(listener.id().cast_signed());
    let hears = |expected: &str| until(expected, || fs::read_to_string(&file).is_ok_and(|heard| heard == expected));
    hears("None false");
    kill(pid, Signal::SIGINT).unwrap();
    hears("Some(2) false");
    kill(pid, Signal::SIGTERM).unwrap();
    hears("Some(2) true");
    kill(pid, Signal::SIGINT).unwrap();
    assert_eq!(listener.wait().unwrap().code(), Some(130));
}

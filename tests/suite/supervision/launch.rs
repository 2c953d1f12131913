//! What a run is started with, and what is kept of it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::json;
use tprimat::run::{ExitKind, RUN_ARGUMENT, Run, RunSpec};

use super::{log, run, spec_of, start};
use crate::support::{ONE_RUN, Project, Ran, TPRIMAT};

#[test]
fn exit_codes_and_signals_are_kept() {
    let project = Project::empty();
    for (name, script, status) in [
        ("ok", "exit 0", ExitKind::Code(0)),
        ("three", "exit 3", ExitKind::Code(3)),
        ("segv", "kill -SEGV $$", ExitKind::Signal(11)),
        ("killed", "kill -KILL $$", ExitKind::Signal(9)),
        // As a shell reports a killed child: a code of its own, not a signal.
        (
            "masked",
            "sh -c 'kill -KILL $$' | cat; exit 137",
            ExitKind::Code(137),
        ),
    ] {
        let exit = run(&spec_of(&project, name, script));
        assert_eq!(exit.status, status, "{name}");
        assert_eq!((exit.survivors, exit.note), (0, None), "{name}");
        assert!(exit.started_at <= exit.ended_at, "{name}");
    }
}

#[test]
fn the_log_is_byte_exact_and_its_growth_is_dated() {
    let project = Project::empty();
    // Every byte there is, no newline at the end, both streams in the order they were written.
    let script = r"i=0; while [ $i -lt 256 ]; do printf \\$(printf %03o $i); i=$((i+1)); done
        printf 'to stderr\r\n' >&2; sleep 0.3; printf 'no end'";
    let spec = spec_of(&project, "bytes", script);
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
    let project = Project::empty();
    let mut spec = spec_of(&project, "env", "");
    spec.argv = vec!["/usr/bin/env".into(), "-0".into()];
    spec.env.insert("ODD".into(), "two\nlines = é".into());
    spec.env.insert("LARGE".into(), "x".repeat(100_000));
    run(&spec);
    let mut given: BTreeMap<String, String> = log(&spec)
        .split_terminator('\0')
        .map(|entry| entry.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut expected = spec.env.clone();
    expected.insert("TPRIMAT_RUN_ID".into(), spec.run_id.clone());
    // Chosen at the last moment, so nobody gave it.
    let port = given.remove("TPRIMAT_PORT").unwrap();
    assert!(port.parse::<u16>().is_ok_and(|port| port > 1023), "{port}");
    assert_eq!(given, expected);
    for file in fs::read_dir(&spec.dir)
        .unwrap()
        .flatten()
        .filter(|f| f.file_name() != "log")
    {
        assert!(
            !String::from_utf8_lossy(&fs::read(file.path()).unwrap()).contains("xxxx"),
            "{:?}",
            file.path()
        );
    }
}

/// Without a shell, for some shells unblock signals themselves.
#[test]
fn no_signal_is_blocked_in_the_trainer() {
    let project = Project::empty();
    let mut spec = spec_of(&project, "mask", "");
    spec.argv = ["grep", "SigBlk", "/proc/self/status"]
        .map(str::to_owned)
        .into();
    run(&spec);
    assert_eq!(log(&spec), "SigBlk:\t0000000000000000\n");
}

#[test]
fn the_trainer_starts_with_a_clean_slate() {
    let project = Project::empty();
    let spec = spec_of(
        &project,
        "slate",
        "grep -E '^Sig(Blk|Ign)' /proc/self/status; pwd -P; ls /proc/self/fd; cat",
    );
    assert_eq!(
        run(&spec).status,
        ExitKind::Code(0),
        "standard input is empty, not a terminal"
    );
    let log = log(&spec);
    let mut lines = log.lines();
    for name in ["SigBlk", "SigIgn"] {
        let (found, mask) = lines.next().unwrap().split_once(":\t").unwrap();
        // Above the standard signals the C library keeps two for itself.
        let standard = u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff;
        assert_eq!((found, standard), (name, 0));
    }
    assert_eq!(
        lines.next().map(PathBuf::from),
        Some(project.root().canonicalize().unwrap())
    );
    // 3 is `ls` reading the folder: neither the lifeline nor a lock is handed on.
    assert_eq!(lines.collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

#[test]
fn what_cannot_start_says_why() {
    let project = Project::empty();
    let failed = |spec: &RunSpec| match run(spec).status {
        ExitKind::LaunchFailed(why) => why,
        other => panic!("{other:?}"),
    };
    let mut spec = spec_of(&project, "missing", "");
    spec.argv = vec!["no-such-trainer".into()];
    let why = failed(&spec);
    assert!(
        why.contains("`no-such-trainer`") && why.contains("No such file"),
        "{why}"
    );

    let mut spec = spec_of(&project, "nowhere", "true");
    spec.cwd = "/no/such/folder".into();
    assert!(failed(&spec).contains("/no/such/folder"));

    let mut spec = spec_of(&project, "empty", "");
    spec.argv.clear();
    assert!(failed(&spec).contains("empty"));

    let mut spec = spec_of(&project, "locks", "true");
    spec.devices = vec!["../escape".into()];
    assert!(failed(&spec).contains("../escape"));
}

#[test]
fn a_program_is_looked_up_on_the_trainers_own_path() {
    let project = Project::empty();
    let bin = project.root().join("bin");
    tprimat::files::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/echo", bin.join("my-trainer")).unwrap();
    let mut spec = spec_of(&project, "path", "");
    spec.argv = vec!["my-trainer".into(), "hello".into()];
    spec.env = BTreeMap::from([("PATH".to_owned(), bin.to_string_lossy().into_owned())]);
    assert_eq!(run(&spec).status, ExitKind::Code(0));
    assert_eq!(log(&spec), "hello\n");
}

/// Who updates tprimat while a build goes on replaces its file.
#[test]
fn a_build_goes_on_whose_file_is_replaced() {
    let project = Project::new(&ONE_RUN.replace("repeats = 1", "repeats = 2"));
    let tprimat = project.path("tprimat");
    fs::copy(TPRIMAT, &tprimat).unwrap();
    let trainer = project.read("trainer.sh");
    project.write(
        "trainer.sh",
        &format!("rm -f \"$TPRIMAT_PROJECT_DIR/tprimat\"\n{trainer}"),
    );
    let mut build = project.command(&tprimat.to_string_lossy());
    let built = Ran::from(build.arg("build").output().unwrap());
    built.ends_with(0);
    assert!(!tprimat.exists());
    assert_eq!(project.launches(), 2);
}

/// A controller of Slurm that is killed may start a job again that has run.
#[test]
fn a_job_that_is_started_twice_ends_well_only_where_its_run_has_ended() {
    let project = Project::empty();
    let dir = project.path("run");
    project
        .write("run/claim", "77")
        .write("run/spec.json", "{}");
    let started = |job: &str| {
        let mut command = Command::new(TPRIMAT);
        command.arg(RUN_ARGUMENT).arg(&dir).arg("job");
        command.env("SLURM_JOB_ID", job).output().unwrap()
    };
    let again = started("77");
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        !again.status.success() && said.contains("a second time"),
        "{said}"
    );
    assert!(started("78").status.success(), "the run is another job's");
    let exit = json!({
        "status": {"code": 0}, "started_at": 1.0, "ended_at": 2.0, "waited_seconds": 0.0, "survivors": 0,
    });
    project.write("run/exit.json", &exit.to_string());
    assert!(started("77").status.success());
}

#[test]
fn a_node_that_cannot_begin_says_so_to_the_nodes_that_wait_for_it() {
    let project = Project::empty();
    let dir = project.path("run");
    project
        .write("run/spec.json", "{")
        .write("run/node-1/supervisor.log", "");
    let mut node = Command::new(TPRIMAT)
        .arg(RUN_ARGUMENT)
        .arg(&dir)
        .arg("node")
        .env("SLURM_JOB_ID", "77")
        .env("SLURM_NODEID", "1")
        .env("SLURMD_NODENAME", "n2")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // An empty environment, as the conductor sends it.
    let frame = [&2_u64.to_le_bytes()[..], b"{}"].concat();
    std::io::Write::write_all(&mut node.stdin.take().unwrap(), &frame).unwrap();
    assert!(node.wait().unwrap().success());
    let said = project.read("run/node-1/exit.json");
    assert!(
        said.contains("launch_failed") && said.contains("n2: cannot read"),
        "{said}"
    );
}

#[test]
fn a_run_folder_in_use_is_refused() {
    let project = Project::empty();
    let spec = spec_of(&project, "twice", "sleep 60");
    let running = start(&spec);
    assert!(tprimat::run::start(&spec, Path::new(TPRIMAT)).is_err());
    running.kill();
    running.wait().unwrap();
}

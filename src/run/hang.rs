//! Notices a trainer that makes no more steps, and looks where its processes are.

mod pace;

use std::{
    collections::BTreeMap,
    fs, mem,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    hang::pace::{Pace, StepLine},
    spec::{Hang, RunSpec},
};
use crate::growing::Tail;
use crate::{
    files::{Durability, write_atomically},
    host::{ask_while, last_line, which},
    logs::Live,
};

/// Where the stacks of a run that hung are, in its folder and among an attempt's outputs.
pub(crate) const STACKS: &str = "stacks.txt";

/// How often the log is read, at most: seldom enough to disturb no measurement.
const LOOK: Duration = Duration::from_secs(5);
/// The supervisor comes by ten times a second. Where it comes later than this, it did not run: its
/// job was suspended or the host slept, and the trainer did not run either.
const TICK: Duration = Duration::from_secs(1);
/// What py-spy may take for one process and for all of them, and for how many it is asked.
const PATIENCE: Duration = Duration::from_secs(10);
const ALL: Duration = Duration::from_secs(60);
const PROCESSES: usize = 16;
/// Lines of a stack that are evidence: its innermost frames.
const FRAMES: usize = 3;

pub(crate) struct HangWatch {
    pace: Pace,
    tail: Tail,
    live: Live,
    /// When the supervisor came by last.
    ticked: Instant,
    /// Time since the last look in which the run could make steps.
    passed: Duration,
    look: Duration,
}

impl HangWatch {
    /// `None`: nobody asks.
    pub fn of(spec: &RunSpec, log: &Path) -> Option<Self> {
        Self::new(spec.hang.as_ref()?, log, Instant::now())
    }

    fn new(hang: &Hang, log: &Path, now: Instant) -> Option<Self> {
        let least = Duration::try_from_secs_f64(hang.least_seconds).ok()?;
        Some(Self {
            pace: Pace::new(hang),
            tail: Tail::new(log),
            live: Live::new(&hang.log),
            ticked: now,
            passed: Duration::ZERO,
            look: LOOK.min(least / 4),
        })
    }

    /// In a sentence why the run hangs; `None`: it does not, or nothing can be said of it.
    pub fn look(&mut self, now: Instant) -> Option<String> {
        self.passed += now.saturating_duration_since(self.ticked).min(TICK);
        self.ticked = now;
        if self.passed < self.look {
            return None;
        }
        let passed = mem::take(&mut self.passed);
        let (live, mut lines) = (&mut self.live, Vec::new());
        // A log that cannot be read now is read at the next look.
        let _ = self.tail.poll(&mut |line| {
            lines.extend(live.feed(line.as_bytes()).map(|step| StepLine {
                step: step.step,
                seconds: step.step_time_seconds,
            }));
        });
        self.pace.look(passed.as_secs_f64(), &lines);
        self.pace.verdict()
    }
}

/// Where py-spy is if it was installed with the run's Python: beside that interpreter, which is
/// looked up in PATH where it is a name without a folder.
fn beside(python: &str, env: &BTreeMap<String, String>) -> Option<PathBuf> {
    let python = match python.contains('/') {
        true => PathBuf::from(python),
        false => which(python, env)?,
    };
    let folder = python.parent().filter(|folder| folder.is_absolute())?;
    Some(folder.join("py-spy"))
}

/// Writes the stacks of a run's Python processes into its folder, and answers with their innermost
/// frames, or with why there are none. `is_told_to_end`: is the run to end, whatever its stacks are?
pub(crate) fn stacks(
    spec: &RunSpec,
    pids: &[i32],
    is_told_to_end: &dyn Fn() -> bool,
) -> Vec<String> {
    let begun = Instant::now();
    let is_over = || is_told_to_end() || begun.elapsed() >= ALL;
    let env = spec.host_env();
    // A container's Python is a path inside it, and py-spy looks in from the host.
    let python = spec.env.get("TPRIMAT_PYTHON");
    let python = python.filter(|_| spec.container.is_none());
    let beside = python.and_then(|python| beside(python, env));
    let Some(program) = which("py-spy", env).or(beside.filter(|path| path.is_file())) else {
        return vec![
            "py-spy, which would show where it hangs, is not installed on this host".into(),
        ];
    };
    let is_python = |pid: &&i32| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| {
            program
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("python"))
        })
    };
    let (mut whole, mut said) = (String::new(), Vec::new());
    let pythons = pids.iter().filter(is_python).take(PROCESSES);
    for pid in pythons.take_while(|_| !is_over()) {
        let pid = pid.to_string();
        let command = duct::cmd(&program, ["dump", "--pid", &pid]).full_env(env);
        let patience = || match is_over() {
            true => Duration::ZERO,
            false => PATIENCE,
        };
        let asked = ask_while(&command, &patience).map_err(|why| why.to_string());
        let read = asked.and_then(|output| match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(last_line(&output.stderr)),
        });
        let text = match read {
            Ok(text) => text,
            Err(why) => {
                said.push(format!("py-spy could not read process {pid}: {why}"));
                continue;
            }
        };
        let frames: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("    "))
            .take(FRAMES)
            .map(str::trim)
            .collect();
        said.push(format!("process {pid} was in {}", frames.join(", below ")));
        whole.push_str(&text);
        whole.push('\n');
    }
    if !whole.is_empty() {
        let _ = write_atomically(&spec.dir.join(STACKS), whole.as_bytes(), Durability::Plain);
    }
    said
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Write};

    use super::*;
    use crate::mock;

    const SECOND: Duration = Duration::from_secs(1);

    /// A run of 1000 steps whose log is written to here, and whose clock goes as the test wants.
    struct Simulated {
        folder: tempfile::TempDir,
        watch: HangWatch,
        now: Instant,
    }

    impl Simulated {
        /// It has made 20 steps, one every 10 s.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let now = Instant::now();
            let hang = Hang {
                factor: 10.0,
                least_seconds: 100.0,
                steps: 1000,
                log: crate::logs::LogSection::named("tprimat"),
            };
            let mut run = Self {
                watch: HangWatch::new(&hang, &folder.path().join("log"), now).unwrap(),
                folder,
                now,
            };
            for step in 1..=20 {
                let path = run.folder.path().join("log");
                let mut log = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .unwrap();
                writeln!(log, "{{\"event\":\"step\",\"step\":{step}}}").unwrap();
                assert_eq!(run.pass(10), None);
            }
            run
        }

        /// Seconds in which the supervisor comes by as it does.
        fn pass(&mut self, seconds: u32) -> Option<String> {
            for _ in 0..10 * seconds {
                self.now += SECOND / 10;
                let why = self.watch.look(self.now);
                if why.is_some() {
                    return why;
                }
            }
            None
        }
    }

    /// A program that sleeps and whose name is as of a Python, so that its stacks are asked for.
    struct Python(std::process::Child);

    impl Python {
        fn start(folder: &Path) -> Self {
            let path = folder.join("python-stand-in");
            let sleep = which("sleep", &std::env::vars().collect()).unwrap();
            mock::program(&path, fs::read(sleep).unwrap());
            Self(std::process::Command::new(path).arg("300").spawn().unwrap())
        }
    }

    impl Drop for Python {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_debugger_that_hangs_holds_up_neither_the_end_of_a_run_nor_who_asks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let pythons: Vec<Python> = (0..3).map(|_| Python::start(folder.path())).collect();
        let pids: Vec<i32> = pythons.iter().map(|p| p.0.id().cast_signed()).collect();
        let spy = folder.path().join("py-spy");
        mock::program(&spy, "#!/bin/sh\nexec sleep 300\n");
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        let spec: RunSpec = serde_json::from_value(serde_json::json!({
            "run_id": "run", "dir": folder.path(), "argv": ["true"], "cwd": "/", "timeout_seconds": null,
            "grace_seconds": 1.0, "devices": [], "exclusive": true, "lock_dir": "/tmp", "watched": [], "meta": null,
        }))
        .unwrap();
        let spec = RunSpec {
            env: [("PATH".to_owned(), path)].into(),
            ..spec
        };
        let begun = Instant::now();
        let is_told = || begun.elapsed() > SECOND / 2;
        let said = stacks(&spec, &pids, &is_told);
        assert!(begun.elapsed() < 5 * SECOND, "{:?}", begun.elapsed());
        assert!(
            said.len() == 1 && said[0].contains("could not read"),
            "{said:?}"
        );
    }

    #[test]
    fn py_spy_is_looked_for_beside_the_python_of_the_host_and_never_in_the_working_folder() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python3");
        mock::program(&python, "");
        let path = folder.path().display().to_string();
        let env = BTreeMap::from([("PATH".to_owned(), path)]);
        let there = Some(folder.path().join("py-spy"));
        assert_eq!(beside("python3", &env), there);
        assert_eq!(beside(python.to_str().unwrap(), &BTreeMap::new()), there);
        for nowhere in ["python3", "", "bin/python3"] {
            assert_eq!(beside(nowhere, &BTreeMap::new()), None, "{nowhere}");
        }
    }

    #[test]
    fn a_run_without_steps_hangs() {
        let mut run = Simulated::new();
        assert_eq!(run.pass(90), None);
        let why = run.pass(60).unwrap();
        assert!(why.contains("after step 20"), "{why}");
    }

    #[test]
    fn time_in_which_the_supervisor_did_not_run_is_no_silence() {
        let mut run = Simulated::new();
        // The job was suspended, or the laptop slept.
        for _ in 0..20 {
            run.now += 3600 * SECOND;
            assert_eq!(run.pass(1), None);
        }
    }
}

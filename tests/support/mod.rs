//! A project of stub trainers in a folder of its own, and tprimat run on it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(
    clippy::disallowed_methods,
    reason = "plays the user, who edits files as users do"
)]

#[path = "../../crates/job/src/samples/dataset_for_tests.rs"]
pub mod dataset;
pub mod mayhem;
#[path = "../../src/mock.rs"]
pub mod mock;
pub mod oracle;
pub mod tasks;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

pub const TPRIMAT: &str = env!("CARGO_BIN_EXE_tprimat");

/// One tiny shape, one device, six steps.
pub const CONFIG: &str = r"hardware:
  platforms:
    cpu: { vendor: cpu, num_gpus: 1 }
models:
  tiny: &tiny
    architecture: llama
    num_layers: 2
    hidden_size: 8
    ffn_hidden_size: 16
    num_attention_heads: 2
    num_kv_heads: 2
    vocab_size: 32
  wide: { <<: *tiny, ffn_hidden_size: 32 }
training:
  data: { micro_batch_size: 1, global_batch_size: 2, seq_length: 16 }
  duration: { train_iters: 6 }
  optimizer: { type: adamw, learning_rate: 1.0e-3, min_learning_rate: 1.0e-4, warmup_steps: 2 }
  precision: { default: fp32 }
parallelism:
  single: { num_gpus: 1, DP: 1 }
frameworks:
  cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] }
benchmarking:
  warmup: { skip_steps: 1 }
  runs: { cooldown_seconds: 0 }
";

/// One cell, one run.
pub const ONE_RUN: &str = r#"[matrix]
name = "one"
platform = "cpu"
framework = "cmd"
model = "tiny"
parallelism = "single"
repeats = 1
"#;

/// Prints the same log at every run of the same job, and says in the project folder that it was
/// launched.
pub const TRAINER: &str = r#"
echo "$TPRIMAT_RUN_ID" >> "$TPRIMAT_PROJECT_DIR/launches"
job() { [[ $(<"$TPRIMAT_JOB") =~ \"$1\":\ *([0-9]+) ]] && echo "${BASH_REMATCH[1]}"; }
seed=$(job seed)
echo '{"event":"start","schema":"tprimat.events/1","trainer":"stub","num_parameters":'"$(job num_parameters)"',
"effective":{"seed":'"$seed"',"seq_length":'"$(job seq_length)"',"global_batch_size":'"$(job global_batch_size)"'}}' | tr -d '\n'
echo
for step in 1 2 3 4 5 6; do
    sleep 0.005
    echo '{"event":"step","step":'$step',"step_time_seconds":0.0'$seed$step',"loss":'$((9 - step))'.5,"tokens":32}'
done
echo '{"event":"end","status":"ok","steps":6}'
"#;

pub struct Project {
    folder: tempfile::TempDir,
    root: PathBuf,
    /// What every program of this project gets beside the usual variables.
    pub environment: Vec<(&'static str, String)>,
}

/// What a finished tprimat leaves its caller.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("tprimat speaks UTF-8");
        Self {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl Ran {
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// All of stdout, which must be one JSON value.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }
}

impl Project {
    /// An empty folder.
    pub fn empty() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("tprimat-test-")
            .tempdir()
            .unwrap();
        let project = Self {
            root: folder.path().join("project"),
            folder,
            environment: Vec::new(),
        };
        fs::create_dir(&project.root).unwrap();
        project
    }

    pub fn new(matrix: &str) -> Self {
        let project = Self::empty();
        project
            .write("config.yaml", CONFIG)
            .write("matrix.toml", matrix)
            .write("trainer.sh", TRAINER);
        project
    }

    /// Everything of the test is below it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    #[track_caller]
    pub fn remove(&self, name: &str) -> &Self {
        fs::remove_file(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        self
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Replaces the one place of a file that says `old`.
    #[track_caller]
    pub fn edit(&self, name: &str, old: &str, new: &str) -> &Self {
        let text = self.read(name);
        assert_eq!(text.matches(old).count(), 1, "`{old}` in {name}:\n{text}");
        self.write(name, &text.replace(old, new))
    }

    /// Any program, in the project folder, with nothing of this test's environment.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.root())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder())
            .env("COLUMNS", "120")
            .env("TPRIMAT_LOCK_DIR", self.folder().join("device-locks"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Tests may run in the background of a script, where SIGINT is ignored, and children
        // inherit that. SAFETY: `sigaction` is async-signal-safe.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, heed_interrupts) };
        command
    }

    pub fn tprimat(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(TPRIMAT);
        command.args(arguments);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.tprimat(arguments).output().unwrap().into()
    }

    /// How many trainers were started so far.
    pub fn launches(&self) -> usize {
        fs::read_to_string(self.path("launches"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// Live processes whose environment or arguments name this project: an eye of its own, not
    /// tprimat's.
    pub fn processes(&self) -> Vec<(i32, String)> {
        let mark = self
            .folder()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .as_bytes();
        let pids = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        let of = |pid: i32, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let names = |bytes: Vec<u8>| bytes.windows(mark.len()).any(|window| window == mark);
        pids.filter(|pid| names(of(*pid, "environ")) || names(of(*pid, "cmdline")))
            .map(|pid| {
                (
                    pid,
                    String::from_utf8_lossy(&of(pid, "cmdline")).replace('\0', " "),
                )
            })
            .collect()
    }

    /// Names in a folder of the project, sorted; none where there is no folder.
    pub fn names_in(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .map(|e| e.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Random numbers, the same for the same seed: a seed printed is a failure found again.
pub struct Dice(pub u64);

impl Dice {
    /// From 0, less than `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.roll(items.len())]
    }
}

/// Puts other bytes in the place of a file of a cache, which its owner cannot write to either.
pub fn overwrite(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Files below a folder.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files_below(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// Takes all room that is left on the disk of this file.
pub fn fill(path: &Path) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    for size in [1 << 16, 1 << 12] {
        while std::io::Write::write_all(&mut file, &vec![0; size]).is_ok() {}
    }
    Ok(())
}

#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn heed_interrupts() -> std::io::Result<()> {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the default action runs no code of ours.
    unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) }?;
    Ok(())
}

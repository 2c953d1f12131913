//! A project of two tiny models, a few milliseconds a run. Tests change its files and ask which
//! tasks are stale, or ran.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;
use tprimat::{
    cache::{Cache, TaskKind},
    digest::Digest,
    files::{self, Durability},
};

use super::Project;

pub const SMALL: &str = "cpu/cmd/small/single";
pub const LARGE: &str = "cpu/cmd/large/single";

pub const CONFIG: &str = r#"experiment:
  name: staleness
  description: the first words

hardware:
  platforms:
    cpu: { vendor: cpu, num_gpus: 1, env: { OF_PLATFORM: "0" } }

models:
  small: { architecture: llama, num_layers: 1, hidden_size: 8, ffn_hidden_size: 16, num_attention_heads: 2, vocab_size: 32 }
  large: { architecture: llama, num_layers: 2, hidden_size: 8, ffn_hidden_size: 16, num_attention_heads: 2, vocab_size: 64, norm_eps: 1e-5 }

training:
  data: { micro_batch_size: 1, global_batch_size: 1, seq_length: 64 }
  duration: { train_iters: 4 }
  optimizer: { type: adamw, learning_rate: 1e-3 }
  precision: { default: fp32 }

parallelism:
  single: { num_gpus: 1, DP: 1 }

frameworks:
  cmd: { command: "bash train.sh", inputs: [train.sh], share: true, env: { OF_FRAMEWORK: "0" }, flavor: 0 }

benchmarking:
  warmup: { skip_steps: 1 }
  runs: { default_num_runs: 2, cooldown_seconds: 0 }
  enhanced_metrics:
    cloud_costs:
      cpu: { per_gpu_hour: 1.00, currency: EUR, source: made up }
"#;

pub const MATRIX: &str = r#"[matrix]
name = "m"
platform = "cpu"
framework = "cmd"
model = ["small", "large"]
parallelism = "single"
repeats = 2
"#;

pub const RECIPE: &str = include_str!("../../recipes/cmd/recipe.toml");
pub const TEMPLATE: &str = include_str!("../../templates/cmd.sh.j2");

/// Prints the events of a run. Launch n takes n × 10 µs a step longer, so no two logs are the same.
/// It sources `mood`, a file that no key covers: a test can change through it what a trainer
/// does behind tprimat's back.
pub const TRAINER: &str = r#"echo "$TPRIMAT_RUN_ID" >> "$TPRIMAT_PROJECT_DIR/launches"
n=0
while read -r run; do n=$((n + 1)); [[ $run != "$TPRIMAT_RUN_ID" ]] || break; done < "$TPRIMAT_PROJECT_DIR/launches"
job=$(<"$TPRIMAT_JOB")
[[ $job =~ '"seq_length": '([0-9]+) ]] && seq=${BASH_REMATCH[1]}
[[ $job =~ '"vocab_size": '([0-9]+) ]] && vocab=${BASH_REMATCH[1]}
[[ $job =~ '"train_iters": '([0-9]+) ]] && steps=${BASH_REMATCH[1]}
[[ ! -f $TPRIMAT_PROJECT_DIR/mood ]] || . "$TPRIMAT_PROJECT_DIR/mood"
printf '{"event":"start","schema":"tprimat.events/1","effective":{"seq_length":%d,"global_batch_size":1,"num_gpus":1}}\n' "$seq"
for ((s = 1; s <= steps; s++)); do
    printf '{"event":"step","step":%d,"step_time_seconds":0.0%d%03d,"loss":%d.5}\n' $s $((9 - s % 8)) $n $((9 - s % 8))
done
printf '{"event":"end","status":"ok","steps":%d}\n' "$steps"
"#;

/// What `mood` may do to the trainings of the model `small`.
pub const IMPORT_ERROR: &str = "if [[ $vocab == 32 ]]; then echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1; fi";
pub const UNKNOWN_ERROR: &str =
    "if [[ $vocab == 32 ]]; then echo 'something odd: the connection was lost' >&2; exit 1; fi";
pub const WRONG_LENGTH: &str = "if [[ $vocab == 32 ]]; then seq=8192; fi";

/// A run of 0.2 s a step beside which NVML's sampler, mocked, sees `$seen` on its device; for every
/// training.
pub const SAMPLED: &str = r#"
header='{"schema":"tprimat.telemetry/1","source":"nvml","interval_seconds":0.1,"devices":["gpu-0"]}'
{
    echo "$header"
    for ((t = 0; t <= 2 * steps + 2; t++)); do
        printf '{"time":%d.%d,"devices":[%s]}\n' $((1000 + t / 10)) $((t % 10)) "$seen"
    done
} > "$TPRIMAT_RUN_DIR/telemetry.jsonl"
printf '{"event":"start","schema":"tprimat.events/1","effective":{"seq_length":%d,"global_batch_size":1,"num_gpus":1}}\n' "$seq"
for ((s = 1; s <= steps; s++)); do
    printf '{"event":"step","step":%d,"step_time_seconds":0.200%03d,"time":%d.%d,"loss":%d.5}\n' \
        $s $n $((1000 + s / 5)) $((2 * s % 10)) $((9 - s % 8))
done
printf '{"event":"end","status":"ok","steps":%d}\n' "$steps"
exit 0
"#;
/// Another process on the device.
pub const SHARED: &str = r#"seen='{"other_processes":[{"pid":4711,"name":"python3"}]}'"#;

/// One task of a plan.
#[derive(Clone, Debug)]
pub struct Planned {
    pub state: String,
    pub reason: String,
}

pub struct Built {
    pub code: i32,
    /// The tasks that ran.
    pub ran: BTreeSet<String>,
    /// What `--json` says.
    pub says: Value,
    pub stderr: String,
}

impl Project {
    /// Two models, two repeats of each.
    pub fn of_two() -> Self {
        let project = Self::empty();
        for (name, text) in [
            ("config.yaml", CONFIG),
            ("matrix.toml", MATRIX),
            ("train.sh", TRAINER),
            ("templates/cmd.sh.j2", TEMPLATE),
            ("recipes/cmd/recipe.toml", RECIPE),
            ("recipes/cmd/helper.sh", "# helps\n"),
        ] {
            project.write(name, text);
        }
        project
    }

    /// The same, built once.
    pub fn built() -> Self {
        let project = Self::of_two();
        assert_eq!(project.build(&[]).code, 0);
        project
    }

    /// The same bytes in a new file with a new time.
    pub fn touch(&self, name: &str) -> &Self {
        let bytes = fs::read(self.path(name)).unwrap();
        files::write_atomically(&self.path(name), &bytes, Durability::Plain).unwrap();
        self
    }

    /// Moves on to a copy of the whole folder under another path; the old one goes.
    pub fn move_to_copy(&mut self) {
        let to = self.root.with_file_name(format!(
            "{}x",
            self.root.file_name().unwrap().to_string_lossy()
        ));
        copy(&self.root, &to);
        fs::remove_dir_all(&self.root).unwrap();
        self.root = to;
    }

    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["--json"]].concat()).json()
    }

    #[track_caller]
    pub fn plan(&self, arguments: &[&str]) -> BTreeMap<String, Planned> {
        let plan = self.json(&[&["plan"], arguments].concat());
        let text = |task: &Value, key: &str| task[key].as_str().unwrap().to_owned();
        let tasks = plan["tasks"]
            .as_array()
            .unwrap_or_else(|| panic!("no plan: {plan:#}"));
        tasks
            .iter()
            .map(|t| {
                (
                    text(t, "task"),
                    Planned {
                        state: text(t, "state"),
                        reason: text(t, "reason"),
                    },
                )
            })
            .collect()
    }

    #[track_caller]
    pub fn stale(&self, arguments: &[&str]) -> BTreeSet<String> {
        self.plan(arguments)
            .into_iter()
            .filter(|(_, t)| t.state == "stale")
            .map(|(id, _)| id)
            .collect()
    }

    /// Builds, with an eye on every task that runs.
    #[track_caller]
    pub fn build(&self, arguments: &[&str]) -> Built {
        let events = self.folder.path().join("events.jsonl");
        let _ = fs::remove_file(&events);
        let mut all = vec![
            "build",
            "--json",
            "-j",
            "8",
            "--events",
            events.to_str().unwrap(),
        ];
        all.extend(arguments);
        let built = self.run(&all);
        let says = built.json();
        let text = fs::read_to_string(&events).unwrap_or_default();
        let events = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let ran = events
            .filter(|e| e["event"] == "task_started")
            .map(|e| e["task"].as_str().unwrap().to_owned());
        Built {
            code: built.code.expect("no signal"),
            ran: ran.collect(),
            says,
            stderr: built.stderr,
        }
    }

    /// Exactly the tasks that match `globs` are stale, a build runs exactly `globs` of `ran`, and
    /// then nothing is stale and nothing runs any more.
    #[track_caller]
    pub fn expect(&self, stale: &[&str], ran: &[&str]) {
        let plan = self.plan(&[]);
        let matching = |globs: &[&str]| -> BTreeSet<String> {
            let mut set = globset::GlobSetBuilder::new();
            for glob in globs {
                set.add(globset::Glob::new(glob).unwrap());
            }
            let set = set.build().unwrap();
            plan.keys().filter(|id| set.is_match(id)).cloned().collect()
        };
        let is_stale: BTreeSet<String> = plan
            .iter()
            .filter(|(_, t)| t.state == "stale")
            .map(|(id, _)| id.clone())
            .collect();
        assert_eq!(is_stale, matching(stale), "stale: {plan:#?}");
        let before = self.launches();
        let built = self.build(&[]);
        let expected = matching(ran);
        assert_eq!(
            (built.code, &built.ran),
            (0, &expected),
            "ran: {}",
            built.stderr
        );
        let trained = expected
            .iter()
            .filter(|id| id.starts_with("train "))
            .count();
        assert_eq!(self.launches() - before, trained, "launches");
        self.expect_nothing();
    }

    /// Everything is fresh, and a build runs nothing.
    #[track_caller]
    pub fn expect_nothing(&self) {
        let before = self.launches();
        assert_eq!(self.stale(&[]), BTreeSet::new());
        // As people call it: what the last build noted may answer.
        let built = self.run(&["build", "--json"]).ends_with(0);
        assert_eq!(built.json()["ran"], 0, "{built:?}");
        assert_eq!(self.launches(), before);
    }

    pub fn cache(&self) -> Cache {
        Cache::open(&self.path("cache")).unwrap()
    }

    /// Digest of what a task left under `name` when it last ran.
    #[track_caller]
    pub fn output(&self, kind: TaskKind, task: &str, name: &str) -> Digest {
        let last = self
            .cache()
            .last_of(kind, task)
            .unwrap_or_else(|| panic!("{task} never ran"));
        last.outputs
            .iter()
            .find(|o| o.name == name)
            .unwrap_or_else(|| panic!("{task} left no {name}"))
            .digest
    }

    /// Changes the last byte of an object of the cache, as a bad disk does.
    pub fn damage(&self, digest: Digest) {
        let hex = digest.to_string();
        let path = self.path(&format!("cache/objects/{}/{}", &hex[..2], &hex[2..]));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }

    /// Deletes an object behind tprimat's back.
    pub fn lose(&self, digest: Digest) {
        let hex = digest.to_string();
        self.remove(&format!("cache/objects/{}/{}", &hex[..2], &hex[2..]));
    }
    #[track_caller]
    pub fn lose_log(&self, run: &str) -> &Self {
        self.lose(self.output(TaskKind::Train, &format!("train {run}"), "log"));
        self
    }
    #[track_caller]
    pub fn lose_result(&self, run: &str) -> &Self {
        self.lose(self.output(TaskKind::Parse, &format!("parse {run}"), "result.json"));
        self
    }
    #[track_caller]
    pub fn lose_summary(&self, cell: &str) -> &Self {
        self.lose(self.output(
            TaskKind::Aggregate,
            &format!("aggregate {cell}"),
            "summary.json",
        ));
        self
    }
}

fn copy(from: &Path, to: &Path) {
    files::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            files::write_atomically(&target, &fs::read(&path).unwrap(), Durability::Plain).unwrap();
        }
    }
}

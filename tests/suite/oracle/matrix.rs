//! A matrix of stub trainers that print three formats: built, compared, published, gated, made slower
//! and gated again.

use std::collections::BTreeMap;

use super::{
    flat::{Form, Lines, in_sentences},
    held::{Sections, hold},
    imports::{COMPARISON, Compared},
};
use crate::support::{Project, Ran};

const CONFIG: &str = r#"hardware:
  platforms:
    cpu: { vendor: cpu, num_gpus: 1 }
models:
  tiny: &tiny { architecture: llama, num_layers: 2, hidden_size: 8, ffn_hidden_size: 16, num_attention_heads: 2, num_kv_heads: 2, vocab_size: 32 }
  wide: { <<: *tiny, ffn_hidden_size: 32 }
training:
  data: { micro_batch_size: 1, global_batch_size: 4, seq_length: 64 }
  duration: { train_iters: 40 }
  optimizer: { type: adamw, learning_rate: 1.0e-3, min_learning_rate: 1.0e-3 }
  precision: { default: fp32 }
parallelism:
  single: { num_gpus: 1, DP: 1 }
frameworks:
  cmd: { command: [bash, train.sh, events], inputs: [train.sh, pace] }
benchmarking:
  warmup: { skip_steps: 1 }
  runs: { cooldown_seconds: 0 }
  enhanced_metrics:
    cloud_costs:
      cpu: { per_gpu_hour: 1.25, currency: EUR, source: made up }
"#;

const MATRIX: &str = r#"[matrix]
name = "held"
platform = "cpu"
framework = ["cmd", "lines", "bars"]
model = ["tiny", "wide"]
parallelism = "single"
repeats = 3

[matrix.axes.micro]
path = "training.data.micro_batch_size"
values = [1, 2, 4]

[[exclude]]
where = { framework = ["lines", "bars"], micro = 2 }
reason = "two of three are enough"
"#;

/// A framework that prints a format of others, and does not take micro-batches of four.
const RECIPE: &str = r#"id = "ID"
name = "a stub"
vendors = ["cpu"]
[launch]
templates = ["ID.sh.j2"]
command = ["bash", "ID.sh"]
reads_job = true
[lock]
facts = ["count"]
[log]
format = "FORMAT"
[[unsupported]]
when = { "data.micro_batch_size" = 4 }
reason = "micro-batches of four are too many"
"#;

/// Prints what a trainer of a format prints, all at once, so that the load of the host is in no date.
/// A step takes as long as format, model, micro-batch, `pace` and the number of earlier runs say, to
/// the microsecond; the first three take longer. All steps together are under a second, which is less
/// than the clock can refute.
const TRAINER: &str = r#"
format=$1 here=$TPRIMAT_PROJECT_DIR job=$(<"$TPRIMAT_JOB") LC_ALL=C
number() { [[ $job =~ \"$1\":\ *([0-9]+) ]] && echo "${BASH_REMATCH[1]}"; }
length=$(number seq_length) micro=$(number micro_batch_size) width=$(number ffn_hidden_size)
mkdir -p "$here/runs"
runs=("$here/runs/$format-$width-$micro-"*)
[[ -e ${runs[0]} ]] && n=${#runs[@]} || n=0
echo > "$here/runs/$format-$width-$micro-$n"
if [[ $format$width == bars32 ]]; then
    echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.' >&2
    exit 1
fi
case $format in events) base=$(( 100 * $(<"$here/pace") ));; lines) base=12000;; bars) base=9500;; esac
case $width$micro in 161) share=100;; 162) share=88;; 164) share=93;; *) share=$(( 120 + micro ));; esac
out=$TPRIMAT_RUN_DIR/said
say() { printf "$@" >> "$out"; }
case $format in
events) say '{"event":"start","schema":"tprimat.events/1","effective":{"seq_length":%d,"global_batch_size":4,"num_gpus":1,"precision":"fp32","optimizer":"adamw","data":"random"}}\n' "$length" ;;
lines)
    # It takes another length than it was asked for, with the wide model.
    [[ $width == 32 ]] && length=8192
    say -- '------------------------ arguments ------------------------\n'
    say '  global_batch_size ............................... 4\n  micro_batch_size ................................ %d\n' "$micro"
    say '  seq_length ...................................... %d\n  world_size ...................................... 1\n' "$length"
    say -- '-------------------- end of arguments ---------------------\n' ;;
bars) say '[titan] Trainer is initialized with local batch size %d, global batch size 4, gradient accumulation steps %d, sequence length %d, total steps 40 (warmup 0)\n' "$micro" $((4 / micro)) "$length"
    say '[titan] Building 1-D device mesh with ["dp_shard"], [1]\n' ;;
esac
for ((s = 1; s <= 40; s++)); do
    us=$(( base * share / 100 + (n * 137) % 400 + (s * 7919) % 211 ))
    ((s <= 3)) && us=$(( us * (5 - s) ))
    loss=$(( 9000 - 100 * s ))
    case $format in
    events) say '{"event":"step","step":%d,"step_time_seconds":0.%06d,"loss":%d.%03d,"tokens":256}\n' $s $us $((loss / 1000)) $((loss % 1000)) ;;
    lines) say ' iteration %8d/      40 | consumed samples: %12d | elapsed time per iteration (ms): %d.%03d | learning rate: 1.000000E-03 | global batch size:     4 | lm loss: %d.%03dE+00 | grad norm: 1.500 | number of skipped iterations:   0 | number of nan iterations:   0 |\n' $s $((4 * s)) $((us / 1000)) $((us % 1000)) $((loss / 1000)) $((loss % 1000)) ;;
    bars) say '[titan] step: %2d  loss: %2d.%03d0  grad_norm:  1.5000  memory:  1.25GiB(1.58%%)  tps: %d  tflops: 0.01  mfu: 0.00%%\n' $s $((loss / 1000)) $((loss % 1000)) $((256000000 / us)) ;;
    esac
done
[[ $format == events ]] && say '{"event":"end","status":"ok","steps":40}\n'
cat "$out"
"#;

/// The fields of a published result.
const PUBLISHED: Form = Form {
    dropped: &[
        "schema_version",
        "key",
        "timestamp",
        "environment",
        "provenance",
        "attestation",
        "contract",
        "telemetry",
        "device_name",
        "attempt",
        "show",
        "--attempts",
        "host",
        "hosts",
        "started_at",
        "ended_at",
        "seen_at",
        "clock",
        "unchecked",
        "title",
        "unit",
        "higher_is_better",
        "basis",
        "notes",
    ],
    ..COMPARISON
};

const GATE: Form = Form {
    dropped: &[
        "schema_version",
        "notes",
        "baseline",
        "measured_at",
        "apart_seconds",
        "labels",
    ],
    ..COMPARISON
};

fn project() -> Project {
    let project = Project::empty();
    project
        .write("config.yaml", CONFIG)
        .write("matrix.toml", MATRIX);
    project.write("train.sh", TRAINER).write("pace", "100");
    for (id, format) in [("lines", "megatron"), ("bars", "torchtitan")] {
        let recipe = RECIPE.replace("ID", id).replace("FORMAT", format);
        project.write(&format!("recipes/{id}/recipe.toml"), &recipe);
        let script = format!(
            "exec bash \"$TPRIMAT_RECIPE_DIR/train.sh\" {id} # {{{{ job.data.seq_length }}}}\n"
        );
        project.write(&format!("recipes/{id}/{id}.sh.j2"), &script);
        project.write(&format!("recipes/{id}/train.sh"), TRAINER);
    }
    project
}

fn code(ran: &Ran) -> String {
    ran.code.unwrap().to_string()
}

/// The states of trainings, and how many tasks of each other kind have which.
fn planned(project: &Project) -> Lines {
    let plan = project.run(&["plan", "--json"]).json();
    let mut lines = Lines::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for task in plan["tasks"].as_array().unwrap() {
        let text = |name: &str| task[name].as_str().unwrap_or("");
        match text("kind") {
            "train" => {
                lines.insert(text("task").to_owned(), text("state").to_owned());
            }
            kind => {
                *counts
                    .entry(format!("{kind} {}", text("state")))
                    .or_default() += 1
            }
        }
    }
    lines.extend(counts.into_iter().map(|(what, n)| (what, n.to_string())));
    lines
}

/// What a comparison says of each cell, and of pairs.
fn compare(project: &Project, step: &str, found: &mut Sections) {
    let ran = project.run(&["compare", "--json"]);
    let Compared { cells, mut pairs } = Compared::of(&ran.json());
    pairs.insert("exit code".to_owned(), code(&ran));
    found.insert(step.to_owned(), pairs);
    found.extend(
        cells
            .into_iter()
            .map(|(cell, lines)| (format!("{step}: {cell}"), lines)),
    );
}

fn gated(project: &Project, more: &[&str]) -> Lines {
    let words = [
        &[
            "gate",
            "--baseline",
            "baseline.json",
            "--max-regression",
            "3%",
            "--json",
        ],
        more,
    ]
    .concat();
    let ran = project.run(&words);
    let gate = in_sentences(&ran.json());
    let mut lines = Lines::new();
    for (name, value) in gate.as_object().unwrap() {
        match value.as_array() {
            Some(cells) if cells.iter().any(|cell| cell["cell"].is_string()) => {
                for cell in cells {
                    let mut cell = cell.clone();
                    let at = cell.as_object_mut().unwrap().remove("cell").unwrap();
                    GATE.add(
                        &format!("{name} {}", at.as_str().unwrap()),
                        &cell,
                        &mut lines,
                    );
                }
            }
            _ if GATE.dropped.contains(&name.as_str()) => {}
            _ => GATE.add(name, value, &mut lines),
        }
    }
    lines.insert("exit code".to_owned(), code(&ran));
    lines
}

#[test]
fn a_matrix_is_built_compared_and_gated_as_it_was() {
    let project = project();
    let mut found = Sections::new();
    let built = project.run(&["build"]);
    let mut lines = planned(&project);
    lines.insert("exit code".to_owned(), code(&built));
    found.insert("1 BUILT".to_owned(), lines);
    compare(&project, "2 COMPARED", &mut found);
    let csv = project.run(&["compare", "--format", "csv"]).stdout;
    let columns = csv.lines().next().unwrap_or("").to_owned();
    found.insert(
        "3 CSV".to_owned(),
        Lines::from([("columns".to_owned(), columns)]),
    );
    let mut published = Lines::new();
    for name in project.names_in("output") {
        match name.split_once(".json") {
            Some((cell, "")) if cell.contains("cmd_tiny") && cell.ends_with("micro-2") => {
                let text = project.read(&format!("output/{name}"));
                let value = serde_json::from_str(&text).unwrap();
                PUBLISHED.add("", &in_sentences(&value), &mut published);
            }
            _ => {}
        }
        if !name.starts_with('.') {
            published.insert(format!("file {name}"), "published".to_owned());
        }
    }
    found.insert("4 PUBLISHED".to_owned(), published);
    project.run(&["gate", "--write", "baseline.json"]);
    found.insert("5 GATED".to_owned(), gated(&project, &[]));
    project.write("pace", "108");
    project.run(&["build"]);
    found.insert(
        "6 SLOWER, GATED".to_owned(),
        gated(&project, &["--only", "cpu/cmd"]),
    );
    project.write("pace", "102");
    project.run(&["build"]);
    found.insert(
        "7 A LITTLE SLOWER, GATED".to_owned(),
        gated(&project, &["--only", "cpu/cmd"]),
    );
    hold("matrix.txt", &found);
}

//! Megatron-Bridge's performance script against a mock that refuses arguments and fields which the
//! real one does not have.

use std::{fs, process::Output};

use tprimat::{
    job::Job,
    logs::{LogSection, parse},
    recipe::Recipe,
    results::{AttestationStatus, Claim, attest},
};

use super::render::{FEATURES, Stage, ended_well, python, supported_of};

/// Stands for the interpreter: torchrun's part is left out, and one process runs in place of all
/// ranks.
const INTERPRETER: &str = r#"#!/bin/bash
if [ "$1 $2" = "-m torch.distributed.run" ]; then
  while [ "${1%.py}" = "$1" ]; do
    if [ "$1" = --nproc-per-node ]; then export WORLD_SIZE="$2"; fi
    shift
  done
fi
exec "$REAL_PYTHON" "$@"
"#;

/// What the recipe's program imports. The last lines are as Bridge prints them.
const MODULES: [(&str, &str); 3] = [
    ("torch.py", "float32 = 'float32'\n"),
    (
        "megatron/bridge/training/mixed_precision.py",
        "def get_mixed_precision_config(name):\n    raise KeyError(name)\n",
    ),
    (
        "megatron/bridge/training/pretrain.py",
        r#"
def pretrain(config, forward_step_func):
    for step in range(1, config.train.train_iters + 1):
        print(f" [2026-02-03 04:05:{step:02}] iteration {step:8}/{config.train.train_iters:8} | consumed samples: "
              f"{step * config.train.global_batch_size:12} | elapsed time per iteration (ms): 900.5 | learning rate: 1.0E-05 | "
              f"global batch size: {config.train.global_batch_size:5} | lm loss: 1.1875E+01 | loss scale: 1.0 | grad norm: 2.5 |")
"#,
    ),
];

fn feature(name: &str) -> (&'static Recipe, Job) {
    let id = format!("nvd/bridge/small/{name}");
    let mut cells = supported_of(&FEATURES);
    let found = cells.find(|(of, ..)| *of == id);
    let (_, recipe, job) = found.unwrap_or_else(|| panic!("{id} is launched"));
    (recipe, job.clone())
}

fn run(recipe: &Recipe, job: &Job, script: &str) -> Output {
    let mut stage = Stage::new(recipe, job);
    stage.program("python3", INTERPRETER);
    let script = [("scripts/performance/run_script.py", script)];
    for (name, text) in MODULES.iter().chain(&script) {
        let path = stage.path("checkout").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
    let (interpreter, checkout) = (
        text(stage.path("bin/python3")),
        text(stage.path("checkout")),
    );
    let launcher = stage.path("run/bridge.sh");
    let there = fs::read_to_string(&launcher).unwrap();
    fs::write(&launcher, there.replace("/opt/Megatron-Bridge", &checkout)).unwrap();
    stage
        .set("TPRIMAT_PYTHON", interpreter)
        .set("REAL_PYTHON", python())
        .set("PYTHONPATH", checkout);
    stage.run(recipe)
}

/// Every setting of the job is in the configuration with which Bridge trains, and the log says so.
#[test]
fn bridge_gets_every_setting_of_a_job() {
    let names = [
        "plain",
        "tensor",
        "recompute",
        "schedule",
        "rope_scaling",
        "qwen3",
        "latent",
        "mxfp8",
    ];
    for name in names {
        let (recipe, job) = feature(name);
        let log = ended_well(&run(recipe, &job, include_str!("mock_bridge.py")));
        let trace = parse(&LogSection::named("megatron-bridge"), log.as_bytes());
        assert_eq!(trace.steps.len() as u64, job.train_iters, "{name}");
        let attestation = attest(&trace, &Claim::of(&job), true);
        let contradicted: Vec<_> = attestation.contradicted().collect();
        assert!(contradicted.is_empty(), "{name}: {contradicted:#?}");
        let unstated = attestation
            .fields
            .iter()
            .filter(|f| f.status == AttestationStatus::NotStated);
        let unstated: Vec<_> = unstated.map(|f| f.field.as_str()).collect();
        assert_eq!(
            attestation.status,
            AttestationStatus::Attested,
            "{name}: not stated: {unstated:?}"
        );
    }
}

/// Where its script replaces itself, the job's settings would be lost; where a field is missing, so
/// would be what it says.
#[test]
fn a_bridge_that_cannot_be_told_the_job_trains_nothing() {
    let (recipe, job) = feature("plain");
    let mock = include_str!("mock_bridge.py");
    let anew = format!("import os\nif False:\n    os.execv('x', [])\n{mock}");
    let other = mock.replace("kv_channels ", "");
    for (script, wanted) in [
        (anew, "starts its script anew"),
        (other, "has no model.kv_channels"),
    ] {
        let output = run(recipe, &job, &script);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(wanted), "{said}");
        assert!(!said.contains("iteration"), "{said}");
    }
}

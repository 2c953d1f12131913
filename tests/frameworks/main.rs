//! `make frameworks`: each real framework trains a tiny model from the launch files that tprimat
//! renders, on the CPU.
//!
//! Two processes over gloo, behind the stand-in for CUDA in stand_in/. A framework is a checkout or
//! a Python package that somebody got; nothing is fetched here. Its log is parsed and attested as
//! that of a build would be.
//!
//!     frameworks                 trains; without an argument
//!     frameworks stage FOLDER    lays out a run folder a cell, with start.sh, for a host that has no tprimat
//!     frameworks check FOLDER    parses and attests FOLDER/CELL.log, as they come back from there
//!
//! FRAMEWORKS="mlm nemo"   runs these, and fails if one is absent; without it whatever is there
//! runs FRAMEWORKS_MATRIX       another matrix beside frameworks.toml: h200 FRAMEWORKS_PYTHON the
//! Python of all; NEMO_PYTHON, MLM_PYTHON, …: of one FRAMEWORKS_LOGS         where the logs go:
//! target/frameworks
//!
//! Not part of `cargo test`, which has none of the frameworks.

#![allow(
    clippy::disallowed_methods,
    reason = "plays the trainers, which write files as they like"
)]
#![allow(clippy::print_stdout, reason = "a program for a terminal")]

#[path = "../suite/launchers/render.rs"]
#[allow(dead_code, reason = "shared with the tests of launchers")]
mod render;
#[path = "../support/mod.rs"]
mod support;

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::LazyLock,
};

use render::{ROOT, Stage, supported_of};
use tprimat::{
    job::Job,
    logs,
    plan::{Plan, PlanRequest},
    recipe::Recipe,
    results::{AttestationStatus, Claim, attest},
};

struct Framework {
    id: &'static str,
    /// What the stand-in stands in for.
    stands_in: &'static str,
    /// A module without which its program does not start, and what pip calls all that it needs.
    module: &'static str,
    packages: &'static str,
    /// Variables that are set for a CPU.
    env: &'static [(&'static str, &'static str)],
}

const FRAMEWORKS: &[Framework] = &[
    Framework {
        id: "mlm",
        stands_in: "cuda",
        module: "pybind11",
        packages: "torch==2.11.0 numpy six regex pybind11 packaging einops",
        env: &[],
    },
    Framework {
        id: "mgds",
        stands_in: "gloo",
        module: "deepspeed",
        packages: "torch==2.11.0 torchvision==0.26.0 deepspeed==0.18.9 transformers pybind11 regex six einops sentencepiece",
        env: &[("DS_ACCELERATOR", "cpu"), ("LOCAL_SIZE", "2")],
    },
    Framework {
        id: "nemo",
        stands_in: "cuda",
        module: "nemo",
        // NeMo 2.4 needs a modelopt that this torch cannot import; later pangu and pyarrow do not
        // fit NeMo and its numpy.
        packages: "torch==2.11.0 'nemo_toolkit[nlp]==2.3.2' nemo_run==0.4.0 lightning megatron-core==0.12.3 'pangu<5' 'pyarrow<22'",
        env: &[],
    },
    Framework {
        id: "prim",
        stands_in: "cuda",
        module: "pulp",
        packages: "torch==2.11.0 numpy loguru nltk datasets pulp pybind11 einops pyyaml",
        env: &[("IP_INTERFACE", "lo"), ("NCCL_IB_HCA", "none")],
    },
    Framework {
        id: "titan",
        stands_in: "cpu",
        module: "torchtitan",
        packages: "torch==2.11.0 torchtitan==0.2.2 torchdata tyro tensorboard tokenizers datasets numpy",
        env: &[],
    },
];

static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let root = Path::new(ROOT).join("tests/frameworks");
    let matrix = env::var("FRAMEWORKS_MATRIX").unwrap_or_else(|_| "frameworks".into());
    let request = PlanRequest {
        root,
        matrix: Some(matrix),
        ..PlanRequest::default()
    };
    Plan::load(&request).unwrap_or_else(|e| panic!("{e}"))
});

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let each: fn(&Path, &str, &Recipe, &Job) -> Result<String, String> =
        match arguments.first().map(String::as_str) {
            None => return train_all(),
            Some("stage") => |folder, id, recipe, job| {
                lay_out(folder, id, recipe, job).map_err(|e| e.to_string())
            },
            Some("check") => {
                |folder, id, recipe, job| verdict(&folder.join(file_name(id)), recipe, job)
            }
            Some(other) => {
                println!("`{other}` is neither stage nor check");
                return ExitCode::from(2);
            }
        };
    let folder = PathBuf::from(arguments.get(1).cloned().unwrap_or_else(|| ".".into()));
    let mut failed = false;
    for (id, recipe, job) in supported_of(&PLAN) {
        let said = each(&folder, id, recipe, job);
        failed |= said.is_err();
        println!(
            "{id:28} {}",
            said.unwrap_or_else(|why| format!("FAILED: {why}"))
        );
    }
    ExitCode::from(u8::from(failed))
}

fn file_name(id: &str) -> String {
    format!("{}.log", id.replace('/', "-"))
}

/// A run folder as a build makes it, and start.sh, which needs $TPRIMAT_PYTHON, $TPRIMAT_PORT and
/// the recipe's checkouts.
fn lay_out(folder: &Path, id: &str, recipe: &Recipe, job: &Job) -> std::io::Result<String> {
    let run = folder.join(id.replace('/', "-"));
    fs::create_dir_all(run.join("recipe"))?;
    for file in render::render(recipe, job).unwrap_or_else(|e| panic!("{id}: {e}")) {
        fs::write(run.join(&file.name), &file.bytes)?;
    }
    for (name, bytes, _) in &recipe.files {
        fs::write(run.join("recipe").join(name), bytes)?;
    }
    fs::write(run.join("job.json"), tprimat::execute::job_json(job))?;
    let mut script = String::from("#!/usr/bin/env bash\ncd \"$(dirname \"$0\")\" || exit\n");
    script += "export TPRIMAT_RUN_DIR=\"$PWD\" TPRIMAT_RECIPE_DIR=\"$PWD/recipe\" TPRIMAT_JOB=\"$PWD/job.json\"\n";
    for (name, value) in recipe
        .file
        .launch
        .env
        .iter()
        .chain(recipe.file.env.get(&job.vendor).into_iter().flatten())
    {
        script += &format!("export {name}='{value}'\n");
    }
    script += &format!("exec {}\n", recipe.file.launch.command.join(" "));
    fs::write(run.join("start.sh"), script)?;
    Ok(run.display().to_string())
}

fn train_all() -> ExitCode {
    let asked = env::var("FRAMEWORKS").unwrap_or_default();
    let asked: Vec<&str> = asked
        .split([' ', ','])
        .filter(|id| !id.is_empty())
        .collect();
    if let Some(unknown) = asked
        .iter()
        .find(|id| FRAMEWORKS.iter().all(|f| f.id != **id))
    {
        let known: Vec<_> = FRAMEWORKS.iter().map(|f| f.id).collect();
        println!(
            "FRAMEWORKS names `{unknown}`; there are {}",
            known.join(", ")
        );
        return ExitCode::from(2);
    }
    let (mut ran, mut failed) = (0, Vec::new());
    for framework in FRAMEWORKS
        .iter()
        .filter(|f| asked.is_empty() || asked.contains(&f.id))
    {
        if let Err(how) = framework.is_there() {
            println!("{:5} absent: {how}", framework.id);
            failed.extend((!asked.is_empty()).then(|| framework.id.to_owned()));
            continue;
        }
        // One vendor is enough: the scripts are the same for both.
        let cells: Vec<_> = supported_of(&PLAN)
            .filter(|(_, recipe, _)| recipe.file.id == framework.id)
            .collect();
        let vendor = cells.first().map(|(.., job)| job.vendor);
        for (id, recipe, job) in cells
            .into_iter()
            .filter(|(.., job)| Some(job.vendor) == vendor)
        {
            ran += 1;
            match framework.train(id, recipe, job) {
                Ok(said) => println!("{id:24} {said}"),
                Err(why) => {
                    println!("{id:24} FAILED: {why}");
                    failed.push(id.to_owned());
                }
            }
        }
    }
    println!(
        "{ran} cells ran; failed: {}",
        if failed.is_empty() {
            "none".into()
        } else {
            failed.join(", ")
        }
    );
    ExitCode::from(u8::from(!failed.is_empty()))
}

impl Framework {
    fn python(&self) -> String {
        let own = env::var(format!("{}_PYTHON", self.id.to_uppercase()));
        own.or_else(|_| env::var("FRAMEWORKS_PYTHON"))
            .unwrap_or_else(|_| "python3".into())
    }

    fn recipe(&self) -> &'static Recipe {
        &PLAN.recipes.recipes[self.id]
    }

    /// `Err`: the command that gets what is missing.
    fn is_there(&self) -> Result<(), String> {
        for checkout in &self.recipe().file.require.checkouts {
            let path = env::var(&checkout.variable).unwrap_or_default();
            if !Path::new(&path).join(&checkout.file).is_file() {
                return Err(format!(
                    "{} (${} has no {})",
                    checkout.help, checkout.variable, checkout.file
                ));
            }
        }
        let python = self.python();
        let find = format!(
            "import importlib.util as u, sys; sys.exit(u.find_spec('{}') is None)",
            self.module
        );
        let found = Command::new(&python)
            .args(["-c", &find])
            .stderr(Stdio::null())
            .status();
        match found {
            Ok(status) if status.success() => Ok(()),
            _ => Err(format!("{python} -m pip install {}", self.packages)),
        }
    }

    fn train(&self, id: &str, recipe: &Recipe, job: &Job) -> Result<String, String> {
        verdict(&self.launch(id, recipe, job)?, recipe, job)
    }

    /// Runs the recipe's command as a build would, for ten minutes at most; the log's path.
    fn launch(&self, id: &str, recipe: &Recipe, job: &Job) -> Result<PathBuf, String> {
        let mut stage = Stage::new(recipe, job);
        for (name, value) in recipe
            .file
            .launch
            .env
            .iter()
            .chain(recipe.file.env.get(&job.vendor).into_iter().flatten())
        {
            stage.set(name, value.clone());
        }
        for (name, value) in self.env {
            stage.set(name, *value);
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .map_err(|e| e.to_string())?;
        let here = format!("{ROOT}/tests/frameworks");
        let kernels = match self.id {
            // The others look for apex themselves, and use it where they find it.
            "mgds" => format!(":{here}/kernels"),
            // Primus patches Transformer Engine before it knows which layers are asked for.
            "prim" => format!(":{here}/no_kernels"),
            _ => String::new(),
        };
        let stand_in = format!("{here}/stand_in{kernels}");
        stage
            .set("TPRIMAT_STAND_IN", self.stands_in)
            .set("PYTHONPATH", stand_in)
            .set("CUDA_VISIBLE_DEVICES", "");
        stage
            .set(
                "TPRIMAT_STAND_IN_DEVICES",
                job.parallelism.num_gpus.to_string(),
            )
            .set("OMP_NUM_THREADS", "1");
        stage
            .set("TPRIMAT_PYTHON", self.python())
            .set("TPRIMAT_PORT", port.port().to_string());
        for checkout in &recipe.file.require.checkouts {
            let path = env::var(&checkout.variable).unwrap_or_default();
            stage.set(
                &checkout.variable,
                fs::canonicalize(path)
                    .map_err(|e| e.to_string())?
                    .to_str()
                    .unwrap_or_default(),
            );
        }
        stage.set("HOME", env::var("HOME").unwrap_or_default());
        let folder =
            env::var("FRAMEWORKS_LOGS").unwrap_or_else(|_| format!("{ROOT}/target/frameworks"));
        fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let path = Path::new(&folder).join(file_name(id));
        let log = fs::File::create(&path).map_err(|e| e.to_string())?;
        let errors = log.try_clone().map_err(|e| e.to_string())?;
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=10", "600"])
            .args(&recipe.file.launch.command);
        command
            .env_clear()
            .envs(&stage.env)
            .current_dir(stage.path("run"));
        command
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .status()
            .map_err(|e| e.to_string())?;
        Ok(path)
    }
}

/// What the log says: all steps are there, and none of its settings contradicts the job.
fn verdict(log: &Path, recipe: &Recipe, job: &Job) -> Result<String, String> {
    let bytes = fs::read(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let trace = logs::parse(&recipe.file.log, &bytes);
    let place = log.display();
    let steps = trace.steps.len() as u64;
    if steps != job.train_iters {
        let evidence = trace
            .failure
            .map(|failure| failure.evidence.join("; "))
            .unwrap_or_default();
        return Err(format!(
            "{steps} of {} steps: {evidence} ({place})",
            job.train_iters
        ));
    }
    let attestation = attest(&trace, &Claim::of(job), true);
    let contradicted: Vec<_> = attestation
        .contradicted()
        .map(|f| format!("{f:?}"))
        .collect();
    if !contradicted.is_empty() {
        return Err(format!(
            "the log contradicts the job: {} ({place})",
            contradicted.join("; ")
        ));
    }
    let count = |status| {
        attestation
            .fields
            .iter()
            .filter(|f| f.status == status)
            .count()
    };
    let unstated = attestation
        .fields
        .iter()
        .filter(|f| f.status == AttestationStatus::NotStated);
    let unstated: Vec<_> = unstated.map(|f| f.field.as_str()).collect();
    let losses: Vec<f64> = trace.steps.iter().filter_map(|step| step.loss).collect();
    let (Some(first), Some(last)) = (losses.first(), losses.last()) else {
        return Err(format!("no losses ({place})"));
    };
    Ok(format!(
        "{steps} steps, loss {first:.3} to {last:.3}, {} settings attested; not stated: {}",
        count(AttestationStatus::Attested),
        if unstated.is_empty() {
            "none".into()
        } else {
            unstated.join(", ")
        }
    ))
}

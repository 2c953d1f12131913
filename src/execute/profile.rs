//! One run of a cell under a profiler. It is not a measurement: it has no key, its folder is none
//! that a sweep takes in, and nothing of it reaches the cache. What stays is the profiler's trace.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{host::TrainHost, interrupt::Interrupts, launch::launch, prepare_run::prepare};
use crate::{
    error::{Error, Result},
    files,
    job::Vendor,
    logs::{self, ExitSummary},
    matrix::CellId,
    plan::Plan,
    recipe::context,
    run::{
        Run,
        folder::{LOG, making, remove},
        local::start,
        spec::{ExitKind, RunSpec, attempt_id},
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiler {
    /// NVIDIA Nsight Systems.
    Nsys,
    /// ROCm's rocprofv3, from ROCm 6.2 on.
    Rocprof,
    /// torch's own, in trainers that heed `$TPRIMAT_PROFILE_DIR`.
    Torch,
}

impl Profiler {
    /// The one of a vendor's own tools.
    #[must_use]
    pub fn of(vendor: Vendor) -> Self {
        match vendor {
            Vendor::Nvd => Self::Nsys,
            Vendor::Amd => Self::Rocprof,
            Vendor::Cpu => Self::Torch,
        }
    }

    /// The program that must be in PATH.
    #[must_use]
    pub fn command(self) -> Option<&'static str> {
        match self {
            Self::Nsys => Some("nsys"),
            Self::Rocprof => Some("rocprofv3"),
            Self::Torch => None,
        }
    }

    /// What the trace is called in the run folder, and what ends its published name.
    fn trace(self) -> (&'static str, &'static str) {
        match self {
            Self::Nsys => ("profile.nsys-rep", ".nsys-rep"),
            // A folder: tables, and of rocprofv3 a .pftrace for each process.
            Self::Rocprof => ("profile", ".rocprof"),
            Self::Torch => ("profile/trace.json", ".json"),
        }
    }

    /// What stands before the command of the run, word by word.
    fn command_before(self) -> &'static str {
        match self {
            // torchrun forks its workers, which are what is to be seen.
            Self::Nsys => {
                "nsys profile --output {dir}/profile.nsys-rep --force-overwrite true \
                 --trace cuda,nvtx,osrt,cudnn,cublas --trace-fork-before-exec true"
            }
            Self::Rocprof => {
                "rocprofv3 --runtime-trace --output-directory {dir}/profile \
                 --output-format csv pftrace --"
            }
            Self::Torch => "",
        }
    }

    fn wrap(self, spec: &mut RunSpec) -> Result<()> {
        let dir = spec.dir.to_string_lossy().into_owned();
        if self == Self::Torch {
            let folder = format!("{dir}/profile");
            files::create_dir_all(Path::new(&folder))?;
            spec.env.insert("TPRIMAT_PROFILE_DIR".into(), folder);
        }
        let words = self.command_before().split_whitespace();
        let words = words.map(|word| word.replace("{dir}", &dir));
        spec.argv = words.chain(spec.argv.iter().cloned()).collect();
        Ok(())
    }
}

/// Runs one cell under `profiler`; the path of the trace, below `output`, named `name` and the
/// trace's own ending.
pub fn profile(
    plan: &Plan,
    cell: CellId,
    profiler: Profiler,
    host: &TrainHost,
    place: (&Path, &str),
    interrupts: Interrupts,
) -> Result<PathBuf> {
    let prepared = plan.prepared(cell).expect("what is profiled is supported");
    let context = context(prepared.job());
    let rendered = plan.recipe(cell).templates.iter().map(|(name, _)| {
        plan.recipes
            .templates
            .render(name, &context)
            .map(|file| (file.name, file.bytes))
    });
    let mut work = launch(plan, cell, rendered.collect::<Result<_>>()?);
    if prepared.job().vendor != Vendor::Cpu {
        work.devices = (0..prepared.job().parallelism.num_gpus as usize).collect();
    }
    // Not where runs are: no sweep may take a profiled run for a measured one.
    let folder = host.profiles();
    let making = making(&folder)?;
    let id = format!("profile-{}", attempt_id());
    let dir = folder.join(&id);
    let mut spec = prepare(&work, host, &id, &dir)?;
    spec.meta = serde_json::json!({ "profile": work.name() });
    // A profile is not a measurement, and a profiler's own samples are enough.
    spec.sampled = None;
    profiler.wrap(&mut spec)?;
    let run = start(&spec, &host.tprimat)?;
    drop(making);
    let over = std::sync::atomic::AtomicBool::new(false);
    let exit = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                match (interrupts.insisted(), interrupts.asked()) {
                    (true, _) => run.kill(),
                    (_, Some(_)) => drop(run.terminate()),
                    _ => {}
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let exit = run.wait();
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        exit
    })?;
    let (output, name) = place;
    let log = output.join(format!("{name}.log"));
    if dir.join(LOG).is_file() {
        files::move_to(&dir.join(LOG), &log)?;
    }
    let (made, ending) = profiler.trace();
    let trace = output.join(format!("{name}{ending}"));
    let ended = ended(&exit.status, &log).and_then(|()| {
        let made = dir.join(made);
        if !made.exists() {
            return Err(Error::Failed {
                message: format!("{}: the profiler left no trace", work.name()),
                help: Some(match profiler {
                    Profiler::Torch => {
                        "its trainer does not heed $TPRIMAT_PROFILE_DIR; see recipes/lib/tprimat_callback.py".into()
                    }
                    _ => format!("its log is {}", log.display()),
                }),
            });
        }
        files::move_to(&made, &trace)
    });
    drop(run);
    remove(&dir);
    ended.map(|()| trace)
}

fn ended(status: &ExitKind, log: &Path) -> Result<()> {
    let mut summary = ExitSummary::default();
    match status {
        ExitKind::Code(0) => return Ok(()),
        ExitKind::Interrupted => return Err(Error::Interrupted(0)),
        ExitKind::Code(code) => summary.code = Some(*code),
        ExitKind::Signal(signal) => summary.signal = Some(*signal),
        ExitKind::Timeout => summary.timed_out = true,
        ExitKind::Hung(evidence) => summary.launch_error = Some(evidence.join("; ")),
        ExitKind::Killed(why) | ExitKind::Lost(why) | ExitKind::LaunchFailed(why) => {
            summary.launch_error = Some(why.clone())
        }
    }
    let failure = logs::classify(&std::fs::read(log).unwrap_or_default(), &summary);
    Err(Error::Failed {
        message: format!("the profiled run failed: {}", failure.evidence.join("; ")),
        help: Some(format!("its log is {}", log.display())),
    })
}

//! Samples a run's devices beside it, into `telemetry.jsonl` (`tprimat_numbers::results::telemetry_samples` has its lines).
//!
//! One thread of the run's supervisor, asleep but for a few calls of the driver's library a second,
//! or one command every few seconds. Whatever goes wrong in it, the run goes on, and the file says
//! why there are no samples.

mod amd;
mod nvml;
mod processes;

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::Serialize;

pub(super) use self::nvml::open as open_nvml;
pub use self::processes::sees_all as sees_all_processes;
use crate::{
    files::unix_now,
    job::Vendor,
    results::{Reading, TELEMETRY_SCHEMA, TelemetryHeader, TelemetryLine},
};

/// Less important than any thread of a trainer.
const NICE: i32 = 10;

/// What to sample, and where to.
#[derive(Clone, Debug)]
pub struct Sampling {
    pub vendor: Vendor,
    /// Names of the device locks, as [`super::HostFacts::device_locks`] gives them.
    pub devices: Vec<String>,
    /// The run is alone on them.
    pub exclusive: bool,
    /// For the vendor's command: it is found in PATH.
    pub env: BTreeMap<String, String>,
    pub file: PathBuf,
}

/// Who can be asked for samples.
struct Source {
    name: &'static str,
    interval: Duration,
    /// Readings in the order of the run's devices, and their time; none: this one failed. Heeds
    /// `stop` where it takes long.
    sample: Box<Take>,
    /// A sample takes so little that one more at the end of the run delays nothing.
    is_quick: bool,
}

type Take = dyn FnMut(&AtomicBool) -> Option<(f64, Vec<Reading>)>;

/// Who was asked for samples, and why there are none.
type Unavailable = (&'static str, String);

/// Samples until it is stopped.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// None where there is nothing to sample: on the cpu platform, and for a run without devices.
    /// `is_own`: is the process with this id one of the run's?
    #[must_use]
    pub fn start(
        sampling: Sampling,
        is_own: impl Fn(i32) -> bool + Send + 'static,
    ) -> Option<Self> {
        if sampling.vendor == Vendor::Cpu || sampling.devices.is_empty() {
            return None;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let body = move || {
            // To open a driver can take seconds, which are the trainer's first ones too; so it is
            // done here.
            give_way();
            let source = match sampling.vendor {
                vendor if !sampling.exclusive => Err(shared(vendor)),
                Vendor::Nvd => nvml::source(&sampling.devices, Box::new(is_own)),
                _ => amd::source(&sampling, &asked),
            };
            let _ = record(&sampling.file, sampling.devices, source, &asked);
        };
        let thread = thread::Builder::new()
            .name("telemetry".into())
            .spawn(body)
            .ok()?;
        Some(Self { stop, thread })
    }

    /// Asks for a last sample where that is quick, and for the end. Waits for neither.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
    }

    /// Until it has ended, but no longer than so: a driver that does not answer is left to itself.
    pub fn wait(&self, patience: Duration) {
        let asked = Instant::now();
        while !self.thread.is_finished() && asked.elapsed() < patience {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn shared(vendor: Vendor) -> Unavailable {
    let name = if vendor == Vendor::Nvd {
        nvml::NAME
    } else {
        amd::NAME
    };
    (
        name,
        "the run may share its devices with others (`share`), and their power would not be its own"
            .to_owned(),
    )
}

fn give_way() {
    use nix::libc;
    // SAFETY: it sets a number of the calling thread, and touches no memory.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

fn record(
    file: &Path,
    devices: Vec<String>,
    source: Result<Source, Unavailable>,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    // Lines are added while the run goes on; whoever is killed meanwhile, those before stay.
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    let (name, interval, unavailable) = match &source {
        Ok(source) => (source.name, source.interval, None),
        Err((name, why)) => (*name, Duration::from_secs(1), Some(why.clone())),
    };
    let header = TelemetryHeader {
        schema: TELEMETRY_SCHEMA.to_owned(),
        source: name.to_owned(),
        interval_seconds: interval.as_secs_f64(),
        devices,
        unavailable,
    };
    put(&mut file, &header)?;
    let Ok(mut source) = source else {
        return Ok(());
    };
    let mut next = Instant::now();
    loop {
        let is_last = stop.load(Ordering::SeqCst);
        if (!is_last || source.is_quick)
            && let Some((time, devices)) = (source.sample)(stop)
        {
            // A full disk costs samples, no more.
            let _ = put(&mut file, &TelemetryLine { time, devices });
        }
        if is_last {
            return Ok(());
        }
        next += interval;
        // What was missed is not made up for.
        next = next.max(Instant::now());
        while !stop.load(Ordering::SeqCst) && Instant::now() < next {
            thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// One line, in one piece.
fn put(file: &mut File, line: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// The time and what `read` gives, which is of the middle of the time that it takes.
fn timed<T>(read: impl FnOnce() -> T) -> (f64, T) {
    let begun = unix_now();
    let read = read();
    (f64::midpoint(begun, unix_now()), read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Samples;

    /// A source whose counter goes up by a joule a sample.
    fn counting(is_quick: bool) -> Source {
        let mut joules = 0.0;
        let sample = move |_: &AtomicBool| {
            joules += 1.0;
            Some((
                joules,
                vec![Reading {
                    energy_joules: Some(joules),
                    ..Reading::default()
                }],
            ))
        };
        Source {
            name: "counting",
            interval: Duration::from_millis(1),
            sample: Box::new(sample),
            is_quick,
        }
    }

    fn recorded(source: Result<Source, Unavailable>, stopped_first: bool) -> Samples {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("telemetry.jsonl");
        let stop = AtomicBool::new(stopped_first);
        thread::scope(|scope| {
            let body = || record(&file, vec!["gpu-a".into()], source, &stop).unwrap();
            // The source is made on the thread that uses it; a scope of its own stands in for that.
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let lines = std::fs::read(&file)
                        .unwrap_or_default()
                        .iter()
                        .filter(|b| **b == b'\n')
                        .count();
                    stop.store(lines > 5, Ordering::SeqCst);
                }
            });
            body();
        });
        Samples::read(&std::fs::read(file).unwrap())
    }

    #[test]
    fn samples_are_taken_until_the_end_and_once_more() {
        let samples = recorded(Ok(counting(true)), false);
        assert_eq!(
            (
                samples.source.as_str(),
                samples.interval_seconds,
                samples.devices
            ),
            ("counting", 0.001, 1)
        );
        let joules: f64 = samples
            .points
            .iter()
            .map(|p| p.counter_joules.unwrap())
            .sum();
        assert!(joules >= 4.0, "{samples:?}");
        assert_eq!(
            recorded(Ok(counting(true)), true).unavailable.unwrap().code,
            "few_samples"
        );
    }

    #[test]
    fn a_source_that_cannot_be_opened_is_told_in_the_file() {
        let samples = recorded(Err(("nvml", "no driver".into())), true);
        assert_eq!(
            (samples.source.as_str(), &*samples.unavailable.unwrap().text),
            ("nvml", "no driver")
        );
    }

    #[test]
    fn cpus_and_runs_without_devices_have_no_telemetry() {
        let none = |vendor, devices: &[&str]| {
            let devices = devices.iter().map(|d| (*d).to_owned()).collect();
            let (env, file) = (BTreeMap::new(), "/nowhere/telemetry.jsonl".into());
            Sampler::start(
                Sampling {
                    vendor,
                    devices,
                    exclusive: true,
                    env,
                    file,
                },
                |_| false,
            )
            .is_none()
        };
        assert!(none(Vendor::Cpu, &["cpu"]) && none(Vendor::Nvd, &[]));
        assert!(
            !none(Vendor::Amd, &["gpu-amd-0"]),
            "a file that cannot be written disturbs nobody"
        );
    }
}

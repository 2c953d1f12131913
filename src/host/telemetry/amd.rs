//! AMD GPUs through `amd-smi`, else `rocm-smi`, run as commands (written from what these tools
//! print; not tried on such a host).

use std::{
    io::Read,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use super::{Sampling, Source, Unavailable, timed};
use crate::{
    host::which,
    logs::{self, LogSection, TelemetrySample},
    results::Reading,
};

pub(super) const NAME: &str = "amd-smi";

/// The commands are Python programs that take part of a second of a core.
const INTERVAL: Duration = Duration::from_secs(5);
/// A command that takes longer is ended, and its sample is missing.
const PATIENCE: Duration = Duration::from_secs(10);
/// No tool prints more of its devices.
const MOST_BYTES: usize = 4 << 20;
/// Variables without which the tools may not find their libraries or their home.
const PASSED: &[&str] = &["PATH", "HOME", "LANG", "LC_ALL", "TPRIMAT_RUN_ID"];

const TOOLS: &[(&str, &[&str])] = &[
    (NAME, &["metric", "--json"]),
    (
        "rocm-smi",
        &[
            "--json",
            "--showpower",
            "--showuse",
            "--showmeminfo",
            "vram",
            "--showtemp",
            "--showclocks",
            "--showenergycounter",
        ],
    ),
];

pub(super) fn source(sampling: &Sampling, stop: &AtomicBool) -> Result<Source, Unavailable> {
    let mut failed = (NAME, "neither amd-smi nor rocm-smi is in PATH".to_owned());
    for (name, arguments) in TOOLS {
        let Some(program) = which(name, &sampling.env) else {
            continue;
        };
        let tool = Tool {
            name,
            program,
            arguments,
            sampling: sampling.clone(),
        };
        match tool.choose(stop) {
            Ok(devices) => {
                let sample = move |stop: &AtomicBool| tool.sample(&devices, stop);
                return Ok(Source {
                    name,
                    interval: INTERVAL,
                    sample: Box::new(sample),
                    is_quick: false,
                });
            }
            Err(why) => failed = (name, why),
        }
    }
    Err(failed)
}

struct Tool {
    name: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
    sampling: Sampling,
}

impl Tool {
    /// What the tool calls the run's devices, in their order.
    fn choose(&self, stop: &AtomicBool) -> Result<Vec<String>, String> {
        let shown = self
            .readings(stop)
            .ok_or_else(|| format!("`{}` does not answer", self.name))?;
        let shown: Vec<String> = shown.into_iter().map(|sample| sample.device).collect();
        let wanted = &self.sampling.devices;
        // Where the run has them all, which is which does not matter.
        if shown.len() == wanted.len() {
            return Ok(shown);
        }
        let listed = self.listed(stop);
        let index = |lock: &String| match lock.strip_prefix("gpu-amd-") {
            Some(index) => Some(index.to_owned()),
            None => {
                let address = address(Path::new("/sys"), lock.strip_prefix("gpu-")?)?;
                listed
                    .iter()
                    .find(|(of, _)| *of == address)
                    .map(|(_, index)| index.clone())
            }
        };
        let chosen: Option<Vec<String>> = wanted
            .iter()
            .map(|lock| index(lock).filter(|i| shown.contains(i)))
            .collect();
        chosen.ok_or_else(|| {
            format!(
                "`{}` shows {} devices, but none at the addresses of the run's",
                self.name,
                shown.len()
            )
        })
    }

    /// amd-smi's devices: PCI address and index.
    fn listed(&self, stop: &AtomicBool) -> Vec<(String, String)> {
        if self.name != NAME {
            return Vec::new();
        }
        let text = self.run(&["list", "--json"], stop).unwrap_or_default();
        let devices = match serde_json::from_slice(&text) {
            Ok(Value::Array(devices)) => devices,
            Ok(Value::Object(mut all)) => all
                .remove("gpu_data")
                .and_then(|d| d.as_array().cloned())
                .unwrap_or_default(),
            _ => Vec::new(),
        };
        let pair = |d: &Value| {
            Some((
                d.get("bdf")?.as_str()?.to_lowercase(),
                d.get("gpu")?.as_u64()?.to_string(),
            ))
        };
        devices.iter().filter_map(pair).collect()
    }

    fn sample(&self, devices: &[String], stop: &AtomicBool) -> Option<(f64, Vec<Reading>)> {
        let (time, shown) = timed(|| self.readings(stop));
        let shown = shown?;
        let of = |name: &String| {
            shown
                .iter()
                .find(|s| s.device == *name)
                .map(reading)
                .unwrap_or_default()
        };
        Some((time, devices.iter().map(of).collect()))
    }

    fn readings(&self, stop: &AtomicBool) -> Option<Vec<TelemetrySample>> {
        let text = self.run(self.arguments, stop)?;
        let samples = logs::parse(&LogSection::named(self.name), &text).telemetry;
        (!samples.is_empty()).then_some(samples)
    }

    /// What the command prints; none if it takes too long, or the run ends.
    fn run(&self, arguments: &[&str], stop: &AtomicBool) -> Option<Vec<u8>> {
        let passed = self
            .sampling
            .env
            .iter()
            .filter(|(name, _)| PASSED.contains(&name.as_str()));
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env_clear()
            .envs(passed)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let begun = Instant::now();
        let mut out = child.stdout.take()?;
        let mut text = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let ended = loop {
            if stop.load(Ordering::SeqCst) || begun.elapsed() > PATIENCE || text.len() > MOST_BYTES
            {
                break false;
            }
            let mut ready = [PollFd::new(out.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, PollTimeout::from(50u8)) != Ok(1) {
                continue;
            }
            match out.read(&mut buffer) {
                Ok(0) => break true,
                Ok(read) => text.extend_from_slice(&buffer[..read]),
                Err(_) => break false,
            }
        };
        // The supervisor, which adopts whatever is below it, may have reaped the command: then it
        // is not signalled.
        if !ended && matches!(child.try_wait(), Ok(None)) {
            let _ = child.kill();
        }
        let _ = child.wait();
        ended.then_some(text)
    }
}

/// PCI address of the card with this unique id, as amd-smi writes it.
fn address(sys: &Path, unique_id: &str) -> Option<String> {
    let cards = std::fs::read_dir(sys.join("class/drm"))
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("device"));
    let has_id = |device: &PathBuf| {
        std::fs::read_to_string(device.join("unique_id"))
            .is_ok_and(|id| id.trim().eq_ignore_ascii_case(unique_id))
    };
    let device = cards.into_iter().find(has_id)?.canonicalize().ok()?;
    Some(device.file_name()?.to_str()?.to_lowercase())
}

fn reading(sample: &TelemetrySample) -> Reading {
    Reading {
        power_watts: sample.power_watts,
        energy_joules: sample.energy_joules,
        memory_used_bytes: sample.memory_used_bytes,
        clock_hz: sample.clock_mhz.map(|megahertz| megahertz * 1e6),
        temperature_celsius: sample.temperature_celsius,
        utilization: sample.utilization_percent.map(|percent| percent / 100.0),
        // Neither tool's figures for these are read.
        throttled: None,
        other_processes: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        files::{Durability, write_atomically},
        job::Vendor,
        mock,
    };

    /// A mock of a tool, and a sampling of `devices` that finds it.
    fn mock(folder: &Path, name: &str, script: &str, devices: &[&str]) -> Sampling {
        mock::program(&folder.join(name), format!("#!/bin/sh\n{script}\n"));
        let path = format!("{}:/usr/bin:/bin", folder.display());
        Sampling {
            vendor: Vendor::Amd,
            exclusive: true,
            devices: devices.iter().map(|d| (*d).to_owned()).collect(),
            env: BTreeMap::from([("PATH".to_owned(), path)]),
            file: folder.join("telemetry.jsonl"),
        }
    }

    const METRIC: &str = r#"echo '[{"gpu": 0, "power": {"socket_power": {"value": 100, "unit": "W"}}},'
        echo '{"gpu": 1, "power": {"socket_power": {"value": 200, "unit": "W"}}, "usage": {"gfx_activity": {"value": 50, "unit": "%"}}}]'"#;

    fn sampled(sampling: &Sampling) -> Result<(&'static str, Vec<Reading>), Unavailable> {
        let stop = AtomicBool::new(false);
        let mut source = source(sampling, &stop)?;
        Ok((source.name, (source.sample)(&stop).unwrap().1))
    }

    #[test]
    fn the_runs_own_devices_are_taken_from_what_the_tool_shows() {
        let folder = tempfile::tempdir().unwrap();
        let (name, readings) =
            sampled(&mock(folder.path(), "amd-smi", METRIC, &["gpu-amd-1"])).unwrap();
        let one = Reading {
            power_watts: Some(200.0),
            utilization: Some(0.5),
            ..Reading::default()
        };
        assert_eq!((name, &readings), ("amd-smi", &vec![one]));
        let (_, both) = sampled(&mock(
            folder.path(),
            "amd-smi",
            METRIC,
            &["gpu-aa", "gpu-bb"],
        ))
        .unwrap();
        assert_eq!(
            both.iter().map(|r| r.power_watts).collect::<Vec<_>>(),
            [Some(100.0), Some(200.0)]
        );
        // One of two, and nobody says which.
        let (_, why) = sampled(&mock(folder.path(), "amd-smi", METRIC, &["gpu-aa"])).unwrap_err();
        assert!(why.contains("none at the addresses of the run"), "{why}");
    }

    #[test]
    fn rocm_smi_stands_in_for_an_amd_smi_that_fails() {
        let folder = tempfile::tempdir().unwrap();
        mock(folder.path(), "amd-smi", "echo broken; exit 1", &[]);
        let json = r#"echo '{"card0": {"Current Socket Graphics Package Power (W)": "150.0", "Accumulated Energy (uJ)": "2500000.0"}}'"#;
        let (name, readings) =
            sampled(&mock(folder.path(), "rocm-smi", json, &["gpu-aa"])).unwrap();
        assert_eq!(
            (name, readings[0].power_watts, readings[0].energy_joules),
            ("rocm-smi", Some(150.0), Some(2.5))
        );
        let empty = tempfile::tempdir().unwrap();
        let nothing = Sampling {
            env: BTreeMap::new(),
            ..mock(empty.path(), "other", "", &["gpu-aa"])
        };
        assert!(sampled(&nothing).unwrap_err().1.contains("in PATH"));
    }

    #[test]
    fn the_end_of_the_run_ends_a_command_that_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let sampling = mock(folder.path(), "amd-smi", "exec sleep 60", &["gpu-aa"]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let source = scope.spawn(|| source(&sampling, &stop).map(|_| ()).unwrap_err());
            stop.store(true, Ordering::SeqCst);
            assert!(source.join().unwrap().1.contains("does not answer"));
        });
    }

    #[test]
    fn a_card_is_found_by_its_unique_id() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("devices/pci0/0000:C1:00.0");
        write_atomically(
            &device.join("unique_id"),
            b"1122334455667788\n",
            Durability::Plain,
        )
        .unwrap();
        let card = sys.path().join("class/drm/card1");
        crate::files::create_dir_all(&card).unwrap();
        std::os::unix::fs::symlink(&device, card.join("device")).unwrap();
        assert_eq!(
            address(sys.path(), "1122334455667788").as_deref(),
            Some("0000:c1:00.0")
        );
        assert_eq!(address(sys.path(), "99"), None);
    }
}

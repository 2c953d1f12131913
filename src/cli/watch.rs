//! `watch`: the page of a detached build, live. `tprimat_live` has the page and serves it; here is
//! where its data are from: the build's events, and the run folders' logs and telemetry. Everything
//! is read; nothing that measures is asked anything.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use tprimat_live::{Board, DeviceCurves, Event, LogPart, Progress, Server, Source, State};

use super::{
    args::{Globals, WatchArgs},
    detached::{self, Build, EVENTS},
    logs,
};
use crate::{
    error::{Error, Result},
    execute::{self, Stamped},
    files::{self, unix_now},
    results::{TelemetryHeader, TelemetryLine},
    run::{self, Growing},
    secrets::Secrets,
};

/// A log is shown from so far before its end; what lies before is in the file.
const LOG_PART: u64 = 64 << 10;
/// No report of a build is larger.
const LARGEST_REPORT: u64 = 64 << 20;

pub fn run(globals: &Globals, args: &WatchArgs) -> Result<i32> {
    let build = detached::chosen(globals, args.name.as_deref())?;
    let server = Server::bind(args.port).map_err(Error::io(
        "cannot serve a page on",
        format!("port {}", args.port),
    ))?;
    let port = server.port();
    eprintln!(
        "{}\n  shows the build {} until Ctrl-C, which ends the page and not the build",
        server.url(),
        build.name
    );
    eprintln!(
        "  from another host: ssh -L {port}:127.0.0.1:{port} THIS-HOST, then the same address there"
    );
    let source = Watched::new(build)?;
    server.serve(source, || false);
    Ok(crate::error::exit::OK)
}

/// A detached build, read as it goes on.
struct Watched {
    dir: PathBuf,
    runs: PathBuf,
    seen: Mutex<Seen>,
}

/// What was read so far.
struct Seen {
    events: Lines,
    progress: Progress,
    /// By task: the run's folder and what its devices did.
    telemetry: BTreeMap<String, Telemetry>,
}

struct Telemetry {
    dir: PathBuf,
    lines: Lines,
    begin: Option<f64>,
    devices: Vec<DeviceCurves>,
}

/// The lines of a file that grows, however long.
struct Lines {
    file: Growing,
    pending: Vec<u8>,
}

impl Lines {
    fn of(path: &Path) -> Self {
        Self {
            file: Growing::new(path),
            pending: Vec::new(),
        }
    }

    /// Hands on the lines that were completed since the last call.
    fn poll(&mut self, mut take: impl FnMut(&[u8])) {
        let pending = &mut self.pending;
        // A file that cannot be read now may be read at the next look.
        let _ = self
            .file
            .poll(&mut |bytes| pending.extend_from_slice(bytes));
        let whole = pending
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        pending[..whole]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .for_each(&mut take);
        pending.drain(..whole);
    }
}

impl Watched {
    fn new(build: Build) -> Result<Self> {
        let cache = build.dir.ancestors().nth(2).map(Path::to_owned);
        let cache = cache.ok_or_else(|| Error::Failed {
            message: "the build has no cache".into(),
            help: None,
        })?;
        let events = Lines::of(&build.dir.join(EVENTS));
        let seen = Seen {
            events,
            progress: Progress::default(),
            telemetry: BTreeMap::new(),
        };
        Ok(Self {
            dir: build.dir,
            runs: cache.join("runs"),
            seen: Mutex::new(seen),
        })
    }

    fn build(&self) -> Option<Build> {
        self.dir
            .is_dir()
            .then(|| detached::Build::of(self.dir.clone()))
    }

    /// Where the build published, once it is over.
    fn report_path(&self) -> Option<PathBuf> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.progress
            .output
            .as_ref()
            .map(|output| output.join("report.html"))
    }
}

impl Seen {
    fn look(&mut self, runs: &Path) {
        let progress = &mut self.progress;
        self.events.poll(|line| {
            if let Ok(Stamped { time, event }) = serde_json::from_slice::<Stamped<Event>>(line) {
                progress.take(time, event);
            }
        });
        self.telemetry
            .retain(|task, _| progress.running.iter().any(|run| run.task == *task));
        for run in &mut progress.running {
            if !self.telemetry.contains_key(&run.task) {
                let Some(dir) = execute::live_run_of(runs, &run.task) else {
                    continue;
                };
                let lines = Lines::of(&dir.join(run::TELEMETRY));
                self.telemetry.insert(
                    run.task.clone(),
                    Telemetry {
                        dir,
                        lines,
                        begin: None,
                        devices: Vec::new(),
                    },
                );
            }
            if let Some(telemetry) = self.telemetry.get_mut(&run.task) {
                telemetry.look();
                run.devices.clone_from(&telemetry.devices);
            }
        }
    }
}

impl Telemetry {
    fn look(&mut self) {
        let Self {
            lines,
            begin,
            devices,
            ..
        } = self;
        lines.poll(|line| {
            if let Ok(header) = serde_json::from_slice::<TelemetryHeader>(line) {
                *devices = header
                    .devices
                    .into_iter()
                    .map(|name| DeviceCurves {
                        name,
                        ..Default::default()
                    })
                    .collect();
            } else if let Ok(line) = serde_json::from_slice::<TelemetryLine>(line) {
                let x = line.time - *begin.get_or_insert(line.time);
                for (device, reading) in devices.iter_mut().zip(line.devices) {
                    let memory = reading.memory_used_bytes.map(|bytes| bytes as f64);
                    for (series, value) in [
                        (&mut device.power_watts, reading.power_watts),
                        (&mut device.memory_bytes, memory),
                        (&mut device.clock_hz, reading.clock_hz),
                        (&mut device.temperature_celsius, reading.temperature_celsius),
                    ] {
                        if let Some(value) = value {
                            series.push(x, value);
                        }
                    }
                }
            }
        });
    }
}

impl Source for Watched {
    fn board(&self) -> Board {
        let build = self.build();
        let progress = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.look(&self.runs);
            seen.progress.clone()
        };
        let state = build.as_ref().map_or(State::Died, Build::state);
        let mut board = Board::of(progress, state);
        board.now = unix_now();
        board.has_report = self.report_path().is_some_and(|path| path.is_file());
        let Some(build) = build else { return board };
        board.ended_at = build.ended.as_ref().map(|ended| ended.at);
        board.exit_code = build.ended.as_ref().map(|ended| ended.code);
        if let Some(started) = build.started {
            board.started_at = Some(started.at);
            board.arguments = started.arguments;
        }
        board
    }

    fn log(&self, task: &str, from: u64) -> Option<LogPart> {
        let dir = {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.telemetry.get(task)?.dir.clone()
        };
        let is_over = execute::is_over(&dir);
        let mut secrets = vec![Secrets::of_caller(), Secrets::noted(&dir)];
        match execute::environment_of(&dir) {
            Some(env) => secrets.push(Secrets::of(&env)),
            // Nothing is shown before the run's secrets are known. Once it is over, its log is
            // masked in place.
            None if is_over => {}
            None => return None,
        }
        part_of(&dir.join("log"), from, is_over, &secrets)
    }

    fn report(&self) -> Option<Vec<u8>> {
        let path = self.report_path()?;
        let (file, found) = files::open_regular_no_link(&path).ok()?;
        let mut bytes = Vec::new();
        (found.len() <= LARGEST_REPORT).then_some(())?;
        file.take(LARGEST_REPORT).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}

/// What a log has from byte `from` on, but for what lies too far before its end.
fn part_of(path: &Path, from: u64, is_over: bool, secrets: &[Secrets]) -> Option<LogPart> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let mut begin = from.min(length);
    let is_cut = length - begin > LOG_PART;
    if is_cut {
        begin = length - LOG_PART;
    }
    file.seek(SeekFrom::Start(begin)).ok()?;
    let mut bytes = Vec::new();
    file.take(LOG_PART).read_to_end(&mut bytes).ok()?;
    if is_cut {
        // A secret may have been cut in two, so the rest of its line goes.
        let end = bytes
            .iter()
            .position(|byte| b"\n\r".contains(byte))
            .map_or(bytes.len(), |end| end + 1);
        bytes.drain(..end);
        begin += end as u64;
    }
    let shown = logs::showable(&mut bytes, is_over, secrets);
    let text = String::from_utf8_lossy(&bytes[..shown]).into_owned();
    Some(LogPart {
        from: begin,
        next: begin + shown as u64,
        text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a log is written in place")]
    fn a_part_of_a_log_begins_with_a_whole_line_and_has_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let secrets = [Secrets::of(
            &[("A_TOKEN".to_owned(), "abcdefghij".to_owned())].into(),
        )];
        std::fs::write(&path, "one abcdefghij\ntwo\nthree abcde").unwrap();
        let part = part_of(&path, 0, false, &secrets).unwrap();
        assert_eq!(
            part,
            LogPart {
                from: 0,
                next: 19,
                text: "one **********\ntwo\n".into()
            }
        );
        assert_eq!(
            part_of(&path, 19, true, &secrets).unwrap().text,
            "three abcde"
        );
        assert_eq!(
            part_of(&path, 500, true, &secrets).unwrap(),
            LogPart {
                from: 30,
                next: 30,
                text: String::new()
            }
        );
        // The cut lies within the secret of the first line.
        let before = "x".repeat(20);
        let after = format!("\n{}\n", "y".repeat(LOG_PART as usize - 7));
        std::fs::write(&path, format!("{before}abcdefghij{after}")).unwrap();
        let part = part_of(&path, 0, true, &secrets).unwrap();
        assert!(
            part.text.starts_with('y') && part.from == 31,
            "{:?}",
            &part.text[..20]
        );
    }
}

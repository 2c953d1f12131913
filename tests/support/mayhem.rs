//! What a bad day does to a project: processes that are killed or stopped, files of the cache that
//! are damaged.

use std::{fs, path::Path, thread, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Dice, Project, files_below};

/// Processes of a build, by what their command lines hold: each is the first of these that fits. The
/// trainer is `train.sh`, and a worker sleeps.
const KINDS: [(&str, &str); 5] = [
    ("tprimat", "build -j"),
    ("supervisor", "__run"),
    ("client", " --label "),
    ("trainer", "train.sh"),
    ("worker", "sleep 30"),
];

/// Sends a random signal to a random process of the project's builds, and says which to what;
/// `None`: there is no process. One that is stopped goes on after `pause`.
pub fn strike(
    project: &Project,
    dice: &mut Dice,
    pause: impl FnOnce(&mut Dice) -> Duration,
) -> Option<(&'static str, Signal)> {
    let processes = project.processes();
    let kind_of = |line: &str| KINDS.iter().position(|(_, mark)| line.contains(mark));
    let of = |kind: usize| -> Vec<(&'static str, i32)> {
        processes
            .iter()
            .filter(|(_, line)| kind_of(line) == Some(kind))
            .map(|(pid, _)| (KINDS[kind].0, *pid))
            .collect()
    };
    // One list of processes for each kind that has any.
    let there: Vec<_> = (0..KINDS.len())
        .map(of)
        .filter(|pids| !pids.is_empty())
        .collect();
    if there.is_empty() {
        return None;
    }
    let kind = dice.roll(there.len());
    let (what, pid) = dice.pick(&there[kind]);
    let signal = dice.pick(&[
        Signal::SIGKILL,
        Signal::SIGKILL,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGSTOP,
    ]);
    // It may have ended in between.
    let _ = kill(Pid::from_raw(pid), signal);
    if signal == Signal::SIGSTOP {
        thread::sleep(pause(dice));
        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
    }
    Some((what, signal))
}

/// Flips a bit of a random file of the cache, cuts it or removes it, and says so; `None`: it went
/// away by itself. Locks, and folders of runs that may be written to now, are left alone.
pub fn damage(project: &Project, dice: &mut Dice) -> Option<String> {
    let mut files = files_below(&project.path("cache"));
    let is_spared = |path: &Path| {
        let path = path.to_string_lossy();
        path.contains("/locks/") || path.contains("/runs/")
    };
    files.retain(|path| !is_spared(path));
    files.sort();
    if files.is_empty() {
        return None;
    }
    let path = files[dice.roll(files.len())].clone();
    let mut bytes = fs::read(&path).ok()?;
    let what = dice.roll(3);
    let at = dice.roll(bytes.len().max(1));
    match what {
        0 if !bytes.is_empty() => {
            bytes[at] ^= 1 << dice.roll(8);
            let _ = fs::remove_file(&path);
            fs::write(&path, &bytes).ok()?;
        }
        1 => {
            let _ = fs::remove_file(&path);
            fs::write(&path, &bytes[..at.min(bytes.len())]).ok()?;
        }
        _ => fs::remove_file(&path).ok()?,
    }
    let how = ["a bit of", "the end of", "all of"][what];
    Some(format!("lost {how} {} at {at}", path.display()))
}

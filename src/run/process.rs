//! Which processes belong to a run, and how all of them are ended. Linux only: it reads /proc.
//!
//! A process belongs to a run if it descends from the run's supervisor (a subreaper, so orphans
//! come to it whatever session they opened), or if `TPRIMAT_RUN_ID` in its environment names the
//! run (which still holds after the supervisor is gone). A process that overwrote its environment
//! *and* lost its supervisor cannot be told from a stranger's, and is left alone.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    io::Read,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{Pid, SysconfVar, sysconf},
};

use crate::files::unix_now;

/// Names the run in the environment of each of its processes.
pub const RUN_ID_VARIABLE: &str = "TPRIMAT_RUN_ID";

/// Between the id of a run and the number of one of its nodes.
const NODE_MARK: &str = ".node-";

/// The id under which the processes of one node of a run are known; the first has the run's own.
pub(crate) fn part_of_run(run_id: &str, number: usize) -> String {
    match number {
        0 => run_id.to_owned(),
        _ => format!("{run_id}{NODE_MARK}{number}"),
    }
}

/// The run that such an id belongs to.
pub(crate) fn whole_run(id: &str) -> &str {
    id.split_once(NODE_MARK).map_or(id, |(run, _)| run)
}

/// How long SIGKILL may take to work; a process in an uninterruptible system call can outlast it.
const PATIENCE: Duration = Duration::from_secs(10);
/// 52 numbers of at most 20 digits, and a name of at most 64 bytes.
const LONGEST_STAT: usize = 2048;
/// More generations than a tree of processes has.
const DEEPEST: usize = 1 << 16;

/// One process for good: pids are used again, a pid with its start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pid: i32,
    /// Clock ticks from boot to the start of the process.
    started: u64,
}

/// Clock ticks from boot to the start of a process; `None`: there is no such process here. Together
/// with its host and its pid it names one process for good.
#[must_use]
pub fn process_start(pid: i32) -> Option<u64> {
    Stat::of(pid).map(|stat| stat.started)
}

/// What `/proc/<pid>/stat` says of a process, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    started: u64,
    /// Nothing runs in it any more; it only waits to be reaped.
    dead: bool,
}

impl Stat {
    fn of(pid: i32) -> Option<Self> {
        // The kernel hands the line over in one piece. Every process of the host is looked at after
        // each run, and `read_to_string` asks six times for each.
        let mut line = [0; LONGEST_STAT];
        let length = fs::File::open(format!("/proc/{pid}/stat"))
            .and_then(|mut file| file.read(&mut line))
            .ok()?;
        Self::parse(&String::from_utf8_lossy(&line[..length]))
    }

    /// The name stands in parentheses and may hold any byte, so fields are counted from the last
    /// `)`.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text
            .get(text.rfind(')')? + 1..)?
            .split_ascii_whitespace()
            .collect();
        let threads: u64 = fields.get(17)?.parse().ok()?;
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            // A main thread that ended before the others shows as a zombie too.
            dead: matches!(*fields.first()?, "Z" | "X") && threads <= 1,
        })
    }
}

/// When a process was started, in seconds since 1970, if it can be seen.
pub(crate) fn started_at(pid: i32) -> Option<f64> {
    let ticks = Stat::of(pid)?.started;
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
    // Counted back from now: the clock may have been set since the host was started.
    Some(unix_now() - (uptime - ticks as f64 / per_second as f64))
}

/// All processes of this host.
pub(crate) fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The environment of a process, as far as it is text; none where it cannot be read, as another user's.
fn environment_of(pid: i32) -> Vec<(String, String)> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let entries = bytes
        .split(|&b| b == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='));
    entries
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The run that a process belongs to, as its environment says.
pub(crate) fn run_of(pid: i32) -> Option<String> {
    let environment = environment_of(pid).into_iter();
    let mut runs = environment.filter(|(name, _)| name == RUN_ID_VARIABLE);
    runs.next().map(|(_, run)| run)
}

/// The processes of one run.
pub(crate) struct Tree {
    run_id: String,
    /// Whose descendants belong to the run as well.
    root: Option<i32>,
    /// No process of the run is older, in clock ticks from boot, so the environments of older ones,
    /// which are most of a host's, need not be read.
    since: u64,
}

/// What it took to end a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Processes that had to be told to end.
    pub count: usize,
    /// Processes that not even SIGKILL ended in time.
    pub survivors: usize,
}

impl Tree {
    /// Seen from anywhere: found by their environment alone.
    pub fn marked(run_id: &str) -> Self {
        Self {
            run_id: run_id.to_owned(),
            root: None,
            since: 0,
        }
    }

    /// Seen from the run's supervisor: its descendants as well.
    pub fn below_this_process(run_id: &str) -> Self {
        let root = i32::try_from(std::process::id()).ok();
        Self {
            root,
            since: root.and_then(Stat::of).map_or(0, |own| own.started),
            ..Self::marked(run_id)
        }
    }

    pub fn members(&self) -> Vec<Process> {
        let stats: HashMap<i32, Stat> = pids()
            .filter_map(|pid| Some((pid, Stat::of(pid)?)))
            .collect();
        let this = i32::try_from(std::process::id()).unwrap_or(0);
        stats
            .iter()
            .filter(|&(&pid, stat)| pid > 1 && pid != this && !stat.dead)
            .filter(|(_, stat)| stat.started >= self.since)
            .filter(|&(&pid, _)| {
                self.descends(pid, |pid| stats.get(&pid).copied()) || self.is_marked(pid)
            })
            .map(|(&pid, stat)| Process {
                pid,
                started: stat.started,
            })
            .collect()
    }

    pub fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.members().iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids
    }

    /// Is this one of them? Looks at no process but this one and those above it.
    pub fn has(&self, pid: i32) -> bool {
        self.descends(pid, Stat::of) || self.is_marked(pid)
    }

    fn descends(&self, pid: i32, stat: impl Fn(i32) -> Option<Stat>) -> bool {
        let Some(root) = self.root else { return false };
        let mut at = pid;
        // No chain of parents is that long; the bound guards against a torn reading.
        for _ in 0..DEEPEST {
            match stat(at).map(|stat| stat.parent) {
                Some(parent) if parent == root => return true,
                Some(parent) if parent > 1 => at = parent,
                _ => return false,
            }
        }
        false
    }

    fn is_marked(&self, pid: i32) -> bool {
        run_of(pid).is_some_and(|run| run == self.run_id)
    }

    /// The largest environment of a process of the run; `None` where there is no process of it.
    pub fn environment(&self) -> Option<BTreeMap<String, String>> {
        let members = self.members().into_iter();
        let environments = members.map(|process| environment_of(process.pid));
        Some(environments.max_by_key(Vec::len)?.into_iter().collect())
    }

    /// The processes of the run, and whether none can come any more if there is none.
    ///
    /// A process may fork and exit behind a look at /proc, so an empty look proves nothing. But the
    /// supervisor adopts the orphans of its run: while it has no children, it has no descendants
    /// either, and nobody who could make some, except for a daemon.
    pub fn look(&self) -> (Vec<Process>, bool) {
        let is_certain = self.root.is_some() && next_dead() == Err(Errno::ECHILD);
        (self.members(), is_certain)
    }

    /// Ends every process of the run: SIGTERM, at most `grace`, then SIGKILL until none is left.
    ///
    /// `tick` is called before each look: it reaps what it must, and says whether to waste no more
    /// time on grace.
    pub fn end(&self, grace: Duration, tick: &mut dyn FnMut() -> bool) -> Ended {
        let begun = Instant::now();
        let (mut asked, mut hurry, mut was_empty) = (HashSet::new(), false, false);
        let mut pause = Duration::from_millis(2);
        loop {
            hurry |= tick();
            let (members, is_certain) = self.look();
            let spent = begun.elapsed();
            let is_over = members.is_empty() && (is_certain || was_empty);
            if is_over || !members.is_empty() && spent >= grace.saturating_add(PATIENCE) {
                return Ended {
                    count: asked.len(),
                    survivors: members.len(),
                };
            }
            was_empty = members.is_empty();
            let force = hurry || spent >= grace;
            for process in members {
                match (force, asked.insert(process)) {
                    (true, _) => process.signal(Signal::SIGKILL),
                    (false, true) => process.signal(Signal::SIGTERM),
                    (false, false) => {}
                }
            }
            if !was_empty {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(if force { 10 } else { 50 }));
            }
        }
    }
}

impl Process {
    /// Signals this very process: a stranger that was given its pid since has another start time.
    fn signal(self, signal: Signal) {
        if Stat::of(self.pid).is_some_and(|stat| stat.started == self.started) {
            // It may end in between, which is what was wanted.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

/// A child of this process that has ended, and is not reaped by this look.
fn next_dead() -> nix::Result<WaitStatus> {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, peek)
}

/// Reaps children that came to this process as their subreaper; `keep` belongs to someone else.
pub(crate) fn reap_orphans(keep: Option<i32>) {
    loop {
        let pid = match next_dead() {
            Ok(WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) => pid,
            Err(Errno::EINTR) => continue,
            _ => return,
        };
        if keep == Some(pid.as_raw()) || waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let rest = "S 77 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 3 0 4242 0 0";
        let stat = Stat::parse(&format!("12 (a) Z (b c) {rest}")).unwrap();
        assert_eq!(
            stat,
            Stat {
                parent: 77,
                started: 4242,
                dead: false
            }
        );
        assert_eq!(Stat::parse("12 (cut off"), None);
        assert_eq!(Stat::parse("12 (short) S 77"), None);
    }

    #[test]
    fn a_zombie_is_dead_unless_other_threads_of_it_still_run() {
        let stat = |threads| {
            Stat::parse(&format!(
                "12 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 9 0"
            ))
            .unwrap()
        };
        assert!(stat(1).dead);
        assert!(!stat(2).dead);
    }

    #[test]
    fn a_process_is_known_by_its_mark_and_ended() {
        let id = format!("process-test-{}", std::process::id());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env(RUN_ID_VARIABLE, &id)
            .spawn()
            .expect("sleep exists");
        let pid = i32::try_from(child.id()).unwrap();
        // The kernel shows the environment a moment after the program has begun.
        let is_seen =
            |_| Tree::marked(&id).has(pid) || (thread::sleep(Duration::from_millis(1)), false).1;
        assert!((0..5000).any(is_seen) && !Tree::marked("another").has(pid));
        assert!(
            Tree::below_this_process("another").has(pid),
            "a child needs no mark"
        );
        assert!(
            Tree::marked(&id[..id.len() - 1]).members().is_empty(),
            "a prefix of the id is another run"
        );
        let ended = Tree::marked(&id).end(Duration::from_secs(5), &mut || false);
        assert_eq!(
            ended,
            Ended {
                count: 1,
                survivors: 0
            }
        );
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_reused_pid_is_not_signalled() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep exists");
        let pid = i32::try_from(child.id()).unwrap();
        let started = Stat::of(pid).unwrap().started;
        Process {
            pid,
            started: started + 1,
        }
        .signal(Signal::SIGKILL);
        assert!(child.try_wait().unwrap().is_none());
        Process { pid, started }.signal(Signal::SIGKILL);
        assert!(!child.wait().unwrap().success());
    }
}

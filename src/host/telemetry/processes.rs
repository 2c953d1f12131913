//! Which of the processes on a device are not the run's.
//!
//! A driver may count processes otherwise than this one does: in a container it may give the host's
//! numbers, leave out what other containers run, or show nothing. So a list is believed only where
//! it names a process of the run, and "no other" only where this process sees all that run on the
//! host.

use nix::{errno::Errno, sys::signal::kill, unistd::Pid};

use crate::results::OtherProcess;

pub(super) type IsOwn = dyn Fn(i32) -> bool + Send;

/// The kernel's number of the first pid namespace, the one in which every process has a number.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";
/// No process has a larger number; a driver that lays out its list otherwise than its header says
/// may give one.
const LARGEST: i32 = 1 << 22;

pub(super) struct Processes {
    is_own: Box<IsOwn>,
    sees_all: bool,
}

impl Processes {
    pub fn new(is_own: Box<IsOwn>) -> Self {
        Self {
            is_own,
            sees_all: sees_all(),
        }
    }

    /// The others among the processes that a driver lists of a device; `None`: not known. Some
    /// drivers name a thread in place of its process: to the kernel the one is as good as the other
    /// here.
    pub fn others(&self, listed: &[u32]) -> Option<Vec<OtherProcess>> {
        let pids = listed.iter().map(|pid| {
            i32::try_from(*pid)
                .ok()
                .filter(|pid| (2..=LARGEST).contains(pid))
        });
        let pids: Vec<i32> = pids.collect::<Option<_>>()?;
        let (own, others): (Vec<i32>, Vec<i32>) =
            pids.into_iter().partition(|pid| (self.is_own)(*pid));
        if own.is_empty() {
            return None;
        }
        // One that is not there has just ended; or, in a container, its number is another's.
        let (there, gone): (Vec<i32>, Vec<i32>) = others.into_iter().partition(|pid| exists(*pid));
        if !self.sees_all && (there.is_empty() || !gone.is_empty()) {
            return None;
        }
        Some(
            there
                .into_iter()
                .map(|pid| OtherProcess {
                    pid: pid.unsigned_abs(),
                    name: name(pid),
                })
                .collect(),
        )
    }
}

/// Does this process see all that run on the host? In a container it does not.
#[must_use]
pub fn sees_all() -> bool {
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok();
    namespace.is_some_and(|name| name.to_str() == Some(FIRST_NAMESPACE))
}

/// Also one of another user, which may be hidden in /proc.
fn exists(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

fn name(pid: i32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::mock;

    fn sleeper() -> Child {
        mock::running(Command::new("sleep").arg("60"))
    }

    #[test]
    fn others_are_told_only_by_a_list_that_names_a_process_of_the_run() {
        let (mut own, mut other) = (sleeper(), sleeper());
        let (ours, theirs) = (own.id(), other.id());
        let gone = {
            let mut ended = sleeper();
            ended.kill().unwrap();
            ended.wait().unwrap();
            ended.id()
        };
        let others = |sees_all, listed: &[u32]| {
            let is_own = Box::new(move |pid: i32| pid.unsigned_abs() == ours);
            Processes { is_own, sees_all }.others(listed)
        };
        let found = Some(vec![OtherProcess {
            pid: theirs,
            name: Some("sleep".into()),
        }]);
        assert_eq!(others(true, &[ours, theirs]), found);
        assert_eq!(others(true, &[ours]), Some(vec![]));
        assert_eq!(
            others(true, &[ours, gone]),
            Some(vec![]),
            "it has just ended"
        );
        // Nobody of the run: whose numbers these are, and whether the run is among them, nobody
        // knows.
        assert_eq!(others(true, &[]), None);
        assert_eq!(others(true, &[theirs]), None);
        // In a container what is seen is seen, but what is not seen may be there.
        assert_eq!(others(false, &[ours, theirs]), found);
        assert_eq!(others(false, &[ours]), None);
        assert_eq!(
            others(false, &[ours, gone, theirs]),
            None,
            "these are numbers of another namespace"
        );
        // Numbers that stand for processes that cannot be named here.
        for none in [0, 1, 1 << 30, u32::MAX] {
            assert_eq!(others(true, &[ours, none]), None, "{none}");
        }
        for child in [&mut own, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

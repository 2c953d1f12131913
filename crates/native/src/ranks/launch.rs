//! Starts one process of this program for each device, and ends all of them when one fails.

use std::{
    env,
    io::{self, Write},
    os::{
        fd::{AsRawFd, FromRawFd, RawFd},
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::{
        prctl,
        signal::{self, Signal},
    },
    unistd::{Pid, getppid},
};
use tprimat_job::{FailureClass, exit};

use super::Ring;
use crate::{events::Events, stop::Stop};

/// Exit code of a rank that ends because of another one, which says why.
pub const FOLLOWS: u8 = 3;
/// How long the others have to end by themselves, or the one that failed first to say why.
const GRACE: Duration = Duration::from_secs(5);
/// NCCL takes copy engines instead of multiprocessors where it can; set unless the environment says
/// otherwise.
const CTA_POLICY: (&str, &str) = ("NCCL_CTA_POLICY", "2");
const POLL: Duration = Duration::from_millis(10);

/// What this program tells the ranks that it starts.
#[derive(Args)]
pub struct Place {
    /// This process's number among those of the run; set by the process that starts them.
    #[arg(long, hide = true, requires_all = ["ranks", "next", "previous", "parent"])]
    rank: Option<usize>,
    #[arg(long, hide = true)]
    ranks: Option<usize>,
    /// The sockets to its neighbours.
    #[arg(long, hide = true)]
    next: Option<RawFd>,
    #[arg(long, hide = true)]
    previous: Option<RawFd>,
    #[arg(long, hide = true)]
    parent: Option<i32>,
}

impl Place {
    /// Takes this rank's place in the ring; `None` in a process that nobody started as a rank.
    pub fn join(&self) -> Result<Option<Ring>, Stop> {
        let (Some(rank), Some(ranks), Some(next), Some(previous), Some(parent)) =
            (self.rank, self.ranks, self.next, self.previous, self.parent)
        else {
            return Ok(None);
        };
        // A rank alone would wait for the others forever.
        let is_orphan =
            prctl::set_pdeathsig(Signal::SIGKILL).is_err() || getppid() != Pid::from_raw(parent);
        let is_open = |fd| {
            fcntl(
                unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) },
                FcntlArg::F_GETFD,
            )
            .is_ok()
        };
        if is_orphan
            || next < 3
            || previous < 3
            || next == previous
            || !is_open(next)
            || !is_open(previous)
        {
            return Err(Stop::Refused(
                "ranks are started by this program itself: leave out --rank".to_owned(),
            ));
        }
        // SAFETY: the parent made both for this process, and nothing else here knows of them.
        let [next, previous] = [next, previous].map(|fd| unsafe { UnixStream::from_raw_fd(fd) });
        Ok(Some(Ring::new(rank, ranks, next, previous)))
    }
}

/// Runs this program as `count` ranks with the arguments that it was given. They print for
/// themselves; what is printed here is the end of one that could not say why.
pub fn run<W: Write>(count: usize, events: &mut Events<W>) -> Result<ExitCode, Stop> {
    let mut ranks = start(count)?;
    let failed = loop {
        if let Some(first) = first_failure(&mut ranks)? {
            break first;
        }
        if ranks.iter().all(|rank| rank.ended.is_some()) {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(POLL);
    };
    let failed = if failed.follows() {
        the_one_it_follows(&mut ranks)?.unwrap_or(failed)
    } else {
        failed
    };
    end(&mut ranks)?;
    if let Some(why) = failed.unsaid(count) {
        let _ = events.error(FailureClass::Unknown, &why);
        eprintln!("tprimat-native: {why}");
    }
    let code = if failed.status.code() == Some(exit::USAGE) {
        exit::USAGE
    } else {
        exit::FAILED
    };
    Ok(ExitCode::from(code as u8))
}

struct Started {
    child: Child,
    ended: Option<ExitStatus>,
}

#[derive(Clone, Copy)]
struct Failure {
    rank: usize,
    status: ExitStatus,
}

impl Failure {
    fn follows(&self) -> bool {
        self.status.code() == Some(i32::from(FOLLOWS))
    }

    /// Why the run failed, unless the rank itself has printed it.
    fn unsaid(&self, count: usize) -> Option<String> {
        let Self { rank, status } = self;
        match (status.code(), status.signal()) {
            (Some(exit::USAGE | exit::FAILED), _) => None,
            (_, Some(number)) => {
                let name = Signal::try_from(number)
                    .map_or_else(|_| String::new(), |signal| format!(" ({signal})"));
                Some(format!(
                    "rank {rank} of {count} was ended by signal {number}{name}; the others were ended with it"
                ))
            }
            (Some(code), _) if self.follows() => Some(format!(
                "rank {rank} of {count} lost its connection to another rank, which did not say why ({code})"
            )),
            (code, _) => Some(format!(
                "rank {rank} of {count} ended with code {}",
                code.unwrap_or(-1)
            )),
        }
    }
}

fn start(count: usize) -> Result<Vec<Started>, Stop> {
    let failed = |what: &str, error: io::Error| Stop::Refused(format!("{what}: {error}"));
    let program =
        env::current_exe().map_err(|e| failed("cannot find this program's own file", e))?;
    let mut nexts = Vec::new();
    let mut previous = Vec::new();
    for _ in 0..count {
        let (from, to) = UnixStream::pair().map_err(|e| failed("cannot connect the ranks", e))?;
        nexts.push(from);
        previous.push(to);
    }
    // The other end of a rank's `next` belongs to the rank after it.
    previous.rotate_right(1);
    let mut ranks = Vec::new();
    for (rank, (next, previous)) in nexts.into_iter().zip(previous).enumerate() {
        for socket in [&next, &previous] {
            fcntl(socket, FcntlArg::F_SETFD(FdFlag::empty()))
                .map_err(|e| failed("cannot hand a socket on", e.into()))?;
        }
        let child = Command::new(&program)
            .args(env::args_os().skip(1))
            .args(["--rank", &rank.to_string(), "--ranks", &count.to_string()])
            .args([
                "--next",
                &next.as_raw_fd().to_string(),
                "--previous",
                &previous.as_raw_fd().to_string(),
            ])
            .args(["--parent", &std::process::id().to_string()])
            .envs(env::var_os(CTA_POLICY.0).is_none().then_some(CTA_POLICY))
            .stdin(Stdio::null())
            .spawn();
        match child {
            Ok(child) => ranks.push(Started { child, ended: None }),
            Err(error) => {
                let _ = end(&mut ranks);
                return Err(failed(&format!("cannot start rank {rank}"), error));
            }
        }
        // Dropped here, so that the ranks alone hold them, and see it when a neighbour ends.
    }
    Ok(ranks)
}

/// Notes which ranks have ended; one that failed, if there is any.
fn first_failure(ranks: &mut [Started]) -> Result<Option<Failure>, Stop> {
    let mut failures = Vec::new();
    for (rank, started) in ranks.iter_mut().enumerate() {
        if started.ended.is_none() {
            started.ended = started.child.try_wait()?;
            failures.extend(
                started
                    .ended
                    .filter(|s| !s.success())
                    .map(|status| Failure { rank, status }),
            );
        }
    }
    failures.sort_by_key(Failure::follows);
    Ok(failures.first().copied())
}

fn the_one_it_follows(ranks: &mut [Started]) -> Result<Option<Failure>, Stop> {
    let start = Instant::now();
    while start.elapsed() < GRACE && ranks.iter().any(|rank| rank.ended.is_none()) {
        match first_failure(ranks)? {
            Some(failure) if !failure.follows() => return Ok(Some(failure)),
            _ => thread::sleep(POLL),
        }
    }
    Ok(None)
}

/// Ends the ranks that still run: they would wait for the others forever.
fn end(ranks: &mut [Started]) -> Result<(), Stop> {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        for rank in ranks.iter().filter(|rank| rank.ended.is_none()) {
            // Not waited for yet, so the number is still this child's.
            let _ = signal::kill(Pid::from_raw(rank.child.id() as i32), signal);
        }
        let start = Instant::now();
        while start.elapsed() < GRACE && ranks.iter().any(|rank| rank.ended.is_none()) {
            first_failure(ranks)?;
            thread::sleep(POLL);
        }
    }
    Ok(())
}

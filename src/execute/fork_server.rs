//! The process from which a build's supervisors are forked.
//!
//! To execute tprimat takes longer than many a short run, and tprimat itself has threads, so it
//! cannot be forked. So it executes itself once, and that process forks the supervisors. Each is a
//! child of tprimat (`CLONE_PARENT`): its end is tprimat's to see, and it goes on when the fork server
//! is killed. A fork server that was killed is replaced.
//!
//! No run waits for a fork: one supervisor is always there before its run, and takes the next request
//! from the socket that it shares with the fork server. Once it has, the next one is forked.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use nix::{
    cmsg_space,
    errno::Errno,
    fcntl::OFlag,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType,
        recvmsg, send, sendmsg, shutdown, socketpair,
    },
    unistd::{Pid, pipe2},
};

use super::{
    process_title::ProcessTitle,
    run::{SUPERVISE_ARGUMENT, lock},
    supervisor::supervise,
};

/// `tprimat __supervisors RUNS` forks the supervisors of a build.
pub const SUPERVISORS_ARGUMENT: &str = "__supervisors";
/// The command line of a supervisor without a run.
const SPARE_ARGUMENT: &str = "__spare";

/// The longest path that the kernel takes.
const LONGEST_PATH: usize = libc::PATH_MAX as usize;
/// A supervisor's command line, which is written where the fork server's is: its argument and the
/// run's folder.
const ROOM_FOR_TITLE: usize = LONGEST_PATH + 32;

/// A supervisor that waits answers within a millisecond, but the host may be at its limit.
const PATIENCE: Duration = Duration::from_secs(10);

/// Started with the first run; when this is dropped it ends, and the supervisors go on.
#[derive(Debug)]
pub struct ForkServer {
    tprimat: PathBuf,
    server: Mutex<Option<Server>>,
}

/// What a supervisor has as its standard input, output and error.
pub(super) struct Handed<'a> {
    /// Ends with tprimat.
    pub lifeline: BorrowedFd<'a>,
    /// Locked, so there is no instant at which nobody holds it.
    pub supervisor_lock: &'a File,
    /// Appended to by the supervisor alone, line by line.
    pub log: &'a File,
}

impl ForkServer {
    /// `tprimat`: the binary that is executed.
    #[must_use]
    pub fn of(tprimat: &Path) -> Self {
        Self {
            tprimat: tprimat.to_owned(),
            server: Mutex::new(None),
        }
    }

    /// Starts the supervisor of the run in `dir`, a child of this process. After an error there may
    /// be one all the same, which ends when the lifeline that it was handed does: whoever tries again
    /// hands over another one, and gets another fork server.
    pub(super) fn fork(&self, dir: &Path, handed: &Handed) -> io::Result<Pid> {
        let mut server = lock(&self.server);
        let running = match server.take() {
            Some(running) => running,
            None => Server::start(&self.tprimat, dir, handed.log)?,
        };
        let pid = running.fork(dir, handed)?;
        *server = Some(running);
        Ok(pid)
    }
}

#[derive(Debug)]
struct Server {
    connection: OwnedFd,
    process: Child,
}

impl Server {
    /// What it cannot do it says in `log`, which is that of the run it is started for.
    fn start(tprimat: &Path, dir: &Path, log: &File) -> io::Result<Self> {
        let (theirs, ours) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        let process = Command::new(tprimat)
            .arg(SUPERVISORS_ARGUMENT)
            .arg(dir.parent().unwrap_or(dir))
            .arg(" ".repeat(ROOM_FOR_TITLE))
            .env_clear()
            // Where the host keeps its driver's library is needed to sample, and by the rest srun
            // knows the allocation that a run is a step of. The trainer has an environment of its
            // own.
            .envs(std::env::vars_os().filter(|(name, _)| is_needed(name)))
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(log.try_clone()?)
            // Ctrl-C at the terminal is tprimat's to heed.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            connection: ours,
            process,
        })
    }

    fn fork(&self, dir: &Path, handed: &Handed) -> io::Result<Pid> {
        let connection = &self.connection;
        let descriptors = [
            handed.lifeline.as_raw_fd(),
            handed.supervisor_lock.as_raw_fd(),
            handed.log.as_raw_fd(),
        ];
        sendmsg::<()>(
            connection.as_raw_fd(),
            &[IoSlice::new(dir.as_os_str().as_bytes())],
            &[ControlMessage::ScmRights(&descriptors)],
            // Not SIGPIPE, where it was killed.
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        // Somebody may have stopped it, and no run could start until it goes on.
        let (asked, mut ready) = (Instant::now(), Err(Errno::EINTR));
        while ready == Err(Errno::EINTR) {
            let left = PATIENCE.saturating_sub(asked.elapsed());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let mut answers = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
            ready = poll(&mut answers, timeout);
        }
        if ready? == 0 {
            // Whoever answers from now on finds nobody, and does not begin the run late. One that has
            // answered meanwhile is there.
            shutdown(connection.as_raw_fd(), Shutdown::Both)?;
        }
        let mut answer = [0; size_of::<i32>()];
        let length = nix::unistd::read(connection, &mut answer)?;
        match i32::from_le_bytes(answer) {
            _ if length == 0 && ready == Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            _ if length != answer.len() => Err(io::ErrorKind::UnexpectedEof.into()),
            pid if pid > 0 => Ok(Pid::from_raw(pid)),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to tidy up, and the supervisors are not its children.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_needed(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["LD_LIBRARY_PATH", "PATH", "HOME"].contains(&&*name) || name.starts_with("SLURM_")
}

/// Body of `tprimat __supervisors RUNS`, and of each supervisor that it forks; returns the process's
/// exit code.
#[must_use]
pub fn fork_supervisors(runs: &Path) -> i32 {
    let title = ProcessTitle::of_this_process();
    let tprimat = std::env::args_os().next().unwrap_or_default();
    let show = |argument: &str, folder: &Path| {
        if let Some(title) = &title {
            title.show(&[&*tprimat, argument.as_ref(), folder.as_os_str()]);
        }
    };
    show(SUPERVISORS_ARGUMENT, runs);
    let connection = io::stdin();
    let mut null = File::options().write(true).open("/dev/null").ok();
    while !is_hung_up(connection.as_fd()) {
        // The spare alone has the end for writing, which is closed when it has its run or dies.
        let Ok((is_spare, spare)) = pipe2(OFlag::O_CLOEXEC) else {
            return 1;
        };
        match fork_sibling() {
            Ok(Some(_)) => {
                drop(spare);
                let mut taken = Err(Errno::EINTR);
                while taken == Err(Errno::EINTR) {
                    taken = nix::unistd::read(&is_spare, &mut [0]);
                }
                if taken == Ok(0) {
                    // It died without a run. What kills each new one may do so for a while, unless it
                    // is all over.
                    let mut end = [PollFd::new(connection.as_fd(), PollFlags::empty())];
                    let _ = poll(&mut end, 100_u8);
                }
            }
            Ok(None) => {
                drop(is_spare);
                show(SPARE_ARGUMENT, runs);
                let (dir, handed) = match receive(connection.as_fd()) {
                    Ok(Some(request)) => request,
                    Ok(None) => return 0,
                    Err(errno) => {
                        let _ = answer(connection.as_fd(), -(errno as i32));
                        return 0;
                    }
                };
                // Somebody may have stopped this process until tprimat had another one for the run.
                if !answer(connection.as_fd(), nix::unistd::getpid().as_raw()) {
                    return 0;
                }
                let _ = nix::unistd::write(&spare, &[1]);
                drop(spare);
                show(SUPERVISE_ARGUMENT, &dir);
                return match become_supervisor(handed) {
                    Ok(()) => supervise(&dir),
                    Err(errno) => errno as i32,
                };
            }
            Err(errno) => {
                let Ok(Some(_)) = receive(connection.as_fd()) else {
                    break;
                };
                let _ = answer(connection.as_fd(), -(errno as i32));
            }
        }
        // The log of the first run, where this process could have said why it does not start, is that
        // run's alone from now on.
        if let Some(null) = null.take() {
            // SAFETY: it closes this process's own stream, which nobody owns here.
            unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) };
        }
    }
    0
}

/// Is nobody at the other end any more?
fn is_hung_up(connection: BorrowedFd) -> bool {
    let mut looked = [PollFd::new(connection, PollFlags::empty())];
    let _ = poll(&mut looked, PollTimeout::ZERO);
    looked[0].revents().is_some_and(|seen| !seen.is_empty())
}

/// Sends a pid, or a negative `errno`. Does tprimat still wait for it?
fn answer(connection: BorrowedFd, number: i32) -> bool {
    let flags = MsgFlags::MSG_NOSIGNAL;
    send(connection.as_raw_fd(), &number.to_le_bytes(), flags).is_ok()
}

/// The folder of a run and what its supervisor gets; `None` once tprimat is gone.
fn receive(connection: BorrowedFd) -> nix::Result<Option<(PathBuf, [OwnedFd; 3])>> {
    let (mut path, mut space) = ([0; LONGEST_PATH], cmsg_space!([RawFd; 3]));
    let mut bytes = [IoSliceMut::new(&mut path)];
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(connection.as_raw_fd(), &mut bytes, Some(&mut space), flags) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    let length = message.bytes;
    let descriptors = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let handed: Vec<OwnedFd> = descriptors
        .unwrap_or_default()
        .into_iter()
        // SAFETY: the kernel made them for this process with this message, and nobody else here has
        // them.
        .map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
        .collect();
    let dir = PathBuf::from(OsString::from(OsStr::from_bytes(&path[..length])));
    Ok(<[OwnedFd; 3]>::try_from(handed)
        .ok()
        .filter(|_| length > 0)
        .map(|handed| (dir, handed)))
}

/// Forks a process that is a child of this one's parent. `None`: this is the new process.
fn fork_sibling() -> nix::Result<Option<Pid>> {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: this process has one thread, so no lock is held by another one, and without CLONE_VM
    // the new process has all memory to itself, as after `fork`. The C library alone does not know
    // the new thread's id, which it keeps for mutexes that are locked twice by one thread; neither
    // tprimat nor what it links in the supervisor has any that lived before.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    let pid = Errno::result(pid)?;
    Ok(Some(pid)
        .filter(|pid| *pid > 0)
        .and_then(|pid| i32::try_from(pid).ok())
        .map(Pid::from_raw))
}

/// Puts what was handed over where a supervisor has it: in the place of its standard streams.
fn become_supervisor(handed: [OwnedFd; 3]) -> nix::Result<()> {
    for (stream, descriptor) in (0..).zip(handed) {
        // SAFETY: it closes the fork server's own stream, which nobody owns here.
        Errno::result(unsafe { libc::dup2(descriptor.as_raw_fd(), stream) })?;
    }
    Ok(())
}

//! The process from which a build's supervisors are forked.
//!
//! To execute tprimat takes longer than many a short run, and tprimat itself has threads, so it
//! cannot be forked. So it executes itself once, and that process forks the supervisors. Each is a
//! child of tprimat (`CLONE_PARENT`): its end is tprimat's to see, and it goes on when the fork server
//! is killed. A fork server that was killed is replaced.
//!
//! No run waits for a fork: one supervisor is always there before its run, and takes the next request
//! from the socket that it shares with the fork server. Once it has, the next one is forked. A
//! supervisor whose run left nothing behind takes the next run itself, so a build of many short runs
//! forks a few.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        self, AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, send, sendmsg, shutdown,
        socketpair,
    },
    unistd::{Pid, pipe2},
};

use super::{
    inbox::rounded_up,
    lifeline::{SentRun, fits, receive_descriptors, send_run},
    process_title::ProcessTitle,
    run::{SUPERVISE_ARGUMENT, lock},
    supervisor::supervise_runs,
    supervisor_process::{PATIENCE, SupervisorProcess, Waiting, answers_within},
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

/// How long a build waits for the end of a supervisor that has no run. Somebody may have stopped it.
const SPARE_ENDS: Duration = Duration::from_secs(1);

/// Started with the first run; when this is dropped it ends, and the supervisors go on.
#[derive(Debug)]
pub struct ForkServer {
    tprimat: PathBuf,
    server: Mutex<Option<Server>>,
    waiting: Arc<Waiting>,
}

impl ForkServer {
    /// `tprimat`: the binary that is executed.
    #[must_use]
    pub fn of(tprimat: &Path) -> Self {
        Self {
            tprimat: tprimat.to_owned(),
            server: Mutex::new(None),
            waiting: Arc::default(),
        }
    }

    /// Where a supervisor whose run is over waits for another one.
    pub(super) fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    /// Has a supervisor see through `run`, a child of this process; a second one is tried where the
    /// fork server was killed or does not answer. The first one then ends, if it is there at all,
    /// since nobody has the other end of its lifeline.
    pub(super) fn begin(&self, run: &SentRun) -> io::Result<SupervisorProcess> {
        match self.waiting.begin(run) {
            Some(supervisor) => Ok(supervisor),
            None => self.fork(run).or_else(|_| self.fork(run)),
        }
    }

    fn fork(&self, run: &SentRun) -> io::Result<SupervisorProcess> {
        let (theirs, lifeline) = UnixStream::pair()?;
        // A supervisor that was stopped reads nothing.
        lifeline.set_write_timeout(Some(PATIENCE))?;
        // Where it fits into the socket it is there before the supervisor asks for it.
        let is_sent = fits(&lifeline, run)?;
        if is_sent {
            send_run(&lifeline, run)?;
        }
        let mut server = lock(&self.server);
        let running = match server.take() {
            Some(running) => running,
            None => Server::start(&self.tprimat, run)?,
        };
        let pid = running.fork(theirs.as_fd())?;
        *server = Some(running);
        drop((server, theirs));
        let supervisor = SupervisorProcess { pid, lifeline };
        if !is_sent && let Err(error) = send_run(&supervisor.lifeline, run) {
            // It may have been stopped, and has begun nothing.
            supervisor.end();
            return Err(error);
        }
        Ok(supervisor)
    }
}

#[derive(Debug)]
struct Server {
    connection: OwnedFd,
    process: Child,
}

impl Server {
    /// What it cannot do it says in the log of the run it is started for.
    fn start(tprimat: &Path, run: &SentRun) -> io::Result<Self> {
        let (theirs, ours) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        let process = Command::new(tprimat)
            .arg(SUPERVISORS_ARGUMENT)
            .arg(run.dir.parent().unwrap_or(run.dir))
            .arg(" ".repeat(ROOM_FOR_TITLE))
            .env_clear()
            // Where the host keeps its driver's library is needed to sample, and by the rest srun
            // knows the allocation that a run is a step of. The trainer has an environment of its
            // own.
            .envs(std::env::vars_os().filter(|(name, _)| is_needed(name)))
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(run.log.try_clone()?)
            // Ctrl-C at the terminal is tprimat's to heed.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            connection: ours,
            process,
        })
    }

    /// Forks the supervisor at the other end of a lifeline. After an error there may be one all the
    /// same.
    fn fork(&self, lifeline: BorrowedFd) -> io::Result<Pid> {
        let connection = &self.connection;
        sendmsg::<()>(
            connection.as_raw_fd(),
            &[IoSlice::new(&[0])],
            &[ControlMessage::ScmRights(&[lifeline.as_raw_fd()])],
            // Not SIGPIPE, where it was killed.
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        // Somebody may have stopped it, and no run could start until it goes on.
        let is_in_time = answers_within(PATIENCE, connection)?;
        if !is_in_time {
            // Whoever answers from now on finds nobody, and does not begin the run late. One that has
            // answered meanwhile is there.
            shutdown(connection.as_raw_fd(), socket::Shutdown::Both)?;
        }
        let mut answer = [0; size_of::<i32>()];
        let length = nix::unistd::read(connection, &mut answer)?;
        match i32::from_le_bytes(answer) {
            _ if length == 0 && !is_in_time => Err(io::ErrorKind::TimedOut.into()),
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
        // The supervisor without a run has the other end of the connection until it is gone.
        let connection = self.connection.as_fd();
        let _ = shutdown(connection.as_raw_fd(), socket::Shutdown::Write);
        let mut end = [PollFd::new(connection, PollFlags::empty())];
        let _ = poll(&mut end, rounded_up(SPARE_ENDS));
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
                let lifeline = match receive(connection.as_fd()) {
                    Ok(Some(lifeline)) => lifeline,
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
                if let Err(errno) = put(lifeline.as_fd(), libc::STDIN_FILENO) {
                    return errno as i32;
                }
                return supervise_runs(|run| match run {
                    Some(dir) => show(SUPERVISE_ARGUMENT, dir),
                    None => show(SPARE_ARGUMENT, runs),
                });
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
            let _ = put(null.as_fd(), libc::STDERR_FILENO);
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

/// A supervisor's end of its lifeline; `None` once tprimat is gone.
fn receive(connection: BorrowedFd) -> nix::Result<Option<OwnedFd>> {
    let (_, descriptors) = receive_descriptors(connection, &mut [0])?;
    Ok(descriptors.into_iter().next())
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

/// Puts a descriptor in the place of one of this process's standard streams.
pub(super) fn put(descriptor: BorrowedFd, stream: RawFd) -> nix::Result<()> {
    // SAFETY: it closes this process's own stream, which nobody owns here.
    Errno::result(unsafe { libc::dup2(descriptor.as_raw_fd(), stream) }).map(drop)
}

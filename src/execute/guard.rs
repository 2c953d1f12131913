//! A process beside a supervisor that outlives it: when the supervisor is killed, it runs one command
//! that ends what the run left, and holds the locks of the run's devices until then.
//!
//! It is forked and executes nothing until then: to execute even a shell takes longer than many a
//! short run.

use std::{
    ffi::{CString, OsStr},
    io::{self, PipeReader, PipeWriter},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    ptr,
};

use nix::{
    errno::Errno,
    libc::{self, c_char, c_int},
    sys::{
        signal::{SigSet, SigmaskHow, Signal, sigprocmask},
        wait::waitpid,
    },
    unistd::Pid,
};

use super::{process_title::ProcessTitle, run::pidfd};

/// What lists of processes show: whoever kills all that is called tprimat does not mean this one,
/// which ends what that leaves.
const NAME: &std::ffi::CStr = c"run-guard";

/// Lives as long as the supervisor does; dropped, it goes and runs nothing.
pub(super) struct Guard {
    pid: Pid,
    /// Its pid may be a stranger's once somebody reaped it. Before Linux 5.3 there is none.
    pidfd: Option<OwnedFd>,
    pub(super) _lifeline: PipeWriter,
}

impl Guard {
    /// Runs `program` with `arguments` and `environment` once this process is gone, and keeps
    /// `locks` open until that has ended. A list of processes shows it with the run's folder.
    pub fn start<'a>(
        run: &Path,
        program: &Path,
        arguments: &[&str],
        environment: impl IntoIterator<Item = (&'a String, &'a String)>,
        locks: &[RawFd],
    ) -> io::Result<Self> {
        let (end, lifeline) = io::pipe()?;
        let title = ProcessTitle::of_this_process();
        let words: Vec<&OsStr> = [
            OsStr::new("tprimat-guard"),
            run.as_os_str(),
            program.as_os_str(),
        ]
        .into_iter()
        .chain(arguments.iter().map(OsStr::new))
        .collect();
        let command = Execution::of(program, arguments, environment)?;
        let mut kept: Vec<RawFd> = locks.iter().copied().chain([end.as_raw_fd()]).collect();
        kept.sort_unstable();
        // SAFETY: what follows in the new process makes system calls, writes to memory of its own
        // and allocates nothing.
        let pid = Errno::result(unsafe { libc::fork() })?;
        if pid == 0 {
            drop(lifeline);
            if let Some(title) = title {
                title.show(&words);
            }
            guard(&end, locks, &kept, &command);
        }
        let pid = Pid::from_raw(pid);
        Ok(Self {
            pidfd: pidfd(pid),
            pid,
            _lifeline: lifeline,
        })
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    pub(super) fn wait(&self) {
        while waitpid(self.pid, None) == Err(Errno::EINTR) {}
    }
}

impl Drop for Guard {
    /// The supervisor has ended everything itself.
    fn drop(&mut self) {
        match &self.pidfd {
            // SAFETY: it touches no memory.
            Some(process) => unsafe {
                let none = ptr::null::<libc::siginfo_t>();
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    process.as_raw_fd(),
                    libc::SIGKILL,
                    none,
                    0,
                );
            },
            None => drop(nix::sys::signal::kill(self.pid, Signal::SIGKILL)),
        }
        self.wait();
    }
}

/// A program with its arguments and environment, as the kernel takes them.
struct Execution {
    program: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    /// To the strings above, and a null at the end.
    argument_pointers: Vec<*const c_char>,
    environment_pointers: Vec<*const c_char>,
}

impl Execution {
    fn of<'a>(
        program: &Path,
        arguments: &[&str],
        environment: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> io::Result<Self> {
        let program = CString::new(program.as_os_str().as_bytes())?;
        let mut words = vec![program.clone()];
        for argument in arguments {
            words.push(CString::new(*argument)?);
        }
        let mut variables = Vec::new();
        for (name, value) in environment {
            variables.push(CString::new(format!("{name}={value}"))?);
        }
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            let all = strings.iter().map(|string| string.as_ptr());
            all.chain([ptr::null()]).collect()
        };
        Ok(Self {
            argument_pointers: pointers(&words),
            environment_pointers: pointers(&variables),
            program,
            arguments: words,
            environment: variables,
        })
    }

    /// Becomes the program.
    fn execute(&self) {
        debug_assert_eq!(self.argument_pointers.len(), self.arguments.len() + 1);
        debug_assert_eq!(self.environment_pointers.len(), self.environment.len() + 1);
        // SAFETY: the lists end with a null, and what they point to lives as long as this does.
        unsafe {
            libc::execve(
                self.program.as_ptr(),
                self.argument_pointers.as_ptr(),
                self.environment_pointers.as_ptr(),
            );
        }
    }
}

/// The guard's process. Its supervisor may have had several threads, so it may not allocate.
fn guard(end: &PipeReader, locks: &[RawFd], kept: &[RawFd], command: &Execution) -> ! {
    // SAFETY: these change this process alone, and have no memory but what is given to them.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for stream in 0..3 {
            libc::dup2(null, stream);
        }
        // All but the locks and the end of the pipe, so that nothing seems to be held by the
        // supervisor that is gone. Before Linux 5.9 they stay open until the guard goes.
        let mut from: c_int = 3;
        for descriptor in kept {
            close_between(from, descriptor - 1);
            from = descriptor + 1;
        }
        close_between(from, c_int::MAX);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    let mut byte = 0_u8;
    // SAFETY: it writes the byte.
    let mut read = || unsafe { libc::read(end.as_raw_fd(), (&raw mut byte).cast(), 1) };
    loop {
        match Errno::result(read()) {
            Ok(0) => break,
            Ok(_) | Err(Errno::EINTR) => {}
            // Nobody can tell any more when the supervisor goes.
            Err(_) => break,
        }
    }
    for lock in locks {
        // SAFETY: it changes a flag of a descriptor of this process.
        unsafe { libc::fcntl(*lock, libc::F_SETFD, 0) };
    }
    command.execute();
    // SAFETY: it ends this process, and runs none of the supervisor's own endings.
    unsafe { libc::_exit(127) }
}

/// Both included.
fn close_between(first: c_int, last: c_int) {
    if first <= last {
        // SAFETY: it closes descriptors of this process, none of which is used from here on.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

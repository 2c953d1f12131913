//! A process beside a supervisor that outlives it: when the supervisor is killed, it runs one command
//! that ends what the run left, and holds the locks of the run's devices until then.

use std::{
    io::{self, PipeWriter},
    os::{fd::RawFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    libc,
    sys::signal::{SigSet, SigmaskHow, sigprocmask},
};

/// Waits for the end of standard input, then becomes the command.
const WAIT: &str = r#"while read -r _; do :; done; exec "$@" >/dev/null 2>&1"#;

/// Lives as long as the supervisor does; dropped, it goes and runs nothing.
pub(super) struct Guard {
    pub(super) child: Child,
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
        let locks = locks.to_vec();
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", WAIT])
            .arg(format!("tprimat-guard {}", run.display()))
            .arg(program)
            .args(arguments);
        command.env_clear().envs(environment);
        command
            .stdin(end)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let keep_locks = move || {
            for lock in &locks {
                // SAFETY: it changes a flag of a descriptor of this process.
                if unsafe { libc::fcntl(*lock, libc::F_SETFD, 0) } < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes system calls and allocates nothing.
        unsafe { command.pre_exec(keep_locks) };
        Ok(Self {
            child: command.spawn()?,
            _lifeline: lifeline,
        })
    }

    pub fn pid(&self) -> Option<i32> {
        i32::try_from(self.child.id()).ok()
    }
}

impl Drop for Guard {
    /// The supervisor has ended everything itself.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Where attacks are tried: folders that two users can reach, and what each of them may start
//! there.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use crate::support::{CONFIG, ONE_RUN, Project, Ran, TPRIMAT, TRAINER};

/// `nobody`, on every Linux.
pub const NOBODY: u32 = 65_534;

/// Longer than any command here takes on a busy machine; what waits for ever is ended, and the test
/// fails.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Arena {
    folder: tempfile::TempDir,
    /// A tprimat that every user can start.
    tprimat: PathBuf,
}

impl Arena {
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("tprimat-attack-")
            .tempdir()
            .unwrap();
        permit(folder.path(), 0o755);
        let tprimat = folder.path().join("bin/tprimat");
        fs::create_dir(folder.path().join("bin")).unwrap();
        if fs::hard_link(TPRIMAT, &tprimat).is_err() {
            fs::copy(TPRIMAT, &tprimat).unwrap();
        }
        Self { folder, tprimat }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file, its folders made.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.write(name, text);
        permit(&path, 0o755);
        path
    }

    /// A project of one run of the stub trainer.
    pub fn project(&self, name: &str) -> PathBuf {
        self.write(&format!("{name}/config.yaml"), CONFIG);
        self.write(&format!("{name}/matrix.toml"), ONE_RUN);
        self.write(&format!("{name}/trainer.sh"), TRAINER);
        self.path(name)
    }

    /// Runs tprimat in a folder, as the caller of the tests.
    pub fn run(&self, at: &Path, arguments: &[&str]) -> Ran {
        self.run_with(at, arguments, &[])
    }

    pub fn run_with(&self, at: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(&self.tprimat);
        command.args(arguments).envs(env.iter().copied());
        self.finish(command, at)
    }

    /// Runs tprimat as nobody.
    pub fn run_as_nobody(&self, at: &Path, arguments: &[&str]) -> Ran {
        let mut command = Command::new(&self.tprimat);
        command.args(arguments).uid(NOBODY).gid(NOBODY);
        self.finish(command, at)
    }

    /// Runs a line of shell, as nobody where asked.
    #[track_caller]
    pub fn shell(&self, at: &Path, line: &str, as_nobody: bool) {
        let mut command = Command::new("sh");
        command.args(["-ec", line]);
        if as_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let ran = self.finish(command, at);
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    }

    fn finish(&self, mut command: Command, at: &Path) -> Ran {
        command
            .current_dir(at)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let given: Vec<_> = command
            .get_envs()
            .filter_map(|(n, v)| Some((n.to_owned(), v?.to_owned())))
            .collect();
        command.env_clear();
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("home"));
        command
            .env("TPRIMAT_LOCK_DIR", self.path("device-locks"))
            .env("COLUMNS", "120")
            .envs(given);
        let child = command.spawn().unwrap();
        wait(child, PATIENCE).into()
    }
}

/// What a child leaves; it is killed, and the test fails, if it does not end.
fn wait(child: std::process::Child, patience: Duration) -> Output {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    let (done, ended) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || done.send(child.wait_with_output().unwrap()));
    let begun = Instant::now();
    match ended.recv_timeout(patience) {
        Ok(output) => {
            let _ = waiting.join();
            output
        }
        Err(_) => {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            panic!("it did not end in {:?}", begun.elapsed());
        }
    }
}

pub fn permit(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Gives a folder and all that is in it to nobody.
pub fn give_away(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            give_away(&entry.path());
        } else {
            std::os::unix::fs::lchown(entry.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// The same project as a test of one user has it.
pub fn one_user() -> Project {
    Project::new(ONE_RUN)
}

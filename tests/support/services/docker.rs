//! An image made of a few programs of this host, and a Docker daemon that tests may stop and kill.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use super::tool;

/// What a trainer of these tests needs, with the libraries that they need.
const MAKE_ROOT: &str = r#"set -e
root=$1
mkdir -p $root/bin $root/etc $root/tmp
for name in bash sh cat sleep setsid tr tail env; do
    program=$(readlink -f "$(command -v $name)")
    cp "$program" $root/bin/$name
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname $library)"
        cp -L $library $root$library
    done
done
echo "$2" > $root/etc/inside
tar -C $root -cf $root.tar .
"#;

/// An image as a tar below `folder`, for `docker import`; `mark` is what its /etc/inside says.
pub fn packed_image(folder: &Path, mark: &str) -> String {
    let root = folder.join("image").display().to_string();
    let made = tool("bash", &["-c", MAKE_ROOT, "make", &root, mark], "bash");
    assert!(made.status.success(), "{made:?}");
    format!("{root}.tar")
}

/// A Docker daemon of one test alone, with its own containers and images; it ends with the test.
pub struct Daemon {
    folder: TempDir,
    child: Child,
}

const PACKAGE: &str = "docker.io";

impl Daemon {
    pub fn start() -> Self {
        tool("docker", &["--version"], PACKAGE);
        let folder = tempfile::Builder::new()
            .prefix("tprimat-docker-")
            .tempdir()
            .unwrap();
        // The host's own settings would contradict those below.
        fs::write(folder.path().join("daemon.json"), "{}").unwrap();
        let child = Self::spawn(folder.path());
        let mut daemon = Self { folder, child };
        daemon.await_answer();
        daemon
    }

    fn spawn(folder: &Path) -> Child {
        let at = |option: &str, name: &str| format!("--{option}={}", folder.join(name).display());
        // One that shares containerd with the host's daemon would see that one's containers.
        let mark = folder.file_name().unwrap().to_string_lossy().into_owned();
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("log"))
            .unwrap();
        Command::new("dockerd")
            .args([
                at("config-file", "daemon.json"),
                format!("--host={}", address(folder)),
                at("data-root", "data"),
                at("exec-root", "exec"),
                at("pidfile", "pid"),
                format!("--containerd-namespace={mark}"),
                format!("--containerd-plugins-namespace={mark}-plugins"),
            ])
            .args(["--storage-driver=vfs", "--bridge=none"])
            .args(["--iptables=false", "--ip6tables=false"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("dockerd: {e}; `apt-get install -y {PACKAGE}` installs it"))
    }

    fn await_answer(&mut self) {
        let begun = Instant::now();
        while !self.ask(&["info"]).0 {
            // As the host's service manager would: a daemon that finds its predecessor's containerd
            // on the way out may give up.
            if self.child.try_wait().unwrap().is_some() {
                self.child = Self::spawn(self.folder.path());
            }
            // After it was killed it ends the containers that went on first, which takes 10 s each.
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "a Docker daemon of this test's own, which needs root, does not answer:\n{}",
                fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// What `docker` is told to find it.
    pub fn address(&self) -> String {
        address(self.folder.path())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether the command succeeded, and what it said.
    pub fn ask(&self, arguments: &[&str]) -> (bool, String) {
        let mut docker = Command::new("docker");
        docker.env("DOCKER_HOST", self.address()).args(arguments);
        let said = docker.output().unwrap();
        (
            said.status.success(),
            String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned(),
        )
    }

    /// Sends the daemon a signal that ends it, and starts another one in its place.
    pub fn restart(&mut self, signal: Signal, pause: Duration) {
        self.end(signal);
        thread::sleep(pause);
        self.child = Self::spawn(self.folder.path());
        self.await_answer();
    }

    fn end(&mut self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
        let _ = self.child.wait();
    }
}

fn address(folder: &Path) -> String {
    format!("unix://{}", folder.join("docker.sock").display())
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let (_, all) = self.ask(&["ps", "--all", "--quiet"]);
        for id in all.lines() {
            self.ask(&["rm", "--force", id]);
        }
        self.end(Signal::SIGTERM);
        // A killed daemon leaves its containerd behind.
        let pid = self.folder.path().join("exec/containerd/containerd.pid");
        let pid = fs::read_to_string(pid)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        if let Some(pid) = pid {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        // So may a container's shim be left. All of them name the folder, which is this test's alone.
        let mark = self.folder.path().display().to_string();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(pid) = pid
                && String::from_utf8_lossy(&line).contains(&mark)
            {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        for mount in ["exec/netns/default", "data"] {
            let _ = Command::new("umount")
                .arg("--lazy")
                .arg(self.folder.path().join(mount))
                .stderr(Stdio::null())
                .status();
        }
    }
}

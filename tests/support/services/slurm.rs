//! Slurm with two nodes on this host: munged, slurmctld and two slurmd of one test alone, on free
//! ports.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{eventually, tool};
use crate::support::{CONFIG, ONE_RUN, Project, Ran};

pub const PACKAGES: &str = "slurm-wlm munge";
pub const NODES: [&str; 2] = ["n1", "n2"];

/// Ended when it is dropped, with all that it started.
pub struct Cluster {
    pub folder: PathBuf,
    pub project: Project,
}

impl Cluster {
    pub fn new(trainer: &str) -> Self {
        tool("sbatch", &["--version"], PACKAGES);
        tool("munged", &["--version"], PACKAGES);
        let project = Project::new(ONE_RUN);
        project.write("trainer.sh", trainer);
        let folder = project.folder().join("slurm");
        fs::create_dir_all(folder.join("state")).unwrap();
        // munged trusts no folder that others may enter and no key that others may read.
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        fs::write(folder.join("munge.key"), [7_u8; 1024]).unwrap();
        mode(&folder.join("munge.key"), 0o600);
        for above in [project.folder(), &folder] {
            mode(above, 0o755);
        }
        let cluster = Self { folder, project };
        cluster.write_conf();
        let at = |name: &str| cluster.folder.join(name).display().to_string();
        let named = |option: &str, name: &str| format!("--{option}={}", at(name));
        let munged = [
            "--force".to_owned(),
            named("key-file", "munge.key"),
            named("socket", "munge.socket"),
            named("pid-file", "munged.pid"),
            named("log-file", "munged.log"),
            named("seed-file", "munge.seed"),
        ];
        cluster.starts("munged", &munged.each_ref().map(String::as_str));
        cluster.start_controller();
        NODES.iter().for_each(|node| cluster.start_node(node));
        eventually("both nodes are idle", 30, || cluster.is_idle());
        cluster.config("");
        cluster
    }

    fn write_conf(&self) {
        let host = tool("hostname", &["-s"], "hostname");
        let host = String::from_utf8_lossy(&host.stdout).trim().to_owned();
        let listeners: Vec<TcpListener> = (0..3)
            .map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap())
            .collect();
        let ports: Vec<u16> = listeners
            .iter()
            .map(|l| l.local_addr().unwrap().port())
            .collect();
        let (at, user) = (self.folder.display(), user());
        let text = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\nCredType=cred/munge\nStateSaveLocation={at}/state\n\
             SlurmdSpoolDir={at}/spool-%n\nSlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd-%n.pid\n\
             SlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd-%n.log\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
             ReturnToService=2\nSlurmdParameters=config_overrides\nSchedulerParameters=sched_interval=1,bf_interval=1\nKillWait=5\n\
             SlurmdTimeout=5\nSlurmctldTimeout=5\n\
             NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=1 RealMemory=500\n\
             NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=1 RealMemory=500\n\
             PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            ports[0], ports[1], ports[2]
        );
        fs::write(self.folder.join("slurm.conf"), text).unwrap();
    }

    pub fn start_controller(&self) {
        self.starts("slurmctld", &[]);
    }

    /// Starts the daemon of a node.
    pub fn start_node(&self, node: &str) {
        self.starts("slurmd", &["-N", node]);
    }

    /// Kills a daemon by its name, `slurmctld` or `slurmd-NODE`, and waits until it is gone.
    pub fn kill_daemon(&self, daemon: &str) {
        let Some(pid) = self.pid(daemon) else { return };
        let _ = kill(pid, Signal::SIGKILL);
        eventually("a killed daemon is gone", 30, || {
            // Its parent, init, may take a while to reap it.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        });
    }

    /// Are both nodes up, without a job?
    pub fn is_idle(&self) -> bool {
        let said = self.says("sinfo", &["--noheader", "--format=%D %T"]);
        said.trim() == "2 idle"
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    #[track_caller]
    fn starts(&self, daemon: &str, arguments: &[&str]) {
        let said = self
            .command(daemon)
            .args(arguments)
            .output()
            .unwrap_or_else(|e| panic!("{daemon}: {e}"));
        assert!(said.status.success(), "{daemon} must start: {said:?}");
    }

    pub fn says(&self, program: &str, arguments: &[&str]) -> String {
        let said = self.command(program).args(arguments).output().unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// Ids and states of all jobs that Slurm remembers.
    pub fn jobs(&self) -> Vec<String> {
        let said = self.says(
            "squeue",
            &["--noheader", "--states=all", "--format=%i %T %j"],
        );
        said.lines().map(|line| line.trim().to_owned()).collect()
    }

    pub fn id(&self) -> String {
        self.jobs()[0].split(' ').next().unwrap().to_owned()
    }

    pub fn pid(&self, daemon: &str) -> Option<Pid> {
        let text = fs::read_to_string(self.folder.join(format!("{daemon}.pid"))).ok()?;
        text.trim().parse().ok().map(Pid::from_raw)
    }

    /// `more`: further keys of `execution.cpu.slurm`.
    pub fn config(&self, more: &str) {
        let execution = format!("execution:\n  cpu: {{ executor: slurm, slurm: {{ {more} }} }}\n");
        self.project
            .write("config.yaml", &format!("{CONFIG}{execution}"));
    }

    pub fn tprimat(&self, arguments: &[&str]) -> Command {
        let mut command = self.project.tprimat(arguments);
        command
            .env("SLURM_CONF", self.folder.join("slurm.conf"))
            .env("HF_TOKEN", "hf_not_for_anybody_else");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.tprimat(arguments).output().unwrap().into()
    }

    /// A build whose trainer is up and goes on until there is a file `go`.
    pub fn started(&self) -> Child {
        let build = self
            .tprimat(&["build"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the trainer runs in its job", 40, || {
            self.project.path("up").exists()
        });
        build
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.says("scancel", &[&format!("--user={}", user())]);
        for daemon in ["slurmctld", "slurmd-n1", "slurmd-n2", "munged"] {
            if let Some(pid) = self.pid(daemon) {
                let _ = kill(pid, Signal::SIGKILL);
            }
        }
        // The last steps' own daemons name the folder of this test, and so do the jobs' processes.
        for (pid, _) in self.project.processes() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Who runs the tests, and so the daemons and the jobs.
fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid())
        .unwrap()
        .expect("this user has a name")
        .name
}

//! Where the builds of a day run, and what may go wrong there beside kills, damage and full disks.

use std::{fs, path::PathBuf, sync::mpsc, thread, time::Duration};

use nix::sys::signal::{Signal, kill};

use crate::{
    services::{
        clock,
        docker::{self, Daemon},
        eventually,
        s3::{self, Server},
        slurm::{Cluster, NODES},
    },
    support::{Dice, Project},
};

/// Among how many worlds the seeds of `make chaos` are spread.
pub const HOW_MANY: u64 = 6;

const IMAGE: &str = "chaos:1";

pub enum World {
    Local,
    /// tprimat and its trainers are told a time of day that is set now and then. Holds the library
    /// that does it.
    Clock(String),
    /// Runs are shared through a folder that is not always mounted.
    Folder,
    /// Runs are shared through a server that is not always there.
    Bucket(Server),
    Container(Daemon),
    Slurm(Box<Cluster>),
}

impl World {
    pub fn clock() -> Self {
        let library = clock::library();
        let project = Project::empty();
        clock::set(&clock_of(&project), "+3d");
        assert!(clock::is_believed(&library, &clock_of(&project)));
        Self::Clock(library)
    }

    pub fn bucket() -> Self {
        Self::Bucket(Server::start())
    }

    pub fn container() -> Self {
        let daemon = Daemon::start();
        let packed = docker::packed_image(daemon.folder(), IMAGE);
        let (is_made, said) = daemon.ask(&["import", &packed, IMAGE]);
        assert!(is_made, "{said}");
        Self::Container(daemon)
    }

    pub fn slurm() -> Self {
        Self::Slurm(Box::new(Cluster::new("")))
    }

    /// What tprimat is started with.
    pub fn environment(&self, project: &Project) -> Vec<(&'static str, String)> {
        match self {
            Self::Local => Vec::new(),
            Self::Clock(library) => {
                clock::set(&clock_of(project), "+0");
                clock::variables(library, &clock_of(project)).into()
            }
            Self::Folder => {
                fs::create_dir(remote_of(project)).unwrap();
                let address = format!("file://{}", remote_of(project).display());
                vec![("TPRIMAT_REMOTE", address)]
            }
            Self::Bucket(server) => {
                // A folder of its own, or one day would be handed the runs of another.
                let own = project.folder().display().to_string();
                let address = format!("{}/{}", s3::ADDRESS, own.trim_matches('/'));
                let mut variables: Vec<_> = server.variables().into();
                variables.retain(|(name, _)| *name != "TPRIMAT_REMOTE");
                variables.push(("TPRIMAT_REMOTE", address));
                variables
            }
            Self::Container(daemon) => vec![("DOCKER_HOST", daemon.address())],
            Self::Slurm(cluster) => {
                let conf = cluster.folder.join("slurm.conf");
                vec![("SLURM_CONF", conf.display().to_string())]
            }
        }
    }

    /// More lines of config.yaml.
    pub fn config(&self, project: &Project) -> String {
        match self {
            Self::Container(_) => {
                let journal = project.folder().join("journal");
                format!(
                    "execution:\n  cpu: {{ executor: container, container: {{ engine: docker, image: '{IMAGE}', mounts: ['{}'] }} }}\n",
                    journal.display()
                )
            }
            Self::Slurm(_) => {
                "execution:\n  cpu: { executor: slurm, slurm: { max_jobs: 2 } }\n".into()
            }
            _ => String::new(),
        }
    }

    /// What the trainer begins with. Where a run takes long to start it lasts longer, too, so that
    /// blows hit it.
    pub fn trainer(&self) -> String {
        let library = match self {
            Self::Clock(library) => library,
            Self::Container(_) => return "pause=0.1".into(),
            Self::Slurm(_) => return "pause=0.3".into(),
            _ => return String::new(),
        };
        let file = PathBuf::from("$TPRIMAT_PROJECT_DIR/../clock");
        let set: String = clock::variables(library, &file)
            .iter()
            .map(|(name, value)| format!("{name}=\"{value}\" "))
            .collect();
        format!(
            "if [[ -z $LD_PRELOAD ]]; then export {set}; exec bash \"$0\"; fi\n\
             dated() {{ printf ',\"time\":%s' \"$EPOCHREALTIME\"; }}"
        )
    }

    /// How long nothing happens: as long as a part of a build takes in this world.
    pub fn moment(&self, dice: &mut Dice) -> Duration {
        let most = match self {
            Self::Container(_) => 700,
            Self::Slurm(_) => 2500,
            _ => 250,
        };
        Duration::from_millis(dice.roll(most) as u64)
    }

    /// Does everything run on this host's own disk?
    pub fn is_local(&self) -> bool {
        !matches!(self, Self::Container(_) | Self::Slurm(_))
    }

    /// May a run go on after its tprimat?
    pub fn runs_outlive_builds(&self) -> bool {
        matches!(self, Self::Slurm(_))
    }

    pub fn has_remote(&self) -> bool {
        matches!(self, Self::Folder | Self::Bucket(_))
    }

    /// Something that can only go wrong here; what it was, if there was anything to hit.
    pub fn blow(&mut self, project: &Project, dice: &mut Dice) -> Option<&'static str> {
        let moment = self.moment(dice);
        match self {
            Self::Local => None,
            Self::Clock(_) => {
                let offset = dice.pick(&["+0", "+3h", "-3h", "+2d", "-400d", "+400d", "-1"]);
                clock::set(&clock_of(project), offset);
                Some("clock set")
            }
            Self::Folder => {
                let (here, away) = (remote_of(project), project.folder().join("away"));
                fs::rename(&here, &away).unwrap();
                thread::sleep(moment * 2);
                fs::rename(&away, &here).unwrap();
                Some("remote folder away")
            }
            Self::Bucket(server) => {
                if dice.roll(2) == 0 {
                    server.begin_anew();
                    return Some("S3 server killed, and begun anew");
                }
                let _ = kill(server.pid(), Signal::SIGSTOP);
                thread::sleep(moment * 2);
                let _ = kill(server.pid(), Signal::SIGCONT);
                Some("S3 server stopped for a while")
            }
            Self::Container(daemon) => match dice.roll(4) {
                0 => {
                    daemon.restart(Signal::SIGTERM, moment);
                    Some("Docker daemon restarted")
                }
                1 => {
                    daemon.restart(Signal::SIGKILL, moment);
                    Some("Docker daemon killed, and started")
                }
                how => {
                    let running = containers(daemon, project, false);
                    let name = running.get(dice.roll(running.len().max(1)))?;
                    if how == 2 {
                        daemon.ask(&["kill", name]);
                        Some("docker kill")
                    } else {
                        daemon.ask(&["rm", "--force", name]);
                        Some("docker rm --force")
                    }
                }
            },
            Self::Slurm(cluster) => match dice.roll(3) {
                0 => {
                    cluster.kill_daemon("slurmctld");
                    thread::sleep(moment);
                    cluster.start_controller();
                    Some("slurmctld killed, and started")
                }
                1 => {
                    let node = dice.pick(&NODES);
                    cluster.kill_daemon(&format!("slurmd-{node}"));
                    // Up to longer than the controller waits for it.
                    thread::sleep(moment * 4);
                    cluster.start_node(node);
                    Some("slurmd killed, and started")
                }
                _ => {
                    let active = cluster.says("squeue", &["--noheader", "--format=%i"]);
                    let ids: Vec<&str> = active.lines().map(str::trim).collect();
                    let id = ids.get(dice.roll(ids.len().max(1)))?;
                    cluster.says("scancel", &[id]);
                    Some("job cancelled")
                }
            },
        }
    }

    /// Does something that waits for the services, while an operator looks after them.
    pub fn tended<T>(&self, work: impl FnOnce() -> T) -> T {
        let Self::Slurm(cluster) = self else {
            return work();
        };
        let (working, done) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let look = Duration::from_millis(500);
                while done.recv_timeout(look) == Err(mpsc::RecvTimeoutError::Timeout) {
                    resume(cluster);
                }
            });
            let result = work();
            drop(working);
            result
        })
    }

    /// Everything that was away is back.
    pub fn calm(&mut self, project: &Project) {
        match self {
            Self::Clock(_) => clock::set(&clock_of(project), "+0"),
            Self::Slurm(cluster) => {
                let is_up = || {
                    resume(cluster);
                    let said = cluster.says("sinfo", &["--noheader", "--format=%t"]);
                    let is_fine = |state: &str| {
                        let known = ["idle", "alloc", "mix", "comp"];
                        known.contains(&state.trim())
                    };
                    !said.is_empty() && said.lines().all(is_fine)
                };
                eventually("both nodes answer", 90, is_up);
            }
            _ => {}
        }
    }

    /// What a day left behind in the services.
    pub fn left(&self, project: &Project) -> Vec<String> {
        let mut left = match self {
            Self::Container(daemon) => containers(daemon, project, true),
            Self::Slurm(cluster) => {
                let jobs = || cluster.says("squeue", &["--noheader", "--format=%i %T %j"]);
                // One that has ended takes a moment to go.
                let begun = std::time::Instant::now();
                while !jobs().is_empty() && begun.elapsed() < Duration::from_secs(30) {
                    thread::sleep(Duration::from_millis(100));
                }
                jobs().lines().map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let below = format!("{}/", project.root().display());
        left.extend(
            mounts
                .lines()
                .filter(|line| line.contains(&below))
                .map(str::to_owned),
        );
        left
    }
}

/// A controller that was killed between a job's start and its own note of it drains the node that
/// still has the job, until an operator resumes the node.
fn resume(cluster: &Cluster) {
    let said = cluster.says("sinfo", &["--noheader", "--format=%t"]);
    if said.contains("drain") || said.contains("drng") {
        let nodes = format!("NodeName={}", NODES.join(","));
        cluster.says("scontrol", &["update", &nodes, "State=RESUME"]);
    }
}

fn containers(daemon: &Daemon, project: &Project, with_ended: bool) -> Vec<String> {
    let filter = format!("volume={}", project.root().display());
    let mut arguments = vec!["ps", "--filter", &filter, "--format", "{{.Names}}"];
    if with_ended {
        arguments.push("--all");
    }
    let (is_told, names) = daemon.ask(&arguments);
    assert!(is_told, "{names}");
    names.lines().map(str::to_owned).collect()
}

fn clock_of(project: &Project) -> PathBuf {
    project.folder().join("clock")
}

fn remote_of(project: &Project) -> PathBuf {
    project.folder().join("remote")
}

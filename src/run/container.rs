//! The flags of container engines without which GPUs and shared memory are not there.

use super::spec::Gpu;
use crate::{host::EngineKind, job::Vendor};

/// What every container of a run or a shell gets, whatever engine starts it.
pub struct Needs<'a> {
    pub vendor: Vendor,
    /// `None`: all that the host has.
    pub gpus: Option<&'a [Gpu]>,
    /// `HOST:INSIDE`, or `HOST:INSIDE:ro`.
    pub mounts: &'a [String],
    pub workdir: &'a str,
}

impl Needs<'_> {
    /// The arguments of an engine between its verb and the image.
    #[must_use]
    pub fn arguments(&self, kind: EngineKind) -> Vec<String> {
        match kind {
            EngineKind::Docker | EngineKind::Podman => self.of_docker(kind),
            EngineKind::Apptainer => self.of_apptainer(),
            EngineKind::Pyxis => self.of_pyxis(),
            EngineKind::Kubernetes => Vec::new(),
        }
    }

    fn of_docker(&self, kind: EngineKind) -> Vec<String> {
        let mut arguments = match self.vendor {
            Vendor::Cpu => Vec::new(),
            Vendor::Nvd => self.of_nvidia(kind),
            Vendor::Amd => self.of_amd(kind),
        };
        if self.vendor != Vendor::Cpu {
            // NCCL and RCCL pin the memory that they share; what containers allow by default is far
            // too little.
            arguments.extend(words("--ulimit memlock=-1 --ulimit stack=67108864"));
        }
        arguments.extend(words("--ipc=host --network=host"));
        let mounts = self.mounts.iter();
        arguments.extend(mounts.flat_map(|mount| ["--volume".to_owned(), mount.clone()]));
        arguments.extend(["--workdir".to_owned(), self.workdir.to_owned()]);
        arguments
    }

    fn of_nvidia(&self, kind: EngineKind) -> Vec<String> {
        let names = |gpus: &[Gpu]| -> Vec<String> {
            // An index could mean another GPU inside than outside, a UUID never does.
            gpus.iter()
                .map(|gpu| gpu.uuid.clone().unwrap_or_else(|| gpu.index.to_string()))
                .collect()
        };
        match (kind, self.gpus.map(names)) {
            (EngineKind::Podman, None) => words("--device nvidia.com/gpu=all"),
            (EngineKind::Podman, Some(names)) => names
                .into_iter()
                .flat_map(|name| ["--device".to_owned(), format!("nvidia.com/gpu={name}")])
                .collect(),
            (_, None) => words("--gpus all"),
            // The quotes are docker's: without them it takes what follows a comma for another
            // option.
            (_, Some(names)) => vec![
                "--gpus".to_owned(),
                format!("\"device={}\"", names.join(",")),
            ],
        }
    }

    fn of_amd(&self, kind: EngineKind) -> Vec<String> {
        let named = self
            .gpus
            .filter(|gpus| has_these_alone(kind, Vendor::Amd, *gpus));
        let mut arguments = words("--device=/dev/kfd");
        let mut groups = vec!["video".to_owned()];
        match named {
            Some(gpus) => {
                for node in gpus.iter().filter_map(|gpu| gpu.render_node.as_deref()) {
                    arguments.push(format!("--device={}", node.display()));
                    // By number: the image may have no group of that name.
                    let group = std::fs::metadata(node)
                        .map(|found| std::os::unix::fs::MetadataExt::gid(&found).to_string());
                    groups.extend(group.ok().filter(|group| !groups.contains(group)));
                }
            }
            // A GPU whose node is not known is among all of them.
            None => arguments.push("--device=/dev/dri".to_owned()),
        }
        let groups = groups.into_iter();
        arguments.extend(groups.flat_map(|group| ["--group-add".to_owned(), group]));
        arguments.extend(words(
            "--cap-add=SYS_PTRACE --security-opt seccomp=unconfined",
        ));
        arguments
    }

    /// Every process stays the caller's own, so devices are chosen by the variables of the run
    /// alone.
    fn of_apptainer(&self) -> Vec<String> {
        let mut arguments = words("--cleanenv --no-home");
        arguments.extend(match self.vendor {
            Vendor::Cpu => None,
            Vendor::Nvd => Some("--nv".to_owned()),
            Vendor::Amd => Some("--rocm".to_owned()),
        });
        let binds = self.mounts.iter();
        arguments.extend(binds.flat_map(|mount| ["--bind".to_owned(), mount.clone()]));
        arguments.extend(["--pwd".to_owned(), self.workdir.to_owned()]);
        arguments
    }

    fn of_pyxis(&self) -> Vec<String> {
        vec![
            format!("--container-mounts={}", self.mounts.join(",")),
            format!("--container-workdir={}", self.workdir),
            "--no-container-mount-home".to_owned(),
        ]
    }
}

/// Does an engine hand in exactly these GPUs? Then they are numbered anew inside, from 0; else the
/// run sees all, under the host's numbers.
pub(crate) fn has_these_alone<'a>(
    kind: EngineKind,
    vendor: Vendor,
    gpus: impl IntoIterator<Item = &'a Gpu>,
) -> bool {
    match (kind, vendor) {
        (EngineKind::Docker | EngineKind::Podman, Vendor::Nvd) => true,
        (EngineKind::Docker | EngineKind::Podman, Vendor::Amd) => {
            gpus.into_iter().all(|gpu| gpu.render_node.is_some())
        }
        _ => false,
    }
}

/// Makes the container's user the caller, so that files which it makes in the project are the
/// caller's own.
pub(crate) fn user_arguments(kind: EngineKind) -> Vec<String> {
    match kind {
        EngineKind::Docker | EngineKind::Podman => {
            let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
            let mut words = vec!["--user".to_owned(), format!("{user}:{group}")];
            if kind == EngineKind::Podman && !user.is_root() {
                words.push("--userns=keep-id".into());
            }
            words
        }
        // Their processes are the caller's anyway.
        EngineKind::Apptainer | EngineKind::Pyxis | EngineKind::Kubernetes => Vec::new(),
    }
}

/// The variables of a user's own folder in a container, whose image does not know the caller.
#[must_use]
pub fn home_variables(home: &str) -> [(&'static str, String); 3] {
    [
        ("HOME", home.to_owned()),
        ("USER", "tprimat".to_owned()),
        ("LOGNAME", "tprimat".to_owned()),
    ]
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: usize) -> Gpu {
        let render_node = Some(format!("/dev/dri/renderD{}", 128 + index).into());
        Gpu {
            index,
            lock: String::new(),
            uuid: Some(format!("GPU-{index}a")),
            render_node,
        }
    }

    #[test]
    fn a_run_gets_its_own_gpus_and_no_others() {
        let gpus = [gpu(1), gpu(3)];
        let mounts = ["/p:/p".to_owned()];
        let line = |kind, vendor| {
            let needs = Needs {
                vendor,
                gpus: Some(&gpus),
                mounts: &mounts,
                workdir: "/p",
            };
            needs.arguments(kind).join(" ")
        };
        assert!(
            line(EngineKind::Docker, Vendor::Nvd).starts_with("--gpus \"device=GPU-1a,GPU-3a\" ")
        );
        let podman = line(EngineKind::Podman, Vendor::Nvd);
        assert!(
            podman.starts_with("--device nvidia.com/gpu=GPU-1a --device nvidia.com/gpu=GPU-3a "),
            "{podman}"
        );
        let amd = line(EngineKind::Docker, Vendor::Amd);
        assert!(
            amd.starts_with(
                "--device=/dev/kfd --device=/dev/dri/renderD129 --device=/dev/dri/renderD131 "
            ),
            "{amd}"
        );
        assert!(line(EngineKind::Apptainer, Vendor::Nvd).contains("--nv --bind /p:/p --pwd /p"));
        assert!(
            line(EngineKind::Pyxis, Vendor::Nvd)
                .contains("--container-mounts=/p:/p --container-workdir=/p")
        );
    }

    #[test]
    fn gpus_are_numbered_anew_only_where_the_container_has_these_alone() {
        let known = [gpu(1), gpu(3)];
        let unknown = [
            gpu(1),
            Gpu {
                render_node: None,
                ..gpu(3)
            },
        ];
        let line = |gpus| {
            let needs = Needs {
                vendor: Vendor::Amd,
                gpus: Some(gpus),
                mounts: &[],
                workdir: "/p",
            };
            needs.arguments(EngineKind::Docker).join(" ")
        };
        let all = "--device=/dev/dri ";
        for (gpus, are_alone) in [(&known, true), (&unknown, false)] {
            assert_eq!(
                has_these_alone(EngineKind::Docker, Vendor::Amd, gpus),
                are_alone
            );
            assert_eq!(!line(gpus).contains(all), are_alone, "{}", line(gpus));
        }
        assert!(has_these_alone(EngineKind::Podman, Vendor::Nvd, &unknown));
        assert!(!has_these_alone(EngineKind::Apptainer, Vendor::Nvd, &known));
    }
}

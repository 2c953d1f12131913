//! Containers: the image of a framework, and the flags without which GPUs and shared memory are not
//! there.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

use minijinja::context;

use super::spec::Gpu;
use crate::{
    error::{Error, Problem, Result, Source},
    files::TRUSTED_VARIABLE,
    host::EngineKind,
    job::Vendor,
    recipe::{Recipe, Templates},
    shipped::shipped_file,
};

/// The Dockerfile and the files beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub files: Vec<(String, Vec<u8>)>,
}

impl Context {
    /// `user`: a numeric `UID` or `UID:GID` that the container runs as; none: the base image's.
    pub fn render(
        root: &Path,
        recipe: &Recipe,
        vendor: Vendor,
        base: &str,
        user: Option<&str>,
    ) -> Result<Self> {
        const NAME: &str = "templates/Dockerfile.j2";
        check_word("image", base, |c| {
            c.is_ascii_alphanumeric() || "._/:@-".contains(c)
        })?;
        if let Some(user) = user {
            check_word("user", user, |c| c.is_ascii_digit() || c == ':')?;
        }
        let own = std::fs::read(root.join(NAME)).ok();
        let text = own
            .as_deref()
            .or_else(|| shipped_file(NAME))
            .unwrap_or_default();
        let mut templates = Templates::default();
        templates.add(
            "Dockerfile.j2",
            Source::new(NAME, String::from_utf8_lossy(text)),
        )?;
        let requirements = format!("requirements.{}.txt", vendor.name());
        let requirements = recipe.files.iter().find(|(name, ..)| *name == requirements);
        let values = context! {
            recipe => recipe.file.id.clone(), vendor => vendor.name(), base, user, requirements => requirements.is_some(),
            // A program that ships with tprimat was linked before: no other torch will do.
            needs_this_torch => !recipe.file.require.programs.is_empty()
        };
        let dockerfile = templates.render("Dockerfile.j2", &values)?;
        let mut files = vec![(dockerfile.name, dockerfile.bytes)];
        files.extend(
            requirements.map(|(_, bytes, _)| ("requirements.txt".to_owned(), bytes.to_vec())),
        );
        Ok(Self { files })
    }

    #[must_use]
    pub fn dockerfile(&self) -> String {
        String::from_utf8_lossy(&self.files[0].1).into_owned()
    }
}

fn check_word(what: &str, text: &str, allowed: fn(char) -> bool) -> Result<()> {
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(allowed) {
        return Ok(());
    }
    Err(Error::invalid(Problem::new(format!(
        "`{text}` cannot be the name of an {what}"
    ))))
}

/// The declared variables of a container, in a file that only the caller can read and that goes
/// when this is dropped. They are never set on the engine's own program, which would obey them:
/// PATH, LD_PRELOAD, DOCKER_HOST.
pub struct EnvFile(tempfile::NamedTempFile);

impl EnvFile {
    pub fn write(env: &BTreeMap<String, String>) -> Result<Self> {
        let mut text = String::new();
        for (name, value) in env {
            if value.contains(['\n', '\r', '\0'])
                || name.contains(['=', '\n', '\0'])
                || name.is_empty()
            {
                let problem = Problem::new(format!(
                    "the variable `{name}` cannot reach a container: it has several lines"
                ));
                return Err(Error::invalid(problem.help(
                    "write its value in one line, or set it inside the container",
                )));
            }
            text += &format!("{name}={value}\n");
        }
        let write = || -> io::Result<tempfile::NamedTempFile> {
            let mut file = tempfile::Builder::new().prefix("tprimat-env-").tempfile()?;
            file.write_all(text.as_bytes())?;
            Ok(file)
        };
        write()
            .map(Self)
            .map_err(Error::io("cannot write a file in", std::env::temp_dir()))
    }

    /// What the engine is told of it.
    #[must_use]
    pub fn arguments(&self) -> [String; 2] {
        [
            "--env-file".to_owned(),
            self.0.path().to_string_lossy().into_owned(),
        ]
    }
}

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
            arguments.extend(words(&[
                "--ulimit",
                "memlock=-1",
                "--ulimit",
                "stack=67108864",
            ]));
        }
        arguments.extend(words(&["--ipc=host", "--network=host"]));
        arguments.extend(
            self.mounts
                .iter()
                .flat_map(|mount| ["--volume".to_owned(), mount.clone()]),
        );
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
            (EngineKind::Podman, None) => words(&["--device", "nvidia.com/gpu=all"]),
            (EngineKind::Podman, Some(names)) => names
                .into_iter()
                .flat_map(|name| ["--device".to_owned(), format!("nvidia.com/gpu={name}")])
                .collect(),
            (_, None) => words(&["--gpus", "all"]),
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
        let nodes: Option<Vec<&Path>> = named.map(|gpus| {
            gpus.iter()
                .filter_map(|g| g.render_node.as_deref())
                .collect()
        });
        let mut arguments = words(&["--device=/dev/kfd"]);
        let mut groups = vec!["video".to_owned()];
        match nodes {
            Some(nodes) => {
                for node in nodes {
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
        arguments.extend(
            groups
                .into_iter()
                .flat_map(|group| ["--group-add".to_owned(), group]),
        );
        arguments.extend(words(&[
            "--cap-add=SYS_PTRACE",
            "--security-opt",
            "seccomp=unconfined",
        ]));
        arguments
    }

    /// Every process stays the caller's own, so devices are chosen by the variables of the run
    /// alone.
    fn of_apptainer(&self) -> Vec<String> {
        let mut arguments = words(&["--cleanenv", "--no-home"]);
        arguments.extend(match self.vendor {
            Vendor::Cpu => None,
            Vendor::Nvd => Some("--nv".to_owned()),
            Vendor::Amd => Some("--rocm".to_owned()),
        });
        arguments.extend(
            self.mounts
                .iter()
                .flat_map(|mount| ["--bind".to_owned(), mount.clone()]),
        );
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
        (EngineKind::Apptainer | EngineKind::Pyxis, _) | (_, Vendor::Cpu) => false,
        (EngineKind::Docker | EngineKind::Podman, Vendor::Nvd) => true,
        (EngineKind::Docker | EngineKind::Podman, Vendor::Amd) => {
            gpus.into_iter().all(|gpu| gpu.render_node.is_some())
        }
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
        EngineKind::Apptainer | EngineKind::Pyxis => Vec::new(),
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

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// What an engine needs before the image, for an interactive container of a vendor. `env`: names
/// only; their values are taken from the engine's own environment, so that none is seen in a list
/// of processes.
#[must_use]
pub fn shell_arguments(
    kind: EngineKind,
    vendor: Vendor,
    root: &str,
    more_mounts: &[String],
    is_terminal: bool,
    env: &[&str],
) -> Vec<String> {
    let mounts = [&[format!("{root}:{root}")], more_mounts].concat();
    let needs = Needs {
        vendor,
        gpus: None,
        mounts: &mounts,
        workdir: root,
    };
    if kind == EngineKind::Apptainer {
        // It passes the caller's environment on by itself.
        let arguments = needs
            .arguments(kind)
            .into_iter()
            .filter(|word| word != "--cleanenv");
        return std::iter::once("exec".to_owned())
            .chain(arguments)
            .collect();
    }
    let mut arguments = words(&["run", "--rm", "--interactive"]);
    if is_terminal {
        arguments.push("--tty".to_owned());
    }
    arguments.extend(user_arguments(kind));
    arguments.extend(words(&["--label", "tprimat=shell"]));
    // The container's user may be another one than the project's owner, who has just asked for
    // this.
    arguments.extend(["--env".into(), format!("{TRUSTED_VARIABLE}={root}")]);
    arguments.extend(needs.arguments(kind));
    arguments.extend(
        env.iter()
            .flat_map(|name| ["--env".to_owned(), (*name).to_owned()]),
    );
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::RecipeSet;

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
    fn each_vendor_gets_its_devices() {
        let line =
            |kind, vendor| shell_arguments(kind, vendor, "/p", &[], false, &["HF_TOKEN"]).join(" ");
        let docker = EngineKind::Docker;
        assert!(line(docker, Vendor::Nvd).contains("--gpus all"));
        assert!(line(EngineKind::Podman, Vendor::Nvd).contains("--device nvidia.com/gpu=all"));
        assert!(
            line(docker, Vendor::Amd)
                .contains("--device=/dev/kfd --device=/dev/dri --group-add video")
        );
        let cpu = line(docker, Vendor::Cpu);
        assert!(!cpu.contains("gpu") && !cpu.contains("/dev/"), "{cpu}");
        assert!(
            cpu.ends_with("--volume /p:/p --workdir /p --env HF_TOKEN"),
            "{cpu}"
        );
        let user = format!(
            " --user {}:{} ",
            nix::unistd::geteuid(),
            nix::unistd::getegid()
        );
        assert!(cpu.contains(&user), "the files are the caller's: {cpu}");
        assert!(!line(EngineKind::Apptainer, Vendor::Cpu).contains("--user"));
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

    #[test]
    fn declared_variables_reach_the_container_in_a_private_file() {
        use std::os::unix::fs::PermissionsExt;
        let env = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let file = EnvFile::write(&env("PATH", "./evil bin")).unwrap();
        let [option, path] = file.arguments();
        assert_eq!(
            (
                option.as_str(),
                std::fs::read_to_string(&path).unwrap().as_str()
            ),
            ("--env-file", "PATH=./evil bin\n")
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop(file);
        assert!(!Path::new(&path).exists());
        assert!(
            EnvFile::write(&env("A", "1\nLD_PRELOAD=x")).is_err()
                && EnvFile::write(&env("A=1\nB", "x")).is_err()
        );
    }

    #[test]
    fn a_dockerfile_has_the_vendors_requirements_and_no_line_that_a_name_brought() {
        let root = Path::new("/nonexistent");
        let set = RecipeSet::load(root).unwrap();
        let render = |id: &str, base: &str, user| {
            Context::render(root, &set.recipes[id], Vendor::Amd, base, user)
        };
        let prim = render("prim", "rocm/primus:v25.9_gfx942", Some("1000:1000")).unwrap();
        assert!(
            prim.dockerfile()
                .contains("\nFROM rocm/primus:v25.9_gfx942\n")
        );
        assert!(prim.dockerfile().contains("\nUSER 1000:1000\n"));
        assert_eq!(prim.files[1].0, "requirements.txt");
        let tran = render("tran", "rocm/pytorch:latest", None).unwrap();
        for part in [
            "sed -i '/^torch==/d' /opt/tprimat/requirements.txt",
            "-c /opt/tprimat/base.txt",
        ] {
            assert!(
                tran.dockerfile().contains(part),
                "a torch of the base image stays: {}",
                tran.dockerfile()
            );
        }
        let cmd = render("cmd", "busybox", None).unwrap();
        assert_eq!(cmd.files.len(), 1);
        assert!(!cmd.dockerfile().contains("pip"));
        for base in ["", "a b", "a\nRUN x", "-x", "$(x)"] {
            assert!(render("cmd", base, None).is_err(), "{base:?}");
        }
        assert!(render("cmd", "busybox", Some("root\nRUN x")).is_err());
    }
}
